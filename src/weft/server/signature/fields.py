"""Compile parameters of any type with pydantic, to validators and a JSON Schema.

The parameters become the fields of a TypedDict, not of a model. So a parameter may have any name, and an absent
argument gets the function's default. The schemas have no generated titles, and definitions are inlined where they are
used.

Sets and mappings need a guard, because a client can choose keys that all have the same hash. Python's hash of a text is
secret, but the hash of a number is the number modulo 2**61 - 1, and the hash of a tuple, a UUID or a Decimal is made of
such hashes. Keys with the same hash are compared one by one, so 20,000 of them take seconds. So the hash of each key is
checked before the key is added. A few keys with the same hash are allowed, because that is normal: -1 and -2 have the
same hash. Other parameters are not slowed down.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Literal, NotRequired, Required, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaValidator, core_schema
from typing_extensions import TypedDict

from weft.errors import RegistrationError
from weft.protocol.headers import find_mirrors
from weft.protocol.schema import is_array, is_object
from weft.server.signature.errors import ArgumentsError, reason, remedy, type_name
from weft.server.signature.plain import Arguments, is_hashable, shown_default, stopping_early, with_each

_HOLDERS = ("dataclass-args", "model-fields", "typed-dict")  # Types of pydantic core schemas that have fields.


def read_fields(
    parameters: Sequence[Parameter],
    descriptions: Mapping[str, str],
    refuse: Callable[..., RegistrationError],
    *,
    refs: bool = False,
) -> Arguments:
    """Compile parameters with pydantic; raise the error that `refuse` returns if a parameter cannot be used.

    The annotations must be types, not strings. `descriptions` has the descriptions of parameters, by name. If `refs` is
    True, the definitions in the JSON Schema stay under `$defs`.
    """
    return _Fields(parameters, refuse).compile(descriptions, refs=refs)


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

    def compile(self, descriptions: Mapping[str, str], *, refs: bool) -> Arguments:
        try:
            adapter = _typed_dict(self.fields, allow_inf_nan=False)  # As in `signature.plain`.
            schema = schema_of(adapter, "validation")
        except Exception as error:  # noqa: BLE001  # hooks of a type may raise anything, and the remedy is the same
            raise self.blame(error) from None
        schema = self.describe(schema, descriptions)
        schema = {"type": "object", **_with_plain_mirrors(schema if refs else inline(schema))}
        core = with_each(adapter.core_schema, _refusing_extras)
        self.check_mirrored(schema, core)
        watched = guarded(core)
        # Not with the validators that model classes have already, because those lack the changes of the core schema.
        exact, early = (
            SchemaValidator(each, _use_prebuilt=False).validate_json for each in (watched, stopping_early(watched))
        )
        if watched is not core:
            exact, early = watching(exact), watching(early)
        return Arguments(schema=schema, validate_json=exact, validate_large=early)

    def field_of(self, parameter: Parameter) -> Any:
        """Return the TypedDict field for one parameter.

        A mutable default is put into the field, so that each call gets a copy of the default. Other defaults are not
        put into the field: if the argument is missing, Python uses the default of the function.
        """
        annotation: Any = parameter.annotation
        default = parameter.default
        if isinstance(default, FieldInfo):
            annotation = Annotated[annotation, default]
        elif default is not Parameter.empty:
            self.check_default(parameter.name, annotation, default)
            # A mutable default is copied for each call, so that calls do not share it.
            if not is_hashable(default) or not FieldInfo.from_annotation(annotation).is_required():
                annotation = Annotated[annotation, Field(default=default)]
            return NotRequired[annotation]
        required = FieldInfo.from_annotation(annotation).is_required()
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
                    why="clients see both type and default, and the function gets the default without any conversion.",
                ) from None
            first = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise self.refuse(
                f"the default of parameter {name!r}, of type {type_name(type(default))}, does not fit its type "
                f"{type_name(annotation)}.",
                "give a default of that type, or widen the annotation.",
                why=first.replace("Input", "It", 1) + ".",
            ) from None
        except Exception as error:  # noqa: BLE001  # hooks of a type may raise anything, and the remedy is the same
            raise self.not_json(name, annotation, error) from None

    def describe(self, schema: dict[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
        schema.pop("title", None)
        properties: dict[str, dict[str, Any]] = schema.setdefault("properties", {})
        for name, field in self.fields.items():
            shown = properties.get(_outer_name(name, field))
            if shown is None:
                continue
            if name in descriptions:
                shown.setdefault("description", descriptions[name])
            if name in self.defaults and "default" not in shown:
                shown.update(shown_default(self.defaults[name]))
        return schema

    def check_mirrored(self, schema: dict[str, Any], core: Any) -> None:
        """Raise RegistrationError if a header repeats an argument that clients may send under several names.

        Only the value under one name is compared with the header, so a value under another name would not be checked.
        """
        try:
            mirrors = find_mirrors(schema)
        except ValueError:  # Reported when the tool is registered.
            return
        for mirror in mirrors:
            loose = _loose_name(core, mirror.path)
            if loose is not None:
                raise self.refuse(
                    f"{'.'.join(mirror.path)!r} is repeated in the header {mirror.header}, but {loose!r} may be sent "
                    "by several names.",
                    "give it one name: no AliasChoices, no AliasPath, and no populate_by_name beside an alias.",
                    why="the header is compared with one name only; an argument by another name would not be checked.",
                )

    def blame(self, error: Exception) -> RegistrationError:
        """Return an error that names the first parameter whose type cannot be used.

        To find this parameter, each parameter is compiled alone. `error` is the exception from compiling all together.
        """
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
    make: Any = TypedDict  # Any, because the fields are known only at run time.
    holder = make("Arguments", dict(fields))
    holder.__pydantic_config__ = ConfigDict(allow_inf_nan=allow_inf_nan)
    return TypeAdapter(holder)


def _outer_name(name: str, field: Any) -> str:
    """Return the name under which clients send a parameter: its alias, or else its own name."""
    info = FieldInfo.from_annotation(get_args(field)[0])
    alias = info.validation_alias or info.alias
    return alias if isinstance(alias, str) else name


def _loose_name(core: Any, path: Sequence[str]) -> str | None:
    """Return the first name on `path` that clients may replace by another name, such as an alias; None if none.

    `path` leads from the arguments to a field in nested models.
    """
    definitions: dict[str, Any] = {}
    for name in path:
        by_name = _takes_names(core)
        while core["type"] not in _HOLDERS:
            definitions |= {each["ref"]: each for each in core.get("definitions", ())}
            core = definitions[core["schema_ref"]] if core["type"] == "definition-ref" else core.get("schema")
            if core is None:  # A type without fields.
                return None
            by_name = by_name or _takes_names(core)
        core = _only_field(core, name, by_name=by_name)
        if core is None:
            return name
    return None


def _takes_names(core: Any) -> bool:
    config: Any = core.get("config") or {}
    return bool(config.get("validate_by_name") or config.get("populate_by_name"))


def _only_field(core: Any, name: str, *, by_name: bool) -> Any:
    """Return the schema of the field that clients send as `name`; None if they may send it under other names too.

    If `by_name` is True, clients may send each field under its own name, besides its alias.
    """
    fields: Any = core["fields"]
    for own, field in [(one["name"], one) for one in fields] if is_array(fields) else fields.items():
        alias = field.get("validation_alias", own)
        if alias == name and (alias == own or not by_name):
            return field["schema"]
    return None


def _with_plain_mirrors(shown: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a primitive `type` for each property with `x-mcp-header`, even if null is allowed.

    Clients ignore a tool if such a property has no `type`. The server still accepts null; then there is no header.
    """
    if "properties" in shown:
        shown = {**shown, "properties": {name: _with_plain_mirrors(one) for name, one in shown["properties"].items()}}
    members: list[dict[str, Any]] = [one for one in shown.get("anyOf", ()) if one != {"type": "null"}]
    if len(members) != 1 or not ("x-mcp-header" in shown or "x-mcp-header" in members[0]):
        return shown
    beside = {key: value for key, value in shown.items() if key != "anyOf" and (key, value) != ("default", None)}
    return {**members[0], **beside}


_MOST_ALIKE = 16  # Maximum number of keys with the same hash in one call.
_SETS = frozenset({"frozenset", "set"})  # Types of core schemas whose items are hashed.
_MAPPINGS = frozenset({"counter", "dict", "frozen-dict", "frozendict", "ordered-dict"})  # The same, for keys.
# Types whose hashes a caller cannot predict, and types with few values of the same hash.
_HARMLESS = frozenset({"bool", "bytes", "date", "enum", "float", "literal", "none", "str"})
_REFUSAL = (
    f"More than {_MOST_ALIKE} different items of a set, or names of an object, have one and the same hash in Python, "
    "so checking them would take too long. Send fewer of them in one call."
)


_seen = threading.local()  # `by_hash`: the keys of the call that is being validated in this thread, by their hash.


def guarded(core: Any) -> Any:
    """Return the core schema with a check that rejects too many keys with the same hash, in sets and mappings.

    Returns the core schema unchanged if no set or mapping needs the check.
    """
    found: list[str] = []

    def guard(schema: dict[str, Any]) -> dict[str, Any]:
        if schema["type"] not in _SETS | _MAPPINGS:
            return schema
        place = "items_schema" if schema["type"] in _SETS else "keys_schema"
        keys: Any = schema.get(place)
        # Without a schema, the names of a JSON object are texts, whose hash is secret.
        if place == "keys_schema" if keys is None else _is_harmless(keys):
            return schema
        found.append(place)
        return {**schema, place: core_schema.no_info_after_validator_function(_check_key, keys or {"type": "any"})}

    changed = with_each(core, guard)
    return changed if found else core


def watching(validate: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Wrap the validator of a schema from `guarded`, so that each validation counts the keys from zero."""

    def watched(raw: bytes, **options: Any) -> dict[str, Any]:
        _seen.by_hash = {}
        try:
            return validate(raw, **options)
        finally:
            _seen.by_hash = {}  # Do not keep the arguments in memory.

    return watched


def _is_harmless(keys: Any) -> bool:
    return keys["type"] in _HARMLESS or (keys["type"] in ("default", "nullable") and _is_harmless(keys["schema"]))


def _check_key(key: Any) -> Any:
    """Return the key; raise ArgumentsError if too many other keys of the same call have the same hash."""
    try:
        alike = _seen.by_hash.setdefault(hash(key), [])
    except TypeError:  # The key is not hashable: the set refuses it.
        return key
    if key not in alike:
        if len(alike) == _MOST_ALIKE:
            raise ArgumentsError([_REFUSAL])  # Not a ValueError: pydantic would continue with the next key.
        alike.append(key)
    return key


_DEFS = "#/$defs/"
_LONGEST = 2000  # Maximum number of parts of a schema after its definitions are inlined.
_WITH_FIELDS = ("dataclass", "model", "typed-dict")


def schema_of(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """Return the JSON Schema of the adapter's type, with definitions under `$defs`."""
    schema = adapter.json_schema(schema_generator=_Plain, mode=mode, by_alias=True)
    for body in (schema, *schema.get("$defs", {}).values()):
        if "enum" in body or "const" in body:  # The generator cannot prevent the title of an enum.
            body.pop("title", None)
    return schema


def _refusing_extras(core: dict[str, Any]) -> dict[str, Any]:
    """Return the core schema, changed to reject unknown fields if the type has no setting for unknown fields.

    Without this change, a misspelled field would be dropped silently.
    """
    if not _is_silent_on_extras(core):
        return core
    refusing = {**core, "config": {**core.get("config", {}), "extra_fields_behavior": "forbid"}}
    return {**refusing, "extra_behavior": "forbid"} if core["type"] == "typed-dict" else refusing


def _is_silent_on_extras(core: Any) -> bool:
    """Return whether a type has fields, but does not define what happens to unknown fields.

    A pydantic model defines this with the setting `extra`, or with its own `__init__`.
    """
    if core["type"] not in _WITH_FIELDS or core.get("custom_init") or core.get("root_model"):
        return False
    # In a TypedDict, pydantic also writes its default, "ignore".
    return "extra_fields_behavior" not in core.get("config", {}) and core.get("extra_behavior", "ignore") == "ignore"


def inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with each definition inlined where it is used.

    There are two reasons. First, some clients do not follow references: VS Code's Copilot, Claude Desktop, the Gemini
    and Copilot command lines. Second, the keyword `x-mcp-header` of a nested model is found only in `properties`.

    A definition stays under `$defs` if it contains itself, or if a discriminator refers to it. If the schema would
    become too long, all definitions that are used more than once stay under `$defs` too.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    references = list(_references(schema))
    mapped = {name for keyword, name in references if keyword != "$ref"}  # A discriminator refers to them.
    placeable = {
        name: body
        for name, body in definitions.items()
        if name not in mapped and name not in _reachable(body, definitions)
    }
    if _length(schema, placeable, _LONGEST) >= _LONGEST:
        uses = Counter(name for _, name in references)
        placeable = {name: body for name, body in placeable.items() if uses[name] == 1}
    placed = _place({key: value for key, value in schema.items() if key != "$defs"}, placeable)
    kept = {name: _place(body, placeable) for name, body in definitions.items() if name not in placeable}
    return {**placed, "$defs": kept} if kept else placed


def _references(node: Any, keyword: str = "") -> Iterator[tuple[str, str]]:
    """Yield each reference in a schema as a pair: its keyword, such as `$ref`, and the name of the definition.

    In the mapping of a discriminator, the tag is yielded in place of the keyword.
    """
    if isinstance(node, str) and node.startswith(_DEFS):
        yield keyword, node.removeprefix(_DEFS)
    elif is_object(node):
        for key, child in node.items():
            yield from _references(child, key)
    elif is_array(node):
        for child in node:
            yield from _references(child, keyword)


def _reachable(node: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of all definitions that a schema refers to, directly or through other definitions."""
    reached: set[str] = set()
    pending = [node]
    while pending:
        names = {name for _, name in _references(pending.pop())} - reached
        reached |= names
        pending += [definitions.get(name, {}) for name in names]
    return reached


def _target(node: Mapping[str, Any]) -> str:
    """Return the name of the definition to which the `$ref` of a schema refers, or ""."""
    reference = node.get("$ref")  # An object if `node` has the properties of a type, and one has this name.
    return reference.removeprefix(_DEFS) if isinstance(reference, str) and reference.startswith(_DEFS) else ""


def _length(node: Any, placeable: Mapping[str, Any], most: int) -> int:
    """Count the parts of a schema as if the definitions in `placeable` were inlined. Stop counting at `most`.

    Each object, array and other value is one part.
    """
    children: list[Any] = []
    if is_object(node):
        children = [value for key, value in node.items() if key != "$defs"]
        if target := _target(node):
            children.append(placeable.get(target))
    elif is_array(node):
        children = list(node)
    count = 1
    for child in children:
        if count < most:
            count += _length(child, placeable, most - count)
    return count


def _place(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema in which each reference to one of `definitions` is replaced by the definition itself."""
    if is_array(node):
        return [_place(child, definitions) for child in node]
    if not is_object(node):
        return node
    target = _target(node)
    if target in definitions:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _place({**definitions[target], **beside}, definitions)
    return {key: _place(value, definitions) for key, value in node.items()}


class _Plain(GenerateJsonSchema):
    """pydantic's schema generator, without titles generated from names and without warnings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore the warning about a default that is not JSON. Such a default works, but is not in the schema."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return self._shown(super().model_schema(schema), schema)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._shown(super().dataclass_schema(schema), schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return self._shown(super().typed_dict_schema(schema), schema)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Return the schema of a Decimal without patterns that contain a look-ahead.

        pydantic before 2.14 generates such patterns, but many regex engines reject them.
        """
        shown = super().decimal_schema(schema)
        for part in (shown, *shown.get("anyOf", ())):
            if "(?!" in part.get("pattern", ""):
                del part["pattern"]
        return shown

    def _shown(self, shown: JsonSchemaValue, core: Any) -> JsonSchemaValue:
        """Remove the generated title, and set `additionalProperties` to False if validation rejects unknown fields."""
        cls = core.get("cls")
        if cls is not None and shown.get("title") == cls.__name__:
            del shown["title"]
        extras = _refusing_extras(core).get("config", {}).get("extra_fields_behavior")
        if self.mode == "validation" and "properties" in shown and extras == "forbid":
            shown.setdefault("additionalProperties", False)
        return shown
