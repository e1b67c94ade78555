"""Answer a server's questions about the stateless era: revision 2026-07-28.

There is no handshake and no session. Every request carries its version and the client's capabilities in
`params._meta`, and may carry the client's name and the log level that the client wants. Nothing is inferred from an
earlier request, not even from one on the same pipe. Over HTTP, headers repeat parts of the body, so that a proxy can
route a request without reading the body. They must agree with the body, so that the server runs the request that the
proxy accepted.

The checks have a fixed order, and the first that fails decides the error:

    1. The version header is missing: -32020.
    2. `_meta` is missing: -32602.
    3. The version header differs from the version in the body: -32020.
    4. The version is not served: -32022.
    5. Then the method's header, the method itself and the name's header are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET

from weft.eras.base import Envelope, Offer, Peer, WireError, check_token, fault_of_params, log_level_reached
from weft.errors import HeaderMismatch, InternalError, InvalidParams, MethodNotFound, ProtocolError, UnsupportedVersion
from weft.jsonrpc import Frame
from weft.protocol.headers import Headers, check_name
from weft.protocol.revisions import STATELESS_2026_07_28, Method, Revision
from weft.types.base import LogLevel, NotificationParams, Result
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY, RequestParams

REVISIONS: Mapping[str, Revision] = {STATELESS_2026_07_28.version: STATELESS_2026_07_28}
NEWEST = STATELESS_2026_07_28
OLDEST = min(REVISIONS)

_VERSIONS = frozenset(version.encode() for version in REVISIONS)  # as headers spell them

_HANDSHAKE = "initialize"  # first request of a client of the session era
_VERSION_HEADER = b"mcp-protocol-version"
_METHOD_HEADER = b"mcp-method"
_NAME_HEADER = b"mcp-name"
_SESSION_HEADER = b"mcp-session-id"  # a header of the session era
_NOTIFICATIONS = frozenset({"notifications/cancelled"})  # notifications that a client may send
_MARK = b"io.modelcontextprotocol"  # part of every request of this era, and rarely of another's

# The codes of this revision that have a fixed HTTP status. The status of others is 400 while the request is being read,
# and 200 once a handler has it.
_STATUS = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}
_CODES = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})

_envelope_only = Method("", RequestParams)


class StatelessServer:
    """The stateless era for a server."""

    name = "stateless"
    is_stateless = True
    remembers = False
    asks_by_rounds = True
    mirrors_params = True
    methods = NEWEST.methods
    versions: Sequence[str] = tuple(REVISIONS)

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Return True if `_meta` or the version header names this era."""
        stated: str | None = None
        if headers is not None:
            if headers.known.get(_VERSION_HEADER) in _VERSIONS:  # the usual case
                return True
            stated = headers.get(_VERSION_HEADER)
            if stated is not None and stated >= OLDEST and stated.isascii() and stated[0].isdigit():
                return True
            if frame.method in _NOTIFICATIONS and frame.id is UNSET and stated is None:
                return _SESSION_HEADER not in headers.known
        if not _may_be_marked(frame):  # most of the other era's end here
            return False
        marks = _read_marks(frame)
        if marks is None:
            return False
        # Without a version header, one of the two keys is enough: the error then names the other, which is missing.
        return marks.version is not None or (stated is None and marks.capabilities is not None)

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Open a request; return None if that fails, because the request may be of the session era."""
        if not _may_be_marked(frame):
            return None
        try:
            return self.open(frame, None, offer)
        except ProtocolError:
            return None

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None = None) -> Envelope:
        """Read one request and check it, in the order of the module's docstring. The first check that fails raises."""
        name = frame.method
        assert isinstance(name, str)
        method = offer.methods[self.name].get(name)
        try:
            params: RequestParams = (method or _envelope_only).decode(frame.params)
        except (msgspec.DecodeError, TypeError) as error:
            self._explain(frame, headers, offer, error)
        meta = params.meta
        if meta is None or meta.protocol_version is None or meta.client_capabilities is None:
            self._explain(frame, headers, offer, None)
        revision = self._check_version(meta.protocol_version, headers, offer)
        if headers is not None and headers.known.get(_METHOD_HEADER) != name.encode():
            _check_method_header(headers, name)
        if method is None:
            raise MethodNotFound("Method not found")
        if headers is not None and method.mirrored is not None:
            expected = str(getattr(params, method.mirrored))  # an extension may have a number there
            if headers.known.get(_NAME_HEADER) != expected.encode():
                check_name(headers.get(_NAME_HEADER), expected)
        if meta.progress_token is not None:
            check_token(meta.progress_token, offer)
        return Envelope(
            revision, method, params, meta.client_capabilities, meta.client_info, meta.log_level, meta.progress_token
        )

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Add the result type and the server's metadata to a result."""
        if result.result_type is None:
            result.result_type = "complete"
        result.meta = offer.result_meta if result.meta is None else {**offer.result_meta, **result.meta}
        return result

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Return the params unchanged: they have the form of the newest revision already."""
        return params

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the params without `elicitationId`, which this revision does not have."""
        if params is None or "elicitationId" not in params:
            return params
        return {name: value for name, value in params.items() if name != "elicitationId"}

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Return True if the request itself asked for log messages of this level."""
        return minimum is not None and log_level_reached(level, minimum)

    def tells_model(self, error: ProtocolError) -> bool:
        """Return False: in this era, a missing capability is a JSON-RPC error with its own code."""
        return False

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Return the error with its HTTP status. A reserved code that has no meaning in this era becomes -32603."""
        if -32768 <= error.code <= -32000 and error.code not in _CODES:
            error = InternalError("Internal error")
        status = _STATUS.get(error.code, 200 if opened else 400)
        return WireError(error.code, error.message, error.data, status)

    def _check_version(self, version: str, headers: Headers | None, offer: Offer) -> Revision:
        if headers is not None and headers.known.get(_VERSION_HEADER) != version.encode():
            stated = headers.get(_VERSION_HEADER)  # without surrounding blanks
            if stated is None:
                raise HeaderMismatch("The MCP-Protocol-Version header is missing.")
            if stated != version:
                raise HeaderMismatch("The MCP-Protocol-Version header differs from the version in `_meta`.")
        revision = REVISIONS.get(version)
        if revision is None:
            raise UnsupportedVersion(requested=version[:64], supported=list(offer.versions))
        return revision

    def _explain(self, frame: Frame, headers: Headers | None, offer: Offer, error: Exception | None) -> NoReturn:
        """Raise the error for a request that could not be read: the error of the first check that fails.

        Perhaps `_meta` could not be read because the request is of another revision, which has another form of `_meta`.
        Then the error must say that the version is not served, so the version is read separately here.
        """
        stated = headers.get(_VERSION_HEADER) if headers is not None else None
        marks = _read_marks(frame)
        if (marks is None or marks.version is None) and _is_of_session_era(frame, stated):
            requested = stated or _requested_version(frame)
            raise UnsupportedVersion(requested=requested[:64], supported=list(offer.versions))
        if headers is not None and stated is None:
            raise HeaderMismatch("The MCP-Protocol-Version header is missing.")
        self._check_version(_required_version(marks), headers, offer)
        assert isinstance(frame.method, str)
        if headers is not None:
            _check_method_header(headers, frame.method)
        if frame.method not in offer.methods[self.name]:
            raise MethodNotFound("Method not found")
        raise InvalidParams(f"Invalid params: {fault_of_params(error)}")


def _check_method_header(headers: Headers, name: str) -> None:
    stated = headers.get(_METHOD_HEADER)
    if stated is None:
        raise HeaderMismatch("The Mcp-Method header is missing.")
    if stated != name:
        raise HeaderMismatch("The Mcp-Method header differs from the method in the body.")


class _Marks(msgspec.Struct):
    """The two keys that every request of this era has in `_meta`. Their values may be of any type."""

    version: Any = msgspec.field(name=PROTOCOL_VERSION_KEY, default=None)
    capabilities: Any = msgspec.field(name=CLIENT_CAPABILITIES_KEY, default=None)


class _MarkedParams(msgspec.Struct):
    meta: _Marks | None = msgspec.field(name="_meta", default=None)


_decode_marked = msgspec.json.Decoder(_MarkedParams).decode


def _may_be_marked(frame: Frame) -> bool:
    return frame.params is not UNSET and bytes(frame.params).find(_MARK) >= 0  # `in` raises and catches inside


def _read_marks(frame: Frame) -> _Marks | None:
    """Return the keys by which a request of this era is recognised; None if `_meta` is missing or no object."""
    if frame.params is UNSET:
        return None
    try:
        return _decode_marked(frame.params).meta
    except msgspec.ValidationError:
        return None


def _is_of_session_era(frame: Frame, stated: str | None) -> bool:
    """Return True if a request whose `_meta` names no version is of the session era.

    `stated` is the version header. If it names a revision older than the stateless era, the request is of the session
    era. Without the header, only a handshake is known to be of the session era.
    """
    return frame.method == _HANDSHAKE if stated is None else stated < OLDEST


def _required_version(marks: _Marks | None) -> str:
    """Return the version in `_meta`. Raises InvalidParams if `_meta` lacks a key, or the version is no string."""
    if marks is None:
        raise InvalidParams("Invalid params: `params._meta` must be an object that names the protocol version.")
    for key, value in ((PROTOCOL_VERSION_KEY, marks.version), (CLIENT_CAPABILITIES_KEY, marks.capabilities)):
        if value is None:
            raise InvalidParams(f"Invalid params: `_meta` must have {key!r}.")
    if not isinstance(marks.version, str):
        raise InvalidParams(f"Invalid params: {PROTOCOL_VERSION_KEY!r} in `_meta` must be a string.")
    return marks.version


class _HandshakeParams(msgspec.Struct, rename="camel"):
    protocol_version: str = "unknown"


def _requested_version(frame: Frame) -> str:
    try:
        return msgspec.json.decode(frame.params or b"{}", type=_HandshakeParams).protocol_version
    except (msgspec.ValidationError, TypeError):
        return "unknown"


STATELESS = StatelessServer()
