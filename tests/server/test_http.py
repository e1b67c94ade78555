"""The ASGI app by itself: what it does with scopes, bodies and bad manners that no socket gives it."""

import asyncio
from typing import Any

import pytest

from support import ask, encode, headers_for, make_server, message
from weft import Limits, Server
from weft.errors import UsageError
from weft.server.connection import Cancellation
from weft.server.transports.http_reply import Accepts, HttpReply, Refusal, read_accept


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
    assert server.in_flight == 0


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

    reply = HttpReply(never, 0.02)
    reply.cancellation = Cancellation()
    await asyncio.wait_for(reply.notify(b"{}"), 5)
    assert reply.finished
    assert reply.cancellation.cancelled


async def test_the_answer_does_not_overtake_a_notification() -> None:
    sent: list[bytes] = []

    async def slow(part: dict) -> None:
        await asyncio.sleep(0.001)
        if part["type"] == "http.response.body":
            sent.append(part["body"])

    reply = HttpReply(slow, 5)
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
        assert (await ask(app, "tools/list", scope={"method": "GET"})).status == 405
        assert (await ask(app, "tools/list", scope={"path": "/other"})).status == 404
        assert (await ask(app, "tools/list", headers={"Origin": "http://evil.example"})).status == 403
        assert (await ask(app, "tools/list", headers={"Content-Encoding": "gzip"})).status == 415


@pytest.mark.security("R12")
async def test_what_is_remembered_of_headers_is_bounded() -> None:
    app = make_server().asgi()
    for number in range(1100):
        assert (await ask(app, "server/discover", headers={"Origin": f"http://localhost:{number + 1}"})).status == 200
    assert len(app._passes) <= 1024
