"""`weft run`: load a file, serve the server in it; and do so again when the code changes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.cli.command import WrongCommand
from weft.errors import StartError
from weft.server.app import Server
from weft.server.listening import HttpOptions, check_exposure
from weft.server.loading import load, split_target
from weft.server.running import say, start

__all__ = ["run", "run_with_reload"]

STOP_SECONDS = 7.0  # a child that is asked to end has its own limit; this is a little more


def run(target: str, *, http: bool, debug: bool, log_level: str, options: Mapping[str, Any]) -> int:
    """Serve until stopped."""
    with contextlib.redirect_stdout(sys.stderr):  # what the file prints must not get into the protocol (STDIO-02)
        server = _load(target)
    server.debug = server.debug or debug
    given = HttpOptions(log_level=log_level, **options)
    if http:
        try:
            check_exposure(given)
        except StartError as error:
            raise WrongCommand(str(error)) from None
    start(server, "http" if http else "stdio", given, target)
    return 0


def run_with_reload(target: str, arguments: Sequence[str]) -> int:
    """Run the same command without `--reload` in a child, and start it anew whenever a Python file changes."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise StartError(
            f"--reload needs the package watchfiles. Install it: {sys.executable} -m pip install watchfiles"
        ) from None
    folder = Path(split_target(target)[0]).resolve().parent
    if not folder.is_dir():
        _load(target)  # says what is wrong with it
    command = [sys.executable, "-m", "weft.cli", *(one for one in arguments if one != "--reload")]
    child = subprocess.Popen(command)  # noqa: S603 - our own interpreter and module, no shell (R11)
    interrupted = False

    def stop(_signal: int, _frame: Any) -> None:
        nonlocal interrupted
        interrupted = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    say(f"Watching {folder} for changes.")
    try:
        for changes in watch(
            folder, watch_filter=PythonFilter(), raise_interrupt=False, rust_timeout=200, yield_on_timeout=True
        ):
            if interrupted:
                break
            if changes:
                say(f"{Path(next(iter(changes))[1]).name} changed; starting again.")
                _end(child)
                child = subprocess.Popen(command)  # noqa: S603 - as above
    finally:
        _end(child)
    return 0


def _load(target: str) -> Server:
    """The server that was named. A wrong name is the command's mistake; a file that fails is the file's."""
    try:
        return load(target)
    except StartError as error:
        if error.__context__ is None:  # it tells of no exception in the file, so nothing ran that could have failed
            raise WrongCommand(str(error)) from None
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
