"""The client that the conformance suite drives: `client.py URL`, the scenario named in the environment.

A scenario that is not listed here is one that every client goes through in the same way: list the tools, call the
first. Exits with 0 when all went as it should, which in some scenarios is a refusal; else with a sentence on stderr.
The suite does not look at that in a run of many scenarios; conformance/run.py does, by the word on stdout.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from client_auth import auth_for, use_twice

from weft import AuthorizationFailed, Client, WeftError

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
SAMPLES = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that a schema takes."""
    return {name: SAMPLES.get(part.get("type"), "x") for name, part in schema.get("properties", {}).items()}


async def call_first(client: Client) -> None:
    for tool in (await client.list_tools())[:1]:
        await client.call_tool(tool.name, arguments_for(tool.input_schema))


async def call_all(client: Client) -> None:
    for tool in await client.list_tools():
        await client.call_tool(tool.name, arguments_for(tool.input_schema))


async def add_numbers(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def use_everything(client: Client) -> None:
    await call_all(client)
    for resource in await client.list_resources():
        await client.read_resource(resource.uri)
    for prompt in await client.list_prompts():
        await client.get_prompt(prompt.name)


async def make_given_calls(client: Client) -> None:
    await client.list_tools()
    for call in CONTEXT["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def go_through_rounds(client: Client) -> None:
    for name in ("test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"):
        await client.call_tool(name, {})


async def echo_a_schema(client: Client) -> None:
    tools = {tool.name: tool for tool in await client.list_tools()}
    await client.call_tool("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})


async def list_only(client: Client) -> None:
    await client.list_tools()


async def fill_in_defaults(client: Client) -> None:
    await client.call_tool("test_client_elicitation_defaults", {})


async def be_cut_off(client: Client) -> None:
    await client.call_tool("test_reconnection", {})


SCENARIOS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "auth/authorization-server-migration": use_twice,
    "elicitation-sep1034-client-defaults": fill_in_defaults,
    "http-custom-headers": make_given_calls,
    "http-invalid-tool-headers": call_all,
    "http-standard-headers": use_everything,
    "json-schema-ref-no-deref": list_only,
    "json-schema-2020-12-preservation": echo_a_schema,
    "sep-2322-client-request-state": go_through_rounds,
    "sse-retry": be_cut_off,
    "tools_call": add_numbers,
}

# Here the server, or whoever it sends to, cannot be trusted, or does not want this client.
REFUSED = {
    "auth/iss-normalized",
    "auth/iss-supported-missing",
    "auth/iss-unexpected",
    "auth/iss-wrong-issuer",
    "auth/metadata-issuer-mismatch",
    "auth/resource-mismatch",
    "auth/scope-retry-limit",
}


async def main(url: str) -> None:
    functions: dict[str, Any] = {"elicit": lambda _: {}, "sample": lambda _: "Hello", "roots": ["file:///work"]}
    async with Client(url, auth=auth_for(SCENARIO, CONTEXT), **functions) as client:
        await SCENARIOS.get(SCENARIO, call_first)(client)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[-1]))
    except AuthorizationFailed as error:
        if SCENARIO not in REFUSED:
            sys.exit(f"{type(error).__name__}: {error}")
        print(f"refused: {error}")
    except WeftError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    else:
        if SCENARIO in REFUSED:
            sys.exit("The client went along with what it has to refuse.")
    print("ended well")
