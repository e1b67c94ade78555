"""Make sure that a `requestState` is used only once, and that a function of `ctx.once` runs only once.

Both are done with claims. A claim is an entry in the Backend's store, created by compare-and-set. It lasts as long as
the `requestState` is valid. Workers that share a store see each other's claims. With the default Backend, claims are
only seen in one process.

After a function of `ctx.once` has returned, the function must not run again, even if the call is cancelled. So a
separate task stores the result of the function.
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

from weft.backends import Store
from weft.errors import InvalidParams

log = logging.getLogger("weft.claims")

_Outcome: TypeAlias = bytes | BaseException

MOST = 100_000  # Maximum number of claims of one process; if there are more, the oldest claims are deleted.
MOST_BYTES = 64 * 1024 * 1024  # Maximum size of all their results; above it, the oldest claims are deleted.
HELD_SECONDS = 30.0  # Lifetime of a claim while its function runs; the worker renews the claim.
LONGEST_LOOK = 0.25  # Longest pause, in seconds, between two checks of another worker's claim.

# The first byte of a claim is its state. After `_DONE` comes the result, after `_UNDER_WAY` a random number.
_UNDER_WAY, _DONE, _TOO_LARGE, _GIVEN_UP = b"?", b"=", b"!", b"-"


class OnceStore:
    """Records each used `requestState` and the results of `ctx.once` functions, in the store that workers share.

    >>> from weft.backends.memory import MemoryBackend
    >>> claims = OnceStore(MemoryBackend().store, seconds=600, most_bytes=16_384)
    >>> asyncio.run(claims.spend("state")), asyncio.run(claims.spend("state"))
    (True, False)
    """

    def __init__(self, store: Store, *, seconds: float, most_bytes: int) -> None:
        self._store = store
        self._seconds = seconds
        self._most_bytes = most_bytes  # Maximum size of one result.
        self._made: OrderedDict[str, tuple[float, int]] = OrderedDict()  # Expiry and size of each claim, by key.
        self._bytes = 0
        self._under_way: set[asyncio.Task[None]] = set()  # Running tasks (the event loop has only weak references).

    async def spend(self, state: str) -> bool:
        """Mark a `requestState` as used; return False if it was used before."""
        key = _key("spent", state)
        if not await self._store.swap(key, None, _DONE, ttl=self._seconds):
            return False
        await self._count(key, 0)
        return True

    async def give_back(self, state: str) -> None:
        """Allow a used `requestState` to be used again."""
        key = _key("spent", state)
        self._made.pop(key, None)  # Otherwise `_count` could later delete the claim of another worker.
        await self._store.delete(key)

    async def once(self, name: str, make: Callable[[], Awaitable[bytes]], *, can_stop: bool = True) -> bytes:
        """Call `make` only once for each `name`, and return its result. Later and concurrent calls get the same result.

        If the caller is cancelled, `make` is cancelled too, and the caller waits until `make` has ended. Set `can_stop`
        to False if `make` runs in a thread, which cannot be cancelled. Then the caller does not wait: `make` continues
        in the background, and its result is stored. If `make` raises an exception, the exception is raised here, and
        the next call runs `make` again.
        """
        key, claim = _key("once", name), _UNDER_WAY + os.urandom(16)
        try:
            kept = await self._claim(key, claim)
        except asyncio.CancelledError:
            self._start(self._give_up(key, claim))  # The store may have accepted the claim nevertheless.
            raise
        if kept is not None:
            return kept
        making = asyncio.create_task(_outcome(make))
        ending = self._start(self._hold_and_store(key, claim, making))
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
        """Return the stored result for a key. If there is none, store `claim` under the key, and return None.

        If another call has claimed the key, wait until that call has stored its result or given up. Raises
        InvalidParams if the result was too large to store.
        """
        pause, found = 0.01, None
        while not await self._store.swap(key, found, claim, ttl=HELD_SECONDS):
            kept = await self._store.get(key)
            if kept == claim:
                return None  # The store's client has repeated a swap that had succeeded.
            if kept is not None and kept.startswith(_DONE):
                return kept[1:]
            if kept == _TOO_LARGE:
                raise InvalidParams("Invalid params: this was done already, and its result was too large to keep.")
            found = kept if kept == _GIVEN_UP else None
            if found is None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_LOOK)
        return None

    async def _hold_and_store(self, key: str, claim: bytes, making: asyncio.Task[_Outcome]) -> None:
        """Renew a claim while its function runs, then store the result. If the function failed, release the claim.

        Never raises: an error of the store must not hide the result of the function.
        """
        while not (await asyncio.wait([making], timeout=HELD_SECONDS / 3))[0]:
            async with _log_failure("a claim of ctx.once was not renewed"):
                await self._store.swap(key, claim, claim, ttl=HELD_SECONDS)
        if making.cancelled() or isinstance(result := making.result(), BaseException):
            await self._give_up(key, claim)
            return
        async with _log_failure("a result of ctx.once was not stored, so a repeated round may call its function again"):
            await self._keep(key, claim, result)

    async def _give_up(self, key: str, claim: bytes) -> None:
        """Release a claim, so that another call can claim the key. Does nothing if the key has another claim now."""
        async with _log_failure(f"the next call of a ctx.once function may wait {HELD_SECONDS:.0f} seconds for it"):
            await self._store.swap(key, claim, _GIVEN_UP, ttl=HELD_SECONDS)

    async def _keep(self, key: str, claim: bytes, result: bytes) -> None:
        kept = _DONE + result if len(result) <= self._most_bytes else _TOO_LARGE
        for expected in (claim, None):  # None: the store has lost the claim.
            if await self._store.swap(key, expected, kept, ttl=self._seconds):
                await self._count(key, len(kept))
                return

    async def _count(self, key: str, size: int) -> None:
        """Count a claim and its size. If there are too many claims or bytes, delete the oldest claims."""
        now = time.monotonic()
        self._bytes += size - self._made.pop(key, (0.0, 0))[1]
        self._made[key] = now + self._seconds, size
        while self._made:
            oldest, (until, freed) = next(iter(self._made.items()))
            if len(self._made) <= MOST and self._bytes <= MOST_BYTES and until >= now:
                return
            del self._made[oldest]
            self._bytes -= freed
            if until >= now:  # Otherwise the store deletes it itself.
                async with _log_failure("a claim beyond the bound stays until it expires"):
                    await self._store.delete(oldest)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs to its end even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


async def _outcome(make: Callable[[], Awaitable[bytes]]) -> _Outcome:
    """Return the result of `make`, or its exception, which is not raised: a SystemExit would end the event loop."""
    try:
        return await make()
    except BaseException as error:  # noqa: BLE001 - raised by the waiting call
        return error


@asynccontextmanager
async def _log_failure(consequence: str) -> AsyncGenerator[None]:
    """Run store operations with a timeout; log their exceptions, with the `consequence`, instead of raising them."""
    try:
        async with asyncio.timeout(HELD_SECONDS / 3):
            yield
    except Exception:
        log.exception("The backend failed: %s.", consequence)


def _key(kind: str, name: str) -> str:
    return f"{kind}:{hashlib.sha256(name.encode()).hexdigest()}"
