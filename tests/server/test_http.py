"""The ASGI app by itself: what it does with scopes, bodies and bad manners that no socket gives it."""

import asyncio
import contextlib
from typing import Any

import pytest
from starlette.applications import Starlette

from support import ask, encode, headers_for, make_server, message, serve
from weft import Context, Limits, Server
from weft.auth import TokenInfo
from weft.errors import UsageError
from weft.net.asgi import Refusal
from weft.server.calls.connection import Cancellation
from weft.server.http.reply import Accepts, HttpReply, read_accept


@pytest.mark.parametrize(
    ("value", "accepts"),
    [
        (None, Accepts.BOTH),
        (b"*/*", Accepts.BOTH),
        (b"application/json", Accepts.JSON),
        (b"text/event-stream", Accepts.STREAM),
        (b"application/*", Accepts.JSON),
        (b"text/*", Accepts.STREAM),
        (b"application/json;q=0, */*;q=0.1", Accepts.BOTH),
        (b"application/json; q=0.5, text/event-stream; q=0", Accepts.JSON),
        (b"TEXT/EVENT-STREAM , x/y", Accepts.STREAM),
    ],
)
@pytest.mark.spec("HTTP-13")
def test_accept(value: bytes | None, accepts: Accepts) -> None:
    assert read_accept(value) == accepts


@pytest.mark.parametrize("value", [b"text/html", b"application/json;q=0", b"nonsense", b"x/json, y/event-stream"])
def test_accept_nothing_we_have(value: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        read_accept(value)
    assert refused.value.status == 406


def test_a_path_begins_with_a_slash() -> None:
    with pytest.raises(UsageError, match="begins with a slash"):
        Server("x").asgi("mcp")


async def test_websockets_are_closed() -> None:
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "websocket.connect"}

    async def send(part: dict) -> None:
        sent.append(part)

    await make_server().asgi()({"type": "websocket", "path": "/mcp", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1002}]


class Wire:
    """An ASGI client that sends its body in pieces."""

    def __init__(self, parts: list[Any], headers: list[tuple[str, str]]) -> None:
        self.parts, self.sent = parts, []
        self.scope = {
            "type": "http", "method": "POST", "path": "/mcp", "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in [("host", "localhost"), *headers]],
        }  # fmt: skip

    async def receive(self) -> dict:
        await asyncio.sleep(0)
        part = self.parts.pop(0) if self.parts else None
        if part is None:
            await asyncio.Event().wait()
        if part == "gone":
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(self.parts)}

    async def send(self, part: dict) -> None:
        self.sent.append(part)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


BODY = encode(message("tools/list"))
HEADERS = headers_for(message("tools/list"))


async def test_a_body_in_pieces() -> None:
    wire = Wire([BODY[:5], b"", BODY[5:50], BODY[50:]], HEADERS)
    await make_server().asgi()(wire.scope, wire.receive, wire.send)
    assert wire.status == 200


@pytest.mark.security("D1")
async def test_a_body_that_comes_byte_by_byte_is_not_copied_with_each() -> None:
    class Part(bytes):
        """Notices when a body so far is copied for its sake."""

        def __radd__(self, body: bytes) -> bytes:
            raise AssertionError("copied")

    wire = Wire([Part(BODY[at : at + 1]) for at in range(len(BODY))], HEADERS)
    await make_server().asgi()(wire.scope, wire.receive, wire.send)
    assert wire.status == 200


@pytest.mark.security("D1", "R12")
async def test_a_body_without_a_length_is_cut_off_at_the_limit() -> None:
    limits = Limits(body_bytes=1000)
    wire = Wire([b" " * 600] * 50, HEADERS)
    await make_server(limits=limits).asgi()(wire.scope, wire.receive, wire.send)
    assert wire.status == 413
    assert len(wire.parts) == 48  # read no further than it takes


@pytest.mark.security("R1")
async def test_a_body_that_is_cut_short_runs_nothing() -> None:
    server = make_server()
    body = message("tools/call", {"name": "wait", "arguments": {"token": "t"}})
    wire = Wire([encode(body), "gone"], headers_for(body))
    await server.asgi()(wire.scope, wire.receive, wire.send)
    assert server.log.of("t") == []  # type: ignore[attr-defined] - the tests' own
    assert server.engine.in_flight == 0


@pytest.mark.security("D6", "R12")
async def test_a_body_that_never_ends() -> None:
    server = make_server(limits=Limits(body_seconds=0.05))
    wire = Wire([BODY[:5], None], HEADERS)  # type: ignore[list-item] - None: silence
    await server.asgi()(wire.scope, wire.receive, wire.send)
    assert wire.status == 408


@pytest.mark.security("D6")
async def test_a_shutdown_while_reading_is_no_timeout() -> None:
    server = make_server()
    wire = Wire([BODY[:5], None], HEADERS)  # type: ignore[list-item] - None: silence
    task = asyncio.create_task(server.asgi()(wire.scope, wire.receive, wire.send))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wire.sent == []


@pytest.mark.security("R12")
async def test_a_peer_that_does_not_read_is_cut_off() -> None:
    async def never(part: dict) -> None:
        await asyncio.Event().wait()

    reply = HttpReply(never, Limits(write_seconds=0.02))
    reply.cancellation = Cancellation()
    await asyncio.wait_for(reply.notify(b"{}"), 30)
    assert reply.finished
    assert reply.cancellation.cancelled


async def test_the_answer_does_not_overtake_a_notification() -> None:
    sent: list[bytes] = []

    async def slow(part: dict) -> None:
        await asyncio.sleep(0.001)
        if part["type"] == "http.response.body":
            sent.append(part["body"])

    reply = HttpReply(slow, Limits())
    first = asyncio.create_task(reply.notify(b'"note"'))
    await asyncio.sleep(0)
    await reply.answer(200, b'"answer"')
    await reply.notify(b'"late"')
    await first
    assert [b"note" in part for part in sent] == [True, False]
    assert not any(b"late" in part for part in sent)


@pytest.mark.security("R2")
async def test_headers_that_passed_once_do_not_open_other_doors() -> None:
    app = make_server().asgi()
    for _ in range(2):
        assert (await ask(app, "tools/list")).status == 200
        assert (await ask(app, "tools/list", scope={"method": "GET"})).status == 400  # there is no session
        assert (await ask(app, "tools/list", scope={"method": "PUT"})).status == 405
        assert (await ask(app, "tools/list", scope={"path": "/other"})).status == 404
        assert (await ask(app, "tools/list", headers={"Origin": "http://evil.example"})).status == 403
        assert (await ask(app, "tools/list", headers={"Content-Encoding": "gzip"})).status == 415


@pytest.mark.security("R2")
async def test_headers_that_passed_once_do_not_open_another_mount() -> None:
    app = make_server().asgi("/shop/mcp")
    for _ in range(2):
        assert (await ask(app, "tools/list", scope={"path": "/shop/mcp"})).status == 200
        assert (await ask(app, "tools/list", scope={"path": "/shop/mcp", "root_path": "/shop"})).status == 404


@pytest.mark.security("R12")
async def test_what_is_remembered_of_headers_is_bounded() -> None:
    app = make_server().asgi()
    for number in range(1100):
        assert (await ask(app, "server/discover", headers={"Origin": f"http://localhost:{number + 1}"})).status == 200
    assert len(app._passes) <= 1024


@pytest.mark.security("R12")
async def test_long_headers_are_not_remembered() -> None:
    app = make_server().asgi()
    for size in (100, 600):
        accept = "application/json, text/event-stream" + ", text/plain" * (size // 12)
        assert (await ask(app, "server/discover", headers={"Accept": accept})).status == 200
    assert len(app._passes) == 1


class Gone(Wire):
    """A client that goes away: from its `after`th message on, `send` raises what ASGI servers raise then."""

    def __init__(self, parts: list[bytes], headers: list[tuple[str, str]], after: int) -> None:
        super().__init__(parts, headers)
        self.after = after

    async def send(self, part: dict) -> None:
        if len(self.sent) >= self.after:
            raise BrokenPipeError
        await super().send(part)


@pytest.mark.security("R1")
@pytest.mark.parametrize("waits", [True, False])
async def test_a_client_that_is_gone_is_no_fault_of_the_tool(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    server, seen = make_server(), []

    @server.tool
    async def tell(ctx: Context) -> str:
        try:
            for number in range(100):
                if waits:
                    await asyncio.sleep(0)
                await ctx.report_progress(number)
                seen.append(number)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "told"

    body = message("tools/call", {"name": "tell"}, meta={"progressToken": 1})
    wire = Gone([encode(body)], headers_for(body), after=3)
    await asyncio.wait_for(server.asgi()(wire.scope, wire.receive, wire.send), 30)
    assert seen == [0, 1, "cancelled"]
    assert len(wire.sent) == 3
    assert caplog.records == []
    assert server.engine.in_flight == 0


@pytest.mark.security("R1")
@pytest.mark.parametrize("after", [0, 1])
async def test_an_answer_to_a_client_that_is_gone_is_dropped(after: int) -> None:
    for body in (
        message("tools/list"),
        message("tools/call", {"name": "fail_in_thread", "arguments": {"how": "error"}}),
        {"jsonrpc": "2.0"},
    ):
        wire = Gone([encode(body)], headers_for(body), after=after)
        await make_server().asgi()(wire.scope, wire.receive, wire.send)
        assert len(wire.sent) == after


@pytest.mark.parametrize("others", [0, 1])
async def test_a_handler_that_swallows_its_cancellation_leaves_the_task_as_it_was(others: int) -> None:
    server = make_server()

    @server.tool
    async def swallow() -> str:
        for _ in range(others + 1):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        return "swallowed"

    body = message("tools/call", {"name": "swallow"})
    wire = Wire([encode(body)], headers_for(body))
    asked = iter([wire.receive(), _disconnect()])

    async def serve() -> int:
        await server.asgi()(wire.scope, lambda: next(asked), wire.send)
        return asyncio.current_task().cancelling()  # type: ignore[union-attr] - there is one

    task = asyncio.create_task(serve())
    await asyncio.sleep(0.05)
    if others:  # a shutdown, which is not to be forgotten for it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await asyncio.wait_for(task, 30) == 0
    assert wire.sent == []


async def _disconnect() -> dict:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


@pytest.mark.spec("HTTP-20")
async def test_a_silent_stream_gives_signs_of_life_until_it_is_answered() -> None:
    server = make_server(limits=Limits(keep_alive_seconds=0.05))
    done = asyncio.Event()

    @server.tool
    async def ponder(ctx: Context) -> str:
        await ctx.report_progress(1)
        await done.wait()
        return "pondered"

    body = message("tools/call", {"name": "ponder"}, meta={"progressToken": 1})
    wire = Wire([encode(body)], headers_for(body))
    task = asyncio.create_task(server.asgi()(wire.scope, wire.receive, wire.send))
    async with asyncio.timeout(30):
        while sum(part.get("body", b"").startswith(b":") for part in wire.sent) < 2:  # noqa: ASYNC110 - of another's list
            await asyncio.sleep(0.01)
    done.set()
    await task
    count = len(wire.sent)
    await asyncio.sleep(0.15)
    assert len(wire.sent) == count  # and none after the answer
    assert b"pondered" in wire.sent[-1]["body"]
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined] - of asyncio's own loop
    assert not [timer for timer in timers if not timer.cancelled() and "_on_beat" in repr(timer)]


async def test_no_signs_of_life_for_a_call_that_does_not_stream_or_is_given_up() -> None:
    server = make_server(limits=Limits(keep_alive_seconds=0.02))

    @server.tool
    async def tell(ctx: Context, *, streams: bool) -> str:
        if streams:
            await ctx.report_progress(1)
        await asyncio.sleep(0.1 if not streams else 60)
        return "done"

    for streams, most in ((False, 2), (True, 3)):
        body = message("tools/call", {"name": "tell", "arguments": {"streams": streams}}, meta={"progressToken": 1})
        wire = Wire([encode(body)], headers_for(body))
        asked = iter([wire.receive(), _disconnect() if streams else wire.receive()])
        await asyncio.wait_for(server.asgi()(wire.scope, lambda asked=asked: next(asked), wire.send), 30)
        await asyncio.sleep(0.1)
        assert len(wire.sent) <= most


class Lookalike:
    subject = "a secret"


@pytest.mark.parametrize(
    "value", [{"subject": "a secret"}, "a secret", Lookalike(), False, TokenInfo(""), TokenInfo(5)]
)
@pytest.mark.mistake("a caller that is no TokenInfo")
async def test_a_caller_of_another_kind_is_the_fault_of_whoever_says_so(value: Any, caplog: Any) -> None:
    ran: list[int] = []
    server = Server("s")
    server.add_tool(lambda: ran.append(1), name="run")
    response = await ask(server, "tools/call", {"name": "run"}, id=7, scope={"weft.token_info": value})
    assert (response.refusal, response.json["id"], ran) == ((500, -32603), 7, [])
    assert "scope['weft.token_info'] holds" in caplog.text
    assert "Put weft.auth.TokenInfo(subject=...) there" in caplog.text
    assert "secret" not in caplog.text + response.body.decode()
    assert (await ask(server, "tools/call", {"name": "run"}, scope={"weft.token_info": None})).status == 200


async def test_so_it_is_of_sessions(caplog: pytest.LogCaptureFixture) -> None:
    app, scope = Server("s").asgi(), {"weft.token_info": "a secret"}
    hello = encode({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {}})
    headers = {"MCP-Protocol-Version": None, "Mcp-Method": None}
    greeted = await ask(app, "initialize", headers=headers, scope=scope, body=hello)
    assert (greeted.refusal, greeted.json["id"]) == ((500, -32603), 7)
    for verb in ("GET", "DELETE"):
        refused = await ask(app, "x", headers={"Mcp-Session-Id": "s1"}, scope={**scope, "method": verb})
        assert refused.refusal == (500, -32603)
        assert "id" not in refused.json
    batch = await ask(app, "x", headers=headers, scope=scope, body=b"[" + hello + b"]")
    assert batch.refusal == (500, -32603)
    assert caplog.text.count("Put weft.auth.TokenInfo(subject=...) there") == 4
    assert not app.runtime.sessions
    assert app.runtime.in_flight == 0


@pytest.mark.parametrize(
    ("place", "path", "asked", "named"),
    [
        (None, "/mcp", "/other", "/mcp"),
        ("/mcp", "/mcp", "/mcp/other", "/mcp/"),
        ("/mcp/", "/mcp/", "/mcp/other", "/mcp/"),
        ("/", "/mcp", "/other", "/mcp"),
        ("/api", "/mcp", "/api/other", "/api/mcp"),
        ("/api/mcp", "/mcp", "/api/mcp/other", "/api/mcp/"),
        ("/api", "/", "/api/other", "/api/"),
    ],
)
def test_a_wrong_path_is_told_the_right_one(place: str | None, path: str, asked: str, named: str) -> None:
    app: Any = Server("x").asgi(path)
    if place is not None:
        inner, app = app, Starlette()
        app.mount(place, inner)
    body = message("server/discover")
    with serve(app) as live:
        refused = live.send(encode(body), headers_for(body), path=asked)
        assert refused.status == 404
        assert refused.error["message"] == f"There is nothing at this path: the MCP endpoint is {named}."
        assert live.send(encode(body), headers_for(body), path=named).status == 200
