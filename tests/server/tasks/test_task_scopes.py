"""Requests about a task need the scopes of its tool: a token that may not call the tool may not have its results."""

from typing import Any

import pytest

from support.raw_sessions import AppPeer, message
from support.session_tasks import CAPABILITIES
from support.task_clients import ACK, TaskClient, accept, serving
from weft import Context, Server
from weft.auth import StaticTokens, TokenInfo
from weft.backends.memory import MemoryBackend

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
FULL, LESS, BOB = "full-of-scopes-token", "less-of-scopes-token", "bob-with-a-long-token"
METHODS = ["tasks/get", "tasks/update", "tasks/cancel"]
SESSION_METHODS = ["tasks/get", "tasks/result", "tasks/cancel"]


def make(*, scopes: list[str] | None = None, backend: Any = None, has_tool: bool = True) -> Server:
    """A server with one tool, which needs the scope `vault` or those in `scopes`. Ann has two tokens."""
    tokens = StaticTokens(
        {
            FULL: TokenInfo("ann", scopes=frozenset({"vault", "read"})),
            LESS: TokenInfo("ann", scopes=frozenset({"read"})),
            BOB: TokenInfo("bob", scopes=frozenset({"read"})),
        }
    )
    server = Server("bank", auth=tokens, backend=backend)

    async def open_vault(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", FORM, key="who")
        return f"the secret of {answer.value['name']}"

    @server.tool(task="optional")
    async def add() -> str:
        return "1"

    if has_tool:
        server.tool(task="optional", scopes=["vault"] if scopes is None else scopes)(open_vault)
    return server


def token(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


async def start(client: TaskClient, tool: str = "open_vault") -> str:
    created = await client.result("tools/call", {"name": tool, "arguments": {}}, headers=token(FULL))
    assert created["resultType"] == "task", created
    return created["taskId"]


async def status(client: TaskClient, id: str, *, other_than: str = "working") -> str:
    while (found := (await client.result("tasks/get", {"taskId": id}, headers=token(FULL)))["status"]) == other_than:
        pass
    return found


@pytest.mark.parametrize("method", METHODS)
async def test_a_token_without_the_scopes_of_the_tool_is_refused_as_for_the_call(method: str) -> None:
    server = make()
    async with serving(server) as client:
        called = await client.send("tools/call", {"name": "open_vault", "arguments": {}}, headers=token(LESS))
        assert called.status == 403
        id = await start(client)
        assert await status(client, id) == "input_required"
        params = {"taskId": id, "inputResponses": {"who": accept(name="Mallory")}}
        refused = await client.send(method, params, headers=token(LESS))
        assert refused.status == 403
        challenge = refused.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge
        assert 'scope="vault"' in challenge
        assert id not in challenge + str(await refused.json())  # it may be logged
        assert await status(client, id) == "input_required"  # nothing was done
        allowed = await client.send("tasks/update", params, headers=token(FULL))
        assert (await allowed.result())["resultType"] == ACK["resultType"]
        assert await status(client, id) == "completed"
        assert (await client.send(method, params, headers=token(LESS))).status == 403


@pytest.mark.parametrize("method", METHODS)
async def test_for_another_caller_the_task_does_not_exist(method: str) -> None:
    """Not 403, which would tell that it does."""
    async with serving(make()) as client:
        id = await start(client)
        error = await client.error(method, {"taskId": id, "inputResponses": {}}, headers=token(BOB))
        assert error["code"] == -32602


async def test_a_task_of_a_tool_without_scopes_needs_none() -> None:
    async with serving(make()) as client:
        id = await start(client, "add")
        assert (await client.send("tasks/get", {"taskId": id}, headers=token(LESS))).status == 200


async def test_a_stream_is_refused_that_names_a_task_whose_tool_needs_more() -> None:
    """As one that names a resource that needs more. No stream is left."""
    server = make()
    async with serving(server) as client:
        secret, plain = await start(client), await start(client, "add")
        wanted = {"notifications": {"taskIds": [plain, secret]}}
        refused = await client.send("subscriptions/listen", wanted, headers=token(LESS))
        assert (refused.status, refused.is_stream) == (403, False)
        assert 'scope="vault"' in refused.headers["www-authenticate"]
        assert len(server.engine.subscriptions) == 0
        stream = await client.send("subscriptions/listen", wanted, headers=token(FULL))
        assert (await stream.message())["params"]["notifications"] == {"taskIds": [plain, secret]}
        await stream.close()
        wanted = {"notifications": {"taskIds": [plain]}}
        stream = await client.send("subscriptions/listen", wanted, headers=token(LESS))
        assert (await stream.message())["params"]["notifications"] == {"taskIds": [plain]}
        await stream.close()
        wanted = {"notifications": {"taskIds": [secret]}}
        stream = await client.send("subscriptions/listen", wanted, headers=token(BOB))  # for Bob, there is no such task
        assert (await stream.message())["params"]["notifications"] == {"taskIds": []}
        await stream.close()


@pytest.mark.parametrize(
    ("there", "is_allowed"),
    [
        ({"has_tool": False}, {LESS: False, FULL: True}),
        ({"scopes": []}, {LESS: False, FULL: True}),
        ({"scopes": ["read"]}, {LESS: False, FULL: True}),
        ({"scopes": ["vault", "keys"]}, {LESS: False, FULL: False}),
    ],
)
async def test_a_worker_with_other_code_does_not_open_the_task(
    there: dict[str, Any], is_allowed: dict[str, bool]
) -> None:
    """What the tool needed when it was called is needed everywhere, and what it needs now besides."""
    backend = MemoryBackend()
    here, other = make(backend=backend), make(backend=backend, **there)
    async with serving(here, other) as client:
        id = await start(client)
        for given, allowed in is_allowed.items():
            response = await client.on(other.asgi()).send("tasks/get", {"taskId": id}, headers=token(given))
            assert response.status == (200 if allowed else 403)


async def open_session(server: Server) -> AppPeer:
    """A client of 2025-11-25. It sends the token of `Authorization` with each request."""
    client = AppPeer(server.asgi())
    client.scope["weft.token_info"] = TokenInfo("ann", scopes=frozenset({"vault", "read"}))
    await client.open(capabilities=CAPABILITIES)
    return client


def made_for_sessions() -> Server:
    """The same server behind an app that verifies the callers."""
    server = Server("bank")

    @server.tool(task="optional", scopes=["vault"])
    async def open_vault() -> str:
        return "the secret"

    @server.tool(task="optional")
    async def add() -> str:
        return "1"

    return server


async def start_in(client: AppPeer, tool: str) -> str:
    request = message("tools/call", {"name": tool, "arguments": {}, "task": {}}, tool)
    return (await (await client.post(request)).result())["task"]["taskId"]


@pytest.mark.parametrize("method", SESSION_METHODS)
async def test_in_a_session_each_request_needs_them(method: str) -> None:
    server = made_for_sessions()
    client = await open_session(server)
    id = await start_in(client, "open_vault")
    client.scope["weft.token_info"] = TokenInfo("ann", scopes=frozenset({"read"}))
    refused = await client.post(message(method, {"taskId": id}, 2))
    assert refused.status == 403
    assert 'scope="vault"' in refused.headers["www-authenticate"]
    client.scope["weft.token_info"] = TokenInfo("ann", scopes=frozenset({"vault"}))
    assert (await client.post(message("tasks/result", {"taskId": id}, 3))).status == 200
    await client.leave()
    await server.stop()


async def test_the_list_leaves_out_what_the_token_may_not_read() -> None:
    server = made_for_sessions()
    client = await open_session(server)
    secret, plain = await start_in(client, "open_vault"), await start_in(client, "add")

    async def listed() -> set[str]:
        answer = await client.post(message("tasks/list", {}, 2))
        return {task["taskId"] for task in (await answer.result())["tasks"]}

    assert await listed() == {secret, plain}
    client.scope["weft.token_info"] = TokenInfo("ann", scopes=frozenset({"read"}))
    assert await listed() == {plain}
    await client.leave()
    await server.stop()
