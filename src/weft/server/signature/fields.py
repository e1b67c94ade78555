"""Build one validator and one schema from parameters of any type.

Parameters of any type: pydantic reads the types, and makes one validator and one schema of them.

Owns what is refused because of a type or a default. The parameters become the fields of a TypedDict, not of a model: a
parameter may then have any name, and one that is absent takes the function's own default.

Sets and mappings of a parameter whose keys a client can choose so that all of them have one hash.

Owns which types these are, and what is refused. Python's hash of a text is secret, but that of a number is the number
modulo 2**61 - 1, and that of a tuple, a UUID or a Decimal is made of such hashes. Keys that share a hash are compared
one by one, so that twenty thousand of them take seconds. Here each key is looked at before it is put in; a few with
one hash are no harm, and happen (-1 and -2). Tools without such parameters pay nothing.

The JSON Schema of Python types as a peer should see it: no generated titles, no reference that is used once.

Owns the wording of schemas that Weft makes. Whether a type can be described at all is found out here, and told by the
caller, who knows the parameter.
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
from weft.server.signature.docstrings import Docstring
from weft.server.signature.errors import ArgumentsError, reason, remedy, type_name
from weft.server.signature.plain import Arguments, is_hashable, shown_default, stopping_early, with_each

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


_MOST_ALIKE = 16
_KEYS = {
    "counter": "keys_schema",
    "dict": "keys_schema",
    "frozen-dict": "keys_schema",
    "frozendict": "keys_schema",
    "frozenset": "items_schema",
    "ordered-dict": "keys_schema",
    "set": "items_schema",
}
# Types whose hash is secret, or of whose values but few can have the same one.
_HARMLESS = frozenset({"bool", "bytes", "date", "enum", "float", "literal", "none", "str"})
_REFUSAL = (
    f"More than {_MOST_ALIKE} different items of a set, or names of an object, have one and the same hash in Python, "
    "which would take it too long. Send fewer of them in one call."
)


class _Seen(threading.local):
    """The keys of the call that is being validated in this thread, by their hash."""

    by_hash: dict[int, list[Any]]


_seen = _Seen()


def guarded(core: Any) -> Any:
    """The same core schema, but with keys that could have one hash looked at; the very same one if there are none."""
    found: list[str] = []

    def guard(schema: dict[str, Any]) -> dict[str, Any]:
        place = _KEYS.get(schema["type"])
        if place is None:
            return schema
        keys: Any = schema.get(place)
        if keys is None and place == "keys_schema":  # any name of a JSON object, which is a text
            return schema
        if keys is not None and _is_harmless(keys):
            return schema
        found.append(place)
        return {**schema, place: core_schema.no_info_after_validator_function(_look_at, keys or {"type": "any"})}

    changed = with_each(core, guard)
    return changed if found else core


def watching(validate: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The same validator, of a schema that `guarded` has changed."""

    def watched(raw: bytes, **options: Any) -> dict[str, Any]:
        _seen.by_hash = {}
        try:
            return validate(raw, **options)
        finally:
            _seen.by_hash = {}  # what came in is not held

    return watched


def _is_harmless(keys: Any) -> bool:
    return keys["type"] in _HARMLESS or (keys["type"] in ("default", "nullable") and _is_harmless(keys["schema"]))


def _look_at(key: Any) -> Any:
    """Let a key pass, unless too many others have its hash."""
    try:
        alike = _seen.by_hash.setdefault(hash(key), [])
    except TypeError:  # it has none: the set says so
        return key
    if key not in alike:
        if len(alike) == _MOST_ALIKE:
            raise ArgumentsError([_REFUSAL])  # no ValueError, upon which pydantic would go on with the next key
        alike.append(key)
    return key


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
