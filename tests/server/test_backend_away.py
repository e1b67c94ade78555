"""The backend cannot be reached for a while: who needs it is told to try again, and nothing is lost or told twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import FORM, AppPeer, Reply, accept, called, eventually, message
from weft import Context, Limits, Server
from weft.errors import BackendUnavailable
from weft.server.http import session_reply
from weft.server.runtime import fleet
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY


def make_worker(backend: Any) -> Server:
    server = Server("away", backend=backend, limits=Limits(drain_seconds=0.2, progress_per_second=0))
    server.go_on = asyncio.Event()

    @server.tool
    async def once(ctx: Context) -> str:
        await ctx.elicit("go on?", Reply)
        return await ctx.once("name", lambda: "done")

    @server.tool
    async def direct(ctx: Context, told: bool = False) -> str:
        if told:
            await ctx.report_progress(1)
        await ctx.server.backend.store.get("anything")
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("go on?", Reply)).value.value

    @server.tool
    async def steps(ctx: Context, first: int, then: int) -> str:
        for number in range(first):
            await ctx.report_progress(number)
        await ctx.server.go_on.wait()
        for number in range(first, first + then):
            await ctx.report_progress(number)
        return "done"

    @server.tool
    async def polls(ctx: Context) -> str:
        await ctx.report_progress(1)
        await ctx.server.go_on.wait()
        await ctx.close_stream(0.01)
        return "done"

    @server.tool(single_use=True)
    async def single(ctx: Context) -> str:
        await ctx.elicit("go on?", Reply)
        await ctx.server.before_once()
        return await ctx.once("name", lambda: "done")

    return server


@pytest.fixture
async def workers() -> AsyncIterator[list[Server]]:
    backend = YieldingBackend()
    for part in (backend.store, backend.log, backend.bus):
        part.failure = BackendUnavailable("The backend is away.")
    made = [make_worker(backend) for _ in range(2)]
    for server in made:
        await server.start()
    yield made
    for server in made:
        await server.stop()
        assert server.engine.sessions.streams._open == {}


def parts(workers: list[Server]) -> Any:
    return workers[0].engine.whole_backend


# A call that needs the backend.


async def test_a_call_that_needs_it_is_answered_with_503_and_may_be_repeated(workers: list[Server]) -> None:
    peer, meta = AppPeer(workers[0].asgi()), {CLIENT_CAPABILITIES_KEY: FORM}
    asked = await (await peer.stateless("tools/call", {"name": "once"}, meta=meta)).result()
    answers = {key: {"action": "accept", "content": {"value": "yes"}} for key in asked["inputRequests"]}
    again = {"name": "once", "inputResponses": answers, "requestState": asked["requestState"]}
    parts(workers).store.is_gone = True
    refused = await peer.stateless("tools/call", again, meta=meta)
    assert (await refused.refusal(), refused.headers["retry-after"]) == ((503, -32603), "1")
    assert (await refused.json())["error"]["message"] == "The server's backend is not available. Try again."
    parts(workers).store.is_gone = False
    assert await (await peer.stateless("tools/call", again, meta=meta)).text() == "done"
    await peer.leave()


@pytest.mark.parametrize("is_away", [False, True], ids=["back", "away"])
async def test_a_round_that_is_used_once_is_given_back_or_the_call_must_begin_again(
    workers: list[Server], is_away: bool
) -> None:
    peer, meta, store = AppPeer(workers[0].asgi()), {CLIENT_CAPABILITIES_KEY: FORM}, parts(workers).store
    runs = 0

    async def fail_first() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:  # the first round has not come so far
            store.is_gone = is_away
            raise BackendUnavailable("The backend is away.")

    workers[0].before_once = fail_first  # type: ignore[attr-defined] - for the tests alone
    asked = await (await peer.stateless("tools/call", {"name": "single"}, meta=meta)).result()
    answers = {key: {"action": "accept", "content": {"value": "yes"}} for key in asked["inputRequests"]}
    again = {"name": "single", "inputResponses": answers, "requestState": asked["requestState"]}
    refused = await peer.stateless("tools/call", again, meta=meta)
    store.is_gone = False
    text = (await refused.json())["error"]["message"]
    repeated = await peer.stateless("tools/call", again, meta=meta)
    if is_away:
        assert (refused.status, text.endswith("Begin the call again.")) == (200, True)
        assert "retry-after" not in refused.headers
        assert (await repeated.json())["error"]["code"] == -32602  # it is used
    else:
        assert (refused.status, text) == (503, "The server's backend is not available. Try again.")
        assert await repeated.text() == "done"
    await peer.leave()


@pytest.mark.parametrize("told", [False, True], ids=["json", "stream"])
async def test_a_call_in_a_session_that_needs_it_fails_with_an_error_that_says_so(
    workers: list[Server], told: bool
) -> None:
    peer = AppPeer(workers[0].asgi())
    await peer.open()
    parts(workers).store.is_gone = True
    refused = await peer.post(called("direct", progress="p", told=told))
    assert refused.status == (200 if told else 503)
    answer = await refused.json()
    assert answer["error"] == {"code": -32603, "message": "The server's backend is not available. Try again."}
    parts(workers).store.is_gone = False
    await peer.leave()


# An answer for another worker.


async def test_an_answer_that_cannot_be_passed_on_is_not_accepted_and_may_be_repeated(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SEND_SECONDS", 0.2)
    here = AppPeer(workers[0].asgi())
    await here.open(capabilities=FORM)
    there = here.on(workers[1].asgi())
    asking = await here.post(called("ask"))
    question = await asking.question()
    bus = parts(workers).bus._inner
    publish = bus.publish

    async def lose(topic: str, body: bytes) -> int:
        return 1 if "worker/" in topic else await publish(topic, body)

    monkeypatch.setattr(bus, "publish", lose)
    refused = await there.post(accept(question, "yes"))
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    monkeypatch.setattr(bus, "publish", publish)
    assert (await there.post(accept(question, "yes"))).status == 202
    assert await asking.text() == "yes"
    await here.leave()


# Streams.


async def begin(workers: list[Server], first: int, then: int) -> tuple[AppPeer, Any]:
    """A call whose client has lost the connection after the first events."""
    client = AppPeer(workers[0].asgi())
    await client.open()
    call = await client.post(called("steps", 7, progress="p", first=first, then=then))
    for _ in range(first):
        await call.message()
    await call.close()
    return client, call


async def rest_of(client: AppPeer, last: str) -> tuple[list[int], str]:
    """The numbers and the answer after an event."""
    rest = [event.data async for event in (await client.get(last)).rest() if event.data]
    *told, answer = rest
    return [one["params"]["progress"] for one in told], answer["result"]["content"][0]["text"]


@pytest.mark.spec("L11-17")
async def test_events_that_could_not_be_stored_are_stored_later_and_in_order(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_reply, "_LATE_SECONDS", 0.05)
    client, call = await begin(workers, 2, 3)
    log = parts(workers).log
    log.is_gone = True
    workers[0].go_on.set()
    session = workers[0].engine.sessions._local(client.session)
    await eventually(lambda: not session.open_streams)  # the call is over, and nothing of it is stored
    await asyncio.sleep(0.1)
    log.is_gone = False
    assert await rest_of(client.on(workers[1].asgi()), call.events[-1].id) == ([2, 3, 4], "done")
    await client.leave()


@pytest.mark.security("R12")
@pytest.mark.parametrize("steps", [3, 300])  # the second one has more than `replay_events`
async def test_events_that_could_not_be_stored_are_bounded_and_the_client_sees_the_gap(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(session_reply, "_LATE_SECONDS", 0.05)
    client, call = await begin(workers, 2, steps)
    streams, limits = workers[0].engine.sessions.streams, workers[0].engine.limits
    of_others = limits.replay_bytes - 100 if steps == 3 else 0
    streams.unstored_bytes += of_others
    parts(workers).log.is_gone = True
    workers[0].go_on.set()
    session = workers[0].engine.sessions._local(client.session)
    await eventually(lambda: not session.open_streams)  # the call is over, and nothing of it is stored
    assert of_others <= streams.unstored_bytes <= limits.replay_bytes
    assert streams.unstored_bytes < of_others + 300 * 100
    parts(workers).log.is_gone = False
    await eventually(lambda: streams.unstored_bytes == of_others)
    streams.unstored_bytes -= of_others
    there = client.on(workers[1].asgi())
    async with asyncio.timeout(10):
        while (resumed := await there.get(call.events[-1].id)).status != 400:
            await resumed.close()
            await asyncio.sleep(0.02)
    await client.leave()


@pytest.mark.spec("L11-17")
async def test_an_event_that_was_stored_although_that_seemed_to_fail_is_told_once(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_reply, "_LATE_SECONDS", 0.05)
    client, call = await begin(workers, 2, 3)
    log = parts(workers).log
    append, failures = log._inner.append, 0

    async def append_and_fail(*args: Any, **options: Any) -> int:
        nonlocal failures
        number = await append(*args, **options)
        if failures < 3:
            failures += 1
            raise BackendUnavailable("no answer came")
        return number

    monkeypatch.setattr(log._inner, "append", append_and_fail)
    workers[0].go_on.set()
    assert await rest_of(client.on(workers[1].asgi()), call.events[-1].id) == ([2, 3, 4], "done")
    assert failures == 3
    await client.leave()


async def test_the_events_of_a_long_outage_are_stored_while_the_call_goes_on(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_reply, "_LATE_SECONDS", 0.05)
    client = AppPeer(workers[0].asgi())
    await client.open()
    call = await client.post(called("polls", 7, progress="p"))
    first = await call.next()
    parts(workers).log.is_gone = True
    await call.close()
    workers[0].go_on.set()  # `close_stream` does nothing: the client could not come back
    session = workers[0].engine.sessions._local(client.session)
    await eventually(lambda: not session.open_streams)
    parts(workers).log.is_gone = False
    assert await rest_of(client.on(workers[1].asgi()), first.id) == ([1], "done")
    await client.leave()


async def test_a_resumed_stream_has_the_answer_after_an_event_was_stored_late(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_reply, "_LATE_SECONDS", 0.01)
    client, call = await begin(workers, 2, 3)
    waiting = await client.get(call.events[-1].id)
    await waiting.first()
    await asyncio.sleep(0.05)  # it waits for the next event
    log = parts(workers).log._inner
    append, failures = log.append, 0

    async def fail_once(*args: Any, **options: Any) -> int:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise BackendUnavailable("The backend is away.")
        return await append(*args, **options)

    monkeypatch.setattr(log, "append", fail_once)
    waiting.stall()  # the client is slow, so the call is over before the answer is read
    workers[0].go_on.set()
    session = workers[0].engine.sessions._local(client.session)
    await eventually(lambda: not session.open_streams and not workers[0].engine.sessions._background)
    waiting._stalled.set()
    *told, answer = [event.data async for event in waiting.rest() if event.data]
    assert [one["params"]["progress"] for one in told] == [2, 3, 4]
    assert answer["result"]["content"][0]["text"] == "done"
    await client.leave()


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_stream_is_closed_early_only_while_its_events_can_be_stored(
    workers: list[Server], is_back: bool
) -> None:
    client = AppPeer(workers[0].asgi())
    await client.open()
    log = parts(workers).log
    log.is_gone = True
    call = await client.post(called("polls", 7, progress="p"))
    assert (await call.message())["params"]["progress"] == 1
    log.is_gone = not is_back
    workers[0].go_on.set()
    events = [event async for event in call.rest()]
    if is_back:
        (last,) = events
        assert (last.retry, last.data) == ("10", None)
        assert await rest_of(client.on(workers[1].asgi()), last.id) == ([], "done")
    else:
        assert [event.data["result"]["content"][0]["text"] for event in events] == ["done"]
    await client.leave()


@pytest.mark.parametrize("is_connected", [False, True])
async def test_a_backend_that_hangs_does_not_hold_up_each_event(
    workers: list[Server], monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    client = AppPeer(workers[0].asgi())
    await client.open()
    call = await client.post(called("steps", 7, progress="p", first=1, then=100))
    await call.message()
    log, attempts = parts(workers).log._inner, 0

    async def hang(*args: Any, **options: Any) -> int:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0.3)
        raise BackendUnavailable("The backend is away.")

    append = log.append
    monkeypatch.setattr(log, "append", hang)
    if not is_connected:
        await call.close()
    workers[0].go_on.set()
    session = workers[0].engine.sessions._local(client.session)
    await eventually(lambda: not session.open_streams, 2)
    if is_connected:
        *told, answer = [event.data async for event in call.rest()]
        assert [one["params"]["progress"] for one in told] == list(range(1, 101))
        assert answer["result"]["content"][0]["text"] == "done"
        assert attempts == 1
    else:
        monkeypatch.setattr(log, "append", append)
        there = client.on(workers[1].asgi())
        assert await rest_of(there, call.events[-1].id) == (list(range(1, 101)), "done")
    await client.leave()


async def test_a_resumed_stream_that_cannot_be_read_ends_and_is_resumed_again(workers: list[Server]) -> None:
    client, call = await begin(workers, 2, 3)
    there = client.on(workers[1].asgi())
    waiting = await there.get(call.events[-1].id)
    await waiting.first()
    parts(workers).log.is_gone = True
    workers[1].engine.sessions._local(client.session).wake_streams()
    assert await waiting.body(5) == b""
    await waiting.task  # it does not raise: the response has had its head
    assert (await there.get(call.events[-1].id)).status == 503
    parts(workers).log.is_gone = False
    workers[0].go_on.set()
    assert await rest_of(there, call.events[-1].id) == ([2, 3, 4], "done")
    await client.leave()


async def test_a_stream_of_a_session_that_the_backend_has_lost_is_not_found(workers: list[Server]) -> None:
    client, call = await begin(workers, 2, 0)
    memory = parts(workers).memory
    for key in list(memory.store._values):
        await memory.store.delete(key)
    for key in list(memory.log._logs):
        await memory.log.delete(key)
    assert (await client.get(call.events[0].id)).status == 404
    assert (await client.post(message("ping", id=9))).status == 404
    await client.leave()
