"""What was granted: codes that are good once, refresh tokens that are good once, and the families they belong to.

A request that its user has not decided yet is kept nowhere: it is sealed into its page, for the one browser that it is
shown in. So nobody fills the store by asking, and nobody else's browser can decide (R10).

Everything is kept under a digest: who reads the store cannot use what is in it. A code or token that comes a second
time was stolen, or its successor was: its whole family ends (ASEC-04).
"""

from __future__ import annotations

import secrets
import time

import msgspec

from weft.backends.base import Store
from weft.protocol.sealing import KeyRing, StateRefused
from weft.server.auth.authorization.clients import digest
from weft.server.auth.authorization.web import OAuthError

__all__ = ["Grant", "Grants", "Pending"]

CODE_SECONDS = 60.0
_WAIT_SECONDS = 600.0


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A request for authorization whose user has not decided yet."""

    client_id: str
    client_name: str
    redirect_uri: str
    state: str | None
    challenge: str
    scopes: tuple[str, ...]
    resource: str


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has granted to a client; or what it may have without one, which is of no family."""

    client_id: str
    subject: str
    scopes: tuple[str, ...]
    resource: str
    family: str = ""
    redirect_uri: str = ""
    challenge: str = ""  # of the code; refresh tokens have none


class Grants:
    """The grants that are kept in a store."""

    def __init__(self, store: Store, ring: KeyRing, refresh_seconds: float) -> None:
        self._store = store
        self._ring = ring
        self._refresh_seconds = refresh_seconds

    # Requests that wait for their user.

    def seal(self, pending: Pending, browser: str) -> str:
        """A request as its page carries it, for the browser that has this cookie."""
        expires = int(time.time() + _WAIT_SECONDS)
        return self._ring.seal(msgspec.json.encode(pending), binding=digest(browser).encode(), expires=expires)

    def open(self, sealed: str, browser: str) -> Pending | None:
        """The request that a page carries; None if it is another browser's, or too old."""
        try:
            payload = self._ring.open(sealed, binding=digest(browser).encode(), now=int(time.time()))
        except StateRefused:
            return None
        return msgspec.json.decode(payload, type=Pending)

    async def decide(self, sealed: str) -> bool:
        """The user has allowed it; False if that was so already."""
        return await self._store.swap(f"decided:{digest(sealed)}", None, b"1", ttl=_WAIT_SECONDS)

    # Codes and refresh tokens.

    async def begin(self, pending: Pending, subject: str) -> str:
        """A code for what a user has granted."""
        family = secrets.token_urlsafe(16)
        await self._store.put(f"family:{family}", b"1", ttl=self._refresh_seconds)
        grant = Grant(
            family=family,
            client_id=pending.client_id,
            subject=subject,
            scopes=pending.scopes,
            resource=pending.resource,
            redirect_uri=pending.redirect_uri,
            challenge=pending.challenge,
        )
        return await self._issue("code", grant, CODE_SECONDS)

    async def redeem_code(self, code: str) -> Grant:
        """What a code stands for; it is used up."""
        return await self._redeem("code", code)

    async def refresh(self, grant: Grant) -> str:
        """A refresh token for a grant."""
        return await self._issue("refresh", msgspec.structs.replace(grant, challenge=""), self._refresh_seconds)

    async def read_refresh(self, token: str) -> Grant:
        """What a refresh token stands for; it stays good."""
        return (await self._find("refresh", token))[1]

    async def redeem_refresh(self, token: str) -> Grant:
        """What a refresh token stands for; it is used up."""
        grant = await self._redeem("refresh", token)
        await self._store.touch(f"family:{grant.family}", ttl=self._refresh_seconds)
        return grant

    async def end(self, family: str) -> None:
        """Nothing of this family is good any more."""
        await self._store.delete(f"family:{family}")

    async def _issue(self, kind: str, grant: Grant, seconds: float) -> str:
        secret = secrets.token_urlsafe(32)
        await self._store.put(f"{kind}:{digest(secret)}", msgspec.json.encode(grant), ttl=seconds)
        return secret

    async def _find(self, kind: str, secret: str) -> tuple[str, Grant]:
        """What a code or a token stands for, and where that is kept. One that was used up ends its family."""
        key = f"{kind}:{digest(secret)}"
        record = await self._store.get(key)
        if record is None:
            used = await self._store.get(f"used:{key}")
            if used is not None:
                await self.end(used.decode())
            raise _refusal(kind)
        grant = msgspec.json.decode(record, type=Grant)
        await self._check_family(kind, grant)
        return key, grant

    async def _check_family(self, kind: str, grant: Grant) -> None:
        if await self._store.get(f"family:{grant.family}") is None:
            raise _refusal(kind)

    async def _redeem(self, kind: str, secret: str) -> Grant:
        key, grant = await self._find(kind, secret)
        # Written down as used before it is taken away: whoever comes second finds one of the two.
        await self._store.put(f"used:{key}", grant.family.encode(), ttl=self._refresh_seconds)
        if not await self._store.delete(key):
            await self.end(grant.family)
            raise _refusal(kind)
        await self._check_family(kind, grant)  # it may have ended meanwhile
        return grant


def _refusal(kind: str) -> OAuthError:
    return OAuthError("invalid_grant", f"The {kind} is not valid, or not any more.")
