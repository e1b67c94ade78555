"""Listen streams over stdio, through a real process: several on one pipe, told apart by the id of their request."""

import asyncio
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import LOG_LEVEL_KEY, encode, message
from weft import Server
from weft.server.stdio.stdio import serve_stdio

PROGRAM = """
from weft import Context, Server
server = Server("changing")

@server.tool
async def touch(ctx: Context, uri: str) -> str:
    await ctx.report_progress(1)
    await ctx.error("loud")
    server.notify_resource_updated(uri)
    return "touched"

@server.tool
async def grow(name: str) -> str:
    server.add_tool(lambda: "x", name=name)
    server.add_prompt(lambda: "x", name=name)
    server.add_resource(f"note://{name}", "x")
    return "grown"

server.add_prompt(lambda: "x", name="first")
server.add_resource("note://a", "A")
server.run()
"""
TAG = "io.modelcontextprotocol/subscriptionId"
ACK = "notifications/subscriptions/acknowledged"


class Pipe:
    """A server process; what it writes, message by message."""

    def __init__(self, file: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._rest = b""

    def send(self, *requests: dict[str, Any]) -> None:
        os.write(self.process.stdin.fileno(), b"".join(encode(one) + b"\n" for one in requests))

    def listen(self, id: Any, **notifications: Any) -> None:
        self.send(message("subscriptions/listen", {"notifications": notifications}, id=id))

    def call(self, name: str, /, id: Any = "call", **arguments: Any) -> None:
        meta = {LOG_LEVEL_KEY: "debug", "progressToken": "p"}
        self.send(message("tools/call", {"name": name, "arguments": arguments}, id=id, meta=meta))

    def next(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], 30)[0], "nothing came"
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            assert chunk, "the pipe ended"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def until(self, id: Any) -> list[dict[str, Any]]:
        """All messages up to the response with this id, which is the last."""
        messages = [self.next()]
        while not same(messages[-1].get("id"), id):
            messages.append(self.next())
        return messages

    def end(self) -> list[dict[str, Any]]:
        """Close its input; what it still has to say."""
        self.process.stdin.close()
        self.process.stdin = None
        out, _ = self.process.communicate(timeout=30)
        return [json.loads(line) for line in (self._rest + out).splitlines()]


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    file = tmp_path / "changing.py"
    file.write_text(PROGRAM)
    pipe = Pipe(file)
    yield pipe
    pipe.process.kill()
    pipe.process.communicate()


def same(got: Any, expected: Any) -> bool:
    return json.dumps(got, sort_keys=True) == json.dumps(expected, sort_keys=True)


def of(messages: list[dict[str, Any]], id: Any) -> list[str]:
    """The methods of what belongs to one subscription, in order."""
    tags = [(one["method"], one.get("params", {}).get("_meta", {})) for one in messages if "method" in one]
    return [method for method, meta in tags if TAG in meta and same(meta[TAG], id)]


def cancelled(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@pytest.mark.spec("SUB-02", "SUB-03", "SUB-04", "SUB-07", "SUB-08", "META-09", "SUB-17")
def test_streams_on_one_pipe_are_told_apart_by_id_and_type(pipe: Pipe) -> None:
    ids = [0, "", "0", 7]
    for id in ids:
        pipe.listen(id, toolsListChanged=True, resourcesListChanged=id == 7, resourceSubscriptions=["note://a"])
    pipe.call("touch", uri="note://a")
    heard = pipe.until("call")
    pipe.call("touch", uri="note://b")
    heard += pipe.until("call")
    pipe.call("grow", name="new")
    heard += pipe.until("call") + pipe.end()
    for id in ids:
        changes = ["notifications/resources/updated", "notifications/tools/list_changed"]
        resources = ["notifications/resources/list_changed"] if id == 7 else []
        assert of(heard, id) == [ACK, *changes, *resources]


@pytest.mark.spec("HTTP-18", "SUB-07")
def test_progress_and_logs_belong_to_their_call_and_carry_no_subscription(pipe: Pipe) -> None:
    pipe.listen(1, resourceSubscriptions=["note://a"])
    pipe.call("touch", uri="note://a")
    heard = pipe.until("call")
    own = [one for one in heard if one.get("method") in ("notifications/progress", "notifications/message")]
    assert len(own) == 2
    assert TAG not in json.dumps(own)


@pytest.mark.spec("SUB-12", "SUB-13", "SUB-14")
@pytest.mark.parametrize("ids", [[0], [""], ["x", 3]])
def test_at_the_end_each_stream_gets_its_result_and_then_a_cancellation(pipe: Pipe, ids: list[Any]) -> None:
    for id in ids:
        pipe.listen(id, toolsListChanged=True)
        assert pipe.next()["method"] == ACK
    pipe.call("touch", uri="note://a")
    assert "notifications/cancelled" not in [one.get("method") for one in pipe.until("call")]
    last = pipe.end()
    assert len(last) == 2 * len(ids)
    for id in ids:
        mine = [one for one in last if same(one.get("id", one.get("params", {}).get("requestId")), id)]
        result, cancellation = mine
        assert result["result"]["resultType"] == "complete"
        assert same(result["result"]["_meta"][TAG], id)
        assert (cancellation["method"], "id" in cancellation) == ("notifications/cancelled", False)
    assert pipe.process.returncode == 0


@pytest.mark.spec("SUB-11", "STDIO-10", "SUB-14")
@pytest.mark.parametrize("id", [0, "", "x"])
def test_a_client_ends_a_stream_by_cancelling_it(pipe: Pipe, id: Any) -> None:
    pipe.listen(id, toolsListChanged=True)
    pipe.listen("other", toolsListChanged=True)
    assert [pipe.next()["method"], pipe.next()["method"]] == [ACK, ACK]
    pipe.send(cancelled(id))
    pipe.call("grow", name="new")
    heard = pipe.until("call") + pipe.end()
    assert of(heard, id) == []
    assert not [one for one in heard if same(one.get("id"), id)]
    assert not [one for one in heard if same(one.get("params", {}).get("requestId"), id)]
    assert of(heard, "other") == ["notifications/tools/list_changed"]


def test_the_id_of_an_open_stream_is_taken(pipe: Pipe) -> None:
    pipe.listen(1, toolsListChanged=True)
    assert pipe.next()["method"] == ACK
    pipe.listen(1, toolsListChanged=True)
    assert pipe.next()["error"]["code"] == -32600


@pytest.mark.spec("CAN-11", "SUB-11")
async def test_why_a_stream_was_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("changing")
    source, client_out = os.pipe()
    client_in, sink = os.pipe()
    with caplog.at_level(logging.DEBUG, "weft.pipe"):
        serving = asyncio.create_task(serve_stdio(server.engine, source, sink))
        os.write(client_out, encode(message("subscriptions/listen", {"notifications": {}}, id=5)) + b"\n")
        assert ACK.encode() in await asyncio.to_thread(os.read, client_in, 1000)
        ending = cancelled(5)
        ending["params"]["reason"] = "enough"
        os.write(client_out, encode(ending) + b"\n")
        os.close(client_out)
        await asyncio.wait_for(serving, 30)
    assert "request 5 cancelled: enough" in caplog.text
    for pipe in (source, client_in, sink):
        os.close(pipe)
