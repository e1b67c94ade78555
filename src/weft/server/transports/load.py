"""How much is served at once, on whatever transport: the count, and the sentences for one request too many (D9).

The same answer everywhere; only how it is sent differs. Large messages take turns (`Turns`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from weft.errors import InternalError, InvalidRequest

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["Busy", "Turns", "busy", "is_full", "still_served"]

_STEPS = 3  # of the loop until a message is read and its arguments are checked, also where that is done in another task


class Turns:
    """Lets large messages in one at a time, with a pause in between as long as the last one held the loop.

    Parsers and validators cannot be interrupted, and a thread does not help: they do not let go of the interpreter.
    With the pause, one client that sends large messages back to back leaves others half of the time, and another
    caller waits for one of them, not for all.
    """

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._free_at = 0.0

    async def wait(self) -> None:
        """Wait for a turn. It begins now, and ends when the caller's task next waits for something."""
        loop = asyncio.get_running_loop()
        lock = self._locks.get(loop)
        if lock is None:
            lock = self._locks[loop] = asyncio.Lock()
        async with lock:
            if (pause := self._free_at - loop.time()) > 0:
                await asyncio.sleep(pause)
            started = loop.time()
            self._free_at = started  # until it is measured
            loop.call_soon(self._measure, loop, started, _STEPS)

    def _measure(self, loop: asyncio.AbstractEventLoop, started: float, steps: int) -> None:
        now = loop.time()
        self._free_at = max(self._free_at, now + (now - started))
        if steps > 1:
            loop.call_soon(self._measure, loop, started, steps - 1)


class Busy(InternalError):
    """A request was refused because a limit of the server is met: over HTTP 503, to be sent again later (RFC 9110)."""

    status = 503


def is_full(server: Server, *, own: int = 0) -> bool:
    """Whether the process serves as many requests as it may. Listen streams have a limit of their own.

    `own` is how many of those that are counted are whoever asks.
    """
    most = server.limits.in_flight + own
    return server.in_flight >= most and server.in_flight - len(server.subscriptions) >= most


def busy(most: int) -> Busy:
    """The refusal of one request more than `most`."""
    return Busy(f"The server is busy with {most} requests. Send this one again when one of them is answered.")


def still_served() -> InvalidRequest:
    """The refusal of a request that has the id of another."""
    return InvalidRequest("Invalid request: a request with this id is still being served.")
