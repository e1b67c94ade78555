"""Stopping with calls open: what is waited for, what the log says of it, and what their clients are told.

Only calls that wait are known here: one that is answered in the turn in which it came is over before anybody can ask.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from weft.errors import InternalError

if TYPE_CHECKING:
    from weft.server.call import Call

__all__ = ["OpenCalls", "stopped"]

log = logging.getLogger("weft.running")

_MOST_NAMED = 5  # calls in one line of the log
_TURN = 0.05  # seconds in which streams end that only listen, and calls that were about to


def stopped() -> InternalError:
    """What the client of a call is told that ends with the server."""
    return InternalError(
        "The server stopped before this call was done. It may have taken effect in part: check before you call again."
    )


class OpenCalls:
    """The calls of one server that are waiting for something."""

    def __init__(self) -> None:
        self._since: dict[Call, float] = {}  # when each was first seen to wait

    def add(self, call: Call) -> None:
        """Note that a call waits."""
        self._since[call] = time.monotonic()

    def remove(self, call: Call) -> None:
        """Note that it has ended."""
        self._since.pop(call, None)

    async def drain(self, seconds: float) -> None:
        """Let them finish within some seconds, and end those that do not."""
        await asyncio.sleep(_TURN)
        self._tell("" if math.isinf(seconds) else f" up to {seconds:g} s")
        until = time.monotonic() + seconds
        while self._since and (left := until - time.monotonic()) > 0:
            tasks = [call.cancellation.task for call in self._since if call.cancellation.task is not None]
            if not tasks:  # of calls that are about to begin
                await asyncio.sleep(_TURN)
            else:
                await asyncio.wait(tasks, timeout=None if math.isinf(left) else left)
                await asyncio.sleep(0)  # for what follows the end of a task
        self.end(when=f"after {seconds:g} s")

    def tell_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say in the log what a host waits for that was asked to end. It decides for how long."""
        loop.call_later(_TURN, self._tell)

    def _tell(self, patience: str = "") -> None:
        if self._since:
            log.warning("The server stops. It waits%s for %s.", patience, self._describe(self._since))

    async def give_up(self) -> None:
        """End those that do not end in a moment, as streams do that only listen and are told to."""
        if self._since:
            await asyncio.sleep(_TURN)
            self.end()

    def end(self, concerned: Callable[[Call], bool] = lambda _: True, *, when: str = "at once") -> None:
        """End them all, or those that are concerned. Their clients are told, where they can still be reached."""
        ending = [call for call in self._since if not call.cancellation.cancelled and concerned(call)]
        if ending:
            log.warning("The server stops, and gives up %s %s.", when, self._describe(ending))
        for call in ending:
            call.cancellation.cancel("the server stops", told=stopped())

    def _describe(self, calls: Collection[Call]) -> str:
        """How many there are, what they call, and for how long."""
        now = time.monotonic()
        named = [f"{call.described} (for {now - self._since[call]:.1f} s)" for call in calls]
        more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        return f"{len(named)} call{'s' if len(named) > 1 else ''}: {', '.join(named[:_MOST_NAMED])}{more}"
