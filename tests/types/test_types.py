"""The wire types: camelCase, absent fields left out, unknown ones ignored, and the names the schema has."""

import msgspec
import pytest

import weft.types as types
from support.official_schemas import official_schemas
from weft.eras.stateless import NEWEST
from weft.types.base import Struct


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
        "ResourceContents": {"text", "blob"}  # one type here for what is text or blob
    }
