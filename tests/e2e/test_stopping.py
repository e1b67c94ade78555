"""Stopping with calls open: the log says what is waited for, and each client gets an error that it can read."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import encode, headers_for, message
from support.hosted import Hosted
from support.ports import find_port

SERVER = """
import asyncio, sys, time
from weft import Context, Limits, Server

server = Server("stopping", limits=Limits(drain_seconds=1.0))


@server.tool
async def wait(ctx: Context, seconds: float, speak: bool = False) -> str:
    if speak:
        await ctx.report_progress(1)
    print("waiting", file=sys.stderr, flush=True)
    await asyncio.sleep(seconds)
    return "awake"


@server.tool
def hang(seconds: float, speak: bool = False) -> str:
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(seconds)
    return "awake"
"""

STOPPED = "The server stopped before this call was done."


class Stopping:
    """A server that is asked to end while a call is open."""

    def __init__(self, folder: Path, *options: str) -> None:
        file = folder / "server.py"
        file.write_text(SERVER)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft", "run", str(file), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said = b""

    def until(self, text: bytes) -> None:
        assert self.process.stderr is not None
        while text not in self.said:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line

    def end(self) -> str:
        _, rest = self.process.communicate(timeout=30)
        return (self.said + rest).decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Stopping]]:
    started: list[Stopping] = []

    def run(*options: str) -> Stopping:
        started.append(Stopping(tmp_path, *options))
        return started[-1]

    yield run
    for one in started:
        one.kill()


def read_all(peer: socket.socket) -> bytes:
    said = b""
    while chunk := peer.recv(65536):
        said += chunk
    return said


def error_in(said: bytes, id: int) -> str:
    found = re.search(rb'\{"jsonrpc":"2.0","id":%d,"error":\{.*\}\}' % id, said)
    assert found is not None, said
    return json.loads(found[0])["error"]["message"]


def post(body: dict, fields: str = "") -> bytes:
    data = encode(body)
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\n{fields}Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def stateless(name: str, *, speak: bool, seconds: float) -> bytes:
    arguments = {"seconds": seconds, "speak": speak}
    body = message("tools/call", {"name": name, "arguments": arguments}, id=7, meta={"progressToken": 1})
    own = ("content-type", "accept")
    return post(body, "".join(f"{key}: {value}\r\n" for key, value in headers_for(body) if key.lower() not in own))


HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def in_session(name: str, *, speak: bool, seconds: float) -> dict:
    arguments = {"seconds": seconds, "speak": speak}
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": 1}}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}


def open_call(peer: socket.socket, era: str, name: str, *, speak: bool, seconds: float = 60) -> None:
    if era == "stateless":
        peer.sendall(stateless(name, speak=speak, seconds=seconds))
        return
    peer.sendall(post(HELLO))
    found = re.search(rb"mcp-session-id: (\S+)", peer.recv(65536))
    assert found is not None
    fields = f"Mcp-Session-Id: {found[1].decode()}\r\nMCP-Protocol-Version: 2025-11-25\r\n"
    peer.sendall(post(in_session(name, speak=speak, seconds=seconds), fields))


def serve_http(run: Callable[..., Stopping]) -> tuple[Stopping, socket.socket]:
    port = find_port()
    process = run("--http", "--port", str(port))
    process.until(b"Weft serves")
    return process, socket.create_connection(("127.0.0.1", port), 30)


@pytest.mark.mistake("stopping with a call open")
@pytest.mark.parametrize("era", ["stateless", "session"])
@pytest.mark.parametrize(("tool", "speak"), [("wait", False), ("wait", True), ("hang", False)])
def test_a_call_that_is_given_up_is_told_over_http(
    run: Callable[..., Stopping], era: str, tool: str, speak: bool
) -> None:
    process, peer = serve_http(run)
    with peer:
        open_call(peer, era, tool, speak=speak)
        process.until(b"waiting")
        process.process.send_signal(signal.SIGTERM)
        said = read_all(peer)
    log = process.end()
    assert STOPPED in error_in(said, 7)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert (b"text/event-stream" in said) is speak
    assert re.search(rf"It waits up to 1 s for 1 call: tools/call '{tool}' \(for \d\.\d s\)", log), log
    assert re.search(rf"It cancels, after 1 s, 1 call: tools/call '{tool}' \(for [1-9]\.\d s\)", log), log
    assert "Cancel" not in log
    assert "Traceback" not in log
    assert process.process.returncode == 0


@pytest.mark.parametrize("era", ["stateless", "session"])
def test_a_call_that_finishes_in_time_is_answered(run: Callable[..., Stopping], era: str) -> None:
    process, peer = serve_http(run)
    with peer:
        open_call(peer, era, "wait", speak=False, seconds=0.5)
        process.until(b"waiting")
        since = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert b"awake" in read_all(peer)
    log = process.end()
    assert "It waits up to 1 s for 1 call" in log
    assert "It cancels" not in log
    assert time.monotonic() - since < 10


def test_nothing_is_said_where_nothing_is_open(run: Callable[..., Stopping]) -> None:
    process, peer = serve_http(run)
    with peer:
        open_call(peer, "stateless", "wait", speak=False, seconds=0)
        assert b"awake" in peer.recv(65536)
        process.process.send_signal(signal.SIGTERM)
        log = process.end()
    assert "The server stops" not in log


@pytest.mark.mistake("stopping with a call open on stdio")
@pytest.mark.parametrize("era", ["stateless", "session"])
@pytest.mark.parametrize("tool", ["wait", "hang"])
def test_a_call_that_is_given_up_is_told_on_stdio(run: Callable[..., Stopping], era: str, tool: str) -> None:
    process = run()
    pipe = process.process.stdin
    assert pipe is not None
    if era == "session":
        pipe.write(encode(HELLO) + b"\n")
        pipe.write(encode(in_session(tool, speak=False, seconds=60)) + b"\n")
    else:
        params = {"name": tool, "arguments": {"seconds": 60}}
        pipe.write(encode(message("tools/call", params, id=7)) + b"\n")
    pipe.flush()
    process.until(b"waiting")
    process.process.send_signal(signal.SIGTERM)
    assert process.process.stdout is not None
    said = process.process.stdout.read()
    log = process.end()
    assert STOPPED in error_in(said.splitlines()[-1], 7)
    assert f"It cancels, at once, 1 call: tools/call '{tool}'" in log
    assert "Traceback" not in log


HOSTED = """
from fastapi import FastAPI

app = FastAPI()
app.mount("/", server.asgi("/mcp"))
"""


@pytest.mark.parametrize("app", [HOSTED, "app = server.asgi('/mcp')"], ids=["mounted", "alone"])
@pytest.mark.parametrize("speak", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("era", ["stateless", "session"])
def test_a_call_that_another_host_gives_up_is_told_so(tmp_path: Path, era: str, speak: bool, app: str) -> None:
    hosted = Hosted(tmp_path, SERVER + app, "--timeout-graceful-shutdown", "1")
    try:
        with socket.create_connection(("127.0.0.1", hosted.port)) as peer:
            peer.settimeout(20)
            open_call(peer, era, "wait", speak=speak)
            until = time.monotonic() + 20
            while "waiting" not in hosted.log and time.monotonic() < until:
                time.sleep(0.02)
            hosted.process.send_signal(signal.SIGTERM)
            said = read_all(peer)
        assert STOPPED in error_in(said, 7)
        hosted.process.wait(20)
    finally:
        hosted.kill()
