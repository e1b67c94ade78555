"""Where a server listens: the options, the socket, who may reach it, and what to try there.

Owns the checks before a server starts over HTTP; each has a sentence with a remedy. It serves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from weft.errors import StartError
from weft.net.hosts import is_loopback
from weft.protocol.schema import compile_schema, is_array, is_object
from weft.server.http.request import shared_limits
from weft.server.run.loading import typed_command

if TYPE_CHECKING:
    from weft.server.features.tools import RegisteredTool
    from weft.server.run.engine import Engine


log = logging.getLogger("weft.advice")

BACKLOG = 2048
MOST_DESCRIPTORS = 65_536  # that are asked for: more would cost memory on some systems
MOST_NAMED = 5  # features in a warning
MOST_DEPTH = 16  # schemas refer to themselves
DAY = date(2030, 1, 31).isoformat()
FORMATS = {
    "date": DAY,
    "date-time": f"{DAY}T12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "time": "12:00:00Z",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is served over HTTP."""

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
    log_level: str | None = None  # "info", or "warning" on stdio


class HttpKeywords(TypedDict, total=False):
    """The same, as the keywords of `server.run("http", ...)`: so that type checkers know them."""

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
    log_level: str | None


def check_exposure(options: HttpOptions) -> None:
    """A server that others can reach says by which names (D15)."""
    if is_loopback(options.host) or options.allowed_hosts:
        return
    raise StartError(
        f"host={options.host!r} makes the server reachable from other machines, so it must say under which names: "
        "allowed_hosts=['api.example.com'] (--allow-host api.example.com). Use '*' for any name if a proxy in front "
        "checks it, or stay on this machine with host='127.0.0.1'."
    )


def check_workers(workers: Any) -> None:
    """At least one process serves."""
    if type(workers) is not int or workers < 1:
        raise StartError(f"workers={workers!r} is not possible; it is the number of processes that serve, 1 or more.")


def warn_of_proxy(engine: Engine, options: HttpOptions) -> None:
    """Warn where there must be a proxy in front that is not named: all of its clients would count as one."""
    if engine.auth is not None or options.trusted_proxies or not is_loopback(options.host):
        return
    named = [entry for entry in options.allowed_hosts or () if not is_loopback(re.sub(r":\d+$", "", entry))]
    if named:
        log.warning(
            "The server listens on %s only and is called %s: so a proxy passes its requests on. All of its clients "
            "have the proxy's address, and share what one client may have (%s). Name it, so that they are told apart: "
            "trusted_proxies=['127.0.0.1'] (--trust-proxy 127.0.0.1).",
            options.host,
            ", ".join(named[:MOST_NAMED]),
            shared_limits(engine.limits),
        )


def warn_of_scopes(engine: Engine) -> None:
    """Without `auth` no token is ever verified, so what takes scopes is there for nobody."""
    if engine.auth is not None:
        return
    taking = [
        *(f"tool {tool.name!r}" for tool in engine.tools if tool.scopes),
        *(f"resource {entry.uri!r}" for entry in engine.resources if entry.scopes),
        *(f"prompt {prompt.definition.name!r}" for prompt in engine.prompts if prompt.scopes),
    ]
    if taking:
        more = f" and {len(taking) - MOST_NAMED} more" if len(taking) > MOST_NAMED else ""
        log.warning(
            "scopes= is said of %s%s, but the server has no auth=: no token is accepted here, so over HTTP nobody can "
            "use or list them. Give Server(auth=ResourceServer(...)), or leave scopes= out.",
            ", ".join(taking[:MOST_NAMED]),
            more,
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `StartError` with what to do if the address cannot be had."""
    if type(port) is not int or not 0 <= port <= 65535:  # else the system takes it modulo 65536
        raise StartError(f"port={port!r} is no port; it is a number from 1 to 65535, and 0 takes a free one.")
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


def raise_descriptors() -> None:
    """Let this process have as many files and connections open as the system allows it: often but 1,024 to begin with.

    Beyond that, new connections are refused by the system.
    """
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
            return int(probe.getsockname()[1])
    return 0


def url_of(options: HttpOptions, listener: socket.socket) -> str:
    """Where clients find a server: under the first name that it answers to, if it says so, else at its address."""
    named = next((entry for entry in options.allowed_hosts or () if not entry.startswith("*")), None)
    host = named or options.host.strip("[]")
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    has_port = ":" in host.rpartition("]")[2]
    return f"http://{host}{'' if has_port else f':{listener.getsockname()[1]}'}{options.path}"


def try_line(engine: Engine, url: str) -> str | None:
    """A command that calls a tool of this server and succeeds as it stands, if there is one; but for a token if needed.

    One that destroys something is named only where there is no other. One that any token will do for is preferred, one
    that needs no arguments, and one that does not take a Context: it cannot ask back.
    """
    token = [] if engine.auth is None else ["--token", "TOKEN"]
    tools = [tool for tool in engine.tools if engine.auth is not None or not tool.scopes]  # else it is refused
    harmless = [tool for tool in tools if not _is_risky(tool)]
    for tool in sorted(harmless or tools, key=_hurdles):
        arguments = example_of(tool.definition.input_schema)
        if not _needs(tool) or _fits(tool, arguments):
            words = ["call", url, tool.name, *([msgspec.json.encode(arguments).decode()] if arguments else [])]
            return f"{_command()} {shlex.join(words + token)}"
    return f"{_command()} {shlex.join(['list', url, *token])}" if tools else None


def _is_risky(tool: RegisteredTool) -> bool:
    hints = tool.definition.annotations
    return hints is not None and bool(hints.destructive_hint)


def _hurdles(tool: RegisteredTool) -> tuple[bool, ...]:
    """What stands between a newcomer and a result of this tool, the worst first."""
    return bool(tool.scopes), _needs(tool), tool.signature.injected is not None


def _needs(tool: RegisteredTool) -> bool:
    return bool(tool.definition.input_schema.get("required"))


def _fits(tool: RegisteredTool, arguments: Any) -> bool:
    return not compile_schema(tool.definition.input_schema).problems(arguments)


def _command() -> str:
    """The `weft` of this environment as it can be typed here."""
    own = Path(typed_command())
    if own.stem != "weft":  # `python server.py`, or a child of `weft run --reload`
        own = Path(sys.executable).with_name("weft")
    found = shutil.which("weft")
    if found and own.exists() and Path(found).samefile(own):
        return "weft"
    return shlex.quote(str(own)) if own.is_file() else f"{shlex.quote(sys.executable)} -m weft"


# Example values: the common keywords only; `_fits` makes sure.


def example_of(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A value that fits a schema, required properties only.

    >>> example_of({"required": ["n"], "properties": {"n": {"type": "integer", "minimum": 5}, "m": {}}})
    {'n': 5}
    """
    if not is_object(schema) or depth > MOST_DEPTH:
        return None
    root = schema if root is None else root
    for known in ("default", "const"):
        if known in schema:
            return schema[known]
    for several in ("examples", "enum"):
        if is_array(schema.get(several)) and schema[several]:
            return schema[several][0]
    if "$ref" in schema:
        return example_of(_referred(str(schema["$ref"]), root), root, depth + 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if is_array(schema.get(several)) and schema[several]:
            return example_of(schema[several][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if is_array(kind) else kind
    if kind == "object":
        properties: dict[str, Any] = schema.get("properties", {})
        return {name: example_of(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        first: list[Any] = [example_of(one, root, depth + 1) for one in schema.get("prefixItems", ())]
        more = range(len(first), int(schema.get("minItems", 0)))
        return first + [example_of(schema.get("items"), root, depth + 1) for _ in more]
    if kind in ("integer", "number"):
        return _number(schema, whole=kind == "integer")
    if kind == "string":
        text = FORMATS.get(str(schema.get("format")), "text")
        return text.ljust(int(schema.get("minLength", 0)), "x")[: schema.get("maxLength")]
    return True if kind == "boolean" else None


def _number(schema: dict[str, Any], *, whole: bool) -> float:
    """A number at a bound, or a step within a bound that is itself left out; else one step."""
    step: float = schema.get("multipleOf", 1 if whole else 0.5)
    bounds: dict[str, float] = schema
    if "minimum" in bounds:
        return bounds["minimum"]
    if "exclusiveMinimum" in bounds:
        return bounds["exclusiveMinimum"] + step
    if "maximum" in bounds:
        return bounds["maximum"]
    return bounds["exclusiveMaximum"] - step if "exclusiveMaximum" in bounds else step


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What a `$ref` within the schema names."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if is_object(found) else None
    return found
