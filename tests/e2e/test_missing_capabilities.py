"""What a feature needs and the client did not declare: told to the model in a session, an error elsewhere."""

from typing import Any

import pytest

from support import ask, serve
from support.sessions import NEWEST, OpenSession, rpc
from weft import Context, InputRequired, Server, ask_form

FORM = {"type": "object", "properties": {}}
TOOLS = ["asks", "needs", "returns"]


def make_server() -> Server:
    server = Server("s")

    @server.tool
    async def asks(ctx: Context) -> str:
        return (await ctx.elicit("Which?", FORM)).action

    @server.tool(needs=["elicitation.form"])
    async def needs(ctx: Context) -> str:
        return "never"

    @server.tool
    async def returns(ctx: Context) -> Any:
        return InputRequired({"which": ask_form("Which?", FORM)})

    @server.resource("x://asks")
    async def read(ctx: Context) -> str:
        return (await ctx.elicit("Which?", FORM)).action

    @server.prompt
    async def write(ctx: Context) -> str:
        return (await ctx.elicit("Which?", FORM)).action

    return server


@pytest.mark.spec("META-06", "L11-06")
@pytest.mark.parametrize("tool", TOOLS)
def test_in_a_session_the_model_reads_what_a_tool_cannot_do(tool: str) -> None:
    with serve(make_server()) as live:
        session = OpenSession(live, capabilities={})
        result = session.post(rpc("tools/call", {"name": tool})).result
    assert result["isError"] is True
    assert "the client must declare the capability `elicitation.form`." in result["content"][0]["text"]
    assert "resultType" not in result


@pytest.mark.parametrize(
    ("method", "params"), [("resources/read", {"uri": "x://asks"}), ("prompts/get", {"name": "write"})]
)
def test_of_a_resource_or_a_prompt_it_is_an_error(method: str, params: dict[str, Any]) -> None:
    with serve(make_server()) as live:
        session = OpenSession(live, capabilities={})
        refused = session.post(rpc(method, params))
    assert (refused.status, refused.error["code"]) == (200, -32600)
    assert refused.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.spec("META-06")
@pytest.mark.parametrize("tool", TOOLS)
async def test_in_the_stateless_era_it_is_an_error(tool: str) -> None:
    refused = await ask(make_server(), "tools/call", {"name": tool}, meta={CAPABILITIES: {}})
    assert refused.refusal == (400, -32021)
    assert refused.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


@pytest.mark.mistake("a question without sessions")
@pytest.mark.parametrize("tool", TOOLS)
def test_without_sessions_the_server_is_blamed_and_not_the_client(tool: str) -> None:
    """The client did declare it: it is the server that does not remember."""
    with serve(make_server(), sessions=False) as live:
        session = OpenSession(live, capabilities={"elicitation": {"form": {}}})
        headers = {"MCP-Protocol-Version": NEWEST}
        result = session.post(rpc("tools/call", {"name": tool}), headers).result
        refused = session.post(rpc("prompts/get", {"name": "write"}), headers)
    text = result["content"][0]["text"]
    for told in (text, refused.error["message"]):
        assert "It runs without sessions (`--no-sessions`)" in told
        assert "Run it with sessions, or use a client of the newest protocol version." in told
        assert "must declare" not in told
    assert result["isError"] is True
