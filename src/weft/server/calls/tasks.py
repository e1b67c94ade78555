"""Run the user's functions: coroutines without a task where they never wait, plain functions in threads.

Most calls never wait, and need no task, no timer and no watcher. So a coroutine is stepped once by hand; if it ends
there, that was all. If it waits, it becomes a `PendingCoroutine`, and what it needs from then on is set up:

    coroutine = work()
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
    return await PendingCoroutine(coroutine, awaited)

An `EagerTaskStarter` has a task where there is none. Plain functions run in a bounded pool of threads, so they do
not block the loop. A thread cannot be stopped: one whose call was given up counts until its function has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from asyncio import tasks
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

# For implementers of tasks: "Extending asyncio" in Python's documentation. None where this Python does not have them.
_enter_task: Callable[..., None] | None = getattr(tasks, "_enter_task", None)
_leave_task: Callable[..., None] | None = getattr(tasks, "_leave_task", None)

T = TypeVar("T")


class PendingCoroutine(Generic[T]):
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


class EagerTaskStarter:
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
        if _enter_task is None or _leave_task is None:
            return loop.create_task(coroutine)
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
        spare.go_on(PendingCoroutine(coroutine, awaited, context))
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
        self._rest: PendingCoroutine[Any] | None = None
        self.called: asyncio.Future[None] = loop.create_future()  # or cancelled, like the future that any task awaits
        self.is_ready = False  # it waits for the call: from here on a cancellation shows there
        self.task = loop.create_task(self._run())

    def go_on(self, rest: PendingCoroutine[Any]) -> None:
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


class _Outcome:
    """What a function did in its thread. StopIteration and SystemExit must not cross a Future as exceptions."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error


class Threads:
    """A pool that is made when the first plain function is called."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool: ThreadPoolExecutor | None = None
        # Who waits for a thread waits here and not in the pool's queue, which has no end and forgets nobody (D9).
        self._permits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, fn: Callable[..., Any], kwargs: Mapping[str, Any], *, to_end: bool = False) -> Any:
        """Call `fn` in a thread, with the caller's context variables.

        `to_end` takes no notice of being cancelled once while the function runs: it will be done, and its caller, a
        task of its own, has to know what came of it.
        """
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        permits = self._permits.get(loop)
        if permits is None:
            permits = self._permits[loop] = asyncio.Semaphore(self._size)
        await permits.acquire()
        work = self._submit(lambda: context.run(_outcome, fn, kwargs), permits, loop)
        ended = asyncio.wrap_future(work, loop=loop)
        if to_end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
        outcome = await ended
        error, outcome.error = outcome.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # a frame that holds it, here or in the thread, would be a cycle with the arguments
        if inspect.isawaitable(outcome.value):  # a plain function around an async one
            return await outcome.value
        return outcome.value

    async def call(self, fn: Callable[..., Any], args: tuple[Any, ...], *, to_end: bool = False) -> Any:
        """Call any function by position: an async one here, another in a thread (`to_end`: see `run`)."""
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        return await self.run(partial(fn, *args), {}, to_end=to_end)

    def _submit(
        self, work: Callable[[], _Outcome], permits: asyncio.Semaphore, loop: asyncio.AbstractEventLoop
    ) -> Future[_Outcome]:
        """Give work to the pool, with a permit that comes back when its thread is free, whoever still waits for it."""

        def give_back(_: Future[_Outcome]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its permits with it
                loop.call_soon_threadsafe(permits.release)

        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._size, thread_name_prefix="weft")
            future = self._pool.submit(work)
        except BaseException:
            permits.release()
            raise
        future.add_done_callback(give_back)
        return future

    def stop(self) -> None:
        """Let go of the threads; work that has not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _outcome(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> _Outcome:
    try:
        return _Outcome(fn(**kwargs), None)
    except StopIteration as error:
        told = RuntimeError(f"raised StopIteration({error.value!r})")
        return _Outcome(None, told.with_traceback(error.__traceback__))  # where it was raised is not lost
    except BaseException as error:  # noqa: BLE001 - carried over to the caller, who raises it
        return _Outcome(None, error)
