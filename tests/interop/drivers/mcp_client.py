"""Drives the example server with the official Python client, and prints what came of it as one line of JSON.

    python mcp_client.py http URL
    python mcp_client.py stdio COMMAND ARGUMENT...

Runs in the virtual environment of `mcp`, not in Weft's.
"""

import asyncio
import json
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)

NOTICES = "library://notices"


def plain(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


async def error_of(awaitable: Any) -> dict[str, Any]:
    try:
        await awaitable
    except MCPError as error:
        return {"code": error.error.code, "message": error.error.message, "data": error.error.data}
    return {}


async def progress_of(client: Client) -> dict[str, Any]:
    heard: list[Any] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append([progress, total, message])

    result = plain(await client.call_tool("take_stock", {}, progress_callback=hear))
    return {"heard": heard, "result": result}


async def cancel(client: Client) -> dict[str, Any]:
    """Gives a call up as soon as the server is known to be at work on it."""
    begun = asyncio.Event()

    async def hear(_progress: float, _total: float | None, _message: str | None) -> None:
        begun.set()

    async def count() -> Any:
        return (await client.call_tool("count_given_up_waits", {})).content[0].text

    before = await count()
    call = asyncio.create_task(client.call_tool("wait_at_desk", {"seconds": 600}, progress_callback=hear))
    await asyncio.wait_for(begun.wait(), 30)
    call.cancel()
    await asyncio.wait([call], timeout=30)
    for _ in range(100):
        if (after := await count()) != before:
            break
        await asyncio.sleep(0.05)
    return {"before": before, "after": after, "cancelled": call.cancelled()}


class Person:
    """Who answers: the user, the model and the host of this client. Remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.action = "accept"

    async def elicit(self, _context: Any, params: Any) -> ElicitResult:
        self.asked.append(["elicit", params.message, sorted(params.requested_schema["properties"])])
        content = {"reader": "Ada", "day": "Saturday", "weeks": 2} if self.action == "accept" else None
        return ElicitResult(action=self.action, content=content)

    async def sample(self, _context: Any, params: Any) -> CreateMessageResult:
        self.asked.append(["sample", params.messages[0].content.text, params.max_tokens])
        return CreateMessageResult(role="assistant", content=TextContent(text="Come, all!"), model="interop")

    async def roots(self, _context: Any) -> ListRootsResult:
        self.asked.append(["roots"])
        return ListRootsResult(roots=[Root(uri="file:///home/ada")])


async def ask(client: Client, person: Person) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for action in ("accept", "decline", "cancel"):
        person.action = action
        facts[action] = plain(await client.call_tool("reserve", {"book_id": "b1"}))
    facts["invite"] = plain(await client.call_tool("invite", {"book_id": "b5"}))
    return facts | {"asked": person.asked}


async def listen(client: Client) -> dict[str, Any]:
    """What is heard of three changes, and what is read and listed upon hearing of them."""
    heard: list[Any] = []
    async with client.listen(tools_list_changed=True, resource_subscriptions=[NOTICES]) as changes:
        await client.call_tool("pin_notice", {"text": "Lost: one glove."})
        event = await asyncio.wait_for(anext(changes), 30)
        heard.append(event.uri if isinstance(event, ResourceUpdated) else type(event).__name__)
        board = plain(await client.read_resource(NOTICES))
        menus: list[Any] = []
        for sign in ("open", "closed"):
            await client.call_tool("turn_cafe_sign", {"to": sign})
            heard.append(type(await asyncio.wait_for(anext(changes), 30)).__name__)
            menus.append("order_coffee" in [tool.name for tool in (await client.list_tools()).tools])
    return {"heard": heard, "board": board, "menus": menus}


async def drive(target: Any) -> dict[str, Any]:
    person = Person()
    callbacks: dict[str, Any] = {
        "elicitation_callback": person.elicit,
        "sampling_callback": person.sample,
        "list_roots_callback": person.roots,
    }
    async with Client(target, **callbacks) as client:
        facts: dict[str, Any] = {
            "version": client.protocol_version,
            "server": plain(client.server_info),
            "capabilities": plain(client.server_capabilities),
            "instructions": client.instructions,
            "tools": plain(await client.list_tools()),
            "resources": plain(await client.list_resources()),
            "templates": plain(await client.list_resource_templates()),
            "prompts": plain(await client.list_prompts()),
            "sum": plain(await client.call_tool("add", {"a": 2, "b": 3})),
            "books": plain(await client.call_tool("search_books", {"genre": "mystery"})),
            "tool_error": plain(await client.call_tool("lend", {"book_id": "none"})),
            "unknown_tool": await error_of(client.call_tool("no_such_tool", {})),
            "catalogue": plain(await client.read_resource("library://catalogue")),
            "book": plain(await client.read_resource("library://books/b3")),
            "unknown_resource": await error_of(client.read_resource("library://nowhere")),
            "prompt": plain(await client.get_prompt("recommend", {"genre": "mystery"})),
            "genres": plain(
                await client.complete(
                    PromptReference(type="ref/prompt", name="recommend"), {"name": "genre", "value": "m"}
                )
            ),
            "ids": plain(
                await client.complete(
                    ResourceTemplateReference(type="ref/resource", uri="library://books/{book_id}"),
                    {"name": "book_id", "value": "b"},
                )
            ),
            "progress": await progress_of(client),
            "cancel": await cancel(client),
            "asks": await ask(client, person),
            "changes": await listen(client),
        }
        return facts


def main() -> None:
    kind, target, *arguments = sys.argv[1:]
    server = target if kind == "http" else StdioServerParameters(command=target, args=arguments)
    print(json.dumps(asyncio.run(drive(server))))


main()
