"""A client whose server falters half-way: nothing hangs, nobody is left uninformed, and nothing is left behind."""

import asyncio
import json
from typing import Any

import pytest

from support.fakes import DISCOVERED, Exchange, FakePipe, http_server, initialized, reply, sse
from weft import Client, ClientLimits, ConnectionFailed, InvalidAnswer, RemoteError, RequestTimeout
from weft.auth import BearerToken
from weft.client import StreamReopened, ToolsChanged
from weft.client.requests.cache import authorization_partition, identify_login, unique_name

IMPATIENT = ClientLimits(request_seconds=0.3, probe_seconds=0.3, resumptions=1, close_seconds=0.3)
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def others() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def session(exchange: Exchange) -> None:
    """What a server of the session era answers to all but GET."""
    if exchange.rpc == "initialize":
        await exchange.result(initialized(), mcp_session_id="one")
    elif exchange.rpc == "server/discover":
        await exchange.respond(400)
    elif "id" in exchange.message:
        await exchange.result({})
    else:
        await exchange.respond(202)


# --- notifications


async def test_a_server_that_does_not_take_the_end_of_the_handshake_fails_the_connection() -> None:
    async def handle(exchange: Exchange) -> None:
        await (exchange.hang() if exchange.rpc.startswith("notifications/") else session(exchange))

    async with http_server(handle) as url:
        with pytest.raises(RequestTimeout, match=r"did not accept notifications/initialized within 0.3 s") as caught:
            await asyncio.wait_for(Client(url, limits=IMPATIENT).connect(), 30)
        assert "eras=" not in str(caught.value), "it has answered: which era it speaks is known"


async def test_a_notification_that_is_not_taken_does_not_hang() -> None:
    async def handle(exchange: Exchange) -> None:
        await (exchange.result(DISCOVERED) if "id" in exchange.message else exchange.hang())

    async with http_server(handle) as url, Client(url, limits=IMPATIENT) as client:
        with pytest.raises(RequestTimeout, match="did not accept notifications/x"):
            await asyncio.wait_for(client.notify("notifications/x"), 30)


async def test_a_notification_that_is_refused_says_why() -> None:
    async def handle(exchange: Exchange) -> None:
        await (exchange.result(DISCOVERED) if "id" in exchange.message else exchange.respond(403))

    async with http_server(handle) as url, Client(url) as client:
        with pytest.raises(ConnectionFailed, match="check the token"):
            await client.notify("notifications/x")


async def test_listening_does_not_hang_if_there_is_no_token_any_more() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.result(DISCOVERED)

    def token() -> str:
        return tokens.pop()

    tokens = ["t"] * 100
    async with http_server(handle) as url, Client(url, auth=BearerToken(token)) as client:
        tokens.clear()
        with pytest.raises(ConnectionFailed, match="IndexError") as caught:
            await asyncio.wait_for(client.listen(tools=True).start(), 30)
    assert isinstance(caught.value.__cause__, IndexError)


async def test_a_function_for_notifications_may_be_async() -> None:
    heard: list[str] = []

    async def hear(method: str, params: Any) -> None:
        await asyncio.sleep(0)
        heard.append(method)

    server = FakePipe(lambda pipe, message: pipe.answer(message, DISCOVERED))
    async with Client(server, on_notification=hear):
        server.say({"method": "notifications/one"})
        server.say({"method": "notifications/two"})
        await asyncio.sleep(0.05)
    assert heard == ["notifications/one", "notifications/two"]


async def test_the_media_type_may_be_written_in_any_case() -> None:
    async def handle(exchange: Exchange) -> None:
        body = reply(exchange.message, DISCOVERED)
        await exchange.respond(200, body, "Application/JSON; Charset=UTF-8")

    async with http_server(handle) as url, Client(url) as client:
        assert client.era == "stateless"


# --- the streams


async def test_a_standing_stream_is_opened_again_after_a_server_that_was_not_ready() -> None:
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.method != "GET":
            await session(exchange)
            return
        streams += 1
        if streams == 2:
            await exchange.respond(503)
            return
        await exchange.stream()
        if streams > 2:
            await exchange.hang()

    async with http_server(handle) as url, Client(url, eras=["session"]) as client, client.listen() as changes:
        assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
    assert streams == 3


@pytest.mark.spec("L11-09")
async def test_who_listens_to_a_server_without_a_stream_is_told_and_hears_what_comes_with_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.respond(405)
        elif exchange.rpc == "tools/call":
            changed = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await exchange.stream(sse(changed), sse(reply(exchange.message, {"content": []})))
        else:
            await session(exchange)

    async with http_server(handle) as url, Client(url, eras=["session"]) as client:
        assert not caplog.messages  # a server need not have one
        async with client.listen() as changes:
            (told,) = caplog.messages
            assert told == (
                f"{url} has no stream for changes: they arrive only while it answers requests. Fetch what you need "
                "again from time to time."
            )
            await client.call_tool("t")
            assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()


async def test_who_listens_over_a_pipe_is_told_nothing_of_the_kind(caplog: pytest.LogCaptureFixture) -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "id" in message:
            pipe.answer(message, initialized())

    async with Client(FakePipe(handle), eras=["session"]) as client, client.listen():
        assert not caplog.messages


@pytest.mark.parametrize("status", [403, 503])
async def test_who_listens_is_told_when_the_standing_stream_is_refused_for_good(status: int) -> None:
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.method != "GET":
            await session(exchange)
            return
        streams += 1
        await (exchange.stream() if streams == 1 else exchange.respond(status))

    async with http_server(handle) as url, Client(url, eras=["session"], limits=IMPATIENT) as client:
        with pytest.raises(ConnectionFailed, match=str(status)):
            await asyncio.wait_for(anext(client.listen()), 30)


async def test_who_wants_no_stream_opened_again_is_told_that_it_is_lost() -> None:
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.rpc != "subscriptions/listen":
            await exchange.result(DISCOVERED)
            return
        streams += 1
        params = {"_meta": {SUBSCRIPTION: exchange.message["id"]}, "notifications": {"toolsListChanged": True}}
        message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        await exchange.stream(sse(json.dumps(message)))

    async with http_server(handle) as url, Client(url, limits=ClientLimits(resumptions=0)) as client:
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(anext(client.listen(tools=True)), 30)
    assert streams == 1


BAD_EVENTS = [
    sse("not json"),
    sse('{"jsonrpc":"2.0","method":5}'),
    sse('{"jsonrpc":"2.0","method":"notifications/message","params":{"data":NaN}}'),
    sse('[{"jsonrpc":"2.0","method":5}, 7]'),
    sse("[["),
]


@pytest.mark.parametrize("bad", BAD_EVENTS)
async def test_an_event_that_cannot_be_read_is_left_out_of_a_stream(
    bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
            return
        await exchange.stream(bad, sse(reply(exchange.message, {"tools": []})))

    async with http_server(handle) as url, Client(url, limits=IMPATIENT) as client:
        assert await client.list_tools() == []
        assert f"{url} sent something that is not a message" in caplog.text


async def test_a_stream_without_an_answer_is_blamed_on_what_could_not_be_read() -> None:
    asked = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal asked
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
            return
        asked += 1
        await exchange.stream(BAD_EVENTS[0])

    async with http_server(handle) as url, Client(url, limits=IMPATIENT) as client:
        with pytest.raises(InvalidAnswer, match="sent something that is not a message: Parse error"):
            await client.list_tools()
    assert asked == 1


@pytest.mark.parametrize("bad", BAD_EVENTS)
async def test_an_event_that_cannot_be_read_does_not_end_the_standing_stream(bad: bytes) -> None:
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.method != "GET":
            await session(exchange)
            return
        streams += 1
        await exchange.stream()
        await asyncio.sleep(0.2)  # until somebody listens
        await exchange.raw(bad + sse('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'))
        await exchange.hang()

    async with http_server(handle) as url, Client(url, eras=["session"]) as client, client.listen() as changes:
        assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()
    assert streams == 1


@pytest.mark.parametrize("is_taken_again", [True, False])
async def test_who_listens_after_the_standing_stream_has_ended_has_it_opened_again(is_taken_again: bool) -> None:
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.method != "GET":
            await session(exchange)
            return
        streams += 1
        if streams > 1 and not is_taken_again:
            await exchange.respond(403)
            return
        await exchange.stream()
        await asyncio.sleep(0.2)  # until somebody listens
        if streams == 1:
            await exchange.raw(b"data: " + b"x" * 20_001)
        await exchange.raw(sse('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'))
        await exchange.hang()

    limits = ClientLimits(event_bytes=20_000)
    async with http_server(handle) as url, Client(url, eras=["session"], limits=limits) as client:
        with pytest.raises(ConnectionFailed, match="20000 bytes"):
            await asyncio.wait_for(anext(client.listen()), 30)
        if is_taken_again:
            async with client.listen() as changes, client.listen() as others:
                assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()
                assert await asyncio.wait_for(anext(others), 30) == ToolsChanged()
            assert streams == 2
        else:
            for _ in range(2):
                with pytest.raises(ConnectionFailed, match="20000 bytes"):
                    await asyncio.wait_for(client.listen().start(), 30)
            assert streams == 3


async def test_a_stream_that_is_taken_again_but_never_acknowledged_is_given_up() -> None:
    streams = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal streams
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
            return
        streams += 1
        if streams > 1:
            await exchange.hang()
        params = {"_meta": {SUBSCRIPTION: exchange.message["id"]}, "notifications": {}}
        message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        await exchange.stream(sse(json.dumps(message)))
        await asyncio.sleep(0.6)  # longer than a request may take: once it listens, it may be silent
        exchange.cut()

    async with http_server(handle) as url, Client(url, limits=IMPATIENT) as client, client.listen() as changes:
        with pytest.raises(RequestTimeout, match="did not confirm the subscription"):
            await asyncio.wait_for(anext(changes), 30)
    assert streams == 2


async def test_an_app_that_never_says_it_is_ready_does_not_hang() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ConnectionFailed, match="its startup did not end within"):
        await asyncio.wait_for(Client(app, limits=IMPATIENT).connect(), 30)
    assert others() == []


def discovering(lifespan: Any) -> Any:
    """An app that can be greeted."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        answer = reply(json.loads((await receive())["body"]), DISCOVERED)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer})

    return app


async def test_an_app_that_cannot_be_cancelled_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    is_over = asyncio.Event()

    async def lifespan(receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})
        while not is_over.is_set():
            try:
                await is_over.wait()
            except asyncio.CancelledError:
                continue

    client = Client(discovering(lifespan), limits=IMPATIENT)
    await client.connect()
    closing = asyncio.create_task(client.close())
    _, late = await asyncio.wait([closing], timeout=15)
    is_over.set()
    await closing
    assert not late
    assert "The application goes on although it was cancelled." in caplog.messages


async def test_one_who_gives_up_closing_has_ended_the_app_all_the_same() -> None:
    ended: list[str] = []

    async def lifespan(receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("lifespan")

    client = Client(discovering(lifespan))
    await client.connect()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.close()
    await asyncio.sleep(0)
    assert ended == ["lifespan"]
    await client.close()


async def test_an_app_whose_shutdown_fails_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def lifespan(receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        raise RuntimeError("broken")

    async with Client(discovering(lifespan)):
        assert caplog.messages == []
    assert caplog.messages == ["The lifespan of the application failed."]


# --- after a new start


class Restarted(FakePipe):
    """A server whose next run has lost a resource, or speaks another era."""

    def __init__(self) -> None:
        super().__init__(self.handle)
        self.missing = ""
        self.is_modern = False

    def handle(self, _: FakePipe, message: dict[str, Any]) -> None:
        method = message["method"]
        if method == "server/discover" and self.is_modern:
            self.answer(message, DISCOVERED)
        elif method == "subscriptions/listen":
            meta = {SUBSCRIPTION: message["id"]}
            for name in ("subscriptions/acknowledged", "tools/list_changed"):
                params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
                self.say({"method": f"notifications/{name}", "params": params})
        elif method == "initialize":
            self.answer(message, initialized())
        elif message.get("params", {}).get("uri") == self.missing or method == "server/discover":
            self.answer(message, error={"code": -32601, "message": "gone"})
        elif "id" in message:
            self.answer(message, {})


async def test_nobody_begins_to_listen_again_before_it_is_agreed_what_is_spoken() -> None:
    listened, greeted = asyncio.Event(), asyncio.Event()
    greeted.set()

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover" and greeted.is_set():
            pipe.answer(message, DISCOVERED)
        elif message["method"] == "subscriptions/listen":
            listened.set()
            params = {"_meta": {SUBSCRIPTION: message["id"]}, "notifications": {"toolsListChanged": True}}
            pipe.say({"method": "notifications/subscriptions/acknowledged", "params": params})

    server = FakePipe(handle)
    async with Client(server) as client, client.listen() as changes:
        greeted.clear()
        listened.clear()
        reconnecting = asyncio.create_task(client.reconnect())
        await asyncio.sleep(0.5)  # longer than the first pause before it is tried again
        assert not listened.is_set()
        server.answer(server.calls("server/discover")[-1], DISCOVERED)
        await reconnecting
        assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()


async def test_one_that_cannot_listen_again_does_not_silence_the_others() -> None:
    server = Restarted()
    uris = ["x://a", "x://b", "x://c"]
    async with Client(server) as client:
        listening = [client.listen(uris=[uri]) for uri in uris]
        for one in listening:
            await one.start()
        server.missing = "x://b"
        await client.reconnect()
        heard = (asyncio.wait_for(anext(one), 15) for one in listening)
        outcomes = await asyncio.gather(*heard, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StreamReopened, RemoteError, StreamReopened]


async def test_who_listens_goes_on_when_the_server_speaks_another_era() -> None:
    server = Restarted()
    async with Client(server) as client, client.listen(tools=True) as changes:
        assert client.era == "session"
        server.is_modern = True
        client._negotiator._memory.forget("here")  # else the era that was found first comes first
        await client.reconnect()
        assert client.era == "stateless"
        heard = [await asyncio.wait_for(anext(changes), 15) for _ in range(3)]
        assert ToolsChanged() in heard


# --- giving up


async def test_one_who_gives_up_to_listen_leaves_no_stream_open() -> None:
    server = FakePipe(lambda pipe, message: message["method"] == "server/discover" and pipe.answer(message, DISCOVERED))
    async with Client(server) as client:
        before = len(others())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), client.listen(tools=True):
                pass
        await asyncio.sleep(0.05)
        assert len(others()) == before
        assert len(server.calls("notifications/cancelled")) == 1


async def test_one_who_gives_up_to_close_leaves_nothing_open() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.respond(405)
        else:
            await (exchange.hang() if exchange.method == "DELETE" else session(exchange))

    async with http_server(handle) as url:
        client = Client(url, eras=["session"])
        await client.connect()
        wire = client.transport._wire  # there is no other way to see that it is closed
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert wire._session is None


# --- tools


async def test_a_call_that_was_done_does_not_fail_for_a_list_that_cannot_be_had() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "tools/list":
            exchange.cut()
        else:
            done = {"resultType": "complete", "content": [], "structuredContent": {"n": 1}}
            await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else done)

    async with http_server(handle) as url, Client(url) as client:
        assert (await client.call_tool("pay")).structured == {"n": 1}


async def test_tools_that_are_listed_no_more_are_forgotten() -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        tool = {"name": f"tool{len(pipe.heard)}", "inputSchema": {"type": "object"}}
        listed = {"resultType": "complete", "tools": [tool]}
        pipe.answer(message, DISCOVERED if message["method"] == "server/discover" else listed)

    async with Client(FakePipe(handle)) as client:
        lists = [await client.list_tools() for _ in range(5)]
        toolbox = client._toolbox  # what it keeps shows nowhere else
        assert [toolbox.knows(tools[0].name) for tools in lists] == [False] * 4 + [True]


# --- whose answers are whose


@pytest.mark.spec("CACHE-11")
def test_no_two_owners_ever_have_the_same_name() -> None:
    class Owner:
        __slots__ = ("__weakref__",)

    assert len({unique_name(Owner()) for _ in range(100)}) == 100  # although they are all in the same place
    assert len({unique_name([]) for _ in range(100)}) == 100
    owner = Owner()
    assert unique_name(owner) == unique_name(owner)
    token = authorization_partition(identify_login(unique_name(owner)))
    assert authorization_partition(identify_login(owner)) == authorization_partition(identify_login(owner)) != token
    assert identify_login(None) == {}
