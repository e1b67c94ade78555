"""Questions to the other side: elicitation, sampling, roots.

A question first needs the client's declared capability; without it the call is refused with an error that names what is
missing (META-06). Then it goes out over the call's channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec
from pydantic import TypeAdapter

from weft.errors import MissingCapability
from weft.server.call import Call
from weft.types.capabilities import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability
from weft.types.content import TextContent
from weft.types.interaction import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    ListRootsResult,
    Root,
    SamplingMessage,
)

__all__ = ["Elicitation", "conversation", "elicit", "elicit_url", "list_roots", "sample"]

T = TypeVar("T")


class Elicitation(Generic[T]):
    """What the user did with a question."""

    __slots__ = ("action", "value")

    def __init__(self, action: Literal["accept", "decline", "cancel"], value: T) -> None:
        self.action = action
        self.value = value  # the checked answer; None unless accepted

    @property
    def accepted(self) -> bool:
        """The user answered."""
        return self.action == "accept"

    @property
    def declined(self) -> bool:
        """The user said no."""
        return self.action == "decline"

    @property
    def cancelled(self) -> bool:
        """The user went away without choosing."""
        return self.action == "cancel"


def conversation(messages: str | list[SamplingMessage]) -> list[SamplingMessage]:
    """A string is one message of the user's."""
    return [SamplingMessage("user", TextContent(messages))] if isinstance(messages, str) else messages


async def elicit(call: Call, message: str, schema: type[Any] | Mapping[str, Any], key: str | None) -> Elicitation[Any]:
    """Ask by form."""
    declared = call.envelope.client_capabilities.elicitation
    if declared is None or (declared.url is not None and declared.form is None):  # `{}` means by form (ELI-01)
        _need(call, ClientCapabilities(elicitation=ElicitationCapability(form={})), "ask the user")
    adapter: TypeAdapter[Any] = TypeAdapter(dict[str, Any] if isinstance(schema, Mapping) else schema)
    requested = dict(schema) if isinstance(schema, Mapping) else adapter.json_schema()
    params = ElicitParams(message=message, requested_schema=requested)
    answer = await _ask(call, "elicitation/create", params, ElicitResult, key)
    return Elicitation(answer.action, adapter.validate_python(answer.content) if answer.action == "accept" else None)


async def elicit_url(call: Call, message: str, url: str, key: str | None) -> Elicitation[None]:
    """Ask the user to visit a page."""
    _need(call, ClientCapabilities(elicitation=ElicitationCapability(url={})), "send the user to a page")
    answer = await _ask(
        call, "elicitation/create", ElicitParams(message=message, mode="url", url=url), ElicitResult, key
    )
    return Elicitation(answer.action, None)


async def sample(call: Call, params: CreateMessageParams, key: str | None) -> CreateMessageResult:
    """Ask the client's model."""
    tools: dict[str, Any] | None = {} if params.tools or params.tool_choice else None
    _need(call, ClientCapabilities(sampling=SamplingCapability(tools=tools)), "ask the client's model")
    return await _ask(call, "sampling/createMessage", params, CreateMessageResult, key)


async def list_roots(call: Call, key: str | None) -> list[Root]:
    """Ask for the client's roots."""
    _need(call, ClientCapabilities(roots=RootsCapability()), "list the client's roots")
    return (await _ask(call, "roots/list", None, ListRootsResult, key)).roots


def _need(call: Call, capability: ClientCapabilities, purpose: str) -> None:
    if call.connection.check_capability(capability):
        return
    required = cast("dict[str, Any]", msgspec.to_builtins(capability))
    name = next(iter(required))
    part = "".join(f".{inner}" for inner in required[name])
    raise MissingCapability(f"To {purpose}, the client must declare the capability `{name}{part}`.", required=required)


async def _ask(call: Call, method: str, params: Any, answer: type[T], key: str | None) -> T:  # noqa: ARG001 - `key` names the question where it must be found again
    plain = None if params is None else cast("dict[str, Any]", msgspec.to_builtins(params))
    return await call.connection.send_request(method, plain, answer, timeout=call.server.limits.ask_seconds)
