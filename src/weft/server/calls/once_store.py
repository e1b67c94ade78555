"""Decide who comes first: the use of a `requestState`, a function given to `ctx.once`.

A claim is an entry of the Backend's store, made by compare-and-set. Workers that share a store respect each other's
claims; with the default Backend the claims are those of one process. Each lasts as long as the state that it is about.

From the moment that a function has returned, neither a cancelled call nor a failing store may cause a second call of
it. So keeping its result runs in a separate task.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from weft.backends.base import Store
from weft.errors import InvalidParams

log = logging.getLogger("weft.claims")

_Outcome: TypeAlias = bytes | BaseException

MOST = 100_000  # claims of one process; beyond that its oldest are forgotten
MOST_BYTES = 64 * 1024 * 1024  # kept with them, as above
HELD_SECONDS = 30.0  # a claim of a worker that died under way; the living renew theirs
LONGEST_LOOK = 0.25  # seconds between two looks at what another is about to do

_UNDER_WAY, _DONE, _TOO_LARGE, _GIVEN_UP = b"?", b"=", b"!", b"-"


class OnceStore:
    """Who came first.

    >>> from weft.backends.memory import MemoryBackend
    >>> claims = OnceStore(MemoryBackend().store, seconds=600, most_bytes=16_384)
    >>> asyncio.run(claims.spend("state")), asyncio.run(claims.spend("state"))
    (True, False)
    """

    def __init__(self, store: Store, *, seconds: float, most_bytes: int) -> None:
        self._store = store
        self._seconds = seconds
        self._most_bytes = most_bytes  # of one result
        self._made: OrderedDict[str, tuple[float, int]] = OrderedDict()  # by key: until when, and its size
        self._bytes = 0
        self._under_way: set[asyncio.Task[None]] = set()  # the loop alone would not keep them

    async def spend(self, state: str) -> bool:
        """Use a state. False if that was done before."""
        key = _key("spent", state)
        if not await self._store.swap(key, None, _DONE, ttl=self._seconds):
            return False
        await self._count(key, 0)
        return True

    async def give_back(self, state: str) -> None:
        """Let a state that was spent be used again."""
        key = _key("spent", state)
        self._made.pop(key, None)  # or it would be forgotten once more, when another worker has spent it
        await self._store.delete(key)

    async def once(self, name: str, make: Callable[[], Awaitable[bytes]], *, can_stop: bool = True) -> bytes:
        """What `make` returned when it was called for this name first; whoever comes meanwhile waits for that.

        When its call is given up, it is cancelled and awaited. One that cannot be stopped is left behind: it has its
        claim until it ends, and its result is kept.
        """
        key, claim = _key("once", name), _UNDER_WAY + os.urandom(16)
        try:
            kept = await self._claim(key, claim)
        except asyncio.CancelledError:
            self._go_on(self._give_up(key, claim))  # the store may have made it all the same
            raise
        if kept is not None:
            return kept
        making = asyncio.create_task(_outcome(make))
        ending = self._go_on(self._see_through(key, claim, making))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            making.cancel()
            if can_stop:
                await asyncio.wait([ending])
            raise
        result = making.result()
        if isinstance(result, BaseException):
            raise result
        return result

    async def _claim(self, key: str, claim: bytes) -> bytes | None:
        """Make a claim; or what was kept by another, who came first."""
        pause, found = 0.01, None
        while not await self._store.swap(key, found, claim, ttl=HELD_SECONDS):
            kept = await self._store.get(key)
            if kept == claim:
                return None  # made after all: what reaches the store may have said it twice
            if kept is not None and kept.startswith(_DONE):
                return kept[1:]
            if kept == _TOO_LARGE:
                raise InvalidParams("Invalid params: this was done already, and its result was too large to keep.")
            found = kept if kept == _GIVEN_UP else None
            if found is None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_LOOK)
        return None

    async def _see_through(self, key: str, claim: bytes, making: asyncio.Task[_Outcome]) -> None:
        """Hold a claim while its function runs, then keep the result; what failed or was given up may be tried again.

        Never fails: what was done is not undone by a store that is gone.
        """
        while not (await asyncio.wait([making], timeout=HELD_SECONDS / 3))[0]:
            async with _telling("a claim of ctx.once was not renewed"):
                await self._store.swap(key, claim, claim, ttl=HELD_SECONDS)
        if making.cancelled() or isinstance(result := making.result(), BaseException):
            await self._give_up(key, claim)
            return
        async with _telling(
            "a result of ctx.once was not kept, and a round that comes twice may call its function again"
        ):
            await self._keep(key, claim, result)

    async def _give_up(self, key: str, claim: bytes) -> None:
        """Leave a claim to the next. Not by deleting: in the meantime it may be another's."""
        async with _telling(f"whoever calls a function of ctx.once next may wait {HELD_SECONDS:.0f} seconds for it"):
            await self._store.swap(key, claim, _GIVEN_UP, ttl=HELD_SECONDS)

    async def _keep(self, key: str, claim: bytes, result: bytes) -> None:
        kept = _DONE + result if len(result) <= self._most_bytes else _TOO_LARGE
        for expected in (claim, None):  # the store may have lost the claim, without another's in its place
            if await self._store.swap(key, expected, kept, ttl=self._seconds):
                await self._count(key, len(kept))
                return

    async def _count(self, key: str, size: int) -> None:
        """Keep what this process has claimed within its bounds."""
        now = time.monotonic()
        self._bytes += size - self._made.pop(key, (0.0, 0))[1]
        self._made[key] = now + self._seconds, size
        while self._made:
            oldest, (until, freed) = next(iter(self._made.items()))
            if len(self._made) <= MOST and self._bytes <= MOST_BYTES and until >= now:
                return
            del self._made[oldest]
            self._bytes -= freed
            if until >= now:  # else the store forgets it by itself
                async with _telling("a claim beyond the bound stays until its time is over"):
                    await self._store.delete(oldest)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what goes on also when nobody waits for it."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


async def _outcome(make: Callable[[], Awaitable[bytes]]) -> _Outcome:
    """What a function returned or raised. A task hands on some exceptions, such as SystemExit, to the loop (R1)."""
    try:
        return await make()
    except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
        return error


@asynccontextmanager
async def _telling(otherwise: str) -> AsyncGenerator[None]:
    """Where the store fails, or does not answer, tell the developer what follows."""
    try:
        async with asyncio.timeout(HELD_SECONDS / 3):
            yield
    except Exception:
        log.exception("The backend failed: %s.", otherwise)


def _key(kind: str, name: str) -> str:
    return f"{kind}:{hashlib.sha256(name.encode()).hexdigest()}"
