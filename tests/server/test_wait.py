"""`ctx.wait` of plain functions: what is awaited finds a thread."""

import asyncio
import threading
from typing import Any

import pytest

from support.rounds import call, text
from weft import Context, Limits, Server


def crowded() -> Server:
    """A server with two threads, whose functions wait for each other, and then need a thread more."""
    server, both = Server("crowded", limits=Limits(threads=2)), threading.Barrier(2)

    def wait(ctx: Context) -> str:
        both.wait(30)
        return ctx.wait(ctx.once("a", str, "done")) + ctx.wait(ctx.once("b", str, " twice"))

    server.tool(wait, name="tool")
    server.prompt(wait, name="prompt")

    @server.resource("x://fixed")
    def fixed(ctx: Context) -> str:
        return wait(ctx)

    @server.resource("x://{name}")
    def template(name: str, ctx: Context) -> str:
        return wait(ctx)

    @server.tool
    async def fails() -> None:
        raise LookupError

    @server.on_error(LookupError)
    def explain(_: LookupError, ctx: Context) -> str:
        return wait(ctx)

    return server


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "tool"}),
        ("tools/call", {"name": "fails"}),
        ("prompts/get", {"name": "prompt"}),
        ("resources/read", {"uri": "x://fixed"}),
        ("resources/read", {"uri": "x://any"}),
    ],
)
async def test_functions_that_take_all_threads_and_need_one_more_are_answered(
    method: str, params: dict[str, Any]
) -> None:
    server = crowded()
    async with asyncio.timeout(20):
        responses = await asyncio.gather(*(call(server, method=method, **params) for _ in range(2)))
    assert all("done twice" in str(response.result) for response in responses)
    await server.stop()


async def test_a_function_of_once_may_wait_for_another_one() -> None:
    server = Server("nested", limits=Limits(threads=1))

    @server.tool
    def run(ctx: Context) -> str:
        def outer() -> str:
            return "outer " + ctx.wait(ctx.once("inner", str, "inner"))

        async def both() -> list[str]:
            return await asyncio.gather(ctx.once("outer", outer), ctx.once("next", str, "next"))

        return " ".join(ctx.wait(both()))

    async with asyncio.timeout(20):
        assert text((await call(server)).result) == "outer inner next"
    await server.stop()


async def test_an_exit_in_what_is_awaited_ends_the_call_and_not_the_loop() -> None:
    server = Server("exits", limits=Limits(threads=1))

    @server.tool
    def run(ctx: Context) -> None:
        ctx.wait(ctx.once("exit", exit))

    assert (await call(server)).result["isError"]
    await server.stop()
