"""Register and fill prompts, and suggest values for the arguments of prompts and resource templates.

This module converts the arguments of a prompt, which are strings on the wire, to parameters of its function, and the
return value to messages. It also calls the functions that suggest values. Without such a function, the choices of the
parameter's type (an enum, a `Literal`) are suggested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Literal, NoReturn, cast

import msgspec

from weft.errors import InvalidParams, ParseError, RegistrationError
from weft.jsonrpc import check_bounds
from weft.limits import Limits
from weft.protocol.schema import alternatives
from weft.server.asking.rounds import invoke
from weft.server.calls.call import Call
from weft.server.calls.changes import Changes
from weft.server.diagnostics import Unserialisable, location
from weft.server.features.content import BLOCKS, MEDIA, to_block
from weft.server.features.registry import CacheHint, Feature, FeatureOptions, Registry, meant_or_known
from weft.server.features.resources import RegisteredTemplate, Resources
from weft.server.signature.output import check_text, refuse_unawaited
from weft.server.signature.signature import ArgumentsError, Signature, read_signature
from weft.types.base import ROLES, Result, Struct
from weft.types.features import (
    CompleteParams,
    CompleteResult,
    Completion,
    GetPromptParams,
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    PromptReference,
)

MAX_VALUES = 100  # Maximum number of suggestions in one response.
_MAX_NAME = 256  # Maximum length of a prompt's name.


class _MessageMaker:
    """A callable that creates messages with one role. It is not a type: `UserMessage | str` raises TypeError."""

    def __init__(self, name: str, role: Literal["user", "assistant"]) -> None:
        self.__name__ = name
        self._role: Literal["user", "assistant"] = role

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, content: Any) -> PromptMessage:
        """Create a message with this content: text, a content block, an `Image`, an `Audio` or a `File`.

        >>> UserMessage("Review this.").role, AssistantMessage("Gladly.").role
        ('user', 'assistant')
        """
        return PromptMessage(self._role, to_block(content))

    def __or__(self, _other: object) -> NoReturn:
        raise TypeError(
            f"{self.__name__}(...) creates a PromptMessage and is not a type; annotate with PromptMessage, such as "
            "`-> list[PromptMessage]`, with `from weft.types import PromptMessage`"
        )

    __ror__ = __or__

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        """Return a schema that accepts any value, for an annotation such as `-> list[UserMessage]`."""
        return {"type": "any"}


UserMessage = _MessageMaker("UserMessage", "user")
"""Create a message with the role `user`."""

AssistantMessage = _MessageMaker("AssistantMessage", "assistant")
"""Create a message with the role `assistant`, which means the model."""


def to_messages(value: Any) -> list[PromptMessage]:
    """Turn the return value of a prompt function into messages. Text and content blocks become messages of the user.

    >>> [(message.role, message.content.text) for message in to_messages(["Hi.", AssistantMessage("Hello.")])]
    [('user', 'Hi.'), ('assistant', 'Hello.')]
    """
    if isinstance(value, list | tuple):
        return [_message(item) for item in cast("Iterable[Any]", value)]
    return [_message(value)]


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        if value.role not in ROLES:  # A struct does not check its fields.
            raise Unserialisable("A message of a prompt has the role 'user' or 'assistant'. Write UserMessage(...).")
        content = cast("Any", value.content)
        return value if isinstance(content, (dict, *BLOCKS)) else PromptMessage(value.role, to_block(content))
    if isinstance(value, (str, dict, *BLOCKS, *MEDIA)):
        return UserMessage(value)
    refuse_unawaited(value)
    raise Unserialisable(
        f"A prompt returns text, messages, content blocks, or a list of these, not {type(value).__name__}. "
        "Return a string, UserMessage(...) or AssistantMessage(...)."
    )


class RegisteredPrompt(Feature):
    """A prompt and its function."""

    kind = "Prompt"

    def __init__(self, fn: Callable[..., Any], options: FeatureOptions, limits: Limits) -> None:
        name = options.name or str(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(name, location(fn), options)
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
            raise self.refusal(
                f"a name has 1 to {_MAX_NAME} printable characters. Set another name with @server.prompt(name=...)."
            )
        self.fn = fn
        self._limits = limits
        self.signature = read_signature(
            fn, injected=(Call.context_type,), opaque=(Struct, *MEDIA), kind="prompt", name=name
        )
        whole = self.signature.input_schema
        properties: Mapping[str, Mapping[str, Any]] = whole.get("properties", {})
        required = whole.get("required", ())
        self._parsed = {  # Parameters whose type accepts no string: their values are read as JSON.
            name for name, schema in properties.items() if not any(map(_takes_text, alternatives(schema, whole)))
        }
        arguments = [
            PromptArgument(name, schema.get("title"), schema.get("description"), required=name in required)
            for name, schema in properties.items()
        ]
        description = options.description or self.signature.description or None
        self.definition = Prompt(name, options.title, description, arguments or None, options.icons, options.meta)

    def _read(self, text: str) -> Any:
        """Decode an argument from JSON. If the text is not JSON, return the text; validation will reject it."""
        try:
            data = text.encode()
            check_bounds(data, self._limits)
            return msgspec.json.decode(data)
        except (ParseError, ValueError, RecursionError):
            return text

    async def fill(self, call: Call, arguments: Mapping[str, str]) -> Result:
        """Call the prompt's function and return a result with its messages; raise InvalidParams for wrong arguments."""
        values = {name: self._read(text) if name in self._parsed else text for name, text in arguments.items()}
        try:
            kwargs = self.signature.bind(values)
        except ArgumentsError as error:
            raise InvalidParams(f"Invalid params: {error.describe(self._limits)}") from None
        try:
            return self._result(await invoke(call, self.fn, self.signature, kwargs))
        except BaseException:
            call.blamed = self.described
            raise

    def _result(self, value: Any) -> Result:
        if not isinstance(value, Result):
            return GetPromptResult(messages=to_messages(value), description=self.definition.description)
        result = copy(value)  # `seal` will change the result.
        if isinstance(result, GetPromptResult):
            result.messages = to_messages(result.messages)
        return result


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Return whether this schema accepts strings. A schema without a type accepts any value."""
    if "const" in schema:
        return isinstance(schema["const"], str)
    if "enum" in schema:
        return any(isinstance(value, str) for value in schema["enum"])
    kinds = schema.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


class Prompts(Registry[RegisteredPrompt]):
    """All prompts of a server."""

    def __init__(self, changes: Changes, cache_hint: CacheHint, page_size: int, limits: Limits) -> None:
        super().__init__("prompts", changes, page_size, ListPromptsResult, cache_hint)
        self._limits = limits

    def add(self, fn: Callable[..., Any], options: FeatureOptions) -> None:
        """Register a function as a prompt, and notify subscribers that the list has changed."""
        self._add(self._pages, RegisteredPrompt(fn, options, self._limits), replace=options.replace)

    def find(self, call: Call, name: str) -> RegisteredPrompt:
        """Return the prompt with this name; raise InvalidParams if there is none."""
        prompt = self._pages.get(name)
        if prompt is None:
            raise self._unknown(call, name)
        return prompt

    async def get_prompt(self, call: Call) -> Result:
        """Serve `prompts/get`."""
        params = cast("GetPromptParams", call.envelope.params)
        return await self.find(call, params.name).fill(call, params.arguments or {})


def to_completion(value: Any) -> Completion:
    """Turn the return value of a completion function into a Completion with at most 100 values.

    If the function returned more values, `total` is the number of all values, and `has_more` is True.

    >>> to_completion(["de", "en"])
    Completion(values=['de', 'en'], total=2, has_more=False)
    """
    if isinstance(value, Completion):
        values, total, has_more = value.values, value.total, value.has_more
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        values = list(cast("Iterable[Any]", value))
        total, has_more = len(values), len(values) > MAX_VALUES
    else:
        values, total, has_more = None, None, None
    if values is None or not all(isinstance(item, str) for item in values):
        raise Unserialisable("A completion function returns a list of strings, or a Completion.")
    if len(values) > MAX_VALUES:
        total, has_more = total or len(values), True
    return Completion([check_text(item) for item in values[:MAX_VALUES]], total, has_more)


class RegisteredCompletion:
    """A function that suggests values for an argument: `fn(value)` or `fn(value, arguments)`. It may take a Context."""

    def __init__(self, fn: Callable[..., Any], argument: str) -> None:
        self.fn = fn
        self.where = location(fn)
        self.signature: Signature = read_signature(
            fn, injected=(Call.context_type,), opaque=(Struct,), kind="completion", name=argument
        )
        self.parameters = list(self.signature.input_schema.get("properties", {}))
        if len(self.parameters) not in (1, 2):
            raise RegistrationError(
                f"The completion of {argument!r} cannot be registered ({self.where}): it takes {len(self.parameters)} "
                "parameters. Write `def complete(value: str)` or "
                "`def complete(value: str, arguments: dict[str, str])`; a Context may be added."
            )

    async def suggest(self, call: Call, value: str, arguments: Mapping[str, str]) -> Completion:
        """Return the function's suggestions. `value` is the text typed so far; `arguments` are the other arguments."""
        kwargs: dict[str, Any] = dict(zip(self.parameters, (value, arguments), strict=False))
        try:
            return to_completion(await invoke(call, self.fn, self.signature, kwargs))
        except BaseException:
            call.blamed = f"The completion of {self.signature.name!r} ({self.where})"
            raise


class Completions:
    """All functions of a server that suggest values for arguments."""

    def __init__(self, prompts: Prompts, resources: Resources) -> None:
        self._prompts = prompts
        self._resources = resources
        self._functions: dict[tuple[str, str, str], RegisteredCompletion] = {}  # By kind, name and argument.

    @property
    def used(self) -> bool:
        """Whether the server can suggest values: a function is registered, or the type of an argument lists choices."""
        return bool(self._functions) or any(
            _choices(signature, name)
            for signature in (*self._signatures("prompt").values(), *self._signatures("template").values())
            for name in _arguments(signature)
        )

    def add(
        self, fn: Callable[..., Any], *, prompt: str | None = None, template: str | None = None, argument: str
    ) -> None:
        """Register a function that suggests values for an argument of a prompt or of a resource template."""
        completion = RegisteredCompletion(fn, argument)
        if (prompt is None) == (template is None):
            raise RegistrationError(
                f"The completion of {argument!r} cannot be registered ({completion.where}): give either prompt= or "
                "template=, to which the argument belongs."
            )
        key = ("prompt", prompt, argument) if prompt is not None else ("template", str(template), argument)
        taken = self._functions.get(key)
        if taken is not None:
            raise RegistrationError(
                f"The completion of {argument!r} of {key[0]} {key[1]!r} is registered twice: at {taken.where} and at "
                f"{completion.where}. Keep one of them."
            )
        self._functions[key] = completion

    def check(self) -> None:
        """Raise RegistrationError if a completion function names a prompt, template or argument that does not exist.

        Call this after all features are registered, because a function may be registered before its prompt.
        """
        for (kind, name, argument), completion in self._functions.items():
            signatures = self._signatures(kind)
            if name not in signatures:
                hint = meant_or_known(name, list(signatures))
                missing = f"there is no {kind} {name!r}"
            elif argument not in (known := _arguments(signatures[name])):
                hint = meant_or_known(argument, known)
                missing = f"{kind} {name!r} has no argument {argument!r}"
            else:
                continue
            raise RegistrationError(
                f"The completion of {argument!r} cannot be used ({completion.where}): {missing}. {hint}"
            )

    async def complete(self, call: Call) -> CompleteResult:
        """Serve `completion/complete`."""
        params = cast("CompleteParams", call.envelope.params)
        argument = params.argument
        given = (params.context.arguments if params.context is not None else None) or {}
        if isinstance(params.ref, PromptReference):
            kind, name, signature = "prompt", params.ref.name, self._prompts.find(call, params.ref.name).signature
            is_safe = True
        else:
            kind, name = "template", params.ref.uri
            entry = self._resources.get_template(name)
            if entry is None:
                raise InvalidParams("Unknown resource template. resources/templates/list names them all.")
            signature = entry.signature
            values = {**given, argument.name: argument.value}.items()
            is_safe = all(entry.template.is_safe(key, value) for key, value in values)
        known = _arguments(signature)
        if argument.name not in known:
            raise InvalidParams(f"Unknown argument. The {kind} has: {', '.join(known) or 'none'}.")
        function = self._functions.get((kind, name, argument.name))
        if function is None:
            completion = to_completion(_matching(_choices(signature, argument.name), argument.value))
        elif is_safe:
            completion = await function.suggest(call, argument.value, given)
        else:  # No resource can be read with these values, so the function must not get them either.
            completion = to_completion([])
        return CompleteResult(completion=completion)

    def _signatures(self, kind: str) -> dict[str, Signature]:
        if kind == "prompt":
            return {prompt.name: prompt.signature for prompt in self._prompts}
        return {entry.name: entry.signature for entry in self._resources if isinstance(entry, RegisteredTemplate)}


def _arguments(signature: Signature) -> list[str]:
    return list(signature.input_schema.get("properties", {}))


def _choices(signature: Signature, parameter: str) -> list[str]:
    """Return the strings that a parameter allows if its type is an enum or a `Literal`, else an empty list."""
    root = signature.input_schema
    listed: list[Any] = []
    for one in alternatives(root["properties"][parameter], root):
        listed += one.get("enum", [one.get("const")])
    return [choice for choice in listed if isinstance(choice, str)]


def _matching(choices: list[str], typed: str) -> list[str]:
    """Return the choices that begin with the typed text, then the choices that contain it. Case is ignored."""
    typed = typed.casefold()
    starting = [choice for choice in choices if choice.casefold().startswith(typed)]
    return starting + [choice for choice in choices if typed in choice.casefold() and choice not in starting]
