"""States that are accepted once."""

import pytest

from support import ask
from weft import Context, Server
from weft.server import spent
from weft.server.spent import SpentStates


def shop(*, single_use: bool) -> Server:
    server = Server("shop", state_keys=["a secret of enough bytes"])

    @server.tool(single_use=single_use)
    async def buy(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", {"type": "object", "properties": {"ok": {"type": "boolean"}}}, key="sure")
        return answer.action

    return server


async def rounds(server: Server) -> list[dict]:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    first = await ask(server, "tools/call", {"name": "buy"}, meta=meta)
    params = {
        "name": "buy",
        "requestState": first.result["requestState"],
        "inputResponses": {"sure": {"action": "accept", "content": {"ok": True}}},
    }
    return [(await ask(server, "tools/call", params, meta=meta)).json for _ in range(2)]


@pytest.mark.spec("MRTR-14")
async def test_a_state_of_a_single_use_tool_is_accepted_once() -> None:
    once, again = await rounds(shop(single_use=True))
    assert once["result"]["content"][0]["text"] == "accept"
    assert again["error"]["code"] == -32602


async def test_other_tools_accept_a_state_again() -> None:
    once, again = await rounds(shop(single_use=False))
    assert once["result"]["content"] == again["result"]["content"]


def test_what_has_expired_is_forgotten_and_the_set_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spent, "MOST", 3)
    states = SpentStates(600)
    assert [states.spend(name) for name in "aab"] == [True, False, True]
    for name in "cdef":
        assert states.spend(name)
    assert states.spend("a")  # forgotten: three newer ones were more important
    assert SpentStates(-1).spend("x")
    expired = SpentStates(-1)
    assert [expired.spend("x"), expired.spend("x")] == [True, True]
