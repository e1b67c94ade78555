"""The stateless era, from the client's side: revision 2026-07-28.

Every request introduces itself: its `_meta` names the version, the client and what the client can do, and over HTTP
headers repeat parts of it. So there is nothing to agree on before the first request. `server/discover` is sent first
all the same, because it tells what the server is, and because only a server of this era knows it: how it is refused
says which era the server speaks (ledger 0.5). Three codes belong to this era alone; any error that names the versions
it supports is understood too, whatever its code, for earlier drafts used others (A1).

Closing the stream of a request cancels it (HTTP-24). A stream that broke is not taken up again: the request is lost,
and made anew under another id (HTTP-22, HTTP-23).
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
_OWN_CODES = frozenset({-32020, -32021, -32022})  # no other era has these (COMPAT-12)
# Which param Mcp-Name repeats (HDR-07); the last three are of the tasks extension.
_NAMED_BY = {
    method.name: method.mirrored for method in METHODS.values() if method.mirrored is not None
} | dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")


def named_versions(data: Any) -> list[str] | None:
    """The versions that the data of an error names as supported; None when it does not.

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
    """The client's side of the era."""

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
        """This era with one version."""
        return StatelessClient((version,)) if version in self.versions else None

    def greeting(self, info: Implementation, capabilities: ClientCapabilities) -> tuple[str, dict[str, Any]]:
        """Ask what the server is (COMPAT-05)."""
        return "server/discover", {}

    def read_welcome(self, result: bytes) -> ServerHello:
        """Read what it says. The name is in `_meta`, and in the servers of a draft beside it (A5)."""
        try:
            found = msgspec.json.decode(result, type=DiscoverResult)
            named = (found.meta or {}).get(SERVER_INFO_KEY) or msgspec.json.decode(result, type=_Named).server_info
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"The server's answer to server/discover cannot be read: {error}.") from None
        try:
            info = None if named is None else msgspec.convert(named, Implementation)
        except msgspec.ValidationError:
            info = None  # it steers nothing (DISC-04), so it spoils nothing
        return ServerHello(found.supported_versions, found.capabilities, info, found.instructions)

    def agreed(self, welcome: ServerHello, headers: Mapping[str, str]) -> StatelessClient | None:
        """Speak the newest version that both have (COMPAT-06)."""
        common = [version for version in self.versions if version in welcome.versions]
        return StatelessClient(common) if common else None

    def judge(self, code: int | None, data: Any) -> RefusalVerdict:
        """Only what this era alone has shows that it is spoken; all else means another (COMPAT-07, -09, -12, -13)."""
        return RefusalVerdict(code in _OWN_CODES, named_versions(data))

    def is_over(self, status: int, code: int | None, data: Any) -> bool:
        """A server that no longer speaks this version says so, or does not even know the error to say it with."""
        supported = named_versions(data)
        if supported is not None:
            return self.version not in supported
        return code is None and status in (400, 404, 405)

    def is_missing(self, code: int, data: Any) -> bool:
        """Params of a read are wrong only where its URI is; the code of the other era is understood too (RES-08)."""
        return code in (-32602, -32002)

    def pages(self, code: int | None, data: Any) -> list[Any] | None:
        """This era asks by rounds."""
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
        """Give a request its envelope (META-01)."""
        if capabilities.roots is not None and capabilities.roots.list_changed is not None:
            capabilities = msgspec.structs.replace(capabilities, roots=RootsCapability())  # ROOT-01
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
        """Headers repeat what the body says (HDR-01, HDR-06, HDR-07), that of a notification as well (C2)."""
        headers = {"MCP-Protocol-Version": self.version}
        if method is not None:
            headers["Mcp-Method"] = method
            named_by = _NAMED_BY.get(method)
            if named_by is not None and isinstance(name := params.get(named_by), str):
                headers["Mcp-Name"] = encode_value(name)
        return headers

    def farewell(self) -> dict[str, str] | None:
        """There is no session to end."""
        return None

    def log_request(self, level: LogLevel) -> tuple[str, dict[str, Any]] | None:
        """Every request says its own (LOG-02)."""
        return None

    def listen(self, wish: SubscriptionFilter) -> ListenPlan:
        """By one request that stays open (SUB-01)."""
        return ListenPlan(stream=("subscriptions/listen", {"notifications": wish}))


class _Named(msgspec.Struct, rename="camel"):
    server_info: Any = None
