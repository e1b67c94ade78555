"""Limit how much is served at once, and wait for open calls when the server stops.

How much is served at once, on whatever transport: the count, and the sentences for one request too many (D9).

The same answer everywhere; only how it is sent differs. Large messages are held (`Bodies`) until their turn (`Turns`).

Stopping with calls open: what is waited for, what the log says of it, and what their clients are told.

Only calls that wait are known here: one that is answered in the turn in which it came is over before anybody can ask.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from weft.errors import InternalError, InvalidRequest
from weft.limits import Limits

if TYPE_CHECKING:
    from weft.server.calls.call import Call


_STEPS = 3  # of the loop until a message is read and its arguments are checked, also where that is done in another task
_PACE = 1024 * 1024  # bytes that are worth a second of waiting: a smaller message may overtake for so long


class Busy(InternalError):
    """A request was refused because a limit of the server is met: over HTTP 503, to be sent again later (RFC 9110)."""

    status = 503


class Bodies:
    """The memory of large bodies that are being read, or wait for their turn: how much there is, and whose.

    A peer may hold as much as it leaves free. So one alone has half of it, the next may have a quarter, and however
    many fill their shares, the next one finds as much as each of them has.
    """

    def __init__(self, limits: Limits) -> None:
        self._free = max(limits.bodies_bytes, 2 * limits.body_bytes)  # or the longest body would never be read
        self._of: dict[str, int] = {}

    def hold(self, peer: str) -> Held:
        """Start to count the bytes of one body, at zero."""
        return Held(self, peer)

    def take(self, peer: str, size: int) -> None:
        """Count more bytes of a peer; `Busy` where that is beyond its share."""
        own = self._of.get(peer, 0) + size
        if own > self._free - size:
            raise Busy("The server is reading as much as it may. Send this request again in a moment.")
        self._of[peer] = own
        self._free -= size

    def give_back(self, peer: str, size: int) -> None:
        """Count them no more."""
        left = self._of.get(peer, 0) - size
        self._free += size
        if left:
            self._of[peer] = left
        else:
            self._of.pop(peer, None)


class Held:
    """One body, as far as it has come."""

    __slots__ = ("_bodies", "_peer", "_size")

    def __init__(self, bodies: Bodies, peer: str) -> None:
        self._bodies = bodies
        self._peer = peer
        self._size = 0

    def grow(self, size: int) -> None:
        """Count it as so many bytes; `Busy` where there is no room for them."""
        self._bodies.take(self._peer, size - self._size)
        self._size = size

    def release(self) -> None:
        """Count it no more. The second time does nothing."""
        size, self._size = self._size, 0
        self._bodies.give_back(self._peer, size)


class Turns:
    """Lets large messages in one at a time, with a pause in between as long as the last one held the loop.

    Parsers and validators cannot be interrupted, and a thread does not help: they do not let go of the interpreter.
    With the pause, one client that sends large messages back to back leaves others half of the time, and another
    caller waits for one of them, not for all. Peers take turns, so that a message waits for one of each other peer at
    most; of one peer, small ones go before large ones.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.large_messages_per_peer
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    async def wait(self, peer: str, size: int) -> None:
        """Wait for a turn. It begins now, and ends when the caller's task next waits for something.

        `Busy` if too many messages of this peer wait already.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line(self._most)
        await line.wait(loop, peer, size)


_Place: TypeAlias = tuple[float, int, asyncio.Future[None]]  # when it is due; a number; its turn


class _Line:
    """Those who wait for a turn, in one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = False  # somebody has the turn, or the pause after it lasts
        self._waiting: dict[str, list[_Place]] = {}  # the peer that is next comes first
        self._numbers = count()

    async def wait(self, loop: asyncio.AbstractEventLoop, peer: str, size: int) -> None:
        if self._taken:
            own = self._waiting.get(peer, [])
            if len(own) >= self._most:
                raise Busy(f"{self._most} large messages of yours wait already. Send this one again in a moment.")
            place = (loop.time() + size / _PACE, next(self._numbers), loop.create_future())
            heappush(self._waiting.setdefault(peer, own), place)
            try:
                await place[2]
            except asyncio.CancelledError:
                self._leave(peer, place)
                raise
        self._taken = True
        loop.call_soon(self._measure, loop, loop.time(), _STEPS)

    def _leave(self, peer: str, place: _Place) -> None:
        """Wait no longer; a turn that has come meanwhile is the next one's."""
        own = self._waiting.get(peer, [])
        if place in own:
            own.remove(place)
            heapify(own)
            if not own:
                del self._waiting[peer]
        elif not place[2].cancelled():
            self._next()

    def _measure(self, loop: asyncio.AbstractEventLoop, started: float, steps: int) -> None:
        if steps > 1:
            loop.call_soon(self._measure, loop, started, steps - 1)
        else:
            now = loop.time()
            loop.call_at(now + (now - started), self._next)

    def _next(self) -> None:
        """Give the turn to the peer that has waited longest for one, and from there on it is the last."""
        while self._waiting:
            peer = next(iter(self._waiting))
            own = self._waiting.pop(peer)
            turn = heappop(own)[2]
            if own:
                self._waiting[peer] = own
            if not turn.done():  # else it was given up just now
                turn.set_result(None)
                return
        self._taken = False


def busy(most: int) -> Busy:
    """The refusal of one request more than `most`."""
    return Busy(f"The server is busy with {most} requests. Send this one again when one of them is answered.")


def still_served() -> InvalidRequest:
    """The refusal of a request that has the id of another."""
    return InvalidRequest("Invalid request: a request with this id is still being served.")


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
