"""Define resources and resource templates."""

from __future__ import annotations

from msgspec import field

from weft.types.base import Annotations, CacheScope, Icon, Meta, NotificationParams, Result, Struct
from weft.types.content import ResourceContents
from weft.types.lifecycle import InputParams, RequestParams


class Resource(Struct):
    """A resource as a client sees it."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """Return the name to show to people."""
        return self.title or self.name


class ResourceTemplate(Struct):
    """A family of resources, named by an RFC 6570 template."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def display_name(self) -> str:
        """Return the name to show to people."""
        return self.title or self.name


class ListResourcesResult(Result, kw_only=True):
    """One page of resources."""

    resources: list[Resource]
    next_cursor: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class ListResourceTemplatesResult(Result, kw_only=True):
    """One page of resource templates."""

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class ReadResourceParams(InputParams, kw_only=True):
    """A request to read a resource."""

    uri: str


class ReadResourceResult(Result, kw_only=True):
    """The contents of a resource that was read."""

    contents: list[ResourceContents]
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class ResourceUpdatedParams(NotificationParams, kw_only=True):
    """The URI of a resource that changed."""

    uri: str


class SubscribeParams(RequestParams, kw_only=True):
    """The resource that a session subscribes to, or unsubscribes from."""

    uri: str
