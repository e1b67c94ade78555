"""Define the values that a client gives to the program: tool results, exceptions of calls, and changes.

`ToolResult` has default values for fields that servers may leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import UNSET, field

from weft.errors import InvalidAnswer, WeftError
from weft.foreign import attribute_of
from weft.types.base import Result
from weft.types.features import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from weft.types.interaction import InputRequest, InputRequiredResult

T = TypeVar("T")


class ToolResult(Result, kw_only=True):
    r"""The result of a tool call.

    >>> ToolResult(content=[TextContent("12"), TextContent("apples")]).text
    '12\napples'
    """

    content: list[ContentBlock] = field(default_factory=list[ContentBlock])
    structured_content: Any = UNSET
    is_error: bool = False

    @property
    def structured(self) -> Any:
        """The structured content, which may be any JSON value, or None if the result has no structured content."""
        return None if self.structured_content is UNSET else self.structured_content

    @property
    def text(self) -> str:
        """The texts of all text blocks, joined by newlines."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError. If another SDK has this attribute, the message says what to use instead."""
            return attribute_of(self, name)

    def __str__(self) -> str:
        """Return the text of all blocks, with a note in place of each block that is not text."""
        return "\n".join(map(_shown, self.content))


def _shown(block: ContentBlock) -> str:
    """Return the text of a content block. For a block without text, return a note that describes the block.

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
    """Return the number of bytes that the base64 text `data` encodes."""
    return len(data) * 3 // 4 - data[-2:].count("=")


class CallDeclined(WeftError):
    """The error for a tool call that the function `confirm=` did not confirm. Nothing was sent to the server."""


class ToolCallFailed(WeftError):
    """The error for a failed tool, in a call with `raise_on_error` or `result_type`.

    `result` is the result of the tool.
    """

    def __init__(self, name: str, result: ToolResult) -> None:
        super().__init__(f"The tool {name!r} failed: {str(result) or 'it did not say why'}")
        self.result = result


def read_value(name: str, result: ToolResult, type: type[T]) -> T:
    """Convert the result of a tool to a value of `type`. Raises InvalidAnswer if that is not possible.

    If there is structured content, it is converted. Some servers send {"result": value} for a value that is not an
    object. If that dict cannot be converted, its value is converted. If there is no structured content, the text is
    converted as a string or, if that fails, as JSON.

    >>> read_value("add", ToolResult(structured_content={"result": 3}), int)
    3
    >>> read_value("add", ToolResult(structured_content="three"), int)
    Traceback (most recent call last):
    ...
    weft.errors.InvalidAnswer: The result of 'add' is not of the type int: Input should be a valid integer.
    """
    from pydantic import TypeAdapter, ValidationError

    value, text = result.structured_content, result.text
    if value is UNSET:
        forms = [msgspec.json.encode(text), text.encode()]
    elif isinstance(value, dict) and value.keys() == {"result"}:
        forms = [msgspec.json.encode(value), msgspec.json.encode(value["result"])]
    else:
        forms = [msgspec.json.encode(value)]
    adapter, fault = TypeAdapter(type), ""
    for form in forms:
        try:
            return adapter.validate_json(form, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            fault = "".join(f" {str(part)[:100]}:" for part in first["loc"]) + f" {first['msg']}"
    shown = str(type) if get_args(type) else type.__name__
    raise InvalidAnswer(f"The result of {name!r} is not of the type {shown}:{fault}.")


class PendingQuestions(WeftError):
    """The error for a call in which the server asks questions, if the client has `manual_input`.

    Repeat the call with the `state` of this exception, and with `answers`: a dict with the same keys as `requests`. But
    if the call has become a task, `task` is its handle: give the answers to `task.answer`, then await `task.result`.
    """

    def __init__(self, result: InputRequiredResult, task: Any = None) -> None:
        requests = result.input_requests or {}
        named = ", ".join(f"{key!r} ({request.method})" for key, request in list(requests.items())[:10])
        super().__init__(f"The server needs answers first: {named or 'none; call again with `state`'}.")
        self.requests: dict[str, InputRequest] = requests  # the questions, by key
        self.state = result.request_state  # to be sent back unchanged
        self.task = task  # the `TaskHandle` of the call, if it has become a task; else None


class ToolsChanged(msgspec.Struct, frozen=True):
    """A notification that the list of tools has changed."""


class PromptsChanged(msgspec.Struct, frozen=True):
    """A notification that the list of prompts has changed."""


class ResourcesChanged(msgspec.Struct, frozen=True):
    """A notification that the list of resources has changed."""


class ResourceUpdated(msgspec.Struct, frozen=True):
    """A notification that the contents of the resource `uri` have changed.

    `uri` is a URI that the program listens to, or the URI of a resource below it.
    """

    uri: str


class StreamReopened(msgspec.Struct, frozen=True):
    """Says that the stream of changes was lost and is open again. Some changes may have been missed."""


Change: TypeAlias = ToolsChanged | PromptsChanged | ResourcesChanged | ResourceUpdated | StreamReopened
