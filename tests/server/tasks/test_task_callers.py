"""A task belongs to the caller that has created it: for others it does not exist, and no log has its id."""

import asyncio
import logging
from typing import Any

import pytest

from support.raw_sessions import eventually
from support.task_clients import ACK, TaskClient, accept, serving, task_client
from weft import Context, ProtocolError, Server, Task
from weft.auth import StaticTokens, TokenInfo
from weft.backends.memory import MemoryBackend

UNKNOWN = "AAAAAAAAAAAAAAAAAAAAAAAA"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
METHODS = ["tasks/get", "tasks/update", "tasks/cancel"]
ANN, BOB, CAT = "ann-with-a-long-token", "bob-with-a-long-token", "cat-with-a-long-token"


def make(**options: Any) -> Server:
    server = Server("studio", **options)

    @server.tool(task="optional")
    async def ask(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "asking")
        answer = await ctx.elicit("Who?", FORM, key="who")
        info = ctx.token_info
        return f"{answer.value['name']} for {info.subject if info else 'anybody'}"

    @server.tool(task=Task(after=0.02))
    async def tear(ctx: Context) -> str:
        await ctx.once("look", _nothing)
        while ctx.task.id is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        raise ProtocolError("It is torn.", code=1001)

    @server.tool(task="optional")
    async def stumble(ctx: Context) -> str:
        raise RuntimeError("stumbled")

    return server


async def _nothing() -> None:
    pass


def token(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


# Callers.


@pytest.mark.spec("TASK-34b", "new-22", "TASK-23a", "TASK-23b", "TASK-23c")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stranger", ["bob", None])
async def test_for_another_caller_the_task_does_not_exist(method: str, stranger: str | None) -> None:
    """The error is that for an unknown id, word for word."""
    server = make()
    ann, other = task_client(server, "ann"), task_client(server, stranger)
    id = await ann.start("ask")
    await ann.asked(id)
    before = await ann.get(id)
    answers = {"inputResponses": {"who": accept(name="Mallory")}}
    stranger_reads = await (await other.send(method, {"taskId": id, **answers})).json()
    assert stranger_reads == await (await other.send(method, {"taskId": UNKNOWN, **answers})).json()
    assert stranger_reads["error"]["code"] == -32602
    assert await ann.get(id) == before
    assert await ann.update(id, {"who": accept(name="Ada")}) == ACK
    assert (await ann.until(id))["result"]["content"][0]["text"] == "Ada for ann"
    for one in (ann, other):
        await one.peer.leave()
    await server.stop()


@pytest.mark.spec("TASK-34b")
async def test_a_task_of_nobody_is_not_one_of_somebody() -> None:
    server = make()
    anybody, ann = task_client(server), task_client(server, "ann")
    id = await anybody.start("ask")
    assert (await ann.error("tasks/get", {"taskId": id}))["code"] == -32602
    assert (await anybody.get(id))["taskId"] == id
    for one in (ann, anybody):
        await one.peer.leave()
    await server.stop()


@pytest.mark.spec("TASK-34b")
async def test_a_caller_has_its_tasks_at_every_worker_and_with_every_token() -> None:
    """The same principal has a newer token, at another worker; another issuer has a principal of the same name."""
    backend, tokens = (
        MemoryBackend(),
        StaticTokens(
            {
                ANN: TokenInfo("ann", issuer="https://one.example"),
                BOB: TokenInfo("ann", issuer="https://one.example"),
                CAT: TokenInfo("ann", issuer="https://two.example"),
            }
        ),
    )
    here, there = make(backend=backend, auth=tokens), make(backend=backend, auth=tokens)
    async with serving(here, there) as client:
        other = client.on(there.asgi())
        handle = await client.result("tools/call", {"name": "ask"}, headers=token(ANN))
        wanted = {"taskId": handle["taskId"]}
        assert (await other.result("tasks/get", wanted, headers=token(BOB)))["taskId"] == handle["taskId"]
        assert (await other.error("tasks/get", wanted, headers=token(CAT)))["code"] == -32602


@pytest.mark.spec("TASK-34b")
@pytest.mark.parametrize("method", [*METHODS, "subscriptions/listen"])
async def test_each_request_is_authenticated(method: str) -> None:
    server = make(auth=StaticTokens({ANN: "ann", BOB: "bob"}))
    async with serving(server) as client:
        handle = await client.result("tools/call", {"name": "ask"}, headers=token(ANN))
        params = {"taskId": handle["taskId"], "notifications": {"taskIds": [handle["taskId"]]}}
        for wrong in ({}, token("of-nobody-at-all"), {"Authorization": "Basic YTpi"}):
            response = await client.send(method, params, headers=wrong)
            assert response.status == 401
            assert handle["taskId"].encode() not in await response.body()
        response = await client.send(method, params, headers=token(BOB))
        if method == "subscriptions/listen":
            assert (await response.message())["params"]["notifications"] == {"taskIds": []}
        else:
            assert (await response.json())["error"]["code"] == -32602
        assert (await client.result("tasks/get", params, headers=token(ANN)))["taskId"] == handle["taskId"]


@pytest.mark.spec("new-22", "TASK-29")
@pytest.mark.parametrize("subject", ["ann", None])
async def test_there_is_no_list(subject: str | None) -> None:
    server = make()
    client = task_client(server, subject)
    await client.start("ask")
    assert await (await client.send("tasks/list", {})).refusal() == (404, -32601)
    await client.peer.leave()
    await server.stop()


# Logs.


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that is logged, on all levels."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.Logger.manager.loggerDict):
        if name == "weft" or name.startswith("weft."):
            caplog.set_level(logging.DEBUG, name)
    return caplog


async def live_through(client: TaskClient, other: TaskClient) -> list[str]:
    """Everything that can happen to tasks. Their ids."""
    ids = [await client.start(tool) for tool in ("ask", "ask", "tear", "stumble")]
    stream = await client.listen(*ids)
    await stream.message()
    for id in ids[:2]:
        await client.asked(id)
        assert (await client.error("tasks/update", {"taskId": id, "inputResponses": {"who": 7}}))["code"] == -32602
    for method in METHODS:
        for sender in (other, client.undeclaring()):
            assert (await sender.error(method, {"taskId": ids[0]}))["code"] in (-32602, -32021)
        headers: dict[str, str | None] = {"Mcp-Name": ids[1]}
        assert (await client.error(method, {"taskId": ids[0]}, headers=headers))["code"] == -32020
        assert (await client.error(method, {"taskId": [ids[0]]}))["code"] == -32602
    assert (await client.error("tasks/result", {"taskId": ids[0]}))["code"] == -32601
    await client.update(ids[0], {"who": accept(name="Ada")})
    await client.cancel(ids[1])
    states = [(await client.until(id))["status"] for id in ids]
    assert states == ["completed", "cancelled", "failed", "completed"]
    await stream.close()
    return ids


@pytest.mark.spec("TASK-34a")
@pytest.mark.parametrize("debug", [False, True])
async def test_no_log_has_a_whole_id(logs: pytest.LogCaptureFixture, debug: bool) -> None:
    """Without authorization, the id is all that is needed to read the result. Six characters name the task."""
    backend = MemoryBackend()
    here, there = make(backend=backend, debug=debug), make(backend=backend, debug=debug)
    async with serving(here, there) as client:
        stranger = task_client(there, "bob")
        ids = await live_through(client, stranger)
        begun = await client.start("ask")
        await client.asked(begun)
        await stranger.peer.leave()
    written = [*(record.getMessage() for record in logs.records), logs.text]
    for id in (*ids, begun):
        assert not [line for line in written if id in line]
    assert [line for line in written if f"task {ids[0][:6]} of 'ask' has ended: completed" in line]
    assert any("tasks/get" in line for line in written)  # the requests are logged


@pytest.mark.spec("TASK-34a")
async def test_no_log_has_a_whole_id_when_the_backend_fails(
    logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MemoryBackend()
    async with serving(make(backend=backend)) as client:
        id = await client.start("ask")
        await client.asked(id)

        async def broken(*_: Any, **__: Any) -> Any:
            raise OSError("the disk is full")

        for part, names in (("store", ("get", "swap")), ("log", ("append", "read")), ("bus", ("publish",))):
            for name in names:
                with monkeypatch.context() as patch:
                    patch.setattr(getattr(backend, part), name, broken)
                    await client.send("tasks/update", {"taskId": id, "inputResponses": {"who": accept(name="Ada")}})
                    await client.send("tasks/cancel", {"taskId": UNKNOWN})
        await eventually(lambda: "the disk is full" in logs.text)
    assert id not in logs.text
