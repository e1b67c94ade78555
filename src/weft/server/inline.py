"""Step a coroutine in one's own task, and only go to any trouble if it has to wait.

A call that never waits needs no watcher, no timer and no task of its own; most calls are like that. So a coroutine is
stepped once by hand. If it ends there, that was all. If it waits, it is `Suspended`: whatever it needs from then on is
set up, and the rest of it is awaited.

    coroutine = work()
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
    return await Suspended(coroutine, awaited)

Where there is no task to step it in, a `Starter` has one.
"""

from __future__ import annotations

import asyncio
from asyncio import tasks
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["Deadline", "Starter", "Suspended", "take_back"]

# Made for those who implement tasks ("Extending asyncio" in Python's documentation), underscore or not.
_enter_task = tasks._enter_task  # pyright: ignore[reportPrivateUsage] - see above
_leave_task = tasks._leave_task  # pyright: ignore[reportPrivateUsage] - see above

T = TypeVar("T")


class Suspended(Generic[T]):
    """The rest of a coroutine that waits for `awaited`; awaited as if it had been all along.

    With a `context` it is stepped in that one, and not in that of the task which awaits it. With a `task`, the one that
    awaits it, `cancelled_itself` says of a cancellation that arrives whether the coroutine has brought it on itself.
    """

    __slots__ = ("_awaited", "_context", "_coroutine", "_task", "cancelled_itself")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        awaited: Any,
        context: Context | None = None,
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._context = context
        self._task = task
        self.cancelled_itself = False

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, awaited, context, task = self._coroutine, self._awaited, self._context, self._task
        self._awaited = None
        cancelling = 0
        send: Callable[[Any], Any] = coroutine.send
        throw: Callable[[BaseException], Any] = coroutine.throw
        if context is not None:
            run: Callable[..., Any] = context.run
            send, throw = partial(run, send), partial(run, throw)
        try:
            while True:
                if task is not None:
                    cancelling = task.cancelling()  # others can cancel it only from here on, while it waits
                try:
                    value = yield awaited
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on to the coroutine, as `await` would
                    self.cancelled_itself = task is not None and 0 < cancelling == task.cancelling()
                    awaited = None  # a future has the exception, which has this frame: a cycle
                    awaited = throw(error)
                else:
                    awaited = send(value)
        except StopIteration as done:
            result: T = done.value
            return result


async def take_back(task: asyncio.Task[Any]) -> None:
    """Take back whatever the current task was cancelled with: it goes on to its end.

    A cancellation may not have arrived yet, where the coroutine ended without waiting again: then it arrives here.
    """
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.uncancel():
        pass


class Starter:
    """Starts coroutines without making a task for those that never wait.

    `create_task` makes a task for each, and lets it wait for the next turn of the loop. Here the first step is taken at
    once, in the name of a spare task. If the coroutine ends with that, the spare is there for the next one; if it has
    to wait, the spare runs the rest of it. So `asyncio.current_task()` is the same from the first step to the last, as
    `asyncio.timeout` and `TaskGroup` need it, and so is the context, which no two coroutines share.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spare: _Spare | None = None

    async def warm_up(self) -> None:
        """Have a spare that is ready, so that the first coroutine is stepped at once like all others."""
        self._spare = self._spare or _Spare(self._loop)
        await asyncio.sleep(0)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Begin. The task that it waits in, or None if it has ended; what it raises in the first step is raised."""
        loop = self._loop
        spare, self._spare = self._spare, None  # the step may come back here
        if spare is None or spare.called.done():  # cancelled by somebody who cancels whatever there is
            spare = _Spare(loop)
        if not spare.is_ready:
            self._spare = spare
            return loop.create_task(coroutine)
        context = copy_context()
        current = asyncio.current_task(loop)  # there is one where a client in the same process sends
        if current is not None:
            _leave_task(loop, current)
        _enter_task(loop, spare.task)
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration:
            self._keep(spare)
            return None
        except BaseException:
            self._keep(spare)
            raise
        finally:
            _leave_task(loop, spare.task)
            if current is not None:
                _enter_task(loop, current)
        spare.go_on(Suspended(coroutine, awaited, context))
        self._keep(_Spare(loop))
        return spare.task

    def _keep(self, spare: _Spare) -> None:
        """One is enough: where a step has come back and left another, that one goes."""
        if self._spare is not None:
            self._spare.task.cancel()
        self._spare = spare

    async def close(self) -> None:
        """End the spare. What was started goes on."""
        if self._spare is not None:
            self._spare.task.cancel()
            await asyncio.wait([self._spare.task])


class _Spare:
    """A task that waits to be called for the rest of a coroutine."""

    __slots__ = ("_rest", "called", "is_ready", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._rest: Suspended[Any] | None = None
        self.called: asyncio.Future[None] = loop.create_future()  # or cancelled, like the future that any task awaits
        self.is_ready = False  # it waits for the call: from here on a cancellation shows there
        self.task = loop.create_task(self._run())

    def go_on(self, rest: Suspended[Any]) -> None:
        """Run the rest, from the next turn of the loop on."""
        self._rest = rest
        if not self.called.done():  # else the coroutine has cancelled its own task
            self.called.set_result(None)

    async def _run(self) -> Any:
        self.is_ready = True
        try:
            await self.called
        except asyncio.CancelledError as error:
            if self._rest is None:
                raise
            # Meant for the coroutine, and for what it awaits: said again, the task does so when it gets to see that.
            self.task.cancel(*error.args)
            self.task.uncancel()
        assert self._rest is not None
        return await self._rest


class Deadline:
    """A time limit for the current task that costs nothing until `start` is called.

    When it runs out the task is cancelled and `expired` is set; whoever catches the cancellation then calls `absorb`.
    """

    __slots__ = ("_handle", "_seconds", "_task", "expired")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self.expired = False

    def start(self) -> None:
        """Start the clock, if it does not run already."""
        if self._handle is None:
            self._task = asyncio.current_task()
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def stop(self) -> None:
        """Stop the clock."""
        if self._handle is not None:
            self._handle.cancel()

    def absorb(self) -> bool:
        """Whether a cancellation was this deadline's doing; if so, the task is no longer cancelled."""
        if self.expired and self._task is not None:
            self._task.uncancel()
        return self.expired

    def _expire(self) -> None:
        self.expired = True
        if self._task is not None:
            self._task.cancel()
