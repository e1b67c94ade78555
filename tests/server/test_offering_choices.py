"""What a developer may choose about offering: taking the place of another feature, hiding, how schemas are written."""

from typing import Any

import pytest
from pydantic import BaseModel

from support import ask
from weft import Client, RemoteError, Server
from weft.client.results import ToolResult
from weft.errors import RegistrationError, UsageError
from weft.types.features import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)


def one() -> str:
    return "one"


def two() -> str:
    return "two"


# --- replace=


async def test_a_feature_takes_the_place_of_another() -> None:
    server = Server("s")
    for replace in (False, True):
        fn = two if replace else one
        server.add_tool(fn, name="first", replace=replace, needs=() if replace else ["roots"])
        server.add_resource("a://b", fn, replace=replace)
        server.add_prompt(fn, name="first", replace=replace)
        if not replace:
            server.add_tool(one, name="second")
    async with Client(server) as client:
        assert (await client.call_tool("first")).text == "two"  # nor does it need what the other needed
        assert (await client.read_resource("a://b")).contents[0].text == "two"
        assert (await client.get_prompt("first")).messages[0].content.text == "two"
        assert [tool.name for tool in await client.list_tools()] == ["first", "second"]  # in its place


async def test_a_template_takes_the_place_of_another() -> None:
    server = Server("s")

    @server.resource("a://{name}")
    def old(name: str) -> str:
        return "old"

    @server.resource("a://{name}", replace=True)
    def new(name: str) -> str:
        return "new"

    async with Client(server) as client:
        assert (await client.read_resource("a://x")).contents[0].text == "new"


@pytest.mark.parametrize(
    "add",
    [
        lambda server: server.add_tool(one),
        lambda server: server.add_prompt(one),
        lambda server: server.add_resource("a://b", one),
    ],
)
def test_without_it_a_name_is_taken(add: Any) -> None:
    server = Server("s")
    add(server)
    with pytest.raises(RegistrationError, match="replace=True"):
        add(server)


# --- hide=


def hiding() -> Server:
    server = Server("s")
    server.add_tool(one, name="open")
    server.add_tool(one, name="asks", needs=["elicitation.form"], hide=True)
    server.add_tool(one, name="shown", needs=["elicitation.form"])
    server.add_resource("a://open", "x")
    server.add_resource("a://asks", "x", needs=["elicitation.form"], hide=True)
    server.add_prompt(one, name="open")
    server.add_prompt(one, name="asks", needs=["elicitation.form"], hide=True)
    return server


@pytest.mark.parametrize("mode", ["stateless", "session"])
@pytest.mark.parametrize("over", ["pipe", "http"])
async def test_what_a_client_cannot_use_is_not_in_its_lists(over: str, mode: Any) -> None:
    server = hiding()
    target = server if over == "pipe" else server.asgi()
    for _ in range(2):  # lists are kept for each kind of client
        async with Client(target, eras=[mode]) as client:
            assert [tool.name for tool in await client.list_tools()] == ["open", "shown"]
            assert [resource.uri for resource in await client.list_resources()] == ["a://open"]
            assert [prompt.name for prompt in await client.list_prompts()] == ["open"]
        async with Client(target, eras=[mode], elicit=lambda question: {}) as client:
            assert [tool.name for tool in await client.list_tools()] == ["open", "asks", "shown"]
            assert [resource.uri for resource in await client.list_resources()] == ["a://open", "a://asks"]
            assert [prompt.name for prompt in await client.list_prompts()] == ["open", "asks"]


async def test_all_that_is_needed_has_to_be_there() -> None:
    server = Server("s")
    server.add_tool(one, name="both", needs=["elicitation.form", "sampling"], hide=True)
    async with Client(server, elicit=lambda question: {}) as client:
        assert await client.list_tools() == []
        with pytest.raises(RemoteError) as unknown:
            await client.request("tools/call", {"name": "zzz"})
        assert "both" not in str(unknown.value)
    async with Client(server, elicit=lambda question: {}, sample=lambda request: "x") as client:
        assert [tool.name for tool in await client.list_tools()] == ["both"]


async def test_a_list_that_differs_is_private_and_names_nothing_hidden() -> None:
    server = hiding()
    assert (await ask(server, "tools/list")).result["cacheScope"] == "private"
    message = (await ask(server, "tools/call", {"name": "zzzzz"})).error["message"]
    assert message == "Unknown tool. The tools are: open, shown."


@pytest.mark.parametrize(("options", "said"), [({"hide": True}, "without needs=")])
def test_hide_is_for_what_needs_something(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Server("s").add_tool(one, **options)


# --- schema_refs=


class Place(BaseModel):
    city: str


class Tree(BaseModel):
    leaves: list["Tree"] = []


def travel(start: Place, end: Place, via: Tree) -> Place:
    return end


@pytest.mark.parametrize("refs", [False, True])
def test_models_are_written_in_place_or_behind_references(refs: bool) -> None:
    server = Server("s", schema_refs=refs)
    server.add_tool(travel)
    definition = next(iter(server.engine.tools)).definition
    start, via = (definition.input_schema["properties"][name] for name in ("start", "via"))
    assert start == ({"$ref": "#/$defs/Place"} if refs else definition.input_schema["properties"]["end"])
    assert refs or start["properties"] == {"city": {"type": "string"}}
    assert "$ref" in via  # what contains itself has no other form
    assert set(definition.input_schema["$defs"]) == ({"Place", "Tree"} if refs else {"Tree"})


def test_a_schema_does_not_grow_without_end() -> None:
    model: Any = Place
    for level in range(12):  # each has the one before it twice
        model = type(f"M{level}", (BaseModel,), {"__annotations__": {"a": model, "b": model}})

    def deep(root) -> None: ...

    deep.__annotations__["root"] = model
    server = Server("s")
    server.add_tool(deep)
    assert len(str(next(iter(server.engine.tools)).definition.input_schema)) < 20_000


# --- print(result)


def test_a_printed_result_says_what_is_in_it() -> None:
    result = ToolResult(
        content=[
            TextContent("Here:"),
            ImageContent("R0lGODlh", "image/gif"),
            AudioContent("AAA=", "audio/wav"),
            ResourceLink("a://b", "b", title="The b"),
            EmbeddedResource(ResourceContents("a://c", text="inside")),
            EmbeddedResource(ResourceContents("a://d", "application/pdf", blob="AAAA")),
        ]
    )
    assert str(result).splitlines() == [
        "Here:",
        "[image, image/gif, 6 bytes]",
        "[audio, audio/wav, 2 bytes]",
        "[link to a://b, The b]",
        "inside",
        "[resource a://d, application/pdf, 3 bytes]",
    ]
    assert result.text == "Here:"
