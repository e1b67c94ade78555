"""The exceptions of Weft, and the codes by which they cross the wire.

    BaseException
     ├── WeftError
     │    ├── ProtocolError              answered as a JSON-RPC error
     │    │    ├── ParseError            -32700  the bytes are not JSON
     │    │    ├── InvalidRequest        -32600  the JSON is not a JSON-RPC request
     │    │    ├── MethodNotFound        -32601  no such method is offered
     │    │    ├── InvalidParams         -32602  the params do not fit
     │    │    │    └── ResourceNotFound         (the session era gives it a code of its own)
     │    │    ├── InternalError         -32603  our fault; says nothing of what happened
     │    │    ├── HeaderMismatch        -32020  a header and the body differ
     │    │    ├── MissingCapability     -32021  the client did not declare what is needed
     │    │    │    └── UndeclaredExtension      a method of an extension (in the session era: -32601)
     │    │    └── UnsupportedVersion    -32022  this revision is not served
     │    ├── ToolError                  answered as a tool result with `isError`
     │    │    └── QuestionFailed        a question of the server was refused, or not answered well or in time
     │    ├── NoBackChannelError         nothing can be sent to this peer on its own
     │    ├── RemoteError                the peer refused a request of ours, with a code
     │    ├── RequestTimeout             the peer did not answer a request of ours in time
     │    ├── ConnectionFailed           the peer cannot be reached, or is gone
     │    ├── InvalidAnswer              the peer answered, but not as the protocol or its own schema demands
     │    ├── CannotAnswer                  a question of the peer, on which its answer depends, was not answered by us
     │    ├── AuthorizationFailed        the server wants a login, and none was given or succeeded
     │    ├── VersionMismatch            the two sides share no revision of the protocol
     │    └── UsageError                 the program that uses Weft is wrong; raised before serving
     │         ├── RegistrationError     a tool, resource or prompt cannot be registered
     │         └── StartError            the server cannot be started as asked

"They erred" is a `ProtocolError`; "you erred" is a `UsageError`; the two never mix. A `RemoteError` is what a peer
answered to a request of ours; what we found out by ourselves (a timeout, a lost connection) never looks like one.
Which code a ProtocolError has on the wire of a given revision is the era's decision (`weft.eras`); the codes
here are those of the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "AuthorizationFailed",
    "CannotAnswer",
    "ConnectionFailed",
    "HeaderMismatch",
    "InternalError",
    "InvalidAnswer",
    "InvalidParams",
    "InvalidRequest",
    "MethodNotFound",
    "MissingCapability",
    "NoBackChannelError",
    "ParseError",
    "ProtocolError",
    "QuestionFailed",
    "RegistrationError",
    "RemoteError",
    "RequestTimeout",
    "ResourceNotFound",
    "StartError",
    "ToolError",
    "UndeclaredExtension",
    "UnsupportedVersion",
    "UsageError",
    "VersionMismatch",
    "WeftError",
]


class WeftError(Exception):
    """The root of everything Weft raises on purpose."""


class ProtocolError(WeftError):
    """Something the peer is told as a JSON-RPC error.

    Raise one from a handler to answer with an error of your own; pick `code` outside -32768…-32000.

    >>> raise ProtocolError("The vault is closed.", code=1001, data={"opens": "08:00"})
    Traceback (most recent call last):
    ...
    weft.errors.ProtocolError: The vault is closed.
    """

    code: int = -32603

    def __init__(self, message: str, *, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        self.request_id: int | str | None = None  # set where the error is found before the request is known
        if code is not None:
            self.code = code


class ParseError(ProtocolError):
    """The bytes are not JSON that Weft reads."""

    code: int = -32700


class InvalidRequest(ProtocolError):
    """The JSON is not a JSON-RPC request."""

    code: int = -32600


class MethodNotFound(ProtocolError):
    """The method does not exist here, or belongs to a capability that was not declared."""

    code: int = -32601


class InvalidParams(ProtocolError):
    """The params do not fit the method."""

    code: int = -32602


class ResourceNotFound(InvalidParams):
    """No resource has this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__("Resource not found", data={"uri": uri})
        self.uri = uri


class InternalError(ProtocolError):
    """A fault on this side. What happened is in the log, not in the message."""

    code: int = -32603


class HeaderMismatch(ProtocolError):
    """An HTTP header is missing, malformed, or says something else than the body."""

    code: int = -32020


class MissingCapability(ProtocolError):
    """The request needs a client capability that it did not declare."""

    code: int = -32021

    def __init__(self, message: str, *, required: Mapping[str, Any]) -> None:
        super().__init__(message, data={"requiredCapabilities": dict(required)})


class UndeclaredExtension(MissingCapability):
    """A method belongs to an extension that the client did not declare."""

    def __init__(self, method: str, extension: str) -> None:
        super().__init__(
            f"The method {method!r} belongs to the extension {extension!r}, which the client must declare in its "
            "`capabilities.extensions`.",
            required={"extensions": {extension: {}}},
        )


class UnsupportedVersion(ProtocolError):
    """The request names a protocol revision that is not served here."""

    code: int = -32022

    def __init__(self, *, requested: str, supported: list[str]) -> None:
        super().__init__("Unsupported protocol version", data={"supported": supported, "requested": requested})


class ToolError(WeftError):
    """A tool's failure that the model should read: the result has `isError` and this text.

    >>> raise ToolError("There is no flight LX39; did you mean LX38?")
    Traceback (most recent call last):
    ...
    weft.errors.ToolError: There is no flight LX39; did you mean LX38?
    """


class QuestionFailed(ToolError):
    """The client did not answer a question (`ctx.elicit`, `ctx.sample`, `ctx.list_roots`) that a handler asked.

    `code` is that of the error it answered with; None if it did not answer in time, or what does not fit the question.
    """

    def __init__(self, message: str, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class NoBackChannelError(WeftError):
    """There is no channel on which a request could be sent to this peer."""

    def __init__(self, method: str) -> None:
        super().__init__(f"{method!r} cannot be sent: this peer has no channel for requests from the server.")


class RemoteError(WeftError):
    """The peer answered a request of ours with an error: its `code`, its `message` and its `data`.

    `not_found` is True if it was asked for a resource that it does not have; the code of that depends on the revision.

    >>> raise RemoteError(-32602, "Unknown tool: brew")
    Traceback (most recent call last):
    ...
    weft.errors.RemoteError: Unknown tool: brew (-32602)
    """

    def __init__(self, code: int, message: str, data: Any = None, *, not_found: bool = False) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data
        self.not_found = not_found


class RequestTimeout(WeftError):
    """The peer did not answer a request of ours in time. Whether it acted on it is not known."""


class ConnectionFailed(WeftError):
    """The peer cannot be reached, does not speak the protocol, or is gone. The message says what was tried."""

    is_unanswered = False  # a connection stood, and was closed without a byte of an answer: it may have been read


class InvalidAnswer(WeftError):
    """The peer answered, but not as the protocol, or the schema it published itself, demands."""


class CannotAnswer(WeftError):
    """The peer needs an answer before it can go on, and this side did not give one: it cannot, or the user refused."""


class AuthorizationFailed(WeftError):
    """The server wants authorization, and none was given, or could be had. `tried` lists what was done, in order.

    The message names what to do next; neither it nor `tried` holds a token, a code or a secret.
    """

    def __init__(self, message: str, tried: Sequence[str] = ()) -> None:
        super().__init__(message if not tried else f"{message} Tried: {'; '.join(tried)}.")
        self.message = message
        self.tried = list(tried)


class VersionMismatch(WeftError):
    """No revision of the protocol is spoken by both sides. `ours` and `theirs` list what each speaks."""

    def __init__(self, *, where: str, ours: Sequence[str], theirs: Sequence[str]) -> None:
        self.ours = list(ours)
        self.theirs = list(theirs)
        super().__init__(
            f"{where} speaks no protocol version that this client may use: it speaks "
            f"{', '.join(self.theirs) or 'none it names'}, this client {', '.join(self.ours)}. Update whichever is "
            "older, or take away what pins the version here (`version=`, `eras=`)."
        )


class UsageError(WeftError):
    """The program that uses Weft is wrong. The message says where, why, and what to do."""


class RegistrationError(UsageError):
    """A feature cannot be registered as written."""


class StartError(UsageError):
    """The server cannot be started as asked."""
