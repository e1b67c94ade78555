"""Define what a verifier is, check the claims of a token, and write `WWW-Authenticate` challenges.

A verifier is an async callable from a token to its `TokenInfo`, or None."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from weft.errors import UsageError, WeftError
from weft.server.calls.connection import TokenInfo, as_time

LEEWAY = 30.0  # by how many seconds clocks may differ, where nobody says otherwise

Verifier: TypeAlias = Callable[[str], Awaitable[TokenInfo | None]]


class TokenRefused(WeftError):
    """A token is not good. A verifier may raise it in place of returning None, to tell the client why.

    The sentence is sent to the client: it must not repeat the token, nor what is secret.
    """


class VerifierFailed(WeftError):
    """Whether a token is good cannot be told at the moment: the keys or the introspection cannot be had."""


def read_audience(audience: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """An option that is one audience or several; None where the resource itself is meant."""
    if audience is None:
        return None
    audiences = (audience,) if isinstance(audience, str) else tuple(audience)
    if not audiences or not all(audiences):
        raise UsageError("audience= is empty: leave it out to accept the tokens issued for the resource itself.")
    return audiences


def is_async(function: object) -> bool:
    """Whether something can be called and awaited: an async function, or an object that is called like one."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - whether that is async is the question


def read_info(said: object) -> TokenInfo:
    """What a verifier said of a token that is good. `TokenRefused` if it is not, `UsageError` if that is not said."""
    if said is None:
        raise TokenRefused("The token is not valid.")
    if not isinstance(said, TokenInfo) or not isinstance(said.claims, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a struct does not check what it is made of
        found = "claims that are no dictionary" if isinstance(said, TokenInfo) else f"a {type(said).__name__}"
        raise UsageError(f"It returned {found}. A verifier returns weft.auth.TokenInfo(subject=...), or None.")
    if not isinstance(said.subject, str) or not said.subject:  # pyright: ignore[reportUnnecessaryIsInstance] - as above
        raise UsageError(f"It returned a TokenInfo whose subject is {said.subject!r}: say whose the token is.")
    return said


def check_claims(claims: Mapping[str, Any], *, audiences: Sequence[str] | None, leeway: float) -> None:
    """Refuse claims of another audience (AUTH-30), or of another time. What is absent is for the verifier to demand.

    Where `audiences` is None, so is the audience: nobody else knows it.
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
    for_whom = cast("list[Any]", named) if isinstance(named, list) else [named]
    if not any(audience in audiences for audience in for_whom):
        raise TokenRefused("The token was issued for another resource.")


def info_of(claims: Mapping[str, Any]) -> TokenInfo:
    """Who is calling, by the claims of a verified token (RFC 9068, RFC 7662)."""
    client = claims.get("client_id", claims.get("azp"))
    subject = claims.get("sub", client)
    if not isinstance(subject, str) or not subject:
        raise TokenRefused("The token does not say whose it is.")
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
    """A claim that is a time, in Unix seconds; None if it is not there. `what` is whose claim it is."""
    value = claims.get(name)
    if value is None:
        return None
    seconds = as_time(value)
    if seconds is None:
        raise TokenRefused(f"The claim `{name}` of the {what} is no time.")
    return seconds


def challenge(scheme: str, **parameters: str | None) -> bytes:
    """A challenge of one scheme; what is None is left out.

    >>> challenge("Bearer", error="invalid_token", scope=None)
    b'Bearer error="invalid_token"'
    """
    parts = ", ".join(f'{name}="{_quotable(value)}"' for name, value in parameters.items() if value is not None)
    return f"{scheme} {parts}".rstrip().encode("ascii")


def _quotable(value: str) -> str:
    """Text for a quoted string of RFC 6750: printable ASCII without quotes and backslashes."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "'" for char in value)
