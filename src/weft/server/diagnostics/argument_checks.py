"""Check the arguments of a Server and of its decorators, and name the mistake, its place and its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from weft.errors import UsageError
from weft.limits import Limits
from weft.protocol.names import closest
from weft.server.diagnostics.error_reporting import caller

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, 3.3


def with_article(name: str) -> str:
    """Put the article before the name of a type.

    >>> with_article("int"), with_article("str")
    ('an int', 'a str')
    """
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return the question after the known name that is most like this one, or an empty text.

    >>> did_you_mean("tool", ["tools", "prompts"])
    "Did you mean 'tools'? "
    """
    near = closest(str(name), known)
    return f"Did you mean {near!r}? " if near else ""


def check_options(what: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for an option that does not exist."""
    for name in options:
        if name not in known:
            raise UsageError(
                f"{what} has no option {name!r} ({caller()}). {did_you_mean(name, known)}"
                f"The options are: {', '.join(known)}."
            )


def check_kind(option: str, value: object, kind: type, example: str) -> None:
    """Raise UsageError for the value of an option that is not of its type."""
    if not isinstance(value, kind):
        raise UsageError(
            f"{option}= is a {kind.__name__}, not {type(value).__name__} ({caller()}). Write {option}={example}."
        )


def check_limits(limits: Limits) -> None:
    """Raise UsageError for negative limits, and for a server without threads."""
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        least = 1 if name == "threads" else 0  # Without a thread, a plain function would wait forever.
        if not value >= least:
            raise UsageError(f"Limits({name}={value!r}) is not possible ({caller()}): it is {least} or more.")


def check_scopes(scopes: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the scopes of an option without duplicates; raise UsageError for a name that no token can have."""
    if isinstance(scopes, str):
        raise UsageError(f"{where} has scopes={scopes!r}; scopes come as a list: scopes={scopes.split()!r}.")
    for scope in cast("Sequence[object]", scopes):  # Callers may be untyped.
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise UsageError(f"{where} has scopes=[{scope!r}], which is no scope: it has no blanks or quotes in it.")
        if scope == "offline_access":
            raise UsageError(
                f"{where} has the scope 'offline_access', which no operation takes: it is between a client and its "
                "authorization server. Leave it out."
            )
    return tuple(dict.fromkeys(scopes))


def decorate(fn: Any, register: Callable[[Any], None], kind: str) -> Any:
    """Register a function and return it; without a function, return the decorator that does so."""

    def decorator(function: Any) -> Any:
        if isinstance(function, str):
            raise UsageError(
                f"@server.{kind}({function!r}) is not possible ({caller()}): the name is an option. "
                f"Write @server.{kind}(name={function!r})."
            )
        try:
            register(function)
        except UsageError as error:
            raise error.with_traceback(None) from None  # The frames inside Weft would hide the user's line.
        return function

    return decorator if fn is None else decorator(fn)
