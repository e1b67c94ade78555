"""Drives the library with the official Python client 1.x (`ClientSession`), and prints what came of it as JSON.

    python mcp1_client.py http URL
    python mcp1_client.py sse URL
    python mcp1_client.py stdio COMMAND ARGUMENT...

Runs in the virtual environment `mcp1`.
"""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CancelledNotification,
    CancelledNotificationParams,
    ClientNotification,
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    ServerNotification,
    TextContent,
)
from pydantic import AnyUrl
from session_steps import Person, Progress, drive, plain, report


class Peer:
    def __init__(self, session: ClientSession, opened: Any) -> None:
        self.session = session
        self.opened = opened
        self.last_call = 0

    async def opening(self) -> dict[str, Any]:
        opened = plain(self.opened)
        return {
            "version": opened["protocolVersion"],
            "server": opened["serverInfo"],
            "capabilities": opened["capabilities"],
            "instructions": opened["instructions"],
        }

    async def list(self, what: str) -> Any:
        method = "list_resource_templates" if what == "templates" else f"list_{what}"
        return plain(await getattr(self.session, method)())

    async def call(self, name: str, arguments: dict[str, Any], progress: Progress | None = None) -> Any:
        if progress is not None:
            self.last_call = self.session._request_id  # the next id: this client tells it in no other way
        return plain(await self.session.call_tool(name, arguments, progress_callback=progress))

    async def cancel(self, call: "asyncio.Task[Any]") -> None:
        """This client does not tell the server when a task is cancelled; its user has to."""
        params = CancelledNotificationParams(requestId=self.last_call, reason="enough")
        await self.session.send_notification(ClientNotification(CancelledNotification(params=params)))

    async def read(self, uri: str) -> Any:
        return plain(await self.session.read_resource(AnyUrl(uri)))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return plain(await self.session.get_prompt(name, arguments))

    async def complete(self, kind: str, name: str, argument: str, value: str) -> Any:
        prompt = kind == "prompt"
        ref = (
            PromptReference(type="ref/prompt", name=name)
            if prompt
            else ResourceTemplateReference(type="ref/resource", uri=name)
        )
        return plain(await self.session.complete(ref, {"name": argument, "value": value}))

    async def subscribe(self, uri: str) -> None:
        await self.session.subscribe_resource(AnyUrl(uri))

    async def unsubscribe(self, uri: str) -> None:
        await self.session.unsubscribe_resource(AnyUrl(uri))

    async def set_level(self, level: Any) -> None:
        await self.session.set_logging_level(level)

    async def ping(self) -> bool:
        return plain(await self.session.send_ping()) == {}


def callbacks(person: Person) -> dict[str, Any]:
    async def elicit(_context: Any, params: Any) -> ElicitResult:
        if params.mode == "url":
            person.answer_url(params.message, params.url, params.elicitationId)
            return ElicitResult(action="accept")
        return ElicitResult(action=person.action, content=person.answer_form(params.message, params.requestedSchema))

    async def sample(_context: Any, params: Any) -> CreateMessageResult:
        text = person.answer_prompt(params.messages[0].content.text, params.maxTokens)
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text=text), model="interop")

    async def roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=person.answer_roots())])

    async def log(params: Any) -> None:
        person.logged.append([params.level, params.data])

    async def hear(message: Any) -> None:
        if isinstance(message, ServerNotification):
            person.hear(message.root.method, message.root.params)

    return {
        "elicitation_callback": elicit,
        "sampling_callback": sample,
        "list_roots_callback": roots,
        "logging_callback": log,
        "message_handler": hear,
    }


@asynccontextmanager
async def streams(kind: str, target: list[str]) -> Any:
    if kind == "http":
        async with streamable_http_client(target[0]) as (read, write, _):
            yield read, write
    elif kind == "sse":
        async with sse_client(target[0]) as (read, write):
            yield read, write
    else:
        async with stdio_client(StdioServerParameters(command=target[0], args=target[1:])) as (read, write):
            yield read, write


async def run(kind: str, target: list[str], person: Person) -> dict[str, Any]:
    async with (
        streams(kind, target) as (read, write),
        ClientSession(read, write, **callbacks(person)) as session,
    ):
        return await drive(Peer(session, await session.initialize()), person)


if __name__ == "__main__":
    report(run)
