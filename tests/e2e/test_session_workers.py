"""Two workers that share a Backend serve one session: what is said at the one holds at the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import FORM, AppPeer, Reply, accept, answer_to, called, eventually, message
from weft import Context, Limits, Server
from weft.backends.memory import MemoryBackend
from weft.protocol.revisions import SESSION_REVISIONS as REVISIONS
from weft.server.sessions import sessions
from weft.server.sessions.session import _asker


def make_worker(backend: Any, **limits: Any) -> Server:
    """What a module does in every worker."""
    server = Server("shared", limits=Limits(**limits), backend=backend)
    server.add_resource("a://1", "one")
    server.ended = []

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def ask(ctx: Context, question: str) -> str:
        answer = await ctx.elicit(question, Reply)
        return f"{question} {answer.value.value}"

    @server.tool
    async def wait(ctx: Context) -> str:
        try:
            await ctx.report_progress(1)
            await asyncio.sleep(30)
        finally:
            server.ended.append(ctx.request_id)
        return "never"

    @server.tool
    async def say(ctx: Context, text: str) -> None:
        await ctx.connection.notify("notifications/message", {"level": "info", "data": text})

    @server.tool
    async def steps(ctx: Context) -> str:
        for number in range(1, 4):
            await ctx.report_progress(number)
        await ctx.elicit("go on?", Reply)
        return "done"

    @server.tool
    async def log(ctx: Context) -> None:
        await ctx.debug("quiet")
        await ctx.error("loud")

    @server.tool
    async def ping(ctx: Context) -> str:
        await ctx.connection.ping(timeout=3)
        return "pong"

    return server


Make = Callable[..., tuple[Server, Server]]


@pytest.fixture(params=[MemoryBackend, YieldingBackend])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[Server] = []

    def workers(clock: Callable[[], float] = time.monotonic, **limits: Any) -> tuple[Server, Server]:
        backend = request.param(clock)
        made.extend(make_worker(backend, **limits) for _ in range(2))
        return made[-2], made[-1]

    yield workers
    for server in made:
        await server.stop()
    bus = getattr(made[0].backend, "memory", made[0].backend).bus
    assert bus._topics == {}  # nobody listens any more


@pytest.fixture
async def pair(make: Make) -> AsyncIterator[tuple[AppPeer, AppPeer]]:
    """One client, at either worker."""
    a, b = make()
    client = AppPeer(a.asgi())
    await client.open(capabilities=FORM)
    yield client, client.on(b.asgi())
    await client.leave()


Pair = tuple[AppPeer, AppPeer]


async def test_a_session_that_was_opened_at_one_worker_is_served_by_the_other(pair: Pair) -> None:
    _, there = pair
    assert await (await there.post(called("add", a=1, b=2))).text() == "3"


async def test_many_requests_at_once_find_one_session(pair: Pair) -> None:
    here, there = pair
    exchanges = await asyncio.gather(*(there.post(called("add", n, a=n, b=0)) for n in range(20)))
    assert [await exchange.text() for exchange in exchanges] == [str(n) for n in range(20)]
    assert len(there.app.runtime.sessions) == len(here.app.runtime.sessions) == 1


async def test_a_question_asked_at_one_worker_is_answered_at_the_other(pair: Pair) -> None:
    here, there = pair
    asking = await here.post(called("ask", question="Tea?"))
    question = await asking.question()
    assert (await there.post(accept(question, "yes"))).status == 202
    assert await asking.text() == "Tea? yes"


async def test_only_an_answer_for_another_worker_is_passed_on(pair: Pair) -> None:
    here, there = pair
    assert await (await there.post(called("add", a=1, b=2))).text() == "3"  # it has joined
    heard: list[bytes] = []
    own, other = here.app.runtime.fleet.worker, there.app.runtime.fleet.worker
    leave = await here.app.runtime.backend.bus.subscribe(f"worker/{other}", heard.append)
    for stray in (7, "", "-1", f"{own}-99", None):
        assert (await here.post({"jsonrpc": "2.0", "id": stray, "result": {}})).status in {202, 400}
        assert (await here.post(answer_to({"id": f"{other}-99"}, {}))).status == 202  # invented
    assert heard == []
    key = here.app.runtime.sessions._local(here.session).ask_key
    assert (await here.post(answer_to({"id": f"{_asker(other, key)}-99"}, {}))).status == 202
    assert len(heard) == 1
    gone = _asker("0123456789ab", key)  # of a worker that is gone
    assert (await here.post(answer_to({"id": f"{gone}-1"}, {}))).status == 202
    await leave()


async def test_the_stream_at_one_worker_has_what_the_other_says(pair: Pair) -> None:
    here, there = pair
    stream = await there.get()
    assert await (await here.post(called("say", text="hello"))).result()
    assert (await stream.message())["params"]["data"] == "hello"
    pinging = await here.begin(called("ping"))
    ping = await stream.message()
    assert ping["method"] == "ping"
    assert (await there.post(answer_to(ping, {}))).status == 202
    assert await (await pinging).text() == "pong"


@pytest.mark.security("R4")
async def test_the_stream_is_open_at_one_worker_at_a_time(pair: Pair) -> None:
    here, there = pair
    stream = await here.get()
    assert (await there.get()).status == 409
    assert await (await there.post(called("say", text="1"))).result()
    assert (await stream.message())["params"]["data"] == "1"
    await stream.close()
    await stream.task
    assert (await there.get()).status == 200
    assert (await here.get()).status == 409


async def test_a_client_that_comes_back_elsewhere_takes_its_stream_along(pair: Pair) -> None:
    here, there = pair
    old = await here.get()
    await here.post(called("say", text="1"))
    seen = await old.next()
    new = await there.get(seen.id)  # the old one is lost, and nobody has noticed yet
    await here.post(called("say", 2, text="2"))
    assert (await new.message())["params"]["data"] == "2"
    with pytest.raises(EOFError):
        await old.next()  # once, not on both (L11-12)
    assert (await here.get()).status == 409


async def test_a_stopped_worker_gives_up_the_streams_it_had(pair: Pair) -> None:
    here, there = pair
    stream = await here.get()
    here.app.close_streams()
    await stream.body()
    await stream.task
    assert (await there.get()).status == 200


async def test_a_stream_that_was_begun_at_one_worker_goes_on_at_the_other(pair: Pair) -> None:
    here, there = pair
    first = await here.post(called("steps", progress="p"))
    begun = [await first.next() for _ in range(2)]  # the priming event, and the first step
    await first.close()
    second = await there.get(begun[-1].id)
    assert [(await second.message())["params"]["progress"] for _ in range(2)] == [2, 3]
    question = await second.message()
    assert (await there.post(accept(question, "on"))).status == 202
    assert (await second.message())["result"]["content"][0]["text"] == "done"
    with pytest.raises(EOFError):
        await second.next()


async def test_deletion_at_one_worker_ends_the_session_at_the_other(pair: Pair) -> None:
    here, there = pair
    stream = await here.get()
    waiting = await here.post(called("wait", 7, progress="p"))
    assert (await there.delete()).status == 204
    await stream.body()
    await waiting.body()
    assert here.app.runtime.owner.ended == [7]
    for peer in pair:
        assert (await peer.post(called("add", a=1, b=2))).status == 404
        assert (await peer.get()).status == 404
        assert len(peer.app.runtime.sessions) == 0


async def test_a_cancellation_at_one_worker_reaches_the_call_at_the_other(pair: Pair) -> None:
    here, there = pair
    waiting = await here.post(called("wait", 7, progress="p"))
    cancelled = message("notifications/cancelled", {"requestId": 7})
    assert (await there.post(cancelled)).status == 202
    await waiting.body()
    assert here.app.runtime.owner.ended == [7]
    assert not any("result" in (event.data or {}) for event in waiting.events)


async def test_the_log_level_set_at_one_worker_holds_at_the_other(pair: Pair) -> None:
    here, there = pair
    assert await (await there.post(called("log"))).result()  # it knows the session by now
    assert (await here.post(message("logging/setLevel", {"level": "debug"}, 2))).status == 200
    logging = await there.post(called("log", 3))
    assert [(await logging.message())["params"]["level"] for _ in range(2)] == ["debug", "error"]


async def test_a_subscription_at_one_worker_is_heard_on_the_stream_at_the_other(pair: Pair) -> None:
    here, there = pair
    stream = await there.get()
    assert (await here.post(message("resources/subscribe", {"uri": "a://1"}, 2))).status == 200
    await eventually(lambda: there.app.runtime.sessions._local(there.session).connection.subscribed_uris)
    there.app.runtime.owner.notify_resource_updated("a://1")
    assert (await stream.message())["params"] == {"uri": "a://1"}
    assert (await here.post(message("resources/unsubscribe", {"uri": "a://1"}, 3))).status == 200
    await eventually(lambda: not there.app.runtime.sessions._local(there.session).connection.subscribed_uris)
    there.app.runtime.owner.notify_resource_updated("a://1")
    there.app.runtime.owner.notify_tools_changed()
    assert (await stream.message())["method"] == "notifications/tools/list_changed"


async def test_changes_at_both_workers_at_once_are_all_kept(pair: Pair) -> None:
    here, there = pair
    await there.post(called("add", a=1, b=1))
    await asyncio.gather(
        here.post(message("logging/setLevel", {"level": "error"}, 2)),
        there.post(message("resources/subscribe", {"uri": "a://1"}, 3)),
        here.post(message("resources/subscribe", {"uri": "a://2"}, 4)),
    )
    for peer in pair:
        await peer.post(called("add", a=1, b=1))
        connection = peer.app.runtime.sessions._local(peer.session).connection
        assert (connection.log_level, connection.subscribed_uris) == ("error", {"a://1", "a://2"})


class Clock:
    """The clock of two workers and of their backend, which a test can put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=self.now))

    def now(self) -> float:
        return time.monotonic() + self.ahead

    async def forward(self, seconds: float, *workers: Server) -> None:
        """Put the clock forward, and let the workers look for idle sessions."""
        self.ahead += seconds
        for worker in workers:
            its = worker.engine.sessions
            if its._sweeping is not None:  # it has sessions
                its._sweeping.cancel()
                its._sweep()
            await eventually(lambda its=its: not its._background)


async def test_a_session_used_only_elsewhere_is_not_ended_where_it_was_opened(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    a, b = make(clock.now, session_unused_seconds=500, session_idle_seconds=500)
    client = AppPeer(a.asgi())
    await client.open(ready=False)
    there = client.on(b.asgi())
    for number in range(10):
        assert (await there.post(called("add", number, a=1, b=1))).status == 200
        await clock.forward(100, a, b)
    assert (await client.post(called("add", a=1, b=1))).status == 200
    await clock.forward(501, a, b)
    assert (len(a.engine.sessions), len(b.engine.sessions)) == (1, 0)
    await clock.forward(50, a, b)  # the record lives a tenth longer, and so does its part at the worker that opened it
    assert len(a.engine.sessions) == 0
    assert (await there.post(called("add", a=1, b=1))).status == 404


async def test_a_session_with_an_open_stream_is_known_everywhere_however_long_it_is_silent(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    a, b = make(clock.now, session_unused_seconds=500, session_idle_seconds=500)
    client = AppPeer(a.asgi())
    await client.open()
    stream = await client.get()
    for _ in range(15):
        await clock.forward(100, a, b)
    assert (await client.on(b.asgi()).post(called("add", a=1, b=1))).status == 200
    assert not stream.ended
    await client.leave()


async def test_what_one_worker_has_no_room_for_goes_on_at_the_other(make: Make) -> None:
    a, b = make(sessions=2)
    clients = [AppPeer(server.asgi(), address=f"10.0.0.{n}") for n, server in enumerate([a, a, b])]
    for client in clients:
        await client.open()
    for client in clients[:2]:
        assert (await client.on(b.asgi()).post(called("add", a=1, b=1))).status == 200
        assert len(b.engine.sessions._fetched) <= 2
    for client in clients:
        assert (await client.post(called("add", a=1, b=1))).status == 200


async def test_a_stopped_worker_leaves_its_sessions_to_the_others(pair: Pair) -> None:
    here, there = pair
    await here.app.runtime.stop()
    assert await (await there.post(called("add", a=1, b=2))).text() == "3"


async def test_an_array_is_the_first_that_a_worker_gets(make: Make) -> None:
    started: list[int] = []
    a, b = make()
    b.engine.lifespan = type(b.engine.lifespan)(_lifespan(started), b.engine, b.engine.fleet)
    client = AppPeer(a.asgi())
    await client.open(version=next(version for version, revision in REVISIONS.items() if revision.batches))
    answers = await client.on(b.asgi()).post([called("add", 1, a=1, b=2), called("add", 2, a=3, b=4)])
    assert sorted(answer["result"]["content"][0]["text"] for answer in await answers.json()) == ["3", "7"]
    assert started == [1]


def _lifespan(started: list[int]) -> Any:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        started.append(1)
        yield

    return lifespan
