"""The revisions of the protocol as values, and the methods each has.

A `Revision` is what two peers agree on; a `Method` is how one request is read. Neither decides anything: which
revision a request speaks, and what follows from that, is the era's business (`weft.eras`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from weft.types.prompts import CompleteParams, GetPromptParams
from weft.types.request import PaginatedParams, RequestParams
from weft.types.resources import ReadResourceParams
from weft.types.subscriptions import ListenParams
from weft.types.tools import CallToolParams

__all__ = ["METHODS", "STATELESS_2026_07_28", "Method", "Revision"]


class Revision(msgspec.Struct, frozen=True):
    """A protocol version as a value."""

    version: str
    methods: frozenset[str]  # requests a client may send, extensions aside

    def __str__(self) -> str:
        return self.version


class Method:
    """How the requests of one method are read.

    `mirrored` names the param that `Mcp-Name` repeats (HDR-07); `capability` the server capability that has to be
    declared for the method to be offered (DISC-06); None where every server offers it.
    """

    def __init__(
        self, name: str, params: type[RequestParams], *, mirrored: str | None = None, capability: str | None = None
    ) -> None:
        self.name = name
        self.params = params
        self.mirrored = mirrored
        self.capability = capability

    def __repr__(self) -> str:
        return f"Method({self.name!r})"

    @cached_property
    def decode(self) -> Any:
        """Bytes to params."""
        return msgspec.json.Decoder(self.params).decode


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("server/discover", RequestParams),
        Method("tools/list", PaginatedParams, capability="tools"),
        Method("tools/call", CallToolParams, mirrored="name", capability="tools"),
        Method("resources/list", PaginatedParams, capability="resources"),
        Method("resources/templates/list", PaginatedParams, capability="resources"),
        Method("resources/read", ReadResourceParams, mirrored="uri", capability="resources"),
        Method("prompts/list", PaginatedParams, capability="prompts"),
        Method("prompts/get", GetPromptParams, mirrored="name", capability="prompts"),
        Method("subscriptions/listen", ListenParams),
        Method("completion/complete", CompleteParams, capability="completions"),
    )
}

STATELESS_2026_07_28 = Revision("2026-07-28", frozenset(METHODS))
