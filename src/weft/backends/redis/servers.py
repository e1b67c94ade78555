"""Read the URL of a Redis backend, and open connections to the servers that it names.

A URL names one server, some Sentinels that know the current master, or some nodes of a cluster. It can contain a
password. So no exception and no log line shows the URL; `Servers.shown` is the URL without secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Connection as TcpConnection
from redis.asyncio import SSLConnection, UnixDomainSocketConnection

from weft.errors import UsageError
from weft.protocol.names import printable

CONNECT_SECONDS = 2.0  # Timeout of connecting to a server.
SENTINEL_SECONDS = 1.0  # Timeout of asking one Sentinel; then the next is asked.

_REDIS_PORT, _SENTINEL_PORT = 6379, 26379

_Kind: TypeAlias = Literal["single", "sentinel", "cluster"]
_KINDS: Mapping[str, _Kind] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}  # by the end of the scheme
_EXAMPLES: Mapping[_Kind, str] = {
    "single": "redis://USER:PASSWORD@localhost:6379/0 (or rediss:// for TLS, or unix:///path/to/socket)",
    "sentinel": "redis+sentinel://USER:PASSWORD@host1:26379,host2:26379/mymaster/0",
    "cluster": "redis+cluster://USER:PASSWORD@host1:6379,host2:6379",
}
_TEXT_OPTIONS = frozenset({"username", "password", "client_name"})
_FILE_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_TLS_OPTIONS = _FILE_OPTIONS | {"ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers"}
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_OPTIONS = _TEXT_OPTIONS | _TLS_OPTIONS | _SENTINEL_OPTIONS | {"db"}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Address(NamedTuple):
    """Where a server listens. For a Unix socket, `host` is the path and `port` is 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection(Protocol):
    """What this room uses of a connection of the package redis."""

    async def connect(self) -> None:
        """Connect and log in."""
        ...

    async def disconnect(self, nowait: bool = False) -> None:  # noqa: FBT001 - as in the package redis
        """Close the connection."""
        ...

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Encode commands."""
        ...

    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None:  # noqa: FBT001
        """Send encoded commands."""
        ...

    async def read_response(self) -> Any:
        """Return the next reply, or raise it if it is an error."""
        ...


class UnknownMaster(redis_errors.ConnectionError):
    """The Sentinels do not know the master of the URL. They may only have started."""

    def __init__(self, master: str, known: Iterable[str]) -> None:
        Exception.__init__(self, f"No Sentinel knows a master named {master!r}")
        self.known = sorted(known)  # names of the masters that they know


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that a URL names, and how to connect to them."""

    kind: _Kind
    seeds: tuple[Address, ...]  # the server, the Sentinels, or some nodes of the cluster
    shown: str  # the URL without user name, password and options
    db: int = 0
    master: str = ""  # name of the master, for Sentinels
    is_unix: bool = False
    is_tls: bool = False
    has_password: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)  # arguments of a connection
    sentinel_options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @contextlib.asynccontextmanager
    async def connected(self, address: Address | None = None) -> AsyncGenerator[Connection]:
        """Open a connection for one block."""
        connection = await self.connect(address)
        try:
            yield connection
        finally:
            await close(connection)

    async def connect(self, address: Address | None = None) -> Connection:
        """Return a new connection to a node of the cluster, or to the server, or to the current master.

        Raises exceptions of the package redis.
        """
        if self.kind == "cluster":
            return await self._connect(address or self.seeds[0], self.options)
        if self.kind == "single":
            return await self._connect(self.seeds[0], self.options)
        connection = await self._connect(await self.find_master(), self.options)
        try:
            role: Any = await ask(connection, "ROLE")
        except redis_errors.NoPermissionError:
            return connection
        except BaseException:
            await close(connection)
            raise
        if role[0] != b"master":  # a failover is not finished
            await close(connection)
            raise redis_errors.ConnectionError("Sentinel names a master that is a replica")
        return connection

    async def find_master(self) -> Address:
        """Ask the Sentinels for the address of the master, one after another."""
        failure: Exception | None = None  # of the Sentinels that did not answer
        unknown: Exception | None = None  # if a Sentinel answered
        for sentinel in self.seeds:
            try:
                async with asyncio.timeout(SENTINEL_SECONDS):
                    connection = await self._connect(sentinel, self.sentinel_options)
                    try:
                        found = await ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master)
                        names = [] if found else await _master_names(connection)
                    finally:
                        await close(connection)
            except (redis_errors.RedisError, OSError) as error:
                if not isinstance(failure, redis_errors.AuthenticationError):  # the most helpful failure
                    failure = error
            else:
                if found:
                    return Address(found[0].decode(), int(found[1]))
                unknown = UnknownMaster(self.master, names)
        raise unknown or failure or redis_errors.ConnectionError("The URL names no Sentinel")

    async def _connect(self, address: Address, options: Mapping[str, Any]) -> Connection:
        connection = self._connection(address, options)
        try:
            await connection.connect()
        except BaseException as error:
            await close(connection)
            if isinstance(error.__cause__, redis_errors.RedisError):  # the package hides it, for Unix sockets
                raise error.__cause__ from None
            raise
        return connection

    def _connection(self, address: Address, options: Mapping[str, Any]) -> Connection:
        """Return a connection that is not connected yet."""
        if self.is_unix:
            return cast("Connection", UnixDomainSocketConnection(path=address.host, **options))
        cls = SSLConnection if self.is_tls else TcpConnection
        return cast("Connection", cls(host=address.host, port=address.port, socket_keepalive=True, **options))

    @property
    def user(self) -> str:
        """The user of the URL, as the command ACL names it."""
        return self.options.get("username") or "default"

    def check(self) -> None:
        """Raise TypeError if the installed version of the package redis does not know an option."""
        self._connection(self.seeds[0], self.options)


async def ask(connection: Connection, *command: Any) -> Any:
    """Send one command, and return its reply. Raises ResponseError if the reply is an error."""
    await connection.send_packed_command(connection.pack_commands([command]), check_health=False)
    return await connection.read_response()


async def _master_names(sentinel: Connection) -> list[str]:
    """Return the names of the masters that a Sentinel knows, or nothing if it does not tell them."""
    try:
        masters: list[list[bytes]] = await ask(sentinel, "SENTINEL", "MASTERS")
        return [printable(facts[facts.index(b"name") + 1].decode("utf-8", "replace"), "?") for facts in masters]
    except (redis_errors.ResponseError, ValueError):
        return []


async def close(connection: Connection) -> None:
    """Close a connection without waiting, whatever its state is."""
    with contextlib.suppress(redis_errors.RedisError, OSError):
        await connection.disconnect(nowait=True)


def parse_url(url: str) -> Servers:
    """Return the servers that a URL names. Raises UsageError, which does not show the URL.

    >>> parse_url("redis+sentinel://:secret@one,two:5000/mymaster/1").shown
    'redis+sentinel://one:26379,two:5000/mymaster/1'
    """
    scheme = url.partition("://")[0].lower()
    name, _, suffix = scheme.partition("+")
    kind = _KINDS.get(suffix)
    if name not in ("redis", "rediss", "valkey", "valkeys", "unix") or kind is None:
        raise _wrong("begins with a scheme that is not for Redis", "single")
    if name == "unix" and kind != "single":
        raise _wrong("names a Unix socket, which Sentinels and clusters do not have", kind)
    try:
        parts = urlsplit(f"redis://{url.partition('://')[2]}")  # the same rules for all schemes
    except ValueError:
        raise _wrong("cannot be read", kind) from None
    if parts.fragment:
        raise _wrong("contains '#'. Write %23 for a '#' in a password", kind)
    query = _read_query(parts, kind)
    is_tls = name in ("rediss", "valkeys")
    if not is_tls and _TLS_OPTIONS & query.keys():
        raise _wrong("has options for TLS, but its scheme is without TLS. Begin it with rediss", kind)
    seeds, master, db = _read_place(parts, query, kind, is_unix=name == "unix")
    options = _connection_options(parts, query, db, is_tls=is_tls)
    sentinel_options = {key: value for key, value in options.items() if key not in ("username", "password", "db")}
    for key in ("username", "password"):
        if value := query.get(f"sentinel_{key}"):
            sentinel_options[key] = value
    places = ",".join(map(str, seeds)) if name != "unix" else seeds[0].host
    path = "".join([f"/{master}" if master else "", f"/{db}" if db else ""]) if name != "unix" else ""
    servers = Servers(
        kind=kind,
        seeds=seeds,
        shown=f"{scheme}://{places}{path}",
        db=db,
        master=master,
        is_unix=name == "unix",
        is_tls=is_tls,
        has_password=bool(options.get("password")),
        options=options,
        sentinel_options=sentinel_options,
    )
    try:
        servers.check()
    except (TypeError, ValueError, redis_errors.RedisError):
        raise _wrong("has an option that the installed version of the package redis does not know", kind) from None
    return servers


def _wrong(what: str, kind: _Kind) -> UsageError:
    """Return the exception for a wrong URL. It must not show parts of the URL, which can be the password."""
    return UsageError(
        f"The URL of the backend {what}. Write {_EXAMPLES[kind]}. Percent-encode special characters of the password "
        "(urllib.parse.quote)."
    )


def _read_query(parts: SplitResult, kind: _Kind) -> dict[str, str]:
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = _OPTIONS if kind == "sentinel" else _OPTIONS - _SENTINEL_OPTIONS
    if not query.keys() <= known:
        which = _shown_option(parts.query, query.keys() - known)
        raise _wrong(f"has an unknown option{which} after '?'. Known options are {', '.join(sorted(known))}", kind)
    for name in _FILE_OPTIONS & query.keys():
        if not Path(query[name]).is_file():
            raise _wrong(f"has the option {name}, but there is no such file", kind)
    if query.get("ssl_cert_reqs", "none") not in ("none", "optional", "required"):
        raise _wrong("has an unknown value of ssl_cert_reqs. Write none, optional or required", kind)
    if query.get("ssl_check_hostname", "1").lower() not in _YES + _NO:
        raise _wrong("has an unknown value of ssl_check_hostname. Write true or false", kind)
    return query


def _shown_option(query: str, unknown: Iterable[str]) -> str:
    """Return the name of an unknown option, or "" if it could be a part of a password with a '?' or a '&'."""
    name = min(unknown)
    if name in _OPTIONS:
        return f" {name!r}"
    is_name = name.isidentifier() and len(name) <= 30 and f"{name}=" in query
    return f" {name!r}" if is_name and "@" not in query and "password=" not in query else ""


def _read_place(
    parts: SplitResult, query: Mapping[str, str], kind: _Kind, *, is_unix: bool
) -> tuple[tuple[Address, ...], str, int]:
    """Return the addresses, the name of the master and the number of the database."""
    if is_unix:
        if not parts.path.strip("/"):
            raise _wrong("names no Unix socket", kind)
        return (Address(unquote(parts.path), 0),), "", _read_number(query.get("db", "0"), kind)
    hosts = parts.netloc.rpartition("@")[2]
    default = _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT
    seeds = tuple(_read_address(host, default, kind) for host in hosts.split(","))
    if len(seeds) > 1 and kind == "single":
        raise _wrong("names several servers, but neither a cluster nor Sentinels", "cluster")
    words = [unquote(word) for word in parts.path.strip("/").split("/") if word]
    master = words.pop(0) if kind == "sentinel" and words else ""
    if kind == "sentinel" and not master:
        raise _wrong("does not say the name of the master", kind)
    if len(words) > 1:
        raise _wrong("has more than the number of a database after the servers", kind)
    db = _read_number(query.get("db", words[0] if words else "0"), kind)
    if kind == "cluster" and db:
        raise _wrong("names a database, but a cluster has only database 0", kind)
    return seeds, master, db


def _read_address(text: str, default: int, kind: _Kind) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port or default
    except ValueError:
        raise _wrong("has a port that is not a number below 65536", kind) from None
    if not parts.hostname:
        raise _wrong("names no host", kind)
    return Address(unquote(parts.hostname), port)


def _read_number(text: str, kind: _Kind) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise _wrong("has a database that is not a number", kind)
    return int(text)


def _connection_options(parts: SplitResult, query: Mapping[str, str], db: int, *, is_tls: bool) -> dict[str, Any]:
    """Return the arguments for connections of the package redis, except the address."""
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    options: dict[str, Any] = {name: query[name] for name in _TEXT_OPTIONS & query.keys()}
    options |= {name: unquote(text) for name, text in (("username", user), ("password", password)) if text}
    if db:
        options["db"] = db
    if is_tls:
        options |= {name: query[name] for name in _TLS_OPTIONS & query.keys()}
        verifies = query.get("ssl_cert_reqs", "required") != "none"
        wanted = query.get("ssl_check_hostname", "true").lower() in _YES
        options["ssl_check_hostname"] = verifies and wanted  # version 5 of the package does not check by default
    # Batches of commands have one timeout for all their replies (`commands`), and the bus waits without one.
    return options | {"protocol": 2, "socket_timeout": None, "socket_connect_timeout": CONNECT_SECONDS}
