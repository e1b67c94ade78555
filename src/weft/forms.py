"""Turn models and schemas into forms for elicitation, and check the answers of users.

A form is a flat schema with the few types of fields that every client can show. You write it as a flat model (a
pydantic model, a dataclass, a TypedDict) or as a JSON Schema. `form_schema` returns the schema to send, `parse_form`
checks an answer.

    str                                 text; `Field(min_length=, max_length=)`
    Annotated[str, EMAIL]               text of the format email
    AnyUrl, date, datetime              text of the format uri, date, date-time
    int, float                          a number; `Field(ge=, le=)`
    bool                                true or false
    Literal["a", "b"], an Enum of text  one of several options
    list[...] or set[...] of options    several options; `Field(min_length=, max_length=)`
    T | None                            an optional field

`Titles` gives titles to options; `Field(title=, description=)` gives a title to a field. Rules that a form cannot
express, such as a pattern, are not sent, but the answer is still checked against them.

An answer is checked against the schema that was sent, then by the model. Fields that the form does not have are
ignored, or refused if the model or schema forbids them (`extra="forbid"`, `"additionalProperties": false`).

The check is as strict as JSON Schema: the text "5" is not an integer, 1 is not true, true is not 1, and 5.0 is the
integer 5. Formats are checked too, without network access and in linear time:

    email       name@host in ASCII, as in RFC 5321, without quoted names and IP addresses
    uri         with a scheme, as in RFC 3986
    date        an existing day, `YYYY-MM-DD`
    date-time   as in RFC 3339, with `Z` or an offset; without leap seconds, which Python does not have
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import msgspec
from pydantic import Field, GetJsonSchemaHandler, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from weft.protocol.names import check_uri, printable
from weft.protocol.schema import SchemaError, compile_schema, is_array, is_object, json_type

__all__ = [
    "EMAIL", "Issue", "Titles", "check_answer", "check_form", "fields_with_links", "fields_with_secrets", "form_schema",
    "has_link", "options_of", "parse_form",
]  # fmt: skip

EMAIL = Field(json_schema_extra={"format": "email"})
"""Marks a text field as an email address: `Annotated[str, EMAIL]`. Does not need the package email-validator."""

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")  # the boundary between two words of a name
_SECRET = re.compile(
    r"(?:^|_)(?:password|passphrase|passcode|passwd|pwd|pin|secret|token|api_?key|access_?key|private_?key|credentials?"
    r"|card_?number|cvc|cvv)(?:_|$)"
)
_SELECT = {"enum", "enumNames", "oneOf"}
_KEYWORDS: Mapping[str, set[str]] = {
    "string": {"minLength", "maxLength", "format", *_SELECT},
    "number": {"minimum", "maximum"},
    "integer": {"minimum", "maximum"},
    "boolean": set(),
    "array": {"minItems", "maxItems", "items"},
}
_EVERYWHERE = {"type", "title", "description", "default"}
_ROOT = ("$schema", "type", "properties", "required")
_ROOT_LEFT_OUT = {"title", "description", "additionalProperties", "$defs"}  # allowed in the schema, but not sent
_UNSAID = (
    "deprecated", "examples", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "pattern", "readOnly",
    "uniqueItems", "writeOnly",
)  # fmt: skip
_ALLOWED = (
    "A form is flat. Each field is text (also of the format email, uri, date or date-time), a number, true or false, "
    "one of several text options, or a list of such options."
)
_MAX_ISSUES = 10
_LINK = re.compile("https?://", re.IGNORECASE)
# Exceptions that pydantic and `Titles` raise for a model that has no JSON Schema.
_UNUSABLE = (PydanticUserError, NameError, ImportError, ValueError)


@dataclass(frozen=True, eq=False)  # eq=False makes it hashable, which `Annotated[..., Titles(...)] | None` needs
class Titles:
    """Titles that the user sees for the options of a field.

        @dataclass
        class Seat:
            place: Annotated[Literal["w", "a"], Titles({"w": "Window", "a": "Aisle"})]

    If an option is not listed, its title is its value.
    """

    titles: Mapping[str, str]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema of the options, with the titles added."""
        return self._entitle(handler(core_schema), handler)

    def _entitle(self, schema: dict[str, Any], handler: GetJsonSchemaHandler) -> dict[str, Any]:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**handler.resolve_ref_schema(schema), **beside}
        if "items" in schema:
            return {**schema, "items": self._entitle(schema["items"], handler)}
        if "anyOf" in schema:
            return {**schema, "anyOf": [self._entitle(option, handler) for option in schema["anyOf"]]}
        options = schema.pop("enum", None) or [schema.pop("const", None)]
        if options == [None]:
            return schema  # there are no options; the check of the form reports this
        if unknown := sorted(set(self.titles) - set(options)):
            raise ValueError(f"Titles names {unknown[0]!r}, which is not among the options {_listed(options)}.")
        if "title" not in beside:
            schema.pop("title", None)  # the name of the Enum is not a title for users
        return {**schema, "oneOf": [{"const": option, "title": self.titles.get(option, option)} for option in options]}


def form_schema(model: type | Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a form, as it is sent to clients; raise ValueError if clients cannot show a field.

    >>> @dataclass
    ... class Seat:
    ...     row: int
    ...     note: str | None
    >>> form_schema(Seat)
    {'type': 'object', 'properties': {'row': {'type': 'integer'}, 'note': {'type': 'string'}}, 'required': ['row']}
    """
    if isinstance(model, Mapping):
        return check_form(model)
    return _copied(_form(model).schema)


def check_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form's JSON Schema as it is sent to clients; raise ValueError if it is not valid for a form.

    Some keywords at the top level, such as `additionalProperties`, are accepted but not sent.

    >>> check_form({"type": "object", "properties": {"age": {"type": "integer"}}, "additionalProperties": False})
    {'type': 'object', 'properties': {'age': {'type': 'integer'}}}
    """
    plain = _copied(schema)
    if plain.get("type") != "object" or not is_object(plain.get("properties")):
        raise ValueError(f'The schema of a form must have "type": "object" and "properties". {_ALLOWED}')
    if unknown := sorted(set(plain) - set(_ROOT) - _ROOT_LEFT_OUT):
        raise ValueError(f"The schema of a form cannot have {unknown[0]!r}; remove it. {_ALLOWED}")
    form = {keyword: plain[keyword] for keyword in _ROOT if keyword in plain}
    for name, field in form["properties"].items():
        if wrong := _wrong(field):
            raise ValueError(f"Property {name!r} cannot be asked in a form: {wrong}. {_ALLOWED}")
    _check_json_schema(msgspec.json.encode(form))
    for name in form.get("required", ()):
        if name not in form["properties"]:
            raise ValueError(f"{name!r} is required, but is not a property of the form; add it to the properties.")
    for name, field in form["properties"].items():
        if wrong := _wrong_default(field):
            raise ValueError(f"The default of property {name!r} does not fit it: {wrong}")
    return form


def fields_with_links(form: Mapping[str, Any]) -> list[str]:
    """Return the names of fields whose schema contains a web address. Forms should not contain web addresses.

    >>> fields_with_links({"properties": {"ok": {"type": "boolean", "description": "See https://example.com/terms"}}})
    ['ok']
    """
    shown = {name: json.dumps(field, ensure_ascii=False) for name, field in form["properties"].items()}
    return [name for name, text in shown.items() if has_link(text)]


def fields_with_secrets(form: Mapping[str, Any]) -> list[str]:
    """Return the names of text fields that seem to ask for a secret. Forms must not ask for secrets.

    >>> fields_with_secrets({"properties": {"apiKey": {"type": "string"}, "keyboard": {"type": "string"}}})
    ['apiKey']
    """
    texts = (
        name for name, field in form["properties"].items() if field["type"] == "string" and not _SELECT & set(field)
    )
    return [name for name in texts if _SECRET.search(_WORDS.sub("_", name).lower())]


def has_link(text: str) -> bool:
    """Return whether a text contains a web address."""
    return _LINK.search(text) is not None


def parse_form(model: type | Mapping[str, Any], content: Mapping[str, Any] | None) -> Any:
    """Check the answer `content` and return it, as an instance of `model`, or as a dict if `model` is a schema.

    Defaults of the model are filled in. Fields that the form does not have are ignored, or refused if the model or
    schema forbids them. Raises ValueError if the answer is not valid for the form. The error message contains names of
    fields, but never their values.

    >>> @dataclass
    ... class Seat:
    ...     row: int
    ...     note: str | None
    >>> parse_form(Seat, {"row": 12})
    Seat(row=12, note=None)
    """
    given = content or {}
    if isinstance(model, Mapping):
        return _checked(check_form(model), given, forbids_others=model.get("additionalProperties") is False)
    form = _form(model)
    empty = {name for name in form.may_be_none if given.get(name) is None}  # left out, or null
    filled = {name: value for name, value in given.items() if name not in empty}
    answer = _checked(form.schema, filled, forbids_others=form.forbids_others)
    nulls = {name: None for name in empty if name in given or name in form.nullable}
    try:
        # Validated from JSON, because a strict model accepts text as a date only in JSON.
        return form.adapter.validate_json(json.dumps({**answer, **nulls}))
    except ValidationError as error:
        raise _misfit([_issue(problem) for problem in error.errors(include_input=False, include_url=False)]) from None


def _checked(form: Mapping[str, Any], given: Mapping[str, Any], *, forbids_others: bool) -> dict[str, Any]:
    """Return the answer `given` with only the fields of the form. In integer fields, 5.0 becomes 5.

    Raises ValueError if the answer is not valid for the form, or if `forbids_others` is True and it has other fields.
    """
    fields = form["properties"]
    issues: list[Issue] = check_answer(form, given)
    if forbids_others:
        issues += [(name, "the form has no such field.") for name in given if name not in fields]
    if issues:
        raise _misfit(issues)
    return {
        name: int(given[name]) if field["type"] == "integer" else given[name]
        for name, field in fields.items()
        if name in given
    }


# --- from a model to a form


@dataclass(frozen=True, slots=True)
class _Form:
    adapter: TypeAdapter[Any]
    schema: dict[str, Any]
    may_be_none: list[str]
    nullable: list[str]  # optional fields without a default; they become None if they are not in the answer
    forbids_others: bool


@lru_cache(maxsize=512)
def _form(model: type) -> _Form:
    adapter, schema = _described(model)
    definitions = schema.get("$defs", {})
    schema = _resolved(schema, definitions)
    if schema.get("type") != "object" or "properties" not in schema:
        raise ValueError(f"{_type_name(model)} is not a form; write a class with a field for each question. {_ALLOWED}")
    fields: dict[str, Any] = {}
    may_be_none: list[str] = []
    for name, described in schema["properties"].items():
        fields[name], is_optional = _field(described, definitions)
        if wrong := _wrong(fields[name]):
            raise ValueError(_refusal(model, name, wrong))
        if _wrong_default(fields[name]):
            del fields[name]["default"]  # the model uses a marker as the default; it cannot be shown as an answer
        if is_optional:
            may_be_none.append(name)
    nullable = [name for name in schema.get("required", ()) if name in may_be_none]
    required = [name for name in schema.get("required", ()) if name not in nullable]
    form = {"type": "object", "properties": fields, **({"required": required} if required else {})}
    return _Form(adapter, form, may_be_none, nullable, schema.get("additionalProperties") is False)


def _described(model: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Return the validator and the JSON Schema of a model. Raises ValueError if the model has no JSON Schema."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        return adapter, adapter.json_schema(schema_generator=_Generator)
    except _UNUSABLE as error:
        for name, annotation in _hints(model).items():
            try:
                TypeAdapter[Any](annotation).json_schema(schema_generator=_Generator)
            except _UNUSABLE as cause:
                raise ValueError(_refusal(model, name, _reason(cause))) from None
        raise ValueError(f"{_type_name(model)} cannot be made a form: {_reason(error)}. {_ALLOWED}") from None


def _field(described: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema of a field as it is sent to clients, and whether the field may be None."""
    field, may_be_none = dict(described), False
    options = field.get("anyOf", [])
    values = [option for option in options if option != {"type": "null"}]
    if len(values) == 1 and len(options) > 1:
        del field["anyOf"]
        field, may_be_none = {**values[0], **field}, True
    field = _resolved(field, definitions)
    # For integers, > 5 is the same as >= 6. For other numbers, >= 5 is sent, and the model checks > 5.
    step = 1 if field.get("type") == "integer" else 0
    if (above := field.get("exclusiveMinimum")) is not None:
        field.setdefault("minimum", above + step)
    if (below := field.get("exclusiveMaximum")) is not None:
        field.setdefault("maximum", below - step)
    if is_object(items := field.get("items")):
        field["items"] = items = _several(_resolved(items, definitions))
        if is_array(default := field.get("default")):  # a set has another order in each process
            order = options_of(items)
            field["default"] = sorted(default, key=lambda option: order.index(option) if option in order else -1)
    left_out = [*_UNSAID, "default"] if field.get("default") is None else _UNSAID
    return {keyword: value for keyword, value in field.items() if keyword not in left_out}, may_be_none


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema, with its `$ref` replaced by the referenced definition.

    The title of the definition is left out, because it is a class name. A `const` is replaced by an `enum` with one
    option.
    """
    schema = dict(schema)
    if reference := schema.pop("$ref", None):
        target = {key: value for key, value in definitions[reference.rpartition("/")[2]].items() if key != "title"}
        schema = {**target, **schema}
    if isinstance(schema.get("const"), str):
        schema["enum"] = [schema.pop("const")]
    return schema


def _several(items: dict[str, Any]) -> dict[str, Any]:
    """Return the `items` schema of a list of options in the format that MCP defines.

    Options with titles are in `anyOf`, not in `oneOf`. The returned schema has no title and no description.
    """
    if "oneOf" in items:
        return {"anyOf": items["oneOf"]}
    return {key: value for key, value in items.items() if key not in {"title", "description"}}


class _Generator(GenerateJsonSchema):
    """The JSON Schema generator of pydantic, without automatic titles and without warnings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore warnings about defaults that JSON cannot express: only the model uses them, clients do not."""


def _refusal(model: Any, name: str, wrong: str) -> str:
    annotation = _hints(model).get(name)
    kind = "" if annotation is None else f" has the type {_type_name(annotation)}, which"
    return f"Field {name!r} of {_type_name(model)}{kind} cannot be asked in a form: {wrong}. {_ALLOWED}"


def _hints(model: Any) -> dict[str, Any]:
    try:
        return get_type_hints(model)
    except (NameError, TypeError):
        return {}


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return repr(annotation).replace("typing.", "")[:120]


def _reason(error: Exception) -> str:
    """Return a text that says why pydantic cannot create a schema for a type, and what to do."""
    if isinstance(error, ImportError):
        return "it needs the package email-validator; install it, or write Annotated[str, EMAIL]"
    code = error.code if isinstance(error, PydanticUserError) else None
    if code == "typed-dict-version":
        return "on this Python, import TypedDict from typing_extensions instead of typing"
    if code == "class-not-fully-defined" or isinstance(error, NameError):
        return "one of its types cannot be found; define that type at the top of the module"
    if isinstance(error, ValueError):
        return str(error).rstrip(".")
    return "it has a type that cannot be written as JSON"


# --- rules for the fields of a form


def _wrong(field: Any) -> str | None:
    """Return why a schema is not allowed as a field of a form, or None if it is allowed."""
    kind = field.get("type") if is_object(field) else None
    if not is_object(field) or not isinstance(kind, str):
        return "it is not of one plain type"
    if kind not in _KEYWORDS:
        return f'it is of the type "{kind[:40]}"'
    if unknown := sorted(set(field) - _EVERYWHERE - _KEYWORDS[kind]):
        return f"a field of the type {kind!r} cannot have {unknown[0][:60]!r}"
    if kind == "array":
        return _wrong_items(field.get("items"))
    format = field.get("format")
    if format == "password":
        return "a form must not ask for secrets; send the user to a page with `elicit_url`"
    if format is not None and format not in _FORMATS:
        return f"its format is {str(format)[:40]!r}, but a form can only have {_listed([*_FORMATS])}"
    return _wrong_options(field) if _SELECT & set(field) else None


def _wrong_items(items: Any) -> str | None:
    if not is_object(items) or not ("enum" in items or "anyOf" in items):
        return "a list needs options to choose from, such as list[Literal['a', 'b']]"
    if set(items) - {"type", "enum", "anyOf"} or ("enum" in items and "anyOf" in items):
        return "the items of a list can only have 'type' and either 'enum' or 'anyOf'"
    if items.get("type", "string") != "string" or ("enum" in items and "type" not in items):
        return 'options are text: its items need "type": "string"'
    return _wrong_options(items)


def _wrong_options(field: dict[str, Any]) -> str | None:
    if len({"enum", "oneOf", "anyOf"} & set(field)) != 1:
        return "its options are given either by 'enum' or, with titles, by 'oneOf'"
    titled = field.get("oneOf", field.get("anyOf", []))
    if not is_array(titled) or not all(_is_titled(option) for option in titled):
        return 'each option with a title must be {"const": text, "title": text}'
    options = options_of(field)
    if not options or not all(isinstance(option, str) for option in options):
        return "its options are not all text"
    if len(set(options)) < len(options):
        return "one of its options occurs twice"
    names = field.get("enumNames", options)
    if not is_array(names) or len(names) != len(options) or not all(isinstance(name, str) for name in names):
        return "'enumNames' needs a name for each option"
    return None


def _is_titled(option: Any) -> bool:
    return is_object(option) and set(option) == {"const", "title"} and isinstance(option["title"], str)


def _wrong_default(field: dict[str, Any]) -> str | None:
    """Return why the default of a field is not a valid answer, or None if it is valid or there is no default."""
    if "default" not in field:
        return None
    issues = check_answer({"properties": {"": field}}, {"": field["default"]})
    return issues[0][1] if issues else None


# --- schemas as JSON, and the errors about an answer


def _copied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema that has only JSON types; raise SchemaError if the schema contains other types."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(schema), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise SchemaError("A form's schema can only contain dicts, lists, text, numbers, booleans and None.") from None
    return copy


@lru_cache(maxsize=512)  # the same form is sent many times
def _check_json_schema(schema: bytes) -> None:
    compile_schema(msgspec.json.decode(schema))


def _issue(problem: Mapping[str, Any]) -> tuple[str | None, str]:
    """Convert one error of pydantic to the name of the wrong field and a sentence about the error."""
    location = problem["loc"]
    name = str(location[0]) if location else None
    if problem["type"] == "missing":
        return name, "it is missing."
    if problem["type"] == "extra_forbidden":
        return name, "the form has no such field."
    message = str(problem["msg"])
    for prefix in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(prefix)
    return name, message.replace("Input should", "it should", 1)[:250].rstrip(".") + "."


def _misfit(issues: Sequence[tuple[str | None, str]]) -> ValueError:
    """Return the error for an invalid answer, with one sentence for each wrong field (at most ten sentences)."""
    first: dict[str | None, str] = {}
    for name, message in issues:
        first.setdefault(name, message)
    texts = [
        message if name is None else f"{printable(name[:64], '?')!r}: {message}" for name, message in first.items()
    ]
    return ValueError(f"The answer does not fit the form. {' '.join(texts[:_MAX_ISSUES])}")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(repr(word) for word in words[:20])


Issue = tuple[str, str]
"""The name of a wrong field, and a sentence that says what is wrong with its value."""


def check_answer(form: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Issue]:
    """Return the errors in an answer to a form, at most one for each field. Error texts never contain the values.

    >>> form = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    >>> check_answer(form, {"age": "5"}), check_answer(form, {"age": 5.0})
    ([('age', 'it should be an integer; it is a string.')], [])
    """
    found: list[Issue] = []
    required = form.get("required", ())
    for name, field in form["properties"].items():
        missing = "it is missing" if name in required else None
        wrong = _wrong_answer(field, answer[name]) if name in answer else missing
        if wrong:
            found.append((name, f"{wrong}."))
    return found


def options_of(field: Mapping[str, Any]) -> Sequence[Any]:
    """Return the options in the schema `field`, or an empty list if it has no options.

    `field` is the schema of a field, or the `items` schema of a list field.
    """
    titled: Sequence[Any] = field.get("oneOf", field.get("anyOf", ()))
    options = field.get("enum", [option["const"] for option in titled])
    return options if is_array(options) else []


def _wrong_answer(field: Mapping[str, Any], value: Any) -> str | None:
    """Return what is wrong with `value` as the answer to one field, or None if it is valid."""
    kind = field["type"]
    expected, is_right = _TYPES[kind]
    if not is_right(value):
        return f"it should be {expected}; it is {json_type(value)}"
    if kind == "array":
        options = options_of(field["items"])
        if not all(isinstance(item, str) and item in options for item in value):
            return "it should contain only options of the form"
        if len(set(value)) < len(value):
            return "it should not contain an option twice"
        return _out_of_bounds(len(value), field.get("minItems"), field.get("maxItems"), "options")
    if kind != "string":
        return _out_of_bounds(value, field.get("minimum"), field.get("maximum"))
    if (options := options_of(field)) and value not in options:
        return "it should be one of the options"
    wrong = _out_of_bounds(len(value), field.get("minLength"), field.get("maxLength"), "characters")
    format = field.get("format")
    if wrong is None and format is not None and not _has_format(value, format):
        return f"it should be {_FORMATS[format][2]}"
    return wrong


def _out_of_bounds(size: float, least: float | None, most: float | None, unit: str = "") -> str | None:
    should = f"it should {'have' if unit else 'be'}"
    if least is not None and size < least:
        return f"{should} at least {least} {unit}".rstrip()
    if most is not None and size > most:
        return f"{should} at most {most} {unit}".rstrip()
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# For each type: its description in error messages, and a function that checks whether a value has this type.
_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "array": ("a list of options", is_array),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "integer": ("an integer", lambda value: _is_number(value) and value % 1 == 0),
    "number": ("a number", _is_number),
    "string": ("text", lambda value: isinstance(value, str)),
}


# --- formats

_EMAIL_LENGTH = 254
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = rf"(?=.{{0,{_EMAIL_LENGTH}}}\Z){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DATE_TIME = rf"{_DATE}[Tt][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

# For each format: its pattern, a function that raises ValueError for other mistakes, its description for errors.
_FORMATS: Mapping[str, tuple[re.Pattern[str], Callable[[str], Any], str]] = {
    "email": (re.compile(_EMAIL), str, "an email address, such as 'ann@example.com'"),
    "uri": (re.compile(".+"), check_uri, "a URI that begins with its scheme"),
    "date": (re.compile(_DATE), date.fromisoformat, "a date that exists, written YYYY-MM-DD"),
    "date-time": (
        re.compile(_DATE_TIME),
        lambda text: datetime.fromisoformat(text[:19]),  # without the fraction and the offset
        "a time that exists, written YYYY-MM-DDThh:mm:ss and then Z or an offset",
    ),
}


def _has_format(text: str, format: str) -> bool:
    pattern, parse, _ = _FORMATS[format]
    try:
        parse(text)
    except ValueError:
        return False
    return pattern.fullmatch(text) is not None
