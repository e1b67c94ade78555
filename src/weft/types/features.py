"""Define the message types for content, tools, resources, prompts and completions."""

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
from weft.types.tasks import ToolExecution

__all__ = [
    "AudioContent", "CallToolParams", "CallToolResult", "CompleteArgument", "CompleteContext", "CompleteParams",
    "CompleteResult", "Completion", "EmbeddedResource", "GetPromptParams", "GetPromptResult", "ImageContent",
    "ListPromptsResult", "ListResourceTemplatesResult", "ListResourcesResult", "ListToolsResult", "Prompt",
    "PromptArgument", "PromptMessage", "PromptReference", "ReadResourceParams", "ReadResourceResult", "Resource",
    "ResourceContents", "ResourceLink", "ResourceTemplate", "ResourceTemplateReference", "ResourceUpdatedParams",
    "SubscribeParams", "TextContent", "Tool", "ToolAnnotations",
]  # fmt: skip


class TextContent(Struct, tag="text", tag_field="type"):
    """Text, as content of a message."""

    text: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ImageContent(Struct, tag="image", tag_field="type"):
    """An image. `data` is encoded in base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class AudioContent(Struct, tag="audio", tag_field="type"):
    """An audio recording. `data` is encoded in base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class Resource(Struct):
    """The description of a resource, without its contents."""

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
        """Return the name to show to users: the title, or the name if there is no title."""
        return self.title or self.name


class ResourceLink(Resource, tag="resource_link", tag_field="type"):
    """A link to a resource, as content of a message. The client can read the resource by its URI."""


class ResourceContents(Struct):
    """The contents of a resource: either `text`, or binary data in `blob`, encoded in base64."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class EmbeddedResource(Struct, tag="resource", tag_field="type"):
    """The contents of a resource, as content of a message."""

    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


class ToolAnnotations(Struct):
    """Hints about what a tool does. A client should not rely on hints from a server that it does not trust."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(Struct):
    """The description of a tool that a server sends to clients."""

    name: str
    input_schema: dict[str, Any]
    title: str | None = None
    description: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)
    execution: ToolExecution | None = None  # only in revision 2025-11-25

    @property
    def display_name(self) -> str:
        """Return the name to show to users: the title, the title in `annotations`, or the name."""
        return self.title or (self.annotations and self.annotations.title) or self.name


class ListToolsResult(PageResult, kw_only=True):
    """The result of `tools/list`: one page of tools."""

    tools: list[Tool]


class CallToolParams(InputParams, kw_only=True, dict=True):
    """The params of `tools/call`.

    `raw_arguments` is the JSON text of the arguments, which the tool validates. `arguments` decodes it on first access.
    """

    name: str
    raw_arguments: msgspec.Raw | UnsetType = field(name="arguments", default=UNSET)
    task: msgspec.Raw | UnsetType = UNSET  # only in revision 2025-11-25: the client wants a task

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the decoded arguments. If middleware changes this dict, the tool validates the changed arguments."""
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
        """Discard all changes that middleware made to `arguments`, and restore what the client sent."""
        cast("dict[str, Any]", self.__dict__).pop("arguments", None)


class CallToolResult(Result, kw_only=True, omit_defaults=True):
    """The result of `tools/call`. `structured_content` may be any JSON value, even null; UNSET if there is none."""

    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False


class ResourceTemplate(Struct):
    """The description of all resources whose URIs match one URI template (RFC 6570)."""

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
        """Return the name to show to users: the title, or the name if there is no title."""
        return self.title or self.name


class ListResourcesResult(PageResult, kw_only=True):
    """The result of `resources/list`: one page of resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PageResult, kw_only=True):
    """The result of `resources/templates/list`: one page of resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputParams, kw_only=True):
    """The params of `resources/read`: the URI of the resource."""

    uri: str


class ReadResourceResult(CacheableResult, kw_only=True):
    """The result of `resources/read`: the contents of the resource."""

    contents: list[ResourceContents]


class ResourceUpdatedParams(NotificationParams, kw_only=True):
    """The params of `notifications/resources/updated`: the URI of the resource that changed."""

    uri: str


class SubscribeParams(RequestParams, kw_only=True):
    """The params of `resources/subscribe` and `resources/unsubscribe`: the URI of the resource."""

    uri: str


class PromptArgument(Struct):
    """The description of one argument of a prompt. The value of the argument is always a string."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(Struct):
    """The description of a prompt that a server sends to clients."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """Return the name to show to users: the title, or the name if there is no title."""
        return self.title or self.name


class PromptMessage(Struct):
    """One message of a prompt."""

    role: Role
    content: ContentBlock


class ListPromptsResult(PageResult, kw_only=True):
    """The result of `prompts/list`: one page of prompts."""

    prompts: list[Prompt]


class GetPromptParams(InputParams, kw_only=True):
    """The params of `prompts/get`: the name of the prompt, and its arguments."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """The result of `prompts/get`: the messages of the prompt, with the arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None


class PromptReference(Struct, tag="ref/prompt", tag_field="type"):
    """A reference to a prompt, in a request for completions."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Struct, tag="ref/resource", tag_field="type"):
    """A reference to a resource template, in a request for completions. `uri` is the URI template."""

    uri: str


class CompleteArgument(Struct):
    """The argument that the user is typing, and its text so far."""

    name: str
    value: str


class CompleteContext(Struct):
    """The arguments that the user has already filled in."""

    arguments: dict[str, str] | None = None


class CompleteParams(RequestParams, kw_only=True):
    """The params of `completion/complete`: the argument for which the client wants suggestions."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompleteArgument
    context: CompleteContext | None = None


class Completion(Struct):
    """Suggestions for the value of an argument: at most 100, best first."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    """The result of `completion/complete`: suggestions for the value of an argument."""

    completion: Completion
