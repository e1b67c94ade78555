"""Define the questions that servers and clients ask an era, and choose the era of a message.

The protocol has two families of revisions. In the *session era* a client introduces itself once, in a handshake, and
the connection remembers it; in the *stateless era* every request introduces itself. An era object answers every
question that follows from this difference. It never awaits, does no I/O, and is chosen once per message. No other code
compares versions.

When an era opens a request, it returns an `Envelope`: the checked facts about the request, from its `_meta` or from the
handshake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from weft.errors import InvalidParams, ProtocolError
from weft.jsonrpc import Frame, fault_of_id
from weft.limits import DEFAULT_LIMITS
from weft.protocol.headers import Headers
from weft.protocol.revisions import Method, Revision
from weft.types.base import Implementation, LogLevel, Meta, NotificationParams, ProgressToken, Result
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ClientCapabilities, RequestParams, ServerCapabilities

EraName: TypeAlias = Literal["stateless", "session"]
NO_PARAMS: Mapping[str, Any] = {}
CORE_TYPES = frozenset({"complete", "input_required"})  # types of results in the core protocol; extensions add others

_LEVELS = {
    level: rank
    for rank, level in enumerate(("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"))
}


def log_level_reached(level: LogLevel, minimum: LogLevel) -> bool:
    """Return True if `level` is at least as severe as `minimum`, in the order of RFC 5424.

    >>> log_level_reached("error", "warning")
    True
    """
    return _LEVELS[level] >= _LEVELS[minimum]


def fault_of_params(error: Exception | None) -> str:
    """Return why params could not be read, without the wrong value, because a peer's values are not sent back."""
    text, at, place = str(error).rpartition(" - at ")
    return f"Invalid value{at}{place}" if text.startswith("Invalid") else str(error)


class Envelope(msgspec.Struct, gc=False):
    """The facts about one request, from the request itself or from its session. The era has checked them."""

    revision: Revision
    method: Method
    params: RequestParams
    client_capabilities: ClientCapabilities
    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    progress_token: ProgressToken | None = None


class WireError(msgspec.Struct):
    """An error as it is sent to a peer. `status` is its HTTP status."""

    code: int
    message: str
    data: Any
    status: int


class Peer(Protocol):
    """The facts about a client from its handshake. In the stateless era there is no peer."""

    protocol_version: str  # version agreed on
    client_capabilities: ClientCapabilities
    client_info: Implementation | None
    log_level: LogLevel | None

    @property
    def handshake_done(self) -> bool:
        """Return True if the handshake was answered. A second handshake is refused."""
        ...

    @property
    def is_ready(self) -> bool:
        """Return True if the client has confirmed the handshake."""
        ...


class Offer(msgspec.Struct):
    """What a server offers, as far as eras need it to read and write messages."""

    methods: Mapping[str, Mapping[str, Method]]  # by era: methods of declared capabilities and of extensions
    result_meta: Meta  # `_meta` of every result in the stateless era
    versions: Sequence[str]  # all versions served, newest first
    require_initialized: bool = False  # refuse requests of a session until the client has confirmed the handshake
    id_bytes: int = DEFAULT_LIMITS.id_bytes  # longest progress token


def check_token(token: ProgressToken, offer: Offer) -> None:
    """Raise InvalidParams if a progress token is no valid id. It must be one, because progress messages repeat it."""
    fault = fault_of_id(token, offer.id_bytes, "progressToken")
    if fault is not None:
        raise InvalidParams(f"Invalid params: {fault}")


class ServerEra(Protocol):
    """The questions that a server asks an era."""

    name: str
    is_stateless: bool
    remembers: bool  # is there a handshake whose facts hold for all later requests?
    asks_by_rounds: bool  # does a question to the client end the call, to be answered with the next one?
    mirrors_params: bool  # do HTTP headers repeat annotated arguments?
    methods: frozenset[str]  # methods of its revisions, without extensions
    versions: Sequence[str]  # versions of its revisions, newest first

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Return True if this message belongs to this era."""
        ...

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Open a request without headers if it is certainly of this era; otherwise return None."""
        ...

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Read and check a request. Raises the `ProtocolError` of the specification if the request is wrong."""
        ...

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Return a result in the form of the revision: add required fields, or remove fields of later revisions."""
        ...

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Return the params of a notification in the form of the revision."""
        ...

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the params of a request to the client in the form of the revision.

        Raises `ProtocolError` if the revision has no such request.
        """
        ...

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Return True if log messages of `level` are sent to a client that asked for the level `minimum`."""
        ...

    def tells_model(self, error: ProtocolError) -> bool:
        """Return True if a tool's error becomes a result that the model reads, not a JSON-RPC error."""
        ...

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Return the error with the code and the HTTP status that it has in this era.

        `opened` is True if the request could be read, and the error occurred later.
        """
        ...


class ServerHello(msgspec.Struct):
    """What a server says about itself in its first answer."""

    versions: Sequence[str]  # versions that it speaks; after a handshake, the one agreed on
    capabilities: ServerCapabilities
    server_info: Implementation | None = None
    instructions: str | None = None


class RefusalVerdict(msgspec.Struct):
    """What the refusal of a client's first request says about the server."""

    is_ours: bool  # the server speaks this era, so no other is tried
    supported: list[str] | None = None  # versions that the error names, of any era


class ListenPlan(msgspec.Struct):
    """The requests that subscribe to changes."""

    stream: tuple[str, dict[str, Any]] | None = None  # request that stays open
    begin: list[tuple[str, dict[str, Any]]] = []  # requests that subscribe
    end: list[tuple[str, dict[str, Any]]] = []  # requests that unsubscribe


class ClientEra(Protocol):
    """The questions that a client asks an era. An era is immutable: `agreed` returns a new object."""

    name: str
    versions: Sequence[str]  # versions that may be agreed on, newest first
    version: str  # version of the requests
    methods: frozenset[str]  # methods of its revisions, without extensions
    confirmation: str | None  # notification that ends the handshake
    answers_requests: bool  # may the server send requests? Else it asks by rounds.
    closing_cancels: bool  # does closing the stream of a request cancel the request?
    resumes: bool  # can a broken stream be resumed?
    mirrors_params: bool  # do HTTP headers repeat annotated arguments?
    keeps_stream: bool  # does the server have a stream for messages that belong to no request?
    greets_again: bool  # may the first request be repeated at any time, with a new answer?

    def pinned(self, version: str) -> ClientEra | None:
        """Return this era with one version only; None if it does not have that version."""
        ...

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the method and params of the first request, whose answer shows if a server speaks this era.

        `stamp` is not applied to the params yet.
        """
        ...

    def read_welcome(self, result: bytes) -> ServerHello:
        """Read the answer to the first request. Raises InvalidAnswer if the answer is malformed."""
        ...

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> ClientEra | None:
        """Return the era for all later requests; None if client and server have no version in common."""
        ...

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return what a refusal of the first request means. `code` is None if the answer was no JSON-RPC error."""
        ...

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if this HTTP error means that the agreement with the server has ended."""
        ...

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True if this error of `resources/read` means that there is no such resource."""
        ...

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return the pages that the user must visit before the request is served; None for any other error."""
        ...

    def stamp(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        info: Implementation,
        capabilities: ClientCapabilities,
        log_level: LogLevel | None = None,
    ) -> Mapping[str, Any]:
        """Return the params of a request, with the facts about the client that this era puts into every request."""
        ...

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the HTTP headers for a request or notification; if `method` is None, for a GET or a response."""
        ...

    def farewell(self) -> dict[str, str] | None:
        """Return the headers of the request that ends the session; None if there is no session."""
        ...

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return the request that sets the log level; None if every request contains its log level."""
        ...

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return the requests that subscribe to changes."""
        ...


def choose(
    eras: Sequence[ServerEra], frame: Frame, headers: Headers | None, offer: Offer | None = None
) -> tuple[ServerEra, Envelope | None]:
    """Return the era of a message: the first that speaks it.

    If none does, return the last one: it will refuse the message, with an error that names the served versions.

    HTTP passes the headers. Pipes have no headers and pass the offer instead. Then an era that recognises the request
    opens it at once, and its envelope is returned as well, so that the request is read only once.
    """
    if offer is not None:
        for era in eras:
            envelope = era.recognise(frame, offer)
            if envelope is not None:
                return era, envelope
    for era in eras:
        if era.speaks(frame, headers):
            return era, None
    return eras[-1], None
