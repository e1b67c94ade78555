"""Sessions at several workers, where something happens at the worst moment, or the backend has lost what it had."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import AppPeer, called, eventually, message, open_sse
from weft import Context, Limits, Server
from weft.errors import BackendUnavailable
from weft.server.runtime import fleet
from weft.server.sessions import sessions as session_table
from weft.server.sessions import streams
from weft.server.sessions.session import Session
from weft.server.sessions.streams import _Position

Make = Callable[..., list[Server]]


def make_worker(backend: Any, **limits: Any) -> Server:
    server = Server("races", backend=backend, limits=Limits(**{"drain_seconds": 0.2, **limits}))
    server.add_resource("a://1", "one")

    @server.tool
    async def hang(ctx: Context) -> None:
        await ctx.report_progress(1)
        await asyncio.sleep(60)

    return server


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Server] = []

    def workers(**limits: Any) -> list[Server]:
        backend = YieldingBackend()
        for part in (backend.store, backend.log, backend.bus, backend.sets):
            part.failure = BackendUnavailable("The backend is away.")
        made.extend(make_worker(backend, **limits) for _ in range(2))
        return made

    yield workers
    for server in made:
        await server.stop()


def memory_of(workers: list[Server]) -> Any:
    return workers[0].engine.whole_backend.memory  # type: ignore[attr-defined] - of the yielding one


def parts(workers: list[Server]) -> Any:
    return workers[0].engine.whole_backend


def local(server: Server, client: AppPeer) -> Session:
    session = server.engine.sessions._local(client.session)
    assert session is not None
    return session


async def opened(server: Server, **options: Any) -> AppPeer:
    client = AppPeer(server.asgi(), **options)
    await client.open()
    return client


async def ping(client: AppPeer, id: int = 9) -> int:
    return (await client.post(message("ping", id=id))).status


# Live parts that are released while they are needed.


@pytest.mark.parametrize("is_stale", [False, True])
async def test_a_session_that_is_used_while_it_is_swept_is_found(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_stale: bool
) -> None:
    workers = make()
    client, store = await opened(workers[0]), memory_of(workers).store
    session, gates = local(workers[0], client), {name: asyncio.Event() for name in ("get", "touch")}
    for name, gate in gates.items():
        original = getattr(store, name)

        async def held(key: str, original: Any = original, gate: asyncio.Event = gate, **options: Any) -> Any:
            if "session/" in key:
                await gate.wait()
            return await original(key, **options)

        monkeypatch.setattr(store, name, held)
    session.renewed = -1e9  # so that the next use renews the record
    sweep = asyncio.create_task(workers[0].engine.sessions._end_if_over(session))
    await asyncio.sleep(0.02)
    session.news += is_stale
    pinging = asyncio.create_task(ping(client))
    await asyncio.sleep(0.02)
    gates["get"].set()  # the read of the sweep returns first
    await sweep
    gates["touch"].set()
    assert await pinging == 200
    assert local(workers[0], client) is session
    await client.leave()


async def test_a_session_that_was_used_during_the_look_of_a_sweep_is_not_released(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    client, store, gate = await opened(workers[0]), memory_of(workers).store, asyncio.Event()
    session, get = local(workers[0], client), store.get

    async def held(key: str) -> Any:
        value = await get(key)
        await gate.wait()
        return value

    monkeypatch.setattr(store, "get", held)
    sweep = asyncio.create_task(workers[0].engine.sessions._end_if_over(session))
    await asyncio.sleep(0.02)
    assert await ping(client) == 200  # and it is over before the read returns
    gate.set()
    await sweep
    assert local(workers[0], client) is session
    await client.leave()


async def test_a_released_live_part_does_not_remove_its_successor(make: Make) -> None:
    workers = make()
    client, sessions = await opened(workers[0]), workers[0].engine.sessions
    old = local(workers[0], client)
    sessions._remove(old)
    assert await ping(client) == 200
    new = local(workers[0], client)
    assert new is not old
    await sessions._release(old)
    assert local(workers[0], client) is new
    assert sessions._fetched.per_peer == {new.peer: {new.id: new}}
    await client.leave()


async def test_a_first_use_that_could_not_renew_the_record_is_tried_again(make: Make) -> None:
    workers = make()
    client = AppPeer(workers[0].asgi())
    await client.open(ready=False)
    until, key = memory_of(workers).store._expiring._until, f"races:session/{client.session}"
    unused = until[key]
    parts(workers).store.is_gone = True
    assert await ping(client) == 503
    parts(workers).store.is_gone = False
    assert await ping(client) == 200
    assert until[key] > unused + 600
    await client.leave()


# Limits.


@pytest.mark.parametrize("ready", [False, True])
async def test_a_session_that_has_a_stream_at_another_worker_does_not_make_room(make: Make, ready: bool) -> None:
    workers = make(sessions_per_peer=1)
    first = AppPeer(workers[0].asgi())
    await first.open(ready=ready)
    there = first.on(workers[1].asgi())
    stream = await there.get()
    await stream.first()
    second = AppPeer(workers[0].asgi())
    with pytest.raises(AssertionError, match="as many sessions as it allows"):
        await second.open()
    assert await ping(there) == 200
    await stream.close()
    await eventually(lambda: local(workers[1], first).wake is None)
    await asyncio.sleep(0.05)  # until that is in the backend
    await second.open()
    await eventually(lambda: not len(workers[1].engine.sessions))
    assert await ping(there) == 404
    for client in (first, second):
        await client.leave()


async def test_a_session_that_another_worker_has_used_makes_room_only_if_there_is_no_other(make: Make) -> None:
    workers = make(sessions_per_peer=3)
    clients = [await opened(workers[0]) for _ in range(3)]
    used = [clients[0].on(workers[1].asgi()), clients[2].on(workers[1].asgi())]
    assert [await ping(client) for client in used] == [200, 200]
    clients.append(await opened(workers[0]))  # the second one, which no other worker has used, makes room
    assert [await ping(client) for client in (*used, clients[1])] == [200, 200, 404]
    assert await ping(clients[3].on(workers[1].asgi())) == 200
    clients.append(await opened(workers[0]))  # all were used elsewhere, and nobody is locked out
    assert await ping(clients[4]) == 200
    assert sorted([await ping(client) for client in (*used, clients[3])]) == [200, 200, 404]
    for client in clients:
        await client.leave()


async def test_the_marks_of_a_session_end_with_it(make: Make) -> None:
    workers = make()
    client = await opened(workers[0])
    assert await ping(client.on(workers[1].asgi())) == 200
    sets = workers[0].engine.fleet._backend.sets
    assert await sets.names(f"users/{client.session}")
    assert (await client.delete()).status == 204
    assert await sets.names(f"users/{client.session}") == []
    await client.leave()


async def test_a_session_of_http_sse_does_not_end_where_only_its_messages_arrive(make: Make) -> None:
    workers = make(sessions_per_peer=1)
    here, there = (AppPeer(server.asgi(sse_path="/sse")) for server in workers)
    stream, post = await open_sse(here)
    assert (await post(there, message("ping", id=6))).status == 202
    assert (await stream.message())["id"] == 6
    other = await opened(workers[1])  # it is the first that this worker has opened
    with pytest.raises(AssertionError, match="as many sessions as it allows"):
        await opened(workers[0])
    assert (await post(there, message("ping", id=7))).status == 202
    assert (await stream.message())["id"] == 7
    for peer in (here, there, other):
        await peer.leave()


# Changes.


async def listened(server: Server, opener: Server | None = None) -> AppPeer:
    """A client that has had a stream, and has lost it."""
    client = (await opened(opener or server)).on(server.asgi())
    stream = await client.get()
    await stream.first()
    await stream.close()
    await eventually(lambda: local(server, client).wake is None)
    return client


async def test_a_change_that_could_not_be_stored_is_told_on_the_next_stream(make: Make) -> None:
    workers = make()
    client = await opened(workers[0])
    await (await client.post(message("resources/subscribe", {"uri": "a://1"}, 1))).result()
    stream = await client.get()
    workers[0].notify_prompts_changed()
    await stream.message()
    await asyncio.sleep(0.02)  # it waits for the next change
    parts(workers).log.is_gone = True
    workers[0].notify_resource_updated("a://1/part", part_of="a://1")
    workers[0].notify_tools_changed()
    await stream.body()
    parts(workers).log.is_gone = False
    again = await client.get()
    told = [await again.message() for _ in range(2)]
    assert {one["method"] for one in told} == {
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    }
    await client.leave()


@pytest.mark.parametrize("most", [session_table._MOST_PUBLISHED, 0], ids=["record", "version"])
async def test_a_change_right_after_a_subscription_at_another_worker_is_told(
    make: Make, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(session_table, "_MOST_PUBLISHED", most)
    workers = make()
    client, store = await opened(workers[0]), memory_of(workers).store
    stream = await client.on(workers[1].asgi()).get()
    workers[1].notify_tools_changed()
    await stream.message()
    read = store.get

    async def read_late(key: str) -> Any:
        await asyncio.sleep(0.2)
        return await read(key)

    await asyncio.sleep(0.05)
    monkeypatch.setattr(store, "get", read_late)
    await (await client.post(message("resources/subscribe", {"uri": "a://1"}, 1))).result()
    workers[0].notify_resource_updated("a://1")
    async with asyncio.timeout(5):
        while (await stream.message())["method"] != "notifications/resources/updated":
            pass
    await client.leave()


async def test_a_change_right_after_a_subscription_is_told_if_topics_have_no_common_order(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster of Redis, topics can be on different nodes, of which one is slower."""
    workers = make()
    client, bus = await opened(workers[0]), memory_of(workers).bus
    stream = await client.on(workers[1].asgi()).get()
    workers[1].notify_tools_changed()
    await stream.message()
    await asyncio.sleep(0.05)
    publish, slow, loop = bus.publish, [], asyncio.get_running_loop()

    async def publish_late(topic: str, sent: bytes) -> int:
        slow.append(topic)
        if topic != slow[0]:
            return await publish(topic, sent)
        loop.call_later(0.1, lambda: [hear(sent) for hear in bus._topics[topic].values()])
        return 1

    monkeypatch.setattr(bus, "publish", publish_late)
    await (await client.post(message("resources/subscribe", {"uri": "a://1"}, 1))).result()
    workers[0].notify_resource_updated("a://1")
    assert (await stream.message(5))["method"] == "notifications/resources/updated"
    await client.leave()


async def test_a_change_that_could_not_be_handed_over_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_table, "_AGAIN_SECONDS", 0.05)
    workers = make()
    client, log = await listened(workers[0]), memory_of(workers).log
    workers[0].notify_tools_changed()
    await eventually(lambda: len(local(workers[0], client).inbox) == 1)
    append, failures = log.append, 0

    async def fail(*args: Any, **options: Any) -> int:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise BackendUnavailable("The backend is away.")
        return await append(*args, **options)

    monkeypatch.setattr(log, "append", fail)
    there = await client.on(workers[1].asgi()).get()
    assert (await there.message(5))["method"] == "notifications/tools/list_changed"
    await client.leave()


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("is_used", [False, True], ids=["gone", "new live part"])
async def test_a_stream_is_told_everything_if_the_worker_that_collected_changes_has_released_the_session(
    make: Make, where: int, is_used: bool
) -> None:
    workers = make()
    client = await listened(workers[0], opener=workers[1])
    await workers[0].engine.sessions._end_if_over(local(workers[0], client))
    assert len(workers[0].engine.sessions) == 0
    if is_used:
        assert await ping(client) == 200
    workers[1].notify_tools_changed()  # and no worker collects it
    await asyncio.sleep(0.02)
    stream = await client.on(workers[where].asgi()).get()
    told = [(await stream.message(5))["method"] for _ in range(3)]
    assert told == [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
    await asyncio.sleep(0.1)
    assert b"list_changed" not in stream._buffer  # it is told once
    await client.leave()


@pytest.mark.parametrize("how", ["late", "lost"])
async def test_a_stream_that_has_come_back_hears_changes_if_its_worker_is_told_late_that_it_was_away(
    make: Make, how: str
) -> None:
    workers = make()
    here = await opened(workers[0])
    there = here.on(workers[1].asgi())
    stream = await here.get()
    workers[0].notify_tools_changed()
    last = (await stream.next()).id
    hear_again = mute(workers[0])
    await stream.close()
    for client in (there, here):
        stream = await client.get(last)
        await stream.first()
        if client is there:
            await stream.close()
            await eventually(lambda: local(workers[1], there).wake is None)
    hear_again(is_late=how == "late")
    everything = {f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")}
    async with asyncio.timeout(5):
        while everything:  # what was missed is not known
            everything.discard((await stream.message())["method"])
    await asyncio.sleep(0.1)
    stream._buffer = b""
    for worker in workers:
        worker.notify_prompts_changed()
        assert (await stream.message(5))["method"] == "notifications/prompts/list_changed"
    assert local(workers[1], there).inbox is None
    assert not stream.ended
    await here.leave()


def mute(server: Server) -> Callable[..., None]:
    """Keep the messages of other workers from a worker. The returned function passes them on, or loses them."""
    fleet, bus = server.engine.fleet, memory_of([server]).bus
    held: list[Callable[[], None]] = []
    hears = {
        (topic, mark): hear
        for topic, listeners in bus._topics.items()
        for mark, hear in listeners.items()
        if getattr(hear, "__self__", None) is fleet
    }
    assert len(hears) == 2
    for (topic, mark), hear in hears.items():
        bus._topics[topic][mark] = lambda sent, hear=hear: held.append(lambda: hear(sent))

    def hear_again(*, is_late: bool) -> None:
        for (topic, mark), hear in hears.items():
            bus._topics[topic][mark] = hear
        for pass_on in held if is_late else [fleet._on_gap]:
            pass_on()

    return hear_again


async def test_a_released_session_does_not_live_longer(make: Make) -> None:
    workers = make()
    client = await listened(workers[0], opener=workers[1])
    until, key = memory_of(workers).store._expiring._until, f"races:session/{client.session}"
    before = until[key]
    await asyncio.sleep(0.02)
    await workers[0].engine.sessions._end_if_over(local(workers[0], client))
    assert until[key] == before
    await client.leave()


# What a client has changed at one worker holds for its next request at another.


def deafen(server: Server) -> None:
    """Let messages to all workers never arrive at one of them. Call this before it serves."""
    server.engine.fleet._receive = lambda encoded: None  # type: ignore[method-assign] - of this one only


async def used_at_both(workers: list[Server]) -> tuple[AppPeer, AppPeer]:
    """A client at the first worker, and at the second, to which messages to all workers do not come."""
    deafen(workers[1])
    client = await opened(workers[0])
    there = client.on(workers[1].asgi())
    assert await ping(there) == 200
    return client, there


async def set_level(client: AppPeer, level: str) -> int:
    return (await client.post(message("logging/setLevel", {"level": level}, 8))).status


@pytest.mark.parametrize("uris", [0, 200], ids=["record", "version"])  # a large record is not sent
async def test_the_next_request_at_another_worker_is_served_with_the_change(make: Make, uris: int) -> None:
    workers = make()
    client, there = await used_at_both(workers)
    for number in range(uris):
        uri = f"a://{number:050}"
        assert (await client.post(message("resources/subscribe", {"uri": uri}, number))).status == 200
    assert await set_level(client, "error") == 200
    assert await ping(there) == 200
    assert local(workers[1], client).connection.log_level == "error"
    await client.leave()


async def test_a_worker_that_has_not_used_the_session_it_has_opened_knows_of_a_change(make: Make) -> None:
    workers = make()
    deafen(workers[0])
    client = AppPeer(workers[0].asgi())
    await client.open(ready=False)
    there = client.on(workers[1].asgi())
    assert (await there.post(message("notifications/initialized"))).status == 202
    assert local(workers[0], client).connection.is_ready
    await client.leave()


async def test_a_session_that_has_ended_at_one_worker_is_unknown_at_another_at_once(make: Make) -> None:
    workers = make()
    client, there = await used_at_both(workers)
    assert (await client.delete()).status == 204
    assert await ping(there) == 404
    await client.leave()


async def test_a_change_while_another_worker_reads_the_session_is_known_to_the_next_request_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    deafen(workers[1])
    client, store, gate = await opened(workers[0]), memory_of(workers).store, asyncio.Event()
    get, held_once = store.get, iter([True])

    async def held(key: str) -> Any:
        value = await get(key)
        if "session/" in key and next(held_once, False):  # the first read of worker 1
            await gate.wait()
        return value

    monkeypatch.setattr(store, "get", held)
    pinging = asyncio.create_task(ping(client.on(workers[1].asgi()), 1))
    await asyncio.sleep(0.02)
    assert await set_level(client, "error") == 200  # worker 1 is not known as a user yet
    gate.set()
    assert await pinging == 200
    assert local(workers[1], client).connection.log_level == "error"
    await client.leave()


async def test_a_worker_that_has_not_used_a_session_for_long_reads_it_again(make: Make) -> None:
    workers = make()
    client, there = await used_at_both(workers)
    await memory_of(workers).sets.remove(f"races:users/{client.session}", workers[1].engine.fleet.worker)
    local(workers[1], client).informed_until = -1e9  # the mark has expired
    assert await set_level(client, "error") == 200
    assert await ping(there) == 200
    assert local(workers[1], client).connection.log_level == "error"
    await client.leave()


async def test_a_worker_that_could_not_mark_itself_as_a_user_reads_the_session_again(make: Make) -> None:
    workers = make()
    deafen(workers[1])
    client = await opened(workers[0])
    there = client.on(workers[1].asgi())
    parts(workers).sets.is_gone = True
    assert await ping(there) == 503
    parts(workers).sets.is_gone = False
    assert await set_level(client, "error") == 200
    assert await ping(there) == 200
    assert local(workers[1], client).connection.log_level == "error"
    await client.leave()


async def test_no_request_is_served_while_the_session_is_read_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    client, store, gate = await opened(workers[0]), memory_of(workers).store, asyncio.Event()
    get = store.get

    async def held(key: str) -> Any:
        if "session/" in key:
            await gate.wait()
        return await get(key)

    local(workers[0], client).news += 1
    monkeypatch.setattr(store, "get", held)
    pings = [asyncio.create_task(ping(client, id)) for id in (1, 2)]
    await asyncio.sleep(0.02)
    local(workers[0], client).news += 1  # while it is read
    await asyncio.sleep(0.02)
    assert [one.done() for one in pings] == [False, False]
    gate.set()
    assert await asyncio.gather(*pings) == [200, 200]
    assert local(workers[0], client).stale
    assert await ping(client) == 200
    assert not local(workers[0], client).stale
    await client.leave()


async def hung(workers: list[Server], monkeypatch: pytest.MonkeyPatch) -> AppPeer:
    """A session that two workers use, of which the second does not confirm anything any more."""
    client, _ = await used_at_both(workers)
    monkeypatch.setattr(workers[1].engine.fleet, "_answer", lambda *_: None)
    return client


async def test_a_worker_that_hangs_delays_a_change_only_for_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "INFORM_SECONDS", 0.05)
    workers = make()
    client = await hung(workers, monkeypatch)
    assert await set_level(client, "error") == 200
    assert workers[0].engine.fleet._unconfirmed == {}
    await client.leave()


async def test_a_change_that_is_cancelled_while_a_worker_hangs_ends_its_response(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    client = await hung(workers, monkeypatch)
    changing = asyncio.create_task(set_level(client, "error"))
    await eventually(lambda: workers[0].engine.fleet._unconfirmed)
    assert (await client.post(message("notifications/cancelled", {"requestId": 8}))).status == 202
    assert await changing == 202
    await client.leave()


async def test_a_session_that_is_deleted_while_a_worker_hangs_ends_here_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "INFORM_SECONDS", 20)
    workers = make()
    client = await hung(workers, monkeypatch)
    await (await client.post(called("hang", 5, progress="p"))).message()
    deleting = asyncio.create_task(client.delete())
    await eventually(lambda: not len(workers[0].engine.sessions) and not workers[0].engine.open_calls._since)
    assert not deleting.done()
    deleting.cancel()
    await client.leave()


# Sessions that the backend has lost.


async def lose_all(workers: list[Server]) -> None:
    memory = memory_of(workers)
    for key in [key for key in memory.store._values if "worker" not in key]:
        await memory.store.delete(key)


async def test_the_stream_of_a_lost_session_ends_with_the_next_sweep(make: Make) -> None:
    workers = make()
    client = await opened(workers[0])
    stream = await client.get()
    await stream.first()
    await lose_all(workers)
    local(workers[0], client).renewed = -1e9
    workers[0].engine.sessions._sweep()
    await stream.body(5)
    assert len(workers[0].engine.sessions) == 0
    await client.leave()


async def test_the_stream_of_a_lost_session_does_not_bring_back_its_owner(make: Make) -> None:
    workers = make()
    client = await opened(workers[0])
    stream = await client.get()
    await stream.first()
    await lose_all(workers)
    local(workers[0], client).wake_streams()
    await stream.body(5)
    assert not [key for key in memory_of(workers).store._values if client.session in key]
    assert await ping(client) == 404
    await client.leave()


@pytest.mark.parametrize("last", [None, "0.1"])
async def test_a_stream_of_a_lost_session_is_not_opened(make: Make, last: str | None) -> None:
    workers = make()
    client = await opened(workers[0])
    await lose_all(workers)
    assert (await client.get(last)).status == 404
    assert not [key for key in memory_of(workers).store._values if client.session in key]
    await client.leave()


async def test_a_record_that_cannot_be_read_does_not_keep_others_from_being_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    clients = [await opened(workers[0]) for _ in range(3)]
    for client in clients:
        await (await client.get()).first()
    store = memory_of(workers).store
    get = store.get

    async def fail(key: str) -> Any:
        if key.endswith(f"session/{clients[0].session}"):
            raise BackendUnavailable("The backend is away.")
        return await get(key)

    monkeypatch.setattr(store, "get", fail)
    table = [local(workers[0], client) for client in clients]
    workers[0].engine.sessions._mark_stale()
    await eventually(lambda: [one.stale for one in table] == [True, False, False], 5)
    monkeypatch.setattr(store, "get", get)
    workers[0].engine.sessions._sweep()
    await eventually(lambda: not table[0].stale, 5)
    for client in clients:
        await client.leave()


async def test_an_outage_is_logged_seldom(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    workers = make()
    clients = [await opened(workers[0]) for _ in range(5)]
    for client in clients:
        local(workers[0], client).in_use += 1
    parts(workers).store.is_gone = True
    for _ in range(5):
        for client in clients:
            local(workers[0], client).renewed = -1e9
        workers[0].engine.sessions._sweep()
        await eventually(lambda: not workers[0].engine.sessions._background)
    parts(workers).store.is_gone = False
    assert (
        caplog.text.count("Sessions could not be renewed in the backend: BackendUnavailable") == 2
    )  # the first, the tenth
    for client in clients:
        local(workers[0], client).in_use -= 1
        await client.leave()


# Keys that belong to another worker by now.


async def test_a_worker_does_not_give_up_the_stream_that_another_has_taken_over(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    client = await opened(workers[0])
    assert await ping(client.on(workers[1].asgi())) == 200
    (a, mine), (b, theirs) = ((one.engine.sessions.records, local(one, client)) for one in workers)
    assert await a.hold_stream(mine)
    store = memory_of(workers).store
    get, swap, is_taken = store.get, store.swap, False

    async def take_over() -> None:
        nonlocal is_taken
        if not is_taken:
            is_taken = True
            assert await b.hold_stream(theirs, takes_over=True)

    async def get_and_lose(key: str) -> Any:
        value = await get(key)
        if "listener/" in key:
            await take_over()
        return value

    async def lose_and_swap(key: str, *args: Any, **options: Any) -> bool:
        if "listener/" in key:
            await take_over()
        return await swap(key, *args, **options)

    monkeypatch.setattr(store, "get", get_and_lose)
    monkeypatch.setattr(store, "swap", lose_and_swap)
    await a.drop_stream(mine)
    assert is_taken
    assert await b.stream_owner(theirs) == theirs.worker
    await b.drop_stream(theirs)
    assert await b.stream_owner(theirs) is None
    assert await a.hold_stream(mine)
    await client.leave()


async def test_a_reader_that_ends_does_not_hide_the_position_of_its_successor(make: Make) -> None:
    store = memory_of(make()).store
    old, new = (_Position(store, "stream/s/1", Limits(), 1) for _ in range(2))
    await old.show(5)
    await new.show(5)
    await old.hide()
    assert (await store.get("reader/s/1")).startswith(b"5 ")
    await new.hide()
    assert await store.get("reader/s/1") == b""


# HTTP+SSE.


async def test_a_cancelled_request_of_http_sse_gets_no_error_when_its_worker_dies(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHECK_SECONDS", 0.1)
    workers = make()
    here, there = (AppPeer(server.asgi(sse_path="/sse")) for server in workers)
    stream, post = await open_sse(here)
    assert (await post(there, called("hang", 5))).status == 202
    assert (await post(there, message("notifications/cancelled", {"requestId": 5}))).status == 202
    await eventually(lambda: not next(iter(workers[1].engine.sessions._all())).in_use)
    await asyncio.sleep(0.05)
    fleet = workers[1].engine.fleet
    fleet._renewing.cancel()
    while fleet._leave_bus:
        await fleet._leave_bus.pop()()
    await fleet._backend.store.delete(f"worker/{fleet.worker}")
    await asyncio.sleep(0.4)
    assert (await post(here, message("ping", id=7))).status == 202
    assert (await stream.message())["id"] == 7
    for peer in (here, there):
        await peer.leave()
