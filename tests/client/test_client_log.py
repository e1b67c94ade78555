"""The log of a client: a line for each call with INFO, the wire with DEBUG, and no secret in either."""

import asyncio
import logging
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from support.fakes import DISCOVERED, Exchange, FakePipe, http_server, initialized, sse
from weft import Client, ClientLimits, ConnectionFailed, Http, RemoteError, RequestTimeout, Server
from weft.auth import BearerToken
from weft.client.connection import connection as link_module

TEXT = {"content": [{"type": "text", "text": "done"}]}
SECRET = "s3cr3t-value-that-nobody-reads"
LINE = re.compile(r"(\S+) (\S+) (stateless|session) (\S+) (\d+\.\d) ms")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    """The calls in the log: method, name, era, status."""
    found = [LINE.fullmatch(record.getMessage()) for record in caplog.records if record.name == "weft.client"]
    return [one.groups()[:4] for one in found if one is not None]


def wire(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "weft.client.wire"]


async def answer(exchange: Exchange) -> None:
    name = exchange.message.get("params", {}).get("name")
    if exchange.rpc == "server/discover":
        await exchange.result(DISCOVERED, set_cookie=f"id={SECRET}")
    elif name == "wrong":
        await exchange.error(200, -32602)
    elif name == "gone":
        await exchange.respond(500, b"oops " + SECRET.encode())
    elif name == "late":
        await exchange.hang()
    elif name == "lost":
        exchange.cut()
    elif name == "stream":
        await exchange.stream(sse(f'{{"jsonrpc":"2.0","id":{exchange.message["id"]},"result":{{"content":[]}}}}'))
    elif "id" in exchange.message:
        await exchange.result({**TEXT, "contents": [], "_meta": {"access_token": SECRET}})
    else:
        await exchange.respond(202)


async def test_a_line_for_each_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "weft.client")
    async with http_server(answer) as url, Client(url, auth=BearerToken(SECRET)) as client:
        await client.call_tool("add", {"a": SECRET})
        await client.call_tool("stream")
        await client.read_resource("file:///a?key=" + SECRET)
        for name, error in [("wrong", RemoteError), ("gone", ConnectionFailed), ("lost", ConnectionFailed)]:
            with pytest.raises(error):
                await client.call_tool(name)
        with pytest.raises(RequestTimeout):
            await client.call_tool("late", timeout=0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("late"), 0.1)
    assert lines(caplog) == [
        ("server/discover", "-", "stateless", "200"),
        ("tools/call", "add", "stateless", "200"),
        ("tools/call", "stream", "stateless", "200"),
        ("resources/read", "file:///a?***", "stateless", "200"),
        ("tools/call", "wrong", "stateless", "-32602"),
        ("tools/call", "gone", "stateless", "500"),
        ("tools/call", "lost", "stateless", "lost"),
        ("tools/call", "late", "stateless", "timeout"),
        ("tools/call", "late", "stateless", "cancelled"),
    ]
    assert SECRET not in caplog.text
    assert wire(caplog) == []


async def test_the_era_is_the_one_that_is_spoken_and_a_pipe_has_no_status(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("local")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    caplog.set_level(logging.INFO, "weft.client")
    async with Client(server, eras=["session"]) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    assert lines(caplog) == [("initialize", "-", "session", "ok"), ("tools/call", "add", "session", "ok")]


async def test_the_wire_is_shown_and_its_secrets_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "weft.client")
    headers = {"X-Api-Key": SECRET, "Cookie": f"a={SECRET}"}
    async with (
        http_server(answer) as url,
        Client(Http(f"{url}?key={SECRET}", headers=headers, auth=BearerToken(SECRET))) as client,
    ):
        await client.call_tool("add", {"password": SECRET, "plain": "shown"})
        await client.call_tool("stream")
        await client.notify("notifications/mine", {"token": SECRET})
    shown = wire(caplog)
    assert any(line.startswith("> POST http://127.0.0.1") and '"method":"tools/call"' in line for line in shown)
    assert any('"plain":"shown"' in line for line in shown)
    assert any(line.startswith("< 200 [") for line in shown)
    assert any(line.startswith("< {") and '"text":"done"' in line for line in shown)
    assert any(line.startswith("> POST") and "notifications/mine" in line for line in shown)
    assert SECRET not in caplog.text
    assert "X-Api-Key: ***" in caplog.text


async def test_the_body_of_a_refusal_is_on_the_wire(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(403, b'{"detail": "no entry", "token": "%s"}' % SECRET.encode())

    caplog.set_level(logging.DEBUG, "weft.client")
    async with http_server(refuse) as url:
        with pytest.raises(ConnectionFailed):
            await Client(url).connect()
    assert '< {"detail":"no entry","token":"***"}' in wire(caplog)


async def test_lines_of_a_pipe_are_shown_in_both_directions(caplog: pytest.LogCaptureFixture) -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        if "id" in message:
            pipe.answer(message, initialized() if message["method"] == "initialize" else {**TEXT, "secret": SECRET})

    caplog.set_level(logging.DEBUG, "weft.client")
    async with Client(FakePipe(handle), eras=["session"]) as client:
        await client.call_tool("add", {"token": SECRET})
    shown = wire(caplog)
    assert any(line.startswith("> {") and '"method":"tools/call"' in line for line in shown)
    assert any(line.startswith("< {") and '"text":"done"' in line for line in shown)
    assert SECRET not in caplog.text


async def test_lines_of_a_child_process_are_shown(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        textwrap.dedent(
            """
            from weft import Server
            server = Server("child")

            @server.tool
            def add(a: int, b: int) -> int:
                return a + b

            server.run("stdio")
            """
        )
    )
    caplog.set_level(logging.DEBUG, "weft.client")
    async with Client([sys.executable, str(program)]) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    assert ("tools/call", "add", "stateless", "ok") in lines(caplog)
    assert any(line.startswith("> {") and '"method":"tools/call"' in line for line in wire(caplog))


async def test_a_log_that_is_off_costs_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put together for a log that nobody reads."""
    asked: list[int] = []

    class Counting(logging.Logger):
        def isEnabledFor(self, level: int) -> bool:
            asked.append(level)
            return False

    monkeypatch.setattr(link_module, "log", Counting("weft.client"))
    monkeypatch.setattr(link_module, "call_line", None)  # a call of it would fail
    server = Server("local")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    async with Client(server, limits=ClientLimits()) as client:
        await client.call_tool("add", {"a": 1, "b": 2})  # after which its schema is known
        asked.clear()
        await client.call_tool("add", {"a": 1, "b": 2})
    assert asked == [logging.INFO]
