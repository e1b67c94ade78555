"""A call leaves no reference cycle behind: what it held is free when it ends, not when a collection comes by.

Weft's runner has the collector search less often, and a cycle may hold a whole request. So every way in which a call
can end is tried here with the collector off, and what only a collection would find is looked at.
"""

import asyncio
import contextlib
import gc
import logging
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from weft import Client, Context, Limits, Server, ToolError

LONG = "x" * 100
FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}}


def make_server() -> Server:
    server = Server("garbage", limits=Limits(threads=1))

    @server.tool
    async def add(a: int) -> int:
        return a

    @server.tool
    async def told(ctx: Context, text: str) -> str:
        ctx.state["mine"] = text
        await ctx.report_progress(1, 2)
        await ctx.info("half")
        await asyncio.sleep(0.001)
        return text

    @server.tool
    async def asks(ctx: Context, text: str) -> str:
        return (await ctx.elicit("Sure?", FORM)).action

    add_waiting(server)
    add_failing(server)
    return server


def add_waiting(server: Server) -> None:
    @server.tool
    def raises_in_its_own_thread(ctx: Context, text: str) -> str:
        def fails() -> str:
            raise ValueError(text)

        return ctx.wait(ctx.once("fails", fails))

    @server.tool
    def waits_in_thread(ctx: Context, text: str) -> None:
        ctx.wait(asyncio.sleep(1, text))


def add_failing(server: Server) -> None:
    @server.tool
    async def raises(text: str) -> str:
        raise ValueError(text)

    @server.tool
    def raises_in_thread(text: str) -> str:
        raise ValueError(text)

    @server.tool
    async def refuses(text: str) -> str:
        await asyncio.sleep(0.001)
        raise ToolError(text)

    @server.tool
    def refuses_in_thread(text: str) -> str:
        raise ToolError(text)

    @server.tool
    async def lies(text: str) -> int:
        return text  # type: ignore[return-value] - that is the mistake

    @server.tool(timeout=0.01)
    async def late(text: str) -> None:
        await asyncio.sleep(1)

    @server.tool(input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    async def raw(arguments: dict[str, Any]) -> str:
        return "never"

    @server.resource("number://{n}")
    def number(n: int) -> str:
        raise ValueError(n)

    @server.prompt
    def greet(n: int) -> str:
        raise ValueError(n)

    @server.completion(prompt="greet", argument="n")
    def suggest(value: str) -> list[str]:
        raise ValueError(value)


async def given_up(client: Client, tool: str = "late") -> None:
    call = asyncio.ensure_future(client.call_tool(tool, {"text": LONG}))
    await asyncio.sleep(0.002)
    call.cancel()
    await asyncio.wait([call])


WAYS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "answered": lambda client: client.call_tool("add", {"a": 1}),
    "answered after a lenient look": lambda client: client.call_tool("add", {"a": "1"}),
    "answered with news on the way": lambda client: client.call_tool("told", {"text": LONG}),
    "answered after a question": lambda client: client.call_tool("asks", {"text": LONG}),
    "an unknown argument": lambda client: client.call_tool("add", {"b": LONG}),
    "a wrong type": lambda client: client.call_tool("add", {"a": LONG}),
    "a raw schema that refuses": lambda client: client.call_tool("raw", {"a": LONG}),
    "an unknown tool": lambda client: client.call_tool("nope", {"a": LONG}),
    "an exception": lambda client: client.call_tool("raises", {"text": LONG}),
    "an exception in a thread": lambda client: client.call_tool("raises_in_thread", {"text": LONG}),
    "an exception of a function in the thread that waits for it": lambda client: client.call_tool(
        "raises_in_its_own_thread", {"text": LONG}
    ),
    "a ToolError": lambda client: client.call_tool("refuses", {"text": LONG}),
    "a ToolError in a thread": lambda client: client.call_tool("refuses_in_thread", {"text": LONG}),
    "a result that does not fit": lambda client: client.call_tool("lies", {"text": LONG}),
    "a timeout": lambda client: client.call_tool("late", {"text": LONG}),
    "a call that is given up": given_up,
    "a call that is given up in a thread": lambda client: given_up(client, "waits_in_thread"),
    "an exception of a resource": lambda client: client.read_resource("number://1"),
    "a URI that does not fit": lambda client: client.read_resource("number://one"),
    "an unknown resource": lambda client: client.read_resource("nowhere://1"),
    "an exception of a prompt": lambda client: client.get_prompt("greet", {"n": "1"}),
    "a prompt's argument that does not fit": lambda client: client.get_prompt("greet", {"n": LONG}),
    "an exception of a completion": lambda client: client.complete(prompt="greet", argument="n", value="1"),
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # pytest keeps log records, and with them exceptions
    gc.collect()
    gc.freeze()  # what is there by now is not searched again with every collection
    yield
    gc.unfreeze()
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    logging.disable(logging.NOTSET)


async def attempt(way: Awaitable[Any]) -> None:
    with contextlib.suppress(Exception):  # how it ends is not what is looked at
        await way
    await asyncio.sleep(0.02)  # what is left to do is done


async def left_behind(make: Callable[[], Awaitable[Any]]) -> list[str]:
    """What only a collection finds after this, of Weft's things and of exceptions."""
    await attempt(make())  # whatever is made once is made now
    gc.collect()
    gc.disable()
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    await attempt(make())
    gc.collect()
    gc.set_debug(0)
    found = list(gc.garbage)
    gc.garbage.clear()
    gc.enable()
    kinds = (BaseException, types.FrameType, types.TracebackType)
    return sorted(
        str(thing)[:120] for thing in found if isinstance(thing, kinds) or type(thing).__module__.startswith("weft")
    )


@pytest.mark.parametrize("mode", ["stateless", "session"])
@pytest.mark.parametrize("over", ["pipe", "http"])
async def test_no_call_leaves_a_cycle(over: str, mode: Any, no_collector: None) -> None:
    server = make_server()
    target = server if over == "pipe" else server.asgi()
    async with Client(target, eras=[mode], elicit=lambda question: {"sure": True}) as client:
        left = {name: await left_behind(lambda way=way: way(client)) for name, way in WAYS.items()}
    assert {name: found for name, found in left.items() if found} == {}


async def test_what_is_looked_for_would_be_found(no_collector: None) -> None:
    """Else the test above could not fail."""

    async def keeps_its_exception() -> None:
        try:
            raise ValueError(LONG)
        except ValueError as error:
            kept = error
        raise kept

    assert await left_behind(keeps_its_exception) != []
