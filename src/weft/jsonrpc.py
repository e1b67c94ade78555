"""Decode and encode JSON-RPC messages, check the size limits of incoming JSON, and split bytes into lines.

`decode` is the only parser of incoming messages, for all transports. It decodes the frame and leaves `params` as raw
bytes, which are decoded later with the type of the method. `decode` also checks these raw bytes: they contain no
lone surrogate, no number that is too long to print, and no nesting that is too deep. (msgspec checks the strings;
nesting and digits are checked here.)

`to_unicode` makes a text sendable: a Python string may have lone surrogates (names of files can), which JSON has not.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import InvalidRequest, ParseError, ProtocolError
from weft.limits import DEFAULT_LIMITS, Limits
from weft.types.base import RequestId

SAFE_INTEGER = 2**53


class Frame(msgspec.Struct):
    """One decoded JSON-RPC message: a request, a notification or a response. Its params are still raw JSON."""

    jsonrpc: str = ""
    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET

    @property
    def is_request(self) -> bool:
        """Whether this is a request: a message with a method and an id."""
        return self.method is not UNSET and self.id is not UNSET

    @property
    def is_notification(self) -> bool:
        """Whether this is a notification: a message with a method and without an id, which is never answered."""
        return self.method is not UNSET and self.id is UNSET

    @property
    def is_response(self) -> bool:
        """Whether this is a response: a message without a method."""
        return self.method is UNSET

    @property
    def reply_id(self) -> RequestId | None:
        """The id for the response to this message, or None if the message has no id."""
        return self.id if isinstance(self.id, int | str) else None


class _Error(msgspec.Struct, omit_defaults=True):
    code: int
    message: str
    data: Any = None


class _Message(msgspec.Struct):
    """A message to encode: request, notification or response. Fields that are UNSET are left out."""

    jsonrpc: str
    id: RequestId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Any = UNSET
    result: Any = UNSET
    error: _Error | UnsetType = UNSET


_SURROGATE = re.compile("[\ud800-\udfff]")  # in a Python string, each one is half of a character

_decoder = msgspec.json.Decoder(Frame)
_encode = msgspec.json.Encoder().encode


def decode(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Frame:
    """Decode one message.

    Raises `ParseError` if the bytes are not JSON or exceed a limit, and `InvalidRequest` if the JSON is not a message.
    The `request_id` of the exception is the id for the error response, or None if no id could be read.

    >>> decode(b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}').method
    'tools/list'
    """
    try:
        if not data.isascii():
            data.decode()
        frame = _decoder.decode(data)
    except msgspec.ValidationError:
        raise _invalid(data, limits) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ParseError("Parse error: the message is not valid JSON in UTF-8.") from None
    if len(data) > limits.number_digits or data.count(b"{") + data.count(b"[") > limits.json_depth:
        check_bounds(data, limits)
    if frame.jsonrpc != "2.0":
        raise _fault("`jsonrpc` must be the string 2.0.", frame.reply_id)
    request_id = frame.id
    if request_id is not UNSET and (type(request_id) is not int or not -SAFE_INTEGER <= request_id <= SAFE_INTEGER):
        check_id(request_id, limits)
    if frame.method is UNSET and frame.result is UNSET and frame.error is UNSET:
        raise _fault("a message has a `method`, a `result` or an `error`.", frame.reply_id)
    return frame


def check_id(request_id: object, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise InvalidRequest unless `request_id` is an integer within ±2**53, or a string within the length limit."""
    fault = fault_of_id(request_id, limits.id_bytes)
    if fault is not None:
        raise _fault(fault, None)


def fault_of_id(value: object, most_bytes: int, name: str = "id") -> str | None:
    """Return a sentence that says what is wrong with an id or a progress token, or None if the value is valid.

    `name` is the name of the value in this sentence. The length of strings is limited to `most_bytes`, because each
    response repeats them.
    """
    if type(value) is int:
        return None if -SAFE_INTEGER <= value <= SAFE_INTEGER else f"an integer `{name}` must be within ±2**53."
    if type(value) is not str:
        return f"`{name}` must be a string or an integer."
    if len(value) > most_bytes or len(value.encode()) > most_bytes:
        return f"a string `{name}` may have at most {most_bytes} bytes."
    return None


def _fault(reason: str, request_id: RequestId | None) -> InvalidRequest:
    error = InvalidRequest(f"Invalid request: {reason}")
    error.request_id = request_id
    return error


def _invalid(data: bytes, limits: Limits) -> ProtocolError:
    """Return the error for JSON that is not a valid message. Decodes the JSON again, to say exactly what is wrong."""
    check_bounds(data, limits)
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return ParseError("Parse error: the message is not valid JSON in UTF-8.")
    if isinstance(value, list):
        return _fault("one message at a time; arrays are not accepted.", None)
    if not isinstance(value, dict):
        return _fault("a message is a JSON object.", None)
    given = cast("dict[str, Any]", value).get("id")
    request_id = given if isinstance(given, str) or (isinstance(given, int) and not isinstance(given, bool)) else None
    if "id" in value and request_id is None:
        return _fault("`id` must be a string or an integer.", None)
    return _fault("`jsonrpc` and `method` must be strings.", request_id)


# msgspec does not check these bounds. Each bound has a quick test, which also counts brackets, commas and digits inside
# of strings, so its count may be too high but never too low. Only if the count exceeds the bound, the message is
# checked again without its strings.

_NOT_MARKS = bytes(set(range(256)) - set(b"[]{}:,"))
_NOT_BRACKETS = _NOT_MARKS + b":,"
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_STEPS = [(1 if byte in b"[{" else -1) for byte in range(256)]
_CHUNK = 16 * 1024  # bytes that are counted at once; another thread may run between two chunks
_DEAR = 9  # extra cost of decoding an array, an object or an object member, compared with a number or string


def check_bounds(data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise ParseError if JSON has too many values, is nested too deeply, or has a number with too many digits."""
    opened = data.count(b"{") + data.count(b"[")
    many = len(data) * (_DEAR + 1) > limits.json_values and values_in(data) > limits.json_values
    deep = not many and opened > limits.json_depth and _depth(data) > limits.json_depth
    long = _has_number(data, limits.number_digits)
    if not (many or deep or long):
        return
    bare = _without_strings(data, limits)
    if many and values_in(bare) > limits.json_values:
        raise _too_many(limits)
    if opened > limits.json_depth and _depth(bare) > limits.json_depth:
        raise ParseError(f"Parse error: arrays and objects nest at most {limits.json_depth} deep.")
    if long and _has_number(bare, limits.number_digits):
        raise ParseError(f"Parse error: a number has at most {limits.number_digits} digits.")


def values_in(data: bytes) -> int:
    """Estimate the cost of decoding JSON: 1 for a number or string, 10 for an array, an object or an object member.

    The result is too high if strings contain brackets, colons or commas.
    """
    marks = data.translate(None, _NOT_MARKS)
    brackets = len(marks.translate(None, b":,"))
    return len(marks) - brackets // 2 + _DEAR * (brackets // 2 + marks.count(b":"))


def _without_strings(data: bytes, limits: Limits) -> bytes:
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Each string is one value, so a message with more strings than values is refused without splitting it. (Removing a
    # million strings with a regular expression would take a second.)
    if data.count(b'"') > 2 * limits.json_values:
        raise _too_many(limits)
    return b"".join(data.split(b'"')[::2])


def _too_many(limits: Limits) -> ParseError:
    return ParseError(
        f"Parse error: a message has at most {limits.json_values} values, where an array, an object and a value with a "
        "name count ten times. Send less at a time."
    )


def _depth(data: bytes) -> int:
    """Return how deeply the brackets in JSON are nested. Brackets in strings are counted too."""
    brackets = data.translate(None, _NOT_BRACKETS)
    depth = deepest = 0
    for start in range(0, len(brackets), _CHUNK):
        run = [_STEPS[byte] for byte in brackets[start : start + _CHUNK]]
        deepest = max(deepest, depth + max(accumulate(run)))
        depth += sum(run)
    return deepest


def _has_number(data: bytes, digits: int) -> bool:
    return b"0" * (digits + 1) in data.translate(_ZEROS)


def encode_result(request_id: RequestId, result: Any) -> bytes:
    """Return an encoded response. `result` is a struct, a JSON value, or already encoded JSON (`msgspec.Raw`)."""
    return _encode(_Message("2.0", request_id, UNSET, UNSET, result))


def encode_error(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Return an encoded error response. If `request_id` is None, the response has no `id`."""
    answered = UNSET if request_id is None else request_id
    try:
        return _encode(_Message("2.0", answered, error=_Error(code, message, data)))
    except UnicodeEncodeError:  # the message has the text of an exception, such as the name of a file
        return _encode(_Message("2.0", answered, error=_Error(code, to_unicode(message), data)))


def encode_notification(method: str, params: Any = UNSET) -> bytes:
    """Return an encoded notification."""
    return _encode(_Message("2.0", UNSET, method, params))


def encode_request(request_id: RequestId, method: str, params: Any = UNSET) -> bytes:
    """Return an encoded request."""
    return _encode(_Message("2.0", request_id, method, params))


def to_unicode(text: str) -> str:
    r"""Return a message in which U+FFFD replaces each lone surrogate. Keys and results are refused instead.

    >>> to_unicode("no file \udcff.png") == "no file \ufffd.png"
    True
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


Line: TypeAlias = bytes | None  # None stands for a line that was longer than the limit


class LineSplitter:
    r"""Splits chunks of bytes into lines. A line with more than `limit` bytes is discarded and returned as None.

    >>> splitter = LineSplitter(limit=4)
    >>> splitter.feed(b"one\ntwo"), splitter.feed(b"\nthree\n")
    ([b'one'], [b'two', None])
    """

    __slots__ = ("_limit", "_rest", "is_overlong")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()  # the beginning of the unfinished line
        self.is_overlong = False  # whether the unfinished line is longer than the limit; then its bytes are discarded

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that are complete after this chunk of bytes."""
        if not self._rest and not self.is_overlong and chunk.find(b"\n") == len(chunk) - 1 <= self._limit:
            return [chunk[:-1]]  # fast path for the common case: the chunk is exactly one line
        *ends, rest = chunk.split(b"\n")
        lines = [self._complete(end) for end in ends]
        self._keep(rest)
        return lines

    def finish(self) -> list[Line]:
        """Return a list with the unfinished line, or an empty list. Call this method when the input has ended."""
        return [self._complete(b"")] if self._rest or self.is_overlong else []

    def _complete(self, end: bytes) -> Line:
        if not self._rest and not self.is_overlong:
            return end if len(end) <= self._limit else None
        self._keep(end)
        line = None if self.is_overlong else bytes(self._rest)
        self._rest.clear()
        self.is_overlong = False
        return line

    def _keep(self, part: bytes) -> None:
        if self.is_overlong:
            return
        if len(self._rest) + len(part) > self._limit:
            self.is_overlong = True
            self._rest = bytearray()  # a new object, because `clear` may keep the memory
        else:
            self._rest += part
