"""Where plain (not async) functions run: a bounded pool of threads, so that they do not block the loop.

A thread cannot be stopped. A call that is given up while its function runs leaves the thread behind, which counts until
it has ended; one that is given up while it waits for a thread leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Threads"]


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
