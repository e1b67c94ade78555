"""Calls that become tasks, followed to their end: polled as the server wants, shown, given up, cancelled, taken up."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support import serve
from support.fakes import http_server
from support.raw_sessions import eventually
from support.task_servers import ID, SILENCE, TASKS, Refusal, TaskServer, done, form, result, state
from weft import (
    Client,
    ClientLimits,
    ConnectionFailed,
    Context,
    InvalidAnswer,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    Server,
    Task,
    TaskEnded,
    ToolError,
    UsageError,
)
from weft.client.requests import known_tasks
from weft.client.results import ToolCallFailed

WAYS = ("pipe", "http")
LONG = 30


class Opened:
    """Open a client for a scripted server, in this process or over HTTP."""

    def __init__(self, server: TaskServer, way: str = "pipe", **options: Any) -> None:
        self._server, self._way, self._options = server, way, options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Client:
        target: Any = self._server
        if self._way == "http":
            target = await self._stack.enter_async_context(http_server(self._server.serve))
        return await self._stack.enter_async_context(Client(target, **self._options))

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# --- the two shapes of an answer


@pytest.mark.spec("TASK-01", "TASK-03", "TASK-16b")
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_gives_the_result_whether_it_became_a_task_or_not(way: str) -> None:
    server = TaskServer()
    shapes = itertools.cycle([lambda: result("plain"), lambda: {**state(), "resultType": "task"}])
    server.on["tools/call"] = lambda _: next(shapes)()
    server.on["tasks/get"] = lambda _: {**done("late"), "resultType": "complete"}
    async with asyncio.timeout(LONG), Opened(server, way) as client:
        texts = [(await client.call_tool("t")).text for _ in range(4)]
    assert texts == ["plain", "late", "plain", "late"]
    for call in (message for message in server.heard if message["method"] != "server/discover"):
        declared = call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert declared["extensions"] == {TASKS: {}}  # with each request


@pytest.mark.spec("TASK-28")
async def test_each_request_about_a_task_names_it_in_its_headers() -> None:
    server = TaskServer(state("input_required", inputRequests={"a": form()}))
    async with asyncio.timeout(LONG), Opened(server, "http", manual_input=True) as client:
        handle = await client.start_tool("t")
        await handle.status()
        await handle.answer({"a": {"action": "decline"}})
        await handle.cancel()
    named = [(one["mcp-method"], one["mcp-name"]) for one in server.headers if one["mcp-method"].startswith("tasks/")]
    assert named == [("tasks/get", ID), ("tasks/update", ID), ("tasks/cancel", ID)]


async def test_a_handle_with_a_result_needs_no_further_request() -> None:
    """A handle has no result, but it can be used if a server sends it."""
    server = TaskServer()
    server.on["tools/call"] = lambda _: {**done("at once"), "resultType": "task"}
    async with asyncio.timeout(LONG), Client(server) as client:
        assert (await client.call_tool("t")).text == "at once"
    assert not server.calls("tasks/get")


async def test_a_handle_of_a_call_that_was_answered_plainly_has_all_members() -> None:
    server = TaskServer()
    server.on["tools/call"] = lambda _: result("plain")
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        assert (handle.id, handle.tool, handle.immediate_response) == (None, "t", None)
        assert (await handle.status()).status == "completed"
        assert [one.status async for one in handle] == ["completed"]
        assert (await handle.result()).text == "plain"
        await handle.cancel()
        with pytest.raises(UsageError, match="asks nothing"):
            await handle.answer({"a": {"action": "decline"}})
    assert not [message for message in server.heard if message["method"].startswith("tasks/")]


async def test_a_client_without_tasks_does_not_declare_them_and_accepts_none() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server, tasks=False) as client:
        with pytest.raises(InvalidAnswer, match=r"does not follow\. Remove `tasks=False`"):
            await client.call_tool("t")
    declared = server.calls("tools/call")[0]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert TASKS not in declared.get("extensions", {})
    assert not server.calls("tasks/get")


# --- polling


@pytest.mark.spec("TASK-16a", "TASK-16b")
async def test_the_client_polls_no_faster_than_the_server_last_said() -> None:
    """The interval changes with each state; a state that says nothing else counts, too."""
    server = TaskServer(state(pollIntervalMs=150))
    intervals = iter([300, 80, 200])

    def get(_: Any) -> dict[str, Any]:
        interval = next(intervals, None)
        server.task = done() if interval is None else {**server.task, "pollIntervalMs": interval}
        return {**server.task, "resultType": "complete"}

    server.on["tasks/get"] = get
    async with asyncio.timeout(LONG), Client(server) as client:
        assert (await client.call_tool("t")).text == "done"
    waited = gaps([*server.times["tools/call"], *server.times["tasks/get"]])
    assert len(waited) == 4
    for seconds, least in zip(waited, (0.15, 0.3, 0.08, 0.2), strict=True):
        assert seconds >= least * 0.98


@pytest.mark.spec("TASK-16a")
@pytest.mark.parametrize("interval", [0, -5, 0.001, 1])
async def test_a_server_cannot_make_the_client_poll_without_pause(interval: float) -> None:
    server = TaskServer(state(pollIntervalMs=interval))
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get", 4)
        server.task = done()
        await calling
    assert min(gaps(server.times["tasks/get"])) >= known_tasks.LEAST_POLL * 0.98


async def test_a_state_that_was_polled_counts_although_its_clock_goes_back() -> None:
    """The clocks of a server's workers differ. A task that has ended must not be missed for that."""
    server = TaskServer(state(lastUpdatedAt="2099-01-01T00:00:00Z"))
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        seen: list[str | None] = []
        async for one in handle:
            seen.append(one.message)
            server.task = state(statusMessage="slower") if len(seen) == 1 else done()
        assert seen == [None, "slower", None]


# --- what is shown


async def test_each_status_message_is_shown_once() -> None:
    server = TaskServer()
    shown: list[tuple[float, str | None]] = []
    said = iter(["begun", "begun", "half", "half", "almost"])

    def get(_: Any) -> dict[str, Any]:
        message = next(said, None)
        return {**(done() if message is None else state(statusMessage=message)), "resultType": "complete"}

    server.on["tasks/get"] = get
    async with asyncio.timeout(LONG), Client(server) as client:
        await client.call_tool("t", progress=lambda update: shown.append((update.progress, update.message)))
    assert shown == [(1, "begun"), (2, "half"), (3, "almost")]


async def test_a_function_for_progress_that_raises_does_not_stop_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any) -> None:
        raise ValueError("no")

    server = TaskServer(state(statusMessage="begun"))
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t", progress=fail))
        await server.asked("tasks/get")
        server.task = done()
        assert (await calling).text == "done"
    assert "progress= failed." in caplog.text


async def test_iteration_shows_each_change_once_and_ends_with_the_final_state() -> None:
    server = TaskServer(state(statusMessage="a"))
    changes = iter([state(statusMessage="a"), state(statusMessage="b"), done()])
    seen: list[tuple[str, str | None]] = []
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        async for one in handle:
            seen.append((one.status, one.message))
            server.task = next(changes, server.task)
        assert (await handle.result()).text == "done"
    assert seen == [("working", "a"), ("working", "a"), ("working", "b"), ("completed", None)]


async def test_a_state_has_its_times_in_seconds() -> None:
    server = TaskServer(state(createdAt="2026-07-28T00:00:00.500Z", ttlMs=None, pollIntervalMs=1500))
    async with asyncio.timeout(LONG), Client(server) as client:
        one = await (await client.start_tool("t")).status()
    assert (one.created % 1, one.ttl, one.poll, one.is_final) == (0.5, float("inf"), 1.5, False)


# --- how a task ends


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (state("cancelled"), TaskEnded, "The task was cancelled"),
        (state("failed", error={"code": 1001, "message": "torn", "data": 7}), RemoteError, "torn"),
        (Refusal(-32602, "no such task"), TaskEnded, "no such task"),
    ],
)
@pytest.mark.spec("new-11")
async def test_a_task_that_ends_without_a_result(end: Any, error: type[Exception], text: str) -> None:
    """The last one: a task whose time to live is over is purged."""
    server = TaskServer()
    server.on["tasks/get"] = lambda _: end if isinstance(end, Refusal) else {**end, "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(error, match=text) as failure:
            await client.call_tool("t")
        if isinstance(failure.value, RemoteError):
            assert (failure.value.code, failure.value.data) == (1001, 7)
    assert not server.calls("tasks/cancel")  # it has ended by itself


async def test_a_tool_that_fails_is_a_result() -> None:
    server = TaskServer(state("completed", result={**result("broken"), "isError": True}))
    async with asyncio.timeout(LONG), Client(server) as client:
        failed = await client.call_tool("t")
        assert (failed.is_error, failed.text) == (True, "broken")
        with pytest.raises(ToolCallFailed, match="broken"):
            await client.call_tool("t", raise_on_error=True)
        handle = await client.start_tool("t")
        assert [one.is_error async for one in handle] == [True]
        assert (await handle.status()).is_error


@pytest.mark.parametrize("value", [{**result("broken"), "isError": "yes"}, 7])
async def test_the_state_of_a_task_can_be_read_although_its_result_cannot(value: Any) -> None:
    server = TaskServer(state("completed", result=value))
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        assert ((await handle.status()).is_final, (await handle.status()).is_error) == (True, False)
        with pytest.raises(InvalidAnswer):
            await handle.result()


@pytest.mark.spec("new-11")
async def test_a_task_that_has_expired_does_not_exist_any_more() -> None:
    server = TaskServer()
    server.on.update(dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), lambda _: Refusal(-32602, "gone")))
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = client.task(ID)
        for use in (handle.status, handle.result, handle.cancel, lambda: handle.answer({"a": {}})):
            with pytest.raises(TaskEnded, match="does not exist"):
                await use()
        with pytest.raises(TaskEnded):
            await anext(aiter(handle))


# --- stopping to wait


@pytest.mark.spec("TASK-22", "new-17")
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_is_cancelled_cancels_its_task_and_no_request(way: str) -> None:
    server = TaskServer(state(pollIntervalMs=60_000))
    async with asyncio.timeout(LONG), Opened(server, way) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tools/call")
        await eventually(lambda: client._tasks._followed)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert [call["params"]["taskId"] for call in server.calls("tasks/cancel")] == [ID]
    assert not server.calls("notifications/cancelled")


@pytest.mark.spec("TASK-16b", "TASK-22")
async def test_a_call_that_takes_too_long_cancels_its_task() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(RequestTimeout, match=r"The task of 't' was not done within .*client\.start_tool"):
            await client.call_tool("t", timeout=0.3)
    assert len(server.calls("tasks/cancel")) == 1
    assert not server.calls("notifications/cancelled")


async def test_progress_restarts_the_timeout_of_a_call() -> None:
    """Each message comes well within the time, and all together take longer."""
    server = TaskServer()
    numbers = itertools.count()

    def get(_: Any) -> dict[str, Any]:
        number = next(numbers)
        return {**(done() if number == 15 else state(statusMessage=f"{number}")), "resultType": "complete"}

    server.on["tasks/get"] = get
    shown: list[str | None] = []
    async with asyncio.timeout(LONG), Client(server) as client:
        await client.call_tool("t", timeout=0.6, progress=lambda update: shown.append(update.message))
    assert len(shown) == 15
    assert server.times["tasks/get"][-1] - server.times["tools/call"][0] > 0.6


@pytest.mark.parametrize("way", ["cancelled", "timeout", "left"])
async def test_a_handle_that_is_given_up_leaves_the_task_alone(way: str) -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        if way == "timeout":
            with pytest.raises(RequestTimeout):
                await handle.result(timeout=0.2)
        elif way == "cancelled":
            waiting = asyncio.create_task(handle.result())
            await server.asked("tasks/get")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            async for _ in handle:
                break
        server.task = done("later")
        assert (await handle.result()).text == "later"
    assert not server.calls("tasks/cancel")
    [call] = server.calls("tools/call")  # a request for its state may be cancelled, if one was on its way
    assert all(one["params"]["requestId"] != call["id"] for one in server.calls("notifications/cancelled"))


async def test_the_longest_time_for_a_task_is_a_limit() -> None:
    for options in ({}, {"timeout": 100}):
        server = TaskServer()
        async with asyncio.timeout(LONG), Client(server, limits=ClientLimits(task_seconds=0.3)) as client:
            with pytest.raises(RequestTimeout, match=r"within 0\.3 s.*task_seconds"):
                await client.call_tool("t", **options)
        assert len(server.calls("tasks/cancel")) == 1


async def test_two_may_wait_for_one_task() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        first, second = (asyncio.create_task(handle.result()) for _ in range(2))
        await server.asked("tasks/get", 2)
        first.cancel()
        await asyncio.wait([first])
        server.task = done()
        assert (await second).text == "done"


# --- connections that are lost


async def test_a_connection_that_is_lost_and_back_is_no_error() -> None:
    server = TaskServer()
    states = iter(["cut", "busy", "internal", "gone", "done"])

    async def serve(exchange: Any) -> None:
        if exchange.rpc != "tasks/get":
            await server.serve(exchange)
            return
        match next(states):
            case "cut":
                exchange.cut()
            case "busy":
                await exchange.respond(503, retry_after="0")
            case "internal":
                await exchange.error(200, -32603)
            case "gone":
                await exchange.respond(502, b"<html>", "text/html")
            case _:
                server.task = done("back")
                await server.serve(exchange)

    async with asyncio.timeout(LONG), http_server(serve) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "back"
    assert len(server.calls("tools/call")) == 1


async def test_a_server_that_stays_away_is_given_up_after_some_time() -> None:
    server = TaskServer()
    limits = ClientLimits(task_lost_seconds=0.5)
    async with asyncio.timeout(LONG), Client(server) as other:  # the id outlives each connection
        id = (await other.start_tool("t")).id or ""
    async with asyncio.timeout(LONG), AsyncExitStack() as stack:
        listening = AsyncExitStack()
        url = await listening.enter_async_context(http_server(server.serve))
        client = await stack.enter_async_context(Client(url, limits=limits))
        await client.start_tool("t")
        await listening.aclose()
        with pytest.raises(ConnectionFailed):
            await client.task(id).result()


async def test_a_server_that_was_restarted_still_has_the_task() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), AsyncExitStack() as stack:
        first = AsyncExitStack()
        url = await first.enter_async_context(http_server(server.serve))
        client = await stack.enter_async_context(Client(url))
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get")
        await first.aclose()
        server.task = done("after the restart")
        port = int(url.rpartition(":")[2].partition("/")[0])
        await stack.enter_async_context(http_server(server.serve, port))
        assert (await calling).text == "after the restart"


@pytest.mark.parametrize("code", [-32601, -32021, -32600, 5])
async def test_other_errors_of_the_server_are_not_tried_again(code: int) -> None:
    server = TaskServer()
    server.on["tasks/get"] = lambda _: Refusal(code, "never")
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(RemoteError, match="never"):
            await client.call_tool("t")
    assert len(server.calls("tasks/get")) == 1


async def test_a_client_that_is_closed_tells_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when it would ask or listen again."""
    monkeypatch.setattr(known_tasks, "_LISTEN_AGAIN_SECONDS", 1000)
    server = TaskServer(state(pollIntervalMs=60_000))
    client = Client(server)
    async with asyncio.timeout(LONG):
        await client.connect()
        handle = await client.start_tool("t")

        async def iterate() -> None:
            async for _ in handle:
                pass

        waiting = [asyncio.create_task(client.call_tool("t")), asyncio.create_task(handle.result())]
        waiting.append(asyncio.create_task(iterate()))
        await eventually(lambda: sum(len(one.followers) for one in client._tasks._followed) == 3)
        await client.close()
        failures = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(failure) for failure in failures] == [ConnectionFailed] * 3
        with pytest.raises(UsageError):
            await handle.result()
        await client.connect()  # the same handle, over the next connection
        server.task = done()
        assert (await handle.status()).is_final
        assert (await handle.result()).text == "done"
        await client.close()


# --- with servers of Weft


def studio() -> tuple[Server, asyncio.Event]:
    server, go_on = Server("studio"), asyncio.Event()

    @server.tool(task=Task(poll=0.05))
    async def render(ctx: Context, scene: str) -> dict[str, str]:
        await ctx.report_progress(1, 2, "painting")
        await go_on.wait()
        return {"scene": scene}

    @server.tool
    async def finish() -> None:
        go_on.set()

    @server.tool(task=Task(poll=0.05))
    async def spill() -> str:
        raise ToolError("There is no red any more.")

    @server.tool(task=Task(poll=0.05))
    async def tear() -> str:
        raise ProtocolError("The sheet is torn.", code=1001)

    return server, go_on


@pytest.mark.spec("TASK-16c", "TASK-03", "L11-43c")
@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_a_task_is_taken_up_by_another_client_by_its_id(era: Any) -> None:
    server, _ = studio()
    with serve(server) as live:
        url = f"http://127.0.0.1:{live.port}/mcp"
        async with asyncio.timeout(LONG), Client(url, eras=(era,)) as client:
            stored = (await client.start_tool("render", {"scene": "attic"})).id
        assert isinstance(stored, str)
        async with asyncio.timeout(LONG), Client(url, eras=(era,)) as client:
            handle = client.task(stored, tool="render")
            assert (await handle.status()).status == "working"
            await client.call_tool("finish")
            assert (await handle.result(result_type=dict[str, str])) == {"scene": "attic"}
            assert (await client.task(stored).result()).structured == {"scene": "attic"}
            assert repr(handle) == "<TaskHandle of 'render'>"  # an id in a log would be a key to the result


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_progress_and_iteration_with_a_server_of_weft(era: Any) -> None:
    server, go_on = studio()
    shown: list[str | None] = []

    def show(update: Any) -> None:
        shown.append(update.message)
        go_on.set()

    async with asyncio.timeout(LONG), Client(server, eras=(era,)) as client:
        outcome = await client.call_tool("render", {"scene": "attic"}, progress=show)
        assert outcome.structured == {"scene": "attic"}
        seen = [one.status async for one in await client.start_tool("render", {"scene": "cellar"})]
    assert shown[0] in ("painting (1/2)", "painting")
    assert (seen[0], seen[-1]) == ("working", "completed")


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_failures_with_a_server_of_weft(era: Any) -> None:
    server, _ = studio()
    async with asyncio.timeout(LONG), Client(server, eras=(era,)) as client:
        spilt = await client.call_tool("spill")
        assert (spilt.is_error, spilt.text) == (True, "There is no red any more.")
        with pytest.raises(RemoteError, match="The sheet is torn") as torn:
            await client.call_tool("tear")
        assert torn.value.code == 1001
        with pytest.raises(TaskEnded, match="does not exist"):
            await client.task("unknown").result()


@pytest.mark.spec("TASK-22")
@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_cancelling_with_a_server_of_weft(era: Any) -> None:
    server, _ = studio()
    async with asyncio.timeout(LONG), Client(server, eras=(era,)) as client:
        handle = await client.start_tool("render", {"scene": "attic"})
        waiting = asyncio.create_task(handle.result())
        await handle.cancel()
        with pytest.raises(TaskEnded, match="cancelled"):
            await waiting
        await handle.cancel()  # it has ended: nothing happens
        assert (await handle.status()).status == "cancelled"


@pytest.mark.parametrize("version", ["2025-06-18", "2024-11-05"])
async def test_a_call_of_a_version_without_tasks_can_be_started(version: str) -> None:
    """It has its result, so nothing is asked of tasks, which do not exist."""
    server, go_on = studio()
    go_on.set()
    async with asyncio.timeout(LONG), Client(server, version=version) as client:
        handle = await client.start_tool("spill")
        assert (handle.id, (await handle.result()).text) == (None, "There is no red any more.")
        assert (await handle.status()).is_final
        assert [one.status async for one in handle] == ["completed"]
        await handle.cancel()


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_a_tool_that_needs_tasks_tells_a_client_without_them_what_to_change(era: Any) -> None:
    server = Server("studio")

    @server.tool(task="required")
    async def bake() -> str:
        return "baked"

    async with asyncio.timeout(LONG), Client(server, eras=(era,), tasks=False) as client:
        with pytest.raises(RemoteError, match=r"[^:]*\. Remove `tasks=False` from the client\. \(-32\d+\)$") as failure:
            await client.call_tool("bake")
        assert "does not offer" not in str(failure.value)
        assert "extensions" not in str(failure.value)
    async with asyncio.timeout(LONG), Client(server, eras=(era,)) as client:
        assert (await client.call_tool("bake")).text == "baked"


async def test_a_server_without_tools_is_not_taken_for_one_with_tasks() -> None:
    server = TaskServer(is_session=True)
    server.capability = None
    server.on["tools/call"] = lambda _: Refusal(-32601, "Method not found")
    async with asyncio.timeout(LONG), Client(server, eras=("session",), tasks=False) as client:
        with pytest.raises(RemoteError, match=r"Method not found: the server does not offer tools/call"):
            await client.call_tool("t")
    server.capability = {"requests": {"tools": {"call": {}}}}
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        with pytest.raises(RemoteError, match=r"^Method not found \(-32601\)$"):
            await client.call_tool("t")


async def test_a_task_of_another_version_is_not_known() -> None:
    """Versions before 2025-11-25 have no tasks; the error says what to do."""
    server, go_on = studio()
    go_on.set()
    async with asyncio.timeout(LONG), Client(server, version="2025-06-18") as client:
        assert (await client.call_tool("render", {"scene": "attic"})).structured == {"scene": "attic"}
        with pytest.raises(UsageError, match=r"There are no tasks in protocol version 2025-06-18.*Use call_tool"):
            await client.task("x").status()


async def test_an_id_must_be_a_text() -> None:
    async with Client(TaskServer()) as client:
        for wrong in (None, "", 7):
            with pytest.raises(UsageError, match="takes the id of a task"):
                client.task(wrong)  # type: ignore[arg-type] - that is the point


async def test_a_request_that_never_gets_an_answer_is_given_up() -> None:
    server = TaskServer()
    server.on["tasks/get"] = lambda _: SILENCE
    limits = ClientLimits(request_seconds=0.2, task_lost_seconds=0.3)
    async with asyncio.timeout(LONG), Client(server, limits=limits) as client:
        with pytest.raises(RequestTimeout, match="did not answer tasks/get"):
            await client.call_tool("t")
    assert len(server.calls("tasks/cancel")) == 1
