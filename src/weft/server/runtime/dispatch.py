"""Run one call: method table, checks, middleware, tracing, extensions, and the one error boundary.

`Dispatcher.run` turns one opened call into one encoded answer. It never raises, except when its task is cancelled.
Translations (`server.on_error`) run at the boundary, outside of all middleware. Checks run before anything of the user:
scopes, and the capabilities that a feature needs. A client that did not declare an extension is served as if the
extension were not there."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

from weft.eras.base import CORE_TYPES
from weft.errors import (
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
from weft.protocol.names import check_extension_id
from weft.protocol.revisions import METHODS, Method
from weft.protocol.sealing import StateRefused
from weft.server.asking.rounds import InputRequired, asker_of, questions, round_of, signal_in
from weft.server.calls.call import Call, Handler, require_needs
from weft.server.calls.services import Services
from weft.server.diagnostics import caller, is_users, location, report, report_code, target, with_article
from weft.server.features.registry import Encoded, InsufficientScope, require_scopes
from weft.server.features.tools import failure_of
from weft.server.runtime.load import Busy
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

if TYPE_CHECKING:
    from weft.server.features.prompts import Prompts
    from weft.server.features.resources import Resources
    from weft.server.features.tools import Tools


def check_middleware(layer: Any) -> None:
    """Refuse a plain `def`: its `try` around `next()` would never catch anything.

    A function is taken that returns what another `async def` does, where that can be seen: it wraps one, is a lambda,
    or its annotation says so.
    """
    code = target(layer)
    returned = str(getattr(code, "__annotations__", {}).get("return", ""))
    if (
        not inspect.isfunction(code)  # written in C, or a class: nothing is known of it
        or inspect.iscoroutinefunction(code)
        or inspect.iscoroutinefunction(layer)  # marked as one
        or code.__name__ == "<lambda>"
        or any(word in returned for word in ("Awaitable", "Coroutine", "Future", "Task"))
    ):
        return
    raise UsageError(f"{_named(layer)} is a plain `def`; write `async def` and `return await next()`.")


def explain_next(
    error: BaseException, middleware: Sequence[Callable[..., Any]], chain: Callable[..., Any]
) -> BaseException:
    """Say of a TypeError that it comes of an argument to `next`, where it does: it tells of Weft's insides."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or not is_users(frames[-1].f_code.co_filename):
        return error
    if not str(error).startswith(tuple(f"{name}()" for name in _names_in(chain))):
        return error
    codes = [frame.f_code for frame in frames]
    layers = [layer for layer in middleware if getattr(target(layer), "__code__", None) in codes]
    if not layers:
        return error
    return UsageError(
        f"{_named(layers[-1])} gave next() an argument; it takes none. Write `await next()`; change `ctx.params` to "
        "change the call."
    ).with_traceback(error.__traceback__)


def _names_in(chain: Any) -> set[str]:
    """The names of all functions that a chain consists of, as Python has them in a TypeError."""
    if isinstance(chain, partial):
        parts = cast("partial[Any]", chain)
        return {name for part in (parts.func, *parts.args) for name in _names_in(part)}
    return {getattr(chain, "__qualname__", type(chain).__qualname__)}


def no_result(layer: Any, returned: object) -> UsageError:
    """Make the error of middleware that returned something else than a result."""
    if returned is None:
        return UsageError(f"{_named(layer)} returned nothing. Write `return await next()`.")
    if inspect.isawaitable(returned):
        if isinstance(returned, Coroutine):
            cast("Coroutine[Any, Any, Any]", returned).close()  # or Python would complain of it as well
        return UsageError(f"{_named(layer)} returned a coroutine, which was not awaited. Write `return await next()`.")
    return UsageError(
        f"{_named(layer)} returned {with_article(type(returned).__name__)}, which is no result. Return what "
        "`await next()` gave, or a CallToolResult."
    )


def _named(layer: Any) -> str:
    name = getattr(layer, "__name__", None) or getattr(getattr(layer, "func", None), "__name__", None)
    return f"The middleware {(name or type(layer).__name__)!r} ({location(layer)})"


E = TypeVar("E", bound=Exception)

Translation: TypeAlias = Callable[[E], Any] | Callable[[E, Any], Any]  # the exception; the exception and the Context

_ANSWERS = (ToolError, ProtocolError)

_RETURNS = (
    "Return a text, a ToolError, a ProtocolError or a result; or raise the exception again, to leave it as it is."
)


class Translations:
    """Functions by the class of the exceptions that they translate. A value: one more makes a new one."""

    def __init__(self, functions: Mapping[type[Exception], tuple[Callable[..., Any], bool]] | None = None) -> None:
        self._functions = dict(functions or {})  # and whether each takes the Context as well

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """All that translate."""
        return [fn for fn, _ in self._functions.values()]

    def with_one(self, kind: type[Exception], fn: Callable[..., Any]) -> Translations:
        """Return these and one more; UsageError where it cannot be one."""
        if kind in self._functions:
            raise UsageError(f"server.on_error({kind.__name__}) is registered twice; one function is enough.")
        return Translations({**self._functions, kind: (fn, _takes_context(kind, fn))})

    async def translate(self, call: Call, error: BaseException) -> Result | BaseException:
        """Return what the client gets in place of an exception; the exception itself where nothing translates it."""
        error, kind = self._find(call, error)
        if kind is None:
            return error
        fn, takes_context = self._functions[kind]
        described = f"The function for on_error({kind.__name__}) ({location(fn)})"
        trace = error.__traceback__
        try:
            given = (error, call.context) if takes_context else (error,)
            return _as_answer(call, await call.services.threads.call(fn, given), described)
        except _ANSWERS as answer:
            return _as_answer(call, answer, described)
        except BaseException as fault:
            if isinstance(fault, asyncio.CancelledError) and _is_cancelled():
                raise
            if fault is error:  # raised again: as it was, or it would hold on to the frames of its translation
                return error.with_traceback(trace)
            call.blamed = described
            return fault

    def _find(self, call: Call, error: BaseException) -> tuple[BaseException, type[Exception] | None]:
        """Find the class by which an exception is translated: its own, else the nearest above it."""
        kind = self._class_for(call, error)
        lone = error
        while kind is None and isinstance(lone, BaseExceptionGroup):
            members = cast("BaseExceptionGroup[BaseException]", lone).exceptions
            if len(members) != 1:
                return error, None
            lone = members[0]  # a task group has wrapped it
            kind = self._class_for(call, lone)
        return (error, None) if kind is None else (lone, kind)

    def _class_for(self, call: Call, error: BaseException) -> type[Exception] | None:
        is_answer = isinstance(error, _ANSWERS)
        if isinstance(error, ProtocolError) and call.blamed is None:
            return None  # the request was refused: it never reached a feature
        for kind in type(error).__mro__:
            if is_answer and kind is WeftError:
                return None
            if kind in self._functions:
                return kind
        return None


def check_exceptions(kind: object) -> None:
    """UsageError unless this is a class of exceptions; a function is what stands below a decorator without one."""
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
    """What a translation returned, as a result or as an exception whose answer is known."""
    is_tool = isinstance(call.envelope.params, CallToolParams)
    if isinstance(answer, str):
        answer = ToolError(answer)
    if isinstance(answer, ToolError):
        return answer if is_tool else InternalError(str(answer))
    if isinstance(answer, ProtocolError):
        return answer
    if isinstance(answer, Result) and (is_tool or not isinstance(answer, CallToolResult)):
        return answer
    call.blamed = described
    if isinstance(answer, Result):
        return UsageError(f"It returned a CallToolResult to {call.method}, which is no call of a tool. {_RETURNS}")
    return UsageError(f"It returned something of the type {type(answer).__name__!r}. {_RETURNS}")


def _takes_context(kind: type[Exception], fn: Callable[..., Any]) -> bool:
    """Whether a function is called as `fn(error, ctx)`; False for `fn(error)`, UsageError for neither."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return False
    for arguments in (("error",), ("error", "ctx")):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise UsageError(
        f"server.on_error({kind.__name__}) was given a function that cannot be called ({location(fn)}). Write "
        "`def fn(error)` or `def fn(error, ctx)`."
    )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())


_UNKNOWN = object()


def find_tracing() -> Tracing | None:
    """Return what traces calls; None where OpenTelemetry is not installed."""
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.trace") is None:
        return None
    return Tracing()


class Tracing:
    """Makes spans while a tracer provider is set.

    Many programs have OpenTelemetry installed because a framework brings it, and no provider. A provider may be set at
    any time. So `is_on` is asked with every call, and costs next to nothing.
    """

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace: Any = trace
        trace.get_tracer_provider()  # loads the one that OTEL_PYTHON_TRACER_PROVIDER names

    def is_on(self) -> bool:
        """Return whether a tracer provider is set.

        The public question reads the environment each time, which is 2 % of a call. So the module's own variable is
        read first, where this version has it.
        """
        trace = self._trace
        if getattr(trace, "_TRACER_PROVIDER", _UNKNOWN) is None:
            return False
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    async def around(self, ctx: Any, next: Any) -> Result:
        """Make a span around one call; a middleware."""
        from opentelemetry import propagate, trace

        meta = ctx.params.meta
        carrier = {
            key: value
            for key in ("traceparent", "tracestate", "baggage")
            if (value := getattr(meta, key, None) or ctx.headers.get(key))
        }
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

Answer: TypeAlias = tuple[int, bytes]  # an HTTP status and an encoded response

Check: TypeAlias = Callable[[Call], None]

Next: TypeAlias = Callable[[], Awaitable[Result]]

Middleware: TypeAlias = Callable[[Any, Next], Awaitable[Result]]  # called with the Context of the call


class Dispatcher:
    """The method table of one server, composed with its middleware once.

    `checks` are what a request must pass before anything of the user's runs, middleware included: what they refuse must
    still find the response unsent, for its HTTP status (ledger 0.2, steps 10 and 11). What middleware may have made of
    the params passes them again: they hold for the tool that runs.
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
    ) -> None:
        self._services = services
        self._extensions = tuple(extensions)
        self._translations = translations
        self._checks = dict(checks or {})
        self._middleware = tuple(middleware)
        self._handlers = {
            name: _compose(name, handler, middleware, self._checks.get(name)) for name, handler in handlers.items()
        }
        self._tracing = tracing
        self._traced: dict[str, Handler] = {}  # the same, with a span around each
        if tracing is not None:
            self._traced = {method: partial(_step, tracing.around, chain) for method, chain in self._handlers.items()}

    async def run(self, call: Call) -> Answer:
        """Serve one call."""
        try:
            handler = self._admit(call)
            if call.spends is not None:
                await _spend(call, call.spends)
            result = await handler(call)
            if call.questions is not None:
                _refuse_unasked(call)
            if call.asker is not None:
                result = _settle(call, result)
            if isinstance(result, Encoded):
                return 200, encode_result(call.id, result.body)
            if not isinstance(result, Result):  # pyright: ignore[reportUnnecessaryIsInstance] - middleware may lie
                raise no_result(self._middleware[0] if self._middleware else None, result)
            if result.result_type is not None:
                self._check_type(call, result.result_type)
            return 200, encode_result(call.id, call.seal(result))
        except ProtocolError as error:
            return await self._conclude(call, error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: the handler raised it, or awaited something that was cancelled (R1).
            return self.fail(call, error)
        except BaseException as error:  # noqa: BLE001 - R1: nothing a handler raises ends the process
            return await self._end(call, error)
        finally:
            call.end()
            if call.own_connection is not None:
                await call.own_connection.close()

    async def _end(self, call: Call, error: BaseException) -> Answer:
        """The answer to a call that ended with what may be meant for the client, or with what nobody expected."""
        signal = signal_in(error)
        if isinstance(signal, InputRequired):
            return await self._ask(call, signal)
        round = round_of(call)
        if round is not None and round.is_over:  # the handler made something else of the signal
            return await self._ask(call, None)
        return await self._conclude(call, signal or error)

    async def _conclude(self, call: Call, error: BaseException) -> Answer:
        """The answer to a call that failed: a result that the model reads, or an error."""
        if type(error) is TypeError and self._middleware:
            error = explain_next(error, self._middleware, self._handlers[call.method])
        if self._translations is not None:
            answer = await self._translations.translate(call, error)
            if isinstance(answer, Result):
                return self._answer_with(call, answer)
            error = answer
        if isinstance(call.envelope.params, CallToolParams) and (told := failure_of(call, error)) is not None:
            return 200, encode_result(call.id, call.seal(told))
        return await self._turn_down(call, error if isinstance(error, ProtocolError) else self._fault(call, error))

    def _answer_with(self, call: Call, result: Result) -> Answer:
        """The answer that a function of `on_error` made itself."""
        try:
            if result.result_type is not None:
                self._check_type(call, result.result_type)
            return 200, encode_result(call.id, call.seal(copy(result)))
        except Exception as error:  # noqa: BLE001 - a result that is no JSON: the developer's to know
            return self.fail(call, error)

    def _admit(self, call: Call) -> Handler:
        """The handler of a call that has passed everything it must pass before anything runs."""
        name, params = call.envelope.method.name, call.envelope.params
        if isinstance(params, InputParams) and params.request_state is not None:
            asker_of(call)  # opens the state: one that is not ours is refused (MRTR-10)
        check = self._checks.get(name)
        if check is not None:
            check(call)
        tracing = self._tracing
        handler = (self._handlers if tracing is None or not tracing.is_on() else self._traced).get(name)
        if handler is None:
            raise MethodNotFound("Method not found")
        return handler

    def _check_type(self, call: Call, result_type: str) -> None:
        """A client gets results of the core's types and of extensions that it declared for this call (JRPC-10)."""
        declared = (extension for extension in self._extensions if extension.declared_by(call))
        if result_type in CORE_TYPES or any(result_type in extension.result_types for extension in declared):
            return
        raise UsageError(
            f"{call.described} returned a result of type {result_type!r}, which is neither the core's nor of an "
            "extension that the client declared. Check Extension.declared_by(call) before returning one."
        )

    def _fault(self, call: Call, error: BaseException) -> InternalError:
        return InternalError(report(call.blamed or call.method, error, debug=self._services.debug))

    async def _ask(self, call: Call, signal: InputRequired | None) -> Answer:
        """The answer that asks, in place of a result; or the result, where the client can be asked meanwhile."""
        try:
            if signal is not None and await asker_of(call).settle(signal):
                _restore(call)
                return await Dispatcher.run(self, call)  # the same call, which is logged once
            return 200, encode_result(call.id, call.seal(questions(call, signal)))
        except ProtocolError as error:
            return await self._conclude(call, error)
        except QuestionFailed as error:
            return self.refuse(call, InternalError(f"A question was not answered. {error}"))
        except Exception as error:  # noqa: BLE001 - a journal too large, a state that is not JSON: the developer's to know
            return self.refuse(call, InternalError(report(call.described, error, debug=self._services.debug)))

    async def _turn_down(self, call: Call, error: ProtocolError) -> Answer:
        """The answer to a call that may be made again, with other answers or capabilities."""
        if call.spends is not None and isinstance(error, InvalidParams | MissingCapability):
            await _give_back(call, call.spends)
        return self.refuse(call, error)

    def fail(self, call: Call, error: BaseException) -> Answer:
        """The answer to a call that ended with what nobody expected."""
        return self.refuse(call, self._fault(call, error))

    def refuse(self, call: Call, error: ProtocolError) -> Answer:
        """The answer to a call that failed."""
        if call.undo is not None:
            call.undo()
        wire = call.era.refuse(error, opened=True)
        if wire.code == InternalError.code != error.code:  # the era masks it: then nobody would ever know
            wire.message = report_code(call.blamed or call.described, error, debug=self._services.debug)
        if isinstance(error, InsufficientScope | Busy):
            wire.status = error.status
        try:
            return wire.status, encode_error(call.id, wire.code, wire.message, wire.data)
        except (TypeError, ValueError) as fault:
            text = report(f"The `data` of the error that {call.method} raised", fault, debug=self._services.debug)
            return wire.status, encode_error(call.id, wire.code, wire.message, text)


def _restore(call: Call) -> None:
    """Have a call that is run again begin with what its client sent: middleware changes that once more."""
    call.blamed = None
    if isinstance(call.envelope.params, CallToolParams):
        call.envelope.params.forget_arguments()


def _refuse_unasked(call: Call) -> None:
    """Fail a call whose handler forgot to await a question: it went on as if that were answered."""
    forgotten = call.forgotten_question()
    if forgotten is not None:
        what, where = forgotten
        call.blamed = call.described
        raise UsageError(
            f"{what} at {where} has no `await`, so it was never asked or done, and what it returned means nothing. "
            f"Write `await {what}`; in a plain function `ctx.wait({what})`."
        )


def _settle(call: Call, result: Result | Encoded) -> Result | Encoded:
    """A handler that asked: it cannot complete while a question is open, whatever it returned."""
    round = round_of(call)
    if round is None:
        return result
    if round.is_over:
        return round.result()
    if not getattr(result, "is_error", False):  # what failed had no chance to ask
        round.warn_if_changed()
    return result


async def _spend(call: Call, state: str) -> None:
    """Use up the state of this call, before anything runs (MRTR-14)."""
    if not await call.services.once_store.spend(state):
        call.spends = None  # it is not this call's to give back
        raise StateRefused


async def _give_back(call: Call, state: str) -> None:
    """A state is not used up by answers that were refused, unless something happened before that must not again."""
    round = round_of(call)
    if round is None or not round.abandon():
        return
    try:
        await call.services.once_store.give_back(state)
    except Exception:
        log.exception("The backend failed: a `requestState` stays used up, and its call has to begin anew.")


def _compose(name: str, handler: Handler, middleware: Sequence[Middleware], check: Check | None) -> Handler:
    """Put the middleware around the handler of a method, the first outermost."""
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
    """Serve a call whose params middleware may have changed: it may be one of another tool now."""
    spent = call.spends
    check(call)
    if call.spends is not None and spent is None:
        await _spend(call, call.spends)
    result: Result | Encoded = await handler(call)
    return result


async def _plain(handler: Handler, call: Call) -> Result:
    """Serve a list: its pages are kept as bytes, but middleware sees results, and may change them."""
    result = await handler(call)
    return copy(result.result) if isinstance(result, Encoded) else result


def _step(layer: Middleware, chain: Handler, call: Call) -> Awaitable[Result | Encoded]:
    """Call the outermost middleware. The dispatcher looks at what it returns, which saves a coroutine."""
    following: Any = partial(chain, call)
    return layer(call.context, following)


async def _checked_step(layer: Middleware, chain: Handler, call: Call) -> Result | Encoded:
    result: Any = await _step(layer, chain, call)
    if not isinstance(result, (Result, Encoded)):  # a tuple: a union would be made with each call
        raise no_result(layer, result)
    return result


def checks_of(tools: Tools, resources: Resources, prompts: Prompts, most_uris: int) -> dict[str, Check]:
    """Return the checks of a server, by method."""
    checks = _Checks(resources, prompts, most_uris)
    return {
        "tools/call": tools.check,
        "resources/read": checks.read,
        "resources/subscribe": checks.subscribe,
        "subscriptions/listen": checks.listen,
        "prompts/get": checks.fill,
        "completion/complete": checks.complete,
    }


class _Checks:
    def __init__(self, resources: Resources, prompts: Prompts, most_uris: int) -> None:
        self._prompts = prompts
        self._resources = resources
        self._most_uris = most_uris

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


class Extension:
    """Derive from this, say what is added, and give an instance to `Server(extensions=[...])`.

    >>> class Echo(Extension):
    ...     id = "com.example/echo"
    >>> Echo().settings
    {}
    """

    id: ClassVar[str] = ""
    result_types: ClassVar[frozenset[str]] = frozenset()  # values of `resultType` beyond the core's

    @property
    def settings(self) -> Mapping[str, Any]:
        """What is declared under the identifier in `capabilities.extensions`."""
        return {}

    def methods(self) -> Sequence[tuple[Method, Handler]]:
        """The methods that are added."""
        return ()

    def middleware(self) -> Sequence[Middleware]:
        """What goes around every call."""
        return ()

    def declared_by(self, call: Call) -> bool:
        """Whether the client declared this extension for this call."""
        return self.id in (call.envelope.client_capabilities.extensions or {})

    def require(self, call: Call) -> None:
        """Refuse a call of this extension's methods by a client that did not declare it (VER-06).

        Where a handshake is not remembered, the call itself has to do: who calls the method knows the extension.
        """
        if call.knows_client and not self.declared_by(call):
            raise UndeclaredExtension(call.method, self.id)


def check_extensions(extensions: Sequence[Extension]) -> None:
    """Refuse an identifier that is not one (VER-05), and what is there twice or belongs to the core."""
    taken: dict[str, str] = dict.fromkeys(METHODS, "the core protocol")
    seen: set[str] = set()
    for extension in extensions:
        name = type(extension).__name__
        try:
            check_extension_id(extension.id)
        except ValueError as error:
            raise RegistrationError(f"{name}.id is {extension.id!r}: {error}") from None
        if extension.id in seen:
            raise RegistrationError(f"The extension {extension.id!r} is given twice; once is enough.")
        seen.add(extension.id)
        for method, _ in extension.methods():
            if method.name in taken:
                raise RegistrationError(
                    f"{name} adds the method {method.name!r}, which belongs to {taken[method.name]}. Name it otherwise."
                )
            taken[method.name] = extension.id
