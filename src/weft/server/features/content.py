"""Content: what a handler returns, made into the blocks and the JSON of the wire.

Owns the `Image`, `Audio` and `File` helpers, their MIME types, and the one rule of how a Python value becomes content.
It must not guess: a value that is not JSON is an error that names it, never its `repr` sent as if it were an answer.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import CoroutineType
from typing import Any, NoReturn, cast

import msgspec
import pydantic_core

from weft.errors import UsageError, WeftError
from weft.protocol.names import check_uri
from weft.server.signature.errors import place_of
from weft.types.base import Annotations, Meta
from weft.types.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

BLOCKS = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)

_MIME = re.compile(r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(?:\s*;\s*[^;\s][^;]*)*", re.ASCII)

# MIME types that must not depend on the machine; the rest is asked of the standard library.
_BY_SUFFIX = {
    ".avif": "image/avif",
    ".csv": "text/csv",
    ".flac": "audio/flac",
    ".gif": "image/gif",
    ".html": "text/html",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".m4a": "audio/mp4",
    ".md": "text/markdown",
    ".mp3": "audio/mpeg",
    ".oga": "audio/ogg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".py": "text/x-python",
    ".svg": "image/svg+xml",
    ".toml": "application/toml",
    ".txt": "text/plain",
    ".wav": "audio/wav",
    ".webp": "image/webp",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_BY_START = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"BM", "image/bmp"),
    (8, b"WEBP", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (0, b"<svg", "image/svg+xml"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"\xff\xf2", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (4, b"ftypM4A", "audio/mp4"),
    (0, b"%PDF-", "application/pdf"),
)
_TEXT = frozenset(
    {
        "application/javascript",
        "application/json",
        "application/sql",
        "application/toml",
        "application/x-sh",
        "application/xml",
        "application/yaml",
    }
)

_REMEDY = (
    "Return strings, numbers, booleans, None, lists, dictionaries, dataclasses or pydantic models, "
    "or convert it yourself."
)
_Place = tuple[str | int, ...]
_WORD = 2**63
_MAX_DEPTH = 64  # how far down a culprit is looked for, so that its place can be named


class Unserialisable(WeftError):
    """A handler returned something that JSON cannot say. The message names the type, the place and the remedy."""


class _Media:
    """Bytes, or the file that holds them, with their MIME type. The file is read at once."""

    family = ""  # what the MIME type must begin with

    def __init__(
        self,
        data: bytes | str | os.PathLike[str],
        mime_type: str | None = None,
        *,
        format: str | None = None,
        annotations: Annotations | None = None,
        meta: Meta | None = None,
    ) -> None:
        self.path, self.data = _load(data)
        if mime_type is None and format is not None:
            mime_type = self.family + format.lower().lstrip(".")
        if mime_type is None:
            mime_type = guess_mime_type(self.path, self.data, self.family)
        kind = type(self).__name__
        if mime_type is None:
            raise UsageError(
                f"{kind}(...): the MIME type is not clear from the data. "
                f"Name it: {kind}(..., mime_type='{self.family}…')."
            )
        check_mime_type(mime_type, f"{kind}(...)")
        if not mime_type.lower().startswith(self.family):
            raise UsageError(
                f"{kind}(...): the MIME type must begin with {self.family!r}, not {mime_type!r}. "
                "Use File(...) for other data."
            )
        self.mime_type = mime_type
        self.annotations = annotations
        self.meta = meta

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{len(self.data)} bytes>, mime_type={self.mime_type!r})"


class Image(_Media):
    """A picture: bytes, or the path of a file.

    The MIME type is the one given, else that of `format` ("png"), of the file's name, or of the data itself.

    >>> Image(b"GIF89a...").mime_type
    'image/gif'
    """

    family = "image/"

    def to_content(self) -> ImageContent:
        """The block for the wire."""
        return ImageContent(base64_of(self.data), self.mime_type, self.annotations, self.meta)


class Audio(_Media):
    """A sound: bytes, or the path of a file.

    >>> Audio(b"...", format="wav").mime_type
    'audio/wav'
    """

    family = "audio/"

    def to_content(self) -> AudioContent:
        """The block for the wire."""
        return AudioContent(base64_of(self.data), self.mime_type, self.annotations, self.meta)


class File(_Media):
    """Any file: bytes, or its path. Sent as text when it is text in UTF-8, else as base64.

    Its URI is the one given, else the path's `file:` URI; bytes need a `uri`.

    >>> File(b"a,b", uri="data://table.csv").to_content().resource
    ResourceContents(uri='data://table.csv', mime_type='text/csv', text='a,b', blob=None, meta=None)
    """

    def __init__(
        self,
        data: bytes | str | os.PathLike[str],
        mime_type: str | None = None,
        *,
        uri: str | None = None,
        annotations: Annotations | None = None,
        meta: Meta | None = None,
    ) -> None:
        if mime_type is None and uri is not None:
            mime_type = guess_mime_type(Path(uri), b"", "")
        super().__init__(data, mime_type=mime_type, annotations=annotations, meta=meta)
        if uri is None:
            if self.path is None:
                raise UsageError("File(...): bytes have no name of their own. Give them one: File(data, uri='…').")
            uri = self.path.resolve().as_uri()
        try:
            check_uri(uri)  # PRM-06
        except ValueError as error:
            raise UsageError(f"File(...): {error}") from None
        self.uri = uri

    def to_contents(self, uri: str | None = None) -> ResourceContents:
        """What is in the file, as a resource; under another URI than the file's own where one is given.

        Text where the MIME type says text and the bytes agree, else base64 (RES-14).
        """
        uri = uri or self.uri
        if is_text(self.mime_type):
            try:
                return ResourceContents(uri, self.mime_type, text=self.data.decode(), meta=self.meta)
            except UnicodeDecodeError:
                pass
        return ResourceContents(uri, self.mime_type, blob=base64_of(self.data), meta=self.meta)

    def to_content(self) -> EmbeddedResource:
        """The block for the wire."""
        return EmbeddedResource(self.to_contents(), self.annotations)


HELPERS = (Image, Audio, File)


def to_block(value: Any) -> ContentBlock:
    """One value as one block: a string as text, any other JSON value as JSON text.

    >>> to_block({"seat": "12A"}).text
    '{"seat":"12A"}'
    """
    if isinstance(value, str):
        return TextContent(check_text(value))
    if isinstance(value, BLOCKS):
        return value
    if isinstance(value, HELPERS):
        return value.to_content()
    return TextContent(to_json_text(value))


def to_blocks(value: Any) -> list[ContentBlock]:
    """A return value as blocks.

    None gives none. A list or tuple gives a block for each item when all items are strings, or when any is a block or a
    helper; any other list is a JSON value like others, and one block.

    >>> [block.text for block in to_blocks(["a", "b"])], [block.text for block in to_blocks([1, 2])]
    (['a', 'b'], ['[1,2]'])
    """
    if value is None:
        return []
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        if all(isinstance(item, str) for item in items) or any(isinstance(item, BLOCKS + HELPERS) for item in items):
            return [to_block(item) for item in items]
    return [to_block(value)]


def to_json_text(value: Any) -> str:
    """A value as JSON: pydantic models, dataclasses, dates, decimals, sets, enums, wire types, and what is JSON.

    Raises `Unserialisable` for anything else, and for NaN and infinity, which JSON does not have.
    """
    if type(value) is int and -_WORD < value < _WORD:  # the quick way
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        _refuse(value, (), "Wrap it in Image(...), Audio(...) or File(...), or decode it.")
    culprits: list[Any] = []

    def fallback(item: Any) -> Any:
        if isinstance(item, msgspec.Struct):
            return msgspec.to_builtins(item)
        culprits.append(item)
        raise TypeError

    try:
        data = pydantic_core.to_json(
            value, by_alias=True, bytes_mode="base64", inf_nan_mode="constants", fallback=fallback
        )
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError) as error:
        if culprits:
            _refuse(culprits[0], _place(value, lambda item: item is culprits[0]))
        raise Unserialisable(
            f"The returned {_type_name(value)} cannot be sent as JSON: {str(error).rstrip('.')}. {_REMEDY}"
        ) from None
    if b"NaN" in data or b"Infinity" in data:
        _check_numbers(data, value)
    return data.decode()


def _check_numbers(data: bytes, value: Any) -> None:
    """The words may be inside strings; only a number is a fault."""

    def refuse(_: str) -> NoReturn:
        place = _place(value, lambda item: isinstance(item, float) and not math.isfinite(item))
        raise Unserialisable(
            f"The returned value{_at(place)} is NaN or infinite, which JSON cannot say. "
            "Return None or a string instead."
        )

    json.loads(data, parse_constant=refuse)


def refuse_unawaited(value: Any, place: _Place = ()) -> None:
    """Tell who forgot an `await`; and let the coroutine go, or Python would complain of it once more, later."""
    if isinstance(value, CoroutineType):
        coroutine = cast("CoroutineType[Any, Any, Any]", value)
        coroutine.close()
        raise Unserialisable(
            f"The returned value{_at(place)} is the coroutine of {coroutine.__name__!r}, which was not awaited. "
            f"Write `await {coroutine.__name__}(...)`."
        ) from None


def _refuse(culprit: Any, place: _Place, remedy: str = _REMEDY) -> NoReturn:
    refuse_unawaited(culprit, place)
    raise Unserialisable(
        f"The returned value{_at(place)} is of type {_type_name(culprit)}, which is not JSON. {remedy}"
    ) from None


def _place(value: Any, found: Callable[[Any], bool]) -> _Place:
    """The keys and positions that lead to the first value that is `found`; empty when it is the value itself."""
    seen: set[int] = set()

    def walk(value: Any, place: _Place) -> _Place | None:
        if found(value):
            return place
        if id(value) in seen or len(place) > _MAX_DEPTH:
            return None
        seen.add(id(value))
        for step, item in _parts(value):
            if (inner := walk(item, (*place, step))) is not None:
                return inner
        return None

    return walk(value, ()) or ()


def _parts(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in cast("Mapping[Any, Any]", value).items()]
    if isinstance(value, list | tuple | AbstractSet):
        return list(enumerate(cast("Iterable[Any]", value)))
    if dataclasses.is_dataclass(value) or hasattr(value, "model_fields_set"):
        return list(cast("dict[str, Any]", getattr(value, "__dict__", {})).items())
    return ()


def _at(place: _Place) -> str:
    return f" at {place_of(place)}" if place else ""


def _type_name(value: Any) -> str:
    kind = cast("type[Any]", type(value))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def check_text(value: str) -> str:
    """The text itself, if UTF-8 has it; `Unserialisable` if not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unserialisable(
            "The returned text has a lone surrogate, which JSON in UTF-8 cannot say. "
            "Decode the bytes it came from with errors='replace'."
        ) from None
    return value


def guess_mime_type(path: Path | None, data: bytes, family: str) -> str | None:
    """The type by the name, else by the first bytes, within `family` ("image/"). None where it stays unclear.

    Without a family it is never unclear when there is data: what reads as UTF-8 is plain text, the rest octets.

    >>> guess_mime_type(Path("a.png"), b"", "image/"), guess_mime_type(None, b"RIFF____WAVE", "audio/")
    ('image/png', 'audio/wav')
    """
    if path is not None:
        import mimetypes  # reads tables of the system

        named = _BY_SUFFIX.get(path.suffix.lower()) or mimetypes.guess_type(path.name, strict=False)[0]
        if named is not None and named.startswith(family):
            return named
    for offset, start, mime_type in _BY_START:
        if data.startswith(start, offset) and mime_type.startswith(family):
            return mime_type
    if family or not data:
        return None
    return "text/plain" if _reads_as_text(data) else "application/octet-stream"


def check_mime_type(mime_type: str, what: str) -> None:
    """Refuse what is not `type/subtype` (PRM-05, PRM-06)."""
    if not _MIME.fullmatch(mime_type):
        raise UsageError(f"{what}: {mime_type!r} is not a MIME type. Write it as type/subtype, such as 'text/plain'.")


def is_text(mime_type: str) -> bool:
    """Whether data of this type is text.

    >>> is_text("text/csv; charset=utf-8"), is_text("image/svg+xml"), is_text("image/png")
    (True, True, False)
    """
    bare = mime_type.partition(";")[0].strip().lower()
    return bare.startswith("text/") or bare in _TEXT or bare.endswith(("+json", "+xml", "+yaml"))


def _reads_as_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _load(data: bytes | str | os.PathLike[str]) -> tuple[Path | None, bytes]:
    if isinstance(data, bytes):
        return None, data
    path = Path(data)
    return path, path.read_bytes()


def base64_of(data: bytes) -> str:
    """The bytes as the wire has them."""
    return base64.b64encode(data).decode()
