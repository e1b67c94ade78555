"""Define what every request carries, the capabilities of both sides, discovery and the handshake.

What every request carries, whatever its method.

What a client and a server declare that they can do.

Discovery, the handshake, and the notifications that accompany any request.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from weft.types.base import (
    CacheScope,
    Implementation,
    JsonObject,
    LogLevel,
    NotificationParams,
    ProgressToken,
    RequestId,
    Result,
    Struct,
)

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"


class RequestMeta(Struct):
    """`params._meta` of a request, as far as the protocol gives its keys a meaning."""

    protocol_version: str | None = field(name=PROTOCOL_VERSION_KEY, default=None)
    client_capabilities: ClientCapabilities | None = field(name=CLIENT_CAPABILITIES_KEY, default=None)
    client_info: Implementation | None = field(name=CLIENT_INFO_KEY, default=None)
    log_level: LogLevel | None = field(name=LOG_LEVEL_KEY, default=None)
    progress_token: ProgressToken | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


class RequestParams(Struct, kw_only=True):
    """The params every request has."""

    meta: RequestMeta | None = field(name="_meta", default=None)


class InputParams(RequestParams, kw_only=True):
    """The params of a method that may be answered with questions (MRTR-02), and then is called again."""

    input_responses: dict[str, msgspec.Raw] | None = None
    request_state: str | None = None


class PaginatedParams(RequestParams, kw_only=True):
    """The params of a list method. Any string is a cursor, the empty one too (PAG-02)."""

    cursor: str | None = None


class RootsCapability(Struct):
    """The client can list its roots."""

    list_changed: bool | None = None


class SamplingCapability(Struct):
    """The client can sample; with tools, with context, if these are there."""

    context: JsonObject | None = None
    tools: JsonObject | None = None


class ElicitationCapability(Struct):
    """The client can ask its user; an empty object means by form only."""

    form: JsonObject | None = None
    url: JsonObject | None = None


class ClientCapabilities(Struct):
    """What a client declared."""

    experimental: dict[str, JsonObject] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: dict[str, JsonObject] | None = None


class ListChangedCapability(Struct):
    """A list that tells of its changes."""

    list_changed: bool | None = None


class ResourcesCapability(Struct):
    """Resources: whether one can subscribe to one, and whether the list tells of its changes."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class ServerCapabilities(Struct):
    """What a server declares."""

    experimental: dict[str, JsonObject] | None = None
    logging: JsonObject | None = None
    completions: JsonObject | None = None
    prompts: ListChangedCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ListChangedCapability | None = None
    extensions: dict[str, JsonObject] | None = None


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
