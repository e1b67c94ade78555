"""`tasks/cancel`: it ends the task for good, stops its handler wherever it runs, and says nothing else."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import eventually
from support.task_clients import ACK, TaskClient, accept, serving
from weft import Context, Limits, Server, Task
from weft.backends.memory import MemoryBackend

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
CANCELLED = "The task was cancelled."


class Studio:
    """A server with long work, and what became of it."""

    def __init__(self, **options: Any) -> None:
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.done: list[str] = []
        self.go_on = threading.Event()
        self.server = server = Server("studio", **options)

        @server.tool(task="optional")
        async def long(name: str) -> str:
            self.begun.append(name)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.stopped.append(name)
                raise
            self.done.append(name)
            return name

        @server.tool(task="optional")
        def sync(ctx: Context) -> str:
            self.begun.append("sync")
            while not ctx.cancelled:
                self.go_on.wait(0.005)
            self.stopped.append("sync")
            return "stopped by itself"

        @server.tool(task="optional")
        async def stubborn() -> str:
            """Go on after the cancellation, and return a result."""
            self.begun.append("stubborn")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.stopped.append("stubborn")
            self.done.append("stubborn")
            return "done all the same"

        @server.tool(task="optional")
        async def once(ctx: Context) -> str:
            self.begun.append("once")
            await ctx.once("step", asyncio.sleep, 60)
            self.done.append("once")
            return "done"

        @server.tool(task="optional")
        async def ask(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", FORM, key="who")
            self.done.append("ask")
            return answer.value["name"]

        @server.tool(task=Task(after=0.02))
        async def late(name: str) -> str:
            return await long(name)


@pytest.fixture
def studio() -> Studio:
    return Studio()


@pytest.fixture
async def client(studio: Studio) -> Any:
    async with serving(studio.server) as one:
        yield one


@pytest.mark.spec("TASK-21", "new-16", "TASK-12d")
@pytest.mark.parametrize("tool", ["long", "late"])
async def test_cancelling_ends_a_job_of_a_minute(client: TaskClient, studio: Studio, tool: str) -> None:
    id = await client.start(tool, {"name": "attic"})
    await eventually(lambda: studio.begun)
    assert await client.cancel(id) == ACK
    state = await client.get(id)
    assert (state["status"], state["statusMessage"]) == ("cancelled", CANCELLED)
    await eventually(lambda: studio.stopped == ["attic"])
    assert studio.done == []
    assert await client.get(id) == state


@pytest.mark.spec("new-16")
async def test_a_sync_handler_is_asked_to_stop_and_its_result_is_dropped(client: TaskClient, studio: Studio) -> None:
    id = await client.start("sync")
    await eventually(lambda: studio.begun)
    assert await client.cancel(id) == ACK
    await eventually(lambda: studio.stopped == ["sync"])
    state = await client.get(id)
    assert (state["status"], "result" in state) == ("cancelled", False)


@pytest.mark.spec("new-16", "TASK-15")
async def test_a_handler_that_goes_on_changes_nothing(client: TaskClient, studio: Studio) -> None:
    id = await client.start("stubborn")
    await eventually(lambda: studio.begun)
    assert await client.cancel(id) == ACK
    state = await client.get(id)
    await eventually(lambda: studio.done)
    for _ in range(20):
        assert await client.get(id) == state
        await asyncio.sleep(0)


@pytest.mark.spec("new-16")
async def test_a_step_that_runs_is_stopped(client: TaskClient, studio: Studio) -> None:
    id = await client.start("once")
    await eventually(lambda: studio.begun)
    assert await client.cancel(id) == ACK
    assert (await client.get(id))["status"] == "cancelled"
    await eventually(lambda: len(studio.server.engine.tasks.runner) == 0)
    assert studio.done == []


@pytest.mark.spec("TASK-21", "TASK-18")
async def test_a_task_that_asks_is_cancelled_and_takes_no_answer(client: TaskClient, studio: Studio) -> None:
    id = await client.start("ask")
    await client.asked(id)
    assert await client.cancel(id) == ACK
    state = await client.get(id)
    assert (state["status"], "inputRequests" in state) == ("cancelled", False)
    assert await client.update(id, {"who": accept(name="Ada")}) == ACK
    await eventually(lambda: len(studio.server.engine.tasks.runner) == 0)
    assert await client.get(id) == state
    assert studio.done == []


@pytest.mark.spec("new-16")
async def test_a_task_that_waits_for_room_never_runs() -> None:
    studio = Studio(limits=Limits(tasks_at_once=1))
    async with serving(studio.server) as client:
        first = await client.start("long", {"name": "first"})
        waiting = await client.start("long", {"name": "waiting"})
        await eventually(lambda: studio.begun)
        assert await client.cancel(waiting) == ACK
        assert (await client.get(waiting))["status"] == "cancelled"
        await client.cancel(first)
        third = await client.start("long", {"name": "third"})
        await eventually(lambda: "third" in studio.begun)
        assert studio.begun == ["first", "third"]
        await client.cancel(third)


@pytest.mark.spec("TASK-21", "TASK-15")
async def test_a_task_that_has_ended_is_acknowledged_and_stays_as_it_is(client: TaskClient) -> None:
    id = await client.start("ask")
    await client.asked(id)
    await client.update(id, {"who": accept(name="Ada")})
    done = await client.until(id)
    for _ in range(3):
        assert await client.cancel(id) == ACK
        assert await client.get(id) == done
    assert done["status"] == "completed"


@pytest.mark.spec("TASK-21")
async def test_cancelling_twice_and_at_the_same_time(client: TaskClient, studio: Studio) -> None:
    id = await client.start("long", {"name": "attic"})
    await eventually(lambda: studio.begun)
    assert await asyncio.gather(*(client.cancel(id) for _ in range(5))) == [ACK] * 5
    state = await client.get(id)
    assert await client.cancel(id) == ACK
    assert await client.get(id) == state
    await eventually(lambda: studio.stopped == ["attic"])


@pytest.mark.spec("new-14", "TASK-12d")
async def test_a_cancelled_task_is_kept_for_a_minute(client: TaskClient) -> None:
    """Its time to live becomes shorter, and says so."""
    id = await client.start("long", {"name": "attic"})
    assert (await client.get(id))["ttlMs"] == 3_600_000
    await client.cancel(id)
    assert 60_000 <= (await client.get(id))["ttlMs"] < 120_000


@pytest.mark.spec("TASK-21", "new-16")
@pytest.mark.parametrize("backend", [MemoryBackend, YieldingBackend])
async def test_a_task_is_cancelled_at_any_worker(backend: Callable[[], Any]) -> None:
    shared = backend()
    here, there = Studio(backend=shared), Studio(backend=shared)
    async with serving(here.server, there.server) as client:
        other = client.on(there.server.asgi())
        await other.result("server/discover")  # so that the other worker has begun
        id = await client.start("long", {"name": "attic"})
        await eventually(lambda: here.begun)
        assert await other.cancel(id) == ACK
        assert (await other.get(id))["status"] == (await client.get(id))["status"] == "cancelled"
        await eventually(lambda: here.stopped == ["attic"])
        assert there.begun == []


@pytest.mark.spec("TASK-22", "new-16")
async def test_only_this_request_cancels_a_task(client: TaskClient, studio: Studio) -> None:
    """Neither the end of the connection nor `notifications/cancelled` does, once the call is answered."""
    response = await client.send("tools/call", {"name": "late", "arguments": {"name": "attic"}})
    id = (await response.result())["taskId"]
    await response.close()
    notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    await client.peer.request("POST", notification, session=None)
    for _ in range(20):
        assert (await client.get(id))["status"] == "working"
    assert studio.stopped == []
