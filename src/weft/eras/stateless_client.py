"""Answer a client's questions about the stateless era: revision 2026-07-28.

Every request introduces itself: its `_meta` names the version, the client and its capabilities, and over HTTP headers
repeat parts of it. So there is nothing to agree on before the first request. The client still sends `server/discover`
first: the answer describes the server, and a refusal shows which era the server speaks. Three codes belong to this era
alone; an error with any code that names the supported versions is understood too, since drafts used other codes.

Closing the stream of a request cancels it. A broken stream is not resumed: the request is lost, and is sent again
under another id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from weft.eras.base import NO_PARAMS, ListenPlan, RefusalVerdict, ServerHello
from weft.errors import InvalidAnswer
from weft.protocol.headers import encode_value
from weft.protocol.revisions import METHODS, STATELESS_2026_07_28
from weft.types.base import SERVER_INFO_KEY, Implementation, LogLevel
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    PROTOCOL_VERSION_KEY,
    ClientCapabilities,
    DiscoverResult,
    RootsCapability,
)

_VERSIONS = (STATELESS_2026_07_28.version,)
_OWN_CODES = frozenset({-32020, -32021, -32022})  # codes that no other era has
# The param that Mcp-Name repeats, by method; the last three methods are those of the tasks extension.
_NAMED_BY = {
    method.name: method.mirrored for method in METHODS.values() if method.mirrored is not None
} | dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


def named_versions(data: Any) -> list[str] | None:
    """Return the versions that the data of an error names as supported; None if it names none.

    >>> named_versions({"supported": ["2026-07-28"], "requested": "1"})
    ['2026-07-28']
    """
    if not isinstance(data, dict):
        return None
    fields = cast("dict[str, Any]", data)
    named = fields.get("supported", fields.get("supportedVersions"))
    if not isinstance(named, list):
        return None
    return [version for version in cast("list[Any]", named)[:64] if isinstance(version, str)]


class StatelessClient:
    """The stateless era for a client."""

    name = "stateless"
    methods = STATELESS_2026_07_28.methods
    confirmation: str | None = None
    answers_requests = False
    closing_cancels = True
    resumes = False
    mirrors_params = True
    keeps_stream = False
    greets_again = True

    def __init__(self, versions: Sequence[str] = _VERSIONS) -> None:
        self.versions = versions
        self.version = versions[0]

    def pinned(self, version: str) -> StatelessClient | None:
        """Return this era with one version."""
        return StatelessClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Return the `server/discover` request."""
        return "server/discover", {}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Read the answer to `server/discover`. The server's name is in `_meta`, or, by a draft, beside it."""
        try:
            found = msgspec.json.decode(result, type=DiscoverResult)
            named = (found.meta or {}).get(SERVER_INFO_KEY) or msgspec.json.decode(result, type=_Named).server_info
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to server/discover cannot be read: {error}.") from None
        try:
            info = None if named is None else msgspec.convert(named, Implementation)
        except msgspec.ValidationError:
            info = None  # nothing depends on it
        return ServerHello(found.supported_versions, found.capabilities, info, found.instructions)

    def agreed(self, hello: ServerHello, headers: Mapping[str, str]) -> StatelessClient | None:
        """Return the era with the newest version that both have; None if there is none."""
        common = [version for version in self.versions if version in hello.versions]
        return StatelessClient(common) if common else None

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Return that the server speaks this era if the code is this era's alone, and the versions it names."""
        return RefusalVerdict(code in _OWN_CODES, named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """Return True if the server does not speak this version any more, or does not even know the error for that."""
        supported = named_versions(data)
        if supported is not None:
            return self.version not in supported
        return code is None and status in (400, 404, 405)

    def is_missing(self, code: int, data: Any) -> bool:
        """Return True for wrong params, of which a read has only its URI, and for the code of the session era."""
        return code in (-32602, -32002)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """Return None: this era asks by rounds."""
        return None

    def stamp(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        info: Implementation,
        capabilities: ClientCapabilities,
        log_level: LogLevel | None = None,
    ) -> dict[str, Any]:
        """Return the params with the version, the client and its capabilities in `_meta`."""
        if capabilities.roots is not None and capabilities.roots.list_changed is not None:
            capabilities = msgspec.structs.replace(capabilities, roots=RootsCapability())  # not in this era
        meta: dict[str, Any] = {
            PROTOCOL_VERSION_KEY: self.version,
            CLIENT_INFO_KEY: info,
            CLIENT_CAPABILITIES_KEY: capabilities,
        }
        if log_level is not None:
            meta[LOG_LEVEL_KEY] = log_level
        if "_meta" in params:
            meta = {**params["_meta"], **meta}
        return {**params, "_meta": meta}

    def headers(self, method: str | None = None, params: Mapping[str, Any] = NO_PARAMS) -> dict[str, str]:
        """Return the headers that repeat the body, of requests and notifications."""
        headers = {"MCP-Protocol-Version": self.version}
        if method is not None:
            headers["Mcp-Method"] = method
            named_by = _NAMED_BY.get(method)
            if named_by is not None and isinstance(name := params.get(named_by), str):
                headers["Mcp-Name"] = encode_value(name)
        return headers

    def farewell(self) -> dict[str, str] | None:
        """Return None: there is no session to end."""
        return None

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Return None: every request carries its log level."""
        return None

    def listen(self, changes: SubscriptionFilter) -> ListenPlan:
        """Return one request that stays open."""
        return ListenPlan(stream=("subscriptions/listen", {"notifications": changes}))


class _Named(msgspec.Struct, rename="camel"):
    server_info: Any = None
