"""A Backend in the memory of one process: for one worker, and the default.

Entries whose time is over are found when they are asked for, and by a glance at a few whenever something is written,
each time at others; there is no timer. Used from one event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice

from weft.backends.base import Bus, Hear, Log, Store, Unsubscribe

__all__ = ["Clock", "MemoryBackend"]

Clock = Callable[[], float]

_GLANCE = 4  # entries looked at per write: more than are written, so that what is over does not pile up


class _Expiring:
    """Until when each key is kept, and what to do when that is over."""

    def __init__(self, clock: Clock, forget: Callable[[str], object]) -> None:
        self._clock = clock
        self._forget = forget
        self._until: OrderedDict[str, float] = OrderedDict()  # the one not looked at for longest first

    def keep(self, key: str, ttl: float) -> None:
        self._until[key] = self._clock() + ttl
        self._until.move_to_end(key)
        self._glance()

    def is_kept(self, key: str) -> bool:
        until = self._until.get(key)
        if until is not None and until <= self._clock():
            self.end(key)
            return False
        return until is not None

    def end(self, key: str) -> None:
        self._until.pop(key, None)
        self._forget(key)

    def _glance(self) -> None:
        """Look at a few, in turn: one that has long to go must not stand before those that are over."""
        now = self._clock()
        for key, until in list(islice(self._until.items(), _GLANCE)):
            if until <= now:
                self.end(key)
            else:
                self._until.move_to_end(key)


class _MemoryStore:
    def __init__(self, clock: Clock) -> None:
        self._values: dict[str, bytes] = {}
        self._expiring = _Expiring(clock, lambda key: self._values.pop(key, None))

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key) if self._expiring.is_kept(key) else None

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        self._values[key] = value
        self._expiring.keep(key, ttl)

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        if await self.get(key) != expected:
            return False
        await self.put(key, value, ttl=ttl)
        return True

    async def touch(self, key: str, *, ttl: float) -> bool:
        if not self._expiring.is_kept(key):
            return False
        self._expiring.keep(key, ttl)
        return True

    async def delete(self, key: str) -> bool:
        there = self._expiring.is_kept(key)
        self._expiring.end(key)
        return there


class _Entries:
    """One log."""

    __slots__ = ("given_up", "kept")

    def __init__(self) -> None:
        self.kept: deque[tuple[int, bytes]] = deque()
        self.given_up = 0  # the newest number that is not kept any more


class _MemoryLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, _Entries] = {}
        self._expiring = _Expiring(clock, lambda key: self._logs.pop(key, None))

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        # Numbers come from the clock, so that they grow also where nothing is left to count on from.
        number = max(await self.last(key) + 1, int(self._clock() * 1000), 2)
        entries = self._logs.setdefault(key, _Entries())
        entries.kept.append((number, entry))
        while len(entries.kept) > most:
            entries.given_up = entries.kept.popleft()[0]
        self._expiring.keep(key, ttl)
        return number

    async def read(self, key: str, after: int) -> Sequence[tuple[int, bytes]] | None:
        if not self._expiring.is_kept(key):
            return ()
        entries = self._logs[key]
        return None if 0 < after < entries.given_up else [entry for entry in entries.kept if entry[0] > after]

    async def last(self, key: str) -> int:
        return self._logs[key].kept[-1][0] if self._expiring.is_kept(key) else 0

    async def delete(self, key: str) -> None:
        self._expiring.end(key)


class _MemoryBus:
    def __init__(self) -> None:
        self._topics: dict[str, dict[object, Hear]] = {}

    async def publish(self, topic: str, message: bytes) -> None:
        for hear in list(self._topics.get(topic, {}).values()):
            hear(message)

    async def subscribe(self, topic: str, hear: Hear) -> Unsubscribe:
        mark = object()  # one function may listen twice
        self._topics.setdefault(topic, {})[mark] = hear

        async def unsubscribe() -> None:
            listeners = self._topics.get(topic, {})
            listeners.pop(mark, None)
            if not listeners:
                self._topics.pop(topic, None)

        return unsubscribe


class MemoryBackend:
    """Keeps everything in this process.

    >>> backend = MemoryBackend()
    >>> import asyncio
    >>> asyncio.run(backend.store.get("nothing")) is None
    True
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.store: Store = _MemoryStore(clock)
        self.log: Log = _MemoryLog(clock)
        self.bus: Bus = _MemoryBus()

    async def close(self) -> None:
        """Nothing to let go of."""
