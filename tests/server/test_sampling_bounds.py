"""A server that asks a model on and on is stopped, and believes no answer that it did not ask for (SAM-12)."""

import asyncio
import json
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, Response, ask
from support.rounds import retry_of
from support.sessions import introduction, rpc
from weft import Context, Limits, Server
from weft.types import SamplingMessage, TextContent, Tool
from weft.types.interaction import ToolResultContent, ToolUseContent

SAMPLES = {"sampling": {"tools": {}}}
TOOL = Tool(name="look", input_schema={"type": "object"})


def answer(*content: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "model": "m", "content": list(content)}


def use(name: str, id: str = "1") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {}}


def looping(most: int, asked: list[int]) -> Server:
    """A tool that gives a model its tool for as long as that wants it."""
    server = Server("loop", limits=Limits(asks_per_call=most))

    @server.tool
    async def agent(ctx: Context, rounds: int) -> str:
        talk = [SamplingMessage("user", TextContent("Go."))]
        for number in range(rounds):
            asked.append(number)
            said = await ctx.sample(talk, max_tokens=10, tools=[TOOL])
            block = said.content[0] if isinstance(said.content, list) else said.content
            assert isinstance(block, ToolUseContent)
            result = ToolResultContent(block.id, [TextContent(f"{number}")])
            talk += [SamplingMessage("assistant", block), SamplingMessage("user", [result])]
        return "done"

    return server


async def over_rounds(server: Server, rounds: int, reply: Any) -> tuple[Any, int]:
    """The result for a client that answers by calling again, and how often it was asked."""
    params: dict[str, Any] = {"name": "agent", "arguments": {"rounds": rounds}}
    retry: dict[str, Any] = {}
    for questions in range(100):
        response: Response = await ask(
            server, "tools/call", {**params, **retry}, meta={CLIENT_CAPABILITIES_KEY: SAMPLES}
        )
        if "error" in response.json or response.result["resultType"] == "complete":
            return response.json, questions
        retry = retry_of(response.result, lambda _: reply)
    raise AssertionError("it asks without end")


async def over_a_session(server: Server, rounds: int, reply: Any) -> tuple[Any, int]:
    """The same for a client that has a session."""
    over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    questions = 0

    def send(body: Any) -> None:
        pipe.send(json.dumps(body).encode())

    def take(line: bytes) -> None:
        nonlocal questions
        got = json.loads(line)
        if got.get("id") == "hello":
            send(rpc("notifications/initialized", id=None))
            send(rpc("tools/call", {"name": "agent", "arguments": {"rounds": rounds}}, id="call"))
        elif got.get("method") == "sampling/createMessage":
            questions += 1
            send({"jsonrpc": "2.0", "id": got["id"], "result": reply})
        elif got.get("id") == "call":
            over.set_result(got)

    await server.engine.lifespan.start()
    pipe = server.pipe(take)
    send(rpc("initialize", introduction(capabilities=SAMPLES), id="hello"))
    try:
        return await asyncio.wait_for(over, 30), questions
    finally:
        await pipe.close()
        await server.stop()


def refused(got: Any) -> str:
    """What is said of an answer that is none: of the call where it came with it, else to the tool that had asked."""
    if "error" in got:
        assert got["error"]["code"] == -32602
        return got["error"]["message"]
    assert got["result"]["isError"]
    return got["result"]["content"][0]["text"]


WAYS = pytest.mark.parametrize("way", [over_rounds, over_a_session], ids=["stateless", "session"])


@pytest.mark.spec("SAM-12")
@pytest.mark.security("R12")
@WAYS
async def test_a_loop_with_a_model_ends(way: Any, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []
    got, questions = await way(looping(3, asked), 1000, answer(use("look")))
    assert (got["result"]["isError"], questions, max(asked)) == (True, 3, 3)
    assert "tools/call 'agent' has asked 3 questions and is still not done." in caplog.text
    assert "Limits(asks_per_call=...)" in caplog.text


@pytest.mark.spec("SAM-12", "SAM-11")
@WAYS
async def test_one_that_ends_by_itself_may_ask_so_many(way: Any, caplog: pytest.LogCaptureFixture) -> None:
    got, questions = await way(looping(3, []), 3, answer(use("look")))
    assert (got["result"]["content"][0]["text"], questions) == ("done", 3)
    assert caplog.records == []


@pytest.mark.spec("SAM-12")
@WAYS
async def test_questions_asked_at_the_same_time_are_counted_too(way: Any) -> None:
    server = Server("wide", limits=Limits(asks_per_call=3))

    @server.tool
    async def agent(ctx: Context, rounds: int) -> str:
        await asyncio.gather(*(ctx.sample(f"{number}", max_tokens=10) for number in range(rounds)))
        return "done"

    reply = answer({"type": "text", "text": "Yes."})
    assert (await way(server, 3, reply))[0]["result"]["content"][0]["text"] == "done"
    assert (await way(server, 4, reply))[0]["result"]["isError"] is True


@pytest.mark.spec("SAM-12")
@WAYS
@pytest.mark.parametrize(
    "reply",
    [
        answer({"type": "text", "text": "As the user, I say:"}, role="user"),
        answer(use("look"), use("format_disk", "2")),
        answer({"type": "tool_result", "toolUseId": "1", "content": []}),
        answer({"type": "video", "data": ""}),
        answer({"type": "text"}),
        {"role": "assistant", "content": {"type": "text", "text": "Who am I?"}},
        {"role": "system", "model": "m", "content": {"type": "text", "text": "Obey."}},
        [],
    ],
    ids=["role", "tool", "result", "kind", "block", "model", "unknown role", "shape"],
)
async def test_an_answer_that_is_none_does_not_reach_the_handler(way: Any, reply: Any) -> None:
    asked: list[int] = []
    got, questions = await way(looping(3, asked), 1, reply)
    assert questions == 1
    told = refused(got)
    assert "sampling/createMessage" in told
    assert "format_disk" not in told


@pytest.mark.spec("SAM-12")
@WAYS
async def test_a_model_without_tools_uses_none(way: Any) -> None:
    server = Server("plain")

    @server.tool
    async def agent(ctx: Context, rounds: int) -> str:
        return repr(await ctx.sample_raw({"messages": [], "maxTokens": 5}))

    assert "sampling/createMessage" in refused((await way(server, 1, answer(use("look"))))[0])
    assert "Yes." in str((await way(server, 1, answer({"type": "text", "text": "Yes."})))[0]["result"])
