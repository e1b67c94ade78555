"""The end of a process that somebody else runs: what is mounted there is closed like what `weft run` serves."""

import contextlib
import http.client
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import encode, headers_for, message, start_request
from support.hosted import Hosted
from weft.sync import Client

API = """
import asyncio
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
from weft import Server


def note(text: str) -> None:
    with open("events.txt", "a") as file:
        file.write(f"{os.getpid()} {text}\\n")


@asynccontextmanager
async def lifespan(server):
    note("entered")
    yield
    note("leaving")
    await asyncio.sleep(0.5)  # a pool of connections that takes its time
    note("left")


server = Server("shop", lifespan=lifespan)


@server.tool
async def who() -> int:
    return os.getpid()


@server.tool
async def wait() -> str:
    note("waiting")
    await asyncio.sleep(1)
    note("waited")
    return "done"


app = FastAPI()
app.mount("/", server.asgi("/mcp"))
"""


Host = Callable[..., Hosted]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    started: list[Hosted] = []

    def run(source: str = API, *options: str) -> Hosted:
        started.append(Hosted(tmp_path, source, *options))
        return started[-1]

    yield run
    for hosted in started:
        hosted.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_mounted_lifespan_is_left_when_the_process_is_asked_to_end(host: Host, number: int, loop: str) -> None:
    hosted = host(API, "--loop", loop)
    hosted.call("who")
    hosted.end(number)
    assert hosted.of(hosted.process.pid) == ["entered", "leaving", "left"]
    assert "Traceback" not in hosted.log


def test_the_process_still_ends_by_the_signal(host: Host) -> None:
    hosted = host()
    hosted.call("who")
    assert hosted.end(signal.SIGTERM) == -signal.SIGTERM  # as uvicorn has it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_worker_leaves_its_lifespan(host: Host, number: int) -> None:
    hosted = host(API, "--workers", "2")
    workers = _both_workers(hosted)
    hosted.end(number)
    for worker in workers:
        assert hosted.of(worker) == ["entered", "leaving", "left"]


def _both_workers(hosted: Hosted) -> set[int]:
    workers: set[int] = set()
    until = time.monotonic() + 30
    while len(workers) < 2 and time.monotonic() < until:
        workers.add(int(hosted.call("who")))
    assert len(workers) == 2
    return workers


SLOW = API.replace("sleep(0.5)", "sleep(1.5)")  # longer than uvicorn's supervisor takes to pass a signal on


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_cuts_no_cleanup(host: Host, number: int) -> None:
    # Ctrl-C in a terminal, and systemd: the workers hear it, and then again from their supervisor.
    hosted = host(SLOW, "--workers", "2")
    workers = _both_workers(hosted)
    hosted.end_group(number)
    for worker in workers:
        assert hosted.of(worker) == ["entered", "leaving", "left"]
    assert "Traceback" not in hosted.log


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_waits_for_the_cleanup(host: Host, first: int, second: int) -> None:
    hosted = host(API)
    hosted.call("who")
    hosted.process.send_signal(first)
    hosted.until("leaving")
    code = hosted.end_group(second)
    assert hosted.of(hosted.process.pid) == ["entered", "leaving", "left"]
    if signal.SIGTERM in (first, second):
        assert code == -signal.SIGTERM  # put off, not lost
    assert "Traceback" not in hosted.log


def test_a_second_signal_waits_for_the_cleanup_of_every_server(host: Host) -> None:
    hosted = host(SLOW + SECOND)
    hosted.call("who")
    with Client(hosted.url.replace("/mcp", "/other/mcp")) as client:
        client.call_tool("who")
    hosted.process.send_signal(signal.SIGINT)
    hosted.until("leaving")
    hosted.end_group(signal.SIGTERM)
    assert hosted.of(hosted.process.pid).count("left") == 2


def test_who_presses_ctrl_c_again_and_again_is_obeyed(host: Host) -> None:
    hosted = host(API.replace("sleep(0.5)", "sleep(60)"))
    hosted.call("who")
    hosted.process.send_signal(signal.SIGINT)
    hosted.until("leaving")
    begun = time.monotonic()
    hosted.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert hosted.process.poll() is None
    hosted.end(signal.SIGINT)
    assert time.monotonic() - begun < 10
    assert "left" not in hosted.of(hosted.process.pid)


def test_calls_that_are_open_end_before_the_lifespan_does(host: Host) -> None:
    hosted = host()
    hosted.call("who")
    results: list[Any] = []
    calling = threading.Thread(target=lambda: results.append(hosted.call("wait")))
    calling.start()
    while "waiting" not in hosted.of(hosted.process.pid):
        time.sleep(0.02)
    hosted.end(signal.SIGTERM)
    calling.join()
    assert results == ["done"]
    assert hosted.of(hosted.process.pid) == ["entered", "waiting", "waited", "leaving", "left"]


SECOND = """
other = Server("other", lifespan=lifespan)

@other.tool
async def who() -> int:
    return os.getpid()

app = FastAPI()
app.mount("/other", other.asgi("/mcp"))
app.mount("/", server.asgi("/mcp"))
"""


def test_two_mounted_servers_are_both_closed(host: Host) -> None:
    hosted = host(API + SECOND)
    hosted.call("who")
    with Client(hosted.url.replace("/mcp", "/other/mcp")) as client:
        client.call_tool("who")
    hosted.end(signal.SIGTERM)
    assert sorted(hosted.of(hosted.process.pid)) == ["entered"] * 2 + ["leaving"] * 2 + ["left"] * 2


@pytest.mark.parametrize("app", ["", "app = server.asgi('/mcp')"], ids=["mounted", "alone"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_listen_streams_do_not_hold_the_process(host: Host, app: str, number: int) -> None:
    hosted = host(f"{API}\n{app}\n")
    body = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    connection = http.client.HTTPConnection("127.0.0.1", hosted.port)
    with contextlib.closing(connection):
        start_request(connection, encode(body), headers_for(body))
        response = connection.getresponse()
        response.readline()
        begun = time.monotonic()
        hosted.end(number)
        assert time.monotonic() - begun < 5
        assert b'"result"' in response.read()  # ended, and not cut
    assert hosted.of(hosted.process.pid)[-1:] == ["left"]


def test_a_host_with_a_signal_handler_of_its_own_keeps_it(host: Host) -> None:
    source = """
import signal

@asynccontextmanager
async def host_lifespan(app):
    before = signal.getsignal(signal.SIGTERM)
    def stop(number, frame):
        note("host-was-asked")
        before(number, frame)
    signal.signal(signal.SIGTERM, stop)
    yield
    note("host-left")

app = FastAPI(lifespan=host_lifespan)
app.mount("/", server.asgi("/mcp"))
"""
    hosted = host(API + source)
    hosted.call("who")
    hosted.end(signal.SIGTERM)
    assert hosted.of(hosted.process.pid) == ["entered", "host-was-asked", "host-left", "leaving", "left"]


FAILING = API.replace('    note("entered")\n', '    note("entered")\n    raise OSError("no database at db.internal")\n')


@pytest.mark.mistake("a mounted lifespan that raises")
def test_a_mounted_lifespan_that_raises_is_told_as_what_it_is(host: Host) -> None:
    hosted = host(FAILING)
    said = ""
    for _ in range(3):
        with pytest.raises(Exception, match="lifespan") as caught:
            hosted.call("who")
        said = str(caught.value)
        assert "The server's lifespan failed when it started, so nothing can be served." in said
        assert "busy" not in said
        assert "just starting" not in said
        assert "db.internal" not in said  # the peer's text is masked
    (logged,) = re.findall(r".*OSError: no database at db\.internal.*", hosted.log)  # once, for all that were told
    reference = re.search(r"\[error (\w+)\]", logged)
    assert reference
    assert f"The server's log has it under error {reference[1]}" in said
    assert "api.py:" in hosted.log


def test_a_mounted_lifespan_that_recovers_is_served(host: Host) -> None:
    source = API.replace(
        '    note("entered")\n',
        '    note("entered")\n    if not os.path.exists("db"):\n        raise OSError("no database")\n',
    )
    hosted = host(source)
    with pytest.raises(Exception, match="lifespan failed"):
        hosted.call("who")
    (hosted.events_file.parent / "db").touch()
    assert hosted.call("who") == str(hosted.process.pid)


ASKING = (
    API.replace(
        "app = FastAPI()",
        """
from weft import Context, Limits
from dataclasses import dataclass


@dataclass
class Name:
    name: str


@server.tool
async def ask(ctx: Context) -> str:
    note("asking")
    return str(await ctx.elicit("Who are you?", Name))


app = FastAPI()""",
    )
    .replace('Server("shop", ', 'Server("shop", limits=Limits(drain_seconds=0.5), ')
    .replace("from weft import Server", "from weft import Limits, Server")
)


@contextlib.contextmanager
def sent(hosted: Hosted, session: str | None, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    """The answer to one message of a session client; it may be a stream."""
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if session is not None:
        headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", hosted.port, timeout=20)) as connection:
        connection.request("POST", "/mcp", encode({"jsonrpc": "2.0", **body}), headers)
        with connection.getresponse() as response:
            yield response


@pytest.mark.parametrize("goes", [True, False])
def test_a_question_that_cannot_be_answered_does_not_hold_the_process(host: Host, goes: bool) -> None:
    """A session client is asked something while the process is asked to end; it may be gone by then."""
    hosted = host(ASKING)
    client = {"capabilities": {"elicitation": {}}, "clientInfo": {"name": "test", "version": "1"}}
    opening = {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25", **client}}
    with sent(hosted, None, opening) as opened:
        session = opened.getheader("mcp-session-id")
    with sent(hosted, session, {"method": "notifications/initialized"}):
        pass
    asking = {"id": 2, "method": "tools/call", "params": {"name": "ask", "arguments": {}}}
    with sent(hosted, session, asking) as asked:
        while b"elicitation/create" not in asked.readline():
            pass
        if not goes:
            hosted.end(signal.SIGTERM)
            assert b"The server stops" in asked.read()
    if goes:
        hosted.end(signal.SIGTERM)
    assert hosted.of(hosted.process.pid) == ["entered", "asking", "leaving", "left"]
    assert "The server stops. It waits for 1 call: tools/call 'ask'" in hosted.log
