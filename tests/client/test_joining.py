"""Tools of several servers side by side: what they are called, for models and for people."""

from contextlib import AsyncExitStack

import msgspec
import pytest

import weft.sync
from weft import Client, Server
from weft.client.joining import join_tools
from weft.errors import UsageError
from weft.types.base import Implementation
from weft.types.features import Prompt, Resource, ResourceTemplate, Tool, ToolAnnotations


def named(answer: str, *names: str) -> Server:
    """A server with tools of these names; all servers here call themselves the same."""
    server = Server("search")
    for name in names:
        server.tool(name=name)(lambda: answer)
    return server


async def joined(stack: AsyncExitStack, **servers: Server):
    clients = {key: await stack.enter_async_context(Client(server)) for key, server in servers.items()}
    return await join_tools(clients)


@pytest.mark.spec("TOOL-08")
async def test_tools_of_one_name_are_told_apart_and_each_call_goes_where_it_belongs() -> None:
    async with AsyncExitStack() as stack:
        tools = await joined(stack, web=named("web", "search", "only"), wiki=named("wiki", "search"))
        assert sorted(tools) == ["web__only", "web__search", "wiki__search"]
        for key in ("web", "wiki"):
            tool = tools[f"{key}__search"]
            assert (tool.name, tool.tool.name) == (f"{key}__search", "search")
            assert (await tool.call({})).text == key
        assert (await tools["web__only"].call(timeout=5)).text == "web"


@pytest.mark.spec("TOOL-08")
@pytest.mark.security("R11")
async def test_no_server_can_take_the_name_of_anothers_tool() -> None:
    async with AsyncExitStack() as stack:
        tools = await joined(
            stack, bank=named("bank", "pay", "_pay"), bank_2=named("2", "pay"), x=named("x", "bank__pay", "_2__pay")
        )
        assert len(tools) == 5
        assert (await tools["bank__pay"].call()).text == "bank"
        assert (await tools["bank_2__pay"].call()).text == "2"
        assert (await tools["x__bank__pay"].call()).text == "x"
        before = set(tools)
    async with AsyncExitStack() as stack:
        fewer = await joined(stack, bank=named("bank", "pay", "_pay"))
        assert set(fewer) < before  # a name does not hang on what the others have


@pytest.mark.parametrize("key", ["", "a__b", "a_", "_a", "a b", "a/b", "\u00e9"])
async def test_keys_that_make_no_names(key: str) -> None:
    async with Client(named("x", "t")) as client:
        with pytest.raises(UsageError, match="cannot begin the names of tools"):
            await join_tools({key: client})


@pytest.mark.spec("TOOL-08")
def test_without_await() -> None:
    with weft.sync.Client(named("web", "search")) as web, weft.sync.Client(named("wiki", "search")) as wiki:
        tools = weft.sync.join_tools({"web": web, "wiki": wiki})
        assert sorted(tools) == ["web__search", "wiki__search"]
        for key, tool in tools.items():
            assert (tool.name, tool.tool.name) == (key, "search")
            assert tool.call({}, timeout=5).text == key.partition("__")[0]


@pytest.mark.spec("TOOL-21")
def test_what_a_tool_is_called_where_people_read() -> None:
    hints = ToolAnnotations(title="Hint")
    assert Tool("name", {}, title="Title", annotations=hints).display_name == "Title"
    assert Tool("name", {}, annotations=hints).display_name == "Hint"
    assert Tool("name", {}, annotations=ToolAnnotations()).display_name == "name"
    assert Tool("name", {}).display_name == "name"
    assert "display" not in msgspec.json.encode(Tool("name", {}, title="Title")).decode()


@pytest.mark.parametrize(
    "thing", [Prompt("n"), Resource("x://", "n"), ResourceTemplate("x://", "n"), Implementation("n", "1")]
)
def test_and_all_else_that_has_a_title(thing: Prompt | Resource | ResourceTemplate | Implementation) -> None:
    assert thing.display_name == "n"
    thing.title = "T"
    assert thing.display_name == "T"
