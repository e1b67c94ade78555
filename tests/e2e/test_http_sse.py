"""HTTP+SSE, the transport of the oldest revision: one stream for everything the server says, on real sockets."""

import asyncio
import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from support import VERSION, Live, Response, encode, make_server, message, serve, start_request, until
from support.wire import headers_for
from weft import Context, Limits, Server
from weft.auth import TokenInfo
from weft.eras.session import HANDSHAKE, READY
from weft.errors import UsageError
from weft.net.asgi import TOKEN_INFO
from weft.protocol.revisions import SESSION_REVISIONS as REVISIONS

OLDEST, SECOND, *_ = reversed(REVISIONS)
ANSWERS = {"sampling": {}, "roots": {"listChanged": True}}
JSON = ("Content-Type", "application/json")
STREAM = ("Accept", "text/event-stream")


class OldClient:
    """Opens the stream, and sends to where its first event says."""

    def __init__(self, live: Live, *headers: tuple[str, str], path: str = "/sse") -> None:
        self.live = live
        self.headers = headers
        self.connection = live.connect()
        start_request(self.connection, b"", [STREAM, *headers], verb="GET", path=path, length=False)
        self.stream = self.connection.getresponse()
        self.events: list[str] = []  # the names of all that came
        self.number = 0
        self.address = ""
        if self.stream.status == 200:
            self.address = self.event()

    def event(self) -> str:
        """The data of the next event."""
        fields: dict[str, str] = {}
        while line := self.stream.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "data" not in fields:
            assert "" in fields, "the stream has ended"
            return self.event()  # a comment
        assert fields.keys() == {"event", "data"}
        self.events.append(fields["event"])
        return fields["data"]

    def next(self) -> Any:
        return json.loads(self.event())

    def send(self, body: Any, *headers: tuple[str, str]) -> Response:
        raw = body if isinstance(body, bytes) else encode(body)
        return self.live.send(raw, [JSON, *self.headers, *headers], path=self.address)

    def tell(self, method: str, params: Any = None) -> None:
        assert self.send({"jsonrpc": "2.0", "method": method, "params": params or {}}).status == 202

    def start(self, method: str, params: Any = None) -> int:
        self.number += 1
        request = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}}
        taken = self.send(request)
        assert (taken.status, taken.body) == (202, b"")
        return self.number

    def ask(self, method: str, params: Any = None) -> Any:
        """The result of a request; what is said before is dropped."""
        number = self.start(method, params)
        while (answer := self.next()).get("id") != number:
            pass
        return answer.get("result", answer)

    def tool(self, name: str, arguments: Any = None, **params: Any) -> Any:
        return self.ask("tools/call", {"name": name, "arguments": arguments or {}, **params})

    def greet(self, version: str = OLDEST, capabilities: Any = None) -> Any:
        info = {"name": "old", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or ANSWERS, "clientInfo": info}
        result = self.ask(HANDSHAKE, params)
        self.tell(READY)
        return result

    def answer(self, question: Any, result: Any) -> None:
        assert self.send({"jsonrpc": "2.0", "id": question["id"], "result": result}).status == 202

    def ended(self) -> bool:
        """Wait for the end of the stream."""
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            while self.stream.readline():
                pass
        return True

    def close(self) -> None:
        self.stream.close()
        self.connection.close()


@contextlib.contextmanager
def serving(**limits: Any) -> Iterator[Live]:
    with serve(make_server(limits=Limits(**limits)), sse_path="/sse") as running:
        yield running


@pytest.fixture
def live() -> Iterator[Live]:
    with serving(progress_per_second=0) as running:
        yield running


@pytest.fixture
def client(live: Live) -> Iterator[OldClient]:
    with contextlib.closing(OldClient(live)) as client:
        yield client


@pytest.mark.spec("L24-01", "L24-02", "L24-04")
def test_the_stream_says_where_to_send_and_has_all_answers(live: Live, client: OldClient) -> None:
    assert client.stream.getheader("content-type") == "text/event-stream"
    path, _, id = client.address.partition("?session_id=")
    assert path == "/messages"
    assert len(id) > 32
    assert client.greet()["protocolVersion"] == OLDEST
    assert client.tool("add", {"a": 2, "b": 3})["content"][0]["text"] == "5"
    assert set(client.events[1:]) == {"message"}
    assert client.events[0] == "endpoint"


@pytest.mark.spec("COMPAT-20", "COMPAT-21")
def test_it_is_off_unless_asked_for_and_then_beside_the_endpoint(live: Live, client: OldClient) -> None:
    client.greet()
    assert client.ask("ping") == {}
    assert live.healthy()
    with serve(make_server()) as without:
        assert without.send(b"", [STREAM], verb="GET", path="/sse").status == 404
        assert without.send(b"{}", [JSON], path="/messages?session_id=sse-1").status == 404


@pytest.mark.spec("L24-07")
def test_everything_a_session_has(live: Live, client: OldClient) -> None:
    opened = client.greet()
    assert "completions" not in opened["capabilities"]
    assert "annotations" not in client.ask("tools/list")["tools"][0]
    client.tell("notifications/cancelled", {"requestId": 77})
    number = client.start(
        "tools/call", {"name": "steps", "arguments": {"values": [1, 2]}, "_meta": {"progressToken": 4}}
    )
    told = [client.next() for _ in range(3)]
    assert [one["params"] for one in told[:2]] == [{"progressToken": 4, "progress": n, "total": 2} for n in (1, 2)]
    assert told[2]["id"] == number
    assert client.ask("logging/setLevel", {"level": "alert"}) == {}
    client.start("tools/call", {"name": "chatter", "arguments": {}})
    assert [client.next()["params"]["level"] for _ in range(2)] == ["alert", "emergency"]
    assert client.next()["result"]["content"][0]["text"] == "done"
    assert client.ask("resources/subscribe", {"uri": "mood://now"}) == {}
    live.server.notify_resource_updated("mood://now")
    live.server.notify_resource_updated("mood://other")
    live.server.notify_tools_changed()
    heard = [client.next() for _ in range(2)]
    assert [one["method"].rpartition("notifications/")[2] for one in heard] == [
        "resources/updated",
        "tools/list_changed",
    ]


@pytest.mark.spec("L24-07")
def test_questions_come_on_the_stream_and_answers_are_posted(client: OldClient) -> None:
    client.greet()
    number = client.start("tools/call", {"name": "ask_model", "arguments": {}})
    question = client.next()
    assert question["method"] == "sampling/createMessage"
    client.answer(question, {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m-1"})
    answer = client.next()
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (number, "m-1")
    client.start("tools/call", {"name": "ask_roots", "arguments": {}})
    client.answer(client.next(), {"roots": [{"uri": "file:///home"}]})
    assert "file:///home" in client.next()["result"]["content"][0]["text"]


def test_a_cancelled_request_is_not_answered(live: Live, client: OldClient) -> None:
    client.greet()
    number = client.start("tools/call", {"name": "wait", "arguments": {"token": "c"}})
    until(lambda: live.server.log.of("c"))
    client.tell("notifications/cancelled", {"requestId": number})
    until(lambda: "cancelled" in live.server.log.of("c"))
    assert client.ask("ping") == {}
    answers = [client.ask("ping") for _ in range(3)]
    assert answers == [{}] * 3


@pytest.mark.spec("L03-01", "L03-02", "L03-03")
def test_batches_of_the_revision_that_has_them(live: Live) -> None:
    ping = {"jsonrpc": "2.0", "method": "ping"}
    with contextlib.closing(OldClient(live)) as client:
        client.greet(SECOND)
        noted = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        again = {"jsonrpc": "2.0", "id": "h", "method": HANDSHAKE, "params": {}}
        assert client.send([{**ping, "id": "a"}, noted, 7, again, {**ping, "id": "b"}]).status == 202
        got = [client.next() for _ in range(4)]
        assert sorted(one["id"] for one in got if "result" in one) == ["a", "b"]
        assert [one["error"]["code"] for one in got if "error" in one] == [-32600, -32600]
    with contextlib.closing(OldClient(live)) as client:
        client.greet(OLDEST)
        assert client.send([{**ping, "id": 1}]).refusal == (400, -32600)
        assert client.ask("ping") == {}


def test_what_is_no_message_is_refused_where_it_was_sent(client: OldClient) -> None:
    client.greet()
    assert client.send(b"{").refusal == (400, -32700)
    assert client.send(b"{}").refusal == (400, -32600)
    assert client.ask("no/such")["error"]["code"] == -32601
    assert client.ask(HANDSHAKE, {"protocolVersion": OLDEST})["error"]["code"] in (-32600, -32602)


def test_the_handshake_comes_first(client: OldClient) -> None:
    assert client.ask("tools/list")["error"]["code"] == -32600
    assert client.ask("ping") == {}
    assert client.greet()["protocolVersion"] == OLDEST


@pytest.mark.spec("L24-05")
@pytest.mark.security("R14")
def test_the_guards_stand_at_both_places(live: Live, client: OldClient) -> None:
    body = encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    for verb, path in (("GET", "/sse"), ("POST", client.address)):
        wrong = [
            (("Host", "evil.example"), 421),
            (("Origin", "https://evil.example"), 403),
            (("Accept", "text/css"), 406),
        ]
        for header, status in wrong:
            assert live.send(body, [JSON, header], verb=verb, path=path).status == status
    assert live.send(b"", [("Accept", "application/json")], verb="GET", path="/sse").status == 406
    for verb, path, allowed in (("POST", "/sse", "GET"), ("DELETE", "/sse", "GET"), ("GET", client.address, "POST")):
        refused = live.send(b"{}", [JSON], verb=verb, path=path)
        assert (refused.status, refused.headers["allow"]) == (405, allowed)
    assert live.send(body, [("Content-Type", "text/plain")], path=client.address).status == 415
    assert live.send(body, [JSON, ("Content-Encoding", "gzip")], path=client.address).status == 415
    assert live.send(body, [JSON, ("Content-Length", "9999999")], path=client.address).status == 413


@pytest.mark.security("R5", "R14")
def test_an_unknown_session(live: Live, client: OldClient) -> None:
    client.greet()
    id = client.address.partition("=")[2]
    other = live.send(encode(greeting()), [JSON, ("Accept", "application/json, text/event-stream")])
    streamable = other.headers["mcp-session-id"]  # it has no stream here
    queries = ("", "?", "?session_id=", "?session_id=sse-none", f"?session_id={streamable}", f"?id={id}",
               f"?session_id={id}&session_id={id}")  # fmt: skip
    body = encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    refused = [live.send(body, [JSON], path=f"/messages{query}") for query in queries]
    assert {one.refusal for one in refused} == {(404, -32600)}
    assert live.send(body, [JSON], path=f"/messages?session_id={'x' * 2000}").status == 400
    assert client.ask("ping") == {}


def greeting() -> dict[str, Any]:
    info = {"name": "t", "version": "1"}
    params = {"protocolVersion": SECOND, "capabilities": {}, "clientInfo": info}
    return {"jsonrpc": "2.0", "id": 1, "method": HANDSHAKE, "params": params}


@pytest.mark.security("R4", "R5")
def test_a_session_belongs_to_its_principal() -> None:
    app = make_server().asgi(sse_path="/sse")

    async def login(scope: Any, receive: Any, send: Any) -> None:
        if user := dict(scope.get("headers", ())).get(b"x-user"):
            scope[TOKEN_INFO] = TokenInfo(user.decode())
        await app(scope, receive, send)

    with serve(login) as live, contextlib.closing(OldClient(live, ("X-User", "ann"))) as ann:
        ann.greet()
        body = encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        for stranger in ([], [("X-User", "bob")]):
            assert live.send(body, [JSON, *stranger], path=ann.address).refusal == (404, -32600)
        assert ann.ask("ping") == {}


@pytest.mark.security("R4")
def test_the_end_of_the_stream_is_the_end_of_the_session(live: Live) -> None:
    before = len(live.server.engine.sessions)
    client = OldClient(live)
    client.greet()
    client.start("tools/call", {"name": "wait", "arguments": {"token": "e"}})
    until(lambda: live.server.log.of("e"))
    client.close()
    until(lambda: "cancelled" in live.server.log.of("e"))
    until(lambda: len(live.server.engine.sessions) <= before and not live.server.engine.in_flight)
    assert client.send({"jsonrpc": "2.0", "id": 9, "method": "ping"}).status == 404
    assert live.healthy()


@pytest.mark.security("D8")
def test_sessions_of_one_peer_and_their_end_if_nothing_comes() -> None:
    with serving(sessions_per_peer=2, session_unused_seconds=0.3) as live:
        used, unused = OldClient(live), OldClient(live)
        used.greet()
        with contextlib.closing(OldClient(live)) as third:
            assert third.stream.status == 503
        assert unused.ended()
        unused.close()
        with contextlib.closing(OldClient(live)) as after:
            assert after.stream.status == 200
            assert used.ask("ping") == {}
        used.close()


@pytest.mark.security("D9")
def test_requests_at_once_are_bounded() -> None:
    with serving(in_flight_per_connection=2) as live, contextlib.closing(OldClient(live)) as client:
        client.greet()
        for token in ("one", "two"):
            client.start("tools/call", {"name": "wait", "arguments": {"token": token}})
        assert client.ask("ping")["error"]["code"] == -32603
        client.tell("notifications/cancelled", {"requestId": client.number - 1})
        until(lambda: "cancelled" in live.server.log.of("two"))
        assert client.ask("ping") == {}
        assert client.send({"jsonrpc": "2.0", "id": client.number - 3, "method": "ping"}).status == 202
        assert client.next()["error"]["code"] == -32600  # this id is still being served


def test_a_burst_reaches_who_reads(client: OldClient) -> None:
    client.greet()
    values = list(range(1, 1001))  # more than a stream keeps
    client.start("tools/call", {"name": "steps", "arguments": {"values": values}, "_meta": {"progressToken": 1}})
    assert [client.next()["params"]["progress"] for _ in values] == values
    assert client.next()["result"]["content"][0]["text"] == "done"


def test_many_changes_at_once_reach_who_reads(live: Live, client: OldClient) -> None:
    client.greet()
    uris = [f"mood://{number}" for number in range(600)]
    for uri in uris:
        client.ask("resources/subscribe", {"uri": uri})
    for uri in uris:
        live.server.notify_resource_updated(uri)
    assert [client.next()["params"]["uri"] for _ in uris] == uris


PROGRAM = """
from weft import Limits, Server

server = Server("stalled", limits=Limits(write_seconds=0.3, keep_alive_seconds=60, drain_seconds=0.5))

@server.tool
async def large() -> str:
    return "x" * 1_000_000

@server.tool
async def left() -> list[int]:
    return [len(server.engine.sessions), server.engine.in_flight - 1]

server.run("http", port=0, sse_path="/sse")
"""


class Elsewhere(Live):
    """The same client, of a server in a process of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.faults = []

    def left(self) -> Any:
        return self.tool("left").result["structuredContent"]


@contextlib.contextmanager
def running(file: Path) -> Iterator[Elsewhere]:
    with subprocess.Popen([sys.executable, str(file)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield Elsewhere(int(next(found[1] for line in process.stderr if (found := re.search(r":(\d+)/mcp", line)))))
        finally:
            process.terminate()


@pytest.mark.security("D10")
def test_who_does_not_read_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text(PROGRAM)
    with running(file) as live, contextlib.closing(OldClient(live)) as client:
        client.greet()
        assert live.left() == [1, 0]
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "large", "arguments": {}}}
        for number in range(100, 112):  # more than the buffers of two sockets hold
            assert client.send({**call, "id": number}).status in (202, 404)
        until(lambda: live.left() == [0, 0])
        assert client.send({**call, "id": 1}).status == 404


def test_below_a_mount_the_address_is_below_it_too() -> None:
    app = make_server().asgi(sse_path="/old/sse")
    with (
        serve(Starlette(routes=[Mount("/tea shop", app)])) as live,
        contextlib.closing(OldClient(live, path="/tea%20shop/old/sse")) as client,
    ):
        assert client.address.startswith("/tea%20shop/old/messages?session_id=")
        client.greet()
        assert client.ask("ping") == {}


def test_stopping_ends_the_streams(live: Live, client: OldClient) -> None:
    client.greet()
    live.server.close_streams()
    assert client.ended()
    until(lambda: not len(live.server.engine.sessions))


@pytest.mark.spec("L24-04")
def test_who_waits_for_an_answer_gets_it_before_the_stream_ends(live: Live, client: OldClient) -> None:
    @live.server.tool
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    client.greet()
    asked = [client.start("tools/call", {"name": "nap", "arguments": {"seconds": seconds}}) for seconds in (0.3, 0.6)]
    live.server.close_streams()
    assert [client.next()["id"] for _ in asked] == asked
    assert client.ended()
    until(lambda: len(live.server.engine.sessions) == 0)


def test_a_lifespan_that_fails_fails_the_request() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> Any:
        raise RuntimeError("no database")
        yield

    async def without_start(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    app = Server("broken", lifespan=lifespan).asgi(sse_path="/sse")
    with serve(without_start) as live:
        assert live.send(b"", [STREAM], verb="GET", path="/sse").refusal == (500, -32603)


def test_what_a_session_has_opened_is_closed_with_it() -> None:
    server = make_server()
    closed: list[str] = []

    @server.tool
    async def remember(ctx: Context) -> str:
        """Have something cleaned up at the end."""
        ctx.connection.exit_stack.callback(closed.append, "closed")
        return "noted"

    with serve(server, sse_path="/sse") as live:
        client = OldClient(live)
        client.greet()
        client.tool("remember")
        assert closed == []
        client.close()
        until(lambda: closed == ["closed"])


@pytest.mark.parametrize("path", ["sse", "/", "/old/", "/mcp", "/mcp/", "/messages", ""])
def test_a_path_that_is_not_possible(path: str) -> None:
    with pytest.raises(UsageError, match=r"sse_path='.*' is not possible"):
        Server("s").asgi(sse_path=path)


def test_it_needs_sessions() -> None:
    with pytest.raises(UsageError, match="that transport has sessions"):
        Server("s").asgi(sse_path="/sse", sessions=False)
    with pytest.raises(UsageError, match="that transport has sessions"):
        Server("s", eras=["stateless"]).asgi(sse_path="/sse")
    with pytest.raises(UsageError, match="must be free"):
        Server("s").asgi("/messages", sse_path="/sse")


def test_a_stream_of_the_other_transport_can_be_opened_again_at_once(live: Live) -> None:
    opened = live.send(encode(greeting()), [JSON, ("Accept", "application/json, text/event-stream")])
    named = ("Mcp-Session-Id", opened.headers["mcp-session-id"])
    for _ in range(2):
        with contextlib.closing(live.connect()) as connection:
            start_request(connection, b"", [STREAM, named], verb="GET", length=False)
            response = connection.getresponse()
            assert response.status == 200
            response.close()
        until(lambda: live.server.engine.sessions._local(named[1]).wake is None)  # before the next sign of life


@pytest.mark.security("R1")
def test_a_stream_that_cannot_have_an_answer_ends(
    live: Live, client: OldClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> int:
        raise ConnectionError("the backend is down")

    client.greet()
    monkeypatch.setattr(live.server.backend.log, "append", fail)
    client.start("ping")
    assert client.ended()
    until(lambda: live.server.engine.in_flight == 0)
    assert "Answering ping raised ConnectionError: the backend is down" in caplog.text


def repeated(request: Any) -> list[tuple[str, str]]:
    """The headers that repeat a request of the other era."""
    return [(name, value) for name, value in headers_for(request) if name.lower().startswith("mcp")]


@pytest.mark.spec("COMPAT-02", "HDR-09")
def test_a_request_that_says_everything_about_itself_is_not_of_the_session(client: OldClient) -> None:
    """Here as elsewhere: it is served by what it says, if its headers repeat that, and refused otherwise."""
    request = message("tools/call", {"name": "who", "arguments": {}}, id="m")
    for _ in range(2):  # before the handshake, and after
        assert client.send(request).status == 202
        assert (refused := client.next())["error"]["code"] == -32020, refused
        assert client.send(request, *repeated(request)).status == 202
        served = client.next()
        assert (served["id"], served["result"]["resultType"]) == ("m", "complete")
        assert served["result"]["structuredContent"] == {
            "version": VERSION, "capabilities": {}, "client": "t", "id": "m"
        }  # fmt: skip
        client.greet()
    own = json.loads(client.tool("who")["content"][0]["text"])
    assert (own["version"], own["client"]) == (OLDEST, "old")


@pytest.mark.spec("COMPAT-02")
def test_such_a_request_ends_with_the_stream_that_its_answer_goes_to(client: OldClient) -> None:
    request = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="l")
    assert client.send(request, *repeated(request)).status == 202
    assert client.next()["method"] == "notifications/subscriptions/acknowledged"
    assert len(client.live.server.engine.subscriptions) == 1
    client.close()
    until(lambda: len(client.live.server.engine.subscriptions) == 0)


@pytest.mark.spec("L11-24")
def test_a_session_of_this_transport_does_not_exist_at_the_other_endpoint(live: Live, client: OldClient) -> None:
    client.greet()
    named = ("Mcp-Session-Id", client.address.partition("session_id=")[2])
    ping = encode({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert live.send(ping, [JSON, named]).status == 404
    for headers in ([STREAM, named], [STREAM, named, ("Last-Event-ID", "0.1")]):
        assert live.send(b"", headers, verb="GET").status == 404
    assert live.send(b"", [named], verb="DELETE").status == 404
    assert client.ask("ping") == {}
