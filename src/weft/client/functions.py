"""Calling the functions of the user's that answer something, and may take their time.

An async function is awaited; a plain one runs in a thread of its own, so that it stops nobody else. What a function is
called with and what becomes of its answer is its callers' business, and so is every exception that it raises.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from weft.errors import UsageError

__all__ = ["Functions", "settled"]

_MAX_THREADS = 16  # functions that run at the same time, with those that nobody waits for any more


async def settled(work: Awaitable[Any]) -> Any:
    """What something of the user's comes to. A cancellation that was not asked of this task is a failure like any."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(repr(error)) from error


class Functions:
    """Calls functions, and bounds the threads that they are in."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(_MAX_THREADS)  # given back by a thread itself: it may outlive its loop

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function returns, or what it returns is awaited to."""
        if inspect.iscoroutinefunction(function):
            return await settled(function(*args))
        value = await self._in_thread(function, args)
        return await settled(value) if inspect.isawaitable(value) else value

    async def _in_thread(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a plain function in a thread of its own, which no exit of the program has to wait for."""
        if not self._room.acquire(blocking=False):
            raise UsageError(f"{_MAX_THREADS} questions are being answered already; end the functions sooner.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(value: Any, error: BaseException | None) -> None:
            if answer.done():  # nobody waits any more
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        def run() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = context.run(function, *args)
            except StopIteration as error:
                failure = RuntimeError(f"raised {error!r}")  # which no Future can carry
            except BaseException as error:  # noqa: BLE001 - carried over to the loop, where it is logged (R1)
                failure = error
            self._room.release()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, value, failure)

        try:
            threading.Thread(target=run, name="weft-answer", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._room.release()
            raise
        return await answer
