"""What a request must pass, by its method, before anything of the user's runs: scopes, and what the client must have.

Tools check theirs with everything else that a call of them must pass. A resource is guarded wherever a request names
it: also where it is only listened to, and where a value of its template is completed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, cast

from weft.server.auth.scopes import require_scopes
from weft.server.call import Call
from weft.server.dispatch import Check
from weft.server.needs import require_needs
from weft.types.prompts import CompleteParams, GetPromptParams, PromptReference
from weft.types.resources import ReadResourceParams
from weft.types.subscriptions import ListenParams

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["checks_of"]


def checks_of(server: Server) -> dict[str, Check]:
    """The checks of a server, by method."""
    checks = _Checks(server)
    return {
        "tools/call": server.tools.check,
        "resources/read": checks.read,
        "resources/subscribe": checks.subscribe,
        "subscriptions/listen": checks.listen,
        "prompts/get": checks.fill,
        "completion/complete": checks.complete,
    }


class _Checks:
    def __init__(self, server: Server) -> None:
        self._prompts = server.prompts
        self._resources = server.resources
        self._most_uris = server.limits.listen_uris

    def read(self, call: Call) -> None:
        self.subscribe(call)
        if self._resources.has_needs:
            entry = self._resources.find(cast("ReadResourceParams", call.envelope.params).uri)
            require_needs(call, () if entry is None else entry.needs)

    def subscribe(self, call: Call) -> None:
        if self._resources.audience.scopes:
            self._require_of(call, [cast("ReadResourceParams", call.envelope.params).uri])

    def listen(self, call: Call) -> None:
        wanted = cast("ListenParams", call.envelope.params).notifications.resource_subscriptions or ()
        if self._resources.audience.scopes and len(wanted) <= self._most_uris:  # for more it is refused anyway
            self._require_of(call, wanted)

    def fill(self, call: Call) -> None:
        prompt = self._prompts.get(cast("GetPromptParams", call.envelope.params).name)
        if prompt is not None:
            require_scopes(call, prompt.scopes)
            require_needs(call, prompt.needs)

    def complete(self, call: Call) -> None:
        ref = cast("CompleteParams", call.envelope.params).ref
        named = (
            self._prompts.get(ref.name) if isinstance(ref, PromptReference) else self._resources.get_template(ref.uri)
        )
        require_scopes(call, () if named is None else named.scopes)

    def _require_of(self, call: Call, uris: Iterable[str]) -> None:
        require_scopes(call, dict.fromkeys(chain.from_iterable(map(self._resources.scopes_of, uris))))
