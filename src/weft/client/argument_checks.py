"""Check the arguments that a program passes to a client, and remove Weft's frames from the tracebacks of errors."""

from __future__ import annotations

import functools
import inspect
import math
import ssl
from collections.abc import Callable, Coroutine, Mapping
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast, get_args

import msgspec

from weft.errors import UsageError, WeftError
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits
from weft.protocol.names import check_extension_id
from weft.types.base import LogLevel

P = ParamSpec("P")
R = TypeVar("R")

# Folders whose frames are removed from tracebacks: Weft, and `concurrent.futures`, which `weft.sync` uses.
_HIDDEN = (str(Path(__file__).parents[1]), str(Path(futures.__file__).parent))
_DEEPEST = 50  # how deep params are searched for the value that is not JSON
# Limits that may be 0. In the first set, 0 turns a feature off. In the second set, 0 means "no limit".
_OFF_BY_0 = {"cache_bytes", "cache_entries", "input_requests", "redirects", "resumptions", "rounds"}
_UNLIMITED_BY_0 = {"asks_per_minute", "completions_per_second"}


def trim_traceback(error: BaseException) -> None:
    """Remove Weft's frames from the traceback of a WeftError, because the error message says enough.

    The frames of the program's functions stay. Exceptions of other types are not changed.
    """
    if not isinstance(error, WeftError):
        return
    shown: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_HIDDEN):
            shown.append(trace)
        trace = trace.tb_next
    error.__traceback__ = None
    for trace in reversed(shown):
        error.__traceback__ = TracebackType(error.__traceback__, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def kind_of(value: object) -> str:
    """Return a text for error messages that names the type of a value, but not the value, which may be secret."""
    return f"something of the type {type(value).__name__!r}"


def check_function(function: Any, form: str) -> None:
    """Raise UsageError if `function` cannot be called with the arguments in `form`. None is accepted.

    `form` is the name of the option and, in parentheses, the arguments, such as "elicit(question)".

    >>> check_function(lambda message, fields: {}, "elicit(question)")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: elicit= was given a function that cannot be called as elicit(question): missing a required \
argument: 'fields'.
    """
    option, _, parameters = form.rstrip(")").partition("(")
    if function is None:
        return
    if not callable(function):
        raise UsageError(f"{option}= was given {kind_of(function)}; give a function, to be called as {form}.")
    try:  # not the signature of the wrapped function, because a decorator may change it
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*parameters.split(", ") if parameters else ())
    except TypeError as error:
        raise UsageError(f"{option}= was given a function that cannot be called as {form}: {error}.") from None


def read_extensions(given: Any) -> dict[str, dict[str, Any]]:
    """Check the client option `extensions=`, and return the settings of each extension by its identifier.

    Raises UsageError if `given`, the value of the option, is invalid.

    >>> read_extensions({"com.example/search": {"depth": 3}})
    {'com.example/search': {'depth': 3}}
    """
    id: Any = "com.example/name"
    declared: dict[str, dict[str, Any]] = {}
    try:
        for id, settings in dict[Any, Any](given or {}).items():
            check_extension_id(id)
            declared[id] = dict(settings)
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"extensions= needs settings by identifier, extensions={{{id!r}: {{}}}}: {error}") from None
    return declared


def check_limits(limits: ClientLimits) -> None:
    """Raise UsageError if a limit has an invalid type or value.

    >>> check_limits(ClientLimits(asks_at_once=0))
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: ClientLimits(asks_at_once=0) is not possible: it is a whole number, 1 or more.
    """
    for name, usual in msgspec.structs.asdict(DEFAULT_CLIENT_LIMITS).items():
        value: Any = getattr(limits, name)
        if type(usual) is float:
            is_possible = type(value) in (int, float) and 0 < value < math.inf
            kind = "a number of seconds, more than 0"
        else:
            least = 0 if name in _OFF_BY_0 | _UNLIMITED_BY_0 else 1
            is_possible = type(value) is int and value >= least
            kind = f"a whole number, {least} or more"
        if not is_possible:
            raise UsageError(f"ClientLimits({name}={value!r}) is not possible: it is {kind}.")


def check_tls(tls: Any) -> None:
    """Raise UsageError unless `tls` is an SSL context or None.

    False is refused, too, because with False the HTTP library would not check certificates.

    >>> check_tls("ca.pem")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: tls= was given something of the type 'str'; give an ssl.SSLContext, for a private CA \
ssl.create_default_context(cafile=...).
    """
    if not (tls is None or isinstance(tls, ssl.SSLContext)):
        raise UsageError(
            f"tls= was given {kind_of(tls)}; give an ssl.SSLContext, for a private CA "
            "ssl.create_default_context(cafile=...)."
        )


def check_timeout(seconds: Any) -> None:
    """Raise UsageError unless `seconds` is None, 0 or a positive number.

    >>> check_timeout("5")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: timeout='5' is not possible; give seconds as a number, 0 or more, such as 5.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and seconds >= 0):  # also false for nan
        raise UsageError(f"timeout={seconds!r} is not possible; give seconds as a number, 0 or more, such as 5.")


def read_level(level: Any) -> LogLevel:
    """Return `level` in lower case. Raises UsageError if `level` is not a log level.

    >>> read_level("INFO")
    'info'
    """
    known, given = get_args(LogLevel), str(level)
    if given.lower() not in known:
        raise UsageError(f"The log level cannot be {given[:40]!r}; use one of {', '.join(map(repr, known))}.")
    return cast("LogLevel", given.lower())


def other_loop() -> UsageError:
    """Return the error for a client that is used in another event loop than the one that connected it."""
    return UsageError(
        "The client was connected in another event loop; use it within one asyncio.run(...), or use weft.sync.Client."
    )


def not_connected(opening: str, *, was_closed: bool) -> UsageError:
    """Return the error for a client that is used while it is not connected.

    `opening` is the statement that opens the client: "with" or "async with". `was_closed` says whether the client was
    closed before.

    >>> print(not_connected("async with", was_closed=False))
    The client is not connected. Use it within `async with Client(...) as client:`, or `await client.connect()` first.
    """
    call = "client.connect()" if opening == "with" else "await client.connect()"
    remedy = f"Use it within `{opening} Client(...) as client:`"
    if was_closed:
        said = f"It was closed, which happens at the end of `{opening}`."
        return UsageError(f"The client is not connected any more. {said} {remedy}.")
    return UsageError(f"The client is not connected. {remedy}, or `{call}` first.")


def explain_arguments(call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorate `call_tool` so that an unknown keyword argument raises UsageError instead of TypeError.

    The error message says that the arguments of a tool go in a dictionary.
    """

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        try:
            return call(*args, **kwargs)
        except TypeError:  # the arguments do not fit the signature; the coroutine has not started
            known = inspect.signature(call).parameters
            if not (given := [name for name in kwargs if name not in known]):
                raise
            example = ", ".join(f"{name!r}: ..." for name in given)
            name = args[1] if len(args) > 1 else kwargs.get("name")
            raise UsageError(
                f"call_tool has no option {given[0]!r}. The arguments of a tool go in a dictionary: "
                f"call_tool({str(name)[:100]!r}, {{{example}}})."
            ) from None

    return checked


def as_texts(arguments: Mapping[str, Any] | None, whose: str) -> dict[str, str]:
    """Return all arguments as strings. Numbers and booleans become JSON text. Raises UsageError for other values.

    `whose` names the owner of the arguments in the error message, such as "the prompt 'haiku'".

    >>> as_texts({"lines": 4, "rhymed": True, "mood": "glad"}, "the prompt 'haiku'")
    {'lines': '4', 'rhymed': 'true', 'mood': 'glad'}
    """
    texts: dict[str, str] = {}
    for name, value in (arguments or {}).items():
        is_number = isinstance(value, int | float) and math.isfinite(value)
        texts[name] = check_text(name, msgspec.json.encode(value).decode() if is_number else value, whose)
    return texts


def check_text(name: str, value: Any, whose: str) -> str:
    """Return `value` if it is a string. Otherwise raise UsageError.

    The error message names the argument (`name`) and its owner (`whose`).

    >>> check_text("day", 1, "the prompt 'plan'")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: The argument 'day' of the prompt 'plan' is of the type 'int'; it needs to be text.
    """
    if not isinstance(value, str):
        raise UsageError(
            f"The argument {str(name)[:100]!r} of {whose} is of the type {type(value).__name__!r}; it needs to be text."
        )
    return value


def write_json(method: str, params: Any, write: Callable[..., bytes], *args: Any) -> bytes:
    """Call `write(*args)`, which encodes a request as JSON, and return the bytes.

    Raises UsageError if a value in `params` cannot be written as JSON. The error message names `method` and the place
    of the value.

    >>> params = {"arguments": {"days": [1, object()]}}
    >>> write_json("tools/call", params, msgspec.json.encode, params)
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: tools/call cannot be sent: arguments.days[1], of the type 'object', cannot be written \
as JSON; give text, numbers, True, False, None, lists and dicts.
    """
    try:
        written = write(*args)
    except (TypeError, ValueError, RecursionError):
        place, value = _culprit("", params, _DEEPEST)
        raise UsageError(
            f"{method} cannot be sent: {place or 'its params'}, of the type {type(value).__name__!r}, cannot be "
            "written as JSON; give text, numbers, True, False, None, lists and dicts."
        ) from None
    if b"null" in written:  # msgspec writes NaN and infinity as null
        _check_numbers(method, params)
    return written


def _check_numbers(method: str, params: Any) -> None:
    waiting: list[tuple[str, Any]] = [("", params)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(
                f"{method} cannot be sent: {place} is {value}, a number that JSON does not have; give another, or None."
            )
        waiting += _parts(place, value)


def _culprit(place: str, value: Any, depth: int) -> tuple[str, Any]:
    """Find the innermost part of `value` that cannot be written as JSON. Return the part's place and the part.

    `place` is the place of `value`, such as `days[1]`. At most `depth` levels are searched.
    """
    for where, part in _parts(place, value) if depth else ():
        if not _is_json(part):
            return _culprit(where, part, depth - 1)
    return place, value


def _parts(place: str, value: Any) -> list[tuple[str, Any]]:
    """Return the members of a dict or list, each with its place, such as `days[1]`. Return [] for other values.

    `place` is the place of `value` itself.
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return [(f"{place}.{name}" if place else str(name), part) for name, part in items.items()]
    if isinstance(value, list | tuple):
        return [(f"{place}[{index}]", part) for index, part in enumerate(cast("list[Any]", value))]
    return []


def _is_json(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
