"""stdio through real processes and real pipes: what the client at the other end sees."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from weft import Server
from weft.jsonrpc import LineSplitter
from weft.limits import DEFAULT_LIMITS, Limits
from weft.server.stdio import stdio
from weft.server.stdio import stdio as lines
from weft.server.stdio.stdio import AT_ONCE, CHUNK, QUEUED_BYTES, LineReader, LineWriter, serve_stdio

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
SERVER = """
import asyncio, os, subprocess, sys, time
print("printed while loading")
from weft import Context, Limits, Server

server = Server("piped", limits=Limits(line_bytes=5000, in_flight_per_connection=5, drain_seconds=1.0))

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

@server.tool
def shout(text: str) -> str:
    return text.upper()

@server.tool
async def wait(ctx: Context) -> str:
    sys.stderr.write("waiting\\n"); sys.stderr.flush()
    try:
        await asyncio.sleep(60)
    finally:
        sys.stderr.write("unwound\\n"); sys.stderr.flush()
        await ctx.report_progress(9)
    return "never"

@server.tool
def hang() -> str:
    sys.stderr.write("waiting\\n"); sys.stderr.flush()
    time.sleep(60)
    return "never"

@server.tool
async def noise() -> str:
    print("from print")
    sys.__stdout__.write("from sys.__stdout__"); sys.__stdout__.flush()
    os.write(1, b"from the descriptor")
    subprocess.run([sys.executable, "-c", "print('from a child', repr(input()) if False else '')"])
    return repr(sys.stdin.read())

@server.tool
async def leave(how: str) -> str:
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "base": BaseException}.get(how, asyncio.CancelledError)

@server.tool
async def stubborn() -> str:
    sys.stderr.write("waiting\\n"); sys.stderr.flush()
    for _ in range(3):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            sys.stderr.write("refused to stop\\n"); sys.stderr.flush()
    return "never"

@server.tool
async def stray() -> str:
    async def bad():
        raise SystemExit(5)
    asyncio.get_running_loop().create_task(bad())
    await asyncio.sleep(0.05)
    return "survived"

@server.tool
async def sore_loser() -> str:
    async def bad():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise SystemExit(5)
    tasks.append(asyncio.get_running_loop().create_task(bad()))
    await asyncio.sleep(0.05)
    return "survived"

tasks = []

@server.tool
async def long(size: int) -> str:
    return "x" * size

@server.tool
async def late(ctx: Context) -> str:
    async def after():
        await asyncio.sleep(0.05)
        await ctx.report_progress(2)
    await ctx.report_progress(1)
    ctx.server.kept = asyncio.create_task(after())
    return "done"

if __name__ == "__main__":
    server.run()
"""


def request(request_id: Any, method: str = "tools/call", meta: dict[str, Any] | None = None, **params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta or META}}
    return json.dumps(message).encode() + b"\n"


def tool(request_id: Any, name: str, **arguments: Any) -> bytes:
    return request(request_id, name=name, arguments=arguments)


def cancelled(params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode() + b"\n"


class Child:
    """A server process with its pipes."""

    def __init__(self, file: Path, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=ENVIRONMENT,
            **options,
        )
        self._rest = {1: b"", 2: b""}

    def send(self, *lines: bytes) -> None:
        data = b"".join(lines)
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def line(self, stream: int = 1, timeout: float = 10.0) -> bytes:
        """The next line of stdout (1) or stderr (2)."""
        pipe = (self.process.stdout if stream == 1 else self.process.stderr).fileno()
        while b"\n" not in self._rest[stream]:
            assert select.select([pipe], [], [], timeout)[0], "nothing came"
            chunk = os.read(pipe, 1 << 20)
            assert chunk, f"the pipe ended: {self._rest}"
            self._rest[stream] += chunk
        line, _, self._rest[stream] = self._rest[stream].partition(b"\n")
        return line

    def answer(self) -> dict[str, Any]:
        return json.loads(self.line())

    def answers(self, count: int) -> dict[Any, dict[str, Any]]:
        return {message.get("id"): message for message in (self.answer() for _ in range(count))}

    def say(self, text: str) -> None:
        """Wait until the server has written this on stderr."""
        while text.encode() not in self.line(2):
            pass

    def end(self, timeout: float = 5.0) -> tuple[list[dict[str, Any]], str]:
        """Close stdin; what was still on stdout, and on stderr."""
        self.process.stdin.close()
        self.process.stdin = None
        out, err = self.process.communicate(timeout=timeout)
        lines = (self._rest[1] + out).splitlines()
        return [json.loads(line) for line in lines], (self._rest[2] + err).decode()


@pytest.fixture
def server_file(tmp_path: Path) -> Path:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return file


@pytest.fixture
def child(server_file: Path):
    child = Child(server_file)
    yield child
    child.process.kill()
    child.process.communicate()


def text_of(message: dict[str, Any]) -> str:
    return message["result"]["content"][0]["text"]


@pytest.mark.spec("JRPC-06", "TRN-01", "STDIO-01")
def test_answers_carry_the_id_unchanged_and_are_one_line_each(child: Child) -> None:
    child.send(tool(1, "add", a=1, b=2), tool("1", "shout", text="zürich\nnorth"))
    answers = child.answers(2)
    assert text_of(answers[1]) == "3"
    assert text_of(answers["1"]) == "ZÜRICH\nNORTH"


def test_lines_may_end_in_crlf_and_may_be_blank(child: Child) -> None:
    child.send(b"\r\n\n  \n", tool(1, "add", a=1, b=2).replace(b"\n", b"\r\n"))
    assert text_of(child.answer()) == "3"
    assert child.end()[0] == []


def test_requests_are_served_at_the_same_time(child: Child) -> None:
    child.send(tool(1, "wait"), tool(2, "hang"), tool(3, "add", a=1, b=1))
    assert child.answer()["id"] == 3


@pytest.mark.spec("STDIO-02")
def test_only_messages_get_onto_stdout(child: Child) -> None:
    child.send(tool(1, "noise"), tool(2, "add", a=1, b=1))
    answers = child.answers(2)
    assert text_of(answers[1]) == "''"  # stdin is not a handler's either
    left, printed = child.end()
    assert left == []
    for source in ("while loading", "from print", "from sys.__stdout__", "from the descriptor", "from a child"):
        assert source in printed


@pytest.mark.spec("STDIO-06", "JRPC-24")
def test_a_response_from_the_client_is_ignored(child: Child) -> None:
    child.send(
        b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}\n'
    )
    child.send(tool(2, "add", a=1, b=1))
    answer = child.answer()
    assert (answer["id"], "method" in answer) == (2, False)
    assert child.end()[0] == []


@pytest.mark.spec("JRPC-23")
def test_a_notification_is_never_answered(child: Child) -> None:
    child.send(b'{"jsonrpc":"2.0","method":"notifications/unheard/of"}\n', b'{"jsonrpc":"2.0","method":"tools/list"}\n')
    child.send(tool(2, "add", a=1, b=1))
    assert child.answer()["id"] == 2
    assert child.end()[0] == []


@pytest.mark.spec("JRPC-11", "JRPC-12")
@pytest.mark.security("D11", "R1")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json\n", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"to\n', -32700),
        (b"\xff\xfe{}\n", -32700),
        (b"[" * 200 + b"\n", -32700),
        (b"\x00\n", -32700),
        (b"[]\n", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}\n', -32600),
    ],
)
def test_an_unreadable_line_is_answered_without_an_id_and_the_next_is_served(
    child: Child, line: bytes, code: int
) -> None:
    child.send(line, tool(7, "add", a=1, b=1))
    refusal = child.answer()
    assert refusal["error"]["code"] == code
    assert "id" not in refusal
    assert child.answer()["id"] == 7


@pytest.mark.security("D11", "R12")
def test_a_line_one_byte_too_long_is_skipped_and_refused(child: Child) -> None:
    whole = tool(1, "add", a=1, b=1).rstrip(b"\n")
    child.send(whole.ljust(5000) + b"\n")
    assert text_of(child.answer()) == "2"
    child.send(whole.ljust(5001) + b"\n", tool(2, "add", a=1, b=1))
    refusal = child.answer()
    assert refusal["error"] == {"code": -32700, "message": "Parse error: a line has at most 5000 bytes."}
    assert "id" not in refusal
    assert child.answer()["id"] == 2


@pytest.mark.security("D11")
def test_a_line_without_end_takes_no_memory(child: Child) -> None:
    child.send(tool(1, "add", a=1, b=1))
    child.answer()
    before = resident(child.process.pid)
    for _ in range(100):
        child.send(b"x" * 1_000_000)
    child.send(b"\n", tool(2, "add", a=1, b=1))
    assert child.answer()["error"]["code"] == -32700
    assert child.answer()["id"] == 2
    assert resident(child.process.pid) - before < 16 * 1024


def resident(pid: int) -> int:
    """KiB of memory."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))


@pytest.mark.security("D9", "D11")
def test_the_default_limits() -> None:
    assert Limits().line_bytes == 4 * 1024 * 1024
    assert Limits().in_flight_per_connection == 100


@pytest.mark.spec("STDIO-09", "STDIO-10", "CAN-06")
@pytest.mark.parametrize("request_id", [1, "1"])
def test_a_cancelled_request_is_stopped_and_says_nothing_more(child: Child, request_id: Any) -> None:
    child.send(request(request_id, meta={**META, "progressToken": 5}, name="wait", arguments={}))
    child.say("waiting")
    child.send(cancelled({"requestId": request_id, "reason": "changed my mind"}))
    child.say("unwound")
    child.send(tool(request_id, "add", a=1, b=1))  # the id is free again
    assert text_of(child.answer()) == "2"
    assert child.end()[0] == []


@pytest.mark.spec("STDIO-10")
def test_a_plain_function_that_cannot_be_stopped_is_not_answered_either(child: Child) -> None:
    child.send(tool(1, "hang"))
    child.say("waiting")
    child.send(cancelled({"requestId": 1}), tool(2, "add", a=1, b=1))
    assert child.answer()["id"] == 2
    assert child.end()[0] == []


@pytest.mark.spec("CAN-07", "CAN-10")
@pytest.mark.security("R6")
@pytest.mark.parametrize(
    "params",
    [
        {"requestId": "1"},
        {"requestId": 2},
        {"requestId": None},
        {"requestId": [1]},
        {},
        [],
        None,
        "1",
        {"requestId": True},
    ],
)
def test_a_cancellation_that_names_nothing_is_ignored(child: Child, params: Any) -> None:
    child.send(tool(1, "wait"))
    child.say("waiting")
    child.send(cancelled(params), b'{"jsonrpc":"2.0","method":"notifications/cancelled"}\n', tool(3, "add", a=1, b=1))
    assert child.answer()["id"] == 3
    child.send(tool(1, "add", a=1, b=1))  # still in flight, therefore not cancelled
    assert child.answer()["error"]["code"] == -32600


@pytest.mark.spec("CAN-09")
def test_a_cancellation_that_crosses_the_answer_does_no_harm(child: Child) -> None:
    child.send(*(tool(number, "add", a=1, b=1) + cancelled({"requestId": number}) for number in range(200)))
    child.send(tool("last", "add", a=1, b=1))
    seen = []
    while not seen or seen[-1] != "last":
        seen.append(child.answer()["id"])
    assert len(seen) == len(set(seen))


@pytest.mark.spec("PROG-06")
def test_nothing_is_sent_for_a_request_after_its_answer(child: Child) -> None:
    child.send(request(1, meta={**META, "progressToken": "t"}, name="late", arguments={}))
    assert child.answer()["params"]["progress"] == 1
    assert child.answer()["id"] == 1
    child.send(tool(2, "stray"))  # takes longer than the late progress
    assert child.answer()["id"] == 2


@pytest.mark.security("D9", "R12")
def test_one_request_more_than_allowed_is_refused_and_then_there_is_room_again(child: Child) -> None:
    child.send(*(tool(number, "wait") for number in range(5)))
    for _ in range(5):
        child.say("waiting")
    child.send(tool(5, "add", a=1, b=1))
    refusal = child.answer()
    assert refusal["id"] == 5
    assert refusal["error"]["code"] == -32603
    assert refusal["error"]["message"] == (
        "The server is busy with 5 requests. Send this one again when one of them is answered."
    )
    child.send(cancelled({"requestId": 0}))
    child.say("unwound")
    child.send(tool(5, "add", a=1, b=1))
    assert text_of(child.answer()) == "2"


@pytest.mark.security("D9")
def test_cancelling_makes_room_also_where_a_thread_cannot_be_stopped(child: Child) -> None:
    for number in range(5):
        child.send(tool(number, "hang"))
        child.say("waiting")
    child.send(cancelled({"requestId": 0}), tool(5, "add", a=1, b=1))
    assert text_of(child.answer()) == "2"


@pytest.mark.security("D9")
def test_cancelling_is_no_way_past_the_limit(child: Child) -> None:
    child.send(*(tool(number, "stubborn") for number in range(5)))
    for _ in range(5):
        child.say("waiting")
    child.send(*(cancelled({"requestId": number}) for number in range(5)))
    for _ in range(5):
        child.say("refused to stop")
    child.send(tool(5, "add", a=1, b=1))
    assert child.answer()["error"]["code"] == -32603


def test_quick_requests_are_not_refused_for_coming_all_at_once(child: Child) -> None:
    child.send(*(tool(number, "add", a=number, b=0) for number in range(500)))
    answers = child.answers(500)
    assert [text_of(answers[number]) for number in range(500)] == [str(number) for number in range(500)]


@pytest.mark.spec("JRPC-05")
@pytest.mark.security("D9")
def test_an_id_that_is_in_flight_is_refused(child: Child) -> None:
    child.send(tool(1, "wait"))
    child.say("waiting")
    child.send(tool(1, "add", a=1, b=1), tool("1", "add", a=1, b=1))
    answers = child.answers(2)
    assert answers[1]["error"]["code"] == -32600
    assert answers[1]["error"]["message"].endswith("a request with this id is still being served.")
    assert text_of(answers["1"]) == "2"


@pytest.mark.security("R1")
@pytest.mark.parametrize("how", ["exit", "interrupt", "base", "cancel"])
def test_nothing_a_handler_raises_ends_the_process(child: Child, how: str) -> None:
    child.send(tool(1, "leave", how=how))
    assert child.answer()["id"] == 1
    child.send(tool(2, "add", a=1, b=1))
    assert text_of(child.answer()) == "2"


@pytest.mark.security("R1")
def test_nothing_a_background_task_raises_ends_the_process(child: Child) -> None:
    child.send(tool(1, "stray"))
    assert text_of(child.answer()) == "survived"
    assert "a background task raised SystemExit; the server goes on" in child.end()[1]


@pytest.mark.security("R1")
def test_nothing_that_a_task_raises_when_it_is_cancelled_at_the_end_is_the_exit_code(child: Child) -> None:
    child.send(tool(1, "sore_loser"))
    assert text_of(child.answer()) == "survived"
    child.end()
    assert child.process.returncode == 0


@pytest.mark.spec("STDIO-12")
def test_requests_that_are_nearly_done_are_answered_when_the_input_ends(child: Child) -> None:
    child.send(tool(1, "shout", text="a"), tool(2, "add", a=1, b=1).rstrip(b"\n"))  # the last line without its newline
    assert sorted(message["id"] for message in child.end()[0]) == [1, 2]
    assert child.process.returncode == 0


@pytest.mark.spec("STDIO-12")
@pytest.mark.parametrize("name", ["wait", "hang"])
def test_requests_that_hang_do_not_keep_the_process(child: Child, name: str) -> None:
    child.send(tool(1, name))
    child.say("waiting")
    left, printed = child.end()
    assert left == []
    assert child.process.returncode == 0
    assert "Traceback" not in printed


def test_input_from_a_plain_file_is_read_too(server_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(b"".join(tool(number, "add", a=1, b=1) for number in range(300)))
    with source.open("rb") as stdin:
        done = subprocess.run(
            [sys.executable, str(server_file)],
            stdin=stdin,
            capture_output=True,
            timeout=30,
            check=True,
            env=ENVIRONMENT,
        )
    assert len(done.stdout.splitlines()) == 300


@pytest.mark.security("D15")
def test_a_closed_stdout_ends_the_process(child: Child) -> None:
    child.send(tool(1, "wait"))
    child.say("waiting")
    child.process.stdout.close()
    child.process.stdout = None
    child.send(tool(2, "add", a=1, b=1))
    assert child.process.wait(30) == 0
    assert b"Traceback" not in child.process.stderr.read()


@pytest.mark.security("D15")
@pytest.mark.parametrize("is_open", [True, False])
def test_a_closed_stdout_is_noticed_though_nothing_is_written(child: Child, is_open: bool) -> None:
    child.send(tool(1, "add", a=1, b=1), *([tool(2, "wait")] if is_open else []))
    assert child.answer()["id"] == 1
    if is_open:
        child.say("waiting")
    child.process.stdout.close()
    child.process.stdout = None
    assert child.process.wait(10) == 0  # stdin is open, and nothing comes on it
    errors = child.process.stderr.read()
    assert b"Traceback" not in errors
    assert not is_open or b"unwound" in errors


@pytest.mark.security("D15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_cleanly(child: Child, number: int) -> None:
    child.send(tool(1, "wait"))
    child.say("waiting")
    child.process.send_signal(number)
    assert child.process.wait(30) == 0
    assert b"Traceback" not in child.process.stderr.read()


def test_a_client_that_does_not_read_blocks_nobody_and_loses_nothing(server_file: Path) -> None:
    server_file.write_text(SERVER.replace("in_flight_per_connection=5", "in_flight_per_connection=100"))
    child = Child(server_file)
    size = 400_000  # times 60 is thrice the queue
    sent = 0
    deadline = time.monotonic() + 20
    os.set_blocking(child.process.stdin.fileno(), False)
    while sent < 60 and time.monotonic() < deadline:  # the server stops reading at some time; then we read
        line = tool(sent, "long", size=size)
        try:
            assert os.write(child.process.stdin.fileno(), line) == len(line)
            sent += 1
        except BlockingIOError:
            break
    os.set_blocking(child.process.stdin.fileno(), True)
    answers = child.answers(sent)
    assert {len(text_of(answers[number])) for number in range(sent)} == {size}
    assert child.end()[0] == []


def test_without_pipes_it_says_what_to_do(server_file: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} {server_file} <&- >&-"], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert (
        done.stderr.decode().splitlines()[-1].startswith("stdin or stdout is closed, so there is no pipe to serve on;")
    )


# The parts, without a process.


def test_a_splitter_holds_no_more_than_its_limit() -> None:
    splitter = LineSplitter(limit=3)
    assert splitter.feed(b"ab") == []
    assert splitter.feed(b"c\nabcd\n\nx") == [b"abc", None, b""]
    assert splitter.feed(b"yz") == []
    assert splitter.feed(b"!") == []
    assert splitter.finish() == [None]
    assert LineSplitter(limit=3).finish() == []


def test_a_splitter_takes_a_chunk_that_is_one_line_or_looks_like_it() -> None:
    splitter = LineSplitter(limit=3)
    assert splitter.feed(b"abc\n") == [b"abc"]
    assert splitter.feed(b"\n") == [b""]
    assert splitter.feed(b"abcd\n") == [None]
    assert splitter.feed(b"a") == []
    assert splitter.feed(b"b\n") == [b"ab"]  # the end of one that has begun
    assert splitter.feed(b"abcd") == []
    assert splitter.feed(b"e\n") == [None]  # the end of one that is too long
    assert splitter.feed(b"a\nb\n") == [b"a", b"b"]
    assert splitter.finish() == []


async def test_a_paused_reader_reads_nothing_until_resumed() -> None:
    source, sink = os.pipe()
    chunks: list[Any] = []
    reader = LineReader(source, 100, lambda lines, ended: chunks.append((lines, ended)))
    reader.start()
    os.write(sink, b"one\n")
    await asyncio.sleep(0.05)
    os.write(sink, b"two\n")
    await asyncio.sleep(0.05)
    assert chunks == [([b"one"], False)]
    reader.resume()
    await asyncio.sleep(0.05)
    assert chunks[1:] == [([b"two"], False)]
    reader.resume()
    os.close(sink)
    await asyncio.sleep(0.05)
    assert chunks[2:] == [([], True)]
    reader.stop()


async def lines_by_turn(*, linger: bool) -> list[int]:
    """How many lines a reader delivers in each turn of the loop, to somebody who sends the next when it has one."""
    source, sink = os.pipe()
    in_this_turn = 0
    turns: list[int] = []
    enough = asyncio.Event()

    def next_turn() -> None:
        nonlocal in_this_turn
        turns.append(in_this_turn)
        in_this_turn = 0
        if len(turns) == 20:
            enough.set()

    def deliver(lines: list[Any], ended: bool) -> None:
        nonlocal in_this_turn
        if not in_this_turn:
            asyncio.get_running_loop().call_soon(next_turn)
        in_this_turn += len(lines)
        os.write(sink, b"next\n")
        reader.resume(linger=linger)

    reader = LineReader(source, 100, deliver, linger_seconds=DEFAULT_LIMITS.stdio_linger_seconds)
    reader.start()
    os.write(sink, b"first\n")
    await asyncio.wait_for(enough.wait(), 30)
    reader.stop()
    os.close(sink)
    return turns


async def test_a_reader_lingers_for_the_next_line_but_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert max(await lines_by_turn(linger=True)) > 1
    assert set(await lines_by_turn(linger=False)) == {1}
    monkeypatch.setattr(lines, "IN_A_ROW", 0)  # the time is up at once
    assert set(await lines_by_turn(linger=True)) == {1}


async def test_a_process_lingers_only_for_requests_that_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lingered: list[bool] = []
    resume = LineReader.resume

    def watched(reader: LineReader, *, linger: bool = False) -> None:
        lingered.append(linger)
        resume(reader, linger=linger)

    monkeypatch.setattr(LineReader, "resume", watched)
    go = asyncio.Event()

    async def wait() -> str:
        await go.wait()
        return "done"

    def listed(number: int) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {"_meta": META}}).encode()

    called = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "wait", "_meta": META}}
    (source, theirs), (ours, sink) = os.pipe(), os.pipe()
    for mine, limits in ((True, Limits()), (False, Limits()), (True, Limits(stdio_linger_seconds=0))):
        server = Server("lingering", limits=limits)
        server.add_tool(wait)
        monkeypatch.setattr(stdio, "_process_pipes", lambda: contextlib.nullcontext((source, sink)))
        serving = asyncio.create_task(serve_stdio(server.engine) if mine else serve_stdio(server.engine, source, sink))
        for chunk in (
            listed(0) + b"\n",
            listed(1) + b"\n",
            listed(2) + b"\n" + listed(3) + b"\n",
            json.dumps(called).encode() + b"\n",
        ):
            os.write(theirs, chunk)
            await asyncio.sleep(0.05)
        go.set()
        await asyncio.sleep(0.05)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        go.clear()
    # Two that come alone, two at once, one that waits.
    # Never for those who are not the only ones, nor where it is turned off.
    assert lingered == [True, True, False, False] + 8 * [False]
    for fd in (source, theirs, ours, sink):
        os.close(fd)


async def test_a_reader_that_lingers_in_vain_goes_back_to_the_loop() -> None:
    source, sink = os.pipe()
    chunks: list[Any] = []

    def deliver(lines: list[Any], ended: bool) -> None:
        chunks.append((lines, ended))
        reader.resume(linger=True)

    reader = LineReader(source, 100, deliver)
    reader.start()
    for line in (b"one", b"two"):
        os.write(sink, line + b"\n")
        await asyncio.sleep(0.05)
    os.close(sink)
    await asyncio.sleep(0.05)
    assert chunks == [([b"one"], False), ([b"two"], False), ([], True)]  # and nothing was read after the end


async def test_a_writer_is_congested_until_the_other_end_has_caught_up() -> None:
    source, sink = os.pipe()
    writer = LineWriter(sink, lambda: None)
    writer.send(b"x" * (QUEUED_BYTES + CHUNK))  # the pipe takes at most a chunk of it
    writer.send(b"y" * AT_ONCE)
    writer.flush()
    assert writer.congested
    got = 0
    while got < QUEUED_BYTES + CHUNK + AT_ONCE + 2:  # and not once more: nothing else will come
        got += len(await asyncio.to_thread(os.read, source, 1 << 20))
    await asyncio.wait_for(writer.drained(), 30)
    await writer.close(5)
    os.close(source)
    os.close(sink)
    assert got == QUEUED_BYTES + CHUNK + AT_ONCE + 2


async def test_what_is_sent_while_more_waits_comes_whole_and_after_it() -> None:
    source, sink = os.pipe()
    writer = LineWriter(sink, lambda: None)
    lines = [b"a" * (3 * CHUNK), b"second", b"third"]
    for line in lines:
        writer.send_now(line)  # the first fills the pipe, so the others have to wait
    got = b""
    while got.count(b"\n") < len(lines):
        got += await asyncio.to_thread(os.read, source, CHUNK)
    assert got.splitlines() == lines
    await writer.close(5)
    os.close(source)
    os.close(sink)


async def test_nothing_overtakes_what_waits_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.server.stdio.stdio.threading.Thread.start", lambda self: None)  # it never writes
    source, sink = os.pipe()
    os.set_blocking(source, False)
    writer = LineWriter(sink, lambda: None)
    writer.send_now(b"a" * (3 * CHUNK))
    while True:  # now the pipe has room, and the rest of the first line still waits
        try:
            assert set(os.read(source, CHUNK)) == {ord("a")}
        except BlockingIOError:
            break
    writer.send_now(b"second")
    with pytest.raises(BlockingIOError):
        os.read(source, CHUNK)
    writer.release()
    os.close(source)
    os.close(sink)


async def test_a_held_writer_gathers_until_it_is_flushed() -> None:
    source, sink = os.pipe()
    os.set_blocking(source, False)
    writer = LineWriter(sink, lambda: None)
    writer.hold()
    writer.send(b"one")
    writer.send_now(b"two")
    await asyncio.sleep(0.02)
    with pytest.raises(BlockingIOError):
        os.read(source, 100)
    writer.flush()
    assert os.read(source, 100) == b"one\ntwo\n"
    writer.send_now(b"four")  # no longer held
    assert os.read(source, 100) == b"four\n"
    await writer.close(5)
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize("end", ["close", "release"])
async def test_a_writer_leaves_the_descriptor_as_it_was_and_nothing_else_open(end: str) -> None:
    source, sink = os.pipe()
    writer = LineWriter(sink, lambda: None)
    writer.send_now(b"x" * (2 * CHUNK))  # more than the pipe takes at once
    assert os.get_blocking(sink)
    got = b""
    while len(got) < 2 * CHUNK + 1:
        got += await asyncio.to_thread(os.read, source, CHUNK)
    if end == "close":
        await writer.close(5)
    else:
        writer.release()
    os.close(sink)
    assert await asyncio.wait_for(asyncio.to_thread(os.read, source, 1), 30) == b""  # nobody has it open any more
    os.close(source)


async def test_a_writer_where_a_pipe_cannot_be_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError

    source, sink = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr("weft.server.stdio.stdio.os.open", refuse)
        writer = LineWriter(sink, lambda: None)
    writer.send_now(b"short")
    assert os.read(source, 100) == b"short\n"
    writer.send_now(b"x" * (2 * CHUNK))
    got = b""
    while len(got) < 2 * CHUNK + 1:
        got += await asyncio.to_thread(os.read, source, CHUNK)
    await writer.close(5)
    os.close(source)
    os.close(sink)


async def test_a_writer_says_when_nobody_reads() -> None:
    broken = asyncio.Event()
    for line in (b"short", b"x" * 100_000):  # written at once, and by the thread
        source, sink = os.pipe()
        os.close(source)
        writer = LineWriter(sink, broken.set)
        writer.send(line)
        await asyncio.wait_for(broken.wait(), 30)
        broken.clear()
        await writer.close(5)
        os.close(sink)


@pytest.mark.parametrize("is_socket", [True, False])
async def test_a_writer_says_at_once_when_the_reader_goes(is_socket: bool) -> None:
    if is_socket:  # as Node gives its children
        ours, theirs = (one.detach() for one in socket.socketpair())
    else:
        theirs, ours = os.pipe()
    broken = asyncio.Event()
    writer = LineWriter(ours, broken.set)
    writer.send_now(b"hello")
    await asyncio.sleep(0.1)
    assert not broken.is_set()
    os.close(theirs)
    await asyncio.wait_for(broken.wait(), 5)
    writer.release()
    os.close(ours)


async def test_a_client_that_writes_into_our_output_is_not_gone() -> None:
    ours, theirs = (one.detach() for one in socket.socketpair())
    broken = asyncio.Event()
    writer = LineWriter(ours, broken.set)
    os.write(theirs, b"what?")
    await asyncio.sleep(0.1)
    assert not broken.is_set()
    writer.send_now(b"hello")
    assert os.read(theirs, 100) == b"hello\n"
    writer.release()
    os.close(theirs)
    os.close(ours)


async def test_two_writers_to_one_pipe_both_notice_that_the_reader_goes() -> None:
    theirs, ours = os.pipe()
    first, second = asyncio.Event(), asyncio.Event()
    writers = [LineWriter(ours, first.set), LineWriter(ours, second.set)]
    writers[0].release()
    os.close(theirs)
    await asyncio.wait_for(second.wait(), 5)
    assert not first.is_set()
    writers[1].release()
    os.close(ours)


async def test_other_pipes_than_the_process_own_can_be_served() -> None:
    from weft import Server
    from weft.server.stdio.stdio import serve_stdio

    server = Server("given")
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    serving = asyncio.create_task(serve_stdio(server.engine, their_in, their_out))
    os.write(our_out, request(1, "server/discover"))
    answer = json.loads(await asyncio.to_thread(os.read, our_in, 65536))
    assert answer["id"] == 1
    os.close(our_out)
    await asyncio.wait_for(serving, 30)
    for fd in (their_in, their_out, our_in):
        os.close(fd)
