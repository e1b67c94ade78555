"""Send requests over one connection to a server, and handle the messages that the server sends.

This module gives each request its id and its deadline, cancels requests, answers the server's requests, and owns all
background tasks. It keeps the standalone stream open, which carries the messages that belong to no request (over HTTP,
a GET stream). The module `negotiate` finds out which era (family of protocol versions) the server speaks. The module
`exchange` decides what to do when the server refuses a request.

If the program uses OpenTelemetry, each request carries the current trace.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from weft.client.argument_checks import check_timeout, write_json
from weft.client.callbacks import CallbackQueue, Clock, Clocks, pause
from weft.client.connection.transport import NO_HEADERS, Answer, Refused, Transport, ignore, remote_error
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
from weft.types.base import Implementation, LogLevel, ProgressToken, RequestId
from weft.types.lifecycle import CancelledParams, ClientCapabilities, ProgressParams

log = logging.getLogger("weft.client")

_STREAM_SECONDS = 0.25  # how long the first request waits for the standalone stream to open
_STREAM_ATTEMPT = 7  # a lost standalone stream is opened again after `pause(7)`, about half a minute

ProgressCallback = Callable[[ProgressParams], Any]
"""A sync or async function that is called with each progress notification of a request."""


class RequestHandlers(Protocol):
    """The client's handlers for requests that the server sends, such as elicitation."""

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declares."""
        ...

    async def answer(self, method: str, params: Any = None) -> Any:
        """Return the result for one request of the server, within some time. Raises ProtocolError if there is none."""
        ...


_read_progress = msgspec.json.Decoder(ProgressParams).decode
_read_cancelled = msgspec.json.Decoder(CancelledParams).decode


def code_and_data(error: Refused | RemoteError) -> tuple[int | None, Any]:
    """Return the code and data of the JSON-RPC error in `error`, or (None, None) if an HTTP refusal contains none."""
    found = error.error if isinstance(error, Refused) else error
    return (None, None) if found is None else (found.code, found.data)


class CallNotes:
    """What is noted about a call that may become a task, besides its answer."""

    def __init__(self) -> None:
        self.must_go_on = False  # whether the request must not be cancelled if the caller stops waiting
        self.going_on: asyncio.Task[Answer] | None = None  # that request, if the caller has stopped waiting
        self.left = math.inf  # seconds of the timeout that were left when the server answered


class ClientConnection:
    """One connection of a client to a server: its transport, its era and its pending requests."""

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
        self.info = info
        self.limits = limits
        self.generation = 0  # number of successful negotiations so far
        self.settling: asyncio.Event | None = None  # None unless a negotiation is running; set when it ends
        self.log_level: LogLevel | None = None  # the log level that the program wants
        # Called with each notification: its method, its params, and the id of the request on whose stream it came.
        self.on_notification: Callable[[str, bytes, RequestId | None], None] = ignore
        self.on_stream_reopened: Callable[[], None] = ignore  # called when the standalone stream is open again
        self.on_silence: Callable[[ConnectionFailed], None] = ignore  # called when the stream for changes is lost
        self.on_over: Callable[[int], Coroutine[Any, Any, None]] = _not_renewed  # starts a new negotiation
        # Called with each question of the server: its params, and the clock of the request on whose stream it came, if
        # that is in flight. The context that it returns is open until the question is answered.
        self.on_question: Callable[[bytes, Clock | None], AbstractContextManager[None]] = _no_context
        self._handlers = handlers
        self._ids = itertools.count(1)
        self._clocks = Clocks()  # deadlines of the requests in flight
        self._tokens: dict[ProgressToken, RequestId] = {}  # requests in flight whose progress token is not their id
        # By progress token: called with progress that the server sends after the answer to the request, for a task.
        self.task_progress: dict[ProgressToken, Callable[[ProgressParams], None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # background tasks
        self._asks: dict[RequestId, asyncio.Task[None]] = {}  # answer the server's requests, by request id
        # What goes on for a request after it was answered, by the asyncio task that answers the request.
        self._going_on: dict[asyncio.Task[Any], asyncio.Task[None]] = {}
        self._asks_bytes = 0  # total size of the params of the server's requests for which something still runs
        self._stream: asyncio.Task[None] | None = None  # keeps the standalone stream open
        self._silence: ConnectionFailed | None = None  # error after which the standalone stream is not retried
        self._has_stream = True  # False if the server has no standalone stream
        self.is_closed = False
        self._seldom = Seldom(log)  # rate-limited, because the server can cause these log lines at will

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that this client declares."""
        return self._handlers.capabilities

    # --- opening and closing

    async def open(self) -> None:
        """Open the transport."""
        self.check_open()
        transport: Any = self.transport
        if hasattr(transport, "hold"):  # pauses all deadlines while the user logs in
            transport.hold = lambda: self._held(None)
        await self.transport.open(self._receive, self._lost)

    async def reopen(self) -> None:
        """Reconnect the transport."""
        self.check_open()
        await self.transport.reopen()

    async def change(self, transport: Transport) -> None:
        """Close the current transport, and open `transport` instead."""
        self.check_open()
        await self.transport.close()
        self.transport = transport
        await self.open()

    async def close(self) -> None:
        """Close the connection. Pending requests raise ConnectionFailed, and background tasks are cancelled.

        If `close` is cancelled, it can be called again to finish closing.
        """
        farewell = None if self.is_closed else self.era.farewell()
        self.is_closed = True
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
                others = self._tasks - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                if others and (await asyncio.wait(others, timeout=self.limits.close_seconds))[1]:
                    log.warning("A function that answers %s goes on although it was cancelled.", self.transport.where)

    def check_loop(self) -> None:
        """Raise UsageError if the running event loop is not the event loop that created the connection."""
        self._clocks.check_loop()

    def check_open(self) -> None:
        """Raise ConnectionFailed if the connection was closed."""
        if self.is_closed:
            raise ConnectionFailed(f"The connection to {self.transport.where} was closed.")

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a background task, which is cancelled when the connection closes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("A background task of the connection to %s failed.", self.transport.where, exc_info=error)

    def _lost(self, failure: ConnectionFailed) -> None:
        log.debug("%s", failure)
        self.spawn(self._stay_lost(self.generation, failure))

    async def _stay_lost(self, generation: int, failure: ConnectionFailed) -> None:
        """Wait for the client to reconnect. If it does not reconnect in time, call `on_silence` with `failure`.

        The wait is as long as all retries of a stream take together. The client has reconnected if `self.generation`
        is no longer `generation`.
        """
        for attempt in range(self.limits.resumptions + 1):
            await asyncio.sleep(pause(attempt))
            if self.generation != generation:
                return
        self.on_silence(failure)

    # --- requests

    def next_id(self) -> int:
        """Return a new request id, which no earlier request of this connection has used."""
        return next(self._ids)

    def new_progress_token(self) -> str:
        """Return a new progress token, for progress that the server may send after the answer to its request."""
        return f"task-{next(self._ids)}"

    def roundtrip(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        seconds: float | None = None,
        most_seconds: float | None = None,
        progress: ProgressCallback | None = None,
        progress_token: str | None = None,
        is_greeting: bool = False,
        notes: CallNotes | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        """Send a request and return its answer.

        `seconds` is the timeout (default: `limits.request_seconds`). If `progress` is given, each progress notification
        restarts the timeout, up to `most_seconds` in total (default: `limits.total_seconds`). The server repeats
        `progress_token` (default: the request id) in these notifications. With `is_greeting`, the request is part of a
        handshake: the server is not notified if the caller stops waiting, because a handshake cannot be cancelled.
        `notes` are for calls that may become tasks.

        Raises RemoteError if the answer is an error, Refused if the server refuses the HTTP request, RequestTimeout if
        no answer arrives in time, ConnectionFailed if the connection breaks, InvalidAnswer if the answer is invalid.
        """
        most = self.limits.total_seconds if most_seconds is None else most_seconds
        work = self._roundtrip(method, params, headers, seconds, most, progress, progress_token, is_greeting, notes)
        return self._logged(method, params, work) if log.isEnabledFor(logging.INFO) else work

    async def _logged(self, method: str, params: Mapping[str, Any], work: Coroutine[Any, Any, Answer]) -> Answer:
        """Await a request, and log one line when it has succeeded or failed."""
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
        most: float,
        progress: ProgressCallback | None,
        token: str | None,
        is_greeting: bool,  # noqa: FBT001 - `roundtrip` has the names
        notes: CallNotes | None,
    ) -> Answer:
        if self.is_closed:
            self.check_open()
        limits = self.limits
        request_id = next(self._ids)
        queue = None
        if progress is not None:  # the id is unique among active requests, so it can be the progress token
            queue = CallbackQueue(progress, limits.changes_kept, "progress(update)")
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": token or request_id}}
            if token is not None:
                self._tokens[token] = request_id
        check_timeout(seconds)
        wait = limits.request_seconds if seconds is None else seconds
        clock = self._clocks.start(request_id, wait, most, queue)
        clock.task_id = params.get("taskId")
        try:
            work = self._request(request_id, method, params, headers)
            if notes is not None and notes.must_go_on:
                work = self._let_go_on(work, notes)
            return _checked(await work)
        except asyncio.CancelledError:
            self._clocks.stop(request_id)
            is_late = clock.has_run_out()
            goes_on = notes is not None and notes.going_on is not None
            if not (is_greeting or goes_on):  # a handshake is never cancelled
                self.give_up(request_id, "timeout" if is_late else "cancelled")
            if queue is not None:
                await queue.stop()
            if not is_late:
                raise
            late = RequestTimeout(self._timed_out(_shown(method, params), clock, is_greeting=is_greeting))
            raise clock.failure or late from None
        finally:
            self._clocks.stop(request_id)
            if notes is not None:
                notes.left = clock.deadline - self._clocks.now()
            if token is not None:
                self._tokens.pop(token, None)
            del clock  # breaks a reference cycle: clock, task, its CancelledError, this frame
            if queue is not None:
                await queue.drain(limits.close_seconds)

    async def _let_go_on(self, work: Coroutine[Any, Any, Answer], notes: CallNotes) -> Answer:
        """Await the answer to a request. If the caller stops waiting, the request goes on, as the notes then say."""
        going_on: asyncio.Task[Answer] = self.spawn(work)
        try:
            return await asyncio.shield(going_on)
        except asyncio.CancelledError:
            if going_on.cancelled():
                self.check_open()  # raises ConnectionFailed if the client was closed
            notes.going_on = going_on
            raise

    async def exchange(self, request_id: RequestId, method: str, params: Mapping[str, Any]) -> Answer:
        """Send a request that stays open (`subscriptions/listen`), and return its answer. There is no timeout.

        A caller that stops waiting must call `give_up`, which notifies the server.
        """
        self.check_loop()
        if self.settling is not None:
            await self.settling.wait()
        self.check_open()
        return _checked(await self._request(request_id, method, params, NO_HEADERS))

    def _request(
        self, request_id: RequestId, method: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Coroutine[Any, Any, Answer]:
        """Encode a request. Return a coroutine that sends the request and returns the answer."""
        era = self.era
        if self.transport.stream_per_request:
            headers = {**era.headers(method, params), **headers}
        params = era.stamp(
            method, traced(params), info=self.info, capabilities=self._handlers.capabilities, log_level=self.log_level
        )
        message = write_json(method, params, encode_request, request_id, method, params)
        return self.transport.request(message, request_id, headers, resumable=era.resumes)

    def _timed_out(self, request: str, clock: Clock, *, is_greeting: bool) -> str:
        """Return the error message for a request that was not answered in time."""
        began = f"{self.transport.where} did not answer {request}"
        if clock.is_at_its_end:
            most = self.limits.total_seconds
            return f"{began} within {most:g} s in all; `ClientLimits(total_seconds=...)` allows more."
        progress = "" if clock.queue is None else ", nor report progress,"
        call = "" if is_greeting else "`timeout=` for this call, or "
        longer = f"To wait longer, give {call}`Client(..., limits=ClientLimits(request_seconds=...))`."
        return f"{began}{progress} within {clock.seconds:g} s. Is it busy, or stuck? {longer}"

    def give_up(self, request_id: RequestId, reason: str = "cancelled") -> None:
        """Notify the server, in a background task, that a request is cancelled.

        Does nothing if the connection is closed. Also does nothing in the stateless era over HTTP, because there the
        request is cancelled when its stream is closed.
        """
        by_closing = self.era.closing_cancels and self.transport.stream_per_request
        if not (by_closing or self.is_closed):
            self.spawn(self._tell_cancelled({"requestId": request_id, "reason": reason}))

    async def _tell_cancelled(self, params: Mapping[str, Any]) -> None:
        era, generation = self.era, self.generation
        try:
            async with asyncio.timeout(self.limits.close_seconds):
                await self.notify("notifications/cancelled", params)
        except (WeftError, TimeoutError) as error:
            log.debug("notifications/cancelled could not be sent: %s", error)
            self._note_end(error, era, generation)

    def _note_end(self, error: Exception, era: ClientEra, generation: int) -> bool:
        """Start a new negotiation in the background if `error` means that the session or version has ended.

        Returns True if a negotiation was started. `era` and `generation` are the era and generation of the connection
        from before the failed message was sent.
        """
        is_over = isinstance(error, Refused) and era.is_over(error.status, *code_and_data(error))
        if is_over:
            self.spawn(self.on_over(generation))
        return is_over

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. Raises RequestTimeout if the server does not accept the notification in time."""
        self.check_loop()
        message = write_json(method, params, encode_notification, method, UNSET if params is None else params)
        seconds = self.limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.transport.send(message, self.era.headers(method))
        except TimeoutError:
            raise RequestTimeout(
                f"{self.transport.where} did not accept {method} within {seconds:g} s. Is it busy, or stuck? To wait "
                "longer, give `Client(..., limits=ClientLimits(request_seconds=...))`."
            ) from None

    # --- the standalone stream

    async def open_stream(self, silence: ConnectionFailed | None = None) -> None:
        """Open the standalone stream, if the era has one, and wait a short time until it is open.

        The wait is short because some servers send the response head only with the first event.

        `silence` is the error with which an earlier standalone stream failed, or None. If it is given, and the server
        now says that it has no standalone stream, `on_silence` is called with this error.
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
            log.debug("%s has not yet sent the response head of its standalone stream.", self.transport.where)

    async def reopen_stream(self) -> None:
        """Open the standalone stream again if it has failed.

        Raises ConnectionFailed if the new stream fails, too. If the server has no standalone stream, a warning is
        logged, because changes then arrive only while the server answers a request.
        """
        if self._silence is not None:
            await self.open_stream(self._silence)
        if self._silence is not None:
            raise ConnectionFailed(str(self._silence))
        if not self._has_stream:
            log.warning(
                "%s has no stream for changes: they arrive only while it answers requests. Fetch what you need again "
                "from time to time.",
                self.transport.where,
            )

    async def _keep_stream(self, generation: int, opened: Callable[[], None], silence: ConnectionFailed | None) -> None:
        """Keep the standalone stream open. Return when it cannot be opened again.

        If the session has ended, a new negotiation is started. `opened` is called each time the stream has been
        opened. `silence` is explained in `open_stream`.
        """
        era = self.era
        while True:
            try:
                await self.transport.open_standalone_stream(era.headers(), opened)
                self._has_stream = not self.transport.stream_per_request  # a pipe itself is the standalone stream
                if silence is not None:
                    self._fall_silent(silence)
            except Refused as refused:
                if era.is_over(refused.status, None, None):
                    self.spawn(self.on_over(generation))
                else:
                    self._fall_silent(ConnectionFailed(f"{refused} Its standalone stream is not opened again."))
            except InvalidAnswer as error:
                log.warning("The standalone stream of %s is not read any more: %s", self.transport.where, error)
                self._fall_silent(ConnectionFailed(str(error)))
            except ConnectionFailed as failure:
                self.on_silence(failure)
                await asyncio.sleep(pause(_STREAM_ATTEMPT))
                continue
            return

    def _fall_silent(self, failure: ConnectionFailed) -> None:
        self._silence = failure
        self.on_silence(failure)

    # --- incoming messages

    def _receive(self, frame: Frame, origin: RequestId | None) -> None:
        if self.is_closed:
            return
        try:
            if frame.is_request:
                self._asked(frame, origin)
            else:
                self._notified(str(frame.method), _params(frame), origin)
        except msgspec.DecodeError as error:
            log.debug("%s sent a %s that cannot be read: %s", self.transport.where, frame.method, error)
        except Exception:  # noqa: BLE001 - it is logged
            self._seldom.exception("A message from %s could not be handled.", self.transport.where)

    def _notified(self, method: str, params: bytes, origin: RequestId | None) -> None:
        if method == "notifications/progress":
            progress = _read_progress(params)
            token = progress.progress_token
            clock = self._clocks.get(self._tokens.get(token, token))
            if clock is not None and clock.queue is not None:  # else the request wants no progress, or has ended
                clock.wind()
                clock.queue.call(progress, size=len(params))
            elif (report := self.task_progress.get(token)) is not None:
                report(progress)
        elif method == "notifications/cancelled":
            cancelled = _read_cancelled(params)
            if (ask := self._asks.get(cancelled.request_id)) is not None:
                log.debug("%s cancelled a question: %s", self.transport.where, cancelled.reason)
                ask.cancel()
        else:
            self.on_notification(method, params, origin)

    def _asked(self, frame: Frame, origin: RequestId | None) -> None:
        request_id, params, limits = frame.reply_id, _params(frame), self.limits
        size = len(params)
        if request_id is None or not self.era.answers_requests:
            self._seldom.warning("%s sent a request, which no server of its era does; ignored.", self.transport.where)
        elif (
            len(self._asks) >= limits.asks_waiting
            or self._asks_bytes + size > limits.asks_bytes
            or request_id in self._asks
        ):
            method = printable(str(frame.method)[:100], "?")
            self._seldom.warning("%s asks too much at once; %s is not answered.", self.transport.where, method)
        else:
            task = self.spawn(self._answer(request_id, str(frame.method), params, origin))
            self._asks[request_id] = task
            self._asks_bytes += size
            task.add_done_callback(lambda _: self._answered(request_id, task, size))

    def _answered(self, request_id: RequestId, task: asyncio.Task[Any], size: int) -> None:
        self._asks.pop(request_id, None)
        work = self._going_on.pop(task, None)
        if work is None or work.done():
            self._forget_size(size)
        else:
            work.add_done_callback(lambda _: self._forget_size(size))

    def _forget_size(self, size: int) -> None:
        self._asks_bytes -= size

    def goes_on(self, work: asyncio.Task[None]) -> None:
        """Note that the request which the current asyncio task answers is not done then, but when `work` has ended.

        Until then, its size counts for the limit `asks_bytes`.
        """
        if (task := asyncio.current_task()) in self._asks.values():
            assert task is not None
            self._going_on[task] = work

    async def _answer(self, request_id: RequestId, method: str, params: bytes, origin: RequestId | None) -> None:
        era, generation = self.era, self.generation  # may have changed when the answer is ready
        try:
            result: Any = {}
            if method != "ping":
                with self._held(origin), self.on_question(params, self._clocks.get(origin)):
                    result = await self._handlers.answer(method, msgspec.Raw(params))
            message = encode_result(request_id, result)
        except ProtocolError as error:
            message = encode_error(request_id, error.code, error.message, error.data)
        except Exception:  # noqa: BLE001 - it is logged
            self._seldom.exception("A %s of %s could not be answered.", method[:100], self.transport.where)
            message = encode_error(request_id, InternalError.code, "Internal error")
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                await self.transport.send(message, era.headers())
        except (WeftError, TimeoutError) as error:
            self._seldom.warning("The answer to %s could not be sent: %s", printable(method[:100], "?"), error)
            is_over = self._note_end(error, era, generation)
            if method == "ping":
                return
            for clock in self._waiting_for(origin, is_over=is_over):
                clock.fail(self._undelivered(method, error))

    def _waiting_for(self, origin: RequestId | None, *, is_over: bool) -> list[Clock]:
        """Return the clocks of the requests that cannot finish because the client could not answer a question.

        The server sent the question while it handled one of the client's requests, and now waits for the answer.

        - If the request `origin`, on whose stream the question came, is in flight, the list contains only its clock.
        - Otherwise, if the session has ended (`is_over`), the list contains the clocks of all requests.
        - Otherwise, on a pipe with exactly one request in flight, the list contains the clock of that request.
        - Otherwise the list is empty, because it is unknown for which request the server asked.
        """
        if (own := self._clocks.get(origin)) is not None:
            return [own]
        clocks = list(self._clocks.all())
        is_guessed = len(clocks) == 1 and not self.transport.stream_per_request
        return clocks if is_over or is_guessed else []

    def _undelivered(self, method: str, error: WeftError | TimeoutError) -> WeftError:
        """Return the error for a request that cannot finish because the client could not answer the server's question.

        `method` is the method of the question. `error` says why the answer could not be sent.
        """
        if isinstance(error, Refused):
            refused = Refused(error.where, error.status, error.headers, error.body)  # each task needs its own exception
            refused.was_seen, refused.what = True, f"the answer to its {method}"
            return refused
        if isinstance(error, ConnectionFailed | TimeoutError):
            why = str(error) or f"It was not accepted within {self.limits.request_seconds:g} s."
            return ConnectionFailed(f"The answer to {method} could not be sent to {self.transport.where}. {why}")
        return error

    @contextmanager
    def _held(self, origin: RequestId | None) -> Generator[None]:
        """Pause deadlines during a `with` block: of the request `origin`, or of all requests if it is not in flight."""
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
    """Return the `name` in the params of a request, or the `uri` without its query, or None if both are missing."""
    named = (params.get("name"), params.get("uri"))
    return next((masked_name(one) for one in named if isinstance(one, str)), None)


def _shown(method: str, params: Mapping[str, Any]) -> str:
    """Describe a request for error messages, for example "tools/call of 'add'"."""
    name = _named(params)
    return method if name is None else f"{method} of {name[:100]!r}"


def _outcome(error: BaseException) -> str:
    """Return the outcome of a failed request for the log: an HTTP status, an error code, or one word."""
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
    """Return the answer if it contains a result. Raises RemoteError if it is an error, InvalidAnswer if it is both."""
    frame = answer.frame
    if frame.result is UNSET:
        raise remote_error(frame.error)
    if frame.error is not UNSET and bytes(frame.error) != b"null":
        if bytes(frame.result) == b"null":
            raise remote_error(frame.error)  # some servers send `"result": null` with an error
        raise InvalidAnswer("The server answered with both a result and an error.")
    return answer


def _params(frame: Frame) -> bytes:
    return bytes(frame.params) if isinstance(frame.params, msgspec.Raw) else b"{}"


async def _not_renewed(generation: int) -> None:
    """Do nothing. This is the default for `ClientConnection.on_over`."""


def _no_context(*_: Any) -> AbstractContextManager[None]:
    """Return a context that does nothing. This is the default for `ClientConnection.on_question`."""
    return nullcontext()


_KEYS = ("traceparent", "tracestate", "baggage")


def traced(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the params with the current OpenTelemetry trace added to `_meta`, or unchanged if there is no trace.

    OpenTelemetry is imported here only if the program has imported it already.
    """
    if "opentelemetry.trace" not in sys.modules:
        return params
    from opentelemetry import context, propagate

    if not context.get_current():  # no span and no baggage, as in most programs that have OpenTelemetry installed
        return params
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    found = {key: carrier[key] for key in _KEYS if key in carrier}
    return {**params, "_meta": {**found, **params.get("_meta", {})}} if found else params
