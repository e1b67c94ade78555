"""Implement the session era for a server: revisions 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25.

A client sends a version and its capabilities once, in `initialize`. The answer names the version that both will use.
Later requests contain neither, because the session stores both. During a call, the server may send requests to the
client (sampling, elicitation, roots) and wait for the answer.

The four revisions differ mostly in the fields of their messages (`session_fields`); the few other differences are
fields of `Revision`. Unlike in the stateless era, most JSON-RPC errors have HTTP status 200. Only an invalid request
has status 400.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from weft.eras.base import CORE_TYPES, Envelope, Offer, Peer, WireError, check_token, fault_of_params, log_level_reached
from weft.eras.session_fields import fit, fit_capabilities, fit_question
from weft.eras.tasks import SESSION_TASKS, TaskMessages
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
ASSUMED = SESSION_2025_03_26  # used for a request without a version header: the newest revision without this header

DEFAULT_LEVEL: LogLevel = "info"  # minimum level of log messages until the client sets one

_VERSION_HEADER = b"mcp-protocol-version"
_ALWAYS = frozenset({HANDSHAKE, "ping"})  # methods that are served even before the handshake
_NOT_A_REQUEST = frozenset({-32700, -32600})
_NO_RESOURCE = -32002
_NO_CAPABILITIES = ClientCapabilities()


class AlreadyInitialized(InvalidRequest):
    """The error for a second handshake in one session."""

    def __init__(self) -> None:
        super().__init__("Invalid request: this session has been initialized already.")


class HeaderPeer:
    """The peer of a request without a session. Only its protocol version is known, from the HTTP headers."""

    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    handshake_done = True
    is_ready = True

    def __init__(self, headers: Headers) -> None:
        self.protocol_version = headers.get(_VERSION_HEADER) or ASSUMED.version
        self.client_capabilities = _NO_CAPABILITIES


class SessionServer:
    """The session era (protocol versions 2024-11-05 to 2025-11-25) for a server."""

    name = "session"
    is_stateless = False
    remembers = True
    asks_by_rounds = False
    mirrors_params = False
    methods = NEWEST.methods
    versions: Sequence[str] = tuple(SESSION_REVISIONS)
    tasks: TaskMessages = SESSION_TASKS

    def revision_of(self, version: str) -> Revision | None:
        """Return the revision with this version; None if this era does not have the version."""
        return SESSION_REVISIONS.get(version)

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Return True: every message that is not of the stateless era belongs to this era."""
        return True

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Return None: nothing in a request proves that the request belongs to this era."""
        return None

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Check a request against the facts of its session, and return its envelope."""
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
        """Raise InvalidRequest if the version header names a version that this era does not have."""
        stated = headers.get(_VERSION_HEADER)
        if stated is not None and stated not in SESSION_REVISIONS:
            known = ", ".join(SESSION_REVISIONS)
            raise InvalidRequest(f"Invalid request: the MCP-Protocol-Version header names none of {known}.")

    def takes_batches(self, peer: Peer) -> bool:
        """Return True if this client may send several messages in one JSON array."""
        return peer.handshake_done and SESSION_REVISIONS.get(peer.protocol_version, ASSUMED).batches

    def may_close_early(self, peer: Peer) -> bool:
        """Return True if the server may close a stream before it sends the answer. The client then resumes it."""
        return SESSION_REVISIONS.get(peer.protocol_version, ASSUMED).polling

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Return a result without fields that the revision does not have, except the result type of an extension."""
        kind = result.result_type
        fitting = fit(result, revision)
        if kind is not None and kind not in CORE_TYPES:
            fitting = msgspec.structs.replace(fitting, result_type=kind)
        return fitting

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Return the params of a notification without fields that the revision does not have."""
        return fit(params, revision)

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the params of a server-to-client request, converted to the form that the revision defines.

        Raises `MissingCapability` if the revision does not have this kind of request.
        """
        return fit_question(method, params, revision)

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Return True if `level` is at least the level that the session asked for (default: info)."""
        return log_level_reached(level, minimum or DEFAULT_LEVEL)

    def tells_model(self, error: ProtocolError) -> bool:
        """Return True if the error is a missing capability, because this era has no error code for it."""
        return isinstance(error, MissingCapability)

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Return the JSON-RPC error to send, with its HTTP status. A code that this era does not have is replaced."""
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
        """Return the envelope of a handshake, or of a ping before the handshake.

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
        # Use the requested version if this era has it, else the newest version of this era.
        revision = SESSION_REVISIONS.get(params.protocol_version, NEWEST)
        return Envelope(revision, method, params, fit_capabilities(params.capabilities, revision), params.client_info)


def _decode(method: Method, frame: Frame) -> RequestParams:
    try:
        params: RequestParams = method.decode(b"{}" if frame.params is UNSET else frame.params)
    except msgspec.DecodeError as error:
        raise InvalidParams(f"Invalid params: {fault_of_params(error)}") from None
    return params


SESSION = SessionServer()
