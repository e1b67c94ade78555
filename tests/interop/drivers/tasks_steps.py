"""What the drivers of tasks share: the answers of the user and the model, and waiting for a state."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import ValidationError

Step = Callable[[Any, "Person"], Awaitable[Any]]
ANSWERS = {"wood": "oak", "height": 150, "wall": "north"}
PATIENCE = 30.0  # seconds until a state must be reached


class Person:
    """Answers as the user and the model, and stores what was asked."""

    def __init__(self) -> None:
        self.action = "accept"
        self.asked: list[Any] = []
        self.related: list[str | None] = []  # for each question of 2025-11-25, the id of the task in its `_meta`

    def relate(self, meta: Any) -> None:
        """Store to which task a question of 2025-11-25 belongs."""
        fields = {} if meta is None else plain(meta)
        self.related.append(fields.get("io.modelcontextprotocol/related-task", {}).get("taskId"))

    def answer_form(self, message: str, schema: dict[str, Any]) -> dict[str, Any] | None:
        """Return the content of a form, or None if the user declines."""
        fields = sorted(schema["properties"])
        self.asked.append([message, fields])
        return {name: ANSWERS[name] for name in fields} if self.action == "accept" else None

    def answer_prompt(self, text: str) -> str:
        """Return what the model says."""
        self.asked.append([text])
        return "Morning Light"


def plain(value: Any) -> Any:
    """Return a message of a peer's SDK as it is on the wire."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def text_of(result: Any) -> str:
    """Return the first text of a result."""
    return result["content"][0]["text"]


async def error_of(awaitable: Awaitable[Any]) -> dict[str, Any]:
    """Return the JSON-RPC error with which a request ends, or its result, if the SDK can read it."""
    try:
        return {"result": plain(await awaitable)}
    except ValidationError:
        return {"unreadable": True}
    except Exception as error:
        found = getattr(error, "error", None)
        if found is None:
            raise
        return plain(found)


async def reach(read: Callable[[], Awaitable[Any]], wanted: Callable[[Any], bool]) -> Any:
    """Return the first state that is wanted. Raises TimeoutError if it does not come."""
    async with asyncio.timeout(PATIENCE):
        while not wanted(state := await read()):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        return state


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true. Raises TimeoutError if it does not become true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


async def take(steps: Mapping[str, Step], peer: Any, person: Person) -> dict[str, Any]:
    """Take the steps that the command line names, or all, and return what came of each."""
    wanted = list(steps) if sys.argv[1] == "all" else sys.argv[1].split(",")
    return {name: await steps[name](peer, person) for name in wanted}


def report(run: Callable[[str, list[str], Person], Awaitable[dict[str, Any]]]) -> None:
    """Run a driver, and print its facts as one line of JSON.

    The command line is `STEPS http URL` or `STEPS stdio COMMAND ARGUMENT...`. STEPS are names, or "all".
    """
    print(json.dumps(asyncio.run(asyncio.wait_for(run(sys.argv[2], sys.argv[3:], Person()), 90))))
