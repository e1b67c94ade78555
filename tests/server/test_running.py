"""Running a server as a process: start, refusal to start, workers, signals, and the guard on the head of a request."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from weft import Server
from weft.auth import ResourceServer, StaticTokens
from weft.backends.memory import MemoryBackend
from weft.cli.calling import CallFailed, RemoteServer
from weft.eras.session import NEWEST
from weft.errors import StartError, UsageError
from weft.net.hosts import is_loopback
from weft.server.run.listening import HttpKeywords, HttpOptions, bind, check_exposure, try_line, url_of
from weft.server.run.workers import settle_sessions

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

    def __init__(self, folder: Path, ending: str, script: str = SCRIPT) -> None:
        file = folder / "script.py"
        file.write_text(script + ending)
        self._child = subprocess.Popen([sys.executable, str(file)], stderr=subprocess.PIPE, bufsize=0)
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


@pytest.fixture
def start(tmp_path: Path):
    with contextlib.ExitStack() as stack:

        def start(ending: str = "server.run('http', port=0)", script: str = SCRIPT) -> Process:
            process = Process(tmp_path, ending, script)
            stack.callback(process.kill)
            return process

        yield start


def pid_of(url: str) -> int:
    return RemoteServer(url, 30).call_tool("pid", {})["structuredContent"]


def connect(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def status(peer: socket.socket) -> int:
    """Read one whole response."""
    response = http.client.HTTPResponse(peer)
    response.begin()
    response.read()
    return response.status


# Starting.


def test_it_says_where_it_serves_and_what_to_try(start) -> None:
    process = start()
    line = process.until("Weft serves")
    url = line.split(" at ")[1].split()[0]
    assert line == f"Weft serves 'runner' at {url} (Ctrl-C stops)"
    assert process.until("Try:").endswith(f"weft call {url} pid")
    assert pid_of(url) > 0


@pytest.mark.security("D9")
@pytest.mark.parametrize("workers", [1, 2])
def test_it_may_have_as_many_connections_open_as_the_system_allows(start, tmp_path: Path, workers: int) -> None:
    limit = "import resource\n_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
    limit += "if __name__ == '__main__': resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 4096)))\n"
    tool = "@server.tool\ndef descriptors() -> list[int]: return list(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    ending = f"if __name__ == '__main__': server.run('http', port=0, workers={workers}, sessions=False)"
    process = start(ending, limit + SCRIPT + tool)
    now, most = RemoteServer(process.url(), 30).call_tool("descriptors", {})["structuredContent"]
    assert now == most > 64


def test_scopes_that_nobody_can_have_are_warned_of_when_it_starts(start) -> None:
    script = "from weft import Server\nserver = Server('s')\n@server.tool(scopes=['a'])\ndef f() -> str: ...\n"
    process = start(script=script)
    process.until("scopes= is set for tool 'f', but the server has no auth=")
    process.until("Weft serves")


@pytest.mark.mistake("port in use")
def test_a_port_in_use_is_told_in_a_sentence_with_a_free_one(start) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, errors = start(f"server.run('http', port={port})").end()
    free = int(errors.split(" is free")[0].split()[-1])
    assert errors == (
        f"Port {port} on 127.0.0.1 is in use by another program. Stop that program, or take another port; "
        f"{free} is free: port={free} (--port {free}).\n"
    )
    assert code == 1
    bind("127.0.0.1", free).close()


@pytest.mark.mistake("port in use")
def test_a_port_in_use_is_found_before_the_lifespan_starts(start) -> None:
    with bind("127.0.0.1", 0) as taken:
        script = """
from contextlib import asynccontextmanager
from weft import Server

@asynccontextmanager
async def lifespan(server):
    print("started", flush=True)
    yield

server = Server("early", lifespan=lifespan)
"""
        _, errors = start(f"server.run('http', port={taken.getsockname()[1]})", script).end()
    assert "is in use" in errors
    assert "started" not in errors


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("no.such.host.invalid", 8000, "is not an address of this machine"),
        ("", 0, "is not an address of this machine"),
        ("192.0.2.1", 8000, "is not an address of this machine"),
        ("127.0.0.1", 70000, "65535"),
    ],
)
def test_an_impossible_address_is_told_in_a_sentence(host: str, port: int, sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        bind(host, port)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_a_name_may_have_only_an_address_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *args, **options: look_up("::1", *args, **options))
    with bind("six.example", 0) as listener:
        assert listener.getsockname()[0] == "::1"


@pytest.mark.security("D15")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_a_host_that_others_reach_needs_its_names(host: str) -> None:
    with pytest.raises(StartError) as caught:
        Server("open").run("http", host=host, port=0)
    assert str(caught.value) == (
        f"host={host!r} makes the server reachable from other machines, so it must list its names: "
        "allowed_hosts=['api.example.com'] (--allow-host api.example.com). Use '*' for any name if a proxy in front "
        "checks it, or stay on this machine with host='127.0.0.1'."
    )
    check_exposure(HttpOptions(host=host, allowed_hosts=["api.example.com"]))


@pytest.mark.security("D15")
def test_loopback_is_the_default() -> None:
    assert HttpOptions().host == "127.0.0.1"
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "127.0.0.1.example.com", "localhost.example.com", "", "::")))


def test_wrong_options_are_told_in_a_sentence() -> None:
    with pytest.raises(StartError, match="There is no transport 'https'; write run"):
        Server("x").run("https")  # type: ignore[arg-type]
    with pytest.raises(StartError, match="log_level='loud' is not known; choose debug"):
        Server("x").run("http", log_level="loud")
    for workers in (0, -1, "2", True):
        with pytest.raises(StartError, match=f"workers={workers!r} is not possible; it is the number of processes"):
            Server("x").run("http", workers=workers)
    with pytest.raises(StartError, match="port='x' is not possible; it is a number from 1 to 65535, or 0 for any"):
        Server("x").run("http", port="x")
    with pytest.raises(UsageError, match=r"host= is a str, not int \(.*\). Write host='127.0.0.1'"):
        Server("x").run("http", host=3)


async def test_options_of_http_are_refused_on_stdio() -> None:
    told = r"() serves on stdio, where port= means nothing ("
    with pytest.raises(UsageError) as caught:
        Server("x").run(port=3)
    assert str(caught.value).startswith(f"server.run{told}")
    assert str(caught.value).endswith("Write server.run('http', port=...), or leave it out.")
    with pytest.raises(UsageError) as caught:
        await Server("x").serve(port=3)
    assert str(caught.value).startswith(f"server.serve{told}")


def test_the_url_is_one_that_works_from_here() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(HttpOptions(host="0.0.0.0", path="/x"), listener) == f"http://127.0.0.1:{port}/x"
        assert url_of(HttpOptions(host="::1"), listener) == f"http://[::1]:{port}/mcp"


@pytest.mark.parametrize(
    ("allowed", "shown"),
    [
        (["api.example.com", "localhost"], "api.example.com:PORT"),
        (["*", "*.example.com", "api.example.com:8443"], "api.example.com:8443"),
        (["*"], "127.0.0.1:PORT"),
        (["::1"], "[::1]:PORT"),
        (["[::1]:80"], "[::1]:80"),
    ],
)
def test_the_url_is_under_a_name_that_is_served(allowed: list[str], shown: str) -> None:
    with bind("127.0.0.1", 0) as listener:
        url = url_of(HttpOptions(host="0.0.0.0", allowed_hosts=allowed), listener)
        assert url == f"http://{shown}/mcp".replace("PORT", str(listener.getsockname()[1]))


def test_there_is_nothing_to_try_without_a_tool() -> None:
    assert try_line(Server("empty").engine, "http://x") is None


def test_what_to_try_at_a_protected_server_leaves_room_for_a_token() -> None:
    auth = ResourceServer(
        "https://api.example.com/mcp",
        authorization_servers=["https://login.example.com"],
        verifier=StaticTokens({"token-of-ann": "ann"}),
    )
    server = Server("guarded", auth=auth)
    server.add_tool(lambda: "x", name="write", description="Write.")
    line = try_line(server.engine, "http://x/mcp")
    assert line is not None
    assert line.endswith(" call http://x/mcp write --token TOKEN")


def test_a_lifespan_that_fails_is_told_with_the_users_own_line(start) -> None:
    script = """
from contextlib import asynccontextmanager
from weft import Server

@asynccontextmanager
async def lifespan(server):
    raise ConnectionError("the database is away")
    yield

server = Server("early", lifespan=lifespan)
"""
    code, errors = start(script=script).end()
    lines = errors.splitlines()
    assert code == 1
    assert lines[0] == "'early' stopped: ConnectionError: the database is away"
    assert lines[1].endswith("""in lifespan: raise ConnectionError("the database is away")""")
    assert len(lines) == 2


# Ending.


@pytest.mark.security("D15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(start, number: int) -> None:
    process = start()
    pid_of(process.url())
    process.signal(number)
    code, errors = process.end()
    assert code == 0
    assert "Traceback" not in errors


@pytest.mark.security("D15")
@pytest.mark.parametrize("tool", ["wait", "hang"])
def test_a_request_that_hangs_is_given_up_after_the_drain(start, tool: str) -> None:
    process = start()
    url = process.url()
    with connect(url) as peer:
        peer.sendall(raw_call(tool))
        process.until("waiting")
        process.signal(signal.SIGINT)
        code, errors = process.end()
    assert code == 0
    assert "Traceback" not in errors


def test_the_second_interrupt_ends_it_at_once(start) -> None:
    process = start(script=SCRIPT.replace("drain_seconds=0.5", "drain_seconds=60"))
    url = process.url()
    with connect(url) as peer:
        peer.sendall(raw_call("wait"))
        process.until("waiting")
        process.signal(signal.SIGINT)
        time.sleep(0.3)
        process.signal(signal.SIGINT)
        assert process.end(timeout=30)[0] == 130


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


# The guard.


def drip(peer: socket.socket, parts: Any, seconds: float) -> float | None:
    """Send parts slowly until the server hangs up; after how long it did."""
    since = time.monotonic()
    for part in parts:
        with contextlib.suppress(OSError):
            peer.sendall(part)
        if select.select([peer], [], [], seconds)[0]:
            return time.monotonic() - since
    return None


WITHOUT_HTTPTOOLS = "import sys; sys.modules['httptools'] = None; import importlib.util as u; f = u.find_spec\n"
WITHOUT_HTTPTOOLS += "u.find_spec = lambda name, *rest: None if name == 'httptools' else f(name, *rest)\n"


@pytest.mark.security("D6")
@pytest.mark.parametrize("without", ["", WITHOUT_HTTPTOOLS], ids=["httptools", "h11"])
@pytest.mark.parametrize("beginning", [b"", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_come_to_its_end_is_cut_off(start, beginning: bytes, without: str) -> None:
    url = start(script=without + SCRIPT).url()
    with connect(url) as peer:
        parts = [beginning, *([b"X: y\r\n"] * 60 if beginning else [b""] * 60)]
        assert drip(peer, parts, 0.1) is not None
    assert pid_of(url) > 0


@pytest.mark.security("D6")
def test_the_second_head_of_a_connection_is_guarded_too(start) -> None:
    url = start().url()
    with connect(url) as peer:
        peer.sendall(raw_call("pid"))
        assert status(peer) == 200
        assert drip(peer, [b"POST /mcp HTTP/1.1\r\n", *[b"X: y\r\n"] * 60], 0.1) is not None


@pytest.mark.security("D6")
def test_a_whole_head_stops_the_clock(start) -> None:
    process = start()
    with connect(process.url()) as peer:
        request = raw_call("pid")
        peer.sendall(request[:50])
        time.sleep(0.1)
        peer.sendall(request[50:])
        assert status(peer) == 200
        time.sleep(0.7)  # longer than a head may take
        peer.sendall(request)
        assert status(peer) == 200


@pytest.mark.security("D5", "R12")
def test_a_head_that_is_too_large_is_refused_before_it_ends(start) -> None:
    url = start().url()
    with connect(url) as peer:
        peer.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 8001)
        assert status(peer) == 431
        assert peer.recv(65536) == b""
    assert pid_of(url) > 0


@pytest.mark.security("D5")
def test_trailers_are_not_kept(start) -> None:
    url = start().url()
    head, _, body = raw_call("pid").partition(b"\r\n\r\n")
    chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    with connect(url) as peer:
        peer.sendall(chunked + b"\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body) + b"X: y\r\n" * 100 + b"\r\n")
        assert status(peer) == 200


@pytest.mark.security("R8")
def test_trailers_are_no_headers(start) -> None:
    head, _, body = raw_call("pid").partition(b"\r\n\r\n")
    chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    with connect(start().url()) as peer:
        peer.sendall(chunked + b"\r\n\r\n%x\r\n%b\r\n0\r\nMcp-Name: wait\r\n\r\n" % (len(body), body))
        assert status(peer) == 200


@pytest.mark.security("D5")
def test_a_trailer_without_end_is_cut_off(start) -> None:
    head, _, body = raw_call("pid").partition(b"\r\n\r\n")
    chunked = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    with connect(start().url()) as peer:
        peer.sendall(chunked + b"\r\n\r\n%x\r\n%b\r\n0\r\nX: " % (len(body), body))
        with pytest.raises(OSError):
            flood(peer)


def answered(peer: socket.socket, times: int) -> None:
    """Wait for so many responses, which may come in one piece."""
    said = b""
    while said.count(b"HTTP/1.1 200") < times:
        more = peer.recv(65536)
        assert more, said
        said += more


@pytest.mark.security("D5")
def test_who_always_sends_ahead_is_served_for_ever(start) -> None:
    script = SCRIPT.replace("header_bytes=8000", "header_bytes=8000, body_bytes=8000")
    with connect(start(script=script).url()) as peer:
        sent = 0
        said = b""
        while sent < 240:  # 100 KB, of which never more than ten are ahead of their turn
            while sent - said.count(b"HTTP/1.1 200") < 10:
                peer.sendall(raw_call("pid"))
                sent += 1
            said += peer.recv(65536)


def flood(peer: socket.socket) -> None:
    for _ in range(400):
        peer.sendall(b"y" * 65536)


@pytest.mark.security("D5")
def test_a_head_without_end_behind_a_request_that_waits_is_cut_off(start) -> None:
    process = start()
    with connect(process.url()) as peer:
        peer.sendall(raw_call("wait"))
        process.until("waiting")
        peer.sendall(b"POST /mcp HTTP/1.1\r\nX: ")
        with pytest.raises(OSError):
            flood(peer)


def test_a_head_that_comes_in_pieces_ahead_of_its_turn_is_read_whole(start) -> None:
    script = SCRIPT + "@server.tool\nasync def nap() -> int:\n    await asyncio.sleep(0.5)\n    return 1\n"
    with connect(start(script=script).url()) as peer:
        peer.sendall(raw_call("nap"))
        time.sleep(0.1)
        request = raw_call("pid")
        peer.sendall(request[:40])
        time.sleep(0.1)
        peer.sendall(request[40:])
        answered(peer, 2)


@pytest.mark.spec("HTTP-24")
@pytest.mark.security("D10")
@pytest.mark.parametrize("is_in_one_piece", [True, False])
def test_a_peer_that_goes_with_requests_ahead_of_their_turn_has_gone(start, *, is_in_one_piece: bool) -> None:
    waiting = 'print("waiting", file=sys.stderr, flush=True)\n'
    told = f"try: await asyncio.sleep(60)\n    finally: {waiting.replace('waiting', 'given up')}"
    process = start(script=SCRIPT + f"@server.tool\nasync def watch() -> None:\n    {waiting}    {told}")
    with connect(process.url()) as peer:
        peer.sendall(raw_call("watch") + (raw_call("pid") if is_in_one_piece else b""))
        process.until("waiting")
        peer.sendall(raw_call("pid"))
        time.sleep(0.1)
    process.until("given up")


def test_whoever_waits_to_be_told_to_go_on_is_told(start) -> None:
    head, _, body = raw_call("pid").partition(b"\r\n\r\n")
    with connect(start().url()) as peer:
        peer.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert peer.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.sendall(body)
        assert status(peer) == 200


# What Java's HttpClient sends unless it is told otherwise.
UPGRADE = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB"


@pytest.mark.parametrize("without", ["", WITHOUT_HTTPTOOLS], ids=["httptools", "h11"])
def test_a_wish_to_upgrade_is_ignored(start, without: str) -> None:
    head, _, body = raw_call("pid").partition(b"\r\n\r\n")
    request = head + UPGRADE + b"\r\n\r\n" + body
    with connect(start(script=without + SCRIPT).url()) as peer:
        peer.sendall(request)
        assert status(peer) == 200
        peer.sendall(request[:60])
        time.sleep(0.1)
        peer.sendall(request[60:-10])
        time.sleep(0.1)
        peer.sendall(request[-10:] + raw_call("pid"))
        answered(peer, 2)


def test_there_are_no_tunnels(start) -> None:
    with connect(start().url()) as peer:
        peer.sendall(b"CONNECT other:443 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(peer) == 405


# Workers.


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
    except FileNotFoundError:
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


GUARDED = "if __name__ == '__main__':\n    server.run('http', port=0, workers=2)"


@pytest.mark.parametrize("ending", [GUARDED, "server.run('http', port=0, workers=2)"])
def test_several_workers_serve_and_end_together(start, ending: str) -> None:
    process = start(ending)
    workers = pids(process.url(), 2)
    process.signal(signal.SIGINT)
    code, errors = process.end()
    assert code == 0
    assert "Traceback" not in errors
    assert all(map(gone, workers))


def test_workers_share_a_key_also_where_the_variable_for_it_is_empty(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STATE_KEY", "")
    tool = "@server.tool\nasync def key() -> str:\n    return os.environ['WEFT_STATE_KEY']\n"
    url = start(tool + GUARDED).url()
    pids(url, 2)
    keys = {RemoteServer(url, 30).call_tool("key", {})["content"][0]["text"] for _ in range(20)}
    assert [len(key) for key in keys] == [64]


class HandshakeClient:
    """Opens with a handshake, and sends each message on a connection of its own, so that any worker gets it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        info = {"protocolVersion": NEWEST.version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        opened = self.send("initialize", info)
        self._headers["MCP-Protocol-Version"] = NEWEST.version
        self.session = opened.headers.get("mcp-session-id")
        if self.session is not None:
            self._headers["Mcp-Session-Id"] = self.session
        self.send("notifications/initialized", id=None)

    def send(self, method: str, params: Any = None, id: int | None = 1) -> http.client.HTTPResponse:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}} | ({} if id is None else {"id": id})
        peer = connect(self._url)
        head = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        body = json.dumps(message).encode()
        peer.sendall(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        with contextlib.closing(peer):
            response = http.client.HTTPResponse(peer)
            response.begin()
            self.body = response.read()
        assert response.status in (200, 202), (response.status, self.body)
        return response

    def pid(self) -> int:
        self.send("tools/call", {"name": "pid", "arguments": {}})
        return int(json.loads(self.body)["result"]["content"][0]["text"])


def test_any_worker_serves_a_client_that_opened_with_a_handshake_at_another(start) -> None:
    process = start(GUARDED)
    url = process.url()
    assert process.until("without sessions").endswith(
        "To have sessions, use one worker or a shared backend=; sessions=False (--no-sessions) leaves this line out."
    )
    pids(url, 2)
    client = HandshakeClient(url)
    assert client.session is None
    served: set[int] = set()
    assert eventually(lambda: served.update(client.pid() for _ in range(20)) or len(served) == 2)


@pytest.mark.parametrize("setting", ["sessions=False", "eras=('stateless',)"])
def test_workers_without_sessions_say_nothing_of_it_where_it_was_asked_for(start, setting: str) -> None:
    script, ending = SCRIPT, GUARDED
    if setting.startswith("eras"):
        script = script.replace('Server("runner"', f'Server("runner", {setting}')
    else:
        ending = ending.replace("workers=2", f"workers=2, {setting}")
    process = start(ending, script)
    pids(process.url(), 2)
    process.signal(signal.SIGINT)
    assert "sessions" not in process.end()[1]


def test_one_process_serves_without_sessions_if_told_so(start) -> None:
    assert HandshakeClient(start().url()).session is not None
    assert HandshakeClient(start("server.run('http', port=0, sessions=False)").url()).session is None


@pytest.mark.parametrize("setting", ["sessions=True", "sse_path='/sse'", "sse_path='/sse', sessions=False"])
def test_sessions_at_workers_that_share_nothing_are_refused(start, setting: str) -> None:
    code, errors = start(GUARDED.replace("workers=2", f"workers=2, {setting}")).end()
    assert code == 1
    assert "is not possible with workers=2: each worker has its own memory" in errors
    assert errors.endswith("Use one worker, or give the server a backend= that the workers share.\n")


def test_workers_that_share_a_backend_have_sessions() -> None:
    memory = MemoryBackend()
    server = Server("sharing", backend=SimpleNamespace(store=memory.store, log=memory.log, bus=memory.bus))
    assert settle_sessions(server.engine, HttpOptions(workers=2)).sessions is True
    assert settle_sessions(server.engine, HttpOptions(workers=2, sessions=False)).sessions is False


def test_a_worker_that_dies_is_replaced(start) -> None:
    process = start(GUARDED)
    url = process.url()
    before = pids(url, 2)
    time.sleep(1)
    with contextlib.suppress(CallFailed):
        RemoteServer(url, 30).call_tool("die", {})
    process.until("is replaced")
    assert len(pids(url, 2) | before) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_who_comes_while_workers_end_is_refused_at_once(start) -> None:
    script = SCRIPT.replace("drain_seconds=0.5", "drain_seconds=40")
    process = start(GUARDED, script=script)
    url = process.url()
    with connect(url) as peer:
        peer.sendall(raw_call("wait"))
        process.until("waiting")
        process.signal(signal.SIGTERM)
        assert eventually(lambda: refuses(url))  # workers look for the signal ten times a second


def refuses(url: str) -> bool:
    try:
        connect(url).close()
    except ConnectionRefusedError:
        return True
    return False


def test_workers_end_when_their_parent_is_killed(start) -> None:
    process = start(GUARDED)
    workers = pids(process.url(), 2)
    process.signal(signal.SIGKILL)
    assert eventually(lambda: all(map(gone, workers)))


def test_workers_are_watched_over_from_any_thread(start) -> None:
    process = start(GUARDED.replace("server.run(", "asyncio.run(asyncio.to_thread(server.run, ") + ")")
    workers = pids(process.url(), 2)
    process.signal(signal.SIGKILL)
    assert eventually(lambda: all(map(gone, workers)))


def test_workers_need_a_server_they_can_find(start) -> None:
    code, errors = start(
        "def main(server=server):\n    server.run('http', port=0, workers=2)\ns = [server]; del server\nmain()"
    ).end()
    assert code == 1
    assert errors.startswith("Each worker loads the server itself, so it has to be a global variable of the script")


def test_a_worker_that_cannot_start_stops_everything(start) -> None:
    ending = "import __main__\nif not hasattr(__main__, 'server'):\n    raise ValueError('only in workers')\n" + GUARDED
    code, errors = start(ending).end()
    assert code == 1
    assert "ValueError: only in workers" in errors
    assert errors.splitlines()[-1] == "A worker could not start; the reason is printed above."


def test_type_checkers_know_every_option() -> None:
    assert HttpKeywords.__annotations__.keys() == set(HttpOptions.__struct_fields__)
    hints = get_type_hints(HttpOptions)
    assert get_type_hints(HttpKeywords) == hints
