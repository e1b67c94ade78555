"""`weft run`: load a file, serve the server in it; and do so again when the code changes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from weft.cli.printing import WrongCommand
from weft.errors import StartError
from weft.server.run.engine import Servable
from weft.server.run.listening import HttpOptions, bind, check_exposure
from weft.server.run.loading import Target, folder_of, load
from weft.server.run.running import say, start

_Changes = set[tuple[Any, str]]  # what happened, and to which file
STOP_SECONDS = 7.0  # a child that is asked to end has its own limit; this is a little more


def run(
    target: Target,
    *,
    http: bool,
    debug: bool,
    log_level: str | None,
    options: Mapping[str, Any],
    listener: int | None = None,
) -> int:
    """Serve until stopped; on a socket that the parent keeps open, if there is one."""
    with contextlib.redirect_stdout(sys.stderr):  # what the file prints must not get into the protocol (STDIO-02)
        server = find(target)
    server.engine.debug = server.engine.debug or debug
    given = HttpOptions(log_level=log_level, **options)
    if http:
        _check_exposure(given)
    kept = None if listener is None else socket.socket(fileno=listener)
    start(server.engine, "http" if http else "stdio", given, target, kept)
    return 0


def run_with_reload(target: Target, arguments: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run the same command without `--reload` in a child, and start it anew whenever a Python file changes.

    The socket stays open meanwhile, where a system can pass it on: requests wait instead of being refused.
    """
    watch = _watcher()
    folder = folder_of(target)
    if folder is None:
        find(target)  # says what is wrong with it
        return 1
    command = [sys.executable, "-m", "weft.cli", *(one for one in arguments if one != "--reload")]
    with _kept_open(HttpOptions(**options)) as passed:
        listening = [f"--listener={fd}" for fd in passed]
        _keep_running([*command, *listening, "--", *target.arguments], passed, folder, watch(folder))
    return 0


@contextlib.contextmanager
def _kept_open(options: HttpOptions) -> Generator[list[int]]:
    """A socket that listens for children, by its number; none where children cannot inherit one."""
    if os.name != "posix":
        yield []
        return
    _check_exposure(options)
    with contextlib.closing(bind(options.host, options.port)) as listener:
        yield [listener.fileno()]


def _watcher() -> Callable[[Path], Iterable[_Changes]]:
    """Looks at a folder: yields what changed, and nothing five times a second."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise StartError(
            f"--reload needs the package watchfiles. Install it: {sys.executable} -m pip install watchfiles"
        ) from None
    return partial(watch, watch_filter=PythonFilter(), raise_interrupt=False, rust_timeout=200, yield_on_timeout=True)


def _keep_running(command: Sequence[str], passed: Sequence[int], folder: Path, watched: Iterable[_Changes]) -> None:
    """Run a command, again whenever a Python file changes, until interrupted."""

    def begin() -> subprocess.Popen[bytes]:
        # Compiled code is kept by the second of the change and the size: a quick change could be missed.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(command, pass_fds=passed, env=environment)  # noqa: S603 - ourselves, no shell (R11)

    interrupted = False

    def stop(_signal: int, _frame: Any) -> None:
        nonlocal interrupted
        interrupted = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    child = begin()  # not before: whoever ends this process then ends the child with it
    try:
        say(f"Watching {folder} for changes.")
        for changes in watched:
            if interrupted:
                break
            if changes:
                say(f"{Path(next(iter(changes))[1]).name} changed; starting again.")
                _end(child)
                child = begin()
    finally:
        _end(child)


def find(target: Target) -> Servable:
    """Return the server that was named. A wrong name is the command's mistake; a file that fails is the file's."""
    try:
        return load(target)
    except StartError as error:
        if error.__context__ is None:  # it tells of no exception in the file, so nothing ran that could have failed
            raise WrongCommand(str(error)) from None
        raise


def _check_exposure(options: HttpOptions) -> None:
    try:
        check_exposure(options)
    except StartError as error:
        raise WrongCommand(str(error)) from None


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
