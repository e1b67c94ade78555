"""A server in the same process."""

import asyncio

import pytest

from weft import Client, Server


async def test_calls_that_never_wait_keep_nobody_from_their_turn() -> None:
    """A server that answers at once could be called for ever without the loop ever running."""
    server = Server("quick")
    server.add_tool(lambda: "x", name="plain", description="Wait for a thread.")

    @server.tool
    async def quick() -> str:
        """Answer at once."""
        return "x"

    async with Client(server) as client:

        async def call_on_and_on() -> None:
            for _ in range(1_000_000):
                assert (await client.call_tool("quick")).text == "x"

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call_on_and_on(), 0.2)
        assert (await client.call_tool("plain")).text == "x"  # and all is well
