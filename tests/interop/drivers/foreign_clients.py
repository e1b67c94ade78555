"""Runs in a framework's own environment: lists the kitchen's tools and calls them as it does, without a model.

    python foreign_clients.py FRAMEWORK http URL
    python foreign_clients.py FRAMEWORK stdio COMMAND...

The last line it writes is JSON: the tools' names, and what came of each call as text.
"""

import asyncio
import importlib.metadata
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

CALLS = [
    ("greet", {"name": "Ada", "times": 2}),
    ("brew", {"leaf": {"name": "oolong", "grams": 7}}),
    ("spill", {}),
    ("which", {}),
]


def text_of(value: Any) -> str:
    """What a framework made of a result, as one text."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True)
    return value if isinstance(value, str) else json.dumps(value, default=text_of)


async def pydantic_ai(way: str, target: list[str]) -> dict[str, Any]:
    from pydantic_ai.exceptions import ModelRetry
    from pydantic_ai.mcp import MCPToolset, StdioTransport

    toolset = MCPToolset(target[0] if way == "http" else StdioTransport(target[0], target[1:]))
    facts: dict[str, Any] = {}
    async with toolset:
        facts["tools"] = [tool.name for tool in await toolset.list_tools()]
        for name, arguments in CALLS:
            try:
                facts[name] = text_of(await toolset.direct_call_tool(name, arguments))
            except ModelRetry as error:
                facts[name] = f"error: {error.message}"
    return facts


async def openai_agents(way: str, target: list[str]) -> dict[str, Any]:
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    if way == "http":
        server: Any = MCPServerStreamableHttp({"url": target[0]})
    else:
        server = MCPServerStdio({"command": target[0], "args": target[1:]})
    facts: dict[str, Any] = {}
    async with server:
        facts["tools"] = [tool.name for tool in await server.list_tools()]
        for name, arguments in CALLS:
            facts[name] = text_of(await server.call_tool(name, arguments))
    return facts


async def langchain(way: str, target: list[str]) -> dict[str, Any]:
    from langchain_core.tools import ToolException
    from langchain_mcp_adapters.client import MultiServerMCPClient

    if way == "http":
        connection: Any = {"transport": "streamable_http", "url": target[0]}
    else:
        connection = {"transport": "stdio", "command": target[0], "args": target[1:]}
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"kitchen": connection}).get_tools()}
    facts: dict[str, Any] = {"tools": list(tools)}
    for name, arguments in CALLS:
        try:
            facts[name] = text_of(await tools[name].ainvoke(arguments))
        except ToolException as error:
            facts[name] = f"error: {error}"
    return facts


async def google_adk(way: str, target: list[str]) -> dict[str, Any]:
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams, StreamableHTTPConnectionParams
    from mcp import StdioServerParameters

    if way == "http":
        params: Any = StreamableHTTPConnectionParams(url=target[0])
    else:
        params = StdioConnectionParams(server_params=StdioServerParameters(command=target[0], args=target[1:]))
    toolset = McpToolset(connection_params=params)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(toolset.close)
        tools = {tool.name: tool for tool in await toolset.get_tools()}
        facts: dict[str, Any] = {"tools": list(tools)}
        context = await adk_context()
        for name, arguments in CALLS:
            facts[name] = text_of(await tools[name].run_async(args=arguments, tool_context=context))
    return facts


async def adk_context() -> Any:
    """The context that ADK's runner gives to a tool; the agent in it is never run."""
    from google.adk.agents import LlmAgent
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.sessions import InMemorySessionService
    from google.adk.tools.tool_context import ToolContext

    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="kitchen", user_id="ada")
    agent = LlmAgent(name="cook")
    return ToolContext(
        InvocationContext(session_service=sessions, invocation_id="1", agent=agent, session=session),
    )


async def llama_index(way: str, target: list[str]) -> dict[str, Any]:
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    client = BasicMCPClient(target[0], args=target[1:])
    tools = {tool.metadata.name: tool for tool in await McpToolSpec(client).to_tool_list_async()}
    facts: dict[str, Any] = {"tools": list(tools)}
    for name, arguments in CALLS:
        facts[name] = str((await tools[name].acall(**arguments)).raw_output)
    return facts


FRAMEWORKS = {
    "pydantic-ai": (pydantic_ai, "pydantic-ai-slim"),
    "openai-agents": (openai_agents, "openai-agents"),
    "langchain": (langchain, "langchain-mcp-adapters"),
    "google-adk": (google_adk, "google-adk"),
    "llama-index": (llama_index, "llama-index-tools-mcp"),
}


def main() -> None:
    framework, way, *target = sys.argv[1:]
    run, package = FRAMEWORKS[framework]
    facts = asyncio.run(run(way, target))
    versions = {name: importlib.metadata.version(name) for name in (package, "mcp")}
    print(json.dumps(facts | {"versions": versions}))


if __name__ == "__main__":
    main()
