"""A JWT that somebody else signed: read, and held against what is expected of it. Whose it is, others judge.

One reader for all kinds of them. Each kind has its `typ`, so that one is never taken for another; the algorithm is one
of a list, and the key one that is made for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from weft.server.auth.keys import KeySet
from weft.server.auth.verifying import TokenRefused

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
    required: Sequence[str] = ("exp", "aud", "iss"),
    leeway: float = 30.0,
) -> dict[str, Any]:
    """The claims of a JWT of this issuer; `TokenRefused` where it is not good.

    `kind` is what it should be: the word for it, and what its `typ` may say (in lower case).
    """
    import jwt

    kid, algorithm = _read_head(token, kind, algorithms)
    for key in await keys.find(kid, algorithm):
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
            raise TokenRefused(_reason(error)) from None
    raise TokenRefused("The token is not signed by a key of its issuer.")


def read_issuer(token: str) -> str | None:
    """Whom a JWT says that it is from, which nobody has verified: it tells only by whose keys to verify it."""
    import jwt

    if len(token) > _MOST_BYTES:
        return None
    try:
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError):
        return None
    return issuer if isinstance(issuer, str) else None


def _read_head(token: str, kind: tuple[str, Collection[str]], algorithms: Collection[str]) -> tuple[str | None, str]:
    import jwt

    what, types = kind
    try:
        if len(token) > _MOST_BYTES:
            raise TokenRefused("The token is too long.")
        head = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):
        raise TokenRefused("The token is no JWT.") from None
    algorithm, kid, typ = str(head.get("alg")), head.get("kid"), head.get("typ", "jwt")
    if algorithm not in algorithms:
        raise TokenRefused("The token is signed with an algorithm that is not accepted.")
    if not isinstance(typ, str) or typ.lower() not in types or "crit" in head:
        raise TokenRefused(f"The JWT is no {what}.")
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
