"""Serve one client over lines, and keep its session: stdio, or a client in the same process.

A request that says everything about itself is served alone; the others belong to the one session that a pipe can have.
Both may come on the same pipe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from weft.eras.base import choose
from weft.eras.session import SESSION
from weft.errors import InternalError, ParseError, ProtocolError
from weft.jsonrpc import Frame, decode, encode_error, encode_notification
from weft.net.logs import masked_body
from weft.server.calls.call import Call
from weft.server.calls.changes import Change, encode_change, note
from weft.server.calls.connection import Cancellation, Connection
from weft.server.calls.pending import OnProgress, PendingRequests, SendMessage
from weft.server.calls.tasks import EagerTaskStarter
from weft.server.diagnostics import note_refusal, report
from weft.server.runtime.load import busy, still_served
from weft.server.runtime.request_log import is_wire_logged, refused
from weft.server.runtime.request_log import log as wire
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.session import read_batch
from weft.server.sessions.sessions import take_notification
from weft.types.base import RequestId
from weft.types.lifecycle import CancelledParams

log = logging.getLogger("weft.pipe")

_BRACE = ord("{")

_names = count(1)  # one for each, by which its listen streams are told from those of others

_read_cancelled = msgspec.json.Decoder(CancelledParams).decode


class Writer(Protocol):
    """Lines out."""

    def send(self, line: bytes) -> None:
        """Write one line, soon."""
        ...

    def send_now(self, line: bytes) -> None:
        """Write one line without waiting for others to go with it."""
        ...

    @property
    def congested(self) -> bool:
        """Whether so much waits to be read that no more should be produced."""
        ...

    async def drained(self) -> None:
        """Wait until the other end has caught up."""
        ...


class _LineReply:
    """Where the notifications of one call go, until it is answered or cancelled (STDIO-10, PROG-06)."""

    __slots__ = ("_writer", "answered", "cancellation", "last_words")

    can_stream = True

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.answered = False
        self.last_words: bytes | None = None
        self.cancellation: Cancellation | None = None  # set when there is a call

    async def notify(self, message: bytes) -> None:
        if not self.answered and not (self.cancellation is not None and self.cancellation.cancelled):
            await _send(self._writer, message)

    async def close_stream(self, retry_seconds: float) -> None:
        """Not possible: there is one stream, and it is the connection."""

    def epilogue(self, message: bytes) -> None:
        self.last_words = message

    async def end(self) -> None:
        """Do nothing: there is one stream, and it is the connection."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Do nothing: a line has no headers."""


class Pipe:
    """One client, and the requests of it that are being served."""

    def __init__(self, runtime: Runtime, writer: Writer) -> None:
        self._runtime = runtime
        self._limits = runtime.limits
        self._writer = writer
        self._starter = EagerTaskStarter(asyncio.get_running_loop())
        self._name = f"pipe {next(_names)}"
        self._in_flight: dict[RequestId, Cancellation] = {}
        self._unwinding: set[asyncio.Task[Any]] = set()  # cancelled, not yet ended
        self._eras = runtime.eras
        self._session: PipeSession | None = None  # the one that a pipe can have, where eras are served that know them
        if any(era.remembers for era in runtime.eras):
            self._session = PipeSession(runtime, partial(_send, writer), self._in_flight)

    # What whoever owns the lines asks.

    async def warm_up(self) -> None:
        """To be awaited before the first line: a handshake is then done before the next one is looked at."""
        await self._starter.warm_up()

    @property
    def full(self) -> int:
        """The limit that is met, of this pipe or of the process; 0 if none is."""
        if len(self._in_flight) + len(self._unwinding) >= self._limits.in_flight_per_connection:
            return self._limits.in_flight_per_connection
        return self._limits.in_flight if self._runtime.is_full() else 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being served."""
        return not self._in_flight and not self._unwinding

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The requests that have not ended."""
        return [one.task for one in self._in_flight.values() if one.task is not None] + list(self._unwinding)

    def end_streams(self) -> int:
        """End the listen streams of this pipe gracefully. How many it were."""
        return self._runtime.subscriptions.close(self._name)

    def stop(self) -> None:
        """Give up what is being served because the server stops, and tell the client so."""
        own = list(self._in_flight.values())
        self._runtime.open_calls.end(lambda call: call.cancellation in own)

    def cancel(self) -> None:
        """Give up what is being served: the client is gone."""
        for cancellation in list(self._in_flight.values()):
            cancellation.cancel("the client is gone")

    async def close(self) -> None:
        """Release what is remembered of the client."""
        await self._starter.close()
        if self._session is not None:
            await self._session.close()

    def receive(self, line: bytes | None, *, full: int = 0) -> None:
        """One line; None stands for one that was too long. Whatever it is, the next is looked at as well (R1)."""
        frame = None
        try:
            if line is None:
                raise ParseError(f"Parse error: a line has at most {self._limits.line_bytes} bytes.")
            if not line or line.isspace():
                return
            if line[0] != _BRACE and self._session is not None and self._session.takes_batch(line):
                self._take_all(self._session.read_batch(line))
                return
            frame = decode(line, self._limits)
            self._take(frame, full=full)
        except ProtocolError as error:
            request_id = error.request_id if frame is None else frame.reply_id
            refused(frame and frame.method, "-", error.code, error.message)
            self._writer.send(encode_error(request_id, error.code, error.message, error.data))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not stop the pipe
            text = report("Reading a message", error, debug=self._runtime.debug)
            self._writer.send(encode_error(None if frame is None else frame.reply_id, InternalError.code, text))

    # Messages in.

    def _take_all(self, batch: list[Frame | bytes]) -> None:
        """The messages of an array, each answered by itself (L03-03); where one was none, its refusal."""
        for one in batch:
            if isinstance(one, Frame):
                self._take(one, full=self.full)
            else:
                self._writer.send(one)

    def _take(self, frame: Frame, *, full: int) -> None:
        if frame.is_request:
            self._start(frame, full=full)
        elif frame.method == "notifications/cancelled":
            self._cancel(frame)
        elif self._session is not None:
            self._session.take(frame)
        else:  # who asks nothing is answered nothing (JRPC-24)
            log.debug("%s ignored: nothing waits for it", frame.method or "a response")

    def _start(self, frame: Frame, *, full: int) -> None:
        request_id = frame.id
        assert request_id is not None  # `decode` has checked it
        assert request_id is not UNSET
        era, envelope = choose(self._eras, frame, None, self._runtime.offer)
        session = self._session if era.remembers else None
        connection = None if session is None else session.connection
        try:
            if request_id in self._in_flight:  # JRPC-05
                raise still_served()
            if full:
                raise busy(full)
            if envelope is None:
                envelope = era.open(frame, None, self._runtime.offer, connection)
        except ProtocolError as error:
            note_refusal(error)
            wire = era.refuse(error, opened=False)
            refused(frame.method, era.name, wire.code, wire.message)
            self._writer.send(encode_error(request_id, wire.code, wire.message, wire.data))
            return
        reply = _LineReply(self._writer)
        call = Call(
            self._runtime,
            request_id,
            envelope,
            era,
            reply,
            peer=self._name,
            connection=connection,
            in_flight=self._in_flight,
        )
        call.session = session
        self._run(call, reply)

    def _run(self, call: Call, reply: _LineReply) -> None:
        cancellation = reply.cancellation = self._in_flight[call.id] = call.cancellation
        task = self._starter.start(self._serve(call, reply, cancellation))
        if task is not None:
            cancellation.task = task
            self._runtime.in_flight += 1
            self._runtime.open_calls.add(call)
            task.add_done_callback(partial(self._count_out, call))  # also of one that is cancelled before it begins
            if cancellation.cancelled:  # in its first step, by a client in this process that was told something
                self._unwind(task)
                task.cancel()

    def _count_out(self, call: Call, _: asyncio.Task[Any]) -> None:
        self._runtime.in_flight -= 1
        self._runtime.open_calls.remove(call)

    async def _serve(self, call: Call, reply: _LineReply, cancellation: Cancellation) -> None:
        try:
            _, body = await self._runtime.dispatcher.run(call)
        except asyncio.CancelledError as error:
            if cancellation.told is not None:
                _, body = self._runtime.dispatcher.refuse(call, cancellation.told)
            elif cancellation.cancelled:
                if self._in_flight.get(call.id) is cancellation:  # not by the client, who would have been heard of
                    del self._in_flight[call.id]
                return
            else:  # The task is the call's own: nobody but the handler has cancelled it (R1).
                _, body = self._runtime.dispatcher.fail(call, error)
        reply.answered = True
        if (
            not cancellation.cancelled or cancellation.told is not None
        ):  # CAN-09: a cancellation may come while the last line is being made
            del self._in_flight[call.id]
            line = _one_line(body)
            if not self._in_flight and reply.last_words is None:  # nothing else will be there to write with it
                self._writer.send_now(line)
            else:
                self._writer.send(line)
                if reply.last_words is not None:
                    self._writer.send(reply.last_words)

    def _cancel(self, frame: Frame) -> None:
        """Give a request up. Unknown, finished and malformed ones are nothing to speak of (CAN-07, CAN-10)."""
        try:
            params = _read_cancelled(frame.params if isinstance(frame.params, msgspec.Raw) else b"")
        except msgspec.DecodeError:
            return
        cancellation = self._in_flight.pop(params.request_id, None)
        if cancellation is None:
            return
        if cancellation.task is not None:
            self._unwind(cancellation.task)
        cancellation.cancel(params.reason)
        log.debug("request %r cancelled: %s", params.request_id, (params.reason or "no reason given")[:200])

    def _unwind(self, task: asyncio.Task[Any]) -> None:
        """It counts until it has ended, whatever the client believes: else cancelling would be a way past the limit."""
        self._unwinding.add(task)
        task.add_done_callback(self._unwinding.discard)


async def _send(writer: Writer, message: bytes) -> None:
    """One message out, at the pace of who reads."""
    writer.send(_one_line(message))
    if writer.congested:
        await writer.drained()


def _one_line(message: bytes) -> bytes:
    """JSON has newlines only between its tokens, where a space means the same (STDIO-01)."""
    return message.replace(b"\n", b" ")


class PipeSession:
    """The connection of a pipe's client, its unanswered questions, and the changes it has to be told.

    It is the `Outbound` too: what the server says on its own is a line like any other.
    """

    is_readable = True

    def __init__(self, runtime: Runtime, send: SendMessage, in_flight: dict[RequestId, Cancellation]) -> None:
        self._runtime = runtime
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Change, None] = {}  # changes not yet told; told once, however often they happened
        self._telling: asyncio.Task[None] | None = None
        self.outstanding = PendingRequests("s", send)
        self.connection = Connection.for_loop(self, in_flight=in_flight)
        self._unsubscribe = runtime.changes.subscribe(self._heard)

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Ask the client, outside any call."""
        limit = self._runtime.limits.ask_seconds if timeout is None else timeout
        answer = await self.outstanding.request(self._send, method, params, timeout=limit, on_progress=on_progress)
        return msgspec.json.decode(answer)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the client something, outside any call."""
        await self._send(encode_notification(method, UNSET if params is None else params))

    def take(self, frame: Frame) -> None:
        """A notification, or the answer to a question."""
        if frame.is_response:
            self.outstanding.answered(frame)
        else:
            take_notification(self._runtime, self.connection, self.outstanding, frame)

    def takes_batch(self, line: bytes) -> bool:
        """Whether this line is an array of messages, and the client's revision has them (L03-01)."""
        return line.lstrip()[:1] == b"[" and SESSION.takes_batches(self.connection)

    def read_batch(self, line: bytes) -> list[Frame | bytes]:
        """The messages of an array; in place of one that is none, the refusal of it."""
        return read_batch(line, self._runtime.limits)

    async def close(self) -> None:
        """The client is gone: release everything."""
        self._unsubscribe()
        self.outstanding.close()
        if self._telling is not None:
            self._telling.cancel()
        await self.connection.close()

    # Changes.

    def _heard(self, change: Change) -> None:
        """A change, in the thread of whoever made it."""
        connection = self.connection
        if connection.handshake_done and connection.is_ready and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, change)

    def _tell(self, change: Change) -> None:
        uris = self.connection.subscribed_uris
        if not change.concerns(uris):
            return
        note(self._pending, change, uris)
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._tell_all(), name="weft-pipe-changes")

    async def _tell_all(self) -> None:
        while self._pending:
            change = next(iter(self._pending))
            del self._pending[change]
            await self._send(encode_change(change))


# The wire in the log. Where the level is off, nothing of this runs.


def new_pipe(runtime: Runtime, writer: Writer) -> Pipe:
    """Make a pipe, one that logs the wire if the level is on."""
    return _LoggedPipe(runtime, _LoggedWriter(writer)) if is_wire_logged() else Pipe(runtime, writer)


class _LoggedPipe(Pipe):
    """A pipe that logs the lines that come in."""

    def receive(self, line: bytes | None, *, full: int = 0) -> None:
        wire.debug("< %s", "a line that is too long" if line is None else masked_body(line.strip(), from_client=True))
        super().receive(line, full=full)


class _LoggedWriter:
    """A writer that logs the lines that go out."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.send_now: Any = self._logged(writer.send_now)
        self.send: Any = self._logged(writer.send)

    def _logged(self, send: Any) -> Any:
        def logged(line: bytes) -> None:
            wire.debug("> %s", masked_body(line.strip()))
            send(line)

        return logged

    @property
    def congested(self) -> bool:
        return self._writer.congested

    async def drained(self) -> None:
        await self._writer.drained()


class _Handing:
    """Lines to somebody in the same process."""

    congested = False

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver

    def send(self, line: bytes) -> None:
        self._deliver(line)

    def send_now(self, line: bytes) -> None:
        self._deliver(line)

    async def drained(self) -> None:
        """They are with the other side at once."""


class MemoryPipe:
    """The server's end. `send` takes one message of the client; what is said to it is handed to `deliver`.

    The lifespan is entered with the first message, if nobody did before; it is not left here.
    """

    def __init__(self, runtime: Runtime, deliver: Callable[[bytes], None]) -> None:
        self._runtime = runtime
        self._deliver = deliver
        self._pipe = new_pipe(runtime, _Handing(deliver))
        self._waiting: list[bytes] = []  # for the lifespan to be entered
        self._starting: asyncio.Task[None] | None = None

    def send(self, message: bytes) -> None:
        """Take one message."""
        if self._runtime.lifespan.started:
            self._pipe.receive(message, full=self._pipe.full)
            return
        self._waiting.append(message)
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="weft-memory-start")

    async def close(self) -> None:
        """The client goes: end its streams, cancel what it asked for, release what is remembered of it."""
        if self._starting is not None:
            self._starting.cancel()
        self._pipe.end_streams()
        await asyncio.sleep(0)
        self._pipe.cancel()
        if tasks := self._pipe.tasks:
            await asyncio.wait(tasks, timeout=self._runtime.limits.drain_seconds)
        await self._pipe.close()

    def _refuse_waiting(self, text: str) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            with suppress(ProtocolError):  # what is no request is answered nothing
                if (frame := decode(message, self._runtime.limits)).is_request:
                    self._deliver(encode_error(frame.reply_id, InternalError.code, text))

    async def _start(self) -> None:
        try:
            await self._runtime.lifespan.start()
        except Exception as error:  # noqa: BLE001 - R1: whatever a lifespan raises, it is told to who waits
            text = self._runtime.lifespan.report(error)
            self._refuse_waiting(text)
            return
        finally:
            self._starting = None
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._pipe.receive(message, full=self._pipe.full)
