"""Run `weft run` and `weft entry`, which load a server from a file.

`weft run` serves the server, and with --reload restarts it when the code changes. `weft entry` prints the configuration
with which a host such as Claude Desktop, VS Code or Cursor starts the server. It changes no file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from weft.backends import open_backend, set_default
from weft.cli.printing import WrongCommand
from weft.errors import StartError, UsageError
from weft.server.run.engine import Servable
from weft.server.run.listening import HttpOptions, bind, check_exposure
from weft.server.run.loading import Target, folder_of, load, movable
from weft.server.run.running import end_child, print_notice, start

_Changes = set[tuple[Any, str]]  # the kind of a change, and the file that changed
STOP_SECONDS = 7.0  # how long a child process may take to end; longer than the child's own deadline


def run(target: Target, parsed: Namespace, options: Mapping[str, Any]) -> int:
    """Load a server, run it until it is stopped, and return 0. `options` are arguments of `HttpOptions`.

    `parsed.listener` is the file descriptor of a socket that the parent process has opened, or None.
    """
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the protocol, so the file must not print there
        server = find(target)
    if parsed.backend is not None and server.engine.has_own_backend:
        raise WrongCommand("The server in the file has a backend= already. Remove it there, or leave --backend out.")
    server.engine.debug = server.engine.debug or parsed.debug
    given = HttpOptions(log_level=parsed.log_level, **options)
    if parsed.http:
        _check_exposure(given)
    listener = None if parsed.listener is None else socket.socket(fileno=parsed.listener)
    start(server.engine, "http" if parsed.http else "stdio", given, target, listener, backend_url=parsed.backend)
    return 0


def use_backend(url: str) -> None:
    """Let servers that are loaded later in this process share the backend of this URL.

    The URL is not put into the environment: it may have a password, and programs that a tool starts must not have it.
    """
    try:
        set_default(open_backend(url))
    except UsageError as error:
        raise WrongCommand(f"--backend cannot be used. {error}") from None


def run_with_reload(target: Target, arguments: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run `weft` in a child process, and restart the child process whenever a Python file changes.

    `arguments` is the command line; the child process gets it without `--reload`. On POSIX, the child inherits the
    listening socket from this process. The socket stays open during a restart, so that requests are not refused.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        remedy = f"{sys.executable} -m pip install watchfiles"
        raise StartError(f"--reload needs the package watchfiles. Install it: {remedy}") from None
    folder = folder_of(target)
    if folder is None:
        find(target)  # raises an error that says what is wrong
        return 1
    given = HttpOptions(**options)
    _check_exposure(given)
    passed = [bind(given.host, given.port).detach()] if os.name == "posix" else []  # open until this process ends
    own = [*(one for one in arguments if one != "--reload"), *(f"--listener={fd}" for fd in passed)]
    command = [sys.executable, "-m", "weft", *own, "--", *target.arguments]
    # Yields a set of changes, which may be empty, five times a second.
    watched = watch(folder, watch_filter=PythonFilter(), raise_interrupt=False, rust_timeout=200, yield_on_timeout=True)
    _keep_running(command, passed, folder, watched)
    return 0


def _keep_running(command: Sequence[str], passed: Sequence[int], folder: Path, watched: Iterable[_Changes]) -> None:
    """Run a command until this process is interrupted, and restart the command whenever `watched` yields changes.

    The command inherits the file descriptors in `passed`. `folder` is the watched folder, which is printed.
    """

    def begin() -> subprocess.Popen[bytes]:
        # No bytecode files: Python compares only size and seconds, so it could run old code after a quick change.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(command, pass_fds=passed, env=environment)  # noqa: S603 - a command of Weft, without a shell

    interrupted = False

    def stop(_signal: int, _frame: Any) -> None:
        nonlocal interrupted
        interrupted = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    child = begin()  # after the handlers are set, so that a signal ends the child too
    try:
        print_notice(f"Watching {folder} for changes.")
        for changes in watched:
            if interrupted:
                break
            if changes:
                print_notice(f"{Path(next(iter(changes))[1]).name} changed; starting again.")
                _end(child)
                child = begin()
    finally:
        _end(child)


def find(target: Target) -> Servable:
    """Load a server. Raises WrongCommand if there is no server, and StartError if its file raises an exception."""
    try:
        return load(target)
    except StartError as error:
        if error.__context__ is None:  # the file raised no exception
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
        end_child(child, STOP_SECONDS)


# --- weft entry


class Host(msgspec.Struct, frozen=True):
    """The configuration format of one host, such as VS Code. A host is a program that starts MCP servers."""

    title: str
    file: str  # where the configuration file is
    key: str = "mcpServers"  # key of the object that contains the servers
    command_type: str | None = "stdio"  # `type` of an entry with a command
    url_type: str | None = "http"  # `type` of an entry with a URL
    takes_url: bool = True  # whether an entry may have a URL


HOSTS = {
    "claude-code": Host("Claude Code", ".mcp.json in your project"),
    "claude-desktop": Host(
        "Claude Desktop",
        "claude_desktop_config.json (Settings, Developer, Edit Config)",
        command_type=None,
        takes_url=False,
    ),
    "cursor": Host("Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in your project", url_type=None),
    "vscode": Host("VS Code", ".vscode/mcp.json in your workspace", key="servers"),
}


def print_entry(target: Target, client: str, name: str | None) -> int:
    """Print the configuration entry of a server for the host `client`. On stderr, print where to add the entry.

    `name` is the server's name in the configuration (default: the server's own name, or the host name in its URL).
    """
    host = HOSTS[client]
    if target.text.startswith(("http://", "https://")):
        entry, default_name = _of_url(target.text, host), urlsplit(target.text).hostname or "server"
    else:
        entry, default_name = _of_command(target, host)
    configuration = {host.key: {name or default_name: entry}}
    print(msgspec.json.format(msgspec.json.encode(configuration), indent=2).decode())
    print(f"For {host.title}: add it to {host.file}, and restart {host.title}.", file=sys.stderr)
    return 0


def _of_url(url: str, host: Host) -> dict[str, Any]:
    if not host.takes_url:
        raise WrongCommand(f"{host.title} accepts no URLs in its configuration file. Add {url} under its Connectors.")
    return {**({"type": host.url_type} if host.url_type else {}), "url": url}


def _of_command(target: Target, host: Host) -> tuple[dict[str, Any], str]:
    """Return a configuration entry that starts a server from any directory, and the server's name."""
    with contextlib.redirect_stdout(sys.stderr):  # only the entry is printed on stdout
        server = find(target)
    moved, is_found = movable(target)
    words = ["-m", "weft", "run", *(["-m"] if moved.is_module else []), moved.text]
    words += ["--", *moved.arguments] if moved.arguments else []
    env = None if is_found else {"PYTHONPATH": str(Path.cwd())}
    entry = {"type": host.command_type, "command": sys.executable, "args": words, "env": env}
    return {name: value for name, value in entry.items() if value is not None}, server.engine.name
