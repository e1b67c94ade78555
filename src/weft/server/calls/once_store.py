"""Make sure that a `requestState` is used only once, and that a function of `ctx.once` runs only once.

Both are done with claims. A claim is an entry in the Backend's store, created by compare-and-set. It lasts as long as
the `requestState` is valid. Workers that share a store see each other's claims. With the default Backend, claims are
only seen in one process.

A claim is never deleted to make room, because then a state could be used again, or a function could run again. If a
client has too many claims, its next one is refused. If the results need too much memory, the oldest result of the
client with the most bytes is dropped. Its claim stays.

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
from typing import Any, NamedTuple, TypeAlias

from weft.backends import Store
from weft.errors import InternalError, InvalidParams
from weft.net.logs import Seldom
from weft.server.calls.shares import Shares

log = logging.getLogger("weft.claims")
_seldom = Seldom(log)

_Outcome: TypeAlias = bytes | BaseException

MOST = 200_000  # Maximum number of claims of one process; half of it for one client. Refuse more.
MOST_BYTES = 64 * 1024 * 1024  # Maximum size of all their results; above it, results are dropped.
HELD_SECONDS = 30.0  # Lifetime of a claim while its function runs; the worker renews the claim.
LONGEST_LOOK = 0.25  # Longest pause, in seconds, between two checks of another worker's claim.

# The first byte of a claim is its state. After `_DONE` comes the result, after `_UNDER_WAY` a random number.
_UNDER_WAY, _DONE, _NOT_KEPT, _GIVEN_UP = b"?", b"=", b"!", b"-"


class ClaimsFull(InternalError):
    """A round was refused because its client has too many claims. The client may retry later (HTTP status 503)."""

    status = 503


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
        self._results = _Results()
        self._claims = Shares(forget=self._results.remove)
        self._under_way: set[asyncio.Task[None]] = set()  # Running tasks (the event loop has only weak references).

    async def spend(self, state: str, *, peer: str = "") -> bool:
        """Mark a `requestState` as used; return False if it was used before. Raises ClaimsFull if there is no room."""
        key = _key("spent", state)
        if not await self._store.swap(key, None, _DONE, ttl=self._seconds):
            return False
        if not self._take(key, peer):
            await self._store.delete(key)
            raise self._full(peer)
        return True

    async def give_back(self, state: str) -> None:
        """Allow a used `requestState` to be used again."""
        key = _key("spent", state)
        await self._store.delete(key)
        self._claims.release(key)

    async def once(
        self,
        name: str,
        make: Callable[[], Awaitable[bytes]],
        *,
        peer: str = "",
        can_stop: bool = True,
        holder: bytes | None = None,
    ) -> bytes:
        """Call `make` only once for each `name`, and return its result. Later and concurrent calls get the same result.

        If the caller is cancelled, `make` is cancelled too, and the caller waits until `make` has ended. Set `can_stop`
        to False if `make` runs in a thread, which cannot be cancelled. Then the caller does not wait: `make` continues
        in the background, and its result is stored. If `make` raises an exception, the exception is raised here, and
        the next call runs `make` again. Raises ClaimsFull, and does not call `make`, if the client `peer` has too many
        claims. A stored result is returned in any case.

        `holder` are 16 bytes that name who calls `make`, if another worker may have to call it in the name of the same
        one. Then it does not wait until the claim of a worker that has died expires.
        """
        key, claim = _key("once", name), _UNDER_WAY + (holder or os.urandom(16))
        try:
            kept = await self._claim(key, claim)
        except asyncio.CancelledError:
            self._start(self._give_up(key, claim))  # The store may have accepted the claim nevertheless.
            raise
        if kept is not None:
            return kept
        if not self._take(key, peer):
            self._start(self._give_up(key, claim))
            raise self._full(peer)
        making = asyncio.create_task(_outcome(make))
        ending = self._start(self._hold_and_store(key, claim, making, peer))
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
        InvalidParams if the result was not kept.
        """
        pause, found = 0.01, None
        while not await self._store.swap(key, found, claim, ttl=HELD_SECONDS):
            kept = await self._store.get(key)
            if kept == claim:
                return None  # The store's client has repeated a swap that had succeeded.
            if kept is not None and kept.startswith(_DONE):
                return kept[1:]
            if kept == _NOT_KEPT:
                raise InvalidParams(
                    "Invalid params: this was done already, but the server has not kept the result, because it was too "
                    "large or there were too many."
                )
            found = kept if kept == _GIVEN_UP else None
            if found is None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_LOOK)
        return None

    async def _hold_and_store(self, key: str, claim: bytes, making: asyncio.Task[_Outcome], peer: str) -> None:
        """Renew a claim while its function runs, then store the result. If the function failed, release the claim.

        Never raises: an error of the store must not hide the result of the function.
        """
        while not (await asyncio.wait([making], timeout=HELD_SECONDS / 3))[0]:
            async with _log_failure("a claim of ctx.once was not renewed"):
                await self._store.swap(key, claim, claim, ttl=HELD_SECONDS)
        if making.cancelled() or isinstance(result := making.result(), BaseException):
            self._claims.release(key)
            await self._give_up(key, claim)
            return
        async with _log_failure("a result of ctx.once was not stored, so a repeated round may call its function again"):
            await self._keep(key, claim, result, peer)

    async def _give_up(self, key: str, claim: bytes) -> None:
        """Release a claim, so that another call can claim the key. Does nothing if the key has another claim now."""
        async with _log_failure(f"the next call of a ctx.once function may wait {HELD_SECONDS:.0f} seconds for it"):
            await self._store.swap(key, claim, _GIVEN_UP, ttl=HELD_SECONDS)

    async def _keep(self, key: str, claim: bytes, result: bytes, peer: str) -> None:
        is_counted = self._take(key, peer)  # Counted again, because the claim lasts longer now.
        kept = _DONE + result if is_counted and len(result) <= self._most_bytes else _NOT_KEPT
        for expected in (claim, None):  # None: the store has lost the claim.
            if await self._store.swap(key, expected, kept, ttl=self._seconds):
                if kept != _NOT_KEPT:
                    self._results.add(key, _Result(time.monotonic() + self._seconds, peer, len(kept)))
                    await self._drop_results()
                return

    async def _drop_results(self) -> None:
        """Replace results by a mark while the results have too many bytes. Their functions do not run again."""
        while self._results.bytes > MOST_BYTES:
            key, until = self._results.drop()
            if (ttl := until - time.monotonic()) > 0:  # Otherwise the store deletes it itself.
                async with _log_failure("a result beyond the bound stays until it expires"):
                    await self._store.put(key, _NOT_KEPT, ttl=ttl)

    def _take(self, key: str, peer: str) -> bool:
        return self._claims.take(key, peer, most=MOST, seconds=self._seconds)

    def _full(self, peer: str) -> ClaimsFull:
        _seldom.warning("A round of a call was refused, because the client %r has too many claims.", peer, about=peer)
        return ClaimsFull(
            f"You have sent too many answers to questions in the last {self._seconds:.0f} seconds. Try again later."
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs to its end even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


class _Result(NamedTuple):
    until: float  # Expiry, of the monotonic clock.
    peer: str
    size: int


class _Results:
    """Records the sizes of stored results, and decides which result is dropped first."""

    def __init__(self) -> None:
        self.bytes = 0  # Size of all results.
        self._peers: dict[str, OrderedDict[str, _Result]] = {}  # Results by peer and key, oldest first.
        self._used: dict[str, int] = {}  # Bytes of each peer.
        self._peer_of: dict[str, str] = {}  # By key.

    def add(self, key: str, result: _Result) -> None:
        self.remove(key)
        self.bytes += result.size
        self._peer_of[key] = result.peer
        self._peers.setdefault(result.peer, OrderedDict())[key] = result
        self._used[result.peer] = self._used.get(result.peer, 0) + result.size

    def remove(self, key: str) -> None:
        """Remove a result. Does nothing if there is no such result."""
        if (peer := self._peer_of.pop(key, None)) is not None:
            size = self._peers[peer].pop(key).size
            self.bytes -= size
            self._used[peer] -= size
            if not self._peers[peer]:
                del self._peers[peer], self._used[peer]

    def drop(self) -> tuple[str, float]:
        """Remove the oldest result of the peer with the most bytes. Return its key and its expiry."""
        heaviest = max(self._used, key=self._used.__getitem__)
        key, result = next(iter(self._peers[heaviest].items()))
        self.remove(key)
        return key, result.until


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
