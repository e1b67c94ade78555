"""Example values: whatever a schema asks for in common words, the example fits it."""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from weft.protocol.schema import compile_schema
from weft.server.run.listening import example_of


class Colour(Enum):
    RED = "red"


@dataclass
class Leaf:
    colour: Colour
    size: int = 3


class Tree(BaseModel):
    leaf: Leaf
    trees: list["Tree"]
    planted: date
    parent: "Tree | None" = None


@pytest.mark.parametrize(
    "type",
    [
        int,
        bool,
        None,
        Literal["a", "b"],
        int | None,
        Colour,
        Leaf,
        Tree,
        dict[str, int],
        tuple[int, str],
        Annotated[list[Leaf], Field(min_length=2)],
        Annotated[int, Field(ge=5)],
        Annotated[int, Field(gt=5, lt=7)],
        Annotated[float, Field(gt=0, le=1)],
        Annotated[float, Field(lt=-3)],
        Annotated[int, Field(le=-3)],
        Annotated[int, Field(multiple_of=7)],
        Annotated[str, Field(min_length=9)],
        Annotated[str, Field(max_length=2)],
    ],
    ids=str,
)
def test_an_example_fits(type: Any) -> None:
    adapter = TypeAdapter(type)
    schema = adapter.json_schema()
    value = example_of(schema)
    adapter.validate_python(value)
    assert compile_schema(schema).problems(value) == []


def test_only_what_is_required_is_there() -> None:
    assert set(example_of(TypeAdapter(Tree).json_schema())) == {"leaf", "trees", "planted"}


@pytest.mark.parametrize(
    "schema", [True, 7, {"$ref": "#/$defs/none"}, {"$ref": "#"}, {"$ref": "https://example.com/"}, {"anyOf": []}]
)
def test_what_is_not_followed_ends_all_the_same(schema: Any) -> None:
    assert example_of(schema) in (None, "text")
