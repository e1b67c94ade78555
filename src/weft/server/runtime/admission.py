"""Limit the memory and time that large messages use, and wait for open calls when the server stops.

`BodyMemory` limits the memory for large bodies. `LargeMessageQueue` limits how long large messages block others.
`OpenCalls` contains only calls that have to wait, for example for I/O. A call that is answered without waiting is never
added.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from weft.errors import InternalError, InvalidRequest
from weft.limits import Limits

if TYPE_CHECKING:
    from weft.server.calls.call import Call


_STEPS = 3  # iterations of the event loop until a message is decoded and its arguments are checked
_PACE = 1024 * 1024  # bytes; a message of this size is queued as if it had arrived one second later


class Busy(InternalError):
    """A request was refused because the server has reached a limit. The client may retry later (HTTP status 503)."""

    status = 503


class BodyMemory:
    """Counts how much memory each peer uses for large request bodies that are being read or wait in the queue.

    A peer may use at most half of the memory that other peers leave free: the first peer up to half of the total, the
    second up to a quarter, and so on. So there is always memory for another peer.
    """

    def __init__(self, limits: Limits) -> None:
        self._free = max(limits.bodies_bytes, 2 * limits.body_bytes)  # enough for the longest body
        self._used: dict[str, int] = {}  # by peer

    def hold(self, peer: str) -> HeldBody:
        """Return a new counter for the memory of one request body of this peer."""
        return HeldBody(self, peer)

    def take(self, peer: str, size: int) -> None:
        """Count `size` more bytes for a peer; raise `Busy` if the peer would then use too much memory."""
        own = self._used.get(peer, 0) + size
        if own > self._free - size:
            raise Busy("The server is reading too many large requests. Send this request again in a moment.")
        self._used[peer] = own
        self._free -= size

    def give_back(self, peer: str, size: int) -> None:
        """Count `size` fewer bytes for a peer, because it no longer uses this memory."""
        left = self._used.get(peer, 0) - size
        self._free += size
        if left:
            self._used[peer] = left
        else:
            self._used.pop(peer, None)


@dataclass(slots=True)
class HeldBody:
    """The memory that `BodyMemory` counts for one request body."""

    _memory: BodyMemory
    _peer: str
    _size: int = 0

    def grow(self, size: int) -> None:
        """Set how many bytes of the body were received; raise `Busy` if the peer would then use too much memory."""
        self._memory.take(self._peer, size - self._size)
        self._size = size

    def release(self) -> None:
        """Stop counting the memory of this body. A second call does nothing."""
        size, self._size = self._size, 0
        self._memory.give_back(self._peer, size)


class LargeMessageQueue:
    """A queue that admits one large message at a time, and pauses after each message.

    A pause is as long as the message before it has blocked the event loop. So a client that sends one large message
    after another leaves half of the time to other clients. (Parsers and validators cannot be interrupted. Threads do
    not help, because parsers and validators hold the interpreter lock.)

    Peers take turns, so that a message waits for at most one message of each other peer. If one peer has several
    messages in the queue, smaller messages are preferred.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.large_messages_per_peer
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = WeakKeyDictionary()

    async def wait(self, peer: str, size: int) -> None:
        """Wait until a large message may be decoded; raise `Busy` if this peer already has too many waiting messages.

        The queue then measures how long the message blocks the event loop, and pauses for the same time before it
        admits the next message.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _LoopQueue(self._most)
        await queue.wait(loop, peer, size)


# One waiting message: its priority, a number that breaks ties, and a future that is done when the message is admitted.
_Place: TypeAlias = tuple[float, int, asyncio.Future[None]]


class _LoopQueue:
    """The large messages that wait in one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = False  # whether a message is being decoded, or the pause after it is not over
        self._waiting: dict[str, list[_Place]] = {}  # by peer; the peer whose turn is next comes first
        self._numbers = count()

    async def wait(self, loop: asyncio.AbstractEventLoop, peer: str, size: int) -> None:
        if self._taken:
            own = self._waiting.get(peer, [])
            if len(own) >= self._most:
                raise Busy(f"{self._most} of your large messages wait already. Send this one again in a moment.")
            place = (loop.time() + size / _PACE, next(self._numbers), loop.create_future())
            self._waiting.setdefault(peer, own).append(place)
            try:
                await place[2]
            except asyncio.CancelledError:
                if place in own:
                    self._leave(peer, place)
                elif not place[2].cancelled():  # its turn had come
                    self._next()
                raise
        self._taken = True
        loop.call_soon(self._measure, loop, loop.time(), _STEPS)

    def _leave(self, peer: str, place: _Place) -> None:
        """Remove one message of a peer from the queue, and move the other messages of this peer to the end."""
        own = self._waiting.pop(peer)
        own.remove(place)
        if own:
            self._waiting[peer] = own

    def _measure(self, loop: asyncio.AbstractEventLoop, started: float, steps: int) -> None:
        if steps > 1:
            loop.call_soon(self._measure, loop, started, steps - 1)
        else:
            now = loop.time()
            loop.call_at(now + (now - started), self._next)

    def _next(self) -> None:
        """Admit one message of the first peer in the queue, and move this peer to the end."""
        while self._waiting:
            peer, own = next(iter(self._waiting.items()))
            place = min(own)
            self._leave(peer, place)
            if not place[2].done():  # not cancelled
                place[2].set_result(None)
                return
        self._taken = False


def busy(most: int) -> Busy:
    """Return the error for a request that exceeds the limit of `most` concurrent requests."""
    return Busy(f"The server is busy with {most} requests. Send this one again when one of them is answered.")


def still_served() -> InvalidRequest:
    """Return the error for a request that has the same id as an unanswered request."""
    return InvalidRequest("Invalid request: a request with this id is still being served.")


log = logging.getLogger("weft.running")

_MOST_NAMED = 5  # maximum number of calls that one log line names
_TURN = 0.05  # seconds in which listen streams and nearly finished calls can still end


def stopped() -> InternalError:
    """Return the error for a call that was cancelled because the server stops."""
    return InternalError(
        "The server stopped before this call was done. It may have taken effect in part: check before you call again."
    )


class OpenCalls:
    """The unfinished calls of one server that have to wait, for example for I/O."""

    def __init__(self) -> None:
        self.name = "The server"  # what stops, for the log; "This worker" if others go on
        self._since: dict[Call, float] = {}  # monotonic time when each call was added

    def add(self, call: Call) -> None:
        """Add a call that has to wait."""
        self._since[call] = time.monotonic()

    def remove(self, call: Call) -> None:
        """Remove a call that has ended."""
        self._since.pop(call, None)

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for all open calls to finish, then cancel the calls that are still running."""
        await asyncio.sleep(_TURN)
        self._log_waiting("" if math.isinf(seconds) else f" up to {seconds:g} s")
        await self._wait(seconds)
        self.end(when=f"after {seconds:g} s")

    def log_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log, after a short delay, which open calls the stopping web server waits for."""
        loop.call_later(_TURN, self._log_waiting)

    def _log_waiting(self, how_long: str = "") -> None:
        if self._since:
            log.warning("%s stops. It waits%s for %s.", self.name, how_long, self._describe(self._since))

    async def cancel(self, seconds: float) -> None:
        """Cancel all open calls, and wait up to `seconds` until they have ended.

        Before the calls are cancelled, listen streams get a short time to end by themselves.
        """
        if self._since:
            await asyncio.sleep(_TURN)
            self.end()
            await self._wait(seconds)

    async def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._since and time.monotonic() < until:  # noqa: ASYNC110 - only when the server stops
            await asyncio.sleep(_TURN / 5)

    def end(self, concerned: Callable[[Call], bool] = lambda _: True, *, when: str = "at once") -> None:
        """Cancel the open calls for which `concerned` returns True (default: all open calls).

        Each cancelled call is answered with an error, if an answer can still be sent. `when` is a phrase for the log
        message, such as "after 10 s".
        """
        ending = [call for call in self._since if not call.cancellation.cancelled and concerned(call)]
        if ending:
            log.warning("%s stops. It cancels, %s, %s.", self.name, when, self._describe(ending))
        for call in ending:
            call.cancellation.cancel("the server stops", told=stopped())

    def _describe(self, calls: Collection[Call]) -> str:
        """Return a text for the log: the number of calls, their names, and how long each has waited."""
        now = time.monotonic()
        named = [f"{call.described} (for {now - self._since[call]:.1f} s)" for call in calls]
        more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        return f"{len(named)} call{'s' if len(named) > 1 else ''}: {', '.join(named[:_MOST_NAMED])}{more}"
