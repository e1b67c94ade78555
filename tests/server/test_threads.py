"""Threads: how many at once, and what is left of calls that were given up."""

import asyncio
import threading

import pytest

from weft.server.calls.execution import Threads


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
