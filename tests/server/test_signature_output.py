"""Return types: output schemas, and the JSON values that agree with them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, computed_field
from typing_extensions import TypedDict

from weft.protocol.schema import compile_schema
from weft.server.diagnostics import Unserialisable
from weft.server.signature.output import to_json_text
from weft.server.signature.signature import OutputError, read_signature


class Image: ...


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Point(BaseModel):
    x: int
    y: float = Field(default=0.0, serialization_alias="why")

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.x


@dataclasses.dataclass
class Size:
    w: float
    tags: list[str] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    fast: bool
    note: NotRequired[str]


class Tree(BaseModel):
    inner: list[Tree] = []


def returning(annotation):
    def f(): ...

    f.__annotations__["return"] = annotation
    return read_signature(f, opaque=(Image,))


finite = st.floats(allow_nan=False, allow_infinity=False)
points = st.builds(Point, x=st.integers(-9, 9), y=finite)
CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (bool, st.booleans()),
    (float, finite | st.integers(-5, 5)),
    (int | None, st.none() | st.integers()),
    (list[int], st.lists(st.integers())),
    (tuple[int, str], st.tuples(st.integers(), st.text())),
    (set[int], st.sets(st.integers())),
    (dict[str, int | str], st.dictionaries(st.text(), st.integers() | st.text())),
    (dict[int, float], st.dictionaries(st.integers(), finite)),
    (Color, st.sampled_from(Color)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Point, points),
    (list[Point], st.lists(points)),
    (Point | Size, points | st.builds(Size, w=finite, tags=st.lists(st.text()))),
    (Size, st.builds(Size, w=finite, tags=st.lists(st.text()))),
    (Options, st.fixed_dictionaries({"fast": st.booleans()}, optional={"note": st.text()})),
    (Tree, st.recursive(st.builds(Tree), lambda t: st.builds(Tree, inner=st.lists(t, max_size=2)), max_leaves=4)),
    (dt.datetime, st.datetimes()),
    (dt.date | uuid.UUID, st.dates() | st.uuids()),
    (dt.timedelta, st.timedeltas(dt.timedelta(0), dt.timedelta(days=9))),
    (
        decimal.Decimal,
        st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3),
    ),
    (Annotated[int, Field(ge=0)], st.integers(0)),
    (dict[str, Any], st.dictionaries(st.text(), st.none() | st.lists(st.integers()))),
    (list[Color | None], st.lists(st.none() | st.sampled_from(Color))),
]


@pytest.mark.spec("TOOL-12")
@pytest.mark.parametrize(("annotation", "values"), CASES, ids=[str(case[0])[:40] for case in CASES])
def test_what_is_dumped_conforms_to_the_output_schema(annotation, values):
    signature = returning(annotation)
    assert signature.output_schema is not None
    validator = compile_schema(signature.output_schema)

    @given(values)
    def check(value):
        assert validator.problems(signature.dump_output(value)) == []

    check()


@pytest.mark.spec("TOOL-12")
def test_the_root_may_be_any_json_value():
    assert returning(int).output_schema == {"type": "integer"}
    assert returning(bool).dump_output(False) is False
    assert returning(int | None).dump_output(None) is None
    assert returning(list[int]).output_schema == {"type": "array", "items": {"type": "integer"}}


def test_a_model_is_described_as_it_is_sent():
    schema = returning(Point).output_schema
    assert schema is not None
    assert set(schema["properties"]) == {"x", "why", "double"}
    assert returning(Point).dump_output(Point(x=2)) == {"x": 2, "why": 0.0, "double": 4}


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        str,
        bytes,
        Any,
        object,
        str | None,
        "None",
        Image,
        list[Image],
        Image | str,
        tuple[str, list[Image]],
        list[bytes],
        list,
        list[Any],
        list[object] | None,
        tuple[Any, ...],
        Sequence[Any],
    ],
)
def test_what_promises_nothing_has_no_schema(annotation):
    assert returning(annotation).output_schema is None
    assert returning(annotation).dump_output is None


@pytest.mark.parametrize("annotation", [list[int], list[str], dict[str, Any], tuple[Any, int], list[list[Any]]])
def test_what_promises_something_has_one(annotation):
    assert returning(annotation).output_schema is not None


def test_no_annotation_has_no_schema():
    def f(): ...

    signature = read_signature(f)
    assert (signature.output_schema, signature.dump_output) == (None, None)


def test_values_that_become_the_annotated_type_are_accepted():
    assert returning(Point).dump_output({"x": 1})["double"] == 2
    assert returning(list[int]).dump_output((1, 2)) == [1, 2]


@pytest.mark.spec("TOOL-12")
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "SECRET"),
        (list[int], [1, "SECRET"]),
        (Point, {"y": 1}),
        (Annotated[int, Field(ge=0)], -1),
        (Options, {"fast": True, "note": 3}),
        (int, None),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_function(annotation, value):
    with pytest.raises(OutputError) as caught:
        returning(annotation).dump_output(value)
    text = str(caught.value)
    assert text.startswith("Tool 'f' (tests/server/test_signature_output.py:")
    assert "annotation" in text
    assert "SECRET" not in text
    assert caught.value.__cause__ is None


def test_a_model_that_was_changed_into_something_else_is_an_error():
    point = Point(x=1)
    point.x = "SECRET"  # type: ignore[assignment]  # the mistake itself
    with pytest.raises(OutputError) as caught:
        returning(list[Point]).dump_output([point])
    assert "does not fit its return type list[Point] at '[0].x': expected an integer. Return" in str(caught.value)
    assert "SECRET" not in str(caught.value)


class Aliased(BaseModel, extra="forbid"):
    count: int = Field(alias="Count")
    note: str = Field(default="", serialization_alias="Note")

    @computed_field
    @property
    def twice(self) -> str:
        return self.note * 2


@pytest.mark.mistake("a return value that cannot be serialised")
@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (Size, Size("SECRET"), "Size at 'w': expected a number"),  # type: ignore[arg-type]  # the mistake itself
        (dict[str, Size], {"a": Size(1.0, [3])}, "dict[str, Size] at 'a.tags[0]': expected a string"),  # type: ignore[list-item]  # as above
        (Aliased, Aliased.model_construct(count="SECRET", note="n"), "Aliased at 'count': expected an integer"),
    ],
)
def test_an_instance_with_a_wrong_field_is_an_error_that_names_the_field(annotation, value, place):
    with pytest.raises(OutputError) as caught:
        returning(annotation).dump_output(value)
    assert f"which does not fit its return type {place}. Return what" in str(caught.value)
    assert [word for word in ("pydantic", "SECRET") if word in str(caught.value).lower()] == []


@pytest.mark.parametrize("annotation", [str, Annotated[str, "x"], str | None])
def test_text_is_held_to_its_annotation(annotation):
    signature = returning(annotation)
    assert signature.output_schema is None
    signature.require_text("x")
    with pytest.raises(OutputError, match=r"^Tool 'f' .* returned a value of type int, which does not fit its return"):
        signature.require_text(3)


@pytest.mark.parametrize("annotation", [Any, None, bytes, Image, str | Image, str | bytes, list[Image], int])
def test_other_annotations_have_no_text_to_check(annotation):
    assert returning(annotation).require_text is None


@pytest.mark.mistake("a return value that cannot be serialised")
def test_what_json_cannot_carry_is_an_error_and_never_a_repr():
    with pytest.raises(OutputError, match="cannot be written as JSON"):
        returning(dict[str, Any]).dump_output({"a": object()})


@pytest.mark.parametrize("annotation", [float, Point, dict[str, float], list[float]])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_an_error(annotation, number):
    value = {float: number, list[float]: [number], Point: {"x": 1, "y": number}}.get(annotation, {"a": number})
    with pytest.raises(Unserialisable, match="is NaN or infinite"):
        to_json_text(returning(annotation).dump_output(value))


def test_a_value_that_contains_itself_is_an_error():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(OutputError):
        returning(list[list[Any]]).dump_output(loop)
