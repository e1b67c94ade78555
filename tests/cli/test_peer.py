"""How the commands reach a server: with a token, with headers, by a command; and what is said when that fails."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import serve
from weft import Context, ProtocolError, ResourceServer, Server, StaticTokens, TokenInfo
from weft.cli import main

TOKEN = "token-of-ann"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_TOKEN", raising=False)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    auth = ResourceServer(
        "http://127.0.0.1:9/mcp",
        authorization_servers=["http://127.0.0.1:9"],
        verifier=StaticTokens({TOKEN: TokenInfo("ann")}),
    )
    server = Server("guarded", auth=auth)

    @server.tool
    async def who(ctx: Context) -> str:
        assert ctx.token_info is not None
        return ctx.token_info.subject

    @server.resource("guarded://text")
    async def text() -> str:
        return "read"

    @server.prompt
    async def plan(day: str) -> str:
        return day

    with serve(server) as live:
        yield f"http://127.0.0.1:{live.port}/mcp"


@pytest.mark.parametrize("given", [["--token", TOKEN], ["--header", f"Authorization: Bearer {TOKEN}"]])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["call", "{url}", "who"], "ann"),
        (["list", "{url}"], "who"),
        (["read", "{url}", "guarded://text"], "read"),
        (["prompt", "{url}", "plan", '{"day": "1"}'], "user: 1"),
    ],
)
def test_a_token_is_sent(url, capsys, given, command, said) -> None:
    assert main([*(part.format(url=url) if part == "{url}" else part for part in command), *given]) == 0
    told = capsys.readouterr()
    assert said in told.out
    assert TOKEN not in told.out + told.err


def test_a_token_of_the_environment_is_sent_unless_another_is_given(url, capsys, monkeypatch) -> None:
    monkeypatch.setenv("WEFT_TOKEN", TOKEN)
    assert main(["call", url, "who"]) == 0
    monkeypatch.setenv("WEFT_TOKEN", "wrong")
    assert main(["call", url, "who", "--token", TOKEN]) == 0
    assert main(["call", url, "who", "--header", f"authorization: Bearer {TOKEN}"]) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "wants authorization (HTTP 401)"),
        (["--token", "s3cret"], "refused the token that was given (HTTP 401): The token is not valid."),
        (["--header", "Authorization: Bearer s3cret"], "refused the Authorization that --header gave (HTTP 401)"),
        (
            ["--header", "Authorization: Bearer ${s3cret}"],
            "answered with the HTTP status 400 (The Authorization header holds no token as it should.): it cannot read",
        ),
    ],
)
def test_a_server_that_wants_another_token(url, capsys, given, said) -> None:
    assert main(["list", url, *given]) == 1
    told = capsys.readouterr().err
    assert f"weft: {url} {said}" in told
    assert "s3cret" not in told
    assert "{" not in told  # no JSON
    if not given:
        assert "--token TOKEN or in the variable WEFT_TOKEN" in told
        assert "--header" in told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--header", "s3cret"], "cannot be sent; write it like"),
        (["--header", "Bad Name: s3cret"], "cannot be sent; write it like"),
        (["--header", "X: s3cret\r\nY: z"], "cannot be sent; write it like"),
        (["--token", "s3cret with spaces"], "The token cannot be sent"),
        (["--token", "s3cret", "--header", "Authorization: s3cret"], "give one of them"),
        (["--token", "s3cret", "--stdio"], "for servers at a URL"),
        (["--header", "X: s3cret", "--stdio"], "for servers at a URL"),
    ],
)
def test_what_cannot_be_sent_is_not_shown(url, capsys, given, said) -> None:
    assert main(["list", url, *given]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "s3cret" not in told


def test_bearer_is_not_part_of_a_token(url, capsys) -> None:
    assert main(["list", url, "--token", "Bearer s3cret"]) == 2
    assert "leave off 'Bearer ', which is put before it anyway." in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_terminal_would_act_on_does_not_reach_it(
    capsys, monkeypatch: pytest.MonkeyPatch, *, is_terminal
) -> None:
    server = Server("vile")
    vile = "\x1b[2Kred\u202e\u3000text\ttwo\n"

    @server.tool(description=vile)
    async def shout() -> str:
        return vile

    @server.resource("vile://text")
    async def text() -> str:
        return vile

    @server.tool
    async def refuse() -> str:
        raise ProtocolError(vile, code=5)

    with serve(server) as live:
        url = f"http://127.0.0.1:{live.port}/mcp"
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
        assert main(["call", url, "shout"]) == main(["read", url, "vile://text"]) == main(["list", url]) == 0
        told = capsys.readouterr().out
        assert told.count("?[2Kred?\u3000text\ttwo" if is_terminal else vile.strip()) == 3
        assert ("\x1b" in told) is not is_terminal
        assert main(["call", url, "refuse"]) == 1
        assert "?[2Kred?" in capsys.readouterr().err  # it is for people, wherever it goes


def test_a_server_that_offers_nothing(capsys) -> None:
    with serve(Server("empty").asgi()) as live:
        empty = f"http://127.0.0.1:{live.port}/mcp"
        assert main(["list", empty]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"{empty} has no tools, resources or prompts.\n")


def test_a_token_of_the_environment_is_not_for_commands(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("WEFT_TOKEN", TOKEN)
    program = tmp_path / "server.py"
    program.write_text("import os, sys; sys.exit(str(os.environ))")
    assert main(["list", "--stdio", f"{sys.executable} {program}"]) == 1
    assert TOKEN not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="what is left in a pipe is known there")
def test_a_server_that_dies_at_its_start_is_heard_once(capsys, tmp_path) -> None:
    program = tmp_path / "server.py"
    program.write_text("import no_such_module_here")
    assert main(["call", "--stdio", f"{sys.executable} {program}", "any"]) == 1
    told = capsys.readouterr().err
    assert told.count("ModuleNotFoundError") == 1
    assert "ended with the exit code 1." in told


@pytest.mark.parametrize("name", ["todo.py", "my todo.py"])
def test_a_python_file_is_no_command(capsys, monkeypatch, tmp_path: Path, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    assert main(["list", "--stdio", name]) == 2
    told = capsys.readouterr().err
    assert f"weft: {name} is not a program; write --stdio " in told
    if name == "todo.py":
        assert "--stdio 'python todo.py'." in told


def test_an_argument_of_a_prompt_that_is_no_text_is_named(url, capsys) -> None:
    assert main(["prompt", url, "plan", '{"day": 1}', "--token", TOKEN]) == 2
    assert "The argument 'day' of the prompt 'plan'" in capsys.readouterr().err


# --- servers that answer nonsense

MISBEHAVED = """
import json, sys
found = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    result = found.get(message["method"], {})
    if message["method"] == "server/discover":
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "prompts": {}}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def misbehaved(folder: Path, method: str, result: object) -> str:
    file = folder / "misbehaved.py"
    file.write_text(MISBEHAVED)
    return shlex.join([sys.executable, str(file), json.dumps({method: result})])


@pytest.mark.parametrize("tools", [None, "text", {"a": 1}])
def test_a_list_that_is_none_is_empty(tmp_path, capsys, tools) -> None:
    assert main(["list", "--stdio", misbehaved(tmp_path, "tools/list", {"tools": tools})]) == 0
    assert "has no tools, resources or prompts." in capsys.readouterr().err


def test_items_that_are_none_are_left_out(tmp_path, capsys) -> None:
    tools = [5, "text", {"name": "add", "description": 7, "inputSchema": {"required": 5, "properties": {"a": 1}}}]
    assert main(["list", "--stdio", misbehaved(tmp_path, "tools/list", {"tools": tools})]) == 0
    assert capsys.readouterr().out == "tools:\n  add  7\n    a?: any\n"


@pytest.mark.parametrize("blob", ["a", 5, "ä"])
def test_bytes_that_cannot_be_read_are_told_of(tmp_path, capsys, blob) -> None:
    command = misbehaved(tmp_path, "resources/read", {"contents": [{"uri": "x:y", "blob": blob}]})
    assert main(["read", "--stdio", command, "x:y"]) == 1
    assert capsys.readouterr().err == f"weft: {command} sent bytes that cannot be read: they are not in base64.\n"


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_that_nobody_can_wait(capsys, timeout) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["list", f"--timeout={timeout}", "http://127.0.0.1:9/mcp"])
    assert caught.value.code == 2
    assert f"argument --timeout: {timeout!r} is no time to wait; give seconds, such as 5" in capsys.readouterr().err
