"""`weft entry`: what hosts are given starts the server, from any directory; and stdout has nothing else."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import sys
from weft import Server
server = Server("tea shop")
other = Server("other")
print("printed while it is loaded")

@server.tool
def arguments() -> list[str]:
    return sys.argv[1:]

def make() -> Server:
    made = Server("made")
    made.add_tool(arguments)
    return made
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("server.py", "shop/__init__.py", "shop/main.py", "loose/main.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name.endswith("__.py") else SERVER)
    return tmp_path


def weft(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, **options)


def entry(folder: Path, *arguments: str) -> dict[str, Any]:
    done = weft("entry", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("client", "key", "typed"),
    [
        ("claude-desktop", "mcpServers", {}),
        ("claude-code", "mcpServers", {"type": "stdio"}),
        ("cursor", "mcpServers", {"type": "stdio"}),
        ("vscode", "servers", {"type": "stdio"}),
    ],
)
def test_each_host_has_its_form(folder: Path, client: str, key: str, typed: dict[str, str]) -> None:
    args = ["-m", "weft", "run", str(folder / "server.py:server")]
    expected = {key: {"tea shop": {**typed, "command": sys.executable, "args": args}}}
    assert entry(folder, "server.py:server", "--client", client) == expected


@pytest.mark.parametrize(
    "target",
    [
        ["server.py"],
        ["server.py:make"],
        ["shop/main.py"],
        ["shop.main:server"],
        ["-m", "shop.main"],
        ["loose.main"],
        ["server"],
    ],
    ids=" ".join,
)
def test_what_is_printed_starts_the_server_from_anywhere(folder: Path, target: list[str]) -> None:
    shown = entry(folder, *target, "--client", "claude-desktop", "--name", "mine", "--", "--shop", "a b")
    found = shown["mcpServers"]["mine"]
    env = [f"{name}={value}" for name, value in found.get("env", {}).items()]
    command = shlex.join(["env", *env, found["command"], *found["args"]])
    elsewhere = folder / "loose"
    done = weft("call", "--stdio", command, "arguments", cwd=elsewhere)
    assert (done.returncode, done.stdout) == (0, '["--shop","a b"]\n'), (shown, done.stderr)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("claude-code", {"mcpServers": {"127.0.0.1": {"type": "http", "url": "http://127.0.0.1:8000/mcp"}}}),
        ("cursor", {"mcpServers": {"127.0.0.1": {"url": "http://127.0.0.1:8000/mcp"}}}),
        ("vscode", {"servers": {"127.0.0.1": {"type": "http", "url": "http://127.0.0.1:8000/mcp"}}}),
    ],
)
def test_a_server_that_runs_already(tmp_path: Path, client: str, expected: dict[str, Any]) -> None:
    assert entry(tmp_path, "http://127.0.0.1:8000/mcp", "--client", client) == expected


def test_where_it_belongs_is_said_beside_it(folder: Path) -> None:
    said = weft("entry", "server.py", "--client", "cursor", cwd=folder).stderr
    assert said.splitlines()[0] == "printed while it is loaded"
    assert said.splitlines()[-1] == (
        "For Cursor: add it to ~/.cursor/mcp.json, or .cursor/mcp.json in your project, and restart Cursor."
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["http://127.0.0.1:8000/mcp", "--client", "claude-desktop"],
            "weft: Claude Desktop accepts no URLs in its configuration file. Add http://127.0.0.1:8000/mcp under ",
        ),
        (["servr.py", "--client", "cursor"], "weft: There is no file 'servr.py' in "),
        (["--client", "cursor"], "weft: Name one file or module to serve, "),
    ],
)
def test_what_cannot_be_an_entry(folder: Path, arguments: list[str], sentence: str) -> None:
    done = weft("entry", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)
