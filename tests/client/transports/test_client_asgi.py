"""The client of an ASGI application in the same process: what becomes of requests that are open when it closes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from weft.client.transports.http_asgi import AsgiWire
from weft.limits import ClientLimits


@pytest.mark.parametrize("listens", [True, False])
async def test_a_request_that_is_open_ends_with_the_client(listens: bool) -> None:
    """One that hears of the disconnect ends by itself; one that does not is cancelled."""
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            if listens:
                while (await receive())["type"] != "http.disconnect":
                    pass
                ended.append("by itself")
            else:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    wire = AsgiWire(app, ClientLimits(close_seconds=5 if listens else 0.05))
    await wire.open()
    reply = await wire.exchange("POST", "http://test/mcp", {}, b"{}")
    assert reply.status == 200
    await wire.close()
    assert ended == ["by itself" if listens else "cancelled"]


async def test_closing_that_is_given_up_cancels_what_is_open() -> None:
    cancelled = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    wire = AsgiWire(app, ClientLimits(close_seconds=60))
    await wire.open()
    await wire.exchange("POST", "http://test/mcp", {}, b"{}")
    closing = asyncio.create_task(wire.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(5):
        await cancelled.wait()
