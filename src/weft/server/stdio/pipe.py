"""Serve one client that sends one message per line, over stdio or in the same process.

A pipe is the connection to such a client. It has at most one session. Requests of the stateless era are served without
the session. A client may send requests of both eras.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

import msgspec

from weft.eras.base import choose
from weft.eras.session import SESSION
from weft.errors import InternalError, ParseError, ProtocolError
from weft.jsonrpc import Frame, Line, decode, encode_error
from weft.net.logs import masked_body
from weft.server.calls.call import Call
from weft.server.calls.changes import ChangeInbox, encode_change
from weft.server.calls.connection import Cancellation, Connection
from weft.server.calls.execution import EagerTaskStarter
from weft.server.calls.pending import ClientChannel, SendMessage
from weft.server.diagnostics import note_refusal, report
from weft.server.runtime.admission import busy, still_served
from weft.server.runtime.request_log import is_wire_logged, refused
from weft.server.runtime.request_log import log as wire
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.messages import take_notification
from weft.server.sessions.session import read_batch
from weft.types.base import RequestId
from weft.types.lifecycle import CancelledParams

log = logging.getLogger("weft.pipe")

_BRACE = ord("{")

_names = count(1)  # numbers for the names of pipes; the name of a pipe identifies its listen streams

_read_cancelled = msgspec.json.Decoder(CancelledParams).decode


class Writer(Protocol):
    """Writes lines to the client."""

    def send(self, line: bytes, /) -> None:
        """Add one line to the output. It is written soon, together with other lines."""
        ...

    def send_now(self, line: bytes, /) -> None:
        """Write one line at once."""
        ...

    async def drained(self) -> None:
        """Wait until the client has read enough of the output. Return at once if little output is waiting."""
        ...


@dataclass(slots=True, eq=False)
class _LineReply:
    """Sends the notifications of one call until the call is answered or cancelled."""

    writer: Writer
    answered: bool = False
    after_answer: bytes | None = None  # a notification to send after the answer
    cancellation: Cancellation | None = None  # cancels the call; None until the call is created
    can_stream: bool = True

    async def notify(self, message: bytes) -> None:
        if not self.answered and not (self.cancellation is not None and self.cancellation.cancelled):
            await _send(self.writer, message)

    async def close_stream(self, retry_seconds: float) -> None:
        """Do nothing: all calls share one connection, which stays open."""

    def epilogue(self, message: bytes) -> None:
        self.after_answer = message

    async def end(self) -> None:
        """Do nothing: all calls share one connection, which stays open."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Do nothing: without HTTP, there is no header for a challenge."""


class Pipe:
    """The connection to one client that sends lines, and the client's running requests."""

    def __init__(self, runtime: Runtime, writer: Writer) -> None:
        self._runtime = runtime
        self._limits = runtime.limits
        self._writer = writer
        self._starter = EagerTaskStarter(asyncio.get_running_loop())
        self._name = f"pipe {next(_names)}"
        self._in_flight: dict[RequestId, Cancellation] = {}
        self._unwinding: set[asyncio.Task[Any]] = set()  # cancelled requests that have not ended yet
        self._session: PipeSession | None = None  # None if no era with sessions is served
        if any(era.remembers for era in runtime.eras):
            self._session = PipeSession(runtime, partial(_send, writer), self._in_flight)

    async def warm_up(self) -> None:
        """Create a spare task, so that the first request starts at once, like all later requests.

        The first request is often a handshake. With the spare task, it is served before the next line is read.
        """
        await self._starter.warm_up()

    @property
    def full(self) -> int:
        """The limit of running requests that is reached, for this pipe or for the process; 0 if none is reached."""
        if len(self._in_flight) + len(self._unwinding) >= self._limits.in_flight_per_connection:
            return self._limits.in_flight_per_connection
        return self._limits.in_flight if self._runtime.is_full() else 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served."""
        return not self._in_flight and not self._unwinding

    async def wait(self, seconds: float) -> None:
        """Wait until all running requests have ended, but at most `seconds`."""
        tasks = [one.task for one in self._in_flight.values() if one.task is not None] + list(self._unwinding)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def end_streams(self) -> int:
        """End the listen streams of this pipe gracefully; return how many there were."""
        return self._runtime.subscriptions.close(self._name)

    def stop(self) -> None:
        """Cancel all running requests, because the server stops. Each request is answered with an error."""
        own = list(self._in_flight.values())
        self._runtime.open_calls.end(lambda call: call.cancellation in own)

    def cancel(self) -> None:
        """Cancel all running requests without an answer, because the client has disconnected."""
        for cancellation in list(self._in_flight.values()):
            cancellation.cancel("the client is gone")

    async def close(self) -> None:
        """Close the session, and cancel the spare task."""
        await self._starter.close()
        if self._session is not None:
            await self._session.close()

    def receive(self, line: Line) -> None:
        """Serve one line from the client; None stands for a line that was too long.

        Errors are sent to the client and never raised, so that the next line can be served.
        """
        frame = None
        try:
            if line is None:
                raise ParseError(f"Parse error: a line has at most {self._limits.line_bytes} bytes.")
            if not line or line.isspace():
                return
            if line[0] != _BRACE and self._session is not None and self._session.takes_batch(line):
                frames = read_batch(line, self._limits)
            else:
                frames = [decode(line, self._limits)]
            for one in frames:  # each request is answered separately
                if isinstance(one, bytes):  # the error of an item that is not a message
                    self._writer.send(one)
                    continue
                frame = one
                if frame.is_request:
                    self._serve_request(frame)
                elif frame.method == "notifications/cancelled":
                    self._cancel(frame)
                elif self._session is not None:
                    self._session.take(frame)
        except ProtocolError as error:
            request_id = error.request_id if frame is None else frame.reply_id
            refused(frame and frame.method, "-", error.code, error.message)
            self._writer.send(encode_error(request_id, error.code, error.message, error.data))
        except Exception as error:  # noqa: BLE001 - an error in Weft must not stop the pipe
            text = report("Reading a message", error, debug=self._runtime.debug)
            self._writer.send(encode_error(None if frame is None else frame.reply_id, InternalError.code, text))

    def _serve_request(self, frame: Frame) -> None:
        request_id = frame.id
        assert isinstance(request_id, (int, str))  # `decode` has checked it
        runtime, in_flight = self._runtime, self._in_flight
        era, envelope = choose(runtime.eras, frame, None, runtime.offer)
        session = self._session if era.remembers else None
        connection = None if session is None else session.connection
        try:
            if request_id in in_flight:
                raise still_served()
            if full := self.full:
                raise busy(full)
            if envelope is None:
                envelope = era.open(frame, None, runtime.offer, connection)
        except ProtocolError as error:
            note_refusal(error)
            wire = era.refuse(error, opened=False)
            refused(frame.method, era.name, wire.code, wire.message)
            self._writer.send(encode_error(request_id, wire.code, wire.message, wire.data))
            return
        reply = _LineReply(self._writer)
        call = Call(
            runtime, request_id, envelope, era, reply, None, self._name, connection=connection, in_flight=in_flight
        )
        call.session = session
        cancellation = reply.cancellation = in_flight[request_id] = call.cancellation
        task = self._starter.start(self._run(call, reply, cancellation))
        if task is not None:
            cancellation.task = task
            runtime.in_flight += 1
            runtime.open_calls.add(call)
            task.add_done_callback(partial(self._count_out, call))  # also runs if the task never begins
            if cancellation.cancelled:  # cancelled in its first step, by a client in this process
                self._unwind(task)
                task.cancel()

    def _count_out(self, call: Call, _: asyncio.Task[Any]) -> None:
        self._runtime.in_flight -= 1
        self._runtime.open_calls.remove(call)

    async def _run(self, call: Call, reply: _LineReply, cancellation: Cancellation) -> None:
        """Run one call and write its answer."""
        dispatcher, in_flight = self._runtime.dispatcher, self._in_flight
        body = b""  # stays empty if the client has cancelled the call
        try:
            _, body = await dispatcher.run(call)
        except asyncio.CancelledError as error:
            if cancellation.told is not None:
                _, body = dispatcher.refuse(call, cancellation.told)
            elif not cancellation.cancelled:  # the handler has cancelled its own task
                _, body = dispatcher.fail(call, error)
        reply.answered = True
        if in_flight.get(call.id) is cancellation:  # else a notification of the client has removed it
            del in_flight[call.id]
        if cancellation.cancelled and cancellation.told is None:
            return
        line = _one_line(body)
        if not in_flight and reply.after_answer is None:  # no other line can be written together with it
            self._writer.send_now(line)
        else:
            self._writer.send(line)
            if reply.after_answer is not None:
                self._writer.send(reply.after_answer)

    def _cancel(self, frame: Frame) -> None:
        """Cancel the request that a notification names, if that request is running. Ignore a malformed notification."""
        try:
            params = _read_cancelled(frame.params if isinstance(frame.params, msgspec.Raw) else b"")
            cancellation = self._in_flight.pop(params.request_id)
        except (msgspec.DecodeError, KeyError):
            return
        if cancellation.task is not None:
            self._unwind(cancellation.task)
        cancellation.cancel(params.reason)
        log.debug("request %r cancelled: %s", params.request_id, (params.reason or "no reason given")[:200])

    def _unwind(self, task: asyncio.Task[Any]) -> None:
        """Count a cancelled request as running until its task ends, so that a client cannot exceed the limit."""
        self._unwinding.add(task)
        task.add_done_callback(self._unwinding.discard)


async def _send(writer: Writer, message: bytes) -> None:
    """Write one message, then wait until the client has read enough of the output."""
    writer.send(_one_line(message))
    await writer.drained()


def _one_line(message: bytes) -> bytes:
    """Return a JSON message with its newlines replaced by spaces. In JSON, newlines occur only between tokens."""
    return message.replace(b"\n", b" ")


class PipeSession(ClientChannel):
    """The session of a client on a pipe.

    It has the facts about the client, the server's requests that the client has not answered, and the changes that are
    not sent yet.
    """

    def __init__(self, runtime: Runtime, send: SendMessage, in_flight: dict[RequestId, Cancellation]) -> None:
        super().__init__("s", runtime.limits.ask_seconds, Connection.for_loop(self, in_flight=in_flight))
        self._runtime = runtime
        self._send = send
        self._changes_task: asyncio.Task[None] | None = None  # sends the changes in the inbox
        self._inbox = ChangeInbox(self.accepts, self.connection.subscribed_uris, self._start_sending)
        runtime.changes.open_inbox(self._inbox)

    async def send(self, message: bytes) -> None:
        """Write a message to the client."""
        await self._send(message)

    def take(self, frame: Frame) -> None:
        """Handle a notification of the client, or its response to a request of the server."""
        if frame.is_response:
            self.outstanding.answered(frame)
        else:
            take_notification(self._runtime, self, frame)

    def takes_batch(self, line: bytes) -> bool:
        """Return whether `line` is an array of messages, and the client's revision has batches."""
        return line.lstrip()[:1] == b"[" and SESSION.takes_batches(self.connection)

    async def close(self) -> None:
        """Close the inbox and the connection, and fail unanswered requests to the client, which has disconnected."""
        self._runtime.changes.close_inbox(self._inbox)
        self.outstanding.close()
        if self._changes_task is not None:
            self._changes_task.cancel()
        await self.connection.close()

    def _start_sending(self) -> None:
        if self._changes_task is None or self._changes_task.done():
            self._changes_task = asyncio.get_running_loop().create_task(self._send_changes(), name="weft-pipe-changes")

    async def _send_changes(self) -> None:
        while (change := self._inbox.take()) is not None:
            await self.send(encode_change(change))


# The following classes log every message. They are used only if the log level is debug.


def new_pipe(runtime: Runtime, writer: Writer) -> Pipe:
    """Return a new pipe. At the log level `debug`, the pipe logs every message."""
    return _LoggedPipe(runtime, _LoggedWriter(writer)) if is_wire_logged() else Pipe(runtime, writer)


class _LoggedPipe(Pipe):
    """A pipe that logs the lines that it receives."""

    def receive(self, line: Line) -> None:
        wire.debug("< %s", "a line that is too long" if line is None else masked_body(line.strip(), from_client=True))
        super().receive(line)


class _LoggedWriter:
    """A writer that logs the lines that it writes."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.drained = writer.drained

    def send(self, line: bytes) -> None:
        wire.debug("> %s", masked_body(line.strip()))
        self._writer.send(line)

    def send_now(self, line: bytes) -> None:
        wire.debug("> %s", masked_body(line.strip()))
        self._writer.send_now(line)


class _MemoryWriter:
    """Passes lines to a client in the same process."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self.send = self.send_now = deliver

    async def drained(self) -> None:
        """Return at once: the client gets every line immediately."""


class MemoryPipe:
    """The server's end of a pipe to a client in the same process.

    The client passes its messages to `send`. Messages to the client are passed to `deliver`. The first message starts
    the lifespan, if it is not started. Closing the pipe does not stop the lifespan.
    """

    def __init__(self, runtime: Runtime, deliver: Callable[[bytes], None]) -> None:
        self._runtime = runtime
        self._deliver = deliver
        self._pipe = new_pipe(runtime, _MemoryWriter(deliver))
        self._waiting: list[bytes] = []  # messages that came before the lifespan was started
        self._starting: asyncio.Task[None] | None = None

    def send(self, message: bytes) -> None:
        """Serve one message from the client, after the lifespan is started."""
        if self._runtime.lifespan.started:
            self._pipe.receive(message)
            return
        self._waiting.append(message)
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="weft-memory-start")

    async def close(self) -> None:
        """End the client's streams, cancel its requests and close its session."""
        if self._starting is not None:
            self._starting.cancel()
        self._pipe.end_streams()
        await asyncio.sleep(0)
        self._pipe.cancel()
        await self._pipe.wait(self._runtime.limits.drain_seconds)
        await self._pipe.close()

    async def _start(self) -> None:
        failure = None
        try:
            await self._runtime.lifespan.start()
        except Exception as error:  # noqa: BLE001 - any exception of a lifespan is reported to the client
            failure = self._runtime.lifespan.report(error)
        finally:
            self._starting = None
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            if failure is None:
                self._pipe.receive(message)
            else:
                self._refuse(message, failure)

    def _refuse(self, message: bytes, text: str) -> None:
        with suppress(ProtocolError):  # only requests are answered
            if (frame := decode(message, self._runtime.limits)).is_request:
                self._deliver(encode_error(frame.reply_id, InternalError.code, text))
