"""Load over stdio: a raw driver on the pipes of a server process, one by one or with a window of calls in flight."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from processes import Placement, here, pinned
from wire import call, is_right

__all__ = ["first_answer_seconds", "one_by_one", "pipelined"]

WINDOW = 100
PREFIX, SUFFIX = call(987654321).split(b"987654321")
WARM_UP = 50


class Pipes:
    """A server process, and whole lines to and from it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin.fileno()
        self._output = process.stdout.fileno()
        self._rest = b""

    def send(self, first: int, count: int) -> None:
        """Writes `count` calls at once, with the ids from `first` on."""
        lines = b"".join([b"%b%d%b\n" % (PREFIX, id, SUFFIX) for id in range(first, first + count)])
        while lines:
            lines = lines[os.write(self._input, lines) :]

    def receive(self) -> list[bytes]:
        """The lines that are there, at least one."""
        while True:
            chunk = os.read(self._output, 1 << 18)
            if not chunk:
                raise RuntimeError("The server closed its output in the middle of the measurement.")
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if lines:
                return lines


@contextmanager
def server(command: list[str], placement: Placement = Placement.TWO_CORES) -> Iterator[Pipes]:
    """The server as a child, asked to end by closing its input; this process is placed beside it meanwhile."""
    free = placement is Placement.FREE
    process = subprocess.Popen(
        command if free else pinned(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    try:
        with nullcontext() if free else here(load=placement is Placement.TWO_CORES):
            yield Pipes(process)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def verify(lines: list[bytes], sent: int) -> None:
    """Every call was answered once, and rightly."""
    answers = [json.loads(line) for line in lines]
    if {answer["id"] for answer in answers} != set(range(sent)) or len(answers) != sent:
        raise RuntimeError(f"{sent} calls were sent and {len(answers)} answers came; each must be answered once.")
    if not all(map(is_right, answers)):
        raise RuntimeError(f"A call was answered wrongly: {next(a for a in answers if not is_right(a))}.")


def one_by_one(command: list[str], seconds: float, placement: Placement) -> float:
    """Calls per second when each waits for the one before.

    One of the two always waits, so the time to wake the other up is in every call, twice: little on one core; on two,
    in a virtual machine at least, more than everything else, for a core that fell asleep has to be woken up as well.
    """
    with server(command, placement) as pipes:
        lines: list[bytes] = []
        while len(lines) < WARM_UP:
            pipes.send(len(lines), 1)
            lines += pipes.receive()
        started = time.perf_counter()
        while (now := time.perf_counter()) - started < seconds:
            pipes.send(len(lines), 1)
            lines += pipes.receive()
        verify(lines, len(lines))
        return (len(lines) - WARM_UP) / (now - started)


def pipelined(command: list[str], seconds: float) -> float:
    """Calls per second with a window of them in flight."""
    with server(command) as pipes:
        pipes.send(0, WINDOW)
        sent, lines = WINDOW, pipes.receive()
        warm, started = len(lines), time.perf_counter()
        while time.perf_counter() - started < seconds:
            gap = WINDOW - (sent - len(lines))
            pipes.send(sent, gap)
            sent += gap
            lines += pipes.receive()
        while len(lines) < sent:
            lines += pipes.receive()
        ended = time.perf_counter()
        verify(lines, sent)
        return (sent - warm) / (ended - started)


def first_answer_seconds(command: list[str]) -> float:
    """From starting the process to the first right answer."""
    started = time.perf_counter()
    with server(command) as pipes:
        pipes.send(0, 1)
        lines = pipes.receive()
        taken = time.perf_counter() - started
        verify(lines, 1)
        return taken
