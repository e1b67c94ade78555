"""Fields that a client sends and no type knows: refused wherever they are, and the schema says so beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic.dataclasses
import pydantic_core
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator
from typing_extensions import TypedDict

from weft.protocol.schema import compile_schema
from weft.server.signature.signature import ArgumentsError, read_signature

T = TypeVar("T")


class Size(BaseModel):
    width: int = 0


class Metadata(BaseModel):
    metadata: Size = Size()
    default: Size = Size()
    type: Size = Size()


class Default(BaseModel):
    kind: Literal["default"]


class Other(BaseModel):
    kind: Literal["metadata"]


class Box(BaseModel, Generic[T]):
    item: T


class Aliased(BaseModel):
    user_name: str = Field(alias="userName")


class Old(BaseModel):
    width: int = 0

    @model_validator(mode="before")
    @classmethod
    def read_old(cls, given: Any) -> Any:
        if isinstance(given, dict) and "w" in given:
            return {"width": given["w"]}
        return given


@dataclasses.dataclass
class Plain:
    width: int = 0


@pydantic.dataclasses.dataclass
class Checked:
    width: int = 0


class Keys(TypedDict):
    width: int


class Holder(BaseModel):
    plain: Plain = dataclasses.field(default_factory=Plain)  # pyright: ignore[reportAssignmentType]
    keys: Keys = {"width": 0}


class Loose(BaseModel):
    model_config = ConfigDict(extra="ignore")

    plain: Plain = Plain()
    keys: Keys = {"width": 0}


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="ignore"))
class LooseChecked:
    width: int = 0


class LooseKeys(TypedDict):
    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc] - as pydantic has it
    width: int


def signature_of(annotation: Any):
    def draw(x: Any) -> None: ...

    draw.__annotations__["x"] = annotation
    return read_signature(draw)


REFUSED = [
    (Metadata, {"metadata": {"z": 1}}, "x.metadata.z"),
    (Metadata, {"default": {"z": 1}}, "x.default.z"),
    (Metadata, {"type": {"z": 1}}, "x.type.z"),
    (Annotated[Default | Other, Field(discriminator="kind")], {"kind": "default", "z": 1}, "x.z"),
    (Annotated[Default | Other, Field(discriminator="kind")], {"kind": "metadata", "z": 1}, "x.z"),
    (Default | Other, {"kind": "default", "z": 1}, "x.z"),
    (Box[Size], {"item": {"z": 1}}, "x.item.z"),
    (Box[Box[Size]], {"item": {"item": {}, "z": 1}}, "x.item.z"),
    (Aliased, {"userName": "u", "z": 1}, "x.z"),
    (Old, {"width": 1, "z": 1}, "x.z"),
    (RootModel[list[Size]], [{"z": 1}], "x[0].z"),
    (Plain, {"z": 1}, "x.z"),
    (Checked, {"z": 1}, "x.z"),
    (Box[Checked], {"item": {"z": 1}}, "x.item.z"),
    (Holder, {"plain": {"z": 1}}, "x.plain.z"),
    (Holder, {"keys": {"width": 1, "z": 1}}, "x.keys.z"),
    (dict[str, Checked], {"a": {"z": 1}}, "x.a.z"),
]
TAKEN = [
    (Old, {"w": 3}),
    (Loose, {"z": 1, "plain": {"z": 1}, "keys": {"width": 1, "z": 1}}),
    (LooseChecked, {"z": 1}),
    (LooseKeys, {"width": 1, "z": 1}),
]


@pytest.mark.parametrize("length", [0, 70_000])
@pytest.mark.parametrize(("annotation", "given", "place"), REFUSED)
def test_an_unknown_field_is_refused_wherever_it_is(annotation: Any, given: Any, place: str, length: int):
    signature = signature_of(annotation)
    with pytest.raises(ArgumentsError) as caught:
        signature.bind_json(pydantic_core.to_json({"x": given}) + b" " * length)
    assert caught.value.issues == [f"'{place}' is not known; remove it."]


@pytest.mark.parametrize(("annotation", "given", "place"), REFUSED)
def test_the_schema_refuses_it_as_well(annotation: Any, given: Any, place: str):
    assert compile_schema(signature_of(annotation).input_schema).problems({"x": given}), place


@pytest.mark.parametrize(("annotation", "given"), TAKEN)
def test_a_type_may_say_otherwise(annotation: Any, given: Mapping[str, Any]):
    assert signature_of(annotation).bind({"x": given})
