"""What the decorators of a Server share: with and without arguments, a sentence for what cannot be registered, and a
warning for what had better not be.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.errors import UsageError
from weft.protocol.headers import Mirror
from weft.protocol.names import closest
from weft.server.where import caller

__all__ = ["check_options", "decorate", "warn_of_mirrors", "warn_of_web_uri"]

log = logging.getLogger("weft.advice")

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SENSITIVE = re.compile(
    r"(?:^|_)(?:password|passphrase|passwd|pwd|pin|secret|token|api_?key|private_?key|authorization|credentials?|cookie"
    r"|session_?id|ssn|social_security|e_?mail|phone|birth(?:day|date)?|passport|iban|card_number|cvc|cvv)(?:_|$)"
)


def check_options(kind: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse options that there are not."""
    for name in options:
        if name not in known:
            near = closest(name, known)
            meant = f"Did you mean {near!r}? " if near else ""
            raise UsageError(
                f"A {kind} has no option {name!r} ({caller()}). {meant}The options are: {', '.join(known)}."
            )


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
        register(function)
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
