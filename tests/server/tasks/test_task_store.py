"""Programs outside of the server report on tasks: when they may, and what becomes of what they report."""

import asyncio
import re
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from support.raw_sessions import Reply, eventually
from support.session_tasks import CAPABILITIES, AppTaskPeer
from support.task_clients import accept, serving
from weft import Context, Limits, ProtocolError, Server, Task, TaskEnded, TaskStore, ToolError, UsageError
from weft.backends import Backend
from weft.backends.memory import MemoryBackend
from weft.server.tasks.records import TaskRecord, new_task_id
from weft.types import CallToolResult, TextContent

BAD = "no file \udcff.png"  # as `os.listdir` returns it for a name that is not UTF-8
GOOD = "no file \ufffd.png"


class Farm:
    """A server that hands work over, or keeps it, and the store with which the work is reported on."""

    def __init__(self, backend: Backend | None = None, **options: Any) -> None:
        self.server = Server("farm", backend=backend, **options)
        self.store = TaskStore(backend or self.server.backend)
        self.jobs: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()

        @self.server.tool(task=Task(ttl=1))
        async def soon(ctx: Context) -> Any:
            return ctx.task.external(self.jobs.put_nowait)

        @self.server.tool(task="optional")
        async def hand_over(ctx: Context, progress: float = 0) -> Any:
            await ctx.report_progress(progress)
            await self.go.wait()
            return ctx.task.external(self.jobs.put_nowait)

        @self.server.tool(task="optional")
        async def ask(ctx: Context) -> str:
            return (await ctx.elicit("Which?", Reply, key="which")).action


@pytest.fixture(params=["default", "shared"])
def farm(request: pytest.FixtureRequest) -> Farm:
    return Farm(MemoryBackend() if request.param == "shared" else None)


# Which tasks wait for a program.


async def test_a_task_that_was_not_handed_over_waits_for_no_program(farm: Farm) -> None:
    """With each backend: before, a program could end a task that a handler was running, if the memory was its own."""
    async with serving(farm.server) as client:
        running, asking = await client.start("hand_over", {"progress": 1}), await client.start("ask")
        await client.until(running, "working", says="1")
        await client.asked(asking)
        for id in (running, asking, new_task_id()):
            before = None if id not in (running, asking) else await client.get(id)
            assert await farm.store.status(id) is None
            assert not await farm.store.progress(id, 5, 10, "outside")
            assert not await farm.store.tell(id, "outside")
            assert not await farm.store.complete(id, {"any": "value"})
            assert not await farm.store.fail(id, "outside")
            with pytest.raises(TaskEnded, match="its work was not handed over"):
                await farm.store.ask(id, "Outside?", Reply, timeout=30)
            if before is not None:
                assert await client.get(id) == before
        farm.go.set()
        await client.update(asking, {"which": accept(value="a")})
        assert (await client.until(asking))["result"]["content"][0]["text"] == "accept"
        assert await farm.jobs.get() == running
        assert await farm.store.complete(running, "done")


async def test_a_task_waits_for_the_program_as_soon_as_it_knows_of_it(farm: Farm) -> None:
    """It may report while the function that passes on the work still runs."""
    ended: list[Any] = []
    handed = asyncio.Event()

    @farm.server.tool(task="optional")
    async def fast(ctx: Context) -> Any:
        async def submit(id: str) -> None:
            state = await farm.store.status(id)
            ended.append((state and state.status, await farm.store.tell(id, "begun"), await farm.store.complete(id, 7)))
            state = await farm.store.status(id)
            ended.append((state and state.status, await farm.store.tell(id, "late")))
            handed.set()

        return ctx.task.external(submit)

    async with serving(farm.server) as client:
        id = await client.start("fast")
        assert (await client.until(id))["result"]["content"][0]["text"] == "7"
        await handed.wait()
        plain = await client.undeclaring().call("fast")
        assert plain["content"][0]["text"] == "7"
    assert ended == [("working", True, True), ("completed", False)] * 2


async def test_a_task_that_has_ended_has_a_status_as_long_as_it_is_kept() -> None:
    """Where its server is noted expires no sooner than its record."""
    now = time.monotonic()
    late = 0.0
    farm = Farm(MemoryBackend(lambda: now + late), limits=Limits(task_kept_seconds=60))
    async with serving(farm.server) as client:
        id = await client.start("soon")
        assert await farm.jobs.get() == id
        assert await farm.store.complete(id, "done")
        late = 30.0  # far beyond its time to live
        assert (await client.get(id))["status"] == "completed"
        state = await farm.store.status(id)
        assert state is not None
        assert state.status == "completed"


# Progress.


@pytest.mark.spec("PROG-03")
async def test_progress_never_goes_back(farm: Farm) -> None:
    """A job that was restarted reports from the beginning. Its messages are shown."""
    client = AppTaskPeer(farm.server.asgi())
    await client.open("2025-11-25", CAPABILITIES)
    farm.go.set()
    id = (await client.start("hand_over", meta={"progressToken": "p"}, progress=2))["taskId"]
    assert await farm.jobs.get() == id
    waiting = await client.wait(id)
    reports: list[tuple[Any, ...]] = [
        (1, 10), (2, 10, "same"), (5, 10, "encoding"), (1, 10, "again"), (3, 4), (5, 20), (6.5, 20), (7, None, "end"),
    ]  # fmt: skip
    shown: list[Any] = []
    for report in reports:
        assert await farm.store.progress(id, *report)
        shown.append((await client.state(id))["statusMessage"])
    assert shown == [
        "2", "same (2)", "encoding (5/10)", "again (5/10)", "again (5/10)", "again (5/10)", "6.5/20", "end (7)",
    ]  # fmt: skip
    assert await farm.store.complete(id, "done")
    stream = await waiting
    told: list[Any] = []
    while "result" not in (note := await stream.message()):
        if note["method"] == "notifications/progress":
            told.append(note["params"]["progress"])
    assert told == sorted(set(told))  # which of them depends on how fast the stream is
    assert told[-1] == 7
    await client.leave()
    await farm.server.stop()


async def test_progress_that_is_stored_again_or_goes_back_is_not_notified_of(farm: Farm) -> None:
    """Whoever has stored it."""
    client = AppTaskPeer(farm.server.asgi())
    await client.open("2025-11-25", CAPABILITIES)
    farm.go.set()
    id = (await client.start("hand_over", meta={"progressToken": "p"}))["taskId"]
    assert await farm.jobs.get() == id
    records = farm.server.engine.tasks._records
    waiting = await client.wait(id)
    told: list[Any] = []
    for number in (1.0, 5.0, 4.0, 5.0, 6.0):

        def edit(record: TaskRecord, number: float = number) -> bool:
            record.progress, record.message = number, str(number)
            return True

        await records.change(id, edit)
        stream = await waiting
        while (note := await stream.message())["params"].get("statusMessage") != str(number):
            if note["method"] == "notifications/progress":
                told.append(note["params"]["progress"])
    assert [number for number in told if number > 0] == [1, 5, 6]  # 0 is the handler's
    assert await farm.store.complete(id, "done")
    assert await stream.text() == "done"
    await client.leave()
    await farm.server.stop()


# Values.


async def test_what_a_program_reports_is_stored_as_a_handler_reports_it(farm: Farm) -> None:
    farm.go.set()
    async with serving(farm.server) as client:
        id = await client.start("hand_over")
        assert await farm.jobs.get() == id
        assert await farm.store.progress(id, Decimal("1.5"), Decimal(3), BAD)  # type: ignore[arg-type] - it is a number
        assert (await client.get(id))["statusMessage"] == f"{GOOD} (1.5/3)"
        for number in (float("nan"), float("inf"), "7", None):
            with pytest.raises(UsageError, match=r"^progress\(progress=.*\) is not possible: JSON has no such number"):
                await farm.store.progress(id, number)  # type: ignore[arg-type] - that is the point
            if number is not None:
                with pytest.raises(UsageError, match=r"^progress\(total=.*\) is not possible: JSON has no such number"):
                    await farm.store.progress(id, 7, number)  # type: ignore[arg-type] - that is the point
        for report in (farm.store.progress(id, 7, 7, 7), farm.store.tell(id, 7)):  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="the message must be a text, not an int"):
                await report
        assert await farm.store.tell(id, BAD)
        assert (await client.get(id))["statusMessage"] == GOOD

        with pytest.raises(UsageError, match="the key is not Unicode"):
            await farm.store.ask(id, "Which?", Reply, key=BAD)
        asking = asyncio.create_task(farm.store.ask(id, BAD, Reply, key="which"))
        assert (await client.asked(id))["which"]["params"]["message"] == GOOD
        await client.update(id, {"which": accept(value="a")})
        assert (await asking).value == Reply("a")
        assert (await client.get(id))["status"] == "working"


@pytest.mark.parametrize(
    ("error", "status"),
    [(BAD, "completed"), (ToolError(BAD), "completed"), (ProtocolError(BAD, code=7, data={"a": 1}), "failed")],
)
async def test_a_failure_that_is_not_unicode_is_stored_with_a_replacement(error: Any, status: str) -> None:
    farm = Farm()
    farm.go.set()
    async with serving(farm.server) as client:
        id = await client.start("hand_over")
        assert await farm.jobs.get() == id
        assert await farm.store.fail(id, error)
        state = await client.get(id)
        assert state["status"] == status
        assert GOOD in (state["error"]["message"] if status == "failed" else state["result"]["content"][0]["text"])


@pytest.mark.parametrize(
    "end",
    [
        lambda store, task: store.complete(task, BAD),
        lambda store, task: store.complete(task, object()),
        lambda store, task: store.complete(task, CallToolResult(content=[TextContent(BAD)])),
        lambda store, task: store.fail(task, ProtocolError("Odd.", data=object())),
    ],
)
async def test_an_end_that_cannot_be_stored_is_raised_and_the_task_waits_on(end: Callable[..., Any]) -> None:
    farm = Farm()
    farm.go.set()
    async with serving(farm.server) as client:
        id = await client.start("hand_over")
        assert await farm.jobs.get() == id
        with pytest.raises(Exception, match=r"surrogate|JSON|unsupported"):
            await end(farm.store, id)
        assert (await client.get(id))["status"] == "working"
        assert await farm.store.complete(id, "done")
        await eventually(lambda: not farm.server.engine.tasks.runner._running)


# Mistakes of programs.


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda store, task: store.fail(task, None), "fail(id, None) is not possible: give a text or an exception"),
        (lambda store, task: store.fail(task, ToolError), "is not possible: give a text or an exception"),
        (lambda store, task: store.complete(None, "x"), "This is not the id of a task"),
        (lambda store, task: store.progress("", 1), "This is not the id of a task"),
    ],
)
async def test_mistakes_of_programs_are_told(farm: Farm, mistake: Callable[..., Any], said: str) -> None:
    async with serving(farm.server) as client:
        farm.go.set()
        id = await client.start("hand_over")
        await farm.jobs.get()
        with pytest.raises(UsageError, match=re.escape(said)):
            await mistake(farm.store, id)
        assert await farm.store.complete(id, "done")


@pytest.mark.parametrize("backend", ["memory:", "memory://"])
def test_a_memory_of_its_own_has_no_tasks(backend: str) -> None:
    with pytest.raises(UsageError, match="is a memory of its own, in which there are no tasks"):
        TaskStore(backend)


def test_a_server_is_no_backend() -> None:
    with pytest.raises(UsageError, match="which is not a backend"):
        TaskStore(Server("farm"))  # type: ignore[arg-type] - a mistake


@pytest.mark.parametrize("error", ["It is torn.", ToolError("It is torn.")])
async def test_a_failure_is_shown_as_the_status_too(farm: Farm, error: str | ToolError) -> None:
    async with serving(farm.server) as client:
        farm.go.set()
        id = await client.start("hand_over", {"progress": 1})
        await farm.jobs.get()
        assert await farm.store.fail(id, error)
        state = await client.get(id)
        assert (state["status"], state["statusMessage"]) == ("completed", "It is torn.")


async def test_work_is_handed_over_when_the_backend_is_back(farm: Farm) -> None:
    """The server of the task could not be noted at first."""
    store: Any = farm.server.engine.whole_backend.store
    put, failures = store.put, [ConnectionError("away"), ConnectionError("away")]

    async def fail(key: str, *args: Any, **options: Any) -> Any:
        if "task-server/" in key and failures:
            raise failures.pop()
        return await put(key, *args, **options)

    store.put = fail
    async with serving(farm.server) as client:
        farm.go.set()
        id = await client.start("hand_over")
        assert await farm.jobs.get() == id
        assert await farm.store.complete(id, "done")
        assert (await client.until(id))["result"]["content"][0]["text"] == "done"
    assert not failures
