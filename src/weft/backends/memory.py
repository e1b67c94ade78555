"""Implement a Backend in the memory of one process. This is the default, for one worker with one event loop.

An expired entry is no longer returned, and a timer deletes the entry within a second.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.backends import Bus, Hear, Log, Sets, Store, Unsubscribe
from weft.net.rate import Allowance

__all__ = ["Clock", "ExpiringKeys", "MemoryBackend"]

Clock = Callable[[], float]


class ExpiringKeys:
    """Tracks when keys expire, and calls `forget` with each expired key, at most a second late."""

    def __init__(self, clock: Clock, forget: Callable[[str], object]) -> None:
        self._clock = clock
        self._forget = forget
        self._until: dict[str, float] = {}  # expiry time of each key
        self._due: dict[float, set[str]] = {}  # keys by the second in which they expire
        self._next = math.inf  # the first second in which keys may expire
        self._timer: asyncio.TimerHandle | None = None  # runs `_sweep` in that second
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop of the timer
        self._is_sweeping = False

    def keep(self, key: str, ttl: float) -> None:
        """Let `key` expire in `ttl` seconds. This replaces an earlier expiry time of the same key.

        `forget` may call this method to keep a key for longer.
        """
        _check_seconds(ttl)
        self._leave_second(key)
        now = self._clock()
        until = now + ttl
        second = _second(until)
        self._until[key] = until
        self._due.setdefault(second, set()).add(key)
        if self._is_sweeping:
            return  # `_sweep` sets the timer
        if second < self._next or self._next <= now or self._loop is not asyncio.get_running_loop():
            self._sweep()

    def is_kept(self, key: str) -> bool:
        """Return whether `key` was passed to `keep` and has not expired."""
        until = self._until.get(key)
        if until is not None and until <= self._clock():
            self.end(key)
            return False
        return until is not None

    def end(self, key: str) -> None:
        """Let `key` expire now, and call `forget` with `key`."""
        self._leave_second(key)
        self._until.pop(key, None)
        self._forget(key)

    def _leave_second(self, key: str) -> None:
        if (until := self._until.get(key)) is not None:
            second = _second(until)
            self._due[second].discard(key)
            if not self._due[second]:
                del self._due[second]

    def _sweep(self) -> None:
        """Remove all expired keys, and set the timer to the next second in which keys expire."""
        now = self._clock()
        self._is_sweeping = True
        try:
            for key in [key for second, keys in self._due.items() if second <= now for key in keys]:
                self.end(key)
        finally:
            self._is_sweeping = False
        self._next = min(self._due, default=math.inf)
        if self._timer is not None:
            self._timer.cancel()
        self._loop = asyncio.get_running_loop()
        if self._next < math.inf:
            self._timer = self._loop.call_later(self._next - now, self._sweep)


def _second(until: float) -> float:
    return until if math.isinf(until) else math.ceil(until)


def _check_seconds(seconds: float) -> None:
    """Raise an exception if `seconds` is not a number. Call this before anything is stored that would never expire."""
    if math.isnan(seconds):
        raise ValueError("A time to live must be a number.")


class _MemoryStore:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, bytes] = {}
        self._expiring = ExpiringKeys(clock, lambda key: self._values.pop(key, None))
        self._permits: dict[str, Allowance] = {}
        self._expiring_permits = ExpiringKeys(clock, self._forget_permits)

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key) if self._expiring.is_kept(key) else None

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        _check_seconds(ttl)
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
        existed = self._expiring.is_kept(key)
        self._expiring.end(key)
        return existed

    async def take(self, key: str, *, count: int, seconds: float) -> float:
        permits = self._permits.get(key)
        if permits is None:
            _check_seconds(seconds)
            permits = self._permits[key] = Allowance(count, seconds, clock=self._clock)
            self._expiring_permits.keep(key, seconds)  # not with each permit, which would take longer than the rest
        return permits.wait()

    def _forget_permits(self, key: str) -> None:
        permits = self._permits.pop(key, None)
        if permits is not None and (left := permits.busy_seconds) > 0:  # permits were taken since
            self._permits[key] = permits
            self._expiring_permits.keep(key, left)


@dataclass(slots=True)
class _Entries:
    """The log entries of one key."""

    kept: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])  # not a deque, which takes 600 bytes
    dropped: int = 0  # number of the newest entry that was dropped


def _number(entry: tuple[int, bytes]) -> int:
    return entry[0]


class _MemoryLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, _Entries] = {}
        self._expiring = ExpiringKeys(clock, lambda key: self._logs.pop(key, None))

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        _check_seconds(ttl)
        if most < 1:
            raise ValueError(f"A log cannot have at most {most} entries.")
        # Numbers come from the clock, so that they increase even after all entries have expired.
        number = max(await self.last(key) + 1, int(self._clock() * 1000), 2)
        entries = self._logs.setdefault(key, _Entries())
        entries.kept.append((number, entry))
        while len(entries.kept) > most:
            entries.dropped = entries.kept.pop(0)[0]
        self._expiring.keep(key, ttl)
        return number

    async def read(self, key: str, after: int, *, most: int | None = None) -> Sequence[tuple[int, bytes]] | None:
        if not self._expiring.is_kept(key):
            return ()
        entries = self._logs[key]
        if 0 < after < entries.dropped:
            return None
        first = bisect_right(entries.kept, after, key=_number)
        return entries.kept[first : None if most is None else first + most]

    async def last(self, key: str) -> int:
        return self._logs[key].kept[-1][0] if self._expiring.is_kept(key) else 0

    async def delete(self, key: str) -> None:
        self._expiring.end(key)


@dataclass(slots=True)
class _Names:
    """The names in one set."""

    until: dict[str, float] = field(default_factory=dict[str, float])  # expiry time of each name
    soonest: float = math.inf  # no name expires before this time
    latest: float = -math.inf  # no name expires after this time

    def expire(self, now: float) -> None:
        """Remove the names that have expired."""
        if self.soonest <= now:
            self.until = {name: until for name, until in self.until.items() if until > now}
            self.soonest = min(self.until.values(), default=math.inf)


class _MemorySets:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sets: dict[str, _Names] = {}
        self._expiring = ExpiringKeys(clock, lambda key: self._sets.pop(key, None))  # each set, with its last name

    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        _check_seconds(ttl)
        now, names = self._clock(), self._current(key)
        if most is not None and len(names.until) - (name in names.until) >= most:
            return False
        until = names.until[name] = now + ttl
        names.soonest, names.latest = min(names.soonest, until), max(names.latest, until)
        self._sets[key] = names
        self._expiring.keep(key, names.latest - now)
        return True

    async def remove(self, key: str, name: str) -> bool:
        names = self._current(key)
        existed = names.until.pop(name, None) is not None
        if not names.until:
            self._expiring.end(key)
        return existed

    async def names(self, key: str) -> Sequence[str]:
        return sorted(self._current(key).until)

    def _current(self, key: str) -> _Names:
        """Return the names in a set that have not expired, and delete the others."""
        names = self._sets.get(key) or _Names()
        names.expire(self._clock())
        return names


class _MemoryBus:
    def __init__(self) -> None:
        self._topics: dict[str, dict[object, Hear]] = {}

    async def publish(self, topic: str, message: bytes) -> int:
        listeners = list(self._topics.get(topic, {}).values())
        for hear in listeners:
            hear(message)
        return len(listeners)

    async def subscribe(self, topic: str, hear: Hear, missed: Callable[[], None] | None = None) -> Unsubscribe:
        mark = object()  # a unique key, because one function may subscribe twice
        self._topics.setdefault(topic, {})[mark] = hear

        async def unsubscribe() -> None:
            listeners = self._topics.get(topic, {})
            listeners.pop(mark, None)
            if not listeners:
                self._topics.pop(topic, None)

        return unsubscribe


class MemoryBackend:
    """A backend in the memory of this process.

    >>> backend = MemoryBackend()
    >>> import asyncio
    >>> asyncio.run(backend.store.get("nothing")) is None
    True
    """

    is_local = True

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.store: Store = _MemoryStore(clock)
        self.log: Log = _MemoryLog(clock)
        self.sets: Sets = _MemorySets(clock)
        self.bus: Bus = _MemoryBus()

    async def start(self) -> None:
        """Do nothing, because there are no connections."""

    async def ping(self) -> None:
        """Do nothing: memory can always be reached."""

    async def close(self) -> None:
        """Do nothing, because there are no connections."""
