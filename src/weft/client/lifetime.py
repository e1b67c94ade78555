"""When a client connects, agrees anew and closes: one after the other, from whatever tasks.

Owns whose turn it is. A change — connecting, reconnecting, agreeing anew — waits for its turn. A close overtakes: the
change that has the turn is cancelled, and it and all that wait are told that the client was closed; what is asked for
later waits until it is. A change that was overtaken ends the connection itself, before it gives up its turn: whoever
closes may be cancelled, and leaves nothing open.

What is opened and ended is the client's own affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from weft.errors import ConnectionFailed, WeftError

__all__ = ["Lifetime", "closed"]


def closed() -> ConnectionFailed:
    """What those are told whom a close has overtaken."""
    return ConnectionFailed("The client was closed meanwhile.")


class Lifetime:
    """Turns, and the one end to them all."""

    def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
        self._end = end  # ends the connection, if there is one
        self._is_ending = False
        self.turn = asyncio.Lock()
        self.changing: asyncio.Task[Any] | None = None  # has the turn, and was not told yet to stop
        self.closings = 0  # how often it was closed: a change that began before the last time does not go on

    def change(self) -> _Change:
        """A turn, by `async with`; ConnectionFailed when the client is closed before that is done."""
        return _Change(self)

    async def close(self) -> None:
        """Stop the change under way, and end the connection."""
        self.closings += 1
        here, changing = asyncio.current_task(), self.changing
        assert here is not None
        if self._is_ending and here.cancelling():
            return  # whoever ends the connection waits for this one
        if changing is not None:
            self.changing = None
            changing.cancel()  # this very task, where connecting has called a function that closes: it ends there
        async with self.turn:
            await self.end()

    async def end(self) -> None:
        """End the connection; for whoever has the turn."""
        self._is_ending = True
        try:
            await self._end()
        finally:
            self._is_ending = False


class _Change:
    """One turn. As with a timeout, the task's own cancellation stays one, and that by a close becomes an error."""

    def __init__(self, life: Lifetime) -> None:
        self._life = life

    async def __aenter__(self) -> None:
        life, task = self._life, asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()  # by others, before
        self._closings = life.closings
        await life.turn.acquire()
        if life.closings != self._closings:
            life.turn.release()
            raise closed()
        life.changing = task

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        life, task = self._life, self._task
        if life.changing is None:
            task.uncancel()  # by the one who closes
        life.changing = None
        try:
            if life.closings == self._closings:
                return
            await life.end()
        finally:
            life.turn.release()
        is_ours = isinstance(error, asyncio.CancelledError) and task.cancelling() <= self._cancelling
        if error is None or isinstance(error, WeftError) or is_ours:
            raise closed() from None
