"""The `weft` command."""

from weft.cli.command import main

__all__ = ["main"]
