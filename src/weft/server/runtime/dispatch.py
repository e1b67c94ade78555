"""Run one call: check it, pass it through tracing and middleware to its handler, and turn exceptions into errors.

`Dispatcher.run` serves one call and returns one encoded answer. It never raises, except when its task is cancelled.
Functions registered with `server.on_error` get only exceptions that no middleware has caught. Scopes, and the client
capabilities that a feature needs, are checked before any user code runs. A client that did not declare an extension is
served as if the server did not have this extension.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import chain
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from weft.eras.base import CORE_TYPES
from weft.errors import (
    BackendUnavailable,
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    QuestionFailed,
    RegistrationError,
    ToolError,
    UndeclaredExtension,
    UsageError,
    WeftError,
)
from weft.jsonrpc import encode_error, encode_result
from weft.net.logs import Seldom
from weft.protocol.names import check_extension_id
from weft.protocol.request_state import StateRefused
from weft.protocol.revisions import METHODS, Method
from weft.server.asking.rounds import InputRequired, asker_of, questions, round_of, signal_in
from weft.server.calls.call import Call, Handler, require_needs
from weft.server.calls.execution import is_cancelled
from weft.server.calls.once_store import ClaimsFull
from weft.server.calls.services import Services
from weft.server.diagnostics import caller, location, report, report_code, target, with_article
from weft.server.features.registry import Encoded, InsufficientScope, require_scopes
from weft.server.features.tools import failure_of
from weft.server.runtime.admission import Busy
from weft.types.base import Result
from weft.types.features import (
    CallToolParams,
    CallToolResult,
    CompleteParams,
    GetPromptParams,
    PromptReference,
    ReadResourceParams,
)
from weft.types.interaction import ListenParams
from weft.types.lifecycle import InputParams, PaginatedParams
from weft.types.tasks import TASK_METHODS, TASK_RESULT, TASKS_EXTENSION

if TYPE_CHECKING:
    from weft.server.features.prompts import Prompts
    from weft.server.features.resources import Resources
    from weft.server.features.tools import Tools


def check_middleware(layer: Any) -> None:
    """Raise UsageError if the middleware `layer` is a sync function (`def`), because it cannot await `next()`.

    Some callables that are not an `async def` are accepted: a wrapper of an `async def`, a lambda, a class, a function
    written in C, and a function whose return annotation names an awaitable.
    """
    code = target(layer)
    returned = str(getattr(code, "__annotations__", {}).get("return", ""))
    if (
        not inspect.isfunction(code)  # written in C, or a class: its kind is unknown
        or inspect.iscoroutinefunction(code)
        or inspect.iscoroutinefunction(layer)  # marked as a coroutine function
        or code.__name__ == "<lambda>"
        or any(word in returned for word in ("Awaitable", "Coroutine", "Future", "Task"))
    ):
        return
    raise UsageError(f"{_named(layer)} is a plain `def`; write `async def` and `return await next()`.")


def explain_next(error: TypeError, middleware: Sequence[Callable[..., Any]]) -> Exception:
    """Return a UsageError if middleware caused `error` by passing an argument to `next()`; else return `error`."""
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    layers = [layer for layer in middleware if getattr(target(layer), "__code__", None) in codes]
    if not layers or not str(error).startswith(f"{_step.__qualname__}.<locals>.following()"):
        return error
    return UsageError(
        f"{_named(layers[-1])} gave next() an argument; it takes none. Write `await next()`; change `ctx.params` to "
        "change the call."
    ).with_traceback(error.__traceback__)


def no_result(layer: Any, returned: object) -> UsageError:
    """Return the error for the middleware `layer`, which returned the object `returned` instead of a result."""
    if returned is None:
        return UsageError(f"{_named(layer)} returned nothing. Write `return await next()`.")
    if inspect.isawaitable(returned):
        if isinstance(returned, Coroutine):
            cast("Coroutine[Any, Any, Any]", returned).close()  # prevents a second warning by Python
        return UsageError(f"{_named(layer)} returned a coroutine, which was not awaited. Write `return await next()`.")
    return UsageError(
        f"{_named(layer)} returned {with_article(type(returned).__name__)}, which is no result. Return what "
        "`await next()` gave, or a CallToolResult."
    )


def _named(layer: Any) -> str:
    name = getattr(layer, "__name__", None) or getattr(getattr(layer, "func", None), "__name__", None)
    return f"The middleware {(name or type(layer).__name__)!r} ({location(layer)})"


E = TypeVar("E", bound=Exception)

Translation: TypeAlias = Callable[[E], Any] | Callable[[E, Any], Any]  # `fn(error)` or `fn(error, ctx)`

_ANSWERS = (ToolError, ProtocolError)  # exceptions whose text is sent to the client

_RETURNS = "Return a text, a ToolError, a ProtocolError or a result; or raise the exception again."


class Translations:
    """The functions registered with `server.on_error`, by exception class. Immutable: `with_one` returns a copy."""

    def __init__(self, functions: Mapping[type[Exception], tuple[Callable[..., Any], bool]] | None = None) -> None:
        self._functions = dict(functions or {})  # for each class: the function, and whether it also takes the Context

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The registered functions."""
        return [fn for fn, _ in self._functions.values()]

    def with_one(self, kind: type[Exception], fn: Callable[..., Any]) -> Translations:
        """Return a copy in which `fn` translates exceptions of the class `kind`.

        Raises UsageError if `kind` already has a function, or if `fn` does not take `(error)` or `(error, ctx)`.
        """
        if kind in self._functions:
            raise UsageError(f"server.on_error({kind.__name__}) is registered twice; one function is enough.")
        return Translations({**self._functions, kind: (fn, _takes_context(kind, fn))})

    async def translate(self, call: Call, error: BaseException) -> Result | BaseException:
        """Call the function registered for the class of `error`; return the result or error to answer with.

        Returns `error` itself if no function is registered for it. If `error` is an exception group with a single
        member, and no function is registered for the group, the member is translated instead.
        """
        untranslated, kind = error, self._class_for(call, error)
        while kind is None and (lone := _lone_member(error)) is not None:
            error, kind = lone, self._class_for(call, lone)
        if kind is None:
            return untranslated
        fn, takes_context = self._functions[kind]
        described = f"The function for on_error({kind.__name__}) ({location(fn)})"
        trace = error.__traceback__
        try:
            given = (error, call.context) if takes_context else (error,)
            return _as_answer(call, await call.services.threads.call(fn, given), described)
        except _ANSWERS as answer:
            return _as_answer(call, answer, described)
        except BaseException as fault:
            if isinstance(fault, asyncio.CancelledError) and is_cancelled():
                raise
            if fault is error:  # raised again by the function: restore the original traceback
                return error.with_traceback(trace)
            call.blamed = described
            return fault

    def _class_for(self, call: Call, error: BaseException) -> type[Exception] | None:
        """Return the most specific class of `error` for which a function is registered, or None."""
        classes = type(error).__mro__
        if isinstance(error, ProtocolError) and call.blamed is None:
            return None  # the request was refused before it reached a feature
        if isinstance(error, _ANSWERS):  # functions for all exceptions do not translate it
            classes = classes[: classes.index(WeftError)]
        return next((kind for kind in classes if kind in self._functions), None)


def _lone_member(error: BaseException) -> BaseException | None:
    """Return the only exception in an exception group; None if there are several, or if `error` is not a group."""
    members = (
        cast("BaseExceptionGroup[BaseException]", error).exceptions if isinstance(error, BaseExceptionGroup) else ()
    )
    return members[0] if len(members) == 1 else None


def check_exceptions(kind: object) -> None:
    """Raise UsageError unless `kind` is an exception class.

    If the user writes `@server.on_error` without parentheses, `kind` is the decorated function.
    """
    if isinstance(kind, type) and issubclass(kind, Exception):
        return
    given = cast("Any", kind)
    if given is None or inspect.isroutine(given):
        where = caller() if given is None else location(given)
        raise UsageError(
            f"@server.on_error needs the class of the exceptions ({where}). Write @server.on_error(KeyError)."
        )
    raise UsageError(
        f"server.on_error({kind!r}) is not possible ({caller()}): give a class of exceptions, such as "
        "server.on_error(LookupError)."
    )


def _as_answer(call: Call, answer: Any, described: str) -> Result | BaseException:
    """Convert `answer`, which an `on_error` function returned or raised, to the result or error to answer with."""
    is_tool = isinstance(call.envelope.params, CallToolParams)
    if isinstance(answer, str):
        answer = ToolError(answer)
    if isinstance(answer, ToolError) and not is_tool:
        return InternalError(str(answer))
    if isinstance(answer, (*_ANSWERS, Result)) and (is_tool or not isinstance(answer, CallToolResult)):
        return answer
    call.blamed = described
    where = f" to {call.method}, which is no call of a tool" if isinstance(answer, Result) else ""
    return UsageError(f"It returned something of the type {type(answer).__name__!r}{where}. {_RETURNS}")


def _takes_context(kind: type[Exception], fn: Callable[..., Any]) -> bool:
    """Return True if `fn` takes `(error, ctx)`, False if it takes `(error)`; raise UsageError for other parameters."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some functions that are written in C have no signature
        return False
    for takes_context, arguments in ((False, ("error",)), (True, ("error", "ctx"))):
        with suppress(TypeError):
            signature.bind(*arguments)
            return takes_context
    where = f"server.on_error({kind.__name__}): {location(fn)}"
    raise UsageError(f"{where} cannot be called. Write `def fn(error)` or `def fn(error, ctx)`.")


_UNKNOWN = object()
_TRACE_KEYS = ("traceparent", "tracestate", "baggage")  # W3C trace context: keys in `_meta`, or HTTP headers


def find_tracing() -> Tracing | None:
    """Return an object that traces calls, or None if OpenTelemetry is not installed."""
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.trace") is None:
        return None
    return Tracing()


class Tracing:
    """Creates a span for each call while a tracer provider is set.

    Many programs have OpenTelemetry installed only because a framework needs it, and never set a provider. A provider
    may be set at any time, so `is_on` is called for every call and must be fast.
    """

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace: Any = trace
        trace.get_tracer_provider()  # loads the provider that OTEL_PYTHON_TRACER_PROVIDER names

    def is_on(self) -> bool:
        """Return whether a tracer provider is set.

        OpenTelemetry's public function reads the environment each time, which takes 2 % of the time of a call. So a
        private variable of OpenTelemetry is read first, if the installed version has it.
        """
        trace = self._trace
        if getattr(trace, "_TRACER_PROVIDER", _UNKNOWN) is None:
            return False
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    async def around(self, ctx: Any, next: Any) -> Result:
        """Run one call in a span, and return its result. This method is a middleware, so it calls `next()`."""
        from opentelemetry import propagate, trace

        meta = ctx.params.meta
        found = {key: getattr(meta, key, None) or ctx.headers.get(key) for key in _TRACE_KEYS}
        carrier = {key: value for key, value in found.items() if value}
        name = getattr(ctx.params, "name", None) or getattr(ctx.params, "uri", None)
        attributes: dict[str, Any] = {
            "mcp.method.name": ctx.method,
            "mcp.protocol.version": ctx.protocol_version,
            "jsonrpc.request.id": str(ctx.request_id),
        }
        if ctx.method == "tools/call":
            attributes["gen_ai.tool.name"] = name
        tracer = trace.get_tracer("weft")
        title = f"{ctx.method} {name}" if name else ctx.method
        with tracer.start_as_current_span(
            title, context=propagate.extract(carrier), kind=trace.SpanKind.SERVER, attributes=attributes
        ) as span:
            result: Result = await next()
            if getattr(result, "is_error", False):
                span.set_status(trace.StatusCode.ERROR, "the tool failed")
            return result


log = logging.getLogger("weft.dispatch")
_seldom = Seldom(log)

Answer: TypeAlias = tuple[int, bytes]  # an HTTP status and an encoded response

Check: TypeAlias = Callable[[Call], None]

Next: TypeAlias = Callable[[], Awaitable[Result]]

Middleware: TypeAlias = Callable[[Any, Next], Awaitable[Result]]  # called with the Context of the call


class CompleteAnswer(NamedTuple):
    """An encoded response that a handler returns instead of a result: see `TaskStarter`."""

    status: int  # HTTP status
    body: bytes


class TaskStarter(Protocol):
    """Decides which calls of tools become tasks."""

    def handler(self, call: Call, chain: Handler) -> Handler:
        """Return the handler for a call of a tool. `chain` is the handler of a plain call, with all middleware.

        The handler may also return a `CompleteAnswer`.
        """
        ...


class Dispatcher:
    """Serves the calls of one server. It has one handler for each method, wrapped in all middleware.

    `checks` has a function for each method that must be checked. This function runs before middleware and handler, so
    that an error can still set the HTTP status. It runs again if middleware may have changed the params.
    """

    def __init__(
        self,
        services: Services,
        handlers: Mapping[str, Handler],
        *,
        middleware: Sequence[Middleware] = (),
        tracing: Tracing | None = None,
        checks: Mapping[str, Check] | None = None,
        translations: Translations | None = None,
        extensions: Sequence[Extension] = (),
        tasks: TaskStarter | None = None,
    ) -> None:
        self._services = services
        self._tasks = tasks
        self._extensions = tuple(extensions)
        self._translations = translations
        self._checks = dict(checks or {})
        self._middleware = tuple(middleware)
        self._handlers = {
            name: _compose(name, handler, middleware, self._checks.get(name)) for name, handler in handlers.items()
        }
        self._tracing = tracing
        self._traced: dict[str, Handler] = {}  # the handlers, each wrapped in a span
        if tracing is not None:
            self._traced = {method: partial(_step, tracing.around, chain) for method, chain in self._handlers.items()}

    async def run(self, call: Call) -> Answer:
        """Serve one call; return the HTTP status and the encoded response."""
        try:
            handler = self._admit(call)
            if call.spends is not None and call.task is None:
                await _spend(call, call.spends)
            result = await handler(call)
            if call.questions is not None:
                _refuse_unasked(call)
            if call.asker is not None:
                result = _settle(call, result)
            if isinstance(result, Encoded):
                return 200, encode_result(call.id, result.body)
            if not isinstance(result, Result):  # pyright: ignore[reportUnnecessaryIsInstance] - middleware may return anything
                return self._complete_answer(result)
            if result.result_type is not None:
                self._check_type(call, result.result_type)
            return 200, encode_result(call.id, call.seal(result))
        except ProtocolError as error:
            return await self._conclude(call, error)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            # The call was not cancelled: the handler raised this error, or awaited something that was cancelled.
            return self.fail(call, error)
        except BaseException as error:  # noqa: BLE001 - no exception of a handler may end the process
            return await self._end(call, error)
        finally:
            call.end()
            if call.own_connection is not None:
                await call.own_connection.close()

    def _complete_answer(self, result: Any) -> Answer:
        """Return the answer of a call that has become a task. Raise UsageError if middleware has returned no result."""
        if isinstance(result, CompleteAnswer):
            return result
        raise no_result(self._middleware[0] if self._middleware else None, result)

    async def _end(self, call: Call, error: BaseException) -> Answer:
        """Answer a call that raised `error`, which is not a ProtocolError.

        If a handler raised the exception in order to ask the client, the answer contains the questions. Otherwise the
        call has failed.
        """
        signal = signal_in(error)
        if isinstance(signal, InputRequired):
            return await self._ask(call, signal)
        round = round_of(call)
        if round is not None and round.is_over:  # the handler has replaced the signal with another exception
            return await self._ask(call, None)
        return await self._conclude(call, signal or error)

    async def _conclude(self, call: Call, error: BaseException) -> Answer:
        """Answer a call that failed with `error`: with a JSON-RPC error, or with a result about the failure."""
        try:
            return await self._answer_failed(call, error)
        except Exception as fault:  # noqa: BLE001 - of the exception itself, for example of its `__str__`
            return self.fail(call, fault)

    async def _answer_failed(self, call: Call, error: BaseException) -> Answer:
        if type(error) is TypeError and self._middleware:
            error = explain_next(error, self._middleware)
        if self._translations is not None:
            answer = await self._translations.translate(call, error)
            if isinstance(answer, Result):
                return self._answer_with(call, answer)
            error = answer
        if isinstance(error, BackendUnavailable):
            _seldom.warning("A call was refused, because the backend is not available: %s", error)
            error = await _refuse_without_backend(call)
        if isinstance(call.envelope.params, CallToolParams) and (failed := failure_of(call, error)) is not None:
            return 200, encode_result(call.id, call.seal(failed))
        if call.spends is not None and isinstance(error, InvalidParams | MissingCapability | ClaimsFull | Busy):
            await _give_back(call, call.spends)  # the client may repeat the call, perhaps with other answers
        return self.refuse(call, error) if isinstance(error, ProtocolError) else self.fail(call, error)

    def _answer_with(self, call: Call, result: Result) -> Answer:
        """Answer a call with the result that an `on_error` function returned."""
        try:
            if result.result_type is not None:
                self._check_type(call, result.result_type)
            return 200, encode_result(call.id, call.seal(copy(result)))
        except Exception as error:  # noqa: BLE001 - a result that is not JSON is logged for the developer
            return self.fail(call, error)

    def _admit(self, call: Call) -> Handler:
        """Check a call and return the handler of its method. Raises ProtocolError if the server refuses the call."""
        name, params = call.envelope.method.name, call.envelope.params
        if isinstance(params, InputParams) and params.request_state is not None:
            asker_of(call)  # decrypts the state, and refuses an invalid one
        check = self._checks.get(name)
        if check is not None and call.task is None:  # a task was checked before it was created
            check(call)
        tracing = self._tracing
        handler = (self._handlers if tracing is None or not tracing.is_on() else self._traced).get(name)
        if handler is None:
            raise MethodNotFound("Method not found")
        if self._tasks is not None and name == "tools/call":
            return self._tasks.handler(call, handler)
        return handler

    def _check_type(self, call: Call, result_type: str) -> None:
        """Raise UsageError unless `result_type` belongs to the core protocol or to an extension the client declared."""
        declared = (extension for extension in self._extensions if extension.declared_by(call))
        if result_type in CORE_TYPES or any(result_type in extension.result_types for extension in declared):
            return
        raise UsageError(
            f"{call.described} returned a result of type {result_type!r}, which is neither of the core protocol "
            "nor of an extension that the client declared. Check Extension.declared_by(call) before returning one."
        )

    async def _ask(self, call: Call, signal: InputRequired | None) -> Answer:
        """Answer a call whose handler has questions for the client.

        In the stateless era, the answer contains the questions. In a session, the server sends the questions now, waits
        for the answers, and runs the call again. `signal` contains the questions, or is None if the questions are in
        the `Round` of the call.
        """
        try:
            if signal is not None and await asker_of(call).settle(signal):
                _restore(call)
                return await Dispatcher.run(self, call)  # not LoggedDispatcher.run: the call is logged once
            return 200, encode_result(call.id, call.seal(questions(call, signal)))
        except ProtocolError as error:
            return await self._conclude(call, error)
        except QuestionFailed as error:
            return self.refuse(call, InternalError(f"A question was not answered. {error}"))
        except Exception as error:  # noqa: BLE001 - logged: the journal is too large, or a state is not JSON
            call.blamed = call.described
            return self.fail(call, error)

    def fail(self, call: Call, error: BaseException) -> Answer:
        """Log an unexpected error of a call, and return an internal error as the answer."""
        return self.refuse(call, InternalError(report(call.blamed or call.method, error, debug=self._services.debug)))

    def refuse(self, call: Call, error: ProtocolError) -> Answer:
        """Return the HTTP status and the encoded error response for a call.

        Before that, call `call.undo` if it is set, for example to reset a handshake that failed.
        """
        if call.undo is not None:
            call.undo()
        wire = call.era.refuse(error, opened=True)
        if wire.code == InternalError.code != error.code:  # the era hides it from the client, so it is logged
            wire.message = report_code(call.blamed or call.described, error, debug=self._services.debug)
        if isinstance(error, InsufficientScope | Busy | ClaimsFull):
            wire.status = error.status
        try:
            return wire.status, encode_error(call.id, wire.code, wire.message, wire.data)
        except Exception as fault:  # noqa: BLE001 - `data` can be anything, for example nested too deeply
            text = report(f"The `data` of the error that {call.method} raised", fault, debug=self._services.debug)
            return wire.status, encode_error(call.id, wire.code, wire.message, text)


def _restore(call: Call) -> None:
    """Discard the changes that middleware made to the arguments, before a call runs again."""
    call.blamed = None
    if isinstance(call.envelope.params, CallToolParams):
        call.envelope.params.forget_arguments()


def _refuse_unasked(call: Call) -> None:
    """Raise UsageError if the handler forgot to await a question."""
    for coroutine, what, where in call.questions or ():
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()  # prevents a second warning by Python
            call.blamed = call.described
            raise UsageError(
                f"{what} at {where} has no `await`, so it was never done, and its value is only a coroutine. "
                f"Write `await {what}`; in a plain function `ctx.wait({what})`."
            )


def _settle(call: Call, result: Result | Encoded) -> Result | Encoded:
    """Return a result with the questions of the call if some are unanswered; else return `result`."""
    round = round_of(call)
    if round is None:
        return result
    if round.is_over:
        return round.result()
    if not getattr(result, "is_error", False):  # a handler that failed may not have reached its questions
        round.warn_if_changed(is_done=True)
    return result


async def _spend(call: Call, state: str) -> None:
    """Mark the single-use `requestState` of a call as used. Raises StateRefused if it was used before."""
    try:
        is_spent = await call.services.once_store.spend(state, peer=call.peer)
    except BaseException:
        call.spends = None  # perhaps used by another call meanwhile, and only that call may give it back
        raise
    if not is_spent:
        call.spends = None  # used by another call, and only that call may give it back
        raise StateRefused


async def _give_back(call: Call, state: str) -> bool:
    """Mark the single-use `requestState` of a refused call as unused, so that the client can repeat the call.

    Does nothing and returns False if a function of `ctx.once` has already run in the call. Also returns False if the
    backend fails.
    """
    round = round_of(call)
    if round is None or not round.abandon():
        return False
    try:
        await call.services.once_store.give_back(state)
    except Exception:
        log.exception("The backend failed: a `requestState` stays marked as used, and its call has to begin again.")
        return False
    return True


async def _refuse_without_backend(call: Call) -> InternalError:
    """Return the error for a call that has failed because the backend is not available.

    The client may repeat the call, unless its single-use `requestState` is used and cannot be given back.
    """
    if call.spends is None or await _give_back(call, call.spends):
        return Busy("The server's backend is not available. Try again.")
    return InternalError(
        "The server's backend is not available, and this round of the call cannot be repeated. Begin the call again."
    )


def _compose(name: str, handler: Handler, middleware: Sequence[Middleware], check: Check | None) -> Handler:
    """Return the handler of the method `name`, wrapped in all middleware. The first middleware is the outermost."""
    is_list = name in METHODS and METHODS[name].params is PaginatedParams
    chain: Handler = partial(_plain, handler) if middleware and is_list else handler
    if middleware and check is not None:
        chain = partial(_rechecked, check, chain)
    for layer in reversed(middleware[1:]):
        chain = partial(_checked_step, layer, chain)
    return partial(_step, middleware[0], chain) if middleware else chain


def _rechecked(check: Check, handler: Handler, call: Call) -> Awaitable[Result | Encoded]:
    return _check_again(check, handler, call) if call.params_seen else handler(call)


async def _check_again(check: Check, handler: Handler, call: Call) -> Result | Encoded:
    """Check a call again and run its handler, because middleware may have changed the params of the call."""
    spent = call.spends
    check(call)
    if call.spends is not None and spent is None:
        await _spend(call, call.spends)
    result: Result | Encoded = await handler(call)
    return result


async def _plain(handler: Handler, call: Call) -> Result:
    """Run the handler of a list method; return a copy of its result, because middleware may change the result."""
    result = await handler(call)
    return copy(result.result) if isinstance(result, Encoded) else result


def _step(layer: Middleware, chain: Handler, call: Call) -> Awaitable[Result | Encoded]:
    """Call one middleware without checking its result. `Dispatcher.run` checks the result of the first middleware."""

    def following() -> Awaitable[Any]:
        return chain(call)

    return layer(call.context, following)


async def _checked_step(layer: Middleware, chain: Handler, call: Call) -> Result | Encoded:
    result: Any = await _step(layer, chain, call)
    if not isinstance(result, (Result, Encoded)):  # a tuple, because a union would be created with each call
        raise no_result(layer, result)
    return result


class Checks:
    """The functions that check calls before any user code runs. `by_method` maps a method name to its function."""

    def __init__(self, tools: Tools, resources: Resources, prompts: Prompts, most_uris: int) -> None:
        self._prompts = prompts
        self._resources = resources
        self._most_uris = most_uris
        self.by_method: dict[str, Check] = {
            "tools/call": tools.check,
            "resources/read": self._read,
            "resources/subscribe": self._subscribe,
            "subscriptions/listen": self._listen,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    def _read(self, call: Call) -> None:
        self._subscribe(call)
        if self._resources.has_needs:
            entry = self._resources.find(cast("ReadResourceParams", call.envelope.params).uri)
            require_needs(call, () if entry is None else entry.needs)

    def _subscribe(self, call: Call) -> None:
        self._require_scopes(call, [cast("ReadResourceParams", call.envelope.params).uri])

    def _listen(self, call: Call) -> None:
        wanted = cast("ListenParams", call.envelope.params).notifications.resource_subscriptions or ()
        if len(wanted) <= self._most_uris:  # a longer list is refused later
            self._require_scopes(call, wanted)

    def _require_scopes(self, call: Call, uris: Iterable[str]) -> None:
        if self._resources.scopes:
            require_scopes(call, dict.fromkeys(chain.from_iterable(map(self._resources.scopes_of, uris))))

    def _get_prompt(self, call: Call) -> None:
        prompt = self._prompts.get(cast("GetPromptParams", call.envelope.params).name)
        if prompt is not None:
            require_scopes(call, prompt.scopes)
            require_needs(call, prompt.needs)

    def _complete(self, call: Call) -> None:
        ref = cast("CompleteParams", call.envelope.params).ref
        named = (
            self._prompts.get(ref.name) if isinstance(ref, PromptReference) else self._resources.get_template(ref.uri)
        )
        require_scopes(call, () if named is None else named.scopes)


_TASKS_ARE_BUILT_IN = "Calls of tools with task='optional' can become tasks."


class Extension:
    """Base class of protocol extensions. Derive a class, and pass an instance to `Server(extensions=[...])`.

    >>> class Echo(Extension):
    ...     id = "com.example/echo"
    >>> Echo().settings
    {}
    """

    id: ClassVar[str] = ""  # identifier, such as "com.example/echo"
    result_types: ClassVar[frozenset[str]] = frozenset()  # values of `resultType` that the extension adds

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the server declares for this extension in `capabilities.extensions`."""
        return {}

    def methods(self) -> Sequence[tuple[Method, Handler]]:
        """Return the methods that the extension adds, each with its handler."""
        return ()

    def middleware(self) -> Sequence[Middleware]:
        """Return the middleware that the extension adds to every call."""
        return ()

    def declared_by(self, call: Call) -> bool:
        """Return whether the client of this call declared this extension."""
        return self.id in (call.envelope.client_capabilities.extensions or {})

    def require(self, call: Call) -> None:
        """Raise UndeclaredExtension if the client did not declare this extension.

        A server without sessions does not know what clients of the session era declared, so it accepts their calls.
        """
        if call.knows_client and not self.declared_by(call):
            raise UndeclaredExtension(call.method, self.id)


def check_extensions(extensions: Sequence[Extension]) -> None:
    """Raise RegistrationError if an extension has a malformed id, or uses a name that belongs to another.

    These are ids and methods. The names of the tasks extension belong to it, also on a server without tasks.
    """
    taken: dict[str, str] = dict.fromkeys(METHODS, "the core protocol")
    ids = [extension.id for extension in extensions]
    for extension in extensions:
        name = type(extension).__name__
        try:
            check_extension_id(extension.id)
        except ValueError as error:
            raise RegistrationError(f"{name}.id is {extension.id!r}: {error}") from None
        if extension.id == TASKS_EXTENSION:
            raise RegistrationError(f"{name}.id is {extension.id!r}, which Weft has itself. {_TASKS_ARE_BUILT_IN}")
        if ids.count(extension.id) > 1:
            raise RegistrationError(f"The extension {extension.id!r} is given twice; once is enough.")
        if TASK_RESULT in extension.result_types:
            what = f"{name} adds the result type {TASK_RESULT!r}, which belongs to {TASKS_EXTENSION!r}"
            raise RegistrationError(f"{what}. Rename it. {_TASKS_ARE_BUILT_IN}")
        for method, _ in extension.methods():
            is_of_tasks = f"{method.name}/".startswith(TASK_METHODS)
            owner = TASKS_EXTENSION if is_of_tasks else taken.get(method.name)
            if owner is not None:
                raise RegistrationError(f"{name} adds the method {method.name!r}, which belongs to {owner}. Rename it.")
            taken[method.name] = extension.id
