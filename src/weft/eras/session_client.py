"""Answer a client's questions about the session era: revisions 2024-11-05 to 2025-11-25.

A handshake comes first: `initialize` with the newest version that this client may speak, the server's choice, and
`notifications/initialized`. The agreement holds until the connection ends. Over HTTP the server may name a session,
whose id is then sent with everything; a request that is answered with 404 shows that the session is gone.

A disconnect does not cancel a request: its stream can be resumed with `Last-Event-ID`. Only `notifications/cancelled`
cancels. The server may send requests to the client, on the stream of a request or on the standalone one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from weft.eras.base import NO_PARAMS, ListenPlan, RefusalVerdict, ServerHello
from weft.eras.stateless_client import named_versions
from weft.errors import InvalidAnswer
from weft.protocol.revisions import SESSION_2024_11_05, SESSION_2025_03_26, SESSION_2025_06_18, SESSION_2025_11_25
from weft.types.base import Implementation, LogLevel
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ClientCapabilities, ServerCapabilities

_REVISIONS = (SESSION_2025_11_25, SESSION_2025_06_18, SESSION_2025_03_26, SESSION_2024_11_05)
_VERSIONS = tuple(revision.version for revision in _REVISIONS)
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
    """The session era for a client; after the handshake, with its version and its session."""

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
        try:
            info = msgspec.convert(found.server_info, Implementation)
        except msgspec.ValidationError:
            info = None
        return ServerHello([found.protocol_version], found.capabilities, info, found.instructions)

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> SessionClient | None:
        """Return the era with the server's version and session; None if this client does not have that version."""
        version = hello.versions[0]
        if version not in self.versions:
            return None
        session = headers.get(_SESSION_HEADER)
        if session is not None and not (session.isascii() and session.isprintable() and " " not in session):
            raise InvalidAnswer("The server's session id has characters that are not allowed in one.")
        return SessionClient((version,), is_agreed=True, session=session)

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return the versions that the error names; no code is this era's alone."""
        return RefusalVerdict(is_ours=False, supported=named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if the session is gone, and the agreement with it."""
        return status == 404 and self._session is not None

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True for this era's own code, and for that of wrong params, which some servers use."""
        return code in (-32002, -32602)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return the pages that the error -32042 lists."""
        if code != _PAGES_REQUIRED or not isinstance(data, dict):
            return None
        listed = cast("dict[str, Any]", data).get("elicitations")
        return cast("list[Any]", listed) if isinstance(listed, list) else None

    def stamp(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        info: Implementation,
        capabilities: ClientCapabilities,
        log_level: LogLevel | None = None,
    ) -> Mapping[str, Any]:
        """Return the params unchanged: the handshake has introduced the client."""
        return params

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the version and the session, which are sent with everything."""
        return dict(self._headers)

    def farewell(self) -> dict[str, str] | None:
        """Return the headers that end the session; None without a session."""
        return None if self._session is None else dict(self._headers)

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return the request that sets the level for the session."""
        return "logging/setLevel", {"level": level}

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return a request for each resource; changes of lists are sent without a subscription."""
        uris = changes.resource_subscriptions or []
        return ListenPlan(
            begin=[("resources/subscribe", {"uri": uri}) for uri in uris],
            end=[("resources/unsubscribe", {"uri": uri}) for uri in uris],
        )
