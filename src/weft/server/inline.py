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
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Deadline", "Suspended"]

T = TypeVar("T")


class Suspended(Generic[T]):
    """The rest of a coroutine that waits for `awaited`; awaited as if it had been all along."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, awaited = self._coroutine, self._awaited
        try:
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed on to the coroutine, as `await` would
                    awaited = coroutine.throw(error)
                else:
                    awaited = coroutine.send(value)
        except StopIteration as done:
            return done.value


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
