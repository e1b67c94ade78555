"""Running a server as a process: start, refusal to start, signals, and the guard on the head of a request."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from support.processes import SCRIPT, Process, connect, eventually, pid_of, raw_call, refuses, status
from weft import Server
from weft.auth import ResourceServer, StaticTokens
from weft.cli.calling import RemoteServer
from weft.eras.session import NEWEST
from weft.errors import StartError, UsageError
from weft.net.hosts import is_loopback
from weft.server.run.listening import (
    HttpKeywords,
    HttpOptions,
    bind,
    check_exposure,
    for_hosts,
    needed_host,
    try_line,
    url_of,
)


@pytest.fixture
def start(tmp_path: Path):
    with contextlib.ExitStack() as stack:

        def start(ending: str = "server.run('http', port=0)", script: str = SCRIPT) -> Process:
            process = Process(tmp_path, ending, script)
            stack.callback(process.kill)
            return process

        yield start


WITHOUT_HTTPTOOLS = "import sys; sys.modules['httptools'] = None; import importlib.util as u; f = u.find_spec\n"
WITHOUT_HTTPTOOLS += "u.find_spec = lambda name, *rest: None if name == 'httptools' else f(name, *rest)\n"


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
    ("allowed", "shown", "named", "needed"),
    [
        (["api.example.com", "localhost"], "localhost", " for the host api.example.com", None),
        (["*", "*.example.com", "api.example.com:8443"], "127.0.0.1", "", None),
        (["*"], "127.0.0.1", "", None),
        (["::1"], "[::1]", "", None),
        (["*.example.com", "b.example"], "127.0.0.1", " for the hosts *.example.com, b.example", "www.example.com"),
        (["a.example:80"], "127.0.0.1", " for the host a.example:80", "a.example:80"),
    ],
)
def test_the_url_is_where_it_listens_and_other_hosts_are_named_apart(
    allowed: list[str], shown: str, named: str, needed: str | None
) -> None:
    options = HttpOptions(host="0.0.0.0", allowed_hosts=allowed)
    with bind("127.0.0.1", 0) as listener:
        url = url_of(options, listener)
        assert url == f"http://{shown}:{listener.getsockname()[1]}/mcp"
    assert for_hosts(options) == named
    assert needed_host(options, url) == needed


def test_what_to_try_sends_the_host_that_is_allowed(start) -> None:
    process = start("server.run('http', port=0, allowed_hosts=['mcp.example.com'])")
    url = process.url()
    assert process.until("Try:").endswith(f"weft call {url} pid --header 'Host: mcp.example.com'")
    RemoteServer(url, 30, headers={"Host": "mcp.example.com"}).call_tool("pid", {})


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


@pytest.mark.parametrize("without", ["", WITHOUT_HTTPTOOLS], ids=["httptools", "h11"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_sigterm_a_kept_connection_has_one_more_answer(start, number: int, without: str) -> None:
    process = start(script=without + SCRIPT.replace("drain_seconds=0.5", "drain_seconds=5"))
    url = process.url()
    with connect(url) as used, connect(url) as idle, connect(url) as open_request:
        for peer in (used, idle):
            peer.sendall(raw_call("pid"))
            assert status(peer) == 200
        open_request.sendall(raw_call("wait"))
        process.until("waiting")
        process.signal(number)
        assert eventually(lambda: refuses(url))
        if number == signal.SIGINT:
            assert idle.recv(1) == used.recv(1) == b""
        else:
            used.sendall(raw_call("pid"))
            answer = b"".join(iter(lambda: used.recv(1000), b""))  # to the end: the server closes the connection
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"\r\nconnection: close\r\n" in answer.lower()
            assert idle.recv(1) == b""  # after a second


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


@pytest.mark.parametrize(("setting", "expected"), [("", True), (", sessions=True", True), (", sessions=False", False)])
def test_one_process_serves_without_sessions_if_told_so(start, setting: str, *, expected: bool) -> None:
    url = start(f"server.run('http', port=0{setting})").url()
    params = {"protocolVersion": NEWEST.version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    with contextlib.closing(http.client.HTTPConnection(url.split("/")[2], timeout=30)) as connection:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request("POST", "/mcp", body, headers)
        answer = connection.getresponse()
        assert answer.status == 200
        assert (answer.getheader("mcp-session-id") is not None) == expected


def test_type_checkers_know_every_option() -> None:
    assert HttpKeywords.__annotations__.keys() == set(HttpOptions.__struct_fields__)
    hints = get_type_hints(HttpOptions)
    assert get_type_hints(HttpKeywords) == hints
