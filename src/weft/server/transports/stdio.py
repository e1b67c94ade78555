"""stdio: one line per message, one client, as long as the process lives.

Owns the pipe: what a line is answered with before anybody has read its meaning, which requests are being served, and
when it ends. While it serves, the descriptors 0 and 1 are the protocol's alone: a stray `print`, a C library or a child
process writes to stderr and reads nothing (STDIO-02).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import InternalError, InvalidRequest, ParseError, ProtocolError, StartError
from weft.jsonrpc import Frame, decode, encode_error
from weft.server.call import Call
from weft.server.connection import Cancellation, Connection
from weft.server.faults import note_refusal, report
from weft.server.transports.lines import Line, LineReader, LineWriter
from weft.server.transports.load import busy, is_full
from weft.types.base import RequestId

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["check_pipes", "serve_stdio"]

log = logging.getLogger("weft.stdio")

_pipes = count(1)  # a name for each, by which its listen streams are told from those of others

PATIENCE = 5  # turns of the loop that requests get to finish before the next one is refused
LAST_WORDS = 0.5  # seconds that requests get to finish when the input has ended; the client still waits for them


async def serve_stdio(server: Server, stdin: int | None = None, stdout: int | None = None) -> None:
    """Serve one client until its end of the pipe is closed.

    `stdin` and `stdout` are file descriptors of another pair of pipes; without them, those of the process are used.
    The lifespan is started if it was not; it is not stopped here, for another pipe may be served as well.
    """
    with _process_pipes() if stdin is None or stdout is None else nullcontext((stdin, stdout)) as (source, sink):
        await server.lifespan.start()
        await _Pipe(server, source, sink).serve()


class _CancelledParams(msgspec.Struct, rename="camel"):
    request_id: RequestId
    reason: str | None = None


_read_cancelled = msgspec.json.Decoder(_CancelledParams).decode


class _LineReply:
    """Where the notifications of one call go, until it is answered or cancelled (STDIO-10, PROG-06)."""

    __slots__ = ("_writer", "answered", "cancellation", "last_words")

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self.answered = False
        self.last_words: bytes | None = None
        self.cancellation: Cancellation | None = None  # set when there is a call

    @property
    def can_stream(self) -> bool:
        return True

    async def notify(self, message: bytes) -> None:
        if self.answered or (self.cancellation is not None and self.cancellation.cancelled):
            return
        self._writer.send(_one_line(message))
        if self._writer.congested:
            await self._writer.drained()

    async def keep_alive(self) -> None:
        """Not needed: a pipe does not fall asleep."""

    def epilogue(self, message: bytes) -> None:
        self.last_words = message


class _Pipe:
    """One client, and the requests of it that are being served."""

    def __init__(self, server: Server, source: int, sink: int) -> None:
        self._server = server
        self._limits = server.limits
        self._peer = f"pipe {next(_pipes)}"
        self._loop = asyncio.get_running_loop()
        self._reader = LineReader(os.dup(source), server.limits.line_bytes, self._deliver)
        self._writer = LineWriter(sink, self._break)
        self._backlog: deque[Line] = deque()  # lines that were read and not yet looked at
        self._in_flight: dict[RequestId, Cancellation] = {}
        self._unwinding: set[asyncio.Task[Any]] = set()  # cancelled, not yet ended
        self._waited = 0  # turns of the loop since the limit was met
        self._waiting: asyncio.Task[None] | None = None  # for a slow reader of our output
        self._input_ended = False
        self._output_broken = False
        self._over = asyncio.Event()

    async def serve(self) -> None:
        """Until the input has ended, or nobody reads the output any more."""
        self._reader.start()
        try:
            await self._over.wait()
            if not self._output_broken and (tasks := self._tasks()):
                self._server.subscriptions.close(self._peer)  # or their streams would be waited for in vain
                await asyncio.wait(tasks, timeout=LAST_WORDS)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """Nobody waits for what is still running (STDIO-12)."""
        self._reader.stop()
        ended = self._server.subscriptions.close(self._peer)
        if ended and not self._output_broken and (tasks := self._tasks()):
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        for cancellation in list(self._in_flight.values()):
            cancellation.cancel("the client is gone")
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=self._limits.drain_seconds)
        if not self._output_broken:
            await self._writer.close(self._limits.drain_seconds)

    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [one.task for one in self._in_flight.values() if one.task is not None] + list(self._unwinding)

    def _break(self) -> None:
        """Our output is closed: nothing can be answered any more (D15)."""
        self._output_broken = True
        self._over.set()

    # Lines in.

    def _deliver(self, lines: list[Line], ended: bool) -> None:  # noqa: FBT001 - a callback of LineReader
        self._backlog.extend(lines)
        self._input_ended = ended
        self._pump()

    def _pump(self) -> None:
        """Look at the lines. Where the limit is met, quick requests get the chance to finish before one is refused."""
        while self._backlog:
            full = self._full()
            if full and self._waited < PATIENCE:
                self._waited += 1
                self._loop.call_soon(self._pump)
                return
            self._waited = 0
            self._receive(self._backlog.popleft(), full=full)
        if self._input_ended:
            self._over.set()
        elif self._writer.congested:
            self._waiting = self._loop.create_task(self._resume_later(), name="weft-stdio-drain")
        else:
            self._reader.resume()

    def _full(self) -> int:
        """The limit that is met, of this pipe or of the process; 0 if none is."""
        if len(self._in_flight) + len(self._unwinding) >= self._limits.in_flight_per_connection:
            return self._limits.in_flight_per_connection
        return self._limits.in_flight if is_full(self._server) else 0

    async def _resume_later(self) -> None:
        await self._writer.drained()
        self._reader.resume()

    def _receive(self, line: Line, *, full: int) -> None:
        """One line. Whatever it is, the next one is looked at as well (R1)."""
        frame = None
        try:
            if line is None:
                raise ParseError(f"Parse error: a line has at most {self._limits.line_bytes} bytes.")
            if not line or line.isspace():
                return
            frame = decode(line, self._limits)
            self._take(frame, full=full)
        except ProtocolError as error:
            request_id = error.request_id if frame is None else frame.reply_id
            self._writer.send(encode_error(request_id, error.code, error.message, error.data))
        except Exception as error:  # noqa: BLE001 - a fault of ours must not stop the pipe
            text = report("Reading a message", error, debug=self._server.debug)
            self._writer.send(encode_error(frame and frame.reply_id, InternalError.code, text))

    def _take(self, frame: Frame, *, full: int) -> None:
        if frame.is_request:
            self._start(frame, full=full)
        elif frame.method == "notifications/cancelled":
            self._cancel(frame)
        else:  # a server of this era asks nothing, so a response answers nothing (JRPC-24)
            log.debug("%s ignored: nothing waits for it", frame.method or "a response")

    def _start(self, frame: Frame, *, full: int) -> None:
        request_id = frame.id
        assert isinstance(request_id, int | str)  # `decode` has checked it
        era = self._server.choose_era(frame)
        try:
            if request_id in self._in_flight:  # D9, JRPC-05
                raise InvalidRequest("Invalid request: a request with this id is still being served.")
            if full:
                raise busy(full)
            envelope = era.open(frame, None, self._server.offer, None)
        except ProtocolError as error:
            note_refusal(error)
            wire = era.refuse(error, opened=False)
            self._writer.send(encode_error(request_id, wire.code, wire.message, wire.data))
            return
        connection = Connection.from_envelope(
            envelope.revision.version, envelope.client_info, envelope.client_capabilities, in_flight=self._in_flight
        )
        reply = _LineReply(self._writer)
        call = Call(self._server, request_id, envelope, era, reply, connection=connection, peer=self._peer)
        reply.cancellation = self._in_flight[request_id] = call.cancellation
        self._server.in_flight += 1
        call.cancellation.task = self._loop.create_task(self._serve(call, reply))
        call.cancellation.task.add_done_callback(self._count_out)  # also of a task that is cancelled before it begins

    def _count_out(self, _: asyncio.Task[Any]) -> None:
        self._server.in_flight -= 1

    async def _serve(self, call: Call, reply: _LineReply) -> None:
        try:
            _, body = await self._server.dispatcher.run(call)
        except asyncio.CancelledError:
            return
        reply.answered = True
        if not call.cancellation.cancelled:  # CAN-09: a cancellation may come while the last line is being made
            del self._in_flight[call.id]
            self._writer.send(_one_line(body))
            if reply.last_words is not None:
                self._writer.send(reply.last_words)
            if not self._in_flight:  # nothing else will be there to write with it
                self._writer.flush()

    def _cancel(self, frame: Frame) -> None:
        """Give a request up. Unknown, finished and malformed ones are nothing to speak of (CAN-07, CAN-10)."""
        try:
            params = _read_cancelled(frame.params if isinstance(frame.params, msgspec.Raw) else b"")
        except msgspec.DecodeError:
            return
        cancellation = self._in_flight.pop(params.request_id, None)
        if cancellation is None or cancellation.task is None:
            return
        # It counts until it has ended, whatever the client believes: else cancelling would be a way past the limit.
        self._unwinding.add(cancellation.task)
        cancellation.task.add_done_callback(self._unwinding.discard)
        cancellation.cancel(params.reason)
        log.debug("request %r cancelled: %s", params.request_id, (params.reason or "no reason given")[:200])


def _one_line(message: bytes) -> bytes:
    """JSON has newlines only between its tokens, where a space means the same (STDIO-01)."""
    return message.replace(b"\n", b" ") if b"\n" in message else message


def check_pipes() -> None:
    """Refuse to start without stdin and stdout. Asked before there is a loop: it would take their numbers."""
    try:
        os.fstat(0)
        os.fstat(1)
    except OSError:
        raise StartError(
            "stdin or stdout is closed, so there is no pipe to serve on; start the server from an MCP client, "
            "or serve over HTTP: run('http')."
        ) from None


@contextmanager
def _process_pipes() -> Generator[tuple[int, int]]:
    """The process's own stdin and stdout, out of everybody else's reach meanwhile."""
    source, sink = os.dup(0), os.dup(1)
    python_stdout = sys.stdout
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # there is no stderr
            os.dup2(nothing, 1)
        _flush(python_stdout)  # what was printed before goes to stderr too
        sys.stdout = sys.stderr
        yield source, sink
    finally:
        _flush(python_stdout)
        sys.stdout = python_stdout
        os.dup2(source, 0)
        os.dup2(sink, 1)
        for fd in (source, sink, nothing):
            os.close(fd)


def _flush(stream: Any) -> None:
    with suppress(OSError, ValueError, AttributeError):  # closed, or never there
        stream.flush()
