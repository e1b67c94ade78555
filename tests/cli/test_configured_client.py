"""`--config FILE`: a server that a file names. A command out of a file is shown and approved before it is started."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import serve
from weft import Context, Server
from weft.auth import TokenInfo
from weft.cli import main

PROGRAM = """
from pathlib import Path
Path({mark!r}).write_text("started")
from weft import Server
server = Server("configured")

@server.tool
def hello() -> str:
    return "hello"

server.run()
"""


class Terminal(io.StringIO):
    """Somebody at a terminal, who has typed something."""

    def isatty(self) -> bool:
        return True


class Interrupted(Terminal):
    """Somebody who presses Ctrl-C."""

    def readline(self, *_: Any) -> str:
        raise KeyboardInterrupt


class Configured:
    """A configuration whose server leaves a mark when it is started."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        self.path = folder / "mcp.json"
        program = folder / "server.py"
        program.write_text(PROGRAM.format(mark=str(self.mark)))
        self.command = [sys.executable, str(program), "--note", "a b", "x" * 300]
        entry = {"command": self.command[0], "args": self.command[1:], "env": {"KEY": "s3cret"}, "cwd": str(folder)}
        self.path.write_text(json.dumps({"mcpServers": {"here": entry}}))

    def call(self, *options: str) -> int:
        return main(["call", "--config", str(self.path), *options, "here", "hello"])


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    return Configured(tmp_path)


@pytest.mark.spec("SBP-04")
@pytest.mark.parametrize("typed", ["y\n", "YES\n"])
def test_a_command_is_shown_in_full_and_started_when_approved(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert configured.call() == 0
    said = capsys.readouterr()
    assert said.out == "hello\n"
    assert f"--note 'a b' {'x' * 300}\n" in said.err  # all of it
    assert "with all your rights" in said.err
    assert "KEY (the values are in the file)" in said.err
    assert f"in:           {configured.path.parent}" in said.err
    assert "s3cret" not in said.err
    assert configured.mark.exists()


@pytest.mark.spec("SBP-04")
@pytest.mark.parametrize("stdin", [Terminal("n\n"), Terminal("\n"), Terminal(""), Terminal("yeah\n"), Interrupted()])
def test_a_command_that_nobody_approves_is_not_started(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: Terminal
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert configured.call() == 1
    assert "Start it? [y/N]" in (said := capsys.readouterr().err)
    assert "Nothing was started" in said
    assert not configured.mark.exists()


@pytest.mark.spec("SBP-04")
def test_where_nobody_can_be_asked_it_is_not_started_unless_that_was_said_before(configured: Configured) -> None:
    command = [sys.executable, "-m", "weft", "call", "--config", str(configured.path), "here", "hello"]
    asked = subprocess.run(
        command, input="y\n", capture_output=True, text=True, timeout=30, check=False, env=os.environ
    )
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "add --yes" in asked.stderr
    assert not configured.mark.exists()
    assert configured.call("--yes") == 0
    assert configured.mark.exists()


@pytest.mark.spec("SBP-04")
def test_nothing_of_a_command_is_hidden_from_who_is_asked(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tricky = {"command": "true", "args": ["\x1b[8m", "\rls", "\u202etxt.exe", "--rm"], "cwd": "/tmp/\x1b[2J"}
    configured.path.write_text(json.dumps({"mcpServers": {"here": tricky}}))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert configured.call() == 1
    said = capsys.readouterr().err
    assert r"true '\x1b[8m' '\rls' '\u202etxt.exe' --rm" in said
    assert not any(char in said for char in "\x1b\r\u202e")


def test_a_url_is_not_asked_about(configured: Configured, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("there")

    @server.tool
    def hello() -> str:
        return "from there"

    with serve(server) as live:
        entry = {"url": f"http://127.0.0.1:{live.port}/mcp", "headers": {"Authorization": "Bearer x"}}
        configured.path.write_text(json.dumps({"mcpServers": {"here": entry}}))
        assert configured.call() == 0
        assert capsys.readouterr().out == "from there\n"
        assert configured.call("--token", "y") == 2
        assert "use one of them" in capsys.readouterr().err


@pytest.mark.spec("AUTH-32")
def test_a_token_of_the_environment_is_not_for_urls_out_of_a_file(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    server = Server("there")

    @server.tool
    def hello(ctx: Context) -> str:
        seen.append(ctx.token_info and ctx.token_info.subject)
        return "hello"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if b"authorization" in dict(scope.get("headers", ())):
            scope["weft.token_info"] = TokenInfo(subject=dict(scope["headers"])[b"authorization"].decode())
        await inner(scope, receive, send)

    inner = server.asgi()
    monkeypatch.setenv("WEFT_TOKEN", "s3cret")
    with serve(app) as live:
        url = f"http://127.0.0.1:{live.port}/mcp"
        configured.path.write_text(json.dumps({"mcpServers": {"here": {"url": url}}}))
        assert configured.call() == 0
        assert configured.call("--token", "said") == 0
        assert main(["call", url, "hello"]) == 0
    assert seen == [None, "Bearer said", "Bearer s3cret"]


@pytest.mark.spec("AUTH-32")
def test_what_to_do_about_a_login_is_what_is_done_for_servers_out_of_a_file(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setenv("WEFT_TOKEN", "s3cret")
    with serve(app) as live:
        url = f"http://127.0.0.1:{live.port}/mcp"
        entry: dict[str, Any] = {"url": url}
        configured.path.write_text(json.dumps({"mcpServers": {"here": entry}}))
        assert configured.call() == 1
        said = capsys.readouterr().err
        assert "Give a token with --token TOKEN, or a header in the 'headers' of its entry in the file." in said
        assert "WEFT_TOKEN" not in said
        entry["headers"] = {"authorization": "Bearer s3cret"}
        configured.path.write_text(json.dumps({"mcpServers": {"here": entry}}))
        assert configured.call() == 1
        assert capsys.readouterr().err == (f"weft: {url} refused the Authorization in the file (HTTP 401); check it.\n")


@pytest.mark.spec("AUTH-32")
def test_variables_are_sent_to_a_url_out_of_a_file_when_somebody_says_yes(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server("there")

    @server.tool
    def hello(ctx: Context) -> str:
        return ctx.headers.get("x-key", "")

    monkeypatch.setenv("TOK", "s3cret")
    with serve(server) as live:
        origin = f"http://127.0.0.1:{live.port}"
        entry = {"url": f"{origin}/mcp?a=${{TOK}}", "headers": {"X-Key": "${TOK}"}}
        configured.path.write_text(json.dumps({"mcpServers": {"here": entry}}))
        monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
        assert configured.call() == 1
        assert capsys.readouterr().err == (
            f"{configured.path} wants to send variables of your environment:\n  variables:    TOK\n"
            f"  to:           {origin}\nSend it? [y/N] weft: Nothing was sent.\n"
        )
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        assert configured.call() == 1
        assert (
            "Nothing was sent: stdin is not a terminal, so you cannot be asked. Read the text above, and add --yes to "
            "send it."
        ) in capsys.readouterr().err
        monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
        assert configured.call() == 0
        assert capsys.readouterr().out == "s3cret\n"
        assert configured.call("--yes") == 0


@pytest.mark.spec("SBP-04")
def test_variables_that_a_command_is_given_are_named_and_not_shown(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOK", "s3cret")
    monkeypatch.setenv("PROG", "/bin/bash")
    entry = {"command": "${PROG}", "args": ["--key", "${TOK}"], "env": {"KEY": "${TOK}"}}
    configured.path.write_text(json.dumps({"mcpServers": {"here": entry}}))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert configured.call() == 1
    said = capsys.readouterr().err
    assert "  command:      '${PROG}' --key '${TOK}'\n" in said
    assert "  it receives:  TOK, PROG of your environment\n" in said
    assert "'bash' is a shell" in said  # what it is, not what it is called
    assert "s3cret" not in said


def test_an_entry_can_be_used_whatever_the_others_are_like(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(configured.path.read_text())
    config["mcpServers"]["plain"] = {"url": "http://example.com/mcp"}
    configured.path.write_text(json.dumps(config))
    assert configured.call("--yes") == 0
    assert main(["call", "--config", str(configured.path), "plain", "hello"]) == 2
    assert "The entry 'plain' cannot be used. http://example.com/mcp is not encrypted" in capsys.readouterr().err


@pytest.mark.spec("SBP-04")
def test_what_changes_the_code_that_runs_is_shown_whole(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"command": "env", "args": ["PYTHONPATH=/evil", "true"], "env": {"LD_PRELOAD": "/x.so", "KEY": "s3cret"}}
    configured.path.write_text(json.dumps({"mcpServers": {"here": entry}}))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert configured.call() == 1
    said = capsys.readouterr().err
    assert "LD_PRELOAD=/x.so" in said
    assert "'LD_PRELOAD' changes which code is run" in said
    assert "'PYTHONPATH' changes which code is run" in said
    assert "s3cret" not in said


@pytest.mark.spec("SBP-04")
def test_without_any_input_nobody_can_be_asked(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert configured.call() == 1
    assert "stdin is not a terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "{path}", "her", "hello"], "did you mean 'here'?"),
        (["--config", "{path}", "zzz", "hello"], "choose one of 'here'"),
        (["--config", "{path}.none", "here", "hello"], "cannot be read"),
        (["--config", "{path}", "--stdio", "here", "hello"], "--stdio only without it"),
        (["--yes", "here", "hello"], "Use --yes only with --config"),
        (["--config", "{path}", "--yes", "--token", "x", "here", "hello"], "leave them out for a command"),
    ],
)
def test_a_wrong_command_line(
    configured: Configured, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["call", *(part.format(path=configured.path) for part in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert not configured.mark.exists()
