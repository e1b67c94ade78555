"""Two thousand sessions, left in every way there is: afterwards everything is as it was before."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.raw_sessions import FORM, SocketPeer, called, message

PROGRAM = """
import asyncio, ctypes, gc, sys
from weft import Context, Limits, Server
from support.raw_sessions import Reply

limits = Limits(
    write_seconds=0.5, replay_bytes=4_000_000,
    session_unused_seconds=8, session_idle_seconds=8, ask_seconds=8, sessions_per_peer=10_000, drain_seconds=0.5
)
server = Server("leaks", limits=limits)
server.add_resource("a://1", "one")
closed = opened = 0

@server.tool
async def hold(ctx: Context) -> None:
    global opened
    if not ctx.connection.state:
        ctx.connection.state["held"] = "x" * 1000
        opened += 1

        def close() -> None:
            global closed
            closed += 1

        ctx.connection.exit_stack.callback(close)

@server.tool
async def ask(ctx: Context) -> str:
    return (await ctx.elicit("Tea?", Reply)).action

@server.tool
async def chatter(ctx: Context) -> None:
    for number in range(20):
        await ctx.report_progress(number, message="x" * 200)
        await asyncio.sleep(0.001)

@server.tool
async def shout(ctx: Context) -> None:
    await ctx.connection.notify("notifications/message", {"level": "info", "data": "x" * 200})
    server.notify_resource_updated("a://1")

@server.tool
async def flood(ctx: Context) -> str:
    for number in range(300):
        await ctx.report_progress(number, message="x" * 100_000)
    return "flooded"

@server.tool
async def flood_beside(ctx: Context) -> str:
    for _ in range(300):
        await ctx.connection.notify("notifications/message", {"level": "info", "data": "x" * 100_000})
    return "flooded"

@server.tool
async def count() -> dict[str, int]:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    backend, sessions = server.backend, server.engine.sessions
    return {
        "sessions": len(sessions),
        "by peer": len(sessions._opened.per_peer),
        "under way": len(sessions._background) + server.engine.in_flight - 1,
        "tasks": len(asyncio.all_tasks()),
        "values": len(backend.store._values),
        "logs": len(backend.log._logs),
        "topics": len(backend.bus._topics),
        "streams": len(sessions.streams._kept) + len(sessions.streams._keys) + len(sessions.streams._readers),
        "open streams": len(sessions.streams._open),
        "bytes": sessions.streams._bytes,
        "open stacks": opened - closed,
        "objects": len(gc.get_objects()),
    }

server.run("http", port=0)
"""
SESSIONS = 2000


class Served:
    """A process that serves, and what it holds."""

    def __init__(self, file: Path) -> None:
        # What is freed goes back to the system; else Python and glibc keep some, and memory says nothing.
        environment = {
            **os.environ,
            "PYTHONMALLOC": "malloc",
            "MALLOC_MMAP_THRESHOLD_": "131072",
            "MALLOC_ARENA_MAX": "1",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        # Into a file: a pipe that nobody reads would stop the server, once it is full of what it logs.
        self._said = file.with_suffix(".log")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen([sys.executable, str(file)], stderr=said, env=environment)
        end = time.monotonic() + 60
        while not (found := re.search(r":(\d+)/mcp", self.said)):
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        self.port = int(found[1])

    @property
    def said(self) -> str:
        """All that it logged."""
        return self._said.read_text()

    async def count(self) -> dict[str, int]:
        answer = await (await SocketPeer(self.port).stateless("tools/call", {"name": "count"})).result()
        return answer["structuredContent"]

    async def settled(self, before: dict[str, int]) -> dict[str, int]:
        """What it holds when no session is left."""
        end = time.monotonic() + 120
        while True:
            now = await self.count()
            same = all(now[name] == before[name] for name in now if name != "objects")
            if same or time.monotonic() > end:
                return now
            await asyncio.sleep(0.2)

    @property
    def resident(self) -> int:
        """KB of memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index] - it is there

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    served = Served(file)
    yield served
    served.process.kill()
    served.process.wait(30)


async def live_and_leave(port: int, number: int) -> None:
    """One session, used and left in one of ten ways."""
    peer, way = SocketPeer(port), number % 10
    await peer.open(capabilities=FORM)
    await (await peer.post(called("hold", 1))).body()
    if way in (0, 1, 2):
        await peer.get()
        await peer.post(message("resources/subscribe", {"uri": "a://1"}, 2))
        await (await peer.post(called("shout", 3))).body()
    elif way in (3, 4):
        await (await peer.post(called("ask", 4))).question()
    elif way in (5, 6):
        await (await peer.post(called("chatter", 5, progress="p"))).message()
    elif way == 7:
        await (await peer.post(called("chatter", 6, progress="p"))).json()
    elif way == 8:
        await peer.post(message("logging/setLevel", {"level": "debug"}, 7))
    if number % 2 == 0:
        assert (await peer.delete()).status == 204
    for exchange in peer.exchanges:
        await exchange.close()  # without a word, whatever is still to come


async def many(port: int, sessions: int) -> None:
    turn = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        async with turn:
            await live_and_leave(port, number)

    async with asyncio.timeout(120), asyncio.TaskGroup() as all_of_them:  # the first that fails ends the others
        for number in range(sessions):
            all_of_them.create_task(one(number))


@pytest.mark.security("R12", "D8")
async def test_two_thousand_sessions_leave_nothing_behind(served: Served) -> None:
    nothing = await served.count()
    await many(served.port, 400)  # everything that is made once is made
    before = await served.settled(nothing)
    memory, files = served.resident, served.files
    await many(served.port, SESSIONS)
    assert (await served.count())["sessions"] > 10  # they are there, and end by themselves
    after = await served.settled(before)
    objects = after.pop("objects"), before.pop("objects")
    assert after == before, json.dumps([before, after])
    assert after["sessions"] == after["values"] == after["logs"] == after["open stacks"] == after["streams"] == 0
    assert objects[0] < 1.1 * objects[1]
    assert served.resident < 1.1 * memory
    assert served.files <= files


@pytest.mark.security("D10", "R12")
async def test_clients_that_do_not_read_are_cut_and_what_is_kept_for_them_is_bounded(served: Served) -> None:
    before = await served.count()
    memory, files = served.resident, served.files
    stalled = [await stall(served.port, number) for number in range(10)]
    quick = SocketPeer(served.port)
    await quick.open()
    for number in range(20):  # nobody else waits for them
        assert (await quick.post(called("hold", number))).status == 200
    after = await served.settled(before)
    assert served.resident - memory < 64_000
    assert (after["sessions"], after["bytes"], after["under way"]) == (0, 0, 0)
    assert served.files <= files + 1
    for socket in stalled:
        socket.close()


async def stall(port: int, number: int) -> Any:
    """A client that has much sent to it, on its stream or as an answer, and reads nothing of it."""
    peer = SocketPeer(port)
    await peer.open()
    tool, verb = ("flood", "POST") if number % 2 else ("flood_beside", "GET")
    body = json.dumps(called(tool, 1, progress="p")).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reader._transport.pause_reading()  # type: ignore[attr-defined] - nothing is read from the socket
    head = f"{verb} /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nMcp-Session-Id: {peer.session}\r\n"
    if verb == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}\r\n".encode() + body)
    else:
        writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        await asyncio.sleep(0.05)
        await peer.begin(called(tool, 1))
    await asyncio.sleep(0.01)
    return writer


@pytest.mark.security("R12")
async def test_garbage_at_the_door_leaves_nothing_behind(served: Served) -> None:
    peer = SocketPeer(served.port)
    before = await served.count()
    before.pop("objects")
    for number in range(200):
        refused: list[Any] = [
            await peer.post(message("initialize", {"protocolVersion": number}, 1)),
            await peer.request("POST", called("hold", 1), session=f"nobody's {number}"),
            await peer.request("GET", session=f"nobody's {number}"),
            await peer.request("DELETE", session=f"nobody's {number}"),
        ]
        assert [exchange.status for exchange in refused] == [200, 404, 404, 404]
    after = await served.settled(before)
    after.pop("objects")
    assert after == before
