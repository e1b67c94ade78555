"""Our side of uvicorn's connections, with real sockets and both parsers: what is written when, and what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn

from support import encode, headers_for, message
from weft import Context, Limits, Server
from weft.server.http import reply as http_reply
from weft.server.http import uvicorn_protocol as head_guard
from weft.server.http.reply import HttpReply
from weft.server.run import running
from weft.server.run.listening import HttpOptions, bind

PATIENCE = 5.0  # seconds: far less than those after which an idle connection is closed


class Running:
    """A server of ours behind a socket, in this loop, with all that our runner adds."""

    def __init__(self, http: uvicorn.Server, port: int) -> None:
        self.http = http
        self.port = port

    @property
    def connections(self) -> list[Any]:
        return list(self.http.server_state.connections)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, *requests: bytes, until: bytes = b"", count: int = 1) -> bytes:
        """What is answered on a connection of its own, up to the end of it or what is waited for."""
        reader, writer = await self.connect()
        try:
            writer.writelines(requests)
            return await read_until(reader, until, count)
        finally:
            writer.close()


async def read_until(reader: asyncio.StreamReader, text: bytes = b"", count: int = 1) -> bytes:
    """What comes until a text has come so often; without one, until the other side closes."""
    said = b""
    async with asyncio.timeout(PATIENCE):
        while not text or said.count(text) < count:
            chunk = await reader.read(65536)
            if not chunk:
                assert not text, f"closed after {said!r}"
                return said
            said += chunk
    return said


async def come_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "h11":
        monkeypatch.setattr(head_guard, "find_spec", lambda name: None)
    return request.param


@contextlib.asynccontextmanager
async def served(server: Server, app: Any = None) -> AsyncIterator[Running]:
    """Serve as our runner does; another app in place of the server's where one is given."""
    listener = bind("127.0.0.1", 0)
    options = HttpOptions(port=listener.getsockname()[1])
    started = asyncio.Event()
    http = running._http_server(server.engine, options, started.set)
    if app is not None:
        http.config.app = app
    task = asyncio.create_task(http.serve(sockets=[listener]))
    await started.wait()
    try:
        yield Running(http, options.port)
    finally:
        http.should_exit = True
        for connection in list(http.server_state.connections):
            connection.transport.abort()
        await task
        listener.close()


def raw(
    method: str, params: Any = None, *, fields: str = "", id: int = 1, target: str = "/mcp", meta: Any = None
) -> bytes:
    body = message(method, params, id=id, meta=meta)
    data = encode(body)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(body))
    head += fields if "host:" in fields.lower() else f"Host: localhost\r\n{fields}"
    return f"POST {target} HTTP/1.1\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


LIST = raw("tools/list")


def make(**limits: Any) -> Server:
    server = Server("guarded", "1", limits=Limits(**limits))

    @server.tool
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "awake"

    @server.tool
    def large(size: int) -> str:
        return "x" * size

    return server


async def test_a_request_that_comes_in_pieces_is_served(parser: str) -> None:
    """Also the first of a connection, and one after another that was answered."""
    async with served(make()) as live:
        reader, writer = await live.connect()
        for _ in range(2):
            for at in range(0, len(LIST), 40):
                writer.write(LIST[at : at + 40])
                await asyncio.sleep(0.005)  # each piece is read by itself
            assert b"200 OK" in await read_until(reader, b'"nap"')
        writer.close()


# Responses without a body, as soon as they are made.


async def bodiless(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the status that the path names."""
    if scope["type"] == "lifespan":
        return
    status = int(scope["path"][1:])
    fields = [] if status in (204, 304) else [(b"content-length", b"5" if scope["method"] == "HEAD" else b"0")]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("keep", [True, False], ids=["keep-alive", "close"])
@pytest.mark.parametrize("status", [200, 202, 204, 304, 404])
@pytest.mark.parametrize("verb", ["HEAD", "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_a_response_without_a_body_is_written_at_once(parser: str, verb: str, status: int, keep: bool) -> None:
    request = f"{verb} /{status} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
    request += "\r\n" if keep else "Connection: close\r\n\r\n"
    async with served(make(), bodiless) as live:
        reader, writer = await live.connect()
        for _ in range(2 if keep else 1):
            writer.write(request.encode())
            said = await read_until(reader, b"\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 %d " % status)
        if not keep:
            assert await read_until(reader) == b""
        writer.close()


@pytest.mark.parametrize("keep", [True, False], ids=["keep-alive", "close"])
@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/mcp", 405)])
async def test_head_is_answered_at_once(parser: str, path: str, status: int, keep: bool) -> None:
    request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n" + ("\r\n" if keep else "Connection: close\r\n\r\n")
    async with served(make()) as live:
        said = await live.say(request.encode(), until=b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 %d " % status)
        if keep:  # nothing of a body, or the next response would be misread
            said = await live.say(request.encode(), LIST, until=b'"tools"')
            assert re.fullmatch(rb"HTTP/1.1 \d+ [^{}]+\r\n\r\nHTTP/1.1 200 OK\r\n.*", said, re.DOTALL)


async def test_who_waits_to_be_told_to_go_on_is_told_at_once(parser: str) -> None:
    head, _, body = LIST.partition(b"\r\n\r\n")
    async with served(make()) as live:
        reader, writer = await live.connect()
        writer.write(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert (await read_until(reader, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert (await read_until(reader, b'"tools"')).startswith(b"HTTP/1.1 200 ")
        writer.close()


# Targets in absolute form (RFC 9112, 3.2.2).


@pytest.mark.security("R2")
@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/mcp", "localhost", 200),
        ("http://127.0.0.1:8000/mcp", "evil.example", 200),  # the Host header is not looked at
        ("http://evil.example/mcp", "localhost", 421),
        ("https://evil.example:443/mcp", "localhost", 421),
        ("http://localhost@evil.example/mcp", "localhost", 421),
        ("http://evil.example#localhost/mcp", "localhost", 400),
        ("http://localhost./mcp", "localhost", 421),
    ],
)
async def test_the_host_of_an_absolute_target_counts(target: str, host: str, status: int) -> None:
    async with served(make()) as live:
        said = await live.say(raw("tools/list", target=target, fields=f"Host: {host}\r\n"), until=b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.security("R2", "R14")
async def test_two_hosts_are_refused_also_with_an_absolute_target() -> None:
    async with served(make()) as live:
        twice = raw("tools/list", target="http://localhost/mcp", fields="Host: a\r\nHost: b\r\n")
        assert (await live.say(twice, until=b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


# Requests ahead of their turn.


def padded(id: int) -> bytes:
    return raw("tools/list", id=id, fields=f"X-Padding: {'x' * head_guard._SLICE}\r\n")


@pytest.mark.security("D5", "R12")
async def test_at_most_so_many_requests_are_read_ahead_of_their_turn() -> None:
    assert Limits().pipelined_requests == 32
    async with served(make(pipelined_requests=3)) as live:
        reader, writer = await live.connect()
        slow = raw("tools/call", {"name": "nap", "arguments": {"seconds": 0.4}})
        writer.write(slow)
        writer.writelines(padded(number) for number in range(2, 12))
        await asyncio.sleep(0.2)
        assert len(live.connections[0].pipeline) == 3
        said = await read_until(reader, b"HTTP/1.1 200", 11)
        said += await read_until(reader, b"}}") if not said.endswith(b"}}") else b""
        assert re.findall(rb'"id":(\d+)', said) == [b"%d" % number for number in range(1, 12)]
        assert live.connections[0]._unread == b""
        writer.write(LIST)  # and it is read as before
        await read_until(reader, b"HTTP/1.1 200")
        writer.close()


@pytest.mark.security("D5")
async def test_what_is_beyond_them_stays_in_the_socket() -> None:
    async with served(make(pipelined_requests=1)) as live:
        _, writer = await live.connect()
        writer.write(raw("tools/call", {"name": "nap", "arguments": {"seconds": 60}}))
        writer.writelines([padded(2)] * 2000)  # 16 MB
        await asyncio.sleep(0.5)
        assert len(live.connections[0]._unread) < 2_000_000
        writer.transport.abort()


async def test_who_goes_with_requests_that_were_not_read_leaves_nothing() -> None:
    server = make(pipelined_requests=1)
    async with served(server) as live:
        _, writer = await live.connect()
        writer.write(raw("tools/call", {"name": "nap", "arguments": {"seconds": 0.3}}))
        writer.writelines(padded(number) for number in range(2, 30))
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await come_true(lambda: not (live.connections or live.http.server_state.tasks or server.engine.in_flight))


# The quick way out, and each reason not to take it.


def answering(app: Any) -> Any:
    """An ASGI app of a function of receive and send."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(receive, send)

    return answer


async def test_a_connection_that_is_to_be_closed_is_closed(parser: str) -> None:
    async with served(make()) as live:
        said = await live.say(raw("tools/list", fields="Connection: close\r\n"))
        assert b"connection: close" in said.lower()
        said = await live.say(LIST.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert said.startswith(b"HTTP/1.1 200 ")


async def test_a_connection_that_stays_is_answered_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    put = head_guard._Outlet._put
    monkeypatch.setattr(head_guard._Outlet, "_put", lambda self, data: (written.append(data), put(self, data)))
    async with served(make()) as live:
        await live.say(LIST, until=b'"tools"')
    assert len(written) == 1


async def test_the_second_head_on_a_connection_has_its_time_too(parser: str) -> None:
    async with served(make(head_seconds=0.2)) as running:
        reader, writer = await running.connect()
        writer.write(LIST)
        assert b'"tools"' in await read_until(reader, b'"tools"')
        writer.write(LIST[:20])
        assert await read_until(reader) == b""  # closed, though the peer says nothing more
        writer.close()


async def test_a_date_that_has_changed_is_told() -> None:
    async with served(make()) as live:
        first = await live.say(LIST, until=b'"tools"')
        live.http.server_state.default_headers = [(b"date", b"Tue, 05 Feb 2030 00:00:00 GMT")]
        second = await live.say(LIST, until=b'"tools"')
        assert b"2030" not in first
        assert b"date: Tue, 05 Feb 2030 00:00:00 GMT\r\n" in second


async def test_a_stream_is_ended_by_its_answer_and_by_nothing_else() -> None:
    server = make()

    @server.tool
    async def steps(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        return "done"

    request = raw("tools/call", {"name": "steps"}, meta={"progressToken": 1})
    async with served(server) as live:
        said = await live.say(request, until=b"0\r\n\r\n")
        assert said.count(b"HTTP/1.1") == 1
        assert said.count(b"data: ") == 2
        assert said.index(b"notifications/progress") < said.index(b'"done"')


async def test_a_peer_that_does_not_read_is_waited_for() -> None:
    taken: list[bool] = []

    @answering
    async def app(receive: Any, send: Any) -> None:
        taken.append(head_guard.respond_at_once(send, 200, b"x" * 20_000_000))
        if not taken[-1]:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            await send({"type": "http.response.body", "body": b"last"})

    async with served(make(), app) as live:
        reader, writer = await live.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        await come_true(lambda: len(taken) == 2)
        assert taken == [True, False]
        last = b""
        async with asyncio.timeout(PATIENCE):
            while not last.endswith(b"last"):
                last = await reader.read(1 << 20)
        writer.close()


async def test_nothing_is_written_to_a_peer_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    server = make()
    entered, leave = asyncio.Event(), asyncio.Event()

    @server.tool
    async def stubborn() -> str:
        entered.set()
        while not leave.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await leave.wait()
        return "late"

    put = head_guard._Outlet._put
    monkeypatch.setattr(head_guard._Outlet, "_put", lambda self, data: (written.append(data), put(self, data)))
    async with served(server) as live:
        _, writer = await live.connect()
        writer.write(raw("tools/call", {"name": "stubborn"}))
        await entered.wait()
        writer.transport.abort()
        await asyncio.sleep(0.1)
        leave.set()
        await come_true(lambda: not (live.http.server_state.tasks))
    assert written == []


async def test_a_response_that_has_begun_is_not_begun_again() -> None:
    taken: list[bool] = []

    @answering
    async def app(receive: Any, send: Any) -> None:
        taken.extend(head_guard.respond_at_once(send, 200, b"{}") for _ in range(2))

    @answering
    async def streams(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        taken.append(head_guard.respond_at_once(send, 200, b"{}"))
        await send({"type": "http.response.body", "body": b"last"})

    async with served(make(), app) as live:
        said = await live.say(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2, until=b"{}", count=2)
        assert said.count(b"HTTP/1.1 200") == 2
    assert taken == [True, False] * 2
    taken.clear()
    async with served(make(), streams) as live:
        said = await live.say(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", until=b"last")
        assert said.count(b"HTTP/1.1 200") == 1
    assert taken == [False]


async def test_a_peer_that_has_gone_is_not_written_to() -> None:
    taken: list[bool] = []

    @answering
    async def app(receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        taken.append(head_guard.respond_at_once(send, 200, b"{}"))

    async with served(make(), app) as live:
        _, writer = await live.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await come_true(lambda: bool(taken))
    assert taken == [False]


async def test_nobody_is_told_to_go_on_after_the_answer() -> None:
    @answering
    async def app(receive: Any, send: Any) -> None:
        assert head_guard.respond_at_once(send, 200, b"{}")
        await receive()

    async with served(make(), app) as live:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        reader, writer = await live.connect()
        writer.write(head)
        said = await read_until(reader, b"{}")
        writer.write(b"{}" + head)
        said += await read_until(reader, b"{}")
        assert b"100 Continue" not in said
        writer.close()


async def test_uvicorn_without_the_fields_that_we_know_is_served_the_long_way() -> None:
    async with served(make()) as live:
        reader, writer = await live.connect()
        writer.write(LIST)
        await read_until(reader, b'"tools"')
        cycle_class = type(live.connections[0].cycle)
        made = cycle_class.__init__

        def without(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            self.__dict__["our_fields"] = self.__dict__.pop("default_headers")

        def send(self: Any, message: Any, *, plain: Any = cycle_class.send) -> Any:
            self.default_headers = self.our_fields
            return plain(self, message)

        cycle_class.__init__, before = without, cycle_class.send
        cycle_class.send = send
        try:
            writer.write(LIST)
            assert (await read_until(reader, b'"tools"')).startswith(b"HTTP/1.1 200 ")
        finally:
            cycle_class.__init__, cycle_class.send = made, before
        writer.close()


# Under plain `uvicorn module:app`, where another program's runner has us.


@contextlib.asynccontextmanager
async def mounted(app: Any) -> AsyncIterator[Running]:
    """Serve as `uvicorn module:app` does, access log and all."""
    listener = bind("127.0.0.1", 0)
    http = uvicorn.Server(uvicorn.Config(app, log_config=None))
    task = asyncio.create_task(http.serve(sockets=[listener]))
    await come_true(lambda: http.started)
    try:
        yield Running(http, listener.getsockname()[1])
    finally:
        http.should_exit = True
        await task
        listener.close()


async def answers_of(app: Any, caplog: pytest.LogCaptureFixture) -> tuple[list[bytes], list[str]]:
    """What a caller reads of three calls, the time left out; and the lines of the access log."""
    caplog.clear()
    calls = [LIST, raw("tools/call", {"name": "large", "arguments": {"size": 3}}), raw("nothing/known")]
    with caplog.at_level("INFO", "uvicorn.access"):
        async with mounted(app) as live:
            said = [await live.say(one, until=b'"jsonrpc"') for one in calls]
    lines = [one.getMessage() for one in caplog.records if one.name == "uvicorn.access"]
    return [re.sub(rb"date: [^\r]*", b"", one) for one in said], [re.sub(r":\d+ -", "", one) for one in lines]


async def test_plain_uvicorn_is_answered_in_one_go_as_in_two_messages(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make().asgi()
    taken: list[bool] = []
    at_once = http_reply.respond_at_once

    def watched(*given: Any) -> bool:
        taken.append(at_once(*given))
        return taken[-1]

    monkeypatch.setattr(http_reply, "respond_at_once", watched)
    quick = await answers_of(app, caplog)
    assert taken == [True, True, True]
    monkeypatch.setattr(http_reply, "respond_at_once", lambda *_: False)
    assert quick == await answers_of(app, caplog)
    assert quick[1] == [f'127.0.0.1 "POST /mcp HTTP/1.1" {status}' for status in (200, 200, 404)]


async def test_an_app_around_ours_sees_the_response() -> None:
    inner, seen = make().asgi(), list[str]()

    async def around(scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            seen.append(message["type"])
            await send(message)

        await inner(scope, receive, watched if scope["type"] == "http" else send)

    async with mounted(around) as live:
        await live.say(LIST, until=b'"tools"')
    assert seen == ["http.response.start", "http.response.body"]


# Signs of life on streams.


@pytest.mark.parametrize("swallows", [True, False])
async def test_a_client_that_has_gone_gets_no_signs_of_life(swallows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make(keep_alive_seconds=0.02)
    leave = asyncio.Event()
    beats = 0
    on_beat = HttpReply._on_beat

    def count(self: Any) -> None:
        nonlocal beats
        beats += 1
        on_beat(self)

    monkeypatch.setattr(HttpReply, "_on_beat", count)

    @server.tool
    async def stubborn(ctx: Context) -> str:
        await ctx.report_progress(1)
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                if not swallows:
                    raise
        return "late"

    async with served(server) as live:
        writers = []
        for _ in range(10):
            reader, writer = await live.connect()
            writer.write(raw("tools/call", {"name": "stubborn"}, meta={"progressToken": 1}))
            await read_until(reader, b"notifications/progress")
            writers.append(writer)
        await come_true(lambda: beats > 20)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.1)
        before = beats
        await asyncio.sleep(0.3)
        assert beats == before
        assert server.engine.in_flight == (10 if swallows else 0)
        leave.set()
        await come_true(lambda: server.engine.in_flight == 0)


async def test_a_call_that_the_asgi_server_gives_up_gets_no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make(keep_alive_seconds=0.02)
    beats = 0

    def count(self: Any) -> None:
        nonlocal beats
        beats += 1

    @server.tool
    async def slow(ctx: Context) -> str:
        await ctx.report_progress(1)
        await asyncio.sleep(60)
        return "late"

    async with served(server) as live:
        reader, writer = await live.connect()
        writer.write(raw("tools/call", {"name": "slow"}, meta={"progressToken": 1}))
        await read_until(reader, b"notifications/progress")
        monkeypatch.setattr(HttpReply, "_on_beat", count)
        for task in list(live.http.server_state.tasks):
            task.cancel()
        await come_true(lambda: not live.http.server_state.tasks)
        await asyncio.sleep(0.1)
        assert beats == 0
        writer.close()
