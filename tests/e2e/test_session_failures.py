"""What fails in a session: a handler that cancels itself, a Backend that is down, a handshake that comes to nothing.

Whatever it is, it is answered, nobody waits for ever, and nothing stays taken.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from support.raw_sessions import FORM, AppPeer, Reply, called, eventually, message
from weft import Context, Limits, Server
from weft.backends.memory import MemoryBackend
from weft.protocol.revisions import SESSION_2025_03_26


class Flaky:
    """A part of a Backend that can be down."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            if self.is_down:
                raise ConnectionError("the backend is down")
            return await getattr(self._part, name)(*args, **options)

        return call


class FlakyBackend(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.store: Any = Flaky(self.store)
        self.log: Any = Flaky(self.log)
        self.sets: Any = Flaky(self.sets)
        self.bus: Any = Flaky(self.bus)


def make_server(**options: Any) -> Server:
    server = Server("failing", limits=Limits(drain_seconds=0.2, progress_per_second=0), **options)
    server.add_resource("a://1", "one")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def chatter(ctx: Context) -> str:
        for number in range(3):
            await ctx.report_progress(number)
        return "done"

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Tea?", Reply)).action

    @server.tool
    async def polls(ctx: Context, tells: bool = False) -> str:
        if tells:
            await ctx.report_progress(1)
        await ctx.close_stream(0.01)
        return "done"

    @server.tool
    async def cancel_itself(before: int = 0, after: int = 1, tells: bool = False, *, ctx: Context) -> str:
        for _ in range(before):
            await asyncio.sleep(0)
        if tells:
            await ctx.report_progress(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        for _ in range(after):
            await asyncio.sleep(0)
        return "not cancelled yet"

    return server


@pytest.fixture
async def peer() -> AsyncIterator[AppPeer]:
    server = make_server(backend=FlakyBackend())
    client = AppPeer(server.asgi())
    yield client
    for part in parts(client):
        part.is_down = False
    await server.stop()
    await client.leave()


def parts(peer: AppPeer) -> list[Flaky]:
    backend: Any = peer.app.runtime.whole_backend
    return [backend.store, backend.log, backend.bus]


def part(peer: AppPeer, name: str) -> Flaky:
    return getattr(peer.app.runtime.whole_backend, name)


async def is_at_rest(peer: AppPeer) -> bool:
    """Nothing is being served or counted, and the session goes on."""
    engine = peer.app.runtime
    await eventually(lambda: engine.in_flight == 0)
    session = engine.sessions._local(peer.session)
    assert (session.in_use, dict(session.connection.in_flight)) == (0, {})
    return await (await peer.post(called("add", 99, a=2, b=3))).text() == "5"


# A handler that cancels its own task.

WAYS = pytest.mark.parametrize(
    "way", [{}, {"before": 2}, {"before": 1, "after": 3}], ids=["at once", "later", "goes on"]
)


@pytest.mark.security("R1", "R12")
@WAYS
async def test_a_handler_that_cancels_itself_has_failed(
    peer: AppPeer, way: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    await peer.open()
    answer = await peer.post(called("cancel_itself", 5, **way))
    assert await answer.refusal() == (200, -32603)
    assert "raised CancelledError" in caplog.text
    alone = await peer.stateless("tools/call", {"name": "cancel_itself", "arguments": way})
    assert await alone.refusal() == (200, -32603)
    assert await is_at_rest(peer)


@pytest.mark.security("R1")
async def test_a_handler_that_cancels_itself_and_does_not_wait_any_more_is_answered(peer: AppPeer) -> None:
    await peer.open()
    app = peer.app

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        """An ASGI server to which nothing is sent without waiting."""

        async def send_later(part: Any) -> None:
            await asyncio.sleep(0)
            await send(part)

        await app(scope, receive, send_later)

    peer.app = slow
    for tells in (False, True):
        answer = await peer.post(called("cancel_itself", 5, progress="p", after=0, tells=tells))
        assert await answer.text() == "not cancelled yet"
    peer.app = app
    assert await is_at_rest(peer)


@pytest.mark.security("R1")
async def test_one_of_an_array_that_cancels_itself_fails_alone(peer: AppPeer) -> None:
    await peer.open(SESSION_2025_03_26.version)
    answers = await (await peer.post([called("cancel_itself", 1), called("add", 2, a=1, b=1)])).json()
    assert {answer["id"]: "result" in answer for answer in answers} == {1: False, 2: True}
    assert await is_at_rest(peer)


@pytest.mark.security("R1")
@WAYS
async def test_a_handler_on_a_pipe_that_cancels_itself_has_failed(way: dict[str, int]) -> None:
    server, answers = make_server(), asyncio.Queue[bytes]()
    pipe = server.pipe(answers.put_nowait)
    pipe.send(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":%b}' % _INTRODUCTION)
    assert b'"result"' in await asyncio.wait_for(answers.get(), 30)
    for id in (2, 3):
        pipe.send(_encoded(called("cancel_itself", id, **way)))
        assert b'"code":-32603' in await asyncio.wait_for(answers.get(), 30)
    pipe.send(_encoded(called("add", 4, a=2, b=3)))
    assert b'"text":"5"' in await asyncio.wait_for(answers.get(), 30)
    await eventually(lambda: server.engine.in_flight == 0)  # an answer is out before its call is over
    await pipe.close()
    await server.stop()


async def test_who_runs_the_app_may_still_cancel_a_call() -> None:
    """As a timeout around the app does: that is not the handler's doing."""
    server = make_server()

    @server.tool
    async def wait() -> None:
        await asyncio.sleep(30)

    peer = AppPeer(server.asgi())
    asking = asyncio.create_task(peer.stateless("tools/call", {"name": "wait", "arguments": {}}))
    await eventually(lambda: server.engine.in_flight == 1)
    await asyncio.sleep(0.01)
    exchange = peer.exchanges[0]
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    answer = await asking
    assert (answer.status, server.engine.in_flight) == (200, 0)
    assert json.loads(await answer.body())["error"]["code"] == -32603  # its client is told, and not left alone
    await server.stop()


async def test_a_call_whose_task_ends_before_it_begins_keeps_nobody_waiting(
    peer: AppPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a loop, which cancels whatever there is."""
    await peer.open()
    loop = asyncio.get_running_loop()
    create, hit = loop.create_task, []

    def create_task(work: Any, **options: Any) -> Any:
        task = create(work, **options)
        if "SessionExchange._run" in work.__qualname__:
            hit.append(task.cancel())
        return task

    monkeypatch.setattr(loop, "create_task", create_task)
    answer = await peer.post(called("add", 7, a=1, b=1))
    monkeypatch.undo()
    assert (hit, await answer.body()) == ([True], b"")
    await eventually(lambda: peer.app.runtime.in_flight == 0)


# A Backend that is down.


@pytest.mark.security("R1", "R12")
@pytest.mark.parametrize("down", ["store", "bus"])
async def test_what_cannot_be_remembered_is_refused(peer: AppPeer, down: str, caplog: pytest.LogCaptureFixture) -> None:
    await peer.open()
    await (await peer.post(called("add", 1, a=1, b=1))).body()
    part(peer, down).is_down = True
    for request in (
        message("logging/setLevel", {"level": "debug"}, 2),
        message("resources/subscribe", {"uri": "a://1"}, 3),
    ):
        assert await (await peer.post(request)).refusal() == (200, -32603)
        assert f"{request['method']} raised ConnectionError: the backend is down" in caplog.text
    assert await (await peer.post(called("add", 4, a=1, b=1))).text() == "2"  # it has changed nothing
    assert "Remembering a session raised ConnectionError" in caplog.text
    part(peer, down).is_down = False
    assert await is_at_rest(peer)
    engine = peer.app.runtime
    record = await engine.sessions.records.read(peer.session)
    assert (record.log_level, record.subscribed_uris) == ("debug", ["a://1"])  # the next call has seen to it


@pytest.mark.security("R1", "R12")
@pytest.mark.parametrize("down", ["log", "bus"])
async def test_a_stream_that_cannot_be_kept_reaches_whoever_is_there(
    peer: AppPeer, down: str, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.open()
    part(peer, down).is_down = True
    answer = await peer.post(called("chatter", 1, progress="p"))
    events = [event async for event in answer.rest()]
    assert [event.data["params"]["progress"] for event in events if event.data and "params" in event.data] == [0, 1, 2]
    assert events[-1].data["result"]["content"][0]["text"] == "done"
    assert {event.id is None for event in events} == {down == "log"}  # nobody is to come back for what is not there
    told = {
        "log": "The stream of a call could not be stored in the backend: ConnectionError: the backend is down",
        "bus": "The Backend's bus fails (ConnectionError): events of resumed streams are sent late.",
    }
    assert caplog.text.count(told[down]) == 1
    part(peer, down).is_down = False
    assert await is_at_rest(peer)


@pytest.mark.security("R1")
@pytest.mark.parametrize("tells", [False, True])
async def test_nobody_is_sent_away_from_a_stream_that_cannot_be_kept(peer: AppPeer, tells: bool) -> None:
    await peer.open()
    part(peer, "log").is_down = True
    assert await (await peer.post(called("polls", 1, progress="p", tells=tells))).text() == "done"
    part(peer, "log").is_down = False
    away = await peer.post(called("polls", 2, progress="p", tells=tells))
    events = [event async for event in away.rest()]
    assert [event.retry for event in events if event.retry] == ["10"]
    assert not any(event.data and "result" in event.data for event in events)
    assert await (await peer.get(events[0].id)).text() == "done"
    assert await is_at_rest(peer)


@pytest.mark.security("R1", "R12")
async def test_who_has_come_back_is_let_go_where_the_answer_cannot_be_kept(peer: AppPeer) -> None:
    await peer.open(capabilities=FORM)
    asking = await peer.post(called("ask", 1))
    question = await asking.question()
    first = asking.events[0].id
    back = await peer.get(first)
    await back.question()
    part(peer, "log").is_down = True
    await peer.post({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
    await back.body()  # it ends, though nothing says so in the log
    part(peer, "log").is_down = False
    assert await is_at_rest(peer)


@pytest.mark.security("R1")
async def test_where_the_store_is_down_requests_are_refused_and_nothing_is_left(
    peer: AppPeer, caplog: pytest.LogCaptureFixture
) -> None:
    part(peer, "store").is_down = True
    greeting = message("initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                      "clientInfo": {"name": "t", "version": "1"}}, 0)  # fmt: skip
    refused = await peer.request("POST", greeting, session=None)
    assert (await refused.refusal(), refused.headers.get("mcp-session-id")) == ((500, -32603), None)
    assert (await refused.json())["id"] == 0
    assert "raised ConnectionError: the backend is down" in caplog.text
    assert (len(peer.app.runtime.sessions), peer.app.runtime.in_flight) == (0, 0)
    part(peer, "store").is_down = False
    await peer.open()
    other = AppPeer(peer.app)
    other.session = "of another worker"
    part(peer, "store").is_down = True
    for answer in (await other.post(called("add", 1, a=1, b=1)), await other.get(), await other.delete()):
        assert await answer.refusal() == (500, -32603)
    assert (await peer.delete()).status == 500
    await eventually(lambda: len(peer.app.runtime.sessions) == 0)  # what is here of it has ended


async def test_an_array_that_is_refused_has_begun_nothing(peer: AppPeer) -> None:
    await peer.open(SESSION_2025_03_26.version, FORM)
    part(peer, "bus").is_down = True
    elsewhere = message("notifications/cancelled", {"requestId": "of another worker"})
    refused = await (await peer.post([called("ask", 1), elsewhere])).head()
    assert refused.status == 500
    assert peer.app.runtime.sessions._local(peer.session).in_use == 0
    part(peer, "bus").is_down = False
    assert await is_at_rest(peer)


async def test_what_another_worker_has_changed_is_read_when_the_store_is_back(peer: AppPeer) -> None:
    await peer.open()
    await (await peer.post(called("add", 1, a=1, b=1))).body()
    engine = peer.app.runtime
    session = engine.sessions._local(peer.session)
    changed = msgspec.structs.replace(session.record, log_level="error")
    await engine.sessions.records.change(peer.session, session.record, changed)  # as another worker does
    engine.sessions._mark_stale()  # and the bus was down meanwhile
    part(peer, "store").is_down = True
    assert await (await peer.post(called("add", 3, a=1, b=1))).refusal() == (500, -32603)
    part(peer, "store").is_down = False
    assert await is_at_rest(peer)
    assert session.connection.log_level == "error"


async def test_a_session_that_the_backend_has_lost_is_over(peer: AppPeer) -> None:
    await peer.open()
    stream, engine = await peer.get(), peer.app.runtime
    await engine.whole_backend.store.delete(f"failing:session/{peer.session}")
    assert (await peer.post(called("add", 1, a=1, b=1))).status == 200  # nothing tells this worker
    engine.sessions._mark_stale()
    await stream.body()
    assert (await peer.post(called("add", 2, a=1, b=1))).status == 404
    assert len(engine.sessions) == 0


async def test_a_session_that_cannot_be_ended_for_another_is_in_the_log(
    peer: AppPeer, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.open()
    sessions = peer.app.runtime.sessions
    part(peer, "store").is_down = True
    sessions.end_soon(sessions._local(peer.session))
    await eventually(lambda: not sessions._background)
    assert "Sessions could not be renewed in the backend: ConnectionError: the backend is down" in caplog.text


# A handshake that comes to nothing.

_INTRODUCTION = b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}'


def _encoded(body: Any) -> bytes:
    return msgspec.json.encode(body)


def make_choosy() -> Any:
    server: Any = make_server()
    server.refuses = True
    server.unwound = []  # whether those were refused whose connection has ended

    @server.middleware
    async def choose(ctx: Context, next: Any) -> Any:
        result = await next()
        if ctx.method == "initialize":
            ctx.connection.exit_stack.callback(server.unwound.append, server.refuses)
        if ctx.method == "initialize" and server.refuses:
            raise RuntimeError("not this one")
        return result

    return server


@pytest.mark.spec("L11-01")
async def test_a_handshake_that_was_answered_with_an_error_begins_no_session() -> None:
    server = make_choosy()
    peer = AppPeer(server.asgi())
    refused = await peer.request("POST", b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":%b}' % _INTRODUCTION,
                                 session=None)  # fmt: skip
    assert await refused.refusal() == (200, -32603)
    assert ("mcp-session-id" in refused.headers, len(server.engine.sessions), server.unwound) == (False, 0, [True])
    server.refuses = False
    await peer.open()
    assert await is_at_rest(peer)
    await server.stop()
    await peer.leave()


@pytest.mark.spec("L11-01")
async def test_nor_does_it_on_a_pipe() -> None:
    server, answers = make_choosy(), asyncio.Queue[bytes]()
    pipe = server.pipe(answers.put_nowait)
    greeting = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":%b}' % _INTRODUCTION
    pipe.send(greeting)
    assert b'"code":-32603' in await asyncio.wait_for(answers.get(), 30)
    pipe.send(_encoded(called("add", 1, a=2, b=3)))
    assert b'"code":-32600' in await asyncio.wait_for(answers.get(), 30)
    server.refuses = False
    pipe.send(greeting)  # it is no second one
    assert b'"result"' in await asyncio.wait_for(answers.get(), 30)
    await pipe.close()
    await server.stop()
