"""Arguments that do not fit, as a model reads it; functions that cannot be registered, as their author reads it."""

from __future__ import annotations

import enum
import json
from collections import deque
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field, Json, NaiveDatetime, model_validator

from weft.errors import RegistrationError
from weft.limits import Limits
from weft.server.signature.signature import ArgumentsError, read_signature

if TYPE_CHECKING:
    from decimal import Decimal


class Context: ...


class Seat(BaseModel):
    row: int
    letter: Literal["A", "B"]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def add(a: int, b: int = 1) -> int:
    return a + b


def error(fn, arguments) -> ArgumentsError:
    raw = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    with pytest.raises(ArgumentsError) as caught:
        read_signature(fn, injected=(Context,)).bind_json(raw)
    assert caught.value.__cause__ is None
    return caught.value


# --- arguments


@pytest.mark.parametrize(("most", "told"), [(0, "…"), (2, "…"), (3, "…"), (6, "The…")])
def test_no_more_is_told_than_the_limit_has_room_for(most, told):
    assert error(add, {"a": "x"}).describe(Limits(error_bytes=most)) == told


@pytest.mark.mistake("wrong, missing and extra arguments")
def test_each_wrong_missing_and_extra_argument_is_named():
    def book(flight: str, seats: int, color: Color = Color.RED) -> str: ...

    assert str(error(book, {"seats": "three", "color": "green", "fligth": "LX38", "zzz": 1})) == (
        "The arguments of tool 'book' do not fit:\n"
        "- 'flight' is missing; expected a string.\n"
        "- 'seats': expected an integer, got a string.\n"
        "- 'color': expected 'red' or 'blue', got another text.\n"
        "- 'fligth' is not known; did you mean 'flight'?\n"
        "- 'zzz' is not known; remove it. The arguments are: flight, seats, color."
    )


def test_paths_lead_into_nested_arguments():
    def book(seats: list[Seat], by_name: dict[str, Seat] | None = None) -> str: ...

    assert error(book, {"seats": [{"row": 1, "letter": "A"}, {"row": "x"}], "by_name": {"me": {"row": 1}}}).issues == [
        "'seats[1].letter' is missing; add it.",
        "'by_name.me.letter' is missing; add it.",
        "'seats[1].row': expected an integer, got a string.",
    ]


@pytest.mark.security("D4")
@pytest.mark.parametrize(
    ("given", "told"),
    [("SECRET", "another text"), (3, "an integer"), (["SECRET"], "an array"), (None, "null"), (True, "a boolean")],
)
def test_a_text_that_is_no_choice_is_no_mistake_of_type(given: object, told: str):
    def book(color: Color) -> str: ...

    assert error(book, {"color": given}).issues == [f"'color': expected 'red' or 'blue', got {told}."]


@pytest.mark.parametrize(("given", "told"), [(3, "another number"), ("x", "a string"), (2.5, "another number")])
def test_a_number_that_is_no_choice_is_no_mistake_of_type(given: object, told: str):
    def book(row: Literal[1, 2]) -> str: ...

    assert error(book, {"row": given}).issues == [f"'row': expected 1 or 2, got {told}."]


def test_the_members_of_a_union_are_told_in_one_sentence():
    def f(a: int | list[int] | None) -> None: ...

    assert error(f, {"a": "x"}).issues == ["'a': expected an integer or an array, got a string."]


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: int


class Square(BaseModel):
    kind: Literal["square"]
    side: Annotated[int, Field(gt=0)] = 1

    @model_validator(mode="after")
    def check(self) -> Square:
        if self.side > 9:
            raise ValueError("a square has a side of 9 or less")
        return self


@pytest.mark.parametrize(
    ("given", "issues"),
    [
        ({"kind": "circle"}, ["'a.radius' is missing; add it."]),
        ({"kind": "square", "z": 1}, ["'a.z' is not known; remove it."]),
        ({"kind": "square", "side": 0}, ["'a.side': it should be greater than 0."]),
        ({"kind": "square", "side": 10}, ["'a': a square has a side of 9 or less."]),
        ([{"kind": "circle"}, "x"], ["'a[0].radius' is missing; add it.", "'a[1]': expected an object, got a string."]),
        (3, ["'a': expected an object or an array, got an integer."]),
    ],
)
def test_of_a_union_the_member_that_was_meant_is_told(given: object, issues: list[str]):
    def f(a: Circle | Square | list[Circle | Square]) -> None: ...

    assert error(f, {"a": given}).issues == issues


def test_a_number_that_is_too_large_is_told():
    def f(a: int = 0, b: float = 0, c: list[int] = [], d: Annotated[float, Field(ge=0)] = 0) -> None: ...  # noqa: B006

    assert error(f, b'{"a":1e300,"b":1e400,"c":[1e300,"%s"],"d":1e400}' % (b"9" * 5000)).issues == [
        "'a': expected a smaller integer, got a number.",
        "'b': expected a finite number, got a number.",
        "'c[0]': expected a smaller integer, got a number.",
        "'c[1]': expected a smaller integer, got a string.",
        "'d': expected a finite number, got a number.",
    ]
    assert error(add, b'{"a":1e300}').issues == ["'a': expected a smaller integer, got a number."]


def test_no_words_of_a_library_are_told():
    def f(
        a: complex, b: date, c: Json, d: NaiveDatetime, e: deque[int], g: Annotated[list[int], Field(min_length=3)]
    ): ...

    given = {"a": "x", "b": 1.5, "c": "{", "d": "2026-01-01T00:00:00Z", "e": 3, "g": [1]}
    assert error(f, given).issues == [
        "'a': expected a complex number as a string, got a string.",
        "'b': expected a date as YYYY-MM-DD, got a number.",
        "'c': expected JSON, got a string.",
        "'d': expected a date and time without a time zone, got a string.",
        "'e': expected an array, got an integer.",
        "'g': List should have at least 3 items, not 1.",
    ]


def test_a_key_that_does_not_fit_is_told_as_one():
    def f(a: dict[int, str]) -> None: ...

    assert error(f, {"a": {"x": "y"}}).issues == ["'a.x': wrong as a key; expected an integer."]


def test_constraints_are_told():
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("it must be even")
        return value

    def f(
        a: Annotated[int, Field(ge=3)], b: Annotated[str, Field(max_length=2)], c: Annotated[int, AfterValidator(even)]
    ): ...

    assert error(f, {"a": 1, "b": "SECRET", "c": 3}).issues == [
        "'a': it should be greater than or equal to 3.",
        "'b': String should have at most 2 characters.",
        "'c': it must be even.",
    ]


@pytest.mark.parametrize("raw", [b"[]", b"3", b"null", b'"x"'])
def test_arguments_that_are_not_an_object_are_one_issue(raw):
    assert error(add, raw).issues == ["They must be a JSON object with a value for each name."]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":}', b"\xff"])
def test_arguments_that_are_not_json_are_one_issue(raw):
    assert error(add, raw).issues == ["They are not valid JSON; send a JSON object."]


@pytest.mark.security("D4", "R12")
def test_at_most_ten_issues_and_four_kilobytes():
    ten = error(add, {"a": 1, **{f"x{i}": 1 for i in range(10)}})
    assert len(ten.issues) == 10
    assert "more" not in str(ten)
    eleven = error(add, {"a": 1, **{f"x{i}": 1 for i in range(11)}})
    assert len(eleven.issues) == 10
    assert str(eleven).endswith("- and 1 more.")
    long = error(add, {"\N{SNOWMAN}" * 900 + str(i): 1 for i in range(20)})
    assert len(str(long).encode()) <= 4096


@pytest.mark.security("D4")
def test_values_are_not_echoed_and_names_are_cleaned():
    text = str(error(add, {"a": "SECRET", "b": ["SECRET"], "bad\n\x1b[31mname": "SECRET"}))
    assert "SECRET" not in text
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.security("D4")
def test_an_unknown_kind_of_a_tagged_union_is_not_echoed():
    def f(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...

    assert error(f, {"pet": {"kind": "SECRET"}}).issues == ["'pet': 'kind' must name one of its kinds: 'cat', 'dog'."]
    assert "'kind' must name" in error(f, {"pet": {}}).issues[0]


@pytest.mark.security("D4")
@pytest.mark.parametrize("body", [b'{"l":[' + b'"",' * 400_000 + b'""]}', b'{"d":{%s}}'], ids=["list", "dict"])
def test_a_flood_of_wrong_values_is_one_issue(body):
    def f(l: list[int] = [], d: dict[str, int] = {}) -> None: ...  # noqa: B006, E741

    if b"%s" in body:
        body %= b",".join(b'"%d":""' % i for i in range(100_000))
    assert len(error(f, body).issues) == 1


class Batch(BaseModel):
    items: list[int]


@pytest.mark.security("D4")
def test_a_flood_inside_a_model_stops_at_its_first_value():
    def f(batch: Batch) -> None: ...

    body = b'{"batch":{"items":[' + b'"",' * 100_000 + b'""]}}'
    assert error(f, body).issues == ["'batch.items[0]': expected an integer, got a string."]


@pytest.mark.security("D4")
def test_more_than_a_thousand_problems_are_not_listed():
    assert "More than 1000" in error(add, {f"x{i}": 1 for i in range(1001)}).issues[0]


def test_a_large_argument_that_fits_is_bound():
    def f(items: list[int]) -> None: ...

    items = list(range(50_000))
    assert read_signature(f).bind_json(json.dumps({"items": items}).encode()) == {"items": items}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "seat", "seats", "color", "either", "x"]), json_values) | json_values)
def test_whatever_comes_is_bound_or_explained(arguments):
    def f(
        a: int, seat: Seat, seats: list[Seat] | None = None, color: Color = Color.RED, either: int | str | Seat = 1
    ) -> None: ...

    try:
        read_signature(f).bind_json(json.dumps(arguments).encode())
    except ArgumentsError as error:
        caught = error
    else:
        return
    assert 1 <= len(caught.issues) <= 10
    assert not any(word in str(caught).lower() for word in ("pydantic", "http", "errors.", "input_"))


# --- registration


def refusal(fn, **options) -> str:
    with pytest.raises(RegistrationError) as caught:
        read_signature(fn, injected=(Context,), **options)
    text = str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert f"test_signature_errors.py:{fn.__code__.co_firstlineno}" in text
    assert "What to do:" in text
    assert len(text.splitlines()) <= 6
    assert "pydantic.dev" not in text
    assert "arbitrary_types_allowed" not in text
    return text


@pytest.mark.mistake("an annotation that cannot be evaluated")
def test_a_name_that_exists_only_for_type_checkers():
    def price(amount: Decimal) -> str: ...

    text = refusal(price)
    assert "Tool 'price'" in text
    assert "'Decimal' of parameter 'amount'" in text
    assert "TYPE_CHECKING" in text


@pytest.mark.mistake("an annotation that cannot be evaluated")
def test_a_return_type_that_does_not_exist():
    def price() -> Nowhere: ...  # noqa: F821

    assert "'Nowhere' of its return type" in refusal(price)


@pytest.mark.mistake("an annotation that cannot be evaluated")
def test_an_annotation_that_is_not_python():
    def price(amount) -> str: ...

    price.__annotations__["amount"] = "list["
    assert "'list[' of parameter 'amount'" in refusal(price)


@pytest.mark.mistake("a parameter without a type")
def test_a_parameter_without_a_type():
    def price(amount, currency: str) -> str: ...

    text = refusal(price, kind="prompt", name="cost")
    assert text.startswith("Prompt 'cost' at ")
    assert "parameter 'amount' has no type" in text
    assert "amount: Any" in text


def test_any_opts_out():
    def price(amount: Any) -> str: ...

    assert read_signature(price).bind_json(b'{"amount": [1]}') == {"amount": [1]}


def test_a_method_without_its_object():
    class Shop:
        def price(self, amount: int) -> str: ...

    assert "bound method" in refusal(Shop.price)


@pytest.mark.mistake("*args")
def test_stars_are_refused():
    def one(*args: int) -> str: ...

    def two(**kwargs: int) -> str: ...

    assert "*args" in refusal(one)
    assert "**kwargs" in refusal(two)


def test_positional_only_is_refused():
    def f(a: int, /) -> str: ...

    assert "remove the `/`" in refusal(f)


@pytest.mark.mistake("bad defaults")
def test_a_default_that_does_not_fit():
    def none(a: int = None) -> str: ...  # noqa: RUF013  # the mistake itself

    def text(a: int = "3") -> str: ...

    def member(a: Color = "red") -> str: ...

    def bound(a: Annotated[int, Field(ge=1)] = 0) -> str: ...

    assert "a: int | None = None" in refusal(none)
    assert "of type str, does not fit its type int" in refusal(text)
    assert "'a', of type str" in refusal(member)
    assert "greater than or equal to 1" in refusal(bound)


def test_a_type_that_json_cannot_carry():
    class Socket: ...

    def f(a: int, s: Socket) -> str: ...

    def g(a: int, s: dict[str, Socket] = {}) -> str: ...  # noqa: B006

    text = refusal(f)
    assert "'s'" in text
    assert "Socket" in text
    assert "'s'" in refusal(g)


def test_a_callable_parameter_is_refused():
    from collections.abc import Callable

    def f(a: int, hook: Callable[[], int]) -> str: ...

    assert "'hook'" in refusal(f)


def test_two_contexts():
    def f(one: Context, a: int, two: Context | None = None) -> str: ...

    assert "'one' and 'two'" in refusal(f)


def test_generators_and_classes_are_refused():
    def gen(a: int):
        yield a

    async def agen(a: int):
        yield a

    assert "list" in refusal(gen)
    assert "list" in refusal(agen)
    with pytest.raises(RegistrationError, match="not a function"):
        read_signature(Color)
    with pytest.raises(RegistrationError, match="not a function"):
        read_signature("add")  # type: ignore[arg-type]  # the mistake itself


def test_a_return_type_that_json_cannot_carry():
    class Socket: ...

    def f() -> list[Socket]: ...

    text = refusal(f)
    assert "return type list[" in text
    assert "-> Any" in text
