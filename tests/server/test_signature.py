"""A function → input schema and keyword arguments."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional

import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from weft.errors import RegistrationError
from weft.protocol.headers import find_mirrors
from weft.protocol.schema import check_object_schema, compile_schema
from weft.server.signature.signature import ArgumentsError, MirroredHeader, read_signature


class Context: ...


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """A place."""

    x: int
    y: int = 0


@dataclasses.dataclass
class Size:
    w: float
    h: float


class Options(TypedDict):
    fast: bool
    note: NotRequired[str]


def schema_of(fn) -> dict[str, Any]:
    schema = read_signature(fn, injected=(Context,)).input_schema
    check_object_schema(schema)
    compile_schema(schema)
    return schema


def issues(fn, raw: bytes) -> list[str]:
    with pytest.raises(ArgumentsError) as caught:
        read_signature(fn, injected=(Context,)).bind_json(raw)
    return caught.value.issues


# --- the schema


@pytest.mark.spec("TOOL-06")
def test_the_schema_of_a_plain_function():
    def add(a: int, b: Annotated[int, Field(description="Second.", ge=0)] = 1) -> int:
        """Add.

        Args:
            a: First.
            b: Not this one.
        """
        return a + b

    assert schema_of(add) == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "First."},
            "b": {"type": "integer", "description": "Second.", "minimum": 0, "default": 1},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.spec("TOOL-06")
def test_the_schema_of_a_function_without_parameters():
    def now() -> str: ...

    assert schema_of(now) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_everyday_types():
    def f(
        point: Point,
        size: Size,
        options: Options,
        color: Color,
        mode: Literal["a", "b"],
        when: dt.datetime,
        id: uuid.UUID,
        path: Path,
        either: int | str,
        many: list[Point],
        anything: Any,
    ) -> None: ...

    properties = schema_of(f)["properties"]
    assert properties["size"]["required"] == ["w", "h"]
    assert properties["color"] == {"enum": ["red", "blue"], "type": "string"}
    assert properties["mode"]["enum"] == ["a", "b"]
    assert properties["when"]["format"] == "date-time"
    assert properties["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert properties["anything"] == {}
    assert "$ref" not in properties["point"]  # used twice, and written twice
    bound = read_signature(f).bind(
        {
            "point": {"x": 1},
            "size": {"w": 1, "h": 2.5},
            "options": {"fast": True},
            "color": "red",
            "mode": "a",
            "when": "2020-01-02T03:04:05Z",
            "id": "12345678-1234-5678-1234-567812345678",
            "path": "/tmp",
            "either": "3",
            "many": [{"x": 1, "y": 2}],
            "anything": [None],
        }
    )
    assert bound["point"] == Point(x=1)
    assert bound["size"] == Size(1.0, 2.5)
    assert bound["color"] is Color.RED
    assert bound["either"] == "3"
    assert bound["path"] == Path("/tmp")
    assert bound["id"] == uuid.UUID("12345678-1234-5678-1234-567812345678")
    assert bound["many"] == [Point(x=1, y=2)]


def test_no_generated_titles_but_those_that_were_written():
    def f(a: Point, b: Size, c: Options, title: Annotated[str, Field(title="The Title")]) -> None: ...

    text = str(schema_of(f))
    assert "'title': 'The Title'" in text
    assert text.count("'title':") == 2  # the parameter of that name, and what was written


def test_a_definition_used_once_is_put_in_its_place():
    def f(point: Point) -> None: ...

    assert schema_of(f)["properties"]["point"] == {
        "description": "A place.",
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
        "additionalProperties": False,
    }


class Node(BaseModel):
    inner: list[Node] = []


def test_a_recursive_type():
    def f(node: Node) -> None: ...

    compile_schema(schema_of(f))
    assert read_signature(f).bind_json(b'{"node":{"inner":[{}]}}')["node"].inner == [Node()]


@pytest.mark.parametrize(
    "name", ["schema", "copy", "json", "model_config", "model_dump", "_x", "dict", "fn", "raw", "self_"]
)
def test_parameters_may_have_any_name(name):
    namespace: dict[str, Any] = {}
    exec(f"def f({name}: int, other: int = 2) -> int: return {name}", namespace)
    signature = read_signature(namespace["f"])
    assert list(signature.input_schema["properties"]) == [name, "other"]
    assert signature.bind_json(b'{"%s": 1}' % name.encode()) == {name: 1}


def test_an_alias_gives_a_parameter_a_name_that_python_reserves():
    def f(class_: Annotated[int, Field(alias="class")], from_: Annotated[str, Field(alias="from")] = "x") -> None:
        """F.

        :param class_: The class.
        """

    assert schema_of(f)["properties"]["class"] == {"type": "integer", "description": "The class."}
    assert schema_of(f)["properties"]["from"]["default"] == "x"
    assert read_signature(f).bind_json(b'{"class": 3}') == {"class_": 3}
    assert issues(f, b"{}") == ["'class' is missing; expected an integer."]


# --- defaults


def test_an_absent_parameter_takes_the_functions_own_default():
    def f(a: int = 1, b: str | None = None, c: Color = Color.RED, d: float = 1) -> None: ...

    assert read_signature(f).bind_json(b"{}") == {}
    assert {name: p["default"] for name, p in schema_of(f)["properties"].items()} == {
        "a": 1,
        "b": None,
        "c": "red",
        "d": 1,
    }


def test_a_default_that_can_be_changed_is_fresh_in_each_call():
    def f(items: list[int] = [], point: Point = Point(x=1)) -> None: ...  # noqa: B006, B008

    signature = read_signature(f)
    first, second = signature.bind_json(b"{}"), signature.bind_json(b"{}")
    first["items"].append(1)
    first["point"].x = 9
    assert second == {"items": [], "point": Point(x=1)}
    assert signature.bind_json(b"{}")["items"] == []
    assert schema_of(f)["properties"]["items"]["default"] == []
    assert "required" not in schema_of(f)


def test_a_default_that_json_cannot_show_is_used_and_not_shown():
    marker = object()

    def f(a: Any = marker, b: float = float("inf")) -> None: ...

    assert schema_of(f)["properties"] == {"a": {}, "b": {"type": "number"}}
    assert read_signature(f).bind_json(b"{}") == {}


def test_a_field_as_default():
    def f(
        a: int = Field(description="A.", ge=1), b: int = Field(5, description="B."), c: Annotated[int, Field(9)] = 7
    ): ...

    schema = schema_of(f)
    assert schema["required"] == ["a"]
    assert schema["properties"]["b"] == {"type": "integer", "description": "B.", "default": 5}
    assert schema["properties"]["c"]["default"] == 7
    assert read_signature(f).bind_json(b'{"a": 2}') == {"a": 2, "b": 5, "c": 7}


# --- what can be registered


@pytest.mark.parametrize(
    "annotation",
    [Context, "Context", Optional[Context], Context | None, "Context | None", Annotated[Context, "note"]],  # noqa: UP045
)
def test_the_context_is_found_by_its_type_anywhere(annotation):
    def f(a: int, b: int = 1, *, here=None) -> None: ...

    f.__annotations__["here"] = annotation
    signature = read_signature(f, injected=(Context,))
    assert signature.injected == "here"
    assert list(signature.input_schema["properties"]) == ["a", "b"]
    with pytest.raises(ArgumentsError):
        signature.bind_json(b'{"a": 1, "here": 1}')


class Thing:
    async def method(self, a: int) -> int:
        """Do it."""
        return a

    async def __call__(self, a: int, b: int = 2) -> int:
        return a + b


def test_methods_partials_callable_objects_and_wrappers():
    def three(a: int, b: int, db: object) -> int: ...

    @functools.wraps(three)
    def wrapper(*args, **kwargs): ...

    bound = read_signature(Thing().method)
    assert (bound.is_async, bound.name, bound.description) == (True, "method", "Do it.")
    assert list(bound.input_schema["properties"]) == ["a"]
    called = read_signature(Thing())
    assert (called.is_async, called.name) == (True, "Thing")
    assert list(called.input_schema["properties"]) == ["a", "b"]
    part = read_signature(functools.partial(three, 1, db=object()))
    assert (part.is_async, part.name) == (False, "three")
    assert list(part.input_schema["properties"]) == ["b"]
    assert read_signature(functools.partial(Thing().method)).is_async
    assert list(read_signature(functools.partial(wrapper, db=1)).input_schema["properties"]) == ["a", "b"]


def test_annotations_as_text_may_name_a_class_of_the_registering_function():
    class Local(BaseModel):
        n: int

    def f(a: Local, b: list[Local]) -> Local: ...

    assert read_signature(f).bind_json(b'{"a":{"n":1},"b":[]}') == {"a": Local(n=1), "b": []}


# --- headers


@pytest.mark.spec("HDR-13")
def test_a_mirrored_parameter_is_marked_in_the_schema():
    def f(
        region: Annotated[str, MirroredHeader("Region")],
        zone: Annotated[str | None, MirroredHeader("Zone")] = None,
        tier: Annotated[int, MirroredHeader("Tier")] | None = None,
        color: Annotated[Color, MirroredHeader("Color")] = Color.RED,
    ) -> None: ...

    schema = schema_of(f)
    assert schema["properties"]["region"] == {"type": "string", "x-mcp-header": "Region"}
    assert schema["properties"]["tier"]["x-mcp-header"] == "Tier"
    assert [mirror.header for mirror in find_mirrors(schema)] == [
        "Mcp-Param-Region",
        "Mcp-Param-Zone",
        "Mcp-Param-Tier",
        "Mcp-Param-Color",
    ]


class Target(BaseModel):
    region: Annotated[str, MirroredHeader("Region")]
    zone: Annotated[str | None, MirroredHeader("Zone")] = None


@pytest.mark.spec("HDR-19", "HDR-23", "HDR-35")
@pytest.mark.parametrize(
    "annotation", [Annotated[str | None, MirroredHeader("Region")], Annotated[str, MirroredHeader("Region")] | None]
)
def test_an_optional_mirrored_parameter_has_a_primitive_type(annotation: Any):
    """Clients leave out a tool with `anyOf`, or a list of types, beside the annotation."""

    def f(region=None) -> None: ...

    f.__annotations__["region"] = annotation
    signature = read_signature(f)
    assert signature.input_schema["properties"]["region"] == {"type": "string", "x-mcp-header": "Region"}
    assert signature.bind_json(b"{}") == {}
    assert signature.bind_json(b'{"region":null}') == {"region": None}
    assert signature.bind_json(b'{"region":"eu"}') == {"region": "eu"}


@pytest.mark.spec("HDR-21")
def test_a_mirrored_property_of_a_nested_model_is_reached_through_properties_alone():
    def f(target: Target) -> None: ...

    assert [mirror.path for mirror in find_mirrors(schema_of(f))] == [("target", "region"), ("target", "zone")]


# --- binding


def add(a: int, b: int = 1) -> int:
    return a + b


def test_spellings_that_models_are_fond_of():
    def f(i: int, x: float, b: bool, s: list[int]) -> None: ...

    raw = b'{"i": "3", "x": "2.5", "b": "true", "s": [1, "2", 3.0]}'
    assert read_signature(f).bind_json(raw) == {"i": 3, "x": 2.5, "b": True, "s": [1, 2, 3]}


@pytest.mark.parametrize(
    ("raw", "issue"),
    [
        (b'{"i": true}', "'i': expected an integer, got a boolean."),
        (b'{"x": false}', "'x': expected a number, got a boolean."),
        (b'{"b": 1}', "'b': expected true or false, got an integer."),
        (b'{"b": "yes"}', "'b': expected true or false, got a string."),
        (b'{"b": "1"}', "'b': expected true or false, got a string."),
        (b'{"s": 3}', "'s': expected a string, got an integer."),
        (b'{"l": ["1", true]}', "'l[1]': expected an integer, got a boolean."),
        (b'{"i": 1.5}', "'i': expected an integer, got a number."),
        (b'{"x": null}', "'x': expected a number, got null."),
    ],
)
def test_a_boolean_is_not_a_number(raw, issue):
    def f(i: int = 0, x: float = 0, b: bool = True, s: str = "", l: list[int] = []) -> None: ...  # noqa: B006, E741

    assert issues(f, raw) == [issue]


def test_a_boolean_may_be_spelt_out_and_a_union_has_other_members():
    def f(b: bool, u: bool | int, n: bool | None) -> None: ...

    bound = read_signature(f).bind_json(b'{"b": "TRUE", "u": "3", "n": "False"}')
    assert bound == {"b": True, "u": 3, "n": False}


def test_null_is_not_absence():
    assert issues(add, b'{"a": 1, "b": null}') == ["'b': expected an integer, got null."]


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-(2**60), 2**60)))
def test_bytes_and_values_bind_alike(values):
    signature = read_signature(add)
    if "a" in values:
        assert signature.bind(values) == values
    else:
        with pytest.raises(ArgumentsError):
            signature.bind(values)


class Loose(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    zone: Annotated[str, MirroredHeader("Zone")] = Field(alias="Zone")


class Strict(BaseModel):
    zone: Annotated[str, MirroredHeader("Zone")] = Field(alias="Zone")


@dataclasses.dataclass
class Record:
    zone: Annotated[str, MirroredHeader("Zone"), Field(validation_alias=AliasChoices("zone", "area"))]


@pytest.mark.security("R8")
@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, Field(validation_alias=AliasChoices("place", "zone")), MirroredHeader("Zone")],
        Annotated[str, Field(validation_alias=AliasPath("place", 0)), MirroredHeader("Zone")],
        Annotated[str, Field(validation_alias=AliasChoices("a", "b"), json_schema_extra={"x-mcp-header": "Zone"})],
        Annotated[Strict, Field(validation_alias=AliasChoices("place", "where"))],
        Loose,
        Record,
    ],
)
def test_a_mirrored_argument_has_one_name(annotation: Any) -> None:
    def move(place): ...

    move.__annotations__ = {"place": annotation}
    with pytest.raises(
        RegistrationError, match=r"Mcp-Param-Zone, but .* several names.\n.*\n  What to do: give it one"
    ):
        read_signature(move)


@pytest.mark.security("R8")
def test_a_mirrored_argument_may_have_an_alias_and_its_neighbour_several() -> None:
    def move(place: Strict, other: Annotated[int, Field(validation_alias=AliasChoices("other", "one"))]): ...

    schema = read_signature(move).input_schema
    assert [mirror.path for mirror in find_mirrors(schema)] == [("place", "Zone")]


@pytest.mark.security("R8")
def test_a_mirrored_argument_may_have_the_name_of_a_field_elsewhere_that_has_several() -> None:
    class Elsewhere(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        spot: str = Field(validation_alias=AliasChoices("spot", "zone"))
        other: str = Field(alias="place")

    def move(zone, place, other): ...

    move.__annotations__ = {"zone": Annotated[str, MirroredHeader("Region")], "place": Strict, "other": Elsewhere}
    schema = read_signature(move).input_schema
    assert [mirror.path for mirror in find_mirrors(schema)] == [("zone",), ("place", "Zone")]


def test_a_field_may_be_called_ref() -> None:
    class Target(BaseModel):
        x: int

    class Pointer(BaseModel):
        ref: Target = Field(alias="$ref")
        name: str

    def follow(pointer): ...

    follow.__annotations__ = {"pointer": Pointer}
    shown = read_signature(follow).input_schema["properties"]["pointer"]["properties"]
    assert list(shown) == ["$ref", "name"]
    assert shown["$ref"]["properties"] == {"x": {"type": "integer"}}


class Inner(BaseModel):
    size: int = 0


class Outer(BaseModel):
    inner: Inner | None = None
    more: list[Inner] = []
    again: Outer | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    inner: Inner | None = None


class Loose(BaseModel):
    model_config = ConfigDict(extra="ignore")

    size: int = 0


class Own(BaseModel):
    size: int = 0

    def __init__(self, **values: Any) -> None:
        super().__init__(size=values.get("size", 0))


@dataclasses.dataclass
class Holder:
    outer: Outer


def models(
    outer: Outer | None = None,
    open_: Open | None = None,
    loose: Loose | None = None,
    own: Own | None = None,
    holder: Holder | None = None,
) -> None: ...


@pytest.mark.parametrize("length", [0, 70_000])
@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"outer": {"x": 1}}, "outer.x"),
        ({"outer": {"inner": {"x": 1}}}, "outer.inner.x"),
        ({"outer": {"more": [{"x": 1}]}}, "outer.more[0].x"),
        ({"outer": {"again": {"x": 1}}}, "outer.again.x"),
        ({"open_": {"inner": {"x": 1}}}, "open_.inner.x"),
        ({"holder": {"outer": {"x": 1}}}, "holder.outer.x"),
    ],
)
def test_a_model_refuses_unknown_fields_unless_it_says_otherwise(arguments: dict, place: str, length: int):
    raw = pydantic_core.to_json(arguments) + b" " * length
    with pytest.raises(ArgumentsError) as caught:
        read_signature(models).bind_json(raw)
    assert str(caught.value) == f"The arguments of tool 'models' do not fit:\n- '{place}' is not known; remove it."


def test_what_a_model_says_of_unknown_fields_is_kept():
    bound = read_signature(models).bind({"open_": {"x": 1}, "loose": {"x": 1}, "own": {"size": 3, "x": 1}})
    assert bound["open_"].x == 1
    assert (bound["loose"], bound["own"].size) == (Loose(), 3)


def test_the_schema_shows_which_models_refuse_unknown_fields():
    properties = schema_of(models)["properties"]
    shown = {name: properties[name]["anyOf"][0].get("additionalProperties") for name in ("open_", "loose", "own")}
    assert shown == {"open_": True, "loose": None, "own": None}
    definitions = read_signature(models, refs=True).input_schema["$defs"]
    assert (definitions["Inner"]["additionalProperties"], definitions["Outer"]["additionalProperties"]) == (
        False,
        False,
    )


@pytest.mark.parametrize("annotation", [int | bool, bool | int, list[int] | bool | int, int | None])
def test_a_whole_number_is_an_integer_also_beside_a_boolean(annotation: Any):
    def f(a: Any, b: list[int], c: str = "") -> None: ...

    f.__annotations__["a"] = annotation
    bound = read_signature(f).bind({"a": 1.0, "b": [1, 2.0, "3"]})
    assert (bound["a"], type(bound["a"]), bound["b"]) == (1, int, [1, 2, 3])


def test_a_number_is_still_no_boolean():
    def f(a: bool | str) -> None: ...

    for number in (1, 1.0):
        with pytest.raises(ArgumentsError, match="'a': expected true or false"):
            read_signature(f).bind({"a": number})


# --- keys that have one hash

APART = 2**61 - 1  # Python's hash of a number is the rest of dividing by this


@dataclasses.dataclass(frozen=True)
class Seat:
    row: int


class Plan(BaseModel):
    seats: dict[str, set[int] | None] = {}


def hashed(
    numbers: set[int] = set(),  # noqa: B006
    names: dict[int, str] | None = None,
    seats: frozenset[Seat] = frozenset(),
    plan: Plan | None = None,
    mixed: list[set[int | str]] = [],  # noqa: B006
) -> None: ...


HASHED: dict[str, Any] = {
    "numbers": lambda keys: keys,
    "names": lambda keys: dict.fromkeys(map(str, keys), ""),
    "seats": lambda keys: [{"row": key} for key in keys],
    "plan": lambda keys: {"seats": {"a": keys}},
    "mixed": lambda keys: [keys[:9], keys[9:]],
}


@pytest.mark.security("D4")
@pytest.mark.parametrize("name", HASHED)
def test_keys_with_one_hash_are_bounded(name: str) -> None:
    signature = read_signature(hashed)
    at_limit = [number * APART for number in range(1, 17)]
    assert name in signature.bind({name: HASHED[name](at_limit)})
    with pytest.raises(ArgumentsError, match="one and the same hash"):
        signature.bind({name: HASHED[name]([*at_limit, 17 * APART])})


def test_the_same_key_again_and_keys_with_their_own_hashes_are_not_counted() -> None:
    signature = read_signature(hashed)
    many = [*range(-5000, 5000), *range(2**60, 2**60 + 5000), *[APART, 0, -1, -2] * 1000]
    assert signature.bind({"numbers": many})["numbers"] == set(many)
    assert signature.bind({"numbers": ["1", 2.0]})["numbers"] == {1, 2}  # and the spellings that models are fond of


def test_a_key_without_a_hash_is_told_as_before() -> None:
    def anything(values: set) -> None: ...

    assert issues(anything, b'{"values": [[1]]}') == ["'values[0]': Set items should be hashable."]
