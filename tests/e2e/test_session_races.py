"""What happens in a session at the same moment, or long apart: nothing hangs, nothing is lost, nothing is kept."""

import asyncio
from typing import Any

import pytest

from support.raw_sessions import AppPeer, called, eventually, message
from weft import Context, Limits, Server
from weft.protocol.revisions import SESSION_2025_03_26


def make_server(**limits: Any) -> Server:
    server = Server("racing", limits=Limits(**{"drain_seconds": 0.2, **limits}))

    @server.tool
    async def wait() -> None:
        await asyncio.sleep(30)

    @server.tool
    async def leave(ctx: Context, seconds: float, times: int = 0) -> str:
        """Sends its client away, is silent, and then tells much at once."""
        await ctx.close_stream(0.01)
        await asyncio.sleep(seconds)
        for number in range(times):
            await ctx.report_progress(number)
        return "done"

    @server.tool
    async def leave_often(ctx: Context, times: int) -> str:
        """Sends its client away again and again."""
        for number in range(times):
            await ctx.close_stream(0.01 * (number + 1))
            await asyncio.sleep(0.05)
            await ctx.report_progress(number)
        return "done"

    return server


@pytest.fixture
async def peer(request: pytest.FixtureRequest) -> Any:
    """A client of a server with the limits that the test is given."""
    server = make_server(**getattr(request, "param", {}))
    client = AppPeer(server.asgi())
    yield client
    await server.stop()
    await client.leave()


def texts(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


async def sent_away(peer: AppPeer, **arguments: Any) -> str:
    """Begin a call that sends its client away. The id to come back with."""
    leaving = await peer.post(called("leave", progress="t", **arguments))
    return [event.id async for event in leaving.rest() if event.id][-1]


@pytest.mark.security("R12", "D9")
@pytest.mark.spec("L11-13", "CAN-09")
async def test_a_request_that_is_cancelled_before_it_begins_holds_nothing(peer: AppPeer) -> None:
    await peer.open()
    call, cancellation = await asyncio.gather(
        peer.post(called("wait", 5)), peer.post(message("notifications/cancelled", {"requestId": 5}))
    )
    assert (call.status, await call.body(), cancellation.status) == (202, b"", 202)
    session = await peer.app.runtime.sessions.find(peer.session, None)
    assert (session.in_use, dict(session.connection.in_flight), peer.app.runtime.in_flight) == (0, {}, 0)


@pytest.mark.spec("L11-24")
async def test_a_request_whose_session_ends_before_it_begins_is_let_go(peer: AppPeer) -> None:
    await peer.open()
    call, end = await asyncio.gather(peer.post(called("wait", 5)), peer.delete())
    assert (call.status, end.status, peer.app.runtime.in_flight) == (202, 204, 0)


@pytest.mark.spec("L11-16", "L11-17")
@pytest.mark.parametrize("peer", [{"progress_per_second": 0}], indirect=True)
async def test_a_client_that_came_back_is_not_told_faster_than_it_reads(peer: AppPeer) -> None:
    await peer.open()
    back = await peer.get(await sent_away(peer, seconds=0.05, times=1000))
    messages = [event.data async for event in back.rest() if event.data]
    assert len(messages) == 1001  # none is lost, though only the newest few hundred are kept
    assert messages[-1]["result"]["content"][0]["text"] == "done"


@pytest.mark.spec("L11-15", "L11-16")
@pytest.mark.parametrize("peer", [{"progress_per_second": 0}], indirect=True)
async def test_a_client_is_sent_away_as_often_as_the_handler_wants(peer: AppPeer) -> None:
    await peer.open()
    exchange = await peer.post(called("leave_often", progress="t", times=4))
    retries, told, last = [], [], ""
    while not told or told[-1] != "done":
        async for event in exchange.rest():
            last = event.id or last
            retries += [event.retry] if event.retry else []
            if event.data is not None:
                told.append(event.data["params"]["progress"] if "params" in event.data else texts(event.data))
        exchange = await peer.get(last) if told[-1:] != ["done"] else exchange
    assert (retries, told) == (["10", "20", "30", "40"], [0, 1, 2, 3, "done"])
    assert not (await peer.app.runtime.sessions.find(peer.session, None)).resumed


@pytest.mark.spec("L11-16", "L11-17")
@pytest.mark.parametrize("peer", [{"replay_seconds": 1.5}], indirect=True)
async def test_a_client_may_come_back_however_long_nothing_was_said(peer: AppPeer) -> None:
    await peer.open()
    last = await sent_away(peer, seconds=4)
    await asyncio.sleep(3)  # the stream is kept, because its call is not answered
    first = await peer.get(last)
    assert first.status == 200
    second = await peer.get(last)  # and again, as a proxy's limits may have it
    assert await second.text() == "done"
    await first.body()


@pytest.mark.spec("L11-18")
async def test_an_event_that_has_not_happened_is_no_place_to_go_on_from(peer: AppPeer) -> None:
    await peer.open()
    stream, _, number = (await sent_away(peer, seconds=0)).rpartition(".")
    later = await peer.get(f"{stream}.{int(number) + 10**9}")
    assert await later.refusal() == (400, -32600)


@pytest.mark.security("D10")
@pytest.mark.parametrize("peer", [{"replay_bytes": 2000}], indirect=True)
async def test_a_reader_that_misses_something_for_the_sake_of_others_is_told(peer: AppPeer) -> None:
    other = AppPeer(peer.app)
    await peer.open()
    await other.open()
    session = await peer.app.runtime.sessions.find(peer.session, None)
    listening: Any = await peer.get()
    listening.stall()
    for number in range(2):  # the first is being written, and the second waits for that
        await session.connection.notify("notifications/message", {"level": "info", "data": number})
        await asyncio.sleep(0.01)
    await (await other.post(called("leave", progress="t", seconds=0, times=50))).body()
    await eventually(lambda: not other.app.runtime.in_flight)
    listening._stalled.set()
    assert [event.data["params"]["data"] async for event in listening.rest()] == [0]  # and that was the end
    again = await peer.get(listening.events[-1].id)
    await session.connection.notify("notifications/message", {"level": "info", "data": 2})
    assert (await again.message())["params"]["data"] == 2
    await other.leave()


@pytest.mark.security("D9", "R12")
@pytest.mark.spec("L03-01")
@pytest.mark.parametrize("peer", [{"in_flight": 3}], indirect=True)
async def test_each_request_of_an_array_counts(peer: AppPeer) -> None:
    engine = peer.app.runtime
    await peer.open(SESSION_2025_03_26.version)
    batch = await peer.begin([called("wait", id) for id in range(4)])
    session = await engine.sessions.find(peer.session, None)
    assert list(session.connection.in_flight) == [0, 1, 2]
    assert (await peer.post(message("ping", id=9))).status == 503
    await engine.sessions.end(session)
    refused = await (await batch).json()
    assert [(one["id"], one["error"]["code"]) for one in refused] == [(3, -32603)]
    await eventually(lambda: engine.in_flight == 0)
