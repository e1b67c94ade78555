"""A client in the same process: what it says while it is being told something, and a lifespan that fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support import encode, message
from weft import Context, Server
from weft.server.calls.connection import Connection

Lines = list[dict[str, Any]]


@pytest.mark.spec("CAN-09", "STDIO-10")
@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_a_call_that_is_cancelled_while_it_tells_something_is_not_answered(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    server, got, ended = Server("x"), Lines(), []

    @server.tool
    async def work(ctx: Context) -> str:
        try:
            await ctx.report_progress(1)
            if seconds:
                await asyncio.sleep(seconds)
                ended.append("in time")
            return "done"
        finally:
            ended.append("over")

    def deliver(line: bytes) -> None:
        got.append(json.loads(line))
        if got[-1].get("method") == "notifications/progress":
            pipe.send(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}))

    await server.engine.lifespan.start()
    pipe = server.pipe(deliver)
    pipe.send(encode(message("tools/list", id=1)))
    await asyncio.sleep(0.01)  # from the second on, a call takes its first step at once
    got.clear()
    pipe.send(encode(message("tools/call", {"name": "work"}, id=7, meta={"progressToken": "t"})))
    await asyncio.sleep(2 * seconds)
    assert [one.get("method") for one in got] == ["notifications/progress"]
    assert (ended, server.engine.in_flight, caplog.text) == (["over"], 0, "")
    await pipe.close()
    await server.stop()


async def test_a_lifespan_that_fails_is_told_to_all_who_wait() -> None:
    @asynccontextmanager
    async def failing(server: Server) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        raise ValueError
        yield

    got = Lines()
    pipe = Server("x", lifespan=failing).pipe(lambda line: got.append(json.loads(line)))
    pipe.send(encode(message("server/discover", id=1)))
    pipe.send(b"no message")
    pipe.send(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
    pipe.send(encode(message("tools/list", id="two")))
    await asyncio.sleep(0.02)
    assert [(one["id"], one["error"]["code"]) for one in got] == [(1, -32603), ("two", -32603)]
    await pipe.close()


@pytest.mark.spec("CAN-07")
async def test_the_cancellation_of_an_unknown_request_is_nothing_to_speak_of(caplog: pytest.LogCaptureFixture) -> None:
    got = Lines()
    server = Server("x")
    await server.engine.lifespan.start()
    pipe = server.pipe(lambda line: got.append(json.loads(line)))
    pipe.send(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}))
    pipe.send(encode(message("tools/list", id=1)))
    await asyncio.sleep(0.02)
    assert ([one["id"] for one in got], caplog.text) == ([1], "")
    await pipe.close()
    await server.stop()


async def test_a_client_without_a_session_is_asked_nothing() -> None:
    server, got, changed = Server("x", eras=["stateless"]), Lines(), []

    @server.on_roots_changed
    async def note(connection: Connection) -> None:
        changed.append(connection)

    await server.engine.lifespan.start()
    pipe = server.pipe(lambda line: got.append(json.loads(line)))
    pipe.send(encode({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}))
    pipe.send(encode({"jsonrpc": "2.0", "id": "s-1", "result": {}}))
    pipe.send(b"[]")
    pipe.send(encode(message("tools/list", id=1)))
    await asyncio.sleep(0.02)
    assert ([one.get("id") for one in got], changed) == ([None, 1], [])
    await pipe.close()
    await server.stop()
