"""Public names of the client besides `weft.Client`: changes, questions, configurations, tasks, joined tools, caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.foreign import lazily

if TYPE_CHECKING:
    from weft.client.config import read_config
    from weft.client.connection.transport import PipeTransport, Transport
    from weft.client.handlers import CommandQuestion, ToolCall, command_question
    from weft.client.joining import JoinedTool, join_tools
    from weft.client.questions import FormQuestion, SampleQuestion, UrlQuestion, preferred_model
    from weft.client.requests.cache import CacheStore, MemoryCacheStore, ResponseCache
    from weft.client.requests.tasks import TaskHandle
    from weft.client.results import (
        CallDeclined,
        Change,
        PendingQuestions,
        PromptsChanged,
        ResourcesChanged,
        ResourceUpdated,
        StreamReopened,
        ToolsChanged,
    )
    from weft.types.tasks import TaskState

__all__ = [
    "CacheStore", "CallDeclined", "Change", "CommandQuestion", "FormQuestion", "JoinedTool", "MemoryCacheStore",
    "PendingQuestions", "PipeTransport", "PromptsChanged", "ResourceUpdated", "ResourcesChanged", "ResponseCache",
    "SampleQuestion", "StreamReopened", "TaskHandle", "TaskState", "ToolCall", "ToolsChanged", "Transport",
    "UrlQuestion", "command_question", "join_tools", "preferred_model", "read_config",
]  # fmt: skip

__getattr__ = lazily(
    __name__,
    {
        "weft.client.joining": ("JoinedTool", "join_tools"),
        "weft.client.config": ("read_config",),
        "weft.client.connection.transport": ("PipeTransport", "Transport"),
        "weft.client.handlers": ("CommandQuestion", "ToolCall", "command_question"),
        "weft.client.questions": ("FormQuestion", "SampleQuestion", "UrlQuestion", "preferred_model"),
        "weft.client.requests.cache": ("CacheStore", "MemoryCacheStore", "ResponseCache"),
        "weft.client.requests.tasks": ("TaskHandle",),
        "weft.client.results": (
            "CallDeclined", "Change", "PendingQuestions", "PromptsChanged", "ResourceUpdated", "ResourcesChanged",
            "StreamReopened", "ToolsChanged",
        ),
        "weft.types.tasks": ("TaskState",),
    },
)  # fmt: skip


def __dir__() -> list[str]:
    return __all__
