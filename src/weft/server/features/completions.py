"""Completions: suggestions for the arguments of prompts and resource templates, at `completion/complete`.

Owns the functions that suggest. Where none is registered, the choices that a parameter's type lists (an enum, a
`Literal`) are suggested; what exists at all is known by the registries of prompts and resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from weft.errors import InvalidParams, RegistrationError
from weft.protocol.schema import alternatives
from weft.server.asking.rounds import invoke
from weft.server.calls.call import Call
from weft.server.diagnostics.source_location import location
from weft.server.features.content import Unserialisable, check_text
from weft.server.features.definitions import meant_or_known
from weft.server.features.prompts import Prompts
from weft.server.features.resources import Resources
from weft.server.signature.signature import Signature, read_signature
from weft.types.base import Struct
from weft.types.prompts import CompleteParams, CompleteResult, Completion, PromptReference

MAX_VALUES = 100  # CMP-02


def to_completion(value: Any) -> Completion:
    """What a completion function returned, at most 100 values of it; `total` and `has_more` tell of the rest.

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
    """A function that suggests values: `fn(value)` or `fn(value, arguments)`, to which a Context may be added."""

    __slots__ = ("fn", "parameters", "signature", "where")

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
        """Call the function with what was typed so far, and what was filled in before."""
        kwargs: dict[str, Any] = dict(zip(self.parameters, (value, arguments), strict=False))
        if self.signature.injected is not None:
            kwargs[self.signature.injected] = call.context
        try:
            return to_completion(await invoke(call, self.fn, self.signature.is_async, kwargs))
        except BaseException:
            call.blamed = f"The completion of {self.signature.name!r} ({self.where})"
            raise


class Completions:
    """All completions of a server."""

    def __init__(self, prompts: Prompts, resources: Resources) -> None:
        self._prompts = prompts
        self._resources = resources
        self._functions: dict[tuple[str, str, str], RegisteredCompletion] = {}  # by kind of reference, name, argument

    @property
    def used(self) -> bool:
        """Whether anything can be completed: a function is registered, or an argument has choices (CMP-01)."""
        return bool(self._functions) or any(_has_choices(signature) for signature in self._signatures())

    def add(
        self, fn: Callable[..., Any], *, prompt: str | None = None, template: str | None = None, argument: str
    ) -> None:
        """Register a function for an argument of a prompt or of a resource template."""
        completion = RegisteredCompletion(fn, argument)
        if (prompt is None) == (template is None):
            raise RegistrationError(
                f"The completion of {argument!r} cannot be registered ({completion.where}): name either prompt= or "
                "template=, whose argument it completes."
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
        """Refuse functions for what does not exist. Called before serving: the order of registration is free."""
        for (kind, name, argument), completion in self._functions.items():
            signature = self._signature(kind, name)
            if signature is None:
                known, missing = self._names(kind), f"there is no {kind} {name!r}"
            elif argument not in (known := list(signature.input_schema.get("properties", {}))):
                missing = f"{kind} {name!r} has no argument {argument!r}"
                name = argument
            else:
                continue
            raise RegistrationError(
                f"The completion of {argument!r} cannot be used ({completion.where}): {missing}. "
                f"{meant_or_known(name, known)}"
            )

    async def complete(self, call: Call) -> CompleteResult:
        """`completion/complete`."""
        params = cast("CompleteParams", call.envelope.params)
        signature: Signature | None
        if isinstance(params.ref, PromptReference):
            kind, name, signature = "prompt", params.ref.name, self._prompts.find(call, params.ref.name).signature
        else:
            kind, name, signature = "template", params.ref.uri, self._signature("template", params.ref.uri)
        if signature is None:
            raise InvalidParams("Unknown resource template. resources/templates/list names them all.")
        argument = params.argument
        properties = signature.input_schema.get("properties", {})
        if argument.name not in properties:
            raise InvalidParams(f"Unknown argument. The {kind} has: {', '.join(properties) or 'none'}.")
        function = self._functions.get((kind, name, argument.name))
        if function is None:
            return CompleteResult(
                completion=to_completion(_matching(_choices(signature, argument.name), argument.value))
            )
        given = (params.context.arguments if params.context is not None else None) or {}
        if kind == "template" and not self._are_safe(name, {**given, argument.name: argument.value}):
            return CompleteResult(completion=to_completion([]))  # no resource could be read with it
        return CompleteResult(completion=await function.suggest(call, argument.value, given))

    def _are_safe(self, template: str, values: Mapping[str, str]) -> bool:
        """Whether a URI may have such values: what no resource would be given, its completions are not either (R9)."""
        entry = self._resources.get_template(template)
        return entry is None or all(entry.template.is_safe(name, value) for name, value in values.items())

    def _signature(self, kind: str, name: str) -> Signature | None:
        entry = self._prompts.get(name) if kind == "prompt" else self._resources.get_template(name)
        return None if entry is None else entry.signature

    def _names(self, kind: str) -> list[str]:
        if kind == "template":
            return list(self._resources.template_texts())
        return [prompt.definition.name for prompt in self._prompts]

    def _signatures(self) -> Iterable[Signature]:
        found = (self._signature(kind, name) for kind in ("prompt", "template") for name in self._names(kind))
        return (signature for signature in found if signature is not None)


def _has_choices(signature: Signature) -> bool:
    return any(_choices(signature, name) for name in signature.input_schema.get("properties", {}))


def _choices(signature: Signature, parameter: str) -> list[str]:
    """The strings that a parameter's type lists."""
    root = signature.input_schema
    listed: list[Any] = []
    for one in alternatives(root["properties"][parameter], root):
        listed += one.get("enum", [one.get("const")])
    return [choice for choice in listed if isinstance(choice, str)]


def _matching(choices: list[str], typed: str) -> list[str]:
    """Those that begin with what was typed, then those that contain it (CMP-04)."""
    typed = typed.casefold()
    starting = [choice for choice in choices if choice.casefold().startswith(typed)]
    return starting + [choice for choice in choices if typed in choice.casefold() and choice not in starting]
