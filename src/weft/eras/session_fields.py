"""Convert messages to a revision of the session era: leave out or replace what the revision does not have.

Weft has one set of types for all revisions. Two tables here say how older revisions differ. `_SINCE` names the first
revision that has a field; for earlier revisions, the field is left out. `_STAND_INS` has a replacement for each kind of
object that a revision does not have, so that nothing that a handler returned is lost:

    resource_link    before 2025-06-18: a text block with its name and URI
    audio            in 2024-11-05: an embedded resource with the same data and MIME type. An embedded resource is the
                     one block of that revision that holds any data, so a client that knows the MIME type can play it
    structured       before 2025-06-18, and later if it is not an object: left out, because the text content has it too.
    content          If a handler returned no other content, the structured content becomes text content
    output schema    if its root is not an object: left out, because the structured content is left out too

Both tables are compiled into one plan for each type and revision, when it is first needed. If nothing can change in a
type and in its parts, the type has no plan, and its objects are returned unchanged. Messages are never changed in
place, because lists are cached and shared. If nothing has to change, the same object is returned.

Requests to the client are converted in the same way. If a revision does not have a kind of request,
`MissingCapability` is raised, as for a client that did not declare the capability. So a handler has one error to catch.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET

from weft.errors import MissingCapability
from weft.protocol.revisions import (
    SESSION_2025_03_26,
    SESSION_2025_06_18,
    SESSION_2025_11_25,
    SESSION_REVISIONS,
    STATELESS_2026_07_28,
    Revision,
)
from weft.types import features, interaction, lifecycle
from weft.types.base import Annotations, CacheableResult, EmptyResult, Implementation, Result

S = TypeVar("S", bound=msgspec.Struct)

_MARCH = SESSION_2025_03_26.version
_JUNE = SESSION_2025_06_18.version
_NOVEMBER = SESSION_2025_11_25.version
_LATER = STATELESS_2026_07_28.version  # for fields that no revision of this era has

_SINCE: Mapping[type[msgspec.Struct], Mapping[str, str]] = {
    Result: {"result_type": _LATER},  # applies to all kinds of results
    CacheableResult: {"ttl_ms": _LATER, "cache_scope": _LATER},  # other types keep fields with these names
    EmptyResult: {"meta": _LATER},  # `_meta` is allowed, but some clients accept only `{}`
    Implementation: {"title": _JUNE, "description": _NOVEMBER, "website_url": _NOVEMBER, "icons": _NOVEMBER},
    # Not `extensions`: they are part of the handshake, and capabilities are open objects in every revision.
    lifecycle.ServerCapabilities: {"completions": _MARCH, "tasks": _NOVEMBER},
    lifecycle.ClientCapabilities: {"elicitation": _JUNE, "tasks": _NOVEMBER},
    lifecycle.ElicitationCapability: {"form": _NOVEMBER, "url": _NOVEMBER},  # in 2025-06-18, `{}` means forms
    lifecycle.SamplingCapability: {"context": _NOVEMBER, "tools": _NOVEMBER},
    features.Tool: {
        "annotations": _MARCH,
        "title": _JUNE,
        "output_schema": _JUNE,
        "meta": _JUNE,
        "icons": _NOVEMBER,
        "execution": _NOVEMBER,
    },
    features.Prompt: {"title": _JUNE, "meta": _JUNE, "icons": _NOVEMBER},
    features.PromptArgument: {"title": _JUNE},
    features.Resource: {"title": _JUNE, "meta": _JUNE, "icons": _NOVEMBER},
    features.ResourceTemplate: {"title": _JUNE, "meta": _JUNE, "icons": _NOVEMBER},
    features.ResourceContents: {"meta": _JUNE},
    Annotations: {"last_modified": _JUNE},
    features.TextContent: {"meta": _JUNE},
    features.ImageContent: {"meta": _JUNE},
    features.AudioContent: {"meta": _JUNE},
    features.EmbeddedResource: {"meta": _JUNE},
    interaction.SamplingMessage: {"meta": _NOVEMBER},
    lifecycle.ProgressParams: {"message": _MARCH},
}


def fit(message: S, revision: Revision) -> S:
    """Convert a result, or the params of a notification, to the form of a revision of the session era.

    >>> fit(EmptyResult(result_type="complete"), SESSION_2025_11_25)
    EmptyResult(result_type=None, meta=None)
    """
    fitted: S = _FITTINGS[revision.version].fit(message)
    return fitted


def fit_capabilities(client: lifecycle.ClientCapabilities, revision: Revision) -> lifecycle.ClientCapabilities:
    """Return a client's capabilities without those that the revision does not have."""
    return fit(client, revision)


def fit_question(method: str, params: dict[str, Any] | None, revision: Revision) -> dict[str, Any] | None:
    """Return the params of a server-to-client request, converted to the form that the revision defines.

    Raises `MissingCapability` if the revision does not have this kind of request.

    >>> form = {"message": "Which seat?", "mode": "form", "requestedSchema": {"type": "object", "properties": {}}}
    >>> fit_question("elicitation/create", form, SESSION_2025_06_18)
    {'message': 'Which seat?', 'requestedSchema': {'type': 'object', 'properties': {}}}
    """
    if params is None:
        return None
    if method == "elicitation/create":
        return _elicitation(params, revision.version)
    if method == "sampling/createMessage":
        return _sampling(params, revision.version)
    return params


# --- replacements for objects that a revision does not have


def _link_as_text(link: features.ResourceLink) -> features.TextContent:
    return features.TextContent(f"{link.name}: {link.uri}", link.annotations)


def _audio_as_resource(audio: features.AudioContent) -> features.EmbeddedResource:
    # A resource needs a URI. This one is the same for the same sound, and cannot be read.
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"data:{audio.mime_type};base64,{audio.data}")
    return features.EmbeddedResource(
        features.ResourceContents(name.urn, audio.mime_type, blob=audio.data), audio.annotations
    )


_Structured = TypeVar("_Structured", features.CallToolResult, interaction.ToolResultContent)


def _structure_as_text(result: _Structured) -> _Structured:
    structured = result.structured_content
    if structured is UNSET:
        return result
    content = result.content or [features.TextContent(msgspec.json.encode(structured).decode())]
    return msgspec.structs.replace(result, content=content, structured_content=UNSET)


def _structure_if_object(result: _Structured) -> _Structured:
    structured = result.structured_content
    if structured is UNSET or isinstance(structured, dict | msgspec.Struct) or dataclasses.is_dataclass(structured):
        return result
    return _structure_as_text(result)


def _object_schemas(tool: features.Tool) -> features.Tool:
    """Return the tool with schemas that are valid in this era.

    The output schema is left out if its type is not "object". If the schema of a property is True or False, it is
    replaced by an equivalent object.
    """
    changes: dict[str, Any] = {}
    if tool.output_schema is not None and tool.output_schema.get("type") != "object":
        changes["output_schema"] = None
    for name in ("input_schema", "output_schema"):
        schema: dict[str, Any] | None = changes.get(name, getattr(tool, name))
        properties: dict[str, Any] = (schema or {}).get("properties", {})
        if schema is not None and any(isinstance(inner, bool) for inner in properties.values()):
            spelled = {key: _SPELLED[inner] if isinstance(inner, bool) else inner for key, inner in properties.items()}
            changes[name] = {**schema, "properties": spelled}
    return msgspec.structs.replace(tool, **changes) if changes else tool


_SPELLED: Mapping[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}

# By type: pairs of a revision and a function that replaces the object in older revisions. The first pair that applies
# is used.
_STAND_INS: Mapping[type[msgspec.Struct], tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    features.ResourceLink: ((_JUNE, _link_as_text),),
    features.AudioContent: ((_MARCH, _audio_as_resource),),
    features.CallToolResult: ((_JUNE, _structure_as_text), (_LATER, _structure_if_object)),
    interaction.ToolResultContent: ((_LATER, _structure_if_object),),
    features.Tool: ((_LATER, _object_schemas),),
}


# --- plans


class _Plan(msgspec.Struct, frozen=True):
    """The changes that one revision needs in objects of one type."""

    stand_in: Callable[[Any], Any] | None  # function that replaces the object, if any
    absent: tuple[tuple[str, Any], ...]  # fields that the revision does not have, with the value that leaves them out
    nested: tuple[str, ...]  # fields whose values may need changes


class _Fitting:
    """A converter of objects to one revision. It has a plan for each type."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._plans: dict[type[Any], _Plan | None] = {}

    def fit(self, value: Any) -> Any:
        kind: type[Any] = value.__class__
        try:
            plan = self._plans[kind]
        except KeyError:
            plan = self._plans[kind] = self._make_plan(kind, frozenset())
        if plan is None:
            return value
        if plan.stand_in is not None:
            value = plan.stand_in(value)
            if type(value) is not kind:
                return self.fit(value)
        changes = {name: nothing for name, nothing in plan.absent if getattr(value, name) is not nothing}
        for name in plan.nested:
            inner = getattr(value, name)
            fitted = self._fit_all(cast("list[Any]", inner)) if isinstance(inner, list) else self.fit(inner)
            if fitted is not inner:
                changes[name] = fitted
        return msgspec.structs.replace(value, **changes) if changes else value

    def _fit_all(self, values: list[Any]) -> list[Any]:
        fitted = [self.fit(value) for value in values]
        return values if all(map(_is, fitted, values)) else fitted

    def _make_plan(self, kind: type[Any], within: frozenset[type[Any]]) -> _Plan | None:
        """Return the plan for a type; None if objects of this type never change.

        `within` are the types that contain this type. They are skipped, to avoid an endless recursion.
        """
        if not issubclass(kind, msgspec.Struct):
            return None
        since = {name: first for base in reversed(kind.__mro__) for name, first in _SINCE.get(base, {}).items()}
        choices = [choice for base in kind.__mro__ for choice in _STAND_INS.get(base, ())]
        stand_in = next((replace for first, replace in choices if self._version < first), None)
        fields = msgspec.structs.fields(kind)
        absent = tuple((field.name, field.default) for field in fields if self._version < since.get(field.name, ""))
        left = {name for name, _ in absent}
        within |= {kind}
        nested = tuple(
            field.name
            for field in fields
            if field.name not in left
            and any(self._make_plan(part, within) for part in _structs_in(field.type) if part not in within)
        )
        return _Plan(stand_in, absent, nested) if stand_in or absent or nested else None


def _is(one: object, other: object) -> bool:
    return one is other


def _structs_in(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for part in get_args(annotation):
        yield from _structs_in(part)


_FITTINGS: Mapping[str, _Fitting] = {version: _Fitting(version) for version in SESSION_REVISIONS}


# --- questions

_FORM_WORDS = ("type", "title", "description")
_FIELD_WORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "format"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": ("default",),
}


def _elicitation(params: dict[str, Any], version: str) -> dict[str, Any]:
    is_url = params.get("mode") == "url"
    if version < _JUNE:
        raise _cannot_ask("The user cannot be asked", _JUNE, version, {"elicitation": {}})
    if version >= _NOVEMBER:
        if is_url and "elicitationId" not in params:
            raise ValueError("A question by URL needs an `elicitationId` in this revision; give it one.")
        return params
    if is_url:
        raise _cannot_ask("The user cannot be sent to a page", _NOVEMBER, version, {"elicitation": {"url": {}}})
    form = params["requestedSchema"]
    fields = {name: _plain_field(name, field, version) for name, field in form["properties"].items()}
    plain = {word: form[word] for word in ("type", "properties", "required") if word in form} | {"properties": fields}
    return {name: value for name, value in params.items() if name != "mode"} | {"requestedSchema": plain}


def _plain_field(name: str, field: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Convert a field of an elicitation form to the format before 2025-11-25.

    Options with titles become `enum` and `enumNames`. Only a boolean keeps its default. Raises MissingCapability if the
    user can choose several options, because older revisions have no such field.
    """
    if field["type"] == "array":
        raise _cannot_ask(
            f"Several options at once (field {name!r} of a form) cannot be asked for",
            _NOVEMBER,
            version,
            {"elicitation": {"form": {}}},
            "Ask for one option, or for true or false once per option",
        )
    plain = {word: field[word] for word in _FORM_WORDS if word in field}
    if options := field.get("oneOf"):
        names = [option["title"] for option in options]
        return plain | {"enum": [option["const"] for option in options], "enumNames": names}
    words = ("enum", "enumNames") if "enum" in field else _FIELD_WORDS[field["type"]]
    return plain | {word: field[word] for word in words if word in field}


def _sampling(params: dict[str, Any], version: str) -> dict[str, Any]:
    fitting = _FITTINGS[version]
    messages = msgspec.convert(params["messages"], list[interaction.SamplingMessage])
    if version < _NOVEMBER:
        if "tools" in params or "toolChoice" in params:
            raise _cannot_ask("The model cannot be given tools", _NOVEMBER, version, {"sampling": {"tools": {}}})
        messages = [single for message in messages for single in _single_blocks(message, version)]
    fitted = {"messages": [fitting.fit(message) for message in messages]}
    if "tools" in params:
        fitted["tools"] = [fitting.fit(tool) for tool in msgspec.convert(params["tools"], list[features.Tool])]
    return params | cast("dict[str, Any]", msgspec.to_builtins(fitted))


def _single_blocks(message: interaction.SamplingMessage, version: str) -> Iterator[interaction.SamplingMessage]:
    """Yield one message for each content block of `message`, because old revisions allow only one block per message.

    Raises MissingCapability if the revision does not have this kind of block.
    """
    for block in message.content if isinstance(message.content, list) else [message.content]:
        if isinstance(block, features.AudioContent) and version < _MARCH:
            raise _cannot_ask("The model cannot be sent audio", _MARCH, version, {"sampling": {}})
        if not isinstance(block, features.TextContent | features.ImageContent | features.AudioContent):
            raise _cannot_ask("The model cannot be told of tools", _NOVEMBER, version, {"sampling": {"tools": {}}})
        yield msgspec.structs.replace(message, content=block)


def _cannot_ask(
    what: str, first: str, version: str, required: Mapping[str, Any], instead: str = "Do without it"
) -> MissingCapability:
    return MissingCapability(
        f"{what}: that exists since revision {first}, the client speaks {version}. {instead}, or use a newer client.",
        required=required,
    )
