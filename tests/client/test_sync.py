"""The client for programs that do not await: the same verbs, waiting; threads, interrupts, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest

import weft
import weft.sync
from weft import ConnectionFailed, RemoteError, RequestTimeout
from weft.client.results import ToolsChanged
from weft.errors import UsageError
from weft.limits import ClientLimits

SERVER = '''
import asyncio, os
from weft import Context, Server

server = Server("demo", version="1.0", instructions="Be kind.")

@server.tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

@server.tool
async def slow(ctx: Context, seconds: float) -> str:
    """Take time, and say so."""
    await ctx.report_progress(1, 2)
    await asyncio.sleep(seconds)
    return "done"

@server.tool
async def who(ctx: Context) -> str:
    """Ask."""
    form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answer = await ctx.elicit("Who?", form)
    return answer.value["name"] if answer.accepted else answer.action

@server.tool
async def change(ctx: Context) -> str:
    """Tell that the tools are others."""
    server.notify_tools_changed()
    return "told"

@server.resource("demo://text")
def text() -> str:
    """A text."""
    return "hello"

if __name__ == "__main__":
    server.run()
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    path = tmp_path_factory.mktemp("sync") / "server.py"
    path.write_text(SERVER)
    return [sys.executable, str(path)]


@pytest.fixture
def client(command):
    with weft.sync.Client(command) as client:
        yield client


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "weft-sync"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_verb_is_there_with_its_parameters():
    for name, member in vars(weft.Client).items():
        if name.startswith("_"):
            continue
        mine = inspect.getattr_static(weft.sync.Client, name)
        assert type(mine) is type(member), name
        if callable(member):
            assert list(inspect.signature(mine).parameters) == list(inspect.signature(member).parameters), name
            assert not inspect.iscoroutinefunction(mine), name
            assert mine.__doc__, name
    assert inspect.signature(weft.sync.Client) == inspect.signature(weft.Client)


def test_a_conversation(client):
    assert client.server_info.name == "demo"
    assert client.instructions == "Be kind."
    assert client.era in ("stateless", "session")
    assert client.protocol_version
    assert client.server_capabilities.tools is not None
    assert [tool.name for tool in client.list_tools()] == ["add", "slow", "who", "change"]
    assert client.list_tools_page().tools
    assert client.call_tool("add", {"a": 1, "b": 2}).structured == 3
    assert client.read_resource("demo://text").contents[0].text == "hello"
    assert client.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})["content"][0]["text"] == "2"
    assert client.transport.pid


def test_errors_are_those_of_the_call(client):
    with pytest.raises(RemoteError) as caught:
        client.read_resource("demo://none")
    assert caught.value.code in (-32602, -32002)
    with pytest.raises(RequestTimeout):
        client.call_tool("slow", {"seconds": 30}, timeout=0.1)
    assert client.call_tool("add", {"a": 1, "b": 2}).text == "3"


def test_what_cannot_be_reached_is_said_at_once_and_leaves_no_thread():
    with pytest.raises(ConnectionFailed, match="cannot be started"), weft.sync.Client(["no-such-program"]):
        pass
    with pytest.raises(UsageError, match="allow_insecure"):
        weft.sync.Client("http://a.example/")
    assert threads() == []


def test_before_and_after(command):
    client = weft.sync.Client(command)
    with pytest.raises(
        UsageError, match=r"not connected. Use it within `with Client\(\.\.\.\) as client:`, or `client\.connect\(\)`"
    ):
        client.list_tools()
    client.connect()
    assert client.list_tools()
    client.close()
    client.close()
    with pytest.raises(UsageError, match=r"closed.*make a new one"):
        client.list_tools()
    weft.sync.Client(command).close()  # never used
    assert threads() == []


def test_questions_are_answered_by_plain_functions_that_use_the_client(command):
    def elicit(question):
        return {"name": f"{question.message} {client.call_tool('add', {'a': 1, 'b': 2}).text}"}

    with weft.sync.Client(command, elicit=elicit) as client:
        assert client.call_tool("who").text == "Who? 3"


def test_progress_is_told_and_the_client_cannot_be_waited_for_there(client, caplog):
    seen = []

    def progress(told):
        seen.append(told.progress)
        client.list_tools()

    assert client.call_tool("slow", {"seconds": 0}, progress=progress).text == "done"
    assert seen == [1]
    assert "cannot be called in its own thread" in caplog.text


def test_changes_are_iterated_over(client):
    with client.listen(tools=True) as changes:
        client.call_tool("change")
        assert next(changes) == ToolsChanged()
        client.call_tool("change")
        for change in changes:
            assert change == ToolsChanged()
            break
    assert list(changes) == []


def test_closing_ends_the_iteration(command):
    client = weft.sync.Client(command)
    client.connect()
    heard = []
    listener = threading.Thread(target=lambda: heard.extend(client.listen(tools=True)))
    listener.start()
    time.sleep(0.2)
    client.close()
    listener.join(30)
    assert not listener.is_alive()
    assert heard == []


def test_closing_the_client_just_before_a_listening_ends(command, monkeypatch):
    client = weft.sync.Client(command)
    client.connect()
    changes = client.listen(tools=True)
    wait_for = changes._wait_for

    def overtaken(work):
        client.close()  # by another thread
        return wait_for(work)

    with changes:
        monkeypatch.setattr(changes, "_wait_for", overtaken)
    changes.close()
    assert threads() == []


def test_closing_the_client_within_an_iteration(command):
    client = weft.sync.Client(command)
    client.connect()
    with client.listen(tools=True) as changes:
        client.call_tool("change")
        assert next(changes) == ToolsChanged()
        client.close()
        assert client._is_closed
        assert list(changes) == []
    assert threads() == []


def test_from_many_threads(client):
    found = []

    def add(number: int) -> None:
        found.append(client.call_tool("add", {"a": number, "b": number}).text)

    workers = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert sorted(found, key=int) == [str(2 * number) for number in range(16)]


def test_closing_while_another_thread_waits(command):
    client = weft.sync.Client(command)
    client.connect()
    caught = []

    def call() -> None:
        try:
            client.call_tool("slow", {"seconds": 30})
        except ConnectionFailed as error:
            caught.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.2)
    client.close()
    caller.join(30)
    assert len(caught) == 1
    assert threads() == []


def test_closing_does_not_wait_for_threads_that_hang(command):
    tasks, may_end = [], threading.Event()

    async def hang():
        tasks.append(asyncio.create_task(asyncio.to_thread(may_end.wait, 60)))
        await asyncio.sleep(0)

    client = weft.sync.Client(command)
    client.connect()
    client._wait_for(hang())
    client.close()
    assert threads() == []
    assert tasks[0].cancelled()
    may_end.set()


async def test_within_a_running_loop(command):
    """As in a notebook: the loop stands still meanwhile, and it works."""
    assert asyncio.get_running_loop().is_running()
    with weft.sync.Client(command) as client:
        assert client.call_tool("add", {"a": 1, "b": 2}).text == "3"


def test_one_that_nobody_keeps_is_closed(command):
    client = weft.sync.Client(command)
    client.connect()
    pid, gone = client.transport.pid, weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    assert not is_running(pid)
    assert threads() == []


def test_a_server_in_this_process():
    server = weft.Server("here", version="1")

    @server.tool
    def greet(name: str) -> str:
        """Greet."""
        return f"Hello, {name}!"

    with weft.sync.Client(server) as client:
        assert client.call_tool("greet", {"name": "Ann"}).text == "Hello, Ann!"


# --- programs of their own


def program(tmp_path: Path, command: list[str], code: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(f"COMMAND = {command!r}\nfrom weft.sync import Client\n" + textwrap.dedent(code))
    return path


def run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", *options, str(path)], capture_output=True, text=True, timeout=30, check=False
    )


def test_the_end_of_the_program_closes_what_is_open(tmp_path, command):
    code = """
    client = Client(COMMAND)
    client.connect()
    print(client.transport.pid, client.call_tool("add", {"a": 1, "b": 2}).text)
    """
    done = run(program(tmp_path, command, code))
    assert (done.returncode, done.stderr) == (0, "")
    pid, text = done.stdout.split()
    assert text == "3"
    assert not is_running(int(pid))


def test_so_does_an_exception(tmp_path, command):
    code = """
    with Client(COMMAND) as client:
        print(client.transport.pid, flush=True)
        1 / 0
    """
    done = run(program(tmp_path, command, code))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert not is_running(int(done.stdout))


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_interrupts_a_call_and_the_client_lives_on(tmp_path, command):
    code = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background have it ignored
    with Client(COMMAND) as client:
        try:
            print(client.transport.pid, flush=True)
            client.call_tool("slow", {"seconds": 30})
        except KeyboardInterrupt:
            print("interrupted", client.call_tool("add", {"a": 1, "b": 2}).text, flush=True)
    """
    path = program(tmp_path, command, code)
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as child:
        pid = int(child.stdout.readline())
        time.sleep(0.3)
        os.kill(child.pid, signal.SIGINT)
        assert child.stdout.read() == "interrupted 3\n"
    assert child.returncode == 0
    assert not is_running(pid)


def test_the_client_does_not_ask_its_thread_whether_it_lives(command, monkeypatch):
    """If Ctrl-C interrupts `Thread.is_alive`, CPython 3.11 and 3.12 say from then on that the thread has ended."""
    with weft.sync.Client(command) as client:
        monkeypatch.setattr(threading.Thread, "is_alive", lambda _: False)
        assert client.call_tool("add", {"a": 1, "b": 2}).text == "3"
        pid = client.transport.pid
    monkeypatch.undo()
    assert not is_running(pid)
    assert threads() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_is_told(tmp_path, command):
    code = """
    import os
    client = Client(COMMAND)
    client.connect()
    if os.fork() == 0:
        try:
            client.list_tools()
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
    print(len(client.list_tools()))
    client.close()
    """
    done = run(program(tmp_path, command, code))
    assert done.stdout.splitlines() == ["The client is closed, or its process was forked; make a new one.", "4"]


def test_it_imports_no_server():
    heavy = ("weft.server", "pydantic", "aiohttp")
    code = f"import sys, weft.sync; print([name for name in sys.modules if name.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_limits_go_through(command):
    with weft.sync.Client(command, limits=ClientLimits(request_seconds=0.2)) as client, pytest.raises(RequestTimeout):
        client.call_tool("slow", {"seconds": 30})
