"""A JWT that somebody else signed: read, and held against what is expected of it. Whose it is, others judge.

One reader for all kinds of them. Each kind has its `typ`, so that one is never taken for another; the algorithm is one
of a list, and the key one that is made for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from weft.server.auth.keys import KeySet
from weft.server.auth.verifying import TokenRefused, read_time

if TYPE_CHECKING:
    from jwt import PyJWK

__all__ = ["read_issuer", "read_signed"]

_MOST_BYTES = 16 * 1024
_MOST_KID = 512


async def read_signed(
    token: str,
    keys: KeySet,
    *,
    kind: tuple[str, Collection[str]],
    algorithms: Collection[str],
    issuer: str,
    audiences: Sequence[str],
    leeway: float,
    required: Sequence[str] = ("exp", "aud", "iss"),
) -> dict[str, Any]:
    """The claims of a JWT of this issuer; `TokenRefused` where it is not good.

    `kind` is what it should be: the word for it, and what its `typ` may say (in lower case).
    """
    import jwt

    kid, algorithm = _read_head(token, kind, algorithms)

    def read(candidates: Sequence[PyJWK]) -> dict[str, Any] | None:
        for key in candidates:
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=audiences,
                    issuer=issuer,
                    leeway=leeway,
                    options={"require": list(required)},  # D15: `exp` among them
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as error:
                raise TokenRefused(_reason(error, kind[0])) from None
            except (OverflowError, TypeError, RecursionError):  # older releases of PyJWT, of a time that is none
                raise TokenRefused(f"The {kind[0]} is not valid.") from None
        return None

    tried = await keys.find(kid, algorithm)
    claims = read(tried)
    if claims is None:  # the keys may have changed since they were fetched
        claims = read(await keys.find_more(kid, algorithm, tried))
    if claims is None:
        raise TokenRefused(f"The {kind[0]} is not signed by a key of its issuer.")
    for name in ("exp", "nbf", "iat"):  # PyJWT reads times in texts as well, which RFC 7519 has not
        read_time(claims, name, kind[0])
    return claims


def read_issuer(token: str) -> str | None:
    """Whom a JWT says that it is from, which nobody has verified: it tells only by whose keys to verify it."""
    import jwt

    if len(token) > _MOST_BYTES:
        return None
    try:
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        return None
    return issuer if isinstance(issuer, str) else None


def _read_head(token: str, kind: tuple[str, Collection[str]], algorithms: Collection[str]) -> tuple[str | None, str]:
    import jwt

    what, types = kind
    try:
        if len(token) > _MOST_BYTES:
            raise TokenRefused(f"The {what} is too long.")
        head = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):  # the last of older releases of PyJWT
        raise TokenRefused(f"The {what} is no JWT.") from None
    algorithm, kid, typ = str(head.get("alg")), head.get("kid"), head.get("typ", "jwt")
    if algorithm not in algorithms:
        raise TokenRefused(f"The {what} is signed with an algorithm that is not accepted.")
    if not isinstance(typ, str) or typ.lower() not in types or "crit" in head:
        raise TokenRefused(f"The JWT is no {what}.")
    if kid is not None and (not isinstance(kid, str) or len(kid) > _MOST_KID):
        raise TokenRefused(f"The {what} is not signed by a key of its issuer.")
    return kid, algorithm


def _reason(error: Exception, what: str) -> str:
    """The sentence for a JWT that PyJWT refuses. It says what is wrong, never what is in it."""
    import jwt

    if isinstance(error, jwt.ExpiredSignatureError):
        return f"The {what} has expired."
    if isinstance(error, jwt.ImmatureSignatureError | jwt.InvalidIssuedAtError):
        return f"The {what} is not valid yet."
    if isinstance(error, jwt.InvalidAudienceError):
        return f"The {what} was issued for another resource."
    if isinstance(error, jwt.InvalidIssuerError):
        return f"The {what} was issued by another authorization server."
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"The {what} has no `{error.claim}`."
    return f"The {what} is not valid."
