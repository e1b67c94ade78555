"""Clients that register themselves (RFC 7591): how many may, and which are forgotten.

Anybody can register, as often as they like. So what one address may do takes nothing from others: an address has an
allowance of registrations that nothing came of, and where there are too many in all, one of the address that has most
of them is forgotten. A client that was given a token counts no longer, and is not forgotten for others.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple, TypeVar

import msgspec

from weft.backends.base import Store
from weft.server.auth.authorization.web import OAuthError, digest

__all__ = ["Registrations"]

UNUSED_SECONDS = 86_400.0  # a registration that no token came of
KEEP_SECONDS = 90 * 86_400.0  # one that was used, since its last token
MOST_UNUSED = 10_000  # registrations without a token, made at one process
MOST_PER_ADDRESS = 100  # of one address within an hour
_HOUR = 3600.0

_Client = TypeVar("_Client", bound=msgspec.Struct)


class _Unused(NamedTuple):
    address: str
    when: float  # on the monotonic clock


class Registrations:
    """The clients that have registered themselves, in a store that workers share.

    A client without a token is kept apart from those that have one: forgetting it can never hit a client in use.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unused: dict[str, _Unused] = {}  # by key in the store, the oldest first

    async def find(self, client_id: str, kind: type[_Client]) -> _Client | None:
        """Return the client of this id."""
        key = digest(client_id)
        record = await self._store.get(f"client:{key}") or await self._store.get(f"new-client:{key}")
        return None if record is None else msgspec.json.decode(record, type=kind)

    async def add(self, client_id: str, client: msgspec.Struct, address: str) -> None:
        """Keep a new client; OAuthError where its address has used up its allowance."""
        now, key = time.monotonic(), digest(client_id)
        for old in [old for old, one in self._unused.items() if one.when <= now - UNUSED_SECONDS]:
            del self._unused[old]  # the store has forgotten it by itself
        recent = [one.when for one in self._unused.values() if one.address == address and one.when > now - _HOUR]
        if len(recent) >= MOST_PER_ADDRESS:
            wait = b"%d" % max(1, int(recent[0] + _HOUR - now))
            text = "Too many clients have registered from your address, and not been used. Try again later."
            raise OAuthError("temporarily_unavailable", text, status=429, headers=[(b"retry-after", wait)])
        if len(self._unused) >= MOST_UNUSED:
            await self._forget_one()
        self._unused[key] = _Unused(address, now)
        await self._store.put(f"new-client:{key}", msgspec.json.encode(client), ttl=UNUSED_SECONDS)

    async def keep(self, client_id: str) -> None:
        """Keep a client that was given a token."""
        key = digest(client_id)
        if await self._store.touch(f"client:{key}", ttl=KEEP_SECONDS):
            return
        record = await self._store.get(f"new-client:{key}")
        if record is not None:
            await self._store.put(f"client:{key}", record, ttl=KEEP_SECONDS)
            await self._store.delete(f"new-client:{key}")
            self._unused.pop(key, None)

    async def _forget_one(self) -> None:
        """Forget the oldest unused client of the address that has most of them."""
        ((address, _),) = Counter(one.address for one in self._unused.values()).most_common(1)
        oldest = next(key for key, one in self._unused.items() if one.address == address)
        del self._unused[oldest]
        await self._store.delete(f"new-client:{oldest}")
