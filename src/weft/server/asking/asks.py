"""Ask the client and check its answer: elicitation, sampling, roots.

The `Asker` of the call sends the question and gets the answer (`weft.server.asking.rounds`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from weft.jsonrpc import encode_notification
from weft.protocol.sampling import fault_of_answer
from weft.server.asking.questions import ask_form, ask_url, check_key, check_request, params_of
from weft.server.asking.rounds import asker_of
from weft.server.calls.call import Call
from weft.server.calls.connection import COMPLETE
from weft.types.interaction import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitResult,
    InputRequest,
    ListRootsResult,
)

T = TypeVar("T")
_Completed = Callable[[], Awaitable[None]]


class _Elicitation:
    """Base class for the outcome of an elicitation: accepted, declined or cancelled."""

    __slots__ = ("_completed",)

    def __init__(self, completed: _Completed | None = None) -> None:
        self._completed = completed  # Notifies the client that the user has finished on a page, or None.

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # Without the answer, which may be private.

    async def notify_complete(self) -> None:
        """Notify the client that the user has finished on the web page of `ctx.elicit_url`.

        Does nothing after a form, and in protocol versions without this notification.
        """
        if self._completed is not None:
            await self._completed()


class AcceptedElicitation(_Elicitation, Generic[T]):
    """Outcome of an elicitation: the user accepted. `value` is the validated answer."""

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


class _Unaccepted(_Elicitation):
    __slots__ = ()

    accepted: Literal[False] = False
    value: None = None

    def __bool__(self) -> Literal[False]:
        return False


class DeclinedElicitation(_Unaccepted):
    """Outcome of an elicitation: the user declined."""

    __slots__ = ()

    action: Literal["decline"] = "decline"
    declined: Literal[True] = True
    cancelled: Literal[False] = False


class CancelledElicitation(_Unaccepted):
    """Outcome of an elicitation: the user closed the question without an answer."""

    __slots__ = ()

    action: Literal["cancel"] = "cancel"
    declined: Literal[False] = False
    cancelled: Literal[True] = True


# Outcome of an elicitation. Type checkers know that `value` is the answer after `if answer.action == "accept"`,
# `if answer`, or `case AcceptedElicitation(value)`.
Elicitation: TypeAlias = AcceptedElicitation[T] | DeclinedElicitation | CancelledElicitation


def _elicitation(action: str, value: T, completed: _Completed | None = None) -> Elicitation[T]:
    if action == "accept":
        return AcceptedElicitation(value, completed)
    return DeclinedElicitation(completed) if action == "decline" else CancelledElicitation(completed)


class _FormAnswer(msgspec.Struct):
    """The client's answer to a form. Unlike in `ElicitResult`, the values in `content` may have any type.

    `parse_form` checks the types later. Its error names the wrong field.
    """

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


def fault_of(request: InputRequest, answer: msgspec.Raw) -> str | None:
    """Return why an answer does not fit a question, or None if it fits. The text contains no value of the answer."""
    params: Any = {} if request.params is msgspec.UNSET else request.params
    try:
        if request.method == "sampling/createMessage":
            read = msgspec.json.decode(answer, type=CreateMessageResult)
            return fault_of_answer(msgspec.convert(params, CreateMessageParams), read)
        if request.method == "roots/list":
            msgspec.json.decode(answer, type=ListRootsResult)
        elif params.get("mode") == "url":
            msgspec.json.decode(answer, type=ElicitResult)
        else:
            _check_form(msgspec.json.decode(answer, type=_FormAnswer), params.get("requestedSchema", {}))
    except msgspec.ValidationError:
        return f"it is no answer to {request.method}."
    except ValueError as error:
        return str(error)
    return None


def _check_form(answer: _FormAnswer, schema: Mapping[str, Any]) -> None:
    """Raise ValueError if a form was filled in, and a value does not fit."""
    if answer.action == "accept":
        from weft.forms import parse_form

        parse_form(schema, answer.content)


async def elicit(call: Call, message: str, schema: type[Any] | Mapping[str, Any], key: str | None) -> Elicitation[Any]:
    """Ask the user to fill in a form, and return the outcome with the validated answer."""
    answer = await ask(call, ask_form(message, schema), _FormAnswer, key)
    try:
        return _read_form(answer, schema)
    except ValueError as error:
        raise asker_of(call).unusable(f"the answer to a question does not fit it: {error}") from None


def read_form(answer: msgspec.Raw, schema: type[Any] | Mapping[str, Any] | None) -> Elicitation[Any]:
    """Return the outcome of an elicitation from the client's answer, which fits the question (see `fault_of`).

    `schema` is the form; None if the user was asked to visit a web page.
    """
    return _read_form(msgspec.json.decode(answer, type=_FormAnswer), schema)


def _read_form(answer: _FormAnswer, schema: type[Any] | Mapping[str, Any] | None) -> Elicitation[Any]:
    """Return the outcome of an elicitation. Raises ValueError if the values do not fit the form."""
    if answer.action != "accept" or schema is None:
        return _elicitation(answer.action, None)
    from weft.forms import parse_form

    return AcceptedElicitation(parse_form(schema, answer.content))


async def elicit_url(call: Call, message: str, url: str, key: str | None) -> Elicitation[None]:
    """Ask the user to visit a web page, and return whether the user accepted, declined or cancelled."""
    request = ask_url(message, url)
    check_request(call, request)
    page = asker_of(call).new_page_id()
    request.params.elicitation_id = page
    answer = await ask(call, request, ElicitResult, key)
    return _elicitation(answer.action, None, None if page is None else partial(notify_complete, call, page))


async def notify_complete(call: Call, page: str) -> None:
    """Notify the client that the user has finished on the web page with the id `page`.

    The notification is sent on the stream of the call. If this stream is not open, it is sent outside of the call.
    """
    if call.session is None or call.reply.answered or call.cancellation.cancelled or not call.reply.can_stream:
        await call.connection.notify_complete(page)
    elif call.connection.supports_pages:
        await call.reply.notify(encode_notification(COMPLETE, {"elicitationId": page}))


async def sample(call: Call, request: InputRequest, key: str | None) -> CreateMessageResult:
    """Ask the client's model (sampling), and return its checked answer."""
    answer = await ask(call, request, CreateMessageResult, key)
    fault = fault_of_answer(request.params, answer)
    if fault is not None:
        raise asker_of(call).unusable(f"the answer to sampling/createMessage breaks a rule: {fault}")
    return answer


async def ask(call: Call, request: InputRequest, answer: type[T], key: str | None) -> T:
    """Ask the client a question, and return its answer decoded as the type `answer`."""
    if key is not None:
        check_key(key, f"key={key!r}")
    check_request(call, request)
    raw = await asker_of(call).ask(request.method, params_of(request), key)
    try:
        return msgspec.json.decode(raw, type=answer)
    except msgspec.ValidationError:
        raise asker_of(call).unusable(f"the answer to {request.method} is malformed.") from None
