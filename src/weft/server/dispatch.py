"""The way of a call: the method table, the middleware, and the sole error boundary.

`run` turns one opened call into one encoded answer and never raises, except when its task is cancelled: then whoever
runs it knows whether there is an answer to send (`fail`). Whatever a handler does, the process and the other calls go
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.eras.base import CORE_TYPES
from weft.errors import (
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingCapability,
    ProtocolError,
    QuestionFailed,
    UsageError,
)
from weft.jsonrpc import encode_error, encode_result
from weft.protocol.revisions import METHODS
from weft.protocol.sealing import StateRefused
from weft.server.asks.rounds import InputRequired, questions, signal_in
from weft.server.auth.scopes import InsufficientScope
from weft.server.call import Call
from weft.server.context import Context
from weft.server.faults import report, report_code
from weft.server.features.pages import Encoded
from weft.server.features.tools import failure_of
from weft.server.layers import explain_next, no_result
from weft.server.telemetry import Tracing
from weft.server.translations import Translations
from weft.server.transports.load import Busy
from weft.types.base import Result
from weft.types.request import InputParams, PaginatedParams
from weft.types.tools import CallToolParams

if TYPE_CHECKING:
    from weft.server.app import Server

log = logging.getLogger("weft.dispatch")

__all__ = ["Answer", "Check", "Dispatcher", "Handler", "Middleware", "Next"]

Answer: TypeAlias = tuple[int, bytes]  # an HTTP status and an encoded response
Handler: TypeAlias = Callable[[Call], Awaitable[Result | Encoded]]
Check: TypeAlias = Callable[[Call], None]
Next: TypeAlias = Callable[[], Awaitable[Result]]
Middleware: TypeAlias = Callable[[Context, Next], Awaitable[Result]]


class Dispatcher:
    """The method table of one server, composed with its middleware once.

    `checks` are what a request must pass before anything of the user's runs, middleware included: what they refuse must
    still find the response unsent, for its HTTP status (ledger 0.2, steps 10 and 11). What middleware may have made of
    the params passes them again: they hold for the tool that runs.
    """

    def __init__(
        self,
        server: Server,
        handlers: Mapping[str, Handler],
        *,
        middleware: Sequence[Middleware] = (),
        tracing: Tracing | None = None,
        checks: Mapping[str, Check] | None = None,
        translations: Translations | None = None,
    ) -> None:
        self._server = server
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
            if call.asked is not None:
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
        if call.round is not None and call.round.is_over:  # the handler made something else of the signal
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
            _ = call.asker  # opens the state: one that is not ours is refused (MRTR-10)
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
        declared = (extension for extension in self._server.extensions if extension.declared_by(call))
        if result_type in CORE_TYPES or any(result_type in extension.result_types for extension in declared):
            return
        raise UsageError(
            f"{call.described} returned a result of type {result_type!r}, which is neither the core's nor of an "
            "extension that the client declared. Check Extension.declared_by(call) before returning one."
        )

    def _fault(self, call: Call, error: BaseException) -> InternalError:
        return InternalError(report(call.blamed or call.method, error, debug=self._server.debug))

    async def _ask(self, call: Call, signal: InputRequired | None) -> Answer:
        """The answer that asks, in place of a result; or the result, where the client can be asked meanwhile."""
        try:
            if signal is not None and await call.asker.settle(signal):
                _restore(call)
                return await Dispatcher.run(self, call)  # the same call, which is logged once
            return 200, encode_result(call.id, call.seal(questions(call, signal)))
        except ProtocolError as error:
            return await self._conclude(call, error)
        except QuestionFailed as error:
            return self.refuse(call, InternalError(f"A question was not answered. {error}"))
        except Exception as error:  # noqa: BLE001 - a journal too large, a state that is not JSON: the developer's to know
            return self.refuse(call, InternalError(report(call.described, error, debug=self._server.debug)))

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
            wire.message = report_code(call.blamed or call.described, error, debug=self._server.debug)
        if isinstance(error, InsufficientScope | Busy):
            wire.status = error.status
        try:
            return wire.status, encode_error(call.id, wire.code, wire.message, wire.data)
        except (TypeError, ValueError) as fault:
            text = report(f"The `data` of the error that {call.method} raised", fault, debug=self._server.debug)
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
    if call.round is None:
        return result
    if call.round.is_over:
        return call.round.result()
    if not getattr(result, "is_error", False):  # what failed had no chance to ask
        call.round.warn_if_changed()
    return result


async def _spend(call: Call, state: str) -> None:
    """Use up the state of this call, before anything runs (MRTR-14)."""
    if not await call.server.claims.spend(state):
        call.spends = None  # it is not this call's to give back
        raise StateRefused


async def _give_back(call: Call, state: str) -> None:
    """A state is not used up by answers that were refused, unless something happened before that must not again."""
    if call.round is None or not call.round.abandon():
        return
    try:
        await call.server.claims.give_back(state)
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
    return await handler(call)


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
