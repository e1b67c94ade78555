"""What the library has and says, for the servers on the peers' Python SDKs: no SDK is imported here."""

import json
from itertools import count
from pathlib import Path
from typing import Any

BOOKS: dict[str, dict[str, str]] = {
    book["id"]: book for book in json.loads((Path(__file__).parent / "books.json").read_text())
}
GENRES = sorted({book["genre"] for book in BOOKS.values()})
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
INSTRUCTIONS = "Search before you lend: a book is lent by the id that search_books gives."
NOTICES = "library://notices"
FINE = {"message": "Pay your fine of 2 francs.", "url": "https://library.example/fines/7", "elicitation_id": "fine-7"}

notices = ["The library opens at nine."]
slips = count(1)
waits_given_up: list[float] = []


def catalogue_text() -> str:
    return "\n".join(f"{book['id']}  {book['title']}, {book['author']}" for book in BOOKS.values())


def recommend_text(genre: str, mood: str) -> str:
    return f"I am in a {mood} mood. Recommend one {genre} book from library://catalogue, and say why."


def no_such_book(book_id: str) -> str:
    return f"There is no book {book_id!r}: search for it first."


def question(book_id: str) -> str:
    return f"Who fetches {BOOKS[book_id]['title']}, and when?"


def slip_text(book_id: str, wish: Any) -> str:
    """What a reservation comes to; `wish` is what was answered, or None."""
    slip, title = next(slips), BOOKS[book_id]["title"]
    if wish is None:
        return f"Nothing was reserved; slip {slip} is void."
    return f"Slip {slip}: {title} for {wish.reader} on {wish.day}, for {wish.weeks} weeks."


def remarks(text: str, least: str) -> list[tuple[str, str]]:
    """What `announce` says, of what a client that set this level wants to hear."""
    said = [("debug", f"({text})"), ("warning", text)]
    return [(level, words) for level, words in said if LEVELS.index(level) >= LEVELS.index(least)]


def completions(of_template: bool, value: str) -> list[str]:
    return [name for name in (BOOKS if of_template else GENRES) if name.startswith(value)]


class Events:
    """Every event of every stream, in order; an id is a place in that order. Mixed into an SDK's EventStore."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        from mcp.server.streamable_http import EventMessage

        stream = self.events[int(last_event_id)][0]
        for number in range(int(last_event_id) + 1, len(self.events)):
            stream_id, message = self.events[number]
            if stream_id == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
