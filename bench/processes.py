"""Starting, pinning, weighing and timing the processes under measurement."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

__all__ = [
    "Placement",
    "free_port",
    "here",
    "http_server",
    "pinned",
    "processor_seconds",
    "resident_mib",
    "spread_workers",
    "wall_seconds",
]

SERVER_CORE, LOAD_CORE = 0, 1
CAN_PIN = shutil.which("taskset") is not None and (os.cpu_count() or 1) > 1


class Placement(Enum):
    """Where a server and the client that waits for it run."""

    FREE = "not pinned"
    ONE_CORE = "both on one core"
    TWO_CORES = "on two cores"


def pinned(command: list[str], *, load: bool = False) -> list[str]:
    """The command on the servers' core, or on the load generator's, where there are two cores to part."""
    core = LOAD_CORE if load else SERVER_CORE
    return ["taskset", "-c", str(core), *command] if CAN_PIN else command


@contextmanager
def here(*, load: bool) -> Iterator[None]:
    """This process on the load generator's core, or on the servers'."""
    if not CAN_PIN:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CORE if load else SERVER_CORE})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def http_server(
    command: list[str], port: int, environment: Mapping[str, str] | None = None, *, load: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens on `port` when the block starts and is gone when it ends; its logs go nowhere.

    It is on the servers' core, or on the load generator's.
    """
    process = subprocess.Popen(
        pinned(command, load=load),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | dict(environment or {}),
    )
    try:
        for _ in range(300):
            if process.poll() is not None:
                raise RuntimeError(f"{command} ended at once with exit code {process.returncode}.")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def processor_seconds(pid: int) -> float:
    """The processor time that a process and its children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(child) for child in children(pid))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def spread_workers(pid: int, count: int) -> None:
    """Waits until a server has so many workers, and all of them are ready; puts each on a core of its own."""
    for _ in range(300):
        workers = [child for child in children(pid) if b"resource_tracker" not in command_line(child)]
        before = [processor_seconds(worker) for worker in workers]
        time.sleep(0.3)
        is_quiet = before == [processor_seconds(worker) for worker in workers]  # what is to be imported, is
        if len(workers) == count and is_quiet and all(before):
            break
    else:
        raise RuntimeError(f"The server has the workers {workers}, and not {count}.")
    for core, worker in enumerate(workers):
        if CAN_PIN:
            os.sched_setaffinity(worker, {core})


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def resident_mib(pid: int) -> float:
    """The resident memory of a process and its children, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
    return own + sum(resident_mib(child) for child in children(pid))


def wall_seconds(command: list[str], *, load: bool = False) -> float:
    """How long a program takes from start to exit."""
    started = time.perf_counter()
    subprocess.run(pinned(command, load=load), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
