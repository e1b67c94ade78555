"""Discovery, and the notifications that accompany any request."""

from __future__ import annotations

from typing import Any

from weft.types.base import CacheScope, LogLevel, NotificationParams, ProgressToken, RequestId, Result
from weft.types.capabilities import ServerCapabilities

__all__ = [
    "CancelledParams",
    "DiscoverResult",
    "LogMessageParams",
    "ProgressParams",
]


class DiscoverResult(Result, kw_only=True):
    """What a server is and can do."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


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
