"""Define the messages of elicitation, sampling and roots, and of subscriptions to changes."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, field

from weft.types.base import Meta, NotificationParams, Result, Role, Struct
from weft.types.features import AudioContent, ContentBlock, ImageContent, TextContent, Tool
from weft.types.lifecycle import RequestParams

__all__ = [
    "AcknowledgedParams", "CreateMessageParams", "CreateMessageResult", "ElicitParams", "ElicitResult", "InputRequest",
    "InputRequiredResult", "ListRootsResult", "ListenParams", "ModelHint", "ModelPreferences", "Root",
    "SamplingMessage", "SubscriptionFilter", "ToolChoice", "ToolResultContent", "ToolUseContent",
]  # fmt: skip


class ToolUseContent(Struct, tag="tool_use", tag_field="type"):
    """A model's request to call a tool, as content of a sampling message."""

    id: str
    name: str
    input: dict[str, Any]
    meta: Meta | None = field(name="_meta", default=None)


class ToolResultContent(Struct, tag="tool_result", tag_field="type", omit_defaults=True):
    """The result of a tool that the model called, as content of a sampling message."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)


SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


class SamplingMessage(Struct):
    """One message of the conversation that a sampling request sends to the model."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    meta: Meta | None = field(name="_meta", default=None)


class ModelHint(Struct):
    """A preference for models whose name contains `name`."""

    name: str | None = None


class ModelPreferences(Struct):
    """The server's preferences for the model that the client chooses. Priorities are numbers from 0 to 1."""

    hints: list[ModelHint] | None = None
    cost_priority: float | None = None
    speed_priority: float | None = None
    intelligence_priority: float | None = None


class ToolChoice(Struct):
    """Whether the model may ("auto"), must ("required") or must not ("none") use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class CreateMessageParams(Struct):
    """The params of `sampling/createMessage`: a request to the client's model."""

    messages: list[SamplingMessage]
    max_tokens: int
    system_prompt: str | None = None
    model_preferences: ModelPreferences | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class CreateMessageResult(Struct):
    """The result of `sampling/createMessage`: the answer of the client's model."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    model: str
    stop_reason: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ElicitParams(Struct):
    """The params of `elicitation/create`: a form for the user, or, if `mode` is "url", a web page to visit."""

    message: str
    mode: Literal["form", "url"] | None = None
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None


class ElicitResult(Struct):
    """The result of `elicitation/create`: the user's answer. `content` has the values of the form."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | int | float | bool | list[str] | None] | None = None


class Root(Struct):
    """A folder or file that the client allows the server to use."""

    uri: str
    name: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListRootsResult(Struct):
    """The result of `roots/list`: the client's roots."""

    roots: list[Root]


class InputRequest(Struct):
    """One question to the client: `elicitation/create`, `sampling/createMessage` or `roots/list`, with its params."""

    method: str
    params: Any = UNSET


class InputRequiredResult(Result, kw_only=True):
    """A result that contains questions to the client. The client repeats its call with the answers."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class SubscriptionFilter(Struct):
    """The changes that a client subscribes to: changes of lists, of resources by their URIs, of tasks by their ids."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None  # of the tasks extension


class ListenParams(RequestParams, kw_only=True):
    """The params of `subscriptions/listen`: the changes that the client subscribes to."""

    notifications: SubscriptionFilter


class AcknowledgedParams(NotificationParams, kw_only=True):
    """The params of `notifications/subscriptions/acknowledged`: the subscriptions that the server accepted."""

    notifications: SubscriptionFilter
