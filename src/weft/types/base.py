"""Define the types that all messages share: the base struct, metadata, icons, annotations, results, params."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import copy
from typing import Any, Literal, cast

import msgspec
from msgspec import NODEFAULT, UNSET, field

__all__ = [
    "Annotations", "EmptyResult", "Icon", "Implementation", "NotificationParams", "Result", "Struct",
]  # fmt: skip

JsonObject = dict[str, Any]
Meta = dict[str, Any]
Role = Literal["user", "assistant"]
ROLES = ("user", "assistant")
CacheScope = Literal["public", "private"]
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
RequestId = int | str
ProgressToken = int | str

SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_KEY = "io.modelcontextprotocol/subscriptionId"


class _WireMeta(msgspec.StructMeta):
    """A metaclass that makes msgspec encode values that equal their default, except None and UNSET.

    With `omit_defaults`, msgspec leaves out every value that equals its default. So a field `strength: int = 0` would
    not be sent if its value is 0, although the peer may require this field. The metaclass does not change a class that
    sets `omit_defaults` itself.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        if "omit_defaults" not in options:
            names = _annotated(namespace) & namespace.keys()
            namespace = {**namespace, **{field: _written(namespace[field]) for field in names}}
        return super().__new__(mcls, name, bases, namespace, **options)


def _annotated(namespace: Mapping[str, Any]) -> set[str]:
    """Return the names of the annotated fields in the namespace of a class body."""
    if sys.version_info >= (3, 14):
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is not None:
            return set(annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF))
    return set(namespace.get("__annotations__", ()))


def _written(default: Any) -> Any:
    """Return the default of a field as a default factory. Returns None, UNSET and a missing default unchanged.

    With a factory, msgspec also encodes a value that equals the default.
    """
    spec: Any = default if type(default) is _Field else field(default=default)
    value, made_by = spec.default, spec.default_factory
    if value is None or value is UNSET or (value is NODEFAULT and made_by is NODEFAULT):
        return default

    def hand_out() -> Any:
        return value

    def make() -> Any:
        return made_by() if value is NODEFAULT else copy(value)  # each object needs a separate list

    return field(default_factory=hand_out if isinstance(value, (str, int)) else make, name=spec.name)


_Field = cast("type[Any]", type(field()))


class Struct(msgspec.Struct, metaclass=_WireMeta, rename="camel", omit_defaults=True):
    """The base class of all message types. Names are camelCase in JSON; fields that are None or UNSET are left out."""


class Annotations(Struct):
    """Hints for a client: for whom an object is, how important it is, and when it was changed."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None


class Icon(Struct):
    """An icon that a client may show. `src` is its URL."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(Struct):
    """The name and version of a client or server."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None

    @property
    def display_name(self) -> str:
        """Return the name to show to users: the title, or the name if there is no title."""
        return self.title or self.name


class Result(Struct, kw_only=True):
    """The base class of all results. The era sets `result_type` if its protocol versions require it."""

    result_type: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class CacheableResult(Result, kw_only=True):
    """The base class of results that a client may cache for `ttl_ms` milliseconds."""

    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None


class PageResult(CacheableResult, kw_only=True):
    """The base class of results that are one page of a list. A client requests the next page with `next_cursor`."""

    next_cursor: str | None = None


class EmptyResult(Result):
    """A result without content."""


class NotificationParams(Struct, kw_only=True):
    """The params that every notification may have."""

    meta: Meta | None = field(name="_meta", default=None)
