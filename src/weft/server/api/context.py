"""The `Context` of a call, for handlers and middleware: facts about the request, progress, logs and elicitation."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from functools import lru_cache, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, TypeVarTuple, cast, get_args, overload

import msgspec

from weft.errors import InvalidParams, UsageError
from weft.jsonrpc import encode_notification, to_unicode
from weft.net.logs import Seldom
from weft.protocol.request_state import RecordedAnswer
from weft.server.asking import asks
from weft.server.asking.asks import Elicitation
from weft.server.asking.once import adapter_of
from weft.server.asking.questions import ask_model, ask_model_raw, ask_roots, check_key
from weft.server.asking.rounds import asker_of
from weft.server.calls.call import Call
from weft.server.calls.connection import Cancellation, Connection, TokenInfo
from weft.server.calls.execution import WaitingThread
from weft.server.diagnostics import Unserialisable, caller, read_progress
from weft.server.runtime.dispatch import Next
from weft.server.signature.output import to_json_text
from weft.server.tasks.runs import CallTask, NoTask
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
_seldom = Seldom(_server_log)  # limits warnings that a client can cause very often

# The cancellation that the current code knows of: it has read `ctx.cancelled`, or `ctx.wait` has raised CancelledError.
_known: ContextVar[Cancellation | None] = ContextVar("weft_known_cancellation", default=None)

_NO_TASK = NoTask()
_NONE: Mapping[str, Any] = MappingProxyType({})
_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
_TOO_FAST = (
    "%s logs more than %d messages a second to its client; the rest is dropped. Log less, or raise "
    "Limits(log_messages_per_second=...)."
)


def _question(ask: Ask) -> Ask:
    """Decorate a method that asks the client a question, to detect a missing `await` when the handler returns.

    The coroutine that the method returns is recorded. If the handler does not await the coroutine, no question is sent,
    and `if ctx.elicit(...)` is always true.
    """

    @wraps(ask)
    def noted(self: Context, *args: Any, **options: Any) -> Any:
        question = ask(self, *args, **options)
        call = self._call  # pyright: ignore[reportPrivateUsage] - decorates methods of Context
        call.questions = [*(call.questions or ()), (question, f"ctx.{ask.__name__}(...)", caller())]
        return question

    return cast("Ask", noted)


class Context:
    """Gives a handler the facts about its call, and sends messages to the client before the response.

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
        self._loop = _loop_here()
        self._thread = threading.get_ident()  # the thread of the loop
        self._progress: float | None = None  # last reported value; the next value must be greater
        self._state: dict[str, Any] | None = None

    # The request.

    @property
    def method(self) -> str:
        """The method of the request, such as `tools/call`."""
        return self._call.method

    @property
    def params(self) -> Any:
        """The decoded params of the request: a struct of `weft.types`.

        If middleware changes the struct, the handler gets the changed params.
        """
        self._call.params_seen = True
        return self._call.envelope.params

    @property
    def request_id(self) -> RequestId:
        """The id of the request."""
        return self._call.id

    @property
    def server(self) -> Server:
        """The `Server` that handles the call."""
        return cast("Server", self._call.services.owner)

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded."""
        return cast("Runtime", self._call.services).lifespan.value

    @property
    def state(self) -> dict[str, Any]:
        """A dict for data that middleware and the handler share during this call. It is empty at first."""
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def task(self) -> CallTask:
        """The task of this call: its id, and how to hand its work over, if the tool was registered with `task=`.

        `ctx.task.id` is None while the call is not a task, because the client gets a plain answer.
        """
        return _NO_TASK if self._call.task is None else cast("CallTask", self._call.task.public)

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers of the request, read-only and without credentials; empty on stdio."""
        return _NONE if self._call.headers is None else self._call.headers.mapping()

    # The client.

    @property
    def token_info(self) -> TokenInfo | None:
        """The verified identity of the caller, or None if the caller was not verified.

        Weft verifies the caller by its token. An ASGI app around the server, such as a parent app, can verify the
        caller too.
        """
        return self._call.token_info

    @property
    def connection(self) -> Connection:
        """The connection to the client: facts about the client, and methods to send messages to the client."""
        return self._call.connection

    @property
    def connection_id(self) -> str:
        """The id of the session. Without a session, every call has a different `connection_id`.

        To store data for later calls, use `session_id` as the key. It is None if there is no session.
        """
        return self._call.connection.connection_id

    @property
    def session_id(self) -> str | None:
        """The id of the session that the call belongs to, or None if there is no session. A task keeps this id."""
        call = self._call
        if call.session is None:
            return None if call.task is None else cast("str | None", call.task.session_id)
        return call.connection.connection_id

    @property
    def protocol_version(self) -> str:
        """The protocol version of this call."""
        return self._call.envelope.revision.version

    @property
    def is_stateless(self) -> bool:
        """Whether the protocol version of this call is of the stateless era, which has no sessions."""
        return self._call.era.is_stateless

    @property
    def client_info(self) -> Implementation | None:
        """The name and version of the client, or None if it did not send them. They are not verified."""
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
        """Whether the call was cancelled. Async handlers are stopped; sync handlers must check this property.

        `wait` also tells a sync handler that its call was cancelled.
        """
        if not self._call.is_cancelled:
            return False
        _known.set(self._call.cancellation)
        return True

    @property
    def _is_silent(self) -> bool:
        """Whether to drop notifications, because the call is cancelled or is a `subscriptions/listen` request."""
        return self._call.is_cancelled or isinstance(self._call.envelope.params, ListenParams)

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send a progress notification, if the client asked for progress. In a task, change its status message.

        The notification is dropped if `progress` is not greater than the last value sent. At most
        `Limits.progress_per_second` notifications are sent per second; further notifications are dropped. For a
        notification that reaches `total`, the limit is doubled.

        The numbers can be of any type that `float` converts. Raises UsageError if one is infinite or NaN. In `message`,
        U+FFFD replaces what is not Unicode (lone surrogates, as names of files can have).
        """
        progress, total, message = read_progress(progress, total, message, "report_progress")
        task = self._call.task
        if task is not None and task.is_task:
            if not self._is_silent:
                task.report(progress, total, message)
            return
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
        """Send a log message to the client, if the client wants messages of this level.

        `data` is any value that a tool may return as JSON: text, numbers, dictionaries, dataclasses, pydantic models. A
        `SecretStr` in `data` is logged as stars. `logger` names the source of the message; default: the server's name.
        At most `Limits.log_messages_per_second` messages are sent per second; further messages are dropped. When
        messages are sent again, the client first gets a message with the number of dropped messages.

        In a task, the message becomes the status message of the task.
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
        if call.task is not None and call.task.is_task:
            call.task.tell(to_unicode(data) if isinstance(data, str) else bytes(shown).decode())
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
        """Close the SSE stream of this call. The client reconnects after `retry_seconds` to get the later messages.

        This way, a long call does not need an open connection all the time. Only clients of protocol version 2025-11-25
        over HTTP reconnect. For other clients, this method does nothing.
        """
        if not 0 <= retry_seconds <= 3600:
            raise UsageError(f"close_stream({retry_seconds!r}) is not possible: give seconds, an hour at most.")
        if not self._call.is_cancelled:
            await self._call.reply.close_stream(retry_seconds)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Run an awaitable from a sync handler: block until the awaitable is done, and return its result.

        Example: `ctx.wait(ctx.report_progress(1, 3))`. In an async handler, use `await` instead.

        If the call is cancelled, the awaitable is cancelled, and `wait` raises `asyncio.CancelledError`, as `await`
        does in an async handler. This is not an `Exception`, so `except Exception` does not catch it. If the handler
        does not wait at that moment, its next `wait` that has to block raises the error. A handler that got this error,
        or found `ctx.cancelled` to be True, can clean up with `wait`: it is not stopped a second time. Only `once`
        raises the error each time, in a task that was stopped.

        If the awaitable needs a thread for a sync function, such as one of `once`, and no thread is free, the thread of
        the handler runs the function. Then `wait` returns only after the function.
        """
        if threading.get_ident() == self._thread:  # blocking here would stop the loop that has to run the awaitable
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise UsageError("ctx.wait(...) is for plain functions; in an async function write `await ...` instead.")
        replay = self._call.replay
        with nullcontext() if replay is None else replay.waiting(awaitable, caller()):
            try:
                return WaitingThread(self._loop).wait(awaitable, self._stop_with_call)
            except asyncio.CancelledError:
                _ = self.cancelled  # from now on, the handler knows of it
                raise

    def _stop_with_call(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task of a `wait` if the call is cancelled, unless the handler knows that it is cancelled."""
        cancellation = self._call.cancellation
        if _known.get() is not cancellation:
            cancellation.also_cancel(task)

    # Questions to the client: elicitation, sampling and roots.

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
        """Ask the user to fill in a form, and return the answer.

        `schema` describes the fields of the form: a model or a JSON Schema without nested objects.

        In the stateless era the call does not wait for the answer. The call ends at this line, and **the handler runs
        again from the top** when the client repeats the call with the answer. So the code before the question runs
        again, too. Use `once` for code that must not run twice.

        If `answer.action == "accept"`, the user's input is in `answer.value`. In a `match` statement, write
        `case AcceptedElicitation(value)`.

        If a handler asks the same question several times, and the order of the questions can differ between runs, give
        each question a different `key`.
        """
        return await asks.elicit(self._call, message, schema, key)

    @_question
    async def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Elicitation[None]:
        """Ask the user to visit a web page, and return the user's decision. For `key`, see `elicit`.

        The action `accept` means that the user agreed to visit the page, not that the user has finished there.
        """
        return await asks.elicit_url(self._call, message, url, key)

    async def notify_complete(self, page: str) -> None:
        """Notify the client that the user has finished on a web page, if the protocol version has such a notification.

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
        """Ask the client's model (sampling), and return the message of the model.

        `options` are the other fields of `CreateMessageParams`. For `key`, see `elicit`.
        """
        request = ask_model(messages, max_tokens=max_tokens, system_prompt=system_prompt, **options)
        return await asks.sample(self._call, request, key)

    @_question
    async def sample_raw(self, params: Mapping[str, Any], *, key: str | None = None) -> dict[str, Any]:
        """Ask the client's model (sampling) with a dictionary, and return the message of the model as a dictionary.

        Both dictionaries have the JSON form of the protocol. For `key`, see `elicit`.
        """
        answer = await asks.sample(self._call, ask_model_raw(params), key)
        return cast("dict[str, Any]", msgspec.to_builtins(answer))

    @_question
    async def list_roots(self, *, key: str | None = None) -> list[Root]:
        """Ask the client for its roots, and return them. For `key`, see `elicit`."""
        return (await asks.ask(self._call, ask_roots(), ListRootsResult, key)).roots

    @overload
    async def once(self, key: str, fn: Callable[..., Any], *args: Any, type: type[T]) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[[*Ts], T], *args: *Ts) -> T: ...
    @_question  # type: ignore[misc]  # mypy does not see that *args takes any *Ts
    async def once(self, key: str, fn: Callable[..., Any], *args: Any, type: Any = None) -> Any:
        """Call `fn(*args)` only once, even if the handler runs several times for one call, and return the result.

        A handler that asks the client a question runs again from the top when the answer comes. Use `once` for side
        effects, such as charging a card, and for values that change, such as random numbers. The result of `fn` is
        stored under `key`; when the handler runs again, `once` returns the stored result. The result must be a JSON
        value, or a value of the type that is given as `type` or as the return annotation of `fn`.
        """
        check_key(key, f"ctx.once({key!r}, ...)")
        if not callable(fn):
            if isinstance(fn, Coroutine):
                fn.close()  # otherwise Python warns that it was never awaited
            raise UsageError(
                f"ctx.once({key!r}, ...) got the result of a function, not the function, so it cannot decide whether "
                f"to call it. Pass the function and its arguments separately: ctx.once({key!r}, fn, argument)."
            )
        return await asker_of(self._call).once(key, fn, args, type)

    # Answers of earlier rounds, for handlers that return `InputRequired` instead of calling `elicit`.

    @property
    def input_responses(self) -> Mapping[str, Any]:
        """The answers that the client has sent so far, by the key of the question."""
        return MappingProxyType({key: msgspec.json.decode(answer.value) for key, answer in self._answers.items()})

    def has_input_response(self, key: str) -> bool:
        """Return whether the client has answered the question with this key."""
        return key in self._answers

    def input_response(self, key: str, type: type[T]) -> T:
        """Return the client's answer to the question with this key, as `type`.

        Raises `InvalidParams` if there is no answer. If the answer is not a valid `type`, raises `InvalidParams` in the
        stateless era, and `QuestionFailed` in a session.
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
        """Whether the handler runs again for the same call, for example after a question to the client."""
        return self._call.asker is not None and self._call.asker.is_retry

    @property
    def request_state(self) -> Any:
        """The decrypted state that the handler returned earlier with `InputRequired`, or None if there is no state."""
        return None if self._request_state is None else msgspec.json.decode(self._request_state)

    def request_state_as(self, type: type[T]) -> T | None:
        """Return `request_state` as `type`, or None if there is no state.

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
    """Decode JSON as `type`. Raise ValueError if the JSON is not a valid `type`."""
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
        return msgspec.Raw(to_json_text(to_unicode(data) if isinstance(data, str) else data).encode())
    except Unserialisable as error:
        raise UsageError(str(error).replace("The returned", "The logged", 1)) from None


class _Here(threading.local):
    """Caches the event loop of each thread: every thread sees its own value of `loop`."""

    loop: asyncio.AbstractEventLoop | None = None  # the loop that was running at the last look-up


_here = _Here()


def _loop_here() -> asyncio.AbstractEventLoop:
    """Return the running loop, from a cache: in Python 3.11, each `asyncio.get_running_loop` makes a system call."""
    loop = _here.loop
    if loop is None or not loop.is_running():  # a thread runs one loop at a time
        loop = _here.loop = asyncio.get_running_loop()
    return loop
