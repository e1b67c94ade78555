"""What every request carries, whatever its method."""

from __future__ import annotations

import msgspec
from msgspec import field

from weft.types.base import Implementation, LogLevel, ProgressToken, Struct
from weft.types.capabilities import ClientCapabilities

__all__ = [
    "CLIENT_CAPABILITIES_KEY",
    "CLIENT_INFO_KEY",
    "LOG_LEVEL_KEY",
    "PROTOCOL_VERSION_KEY",
    "InputParams",
    "PaginatedParams",
    "RequestMeta",
    "RequestParams",
]

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
