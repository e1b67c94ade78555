"""Run the user's functions: async functions without a new task if possible, sync functions in threads.

Most calls never wait, so they need no task and no timer. Therefore a coroutine runs directly until it first waits. If
it waits, a `PendingCoroutine` continues it:

    coroutine = work()
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        return done.value
    return await PendingCoroutine(coroutine, awaited)

An `EagerTaskStarter` does this where no task is running. Sync functions run in a pool of threads of limited size. A
thread cannot be stopped: it occupies the pool until its function returns, even if the call was cancelled.

A function that waits for the event loop (`ctx.wait`) keeps its thread. If the awaited code needs a thread for another
function, and none is free, the thread that waits runs that function (`WaitingThread`). Otherwise such functions could
occupy all threads of the pool, and each would wait for one more, for ever.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import tasks
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from weft.types.base import Result

# Functions for implementers of tasks (see "Extending asyncio" in Python's documentation). None if Python lacks them.
_enter_task: Callable[..., None] | None = getattr(tasks, "_enter_task", None)
_leave_task: Callable[..., None] | None = getattr(tasks, "_leave_task", None)

T = TypeVar("T")


class PendingCoroutine(Generic[T]):
    """An awaitable that continues a coroutine, which has started and is waiting for `awaited`.

    If `context` is given, the coroutine runs in that context instead of the context of the awaiting task. `task` is the
    awaiting task. If `task` is given and is cancelled, `cancelled_itself` is True if the coroutine itself has cancelled
    the task, and False if other code has.
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
                    cancelling = task.cancelling()  # Other code can cancel the task only while it waits.
                try:
                    value = yield awaited
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - passed to the coroutine, as `await` does
                    self.cancelled_itself = task is not None and 0 < cancelling == task.cancelling()
                    awaited = None  # Breaks the cycle of future, exception and this frame.
                    awaited = throw(error)
                else:
                    awaited = send(value)
        except StopIteration as done:
            result: T = done.value
            return result


async def take_back(task: asyncio.Task[Any]) -> None:
    """Undo all cancellations of the current task, so that it can continue. `task` must be the current task.

    If the task has not waited since it was cancelled, its CancelledError was not raised yet. Then the error is raised
    and suppressed here.
    """
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.uncancel():
        pass


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    Call this when a CancelledError was caught. False means that the error was raised for another reason.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class EagerTaskStarter:
    """Starts coroutines at once. Only a coroutine that waits needs a new task.

    `create_task` creates a task for each coroutine and starts it in the next iteration of the event loop. This class
    runs the coroutine at once until it first waits, with a spare task as the current task. If the coroutine ends
    without waiting, the spare task is used for the next coroutine. If the coroutine waits, the spare task continues it.
    So `asyncio.current_task()` and the context never change while the coroutine runs, as `asyncio.timeout` and
    `TaskGroup` require.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spare: _Spare | None = None

    async def warm_up(self) -> None:
        """Create the spare task, so that even the first coroutine starts at once."""
        self._spare = self._spare or _Spare(self._loop)
        await asyncio.sleep(0)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Run a coroutine until it first waits; return the task that continues it, or None if it has ended.

        An exception that the coroutine raises before it first waits is raised here.
        """
        loop = self._loop
        if _enter_task is None or _leave_task is None:
            return loop.create_task(coroutine)
        spare, self._spare = self._spare, None  # the coroutine may call `start` again
        if spare is None or spare.called.done():  # cancelled by code that cancels all tasks
            spare = _Spare(loop)
        if not spare.is_ready:
            self._spare = spare
            return loop.create_task(coroutine)
        context = copy_context()
        current = asyncio.current_task(loop)  # Set if a client in this process sends the message.
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
        """Store `spare` for the next coroutine; cancel the spare task that a nested call of `start` has stored."""
        if self._spare is not None:
            self._spare.task.cancel()
        self._spare = spare

    async def close(self) -> None:
        """Cancel the spare task. Coroutines that were started continue to run."""
        if self._spare is not None:
            self._spare.task.cancel()
            await asyncio.wait([self._spare.task])


class _Spare:
    """A spare task: it waits until `go_on` passes it a coroutine, and then continues this coroutine."""

    __slots__ = ("_rest", "called", "is_ready", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._rest: PendingCoroutine[Any] | None = None
        self.called: asyncio.Future[None] = loop.create_future()  # Cancelled with the task.
        self.is_ready = False  # Whether the task waits for `called`, so that cancelling the task cancels `called` too.
        self.task = loop.create_task(self._run())

    def go_on(self, rest: PendingCoroutine[Any]) -> None:
        """Continue a coroutine in this task, from the next iteration of the event loop."""
        self._rest = rest
        if not self.called.done():  # Otherwise the coroutine has cancelled its own task.
            self.called.set_result(None)

    async def _run(self) -> Any:
        self.is_ready = True
        try:
            await self.called
        except asyncio.CancelledError as error:
            if self._rest is None:
                raise
            # The cancellation is for the coroutine: cancelling again delivers it at the next await.
            self.task.cancel(*error.args)
            self.task.uncancel()
        assert self._rest is not None
        return await self._rest


class Deadline:
    """A time limit for the task that calls `start`.

    When the time is over, the task is cancelled and `expired` becomes True. Code that catches the CancelledError must
    call `absorb`.
    """

    __slots__ = ("_handle", "_seconds", "_task", "expired")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self.expired = False

    def start(self) -> None:
        """Start the timer for the current task. Does nothing if the timer was started before."""
        if self._handle is None:
            self._task = asyncio.current_task()
            self._handle = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()

    def absorb(self) -> bool:
        """Return whether this deadline has cancelled the task. If so, undo the cancellation."""
        if self.expired and self._task is not None:
            self._task.uncancel()
        return self.expired

    def _expire(self) -> None:
        self.expired = True
        if self._task is not None:
            self._task.cancel()


@dataclass(slots=True)
class _Outcome:
    """The return value or the exception of a function. A Future cannot hold every exception."""

    value: Any
    error: BaseException | None = None

    def take(self) -> Any:
        """Return the value, or raise the exception. Call this only once."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # Breaks the cycle of exception, frame and arguments.
        return self.value


# The thread that waits for the current code, if there is one. Tasks inherit it, and may outlive the wait.
_waiting: ContextVar[WaitingThread | None] = ContextVar("weft_waiting_thread", default=None)


class WaitingThread:
    """A thread that waits for an awaitable of the event loop, and meanwhile runs functions that need a thread.

    It runs one function after another. The wait ends when the awaitable has ended, and all functions that were queued
    until then have returned or were cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: the wait is over
        self._is_over = False  # Whether the awaitable has ended. Used only in the thread of the event loop.

    def wait(self, awaitable: Awaitable[T], on_start: Callable[[asyncio.Task[Any]], None]) -> T:
        """Run an awaitable in the event loop; block until it has ended, and return its result.

        `on_start` is called with the task that runs the awaitable, in the event loop. If this task is cancelled, raises
        `asyncio.CancelledError`, which is no Exception (that of `concurrent.futures` is one).
        """
        ended = asyncio.run_coroutine_threadsafe(self._run(awaitable, on_start), self._loop)
        ended.add_done_callback(lambda _: self._queue.put(None))
        while (work := self._queue.get()) is not None:
            work()
        try:
            outcome = ended.result()
        except FutureCancelled:  # before its first step
            raise asyncio.CancelledError from None
        result: T = outcome.take()
        return result

    async def _run(self, awaitable: Awaitable[Any], on_start: Callable[[asyncio.Task[Any]], None]) -> _Outcome:
        _waiting.set(self)
        task = asyncio.current_task()
        assert task is not None
        try:
            on_start(task)
            return _Outcome(await awaitable)
        except BaseException as error:  # noqa: BLE001 - raised in the thread; a SystemExit would end the event loop
            return _Outcome(None, error)
        finally:
            self._is_over = True

    def submit(self, work: Callable[[], _Outcome], loop: asyncio.AbstractEventLoop) -> Future[_Outcome] | None:
        """Have this thread do `work` as soon as it can; return None if it does not wait any more.

        `loop` is the event loop of the caller. If the thread waits for another event loop, None is returned, because a
        function in this thread may itself run `loop`, or wait for it.
        """
        if self._is_over or loop is not self._loop:
            return None
        future: Future[_Outcome] = Future()
        self._queue.put(partial(_fulfil, future, work))
        return future


def _fulfil(future: Future[_Outcome], work: Callable[[], _Outcome]) -> None:
    """Do `work` and set its outcome as the result of `future`, unless `future` was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(work())


class Threads:
    """A pool of threads for sync functions. Threads are created when they are needed."""

    def __init__(self, size: int, *, name: str = "weft") -> None:
        self._size = size
        self._name = name  # the names of the threads begin with it
        self._pool: ThreadPoolExecutor | None = None
        # Calls wait for a semaphore, because the pool's queue is unbounded and ignores cancellation.
        self._permits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, fn: Callable[..., Any], kwargs: Mapping[str, Any], *, to_end: bool = False) -> Any:
        """Call `fn(**kwargs)` in a thread, with the caller's context variables, and return its result.

        If `to_end` is True, and the caller is cancelled for the first time while `fn` runs, the cancellation is
        ignored, so that the result of `fn` is not lost.
        """
        context, loop = copy_context(), asyncio.get_running_loop()
        future = await self._begin(lambda: context.run(_outcome, fn, kwargs), loop)
        ended = asyncio.wrap_future(future, loop=loop)
        if to_end:
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                if future.cancel():  # It has not begun.
                    raise
        try:
            outcome = await ended
        except asyncio.CancelledError:
            future.add_done_callback(_drop_error)
            raise
        value = outcome.take()
        # A sync function may wrap an async one. Results are not awaited: not even work that is handed over outside.
        if inspect.isawaitable(value) and not isinstance(value, Result):
            return await value
        return value

    async def call(self, fn: Callable[..., Any], args: tuple[Any, ...], *, to_end: bool = False) -> Any:
        """Call `fn(*args)` and return its result. A sync function runs in a thread; `to_end` is explained in `run`."""
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        return await self.run(partial(fn, *args), {}, to_end=to_end)

    async def _begin(self, work: Callable[[], _Outcome], loop: asyncio.AbstractEventLoop) -> Future[_Outcome]:
        """Have a thread of the pool do `work`, as soon as one is free, or the thread that waits for the caller."""
        permits = self._permits.get(loop)
        if permits is None:
            permits = self._permits[loop] = asyncio.Semaphore(self._size)
        thread = _waiting.get()
        if thread is not None and permits.locked() and (future := thread.submit(work, loop)) is not None:
            return future
        await permits.acquire()
        return self._submit(work, permits, loop)

    def _submit(
        self, work: Callable[[], _Outcome], permits: asyncio.Semaphore, loop: asyncio.AbstractEventLoop
    ) -> Future[_Outcome]:
        """Submit `work` to the pool. When `work` has ended, release a permit, even if the caller was cancelled."""

        def give_back(_: Future[_Outcome]) -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(permits.release)

        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
            future = self._pool.submit(work)
        except BaseException:
            permits.release()
            raise
        future.add_done_callback(give_back)
        return future

    def stop(self) -> None:
        """Stop the pool. Functions that have not started are never called."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _drop_error(future: Future[_Outcome]) -> None:
    """Drop the exception of a function that was given up. Its frames refer to `future`, which would be a cycle."""
    if not future.cancelled():
        future.result().error = None


def _outcome(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> _Outcome:
    try:
        return _Outcome(fn(**kwargs))
    except StopIteration as error:
        replacement = RuntimeError(f"raised StopIteration({error.value!r})")
        return _Outcome(None, replacement.with_traceback(error.__traceback__))
    except BaseException as error:  # noqa: BLE001 - raised again by the caller
        return _Outcome(None, error)
