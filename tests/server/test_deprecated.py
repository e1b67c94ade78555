"""What the protocol has deprecated is there for those who use it, and used by nobody who did not ask for it."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, LOG_LEVEL_KEY, ask, serve
from support.raw_sessions import eventually
from support.sessions import introduction, rpc
from weft import Context, Server

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "server.md"
EVERYTHING = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
FEATURES = {"Roots", "Sampling", "Logging", "Dynamic Client Registration", "`includeContext`", "HTTP+SSE"}


def plain() -> Server:
    """A server of somebody who has never heard of any of it."""
    server = Server("plain")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def fail() -> str:
        raise OSError("the disk is gone")

    server.add_resource("note://a", "A")
    server.add_prompt(lambda: "Hello", name="greet")
    return server


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
    ("tools/call", {"name": "fail"}),
    ("tools/list", {}),
    ("resources/read", {"uri": "note://a"}),
    ("prompts/get", {"name": "greet"}),
]


@pytest.mark.spec("LOG-08", "DEP-01")
@pytest.mark.parametrize(("method", "params"), REQUESTS)
async def test_nobody_is_sent_logs_or_questions_that_no_handler_sends(
    method: str, params: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    meta = {LOG_LEVEL_KEY: "debug", "progressToken": 1, CLIENT_CAPABILITIES_KEY: EVERYTHING}
    with caplog.at_level(logging.DEBUG, "weft"):
        response = await ask(plain(), method, params, meta=meta)
    assert not response.is_stream  # an answer, and nothing before it
    assert response.result["resultType"] == "complete"
    if params.get("name") == "fail":  # what Weft has to say, it says to Python's logging, which is stderr
        assert "the disk is gone" in caplog.text


@pytest.mark.spec("LOG-08", "DEP-01")
async def test_nor_in_a_session() -> None:
    server, got = plain(), list[dict[str, Any]]()
    await server.engine.lifespan.start()
    pipe = server.pipe(lambda line: got.append(json.loads(line)))
    pipe.send(json.dumps(rpc("initialize", introduction(capabilities=EVERYTHING), id="hello")).encode())
    await eventually(lambda: len(got) == 1)
    pipe.send(json.dumps(rpc("notifications/initialized", id=None)).encode())
    pipe.send(json.dumps(rpc("notifications/roots/list_changed", id=None)).encode())
    pipe.send(json.dumps(rpc("logging/setLevel", {"level": "debug"}, id="level")).encode())
    for number, (method, params) in enumerate(REQUESTS):
        pipe.send(json.dumps(rpc(method, params, id=number)).encode())
    await eventually(lambda: {"level", *range(len(REQUESTS))} <= {one.get("id") for one in got})
    await pipe.close()
    await server.stop()
    assert [one for one in got if "method" in one] == []  # answers alone


@pytest.mark.spec("DEP-01")
async def test_a_question_to_a_model_has_no_context_unless_a_handler_says_so() -> None:
    server = Server("sampling")

    @server.tool
    async def sample(ctx: Context, context: str | None = None) -> str:
        options = {} if context is None else {"include_context": context}
        return str(await ctx.sample("Hello", max_tokens=5, **options))

    async def asked(arguments: dict[str, Any]) -> dict[str, Any]:
        params = {"name": "sample", "arguments": arguments}
        result = (await ask(server, "tools/call", params, meta={CLIENT_CAPABILITIES_KEY: EVERYTHING})).result
        return next(iter(result["inputRequests"].values()))["params"]

    assert "includeContext" not in await asked({})
    assert (await asked({"context": "thisServer"}))["includeContext"] == "thisServer"


@pytest.mark.spec("DEP-01")
def test_the_transport_of_2024_is_served_only_where_that_is_said() -> None:
    def status(**options: Any) -> int:
        with serve(plain(), **options) as live:
            connection = live.connect()
            connection.request("GET", "/sse", headers={"Accept": "text/event-stream"})
            found = connection.getresponse().status
            connection.close()
            return found

    assert (status(), status(sse_path="/sse")) == (404, 200)


@pytest.mark.spec("DEP-01")
def test_a_server_registers_no_clients() -> None:
    with serve(plain()) as live:
        for path in ("/register", "/mcp/register", "/.well-known/oauth-authorization-server"):
            assert live.send(b"{}", [("Content-Type", "application/json")], path=path).status in (404, 405)


@pytest.mark.spec("LOG-08", "DEP-01")
def test_the_documentation_says_what_to_use_instead() -> None:
    section = PAGE.read_text().partition("## What the protocol has deprecated\n")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| ([^|]+?) \| [^|]+? \| ([^|]+?) \|$", section, re.MULTILINE))
    assert told.keys() >= FEATURES
    assert "stderr" in told["Logging"]
    assert "OpenTelemetry" in told["Logging"]
    assert "Client ID Metadata Documents" in told["Dynamic Client Registration"]
    assert "Streamable HTTP" in told["HTTP+SSE"]
