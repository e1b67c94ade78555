"""Report errors to the developer, find the user's own code, and check options that type checkers do not check."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType, CoroutineType, TracebackType
from typing import Any, cast

from weft.errors import ProtocolError, UnsupportedVersion, UsageError, WeftError
from weft.jsonrpc import to_unicode
from weft.limits import Limits
from weft.net.logs import marked_lines
from weft.protocol.names import closest, printable

log = logging.getLogger("weft.faults")

MOST_FRAMES = 6  # Largest number of frames of the user's code in one log entry.

MOST_VERSIONS = 32  # Largest number of refused versions that are logged: a peer can invent any number of them.

_refused_versions: set[str] = set()  # The refused versions that are already logged.


class Unserialisable(WeftError):
    """Raised if a handler returns a value that cannot be sent as a result. The message says what to return instead."""


def target(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside a partial, bound method, wrapper or callable object; otherwise return `fn` itself."""
    found: Any = fn
    while True:
        if isinstance(found, functools.partial):
            found = cast("Any", found).func
        elif inspect.ismethod(found):
            found = found.__func__
        elif hasattr(found, "__wrapped__"):
            found = found.__wrapped__
        elif not inspect.isroutine(found) and not inspect.isclass(found) and hasattr(type(found).__call__, "__code__"):
            found = type(found).__call__
        else:
            return cast("Callable[..., Any]", found)


def location(fn: Callable[..., Any]) -> str:
    """Return the place of a function as `file:line`, or as `module name` if the function has no Python code.

    >>> location(location).rpartition(":")[0].endswith("diagnostics.py")
    True
    """
    code: CodeType | None = getattr(target(fn), "__code__", None)
    if code is not None:
        return f"{short_path(code.co_filename)}:{code.co_firstlineno}"
    module = getattr(fn, "__module__", None) or type(fn).__module__
    return f"module {module}"


def caller() -> str:
    """Return the file and line, outside Weft, where the current call into Weft was made."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "weft":
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def describe(fn: Callable[..., Any]) -> str:
    """Return the name and the place of a function, such as `book (server.py:12)`."""
    name = getattr(target(fn), "__name__", None) or type(fn).__name__
    if name == "__call__" and not inspect.isroutine(fn):
        name = type(fn).__name__
    return f"{name} ({location(fn)})"


def short_path(filename: str) -> str:
    """Return a path relative to the working directory. For a path outside this directory, return its last two parts."""
    if filename.startswith("<"):
        return filename
    path = Path(filename)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(Path(*path.parts[-2:]))


def user_frames(error: BaseException) -> list[str]:
    """Return the traceback frames in the user's code, outermost first, each as `file:line in name: source`."""
    return [
        f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}" + (f": {frame.line}" if frame.line else "")
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename)
    ]


def enclosing_locals(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the local variables of the running function that defines `fn`; empty if there is no such function.

    String annotations of `fn` are evaluated with these variables, because an annotation may name a local class.
    """
    code: CodeType | None = getattr(target(fn), "__code__", None)
    outer = code.co_qualname.rpartition(".<locals>.")[0] if code else ""
    if code is None or not outer:
        return {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_qualname == outer and frame.f_code.co_filename == code.co_filename:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def is_users(filename: str) -> bool:
    """Return whether a file is the user's code: not part of Weft, the standard library or an installed package."""
    if filename.startswith("<") or filename.endswith(".pyx"):  # generated or compiled code
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in _foreign_folders())


@functools.cache
def _foreign_folders() -> tuple[Path, ...]:
    """Return the directories of Weft, the standard library and installed packages."""
    import sysconfig  # Slow to load, and needed only after a failure.

    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (Path(__file__).resolve().parent.parent, *(Path(folder).resolve() for folder in libraries))


def report(what: str, error: BaseException, *, debug: bool, secret: str = "") -> str:
    """Log an error with the frames of the user's code, and return the error message for the peer.

    `what` describes the code that raised the error, such as "The token verifier". `secret` is a text that the error may
    contain, such as a token. `secret` is removed from the log and from the message for the peer.
    """
    frames = user_frames(error)
    more = ""
    while isinstance(error, BaseExceptionGroup):  # The text of a group says nothing; those of its members do.
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        more = f" (and {len(members) - 1} more)" if len(members) > 1 else more
        error = next(iter(members))
        frames += user_frames(error)
    if isinstance(error, Unserialisable):
        return record(f"{what}: {error}{more}", frames[-MOST_FRAMES:], debug=debug)
    summary = summary_of(error)
    if secret:
        summary = summary.replace(secret, "…")
    return record(f"{what} raised {summary}{more}{_missing_await(error)}", frames[-MOST_FRAMES:], debug=debug)


def summary_of(error: BaseException) -> str:
    """Return the class and the text of an exception.

    >>> summary_of(ValueError("no such seat")), summary_of(ValueError())
    ('ValueError: no such seat', 'ValueError')
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's class may fail here; the request must be answered all the same
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def report_code(what: str, error: ProtocolError, *, debug: bool) -> str:
    """Log that `what` raised an error with a code that the protocol reserves; return the error message for the peer.

    `what` describes the handler that raised the error.
    """
    why = "is not sent: the protocol reserves the codes from -32768 to -32000. Use another one."
    text = f"{what} raised {type(error).__name__}: {str(error).rstrip('.')}. Its code {error.code} {why}"
    return record(text, user_frames(error)[-MOST_FRAMES:], debug=debug)


def _missing_await(error: BaseException) -> str:
    """Return a hint for the log if a missing `await` caused the error; otherwise return an empty text.

    The coroutine that was not awaited is closed, so that Python does not log a warning about it as well.
    """
    if not isinstance(error, AttributeError | TypeError) or "'coroutine' object" not in str(error):
        return ""
    called = ""
    coroutine = getattr(error, "obj", None)  # Only an AttributeError names the object.
    if isinstance(coroutine, CoroutineType):
        cast("CoroutineType[Any, Any, Any]", coroutine).close()
        called = f"{'ctx.' if coroutine.__qualname__.startswith('Context.') else ''}{coroutine.__name__}(...)"
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__) if is_users(frame.f_code.co_filename)]
    is_plain = bool(codes) and not codes[-1].co_flags & CO_COROUTINE
    if is_plain and called.startswith("ctx."):
        instead = f"write `ctx.wait({called})`, or make it `async def` and write `await {called}`"
        return f". A plain `def` cannot await: {instead}."
    return f". An `await` is missing{f' before {called}' if called else ''}."


def record(text: str, frames: Sequence[str] = (), *, debug: bool) -> str:
    """Log a failure with a new reference number, and return the error message for the peer.

    If `debug` is False, this message has only the reference number. Part of `text` may come from a peer, as in "no seat
    x". So all lines of `text` after the first are marked in the log: they must not look like log entries.
    """
    reference = os.urandom(4).hex()
    log.error("%s", "\n".join([f"{marked_lines(text)} [error {reference}]", *(f"  {frame}" for frame in frames)]))
    if not debug:
        return f"Internal error. The server's log has it under error {reference}."
    place = f" ({frames[-1].strip().splitlines()[0]})" if frames else ""
    return f"{text}{place} [error {reference}]"


def note_refusal(error: ProtocolError) -> None:
    """Log a warning if `error` refuses the protocol version of a client. Each version is logged once."""
    if not isinstance(error, UnsupportedVersion):
        return
    requested = printable(error.data["requested"], "?")
    if requested not in _refused_versions and len(_refused_versions) < MOST_VERSIONS:
        _refused_versions.add(requested)
        spoken = ", ".join(error.data["supported"])
        log.warning("A client asked for protocol version %s; this server speaks %s only.", requested, spoken)


def shorten_tracebacks() -> None:
    """Make Python print an uncaught `UsageError` without the frames inside Weft."""
    global _show_others
    if sys.excepthook is not _show:
        _show_others, sys.excepthook = sys.excepthook, _show


_show_others = sys.excepthook  # the hook for all exceptions except `UsageError`


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, UsageError):
        _show_others(kind, error, trace)
        return
    shown = traceback.TracebackException(kind, error, trace)
    shown.stack = traceback.StackSummary.from_list([frame for frame in shown.stack if is_users(frame.filename)])
    sys.stderr.write("".join(shown.format(chain=False)))


_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # a valid scope (RFC 6749, 3.3)


def with_article(name: str) -> str:
    """Return the name of a type with "a" or "an" before it.

    >>> with_article("int"), with_article("str")
    ('an int', 'a str')
    """
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return "Did you mean ...?" with the most similar known name; an empty text if no name is similar.

    >>> did_you_mean("tool", ["tools", "prompts"])
    "Did you mean 'tools'? "
    """
    near = closest(str(name), known)
    return f"Did you mean {near!r}? " if near else ""


def check_options(what: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError if one of `options` is not in `known`. The message begins with `what`, such as "A tool"."""
    for name in options:
        if name not in known:
            remedy = f"{did_you_mean(name, known)}The options are: {', '.join(known)}."
            raise UsageError(f"{what} has no option {name!r} ({caller()}). {remedy}")


def check_limits(limits: Limits) -> None:
    """Raise UsageError if a limit is negative, or if `threads` is 0."""
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        least = 1 if name == "threads" else 0  # Without a thread, a plain function would wait forever.
        if not value >= least:
            raise UsageError(f"Limits({name}={value!r}) is not possible ({caller()}): it is {least} or more.")


def read_progress(
    progress: float, total: float | None, message: str | None, method: str
) -> tuple[float, float | None, str | None]:
    """Return progress as it can be sent and stored. Raises UsageError for a number that is not finite, or a non-text.

    `method` is the name of the method that was called. A number can be of any type that `float` converts.

    >>> from fractions import Fraction
    >>> read_progress(Fraction(1, 4), 10, "painting", "report_progress")
    (0.25, 10, 'painting')
    """
    return (
        _read_number(progress, f"{method}(progress="),
        None if total is None else _read_number(total, f"{method}(total="),
        None if message is None else read_message(message, method),
    )


def _read_number(number: float, beginning: str) -> float:
    try:
        if math.isfinite(number):
            return number if type(number) is int else float(number)
        shown = str(float(number))
    except (TypeError, ValueError, OverflowError):
        shown = f"<{type(number).__name__}>"
    raise UsageError(f"{beginning}{shown}) is not possible: JSON has no such number. Give a finite number.")


def read_message(message: str, method: str) -> str:
    """Return a message as it can be sent and stored. Raises UsageError if it is no text."""
    if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        kind = with_article(type(message).__name__)
        raise UsageError(f"{method}(...) is not possible: the message must be a text, not {kind}. Write str(...).")
    return to_unicode(str.__str__(message))  # msgspec encodes no subclasses of `str`, such as that of numpy


def check_scopes(scopes: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the scopes without duplicates. Raise UsageError if a scope is malformed, or is `offline_access`.

    `where` is the beginning of the error message: the object that has the scopes.
    """
    if isinstance(scopes, str):
        raise UsageError(f"{where} has scopes={scopes!r}; scopes come as a list: scopes={scopes.split()!r}.")
    for scope in cast("Sequence[object]", scopes):  # Callers may be untyped.
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope) or scope == "offline_access":
            raise UsageError(f"{where} has scopes=[{scope!r}]. A scope has no spaces or quotes, nor is offline_access.")
    return tuple(dict.fromkeys(scopes))


def decorate(fn: Any, register: Callable[[Any], None], kind: str) -> Any:
    """Call `register(fn)` and return `fn`. If `fn` is None, return a decorator that does the same with a function.

    `kind` is the name of the decorator in error messages, such as "tool".
    """

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
