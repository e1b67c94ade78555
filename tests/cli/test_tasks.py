"""`weft call` and `weft task` with calls that become tasks: real processes, what they print, how the tasks end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft.sync
from support import until
from support.fakes import Exchange, http_server
from support.studio import Studio, studio_of
from support.task_servers import ID, SILENCE, Refusal, TaskServer, done, form, state
from weft import ClientLimits
from weft.cli.calling import CallFailed, RemoteServer

WEFT = [sys.executable, "-m", "weft"]
NO_SIGINT = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")


@pytest.fixture(scope="module", params=["stateless", "session"])
def studio(request: pytest.FixtureRequest) -> Iterator[Studio]:
    with studio_of(request.param) as served:
        yield served


def run_weft(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WEFT, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


@contextlib.contextmanager
def started(*arguments: str, until_said: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has printed a line with this text on stderr."""
    command = subprocess.Popen([*WEFT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ending = threading.Timer(60, command.kill)  # so that a command that says nothing fails only its test
    ending.start()
    try:
        assert command.stderr is not None
        assert any(until_said in line for line in command.stderr), f"{until_said!r} was not said"
        yield command
    finally:
        ending.cancel()
        command.kill()
        command.communicate()


def ended(command: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end of a command, and return its exit code and the rest of what it prints."""
    assert command.stdout is not None
    assert command.stderr is not None
    printed, said = command.stdout.read(), command.stderr.read()
    return command.wait(60), printed, said


def in_background(studio: Studio, tool: str = "paint", arguments: str = "{}") -> str:
    """Start a task, and return its id, which is all that the command prints."""
    begun = run_weft("call", studio.url, tool, arguments, "--background")
    assert (begun.returncode, begun.stderr) == (0, "")
    assert len(begun.stdout.split()) == 1
    assert begun.stdout.endswith("\n")
    return begun.stdout.strip()


# --- weft call


def test_call_shows_the_messages_of_a_task_and_prints_the_result(studio: Studio) -> None:
    with started("call", studio.url, "paint", '{"name": "a"}', until_said="mixing a") as command:
        studio.opened["a"].set()
        assert ended(command)[:2] == (0, "painted a\n")


def test_call_shows_the_last_message_although_the_task_ends_at_once(studio: Studio) -> None:
    studio.opened["at once"].set()
    called = run_weft("call", studio.url, "paint", '{"name": "at once"}')
    assert (called.returncode, called.stdout) == (0, "painted at once\n")
    if studio.era == "stateless":  # in the other era, the result is there before the message is asked for
        assert called.stderr.startswith("mixing at once")
        assert called.stderr.count("mixing at once") == 1


@NO_SIGINT
def test_ctrl_c_cancels_the_task_of_a_call(studio: Studio) -> None:
    with started("call", studio.url, "paint", '{"name": "b"}', until_said="mixing b") as command:
        command.send_signal(signal.SIGINT)
        code, printed, said = ended(command)
        assert (code, printed, said.splitlines()[-1]) == (130, "", "The task was cancelled.")
        assert "Traceback" not in said
    until(lambda: "b" in studio.cancelled, 10)


def test_a_call_that_takes_too_long_cancels_its_task(studio: Studio) -> None:
    called = run_weft("call", studio.url, "paint", '{"name": "c"}', "--timeout", "3")
    assert (called.returncode, called.stdout) == (1, "")
    assert called.stderr.splitlines()[-2:] == [
        "The task was cancelled.",
        "weft: The task sent no message for 3 s. If it needs longer, raise --timeout, or leave it out.",
    ]
    until(lambda: "c" in studio.cancelled, 10)


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("spill", "The paint is on the floor.\nMop it up.\n"),
        ("close", "weft: {url} refused tools/call: The studio is closed. (1001)\n"),
    ],
)
def test_the_error_of_a_task_is_said_once(studio: Studio, tool: str, said: str) -> None:
    called = run_weft("call", studio.url, tool)
    assert (called.returncode, called.stdout, called.stderr) == (1, "", said.format(url=studio.url))


def test_a_call_of_a_tool_that_asks_fails(studio: Studio) -> None:
    """Weft's server does not ask this client at all, and says what is missing."""
    called = run_weft("call", studio.url, "sign")
    assert (called.returncode, called.stdout) == (1, "")
    assert "elicitation.form" in called.stderr
    assert "The task" not in called.stderr


def test_call_in_the_background_of_a_tool_that_answers_at_once(studio: Studio) -> None:
    called = run_weft("call", studio.url, "look", "--background")
    said = "The server has answered without a task.\n"
    assert (called.returncode, called.stdout, called.stderr) == (0, "seen\n", said)


def test_call_in_the_background_of_a_server_that_ends_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "import asyncio\nfrom weft import Server\nserver = Server('s')\n"
        "@server.tool(task='optional')\nasync def paint() -> str:\n    await asyncio.sleep(60)\n    return ''\n"
    )
    command = shlex.join([*WEFT, "run", str(tmp_path / "server.py")])
    called = run_weft("call", "--stdio", command, "paint", "--background")
    assert called.returncode == 0
    assert len(called.stdout.split()) == 1
    assert "The server has ended with this command, and the task with it, unless" in called.stderr


@pytest.mark.parametrize("is_session", [False, True])
async def test_a_call_of_a_task_that_asks_cancels_it(is_session: bool) -> None:
    server = TaskServer(state("input_required", inputRequests={"q": form()}), is_session=is_session)
    server.on["tasks/result"] = lambda _: SILENCE
    async with http_server(server.serve) as url:
        called = await asyncio.to_thread(run_weft, "call", url, "t")
    assert server.calls("tasks/cancel")
    why = "asked a question in tools/call (input_required). `weft call` cannot answer questions; use"
    assert called.returncode == 1
    assert called.stderr == f"The task was cancelled.\nweft: {url} {why} Client(elicit=...).\n"


@NO_SIGINT
@pytest.mark.parametrize("times", [1, 2])
async def test_ctrl_c_of_a_call_whose_task_cannot_be_cancelled(times: int) -> None:
    server = TaskServer(state(statusMessage="going"))
    server.on["tasks/cancel"] = lambda _: SILENCE
    async with http_server(server.serve) as url:
        command = await asyncio.create_subprocess_exec(*WEFT, "call", url, "t", stderr=asyncio.subprocess.PIPE)
        await server.asked("tasks/get")
        command.send_signal(signal.SIGINT)
        await server.asked("tasks/cancel")
        if times == 2:
            command.send_signal(signal.SIGINT)
        _, said = await command.communicate()
    assert command.returncode == 130
    assert said.decode().splitlines()[-1] == f"The task may go on: weft task {url} {ID}"
    assert "Traceback" not in said.decode()


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("command", ["call", "task"])
async def test_a_server_that_is_lost_is_not_one_that_sends_no_message(
    command: str, hangs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows whether the task goes on, and a server that is lost cannot cancel it."""
    server = TaskServer()

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc in ("tasks/get", "tasks/cancel") and len(server.calls("tasks/get")) > 1:
            if not hangs:
                exchange.cut()
                return
            server.on[exchange.rpc] = lambda _: SILENCE
        await server.serve(exchange)

    async with http_server(serve) as url:
        remote = RemoteServer(url, 60)
        remote._limits = ClientLimits(task_lost_seconds=0.1, request_seconds=0.2, close_seconds=0.2)
        use = (remote.call_tool, "t", {}) if command == "call" else (remote.follow, ID)
        with pytest.raises(CallFailed) as failure:
            await asyncio.to_thread(*use)
    assert "no message" not in str(failure.value)
    assert f"The task may go on: weft task {url} {ID}\n" == capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert not server.calls("tasks/cancel")


@pytest.mark.parametrize("is_child", [False, True])
async def test_a_call_that_loses_the_server_tells_the_id_of_the_task(
    is_child: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteServer, "is_child", is_child)  # the task of a child process ends with it
    server = TaskServer()
    async with http_server(server.serve) as url:
        remote = RemoteServer(url, None)
        remote._limits = ClientLimits(task_lost_seconds=0.1)
        calling = asyncio.create_task(asyncio.to_thread(remote.call_tool, "t", {}))
        await server.asked("tasks/get")
    with pytest.raises(CallFailed, match="No server is running"):
        await calling
    assert capsys.readouterr().err == ("" if is_child else f"The task may go on: weft task {url} {ID}\n")


# --- weft task


def test_a_task_in_the_background_is_looked_at_and_waited_for(studio: Studio) -> None:
    id = in_background(studio, arguments='{"name": "d"}')  # it does not wait for the end
    seen = run_weft("task", studio.url, id, "--status")
    assert (seen.returncode, seen.stdout.split(":")[0].strip(), seen.stderr) == (0, "working", "")
    with started("task", studio.url, id, until_said="mixing d") as command:
        studio.opened["d"].set()
        assert ended(command)[:2] == (0, "painted d\n")
    waited = run_weft("task", studio.url, id)
    assert (waited.returncode, waited.stdout) == (0, "painted d\n")
    assert run_weft("task", studio.url, "--status", id).stdout.startswith("completed")
    late = run_weft("task", studio.url, id, "--cancel")
    assert (late.returncode, late.stdout, late.stderr) == (0, "", "The task had ended already: completed.\n")


def test_a_task_is_cancelled(studio: Studio) -> None:
    id = in_background(studio, arguments='{"name": "e"}')
    with started("task", studio.url, id, until_said="mixing e") as waiting:
        cancelled = run_weft("task", studio.url, id, "--cancel")
        assert (cancelled.returncode, cancelled.stdout, cancelled.stderr) == (0, "", "The task was cancelled.\n")
        code, printed, said = ended(waiting)
        assert (code, printed, said.splitlines()[-1]) == (1, "", "weft: The task was cancelled.")
        assert said.count("The task was cancelled.") == 1
    until(lambda: "e" in studio.cancelled, 10)
    assert run_weft("task", studio.url, id, "--status").stdout.startswith("cancelled")


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (state(), "The server was asked to cancel the task.\n"),  # it goes on
        ({**state("cancelled"), "taskId": "another"}, "The server was asked to cancel the task.\n"),
        (Refusal(-32602), "The task was cancelled.\n"),  # the server has deleted it
    ],
    ids=["goes on", "nonsense", "deleted"],
)
async def test_a_server_that_does_not_show_the_task_as_cancelled(shown: Any, said: str) -> None:
    server = TaskServer()
    server.on["tasks/cancel"] = lambda _: {"resultType": "complete"}
    server.on["tasks/get"] = lambda _: shown if isinstance(shown, Refusal) else {**shown, "resultType": "complete"}
    async with http_server(server.serve) as url:
        cancelled = await asyncio.to_thread(run_weft, "task", url, ID, "--cancel")
    assert (cancelled.returncode, cancelled.stdout, cancelled.stderr) == (0, "", said)


@NO_SIGINT
def test_ctrl_c_lets_a_task_go_on_and_says_how_to_wait_again(studio: Studio) -> None:
    id = in_background(studio, arguments='{"name": "f"}')
    with started("task", studio.url, id, until_said="mixing f") as command:
        command.send_signal(signal.SIGINT)
        code, printed, said = ended(command)
    fate = f"The task goes on: weft task {studio.url} {id}"
    assert (code, printed, said.splitlines()[-1]) == (130, "", fate)
    assert "f" not in studio.cancelled
    studio.opened["f"].set()
    again = run_weft(*shlex.split(fate.partition(": ")[2])[1:])
    assert (again.returncode, again.stdout) == (0, "painted f\n")


def test_a_task_that_is_not_waited_for_any_longer_goes_on(studio: Studio, tmp_path: Path) -> None:
    file = tmp_path / "my servers.json"
    file.write_text(json.dumps({"mcpServers": {"studio": {"url": studio.url}}}))
    id = in_background(studio, arguments='{"name": "g"}')
    waited = run_weft("task", "studio", "--config", str(file), id, "--timeout", "3")
    assert waited.returncode == 1
    assert waited.stderr.splitlines()[-2:] == [
        f"The task goes on: weft task --config '{file}' studio {id}",
        "weft: The task sent no message for 3 s. If it needs longer, raise --timeout, or leave it out.",
    ]
    assert "g" not in studio.cancelled
    studio.opened["g"].set()


@pytest.mark.parametrize("options", [[], ["--status"], ["--cancel"]])
def test_a_task_that_does_not_exist(studio: Studio, options: list[str]) -> None:
    done = run_weft("task", studio.url, "unknown", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"weft: The task does not exist at {studio.url}")


def test_a_task_that_failed(studio: Studio) -> None:
    """Nothing was refused: the task has ended with an error."""
    waited = run_weft("task", studio.url, in_background(studio, "close"))
    assert (waited.returncode, waited.stdout) == (1, "")
    assert waited.stderr == "weft: The task failed: The studio is closed. (1001)\n"


async def test_a_request_about_a_task_that_is_refused() -> None:
    server = TaskServer()
    server.on["tasks/get"] = lambda _: Refusal(1001, "not today")
    async with http_server(server.serve) as url:
        waited = await asyncio.to_thread(run_weft, "task", url, ID)
    assert (waited.returncode, waited.stdout) == (1, "")
    assert waited.stderr == f"weft: {url} refused tasks/get: not today (1001)\n"


def test_the_questions_of_a_task_are_shown_and_not_answered(studio: Studio) -> None:
    with weft.sync.Client(studio.url, elicit=lambda _: "cancel", manual_input=True) as client:
        handle = client.start_tool("sign")
        assert handle.id is not None
        until(lambda: handle.status().status == "input_required")
        seen = run_weft("task", studio.url, handle.id, "--status")
        first, *questions = seen.stdout.splitlines()
        assert (seen.returncode, first.split(":")[0], seen.stderr) == (0, "input_required", "")
        assert questions == (["  asks: Who signs 0?"] if client.era == "stateless" else [])
        waited = run_weft("task", studio.url, handle.id)
        assert (waited.returncode, waited.stdout) == (1, "")
        why = "asked a question in tasks/get (input_required). `weft task` cannot answer questions; use"
        assert waited.stderr.splitlines()[-2:] == [
            f"The task goes on: weft task {studio.url} {handle.id}",
            f"weft: {studio.url} {why} Client(elicit=...).",
        ]
        assert handle.status().status == "input_required"
        handle.cancel()


@pytest.mark.parametrize(
    ("question", "line"),
    [
        (form("Who\x1b[2J\nelse?"), r"  asks: Who\u001b[2J\nelse?"),
        (
            {
                "method": "elicitation/create",
                "params": {"mode": "url", "message": "Pay.", "url": "https://pay.example"},
            },
            "  asks: Pay. https://pay.example",
        ),
        ({"method": "roots/list"}, "  asks: roots/list"),
        ({"method": "sampling/createMessage", "params": {"messages": []}}, "  asks: sampling/createMessage"),
        (7, "  asks: None"),
    ],
)
async def test_each_question_is_one_line(question: Any, line: str) -> None:
    server = TaskServer(state("input_required", inputRequests={"q": question}))
    async with http_server(server.serve) as url:
        seen = await asyncio.to_thread(run_weft, "task", url, ID, "--status")
    assert (seen.returncode, seen.stdout, seen.stderr) == (0, f"input_required\n{line}\n", "")


# --- ids that look like options


@pytest.mark.parametrize(
    "id", ["-wSOCfHXc0CFfJy8kZPDbvyb", "-hSOCfHXc0CFfJy8kZPDbvyb", "--wSOCfHXc0CFfJy8kZPDbvy", "-1"]
)
async def test_an_id_that_begins_with_a_hyphen(id: str) -> None:
    server = TaskServer()
    server.task = {**done("found"), "taskId": id}
    async with http_server(server.serve) as url:
        for command in (["task", url, id], ["task", url, "--", id], ["task", "--timeout", "9", url, id]):
            waited = await asyncio.to_thread(run_weft, *command)
            assert (waited.returncode, waited.stdout, waited.stderr) == (0, "found\n", "")
        for command in (["task", url, id, "--status"], ["task", "--status", url, id]):
            assert (await asyncio.to_thread(run_weft, *command)).stdout == "completed\n"
        cancelled = await asyncio.to_thread(run_weft, "task", "--cancel", url, id)
    assert cancelled.returncode == 0
    assert server.calls("tasks/cancel")[0]["params"]["taskId"] == id


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["an-id", "--wrong"], "weft: weft task has no option --wrong; see weft task --help."),
        (["an-id", "-wrong"], "weft: weft task has no option -wrong; see weft task --help."),
        (["-an-id", "-wrong"], "weft: weft task has no option -wrong; see weft task --help."),
        ([], "weft task: error: the following arguments are required: ID"),
        (["--wrong"], "weft task: error: the following arguments are required: ID"),
    ],
)
def test_options_that_do_not_exist_are_still_refused(arguments: list[str], said: str) -> None:
    done = run_weft("task", "http://127.0.0.1:9/mcp", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == said


def test_no_option_is_taken_for_an_id() -> None:
    from weft.cli.command import _ID

    lines = [line for line in run_weft("task", "--help").stdout.splitlines() if line.startswith("  -")]
    options = {option for line in lines for option in re.findall(r"--?\w+", line[:22])}
    assert {"-h", "--status", "--timeout"} <= options
    assert [option for option in options if _ID.fullmatch(option)] == []


# --- in a pipeline


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_an_id_goes_through_a_pipe(studio: Studio) -> None:
    studio.opened["h"].set()
    words = shlex.join(WEFT)
    line = f"""{words} call {studio.url} paint '{{"name": "h"}}' --background | xargs {words} task {studio.url} | cat"""
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "painted h\n"
