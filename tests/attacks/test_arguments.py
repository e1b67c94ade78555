"""Arguments made to hurt: many unknown ones, many values of a wrong type, requests that are large and fail.

Each runs against a server in a process of its own: it gives its memory back, and another caller hardly notices.
"""

from typing import Any

import pytest

from support.attacks import MB, SERVER, assert_harmless, attacked_server
from support.wire import ACCEPT_BOTH, encode, headers_for, message
from weft.limits import DEFAULT_LIMITS

MOST = DEFAULT_LIMITS.json_values - 1000  # the rest of a request has some, too
MEMBERS, ARRAYS = MOST // 11, MOST // 11  # each counts ten times, and so do the commas between them, once

MODELS = (
    SERVER
    + """
import dataclasses, uuid
from decimal import Decimal

from pydantic import BaseModel

from weft import Context, ToolError


class Seat(BaseModel):
    row: int
    letter: str


@server.tool
def book(seat: Seat) -> str:
    return seat.letter


@server.tool
def refuse(text: str) -> str:
    raise ToolError("no")


@server.tool
async def hold(ctx: Context, text: str) -> int:
    return len(text)


@dataclasses.dataclass
class Order:
    parts: dict[int, int] | None = None


@server.tool
def tell_apart(
    whole: set[int] = set(),
    rows: dict[int, int] = {},
    prices: frozenset[Decimal] = frozenset(),
    ids: set[uuid.UUID] = set(),
    places: set[tuple[int, int]] = set(),
    anything: set = set(),
    order: Order = Order(),
) -> int:
    return sum(map(len, (whole, rows, prices, ids, places, anything, order.parts or {})))


@server.prompt
def greet(name: str) -> str:
    return name


@server.completion(prompt="greet", argument="name")
def names(value: str) -> list[str]:
    return []
"""
)


def unknown(count: int) -> dict[str, int]:
    return {f"key{number:06}": 1 for number in range(count)}


# The largest that are read, and larger ones that are not.
ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown arguments": ("add", unknown(MEMBERS)),
    "too many unknown arguments": ("add", unknown(200_000)),
    "unknown fields": ("book", {"seat": unknown(MEMBERS)}),
    "wrong items": ("total", {"numbers": [[]] * ARRAYS}),
    "too many wrong items": ("total", {"numbers": [[]] * 900_000}),
    "an array for a number": ("add", {"a": [[]] * ARRAYS, "b": 1}),
    "too large an array for a number": ("add", {"a": [[]] * 900_000, "b": 1}),
    "numbers": ("total", {"numbers": [1] * MOST}),
    "texts": ("total", {"numbers": [""] * MOST}),
    "too many texts": ("total", {"numbers": [""] * 1_300_000}),
    "brackets in a text": ("add", {"a": "[" * 3_900_000, "b": 1}),
    "quotes in a text": ("add", {"a": '",' * 1_300_000, "b": 1}),
}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "a function that refuses": ("refuse", {"text": "x" * 3_900_000}),
    "a function with a Context": ("hold", {"text": "x" * 3_900_000}),
}

# Numbers that have one hash in Python, which takes them modulo 2**61 - 1: each is compared with all others.
ALIKE = [number * (2**61 - 1) for number in range(1, 20_001)]
COLLISIONS: dict[str, Any] = {
    "whole": ALIKE,
    "rows": dict.fromkeys(map(str, ALIKE), 1),
    "prices": [str(number) for number in ALIKE],
    "ids": [f"{number:032x}" for number in ALIKE],
    "places": [[number, 1] for number in ALIKE],
    "anything": ALIKE,
    "order": {"parts": dict.fromkeys(map(str, ALIKE), 1)},
}

PEAK = 200 * MB  # that a server may take meanwhile
TIMES = 20


@pytest.mark.security("D4", "R1")
@pytest.mark.parametrize("name", [*ARGUMENTS, *LARGE])
def test_over_http(name: str) -> None:
    tool, arguments = {**ARGUMENTS, **LARGE}[name]
    with attacked_server(MODELS) as target:
        request = message("tools/call", {"name": tool, "arguments": arguments})
        body, headers = encode(request), headers_for(request)
        report = target.attack(lambda: [target.send(body, headers).status for _ in range(TIMES)])
        assert_harmless(report, peak=PEAK)
        assert target.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5


@pytest.mark.security("D4", "R1")
@pytest.mark.parametrize("name", ["unknown arguments", "an array for a number", "a function that refuses"])
def test_in_a_session(name: str) -> None:
    tool, arguments = {**ARGUMENTS, **LARGE}[name]
    with attacked_server(MODELS) as target:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        plain = [("Content-Type", "application/json"), ("Accept", ACCEPT_BOTH)]
        opened = target.send(bare("initialize", client), plain)
        headers = [*plain, ("Mcp-Session-Id", opened.headers["mcp-session-id"])]
        body = bare("tools/call", {"name": tool, "arguments": arguments})
        report = target.attack(lambda: [target.send(body, headers).status for _ in range(TIMES)])
        assert_harmless(report, peak=PEAK)


@pytest.mark.security("D4", "R1")
@pytest.mark.parametrize("name", ["unknown arguments", "too many unknown arguments", "a function with a Context"])
def test_on_stdio(name: str) -> None:
    tool, arguments = {**ARGUMENTS, **LARGE}[name]
    with attacked_server(MODELS, transport="stdio") as target:
        line = encode(message("tools/call", {"name": tool, "arguments": arguments}))

        def attack() -> None:
            for _ in range(TIMES):
                target.send_line(line)
                assert target.read_line()

        assert_harmless(target.attack(attack), peak=PEAK)
        assert target.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5


@pytest.mark.security("D4", "R7")
def test_numbers_with_one_hash() -> None:
    with attacked_server(MODELS) as target:

        def attack() -> None:
            for name, value in COLLISIONS.items():
                request = message("tools/call", {"name": "tell_apart", "arguments": {name: value}})
                answer = target.send(encode(request), headers_for(request)).result
                assert answer["isError"], name
                assert "one and the same hash" in answer["content"][0]["text"]

        report = target.attack(attack)
        assert_harmless(report, peak=PEAK)
        assert report.seconds < 3


@pytest.mark.security("D4", "R1")
@pytest.mark.parametrize("method", ["prompts/get", "completion/complete"])
def test_of_prompts_and_completions(method: str) -> None:
    many = dict.fromkeys(unknown(MEMBERS), "")
    params = {
        "prompts/get": {"name": "greet", "arguments": many},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": "greet"},
            "argument": {"name": "name", "value": "x"},
            "context": {"arguments": many},
        },
    }[method]
    with attacked_server(MODELS) as target:
        request = message(method, params)
        body, headers = encode(request), headers_for(request)
        report = target.attack(lambda: [target.send(body, headers).status for _ in range(TIMES)])
        assert_harmless(report, peak=PEAK)


def bare(method: str, params: Any) -> bytes:
    """A request of the session era."""
    return encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
