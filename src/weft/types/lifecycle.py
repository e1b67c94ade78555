"""Define the params of all requests, capabilities, discovery, the handshake, and progress, log and cancel messages."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import field

from weft.types.base import (
    CacheableResult,
    Implementation,
    JsonObject,
    LogLevel,
    NotificationParams,
    ProgressToken,
    RequestId,
    Result,
    Struct,
)

__all__ = [
    "CancelledParams", "ClientCapabilities", "ClientTaskRequests", "ClientTasksCapability", "DiscoverResult",
    "ElicitationCapability", "ElicitationTaskRequests", "InitializeParams", "InitializeResult", "InputParams",
    "ListChangedCapability", "LogMessageParams", "PaginatedParams", "ProgressParams", "RequestMeta", "RequestParams",
    "ResourcesCapability", "RootsCapability", "SamplingCapability", "SamplingTaskRequests", "ServerCapabilities",
    "ServerTaskRequests", "ServerTasksCapability", "SetLevelParams", "ToolTaskRequests",
]  # fmt: skip

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"


class RequestMeta(Struct):
    """The keys of a request's `params._meta` that the protocol defines."""

    protocol_version: str | None = field(name=PROTOCOL_VERSION_KEY, default=None)
    client_capabilities: ClientCapabilities | None = field(name=CLIENT_CAPABILITIES_KEY, default=None)
    client_info: Implementation | None = field(name=CLIENT_INFO_KEY, default=None)
    log_level: LogLevel | None = field(name=LOG_LEVEL_KEY, default=None)
    progress_token: ProgressToken | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None


class RequestParams(Struct, kw_only=True):
    """The base class of the params of all requests."""

    meta: RequestMeta | None = field(name="_meta", default=None)


class InputParams(RequestParams, kw_only=True):
    """The params of a method whose result may contain questions to the client.

    The client repeats the call with its answers in `input_responses`, and with the `request_state` of the result.
    """

    input_responses: dict[str, msgspec.Raw] | None = None
    request_state: str | None = None


class PaginatedParams(RequestParams, kw_only=True):
    """The params of a list method. A cursor can be any string, even an empty one."""

    cursor: str | None = None


class RootsCapability(Struct):
    """The client can list its roots. If `list_changed` is true, it notifies the server when its roots change."""

    list_changed: bool | None = None


class SamplingCapability(Struct):
    """The client can pass sampling requests to a model.

    Requests may use `include_context` only if `context` is set, and `tools` only if `tools` is set.
    """

    context: JsonObject | None = None
    tools: JsonObject | None = None


class ElicitationCapability(Struct):
    """The client can ask its user with a form, or with a web page (`url`). If neither is set, it supports forms."""

    form: JsonObject | None = None
    url: JsonObject | None = None


class SamplingTaskRequests(Struct):
    """The sampling requests that can be tasks of the client. Only in revision 2025-11-25."""

    create_message: JsonObject | None = None


class ElicitationTaskRequests(Struct):
    """The elicitation requests that can be tasks of the client. Only in revision 2025-11-25."""

    create: JsonObject | None = None


class ClientTaskRequests(Struct):
    """The requests of a server that can be tasks of the client. Only in revision 2025-11-25."""

    sampling: SamplingTaskRequests | None = None
    elicitation: ElicitationTaskRequests | None = None


class ClientTasksCapability(Struct):
    """The client can serve requests as tasks, list them and cancel them. Only in revision 2025-11-25."""

    list: JsonObject | None = None
    cancel: JsonObject | None = None
    requests: ClientTaskRequests | None = None


class ClientCapabilities(Struct):
    """The capabilities of a client."""

    experimental: dict[str, JsonObject] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: dict[str, JsonObject] | None = None
    tasks: ClientTasksCapability | None = None


class ListChangedCapability(Struct):
    """The server has tools or prompts. If `list_changed` is true, it notifies clients when their list changes."""

    list_changed: bool | None = None


class ResourcesCapability(Struct):
    """The server has resources.

    If `subscribe` is true, clients can subscribe to changes of a resource. If `list_changed` is true, the server
    notifies clients when the list of resources changes.
    """

    subscribe: bool | None = None
    list_changed: bool | None = None


class ToolTaskRequests(Struct):
    """The tool requests that can be tasks of the server. Only in revision 2025-11-25."""

    call: JsonObject | None = None


class ServerTaskRequests(Struct):
    """The requests of a client that can be tasks of the server. Only in revision 2025-11-25."""

    tools: ToolTaskRequests | None = None


class ServerTasksCapability(Struct):
    """The server can serve requests as tasks, list them and cancel them. Only in revision 2025-11-25."""

    list: JsonObject | None = None
    cancel: JsonObject | None = None
    requests: ServerTaskRequests | None = None


class ServerCapabilities(Struct):
    """The capabilities of a server."""

    experimental: dict[str, JsonObject] | None = None
    logging: JsonObject | None = None
    completions: JsonObject | None = None
    prompts: ListChangedCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ListChangedCapability | None = None
    extensions: dict[str, JsonObject] | None = None
    tasks: ServerTasksCapability | None = None


class DiscoverResult(CacheableResult, kw_only=True):
    """The result of `server/discover`: the versions and capabilities of the server, and its instructions."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None


class InitializeParams(RequestParams, kw_only=True):
    """The params of `initialize`, the request of the handshake: the client's version, capabilities and name."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    """The result of `initialize`: the chosen protocol version, and the server's capabilities and name."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class SetLevelParams(RequestParams, kw_only=True):
    """The params of `logging/setLevel`: the lowest level of log messages that the client wants."""

    level: LogLevel


class CancelledParams(NotificationParams, kw_only=True):
    """The params of `notifications/cancelled`: the id of the cancelled request, and the reason."""

    request_id: RequestId
    reason: str | None = None


class ProgressParams(NotificationParams, kw_only=True):
    """The params of `notifications/progress`: the progress of one request."""

    progress_token: ProgressToken
    progress: float | int
    total: float | int | None = None
    message: str | None = None


class LogMessageParams(NotificationParams, kw_only=True):
    """The params of `notifications/message`: one log message for the client."""

    level: LogLevel
    data: Any
    logger: str | None = None
