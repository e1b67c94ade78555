"""Tools: their definition, the call, the result."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType, field

from weft.errors import InvalidParams
from weft.types.base import CacheScope, Icon, Meta, Result, Struct
from weft.types.content import ContentBlock
from weft.types.lifecycle import InputParams


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


class CallToolParams(InputParams, kw_only=True, dict=True):
    """A call. Its arguments stay raw until `arguments` is read or set: the tool's own validator reads the bytes."""

    name: str
    raw_arguments: msgspec.Raw | UnsetType = field(name="arguments", default=UNSET)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments, decoded. What is changed in them, or assigned, is what the tool gets, validated."""
        if self.raw_arguments is UNSET:
            return {}
        try:
            value: Any = msgspec.json.decode(self.raw_arguments)
        except msgspec.DecodeError:  # a number that no float can hold
            raise InvalidParams("Invalid params: a number in `arguments` is too large.") from None
        if not isinstance(value, dict):
            raise InvalidParams("Invalid params: `arguments` must be an object.")  # TOOL-14
        return cast("dict[str, Any]", value)

    def forget_arguments(self) -> None:
        """Go back to what the client sent, whatever was changed."""
        cast("dict[str, Any]", self.__dict__).pop("arguments", None)


class CallToolResult(Result, kw_only=True, omit_defaults=True):
    """What a tool answered. `structured_content` may be any JSON value, null included."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
