"""What is said to a program that uses the client wrongly, and how its failures are shown.

Owns the checks of what a caller gives to a verb, where a sentence helps more than what would come of it; and which
frames of a traceback are shown: those of Weft say nothing to whoever reads that nobody is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import msgspec

from weft.errors import UsageError, WeftError

__all__ = ["check_texts", "not_json", "plainly"]

# Weft, and the futures by which one thread waits for another.
_HIDDEN = (str(Path(__file__).parent.parent), str(Path(futures.__file__).parent))
_DEEPEST = 50  # how far a place is looked for


def plainly(error: BaseException) -> None:
    """Take Weft's own frames out of an error of Weft that is about to be raised on: what it says is the whole story.

    The frames of the user's own functions that were called on the way stay, and so does every other exception.
    """
    if not isinstance(error, WeftError):
        return
    kept: TracebackType | None = None
    for trace in reversed(list(_traces(error.__traceback__))):
        if not trace.tb_frame.f_code.co_filename.startswith(_HIDDEN):
            kept = TracebackType(kept, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    error.__traceback__ = kept


def _traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def check_texts(arguments: Mapping[str, Any] | None, whose: str) -> None:
    """UsageError that names the argument, unless all are text.

    >>> check_texts({"day": 1}, "the prompt 'plan'")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: The argument 'day' of the prompt 'plan' is of the type 'int'; it needs to be text: '1'.
    >>> check_texts({"warm": True}, "the prompt 'plan'")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: The argument 'warm' of the prompt 'plan' is of the type 'bool'; it needs to be text: 'true'.
    """
    for name, value in (arguments or {}).items():
        if not isinstance(value, str):
            example = f": {str(value).lower()!r}" if isinstance(value, int | float) else ""
            raise UsageError(
                f"The argument {str(name)[:100]!r} of {whose} is of the type {type(value).__name__!r}; it needs to be "
                f"text{example}."
            )


def not_json(method: str, params: Any) -> UsageError:
    """What is said of params that cannot be sent: the place of the first value that is no JSON.

    >>> str(not_json("tools/call", {"arguments": {"days": [1, object()]}}))
    "tools/call cannot be sent: arguments.days[1], of the type 'object', is nothing that JSON can hold; give text, \
numbers, True, False, None, lists and dicts."
    """
    place, value = _culprit("", params, _DEEPEST)
    return UsageError(
        f"{method} cannot be sent: {place or 'its params'}, of the type {type(value).__name__!r}, is nothing that JSON "
        "can hold; give text, numbers, True, False, None, lists and dicts."
    )


def _culprit(place: str, value: Any, depth: int) -> tuple[str, Any]:
    """The innermost value that cannot be written as JSON, and where it is."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        parts = [(f"{place}.{name}" if place else str(name), part) for name, part in items.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{place}[{index}]", part) for index, part in enumerate(cast("list[Any]", value))]
    if depth:
        for where, part in parts:
            if not _is_json(part):
                return _culprit(where, part, depth - 1)
    return place, cast("Any", value)


def _is_json(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
