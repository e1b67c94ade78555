"""Implement the stateless era for a server: revision 2026-07-28.

There is no handshake and no session. Every request carries its version and the client's capabilities in
`params._meta`, and may carry the client's name and the log level that the client wants. The server remembers nothing
from earlier requests, not even on the same stdio connection. Over HTTP, headers repeat parts of the body, so that a
proxy can route a request without reading the body. They must agree with the body, so that the server runs the request
that the proxy accepted.

The checks have a fixed order, and the first that fails decides the error:

    1. The version header is missing: -32020.
    2. `_meta` is missing: -32602.
    3. The version header differs from the version in the body: -32020.
    4. The server does not support the version: -32022.
    5. Then the method's header, the method itself and the name's header are checked. Requests about tasks may lack the
       name's header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import msgspec
from msgspec import UNSET

from weft.eras.base import Envelope, Offer, Peer, WireError, check_token, fault_of_params, log_level_reached
from weft.eras.tasks import STATELESS_TASKS, TaskMessages
from weft.errors import HeaderMismatch, InternalError, InvalidParams, MethodNotFound, ProtocolError, UnsupportedVersion
from weft.jsonrpc import Frame
from weft.protocol.headers import Headers, check_name
from weft.protocol.revisions import STATELESS_2026_07_28, Method, Revision
from weft.types.base import LogLevel, NotificationParams, Result
from weft.types.features import ListToolsResult
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY, RequestParams

REVISIONS: Mapping[str, Revision] = {STATELESS_2026_07_28.version: STATELESS_2026_07_28}
NEWEST = STATELESS_2026_07_28
OLDEST = min(REVISIONS)

_VERSIONS = frozenset(version.encode() for version in REVISIONS)  # in bytes, as in a header

_HANDSHAKE = "initialize"  # first request of a client of the session era
_VERSION_HEADER = b"mcp-protocol-version"
_METHOD_HEADER = b"mcp-method"
_NAME_HEADER = b"mcp-name"
_SESSION_HEADER = b"mcp-session-id"  # a header of the session era
_NOTIFICATIONS = frozenset({"notifications/cancelled"})  # notifications that a client may send
_MARK = b"io.modelcontextprotocol"  # occurs in every request of this era, and rarely in other requests

# Error codes with a fixed HTTP status. For other codes, the status is 400 if the request could not be opened, and 200
# if the error occurred later.
_STATUS = {-32700: 400, -32600: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}
_CODES = frozenset({-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022})

_envelope_only = Method("", RequestParams)


class StatelessServer:
    """The stateless era (protocol version 2026-07-28) for a server."""

    name = "stateless"
    is_stateless = True
    remembers = False
    asks_by_rounds = True
    mirrors_params = True
    methods = NEWEST.methods
    versions: Sequence[str] = tuple(REVISIONS)
    tasks: TaskMessages = STATELESS_TASKS

    def revision_of(self, version: str) -> Revision | None:
        """Return the revision with this version; None if this era does not have the version."""
        return REVISIONS.get(version)

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Return True if `_meta` or the version header shows that the message belongs to this era.

        A `notifications/cancelled` over HTTP also belongs to this era if it has no version header and no session id.
        """
        stated: str | None = None
        if headers is not None:
            if headers.known.get(_VERSION_HEADER) in _VERSIONS:  # the usual case
                return True
            stated = headers.get(_VERSION_HEADER)
            if stated is not None and stated >= OLDEST and stated.isascii() and stated[0].isdigit():
                return True
            if frame.method in _NOTIFICATIONS and frame.id is UNSET and stated is None:
                return _SESSION_HEADER not in headers.known
        if not _may_be_marked(frame):  # true for most messages of the session era
            return False
        marks = _read_marks(frame)
        if marks is None:
            return False
        # Without a version header, one of the two keys is enough. If the other key is missing, `open` raises an error.
        return marks.version is not None or (stated is None and marks.capabilities is not None)

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Return the envelope of a request; None if `open` refuses the request, which may be of the session era."""
        if not _may_be_marked(frame):
            return None
        try:
            return self.open(frame, None, offer)
        except ProtocolError:
            return None

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None = None) -> Envelope:
        """Check a request and return its envelope. The first check that fails raises a ProtocolError.

        The docstring of this module lists the checks in their order.
        """
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
            given = headers.known.get(_NAME_HEADER)
            if given != expected.encode() and not (given is None and method.may_lack_name):
                check_name(headers.get(_NAME_HEADER), expected)
        if meta.progress_token is not None:
            check_token(meta.progress_token, offer)
        return Envelope(
            revision, method, params, meta.client_capabilities, meta.client_info, meta.log_level, meta.progress_token
        )

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Add the result type and the server's metadata to `result`, and return it.

        `execution` of tools, which this revision does not have, is left out of a copy.
        """
        if result.__class__ is ListToolsResult:
            result = _without_execution(cast("ListToolsResult", result))
        if result.result_type is None:
            result.result_type = "complete"
        result.meta = offer.result_meta if result.meta is None else {**offer.result_meta, **result.meta}
        return result

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Return the params unchanged: they already have the form of the newest revision."""
        return params

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the params of a request to the client without `elicitationId`, which this revision does not have."""
        if params is None or "elicitationId" not in params:
            return params
        return {name: value for name, value in params.items() if name != "elicitationId"}

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Return True if `level` is at least the level that the request asked for; False if it asked for no level."""
        return minimum is not None and log_level_reached(level, minimum)

    def tells_model(self, error: ProtocolError) -> bool:
        """Return False: in this era, a missing capability is a JSON-RPC error with its own code."""
        return False

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Return the JSON-RPC error to send, with its HTTP status.

        An error code that is reserved by JSON-RPC, but not defined in this era, is replaced by -32603.
        """
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

        The request may be of another revision, in which `_meta` has another form. The error must then say that this
        version is not supported. So this method reads the version separately.
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


def _without_execution(result: ListToolsResult) -> ListToolsResult:
    tools = [msgspec.structs.replace(tool, execution=None) if tool.execution else tool for tool in result.tools]
    return msgspec.structs.replace(result, tools=tools)


def _check_method_header(headers: Headers, name: str) -> None:
    stated = headers.get(_METHOD_HEADER)
    if stated is None:
        raise HeaderMismatch("The Mcp-Method header is missing.")
    if stated != name:
        raise HeaderMismatch("The Mcp-Method header differs from the method in the body.")


class _Marks(msgspec.Struct):
    """The two keys that every request of this era has in `_meta`. The types of their values are not checked."""

    version: Any = msgspec.field(name=PROTOCOL_VERSION_KEY, default=None)
    capabilities: Any = msgspec.field(name=CLIENT_CAPABILITIES_KEY, default=None)


class _MarkedParams(msgspec.Struct):
    meta: _Marks | None = msgspec.field(name="_meta", default=None)


_decode_marked = msgspec.json.Decoder(_MarkedParams).decode


def _may_be_marked(frame: Frame) -> bool:
    return frame.params is not UNSET and bytes(frame.params).find(_MARK) >= 0  # `in` raises and catches inside


def _read_marks(frame: Frame) -> _Marks | None:
    """Return the two `_meta` keys that every request of this era has; None if `_meta` is missing or not an object."""
    if frame.params is UNSET:
        return None
    try:
        return _decode_marked(frame.params).meta
    except msgspec.ValidationError:
        return None


def _is_of_session_era(frame: Frame, stated: str | None) -> bool:
    """Return True if a request whose `_meta` names no version is of the session era.

    `stated` is the value of the version header, or None. If it is older than the stateless era, the request is of the
    session era. If there is no header, only a handshake is of the session era.
    """
    return frame.method == _HANDSHAKE if stated is None else stated < OLDEST


def _required_version(marks: _Marks | None) -> str:
    """Return the version in `_meta`. Raises InvalidParams if a key is missing, or if the version is not a string."""
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
