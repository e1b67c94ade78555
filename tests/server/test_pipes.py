"""Several pipes of one server: what belongs to one of them does not end with another."""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from support import encode, message, serve
from weft import Limits, Server
from weft.server.runtime.admission import busy
from weft.server.stdio.stdio import LineWriter, serve_stdio


async def read(fd: int) -> bytes:
    assert (await asyncio.to_thread(select.select, [fd], [], [], 5))[0], "nothing came"
    return os.read(fd, 1 << 16)


class Pipe:
    """The client's ends of a pair of pipes, and the task that serves them."""

    def __init__(self, server: Server) -> None:
        self._theirs = os.pipe(), os.pipe()
        (source, self._out), (self._in, sink) = self._theirs
        self._rest = b""
        self.serving = asyncio.create_task(serve_stdio(server.engine, source, sink))

    def send(self, method: str, params: Any = None, *, id: Any = 1) -> None:
        os.write(self._out, encode(message(method, params, id=id)) + b"\n")

    def tool(self, name: str, *, id: Any = 1) -> None:
        self.send("tools/call", {"name": name}, id=id)

    async def next(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            self._rest += await read(self._in)
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def end(self) -> None:
        if self._out >= 0:
            os.close(self._out)
            self._out = -1
        await asyncio.wait_for(self.serving, 30)

    def close(self) -> None:
        for fd in (self._theirs[0][0], self._in, self._theirs[1][1]):
            os.close(fd)


@asynccontextmanager
async def pipes(server: Server, count: int = 2) -> AsyncIterator[list[Pipe]]:
    opened = [Pipe(server) for _ in range(count)]
    try:
        yield opened
    finally:
        for pipe in opened:
            with suppress(asyncio.CancelledError):
                await pipe.end()
            pipe.close()
        await server.engine.lifespan.stop()


async def listen(pipe: Pipe) -> None:
    pipe.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="listen")
    assert (await pipe.next())["method"] == "notifications/subscriptions/acknowledged"


async def in_flight(server: Server, count: int) -> None:
    async with asyncio.timeout(30):
        while server.engine.in_flight < count:  # noqa: ASYNC110 - a number, not an event
            await asyncio.sleep(0.001)


def make(**options: Any) -> Server:
    server = Server("piped", **options)

    @server.tool
    async def add() -> int:
        return 2

    @server.tool
    async def wait() -> None:
        await asyncio.sleep(60)

    return server


async def test_the_streams_of_one_pipe_do_not_end_with_another() -> None:
    server = make()
    async with pipes(server) as (first, second):
        await listen(first)
        await listen(second)
        await first.end()
        assert [(await first.next()).get("id"), (await first.next())["method"]] == ["listen", "notifications/cancelled"]
        assert len(server.engine.subscriptions) == 1
        server.notify_tools_changed()
        assert (await second.next())["method"] == "notifications/tools/list_changed"


async def test_a_pipe_without_requests_ends_quietly_whoever_else_listens() -> None:
    server = make()
    async with pipes(server) as (first, second):
        await listen(second)
        first.tool("add")
        await first.next()
        first.serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(first.serving, 30)
        assert len(server.engine.subscriptions) == 1


async def test_the_lifespan_and_the_threads_outlive_the_first_pipe() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        events.append("started")
        yield
        events.append("stopped")

    server = make(lifespan=lifespan)
    going = asyncio.Event()
    loop = asyncio.get_running_loop()

    @server.tool
    def plain() -> str:
        loop.call_soon_threadsafe(going.set)
        asyncio.run_coroutine_threadsafe(ended.wait(), loop).result(5)
        return "plain"

    ended = asyncio.Event()
    async with pipes(server) as (first, second):
        second.tool("plain")
        await going.wait()
        await first.end()
        assert events == ["started"]
        ended.set()
        assert (await second.next())["result"]["content"][0]["text"] == "plain"
    assert events == ["started", "stopped"]


@pytest.mark.security("D9", "R12")
async def test_requests_on_all_pipes_count_together_and_streams_do_not() -> None:
    server = make(limits=Limits(in_flight=2))
    async with pipes(server) as (first, second):
        await listen(first)
        first.tool("wait", id=1)
        second.tool("wait", id=1)
        await in_flight(server, 3)
        second.send("tools/list", id=2)
        refused = await second.next()
        assert (refused["id"], refused["error"]["code"], refused["error"]["message"]) == (2, -32603, busy(2).message)
        await first.end()
        assert server.engine.in_flight == 1
        second.send("tools/list", id=3)
        while "result" not in await second.next():
            pass
    assert server.engine.in_flight == 0


@pytest.mark.security("D9")
async def test_requests_on_a_pipe_count_for_http_too() -> None:
    server = make(limits=Limits(in_flight=1))
    async with pipes(server, 1) as (pipe,):
        pipe.tool("wait")
        await in_flight(server, 1)
        with serve(server) as live:
            response = await asyncio.to_thread(live.call, "tools/list")
            assert response.refusal == (503, -32603)
            assert response.error["message"] == busy(1).message


async def test_what_a_non_blocking_terminal_does_not_take_at_once_follows() -> None:
    pty, tty = pytest.importorskip("pty"), pytest.importorskip("tty")
    ours, theirs = pty.openpty()  # a pipe takes a short line whole or not at all; this takes a part
    tty.setraw(theirs)
    os.set_blocking(theirs, False)
    writer = LineWriter(theirs, lambda: None)
    sent = [b"%d " % number + b"x" * 4000 for number in range(20)]
    for line in sent:
        writer.send(line)
        writer.flush()
    closing = asyncio.create_task(writer.close(10))
    received = b""
    while received.count(b"\n") < len(sent):
        received += await read(ours)
    await closing
    assert received.split(b"\n")[:-1] == sent
    os.close(ours)
    os.close(theirs)


async def test_nothing_waits_any_more_for_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.server.stdio.stdio.QUEUED_BYTES", 1000)
    server = Server("talker", limits=Limits(drain_seconds=0.05))

    @server.tool
    async def talk() -> str:
        return "x" * 200_000  # more than a pipe holds

    def drains() -> list[str]:
        return [name for task in asyncio.all_tasks() if (name := task.get_name()) == "weft-stdio-drain"]

    async with pipes(server, 1) as (pipe,):
        pipe.tool("talk")
        async with asyncio.timeout(30):
            while not drains():  # noqa: ASYNC110 - whether there is one, not an event
                await asyncio.sleep(0.001)
        pipe.serving.cancel()
        await asyncio.wait([pipe.serving], timeout=30)
        await asyncio.sleep(0)
        assert not drains()
        await read(pipe._in)  # lets the thread go that writes
