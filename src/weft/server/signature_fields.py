"""Parameters of any type: pydantic reads the types, and makes one validator and one schema of them.

Owns what is refused because of a type or a default. The parameters become the fields of a TypedDict, not of a model: a
parameter may then have any name, and one that is absent takes the function's own default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, NotRequired, Required, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaValidator
from typing_extensions import TypedDict

from weft.errors import RegistrationError
from weft.server.docstrings import Docstring
from weft.server.signature_plain import Arguments, is_hashable, shown_default, stopping_early
from weft.server.signature_schema import inline, schema_of
from weft.server.signature_words import reason, type_name

__all__ = ["read_fields"]


def read_fields(parameters: Sequence[Parameter], doc: Docstring, refuse: Callable[..., RegistrationError]) -> Arguments:
    """Compile parameters whose annotations are evaluated; `refuse` makes the error when one cannot be offered."""
    return _Fields(parameters, refuse).compile(doc)


class _Fields:
    """The parameters of one function as fields of a TypedDict."""

    def __init__(self, parameters: Sequence[Parameter], refuse: Callable[..., RegistrationError]) -> None:
        self.refuse = refuse
        self.fields: dict[str, Any] = {parameter.name: self.field_of(parameter) for parameter in parameters}
        self.defaults: dict[str, Any] = {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.default is not Parameter.empty and not isinstance(parameter.default, FieldInfo)
        }

    def compile(self, doc: Docstring) -> Arguments:
        try:
            adapter = _typed_dict(self.fields)
            schema = schema_of(adapter, "validation")
        except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
            raise self.blame(error) from None
        return Arguments(
            schema=self.describe(schema, doc),
            validate_json=adapter.validator.validate_json,
            validate_large=_fail_fast(adapter).validate_json,
        )

    def field_of(self, parameter: Parameter) -> Any:
        """The TypedDict field of one parameter; its default is left to Python where that is safe."""
        annotation, default = parameter.annotation, parameter.default
        if isinstance(default, FieldInfo):
            annotation = Annotated[annotation, default]
        elif default is not Parameter.empty:
            self.check_default(parameter.name, annotation, default)
            # What can be changed is copied for each call; else one call would find what another one left in it.
            if not is_hashable(default) or not _field_info(annotation).is_required():
                annotation = Annotated[annotation, Field(default=default)]
            return NotRequired[annotation]
        required = _field_info(annotation).is_required()
        return Required[annotation] if required else NotRequired[annotation]

    def check_default(self, name: str, annotation: Any, default: Any) -> None:
        try:
            given = {_outer_name(name, Required[annotation]): default}
            _typed_dict({name: Required[annotation]}).validator.validate_python(given, strict=True)
        except ValidationError as error:
            if default is None:
                raise self.refuse(
                    f"parameter {name!r} has the default None, which its type {type_name(annotation)} does not allow.",
                    f"annotate it `{name}: {type_name(annotation)} | None = None`, or give another default.",
                    why="clients are shown type and default side by side, and the function gets the default as it is.",
                ) from None
            first = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise self.refuse(
                f"the default of parameter {name!r}, of type {type_name(type(default))}, does not fit its type "
                f"{type_name(annotation)}.",
                "give a default of that type, or widen the annotation.",
                why=first.replace("Input", "It", 1) + ".",
            ) from None
        except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
            raise self.not_json(name, annotation, error) from None

    def describe(self, schema: dict[str, Any], doc: Docstring) -> dict[str, Any]:
        schema.pop("title", None)
        properties: dict[str, dict[str, Any]] = schema.setdefault("properties", {})
        for name, field in self.fields.items():
            shown = properties.get(_outer_name(name, field))
            if shown is None:
                continue
            if name in doc.params:
                shown.setdefault("description", doc.params[name])
            if name in self.defaults and "default" not in shown:
                shown.update(shown_default(self.defaults[name]))
        schema = inline(schema)
        schema["properties"] = {name: _hoist_header(shown) for name, shown in schema["properties"].items()}
        return {"type": "object", **schema}

    def blame(self, error: Exception) -> RegistrationError:
        """Find the parameter that alone fails as all together did."""
        for name, field in self.fields.items():
            try:
                schema_of(_typed_dict({name: field}), "validation")
            except Exception as cause:  # noqa: BLE001  # see above
                return self.not_json(name, get_args(field)[0], cause)
        return self.refuse("its parameters cannot be described as JSON.", "simplify their types.", why=reason(error))

    def not_json(self, name: str, annotation: Any, error: Exception) -> RegistrationError:
        return self.refuse(
            f"parameter {name!r} has the type {type_name(annotation)}, which cannot be read from JSON.",
            "use a type made of JSON values (a dataclass, a pydantic model, a TypedDict, list, dict, numbers, text), "
            "or make the value inside the function.",
            why=reason(error),
        )


def _typed_dict(fields: Mapping[str, Any]) -> TypeAdapter[Any]:
    holder: Any = TypedDict("Arguments", dict(fields))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]  # fields known at run time
    holder.__pydantic_config__ = ConfigDict(extra="forbid")
    return TypeAdapter(holder)


def _fail_fast(adapter: TypeAdapter[Any]) -> SchemaValidator:
    schema = stopping_early(adapter.core_schema)
    try:
        return SchemaValidator(schema, _use_prebuilt=False)  # else models bring their own validators, which do not stop
    except TypeError:  # a version that has no such validators to bring
        return SchemaValidator(schema)


def _field_info(annotation: Any) -> FieldInfo:
    return FieldInfo.from_annotation(annotation)


def _outer_name(name: str, field: Any) -> str:
    """The name that callers use: an alias, if the parameter has one."""
    info = _field_info(get_args(field)[0])
    alias = info.validation_alias or info.alias
    return alias if isinstance(alias, str) else name


def _hoist_header(shown: dict[str, Any]) -> dict[str, Any]:
    """Move the keyword of `Annotated[T, MirroredHeader(…)] | None` from the union's member to the property (HDR-21)."""
    for member in shown.get("anyOf", ()):
        if "x-mcp-header" in member and "x-mcp-header" not in shown:
            members = [{key: value for key, value in m.items() if key != "x-mcp-header"} for m in shown["anyOf"]]
            return {**shown, "anyOf": members, "x-mcp-header": member["x-mcp-header"]}
    return shown
