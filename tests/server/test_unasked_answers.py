"""Answers that come before their question: from a client that knows the key, and so sends no state with them."""

from typing import Any

import pytest
from pydantic import BaseModel

from support import CLIENT_CAPABILITIES_KEY, Response, ask
from weft import Context, InputRequired, Limits, Server, ask_form


class Name(BaseModel):
    name: str


ALICE = {"action": "accept", "content": {"name": "Alice"}}


def make_server(**options: Any) -> Server:
    server = Server("asking", **options)

    @server.tool
    async def greet(ctx: Context) -> str:
        name = await ctx.elicit("Your name?", Name, key="name")
        friend = await ctx.elicit(f"And your friend's, {name.value.name}?", Name, key="friend")
        return f"Hello, {name.value.name} and {friend.value.name}!"

    @server.tool
    def explicit(ctx: Context) -> str | InputRequired:
        if not ctx.has_input_response("name"):
            return InputRequired({"name": ask_form("Your name?", Name)}, state="asked")
        return f"{ctx.request_state}"

    return server


async def call(server: Server, tool: str = "greet", **params: Any) -> Response:
    return await ask(
        server, "tools/call", {"name": tool, **params}, meta={CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
    )


@pytest.mark.spec("MRTR-25")
async def test_they_are_taken_and_the_others_are_ignored() -> None:
    server = make_server()
    first = (await call(server, inputResponses={"name": ALICE, "unknown": {"action": "accept"}})).result
    assert list(first["inputRequests"]) == ["friend"]
    params = {"inputResponses": {"friend": ALICE}, "requestState": first["requestState"]}
    last = (await call(server, **params)).result
    assert last["content"][0]["text"] == "Hello, Alice and Alice!"


@pytest.mark.spec("MRTR-23")
@pytest.mark.parametrize("answer", [12345, None, {"action": "maybe"}, {"action": "accept", "content": {"name": 1}}])
async def test_they_are_checked(answer: Any) -> None:
    assert (await call(make_server(), inputResponses={"name": answer})).error["code"] == -32602


async def test_with_a_state_only_what_it_asked_is_answered() -> None:
    server = make_server()
    state = (await call(server)).result["requestState"]
    result = (await call(server, inputResponses={"friend": ALICE}, requestState=state)).result
    assert list(result["inputRequests"]) == ["name"]
    both = (await call(server, inputResponses={"name": ALICE, "friend": ALICE}, requestState=state)).result
    assert list(both["inputRequests"]) == ["friend"]


async def test_a_handler_with_a_state_of_its_own_never_sees_them_without_it() -> None:
    result = (await call(make_server(), "explicit", inputResponses={"name": ALICE})).result
    assert result["resultType"] == "input_required"


@pytest.mark.security("D13")
async def test_there_may_be_only_so_many() -> None:
    server = make_server(limits=Limits(input_responses=2))
    assert (await call(server, inputResponses=dict.fromkeys("abc", ALICE))).error["code"] == -32602
