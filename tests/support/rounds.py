"""Calling a handler round by round, each on another worker: what tests of asks share."""

from collections.abc import Callable
from typing import Any

from support.wire import Response, ask
from weft import Context, Server
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY

KEYS = ["a secret that the workers share"]
EVERYTHING = {CLIENT_CAPABILITIES_KEY: {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}}
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


def accept(word: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"word": word}}


async def word(ctx: Context, question: str, key: str | None = None) -> str:
    answer = await ctx.elicit(question, WORD, key=key)
    return answer.value["word"] if answer.accepted else answer.action


async def call(
    server: Server, retry: dict[str, Any] | None = None, method: str = "tools/call", **params: Any
) -> Response:
    return await ask(server, method, {**(params or {"name": "run"}), **(retry or {})}, meta=EVERYTHING)


def retry_of(result: dict[str, Any], answer: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """What a client adds to its next call: an answer to each question, and the state."""
    answers = {key: answer(question) for key, question in (result.get("inputRequests") or {}).items()}
    return {"inputResponses": answers, "requestState": result["requestState"]}


def echo(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a question with its own text in capitals."""
    return accept(question["params"]["message"].upper())


async def play(
    make: Callable[[], Server], answer: Callable[[dict[str, Any]], Any] = echo, **params: Any
) -> tuple[Any, list[list[str]]]:
    """Call until it is complete, each round on another worker; the result, and what was asked in each round."""
    method = params.pop("method", "tools/call")
    rounds: list[list[str]] = []
    retry: dict[str, Any] = {}
    for _ in range(20):
        result = (await call(make(), retry, method, **params)).result
        if result["resultType"] == "complete":
            return result, rounds
        assert result["resultType"] == "input_required"
        rounds.append([question["params"]["message"] for question in result["inputRequests"].values()])
        retry = retry_of(result, answer)
    raise AssertionError("it asks without end")


def worker(handler: Callable[..., Any], **options: Any) -> Callable[[], Server]:
    """A maker of servers that share nothing but the key and the handler, a tool named `run`."""

    def make() -> Server:
        server = Server("worker", **{"state_keys": KEYS, **options})
        server.add_tool(handler, name="run")
        return server

    return make


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]
