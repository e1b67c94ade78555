"""The session era, from the client's side: revisions 2024-11-05 to 2025-11-25.

A handshake comes first: `initialize` with the newest version this client may speak, the server's choice, and
`notifications/initialized` (L11-01, L11-04). What was agreed on holds until the connection ends; over HTTP the server
may name a session, which then goes along with everything (L11-22), and is gone when a request is answered 404
(L11-25).

A disconnect means nothing here: a request goes on, and its stream can be taken up again by `Last-Event-ID` (L11-17). So
only `notifications/cancelled` cancels (L11-13). The server may send requests of its own, on the stream of a request or
on the standing one.
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
# In the others no header names the version (L03-04).
_WITH_HEADER = frozenset({SESSION_2025_11_25.version, SESSION_2025_06_18.version})
_SESSION_HEADER = "Mcp-Session-Id"
_PAGES_REQUIRED = -32042


class _InitializeResult(msgspec.Struct, rename="camel"):
    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Any = None
    instructions: str | None = None


class SessionClient:
    """The client's side of the era; after the handshake with its version and its session."""

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
        if is_agreed and self.version in _WITH_HEADER:  # L11-27: from now on, not on the handshake itself
            self._headers["MCP-Protocol-Version"] = self.version
        if session is not None:
            self._headers[_SESSION_HEADER] = session

    def pinned(self, version: str) -> SessionClient | None:
        """This era with one version."""
        return SessionClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """The handshake (L11-01)."""
        return "initialize", {"protocolVersion": self.version, "capabilities": capabilities, "clientInfo": info}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Read the server's part of it."""
        try:
            found = msgspec.json.decode(result, type=_InitializeResult)
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to initialize cannot be read: {error}.") from None
        try:
            info = msgspec.convert(found.server_info, Implementation)
        except msgspec.ValidationError:
            info = None
        return ServerHello([found.protocol_version], found.capabilities, info, found.instructions)

    def agreed(self, welcome: ServerHello, headers: Mapping[str, str]) -> SessionClient | None:
        """Take the server's choice, unless it is none of ours (L11-03); and the session, if it names one."""
        version = welcome.versions[0]
        if version not in self.versions:
            return None
        session = headers.get(_SESSION_HEADER)
        if session is not None and not (session.isascii() and session.isprintable() and " " not in session):
            raise InvalidAnswer("The server's session id has characters that none may have (L11-21).")
        return SessionClient((version,), is_agreed=True, session=session)

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """A server that cannot do it may name the versions that it can (COMPAT-03)."""
        return RefusalVerdict(is_ours=False, supported=named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """The session is gone, and with it all that was agreed on (L11-25)."""
        return status == 404 and self._session is not None

    def is_missing(self, code: int, data: Any) -> bool:
        """This era has a code of its own for it (L11-35); some servers use that of wrong params."""
        return code in (-32002, -32602)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """There is an error that lists them (L11-41)."""
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
        """Nothing is added to a request: the handshake has said it all."""
        return params

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """The version and the session go along with everything (L11-22, L11-27)."""
        return dict(self._headers)

    def farewell(self) -> dict[str, str] | None:
        """A session is ended by whom it was made for (L11-26)."""
        return None if self._session is None else dict(self._headers)

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """The level is set for the session (L11-33)."""
        return "logging/setLevel", {"level": level}

    def listen(self, wish: SubscriptionFilter) -> ListenPlan:
        """Lists tell of their changes unasked (L11-36); resources are subscribed to one by one (L11-34)."""
        uris = wish.resource_subscriptions or []
        return ListenPlan(
            begin=[("resources/subscribe", {"uri": uri}) for uri in uris],
            end=[("resources/unsubscribe", {"uri": uri}) for uri in uris],
        )
