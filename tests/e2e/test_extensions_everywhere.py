"""Extensions between a Weft client and a Weft server: in both eras, over HTTP, stdio and in one process (SEP-2133)."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from support import serve
from support.blending import BLENDING, make_blending_server
from support.raw_sessions import AppPeer
from support.sessions import OpenSession, rpc
from weft import Client
from weft.backends.memory import MemoryBackend
from weft.errors import RemoteError, UsageError

TESTS = Path(__file__).parent.parent
ERAS: list[Literal["stateless", "session"]] = ["stateless", "session"]
TRANSPORTS = ["http", "asgi", "stdio", "memory"]
REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
DECLARED: dict[str, dict[str, Any]] = {BLENDING: {"favourite": "assam"}}


@contextlib.asynccontextmanager
async def connected(transport: str, **options: Any) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        target: Any = make_blending_server()
        if transport == "http":
            target = f"http://127.0.0.1:{stack.enter_context(serve(target)).port}/mcp"
        elif transport == "asgi":
            target = target.asgi()
        elif transport == "stdio":
            path = os.pathsep.join([str(TESTS), *sys.path])
            target = {"command": sys.executable, "args": ["-m", "support.blending"], "env": {"PYTHONPATH": path}}
        yield await stack.enter_async_context(Client(target, **options))


@pytest.mark.spec("VER-06", "VER-08")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_declares_it_calls_its_methods(
    mode: Literal["stateless", "session"], transport: str
) -> None:
    async with connected(transport, eras=[mode], extensions=DECLARED) as client:
        assert client.era == mode
        assert client.server_capabilities.extensions == {BLENDING: {"maxTeas": 3}}
        assert (await client.call_tool("seen")).text == "{'favourite': 'assam'}"
        assert (await client.request("blend/plain", {"name": "x"}))["name"] == "x"
        named = await client.request("blend/create", {"name": "Grüntee"}, mirrored="name")
        assert named["name"] == "Grüntee"


@pytest.mark.spec("VER-06")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("mode", "code"), [("stateless", -32021), ("session", -32601)])
async def test_a_client_that_does_not_is_told_how(
    mode: Literal["stateless", "session"], code: int, transport: str
) -> None:
    async with connected(transport, eras=[mode]) as client:
        with pytest.raises(RemoteError) as refused:
            await client.request("blend/plain", {"name": "x"})
    assert refused.value.code == code
    assert "extensions={'com.example/blending': {}}" in refused.value.message
    assert refused.value.data == {"requiredCapabilities": {"extensions": {BLENDING: {}}}}


@pytest.mark.parametrize("version", REVISIONS)
def test_every_session_revision_carries_extensions_both_ways(version: str) -> None:
    """Capabilities are open objects in every revision, and SEP-2133 shows them in a handshake of 2025-06-18."""
    with serve(make_blending_server()) as live:
        session = OpenSession(live, version, capabilities={"extensions": DECLARED})
        assert session.opened.result["capabilities"]["extensions"] == {BLENDING: {"maxTeas": 3}}
        called = session.post(rpc("tools/call", {"name": "seen"}))
        assert called.result["content"][0]["text"] == "{'favourite': 'assam'}"
        assert session.post(rpc("blend/plain", {"name": "x"})).result["name"] == "x"


def test_its_result_type_reaches_a_session_and_the_cores_does_not() -> None:
    with serve(make_blending_server()) as live:
        session = OpenSession(live, capabilities={"extensions": DECLARED})
        assert session.post(rpc("blend/typed", {"name": "x"})).result["resultType"] == "blend"
        assert "resultType" not in session.post(rpc("blend/plain", {"name": "x"})).result


@pytest.mark.parametrize("mode", ERAS)
async def test_what_equals_its_default_is_sent(mode: Literal["stateless", "session"]) -> None:
    async with connected("memory", eras=[mode], extensions=DECLARED) as client:
        result = await client.request("blend/plain", {"name": "x"})
    told = {name: value for name, value in result.items() if name not in ("_meta", "resultType")}
    assert told == {"name": "x", "teas": [], "strength": 0, "isSold": False, "note": "", "ttlMs": 0}


async def test_another_worker_knows_what_the_session_declared() -> None:
    backend = MemoryBackend()
    peer = AppPeer(make_blending_server(backend=backend).asgi())
    await peer.open(capabilities={"extensions": DECLARED})
    there = peer.on(make_blending_server(backend=backend).asgi())
    answer = await there.post(rpc("blend/plain", {"name": "x"}))
    assert (await answer.result())["name"] == "x"


async def test_without_sessions_a_call_of_its_method_is_declaration_enough() -> None:
    async with Client(make_blending_server().asgi(sessions=False), eras=["session"], extensions=DECLARED) as client:
        assert client.server_capabilities.extensions == {BLENDING: {"maxTeas": 3}}
        assert (await client.request("blend/plain", {"name": "x"}))["name"] == "x"


@pytest.mark.mistake("client extension id")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"blending": {}}, "'com.example/name'"),
        (["com.example/blending"], "extensions={'com.example/name': {}}"),
        ({"com.example/blending": True}, "extensions={'com.example/blending': {}}"),
    ],
)
def test_what_is_no_declaration_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match="extensions") as refused:
        Client("https://x.example/mcp", extensions=given)
    assert said in str(refused.value)
