"""Servers that mean harm: each limit of a client is reached, passed by one, and the client is still there afterwards.

What is about one transport alone (bodies, packed bodies, lines, redirects) stands with that transport's tests too; here
every attack goes through `Client`, as a user would meet it.
"""

import asyncio
import gzip
import itertools
import json
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.fakes import DISCOVERED, LEGACY, Exchange, FakePipe, http_server, initialized, reply, sse
from weft import Client, ClientLimits, ConnectionFailed, Http, InvalidAnswer, RemoteError, RequestTimeout, WeftError
from weft.client.connection import transport as reading
from weft.client.requests import subscriptions
from weft.client.requests.cache import MemoryCacheStore, ResponseCache
from weft.jsonrpc import values_in
from weft.limits import DEFAULT_CLIENT_LIMITS

TEXT = {"content": [{"type": "text", "text": "done"}]}
MIB = 1024 * 1024


def hostile(call: Any) -> Any:
    """A server over HTTP that attacks with its answer to the tool "bad", and is kind otherwise."""

    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        elif exchange.rpc == "tools/call" and exchange.message["params"]["name"] != "good":
            await call(exchange)
        else:
            await exchange.result(TEXT)

    return handle


def others() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_the_defaults_are_those_that_were_promised() -> None:
    limits = DEFAULT_CLIENT_LIMITS
    assert (limits.request_seconds, limits.total_seconds) == (60, 600)
    assert (limits.message_bytes, limits.event_bytes, limits.pages) == (64 * MIB, 16 * MIB, 250)


# --- bodies and streams


async def endless_body(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n\r\n")
    exchange.is_stream = True
    while True:
        await exchange.raw(b" " * 65536)


async def bomb(exchange: Exchange) -> None:
    await exchange.respond(200, gzip.compress(b" " * 20 * MIB), content_encoding="gzip")


async def packed_stream(exchange: Exchange) -> None:
    body = gzip.compress(b"data: " + b"x" * 20 * MIB)
    await exchange.respond(200, body, "text/event-stream", content_encoding="gzip")


async def endless_event(exchange: Exchange) -> None:
    await exchange.stream()
    while True:
        await exchange.raw(b"data: " + b"x" * 65536 + b"\n")


async def endless_name(exchange: Exchange) -> None:
    await exchange.stream(b"event: ")
    while True:
        await exchange.raw(b"x" * 65536)


async def endless_refusal(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 500 X\r\ncontent-type: text/html\r\n\r\n")
    exchange.is_stream = True
    while True:
        await exchange.raw(b"x" * 65536)


async def endless_head(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 200 X\r\n")
    exchange.is_stream = True
    while True:
        await exchange.raw(b"x-y: " + b"x" * 65536 + b"\r\n")


@pytest.mark.security("D12")
@pytest.mark.parametrize(
    "attack", [endless_body, bomb, packed_stream, endless_event, endless_name, endless_refusal, endless_head]
)
async def test_what_never_ends_is_ended(attack: Any) -> None:
    limits = ClientLimits(message_bytes=MIB, event_bytes=MIB, request_seconds=20)
    async with http_server(hostile(attack)) as url, Client(url, limits=limits) as client:
        with pytest.raises((InvalidAnswer, ConnectionFailed)):
            await asyncio.wait_for(client.call_tool("bad"), 30)
        assert (await client.call_tool("good")).text == "done"


@pytest.mark.security("D12")
@pytest.mark.parametrize("over", ["http", "pipe"])
async def test_more_values_than_a_message_may_have(over: str) -> None:
    """64 MB of `[]` would be a gigabyte of lists, and seconds in which nothing else happens."""
    limits = ClientLimits(json_values=20_000)
    many = {"content": [], "structuredContent": [[]] * 2_000}

    async def call(exchange: Exchange) -> None:
        await exchange.result(many)

    def answer(pipe: FakePipe, request: dict[str, Any]) -> None:
        if request["method"] == "server/discover":
            pipe.say(reply(request, DISCOVERED))
        else:
            pipe.say(reply(request, many if request["params"]["name"] == "bad" else TEXT))

    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(http_server(hostile(call))) if over == "http" else FakePipe(answer)
        client = await stack.enter_async_context(Client(target, limits=limits))
        with pytest.raises(InvalidAnswer, match="at most 20000 values"):
            await client.call_tool("bad")
        assert (await client.call_tool("good")).text == "done"


@pytest.mark.security("D12")
@pytest.mark.parametrize("more", [0, 1])
async def test_one_byte_more_than_an_event_may_have(more: int) -> None:
    limits = ClientLimits(event_bytes=5000)

    async def call(exchange: Exchange) -> None:
        answer = reply(exchange.message, TEXT)
        padded = answer + b" " * (limits.event_bytes - len(answer) - len(b"data: ") + more)
        await exchange.stream(b"data: " + padded + b"\n\n")
        await exchange.hang()

    async with http_server(hostile(call)) as url, Client(url, limits=limits) as client:
        if more:
            with pytest.raises(InvalidAnswer, match="5000 bytes"):
                await client.call_tool("bad")
        else:
            assert (await client.call_tool("bad")).text == "done"


@pytest.mark.security("D12")
@pytest.mark.parametrize("kind", ["comments", "pings", "progress of nobody", "notifications", "wrong ids"])
async def test_talk_that_is_no_answer_does_not_stop_the_clock(kind: str) -> None:
    said = {
        "comments": b":\n\n",
        "pings": sse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})),
        "progress of nobody": sse(
            json.dumps(
                {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 2, "progress": 1}}
            )
        ),
        "notifications": sse(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})),
        "wrong ids": sse(reply({"id": 12345}, TEXT)),
    }[kind]

    async def call(exchange: Exchange) -> None:
        await exchange.stream()
        while True:
            await exchange.raw(said)
            await asyncio.sleep(0.01)

    limits = ClientLimits(request_seconds=0.5)
    async with http_server(hostile(call)) as url, Client(url, limits=limits) as client:
        with pytest.raises(RequestTimeout):
            await asyncio.wait_for(client.call_tool("bad"), 30)
        assert (await client.call_tool("good")).text == "done"


@pytest.mark.security("D12")
async def test_endless_progress_ends_at_the_hard_maximum() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.stream()
        for number in range(10_000):
            params = {"progressToken": exchange.message["params"]["_meta"]["progressToken"], "progress": number}
            await exchange.raw(
                sse(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
            )
            await asyncio.sleep(0.01)

    limits = ClientLimits(request_seconds=0.3, total_seconds=1.0)
    async with http_server(hostile(call)) as url, Client(url, limits=limits) as client:
        started = time.monotonic()
        with pytest.raises(RequestTimeout):
            await asyncio.wait_for(client.call_tool("bad", progress=lambda _: None), 30)
        assert time.monotonic() - started >= 0.9  # progress did count, up to the maximum


# --- answers that cannot be read


UNREADABLE = {
    "NaN": '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"a":NaN}}}',
    "NaN, the id last": '{"result":{"content":[],"structuredContent":{"a":NaN}},"jsonrpc":"2.0","id":ID}',
    "NaN, the version last": '{"result":{"content":[],"structuredContent":{"a":NaN}},"id":ID,"jsonrpc":"2.0"}',
    "half a character": '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\\ud800"}]}}',
    "a long number": '{"jsonrpc":"2.0","id":ID,"result":{"n":' + "9" * 2000 + "}}",
    "no version": '{"id":ID,"result":{"content":[]}}',
    "neither result nor error": '{"jsonrpc":"2.0","id":ID}',
    "a number as the id": '{"jsonrpc":"2.0","id":ID.0,"result":{"content":[]}}',
}


@pytest.mark.security("R1", "R6")
@pytest.mark.parametrize("over", ["a pipe", "a stream"])
@pytest.mark.parametrize("kind", UNREADABLE)
async def test_nobody_waits_on_after_an_answer_that_cannot_be_read(kind: str, over: str) -> None:
    def bad(message: dict[str, Any]) -> bytes:
        return UNREADABLE[kind].replace("ID", str(message["id"])).encode()

    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(bad(exchange.message)))
        await exchange.hang()

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        elif message["params"]["name"] == "bad":
            pipe.say(bad(message))
        else:
            pipe.answer(message, TEXT)

    async with http_server(hostile(call)) as url, Client(FakePipe(handle) if over == "a pipe" else url) as client:
        unreadable = r"sent (an answer that cannot be read|something that is not a message): "
        with pytest.raises(InvalidAnswer, match=unreadable):
            await asyncio.wait_for(client.call_tool("bad"), 30)
        assert (await client.call_tool("good")).text == "done"


NO_ANSWERS = [
    '{"level":"error","error":"no such file"}',
    '{"level":"error","error":{"message":"no such file"}}',
    '{"level":"info","id":ID,"text":"called"}',
    '{"id":ID,"method":"notifications/message","params":{}}',
    '{"jsonrpc":"2.0","id":ID,"method":5}',
    '{"method":"sampling/createMessage","params":{"n":NaN},"jsonrpc":"2.0","id":ID}',
    '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":NaN,"id":ID}}',
    '{"jsonrpc":"2.0","id":null,"result":{}}',
    '{"jsonrpc":"2.0","result":{}}',
    '{"jsonrpc":"2.0","id":12345,"result":NaN}',
    '{"jsonrpc":"2.0","result":NaN}',
    '[{"jsonrpc":"2.0","method":5}, 7]',
    "Listening: {id: ID}",
]


@pytest.mark.security("R1", "R6")
@pytest.mark.parametrize("over", ["a pipe", "a stream"])
@pytest.mark.parametrize("said", NO_ANSWERS)
async def test_what_is_no_answer_is_not_taken_for_one(said: str, over: str) -> None:
    def bad(message: dict[str, Any]) -> bytes:
        return said.replace("ID", str(message["id"])).encode()

    async def call(exchange: Exchange) -> None:
        await exchange.stream(sse(bad(exchange.message)), sse(reply(exchange.message, TEXT)))
        await exchange.hang()

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        else:
            pipe.say(bad(message))
            pipe.answer(message, TEXT)

    async with http_server(hostile(call)) as url, Client(FakePipe(handle) if over == "a pipe" else url) as client:
        assert (await asyncio.wait_for(client.call_tool("bad"), 30)).text == "done"


async def test_what_is_wrong_with_one_message_of_an_array_is_not_held_against_the_others() -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        answer = reply(message, DISCOVERED if message["method"] == "server/discover" else TEXT)
        pipe.say(b'[{"jsonrpc":"2.0","method":5},' + answer + b"]")

    async with Client(FakePipe(handle)) as client:
        assert (await asyncio.wait_for(client.call_tool("t"), 30)).text == "done"


@pytest.mark.spec("JRPC-06", "JRPC-12")
async def test_an_answer_has_a_result_or_an_error_and_not_both() -> None:
    error = {"code": 7, "message": "no"}
    answers = [{"result": TEXT, "error": error}, {"result": None, "error": error}, {"result": TEXT, "error": None}]

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        else:
            pipe.say({"id": message["id"], **answers.pop(0)})

    async with Client(FakePipe(handle)) as client:
        with pytest.raises(InvalidAnswer, match=r"^The server answered with both a result and an error\.$"):
            await client.call_tool("t")
        with pytest.raises(RemoteError, match="no"):  # some write what is not there as null
            await client.call_tool("t")
        assert (await client.call_tool("t")).text == "done"


# --- pages, redirects


@pytest.mark.security("D12")
@pytest.mark.parametrize("pages", [250, 251])
async def test_the_two_hundred_and_fifty_first_page(pages: int) -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        elif message["method"] == "tools/list":
            number = int(message["params"].get("cursor", 1))
            following = {"nextCursor": str(number + 1)} if number < pages else {}
            pipe.answer(message, {"tools": [{"name": f"t{number}", "inputSchema": {"type": "object"}}], **following})

    server = FakePipe(handle)
    async with Client(server) as client:
        if pages > 250:
            with pytest.raises(InvalidAnswer, match="250 pages"):
                await client.list_tools()
        else:
            assert len(await client.list_tools()) == 250
    assert len(server.calls("tools/list")) == 250


@pytest.mark.security("D12")
@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("kind", ["message_bytes", "json_values"])
async def test_all_pages_of_a_list_are_bound_as_one_message(kind: str, more: int) -> None:
    """250 pages of 64 MiB each would be allowed otherwise, and of any number of values."""
    filler = '"' + "d" * 1000 + '"' if kind == "message_bytes" else "[" + "[]," * 99 + "[]]"
    tool = '{"name":"t","inputSchema":{"type":"object","default":' + filler + "}}"
    page = '{"resultType":"complete","ttlMs":0,"cacheScope":"private","nextCursor":"%d","tools":[' + tool + "]}"
    last = '{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[' + tool + "]}"

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        elif message["method"] == "tools/list":
            number = int(message["params"].get("cursor", 1))
            result = page % (number + 1) if number < 5 else last
            pipe.say(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], result.encode()))

    wanted = [(page % 2).encode()] * 4 + [last.encode()]
    size = sum(map(len, wanted)) if kind == "message_bytes" else sum(map(values_in, wanted))
    server = FakePipe(handle)
    async with Client(server, limits=ClientLimits(**{kind: size - more})) as client:
        if more:
            with pytest.raises(
                InvalidAnswer, match=rf"The pages of tools/list .* {size - 1}.* `{kind}`.* page by page"
            ):
                await client.list_tools()
        else:
            assert len(await client.list_tools()) == 5
        assert (await client.list_tools_page()).tools[0].name == "t"


@pytest.mark.security("R11", "D12")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "where", ["another port", "another scheme", "a file", "a host with a name before it", "no URL"]
)
async def test_nobody_follows_to_another_origin(status: int, where: str) -> None:
    stolen: list[Exchange] = []

    async def thief(exchange: Exchange) -> None:
        stolen.append(exchange)
        await exchange.result(TEXT)

    async with http_server(thief) as other:

        async def call(exchange: Exchange) -> None:
            host = exchange.headers["host"]
            target = {
                "another port": other,
                "another scheme": f"https://{host}/mcp",
                "a file": "file:///etc/passwd",
                "a host with a name before it": f"http://{host}@{other.removeprefix('http://')}",
                "no URL": "http://[",
            }[where]
            await exchange.respond(status, location=target)

        async with (
            http_server(hostile(call)) as url,
            Client(Http(url, headers={"Authorization": "Bearer secret"})) as client,
        ):
            with pytest.raises(ConnectionFailed, match="sends you to"):
                await client.call_tool("bad")
            assert (await client.call_tool("good")).text == "done"
    assert stolen == []


@pytest.mark.security("D12")
@pytest.mark.parametrize("hops", [3, 4])
async def test_one_redirect_too_many(hops: int) -> None:
    async def handle(exchange: Exchange) -> None:
        number = int(exchange.path.rpartition("/")[2]) if exchange.path != "/mcp" else 0
        if number < hops:
            await exchange.respond(307, location=f"/hop/{number + 1}")
        else:
            await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else TEXT)

    async with http_server(handle) as url:
        if hops > DEFAULT_CLIENT_LIMITS.redirects:
            with pytest.raises(ConnectionFailed, match="again and again"):
                await Client(url).connect()
        else:
            async with Client(url) as client:
                assert (await client.call_tool("t")).text == "done"


# --- schemas


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"n": value}
    return value


SLOW: dict[str, tuple[dict[str, Any], Any]] = {
    "network": ({"$ref": "http://127.0.0.1:1/schema.json"}, 1),
    "network, of its own meta-schema": ({"$schema": "http://127.0.0.1:1/meta"}, 1),
    "network, by a base": ({"$id": "http://127.0.0.1:1/", "$ref": "other.json"}, 1),
    "itself, many times": ({"anyOf": [{"properties": {"n": {"$ref": "#"}}, "required": ["x"]}] * 8}, deep(30)),
    "pattern": ({"type": "string", "pattern": "^(a+)+(?!b)$"}, "a" * 40 + "!"),
    "nested": ({"allOf": [json.loads('{"allOf":[' * 50 + "{}" + "]}" * 50)]}, 1),
    "large": ({"enum": ["x" * 100] * 4000}, "y"),
}


@pytest.mark.security("D14")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {"$dynamicRef": "#here", "$dynamicAnchor": "here"},
    ],
)
async def test_a_schema_that_refers_to_nothing_but_itself_is_no_hang(schema: dict[str, Any]) -> None:
    """It says nothing; whether that is a fault is of no interest."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        tool = {"name": "t", "inputSchema": schema, "outputSchema": schema}
        results = {"server/discover": DISCOVERED, "tools/list": {"tools": [tool]}}
        pipe.answer(message, results.get(message["method"], {"content": [], "structuredContent": deep(20)}))

    async with Client(FakePipe(handle)) as client:
        with suppress(InvalidAnswer):
            await asyncio.wait_for(client.call_tool("t"), 30)
        assert [tool.input_schema for tool in await client.list_tools()] == [schema]


@pytest.mark.security("D14")
@pytest.mark.parametrize("name", SLOW)
async def test_a_schema_made_to_be_slow_or_to_reach_out(name: str) -> None:
    schema, value = SLOW[name]

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
        results = {"server/discover": DISCOVERED, "tools/list": {"tools": [tool]}}
        answer = {"content": [], "structuredContent": value}
        pipe.answer(message, results.get(message["method"], answer))

    async with Client(FakePipe(handle)) as client:
        with pytest.raises(InvalidAnswer):
            await asyncio.wait_for(client.call_tool("t"), 30)
    async with Client(FakePipe(handle), check_output=False) as client:
        assert (await client.call_tool("t")).structured == value


# --- the standalone stream, and questions without end


@pytest.mark.security("D12")
async def test_a_standing_stream_that_ends_at_once_every_time_is_not_run_after() -> None:
    gets = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal gets
        if exchange.method == "GET":
            gets += 1
            await exchange.stream(b"retry: 0\n\n")
        elif exchange.rpc == "server/discover":
            await exchange.respond(400)
        elif "id" in exchange.message:
            await exchange.result(initialized() if exchange.rpc == "initialize" else TEXT)
        else:
            await exchange.respond(202)

    async with http_server(handle) as url, Client(url) as client:
        await asyncio.sleep(0.5)
        assert (await client.call_tool("t")).text == "done"
    assert 1 <= gets <= 8
    assert others() == []


@pytest.mark.security("D12")
async def test_a_standing_stream_with_an_event_that_is_too_long_ends_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.stream(b"data: ")
            await asyncio.sleep(0.2)  # until somebody listens
            await exchange.raw(b"x" * 20_001)
            await exchange.hang()
        elif exchange.rpc == "server/discover":
            await exchange.respond(400)
        elif "id" in exchange.message:
            await exchange.result(initialized() if exchange.rpc == "initialize" else TEXT)
        else:
            await exchange.respond(202)

    limits = ClientLimits(event_bytes=20_000)
    async with http_server(handle) as url, Client(url, limits=limits) as client:
        with pytest.raises(ConnectionFailed, match="20000 bytes"):
            await asyncio.wait_for(anext(client.listen(tools=True)), 30)
        assert (await client.call_tool("t")).text == "done"
    assert "is not read any more" in caplog.text


# --- a child process


CHILD = """
import json, os, sys, threading, time

def say(message):
    sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\\n")
    sys.stdout.flush()

def talk():
    while True:
        TALK

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "server/discover":
        say({"id": message["id"], "error": {"code": -32601, "message": "?"}})
    elif message.get("method") == "initialize":
        say({"id": message["id"], "result": INITIALIZED})
        threading.Thread(target=talk, daemon=True).start()
    elif message.get("method") == "tools/call":
        say({"id": message["id"], "result": {"content": [{"type": "text", "text": "done"}]}})
""".replace("INITIALIZED", repr(initialized()))
TALK = {
    "garbage": "os.write(1, os.urandom(200).replace(b'{', b'(') + b'\\n'); time.sleep(0.002)",
    "empty lines": "os.write(1, b'\\n' * 1000); time.sleep(0.002)",
    "no messages": "os.write(1, b'{\"a\": [1, 2, 3]}\\n[]\\n7\\nnull\\n'); time.sleep(0.002)",
    "wrong ids": 'say({"id": 99999, "result": {}}); say({"id": None, "result": {}}); time.sleep(0.002)',
    "pings": 'say({"id": 1, "method": "ping"}); time.sleep(0.002)',
    "stderr": "os.write(2, b'x' * 65536)",
}


@pytest.mark.security("D11", "D12")
@pytest.mark.parametrize("kind", TALK)
async def test_a_child_that_never_stops_talking_is_still_spoken_to(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD.replace("TALK", TALK[kind]))
    async with Client([sys.executable, str(program)], limits=ClientLimits(close_seconds=1)) as client:
        assert client.protocol_version == LEGACY
        for _ in range(5):
            assert (await asyncio.wait_for(client.call_tool("t"), 30)).text == "done"
            await asyncio.sleep(0.05)
    assert others() == []


@pytest.mark.security("D11")
async def test_a_child_whose_line_never_ends_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD.replace("TALK", "os.write(1, b'x' * 65536)"))
    limits = ClientLimits(message_bytes=1_000_000, close_seconds=1)

    async def use() -> None:
        async with Client([sys.executable, str(program)], limits=limits) as client:
            for _ in range(100):
                await client.call_tool("t")
                await asyncio.sleep(0.02)

    with pytest.raises(WeftError, match="1,000,000 bytes"):
        await asyncio.wait_for(use(), 30)
    assert others() == []


# --- what a client keeps of what it is told


async def test_cookies_do_not_pile_up() -> None:
    """A proxy may set one to find its way back; a server that sets new ones with each answer is not believed."""
    sent: list[int] = []
    count = itertools.count()

    async def handle(exchange: Exchange) -> None:
        sent.append(len(exchange.headers.get("cookie", "").split(";")))
        cookies = "".join(f"set-cookie: c{next(count)}={'x' * 50}\r\n" for _ in range(40))
        result = DISCOVERED if exchange.rpc == "server/discover" else {"content": []}
        body = reply(exchange.message, result)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{cookies}content-length: {len(body)}\r\n\r\n"
        await exchange.raw(head.encode() + body)

    async with http_server(handle) as url, Client(url.replace("127.0.0.1", "localhost")) as client:
        for _ in range(30):
            await client.call_tool("t")
    assert max(sent[1:3]) > 1, "cookies are sent back"
    assert max(sent) <= 140


async def test_a_cookie_is_sent_back() -> None:
    sent: list[str] = []

    async def handle(exchange: Exchange) -> None:
        sent.append(exchange.headers.get("cookie", ""))
        await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else {"content": []}, set_cookie="way=b")

    async with http_server(handle) as url, Client(url.replace("127.0.0.1", "localhost")) as client:
        for _ in range(3):
            await client.call_tool("t")
    assert sent == ["", "way=b", "way=b", "way=b"]


async def test_changes_told_faster_than_a_store_takes_them_do_not_pile_up() -> None:
    """Each makes something stale in the store of the cache, which may be far away."""
    dropped = 0

    class Slow(MemoryCacheStore):
        async def drop(self, server: str, method: str, params: Any = None) -> None:
            nonlocal dropped
            dropped += 1
            await asyncio.sleep(0.05)
            await super().drop(server, method, params)

    most = 0

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
            return
        for number in range(5000):
            pipe.say({"method": "notifications/resources/updated", "params": {"uri": f"x://{number}"}})
        asyncio.get_running_loop().call_later(0.2, look)
        asyncio.get_running_loop().call_later(0.3, pipe.answer, message, {"content": []})

    def look() -> None:
        nonlocal most
        most = len(asyncio.all_tasks())

    async with Client(FakePipe(handle), cache=ResponseCache(Slow())) as client:
        await client.call_tool("t")
        assert most < 50
        assert 1 <= dropped < 50


# --- what comes faster than it is read


T = TypeVar("T")


async def longest_hold(work: Callable[[], Awaitable[T]], times: int = 3) -> tuple[T, float]:
    """What some work returns, and the longest time that the loop had nothing for others: as the processor counts it.

    It is done several times, and the best counts: what holds the loop holds it each time, and what takes the processor
    away from this machine does not.
    """
    held: list[float] = []
    for _ in range(times):
        longest, last = 0.0, time.thread_time()

        async def look() -> None:
            nonlocal longest, last
            while True:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest, last = max(longest, now - last), now

        watch = asyncio.create_task(look())
        try:
            result = await work()
        finally:
            watch.cancel()
        held.append(longest)
    return result, min(held)


MOST_HELD = 0.1  # seconds of the processor
FLOODS = {
    "comments": b":\n" * 400_000,
    "empty events": b"data:\n\n" * 120_000,
    "no messages": b"data: 7\n\n" * 40_000,
}


@pytest.mark.security("D12")
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_on_a_stream_leaves_others_their_turn(kind: str) -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.respond(200, FLOODS[kind] + sse(reply(exchange.message, TEXT)), "text/event-stream")

    async with http_server(hostile(call)) as url, Client(url) as client:
        await client.call_tool("good")
        result, held = await longest_hold(lambda: client.call_tool("bad"))
    assert result.text == "done"
    assert held < MOST_HELD


@pytest.mark.security("D12")
@pytest.mark.parametrize("kind", FLOODS)
async def test_so_it_is_on_the_stream_of_the_first_revision(kind: str) -> None:
    """Its answers come on one stream, whoever they are for."""
    sent: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.stream(sse("/post", event="endpoint"))
            while True:
                await exchange.raw(await sent.get())
        elif exchange.path != "/post":
            await exchange.respond(404)
        else:
            await exchange.respond(202)
            if exchange.rpc == "initialize":
                await sent.put(sse(reply(exchange.message, initialized("2024-11-05"))))
            elif exchange.rpc == "tools/call":
                await sent.put(FLOODS[kind] + sse(reply(exchange.message, TEXT)))

    async with http_server(handle) as url, Client(url) as client:
        assert client.protocol_version == "2024-11-05"
        result, held = await longest_hold(lambda: client.call_tool("bad"))
    assert result.text == "done"
    assert held < MOST_HELD


@pytest.mark.security("D12")
async def test_so_it_is_with_a_child_process(tmp_path: Path) -> None:
    program = tmp_path / "child.py"
    # Each write is small enough for a pipe to take it whole: an answer of the other thread cannot end up inside a line.
    flood = "[os.write(1, b'{}\\n' * 1000) for _ in range(40)]; time.sleep(60)"
    program.write_text(CHILD.replace("TALK", flood))
    async with Client([sys.executable, str(program)], limits=ClientLimits(close_seconds=1)) as client:
        result, held = await longest_hold(lambda: client.call_tool("t"), times=1)
    assert result.text == "done"
    assert held < MOST_HELD


@pytest.mark.security("D12")
@pytest.mark.parametrize("over", ["http", "a pipe"])
@pytest.mark.parametrize("more", [0, 1])
async def test_one_message_more_than_an_array_may_have(more: int, over: str) -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/x"},'
    many = note * (reading._MOST_MESSAGES - 1 + more)

    async def call(exchange: Exchange) -> None:
        await exchange.respond(200, b"[" + many + reply(exchange.message, TEXT) + b"]")

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message["method"] == "server/discover":
            pipe.answer(message, DISCOVERED)
        elif message["method"] == "tools/call":
            pipe.say(b"[" + many + reply(message, TEXT) + b"]")

    limits = ClientLimits(request_seconds=0.5)
    async with (
        http_server(hostile(call)) as url,
        Client(url if over == "http" else FakePipe(handle), limits=limits) as client,
    ):
        if not more:
            assert (await client.call_tool("bad")).text == "done"
        elif over == "http":
            with pytest.raises(InvalidAnswer, match="at most 1000 messages"):
                await client.call_tool("bad")
        else:  # nobody is named in what is not read
            with pytest.raises(RequestTimeout):
                await client.call_tool("bad")


@pytest.mark.security("D12")
@pytest.mark.parametrize("one", [b"1", b"{}", b"[]"])
async def test_an_array_of_what_is_no_message_does_not_hold_up_others(one: bytes) -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.respond(200, b"[" + (one + b",") * 400_000 + reply(exchange.message, TEXT) + b"]")

    async with http_server(hostile(call)) as url, Client(url) as client:

        async def refused() -> None:
            with pytest.raises(InvalidAnswer, match="array"):
                await client.call_tool("bad")

        await client.call_tool("good")
        _, held = await longest_hold(refused)
    assert held < 0.25


@pytest.mark.security("D12")
async def test_a_head_with_too_many_fields_is_refused_before_it_is_kept() -> None:
    async def call(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 X\r\n")
        exchange.is_stream = True
        for number in range(20_000):
            await exchange.raw(b"x-%d: %b\r\n" % (number, b"v" * 4000))
        told.append(number)

    told: list[int] = []
    async with http_server(hostile(call)) as url, Client(url) as client:
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(client.call_tool("bad"), 5)
        assert (await client.call_tool("good")).text == "done"
    assert told == []


@pytest.mark.security("D12")
@pytest.mark.parametrize("more", [0, 1])
async def test_a_change_of_a_resource_with_an_endless_uri_is_not_kept(more: int) -> None:
    """It may be below one that is listened to, and a thousand of them may wait to be read."""
    uri = "file:///a/".ljust(subscriptions._LONGEST_URI + more, "x")
    changes = [{"uri": uri}, {"uri": "file:///a/b"}]

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if message.get("method") == "server/discover":
            pipe.answer(message, error={"code": -32601, "message": "?"})
        elif message.get("method") == "initialize":
            pipe.answer(message, initialized())
        elif message.get("method") == "resources/subscribe":
            pipe.answer(message, {})
            for change in changes:
                pipe.say({"method": "notifications/resources/updated", "params": change})
        elif "id" in message:  # that it is over
            pipe.answer(message, {})

    async with Client(FakePipe(handle)) as client, client.listen(uris=["file:///a"]) as listening:
        first: Any = await asyncio.wait_for(anext(listening), 5)
    assert first.uri == ("file:///a/b" if more else uri)


@pytest.mark.security("D12")
def test_an_answer_with_too_many_values_is_not_decoded_to_find_its_id() -> None:
    answer = b'{"jsonrpc":"2.0","id":7,"result":[' + b"{}," * 500_000 + b"{}]}"
    broken = b'{"jsonrpc":"2.0","id":7,"result":[NaN,' + b"{}," * 500_000 + b"{}]}"
    tracemalloc.start()
    try:
        assert reading.read_invalid(answer) == (7, None)
        assert reading.read_invalid(broken) == (None, None)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
