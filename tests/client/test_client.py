"""The verbs of a client, and its life: lists, mirrored headers, what is kept, listening, closing, all targets."""

import asyncio
import json
from typing import Any

import pytest

from support import make_server
from support.fakes import DISCOVERED, Exchange, FakePipe, http_server, initialized, reply, sse
from weft import (
    Asgi,
    Client,
    ClientLimits,
    ConnectionFailed,
    InvalidAnswer,
    RemoteError,
    RequestTimeout,
    Server,
)
from weft.client import PromptsChanged, ResourceUpdated, StreamReopened, ToolsChanged
from weft.errors import UsageError
from weft.sync import Client as SyncClient

TEXT = {"content": [{"type": "text", "text": "done"}]}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


def answering(answers: Any) -> FakePipe:
    """A server of the stateless era in this process that answers by a function."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        elif "id" in message:
            answers(pipe, message)

    return FakePipe(handle)


def others() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


# --- lists


def paged(*cursors: str | None) -> FakePipe:
    """A list of as many pages, each with one tool, named by the cursor that led to it."""

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        cursor = message["params"].get("cursor")
        position = 0 if "cursor" not in message["params"] else cursors.index(cursor) + 1
        tool = {"name": f"tool {position}", "inputSchema": {"type": "object"}}
        following = {"nextCursor": cursors[position]} if position < len(cursors) else {}
        pipe.answer(message, {"tools": [tool], **following})

    return answering(answer)


LISTS = ["list_tools", "list_resources", "list_resource_templates", "list_prompts"]


@pytest.mark.parametrize("verb", LISTS)
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_list_that_the_server_does_not_know_is_empty(verb: str, is_sync: bool) -> None:
    """Servers declare `resources` and have no method for templates: that hides nothing else."""
    capabilities = {"tools": {}, "resources": {}, "prompts": {}}

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "initialize":
            await exchange.result({**initialized(), "capabilities": capabilities})
        elif "id" in exchange.message:
            await exchange.error(200, -32601)
        else:
            await exchange.respond(202)

    async with http_server(handle) as url:
        if is_sync:

            def listed() -> list[Any]:
                with SyncClient(url) as client:
                    return getattr(client, verb)()

            assert await asyncio.to_thread(listed) == []
            return
        async with Client(url) as client:
            assert await getattr(client, verb)() == []
            page = await getattr(client, f"{verb}_page")()
            assert page.next_cursor is None


@pytest.mark.parametrize("code", [-32602, -32603, -32000])
async def test_a_list_that_fails_in_another_way_is_an_error(code: int) -> None:
    server = answering(lambda pipe, message: pipe.answer(message, error={"code": code, "message": "no"}))
    async with Client(server) as client:
        with pytest.raises(RemoteError):
            await client.list_tools()


async def test_a_list_that_is_not_known_half_way_is_an_error() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "cursor" in message["params"]:
            pipe.answer(message, error={"code": -32601, "message": "no"})
        else:
            pipe.answer(message, {"tools": [], "nextCursor": "b"})

    async with Client(answering(answer)) as client:
        with pytest.raises(RemoteError, match="-32601"):
            await client.list_tools()


@pytest.mark.spec("PAG-01", "PAG-02", "PAG-03", "PRM-09")
async def test_all_pages_or_page_by_page() -> None:
    async with Client(paged("b", "", "0")) as client:
        assert [tool.name for tool in await client.list_tools()] == ["tool 0", "tool 1", "tool 2", "tool 3"]
        page = await client.list_tools_page()
        assert page.next_cursor == "b"
        page = await client.list_tools_page("b")
        assert (page.tools[0].name, page.next_cursor) == ("tool 1", "")
        assert (await client.list_tools_page("0")).next_cursor is None


@pytest.mark.security("D12")
async def test_pages_are_bounded() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        number = int(message["params"].get("cursor", 0))
        end = {} if name == "few" and number == 2 else {"nextCursor": str(number + 1)}
        pipe.answer(message, {"prompts": [], **end})

    limits = ClientLimits(pages=3)
    for name in ("few", "many"):
        server = answering(answer)
        async with Client(server, limits=limits) as client:
            if name == "few":
                assert await client.list_prompts() == []
            else:
                with pytest.raises(InvalidAnswer, match="3 pages"):
                    await client.list_prompts()
        assert len(server.calls("prompts/list")) == 3


@pytest.mark.spec("CACHE-14")
async def test_a_list_that_changes_half_way_is_fetched_again() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        asked = len(pipe.calls("resources/list"))
        if "cursor" not in message["params"]:
            more = {"nextCursor": "old"} if asked == 1 else {}
            pipe.answer(message, {"resources": [{"uri": f"x://{asked}", "name": "x"}], **more})
        else:
            pipe.answer(message, error={"code": -32602, "message": "Invalid cursor"})

    async with Client(answering(answer)) as client:
        assert [resource.uri for resource in await client.list_resources()] == ["x://3"]


# --- mirrored headers


def mirrored(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


REGION = {"type": "string", "x-mcp-header": "Region"}


class HeaderServer:
    """Has a tool whose argument goes into a header; refuses a call without it."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self.tools = tools
        self.calls: list[Exchange] = []
        self.lists = 0

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        elif exchange.rpc == "tools/list":
            self.lists += 1
            await exchange.result({"tools": self.tools, "ttlMs": 60000, "cacheScope": "public"})
        else:
            self.calls.append(exchange)
            wanted = exchange.message["params"]["arguments"].get("region")
            if wanted is not None and exchange.headers.get("mcp-param-region") != wanted:
                await exchange.error(400, -32020)
            else:
                await exchange.result(TEXT)


@pytest.mark.spec("HDR-14", "HDR-26", "HDR-27", "HDR-28", "HDR-34", "HDR-42", "HDR-43", "HDR-22", "HDR-20")
async def test_annotated_arguments_go_into_headers() -> None:
    tool = mirrored(
        "t",
        a={"type": "string", "x-mcp-header": "A"},
        n={"type": "integer", "x-mcp-header": "N"},
        b={"type": "boolean", "x-mcp-header": "B"},
        m={"type": "string", "x-mcp-header": "Method"},
        o={"type": "object", "properties": {"inner": {"type": "string", "x-mcp-header": "Inner"}}},
        plain={"type": "string"},
    )
    server = HeaderServer([tool])
    async with http_server(server) as url, Client(url) as client:
        await client.list_tools()
        await client.call_tool(
            "t", {"a": "gr\u00fcezi", "n": 42, "b": True, "m": "", "plain": "x", "o": {"inner": "i"}}
        )
        await client.call_tool("t", {"a": None, "m": "=?base64?eA==?="})
        with pytest.raises(UsageError, match="2\\^53"):
            await client.call_tool("t", {"n": 2**53})
    first, second = ({k: v for k, v in call.headers.items() if k.startswith("mcp-param")} for call in server.calls)
    assert first == {
        "mcp-param-a": "=?base64?Z3LDvGV6aQ==?=",
        "mcp-param-n": "42",
        "mcp-param-b": "true",
        "mcp-param-method": "",
        "mcp-param-inner": "i",
    }
    assert second == {"mcp-param-method": "=?base64?PT9iYXNlNjQ/ZUE9PT89?="}
    assert server.calls[0].headers["mcp-method"] == "tools/call"


@pytest.mark.spec("HDR-37")
async def test_a_call_whose_headers_were_not_known_is_made_again_once() -> None:
    server = HeaderServer([mirrored("t", region=REGION)])
    async with http_server(server) as url, Client(url) as client:
        assert (await client.call_tool("t", {"region": "eu"})).text == "done"
        assert (await client.call_tool("t", {"region": "us"})).text == "done"
        assert (server.lists, len(server.calls)) == (1, 3)
        server.tools = [mirrored("t", region={"type": "string", "x-mcp-header": "Elsewhere"})]
        await client._exchange.cache.drop("tools/list")
        await client.list_tools()
        with pytest.raises(RemoteError) as caught:
            await client.call_tool("t", {"region": "eu"})
        assert caught.value.code == -32020
        assert len(server.calls) == 5


@pytest.mark.spec("HDR-19", "HDR-23", "HDR-24")
@pytest.mark.parametrize(
    "kind",
    [{"type": "number"}, {"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {}],
)
async def test_a_tool_with_a_bad_annotation_is_left_out_with_a_warning(
    kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad = mirrored("bad", n={**kind, "x-mcp-header": "N"})
    server = HeaderServer([bad, mirrored("good", region=REGION)])
    async with http_server(server) as url, Client(url) as client:
        assert [tool.name for tool in await client.list_tools()] == ["good"]
        assert [tool.name for tool in (await client.list_tools_page()).tools] == ["good"]
    assert "'bad'" in caplog.text
    assert "integer, string or boolean" in caplog.text


@pytest.mark.spec("HDR-25")
async def test_where_there_are_no_headers_annotations_mean_nothing() -> None:
    bad = mirrored("bad", n={"type": "number", "x-mcp-header": "N"})
    async with Client(answering(lambda pipe, message: pipe.answer(message, {"tools": [bad]}))) as client:
        assert [tool.name for tool in await client.list_tools()] == ["bad"]


# --- what is kept


@pytest.mark.spec("CACHE-07", "CACHE-08", "CACHE-12", "CACHE-05")
async def test_answers_are_kept_while_they_are_fresh_and_nothing_is_heard() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        kept = {"ttlMs": 60_000, "cacheScope": "private"}
        pipe.answer(message, {"tools": [], "contents": [], **kept})

    server = answering(answer)
    async with Client(server) as client:
        for _ in range(3):
            await client.list_tools()
            await client.read_resource("x://a")
            await client.read_resource("x://b")
        assert len(server.heard) == 1 + 3
        server.say({"method": "notifications/tools/list_changed"})
        server.say({"method": "notifications/resources/updated", "params": {"uri": "x://a"}})
        await asyncio.sleep(0.02)
        await client.list_tools()
        await client.read_resource("x://a")
        await client.read_resource("x://b")
        assert len(server.heard) == 1 + 3 + 2
    async with Client(server, cache=False) as client:
        before = len(server.heard)
        await client.list_tools()
        await client.list_tools()
        assert len(server.heard) == before + 2


@pytest.mark.spec("MRTR-27", "CACHE-06")
async def test_what_hangs_on_answers_of_ours_is_not_kept() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        asked = {"resultType": "input_required", "inputRequests": {"k": {"method": "roots/list"}}, "ttlMs": 60_000}
        done = {"contents": [], "ttlMs": 60_000, "cacheScope": "public"}
        pipe.answer(message, done if "inputResponses" in message["params"] else asked)

    server = answering(answer)
    async with Client(server, roots=[]) as client:
        await client.read_resource("x://a")
        await client.read_resource("x://a")
    assert len(server.calls("resources/read")) == 4


@pytest.mark.spec("RES-08", "JRPC-20")
@pytest.mark.parametrize("code", [-32002, -32602])
async def test_a_resource_that_is_not_there_is_missing_by_either_code(code: int) -> None:
    error = {"code": code, "message": "Resource not found", "data": {"uri": "x://a"}}
    async with Client(answering(lambda pipe, message: pipe.answer(message, error=error))) as client:
        with pytest.raises(RemoteError, match="not found") as caught:
            await client.read_resource("x://a")
    assert (caught.value.code, caught.value.data) == (code, {"uri": "x://a"})
    assert caught.value.not_found
    assert caught.value.message == "Resource not found: x://a"


async def test_a_uri_that_the_server_repeats_is_not_told_twice() -> None:
    error = {"code": -32602, "message": "There is no x://a."}
    async with Client(answering(lambda pipe, message: pipe.answer(message, error=error))) as client:
        with pytest.raises(RemoteError, match=r"^There is no x://a\. \(-32602\)$"):
            await client.read_resource("x://a")


# --- listening


class Listened(FakePipe):
    """A server that listens: honours tools and one resource, whatever is wished for."""

    def __init__(self) -> None:
        super().__init__(self.handle)
        self.streams: list[dict[str, Any]] = []

    def handle(self, pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            self.answer(message, DISCOVERED)
        elif message["method"] == "subscriptions/listen":
            self.streams.append(message)
            honoured = {"toolsListChanged": True, "resourceSubscriptions": ["x://a"]}
            self.tell("subscriptions/acknowledged", notifications=honoured)

    def tell(self, name: str, **params: Any) -> None:
        meta = {SUBSCRIPTION: self.streams[-1]["id"]}
        self.say({"method": f"notifications/{name}", "params": {"_meta": meta, **params}})


@pytest.mark.spec("SUB-01", "SUB-06", "SUB-09", "SUB-10", "SUB-11", "STDIO-07")
async def test_changes_are_heard_by_whom_they_are_for() -> None:
    server = Listened()
    async with Client(server) as client:
        async with client.listen(tools=True) as first, client.listen(prompts=True, uris=["x://a"]) as second:
            assert [stream["params"]["notifications"] for stream in server.streams] == [
                {"toolsListChanged": True},
                {"promptsListChanged": True, "resourceSubscriptions": ["x://a"]},
            ]
            assert second.honoured is not None
            assert second.honoured.prompts_list_changed is None
            server.tell("prompts/list_changed")
            server.tell("tools/list_changed")  # not wished for
            server.tell("resources/updated", uri="x://a/b")
            assert await anext(second) == PromptsChanged()
            assert await anext(second) == ResourceUpdated("x://a/b")
            server.streams.reverse()
            server.tell("tools/list_changed")
            assert await anext(first) == ToolsChanged()
        await asyncio.sleep(0.02)
        cancelled = {message["params"]["requestId"] for message in server.calls("notifications/cancelled")}
        assert cancelled == {stream["id"] for stream in server.streams}


async def test_a_server_that_ends_a_stream_in_good_order_ends_the_iteration() -> None:
    server = Listened()
    async with Client(server) as client, client.listen(tools=True) as changes:
        server.tell("tools/list_changed")
        server.answer(server.streams[0], {"resultType": "complete", "_meta": {SUBSCRIPTION: server.streams[0]["id"]}})
        assert [change async for change in changes] == [ToolsChanged()]


async def test_changes_that_nobody_reads_are_bounded() -> None:
    server = Listened()
    async with Client(server, limits=ClientLimits(changes_kept=3)) as client, client.listen(tools=True) as changes:
        for _ in range(10):
            server.tell("tools/list_changed")
        server.answer(server.streams[0], {})
        assert len([change async for change in changes]) == 3


async def test_closing_the_client_ends_every_iteration() -> None:
    client = Client(Listened())
    await client.connect()
    changes = client.listen()
    waiting = asyncio.create_task(anext(changes, "over"))
    await asyncio.sleep(0.02)
    await client.close()
    assert await asyncio.wait_for(waiting, 15) == "over"
    assert others() == []


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_what_is_closed_before_it_began_never_begins(mode: Any) -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "id" in message:
            pipe.answer(message, DISCOVERED if message["method"] == "server/discover" else initialized())

    server = FakePipe(handle)
    async with Client(server, eras=[mode]) as client:
        changes = client.listen(tools=True, uris=["x://a"])
        greeted = len(server.heard)
        await changes.close()
        assert [change async for change in changes] == []
        await asyncio.sleep(0.01)  # for what may have been started beside
        assert len(server.heard) == greeted


async def test_what_changes_while_one_connects_again_is_not_kept() -> None:
    listed = {"tools": [{"name": "a", "inputSchema": {"type": "object"}}], "ttlMs": 60_000}

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "tools/list":
            pipe.answer(message, listed)
        elif message["method"] == "server/discover":
            pipe.say({"method": "notifications/tools/list_changed"})
            pipe.answer(message, DISCOVERED)

    server = FakePipe(handle)
    client = Client(server)
    for lists in (1, 2):
        async with client:
            await client.list_tools()
            await client.list_tools()
            assert len(server.calls("tools/list")) == lists


@pytest.mark.spec("SUB-15", "STDIO-14", "SUB-16", "HTTP-23")
async def test_a_stream_that_was_dropped_is_opened_again() -> None:
    streams: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
            return
        streams.append(exchange)
        meta = {SUBSCRIPTION: exchange.message["id"]}

        def told(name: str, **params: Any) -> bytes:
            message = {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": {"_meta": meta, **params}}
            return sse(json.dumps(message))

        await exchange.stream(told("subscriptions/acknowledged", notifications={"toolsListChanged": True}))
        if len(streams) == 1:
            exchange.cut()
        await exchange.raw(told("tools/list_changed"))
        await exchange.hang()

    async with http_server(handle) as url, Client(url) as client, client.listen(tools=True) as changes:
        assert await asyncio.wait_for(anext(changes), 30) == StreamReopened()
        assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()
    assert streams[0].message["id"] != streams[1].message["id"]


async def test_a_stream_that_stays_lost_is_reported() -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
            return
        params = {"_meta": {SUBSCRIPTION: exchange.message["id"]}, "notifications": {}}
        if not lost:
            message = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
            await exchange.stream(sse(json.dumps(message)))
        lost.append(True)
        exchange.cut()

    lost: list[bool] = []
    async with http_server(handle) as url, Client(url, limits=ClientLimits(resumptions=2)) as client:
        with pytest.raises(ConnectionFailed):
            async for _ in client.listen(tools=True):
                pass
    assert len(lost) >= 3


async def test_the_end_of_one_listener_leaves_another_its_resource() -> None:
    server = Server("notes")
    server.add_resource("note://a", "text", name="a")
    async with Client(server, eras=["session"]) as client, client.listen(uris=["note://a"]) as changes:
        async with client.listen(uris=["note://a"]):
            pass
        server.notify_resource_updated("note://a")
        assert await asyncio.wait_for(anext(changes), 5) == ResourceUpdated("note://a")


async def test_a_server_that_does_not_listen_says_so() -> None:
    refusal = {"code": -32601, "message": "Method not found"}
    async with Client(answering(lambda pipe, message: pipe.answer(message, error=refusal))) as client:
        with pytest.raises(RemoteError, match="Method not found"):
            await client.listen().start()
        assert len(others()) == 0


# --- verbs that hang on the era


async def test_the_log_level_goes_where_the_era_has_it() -> None:
    heard: list[Any] = []
    modern = answering(lambda pipe, message: pipe.answer(message, {"tools": []}))
    async with Client(modern, on_log=heard.append) as client:
        await client.set_log_level("warning")
        modern.say({"method": "notifications/message", "params": {"level": "error", "data": "ouch"}})
        await client.list_tools()
        with pytest.raises(UsageError, match="no ping"):
            await client.ping()
    assert modern.heard[-1]["params"]["_meta"]["io.modelcontextprotocol/logLevel"] == "warning"
    assert [message.data for message in heard] == ["ouch"]

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "id" in message:
            pipe.answer(message, initialized() if message["method"] == "initialize" else {})

    legacy = FakePipe(handle)
    async with Client(legacy, eras=["session"], log_level="info", roots=[]) as client:
        await client.ping()
        await client.set_log_level("error")
        await client.roots_changed()
    said = [(message["method"], message.get("params")) for message in legacy.heard[2:]]
    assert said == [
        ("logging/setLevel", {"level": "info"}),
        ("ping", {}),
        ("logging/setLevel", {"level": "error"}),
        ("notifications/roots/list_changed", None),
    ]


@pytest.mark.spec("CMP-05")
async def test_completion() -> None:
    server = answering(lambda pipe, message: pipe.answer(message, {"completion": {"values": ["Ada"], "hasMore": True}}))
    async with Client(server) as client:
        completion = await client.complete("name", "A", prompt="greet", arguments={"tone": "warm"})
        assert (completion.values, completion.has_more) == (["Ada"], True)
        await client.complete("id", "1", template="x://{id}")
        with pytest.raises(UsageError, match="either"):
            await client.complete("id", "1")
    first, second = (message["params"] for message in server.calls("completion/complete"))
    assert first["ref"] == {"type": "ref/prompt", "name": "greet"}
    assert first["context"] == {"arguments": {"tone": "warm"}}
    assert second["ref"] == {"type": "ref/resource", "uri": "x://{id}"}


# --- life


async def test_without_connecting_every_verb_says_what_to_do() -> None:
    client = Client(answering(None))
    for verb in (client.list_tools, client.list_prompts, client.ping, client.reconnect):
        with pytest.raises(UsageError, match="async with"):
            await verb()
    with pytest.raises(UsageError, match="async with"):
        await client.call_tool("t")
    with pytest.raises(UsageError, match="async with"):
        client.listen()
    with pytest.raises(UsageError, match="async with"):
        _ = client.server_info


async def test_another_task_may_close_and_what_waits_is_told() -> None:
    server = answering(lambda pipe, message: None)
    client = Client(server)
    await asyncio.create_task(client.connect())
    call = asyncio.create_task(client.call_tool("t"))
    await asyncio.sleep(0.02)
    await asyncio.create_task(client.close())
    with pytest.raises(ConnectionFailed, match="closed"):
        await asyncio.wait_for(call, 15)
    assert server.is_closed
    assert others() == []


async def test_another_task_may_close_over_http() -> None:
    async def handle(exchange: Exchange) -> None:
        await (exchange.result(DISCOVERED) if exchange.rpc == "server/discover" else exchange.hang())

    async with http_server(handle) as url:
        before = len(others())
        client = Client(url)
        await asyncio.create_task(client.connect())
        call = asyncio.create_task(client.call_tool("t"))
        await asyncio.sleep(0.05)
        await asyncio.create_task(client.close())
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(call, 15)
        assert len(others()) - before <= 2  # the server's own


async def test_a_client_can_be_connected_again() -> None:
    server = answering(lambda pipe, message: pipe.answer(message, {"tools": []}))
    client = Client(server)
    for _ in range(2):
        async with client:
            assert await client.list_tools() == []


async def test_a_callback_may_close_the_client() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        token = message["params"]["_meta"]["progressToken"]
        pipe.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})

    async with Client(answering(answer)) as client:

        async def close(_: Any) -> None:
            await client.close()

        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(client.call_tool("t", progress=close), 15)
    assert others() == []


async def test_a_failure_inside_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Client(answering(None)):
            _ = 1 / 0


# --- targets


@pytest.mark.parametrize("target", ["server", "asgi"])
async def test_a_server_in_this_process(target: str) -> None:
    server: Server = make_server()
    async with Client(server if target == "server" else server.asgi()) as client:
        assert client.server_info is not None
        assert client.server_info.name == "everything"
        assert (await client.call_tool("add", {"a": 2, "b": 3})).structured == 5
        steps: list[Any] = []
        result = await client.call_tool("steps", {"values": [1, 2, 3]}, progress=steps.append)
        assert ([step.progress for step in steps], result.text) == ([1, 2, 3], "done")
        with pytest.raises(RequestTimeout):
            await client.call_tool("wait", {"token": "w"}, timeout=0.1)
        assert (await client.read_resource("note://plain")).contents[0].text == "Hello"
        assert (await client.get_prompt("greet", {"name": "Ada"})).messages
        assert (await client.call_tool("fail", {"how": "tool"})).is_error
    assert others() == []


async def test_an_app_with_a_lifespan_is_started_and_stopped() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                kind = (await receive())["type"]
                seen.append(kind)
                await send({"type": f"{kind}.complete"})
            return
        body = json.loads((await receive())["body"])
        seen.append(f"{scope['method']} {scope['path']} {body['method']}")
        answer = reply(body, DISCOVERED)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer})

    async with Client(Asgi(app, path="/here")):
        pass
    assert seen == ["lifespan.startup", "POST /here server/discover", "lifespan.shutdown"]


async def test_an_app_that_fails_is_a_connection_that_failed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    with pytest.raises(ConnectionFailed, match="ended without a response"):
        await Client(app).connect()
    assert others() == []


@pytest.mark.security("R11")
@pytest.mark.parametrize("target", ["http://example.com/mcp", "ftp://x", 7, None, [], Client])
def test_targets_that_are_none(target: Any) -> None:
    with pytest.raises(UsageError):
        Client(target)


@pytest.mark.spec("L11-34")
@pytest.mark.mistake("a subscription that the server does not offer")
async def test_a_server_without_subscriptions_is_not_asked_for_one() -> None:
    server = Server("s")
    server.add_resource("x://a", "text")
    seen: list[str] = []

    @server.middleware
    async def watch(ctx: Any, next: Any) -> Any:
        seen.append(ctx.method)
        return await next()

    async with Client(server.asgi(sessions=False), eras=["session"]) as client:
        assert client.server_capabilities.resources is not None
        with pytest.raises(UsageError, match=r"did not declare `resources\.subscribe`.* Leave uris= out"):
            async with client.listen(uris=["x://a"]):
                pass
        async with client.listen(resources=True):
            pass
    assert "resources/subscribe" not in seen
    async with Client(server, eras=["session"]) as client, client.listen(uris=["x://a"]) as changes:
        server.notify_resource_updated("x://a")
        assert await anext(changes) == ResourceUpdated("x://a")
