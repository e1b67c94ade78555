"""Assertions: JWTs made for this authorization server, in which somebody that it trusts says who is there.

    client assertion   a program says who it is itself (`private_key_jwt`, RFC 7523)
    ID-JAG             a company's identity provider says who the user of a client is (XAUTH-06)
    workload token     the platform that a program runs on says which program it is

Owns what makes one good: its kind, its signature, for whom and for how long it is, and that it is used once. What
somebody gets for one, the token endpoint decides.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from weft.authorization.users import ask_function
from weft.authorization.web import OAuthError, digest
from weft.backends.base import Store
from weft.errors import UsageError
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeySet, KeysGiven, check_algorithms, make_key_set, read_signed
from weft.server.auth.tokens import LEEWAY, TokenRefused, VerifierFailed, is_async

_MOST_TEXT = 512  # characters of a `jti` or a `sub`


class Kind(msgspec.Struct, frozen=True):
    """A kind of assertions."""

    name: str
    types: frozenset[str]  # what its `typ` may be: no other kind of JWT is taken for it
    most_seconds: float  # how long before its end it may come
    required: tuple[str, ...] = ()  # claims that it has besides those that all have
    is_for_endpoint: bool = False  # its `aud` may be the URL that it is sent to


CLIENT_ASSERTION = Kind(
    "client assertion", frozenset({"jwt", "client-authentication+jwt"}), 300.0, required=("jti",), is_for_endpoint=True
)
ID_JAG = Kind("ID-JAG", frozenset({"oauth-id-jag+jwt"}), 3600.0, required=("iat", "jti"))
# A platform writes one into a file, from which a program may show it again and again until there is a newer one: it
# needs no `jti`, and is not marked as used by one that it has.
WORKLOAD_TOKEN = Kind("workload token", frozenset({"jwt"}), 86_400.0, is_for_endpoint=True)


class TrustedIssuer:
    """Somebody else whose word is taken for who a user or a program is.

    Args:
        issuer: What its assertions have as `iss`, exactly.
        jwks_uri: Where its keys are fetched from; or `keys`, the keys themselves, as a `JwtVerifier` takes them.
        algorithms: What it may sign with.
        workloads: Makes it a platform, which vouches for programs: from the `sub` of each to its client id. Without
            it, it is a company's identity provider, which vouches for users by ID-JAGs.
        subject: An async function from the claims of an ID-JAG to the subject of the tokens, None for nobody. Without
            it that is `issuer#sub`: who it vouches for is never taken for a user of another issuer, or of this server.

    >>> TrustedIssuer("https://idp.example.com", "https://idp.example.com/jwks")
    <TrustedIssuer 'https://idp.example.com'>
    """

    def __init__(
        self,
        issuer: str,
        jwks_uri: str | None = None,
        *,
        keys: KeysGiven | None = None,
        algorithms: Sequence[str] = DEFAULT_ALGORITHMS,
        workloads: Mapping[str, str] | None = None,
        subject: Callable[[Mapping[str, Any]], Awaitable[str | None]] | None = None,
    ) -> None:
        if workloads is not None and (not workloads or subject is not None):
            raise UsageError("workloads= is a dictionary from the `sub` of each program to its client id; no subject=.")
        if subject is not None and not is_async(subject):
            raise UsageError("subject= is an async function from the claims of an ID-JAG to a subject, or None.")
        self.issuer = issuer
        self.algorithms = check_algorithms(algorithms)
        self.keys = make_key_set("A TrustedIssuer needs either the URL of its keys", jwks_uri, keys, self.algorithms)
        self.workloads = None if workloads is None else dict(workloads)
        self._subject = subject

    def __repr__(self) -> str:
        return f"<TrustedIssuer {self.issuer!r}>"

    async def subject_of(self, claims: Mapping[str, Any]) -> str | None:
        """Who a user is here that the issuer vouches for; None for nobody."""
        if self._subject is None:
            return f"{self.issuer}#{claims['sub']}"
        return await ask_function("says who a vouched user is", self._subject, claims)


class Assertions:
    """Reads assertions for one authorization server, and remembers which were used."""

    def __init__(self, store: Store, audience: str) -> None:
        self._store = store
        self._audience = audience  # the server's own issuer

    async def read(
        self, text: str, kind: Kind, *, issuer: str, keys: KeySet, algorithms: Sequence[str]
    ) -> dict[str, Any]:
        """The claims of an assertion of this issuer; `TokenRefused` where it is not good. It is not used up yet."""
        try:
            claims = await read_signed(
                text,
                keys,
                kind=(kind.name, kind.types),
                algorithms=algorithms,
                issuer=issuer,
                audiences=[self._audience, *([f"{self._audience}/token"] if kind.is_for_endpoint else [])],
                required=["iss", "sub", "aud", "exp", *kind.required],
                leeway=LEEWAY,
            )
        except VerifierFailed as error:
            raise OAuthError("temporarily_unavailable", str(error), status=503) from None
        if isinstance(claims["aud"], list) and len(cast("list[Any]", claims["aud"])) != 1:
            raise TokenRefused(f"The {kind.name} is for others as well, who could show it here.")
        if int(claims["exp"]) - time.time() > kind.most_seconds + LEEWAY:
            raise TokenRefused(f"The {kind.name} does not expire within {kind.most_seconds:g} s, as it should.")
        if not all(map(_is_text, (claims["sub"], claims.get("jti", "x")))):
            raise TokenRefused(f"The `sub` and `jti` of a {kind.name} are texts of 1 to {_MOST_TEXT} whole characters.")
        return claims

    async def use(self, claims: Mapping[str, Any], kind: Kind) -> None:
        """Use an assertion up, on all workers together; `TokenRefused` if that was done before."""
        # Longer than it could be shown again: by the clock of another worker it may end later than by this one's.
        seconds = max(int(claims["exp"]) - time.time(), 0.0) + 2 * LEEWAY
        mark = digest(msgspec.json.encode([kind.name, claims["iss"], claims["jti"]]).decode())
        if not await self._store.swap(f"assertion:{mark}", None, b"1", ttl=seconds):
            raise TokenRefused(f"The {kind.name} was used before: each is good once.")


def _is_text(value: object) -> bool:
    """Whether a claim is a text that can be kept: JSON can have half a character (a lone surrogate), UTF-8 cannot."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
