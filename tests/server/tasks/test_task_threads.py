"""Plain functions as tasks: what they wait for finds a thread, and a task that is stopped gives its thread back."""

import asyncio
import threading
from typing import Any

import pytest

from support.raw_sessions import eventually
from support.task_clients import serving
from weft import Context, Limits, Server, Task


async def test_tasks_that_take_all_threads_and_need_one_more_are_done() -> None:
    server, both = Server("crowded", limits=Limits(task_threads=2)), threading.Barrier(2)

    @server.tool(task="optional")
    def work(ctx: Context) -> str:
        both.wait(30)
        return "".join(ctx.wait(ctx.once(f"step {number}", str, number)) for number in range(3))

    async with serving(server) as client:
        ids = [await client.start("work") for _ in range(2)]
        for id in ids:
            assert (await client.until(id, seconds=20))["result"]["content"][0]["text"] == "012"


class Workshop:
    """A server with one thread for tasks, and work that never ends by itself."""

    def __init__(self, **limits: Any) -> None:
        self.seen: list[str] = []
        self.steps = 0
        self.server = server = Server("workshop", limits=Limits(task_threads=1, **limits))

        @server.tool(task="optional")
        def work(ctx: Context) -> None:
            try:
                while True:
                    self.steps += 1
                    try:
                        ctx.wait(ctx.once(f"step {self.steps}", int))
                    except Exception as error:
                        self.seen.append(f"caught {error!r}")
            except BaseException as error:
                self.seen.append(type(error).__name__)
                raise

        @server.tool(task="optional")
        def look(ctx: Context) -> str:
            return "looked"

    def stop(self, reason: Any) -> None:
        """Stop the only task that runs."""
        (run,) = self.server.engine.tasks.runner._runs.values()
        run.stop(reason)


@pytest.mark.parametrize("reason", ["cancelled", "expired", "lost"])
async def test_a_task_that_is_stopped_gives_its_thread_back(reason: str) -> None:
    workshop = Workshop()
    async with serving(workshop.server) as client:
        await client.start("work")
        await eventually(lambda: workshop.steps > 2)
        workshop.stop(reason)
        assert (await client.until(await client.start("look"), seconds=20))["status"] == "completed"
        assert workshop.seen == ["CancelledError"]


async def test_a_task_that_is_stopped_calls_no_function_of_once_and_can_clean_up() -> None:
    server, seen, steps = Server("tidy", limits=Limits(task_threads=1)), [], [0]

    @server.tool(task="optional")
    def work(ctx: Context) -> None:
        while not ctx.cancelled:
            steps[0] += 1
            threading.Event().wait(0.001)
        ctx.wait(asyncio.sleep(0.001))
        try:
            ctx.wait(ctx.once("late", seen.append, "called"))
        except asyncio.CancelledError:
            seen.append("refused")
        ctx.wait(asyncio.sleep(0.001))
        seen.append("clean")

    async with serving(server) as client:
        id = await client.start("work")
        await eventually(lambda: steps[0])
        await client.cancel(id)
        await eventually(lambda: "clean" in seen, 20)
    assert seen == ["refused", "clean"]


async def test_what_an_async_handler_leaves_behind_ends_at_its_next_function_of_once() -> None:
    server, seen = Server("left"), []
    left: list[asyncio.Task[None]] = []

    @server.tool(task="optional")
    async def work(ctx: Context) -> None:
        async def steps() -> None:
            for step in range(1_000_000):
                await ctx.once(f"step {step}", int)

        left.append(asyncio.create_task(steps()))
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            try:
                await ctx.once("late", seen.append, "called")
            except asyncio.CancelledError:
                seen.append("refused")

    async with serving(server) as client:
        id = await client.start("work")
        await eventually(lambda: left)
        await client.cancel(id)
        done, _ = await asyncio.wait(left, timeout=20)
        assert [task.cancelled() for task in done] == [True]
        await eventually(lambda: len(server.engine.tasks.runner) == 0, 20)
    assert seen == ["refused"]


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_worker_that_stops_lets_functions_of_once_end_before_others_are_told(in_thread: bool) -> None:
    server, seen = Server("stops", limits=Limits(task_threads=3)), []
    began, go_on, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @server.tool(task=Task())
    def plain(ctx: Context) -> None:
        ctx.wait(work(ctx))

    @server.tool(task=Task())
    async def coroutine(ctx: Context) -> None:
        await work(ctx)

    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.once("slow", slow), late(ctx))

    async def slow() -> None:
        began.set()
        await go_on.wait()
        seen.append("slow has ended")

    async def late(ctx: Context) -> None:
        await eventually(lambda: server.engine.tasks.runner.is_stopping)
        asked.set()
        try:
            await ctx.once("late", seen.append, "late was called")
        except asyncio.CancelledError:
            seen.append("late was refused")
            raise

    async with serving(server) as client, asyncio.timeout(20):
        await client.start("plain" if in_thread else "coroutine")
        await began.wait()
        stopping = asyncio.create_task(server.stop())
        await asked.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert seen == []
        go_on.set()
        await stopping
        await eventually(lambda: len(seen) == 2)
    assert seen == ["slow has ended", "late was refused"]


async def test_what_outlives_its_handler_ends_when_the_worker_stops() -> None:
    server = Server("outlived")
    began, go_on, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[None]] = []

    @server.tool(task="optional")
    async def work(ctx: Context) -> str:
        async def late() -> None:
            await stopped.wait()
            await ctx.once("late", int)

        left.append(asyncio.create_task(late()))
        began.set()
        await go_on.wait()
        return "done"

    @server.tool(task="optional")
    async def slow(ctx: Context) -> None:
        await ctx.once("slow", stopped.wait)

    async with serving(server) as client, asyncio.timeout(30):
        await client.start("slow")
        id = await client.start("work")
        await began.wait()
        stopping = asyncio.create_task(server.stop())
        await eventually(lambda: server.engine.tasks.runner.is_stopping)
        go_on.set()
        await eventually(lambda: id not in server.engine.tasks.runner._runs)
        stopped.set()
        await asyncio.wait(left, timeout=10)
        assert left[0].cancelled()
        await stopping
