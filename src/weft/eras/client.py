"""Implement both eras for a client.

In the stateless era the `_meta` of every request names the version, the client and its capabilities. Over HTTP, headers
repeat some of these values. The client still sends `server/discover` first. The result describes the server. An error
can show which era the server speaks, because three error codes exist in this era only. An error with another code is
understood too if it lists the supported versions, because drafts used other codes. Closing the stream of a request
cancels the request. A broken stream is not resumed: the request is lost, and is sent again under another id.

In the session era a handshake comes first: the client sends `initialize` with the newest version that it speaks, the
server answers with the version that it chose, and the client sends `notifications/initialized`. The agreement holds
until the connection ends. Over HTTP the server may start a session. The client then sends the session id with every
HTTP request; an answer with status 404 shows that the session has ended. A disconnect does not cancel a request: its
stream can be resumed with `Last-Event-ID`. The server may send requests to the client, on the stream of a request or on
the standalone stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from weft.eras.base import NO_PARAMS, ListenPlan, RefusalVerdict, ServerHello
from weft.eras.client_tasks import STATELESS_CLIENT_TASKS, ClientTasks, SessionClientTasks
from weft.errors import InvalidAnswer
from weft.protocol.headers import encode_value
from weft.protocol.revisions import (
    METHODS,
    SESSION_2025_06_18,
    SESSION_2025_11_25,
    SESSION_REVISIONS,
    STATELESS_2026_07_28,
)
from weft.types.base import SERVER_INFO_KEY, Implementation, LogLevel
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    PROTOCOL_VERSION_KEY,
    ClientCapabilities,
    DiscoverResult,
    RootsCapability,
    ServerCapabilities,
)
from weft.types.tasks import TASKS_EXTENSION

_STATELESS_VERSIONS = (STATELESS_2026_07_28.version,)

_OWN_CODES = frozenset({-32020, -32021, -32022})  # error codes that only the stateless era has

# By method: the param that the header Mcp-Name repeats. The last three methods belong to the tasks extension.
_NAMED_BY = {
    method.name: method.mirrored for method in METHODS.values() if method.mirrored is not None
} | dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


def named_versions(data: Any) -> list[str] | None:
    """Return the supported versions that the `data` of a JSON-RPC error lists; None if `data` has no such list.

    >>> named_versions({"supported": ["2026-07-28"], "requested": "1"})
    ['2026-07-28']
    """
    if not isinstance(data, dict):
        return None
    fields = cast("dict[str, Any]", data)
    named = fields.get("supported", fields.get("supportedVersions"))
    if not isinstance(named, list):
        return None
    return [version for version in cast("list[Any]", named)[:64] if isinstance(version, str)]


def _server_info(value: Any) -> Implementation | None:
    """Decode the name and version of a server; return None if they are missing or malformed."""
    try:
        return msgspec.convert(value, Implementation)
    except msgspec.ValidationError:
        return None


class StatelessClient:
    """The stateless era (protocol version 2026-07-28) for a client."""

    name = "stateless"
    methods = STATELESS_2026_07_28.methods
    confirmation: str | None = None
    answers_requests = False
    closing_cancels = True
    resumes = False
    mirrors_params = True
    keeps_stream = False
    greets_again = True
    tasks: ClientTasks = STATELESS_CLIENT_TASKS

    def __init__(self, versions: Sequence[str] = _STATELESS_VERSIONS) -> None:
        self.versions = versions
        self.version = versions[0]
        self._declared: tuple[ClientCapabilities, ClientCapabilities] | None = None  # as given, and as they are sent

    def pinned(self, version: str) -> StatelessClient | None:
        """Return an era object that has only this version; None if this era does not have the version."""
        return StatelessClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the method and params of the `server/discover` request."""
        return "server/discover", {}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Decode the result of `server/discover`. Raises InvalidAnswer if the result is malformed.

        The server's name is read from `_meta`, or from `serverInfo`, where a draft had it.
        """
        try:
            found = msgspec.json.decode(result, type=DiscoverResult)
            named = (found.meta or {}).get(SERVER_INFO_KEY) or msgspec.json.decode(result, type=_Named).server_info
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to server/discover cannot be read: {error}.") from None
        return ServerHello(found.supported_versions, found.capabilities, _server_info(named), found.instructions)

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> StatelessClient | None:
        """Return an era object with the versions that client and server have in common; None if there are none."""
        common = [version for version in self.versions if version in hello.versions]
        return StatelessClient(common) if common else None

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return whether `code` shows that the server speaks this era, and which supported versions `data` lists."""
        return RefusalVerdict(code in _OWN_CODES, named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if the server no longer supports this version.

        This is also assumed for status 400, 404 or 405 without a JSON-RPC error.
        """
        supported = named_versions(data)
        if supported is not None:
            return self.version not in supported
        return code is None and status in (400, 404, 405)

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True if the code is -32602 or -32002.

        -32602 (invalid params) is the code of this era, because the URI is the only param of `resources/read`. -32002
        is the code of the session era.
        """
        return code in (-32602, -32002)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return None: in this era, no error lists web pages for the user to visit."""
        return None

    def stamp(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        info: Implementation,
        capabilities: ClientCapabilities,
        log_level: LogLevel | None = None,
    ) -> dict[str, Any]:
        """Return the params with the version, the client's name and its capabilities in `_meta`."""
        if self._declared is None or self._declared[0] is not capabilities:
            self._declared = capabilities, _without_session_parts(capabilities)
        meta: dict[str, Any] = {
            PROTOCOL_VERSION_KEY: self.version,
            CLIENT_INFO_KEY: info,
            CLIENT_CAPABILITIES_KEY: self._declared[1],
        }
        if log_level is not None:
            meta[LOG_LEVEL_KEY] = log_level
        if "_meta" in params:
            meta = {**params["_meta"], **meta}
        return {**params, "_meta": meta}

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the HTTP headers that repeat the version, the method and the name (or URI) of the request body."""
        headers = {"MCP-Protocol-Version": self.version}
        if method is not None:
            headers["Mcp-Method"] = method
            named_by = _NAMED_BY.get(method)
            if named_by is not None and isinstance(name := params.get(named_by), str):
                headers["Mcp-Name"] = encode_value(name)
        return headers

    def farewell(self) -> dict[str, str] | None:
        """Return None: this era has no session to end."""
        return None

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return None: in this era, every request names its own log level."""
        return None

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return a plan with one request that stays open: `subscriptions/listen`."""
        return ListenPlan(stream=("subscriptions/listen", {"notifications": changes}))


def _without_session_parts(capabilities: ClientCapabilities) -> ClientCapabilities:
    """Return the capabilities without those that only the session era has."""
    roots = None if capabilities.roots is None else RootsCapability()
    return msgspec.structs.replace(capabilities, roots=roots, tasks=None)


class _Named(msgspec.Struct, rename="camel"):
    server_info: Any = None


_VERSIONS = tuple(SESSION_REVISIONS)

# The revisions in which the client sends the version in an HTTP header.
_WITH_HEADER = frozenset({SESSION_2025_11_25.version, SESSION_2025_06_18.version})

_SESSION_HEADER = "Mcp-Session-Id"

_PAGES_REQUIRED = -32042


class _InitializeResult(msgspec.Struct, rename="camel"):
    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Any = None
    instructions: str | None = None


class SessionClient:
    """The session era (protocol versions 2024-11-05 to 2025-11-25) for a client.

    The object that `agreed` returns has the agreed version and the session id.
    """

    name = "session"
    methods = SESSION_2025_11_25.methods
    confirmation: str | None = "notifications/initialized"
    answers_requests = True
    closing_cancels = False
    resumes = True
    mirrors_params = False
    keeps_stream = True
    greets_again = False

    def __init__(
        self, versions: Sequence[str] = _VERSIONS, *, is_agreed: bool = False, session: str | None = None
    ) -> None:
        self.versions = versions
        self.version = versions[0]
        self.tasks: ClientTasks = SessionClientTasks(exist=self.version == SESSION_2025_11_25.version)
        self._session = session
        self._headers: dict[str, str] = {}
        if is_agreed and self.version in _WITH_HEADER:  # the handshake itself has no such header
            self._headers["MCP-Protocol-Version"] = self.version
        if session is not None:
            self._headers[_SESSION_HEADER] = session

    def pinned(self, version: str) -> SessionClient | None:
        """Return an era object that has only this version; None if this era does not have the version."""
        return SessionClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the method and params of the `initialize` request."""
        extensions = {id: settings for id, settings in (capabilities.extensions or {}).items() if id != TASKS_EXTENSION}
        declared = msgspec.structs.replace(
            capabilities, extensions=extensions or None, tasks=capabilities.tasks if self.tasks.exist else None
        )
        return "initialize", {"protocolVersion": self.version, "capabilities": declared, "clientInfo": info}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Decode the result of `initialize`. Raises InvalidAnswer if the result is malformed."""
        try:
            found = msgspec.json.decode(result, type=_InitializeResult)
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to initialize cannot be read: {error}.") from None
        info = _server_info(found.server_info)
        return ServerHello([found.protocol_version], found.capabilities, info, found.instructions)

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> SessionClient | None:
        """Return an era object with the server's version and session id; None if the client does not speak the version.

        Raises InvalidAnswer if the session id has characters that are not allowed.
        """
        version = hello.versions[0]
        if version not in self.versions:
            return None
        session = headers.get(_SESSION_HEADER)
        if session is not None and not (session.isascii() and session.isprintable() and " " not in session):
            raise InvalidAnswer("The server's session id has characters that are not allowed in one.")
        return SessionClient((version,), is_agreed=True, session=session)

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return which supported versions `data` lists. `code` is ignored, because no code is specific to this era."""
        return RefusalVerdict(is_ours=False, supported=named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if there is a session and the status is 404, which means that the session has ended."""
        return status == 404 and self._session is not None

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True if the code is -32002, as this era defines, or -32602 (invalid params), as some servers send."""
        return code in (-32002, -32602)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return the web pages that the error -32042 lists for the user to visit; None for all other errors."""
        if code != _PAGES_REQUIRED or not isinstance(data, dict):
            return None
        listed = cast("dict[str, Any]", data).get("elicitations")
        return cast("list[Any]", listed) if isinstance(listed, list) else None

    def stamp(self, method: str, params: Mapping[str, Any], **introduction: Any) -> Mapping[str, Any]:
        """Return the params unchanged: the server knows the client from the handshake."""
        return params

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the HTTP headers for the version and the session id, which are the same for every request."""
        return dict(self._headers)

    def farewell(self) -> dict[str, str] | None:
        """Return the headers of the HTTP request that ends the session; None if there is no session."""
        return None if self._session is None else dict(self._headers)

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return the method and params of the request that sets the log level of the session."""
        return "logging/setLevel", {"level": level}

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return a plan with one request per resource. Servers report changes of lists without a subscription."""
        uris = changes.resource_subscriptions or []
        return ListenPlan(
            begin=[("resources/subscribe", {"uri": uri}) for uri in uris],
            end=[("resources/unsubscribe", {"uri": uri}) for uri in uris],
        )
