"""What a client and a server declare that they can do."""

from __future__ import annotations

from weft.types.base import JsonObject, Struct

__all__ = [
    "ClientCapabilities",
    "ElicitationCapability",
    "ListChangedCapability",
    "ResourcesCapability",
    "RootsCapability",
    "SamplingCapability",
    "ServerCapabilities",
]


class RootsCapability(Struct):
    """The client can list its roots."""

    list_changed: bool | None = None


class SamplingCapability(Struct):
    """The client can sample; with tools, with context, if these are there."""

    context: JsonObject | None = None
    tools: JsonObject | None = None


class ElicitationCapability(Struct):
    """The client can ask its user; an empty object means by form only."""

    form: JsonObject | None = None
    url: JsonObject | None = None


class ClientCapabilities(Struct):
    """What a client declared."""

    experimental: dict[str, JsonObject] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: dict[str, JsonObject] | None = None


class ListChangedCapability(Struct):
    """A list that tells of its changes."""

    list_changed: bool | None = None


class ResourcesCapability(Struct):
    """Resources: whether one can subscribe to one, and whether the list tells of its changes."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class ServerCapabilities(Struct):
    """What a server declares."""

    experimental: dict[str, JsonObject] | None = None
    logging: JsonObject | None = None
    completions: JsonObject | None = None
    prompts: ListChangedCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ListChangedCapability | None = None
    extensions: dict[str, JsonObject] | None = None
