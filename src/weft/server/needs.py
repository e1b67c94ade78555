"""What a tool, prompt or resource needs of the client, said when it is registered: `needs=["elicitation.form"]`.

A question to a client that did not declare it is refused where it is asked. By then the handler may have reported
progress, and the answer is a stream, which has no HTTP status any more. What is needed is known before, and refused
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from weft.errors import MissingCapability, UsageError

if TYPE_CHECKING:
    from weft.server.call import Call

__all__ = ["check_hide", "check_needs", "not_declared", "require_needs"]

_PARTS = {"elicitation": ("form", "url"), "sampling": ("tools", "context"), "roots": ("listChanged",)}


def check_needs(needs: Sequence[str], where: str) -> tuple[str, ...]:
    """The capabilities of an option; UsageError where one is none that a client could declare.

    >>> check_needs(["elicitation.form", "sampling"], "Tool 'book'")
    ('elicitation.form', 'sampling')
    """
    if isinstance(needs, str):
        raise UsageError(f"{where} has needs={needs!r}; what it needs comes as a list: needs=[{needs!r}].")
    for need in cast("Sequence[object]", needs):
        head, _, part = need.partition(".") if isinstance(need, str) else ("", "", "")
        if (head in ("extensions", "experimental") and part) or (head in _PARTS and part in ("", *_PARTS[head])):
            continue
        known = [name for head, parts in _PARTS.items() for name in (head, *(f"{head}.{part}" for part in parts))]
        raise UsageError(
            f"{where} has needs=[{need!r}], which no client declares. There are: {', '.join(known)}, and "
            "extensions.<id>."
        )
    return tuple(needs)


def check_hide(hide: object, needs: Sequence[str], where: str) -> bool:
    """The option that leaves a feature out of the lists of clients that lack what it needs."""
    if type(hide) is not bool:
        raise UsageError(f"{where} has hide={hide!r}; it is True or False.")
    if hide and not needs:
        raise UsageError(
            f"{where} has hide=True and needs nothing. Say what its clients must have, such as "
            "needs=['elicitation.form'], or leave hide= out."
        )
    return hide


def require_needs(call: Call, needs: Sequence[str]) -> None:
    """Refuse a call by a client that did not declare all of them (META-06)."""
    for need in needs:
        if not call.context.client_supports(need):
            head, _, part = need.partition(".")
            raise not_declared(call, f"call {call.method} for this", need, {head: {part: {}} if part else {}})


def not_declared(call: Call, purpose: str, need: str, required: Mapping[str, Any]) -> MissingCapability:
    """Make the refusal of what takes a capability that the client did not declare, or not where it is remembered."""
    if not call.knows_client:
        return MissingCapability(
            f"To {purpose}, the server has to know that the client can do `{need}`. It runs without sessions "
            "(`--no-sessions`), so it does not know what clients of this protocol version declare, and cannot ask "
            "them. Run it with sessions, or use a client of the newest protocol version.",
            required={},
        )
    return MissingCapability(f"To {purpose}, the client must declare the capability `{need}`.", required=required)
