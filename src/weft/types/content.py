"""Define content blocks, which tool results and prompts consist of."""

from __future__ import annotations

from msgspec import field

from weft.types.base import Annotations, Icon, Meta, Struct


class TextContent(Struct, tag="text", tag_field="type"):
    """A piece of text."""

    text: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ImageContent(Struct, tag="image", tag_field="type"):
    """An image; `data` is base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class AudioContent(Struct, tag="audio", tag_field="type"):
    """A sound; `data` is base64."""

    data: str
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceLink(Struct, tag="resource_link", tag_field="type"):
    """A pointer to a resource that can be read."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceContents(Struct):
    """The contents of a resource: `text`, or `blob` in base64; never both."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class EmbeddedResource(Struct, tag="resource", tag_field="type"):
    """A resource carried inside a message."""

    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
