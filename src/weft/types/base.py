"""What all messages share: metadata, icons, annotations, results, params."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import field

__all__ = [
    "SERVER_INFO_KEY",
    "SUBSCRIPTION_ID_KEY",
    "Annotations",
    "CacheScope",
    "EmptyResult",
    "Icon",
    "Implementation",
    "JsonObject",
    "LogLevel",
    "Meta",
    "NotificationParams",
    "ProgressToken",
    "RequestId",
    "Result",
    "Role",
    "Struct",
]

JsonObject = dict[str, Any]
Meta = dict[str, Any]
Role = Literal["user", "assistant"]
CacheScope = Literal["public", "private"]
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
RequestId = int | str
ProgressToken = int | str

SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_KEY = "io.modelcontextprotocol/subscriptionId"


class Struct(msgspec.Struct, rename="camel", omit_defaults=True):
    """The base of all wire types: camelCase on the wire, absent fields left out."""


class Annotations(Struct):
    """Hints for whoever shows or ranks the annotated object."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None


class Icon(Struct):
    """A picture that a client may show."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(Struct):
    """Name and version of a piece of software."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None

    @property
    def display_name(self) -> str:
        """What to call it where people read."""
        return self.title or self.name


class Result(Struct, kw_only=True):
    """The base of all results. `result_type` is filled in by the era."""

    result_type: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class EmptyResult(Result):
    """A result that says only: done."""


class NotificationParams(Struct, kw_only=True):
    """The params every notification may have."""

    meta: Meta | None = field(name="_meta", default=None)
