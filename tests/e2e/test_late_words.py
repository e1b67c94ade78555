"""What a call has to say after its answer: on the session's own stream, where there is one; else the log says so."""

import asyncio
from typing import Any, Literal

import pytest

from support import LOG_LEVEL_KEY, ask
from support.raw_sessions import AppPeer, eventually
from support.sessions import rpc
from weft import Client, Context, Server
from weft.server.api import context


@pytest.fixture(autouse=True)
def nothing_was_said_before() -> None:
    context._warn_of_late.cache_clear()


def make_server(go_on: asyncio.Event, is_over: asyncio.Event) -> Server:
    server = Server("s")
    tasks: list[asyncio.Task[None]] = []

    async def later(ctx: Context) -> None:
        await go_on.wait()
        await ctx.info("afterwards")
        await ctx.report_progress(2)
        is_over.set()

    @server.tool
    async def begin(ctx: Context) -> str:
        await ctx.report_progress(1)
        tasks.append(asyncio.create_task(later(ctx)))
        return "begun"

    return server


@pytest.mark.spec("L11-10")
async def test_over_http_it_comes_on_the_stream_of_the_session(caplog: pytest.LogCaptureFixture) -> None:
    go_on, is_over = asyncio.Event(), asyncio.Event()
    peer = AppPeer(make_server(go_on, is_over).asgi())
    await peer.open()
    stream = await peer.get()
    params = {"name": "begin", "_meta": {"progressToken": 7}}
    assert (await (await peer.post(rpc("tools/call", params))).result())["content"][0]["text"] == "begun"
    go_on.set()
    message = await stream.message()
    assert (message["method"], message["params"]["data"]) == ("notifications/message", "afterwards")
    await asyncio.wait_for(is_over.wait(), 10)
    assert "logs a message" not in caplog.text
    assert caplog.text.count("reports progress for its client after the answer is sent") == 1
    await peer.leave()


async def test_on_a_pipe_it_is_a_line_like_any_other() -> None:
    go_on, is_over = asyncio.Event(), asyncio.Event()
    heard: list[Any] = []
    async with Client(make_server(go_on, is_over), eras=["session"], on_log=heard.append) as client:
        await client.call_tool("begin")
        go_on.set()
        await eventually(lambda: heard)
    assert [message.data for message in heard] == ["afterwards"]


@pytest.mark.mistake("a log message after the answer")
@pytest.mark.parametrize("kind", ["session without a stream", "stateless"])
async def test_where_there_is_no_such_stream_the_log_says_so_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    go_on, is_over = asyncio.Event(), asyncio.Event()
    server = make_server(go_on, is_over)
    go_on.set()
    for _ in range(2):
        is_over.clear()
        if kind == "stateless":
            await ask(server, "tools/call", {"name": "begin"}, meta={LOG_LEVEL_KEY: "info"})
        else:
            peer = AppPeer(server.asgi())
            await peer.open()
            await (await peer.post(rpc("tools/call", {"name": "begin"}))).result()
            await peer.leave()
        await asyncio.wait_for(is_over.wait(), 10)
    assert caplog.text.count("logs a message for its client after the answer is sent. It is dropped") == 1


@pytest.mark.parametrize("mode", ["session", "stateless"])
async def test_what_is_said_in_time_is_heard(mode: Literal["session", "stateless"]) -> None:
    server, heard = Server("s"), list[Any]()

    @server.tool
    async def tell(ctx: Context) -> str:
        await ctx.info("in time")
        return "told"

    async with Client(server, eras=[mode], on_log=heard.append, log_level="info") as client:
        await client.call_tool("tell")
        await eventually(lambda: heard)
    assert [message.data for message in heard] == ["in time"]
