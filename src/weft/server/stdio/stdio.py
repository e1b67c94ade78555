"""Serve one client over stdin and stdout, one message per line, without blocking the event loop.

While the process serves, only the protocol uses its stdin and stdout. Other code, such as a stray `print`, a C library
or a child process, writes to stderr instead, and finds its input empty.

The event loop reports when input can be read. Where the event loop cannot do this (Windows, plain files), a thread
reads. Lines are delivered one chunk at a time. The next chunk is read when these lines are served, so that too many
messages fill the pipe, not the memory. Output is collected during one iteration of the event loop and written together.
A thread writes the part that the pipe does not accept immediately. The descriptors of the process are not made
non-blocking, because this would affect every process that shares them. Where a pipe can be opened a second time, the
second descriptor is non-blocking and private.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from weft.errors import StartError
from weft.jsonrpc import Line, LineSplitter
from weft.server.stdio.pipe import new_pipe

if TYPE_CHECKING:
    from weft.server.runtime.runtime import Runtime


PATIENCE = 5  # iterations of the event loop to wait for running requests, before the next request is refused
LAST_WORDS = 0.5  # seconds to wait for running requests after the input has ended; the client may still read


async def serve_stdio(runtime: Runtime, stdin: int | None = None, stdout: int | None = None) -> None:
    """Serve one client until it closes the pipe.

    `stdin` and `stdout` are file descriptors; default: those of the process. The lifespan is started, if it is not
    started. The lifespan is not stopped at the end, because another pipe may still be served.
    """
    with _process_pipes() if stdin is None or stdout is None else nullcontext((stdin, stdout)) as (source, sink):
        await runtime.lifespan.start()
        await _StdioConnection(runtime, source, sink, lingers=source != stdin).serve()


class _StdioConnection:
    """One client, connected by two file descriptors.

    If `lingers` is True, the reader blocks the event loop for a moment, to wait for the next request of a client that
    sends one request at a time. `lingers` must be False if the process serves other clients, too.
    """

    def __init__(self, runtime: Runtime, source: int, sink: int, *, lingers: bool) -> None:
        limits = runtime.limits
        self._drain_seconds = limits.drain_seconds
        self._loop = asyncio.get_running_loop()
        self._reader = LineReader(os.dup(source), limits.line_bytes, self._serve_lines, limits.stdio_linger_seconds)
        self._writer = LineWriter(sink, self._lose_output)
        self._pipe = new_pipe(runtime, self._writer)
        self._lingers = lingers and limits.stdio_linger_seconds > 0
        self._waited = 0  # iterations of the event loop since the limit of running requests was reached
        self._draining: asyncio.Task[None] | None = None  # waits until the client has read the output
        self._output_broken = False
        self._over = asyncio.Event()  # the input has ended, or the output is closed

    async def serve(self) -> None:
        """Serve the client until the input has ended, or the client has closed its end of the output."""
        try:
            await self._pipe.warm_up()
            self._reader.start()
            await self._over.wait()
            if not self._output_broken:
                self._pipe.end_streams()  # listen streams do not end by themselves
                await self._pipe.wait(LAST_WORDS)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._reader.stop()
        if self._draining is not None:
            self._draining.cancel()
        if self._pipe.end_streams() and not self._output_broken:
            await self._pipe.wait(LAST_WORDS)
        if not self._over.is_set():  # the server stops while the client still waits for answers
            self._pipe.stop()
        self._pipe.cancel()
        await self._pipe.wait(self._drain_seconds)
        await self._pipe.close()
        if self._output_broken:
            self._writer.release()
        else:
            await self._writer.close(self._drain_seconds)

    def _lose_output(self) -> None:
        self._output_broken = True
        self._over.set()

    def _serve_lines(self, lines: list[Line], ended: bool, first: int = 0) -> None:  # noqa: FBT001 - a callback
        """Serve the lines of one chunk, beginning with index `first`. Then read the next chunk, unless `ended` is True.

        If the limit of running requests is reached, wait some iterations of the event loop for running requests to
        finish, before the next request is refused.
        """
        self._writer.hold()
        try:
            for number in range(first, len(lines)):
                if self._pipe.full and self._waited < PATIENCE:
                    self._waited += 1
                    self._loop.call_soon(self._serve_lines, lines, ended, number)
                    return
                self._waited = 0
                self._pipe.receive(lines[number])
        finally:
            self._writer.flush()
        if ended:
            self._over.set()
        elif self._writer.congested:
            self._draining = self._loop.create_task(self._resume_later(), name="weft-stdio-drain")
        else:
            self._reader.resume(linger=self._lingers and len(lines) == 1 and self._pipe.is_idle)

    async def _resume_later(self) -> None:
        await self._writer.drained()
        self._reader.resume()


def check_pipes() -> None:
    """Raise StartError if stdin or stdout is closed.

    Call this function before an event loop is created. Otherwise a new descriptor of the event loop could get the
    number of the closed descriptor (0 or 1).
    """
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
    """Yield duplicates of stdin and stdout. Inside the context, other code has an empty stdin and prints to stderr."""
    source, sink = os.dup(0), os.dup(1)
    python_stdout = sys.stdout
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # there is no stderr
            os.dup2(nothing, 1)
        _flush(python_stdout)  # text that was printed before goes to stderr too
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
    with suppress(OSError, ValueError, AttributeError):  # closed, or None
        stream.flush()


CHUNK = 64 * 1024  # bytes to read at a time: the size of a pipe's buffer
QUEUED_BYTES = 8 * 1024 * 1024  # if more bytes of output than this wait for a slow client, no input is read
IN_A_ROW = 1e-3  # seconds after which other tasks run, even if the next line has arrived
AT_ONCE = getattr(select, "PIPE_BUF", 0)  # bytes that a writable pipe accepts without blocking; 0: unknown (Windows)


class LineReader:
    """Reads lines from a file descriptor and delivers them, one chunk at a time.

    `deliver(lines, ended)` is called in the event loop. The next chunk is read after `resume` was called; `deliver` may
    call `resume`. The reader owns the descriptor, and closes it.

    A client that sends one request at a time sends its next line shortly after it has read the last answer. With
    `resume(linger=True)`, the reader polls for this line without sleeping. This is faster, because most of the time of
    a short call over a pipe is spent on putting two processes to sleep and waking them up.
    """

    def __init__(
        self, fd: int, limit: int, deliver: Callable[[list[Line], bool], None], linger_seconds: float = 0.0
    ) -> None:
        self._fd = fd
        self._linger_seconds = linger_seconds  # how long `resume(linger=True)` waits for the next line
        self._splitter = LineSplitter(limit)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._turn: threading.Lock | None = None  # if a thread reads: locked from a chunk's delivery until `resume`
        self._delivered = False  # whether a chunk was delivered and `resume` was not called since
        self._lingers = False  # whether to wait for the next line before returning to the event loop
        self._paused = False  # whether the event loop has stopped watching the descriptor
        self._stopped = False

    def start(self) -> None:
        """Start reading. A thread reads if the event loop cannot watch the descriptor."""
        try:
            self._loop.add_reader(self._fd, self._readable)
        except (NotImplementedError, OSError):  # Windows, or a plain file
            self._turn = threading.Lock()
            # A daemon: a read that never returns must not keep the process alive.
            threading.Thread(target=self._read_all, name="weft-stdin", daemon=True).start()

    def resume(self, *, linger: bool = False) -> None:
        """Allow the reader to read the next chunk. Call this method when the delivered lines are served.

        If `linger` is True, the reader waits a moment for the next line, and blocks the event loop meanwhile.
        """
        self._delivered = False
        self._lingers = linger
        if self._turn is not None:
            self._turn.release()
        elif self._paused and not self._stopped:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def stop(self) -> None:
        """Stop reading, and close the descriptor. A thread cannot be interrupted: it closes the descriptor later."""
        if not self._stopped and self._turn is None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._stopped = True
        self._lingers = False

    def _readable(self) -> None:
        end = time.perf_counter() + IN_A_ROW
        while True:
            self._lingers = False
            try:
                chunk = os.read(self._fd, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""  # a broken pipe has ended
            self._hand_over(chunk)
            if not chunk:
                self.stop()
            elif self._delivered:
                self._paused = True
                self._loop.remove_reader(self._fd)
            if not self._lingers or time.perf_counter() >= end or not _comes_soon(self._fd, self._linger_seconds):
                return

    def _read_all(self) -> None:
        assert self._turn is not None
        chunk = None
        try:
            while chunk != b"":
                chunk = _read(self._fd)
                self._turn.acquire()
                self._loop.call_soon_threadsafe(self._hand_over, chunk)
        except RuntimeError:
            pass  # the loop is closed
        finally:
            os.close(self._fd)

    def _hand_over(self, chunk: bytes) -> None:
        if self._stopped:
            return
        self._delivered = True
        lines = self._splitter.feed(chunk) if chunk else self._splitter.finish()
        if lines or not chunk:
            self._deliver(lines, not chunk)
        else:
            self.resume()


class LineWriter:
    """Writes lines to a file descriptor without blocking the event loop.

    `broken` is called when the client has closed its end: at once if the event loop can watch the descriptor, otherwise
    when the next line is written. Between `hold` and `flush`, lines are collected, to be written together.
    """

    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        self._fd = fd
        self._own_fd = _opened_again(fd)  # a second, non-blocking descriptor of the same pipe; None if not possible
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []  # collected, but not written yet
        self._held = False  # whether lines are collected until `flush` is called
        self._queue: SimpleQueue[bytes] = SimpleQueue()  # output for the thread; b"" ends the thread
        self._queued = 0  # bytes that the thread has not written yet
        self._thread: threading.Thread | None = None  # started when the pipe is full for the first time
        self._drained = asyncio.Event()
        self._drained.set()
        self._done = asyncio.Event()  # set when the thread has written everything
        self._watched_fd = self._watch()

    def _watch(self) -> int | None:
        """Let the event loop watch a duplicate of the descriptor. Return the duplicate; None if this is not possible.

        When the client has closed its end, the event loop reports the duplicate as readable. An event loop has only one
        reader for each descriptor, and other code may watch the descriptor itself.
        """
        mode = os.fstat(self._fd).st_mode
        if not hasattr(select, "poll") or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return None
        fd = os.dup(self._fd)
        try:
            self._loop.add_reader(fd, self._look)
        except (NotImplementedError, OSError):
            os.close(fd)
            return None
        return fd

    def _look(self) -> None:
        self._stop_watching()  # also if the client has written to our stdout, which is ignored
        if _poll(self._fd, 0).poll(0):  # an error, or hung up
            self._broken()

    def _stop_watching(self) -> None:
        fd, self._watched_fd = self._watched_fd, None
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def send(self, line: bytes) -> None:
        """Add one line to the output. It is written in the next iteration of the event loop, or by `flush`."""
        if not self._lines and not self._held:
            self._loop.call_soon(self.flush)
        self._lines.append(line)

    def send_now(self, line: bytes) -> None:
        """Write one line at once. After `hold` was called, only add the line to the output."""
        self._lines.append(line)
        if not self._held:
            self.flush()

    def hold(self) -> None:
        """Collect lines until `flush` is called."""
        self._held = True

    @property
    def congested(self) -> bool:
        """Whether so much output is waiting for the client that the server should read no more requests."""
        return not self._drained.is_set()

    async def drained(self) -> None:
        """Wait until `congested` is False, because the client has read enough of the output."""
        await self._drained.wait()

    async def close(self, timeout: float) -> None:
        """Write the remaining output, for at most `timeout` seconds. Then call `release`."""
        self.flush()
        if self._thread is not None:
            self._queue.put(b"")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), timeout)
        self.release()

    def release(self) -> None:
        """Close the descriptor that this writer has opened, so that the client sees the end of the output."""
        self._stop_watching()
        own_fd, self._own_fd = self._own_fd, None
        if own_fd is not None:
            os.close(own_fd)

    def flush(self) -> None:
        """Write the collected lines. If the pipe is full, a thread writes the remaining bytes."""
        self._held = False
        if not self._lines:
            return
        self._lines.append(b"")
        data = b"\n".join(self._lines)
        self._lines.clear()
        try:
            data = data[self._write_some(data) :]
        except BlockingIOError:
            pass
        except OSError:
            self._broken()
            return
        if data:
            self._enqueue(data)

    def _write_some(self, data: bytes) -> int:
        """Write as many bytes of `data` as possible without blocking, and return their number.

        Write nothing if earlier output is still queued for the thread.
        """
        if self._queued:
            return 0
        if self._own_fd is not None:
            return os.write(self._own_fd, data)
        if len(data) <= AT_ONCE and _poll(self._fd, select.POLLOUT).poll(0):
            return os.write(self._fd, data)  # only a part, if a parent process has made the pipe non-blocking
        return 0

    def _enqueue(self, data: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-stdout", daemon=True)
            self._thread.start()
        self._queued += len(data)
        if self._queued > QUEUED_BYTES:
            self._drained.clear()
        self._queue.put(data)

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            try:
                while data := self._queue.get():
                    _write(self._fd, data)
                    self._loop.call_soon_threadsafe(self._count_written, len(data))
            except OSError:
                self._loop.call_soon_threadsafe(self._broken)
                self._loop.call_soon_threadsafe(self._drained.set)
            self._loop.call_soon_threadsafe(self._done.set)

    def _count_written(self, size: int) -> None:
        self._queued -= size
        if self._queued <= QUEUED_BYTES // 2:
            self._drained.set()


def _opened_again(fd: int) -> int | None:
    """Open the pipe of `fd` a second time, and return a new, non-blocking descriptor; None if this is not possible.

    `fd` itself stays blocking. This works only for pipes on Linux. A socket cannot be opened again. On other systems,
    opening `/dev/fd` only duplicates the descriptor, and making the duplicate non-blocking would change both.
    """
    if sys.platform != "linux" or not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no /proc, another user's pipe, or a pipe without a reader
        return None


def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:  # a parent process may have made the shared pipe non-blocking
            _poll(fd, select.POLLIN).poll()
        except OSError:
            return b""  # a broken pipe has ended


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _poll(fd, select.POLLOUT).poll()


def _comes_soon(fd: int, seconds: float) -> bool:
    """Return whether input arrives within `seconds`. This function polls without sleeping."""
    poll = _poll(fd, select.POLLIN)
    end = time.perf_counter() + seconds
    while not poll.poll(0):
        if time.perf_counter() > end:
            return False
    return True


def _poll(fd: int, events: int) -> select.poll:
    """Return an object that polls one descriptor for `events`. Never called on Windows, which has no `select.poll`."""
    poll = select.poll()  # `select.select` does not support descriptors above 1023
    poll.register(fd, events)
    return poll
