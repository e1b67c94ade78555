"""Stepping a coroutine in one's own task, and awaiting the rest of it only if it has to wait."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from weft.server.calls.execution import Deadline, EagerTaskStarter, PendingCoroutine


async def stepped(coroutine: Coroutine[Any, Any, Any], told: list[str] | None = None) -> Any:
    """The way of the module's docstring; `told` hears of it if the coroutine waits."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
    if told is not None:
        told.append("waits")
    return await PendingCoroutine(coroutine, awaited)


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


# Starting without a task.


class Started:
    """Coroutines that were started by a callback of the loop, as those of a pipe are."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.starter = EagerTaskStarter(self._loop)

    async def start(self, *coroutines: Coroutine[Any, Any, Any], cancel: bool = False) -> list[Any]:
        """What `start` returned or raised for each, all in one callback; `cancel` them before that has returned."""
        outcomes: list[Any] = []

        def callback() -> None:
            for coroutine in coroutines:
                try:
                    outcomes.append(self.starter.start(coroutine))
                except BaseException as error:
                    outcomes.append(error)
            for task in outcomes if cancel else ():
                task.cancel("why")
            done.set_result(None)

        done = self._loop.create_future()
        self._loop.call_soon(callback)
        await done
        return outcomes


@pytest.fixture
async def started() -> AsyncIterator[Started]:
    """A starter whose spare is ready; none is left behind."""
    made = Started()
    (first,) = await made.start(immediately(1))
    assert await first == 1  # the spare has to come up first
    yield made
    await made.starter.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def tell(told: list[Any], times: int = 0) -> None:
    """Says in which task it is, before and after it has waited."""
    told.append(asyncio.current_task())
    for _ in range(times):
        await asyncio.sleep(0)
        told.append(asyncio.current_task())


async def test_what_never_waits_has_ended_when_start_returns_and_leaves_no_task(started: Started) -> None:
    told: list[Any] = []
    before = asyncio.all_tasks()
    assert await started.start(*[tell(told) for _ in range(5)]) == [None] * 5
    assert len(told) == 5
    assert None not in told
    assert len(set(told)) == 1  # the spare's
    assert asyncio.all_tasks() == before
    assert asyncio.current_task() not in told


async def test_what_waits_is_in_one_task_from_the_first_step_to_the_last(started: Started) -> None:
    told: list[Any] = []
    (task,) = await started.start(tell(told, 3))
    await task
    assert told == [task] * 4


async def test_the_next_one_has_another_task(started: Started) -> None:
    told: list[list[Any]] = [[] for _ in range(100)]
    started_in_one = await started.start(*[tell(each, 5) for each in told[:50]])
    await asyncio.sleep(0)
    started_one_by_one = [task for each in told[50:] for task in await started.start(tell(each, 5))]
    tasks = started_in_one + started_one_by_one
    await asyncio.gather(*tasks)
    assert len(set(tasks)) == 100
    assert told == [[task] * 6 for task in tasks]


async def test_within_a_task_the_first_step_is_another_tasks_too(started: Started) -> None:
    mine = asyncio.current_task()
    told: list[Any] = []
    await asyncio.sleep(0)  # the spare is there
    first = started.starter.start(tell(told))
    if first is not None:  # it was not ready yet
        await first
    assert started.starter.start(tell(told)) is None
    assert len(told) == 2
    assert mine not in told
    assert asyncio.current_task() is mine


async def test_a_first_step_may_start_another_one(started: Started) -> None:
    told: list[Any] = []

    async def outer() -> None:
        inner = started.starter.start(tell(told))
        if inner is not None:
            await inner
        told.append(asyncio.current_task())

    for _ in range(3):
        task = started.starter.start(outer())
        if task is not None:
            await task
    assert len(told) == 6
    assert all(one is not None and one is not asyncio.current_task() for one in told)


async def test_the_value_and_what_is_raised_later_are_the_tasks(started: Started) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    (task,) = await started.start(later(7))
    assert await task == 7
    (task,) = await started.start(fails())
    with pytest.raises(KeyError):
        await task


@pytest.mark.security("R1")
@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_the_first_step_raises_is_raised_and_the_next_one_is_started(
    started: Started, raised: BaseException
) -> None:
    async def fails() -> None:
        raise raised

    told: list[Any] = []
    outcomes = await started.start(tell(told), fails(), tell(told))
    assert outcomes == [None, raised, None]
    assert told[0] is told[1]


async def test_context_variables_stay_with_the_coroutine_that_set_them(started: Started) -> None:
    var: ContextVar[str] = ContextVar("var", default="unset")
    seen: list[list[str]] = []

    async def sets(value: str, times: int) -> None:
        found = [var.get()]
        var.set(value)
        for _ in range(times):
            await asyncio.sleep(0)
            found.append(var.get())
            var.set(found[-1] + "!")
        seen.append(found)

    await started.start(sets("one", 0), sets("two", 0), immediately(1))
    tasks = [task for times in (2, 2, 2) for task in await started.start(sets("three", times))]
    await asyncio.gather(*tasks)
    assert seen == [["unset"], ["unset"], *[["unset", "three", "three!"]] * 3]
    assert var.get() == "unset"


async def test_a_context_variable_can_be_reset_after_the_wait(started: Started) -> None:
    var: ContextVar[str] = ContextVar("var", default="unset")

    async def resets() -> str:
        token = var.set("set")
        await asyncio.sleep(0)
        var.reset(token)  # a ValueError in another context
        return var.get()

    (task,) = await started.start(resets())
    assert await task == "unset"


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_timeout_that_begins_in_the_first_step(started: Started, seconds: float) -> None:
    async def late() -> str:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(5)
        except TimeoutError:
            task = asyncio.current_task()
            assert task is not None
            return f"late, {task.cancelling()} cancelled"
        return "never"

    (task,) = await started.start(late())
    assert await task == "late, 0 cancelled"


async def test_a_group_of_tasks_that_begins_in_the_first_step(started: Started) -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def groups(*members: Coroutine[Any, Any, Any]) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(member) for member in members]
            await asyncio.sleep(0.01)
        return [task.result() for task in tasks]

    (good,) = await started.start(groups(later(1), later(2)))
    (bad,) = await started.start(groups(fails(), asyncio.sleep(5)))
    assert await good == [1, 2]
    with pytest.raises(ExceptionGroup) as caught:
        await bad
    assert isinstance(caught.value.exceptions[0], KeyError)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
async def test_a_cancellation_reaches_what_was_started_and_what_it_awaits(started: Started, turns: int) -> None:
    ends: list[Any] = []

    async def outer() -> None:
        inner = asyncio.create_task(asyncio.sleep(5))
        try:
            await inner
        except asyncio.CancelledError as error:
            ends.append((error.args, inner.cancelled()))
            raise

    (task,) = await started.start(outer(), cancel=turns == 0)
    for _ in range(turns - 1):
        await asyncio.sleep(0)
    if turns:
        task.cancel("why")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == [(("why",), True)]
    assert task.cancelling() == 1


async def test_a_cancellation_reaches_what_only_waits_for_the_next_turn(started: Started) -> None:
    (task,) = await started.start(later(7), cancel=True)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_that_stays_when_it_is_cancelled(started: Started) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "stayed"
        return "never"

    (task,) = await started.start(stubborn(), cancel=True)
    assert await task == "stayed"


@pytest.mark.parametrize("takes_back", [False, True])
async def test_one_that_cancels_itself_in_the_first_step_does_not_cancel_the_next(
    started: Started, takes_back: bool
) -> None:
    def cancel_this() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if takes_back:
            task.uncancel()

    async def ends() -> None:
        cancel_this()

    async def waits() -> None:
        cancel_this()
        await asyncio.sleep(0.01)

    ended, first = await started.start(ends(), later(1))
    assert ended is None
    assert await first == 1
    waiting, second = await started.start(waits(), later(2))
    assert await second == 2
    reference = asyncio.create_task(waits())
    await asyncio.wait([waiting, reference])
    assert waiting.cancelled() == reference.cancelled()


async def test_somebody_cancels_all_tasks_there_are(started: Started) -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    (first,) = await started.start(later(1))
    assert await first == 1
    assert await started.start(immediately(2)) == [None]


async def test_closing_ends_the_spare_and_not_what_was_started(started: Started) -> None:
    (task,) = await started.start(later(7, times=5))
    await started.starter.close()
    await started.starter.close()  # once more is no harm
    assert await task == 7
    await EagerTaskStarter(asyncio.get_running_loop()).close()  # never used: nothing to end
