"""Discovery, the handshake, and the notifications that accompany any request."""

from __future__ import annotations

from typing import Any

from weft.types.base import CacheScope, Implementation, LogLevel, NotificationParams, ProgressToken, RequestId, Result
from weft.types.capabilities import ClientCapabilities, ServerCapabilities
from weft.types.request import RequestParams

__all__ = [
    "CancelledParams",
    "DiscoverResult",
    "InitializeParams",
    "InitializeResult",
    "LogMessageParams",
    "ProgressParams",
    "SetLevelParams",
]


class DiscoverResult(Result, kw_only=True):
    """What a server is and can do."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class InitializeParams(RequestParams, kw_only=True):
    """What a client says of itself in the handshake."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    """What a server says of itself in the handshake, and the version it settles on."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class SetLevelParams(RequestParams, kw_only=True):
    """From which level on log messages are wanted."""

    level: LogLevel


class CancelledParams(NotificationParams, kw_only=True):
    """Which request is given up, and why."""

    request_id: RequestId
    reason: str | None = None


class ProgressParams(NotificationParams, kw_only=True):
    """How far a request has come."""

    progress_token: ProgressToken
    progress: float | int
    total: float | int | None = None
    message: str | None = None


class LogMessageParams(NotificationParams, kw_only=True):
    """One log message."""

    level: LogLevel
    data: Any
    logger: str | None = None
