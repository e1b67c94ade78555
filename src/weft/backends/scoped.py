"""Let several servers share one backend: give each a part in which all keys and topics begin with its name.

Without this, a session of one server would be found by another server that uses the same Redis, and each would be told
of the other's changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote

from weft.backends import Backend, Bus, Hear, Log, Sets, Store, Unsubscribe

__all__ = ["ScopedBackend"]


class ScopedBackend:
    """The part of a backend that belongs to one name.

    >>> import asyncio
    >>> from weft.backends.memory import MemoryBackend
    >>> backend = MemoryBackend()
    >>> asyncio.run(ScopedBackend(backend, "shop").store.put("session/1", b"open", ttl=60))
    >>> asyncio.run(backend.store.get("shop:session/1"))
    b'open'
    """

    def __init__(self, backend: Backend, name: str) -> None:
        prefix = f"{quote(name, safe='')}:"  # without a slash, so that keys stay in their groups
        self._backend = backend
        self.is_local = backend.is_local
        self.store: Store = _ScopedStore(backend.store, prefix)
        self.log: Log = _ScopedLog(backend.log, prefix)
        self.sets: Sets = _ScopedSets(backend.sets, prefix)
        self.bus: Bus = _ScopedBus(backend.bus, prefix)

    async def start(self) -> None:
        """Start the whole backend."""
        await self._backend.start()

    async def ping(self) -> None:
        """Check that the whole backend can be reached."""
        await self._backend.ping()

    async def close(self) -> None:
        """Close the whole backend, after its last user has called `close`."""
        await self._backend.close()


class _ScopedStore:
    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    async def get(self, key: str) -> bytes | None:
        return await self._store.get(self._prefix + key)

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        await self._store.put(self._prefix + key, value, ttl=ttl)

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        return await self._store.swap(self._prefix + key, expected, value, ttl=ttl)

    async def touch(self, key: str, *, ttl: float) -> bool:
        return await self._store.touch(self._prefix + key, ttl=ttl)

    async def delete(self, key: str) -> bool:
        return await self._store.delete(self._prefix + key)

    async def take(self, key: str, *, count: int, seconds: float) -> float:
        return await self._store.take(self._prefix + key, count=count, seconds=seconds)


class _ScopedLog:
    def __init__(self, log: Log, prefix: str) -> None:
        self._log = log
        self._prefix = prefix

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        return await self._log.append(self._prefix + key, entry, ttl=ttl, most=most)

    async def read(self, key: str, after: int, *, most: int | None = None) -> Sequence[tuple[int, bytes]] | None:
        return await self._log.read(self._prefix + key, after, most=most)

    async def last(self, key: str) -> int:
        return await self._log.last(self._prefix + key)

    async def delete(self, key: str) -> None:
        await self._log.delete(self._prefix + key)


class _ScopedSets:
    def __init__(self, sets: Sets, prefix: str) -> None:
        self._sets = sets
        self._prefix = prefix

    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        return await self._sets.add(self._prefix + key, name, ttl=ttl, most=most)

    async def remove(self, key: str, name: str) -> bool:
        return await self._sets.remove(self._prefix + key, name)

    async def names(self, key: str) -> Sequence[str]:
        return await self._sets.names(self._prefix + key)


class _ScopedBus:
    def __init__(self, bus: Bus, prefix: str) -> None:
        self._bus = bus
        self._prefix = prefix

    async def publish(self, topic: str, message: bytes) -> int:
        return await self._bus.publish(self._prefix + topic, message)

    async def subscribe(self, topic: str, hear: Hear, missed: Callable[[], None] | None = None) -> Unsubscribe:
        return await self._bus.subscribe(self._prefix + topic, hear, missed)
