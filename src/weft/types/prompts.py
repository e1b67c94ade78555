"""Define prompts, and completion of arguments."""

from __future__ import annotations

from msgspec import field

from weft.types.base import CacheScope, Icon, Meta, Result, Role, Struct
from weft.types.content import ContentBlock
from weft.types.lifecycle import InputParams, RequestParams


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


class ListPromptsResult(Result, kw_only=True):
    """One page of prompts."""

    prompts: list[Prompt]
    next_cursor: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class GetPromptParams(InputParams, kw_only=True):
    """A request for a prompt filled in."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """A prompt filled in."""

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
    """The argument being typed, and its beginning."""

    name: str
    value: str


class CompleteContext(Struct):
    """The arguments that are filled in already."""

    arguments: dict[str, str] | None = None


class CompleteParams(RequestParams, kw_only=True):
    """A request for suggestions."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompleteArgument
    context: CompleteContext | None = None


class Completion(Struct):
    """Suggestions, the best first; at most 100."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result, kw_only=True):
    """The suggestions for an argument."""

    completion: Completion
