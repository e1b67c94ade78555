"""Which era a server speaks: every way in which one can answer the first question, over HTTP and over a pipe."""

import asyncio
import json
import sys
from typing import Any

import pytest

from support.fakes import DISCOVERED, LEGACY, MODERN, Exchange, FakePipe, http_server, initialized, reply, sse
from weft import (
    AuthorizationFailed,
    Client,
    ClientLimits,
    ConnectionFailed,
    RemoteError,
    RequestTimeout,
    VersionMismatch,
)
from weft.errors import UsageError

QUICK = ClientLimits(probe_seconds=1, request_seconds=5, close_seconds=0.5)
PATIENT = ClientLimits(probe_seconds=30, request_seconds=30, close_seconds=0.5)  # where nothing is to be silent


class Server:
    """Answers `server/discover` in one way, `initialize` in another; counts what it was asked."""

    def __init__(self, probe: Any, handshake: Any = None, get: Any = None) -> None:
        self.ways = {"server/discover": probe, "initialize": handshake}
        self.get = get
        self.asked: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.asked.append(exchange.rpc or exchange.method)
        if exchange.method == "GET":
            await (self.get(exchange) if self.get else exchange.respond(405))
        elif exchange.rpc in self.ways:
            await self.ways[exchange.rpc](exchange)
        elif "id" not in exchange.message:
            await exchange.respond(202)
        else:
            await exchange.result({"tools": []})


async def modern(exchange: Exchange) -> None:
    await exchange.result(DISCOVERED)


async def legacy(exchange: Exchange) -> None:
    await exchange.result(initialized())


def answering(status: int, body: bytes = b"", kind: str = "text/html") -> Any:
    return lambda exchange: exchange.respond(status, body, kind)


def refusing(status: int, code: int, data: Any = None) -> Any:
    return lambda exchange: exchange.error(status, code, data)


async def silent(exchange: Exchange) -> None:
    await exchange.hang()


@pytest.mark.spec("COMPAT-05", "COMPAT-11", "VER-04")
async def test_a_server_that_answers_the_first_question_speaks_the_stateless_era() -> None:
    server = Server(modern)
    async with http_server(server) as url, Client(url) as client:
        assert (client.era, client.protocol_version) == ("stateless", MODERN)
        assert client.server_info is not None
        assert client.server_info.name == "fake"
        assert client.server_capabilities.tools is not None
    assert server.asked == ["server/discover"]


@pytest.mark.spec("COMPAT-12", "COMPAT-13", "L11-01", "L11-04")
@pytest.mark.parametrize(
    "probe",
    [
        answering(400),
        answering(400, b"<html>Bad</html>"),
        answering(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID"}}'),
        answering(404, b"Not found"),
        answering(405),
        answering(500, b"oops"),
        answering(200, b"<html>Welcome</html>"),
        refusing(200, -32601),
        refusing(404, -32601),
        refusing(400, -32602),
        refusing(200, -32000, {"why": "no session"}),
        lambda exchange: exchange.result({}),
    ],
    ids=lambda _: "",
)
async def test_any_other_answer_leads_to_the_handshake(probe: Any) -> None:
    server = Server(probe, legacy)
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        assert (client.era, client.protocol_version) == ("session", LEGACY)
        assert client.instructions == "Be kind."
        assert await client.list_tools() == []
    assert server.asked == ["server/discover", "initialize", "notifications/initialized", "GET", "tools/list"]


@pytest.mark.spec("COMPAT-12")
@pytest.mark.parametrize("code", [-32020, -32021])
async def test_an_error_of_the_stateless_era_alone_is_no_reason_to_fall_back(code: int) -> None:
    server = Server(refusing(400, code), legacy)
    async with http_server(server) as url:
        with pytest.raises(RemoteError) as caught:
            await Client(url, limits=QUICK).connect()
    assert caught.value.code == code
    assert server.asked == ["server/discover"]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_authorization_has_said_nothing_about_its_era(status: int) -> None:
    server = Server(answering(status), legacy)
    async with http_server(server) as url:
        with pytest.raises(AuthorizationFailed if status == 401 else ConnectionFailed, match=f"{status}") as caught:
            await Client(url, limits=QUICK).connect()
        assert url in str(caught.value)
    assert server.asked == ["server/discover"]


@pytest.mark.spec("VER-02", "COMPAT-12")
@pytest.mark.parametrize("code", [-32022, -32004, -32602])
async def test_versions_that_a_refusal_names_are_understood_whatever_its_code(code: int) -> None:
    refusals = [refusing(400, code, {"supported": [MODERN], "requested": MODERN}), modern]

    async def next_one(exchange: Exchange) -> None:
        await refusals.pop(0)(exchange)

    server = Server(next_one, legacy)
    async with http_server(server) as url, Client(url) as client:
        assert client.era == "stateless"
    assert server.asked == ["server/discover"] * 2


@pytest.mark.spec("VER-02", "COMPAT-07")
async def test_without_a_common_version_both_lists_are_told() -> None:
    server = Server(refusing(400, -32022, {"supported": ["2031-01-01"]}), legacy)
    async with http_server(server) as url:
        with pytest.raises(VersionMismatch, match="2031-01-01") as caught:
            await Client(url).connect()
    assert caught.value.theirs == ["2031-01-01"]
    assert MODERN in caught.value.ours
    assert LEGACY in caught.value.ours
    assert server.asked == ["server/discover"]


async def test_a_server_that_contradicts_itself_is_not_asked_for_ever() -> None:
    server = Server(refusing(400, -32022, {"supported": [MODERN]}))
    async with http_server(server) as url:
        with pytest.raises(VersionMismatch):
            await Client(url).connect()
    assert server.asked == ["server/discover"] * 2


async def test_a_session_version_that_a_refusal_names_is_agreed_on_by_a_handshake() -> None:
    server = Server(refusing(400, -32022, {"supported": ["2025-06-18"]}), lambda e: e.result(initialized("2025-06-18")))
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        assert client.protocol_version == "2025-06-18"


@pytest.mark.spec("L11-03")
async def test_a_handshake_answered_with_an_unknown_version_is_no_agreement() -> None:
    server = Server(answering(400), lambda exchange: exchange.result(initialized("1999-01-01")))
    async with http_server(server) as url:
        with pytest.raises(VersionMismatch, match="1999-01-01"):
            await Client(url, limits=QUICK).connect()


@pytest.mark.spec("CAN-12")
async def test_a_server_that_hangs_after_the_first_question_is_not_waited_for() -> None:
    server = Server(answering(400), silent)
    async with http_server(server) as url:
        with pytest.raises((ConnectionFailed, RequestTimeout), match="initialize") as caught:
            await Client(url, limits=QUICK).connect()
        assert url in str(caught.value)


@pytest.mark.spec("COMPAT-08", "COMPAT-12")
async def test_a_slow_server_is_waited_for() -> None:
    """Only over stdio does silence mean that a server does not know the question."""

    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(1.5)
        await exchange.result(DISCOVERED)

    server = Server(slow, legacy)
    async with http_server(server) as url, Client(url, limits=ClientLimits(probe_seconds=0.5)) as client:
        assert client.era == "stateless"
    assert server.asked == ["server/discover"]


async def test_a_server_that_stays_silent_is_not_asked_in_another_era() -> None:
    server = Server(silent, legacy)
    async with http_server(server) as url:
        limits = ClientLimits(probe_seconds=0.2, request_seconds=0.5)
        with pytest.raises(RequestTimeout, match=r"server/discover within 0\.5 s.*eras=\['session'\]"):
            await Client(url, limits=limits).connect()
    assert server.asked == ["server/discover"]


async def test_sentences_among_what_was_tried_end_once() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.respond(200, b"{}")

    async with http_server(handle) as url:
        with pytest.raises(ConnectionFailed) as caught:
            await Client(url).connect()
    assert "Tried: server/discover and initialize: " in str(caught.value)
    assert "must be the string 2.0. Check the address" in str(caught.value)


async def test_what_was_tried_is_told() -> None:
    server = Server(answering(404, b"Nothing here"), answering(404, b"Nothing here"))
    async with http_server(server) as url:
        with pytest.raises(ConnectionFailed) as caught:
            await Client(url, limits=QUICK).connect()
    told = str(caught.value)
    for part in (url, "server/discover and initialize: HTTP 404 (Nothing here)", "GET", "/mcp"):
        assert part in told
    assert server.asked == ["server/discover", "initialize", "GET"]


async def test_nobody_there() -> None:
    async with http_server(Server(modern)) as url:
        pass
    with pytest.raises(ConnectionFailed, match="No server is running at"):
        await Client(url).connect()


@pytest.mark.spec("COMPAT-14", "L24-03", "COMPAT-20")
async def test_the_transport_of_the_first_revision_comes_last() -> None:
    streams: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            streams.append(exchange)
            await exchange.stream(sse("/messages?session=1", event="endpoint"))
            await exchange.hang()
        elif exchange.path == "/mcp":
            await exchange.respond(405)
        else:
            await exchange.respond(202)
            if "id" in exchange.message:
                result = initialized("2024-11-05") if exchange.rpc == "initialize" else {"tools": []}
                await streams[0].raw(sse(reply(exchange.message, result), event="message"))

    async with http_server(handle) as url, Client(url, limits=QUICK) as client:
        assert client.protocol_version == "2024-11-05"
        assert await client.list_tools() == []


class FirstRevision:
    """A server of the HTTP+SSE transport, until it is `renewed`; notes what it was asked, and where."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_renewed = False
        self.is_locked = False
        self.stream: Exchange | None = None

    async def __call__(self, exchange: Exchange) -> None:
        self.asked.append(f"{exchange.method} {exchange.path} {exchange.rpc}".strip())
        if self.is_locked:
            await exchange.respond(401)
        elif self.is_renewed:
            await (exchange.result(DISCOVERED) if exchange.rpc == "server/discover" else exchange.respond(405))
        elif exchange.method == "GET":
            self.stream = exchange
            await exchange.stream(sse("/messages", event="endpoint"))
            await exchange.raw(sse("/elsewhere", event="endpoint"))  # the first one counts
            await exchange.hang()
        elif exchange.path == "/mcp":
            await exchange.respond(405)
        else:
            await exchange.respond(202)
            if "id" in exchange.message and self.stream is not None:
                await self.stream.raw(sse(reply(exchange.message, initialized("2024-11-05"))))


@pytest.mark.spec("COMPAT-04", "COMPAT-14")
async def test_the_transport_of_the_first_revision_is_remembered_and_found_out_anew() -> None:
    server = FirstRevision()
    straight = ["GET /mcp", "POST /messages initialize", "POST /messages notifications/initialized"]
    async with http_server(server) as url:
        for before in (["POST /mcp server/discover", "POST /mcp initialize"], [], []):
            server.asked.clear()
            async with Client(url, limits=PATIENT) as client:
                assert client.protocol_version == "2024-11-05"
                await client.reconnect()
            assert server.asked == before + straight * 2
        server.asked.clear()
        server.is_renewed = True
        for before in (["GET /mcp"], []):
            async with Client(url, limits=PATIENT) as client:
                assert client.era == "stateless"
            assert server.asked == [*before, "POST /mcp server/discover"]
            server.asked.clear()


async def test_a_login_that_a_remembered_stream_wants_is_no_reason_to_find_out_anew() -> None:
    server = FirstRevision()
    async with http_server(server) as url:
        async with Client(url, limits=QUICK):
            pass
        server.asked.clear()
        server.is_locked = True
        with pytest.raises(AuthorizationFailed):
            await Client(url, limits=QUICK).connect()
        assert server.asked == ["GET /mcp"]


@pytest.mark.security("R11")
@pytest.mark.parametrize("endpoint", ["http://evil.example/messages", "http://["])
async def test_an_endpoint_of_another_origin_is_not_sent_to(endpoint: str) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.stream(sse(endpoint, event="endpoint"))
            await exchange.hang()
        await exchange.respond(405)

    async with http_server(handle) as url:
        with pytest.raises(ConnectionFailed, match="another origin"):
            await Client(url, limits=QUICK).connect()


@pytest.mark.spec("COMPAT-04")
async def test_what_was_found_out_is_remembered_and_found_out_anew_when_it_is_not_so_any_more() -> None:
    server = Server(answering(400), legacy)
    async with http_server(server) as url:
        for _ in range(2):
            async with Client(url, limits=QUICK):
                pass
        assert server.asked.count("server/discover") == 1
        server.ways = {"server/discover": modern, "initialize": refusing(404, -32601)}
        async with Client(url, limits=QUICK) as client:
            assert client.era == "stateless"


@pytest.mark.spec("COMPAT-04")
@pytest.mark.parametrize(
    "probe",
    [
        answering(500, b"oops"),
        answering(200, b"<html>Welcome</html>"),
        refusing(400, -32602),
        refusing(200, -32603),
        lambda exchange: exchange.result({}),
    ],
    ids=["500", "no message", "-32602", "-32603", "no welcome"],
)
async def test_what_need_not_be_about_the_era_is_not_remembered(probe: Any) -> None:
    server = Server(probe, legacy)
    async with http_server(server) as url:
        async with Client(url, limits=QUICK) as client:
            assert client.era == "session"
        server.ways["server/discover"] = modern
        for _ in range(2):
            async with Client(url, limits=QUICK) as client:
                assert client.era == "stateless"
    assert server.asked.count("initialize") == 1


@pytest.mark.parametrize("status", [408, 425, 429, 502, 503, 504])
async def test_a_server_that_was_busy_is_asked_the_same_once_more(status: int) -> None:
    answers = [answering(status), modern]

    async def next_one(exchange: Exchange) -> None:
        await answers.pop(0)(exchange)

    server = Server(next_one, legacy)
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        assert client.era == "stateless"
    assert server.asked == ["server/discover"] * 2


@pytest.mark.parametrize(
    ("status", "after", "times", "said"),
    [
        (
            503,
            {},
            2,
            r"503 \(empty\): it is busy, or just starting: wait, then try again, or look into its log\.$",
        ),
        (429, {"retry_after": "1"}, 2, r"number of requests: wait, then try again\. It asks to wait for 1 s\.$"),
        (429, {"retry_after": "30"}, 1, r"It asks to wait for 30 s\.$"),
        (
            502,
            {"retry_after": "tomorrow"},
            2,
            r"502 .* look into its log, and into that of a proxy before it\.$",
        ),
    ],
)
async def test_a_server_that_stays_busy_has_said_nothing_about_its_era(
    status: int, after: dict[str, str], times: int, said: str
) -> None:
    server = Server(lambda exchange: exchange.respond(status, **after), legacy)
    async with http_server(server) as url:
        with pytest.raises(ConnectionFailed, match=said) as caught:
            await Client(url, limits=QUICK).connect()
        assert url in str(caught.value)
    assert server.asked == ["server/discover"] * times


async def test_a_busy_server_is_still_known_for_what_it_spoke() -> None:
    server = Server(answering(400), legacy)
    async with http_server(server) as url:
        async with Client(url, limits=QUICK):
            pass
        server.ways["initialize"] = answering(503)
        with pytest.raises(ConnectionFailed, match="503"):
            await Client(url, limits=QUICK).connect()
        server.ways["initialize"] = legacy
        async with Client(url, limits=QUICK) as client:
            assert client.era == "session"
    assert server.asked.count("server/discover") == 1


@pytest.mark.spec("COMPAT-12")
async def test_an_error_of_the_stateless_era_counts_whatever_its_status() -> None:
    server = Server(refusing(503, -32021), legacy)
    async with http_server(server) as url:
        with pytest.raises(RemoteError):
            await Client(url, limits=QUICK).connect()
    assert server.asked == ["server/discover"]


async def test_what_a_mode_excludes_is_not_tried_and_the_mode_is_named() -> None:
    server = Server(answering(405), legacy)
    async with http_server(server) as url:
        said = "Only the stateless era was tried, because of `eras=` or `version=`. Leave that out to try the other era"
        for pinned in ({"eras": ["stateless"]}, {"version": MODERN}):
            with pytest.raises(ConnectionFailed, match=said):
                await Client(url, limits=QUICK, **pinned).connect()
    assert server.asked == ["server/discover"] * 2


async def test_a_mode_and_a_version_can_be_pinned() -> None:
    server = Server(modern, lambda exchange: exchange.result(initialized("2025-06-18")))
    async with http_server(server) as url:
        async with Client(url, eras=["session"], limits=QUICK) as client:
            assert client.era == "session"
        async with Client(url, version=MODERN) as client:
            assert client.era == "stateless"
        with pytest.raises(VersionMismatch):
            await Client(url, version="2025-03-26", limits=QUICK).connect()
    with pytest.raises(UsageError, match="eras="):
        Client(url, eras=["modern"])  # type: ignore[arg-type] - what a user may write
    with pytest.raises(UsageError, match="version="):
        Client(url, version="2020-01-01")


@pytest.mark.parametrize("pinned", [{"eras": ["session"]}, {"version": "2025-06-18"}])
async def test_what_was_pinned_is_not_remembered(pinned: dict[str, Any]) -> None:
    server = Server(modern, lambda exchange: exchange.result(initialized("2025-06-18")))
    async with http_server(server) as url:
        async with Client(url, limits=QUICK, **pinned) as client:
            assert client.era == "session"
        async with Client(url, limits=QUICK) as client:
            assert client.era == "stateless"


async def test_the_reason_of_a_refusal_is_told_and_no_beginning_of_json() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Log in first."}}).encode()

    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(401, body)

    async with http_server(refuse) as url:
        with pytest.raises(
            AuthorizationFailed, match=r"status 401 \(Log in first\.\): it wants authorization: give `auth=`"
        ):
            await Client(url, limits=QUICK).connect()


@pytest.mark.parametrize("body", [b"", reply({"id": 1}, error={"code": -32600, "message": "It holds no token."})])
async def test_an_authorization_that_cannot_be_read_says_nothing_about_the_era(body: bytes) -> None:
    asked: list[str | None] = []

    async def refuse(exchange: Exchange) -> None:
        asked.append(exchange.rpc)
        await exchange.respond(400, body, **{"WWW-Authenticate": 'Bearer error="invalid_request"'})

    async with http_server(refuse) as url:
        with pytest.raises(
            AuthorizationFailed, match=r"it cannot read the Authorization that was sent: check the token"
        ):
            await Client(url, limits=QUICK).connect()
    assert asked == ["server/discover"]


@pytest.mark.parametrize("challenge", [{}, {"WWW-Authenticate": 'Bearer scope="read"'}], ids=["bare", "challenge"])
@pytest.mark.parametrize("body", [b"", reply({"id": 1}, error={"code": 1, "message": "No."})])
async def test_a_login_may_be_wanted_later_too(challenge: dict[str, str], body: bytes) -> None:
    async def handle(exchange: Exchange) -> None:
        await (
            exchange.result(DISCOVERED)
            if exchange.rpc == "server/discover"
            else exchange.respond(401, body, **challenge)
        )

    async with http_server(handle) as url, Client(url, limits=QUICK) as client:
        for request in (client.list_tools, lambda: client.call_tool("t"), lambda: client.notify("notifications/x")):
            with pytest.raises(AuthorizationFailed, match="it wants authorization: give `auth=`") as caught:
                await request()
            assert caught.value.tried == []


async def test_a_login_that_the_stream_of_the_first_revision_wants() -> None:
    server = Server(answering(405), answering(405), answering(401))
    async with http_server(server) as url:
        with pytest.raises(AuthorizationFailed, match="give `auth=`"):
            await Client(url, limits=QUICK).connect()
    assert server.asked == ["server/discover", "initialize", "GET"]


# --- over a pipe


def pipe_server(probe: Any) -> FakePipe:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            probe(pipe, message)
        elif message["method"] == "initialize":
            pipe.answer(message, initialized())
        elif "id" in message:
            pipe.answer(message, {"tools": []})

    return FakePipe(handle)


@pytest.mark.spec("COMPAT-06")
async def test_pipe_discovered() -> None:
    server = pipe_server(lambda pipe, message: pipe.answer(message, DISCOVERED))
    async with Client(server) as client:
        assert client.era == "stateless"


@pytest.mark.spec("COMPAT-08", "COMPAT-09")
@pytest.mark.parametrize(
    "probe",
    [
        lambda pipe, message: pipe.answer(message, error={"code": -32601, "message": "Method not found"}),
        lambda pipe, message: pipe.answer(message, error={"code": -32602, "message": "Invalid params"}),
        lambda pipe, message: pipe.answer(message, error={"code": 0, "message": ""}),
        lambda pipe, message: pipe.say(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid"}}'),
        lambda pipe, message: pipe.say(b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}'),
        lambda pipe, message: pipe.say(b"Unknown message! Aborting."),
        lambda pipe, message: None,
    ],
    ids=lambda _: "",
)
async def test_pipe_any_other_error_or_silence(probe: Any) -> None:
    server = pipe_server(probe)
    async with Client(server, limits=QUICK) as client:
        assert client.era == "session"
        assert await client.list_tools() == []
    assert [message["method"] for message in server.heard][:3] == [
        "server/discover",
        "initialize",
        "notifications/initialized",
    ]


@pytest.mark.spec("COMPAT-04", "COMPAT-08")
@pytest.mark.parametrize("is_silent", [True, False])
async def test_pipe_silence_and_every_error_count(is_silent: bool) -> None:
    error = {"code": -32602, "message": "Invalid params"}
    server = pipe_server(lambda pipe, message: None if is_silent else pipe.answer(message, error=error))
    async with Client(server, limits=QUICK) as client:
        await client.reconnect()
    assert len(server.calls("server/discover")) == 1
    assert len(server.calls("initialize")) == 2


@pytest.mark.spec("COMPAT-07")
async def test_pipe_a_refusal_of_the_version_never_leads_to_the_handshake() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": ["2031-01-01"], "requested": MODERN}}
    server = pipe_server(lambda pipe, message: pipe.answer(message, error=refusal))
    with pytest.raises(VersionMismatch):
        await Client(server).connect()
    assert not server.calls("initialize")
    assert server.is_closed


@pytest.mark.spec("COMPAT-10")
async def test_pipe_a_client_of_one_era_finds_out_before_it_calls() -> None:
    server = pipe_server(lambda pipe, message: pipe.answer(message, error={"code": -32601, "message": "?"}))
    with pytest.raises(ConnectionFailed, match="server/discover"):
        await Client(server, eras=["stateless"]).connect()
    assert [message["method"] for message in server.heard] == ["server/discover"]


@pytest.mark.spec("L11-05", "L11-07")
async def test_pipe_a_session_begins_with_its_handshake_and_never_uses_an_id_twice() -> None:
    server = pipe_server(lambda pipe, message: None)
    async with Client(server, eras=["session"]) as client:
        await asyncio.gather(*(client.list_tools() for _ in range(10)))
        await client.reconnect()
        await client.list_tools()
    assert [message["method"] for message in server.heard][:3] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
    ]
    ids = [message["id"] for message in server.heard if "id" in message]
    assert len(ids) == len(set(ids)) == 13


async def test_pipe_a_child_that_dies_of_the_first_question_is_started_anew(tmp_path: Any) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    message = json.loads(line)\n"
        "    if message['method'] == 'server/discover': sys.exit(3)\n"
        "    if 'id' in message:\n"
        f"        result = {initialized()!r} if message['method'] == 'initialize' else {{'tools': []}}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result}), flush=True)\n"
    )
    async with Client(["python3", str(program)]) as client:
        assert client.era == "session"
        assert await client.list_tools() == []


async def test_connecting_twice_is_connecting_once() -> None:
    server = Server(modern)
    async with http_server(server) as url:
        client = Client(url)
        await asyncio.gather(client.connect(), client.connect())
        await client.close()
        await client.close()
    assert server.asked == ["server/discover"]


@pytest.mark.spec("VER-02", "COMPAT-07")
@pytest.mark.parametrize("code", [-32022, -32004])
async def test_pipe_a_refusal_that_names_a_common_version_is_followed(code: int) -> None:
    refusals = [{"code": code, "message": "no", "data": {"supported": [MODERN], "requested": MODERN}}]

    def probe(pipe: FakePipe, message: dict[str, Any]) -> None:
        if refusals:
            pipe.answer(message, error=refusals.pop())
        else:
            pipe.answer(message, DISCOVERED)

    server = pipe_server(probe)
    async with Client(server) as client:
        assert (client.era, client.protocol_version) == ("stateless", MODERN)
    assert not server.calls("initialize")


async def test_pipe_a_session_version_that_a_refusal_names_is_agreed_on_by_a_handshake() -> None:
    refusal = {"code": -32022, "message": "no", "data": {"supported": [LEGACY], "requested": MODERN}}
    server = pipe_server(lambda pipe, message: pipe.answer(message, error=refusal))
    async with Client(server) as client:
        assert client.protocol_version == LEGACY
    assert server.calls("initialize")[0]["params"]["protocolVersion"] == LEGACY


@pytest.mark.spec("COMPAT-07")
@pytest.mark.parametrize("code", [-32020, -32021, -32022])
async def test_pipe_an_error_of_the_stateless_era_alone_is_no_reason_to_fall_back(code: int) -> None:
    server = pipe_server(lambda pipe, message: pipe.answer(message, error={"code": code, "message": "no"}))
    with pytest.raises(RemoteError) as caught:
        await Client(server).connect()
    assert caught.value.code == code
    assert not server.calls("initialize")


@pytest.mark.spec("CAN-12")
async def test_pipe_a_server_that_hangs_after_the_first_question_is_not_waited_for() -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, error={"code": -32601, "message": "?"})

    server = FakePipe(handle)
    with pytest.raises((ConnectionFailed, RequestTimeout), match="initialize"):
        await asyncio.wait_for(Client(server, limits=QUICK).connect(), 30)
    assert server.is_closed
    assert not server.calls("notifications/cancelled")


# --- the same, by real processes and by servers of the first revision


PROBED = """
import sys, json, time
for line in sys.stdin:
    message = json.loads(line)
    def answer(**said):
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
    if message["method"] == "server/discover":
        PROBE
    elif message["method"] == "initialize":
        answer(result=INITIALIZED)
    elif "id" in message:
        answer(result={"tools": []})
"""
PROBES = {
    "silent": "pass",
    "-32601": 'answer(error={"code": -32601, "message": "Method not found"})',
    "-32602": 'answer(error={"code": -32602, "message": "Invalid params"})',
    "-32700, without an id": 'print(\'{"jsonrpc":"2.0","error":{"code":-32700,"message":"?"}}\', flush=True)',
    "garbage": 'print("What? " * 100, flush=True)',
    "stderr": 'print("KeyError: server/discover", file=sys.stderr, flush=True)',
    "dies": "sys.exit(1)",
}


@pytest.mark.spec("COMPAT-08", "COMPAT-09")
@pytest.mark.parametrize("probe", PROBES)
async def test_a_child_of_the_session_era_is_found_out(tmp_path: Any, probe: str) -> None:
    program = tmp_path / "server.py"
    program.write_text(PROBED.replace("PROBE", PROBES[probe]).replace("INITIALIZED", repr(initialized())))
    limits = ClientLimits(probe_seconds=1, request_seconds=10, close_seconds=1)
    async with Client([sys.executable, str(program)], limits=limits) as client:
        assert (client.era, client.protocol_version) == ("session", LEGACY)
        assert await client.list_tools() == []


@pytest.mark.parametrize(
    ("probe", "handshake"),
    [
        (answering(401), None),
        (answering(403), None),
        (refusing(400, -32022, {"supported": ["2031-01-01"]}), None),
        (refusing(400, -32020), None),
        (answering(400), answering(401)),
        (answering(400), answering(500)),
        (silent, silent),
    ],
    ids=["401", "403", "-32022", "-32020", "then 401", "then 500", "silence"],
)
async def test_a_server_that_says_something_else_is_none_of_the_first_revision(probe: Any, handshake: Any) -> None:
    server = Server(probe, handshake)
    async with http_server(server) as url:
        with pytest.raises((ConnectionFailed, AuthorizationFailed, RemoteError, VersionMismatch, RequestTimeout)):
            await asyncio.wait_for(Client(url, limits=QUICK).connect(), 30)
    assert "GET" not in server.asked


@pytest.mark.spec("COMPAT-14")
@pytest.mark.parametrize("status", [400, 404, 405])
async def test_the_first_revision_is_tried_after_every_refusal_it_is_known_for(status: int) -> None:
    server = Server(answering(status), answering(status))
    async with http_server(server) as url:
        with pytest.raises(ConnectionFailed, match="as the first revision has it"):
            await Client(url, limits=QUICK).connect()
    assert server.asked == ["server/discover", "initialize", "GET"]


async def test_a_server_of_the_first_revision_that_names_no_endpoint_is_not_waited_for() -> None:
    async def get(exchange: Exchange) -> None:
        await exchange.stream(b": hello\n\n")
        await exchange.hang()

    server = Server(answering(405), answering(405), get)
    limits = ClientLimits(connect_seconds=0.5, close_seconds=0.2)
    async with http_server(server) as url:
        with pytest.raises(ConnectionFailed, match="no endpoint"):
            await asyncio.wait_for(Client(url, limits=limits).connect(), 30)
