"""How deep a plain call goes: at most 7 frames of Weft's between the ASGI entry and the user's function."""

import sys
from pathlib import Path

import pytest

import weft
from support import ask, serve
from weft import Server
from weft.server.run import engine as app

HOME = str(Path(weft.__file__).parent)


def server_that_counts(frames: list[str]) -> Server:
    server = Server("deep")

    @server.tool
    async def deep(a: int) -> int:
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(HOME):
                frames.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}")
            if frame.f_code.co_qualname == "HttpApp.__call__":
                break
            frame = frame.f_back
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
