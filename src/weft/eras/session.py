"""The session era: revisions 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25.

A client introduces itself once. Its `initialize` names a version and its capabilities; the answer names the version
both will speak, and from then on neither is said again: what a request may do follows from what its session remembers.
The server may ask while it serves (sampling, elicitation, roots): it sends a request of its own and waits.

The four revisions differ in what their messages have (`session_fields`), hardly in how they run; what differs there is
a fact of the `Revision`. Unlike the stateless era, a refusal is a JSON-RPC error in an HTTP response that succeeded:
status 400 is for what was not a request at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from weft.protocol.revisions import (
    SESSION_2024_11_05,
    SESSION_2025_03_26,
    SESSION_2025_06_18,
    SESSION_2025_11_25,
    Method,
    Revision,
)
from weft.types.base import Implementation, LogLevel, NotificationParams, Result
from weft.types.lifecycle import ClientCapabilities, InitializeParams, RequestParams

HANDSHAKE = "initialize"
READY = "notifications/initialized"

REVISIONS: Mapping[str, Revision] = {
    revision.version: revision
    for revision in (SESSION_2025_11_25, SESSION_2025_06_18, SESSION_2025_03_26, SESSION_2024_11_05)
}
NEWEST = SESSION_2025_11_25
ASSUMED = SESSION_2025_03_26  # where nothing says which (L11-28): the last revision without a version header

DEFAULT_LEVEL: LogLevel = "info"  # of log messages, until the client has said which it wants

_VERSION_HEADER = b"mcp-protocol-version"
_ALWAYS = frozenset({HANDSHAKE, "ping"})  # answered also before the handshake is over (L11-05)
_NOT_A_REQUEST = frozenset({-32700, -32600})
_NO_RESOURCE = -32002  # L11-35
_NO_CAPABILITIES = ClientCapabilities()


class AlreadyInitialized(InvalidRequest):
    """A handshake in a session that has had one (L11-01)."""

    def __init__(self) -> None:
        super().__init__("Invalid request: this session has been initialized already.")


class HeaderPeer:
    """A peer whose handshake is not remembered: all that is known is what the request's headers say."""

    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    handshake_done = True
    is_ready = True

    def __init__(self, headers: Headers) -> None:
        self.protocol_version = headers.get(_VERSION_HEADER) or ASSUMED.version
        self.client_capabilities = _NO_CAPABILITIES


class SessionServer:
    """The server's side of the era."""

    name = "session"
    is_stateless = False
    remembers = True
    asks_by_rounds = False
    mirrors_params = False  # L11-53
    methods = NEWEST.methods
    versions: Sequence[str] = tuple(REVISIONS)

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Whatever is not marked as of the other era is of this one."""
        return True

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Requests of this era have no mark."""
        return None

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Check one request against what its session remembers."""
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
        return Envelope(
            REVISIONS.get(peer.protocol_version, ASSUMED),
            method,
            params,
            peer.client_capabilities,
            peer.client_info,
            peer.log_level,
            token,
        )

    def check_version(self, headers: Headers) -> None:
        """A version header, where there is one, names a revision of this era (L11-29)."""
        stated = headers.get(_VERSION_HEADER)
        if stated is not None and stated not in REVISIONS:
            raise InvalidRequest(
                f"Invalid request: the MCP-Protocol-Version header names none of {', '.join(REVISIONS)}."
            )

    def takes_batches(self, peer: Peer) -> bool:
        """Whether messages of this peer may come in arrays (L03-01)."""
        return peer.handshake_done and REVISIONS.get(peer.protocol_version, ASSUMED).batches

    def may_close_early(self, peer: Peer) -> bool:
        """Whether a stream to this peer may end before the answer, to be asked for again (L11-15, L06-02)."""
        return REVISIONS.get(peer.protocol_version, ASSUMED).polling

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Only what the revision has (COMPAT-23). A result type of an extension stays: its client declared it."""
        kind = result.result_type
        fitting = fit(result, revision)
        if kind is not None and kind not in CORE_TYPES:
            fitting = msgspec.structs.replace(fitting, result_type=kind)
        return fitting

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Only what the revision has."""
        return fit(params, revision)

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Only what the revision has."""
        return fit_question(method, params, revision)

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """From the level on that the session asked for (L11-33)."""
        return log_level_reached(level, minimum or DEFAULT_LEVEL)

    def tells_model(self, error: ProtocolError) -> bool:
        """What a client did not declare has no code here, and hosts end their run at an error: the model can go on."""
        return isinstance(error, MissingCapability)

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Codes that later revisions gave a meaning are not used here."""
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
        """What may come before the handshake is done: the handshake, and a ping."""
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
        # COMPAT-22, L11-02: the version asked for if it is of this era, else the newest that is.
        revision = REVISIONS.get(params.protocol_version, NEWEST)
        return Envelope(revision, method, params, fit_capabilities(params.capabilities, revision), params.client_info)


def _decode(method: Method, frame: Frame) -> RequestParams:
    try:
        params: RequestParams = method.decode(b"{}" if frame.params is UNSET else frame.params)
    except msgspec.DecodeError as error:
        raise InvalidParams(f"Invalid params: {fault_of_params(error)}") from None
    return params


SESSION = SessionServer()
