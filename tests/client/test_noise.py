"""What a server can make a client write into its log: a few lines, however often it does something."""

import asyncio
import json
import logging
from typing import Any

import pytest

from support.fakes import DISCOVERED, Exchange, FakePipe, http_server, initialized, sse
from weft import Client, ClientLimits

TEXT = {"content": [{"type": "text", "text": "done"}]}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
MANY = 3000
MOST_LINES = 10  # the first, the 10th, the 100th, the 1000th, and a few of others


def noisy(said: Any, *, is_legacy: bool) -> FakePipe:
    """A server that says something many times before it answers a call."""

    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method == "server/discover" and not is_legacy:
            pipe.answer(message, DISCOVERED)
        elif method == "initialize":
            pipe.answer(message, initialized())
        elif method == "tools/call":
            for number in range(MANY):
                pipe.say(said(number))
            asyncio.get_running_loop().call_later(0.3, pipe.answer, message, TEXT)
        elif method is not None and "id" in message:
            pipe.answer(message, error={"code": -32601, "message": "?"})

    return FakePipe(handle)


def fail(*_: Any) -> Any:
    raise ValueError("the user's own function")


def ask(number: int) -> dict[str, Any]:
    return {"id": number, "method": "elicitation/create", "params": {"message": "?", "requestedSchema": FORM}}


def log(number: int) -> dict[str, Any]:
    return {"method": "notifications/message", "params": {"level": "error", "data": number}}


NOISES: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    "pings where there are none": (lambda number: {"id": number, "method": "ping"}, False, {}),
    "the same ping": (lambda number: {"id": 1, "method": "ping"}, True, {}),
    "requests without an end": (ask, True, {"elicit": lambda _: asyncio.sleep(60)}),
    "questions whose function fails": (ask, True, {"elicit": fail}),
    "questions answered wrongly": (ask, True, {"elicit": lambda _: 7}),
    "roots that are not there": (
        lambda number: {"id": number, "method": "roots/list"},
        True,
        {"roots": ["file:///not/there"]},
    ),
    "no messages": (lambda number: b'{"jsonrpc": "1.0"}', True, {}),
    "log messages for a function that fails": (log, True, {"on_log": fail}),
    "notifications for a function that fails": (log, True, {"on_notification": fail}),
}


@pytest.mark.parametrize("name", NOISES)
async def test_what_a_server_does_often_is_few_lines(name: str, caplog: pytest.LogCaptureFixture) -> None:
    said, is_legacy, options = NOISES[name]
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.WARNING, "weft.client")
    async with Client(noisy(said, is_legacy=is_legacy), **options) as client:
        await client.call_tool("t")
    assert 1 <= len(caplog.records) <= MOST_LINES, [record.getMessage() for record in caplog.records][:20]


@pytest.mark.parametrize(
    "line",
    [
        {"jsonrpc": "2.0", "id": 99, "result": {}},  # an answer to nothing
        {"jsonrpc": "1.0"},  # no message
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
    ],
)
async def test_so_it_is_on_a_stream(line: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        else:
            await exchange.stream(sse(json.dumps(line)) * MANY)
            await exchange.raw(sse(json.dumps({"jsonrpc": "2.0", "id": exchange.message["id"], "result": TEXT})))

    caplog.set_level(logging.WARNING, "weft.client")
    async with http_server(handle) as url, Client(url) as client:
        await client.call_tool("t")
    assert 1 <= len(caplog.records) <= MOST_LINES


async def test_answers_that_are_not_taken_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "initialize":
            await exchange.result(initialized())
        elif exchange.rpc == "notifications/initialized":
            await exchange.respond(202)
        elif exchange.rpc == "tools/call":
            pings = [sse(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"})) for number in range(200)]
            await exchange.stream(*pings)
            await asyncio.sleep(1)
            await exchange.raw(sse(json.dumps({"jsonrpc": "2.0", "id": exchange.message["id"], "result": TEXT})))
        elif exchange.method == "GET":
            await exchange.respond(405)
        else:
            await exchange.respond(500)

    caplog.set_level(logging.WARNING, "weft.client")
    async with http_server(handle) as url, Client(url, eras=["session"]) as client:
        await client.call_tool("t")
    assert 1 <= len(caplog.records) <= MOST_LINES


async def test_tools_that_are_left_out_are_told_of_once_and_not_all(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "x-mcp-header": "A"}}}
    tools = [{"name": f"tool {number}", "inputSchema": schema} for number in range(500)]

    async def handle(exchange: Exchange) -> None:
        await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else {"tools": tools})

    caplog.set_level(logging.WARNING, "weft.client")
    async with http_server(handle) as url, Client(url, limits=ClientLimits(), cache=False) as client:
        for _ in range(3):
            assert await client.list_tools() == []
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("The tool 'tool 0' is left out: ")
    assert len(lines) < 30
    assert len(set(lines)) == len(lines)
