"""Read HTTP headers, encode and decode their values, and compare headers that repeat a part of the body.

`read` turns a header list into `Headers`. `encode_value` and `decode_value` convert values, with base64 if needed.
`find_mirrors` finds the tool arguments that headers repeat. `check_mirrors` and `check_name` compare such headers with
the body.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeGuard

import msgspec

from weft.errors import HeaderMismatch, InvalidRequest, WeftError
from weft.protocol.names import printable

# Fields that may occur only once. The same holds for all names that begin with mcp-.
_UNIQUE = frozenset({b"authorization", b"content-length", b"content-type", b"host", b"origin"})
_LISTS = frozenset({b"accept", b"content-encoding", b"tracestate"})  # fields whose repeated values are joined
_SECRET = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
# Fields that are known to have no secret. A proxy, or a program, may send credentials in any other field.
_HARMLESS = frozenset({
    "accept", "accept-encoding", "allow", "cache-control", "connection", "content-encoding", "content-length",
    "content-type", "date", "host", "keep-alive", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version",
    "origin", "retry-after", "server", "traceparent", "tracestate", "transfer-encoding", "user-agent", "vary", "via",
    "www-authenticate", "x-accel-buffering",
})  # fmt: skip
_HARMLESS_PREFIXES = ("access-control-", "mcp-param-")
_MIRRORING = re.compile(rb"mcp-(?:protocol-version|method|name)\Z|mcp-param-")  # headers that repeat parts of the body
_OWS = b" \t"  # RFC 9110 optional whitespace


class HeaderFault(WeftError):
    """The error for headers that are not accepted. `status` is the HTTP status, `code` the JSON-RPC error code."""

    def __init__(self, message: str, *, status: int, code: int = InvalidRequest.code) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class Headers:
    """The headers of one request.

    `known` maps lower-case names to values. `raw` is the original list.
    """

    __slots__ = ("known", "raw")

    def __init__(self, known: Mapping[bytes, bytes], raw: Sequence[tuple[bytes, bytes]]) -> None:
        self.known = known
        self.raw = raw

    def get(self, name: bytes) -> str | None:
        """Return the value of a header without spaces and tabs around it, or None if the header is missing.

        >>> read([(b"mcp-method", b" tools/list ")]).get(b"mcp-method")
        'tools/list'
        """
        value = self.known.get(name)
        return None if value is None else value.strip(_OWS).decode("latin-1")

    def mapping(self) -> Mapping[str, str]:
        """Return all headers except credentials as a read-only mapping. Values of a repeated header are joined.

        Authorization and cookies are left out, so that a handler cannot write a secret into a log by accident.
        """
        fields: dict[str, str] = {}
        for name, value in self.without_credentials():
            key, text = name.decode("latin-1"), value.strip(_OWS).decode("latin-1")
            fields[key] = f"{fields[key]}, {text}" if key in fields else text
        return MappingProxyType(fields)

    def without_credentials(self) -> list[tuple[bytes, bytes]]:
        """Return all headers except Authorization and cookies, as the request has them."""
        return [(name, value) for name, value in self.raw if name not in _SECRET]

    def harmless(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that are known to have no secret, as the request has them: those that may be stored."""
        return [(name, value) for name, value in self.raw if is_harmless(name.decode("latin-1"))]


def is_harmless(name: str) -> bool:
    """Return whether a header is known to have no secret, so that it may be logged and stored.

    >>> is_harmless("User-Agent"), is_harmless("X-Api-Key")
    (True, False)
    """
    name = name.lower()
    return name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES)


def read(raw: Iterable[tuple[bytes, bytes]], *, max_fields: int = 128, max_bytes: int = 65536) -> Headers:
    """Return the `Headers` object for an ASGI header list, whose names are in lower case.

    Raises HeaderFault if the list is too large, or repeats a header that must be unique.

    >>> read([(b"host", b"localhost"), (b"mcp-param-region", b"eu")]).known[b"mcp-param-region"]
    b'eu'
    """
    fields = raw if isinstance(raw, (list, tuple)) else tuple(raw)
    if len(fields) > max_fields:
        raise HeaderFault(f"The request has more than {max_fields} header fields; send fewer.", status=431)
    known = dict(fields)
    if len(known) == len(fields):
        size = len(b"".join(known)) + len(b"".join(known.values()))  # faster than a sum of lengths
    else:
        size = sum(len(name) + len(value) for name, value in fields)
        known = _joined(fields)
    if size > max_bytes:
        raise HeaderFault(f"The request's headers exceed {max_bytes} bytes; send less in them.", status=431)
    return Headers(known, fields)


def _joined(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return one value for each header name, from a list in which some names are repeated.

    For headers that are lists by definition, such as Accept, the values are joined. For all other headers, the last
    value is used. Raises HeaderFault if a repeated header must be unique.
    """
    known: dict[bytes, bytes] = {}
    for name, value in fields:
        if name not in known:
            known[name] = value
        elif name in _UNIQUE or name.startswith(b"mcp-"):
            raise _repeated(name)
        else:
            known[name] = known[name] + b", " + value if name in _LISTS else value
    return known


def _repeated(name: bytes) -> HeaderFault:
    # Repeated headers are refused, because a proxy and the server could read different copies.
    shown = printable(name[:100].decode("ascii", "replace"), "?")
    code = HeaderMismatch.code if _MIRRORING.match(name) else InvalidRequest.code
    return HeaderFault(f"The header {shown!r} appears more than once; send it exactly once.", status=400, code=code)


# --- values

_PREFIX, _SUFFIX = "=?base64?", "?="
_SAFE_INTEGER = 2**53 - 1
# A JSON number of limited length, so that an exact comparison is never slow.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")


def encode_value(text: str) -> str:
    """Return text as a header value: unchanged if that is safe, otherwise in base64.

    >>> encode_value("us-west1"), encode_value(" padded ")
    ('us-west1', '=?base64?IHBhZGRlZCA=?=')
    """
    # A tab is allowed in a value, but some peers refuse it, so it is encoded.
    plain = text.isascii() and text.isprintable() and text[:1] != " " and text[-1:] != " "
    if plain and not (text.startswith(_PREFIX) and text.endswith(_SUFFIX)):
        return text
    return _PREFIX + binascii.b2a_base64(text.encode(), newline=False).decode("ascii") + _SUFFIX


def decode_value(value: str) -> str:
    """Return the text of a header value, which may be in base64. Raises ValueError if the value is malformed.

    A value in base64 begins with exactly `=?base64?`, in lower case. All other values are returned unchanged.

    >>> decode_value("=?base64?SGVsbG8=?="), decode_value("=?BASE64?SGVsbG8=?=")
    ('Hello', '=?BASE64?SGVsbG8=?=')
    """
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        raise ValueError("It has characters that a header value cannot have; use the base64 form for such text.")
    marked = value.startswith(_PREFIX) and value.endswith(_SUFFIX) and len(value) >= len(_PREFIX) + len(_SUFFIX)
    if not marked:
        return value
    try:
        return binascii.a2b_base64(value[len(_PREFIX) : -len(_SUFFIX)], strict_mode=True).decode()
    except ValueError:
        raise ValueError("Its base64 form is malformed; use padded standard base64 of UTF-8 text.") from None


def render(value: object) -> str:
    """Return a string, number or boolean as text. Pass the text to `encode_value` to get a header value.

    Raises ValueError if an integer is not within ±(2**53 - 1).

    >>> render(42), render(True), render("eu")
    ('42', 'true', 'eu')
    """
    # A value of a wrong type is written as JSON. Header and body then agree, and the validation of the tool's arguments
    # reports the wrong type.
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) > _SAFE_INTEGER:
        raise ValueError("An integer in a header must be within ±(2^53 - 1); send larger ones as text.")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def matches(header: str, value: object) -> bool:
    """Return whether a header value equals a tool argument. Numbers are compared as numbers, so `42.0` equals 42.

    The header value may be in base64.

    Raises ValueError if the header is malformed, or if the argument is an integer that is too large for a header.

    >>> matches("42.0", 42), matches("TRUE", True)
    (True, False)
    """
    text, expected = decode_value(header), render(value)
    if text == expected:
        return True
    if isinstance(value, (bool, str)) or not isinstance(value, (int, float)) or not _NUMBER.fullmatch(text):
        return False
    return Decimal(text) == Decimal(expected)


# --- x-mcp-header

_ANNOTATION = "x-mcp-header"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 `1*tchar`
_MIRRORED_TYPES = ("boolean", "integer", "string")
_DATA = frozenset({"const", "default", "enum", "example", "examples", _ANNOTATION})  # their values are not schemas
# Keywords whose value is an object with the author's own names as keys.
_NAMED = frozenset({
    "$defs", "definitions", "dependencies", "dependentRequired", "dependentSchemas", "patternProperties", "properties",
})  # fmt: skip


class Mirror(msgspec.Struct, frozen=True):
    """One tool argument that clients repeat in an HTTP header.

    `header` is the full name of the header (`Mcp-Param-Region`). `field` is the same name in ASGI
    (`b"mcp-param-region"`). `path` are the property names that lead from the arguments to the value.
    """

    header: str
    field: bytes
    path: tuple[str, ...]


def find_mirrors(schema: Mapping[str, Any]) -> tuple[Mirror, ...]:
    """Return the arguments that an inputSchema annotates with `x-mcp-header`.

    Raises ValueError if an annotation is wrong. The `type` of an annotated property must be string, integer or boolean.
    A list of types, an `anyOf` or a `$ref` is wrong too, because clients ignore tools with such an annotation.

    >>> find_mirrors({"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}})[0].field
    b'mcp-param-region'
    """
    found: dict[bytes, Mirror] = {}
    for node, place, path in _annotated(schema):
        where = f"The {_ANNOTATION} at {place!r}"
        if not path:
            raise ValueError(f"{where} must be on a property that is reached from the root only through 'properties'.")
        name = node[_ANNOTATION]
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ValueError(f"{where} must be a non-empty HTTP token, such as 'Region'; it is {str(name)[:100]!r}.")
        if node.get("type") not in _MIRRORED_TYPES:
            kinds = "not integer, string or boolean; give it exactly one of these as its 'type'"
            raise ValueError(f"{where} is on a property whose type is {kinds}, or remove the annotation.")
        mirror = Mirror(f"Mcp-Param-{name}", b"mcp-param-" + name.lower().encode("ascii"), path)
        if mirror.field in found:
            other = ".".join(found[mirror.field].path)
            raise ValueError(f"{where} repeats the header name {name!r} of {other!r} (case is ignored); rename one.")
        found[mirror.field] = mirror
    return tuple(found.values())


def _annotated(schema: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, tuple[str, ...] | None]]:
    """Yield every subschema with an `x-mcp-header` annotation, its place (for error messages), and its path.

    The path consists of the property names that lead from the root to the subschema. It is None if a keyword other
    than `properties` lies between the root and the subschema.
    """
    pending: list[tuple[object, str, tuple[str, ...] | None]] = [(schema, "#", ())]
    while pending:  # a loop instead of recursion, because a peer's schema may be deep
        node, place, path = pending.pop()
        children: list[tuple[object, str, tuple[str, ...] | None]] = []
        if _is_object(node):
            if _ANNOTATION in node:
                yield node, place, path
            for key, child in node.items():
                if key in _NAMED and _is_object(child):
                    within = path if key == "properties" else None
                    children += [
                        (inner, f"{place}/{key}/{name}", None if within is None else (*within, name))
                        for name, inner in child.items()
                    ]
                elif key not in _DATA:
                    children.append((child, f"{place}/{key}", None))
        elif _is_array(node):
            children += [(inner, f"{place}/{index}", None) for index, inner in enumerate(node)]
        pending += reversed(children)


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_array(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def _value_at(arguments: Mapping[str, Any], path: tuple[str, ...]) -> object:
    """Return the argument at a path of property names, or None if it is null or missing."""
    value: object = arguments
    for name in path:
        if not _is_object(value):
            return None
        value = value.get(name)
    return value


def check_mirrors(mirrors: Iterable[Mirror], headers: Headers, arguments: Mapping[str, Any]) -> None:
    """Raise HeaderMismatch if an argument in `mirrors` and its header differ, or if only one of them was sent."""
    for mirror in mirrors:
        value, header = _value_at(arguments, mirror.path), headers.get(mirror.field)
        argument = f"the argument {'.'.join(mirror.path)!r}"
        if value is not None:
            _check_repeated(mirror.header, header, value, argument)
        elif header is not None:
            raise HeaderMismatch(f"Header mismatch: {mirror.header} was sent, but the body does not have {argument}.")


def check_name(header: str | None, expected: str) -> None:
    """Raise HeaderMismatch if the `Mcp-Name` header is missing, or differs from the name or URI in the body.

    `header` is the value of the header; `expected` is the name or URI in the body.
    """
    _check_repeated("Mcp-Name", header, expected, "the name or URI in the body")


def _check_repeated(name: str, header: str | None, value: object, what: str) -> None:
    """Raise HeaderMismatch if the header is missing, or differs from `value` in the body.

    `name` and `what` describe the header and the value in the error message.
    """
    if header is None:
        raise HeaderMismatch(f"Header mismatch: {name} is missing; repeat {what} in it.")
    try:
        is_same = matches(header, value)
    except ValueError as fault:
        raise HeaderMismatch(f"Header mismatch: {name} is not usable. {fault}") from None
    if not is_same:
        raise HeaderMismatch(f"Header mismatch: {name} differs from {what}; send the same value in both.")


def mirror_values(mirrors: Iterable[Mirror], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the HTTP headers to send with a call: one for each argument in `mirrors` that is present and not null.

    An empty string becomes a header with an empty value.

    >>> mirror_values(find_mirrors({"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}), {"n": 7})
    {'Mcp-Param-N': '7'}
    """
    values = ((mirror.header, _value_at(arguments, mirror.path)) for mirror in mirrors)
    return {header: encode_value(render(value)) for header, value in values if value is not None}
