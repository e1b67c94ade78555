"""Forms: what every client can show, from a model or a schema; and answers checked before anybody uses them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, Optional, TypedDict
from uuid import UUID

import pytest
import typing_extensions
from pydantic import AnyUrl, BaseModel, EmailStr, Field, SecretStr, create_model, field_validator

from weft.forms import EMAIL, Titles, check_form, form_schema, parse_form


class Color(Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Inner(BaseModel):
    x: int


class Opaque:
    pass


def one(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of a form's only field."""
    return form_schema(create_model("Form", field=(annotation, default)))["properties"]["field"]


# --- fields that a form has

COLORS = [{"const": "red", "title": "Bright red"}, {"const": "blue", "title": "blue"}]
BRIGHT = Titles({"red": "Bright red"})


@pytest.mark.spec("ELI-06")
@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (Annotated[str, Field(min_length=3, max_length=5)], {"type": "string", "minLength": 3, "maxLength": 5}),
        (Annotated[str, EMAIL], {"type": "string", "format": "email"}),
        (Annotated[str, Field(min_length=3), EMAIL], {"type": "string", "minLength": 3, "format": "email"}),
        (AnyUrl, {"type": "string", "format": "uri", "minLength": 1}),
        (date, {"type": "string", "format": "date"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (Annotated[float, Field(ge=0, le=1.5)], {"type": "number", "minimum": 0, "maximum": 1.5}),
        (Annotated[int, Field(gt=0, lt=9)], {"type": "integer", "minimum": 1, "maximum": 8}),
        (Annotated[float, Field(gt=0)], {"type": "number", "minimum": 0}),
        (bool, {"type": "boolean"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (Color, {"type": "string", "enum": ["red", "blue"], "description": "What it looks like."}),
        (list[Literal["a", "b"]], {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}),
        (set[Color], {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}),
        (
            Annotated[list[Color], Field(min_length=1, max_length=2)],
            {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}, "minItems": 1, "maxItems": 2},
        ),
        (Annotated[Literal["red", "blue"], BRIGHT], {"type": "string", "oneOf": COLORS}),
        (Annotated[Color, BRIGHT], {"type": "string", "oneOf": COLORS, "description": "What it looks like."}),
        (Annotated[Literal["red", "blue"], BRIGHT] | None, {"type": "string", "oneOf": COLORS}),
        (Annotated[Literal["red", "blue"] | None, BRIGHT], {"type": "string", "oneOf": COLORS}),
        (list[Annotated[Literal["red", "blue"], BRIGHT]], {"type": "array", "items": {"anyOf": COLORS}}),
        (Annotated[set[Color], BRIGHT], {"type": "array", "items": {"anyOf": COLORS}}),
        (int | None, {"type": "integer"}),
        (Optional[Color], {"type": "string", "enum": ["red", "blue"], "description": "What it looks like."}),  # noqa: UP045 - the older spelling too
        (Annotated[str, Field(pattern="^[a-z]+$")], {"type": "string"}),
        (
            Annotated[int, Field(title="Age", description="In years.")],
            {"type": "integer", "title": "Age", "description": "In years."},
        ),
        (
            Annotated[Color, BRIGHT, Field(title="Hue", description="Mine.")],
            {"type": "string", "oneOf": COLORS, "title": "Hue", "description": "Mine."},
        ),
    ],
)
def test_a_field_in_the_words_of_a_form(annotation: Any, schema: dict[str, Any]):
    assert one(annotation) == schema
    form = {"type": "object", "properties": {"field": schema}}
    assert check_form(form) == form  # what is made of a type is what is allowed of a schema


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [
        (str, "x", "x"),
        (bool, False, False),
        (Color, Color.BLUE, "blue"),
        (date, date(2024, 1, 2), "2024-01-02"),
        (list[Color], [Color.BLUE], ["blue"]),
    ],
)
def test_defaults_are_shown_in_the_form(annotation: Any, default: Any, shown: Any):
    model = create_model("Form", field=(annotation, default))
    assert form_schema(model)["properties"]["field"]["default"] == shown
    assert "required" not in form_schema(model)
    assert parse_form(model, {}).field == default


def test_no_default_is_shown_where_it_is_none_or_made():
    assert "default" not in one(int | None, None)
    assert "default" not in one(list[Color], Field(default_factory=list))


def test_a_form_is_the_same_in_every_process():
    program = (
        "from dataclasses import dataclass, field\nfrom typing import Literal\n"
        "from weft.forms import form_schema\n"
        "@dataclass\nclass F:\n  x: frozenset[Literal['a', 'b', 'c', 'd']] = frozenset('dbca')\nprint(form_schema(F))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(printed) == 1
    assert "'default': ['a', 'b', 'c', 'd']" in printed.pop()


@dataclass
class SeatData:
    row: int
    note: str | None
    window: bool = True
    tags: list[Literal["quiet", "legroom"]] = field(default_factory=list)


class SeatModel(BaseModel):
    row: int
    note: str | None
    window: bool = True
    tags: list[Literal["quiet", "legroom"]] = []


class SeatDict(typing_extensions.TypedDict):
    row: int
    note: str | None
    window: typing_extensions.NotRequired[bool]
    tags: typing_extensions.NotRequired[list[Literal["quiet", "legroom"]]]


@pytest.mark.spec("ELI-06")
@pytest.mark.parametrize("model", [SeatData, SeatModel, SeatDict])
def test_every_kind_of_model_is_a_form(model: type):
    schema = form_schema(model)
    assert set(schema) == {"type", "properties", "required"}
    assert schema["type"] == "object"
    assert list(schema["properties"]) == ["row", "note", "window", "tags"]
    assert schema["required"] == ["row"]


def test_a_form_is_its_callers_own():
    form_schema(SeatData)["properties"].clear()
    assert form_schema(SeatData)["properties"]


def test_a_form_without_fields_is_one():
    assert form_schema(create_model("Nothing")) == {"type": "object", "properties": {}}


def test_an_alias_is_the_name_in_the_form():
    model = create_model("Form", from_=(str, Field(alias="from")), note=(int | None, Field(alias="Note")))
    assert form_schema(model)["properties"] == {"from": {"type": "string"}, "Note": {"type": "integer"}}
    assert parse_form(model, {"from": "ZRH"}).model_dump() == {"from_": "ZRH", "note": None}


# --- fields that a form does not have


def refused(form: Any) -> str:
    with pytest.raises(ValueError) as caught:
        form_schema(form)
    text = str(caught.value)
    assert "pydantic" not in text
    return text


@pytest.mark.spec("ELI-06")
@pytest.mark.parametrize(
    ("annotation", "type_name"),
    [
        (Inner, "Inner"),
        (list[Inner], "list[test_forms.Inner]"),
        (list[str], "list[str]"),
        (list, "list"),
        (list[int], "list[int]"),
        (list[list[Literal["a"]]], "list[list[Literal['a']]]"),
        (dict[str, str], "dict[str, str]"),
        (int | str, "int | str"),
        (Literal["a"] | int, "Literal['a']"),
        (list[str] | None, "list[str] | None"),
        (bytes, "bytes"),
        (Any, "Any"),
        (None, "NoneType"),
        (Literal[1, 2], "Literal[1, 2]"),
        (Literal["a", 2], "Literal['a', 2]"),
        (Size, "Size"),
        (Annotated[Size, Titles({})], "Size"),
        (tuple[str, int], "tuple[str, int]"),
        (time, "time"),
        (UUID, "UUID"),
        (Decimal, "Decimal"),
        (object, "object"),
    ],
)
def test_what_no_client_could_show_is_refused_with_its_field_and_type(annotation: Any, type_name: str):
    text = refused(create_model("Booking", good=(int, 1), trip=(annotation, ...)))
    assert text.startswith("Field 'trip' of Booking has the type ")
    assert type_name in text
    assert "A form is flat. Each field is text" in text


def test_a_secret_is_never_asked_by_form():
    text = refused(create_model("Login", password=(SecretStr, ...)))
    assert "a form must not ask for secrets; send the user to a page with `elicit_url`" in text


@pytest.mark.parametrize("annotation", [Opaque, Callable[[], int]])
def test_a_class_that_json_cannot_have_is_refused_by_its_field(annotation: Any):
    @dataclass
    class Booking:
        good: int
        trip: annotation

    text = refused(Booking)
    assert text.startswith("Field 'trip' of Booking has the type ")
    assert "cannot be written as JSON" in text


@pytest.mark.parametrize("model", [str, int, Color, list[int], dict[str, str], Opaque, Any])
def test_what_is_not_a_class_with_fields_is_refused(model: Any):
    assert "A form is flat" in refused(model)


def test_a_model_within_itself_is_refused():
    @dataclass
    class Node:
        next: "Node | None" = None

    globals()["Node"] = Node
    try:
        assert "'next'" in refused(Node)
    finally:
        del globals()["Node"]


def test_a_name_that_is_not_there_is_said():
    @dataclass
    class Booking:
        trip: "Nowhere"  # noqa: F821 - the mistake

    assert "one of its types cannot be found" in refused(Booking)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the TypedDict of typing is fine there")
def test_the_older_typed_dict_is_refused_with_the_one_to_use():
    assert "import TypedDict from typing_extensions" in refused(TypedDict("Booking", {"trip": int}))


def test_an_email_type_whose_package_is_missing_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "email_validator", None)

    @dataclass
    class Booking:
        mail: EmailStr

    text = refused(Booking)
    assert "'mail'" in text
    assert "Annotated[str, EMAIL]" in text


def test_titles_of_options_that_are_not_there_are_refused():
    text = refused(create_model("Form", color=(Annotated[Color, Titles({"green": "Green"})], ...)))
    assert "Titles names 'green', which is not among the options 'red', 'blue'" in text


# --- schemas


@pytest.mark.spec("ELI-06")
@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"], "default": "a"},
        {"type": "string", "format": "email", "default": "a@b.c"},
        {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["a", "b"], "title": "X"},
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "minItems": 1},
        {"type": "number", "minimum": 1, "maximum": 2, "default": 1.5},
    ],
)
def test_a_schema_of_a_form_is_taken_as_it_is(field: dict[str, Any]):
    schema = {"type": "object", "properties": {"x": field}, "required": ["x"]}
    assert check_form(schema) == schema == form_schema(schema)


def test_what_a_form_has_no_place_for_at_its_root_is_left_out():
    schema = {"type": "object", "properties": {}, "title": "T", "description": "D", "additionalProperties": False}
    assert check_form(schema) == {"type": "object", "properties": {}}


@pytest.mark.spec("ELI-06")
@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"type": "object", "properties": {}}, 'of the type "object"'),
        ({"type": "null"}, 'of the type "null"'),
        ({}, "not of one plain type"),
        (True, "not of one plain type"),
        ({"type": ["string", "null"]}, "not of one plain type"),
        ({"$ref": "#/$defs/X"}, "not of one plain type"),
        ({"anyOf": [{"type": "string"}]}, "not of one plain type"),
        ({"type": "string", "pattern": "a"}, "a field of the type 'string' cannot have 'pattern'"),
        ({"type": "integer", "minLength": 1}, "cannot have 'minLength'"),
        ({"type": "integer", "enum": [1]}, "cannot have 'enum'"),
        ({"type": "string", "format": "time"}, "its format is 'time'"),
        ({"type": "string", "format": "password"}, "a form must not ask for secrets"),
        ({"type": "string", "enum": []}, "not all text"),
        ({"type": "string", "enum": "ab"}, "not all text"),
        ({"type": "string", "enum": ["a", 1]}, "not all text"),
        ({"type": "string", "enum": ["a", "a"]}, "occurs twice"),
        ({"type": "string", "enum": ["a"], "enumNames": []}, "'enumNames' needs a name for each"),
        ({"type": "string", "enumNames": ["A"]}, "either by 'enum'"),
        ({"type": "string", "enum": ["a"], "oneOf": []}, "either by 'enum'"),
        ({"type": "string", "oneOf": [{"const": "a"}]}, "each option with a title"),
        ({"type": "string", "oneOf": [{"const": 1, "title": "A"}]}, "not all text"),
        ({"type": "string", "oneOf": 5}, "each option with a title"),
        ({"type": "array"}, "needs options"),
        ({"type": "array", "items": {"type": "string"}}, "needs options"),
        ({"type": "array", "items": {"type": "integer", "enum": [1]}}, "options are text"),
        ({"type": "array", "items": {"enum": ["a"]}}, '"type": "string"'),
        (
            {"type": "array", "items": {"type": "string", "enum": ["a"], "minLength": 1}},
            "can only have 'type' and either",
        ),
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}, "uniqueItems": True}, "'uniqueItems'"),
    ],
)
def test_a_property_that_is_not_for_forms_is_refused_by_name(field: Any, said: str):
    with pytest.raises(ValueError) as caught:
        check_form({"type": "object", "properties": {"good": {"type": "string"}, "trip": field}})
    assert str(caught.value).startswith("Property 'trip' cannot be asked in a form: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, '"type": "object"'),
        ({"type": "string"}, '"type": "object"'),
        ({"type": "object"}, '"properties"'),
        ({"type": "object", "properties": []}, '"properties"'),
        ({"type": "object", "properties": {}, "allOf": []}, "cannot have 'allOf'"),
        ({"type": "object", "properties": {}, "required": ["x"]}, "'x' is required, but is not a property"),
        ({"type": "object", "properties": {}, "required": "x"}, "required"),
        ({"type": "object", "properties": {"x": {"type": "string", "minLength": -1}}}, "properties/x/minLength"),
        ({"type": "object", "properties": {"x": {"type": "string", "title": 5}}}, "properties/x/title"),
        ({"type": "object", "properties": {"x": {"type": "integer", "default": "7"}}}, "default of property 'x'"),
        ({"type": "object", "properties": {"x": {"type": "string", "enum": ["a"], "default": "b"}}}, "property 'x'"),
        ({"type": "object", "properties": {"x": {"type": "string", "format": "date", "default": ""}}}, "property 'x'"),
        ({"type": "object", "properties": {"x": {"type": "string", "default": object()}}}, "can only contain dicts"),
    ],
)
def test_a_schema_that_is_no_form_is_refused(schema: dict[str, Any], said: str):
    with pytest.raises(ValueError) as caught:
        check_form(schema)
    assert said in str(caught.value)


# --- answers


def misfit(model: Any, content: dict[str, Any] | None) -> str:
    with pytest.raises(ValueError) as caught:
        parse_form(model, content)
    text = str(caught.value)
    assert type(caught.value) is ValueError
    assert text.startswith("The answer does not fit the form. ")
    assert caught.value.__cause__ is None
    assert not any(word in text.lower() for word in ("pydantic", "jsonschema", "validation error", "http"))
    return text


def test_an_answer_becomes_an_instance():
    content = {"row": 12, "tags": ["quiet"], "unasked": 1}
    assert parse_form(SeatData, content) == SeatData(12, None, True, ["quiet"])
    assert parse_form(SeatModel, content) == SeatModel(row=12, note=None, tags=["quiet"])
    assert parse_form(SeatDict, content) == {"row": 12, "note": None, "tags": ["quiet"]}
    assert parse_form(SeatData, {"row": 1, "note": "x", "window": False}) == SeatData(1, "x", False)


def test_options_dates_and_sets_become_what_the_model_says():
    model = create_model("Form", color=(Annotated[Color, BRIGHT], ...), day=(date, ...), tags=(set[Color], ...))
    answer = parse_form(model, {"color": "red", "day": "2024-02-29", "tags": ["red", "blue"]})
    assert (answer.color, answer.day, answer.tags) == (Color.RED, date(2024, 2, 29), {Color.RED, Color.BLUE})


SCHEMA = {
    "type": "object",
    "properties": {
        "row": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["quiet", "legroom"]}},
        "note": {"type": "string", "default": "none"},
    },
    "required": ["row"],
}


def test_an_answer_to_a_schema_is_what_was_asked_for():
    assert parse_form(SCHEMA, {"row": 12, "tags": ["quiet"], "unasked": 1}) == {"row": 12, "tags": ["quiet"]}
    assert parse_form({"type": "object", "properties": {}}, None) == {}


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize("model", [SeatData, SeatModel, SeatDict, SCHEMA], ids=["data", "model", "dict", "schema"])
@pytest.mark.parametrize(
    ("content", "field"),
    [
        (None, "row"),
        ({}, "row"),
        ({"row": "SECRET"}, "'row': "),
        ({"row": None}, "'row': "),
        ({"row": 1, "tags": ["quiet", "SECRET"]}, "'tags': "),
        ({"row": 1, "tags": "SECRET"}, "'tags': "),
        ({"row": 1, "note": {"a": "SECRET"}}, "'note': "),
    ],
)
def test_an_answer_that_does_not_fit_is_told_by_its_fields_without_its_values(model: Any, content: Any, field: str):
    text = misfit(model, content)
    assert field in text
    assert "SECRET" not in text


def test_what_the_schema_could_not_say_is_checked_all_the_same():
    model = create_model(
        "Form", code=(Annotated[str, Field(pattern="^[A-Z]{2}$")], ...), x=(Annotated[float, Field(gt=0)], 1)
    )
    assert "'code': " in misfit(model, {"code": "secret"})
    assert "'x': it should be greater than 0." in misfit(model, {"code": "LX", "x": 0})


def test_a_models_own_check_speaks_in_its_own_words():
    class Form(BaseModel):
        row: int

        @field_validator("row")
        @classmethod
        def even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("rows are even")
            return value

    assert misfit(Form, {"row": 3}) == "The answer does not fit the form. 'row': rows are even."


@pytest.mark.security("D4")
def test_a_refusal_is_bounded_whatever_came():
    class Strict(BaseModel, extra="forbid"):
        row: int = 1

    text = misfit(Strict, {f"\n{'x' * 500}{number}": "SECRET" for number in range(500)})
    assert len(text) < 4096
    assert "\n" not in text
    many = create_model("Many", **{f"field{number}": (int, ...) for number in range(50)})
    assert misfit(many, {}).count("it is missing") == 10
