"""The headers of requests about tasks, and which headers of a call are stored with its task.

The id is repeated in `Mcp-Name`, and what contradicts the body is refused.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, Live, serve
from support.task_clients import TASKS, serving
from weft import Context, Server, Task
from weft.net.logs import MASK, masked_headers

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
META = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}, "extensions": {TASKS: {}}}}
METHODS = ["tasks/get", "tasks/update", "tasks/cancel"]
OTHER = "AAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server behind a real socket."""
    server = Server("studio")

    @server.tool(task="optional")
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Who?", FORM)).action

    with serve(server) as running:
        yield running
        assert running.faults == []


@pytest.fixture
def id(live: Live) -> str:
    return live.tool("ask", meta=META).result["taskId"]


def send(live: Live, method: str, id: str, headers: dict[str, str | None]) -> Any:
    return live.call(method, {"taskId": id}, meta=META, headers=headers)


@pytest.mark.spec("TASK-28", "new-20")
@pytest.mark.parametrize("method", METHODS)
def test_headers_that_repeat_the_body_are_accepted(live: Live, id: str, method: str) -> None:
    assert send(live, method, id, {"Mcp-Name": id, "Mcp-Method": method}).result["resultType"] == "complete"


@pytest.mark.spec("new-20", "new-23")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [OTHER, "", "x", "=?base64?eA==?="])
def test_another_id_in_the_header_is_refused(live: Live, id: str, method: str, name: str) -> None:
    response = send(live, method, id, {"Mcp-Name": name})
    assert response.refusal == (400, -32020)
    assert "Mcp-Name" in response.error["message"]
    assert id not in response.error["message"]
    left = send(live, "tasks/get", id, {"Mcp-Name": id}).result
    assert left["status"] in ("working", "input_required")  # nothing was done


@pytest.mark.spec("new-20")
@pytest.mark.parametrize("method", METHODS)
def test_an_id_of_another_task_in_the_header_opens_none(live: Live, id: str, method: str) -> None:
    other = live.tool("ask", meta=META).result["taskId"]
    assert send(live, method, id, {"Mcp-Name": other}).refusal == (400, -32020)


@pytest.mark.spec("new-20")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("named", ["tools/call", "tasks/result", "TASKS/GET", "", None])
def test_another_method_in_the_header_is_refused(live: Live, id: str, method: str, named: str | None) -> None:
    assert send(live, method, id, {"Mcp-Name": id, "Mcp-Method": named}).refusal == (400, -32020)


@pytest.mark.spec("new-20")
def test_a_call_that_becomes_a_task_needs_its_own_headers(live: Live) -> None:
    params = {"name": "ask", "arguments": {}}
    assert live.call("tools/call", params, meta=META).result["resultType"] == "task"
    for wrong in ({"Mcp-Method": "tasks/get"}, {"Mcp-Name": OTHER}, {"Mcp-Name": None}):
        assert live.call("tools/call", params, meta=META, headers=wrong).refusal == (400, -32020)


@pytest.mark.spec("TASK-28")
@pytest.mark.parametrize("method", METHODS)
def test_a_request_without_the_name_is_served(live: Live, id: str, method: str) -> None:
    """FastMCP's client sends none. The header is for those who route requests and cannot read bodies."""
    assert send(live, method, id, {"Mcp-Name": None}).result["resultType"] == "complete"


@pytest.mark.spec("new-20", "TASK-24")
@pytest.mark.parametrize("method", METHODS)
def test_contradicting_headers_are_refused_before_the_capability_is_checked(live: Live, id: str, method: str) -> None:
    assert live.call(method, {"taskId": id}, headers={"Mcp-Name": OTHER}).refusal == (400, -32020)
    assert live.call(method, {"taskId": id}, headers={"Mcp-Name": id}).refusal == (400, -32021)


# The headers of the call.

HARMLESS = {"User-Agent": "tester/1", "Origin": "http://localhost", "Traceparent": "00-ab-cd-01", "Tracestate": "a=1"}
SECRET = {
    "X-Api-Key": "SECRET", "X-Forwarded-Access-Token": "SECRET", "Authorization": "Bearer SECRET", "Cookie": "a=SECRET",
    "X-Auth": "SECRET", "X-Amzn-Oidc-Data": "SECRET", "Baggage": "user=SECRET", "X-Customer": "SECRET",
}  # fmt: skip


@pytest.mark.parametrize("after", [0, 0.02])
async def test_headers_that_may_be_secrets_are_not_stored(after: float) -> None:
    """Stored is what the log may show. A handler that runs as a task has these headers only."""
    server, seen = Server("studio"), list[set[str]]()

    @server.tool(task=Task(after=after))
    async def ask(ctx: Context) -> str:
        while ctx.task.id is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        seen.append(set(ctx.headers))
        return (await ctx.elicit("Who?", FORM, key="who")).action

    async with serving(server) as client:
        params = {"name": "ask", "arguments": {}}
        called = await client.result("tools/call", params, headers={**HARMLESS, **SECRET})
        await client.asked(called["taskId"])
        stored = await server.engine.tasks._records.read_journal(called["taskId"])
        assert stored is not None
        headers = stored[0].headers
        assert headers is not None
        names = {name.decode() for name, _ in headers}
        assert names >= {name.lower() for name in HARMLESS} | {"mcp-method", "host"}
        assert not names & {name.lower() for name in SECRET}
        assert b"SECRET" not in b"".join(value for _, value in headers)
        assert MASK not in masked_headers(headers)
        await client.update(called["taskId"], {"who": {"action": "decline"}})
        await client.until(called["taskId"])
        assert seen[-1] == names
