"""Describe the forms of elicitation, and check what was filled in.

The forms of elicitation: flat schemas of the few kinds of field that every client can show (ELI-06).

A form is written as a flat model (a pydantic model, a dataclass, a TypedDict) or as a JSON Schema. `form_schema` says
what is asked, `parse_form` checks what was answered.

    str                                 text; `Field(min_length=, max_length=)`
    Annotated[str, EMAIL]               text of the format email
    AnyUrl, date, datetime              text of the format uri, date, date-time
    int, float                          a number; `Field(ge=, le=)`
    bool                                true or false
    Literal["a", "b"], an Enum of text  one of several options
    list[...] or set[...] of those      several of them; `Field(min_length=, max_length=)`
    T | None                            may be left out

Options have titles by `Titles`; fields have theirs, and descriptions, by `Field(title=, description=)`. What a form
cannot say of a field, such as a pattern, is left out of the schema, and checked in the answer all the same.

An answer is checked against the schema that was sent, strictly, and then by the model. Fields that were not
asked for are left out, whatever the model would take; a model or schema that forbids them (`extra="forbid"`,
`"additionalProperties": false`) has them refused.

Owns what a form may be. It asks nobody, and knows nothing of how questions travel.

Whether the answer to a form fits the schema that was sent, field by field (ELI-26).

Strict, as JSON Schema is: the text "5" is no integer, 1 is not true, true is not 1, and 5.0 is the integer 5. Formats
count too; none of their checks looks anything up, and each is linear in its input (R7):

    email       name@host in ASCII, as RFC 5321 has it, without quoted names and IP addresses
    uri         with a scheme, as RFC 3986 has it
    date        a day that the calendar has, `YYYY-MM-DD`
    date-time   as RFC 3339 has it, with `Z` or an offset; without leap seconds, which Python has not

Owns the check of one flat answer. What may be asked, and what becomes of the answer, is for `forms` to say.
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
    "EMAIL",
    "Issue",
    "Titles",
    "check_answer",
    "check_form",
    "fields_with_links",
    "fields_with_secrets",
    "form_schema",
    "has_link",
    "options_of",
    "parse_form",
]

EMAIL = Field(json_schema_extra={"format": "email"})
"""Marks text as an email address: `Annotated[str, EMAIL]`. Nothing else needs installing."""

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")  # between the words of a name
_SECRET = re.compile(
    r"(?:^|_)(?:password|passphrase|passcode|passwd|pwd|pin|secret|token|api_?key|access_?key|private_?key|credentials?"
    r"|card_?number|cvc|cvv)(?:_|$)"
)
_FORMATS = ("email", "uri", "date", "date-time")
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
_ROOT_LEFT_OUT = {"title", "description", "additionalProperties", "$defs"}  # a form has no place for them
_UNSAID = (
    "deprecated", "examples", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "pattern", "readOnly",
    "uniqueItems", "writeOnly",
)  # fmt: skip
_ALLOWED = (
    "A form is flat, and its fields are text (also of the format email, uri, date or date-time), numbers, true or "
    "false, one of several options of text, or a list of such options."
)
_MAX_ISSUES = 10
_LINK = re.compile("https?://", re.IGNORECASE)
_UNUSABLE = (PydanticUserError, NameError, ImportError, ValueError)  # what pydantic raises, and `Titles`


@dataclass(frozen=True, eq=False)  # by identity, and so hashable: `Annotated[..., Titles(...)] | None` needs it
class Titles:
    """What the options of a field are called, where their values say too little.

    @dataclass
    class Seat:
        place: Annotated[Literal["w", "a"], Titles({"w": "Window", "a": "Aisle"})]

    An option that it does not name is called by its value.
    """

    titles: Mapping[str, str]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Put the titles into the schema of the options, wherever in it they are."""
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
            return schema  # not a choice: what it is, the check of the form will say
        if unknown := sorted(set(self.titles) - set(options)):
            raise ValueError(f"Titles names {unknown[0]!r}, which is not among the options {_listed(options)}.")
        if "title" not in beside:
            schema.pop("title", None)  # it is but the name of the Enum
        return {**schema, "oneOf": [{"const": option, "title": self.titles.get(option, option)} for option in options]}


def form_schema(model: type | Mapping[str, Any]) -> dict[str, Any]:
    """The schema to send for a form; ValueError that names the field when no client could show it.

    >>> @dataclass
    ... class Seat:
    ...     row: int
    ...     note: str | None
    >>> form_schema(Seat)
    {'type': 'object', 'properties': {'row': {'type': 'integer'}, 'note': {'type': 'string'}}, 'required': ['row']}
    """
    if isinstance(model, Mapping):
        return check_form(model)
    return msgspec.json.decode(_form(model).encoded, type=dict[str, Any])  # a copy of its own, and cheap


def check_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as it is sent; ValueError that names the property when it is not that of a form (ELI-06).

    >>> check_form({"type": "object", "properties": {"age": {"type": "integer"}}, "additionalProperties": False})
    {'type': 'object', 'properties': {'age': {'type': 'integer'}}}
    """
    plain = _plain(schema)
    if plain.get("type") != "object" or not is_object(plain.get("properties")):
        raise ValueError(f'The schema of a form has "type": "object" and "properties". {_ALLOWED}')
    if unknown := sorted(set(plain) - set(_ROOT) - _ROOT_LEFT_OUT):
        raise ValueError(f"The schema of a form cannot have {unknown[0]!r}; remove it. {_ALLOWED}")
    form = {keyword: plain[keyword] for keyword in _ROOT if keyword in plain}
    for name, field in form["properties"].items():
        if wrong := _wrong(field):
            raise ValueError(f"Property {name!r} cannot be asked in a form: {wrong}. {_ALLOWED}")
    _check_json_schema(msgspec.json.encode(form))
    for name in form.get("required", ()):
        if name not in form["properties"]:
            raise ValueError(f"{name!r} is required and not among the properties of the form; add it there.")
    for name, field in form["properties"].items():
        if wrong := _wrong_default(field):
            raise ValueError(f"The default of property {name!r} does not fit it: {wrong}")
    return form


def fields_with_links(form: Mapping[str, Any]) -> list[str]:
    """The fields that show a web address, in whatever they say of themselves, and had better not (ELI-20).

    >>> fields_with_links({"properties": {"ok": {"type": "boolean", "description": "See https://example.com/terms"}}})
    ['ok']
    """
    shown = {name: json.dumps(field, ensure_ascii=False) for name, field in form["properties"].items()}
    return [name for name, text in shown.items() if has_link(text)]


def fields_with_secrets(form: Mapping[str, Any]) -> list[str]:
    """The text fields that by their names ask for what a form must not ask for (ELI-09).

    >>> fields_with_secrets({"properties": {"apiKey": {"type": "string"}, "keyboard": {"type": "string"}}})
    ['apiKey']
    """
    texts = (
        name for name, field in form["properties"].items() if field["type"] == "string" and not _SELECT & set(field)
    )
    return [name for name in texts if _SECRET.search(_WORDS.sub("_", name).lower())]


def has_link(text: str) -> bool:
    """Whether a web address is in it."""
    return _LINK.search(text) is not None


def parse_form(model: type | Mapping[str, Any], content: Mapping[str, Any] | None) -> Any:
    """The checked answer: an instance of the model, or a dict if the form was a schema; ValueError if it does not fit.

    Defaults of the model are filled in; fields that the form does not have are left out, or refused where the model or
    schema forbids them. The text of the error names fields and never quotes what was answered.

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
    empty = {name for name in form.may_be_none if given.get(name) is None}  # left out, or null: the same to the model
    filled = {name: value for name, value in given.items() if name not in empty}
    answer = _checked(form.schema, filled, forbids_others=form.forbids_others)
    nulls = {name: None for name in empty if name in given or name in form.nullable}
    try:
        # As JSON: there a date is text also to a model that is strict.
        return form.adapter.validate_json(json.dumps({**answer, **nulls}))
    except ValidationError as error:
        raise _misfit([_issue(problem) for problem in error.errors(include_input=False, include_url=False)]) from None


def _checked(form: Mapping[str, Any], given: Mapping[str, Any], *, forbids_others: bool) -> dict[str, Any]:
    """What was asked for, of what was answered, with whole numbers as such; ValueError if it does not fit."""
    fields = form["properties"]
    issues: list[Issue] = check_answer(form, given)
    if forbids_others:
        issues += [(name, "it was not asked for.") for name in given if name not in fields]
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
    encoded: bytes
    may_be_none: list[str]
    nullable: list[str]  # those of them without a default: left out, they are None
    forbids_others: bool


@lru_cache(maxsize=512)
def _form(model: type) -> _Form:
    adapter, schema = _described(model)
    definitions = schema.get("$defs", {})
    schema = _resolved(schema, definitions)
    if schema.get("type") != "object" or "properties" not in schema:
        raise ValueError(
            f"{_type_name(model)} is not a form; write a class with a field for each thing that is asked. {_ALLOWED}"
        )
    fields: dict[str, Any] = {}
    may_be_none: list[str] = []
    for name, described in schema["properties"].items():
        fields[name], is_optional = _field(described, definitions)
        if wrong := _wrong(fields[name]):
            raise ValueError(_refusal(model, name, wrong))
        if _wrong_default(fields[name]):
            del fields[name]["default"]  # as a mark of what was left out; nobody should be shown it, and send it back
        if is_optional:
            may_be_none.append(name)
    nullable = [name for name in schema.get("required", ()) if name in may_be_none]
    required = [name for name in schema.get("required", ()) if name not in nullable]
    form = {"type": "object", "properties": fields, **({"required": required} if required else {})}
    encoded = msgspec.json.encode(form)
    return _Form(adapter, form, encoded, may_be_none, nullable, schema.get("additionalProperties") is False)


def _described(model: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """A model's validator and JSON Schema; when it has none, ValueError that names the field which is to blame."""
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
    """A field in the words of a form, as far as there are words for it; and whether it may be None."""
    field, may_be_none = dict(described), False
    options = field.get("anyOf", [])
    values = [option for option in options if option != {"type": "null"}]
    if len(values) == 1 and len(options) > 1:
        del field["anyOf"]
        field, may_be_none = {**values[0], **field}, True
    field = _choice(_resolved(field, definitions))
    step = 1 if field.get("type") == "integer" else 0  # the next whole number says the same; of others, the bound
    if (above := field.get("exclusiveMinimum")) is not None:
        field.setdefault("minimum", above + step)
    if (below := field.get("exclusiveMaximum")) is not None:
        field.setdefault("maximum", below - step)
    if is_object(items := field.get("items")):
        field["items"] = items = _several(_choice(_resolved(items, definitions)))
        if is_array(default := field.get("default")):  # of a set: in an order that every process agrees on
            order = _options(items)
            field["default"] = sorted(default, key=lambda option: order.index(option) if option in order else -1)
    left_out = [*_UNSAID, "default"] if field.get("default") is None else _UNSAID
    return {keyword: value for keyword, value in field.items() if keyword not in left_out}, may_be_none


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """With what it refers to put in; the title there is but the name of a class."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target = {key: value for key, value in definitions[reference.rpartition("/")[2]].items() if key != "title"}
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}


def _choice(schema: dict[str, Any]) -> dict[str, Any]:
    """One option is a choice too."""
    if isinstance(schema.get("const"), str):
        return {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"]]}
    return dict(schema)


def _several(items: dict[str, Any]) -> dict[str, Any]:
    """The options of a list: titled ones are under `anyOf`, without a type; what describes an Enum has no place."""
    if "oneOf" in items:
        return {"anyOf": items["oneOf"]}
    return {key: value for key, value in items.items() if key not in {"title", "description"}}


class _Generator(GenerateJsonSchema):
    """pydantic's generator without the titles it makes up from names, and without its warnings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say nothing: a default that JSON cannot show is left out of the schema, and still used."""


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
    """Why there is no schema, in words of the user's."""
    if isinstance(error, ImportError):
        return "it needs the package email-validator; install it, or write Annotated[str, EMAIL]"
    code = error.code if isinstance(error, PydanticUserError) else None
    if code == "typed-dict-version":
        return "on this Python, import TypedDict from typing_extensions instead of typing"
    if code == "class-not-fully-defined" or isinstance(error, NameError):
        return "a type that it names cannot be found; define it at the top of the module"
    if isinstance(error, ValueError):
        return str(error).rstrip(".")
    return "it has a type that has no form in JSON"


# --- what a form may have


def _wrong(field: Any) -> str | None:
    """Why this is not a field of a form, or None when it is."""
    kind = field.get("type") if is_object(field) else None
    if not is_object(field) or not isinstance(kind, str):
        return "it is not of one plain type"
    if kind not in _KEYWORDS:
        return f'it is of the type "{kind[:40]}"'
    if unknown := sorted(set(field) - _EVERYWHERE - _KEYWORDS[kind]):
        return f"{unknown[0][:60]!r} is not for a field of the type {kind!r}"
    if kind == "array":
        return _wrong_items(field.get("items"))
    format = field.get("format")
    if format == "password":
        return "secrets are never asked by form; send the user to a page with `elicit_url`"  # ELI-09
    if format is not None and format not in _FORMATS:
        return f"its format is {str(format)[:40]!r}, and a form has {_listed(_FORMATS)}"
    return _wrong_options(field) if _SELECT & set(field) else None


def _wrong_items(items: Any) -> str | None:
    if not is_object(items) or not ("enum" in items or "anyOf" in items):
        return "a list needs options to choose from, such as list[Literal['a', 'b']]"
    if set(items) - {"type", "enum", "anyOf"} or ("enum" in items and "anyOf" in items):
        return "the items of a list are options, and nothing else can be said of them"
    if items.get("type", "string") != "string" or ("enum" in items and "type" not in items):
        return 'options are text: its items need "type": "string"'
    return _wrong_options(items)


def _wrong_options(field: dict[str, Any]) -> str | None:
    if len({"enum", "oneOf", "anyOf"} & set(field)) != 1:
        return "its options are given either by 'enum' or, with titles, by 'oneOf'"
    titled = field.get("oneOf", field.get("anyOf", []))
    if not is_array(titled) or not all(_is_titled(option) for option in titled):
        return 'each of its titled options is {"const": text, "title": text}'
    options = _options(field)
    if not options or not all(isinstance(option, str) for option in options):
        return "its options are not all text"
    if len(set(options)) < len(options):
        return "one of its options is there twice"
    names = field.get("enumNames", options)
    if not is_array(names) or len(names) != len(options) or not all(isinstance(name, str) for name in names):
        return "'enumNames' needs a name for each option"
    return None


def _is_titled(option: Any) -> bool:
    return is_object(option) and set(option) == {"const", "title"} and isinstance(option["title"], str)


def _options(field: dict[str, Any]) -> list[Any]:
    options = options_of(field)
    return options if is_array(options) else []


def _wrong_default(field: dict[str, Any]) -> str | None:
    """Why the default of a field is no answer to it; None when it is, or there is none."""
    if "default" not in field:
        return None
    issues = check_answer({"properties": {"": field}}, {"": field["default"]})
    return issues[0][1] if issues else None


# --- schemas as JSON, and what is told of an answer


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of plain JSON types."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(schema), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise SchemaError("The schema of a form is made of dicts, lists, text and numbers only.") from None
    return copy


@lru_cache(maxsize=512)  # the same form is asked again and again
def _check_json_schema(schema: bytes) -> None:
    compile_schema(msgspec.json.decode(schema))


def _issue(problem: Mapping[str, Any]) -> tuple[str | None, str]:
    """The field and what it should be, of what the model's check found."""
    location = problem["loc"]
    name = str(location[0]) if location else None
    if problem["type"] == "missing":
        return name, "it is missing."
    if problem["type"] == "extra_forbidden":
        return name, "it was not asked for."
    message = str(problem["msg"])
    for prefix in ("Value error, ", "Assertion failed, "):
        message = message.removeprefix(prefix)
    return name, message.replace("Input should", "it should", 1)[:250].rstrip(".") + "."


def _misfit(issues: Sequence[tuple[str | None, str]]) -> ValueError:
    """One sentence for each field, at most ten of them (default D4)."""
    first: dict[str | None, str] = {}
    for name, message in issues:
        first.setdefault(name, message)
    told = [message if name is None else f"{printable(name[:64], '?')!r}: {message}" for name, message in first.items()]
    return ValueError(f"The answer does not fit the form. {' '.join(told[:_MAX_ISSUES])}")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(repr(word) for word in words[:20])


Issue = tuple[str, str]
"""The name of a field, and a sentence about what it should be."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_EMAIL_LENGTH = 254
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


def check_answer(form: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Issue]:
    """What is wrong with an answer, at most one issue for each field; empty when it fits. Values are never quoted.

    >>> form = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    >>> check_answer(form, {"age": "5"}), check_answer(form, {"age": 5.0})
    ([('age', 'it should be an integer; it is a string.')], [])
    """
    found: list[Issue] = []
    required = form.get("required", ())
    for name, field in form["properties"].items():
        if name in answer:
            wrong = _CHECKS[field["type"]](field, answer[name])
        else:
            wrong = "it is missing" if name in required else None
        if wrong:
            found.append((name, f"{wrong}."))
    return found


def options_of(field: Mapping[str, Any]) -> Sequence[Any]:
    """The values that a field, or the items of a list, may have; empty where they are not given one by one."""
    titled: Sequence[Any] = field.get("oneOf", field.get("anyOf", ()))
    options: Sequence[Any] = field.get("enum", [option["const"] for option in titled])
    return options


# --- kinds of field: each says what is wrong, or None


def _text(field: Mapping[str, Any], value: Any) -> str | None:
    if not isinstance(value, str):
        return _other_than("text", value)
    options = options_of(field)
    if options and value not in options:
        return "it should be one of the options"
    if wrong := _bounds(len(value), field.get("minLength"), field.get("maxLength"), "characters"):
        return wrong
    format = field.get("format")
    if format is not None and not _FORMAT_CHECKS[format][0](value):
        return f"it should be {_FORMAT_CHECKS[format][1]}"
    return None


def _integer(field: Mapping[str, Any], value: Any) -> str | None:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        return _other_than("an integer", value)
    return _bounds(value, field.get("minimum"), field.get("maximum"))


def _number(field: Mapping[str, Any], value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _other_than("a number", value)
    return _bounds(value, field.get("minimum"), field.get("maximum"))


def _boolean(_: Mapping[str, Any], value: Any) -> str | None:
    return None if isinstance(value, bool) else _other_than("true or false", value)


def _check_choices(field: Mapping[str, Any], value: Any) -> str | None:
    if not is_array(value):
        return _other_than("a list of options", value)
    options = options_of(field["items"])
    if not all(isinstance(item, str) and item in options for item in value):
        return "it should have nothing but the options"
    if len(set(value)) < len(value):
        return "it should have no option twice"
    return _bounds(len(value), field.get("minItems"), field.get("maxItems"), "options")


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Any], str | None]] = {
    "array": _check_choices,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "string": _text,
}


def _other_than(expected: str, value: Any) -> str:
    return f"it should be {expected}; it is {json_type(value)}"


def _bounds(size: float, least: float | None, most: float | None, unit: str = "") -> str | None:
    if least is not None and size < least:
        return f"it should have at least {least} {unit}" if unit else f"it should be at least {least}"
    if most is not None and size > most:
        return f"it should have at most {most} {unit}" if unit else f"it should be at most {most}"
    return None


# --- formats


def _is_email(text: str) -> bool:
    return len(text) <= _EMAIL_LENGTH and _EMAIL.fullmatch(text) is not None


def _is_uri(text: str) -> bool:
    try:
        check_uri(text)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _exists(date.fromisoformat, text)


def _is_date_time(text: str) -> bool:
    parts = _DATE_TIME.fullmatch(text)
    return parts is not None and _exists(datetime.fromisoformat, f"{parts[1]}T{parts[2]}")


def _exists(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


_FORMAT_CHECKS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "email": (_is_email, "an email address, such as 'ann@example.com'"),
    "uri": (_is_uri, "a URI that begins with its scheme"),
    "date": (_is_date, "a date that exists, written YYYY-MM-DD"),
    "date-time": (_is_date_time, "a time that exists, written YYYY-MM-DDThh:mm:ss and then Z or an offset"),
}
