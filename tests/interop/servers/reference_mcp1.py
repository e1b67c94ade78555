"""The library on the official Python SDK 1.x (its FastMCP class): a server of the session era.

    python reference_mcp1.py stdio
    python reference_mcp1.py http PORT

FastMCP has no decorator for subscriptions, log levels and list_changed: those are set on the server beneath it.
"""

import asyncio
import json
import sys
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import shelves
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.streamable_http import EventStore
from mcp.types import Completion, ResourceTemplateReference, SamplingMessage, TextContent
from pydantic import BaseModel, Field
from shelves import BOOKS, NOTICES


class Events(shelves.Events, EventStore):
    pass


server = FastMCP(
    "library",
    instructions=shelves.INSTRUCTIONS,
    log_level="ERROR",
    port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000,
    event_store=Events(),
    retry_interval=100,
)
low = server._mcp_server
subscribers: WeakSet[Any] = WeakSet()
levels: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def find(book_id: str) -> dict[str, str]:
    if book_id not in BOOKS:
        raise ToolError(shelves.no_such_book(book_id))
    return BOOKS[book_id]


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def greet(name: str) -> str:
    """Greet a reader."""
    return f"Hello, {name}!"


@server.tool()
def lend(book_id: str) -> str:
    """Lend a book."""
    return f"{find(book_id)['title']} is yours for three weeks."


@server.tool()
async def take_stock(ctx: Context) -> str:
    """Count the books, telling how far we are."""
    for number, book in enumerate(BOOKS.values(), start=1):
        await ctx.report_progress(number, len(BOOKS), f"Found {book['title']}")
        await asyncio.sleep(0.02)
    return f"{len(BOOKS)} books, 0 of them lent."


class Reservation(BaseModel):
    reader: str
    day: str = Field(json_schema_extra={"enum": ["Tuesday", "Saturday"]})  # it takes no Literal here
    weeks: int = Field(default=3, ge=1, le=6)


@server.tool()
async def reserve(ctx: Context, book_id: str) -> str:
    """Reserve a book; the reader is asked when it will be fetched."""
    find(book_id)
    wish = await ctx.elicit(shelves.question(book_id), Reservation)
    return shelves.slip_text(book_id, wish.data if wish.action == "accept" else None)


@server.tool()
async def pay_fine(ctx: Context) -> str:
    """Send the reader to a page to pay."""
    consent = await ctx.elicit_url(**shelves.FINE)
    if consent.action != "accept":
        return "The fine is still due."
    await ctx.session.send_elicit_complete(shelves.FINE["elicitation_id"], related_request_id=ctx.request_id)
    return "The page was opened."


@server.tool()
async def sample(ctx: Context, prompt: str) -> str:
    """What the client's model says."""
    asked = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    said = await ctx.session.create_message([asked], max_tokens=100, related_request_id=ctx.request_id)
    return said.content.text


@server.tool()
async def roots(ctx: Context) -> str:
    """The client's folders, one to a line."""
    return "\n".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def announce(ctx: Context, text: str) -> str:
    """Say it aloud, and something under one's breath."""
    for level, words in shelves.remarks(text, levels.get(ctx.session, "debug")):
        await ctx.log(level, words)
    return "Announced."


@server.tool()
async def ring_back(ctx: Context) -> str:
    """Take a while; whoever is cut off hears the rest on coming back."""
    await ctx.report_progress(1, 2, "Ringing back")
    await asyncio.sleep(0.3)
    await ctx.report_progress(2, 2, "Rang back")
    return "Here you are."


@server.tool()
async def hang_up(ctx: Context) -> str:
    """Close the stream in the middle of the call: the client comes back for the rest."""
    await ctx.report_progress(1, 2, "Hanging up")
    await ctx.close_sse_stream()
    await asyncio.sleep(0.3)
    await ctx.report_progress(2, 2, "Hung up")
    return "Here you are again."


@server.tool()
async def wait_at_desk(ctx: Context, seconds: float) -> str:
    """Wait for the librarian; the client may cancel."""
    await ctx.report_progress(0, seconds, "Waiting")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        shelves.waits_given_up.append(seconds)
        raise
    return f"The librarian came after {seconds:g} seconds."


@server.tool()
def count_given_up_waits() -> int:
    """How often a reader gave up waiting at the desk."""
    return len(shelves.waits_given_up)


@server.resource(NOTICES, mime_type="text/plain")
def notice_board() -> str:
    """What is pinned to the board, one notice to a line."""
    return "\n".join(shelves.notices)


@server.tool()
async def pin_notice(text: str) -> str:
    """Pin a notice to the board."""
    shelves.notices.append(text)
    for session in list(subscribers):
        await session.send_resource_updated(NOTICES)
    return f"There are {len(shelves.notices)} notices now."


def order_coffee(cups: int = 1) -> str:
    """Order coffee, while the café is open."""
    return f"{cups} coffee, coming."


@server.tool()
async def turn_cafe_sign(ctx: Context, to: Literal["open", "closed"]) -> str:
    """Open or close the café: a tool comes or goes."""
    if to == "open":
        server.add_tool(order_coffee)
    else:
        server.remove_tool("order_coffee")
    await ctx.session.send_tool_list_changed()
    return f"The café is {to}."


@server.resource("library://catalogue", mime_type="text/plain")
def catalogue() -> str:
    """All titles, one to a line."""
    return shelves.catalogue_text()


@server.resource("library://books/{book_id}", mime_type="application/json")
def one_book(book_id: str) -> str:
    """One book by its id."""
    return json.dumps(find(book_id))


@server.prompt()
def recommend(genre: str, mood: str = "curious") -> str:
    """Ask for a book to read next."""
    return shelves.recommend_text(genre, mood)


@server.completion()
async def complete(ref: Any, argument: Any, _context: Any) -> Completion:
    return Completion(values=shelves.completions(isinstance(ref, ResourceTemplateReference), argument.value))


@low.subscribe_resource()
async def subscribe(_uri: Any) -> None:
    subscribers.add(low.request_context.session)


@low.unsubscribe_resource()
async def unsubscribe(_uri: Any) -> None:
    subscribers.discard(low.request_context.session)


@low.set_logging_level()
async def set_level(level: str) -> None:
    levels[low.request_context.session] = level


plain_options = low.create_initialization_options


def options() -> Any:
    """As they are by default, and what the server beneath does but does not declare."""
    made = plain_options(NotificationOptions(tools_changed=True))
    made.capabilities.resources.subscribe = True
    return made


low.create_initialization_options = options

if __name__ == "__main__":
    server.run("streamable-http" if sys.argv[1] == "http" else "stdio")
