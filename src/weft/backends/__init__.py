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
        """Return the value of `key`, or None if `key` has no value or the value has expired."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Store `value` for `ttl` seconds, and replace the old value of `key`, if there is one."""
        ...

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Store `value` only if the current value of `key` is `expected`. Return whether `value` was stored.

        If `expected` is None, `value` is stored only if there is no current value.
        """
        ...

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Let the current value of `key` expire `ttl` seconds from now. Return False if there is no value."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete the value of `key`. Return False if there was no value."""
        ...


class Log(Protocol):
    """A numbered list of entries for each key.

    A new entry has a greater number than all earlier entries, even if the earlier entries have expired. Numbers begin
    at 2. So the number of an entry minus 1 is never 0, and can be passed to `read`, for which 0 means all entries.
    """

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry to the list of `key`, and return the number of the entry.

        Only the last `most` entries are kept. The whole list expires `ttl` seconds from now.
        """
        ...

    async def read(self, key: str, after: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the entries of `key` with numbers above `after`. If `after` is 0, return all entries that still exist.

        Return None if `append` has dropped an entry above `after`, and `after` is not 0: the result would have a gap.
        """
        ...

    async def last(self, key: str) -> int:
        """Return the number of the newest entry of `key`, or 0 if there is no entry."""
        ...

    async def delete(self, key: str) -> None:
        """Delete all entries of `key`."""
        ...


class Bus(Protocol):
    """Sends messages to the current subscribers of a topic. Messages are not stored."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to all current subscribers of `topic`."""
        ...

    async def subscribe(self, topic: str, hear: Hear) -> Unsubscribe:
        """Call `hear` with every message of `topic` from now on. Return a function that ends the subscription."""
        ...


class Backend(Protocol):
    """The shared state of all workers of one deployment."""

    store: Store
    log: Log
    bus: Bus

    async def close(self) -> None:
        """Close the connections of the backend, if it has any."""
        ...
