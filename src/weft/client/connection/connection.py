"""Hold one connection to a server: a transport, its era, and everything that comes in.

This module makes single requests (ids, time limits, cancellation), answers the server's own requests, keeps the
standing stream open, and owns all tasks that run beside the callers'. It is the only one that knows both the transport
and the era: `negotiate` finds out which era that is, and `exchange` decides what is done about a refusal.

A request carries the trace in which it was made, where OpenTelemetry is in use.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from weft.client.argument_checks import check_timeout, write_json
from weft.client.callbacks import CallbackQueue, Clock, Clocks, pause
from weft.client.connection.transport import NO_HEADERS, Answer, Refused, Transport
from weft.eras.base import ClientEra
from weft.errors import (
    ConnectionFailed,
    InternalError,
    InvalidAnswer,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    WeftError,
)
from weft.jsonrpc import Frame, encode_error, encode_notification, encode_request, encode_result
from weft.limits import ClientLimits
from weft.net.logs import Seldom, call_line, masked_name
from weft.protocol.names import printable
from weft.types.base import Implementation, LogLevel, RequestId
from weft.types.lifecycle import CancelledParams, ClientCapabilities, ProgressParams

log = logging.getLogger("weft.client")

_STREAM_SECONDS = 0.25  # to wait for the standing stream before the first request
_STREAM_ATTEMPT = (
    7  # a standing stream that stays lost is tried again after the pause of such an attempt: half a minute
)

ProgressCallback = Callable[[ProgressParams], Any]
"""Called with the progress of a request; plain or async."""


class RequestHandlers(Protocol):
    """Answers the requests of the server."""

    capabilities: ClientCapabilities

    async def answer(self, method: str, params: Any = None) -> Any:
        """Return the result of a request of the server; a ProtocolError when it is refused."""
        ...


class _ServerError(msgspec.Struct):
    code: int
    message: str = "no message"
    data: Any = None


_read_error = msgspec.json.Decoder(_ServerError).decode

_read_progress = msgspec.json.Decoder(ProgressParams).decode
_read_cancelled = msgspec.json.Decoder(CancelledParams).decode


def remote_error(frame: Frame) -> RemoteError:
    """Return the error of a response; InvalidAnswer when it has none."""
    try:
        error = _read_error(frame.error if isinstance(frame.error, msgspec.Raw) else b"")
    except msgspec.DecodeError:
        raise InvalidAnswer("The server answered with an error that cannot be read.") from None
    return RemoteError(error.code, error.message, error.data)


def code_and_data(error: Refused | RemoteError) -> tuple[int | None, Any]:
    """Return the code and data of an error; (None, None) where it was no JSON-RPC error."""
    if isinstance(error, Refused):
        if error.frame is None:
            return None, None
        try:
            error = remote_error(error.frame)
        except InvalidAnswer:
            return None, None
    return error.code, error.data


class ClientConnection:
    """One connection."""

    def __init__(
        self,
        transport: Transport,
        era: ClientEra,
        handlers: RequestHandlers,
        info: Implementation,
        limits: ClientLimits,
    ) -> None:
        self.transport = transport
        self.era = era
        self.generation = 0  # counts what was agreed on, one after the other
        self.settling: asyncio.Event | None = None  # set when it is settled what is spoken; None while it is
        self.log_level: LogLevel | None = None
        self.on_notification: Callable[[str, bytes, RequestId | None], None] = _nobody
        self.on_stream_reopened: Callable[[], None] = _nobody  # the standing stream is open again
        self.on_silence: Callable[[ConnectionFailed], None] = _nobody  # nothing will be heard for now: it stays lost
        self.on_over: Callable[[int], Coroutine[Any, Any, None]] = _not_renewed  # greets the server again
        self._handlers = handlers
        self._info = info
        self._limits = limits
        self._ids = itertools.count(1)
        self._clocks = Clocks()  # of the requests under way
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asks: dict[RequestId, asyncio.Task[None]] = {}  # requests of the server being answered
        self._asks_bytes = 0  # of these
        self._gate = asyncio.Semaphore(limits.asks_at_once)
        self._stream: asyncio.Task[None] | None = None
        self._silence: ConnectionFailed | None = None  # why the standing stream ended for good
        self._has_stream = True  # False where the server has no standing stream
        self._is_closed = False
        self._seldom = Seldom(log)  # for what the server can cause at will

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that this client declares."""
        return self._handlers.capabilities

    # --- opening and closing

    async def open(self) -> None:
        """Open the transport."""
        self._check_open()
        transport: Any = self.transport
        if hasattr(transport, "hold"):  # somebody may have to log in, and may take as long as for any question
            transport.hold = lambda: self._held(None)
        await self.transport.open(self._receive, self._lost)

    async def reopen(self) -> None:
        """Start over on the same transport."""
        self._check_open()
        await self.transport.reopen()

    async def change(self, transport: Transport) -> None:
        """Go on over another transport."""
        self._check_open()
        await self.transport.close()
        self.transport = transport
        await self.open()

    async def close(self) -> None:
        """End everything: what waits gets a ConnectionFailed, and no task is left. Again: what is left of it."""
        farewell = None if self._is_closed else self.era.farewell()
        self._is_closed = True
        if self._stream is not None:
            self._stream.cancel()
        try:
            if farewell is not None:
                await self.transport.end_session(farewell)
        finally:  # also when the closing task is cancelled
            try:
                await self.transport.close()
            finally:
                self._clocks.close()
                await self._end_tasks()

    def check_loop(self) -> None:
        """Raise UsageError in another event loop than its own."""
        self._clocks.check_loop()

    def _check_open(self) -> None:
        """Raise ConnectionFailed where the connection is closed."""
        if self._is_closed:
            raise ConnectionFailed(f"The connection to {self.transport.where} was closed.")

    async def _end_tasks(self) -> None:
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            _, late = await asyncio.wait(others, timeout=self._limits.close_seconds)
            if late:
                log.warning("A function that answers %s goes on although it was cancelled.", self.transport.where)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside the callers; it ends with the link."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("Something beside the requests to %s failed.", self.transport.where, exc_info=error)

    def _lost(self, failure: ConnectionFailed) -> None:
        log.debug("%s", failure)
        self.spawn(self._stay_lost(self.generation, failure))

    async def _stay_lost(self, generation: int, failure: ConnectionFailed) -> None:
        """End all listening with the failure, unless somebody reconnects in the time that a stream has for that."""
        for attempt in range(self._limits.resumptions + 1):
            await asyncio.sleep(pause(attempt))
            if self.generation != generation:
                return
        self.on_silence(failure)

    # --- requests

    def next_id(self) -> int:
        """Return an id that no request of this connection had before."""
        return next(self._ids)

    def roundtrip(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        seconds: float | None = None,
        progress: ProgressCallback | None = None,
        is_greeting: bool = False,
    ) -> Coroutine[Any, Any, Answer]:
        """Make a request and return its answer. Raises RemoteError, Refused, RequestTimeout and the like."""
        work = self._roundtrip(method, params, headers, seconds, progress, is_greeting=is_greeting)
        return self._logged(method, params, work) if log.isEnabledFor(logging.INFO) else work

    async def _logged(self, method: str, params: Mapping[str, Any], work: Coroutine[Any, Any, Answer]) -> Answer:
        """Make a request, and write its line into the log, however it ends."""
        era, began = self.era.name, self._clocks.now()
        outcome = "200" if self.transport.stream_per_request else "ok"
        try:
            return await work
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            log.info("%s", call_line(method, _named(params), era, outcome, self._clocks.now() - began))

    async def _roundtrip(
        self,
        method: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        seconds: float | None,
        progress: ProgressCallback | None,
        *,
        is_greeting: bool,
    ) -> Answer:
        if self._is_closed:
            self._check_open()
        limits = self._limits
        request_id = next(self._ids)
        queue = None
        if progress is not None:  # the id is a token that no other active request has
            queue = CallbackQueue(progress, limits.changes_kept, "progress(told)")
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
        if seconds is not None:
            check_timeout(seconds)
        wait = limits.request_seconds if seconds is None else seconds
        clock = self._clocks.start(request_id, wait, limits.total_seconds, queue)
        try:
            message, headers = self._write(request_id, method, params, headers)
            return _checked(await self.transport.request(message, request_id, headers, resumable=self.era.resumes))
        except asyncio.CancelledError:
            self._clocks.stop(request_id)
            is_late = clock.has_run_out()
            if not is_greeting:  # a handshake is never cancelled
                self.give_up(request_id, "timeout" if is_late else "cancelled")
            if queue is not None:
                await queue.stop()
            if not is_late:
                raise
            if clock.failure is not None:
                raise clock.failure from None
            raise RequestTimeout(self._timed_out(_shown(method, params), clock, is_greeting=is_greeting)) from None
        finally:
            self._clocks.stop(request_id)
            del clock  # it knows the task, which would know of its cancellation, which knows this frame: a cycle
            if queue is not None:
                await queue.drain(limits.close_seconds)

    async def exchange(self, request_id: RequestId, method: str, params: Mapping[str, Any]) -> Answer:
        """Make one exchange with neither time limit nor cancellation: listening may wait for ever."""
        self.check_loop()
        if self.settling is not None:
            await self.settling.wait()
        self._check_open()
        message, headers = self._write(request_id, method, params)
        return _checked(await self.transport.request(message, request_id, headers, resumable=self.era.resumes))

    def _write(
        self, request_id: RequestId, method: str, params: Mapping[str, Any], headers: Mapping[str, str] = NO_HEADERS
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return an encoded request and its headers."""
        era = self.era
        if self.transport.stream_per_request:
            headers = {**era.headers(method, params), **headers}
        params = era.stamp(
            method, traced(params), info=self._info, capabilities=self._handlers.capabilities, log_level=self.log_level
        )
        return write_json(method, params, encode_request, request_id, method, params), headers

    def _timed_out(self, request: str, clock: Clock, *, is_greeting: bool) -> str:
        """Return what is said of a request that was not answered in time: what, how long, and what waits longer."""
        began = f"{self.transport.where} did not answer {request}"
        if clock.is_at_its_end:
            most = self._limits.total_seconds
            return f"{began} within {most:g} s in all; `ClientLimits(total_seconds=...)` allows more."
        told = "" if clock.queue is None else ", nor tell of progress,"
        call = "" if is_greeting else "`timeout=` for this call, or "
        longer = f"To wait longer, give {call}`Client(..., limits=ClientLimits(request_seconds=...))`."
        return f"{began}{told} within {clock.seconds:g} s. Is it busy, or stuck? {longer}"

    def give_up(self, request_id: RequestId, reason: str = "cancelled") -> None:
        """Cancel a request at the server, unless closing its stream does that."""
        by_closing = self.era.closing_cancels and self.transport.stream_per_request
        if not (by_closing or self._is_closed):
            self.spawn(self._tell_cancelled({"requestId": request_id, "reason": reason}))

    async def _tell_cancelled(self, params: Mapping[str, Any]) -> None:
        era, generation = self.era, self.generation
        try:
            async with asyncio.timeout(self._limits.close_seconds):
                await self.notify("notifications/cancelled", params)
        except (WeftError, TimeoutError) as error:
            log.debug("notifications/cancelled could not be sent: %s", error)
            self._note_end(error, era, generation)

    def _note_end(self, error: Exception, era: ClientEra, generation: int) -> bool:
        """Agree with the server again, if it refused something because the agreement that it was sent in is over."""
        is_over = isinstance(error, Refused) and era.is_over(error.status, *code_and_data(error))
        if is_over:
            self.spawn(self.on_over(generation))
        return is_over

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; RequestTimeout when the server does not take it."""
        self.check_loop()
        message = write_json(method, params, encode_notification, method, UNSET if params is None else params)
        seconds = self._limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.transport.send(message, self.era.headers(method))
        except TimeoutError:
            raise RequestTimeout(
                f"{self.transport.where} did not take {method} within {seconds:g} s. Is it busy, or stuck? To wait "
                "longer, give `Client(..., limits=ClientLimits(request_seconds=...))`."
            ) from None

    # --- the standing stream

    async def open_stream(self, silence: ConnectionFailed | None = None) -> None:
        """Open the stream on which the server speaks up, where there is one; wait for it, but not for long.

        Some servers hold back the head of a response until there is something to say in it. `silence` is why it had
        ended before, in the same session: a server that has none now had one then.
        """
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._silence, self._has_stream = None, True
        if not self.era.keeps_stream:
            return
        opened = asyncio.Event()

        def opened_again() -> None:
            if opened.is_set():
                self.on_stream_reopened()
            opened.set()

        self._stream = self.spawn(self._keep_stream(self.generation, opened_again, silence))
        self._stream.add_done_callback(lambda _: opened.set())
        try:
            async with asyncio.timeout(_STREAM_SECONDS):
                await opened.wait()
        except TimeoutError:
            log.debug("%s holds back the head of its standing stream.", self.transport.where)

    async def reopen_stream(self) -> None:
        """For one who begins to listen: try a stream that had ended for good once more; ConnectionFailed if in vain.

        A server that has none may still tell of changes while it answers a request, so that is no error.
        """
        if self._silence is not None:
            await self.open_stream(self._silence)
        if self._silence is not None:
            raise ConnectionFailed(str(self._silence))
        if not self._has_stream:
            log.warning(
                "%s has no stream for changes: they are heard only while it answers requests. Fetch what you need anew "
                "from time to time.",
                self.transport.where,
            )

    async def _keep_stream(self, generation: int, opened: Callable[[], None], silence: ConnectionFailed | None) -> None:
        """Keep the standing stream open; greet again where the server says that the session is over."""
        era = self.era
        while True:
            try:
                await self.transport.open_standalone_stream(era.headers(), opened)
                self._has_stream = not self.transport.stream_per_request  # a pipe is one itself
                if silence is not None:
                    self._fall_silent(silence)
            except Refused as refused:
                if era.is_over(refused.status, None, None):
                    self.spawn(self.on_over(generation))
                else:
                    self._fall_silent(ConnectionFailed(f"{refused} Its standing stream is not opened again."))
            except InvalidAnswer as error:
                log.warning("The standing stream of %s is not read any more: %s", self.transport.where, error)
                self._fall_silent(ConnectionFailed(str(error)))
            except ConnectionFailed as failure:
                self.on_silence(failure)
                await asyncio.sleep(pause(_STREAM_ATTEMPT))
                continue
            return

    def _fall_silent(self, failure: ConnectionFailed) -> None:
        self._silence = failure
        self.on_silence(failure)

    # --- what comes in

    def _receive(self, frame: Frame, origin: RequestId | None) -> None:
        if self._is_closed:
            return
        try:
            if frame.is_request:
                self._asked(frame, origin)
            else:
                self._notified(str(frame.method), _params(frame), origin)
        except msgspec.DecodeError as error:
            log.debug("%s sent a %s that cannot be read: %s", self.transport.where, frame.method, error)
        except Exception:  # noqa: BLE001 - it is logged
            self._seldom.exception("What %s sent could not be taken.", self.transport.where)

    def _notified(self, method: str, params: bytes, origin: RequestId | None) -> None:
        if method == "notifications/progress":
            told = _read_progress(params)
            clock = self._clocks.get(told.progress_token)
            if clock is not None and clock.queue is not None:  # else progress was not asked for, or it is late
                clock.wind()
                clock.queue.call(told, size=len(params))
        elif method == "notifications/cancelled":
            self._taken_back(_read_cancelled(params))
        else:
            self.on_notification(method, params, origin)

    def _taken_back(self, told: CancelledParams) -> None:
        """Stop to answer a question that the server has cancelled. An unknown one is ignored."""
        ask = self._asks.get(told.request_id)
        if ask is not None:
            log.debug("%s took back a question: %s", self.transport.where, told.reason)
            ask.cancel()

    def _asked(self, frame: Frame, origin: RequestId | None) -> None:
        request_id, params, limits = frame.reply_id, _params(frame), self._limits
        size = len(params)
        if request_id is None or not self.era.answers_requests:
            self._seldom.warning("%s sent a request, which no server of its era does; ignored.", self.transport.where)
        elif (
            len(self._asks) >= limits.asks_waiting
            or self._asks_bytes + size > limits.asks_bytes
            or request_id in self._asks
        ):
            method = printable(str(frame.method)[:100], "?")
            self._seldom.warning("%s asks too much at once; a %s is not answered.", self.transport.where, method)
        else:
            task = self.spawn(self._answer(request_id, str(frame.method), params, origin))
            self._asks[request_id] = task
            self._asks_bytes += size
            task.add_done_callback(lambda _: self._answered(request_id, size))

    def _answered(self, request_id: RequestId, size: int) -> None:
        self._asks.pop(request_id, None)
        self._asks_bytes -= size

    async def _answer(self, request_id: RequestId, method: str, params: bytes, origin: RequestId | None) -> None:
        era, generation = self.era, self.generation  # in which it is asked: there may be others when it is answered
        try:
            result: Any = {} if method == "ping" else await self._perform(method, params, origin)
            message = encode_result(request_id, result)
        except ProtocolError as error:
            message = encode_error(request_id, error.code, error.message, error.data)
        except TimeoutError:
            message = encode_error(request_id, InternalError.code, "The question was not answered in time.")
        except Exception:  # noqa: BLE001 - it is logged
            self._seldom.exception("A %s of %s could not be answered.", method[:100], self.transport.where)
            message = encode_error(request_id, InternalError.code, "Internal error")
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                await self.transport.send(message, era.headers())
        except (WeftError, TimeoutError) as error:
            self._seldom.warning("The answer to %s could not be sent: %s", printable(method[:100], "?"), error)
            is_over = self._note_end(error, era, generation)
            if method == "ping":
                return
            for clock in self._waiting_for(origin, is_over=is_over):
                clock.fail(self._undelivered(method, error))

    def _waiting_for(self, origin: RequestId | None, *, is_over: bool) -> list[Clock]:
        """Return the requests that wait in vain when the answer to a question is not taken.

        With a stream for each request, a question on the standing stream is for none of them. Where all comes on one
        stream, it is for the only request; of several, it is not known which asked.
        """
        if (own := self._clocks.get(origin)) is not None:
            return [own]
        clocks = list(self._clocks.all())
        is_guessed = len(clocks) == 1 and not self.transport.stream_per_request
        return clocks if is_over or is_guessed else []

    def _undelivered(self, method: str, error: WeftError | TimeoutError) -> WeftError:
        """Return why a request is given up: the server asked something for it, and did not take the answer."""
        if isinstance(error, Refused):
            refused = Refused(error.where, error.status, error.headers, error.body)  # each task raises its own
            refused.was_seen, refused.what = True, f"the answer to its {method}"
            return refused
        if isinstance(error, ConnectionFailed | TimeoutError):
            why = str(error) or f"It was not taken within {self._limits.request_seconds:g} s."
            return ConnectionFailed(f"The answer to {method} could not be sent to {self.transport.where}. {why}")
        return error

    async def _perform(self, method: str, params: bytes, origin: RequestId | None) -> Any:
        async with self._gate, asyncio.timeout(self._limits.ask_seconds):
            with self._held(origin):
                return await self._handlers.answer(method, msgspec.Raw(params))

    @contextmanager
    def _held(self, origin: RequestId | None) -> Generator[None]:
        """Stop the clock of the request that a question belongs to; where that is not known, of all."""
        own = self._clocks.get(origin)
        clocks = self._clocks.all() if own is None else [own]
        for clock in clocks:
            clock.hold()
        try:
            yield
        finally:
            for clock in clocks:
                clock.release()


def _named(params: Mapping[str, Any]) -> str | None:
    """Return what a request is about, if that has a name: a tool, a prompt, a resource without its query."""
    named = (params.get("name"), params.get("uri"))
    return next((masked_name(one) for one in named if isinstance(one, str)), None)


def _shown(method: str, params: Mapping[str, Any]) -> str:
    """Return a request as sentences name it."""
    name = _named(params)
    return method if name is None else f"{method} of {name[:100]!r}"


def _outcome(error: BaseException) -> str:
    """Return how a request without a result ended, as one word for the log."""
    if isinstance(error, Refused):
        code, _ = code_and_data(error)
        return str(error.status if code is None else code)
    if isinstance(error, RemoteError):
        return str(error.code)
    return _OUTCOMES.get(type(error), type(error).__name__)


_OUTCOMES: Mapping[type[BaseException], str] = {
    asyncio.CancelledError: "cancelled",
    RequestTimeout: "timeout",
    ConnectionFailed: "lost",
}


def _checked(answer: Answer) -> Answer:
    """Return an answer that has a result; raise the error of any other."""
    frame = answer.frame
    if frame.result is UNSET:
        raise remote_error(frame)
    if frame.error is not UNSET and bytes(frame.error) != b"null":
        if bytes(frame.result) == b"null":
            raise remote_error(frame)  # some write what is not there as null
        raise InvalidAnswer("The server answered with both a result and an error.")
    return answer


def _params(frame: Frame) -> bytes:
    return bytes(frame.params) if isinstance(frame.params, msgspec.Raw) else b"{}"


async def _not_renewed(generation: int) -> None:
    """Do nothing: the connection has no owner that greets again."""


def _nobody(*_: Any) -> None:
    """Ignore the call: the connection has no owner yet."""


_KEYS = ("traceparent", "tracestate", "baggage")


def traced(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the params with the current trace in their `_meta`.

    A program that traces has imported OpenTelemetry itself; so nothing is imported here for one that does not.
    """
    if "opentelemetry.trace" not in sys.modules:
        return params
    from opentelemetry import context, propagate

    if not context.get_current():  # there is no span and no baggage: most programs have OpenTelemetry and no trace
        return params
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    found = {key: carrier[key] for key in _KEYS if key in carrier}
    return {**params, "_meta": {**found, **params.get("_meta", {})}} if found else params
