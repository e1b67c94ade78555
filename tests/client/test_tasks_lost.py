"""Servers that have a task and cannot be reached for a while: tried again, no faster than they want, and given up."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.fakes import Exchange, http_server, reply
from support.raw_sessions import eventually
from support.task_servers import ID, SILENCE, Refusal, TaskServer, done, form, result, state
from weft import (
    CannotAnswer,
    Client,
    ClientLimits,
    ConnectionFailed,
    InvalidAnswer,
    RemoteError,
    RequestTimeout,
    TaskEnded,
    WeftError,
)
from weft.client.requests import known_tasks, tasks

LONG = 30
SOON = 10  # seconds: long for a client that waits for nothing


def gap(times: list[float]) -> float:
    return times[1] - times[0]


def timed(server: TaskServer, method: str, answer: Callable[[Exchange], Any]) -> tuple[list[float], Any]:
    """Return when a method was asked for, and how to serve it: the first time by `answer`, then as `server` does."""
    times: list[float] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == method:
            times.append(time.monotonic())
            if len(times) == 1:
                await answer(exchange)
                return
            server.task = done("back")
        await server.serve(exchange)

    return times, serve


# --- which failures pass, and when the client tries again


@pytest.mark.parametrize(("status", "body"), [(429, False), (503, False), (429, True), (503, True)])
async def test_a_busy_server_is_asked_again_when_it_wants(status: int, body: bool) -> None:
    """Also if it says with a JSON-RPC error that it is busy, as Weft does."""
    server = TaskServer()

    async def refuse(exchange: Exchange) -> None:
        error = reply(exchange.message, error={"code": -32000, "message": "busy"}) if body else b""
        await exchange.respond(status, error, retry_after="1")

    times, serve = timed(server, "tasks/get", refuse)
    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "back"
    assert gap(times) >= 0.98


@pytest.mark.spec("TASK-16a")
async def test_a_busy_server_is_polled_no_faster_than_any_other() -> None:
    server = TaskServer(state(pollIntervalMs=600))
    times, serve = timed(server, "tasks/get", lambda exchange: exchange.respond(503))
    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "back"
    assert gap(times) >= 0.6 * 0.98


async def test_a_server_that_could_not_be_reached_is_asked_again_soon() -> None:
    """It has not answered, so it has not been polled: another worker may have the task."""
    server = TaskServer()
    times: list[float] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == "tasks/get":
            times.append(time.monotonic())
            if len(times) <= 2:  # the second one is the repetition of a request that only reads
                exchange.cut()
                return
            server.task = done("back")
        await server.serve(exchange)

    server.task = state(pollIntervalMs=60_000)
    async with asyncio.timeout(SOON), http_server(serve) as url, Client(url) as client:
        status = await (await client.start_tool("t")).status()
    assert status.is_final


@pytest.mark.parametrize("way", ["pipe", "http"])
async def test_a_request_without_an_answer_is_sent_again(way: str) -> None:
    """Also in a pipe: a child process may be busy for longer than one request may take."""
    server = TaskServer()
    answers = iter([SILENCE])
    server.on["tasks/get"] = lambda _: next(answers, {**done("at last"), "resultType": "complete"})
    limits = ClientLimits(request_seconds=0.2)
    async with asyncio.timeout(LONG), AsyncExitStack() as stack:
        target: Any = server if way == "pipe" else await stack.enter_async_context(http_server(server.serve))
        client = await stack.enter_async_context(Client(target, limits=limits))
        assert (await client.call_tool("t")).text == "at last"


@pytest.mark.parametrize("status", [401, 403, 413, 501])
async def test_a_refusal_that_does_not_pass_is_an_error_at_once(status: int) -> None:
    server = TaskServer()
    times, serve = timed(server, "tasks/get", lambda exchange: exchange.respond(status))
    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        with pytest.raises(WeftError):
            await (await client.start_tool("t")).status()
    assert len(times) == 1


async def test_a_pause_that_the_server_asks_for_ends_with_the_time_for_lost_servers() -> None:
    server = TaskServer()

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == "tasks/get":
            await exchange.respond(503, retry_after="500")
        else:
            await server.serve(exchange)

    limits = ClientLimits(task_lost_seconds=0.3)
    async with asyncio.timeout(SOON), http_server(serve) as url, Client(url, limits=limits) as client:
        with pytest.raises(ConnectionFailed) as failure:
            await (await client.start_tool("t")).status()
    assert (failure.value.status, failure.value.retry_after) == (503, 500)
    told = "The client has tried for 0.3 s, the limit `task_lost_seconds`. The task may go on. It is gone if the server"
    assert told in str(failure.value)


async def test_a_server_is_not_tried_again_for_a_task_that_nobody_follows() -> None:
    server = TaskServer()
    asked = 0

    async def serve(exchange: Exchange) -> None:
        nonlocal asked
        if exchange.rpc == "tasks/get":
            asked += 1
            await exchange.respond(503)
        else:
            await server.serve(exchange)

    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        waiting = asyncio.create_task((await client.start_tool("t")).result())
        await eventually(lambda: asked)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.8)  # the first pause is at most 0.32 s
    assert asked == 1


@pytest.mark.parametrize("how", ["call", "status", "cancel"])
async def test_a_client_that_is_closed_does_not_wait_for_a_pause_to_end(how: str) -> None:
    server = TaskServer()
    asked = asyncio.Event()

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc in ("tasks/get", "tasks/cancel"):
            asked.set()
            await exchange.respond(503, retry_after="100")
        else:
            await server.serve(exchange)

    async with asyncio.timeout(SOON), http_server(serve) as url:
        client = Client(url)
        await client.connect()
        handle = await client.start_tool("t")
        uses: dict[str, Any] = {"call": lambda: client.call_tool("t"), "status": handle.status, "cancel": handle.cancel}
        using = asyncio.create_task(uses[how]())
        await asked.wait()
        await asyncio.sleep(0.1)  # until the client has read the refusal
        await client.close()
        with pytest.raises(ConnectionFailed, match="was closed"):
            await using


# --- what the log and the errors say


class Flaky:
    """A server over HTTP that can be lost, and come back without its task."""

    def __init__(self, *, is_session: bool) -> None:
        self.server = TaskServer(is_session=is_session)
        self.is_lost = False
        self.failed = 0  # requests about tasks, while it was lost

    async def serve(self, exchange: Exchange) -> None:
        if self.is_lost:
            self.failed += (exchange.rpc or "").startswith("tasks/")
            exchange.cut()
        elif exchange.rpc == "tasks/result" and self.server.task["status"] == "working":
            await eventually(lambda: self.is_lost or self.server.task["status"] != "working")
            await self.serve(exchange)
        else:
            await self.server.serve(exchange)

    async def lose(self) -> None:
        """Be lost until several requests have failed."""
        self.failed, self.is_lost = 0, True
        await eventually(lambda: self.failed >= 6)


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_a_lost_connection_is_logged_once_until_it_is_back(era: Any, caplog: pytest.LogCaptureFixture) -> None:
    flaky = Flaky(is_session=era == "session")
    async with asyncio.timeout(LONG), http_server(flaky.serve) as url, Client(url, eras=(era,)) as client:
        handle = await client.start_tool("t")
        waiting = [asyncio.create_task(handle.result(progress=lambda _: None)) for _ in range(2)]
        await flaky.server.asked("tasks/get")
        assert not caplog.records
        await flaky.lose()
        flaky.server.task, flaky.is_lost = done(), False
        assert {(await one).text for one in waiting} == {"done"}
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert warnings == [f"The connection to {url} was lost while a task is awaited; trying again for 120 s."]
        client._tasks._seldom._SECONDS = 0  # type: ignore[misc] - several within a minute are logged less often
        flaky.is_lost = True
        reading = asyncio.create_task(handle.status())
        await eventually(lambda: len(caplog.records) == 2)  # another time
        flaky.is_lost = False
        await reading


async def test_a_result_shows_that_the_server_is_back() -> None:
    """The state may not be asked for again. Then the next loss is another one."""
    server = TaskServer(is_session=True)
    async with asyncio.timeout(LONG), http_server(server.serve) as url, Client(url, eras=("session",)) as client:
        client._tasks._is_lost = True
        await client.call_tool("t")
        assert not server.calls("tasks/get")
        assert not client._tasks._is_lost


async def test_a_busy_server_is_not_logged_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    server = TaskServer()
    _, serve = timed(server, "tasks/get", lambda exchange: exchange.respond(503, retry_after="0"))
    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "back"
    assert not caplog.records


async def test_a_silent_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = TaskServer()
    answers = iter([SILENCE, SILENCE])
    server.on["tasks/get"] = lambda _: next(answers, {**done("at last"), "resultType": "complete"})
    limits = ClientLimits(request_seconds=0.1, task_lost_seconds=7)
    async with asyncio.timeout(LONG), Client(server, limits=limits) as client:
        assert (await client.call_tool("t")).text == "at last"
    said = "No answer of the server 'TaskServer' in this process while a task is awaited; trying again for 7 s."
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize("era", ["stateless", "session"])
@pytest.mark.parametrize("was_lost", [True, False])
async def test_a_task_that_is_unknown_after_the_connection_was_lost(was_lost: bool, era: Any) -> None:
    """The server may have been restarted, without its tasks."""
    flaky = Flaky(is_session=era == "session")
    async with asyncio.timeout(LONG), http_server(flaky.serve) as url, Client(url, eras=(era,)) as client:
        handle = await client.start_tool("t")
        await handle.status()
        waiting = asyncio.create_task(handle.result(progress=lambda _: None))
        await flaky.server.asked("tasks/get", 2)
        if was_lost:
            await flaky.lose()
        flaky.server.on["tasks/get"] = flaky.server.on["tasks/result"] = lambda _: Refusal(-32602, "no such task.")
        flaky.server.task = state("failed")  # lets `tasks/result` be answered
        flaky.is_lost = False
        with pytest.raises(TaskEnded) as failure:
            await waiting
    said = f"The task does not exist at {url}: no such task."
    hint = " The connection was lost meanwhile. Was the server restarted? If it keeps its tasks in memory, they ended"
    assert str(failure.value) == (f"{said}{hint} with it." if was_lost else said)


# --- which errors end a call, and what becomes of the task


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update"])
@pytest.mark.parametrize("error", [Refusal(-32602, "no"), Refusal(-32000, "no"), Refusal(-32601, "no")])
async def test_a_call_that_fails_while_its_task_lives_cancels_it(method: str, error: Refusal) -> None:
    server = TaskServer(state("input_required", inputRequests={"a": form()}))
    server.on[method] = lambda _: error
    is_gone = method == "tasks/get" and error.error["code"] == -32602
    async with asyncio.timeout(LONG), Client(server, elicit=lambda _: {"name": "Ann"}) as client:
        with pytest.raises(WeftError):
            await client.call_tool("t")
    assert len(server.calls("tasks/cancel")) == (0 if is_gone else 1)


async def test_a_call_whose_request_is_refused_for_good_cancels_its_task() -> None:
    server = TaskServer()
    _, serve = timed(server, "tasks/get", lambda exchange: exchange.respond(413))
    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        with pytest.raises(ConnectionFailed):
            await client.call_tool("t")
    assert len(server.calls("tasks/cancel")) == 1


async def test_a_call_whose_server_is_lost_leaves_its_task_alone() -> None:
    """As the limit says. Nobody knows whether the task goes on."""
    server = TaskServer()

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == "tasks/get":
            await exchange.respond(503)
        else:
            await server.serve(exchange)

    limits = ClientLimits(task_lost_seconds=0.2)
    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url, limits=limits) as client:
        with pytest.raises(ConnectionFailed, match="The task may go on"):
            await client.call_tool("t")
    assert not server.calls("tasks/cancel")


@pytest.mark.parametrize("end", [state("failed", error={"code": 7, "message": "torn"}), state("completed", result=7)])
async def test_a_task_that_has_ended_is_not_cancelled(end: dict[str, Any]) -> None:
    """Also if its result cannot be read."""
    server = TaskServer()
    server.on["tasks/get"] = lambda _: {**end, "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises((RemoteError, InvalidAnswer)):
            await client.call_tool("t")
    assert not server.calls("tasks/cancel")


async def test_a_question_without_an_answer_cancels_the_task_of_a_call() -> None:
    server = TaskServer(state("input_required", inputRequests={"a": form()}))
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(CannotAnswer):
            await client.call_tool("t")
    assert len(server.calls("tasks/cancel")) == 1


# --- sessions: a request that waits for the result


def often(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.1) -> None:
    """Ask so often whether the server is there while `tasks/result` waits."""
    for module in (known_tasks, tasks):
        monkeypatch.setattr(module, "LISTENING_POLL", seconds)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_wait_that_is_cut_goes_on_as_long_as_the_server_answers(answers: bool) -> None:
    """A proxy ends idle requests. All cuts together take longer than the client looks for a lost server."""
    server, cuts = TaskServer(is_session=True), 0

    async def serve(exchange: Exchange) -> None:
        nonlocal cuts
        if exchange.rpc == "tasks/result" and cuts < 6:
            cuts += 1
            await asyncio.sleep(0.05)
            exchange.cut()
        elif exchange.rpc == "tasks/get" and cuts and not answers:
            exchange.cut()
        else:
            await server.serve(exchange)

    limits = ClientLimits(task_lost_seconds=0.5)
    async with (
        asyncio.timeout(LONG),
        http_server(serve) as url,
        Client(url, eras=("session",), limits=limits) as client,
    ):
        if answers:
            assert (await client.call_tool("t")).text == "done"
        else:
            with pytest.raises(ConnectionFailed, match="has tried for"):
                await client.call_tool("t")
    assert (cuts == 6) is answers


async def test_a_result_that_never_arrives_whole_is_given_up() -> None:
    """The server answers, and the task has ended, but each answer with its result is cut."""
    server = TaskServer(state("completed"), is_session=True)

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == "tasks/result":
            exchange.cut()
        else:
            await server.serve(exchange)

    limits = ClientLimits(task_lost_seconds=0.5)
    async with (
        asyncio.timeout(LONG),
        http_server(serve) as url,
        Client(url, eras=("session",), limits=limits) as client,
    ):
        with pytest.raises(ConnectionFailed):
            await client.call_tool("t")


@pytest.mark.parametrize("shows", [False, True])
async def test_a_server_that_hangs_while_the_result_is_awaited_is_given_up(
    shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    often(monkeypatch)
    server, hangs = TaskServer(is_session=True), False
    server.on["tasks/result"] = lambda _: SILENCE

    async def serve(exchange: Exchange) -> None:
        await (exchange.hang() if hangs and exchange.method == "POST" else server.serve(exchange))

    limits = ClientLimits(task_lost_seconds=0.3, request_seconds=0.3, close_seconds=0.1)
    async with (
        asyncio.timeout(LONG),
        http_server(serve) as url,
        Client(url, eras=("session",), limits=limits) as client,
    ):
        calling = asyncio.create_task(client.call_tool("t", progress=(lambda _: None) if shows else None))
        await server.asked("tasks/get", 2)  # it lives
        assert not calling.done()
        hangs = True
        with pytest.raises(WeftError, match=r"did not answer tasks/get .*The task may go on"):
            await calling


async def test_a_server_that_only_waits_is_asked_rarely_whether_it_lives() -> None:
    server = TaskServer(is_session=True)
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/result")
        await asyncio.sleep(0.4)  # it could be polled every 50 ms
        assert not server.calls("tasks/get")
        server.answer(server.calls("tasks/result")[0], result("late"))
        assert (await calling).text == "late"


async def test_a_result_that_is_lost_on_its_way_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection can die without a word. The state says that the task has ended."""
    often(monkeypatch, 0.05)
    server = TaskServer(is_session=True)
    waits = iter([SILENCE])
    server.on["tasks/result"] = lambda _: next(waits, result("again"))
    limits = ClientLimits(request_seconds=0.5)
    async with asyncio.timeout(LONG), Client(server, eras=("session",), limits=limits) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get", 3)
        assert len(server.calls("tasks/result")) == 1
        server.task = state("completed")
        assert (await calling).text == "again"
    assert len(server.calls("tasks/result")) == 2


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_result_that_never_comes_is_given_up(is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task has ended, so there is nothing to wait for, even if the server answers other requests."""
    often(monkeypatch, 0.05)
    server = TaskServer(is_session=True)
    server.on["tasks/result"] = lambda _: SILENCE
    limits = ClientLimits(request_seconds=0.2, task_lost_seconds=0.5)
    async with asyncio.timeout(LONG), Client(server, eras=("session",), limits=limits) as client:
        handle = await client.start_tool("t")
        server.task = state("completed")
        assert (await handle.status()).is_final
        if is_silent:
            server.on["tasks/get"] = lambda _: SILENCE
        with pytest.raises(RequestTimeout, match=r"has ended, but .* does not send its result\."):
            await handle.result()
        server.on["tasks/result"] = lambda _: result("found again")
        assert (await handle.result()).text == "found again"
    assert not server.calls("tasks/cancel")


async def test_states_that_cannot_be_read_do_not_end_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    often(monkeypatch, 0.05)
    server = TaskServer(is_session=True)
    server.on["tasks/result"] = lambda _: SILENCE
    server.on["tasks/get"] = lambda _: Refusal(-32601, "no such method")
    limits = ClientLimits(request_seconds=0.2)
    async with asyncio.timeout(LONG), Client(server, eras=("session",), limits=limits) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get")
        await asyncio.sleep(0.5)
        server.answer(server.calls("tasks/result")[0], result("late"))
        assert (await calling).text == "late"
    assert len(server.calls("tasks/result")) == 1


@pytest.mark.parametrize("failure", [Refusal(-32603, "torn"), Refusal(1001, "torn"), Refusal(-32601, "torn")])
async def test_a_wait_that_fails_while_the_task_works_is_repeated(failure: Refusal) -> None:
    server = TaskServer(is_session=True)
    answers = iter([failure, failure])
    server.on["tasks/result"] = lambda _: next(answers, result("done after all"))
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        assert (await client.call_tool("t")).text == "done after all"
    assert len(server.calls("tasks/result")) == 3


async def test_an_internal_error_of_a_task_that_has_ended_counts_the_second_time() -> None:
    """The first one may be that of a worker that cannot read the result now."""
    server = TaskServer(state("failed", statusMessage="The sheet is torn."), is_session=True)
    server.on["tasks/result"] = lambda _: Refusal(-32603, "Internal error")
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        with pytest.raises(RemoteError, match=r"The sheet is torn\."):
            await client.call_tool("t")
        assert len(server.calls("tasks/result")) == 2
        answers = iter([Refusal(-32603, "Internal error")])
        server.on["tasks/result"] = lambda _: next(answers, result("read by another worker"))
        assert (await client.call_tool("t")).text == "read by another worker"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_a_result_without_content_is_none(end: str) -> None:
    """Some servers answer so for a task that has no result. The state says how the task has ended."""
    server = TaskServer(state(end, statusMessage="torn"), is_session=True)
    server.on["tasks/result"] = lambda _: {"_meta": {}}
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        with pytest.raises(WeftError, match="torn" if end == "failed" else "was cancelled"):
            await client.call_tool("t")


# --- servers that are replaced


class Replaced:
    """A server that is replaced by one of the other era. Both know the task."""

    def __init__(self, *, is_session: bool) -> None:
        self.server = TaskServer(is_session=is_session)
        self.waits = 0  # requests for the result that wait
        self.answers = False  # whether requests for the result are answered

    async def serve(self, exchange: Exchange) -> None:
        server = self.server
        if exchange.method != "POST":
            await exchange.respond(405)
        elif not server.is_session:
            if "mcp-session-id" in exchange.headers:  # of a session that was
                await exchange.respond(404)
            elif exchange.rpc == "initialize":
                await exchange.error(400, -32601)
            else:
                await server.serve(exchange)
        elif exchange.rpc == "server/discover" or exchange.headers.get("mcp-protocol-version") == "2026-07-28":
            await exchange.respond(400)
        elif exchange.rpc == "initialize":
            await exchange.result(server._usual("initialize", {}), mcp_session_id="one")
        elif exchange.rpc == "tasks/result" and not self.answers:
            self.waits += 1
            await eventually(lambda: not server.is_session)
            exchange.cut()
        else:
            await server.serve(exchange)


@pytest.mark.spec("TASK-33")
@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_session_that_becomes_stateless_while_its_task_is_followed(has_ended: bool) -> None:
    """`tasks/result` does not exist any more, and the result is in the state."""
    replaced = Replaced(is_session=True)
    server = replaced.server
    limits = ClientLimits(task_lost_seconds=10)
    async with asyncio.timeout(LONG), http_server(replaced.serve) as url, Client(url, limits=limits) as client:
        calling = asyncio.create_task(client.call_tool("t", progress=lambda _: None))
        await eventually(lambda: replaced.waits)
        assert client.era == "session"
        if has_ended:
            server.task = done("the result")
            await eventually(lambda: "completed" in repr(client._tasks.all[ID].newest))
        server.is_session = False
        await eventually(lambda: client.era == "stateless")
        server.task = done("the result")
        assert (await calling).text == "the result"
    assert not server.calls("tasks/cancel")


async def test_a_stateless_server_that_becomes_one_with_sessions_while_its_task_is_followed() -> None:
    """The state has no result any more; `tasks/result` has it."""
    replaced = Replaced(is_session=False)
    server = replaced.server
    replaced.answers = True
    server.on["tasks/result"] = lambda _: result("the result")
    async with asyncio.timeout(LONG), http_server(replaced.serve) as url, Client(url) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get")
        assert client.era == "stateless"
        server.task = done("which the state does not have")
        server.is_session = True
        assert (await calling).text == "the result"
        assert client.era == "session"
    assert not server.calls("tasks/cancel")
