"""Values that cannot be stored: a task ends as the plain call would, and its handler never runs again for that."""

import asyncio
import logging
from collections.abc import AsyncIterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from support.backends import YieldingBackend
from support.raw_sessions import Reply, eventually
from support.task_clients import TaskClient, accept, serving
from support.task_fleets import NAME, TaskFleet, TaskWorker
from weft import Context, InputRequired, Limits, ProtocolError, Server, Task, TaskStore, ToolError, UsageError, ask_form
from weft.backends.scoped import ScopedBackend
from weft.server.tasks.runs import TaskRun
from weft.types import CallToolResult
from weft.types.lifecycle import LOG_LEVEL_KEY

BAD = "no file \udcff.png"  # as `os.listdir` returns it for a name that is not UTF-8
GOOD = "no file \ufffd.png"


class Float32:
    """Stands for numpy.float32, which is no float."""

    def __float__(self) -> float:
        return 0.5


class Wordless(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("There is no text.")


class Lab:
    """A server whose tool does what a test gives it, and counts how often it runs."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("lab", **options)
        self.do: Any = None  # is called with the context by the tool
        self.runs = 0

        @self.server.tool(task="optional")
        async def at_once(ctx: Context) -> Any:
            self.runs += 1
            return await self.do(ctx)

        @self.server.tool(task=Task(after=0.01))
        async def later(ctx: Context) -> Any:
            self.runs += 1
            while ctx.task.id is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.005)
            return await self.do(ctx)


@pytest.fixture
def lab() -> Lab:
    return Lab()


@pytest.fixture
async def client(lab: Lab) -> AsyncIterator[TaskClient]:
    async with serving(lab.server) as one:
        yield one


# Progress and texts.


@pytest.mark.parametrize(
    ("progress", "total", "said"),
    [
        (Decimal("0.5"), None, "0.5"),
        (Fraction(1, 2), Fraction(3, 2), "0.5/1.5"),
        (Float32(), Decimal(3), "0.5/3"),
        (2**70, None, "1.18059e+21"),
    ],
)
async def test_progress_of_any_kind_is_stored(
    lab: Lab, client: TaskClient, progress: Any, total: Any, said: str
) -> None:
    done = asyncio.Event()

    async def work(ctx: Context) -> str:
        await ctx.report_progress(progress, total)
        await done.wait()
        return "done"

    lab.do = work
    id = await client.start("at_once")
    await client.until(id, "working", says=said)
    done.set()
    assert (await client.until(id))["status"] == "completed"


@pytest.mark.parametrize("how", ["progress", "log", "external"])
async def test_a_message_that_is_not_unicode_is_shown_with_a_replacement(
    lab: Lab, client: TaskClient, how: str
) -> None:
    done = asyncio.Event()

    async def work(ctx: Context) -> Any:
        if how == "external":
            return ctx.task.external(lambda _: None, message=BAD)
        await (ctx.error(BAD) if how == "log" else ctx.report_progress(1, message=BAD))
        await done.wait()
        return "done"

    lab.do = work
    handle = await client.result("tools/call", {"name": "at_once", "arguments": {}}, meta={LOG_LEVEL_KEY: "debug"})
    await client.until(handle["taskId"], "working", says=f"{GOOD} (1)" if how == "progress" else GOOD)
    done.set()


async def test_a_message_for_work_outside_is_a_text(lab: Lab, client: TaskClient) -> None:
    said: list[str] = []

    async def work(ctx: Context) -> Any:
        with pytest.raises(UsageError) as raised:
            ctx.task.external(print, message=Float32())  # type: ignore[arg-type] - that is the point
        said.append(str(raised.value))
        return "done"

    lab.do = work
    await client.until(await client.start("at_once"), "completed")
    assert said == [
        "ctx.task.external(...) is not possible: the message must be a text, not a Float32. Write str(...)."
    ]


async def test_a_question_that_is_not_unicode_is_asked_with_a_replacement(lab: Lab, client: TaskClient) -> None:
    async def work(ctx: Context) -> Any:
        return (await ctx.elicit(BAD, Reply, key="which")).action

    lab.do = work
    id = await client.start("at_once")
    assert (await client.asked(id))["which"]["params"]["message"] == GOOD
    await client.update(id, {"which": accept(value="a")})
    assert (await client.until(id))["result"]["content"][0]["text"] == "accept"


# How a handler can end.


async def _keep(ctx: Context) -> None:
    await ctx.once(BAD, lambda: 1)


async def _ask(ctx: Context) -> None:
    await ctx.elicit("Which?", Reply, key=BAD)


async def _return_question(ctx: Context) -> Any:
    return InputRequired({BAD: ask_form("Which?", Reply)})


async def _return_state(ctx: Context) -> Any:
    return InputRequired(state={"file": BAD})


async def _return_text(ctx: Context) -> Any:
    return BAD


async def _return_broken_json(ctx: Context) -> Any:
    return CallToolResult(content=[], structured_content=msgspec.Raw(b'{"half":'))


def _raising(error: Exception) -> Any:
    async def work(ctx: Context) -> None:
        raise error

    return work


@pytest.mark.parametrize("tool", ["at_once", "later"])
@pytest.mark.parametrize(
    ("work", "said"),
    [
        (_keep, "Internal error."),
        (_ask, "Internal error."),
        (_return_question, "Internal error."),
        (_return_state, "Internal error."),
        (_return_text, "Internal error."),
        (_return_broken_json, "Internal error."),
        (_raising(ToolError(BAD)), GOOD),
        (_raising(ProtocolError(BAD, code=7)), GOOD),
        (_raising(ProtocolError("Odd.", code=7, data=BAD)), "Odd."),
        (_raising(Wordless()), "Internal error."),
    ],
)
async def test_a_value_that_cannot_be_stored_ends_the_task(
    lab: Lab, client: TaskClient, tool: str, work: Any, said: str
) -> None:
    """It fails as the plain call does. Before, such a handler ran again every two seconds, or the task never ended."""
    lab.do = work
    state = await client.until(await client.start(tool), seconds=20)
    assert said in (state["error"]["message"] if "error" in state else state["result"]["content"][0]["text"])
    assert lab.runs == 1

    if tool == "at_once" and work is not _return_broken_json:  # a plain client gets that as it is
        plain = await (await client.undeclaring().send("tools/call", {"name": tool, "arguments": {}})).json()
        outcomes = {name for name in ("error", "result") if name in plain}
        assert outcomes == {name for name in ("error", "result") if name in state}
        text = plain["error"]["message"] if "error" in plain else plain["result"]["content"][0]["text"]
        assert said in text
        if "error" in plain:
            assert plain["error"]["code"] == state["error"]["code"]


async def test_what_the_dispatcher_does_not_catch_ends_the_task(
    lab: Lab, client: TaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(call: Any) -> Any:
        lab.runs += 1
        raise ValueError("SECRET")

    monkeypatch.setattr(lab.server.engine.tasks.runner, "perform", broken)
    state = await client.until(await client.start("at_once"), seconds=20)
    assert (state["status"], state["error"]["code"], lab.runs) == ("failed", -32603, 1)
    assert "SECRET" not in state["error"]["message"]


async def test_progress_that_cannot_be_stored_is_dropped(
    lab: Lab, client: TaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that a handler can report comes so far. If it did, it would be written again and again."""
    writes: list[Any] = []

    def broken(run: TaskRun, record: Any) -> bool:
        writes.append((run._report and run._report[0], run._text))
        if run._report is not None:
            raise TypeError("It cannot be stored.")
        return True

    async def work(ctx: Context) -> str:
        await ctx.report_progress(1)
        await eventually(lambda: writes)
        await ctx.info("later")
        await eventually(lambda: len(writes) > 1)
        return "done"

    monkeypatch.setattr(TaskRun, "write_progress", broken)
    lab.do = work
    handle = await client.result("tools/call", {"name": "at_once", "arguments": {}}, meta={LOG_LEVEL_KEY: "debug"})
    assert (await client.until(handle["taskId"]))["status"] == "completed"
    assert writes[:2] == [(1, None), (None, "later")]
    assert caplog.text.count("The progress of a task cannot be stored") == 1


# The Backend fails, with whatever exception.


@pytest.mark.parametrize("failure", [ValueError, TypeError, OSError, LookupError])
async def test_what_a_backend_raises_is_tried_again(failure: type[Exception]) -> None:
    """A backend of a user may raise anything. It cannot be mistaken for a value that cannot be stored."""
    backend = YieldingBackend()
    lab, tried = Lab(backend=backend), asyncio.Event()

    class Broken(failure):  # type: ignore[misc, valid-type] - one of the four
        def __str__(self) -> str:  # called before the next attempt, for the log
            tried.set()
            return "It is broken."

    parts: Any = (backend.store, backend.log)
    for part in parts:
        part.failure = Broken()

    async def work(ctx: Context) -> str:
        for part in parts:
            part.is_gone = True
        await ctx.report_progress(1, message="painting")
        return await ctx.once("step", lambda: "stepped")

    lab.do = work
    async with serving(lab.server) as client:
        id = await client.start("at_once")
        async with asyncio.timeout(30):
            await tried.wait()
        for part in parts:
            part.is_gone = False
        assert (await client.until(id))["result"]["content"][0]["text"] == "stepped"
    assert lab.runs == 1


# What is stored cannot be read.


@pytest.fixture
async def fleet() -> AsyncIterator[TaskFleet]:
    made = TaskFleet(_build, limits=Limits(drain_seconds=0.2))
    yield made
    await made.close()


def _build(worker: TaskWorker) -> None:
    @worker.server.tool(task="optional")
    async def hold(ctx: Context) -> str:
        if not getattr(worker, "is_second", False):
            await asyncio.Event().wait()
        return "done"


@pytest.mark.parametrize("poison", [b"", b"\xff", b"{}", b"[1,2]", b"[" * 10_000])
async def test_a_record_that_cannot_be_read_does_not_exist(
    fleet: TaskFleet, poison: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """And it does not keep the tasks of a dead worker from being taken over."""
    one, two = await fleet.add(2)
    two.is_second = True  # type: ignore[attr-defined] - for the handler
    ids = [await one.start("hold") for _ in range(5)]
    await eventually(lambda: len(one.runner._runs) == 5)
    store = ScopedBackend(fleet.memory, NAME).store
    with caplog.at_level(logging.ERROR):
        for id in ids[:4]:
            await store.put(f"task/{id}", poison, ttl=60)
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            error = (await two.send(method, {"taskId": ids[0]})).error
            assert (error["code"], "there is no task" in error["message"]) == (-32602, True)
        assert not await TaskStore(fleet.memory).complete(ids[0], "done")
        logged = [line for line in caplog.text.splitlines() if f"stored of task {ids[0][:6]} cannot be read" in line]
        assert len(logged) == 1
        await fleet.kill(one)
        assert await two.text(ids[4]) == "done"
    left = ScopedBackend(fleet.memory, NAME).sets
    for worker in (one, two):  # nobody tries again
        await _until_empty(left, f"tasks-at/{worker.server.engine.fleet.worker}")
    assert not two.runner._delayed


async def _until_empty(sets: Any, key: str) -> None:
    async with asyncio.timeout(30):
        while await sets.names(key):  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["task-request", "journal"])
async def test_a_task_whose_journal_cannot_be_read_has_failed(fleet: TaskFleet, kind: str) -> None:
    one, two = await fleet.add(2)
    id = await one.start("hold")
    await eventually(lambda: len(one.runner._runs) == 1)
    part = ScopedBackend(fleet.memory, NAME)
    if kind == "journal":
        await part.log.append(f"journal/{id}", b"[7]", ttl=60, most=100)
    else:
        await part.store.put(f"task-request/{id}", b"[7]", ttl=60)
    await fleet.kill(one)
    state = await two.until(id)
    assert (state["status"], state["error"]["code"]) == ("failed", -32603)
    assert "request of this task is lost" in state["error"]["message"]


async def test_a_task_whose_request_is_of_another_kind_has_failed(fleet: TaskFleet) -> None:
    """It can be decoded, but no call can be made of it. The task is not tried again for ever."""
    one, two = await fleet.add(2)
    id = await one.start("hold")
    await eventually(lambda: len(one.runner._runs) == 1)
    store = ScopedBackend(fleet.memory, NAME).store
    request: Any = msgspec.json.decode(await store.get(f"task-request/{id}") or b"")
    request[1] = {"name": 7}
    await store.put(f"task-request/{id}", msgspec.json.encode(request), ttl=60)
    await fleet.kill(one)
    state = await two.until(id)
    assert (state["status"], state["error"]["code"]) == ("failed", -32603)
    assert state["error"]["message"].startswith("Internal error. The server's log has it under error")
