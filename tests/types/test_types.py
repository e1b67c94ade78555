"""The wire types: camelCase, absent fields left out, unknown ones ignored, and the names the schema has."""

from typing import Any

import msgspec
import pytest

import weft.types as types
from support.official_schemas import official_schemas
from weft.eras.stateless import NEWEST
from weft.types.base import NotificationParams, Struct
from weft.types.lifecycle import RequestParams


@pytest.mark.spec("TOOL-12", "TOOL-20")
@pytest.mark.parametrize("value", [None, False, 0, [], ""])
def test_structured_content_that_is_falsy_is_sent(value: object) -> None:
    result = types.CallToolResult(content=[], structured_content=value)
    assert msgspec.to_builtins(result) == {"content": [], "structuredContent": value}


def test_structured_content_that_is_absent_is_left_out() -> None:
    assert msgspec.to_builtins(types.CallToolResult(content=[])) == {"content": []}


@pytest.mark.spec("TOOL-20", "ICON-05")
def test_the_wire_has_camel_case_and_tags() -> None:
    icon = types.Icon("https://x/y.png", "image/png", ["48x48"], "dark")
    tool = types.Tool(
        name="a", input_schema={"type": "object"}, icons=[icon], annotations=types.ToolAnnotations(read_only_hint=True)
    )
    assert msgspec.to_builtins(tool) == {
        "name": "a",
        "inputSchema": {"type": "object"},
        "icons": [{"src": "https://x/y.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}],
        "annotations": {"readOnlyHint": True},
    }
    blocks = [types.TextContent("a"), types.ImageContent("b", "image/png"), types.AudioContent("c", "audio/wav")]
    assert [msgspec.to_builtins(block)["type"] for block in blocks] == ["text", "image", "audio"]


@pytest.mark.parametrize("name", [name for name in types.__all__ if isinstance(getattr(types, name), type)])
def test_every_type_is_a_wire_type(name: str) -> None:
    kind = getattr(types, name)
    if issubclass(kind, msgspec.Struct):
        assert issubclass(kind, Struct), name
        assert kind.__doc__


@pytest.mark.spec("META-10")
def test_unknown_fields_are_ignored() -> None:
    caps = msgspec.json.decode(b'{"roots":{"new":1},"tasks":{"x":{}}}', type=types.ClientCapabilities)
    assert caps.roots is not None


def fields_of(kind: type[msgspec.Struct]) -> set[str]:
    tag = kind.__struct_config__.tag_field
    return {field.encode_name for field in msgspec.structs.fields(kind)} | ({tag} if tag else set())


def test_fields_are_those_of_the_schema() -> None:
    official = official_schemas()[NEWEST.version]["$defs"]
    kinds = {name: getattr(types, name) for name in types.__all__ if "properties" in official.get(name, {})}
    assert len(kinds) > 40
    unlike = {name: fields_of(kind) ^ official[name]["properties"].keys() for name, kind in kinds.items()}
    assert {name: fields for name, fields in unlike.items() if fields} == {
        "ResourceContents": {"text", "blob"},  # one type here for what is text or blob
        "SubscriptionFilter": {"taskIds"},  # of the tasks extension
        "ClientCapabilities": {"tasks"},  # only in revision 2025-11-25, like the next two
        "ServerCapabilities": {"tasks"},
        "Tool": {"execution"},
    }


class Sample(types.Result, kw_only=True):
    count: int = 0
    share: float = 0.5
    text: str = ""
    flag: bool = False
    items: list[int] = []  # noqa: RUF012 - as users write it
    table: dict[str, int] = msgspec.field(default_factory=dict)
    renamed: int = msgspec.field(name="ttlMs", default=0)
    made: list[int] = msgspec.field(default_factory=lambda: [1])
    none: str | None = None
    unset: str | msgspec.UnsetType = msgspec.UNSET
    limit = 5  # not annotated: no field


def test_fields_of_a_users_result_are_sent_also_where_they_equal_their_default() -> None:
    expected = {"count": 0, "share": 0.5, "text": "", "flag": False, "items": [], "table": {}, "ttlMs": 0, "made": [1]}
    assert msgspec.to_builtins(Sample()) == expected
    assert msgspec.json.decode(msgspec.json.encode(Sample())) == expected
    assert Sample.limit == 5
    Sample().items.append(1)
    assert Sample().items == []  # each has a list to itself


@pytest.mark.parametrize("base", [types.Result, RequestParams, NotificationParams, Struct])
def test_so_are_those_of_every_kind_of_wire_type(base: Any) -> None:
    class Own(base, kw_only=True):
        count: int = 0

    class Further(Own, kw_only=True):
        more: int = 1

    class Explicit(base, kw_only=True, omit_defaults=True):
        count: int = 0

    assert msgspec.to_builtins(Further()) == {"count": 0, "more": 1}
    assert msgspec.to_builtins(Explicit()) == {}


# What the schema requires, and is filled in later: by the era, or by the cache policy of the server.
FILLED_IN = {"resultType", "ttlMs", "cacheScope", "_meta"}


def test_what_the_schema_requires_has_no_default_that_could_be_left_out() -> None:
    official = official_schemas()[NEWEST.version]["$defs"]
    kinds = {name: getattr(types, name) for name in types.__all__ if "required" in official.get(name, {})}
    assert len(kinds) > 30
    optional = {
        (name, field.encode_name)
        for name, kind in kinds.items()
        for field in msgspec.structs.fields(kind)
        if field.encode_name in official[name]["required"]
        and (field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT)
    }
    assert {name for _, name in optional} <= FILLED_IN, optional
