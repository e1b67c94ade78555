"""Define the interface of a Backend: a store, a log and a bus, through which workers share everything.

Values are bytes, whose meaning only the caller knows. Every entry expires, so nothing forgotten is kept for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

__all__ = ["Backend", "Bus", "Hear", "Log", "Store", "Unsubscribe"]

Hear: TypeAlias = Callable[[bytes], None]  # called with each message on the subscriber's loop; must not block
Unsubscribe: TypeAlias = Callable[[], Awaitable[None]]


class Store(Protocol):
    """Values by key, each with a time to live."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Set a value for `ttl` seconds, and replace the old one."""
        ...

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Set a value if the present one is `expected` (None: no value); return False if it is another."""
        ...

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Keep the present value for `ttl` seconds from now; return False if there is none."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete a value; return False if there was none."""
        ...


class Log(Protocol):
    """Numbered entries by key. Numbers are above 1 and always grow, also after all earlier entries have expired."""

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry, keep the last `most` entries for `ttl` seconds from now, and return the entry's number."""
        ...

    async def read(self, key: str, after: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the entries after number `after` (0: all); None if some of them were dropped for newer ones."""
        ...

    async def last(self, key: str) -> int:
        """Return the number of the newest entry; 0 if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Delete a log."""
        ...


class Bus(Protocol):
    """Messages to the present subscribers of a topic. Nothing is kept."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to all subscribers of `topic`."""
        ...

    async def subscribe(self, topic: str, hear: Hear) -> Unsubscribe:
        """Call `hear` with every message from now on; return the function that ends this."""
        ...


class Backend(Protocol):
    """What the workers of one deployment share."""

    store: Store
    log: Log
    bus: Bus

    async def close(self) -> None:
        """Close connections, if there are any."""
        ...
