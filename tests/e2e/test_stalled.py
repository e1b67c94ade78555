"""Peers that do not read, against a server process of its own: cut off in time, and nothing of them is left."""

import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from support import encode, headers_for, message, until

PROGRAM = """
import asyncio, gc, itertools, sys
{before}
from weft import Context, Limits, Server

server = Server("stalled", limits=Limits(write_seconds=0.3, keep_alive_seconds=60, drain_seconds=0.5))

@server.tool
async def large(size: int) -> str:
    return "x" * size

@server.tool
async def chatter(ctx: Context) -> str:
    try:
        for number in itertools.count():
            await ctx.report_progress(number, message="x" * 100_000)
    finally:
        print("chatter ended", file=sys.stderr, flush=True)

@server.tool
async def slow(size: int) -> str:
    await asyncio.sleep(0.01)
    return "x" * size

@server.tool
async def in_flight() -> int:
    gc.collect()  # or small garbage would keep the allocator from giving large pieces back
    return server.engine.in_flight

server.run("http", port=0)
"""
WITHOUT = "sys.modules['uvloop'] = sys.modules['httptools'] = None"
LARGE = 8_000_000  # more than the buffers of two sockets hold


class Served:
    """A process that serves HTTP, and what it has open."""

    def __init__(self, file: Path) -> None:
        # Large pieces go back to the system as soon as they are freed; else glibc keeps some, and memory says nothing.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
        self.process = subprocess.Popen([sys.executable, str(file)], stderr=subprocess.PIPE, bufsize=0, env=environment)
        self._said = b""
        self.port = int(re.search(r":(\d+)/mcp", self.says("serves"))[1])  # type: ignore[index] - or the test fails
        self.idle = self.sockets

    def says(self, word: str) -> str:
        """The line of stderr with this word, once it is there."""
        pipe = self.process.stderr
        assert pipe is not None
        while not (found := re.search(rf".*{word}.*\n".encode(), self._said)):
            assert select.select([pipe], [], [], 30)[0], self._said.decode()
            self._said += os.read(pipe.fileno(), 1 << 16)
        self._said = self._said.replace(found[0], b"", 1)
        assert b"without completing response" not in self._said  # of what we end ourselves, for a reason that is told
        return found[0].decode()

    def start(self, tool: str, /, **arguments: Any) -> socket.socket:
        """Send a call."""
        body = message("tools/call", {"name": tool, "arguments": arguments}, meta={"progressToken": "p"})
        data = encode(body)
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(body))
        raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode())
        raw.sendall(data)
        return raw

    def in_flight(self) -> int:
        """Requests being served, apart from the one that asks."""
        with closing(self.start("in_flight")) as raw:
            answer = b""
            while b"structuredContent" not in answer:
                chunk = raw.recv(65536)
                assert chunk, answer
                answer += chunk
        return int(re.search(rb'"structuredContent":(\d+)', answer)[1]) - 1  # type: ignore[index] - or the test fails

    @property
    def sockets(self) -> int:
        """Connections that the process holds."""
        fds = Path(f"/proc/{self.process.pid}/fd")
        if not fds.exists():
            pytest.skip("needs /proc")
        links = []
        for fd in fds.iterdir():
            try:
                links.append(str(fd.readlink()))
            except FileNotFoundError:  # closed meanwhile
                continue
        return sum(link.startswith("socket:") for link in links)

    @property
    def resident(self) -> int:
        """MB of memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1000  # type: ignore[index] - it is there


def rest(raw: socket.socket) -> bytes:
    """What is still in the buffers of a connection that is over."""
    data = b""
    try:
        while chunk := raw.recv(1 << 20):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.fixture(params=["", WITHOUT], ids=["uvloop", "asyncio"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(before=request.param))
    served = Served(file)
    served.in_flight()  # everything that is made with the first call is there
    yield served
    served.process.kill()
    served.process.communicate()


@pytest.mark.security("D10", "R12")
@pytest.mark.parametrize("tool", ["large", "slow"])
def test_whoever_does_not_read_an_answer_is_cut_off(served: Served, tool: str) -> None:
    memory = served.resident
    with ExitStack() as clients:
        raw = [clients.enter_context(closing(served.start(tool, size=LARGE))) for _ in range(10)]
        assert raw[-1].recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"  # it came as far as the answer
        until(lambda: served.sockets == served.idle)
        assert all(len(rest(one)) < LARGE for one in raw)
        until(lambda: served.in_flight() == 0 and served.resident - memory < 64)


@pytest.mark.security("D10", "R12")
def test_whoever_does_not_read_a_stream_is_cut_off_and_its_call_cancelled(served: Served) -> None:
    memory = served.resident
    with ExitStack() as clients:
        for _ in range(10):
            clients.enter_context(closing(served.start("chatter")))
        for _ in range(10):
            served.says("chatter ended")
            served.says("A stream is cut: its client has read nothing for 0.3 s")
        until(lambda: served.sockets == served.idle)
        until(lambda: served.in_flight() == 0 and served.resident - memory < 64)


@pytest.mark.security("D10")
def test_whoever_reads_slowly_is_not_cut_off(served: Served) -> None:
    with closing(served.start("large", size=LARGE)) as raw:
        taken = 0
        while taken < LARGE:
            time.sleep(0.06)  # 20 times this is several times the limit of a write
            wanted = taken + LARGE // 20
            while taken < wanted:
                chunk = raw.recv(min(1 << 16, wanted - taken))
                assert chunk, taken
                taken += len(chunk)
    assert served.in_flight() == 0
