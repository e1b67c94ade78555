"""The library on the official Python SDK 2.x: a server of both eras.

    python reference_mcp2.py stdio
    python reference_mcp2.py http PORT

What asks is a resolver (`Resolve`), which the SDK serves in either era; a URL has no resolver, so `pay_fine` asks for
itself. Subscriptions and log levels of the session era are set on the server beneath.
"""

import asyncio
import json
import sys
import warnings
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

import shelves
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, ListRoots, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.streamable_http import EventStore
from mcp_types import (
    Completion,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestURLParams,
    EmptyResult,
    InputRequiredResult,
    ListRootsResult,
    ResourceTemplateReference,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field
from shelves import BOOKS, NOTICES

warnings.simplefilter("ignore")  # half of the session era is deprecated in 2.x


class Events(shelves.Events, EventStore):
    pass


server = MCPServer("library", version="1.0", instructions=shelves.INSTRUCTIONS, log_level="ERROR")
low = server._lowlevel_server
subscribers: dict[Any, Any] = {}  # by connection: a session is of one request only
levels: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def is_stateless(ctx: Context) -> bool:
    return not ctx.session.can_send_request


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
    day: Literal["Tuesday", "Saturday"]
    weeks: int = Field(default=3, ge=1, le=6)


def ask_reader(book_id: str) -> Elicit[Reservation]:
    find(book_id)
    return Elicit(shelves.question(book_id), Reservation)


@server.tool()
async def reserve(book_id: str, wish: Annotated[ElicitationResult[Reservation], Resolve(ask_reader)]) -> str:
    """Reserve a book; the reader is asked when it will be fetched."""
    return shelves.slip_text(book_id, wish.data if wish.action == "accept" else None)


@server.tool()
async def pay_fine(ctx: Context) -> str | InputRequiredResult:
    """Send the reader to a page to pay."""
    if not is_stateless(ctx):
        consent = await ctx.elicit_url(**shelves.FINE)
        await ctx.session.send_elicit_complete(shelves.FINE["elicitation_id"], related_request_id=ctx.request_id)
    elif ctx.input_responses is None:
        params = ElicitRequestURLParams(message=shelves.FINE["message"], url=shelves.FINE["url"])
        return InputRequiredResult(input_requests={"fine": ElicitRequest(params=params)})
    else:
        consent = ctx.input_responses["fine"]
    return "The page was opened." if consent.action == "accept" else "The fine is still due."


def ask_model(prompt: str) -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(text=prompt))], max_tokens=100)


@server.tool()
async def sample(prompt: str, said: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """What the client's model says."""
    return said.content.text


def ask_host() -> ListRoots:
    return ListRoots()


@server.tool()
async def roots(found: Annotated[ListRootsResult, Resolve(ask_host)]) -> str:
    """The client's folders, one to a line."""
    return "\n".join(str(root.uri) for root in found.roots)


@server.tool()
async def announce(ctx: Context, text: str) -> str:
    """Say it aloud, and something under one's breath."""
    for level, words in shelves.remarks(text, levels.get(ctx.session._connection, "debug")):
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
    """Close the stream in the middle of the call: a client of the session era comes back for the rest."""
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
async def pin_notice(ctx: Context, text: str) -> str:
    """Pin a notice to the board."""
    shelves.notices.append(text)
    await ctx.notify_resource_updated(NOTICES)
    for session in list(subscribers.values()):
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
    await ctx.notify_tools_changed()
    if not is_stateless(ctx):
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


async def subscribe(ctx: Any, _params: Any) -> EmptyResult:
    subscribers[ctx.session._connection] = ctx.session
    return EmptyResult()


async def unsubscribe(ctx: Any, _params: Any) -> EmptyResult:
    subscribers.pop(ctx.session._connection, None)
    return EmptyResult()


async def set_level(ctx: Any, params: SetLevelRequestParams) -> EmptyResult:
    levels[ctx.session._connection] = params.level
    return EmptyResult()


low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
low.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)
plain_options = low.create_initialization_options
low.create_initialization_options = lambda: plain_options(NotificationOptions(tools_changed=True))

if __name__ == "__main__":
    if sys.argv[1] == "http":
        server.run("streamable-http", port=int(sys.argv[2]), event_store=Events(), retry_interval=100)
    else:
        server.run("stdio")
