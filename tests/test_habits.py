"""What people type who come from another SDK, or from the middle of the documentation: what do they get to read?"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from support import make_server
from weft import Client, Server
from weft.auth import StaticTokens
from weft.client.results import ToolResult
from weft.errors import UsageError

pytestmark = pytest.mark.mistake("habits of other SDKs")

FACTORY = """
import argparse
from weft import Server
def make():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shop")
    return Server(parser.parse_args().shop or "none")
"""


def weft_says(folder: Path, source: str, *words: str) -> tuple[int, str]:
    """The exit code of `weft WORDS` beside a file shop.py, and what it writes."""
    (folder / "shop.py").write_text(source)
    command = [sys.executable, "-m", "weft", *words]
    done = subprocess.run(command, cwd=folder, input="", capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr


def test_names_of_other_sdks() -> None:
    with pytest.raises(ImportError, match=r"^weft has no 'FastMCP'; it is called Server here: from weft import Server"):
        from weft import FastMCP  # type: ignore[attr-defined] - that is the point  # noqa: F401
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'Nothing'"):
        _ = weft.Nothing  # type: ignore[attr-defined] - that is the point
    server: Any = Server("s")
    with pytest.raises(
        AttributeError, match=r"A Server has no 'add_middleware'; register an async function by @server\."
    ):
        server.add_middleware(object())
    with pytest.raises(AttributeError, match="'Server' object has no attribute 'nothing'"):
        _ = server.nothing
    assert not hasattr(server, "http_app")
    result: Any = ToolResult(content=[])
    with pytest.raises(AttributeError, match=r"A ToolResult has no 'data'; it is called structured here: result\."):
        _ = result.data
    with pytest.raises(AttributeError, match="'ToolResult' object has no attribute 'nothing'"):
        _ = result.nothing


async def test_the_arguments_of_a_tool_given_as_options() -> None:
    async with Client(make_server()) as client:
        loose: Any = client
        with pytest.raises(UsageError) as caught:
            await loose.call_tool("add", a=1, b=2)
        assert str(caught.value) == (
            "call_tool has no option 'a'. The arguments of a tool go in a dictionary: "
            "call_tool('add', {'a': ..., 'b': ...})."
        )
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
            await loose.call_tool()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured == 3


@pytest.mark.parametrize(("value", "text"), [(4, "4"), (2.5, "2.5"), (True, "true"), ("x", "x")])
async def test_numbers_and_booleans_for_a_prompt_become_text(value: Any, text: str) -> None:
    server = Server("s")

    @server.prompt
    def haiku(lines: str) -> str:
        return lines

    async with Client(server) as client:
        content: Any = (await client.get_prompt("haiku", {"lines": value})).messages[0].content
        assert content.text == text
        for wrong in ([1], {"a": 1}, float("nan"), None):
            given: Any = {"lines": wrong}
            with pytest.raises(UsageError, match="The argument 'lines' of the prompt 'haiku' is of the type"):
                await client.get_prompt("haiku", given)


def test_a_function_is_no_server() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    for function in (add, Server("s").asgi):
        with pytest.raises(
            UsageError, match=rf"A client was given the function '{function.__name__}', which is not a ser"
        ):
            Client(function)


@pytest.mark.parametrize(
    ("tokens", "told"),
    [({}, "without a token"), ({"short": "ann"}, "less than 8 characters"), ({"with a blank": "ann"}, "no client can")],
)
def test_tokens_that_are_none_are_told_with_the_place(tokens: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=rf"{told}.*\(.*test_habits\.py:\d+\)"):
        StaticTokens(tokens)


def test_a_resource_without_its_uri_is_told_with_the_place() -> None:
    server: Any = Server("s")
    with pytest.raises(UsageError, match=r"needs the URI \(.*test_habits\.py:\d+\)\. Write @server\.resource\('sch"):
        server.resource(lambda: "")


@pytest.mark.parametrize("transport", ["streamable-http", "streamable_http", "sse"])
def test_transports_by_other_names(transport: Any) -> None:
    with pytest.raises(UsageError, match=rf"There is no transport '{transport}'; .* It is called 'http'.* here\."):
        Server("s").run(transport)


server_alone = Server("alone")


async def test_a_server_given_to_uvicorn() -> None:
    told = f"Write `app = server.asgi()` and start that, such as `uvicorn {__name__}:app`."
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    alone: Any = server_alone
    await alone({"type": "lifespan"}, receive, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert told in sent[0]["message"]
    sent.clear()
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], "query_string": b"", "root_path": ""}
    await alone(scope, receive, send)
    assert sent[0]["status"] == 500
    assert told in sent[1]["body"].decode()


def test_options_for_the_file_without_their_dashes(tmp_path: Path) -> None:
    code, said = weft_says(tmp_path, FACTORY, "run", "shop:make", "--shop", "berlin")
    assert code == 2
    assert said == (
        "weft: weft run has no option --shop; see weft run --help. Arguments for the file come after `--`: "
        "weft run shop:make -- --shop berlin\n"
    )
    code, said = weft_says(tmp_path, FACTORY, "list", "http://127.0.0.1:9/mcp", "--shop")
    assert (code, said) == (2, "weft: weft list has no option --shop; see weft list --help.\n")
    assert weft_says(tmp_path, FACTORY, "run", "shop:make", "--", "--shop", "berlin")[0] == 0


def test_arguments_that_the_file_refuses(tmp_path: Path) -> None:
    code, said = weft_says(tmp_path, FACTORY, "run", "shop:make", "--", "--bogus")
    assert code == 1
    assert "it refused its arguments (see above): check the arguments after `--`." in said
    assert "__main__" not in said


MIDDLEWARE = """
from weft import Server
server = Server("s")
@server.middleware
async def around(ctx, next): return await next()
@server.on_error(KeyError)
def lost(error): return "lost"
"""


def test_functions_that_are_registered_already_are_not_proposed_as_tools(tmp_path: Path) -> None:
    said = weft_says(tmp_path, MIDDLEWARE, "run", "shop.py")[1]
    assert "has no tools, resources or prompts. Write @server.tool above each function that clients may call." in said
    said = weft_says(tmp_path, f"{MIDDLEWARE}def buy(): ...", "run", "shop.py")[1]
    assert "Write @server.tool above `def buy` in shop.py" in said


def test_a_function_that_makes_something_else(tmp_path: Path) -> None:
    said = weft_says(tmp_path, "def make(): return 5", "run", "shop:make")[1]
    assert "is a function that returned an int, not a Server." in said


def test_a_package_without_main(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    code, said = weft_says(tmp_path, "", "run", "-m", "pkg")
    assert code == 2
    assert "pkg has no Server in it at module level." in said
    assert "(`-m` looks for pkg.__main__ first; there is none.)" in said
