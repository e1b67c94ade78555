"""The JSON Schema of Python types as a peer should see it: no generated titles, no reference that is used once.

Owns the wording of schemas that Weft makes. Whether a type can be described at all is found out here, and told by the
caller, who knows the parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from weft.protocol.schema import is_array, is_object

__all__ = ["inline", "refusing_extras", "schema_of"]

_DEFS = "#/$defs/"


def schema_of(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The schema of a type, with its definitions still under `$defs`."""
    schema = adapter.json_schema(schema_generator=_Plain, mode=mode, by_alias=True)
    for body in (schema, *schema.get("$defs", {}).values()):
        if "enum" in body or "const" in body:  # the title of an enum is set where no generator can help it
            body.pop("title", None)
    return schema


def refusing_extras(core: Any) -> Any:
    """The same core schema, but a model that does not say what becomes of unknown fields refuses them, as dataclasses
    and TypedDicts do there: nothing that a client sends is dropped silently. The same object where there is none.
    """
    if is_array(core):
        parts = [refusing_extras(part) for part in core]
        return parts if any(new is not old for new, old in zip(parts, core, strict=True)) else core
    if not is_object(core):
        return core
    changed = {key: value if key in ("metadata", "default") else refusing_extras(value) for key, value in core.items()}
    if core.get("type") == "model" and _is_silent_on_extras(core):
        changed["config"] = {**core.get("config", {}), "extra_fields_behavior": "forbid"}
    return changed if any(changed[key] is not core.get(key) for key in changed) else core


def _is_silent_on_extras(core: Any) -> bool:
    """Whether a model leaves open what becomes of unknown fields. One with an `__init__` of its own decides there."""
    config: Any = getattr(core["cls"], "model_config", {})
    return config.get("extra") is None and not core.get("custom_init") and not core.get("root_model")


def inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Put each definition that is used once where it is used.

    A nested model is then reachable through `properties` alone, as mirrored headers need (HDR-21), and a model reads
    the schema without following references. What is used twice, or contains itself, stays under `$defs`.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    uses = Counter(_references(schema))
    single = {name: body for name, body in definitions.items() if uses[_DEFS + name] == 1}
    placed = _place({key: value for key, value in schema.items() if key != "$defs"}, single)
    kept = {name: _place(body, single) for name, body in definitions.items() if name not in single}
    return {**placed, "$defs": kept} if kept else placed


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
        shown = _untitled(super().model_schema(schema), schema["cls"])
        if self.mode == "validation" and "properties" in shown and _is_silent_on_extras(schema):
            shown.setdefault("additionalProperties", False)
        return shown

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _untitled(super().dataclass_schema(schema), schema["cls"])

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _untitled(super().typed_dict_schema(schema), schema.get("cls"))


def _untitled(schema: JsonSchemaValue, cls: type | None) -> JsonSchemaValue:
    if cls is not None and schema.get("title") == cls.__name__:
        del schema["title"]
    return schema
