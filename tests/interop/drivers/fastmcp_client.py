"""Drives the library with FastMCP's client pinned to the session era, and prints what came of it as JSON.

    python fastmcp_client.py http URL
    python fastmcp_client.py stdio COMMAND ARGUMENT...

It has no verbs of its own to subscribe with: those are its session's. Runs in the virtual environment `fastmcp`.
"""

import asyncio
import warnings
from typing import Any

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from mcp_types import PromptReference, ResourceTemplateReference
from session_steps import Person, Progress, drive, plain, report


class Peer:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def opening(self) -> dict[str, Any]:
        return {
            "version": self.client.protocol_version,
            "server": plain(self.client.server_info),
            "capabilities": plain(self.client.server_capabilities),
            "instructions": self.client.instructions,
        }

    async def list(self, what: str) -> Any:
        method = "list_resource_templates_mcp" if what == "templates" else f"list_{what}_mcp"
        return plain(await getattr(self.client, method)())

    async def call(self, name: str, arguments: dict[str, Any], progress: Progress | None = None) -> Any:
        return plain(await self.client.call_tool_mcp(name, arguments, progress_handler=progress))

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        call.cancel()

    async def read(self, uri: str) -> Any:
        return plain(await self.client.read_resource_mcp(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return plain(await self.client.get_prompt_mcp(name, arguments))

    async def complete(self, kind: str, name: str, argument: str, value: str) -> Any:
        ref = PromptReference(name=name) if kind == "prompt" else ResourceTemplateReference(uri=name)
        return plain(await self.client.complete_mcp(ref, {"name": argument, "value": value}))

    async def subscribe(self, uri: str) -> None:
        await self.client.session.subscribe_resource(uri)

    async def unsubscribe(self, uri: str) -> None:
        await self.client.session.unsubscribe_resource(uri)

    async def set_level(self, level: Any) -> None:
        await self.client.set_logging_level(level)

    async def ping(self) -> bool:
        return await self.client.ping()


def handlers(person: Person) -> dict[str, Any]:
    async def elicit(message: str, _type: Any, params: Any, _context: Any) -> ElicitResult:
        if params.mode == "url":
            person.answer_url(message, params.url, params.elicitation_id)
            return ElicitResult(action="accept")
        return ElicitResult(action=person.action, content=person.answer_form(message, params.requested_schema))

    async def sample(messages: Any, params: Any, _context: Any) -> str:
        return person.answer_prompt(messages[0].content.text, params.max_tokens)

    async def roots(_context: Any) -> list[str]:
        return [person.answer_roots()]

    async def log(message: Any) -> None:
        person.logged.append([message.level, message.data])

    async def hear(message: Any) -> None:
        if hasattr(message, "method"):
            person.hear(message.method, message.params)

    return {
        "elicitation_handler": elicit,
        "sampling_handler": sample,
        "roots": roots,
        "log_handler": log,
        "message_handler": hear,
    }


async def run(kind: str, target: list[str], person: Person) -> dict[str, Any]:
    where = target[0] if kind == "http" else StdioTransport(target[0], target[1:], keep_alive=False)
    async with Client(where, mode="legacy", **handlers(person)) as client:
        return await drive(Peer(client), person)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # half of the session era's verbs are deprecated in the SDK beneath
    report(run)
