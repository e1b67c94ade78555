"""Weft's client against servers that others wrote, over HTTP and stdio: whichever era each speaks, the same lines."""

import asyncio
from typing import Any

import pytest
from peer_servers import LACKING, LIBRARIES, SERVERS, STATELESS, start

from weft import Client, RemoteError, RequestTimeout
from weft.client import ResourceUpdated, ToolsChanged

EVERYWHERE = [(name, transport) for name, transport in SERVERS if name in LIBRARIES]
NOTICES = "library://notices"


def functions(**more: Any) -> dict[str, Any]:
    return {
        "elicit": lambda question: {"reader": "Ada", "day": "Tuesday"},
        "elicit_url": lambda question: question.host == "library.example",
        "sample": lambda params: "Forty-two",
        "roots": ["file:///"],
        **more,
    }


@pytest.mark.parametrize(("name", "transport"), SERVERS)
async def test_negotiate_and_list(name: str, transport: Any) -> None:
    with start(name, transport) as target:
        async with Client(target) as client:
            assert client.era == ("stateless" if name in STATELESS else "session")
            assert client.server_info is not None
            assert len(await client.list_tools()) >= 2


@pytest.mark.parametrize(("name", "transport"), EVERYWHERE)
@pytest.mark.parametrize("eras", [("stateless", "session"), ("session",)], ids=["both", "session"])
async def test_everything_a_library_does(name: str, transport: Any, eras: Any) -> None:
    logs: list[Any] = []
    steps: list[Any] = []
    with start(name, transport) as target:
        async with Client(target, eras=eras, **functions(on_log=logs.append, log_level="info")) as client:
            assert "add" in {tool.name for tool in await client.list_tools()}
            assert (await client.call_tool("add", {"a": 2, "b": 3})).text == "5"
            assert "5 books" in (await client.call_tool("take_stock", progress=steps.append)).text
            assert [step.progress for step in steps] == [1, 2, 3, 4, 5]
            assert "for Ada on Tuesday, for 3 weeks" in (await client.call_tool("reserve", {"book_id": "b1"})).text
            assert (await client.call_tool("pay_fine")).text == "The page was opened."
            assert (await client.call_tool("sample", {"prompt": "?"})).text == "Forty-two"
            assert (await client.call_tool("roots")).text == "file:///"
            await client.call_tool("announce", {"text": "Hear, hear"})
            [message] = logs  # the other one is below the level
            assert message.level == "warning"
            assert "Hear, hear" in str(message.data)  # one SDK wraps it
            assert (await client.call_tool("lend", {"book_id": "none"})).is_error
            await reads(client)
            assert (await client.call_tool("hang_up")).text == "Here you are again."


USED = [
    ("everything", "http", "echo", {"message": "hello"}, "hello"),
    ("everything", "stdio", "echo", {"message": "hello"}, "hello"),
    ("time", "stdio", "get_current_time", {"timezone": "Europe/Zurich"}, "Europe/Zurich"),
    ("git", "stdio", "git_log", {}, "Open the library"),
]


@pytest.mark.parametrize(("name", "transport", "tool", "arguments", "expected"), USED)
async def test_servers_that_people_use(name: str, transport: Any, tool: str, arguments: Any, expected: str) -> None:
    with start(name, transport) as target:
        if name == "git":
            arguments = {"repo_path": target[-1]}
        async with Client(target, **functions()) as client:
            assert expected in (await client.call_tool(tool, arguments)).text
            if name == "everything":
                assert await client.list_prompts()
                resources = await client.list_resources()
                assert (await client.read_resource(resources[0].uri)).contents


async def reads(client: Client) -> None:
    assert {resource.uri for resource in await client.list_resources()} >= {"library://catalogue", NOTICES}
    [template] = await client.list_resource_templates()
    assert "Kindred" in str((await client.read_resource("library://catalogue")).contents[0].text)
    assert "Kindred" in str((await client.read_resource("library://books/b2")).contents[0].text)
    with pytest.raises(RemoteError):
        await client.read_resource("library://nothing")
    assert [prompt.name for prompt in await client.list_prompts()] == ["recommend"]
    prompt = await client.get_prompt("recommend", {"genre": "mystery"})
    assert "Recommend one mystery book" in str(prompt.messages[0].content)
    assert (await client.complete("genre", "m", prompt="recommend")).values == ["mystery"]
    assert "b1" in (await client.complete("book_id", "b", template=template.uri_template)).values


@pytest.mark.parametrize(("name", "transport"), EVERYWHERE)
@pytest.mark.parametrize("eras", [("stateless", "session"), ("session",)], ids=["both", "session"])
async def test_changes(name: str, transport: Any, eras: Any) -> None:
    if len(eras) == 2 and "listen" in LACKING[name]:
        pytest.skip(f"{name} does not listen in the stateless era")
    with start(name, transport) as target:
        async with Client(target, eras=eras) as client, client.listen(tools=True, uris=[NOTICES]) as changes:
            await client.call_tool("pin_notice", {"text": "Closed today"})
            assert await asyncio.wait_for(anext(changes), 30) == ResourceUpdated(NOTICES)
            await client.call_tool("turn_cafe_sign", {"to": "open"})
            assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()


@pytest.mark.parametrize(("name", "transport"), EVERYWHERE)
@pytest.mark.parametrize("eras", [("stateless", "session"), ("session",)], ids=["both", "session"])
async def test_giving_up(name: str, transport: Any, eras: Any) -> None:
    with start(name, transport) as target:
        async with Client(target, eras=eras) as client:
            with pytest.raises(RequestTimeout):
                await client.call_tool("wait_at_desk", {"seconds": 30}, timeout=0.4)
            for _ in range(100):
                if (await client.call_tool("count_given_up_waits")).text == "1":
                    break
                await asyncio.sleep(0.02)
            else:
                pytest.fail(f"{name} does not know that its caller gave up")
