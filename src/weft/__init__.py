"""Weft: an SDK for the Model Context Protocol. A handler is written once and serves every client, on any worker.

>>> from weft import Server
>>> server = Server("adder", version="1.0")
>>> @server.tool
... def add(a: int, b: int) -> int:
...     return a + b

Further names are in `weft.types` (the types of the protocol), `weft.auth`, `weft.forms`, `weft.middleware`,
`weft.client`, `weft.errors` and `weft.sync`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.foreign import lazily

if TYPE_CHECKING:
    from weft.backends import Backend
    from weft.backends.memory import MemoryBackend
    from weft.client.client import Client
    from weft.client.config import Asgi, Command, Http
    from weft.client.results import ToolCallFailed, ToolResult
    from weft.errors import (
        AuthorizationFailed,
        CannotAnswer,
        ConnectionFailed,
        InvalidAnswer,
        InvalidParams,
        ProtocolError,
        QuestionFailed,
        RegistrationError,
        RemoteError,
        RequestTimeout,
        ResourceNotFound,
        TaskEnded,
        ToolError,
        UsageError,
        VersionMismatch,
        WeftError,
    )
    from weft.limits import ClientLimits, Limits
    from weft.server.api.context import Context
    from weft.server.api.server import Server
    from weft.server.asking.asks import AcceptedElicitation, CancelledElicitation, DeclinedElicitation, Elicitation
    from weft.server.asking.questions import ask_form, ask_model, ask_roots, ask_url
    from weft.server.asking.rounds import InputRequired, UrlElicitationRequired
    from weft.server.calls.connection import Connection
    from weft.server.features.content import Audio, File, Image
    from weft.server.features.prompts import AssistantMessage, UserMessage
    from weft.server.features.registry import CacheHint
    from weft.server.features.tools import Task
    from weft.server.runtime.dispatch import Extension
    from weft.server.signature.signature import MirroredHeader
    from weft.server.tasks.store import TaskStore

__version__ = "0.1.0"

__all__ = [
    "AcceptedElicitation", "Asgi", "AssistantMessage", "Audio", "AuthorizationFailed", "Backend", "CacheHint",
    "CancelledElicitation", "CannotAnswer", "Client", "ClientLimits", "Command", "Connection", "ConnectionFailed",
    "Context", "DeclinedElicitation", "Elicitation", "Extension", "File", "Http", "Image", "InputRequired",
    "InvalidAnswer", "InvalidParams", "Limits", "MemoryBackend", "MirroredHeader", "ProtocolError", "QuestionFailed",
    "RegistrationError", "RemoteError", "RequestTimeout", "ResourceNotFound", "Server", "Task", "TaskEnded",
    "TaskStore", "ToolCallFailed", "ToolError", "ToolResult", "UrlElicitationRequired", "UsageError", "UserMessage",
    "VersionMismatch", "WeftError", "__version__", "ask_form", "ask_model", "ask_roots", "ask_url",
]  # fmt: skip

# The module of each public name. A name is imported when it is first used, so that `import weft` is fast.
__getattr__ = lazily(
    __name__,
    {
        "weft.backends": ("Backend",),
        "weft.backends.memory": ("MemoryBackend",),
        "weft.client.client": ("Client",),
        "weft.client.config": ("Asgi", "Command", "Http"),
        "weft.client.results": ("ToolCallFailed", "ToolResult"),
        "weft.errors": (
            "AuthorizationFailed", "CannotAnswer", "ConnectionFailed", "InvalidAnswer", "InvalidParams",
            "ProtocolError", "QuestionFailed", "RegistrationError", "RemoteError", "RequestTimeout",
            "ResourceNotFound", "TaskEnded", "ToolError", "UsageError", "VersionMismatch", "WeftError",
        ),
        "weft.limits": ("ClientLimits", "Limits"),
        "weft.server.api.context": ("Context",),
        "weft.server.api.server": ("Server",),
        "weft.server.asking.asks": (
            "AcceptedElicitation", "CancelledElicitation", "DeclinedElicitation", "Elicitation",
        ),
        "weft.server.asking.questions": ("ask_form", "ask_model", "ask_roots", "ask_url"),
        "weft.server.asking.rounds": ("InputRequired", "UrlElicitationRequired"),
        "weft.server.calls.connection": ("Connection",),
        "weft.server.features.content": ("Audio", "File", "Image"),
        "weft.server.features.prompts": ("AssistantMessage", "UserMessage"),
        "weft.server.features.registry": ("CacheHint",),
        "weft.server.features.tools": ("Task",),
        "weft.server.runtime.dispatch": ("Extension",),
        "weft.server.signature.signature": ("MirroredHeader",),
        "weft.server.tasks.store": ("TaskStore",),
    },
)  # fmt: skip


def __dir__() -> list[str]:
    return __all__
