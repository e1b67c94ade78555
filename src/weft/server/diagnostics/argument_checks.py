"""What the methods of a Server share that people type: decorators with and without arguments, a sentence for what
cannot be meant so, and a warning for what had better not be.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from weft.errors import UsageError
from weft.limits import DEFAULT_LIMITS, Limits
from weft.protocol.headers import Mirror
from weft.protocol.names import closest
from weft.server.diagnostics.source_location import caller

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("weft.advice")

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SENSITIVE = re.compile(
    r"(?:^|_)(?:password|passphrase|passwd|pwd|pin|secret|token|api_?key|private_?key|authorization|credentials?|cookie"
    r"|session_?id|ssn|social_security|e_?mail|phone|birth(?:day|date)?|passport|iban|card_number|cvc|cvv)(?:_|$)"
)


def with_article(name: str) -> str:
    """Put the article before the name of a type.

    >>> with_article("int"), with_article("str")
    ('an int', 'a str')
    """
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def check_options(what: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that there are not."""
    for name in options:
        if name not in known:
            near = closest(name, known)
            meant = f"Did you mean {near!r}? " if near else ""
            raise UsageError(f"{what} has no option {name!r} ({caller()}). {meant}The options are: {', '.join(known)}.")


def check_kind(option: str, value: object, kind: type, example: str) -> None:
    """Refuse an option that is something else than it should be."""
    if not isinstance(value, kind):
        raise UsageError(
            f"{option}= is a {kind.__name__}, not {type(value).__name__} ({caller()}). Write {option}={example}."
        )


def check_list(option: str, values: object, is_one: Callable[[Any], bool], what: str, example: str) -> None:
    """Refuse an option that is not a list of what it should be."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(map(is_one, cast("Any", values))):
        raise UsageError(
            f"{option}={values!r} is not possible ({caller()}): it is a list of {what}. Write {option}=[{example}]."
        )


def check_limits(limits: object) -> None:
    """Refuse bounds that nothing could keep."""
    check_kind("limits", limits, Limits, "Limits(in_flight=100)")
    assert isinstance(limits, Limits)
    for name in limits.__struct_fields__:
        value, usual = getattr(limits, name), getattr(DEFAULT_LIMITS, name)
        is_number = type(value) is int or (type(value) is float and type(usual) is float)
        least = 1 if name == "threads" else 0  # without one, who waits for it would wait forever
        if not is_number or not value >= least:
            kind = "a number of seconds" if type(usual) is float else "a whole number"
            raise UsageError(f"Limits({name}={value!r}) is not possible ({caller()}): it is {kind}, {least} or more.")


def plainly_called(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a method, called `what`: a call that does not fit its signature is refused in a sentence, in place of
    Python's TypeError. For type checkers nothing changes.
    """

    def decorator(fn: Callable[P, R]) -> Callable[P, R]:
        @wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            _check_call(what, fn, args, kwargs)
            return fn(*args, **kwargs)

        return checked

    return decorator


def _check_call(what: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        if what == "server.asgi" and len(args) == 4 and isinstance(args[1], Mapping):  # an ASGI server calls it
            raise UsageError("server.asgi was mounted, not what it returns: write server.asgi('/mcp').") from None
        known = list(signature.parameters)[1:]  # all but `self`
        check_options(what, kwargs, known)
        raise UsageError(
            f"{what} cannot be called so ({caller()}): {error}. Give its options by name: "
            f"{', '.join(f'{name}=' for name in known)}."
        ) from None


def decorate(fn: Any, register: Callable[[Any], None], kind: str) -> Any:
    """Register now when the decorator stands alone, or later when it has arguments; the function stays what it is."""

    def decorator(function: Any) -> Any:
        if isinstance(function, str):
            raise UsageError(
                f"@server.{kind}({function!r}) is not possible ({caller()}): the name is an option. "
                f"Write @server.{kind}(name={function!r})."
            )
        if not callable(function):
            raise UsageError(
                f"@server.{kind} registers a function, not {type(function).__name__} ({caller()}). "
                "Write it above a `def`."
            )
        try:
            register(function)
        except UsageError as error:
            raise error.with_traceback(None) from None  # The frames inside Weft would hide the user's line.
        return function

    return decorator if fn is None else decorator(fn)


def warn_of_mirrors(mirrors: Iterable[Mirror], what: str) -> None:
    """A secret, or what tells of a person, is not for a header (HDR-41)."""
    for mirror in mirrors:
        if any(map(_is_sensitive, mirror.path)):
            log.warning(
                "%s repeats its parameter %r in the header %s. By its name that is a secret or personal data, and "
                "proxies write headers into their logs: take the x-mcp-header annotation away.",
                what,
                ".".join(mirror.path),
                mirror.header,
            )


def _is_sensitive(name: str) -> bool:
    return _SENSITIVE.search("_".join(_WORD.findall(name)).lower()) is not None


def warn_of_web_uri(uri: str, what: str) -> None:
    """A client may fetch such a URI by itself, past this server (RES-10)."""
    if uri.lower().startswith(("http://", "https://")):
        log.warning(
            "%s is read by this server, and its URI says that clients can fetch it from the web by themselves. Use "
            "another scheme, such as docs://, unless they can.",
            what,
        )
