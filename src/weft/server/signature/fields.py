"""Parameters of any type: pydantic reads the types, and makes one validator and one schema of them.

Owns what is refused because of a type or a default. The parameters become the fields of a TypedDict, not of a model: a
parameter may then have any name, and one that is absent takes the function's own default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, NotRequired, Required, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaValidator
from typing_extensions import TypedDict

from weft.errors import RegistrationError
from weft.protocol.headers import find_mirrors
from weft.protocol.schema import is_array
from weft.server.signature.docstrings import Docstring
from weft.server.signature.hashing import guarded, watching
from weft.server.signature.plain import Arguments, is_hashable, shown_default, stopping_early
from weft.server.signature.schema import inline, refusing_extras, schema_of
from weft.server.signature.words import reason, remedy, type_name

__all__ = ["read_fields"]

_HOLDERS = ("dataclass-args", "model-fields", "typed-dict")  # the core schemas that have fields


def read_fields(
    parameters: Sequence[Parameter], doc: Docstring, refuse: Callable[..., RegistrationError], *, refs: bool = False
) -> Arguments:
    """Compile parameters whose annotations are evaluated; `refuse` makes the error when one cannot be offered."""
    return _Fields(parameters, refuse).compile(doc, refs=refs)


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

    def compile(self, doc: Docstring, *, refs: bool) -> Arguments:
        try:
            adapter = _typed_dict(self.fields, allow_inf_nan=False)  # as `signature.plain` has it
            schema = schema_of(adapter, "validation")
        except Exception as error:  # noqa: BLE001  # whatever a type's own hooks raise, the remedy is the same
            raise self.blame(error) from None
        schema = self.describe(schema, doc)
        schema = {"type": "object", **_with_plain_mirrors(schema if refs else inline(schema))}
        core = refusing_extras(adapter.core_schema)
        self.check_mirrored(schema, core)
        watched = guarded(core)
        exact, early = (_compiled(each).validate_json for each in (watched, stopping_early(watched)))
        if watched is not core:
            exact, early = watching(exact), watching(early)
        return Arguments(schema=schema, validate_json=exact, validate_large=early)

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
        return schema

    def check_mirrored(self, schema: dict[str, Any], core: Any) -> None:
        """R8: a mirrored argument has one name, or it could be sent by another that no header is compared with."""
        try:
            mirrors = find_mirrors(schema)
        except ValueError:  # told where tools are registered
            return
        for mirror in mirrors:
            loose = _loose_name(core, mirror.path)
            if loose is not None:
                raise self.refuse(
                    f"{'.'.join(mirror.path)!r} is repeated in the header {mirror.header}, but {loose!r} may be sent "
                    "by several names.",
                    "give it one name: no AliasChoices, no AliasPath, and no populate_by_name beside an alias.",
                    why="the header is compared with the argument of that one name; by another it would go unchecked.",
                )

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
            remedy(
                error,
                "use a type made of JSON values (a dataclass, a pydantic model, a TypedDict, list, dict, numbers, "
                "text), or make the value inside the function.",
            ),
            why=reason(error),
        )


def _typed_dict(fields: Mapping[str, Any], *, allow_inf_nan: bool = True) -> TypeAdapter[Any]:
    make: Any = TypedDict  # by way of Any: type checkers want to read the fields, which are known at run time
    holder = make("Arguments", dict(fields))
    holder.__pydantic_config__ = ConfigDict(allow_inf_nan=allow_inf_nan)
    return TypeAdapter(holder)


def _compiled(core: Any) -> SchemaValidator:
    """The validator of a core schema that was changed: models must not bring their own, made of the unchanged one."""
    return SchemaValidator(core, _use_prebuilt=False)


def _field_info(annotation: Any) -> FieldInfo:
    return FieldInfo.from_annotation(annotation)


def _outer_name(name: str, field: Any) -> str:
    """The name that callers use: an alias, if the parameter has one."""
    info = _field_info(get_args(field)[0])
    alias = info.validation_alias or info.alias
    return alias if isinstance(alias, str) else name


def _loose_name(core: Any, path: Sequence[str]) -> str | None:
    """The first name on the way to an argument that is not the only one pydantic takes there; None if there is none."""
    definitions: dict[str, Any] = {}
    for name in path:
        by_name = _takes_names(core)
        while core["type"] not in _HOLDERS:
            definitions |= {each["ref"]: each for each in core.get("definitions", ())}
            core = definitions[core["schema_ref"]] if core["type"] == "definition-ref" else core.get("schema")
            if core is None:  # a type that describes itself
                return None
            by_name = by_name or _takes_names(core)
        core = next((inner for alias, inner in _fields_in(core, by_name=by_name) if alias == name), None)
        if core is None:
            return name
    return None


def _fields_in(core: Any, *, by_name: bool) -> Iterator[tuple[str, Any]]:
    """The fields that are taken by one name only, each with its schema."""
    fields: Any = core["fields"]
    if is_array(fields):
        fields = {field["name"]: field for field in fields}
    for own, field in fields.items():
        alias: Any = field.get("validation_alias", own)
        if isinstance(alias, str) and (alias == own or not by_name):
            yield alias, field["schema"]


def _takes_names(core: Any) -> bool:
    config: Any = core.get("config") or {}
    return bool(config.get("validate_by_name") or config.get("populate_by_name"))


def _with_plain_mirrors(shown: dict[str, Any]) -> dict[str, Any]:
    """Say the type of a mirrored property plainly, also where it may be null: clients leave out a tool that has no
    primitive `type` beside the annotation (HDR-19, HDR-23). A null is still taken; it means no header (HDR-35).
    """
    if "properties" in shown:
        shown = {**shown, "properties": {name: _with_plain_mirrors(one) for name, one in shown["properties"].items()}}
    members: list[dict[str, Any]] = [one for one in shown.get("anyOf", ()) if one != {"type": "null"}]
    if len(members) != 1 or not ("x-mcp-header" in shown or "x-mcp-header" in members[0]):
        return shown
    beside = {key: value for key, value in shown.items() if key != "anyOf" and (key, value) != ("default", None)}
    return {**members[0], **beside}
