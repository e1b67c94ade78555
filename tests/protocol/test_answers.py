"""Answers to forms, held to the schema that was sent: types, bounds, options and formats."""

from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from pydantic import AnyUrl, BaseModel, Field, create_model

from weft.forms import EMAIL, Titles, check_answer, form_schema, parse_form

TITLED = [{"const": "w", "title": "Window"}, {"const": "a", "title": "Aisle"}]


def wrong(field: dict[str, Any], value: Any) -> str | None:
    """What is said of the only field."""
    issues = check_answer({"type": "object", "properties": {"field": field}}, {"field": value})
    assert [name for name, _ in issues] in ([], ["field"])
    return issues[0][1] if issues else None


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
ONE = {"type": "string", "enum": ["w", "a"]}
ONE_TITLED = {"type": "string", "oneOf": TITLED}
LEGACY = {"type": "string", "enum": ["w", "a"], "enumNames": ["Window", "Aisle"]}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["w", "a", "m"]}, "minItems": 1, "maxItems": 2}
SEVERAL_TITLED = {"type": "array", "items": {"anyOf": TITLED}}


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (STRING, ""),
        (STRING, "5"),
        ({**STRING, "minLength": 2, "maxLength": 3}, "ab"),
        ({**STRING, "maxLength": 1}, "\U0001f600"),
        (INTEGER, 5),
        (INTEGER, 5.0),
        (INTEGER, -(10**30)),
        ({**INTEGER, "minimum": 1, "maximum": 3}, 3.0),
        (NUMBER, 5),
        (NUMBER, 5.5),
        ({**NUMBER, "minimum": 0.5, "maximum": 0.5}, 0.5),
        (BOOLEAN, True),
        (BOOLEAN, False),
        (ONE, "w"),
        (ONE_TITLED, "a"),
        (LEGACY, "a"),
        (SEVERAL, ["w"]),
        (SEVERAL, ["m", "a"]),
        (SEVERAL_TITLED, []),
        (SEVERAL_TITLED, ["a", "w"]),
    ],
)
def test_what_fits(field: dict[str, Any], value: Any):
    assert wrong(field, value) is None


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (STRING, 5, "it should be text; it is an integer."),
        (STRING, True, "it should be text; it is a boolean."),
        (STRING, None, "it should be text; it is null."),
        (STRING, ["a"], "it should be text; it is an array."),
        ({**STRING, "minLength": 2}, "a", "it should have at least 2 characters."),
        ({**STRING, "maxLength": 3}, "abcd", "it should have at most 3 characters."),
        (INTEGER, "5", "it should be an integer; it is a string."),
        (INTEGER, True, "it should be an integer; it is a boolean."),
        (INTEGER, 5.5, "it should be an integer; it is a number."),
        (INTEGER, {}, "it should be an integer; it is an object."),
        ({**INTEGER, "minimum": 1}, 0, "it should be at least 1."),
        ({**INTEGER, "maximum": 3}, 4.0, "it should be at most 3."),
        (NUMBER, "5.5", "it should be a number; it is a string."),
        (NUMBER, False, "it should be a number; it is a boolean."),
        ({**NUMBER, "minimum": 0.5}, 0.4, "it should be at least 0.5."),
        ({**NUMBER, "maximum": 1.5}, 2, "it should be at most 1.5."),
        (BOOLEAN, 1, "it should be true or false; it is an integer."),
        (BOOLEAN, "true", "it should be true or false; it is a string."),
        (BOOLEAN, None, "it should be true or false; it is null."),
        (ONE, "x", "it should be one of the options."),
        (ONE, "W", "it should be one of the options."),
        (ONE, ["w"], "it should be text; it is an array."),
        (ONE_TITLED, "Window", "it should be one of the options."),
        (LEGACY, "Window", "it should be one of the options."),
        (SEVERAL, "w", "it should be a list of options; it is a string."),
        (SEVERAL, {"w": 1}, "it should be a list of options; it is an object."),
        (SEVERAL, [], "it should have at least 1 options."),
        (SEVERAL, ["w", "a", "m"], "it should have at most 2 options."),
        (SEVERAL, ["w", "w"], "it should not contain an option twice."),
        (SEVERAL, ["w", "x"], "it should contain only options of the form."),
        (SEVERAL, ["w", 1], "it should contain only options of the form."),
        (SEVERAL, [["w"]], "it should contain only options of the form."),
        (SEVERAL_TITLED, ["Window"], "it should contain only options of the form."),
    ],
)
def test_what_does_not(field: dict[str, Any], value: Any, said: str):
    assert wrong(field, value) == said


@pytest.mark.spec("ELI-26")
def test_what_is_required_may_not_be_missing_and_the_rest_may():
    form = {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["a"]}
    assert check_answer(form, {"unasked": "x"}) == [("a", "it is missing.")]
    assert check_answer(form, {"a": ""}) == []


# --- formats

RIGHT = {
    "email": [
        "ann@example.com",
        "ann.o'neil+tag@mail.example.co.uk",
        "a@b",
        "x@1.2",
        f"{'a' * 60}@{'b' * 63}.example",
    ],
    "uri": ["https://example.com/a?b=c#d", "mailto:ann@example.com", "urn:isbn:1", "http://[::1]:80/", "file:///a%20b"],
    "date": ["2024-02-29", "0001-01-01", "9999-12-31"],
    "date-time": [
        "2024-02-29T23:59:59Z",
        "2024-02-29t23:59:59z",
        "2024-02-29T00:00:00+14:00",
        "2024-02-29T00:00:00.123456789-00:30",
    ],
}
WRONG = {
    "email": [
        "",
        "ann",
        "@example.com",
        "ann@",
        "ann@@example.com",
        "a nn@example.com",
        ".ann@example.com",
        "ann.@example.com",
        "a..b@example.com",
        "ann@-example.com",
        "ann@example-.com",
        "ann@example..com",
        "ann@example.com.",
        "ann@example.com\n",
        "ann@example.com, bob@example.com",
        "Ann <ann@example.com>",
        "änn@example.com",
        f"ann@{'b' * 64}.example",
        f"{'a' * 250}@example.com",
    ],
    "uri": [
        "",
        "example.com",
        "/a",
        "//example.com/a",
        "https://example.com/a b",
        "https://exämple.com/",
        "https://example.com/%zz",
        "1http://example.com",
        "https://example.com/\n",
        "https://example.com/[",
    ],
    "date": [
        "",
        "2023-02-29",
        "2024-13-01",
        "2024-00-10",
        "0000-01-01",
        "24-01-01",
        "20240101",
        "2024-W01-1",
        "2024-1-1",
        "2024-01-01T00:00:00Z",
        "2024-01-01 ",
        "2024-01-01\n",
        "٢٠٢٤-01-01",
        "01.02.2024",
    ],
    "date-time": [
        "",
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:60:00Z",
        "2024-01-01T00:00:60Z",
        "2023-02-29T00:00:00Z",
        "2024-01-01T00:00:00+24:00",
        "2024-01-01T00:00:00+00:60",
        "2024-01-01T00:00:00+0100",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00Z\n",
        "1704067200",
    ],
}


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize(("format", "text"), [(format, text) for format, texts in RIGHT.items() for text in texts])
def test_a_format_that_is_kept(format: str, text: str):
    assert wrong({"type": "string", "format": format}, text) is None


@pytest.mark.spec("ELI-26")
@pytest.mark.parametrize(("format", "text"), [(format, text) for format, texts in WRONG.items() for text in texts])
def test_a_format_that_is_not(format: str, text: str):
    said = wrong({"type": "string", "format": format}, text)
    assert said is not None
    assert said == wrong({"type": "string", "format": format}, "?")  # the same whatever was sent: it is not quoted


@pytest.mark.security("R7")
@pytest.mark.parametrize("format", RIGHT)
@pytest.mark.parametrize("part", ["a", "a.", "a-", "a@", "1-", "%20", "2024-", ":", "["])
def test_no_text_is_read_in_more_ways_than_one(format: str, part: str):
    """A check that tried all ways to read such text would not end."""
    assert wrong({"type": "string", "format": format}, part * 200_000) is not None
    assert wrong({"type": "string", "format": format}, (part * 250)[:253] + "\n") is not None


# --- answers to models: the schema first, then the model


def misfit(model: Any, content: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as caught:
        parse_form(model, content)
    return str(caught.value)


@dataclass
class VisitData:
    nights: int
    breakfast: bool
    price: float
    mail: Annotated[str, EMAIL]
    site: AnyUrl
    day: date
    at: datetime
    room: Annotated[Literal["s", "d"], Titles({"s": "Single", "d": "Double"})]
    extras: Annotated[list[Literal["sauna", "bike"]], Field(min_length=1)]


VisitModel = create_model("VisitModel", **{name: (kind, ...) for name, kind in VisitData.__annotations__.items()})
VisitDict = typing_extensions.TypedDict("VisitDict", VisitData.__annotations__)
VISIT = {
    "nights": 2.0,
    "breakfast": True,
    "price": 80,
    "mail": "ann@example.com",
    "site": "https://example.com/",
    "day": "2024-02-29",
    "at": "2024-02-29T12:00:00Z",
    "room": "d",
    "extras": ["bike"],
}
every_kind = pytest.mark.parametrize(
    "model", [VisitData, VisitModel, VisitDict, form_schema(VisitData)], ids=["data", "model", "dict", "schema"]
)


@pytest.mark.spec("ELI-26")
@every_kind
def test_an_answer_of_every_kind_of_field(model: Any):
    answer = parse_form(model, VISIT)
    nights = answer["nights"] if isinstance(answer, dict) else answer.nights
    assert (nights, type(nights)) == (2, int)


@pytest.mark.spec("ELI-26")
@every_kind
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nights", "2"),
        ("nights", True),
        ("nights", 2.5),
        ("breakfast", 1),
        ("breakfast", "true"),
        ("breakfast", "yes"),
        ("price", "80"),
        ("price", True),
        ("mail", "SECRET"),
        ("site", "SECRET.example"),
        ("day", "2024-02-30"),
        ("day", 19782),
        ("day", "2024-02-29T00:00:00"),
        ("at", "2024-02-29T12:00:00"),
        ("at", 1704067200),
        ("room", "Double"),
        ("extras", []),
        ("extras", ["bike", "bike"]),
        ("extras", "bike"),
        ("extras", {"bike": 1}),
    ],
)
def test_a_model_makes_nothing_else_of_an_answer_than_the_schema_allows(model: Any, field: str, value: Any):
    text = misfit(model, {**VISIT, field: value})
    assert f"'{field}': it should" in text
    assert "SECRET" not in text
    assert text.count("it should") == 1


def test_null_is_left_out_where_a_model_says_none_and_refused_elsewhere():
    model = create_model("Form", a=(int | None, ...), b=(int | None, 5), c=(int, 7))
    assert parse_form(model, {"a": None}).model_dump() == {"a": None, "b": 5, "c": 7}
    assert parse_form(model, {"b": None}).model_dump() == {"a": None, "b": None, "c": 7}
    assert "'c': it should be an integer; it is null." in misfit(model, {"c": None})
    assert "'note': it should be text; it is null." in misfit(NOTED, {"row": 1, "note": None})


NOTED = {"type": "object", "properties": {"row": INTEGER, "note": STRING}, "required": ["row"]}


class Color(Enum):
    RED = "red"


class Open(BaseModel, extra="allow"):
    row: int


class Closed(BaseModel, extra="forbid"):
    row: int


class Strict(BaseModel, strict=True):
    row: int
    day: date
    tags: set[Color]


@pytest.mark.spec("ELI-26")
def test_what_was_not_asked_for_is_left_out_or_where_it_is_forbidden_refused():
    answer = {"row": 1, "admin": {"SECRET": True}}
    assert parse_form(Open, answer).model_dump() == {"row": 1}
    schema = {"type": "object", "properties": {"row": {"type": "integer"}}}
    assert parse_form(schema, answer) == {"row": 1}
    for closed in (Closed, {**schema, "additionalProperties": False}):
        assert misfit(closed, answer) == "The answer does not fit the form. 'admin': the form has no such field."
        parse_form(closed, {"row": 1})


def test_a_strict_model_reads_json():
    answer = parse_form(Strict, {"row": 1.0, "day": "2024-02-29", "tags": ["red"]})
    assert answer == Strict(row=1, day=date(2024, 2, 29), tags={Color.RED})


NAIVE = datetime(2024, 1, 2)  # noqa: DTZ001 - without a zone is the point


def test_a_default_that_would_be_refused_as_an_answer_is_used_and_not_shown():
    model = create_model("Form", mail=(Annotated[str, EMAIL], ""), at=(datetime, NAIVE))
    assert [set(field) for field in form_schema(model)["properties"].values()] == [{"type", "format"}] * 2
    assert parse_form(model, {}).model_dump() == {"mail": "", "at": NAIVE}
