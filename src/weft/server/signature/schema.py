"""The JSON Schema of Python types as a peer should see it: no generated titles, no reference that is used once.

Owns the wording of schemas that Weft makes. Whether a type can be described at all is found out here, and told by the
caller, who knows the parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from weft.protocol.schema import is_array, is_object
from weft.server.signature.plain import with_each

__all__ = ["inline", "refusing_extras", "schema_of"]

_DEFS = "#/$defs/"
_LONGEST = 2000  # parts of a schema that has all of its definitions in place
_WITH_FIELDS = ("dataclass", "model", "typed-dict")


def schema_of(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The schema of a type, with its definitions still under `$defs`."""
    schema = adapter.json_schema(schema_generator=_Plain, mode=mode, by_alias=True)
    for body in (schema, *schema.get("$defs", {}).values()):
        if "enum" in body or "const" in body:  # the title of an enum is set where no generator can help it
            body.pop("title", None)
    return schema


def refusing_extras(core: Any) -> Any:
    """The same core schema, but a model, dataclass or TypedDict that does not say what becomes of unknown fields
    refuses them: nothing that a client sends is dropped silently.
    """
    return with_each(core, _refusing_extras)


def _refusing_extras(core: dict[str, Any]) -> dict[str, Any]:
    if not _is_silent_on_extras(core):
        return core
    refusing = {**core, "config": {**core.get("config", {}), "extra_fields_behavior": "forbid"}}
    return {**refusing, "extra_behavior": "forbid"} if core["type"] == "typed-dict" else refusing


def _is_silent_on_extras(core: Any) -> bool:
    """Whether a type with fields leaves open what becomes of others. A model's own `__init__` decides there."""
    if core["type"] not in _WITH_FIELDS or core.get("custom_init") or core.get("root_model"):
        return False
    # pydantic writes out its own default in a TypedDict, and nowhere else.
    return "extra_fields_behavior" not in core.get("config", {}) and core.get("extra_behavior", "ignore") == "ignore"


def inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Put each definition where it is used.

    A nested model is then reachable through `properties` alone, as mirrored headers need (HDR-21), and clients that do
    not follow references can read it: VS Code's Copilot, Claude Desktop, the Gemini and Copilot command lines. What
    contains itself stays under `$defs`; so does what is used twice where the whole would become too long with it.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    placeable = {name: body for name, body in definitions.items() if not _contains_itself(name, definitions)}
    if _length(schema, placeable, _LONGEST) >= _LONGEST:
        uses = Counter(_references(schema))
        placeable = {name: body for name, body in placeable.items() if uses[_DEFS + name] == 1}
    named = {text.removeprefix(_DEFS) for text in _mapped(schema)}  # by a discriminator: they must stay to be found
    placeable = {name: body for name, body in placeable.items() if name not in named}
    placed = _place({key: value for key, value in schema.items() if key != "$defs"}, placeable)
    kept = {name: _place(body, placeable) for name, body in definitions.items() if name not in placeable}
    return {**placed, "$defs": kept} if kept else placed


def _contains_itself(name: str, definitions: Mapping[str, Any]) -> bool:
    """Whether a definition leads back to itself."""
    reached: set[str] = set()
    pending = [name]
    while pending:
        for text in _references(definitions.get(pending.pop(), {})):
            inner = text.removeprefix(_DEFS)
            if inner == name:
                return True
            if inner not in reached:
                reached.add(inner)
                pending.append(inner)
    return False


def _length(node: Any, placeable: Mapping[str, Any], most: int) -> int:
    """How many parts a schema has with its definitions in place; counted up to `most`."""
    count = 1
    if is_object(node):
        reference = node.get("$ref")
        children = [value for key, value in node.items() if key != "$defs"]
        if isinstance(reference, str):
            children.append(placeable.get(reference.removeprefix(_DEFS)))
    else:
        children = list(node) if is_array(node) else []
    for child in children:
        count += _length(child, placeable, most - count)
        if count >= most:
            break
    return count


def _mapped(node: Any) -> Iterator[str]:
    """What the mappings of discriminators name."""
    if is_object(node):
        mapping = node.get("discriminator")
        if is_object(mapping):
            yield from _references(mapping)
    for child in node.values() if is_object(node) else node if is_array(node) else ():
        yield from _mapped(child)


def _references(node: Any) -> Iterator[str]:
    """Every text that refers to a definition; a discriminator's mapping counts, so what it names stays."""
    if isinstance(node, str):
        if node.startswith(_DEFS):
            yield node
    elif is_object(node):
        for child in node.values():
            yield from _references(child)
    elif is_array(node):
        for child in node:
            yield from _references(child)


def _place(node: Any, single: dict[str, Any]) -> Any:
    if is_array(node):
        return [_place(child, single) for child in node]
    if not is_object(node):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.removeprefix(_DEFS) in single:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _place({**single[reference.removeprefix(_DEFS)], **beside}, single)
    return {key: _place(value, single) for key, value in node.items()}


class _Plain(GenerateJsonSchema):
    """pydantic's generator without the titles it makes up from names, and without its warnings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say nothing: a default that JSON cannot show is left out of the schema, and still used."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return self._shown(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._shown(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return self._shown(super().typed_dict_schema(schema), schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Leave out the pattern of pydantic before 2.14: it looks ahead, which engines of linear time refuse."""
        shown = super().decimal_schema(schema)
        for part in (shown, *shown.get("anyOf", ())):
            if "(?!" in part.get("pattern", ""):
                del part["pattern"]
        return shown

    def _shown(self, shown: JsonSchemaValue, core: Any) -> JsonSchemaValue:
        """Without its made-up title; and what refuses unknown fields (`refusing_extras`) says so."""
        cls = core.get("cls")
        if cls is not None and shown.get("title") == cls.__name__:
            del shown["title"]
        extras = _refusing_extras(core).get("config", {}).get("extra_fields_behavior")
        if self.mode == "validation" and "properties" in shown and extras == "forbid":
            shown.setdefault("additionalProperties", False)
        return shown
