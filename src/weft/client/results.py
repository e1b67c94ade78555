"""What a client gets: the results of calls, and the changes it hears of.

Values only. They hold the protocol's own types, and are lenient where a server left something out that one can do
without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import UNSET, field

from weft.errors import WeftError
from weft.foreign import attribute_of
from weft.types.base import Result
from weft.types.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from weft.types.interaction import InputRequest, InputRequiredResult


class ToolResult(Result, kw_only=True):
    """What a tool answered.

    >>> ToolResult(content=[TextContent("12"), TextContent("apples")]).text
    '12\\napples'
    """

    content: list[ContentBlock] = field(default_factory=list[ContentBlock])
    structured_content: Any = UNSET
    is_error: bool = False

    @property
    def structured(self) -> Any:
        """The structured content, which may be any JSON value; None also where there is none."""
        return None if self.structured_content is UNSET else self.structured_content

    @property
    def text(self) -> str:
        """All text blocks, one below the other."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what is called otherwise elsewhere."""
            return attribute_of(self, name)

    def __str__(self) -> str:
        """The text, and in the place of what is no text a note of what it is."""
        return "\n".join(map(_shown, self.content))


def _shown(block: ContentBlock) -> str:
    """A block as people read it.

    >>> _shown(ImageContent("R0lGODlh", "image/gif"))
    '[image, image/gif, 6 bytes]'
    """
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            kind = "image" if isinstance(block, ImageContent) else "audio"
            return f"[{kind}, {block.mime_type}, {_size(block.data)} bytes]"
        case ResourceLink():
            return f"[link to {block.uri}, {block.title or block.name}]"
        case EmbeddedResource(resource=ResourceContents(text=str() as text)):
            return text
        case EmbeddedResource(resource=resource):
            kind = resource.mime_type or "application/octet-stream"
            return f"[resource {resource.uri}, {kind}, {_size(resource.blob or '')} bytes]"


def _size(data: str) -> int:
    """How many bytes some base64 stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")


class CallDeclined(WeftError):
    """A call was not made, for `confirm=` did not say yes to it. The server knows nothing of it."""


class InputNeeded(WeftError):
    """The server asks before it goes on, and the client was told to leave the answers to the caller.

    Call again with `answers`, by the same keys, and with `state`, unchanged.
    """

    def __init__(self, result: InputRequiredResult) -> None:
        requests = result.input_requests or {}
        named = ", ".join(f"{key!r} ({request.method})" for key, request in list(requests.items())[:10])
        super().__init__(f"The server needs answers first: {named or 'none; it only wants to be called again'}.")
        self.requests: dict[str, InputRequest] = requests
        self.state = result.request_state


class ToolsChanged(msgspec.Struct, frozen=True):
    """The list of tools is another one now."""


class PromptsChanged(msgspec.Struct, frozen=True):
    """The list of prompts is another one now."""


class ResourcesChanged(msgspec.Struct, frozen=True):
    """The list of resources is another one now."""


class ResourceUpdated(msgspec.Struct, frozen=True):
    """A resource, or one below it, has other contents now."""

    uri: str


class StreamReopened(msgspec.Struct, frozen=True):
    """The stream was lost and is there again: changes in between may have been missed."""


Change: TypeAlias = ToolsChanged | PromptsChanged | ResourcesChanged | ResourceUpdated | StreamReopened
