"""The `weft` command. What it can do is in `command`; each subcommand has a module."""

from weft.cli.command import main

__all__ = ["main"]
