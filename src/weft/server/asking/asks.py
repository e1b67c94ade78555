"""Questions to the other side: elicitation, sampling, roots.

A question first needs the client's declared capability; without it the call is refused with an error that names what is
missing (META-06). How the question then gets there and the answer back is the asker's business: over the channel of a
session, or by ending the call and being called again (`weft.server.asking.rounds`). The answer is checked before the
handler sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, get_origin

import msgspec

from weft.errors import UsageError
from weft.jsonrpc import encode_notification
from weft.net.urls import UrlRefused, read_url
from weft.protocol.names import check_uri
from weft.protocol.sampling import fault_of_answer, fault_of_messages
from weft.server.calls.call import Call, not_declared
from weft.server.calls.connection import COMPLETE
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
from weft.types.lifecycle import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability

log = logging.getLogger("weft.asks")

T = TypeVar("T")
_Completed = Callable[[], Awaitable[None]]


class _Elicitation:
    """What all outcomes of a question have in common."""

    __slots__ = ("_completed",)

    def __init__(self, completed: _Completed | None = None) -> None:
        self._completed = completed  # tells the client that the user is done at a page

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # without the answer: it may be private

    async def notify_complete(self) -> None:
        """Tell the client that the user is done at the page, where the protocol has a message for that (L11-40)."""
        if self._completed is not None:
            await self._completed()


class AcceptedElicitation(_Elicitation, Generic[T]):
    """The user answered: `value` is the checked answer."""

    __slots__ = ("value",)
    __match_args__ = ("value",)

    action: Literal["accept"] = "accept"
    accepted: Literal[True] = True
    declined: Literal[False] = False
    cancelled: Literal[False] = False

    def __init__(self, value: T, completed: _Completed | None = None) -> None:
        super().__init__(completed)
        self.value: T = value

    def __bool__(self) -> Literal[True]:
        return True


class DeclinedElicitation(_Elicitation):
    """The user said no."""

    __slots__ = ()

    action: Literal["decline"] = "decline"
    accepted: Literal[False] = False
    declined: Literal[True] = True
    cancelled: Literal[False] = False
    value: None = None

    def __bool__(self) -> Literal[False]:
        return False


class CancelledElicitation(_Elicitation):
    """The user went away without choosing."""

    __slots__ = ()

    action: Literal["cancel"] = "cancel"
    accepted: Literal[False] = False
    declined: Literal[False] = False
    cancelled: Literal[True] = True
    value: None = None

    def __bool__(self) -> Literal[False]:
        return False


# What the user did with a question. Type checkers know that there is a `value` after `if answer.action == "accept"`,
# `if answer`, or `case AcceptedElicitation(value)`.
Elicitation: TypeAlias = AcceptedElicitation[T] | DeclinedElicitation | CancelledElicitation


def _elicitation(action: str, value: T, completed: _Completed | None = None) -> Elicitation[T]:
    if action == "accept":
        return AcceptedElicitation(value, completed)
    return DeclinedElicitation(completed) if action == "decline" else CancelledElicitation(completed)


# Questions as values: what a handler puts into an `InputRequired` that it returns itself.


def ask_form(message: str, schema: type[Any] | Mapping[str, Any]) -> InputRequest:
    """The question that a form asks: `schema` is a flat model, or a flat JSON Schema."""
    from weft.forms import check_form, fields_with_links, fields_with_secrets, form_schema, has_link

    said, shape = cast("object", message), cast("object", schema)  # callers may be untyped
    if not isinstance(said, str):
        raise UsageError("This cannot be asked by form: the message, which comes first, is text.")
    if not isinstance(shape, type | Mapping) and get_origin(shape) is None:
        raise UsageError(
            f"This cannot be asked by form: give the class of the form, not a value ({type(shape).__name__}); or a "
            "flat JSON Schema as a dictionary."
        )
    try:
        requested = check_form(schema) if isinstance(schema, Mapping) else form_schema(schema)
    except ValueError as error:
        raise UsageError(f"This cannot be asked by form: {error}") from None
    linked = [f"field {name!r}" for name in fields_with_links(requested)]
    if has_link(message):
        linked.append("message")
    if linked:
        _warn_of_links(tuple(linked), tuple(requested["properties"]))
    if secrets := fields_with_secrets(requested):
        _warn_of_secrets(tuple(secrets))
    return InputRequest("elicitation/create", ElicitParams(message=message, mode="form", requested_schema=requested))


@lru_cache(maxsize=512)  # so that it is said once of a form, however often that is asked
def _warn_of_links(linked: tuple[str, ...], fields: tuple[str, ...]) -> None:
    log.warning(
        "The form with the fields %s has a web address in its %s. Clients do not make it a link, so that nobody is "
        "lured by one: send the user there with ctx.elicit_url (or ask_url) instead.",
        ", ".join(fields),
        " and its ".join(linked),
    )


@lru_cache(maxsize=512)
def _warn_of_secrets(fields: tuple[str, ...]) -> None:
    log.warning(
        "A form asks for %s. By its name that is a secret, and a form shows it to the client and maybe to a model: "
        "have it entered on a page of yours, with ctx.elicit_url (or ask_url).",
        ", ".join(repr(name) for name in fields),
    )


def ask_url(message: str, url: str, *, id: str | None = None) -> InputRequest:
    """The question whether the user will visit a page: on https, or on this machine, and without a password in it.

    Give it an `id` to say by `ctx.notify_complete(id)` that the user is done there. Without one it gets one of its own.
    """
    if id is not None and not (isinstance(id, str) and id):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code
        raise UsageError(f"ask_url(id={id!r}) is not possible: the id of a page is a text, and not empty.")
    try:
        check_uri(url)
        read_url(url)
    except (TypeError, ValueError):
        raise UsageError("The user cannot be sent to a URL that is malformed: use an https URL.") from None
    except UrlRefused as refused:
        if refused.fault == "credentials":  # everybody who sees the URL would be logged in by it
            raise UsageError(
                f"The user cannot be sent to a URL with a name or password before the host {refused.host[:100]!r}: "
                "take it out of the https URL, and let the user log in on the page."
            ) from None
        if refused.fault == "malformed":
            raise UsageError("The user cannot be sent to a URL that is malformed: use an https URL.") from None
        shown = f"{refused.scheme}://{refused.host}"[:100]  # not the rest: this is logged, and a path may be a key
        raise UsageError(f"The user cannot be sent to {shown!r}: use an https URL, or http on this machine.") from None
    return InputRequest("elicitation/create", ElicitParams(message=message, mode="url", url=url, elicitation_id=id))


def ask_model(messages: str | Sequence[SamplingMessage], *, max_tokens: int, **options: Any) -> InputRequest:
    """The question to the client's model. `options` are the other fields of `CreateMessageParams`."""
    talk = [SamplingMessage("user", TextContent(messages))] if isinstance(messages, str) else list(messages)
    return _ask_model(CreateMessageParams(messages=talk, max_tokens=max_tokens, **options))


def ask_model_raw(params: Mapping[str, Any]) -> InputRequest:
    """The same, with params as they stand on the wire."""
    try:
        return _ask_model(msgspec.convert(params, CreateMessageParams))
    except msgspec.ValidationError as error:
        raise UsageError(f"The model cannot be asked this: {error}.") from None


def _ask_model(params: CreateMessageParams) -> InputRequest:
    fault = fault_of_messages(params.messages)
    if fault is not None:
        raise UsageError(f"The model cannot be asked this: {fault}")
    return InputRequest("sampling/createMessage", params)


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
        return _elicitation(answer.action, None)
    from weft.forms import parse_form

    try:
        return AcceptedElicitation(parse_form(schema, answer.content))
    except ValueError as error:
        raise call.asker.unfit(f"the answer to a question does not fit it: {error}") from None


async def elicit_url(call: Call, message: str, url: str, key: str | None) -> Elicitation[None]:
    """Ask the user to visit a page."""
    request = ask_url(message, url)
    check_request(call, request)
    page = call.asker.name_page()
    request.params.elicitation_id = page
    answer = await _ask(call, request, ElicitResult, key)
    return _elicitation(answer.action, None, None if page is None else partial(notify_complete, call, page))


async def notify_complete(call: Call, page: str) -> None:
    """The user is done at a page: tell the client (L11-40), with the call while that is unanswered, else beside it."""
    if call.session is None or call.reply.answered or call.cancellation.cancelled or not call.reply.can_stream:
        await call.connection.notify_complete(page)
    elif call.connection.takes_pages:
        await call.reply.notify(encode_notification(COMPLETE, {"elicitationId": page}))


async def sample(call: Call, request: InputRequest, key: str | None) -> CreateMessageResult:
    """Ask the client's model."""
    answer = await _ask(call, request, CreateMessageResult, key)
    fault = fault_of_answer(request.params, answer)
    if fault is not None:
        raise call.asker.unfit(f"of sampling/createMessage, {fault}")
    return answer


async def list_roots(call: Call, key: str | None) -> list[Root]:
    """Ask for the client's roots."""
    return (await _ask(call, ask_roots(), ListRootsResult, key)).roots


async def _ask(call: Call, request: InputRequest, answer: type[T], key: str | None) -> T:
    if key is not None:
        check_key(key, f"key={key!r}")
    check_request(call, request)
    raw = await call.asker.ask(request.method, params_of(request), key)
    try:
        return msgspec.json.decode(raw, type=answer)
    except msgspec.ValidationError:
        raise call.asker.unfit(f"the answer to {request.method} does not have its shape.") from None


def params_of(request: InputRequest) -> Any:
    """The params of a question as JSON values; None where it has none."""
    return None if request.params is msgspec.UNSET else msgspec.to_builtins(request.params)


def check_key(key: object, where: str) -> None:
    """Keys travel as JSON, where a number comes back as text, and would not be found again."""
    if not isinstance(key, str):
        raise UsageError(f"{where} is not possible: a key is a text, not a value of the type {type(key).__name__}.")


def check_request(call: Call, request: InputRequest) -> None:
    """Ask only what the client declared for this very call (MRTR-07, ELI-03, SAM-02)."""
    needed, purpose = _needed(request)
    if call.connection.check_capability(needed):
        return
    required = cast("dict[str, Any]", msgspec.to_builtins(needed))
    name = next(iter(required))
    part = "".join(f".{inner}" for inner in required[name])
    raise not_declared(call, purpose, f"{name}{part}", required)


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
