"""`weft task` in real processes: ids that look like options."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest

from support.fakes import http_server
from support.task_servers import TaskServer, done

WEFT = [sys.executable, "-m", "weft"]


def run_weft(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WEFT, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


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
