"""Servers that a configuration names: found by name, and shown before they are started.

A command out of a file is somebody's wish to run a program here. So the whole of it is shown, with what it may do, and
it is started only after somebody has said yes (SBP-04). Owns the finding and the question; it starts nothing.
"""

from __future__ import annotations

import sys

from weft.cli.command import WrongCommand
from weft.client.config import CommandTarget, Target, read_server
from weft.client.confirming import changes_code, command_question, visible
from weft.errors import UsageError, WeftError

__all__ = ["NotApproved", "approve", "find"]


class NotApproved(WeftError):
    """Nobody said that the command may be started."""


def find(path: str, name: str) -> Target:
    """The server of this name in a configuration."""
    try:
        return read_server(path, name)
    except UsageError as error:
        raise WrongCommand(str(error)) from None


def approve(target: CommandTarget, path: str) -> None:
    """Show a command and ask whether it may be started; `NotApproved` unless somebody says yes."""
    print(_describe(target, path), file=sys.stderr)
    if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - closed, it is None
        raise NotApproved("Nothing was started: there is nobody to ask. Read the command, and add --yes to start it.")
    print("Start it? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise NotApproved("Nothing was started.")


def _describe(target: CommandTarget, path: str) -> str:
    """A command as it will be started, all of it, with nothing in it that a terminal would hide."""
    question = command_question(target)
    lines = [f"{visible(path)} wants to start a program:", f"  command:      {question.command}"]
    if target.cwd is not None:
        lines.append(f"  in:           {visible(target.cwd)}")
    if hidden := [name for name in target.env if not changes_code(name)]:
        lines.append(f"  environment:  {visible(', '.join(hidden))} (the values are in the file)")
    lines += [
        f"  environment:  {visible(f'{name}={value}')}" for name, value in target.env.items() if changes_code(name)
    ]
    return "\n".join([*lines, *question.warnings])
