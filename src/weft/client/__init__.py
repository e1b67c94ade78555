"""The client: an agent points it at a server, of either era, and calls."""

from weft.client.results import (
    CallDeclined,
    Change,
    InputNeeded,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated,
    StreamReopened,
    ToolResult,
    ToolsChanged,
)

__all__ = [
    "CallDeclined",
    "Change",
    "InputNeeded",
    "PromptsChanged",
    "ResourceUpdated",
    "ResourcesChanged",
    "StreamReopened",
    "ToolResult",
    "ToolsChanged",
]
