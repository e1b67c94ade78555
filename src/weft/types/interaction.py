"""Define the server's requests to a client (elicitation, sampling, roots), and a client's subscriptions."""

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
    """A model's request to call a tool."""

    id: str
    name: str
    input: dict[str, Any]
    meta: Meta | None = field(name="_meta", default=None)


class ToolResultContent(Struct, tag="tool_result", tag_field="type", omit_defaults=True):
    """A tool's result for the model."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)


SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


class SamplingMessage(Struct):
    """One message of the conversation that the model continues."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    meta: Meta | None = field(name="_meta", default=None)


class ModelHint(Struct):
    """The name of a preferred model, or a part of the name."""

    name: str | None = None


class ModelPreferences(Struct):
    """Preferences for the choice of a model. Priorities are from 0 to 1."""

    hints: list[ModelHint] | None = None
    cost_priority: float | None = None
    speed_priority: float | None = None
    intelligence_priority: float | None = None


class ToolChoice(Struct):
    """Whether the model may, must or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class CreateMessageParams(Struct):
    """A request to the client's model."""

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
    """The answer of the client's model."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    model: str
    stop_reason: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ElicitParams(Struct):
    """A question to the user: to fill in a form (`requested_schema`), or to visit a page (`mode` is "url")."""

    message: str
    mode: Literal["form", "url"] | None = None
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None


class ElicitResult(Struct):
    """The user's answer to a question."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | int | float | bool | list[str] | None] | None = None


class Root(Struct):
    """A folder or file in which the server may work."""

    uri: str
    name: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListRootsResult(Struct):
    """The client's roots."""

    roots: list[Root]


class InputRequest(Struct):
    """One question: `elicitation/create`, `sampling/createMessage` or `roots/list`, with its params."""

    method: str
    params: Any = UNSET


class InputRequiredResult(Result, kw_only=True):
    """A result that contains questions. The client sends the answers with its next call."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class SubscriptionFilter(Struct):
    """The changes that a client wants to be notified of: changes of lists, and of single resources by URI."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(RequestParams, kw_only=True):
    """A subscription to changes."""

    notifications: SubscriptionFilter


class AcknowledgedParams(NotificationParams, kw_only=True):
    """The part of a subscription that the server accepted."""

    notifications: SubscriptionFilter
