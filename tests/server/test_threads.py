"""Threads: how many at once, what is left of calls that were given up, and functions that wait for the event loop."""

import asyncio
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from contextvars import ContextVar
from typing import Any

import pytest

from weft.server.calls.execution import Threads, WaitingThread


class Gate:
    """A function that runs until it is let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.entered = 0

    def __call__(self) -> None:
        self.entered += 1
        self.arrived.release()
        assert self.open.wait(30)


async def start(threads: Threads, gate: Gate, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(threads.run(gate, {})) for _ in range(count)]
    for _ in range(2):
        assert await asyncio.to_thread(gate.arrived.acquire, timeout=30)
    return tasks


async def give_up(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.security("D9", "R12")
async def test_calls_that_are_given_up_while_they_wait_leave_nothing_behind() -> None:
    threads, gate = Threads(2), Gate()
    await give_up(await start(threads, gate, 100))
    assert threads._pool is not None
    assert threads._pool._work_queue.empty()
    gate.open.set()
    assert await asyncio.wait_for(threads.run(lambda: "next", {}), 30) == "next"
    assert gate.entered == 2
    threads.stop()


@pytest.mark.security("D9", "R12")
async def test_a_function_that_runs_on_counts_until_it_has_ended() -> None:
    threads, gate = Threads(2), Gate()
    await give_up(await start(threads, gate, 2))
    threads.stop()  # a new pool is no way past the limit either
    ran: list[str] = []
    waiting = asyncio.create_task(threads.run(lambda: ran.append("next"), {}))
    await asyncio.sleep(0.05)
    assert ran == []
    gate.open.set()
    await asyncio.wait_for(waiting, 30)
    assert ran == ["next"]
    threads.stop()


async def test_work_that_is_dropped_gives_its_place_back() -> None:
    threads, gate = Threads(2), Gate()
    tasks = await start(threads, gate, 5)
    threads.stop()
    gate.open.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    results = await asyncio.gather(*(threads.run(lambda: 1, {}) for _ in range(10)))
    assert results == [1] * 10
    threads.stop()


def test_each_loop_has_its_own_places() -> None:
    threads = Threads(1)

    async def crowd() -> list[int]:
        return await asyncio.gather(*(threads.run(lambda number=number: number, {}) for number in range(5)))

    assert asyncio.run(crowd()) == asyncio.run(crowd()) == [0, 1, 2, 3, 4]
    threads.stop()


def test_a_thread_may_end_after_its_loop() -> None:
    threads, gate = Threads(1), Gate()

    async def abandon() -> None:
        task = asyncio.create_task(threads.run(gate, {}))
        assert await asyncio.to_thread(gate.arrived.acquire, timeout=30)
        await give_up([task])

    asyncio.run(abandon())
    gate.open.set()
    assert asyncio.run(threads.run(lambda: "next", {})) == "next"
    threads.stop()


# --- Functions that wait for the event loop.

NAME: ContextVar[str] = ContextVar("name", default="nobody")


def ignore(_: asyncio.Task[Any]) -> None:
    pass


async def waits(threads: Threads, make: Callable[[], Awaitable[Any]]) -> Any:
    """Run a function in a thread that waits for what `make` returns."""
    thread = WaitingThread(asyncio.get_running_loop())
    async with asyncio.timeout(30):
        return await threads.run(lambda: thread.wait(make(), ignore), {})


async def test_functions_that_wait_do_not_take_all_threads_from_those_they_wait_for() -> None:
    threads, all_wait = Threads(3), threading.Barrier(3)
    used: list[tuple[int, int]] = []

    async def second(first: int) -> None:
        used.append((first, await threads.run(threading.get_ident, {})))

    def function() -> Coroutine[Any, Any, None]:
        all_wait.wait(30)
        return second(threading.get_ident())

    await asyncio.gather(*(waits(threads, function) for _ in range(3)))
    assert len({waiting for waiting, _ in used}) == 3
    waiting, running = used[0]  # the next ones may use a thread that is free again
    assert waiting == running
    threads.stop()


async def test_functions_that_one_function_waits_for_run_one_after_another_without_a_free_thread() -> None:
    threads, running, most = Threads(1), 0, 0

    def step(number: int) -> tuple[int, int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1
        return number, threading.get_ident()

    async def all_steps() -> tuple[int, list[tuple[int, int]]]:
        here = await threads.run(threading.get_ident, {})
        return here, await asyncio.gather(*(threads.call(step, (number,)) for number in range(5)))

    here, steps = await waits(threads, all_steps)
    assert steps == [(number, here) for number in range(5)]
    assert most == 1
    threads.stop()


async def test_functions_that_one_function_waits_for_run_at_the_same_time_if_threads_are_free() -> None:
    threads, all_run = Threads(3), threading.Barrier(3)  # the third one runs in the thread that waits

    async def all_steps() -> None:
        await asyncio.gather(*(threads.call(all_run.wait, (30,)) for _ in range(3)))

    await waits(threads, all_steps)
    threads.stop()


async def test_a_function_may_wait_in_a_function_that_is_waited_for() -> None:
    threads = Threads(1)

    async def innermost() -> str:
        return await threads.run(lambda: "innermost", {})

    async def inner() -> str:
        return f"inner {await waits(threads, innermost)}"

    assert await waits(threads, inner) == "inner innermost"
    threads.stop()


async def test_a_function_sees_the_context_variables_of_the_code_that_calls_it() -> None:
    threads, seen = Threads(1), []

    async def inner() -> None:
        seen.append(NAME.get())
        NAME.set("inner")
        seen.append(await threads.run(lambda: (NAME.get(), NAME.set("lost"))[0], {}))
        seen.append(NAME.get())

    def outer() -> None:
        NAME.set("outer")
        WaitingThread(loop).wait(inner(), ignore)
        seen.append(NAME.get())

    loop = asyncio.get_running_loop()
    await asyncio.wait_for(threads.run(outer, {}), 30)
    assert seen == ["outer", "inner", "inner", "outer"]
    threads.stop()


@pytest.mark.parametrize(
    "error", [KeyError("k"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("no"), FutureCancelled()]
)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_function_gets_the_exception_of_what_it_waits_for(error: BaseException, in_thread: bool) -> None:
    threads, caught = Threads(1), []

    def fails() -> None:
        raise error

    async def awaited() -> None:
        if in_thread:
            await threads.run(fails, {})
        raise error

    def function() -> None:
        try:
            WaitingThread(loop).wait(awaited(), ignore)
        except BaseException as found:
            caught.append(found)

    loop = asyncio.get_running_loop()
    await asyncio.wait_for(threads.run(function, {}), 30)
    assert caught == [error]
    threads.stop()


async def test_a_function_that_raises_stop_iteration_ends_its_wait() -> None:
    threads = Threads(1)

    async def awaited() -> None:
        await threads.call(next, (iter([]),))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await waits(threads, awaited)
    threads.stop()


async def test_a_wait_that_is_cancelled_before_its_first_step_raises_no_exception_of_the_kind_exception() -> None:
    threads, loop, awaited = Threads(1), asyncio.get_running_loop(), asyncio.Event()

    def cancelled(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task = asyncio.Task(coroutine, loop=loop, **options)
        task.cancel()
        return task

    def function() -> str:
        loop.call_soon_threadsafe(loop.set_task_factory, cancelled)
        waiting = awaited.wait()
        try:
            WaitingThread(loop).wait(waiting, ignore)
        except asyncio.CancelledError:
            return "cancelled"
        finally:
            waiting.close()
        return "ended"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the coroutine of the wait has never begun
        try:
            assert await threads.run(function, {}) == "cancelled"
        finally:
            loop.set_task_factory(None)
    threads.stop()


async def test_a_task_that_outlives_the_wait_uses_the_pool() -> None:
    threads, gate, over = Threads(1), Gate(), asyncio.Event()
    started: list[asyncio.Task[str]] = []

    async def outlives() -> str:
        await over.wait()
        return await threads.run(lambda: "done", {})

    async def starts() -> None:
        started.append(asyncio.create_task(outlives()))

    def function() -> None:
        WaitingThread(loop).wait(starts(), ignore)
        gate()

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(threads.run(function, {}))
    assert await asyncio.to_thread(gate.arrived.acquire, timeout=30)
    over.set()
    for _ in range(5):
        await asyncio.sleep(0)  # now it waits for a thread
    gate.open.set()
    assert await asyncio.wait_for(started[0], 30) == "done"
    await running
    threads.stop()


async def test_functions_that_wait_for_the_thread_when_the_wait_ends_run_or_are_dropped() -> None:
    threads, gate = Threads(1), Gate()
    called: list[str] = []
    started: list[asyncio.Task[None]] = []

    async def starts() -> None:
        loop = asyncio.get_running_loop()
        started.append(loop.create_task(threads.run(gate, {})))
        for name in ("given up", "given up with a result", "kept"):
            work = threads.call(called.append, (name,), to_end=name == "given up with a result")
            started.append(loop.create_task(work))
        for _ in range(5):
            await asyncio.sleep(0)  # all of them wait for the thread

    waiting = asyncio.create_task(waits(threads, starts))
    assert await asyncio.to_thread(gate.arrived.acquire, timeout=30)
    await give_up(started[1:3])
    gate.open.set()
    await asyncio.wait_for(asyncio.gather(waiting, started[0], started[3]), 30)
    assert called == ["kept"]
    threads.stop()


async def test_a_function_that_runs_in_the_thread_that_waits_goes_to_its_end() -> None:
    """The result of a function that cannot be stopped is there, also if the wait was cancelled meanwhile."""
    threads, gate = Threads(1), Gate()
    tasks: list[asyncio.Task[Any]] = []
    results: list[str] = []
    has_result = asyncio.Event()

    async def step() -> None:
        results.append(await threads.run(lambda: gate() or "result", {}, to_end=True))
        has_result.set()
        await asyncio.sleep(30)

    def function() -> None:
        WaitingThread(loop).wait(step(), tasks.append)

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(threads.run(function, {}))
    assert await asyncio.to_thread(gate.arrived.acquire, timeout=30)
    tasks[0].cancel()
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.wait_for(has_result.wait(), 30)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 30)
    assert results == ["result"]
    threads.stop()


async def test_another_event_loop_does_not_use_the_thread_that_waits_for_this_one() -> None:
    threads, other = Threads(1), Threads(1)

    async def crowd() -> list[int]:
        return await asyncio.gather(*(other.run(lambda number=number: number, {}) for number in range(5)))

    async def inner() -> list[int]:
        return await threads.run(lambda: asyncio.run(crowd()), {})

    assert await waits(threads, inner) == [0, 1, 2, 3, 4]
    threads.stop()
    other.stop()
