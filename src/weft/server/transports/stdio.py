"""stdio: one line per message, one client, as long as the process lives.

Owns the descriptors, and when it ends. While it serves, the descriptors 0 and 1 are the protocol's alone: a stray
`print`, a C library or a child process writes to stderr and reads nothing (STDIO-02).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from weft.errors import StartError
from weft.server.transports.lines import Line, LineReader, LineWriter
from weft.server.transports.wire_log import new_pipe

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["check_pipes", "serve_stdio"]

PATIENCE = 5  # turns of the loop that requests get to finish before the next one is refused
LAST_WORDS = 0.5  # seconds that requests get to finish when the input has ended; the client still waits for them


async def serve_stdio(server: Server, stdin: int | None = None, stdout: int | None = None) -> None:
    """Serve one client until its end of the pipe is closed.

    `stdin` and `stdout` are file descriptors of another pair of pipes; without them, those of the process are used.
    The lifespan is started if it was not; it is not stopped here, for another pipe may be served as well.
    """
    with _process_pipes() if stdin is None or stdout is None else nullcontext((stdin, stdout)) as (source, sink):
        await server.lifespan.start()
        await _Process(server, source, sink, lingers=source != stdin).serve()


class _Process:
    """The client that this process was started by, or whoever has the other ends of two descriptors.

    With `lingers`, the next of requests that come one by one is waited for where nobody else is: there is one client.
    """

    def __init__(self, server: Server, source: int, sink: int, *, lingers: bool) -> None:
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._reader = LineReader(
            os.dup(source),
            server.limits.line_bytes,
            self._deliver,
            linger_seconds=server.limits.stdio_linger_seconds,
        )
        self._writer = LineWriter(sink, self._break)
        self._pipe = new_pipe(server, self._writer)
        self._backlog: deque[Line] = deque()  # lines that were read and not yet looked at
        self._lingers = lingers and server.limits.stdio_linger_seconds > 0
        self._came_alone = False  # the line that was read last
        self._waited = 0  # turns of the loop since the limit was met
        self._waiting: asyncio.Task[None] | None = None  # for a slow reader of our output
        self._input_ended = False
        self._output_broken = False
        self._over = asyncio.Event()

    async def serve(self) -> None:
        """Until the input has ended, or nobody reads the output any more."""
        try:
            await self._pipe.warm_up()
            self._reader.start()
            await self._over.wait()
            if not self._output_broken and (tasks := self._pipe.tasks):
                self._pipe.end_streams()  # or they would be waited for in vain
                await asyncio.wait(tasks, timeout=LAST_WORDS)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """Nobody waits for what is still running (STDIO-12)."""
        self._reader.stop()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._pipe.end_streams() and not self._output_broken and (tasks := self._pipe.tasks):
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        if not self._over.is_set():  # it is not the client that ended it: so it is told
            self._pipe.stop()
        self._pipe.cancel()
        if tasks := self._pipe.tasks:
            await asyncio.wait(tasks, timeout=self._limits.drain_seconds)
        await self._pipe.close()
        if self._output_broken:
            self._writer.release()
        else:
            await self._writer.close(self._limits.drain_seconds)

    def _break(self) -> None:
        """Our output is closed: nothing can be answered any more (D15)."""
        self._output_broken = True
        self._over.set()

    def _deliver(self, lines: list[Line], ended: bool) -> None:  # noqa: FBT001 - a callback of LineReader
        self._backlog.extend(lines)
        self._came_alone = len(lines) == 1
        self._input_ended = ended
        self._pump()

    def _pump(self) -> None:
        """Look at the lines, and answer what can be answered at once."""
        self._writer.hold()
        try:
            if not self._take_lines():
                self._loop.call_soon(self._pump)
                return
        finally:
            self._writer.flush()
        if self._input_ended:
            self._over.set()
        elif self._writer.congested:
            self._waiting = self._loop.create_task(self._resume_later(), name="weft-stdio-drain")
        else:
            self._reader.resume(linger=self._lingers and self._came_alone and self._pipe.is_idle)

    def _take_lines(self) -> bool:
        """Whether all were. Where the limit is met, quick requests get the chance to finish before one is refused."""
        while self._backlog:
            full = self._pipe.full
            if full and self._waited < PATIENCE:
                self._waited += 1
                return False
            self._waited = 0
            self._pipe.receive(self._backlog.popleft(), full=full)
        return True

    async def _resume_later(self) -> None:
        await self._writer.drained()
        self._reader.resume()


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
