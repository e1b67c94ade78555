"""Prompts: the registry, and what happens at `prompts/list` and `prompts/get`.

Owns how the arguments of a prompt, which are strings on the wire, become the parameters of a function, and how what it
returns becomes messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Literal, NoReturn, cast

import msgspec

from weft.errors import InvalidParams, ParseError, RegistrationError
from weft.jsonrpc import check_bounds
from weft.limits import Limits
from weft.protocol.schema import alternatives
from weft.server.asking.context import Context
from weft.server.auth.scopes import Audience, check_scopes, usable
from weft.server.calls.call import Call, check_hide, check_needs
from weft.server.calls.changes import Change, Changes
from weft.server.diagnostics.argument_checks import check_kind
from weft.server.diagnostics.source_location import location
from weft.server.features.content import BLOCKS, HELPERS, Unserialisable, refuse_unawaited, to_block
from weft.server.features.definitions import check_definition, nothing_to_remove, unknown
from weft.server.features.pages import CachePolicy, Encoded, Pages
from weft.server.signature.signature import ArgumentsError, read_signature
from weft.types.base import ROLES, Icon, Meta, Result, Struct
from weft.types.prompts import (
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
)

_MAX_NAME = 256


class _MessageMaker:
    """Makes messages of one role. It is used like a type, and says what to write where it is taken for one."""

    def __init__(self, name: str, role: Literal["user", "assistant"]) -> None:
        self.__name__ = name
        self._role: Literal["user", "assistant"] = role

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, content: Any) -> PromptMessage:
        """A message with this content: text, a block, an `Image`, an `Audio` or a `File`.

        >>> UserMessage("Review this.").role, AssistantMessage("Gladly.").role
        ('user', 'assistant')
        """
        return PromptMessage(self._role, to_block(content))

    def __or__(self, _other: object) -> NoReturn:
        raise TypeError(
            f"{self.__name__}(...) makes a PromptMessage and is no type itself; annotate with PromptMessage, such as "
            "`-> list[PromptMessage]`, with `from weft.types import PromptMessage`"
        )

    __ror__ = __or__

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        """Promise nothing where it is annotated alone, such as `-> list[UserMessage]`: results are made messages."""
        return {"type": "any"}


UserMessage = _MessageMaker("UserMessage", "user")
"""A message that the user says."""

AssistantMessage = _MessageMaker("AssistantMessage", "assistant")
"""A message that the model says."""


def to_messages(value: Any) -> list[PromptMessage]:
    """What a prompt's function returned, as messages; those without a role are the user's.

    >>> [(message.role, message.content.text) for message in to_messages(["Hi.", AssistantMessage("Hello.")])]
    [('user', 'Hi.'), ('assistant', 'Hello.')]
    """
    if isinstance(value, list | tuple):
        return [_message(item) for item in cast("Iterable[Any]", value)]
    return [_message(value)]


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        if value.role not in ROLES:  # a struct takes whatever it is given (PRM-11)
            raise Unserialisable("A message of a prompt has the role 'user' or 'assistant'. Write UserMessage(...).")
        content = cast("Any", value.content)  # a struct takes whatever it is given
        return value if isinstance(content, (dict, *BLOCKS)) else PromptMessage(value.role, to_block(content))
    if isinstance(value, (str, dict, *BLOCKS, *HELPERS)):
        return UserMessage(value)
    refuse_unawaited(value)
    raise Unserialisable(
        f"A prompt returns text, messages, content blocks, or a list of these, not {type(value).__name__}. "
        "Return a string, UserMessage(...) or AssistantMessage(...)."
    )


class RegisteredPrompt:
    """A prompt and how it is filled in."""

    __slots__ = ("_limits", "_spoken", "definition", "fn", "hide", "needs", "scopes", "signature", "where")

    def __init__(self, fn: Callable[..., Any], definition: Prompt, limits: Limits, where: str) -> None:
        self.fn = fn
        self.definition = definition
        self.where = where
        self.scopes: tuple[str, ...] = ()
        self.needs: tuple[str, ...] = ()  # of the client
        self.hide = False  # from clients that lack it
        self._limits = limits
        self.signature = read_signature(
            fn, injected=(Context,), opaque=(Struct, *HELPERS), kind="prompt", name=definition.name
        )
        whole = self.signature.input_schema
        properties: Mapping[str, Mapping[str, Any]] = whole.get("properties", {})
        required = whole.get("required", ())
        self._spoken = {  # parameters that take no text
            name for name, schema in properties.items() if not any(map(_takes_text, alternatives(schema, whole)))
        }
        definition.description = definition.description or self.signature.description or None
        definition.arguments = [
            PromptArgument(name, schema.get("title"), schema.get("description"), required=name in required)
            for name, schema in properties.items()
        ] or None

    @property
    def described(self) -> str:
        """What it is and where, for messages to the developer."""
        return f"Prompt {self.definition.name!r} ({self.where})"

    def _bind(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """The function's arguments. A parameter that takes no text is read from its JSON (PRM-08, PRM-12)."""
        values = {name: self._read(text) if name in self._spoken else text for name, text in arguments.items()}
        return self.signature.bind(values)

    def _read(self, text: str) -> Any:
        """The JSON value, or the text itself where it is none: then the signature says what was expected."""
        try:
            data = text.encode()
            check_bounds(data, self._limits)
            return msgspec.json.decode(data)
        except (ParseError, ValueError, RecursionError):
            return text

    async def fill(self, call: Call, arguments: Mapping[str, str]) -> Result:
        """Call the function and make a fresh result of what it returns."""
        try:
            kwargs = self._bind(arguments)
        except ArgumentsError as error:
            raise InvalidParams(f"Invalid params: {error.tell(self._limits)}") from None
        if self.signature.injected is not None:
            kwargs[self.signature.injected] = call.context
        try:
            value = await call.server.invoke(self.fn, self.signature.is_async, kwargs)
            if isinstance(value, Result):
                return _full(value)
            return GetPromptResult(messages=to_messages(value), description=self.definition.description)
        except BaseException:
            call.blamed = self.described
            raise


def _full(value: Result) -> Result:
    """A result that the prompt made itself: a copy, for it will be sealed, with messages as any other has them."""
    result = copy(value)
    if isinstance(result, GetPromptResult):
        result.messages = to_messages(result.messages)
    return result


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Whether a string fits this schema as it is; one that says nothing takes anything."""
    if "const" in schema:
        return isinstance(schema["const"], str)
    if "enum" in schema:
        return any(isinstance(value, str) for value in schema["enum"])
    kinds = schema.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


class Prompts:
    """All prompts of a server."""

    def __init__(self, changes: Changes, cache: CachePolicy, page_size: int, limits: Limits) -> None:
        self._changes = changes
        self._cache = cache
        self._limits = limits
        self._pages: Pages[RegisteredPrompt] = Pages("prompts", page_size)
        self.audience = Audience()
        self._lock = threading.Lock()  # prompts come and go from threads, too
        self.used = False  # once there was a prompt, the capability stays declared

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[RegisteredPrompt]:
        return iter(self._pages)

    def get(self, name: str) -> RegisteredPrompt | None:
        """The prompt of this name."""
        return self._pages.get(name)

    def add(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        meta: Meta | None = None,
        needs: Sequence[str] = (),
        hide: bool = False,
        scopes: Sequence[str] = (),
        replace: bool = False,
        where: str | None = None,
    ) -> None:
        """Register a prompt; listeners hear of it."""
        where = where or location(fn)
        check_kind("name", name or "", str, "'order_tea'")
        name = _check_name(name or str(getattr(fn, "__name__", type(fn).__name__)), where)
        definition = Prompt(name, title, description, None, icons, meta)
        prompt = RegisteredPrompt(fn, definition, self._limits, where)
        prompt.scopes = check_scopes(scopes, prompt.described)
        prompt.needs = check_needs(needs, prompt.described)
        prompt.hide = check_hide(hide, prompt.needs, prompt.described)
        check_definition(definition, f"Prompt {name!r}", where)
        with self._lock:
            taken = self._pages.get(name)
            if taken is not None and not replace:
                raise RegistrationError(
                    f"Prompt {name!r} is registered twice: at {taken.where} and at {where}. "
                    "Give one of them another name with @server.prompt(name=...), or the second replace=True."
                )
            self.audience.add(prompt)  # guarded before it can be found
            self._pages.add(name, prompt)
            self.used = True
        self._changes.publish(Change("prompts"))

    def remove(self, name: str) -> None:
        """Take a prompt out; listeners hear of it. UsageError when there is none."""
        if self._pages.remove(name) is None:
            raise nothing_to_remove("prompt", name, self._pages.names())
        self._changes.publish(Change("prompts"))

    def find(self, call: Call, name: str) -> RegisteredPrompt:
        """The prompt of this name, or the refusal of a call that names it (PRM-07)."""
        prompt = self._pages.get(name)
        if prompt is None:
            raise unknown("prompt", name, [prompt.definition.name for prompt in usable(call, self._pages)])
        return prompt

    async def get_prompt(self, call: Call) -> Result:
        """`prompts/get`."""
        params = cast("GetPromptParams", call.envelope.params)
        return await self.find(call, params.name).fill(call, params.arguments or {})

    def _page(self, prompts: list[RegisteredPrompt], next_cursor: str | None) -> ListPromptsResult:
        return ListPromptsResult(
            prompts=[prompt.definition for prompt in prompts],
            next_cursor=next_cursor,
            ttl_ms=self._cache.ttl_ms,
            cache_scope=self.audience.scope(self._cache.list_scope),
        )

    async def list(self, call: Call) -> Encoded:
        """`prompts/list`."""
        return self.audience.page(call, self._pages, self._page)


def _check_name(name: str, where: str) -> str:
    if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
        raise RegistrationError(
            f"Prompt {name[:_MAX_NAME]!r} cannot be registered ({where}): a name has 1 to {_MAX_NAME} printable "
            "characters. Give it one with @server.prompt(name=...)."
        )
    return name
