"""The lifespan: entered once, left once, in one task, whoever asks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from support import ask, encode, headers_for, message, serve
from weft import Context, Server
from weft.errors import UsageError


class Life:
    def __init__(self, *, fail: int = 0) -> None:
        self.events: list[str] = []
        self.tasks: list[asyncio.Task | None] = []
        self.fail = fail

    @asynccontextmanager
    async def __call__(self, server: Server) -> AsyncIterator[dict]:
        self.events.append("entered")
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        if self.fail > 0:
            self.fail -= 1
            raise OSError("no database")
        try:
            yield {"server": server.name}
        finally:
            self.events.append("left")
            self.tasks.append(asyncio.current_task())


def made(life: Life) -> Server:
    server = Server("living", lifespan=life)

    @server.tool
    async def look(ctx: Context) -> dict:
        return ctx.lifespan

    return server


async def test_many_first_requests_enter_it_once() -> None:
    life = Life()
    server = made(life)
    answers = await asyncio.gather(*(ask(server, "tools/call", {"name": "look"}) for _ in range(20)))
    assert all(answer.result["structuredContent"] == {"server": "living"} for answer in answers)
    assert life.events == ["entered"]
    await server.engine.lifespan.stop()
    await server.engine.lifespan.stop()
    assert life.events == ["entered", "left"]
    assert life.tasks[0] is life.tasks[1]


async def test_it_can_be_started_again() -> None:
    life = Life()
    server = made(life)
    for _ in range(2):
        await server.engine.lifespan.start()
        await server.engine.lifespan.stop()
    assert life.events == ["entered", "left"] * 2


async def test_without_one_there_is_nothing_to_start() -> None:
    server = Server("plain")
    assert server.engine.lifespan.started
    await server.engine.lifespan.start()
    await server.engine.lifespan.stop()
    assert server.engine.lifespan.value is None


def test_it_is_entered_anew_in_another_loop() -> None:
    life = Life()
    server = made(life)

    async def once() -> None:
        assert (await ask(server, "tools/call", {"name": "look"})).status == 200

    for _ in range(2):
        asyncio.run(once())
    assert life.events == ["entered", "left"] * 2


@pytest.mark.security("R1")
def test_one_that_fails_lazily_is_an_error_that_says_nothing_of_it_and_is_tried_again() -> None:
    life = Life(fail=1)
    server = made(life)
    app = server.asgi()

    async def without_lifespan(scope, receive, send):
        if scope["type"] == "http":
            await app(scope, receive, send)

    body = message("tools/call", {"name": "look"})
    with serve(without_lifespan) as live:
        first = live.send(encode(body), headers_for(body))
        assert first.error["code"] == -32603
        assert first.json["id"] == 1
        assert b"database" not in first.body
        assert live.send(encode(body), headers_for(body)).status == 200
        assert live.faults == []


async def test_one_that_fails_at_start_up_is_told_to_the_asgi_server() -> None:
    sent: list[dict] = []
    incoming = [{"type": "lifespan.startup"}]

    async def receive() -> dict:
        return incoming.pop()

    async def send(part: dict) -> None:
        sent.append(part)

    await made(Life(fail=1)).asgi()({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": "OSError: no database"}]


def test_what_comes_after_its_yield_is_done_also_when_the_loop_just_ends() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[None]:
        events.append("entered")
        yield
        await asyncio.sleep(0)
        events.append("left")

    server = Server("mounted", lifespan=life)

    async def once() -> None:
        assert (await ask(server, "server/discover")).status == 200

    asyncio.run(once())
    assert events == ["entered", "left"]
    assert not server.engine.lifespan.started


@pytest.mark.security("R1")
@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt(), BaseException("x")])
async def test_whatever_it_raises_requests_do_not_wait_for_it_forever(error: BaseException) -> None:
    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        raise error
        yield

    server = Server("failing", lifespan=life)
    async with asyncio.timeout(30):
        answer = await ask(server, "server/discover")
        assert answer.error["code"] == -32603
        with pytest.raises(RuntimeError, match=f"The lifespan raised {type(error).__name__} before it yielded"):
            await server.engine.lifespan.start()


async def test_one_that_is_stopped_while_it_is_entered_is_entered_anew() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def life(server: Server) -> AsyncIterator[None]:
        with suppress(asyncio.CancelledError):  # it does not let itself be stopped
            await asyncio.sleep(0.05)
        events.append("entered")
        yield
        events.append("left")

    server = Server("living", lifespan=life)
    starting = asyncio.create_task(server.engine.lifespan.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await server.engine.lifespan.stop()
    await starting
    assert events == ["entered", "left"]
    assert not server.engine.lifespan.started
    await server.engine.lifespan.start()
    assert events == ["entered", "left", "entered"]
    await server.engine.lifespan.stop()


def test_what_is_no_lifespan_is_refused_where_it_is_given() -> None:
    async def life(server: Server) -> AsyncIterator[None]:
        yield None

    with pytest.raises(UsageError, match=r"returns an async context manager, not int. Write @contextlib.asyncco"):
        Server("x", lifespan=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not the generator life. Write @contextlib.asynccontextmanager above"):
        Server("x", lifespan=life)  # type: ignore[arg-type]

    async def makes_one(server: Server) -> None: ...

    with pytest.raises(UsageError, match=r"not the async function makes_one. Write @contextlib.asynccontextmanager"):
        Server("x", lifespan=makes_one)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not alone, which cannot be called with the server: too many positional"):
        Server("x", lifespan=alone)  # type: ignore[arg-type]


@asynccontextmanager
async def alone() -> AsyncIterator[None]:
    yield None


async def test_what_turns_out_to_be_no_lifespan_is_told() -> None:
    @contextmanager
    def life(server: Server) -> Iterator[None]:
        yield None

    server = Server("x", lifespan=life)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"not one that returns _GeneratorContextManager. Write @contextlib.asyncco"):
        await server.engine.lifespan.start()
