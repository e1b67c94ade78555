"""How a client of the session era learns why a task has no result: `tasks/result` does not always say it."""

import asyncio

import pytest

from weft import Client, ProtocolError, RemoteError, Server


async def test_a_task_that_has_failed_with_an_internal_error_is_not_waited_for() -> None:
    """The same error could come from a server that cannot read the result now, so the client asks again, but once."""
    server, runs = Server("studio"), 0

    @server.tool(task="optional")
    async def tear() -> str:
        nonlocal runs
        runs += 1
        raise ProtocolError("The sheet is torn.", code=-32603, data={"sheet": 1})

    async with Client(server, eras=("session",)) as client, asyncio.timeout(30):
        handle = await client.start_tool("tear")
        assert handle.id
        with pytest.raises(RemoteError) as failed:
            await handle.result()
    assert (failed.value.code, failed.value.message, failed.value.data) == (-32603, "The sheet is torn.", {"sheet": 1})
    assert runs == 1
