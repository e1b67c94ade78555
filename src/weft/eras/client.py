"""Answer a client's questions about both eras.

In the stateless era every request introduces itself: its `_meta` names the version, the client and its capabilities,
and over HTTP headers repeat parts of it. The client still sends `server/discover` first: the answer describes the
server, and a refusal shows which era the server speaks: three error codes exist in this era only. An error with another
code that names the supported versions is understood too, because drafts used other codes. Closing the stream of a
request cancels the request. A broken stream is not resumed: the request is lost, and is sent again under another id.

In the session era a handshake comes first: `initialize` with the newest version that this client may speak, the
server's choice, and `notifications/initialized`. The agreement holds until the connection ends. Over HTTP the server
may name a session. Its id is then sent with every HTTP request; an answer with status 404 shows that the session has
ended. A disconnect does not cancel a request: its stream can be resumed with `Last-Event-ID`. The server may send
requests to the client, on the stream of a request or on the standalone stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from weft.eras.base import NO_PARAMS, ListenPlan, RefusalVerdict, ServerHello
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

_STATELESS_VERSIONS = (STATELESS_2026_07_28.version,)

_OWN_CODES = frozenset({-32020, -32021, -32022})  # codes that no other era has

# The param that Mcp-Name repeats, by method; the last three methods are those of the tasks extension.
_NAMED_BY = {
    method.name: method.mirrored for method in METHODS.values() if method.mirrored is not None
} | dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


def named_versions(data: Any) -> list[str] | None:
    """Return the versions that the data of an error lists as supported; None if the data has no such list.

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
    """Return the name and version of a server; None if they are missing or malformed, because nothing needs them."""
    try:
        return msgspec.convert(value, Implementation)
    except msgspec.ValidationError:
        return None


class StatelessClient:
    """The stateless era for a client."""

    name = "stateless"
    methods = STATELESS_2026_07_28.methods
    confirmation: str | None = None
    answers_requests = False
    closing_cancels = True
    resumes = False
    mirrors_params = True
    keeps_stream = False
    greets_again = True

    def __init__(self, versions: Sequence[str] = _STATELESS_VERSIONS) -> None:
        self.versions = versions
        self.version = versions[0]

    def pinned(self, version: str) -> StatelessClient | None:
        """Return this era with one version."""
        return StatelessClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the `server/discover` request."""
        return "server/discover", {}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Read the answer to `server/discover`. The server's name is in `_meta`, or in `serverInfo` as in a draft."""
        try:
            found = msgspec.json.decode(result, type=DiscoverResult)
            named = (found.meta or {}).get(SERVER_INFO_KEY) or msgspec.json.decode(result, type=_Named).server_info
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to server/discover cannot be read: {error}.") from None
        return ServerHello(found.supported_versions, found.capabilities, _server_info(named), found.instructions)

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> StatelessClient | None:
        """Return the era with the versions that client and server have in common; None if there is no such version."""
        common = [version for version in self.versions if version in hello.versions]
        return StatelessClient(common) if common else None

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return two facts: whether `code` shows that the server speaks this era, and the versions in `data`."""
        return RefusalVerdict(code in _OWN_CODES, named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if the server does not speak this version any more, or refuses without a JSON-RPC error."""
        supported = named_versions(data)
        if supported is not None:
            return self.version not in supported
        return code is None and status in (400, 404, 405)

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True for -32602 and -32002.

        -32602 means wrong params, and the only param of `resources/read` is the URI. -32002 is the code of the session
        era.
        """
        return code in (-32602, -32002)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return None: in this era, the server asks by rounds, not with an error."""
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
        """Return the params with the version, the client and its capabilities in `_meta`."""
        if capabilities.roots is not None and capabilities.roots.list_changed is not None:
            capabilities = msgspec.structs.replace(capabilities, roots=RootsCapability())  # not in this era
        meta: dict[str, Any] = {
            PROTOCOL_VERSION_KEY: self.version,
            CLIENT_INFO_KEY: info,
            CLIENT_CAPABILITIES_KEY: capabilities,
        }
        if log_level is not None:
            meta[LOG_LEVEL_KEY] = log_level
        if "_meta" in params:
            meta = {**params["_meta"], **meta}
        return {**params, "_meta": meta}

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the headers that repeat the version, the method and the name from the body."""
        headers = {"MCP-Protocol-Version": self.version}
        if method is not None:
            headers["Mcp-Method"] = method
            named_by = _NAMED_BY.get(method)
            if named_by is not None and isinstance(name := params.get(named_by), str):
                headers["Mcp-Name"] = encode_value(name)
        return headers

    def farewell(self) -> dict[str, str] | None:
        """Return None: there is no session to end."""
        return None

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return None: every request contains its log level."""
        return None

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return a plan with one request, which stays open: `subscriptions/listen`."""
        return ListenPlan(stream=("subscriptions/listen", {"notifications": changes}))


class _Named(msgspec.Struct, rename="camel"):
    server_info: Any = None


_VERSIONS = tuple(SESSION_REVISIONS)

# The revisions in which a header names the version.
_WITH_HEADER = frozenset({SESSION_2025_11_25.version, SESSION_2025_06_18.version})

_SESSION_HEADER = "Mcp-Session-Id"

_PAGES_REQUIRED = -32042


class _InitializeResult(msgspec.Struct, rename="camel"):
    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Any = None
    instructions: str | None = None


class SessionClient:
    """The session era for a client. After the handshake, it has the agreed version and the session."""

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
        self._session = session
        self._headers: dict[str, str] = {}
        if is_agreed and self.version in _WITH_HEADER:  # the handshake itself has no such header
            self._headers["MCP-Protocol-Version"] = self.version
        if session is not None:
            self._headers[_SESSION_HEADER] = session

    def pinned(self, version: str) -> SessionClient | None:
        """Return this era with one version."""
        return SessionClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the `initialize` request."""
        return "initialize", {"protocolVersion": self.version, "capabilities": capabilities, "clientInfo": info}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Read the answer to `initialize`."""
        try:
            found = msgspec.json.decode(result, type=_InitializeResult)
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to initialize cannot be read: {error}.") from None
        info = _server_info(found.server_info)
        return ServerHello([found.protocol_version], found.capabilities, info, found.instructions)

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> SessionClient | None:
        """Return the era with the server's version and session; None if this client does not speak the version."""
        version = hello.versions[0]
        if version not in self.versions:
            return None
        session = headers.get(_SESSION_HEADER)
        if session is not None and not (session.isascii() and session.isprintable() and " " not in session):
            raise InvalidAnswer("The server's session id has characters that are not allowed in one.")
        return SessionClient((version,), is_agreed=True, session=session)

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return the versions that `data` names. No code shows that the server speaks this era."""
        return RefusalVerdict(is_ours=False, supported=named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if the session has ended: status 404."""
        return status == 404 and self._session is not None

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True for -32002, the code of this era, and for -32602 (wrong params), which some servers use."""
        return code in (-32002, -32602)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return the pages that the error -32042 lists; None for any other error."""
        if code != _PAGES_REQUIRED or not isinstance(data, dict):
            return None
        listed = cast("dict[str, Any]", data).get("elicitations")
        return cast("list[Any]", listed) if isinstance(listed, list) else None

    def stamp(self, method: str, params: Mapping[str, Any], **introduction: Any) -> Mapping[str, Any]:
        """Return the params unchanged: the handshake has introduced the client."""
        return params

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the headers that name the version and the session. They are sent with every HTTP request."""
        return dict(self._headers)

    def farewell(self) -> dict[str, str] | None:
        """Return the headers of the request that ends the session; None if there is no session."""
        return None if self._session is None else dict(self._headers)

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return the request that sets the level for the session."""
        return "logging/setLevel", {"level": level}

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return a plan with a request for each resource. Changes of lists are sent without a subscription."""
        uris = changes.resource_subscriptions or []
        return ListenPlan(
            begin=[("resources/subscribe", {"uri": uri}) for uri in uris],
            end=[("resources/unsubscribe", {"uri": uri}) for uri in uris],
        )
