"""The server's process is killed, or the way to it cut, while the client waits: what it does, and leaves behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.cutting import cutting
from support.ports import find_port, until_listening
from weft import Client, ClientLimits, ConnectionFailed
from weft.client import StreamReopened, ToolsChanged

SERVER = """
import asyncio
from weft import Context, Server

server = Server("mortal", version="1")
runs = 0

@server.tool
async def wait() -> str:
    await asyncio.sleep(60)
    return "done"

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

@server.tool
async def count(ctx: Context) -> int:
    global runs
    runs += 1
    await ctx.report_progress(1, 2)
    await asyncio.sleep(0.3)
    return runs
"""
LIMITS = ClientLimits(request_seconds=20, close_seconds=1)
IMPATIENT = ClientLimits(request_seconds=20, close_seconds=1, resumptions=1)


class Process:
    """A server that can be killed and started again at the same port."""

    def __init__(self, program: Path) -> None:
        self.port = find_port()
        self.program = program
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "weft", "run", str(self.program), "--http", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_listening(self.process, self.port)
        assert self.process.poll() is None, "the server did not start"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mortal.py"
    path.write_text(SERVER)
    return path


@pytest.fixture
def server(program: Path) -> Iterator[Process]:
    process = Process(program)
    yield process
    process.kill()


def others() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_killed_during_a_call(server: Process, mode: Any) -> None:
    async with Client(server.url, eras=[mode], limits=LIMITS) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await asyncio.sleep(0.2)
        server.kill()
        with pytest.raises(ConnectionFailed) as caught:
            await asyncio.wait_for(call, 30)
        assert server.url in str(caught.value)
        server.start()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
    assert others() == []


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_killed_during_a_listen(server: Process, mode: Any) -> None:
    async with Client(server.url, eras=[mode], limits=LIMITS) as client, client.listen(tools=True) as changes:
        server.kill()
        await asyncio.sleep(0.2)
        server.start()
        assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
    assert others() == []


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_killed_for_good_during_a_listen(server: Process, mode: Any) -> None:
    """Of the session era it is the GET stream that is lost."""
    async with Client(server.url, eras=[mode], limits=IMPATIENT) as client, client.listen(tools=True) as changes:
        server.kill()
        with pytest.raises(ConnectionFailed) as caught:
            await asyncio.wait_for(anext(changes), 30)
        assert server.url in str(caught.value)
        with pytest.raises(ConnectionFailed, match="No server is running"):
            await client.call_tool("add", {"a": 1, "b": 2})
    assert others() == []


async def test_killed_while_many_wait(server: Process) -> None:
    async with Client(server.url, limits=LIMITS) as client:
        calls = [asyncio.create_task(client.call_tool("wait")) for _ in range(20)]
        await asyncio.sleep(0.3)
        server.kill()
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert {type(outcome) for outcome in outcomes} == {ConnectionFailed}
    assert others() == []


# --- a way that breaks


async def test_a_call_whose_stream_is_cut_is_reported_and_not_made_again(server: Process) -> None:
    with cutting(server.port, b"notifications/progress") as cut:
        async with Client(cut.url, eras=["stateless"], limits=LIMITS) as client:
            with pytest.raises(ConnectionFailed, match=r"is not known|ended the stream"):
                await client.call_tool("count", progress=lambda _: None)
            assert cut.happened
            assert (await client.call_tool("count")).text == "2"
    assert others() == []


@pytest.mark.spec("L11-17")
async def test_in_a_session_a_stream_that_is_cut_is_taken_up_again(server: Process) -> None:
    with cutting(server.port, b"notifications/progress") as cut:
        async with Client(cut.url, eras=["session"], limits=LIMITS) as client:
            result = await asyncio.wait_for(client.call_tool("count", progress=lambda _: None), 30)
            assert (result.text, cut.happened) == ("1", True)
            assert len(cut.last_event_ids) >= 1
            assert (await client.call_tool("count")).text == "2"  # the first ran once
    assert others() == []


@pytest.mark.spec("SUB-15")
async def test_a_listen_stream_that_is_cut_is_opened_again(server: Process) -> None:
    with cutting(server.port, b"subscriptions/acknowledged") as cut:
        async with Client(cut.url, eras=["stateless"], limits=LIMITS) as client, client.listen(tools=True) as changes:
            assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
            assert cut.happened
    assert others() == []


# --- a way that is open and leads nowhere


class Mute:
    """A way to a server that can fall silent without being closed: whatever is said then is swallowed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_mute = False
        self.connections = 0

    async def __aenter__(self) -> str:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/mcp"

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # for the sockets to close

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.add(asyncio.current_task())  # type: ignore[arg-type] - there is one
        behind, before = await asyncio.open_connection("127.0.0.1", self.port)
        is_old = True

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if not (self.is_mute and is_old):
                    target.write(data)

        if self.is_mute:  # those who come anew are let through
            is_old = False
        ways = [asyncio.create_task(pump(reader, before)), asyncio.create_task(pump(behind, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the end of the test
        finally:
            writer.transport.abort()
            before.transport.abort()
            for one in ways:
                one.cancel()
            await asyncio.wait(ways)


QUIET = """
from weft import Limits, Server

server = Server("quiet", version="1", limits=Limits(keep_alive_seconds=0.2))

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

@server.tool
async def change() -> str:
    server.notify_tools_changed()
    return "changed"
"""


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_stream_that_fell_silent_is_noticed_and_opened_again(tmp_path: Path, mode: Any) -> None:
    program = tmp_path / "quiet.py"
    program.write_text(QUIET)
    server = Process(program)
    way = Mute(server.port)
    limits = ClientLimits(silence_seconds=1.5, close_seconds=1)
    try:
        async with (
            way as url,
            Client(url, eras=[mode], limits=limits) as client,
            client.listen(tools=True) as changes,
        ):
            before = way.connections
            await asyncio.sleep(1.8)
            assert way.connections == before  # signs of life came, and nothing was taken for lost
            way.is_mute = True
            assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
            await client.call_tool("change")
            assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()
        assert others() == []
    finally:
        server.kill()


# --- children


def children() -> set[int]:
    """The processes that this one has started and that still run."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_child_killed_for_good_while_one_listens(program: Path, mode: Any) -> None:
    before = children()
    command = [sys.executable, "-m", "weft", "run", str(program)]
    async with Client(command, eras=[mode], limits=IMPATIENT) as client, client.listen(tools=True) as changes:
        os.kill(client.transport.pid, signal.SIGKILL)  # type: ignore[attr-defined] - a child process has one
        with pytest.raises(ConnectionFailed, match=r"SIGKILL|signal|killed"):
            await asyncio.wait_for(anext(changes), 30)
    assert others() == []
    assert children() == before


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_child_killed_during_a_call(program: Path, mode: Any) -> None:
    before = children()
    async with Client([sys.executable, "-m", "weft", "run", str(program)], eras=[mode], limits=LIMITS) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await asyncio.sleep(0.2)
        os.kill(client.transport.pid, signal.SIGKILL)  # type: ignore[attr-defined] - a child process has one
        with pytest.raises(ConnectionFailed, match=r"SIGKILL|signal|killed"):
            await asyncio.wait_for(call, 30)
        with pytest.raises(ConnectionFailed):
            await client.call_tool("add", {"a": 1, "b": 2})
        await client.reconnect()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
    assert others() == []
    assert children() == before


@pytest.mark.spec("STDIO-13", "STDIO-14", "SUB-16")
@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_who_listens_to_a_child_goes_on_after_it_was_started_anew(program: Path, mode: Any) -> None:
    command = [sys.executable, "-m", "weft", "run", str(program)]
    async with Client(command, eras=[mode], limits=LIMITS) as client, client.listen(tools=True) as changes:
        os.kill(client.transport.pid, signal.SIGKILL)  # type: ignore[attr-defined] - a child process has one
        await asyncio.sleep(0.1)
        await client.reconnect()
        assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
    assert others() == []
