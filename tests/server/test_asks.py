"""Questions to the other side: gated by what this request declared, sent over the call's channel."""

from typing import Any

import pytest
from pydantic import BaseModel

from support import CLIENT_CAPABILITIES_KEY, encode, message
from weft import Context, Elicitation, Server
from weft.eras.stateless import STATELESS
from weft.errors import MissingCapability
from weft.jsonrpc import decode
from weft.server.call import Call
from weft.server.connection import Connection


class Seat(BaseModel):
    number: str
    window: bool = False


class Channel:
    """A peer that answers."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, []

    async def send_raw_request(self, method: str, params: Any, *, timeout: float | None = None) -> Any:
        self.asked.append((method, params))
        assert timeout == 600
        return self.answer

    async def notify(self, method: str, params: Any = None) -> None:
        raise AssertionError(method)


def context(capabilities: dict, answer: Any = None) -> tuple[Context, Channel]:
    server, channel = Server("asking"), Channel(answer)
    frame = decode(encode(message("server/discover", meta={CLIENT_CAPABILITIES_KEY: capabilities})))
    envelope = STATELESS.open(frame, None, server.offer)
    connection = Connection.from_envelope("x", None, envelope.client_capabilities, outbound=channel)
    return Call(server, 1, envelope, STATELESS, connection, reply=None).context, channel  # type: ignore[arg-type] - not used here


EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}


@pytest.mark.spec("ELI-01")
@pytest.mark.parametrize("declared", [{"elicitation": {}}, {"elicitation": {"form": {}}}, EVERYTHING])
async def test_a_form_typed_by_a_model(declared: dict) -> None:
    ctx, channel = context(declared, {"action": "accept", "content": {"number": "12A"}})
    answer = await ctx.elicit("Which seat?", Seat)
    assert isinstance(answer, Elicitation)
    assert (answer.accepted, answer.declined, answer.cancelled) == (True, False, False)
    assert answer.value == Seat(number="12A")
    ((method, params),) = channel.asked
    assert method == "elicitation/create"
    assert params["message"] == "Which seat?"
    assert params["requestedSchema"]["properties"].keys() == {"number", "window"}


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_that_was_not_filled_in(action: str) -> None:
    ctx, _ = context(EVERYTHING, {"action": action})
    answer = await ctx.elicit("Which?", Seat)
    assert (answer.accepted, answer.value, answer.action) == (False, None, action)
    assert (answer.declined, answer.cancelled) == (action == "decline", action == "cancel")


async def test_a_form_by_raw_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    ctx, channel = context(EVERYTHING, {"action": "accept", "content": {"n": 3}})
    assert (await ctx.elicit("How many?", schema)).value == {"n": 3}
    assert channel.asked[0][1]["requestedSchema"] == schema


async def test_a_page() -> None:
    ctx, channel = context(EVERYTHING, {"action": "accept"})
    assert (await ctx.elicit_url("Log in", "https://example.com/in")).accepted
    assert channel.asked == [
        ("elicitation/create", {"message": "Log in", "mode": "url", "url": "https://example.com/in"})
    ]


async def test_the_model() -> None:
    said = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}
    ctx, channel = context(EVERYTHING, said)
    answer = await ctx.sample("Hello", max_tokens=5, system_prompt="Be kind.", temperature=0.5)
    assert (answer.model, answer.content.text) == ("m", "Hi")  # type: ignore[union-attr] - text was sent
    assert channel.asked[0] == (
        "sampling/createMessage",
        {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Hello"}}],
            "maxTokens": 5,
            "systemPrompt": "Be kind.",
            "temperature": 0.5,
        },
    )
    raw = await ctx.sample_raw({"messages": [], "maxTokens": 1})
    assert raw == said


async def test_roots() -> None:
    ctx, channel = context(EVERYTHING, {"roots": [{"uri": "file:///a", "name": "a"}]})
    assert [root.uri for root in await ctx.list_roots()] == ["file:///a"]
    assert channel.asked == [("roots/list", None)]


@pytest.mark.mistake("an ask the client cannot answer")
@pytest.mark.spec("META-05", "META-06")
@pytest.mark.parametrize(
    ("declared", "question", "required"),
    [
        ({}, lambda ctx: ctx.elicit("?", Seat), {"elicitation": {"form": {}}}),
        ({"elicitation": {"url": {}}}, lambda ctx: ctx.elicit("?", Seat), {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, lambda ctx: ctx.elicit_url("?", "https://x"), {"elicitation": {"url": {}}}),
        ({"roots": {}}, lambda ctx: ctx.sample("?", max_tokens=1), {"sampling": {}}),
        ({"sampling": {}}, lambda ctx: ctx.sample_raw({"messages": [], "maxTokens": 1, "tools": [{"name": "t", "inputSchema": {}}]}), {"sampling": {"tools": {}}}),
        ({"sampling": {}}, lambda ctx: ctx.list_roots(), {"roots": {}}),
    ],
)  # fmt: skip
async def test_what_was_not_declared_is_not_asked(declared: dict, question: Any, required: dict) -> None:
    ctx, channel = context(declared)
    with pytest.raises(MissingCapability) as refused:
        await question(ctx)
    assert refused.value.data == {"requiredCapabilities": required}
    name = next(iter(required))
    assert f"must declare the capability `{name}" in refused.value.message
    assert channel.asked == []
