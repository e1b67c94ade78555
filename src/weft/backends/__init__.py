"""Define the interface of a Backend: a store, a log and a bus, which the workers of a deployment share.

A backend stores bytes and does not interpret them. Every entry expires, so that nothing is kept forever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

__all__ = ["Backend", "Bus", "Hear", "Log", "Store", "Unsubscribe"]

Hear: TypeAlias = Callable[[bytes], None]  # is called with each message, on the subscriber's event loop; must not block
Unsubscribe: TypeAlias = Callable[[], Awaitable[None]]  # ends a subscription


class Store(Protocol):
    """A key-value store. Each value has a time to live."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Store a value for `ttl` seconds; replace the old value, if there is one."""
        ...

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Store a value only if the current value is `expected` (None: there is no value); return whether it was."""
        ...

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Keep the current value for `ttl` seconds from now; return False if there is none."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete a value; return False if there was none."""
        ...


class Log(Protocol):
    """A numbered list of entries for each key.

    Numbers are greater than 1 and always increase, even after all earlier entries have expired.
    """

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry and return its number. Keep the last `most` entries, all for `ttl` seconds from now."""
        ...

    async def read(self, key: str, after: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the entries after number `after` (0: all), or None if newer entries have pushed some of them out."""
        ...

    async def last(self, key: str) -> int:
        """Return the number of the newest entry, or 0 if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Delete all entries of a key."""
        ...


class Bus(Protocol):
    """Sends messages to the current subscribers of a topic. Messages are not stored."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to all subscribers of `topic`."""
        ...

    async def subscribe(self, topic: str, hear: Hear) -> Unsubscribe:
        """Call `hear` with every message from now on; return a function that ends the subscription."""
        ...


class Backend(Protocol):
    """The state that the workers of one deployment share."""

    store: Store
    log: Log
    bus: Bus

    async def close(self) -> None:
        """Close the connections of the backend, if it has any."""
        ...
