"""Let only one task at a time connect, reconnect or negotiate again (`ConnectLock`).

A call of `close` interrupts that task. The interrupted task, and all tasks that wait for the lock, get a
ConnectionFailed. The interrupted task ends the connection itself, so that nothing stays open if the closing task is
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from weft.errors import ConnectionFailed, WeftError


def closed() -> ConnectionFailed:
    """Return the error for an operation that was interrupted because the client was closed."""
    return ConnectionFailed("The client was closed meanwhile.")


class ConnectLock:
    """A lock for connecting, reconnecting and negotiating again. `close` interrupts the task that holds the lock."""

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end = end  # ends the connection, if there is one
        self._is_ending = False  # True while `_end` runs
        self._turn = asyncio.Lock()
        self._changing: asyncio.Task[Any] | None = None  # the task that holds the lock; None once a close cancelled it
        self.closings = 0  # how often `close` was called; tells a task whether a close came meanwhile

    @asynccontextmanager
    async def change(self) -> AsyncGenerator[None]:
        """Hold the lock during an `async with` block.

        `close` interrupts the block by cancelling its task; the block then raises ConnectionFailed. If other code
        cancels the task, the block raises CancelledError as usual.
        """
        task = asyncio.current_task()
        assert task is not None
        closings, cancelling = self.closings, task.cancelling()  # cancellations that other code had requested before
        async with self._turn:
            if self.closings != closings:
                raise closed()
            self._changing = task
            try:
                yield
            except BaseException as error:
                was_closed = await self._has_closed(task, closings)
                is_ours = isinstance(error, asyncio.CancelledError) and task.cancelling() <= cancelling
                if was_closed and (is_ours or isinstance(error, WeftError)):
                    raise closed() from None
                raise
            if await self._has_closed(task, closings):
                raise closed()

    async def _has_closed(self, task: asyncio.Task[Any], closings: int) -> bool:
        """Return whether `close` was called since `self.closings` had the value `closings`.

        If `close` was called, also end the connection. `task` is the task that holds the lock.
        """
        if self._changing is None:
            task.uncancel()  # because `close` has cancelled this task
        self._changing = None
        if self.closings == closings:
            return False
        await self.end()
        return True

    async def close(self) -> None:
        """Cancel the task that holds the lock, and end the connection."""
        self.closings += 1
        here, changing = asyncio.current_task(), self._changing
        assert here is not None
        if self._is_ending and here.cancelling():
            return  # the task that ends the connection waits for this one
        if changing is not None:
            self._changing = None
            changing.cancel()  # can be the current task, if a function called while connecting closes the client
        async with self._turn:
            await self.end()

    async def end(self) -> None:
        """End the connection. The caller must hold the lock."""
        self._is_ending = True
        try:
            await self._end()
        finally:
            self._is_ending = False
