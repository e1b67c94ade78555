"""Prepare to serve over HTTP: check the options, open the socket, and find the URL and example command to print.

A failed check raises a `StartError` whose message says what to do. Possible mistakes are logged as warnings.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import urlsplit

import msgspec

from weft.errors import StartError
from weft.net.hosts import HostPolicy, is_loopback
from weft.server.http.health import HealthAudience
from weft.server.http.request import shared_limits

if TYPE_CHECKING:
    from weft.server.features.tools import RegisteredTool
    from weft.server.run.engine import Engine


log = logging.getLogger("weft.advice")

BACKLOG = 2048
MOST_DESCRIPTORS = 65_536  # highest limit to request: a higher one costs memory on some systems
MOST_NAMED = 5  # most features or hosts that one warning lists


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for serving over HTTP, with their default values."""

    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    sse_path: str | None = None
    workers: int = 1
    sessions: bool | None = None
    allowed_hosts: Sequence[str] | None = None
    allowed_origins: Sequence[str] | None = None
    trusted_proxies: Sequence[str] = ()
    cors: Sequence[str] = ()
    health: HealthAudience = "private"
    log_level: str | None = None  # default: "info", or "warning" on stdio


class HttpKeywords(TypedDict, total=False):
    """The keyword arguments of `server.run("http", ...)`, for type checkers: the fields of `HttpOptions`."""

    host: str
    port: int
    path: str
    sse_path: str | None
    workers: int
    sessions: bool | None
    allowed_hosts: Sequence[str] | None
    allowed_origins: Sequence[str] | None
    trusted_proxies: Sequence[str]
    cors: Sequence[str]
    health: HealthAudience
    log_level: str | None


def check_exposure(options: HttpOptions) -> None:
    """Raise StartError if other machines can reach the server, but `allowed_hosts` is empty."""
    if is_loopback(options.host) or options.allowed_hosts:
        return
    raise StartError(
        f"host={options.host!r} makes the server reachable from other machines, so it must list its names: "
        "allowed_hosts=['api.example.com'] (--allow-host api.example.com). Use '*' for any name if a proxy in front "
        "checks it, or stay on this machine with host='127.0.0.1'."
    )


def check_workers(workers: Any) -> None:
    """Raise StartError if `workers` is not an int, or is less than 1."""
    if type(workers) is not int or workers < 1:
        raise StartError(f"workers={workers!r} is not possible; it is the number of processes that serve, 1 or more.")


def warn_of_proxy(engine: Engine, options: HttpOptions) -> None:
    """Log a warning if there seems to be a proxy in front of the server, but `trusted_proxies` is empty.

    Without `trusted_proxies`, all clients behind the proxy share the limits of one client.
    """
    if engine.auth is not None or options.trusted_proxies or not is_loopback(options.host):
        return
    named = [entry for entry in options.allowed_hosts or () if not is_loopback(re.sub(r":\d+$", "", entry))]
    if named:
        log.warning(
            "The server listens on %s only, but allows the host %s, so there must be a proxy in front of it. All "
            "clients of the proxy have its address, so they share the limits of one client (%s). To tell them apart, "
            "set trusted_proxies=['127.0.0.1'] (--trust-proxy 127.0.0.1).",
            options.host,
            ", ".join(named[:MOST_NAMED]),
            shared_limits(engine.limits),
        )


def warn_of_scopes(engine: Engine) -> None:
    """Log a warning if features have `scopes`, but the server has no `auth`.

    Without `auth`, no client can use these features over HTTP.
    """
    if engine.auth is not None:
        return
    taking = [
        *(f"tool {tool.name!r}" for tool in engine.tools if tool.scopes),
        *(f"resource {entry.name!r}" for entry in engine.resources if entry.scopes),
        *(f"prompt {prompt.name!r}" for prompt in engine.prompts if prompt.scopes),
    ]
    if taking:
        more = f" and {len(taking) - MOST_NAMED} more" if len(taking) > MOST_NAMED else ""
        log.warning(
            "scopes= is set for %s%s, but the server has no auth=. It accepts no tokens, so over HTTP no client can "
            "use or list them. Set Server(auth=ResourceServer(...)), or leave scopes= out.",
            ", ".join(taking[:MOST_NAMED]),
            more,
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a new socket that listens on `host` and `port`. Raise StartError if that is not possible."""
    if type(port) is not int or not 0 <= port <= 65535:  # some systems would use a larger number modulo 65536
        raise StartError(f"port={port!r} is not possible; it is a number from 1 to 65535, or 0 for any free port.")
    try:
        listener = _listen(host, port)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            with _listen(host, 0) as other:
                free = other.getsockname()[1]
            why = (
                f"Port {port} on {host} is in use by another program. Stop that program, or take another port; "
                f"{free} is free: port={free} (--port {free})."
            )
        elif number == errno.EACCES:
            why = f"Port {port} cannot be opened by this user; ports below 1024 need special rights. Try port=8000."
        else:
            why = (
                f"host={host!r} is not an address of this machine, or port {port} cannot be opened ({error}). Use "
                "'127.0.0.1' or one of its own addresses."
            )
        raise StartError(why) from None
    listener.setblocking(False)
    return listener


def _listen(host: str, port: int) -> socket.socket:
    """Return a new socket that listens on the first address of `host`. An empty `host` has no address."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # `::` also accepts IPv4
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)


def raise_descriptors() -> None:
    """Increase the number of files and connections that this process may open, up to `MOST_DESCRIPTORS`.

    The initial limit is often 1,024. When the limit is reached, the system refuses new connections.
    """
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def url_of(options: HttpOptions, listener: socket.socket) -> str:
    """Return the URL to print for a server that listens on the socket `listener`.

    The host in the URL is `options.host`, or a name of this machine in `allowed_hosts`. Other names there can lead to
    a proxy.
    """
    named = next((entry for entry in options.allowed_hosts or () if is_loopback(entry)), None)
    host = named or options.host.strip("[]")
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{listener.getsockname()[1]}{options.path}"


def for_hosts(options: HttpOptions) -> str:
    """Return the allowed hosts as a phrase after the URL, or "" if any host, or only this machine, is allowed."""
    named = [entry for entry in options.allowed_hosts or () if not is_loopback(entry)]
    if not named or "*" in named:
        return ""
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return f" for the host{'s' if len(named) > 1 else ''} {', '.join(named[:MOST_NAMED])}{more}"


def needed_host(options: HttpOptions, url: str) -> str | None:
    """Return the `Host` header that a request to `url` needs, or None if the host in `url` is allowed."""
    if HostPolicy(options.allowed_hosts, None).host_ok(urlsplit(url).netloc.encode()):
        return None
    return next((entry.replace("*", "www") for entry in options.allowed_hosts or ()), None)


def try_line(engine: Engine, url: str, host: str | None = None) -> str | None:
    """Return a shell command to try the server at `url`, or None if there are no tools to try.

    `host` is the `Host` header to send (default: the host in `url`). The command calls a tool that needs no arguments.
    If there is no such tool, the command lists the features.
    """
    options = [] if host is None else ["--header", f"Host: {host}"]
    options += [] if engine.auth is None else ["--token", "TOKEN"]
    # Without auth, calls of tools with scopes are refused.
    tools = [tool for tool in engine.tools if engine.auth is not None or not tool.scopes]
    if not tools:
        return None
    name = next((tool.name for tool in tools if _is_easy(tool)), None)
    words = ["list", url] if name is None else ["call", url, name]
    return f"{_command()} {shlex.join(words + options)}"


def _is_easy(tool: RegisteredTool) -> bool:
    """Return whether a tool can be called without arguments and scopes, and is not marked as destructive."""
    hints = tool.definition.annotations
    is_risky = hints is not None and hints.destructive_hint
    return not (is_risky or tool.scopes or tool.definition.input_schema.get("required"))


def _command() -> str:
    """Return the shell command that runs the `weft` program of this Python environment."""
    own, found = Path(sys.executable).with_name("weft"), shutil.which("weft")
    is_found = found is not None and own.exists() and own.samefile(found)
    return "weft" if is_found else f"{shlex.quote(sys.executable)} -m weft"
