"""Answer a server's questions about the session era: revisions 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25.

A client introduces itself once. Its `initialize` names a version and its capabilities; the answer names the version
that both will speak. Later requests repeat neither, because the session remembers both. While it serves a call, the
server may send requests to the client (sampling, elicitation, roots) and wait for the answer.

The four revisions differ mostly in the fields of their messages (`session_fields`); the few other differences are
fields of `Revision`. Unlike in the stateless era, a JSON-RPC error has HTTP status 200; status 400 is for a body that
is no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from weft.eras.base import CORE_TYPES, Envelope, Offer, Peer, WireError, check_token, fault_of_params, log_level_reached
from weft.eras.session_fields import fit, fit_capabilities, fit_question
from weft.errors import (
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    ResourceNotFound,
    UndeclaredExtension,
)
from weft.jsonrpc import Frame
from weft.protocol.headers import Headers
from weft.protocol.revisions import SESSION_2025_03_26, SESSION_2025_11_25, SESSION_REVISIONS, Method, Revision
from weft.types.base import Implementation, LogLevel, NotificationParams, Result
from weft.types.lifecycle import ClientCapabilities, InitializeParams, RequestParams

HANDSHAKE = "initialize"
READY = "notifications/initialized"

NEWEST = SESSION_2025_11_25
ASSUMED = SESSION_2025_03_26  # revision of a request without a version header: the last one that has no such header

DEFAULT_LEVEL: LogLevel = "info"  # level of log messages until the client sets one

_VERSION_HEADER = b"mcp-protocol-version"
_ALWAYS = frozenset({HANDSHAKE, "ping"})  # methods that are served before the handshake, too
_NOT_A_REQUEST = frozenset({-32700, -32600})
_NO_RESOURCE = -32002
_NO_CAPABILITIES = ClientCapabilities()


class AlreadyInitialized(InvalidRequest):
    """The client has sent a second handshake in one session."""

    def __init__(self) -> None:
        super().__init__("Invalid request: this session has been initialized already.")


class HeaderPeer:
    """A client of a server without sessions: only the headers of its request are known."""

    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    handshake_done = True
    is_ready = True

    def __init__(self, headers: Headers) -> None:
        self.protocol_version = headers.get(_VERSION_HEADER) or ASSUMED.version
        self.client_capabilities = _NO_CAPABILITIES


class SessionServer:
    """The session era for a server."""

    name = "session"
    is_stateless = False
    remembers = True
    asks_by_rounds = False
    mirrors_params = False
    methods = NEWEST.methods
    versions: Sequence[str] = tuple(SESSION_REVISIONS)

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Return True: every message that is not of the stateless era is of this era."""
        return True

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Return None: nothing in a request proves that it is of this era."""
        return None

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Read one request and check it against the facts of its session."""
        name = frame.method
        assert isinstance(name, str)
        if headers is not None:
            self.check_version(headers)
        if peer is None or not peer.handshake_done or name == HANDSHAKE:
            return self._open_first(frame, offer, peer)
        if offer.require_initialized and not peer.is_ready and name not in _ALWAYS:
            raise InvalidRequest(f"Invalid request: send `{READY}` before anything else.")
        method = offer.methods[self.name].get(name)
        if method is None:
            raise MethodNotFound("Method not found")
        params = _decode(method, frame)
        token = None if params.meta is None else params.meta.progress_token
        if token is not None:
            check_token(token, offer)
        revision = SESSION_REVISIONS.get(peer.protocol_version, ASSUMED)
        return Envelope(revision, method, params, peer.client_capabilities, peer.client_info, peer.log_level, token)

    def check_version(self, headers: Headers) -> None:
        """Raise InvalidRequest if there is a version header, and it names no revision of this era."""
        stated = headers.get(_VERSION_HEADER)
        if stated is not None and stated not in SESSION_REVISIONS:
            known = ", ".join(SESSION_REVISIONS)
            raise InvalidRequest(f"Invalid request: the MCP-Protocol-Version header names none of {known}.")

    def takes_batches(self, peer: Peer) -> bool:
        """Return True if this client may send several messages in one array."""
        return peer.handshake_done and SESSION_REVISIONS.get(peer.protocol_version, ASSUMED).batches

    def may_close_early(self, peer: Peer) -> bool:
        """Return True if the server may close a stream before the answer, because this client will resume it."""
        return SESSION_REVISIONS.get(peer.protocol_version, ASSUMED).polling

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Return a result without the fields of later revisions. The result type of an extension is kept."""
        kind = result.result_type
        fitting = fit(result, revision)
        if kind is not None and kind not in CORE_TYPES:
            fitting = msgspec.structs.replace(fitting, result_type=kind)
        return fitting

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Return the params of a notification without the fields of later revisions."""
        return fit(params, revision)

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the params of a request to the client without the fields of later revisions."""
        return fit_question(method, params, revision)

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Return True if `level` is at least the level that the session asked for (default: info)."""
        return log_level_reached(level, minimum or DEFAULT_LEVEL)

    def tells_model(self, error: ProtocolError) -> bool:
        """Return True for a missing capability: this era has no code for it, and a result lets the model continue."""
        return isinstance(error, MissingCapability)

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Return the error with its HTTP status. A code that only the stateless era has is replaced."""
        code = error.code
        if isinstance(error, ResourceNotFound):
            code = _NO_RESOURCE
        elif isinstance(error, UndeclaredExtension):
            code = MethodNotFound.code
        elif isinstance(error, MissingCapability):
            code = InvalidRequest.code
        status = 400 if code in _NOT_A_REQUEST and not opened else 200
        return WireError(code, error.message, error.data, status)

    def _open_first(self, frame: Frame, offer: Offer, peer: Peer | None) -> Envelope:
        """Read a handshake, or a ping before the handshake.

        Raises InvalidRequest for a second handshake, and for any other request before the handshake.
        """
        name = frame.method
        assert isinstance(name, str)
        if name == HANDSHAKE:
            if peer is not None and peer.handshake_done:
                raise AlreadyInitialized
        elif name not in _ALWAYS:
            raise InvalidRequest(
                f"Invalid request: send `{HANDSHAKE}` first, or name the protocol version in `params._meta`; "
                f"served are {', '.join(offer.versions)}."
            )
        method = offer.methods[self.name][name]
        params = _decode(method, frame)
        if not isinstance(params, InitializeParams):
            return Envelope(ASSUMED, method, params, _NO_CAPABILITIES)
        # The version asked for if it is of this era, else the newest of this era.
        revision = SESSION_REVISIONS.get(params.protocol_version, NEWEST)
        return Envelope(revision, method, params, fit_capabilities(params.capabilities, revision), params.client_info)


def _decode(method: Method, frame: Frame) -> RequestParams:
    try:
        params: RequestParams = method.decode(b"{}" if frame.params is UNSET else frame.params)
    except msgspec.DecodeError as error:
        raise InvalidParams(f"Invalid params: {fault_of_params(error)}") from None
    return params


SESSION = SessionServer()
