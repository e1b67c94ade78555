"""Limits of requests of one principal or address, counted by all workers together."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import FORM, AppPeer, Exchange, Reply, accept, called, eventually, message, open_sse
from weft import Context, Limits, MemoryBackend, Server
from weft.jsonrpc import Frame
from weft.server.runtime import peer_limits

CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
REQUEST = Frame(method="tools/call", id=1)


class Clock:
    """Time as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that says how long nothing is counted after the backend has failed."""
    clock = Clock()
    monkeypatch.setattr(peer_limits, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, even a backend in memory may take longer than it may take elsewhere."""
    monkeypatch.setattr(peer_limits, "COUNT_SECONDS", 60.0)


def counted(backend: MemoryBackend) -> int:
    """The requests that are counted as running now, of all clients at all workers."""
    return sum(len(names.until) for key, names in backend.sets._sets.items() if "busy/" in key)


def make_worker(backend: Any, **limits: Any) -> Server:
    server = Server("limited", backend=backend, limits=Limits(drain_seconds=0.2, **limits))
    server.running = 0
    server.go_on = asyncio.Event()

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def hold(ctx: Context, leaves: bool = False) -> str:
        server.running += 1
        try:
            await ctx.report_progress(1)
            if leaves:
                await ctx.close_stream()
            await server.go_on.wait()
        finally:
            server.running -= 1
        return "held"

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("go on?", Reply)).value.value

    return server


async def test_one_minute_is_one_minute_for_all_workers_together() -> None:
    clock = Clock()
    backend = MemoryBackend(clock)
    workers = [make_worker(backend, requests_per_minute=6) for _ in range(2)]
    ann, bob = ([AppPeer(server.asgi(), subject=subject) for server in workers] for subject in ("ann", "bob"))
    answers = [await ann[number % 2].stateless("tools/call", CALL, id=number) for number in range(8)]
    assert [answer.status for answer in answers] == [200] * 6 + [429] * 2
    refused = answers[-1]
    assert refused.headers["retry-after"] == "10"
    error = (await refused.json())["error"]
    assert error["code"] == -32603
    assert "6 requests per minute" in error["message"]
    assert (await bob[0].stateless("tools/call", CALL)).status == 200  # somebody else
    assert (await AppPeer(workers[0].asgi(), address="10.0.0.1").stateless("tools/call", CALL)).status == 200
    clock.now += 10
    assert [(await peer.stateless("tools/call", CALL)).status for peer in ann] == [200, 429]
    for server in workers:
        await server.stop()


async def test_a_request_of_a_session_counts_too() -> None:
    server = make_worker(MemoryBackend(Clock()), requests_per_minute=2)
    peer = AppPeer(server.asgi())
    await peer.open()  # one request, and one notification
    assert (await peer.post(called("add", a=1, b=1))).status == 200
    assert (await peer.post(called("add", a=1, b=1))).status == 429
    assert (await peer.get()).status == 200  # streams do not count
    assert (await peer.delete()).status == 204
    await server.stop()
    await peer.leave()


async def test_a_client_without_permits_for_requests_can_answer_and_cancel() -> None:
    server = make_worker(MemoryBackend(Clock()), requests_per_minute=3)
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)  # one request, and one notification
    asking, waiting = await peer.post(called("ask", 1)), await peer.post(called("hold", 2, progress="p"))
    question = await asking.question()
    await eventually(lambda: server.running == 1)
    assert (await peer.post(called("add", 3, a=1, b=1))).status == 429
    assert (await peer.post(accept(question, "yes"))).status == 202
    assert (await asking.message())["result"]["content"][0]["text"] == "yes"
    cancel = message("notifications/cancelled", {"requestId": 2})
    assert (await peer.post(cancel)).status == 202
    await eventually(lambda: server.running == 0)
    refused = await peer.post(cancel)
    assert refused.status == 429
    assert "3 answers and notifications per minute" in (await refused.json())["error"]["message"]
    await waiting.close()
    await server.stop()
    await peer.leave()


async def test_so_many_at_once_at_all_workers_together() -> None:
    backend = YieldingBackend()
    a, b = (make_worker(backend, requests_at_once=3) for _ in range(2))
    here, there = AppPeer(a.asgi()), AppPeer(b.asgi())
    listening = await here.stateless("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert listening.status == 200  # does not count
    hold = {"name": "hold", "arguments": {}}
    held = [asyncio.create_task(peer.stateless("tools/call", hold, id=n)) for n, peer in enumerate([here, there, here])]
    await eventually(lambda: a.running + b.running == 3)
    for peer in (here, there):
        refused = await peer.stateless("tools/call", CALL)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    a.go_on.set()
    await asyncio.wait(held[::2])
    await eventually(lambda: counted(backend.memory) == 1)
    assert (await there.stateless("tools/call", CALL)).status == 200
    b.go_on.set()
    await asyncio.wait(held)
    await eventually(lambda: counted(backend.memory) == 0)
    for server in (a, b):
        await server.stop()
    await here.leave()


async def test_requests_for_the_results_of_tasks_do_not_count() -> None:
    """Else a client that waits for its tasks could not cancel them. `Limits.task_waits` bounds them."""
    server = make_worker(None, requests_at_once=1)

    @server.tool(task="optional")
    async def paint() -> str:
        await server.go_on.wait()
        return "painted"

    peer = AppPeer(server.asgi())
    await peer.open()
    created = await peer.post(message("tools/call", {"name": "paint", "arguments": {}, "task": {}}, 1))
    task = {"taskId": (await created.result())["task"]["taskId"]}
    waiting = [await peer.begin(message("tasks/result", task, number)) for number in (2, 3)]
    await eventually(lambda: len(server.engine.task_waits) == 2)
    assert (await peer.post(message("tasks/get", task, 4))).status == 200
    server.go_on.set()
    assert [await (await one).text() for one in waiting] == ["painted"] * 2
    await server.stop()
    await peer.leave()


async def test_so_many_at_once_at_all_apps_of_a_server_together() -> None:
    server = make_worker(None, requests_at_once=2)
    hold = {"name": "hold", "arguments": {}}
    peers = [AppPeer(server.asgi()), AppPeer(server.asgi("/other"))]
    peers[1].scope["path"] = "/other"
    held = [asyncio.create_task(peer.stateless("tools/call", hold)) for peer in peers]
    await eventually(lambda: server.running == 2)
    assert [(await peer.stateless("tools/call", CALL)).status for peer in peers] == [429, 429]
    server.go_on.set()
    assert [(await one).status for one in held] == [200, 200]
    await server.stop()


async def test_a_client_at_the_limit_can_answer_and_cancel() -> None:
    server = make_worker(None, requests_at_once=2)
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)
    calls = [await peer.post(called("ask", number)) for number in (1, 2)]
    questions = [await call.question() for call in calls]
    assert (await peer.post(called("add", 3, a=1, b=1))).status == 429
    assert (await peer.post(accept(questions[0], "yes"))).status == 202
    assert await calls[0].text() == "yes"
    assert (await peer.post(message("notifications/cancelled", {"requestId": 2}))).status == 202
    await calls[1].body()
    assert (await peer.post(called("add", 4, a=1, b=1))).status == 200
    await server.stop()
    await peer.leave()


async def resume(peer: AppPeer, call: Exchange) -> None:
    await peer.get((await call.next()).id)


async def cancel_by_asgi_server(peer: AppPeer, call: Exchange) -> None:
    call.task.cancel()


async def close_stream(peer: AppPeer, call: Exchange) -> None:
    """The handler does it."""


@pytest.mark.security("R12")
@pytest.mark.parametrize("end", [resume, cancel_by_asgi_server, close_stream])
async def test_a_call_of_a_session_counts_until_it_has_ended(end: Callable[[AppPeer, Exchange], Any]) -> None:
    server = make_worker(MemoryBackend(), requests_at_once=2)
    peer = AppPeer(server.asgi())
    await peer.open()
    for number in (1, 2):
        call = await peer.post(called("hold", number, progress=number, leaves=end is close_stream))
        await end(peer, call)
        await asyncio.wait([call.task])
    assert server.running == counted(server.backend) == 2
    refused = await peer.post(called("hold", 3))
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert (await peer.post(message("notifications/cancelled", {"requestId": 1}))).status == 202
    await eventually(lambda: counted(server.backend) == 1)
    assert await (await peer.post(called("add", 4, a=1, b=1))).text() == "2"
    server.go_on.set()
    await eventually(lambda: counted(server.backend) == 0)
    await server.stop()
    await peer.leave()


async def test_a_batch_counts_as_one_until_its_last_call_has_ended() -> None:
    server = make_worker(MemoryBackend(), requests_at_once=1)
    peer = AppPeer(server.asgi())
    await peer.open("2025-03-26")
    calls = [called("hold", number, progress=number) for number in (1, 2)]
    batch = await peer.post([called("add", 0, a=1, b=1), *calls])
    await resume(peer, batch)
    await asyncio.wait([batch.task])
    for number in (1, 2):
        await eventually(lambda left=3 - number: server.engine.in_flight == left)
        await asyncio.sleep(0.02)
        assert (server.running, counted(server.backend)) == (3 - number, 1)
        assert (await peer.post(called("add", 3, a=1, b=1))).status == 429
        assert (await peer.post(message("notifications/cancelled", {"requestId": number}))).status == 202
    await eventually(lambda: counted(server.backend) == 0)
    await server.stop()
    await peer.leave()


@pytest.mark.security("R12")
async def test_a_call_over_http_sse_counts_until_it_has_ended() -> None:
    backend = MemoryBackend()
    a, b = (make_worker(backend, requests_at_once=2) for _ in range(2))
    here, there = (AppPeer(server.asgi(sse_path="/sse")) for server in (a, b))
    stream, post = await open_sse(here)
    await eventually(lambda: counted(a.backend) == 0)
    for number, peer in ((1, here), (2, there)):
        assert (await post(peer, called("hold", number))).status == 202
    await eventually(lambda: a.running + b.running == 2)
    for peer in (here, there):
        refused = await post(peer, called("hold", 3))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert (await post(here, message("notifications/cancelled", {"requestId": 1}))).status == 202
    await eventually(lambda: counted(a.backend) == 1)
    assert (await post(there, called("add", 4, a=1, b=1))).status == 202
    assert (await stream.message())["id"] == 4
    b.go_on.set()
    assert (await stream.message())["id"] == 2
    await eventually(lambda: counted(a.backend) == 0)
    for peer in (here, there):
        await peer.leave()
    for server in (a, b):
        await server.stop()


async def test_a_batch_over_http_sse_counts_as_one() -> None:
    server = make_worker(MemoryBackend(), requests_at_once=1)
    peer = AppPeer(server.asgi(sse_path="/sse"))
    _, post = await open_sse(peer, "2025-03-26")
    await eventually(lambda: counted(server.backend) == 0)
    assert (await post(peer, [called("hold", number) for number in (1, 2)])).status == 202
    await eventually(lambda: server.running == 2)
    assert (await post(peer, [called("hold", 3)])).status == 429
    cancel = [message("notifications/cancelled", {"requestId": number}) for number in (1, 2)]
    assert (await post(peer, cancel)).status == 202
    await eventually(lambda: counted(server.backend) == 0)
    await peer.leave()
    await server.stop()


@pytest.mark.parametrize("is_sse", [False, True])
async def test_a_session_that_ends_while_a_batch_is_counted_is_gone(
    is_sse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_worker(MemoryBackend(), requests_at_once=1)
    peer = AppPeer(server.asgi(sse_path="/sse"))
    if is_sse:
        _, post = await open_sse(peer, "2025-03-26")
    else:
        await peer.open("2025-03-26")
    await eventually(lambda: counted(server.backend) == 0)
    add = server.backend.sets.add

    async def slow(*args: Any, **options: Any) -> bool:
        for session in list(server.engine.sessions._all()):
            await server.engine.sessions.end(session)
        return await add(*args, **options)

    with monkeypatch.context() as patches:
        patches.setattr(server.backend.sets, "add", slow)
        batch = [called("hold", 1)]
        assert (await (post(peer, batch) if is_sse else peer.post(batch))).status == 404
    assert server.running == 0
    await eventually(lambda: counted(server.backend) == 0)
    await peer.leave()
    await server.stop()


async def test_a_batch_counts_if_it_has_a_request() -> None:
    server = make_worker(None, requests_at_once=1)
    peer = AppPeer(server.asgi())
    await peer.open("2025-03-26")
    held = await peer.begin([called("hold", 1), called("add", 2, a=1, b=1)])
    await eventually(lambda: server.running == 1)
    assert (await peer.post([called("add", 3, a=1, b=1)])).status == 429
    assert (await peer.post(b"[1")).status == 400  # as without a limit
    answer = {"jsonrpc": "2.0", "id": "0-1", "result": {}}
    assert (await peer.post([answer, message("notifications/cancelled", {"requestId": 1})])).status == 202
    assert [one["id"] for one in await (await held).json()] == [2]
    assert (await peer.post([called("add", 4, a=1, b=1)])).status == 200
    await server.stop()
    await peer.leave()


@pytest.mark.security("R12")
async def test_a_header_does_not_make_a_call_a_stream_that_is_not_counted() -> None:
    server = make_worker(None, requests_at_once=1)
    peer = AppPeer(server.asgi())
    await peer.open()
    held = await peer.begin(called("hold"))
    await eventually(lambda: server.running == 1)
    assert (await peer.post(called("hold", 2), Mcp_Method="subscriptions/listen")).status == 429
    server.go_on.set()
    assert (await held).status == 200
    await server.stop()
    await peer.leave()


async def test_a_request_right_after_another_is_renewed_too() -> None:
    limits = peer_limits.PeerLimits.for_limits(MemoryBackend(), Limits(requests_at_once=1), "w")
    assert limits is not None
    async with limits.hold("ann", [REQUEST]):
        await asyncio.sleep(0)
    async with limits.hold("ann", [REQUEST]):  # in the same turn of the event loop
        await asyncio.sleep(0)
        with pytest.raises(peer_limits.TooMany, match=r"^1 of your requests is being served\. "):
            await limits._hold(next(iter(limits._held.values())))
        assert limits._renewing is not None
        assert not limits._renewing.done()


async def test_a_request_that_ends_while_it_is_renewed_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_limits, "HOLD_SECONDS", 0.3)
    backend = MemoryBackend(Clock())  # nothing expires
    add, go_on, renewing, renewed = backend.sets.add, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        if most is not None or name != "w-2":
            return await add(key, name, ttl=ttl, most=most)
        renewing.set()
        await go_on.wait()
        renewed.set()
        return await add(key, name, ttl=ttl, most=most)

    monkeypatch.setattr(backend.sets, "add", slow)
    limits = peer_limits.PeerLimits(backend, Limits(requests_at_once=2), "w")
    async with limits.hold("ann", [REQUEST]):
        async with limits.hold("ann", [REQUEST]):
            await renewing.wait()
        go_on.set()
        await renewed.wait()
        (key,) = backend.sets._sets
        assert await backend.sets.names(key) == ["w-1"]


async def test_what_takes_long_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_limits, "HOLD_SECONDS", 0.3)
    clock = Clock()
    backend = MemoryBackend(clock)
    add, renewals = backend.sets.add, 0

    async def watched(key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        nonlocal renewals
        renewals += "busy/" in key and most is None
        return await add(key, name, ttl=ttl, most=most)

    monkeypatch.setattr(backend.sets, "add", watched)
    server = make_worker(backend, requests_at_once=1)
    peer = AppPeer(server.asgi())
    held = asyncio.create_task(peer.stateless("tools/call", {"name": "hold", "arguments": {}}))
    await eventually(lambda: server.running == 1)
    for _ in range(3):
        clock.now += 0.2
        await eventually(lambda before=renewals: renewals > before)
    assert (await peer.stateless("tools/call", CALL)).status == 429
    server.go_on.set()
    assert (await held).status == 200
    await eventually(lambda: counted(backend) == 0)
    assert (await peer.stateless("tools/call", CALL)).status == 200
    await eventually(lambda: counted(backend) == 0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "weft-peer-limits" and not task.cancelling()]
    await server.stop()


async def test_where_the_backend_fails_nobody_is_kept_out(caplog: pytest.LogCaptureFixture) -> None:
    backend = YieldingBackend()
    server = make_worker(backend, requests_per_minute=1, requests_at_once=1)
    peer = AppPeer(server.asgi())
    assert (await peer.stateless("tools/call", CALL)).status == 200
    await eventually(lambda: counted(backend.memory) == 0)  # it is over
    backend.store.is_gone = backend.sets.is_gone = True
    for _ in range(3):
        assert (await peer.stateless("tools/call", CALL)).status == 200
    assert "Requests are not counted now, because the backend failed" in caplog.text
    await server.stop()


async def test_a_backend_that_hangs_is_waited_for_once_in_some_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = YieldingBackend()
    server = make_worker(backend, requests_per_minute=1, requests_at_once=1)
    await server.start()
    peer, waited = AppPeer(server.asgi()), 0

    async def hang(*_: Any, **__: Any) -> Any:
        nonlocal waited
        waited += 1
        await asyncio.Event().wait()

    with monkeypatch.context() as patches:
        patches.setattr(peer_limits, "COUNT_SECONDS", 0.1)
        for part, method in ((backend.store, "take"), (backend.sets, "add")):
            patches.setattr(part, method, hang, raising=False)
        for _ in range(5):
            assert (await peer.stateless("tools/call", CALL)).status == 200
        assert waited == 1
        clock.now += peer_limits.AWAY_SECONDS
        assert (await peer.stateless("tools/call", CALL)).status == 200
        assert waited == 2
    clock.now += peer_limits.AWAY_SECONDS
    assert (await peer.stateless("tools/call", CALL)).status == 200
    assert (await peer.stateless("tools/call", CALL)).status == 429  # it is counted again
    await server.stop()


async def test_a_request_that_ends_while_the_backend_is_away_is_not_counted_for_long(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_limits, "HOLD_SECONDS", 0.3)
    backend = MemoryBackend(Clock())  # nothing expires

    async def fail(*_: Any) -> bool:
        raise ConnectionError("the store is gone")

    limits = peer_limits.PeerLimits.for_limits(backend, Limits(requests_at_once=1), "w")
    assert limits is not None
    with monkeypatch.context() as patches:
        patches.setattr(backend.sets, "remove", fail)
        async with limits.hold("ann", [REQUEST]):
            pass
    assert counted(backend) == 1
    clock.now += peer_limits.AWAY_SECONDS
    await eventually(lambda: counted(backend) == 0)
    await eventually(lambda: limits._renewing is None or limits._renewing.done())


async def test_without_limits_nothing_is_counted() -> None:
    server = make_worker(None)
    assert server.asgi()._peer_limits is None
    assert (await AppPeer(server.asgi()).request("POST", message("ping", id=1), session=None)).status == 400
