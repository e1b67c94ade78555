"""Scripts that serve over HTTP in processes, as people run them, and raw requests to these."""

import http.client
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from weft.cli.calling import RemoteServer

__all__ = ["SCRIPT", "Process", "connect", "eventually", "gone", "pid_of", "pids", "raw_call", "refuses", "status"]

SCRIPT = """
import asyncio, os, sys, time
from weft import Limits, Server

server = Server("runner", limits=Limits(head_seconds=0.5, drain_seconds=0.5, header_bytes=8000))

@server.tool
async def pid() -> int:
    return os.getpid()

@server.tool
async def die() -> int:
    os._exit(9)

@server.tool
async def wait() -> str:
    print("waiting", file=sys.stderr, flush=True)
    await asyncio.sleep(60)
    return "never"

@server.tool
def hang() -> str:
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)
    return "never"

"""


class Process:
    """A script that serves over HTTP."""

    def __init__(self, folder: Path, ending: str, script: str = SCRIPT, **options: Any) -> None:
        self.file = folder / "script.py"
        self.file.write_text(script + ending)
        self._child = subprocess.Popen([sys.executable, str(self.file)], stderr=subprocess.PIPE, bufsize=0, **options)
        self._errors = b""

    def until(self, text: str) -> str:
        """Wait for a line on stderr that has this text."""
        pipe = self._child.stderr.fileno()
        while True:
            *lines, self._errors = self._errors.split(b"\n")
            for number, line in enumerate(lines):
                if text.encode() in line:
                    self._errors = b"\n".join([*lines[number + 1 :], self._errors])
                    return line.decode()
            assert select.select([pipe], [], [], 30)[0], f"{text!r} was not said"
            chunk = os.read(pipe, 65536)
            assert chunk, f"{text!r} was not said before the process ended"
            self._errors += chunk

    def url(self) -> str:
        return self.until("Weft serves").split(" at ")[1].split()[0]

    def signal(self, number: int) -> None:
        self._child.send_signal(number)

    def end(self, timeout: float = 30.0) -> tuple[int, str]:
        _, errors = self._child.communicate(timeout=timeout)
        return self._child.returncode, (self._errors + errors).decode()

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()


def pid_of(url: str) -> int:
    return RemoteServer(url, 30).call_tool("pid", {})["structuredContent"]


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def refuses(url: str) -> bool:
    """Whether a new connection is refused."""
    try:
        connect(url).close()
    except ConnectionRefusedError:
        return True
    return False


def status(peer: socket.socket) -> int:
    """Read one whole response."""
    response = http.client.HTTPResponse(peer)
    response.begin()
    response.read()
    return response.status


def raw_call(tool: str) -> bytes:
    from weft.eras.client import StatelessClient
    from weft.jsonrpc import encode_request
    from weft.types.base import Implementation
    from weft.types.lifecycle import ClientCapabilities

    era, call = StatelessClient(), {"name": tool}
    headers = era.headers("tools/call", call)
    params = era.stamp("tools/call", call, info=Implementation("test", "1"), capabilities=ClientCapabilities())
    body = encode_request(1, "tools/call", params)
    fixed = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(body)),
    }
    lines = [f"{name}: {value}" for name, value in {**fixed, **headers}.items()]
    return ("POST /mcp HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode() + body


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second one if it ends while the file is read
        return True


def eventually(fact: Any) -> bool:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if fact():
            return True
        time.sleep(0.1)
    return False


def pids(url: str, count: int) -> set[int]:
    """The processes that answer, asked until there are `count`."""
    found: set[int] = set()

    def ask() -> bool:
        found.update(pid_of(url) for _ in range(10))
        return len(found) >= count

    assert eventually(ask), f"only {found} answer"
    return found
