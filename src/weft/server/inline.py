"""Await a coroutine in one's own task, and hear when it first has to wait.

A call that never waits needs no watcher, no timer and no task of its own; most calls are like that. `Inline` steps the
coroutine itself, so that these are set up only for a coroutine that suspends, at the moment it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Deadline", "Inline"]

T = TypeVar("T")


class Inline(Generic[T]):
    """`await Inline(coroutine, on_wait)` is `await coroutine`, with `on_wait()` called once if it suspends."""

    __slots__ = ("_coroutine", "_on_wait")

    def __init__(self, coroutine: Coroutine[Any, Any, T], on_wait: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_wait = on_wait

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = self._coroutine
        try:
            awaited = coroutine.send(None)
            self._on_wait()
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
