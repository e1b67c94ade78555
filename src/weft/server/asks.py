"""Questions to the other side: elicitation, sampling, roots.

A question first needs the client's declared capability; without it the call is refused with an error that names what is
missing (META-06). How the question then gets there and the answer back is the asker's business: over the channel of a
session, or by ending the call and being called again (`weft.server.rounds`). The answer is checked before the handler
sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, Literal, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from weft.errors import InvalidParams, MissingCapability, UsageError
from weft.protocol.hosts import is_loopback
from weft.protocol.sampling import fault_of_answer, fault_of_messages
from weft.server.call import Call
from weft.types.capabilities import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability
from weft.types.content import TextContent
from weft.types.interaction import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    InputRequest,
    ListRootsResult,
    Root,
    SamplingMessage,
)

__all__ = [
    "Elicitation",
    "ask_form",
    "ask_model",
    "ask_roots",
    "ask_url",
    "check_request",
    "elicit",
    "elicit_url",
    "list_roots",
    "sample",
]

log = logging.getLogger("weft.asks")

T = TypeVar("T")
_Completed = Callable[[], Awaitable[None]]


class Elicitation(Generic[T]):
    """What the user did with a question."""

    __slots__ = ("_completed", "action", "value")

    def __init__(
        self, action: Literal["accept", "decline", "cancel"], value: T, completed: _Completed | None = None
    ) -> None:
        self.action = action
        self.value = value  # the checked answer; None unless accepted
        self._completed = completed  # tells the client that a page is done with

    def __repr__(self) -> str:
        return f"Elicitation({self.action!r})"

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

    async def notify_complete(self) -> None:
        """What the user was to do on the page is done: tell the client, where there is a message for that (L11-40)."""
        if self._completed is not None:
            await self._completed()


# Questions as values: what a handler puts into an `InputRequired` that it returns itself.


def ask_form(message: str, schema: type[Any] | Mapping[str, Any]) -> InputRequest:
    """The question that a form asks: `schema` is a flat model, or a flat JSON Schema."""
    from weft.protocol.forms import check_form, fields_with_links, form_schema, has_link

    try:
        requested = check_form(schema) if isinstance(schema, Mapping) else form_schema(schema)
    except ValueError as error:
        raise UsageError(f"This cannot be asked by form: {error}") from None
    linked = [f"field {name!r}" for name in fields_with_links(requested)]
    if has_link(message):
        linked.append("message")
    if linked:
        _warn_of_links(tuple(linked), tuple(requested["properties"]))
    return InputRequest("elicitation/create", ElicitParams(message=message, mode="form", requested_schema=requested))


@lru_cache(maxsize=512)  # so that it is said once of a form, however often that is asked
def _warn_of_links(linked: tuple[str, ...], fields: tuple[str, ...]) -> None:
    log.warning(
        "The form with the fields %s has a web address in its %s. Clients do not make it a link, so that nobody is "
        "lured by one: send the user there with ctx.elicit_url (or ask_url) instead.",
        ", ".join(fields),
        " and its ".join(linked),
    )


def ask_url(message: str, url: str) -> InputRequest:
    """The question whether the user will visit a page: on https, or on this machine, and without a password in it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise UsageError("The user cannot be sent to a URL that is malformed: use an https URL.") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):  # ELI-08, ELI-21
        shown = f"{parts.scheme}://{host}"[:100]  # not the rest: this is logged, and a path may be a key
        raise UsageError(f"The user cannot be sent to {shown!r}: use an https URL, or http on this machine.")
    if "@" in parts.netloc:  # ELI-19: whoever sees the URL would be logged in by it
        raise UsageError(
            f"The user cannot be sent to a URL with a name or password before the host {host[:100]!r}: take it out of "
            "the https URL, and let the user log in on the page."
        )
    return InputRequest("elicitation/create", ElicitParams(message=message, mode="url", url=url))


def ask_model(messages: str | Sequence[SamplingMessage], *, max_tokens: int, **options: Any) -> InputRequest:
    """The question to the client's model. `options` are the other fields of `CreateMessageParams`."""
    talk = [SamplingMessage("user", TextContent(messages))] if isinstance(messages, str) else list(messages)
    fault = fault_of_messages(talk)
    if fault is not None:
        raise UsageError(f"The model cannot be asked this: {fault}")
    return InputRequest("sampling/createMessage", CreateMessageParams(messages=talk, max_tokens=max_tokens, **options))


def ask_roots() -> InputRequest:
    """The question which roots the client has."""
    return InputRequest("roots/list")


# Asking, and reading the answer.


class _FilledIn(msgspec.Struct):
    """`ElicitResult` with any content: what does not fit the form is to be told by its field, not by its shape."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


async def elicit(call: Call, message: str, schema: type[Any] | Mapping[str, Any], key: str | None) -> Elicitation[Any]:
    """Ask by form."""
    answer = await _ask(call, ask_form(message, schema), _FilledIn, key)
    if answer.action != "accept":
        return Elicitation(answer.action, None)
    from weft.protocol.forms import parse_form

    try:
        return Elicitation("accept", parse_form(schema, answer.content))
    except ValueError as error:
        raise InvalidParams(f"Invalid params: the answer to a question does not fit it: {error}") from None


async def elicit_url(call: Call, message: str, url: str, key: str | None) -> Elicitation[None]:
    """Ask the user to visit a page."""
    request = ask_url(message, url)
    check_request(call, request)
    page = call.asker.name_page()
    request.params.elicitation_id = page
    answer = await _ask(call, request, ElicitResult, key)
    if page is None:
        return Elicitation(answer.action, None)
    done = partial(call.connection.notify, "notifications/elicitation/complete", {"elicitationId": page})
    return Elicitation(answer.action, None, done)


async def sample(call: Call, request: InputRequest, key: str | None) -> CreateMessageResult:
    """Ask the client's model."""
    answer = await _ask(call, request, CreateMessageResult, key)
    fault = fault_of_answer(request.params, answer)
    if fault is not None:
        raise InvalidParams(f"Invalid params: of sampling/createMessage, {fault}")
    return answer


async def list_roots(call: Call, key: str | None) -> list[Root]:
    """Ask for the client's roots."""
    return (await _ask(call, ask_roots(), ListRootsResult, key)).roots


async def _ask(call: Call, request: InputRequest, answer: type[T], key: str | None) -> T:
    check_request(call, request)
    params: Any = None if request.params is msgspec.UNSET else msgspec.to_builtins(request.params)
    raw = await call.asker.ask(request.method, params, key)
    try:
        return msgspec.json.decode(raw, type=answer)
    except msgspec.ValidationError:
        raise InvalidParams(f"Invalid params: the answer to {request.method} does not have its shape.") from None


def check_request(call: Call, request: InputRequest) -> None:
    """Ask only what the client declared for this very call (MRTR-07, ELI-03, SAM-02)."""
    needed, purpose = _needed(request)
    if call.connection.check_capability(needed):
        return
    required = cast("dict[str, Any]", msgspec.to_builtins(needed))
    name = next(iter(required))
    part = "".join(f".{inner}" for inner in required[name])
    raise MissingCapability(f"To {purpose}, the client must declare the capability `{name}{part}`.", required=required)


def _needed(request: InputRequest) -> tuple[ClientCapabilities, str]:
    """The capability a question needs, and what it is for."""
    params = request.params
    if request.method == "roots/list":
        return ClientCapabilities(roots=RootsCapability()), "list the client's roots"
    if request.method == "sampling/createMessage":
        tools: dict[str, Any] | None = {} if params.tools or params.tool_choice else None
        context: dict[str, Any] | None = {} if params.include_context in ("thisServer", "allServers") else None
        return ClientCapabilities(sampling=SamplingCapability(context, tools)), "ask the client's model"
    if params.mode == "url":
        return ClientCapabilities(elicitation=ElicitationCapability(url={})), "send the user to a page"
    return ClientCapabilities(elicitation=ElicitationCapability(form={})), "ask the user"
