"""Servers that a configuration names: found by name, and shown before they are started, or told of the environment.

A command out of a file is somebody's wish to run a program here. So the whole of it is shown, with what it may do, and
it is started only after somebody has said yes (SBP-04). In the same way a URL with variables of the environment is
somebody's wish to be sent them. Owns the finding and the question; it starts and sends nothing.
"""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

from weft.cli.command import WrongCommand
from weft.client.config import CommandTarget, Target, read_server
from weft.client.confirming import changes_code, command_question, visible
from weft.errors import UsageError, WeftError

__all__ = ["NotApproved", "approve", "find"]


class NotApproved(WeftError):
    """Nobody said that the command may be started, or the variables be sent."""


def find(path: str, name: str) -> Target:
    """The server of this name in a configuration."""
    try:
        return read_server(path, name)
    except UsageError as error:
        raise WrongCommand(str(error)) from None


def approve(target: Target, path: str) -> None:
    """Ask about what needs a yes: a command, or variables to be sent; `NotApproved` unless somebody says so."""
    if isinstance(target, CommandTarget):
        _ask(_describe(target, path), "start", "started")
    elif target.taken:
        parts = urlsplit(target.url)
        _ask(
            f"{visible(path)} wants variables of your environment to be sent:\n  variables:    "
            f"{', '.join(target.taken)}\n  to:           {visible(f'{parts.scheme}://{parts.netloc}')}",
            "send",
            "sent",
        )


def _ask(shown: str, do: str, done: str) -> None:
    print(shown, file=sys.stderr)
    if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - closed, it is None
        raise NotApproved(f"Nothing was {done}: there is nobody to ask. Read the above, and add --yes to {do} it.")
    print(f"{do.capitalize()} it? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise NotApproved(f"Nothing was {done}.")


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
    if target.taken:
        lines.append(f"  it is given:  {', '.join(target.taken)} of your environment")
    return "\n".join([*lines, *question.warnings])
