"""Turn return values into content blocks, with the helpers `Image`, `Audio` and `File`, and guess MIME types."""

from __future__ import annotations

import base64
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.errors import UsageError
from weft.protocol.names import check_uri
from weft.server.signature.output import check_text, to_json_text
from weft.types.base import Annotations, Meta
from weft.types.features import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

if TYPE_CHECKING:
    from mimetypes import MimeTypes

BLOCKS = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)

_MIME = re.compile(r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(?:\s*;\s*[^;\s][^;]*)*", re.ASCII)

# MIME types that `mimetypes` does not know in every supported Python, or knows by another name.
_BY_SUFFIX = {
    ".avif": "image/avif",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".md": "text/markdown",
    ".oga": "audio/ogg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".toml": "application/toml",
    ".wav": "audio/wav",
    ".webp": "image/webp",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_BY_START: tuple[tuple[int, tuple[bytes, ...], str], ...] = (  # Offset, bytes there, MIME type that they show.
    (0, (b"\x89PNG\r\n\x1a\n",), "image/png"),
    (0, (b"\xff\xd8\xff",), "image/jpeg"),
    (0, (b"GIF87a", b"GIF89a"), "image/gif"),
    (0, (b"BM",), "image/bmp"),
    (8, (b"WEBP",), "image/webp"),
    (4, (b"ftypavif",), "image/avif"),
    (0, (b"<svg",), "image/svg+xml"),
    (8, (b"WAVE",), "audio/wav"),
    (0, (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"), "audio/mpeg"),
    (0, (b"OggS",), "audio/ogg"),
    (0, (b"fLaC",), "audio/flac"),
    (4, (b"ftypM4A",), "audio/mp4"),
    (0, (b"%PDF-",), "application/pdf"),
)
_TEXT = re.compile(r"text/.*|application/(javascript|json|sql|toml|x-sh|xml|yaml)|.*\+(json|xml|yaml)", re.DOTALL)


class _Media:
    """Base of `Image`, `Audio` and `File`: bytes and their MIME type. If `data` is a path, the file is read at once."""

    family = ""  # Prefix of the allowed MIME types.

    def __init__(
        self,
        data: bytes | str | os.PathLike[str],
        mime_type: str | None = None,
        *,
        format: str | None = None,
        annotations: Annotations | None = None,
        meta: Meta | None = None,
    ) -> None:
        self.path = None if isinstance(data, bytes) else Path(data)
        self.data = data if isinstance(data, bytes) else Path(data).read_bytes()
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
    """A picture, from bytes or from the path of a file.

    If `mime_type` is None, the MIME type is taken from `format` (such as "png"), from the file's name or from the data.

    >>> Image(b"GIF89a...").mime_type
    'image/gif'
    """

    family = "image/"

    def to_content(self) -> ImageContent:
        """Return the picture as a content block."""
        return ImageContent(base64_of(self.data), self.mime_type, self.annotations, self.meta)


class Audio(_Media):
    """A sound, from bytes or from the path of a file.

    >>> Audio(b"...", format="wav").mime_type
    'audio/wav'
    """

    family = "audio/"

    def to_content(self) -> AudioContent:
        """Return the sound as a content block."""
        return AudioContent(base64_of(self.data), self.mime_type, self.annotations, self.meta)


class File(_Media):
    """A file of any type, from bytes or from a path. UTF-8 text is sent as text, other data as base64.

    `uri` is the URI of the file. Default: the `file:` URI of the path. For bytes, `uri` is required.

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
                raise UsageError("File(...): bytes have no name. Give them one: File(data, uri='…').")
            uri = self.path.resolve().as_uri()
        try:
            check_uri(uri)
        except ValueError as error:
            raise UsageError(f"File(...): {error}") from None
        self.uri = uri

    def to_contents(self, uri: str | None = None) -> ResourceContents:
        """Return the file as resource contents. If `uri` is given, it replaces the file's own URI.

        The contents are text if the MIME type is a text type and the bytes are UTF-8, else base64.
        """
        uri = uri or self.uri
        if is_text(self.mime_type):
            try:
                return ResourceContents(uri, self.mime_type, text=self.data.decode(), meta=self.meta)
            except UnicodeDecodeError:
                pass
        return ResourceContents(uri, self.mime_type, blob=base64_of(self.data), meta=self.meta)

    def to_content(self) -> EmbeddedResource:
        """Return the file as a content block."""
        return EmbeddedResource(self.to_contents(), self.annotations)


MEDIA = (Image, Audio, File)


def to_block(value: Any) -> ContentBlock:
    """Turn one value into one content block.

    A string becomes text. A content block stays as it is. Any other JSON value becomes JSON text.

    >>> to_block({"seat": "12A"}).text
    '{"seat":"12A"}'
    """
    if isinstance(value, str):
        return TextContent(check_text(value))
    if isinstance(value, BLOCKS):
        return value
    if isinstance(value, MEDIA):
        return value.to_content()
    return TextContent(to_json_text(value))


def to_blocks(value: Any) -> list[ContentBlock]:
    """Turn a return value into content blocks.

    None gives no block. A list or tuple gives one block per item if all items are strings, or if any item is a content
    block, an `Image`, an `Audio` or a `File`. Any other value gives one block.

    >>> [block.text for block in to_blocks(["a", "b"])], [block.text for block in to_blocks([1, 2])]
    (['a', 'b'], ['[1,2]'])
    """
    if value is None:
        return []
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        if all(isinstance(item, str) for item in items) or any(isinstance(item, BLOCKS + MEDIA) for item in items):
            return [to_block(item) for item in items]
    return [to_block(value)]


def guess_mime_type(path: Path | None, data: bytes, family: str) -> str | None:
    """Guess the MIME type of a file from its name, or else from its first bytes. Return None if both fail.

    Only MIME types that begin with `family`, such as "image/", are returned. If `family` is "", every type is allowed,
    and data of unknown type is `text/plain` (if it is UTF-8 text) or `application/octet-stream`.

    >>> guess_mime_type(Path("a.png"), b"", "image/"), guess_mime_type(None, b"RIFF____WAVE", "audio/")
    ('image/png', 'audio/wav')
    """
    if path is not None:
        import mimetypes  # Reads the system's tables of MIME types.

        named = (
            _BY_SUFFIX.get(path.suffix.lower())
            or _built_in_types().guess_type(path.name)[0]
            or mimetypes.guess_type(path.name, strict=False)[0]
        )
        if named is not None and named.startswith(family):
            return named
    for offset, start, mime_type in _BY_START:
        if data.startswith(start, offset) and mime_type.startswith(family):
            return mime_type
    if family or not data:
        return None
    try:
        is_plain = "\0" not in data.decode()
    except UnicodeDecodeError:
        is_plain = False
    return "text/plain" if is_plain else "application/octet-stream"


@cache
def _built_in_types() -> MimeTypes:
    """Return Python's own table of MIME types. With it, common types are the same on every machine."""
    import mimetypes

    return mimetypes.MimeTypes()


def check_mime_type(mime_type: str, what: str) -> None:
    """Raise UsageError if a MIME type is not written as `type/subtype`. The error message begins with `what`."""
    if not _MIME.fullmatch(mime_type):
        raise UsageError(f"{what}: {mime_type!r} is not a MIME type. Write it as type/subtype, such as 'text/plain'.")


def is_text(mime_type: str) -> bool:
    """Return whether data of this MIME type is text.

    >>> is_text("text/csv; charset=utf-8"), is_text("image/svg+xml"), is_text("image/png")
    (True, True, False)
    """
    return _TEXT.fullmatch(mime_type.partition(";")[0].strip().lower()) is not None


def base64_of(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(data).decode()
