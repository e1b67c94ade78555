"""Drives the library with the official Python client 2.x pinned to the session era, and prints what came of it as JSON.

    python mcp_session_client.py http URL
    python mcp_session_client.py stdio COMMAND ARGUMENT...

`mode="legacy"` is what pins it: it opens with the handshake and never probes. Runs in the virtual environment `mcp`.
"""

import asyncio
import warnings
from typing import Any

from mcp import Client, StdioServerParameters
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)
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
        method = "list_resource_templates" if what == "templates" else f"list_{what}"
        return plain(await getattr(self.client, method)())

    async def call(self, name: str, arguments: dict[str, Any], progress: Progress | None = None) -> Any:
        return plain(await self.client.call_tool(name, arguments, progress_callback=progress))

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        call.cancel()

    async def read(self, uri: str) -> Any:
        return plain(await self.client.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return plain(await self.client.get_prompt(name, arguments))

    async def complete(self, kind: str, name: str, argument: str, value: str) -> Any:
        ref = PromptReference(name=name) if kind == "prompt" else ResourceTemplateReference(uri=name)
        return plain(await self.client.complete(ref, {"name": argument, "value": value}))

    async def subscribe(self, uri: str) -> None:
        await self.client.subscribe_resource(uri)

    async def unsubscribe(self, uri: str) -> None:
        await self.client.unsubscribe_resource(uri)

    async def set_level(self, level: Any) -> None:
        await self.client.set_logging_level(level)

    async def ping(self) -> bool:
        return plain(await self.client.send_ping()) == {}


def callbacks(person: Person) -> dict[str, Any]:
    async def elicit(_context: Any, params: Any) -> ElicitResult:
        if params.mode == "url":
            person.answer_url(params.message, params.url, params.elicitation_id)
            return ElicitResult(action="accept")
        return ElicitResult(action=person.action, content=person.answer_form(params.message, params.requested_schema))

    async def sample(_context: Any, params: Any) -> CreateMessageResult:
        text = person.answer_prompt(params.messages[0].content.text, params.max_tokens)
        return CreateMessageResult(role="assistant", content=TextContent(text=text), model="interop")

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=person.answer_roots())])

    async def log(params: Any) -> None:
        person.logged.append([params.level, params.data])

    async def hear(message: Any) -> None:
        if hasattr(message, "method"):
            person.hear(message.method, message.params)

    return {
        "elicitation_callback": elicit,
        "sampling_callback": sample,
        "list_roots_callback": roots,
        "logging_callback": log,
        "message_handler": hear,
    }


async def run(kind: str, target: list[str], person: Person) -> dict[str, Any]:
    where = target[0] if kind == "http" else StdioServerParameters(command=target[0], args=target[1:])
    async with Client(where, mode="legacy", **callbacks(person)) as client:
        return await drive(Peer(client), person)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # half of the session era's verbs are deprecated in 2.x
    report(run)
