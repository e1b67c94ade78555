"""Clients that use sessions to fill the backend of a fleet, or to disturb its workers: they disturb only themselves."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import FORM, AppPeer, Reply, accept, answer_to, called, eventually, message, open_sse
from weft import Context, Limits, Server
from weft.server.runtime import fleet
from weft.server.sessions import session as session_module
from weft.server.sessions import sessions as session_table
from weft.server.sessions.session import Session

Make = Callable[..., list[Server]]


def make_worker(backend: Any, limits: dict[str, Any]) -> Server:
    server = Server("attacked", backend=backend, limits=Limits(**{"drain_seconds": 0.2, **limits}))
    server.go_on, server.progress = asyncio.Event(), []
    server.add_resource("a://1", "one")

    @server.tool
    async def hang(ctx: Context) -> None:
        await ctx.report_progress(1)
        await asyncio.sleep(60)

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("go on?", Reply)).value.value

    @server.tool
    async def watch(ctx: Context) -> str:
        await ctx.connection.send_raw_request("roots/list", None, timeout=5, on_progress=server.progress.append)
        return "done"

    @server.tool
    async def steps(ctx: Context, count: int) -> str:
        for number in range(count):
            await ctx.report_progress(number)
        await server.go_on.wait()
        return "done"

    return server


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Server] = []

    def workers(*limits: dict[str, Any]) -> list[Server]:
        backend = YieldingBackend()
        made.extend(make_worker(backend, one) for one in limits or ({}, {}))
        return made

    yield workers
    for server in made:
        await server.stop()


def memory_of(workers: list[Server]) -> Any:
    return workers[0].engine.whole_backend.memory  # type: ignore[attr-defined] - of the yielding one


def local(server: Server, client: AppPeer) -> Session:
    session = server.engine.sessions._local(client.session)
    assert session is not None
    return session


async def opened(server: Server, **options: Any) -> AppPeer:
    client = AppPeer(server.asgi())
    await client.open(**options)
    return client


async def both(workers: list[Server], **options: Any) -> tuple[AppPeer, AppPeer]:
    """A client with live parts of its session at two workers."""
    here = await opened(workers[0], **options)
    there = here.on(workers[1].asgi())
    assert await ping(there) == 200
    return here, there


async def ping(client: AppPeer, id: int = 9) -> int:
    return (await client.post(message("ping", id=id))).status


def records(workers: list[Server]) -> list[str]:
    return [key for key in memory_of(workers).store._values if ":session/" in key]


def spy_on_bus(workers: list[Server], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that workers send, from now on."""
    bus, sent = memory_of(workers).bus, []
    publish = bus.publish

    async def note(topic: str, sent_message: bytes) -> int:
        if "stream/" not in topic:
            sent.append(sent_message)
        return await publish(topic, sent_message)

    monkeypatch.setattr(bus, "publish", note)
    return sent


# Records that no worker counts.


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "fleet"])
async def test_handshakes_at_the_same_time_leave_no_record_that_is_not_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    workers = make(*[{"sessions_per_peer": 2}] * count)
    store = memory_of(workers).store
    put = store.put

    async def slow_put(key: str, value: bytes, *, ttl: float) -> None:
        if ":session/" in key:
            await asyncio.sleep(0.05)  # a deletion overtakes it
        await put(key, value, ttl=ttl)

    monkeypatch.setattr(store, "put", slow_put)
    clients = [AppPeer(workers[0].asgi()) for _ in range(10)]
    results = await asyncio.gather(*[client.open(ready=False) for client in clients], return_exceptions=True)
    await eventually(lambda: not workers[0].engine.sessions._background)
    assert len(records(workers)) == len(workers[0].engine.sessions) == 2
    refused = [str(result) for result in results if isinstance(result, AssertionError)]
    assert len(refused) == 8
    assert all("as many sessions as it allows" in text for text in refused)
    kept = [client for client in clients if client.session]
    assert [await ping(client) for client in kept] == [200, 200]
    for client in clients:
        await client.leave()


async def test_a_session_that_ends_while_it_is_stored_leaves_no_record(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    await (await opened(workers[0])).delete()
    store, table = memory_of(workers).store, workers[0].engine.sessions
    put = store.put

    async def end_first(key: str, value: bytes, *, ttl: float) -> None:
        if ":session/" in key:
            for session in list(table._all()):
                table.end_soon(session)
            await asyncio.sleep(0.02)
        await put(key, value, ttl=ttl)

    monkeypatch.setattr(store, "put", end_first)
    client = AppPeer(workers[0].asgi())
    with pytest.raises(AssertionError, match="has ended before it was stored"):
        await client.open()
    assert records(workers) == []
    await client.leave()


async def test_a_record_that_may_have_been_stored_is_deleted_if_the_handshake_fails(make: Make) -> None:
    workers = make()
    await (await opened(workers[0])).delete()
    client, store = AppPeer(workers[0].asgi()), workers[0].engine.whole_backend.store
    store.is_deaf = True  # type: ignore[attr-defined] - of the yielding one
    with pytest.raises(AssertionError):
        await client.open()
    store.is_deaf = False  # type: ignore[attr-defined]
    await eventually(lambda: not workers[0].engine.sessions._background)
    assert records(workers) == []
    await client.leave()


async def test_live_parts_of_one_peer_are_released_at_another_worker_and_no_session_ends(make: Make) -> None:
    workers = make({}, {"sessions_per_peer": 2})
    clients = [await opened(workers[0]) for _ in range(4)]
    there = [client.on(workers[1].asgi()) for client in clients]
    for _ in range(2):
        assert [await ping(client) for client in there] == [200] * 4
        assert len(workers[1].engine.sessions) == 2
    assert len(records(workers)) == 4
    assert [await ping(client) for client in clients] == [200] * 4
    for client in clients:
        await client.leave()


# How many sessions.


async def open_from(app: Any, number: int, **options: Any) -> AppPeer:
    """A client with an address of its own."""
    client = AppPeer(app, address=f"10.0.{number // 250}.{number % 250 + 1}")
    await client.open(**options)
    return client


@pytest.mark.security("D8", "R12")
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("addresses", [11, 200])
async def test_a_client_with_many_addresses_leaves_no_more_records_than_there_may_be_sessions(
    make: Make, addresses: int, ready: bool
) -> None:
    workers = make(*[{"sessions": 10, "sessions_per_peer": 2}] * 2)
    await workers[1].start()
    app, store = workers[0].asgi(), memory_of(workers).store
    for number in range(200):
        client = await open_from(app, number % addresses, ready=ready)
        assert len(records(workers)) <= 11  # one is being deleted
    await eventually(lambda: not workers[0].engine.sessions._background)
    assert len(records(workers)) == len(workers[0].engine.sessions) == 10
    peers = Counter(json.loads(store._values[key])[4] for key in records(workers))
    assert max(peers.values()) <= 2
    assert await ping(client) == 200


@pytest.mark.security("D8", "R12")
@pytest.mark.parametrize(("addresses", "most"), [(1, 3), (12, 5)])
async def test_a_worker_that_has_only_sessions_in_use_refuses_those_that_others_have_opened(
    make: Make, addresses: int, most: int
) -> None:
    workers = make({}, {"sessions": 5, "sessions_per_peer": 3})
    app, other = (server.asgi() for server in workers)
    clients = [await open_from(app, number % addresses) for number in range(12)]
    there = [client.on(other) for client in clients]
    streams = [await client.get() for client in there]
    assert [stream.status for stream in streams] == [200] * most + [503] * (12 - most)
    assert [await ping(client) for client in there] == [200] * most + [503] * (12 - most)
    assert (await there[-1].delete()).status == 503
    assert len(workers[1].engine.sessions) == most
    assert [await ping(client) for client in clients] == [200] * 12
    await streams[0].close()
    await eventually(lambda: not local(workers[1], there[0]).in_use)
    assert await ping(there[-1]) == 200
    assert len(workers[1].engine.sessions) == most
    assert not any(stream.ended for stream in streams[1:most])
    await clients[-1].open()  # a handshake is not refused: this worker has opened no session yet
    for client in clients:
        await client.leave()


async def test_a_message_of_http_sse_is_refused_where_there_is_no_room_for_its_session(make: Make) -> None:
    workers = make({}, {"sessions": 1})
    here, there = (AppPeer(server.asgi(sse_path="/sse")) for server in workers)
    busy = (await opened(workers[0])).on(workers[1].asgi())
    await (await busy.get()).first()
    stream, post = await open_sse(here)
    assert (await post(there, message("ping", id=6))).status == 503
    await busy.leave()
    assert (await post(there, message("ping", id=7))).status == 202
    assert (await stream.message())["id"] == 7
    await here.leave()
    await there.leave()


@pytest.mark.parametrize("ready", [False, True])
async def test_a_worker_counts_a_session_that_it_has_opened_as_long_as_another_worker_uses_it(
    make: Make, ready: bool
) -> None:
    workers = make(*[{"sessions": 2}] * 2)
    first, second = [await opened(workers[0], ready=ready) for _ in range(2)]
    there, sessions = first.on(workers[1].asgi()), workers[0].engine.sessions
    assert await ping(there) == 200
    await sessions._end_if_over(local(workers[0], first))  # it was idle here for too long
    assert len(sessions) == 2
    third = await opened(workers[0])
    assert len(records(workers)) == 2
    assert [await ping(client) for client in (there, second, third)] == [200, 404, 200]
    await memory_of(workers).store.delete(f"attacked:session/{first.session}")  # as if it had expired
    await sessions._end_if_over(local(workers[0], first))
    assert len(sessions) == 1
    for client in (first, second, third):
        await client.leave()


async def test_a_session_that_ends_at_another_worker_makes_room(make: Make) -> None:
    workers = make(*[{"sessions": 1}] * 2)
    here, there = await both(workers)
    stream = await here.get()
    assert (await there.delete()).status == 204
    await stream.body(5)
    await opened(workers[0])
    await here.leave()


async def test_a_handshake_looks_at_a_few_sessions_and_the_next_one_at_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = session_table.MOST_LOOKS
    workers = make({"sessions": 2 * most}, {})
    clients = [await opened(workers[0]) for _ in range(2 * most)]
    idle, stranger = clients[most + 3], AppPeer(workers[0].asgi(), address="10.0.0.1")
    for client in clients:
        if client is not idle:
            assert await ping(client.on(workers[1].asgi())) == 200
    sets, looks = memory_of(workers).sets, []
    names = sets.names

    async def note(key: str) -> Any:
        looks.append(key)
        return await names(key)

    monkeypatch.setattr(sets, "names", note)
    with pytest.raises(AssertionError, match="as many sessions as it allows"):
        await stranger.open()
    assert looks == [f"attacked:users/{client.session}" for client in clients[:most]]
    await stranger.open()
    assert looks[most : most + 4] == [f"attacked:users/{client.session}" for client in clients[most : most + 4]]
    assert [await ping(client) for client in clients] == [404 if client is idle else 200 for client in clients]
    for client in clients:
        await client.leave()


async def test_handshakes_at_the_same_time_find_room_for_each_of_them(make: Make) -> None:
    most = 2 * session_table.MOST_LOOKS
    workers = make({"sessions": most}, {})
    old = [await opened(workers[0]) for _ in range(most)]
    new = [AppPeer(workers[0].asgi()) for _ in range(most)]
    await asyncio.gather(*[client.open() for client in new])
    await eventually(lambda: not workers[0].engine.sessions._background)
    assert len(records(workers)) == len(workers[0].engine.sessions) == most
    assert {await ping(client) for client in old} == {404}
    assert {await ping(client) for client in new} == {200}


async def test_a_session_that_is_used_while_its_marks_are_read_does_not_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make({"sessions": 2}, {})
    first, second = [await opened(workers[0]) for _ in range(2)]
    sets = memory_of(workers).sets
    names, looks = sets.names, []

    async def names_late(key: str) -> Any:
        found = await names(key)
        looks.append(key)
        if len(looks) == 1:
            assert await ping(first) == 200
        return found

    monkeypatch.setattr(sets, "names", names_late)
    third = await opened(workers[0])
    assert [key.partition("/")[2] for key in looks[:2]] == [first.session, second.session]
    assert [await ping(client) for client in (first, second, third)] == [200, 404, 200]


# Messages that are passed to other workers.


async def test_a_cancellation_at_another_worker_is_passed_on_with_a_short_reason(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    here, there = await both(workers)
    call = await here.post(called("hang", 7, progress="p"))
    await call.message()
    cancellation = local(workers[0], here).connection.in_flight[7]
    sent = spy_on_bus(workers, monkeypatch)
    params = {"requestId": 7, "reason": "é" * 100_000, "more": "x" * 100_000, "_meta": {"x": "x" * 100_000}}
    assert (await there.post(message("notifications/cancelled", params))).status == 202
    await eventually(lambda: cancellation.cancelled)
    assert cancellation.reason == "é" * 512
    assert [len(one) < 2000 for one in sent] == [True]
    for stray in ("x" * 100_000, 4711):
        params = {"requestId": stray, "reason": "x" * 100_000}
        assert (await there.post(message("notifications/cancelled", params))).status == 202
    assert [len(one) < 2000 for one in sent] == [True, True]  # no request has an id as long as the first of them
    await here.leave()


async def test_progress_is_passed_on_only_to_a_worker_that_has_asked(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make()
    here, there = await both(workers, capabilities={"roots": {}})
    stream = await here.get()
    await stream.first()
    call = await here.begin(called("watch", 7))
    question = await stream.question("roots/list")
    token = question["params"]["_meta"]["progressToken"]
    sent = spy_on_bus(workers, monkeypatch)
    worker = workers[0].engine.fleet.worker
    for stray in (1, "x" * 100_000, f"{worker}-1", f"{worker}-{'0' * 16}-1"):
        params = {"progressToken": stray, "progress": 1, "message": "x" * 100_000}
        assert (await there.post(message("notifications/progress", params))).status == 202
    assert sent == []
    params = {"progressToken": token, "progress": 0.5, "total": 1, "message": "é" * 100_000}
    assert (await there.post(message("notifications/progress", params))).status == 202
    await eventually(lambda: workers[0].progress)
    assert [len(one) < 2000 for one in sent] == [True]
    (told,) = workers[0].progress
    assert (told.progress, told.total, told.message) == (0.5, 1, "é" * 512)
    assert (await there.post(message("notifications/progress", {**params, "progress": 10**300}))).status == 202
    assert (await there.post(answer_to(question, {"roots": []}))).status == 202
    assert await (await call).text() == "done"
    await here.leave()


async def deaf(server: Server) -> None:
    """Let a worker hear no more, as if its connection to the backend was broken."""
    while server.engine.fleet._leave_bus:
        await server.engine.fleet._leave_bus.pop()()


@pytest.mark.parametrize("limit", ["session", "process"])
async def test_answers_that_wait_for_another_worker_are_bounded_and_keep_nobody_out(
    make: Make, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(fleet, "CONFIRM_SECONDS", 0.02)
    monkeypatch.setattr(fleet, "SEND_SECONDS", 1)
    most = session_table.MOST_PASSED_ON_PER_SESSION
    if limit == "process":
        monkeypatch.setattr(session_table, "MOST_PASSED_ON", most := 5)
    workers = make({"in_flight": 4}, {})
    here = await opened(workers[1], capabilities=FORM)
    call = await here.post(called("ask", 7))
    question = await call.question()
    name = question["id"].rpartition("-")[0]
    there = here.on(workers[0].asgi())
    await deaf(workers[1])
    answers: list[asyncio.Task[Any]] = []
    for number in range(most + 3):
        answers.append(asyncio.create_task(there.post(answer_to({"id": f"{name}-{number}"}, {}))))
        await asyncio.sleep(0.01)
    refused = [answer.result() for answer in answers if answer.done()]
    assert [(one.status, one.headers["retry-after"]) for one in refused] == [(503, "1")] * 3
    assert workers[0].engine.in_flight == 0
    assert await ping(await opened(workers[0])) == 200  # though they are more than `in_flight`
    assert Counter([(await answer).status for answer in answers]) == {503: most + 3}
    table = workers[0].engine.sessions
    assert (len(table._passed_on), local(workers[0], there).passed_on, workers[0].engine.in_flight) == (0, 0, 0)
    assert (await here.post(accept(question, "yes"))).status == 202
    assert await call.text() == "yes"
    await here.leave()


async def test_an_invented_answer_is_not_passed_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = make()
    here, there = await both(workers, capabilities=FORM)
    other, _ = await both(workers, capabilities=FORM)
    call = await here.post(called("ask", 7))
    question = await call.question()
    worker, _, rest = question["id"].partition("-")
    sent = spy_on_bus(workers, monkeypatch)
    stranger = other.on(workers[1].asgi())
    for client, id in (
        (there, f"{worker}-1"),
        (there, f"{worker}-{'0' * 16}-1"),
        (there, f"0123456789ab-{rest}"),
        (stranger, question["id"]),
    ):
        assert (await client.post(answer_to({"id": id}, {}))).status == 202
    assert sent == []
    assert (await there.post(accept(question, "yes"))).status == 202
    assert await call.text() == "yes"
    for client in (here, other):
        await client.leave()


# Streams that are resumed again and again.


class SlowLog:
    """Notes how a log is read, and takes its time."""

    def __init__(self, workers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
        log = memory_of(workers).log
        self.reads: list[int | None] = []
        self.now = self.peak = 0
        read = log.read

        async def slow(key: str, after: int, *, most: int | None = None) -> Any:
            self.reads.append(most)
            self.now += 1
            self.peak = max(self.peak, self.now)
            await asyncio.sleep(0.01)
            try:
                return await read(key, after, most=most)
            finally:
                self.now -= 1

        monkeypatch.setattr(log, "read", slow)


async def stepped(workers: list[Server], count: int) -> tuple[AppPeer, str]:
    """A client that has lost the stream of a call after its first event, and the id of that event."""
    client = await opened(workers[0])
    call = await client.post(called("steps", 7, progress="p", count=count))
    first = await call.next()
    for _ in range(count):
        await call.message()
    await call.close()
    return client, first.id or ""


async def test_a_resumed_stream_is_read_in_pages(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = make(*[{"progress_per_second": 0}] * 2)
    client, first = await stepped(workers, 100)
    log = SlowLog(workers, monkeypatch)
    rest = await client.on(workers[1].asgi()).get(first)
    seen = [(await rest.message())["params"]["progress"] for _ in range(100)]
    assert seen == list(range(100))
    workers[0].go_on.set()
    assert (await rest.message())["result"]
    assert all(most is not None and most <= 16 for most in log.reads)
    await client.leave()


@pytest.mark.parametrize("stream", ["call", "standalone"])
async def test_of_many_requests_for_one_stream_only_the_newest_reads_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    workers = make(*[{"progress_per_second": 0}] * 2)
    client, first = await stepped(workers, 20)
    if stream == "standalone":
        listening = await client.get()
        await listening.first()
        for _ in range(3):
            await local(workers[0], client).notify("notifications/some")
        first = (await listening.next()).id or ""
        await listening.close()
    log = SlowLog(workers, monkeypatch)
    gets = [asyncio.create_task(client.get(first)) for _ in range(30)]
    responses = await asyncio.gather(*gets)
    assert log.peak <= 1
    assert len(log.reads) < 15
    assert Counter(one.status for one in responses)[409] >= 25
    assert responses[-1].status == 200
    assert await responses[-1].message()
    assert local(workers[0], client).turns.keys() == {first.rpartition(".")[0]}
    workers[0].go_on.set()
    await client.leave()
    assert local(workers[0], client).turns == {}


async def test_a_stream_that_is_not_read_is_not_read_for_a_second_response_at_the_same_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make(*[{"progress_per_second": 0, "write_seconds": 0.3}] * 2)
    client, first = await stepped(workers, 20)
    older = await client.get(first)
    older.stall()
    log = SlowLog(workers, monkeypatch)
    newer = asyncio.create_task(client.get(first))
    workers[0].engine.sessions.streams._readers.clear()
    await local(workers[0], client).streams.append(client.session, first.rpartition(".")[0], b"{}")
    newer_too = asyncio.create_task(client.get(first))
    assert (await newer).status == 409
    assert (await newer_too).status == 200  # after `write_seconds`
    assert log.peak <= 1
    await client.leave()


async def test_a_cancelled_request_for_a_stream_does_not_block_the_next(make: Make) -> None:
    workers = make()
    client, first = await stepped(workers, 3)
    older = await client.get(first)
    older.stall()
    await asyncio.sleep(0.02)
    turn = next(iter(local(workers[0], client).turns.values()))
    waiting = asyncio.create_task(turn.take())
    await asyncio.sleep(0)
    assert turn.is_wanted
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not turn.is_wanted
    late = asyncio.create_task(turn.take())
    await asyncio.sleep(0)
    turn.pass_on()
    late.cancel()  # at the same moment
    await asyncio.gather(late, return_exceptions=True)
    assert not turn.is_taken
    await client.leave()


# Records.


async def test_subscriptions_at_several_workers_at_once_do_not_exceed_the_limit(make: Make) -> None:
    workers = make(*[{"listen_uris": 1}] * 2)
    here, there = await both(workers)
    requests = [
        client.post(message("resources/subscribe", {"uri": f"a://{n}"}, n)) for n, client in enumerate((here, there))
    ]
    answers = [await response.json() for response in await asyncio.gather(*requests)]
    assert sorted("error" in answer for answer in answers) == [False, True]
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == [-32602]
    assert [await ping(client) for client in (here, there)] == [200, 200]
    assert [len(local(server, here).connection.subscribed_uris) for server in workers] == [1, 1]
    await here.leave()


@pytest.mark.parametrize("junk", [b"", b"[]", b"\xff", b'["\xff"]', b'{"a":1}'])
async def test_a_record_that_is_not_valid_is_no_session(
    make: Make, caplog: pytest.LogCaptureFixture, junk: bytes
) -> None:
    session_module._seldom._counts.clear()
    workers = make()
    client = await opened(workers[0])
    await memory_of(workers).store.put(f"attacked:session/{client.session}", junk, ttl=60)
    there = client.on(workers[1].asgi())
    assert [await ping(there), await ping(there)] == [404, 404]
    level = await client.post(message("logging/setLevel", {"level": "error"}, 3))  # where it has a live part
    assert level.status == 200
    local(workers[0], client).news += 1
    assert await ping(client) == 404
    assert "its record in the Backend is not valid" in caplog.text
    await client.leave()


async def test_many_changes_of_one_session_are_few_small_messages(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = make()
    here, there = await both(workers, capabilities={"experimental": {"x": {"y": "z" * 50_000}}})
    store, swaps = memory_of(workers).store, 0
    swap = store.swap

    async def slow_swap(*args: Any, **options: Any) -> bool:
        nonlocal swaps
        swaps += 1
        await asyncio.sleep(0.01)
        return await swap(*args, **options)

    monkeypatch.setattr(store, "swap", slow_swap)
    sent = spy_on_bus(workers, monkeypatch)
    levels = ["debug", "error"] * 20
    requests = [here.post(message("logging/setLevel", {"level": level}, n)) for n, level in enumerate(levels, 20)]
    answers = [await one.json() for one in await asyncio.gather(*requests)]
    assert all("result" in answer for answer in answers)
    assert swaps <= 3
    assert sum(map(len, sent)) < 1000
    assert await ping(there) == 200
    assert local(workers[1], there).connection.log_level == local(workers[0], here).connection.log_level
    stored = json.loads(await store.get(f"attacked:session/{here.session}"))
    assert stored[6] == local(workers[0], here).connection.log_level
    await here.leave()
