"""Requirements of clients that tests of larger things only brush: each is shown to hold here, by itself."""

import asyncio
import json
from typing import Any

import pytest

from support.fakes import DISCOVERED, Exchange, FakePipe, http_server, initialized, reply, sse
from support.raw_sessions import eventually
from weft import Client
from weft.client import ResourceUpdated, ToolsChanged
from weft.errors import InvalidAnswer, RequestTimeout

META = "io.modelcontextprotocol/"
SUBSCRIPTION = f"{META}subscriptionId"
TEXT = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Web:
    """A server over HTTP that answers `tools/call` by a function and keeps what it was sent."""

    def __init__(self, call: Any = None, tools: list[dict[str, Any]] | None = None) -> None:
        self.seen: list[Exchange] = []
        self._call = call or (lambda exchange: exchange.result(TEXT))
        self._tools = tools or []

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        elif exchange.rpc == "tools/list":
            await exchange.result({"resultType": "complete", "tools": self._tools})
        elif "id" not in exchange.message:
            await exchange.respond(202)
        else:
            await self._call(exchange)


def piped(answers: Any, *, is_session: bool = False) -> FakePipe:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "server/discover" if not is_session:
                pipe.answer(message, DISCOVERED)
            case "initialize":
                pipe.answer(message, initialized())
            case "tools/call" | "subscriptions/listen" | "echo/say":
                answers(pipe, message)
            case _ if "id" in message and "method" in message:
                pipe.answer(message, error={"code": -32601, "message": "Method not found"})

    return FakePipe(handle)


# --- over HTTP


@pytest.mark.spec("HTTP-06", "HTTP-09")
async def test_each_of_many_messages_is_a_post_with_one_object() -> None:
    server = Web()
    async with http_server(server) as url, Client(url) as client:
        await asyncio.gather(*(client.call_tool("t", {"n": n}) for n in range(5)), client.notify("notifications/x"))
    assert {exchange.method for exchange in server.seen} == {"POST"}
    bodies = [json.loads(exchange.body) for exchange in server.seen]
    assert all(isinstance(body, dict) and body["jsonrpc"] == "2.0" and "method" in body for body in bodies)
    assert len([body for body in bodies if body["method"] == "tools/call"]) == 5
    assert len({body["id"] for body in bodies if "id" in body}) == len(bodies) - 1


@pytest.mark.spec("HTTP-07")
async def test_each_post_takes_both_forms_of_an_answer() -> None:
    server = Web()
    async with http_server(server) as url, Client(url) as client:
        await client.call_tool("t")
        await client.notify("notifications/x")
    accepted = [{part.strip() for part in exchange.headers["accept"].split(",")} for exchange in server.seen]
    assert accepted == [{"application/json", "text/event-stream"}] * 3


@pytest.mark.spec("HTTP-08")
async def test_each_post_says_its_version_and_its_method_in_headers() -> None:
    server = Web()
    async with http_server(server) as url, Client(url) as client:
        await client.call_tool("t")
        await client.list_tools()
        await client.notify("notifications/x")
    told = [(exchange.headers["mcp-protocol-version"], exchange.headers["mcp-method"]) for exchange in server.seen]
    methods = ["server/discover", "tools/call", "tools/list", "notifications/x"]
    assert told == [("2026-07-28", method) for method in methods]


@pytest.mark.spec("HTTP-10", "JRPC-24")
@pytest.mark.parametrize("question", ["roots/list", "ping", "elicitation/create"])
async def test_a_request_on_a_stream_gets_no_response_over_http(question: str) -> None:
    async def call(exchange: Exchange) -> None:
        asked = {"jsonrpc": "2.0", "id": 7, "method": question, "params": {"message": "?", "requestedSchema": FORM}}
        await exchange.stream(sse(json.dumps(asked)))
        await asyncio.sleep(0.1)
        await exchange.raw(sse(reply(exchange.message, TEXT)))

    server = Web(call)
    functions: dict[str, Any] = {"roots": ["file:///tmp"], "elicit": lambda question: {"n": 1}}
    async with http_server(server) as url, Client(url, **functions) as client:
        assert (await client.call_tool("t")).text == "done"
        await asyncio.sleep(0.05)
    sent = [json.loads(exchange.body) for exchange in server.seen]
    assert not [message for message in sent if "result" in message or "error" in message or "method" not in message]


@pytest.mark.spec("HDR-14")
async def test_an_annotated_argument_is_repeated_in_its_header() -> None:
    properties = {"region": {"type": "string", "x-mcp-header": "Region"}, "other": {"type": "string"}}
    server = Web(tools=[{"name": "t", "inputSchema": {"type": "object", "properties": properties}}])
    async with http_server(server) as url, Client(url) as client:
        await client.list_tools()
        await client.call_tool("t", {"region": "eu", "other": "x"})
    headers = server.seen[-1].headers
    assert {name: value for name, value in headers.items() if name.startswith("mcp-param")} == {
        "mcp-param-region": "eu"
    }


# --- on pipes


@pytest.mark.spec("STDIO-07", "SUB-09")
async def test_a_change_on_a_pipe_goes_to_the_subscription_that_it_names() -> None:
    streams: list[dict[str, Any]] = []

    def answers(pipe: FakePipe, message: dict[str, Any]) -> None:
        streams.append(message)
        honoured = {"_meta": {SUBSCRIPTION: message["id"]}, "notifications": message["params"]["notifications"]}
        pipe.say({"method": "notifications/subscriptions/acknowledged", "params": honoured})

    server = piped(answers)

    def tell(number: int, uri: str) -> None:
        params = {"_meta": {SUBSCRIPTION: streams[number]["id"]}, "uri": uri}
        server.say({"method": "notifications/resources/updated", "params": params})

    async with Client(server) as client:
        uris = ["x://a", "x://b"]  # both wish for both: only the id tells them apart
        async with client.listen(uris=uris) as first, client.listen(uris=uris) as second:
            tell(1, "x://a")
            tell(0, "x://b")
            assert await anext(first) == ResourceUpdated("x://b")
            assert await anext(second) == ResourceUpdated("x://a")
            assert not first._changes
            assert not second._changes
    assert ToolsChanged() != ResourceUpdated("x://a")


@pytest.mark.spec("STDIO-08", "CAN-02")
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_giving_up_on_a_pipe_is_a_notification_with_the_id(how: str) -> None:
    server = piped(lambda pipe, message: None)
    async with Client(server) as client:
        if how == "timeout":
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", timeout=0.05)
        else:
            task = asyncio.create_task(client.call_tool("t"))
            await eventually(lambda: server.calls("tools/call"))
            task.cancel()
            await asyncio.wait([task])
        await eventually(lambda: server.calls("notifications/cancelled"))
    [call], [cancelled] = server.calls("tools/call"), server.calls("notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert type(cancelled["params"]["requestId"]) is type(call["id"])
    assert "id" not in cancelled


@pytest.mark.spec("CAN-04")
async def test_nothing_is_cancelled_that_was_answered_or_never_sent() -> None:
    server = piped(lambda pipe, message: pipe.answer(message, TEXT))
    async with Client(server) as client:
        for _ in range(3):
            task = asyncio.create_task(client.call_tool("t"))
            await task
            task.cancel()  # too late: it is answered
        unsent = asyncio.create_task(client.call_tool("t"))
        unsent.cancel()  # before it has begun
        await asyncio.wait([unsent])
        await asyncio.sleep(0.05)
    sent = {message["id"] for message in server.calls("tools/call")}
    cancelled = {message["params"]["requestId"] for message in server.calls("notifications/cancelled")}
    assert len(sent) == 3
    assert cancelled == set()


# --- rounds


def asking(state: str | None = None, *keys: str) -> dict[str, Any]:
    asked = {key: {"method": "elicitation/create", "params": {"message": key, "requestedSchema": FORM}} for key in keys}
    more = {} if state is None else {"requestState": state}
    return {"resultType": "input_required", **({"inputRequests": asked} if keys else {}), **more}


async def rounds(*answers: dict[str, Any], elicit: Any = lambda question: {"n": 1}) -> list[dict[str, Any]]:
    """The calls that a client makes of a server which answers so."""
    left = [*answers, TEXT]
    server = piped(lambda pipe, message: pipe.answer(message, left.pop(0)))
    async with Client(server, elicit=elicit) as client:
        assert (await client.call_tool("t", {"a": 1})).text == "done"
    return server.calls("tools/call")


@pytest.mark.spec("MRTR-17")
async def test_all_answers_are_there_before_the_next_round() -> None:
    order: list[str] = []

    async def slowly(question: Any) -> dict[str, int]:
        await asyncio.sleep(0.02 if question.message == "k0" else 0.05)
        order.append(question.message)
        return {"n": len(order)}

    first, second = await rounds(asking("s", "k0", "k1"), elicit=slowly)
    assert order == ["k0", "k1"]
    assert second["params"]["inputResponses"].keys() == {"k0", "k1"}
    assert "inputResponses" not in first["params"]
    _, at_once = await rounds(asking("s"))
    assert "inputResponses" not in at_once["params"]


@pytest.mark.spec("MRTR-18")
@pytest.mark.parametrize("state", ["", " a ", '{"json": [1, 2.0]}', 'op\u00e1que \u2028 \\ " + /==', "x" * 10_000])
async def test_state_comes_back_as_it_was(state: str) -> None:
    _, second = await rounds(asking(state, "k0"))
    assert second["params"]["requestState"] == state


@pytest.mark.spec("MRTR-19")
async def test_no_state_comes_back_where_none_was_given() -> None:
    first, second, third = await rounds(asking("old", "k0"), asking(None, "k1"))
    assert "requestState" not in first["params"]
    assert second["params"]["requestState"] == "old"
    assert "requestState" not in third["params"]


@pytest.mark.spec("MRTR-20")
async def test_each_round_has_an_id_to_itself() -> None:
    calls = await rounds(asking("a", "k0"), asking("b", "k0"), asking("c"))
    assert len({call["id"] for call in calls}) == 4


# --- what is declared


@pytest.mark.spec("SAM-01")
@pytest.mark.parametrize(
    ("functions", "declared"),
    [
        ({}, None),
        ({"sample": lambda question: "hi"}, {}),
        ({"sample_with_tools": lambda question: "hi"}, {"tools": {}}),
        ({"sample": lambda question: "hi", "sample_with_tools": lambda question: "hi"}, {"tools": {}}),
    ],
)
@pytest.mark.parametrize("is_session", [False, True])
async def test_sampling_is_declared_with_each_request_or_in_the_handshake(
    functions: Any, declared: Any, is_session: bool
) -> None:
    server = piped(lambda pipe, message: pipe.answer(message, TEXT), is_session=is_session)
    async with Client(server, eras=["session" if is_session else "stateless"], **functions) as client:
        await client.call_tool("t")
        await client.call_tool("t")
    if is_session:
        [handshake] = server.calls("initialize")
        told = [handshake["params"]["capabilities"]]
    else:
        told = [call["params"]["_meta"][f"{META}clientCapabilities"] for call in server.calls("tools/call")]
        assert len(told) == 2
    assert [one.get("sampling") for one in told] == [declared] * len(told)


# --- extensions that Weft does not have (yet), and what a client of it owes them all the same


@pytest.mark.spec("APP-01")
@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_host_of_apps_declares_what_it_shows(mode: Any) -> None:
    server = piped(lambda pipe, message: pipe.answer(message, TEXT), is_session=mode == "session")
    settings = {"mimeTypes": ["text/html;profile=mcp-app"]}
    async with Client(server, eras=[mode], extensions={f"{META}ui": settings}) as client:
        await client.call_tool("t")
    if mode == "session":
        told = server.calls("initialize")[0]["params"]["capabilities"]
    else:
        told = server.calls("tools/call")[0]["params"]["_meta"][f"{META}clientCapabilities"]
    assert told["extensions"][f"{META}ui"] == settings


@pytest.mark.spec("TASK-04")
@pytest.mark.parametrize(
    "request_it",
    [
        lambda client: client.read_resource("a://b"),
        lambda client: client.get_prompt("p"),
        lambda client: client.complete("a", "b", prompt="p"),
        lambda client: client.request("com.example/do"),
    ],
)
async def test_a_task_as_answer_to_anything_but_a_call_of_a_tool_is_no_answer(request_it: Any) -> None:
    task = {
        "resultType": "task",
        "taskId": "1",
        "status": "working",
        "createdAt": "2026-11-19T00:00:00Z",
        "lastUpdatedAt": "2026-11-19T00:00:00Z",
        "ttlMs": None,
    }

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.answer(message, DISCOVERED if message["method"] == "server/discover" else task)

    async with Client(FakePipe(answer)) as client:
        with pytest.raises(InvalidAnswer):
            await request_it(client)


@pytest.mark.spec("TASK-28")
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_the_id_of_a_task_is_repeated_in_the_header(method: str) -> None:
    server = Web(lambda exchange: exchange.result({"resultType": "complete"}))
    async with http_server(server) as url, Client(url) as client:
        await client.request(method, {"taskId": "t-1"})
    assert server.seen[-1].headers["mcp-name"] == "t-1"


# --- icons


@pytest.mark.spec("ICON-03", "ICON-04")
@pytest.mark.parametrize("scheme", ["http", "https", "javascript", "file", "ws", "data"])
async def test_an_icon_is_data_and_nothing_is_fetched_for_it(scheme: str) -> None:
    """A client of Weft draws nothing: it hands an icon on as it came, and goes nowhere because of it."""
    visits: list[str] = []

    async def bait(exchange: Exchange) -> None:
        visits.append(exchange.path)
        await exchange.respond(200)

    async with http_server(bait) as place:
        source = place if scheme == "http" else f"{scheme}:{place.removeprefix('http:')}"
        icons = [{"src": source, "mimeType": "image/svg+xml", "sizes": ["any"], "theme": "dark"}]
        server = Web(tools=[{"name": "t", "inputSchema": {"type": "object"}, "icons": icons}])
        async with http_server(server) as url, Client(url) as client:
            [tool] = await client.list_tools()
            await client.call_tool("t")
        await asyncio.sleep(0.05)
    assert tool.icons is not None
    assert (tool.icons[0].src, tool.icons[0].theme) == (source, "dark")
    assert visits == []
