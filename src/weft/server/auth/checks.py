"""What a request must have the scopes for, by its method: the checks that come before anything of the user's runs.

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
from weft.types.prompts import CompleteParams, GetPromptParams, PromptReference
from weft.types.resources import ReadResourceParams
from weft.types.subscriptions import ListenParams

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["scope_checks"]


def scope_checks(server: Server) -> dict[str, Check]:
    """The checks of a server, by method."""
    prompts, resources = server.prompts, server.resources

    def require_of(call: Call, uris: Iterable[str]) -> None:
        require_scopes(call, dict.fromkeys(chain.from_iterable(map(resources.scopes_of, uris))))

    def read(call: Call) -> None:
        if resources.scopes:
            require_of(call, [cast("ReadResourceParams", call.envelope.params).uri])

    def listen(call: Call) -> None:
        wanted = cast("ListenParams", call.envelope.params).notifications.resource_subscriptions or ()
        if resources.scopes and len(wanted) <= server.limits.listen_uris:  # for more it is refused anyway
            require_of(call, wanted)

    def fill(call: Call) -> None:
        if prompts.scopes:
            require_prompt(call, cast("GetPromptParams", call.envelope.params).name)

    def complete(call: Call) -> None:
        ref = cast("CompleteParams", call.envelope.params).ref
        if isinstance(ref, PromptReference):
            require_prompt(call, ref.name)
        elif (template := resources.get_template(ref.uri)) is not None:
            require_scopes(call, template.scopes)

    def require_prompt(call: Call, name: str) -> None:
        prompt = prompts.get(name)
        require_scopes(call, () if prompt is None else prompt.scopes)

    return {
        "resources/read": read,
        "resources/subscribe": read,
        "subscriptions/listen": listen,
        "prompts/get": fill,
        "completion/complete": complete,
    }
