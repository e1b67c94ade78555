"""Attacks on a server in a process of its own: what they cost it, and what they cost another caller meanwhile.

    def test_many_unknown_arguments() -> None:
        with attacked_server() as target:
            report = target.attack(lambda: [target.tool("add", HUGE) for _ in range(10)])
            assert_harmless(report)
            assert target.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5

`attacked_server(source, transport="http", options=[...])` runs `weft run` on a file with that source (`SERVER` by
default, with the tools `add`, `total`, `keep` and `nap`), over HTTP by our own runner or on stdio. `source` may also be
the path of a file. With `host="uvicorn"`, uvicorn itself serves the `app` that the source has.

The target has the verbs of `support.Live` on both transports (`call`, `tool`), and over HTTP
`connect`, `send`, `post` and `port` as well; `send_line` and `read_line` on stdio. `target.log` is what the server has
written to stderr.

`target.attack(function)` measures, calls the function in this process, and measures again:

- resident memory, from /proc: before, and after the server has had up to `settle` seconds to give it back. It is read
  until it is back within the bound, so a slow release does not fail, and a fast one does not wait. The peak is the most
  that the process ever had.
- how long another caller waits (HTTP): a process that sends a `server/discover` every 10 ms on its own connection,
  first while nothing else happens, then from the first moment of the attack until `linger` seconds after it. A wait is
  counted from when a request was due, so one stall of 2 s is two hundred waits.

What the function returns is kept until all is measured: return a socket, or a list of them, to have them stay open so
long.

`assert_harmless(report)` is the bound of the project: memory within 64 MB of the start, p99 of the other caller at most
100 ms. Where the machine itself is slow, so that a quiet server answers late or this process is woken late, a multiple
of that counts instead; where other programs take the processor away, a wait is longer by as much (`Report.slow`).
`peak=` also bounds what it took meanwhile.
"""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from support.ports import find_port, until_listening
from support.wire import RawClient, Response, encode, headers_for, message

__all__ = ["MB", "SERVER", "Report", "Target", "assert_harmless", "attacked_server"]

MB = 1024 * 1024
MEMORY = 64 * MB  # that a server may have more after an attack than before
P99 = 0.1  # seconds that another caller may wait
NOISE = 5  # times what the machine itself takes
QUIET = 0.5  # seconds of calls before the attack

SERVER = '''
import asyncio

from weft import Server

server = Server("attacked", "1.0")


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def total(numbers: list[int]) -> int:
    """Add up numbers."""
    return sum(numbers)


@server.tool
def keep(note: dict) -> int:
    """Take any object."""
    return len(note)


@server.tool
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "awake"
'''


@dataclass
class Waits:
    """How long another caller waited, in seconds."""

    asked: int
    refused: int  # not answered with 200
    p99: float
    worst: float
    late: float  # p99 of what the machine adds by itself


@dataclass
class Report:
    """What an attack did."""

    before: int  # bytes of resident memory
    after: int
    peak: int
    quiet: Waits | None  # None on stdio, where there is one caller
    meanwhile: Waits | None
    seconds: float  # that the attack took
    slow: float = 1.0  # how much longer work takes than it would alone on its processor

    def __str__(self) -> str:
        memory = f"memory {self.before / MB:.0f} → {self.after / MB:.0f} MB (peak {self.peak / MB:.0f})"
        if self.quiet is None or self.meanwhile is None:
            return f"{memory} in {self.seconds:.1f} s"
        seen = self.meanwhile
        return (
            f"{memory} in {self.seconds:.1f} s; another caller's p99 {self.quiet.p99 * 1000:.1f} → "
            f"{seen.p99 * 1000:.1f} ms, worst {seen.worst * 1000:.0f} ms of {seen.asked} calls, "
            f"{seen.refused} refused; the machine is late by {seen.late * 1000:.1f} ms"
        )


def assert_harmless(report: Report, *, memory: int = MEMORY, peak: int | None = None, p99: float = P99) -> None:
    """Memory is given back, and nobody else had to wait."""
    print(report)
    assert report.after - report.before <= memory, f"memory was not given back: {report}"
    assert peak is None or report.peak - report.before <= peak, f"too much memory meanwhile: {report}"
    if report.quiet is not None and report.meanwhile is not None:
        bound = max(p99 * report.slow, NOISE * report.quiet.p99, NOISE * report.meanwhile.late)
        assert report.meanwhile.p99 <= bound, f"another caller waited: {report}"
        assert not report.meanwhile.refused, f"another caller was refused: {report}"


class Target:
    """A server that may be attacked: what there is on both transports."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._log: list[bytes] = []
        self._reading = threading.Thread(target=self._read_log, daemon=True)
        self._reading.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.append(line)

    def stop(self) -> None:
        """End the process, and close what leads to it."""
        self.process.kill()
        self.process.wait()
        self._reading.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    @property
    def log(self) -> str:
        """What the server has written to stderr."""
        return b"".join(self._log).decode(errors="replace")

    @property
    def resident(self) -> int:
        """Bytes of memory that the process has now."""
        return self._status("VmRSS")

    @property
    def peak(self) -> int:
        """The most that it ever had."""
        return self._status("VmHWM")

    def _scheduled(self) -> tuple[int, int]:
        """Nanoseconds that the server has run, and that it would have run, had a processor been free."""
        ran, waited, _ = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()
        return int(ran), int(waited)

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))

    def attack(self, function: Callable[[], Any], *, settle: float = 10.0, linger: float = 1.0) -> Report:
        """Measure, call the function, measure again."""
        quiet = self._quiet()
        before = self.resident
        ran, waited = self._scheduled()
        started = time.monotonic()
        kept = function()  # sockets in it stay open until all is measured
        seconds = time.monotonic() - started
        time.sleep(linger)
        meanwhile = self._waits()
        ran, waited = (now - then for now, then in zip(self._scheduled(), (ran, waited), strict=True))
        slow = 1.0 + waited / max(ran, 1)
        until = time.monotonic() + settle
        while (after := self.resident) - before > MEMORY and time.monotonic() < until:
            time.sleep(0.1)
        for one in kept if isinstance(kept, list) else [kept]:
            if isinstance(one, socket.socket):
                one.close()
        return Report(before, after, self.peak, quiet, meanwhile, seconds, slow)

    def _quiet(self) -> Waits | None:
        """Warm the server up; on stdio that is all."""
        for number in range(50):
            self.call("server/discover", id=number)
        return None

    def _waits(self) -> Waits | None:
        return None

    def call(self, method: str, params: Any = None, *, id: Any = 1) -> Response:
        """A request of the stateless era."""
        raise NotImplementedError


class HttpTarget(RawClient, Target):
    """A server that listens at a port, and another caller of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        super().__init__(process)
        self.port = port
        self._bystander = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("bystander.py")), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        body = message("server/discover")
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers_for(body))
        raw = encode(body)
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{fields}Content-Length: {len(raw)}\r\n\r\n"
        request = head.encode() + raw
        assert self._bystander.stdin is not None
        self._bystander.stdin.write(b"%d\n%b" % (len(request), request))
        self._bystander.stdin.flush()

    def _quiet(self) -> Waits:
        while True:  # until it has begun: the first calls of all take longer than any later one
            time.sleep(0.3)
            if self._waits().asked > 20:
                break
        time.sleep(QUIET)
        return self._waits()

    def _waits(self) -> Waits:
        assert self._bystander.stdin is not None
        assert self._bystander.stdout is not None
        self._bystander.stdin.write(b"\n")
        self._bystander.stdin.flush()
        return Waits(**json.loads(self._bystander.stdout.readline()))

    def stop(self) -> None:
        self._bystander.kill()
        self._bystander.communicate()
        super().stop()


class StdioTarget(Target):
    """A server at the other end of two pipes."""

    def send_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read_line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def call(self, method: str, params: Any = None, *, id: Any = 1) -> Response:
        """A request of the stateless era, and its answer; the next line is taken for that."""
        self.send_line(encode(message(method, params, id=id)))
        return Response(200, {}, self.read_line())

    def tool(self, name: str, arguments: Any = None, *, id: Any = 1) -> Response:
        """A `tools/call`."""
        return self.call("tools/call", {"name": name, "arguments": arguments or {}}, id=id)


@contextlib.contextmanager
def attacked_server(
    source: str | Path = SERVER,
    *,
    transport: Literal["http", "stdio"] = "http",
    host: Literal["weft", "uvicorn"] = "weft",
    options: Sequence[str] = (),
) -> Iterator[Any]:
    """Run a server to be attacked, for as long as the block lasts: an `HttpTarget` or a `StdioTarget`."""
    with tempfile.TemporaryDirectory() as folder:
        file = source if isinstance(source, Path) else Path(folder) / "attacked.py"
        if isinstance(source, str):
            file.write_text(source)
        port = find_port()
        chosen = ["--http", "--port", str(port)] if transport == "http" else []
        command = ["weft", "run", str(file), *chosen]
        if host == "uvicorn":
            command = ["uvicorn", f"{file.stem}:app", "--app-dir", str(file.parent), "--port", str(port)]
        process = subprocess.Popen(
            [sys.executable, "-m", *command, *options],
            stdin=subprocess.DEVNULL if transport == "http" else subprocess.PIPE,
            stdout=subprocess.DEVNULL if host == "uvicorn" else subprocess.PIPE,  # it has an access log
            stderr=subprocess.PIPE,
        )
        if transport == "http":
            until_listening(process, port)
            assert process.poll() is None, process.communicate()[1].decode()
        target = HttpTarget(process, port) if transport == "http" else StdioTarget(process)
        try:
            yield target
        finally:
            target.stop()
