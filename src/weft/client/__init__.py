"""The client: an agent points it at a server, of either era, and calls."""

from weft.client.results import (
    CallDeclined,
    Change,
    PendingQuestions,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated,
    StreamReopened,
    ToolCallFailed,
    ToolResult,
    ToolsChanged,
)

__all__ = [
    "CallDeclined",
    "Change",
    "PendingQuestions",
    "PromptsChanged",
    "ResourceUpdated",
    "ResourcesChanged",
    "StreamReopened",
    "ToolCallFailed",
    "ToolResult",
    "ToolsChanged",
]
