"""The everyday mistakes, each made in a program of its own: what does the person who made it get to read?

What was wrong, where, why, what to do; the person's own lines only, and few of them. (Wrong file, wrong object, port in
use and server not running are met at the command line, and are tested with it.)
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from support import VERSION, encode, headers_for, message, serve
from support.hosted import Hosted
from support.rounds import EVERYTHING, retry_of
from weft import Limits, Server

MOST_LINES = 15
NOBODYS_BUSINESS = ("pydantic", "msgspec", "jsonschema", "ExceptionGroup", "site-packages", "weft/server")
PRODUCTION, DEVELOPMENT = {"WEFT_DEBUG": "0"}, {"WEFT_DEBUG": "1"}


@dataclass
class Session:
    """A program that was run, what its client read, and what the person at the terminal read."""

    answers: dict[int, Any]
    terminal: str
    exit_code: int

    @property
    def only(self) -> Any:
        (answer,) = self.answers.values()
        return answer

    @property
    def text(self) -> str:
        """What the model reads."""
        return self.only["result"]["content"][0]["text"]


class Folder:
    """Where the program lies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, source: str, *requests: dict[str, Any], env: dict[str, str] = PRODUCTION) -> Session:
        """Write shop.py, run it as `python shop.py`, send it the requests, wait for as many answers, hang up."""
        head = "from typing import Any\nfrom weft import Context, Server\nserver = Server('shop')\n"
        (self.path / "shop.py").write_text(head + textwrap.dedent(source) + "\nserver.run()\n")
        process = subprocess.Popen(
            [sys.executable, "shop.py"],
            cwd=self.path,
            env={**env, "PYTHONWARNINGS": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        with process:
            answers = {}
            for request in requests:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                answers[answer["id"]] = answer
            if requests:
                process.stdin.close()
            terminal = process.stderr.read()
        return Session(answers, terminal, process.returncode)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return message("tools/call", {"name": name, "arguments": arguments})


def assert_plain(text: str) -> None:
    """Short, and about the person's own program."""
    assert len(text.splitlines()) <= MOST_LINES, text
    own = text.replace("pydantic models", "")  # a kind of type that people write, among the remedies
    assert [word for word in NOBODYS_BUSINESS if word in own] == [], text
    assert re.findall(r'File "(?!.*shop\.py)', text) == [], text


def refused(folder: Folder, source: str) -> str:
    """What the terminal shows of a program that must not start; it ends with a plain sentence."""
    session = folder.run(source)
    assert session.exit_code == 1
    assert_plain(session.terminal.rpartition("\nweft.errors.")[2])
    return session.terminal


# --- refused when the program starts


def test_a_server_leaves_it_to_the_program_how_exceptions_are_shown():
    before = sys.excepthook
    Server("shop")
    assert sys.excepthook is before


@pytest.mark.mistake("an option that does not exist")
def test_an_option_of_run_is_refused_with_the_persons_own_lines_only(folder: Folder):
    session = folder.run("server.run('http', prot=1)")
    assert session.exit_code == 1
    assert_plain(session.terminal)


@pytest.mark.mistake("an annotation that cannot be evaluated")
def test_annotation_that_cannot_be_evaluated(folder: Folder):
    shown = refused(folder, "@server.tool\ndef buy(item: 'Itme') -> str:\n    return ''")
    assert 'shop.py", line 4' in shown
    assert "Tool 'buy' at shop.py:4: the annotation 'Itme' of parameter 'item' cannot be evaluated." in shown
    assert "Why: name 'Itme' is not defined" in shown
    assert "What to do: import or define the name" in shown


@pytest.mark.mistake("an annotation that cannot be evaluated")
def test_return_annotation_that_cannot_be_evaluated(folder: Folder):
    shown = refused(folder, "@server.tool\ndef buy(item: str) -> 'Reciept':\n    return ''")
    assert "Tool 'buy' at shop.py:4: the annotation 'Reciept' of its return type cannot be evaluated." in shown


@pytest.mark.mistake("a parameter without a type")
def test_parameter_without_a_type(folder: Folder):
    shown = refused(folder, "@server.tool\ndef buy(item, count: int) -> str:\n    return ''")
    assert "Tool 'buy' at shop.py:4: parameter 'item' has no type." in shown
    assert "Why: clients are told the type of every argument" in shown
    assert "What to do: annotate it, such as `item: str`, or use `item: Any`" in shown


@pytest.mark.mistake("a parameter without a type")
@pytest.mark.parametrize("name", ["ctx", "context"])
def test_context_without_its_type(folder: Folder, name: str):
    shown = refused(folder, f"@server.tool\ndef buy({name}, count: int) -> str:\n    return ''")
    assert f"What to do: if it is the call's context, annotate it `{name}: Context`" in shown
    assert "with `from weft import Context`" in shown


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from 3.12 on, the TypedDict of typing can be read")
@pytest.mark.parametrize("signature", ["(item: Item) -> int", "(item: str) -> Item"])
def test_typed_dict_of_typing(folder: Folder, signature: str):
    source = (
        f"from typing import TypedDict\nclass Item(TypedDict):\n    name: str\n@server.tool\ndef buy{signature}: ..."
    )
    shown = refused(folder, source)
    assert "What to do: import TypedDict from typing_extensions instead of typing." in shown
    assert "a TypedDict, list" not in shown


@pytest.mark.parametrize("kind", ["tool", "prompt"])
def test_a_name_given_as_in_other_libraries(folder: Folder, kind: str):
    shown = refused(folder, f"@server.{kind}('search')\ndef find(item: str) -> str:\n    return ''")
    assert f"@server.{kind}('search') is not possible (shop.py:4): the name is an option." in shown
    assert f"Write @server.{kind}(name='search')." in shown


@pytest.mark.parametrize(("kind", "options"), [("tool", "input_schema"), ("prompt", "icons, meta")])
def test_an_option_that_does_not_exist(folder: Folder, kind: str, options: str):
    shown = refused(folder, f"@server.{kind}(titel='x')\ndef find(item: str) -> str:\n    return ''")
    assert f"A {kind} has no option 'titel' (shop.py:4). Did you mean 'title'? The options are: name, title," in shown
    assert options in shown


CALLS = {
    "run": ("server.run('http', prt=3)", "server.run has no option 'prt' (shop.py:4). Did you mean 'port'? The option"),
    "add_resource": (
        "server.add_resource('a://b', 'x', mimetype='a/b')",
        "A resource has no option 'mimetype' (shop.py:4). Did you mean 'mime_type'? The options are: name",
    ),
    "a limit": (
        "from weft import Limits\nServer('x', limits=Limits(body_bytes=-1))",
        "Limits(body_bytes=-1) is not possible (shop.py:5): it is 0 or more.",
    ),
    "no threads": (
        "from weft import Limits\nServer('x', limits=Limits(threads=0))",
        "Limits(threads=0) is not possible (shop.py:5): it is 1 or more.",
    ),
    "list_cache_hints": (
        "from weft import CacheHint\nServer('x', list_cache_hints={'tool': CacheHint()})",
        (
            "list_cache_hints= has 'tool', which is not a list. Did you mean 'tools'? The lists are: discover, tools, "
            "resources, templates"
        ),
    ),
    "title": (
        "Server('x', title=5)",
        "Server('x') is not possible (shop.py:4): its definition is not JSON of the right types: Expected `str |",
    ),
    "version": (
        "Server('x', 1)",
        "Server('x') is not possible (shop.py:4): its definition is not JSON of the right types: Expected `str`, got",
    ),
    "eras": ("Server('x', eras=5)", "Server(eras=5) is not possible: give one or both of 'stateless', 'session'."),
    "a schema": (
        "server.add_tool(lambda a: a, name='buy', input_schema=5)",
        "its input_schema is wrong: A schema must be a JSON object; it is an integer.",
    ),
    "auth": (
        "Server('x', auth='secret')",
        "or an async function; not str (shop.py:4). Write auth=StaticTokens({'a-long-random-text': 'ann'}).",
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_that_cannot_be_meant_so(folder: Folder, what: str):
    source, told = CALLS[what]
    assert told in refused(folder, source)


@pytest.mark.parametrize("port", ["'8000'", "True", "70000"])
def test_a_port_that_is_none(folder: Folder, port: str):
    shown = refused(folder, f"server.run('http', port={port})")
    assert shown == f"port={port} is not possible; it is a number from 1 to 65535, or 0 for any free port.\n"


@pytest.mark.parametrize("uri", ["/till/{id}", "till{id}", "{/id}", "till://a[{id}]"])
def test_a_template_of_which_nothing_could_be_read(folder: Folder, uri: str):
    shown = refused(folder, f"@server.resource({uri!r})\ndef till(id: str) -> str: ...")
    assert f"Resource template {uri!r} cannot be registered (shop.py:4): The URI " in shown
    assert "has no scheme; begin it with one" in shown or "outside an IP address" in shown


def test_a_completion_of_what_does_not_exist(folder: Folder):
    shown = refused(folder, "@server.completion(prompt='greet', argument='name')\ndef f(value: str) -> list[str]: ...")
    assert "The completion of 'name' cannot be used (shop.py:4): there is no prompt 'greet'." in shown


@pytest.mark.mistake("a parameter without a type")
def test_any_opts_out(folder: Folder):
    session = folder.run("@server.tool\ndef buy(item: Any) -> str:\n    return repr(item)", call("buy", item=[1]))
    assert (session.text, session.exit_code) == ("[1]", 0)


@pytest.mark.mistake("duplicate names")
def test_duplicate_names(folder: Folder):
    shown = refused(
        folder,
        """
        @server.tool
        def buy(item: str) -> str:
            return ''
        @server.tool(name="buy")
        def sell(item: str) -> str:
            return ''
        """,
    )
    assert "Tool 'buy' is registered twice: at shop.py:5 and at shop.py:8." in shown
    assert "one of the two could never be called" in shown
    assert "Give one of them another name with @server.tool(name=...), or the second replace=True." in shown


@pytest.mark.mistake("duplicate names")
@pytest.mark.parametrize(
    ("decorator", "what"),
    [("@server.prompt", "Prompt 'f'"), ("@server.resource('shop://till')", "Resource 'shop://till'")],
)
def test_duplicate_prompts_and_resources(folder: Folder, decorator: str, what: str):
    shown = refused(folder, f"{decorator}\ndef f() -> str:\n    return ''\n{decorator}\ndef f() -> str:\n    return ''")
    assert f"{what} is registered twice: at shop.py:4 and at shop.py:7." in shown


@pytest.mark.mistake("*args")
@pytest.mark.parametrize("parameter", ["*items: str", "**items: str"])
def test_star_args(folder: Folder, parameter: str):
    shown = refused(folder, f"@server.tool\ndef buy({parameter}) -> str:\n    return ''")
    assert f"Tool 'buy' at shop.py:4: it takes {parameter.partition(':')[0]}." in shown
    assert "Why: arguments come by name" in shown
    assert "What to do: name each parameter" in shown


@pytest.mark.mistake("bad defaults")
def test_default_that_does_not_fit(folder: Folder):
    shown = refused(folder, "@server.tool\ndef buy(count: int = 'one') -> str:\n    return ''")
    assert "Tool 'buy' at shop.py:4: the default of parameter 'count', of type str, does not fit its type int." in shown
    assert "Why: It should be a valid integer" in shown
    assert "What to do: give a default of that type, or widen the annotation." in shown


@pytest.mark.mistake("bad defaults")
def test_default_none_without_saying_so(folder: Folder):
    shown = refused(folder, "@server.tool\ndef buy(count: int = None) -> str:\n    return ''")
    assert "parameter 'count' has the default None, which its type int does not allow." in shown
    assert "What to do: annotate it `count: int | None = None`" in shown


# --- middleware, and what stands around calls


@pytest.mark.mistake("middleware that is not async")
@pytest.mark.parametrize("how", ["@server.middleware", "@server.middleware()", "option"])
def test_plain_middleware(folder: Folder, how: str):
    option = "Server('x', middleware=[catch])" if how == "option" else ""
    decorator = "" if option else how
    source = f"{decorator}\ndef catch(ctx, next):\n    try: return next()\n    except KeyError: raise\n{option}"
    line = 5 if option else 4
    assert (
        f"The middleware 'catch' (shop.py:{line}) is a plain `def`; write `async def` and `return await next()`."
    ) in refused(folder, source)


@pytest.mark.mistake("middleware that is not async")
def test_an_object_as_middleware_whose_call_is_plain(folder: Folder):
    source = "class Catch:\n    def __call__(self, ctx, next):\n        return next()\nserver.middleware(Catch())"
    shown = refused(folder, source)
    assert "The middleware 'Catch' (shop.py:5) is a plain `def`; write `async def` and `return await n" in shown


@pytest.mark.mistake("on_error without a class")
@pytest.mark.parametrize("decorator", ["@server.on_error", "@server.on_error()"])
def test_on_error_without_a_class(folder: Folder, decorator: str):
    shown = refused(folder, f"{decorator}\ndef lost(error):\n    return 'lost'")
    assert "@server.on_error needs the class of the exceptions (shop.py:4). Write @server.on_error(KeyError)." in shown


NEXT_WITH = """
@server.middleware
async def first(ctx, next):
    return await next({0})
@server.middleware
async def second(ctx, next):
    return await next({1})
@server.tool
def buy() -> str:
    return "bought"
@server.prompt
def haiku() -> str:
    return "haiku"
"""


@pytest.mark.mistake("next() with an argument")
@pytest.mark.parametrize("given", ["ctx", "call=ctx"])
@pytest.mark.parametrize(("name", "line"), [("first", 5), ("second", 8)])
@pytest.mark.parametrize("env", [PRODUCTION, DEVELOPMENT], ids=["production", "development"])
@pytest.mark.parametrize("method", ["tools/call", "tools/list", "server/discover", "prompts/get"])
def test_next_takes_no_argument(folder: Folder, given: str, name: str, line: int, env: dict[str, str], method: str):
    params = {"tools/call": {"name": "buy", "arguments": {}}, "prompts/get": {"name": "haiku"}}.get(method, {})
    source = NEXT_WITH.format(*(given if one == name else "" for one in ("first", "second")))
    session = folder.run(source, message(method, params), env=env)
    assert_plain(session.terminal)
    told = (
        f"The middleware {name!r} (shop.py:{line}) gave next() an argument; it takes none. Write `await next()`; "
        "change `ctx.params` to change the call."
    )
    assert told in session.terminal
    assert "takes" not in session.terminal.replace("it takes none", "")
    assert f"shop.py:{line + 2} in {name}" in session.terminal


@pytest.mark.mistake("next() with an argument")
def test_another_type_error_of_middleware_stays_what_it_is(folder: Folder):
    source = """
    def price(): ...
    @server.middleware
    async def first(ctx, next):
        price(ctx)
        return await next()
    """
    session = folder.run(source, message("server/discover", {}))
    assert "price() takes 0 positional arguments but 1 was given" in session.terminal
    assert "gave next() an argument" not in session.terminal


@pytest.mark.mistake("middleware that returns no result")
@pytest.mark.parametrize("inner", ["", "@server.middleware\nasync def inner(ctx, next): return await next()"])
@pytest.mark.parametrize("outer", ["", "@server.middleware\nasync def outer(ctx, next): return await next()"])
@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("await next()", "returned nothing. Write `return await next()`."),
        ("return next()", "returned a coroutine, which was not awaited. Write `return await next()`."),
        ("return 'text'", "returned a str, which is no result. Return what `await next()` gave, or a CallToolResult."),
        ("return 5", "returned an int, which is no result. Return what `await next()` gave, or a CallToolResult."),
    ],
)
def test_middleware_that_returns_no_result(folder: Folder, outer: str, inner: str, ending: str, told: str):
    source = f"{outer}\n@server.middleware\nasync def change(ctx, next):\n    {ending}\n{inner}\n"
    tool = "@server.tool\ndef buy() -> str:\n    return 'bought'"
    session = folder.run(source + tool, call("buy"), env=DEVELOPMENT)
    line = 5 + outer.count("\n")
    assert f"The middleware 'change' (shop.py:{line}) {told}" in session.terminal
    assert "never awaited" not in session.terminal  # nothing of Python's own, later


# --- met while serving

UNSENDABLE = """
@server.tool
def buy(item: str):
    return {"receipt": object()}
"""


@pytest.mark.mistake("a return value that cannot be serialised")
def test_return_value_that_cannot_be_serialised(folder: Folder):
    session = folder.run(UNSENDABLE, call("buy", item="tea"))
    assert session.only["result"]["isError"] is True
    assert "object at 0x" not in session.text
    assert_plain(session.terminal)
    assert "Tool 'buy' (shop.py:5)" in session.terminal
    assert "The returned value at 'receipt' is of type object" in session.terminal
    assert "object" in session.terminal
    assert "Return " in session.terminal


@pytest.mark.mistake("a return value that cannot be serialised")
def test_return_value_that_is_not_what_was_promised(folder: Folder):
    source = "@server.tool\ndef buy(item: str) -> int:\n    return 'two'"
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    assert session.only["result"]["isError"] is True
    for told in (session.text, session.terminal):
        assert_plain(told)
        assert "Tool 'buy' (shop.py:4) returned a value of type str, which does not fit its return type int" in told
        assert "Return what the annotation says, or correct the annotation." in told


@pytest.mark.mistake("a return value that cannot be serialised")
@pytest.mark.parametrize(("body", "kind"), [("pass", "None"), ("return 3", "int"), ("return [item]", "list")])
def test_what_is_annotated_as_text_must_be_text(folder: Folder, body: str, kind: str):
    source = f"@server.tool\ndef buy(item: str) -> str:\n    {body}"
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    assert session.only["result"]["isError"] is True
    told = f"Tool 'buy' (shop.py:4) returned a value of type {kind}, which does not fit its return type str. Return"
    assert told in session.text
    assert told in session.terminal


@pytest.mark.mistake("a return value that cannot be serialised")
@pytest.mark.parametrize("annotation", ["", " -> Any"])
def test_without_a_promise_anything_goes(folder: Folder, annotation: str):
    source = f"@server.tool\ndef buy(item: str){annotation}:\n    return [item, 3]"
    assert folder.run(source, call("buy", item="tea")).text == '["tea",3]'


@pytest.mark.mistake("a return value that cannot be serialised")
def test_a_wrong_field_in_what_is_returned(folder: Folder):
    source = """
    from dataclasses import dataclass
    @dataclass
    class Bill:
        total: int
    @server.tool
    def buy(item: str) -> Bill:
        return Bill(item)
    """
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    for told in (session.text, session.terminal):
        assert_plain(told)
        assert "does not fit its return type Bill at 'total': expected an integer. Return what the ann" in told


@pytest.mark.mistake("a return value that cannot be serialised")
@pytest.mark.parametrize("annotation", ["-> str", "-> int", "-> Any"])
def test_a_forgotten_await(folder: Folder, annotation: str):
    source = f"""
    async def price(item: str) -> int:
        return 3
    @server.tool
    async def buy(item: str) {annotation}:
        return price(item)
    """
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    for told in (session.text, session.terminal):
        assert "Tool 'buy' (shop.py:7): The returned value is the coroutine of 'price', which was not awaited." in told
        assert "Write `await price(...)`." in told
    assert len(session.terminal.splitlines()) == 1  # nothing of Python's own, later


def test_a_forgotten_await_further_in(folder: Folder):
    source = """
    async def price(item: str) -> int:
        return 3
    @server.tool
    async def buy(item: str):
        return {"price": price(item)}
    """
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    assert "The returned value at 'price' is the coroutine of 'price', which was not awaited." in session.text


def test_a_forgotten_await_of_what_is_used(folder: Folder):
    source = """
    @server.tool
    async def buy(ctx: Context, item: str) -> str:
        asked = ctx.elicit("Sure?", {"type": "object", "properties": {"sure": {"type": "boolean"}}})
        return "bought" if asked.accepted else ""
    """
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    assert (
        "Tool 'buy' (shop.py:5) raised AttributeError: 'coroutine' object has no attribute 'accepted'. An `await` is "
        "missing before ctx.elicit(...)." in session.terminal
    )
    assert "never awaited" not in session.terminal  # which would point into Weft


def test_a_forgotten_await_of_what_is_looked_into(folder: Folder):
    source = """
    async def price(item: str) -> list[int]:
        return [3]
    @server.tool
    async def buy(item: str) -> int:
        return price(item)[0]
    """
    session = folder.run(source, call("buy", item="tea"), env={**DEVELOPMENT})
    assert "raised TypeError: 'coroutine' object is not subscriptable. An `await` is missing." in session.terminal


@pytest.mark.parametrize("made", ["time.time()", "draw()"])
def test_a_result_given_to_once_in_place_of_its_function(folder: Folder, made: str):
    source = f"""
    import time
    async def draw() -> int:
        return 3
    @server.tool
    async def buy(ctx: Context) -> str:
        return str(await ctx.once("drawn", {made}))
    """
    session = folder.run(source, call("buy"), env=DEVELOPMENT)
    assert (
        "raised UsageError: ctx.once('drawn', ...) got the result of a function, not the function, so it cannot "
        "decide whether to call it. Pass the function and its arguments separately: ctx.once('drawn', fn, argument)."
        in session.text
    )
    assert "never awaited" not in session.terminal


@pytest.mark.mistake("a return value that cannot be serialised")
@pytest.mark.parametrize(
    ("decorator", "request_"),
    [
        ("@server.resource('till://now')", message("resources/read", {"uri": "till://now"})),
        ("@server.prompt", message("prompts/get", {"name": "till"})),
    ],
)
def test_a_resource_or_prompt_that_cannot_be_sent(folder: Folder, decorator: str, request_: dict[str, Any]):
    session = folder.run(f"{decorator}\ndef till():\n    return object()", request_)
    assert_plain(session.terminal)
    assert "(shop.py:4): " in session.terminal
    assert "raised" not in session.terminal


NO_APP = "A Server is not an ASGI app. Use server.asgi() instead: app.mount('/', server.asgi('/mcp'))."


@pytest.mark.mistake("a server mounted in place of its app")
async def test_a_server_that_is_mounted_in_place_of_its_app(caplog: pytest.LogCaptureFixture):
    app = FastAPI()
    app.mount("/", Server("shop"))  # type: ignore[arg-type] - the mistake
    with serve(app) as live:
        answer = live.post(message("tools/list"))
        assert live.faults == []  # no traceback, but a sentence
    assert answer.status == 500
    assert answer.error["message"] == NO_APP
    assert NO_APP in caplog.messages


@pytest.mark.mistake("a server mounted in place of its app")
def test_a_server_that_is_given_to_uvicorn_in_place_of_its_app(tmp_path: Path):
    (tmp_path / "shop.py").write_text("from weft import Server\nserver = Server('shop')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "uvicorn", "shop:server", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 3
    assert "Write `app = server.asgi()` and start that, such as `uvicorn shop:app`." in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.mistake("a tool that raises")
@pytest.mark.parametrize(
    ("decorator", "request_", "told"),
    [
        (
            "@server.resource('till://{id}')",
            message("resources/read", {"uri": "till://7"}),
            "Resource 'till://{id}' (shop.py:4)",
        ),
        ("@server.prompt", message("prompts/get", {"name": "f", "arguments": {"id": "7"}}), "Prompt 'f' (shop.py:4)"),
    ],
)
def test_resources_and_prompts_that_raise_are_named(
    folder: Folder, decorator: str, request_: dict[str, Any], told: str
):
    source = f"{decorator}\ndef f(id: str) -> str:\n    raise LookupError(id)"
    session = folder.run(source, request_)
    assert session.only["error"]["code"] == -32603
    assert f"{told} raised LookupError: 7 [error" in session.terminal


@pytest.mark.mistake("a tool that raises")
def test_a_completion_that_raises_is_named(folder: Folder):
    source = """
    @server.prompt
    def greet(name: str) -> str:
        return name
    @server.completion(prompt="greet", argument="name")
    def names(value: str) -> list[str]:
        raise LookupError(value)
    """
    params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "a"}}
    session = folder.run(source, message("completion/complete", params))
    assert "The completion of 'name' (shop.py:8) raised LookupError: a [error" in session.terminal


def test_a_client_of_another_version_is_told_of_once(folder: Folder):
    ask = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25\n" + "x" * 99}}
    other = {**ask, "id": 3, "params": {"protocolVersion": "2024-11-05"}}
    source = f"server = Server('shop', eras=('stateless',))\n{SHOP}"
    session = folder.run(source, ask, {**ask, "id": 2}, other)
    assert [answer["error"]["code"] for answer in session.answers.values()] == [-32022] * 3
    first, second = session.terminal.splitlines()
    assert first.endswith(
        f": A client asked for protocol version 2025-11-25?{'x' * 53}; this server speaks {VERSION} only."
    )
    assert second.endswith(f": A client asked for protocol version 2024-11-05; this server speaks {VERSION} only.")


RAISING = """
def look_up(item: str) -> int:
    return {"tea": 3}[item]
@server.tool
def buy(item: str) -> int:
    return look_up(item)
"""


@pytest.mark.mistake("a tool that raises")
def test_tool_that_raises_in_production(folder: Folder):
    session = folder.run(RAISING, call("buy", item="coffee"))
    assert session.only["result"]["isError"] is True
    reference = re.fullmatch(r"Internal error\. The server's log has it under error ([0-9a-f]{8})\.", session.text)
    assert reference, session.text
    assert_plain(session.terminal)
    assert session.terminal.count(reference[1]) == 1  # logged, and once
    assert session.terminal.count("KeyError") == 1
    assert "Tool 'buy' (shop.py:7) raised KeyError: 'coffee'" in session.terminal
    assert "shop.py:9 in buy: return look_up(item)" in session.terminal
    assert 'shop.py:6 in look_up: return {"tea": 3}[item]' in session.terminal


@pytest.mark.mistake("a tool that raises")
def test_tool_that_raises_in_development(folder: Folder):
    session = folder.run(RAISING, call("buy", item="coffee"), env=DEVELOPMENT)
    assert session.only["result"]["isError"] is True
    assert_plain(session.text)
    assert "Tool 'buy' (shop.py:7) raised KeyError: 'coffee' (shop.py:6 in look_up" in session.text
    assert session.terminal.count("KeyError") == 1


@pytest.mark.mistake("a tool that raises")
def test_a_group_of_exceptions_is_told_by_its_members(folder: Folder):
    source = """
    import asyncio
    async def fail(item: str) -> None:
        raise ValueError(f"no {item}")
    @server.tool
    async def buy(item: str) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(item))
        return ""
    """
    session = folder.run(source, call("buy", item="tea"), env=DEVELOPMENT)
    for told in (session.text, session.terminal):
        assert_plain(told)
        assert "raised ValueError: no tea" in told
        assert "shop.py:7 in fail" in told


SHOP = """
@server.tool
def buy_item(item: str, count: int = 1) -> str:
    return f"{count} {item}"
"""


@pytest.mark.mistake("unknown tool")
def test_unknown_tool(folder: Folder):
    error = folder.run(SHOP, call("buy_itme", item="tea")).only["error"]
    assert error["code"] == -32602
    assert error["message"] == "Unknown tool. Did you mean 'buy_item'?"


@pytest.mark.mistake("unknown tool")
def test_unknown_tool_that_is_like_no_other(folder: Folder):
    error = folder.run(SHOP, call("weather")).only["error"]
    assert error["message"] == "Unknown tool. The tools are: buy_item."


@pytest.mark.mistake("a function without its decorator")
def test_a_function_without_its_decorator(folder: Folder):
    session = folder.run("def buy_item(item: str) -> str:\n    return item", call("buy_item", item="tea"))
    assert_plain(session.terminal)
    assert "The server 'shop' has no tools, resources or prompts." in session.terminal
    assert "Write @server.tool above `def buy_item` in shop.py" in session.terminal


def test_a_server_that_offers_something_is_not_told_so(folder: Folder):
    assert "has no tools" not in folder.run(SHOP, call("buy_item", item="tea")).terminal


@pytest.mark.mistake("wrong, missing and extra arguments")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"item": 3}, "'item': expected a string, got an integer."),
        ({"item": "tea", "count": "many"}, "'count': expected an integer, got a string."),
        ({"count": 2}, "'item' is missing; expected a string."),
        ({"item": "tea", "colour": "red"}, "'colour' is not known; remove it. The arguments are: item, count."),
        ({"itme": "tea"}, "'itme' is not known; did you mean 'item'?"),
    ],
)
def test_arguments_that_do_not_fit(folder: Folder, arguments: dict[str, Any], told: str):
    session = folder.run(SHOP, call("buy_item", **arguments))
    assert session.only["result"]["isError"] is True
    assert_plain(session.text)
    assert session.text.startswith("The arguments of tool 'buy_item' do not fit:")
    assert told in session.text
    assert session.terminal == ""  # not the fault of whoever runs the server


@pytest.mark.mistake("wrong, missing and extra arguments")
def test_all_that_is_wrong_is_told_at_once(folder: Folder):
    text = folder.run(SHOP, call("buy_item", count="many", colour="red")).text
    assert [name in text for name in ("'item' is missing", "'count': expected", "'colour' is not known")] == [True] * 3


@pytest.mark.security("D4", "R12")
def test_how_much_is_told_is_a_setting():
    server = Server("shop", limits=Limits(error_issues=2, error_bytes=90))
    server.add_tool(add)
    with serve(server) as live:
        three = live.tool("add", {"c": 1}).result["content"][0]["text"]
        assert len(three.encode()) <= 90
        assert three.endswith("…")
    server.engine.limits = Limits(error_issues=2)
    with serve(server) as live:
        assert live.tool("add", {"c": 1}).result["content"][0]["text"].endswith("- and 1 more.")
        assert "more" not in live.tool("add", {}).result["content"][0]["text"]


@pytest.mark.mistake("wrong, missing and extra arguments")
def test_arguments_that_do_not_fit_a_schema_of_your_own(folder: Folder):
    source = """
    @server.tool(input_schema={"type": "object", "required": ["item"],
                               "properties": {"items": {"type": "array", "items": {"type": "string"}}}})
    def buy(arguments: dict[str, Any]) -> str:
        return ""
    """
    text = folder.run(source, call("buy", items=["tea", 3])).text
    assert_plain(text)
    assert '- "item" is a required property.' in text
    assert "- 'items[1]': " in text


ASKING = """
from dataclasses import dataclass
@dataclass
class Size:
    size: str
@server.tool
async def buy(ctx: Context) -> str:
    await ctx.elicit("Which size?", Size)
    return "bought"
"""


@pytest.mark.mistake("an ask the client cannot answer")
def test_an_ask_the_client_cannot_answer(folder: Folder):
    session = folder.run(ASKING, call("buy"))
    error = session.only["error"]
    assert error["code"] == -32021
    assert error["message"] == "To ask the user, the client must declare the capability `elicitation.form`."
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert session.terminal == ""


BLOCKING = """
import time
@server.tool
async def buy(item: str) -> str:
    time.sleep(0.8)
    return item
"""


@pytest.mark.mistake("a blocking call inside an async def tool")
def test_blocking_call_in_an_async_tool(folder: Folder):
    session = folder.run(BLOCKING, call("buy", item="tea"), env=DEVELOPMENT)
    assert session.text == "tea"
    assert_plain(session.terminal)
    assert "Tool 'buy' blocks the event loop at shop.py:8: `time.sleep(0.8)`" in session.terminal
    assert "no other call is served meanwhile" in session.terminal
    assert "Make it a plain `def`" in session.terminal
    assert session.terminal.count("blocks the event loop") == 1


@pytest.mark.mistake("a blocking call inside an async def tool")
@pytest.mark.parametrize(
    ("source", "env"),
    [
        (BLOCKING.replace("async def", "def"), DEVELOPMENT),
        (BLOCKING.replace("time.sleep", "await asyncio.sleep").replace("import time", "import asyncio"), DEVELOPMENT),
    ],
    ids=["plain function", "awaiting"],
)
def test_what_does_not_block_is_not_warned_of(folder: Folder, source: str, env: dict[str, str]):
    session = folder.run(source, call("buy", item="tea"), env=env)
    assert (session.text, session.terminal) == ("tea", "")


@pytest.mark.mistake("a blocking call inside an async def tool")
def test_blocking_call_in_an_async_tool_in_production(folder: Folder):
    long = BLOCKING.replace("time.sleep(0.8)", "time.sleep(2.5)")
    session = folder.run(long, call("buy", item="tea"), call("buy", item="tea"))
    assert_plain(session.terminal)
    assert "Tool 'buy' blocks the event loop at shop.py:8: `time.sleep(2.5)`" in session.terminal
    assert "Make it a plain `def`" in session.terminal
    assert session.terminal.count("blocks the event loop") == 1


@pytest.mark.mistake("a blocking call inside an async def tool")
def test_blocking_call_in_an_async_resource(folder: Folder):
    source = """
    import time
    @server.resource("till://now")
    async def till() -> str:
        time.sleep(0.8)
        return "12"
    """
    session = folder.run(source, message("resources/read", {"uri": "till://now"}), env=DEVELOPMENT)
    assert "till (shop.py:6) blocks the event loop at shop.py:8: `time.sleep(0.8)`" in session.terminal


PLAIN_ASKING = """
@server.tool
def buy(ctx: Context) -> str:
    asked = ctx.elicit("Sure?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})
    return "bought" if asked.accepted else "not"
"""


@pytest.mark.mistake("elicit in a plain def")
def test_asking_in_a_plain_function_without_wait(folder: Folder):
    session = folder.run(PLAIN_ASKING, call("buy"))
    assert_plain(session.terminal)
    assert (
        "A plain `def` cannot await: write `ctx.wait(ctx.elicit(...))`, or make it `async def` and write "
        "`await ctx.elicit(...)`." in session.terminal
    )
    assert "shop.py:8 in buy" in session.terminal
    assert "An `await` is missing" not in session.terminal


@pytest.mark.mistake("elicit in a plain def")
def test_asking_in_an_async_function_without_await(folder: Folder):
    session = folder.run(PLAIN_ASKING.replace("def buy", "async def buy"), call("buy"))
    assert "An `await` is missing before ctx.elicit(...)." in session.terminal
    assert "plain" not in session.terminal


@pytest.mark.mistake("a question that is not awaited")
@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize(
    ("question", "what"),
    [
        ('ctx.elicit("Really?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})', "ctx.elicit(...)"),
        ('ctx.elicit_url("Pay", "https://example.com/pay")', "ctx.elicit_url(...)"),
        ('ctx.sample("Really?", max_tokens=5)', "ctx.sample(...)"),
        ("ctx.list_roots()", "ctx.list_roots(...)"),
        ('ctx.once("charge", int)', "ctx.once(...)"),
    ],
)
def test_a_question_that_is_not_awaited_is_no_yes(folder: Folder, kind: str, question: str, what: str):
    source = f"""
    @server.tool
    {kind} delete(ctx: Context) -> str:
        if {question}:
            return "All is deleted."
        return "Nothing is deleted."
    """
    session = folder.run(source, message("tools/call", {"name": "delete"}, meta=EVERYTHING))
    assert session.only["result"]["isError"]
    assert "deleted" not in str(session.only)
    assert f"{what} at shop.py:7 has no `await`" in session.terminal
    assert f"Write `await {what}`; in a plain function `ctx.wait({what})`." in session.terminal
    assert "never awaited" not in session.terminal


@pytest.mark.mistake("a side effect before a question")
def test_a_side_effect_before_a_question(folder: Folder):
    source = """
    async def charge(item: str) -> str:
        return "R1"
    @server.tool
    async def buy(ctx: Context, item: str) -> str:
        ref = await charge(item)
        sure = await ctx.elicit("Sure?", {"type": "object", "properties": {"yes": {"type": "boolean"}}})
        return ref if sure else ""
    """
    request = message("tools/call", {"name": "buy", "arguments": {"item": "tea"}}, meta=EVERYTHING)
    session = folder.run(source, request, env=DEVELOPMENT)
    assert session.only["result"]["resultType"] == "input_required"
    assert_plain(session.terminal)
    assert "tools/call 'buy' awaits charge(...) at shop.py:9, before it asks at shop.py:10." in session.terminal
    assert "put it into ctx.once(key, fn, ...)" in session.terminal
    assert folder.run(source, request, env=PRODUCTION).terminal == ""


SHARED = """
import os
from dataclasses import dataclass
from weft import Context, Server

server = Server("shop", version=str(os.getpid()))

@dataclass
class Seat:
    number: str

@server.tool
async def book(ctx: Context) -> str:
    seat = await ctx.elicit(f"Which seat? {os.getpid()}", Seat)
    return seat.value.number if seat else "none"

@server.tool
async def nothing() -> str:
    return "nothing"

app = server.asgi("/mcp")
"""


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop the worker that answered, so that another one gets what follows."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.mistake("workers without a key")
def test_workers_without_a_key(tmp_path: Path):
    hosted = Hosted(tmp_path, SHARED, "--workers", "2")
    try:
        asked = _result(hosted.url, message("tools/call", {"name": "book"}, meta=EVERYTHING))
        (question,) = asked["inputRequests"].values()
        retry = retry_of(asked, lambda question: {"action": "accept", "content": {"number": "12A"}})
        with paused(int(question["params"]["message"].split()[-1])), pytest.raises(AssertionError) as refused:
            _result(hosted.url, message("tools/call", {"name": "book", **retry}, meta=EVERYTHING))
    finally:
        hosted.end(signal.SIGTERM)
    assert "WEFT_STATE_KEY" not in str(refused.value)  # how it is run is not the peer's business
    (warned,) = [line for line in hosted.log.splitlines() if "WEFT_STATE_KEY" in line]
    assert "was sealed with another key" in warned
    assert "set WEFT_STATE_KEY in their environment, or Server(state_keys=[...])" in warned


@pytest.mark.mistake("a session client with several workers")
def test_a_session_client_with_several_workers(tmp_path: Path):
    hosted = Hosted(tmp_path, SHARED, "--workers", "2")
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    try:
        opened, headers = _post(hosted.url, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening})
        worker = int(opened["result"]["serverInfo"]["version"])
        with paused(worker), pytest.raises(urllib.error.HTTPError, match="404"):
            _post(hosted.url, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers["Mcp-Session-Id"])
    finally:
        hosted.end(signal.SIGTERM)
    (warned,) = [line for line in hosted.log.splitlines() if "named a session" in line]
    assert "pass sessions=False to asgi()" in warned


def _result(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, encode(body), dict(headers_for(body)))
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    assert "result" in answer, answer["error"]["message"]
    return answer["result"]


def _post(url: str, body: dict[str, Any], session: str | None = None) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if session is not None:
        headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    with urllib.request.urlopen(urllib.request.Request(url, encode(body), headers)) as response:
        return json.load(response), response.headers


@pytest.mark.mistake("mounted in FastAPI")
@pytest.mark.parametrize("how", ["route", "mount at the root", "mount at the path"])
def test_mounted_in_fastapi(how: str):
    server, app = Server("shop"), FastAPI()
    server.add_tool(add)
    if how == "route":
        app.add_route("/mcp", server.asgi())
    elif how == "mount at the root":
        app.mount("/", server.asgi())
    else:
        app.mount("/mcp", server.asgi())
    with serve(app) as live:
        body = message("tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}})
        # A mount redirects what lacks its slash: FastAPI's doing, which clients follow. No path is ever doubled.
        path = "/mcp/" if how == "mount at the path" else "/mcp"
        assert live.send(encode(body), headers_for(body), path=path).result["structuredContent"] == 5


def add(a: int, b: int) -> int:
    return a + b
