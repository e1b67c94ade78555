"""Limit the HTTP requests of one principal or address, counted in the backend: by all workers of the fleet together.

If the backend fails, requests are admitted: a limit that cannot be counted must not keep everybody out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count

from weft.backends import Backend
from weft.jsonrpc import Frame
from weft.limits import Limits
from weft.net.logs import Seldom
from weft.server.runtime.admission import Busy

_seldom = Seldom(logging.getLogger("weft.limits"))

COUNT_SECONDS = 1.0  # how long the backend may take to count a request
AWAY_SECONDS = 5.0  # after the backend has failed, requests are not counted for this time
HOLD_SECONDS = 60.0  # a request is counted as running for this time if its worker dies
_PERIOD = 60.0  # seconds, of `requests_per_minute`
_LONG = ("subscriptions/listen", "tasks/result")  # requests that may wait for hours; other limits bound them


class TooMany(Busy):
    """A request was refused because its sender has reached a limit (HTTP status 429)."""

    status = 429

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.retry_after = math.ceil(seconds)  # seconds after which the sender may try again


class PeerLimits:
    """Counts the requests of each peer: those of the last minute, and those that are being served."""

    def __init__(self, backend: Backend, limits: Limits, worker: str) -> None:
        self._backend = backend
        self._per_minute = limits.requests_per_minute
        self._at_once = limits.requests_at_once
        self._worker = worker
        self._numbers = count(1)
        self._held: dict[str, str] = {}  # key of the set, by the name of each request that is being served
        self._unreleased: dict[str, str] = {}  # the same for requests that have ended while the backend failed
        self._releasing: set[asyncio.Task[None]] = set()  # wait for calls that continue after their HTTP request
        self._renewing: asyncio.Task[None] | None = None
        self._away_until = -math.inf  # until then, nothing is counted, because the backend has failed

    @staticmethod
    def for_limits(backend: Backend, limits: Limits, worker: str) -> PeerLimits | None:
        """Return the limits of peers, or None if there are none."""
        is_limited = limits.requests_per_minute or limits.requests_at_once
        return PeerLimits(backend, limits, worker) if is_limited else None

    async def _count(self, peer: str, messages: Sequence[Frame | bytes]) -> None:
        """Count an HTTP request of a peer for the limit per minute. Raises TooMany if the peer has reached the limit.

        Answers and notifications have permits of their own. So a client that has used up those for requests can still
        answer questions and cancel calls.
        """
        if not self._per_minute or self._is_away:
            return
        has_request = any(isinstance(message, bytes) or message.is_request for message in messages)
        key, what = ("rate", "requests") if has_request else ("rate-others", "answers and notifications")
        wait = 0.0
        async with self._tolerant():
            wait = await self._backend.store.take(f"{key}/{_hash(peer)}", count=self._per_minute, seconds=_PERIOD)
        if wait:
            text = f"You may send {self._per_minute} {what} per minute. Send this one again in {math.ceil(wait)} s."
            raise TooMany(text, wait)

    @asynccontextmanager
    async def hold(self, peer: str, messages: Sequence[Frame | bytes]) -> AsyncGenerator[list[asyncio.Task[None]]]:
        """Count an HTTP request of a peer, also while it is being served. Raises TooMany if a limit is reached.

        Several messages of one HTTP request count as one. Not all are counted while they are served: see `_counts`.

        A call in a session may take longer than its HTTP request. So add the tasks of calls to the list that the
        context manager returns: the request is counted until they have ended, too.
        """
        await self._count(peer, messages)
        name = None
        if self._at_once and not self._is_away and any(_counts(message) for message in messages):
            name = await self._hold(f"busy/{_hash(peer)}")
        calls: list[asyncio.Task[None]] = []
        try:
            yield calls
        finally:
            if name is not None:
                if all(call.done() for call in calls):
                    await self._release(name)
                else:
                    releasing = asyncio.get_running_loop().create_task(self._release_after(calls, name))
                    self._releasing.add(releasing)
                    releasing.add_done_callback(self._releasing.discard)

    async def _hold(self, key: str) -> str:
        name, is_held = f"{self._worker}-{next(self._numbers)}", True
        async with self._tolerant():
            is_held = await self._backend.sets.add(key, name, ttl=HOLD_SECONDS, most=self._at_once)
        if not is_held:
            busy = "1 of your requests is" if self._at_once == 1 else f"{self._at_once} of your requests are"
            raise TooMany(f"{busy} being served. Send this one when one has ended.", 1)
        self._held[name] = key
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="weft-peer-limits")
        return name

    async def _release_after(self, calls: list[asyncio.Task[None]], name: str) -> None:
        await asyncio.wait(calls)
        await self._release(name)

    async def _release(self, name: str) -> None:
        key = self._unreleased[name] = self._held.pop(name)
        if not self._is_away:
            async with self._tolerant():
                await self._backend.sets.remove(key, name)
                self._unreleased.pop(name, None)
        if not self._held and not self._unreleased and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def _renew(self) -> None:
        """Renew what is held for requests that take long, and try once more to release requests that have ended.

        If the backend fails, both are left out: the names expire.
        """
        while self._held or self._unreleased:
            await asyncio.sleep(HOLD_SECONDS / 3)
            ended, self._unreleased = self._unreleased, {}
            for name, key in [*self._held.items(), *ended.items()]:
                if self._is_away:
                    break
                async with self._tolerant():
                    if name in self._held:
                        await self._backend.sets.add(key, name, ttl=HOLD_SECONDS)
                    if name not in self._held:  # it has ended, perhaps while it was renewed
                        await self._backend.sets.remove(key, name)

    @property
    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until

    @asynccontextmanager
    async def _tolerant(self) -> AsyncGenerator[None]:
        """Log an exception of the backend, and a delay, instead of raising it. Count nothing for some seconds."""
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                yield
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything
            self._away_until = time.monotonic() + AWAY_SECONDS
            _seldom.warning(
                "Requests are not counted now, because the backend failed: %s", str(error) or type(error).__name__
            )


def _counts(message: Frame | bytes) -> bool:
    """Return whether a message counts for `requests_at_once`: it is a request that is answered soon.

    A client that has reached the limit can still answer questions, cancel requests, open a listen stream, and wait for
    the result of a task. A message that is bytes is an encoded error, in place of an invalid message.
    """
    return isinstance(message, Frame) and message.is_request and message.method not in _LONG


def _hash(peer: str) -> str:
    return hashlib.sha256(peer.encode()).hexdigest()[:32]
