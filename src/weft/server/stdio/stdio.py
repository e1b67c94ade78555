"""Serve over stdin and stdout: one line per message, one client, without blocking the event loop.

While the process serves, the descriptors 0 and 1 belong to the protocol: a stray `print`, a C library or a child
process writes to stderr and reads nothing.

The event loop reports when there is something to read; where it cannot (Windows, plain files), a thread reads. Lines
are delivered one chunk at a time, and the next chunk is read when they are served, so that a flood stays in the pipe
and not in memory. Output is collected for one turn of the loop and written in one go; a thread writes what the pipe
does not take immediately. No descriptor is made non-blocking, because that would change it for every process that
shares it. Where a pipe can be opened a second time, the second descriptor is non-blocking and private.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from weft.errors import StartError
from weft.jsonrpc import Line, LineSplitter
from weft.server.stdio.pipe import new_pipe

if TYPE_CHECKING:
    from weft.server.runtime.runtime import Runtime


PATIENCE = 5  # turns of the loop in which requests may finish before the next one is refused
LAST_WORDS = 0.5  # seconds in which requests may finish when the input has ended; the client still reads


async def serve_stdio(runtime: Runtime, stdin: int | None = None, stdout: int | None = None) -> None:
    """Serve one client until its end of the pipe is closed.

    `stdin` and `stdout` are file descriptors of another pair of pipes; default: those of the process. The lifespan is
    started if needed. It is not stopped here, because another pipe may be served as well.
    """
    with _process_pipes() if stdin is None or stdout is None else nullcontext((stdin, stdout)) as (source, sink):
        await runtime.lifespan.start()
        await _StdioConnection(runtime, source, sink, lingers=source != stdin).serve()


class _StdioConnection:
    """The client at the other ends of two descriptors.

    With `lingers`, the reader waits a moment for the next of requests that come one by one: there is only this client.
    """

    def __init__(self, runtime: Runtime, source: int, sink: int, *, lingers: bool) -> None:
        linger_seconds = runtime.limits.stdio_linger_seconds
        self._drain_seconds = runtime.limits.drain_seconds
        self._loop = asyncio.get_running_loop()
        self._reader = LineReader(
            os.dup(source), runtime.limits.line_bytes, self._serve_lines, linger_seconds=linger_seconds
        )
        self._writer = LineWriter(sink, self._lose_output)
        self._pipe = new_pipe(runtime, self._writer)
        self._lingers = lingers and linger_seconds > 0
        self._waited = 0  # turns of the loop since the limit of running requests was met
        self._draining: asyncio.Task[None] | None = None  # waits until the client has read our output
        self._output_broken = False
        self._over = asyncio.Event()  # the input has ended, or the output is closed

    async def serve(self) -> None:
        """Serve until the input has ended, or the client has closed our output."""
        try:
            await self._pipe.warm_up()
            self._reader.start()
            await self._over.wait()
            if not self._output_broken and (tasks := self._pipe.tasks):
                self._pipe.end_streams()  # they never end by themselves
                await asyncio.wait(tasks, timeout=LAST_WORDS)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._reader.stop()
        if self._draining is not None:
            self._draining.cancel()
        if self._pipe.end_streams() and not self._output_broken and (tasks := self._pipe.tasks):
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        if not self._over.is_set():  # the server ends it, and the client still waits for answers
            self._pipe.stop()
        self._pipe.cancel()
        if tasks := self._pipe.tasks:
            await asyncio.wait(tasks, timeout=self._drain_seconds)
        await self._pipe.close()
        if self._output_broken:
            self._writer.release()
        else:
            await self._writer.close(self._drain_seconds)

    def _lose_output(self) -> None:
        self._output_broken = True
        self._over.set()

    def _serve_lines(self, lines: list[Line], ended: bool, first: int = 0) -> None:  # noqa: FBT001 - a callback
        """Serve the lines of one chunk from the line number `first` on, then read the next chunk.

        At the limit, running requests may finish for some turns of the loop before the next request is refused.
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
    """Raise StartError without stdin and stdout. Called before there is a loop, which would take their numbers."""
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
    """Return duplicates of stdin and stdout; until the end, 0 is empty and 1 is stderr for all other code."""
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


CHUNK = 64 * 1024  # the size of a pipe's buffer
QUEUED_BYTES = 8 * 1024 * 1024  # output that waits for a slow reader; beyond it, no more input is read
IN_A_ROW = 1e-3  # seconds after which other tasks of the loop run, even if the next line is there
AT_ONCE = getattr(select, "PIPE_BUF", 512)  # bytes that a writable pipe takes without blocking


class LineReader:
    """Reads lines and delivers them, one chunk at a time.

    `deliver(lines, ended)` is called in the event loop. The next chunk is read after `resume` was called, which may be
    done within `deliver`. The reader owns the descriptor, and closes it.

    A client that calls one by one sends its next line a moment after it has read our last one. With
    `resume(linger=True)` the reader waits for that moment: most of the time of a short call over a pipe is spent on
    putting two processes to sleep and waking them up.
    """

    def __init__(
        self, fd: int, limit: int, deliver: Callable[[list[Line], bool], None], *, linger_seconds: float = 0.0
    ) -> None:
        self._fd = fd
        self._linger_seconds = linger_seconds  # time to look for the next line before the loop sleeps
        self._splitter = LineSplitter(limit)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._turn: threading.Lock | None = None  # where a thread reads: held from a chunk's delivery until `resume`
        self._delivered = False  # a chunk was delivered, and `resume` was not called since
        self._lingers = False  # look for the next line before returning to the loop
        self._paused = False  # the loop does not watch the descriptor
        self._stopped = False

    def start(self) -> None:
        """Start to read: when the loop reports input, or in a thread where the loop cannot watch the descriptor."""
        try:
            self._loop.add_reader(self._fd, self._readable)
        except (NotImplementedError, OSError):  # Windows, or a plain file
            self._turn = threading.Lock()
            # A daemon: a read that never returns must not keep the process alive.
            threading.Thread(target=self._read_all, name="weft-stdin", daemon=True).start()

    def resume(self, *, linger: bool = False) -> None:
        """Read the next chunk: the delivered lines are served. `linger` waits a moment for it and blocks the loop."""
        self._delivered = False
        self._lingers = linger
        if self._turn is not None:
            self._turn.release()
        elif self._paused and not self._stopped:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def stop(self) -> None:
        """Stop to read. A thread stays in its read, which cannot be interrupted, and closes the descriptor itself."""
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
    """Writes lines without blocking the event loop.

    `broken` is called when the other end is closed: at once where the loop can watch that, else with the next line.
    Between `hold` and `flush` all lines are collected, because more will follow.
    """

    def __init__(self, fd: int, broken: Callable[[], None]) -> None:
        self._fd = fd
        self._own_fd = _opened_again(fd)  # a private, non-blocking descriptor of the same pipe; None if impossible
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []  # collected in this turn of the loop
        self._held = False  # `hold` was called, and `flush` will be
        self._change = threading.Condition()  # guards the next three
        self._queue: list[bytes] = []  # output for the thread
        self._queued = 0  # bytes in the queue and in the thread's current write
        self._closing = False
        self._thread: threading.Thread | None = None  # started when the pipe first does not take everything
        self._drained = asyncio.Event()
        self._drained.set()
        self._done = asyncio.Event()  # the thread has nothing left to write
        self._watched_fd = self._watch()  # a copy of the descriptor, with which the loop notices a closed pipe

    def _watch(self) -> int | None:
        """Watch the other end: when it is closed, the loop reports our end as readable."""
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
        fd = self._watched_fd
        is_closed = fd is not None and _is_closed(fd)
        self._stop_watching()  # also if the client has written to our output, which is ignored
        if is_closed:
            self._broken()

    def _stop_watching(self) -> None:
        fd, self._watched_fd = self._watched_fd, None
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def send(self, line: bytes) -> None:
        """Write one line at the end of this turn of the loop."""
        if not self._lines and not self._held:
            self._loop.call_soon(self.flush)
        self._lines.append(line)

    def send_now(self, line: bytes) -> None:
        """Write one line at once, unless `hold` was called."""
        self._lines.append(line)
        if not self._held:
            self.flush()

    def hold(self) -> None:
        """Collect all lines until `flush`."""
        self._held = True

    @property
    def congested(self) -> bool:
        """Whether the client has not read so much that no more should be produced."""
        return not self._drained.is_set()

    async def drained(self) -> None:
        """Wait until the client has caught up."""
        await self._drained.wait()

    async def close(self, timeout: float) -> None:
        """Write the remaining output, within `timeout` seconds."""
        self.flush()
        with self._change:
            self._closing = True
            self._change.notify()
        if self._thread is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), timeout)
        self.release()

    def release(self) -> None:
        """Close the descriptors that were opened here; otherwise the client would not see the end of our output."""
        self._stop_watching()
        own_fd, self._own_fd = self._own_fd, None
        if own_fd is not None:
            os.close(own_fd)

    def flush(self) -> None:
        """Write the collected lines: at once as far as the pipe takes them, the rest in the thread."""
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
        """Write as much as the pipe takes without blocking and return its size; 0 if earlier output is queued."""
        if self._queued:
            return 0
        if self._own_fd is not None:
            return os.write(self._own_fd, data)
        if len(data) <= AT_ONCE and _takes_at_once(self._fd):
            return os.write(self._fd, data)  # not all of it, where a parent has made the pipe non-blocking
        return 0

    def _enqueue(self, data: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-stdout", daemon=True)
            self._thread.start()
        with self._change:
            self._queue.append(data)
            self._queued += len(data)
            if self._queued > QUEUED_BYTES:
                self._drained.clear()
            self._change.notify()

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                while data := self._next():
                    _write(self._fd, data)
                    self._written(len(data))
            except OSError:
                self._loop.call_soon_threadsafe(self._broken)
                self._loop.call_soon_threadsafe(self._drained.set)
            self._loop.call_soon_threadsafe(self._done.set)

    def _next(self) -> bytes:
        with self._change:
            while not self._queue and not self._closing:
                self._change.wait()
            data = b"".join(self._queue)
            self._queue.clear()
            return data

    def _written(self, size: int) -> None:
        with self._change:
            self._queued -= size
            if self._queued <= QUEUED_BYTES // 2 and not self._drained.is_set():
                self._loop.call_soon_threadsafe(self._drained.set)


def _opened_again(fd: int) -> int | None:
    """Open the same pipe a second time, non-blocking, without changing `fd`; return None where that is impossible.

    On other systems than Linux, and for sockets, opening `/dev/fd` gives the same descriptor and not a second one.
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
        except BlockingIOError:  # a parent may have made its end, and so ours, non-blocking
            _wait(fd, for_input=True)
        except OSError:
            return b""  # a broken pipe has ended


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _wait(fd, for_input=False)


if hasattr(select, "poll"):

    def _wait(fd: int, *, for_input: bool) -> None:
        """Wait until the descriptor can be read or written."""
        poll = select.poll()  # `select` takes no descriptors from 1024 on
        poll.register(fd, select.POLLIN if for_input else select.POLLOUT)
        poll.poll()

    def _comes_soon(fd: int, seconds: float) -> bool:
        """Return whether there is input, now or within some seconds."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        end = time.perf_counter() + seconds
        while not poll.poll(0):
            if time.perf_counter() > end:
                return False
        return True

    def _is_closed(fd: int) -> bool:
        """Return whether the other end is closed."""
        poll = select.poll()
        poll.register(fd, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

    def _takes_at_once(fd: int) -> bool:
        """Return whether `AT_ONCE` bytes can be written without blocking; errors show when they are written."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        return bool(poll.poll(0))

else:  # Windows polls sockets only

    def _wait(fd: int, *, for_input: bool) -> None:
        select.select([fd] if for_input else [], [] if for_input else [fd], [])

    def _comes_soon(fd: int, seconds: float) -> bool:  # noqa: ARG001 - the other platform's signature
        return False

    def _is_closed(fd: int) -> bool:  # noqa: ARG001 - the other platform's signature
        return False

    def _takes_at_once(fd: int) -> bool:  # noqa: ARG001 - the other platform's signature
        return False
