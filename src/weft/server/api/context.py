"""The `Context` of a call, for handlers and middleware: facts about the request, progress, logs, and questions."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import nullcontext
from functools import lru_cache, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, TypeVarTuple, cast, get_args, overload

import msgspec

from weft.errors import InvalidParams, UsageError
from weft.jsonrpc import encode_notification
from weft.net.logs import Seldom
from weft.protocol.request_state import RecordedAnswer
from weft.server.asking import asks
from weft.server.asking.asks import Elicitation
from weft.server.asking.once import adapter_of
from weft.server.asking.questions import ask_model, ask_model_raw, ask_roots, check_key
from weft.server.asking.rounds import asker_of
from weft.server.calls.call import Call
from weft.server.calls.connection import Connection, TokenInfo
from weft.server.diagnostics import Unserialisable, caller
from weft.server.runtime.dispatch import Next
from weft.server.signature.output import to_json_text
from weft.types.base import Implementation, LogLevel, RequestId, Result
from weft.types.interaction import CreateMessageResult, ListenParams, ListRootsResult, Root, SamplingMessage
from weft.types.lifecycle import ClientCapabilities, LogMessageParams, ProgressParams

if TYPE_CHECKING:
    from weft.server.api.server import Server
    from weft.server.runtime.runtime import Runtime


T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Ask = TypeVar("Ask", bound=Callable[..., Coroutine[Any, Any, Any]])

_server_log = logging.getLogger("weft.context")
_seldom = Seldom(_server_log)  # for warnings that clients can cause as often as they like

_NONE: Mapping[str, Any] = MappingProxyType({})
_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
_TOO_FAST = (
    "%s logs more than %d messages a second to its client; the rest is dropped. Log less, or raise "
    "Limits(log_messages_per_second=...)."
)


def _question(ask: Ask) -> Ask:
    """Decorate a method that asks, so that a missing `await` is found when the handler returns.

    The coroutine that the method returns is recorded. If it is not awaited, no question is sent, but `if
    ctx.elicit(...)` takes the coroutine for True.
    """

    @wraps(ask)
    def noted(self: Context, *args: Any, **options: Any) -> Any:
        question = ask(self, *args, **options)
        call = self._call  # pyright: ignore[reportPrivateUsage] - decorates methods of Context
        call.questions = [*(call.questions or ()), (question, f"ctx.{ask.__name__}(...)", caller())]
        return question

    return cast("Ask", noted)


class Context:
    """Gives a handler the facts about its call, and sends messages to the client before the answer.

    Weft passes the context to every handler that has a parameter annotated with `Context`, at any position:

    >>> from weft import Context, Server
    >>> server = Server("example")
    >>> @server.tool
    ... async def count(ctx: Context, to: int) -> str:
    ...     for step in range(to):
    ...         await ctx.report_progress(step + 1, to)
    ...     return f"Counted to {to}."
    """

    __slots__ = ("_call", "_loop", "_progress", "_state", "_thread")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()  # the thread of the loop
        self._progress: float | None = None  # last value that was reported: the next one must be greater
        self._state: dict[str, Any] | None = None

    # The request.

    @property
    def method(self) -> str:
        """The method of the request, such as `tools/call`."""
        return self._call.method

    @property
    def params(self) -> Any:
        """The decoded params: a struct of `weft.types`. If middleware changes it, the handler gets the changed one."""
        self._call.params_seen = True
        return self._call.envelope.params

    @property
    def request_id(self) -> RequestId:
        """The id of the request."""
        return self._call.id

    @property
    def server(self) -> Server:
        """The server that serves the call."""
        return cast("Server", self._call.services.owner)

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded."""
        return cast("Runtime", self._call.services).lifespan.value

    @property
    def state(self) -> dict[str, Any]:
        """A dict for data that middleware and handler share during this call; empty at first."""
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers of the request, read-only and without credentials; empty on stdio."""
        return _NONE if self._call.headers is None else self._call.headers.mapping()

    # The client.

    @property
    def token_info(self) -> TokenInfo | None:
        """The verified caller; None if no caller was verified.

        The caller was verified by its token, or by an ASGI app around the server, such as middleware or a parent app.
        """
        return self._call.token_info

    @property
    def connection(self) -> Connection:
        """The facts about the client, and the channel to it."""
        return self._call.connection

    @property
    def connection_id(self) -> str:
        """The id of the session. If there is no session, every call has a different `connection_id`.

        To store data for later calls, use `session_id` as the key. It is None if there is no session.
        """
        return self._call.connection.connection_id

    @property
    def session_id(self) -> str | None:
        """The id of the session, the same for all of its calls; None if there is no session."""
        return None if self._call.session is None else self._call.connection.connection_id

    @property
    def protocol_version(self) -> str:
        """The protocol version of this call."""
        return self._call.envelope.revision.version

    @property
    def is_stateless(self) -> bool:
        """Whether the call is of the stateless era, which has no sessions."""
        return self._call.era.is_stateless

    @property
    def client_info(self) -> Implementation | None:
        """Name and version of the client, if it sent them. They are not verified."""
        return self._call.envelope.client_info

    @property
    def client_capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declared for this call."""
        return self._call.envelope.client_capabilities

    def client_supports(self, capability: str) -> bool:
        """Return whether the client declared a capability.

        Examples: `"elicitation"`, `"elicitation.url"`, `"sampling.tools"`, `"roots"`, `"extensions.com.example/thing"`.
        """
        return self._call.client_supports(capability)

    # Progress, logs and cancellation.

    @property
    def cancelled(self) -> bool:
        """Whether the client cancelled the call. Async handlers are stopped; sync handlers must check `cancelled`."""
        return self._call.cancellation.cancelled

    @property
    def _is_silent(self) -> bool:
        """Whether notifications are dropped: the call is cancelled, or is a listen stream, which has only changes."""
        return self.cancelled or isinstance(self._call.envelope.params, ListenParams)

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send a progress notification, if the client asked for progress.

        A value that is not greater than the last one is dropped. At most `Limits.progress_per_second` notifications are
        sent per second; a value that reaches the total is sent even beyond that rate.
        """
        for name, number in (("progress", progress), ("total", total)):
            if number is not None and not math.isfinite(number):
                raise UsageError(
                    f"report_progress({name}={number}) is not possible: JSON has no such number. Give a finite one."
                )
        token = self._call.envelope.progress_token
        if token is None or self._is_silent or (self._progress is not None and progress <= self._progress):
            return
        if not self._call.progress_pace.allows(urgent=total is not None and progress >= total):
            return
        self._progress = progress
        if self._call.reply.answered:
            _warn_of_late(self._call.described, "reports progress")
            return
        params = ProgressParams(progress_token=token, progress=progress, total=total, message=message)
        fitting = self._call.era.notice(params, self._call.envelope.revision)
        await self._call.reply.notify(encode_notification("notifications/progress", fitting))

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, if it asked for messages of this level.

        `data` is any value that a tool may return as JSON: text, numbers, dictionaries, dataclasses, pydantic models.
        A `SecretStr` in it is logged as stars. `logger` names the source of the message; default: the server's name.
        At most `Limits.log_messages_per_second` messages are sent per second; more are dropped. Before the next message
        that is not dropped, the client gets one that says how many were dropped.
        """
        if level not in _LEVELS:  # checked first, so that a wrong level fails even if the client wants no log messages
            raise UsageError(f"There is no log level {level!r}; the levels are {', '.join(_LEVELS)}.")
        call = self._call
        if not call.era.may_log(level, call.envelope.log_level) or self._is_silent:
            return
        shown, pace = _log_data(data), call.log_pace
        if not pace.allows():
            if pace.dropped == 1:
                _seldom.warning(
                    _TOO_FAST, call.described, call.services.limits.log_messages_per_second, about=call.described
                )
            return
        if pace.untold:
            dropped, pace.untold = pace.untold, 0
            await self._send_log(level, _log_data(f"Messages dropped, too many in a second: {dropped}."), None)
        await self._send_log(level, shown, logger)

    async def _send_log(self, level: LogLevel, data: msgspec.Raw, logger: str | None) -> None:
        call = self._call
        params = LogMessageParams(level=level, data=data, logger=logger or call.services.name)
        if not call.reply.answered:
            await call.reply.notify(encode_notification("notifications/message", params))
        elif call.session is not None and call.connection.outbound.is_readable:
            await call.connection.notify("notifications/message", cast("Any", params))
        else:
            _warn_of_late(call.described, "logs a message")

    async def debug(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level debug."""
        await self.log("debug", data, logger=logger)

    async def info(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level info."""
        await self.log("info", data, logger=logger)

    async def notice(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level notice."""
        await self.log("notice", data, logger=logger)

    async def warning(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level warning."""
        await self.log("warning", data, logger=logger)

    async def error(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level error."""
        await self.log("error", data, logger=logger)

    async def critical(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level critical."""
        await self.log("critical", data, logger=logger)

    async def alert(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level alert."""
        await self.log("alert", data, logger=logger)

    async def emergency(self, data: Any, *, logger: str | None = None) -> None:
        """Send a log message at level emergency."""
        await self.log("emergency", data, logger=logger)

    async def close_stream(self, retry_seconds: float = 1.0) -> None:
        """Close the SSE stream of this call. The client reconnects after `retry_seconds` to get the rest of the stream.

        So a long call does not need an open connection all the time. Only clients of revision 2025-11-25 over HTTP
        reconnect. For other clients this method does nothing.
        """
        if not 0 <= retry_seconds <= 3600:
            raise UsageError(f"close_stream({retry_seconds!r}) is not possible: give seconds, an hour at most.")
        if not self.cancelled:
            await self._call.reply.close_stream(retry_seconds)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Block until an awaitable is done, and return its result. For sync handlers, which cannot await.

        Example: `ctx.wait(ctx.report_progress(1, 3))`. In an async handler, use `await` instead.
        """
        if threading.get_ident() == self._thread:  # blocking here would stop the loop that has to run it
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise UsageError("ctx.wait(...) is for plain functions; in an async function write `await ...` instead.")
        replay = self._call.replay
        with nullcontext() if replay is None else replay.waiting(awaitable, caller()):
            return asyncio.run_coroutine_threadsafe(_as_coroutine(awaitable), self._loop).result()

    # Questions: to the user, to the client's model, and for roots.

    @overload
    async def elicit(self, message: str, schema: type[T], *, key: str | None = None) -> Elicitation[T]: ...
    @overload
    async def elicit(
        self, message: str, schema: Mapping[str, Any], *, key: str | None = None
    ) -> Elicitation[dict[str, Any]]: ...
    @_question
    async def elicit(
        self, message: str, schema: type[Any] | Mapping[str, Any], *, key: str | None = None
    ) -> Elicitation[Any]:
        """Ask the user to fill in a form. `schema` describes its fields: a flat model, or a flat JSON Schema.

        In the stateless era the call does not wait for the answer. The call ends at this line, and **the handler runs
        again from the top** when the client calls again with the answer. So the code before the question runs again,
        too. Use `once` for code that must not run twice.

        The answer is in `answer.value` after `if answer.action == "accept"`, or in `case AcceptedElicitation(value)`.

        If a handler asks the same question several times, and the order can differ between runs, give each a different
        `key`.
        """
        return await asks.elicit(self._call, message, schema, key)

    @_question
    async def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Elicitation[None]:
        """Ask the user to visit a web page. For `key`, see `elicit`.

        The action `accept` means that the user agreed to visit the page, not that the user has finished there.
        """
        return await asks.elicit_url(self._call, message, url, key)

    async def notify_complete(self, page: str) -> None:
        """Notify the client that the user has finished on a page, if the protocol version has a message for that.

        `page` is the id that was given to `ask_url(..., id=page)`, in this call or an earlier one. Outside of a call,
        use `connection.notify_complete`.
        """
        await asks.notify_complete(self._call, page)

    @_question
    async def sample(
        self,
        messages: str | list[SamplingMessage],
        *,
        max_tokens: int,
        system_prompt: str | None = None,
        key: str | None = None,
        **options: Any,
    ) -> CreateMessageResult:
        """Ask the client's model, and return its message.

        `options` are the other fields of `CreateMessageParams`. For `key`, see `elicit`.
        """
        request = ask_model(messages, max_tokens=max_tokens, system_prompt=system_prompt, **options)
        return await asks.sample(self._call, request, key)

    @_question
    async def sample_raw(self, params: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
        """Ask the client's model, with params and answer in the JSON form of the protocol. For `key`, see `elicit`."""
        answer = await asks.sample(self._call, ask_model_raw(params), key)
        return cast("dict[str, Any]", msgspec.to_builtins(answer))

    @_question
    async def list_roots(self, *, key: str | None = None) -> list[Root]:
        """Ask the client for its roots. For `key`, see `elicit`."""
        return (await asks.ask(self._call, ask_roots(), ListRootsResult, key)).roots

    @overload
    async def once(self, key: str, fn: Callable[..., Any], *args: Any, type: type[T]) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[[*Ts], T], *args: *Ts) -> T: ...
    @_question  # type: ignore[misc]  # mypy does not see that *args takes any *Ts
    async def once(self, key: str, fn: Callable[..., Any], *args: Any, type: Any = None) -> Any:
        """Call `fn(*args)` once per logical call, even if the handler runs several times, and return its result.

        A handler that asks runs again from the top when the answer comes. Use `once` for side effects, such as charging
        a card, and for values that change, such as random numbers. The result of the first call is stored under `key`
        and returned to later runs. The result must be a JSON value, or a value of the type that is given as `type` or
        as the return annotation of `fn`.
        """
        check_key(key, f"ctx.once({key!r}, ...)")
        if not callable(fn):
            if isinstance(fn, Coroutine):
                fn.close()  # else Python warns about it as well
            raise UsageError(
                f"ctx.once({key!r}, ...) got the result of a function, not the function, so it cannot decide whether "
                f"to call it. Pass the function and its arguments separately: ctx.once({key!r}, fn, argument)."
            )
        return await asker_of(self._call).once(key, fn, args, type)

    # Answers from earlier rounds, for handlers that return `InputRequired` themselves.

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """The client's answers so far, by the keys of the questions."""
        return MappingProxyType({key: msgspec.json.decode(answer.value) for key, answer in self._answers.items()})

    def has_input_response(self, key: str) -> bool:
        """Return whether there is an answer for `key`."""
        return key in self._answers

    def input_response(self, key: str, type: type[T]) -> T:
        """Return the answer for `key` as `type`. Raise `InvalidParams` if there is no answer.

        If the answer is not a valid `type`, raise `InvalidParams` in the stateless era, and `QuestionFailed` in a
        session.
        """
        if key not in self._answers:
            raise InvalidParams(f"Invalid params: `inputResponses` has no {key!r}.")
        try:
            return _read(bytes(self._answers[key].value), type)
        except ValueError:
            fault = f"`inputResponses[{key!r}]` does not have the expected shape."
            raise asker_of(self._call).unusable(fault) from None

    @property
    def is_retry(self) -> bool:
        """Whether the handler ran before for the same logical call, for example before its questions were answered."""
        return self._call.asker is not None and self._call.asker.is_retry

    @property
    def request_state(self) -> Any:
        """The decrypted state that an earlier round returned with `InputRequired`; None if no round returned one."""
        return None if self._request_state is None else msgspec.json.decode(self._request_state)

    def request_state_as(self, type: type[T]) -> T | None:
        """Return `request_state` as `type`; None if there is no state.

        Raises `InvalidParams` if the state is not a valid `type`.
        """
        try:
            return None if self._request_state is None else _read(bytes(self._request_state), type)
        except ValueError:
            raise InvalidParams("Invalid params: `requestState` does not have the expected shape.") from None

    @property
    def _answers(self) -> Mapping[str, RecordedAnswer]:
        return _NONE if self._call.asker is None else self._call.asker.journal.answers

    @property
    def _request_state(self) -> msgspec.Raw | None:
        return None if self._call.asker is None else self._call.asker.journal.state


def _read(data: bytes, type: type[T]) -> T:
    """Decode JSON as `type`. Raise ValueError if `data` is not a valid `type`."""
    if isinstance(type, msgspec.StructMeta):
        return msgspec.json.decode(data, type=type)
    return cast("T", adapter_of(type).validate_json(data))


@lru_cache(maxsize=512)  # warn once per handler
def _warn_of_late(described: str, what: str) -> None:
    _server_log.warning(
        "%s %s for its client after the answer is sent. It is dropped, because nothing that belongs to a call may "
        "follow its answer. Send it before the handler returns, and await the tasks that the handler starts.",
        described,
        what,
    )


Call.context_type = Context

Middleware: TypeAlias = Callable[[Context, Next], Awaitable[Result]]


def _log_data(data: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(to_json_text(data).encode())
    except Unserialisable as error:
        raise UsageError(str(error).replace("The returned", "The logged", 1)) from None


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
