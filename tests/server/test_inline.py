"""Stepping a coroutine in one's own task, and awaiting the rest of it only if it has to wait."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from weft.server.inline import Deadline, Suspended


async def stepped(coroutine: Coroutine[Any, Any, Any], told: list[str] | None = None) -> Any:
    """The way of the module's docstring; `told` hears of it if the coroutine waits."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
    if told is not None:
        told.append("waits")
    return await Suspended(coroutine, awaited)


async def immediately(value: Any) -> Any:
    return value


async def later(value: Any, times: int = 2) -> Any:
    for _ in range(times):
        await asyncio.sleep(0)
    return value


async def test_a_coroutine_that_never_waits_is_never_told_of() -> None:
    told: list[str] = []
    assert await stepped(immediately(7), told) == 7
    assert told == []


async def test_one_that_waits_is_told_of_once() -> None:
    told: list[str] = []
    assert await stepped(later(7, times=5), told) == 7
    assert told == ["waits"]


@pytest.mark.parametrize("raised", [ValueError("x"), KeyError("x"), SystemExit(1)])
async def test_exceptions_pass(raised: BaseException) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise raised

    with pytest.raises(type(raised)):
        await stepped(fails())


async def test_a_cancellation_reaches_the_coroutine() -> None:
    seen: list[str] = []

    async def waits() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    async def outer() -> str:
        return await stepped(waits())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_a_coroutine_may_answer_its_cancellation() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "stayed"
        return "never"

    async def outer() -> str:
        return await stepped(stubborn())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "stayed"


def test_closing_closes_the_coroutine() -> None:
    closed: list[str] = []

    class Step:
        def __await__(self) -> Any:
            yield

    async def waits() -> None:
        try:
            await Step()
        finally:
            closed.append("closed")

    async def outer() -> None:
        await stepped(waits())

    coroutine = outer()
    coroutine.send(None)
    coroutine.close()
    assert closed == ["closed"]


@pytest.mark.security("D6")
async def test_a_deadline_that_runs_out_is_absorbed() -> None:
    deadline = Deadline(0.01)
    deadline.start()
    deadline.start()  # the clock runs once
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        assert deadline.absorb()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_deadline_that_was_stopped_does_nothing() -> None:
    deadline = Deadline(0.01)
    deadline.start()
    deadline.stop()
    await asyncio.sleep(0.03)
    assert not deadline.expired
    assert not deadline.absorb()
    Deadline(1).stop()  # never started: nothing to stop
