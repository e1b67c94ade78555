"""How the commands reach a server: with a token, with headers, by a command; and what is said when that fails."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import serve
from weft import Context, Server
from weft.auth import ResourceServer, StaticTokens, TokenInfo
from weft.cli import calling, main

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
        ([], "requires authorization (HTTP 401)"),
        (["--token", "s3cret"], "refused the token that was given (HTTP 401): The token is not valid."),
        (["--header", "Authorization: Bearer s3cret"], "refused the Authorization in --header (HTTP 401)"),
        (
            ["--header", "Authorization: Bearer ${s3cret}"],
            "answered with the HTTP status 400 (The Authorization header has no well-formed token.): it cannot read",
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
        (["--token", "s3cret", "--header", "Authorization: s3cret"], "use one of them"),
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
    assert "leave that out, because it is added to every token." in capsys.readouterr().err


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


@pytest.mark.parametrize("name", ["todo.py", "my todo.py"])
def test_a_python_file_is_no_command(capsys, monkeypatch, tmp_path: Path, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    assert main(["list", "--stdio", name]) == 2
    told = capsys.readouterr().err
    assert f"weft: {name} is not a program; write --stdio " in told
    if name == "todo.py":
        assert "--stdio 'python todo.py'." in told


@pytest.mark.parametrize(
    ("day", "sent"), [("5", "5"), ("true", "true"), ('"5"', "5"), ("[1, {}]", "[1,{}]"), ("1.5", "1.5"), ("null", "?")]
)
def test_arguments_of_a_prompt_are_sent_as_text(capsys, day, sent) -> None:
    server = Server("prompts")

    @server.prompt
    def plan(day: str = "?") -> str:
        return f"for {day}"

    with serve(server) as live:
        assert main(["prompt", f"http://127.0.0.1:{live.port}/mcp", "plan", f'{{"day": {day}}}']) == 0
    assert capsys.readouterr().out == f"user: for {sent}\n"


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


REFUSING = """
import json, sys
codes = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    answer = {"result": {"tools": [{"name": "add"}], "resources": [{"uri": "a:b"}], "prompts": [{"name": "p"}]}}
    if method == "server/discover":
        capabilities = {"tools": {}, "resources": {}, "prompts": {}}
        answer = {"result": {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}}
    elif codes.get(method) == "gone":
        sys.exit(0)
    elif method in codes:
        answer = {"error": {"code": codes[method], "message": "not\\ntoday"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def refusing(folder: Path, **codes: Any) -> str:
    file = folder / "refusing.py"
    file.write_text(REFUSING)
    return shlex.join([sys.executable, str(file), json.dumps({name.replace("_", "/"): codes[name] for name in codes})])


def test_each_list_stands_for_itself(tmp_path, capsys) -> None:
    assert main(["list", "--stdio", refusing(tmp_path, tools_list=-32603, resources_templates_list=-32601)]) == 1
    told = capsys.readouterr()
    assert told.out == "resources:\n  a:b\nprompts:\n  p\n"
    assert told.err.startswith("weft: ")
    assert told.err.endswith("refused tools/list: not\n  | today (-32603)\n")


def test_a_list_that_the_server_does_not_have_is_empty(tmp_path, capsys) -> None:
    assert main(["list", "--stdio", refusing(tmp_path, resources_templates_list=-32601)]) == 0
    assert capsys.readouterr() == ("tools:\n  add\nresources:\n  a:b\nprompts:\n  p\n", "")


def test_what_came_before_a_connection_is_lost_is_shown(tmp_path, capsys) -> None:
    assert main(["list", "--stdio", refusing(tmp_path, resources_list="gone")]) == 1
    told = capsys.readouterr()
    assert told.out == "tools:\n  add\n"
    assert "weft: " in told.err


def test_a_list_is_printed_after_the_timeout_has_ended(tmp_path, capsys, monkeypatch) -> None:
    def show(text: str, *args: Any) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):  # so that a slow reader holds up nothing
            asyncio.get_running_loop()
        show_line(text, *args)

    show_line = calling.show_line
    monkeypatch.setattr(calling, "show_line", show)
    assert main(["list", "--stdio", refusing(tmp_path)]) == 0
    assert "tools:\n  add\n" in capsys.readouterr().out


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
    assert (
        f"argument --timeout: {timeout!r} is not a number of seconds; use a number such as 5" in capsys.readouterr().err
    )
