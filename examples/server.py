"""A small town library: an example of a Weft server. Each feature is one decorator and one typed function.

weft run examples/server.py            serves it over stdio, for a client that starts it as a process
weft run examples/server.py --http     serves it at http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

from pydantic import Field

from weft import Context, ResourceNotFound, Server, ToolError
from weft.types import TextContent

server = Server(
    "library",
    version="1.0",
    title="The town library",
    instructions="Search before you lend: a book is lent by the id that search_books gives.",
)


@dataclass
class Book:
    id: str
    title: str
    author: str
    genre: str
    lent: bool = False


BOOKS = {
    book.id: book
    for book in (
        Book("b1", "The Left Hand of Darkness", "Ursula K. Le Guin", "science fiction"),
        Book("b2", "Kindred", "Octavia E. Butler", "science fiction"),
        Book("b3", "The Hound of the Baskervilles", "Arthur Conan Doyle", "mystery"),
        Book("b4", "Gaudy Night", "Dorothy L. Sayers", "mystery"),
        Book("b5", "Middlemarch", "George Eliot", "novel"),
    )
}
GENRES = sorted({book.genre for book in BOOKS.values()})


# Tools: the signature is the input schema, the return annotation is the output schema.


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def search_books(
    query: Annotated[str, Field(description="Words of a title or an author; empty for all books")] = "",
    genre: str | None = None,
) -> list[Book]:
    """Find books by title, author and genre."""
    words = query.lower().split()
    return [
        book
        for book in BOOKS.values()
        if all(word in f"{book.title} {book.author}".lower() for word in words) and genre in (None, book.genre)
    ]


def find(book_id: str) -> Book:
    if book_id not in BOOKS:
        raise ToolError(f"There is no book {book_id!r}: search for it first.")  # the model reads this sentence
    return BOOKS[book_id]


@server.tool
def lend(book_id: str) -> str:
    """Lend a book to the reader who asks.

    Args:
        book_id: The id that search_books gave.
    """
    book = find(book_id)
    if book.lent:
        raise ToolError(f"{book.title} is lent already.")
    book.lent = True
    return f"{book.title} is yours for three weeks."


@server.tool
async def take_stock(ctx: Context) -> str:
    """Count the books on the shelves, and report progress."""
    for number, book in enumerate(BOOKS.values(), start=1):
        await ctx.report_progress(number, len(BOOKS), f"Found {book.title}")
        await asyncio.sleep(0.02)
    return f"{len(BOOKS)} books, {sum(book.lent for book in BOOKS.values())} of them lent."


# Questions (elicitation, sampling, roots): a tool asks the user or the client's model while it runs. It may run again
# from the top when the answer comes, so use `ctx.once` for work that must happen only once.


@dataclass
class Reservation:
    reader: str
    day: Literal["Tuesday", "Saturday"]
    weeks: Annotated[int, Field(ge=1, le=6)] = 3


slips = count(1)


@server.tool
async def reserve(ctx: Context, book_id: str) -> str:
    """Reserve a book; ask the reader when it will be fetched."""
    book = find(book_id)
    slip = await ctx.once("slip", next, slips)
    answer = await ctx.elicit(f"Who fetches {book.title}, and when?", Reservation)
    if answer.action != "accept":
        return f"Nothing was reserved; slip {slip} is void."
    return f"Slip {slip}: {book.title} for {answer.value.reader} on {answer.value.day}, for {answer.value.weeks} weeks."


@server.tool
async def invite(ctx: Context, book_id: str) -> str:
    """Let the client's model write an invitation to a reading, and say in which folder to keep it."""
    book = find(book_id)
    letter, folders = await asyncio.gather(
        ctx.sample(f"Invite the town to a reading of {book.title}, in one sentence.", max_tokens=100),
        ctx.list_roots(),
    )
    text = letter.content.text if isinstance(letter.content, TextContent) else "Come and listen!"
    return f"{text} (To be kept in {folders[0].uri if folders else 'your pocket'}.)"


# Change notifications: clients that subscribed are notified, and read or list again.

notices: list[str] = ["The library opens at nine."]


@server.resource("library://notices", mime_type="text/plain")
def notice_board() -> str:
    """The notices on the board, one per line."""
    return "\n".join(notices)


@server.tool
def pin_notice(text: Annotated[str, Field(min_length=1, max_length=200)]) -> str:
    """Pin a notice to the board."""
    notices[1:] = [*notices[1:], text][-10:]
    server.notify_resource_updated("library://notices")
    return f"There are {len(notices)} notices now."


cafe = {"sign": "closed"}


def order_coffee(cups: Annotated[int, Field(ge=1, le=9)] = 1) -> str:
    """Order coffee, while the café is open."""
    return f"{cups} coffee, coming."


@server.tool
def turn_cafe_sign(to: Literal["open", "closed"]) -> str:
    """Open or close the café: a tool is added or removed, and clients are notified that the list of tools changed."""
    if cafe["sign"] == to:
        raise ToolError(f"The café is {to} already.")
    cafe["sign"] = to
    if to == "open":
        server.add_tool(order_coffee)
    else:
        server.remove_tool("order_coffee")
    return f"The café is {to}."


# Cancellation: a client may cancel a call. An async tool is then stopped at its current `await`, and can clean up.

waits_given_up: list[float] = []


@server.tool
async def wait_at_desk(ctx: Context, seconds: Annotated[float, Field(ge=0, le=3600)]) -> str:
    """Wait for the librarian; the client may cancel."""
    await ctx.report_progress(0, seconds, "Waiting")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        waits_given_up.append(seconds)
        raise
    return f"The librarian came after {seconds:g} seconds."


@server.tool
def count_given_up_waits() -> int:
    """Return how often a reader stopped waiting at the desk."""
    return len(waits_given_up)


# Resources: data that a client reads. A name in braces makes a URI template.


@server.resource("library://catalogue", mime_type="text/plain")
def catalogue() -> str:
    """All titles, one per line."""
    return "\n".join(f"{book.id}  {book.title}, {book.author}" for book in BOOKS.values())


@server.resource("library://books/{book_id}", mime_type="application/json")
def one_book(book_id: str) -> Book:
    """One book by its id."""
    if book_id not in BOOKS:
        raise ResourceNotFound(f"library://books/{book_id}")
    return BOOKS[book_id]


@server.completion(template="library://books/{book_id}", argument="book_id")
def complete_book_id(value: str) -> list[str]:
    return [id for id in BOOKS if id.startswith(value)]


# Prompts: texts with which a user starts a conversation.


@server.prompt
def recommend(genre: str, mood: str = "curious") -> str:
    """Ask for a book to read next."""
    return f"I am in a {mood} mood. Recommend one {genre} book from library://catalogue, and say why."


@server.completion(prompt="recommend", argument="genre")
def complete_genre(value: str) -> list[str]:
    return [genre for genre in GENRES if genre.startswith(value.lower())]


if __name__ == "__main__":
    server.run()
