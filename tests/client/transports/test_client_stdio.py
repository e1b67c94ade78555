"""A server that is a child process: started, spoken to, ended, and how each of these fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Self

import pytest

from weft.client import stdio
from weft.client.config import Command
from weft.client.connection.transport import Transport
from weft.client.stdio import StdioTransport, default_environment
from weft.errors import ConnectionFailed
from weft.limits import ClientLimits

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups are POSIX")

QUICK = ClientLimits(close_seconds=0.3)

ECHO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"got": message.get("params")}}), flush=True)
"""


def python(code: str, **options) -> Command:
    return Command((sys.executable, "-c", code), **options)


class Peer:
    """A transport with what came out of it."""

    def __init__(self, target: Command, limits: ClientLimits = QUICK, **options) -> None:
        self.transport = StdioTransport(target, limits, **options)
        self.received: list = []
        self.lost: list[ConnectionFailed] = []
        self.ids = iter(range(1, 10_000))

    async def open(self) -> Peer:
        await self.transport.open(lambda frame, _: self.received.append(frame), self.lost.append)
        return self

    async def ask(self, params: object = None) -> dict:
        request_id = next(self.ids)
        message = {"jsonrpc": "2.0", "id": request_id, "method": "test", "params": params}
        answer = await asyncio.wait_for(self.transport.request(json.dumps(message).encode(), request_id), 30)
        return json.loads(bytes(answer.frame.result))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_) -> None:
        await self.transport.close()
        await asyncio.sleep(0)
        assert [task.get_name() for task in asyncio.all_tasks() if "weft" in task.get_name()] == []


async def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that is dead and waits for its parent to notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_is_a_transport():
    transport: Transport = StdioTransport(python(ECHO))
    assert (transport.kind, transport.stream_per_request) == ("stdio", False)


async def test_a_request_is_answered():
    async with Peer(python(ECHO)) as peer:
        assert await peer.ask({"a": 1}) == {"got": {"a": 1}}
        assert peer.transport.pid is not None
    assert peer.transport.pid is None
    assert peer.transport.returncode == 0
    assert peer.lost == []


async def test_many_at_once_and_large_ones():
    async with Peer(python(ECHO)) as peer:
        answers = await asyncio.gather(*(peer.ask(["x" * 100_000, number]) for number in range(40)))
        assert [answer["got"][1] for answer in answers] == list(range(40))


@pytest.mark.spec("STDIO-01", "STDIO-03")
async def test_a_message_is_one_line():
    async with Peer(python(ECHO)) as peer:
        message = b'{"jsonrpc":"2.0",\n"id":1,\n"method":"test","params":{"text":"a\\nb"}}'
        answer = await asyncio.wait_for(peer.transport.request(message, 1), 30)
        assert json.loads(bytes(answer.frame.result)) == {"got": {"text": "a\nb"}}


async def test_what_is_no_message_is_left_out(caplog):
    noisy = "print('hello'); print(); print('\\r\\n')\n" + ECHO
    async with Peer(python(noisy)) as peer:
        assert await peer.ask(1) == {"got": 1}
    assert "is not a message" in caplog.text


@pytest.mark.spec("STDIO-04")
async def test_stderr_is_no_sign_of_failure_and_kept():
    lines: list[str] = []
    code = "import sys; print('Error: fatal!', file=sys.stderr, flush=True); sys.stderr.write('no end')\n" + ECHO
    async with Peer(python(code, on_stderr=lines.append)) as peer:
        assert await peer.ask(1) == {"got": 1}
    assert peer.transport.stderr == "Error: fatal!\nno end"
    assert lines == ["Error: fatal!", "no end"]
    assert peer.lost == []


async def test_only_the_last_of_stderr_is_kept():
    lines: list[str] = []
    code = "import sys; sys.stderr.write('x' * 300_000 + 'é the last'); sys.stderr.flush()\n" + ECHO
    async with Peer(python(code, on_stderr=lines.append)) as peer:
        await peer.ask(1)
        await until(lambda: peer.transport.stderr.endswith("é the last"))
        assert len(peer.transport.stderr.encode()) == 64 * 1024
    assert "".join(lines) == "x" * 300_000 + "é the last"
    assert max(len(line) for line in lines) < 400_000


async def test_a_failing_listener_of_stderr_does_no_harm(caplog):
    def fail(_: str) -> None:
        raise RuntimeError("mine")

    code = "import sys; print('a\\nb\\nc', file=sys.stderr, flush=True)\n" + ECHO
    async with Peer(python(code, on_stderr=fail)) as peer:
        assert await peer.ask(1) == {"got": 1}
        await until(lambda: "c" in peer.transport.stderr)
    assert caplog.text.count("on_stderr= failed") == 1


# --- the environment


@pytest.mark.security("R11")
async def test_secrets_of_the_environment_are_not_inherited(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("LANG", "() { :; }; echo")
    assert "LANG" not in default_environment()
    code = ECHO.replace('message.get("params")', "dict(__import__('os').environ)")
    async with Peer(python(code, env={"TOKEN": "given"})) as peer:
        environment = (await peer.ask())["got"]
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert environment["TOKEN"] == "given"
    assert environment["PATH"] == os.environ["PATH"]


async def test_the_folder(tmp_path):
    code = ECHO.replace('message.get("params")', "__import__('os').getcwd()")
    async with Peer(python(code, cwd=str(tmp_path))) as peer:
        assert (await peer.ask())["got"] == str(tmp_path.resolve())


@pytest.mark.security("R11")
async def test_no_shell_sees_the_command(tmp_path):
    code = ECHO.replace('message.get("params")', "sys.argv[1:]")
    words = ("$HOME", "`id`", f"; touch {tmp_path}/hacked", "a b", "*")
    async with Peer(Command((sys.executable, "-c", code, *words))) as peer:
        assert (await peer.ask())["got"] == list(words)
    assert list(tmp_path.iterdir()) == []


# --- it cannot be started


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("no-such-program-here",), "there is no such program on the PATH; install it"),
        (("mcp.json",), "read_config('mcp.json') returns the servers of a configuration."),
        (("/no/such/program",), "check the path"),
        (("npx -y server",), "write the arguments separately: ['npx', '-y', 'server']"),
        (("server.py",), f"start it as [{sys.executable!r}, 'server.py']"),
        (("/tmp",), "not executable"),
    ],
)
async def test_programs_that_cannot_be_started(command, said):
    with pytest.raises(ConnectionFailed) as caught:
        await Peer(Command(command)).open()
    assert f"The server {command[0]!r} cannot be started" in str(caught.value)
    assert said in str(caught.value)


async def test_a_folder_that_is_not_there():
    with pytest.raises(ConnectionFailed, match="no folder '/no/such' to start it in; correct cwd"):
        await Peer(python(ECHO, cwd="/no/such")).open()


async def test_a_file_that_is_no_program(tmp_path):
    script = tmp_path / "server"
    script.write_bytes(b"print('no first line')\n")
    script.chmod(0o644)
    with pytest.raises(ConnectionFailed, match=f"the file is not executable; run chmod \\+x {script}"):
        await Peer(Command((str(script),))).open()
    script.chmod(0o755)
    with pytest.raises(ConnectionFailed, match="the file is not a program; give it a first line"):
        await Peer(Command((str(script),))).open()


async def test_a_transport_that_did_not_start_says_so_afterwards():
    peer = Peer(Command(("no-such-program-here",)))
    with pytest.raises(ConnectionFailed):
        await peer.open()
    with pytest.raises(ConnectionFailed, match="no connection"):
        await peer.ask()
    await peer.transport.close()


# --- it ends by itself


async def test_a_child_that_dies_says_why():
    code = "import sys; sys.stdin.readline(); print('Traceback: no key', file=sys.stderr); sys.exit(3)"
    async with Peer(python(code)) as peer:
        with pytest.raises(ConnectionFailed) as caught:
            await peer.ask()
        assert "ended with the exit code 3" in str(caught.value)
        assert "Traceback: no key" in str(caught.value)
        assert [str(failure) for failure in peer.lost] == [str(caught.value)]
        assert peer.transport.returncode == 3
        with pytest.raises(ConnectionFailed, match="exit code 3"):
            await peer.ask()


async def test_a_child_that_is_gone_before_the_first_question():
    async with Peer(python("")) as peer:
        await until(lambda: peer.lost)
        with pytest.raises(ConnectionFailed) as caught:
            await peer.ask()
    assert str(caught.value) == (
        f"The server `{sys.executable} -c ''` ended with the exit code 0. It answered nothing before that: does it "
        "start its server, for example with `server.run()`? It wrote nothing to stderr."
    )


async def test_one_that_ends_after_an_answer_has_started_its_server():
    code = 'import sys; sys.stdin.readline(); print(\'{"jsonrpc": "2.0", "id": 1, "result": {}}\')'
    async with Peer(python(code)) as peer:
        await peer.ask(1)
        await until(lambda: peer.lost)
    assert "exit code 0. It wrote nothing" in str(peer.lost[0])


@pytest.mark.parametrize("loop_is_busy", [0.0, 0.1])
async def test_a_child_that_is_gone_before_its_pipes_are_looked_at(loop_is_busy, monkeypatch):
    """What closes its stdin while it is connected leaves no error in the loop."""
    complaints: list = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    made = stdio._Child.connection_made

    def late(child, transport):
        pipe = transport.get_pipe_transport(0).get_extra_info("pipe")
        time.sleep(loop_is_busy)
        pipe.close()
        made(child, transport)

    monkeypatch.setattr(stdio._Child, "connection_made", late)
    async with Peer(python("")) as peer:
        await until(lambda: peer.lost)
    assert complaints == []


async def test_a_child_that_is_killed_during_a_call():
    async with Peer(python("import time; time.sleep(60)")) as peer:
        asking = [asyncio.ensure_future(peer.ask()) for _ in range(3)]
        await asyncio.sleep(0.05)
        os.kill(peer.transport.pid, signal.SIGKILL)
        for failure in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(failure, ConnectionFailed)
            assert "was ended by SIGKILL" in str(failure)
        assert peer.transport.returncode == -9


async def test_the_last_answer_of_a_child_that_exits_at_once_is_heard():
    code = ECHO + "    import os; os._exit(0)\n"
    for _ in range(5):
        async with Peer(python(code)) as peer:
            assert await peer.ask("x" * 200_000) == {"got": "x" * 200_000}
            await until(lambda: peer.lost)


async def test_a_child_that_closes_its_output_and_stays():
    code = "import os, time; os.close(1); time.sleep(60)"
    async with Peer(python(code)) as peer:
        with pytest.raises(ConnectionFailed, match="closed its end of the connection without exiting"):
            await peer.ask()
        pid = peer.transport.pid
    assert not is_running(pid)


async def test_terminal_codes_of_a_child_are_not_shown():
    code = "import sys; sys.stderr.write('\\x1b[31mred\\x07'); sys.exit(1)"
    async with Peer(python(code)) as peer:
        await until(lambda: peer.lost)
    assert "?[31mred?" in str(peer.lost[0])


@pytest.mark.security("D11")
async def test_a_line_beyond_the_limit_ends_the_connection():
    code = ECHO.replace('message.get("params")', '"x" * message["params"]')
    frame = len('{"jsonrpc": "2.0", "id": 1, "result": {"got": ""}}')
    limits = ClientLimits(message_bytes=100_000, close_seconds=0.3)
    async with Peer(python(code), limits) as peer:
        assert len((await peer.ask(100_000 - frame))["got"]) == 100_000 - frame
        with pytest.raises(ConnectionFailed, match=r"line of more than 100,000 bytes.*raise ClientLimits"):
            await peer.ask(100_000 - frame + 1)
        assert len(peer.lost) == 1


@pytest.mark.security("D11")
async def test_a_line_without_end_is_not_kept():
    assert ClientLimits().message_bytes == 64 * 1024 * 1024
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    async with Peer(python(code), ClientLimits(message_bytes=1_000_000, close_seconds=0.3)) as peer:
        with pytest.raises(ConnectionFailed, match="more than 1,000,000 bytes"):
            await peer.ask()
        assert len(peer.transport._child._splitter._rest) == 0


# --- it is ended


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, {term})
print('{{"jsonrpc":"2.0","method":"up"}}', flush=True)
while True: time.sleep(1)
"""


@pytest.mark.spec("STDIO-11")
async def test_closing_stdin_is_enough_for_most():
    async with Peer(python(ECHO + "sys.exit(7)"), ClientLimits(close_seconds=10)) as peer:
        await peer.ask()
    assert peer.transport.returncode == 7


@pytest.mark.spec("STDIO-11")
async def test_then_it_is_told_to_end():
    async with Peer(python(STUBBORN.format(term="lambda *_: sys.exit(5)"))) as peer:
        await until(lambda: peer.received)
    assert peer.transport.returncode == 5


@pytest.mark.spec("STDIO-11")
async def test_then_it_is_killed():
    peer = await Peer(python(STUBBORN.format(term="signal.SIG_IGN"))).open()
    await until(lambda: peer.received)
    began = time.monotonic()
    await peer.transport.close()
    assert peer.transport.returncode == -signal.SIGKILL
    assert time.monotonic() - began >= 0.6  # both waits were waited for


GRANDCHILD = """
import subprocess, sys, json
stays = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stays], stdout=subprocess.PIPE)
child.stdout.readline()
print(json.dumps({"jsonrpc": "2.0", "method": "up", "params": {"pid": child.pid}}), flush=True)
"""


@pytest.mark.parametrize(
    "end", ["sys.stdin.read()", "import time; time.sleep(60)", "sys.stdin.readline(); import os; os._exit(4)"]
)
async def test_nothing_that_the_child_started_is_left(end):
    peer = await Peer(python(GRANDCHILD + end)).open()
    await until(lambda: peer.received)
    grandchild = json.loads(bytes(peer.received[0].params))["pid"]
    assert is_running(grandchild)
    if "_exit" in end:
        with pytest.raises(ConnectionFailed, match="exit code 4"):
            await peer.ask()
    await peer.transport.close()
    await until(lambda: not is_running(grandchild))


async def test_closing_from_another_task_and_twice():
    peer = Peer(python(ECHO))
    await asyncio.create_task(peer.open())
    asking = asyncio.ensure_future(peer.ask())
    await asking
    waiting = asyncio.ensure_future(peer.transport.request(b'{"jsonrpc":"2.0","method":"no id: never answered"}', 99))
    await asyncio.sleep(0)
    await asyncio.gather(*(asyncio.create_task(peer.transport.close()) for _ in range(3)))
    with pytest.raises(ConnectionFailed, match="was closed"):
        await waiting
    assert peer.transport.returncode == 0
    await peer.transport.close()


async def test_one_who_gives_up_closing_does_not_stop_it():
    peer = await Peer(python(STUBBORN.format(term="signal.SIG_IGN"))).open()
    pid = peer.transport.pid
    await until(lambda: peer.received)
    closing = asyncio.create_task(peer.transport.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: not is_running(pid))


async def test_nothing_is_sent_to_a_child_that_is_being_started():
    peer = Peer(python(ECHO))
    opening = asyncio.create_task(peer.open())
    await asyncio.sleep(0)
    with pytest.raises(ConnectionFailed, match=r"is still starting; try again\.$"):
        await peer.transport.send(b"{}")
    await opening
    assert await peer.ask(1) == {"got": 1}
    await peer.transport.close()


async def test_closing_while_the_child_is_being_started(monkeypatch):
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: groups.append(group))
    monkeypatch.setattr(stdio, "_end_group", lambda group, _: asyncio.sleep(0, groups.append(group)))
    peer = Peer(python(ECHO))
    opening = asyncio.create_task(peer.open())
    await asyncio.sleep(0)
    await peer.transport.close()
    with pytest.raises(ConnectionFailed, match="was closed"):
        await asyncio.wait_for(opening, 30)
    assert peer.transport.returncode == 0
    assert groups
    assert 0 not in groups  # which would be our own


async def test_a_child_that_does_not_read_can_be_closed():
    async with Peer(python("import time; time.sleep(60)")) as peer:
        writing = [asyncio.ensure_future(peer.ask("x" * 100_000)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert not peer.transport._child.takes_more.is_set()
    for failure in await asyncio.gather(*writing, return_exceptions=True):
        assert isinstance(failure, ConnectionFailed)


# --- it is started anew


@pytest.mark.spec("STDIO-13")
async def test_it_is_started_anew():
    async with Peer(python("import sys; print('here', file=sys.stderr, flush=True)\n" + ECHO)) as peer:
        await peer.ask()
        first = peer.transport.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: peer.lost)
        await peer.transport.reopen()
        assert await peer.ask(2) == {"got": 2}
        assert peer.transport.pid != first
        assert peer.transport.returncode is None
        await peer.transport.reopen()  # also while it runs
        assert await peer.ask(3) == {"got": 3}
    assert len(peer.lost) == 1


async def test_over_and_over_leaves_nothing_behind():
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with Peer(python(ECHO)) as peer:
        await peer.ask()
    before = descriptors()
    for _ in range(10):
        async with Peer(python(ECHO)) as peer:
            await peer.ask()
    assert descriptors() <= before


async def test_on_the_fast_loop_as_well():
    uvloop = pytest.importorskip("uvloop")

    async def use() -> None:
        async with Peer(python(ECHO)) as peer:
            assert await peer.ask("x" * 300_000) == {"got": "x" * 300_000}
        assert peer.transport.returncode == 0
        async with Peer(python("import sys; sys.stdin.readline(); sys.exit('no key')")) as peer:
            with pytest.raises(ConnectionFailed, match=r"exit code 1.*\n.*no key"):
                await peer.ask()
        with pytest.raises(ConnectionFailed, match="cannot be started"):
            await Peer(Command(("no-such-program-here",))).open()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use())

    await asyncio.to_thread(run)


async def test_what_nobody_waits_for_any_more_does_not_pile_up_before_a_child_that_does_not_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "read on"
    code = f"""
import os, time
while not os.path.exists({str(file)!r}):
    time.sleep(0.01)
{ECHO}"""
    async with Peer(python(code)) as peer:
        for _ in range(10):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await peer.ask("x" * 500_000)
        pipe = peer.transport._child._process.get_pipe_transport(0)
        assert pipe.get_write_buffer_size() < 600_000  # of the first
        file.touch()
        assert await peer.ask("last") == {"got": "last"}
