"""Tokens that are JWTs: the signature, the issuer, the audience and the time, checked here without asking anybody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

from weft.errors import UsageError
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeysGiven, check_algorithms, make_key_set
from weft.server.auth.signed import read_signed
from weft.server.auth.verifying import LEEWAY, info_of, read_audience
from weft.server.context import TokenInfo

__all__ = ["JwtVerifier"]

_ACCESS_TOKEN = "access token", frozenset({"jwt", "at+jwt", "application/at+jwt"})  # RFC 9068


class JwtVerifier:
    """Verifies JWTs that one issuer signed.

    Give the URL of its keys, or the keys themselves (a JWK set, a list of JWKs, one public key in PEM). `exp` is
    required in every token; `audience` is the resource, unless the issuer names it in another way.

    >>> JwtVerifier("https://auth.example.com/jwks", issuer="https://auth.example.com")
    <JwtVerifier of 'https://auth.example.com'>
    """

    cache_seconds = math.inf  # until the token expires: a signature stays what it is

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
            raise UsageError(f"leeway={leeway!r} is not possible: clocks differ by seconds; give 0 to 300.")
        self.issuer = issuer
        self.algorithms = check_algorithms(algorithms)
        self.audience = read_audience(audience)
        self.leeway = leeway
        self._keys = make_key_set("A JwtVerifier needs either the URL of the keys", jwks_uri, keys, self.algorithms)

    def __repr__(self) -> str:
        return f"<JwtVerifier of {self.issuer!r}>"

    def bind(self, audiences: Sequence[str]) -> JwtVerifier:
        """The same for tokens of these audiences, unless others were named. So one may serve several resources."""
        bound = copy(self)
        bound.audience = self.audience or tuple(audiences)
        return bound

    async def __call__(self, token: str) -> TokenInfo | None:
        """Who bears the token. `TokenRefused` where it is not good."""
        if not self.audience:
            raise UsageError("A JwtVerifier on its own needs audience=: for whom are the tokens that it accepts?")
        claims = await read_signed(
            token,
            self._keys,
            kind=_ACCESS_TOKEN,
            algorithms=self.algorithms,
            issuer=self.issuer,
            audiences=self.audience,
            leeway=self.leeway,
        )
        return info_of(claims)
