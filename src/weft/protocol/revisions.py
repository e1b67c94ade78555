"""Define the revisions (dated versions) of the protocol, and the methods of each.

Client and server agree on a `Revision`. A `Method` says how the params of its requests are decoded. All other
differences between revisions are in `weft.eras`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from weft.types.features import CallToolParams, CompleteParams, GetPromptParams, ReadResourceParams, SubscribeParams
from weft.types.interaction import ListenParams
from weft.types.lifecycle import InitializeParams, PaginatedParams, RequestParams, SetLevelParams


class Revision(msgspec.Struct, frozen=True):
    """One dated version of the protocol."""

    version: str
    methods: frozenset[str]  # methods of the requests that a client may send, without extensions
    batches: bool = False  # whether several messages may be sent in one array
    polling: bool = False  # whether the server may close a stream early; the client then resumes it
    tasks: bool = False  # whether requests can be tasks (without the extension)

    def __str__(self) -> str:
        return self.version


@dataclass(frozen=True, eq=False)
class Method:
    """One method: its name, the type of its params, and the capability that it needs.

    `mirrored` is the param that the header `Mcp-Name` repeats, if any. `may_lack_name` is True if a server accepts
    requests without this header. `capability` is the server capability that the method belongs to, or None if every
    server offers the method.
    """

    name: str
    params: type[RequestParams]
    mirrored: str | None = None
    capability: str | None = None
    may_lack_name: bool = False

    @cached_property
    def decode(self) -> Any:
        """A function that decodes bytes into the params of this method."""
        return msgspec.json.Decoder(self.params).decode


_FEATURES = (
    Method("tools/list", PaginatedParams, capability="tools"),
    Method("tools/call", CallToolParams, mirrored="name", capability="tools"),
    Method("resources/list", PaginatedParams, capability="resources"),
    Method("resources/templates/list", PaginatedParams, capability="resources"),
    Method("resources/read", ReadResourceParams, mirrored="uri", capability="resources"),
    Method("prompts/list", PaginatedParams, capability="prompts"),
    Method("prompts/get", GetPromptParams, mirrored="name", capability="prompts"),
    Method("completion/complete", CompleteParams, capability="completions"),
)
_STATELESS = (Method("server/discover", RequestParams), Method("subscriptions/listen", ListenParams))
_SESSION = (
    Method("initialize", InitializeParams),
    Method("ping", RequestParams),
    Method("logging/setLevel", SetLevelParams, capability="logging"),
    Method("resources/subscribe", SubscribeParams, capability="resources"),
    Method("resources/unsubscribe", SubscribeParams, capability="resources"),
)

METHODS: Mapping[str, Method] = {method.name: method for method in (*_FEATURES, *_STATELESS, *_SESSION)}

_stateless_names = frozenset(method.name for method in (*_FEATURES, *_STATELESS))
_session_names = frozenset(method.name for method in (*_FEATURES, *_SESSION))

STATELESS_2026_07_28 = Revision("2026-07-28", _stateless_names)
SESSION_2025_11_25 = Revision("2025-11-25", _session_names, polling=True, tasks=True)
SESSION_2025_06_18 = Revision("2025-06-18", _session_names)
SESSION_2025_03_26 = Revision("2025-03-26", _session_names, batches=True)
SESSION_2024_11_05 = Revision("2024-11-05", _session_names)

SESSION_REVISIONS: Mapping[str, Revision] = {
    revision.version: revision
    for revision in (SESSION_2025_11_25, SESSION_2025_06_18, SESSION_2025_03_26, SESSION_2024_11_05)
}
"""The revisions of the session era by version, newest first."""
