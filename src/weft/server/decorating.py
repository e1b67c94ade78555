"""What the decorators of a Server share: with and without arguments, and a sentence for what cannot be registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import UsageError
from weft.protocol.names import closest
from weft.server.where import caller

__all__ = ["check_options", "decorate"]


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
