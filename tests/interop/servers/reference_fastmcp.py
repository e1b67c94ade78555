"""The library on FastMCP 4.x: a server of both eras.

    python reference_fastmcp.py stdio
    python reference_fastmcp.py http PORT

Its asks are of the session era; in the stateless era a tool returns its question and is called again, so `ask` does
the one or the other. It has no subscriptions: those of the session era are set on the server beneath, and the
stateless era has none here.
"""

import asyncio
import json
import sys
import warnings
from typing import Any, Literal

import shelves
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.event_store import EventStore
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    EmptyResult,
    InputRequiredResult,
    ListRootsRequest,
    ResourceTemplateReference,
    SamplingMessage,
    SubscribeRequestParams,
    TextContent,
    ToolListChangedNotification,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field
from shelves import BOOKS, NOTICES

warnings.simplefilter("ignore")  # half of the session era is deprecated in the SDK beneath

server = FastMCP("library", version="1.0", instructions=shelves.INSTRUCTIONS)
low = server._mcp_server
subscribers: dict[Any, Any] = {}  # by connection: a session is of one request only


def find(book_id: str) -> dict[str, str]:
    if book_id not in BOOKS:
        raise ToolError(shelves.no_such_book(book_id))
    return BOOKS[book_id]


def is_stateless(ctx: Context) -> bool:
    return not ctx.session.can_send_request


def answer_to(ctx: Context) -> Any:
    """What was answered to the one question of a tool; None when it is still to be asked."""
    return (ctx.input_responses or {}).get("question")


def ask(request: Any) -> InputRequiredResult:
    return InputRequiredResult(input_requests={"question": request})


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def greet(name: str) -> str:
    """Greet a reader."""
    return f"Hello, {name}!"


@server.tool
def lend(book_id: str) -> str:
    """Lend a book."""
    return f"{find(book_id)['title']} is yours for three weeks."


@server.tool
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


@server.tool(output_schema=None)
async def reserve(ctx: Context, book_id: str) -> str | InputRequiredResult:
    """Reserve a book; the reader is asked when it will be fetched."""
    find(book_id)
    if not is_stateless(ctx):
        wish = await ctx.elicit(shelves.question(book_id), Reservation)
        return shelves.slip_text(book_id, wish.data if wish.action == "accept" else None)
    if (answer := answer_to(ctx)) is None:
        schema = Reservation.model_json_schema()
        params = ElicitRequestFormParams(message=shelves.question(book_id), requested_schema=schema)
        return ask(ElicitRequest(params=params))
    accepted = answer.action == "accept"
    return shelves.slip_text(book_id, Reservation.model_validate(answer.content) if accepted else None)


@server.tool(output_schema=None)
async def pay_fine(ctx: Context) -> str | InputRequiredResult:
    """Send the reader to a page to pay."""
    if not is_stateless(ctx):
        consent = await ctx.session.elicit_url(**shelves.FINE, related_request_id=ctx.request_id)
        await ctx.session.send_elicit_complete(shelves.FINE["elicitation_id"], related_request_id=ctx.request_id)
    elif (consent := answer_to(ctx)) is None:
        params = ElicitRequestURLParams(message=shelves.FINE["message"], url=shelves.FINE["url"])
        return ask(ElicitRequest(params=params))
    return "The page was opened." if consent.action == "accept" else "The fine is still due."


@server.tool(output_schema=None)
async def sample(ctx: Context, prompt: str) -> str | InputRequiredResult:
    """What the client's model says."""
    messages = [SamplingMessage(role="user", content=TextContent(text=prompt))]
    if not is_stateless(ctx):
        said = await ctx.session.create_message(messages, max_tokens=100, related_request_id=ctx.request_id)
    elif (said := answer_to(ctx)) is None:
        return ask(CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=100)))
    return said.content.text


@server.tool(output_schema=None)
async def roots(ctx: Context) -> str | InputRequiredResult:
    """The client's folders, one to a line."""
    if not is_stateless(ctx):
        found = await ctx.session.list_roots()
    elif (found := answer_to(ctx)) is None:
        return ask(ListRootsRequest())
    return "\n".join(str(root.uri) for root in found.roots)


@server.tool
async def announce(ctx: Context, text: str) -> str:
    """Say it aloud, and something under one's breath; FastMCP itself knows the client's level."""
    for level, words in shelves.remarks(text, "debug"):
        await ctx.log(words, level=level)
    return "Announced."


@server.tool
async def ring_back(ctx: Context) -> str:
    """Take a while; whoever is cut off hears the rest on coming back."""
    await ctx.report_progress(1, 2, "Ringing back")
    await asyncio.sleep(0.3)
    await ctx.report_progress(2, 2, "Rang back")
    return "Here you are."


@server.tool
async def hang_up(ctx: Context) -> str:
    """Close the stream in the middle of the call: a client of the session era comes back for the rest."""
    await ctx.report_progress(1, 2, "Hanging up")
    await ctx.close_sse_stream()
    await asyncio.sleep(0.3)
    await ctx.report_progress(2, 2, "Hung up")
    return "Here you are again."


@server.tool
async def wait_at_desk(ctx: Context, seconds: float) -> str:
    """Wait for the librarian; the client may cancel."""
    await ctx.report_progress(0, seconds, "Waiting")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        shelves.waits_given_up.append(seconds)
        raise
    return f"The librarian came after {seconds:g} seconds."


@server.tool
def count_given_up_waits() -> int:
    """How often a reader gave up waiting at the desk."""
    return len(shelves.waits_given_up)


@server.resource(NOTICES, mime_type="text/plain")
def notice_board() -> str:
    """What is pinned to the board, one notice to a line."""
    return "\n".join(shelves.notices)


@server.tool
async def pin_notice(text: str) -> str:
    """Pin a notice to the board."""
    shelves.notices.append(text)
    for session in list(subscribers.values()):
        await session.send_resource_updated(NOTICES)
    return f"There are {len(shelves.notices)} notices now."


def order_coffee(cups: int = 1) -> str:
    """Order coffee, while the café is open."""
    return f"{cups} coffee, coming."


@server.tool
async def turn_cafe_sign(ctx: Context, to: Literal["open", "closed"]) -> str:
    """Open or close the café: a tool comes or goes."""
    if to == "open":
        server.tool(order_coffee)
    else:
        server.local_provider.remove_tool("order_coffee")
    if not is_stateless(ctx):
        await ctx.session.send_notification(ToolListChangedNotification())
    return f"The café is {to}."


@server.resource("library://catalogue", mime_type="text/plain")
def catalogue() -> str:
    """All titles, one to a line."""
    return shelves.catalogue_text()


@server.resource("library://books/{book_id}", mime_type="application/json")
def one_book(book_id: str) -> str:
    """One book by its id."""
    return json.dumps(find(book_id))


@server.prompt
def recommend(genre: str, mood: str = "curious") -> str:
    """Ask for a book to read next."""
    return shelves.recommend_text(genre, mood)


@server.completion
async def complete(ref: Any, argument: Any, _context: Any) -> list[str]:
    return shelves.completions(isinstance(ref, ResourceTemplateReference), argument.value)


async def subscribe(ctx: Any, _params: Any) -> EmptyResult:
    subscribers[ctx.session._connection] = ctx.session
    return EmptyResult()


async def unsubscribe(ctx: Any, _params: Any) -> EmptyResult:
    subscribers.pop(ctx.session._connection, None)
    return EmptyResult()


low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)

if __name__ == "__main__":
    if sys.argv[1] == "http":
        import uvicorn

        app = server.http_app(event_store=EventStore(), retry_interval=100)
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
    else:
        server.run("stdio", show_banner=False, log_level="ERROR")
