"""Servers that a configuration names: found by name, and shown before they are started.

A command out of a file is somebody's wish to run a program here. So the whole of it is shown, with what it may do, and
it is started only after somebody has said yes (SBP-04). Owns the finding and the question; it starts nothing.
"""

from __future__ import annotations

import sys

from weft.cli.command import WrongCommand
from weft.client.config import CommandTarget, Target, read_config
from weft.client.confirming import command_question, visible
from weft.errors import UsageError, WeftError
from weft.protocol.names import closest

__all__ = ["NotApproved", "approve", "find"]


class NotApproved(WeftError):
    """Nobody said that the command may be started."""


def find(path: str, name: str) -> Target:
    """The server of this name in a configuration."""
    try:
        servers = read_config(path)
    except UsageError as error:
        raise WrongCommand(str(error)) from None
    if name not in servers:
        near = closest(name, servers)
        remedy = f"did you mean {near!r}?" if near else f"it has {', '.join(map(repr, list(servers)[:20]))}."
        raise WrongCommand(f"{path} has no server {name!r}; {remedy}")
    return servers[name]


def approve(target: CommandTarget, path: str) -> None:
    """Show a command and ask whether it may be started; `NotApproved` unless somebody says yes."""
    print(_describe(target, path), file=sys.stderr)
    if not sys.stdin.isatty():
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
    if target.env:
        lines.append(f"  environment:  {visible(', '.join(target.env))} (the values are in the file)")
    return "\n".join([*lines, *question.warnings])
