"""What every Python client of the session era does with the library, whatever its API: the drivers import this.

A driver brings a `Peer`: its client's verbs under common names, with results as they stand on the wire.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

NOTICES = "library://notices"
Progress = Callable[[float, float | None, str | None], Awaitable[None]]


class Peer(Protocol):
    """A client under common names."""

    async def opening(self) -> dict[str, Any]: ...
    async def list(self, what: str) -> Any: ...
    async def call(self, name: str, arguments: dict[str, Any], progress: Progress | None = None) -> Any: ...
    async def cancel(self, call: "asyncio.Task[Any]") -> None: ...
    async def read(self, uri: str) -> Any: ...
    async def prompt(self, name: str, arguments: dict[str, str]) -> Any: ...
    async def complete(self, kind: str, name: str, argument: str, value: str) -> Any: ...
    async def subscribe(self, uri: str) -> None: ...
    async def unsubscribe(self, uri: str) -> None: ...
    async def set_level(self, level: str) -> None: ...
    async def ping(self) -> bool: ...


class Person:
    """Who answers: the user, the model and the host of this client. Remembers what was asked and heard."""

    def __init__(self) -> None:
        self.action = "accept"
        self.asked: list[Any] = []
        self.logged: list[Any] = []
        self.changes: list[str] = []
        self.completed: list[str] = []

    def answer_form(self, message: str, schema: dict[str, Any]) -> dict[str, Any] | None:
        self.asked.append(["form", message, sorted(schema["properties"])])
        return {"reader": "Ada", "day": "Saturday", "weeks": 2} if self.action == "accept" else None

    def answer_url(self, message: str, url: str, id: str | None) -> None:
        self.asked.append(["url", message, url, bool(id)])

    def answer_prompt(self, text: str, max_tokens: int) -> str:
        self.asked.append(["sample", text, max_tokens])
        return "Come, all!"

    def answer_roots(self) -> str:
        self.asked.append(["roots"])
        return "file:///home/ada"

    def hear(self, method: str, params: Any) -> None:
        if method == "notifications/resources/updated":
            self.changes.append(str(params.uri))
        elif method == "notifications/tools/list_changed":
            self.changes.append("tools")
        elif method == "notifications/elicitation/complete":
            self.completed.append("complete")


def plain(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def text_of(result: Any) -> str:
    return result["content"][0]["text"]


async def error_of(awaitable: Awaitable[Any]) -> dict[str, Any]:
    """The error that a request ends with: `McpError` in 1.x, `MCPError` in 2.x."""
    try:
        return {"result": await awaitable}
    except Exception as error:
        found = getattr(error, "error", None)
        if found is None:
            raise
        return {"code": found.code, "message": found.message}


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what a notification brings, at most some seconds; whether it came is for the report to say."""
    for _ in range(100):
        if condition():
            return
        await asyncio.sleep(0.05)


async def with_progress(peer: Peer, tool: str) -> dict[str, Any]:
    heard: list[Any] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append([progress, total, message])

    result = await asyncio.wait_for(peer.call(tool, {}, hear), 30)
    return {"heard": heard, "text": text_of(result)}


async def give_up(peer: Peer) -> dict[str, Any]:
    """Gives a call up as soon as the server is known to be at work on it."""
    begun = asyncio.Event()

    async def hear(_progress: float, _total: float | None, _message: str | None) -> None:
        begun.set()

    async def count() -> int:
        return int(text_of(await peer.call("count_given_up_waits", {})))

    before = after = await count()
    call = asyncio.create_task(peer.call("wait_at_desk", {"seconds": 600}, hear))
    await asyncio.wait_for(begun.wait(), 30)
    await peer.cancel(call)
    for _ in range(100):
        if (after := await count()) != before:
            break
        await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.wait([call], timeout=30)
    return {"before": before, "after": after}


async def ask(peer: Peer, person: Person) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for action in ("accept", "decline", "cancel"):
        person.action = action
        facts[action] = text_of(await peer.call("reserve", {"book_id": "b1"}))
    person.action = "accept"
    facts["url"] = text_of(await peer.call("pay_fine", {}))
    facts["sample"] = text_of(await peer.call("sample", {"prompt": "Invite the town."}))
    facts["roots"] = text_of(await peer.call("roots", {}))
    return {**facts, "asked": person.asked}


async def log(peer: Peer, person: Person) -> list[Any]:
    await peer.set_level("info")
    await peer.call("announce", {"text": "We close soon."})
    await until(lambda: bool(person.logged))
    return person.logged


async def hear_changes(peer: Peer, person: Person) -> dict[str, Any]:
    """What is heard of three changes, what is read and listed upon hearing of them, and that it ends."""
    await peer.subscribe(NOTICES)
    await peer.call("pin_notice", {"text": "Lost: one glove."})
    await until(lambda: len(person.changes) == 1)
    board = await peer.read(NOTICES)
    menus: list[bool] = []
    for number, to in enumerate(("open", "closed"), start=2):
        await peer.call("turn_cafe_sign", {"to": to})
        await until(lambda wanted=number: len(person.changes) == wanted)
        menus.append(any(tool["name"] == "order_coffee" for tool in (await peer.list("tools"))["tools"]))
    await peer.unsubscribe(NOTICES)
    await peer.call("pin_notice", {"text": "Found: one glove."})
    await peer.call("turn_cafe_sign", {"to": "open"})
    await until(lambda: len(person.changes) == 4)
    await peer.call("turn_cafe_sign", {"to": "closed"})
    await until(lambda: len(person.changes) == 5)
    return {"heard": person.changes, "board": board["contents"][0]["text"], "menus": menus}


async def drive(peer: Peer, person: Person) -> dict[str, Any]:
    """All of it, in an order that leaves the server as it was found."""
    lists = {what: await peer.list(what) for what in ("tools", "resources", "templates", "prompts")}
    hangs_up = any(tool["name"] == "hang_up" for tool in lists["tools"]["tools"])
    return {
        **await peer.opening(),
        **lists,
        "ping": await peer.ping(),
        "sum": await peer.call("add", {"a": 2, "b": 3}),
        "greeting": await peer.call("greet", {"name": "Ada"}),
        "tool_error": await peer.call("lend", {"book_id": "none"}),
        "unknown_tool": await error_of(peer.call("no_such_tool", {})),
        "catalogue": await peer.read("library://catalogue"),
        "book": await peer.read("library://books/b3"),
        "unknown_resource": await error_of(peer.read("library://nowhere")),
        "prompt": await peer.prompt("recommend", {"genre": "mystery"}),
        "genres": await peer.complete("prompt", "recommend", "genre", "m"),
        "ids": await peer.complete("template", "library://books/{book_id}", "book_id", "b"),
        "progress": await with_progress(peer, "take_stock"),
        "cancel": await give_up(peer),
        "asks": await ask(peer, person),
        "logged": await log(peer, person),
        "changes": await hear_changes(peer, person),
        "ring_back": await with_progress(peer, "ring_back"),
        "hang_up": await with_progress(peer, "hang_up") if hangs_up else None,
        "completed": person.completed,
    }


def report(run: Callable[[str, list[str], Person], Awaitable[dict[str, Any]]]) -> None:
    """The driver's main: `http URL` or `stdio COMMAND ARGUMENT...`; prints the report as one line of JSON."""
    facts = asyncio.run(asyncio.wait_for(run(sys.argv[1], sys.argv[2:], Person()), 60))
    print(json.dumps(facts))
