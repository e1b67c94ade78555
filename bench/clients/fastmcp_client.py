"""FastMCP's client, over HTTP or with a server in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import driving
from fastmcp import Client


@asynccontextmanager
async def open_client(target: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    found: Any = target
    if target == "here":
        from fastmcp_server import server as found
    async with Client(found) as client:

        async def call() -> Any:
            return (await client.call_tool("add", {"a": 2, "b": 3})).data

        yield call


if __name__ == "__main__":
    driving.main(open_client)
