"""Compile simple types without pydantic: `int`, `float`, `str`, `bool`, `Any`, lists and dicts of these, and `| None`.

These types are called plain types; most tools need no other types. A program with only such tools starts in less than
two thirds of the time that it would need with pydantic. For other types, for `Annotated`, and for a default that does
not match its type, this module returns None, and `signature.fields` compiles the parameters. Both modules must compile
plain types in the same way; a test compares them. This module raises no errors.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pydantic_core
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from weft.protocol.schema import is_array, is_object

_SCALARS: tuple[tuple[Any, CoreSchema, dict[str, Any]], ...] = (
    (Any, core_schema.any_schema(), {}),
    (bool, core_schema.bool_schema(), {"type": "boolean"}),
    (float, core_schema.float_schema(), {"type": "number"}),
    (int, core_schema.int_schema(), {"type": "integer"}),
    (str, core_schema.str_schema(), {"type": "string"}),
)
_CONTAINERS = frozenset({  # Types of core schemas that have the option `fail_fast`.
    "counter", "deque", "dict", "frozen-dict", "frozendict", "frozenset", "list", "ordered-dict", "set", "tuple",
})  # fmt: skip
_GIVEN = ("metadata", "default")  # Keys of a core schema whose values are not schemas.
_FINITE = core_schema.CoreConfig(allow_inf_nan=False)  # Rejects 1e400: valid JSON, but too large for a float.


class Arguments(msgspec.Struct, frozen=True):
    """The JSON Schema and the validators for the parameters of a function."""

    schema: dict[str, Any]
    validate_json: Callable[..., dict[str, Any]]
    validate_large: Callable[..., dict[str, Any]]  # For large input: stops at the first wrong item of a container.


class PlainType(msgspec.Struct, frozen=True):
    """The two schemas of a simple type such as `int` or `list[str]`: pydantic's core schema and the JSON Schema."""

    core: CoreSchema  # The core schema.
    shown: dict[str, Any]  # The JSON Schema.


def members(annotation: Any) -> Iterator[Any]:
    """Yield each member of a union type, with `Annotated` removed. For any other type, yield only that type.

    >>> list(members(Annotated[int, "x"] | None))
    [<class 'int'>, <class 'NoneType'>]
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from members(part)
    else:
        yield annotation


def plain_type(annotation: Any) -> PlainType | None:
    """Return the schemas of a type that can be compiled without pydantic, such as `list[str]`; None for other types."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None:
        known = [PlainType(core, dict(shown)) for scalar, core, shown in _SCALARS if annotation is scalar]
        return known[0] if known else None
    inner = plain_type(parts[0] if parts[-1] is type(None) else parts[-1]) if parts else None
    if inner is None:
        return None
    if origin is list:
        return PlainType(core_schema.list_schema(inner.core), {"items": inner.shown, "type": "array"})
    if origin is dict and parts[0] is str:
        core = core_schema.dict_schema(core_schema.str_schema(), inner.core)
        return PlainType(core, {"additionalProperties": inner.shown or True, "type": "object"})
    if origin in (Union, types.UnionType) and len(parts) == 2 and type(None) in parts:
        return PlainType(core_schema.nullable_schema(inner.core), {"anyOf": [inner.shown, {"type": "null"}]})
    return None


def plain_arguments(parameters: Iterable[Parameter], descriptions: Mapping[str, str]) -> Arguments | None:
    """Return the JSON Schema and the validators for parameters, or None if a type or a default needs pydantic.

    `descriptions` has the descriptions of parameters, by name.
    """
    fields: dict[str, core_schema.TypedDictField] = {}
    properties: dict[str, Any] = {}
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        plain = plain_type(parameter.annotation)
        required = default is Parameter.empty
        if plain is None:
            return None
        # `signature.fields` handles defaults that are mutable or of another type.
        if not required and not (
            is_hashable(default) and SchemaValidator(plain.core).isinstance_python(default, strict=True)
        ):
            return None
        fields[name] = core_schema.typed_dict_field(plain.core, required=required)
        described = {"description": descriptions[name]} if name in descriptions else {}
        properties[name] = {**plain.shown, **described, **({} if required else shown_default(default))}
    required_names = [name for name, field in fields.items() if field.get("required")]
    core = core_schema.typed_dict_schema(fields, extra_behavior="forbid", config=_FINITE)
    return Arguments(
        schema={
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
            **({"required": required_names} if required_names else {}),
        },
        validate_json=SchemaValidator(core).validate_json,
        validate_large=SchemaValidator(stopping_early(core)).validate_json,
    )


def stopping_early(core: Any) -> Any:
    """Return a core schema in which the validation of a container stops at the first wrong item.

    This limits the number of errors.
    """
    return with_each(core, lambda schema: {**schema, "fail_fast": True} if schema["type"] in _CONTAINERS else schema)


def with_each(core: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of a core schema in which `change` is applied to every schema, the innermost first."""
    if is_array(core):
        return [with_each(part, change) for part in core]
    if not is_object(core):
        return core
    is_schema = isinstance(core.get("type"), str)  # Otherwise it is a mapping of fields, with any names.
    parts = {key: value if is_schema and key in _GIVEN else with_each(value, change) for key, value in core.items()}
    return change(parts) if is_schema else parts


def is_hashable(value: Any) -> bool:
    """Return whether a value is hashable. Weft treats hashable values as immutable."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def shown_default(default: Any) -> dict[str, Any]:
    """Return the keyword `default` with its value, for a JSON Schema; an empty dict if the value is not JSON."""
    try:
        shown = pydantic_core.to_jsonable_python(default)
    except (ValueError, RecursionError):
        return {}
    return {} if isinstance(shown, float) and not math.isfinite(shown) else {"default": shown}
