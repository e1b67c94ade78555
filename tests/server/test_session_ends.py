"""Sessions: the order in which one ends, and what must not bring it back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.raw_sessions import FORM, AppPeer, Reply, called, eventually, message
from weft import Context, Limits, MemoryBackend, Server


def make_server(backend: Any = None, **limits: Any) -> Server:
    server = Server("sessions", limits=Limits(drain_seconds=0.3, **limits), backend=backend)
    server.said = []

    @server.tool
    async def hold(ctx: Context, stubborn: bool = False) -> None:
        ctx.connection.exit_stack.callback(server.said.append, "unwound")
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(30 if stubborn else 0.02)
            server.said.append("ended")

    @server.tool
    async def late(ctx: Context) -> None:
        await ctx.report_progress(1)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)  # longer than anybody waits
            await ctx.report_progress(2)
            await ctx.connection.notify("notifications/message", {"level": "info", "data": "too late"})
            server.said.append("too late")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Tea?", Reply)).action

    @server.middleware
    async def slow_to_end(ctx: Context, next: Any) -> Any:
        result = await next()
        if ctx.method == "logging/setLevel":
            await asyncio.sleep(0.05)
        return result

    return server


def nothing_left(server: Any) -> bool:
    backend = server.backend
    return not (
        len(server.engine.sessions)
        or server.engine.sessions._opened.per_peer
        or server.engine.sessions._sweeping
        or backend.store._values
        or backend.log._logs
        or server.engine.sessions.streams._kept
        or server.engine.sessions.streams._open
    )


async def test_a_session_is_cleaned_up_after_its_calls_have_ended() -> None:
    server = make_server()
    peer = AppPeer(server.asgi())
    await peer.open()
    calling = await peer.begin(called("hold", 1))
    assert (await peer.delete()).status == 204
    assert server.said == ["ended", "unwound"]
    await calling
    assert nothing_left(server)


async def test_a_call_that_will_not_end_does_not_keep_its_session() -> None:
    server = make_server()
    peer = AppPeer(server.asgi())
    await peer.open()
    calling = await peer.begin(called("hold", 1, stubborn=True))
    assert (await peer.delete()).status == 204
    assert server.said == ["unwound"]
    assert nothing_left(server)
    calling.cancel()
    for exchange in peer.exchanges:
        exchange.task.cancel()


async def test_what_a_call_says_after_the_end_of_its_session_is_not_kept() -> None:
    server = make_server()
    peer = AppPeer(server.asgi())
    await peer.open()
    stream = await peer.get()
    calling = await peer.post(called("late", 1, progress="p"))
    assert (await peer.delete()).status == 204
    await eventually(lambda: server.said == ["too late"])
    await stream.body()
    await calling.body()
    await asyncio.gather(*(exchange.task for exchange in peer.exchanges))
    assert nothing_left(server)


async def test_streams_opened_while_the_server_stops_end_at_once() -> None:
    server = make_server()
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)
    stream = await peer.get()
    asking = await peer.post(called("ask", 1))
    await asking.question()
    resumed = await peer.get(asking.events[0].id)
    await resumed.question()
    peer.app.close_streams()
    for open_before in (stream, resumed):
        await open_before.body()
    for last in (None, asking.events[0].id):
        assert (await (await peer.get(last)).body()).strip().startswith(b":")  # and no more
    await server.stop()
    await peer.leave()


@pytest.mark.security("R5")
async def test_a_change_under_way_does_not_bring_back_a_session_that_was_ended() -> None:
    server = make_server()
    peer = AppPeer(server.asgi())
    await peer.open()
    changing = await peer.begin(message("logging/setLevel", {"level": "debug"}, 1))
    assert (await peer.delete()).status == 204
    await changing
    assert (await peer.post(message("ping", None, 2))).status == 404
    assert nothing_left(server)


async def test_a_request_whose_session_ends_while_it_is_looked_up_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server: Any = make_server()
    peer = AppPeer(server.asgi())
    await peer.open()
    renewed, ended = asyncio.Event(), asyncio.Event()
    touch = server.backend.store.touch

    async def slow_touch(key: str, *, ttl: float) -> bool:
        there = await touch(key, ttl=ttl)
        renewed.set()
        await ended.wait()  # as if the answer took so long
        return there

    monkeypatch.setattr(server.backend.store, "touch", slow_touch)
    next(iter(server.engine.sessions._opened.used.values())).renewed = float("-inf")
    calling = asyncio.create_task(peer.post(called("hold", 1)))
    async with asyncio.timeout(30):
        await renewed.wait()
        assert (await peer.delete()).status == 204
        ended.set()
        assert (await calling).status == 404
    assert server.said == []
    assert nothing_left(server)


async def test_a_question_that_is_given_up_at_the_end_leaves_no_event() -> None:
    server = make_server()
    peer = AppPeer(server.asgi())
    await peer.open(capabilities=FORM)
    asking = await peer.post(called("ask", 1))
    await asking.question()
    stream = await peer.get()
    assert (await peer.delete()).status == 204
    await asking.body()
    await stream.body()
    await asyncio.gather(*(exchange.task for exchange in peer.exchanges))
    assert nothing_left(server)
    assert server.backend.bus._topics.keys().isdisjoint({f"stream/{peer.session}/0"})


async def test_ids_cannot_be_guessed_and_are_visible_ascii() -> None:
    server = make_server()
    peers = [AppPeer(server.asgi()) for _ in range(50)]
    for peer in peers:
        await peer.open(ready=False)
    ids = [peer.session or "" for peer in peers]
    assert len(set(ids)) == 50
    assert all(len(id) >= 32 and all(0x21 <= ord(letter) <= 0x7E for letter in id) for id in ids)
    await server.stop()


async def test_a_server_that_was_stopped_can_serve_again() -> None:
    server = make_server(session_unused_seconds=0.4, session_idle_seconds=0.4)
    peer = AppPeer(server.asgi())
    for _ in range(2):
        await peer.open()
        assert (await peer.get()).status == 200
        await server.stop()
        assert server.backend.bus._topics == {}
    await peer.leave()
    await peer.open()
    await eventually(lambda: len(server.engine.sessions) == 0)


async def test_a_bus_that_fails_is_joined_once_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(backend=MemoryBackend())
    bus: Any = server.backend.bus
    subscribe = bus.subscribe

    async def fail(*_: Any) -> Any:
        raise ConnectionError("the bus is down")

    peer = AppPeer(server.asgi())
    monkeypatch.setattr(bus, "subscribe", fail)
    for _ in range(3):
        with pytest.raises(AssertionError, match="-32603"):
            await peer.open()
    assert (bus._topics, len(server.engine.sessions)) == ({}, 0)
    monkeypatch.setattr(bus, "subscribe", subscribe)
    await peer.open()
    assert {len(listeners) for listeners in bus._topics.values()} == {1}
    await server.stop()
    await peer.leave()


async def test_the_lifespan_ends_also_where_the_bus_cannot_be_left(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        yield
        ended.append("lifespan")

    server = Server("s", lifespan=lifespan, backend=MemoryBackend())

    async def fail() -> None:
        raise ConnectionError("the bus is down")

    await AppPeer(server.asgi()).open()
    server.engine.fleet._leave_bus.append(fail)
    await server.stop()
    assert ended == ["lifespan"]
    told = "This worker could not sign off from the backend (the bus is down). The others notice within 15 s."
    assert told in caplog.text
