"""What a program that uses the client wrongly is told, and which frames it is shown."""

import asyncio
import functools
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest

import weft.sync
from support import serve
from support.fakes import DISCOVERED, Exchange, FakePipe, http_server
from weft import Asgi, Client, ClientLimits, Command, ConnectionFailed, Http, RemoteError, RequestTimeout, Server
from weft.client.argument_checks import trim_traceback, write_json
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
    ("value", "said"), [({}, "'dict'; it needs to be text."), ([], "'list'; it needs to be text.")]
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
        (Server("x"), {"log_level": 5}, "The log level cannot be '5'; use one of 'debug', "),
        (NOBODY, {"auth": "Bearer s3cret"}, "The token begins with 'Bearer '; leave that out, because it is added to"),
        (Server, {}, "A client was given the class 'Server', which is not a server. Give a Server (wi"),
        (["a 'b'"], {"auth": "x"}, """auth= is for servers at a URL; the command `'a '"'"'b'"'"''` gets credentials"""),
    ],
)
def test_what_a_client_cannot_be_given(target: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Client(target, **options)
    assert str(caught.value).startswith(said)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("kind", [functools.partial(Http, NOBODY), functools.partial(Asgi, Server("x").asgi())])
@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"a b": "s3cret"}, "headers= has the header 'a b', which cannot be sent; remove newlines"),
        ({"X": "s3cret\n"}, "headers= has the header 'X', which cannot be sent; remove newlines"),
    ],
)
def test_headers_that_cannot_be_sent(kind: Any, headers: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(headers=headers)
    assert str(caught.value).startswith(said)
    assert "s3cret" not in str(caught.value)


def test_a_login_is_given_once() -> None:
    with pytest.raises(UsageError, match="auth= was given twice, to the client and to its target; leave one of them"):
        Client(Http(NOBODY, auth="x"), auth="y")


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


def given_to(option: str, function: Any) -> None:
    """Give a function to the client, or to the command that it starts."""
    if option == "on_stderr":
        Command(["x"], on_stderr=function)
    else:
        Client(Server("x"), **{option: function})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("given", [5, "x", False])
def test_an_option_that_is_no_function_is_named(form: str, given: Any) -> None:
    option = form.partition("(")[0]
    with pytest.raises(UsageError) as caught:
        given_to(option, given)
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
            given_to(option, function)


def test_functions_of_all_kinds_are_taken() -> None:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(question: Any) -> Any:
            return function(question, 1, 2)

        return call

    class Log:
        def __call__(self, _message: Any) -> None: ...

    Client(Server("x"), elicit=decorate(three), sample=functools.partial(three, 1, 2), on_log=Log())
    Command("x", on_stderr=print)
    Client(Server("x"), on_log=int)  # does not tell what it takes


async def test_progress_is_looked_at_when_it_is_given() -> None:
    async with Client(FakePipe(discovered)) as client:
        for wrong in (True, three):
            with pytest.raises(UsageError, match=r"^progress= was given .* called as progress\(update\)"):
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
    params = {"arguments": endless}
    with pytest.raises(UsageError, match=r"arguments\[0\]"):
        write_json("tools/call", params, msgspec.json.encode, params)


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
    trim_traceback(caught.value)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)] == before
    other = ValueError()
    trim_traceback(other)
    assert other.__traceback__ is None


@pytest.mark.parametrize("timeout", ["5", True])
async def test_a_timeout_that_is_no_number(timeout: Any) -> None:
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
                f"timeout={timeout!r} is not possible; give seconds as a number, 0 or more, such as 5."
            )
    assert {message["method"] for message in pipe.heard} == {"server/discover"}


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan")])
async def test_a_timeout_that_nobody_can_wait(timeout: float) -> None:
    async with Client(FakePipe(discovered)) as client:
        with pytest.raises(UsageError) as caught:
            await client.call_tool("book", timeout=timeout)
    assert str(caught.value) == (f"timeout={timeout} is not possible; give seconds as a number, 0 or more, such as 5.")


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


# --- how a client is opened


@pytest.mark.mistake("with for async with")
def test_with_in_place_of_async_with() -> None:
    with pytest.raises(UsageError) as caught, Client(Server("x")):  # type: ignore[attr-defined]
        pass
    assert str(caught.value) == (
        "weft.Client is opened by `async with`, in an async function; in code that does not await, use `with "
        "weft.sync.Client(...)`."
    )


@pytest.mark.mistake("with for async with")
async def test_async_with_in_place_of_with() -> None:
    with pytest.raises(UsageError) as caught:
        async with weft.sync.Client(Server("x")):  # type: ignore[attr-defined]
            pass
    assert str(caught.value) == (
        "weft.sync.Client is opened by `with`; to await its calls, use `async with weft.Client(...)`."
    )


VERBS: list[Any] = [
    lambda client: client.call_tool("t"),
    lambda client: client.list_tools(),
    lambda client: client.list_resources(),
    lambda client: client.list_resource_templates(),
    lambda client: client.list_prompts(),
    lambda client: client.read_resource("x://y"),
    lambda client: client.get_prompt("p"),
    lambda client: client.complete("a", "", prompt="p"),
    lambda client: client.ping(),
    lambda client: client.request("x/y"),
    lambda client: client.notify("x/y"),
    lambda client: client.set_log_level("info"),
    lambda client: client.reconnect(),
]


@pytest.mark.mistake("no async with")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_client_that_was_not_opened_says_how(verb: Any) -> None:
    with pytest.raises(UsageError) as caught:
        await verb(Client(Server("x")))
    assert str(caught.value) == (
        "The client is not connected. Use it within `async with Client(...) as client:`, or `await client.connect()` "
        "first."
    )


@pytest.mark.mistake("no async with")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_client_that_was_closed_says_so(verb: Any) -> None:
    async with Client(Server("x")) as client:
        pass
    said = r"not connected any more\. It was closed, which happens at the end of `async with`"
    with pytest.raises(UsageError, match=said):
        await verb(client)


@pytest.mark.mistake("no async with")
def test_a_sync_client_that_was_not_opened_says_how() -> None:
    client = weft.sync.Client(Server("x"))
    try:
        with pytest.raises(UsageError, match=r"Use it within `with Client\(\.\.\.\) as client:`"):
            client.list_tools()
    finally:
        client.close()


@pytest.mark.mistake("a client timeout")
async def test_connecting_to_a_server_that_is_silent_names_the_option_that_waits_longer() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.hang()

    async with http_server(handle) as url:
        with pytest.raises(RequestTimeout) as caught:
            await Client(url, limits=ClientLimits(request_seconds=0.2)).connect()
    assert str(caught.value).startswith(
        f"{url} did not answer server/discover within 0.2 s. Is it busy, or stuck? To wait longer, give `Client(..., "
        "limits=ClientLimits(request_seconds=...))`."
    )


# --- the sync client where the loop has to answer


SELF_CALL = """
import asyncio, sys, time, uvicorn, weft, weft.sync
from weft import Server
from weft.errors import UsageError

server = Server("self", debug=True)
port = 0

def url():
    return f"http://{sys.argv[1]}:{port}/mcp"

def call():
    with weft.sync.Client(url()) as client:
        return client.call_tool("add", {"a": 1, "b": 2}).text

@server.tool
def add(a: int, b: int) -> int:
    return a + b

@server.tool
async def blocks() -> str:
    return call()

@server.tool
async def in_a_thread() -> str:
    return await asyncio.to_thread(call)

async def main():
    global port
    running = uvicorn.Server(uvicorn.Config(server.asgi(), port=0, log_level="error", loop=sys.argv[2]))
    task = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    async with weft.Client(url()) as client:
        print((await client.call_tool("in_a_thread")).text)
        began = time.monotonic()
        print((await client.call_tool("blocks")).text)
        try:
            call()
        except UsageError as error:
            print(error)
        print("soon" if time.monotonic() - began < 5 else "late")
    running.should_exit = True
    await task

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.install()
asyncio.run(main())
"""


@pytest.mark.mistake("the sync client in the serving loop")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_sync_client_does_not_wait_in_the_loop_that_has_to_answer(loop: str, host: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SELF_CALL)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program, host, loop], capture_output=True, text=True, timeout=60, check=False
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "3", done.stderr
    said = "is served by the event loop that runs here, and weft.sync.Client would block it"
    assert said in lines[1], "the tool that called it fails with the reason"
    assert said in lines[2]
    assert "`async with weft.Client(...)`" in lines[2]
    assert "asyncio.to_thread" in lines[2]
    assert lines[3] == "soon"


class Strange:
    """Looks like a server of a loop, and is none."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def get_loop(self) -> Any:
        if self.fault == "loop":
            raise RuntimeError("no loop")
        return asyncio.get_running_loop()

    @property
    def sockets(self) -> Any:
        if self.fault == "sockets":
            raise OSError("no sockets")
        return [object()]


@pytest.mark.parametrize("fault", ["loop", "sockets", "names"])
async def test_the_sync_client_is_not_disturbed_by_what_others_hold(fault: str) -> None:
    held = [Strange(fault)]
    with serve(Server("elsewhere")) as live, weft.sync.Client(f"http://127.0.0.1:{live.port}/mcp") as client:
        assert client.list_tools() == []
    assert held


async def test_the_sync_client_that_would_wait_for_itself_tells_no_secret() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.hang()

    async with http_server(handle) as url:
        with pytest.raises(UsageError, match="is served by the event loop") as caught:
            weft.sync.Client(f"{url}?key=hidden").connect()
    assert "hidden" not in str(caught.value)


async def test_the_sync_client_may_wait_in_a_loop_that_serves_something_else() -> None:
    """As in a notebook that has a server of its own."""
    server = Server("elsewhere")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    async def handle(exchange: Exchange) -> None:
        await exchange.hang()

    with serve(server) as live:
        async with http_server(handle):
            with weft.sync.Client(f"http://127.0.0.1:{live.port}/mcp") as client:
                assert client.call_tool("add", {"a": 1, "b": 2}).text == "3"
