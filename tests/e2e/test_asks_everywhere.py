"""The same dialogue over HTTP and over stdio: the same questions, the same refusals, the same result."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, encode, message, serve
from weft.server.run.loading import Target, load

PROGRAM = """
import asyncio
from pathlib import Path
from pydantic import BaseModel
from weft import Context, Server

server = Server("flights", state_keys=["a secret that the workers share"])
charges = Path(__file__).with_suffix(".charges")

class Seat(BaseModel):
    number: str

def charge(flight: str) -> str:
    with charges.open("a") as book:
        book.write(flight + "\\n")
    return f"receipt {count()}"

def count() -> int:
    return len(charges.read_text().splitlines())

@server.tool
async def book(ctx: Context, flight: str) -> str:
    await ctx.report_progress(1)
    receipt = await ctx.once("charge", charge, flight)
    seat, roots = await asyncio.gather(ctx.elicit("Which seat?", Seat), ctx.list_roots())
    said = await ctx.sample(f"Praise {seat.value.number}", max_tokens=9)
    return f"{flight} {seat.value.number} {roots[0].uri} {said.content.text} {receipt} of {count()}"

@server.prompt
async def greet(ctx: Context) -> str:
    return (await ctx.elicit("Which seat?", Seat)).value.number

@server.resource("note://{name}/seat")
async def note(ctx: Context, name: str) -> str:
    return (await ctx.elicit("Which seat?", Seat)).value.number

if __name__ == "__main__":
    server.run()
"""
EVERYTHING = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
ANSWERS: dict[str, Any] = {
    "elicitation/create": {"action": "accept", "content": {"number": "12A"}},
    "roots/list": {"roots": [{"uri": "file:///home"}]},
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "Nice"}, "model": "m"},
}
Peer = Callable[..., list[dict[str, Any]]]  # all messages that answer a request, the response last


@pytest.fixture(params=["http", "stdio"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    file = tmp_path / "flights.py"
    file.write_text(PROGRAM)
    if request.param == "http":
        with serve(load(Target(str(file)))) as live:
            yield lambda method, params, declared=EVERYTHING: live.call(method, params, meta=_meta(declared)).messages
        return
    child = subprocess.Popen([sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        yield lambda method, params, declared=EVERYTHING: _over_pipe(
            child, message(method, params, meta=_meta(declared))
        )
    finally:
        child.kill()
        child.communicate()


def _meta(declared: dict[str, Any]) -> dict[str, Any]:
    return {CLIENT_CAPABILITIES_KEY: declared, "progressToken": "p"}


def _over_pipe(child: subprocess.Popen[bytes], request: dict[str, Any]) -> list[dict[str, Any]]:
    os.write(child.stdin.fileno(), encode(request) + b"\n")
    data = b""
    while True:
        assert select.select([child.stdout], [], [], 30)[0], "nothing came"
        data += os.read(child.stdout.fileno(), 1 << 16)
        messages = [json.loads(line) for line in data.splitlines()] if data.endswith(b"\n") else []
        if messages and "id" in messages[-1]:
            return messages


def retry_of(result: dict[str, Any]) -> dict[str, Any]:
    answers = {key: ANSWERS[question["method"]] for key, question in result["inputRequests"].items()}
    return {"inputResponses": answers, "requestState": result["requestState"]}


BOOK = {"name": "book", "arguments": {"flight": "LX38"}}


@pytest.mark.spec("MRTR-01", "MRTR-03", "MRTR-06", "MRTR-16")
def test_a_dialogue_of_several_rounds(peer: Peer) -> None:
    rounds = []
    params = dict(BOOK)
    while True:
        progress, response = peer("tools/call", params)
        assert progress["method"] == "notifications/progress"  # no request of the server's is among them
        result = response["result"]
        if result["resultType"] == "complete":
            break
        rounds.append(sorted(question["method"] for question in result["inputRequests"].values()))
        params = {**BOOK, **retry_of(result)}
    assert rounds == [["elicitation/create", "roots/list"], ["sampling/createMessage"]]
    assert result["content"][0]["text"] == "LX38 12A file:///home Nice receipt 1 of 1"


@pytest.mark.spec("MRTR-02")
@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "greet"}), ("resources/read", {"uri": "note://x/seat"})]
)
def test_prompts_and_reads_ask_too(peer: Peer, method: str, params: dict[str, Any]) -> None:
    first = peer(method, params)[-1]["result"]
    assert (first["resultType"], "ttlMs" in first) == ("input_required", False)
    second = peer(method, {**params, **retry_of(first)})[-1]["result"]
    assert "12A" in json.dumps(second.get("contents") or second.get("messages"))


@pytest.mark.spec("MRTR-07", "ELI-03")
@pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
def test_a_lacking_capability_is_the_same_error_everywhere(peer: Peer, method: str) -> None:
    params = {"name": "greet"} if method == "prompts/get" else {"uri": "note://x/seat"}
    (response,) = peer(method, params, {"sampling": {}})
    assert response["error"]["code"] == -32021
    assert response["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.spec("MRTR-10", "MRTR-13", "MRTR-24")
def test_state_is_refused_the_same_everywhere(peer: Peer) -> None:
    retry = retry_of(peer("tools/call", BOOK)[-1]["result"])
    other = {"name": "book", "arguments": {"flight": "LX39"}}
    state = retry["requestState"]
    tampered = {**retry, "requestState": state[:-4] + ("B" if state[-4] == "A" else "A") + state[-3:]}
    for params in ({**other, **retry}, {**BOOK, **tampered}):
        (response,) = peer("tools/call", params)
        assert response["error"]["code"] == -32602
    odd = {**retry, "inputResponses": dict.fromkeys(retry["inputResponses"], "odd")}
    assert peer("tools/call", {**BOOK, **odd})[-1]["error"]["code"] == -32602
