"""Define tools, their calls and their results."""

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
    """Hints about what a tool does; a client trusts them only if it trusts the server."""

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
        """Return the name to show to people."""
        return self.title or (self.annotations and self.annotations.title) or self.name


class ListToolsResult(Result, kw_only=True):
    """One page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class CallToolParams(InputParams, kw_only=True, dict=True):
    """A call of a tool. The tool's validator reads the raw arguments; `arguments` decodes them when first read."""

    name: str
    raw_arguments: msgspec.Raw | UnsetType = field(name="arguments", default=UNSET)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the decoded arguments. The tool gets them validated, with all changes made here."""
        if self.raw_arguments is UNSET:
            return {}
        try:
            value: Any = msgspec.json.decode(self.raw_arguments)
        except msgspec.DecodeError:  # a number that no float can hold
            raise InvalidParams("Invalid params: a number in `arguments` is too large.") from None
        if not isinstance(value, dict):
            raise InvalidParams("Invalid params: `arguments` must be an object.")
        return cast("dict[str, Any]", value)

    def forget_arguments(self) -> None:
        """Discard changes: return to the arguments that the client sent."""
        cast("dict[str, Any]", self.__dict__).pop("arguments", None)


class CallToolResult(Result, kw_only=True, omit_defaults=True):
    """The result of a tool. `structured_content` may be any JSON value, also null."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
