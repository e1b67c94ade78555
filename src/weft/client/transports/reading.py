"""From bytes that came to messages; and what can still be told of bytes that are none.

Nothing here awaits or decides: who waits for an answer that cannot be read is told so by the transports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import InvalidRequest, ParseError, ProtocolError
from weft.jsonrpc import Frame, check_bounds, decode
from weft.limits import ClientLimits, Limits
from weft.types.base import RequestId

__all__ = ["as_sent", "bounds_of", "error_in", "is_nameless", "pieces", "split_messages", "whom_it_answers"]

_MOST_MESSAGES = 1000  # in one array: a client sends none, so few come back in one
_PIECE = 16 * 1024  # of a stream: what is read without looking at the time


def bounds_of(limits: ClientLimits) -> Limits:
    """What one message to a client may be."""
    return Limits(json_values=limits.json_values)


def split_messages(data: bytes, bounds: Limits) -> Sequence[bytes]:
    """The messages in a body, an event or a line, not read yet: one, or in one revision an array of them (L03-01).

    InvalidRequest when an array has too many: all of them are taken in one go.
    """
    if data[:1] != b"{" and data.lstrip()[:1] == b"[":
        try:
            check_bounds(data, bounds)
            if data.count(b",") >= _MOST_MESSAGES and _count_objects(data) > _MOST_MESSAGES:
                raise InvalidRequest(f"Invalid request: an array has at most {_MOST_MESSAGES} messages.")
            return [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
        except (ParseError, msgspec.DecodeError, RecursionError):
            pass  # whoever reads it finds out
    return (data,)


class _Object(msgspec.Struct, gc=False):
    """Any object."""


def _count_objects(data: bytes) -> int:
    """Count what an array has, in little memory; a DecodeError at the first of it that is no object."""
    return len(msgspec.json.decode(data, type=list[_Object]))


def pieces(chunk: bytes) -> Sequence[bytes]:
    """Cut what came at once: between two of these it is looked whether others should have their turn."""
    if len(chunk) <= _PIECE:
        return (chunk,)
    return [chunk[start : start + _PIECE] for start in range(0, len(chunk), _PIECE)]


def as_sent(named: Any) -> Any:
    """The id of an answer as it was sent: a number, which some servers write back as text (JRPC-06).

    >>> as_sent("2"), as_sent(2), as_sent("two"), as_sent("02")
    (2, 2, 'two', '02')
    """
    return int(named) if isinstance(named, str) and _NUMBER.fullmatch(named) else named


_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


def is_nameless(frame: Frame) -> bool:
    """Whether an answer is an error that names nobody (JRPC-11). A result always does: one without an id is none."""
    return frame.reply_id is None and frame.error is not UNSET


class _Coded(msgspec.Struct):
    """What makes an error one of JSON-RPC: programs also write lines, and bodies, with an `error` of another kind."""

    code: int


class _Nameless(msgspec.Struct):
    """An error without an id, or with a null one: the peer could not read whom it answers."""

    error: msgspec.Raw
    id: None = None


def error_in(data: bytes) -> Frame | None:
    """The error response in some bytes, whether or not it names the request; None when there is none."""
    try:
        frame = decode(data)
        return frame if frame.is_response and isinstance(frame.error, msgspec.Raw) else None
    except ProtocolError:
        pass
    try:
        error = msgspec.json.decode(data, type=_Nameless).error
        msgspec.json.decode(error, type=_Coded)
    except (msgspec.DecodeError, RecursionError):
        return None
    return Frame("2.0", error=error)


class _Parts(msgspec.Struct):
    """The members by which an answer is known, whatever they hold."""

    jsonrpc: msgspec.Raw | UnsetType = UNSET
    id: msgspec.Raw | UnsetType = UNSET
    method: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


# The same, by how an answer begins and ends, where a parser does not get through what lies between.
_WINDOW = 512
_NULL = msgspec.Raw(b"null")
_VERSION = rb'"jsonrpc"\s*:\s*"[^"\\]{0,16}"'
_ID = rb'"id"\s*:\s*(-?[0-9]{1,16}|"[^"\\]{0,256}")'
_BEGINNING = re.compile(rb'\s*\{\s*(?:(?:%b|%b)\s*,\s*){0,2}"(?:result|error)"\s*:' % (_VERSION, _ID))
_END = re.compile(rb",\s*(?:%b\s*,\s*)?%b\s*(?:,\s*%b\s*)?\}\s*\Z" % (_VERSION, _ID, _VERSION))


def whom_it_answers(data: bytes) -> tuple[bool, RequestId | None]:
    """Whether something that cannot be read was meant as an answer to somebody, and the id in it if that can be read.

    >>> whom_it_answers(b'{"result": {"n": NaN}, "jsonrpc": "2.0", "id": 7}')
    (True, 7)
    >>> whom_it_answers(b'{"level": "error", "error": "no such file"}')
    (False, None)
    """
    try:
        parts = msgspec.json.decode(data, type=_Parts)
    except (msgspec.DecodeError, RecursionError):
        return _by_its_ends(data)
    if parts.method is not UNSET or parts.id is UNSET or parts.id == _NULL:
        return False, None
    named = _id_in(parts.id)
    has_outcome = parts.result is not UNSET or parts.error is not UNSET
    if parts.jsonrpc is UNSET:  # a line of a log may have an id, or an error; hardly ever both
        return has_outcome and named is not None, named
    return True, named


def _id_in(raw: msgspec.Raw) -> RequestId | None:
    """The id that stands there; None where it is none, or too long to be one of ours."""
    value: Any = msgspec.json.decode(raw) if len(raw) <= _WINDOW else None
    return as_sent(value) if type(value) in (int, str) else None


def _by_its_ends(data: bytes) -> tuple[bool, RequestId | None]:
    beginning = _BEGINNING.match(data[:_WINDOW])
    if beginning is None:
        return False, None
    end = _END.search(data[-_WINDOW:])
    found = beginning[1] or (None if end is None else end[1])
    try:
        return (False, None) if found is None else (True, as_sent(msgspec.json.decode(found)))
    except msgspec.DecodeError:
        return False, None
