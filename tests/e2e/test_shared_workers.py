"""Workers of one machine share everything: what was begun at one of them goes on at another."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process, gone
from support.raw_sessions import FORM, Connection, SocketPeer, accept, called, eventually, message
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY

SCRIPT = """
import asyncio, os
from dataclasses import dataclass
from weft import Context, Server

server = Server("shared")
server.add_resource("a://1", "one")

@dataclass
class Reply:
    value: str

@server.tool
async def pid() -> int:
    return os.getpid()

@server.tool(single_use=True)
async def ask(ctx: Context) -> str:
    charged = await ctx.once("charge", charge)
    answer = await ctx.elicit("Tea?", Reply)
    return f"{answer.value.value} {charged} {os.getpid()}"

async def charge() -> int:
    return os.getpid()

@server.tool
async def change(uri: str) -> int:
    server.notify_resource_updated(uri)
    return os.getpid()

@server.tool
async def grow() -> int:
    server.add_tool(pid, name="pid2")
    return os.getpid()

@server.tool
async def wait(ctx: Context) -> str:
    await ctx.report_progress(1)
    await asyncio.sleep(60)
    return "never"

if __name__ == '__main__':
    server.run('http', port=0, workers=2, log_level='warning', OPTIONS)
"""


class Machine:
    """A process with two workers."""

    def __init__(self, folder: Path, options: str = "") -> None:
        self.process = Process(folder, "", SCRIPT.replace("OPTIONS", options))
        self.port = int(self.process.url().split(":")[2].split("/")[0])

    async def pids(self) -> set[int]:
        """Both workers."""
        found: set[int] = set()
        async with asyncio.timeout(20):
            while len(found) < 2:
                answer = await SocketPeer(self.port).stateless("tools/call", {"name": "pid"})
                found.add(int(await answer.text()))
                await answer.close()
        return found

    async def connect_beside(self, worker: int) -> Connection:
        """Open a connection that another worker than this one has accepted."""
        os.kill(worker, signal.SIGSTOP)
        try:
            await eventually(lambda: is_stopped(worker))
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(20):
                head = await reader.readuntil(b"\r\n\r\n")
                assert b" 200 " in head
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        finally:
            os.kill(worker, signal.SIGCONT)
        return reader, writer

    async def connect(self, worker: int) -> Connection:
        """Open a connection that this worker has accepted."""
        (other,) = await self.pids() - {worker}
        return await self.connect_beside(other)

    def beside(self, worker: int, peer: SocketPeer) -> SocketPeer:
        """The same client, whose requests go to another worker than this one."""
        return peer.over(lambda: self.connect_beside(worker))

    def at(self, worker: int, peer: SocketPeer) -> SocketPeer:
        """The same client, whose requests go to this worker."""
        return peer.over(lambda: self.connect(worker))


def is_stopped(pid: int) -> bool:
    """Whether the main thread of a process, which accepts connections, is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("shared"), "sse_path='/sse'")
    yield made
    made.process.kill()


@pytest.fixture
async def peer(machine: Machine) -> AsyncIterator[SocketPeer]:
    """A client with a session, and with a connection for each request."""
    client = SocketPeer(machine.port)
    await client.open(capabilities=FORM)
    yield client
    for exchange in client.exchanges:
        await exchange.close()


async def pid_of(peer: SocketPeer) -> int:
    return int(await (await peer.post(called("pid"))).text())


# Sessions.


async def test_every_worker_serves_a_session(machine: Machine, peer: SocketPeer) -> None:
    assert peer.session is not None
    for worker in await machine.pids():
        assert int(await (await machine.at(worker, peer).post(called("pid"))).text()) == worker


async def test_a_question_asked_at_one_is_answered_at_another(machine: Machine, peer: SocketPeer) -> None:
    asker, *_ = await machine.pids()
    asking = await machine.at(asker, peer).post(called("ask"))
    question = await asking.question()
    answered = await machine.beside(asker, peer).post(accept(question, "yes"))
    assert answered.status == 202
    assert await asking.text() == f"yes {asker} {asker}"


async def test_a_call_at_one_is_cancelled_at_another(machine: Machine, peer: SocketPeer) -> None:
    worker, *_ = await machine.pids()
    waiting = await machine.at(worker, peer).post(called("wait", 7, progress="p"))
    await waiting.message()
    cancelled = message("notifications/cancelled", {"requestId": 7})
    assert (await machine.beside(worker, peer).post(cancelled)).status == 202
    with pytest.raises(EOFError):
        await waiting.message()


async def test_a_session_that_ends_at_one_has_ended_at_the_other(machine: Machine, peer: SocketPeer) -> None:
    one, other = await machine.pids()
    for worker in (one, other):
        await machine.at(worker, peer).post(called("pid"))
    assert (await machine.at(one, peer).delete()).status < 300
    assert (await machine.at(other, peer).post(called("pid"))).status == 404


async def test_messages_of_the_oldest_transport_may_reach_a_worker_without_its_stream(machine: Machine) -> None:
    one, other = await machine.pids()
    async with asyncio.timeout(20):
        reader, writer = await machine.connect(one)
        writer.write(b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        path = (await reader.readuntil(b"data: ") and await reader.readline()).strip().decode()

        async def post(body: Any) -> bytes:
            reader, writer = await machine.connect(other)
            data = json.dumps(body).encode()
            fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(f"POST {path} HTTP/1.1\r\n{fields}".encode() + data)
            status = await reader.readline()
            writer.close()
            return status

        async def result() -> Any:
            return json.loads(await reader.readuntil(b"data: ") and await reader.readline())["result"]

        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        assert b" 202 " in await post(message("initialize", params, 1))
        assert (await result())["protocolVersion"] == "2024-11-05"
        assert b" 202 " in await post(message("notifications/initialized"))
        assert b" 202 " in await post(called("pid", 2))
        assert (await result())["content"][0]["text"] == str(other)
        writer.close()


# Changes.


async def test_a_change_at_one_reaches_the_stream_of_a_session_at_another(machine: Machine, peer: SocketPeer) -> None:
    one, other = await machine.pids()
    stream = await machine.at(one, peer).get()
    assert (await machine.at(other, peer).post(message("resources/subscribe", {"uri": "a://1"}, 3))).status == 200
    changing = await machine.at(other, peer).post(called("change", uri="a://1"))
    assert await changing.text() == str(other)
    assert (await stream.message())["method"] == "notifications/resources/updated"


async def test_a_change_at_one_reaches_a_listen_stream_at_another(machine: Machine) -> None:
    one, other = await machine.pids()
    client = SocketPeer(machine.port)
    wanted = {"notifications": {"resourceSubscriptions": ["a://1"], "toolsListChanged": True}}
    stream = await machine.at(one, client).stateless("subscriptions/listen", wanted)
    assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
    await machine.at(other, client).stateless("tools/call", {"name": "change", "arguments": {"uri": "a://1"}})
    assert (await stream.message())["method"] == "notifications/resources/updated"
    await machine.at(other, client).stateless("tools/call", {"name": "grow"})
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    await stream.close()


# Calls in rounds.


async def test_a_state_is_accepted_by_one_worker_only(machine: Machine) -> None:
    asker, other = await machine.pids()
    client, meta = SocketPeer(machine.port), {CLIENT_CAPABILITIES_KEY: FORM}
    asking = await machine.at(asker, client).stateless("tools/call", {"name": "ask"}, meta=meta)
    first = await asking.result()
    answers = {key: {"action": "accept", "content": {"value": "yes"}} for key in first["inputRequests"]}
    again = {"name": "ask", "inputResponses": answers, "requestState": first["requestState"]}
    done = await machine.at(other, client).stateless("tools/call", again, meta=meta)
    assert await done.text() == f"yes {asker} {other}"
    for worker in (asker, other):
        refused = await (await machine.at(worker, client).stateless("tools/call", again, meta=meta)).json()
        assert "error" in refused


# The end of a worker.


async def test_a_session_lives_on_when_its_worker_is_killed(machine: Machine, peer: SocketPeer) -> None:
    before = await machine.pids()
    await asyncio.sleep(1)  # not so soon after its start, or its replacement is late
    killed = await pid_of(peer)
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: gone(killed))
    assert await pid_of(peer) in before - {killed}
    now = await machine.pids()
    assert now - before
    for worker in now:
        assert int(await (await machine.at(worker, peer).post(called("pid"))).text()) == worker


async def test_a_session_lives_on_when_all_workers_are_replaced(machine: Machine, peer: SocketPeer) -> None:
    before = await machine.pids()
    machine.process.signal(signal.SIGHUP)
    async with asyncio.timeout(20):
        while not all(map(gone, before)):
            assert await pid_of(peer) > 0
    now = await machine.pids()
    assert now.isdisjoint(before)
    for worker in now:
        assert int(await (await machine.at(worker, peer).post(called("pid"))).text()) == worker


# Without sessions.


async def test_without_sessions_clients_with_a_handshake_are_served_by_any_worker(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "sessions=False")
    try:
        client = SocketPeer(machine.port)
        params = {"protocolVersion": client.version, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        opened = await client.request("POST", message("initialize", params, 0))
        assert opened.status == 200
        assert "mcp-session-id" not in opened.headers
        for worker in await machine.pids():
            there = machine.at(worker, client)
            answer = await there.post(called("pid"), MCP_Protocol_Version=client.version)
            assert int(await answer.text()) == worker
    finally:
        machine.process.kill()
