"""Records of sessions: what any worker needs to go on with one, in the Backend's store.

The record is what decides whether a session exists. It is there until it is deleted or its time is over; every worker
that uses the session renews it. Several workers may change it at the same time: each change goes on top of the others.
"""

from __future__ import annotations

import msgspec

from weft.backends.base import Store
from weft.limits import Limits
from weft.types.base import Implementation, LogLevel
from weft.types.capabilities import ClientCapabilities

__all__ = ["OFTEN", "Record", "Records"]

OFTEN = 10  # the times that a record is renewed, at most, in the life it has


class Record(msgspec.Struct, array_like=True, gc=False):
    """What is remembered of one session."""

    protocol_version: str
    client_info: Implementation | None
    client_capabilities: ClientCapabilities
    principal: str | None
    peer: str
    is_ready: bool = False
    log_level: LogLevel | None = None
    subscribed_uris: list[str] = []
    handshake_done: bool = False
    has_listened: bool = False  # its client opened the standalone stream once, here or there


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Records:
    """The records of all sessions."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._unused_seconds = limits.session_unused_seconds
        # Renewed only now and then, it has to last longer than from the one time to the next.
        self._idle_seconds = limits.session_idle_seconds * (1 + 1 / OFTEN)
        self._stream_seconds = 3 * limits.keep_alive_seconds  # renewed with each sign of life

    async def add(self, id: str, record: Record) -> None:
        """Remember a new session."""
        await self._store.put(_key(id), _encode(record), ttl=self._unused_seconds)

    async def read(self, id: str) -> Record | None:
        """What is remembered of a session, if it exists."""
        data = await self._store.get(_key(id))
        return None if data is None else _decode(data)

    async def renew(self, id: str) -> bool:
        """It was used just now. False if it does not exist any more."""
        return await self._store.touch(_key(id), ttl=self._idle_seconds)

    async def change(self, id: str, before: Record, after: Record) -> Record | None:
        """Make a change, given what was known before it. What is remembered now; None if the session has ended."""
        while (data := await self._store.get(_key(id))) is not None:
            merged = _merge(before, after, _decode(data))
            if await self._store.swap(_key(id), data, _encode(merged), ttl=self._idle_seconds):
                return merged
        return None

    async def delete(self, id: str) -> None:
        """Forget a session."""
        await self._store.delete(_key(id))
        await self._store.delete(_stream(id))

    # Which worker has the standalone stream open: one at a time (R4). A worker that died has it no longer, soon.

    async def take_stream(self, id: str, worker: str) -> None:
        """Have it, whoever had it before."""
        await self._store.put(_stream(id), worker.encode(), ttl=self._stream_seconds)

    async def hold_stream(self, id: str, worker: str) -> bool:
        """Have it, or go on having it. False if another worker has it."""
        if await self._store.swap(_stream(id), None, worker.encode(), ttl=self._stream_seconds):
            return True
        if await self._store.get(_stream(id)) != worker.encode():
            return False
        return await self._store.touch(_stream(id), ttl=self._stream_seconds)

    async def drop_stream(self, id: str, worker: str) -> None:
        """Have it no longer."""
        if await self._store.get(_stream(id)) == worker.encode():
            await self._store.delete(_stream(id))


def _merge(before: Record, after: Record, stored: Record) -> Record:
    """What is stored, and on top of it whatever `after` has that `before` had not."""
    changed = {
        name: value
        for name in Record.__struct_fields__
        if (value := getattr(after, name)) != getattr(before, name) and name != "subscribed_uris"
    }
    old, new = set(before.subscribed_uris), set(after.subscribed_uris)
    uris = (set(stored.subscribed_uris) | (new - old)) - (old - new)
    return msgspec.structs.replace(stored, **changed, subscribed_uris=sorted(uris))


def _key(id: str) -> str:
    return f"session/{id}"


def _stream(id: str) -> str:
    return f"listener/{id}"
