"""Define the targets of a client, and read them from text, lists and `mcpServers` configurations.

    "https://flights.example/mcp"                                    a URL: `Http`
    ["npx", "-y", "@acme/flights"]  or  "npx -y @acme/flights"       a command: `Command`
    {"url": "https://…", "headers": {"Authorization": "Bearer …"}}   an entry with a URL
    {"command": "npx", "args": ["…"], "env": {…}, "cwd": "…"}        an entry with a command
    {"mcpServers": {"flights": {…}, "hotels": {…}}}                  several entries by name; `server=` chooses one
    Path("mcp.json")                                                 a file with such a configuration

In an entry, `${NAME}` and `${env:NAME}` are replaced by a variable of the environment. `${NAME:-other}` is replaced by
`other` if the variable is not set or empty. So a file can refer to a token without containing the token. Nothing else
is replaced. The names of the replaced variables are stored in the target's `taken`, so that a program can show them.
Error messages never contain the values of variables.

A command is a program and its arguments. It is started without a shell, so `|`, `$HOME` and `*` have no special
meaning. A URL is https, or http on this machine. This module does not connect, and starts no program.
"""

from __future__ import annotations

import os
import re
import shlex
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, cast

import msgspec

from weft.client.argument_checks import check_function, check_tls, kind_of
from weft.client.connection.transport import Auth
from weft.errors import UsageError
from weft.net.hosts import is_loopback
from weft.net.urls import UrlRefused, read_url, shown_url
from weft.protocol.names import check_uri, closest

_SERVERS = ("mcpServers", "servers")  # most programs use the first key, VS Code the second
_HTTP_KINDS = frozenset({"http", "https", "sse", "streamable-http", "streamableHttp", "streamable_http"})
_SHELL_WORDS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1", "<<"})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_AND_PORT = re.compile(r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}(?:/\S*)?")
_MAX_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Http:
    """The URL of a server, with options for the connection. The repr leaves out values that may be secret.

    >>> Http("https://flights.example/mcp", headers={"X-Key": "…"}, trust_env=True)
    Http(url='https://flights.example/mcp', trust_env=True, allow_insecure=False)
    """

    url: str
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # sent with every request
    auth: Auth | str | None = field(default=None, repr=False)  # a login of `weft.auth`, or a token
    proxy: str | None = field(default=None, repr=False)  # URL of an HTTP proxy; may contain credentials
    tls: ssl.SSLContext | None = field(default=None, repr=False)  # SSL context, for example for a private CA
    trust_env: bool = False  # read the proxy from the environment, if `proxy` is None
    allow_insecure: bool = False  # allow http to other machines
    taken: tuple[str, ...] = field(default=(), repr=False)  # names of the environment variables that were filled in

    def __post_init__(self) -> None:
        check_url(self.url, allow_insecure=self.allow_insecure)
        check_headers(self.headers)
        check_tls(self.tls)

    @property
    def where(self) -> str:
        """The URL without its query, for error messages. The query may contain a key."""
        return self.url.partition("?")[0]


@dataclass(slots=True, init=False)
class Command:
    """A command that starts a server as a child process. The repr leaves out `env`, which may contain secrets.

    >>> Command("uvx mcp-server-time", env={"TOKEN": "…"})
    Command(command=('uvx', 'mcp-server-time'), cwd=None)
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)  # added to the few variables that a child process inherits
    cwd: str | None
    on_stderr: Callable[[str], Any] | None = field(repr=False)  # called with each line of the child's stderr
    written: tuple[str, ...] = field(repr=False)  # the command before variables were filled in; empty if none were
    taken: tuple[str, ...] = field(repr=False)  # names of the environment variables that were filled in

    def __init__(
        self,
        command: str | Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        written: tuple[str, ...] = (),
        taken: tuple[str, ...] = (),
    ) -> None:
        check_function(on_stderr, "on_stderr(line)")
        self.command = _words(_split(command) if isinstance(command, str) else command)
        self.env = dict(env or {})
        self.cwd = None if cwd is None else str(cwd)
        self.on_stderr = on_stderr
        self.written = written
        self.taken = taken

    @property
    def line(self) -> str:
        """The command as one line, quoted for a shell.

        Variables are shown as `${NAME}`, as in the configuration, because their values may be secret.
        """
        return shlex.join(self.written or self.command)

    @property
    def where(self) -> str:
        """The command line for error messages, at most 200 characters."""
        shown = self.line
        return shown if len(shown) <= 200 else f"{shown[:200]}…"


@dataclass(frozen=True, slots=True)
class Asgi:
    """An ASGI application in this process, and the path of its MCP endpoint."""

    app: Any
    _: KW_ONLY
    path: str = "/mcp"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    auth: Auth | str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_headers(self.headers)
        if not self.path.startswith("/"):
            raise UsageError(f"path={self.path!r} is not possible: a path begins with a slash, like '/mcp'.")


Target: TypeAlias = Http | Command


def parse_target(target: object, *, server: str | None = None) -> Target:
    """Convert a URL, a command or a configuration to a target. Raises UsageError for any other value.

    If the configuration has several entries, `server` is the name of the entry to use.

    >>> parse_target("python -m flights --verbose").command
    ('python', '-m', 'flights', '--verbose')
    >>> parse_target("http://flights.example/mcp")
    Traceback (most recent call last):
    ...
    weft.errors.UsageError: http://flights.example/mcp is not encrypted; use https, or Http(url, allow_insecure=True) \
if the network is trusted.
    """
    if isinstance(target, Http | Command):
        return target
    if isinstance(target, str):
        return _from_text(target)
    if isinstance(target, os.PathLike):
        return read_server(cast("os.PathLike[str]", target), server)
    if _is_mapping(target):
        if is_config(target):
            return _from_servers(_servers(target), server)
        return _from_entry(target, "The entry")
    if isinstance(target, list | tuple):
        return Command(cast("Sequence[str]", target))
    raise UsageError(
        f"A client cannot connect to {kind_of(target)}; give it a URL, a command as a list such as "
        "['python', 'server.py'], a Server, an ASGI app, or an entry of an mcpServers configuration."
    )


def read_config(
    source: str | os.PathLike[str] | Mapping[str, Any], *, allow_insecure: bool = False
) -> dict[str, Target]:
    """Return all servers of an `mcpServers` configuration by name.

    `source` is the path of the configuration file, or its decoded content. With `allow_insecure`, URLs may use http for
    other machines.

    >>> read_config({"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}})
    {'time': Command(command=('uvx', 'mcp-server-time'), cwd=None)}
    """
    config = source if isinstance(source, Mapping) else _load(Path(source))
    return {
        name: _from_entry(entry, f"The entry {name!r}", allow_insecure=allow_insecure)
        for name, entry in _servers(config).items()
    }


def read_server(path: str | os.PathLike[str], name: str | None) -> Target:
    """Return the server `name` from a configuration file. If `name` is None, the file must have only one server.

    The other servers in the file are not checked.
    """
    return _from_servers(_servers(_load(Path(path))), name)


def is_config(target: Mapping[str, Any]) -> bool:
    """Return whether `target` is a whole configuration with a dict of servers, not the entry of one server."""
    return any(_is_mapping(target.get(word)) for word in _SERVERS)


def check_url(url: str, *, allow_insecure: bool = False) -> None:
    """Raise UsageError if a client must not connect to this URL.

    The URL must use https, or http if its host is this machine. With `allow_insecure`, http is allowed for all hosts. A
    URL with a user name, a password or a fragment is refused.
    """
    if "://" not in url:
        raise UsageError("This is not a URL: write https://host/path, or http://localhost:8000/mcp on this machine.")
    try:
        check_uri(url)
        parts = read_url(url, allow_insecure=allow_insecure)
    except ValueError as error:
        raise UsageError(f"This is not a URL that can be connected to: {str(error).rstrip('.')}.") from None
    except UrlRefused as refused:
        reason = _URL_FAULTS[refused.fault]
        raise UsageError(reason.format(url=shown_url(url), host=refused.host[:100], scheme=refused.scheme)) from None
    if parts.fragment:
        raise UsageError(f"{shown_url(url)} has a fragment, which no server gets; leave out '#' and what follows it.")


_URL_FAULTS = {
    "malformed": "This is not a URL that can be connected to: {url}",
    "credentials": "The URL has a name or password before its host {host!r}; take it out, and give it as "
    "Http(url, headers={{'Authorization': ...}}).",
    "scheme": "{url} has the scheme {scheme!r}; a server is reached by https, or by a command.",
    "host": "{url} names no host; write it as https://host/path.",
    "insecure": "{url} is not encrypted; use https, or Http(url, allow_insecure=True) if the network is trusted.",
}


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise UsageError if a header has an invalid name, or a newline or NUL in its value.

    The error message does not contain the value, which may be secret.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or any(char in value for char in "\r\n\0"):
            raise UsageError(f"headers= has the header {name[:60]!r}, which cannot be sent; remove newlines and NUL.")


# --- the forms of a target


def _from_text(text: str) -> Target:
    url = text.strip()
    if _SCHEME.match(url):
        return Http(url)
    if found := _HOST_AND_PORT.fullmatch(url):
        scheme = "http" if is_loopback(found["host"].strip("[]")) else "https"
        shown = url.partition("?")[0][:200]
        raise UsageError(f"{shown!r} is not a URL; if it is a server's address, write {scheme}://{shown}")
    return Command(text)


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text, posix=os.name != "nt")  # on Windows a backslash is a part of a path
    except ValueError as error:
        raise UsageError(f"The command cannot be split ({error}); close the quote, or write it as a list.") from None
    if shell := next((word for word in words if word in _SHELL_WORDS), None):
        raise UsageError(
            f"The command has {shell!r}, which only a shell understands, but no shell is used. Start one program, or "
            "write it as a list."
        )
    return words


def _from_servers(entries: Mapping[str, Any], server: str | None) -> Target:
    if server is None and len(entries) == 1:
        server = next(iter(entries))
    if server is None or server not in entries:
        names = ", ".join(repr(name) for name in list(entries)[:20])
        if server is None:
            fault = f"has several servers; choose one of {names}, for example with server={next(iter(entries))!r}."
        elif near := closest(server, entries):
            fault = f"has no server {server!r}; did you mean {near!r}?"
        else:
            fault = f"has no server {server!r}; choose one of {names}."
        raise UsageError(f"The configuration {fault}")
    return _from_entry(entries[server], f"The entry {server!r}")


class _Entry(msgspec.Struct):
    """The entry of one server in a configuration. Members that are not listed here are ignored."""

    url: str | None = None
    headers: dict[str, str] | None = None
    command: str | list[str] | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None
    type: str | None = None
    transport: str | None = None  # some programs write this instead of `type`


def _from_entry(given: object, what: str, *, allow_insecure: bool = False) -> Target:
    try:
        entry = msgspec.convert(given, _Entry)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} cannot be used: {error}. Write values as text, in quotes.") from None
    variables = Variables()
    try:
        if entry.url is not None and entry.command is None:
            _check_kind(entry, _HTTP_KINDS, "http")
            headers = {name: variables.fill(value) for name, value in (entry.headers or {}).items()}
            url = variables.fill(entry.url)
            return Http(url, headers=headers, allow_insecure=allow_insecure, taken=tuple(variables.taken))
        if entry.command is not None and entry.url is None:
            _check_kind(entry, {"stdio"}, "stdio")
            return _from_command(entry, entry.command, variables)
    except UsageError as error:
        raise UsageError(f"{what} cannot be used. {error}") from None
    raise UsageError(f"{what} cannot be used. Give it either a 'command' to start, or a 'url' to connect to.")


def _check_kind(entry: _Entry, allowed: Collection[str], usual: str) -> None:
    kind = entry.type or entry.transport
    if kind is not None and kind not in allowed:
        raise UsageError(f"The type {kind[:40]!r} does not fit; write {usual!r}, or leave it out.")


def _from_command(entry: _Entry, command: str | list[str], variables: Variables) -> Command:
    env = {name: variables.fill(value) for name, value in (entry.env or {}).items()}
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"It has the variable {name[:60]!r}, which no environment can hold; remove '=' and NUL.")
    variables.own = env
    written = _words([*([command] if isinstance(command, str) else command), *(entry.args or ())])
    words = tuple(map(variables.fill, written))
    folder = None if entry.cwd is None else variables.fill(entry.cwd)
    shown = () if words == written else written
    return Command(words, env=env, cwd=folder, written=shown, taken=tuple(variables.taken))


# --- the parts of a target


def _words(words: Sequence[Any]) -> tuple[str, ...]:
    found = tuple(str(word) if isinstance(word, Path) else word for word in words)
    if not all(isinstance(word, str) and "\0" not in word for word in found):
        raise UsageError("The command cannot be started: every part of a command is text, without NUL characters.")
    if not found or not found[0].strip():
        raise UsageError("The command is empty; name the program to start, such as ['python', 'server.py'].")
    return found


def _servers(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for word in _SERVERS:
        servers = config.get(word)
        if _is_mapping(servers) and servers:
            return servers
    raise UsageError('The configuration names no server; it needs "mcpServers": {"name": {"command": ...}}.')


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    if len(data) > _MAX_CONFIG_BYTES:
        raise UsageError(f"The configuration {path} is larger than {_MAX_CONFIG_BYTES} bytes; is it the right file?")
    try:
        config = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"The configuration {path} is not JSON: {error}.") from None
    if not _is_mapping(config):
        raise UsageError(f"The configuration {path} is {kind_of(config)}; it needs to be an object with 'mcpServers'.")
    return config


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


_VARIABLE = re.compile(r"\$\{(?:(?P<kind>[A-Za-z]+):)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<other>[^}]*))?\}")


@dataclass(slots=True)
class Variables:
    """Replaces variables such as `${NAME}` in the texts of one configuration entry.

    >>> Variables({"DAY": "today"}).fill("${DAY}, ${env:NO_SUCH_HOUR:-noon}")
    'today, noon'
    """

    own: Mapping[str, str] = field(default_factory=dict[str, str])  # the entry's `env`, searched before the environment
    taken: dict[str, None] = field(default_factory=dict[str, None])  # names of variables from the environment

    def fill(self, text: str) -> str:
        """Return the text with all variables replaced. Raises UsageError if a variable has no value and no default."""
        return _VARIABLE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        name, other = found["name"], found["other"]
        if found["kind"] not in (None, "env"):
            raise UsageError(f"It has {found[0][:60]!r}, which only some editors can replace; write ${{NAME}} instead.")
        value = self.own.get(name)
        if value is None and (value := os.environ.get(name)):
            self.taken[name] = None
        if value:
            return value
        if other is None and value is None:
            raise UsageError(f"It needs the variable {name[:60]!r} of the environment, which is not set.")
        return other or ""
