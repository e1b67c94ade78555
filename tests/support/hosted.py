"""`uvicorn api:app` in a process of its own, as people deploy."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.ports import find_port, until_listening
from weft.sync import Client

__all__ = ["Hosted"]


class Hosted:
    """A process that serves `app` of a file, and what it wrote."""

    def __init__(self, folder: Path, source: str, *options: str) -> None:
        (folder / "api.py").write_text(source)
        self.events_file = folder / "events.txt"
        self.port = find_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._log = folder / "log.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "api:app", "--port", str(self.port), *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a process group, as a terminal and a service manager have one
            )
        until_listening(self.process, self.port)

    @property
    def log(self) -> str:
        """What it wrote to stdout and stderr."""
        return self._log.read_text()

    @property
    def events(self) -> list[tuple[int, str]]:
        """Which process did what."""
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    def of(self, process: int) -> list[str]:
        """What one process did."""
        return [event for who, event in self.events if who == process]

    def call(self, tool: str, **options: Any) -> Any:
        """The text of a tool's result, asked for by a new client."""
        with Client(self.url, **options) as client:
            return client.call_tool(tool).text

    def until(self, event: str, process: int | None = None) -> None:
        """Wait until a process has done something, at most 20 s."""
        until = time.monotonic() + 20
        while event not in self.of(process or self.process.pid) and time.monotonic() < until:
            time.sleep(0.01)

    def end_group(self, number: int) -> int:
        """Send a signal to it and to all that it has started, as Ctrl-C in a terminal does; wait for its exit code."""
        os.killpg(self.process.pid, number)
        return self.process.wait(20)

    def kill(self) -> None:
        """End it and all that it has started, whatever they do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, number: int) -> int:
        """Send it a signal, and wait for its exit code."""
        self.process.send_signal(number)
        return self.process.wait(20)
