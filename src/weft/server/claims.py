"""Claims: what may happen once, whoever comes first: the use of a `requestState`, a function given to `ctx.once`.

A claim is an entry of the Backend's store, made by compare-and-set. Workers that share a store keep to each other's
claims; with the default Backend they are those of one process. Each lasts as long as the state that it is about.

Owns the claims alone: what is claimed, and what the bytes kept with it mean, others say.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress

from weft.backends.base import Store
from weft.errors import InvalidParams

__all__ = ["Claims"]

MOST = 100_000  # claims of one process; beyond that its oldest are forgotten
MOST_BYTES = 64 * 1024 * 1024  # kept with them, as above
HELD_SECONDS = 30.0  # a claim of a worker that died under way; the living renew theirs
LONGEST_LOOK = 0.25  # seconds between two looks at what another is about to do

_UNDER_WAY, _DONE, _TOO_LARGE = b"?", b"=", b"!"


class Claims:
    """Who came first.

    >>> from weft.backends.memory import MemoryBackend
    >>> claims = Claims(MemoryBackend().store, seconds=600, most_bytes=16_384)
    >>> asyncio.run(claims.spend("state")), asyncio.run(claims.spend("state"))
    (True, False)
    """

    def __init__(self, store: Store, *, seconds: float, most_bytes: int) -> None:
        self._store = store
        self._seconds = seconds
        self._most_bytes = most_bytes  # of one result
        self._made: OrderedDict[str, tuple[float, int]] = OrderedDict()  # by key: until when, and its size
        self._bytes = 0

    async def spend(self, state: str) -> bool:
        """Use a state. False if that was done before."""
        key = _key("spent", state)
        if not await self._store.swap(key, None, _DONE, ttl=self._seconds):
            return False
        await self._count(key, 0)
        return True

    async def give_back(self, state: str) -> None:
        """Let a state that was spent be used again."""
        await self._store.delete(_key("spent", state))

    async def once(self, name: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """What `make` returned when it was called for this name first; whoever comes meanwhile waits for that."""
        key, pause = _key("once", name), 0.01
        claim = _UNDER_WAY + os.urandom(16)
        while not await self._store.swap(key, None, claim, ttl=min(HELD_SECONDS, self._seconds)):
            kept = await self._store.get(key) or _UNDER_WAY
            if kept.startswith(_DONE):
                return kept[1:]
            if kept == _TOO_LARGE:
                raise InvalidParams("Invalid params: this was done already, and its result was too large to keep.")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_LOOK)
        return await self._make(key, claim, make)

    async def _make(self, key: str, claim: bytes, make: Callable[[], Awaitable[bytes]]) -> bytes:
        renewing = asyncio.create_task(self._renew(key, claim))
        try:
            result = await make()
        except BaseException:  # what failed, or was given up, may be tried again
            if await self._store.get(key) == claim:
                await self._store.delete(key)
            raise
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
        kept = _DONE + result if len(result) <= self._most_bytes else _TOO_LARGE
        if await self._store.swap(key, claim, kept, ttl=self._seconds):
            await self._count(key, len(kept))
        return result

    async def _renew(self, key: str, claim: bytes) -> None:
        while True:
            await asyncio.sleep(HELD_SECONDS / 3)
            if not await self._store.swap(key, claim, claim, ttl=HELD_SECONDS):
                return

    async def _count(self, key: str, size: int) -> None:
        """Keep what this process has claimed within its bounds."""
        now = time.monotonic()
        self._made[key] = now + self._seconds, size
        self._bytes += size
        while len(self._made) > MOST or self._bytes > MOST_BYTES or next(iter(self._made.values()))[0] < now:
            oldest, (_, freed) = self._made.popitem(last=False)
            self._bytes -= freed
            await self._store.delete(oldest)


def _key(kind: str, name: str) -> str:
    return f"{kind}:{hashlib.sha256(name.encode()).hexdigest()}"
