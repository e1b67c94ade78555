"""What becomes of an exception that nobody expected: logged once, masked for the peer.

In development the peer is told what happened; otherwise it gets a reference by which the log entry is found. And what
becomes of a mistake in the program itself (`UsageError`) that ends it: shown with the user's own lines only. And of the
one refusal that whoever runs the server has to know of: a client that speaks another version.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from inspect import CO_COROUTINE
from traceback import StackSummary, TracebackException, walk_tb
from types import CoroutineType, TracebackType
from typing import Any, cast

from weft.errors import ProtocolError, UnsupportedVersion, UsageError
from weft.net.logs import marked_lines
from weft.protocol.names import printable
from weft.server.diagnostics.source_location import is_users, user_frames
from weft.server.features.content import Unserialisable

log = logging.getLogger("weft.faults")

MOST_FRAMES = 6
MOST_VERSIONS = 32  # a peer may make them up; what it makes up must not fill the log

_refused_versions: set[str] = set()


def report(what: str, error: BaseException, *, debug: bool, secret: str = "") -> str:
    """Log `error`, raised by `what`, with the user's own frames; return the text for the peer.

    `secret` is what `what` was given and may have put into its error, as a KeyError does: it is in neither text.
    """
    frames = user_frames(error)
    more = ""
    while isinstance(error, BaseExceptionGroup):  # a group says nothing; its members do
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        more = f" (and {len(members) - 1} more)" if len(members) > 1 else more
        error = next(iter(members))
        frames += user_frames(error)
    if isinstance(error, Unserialisable):  # our own finding about what was returned
        return record(f"{what}: {error}{more}", frames[-MOST_FRAMES:], debug=debug)
    summary = summary_of(error)
    if secret:
        summary = summary.replace(secret, "…")
    return record(f"{what} raised {summary}{more}{_unawaited(error)}", frames[-MOST_FRAMES:], debug=debug)


def summary_of(error: BaseException) -> str:
    """What an exception is, in one line or few.

    >>> summary_of(ValueError("no such seat")), summary_of(ValueError())
    ('ValueError: no such seat', 'ValueError')
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's own class may fail at that, and nobody would get an answer (R1)
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def report_code(what: str, error: ProtocolError, *, debug: bool) -> str:
    """Log an error, raised by `what`, whose code may not be sent; return the text for the peer."""
    text = (
        f"{what} raised {type(error).__name__}: {str(error).rstrip('.')}. Its code {error.code} is not sent: the "
        "protocol keeps those from -32768 to -32000 for itself. Take another."
    )
    return record(text, user_frames(error)[-MOST_FRAMES:], debug=debug)


def _unawaited(error: BaseException) -> str:
    """The remedy where a coroutine was taken for its result; and let it go, or Python would complain of it as well."""
    if not isinstance(error, AttributeError | TypeError) or "'coroutine' object" not in str(error):
        return ""
    called = ""
    coroutine = getattr(error, "obj", None)  # only an AttributeError says which
    if isinstance(coroutine, CoroutineType):
        cast("CoroutineType[Any, Any, Any]", coroutine).close()
        called = f"{'ctx.' if coroutine.__qualname__.startswith('Context.') else ''}{coroutine.__name__}(...)"
    before = f" before {called}" if called else ""
    if _is_in_async_function(error):
        return f". An `await` is missing{before}."
    if called.startswith("ctx."):
        return (
            f". A plain `def` cannot await: write `ctx.wait({called})`, or make it `async def` and write "
            f"`await {called}`."
        )
    return f". A plain `def` cannot await: make it `async def`, and write `await`{before}."


def _is_in_async_function(error: BaseException) -> bool:
    """Whether the innermost line of the user's code that an exception came through is in an `async def`."""
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__) if is_users(frame.f_code.co_filename)]
    return not codes or bool(codes[-1].co_flags & CO_COROUTINE)


def record(text: str, frames: Sequence[str] = (), *, debug: bool) -> str:
    """Log what went wrong, once, under a reference; return the text for the peer.

    A peer may have written part of the text, as in "no seat x". So its lines are marked: none passes for a line of the
    log.
    """
    reference = os.urandom(4).hex()
    log.error("%s", "\n".join([f"{marked_lines(text)} [error {reference}]", *(f"  {frame}" for frame in frames)]))
    if not debug:
        return f"Internal error. The server's log has it under error {reference}."
    place = f" ({frames[-1].strip().splitlines()[0]})" if frames else ""
    return f"{text}{place} [error {reference}]"


def note_refusal(error: ProtocolError) -> None:
    """Warn, once for each version, that a client was turned away because of its version; say nothing of the rest."""
    if not isinstance(error, UnsupportedVersion):
        return
    requested = printable(error.data["requested"], "?")
    if requested not in _refused_versions and len(_refused_versions) < MOST_VERSIONS:
        _refused_versions.add(requested)
        spoken = ", ".join(error.data["supported"])
        log.warning("A client asked for protocol version %s; this server speaks %s only.", requested, spoken)


def show_mistakes_plainly() -> None:
    """Let a `UsageError` that nobody catches be printed without Weft's own frames: the mistake is not there.

    Every other exception is shown as before, by whatever showed it before.
    """
    global _show_others
    if sys.excepthook is not _show:
        _show_others, sys.excepthook = sys.excepthook, _show


_show_others = sys.excepthook


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, UsageError):
        _show_others(kind, error, trace)
        return
    told = TracebackException(kind, error, trace)
    told.stack = StackSummary.from_list([frame for frame in told.stack if is_users(frame.filename)])
    sys.stderr.write("".join(told.format(chain=False)))
