"""The client of an ASGI application in the same process: what becomes of requests that are open when it closes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from weft.client.http.asgi import AsgiWire
from weft.errors import ConnectionFailed
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


async def test_what_is_written_for_a_reader_that_has_gone_is_dropped() -> None:
    written: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass
        for number in range(1000):  # more than the reader has room for
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            written.append(number)

    wire = AsgiWire(app, ClientLimits(close_seconds=1))
    await wire.open()
    await wire.exchange("POST", "http://test/mcp", {}, b"{}")
    await wire.close()
    assert len(written) == 1000


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


async def test_an_answer_that_is_broken_off_is_no_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"half":', "more_body": True})

    wire = AsgiWire(app, ClientLimits())
    await wire.open()
    reply = await wire.exchange("POST", "http://test/mcp", {}, b"{}")
    with pytest.raises(ConnectionFailed, match=r"The application at .* broke off its answer; look into its log"):
        await reply.body(1000)
    await wire.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://shop.example:8123/mcp", ("shop.example", 8123)),
        ("http://shop.example/mcp", ("shop.example", 80)),
        ("http:///mcp", ("localhost", 80)),
    ],
)
async def test_the_application_is_told_which_server_it_is(url: str, place: tuple[str, int]) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        seen.append(scope["server"])
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body"})

    wire = AsgiWire(app, ClientLimits())
    await wire.open()
    assert (await wire.exchange("POST", url, {}, b"{}")).status == 202
    await wire.close()
    assert seen == [place]
