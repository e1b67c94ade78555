"""Weft: an SDK for the Model Context Protocol. A handler is written once and serves every client, on any worker.

>>> from weft import Server
>>> server = Server("adder", version="1.0")
>>> @server.tool
... def add(a: int, b: int) -> int:
...     return a + b
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.authorization import AuthorizationServer
    from weft.client.api.client import Client
    from weft.client.auth import BearerToken, ClientCredentials, EnterpriseManaged, OAuth, WorkloadIdentity
    from weft.errors import (
        AskFailed,
        AuthorizationFailed,
        ConnectionFailed,
        InvalidAnswer,
        InvalidParams,
        ProtocolError,
        QuestionFailed,
        RegistrationError,
        RemoteError,
        RequestTimeout,
        ResourceMissing,
        ResourceNotFound,
        ToolError,
        VersionMismatch,
        WeftError,
    )
    from weft.forms import EMAIL, Titles
    from weft.limits import ClientLimits, Limits
    from weft.server.api.context import Context, Middleware
    from weft.server.api.server import Server
    from weft.server.asking.asks import AcceptedElicitation, CancelledElicitation, DeclinedElicitation, Elicitation
    from weft.server.asking.questions import ask_form, ask_model, ask_roots, ask_url
    from weft.server.asking.rounds import InputRequired, UrlElicitationRequired
    from weft.server.auth import IntrospectionVerifier, JwtVerifier, ResourceServer, StaticTokens
    from weft.server.calls.connection import Connection, TokenInfo
    from weft.server.features.content import Audio, File, Image
    from weft.server.features.prompts import AssistantMessage, UserMessage
    from weft.server.features.registry import CacheHint
    from weft.server.runtime.dispatch import Extension, Next
    from weft.server.signature.signature import MirroredHeader
    from weft.types import (
        Annotations,
        AudioContent,
        CallToolResult,
        Completion,
        EmbeddedResource,
        GetPromptResult,
        Icon,
        ImageContent,
        PromptMessage,
        ReadResourceResult,
        ResourceContents,
        ResourceLink,
        TextContent,
        ToolAnnotations,
    )

__version__ = "0.1.0"

__all__ = [
    "EMAIL",
    "AcceptedElicitation",
    "Annotations",
    "AskFailed",
    "AssistantMessage",
    "Audio",
    "AudioContent",
    "AuthorizationFailed",
    "AuthorizationServer",
    "BearerToken",
    "CacheHint",
    "CallToolResult",
    "CancelledElicitation",
    "Client",
    "ClientCredentials",
    "ClientLimits",
    "Completion",
    "Connection",
    "ConnectionFailed",
    "Context",
    "DeclinedElicitation",
    "Elicitation",
    "EmbeddedResource",
    "EnterpriseManaged",
    "Extension",
    "File",
    "GetPromptResult",
    "Icon",
    "Image",
    "ImageContent",
    "InputRequired",
    "IntrospectionVerifier",
    "InvalidAnswer",
    "InvalidParams",
    "JwtVerifier",
    "Limits",
    "Middleware",
    "MirroredHeader",
    "Next",
    "OAuth",
    "PromptMessage",
    "ProtocolError",
    "QuestionFailed",
    "ReadResourceResult",
    "RegistrationError",
    "RemoteError",
    "RequestTimeout",
    "ResourceContents",
    "ResourceLink",
    "ResourceMissing",
    "ResourceNotFound",
    "ResourceServer",
    "Server",
    "StaticTokens",
    "TextContent",
    "Titles",
    "TokenInfo",
    "ToolAnnotations",
    "ToolError",
    "UrlElicitationRequired",
    "UserMessage",
    "VersionMismatch",
    "WeftError",
    "WorkloadIdentity",
    "__version__",
    "ask_form",
    "ask_model",
    "ask_roots",
    "ask_url",
]

# Where each public name lives. Importing `weft` is nearly free; a name is imported when it is first used.
_HOMES = {
    "weft.client.auth": ("BearerToken", "ClientCredentials", "EnterpriseManaged", "OAuth", "WorkloadIdentity"),
    "weft.client.api.client": ("Client",),
    "weft.errors": (
        "AskFailed",
        "AuthorizationFailed",
        "ConnectionFailed",
        "InvalidAnswer",
        "InvalidParams",
        "ProtocolError",
        "QuestionFailed",
        "RegistrationError",
        "RemoteError",
        "RequestTimeout",
        "ResourceMissing",
        "ResourceNotFound",
        "ToolError",
        "VersionMismatch",
        "WeftError",
    ),
    "weft.limits": ("ClientLimits", "Limits"),
    "weft.server.api.server": ("Server",),
    "weft.forms": ("EMAIL", "Titles"),
    "weft.server.asking.asks": (
        "AcceptedElicitation",
        "CancelledElicitation",
        "DeclinedElicitation",
        "Elicitation",
    ),
    "weft.server.asking.questions": ("ask_form", "ask_model", "ask_roots", "ask_url"),
    "weft.server.auth": ("IntrospectionVerifier", "JwtVerifier", "ResourceServer", "StaticTokens"),
    "weft.authorization": ("AuthorizationServer",),
    "weft.server.calls.connection": ("Connection", "TokenInfo"),
    "weft.server.features.content": ("Audio", "File", "Image"),
    "weft.server.api.context": ("Context", "Middleware"),
    "weft.server.runtime.dispatch": ("Extension", "Next"),
    "weft.server.features.registry": ("CacheHint",),
    "weft.server.features.prompts": ("AssistantMessage", "UserMessage"),
    "weft.server.asking.rounds": ("InputRequired", "UrlElicitationRequired"),
    "weft.server.signature.signature": ("MirroredHeader",),
    "weft.types": (
        "Annotations",
        "AudioContent",
        "CallToolResult",
        "Completion",
        "EmbeddedResource",
        "GetPromptResult",
        "Icon",
        "ImageContent",
        "PromptMessage",
        "ReadResourceResult",
        "ResourceContents",
        "ResourceLink",
        "TextContent",
        "ToolAnnotations",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    home = _HOME_OF.get(name)
    if home is None:
        raise import_module("weft.foreign").no_such_name(name)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
