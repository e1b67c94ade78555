"""What an era is asked, and the one chooser.

The protocol has two families of revisions. In the *session era* a peer introduces itself once and the connection
remembers; in the *stateless era* every request introduces itself. All that follows from this difference is answered by
an era object: it never awaits, does no I/O, and is chosen once per message. Its callers ask and do as told; none of
them compares versions.

A request is opened into an `Envelope`: what it says about itself, checked. Where those facts come from — the request's
own `_meta`, or the handshake that came before it — is the era's secret.
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
CORE_TYPES = frozenset({"complete", "input_required"})  # of results; extensions have others (JRPC-10)

_LEVELS = {
    level: rank
    for rank, level in enumerate(("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"))
}


def log_level_reached(level: LogLevel, minimum: LogLevel) -> bool:
    """Whether `level` is at least as severe as `minimum`, in the order of RFC 5424.

    >>> log_level_reached("error", "warning")
    True
    """
    return _LEVELS[level] >= _LEVELS[minimum]


def fault_of_params(error: Exception | None) -> str:
    """Why params could not be read, without the value that was there: what a peer sent is not sent back (D4)."""
    text, at, place = str(error).rpartition(" - at ")
    return f"Invalid value{at}{place}" if text.startswith("Invalid") else str(error)


class Envelope(msgspec.Struct, gc=False):
    """What one request says about itself, or its session about it, checked by its era."""

    revision: Revision
    method: Method
    params: RequestParams
    client_capabilities: ClientCapabilities
    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    progress_token: ProgressToken | None = None


class WireError(msgspec.Struct):
    """An error as a peer gets it; `status` is for HTTP."""

    code: int
    message: str
    data: Any
    status: int


class Peer(Protocol):
    """What an era may know of the other side from before: facts of a handshake. Absent in the stateless era."""

    protocol_version: str  # agreed on
    client_capabilities: ClientCapabilities
    client_info: Implementation | None
    log_level: LogLevel | None

    @property
    def handshake_done(self) -> bool:
        """Whether the handshake was answered; a second one is refused."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether the client has said that the handshake is over for it too."""
        ...


class Offer(msgspec.Struct):
    """What a server offers, as far as reading and sealing messages needs to know."""

    methods: Mapping[str, Mapping[str, Method]]  # by era: those whose capability is declared, and those of extensions
    result_meta: Meta  # goes on every result of the stateless era
    versions: Sequence[str]  # all versions served, newest first
    require_initialized: bool = False  # a session is served only from when the client has confirmed the handshake
    id_bytes: int = DEFAULT_LIMITS.id_bytes


def check_token(token: ProgressToken, offer: Offer) -> None:
    """Refuse a progress token that no id could be: each message about the progress repeats it."""
    fault = fault_of_id(token, offer.id_bytes, "progressToken")
    if fault is not None:
        raise InvalidParams(f"Invalid params: {fault}")


class ServerEra(Protocol):
    """The questions a server asks about a message."""

    name: str
    is_stateless: bool
    remembers: bool  # a peer introduces itself once, and what it said then holds for what follows
    asks_by_rounds: bool  # a question ends the call and is answered with the next; else it is sent and awaited
    mirrors_params: bool  # over HTTP, headers repeat annotated arguments
    methods: frozenset[str]  # what its revisions have, extensions aside
    versions: Sequence[str]  # of its revisions, newest first

    def speaks(self, frame: Frame, headers: Headers | None, peer: Peer | None) -> bool:
        """Whether this message belongs to this era."""
        ...

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Open a request without headers that is plainly of this era. None says nothing: then `speaks` is asked."""
        ...

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Check a request and read it. Raises the `ProtocolError` the ledger names."""
        ...

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Complete a fresh result for the wire, or take out what the revision does not have."""
        ...

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """The params of a notification as the revision has them."""
        ...

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """The params of a question as the revision has them. Raises `ProtocolError` where it cannot be put so."""
        ...

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Whether a message of this level goes out, given what the client asked for."""
        ...

    def tells_model(self, error: ProtocolError) -> bool:
        """Whether a tool that ends with this error answers with a result, for the model to read; else it is refused."""
        ...

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """The error as this era's peers get it. `opened`: it came from a handler, not from reading the request."""
        ...


class ServerHello(msgspec.Struct):
    """What a server says of itself when a client comes."""

    versions: Sequence[str]  # those it speaks; after a handshake the one agreed on
    capabilities: ServerCapabilities
    server_info: Implementation | None = None
    instructions: str | None = None


class RefusalVerdict(msgspec.Struct):
    """What a refused greeting tells about the server."""

    is_ours: bool  # it speaks this era, and meant what it said
    supported: list[str] | None = None  # the versions it named, of whatever era


class ListenPlan(msgspec.Struct):
    """How changes are heard: by a request that stays open, or by requests before and after."""

    stream: tuple[str, dict[str, Any]] | None = None
    begin: list[tuple[str, dict[str, Any]]] = []
    end: list[tuple[str, dict[str, Any]]] = []


class ClientEra(Protocol):
    """The questions a client asks about a message. A value: what is agreed on makes a new one."""

    name: str
    versions: Sequence[str]  # all that it may speak, newest first
    version: str  # that of its requests
    methods: frozenset[str]  # the requests that its revisions have, extensions aside
    confirmation: str | None  # the notification that ends the greeting
    answers_requests: bool  # a server may send requests of its own; else it asks by rounds
    closing_cancels: bool  # where a request has a stream of its own, closing it cancels the request
    resumes: bool  # a stream that broke off can be taken up again
    mirrors_params: bool  # over HTTP, headers repeat annotated arguments
    keeps_stream: bool  # over HTTP, the server speaks up on a stream of its own
    greets_again: bool  # what the server said of itself may be asked again at any time, and may have changed

    def pinned(self, version: str) -> ClientEra | None:
        """This era, with one version only; None when it is not one of its own."""
        ...

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """The request by which one finds out whether a server speaks this era, not yet stamped."""
        ...

    def read_welcome(self, result: bytes) -> ServerHello:
        """The answer to it. InvalidAnswer when it is none."""
        ...

    def agreed(self, welcome: ServerHello, headers: Mapping[str, str]) -> ClientEra | None:
        """The era to go on with; None when there is no common version."""
        ...

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """What a refusal of the greeting means: its JSON-RPC code, None where there was none, and its data."""
        ...

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Whether an HTTP refusal of a later request means that what was agreed on is not so any more."""
        ...

    def is_missing(self, code: int, data: Any) -> bool:
        """Whether an error means that there is no such resource."""
        ...

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """The pages that the user has to visit before the request is served; None where an error says no such thing."""
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
        """The params of a request, with what it says about itself."""
        ...

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """The HTTP headers of a request or notification; of what is neither, without a method."""
        ...

    def farewell(self) -> dict[str, str] | None:
        """The headers with which a session is ended; None when there is none to end."""
        ...

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """The request that sets the log level; None where every request says it."""
        ...

    def listen(self, wish: SubscriptionFilter) -> ListenPlan:
        """How such changes are heard."""
        ...


def choose(eras: Sequence[ServerEra], frame: Frame, headers: Headers | None, peer: Peer | None = None) -> ServerEra:
    """The era of a message: the first that speaks it, else the last, whose refusal names what is served."""
    for era in eras:
        if era.speaks(frame, headers, peer):
            return era
    return eras[-1]


def recognise(eras: Sequence[ServerEra], frame: Frame, offer: Offer) -> tuple[ServerEra, Envelope | None]:
    """The era of a request without headers; and the request, where telling the era meant to open it already."""
    for era in eras:
        envelope = era.recognise(frame, offer)
        if envelope is not None:
            return era, envelope
    return choose(eras, frame, None), None
