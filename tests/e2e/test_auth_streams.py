"""A stream lasts as long as the token that it was opened with; who comes back with another hears on."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from test_http_sse import OldClient
from test_listen_streams import ACK, Stream

from support import Live, encode, headers_for, message, serve, start_request, until
from support.protected import ERAS, Peer, challenge_of, make_protected, protect
from support.sessions import Stream as SessionStream
from support.sessions import rpc
from support.tokens import ISSUER, rsa_jwk, token_for
from weft import Client, Server
from weft.auth import BearerToken
from weft.client.results import StreamReopened, ToolsChanged
from weft.server.auth import JwtVerifier

LISTEN = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})


def make(leeway: float = 0.0) -> Server:
    server = make_protected(protect(verifier=JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER, leeway=leeway)))

    @server.tool
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    return server


@pytest.fixture
def live() -> Iterator[Live]:
    with serve(make()) as running:
        yield running


def brief() -> str:
    """A token that is good for one to two seconds."""
    return token_for(exp=int(time.time()) + 2)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def listen(live: Live, token: str) -> Stream:
    connection = live.connect()
    start_request(connection, encode(LISTEN), headers_for(LISTEN, bearer(token)))
    stream = Stream(connection)
    told = stream.next()
    assert told is not None
    assert told["method"] == ACK
    return stream


@pytest.mark.spec("AUTH-31", "SUB-15")
@pytest.mark.security("R10")
def test_a_listen_stream_ends_with_its_token(live: Live) -> None:
    """Without a result, which would say that nothing more is to be heard: the client is to come back."""
    token, lasting = brief(), listen(live, token_for())
    stream = listen(live, token)
    assert stream.next() is None
    assert stream.response.isclosed()  # the whole response came
    again = live.send(encode(LISTEN), headers_for(LISTEN, bearer(token)))
    assert (again.status, challenge_of(again)[1]["error"]) == (401, "invalid_token")
    assert len(live.server.engine.subscriptions) == 1
    live.server.notify_tools_changed()  # the other hears on
    told = lasting.next()
    assert told is not None
    assert told["method"] == "notifications/tools/list_changed"
    for one in (stream, lasting):
        one.close()
    assert live.faults == []


def test_a_listen_stream_lasts_for_as_long_as_its_token_is_let_in() -> None:
    """An end before that would have the client come back with the same token, and be let in, over and over."""
    with serve(make(leeway=30)) as live:
        stream = listen(live, token_for(exp=int(time.time()) - 10))
        time.sleep(0.5)
        live.server.notify_tools_changed()
        assert stream.next() is not None
        stream.close()


@pytest.mark.spec("AUTH-31")
@pytest.mark.security("R10")
def test_the_stream_of_a_session_ends_with_its_token(live: Live) -> None:
    ann = Peer(live, "session", token_for())
    assert ann.send("ping").status == 200
    body = rpc("notifications/initialized", id=None)
    common = {"Mcp-Session-Id": str(ann.session), "Accept": "application/json, text/event-stream"}
    opening = [*{**common, "Content-Type": "application/json", **bearer(token_for())}.items()]
    assert live.send(encode(body), opening).status == 202

    token = brief()
    stream = SessionStream(live, "GET", b"", [*{**common, **bearer(token)}.items()])
    assert stream.status == 200
    assert stream.messages() == []  # until its end
    stream.cut()
    refused = live.send(b"", [*{**common, **bearer(token)}.items()], verb="GET")
    assert refused.status == 401
    with_another = SessionStream(live, "GET", b"", [*{**common, **bearer(token_for())}.items()])
    assert with_another.status == 200
    live.server.notify_tools_changed()
    assert with_another.next()["data"]["method"] == "notifications/tools/list_changed"
    with_another.cut()
    assert ann.tool("who").status == 200  # the session is what it was
    assert live.faults == []


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_is_under_way_is_not_interrupted(live: Live, era: str) -> None:
    peer = Peer(live, era, brief())
    assert peer.tool("nap", seconds=2.2).result["content"][0]["text"] == "slept"
    assert peer.tool("nap", seconds=0).status == 401


async def test_the_client_comes_back_with_another_token(live: Live) -> None:
    end = int(time.time()) + 3
    first, second = token_for(exp=end), token_for(jti="another")

    def token() -> str:
        return first if time.time() < end else second

    heard: list[Any] = []
    async with (
        asyncio.timeout(30),
        Client(f"http://127.0.0.1:{live.port}/mcp", auth=BearerToken(token)) as client,
        client.listen(tools=True) as changes,
    ):
        async for change in changes:
            heard.append(change)
            if isinstance(change, ToolsChanged):
                break
            live.server.notify_tools_changed()
    assert heard == [StreamReopened(), ToolsChanged()]
    until(lambda: len(live.server.engine.subscriptions) == 0)


@pytest.fixture
def old() -> Iterator[OldClient]:
    """A client of HTTP+SSE, whose stream was opened with a brief token."""
    with serve(make(), sse_path="/sse") as running, closing(OldClient(running, *bearer(brief()).items())) as client:
        client.greet()
        yield client


@pytest.mark.spec("AUTH-31")
def test_the_one_stream_of_the_oldest_transport_ends_with_its_token(old: OldClient) -> None:
    assert old.ended()
    until(lambda: len(old.live.server.engine.sessions) == 0)
    assert old.live.faults == []


@pytest.mark.spec("AUTH-31")
def test_that_stream_goes_on_with_a_newer_token(old: OldClient) -> None:
    first, old.headers = old.headers, tuple(bearer(token_for()).items())
    assert old.ask("ping") == {}
    old.headers = first
    assert old.ask("ping") == {}  # a message that was overtaken takes nothing back
    time.sleep(2.2)
    old.live.server.notify_tools_changed()
    assert old.next()["method"] == "notifications/tools/list_changed"


def test_that_stream_has_the_answer_to_a_call_that_was_under_way(old: OldClient) -> None:
    assert old.tool("nap", {"seconds": 2.5})["content"][0]["text"] == "slept"
    assert old.ended()
