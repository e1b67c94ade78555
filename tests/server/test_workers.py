"""Several workers on one socket: how they start and end, and how they are replaced, one by one or all."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import weft
from support.processes import SCRIPT, Process, connect, eventually, gone, pid_of, pids, raw_call, refuses, status
from support.redis_servers import redis_server
from weft import Server
from weft.backends.memory import MemoryBackend
from weft.cli.calling import CallFailed, RemoteServer
from weft.errors import StartError
from weft.server.run import workers
from weft.server.run.listening import HttpOptions
from weft.server.run.loading import Target

GUARDED = "if __name__ == '__main__':\n    server.run('http', port=0, workers=2)"

QUIET = GUARDED.replace("workers=2", "workers=2, log_level='warning'")  # a line for each call would fill the pipe


@pytest.fixture
def start(tmp_path: Path):
    with contextlib.ExitStack() as stack:

        def start(ending: str = GUARDED, script: str = SCRIPT, **options: Any) -> Process:
            process = Process(tmp_path, ending, script, **options)
            stack.callback(process.kill)
            return process

        yield start


# Starting.


@pytest.mark.parametrize("ending", [GUARDED, "server.run('http', port=0, workers=2)"])
def test_several_workers_serve_and_end_together(start, ending: str) -> None:
    process = start(ending)
    found = pids(process.url(), 2)
    process.signal(signal.SIGINT)
    code, errors = process.end()
    assert code == 0
    assert "Traceback" not in errors
    assert all(map(gone, found))


def test_they_share_a_key_also_where_the_variable_for_it_is_empty(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STATE_KEY", "")
    tool = "@server.tool\nasync def key() -> str:\n    return server.engine.state_keys.ids[0]\n"
    env = "@server.tool\nasync def env() -> str:\n    return str(os.environ.get('WEFT_STATE_KEY'))\n"
    url = start(tool + env + GUARDED).url()
    pids(url, 2)
    keys = {RemoteServer(url, 30).call_tool("key", {})["content"][0]["text"] for _ in range(20)}
    assert len(keys) == 1
    assert RemoteServer(url, 30).call_tool("env", {})["content"][0]["text"] == "None"  # for the processes of a tool


def test_a_key_that_the_user_has_set_stays_in_the_environment(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STATE_KEY", "a secret that the workers share")
    env = "@server.tool\nasync def env() -> str:\n    return str(os.environ.get('WEFT_STATE_KEY'))\n"
    url = start(env + GUARDED).url()
    assert RemoteServer(url, 30).call_tool("env", {})["content"][0]["text"] == "a secret that the workers share"


def test_processes_that_the_file_starts_do_not_get_the_sockets_of_a_worker(start) -> None:
    look = (
        "import glob, os, re\n"
        "links = [(int(re.findall('[0-9]+$', path)[0]), path) for path in glob.glob('/proc/self/fd/*')]\n"
        "sockets = [fd for fd, path in links if fd > 2 and os.path.islink(path) and 'socket' in os.readlink(path)]\n"
        "passed = [fd for fd in sockets if os.get_inheritable(fd)]\n"
    )
    tool = "@server.tool\nasync def passed_on() -> str:\n    return f'{len(sockets) > 0} {passed}'\n"
    url = start(look + tool + GUARDED).url()
    assert RemoteServer(url, 30).call_tool("passed_on", {})["content"][0]["text"] == "True []"


def test_the_parent_says_how_to_control_it(start) -> None:
    process = start()
    line = process.until("Weft serves")
    assert line.endswith(f"(process {process._child.pid}; Ctrl-C stops, SIGHUP replaces the workers)")


def test_the_backend_that_they_share_is_named_without_its_password(start, tmp_path: Path) -> None:
    with redis_server(tmp_path, password="hunter2") as redis:
        environment = os.environ | {"WEFT_BACKEND": redis.url, "WEFT_STATE_KEY": "only for this test"}
        process = start(env=environment)
        line = process.until("Backend:")
        process.signal(signal.SIGTERM)
        process.end()
    assert line == f"Backend: redis://127.0.0.1:{redis.port} (prefix 'weft:')"


def test_they_need_a_server_they_can_find(start) -> None:
    code, errors = start(
        "def main(server=server):\n    server.run('http', port=0, workers=2)\ns = [server]; del server\nmain()"
    ).end()
    assert code == 1
    assert errors.startswith("Each worker loads the server itself, so it has to be a global variable of the script")


def test_one_that_cannot_start_stops_everything(start) -> None:
    ending = "import __main__\nif not hasattr(__main__, 'server'):\n    raise ValueError('only in workers')\n" + GUARDED
    process = start(ending)
    code, errors = process.end()
    assert code == 1
    assert errors.count("ValueError: only in workers") == 1  # not once for each worker
    assert "Weft serves" not in errors
    assert "script.py cannot be loaded: ValueError: only in workers" in errors.splitlines()[0]


@pytest.mark.mistake("a backend in memory for several workers")
def test_a_backend_in_memory_cannot_be_given_to_workers() -> None:
    with pytest.raises(StartError) as raised:
        workers.run_workers(Server("s", backend=MemoryBackend()).engine, HttpOptions(workers=2), Target("script.py"))
    assert str(raised.value) == (
        "workers=2 is not possible with a backend= in memory: each worker would have its own. Leave backend= out: the "
        "workers then share the memory of the process that starts them."
    )


@pytest.mark.parametrize("keys", ["", ", state_keys=['a secret that the workers share']"])
def test_no_key_is_made_up_for_a_backend_that_other_machines_use_too(
    start, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_STATE_KEY", raising=False)
    shared = "from weft.backends.memory import MemoryBackend\nclass Shared(MemoryBackend):\n    is_local = False\n"
    process = start(script=shared + SCRIPT.replace('Server("runner"', f'Server("runner", backend=Shared(){keys}'))
    if keys:
        assert len(pids(process.url(), 2)) == 2
    else:
        code, errors = process.end()
        assert code == 1
        assert "set WEFT_STATE_KEY in their environment" in errors


def test_a_worker_of_another_release_does_not_start() -> None:
    parents, its = socket.socketpair()
    order = workers.WorkerOrder(
        target=Target("script.py"),
        options=HttpOptions(),
        debug=False,
        listener=-1,
        control=its.fileno(),
        backend=None,
        version="0.0.0",
    )
    text = msgspec.json.encode(order).decode()
    command = [sys.executable, "-m", "weft.server.run.workers", text]
    with parents, its:
        done = subprocess.run(command, pass_fds=[its.fileno()], check=False)
        reason = parents.recv(1000).decode()  # the parent tells it
    assert done.returncode == workers.CANNOT_START
    assert reason.startswith(f"Weft {weft.__version__} was installed while 0.0.0 is running")
    assert reason.endswith(" Stop it, and start it again.")


# Ending.


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_who_comes_while_they_end_is_refused_at_once(start) -> None:
    script = SCRIPT.replace("drain_seconds=0.5", "drain_seconds=40")
    process = start(script=script)
    url = process.url()
    with connect(url) as peer:
        peer.sendall(raw_call("wait"))
        process.until("waiting")
        process.signal(signal.SIGTERM)
        assert eventually(lambda: refuses(url))  # workers look for the signal ten times a second


def test_sigterm_lets_open_requests_finish(start) -> None:
    nap = "@server.tool\nasync def nap() -> str:\n    print('waiting', file=sys.stderr, flush=True)\n"
    nap += "    await asyncio.sleep(1)\n    return 'slept'\n"
    process = start(nap + GUARDED, SCRIPT.replace("drain_seconds=0.5", "drain_seconds=20"))
    with connect(process.url()) as peer:
        peer.sendall(raw_call("nap"))
        process.until("waiting")
        process.signal(signal.SIGTERM)
        assert status(peer) == 200
    code, errors = process.end()
    assert code == 0
    assert "Traceback" not in errors


def test_a_second_interrupt_kills_them(start) -> None:
    process = start(script=SCRIPT.replace("drain_seconds=0.5", "drain_seconds=60"))
    url = process.url()
    found = pids(url, 2)
    with connect(url) as peer:
        peer.sendall(raw_call("wait"))
        process.until("waiting")
        process.signal(signal.SIGINT)
        time.sleep(0.3)
        process.signal(signal.SIGTERM)  # a service manager may be impatient; only a person may end it at once
        time.sleep(0.3)
        process.signal(signal.SIGINT)
        assert process.end()[0] == 130
        assert eventually(lambda: all(map(gone, found)))


def test_they_end_when_their_parent_is_killed(start) -> None:
    process = start()
    found = pids(process.url(), 2)
    process.signal(signal.SIGKILL)
    for _ in found:
        process.until("The process that started this worker is gone, so this worker stops.")
    assert eventually(lambda: all(map(gone, found)))


def test_one_that_hangs_ends_after_its_parent_was_killed(start) -> None:
    blocking = "@server.tool\nasync def block() -> str:\n    print('waiting', file=sys.stderr, flush=True)\n"
    process = start(blocking + "    time.sleep(60)\n    return 'never'\n" + GUARDED)
    url = process.url()
    found = pids(url, 2)
    with connect(url) as peer:
        peer.sendall(raw_call("block"))
        process.until("waiting")
        process.signal(signal.SIGKILL)
        process.until("This worker did not stop in time, and is ended.")
        assert eventually(lambda: all(map(gone, found)))
    assert eventually(lambda: refuses(url))  # nothing has the port any more


def test_they_are_watched_over_from_any_thread(start) -> None:
    process = start(GUARDED.replace("server.run(", "asyncio.run(asyncio.to_thread(server.run, ") + ")")
    found = pids(process.url(), 2)
    process.signal(signal.SIGKILL)
    assert eventually(lambda: all(map(gone, found)))


# Replacing one.


def test_one_that_dies_is_replaced(start) -> None:
    process = start()
    url = process.url()
    before = pids(url, 2)
    time.sleep(1)
    with contextlib.suppress(CallFailed):
        RemoteServer(url, 30).call_tool("die", {})
    process.until("ended with code 9 and is replaced")
    assert len(pids(url, 2) | before) == 3


def test_one_that_cannot_be_replaced_is_tried_again_while_others_serve(start, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    check = f"import pathlib\nif pathlib.Path({str(broken)!r}).exists():\n    raise ValueError('broken')\n"
    process = start(script=check + SCRIPT)
    url = process.url()
    before = pids(url, 2)
    broken.touch()
    os.kill(next(iter(before)), signal.SIGKILL)
    process.until("ValueError: broken")
    process.until("ended with code 3 and is replaced")
    assert pid_of(url) in before
    broken.unlink()
    assert len(pids(url, 2) & before) == 1


async def test_one_for_which_there_is_no_room_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    order = workers.WorkerOrder(Target("script.py"), HttpOptions(workers=2), False, -1, -1, None, "")
    with socket.socket() as listener:
        supervisor = workers._Supervisor(order, listener, Server("s").engine, shares_memory=True)
        dead = workers._Worker(SimpleNamespace(pid=7, poll=lambda: 9), listener, 0.0)  # type: ignore[arg-type]
        supervisor._workers = [dead]
        supervisor._check_workers(is_started=True)
        assert supervisor._workers == [dead]
        assert "A worker cannot be started now: [Errno 11]" in caplog.text
        caplog.clear()
        supervisor._check_workers(is_started=True)
        await supervisor._replace_all()
        assert "is replaced" not in caplog.text  # not again at once
        assert "so the old workers go on serving" in caplog.text


async def test_a_worker_gets_only_the_sockets_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[list[int]] = []

    def fail(*_: Any, pass_fds: list[int], **__: Any) -> None:
        passed.append(pass_fds)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    order = workers.WorkerOrder(Target("script.py"), HttpOptions(workers=2), False, 99, -1, None, "")
    with socket.socket() as listener:
        for shares_memory in (False, True):
            supervisor = workers._Supervisor(order, listener, Server("s").engine, shares_memory=shares_memory)
            assert supervisor._try_start_worker() is None
    assert [len(sockets) for sockets in passed] == [2, 3]


# Replacing all.


class Load:
    """Clients that call without a pause, on kept connections and on new ones, and what went wrong."""

    def __init__(self, url: str) -> None:
        self._port = int(url.split(":")[2].split("/")[0])
        self._request = raw_call("pid")
        self.errors: list[str] = []
        self.answers: list[int] = []  # the processes that answered

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Call once; return whether the connection can be used again."""
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = await reader.readexactly(int(head.split("content-length: ")[1].split("\r")[0]))
        assert head.startswith("http/1.1 200"), head
        self.answers.append(json.loads(body)["result"]["structuredContent"])
        return "connection: close" not in head

    async def _keep(self, pause: float, *, most: int = sys.maxsize) -> None:
        """Call on a connection for as long as the server keeps it, then on the next; at most so often on one."""
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(writer):
                for _ in range(most):
                    if not await self._call(reader, writer):
                        break
                    await asyncio.sleep(pause)

    async def _note(self, client: Any) -> None:
        try:
            await client
        except (OSError, EOFError, AssertionError) as error:
            self.errors.append(repr(error))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        clients = [self._keep(0), self._keep(0.01), self._keep(0.3), self._keep(0.3), self._keep(0, most=1)]
        tasks = [asyncio.create_task(self._note(client)) for client in clients]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def eventually_async(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not fact():  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.05)


def test_the_log_of_a_worker_that_is_replaced_says_that_this_worker_stops(start) -> None:
    process = start()
    url = process.url()
    with connect(url) as peer:
        peer.sendall(raw_call("wait"))
        process.until("waiting")
        process.signal(signal.SIGHUP)
        assert "This worker stops. It waits up to 0.5 s for 1 call: tools/call 'wait'" in process.until(
            " stops. It waits"
        )


async def test_sighup_replaces_them_and_no_connection_is_refused_or_broken(start) -> None:
    process = start(QUIET)
    url = process.url()
    load = Load(url)
    async with load.running():
        await eventually_async(lambda: len(set(load.answers)) == 2)
        before = set(load.answers)
        process.file.write_text("# new code\n" + SCRIPT.replace("os.getpid()", "-os.getpid()") + QUIET)
        process.signal(signal.SIGHUP)
        await eventually_async(lambda: all(map(gone, before)))
        load.answers.clear()
        await eventually_async(lambda: len(set(load.answers)) == 2)
    assert load.errors == []
    assert all(answer < 0 for answer in load.answers)  # of the new code


def test_sighup_with_a_broken_file_keeps_the_old_ones(start) -> None:
    process = start()
    url = process.url()
    before = pids(url, 2)
    process.file.write_text("raise ValueError('not finished')\n")
    process.signal(signal.SIGHUP)
    said = process.until("The new worker could not start, so the old workers go on serving. Correct this, and send ")
    assert "SIGHUP again: " in said
    assert said.endswith("script.py cannot be loaded: ValueError: not finished")
    assert pids(url, 2) == before
    process.file.write_text("# finished\n" + SCRIPT + GUARDED)
    process.signal(signal.SIGHUP)
    process.until("All workers are new now.")
    assert pids(url, 2).isdisjoint(before)


PATIENCE = """
import signal
from weft.server.run import workers

usual = workers.START_SECONDS
signal.signal(signal.SIGUSR1, lambda *_: setattr(workers, "START_SECONDS", 0))
signal.signal(signal.SIGUSR2, lambda *_: setattr(workers, "START_SECONDS", usual))
"""


def test_sighup_with_a_file_that_hangs_keeps_the_old_ones(start) -> None:
    process = start(script=PATIENCE + SCRIPT)
    url = process.url()
    before = pids(url, 2)
    process.file.write_text("import os, sys, time\nprint('loading', os.getpid(), file=sys.stderr)\ntime.sleep(600)\n")
    process.signal(signal.SIGHUP)
    new = int(process.until("loading").split()[1])
    process.signal(signal.SIGUSR1)
    process.until("The new worker did not accept connections within 0 s and was killed.")
    process.until("so the old workers go on serving")
    assert gone(new)
    assert pids(url, 2) == before
    process.signal(signal.SIGUSR2)
    process.file.write_text(SCRIPT + GUARDED)
    process.signal(signal.SIGHUP)
    process.until("All workers are new now.")
    assert pids(url, 2).isdisjoint(before)


def test_sighup_while_they_are_replaced_replaces_them_once_more(start) -> None:
    process = start()
    process.url()
    process.signal(signal.SIGHUP)
    process.until("The workers are replaced, one after another.")
    for _ in range(3):
        process.signal(signal.SIGHUP)
    for _ in range(2):
        process.until("All workers are new now.")
    process.signal(signal.SIGTERM)
    code, errors = process.end()
    assert code == 0
    assert "are replaced" not in errors


def test_a_terminal_that_is_closed_stops_everything(start) -> None:
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = start(stdin=theirs, start_new_session=True, preexec_fn=take_terminal)
    os.close(theirs)
    found = pids(process.url(), 2)
    os.close(ours)  # the kernel sends SIGHUP
    assert process.end()[0] == 0
    assert all(map(gone, found))


# Notice.


@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_is_noticed_before_connections_are_refused(start, count: int) -> None:
    script = SCRIPT.replace("drain_seconds=0.5", "drain_seconds=0.5, drain_notice_seconds=5")
    process = start(GUARDED.replace("workers=2", f"workers={count}"), script)
    url = process.url()

    def readiness() -> int:
        with connect(url) as peer:
            peer.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return status(peer)

    assert readiness() == 200
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    process.until("Draining: /readyz answers 503, and new connections are accepted for another 5 s.")
    assert time.monotonic() - since < 1
    assert eventually(lambda: readiness() == 503)
    assert pid_of(url) > 0  # it still serves
    assert process.end()[0] == 0
    assert time.monotonic() - since > 5


def test_ctrl_c_is_not_noticed_before(start) -> None:
    process = start(script=SCRIPT.replace("drain_seconds=0.5", "drain_seconds=0.5, drain_notice_seconds=60"))
    process.url()
    process.signal(signal.SIGINT)
    assert process.end()[0] == 0
