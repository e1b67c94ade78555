"""Helpers for pictures, sounds and files; return values as blocks and as JSON."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import mimetypes
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import ask
from weft import Server
from weft.errors import UsageError
from weft.server.diagnostics import Unserialisable
from weft.server.features.content import Audio, File, Image, guess_mime_type, is_text, to_blocks
from weft.server.signature.output import to_json_text
from weft.types.features import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent

PNG = b"\x89PNG\r\n\x1a\n...."


@pytest.mark.spec("PRM-05")
@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"<svg xmlns=''/>", "image/svg+xml"),
    ],
)
def test_an_image_knows_its_type_by_its_bytes(data: bytes, mime_type: str) -> None:
    block = Image(data).to_content()
    assert isinstance(block, ImageContent)
    assert block.mime_type == mime_type
    assert base64.b64decode(block.data) == data


@pytest.mark.spec("PRM-05")
@pytest.mark.parametrize(
    ("data", "mime_type"),
    [(b"RIFF\0\0\0\0WAVE", "audio/wav"), (b"ID3\x04", "audio/mpeg"), (b"OggS", "audio/ogg"), (b"fLaC", "audio/flac")],
)
def test_a_sound_knows_its_type_by_its_bytes(data: bytes, mime_type: str) -> None:
    block = Audio(data).to_content()
    assert isinstance(block, AudioContent)
    assert (block.mime_type, base64.b64decode(block.data)) == (mime_type, data)


def test_the_type_is_taken_from_what_is_said_then_from_the_name_then_from_the_data(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(PNG)
    assert Image(path).mime_type == "image/jpeg"
    assert Image(str(path), mime_type="image/webp").mime_type == "image/webp"
    assert Image(PNG, "image/webp").mime_type == "image/webp"
    assert File(b"x", "text/csv", uri="a://b").mime_type == "text/csv"
    assert Image(PNG, format="GIF").mime_type == "image/gif"
    other = tmp_path / "a.bin"
    other.write_bytes(PNG)
    assert Image(other).mime_type == "image/png"


def test_the_table_of_types_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guess_mime_type(Path("a.css"), b"", "") == "text/css"
    monkeypatch.delattr(mimetypes, "MimeTypes")
    assert guess_mime_type(Path("a.html"), b"", "") == "text/html"


def test_a_type_that_stays_unclear_or_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Image\(\.\.\., mime_type='image/…'\)"):
        Image(b"????")
    with pytest.raises(UsageError, match="must begin with 'image/'"):
        Image(PNG, mime_type="text/plain")
    with pytest.raises(UsageError, match="not a MIME type"):
        Audio(b"", mime_type="audio/")
    with pytest.raises(FileNotFoundError):
        Image("/no/such/file.png")


@pytest.mark.spec("PRM-06")
def test_a_text_file_is_embedded_as_text_and_another_as_blob(tmp_path: Path) -> None:
    text = tmp_path / "a b.csv"
    text.write_bytes("ä,b".encode())
    block = File(text).to_content()
    assert isinstance(block, EmbeddedResource)
    assert (block.resource.text, block.resource.blob, block.resource.mime_type) == ("ä,b", None, "text/csv")
    assert block.resource.uri == text.resolve().as_uri()
    assert " " not in block.resource.uri
    blob = File(b"\0\xff", uri="data://x").to_contents()
    assert (blob.text, blob.mime_type) == (None, "application/octet-stream")
    assert base64.b64decode(blob.blob or "") == b"\0\xff"


def test_a_file_of_bytes_needs_a_uri_and_a_good_one() -> None:
    assert File(b"plain", uri="memo://1").mime_type == "text/plain"
    assert File(b"\xff", uri="memo://a.txt").to_contents().text is None
    assert File(b"abc", uri="memo://a.png").to_contents().text is None
    with pytest.raises(UsageError, match="uri="):
        File(b"plain")
    with pytest.raises(UsageError, match="scheme"):
        File(b"plain", uri="no-scheme")


@pytest.mark.parametrize(
    ("mime_type", "text"),
    [
        ("text/html", True),
        ("application/ld+json", True),
        ("TEXT/PLAIN; charset=utf-8", True),
        ("image/png", False),
    ],
)
def test_text_types(mime_type: str, text: bool) -> None:
    assert is_text(mime_type) is text


def texts(value: Any) -> list[str]:
    return [block.text for block in to_blocks(value) if isinstance(block, TextContent)]


def test_values_become_blocks() -> None:
    link = ResourceLink("a://b", "b")
    assert to_blocks(None) == []
    assert texts("hello") == ["hello"]
    assert to_blocks(link) == [link]
    assert [type(block) for block in to_blocks(["a", Image(PNG), link, {"b": 1}])] == [
        TextContent, ImageContent, ResourceLink, TextContent,
    ]  # fmt: skip
    assert texts(["a", "b"]) == ["a", "b"]
    assert texts(("a", 1)) == ['["a",1]']
    assert texts(3) == ["3"]
    assert texts({"a": [1]}) == ['{"a":[1]}']
    assert texts(True) == ["true"]


@dataclasses.dataclass
class Point:
    x: Any


class Model(pydantic.BaseModel):
    when: dt.date = pydantic.Field(serialization_alias="on")


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1), {"x": 1}),
        (Model(when=dt.date(2031, 1, 2)), {"on": "2031-01-02"}),
        ([dt.datetime(2031, 1, 2, tzinfo=dt.UTC)], ["2031-01-02T00:00:00Z"]),
        (Decimal("1.50"), "1.50"),
        (Colour.RED, "red"),
        ({1: {"a"}}, {"1": ["a"]}),
        ([TextContent("b")], [{"type": "text", "text": "b"}]),
        ("NaN and Infinity", "NaN and Infinity"),
        (10**400, 10**400),
    ],
)
def test_values_become_json(value: Any, expected: Any) -> None:
    assert json.loads(to_json_text(value)) == expected


class Strange:
    def __repr__(self) -> str:
        return "secret"


@pytest.mark.mistake("unserialisable return value")
@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Strange(), "The returned value is of type"),
        ({"a": [1, Strange()]}, "at 'a[1]' is of type"),
        (Point(Strange()), "at 'x' is of type"),
        ([{"b": lambda: 0}], "at '[0].b' is of type function"),
        (b"\0", "Wrap it in Image(...)"),
    ],
)
def test_what_is_not_json_is_refused_with_type_place_and_remedy(value: Any, place: str) -> None:
    with pytest.raises(Unserialisable) as caught:
        to_blocks(value)
    assert place in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "which is not JSON. " in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, Point(float("-inf"))])
def test_numbers_that_json_does_not_have_are_refused(value: Any) -> None:
    with pytest.raises(Unserialisable, match="NaN or infinite"):
        to_json_text(value)


def test_cycles_and_lone_surrogates_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(Unserialisable):
        to_json_text(cycle)
    with pytest.raises(Unserialisable, match="surrogate"):
        to_blocks("\ud800")
    with pytest.raises(Unserialisable):
        to_json_text({"a": "\ud800"})


@pytest.mark.parametrize("annotation", [None, Any, list, list[Any], tuple[Any, ...]])
async def test_a_tool_that_returns_a_list_of_anything_may_return_pictures_and_files(annotation: Any) -> None:
    async def mixed():
        return ["text", Image(PNG), File(b"a,b", uri="data://table.csv")]

    if annotation is not None:
        mixed.__annotations__["return"] = annotation
    server = Server("mixed")
    server.add_tool(mixed)
    result = (await ask(server, "tools/call", {"name": "mixed"})).result
    assert [block["type"] for block in result["content"]] == ["text", "image", "resource"]
    assert "structuredContent" not in result
    assert "outputSchema" not in (await ask(server, "tools/list")).result["tools"][0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_text_reads_back_as_the_value(value: Any) -> None:
    assert msgspec.json.decode(to_json_text(value)) == json.loads(json.dumps(value))
