"""Tools: their definition, the call, the result."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, field

from weft.types.base import CacheScope, Icon, Meta, Result, Struct
from weft.types.content import ContentBlock
from weft.types.request import InputParams

__all__ = ["CallToolParams", "CallToolResult", "ListToolsResult", "Tool", "ToolAnnotations"]


class ToolAnnotations(Struct):
    """Hints about what a tool does; a client trusts them only as far as it trusts the server."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(Struct):
    """A tool as a client sees it."""

    name: str
    input_schema: dict[str, Any]
    title: str | None = None
    description: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """What to call it where people read (TOOL-21)."""
        return self.title or (self.annotations and self.annotations.title) or self.name


class ListToolsResult(Result, kw_only=True):
    """One page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class CallToolParams(InputParams, kw_only=True):
    """A call. `arguments` stays raw: the tool's own validator reads the bytes."""

    name: str
    arguments: msgspec.Raw | UnsetType = UNSET


class CallToolResult(Result, kw_only=True, omit_defaults=True):
    """What a tool answered. `structured_content` may be any JSON value, null included."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
