"""What the client sends and the server does not take: the call that waits for it fails at once, with the reason."""

import asyncio
import json
import time
from typing import Any

import pytest

from support.fakes import Exchange, http_server, initialized, sse
from weft import AuthorizationFailed, Client, ClientLimits, ConnectionFailed

TEXT = {"content": [{"type": "text", "text": "done"}]}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
LIMITS = ClientLimits(request_seconds=20, close_seconds=0.5)


class Asking:
    """A server with sessions that asks while it answers a call; the client's answers get a status."""

    def __init__(self, status: int | None, *, asks: bool = True, body: bytes = b"", kind: str = "text/plain") -> None:
        self.status = status  # to answers and notifications of the client; None: the connection is cut
        self.asks = asks
        self.body, self.kind = body, kind
        self.sessions = 0
        self.seen: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange.rpc or exchange.method if "result" not in exchange.message else "answer")
        if exchange.method == "GET":
            await exchange.respond(405)
        elif exchange.method == "DELETE" or exchange.rpc == "notifications/initialized":
            await exchange.respond(202)
        elif exchange.rpc == "initialize":
            self.sessions += 1
            await exchange.result(initialized(), mcp_session_id=f"s{self.sessions}")
        elif exchange.rpc == "tools/call" and self.asks:
            question = {"message": "Who?", "requestedSchema": FORM}
            asked = {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": question}
            await exchange.stream(sse(json.dumps(asked)))
            await exchange.hang()
        elif "method" not in exchange.message or "id" not in exchange.message:
            await self.refuse(exchange)
        else:
            await exchange.result(TEXT)

    async def refuse(self, exchange: Exchange) -> None:
        if self.status is None:
            exchange.cut()
        else:
            await exchange.respond(self.status, self.body, self.kind)


def connect(url: str, **options: Any) -> Client:
    return Client(url, eras=["session"], elicit=lambda question: {"name": "Ada"}, limits=LIMITS, **options)


async def test_an_answer_that_finds_no_session_fails_the_call_at_once_and_a_session_is_agreed_on_again() -> None:
    server = Asking(404)
    async with http_server(server) as url, connect(url) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionFailed) as caught:
            await client.call_tool("ask")
        assert time.monotonic() - began < 5
        said = str(caught.value)
        for part in (url, "session", "tools/call", "HTTP 404", "elicitation/create", "is not known"):
            assert part in said, said
        assert "path" not in said, "the path is right: it has answered there before"
        assert server.sessions == 2
        server.asks = False
        assert (await client.call_tool("other")).text == "done"
        assert server.sessions == 2
    assert server.seen.count("tools/call") == 2, "what may have been done is not done again"


@pytest.mark.parametrize(
    ("status", "part"),
    [(403, "HTTP status 403"), (500, "HTTP status 500"), (429, "HTTP status 429"), (None, "closed the connection")],
)
async def test_an_answer_that_is_not_taken_fails_the_call_that_waits_for_it(status: int | None, part: str) -> None:
    server = Asking(status)
    async with http_server(server) as url, connect(url) as client:
        with pytest.raises(ConnectionFailed, match=part) as caught:
            await asyncio.wait_for(client.call_tool("ask"), 10)
        assert "elicitation/create" in str(caught.value)
    assert server.sessions == 1


async def test_an_answer_that_wants_a_login_fails_the_call_as_one_that_does() -> None:
    async with http_server(Asking(401)) as url, connect(url) as client:
        with pytest.raises(AuthorizationFailed, match=r"elicitation/create .*401"):
            await asyncio.wait_for(client.call_tool("ask"), 10)


async def test_the_reason_that_a_server_gives_is_told() -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "No such\nquestion"}})
    async with http_server(Asking(400, body=body.encode(), kind="application/json")) as url, connect(url) as client:
        with pytest.raises(ConnectionFailed, match="No such question"):
            await asyncio.wait_for(client.call_tool("ask"), 10)


async def test_a_question_beside_the_only_call_is_that_calls() -> None:
    """On the transport of the first revision all comes on one stream, and nothing says which call asks."""
    streams: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.stream(sse("/post", event="endpoint"))
            streams.append(exchange)
            await exchange.hang()
        elif exchange.path == "/mcp" or "result" in exchange.message:
            await exchange.respond(404)
        else:
            await exchange.respond(202)
            if exchange.rpc == "initialize":
                answer = {"id": exchange.message["id"], "result": initialized("2024-11-05")}
                await streams[0].raw(sse(json.dumps({"jsonrpc": "2.0", **answer})))
            elif exchange.rpc == "tools/call":
                params = {"message": "Who?", "requestedSchema": FORM}
                asked = {"jsonrpc": "2.0", "id": 7, "method": "elicitation/create", "params": params}
                await streams[0].raw(sse(json.dumps(asked)))

    async with http_server(handle) as url, connect(url) as client:
        with pytest.raises(ConnectionFailed, match=r"refused the answer to its elicitation/create .* 404"):
            await asyncio.wait_for(client.call_tool("ask"), 10)


async def test_where_it_is_not_known_who_asks_all_calls_of_a_session_that_is_gone_fail() -> None:
    class Standing(Asking):
        async def __call__(self, exchange: Exchange) -> None:
            if exchange.method == "GET":
                question = {"message": "Who?", "requestedSchema": FORM}
                asked = {"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": question}
                await exchange.stream(b": here\n\n")
                while self.seen.count("tools/call") < 2:  # noqa: ASYNC110 - a server has no event of ours
                    await asyncio.sleep(0.01)
                await exchange.raw(sse(json.dumps(asked)))
                await exchange.hang()
            elif exchange.rpc == "tools/call":
                self.seen.append("tools/call")
                await exchange.hang()
            else:
                await super().__call__(exchange)

    async with http_server(Standing(404)) as url, connect(url) as client:
        calls = [asyncio.ensure_future(client.call_tool(name)) for name in "ab"]
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
        assert ["does not know the session" in str(outcome) for outcome in outcomes] == [True, True]


async def test_a_question_on_the_standing_stream_is_no_calls() -> None:
    class Standing(Asking):
        async def __call__(self, exchange: Exchange) -> None:
            if exchange.method == "GET":
                await exchange.stream(b": here\n\n")
                while "tools/call" not in self.seen:  # noqa: ASYNC110 - a server has no event of ours
                    await asyncio.sleep(0.01)
                await exchange.raw(sse(json.dumps({"jsonrpc": "2.0", "id": "q1", "method": "roots/list"})))
                await exchange.hang()
            elif exchange.rpc == "tools/call":
                self.seen.append("tools/call")
                while "answer" not in self.seen:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                await exchange.result(TEXT)
            else:
                await super().__call__(exchange)

    server = Standing(429)
    async with http_server(server) as url, connect(url, roots=["file:///tmp"]) as client:
        assert (await asyncio.wait_for(client.call_tool("t"), 10)).text == "done"
    assert "answer" in server.seen


async def test_an_answer_to_a_ping_that_is_not_taken_fails_no_call() -> None:
    class Pinging(Asking):
        async def __call__(self, exchange: Exchange) -> None:
            if exchange.rpc == "tools/call":
                await exchange.stream(sse(json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"})))
                await asyncio.sleep(0.3)
                await exchange.raw(sse(json.dumps({"jsonrpc": "2.0", "id": exchange.message["id"], "result": TEXT})))
            else:
                await super().__call__(exchange)

    server = Pinging(500)
    async with http_server(server) as url, connect(url) as client:
        assert (await client.call_tool("t")).text == "done"
    assert "answer" in server.seen


# --- notifications


async def test_a_notification_that_finds_no_session_is_sent_in_a_new_one() -> None:
    server = Asking(404)

    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(404 if exchange.headers["mcp-session-id"] == "s1" else 202)

    server.refuse = refuse  # type: ignore[method-assign]
    async with http_server(server) as url, connect(url) as client:
        await client.notify("notifications/mine")
    assert server.sessions == 2
    assert server.seen.count("notifications/mine") == 2


async def test_a_notification_that_never_finds_a_session_is_told_so_and_not_sent_for_ever() -> None:
    server = Asking(404)
    async with http_server(server) as url, connect(url) as client:
        with pytest.raises(ConnectionFailed, match="404"):
            await client.notify("notifications/mine")
    assert server.seen.count("notifications/mine") == 2


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_a_notification_that_is_refused_is_told(status: int) -> None:
    async with http_server(Asking(status)) as url, connect(url) as client:
        with pytest.raises(ConnectionFailed, match=str(status)):
            await client.notify("notifications/mine")


async def test_a_cancellation_that_finds_no_session_has_one_agreed_on_again() -> None:
    server = Asking(404)
    async with http_server(server) as url, Client(url, eras=["session"], elicit=_never, limits=LIMITS) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("ask"), 0.3)
        for _ in range(100):
            await asyncio.sleep(0.02)
            if server.sessions == 2:
                break
        assert server.sessions == 2


async def _never(question: Any) -> Any:
    await asyncio.sleep(60)
