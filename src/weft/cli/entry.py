"""`weft entry`: what a host such as Claude Desktop, VS Code or Cursor needs in its configuration to use a server.

Owns the forms of those configurations, as their makers document them. It prints an entry; it changes no file.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from weft.cli.printing import WrongCommand
from weft.cli.serving import find
from weft.server.run.loading import Target, movable


class Host(msgspec.Struct, frozen=True):
    """How one host is configured."""

    title: str
    file: str  # where its configuration is
    key: str = "mcpServers"  # under which its servers are
    command_type: str | None = "stdio"  # what an entry with a command has as its `type`
    url_type: str | None = "http"  # what one with a URL has
    takes_url: bool = True


hosts = {
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
    """Print the entry of a server, as JSON, for a host; where it goes is said on stderr."""
    host = hosts[client]
    if target.text.startswith(("http://", "https://")):
        entry, own = _of_url(target.text, host), urlsplit(target.text).hostname or "server"
    else:
        entry, own = _of_command(target, host)
    configuration = {host.key: {name or own: entry}}
    print(msgspec.json.format(msgspec.json.encode(configuration), indent=2).decode())
    print(f"For {host.title}: put it into {host.file}, beside what is there, and restart it.", file=sys.stderr)
    return 0


def _of_url(url: str, host: Host) -> dict[str, Any]:
    if not host.takes_url:
        raise WrongCommand(
            f"{host.title} takes no URLs in its configuration file; add {url} under Settings, Connectors, or name the "
            "file of the server, to have it started."
        )
    return {**({"type": host.url_type} if host.url_type else {}), "url": url}


def _of_command(target: Target, host: Host) -> tuple[dict[str, Any], str]:
    """The entry that starts a server, and the server's own name. A host starts it in whatever directory it likes."""
    with contextlib.redirect_stdout(sys.stderr):  # stdout has the entry alone
        server = find(target)
    moved, is_found = movable(target)
    words = ["-m", "weft", "run", *(["-m"] if moved.is_module else []), moved.text]
    entry: dict[str, Any] = {"command": sys.executable, "args": words}
    if moved.arguments:
        entry["args"] += ["--", *moved.arguments]
    if host.command_type:
        entry = {"type": host.command_type, **entry}
    if not is_found:
        entry["env"] = {"PYTHONPATH": str(Path.cwd())}
    return entry, server.engine.name
