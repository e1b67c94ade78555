"""What a program learns of a request that the server refused by an HTTP status."""

import pytest

from weft import Client, Limits, Server
from weft.client.config import Asgi
from weft.errors import ConnectionFailed, RemoteError


def limited(**limits: int) -> Asgi:
    server = Server("shop", limits=Limits(**limits))
    server.add_tool(lambda: "sencha", name="stock", description="Say what is in stock.")
    return Asgi(server.asgi())


async def test_a_refused_call_has_the_status_and_the_time_to_wait() -> None:
    async with Client(limited(requests_per_minute=1)) as client:
        with pytest.raises(RemoteError) as caught:
            await client.call_tool("stock")
    assert caught.value.status == 429
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 61


async def test_a_refused_connection_says_once_when_to_try_again() -> None:
    app = limited(requests_per_minute=1)
    async with Client(app):
        pass
    with pytest.raises(ConnectionFailed) as caught:
        await Client(app).connect()
    assert caught.value.status == 429
    wait = f"{caught.value.retry_after} s"
    assert str(caught.value).endswith(
        f"answered with the HTTP status 429: You may send 1 requests per minute. Send this one again in {wait}."
    )


async def test_an_error_of_the_server_itself_has_no_status() -> None:
    server = Server("shop")
    async with Client(server) as client:
        with pytest.raises(RemoteError) as caught:
            await client.call_tool("unknown")
    assert (caught.value.status, caught.value.retry_after) == (None, None)
