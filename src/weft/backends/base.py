"""What a Backend is: a store, a log and a bus.

Whatever the workers of one deployment have to know of each other goes through these three. Values are bytes; what they
mean is known to whoever keeps them. Every entry has an end: nothing is kept for ever because somebody forgot it.

Nothing here knows of the protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

__all__ = ["Backend", "Bus", "Hear", "Log", "Store", "Unsubscribe"]

Hear: TypeAlias = Callable[[bytes], None]  # called on the loop of whoever subscribed; must not block
Unsubscribe: TypeAlias = Callable[[], Awaitable[None]]


class Store(Protocol):
    """Values by key, each until its time is over."""

    async def get(self, key: str) -> bytes | None:
        """What is kept under `key`."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Keep a value for `ttl` seconds, in place of what was there."""
        ...

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Keep a value if what is there is `expected` (None: nothing). False if it is not."""
        ...

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Keep what is there for `ttl` seconds from now. False if nothing is there."""
        ...

    async def delete(self, key: str) -> bool:
        """Forget a value. False if there was none."""
        ...


class Log(Protocol):
    """Entries by key, with numbers above 1 that only grow, also when all entries before are forgotten."""

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry and keep the last `most`, for `ttl` seconds from now. Its number."""
        ...

    async def read(self, key: str, after: int) -> Sequence[tuple[int, bytes]] | None:
        """The entries after number `after`; None if some of them were given up for newer ones. After 0: all kept."""
        ...

    async def last(self, key: str) -> int:
        """The number of the newest entry; 0 if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Forget a log."""
        ...


class Bus(Protocol):
    """Messages to whoever listens at the moment. Nothing is kept."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Tell everybody who listens to `topic`."""
        ...

    async def subscribe(self, topic: str, hear: Hear) -> Unsubscribe:
        """Have `hear` called with every message from now on, until what is returned is called."""
        ...


class Backend(Protocol):
    """What the workers of one deployment share."""

    store: Store
    log: Log
    bus: Bus

    async def close(self) -> None:
        """Let go of connections, if there are any."""
        ...
