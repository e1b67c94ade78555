"""Verify tokens: `JwtVerifier`, `IntrospectionVerifier` and `StaticTokens`.

A JWT is verified by its signature and claims, without a request. Opaque tokens are sent to the introspection endpoint
of the authorization server (RFC 7662). Static tokens are for development, and for servers without an authorization
server.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self
from urllib.parse import quote

from weft.errors import UsageError
from weft.net.fetch import FetchFailed, fetch_json
from weft.net.urls import check_url
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeysGiven, check_algorithms, make_key_set, read_signed
from weft.server.auth.tokens import LEEWAY, TokenRefused, VerifierFailed, check_claims, info_of, read_audience
from weft.server.calls.connection import TokenInfo
from weft.server.diagnostics import caller

_ACCESS_TOKEN = "access token", frozenset({"jwt", "at+jwt", "application/at+jwt"})  # RFC 9068


class _AudienceVerifier:
    """Base class of the verifiers that check the audience of a token."""

    audience: tuple[str, ...] | None

    def bind(self, audiences: Sequence[str]) -> Self:
        """Return a copy of this verifier that accepts tokens for `audiences`.

        If the user gave the option `audience`, the copy accepts only tokens for that audience. The result is a copy
        because one verifier can be given to several resource servers.
        """
        bound = copy(self)
        bound.audience = self.audience or tuple(audiences)
        return bound

    def _audiences(self) -> tuple[str, ...]:
        if not self.audience:
            name = type(self).__name__
            raise UsageError(f"{name} is used without a ResourceServer. Give it audience=: the audience of its tokens.")
        return self.audience


class JwtVerifier(_AudienceVerifier):
    """Verifies JWTs that one issuer signed.

    Give the URL of the issuer's keys, or the keys themselves (a JWK set, a list of JWKs, or one public key in PEM).
    Every token must have the claims `exp`, `aud` and `iss`. `audience` is the expected audience; default: the URL of
    the resource.

    >>> JwtVerifier("https://auth.example.com/jwks", issuer="https://auth.example.com")
    <JwtVerifier of 'https://auth.example.com'>
    """

    cache_seconds = math.inf  # Until the token expires: a signature stays valid.

    def __init__(
        self,
        jwks_uri: str | None = None,
        *,
        issuer: str,
        keys: KeysGiven | None = None,
        algorithms: Sequence[str] = DEFAULT_ALGORITHMS,
        audience: str | Sequence[str] | None = None,
        leeway: float = LEEWAY,
    ) -> None:
        if not 0 <= leeway <= 300:
            raise UsageError(f"leeway={leeway!r} is not possible: clocks may differ by 0 to 300 seconds.")
        self.issuer = issuer
        self.algorithms = check_algorithms(algorithms)
        self.audience = read_audience(audience)
        self.leeway = leeway
        self._keys = make_key_set("A JwtVerifier needs either the URL of the keys", jwks_uri, keys, self.algorithms)

    def __repr__(self) -> str:
        return f"<JwtVerifier of {self.issuer!r}>"

    async def __call__(self, token: str) -> TokenInfo | None:
        """Return the `TokenInfo` of a token. Raise `TokenRefused` if the token is not valid."""
        claims = await read_signed(
            token,
            self._keys,
            kind=_ACCESS_TOKEN,
            algorithms=self.algorithms,
            issuer=self.issuer,
            audiences=self._audiences(),
            leeway=self.leeway,
        )
        return info_of(claims)


_AT_ONCE = 32  # Most concurrent introspection requests; further requests wait.
_MOST_WAITING = 512  # Most running and waiting introspection requests; further requests fail.


class IntrospectionVerifier(_AudienceVerifier):
    """Verifies tokens with requests to the introspection endpoint of the authorization server.

    `client_id` and `client_secret` are the credentials of this server at the authorization server.

    A response is used for `cache_seconds`, so a revoked token can be accepted for that long. The response must name the
    audience of the token. `audience` is the expected audience; default: the URL of the resource.
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
            raise UsageError("Introspection needs client_id= and client_secret=, with which this server logs in.")
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
        return f"<IntrospectionVerifier at {self.url!r}>"  # Does not show the secret.

    async def __call__(self, token: str) -> TokenInfo | None:
        """Return the `TokenInfo` of a token. If the token is not valid, return None or raise `TokenRefused`."""
        audiences = self._audiences()
        claims = await self._ask(token)
        if claims.get("active") is not True:
            return None
        if self.issuer is not None and claims.get("iss", self.issuer) != self.issuer:
            raise TokenRefused("The token was issued by another authorization server.")
        if claims.get("aud") is None:
            raise TokenRefused("The token does not say for which resource it was issued.")
        check_claims(claims, audiences=audiences, leeway=self.leeway)
        return info_of({"iss": self.issuer, **claims} if self.issuer else claims)

    async def _ask(self, token: str) -> dict[str, Any]:
        if self._waiting >= _MOST_WAITING:  # Anyone can send tokens, so the number is limited.
            raise VerifierFailed("Too many tokens are being verified at the moment.")
        self._waiting += 1
        try:
            async with self._at_once:
                form = {"token": token, "token_type_hint": "access_token"}
                return await fetch_json(self.url, form=form, headers={"Authorization": self._credentials})
        except FetchFailed as error:
            raise VerifierFailed(str(error)) from None
        finally:
            self._waiting -= 1


_LEAST = 8  # Least length of a token, in characters.
_SENDABLE = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # Tokens that a header can carry (RFC 6750, 2.1).
_MAKE_ONE = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'


class StaticTokens:
    """Accepts a fixed set of tokens. `tokens` maps each token to its `TokenInfo`, or to the name of its user.

    >>> StaticTokens({"a-long-random-text": TokenInfo("ann"), "another-one": "bob"})
    <StaticTokens: 2>
    """

    cache_seconds = 0.0  # No caching: a look-up is fast enough.

    def __init__(self, tokens: Mapping[str, TokenInfo | str]) -> None:
        if not tokens:
            raise _unusable("without a token", "they refuse every caller")
        if any(len(token) < _LEAST for token in tokens):
            raise _unusable(f"with a token of less than {_LEAST} characters", "it is easily guessed")
        if not all(map(_SENDABLE.fullmatch, tokens)):
            allowed = "a token has only letters, digits and -._~+/, no spaces, and = only at its end"
            raise _unusable("with a token that no client can send", allowed)
        self._known = [
            (_digest(token), TokenInfo(whose) if isinstance(whose, str) else whose) for token, whose in tokens.items()
        ]

    def __repr__(self) -> str:
        return f"<StaticTokens: {len(self._known)}>"  # Does not show the tokens.

    async def __call__(self, token: str) -> TokenInfo | None:
        """Return the `TokenInfo` of a token, or None if the token is unknown."""
        digest, found = _digest(token), None
        for known, info in self._known:  # Compare with all tokens, so that the duration reveals nothing.
            if hmac.compare_digest(known, digest):
                found = info
        return found


def _unusable(what: str, why: str) -> UsageError:
    return UsageError(f"StaticTokens {what} ({caller()}): {why}. {_MAKE_ONE}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
