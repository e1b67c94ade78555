"""Tokens that are JWTs: the signature, the issuer, the audience and the time, checked here without asking anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from weft.errors import UsageError
from weft.server.auth.keys import KeySet, check_algorithms, read_keys
from weft.server.auth.urls import check_url
from weft.server.auth.verifying import TokenRefused, info_of, read_audience
from weft.server.context import TokenInfo

__all__ = ["JwtVerifier"]

_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})  # RFC 9068; any other kind of JWT is no access token
_MOST_BYTES = 16 * 1024
_MOST_KID = 512


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
        keys: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | None = None,
        algorithms: Sequence[str] = ("RS256", "PS256", "ES256", "EdDSA"),
        audience: str | Sequence[str] | None = None,
        leeway: float = 30.0,
    ) -> None:
        if (jwks_uri is None) == (keys is None):
            raise UsageError("A JwtVerifier needs either the URL of the keys, or keys=: give exactly one of them.")
        if jwks_uri is not None:
            check_url(jwks_uri, "jwks_uri")
        if not 0 <= leeway <= 300:
            raise UsageError(f"leeway={leeway!r} is not possible: clocks differ by seconds; give 0 to 300.")
        self.issuer = issuer
        self.algorithms = check_algorithms(algorithms)
        self.audience = read_audience(audience)
        self.leeway = leeway
        self._keys = KeySet(jwks_uri, () if keys is None else read_keys(keys))

    def __repr__(self) -> str:
        return f"<JwtVerifier of {self.issuer!r}>"

    def bind(self, audiences: Sequence[str]) -> JwtVerifier:
        """The same for tokens of these audiences, unless others were named. So one may serve several resources."""
        bound = copy(self)
        bound.audience = self.audience or tuple(audiences)
        return bound

    async def __call__(self, token: str) -> TokenInfo | None:
        """Who bears the token. `TokenRefused` where it is not good."""
        import jwt

        if not self.audience:
            raise UsageError("A JwtVerifier on its own needs audience=: for whom are the tokens that it accepts?")
        kid, algorithm = self._read_head(token)
        for key in await self._keys.find(kid, algorithm):
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=self.audience,
                    issuer=self.issuer,
                    leeway=self.leeway,
                    options={"require": ["exp", "aud", "iss"]},  # D15
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as error:
                raise TokenRefused(_reason(error)) from None
            return info_of(claims)
        raise TokenRefused("The token is not signed by a key of its issuer.")

    def _read_head(self, token: str) -> tuple[str | None, str]:
        import jwt

        try:
            if len(token) > _MOST_BYTES:
                raise TokenRefused("The token is too long.")
            head = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise TokenRefused("The token is no JWT.") from None
        algorithm, kid, kind = head.get("alg"), head.get("kid"), head.get("typ", "jwt")
        if algorithm not in self.algorithms:
            raise TokenRefused("The token is signed with an algorithm that is not accepted.")
        if not isinstance(kind, str) or kind.lower() not in _TYPES or "crit" in head:
            raise TokenRefused("The JWT is no access token.")
        if kid is not None and (not isinstance(kid, str) or len(kid) > _MOST_KID):
            raise TokenRefused("The token is not signed by a key of its issuer.")
        return kid, algorithm


def _reason(error: Exception) -> str:
    """The sentence for a token that PyJWT refuses. It says what is wrong, never what is in the token."""
    import jwt

    if isinstance(error, jwt.ExpiredSignatureError):
        return "The token has expired."
    if isinstance(error, jwt.ImmatureSignatureError | jwt.InvalidIssuedAtError):
        return "The token is not valid yet."
    if isinstance(error, jwt.InvalidAudienceError):
        return "The token was issued for another resource."
    if isinstance(error, jwt.InvalidIssuerError):
        return "The token was issued by another authorization server."
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"The token has no `{error.claim}`."
    return "The token is not valid."
