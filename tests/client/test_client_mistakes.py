"""What a program that uses the client wrongly is told, and which frames it is shown."""

import traceback
from typing import Any

import pytest

import weft.sync
from support.fakes import DISCOVERED, FakePipe
from weft import Client, ConnectionFailed, RemoteError
from weft.client.mistakes import not_json, plainly
from weft.errors import UsageError

NOBODY = "http://127.0.0.1:9/mcp"


def discovered(pipe: FakePipe, message: dict[str, Any]) -> None:
    if message["method"] == "server/discover":
        pipe.answer(message, DISCOVERED)
    elif "id" in message:
        pipe.answer(message, error={"code": -32603, "message": "no"})


def own_frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if "/src/weft/" in frame.filename]


@pytest.mark.parametrize(
    ("value", "said"), [(1, "'int'; it needs to be text: '1'."), ([], "'list'; it needs to be text.")]
)
async def test_an_argument_of_a_prompt_that_is_no_text_is_named(value: Any, said: str) -> None:
    async with Client(FakePipe(discovered)) as client:
        with pytest.raises(UsageError) as caught:
            await client.get_prompt("plan", {"mood": "glad", "day": value})
    assert str(caught.value) == f"The argument 'day' of the prompt 'plan' is of the type {said}"


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"a": 1, "when": object()}, "arguments.when, of the type 'object'"),
        ({"a": [1, {"b": [object()]}]}, "arguments.a[1].b[0], of the type 'object'"),
        ({"a": {1j: 2}}, "arguments.a, of the type 'dict'"),
        ({"a": (1, 2j)}, "arguments.a[1], of the type 'complex'"),
        ({"a": "\ud800"}, "arguments.a, of the type 'str'"),
    ],
)
async def test_arguments_that_are_no_json_are_named(arguments: Any, place: str) -> None:
    async with Client(FakePipe(discovered)) as client:
        with pytest.raises(UsageError, match=r"^tools/call cannot be sent: ") as caught:
            await client.call_tool("book", arguments)
        assert place in str(caught.value)
        with pytest.raises(UsageError, match=r"^x/y cannot be sent: arguments\."):
            await client.notify("x/y", {"arguments": arguments})
        with pytest.raises(UsageError, match=r"^resources/read cannot be sent: uri\."):  # also what may be kept
            await client.read_resource(arguments)
        with pytest.raises(RemoteError):  # and the client lives on
            await client.call_tool("book", {})


def test_arguments_that_hold_themselves() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert "arguments[0]" in str(not_json("tools/call", {"arguments": endless}))


async def test_an_uncaught_error_shows_few_frames_of_weft() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        async with Client(NOBODY):
            pass
    assert own_frames(caught.value) == ["__aenter__"]
    async with Client(FakePipe(discovered)) as client:
        with pytest.raises(RemoteError) as refused:
            await client.call_tool("book", {})
    assert own_frames(refused.value) == ["call_tool"]


def test_so_does_the_client_that_waits() -> None:
    with pytest.raises(ConnectionFailed) as caught, weft.sync.Client(NOBODY):
        pass
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_so_does_the_client_that_waits", "__enter__"]


def test_frames_of_the_user_and_other_errors_are_kept() -> None:
    def users() -> None:
        raise UsageError("mine")

    with pytest.raises(UsageError) as caught:
        users()
    before = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    plainly(caught.value)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)] == before
    other = ValueError()
    plainly(other)
    assert other.__traceback__ is None
