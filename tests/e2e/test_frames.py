"""How deep a plain call goes: the frames of Weft between the entry of a transport and the user's function.

Stateless HTTP: from `HttpApp.__call__`, at most 7. stdio: from the callback of the event loop that reads the pipe, at
most 9. HTTP with a session: the call runs in a task, so that it may outlive its HTTP request. The frames from
`HttpApp.__call__` to the place where that task is created are added to the frames inside the task: at most 9.
Frames of asyncio, of the standard library and of the web server do not count.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import weft
from support import ask, encode, message, serve
from support.raw_sessions import AppPeer, called
from weft import Server
from weft.server.run import engine as app
from weft.server.stdio.stdio import serve_stdio

HOME = str(Path(weft.__file__).parent)


def frames_of_weft() -> list[str]:
    """The frames of Weft below the caller, innermost first, up to the ASGI entry or the bottom of the stack."""
    frames: list[str] = []
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(HOME):
            frames.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}")
        if frame.f_code.co_qualname == "HttpApp.__call__":
            break
        frame = frame.f_back
    return frames


def server_that_counts(frames: list[str]) -> Server:
    server = Server("deep")

    @server.tool
    async def deep(a: int) -> int:
        frames.extend(frames_of_weft())
        return a

    return server


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where OpenTelemetry is not installed: it is a middleware, which a plain call has none of."""
    monkeypatch.setattr(app, "find_tracing", lambda: None)


@pytest.mark.usefixtures("untraced")
async def test_at_most_seven_frames() -> None:
    frames: list[str] = []
    response = await ask(server_that_counts(frames), "tools/call", {"name": "deep", "arguments": {"a": 1}})
    assert response.result["structuredContent"] == 1
    assert frames[-1].endswith("HttpApp.__call__")
    assert len(frames) <= 7, frames


@pytest.mark.usefixtures("untraced")
def test_at_most_seven_frames_behind_a_socket() -> None:
    frames: list[str] = []
    with serve(server_that_counts(frames)) as live:
        assert live.tool("deep", {"a": 1}).result["structuredContent"] == 1
    assert frames[-1].endswith("HttpApp.__call__")
    assert len(frames) <= 7, frames


@pytest.mark.usefixtures("untraced")
async def test_at_most_nine_frames_in_a_session() -> None:
    inside: list[str] = []
    created: dict[asyncio.Task[Any], list[str]] = {}  # the frames above each task, at its creation
    server = Server("deep")

    @server.tool
    async def deep(a: int) -> int:
        inside.extend(frames_of_weft())
        task = asyncio.current_task()
        assert task is not None
        inside.extend(created[task])
        return a

    def make(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        created[task] = frames_of_weft()
        return task

    peer = AppPeer(server.asgi())
    await peer.open()
    asyncio.get_running_loop().set_task_factory(make)
    try:
        answer = await (await peer.post(called("deep", a=1))).result()
    finally:
        asyncio.get_running_loop().set_task_factory(None)
    assert answer["content"][0]["text"] == "1"
    assert inside[-1].endswith("HttpApp.__call__")
    assert len(inside) <= 9, inside


@pytest.mark.usefixtures("untraced")
async def test_at_most_nine_frames_over_a_pipe() -> None:
    frames: list[str] = []
    (source, theirs), (ours, sink) = os.pipe(), os.pipe()
    serving = asyncio.create_task(serve_stdio(server_that_counts(frames).engine, source, sink))
    request = message("tools/call", {"name": "deep", "arguments": {"a": 1}})
    os.write(theirs, encode(request) + b"\n")
    answer = await asyncio.to_thread(os.read, ours, 1 << 16)
    assert b'"structuredContent":1' in answer
    os.close(theirs)
    await serving
    for fd in (source, ours, sink):
        os.close(fd)
    assert frames[-1].endswith("LineReader._readable")
    assert len(frames) <= 9, frames
