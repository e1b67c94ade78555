"""Streamable HTTP as a client speaks it: both forms of an answer, streams that break, servers that mean harm."""

import asyncio
import gzip
import itertools
import json
import socket
import time
from typing import Any

import pytest

from support.fakes import DISCOVERED, Exchange, http_server, initialized, reply, sse
from weft import (
    AuthorizationFailed,
    Client,
    ClientLimits,
    ConnectionFailed,
    Http,
    InvalidAnswer,
    RemoteError,
    RequestTimeout,
)
from weft.auth import BearerToken
from weft.client import StreamReopened, ToolsChanged
from weft.client.connection.transport import Refused
from weft.client.http.transport import HttpTransport
from weft.client.http.wire import AiohttpWire

TEXT = {"content": [{"type": "text", "text": "done"}]}
QUICK = ClientLimits(probe_seconds=0.5, request_seconds=2, close_seconds=0.5)


def notification(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


class Server:
    """A server of the stateless era whose calls a function answers; remembers every exchange."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.seen: list[Exchange] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        elif exchange.rpc == "tools/list":
            await exchange.result({"tools": []})
        elif "id" not in exchange.message:
            await exchange.respond(202)
        else:
            await self.call(exchange)

    def methods(self) -> list[str]:
        return [exchange.rpc or exchange.method for exchange in self.seen]


@pytest.mark.spec("HTTP-06", "HTTP-07", "HTTP-08", "HTTP-09", "HDR-01", "HDR-02", "HDR-06", "HDR-07", "HDR-08")
async def test_every_message_is_a_post_with_its_headers() -> None:
    server = Server(lambda exchange: exchange.result({**TEXT, "contents": [], "messages": []}))
    async with http_server(server) as url, Client(Http(url, headers={"X-Mine": "yes"})) as client:
        await client.call_tool("add")
        await client.read_resource("file:///h\u00e9")
        await client.get_prompt(" p ")
        await client.notify("notifications/x")
    for exchange in server.seen:
        assert exchange.method == "POST"
        assert {part.strip() for part in exchange.headers["accept"].split(",")} == {
            "application/json",
            "text/event-stream",
        }
        assert exchange.headers["content-type"] == "application/json"
        assert exchange.headers["mcp-protocol-version"] == "2026-07-28"
        assert exchange.headers["mcp-method"] == exchange.rpc
        assert exchange.headers["x-mine"] == "yes"
        assert "mcp-session-id" not in exchange.headers
    names = [exchange.headers.get("mcp-name") for exchange in server.seen]
    assert names == [None, "add", "=?base64?ZmlsZTovLy9ow6k=?=", "=?base64?IHAg?=", None]


@pytest.mark.spec("HTTP-14", "HTTP-21", "TRN-01")
async def test_an_answer_may_be_a_stream_with_comments_and_notifications_before_it() -> None:
    told: list[Any] = []

    async def call(exchange: Exchange) -> None:
        token = exchange.message["params"]["_meta"]["progressToken"]
        progress = notification("notifications/progress", progressToken=token, progress=1)
        body = reply(exchange.message, {"content": [{"type": "text", "text": "d\u00f6ne"}]})
        whole = b": alive\n\n" + sse() + sse(progress) + b":\n\n" + sse(body)
        await exchange.stream(*(whole[start : start + 7] for start in range(0, len(whole), 7)))

    async with http_server(Server(call)) as url, Client(url) as client:
        assert (await client.call_tool("t", progress=told.append)).text == "d\u00f6ne"
    assert [step.progress for step in told] == [1]


@pytest.mark.spec("HTTP-23", "HTTP-22")
async def test_a_stream_that_breaks_loses_the_call_and_says_so() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(b"", id="1"), sse(notification("notifications/x")))

    server = Server(call)
    async with http_server(server) as url, Client(url) as client:
        with pytest.raises(ConnectionFailed, match="before its answer was complete"):
            await client.call_tool("t")
    assert server.methods() == ["server/discover", "tools/call"]


@pytest.mark.spec("HTTP-23", "JRPC-05")
async def test_what_only_reads_is_asked_again_under_another_id() -> None:
    async def call(exchange: Exchange) -> None:
        if len(server.seen) == 2:
            exchange.cut()
        else:
            await exchange.result({"contents": []})

    server = Server(call)
    async with http_server(server) as url, Client(url) as client:
        assert (await client.read_resource("x://y")).contents == []
    assert server.seen[1].message["id"] != server.seen[2].message["id"]


@pytest.mark.spec("HTTP-27")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_giving_up_closes_the_stream_and_sends_nothing(how: str) -> None:
    gone = asyncio.Event()

    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(notification("notifications/x")))
        try:
            while True:
                await exchange.raw(b":\n\n")
                await asyncio.sleep(0.01)
        except OSError:
            gone.set()
            raise

    server = Server(call)
    async with http_server(server) as url, Client(url) as client:
        if how == "timeout":
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", timeout=0.1)
        else:
            task = asyncio.create_task(client.call_tool("t"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.wait_for(gone.wait(), 15)
    assert server.methods() == ["server/discover", "tools/call"]


@pytest.mark.spec("L03-01")
async def test_an_answer_may_come_in_an_array_with_others() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.respond(
            200, b"[" + notification("notifications/x") + b"," + reply(exchange.message, TEXT) + b"]"
        )

    heard: list[str] = []
    server = Server(call)
    async with http_server(server) as url, Client(url, on_notification=lambda name, _: heard.append(name)) as client:
        assert (await client.call_tool("t")).text == "done"
    assert heard == ["notifications/x"]


async def test_a_proxy_is_spoken_to_instead_of_the_server() -> None:
    server = Server(lambda exchange: exchange.result(TEXT))
    async with (
        http_server(server) as proxy,
        Client(Http("http://127.0.0.1:1/mcp", proxy=proxy.removesuffix("/mcp"))) as client,
    ):
        assert (await client.call_tool("t")).text == "done"
    assert {exchange.path for exchange in server.seen} == {"http://127.0.0.1:1/mcp"}


# --- redirects


@pytest.mark.security("R11")
async def test_redirects_are_followed_within_the_origin_only() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/mcp":
            await exchange.respond(308, location="/real")
        elif exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        elif exchange.message["params"]["name"] == "away":
            await exchange.respond(307, location="http://127.0.0.1:1/mcp?secret=1")
        elif exchange.message["params"]["name"] == "changed":
            await exchange.respond(302, location="/real")
        elif exchange.message["params"]["name"] == "round":
            await exchange.respond(307, location="/real")
        else:
            await exchange.result(TEXT)

    async with http_server(handle) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "done"
        for name in ("away", "changed"):
            with pytest.raises(ConnectionFailed, match="sends you to"):
                await client.call_tool(name)
        with pytest.raises(ConnectionFailed, match="again and again"):
            await client.call_tool("round")


# --- servers that mean harm


@pytest.mark.security("D12")
async def test_an_endless_body_ends() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n\r\n")
        exchange.is_stream = True
        while True:
            await exchange.raw(b" " * 65536)

    limits = ClientLimits(message_bytes=1_000_000)
    async with http_server(Server(call)) as url, Client(url, limits=limits) as client:
        with pytest.raises(InvalidAnswer, match="1000000 bytes"):
            await client.call_tool("t")


@pytest.mark.security("D12")
async def test_one_byte_too_many_is_too_many() -> None:
    body = b""

    async def call(exchange: Exchange) -> None:
        nonlocal body
        body = reply(exchange.message, TEXT)
        await exchange.respond(200, body + b" " * exchange.message["params"]["arguments"]["more"])

    async with http_server(Server(call)) as url:
        async with Client(url) as client:
            await client.call_tool("t", {"more": 0})
        limits = ClientLimits(message_bytes=max(len(body), 400))
        async with Client(url, limits=limits) as client:
            fits = limits.message_bytes - len(body)
            assert (await client.call_tool("t", {"more": fits})).text == "done"
            with pytest.raises(InvalidAnswer, match="bytes"):
                await client.call_tool("t", {"more": fits + 1})


@pytest.mark.security("D12")
async def test_a_gzip_bomb_does_not_go_off() -> None:
    """It would be a good answer, were it not for its size."""

    async def call(exchange: Exchange) -> None:
        bomb = gzip.compress(reply(exchange.message, TEXT) + b" " * 50_000_000)
        assert len(bomb) < 1_000_000
        await exchange.respond(200, bomb, content_encoding="gzip")

    async with http_server(Server(call)) as url, Client(url, limits=ClientLimits(message_bytes=1_000_000)) as client:
        with pytest.raises(InvalidAnswer, match="more than 1000000 bytes"):
            await client.call_tool("t")


async def test_a_packed_answer_is_unpacked() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.respond(200, gzip.compress(reply(exchange.message, TEXT)), content_encoding="gzip")

    async with http_server(Server(call)) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "done"


@pytest.mark.security("D12")
async def test_an_event_that_is_too_long_ends_the_stream() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.stream(b"data: ")
        while True:
            await exchange.raw(b"x" * 65536)

    async with http_server(Server(call)) as url, Client(url, limits=ClientLimits(event_bytes=200_000)) as client:
        with pytest.raises(InvalidAnswer, match="200000 bytes"):
            await client.call_tool("t")


@pytest.mark.security("R6")
@pytest.mark.parametrize("form", ["json", "stream"])
async def test_an_answer_to_another_request_is_none(form: str) -> None:
    async def call(exchange: Exchange) -> None:
        body = reply({"id": 12345}, TEXT)
        await (exchange.respond(200, body) if form == "json" else exchange.stream(sse(body)))

    async with http_server(Server(call)) as url, Client(url) as client:
        with pytest.raises((InvalidAnswer, ConnectionFailed)):
            await client.call_tool("t")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[1,2]",
        b"{}",
        b'{"jsonrpc":"2.0","id":2}',
        b"[" * 5000,
        b'{"jsonrpc":"2.0","id":2,"result":' + b"9" * 2000 + b"}",
    ],
)
async def test_a_body_that_is_no_answer(body: bytes) -> None:
    async with http_server(Server(lambda exchange: exchange.respond(200, body))) as url, Client(url) as client:
        with pytest.raises((InvalidAnswer, ConnectionFailed)):
            await client.call_tool("t")


async def test_a_server_that_dies_during_a_call() -> None:
    async def call(exchange: Exchange) -> None:
        exchange.cut()

    async with http_server(Server(call)) as url, Client(url) as client:
        with pytest.raises(ConnectionFailed) as caught:
            await client.call_tool("t")
        assert url in str(caught.value)


# --- authorization


async def test_a_hook_may_authorize_and_try_again() -> None:
    class Hook:
        token = "old"

        async def headers(self, url: str, method: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {self.token}"}

        async def refused(self, refusal: Refused, given: Any, request: Any) -> bool:
            assert refusal.status == 401
            assert given == {"Authorization": "Bearer old"}
            assert request["Mcp-Method"] == "server/discover"
            assert refusal.headers["www-authenticate"] == "Bearer"
            was, self.token = self.token, "new"
            return was == "old"

    async def handle(exchange: Exchange) -> None:
        if exchange.headers["authorization"] != "Bearer new":
            await exchange.respond(401, www_authenticate="Bearer")
        else:
            await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else TEXT)

    async with http_server(handle) as url, Client(url, auth=Hook()) as client:
        assert (await client.call_tool("t")).text == "done"


async def test_a_hook_that_always_wants_to_try_again_is_not_let() -> None:
    asked = 0

    class Hopeful:
        async def headers(self, url: str, method: str) -> dict[str, str]:
            return {}

        async def refused(self, refusal: Refused, given: Any, request: Any) -> bool:
            return True

    async def handle(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1
        await exchange.respond(401, www_authenticate="Bearer")

    async with http_server(handle) as url:
        with pytest.raises(AuthorizationFailed):
            await asyncio.wait_for(Client(url, auth=Hopeful()).connect(), 10)
    assert asked == 4


@pytest.mark.parametrize("at", ["the hook's", "a call's", "a stream's"])
async def test_one_who_gives_up_reading_a_refusal_leaves_no_connection_open(at: str) -> None:
    class Endless:
        """A refusal whose body does not come."""

        status, headers, is_done = 401, {"Content-Type": "text/plain"}, False

        async def body(self, limit: int) -> bytes:
            reading.set()
            return await asyncio.get_running_loop().create_future()

        def done(self) -> None:
            self.is_done = True

    class Cut(Endless):
        """A stream that has to be taken up again."""

        status, headers = 200, {"Content-Type": "text/event-stream"}

        async def chunks(self) -> Any:
            yield sse(b"", id="1", retry="1")

    class Fake:
        async def exchange(self, method: str, url: str, headers: Any, body: bytes | None) -> Any:
            replies.append(Cut() if at == "a stream's" and method == "POST" else Endless())
            return replies[-1]

    class Hook:
        async def headers(self, url: str, method: str) -> dict[str, str]:
            return {}

    replies: list[Endless] = []
    reading = asyncio.Event()
    auth: Any = Hook() if at == "the hook's" else None
    transport = HttpTransport("http://127.0.0.1/mcp", Fake(), ClientLimits(), auth=auth)  # type: ignore[arg-type]
    asking = asyncio.create_task(transport.request(b"{}", 1, resumable=True))
    async with asyncio.timeout(30):
        await reading.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [one.is_done for one in replies] == [True] * len(replies)


# --- the session era


class Session:
    """A server of the session era; sessions can be lost. Calls and the standalone stream are functions."""

    def __init__(self, call: Any = None, get: Any = None) -> None:
        self.call = call or (lambda exchange: exchange.result(TEXT))
        self.get = get or (lambda exchange: exchange.respond(405))
        self.current = 0
        self.seen: list[Exchange] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if exchange.rpc == "server/discover":
            await exchange.respond(400)
        elif exchange.rpc == "initialize":
            self.current += 1
            await exchange.result(initialized(), mcp_session_id=f"s{self.current}")
        elif exchange.headers.get("mcp-session-id") != f"s{self.current}":
            await exchange.error(404, -32001) if exchange.message else await exchange.respond(404)
        elif exchange.method == "GET":
            await self.get(exchange)
        elif exchange.method == "DELETE" or "id" not in exchange.message or "method" not in exchange.message:
            await exchange.respond(202)
        else:
            await self.call(exchange)

    def methods(self) -> list[str]:
        return [exchange.rpc or exchange.method for exchange in self.seen]


@pytest.mark.spec("L11-22", "L11-26", "L11-27", "L11-53")
async def test_the_session_and_the_version_go_along_with_everything_after_the_handshake() -> None:
    server = Session()
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        await client.call_tool("t")
    assert server.methods() == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "GET",
        "tools/call",
        "DELETE",
    ]
    assert "mcp-session-id" not in server.seen[1].headers
    assert "mcp-protocol-version" not in server.seen[1].headers
    for exchange in server.seen[2:]:
        assert exchange.headers["mcp-session-id"] == "s1"
        assert exchange.headers["mcp-protocol-version"] == "2025-11-25"
        assert "mcp-method" not in exchange.headers


async def test_a_token_that_cannot_be_had_any_more_does_not_spoil_the_end(caplog: pytest.LogCaptureFixture) -> None:
    def token() -> str:
        return tokens.pop() if tokens else 1 / 0  # type: ignore[return-value]

    tokens = ["t"] * 100
    caplog.set_level("DEBUG", "weft.client")
    async with http_server(Session()) as url, Client(url, auth=BearerToken(token)):
        tokens.clear()
    assert f"The session at {url} could not be ended (ZeroDivisionError)." in caplog.text


@pytest.mark.spec("L11-25")
async def test_a_session_that_is_gone_is_replaced_once_for_all_who_notice() -> None:
    server = Session()
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        server.current += 1  # nobody knows s1 any more
        results = await asyncio.gather(*(client.call_tool("t") for _ in range(5)))
        assert [result.text for result in results] == ["done"] * 5
    assert server.methods().count("initialize") == 2
    again = [exchange for exchange in server.seen if exchange.rpc == "initialize"][1]
    assert "mcp-session-id" not in again.headers


@pytest.mark.parametrize("reads", [True, False])
async def test_a_session_that_is_gone_with_its_connection_is_replaced_for_a_request_that_reads(reads: bool) -> None:
    """The server was restarted while it served the request. Whether a call was done is not known."""

    async def call(exchange: Exchange) -> None:
        if server.current == 1:
            server.current += 1
            exchange.cut()
        else:
            await exchange.result({"content": [], "contents": []})

    server = Session(call)
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        if reads:
            assert (await client.read_resource("a://b")).contents == []
        else:
            with pytest.raises(ConnectionFailed):
                await client.call_tool("t")
    assert server.methods().count("resources/read") == (3 if reads else 0)
    assert server.methods().count("tools/call") == (0 if reads else 1)


async def test_a_session_that_is_gone_again_at_once_is_reported() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.respond(404)

    async with http_server(Session(call)) as url, Client(url, limits=QUICK) as client:
        with pytest.raises(ConnectionFailed, match="404"):
            await client.call_tool("t")


async def test_a_session_that_is_lost_while_it_is_replaced_does_not_hang() -> None:
    async def call(exchange: Exchange) -> None:
        if exchange.rpc == "logging/setLevel":
            server.current += 1
        await exchange.result(TEXT)

    server = Session(call)
    async with http_server(server) as url, Client(url, log_level="info", limits=QUICK) as client:
        with pytest.raises((RemoteError, ConnectionFailed)):
            await asyncio.wait_for(client.call_tool("t"), 15)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_giving_up_is_told_for_a_disconnect_means_nothing(how: str) -> None:
    server = Session(lambda exchange: exchange.hang())
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        if how == "timeout":
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", timeout=0.1)
        else:
            task = asyncio.create_task(client.call_tool("t"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0.1)
    calls = {exchange.rpc: exchange.message for exchange in server.seen}
    assert calls["notifications/cancelled"]["params"]["requestId"] == calls["tools/call"]["id"]


@pytest.mark.spec("L11-17")
async def test_a_stream_that_broke_off_is_taken_up_again() -> None:
    times: list[float] = []
    asked: dict[str, Any] = {}

    async def call(exchange: Exchange) -> None:
        asked.update(exchange.message)
        await exchange.stream(sse(b"", id="e1", retry=300))
        times.append(time.monotonic())

    async def get(exchange: Exchange) -> None:
        if "last-event-id" not in exchange.headers:
            await exchange.respond(405)
            return
        times.append(time.monotonic())
        assert exchange.headers["mcp-session-id"] == "s1"
        if exchange.headers["last-event-id"] == "e1":
            await exchange.stream(sse(notification("notifications/x"), id="e2"))
        else:
            assert exchange.headers["last-event-id"] == "e2"
            await exchange.stream(sse(reply(asked, TEXT), id="e3"))

    server = Session(call, get)
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        assert (await client.call_tool("t")).text == "done"
    assert server.methods().count("tools/call") == 1
    assert all(later - earlier >= 0.29 for earlier, later in itertools.pairwise(times))


async def test_a_stream_that_cannot_be_taken_up_again_is_reported() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(b"", id="e1", retry=10))

    async def get(exchange: Exchange) -> None:
        if "last-event-id" in exchange.headers:
            exchange.cut()
        else:
            await exchange.respond(405)

    server = Session(call, get)
    async with http_server(server) as url, Client(url, limits=ClientLimits(resumptions=2, probe_seconds=1)) as client:
        with pytest.raises(ConnectionFailed):
            await client.call_tool("t")
    assert 1 + 3 <= server.methods().count("GET") <= 1 + 2 * 3  # aiohttp may try a connection that it kept twice


async def test_a_stream_that_the_server_does_not_let_be_taken_up_again() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(b"", id="e1", retry=10))

    server = Session(call)  # every GET gets a 405
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        with pytest.raises(ConnectionFailed) as caught:
            await client.call_tool("t")
    assert str(caught.value) == (
        f"{url} ended the stream before its answer was complete, and does not let the client resume it (HTTP 405). "
        "It is not known whether the request was executed."
    )
    assert server.methods()[-3:] == ["tools/call", "GET", "DELETE"]


async def test_a_call_that_may_have_run_is_not_repeated_in_another_session() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(b"", id="e1", retry=10))
        server.current += 1

    server = Session(call)
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        with pytest.raises(ConnectionFailed, match="not known"):
            await client.call_tool("t")
        assert server.methods().count("tools/call") == 1
        server.call = lambda exchange: exchange.result(TEXT)
        assert (await client.call_tool("t")).text == "done"


async def test_questions_on_a_stream_are_answered_by_posts_of_their_own() -> None:
    answered = asyncio.Event()

    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(b'{"jsonrpc":"2.0","id":0,"method":"roots/list"}'))
        await asyncio.wait_for(answered.wait(), 15)
        await exchange.raw(sse(reply(exchange.message, TEXT)))

    class Answering(Session):
        async def __call__(self, exchange: Exchange) -> None:
            await super().__call__(exchange)
            if exchange.message.get("id") == 0 and "result" in exchange.message:
                answered.set()

    server = Answering(call)
    async with http_server(server) as url, Client(url, roots=["file:///"], limits=QUICK) as client:
        assert (await client.call_tool("t")).text == "done"
    [answer] = [exchange for exchange in server.seen if exchange.message.get("id") == 0]
    assert answer.message["result"]["roots"] == [{"uri": "file:///"}]
    assert answer.headers["mcp-session-id"] == "s1"


async def test_the_standing_stream_is_there_before_the_first_call_and_comes_back() -> None:
    streams: list[Exchange] = []

    async def get(exchange: Exchange) -> None:
        streams.append(exchange)
        await exchange.stream(sse(b"", id=f"g{len(streams)}", retry=20))
        if len(streams) == 1:
            await asyncio.sleep(0.1)
        else:
            await exchange.raw(sse(notification("notifications/tools/list_changed")))
            await exchange.hang()

    server = Session(get=get)
    async with http_server(server) as url, Client(url, limits=QUICK) as client:
        assert len(streams) == 1
        async with client.listen(tools=True, uris=["x://y"]) as changes:
            seen = [await asyncio.wait_for(anext(changes), 15) for _ in range(2)]
        assert [type(change).__name__ for change in seen] == ["StreamReopened", "ToolsChanged"]
        assert streams[1].headers["last-event-id"] == "g1"
    subscriptions = [exchange.message for exchange in server.seen if "subscribe" in exchange.rpc]
    assert [message["method"] for message in subscriptions] == ["resources/subscribe", "resources/unsubscribe"]
    assert subscriptions[0]["params"] == {"uri": "x://y"}


async def test_a_standing_stream_that_the_server_still_thinks_is_there_is_tried_again() -> None:
    gets = 0

    async def get(exchange: Exchange) -> None:
        nonlocal gets
        gets += 1
        if gets == 1:
            await exchange.stream(b"retry: 1\n\n:\n\n")
            exchange.cut()
        elif gets < 4:
            await exchange.respond(409)
        else:
            await exchange.stream(sse(notification("notifications/tools/list_changed")))
            await exchange.hang()

    async with http_server(Session(get=get)) as url, Client(url, eras=["session"], limits=QUICK) as client:
        changes = client.listen(tools=True)
        assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
        assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()
    assert gets == 4


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the system has other names for it")
async def test_the_system_looks_after_a_stream_that_says_nothing() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.stream(b":\n\n")
        await exchange.hang()

    wire = AiohttpWire(QUICK)
    await wire.open()
    async with http_server(handle) as url:
        reply = await wire.exchange("GET", url, {}, None)
        chunks = reply.chunks()
        assert await anext(chunks) == b":\n\n"
        connection = reply._response.connection  # type: ignore[attr-defined] - aiohttp's own
        end = connection.transport.get_extra_info("socket")
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        await chunks.aclose()  # type: ignore[attr-defined] - it is a generator
        reply.done()
        await wire.close()


async def test_connections_that_may_lead_nowhere_are_not_used_again() -> None:
    async def handle(exchange: Exchange) -> None:
        ports.append(exchange.writer.get_extra_info("peername")[1])
        cookies.append(exchange.headers.get("cookie"))
        await exchange.respond(200, set_cookie="a=1")

    ports: list[int] = []
    cookies: list[str | None] = []
    wire = AiohttpWire(QUICK)
    await wire.open()
    async with http_server(handle) as url:
        url = url.replace("127.0.0.1", "localhost")
        for renews in (False, False, True, True, True, True, True):
            if renews:
                wire.renew()
            (await wire.exchange("GET", url, {}, None)).done()
        await wire.close()
    assert ports[0] == ports[1]
    assert len(set(ports)) == 6
    assert cookies == [None, *["a=1"] * 6]  # one client is still one client


async def test_one_who_gives_up_closing_leaves_no_connection_open() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.respond(200, b"{}")

    async with http_server(handle) as url:
        wire = AiohttpWire(ClientLimits())
        await wire.open()
        (await wire.exchange("POST", url, {}, b"{}")).done()
        wire.renew()
        (await wire.exchange("POST", url, {}, b"{}")).done()
        pools = [*wire._retired, wire._session]
        closing = asyncio.create_task(wire.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.sleep(0.01)
        assert [pool.closed for pool in pools] == [True, True]
        await wire.close()


@pytest.mark.parametrize("how", ["closed", "given up", "cancelled"])
async def test_one_who_waits_for_a_connection_is_cancelled_by_nobody_else(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(exchange: Exchange) -> None:
        called.set()
        await exchange.hang()

    monkeypatch.setattr("weft.client.http.wire._MOST_CONNECTIONS", 1)
    called = asyncio.Event()
    wire = AiohttpWire(ClientLimits())
    await wire.open()
    async with http_server(call) as url:
        first = asyncio.create_task(wire.exchange("POST", url, {}, b"{}"))
        async with asyncio.timeout(30):
            await called.wait()
        second = asyncio.create_task(wire.exchange("POST", url, {}, b"{}"))
        await asyncio.sleep(0.05)
        if how == "cancelled":
            second.cancel()
        for _ in range(4 if how == "given up" else 0):
            wire.renew()
        if how == "closed":
            await wire.close()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else ConnectionFailed):
            await second
        assert second.cancelled() == (how == "cancelled")
        await wire.close()
        with pytest.raises(ConnectionFailed) as caught:
            await first
    assert str(caught.value) == f"The connection to {url} was closed."


async def test_pools_that_were_given_up_just_before_the_end_are_closed_too() -> None:
    wire = AiohttpWire(QUICK)
    await wire.open()
    pools = [wire._session]
    for _ in range(5):
        wire.renew()
        pools.append(wire._session)
    await wire.close()
    assert [pool.closed for pool in pools if pool is not None] == [True] * 6


@pytest.mark.parametrize("answer", [b"\0\1 nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"])
async def test_an_answer_that_is_no_http_is_told_without_the_query(answer: bytes) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.raw(answer)

    async with http_server(handle) as url:
        with pytest.raises(ConnectionFailed) as caught:
            await Client(f"{url}?key=s3cret").connect()
    assert str(caught.value) == (
        f"{url} answered with something that is not HTTP; check the address, and what runs there."
    )
