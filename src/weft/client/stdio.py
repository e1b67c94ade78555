"""Run a server as a child process, and exchange messages over stdio, one message per line.

- The command is started without a shell, in a new process group. When the connection closes, the whole group is ended,
  so that no process that the child started is left (on Windows only the child itself is ended).
- The child inherits only the harmless variables of `default_environment`, because the environment may contain keys and
  tokens. The program can add variables. `env={**os.environ}` passes the whole environment.
- To end the child, its stdin is closed. If it does not exit, it gets SIGTERM and then SIGKILL, `close_seconds` apart.
- If the child ends by itself, the error says how it ended, with the last lines of its stderr. Otherwise, output on
  stderr has no effect.
- A child that has ended is started again only by `reopen`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from weft.client.callbacks import TURN_SECONDS
from weft.client.config import Command
from weft.client.connection.transport import PipeTransport
from weft.errors import ConnectionFailed
from weft.jsonrpc import Line, LineSplitter
from weft.limits import DEFAULT_CLIENT_LIMITS, ClientLimits
from weft.protocol.names import printable

log = logging.getLogger("weft.client.stdio")

_IS_WINDOWS: Final = sys.platform == "win32"
_HARMLESS = (
    "APPDATA HOMEDRIVE HOMEPATH LOCALAPPDATA PATH PATHEXT PROCESSOR_ARCHITECTURE PROGRAMFILES SYSTEMDRIVE SYSTEMROOT "
    "TEMP TMP USERNAME USERPROFILE"
    if _IS_WINDOWS
    else "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH SHELL TERM TMPDIR TZ USER"
).split()
_STDERR_BYTES = 64 * 1024  # how many of the last bytes of stderr are stored
_LAST_LINES = 10  # lines of stderr in an error message
_GRACE = 0.5  # seconds to read more output after the child has exited or closed a pipe
_STEP = 0.02  # seconds between checks whether a process group has ended
_NO_SERVER = " It answered nothing before that: does it start its server, for example with `server.run()`?"


def default_environment() -> dict[str, str]:
    """Return the environment variables that a child inherits: search path, home and temporary folders, user, language.

    A variable whose value is a shell function (begins with `()`) is left out.
    """
    return {name: value for name, value in os.environ.items() if name in _HARMLESS and not value.startswith("()")}


class StdioTransport(PipeTransport):
    """A connection to a server that runs as a child process, over its stdin and stdout.

    The target's function `on_stderr` is called with each line that the child writes to stderr. The property `stderr`
    always has the last 64 KiB of this output.
    """

    kind = "stdio"

    def __init__(self, target: Command, limits: ClientLimits = DEFAULT_CLIENT_LIMITS) -> None:
        super().__init__(target.where, limits)
        self._target = target
        self._child: _Child | None = None  # the latest child; stays here after its end, for its stderr

    @property
    def pid(self) -> int | None:
        """The process id of the child, or None if the child is not running."""
        return None if self._child is None or self._child.returncode is not None else self._child.pid

    @property
    def returncode(self) -> int | None:
        """The exit code of the child, or None if the child has not ended.

        If a signal ended the child, this is the negative number of the signal.
        """
        return None if self._child is None else self._child.returncode

    @property
    def stderr(self) -> str:
        """The last 64 KiB that the child wrote to stderr."""
        return "" if self._child is None else self._child.stderr.text

    async def start(self) -> None:
        """Start the child process. Raises ConnectionFailed if that fails."""
        child = self._child = _Child(self, _Stderr(self._target.on_stderr))
        command, cwd = self._target.command, self._target.cwd
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: child,
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env={**default_environment(), **self._target.env},
                **_OWN_GROUP,
            )
        except (OSError, ValueError) as error:
            self._child = None
            raise ConnectionFailed(_why_not_started(command, cwd, error)) from error
        if not self._open:  # `close` was called during the start, and there was no child to end yet
            await child.end(self.limits.close_seconds)
            raise ConnectionFailed(f"The connection to {self.where} was closed.")

    async def write(self, message: bytes) -> None:
        """Write one message, as a line, to the stdin of the child. Wait while the child does not read.

        Raises ConnectionFailed if the child is still starting.
        """
        child = self._child
        assert child is not None
        if not child.pid:
            raise ConnectionFailed(f"The server `{self.where}` is still starting; try again.")
        if not child.takes_more.is_set():  # if the caller is cancelled here, nothing is sent
            await child.takes_more.wait()
        # In JSON, a newline can only be white space between tokens, so a space can replace it.
        child.write(message.replace(b"\n", b" ") + b"\n")

    async def stop(self) -> None:
        """End the child process."""
        if self._child is not None:
            await self._child.end(self.limits.close_seconds)

    def ended(self, child: _Child, how: str) -> None:
        """Fail all pending requests, because `child` has ended. Do nothing if a newer child has replaced it.

        `how` describes the child's end in the error message.
        """
        if child is self._child:
            hint = "" if self._has_answered or child.returncode != 0 else _NO_SERVER
            self.lost(ConnectionFailed(f"The server `{self.where}` {how}{hint}{child.stderr.last_lines()}"))


class _Stderr:
    """Stores the last bytes of a child's stderr, and calls the program's `on_stderr` function with each line."""

    def __init__(self, on_line: Callable[[str], Any] | None) -> None:
        self._on_line = on_line
        self._kept = bytearray()
        self._line = bytearray()

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")

    def last_lines(self) -> str:
        """Return the last lines of stderr as a sentence for an error message.

        Returns "" if there is an `on_stderr` function, because this function has already got the lines.
        """
        if self._on_line is not None:
            return ""
        lines = self.text.rstrip().splitlines()[-_LAST_LINES:]
        shown = "\n".join(f"  {printable(line[:500].expandtabs(), '?')}" for line in lines)
        return f" The last lines of its stderr:\n{shown}" if shown.strip() else " It wrote nothing to stderr."

    def feed(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-_STDERR_BYTES]
        if self._on_line is None:
            return
        self._line += data
        *lines, rest = self._line.split(b"\n")
        if len(rest) > _STDERR_BYTES:  # a very long line is passed on in pieces
            lines, rest = [*lines, rest], bytearray()
        self._line = rest
        for line in lines:
            self._tell(line)

    def finish(self) -> None:
        """Call the program's function with the last line, if the output does not end with a newline."""
        if self._line:
            self._tell(self._line)
            self._line = bytearray()

    def _tell(self, line: bytearray) -> None:
        if self._on_line is None:
            return
        try:
            self._on_line(line.decode("utf-8", "replace").removesuffix("\r"))
        except Exception:
            log.exception("on_stderr= failed and is not called any more.")
            self._on_line = None


class _Child(asyncio.SubprocessProtocol):
    """One server process. asyncio calls the callback methods. Any task can call `end` to end the process."""

    def __init__(self, owner: StdioTransport, stderr: _Stderr) -> None:
        self.stderr = stderr
        self.pid = 0
        self.returncode: int | None = None
        self.takes_more = asyncio.Event()  # set while data can be written; cleared while the child does not read
        self.takes_more.set()
        self._owner = owner
        self._limit = owner.limits.message_bytes
        self._splitter = LineSplitter(self._limit)
        self._open_pipes = {0, 1, 2}  # pipes that are open, by the number of the child's file descriptor
        self._exited = asyncio.Event()
        self._disconnected = asyncio.Event()  # set when asyncio has closed all pipes
        self._timer: asyncio.TimerHandle | None = None  # runs `_gone` after `_GRACE` seconds
        self._is_over = False  # the owner was notified of the end, or has called `end`
        self._end: asyncio.Task[None] | None = None  # runs `_ending`

    # --- callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._process.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.stderr.feed(data)
        elif not self._is_over:
            self._take(self._splitter.feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if fd == 0:
            self.takes_more.set()  # wakes up tasks that wait to write; they fail when the child has ended
        if fd == 2:
            self.stderr.finish()
        self._end_soon()

    def process_exited(self) -> None:
        self.returncode = self._process.get_returncode()
        self._exited.set()
        self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnected.set()

    def pause_writing(self) -> None:
        self.takes_more.clear()

    def resume_writing(self) -> None:
        self.takes_more.set()

    # --- lines

    def write(self, data: bytes) -> None:
        """Write to the child's stdin. Do nothing if stdin is closed, because the pending requests will fail soon."""
        pipe = self._process.get_pipe_transport(0)
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)

    def _take(self, lines: list[Line]) -> None:
        """Pass lines from the child's stdout to the transport.

        If that takes long, other tasks may run before the remaining lines are passed on.
        """
        until = time.monotonic() + TURN_SECONDS
        for number, line in enumerate(lines, 1):
            if line is None:
                self._too_long()
                return
            if line and not line.isspace():
                self._owner.incoming(line)
            if time.monotonic() > until and number < len(lines):
                self._read_on(later=True)
                asyncio.get_running_loop().call_soon(self._take_rest, lines[number:])
                return
        if self._splitter.is_overlong:
            self._too_long()

    def _take_rest(self, lines: list[Line]) -> None:
        if not self._is_over:
            self._read_on()
            self._take(lines)

    def _read_on(self, *, later: bool = False) -> None:
        """Resume reading the child's stdout. If `later` is True, pause reading instead."""
        pipe = cast("asyncio.ReadTransport | None", self._process.get_pipe_transport(1))
        if pipe is not None and not pipe.is_closing():
            pipe.pause_reading() if later else pipe.resume_reading()

    def _too_long(self) -> None:
        pipe = self._process.get_pipe_transport(1)
        if pipe is not None:
            pipe.close()
        self._over(
            f"sent a line of more than {self._limit:,} bytes, so the connection was ended; if such answers are "
            "expected, raise ClientLimits(message_bytes=...)."
        )

    # --- the child ends by itself

    def _end_soon(self) -> None:
        """End the connection if the process has exited, or has closed its stdin or stdout.

        The connection is ended at once if the process has exited and all its output was read. Otherwise it is ended
        after a short time, in which more output can be read.
        """
        has_exited = self.returncode is not None
        if self._is_over or (not has_exited and {0, 1} <= self._open_pipes):
            return
        if has_exited and not {1, 2} & self._open_pipes:
            self._gone()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GRACE, self._gone)

    def _gone(self) -> None:
        if self.returncode is not None:
            _signal_group(self.pid, _KILL)  # processes that the child started and that still run
            self._over(f"{_describe_exit(self.returncode)}.")
        else:
            self._over("closed its end of the connection without exiting.")

    def _over(self, how: str) -> None:
        if not self._is_over:
            self._set_over()
            self._owner.ended(self, how)

    def _set_over(self) -> None:
        self._is_over = True
        self.takes_more.set()
        if self._timer is not None:
            self._timer.cancel()

    # --- the client ends the child

    async def end(self, seconds: float) -> None:
        """End the process and all processes that it started, even if the caller is cancelled meanwhile.

        `seconds` is how long to wait after each step: closing stdin, SIGTERM, SIGKILL.
        """
        if not self.pid:
            return  # the process is still starting
        if self._end is None:
            self._end = asyncio.create_task(self._ending(seconds), name="weft-stdio-end")
        await asyncio.shield(self._end)

    async def _ending(self, seconds: float) -> None:
        was_running = self.returncode is None
        self._set_over()
        try:
            stdin = self._process.get_pipe_transport(0)
            if stdin is not None:
                stdin.close()
            if not await _within(seconds, self._exited):
                log.info("%s did not end when its stdin was closed; it is sent SIGTERM.", self._owner.where)
                self._signal(_TERM)
                if not await _within(seconds, self._exited):
                    log.warning("%s did not end after SIGTERM; it is killed.", self._owner.where)
                    self._signal(_KILL)
                    await _within(seconds, self._exited)
            if was_running:
                await _end_group(self.pid, seconds)
        finally:
            if was_running:
                _signal_group(self.pid, _KILL)
            self._process.close()
        await _within(seconds, self._disconnected)

    def _signal(self, number: int) -> None:
        if _IS_WINDOWS:
            with suppress(ProcessLookupError):
                self._process.terminate()
        else:
            _signal_group(self.pid, number)


_TERM = int(signal.SIGTERM)
_KILL = int(getattr(signal, "SIGKILL", signal.SIGTERM))
_OWN_GROUP: Mapping[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0)} if _IS_WINDOWS else {"start_new_session": True}
)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to all processes of a group. Return whether the group has a process that got the signal."""
    if _IS_WINDOWS or not group:  # 0 would be the group of this process
        return False
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises PermissionError if the group has only zombies
        return False
    return True


async def _end_group(group: int, seconds: float) -> None:
    """Send SIGTERM to a process group, and wait at most `seconds` until all its processes have ended."""
    patience = asyncio.get_running_loop().time() + seconds
    is_there = _signal_group(group, _TERM)
    while is_there and asyncio.get_running_loop().time() < patience:
        await asyncio.sleep(_STEP)
        is_there = _signal_group(group, 0)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


# --- error messages


def _describe_exit(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"was ended by {names.get(-returncode, f'the signal {-returncode}')}"
    return f"ended with the exit code {returncode}"


def _why_not_started(command: tuple[str, ...], cwd: str | None, error: OSError | ValueError) -> str:
    program = command[0]
    if cwd is not None and not Path(cwd).is_dir():
        why = f"there is no folder {cwd!r} to start it in; correct cwd"
    elif isinstance(error, FileNotFoundError):
        why = _not_found(program)
    elif isinstance(error, PermissionError):
        why = f"the file is not executable; {_by_interpreter(program) or f'run chmod +x {program}'}"
    elif isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        why = f"the file is not a program; {_by_interpreter(program) or 'give it a first line such as #!/bin/sh'}"
    else:
        why = str(error)
    return f"The server {program!r} cannot be started: {why}."


def _not_found(program: str) -> str:
    if len(program.split()) > 1:
        return f"there is no such program; write the arguments separately: {program.split()!r}"
    if interpreter := _by_interpreter(program):
        return f"there is no such program; {interpreter}, with the path of the file"
    if os.sep in program:
        return "there is no such file, or the interpreter that its first line names is missing; check the path"
    if program.endswith(".json"):
        return f"it is not a program; weft.client.read_config({program!r}) returns the servers of a configuration"
    return "there is no such program on the PATH; install it, or give its full path"


def _by_interpreter(program: str) -> str | None:
    interpreters = {".py": sys.executable or "python", ".js": "node", ".mjs": "node", ".ts": "tsx", ".sh": "sh"}
    interpreter = interpreters.get(Path(program).suffix)
    return None if interpreter is None else f"start it as [{interpreter!r}, {program!r}]"
