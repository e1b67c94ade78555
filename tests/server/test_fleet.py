"""The workers of a fleet: who is alive, what they tell each other, and what happens to the work of a dead one."""

import asyncio
import contextlib
import json
import math
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.fleets import die
from support.processes import Process
from support.raw_sessions import FORM, AppPeer, Reply, SocketPeer, accept, called, eventually, message, open_sse
from support.redis_servers import RedisServer, redis_server
from weft import Context, Limits, MemoryBackend, Server
from weft.auth import StaticTokens
from weft.backends.redis import RedisBackend, commands
from weft.errors import BackendUnavailable, StartError
from weft.server.calls.changes import Change
from weft.server.http import session as http_session
from weft.server.runtime import fleet
from weft.server.sessions import streams

SECRETS = [f"the secret number {number}" for number in range(3)]


class SharedBackend(MemoryBackend):
    """A backend that looks as if other processes could use it."""

    is_local = False


class SharedYieldingBackend(YieldingBackend):
    """The same, and others run before and after every operation."""

    is_local = False


def make_worker(backend: Any, name: str = "fleet", **options: Any) -> Server:
    server = Server(name, backend=backend, **{"limits": Limits(drain_seconds=0.2), **options})
    server.add_resource("a://1", "one")

    @server.tool
    async def steps(ctx: Context, count: int = 2) -> str:
        for number in range(count):
            await ctx.report_progress(number)
        await ctx.elicit("go on?", Reply)
        return "done"

    @server.tool
    async def flood(ctx: Context, count: int) -> str:
        await ctx.elicit("go on?", Reply)
        for number in range(count):
            await ctx.report_progress(number)
        return "flooded"

    @server.tool
    async def hang(ctx: Context) -> None:
        await asyncio.sleep(60)

    return server


@pytest.fixture
async def workers() -> AsyncIterator[list[Server]]:
    backend = YieldingBackend()
    made = [make_worker(backend) for _ in range(3)]
    for server in made:
        await server.start()
        server.engine.fleet._unsure_until = -math.inf  # it has joined long ago
    yield made
    for server in made:
        await server.stop()
    assert backend.memory.bus._topics == {}
    assert not [key for key, value in backend.memory.store._values.items() if "worker" in key and value]


# Who is alive.


async def test_a_server_without_a_shared_backend_is_alone() -> None:
    server = Server("alone")
    await server.start()
    one = server.engine.fleet
    assert one.is_alone
    assert await one.is_alive(one.worker)
    assert not await one.is_alive("0123456789ab")
    assert not await one.send("0123456789ab", b"anything")
    assert server.backend.bus._topics == {}  # type: ignore[attr-defined] - of the memory one
    await server.stop()


async def test_workers_know_each_other_until_they_leave_or_die(workers: list[Server]) -> None:
    a, b, c = (server.engine.fleet for server in workers)
    assert len(await a.workers()) == 2
    assert await a.is_alive(b.worker)
    assert await a.is_listening(b.worker)
    await workers[1].stop()
    await die(workers[2])
    assert [await a.is_alive(other.worker) for other in (b, c)] == [False, False]
    assert not await a.is_listening(c.worker)
    assert await a.workers() == []
    assert b.worker not in a._known_leases  # of workers that have left, nothing stays


async def test_a_server_that_starts_again_while_it_stops_stays_in_the_fleet(workers: list[Server]) -> None:
    """A request can arrive while a lifespan ends."""
    one, other = workers[0].engine, workers[1].engine.fleet
    stopping = asyncio.create_task(one.lifespan.stop())
    await asyncio.sleep(0)
    await one.lifespan.start()
    await stopping
    assert await other.is_alive(one.fleet.worker)
    assert await other.is_listening(one.fleet.worker)
    assert one.fleet._renewing is not None
    await one.lifespan.stop()
    assert not await other.is_alive(one.fleet.worker)
    await one.lifespan.start()


async def test_a_lease_is_renewed_and_comes_back_if_the_store_has_lost_it(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 0.3)
    fresh = make_worker(workers[0].backend)
    await fresh.start()
    one, other = fresh.engine.fleet, workers[0].engine.fleet
    await asyncio.sleep(0.7)
    assert await other.is_alive(one.worker)
    await one._backend.store.delete(f"worker/{one.worker}")
    await asyncio.sleep(0.2)
    assert await other.is_alive(one.worker)
    await fresh.stop()


async def test_a_lease_that_cannot_be_read_keeps_no_worker_from_starting(
    workers: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    a, b, _ = (server.engine.fleet for server in workers)
    await b._backend.store.put(f"worker/{b.worker}", b"\x00nonsense", ttl=60)
    fresh = make_worker(workers[0].backend)
    await fresh.start()
    assert len(await fresh.engine.fleet.workers()) == 2
    assert f"The lease of worker {b.worker} cannot be read, and is ignored" in caplog.text
    await fresh.stop()
    assert await a.is_alive(b.worker)


async def test_nobody_is_dead_because_the_store_has_lost_all_leases(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = (server.engine.fleet for server in workers)
    await die(workers[2])
    assert not await a.is_alive(c.worker)
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 1.0)
    for one in (a, b):
        await one._backend.store.delete(f"worker/{one.worker}")
    assert await a.is_alive(b.worker)
    assert await a._backend.store.get(f"worker/{a.worker}") is not None  # it was renewed at once
    await b._renew_once()
    await asyncio.sleep(0.5)
    assert await a.is_alive(b.worker)
    assert not await a.is_alive(c.worker)


async def test_a_worker_whose_lease_neither_changes_nor_expires_is_dead(workers: list[Server]) -> None:
    a, b, c = (server.engine.fleet for server in workers)
    lease = f"worker/{c.worker}"
    await die(workers[2])
    await c._backend.store.put(lease, b"the clock of the backend was set back", ttl=3600)
    assert await a.is_alive(c.worker)
    assert await a.is_alive(b.worker)
    for other, (known, since) in a._known_leases.items():
        a._known_leases[other] = known, since - 2 * fleet.LEASE_SECONDS  # long ago
    await b._renew_once()
    assert [await a.is_alive(other.worker) for other in (b, c)] == [True, False]
    a._unsure_until = math.inf
    assert await a.is_alive(c.worker)
    a._unsure_until = -math.inf
    await c._backend.store.put(lease, b"renewed after all", ttl=3600)
    assert await a.is_alive(c.worker)


async def test_nobody_is_dead_because_the_backend_was_away_for_long(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 1.0)
    a, b, _ = (server.engine.fleet for server in workers)
    await b._backend.store.delete(f"worker/{b.worker}")  # it has expired meanwhile
    a._on_gap()
    assert await a.is_alive(b.worker)
    b._on_gap()
    await eventually(lambda: not b._background)
    await asyncio.sleep(0.5)
    assert await a.is_alive(b.worker)


async def test_nobody_is_dead_for_a_worker_that_has_just_joined(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 1.0)
    old = workers[0].engine.fleet
    await die(workers[0])  # the backend was away for long: its lease has expired, and it is not connected again yet
    fresh = make_worker(workers[1].backend)
    await fresh.start()
    assert await fresh.engine.fleet.is_alive(old.worker)
    await asyncio.sleep(0.5)
    assert not await fresh.engine.fleet.is_alive(old.worker)
    await fresh.stop()


async def test_a_worker_that_has_just_joined_knows_who_has_left(workers: list[Server]) -> None:
    """So it does not wait until it takes over the work of one that was restarted."""
    old = workers[0].engine.fleet
    await workers[0].stop()
    fresh = make_worker(workers[1].backend)
    await fresh.start()
    assert not await fresh.engine.fleet.is_alive(old.worker)
    await workers[0].start()
    assert await fresh.engine.fleet.is_alive(old.worker)
    assert len(await fresh.engine.fleet.workers()) == 3
    await fresh.stop()


async def test_a_worker_that_listens_has_the_time_to_renew_a_lease_that_is_lost(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 1.0)
    a, b, _ = (server.engine.fleet for server in workers)
    await b._backend.store.delete(f"worker/{b.worker}")  # such as by a node of a cluster
    assert await a.is_alive(b.worker)
    await b._renew_once()
    await asyncio.sleep(0.5)
    assert await a.is_alive(b.worker)
    b._renewing.cancel()  # now it hangs
    await b._backend.store.delete(f"worker/{b.worker}")
    assert await a.is_alive(b.worker)
    await asyncio.sleep(0.5)
    assert not await a.is_alive(b.worker)
    assert not await a.is_alive(b.worker)


@pytest.mark.parametrize("lease", ["unchanged", "missing"])
async def test_nobody_is_dead_by_an_answer_that_came_after_a_pause(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch, lease: str
) -> None:
    """The worker that looks was paused between its question and the answer: the lease may have been renewed since."""
    a, b, _ = (server.engine.fleet for server in workers)
    key, ahead, store = f"worker/{b.worker}", 0.0, a._backend.store
    if lease == "missing":
        await store.delete(key)
    assert await a.is_alive(b.worker)

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def get(self, asked: str) -> bytes | None:
            nonlocal ahead
            answer = await store.get(asked)
            if asked == key:
                ahead += 10 * fleet.LEASE_SECONDS
            return answer

    clocks = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead, clock_gettime=time.clock_gettime)
    monkeypatch.setattr(fleet, "time", clocks)
    a._backend.store = Late()
    assert await a.is_alive(b.worker)
    a._backend.store = store
    assert not await a.is_alive(b.worker)


async def test_a_lease_that_could_not_be_renewed_is_tried_again(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet, "LEASE_SECONDS", 0.3)
    fresh = make_worker(workers[0].backend)
    await fresh.start()
    fresh.backend.store.is_gone = True  # type: ignore[attr-defined] - of the yielding one
    await asyncio.sleep(0.4)
    fresh.backend.store.is_gone = False  # type: ignore[attr-defined] - of the yielding one
    assert "The lease of this worker was not renewed" in caplog.text
    await asyncio.sleep(0.3)
    assert await workers[0].engine.fleet.is_alive(fresh.engine.fleet.worker)
    await fresh.stop()


async def test_a_backend_that_fails_at_the_start_is_tried_again_by_the_next_request() -> None:
    backend = YieldingBackend()
    server = make_worker(backend)
    peer = AppPeer(server.asgi())
    backend.sets.is_gone = True
    refused = await peer.stateless("tools/list", {})
    assert refused.status == 500
    backend.sets.failure = BackendUnavailable("redis at secret-host is gone")
    refused = await peer.stateless("tools/list", {})
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "secret-host" not in json.dumps(await refused.json())
    backend.sets.is_gone = False
    assert (await peer.stateless("tools/list", {})).status == 200
    await server.stop()
    assert backend.memory.bus._topics == {}
    await peer.leave()


async def test_a_sender_that_needs_the_backend_to_be_checked_starts_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = make_worker(YieldingBackend(), auth=StaticTokens({"t" * 20: "ann"}))
    app = server.asgi()
    assert app._gate is not None
    accept_sender = app._gate.accept

    async def need_backend(*args: Any) -> None:
        if not server.engine.lifespan.started:
            raise BackendUnavailable("It was closed.")
        await accept_sender(*args)

    monkeypatch.setattr(app._gate, "accept", need_backend)
    peer = AppPeer(app)
    assert (await peer.request("POST", message("ping", id=1), {"Authorization": f"Bearer {'t' * 20}"})).status == 400
    assert server.engine.lifespan.started
    await server.stop()
    server.backend.bus.is_gone = True  # type: ignore[attr-defined] - of the yielding one
    server.backend.bus.failure = BackendUnavailable("It is gone.")  # type: ignore[attr-defined] - of the yielding one
    assert (await peer.request("POST", message("ping", id=1))).status == 503
    server.backend.bus.failure = ValueError("It is broken.")  # type: ignore[attr-defined] - of the yielding one
    assert (await peer.request("POST", message("ping", id=1))).status == 500


# The own lease.


class OwnClock:
    """The clock by which workers judge their own leases. A test moves it forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    async def pass_doubt(self, one: fleet.Fleet) -> None:
        """Move on to the time when no other worker acts any more on having found a lease missing."""
        for _ in range(2):
            self.ahead += fleet.LEASE_SECONDS * 0.6
            await one._renew_once()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> OwnClock:
    clock = OwnClock()
    monkeypatch.setattr(fleet, "_own_clock", clock)
    return clock


async def join(backend: Any) -> tuple[Server, fleet.Fleet, list[None]]:
    """A new worker, and a list that gets an entry whenever it may have been taken for dead."""
    server = make_worker(backend)
    one, missed = server.engine.fleet, list[None]()
    one._on_missed[:] = [lambda: missed.append(None)]
    await server.start()
    one._renewing.cancel()
    return server, one, missed


async def hold_lease(one: fleet.Fleet, work: Any) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Start work that stores the lease of a worker, and hold it there, until the event is set."""
    store, holding, go = one._backend.store, asyncio.Event(), asyncio.Event()

    class Held:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def put(self, *args: Any, **options: Any) -> None:
            holding.set()
            await go.wait()
            await store.put(*args, **options)

    one._backend.store = Held()
    task = asyncio.create_task(work)
    await holding.wait()
    one._backend.store = store
    return task, go


async def test_a_lease_keeps_its_number_while_it_is_renewed_in_time(clock: OwnClock) -> None:
    server, one, missed = await join(YieldingBackend())
    number = one.lease_number
    assert number is not None
    for _ in range(3):
        clock.ahead += fleet.LEASE_SECONDS * 0.6
        assert one.lease_number == number
        await one._renew_once()
        assert one.lease_number == number
    assert not missed
    await server.stop()


@pytest.mark.parametrize("cause", ["late", "missing"])
async def test_a_lease_that_may_have_been_missing_gets_another_number(clock: OwnClock, cause: str) -> None:
    """At each moment before that, it has none."""
    server, one, missed = await join(YieldingBackend())
    number = one.lease_number
    if cause == "late":  # for the store, only a moment has passed: its clock was set back
        clock.ahead += fleet.LEASE_SECONDS + 1
        assert one.lease_number is None
    else:  # for this worker, only a moment has passed: it was paused with its clock, or the store has lost data
        await one._backend.store.delete(f"worker/{one.worker}")
    renewing, go = await hold_lease(one, one._renew_once())
    assert one.lease_number is None
    assert not missed
    go.set()
    await renewing
    assert one.lease_number is None  # a worker that has found it missing may act on that
    assert len(missed) == 1
    clock.ahead += fleet.LEASE_SECONDS * 0.6
    await one._renew_once()
    assert one.lease_number is None
    clock.ahead += fleet.LEASE_SECONDS * 0.5
    assert one.lease_number not in (None, number)
    assert len(missed) == 1
    await server.stop()


async def test_a_lease_has_no_number_if_it_was_not_renewed_for_two_thirds_of_its_time(clock: OwnClock) -> None:
    """That is before it expires. If it is renewed in time after all, it keeps its number."""
    server, one, missed = await join(YieldingBackend())
    number = one.lease_number
    clock.ahead += fleet.LEASE_SECONDS * 0.7
    assert one.lease_number is None
    await one._renew_once()
    assert one.lease_number == number
    assert not missed
    await server.stop()


async def test_a_missing_lease_is_noticed_by_one_of_two_renewals(clock: OwnClock) -> None:
    """The second finds the lease that the first has just stored, and ends first."""
    server, one, missed = await join(YieldingBackend())
    number = one.lease_number
    await one._backend.store.delete(f"worker/{one.worker}")
    first, go = await hold_lease(one, one._renew_once())
    await one._backend.store.put(f"worker/{one.worker}", b"stored, but the reply is late", ttl=60)
    await one._renew_once()
    assert one.lease_number is None
    go.set()
    await first
    assert one.lease_number is None
    assert len(missed) == 1
    await clock.pass_doubt(one)
    assert one.lease_number not in (None, number)
    await server.stop()


async def test_a_worker_that_has_left_has_another_lease_when_it_joins_again(clock: OwnClock) -> None:
    """It has the same id, and others may be about to take over what it left."""
    server, one, _ = await join(YieldingBackend())
    number = one.lease_number
    await server.stop()
    assert one.lease_number is None
    await server.start()
    assert one.lease_number is None
    await clock.pass_doubt(one)
    assert one.lease_number not in (None, number)
    await server.stop()


async def test_the_lease_of_a_worker_that_is_alone_always_has_the_same_number(clock: OwnClock) -> None:
    server = Server("alone")
    one = server.engine.fleet
    number = one.lease_number
    assert number is not None
    await server.start()
    clock.ahead += 10 * fleet.LEASE_SECONDS
    assert one.lease_number == number
    await server.stop()


@pytest.mark.parametrize(
    ("there", "chosen"),
    [({"CLOCK_BOOTTIME": 7.0, "CLOCK_MONOTONIC": 1.0}, 7.0), ({"CLOCK_MONOTONIC": 1.0}, 1.0), ({}, 5.0)],
)
def test_the_own_lease_is_judged_by_a_clock_that_goes_on_while_the_machine_sleeps(
    there: dict[str, float], chosen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux, on macOS and BSD, and on Windows."""
    monkeypatch.setattr(
        fleet, "time", SimpleNamespace(monotonic=lambda: 5.0, clock_gettime=lambda clock: clock, **there)
    )
    assert fleet._own_clock() == chosen


# Keys.


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        ([0], [0], True),
        ([0], [1], False),
        ([0], [1, 0], False),  # the first could not open what the second seals
        ([0], [0, 1], True),
        ([0, 1], [1, 0], True),
        ([1, 0], [1], True),
        ([0, 1], [1], False),
    ],
)
async def test_workers_open_each_others_states_or_do_not_serve(first: Any, second: Any, fits: bool) -> None:
    backend = SharedBackend()
    a, b = (make_worker(backend, state_keys=[SECRETS[n] for n in keys]) for keys in (first, second))
    a.asgi(), b.asgi()
    await a.start()
    if fits:
        await b.start()
    else:
        told = {
            (False, False): r"another key for `requestState`.*WEFT_STATE_KEY=old,new",
            (True, False): r"^Process \d+ on \S+ does not know the first key of WEFT_STATE_KEY yet.*=old,new first\.$",
            (False, True): r"^This worker does not know the key with which process \d+ on \S+ encrypts.*=new,old\.$",
        }[first[0] in second, second[0] in first]
        with pytest.raises(StartError, match=told):
            await b.start()
        refused = await (peer := AppPeer(b.asgi())).stateless("tools/list", {})
        assert refused.status == 500  # and says nothing of keys
        assert "key" not in json.dumps(await refused.json())
        await peer.leave()
    await a.stop()
    await b.start()  # nobody else is there
    await b.stop()


async def test_workers_with_different_keys_that_start_at_the_same_time_do_not_both_serve() -> None:
    backend = SharedYieldingBackend()
    a, b = (make_worker(backend, state_keys=[SECRETS[n]]) for n in range(2))
    a.asgi(), b.asgi()
    started = await asyncio.gather(a.start(), b.start(), return_exceptions=True)
    assert any(isinstance(result, StartError) for result in started)
    await a.stop()
    await b.stop()


async def test_a_worker_that_was_killed_does_not_hold_up_one_with_a_new_key() -> None:
    backend = SharedBackend()
    a, b = (make_worker(backend, state_keys=[SECRETS[n]]) for n in range(2))
    a.asgi(), b.asgi()
    await a.start()
    while a.engine.fleet._leave_bus:  # its connection is gone; its lease is not yet
        await a.engine.fleet._leave_bus.pop()()
    await b.start()
    await b.stop()
    await a.stop()


def test_a_fleet_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_STATE_KEY", raising=False)
    with pytest.raises(StartError, match="set WEFT_STATE_KEY"):
        make_worker(SharedBackend()).asgi()
    monkeypatch.setenv("WEFT_STATE_KEY", SECRETS[0])
    make_worker(SharedBackend()).asgi()
    monkeypatch.delenv("WEFT_STATE_KEY")
    make_worker(MemoryBackend()).asgi()  # nobody else can have it


async def test_an_unknown_session_is_explained_by_the_shared_backend(caplog: pytest.LogCaptureFixture) -> None:
    http_session._warn_of_sessions.cache_clear()
    worker = make_worker(SharedBackend(), state_keys=[SECRETS[0]])
    client = AppPeer(worker.asgi())
    await client.open()
    client.session = "unknown"
    assert (await client.post(message("ping", id=1))).status == 404
    await worker.stop()
    assert "The session has expired or was ended, or the backend has lost its data." in caplog.text
    assert "backend=" not in caplog.text


async def test_two_servers_in_one_backend_do_not_meet() -> None:
    backend = MemoryBackend()
    shop, bank = make_worker(backend, "shop"), make_worker(backend, "bank")
    client = AppPeer(shop.asgi())
    await client.open()
    assert (await client.on(bank.asgi()).post(message("ping", id=1))).status == 404
    assert await bank.engine.fleet.workers() == []
    assert {key.partition(":")[0] for key in backend.store._values} == {"shop", "bank"}  # type: ignore[attr-defined]
    for server in (shop, bank):
        await server.stop()
    await client.leave()


# Messages.


async def test_a_message_to_one_worker_is_repeated_until_it_is_confirmed_and_handled_once(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "CONFIRM_SECONDS", 0.05)
    a, b = (server.engine.fleet for server in workers[:2])
    heard: list[bytes] = []
    b.hear_direct(heard.append)
    bus: Any = workers[0].engine.whole_backend.bus._inner  # type: ignore[attr-defined] - of the yielding one
    publish, lost = bus.publish, 0

    async def lose(topic: str, letter: bytes) -> int:
        """Lose the message once, and then its confirmation once."""
        nonlocal lost
        if topic.endswith(b.worker if lost == 0 else a.worker) and lost < 2:
            lost += 1
            return 1
        return await publish(topic, letter)

    monkeypatch.setattr(bus, "publish", lose)
    assert await a.send(b.worker, b"hello")
    assert (heard, lost) == ([b"hello"], 2)
    await die(workers[1])
    assert not await a.send(b.worker, b"is anybody there?")


@pytest.mark.security("R12")
async def test_a_large_message_to_a_busy_worker_is_sent_once(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "CONFIRM_SECONDS", 0.02)
    a, b = (server.engine.fleet for server in workers[:2])
    heard: list[bytes] = []
    b.hear_direct(heard.append)
    bus: Any = workers[0].engine.whole_backend.bus._inner  # type: ignore[attr-defined] - of the yielding one
    publish, unread, sent = bus.publish, [], []

    async def delay(topic: str, letter: bytes) -> int:
        """Keep what b does not read yet."""
        if not topic.endswith(b.worker):
            return await publish(topic, letter)
        sent.append(len(letter))
        if len(sent) < 6:
            unread.append((topic, letter))
            return 1
        for one in unread:
            await publish(*one)
        unread.clear()
        return await publish(topic, letter)

    monkeypatch.setattr(bus, "publish", delay)
    assert await a.send(b.worker, b"x" * 100_000)
    assert heard == [b"x" * 100_000]
    assert sent[0] > 100_000
    assert max(sent[1:]) < 100
    assert not a._unconfirmed
    assert not a._missing


@pytest.mark.security("R12")
async def test_a_large_message_to_a_worker_that_is_not_connected_is_sent_once_and_again_when_it_is(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "CONFIRM_SECONDS", 0.02)
    a, b = (server.engine.fleet for server in workers[:2])
    heard: list[bytes] = []
    b.hear_direct(heard.append)
    bus: Any = workers[0].engine.whole_backend.bus._inner  # type: ignore[attr-defined] - of the yielding one
    publish, sent, is_connected = bus.publish, [], False

    async def note(topic: str, letter: bytes) -> int:
        if not topic.endswith(b.worker):
            return await publish(topic, letter)
        sent.append(len(letter))
        return await publish(topic, letter) if is_connected else 0

    monkeypatch.setattr(bus, "publish", note)
    sending = asyncio.create_task(a.send(b.worker, b"x" * 100_000))
    await eventually(lambda: len(sent) >= 6)
    assert sent[0] > 100_000
    assert max(sent[1:]) < 100
    is_connected = True
    assert await sending
    assert heard == [b"x" * 100_000]


# Changes.


async def test_a_change_at_one_worker_reaches_the_streams_of_the_others(workers: list[Server]) -> None:
    peers = [AppPeer(server.asgi()) for server in workers]
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://1"]}
    heard = [await peer.stateless("subscriptions/listen", {"notifications": wanted}) for peer in peers]
    for stream in heard:
        assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
    await asyncio.to_thread(workers[0].notify_resource_updated, "a://1")  # from any thread
    for stream in heard:
        assert (await stream.message())["params"]["uri"] == "a://1"
    workers[2].notify_tools_changed()
    for stream in heard:
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
    for peer in peers:
        await peer.leave()


async def test_many_changes_are_few_messages_and_too_many_are_one(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_CHANGES", 20)
    told: list[str] = []
    changes = workers[1].engine.changes
    monkeypatch.setattr(changes, "receive", lambda change: told.append(change.uri))
    monkeypatch.setattr(changes, "receive_all", lambda: told.append("everything"))
    for number in range(15):
        workers[0].notify_resource_updated(f"a://{number}")
    await eventually(lambda: told == [f"a://{number}" for number in range(15)])
    told.clear()
    for number in range(50):
        workers[0].notify_resource_updated(f"a://{number}")
    await eventually(lambda: "everything" in told)
    assert len(told) <= 21


@pytest.mark.security("R12")
async def test_changes_with_long_uris_are_one_message_also_after_a_failure(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_CHANGE_CHARACTERS", 1000)
    told: list[str] = []
    changes = workers[1].engine.changes
    monkeypatch.setattr(changes, "receive", lambda change: told.append(change.uri))
    monkeypatch.setattr(changes, "receive_all", lambda: told.append("everything"))
    for _ in range(10):
        workers[0].notify_resource_updated("a://" + "u" * 900)  # the same one again is not counted
    await eventually(lambda: told)
    assert told == ["a://" + "u" * 900]
    told.clear()
    for number in range(3):
        workers[0].notify_resource_updated(f"a://{number}", part_of="a://" + "u" * 400)
    await eventually(lambda: told == ["everything"])
    told.clear()
    one = workers[0].engine.fleet
    workers[0].backend.bus.is_gone = True  # type: ignore[attr-defined] - of the yielding one
    workers[0].notify_resource_updated("a://1/" + "u" * 600)
    await eventually(lambda: one._sending is not None and not one._sending.done() and one._unsent)  # it has failed once
    workers[0].notify_resource_updated("a://2/" + "u" * 600)
    await eventually(lambda: one._is_all_unsent)
    assert (one._unsent, one._unsent_characters) == ({}, 0)
    workers[0].backend.bus.is_gone = False  # type: ignore[attr-defined] - of the yielding one
    await eventually(lambda: told == ["everything"])
    workers[0].notify_resource_updated("a://1")
    await eventually(lambda: told == ["everything", "a://1"])


async def test_changes_that_cannot_be_sent_yet_are_sent_later(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Change] = []
    monkeypatch.setattr(workers[1].engine.changes, "receive", told.append)
    workers[0].backend.bus.is_gone = True  # type: ignore[attr-defined] - of the yielding one
    workers[0].notify_tools_changed()
    await eventually(lambda: "Changes cannot be sent to the other workers yet" in caplog.text)
    workers[0].notify_prompts_changed()
    workers[0].backend.bus.is_gone = False  # type: ignore[attr-defined] - of the yielding one
    await eventually(lambda: told == [Change("tools"), Change("prompts")])


async def test_changes_at_the_end_of_a_lifespan_are_sent(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Change] = []
    monkeypatch.setattr(workers[0].engine.changes, "receive", told.append)

    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.notify_resource_updated, "a://1")
        await asyncio.sleep(0)  # it is on its way
        server.notify_tools_changed()

    fresh = make_worker(workers[0].backend, lifespan=lifespan)
    await fresh.start()
    publish = fresh.backend.bus.publish

    async def publish_slowly(*message: Any) -> int:
        await asyncio.sleep(0.02)
        return await publish(*message)

    with monkeypatch.context() as patches:
        patches.setattr(fresh.engine.backend.bus._bus, "publish", publish_slowly, raising=False)
        await fresh.stop()
    assert told == [Change("resource", "a://1"), Change("tools")]


async def test_changes_at_the_end_do_not_keep_a_worker_from_stopping(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = make_worker(workers[0].backend, limits=Limits(drain_seconds=math.inf))
    bus: Any = fresh.backend.bus
    await fresh.start()
    bus.is_gone = True
    fresh.notify_tools_changed()
    async with asyncio.timeout(5):
        await fresh.stop()
    bus.is_gone = False
    assert "The last changes of this worker were not sent" in caplog.text


async def test_a_worker_signs_off_also_if_it_does_not_wait_for_open_calls(caplog: pytest.LogCaptureFixture) -> None:
    backend = YieldingBackend()
    fresh = make_worker(backend, limits=Limits(drain_seconds=0))
    await fresh.start()
    assert await fleet.find_workers(fresh.engine.backend)
    await fresh.stop()
    assert not [key for key, value in backend.memory.store._values.items() if "worker" in key and value]
    assert backend.memory.bus._topics == {}
    assert "could not sign off" not in caplog.text


async def test_a_backend_that_hangs_does_not_keep_a_worker_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet, "LEAVE_SECONDS", 0.05)
    fresh = make_worker(YieldingBackend(), limits=Limits(drain_seconds=math.inf))
    await fresh.start()
    monkeypatch.setattr(fresh.engine.backend.sets, "remove", lambda *_: asyncio.sleep(60))
    async with asyncio.timeout(5):
        await fresh.stop()
    told = "This worker could not sign off from the backend (no answer in time). The others notice within "
    assert told in caplog.text


async def test_nothing_is_left_running_when_a_worker_has_stopped(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> int:
        await asyncio.sleep(60)
        return 0

    fresh = make_worker(workers[0].backend)
    await fresh.start()
    with monkeypatch.context() as patches:
        patches.setattr(fresh.engine.backend.bus, "publish", hang)
        fresh.notify_tools_changed()
        await eventually(lambda: fresh.engine.fleet._background)
        await fresh.stop()
    assert not fresh.engine.fleet._background
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "weft-fleet"]


async def test_a_stream_is_told_everything_if_changes_may_have_been_missed(workers: list[Server]) -> None:
    peer = AppPeer(workers[0].asgi())
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://1", "a://2"]}
    heard = await peer.stateless("subscriptions/listen", {"notifications": wanted})
    await heard.message()
    workers[0].engine.changes.receive_all()
    told = [await heard.message() for _ in range(3)]
    assert sorted(one["params"].get("uri", one["method"]) for one in told) == [
        "a://1", "a://2", "notifications/tools/list_changed",
    ]  # fmt: skip
    await peer.leave()


async def test_a_stream_is_told_everything_if_the_clock_of_the_backend_was_set_back(workers: list[Server]) -> None:
    client = AppPeer(workers[0].asgi())
    await client.open()
    listening = await client.get()
    await listening.first()
    workers[0].notify_tools_changed()
    stream, _, number = ((await listening.next()).id or "").rpartition(".")
    await listening.close()
    later = f"{stream}.{int(number) + 3_600_000}"  # of an event before the clock was set back; it has expired
    resumed = await client.on(workers[1].asgi()).get(later)
    assert (await resumed.message())["method"] == "notifications/tools/list_changed"
    workers[2].notify_prompts_changed()
    assert (await resumed.message())["method"] == "notifications/prompts/list_changed"
    await resumed.close()
    log = workers[0].backend.memory.log  # type: ignore[attr-defined] - of the yielding one
    for key in list(log._logs):
        await log.delete(key)
    resumed = await client.on(workers[1].asgi()).get(later)
    await resumed.first()
    workers[2].notify_prompts_changed()
    assert (await resumed.message())["method"] == "notifications/prompts/list_changed"
    await client.leave()


# Streams of a dead worker.


async def begin(workers: list[Server], *, version: str = "2025-11-25") -> tuple[AppPeer, Any]:
    """A call at the first worker that has told something and waits; its client has lost the connection."""
    client = AppPeer(workers[0].asgi())
    await client.open(version, FORM)
    call = await client.post(called("steps", 7, progress="p"))
    await call.question()
    await call.close()
    return client, call


@pytest.mark.spec("L11-14")
async def test_a_call_of_a_dead_worker_is_answered_where_its_client_comes_back(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHECK_SECONDS", 0.1)
    client, call = await begin(workers)
    waiting = await client.on(workers[1].asgi()).get(call.events[-1].id)
    await asyncio.sleep(0.3)
    assert not waiting.ended  # its worker is alive
    await die(workers[0])
    error = (await waiting.message())["error"]
    assert error["code"] == -32603
    assert "has died" in error["message"]
    await waiting.body()
    again = await client.on(workers[2].asgi()).get(call.events[1].id)  # it is told at any worker, once
    rest = [event.data async for event in again.rest() if event.data]
    assert [one["id"] for one in rest if "error" in one] == [7]
    await client.leave()


async def test_a_client_that_comes_back_after_the_lease_is_told_at_once(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHECK_SECONDS", 600)
    client, call = await begin(workers)
    await die(workers[0])
    waiting = await client.on(workers[1].asgi()).get(call.events[-1].id)
    async with asyncio.timeout(30):  # not only at the next check
        assert (await waiting.message())["error"]["code"] == -32603
    await workers[0].stop()
    await client.leave()


async def test_all_of_an_array_are_answered(workers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_CHECK_SECONDS", 0.1)
    client = AppPeer(workers[0].asgi())
    await client.open("2025-03-26", FORM)
    call = await client.post([called("steps", 1, progress="p"), called("hang", "two")])
    await call.message()
    await call.close()
    waiting = await client.on(workers[1].asgi()).get(call.events[-1].id)
    await die(workers[0])
    answers = [event.data async for event in waiting.rest() if event.data and "error" in event.data]
    assert {answer["id"] for answer in answers} == {1, "two"}
    await client.leave()


async def test_the_standalone_stream_of_a_killed_worker_can_be_opened_elsewhere_at_once(workers: list[Server]) -> None:
    client = AppPeer(workers[0].asgi())
    await client.open()
    stream, there = await client.get(), client.on(workers[1].asgi())
    assert (await there.get()).status == 409
    await stream.close()
    for leave in workers[0].engine.fleet._leave_bus:  # killed: its connection is gone; its lease is not yet
        await leave()
    await workers[0].engine.sessions.records._store.put(
        f"listener/{client.session}", workers[0].engine.fleet.worker.encode(), ttl=60
    )
    assert (await there.get()).status == 200
    await client.leave()


async def listened(workers: list[Server]) -> tuple[AppPeer, str]:
    """A client that has lost its stream at the first worker, and the id of the last event that it got."""
    opener = AppPeer(workers[2].asgi())
    await opener.open()
    client = opener.on(workers[0].asgi())
    await (await client.post(message("resources/subscribe", {"uri": "a://1"}, 1))).result()
    stream = await client.get()
    workers[0].notify_tools_changed()
    last = (await stream.next()).id
    await stream.close()
    session = workers[0].engine.sessions._local(client.session)
    await eventually(lambda: session.wake is None)
    return client, last


def names(messages: list[Any]) -> list[str]:
    return [one.get("params", {}).get("uri", one["method"].rpartition("/")[0][14:]) for one in messages]


@pytest.mark.spec("L11-17", "L11-19")
async def test_changes_while_no_stream_was_open_are_told_at_the_worker_where_the_client_comes_back(
    workers: list[Server],
) -> None:
    client, last = await listened(workers)
    workers[2].notify_prompts_changed()
    workers[1].notify_resource_updated("a://1")
    await eventually(lambda: len(workers[0].engine.sessions._local(client.session).inbox) == 2)
    there = await client.on(workers[1].asgi()).get(last)
    assert names([await there.message() for _ in range(2)]) == ["prompts", "a://1"]
    workers[0].notify_resources_changed()  # told once, although the first worker has collected changes before
    workers[2].notify_tools_changed()
    assert names([await there.message() for _ in range(2)]) == ["resources", "tools"]
    assert workers[0].engine.sessions._local(client.session).inbox is None
    await client.leave()


async def test_a_stream_that_is_resumed_at_another_worker_ends_at_the_first(workers: list[Server]) -> None:
    client, last = await listened(workers)
    here = await client.get(last)
    there = await client.on(workers[1].asgi()).get(last)
    assert await here.body(5) == b":\n\n"
    workers[0].notify_prompts_changed()
    assert names([await there.message()]) == ["prompts"]
    again = await client.get(last)
    assert names([await again.message()]) == ["prompts"]
    assert await there.body(5) == b""
    await client.leave()


@pytest.mark.parametrize("how", ["killed", "idle"])
async def test_if_nobody_has_collected_changes_everything_may_have_changed(workers: list[Server], how: str) -> None:
    client, last = await listened(workers)
    if how == "killed":
        await die(workers[0])
    else:
        sessions = workers[0].engine.sessions
        await sessions._end_if_over(sessions._local(client.session))
    there = await client.on(workers[1].asgi()).get(last)
    assert names([await there.message() for _ in range(4)]) == ["tools", "prompts", "resources", "a://1"]
    await client.leave()


async def test_a_call_of_http_sse_at_a_worker_that_dies_is_answered_on_the_stream_of_another(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHECK_SECONDS", 0.1)
    here, there = (AppPeer(server.asgi(sse_path="/sse")) for server in workers[:2])
    stream, post = await open_sse(here)
    assert (await post(there, called("hang", 5))).status == 202
    assert (await post(there, message("ping", id=6))).status == 202
    assert await stream.message() == {"jsonrpc": "2.0", "id": 6, "result": {}}
    await die(workers[1])
    answer = await stream.message()
    assert (answer["id"], answer["error"]["code"]) == (5, -32603)
    assert (await post(here, message("ping", id=7))).status == 202
    assert (await stream.message())["id"] == 7  # and 6 is not answered twice
    for peer in (here, there):
        await peer.leave()


# Slow readers elsewhere.


async def test_a_call_waits_for_a_client_that_reads_slowly_at_another_worker() -> None:
    backend = MemoryBackend()
    limits = Limits(replay_events=32, progress_per_second=0, drain_seconds=0.2)
    a, b = (make_worker(backend, limits=limits) for _ in range(2))
    client = AppPeer(a.asgi())
    await client.open(capabilities=FORM)
    call = await client.post(called("flood", 7, progress="p", count=300))
    question = await call.question()
    await call.close()
    there = client.on(b.asgi())
    slow = await there.get(call.events[-1].id)
    assert (await there.post(accept(question, "yes"))).status == 202
    seen: list[int] = []
    while len(seen) < 300:
        seen.append((await slow.message())["params"]["progress"])
        slow.stall()
        await asyncio.sleep(0.001)
        slow._stalled.set()
    assert seen == list(range(300))  # nothing is missing, though only 32 are kept
    assert (await slow.message())["result"]["content"][0]["text"] == "flooded"
    for server in (a, b):
        await server.stop()
    await client.leave()


# With a real Redis.


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


async def test_changes_lost_while_the_connection_was_down_are_told_as_everything(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "FIRST_PAUSE", 1.0)  # before a new connection
    a, b = (make_worker(RedisBackend(redis.url), state_keys=[SECRETS[0]]) for _ in range(2))
    await a.start()
    await b.start()
    peer = AppPeer(b.asgi())
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://1"]}
    heard = await peer.stateless("subscriptions/listen", {"notifications": wanted})
    await heard.message()
    assert redis.run("CLIENT", "KILL", "TYPE", "pubsub") == 2
    a.notify_tools_changed()
    await eventually(lambda: not a.engine.fleet._background)  # it was sent, and heard by no worker
    assert not heard.events[1:]
    told = [await heard.message() for _ in range(2)]
    assert sorted(one["params"].get("uri", one["method"]) for one in told) == [
        "a://1", "notifications/tools/list_changed",
    ]  # fmt: skip
    a.notify_tools_changed()  # now it is heard again
    assert (await heard.message())["method"] == "notifications/tools/list_changed"
    for server in (a, b):
        await server.stop()
    await peer.leave()


LEASE = 2.0

KILLED = """
import asyncio
from weft import Context, Server
from weft.server.runtime import fleet
from weft.server.sessions import streams

fleet.LEASE_SECONDS, streams._CHECK_SECONDS = {lease}, {lease} / 3
server = Server("killed", backend={url!r}, state_keys=["only for this test " * 2])

@server.tool
async def wait(ctx: Context) -> None:
    await ctx.report_progress(1)
    await asyncio.sleep(600)

server.run("http", port=0)
"""


async def test_a_call_of_a_killed_process_is_answered_within_the_lease(redis: RedisServer, tmp_path: Path) -> None:
    processes: list[Process] = []
    try:
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            processes.append(Process(folder, "", KILLED.format(lease=LEASE, url=redis.url)))
        urls = [await asyncio.to_thread(process.url) for process in processes]
        here, there = (SocketPeer(int(url.rpartition(":")[2].partition("/")[0])) for url in urls)
        await here.open()
        call = await here.post(called("wait", 7, progress="p"))
        assert (await call.message())["method"] == "notifications/progress"
        processes[0].signal(signal.SIGKILL)
        since = time.monotonic()
        there.session, there.version = here.session, here.version
        answer = await (await there.get(call.events[-1].id)).message()
        assert (answer["id"], answer["error"]["code"]) == (7, -32603)
        assert "has died" in answer["error"]["message"]
        assert time.monotonic() - since < LEASE + 8
    finally:
        for process in processes:
            process.kill()
