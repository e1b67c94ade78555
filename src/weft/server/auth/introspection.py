"""Tokens whose meaning only the authorization server knows: it is asked (RFC 7662)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from copy import copy
from typing import Any
from urllib.parse import quote

from weft.errors import UsageError
from weft.server.auth.fetching import FetchFailed, fetch_json
from weft.server.auth.urls import check_url
from weft.server.auth.verifying import LEEWAY, TokenRefused, VerifierFailed, check_claims, info_of, read_audience
from weft.server.context import TokenInfo

__all__ = ["IntrospectionVerifier"]

_AT_ONCE = 32  # questions to the authorization server; more wait
_MOST_WAITING = 512


class IntrospectionVerifier:
    """Asks the authorization server about a token, as the client `client_id`.

    An answer is used for `cache_seconds`: for so long may a token that was revoked still be good. The answer must name
    its audience, or it could be meant for anybody; the resource is the one expected, unless `audience` says otherwise.
    """

    def __init__(
        self,
        url: str,
        *,
        client_id: str,
        client_secret: str,
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        cache_seconds: float = 60.0,
        leeway: float = LEEWAY,
    ) -> None:
        check_url(url, "The URL of the introspection")
        if not client_id or not client_secret:
            raise UsageError("Introspection needs client_id= and client_secret=, by which this server is known there.")
        self.url = url
        self.issuer = issuer
        self.audience = read_audience(audience)
        self.cache_seconds = cache_seconds
        self.leeway = leeway
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"  # RFC 6749, 2.3.1
        self._credentials = "Basic " + base64.b64encode(pair.encode()).decode()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<IntrospectionVerifier at {self.url!r}>"  # never the secret

    def bind(self, audiences: Sequence[str]) -> IntrospectionVerifier:
        """The same for tokens of these audiences, unless others were named. So one may serve several resources."""
        bound = copy(self)
        bound.audience = self.audience or tuple(audiences)
        return bound

    async def __call__(self, token: str) -> TokenInfo | None:
        """Who bears the token. `TokenRefused` or None where it is not good."""
        if not self.audience:
            raise UsageError("An IntrospectionVerifier on its own needs audience=: for whom are the tokens?")
        claims = await self._ask(token)
        if claims.get("active") is not True:
            return None
        if self.issuer is not None and claims.get("iss", self.issuer) != self.issuer:
            raise TokenRefused("The token was issued by another authorization server.")
        if claims.get("aud") is None:
            raise TokenRefused("The token does not say for which resource it was issued.")
        check_claims(claims, audiences=self.audience, leeway=self.leeway)
        return info_of({"iss": self.issuer, **claims} if self.issuer else claims)

    async def _ask(self, token: str) -> dict[str, Any]:
        if self._waiting >= _MOST_WAITING:  # anybody can send tokens to be asked about
            raise VerifierFailed("Too many tokens are being asked about at the moment.")
        self._waiting += 1
        try:
            async with self._at_once:
                form = {"token": token, "token_type_hint": "access_token"}
                return await fetch_json(self.url, form=form, headers={"Authorization": self._credentials})
        except FetchFailed as error:
            raise VerifierFailed(str(error)) from None
        finally:
            self._waiting -= 1
