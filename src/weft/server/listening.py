"""Where a server listens: the options, the socket, and who may reach it.

Owns the checks before a server starts over HTTP; each has a sentence with a remedy. It serves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import StartError

if TYPE_CHECKING:
    from weft.server.app import Server

__all__ = ["BACKLOG", "HttpOptions", "bind", "check_exposure", "is_loopback", "try_line", "url_of"]

BACKLOG = 2048


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is served over HTTP."""

    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    workers: int = 1
    allowed_hosts: Sequence[str] | None = None
    allowed_origins: Sequence[str] | None = None
    log_level: str = "info"


def check_exposure(options: HttpOptions) -> None:
    """A server that others can reach says by which names (D15)."""
    if is_loopback(options.host) or options.allowed_hosts:
        return
    raise StartError(
        f"host={options.host!r} makes the server reachable from other machines, so it must say under which names: "
        "allowed_hosts=['api.example.com'] (--allow-host api.example.com). Use '*' for any name if a proxy in front "
        "checks it, or stay on this machine with host='127.0.0.1'."
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine as seen from itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `StartError` with what to do if the address cannot be had."""
    if not 0 <= port <= 65535:  # else the system takes it modulo 65536
        raise StartError(f"port={port} is no port; they go from 1 to 65535, and 0 takes a free one.")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise StartError(
            f"host={host!r} is no address of this machine; use '127.0.0.1' or one of its own addresses."
        ) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # a port is free at once when its last owner ended; elsewhere the option means theft
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(_why_not(error, host, port)) from None
    listener.setblocking(False)
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        free = _free_port(host, port)
        return (
            f"Port {port} on {host} is in use by another program. Stop that program, or take another port; "
            f"{free} is free: port={free} (--port {free})."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} may not be opened by this user; ports below 1024 need rights. Take one like port=8000."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"host={host!r} is not an address of this machine; use '127.0.0.1' or one of its own addresses."
    return f"{host}:{port} cannot be listened on: {error.strerror or error}."


def _free_port(host: str, taken: int) -> int:
    """A port near the one that is taken, else any."""
    for port in (*range(taken + 1, min(taken + 20, 65536)), 0):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host.strip("[]"), port))
            return probe.getsockname()[1]
    return 0


def url_of(options: HttpOptions, listener: socket.socket) -> str:
    """Where clients find a server."""
    host = options.host.strip("[]")
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}{options.path}"


def try_line(server: Server, url: str) -> str | None:
    """A command that calls a tool of this server, if it has one."""
    tool = next(iter(server.tools), None)
    if tool is None:
        return None
    properties = tool.definition.input_schema.get("properties", {})
    arguments = {name: _example(schema) for name, schema in properties.items()}
    return f"weft call {url} {tool.name} '{msgspec.json.encode(arguments).decode()}'"


def _example(schema: Any) -> Any:
    """A value that fits a simple schema, as a start."""
    if not isinstance(schema, dict):
        return None
    known: dict[str, Any] = {"integer": 1, "number": 1.5, "string": "text", "boolean": True, "array": [], "object": {}}
    facts: dict[str, Any] = schema  # pyright: ignore[reportUnknownVariableType] - plain JSON
    return facts.get("default", facts.get("enum", [known.get(str(facts.get("type")))])[0])
