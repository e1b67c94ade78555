"""Tasks in programs that do not await: called, started, followed, answered, cancelled; in threads; Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import weft.sync
from support import until
from support.fakes import http_server
from support.studio import Studio, studio_of
from support.task_servers import SILENCE, TaskServer, done, form, state
from weft import ConnectionFailed, RequestTimeout, Server, TaskEnded
from weft.client import PendingQuestions
from weft.client.results import ToolCallFailed
from weft.types.lifecycle import ProgressParams

NO_SIGINT = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")


@pytest.fixture(scope="module", params=["stateless", "session"])
def studio(request: pytest.FixtureRequest) -> Iterator[Studio]:
    with studio_of(request.param) as served:
        yield served


def client_of(studio: Studio, **options: Any) -> weft.sync.Client:
    return weft.sync.Client(studio.url, **options)


def ann(_question: Any) -> dict[str, str]:
    return {"name": "Ann"}


# --- the methods


def test_a_call_shows_progress_answers_questions_and_returns_the_result(studio: Studio) -> None:
    shown: list[str | None] = []
    asked: list[str] = []

    def elicit(question: Any) -> dict[str, str]:
        asked.append(f"{question.message} {len(client.list_tools())}")  # it may call the client
        return {"name": "Ann"}

    def progress(update: ProgressParams) -> None:
        shown.append(update.message)
        studio.opened["a"].set()

    with client_of(studio, elicit=elicit) as client:
        assert client.call_tool("sign", {"number": 1}).text == "1 signed by Ann"
        assert asked == ["Who signs 1? 5"]
        assert client.call_tool("paint", {"name": "a"}, progress=progress).text == "painted a"
    assert "mixing a" in str(shown)


def test_a_task_is_started_and_taken_up_by_another_client(studio: Studio) -> None:
    with client_of(studio) as client:
        handle = client.start_tool("paint", {"name": "b"})
        assert isinstance(handle, weft.sync.TaskHandle)
        assert (handle.tool, handle.immediate_response) == ("paint", None)
        assert repr(handle) == "<TaskHandle of 'paint'>"
        now = handle.status()
        assert (now.id, now.status) == (handle.id, "working")
        id = now.id
    with client_of(studio) as client:
        handle = client.task(id)
        assert isinstance(handle, weft.sync.TaskHandle)
        assert (handle.id, handle.tool) == (id, "")
        with pytest.raises(RequestTimeout):
            handle.result(timeout=0.05)
        assert handle.status().status == "working"  # only the waiting has ended
        studio.opened["b"].set()
        assert handle.result(result_type=str) == "painted b"
        assert handle.status().status == "completed"
    assert studio.cancelled.count("b") == 0


def test_the_result_of_a_task_that_failed(studio: Studio) -> None:
    with client_of(studio) as client:
        handle = client.start_tool("spill")
        assert handle.result().is_error
        with pytest.raises(ToolCallFailed, match="The paint is on the floor"):
            handle.result(raise_on_error=True)


def test_a_task_is_cancelled(studio: Studio) -> None:
    with client_of(studio) as client:
        handle = client.start_tool("paint", {"name": "c"})
        next(state for state in handle if state.message)  # its handler runs
        handle.cancel()
        assert handle.status().status == "cancelled"
        until(lambda: "c" in studio.cancelled)
        with pytest.raises(TaskEnded, match="was cancelled"):
            handle.result()
        handle.cancel()  # does nothing


def test_a_call_that_takes_too_long_cancels_its_task(studio: Studio) -> None:
    with client_of(studio) as client:
        with pytest.raises(RequestTimeout):
            client.call_tool("paint", {"name": "d"}, timeout=2)
        until(lambda: "d" in studio.cancelled)


def test_the_states_of_a_task_are_iterated_over(studio: Studio) -> None:
    with client_of(studio, elicit=ann) as client:
        handle = client.start_tool("sign", {"number": 3})
        seen = [state.status for state in handle]
        assert seen[-1] == "completed"
        assert "completed" not in seen[:-1]
        assert len(seen) > 1
        assert handle.result().text == "3 signed by Ann"
        assert [state.status for state in handle] == ["completed"]  # once more
        studio.opened["e"].set()
        assert [state.status for state in client.start_tool("paint", {"name": "e"})][-1] == "completed"


def test_a_call_that_was_answered_without_a_task() -> None:
    server = Server("plain")
    server.add_tool(lambda: "now", name="now", description="Answer.")
    with weft.sync.Client(server) as client:
        handle = client.start_tool("now")
        assert handle.id is None
        assert handle.result().text == "now"
        assert [state.status for state in handle] == [handle.status().status] == ["completed"]
        handle.cancel()


@pytest.mark.parametrize("is_called", [True, False])
def test_questions_are_answered_by_hand(is_called: bool) -> None:
    server = TaskServer(state("input_required", inputRequests={"q": form()}))
    with weft.sync.Client(server, elicit=ann, manual_input=True) as client:
        handle = None if is_called else client.start_tool("t")
        with pytest.raises(PendingQuestions) as caught:
            client.call_tool("t") if handle is None else handle.result()
        asked = caught.value.task
        assert isinstance(asked, weft.sync.TaskHandle)
        assert handle in (None, asked)
        assert list(caught.value.requests) == ["q"]
        asked.answer({"q": {"action": "accept", "content": {"name": "Ann"}}})
        assert server.answers == {"q": {"action": "accept", "content": {"name": "Ann"}}}
        server.task = done("signed")
        assert asked.result().text == "signed"


def test_several_threads_follow_tasks_with_one_client(studio: Studio) -> None:
    def elicit(question: Any) -> dict[str, str]:
        return {"name": question.message}

    def one(number: int) -> str:
        if number % 3 == 0:
            return client.call_tool("sign", {"number": number}).text
        handle = client.start_tool("sign", {"number": number})
        if number % 3 == 1:
            list(handle)
        return handle.result().text

    with client_of(studio, elicit=elicit) as client, ThreadPoolExecutor(6) as threads:
        assert list(threads.map(one, range(18))) == [f"{number} signed by Who signs {number}?" for number in range(18)]
        handle = client.start_tool("sign")
        waiting = [threads.submit(handle.result) for _ in range(4)]  # all for the same
        assert {done.result().text for done in waiting} == {"0 signed by Who signs 0?"}


# --- the end of an iteration


def test_an_iteration_ends_with_the_error_of_a_client_that_was_closed() -> None:
    server = TaskServer()
    server.on["tasks/get"] = lambda _: SILENCE
    client = weft.sync.Client(server)
    client.connect()

    def follow() -> None:
        for _ in client.start_tool("t"):
            pass

    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow)
        until(lambda: server.calls("tasks/get"))
        client.close()
        with pytest.raises(ConnectionFailed):
            following.result(30)


def test_an_iteration_of_a_closed_client_does_not_hide_an_error() -> None:
    with weft.sync.Client(TaskServer()) as client:
        states: Any = iter(client.start_tool("t"))
        next(states)
    with pytest.raises(ZeroDivisionError):
        states.throw(ZeroDivisionError())


@pytest.mark.parametrize("is_closed_first", [True, False])
def test_an_iteration_that_is_left_open_complains_of_nothing(
    is_closed_first: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with weft.sync.Client(TaskServer()) as client, caplog.at_level(logging.WARNING):
        states = iter(client.start_tool("t"))
        assert next(states).status == "working"
        if is_closed_first:
            client.close()
        del states
        gc.collect()
    assert complaints == []
    assert caplog.records == []  # of asyncio, which closes what the client has left open


# --- Ctrl-C


def program(folder: Path, url: str, code: str) -> subprocess.Popen[str]:
    """Start a program that connects to a server."""
    path = folder / "program.py"
    head = f"""
import signal
from weft import ClientLimits
from weft.sync import Client
URL = {url!r}
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored
def show(update):
    print(update.message, flush=True)
"""
    path.write_text(head + textwrap.dedent(code))
    command = [sys.executable, "-W", "default", str(path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ending = threading.Timer(60, child.kill)  # so that a program that prints nothing fails only its test
    ending.daemon = True
    ending.start()
    return child


def interrupted(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Send Ctrl-C to a program that has printed a line, and return what it prints from then on, and its errors."""
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        return child.stdout.read(), child.stderr.read()


@NO_SIGINT
def test_ctrl_c_in_a_call_cancels_its_task(studio: Studio, tmp_path: Path) -> None:
    code = """
    with Client(URL) as client:
        client.call_tool("paint", {"name": "f"}, progress=show)
    """
    _, errors = interrupted(program(tmp_path, studio.url, code))
    assert errors.rstrip().endswith("KeyboardInterrupt")
    until(lambda: "f" in studio.cancelled, 10)


@NO_SIGINT
def test_ctrl_c_in_the_waiting_for_a_handle_lets_the_task_go_on(studio: Studio, tmp_path: Path) -> None:
    code = """
    with Client(URL) as client:
        handle = client.start_tool("paint", {"name": "g"})
        print(handle.id, flush=True)
        try:
            handle.result(progress=show)
        except KeyboardInterrupt:
            print(handle.status().status)
    """
    child = program(tmp_path, studio.url, code)
    assert child.stdout is not None
    child.stdout.readline()
    said, errors = interrupted(child)
    assert (said.splitlines()[-1], errors) == ("working", "")
    studio.opened["g"].set()


@NO_SIGINT
async def test_ctrl_c_in_an_iteration_ends_only_the_iteration(tmp_path: Path) -> None:
    server = TaskServer(state(pollIntervalMs=60_000))
    code = """
    with Client(URL) as client:
        handle = client.start_tool("t")
        try:
            for state in handle:
                pass
        except KeyboardInterrupt as error:
            print(repr(error), repr(error.__context__), handle.status().status)
    """
    async with http_server(server.serve) as url:
        with program(tmp_path, url, code) as child:
            await server.asked("subscriptions/listen")  # it has the first state, and waits for the next one
            child.send_signal(signal.SIGINT)
            said, errors = await asyncio.to_thread(child.communicate, timeout=50)
    assert (said, errors) == ("KeyboardInterrupt() None working\n", "")
    assert not server.calls("tasks/cancel")


@NO_SIGINT
async def test_ctrl_c_waits_for_a_task_that_is_being_cancelled_as_long_as_the_limit_says(tmp_path: Path) -> None:
    server = TaskServer(state(statusMessage="going"))
    server.on["tasks/cancel"] = lambda _: SILENCE
    code = """
    with Client(URL, limits=ClientLimits(close_seconds=3)) as client:
        client.call_tool("t", progress=show)
    """
    async with http_server(server.serve) as url:
        with program(tmp_path, url, code) as child:
            await server.asked("tasks/get")
            began = time.monotonic()
            child.send_signal(signal.SIGINT)
            _, errors = await asyncio.to_thread(child.communicate, timeout=50)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert 2.5 < time.monotonic() - began < 40


@NO_SIGINT
async def test_a_second_ctrl_c_does_not_wait_until_the_task_is_cancelled(tmp_path: Path) -> None:
    server = TaskServer(state(statusMessage="going"))
    server.on["tasks/cancel"] = lambda _: SILENCE
    code = """
    with Client(URL, limits=ClientLimits(close_seconds=100)) as client:
        client.call_tool("t", progress=show)
    """
    async with http_server(server.serve) as url:
        with program(tmp_path, url, code) as child:
            await server.asked("tasks/get")
            child.send_signal(signal.SIGINT)
            await server.asked("tasks/cancel")
            assert child.poll() is None  # it waits
            child.send_signal(signal.SIGINT)
            _, errors = await asyncio.to_thread(child.communicate, timeout=50)
    assert errors.rstrip().endswith("KeyboardInterrupt")
