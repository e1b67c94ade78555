"""The exceptions of Weft, and their JSON-RPC error codes.

    BaseException
     ├── WeftError
     │    ├── ProtocolError              sent to the peer as a JSON-RPC error
     │    │    ├── ParseError            -32700  the bytes are not JSON
     │    │    ├── InvalidRequest        -32600  the JSON is not a JSON-RPC request
     │    │    ├── MethodNotFound        -32601  there is no such method
     │    │    ├── InvalidParams         -32602  the params are not valid for the method
     │    │    │    └── ResourceNotFound         no resource has this URI (in the session era: -32002)
     │    │    ├── InternalError         -32603  an error in Weft or in a handler; the details are only in the log
     │    │    ├── HeaderMismatch        -32020  a header and the body differ
     │    │    ├── MissingCapability     -32021  the client did not declare a capability that is needed
     │    │    │    └── UndeclaredExtension      the method of an undeclared extension (in the session era: -32601)
     │    │    └── UnsupportedVersion    -32022  the server does not speak this protocol version
     │    ├── ToolError                  sent as a tool result with `isError`
     │    │    └── QuestionFailed        the client refused a question of the server, or its answer was late or invalid
     │    ├── NoBackChannelError         the server cannot send requests to this peer
     │    ├── RemoteError                the peer answered a request with an error
     │    ├── RequestTimeout             the peer did not answer a request in time
     │    ├── ConnectionFailed           the peer cannot be reached, or the connection is lost
     │    ├── InvalidAnswer              the peer's answer breaks the protocol, or the schema that the peer published
     │    ├── CannotAnswer               the server asked a question that this client did not answer
     │    ├── AuthorizationFailed        the server requires a login, and there was no login or it failed
     │    ├── VersionMismatch            client and server have no protocol version in common
     │    ├── BackendUnavailable         the backend that the workers share is not available
     │    ├── TaskEnded                  the task has ended or expired, so work for it is not needed any more
     │    └── UsageError                 the program uses Weft in a wrong way; most are raised before serving
     │         ├── RegistrationError     a tool, resource or prompt cannot be registered
     │         └── StartError            the server cannot be started with these options

A mistake of the peer is a `ProtocolError`; a mistake of the program is a `UsageError`. No error is both. A
`RemoteError` always comes from the peer; timeouts and lost connections have other classes. The codes above are those of
the newest protocol version. For older versions, the era (`weft.eras`) decides which code is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "AuthorizationFailed", "BackendUnavailable", "CannotAnswer", "ConnectionFailed", "HeaderMismatch", "InternalError",
    "InvalidAnswer", "InvalidParams", "InvalidRequest", "MethodNotFound", "MissingCapability", "NoBackChannelError",
    "ParseError", "ProtocolError", "QuestionFailed", "RegistrationError", "RemoteError", "RequestTimeout",
    "ResourceNotFound", "StartError", "TaskEnded", "ToolError", "UndeclaredExtension", "UnsupportedVersion",
    "UsageError", "VersionMismatch", "WeftError",
]  # fmt: skip


class WeftError(Exception):
    """The base class of all exceptions that Weft raises."""


class ProtocolError(WeftError):
    """An error that is sent to the peer as a JSON-RPC error.

    Raise it in a handler to answer with your own error. Choose a `code` that is not between -32768 and -32000.

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
        self.request_id: int | str | None = None  # id for the error response; set if the message could not be decoded
        if code is not None:
            self.code = code


class ParseError(ProtocolError):
    """The bytes are not JSON, or the JSON exceeds a limit."""

    code: int = -32700


class InvalidRequest(ProtocolError):
    """The JSON is not a JSON-RPC request."""

    code: int = -32600


class MethodNotFound(ProtocolError):
    """The method does not exist, or belongs to a capability that the receiver did not declare."""

    code: int = -32601


class InvalidParams(ProtocolError):
    """The params are not valid for the method."""

    code: int = -32602


class ResourceNotFound(InvalidParams):
    """No resource has this URI."""

    def __init__(self, uri: str) -> None:
        super().__init__("Resource not found", data={"uri": uri})
        self.uri = uri


class InternalError(ProtocolError):
    """An error in Weft or in a handler. The details are in the log, not in the message."""

    code: int = -32603


class HeaderMismatch(ProtocolError):
    """An HTTP header is missing, malformed, or differs from the body."""

    code: int = -32020


class MissingCapability(ProtocolError):
    """The request needs a capability that the client did not declare."""

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
    """The request names a protocol version that the server does not speak."""

    code: int = -32022

    def __init__(self, *, requested: str, supported: list[str]) -> None:
        super().__init__("Unsupported protocol version", data={"supported": supported, "requested": requested})


class ToolError(WeftError):
    """A failure of a tool, with a message for the model. It is sent as a tool result with `isError`.

    >>> raise ToolError("There is no flight LX39; did you mean LX38?")
    Traceback (most recent call last):
    ...
    weft.errors.ToolError: There is no flight LX39; did you mean LX38?
    """


class QuestionFailed(ToolError):
    """A question of a handler (`ctx.elicit`, `ctx.sample`, `ctx.list_roots`) got no usable answer.

    If the client answered with an error, `code` is the code of this error. Otherwise `code` is None, for example if the
    answer was late, or was not valid for the question.
    """

    def __init__(self, message: str, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class NoBackChannelError(WeftError):
    """The server cannot send requests to this client.

    For example, the client has never opened the standalone stream of its session, or the session has ended.
    """

    def __init__(self, method: str) -> None:
        super().__init__(f"{method!r} cannot be sent: this peer has no channel for requests from the server.")


class RemoteError(WeftError):
    """The peer answered a request with an error, which has a `code`, a `message` and `data`.

    `not_found` is True if a requested resource does not exist. (Its error code depends on the protocol version.)

    If the server refused the HTTP request, `status` is the HTTP status, such as 429 (too many requests), and
    `retry_after` is the number of seconds after which the server lets the client try again. Otherwise both are None.

    >>> raise RemoteError(-32602, "Unknown tool: brew")
    Traceback (most recent call last):
    ...
    weft.errors.RemoteError: Unknown tool: brew (-32602)
    """

    status: int | None = None
    retry_after: float | None = None

    def __init__(self, code: int, message: str, data: Any = None, *, not_found: bool = False) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data
        self.not_found = not_found


class RequestTimeout(WeftError):
    """The peer did not answer a request in time. The peer may or may not have executed the request."""


class ConnectionFailed(WeftError):
    """The peer cannot be reached, does not speak MCP, or has closed the connection. The message says what was tried.

    If the server refused the HTTP request, `status` and `retry_after` are set as in `RemoteError`.
    """

    status: int | None = None
    retry_after: float | None = None

    # Whether the peer closed the connection without a response. The peer may have executed the request.
    is_unanswered = False


class InvalidAnswer(WeftError):
    """The peer's answer breaks the rules of the protocol, or does not match the schema that the peer published."""


class CannotAnswer(WeftError):
    """This client did not answer a question of the server, because it cannot, or because the user refused."""


class AuthorizationFailed(WeftError):
    """The server requires a login, and there was no login or the login failed.

    The message says what to do next. `tried` lists the steps of the login, in order. Message and `tried` never contain
    a token, a code or a secret.
    """

    def __init__(self, message: str, tried: Sequence[str] = ()) -> None:
        super().__init__(message if not tried else f"{message} Tried: {'; '.join(tried)}.")
        self.message = message
        self.tried = list(tried)


class VersionMismatch(WeftError):
    """Client and server have no protocol version in common. `ours` and `theirs` list the versions of each side."""

    def __init__(self, *, where: str, ours: Sequence[str], theirs: Sequence[str]) -> None:
        self.ours = list(ours)
        self.theirs = list(theirs)
        super().__init__(
            f"{where} speaks no protocol version that this client may use: it speaks "
            f"{', '.join(self.theirs) or 'none that it names'}, this client {', '.join(self.ours)}. Update the older "
            "side, or remove the options that fix the version here (`version=`, `eras=`)."
        )


class BackendUnavailable(WeftError):
    """The backend that the workers share cannot be reached, is full, or does not answer in time."""


class TaskEnded(WeftError):
    """The task has ended, was cancelled or has expired, so work for it is not needed any more."""


class UsageError(WeftError):
    """The program uses Weft in a wrong way. The message says where, why, and what to do."""


class RegistrationError(UsageError):
    """A tool, resource or prompt cannot be registered."""


class StartError(UsageError):
    """The server cannot be started with these options."""
