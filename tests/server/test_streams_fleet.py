"""Streams that several workers read: what was dropped is never left out silently, and a quiet call stays resumable."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from support.fleets import die
from support.raw_sessions import FORM, AppPeer, Reply, accept, called, eventually, message, open_sse
from support.redis_servers import RedisServer, redis_server
from weft import Context, Limits, MemoryBackend, Server
from weft.backends.redis import RedisBackend
from weft.server.sessions import streams
from weft.server.sessions.streams import _PAGE

Make = Callable[..., list[Server]]


def make_worker(backend: Any, **limits: Any) -> Server:
    limits = {"drain_seconds": 0.2, "progress_per_second": 0, **limits}
    server = Server("streams", backend=backend, limits=Limits(**limits), state_keys=["only for this test " * 2])

    @server.tool
    async def talk(ctx: Context, count: int = 6, again: bool = False) -> str:
        """Report 0 to 2, ask, report the rest, and ask again."""
        for number in range(3):
            await ctx.report_progress(number)
        await ctx.elicit("go on?", Reply)
        for number in range(3, count):
            await ctx.report_progress(number)
        if again:
            await ctx.elicit("still?", Reply)
        return "done"

    @server.tool
    async def say(ctx: Context, text: str) -> None:
        await ctx.connection.notify("notifications/message", {"level": "info", "data": text})

    @server.tool
    async def fill(ctx: Context) -> str:
        """Take all the room that streams have."""
        for number in range(10):
            await ctx.report_progress(number, message="x" * 3000)
        return "filled"

    @server.tool
    async def hang(ctx: Context) -> None:
        await asyncio.sleep(60)

    return server


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes two workers that share a backend."""
    made: list[Server] = []
    memory = MemoryBackend()

    def backend() -> Any:
        return memory if request.param == "memory" else RedisBackend(request.getfixturevalue("redis").url)

    def workers(**limits: Any) -> list[Server]:
        made.extend(make_worker(backend(), **limits) for _ in range(2))
        return made

    yield workers
    for server in made:
        await server.stop()
    assert [server.engine.sessions.streams._open for server in made] == [{}, {}]


async def opened(server: Server) -> AppPeer:
    client = AppPeer(server.asgi())
    await client.open(capabilities=FORM)
    return client


async def fill(server: Server) -> None:
    """Have another client write so much that the events of all other streams of this worker are dropped."""
    client = AppPeer(server.asgi(), address="10.0.0.9")
    await client.open()
    assert await (await client.post(called("fill", progress="p"))).text() == "filled"
    await client.leave()


def what(data: Any) -> Any:
    """What a message of these tools is: the progress, the text, the method, or the answer."""
    params = data.get("params", {})
    return params.get("progress", params.get("data", data.get("method", "answer")))


async def told(stream: Any) -> list[Any]:
    return [what(event.data) async for event in stream.rest() if event.data]


ASK = "elicitation/create"
SMALL = {"replay_bytes": 20_000}

# Events that are dropped because all streams have more than `replay_bytes`.


@pytest.mark.parametrize("where", [0, 1], ids=["here", "there"])
async def test_a_client_that_lacks_dropped_events_cannot_resume(make: Make, where: int) -> None:
    workers = make(**SMALL)
    client = await opened(workers[0])
    call = await client.post(called("talk", progress="p"))
    while what(await call.message()) != 0:
        pass
    received = call.events[-1].id
    question = await call.question()
    await call.close()
    there = client.on(workers[where].asgi())
    await fill(workers[0])
    assert (await there.get(received)).status == 400
    assert (await client.post(accept(question, "yes"))).status == 202
    await eventually(lambda: not workers[0].engine.in_flight)  # it has written its other events
    assert (await there.get(received)).status == 400
    await client.leave()


@pytest.mark.parametrize("where", [0, 1], ids=["here", "there"])
async def test_a_client_that_has_all_events_resumes_although_they_were_dropped(make: Make, where: int) -> None:
    workers = make(**SMALL)
    client = await opened(workers[0])
    call = await client.post(called("talk", progress="p"))
    question = await call.question()
    await call.close()
    await fill(workers[0])
    rest = await client.on(workers[where].asgi()).get(call.events[-1].id)
    assert rest.status == 200
    assert (await client.post(accept(question, "yes"))).status == 202
    assert await told(rest) == [3, 4, 5, "answer"]
    assert all(event.data for event in rest.events)  # nothing else is sent as an event
    await client.leave()


@pytest.mark.parametrize("where", [0, 1], ids=["here", "there"])
async def test_a_reader_that_has_all_events_goes_on_when_they_are_dropped(make: Make, where: int) -> None:
    workers = make(**SMALL)
    client = await opened(workers[0])
    call = await client.post(called("talk", progress="p"))
    question = await call.question()
    rest = await client.on(workers[where].asgi()).get(call.events[0].id)
    await rest.question()
    await fill(workers[0])
    assert (await client.post(accept(question, "yes"))).status == 202
    assert await told(rest) == [3, 4, 5, "answer"]
    await client.leave()


@pytest.mark.parametrize("again", [True, False], ids=["running", "answered"])
@pytest.mark.parametrize("where", [0, 1], ids=["here", "there"])
async def test_a_reader_ends_if_events_were_dropped_before_it_has_sent_them(
    make: Make, where: int, again: bool
) -> None:
    workers, count = make(**SMALL), 3 * _PAGE
    client = await opened(workers[0])
    call = await client.post(called("talk", progress="p", count=count, again=again))
    question = await call.question()
    there = client.on(workers[where].asgi())
    rest = await there.get(call.events[0].id)
    rest.stall()
    assert (await client.post(accept(question, "yes"))).status == 202
    events = 1 + count + 1 + 1  # an empty one is the first
    await eventually(lambda: [len(one.sizes) for one in workers[0].engine.sessions.streams._kept.values()] == [events])
    await fill(workers[0])
    rest._stalled.set()
    sent = await told(rest)
    assert sent == [0, 1, 2, ASK, *range(3, count)][: len(sent)]
    assert len(sent) < count  # those that it had read before
    assert (await there.get(rest.events[-1].id)).status == 400
    await client.leave()


@pytest.mark.parametrize("where", [0, 1], ids=["here", "there"])
async def test_a_reader_of_the_standalone_stream_ends_if_events_were_dropped(make: Make, where: int) -> None:
    workers = make(**SMALL)
    client = await opened(workers[0])
    there = client.on(workers[where].asgi())
    stream = await there.get()
    await (await client.post(called("say", text="first"))).result()
    assert what(await stream.message()) == "first"
    stream.stall()
    for number in range(3 * _PAGE):
        await (await client.post(called("say", number, text=f"{number}"))).result()
    await fill(workers[0])
    stream._stalled.set()
    sent = await told(stream)
    assert sent == [f"{number}" for number in range(len(sent))]
    assert len(sent) < 3 * _PAGE
    again = await there.get(stream.events[-1].id)
    await (await client.post(called("say", text="last"))).result()
    assert what(await again.message()) == "last"
    await client.leave()


# Calls that are quiet for longer than `replay_seconds`.

SHORT = {"replay_seconds": 1.5, "ask_seconds": 60}
LONG = 3.0  # seconds


async def quiet_call(workers: list[Server]) -> tuple[AppPeer, str, Any]:
    """A call that waits for an answer. Its client has lost the connection after the first event, long ago."""
    client = await opened(workers[0])
    call = await client.post(called("talk", 7, progress="p"))
    while what(await call.message()) != 0:
        pass
    received = call.events[-1].id
    question = await call.question()
    await call.close()
    await asyncio.sleep(LONG)
    return client, received, question


@pytest.mark.parametrize("where", [0, 1], ids=["here", "there"])
async def test_a_quiet_call_can_be_resumed_until_it_is_answered(make: Make, where: int) -> None:
    workers = make(**SHORT)
    client, received, question = await quiet_call(workers)
    there = client.on(workers[where].asgi())
    rest = await there.get(received)
    assert [what(await rest.message()) for _ in range(3)] == [1, 2, ASK]
    await asyncio.sleep(LONG)
    assert (await there.post(accept(question, "yes"))).status == 202
    assert await told(rest) == [3, 4, 5, "answer"]
    assert all(event.data for event in rest.events)  # nothing else is sent as an event
    assert await told(await there.get(received)) == [1, 2, ASK, 3, 4, 5, "answer"]
    await asyncio.sleep(LONG)
    assert (await there.get(received)).status == 400  # what is answered expires
    await client.leave()


async def test_a_quiet_call_of_a_dead_worker_is_answered_with_an_error(make: Make) -> None:
    workers = make(**{**SHORT, "ask_seconds": 8})  # the handler of the dead worker waits that long at the end
    for server in workers:
        await server.start()
        server.engine.fleet._unsure_until = -math.inf  # it has joined long ago
    client, received, _ = await quiet_call(workers)
    await die(workers[0])
    rest = await client.on(workers[1].asgi()).get(received)
    assert [what(await rest.message()) for _ in range(3)] == [1, 2, ASK]
    answer = await rest.message()
    assert (answer["id"], answer["error"]["code"]) == (7, -32603)
    assert "has died" in answer["error"]["message"]
    await client.leave()


@pytest.mark.parametrize("dies", [False, True], ids=["answered", "dead"])
async def test_a_quiet_call_of_http_sse_at_another_worker_is_answered(
    make: Make, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHECK_SECONDS", 0.1)
    workers = make(**SHORT)
    for server in workers:
        await server.start()
        server.engine.fleet._unsure_until = -math.inf
    here, there = (AppPeer(server.asgi(sse_path="/sse")) for server in workers)
    stream, post = await open_sse(here)
    assert (await post(there, called("hang", 5))).status == 202
    await asyncio.sleep(LONG)
    if dies:
        await die(workers[1])
        answer = await stream.message()
        assert (answer["id"], answer["error"]["code"]) == (5, -32603)
    else:
        assert (await post(there, message("ping", id=6))).status == 202
        assert await stream.message() == {"jsonrpc": "2.0", "id": 6, "result": {}}
    for peer in (here, there):
        await peer.leave()
