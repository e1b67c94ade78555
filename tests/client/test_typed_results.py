"""Results as values of a type, and tools that failed as exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

import weft.sync
from support.fakes import DISCOVERED, FakePipe
from weft import Client, Context, InvalidAnswer, Server, ToolCallFailed, ToolError
from weft.client.results import ToolResult, read_value
from weft.types import TextContent

ERAS = pytest.mark.parametrize("era", ["stateless", "session"])

server = Server("typed")


class Flight(BaseModel):
    number: str
    day: date


@dataclass
class Seat:
    row: int
    letter: str = "A"


@server.tool
def add(a: int, b: int) -> int:
    return a + b


@server.tool
def names() -> list[str]:
    return ["LX38", "LX14"]


@server.tool
def say(text: str) -> str:
    return text


@server.tool
def flight() -> Flight:
    return Flight(number="LX38", day=date(2026, 7, 28))


@server.tool
def today() -> date:
    return date(2026, 7, 28)


@server.tool
def seat() -> Seat:
    return Seat(12)


@server.tool
def fail() -> int:
    raise ToolError("There is no such flight.")


@ERAS
@pytest.mark.parametrize(
    ("name", "arguments", "kind", "value"),
    [
        ("add", {"a": 1, "b": 2}, int, 3),
        ("add", {"a": 1, "b": 2}, float, 3.0),
        ("names", {}, list[str], ["LX38", "LX14"]),
        ("names", {}, tuple[str, str], ("LX38", "LX14")),
        ("say", {"text": "5"}, str, "5"),
        ("say", {"text": '"5"'}, str, '"5"'),
        ("flight", {}, Flight, Flight(number="LX38", day=date(2026, 7, 28))),
        ("flight", {}, dict[str, str], {"number": "LX38", "day": "2026-07-28"}),
        ("today", {}, date, date(2026, 7, 28)),
        ("seat", {}, Seat, Seat(12)),
    ],
)
async def test_a_value_of_the_type(era: Any, name: str, arguments: dict[str, Any], kind: Any, value: Any) -> None:
    async with Client(server, eras=[era]) as client:
        assert await client.call_tool(name, arguments, result_type=kind) == value


@ERAS
@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("add", bool, "The result of 'add' is not of the type bool: Input should be a valid boolean."),
        ("add", Seat, "The result of 'add' is not of the type Seat: "),
        ("names", list[int], "The result of 'names' is not of the type list[int]: 0: Input should be a valid integer."),
        ("say", int, "The result of 'say' is not of the type int: Invalid JSON: "),
    ],
)
async def test_a_value_of_another_type(era: Any, name: str, kind: Any, said: str) -> None:
    given = {"add": {"a": 1, "b": 2}, "say": {"text": "three"}}
    async with Client(server, eras=[era]) as client:
        with pytest.raises(InvalidAnswer) as caught:
            await client.call_tool(name, given.get(name), result_type=kind)
    assert str(caught.value).startswith(said)


@ERAS
@pytest.mark.parametrize("options", [{"result_type": int}, {"raise_on_error": True}])
async def test_a_tool_that_failed(era: Any, options: dict[str, Any]) -> None:
    async with Client(server, eras=[era]) as client:
        assert (await client.call_tool("fail")).is_error
        with pytest.raises(ToolCallFailed, match=r"^The tool 'fail' failed: There is no such flight\.$") as caught:
            await client.call_tool("fail", **options)
        assert caught.value.result.is_error
        assert not (await client.call_tool("add", {"a": 1, "b": 2}, raise_on_error=True)).is_error


@pytest.mark.parametrize("value", [3, {"result": 3}])
def test_what_a_server_wrapped_is_unwrapped(value: Any) -> None:
    assert read_value("add", ToolResult(structured_content=value), int) == 3


def test_an_object_is_not_unwrapped_where_it_fits() -> None:
    result = ToolResult(structured_content={"result": 3}, content=[TextContent("3")])
    assert read_value("add", result, dict[str, int]) == {"result": 3}


def test_a_client_that_waits() -> None:
    with weft.sync.Client(server) as client:
        assert client.call_tool("add", {"a": 1, "b": 2}, result_type=int) == 3
        with pytest.raises(ToolCallFailed):
            client.call_tool("fail", raise_on_error=True)


@pytest.mark.security("D4")
@ERAS
async def test_the_failure_of_a_tool_elsewhere_is_not_passed_on(era: Any) -> None:
    text = {"content": [{"type": "text", "text": "key=s3cret"}], "isError": True}
    upstream = FakePipe(lambda pipe, message: pipe.answer(message, {**DISCOVERED, **text}))
    gateway = Server("gateway")

    @gateway.tool
    async def pass_on(ctx: Context) -> int:
        async with Client(upstream) as client:
            return await client.call_tool("t", result_type=int)

    async with Client(gateway, eras=[era]) as client:
        result = await client.call_tool("pass_on")
    assert result.is_error
    assert "s3cret" not in str(result)
