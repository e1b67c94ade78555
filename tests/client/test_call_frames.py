"""How deep a call goes: between `call_tool` and the wire there are few functions, so that a reader can follow it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import weft
from support.fakes import DISCOVERED, Exchange, http_server
from weft import Client
from weft.client.http.wire import AiohttpWire

MOST = 8
PACKAGE = str(Path(weft.__file__).parent)
TEXT: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}
CHILD = f"""
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {DISCOVERED!r} if asked["method"] == "server/discover" else {TEXT!r}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
"""


def frames_of_call() -> list[str]:
    """Return the functions of Weft between here and `call_tool`, the innermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append(frame.f_code.co_qualname)
            if frame.f_code.co_name == "call_tool":
                return found
        frame = frame.f_back
    return []  # of another request


async def test_from_a_call_to_the_http_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    exchange = AiohttpWire.exchange

    def watched(*args: Any) -> Any:
        seen.append(frames_of_call())
        return exchange(*args)

    async def handle(exchange: Exchange) -> None:
        await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else TEXT)

    async with http_server(handle) as url, Client(url) as client:
        monkeypatch.setattr(AiohttpWire, "exchange", watched)
        await client.call_tool("t")
    called = [frames for frames in seen if frames]
    assert len(called) == 1
    assert len(called[0]) <= MOST, called


async def test_from_a_call_to_the_stdin_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    async with Client([sys.executable, "-c", CHILD]) as client:
        child: Any = client.transport
        pipe = type(child._child._process.get_pipe_transport(0))
        write = pipe.write

        def watched(self: asyncio.WriteTransport, data: bytes) -> None:
            seen.append(frames_of_call())
            write(self, data)

        monkeypatch.setattr(pipe, "write", watched)
        assert (await client.call_tool("t")).text == "done"
    called = [frames for frames in seen if frames]
    assert len(called) == 1
    assert len(called[0]) <= MOST, called
