"""What a program that uses the client wrongly is told, and which frames it is shown."""

import functools
import re
import traceback
from typing import Any

import pytest

import weft.sync
from support.fakes import DISCOVERED, FakePipe
from weft import Client, ClientLimits, ConnectionFailed, RemoteError, Server
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


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        (Server("x"), {"log_level": "warn"}, "The log level cannot be 'warn'; use one of 'debug', 'info', 'notice', "),
        (Server("x"), {"log_level": 5}, "The log level cannot be something of the type 'int'; use one of 'debug', "),
        (Server("x"), {"limits": 5}, "limits= was given something of the type 'int'; give ClientLimits(request_sec"),
        (Server("x"), {"headers": "x"}, "headers= was given something of the type 'str'; give a dict such as {'X-Key'"),
        (NOBODY, {"headers": {"X": 5}}, "headers= has something of the type 'int' at 'X'; names and values are text."),
        (NOBODY, {"headers": {"a b": "s3cret"}}, "headers= has the header 'a b', which cannot be sent; take out what"),
        (NOBODY, {"headers": {"X": "s3cret\n"}}, "headers= has the header 'X', which cannot be sent; take out what"),
        (NOBODY, {"auth": "Bearer s3cret"}, "The token cannot be sent as it is: leave off 'Bearer ', which is put be"),
        (Server, {}, "A client was given the class Server; give it an instance of it."),
        (["a 'b'"], {"auth": "x"}, """auth= is for servers at a URL; the command `'a '"'"'b'"'"''` gets credentials"""),
    ],
)
def test_what_a_client_cannot_be_given(target: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(target, **options)
    assert str(caught.value).startswith(said)
    assert "s3cret" not in str(caught.value)


def nothing() -> None:
    """Takes nothing."""


def three(_a: Any, _b: Any, _c: Any) -> None:
    """Takes three, as in other libraries."""


FORMS = [
    "elicit(question)",
    "elicit_url(question)",
    "sample(question)",
    "sample_with_tools(question)",
    "confirm(call)",
    "on_log(message)",
    "on_notification(method, params)",
    "on_stderr(line)",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [5, "x", False])
def test_an_option_that_is_no_function_is_named(form: str, given: Any) -> None:
    option = form.partition("(")[0]
    with pytest.raises(UsageError) as caught:
        Client(Server("x"), **{option: given})
    kind = type(given).__name__
    assert str(caught.value) == (
        f"{option}= was given something of the type {kind!r}; give a function, to be called as {form}."
    )


@pytest.mark.parametrize("form", [*FORMS, "roots()"])
def test_so_is_one_that_takes_something_else(form: str) -> None:
    option = form.partition("(")[0]
    wrong = (lambda _: None) if option == "roots" else nothing
    for function in (three, wrong):
        with pytest.raises(
            UsageError, match=re.escape(f"{option}= was given a function that cannot be called as {form}: ")
        ):
            Client(Server("x"), **{option: function})


def test_functions_of_all_kinds_are_taken() -> None:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(question: Any) -> Any:
            return function(question, 1, 2)

        return call

    class Log:
        def __call__(self, _message: Any) -> None: ...

    Client(Server("x"), elicit=decorate(three), sample=functools.partial(three, 1, 2), on_log=Log(), on_stderr=print)
    Client(Server("x"), on_log=int)  # does not tell what it takes


async def test_progress_is_looked_at_when_it_is_given() -> None:
    async with Client(FakePipe(discovered)) as client:
        for wrong in (True, three):
            with pytest.raises(UsageError, match=r"^progress= was given .* called as progress\(told\)"):
                await client.call_tool("book", progress=wrong)


async def test_levels_are_written_in_any_case() -> None:
    server = FakePipe(discovered)
    async with Client(server, log_level="INFO") as client:  # type: ignore[arg-type]
        assert client.era == "stateless"
        assert server.heard[0]["params"]["_meta"]["io.modelcontextprotocol/logLevel"] == "info"
        await client.set_log_level("Warning")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="The log level cannot be 'loud'; use one of 'debug', 'info'"):
            await client.set_log_level("loud")  # type: ignore[arg-type]
        with pytest.raises(RemoteError):
            await client.call_tool("book")
    assert server.heard[-1]["params"]["_meta"]["io.modelcontextprotocol/logLevel"] == "warning"


async def test_what_a_server_does_not_offer_is_named() -> None:
    async with Client(Server("x")) as client:
        for verb, method in (
            (client.read_resource("a://b"), "resources/read"),
            (client.call_tool("t"), "tools/call"),
            (client.get_prompt("p"), "prompts/get"),
        ):
            with pytest.raises(RemoteError) as caught:
                await verb
            assert str(caught.value) == f"Method not found: the server does not offer {method} (-32601)"


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


@pytest.mark.parametrize("timeout", ["5", True])
async def test_a_timeout_that_is_no_number(timeout: Any) -> None:
    kind = type(timeout).__name__
    pipe = FakePipe(discovered)
    async with Client(pipe) as client:
        asking = (
            lambda: client.call_tool("book", timeout=timeout),
            lambda: client.read_resource("x://y", timeout=timeout),
            lambda: client.request("x/y", timeout=timeout),
            lambda: client.complete("day", "m", prompt="plan", timeout=timeout),
        )
        for ask in asking:
            with pytest.raises(UsageError) as caught:
                await ask()
            assert str(caught.value) == (
                f"timeout= was given something of the type {kind!r}; give seconds as a number, such as 5."
            )
    assert {message["method"] for message in pipe.heard} == {"server/discover"}


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan")])
async def test_a_timeout_that_nobody_can_wait(timeout: float) -> None:
    async with Client(FakePipe(discovered)) as client:
        with pytest.raises(UsageError) as caught:
            await client.call_tool("book", timeout=timeout)
    assert str(caught.value) == f"timeout={timeout} is no time that could be waited; give seconds, such as 5."


SECONDS = "a number of seconds, more than 0"


@pytest.mark.parametrize(
    ("name", "value", "needed"),
    [
        ("request_seconds", 0, SECONDS),
        ("close_seconds", -1.0, SECONDS),
        ("total_seconds", float("nan"), SECONDS),
        ("connect_seconds", float("inf"), SECONDS),
        ("probe_seconds", None, SECONDS),
        ("ask_seconds", True, SECONDS),
        ("asks_at_once", 0, "a whole number, 1 or more"),
        ("changes_kept", 0, "a whole number, 1 or more"),
        ("pages", 2.5, "a whole number, 1 or more"),
        ("message_bytes", "64", "a whole number, 1 or more"),
        ("resumptions", -1, "a whole number, 0 or more"),
    ],
)
def test_limits_within_which_nobody_could_live(name: str, value: Any, needed: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(Server("x"), limits=ClientLimits(**{name: value}))
    assert str(caught.value) == f"ClientLimits({name}={value!r}) is not possible: it is {needed}."


def test_limits_that_may_be_0() -> None:
    nothing_of = ("rounds", "input_requests", "redirects", "resumptions", "cache_entries", "cache_bytes")
    no_limit_of = ("asks_per_minute", "completions_per_second")
    Client(Server("x"), limits=ClientLimits(**dict.fromkeys(nothing_of + no_limit_of, 0)))


@pytest.mark.parametrize("cache", [None, "no", 1])
def test_a_cache_that_is_none(cache: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Client("https://flights.example/mcp", cache=cache)
    assert str(caught.value) == (
        f"cache= was given something of the type {type(cache).__name__!r}; give True, False, or a ResponseCache that "
        "clients share."
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_a_number_that_json_does_not_have_is_named_and_not_sent_as_null(number: float) -> None:
    server = FakePipe(discovered)
    place = r"arguments\.days\[1\]\.n"
    said = rf"cannot be sent: {place} is {number}, a number that JSON does not have; give another, or None\.$"
    arguments = {"none": None, "days": [1.5, {"n": number}]}
    async with Client(server) as client:
        with pytest.raises(UsageError, match=f"^tools/call {said}"):
            await client.call_tool("book", arguments)
        with pytest.raises(UsageError, match=f"^x/y {said}"):
            await client.notify("x/y", {"arguments": arguments})
        with pytest.raises(RemoteError):  # what is null by intent is sent
            await client.call_tool("book", {"none": None, "days": [1.5]})
    assert len(server.calls("tools/call")) == 1
