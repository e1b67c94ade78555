"""Check the claims of tokens, and write `WWW-Authenticate` challenges.

A verifier is an async callable that gets a token and returns its `TokenInfo`, or None if the token is not valid.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from weft.errors import UsageError, WeftError
from weft.server.calls.connection import TokenInfo, as_time

LEEWAY = 30.0  # Default for the allowed difference between clocks, in seconds.

Verifier: TypeAlias = Callable[[str], Awaitable[TokenInfo | None]]


class TokenRefused(WeftError):
    """Raised if a token is not valid. A verifier may raise it instead of returning None, to tell the client the reason.

    The message is sent to the client: it must not contain the token or any other secret.
    """


class VerifierFailed(WeftError):
    """Raised if a token cannot be verified now, for example because the issuer's keys cannot be fetched."""


def read_audience(audience: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the option `audience` as a tuple, or None if the option is None. Raise UsageError if it is empty.

    None means that tokens must be issued for the URL of the resource.
    """
    if audience is None:
        return None
    audiences = (audience,) if isinstance(audience, str) else tuple(audience)
    if not audiences or not all(audiences):
        raise UsageError("audience= is empty, so no token could be accepted. Leave it out to accept the resource.")
    return audiences


def is_async(function: object) -> bool:
    """Return whether an object is an async function, or has an async `__call__`."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the question is whether `__call__` is async, not whether it exists


def read_info(returned: object) -> TokenInfo:
    """Return the value that a verifier returned, if it is a valid `TokenInfo`.

    Raises `TokenRefused` if the value is None, and UsageError if the value is not a valid `TokenInfo`.
    """
    if returned is None:
        raise TokenRefused("The token is not valid.")
    if not isinstance(returned, TokenInfo) or not isinstance(returned.claims, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a struct does not check the types of its fields
        found = "claims that are no dictionary" if isinstance(returned, TokenInfo) else f"a {type(returned).__name__}"
        raise UsageError(f"It returned {found}. A verifier returns weft.auth.TokenInfo(subject=...), or None.")
    if not isinstance(returned.subject, str) or not returned.subject:  # pyright: ignore[reportUnnecessaryIsInstance] - as above
        raise UsageError(
            f"It returned a TokenInfo whose subject is {returned.subject!r}. Name the user or program of the token: "
            "TokenInfo(subject='ann')."
        )
    return returned


def check_claims(claims: Mapping[str, Any], *, audiences: Sequence[str] | None, leeway: float) -> None:
    """Raise `TokenRefused` if a token is for another audience, has expired or is not valid yet.

    Claims that the token does not have are not checked. If `audiences` is None, the audience is not checked. `leeway`
    is the allowed difference between clocks in seconds.
    """
    now = time.time()
    exp, nbf = read_time(claims, "exp"), read_time(claims, "nbf")
    if exp is not None and exp + leeway <= now:
        raise TokenRefused("The token has expired.")
    if nbf is not None and nbf - leeway > now:
        raise TokenRefused("The token is not valid yet.")
    named = claims.get("aud")
    if named is None or audiences is None:
        return
    listed = cast("list[Any]", named) if isinstance(named, list) else [named]
    if not any(audience in audiences for audience in listed):
        raise TokenRefused("The token was issued for another resource.")


def info_of(claims: Mapping[str, Any]) -> TokenInfo:
    """Create a `TokenInfo` from the claims of a verified token (RFC 9068, RFC 7662).

    Raises `TokenRefused` if the claims have no subject, or malformed scopes.
    """
    client = claims.get("client_id", claims.get("azp"))
    subject = claims.get("sub", client)
    if not isinstance(subject, str) or not subject:
        raise TokenRefused("The token has no subject.")
    scopes = claims.get("scope", claims.get("scp", ()))
    granted: Sequence[Any] = scopes.split() if isinstance(scopes, str) else scopes
    if not isinstance(granted, (list, tuple)) or not all(isinstance(scope, str) for scope in granted):
        raise TokenRefused("The scopes of the token cannot be read.")
    issuer = claims.get("iss")
    return TokenInfo(
        subject=subject,
        client_id=client if isinstance(client, str) else None,
        scopes=frozenset(cast("Sequence[str]", granted)),
        claims=dict(claims),
        issuer=issuer if isinstance(issuer, str) else None,
    )


def read_time(claims: Mapping[str, Any], name: str, what: str = "token") -> float | None:
    """Return the time in the claim `name` as Unix seconds, or None if there is no such claim.

    Raises `TokenRefused` if the claim is not a time. `what` names the kind of token in the error message.
    """
    value = claims.get(name)
    if value is None:
        return None
    seconds = as_time(value)
    if seconds is None:
        raise TokenRefused(f"The claim `{name}` of the {what} is not a time.")
    return seconds


def challenge(scheme: str, **parameters: str | None) -> bytes:
    """Return the value of a `WWW-Authenticate` header. Parameters that are None are left out.

    >>> challenge("Bearer", error="invalid_token", scope=None)
    b'Bearer error="invalid_token"'
    """
    parts = ", ".join(f'{name}="{_quotable(value)}"' for name, value in parameters.items() if value is not None)
    return f"{scheme} {parts}".rstrip().encode("ascii")


def _quotable(value: str) -> str:
    """Replace the characters that a quoted parameter of a challenge must not contain (RFC 6750, 3)."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "'" for char in value)
