"""What a client owes any server, and what it does not let a server talk it into."""

import asyncio
import json
import sys
from typing import Any

import pytest

from support.fakes import DISCOVERED, LEGACY, Exchange, FakePipe, http_server, initialized, sse
from weft import Client, ConnectionFailed, RemoteError
from weft.client.callbacks import pause
from weft.errors import UsageError
from weft.types.base import Implementation

TEXT = {"content": [{"type": "text", "text": "done"}]}
FORM = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}
META = "io.modelcontextprotocol/"


def serve(answers: Any = None, *, version: str | None = None, discovered: dict[str, Any] | None = None) -> FakePipe:
    """A server of the stateless era, or of a revision before it; what is called is answered by a function."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "server/discover" if version is None:
                pipe.answer(message, discovered or DISCOVERED)
            case "server/discover":
                pipe.answer(message, error={"code": -32601, "message": "Method not found"})
            case "initialize":
                pipe.answer(message, initialized(version or LEGACY))
            case _ if "id" in message and "method" in message:
                pipe.answer(message, TEXT) if answers is None else answers(pipe, message)

    return FakePipe(handle)


# --- codes and kinds


@pytest.mark.spec("JRPC-16")
@pytest.mark.parametrize("code", [-32000, -32001, -32003, -32004, -32019])
async def test_codes_of_nobody_mean_nothing(code: int) -> None:
    error = {"code": code, "message": "whatever", "data": {"uri": "x://y", "retry": True}}
    server = serve(lambda pipe, message: pipe.answer(message, error=error))
    async with Client(server) as client:
        with pytest.raises(RemoteError) as caught:
            await client.read_resource("x://y")
        assert not caught.value.not_found
        assert (caught.value.code, caught.value.message, caught.value.data) == (code, "whatever", error["data"])
    assert len(server.calls("resources/read")) == 1


@pytest.mark.spec("JRPC-14", "JRPC-15", "JRPC-17", "JRPC-18", "JRPC-21")
async def test_a_client_answers_with_codes_that_are_its_own_to_use() -> None:
    def fail(_: Any) -> None:
        raise OSError("disk full")

    asked = [
        ("no/such", {}),
        ("roots/list", {}),
        ("sampling/createMessage", {"messages": "none"}),
        ("sampling/createMessage", SAMPLING),
        ("elicitation/create", {"message": "?", "requestedSchema": FORM}),
    ]

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        for number, (method, params) in enumerate(asked):
            pipe.say({"id": f"q{number}", "method": method, "params": params})
        asyncio.get_running_loop().call_later(0.2, pipe.answer, message, TEXT)

    server = serve(answer, version=LEGACY)
    async with Client(server, elicit=fail, sample=lambda _: None) as client:
        await client.call_tool("t")
    codes = {message["id"]: message["error"]["code"] for message in server.heard if "error" in message}
    assert codes == {"q0": -32601, "q1": -32601, "q2": -32602, "q3": -1, "q4": -32603}


@pytest.mark.spec("JRPC-10")
async def test_a_kind_of_result_that_belongs_to_an_extension_nobody_declared_is_none() -> None:
    server = serve(lambda pipe, message: pipe.answer(message, {"resultType": "poem", "poemId": "1", "content": []}))
    async with Client(server) as client:
        with pytest.raises(Exception, match="unknown resultType 'poem'"):
            await client.call_tool("t")


@pytest.mark.spec("JRPC-01")
@pytest.mark.parametrize("version", [None, LEGACY])
async def test_requests_answers_and_notifications_go_both_ways(version: str | None) -> None:
    heard: list[str] = []

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.say({"method": "notifications/tools/list_changed"})
        pipe.answer(message, TEXT)

    server = serve(answer, version=version)
    async with Client(server, on_notification=lambda method, _: heard.append(method)) as client:
        assert (await client.call_tool("t")).text == "done"
        await client.notify("notifications/example")
    assert heard == ["notifications/tools/list_changed"]
    assert server.calls("notifications/example")
    assert all(message["jsonrpc"] == "2.0" for message in server.heard)


# --- what does not steer


@pytest.mark.spec("META-08")
async def test_who_a_server_says_it_is_changes_nothing() -> None:
    said: list[list[Any]] = []
    for info in ({"name": "weft", "version": "99"}, {"name": "🦀", "version": "0"}, {"name": 7}, None):
        meta = {} if info is None else {"_meta": {f"{META}serverInfo": info}}
        server = serve(discovered={key: value for key, value in DISCOVERED.items() if key != "_meta"} | meta)
        async with Client(server) as client:
            await client.call_tool("t", {"a": 1})
        said.append(server.heard)
    assert all(other == said[0] for other in said)


@pytest.mark.spec("TOOL-09")
async def test_the_hints_of_a_tool_are_not_believed() -> None:
    calls: list[Exchange] = []
    hints = {"readOnlyHint": True, "idempotentHint": True, "destructiveHint": False}
    tools = [{"name": "t", "inputSchema": {"type": "object"}, "annotations": hints}]

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "tools/call":
            calls.append(exchange)
            exchange.cut()
        else:
            await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else {"tools": tools})

    async with http_server(handle) as url, Client(url) as client:
        await client.list_tools()
        with pytest.raises(ConnectionFailed):
            await client.call_tool("t")
    assert len(calls) == 1  # a call is never made again on the word of its server that it does no harm


@pytest.mark.spec("CACHE-09")
async def test_what_has_gone_stale_is_fetched_when_it_is_asked_for_and_not_before() -> None:
    page = {"tools": [], "ttlMs": 30, "cacheScope": "public"}
    server = serve(lambda pipe, message: pipe.answer(message, page))
    async with Client(server) as client:
        await client.list_tools()
        await asyncio.sleep(0.3)
        assert len(server.calls("tools/list")) == 1
        await client.list_tools()
        assert len(server.calls("tools/list")) == 2


def test_pauses_grow_and_differ() -> None:
    assert len({pause(3) for _ in range(20)}) > 1
    assert max(pause(0) for _ in range(50)) < min(pause(4) for _ in range(50))
    assert max(pause(50) for _ in range(50)) < 40


@pytest.mark.security("D12")
def test_a_server_cannot_have_a_client_run_in_circles() -> None:
    assert pause(0, asked=0) >= 0.1
    assert pause(0, asked=500) == 0.5


@pytest.mark.security("D12")
@pytest.mark.spec("L11-17")
def test_a_server_cannot_have_a_client_stay_away_for_ever() -> None:
    assert pause(0, asked=120_000) == 120
    assert pause(7, asked=99_999_999_999) == 600


@pytest.mark.spec("JSCH-10")
async def test_a_schema_is_handed_on_as_it_came() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "here", "type": "object", "properties": {"street": {"type": "string"}}}},
        "properties": {"address": {"$ref": "#/$defs/address"}, "n": {"type": ["integer", "null"], "x-own": [1]}},
        "allOf": [{"anyOf": [{"required": ["n"]}, {"required": ["address"]}]}],
        "if": {"required": ["n"]},
        "then": {"properties": {"n": {"minimum": 0}}},
        "else": False,
        "additionalProperties": False,
    }
    tools = [{"name": "t", "inputSchema": schema, "outputSchema": schema}]
    async with Client(serve(lambda pipe, message: pipe.answer(message, {"tools": tools}))) as client:
        [tool] = await client.list_tools()
    assert json.dumps(tool.input_schema) == json.dumps(tool.output_schema) == json.dumps(schema)


# --- extensions


class Extended:
    """An authorization that is an extension; it has nothing to add to a request."""

    extension = "com.example/badge"

    async def headers(self, url: str, method: str) -> dict[str, str]:
        return {}

    async def refused(self, *_: Any) -> bool:
        return False


@pytest.mark.spec("VER-06", "VER-08")
async def test_an_extension_is_declared_with_every_request_and_its_absence_does_no_harm() -> None:
    seen: list[Exchange] = []
    theirs = {**DISCOVERED, "capabilities": {"tools": {}, "extensions": {"org.other/thing": {"depth": 3}}}}

    async def handle(exchange: Exchange) -> None:
        seen.append(exchange)
        await exchange.result(theirs if exchange.rpc == "server/discover" else TEXT)

    async with http_server(handle) as url, Client(url, auth=Extended()) as client:
        assert client.server_capabilities.extensions == {"org.other/thing": {"depth": 3}}
        assert (await client.call_tool("t")).text == "done"
    for exchange in seen:
        declared = exchange.message["params"]["_meta"][f"{META}clientCapabilities"]
        assert declared["extensions"] == {"com.example/badge": {}, f"{META}tasks": {}}


# --- the session era


@pytest.mark.spec("L11-06")
async def test_in_a_session_only_what_was_declared_is_used() -> None:
    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.say({"id": "q", "method": "roots/list"})
        asyncio.get_running_loop().call_later(0.05, pipe.answer, message, TEXT)

    for roots in (None, ["file:///"]):
        server = serve(answer, version=LEGACY)
        async with Client(server, roots=roots) as client:
            await client.roots_changed()
            await client.call_tool("t")
        declared = server.calls("initialize")[0]["params"]["capabilities"]
        [answered] = [message for message in server.heard if message.get("id") == "q"]
        is_there = roots is not None
        assert ("roots" in declared) == is_there
        assert ("result" in answered) == is_there
        assert bool(server.calls("notifications/roots/list_changed")) == is_there


@pytest.mark.spec("CAN-10", "CAN-11")
async def test_a_question_taken_back_is_dropped_and_whatever_else_is_taken_back_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def think(_: Any) -> None:
        await asyncio.sleep(10)

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.say({"id": "q", "method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}})
        for params in (
            {"requestId": "nobody"},
            {"requestId": None},
            {"requestId": [1]},
            {},
            {"requestId": message["id"]},
        ):
            pipe.say({"method": "notifications/cancelled", "params": params})
        pipe.say({"method": "notifications/cancelled"})
        loop = asyncio.get_running_loop()
        taken_back = {"requestId": "q", "reason": "the user has left"}
        loop.call_later(0.05, pipe.say, {"method": "notifications/cancelled", "params": taken_back})
        loop.call_later(0.1, pipe.answer, message, TEXT)

    server = serve(answer, version=LEGACY)
    with caplog.at_level("DEBUG", logger="weft.client"):
        async with Client(server, elicit=think) as client:
            assert (await client.call_tool("t")).text == "done"
    assert "the user has left" in caplog.text
    assert not [message for message in server.heard if message.get("id") == "q"]


@pytest.mark.spec("SAM-08")
async def test_a_model_is_given_the_messages_of_its_own_request_only() -> None:
    given: list[list[str]] = []

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        text = message["params"]["name"]
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        pipe.say({"id": text, "method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 5}})
        asyncio.get_running_loop().call_later(0.05, pipe.answer, message, TEXT)

    def sample(params: Any) -> str:
        given.append([message.content.text for message in params.messages])
        return "ok"

    async with Client(serve(answer, version=LEGACY), sample=sample) as client:
        await client.call_tool("one")
        await client.call_tool("two")
    assert given == [["one"], ["two"]]


@pytest.mark.spec("L03-02")
@pytest.mark.parametrize("version", ["2025-03-26", LEGACY])
async def test_nothing_is_ever_sent_in_an_array(version: str) -> None:
    seen: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        seen.append(exchange)
        if exchange.method != "POST":
            await exchange.respond(405)
        elif exchange.rpc == "server/discover":
            await exchange.respond(400)
        elif "id" not in exchange.message:
            await exchange.respond(202)
        else:
            await exchange.result(initialized(version) if exchange.rpc == "initialize" else TEXT)

    async with http_server(handle) as url, Client(url) as client:
        await asyncio.gather(*(client.call_tool("t") for _ in range(5)))
    posts = [exchange.body for exchange in seen if exchange.method == "POST"]
    assert all(body.startswith(b"{") for body in posts)
    assert len(posts) == 8


@pytest.mark.spec("HDR-11")
@pytest.mark.parametrize("spell", [str.upper, str.lower, str.title])
async def test_names_of_headers_are_read_however_they_are_written(spell: Any) -> None:
    sessions: list[str | None] = []

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover" or exchange.method != "POST":
            await exchange.respond(405)
            return
        sessions.append(exchange.headers.get("mcp-session-id"))
        body = b"" if "id" not in exchange.message else _answer(exchange)
        fields = {"Content-Type": "application/json", "Mcp-Session-Id": "s1", "Content-Length": str(len(body))}
        head = "".join(f"{spell(name)}: {value}\r\n" for name, value in fields.items())
        await exchange.raw(f"HTTP/1.1 {200 if body else 202} X\r\n{head}\r\n".encode() + body)

    async with http_server(handle) as url, Client(url) as client:
        assert (await client.call_tool("t")).text == "done"
    assert sessions == [None, "s1", "s1"]


def _answer(exchange: Exchange) -> bytes:
    result = initialized() if exchange.rpc == "initialize" else TEXT
    return json.dumps({"jsonrpc": "2.0", "id": exchange.message["id"], "result": result}).encode()


# --- older revisions


@pytest.mark.spec("L06-04", "L06-05", "L06-06", "L06-08", "L03-05", "L03-06", "L03-08", "L24-06")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_an_older_server_is_understood_and_asked_nothing_it_does_not_know(version: str) -> None:
    """It has no modes of elicitation, samples without tools, knows neither icons nor titles nor structured output."""
    form = {"message": "?", "requestedSchema": FORM}

    def answer(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "tools/list":
            pipe.answer(message, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
            return
        if version == "2025-06-18":
            pipe.say({"id": "form", "method": "elicitation/create", "params": form})
        pipe.say({"id": "turn", "method": "sampling/createMessage", "params": SAMPLING})
        asyncio.get_running_loop().call_later(0.1, pipe.answer, message, TEXT)

    server = serve(answer, version=version)
    info = Implementation("me", "1")
    async with Client(server, info=info, elicit=lambda _: {"n": 2}, sample=lambda _: "hello") as client:
        assert client.protocol_version == version
        [tool] = await client.list_tools()
        assert (tool.title, tool.icons, tool.output_schema, tool.annotations) == (None, None, None, None)
        result = await client.call_tool(tool.name)
        assert (result.text, result.structured) == ("done", None)
    answers = [message for message in server.heard if "result" in message]
    said = {message["id"]: message["result"] for message in answers}
    assert said["turn"]["content"] == {"type": "text", "text": "hello"}  # one block, no list of them
    assert said["turn"]["role"] == "assistant"
    if version == "2025-06-18":
        assert said["form"] == {"action": "accept", "content": {"n": 2}}
    assert server.calls("initialize")[0]["params"]["clientInfo"] == {"name": "me", "version": "1"}


# --- credentials


@pytest.mark.spec("STDIO-15")
async def test_a_child_has_its_credentials_from_its_environment_and_from_nothing_else(tmp_path: Any) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "import sys, json, os\n"
        "for line in sys.stdin:\n"
        "    message = json.loads(line)\n"
        "    if 'id' in message:\n"
        f"        result = {DISCOVERED!r} if message['method'] == 'server/discover' else \\\n"
        "            {'content': [{'type': 'text', 'text': os.environ.get('API_KEY', '')}]}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result}), flush=True)\n"
    )
    entry = {"command": sys.executable, "args": [str(program)], "env": {"API_KEY": "from the environment"}}
    async with Client(entry) as client:
        assert (await client.call_tool("t")).text == "from the environment"
    with pytest.raises(UsageError, match="environment"):
        Client(entry, auth=Extended())


# --- ids


@pytest.mark.parametrize("over", ["a pipe", "JSON", "a stream"])
@pytest.mark.parametrize("answer", [{"result": TEXT}, {"error": {"code": 5, "message": "no"}}])
async def test_an_id_that_comes_back_as_text_is_known(over: str, answer: dict[str, Any]) -> None:
    def said(message: dict[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": str(message["id"]), **answer}).encode()

    def pipe(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            pipe.say(said({"id": 12345}))  # nobody's
            pipe.say(said(message))
        else:
            pipe.answer(message, DISCOVERED)

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc != "tools/call":
            await exchange.result(DISCOVERED)
        elif over == "JSON":
            await exchange.respond(200, said(exchange.message))
        else:
            await exchange.stream(sse(said({"id": 12345})), sse(said(exchange.message)))
            await exchange.hang()

    async with http_server(handle) as url, Client(FakePipe(pipe) if over == "a pipe" else url) as client:
        call = asyncio.wait_for(client.call_tool("t"), 30)
        if "result" in answer:
            assert (await call).text == "done"
        else:
            with pytest.raises(RemoteError, match="no"):
                await call
