"""Define the interface of an era for servers and for clients, and choose the era of a message.

The protocol has two families of versions, called eras. In the *session era* a client sends its version and capabilities
once, in a handshake, and the server remembers them; in the *stateless era* every request contains them. An era object
has a method or an attribute for everything that differs between the two eras. It never awaits, does no I/O, and is
chosen once per message. No other code compares versions.

When an era opens a request, it returns an `Envelope`: the checked facts about the request, from its `_meta` or from the
handshake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from weft.errors import InvalidParams, ProtocolError
from weft.jsonrpc import Frame, fault_of_id
from weft.limits import DEFAULT_LIMITS
from weft.protocol.headers import Headers
from weft.protocol.revisions import Method, Revision
from weft.types.base import Implementation, LogLevel, Meta, NotificationParams, ProgressToken, Result
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ClientCapabilities, RequestParams, ServerCapabilities

if TYPE_CHECKING:
    from weft.eras.client_tasks import ClientTasks
    from weft.eras.tasks import TaskMessages

EraName: TypeAlias = Literal["stateless", "session"]
NO_PARAMS: Mapping[str, Any] = {}
CORE_TYPES = frozenset({"complete", "input_required"})  # `resultType` values of the core protocol, without extensions

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
    """Return the reason why params could not be decoded. The text never repeats the wrong value that the peer sent."""
    text, at, place = str(error).rpartition(" - at ")
    return f"Invalid value{at}{place}" if text.startswith("Invalid") else str(error)


class Envelope(msgspec.Struct, gc=False):
    """The checked facts about one request. They come from the request itself or from its session."""

    revision: Revision
    method: Method
    params: RequestParams
    client_capabilities: ClientCapabilities
    client_info: Implementation | None = None
    log_level: LogLevel | None = None
    progress_token: ProgressToken | None = None


class WireError(msgspec.Struct):
    """A JSON-RPC error as it is sent to a peer. `status` is the HTTP status of the response."""

    code: int
    message: str
    data: Any
    status: int


class Peer(Protocol):
    """What a server knows about a client from the handshake. The stateless era has no handshake, and so no peer."""

    protocol_version: str  # version that client and server agreed on
    client_capabilities: ClientCapabilities
    client_info: Implementation | None
    log_level: LogLevel | None

    @property
    def handshake_done(self) -> bool:
        """Return True if the server has answered the handshake. From then on, a second handshake is refused."""
        ...

    @property
    def is_ready(self) -> bool:
        """Return True if the client has confirmed the handshake with `notifications/initialized`."""
        ...


class Offer(msgspec.Struct):
    """The methods, versions and settings of a server that an era needs to read and write messages."""

    methods: Mapping[str, Mapping[str, Method]]  # methods that the server offers, by era name and method name
    result_meta: Meta  # `_meta` of every result in the stateless era
    versions: Sequence[str]  # all versions that the server speaks, newest first
    require_initialized: bool = False  # refuse requests of a session until the client has confirmed the handshake
    id_bytes: int = DEFAULT_LIMITS.id_bytes  # maximum length of a progress token, in bytes


def check_token(token: ProgressToken, offer: Offer) -> None:
    """Raise InvalidParams if a progress token is malformed or too long. Each progress notification repeats it."""
    fault = fault_of_id(token, offer.id_bytes, "progressToken")
    if fault is not None:
        raise InvalidParams(f"Invalid params: {fault}")


class ServerEra(Protocol):
    """The interface of an era (a family of protocol versions) for a server."""

    name: str
    is_stateless: bool
    remembers: bool  # True if there is a handshake whose facts hold for all later requests
    asks_by_rounds: bool  # True if a question ends the request, and the client sends the request again with the answer
    mirrors_params: bool  # True if HTTP headers repeat the tool arguments that are annotated with `x-mcp-header`
    methods: frozenset[str]  # methods of the requests in this era, without those of extensions
    versions: Sequence[str]  # versions of this era, newest first
    tasks: TaskMessages  # how this era speaks of tasks

    def revision_of(self, version: str) -> Revision | None:
        """Return the revision with this version; None if this era does not have the version."""
        ...

    def speaks(self, frame: Frame, headers: Headers | None) -> bool:
        """Return True if this message belongs to this era."""
        ...

    def recognise(self, frame: Frame, offer: Offer) -> Envelope | None:
        """Return the envelope of a request without HTTP headers; None if the request may belong to another era."""
        ...

    def open(self, frame: Frame, headers: Headers | None, offer: Offer, peer: Peer | None) -> Envelope:
        """Check a request and return its envelope. Raises a `ProtocolError` if the request is not valid."""
        ...

    def seal(self, result: Result, offer: Offer, revision: Revision) -> Result:
        """Return a result with the fields that the revision requires, and without fields of later revisions."""
        ...

    def notice(self, params: NotificationParams, revision: Revision) -> NotificationParams:
        """Return the params of a notification without fields that the revision does not have."""
        ...

    def question(self, method: str, params: Any, revision: Revision) -> Any:
        """Return the params of a server-to-client request, converted to the form that the revision defines.

        Raises `ProtocolError` if the revision does not have this kind of request.
        """
        ...

    def may_log(self, level: LogLevel, minimum: LogLevel | None) -> bool:
        """Return True if a log message of `level` is sent to a client that asked for the level `minimum`.

        `minimum` is None if the client did not ask for a level.
        """
        ...

    def tells_model(self, error: ProtocolError) -> bool:
        """Return True if an error of a tool is sent as a tool result (for the model), not as a JSON-RPC error."""
        ...

    def refuse(self, error: ProtocolError, *, opened: bool) -> WireError:
        """Return the JSON-RPC error to send, with the code and the HTTP status that it has in this era.

        `opened` is True if `open` accepted the request, and the error occurred later.
        """
        ...


class ServerHello(msgspec.Struct):
    """What a server says about itself in its answer to the first request."""

    versions: Sequence[str]  # versions that the server speaks; in the session era, only the one that it chose
    capabilities: ServerCapabilities
    server_info: Implementation | None = None
    instructions: str | None = None


class RefusalVerdict(msgspec.Struct):
    """What a client learns about a server that answers the first request with an error."""

    is_ours: bool  # True if the server speaks this era; the client then tries no other era
    supported: list[str] | None = None  # versions that the error lists, of any era; None if it has no list


class ListenPlan(msgspec.Struct):
    """The requests with which a client subscribes to changes. Each request is a method and its params."""

    stream: tuple[str, dict[str, Any]] | None = None  # request that stays open, if any
    begin: list[tuple[str, dict[str, Any]]] = []  # requests that subscribe
    end: list[tuple[str, dict[str, Any]]] = []  # requests that unsubscribe


class ClientEra(Protocol):
    """The interface of an era (a family of protocol versions) for a client. Era objects are immutable."""

    name: str
    versions: Sequence[str]  # versions that the client accepts, newest first
    version: str  # version in which the client sends its requests
    methods: frozenset[str]  # methods of the requests in this era, without those of extensions
    confirmation: str | None  # method of the notification that ends the handshake; None if there is no handshake
    answers_requests: bool  # True if the server may send requests to the client
    closing_cancels: bool  # True if closing the stream of a request cancels the request
    resumes: bool  # True if a broken stream can be resumed
    mirrors_params: bool  # True if HTTP headers repeat the tool arguments that are annotated with `x-mcp-header`
    keeps_stream: bool  # True if the server has a stream for messages that belong to no request
    greets_again: bool  # True if the client may send the first request again at any time, and gets a new answer
    tasks: ClientTasks  # how this era speaks of tasks

    def pinned(self, version: str) -> ClientEra | None:
        """Return an era object that has only this version; None if this era does not have the version."""
        ...

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the method and params of the first request to a server, such as `initialize`.

        The answer shows whether the server speaks this era. The caller must still pass the params to `stamp`.
        """
        ...

    def read_welcome(self, result: bytes) -> ServerHello:
        """Decode the result of the first request. Raises InvalidAnswer if the result is malformed."""
        ...

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> ClientEra | None:
        """Return the era object for all later requests; None if client and server have no version in common.

        `headers` are the HTTP headers of the server's answer, which may contain a session id.
        """
        ...

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return what the client learns from an error in answer to the first request.

        `code` and `data` are fields of the JSON-RPC error. `code` is None if the answer is not a JSON-RPC error.
        """
        ...

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if an error means that the client must negotiate again, for example because its session ended.

        `status` is the HTTP status. `code` and `data` are fields of the JSON-RPC error, if there is one.
        """
        ...

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True if this error in answer to `resources/read` means that the resource does not exist."""
        ...

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return the web pages that the error lists, which the user must visit before the server accepts the request.

        Returns None for all other errors.
        """
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
        """Return the params, with version, client and capabilities in `_meta` if every request of this era has them."""
        ...

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the HTTP headers to send with a request or notification that has this method and these params.

        `method` is None for the headers of an HTTP GET request, or of a response that the client sends.
        """
        ...

    def farewell(self) -> dict[str, str] | None:
        """Return the headers of the HTTP request that ends the session; None if there is no session."""
        ...

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return the method and params of the request that sets the log level.

        Returns None if every request names its own log level.
        """
        ...

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return the requests that subscribe to these changes and unsubscribe from them."""
        ...


def find_revision(eras: Sequence[ServerEra], version: str) -> tuple[ServerEra, Revision] | None:
    """Return the revision with this version, and its era; None if none of the eras has the version."""
    for era in eras:
        revision = era.revision_of(version)
        if revision is not None:
            return era, revision
    return None


def choose(
    eras: Sequence[ServerEra], frame: Frame, headers: Headers | None, offer: Offer | None = None
) -> tuple[ServerEra, Envelope | None]:
    """Return the first era in `eras` to which a message belongs, and the envelope of the request if it was opened.

    If the message belongs to none of them, the last era is returned. That era refuses the message later, with an error
    that names the supported versions.

    A caller with HTTP headers passes `headers`. A caller without HTTP headers (stdio) passes `offer`: `choose` then
    opens the request to find its era, and also returns the envelope, so that the caller does not open it again.
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
