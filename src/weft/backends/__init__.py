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
        """Return the value of `key`, or None if there is none or it has expired."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Store a value for `ttl` seconds. It replaces the old value, if there is one."""
        ...

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Store `value` if the current value is `expected` (None: there is no value). Return whether it was stored."""
        ...

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Keep the current value of `key` for `ttl` seconds from now; return False if there is no value."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete the value of `key`; return False if there was no value."""
        ...


class Log(Protocol):
    """A numbered list of entries for each key.

    A new entry has a greater number than all earlier entries, even if these have expired. Numbers begin at 2, so that
    the number before an entry is never 0, which has a special meaning in `read`.
    """

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry and return its number. Keep only the last `most` entries, for `ttl` seconds from now."""
        ...

    async def read(self, key: str, after: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the entries with numbers above `after`, or all entries that are left if `after` is 0.

        If `after` is not 0, and `append` has dropped an entry above it, return None: the result would have a gap.
        """
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
        """Call `hear` with every message of `topic` from now on; return a function that ends the subscription."""
        ...


class Backend(Protocol):
    """The state that the workers of one deployment share."""

    store: Store
    log: Log
    bus: Bus

    async def close(self) -> None:
        """Close the connections of the backend, if it has any."""
        ...
