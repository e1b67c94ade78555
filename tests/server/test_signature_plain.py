"""Plain types go a short way: it must end where the general one does."""

import json
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter
from pydantic_core import ValidationError

from weft.errors import RegistrationError
from weft.server.signature.fields import read_fields, schema_of
from weft.server.signature.plain import Arguments, plain_arguments, plain_type
from weft.server.signature.signature import parse_docstring, read_signature

PLAIN = [
    int,
    float,
    str,
    bool,
    Any,
    int | None,
    None | str,
    Optional[bool],  # noqa: UP045 - the older spelling is met in the wild
    Any | None,
    list[int],
    list[Any],
    list[float | None] | None,
    dict[str, Any],
    dict[str, list[int]],
    list[list[dict[str, bool]]],
]
OTHERS = [
    list,
    dict,
    dict[int, str],
    tuple[int, ...],
    set[str],
    bytes,
    None,
    int | str,
    int | str | None,
    list[bytes],
    Literal["a"],
    Annotated[int, Field(gt=0)],
    list[Annotated[int, Field(gt=0)]],
]


@pytest.mark.parametrize("annotation", PLAIN, ids=str)
def test_a_plain_type_is_what_pydantic_makes_of_it(annotation: Any):
    plain, adapter = plain_type(annotation), TypeAdapter(annotation)
    assert plain is not None
    assert plain.core == adapter.core_schema
    for mode in ("validation", "serialization"):
        assert json.dumps(plain.shown) == json.dumps(schema_of(adapter, mode))


@pytest.mark.parametrize("annotation", OTHERS, ids=str)
def test_other_types_are_left_to_pydantic(annotation: Any):
    assert plain_type(annotation) is None


def nothing() -> None: ...


def scalars(a: int, b: float, c: str, d: bool) -> None:
    """Do it.

    Args:
        a: The first.
        c: The third.
    """


def defaults(
    a: int = 3, b: float = 1, c: str | None = None, d: float = float("inf"), e: Any = (1, 2), f: bool = True
) -> None:
    """Do it.

    Args:
        c: The third.
    """


def containers(a: list[int], b: dict[str, float | None], c: list[str] | None = None) -> None: ...


FUNCTIONS = [nothing, scalars, defaults, containers]


def refuse(what: str, remedy: str, why: str | None = None) -> RegistrationError:
    return RegistrationError(what)


def both_ways(fn: Callable[..., Any]) -> tuple[Arguments, Arguments]:
    parameters = list(signature(fn).parameters.values())
    doc = parse_docstring(fn.__doc__).params
    plain = plain_arguments(parameters, doc)
    assert plain is not None
    return plain, read_fields(parameters, doc, refuse)


def outcome(validate: Callable[..., Any], raw: bytes, *, strict: bool) -> Any:
    try:
        return repr(validate(raw, strict=strict))  # 1, 1.0 and True are equal, and differ
    except ValidationError as error:
        return repr(error.errors(include_url=False))


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_both_ways_show_the_same_schema(fn: Callable[..., Any]):
    plain, general = both_ways(fn)
    assert json.dumps(plain.schema) == json.dumps(general.schema)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "x", "3", "1.5", "true"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_both_ways_bind_and_complain_alike(fn: Callable[..., Any]):
    plain, general = both_ways(fn)

    @settings(max_examples=60, deadline=None)
    @given(st.dictionaries(st.sampled_from("abcdefg"), VALUES) | VALUES)
    def check(arguments: Any) -> None:
        raw = json.dumps(arguments).encode()
        for strict in (True, False):
            assert outcome(plain.validate_json, raw, strict=strict) == outcome(
                general.validate_json, raw, strict=strict
            )
        assert outcome(plain.validate_large, raw, strict=True) == outcome(general.validate_large, raw, strict=True)

    check()


def test_large_arguments_stop_at_the_first_wrong_item():
    plain, _ = both_ways(containers)
    with pytest.raises(ValidationError) as caught:
        plain.validate_large(json.dumps({"a": ["x"] * 100, "b": {}}).encode(), strict=True)
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("default", ["3", None, True, Field(default=3)], ids=repr)
def test_a_default_that_does_not_fit_is_left_to_pydantic(default: Any):
    parameter = Parameter("a", Parameter.KEYWORD_ONLY, default=default, annotation=int)
    assert plain_arguments([parameter], {}) is None


def test_a_default_that_can_change_is_copied_for_each_call():
    def collect(into: list[int] = []) -> None: ...  # noqa: B006 - the mistake this is about

    bind = read_signature(collect).bind_json
    bind(b"{}")["into"].append(1)
    assert bind(b"{}") == {"into": []}


def test_schemas_are_not_shared_between_tools():
    def one(a: list[int]) -> int: ...

    first, second = read_signature(one), read_signature(one)
    first.input_schema["properties"]["a"]["items"]["title"] = "changed"
    assert first.output_schema is not None
    first.output_schema["title"] = "changed"
    assert second.input_schema["properties"]["a"] == {"items": {"type": "integer"}, "type": "array"}
    assert second.output_schema == {"type": "integer"}
