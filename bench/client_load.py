"""Clients under load, each in a process of its own: they call a server that answers at once, or one beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import free_port, http_server, pinned, wall_seconds
from subjects import HERE, WEFT, Subject

__all__ = ["AT_ONCE", "calls_here", "calls_over_http", "first_call_seconds", "import_seconds", "instant_server"]

AT_ONCE = 16
IN_PROCESS = "here"


def program(subject: Subject, *arguments: str) -> list[str]:
    """The client of an SDK, on the load generator's core: what it costs is measured, not what the server does."""
    script = HERE / "clients" / subject.script.replace("_server", "_client")
    return [subject.python, str(script), *arguments]


def per_second(command: list[str]) -> float:
    done = subprocess.run(pinned(command, load=True), capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        sys.exit(f"{Path(command[1]).name} failed: {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])["per_second"]


@contextmanager
def instant_server() -> Iterator[str]:
    """The bare server; its URL."""
    port = free_port()
    with http_server([WEFT.python, str(HERE / "servers" / "bare_mcp.py"), "--http", str(port)], port):
        yield f"http://127.0.0.1:{port}/mcp"


def calls_over_http(subject: Subject, url: str, tasks: int, seconds: float) -> float:
    """Calls per second through the client, by so many tasks at once."""
    return per_second(program(subject, url, str(tasks), str(seconds)))


def calls_here(subject: Subject, seconds: float) -> float:
    """Calls per second of a server of the same SDK in the same process, one by one."""
    return per_second(program(subject, IN_PROCESS, "1", str(seconds)))


def first_call_seconds(subject: Subject, url: str) -> float:
    """From starting a program to its first answer over HTTP, and to its end."""
    return wall_seconds(program(subject, url, "0", "0"), load=True)


def import_seconds(subject: Subject) -> float:
    """A fresh interpreter that imports the client, and ends."""
    package = subject.name.lower()
    return wall_seconds([subject.python, "-c", f"from {package} import Client"])
