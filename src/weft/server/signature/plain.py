"""Parameters and results of plain types: `int`, `float`, `str`, `bool`, `Any`, lists and dicts of them, or None.

Most tools take nothing else. What pydantic would make of these types is known beforehand, so it is written down here,
and a program of plain tools starts without the larger part of pydantic, in less than two thirds of the time. Anything
else (another type, `Annotated`, a default that does not fit) is answered with None, and goes the general way through
`signature.fields`. The two must not differ; a test holds them side by side. Nothing is refused here.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, Union, get_args, get_origin

import msgspec
import pydantic_core
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from weft.protocol.schema import is_array, is_object
from weft.server.signature.docstrings import Docstring

_SCALARS: tuple[tuple[Any, CoreSchema, dict[str, Any]], ...] = (
    (Any, core_schema.any_schema(), {}),
    (bool, core_schema.bool_schema(), {"type": "boolean"}),
    (float, core_schema.float_schema(), {"type": "number"}),
    (int, core_schema.int_schema(), {"type": "integer"}),
    (str, core_schema.str_schema(), {"type": "string"}),
)
_CONTAINERS = frozenset({
    "counter", "deque", "dict", "frozen-dict", "frozendict", "frozenset", "list", "ordered-dict", "set", "tuple",
})  # fmt: skip
_GIVEN = ("metadata", "default")  # what a core schema holds that is no schema, whatever it looks like
_FINITE = core_schema.CoreConfig(allow_inf_nan=False)  # 1e400 is JSON, but no number that a function could take


class Arguments(msgspec.Struct, frozen=True):
    """All parameters together: their JSON Schema, and the compiled validators (`validate_large` stops early)."""

    schema: dict[str, Any]
    validate_json: Callable[..., dict[str, Any]]
    validate_large: Callable[..., dict[str, Any]]


class PlainType(msgspec.Struct, frozen=True):
    """A plain type as pydantic-core and as JSON Schema have it."""

    core: CoreSchema
    shown: dict[str, Any]


def plain_type(annotation: Any) -> PlainType | None:
    """What is known of a plain type; None for every other."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None:
        known = [PlainType(core, dict(shown)) for scalar, core, shown in _SCALARS if annotation is scalar]
        return known[0] if known else None
    if origin is list:
        make: Callable[[PlainType], PlainType] = _list
    elif origin is dict and parts[0] is str:
        make = _dict
    elif origin in (Union, types.UnionType) and len(parts) == 2 and type(None) in parts:
        make = _nullable
    else:
        return None
    inner = plain_type(parts[0] if parts[-1] is type(None) else parts[-1])
    return inner and make(inner)


def _list(item: PlainType) -> PlainType:
    return PlainType(core_schema.list_schema(item.core), {"items": item.shown, "type": "array"})


def _dict(value: PlainType) -> PlainType:
    core = core_schema.dict_schema(core_schema.str_schema(), value.core)
    return PlainType(core, {"additionalProperties": value.shown or True, "type": "object"})


def _nullable(value: PlainType) -> PlainType:
    return PlainType(core_schema.nullable_schema(value.core), {"anyOf": [value.shown, {"type": "null"}]})


def plain_arguments(parameters: Iterable[Parameter], doc: Docstring) -> Arguments | None:
    """Schema and validator of parameters that all are plain; None when one is not."""
    fields: dict[str, core_schema.TypedDictField] = {}
    properties: dict[str, Any] = {}
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        plain = plain_type(parameter.annotation)
        required = default is Parameter.empty
        if plain is None or not (required or _fits(plain.core, default)):
            return None
        fields[name] = core_schema.typed_dict_field(plain.core, required=required)
        described = {"description": doc.params[name]} if name in doc.params else {}
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


def _fits(core: CoreSchema, default: Any) -> bool:
    """Whether a default can stand as it is: of the right type, and nothing that a call could change."""
    return is_hashable(default) and SchemaValidator(core).isinstance_python(default, strict=True)


def stopping_early(core: Any) -> Any:
    """The same core schema, but each container stops at its first wrong item: few errors, however much comes."""
    return with_each(core, lambda schema: {**schema, "fail_fast": True} if schema["type"] in _CONTAINERS else schema)


def with_each(core: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The same core schema, but with every schema in it changed, the innermost first."""
    if is_array(core):
        return [with_each(part, change) for part in core]
    if not is_object(core):
        return core
    is_schema = isinstance(core.get("type"), str)  # else a mapping, such as of fields, in which "default" may be a name
    parts = {key: value if is_schema and key in _GIVEN else with_each(value, change) for key, value in core.items()}
    return change(parts) if is_schema else parts


def is_hashable(value: Any) -> bool:
    """Whether a value has a hash: what has one is taken for unchangeable."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def shown_default(default: Any) -> dict[str, Any]:
    """The keyword `default`, if JSON can show the value."""
    try:
        shown = pydantic_core.to_jsonable_python(default)
    except (ValueError, RecursionError):
        return {}
    return {} if isinstance(shown, float) and not math.isfinite(shown) else {"default": shown}
