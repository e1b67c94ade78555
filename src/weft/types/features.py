"""Describe content, tools, resources and prompts on the wire."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType, field

from weft.errors import InvalidParams
from weft.types.base import (
    Annotations,
    CacheableResult,
    Icon,
    Meta,
    NotificationParams,
    PageResult,
    Result,
    Role,
    Struct,
)
from weft.types.lifecycle import InputParams, RequestParams

__all__ = [
    "AudioContent", "CallToolParams", "CallToolResult", "CompleteArgument", "CompleteContext", "CompleteParams",
    "CompleteResult", "Completion", "EmbeddedResource", "GetPromptParams", "GetPromptResult", "ImageContent",
    "ListPromptsResult", "ListResourceTemplatesResult", "ListResourcesResult", "ListToolsResult", "Prompt",
    "PromptArgument", "PromptMessage", "PromptReference", "ReadResourceParams", "ReadResourceResult", "Resource",
    "ResourceContents", "ResourceLink", "ResourceTemplate", "ResourceTemplateReference", "ResourceUpdatedParams",
    "SubscribeParams", "TextContent", "Tool", "ToolAnnotations",
]  # fmt: skip


class TextContent(Struct, tag="text", tag_field="type"):
    """A piece of text."""

    text: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ImageContent(Struct, tag="image", tag_field="type"):
    """An image; `data` is base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class AudioContent(Struct, tag="audio", tag_field="type"):
    """A sound; `data` is base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class Resource(Struct):
    """A resource as a client sees it."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """Return the name to show to people."""
        return self.title or self.name


class ResourceLink(Resource, tag="resource_link", tag_field="type"):
    """A pointer to a resource that can be read."""


class ResourceContents(Struct):
    """The contents of a resource: `text`, or `blob` in base64; never both."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class EmbeddedResource(Struct, tag="resource", tag_field="type"):
    """A resource that is contained in a message."""

    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


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


class ListToolsResult(PageResult, kw_only=True):
    """One page of tools."""

    tools: list[Tool]


class CallToolParams(InputParams, kw_only=True, dict=True):
    """The params of a tool call. `arguments` are decoded only if they are read; tools validate `raw_arguments`."""

    name: str
    raw_arguments: msgspec.Raw | UnsetType = field(name="arguments", default=UNSET)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the decoded arguments. Middleware may change them; then the tool validates the changed ones."""
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
        """Discard all changes of the arguments, so that they are again as the client sent them."""
        cast("dict[str, Any]", self.__dict__).pop("arguments", None)


class CallToolResult(Result, kw_only=True, omit_defaults=True):
    """The result of a tool call. `structured_content` may be any JSON value, even null."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False


class ResourceTemplate(Struct):
    """A family of resources whose URIs match a template (RFC 6570)."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """Return the name to show to people."""
        return self.title or self.name


class ListResourcesResult(PageResult, kw_only=True):
    """One page of resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PageResult, kw_only=True):
    """One page of resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputParams, kw_only=True):
    """A request to read a resource."""

    uri: str


class ReadResourceResult(CacheableResult, kw_only=True):
    """The contents of a resource that was read."""

    contents: list[ResourceContents]


class ResourceUpdatedParams(NotificationParams, kw_only=True):
    """The URI of a resource that changed."""

    uri: str


class SubscribeParams(RequestParams, kw_only=True):
    """The resource that a session subscribes to, or unsubscribes from."""

    uri: str


class PromptArgument(Struct):
    """One argument of a prompt; its value is a string."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(Struct):
    """A prompt as a client sees it."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """Return the name to show to people."""
        return self.title or self.name


class PromptMessage(Struct):
    """One message of a prompt."""

    role: Role
    content: ContentBlock


class ListPromptsResult(PageResult, kw_only=True):
    """One page of prompts."""

    prompts: list[Prompt]


class GetPromptParams(InputParams, kw_only=True):
    """A request for a prompt with these arguments."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """The messages of a prompt, with the arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None


class PromptReference(Struct, tag="ref/prompt", tag_field="type"):
    """A reference to a prompt."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Struct, tag="ref/resource", tag_field="type"):
    """A reference to a resource template."""

    uri: str


class CompleteArgument(Struct):
    """The argument that the user is typing, and its text so far."""

    name: str
    value: str


class CompleteContext(Struct):
    """The arguments that the user has already filled in."""

    arguments: dict[str, str] | None = None


class CompleteParams(RequestParams, kw_only=True):
    """A request for suggestions for the value of an argument."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompleteArgument
    context: CompleteContext | None = None


class Completion(Struct):
    """At most 100 suggestions, the best first."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    """The suggestions for an argument."""

    completion: Completion
