"""Define `RedisBackend`: options, start and close, and the parts of the backend."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from weft.backends import Bus, Hear, Log, Sets, Store, Unsubscribe
from weft.backends.redis.bus import RedisBus
from weft.backends.redis.checks import Finding, check_servers, reach, try_out
from weft.backends.redis.commands import Commands, RedisFailure
from weft.backends.redis.servers import Address, parse_url
from weft.backends.redis.store import Keys, RedisLog, RedisSets, RedisStore
from weft.errors import BackendUnavailable, StartError, UsageError

WATCH_SECONDS = 1.0  # Pause between two questions to Sentinels for the current master.

log = logging.getLogger("weft.redis")


class RedisUnreachable(StartError, BackendUnavailable):
    """Redis cannot be reached at the start. A later start may succeed."""


class _Topics:
    """The bus of the interface, with topics instead of channels of Redis."""

    def __init__(self, bus: Callable[[], RedisBus], channels: Keys) -> None:
        self._bus = bus
        self._channels = channels

    async def publish(self, topic: str, message: bytes) -> int:
        return await self._bus().publish(self._channels(topic), message)

    async def subscribe(self, topic: str, hear: Hear, missed: Callable[[], None] | None = None) -> Unsubscribe:
        return await self._bus().subscribe(self._channels(topic), hear, missed)


class _Parts:
    """The parts of the interface, for commands and a bus that may change when the backend is started again."""

    def __init__(self, commands: Callable[[], Commands], bus: Callable[[], RedisBus], prefix: str, db: int) -> None:
        keys = Keys(prefix)
        self.store: Store = RedisStore(commands, keys)
        self.log: Log = RedisLog(commands, keys)
        self.sets: Sets = RedisSets(commands, keys)
        # Databases of one server have different keys, but the same channels.
        self.bus: Bus = _Topics(bus, Keys(f"{prefix}{db}:") if db else keys)


class _Running:
    """The connections of a started backend. They belong to one event loop."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.bus = RedisBus(commands)
        self.loop = asyncio.get_running_loop()
        has_sentinels = commands.servers.kind == "sentinel"
        self._watching = asyncio.create_task(self._watch_master()) if has_sentinels else None

    async def _watch_master(self) -> None:
        """Leave a master that Sentinels have replaced. It may accept writes for some seconds, which are lost."""
        master: Address | None = None
        while True:
            with contextlib.suppress(*RedisFailure):
                found = await self.commands.servers.find_master()
                if master is not None and found != master:
                    log.warning("Redis has a new master, %s. Connecting to it.", found)
                    self.commands.renew()
                    self.bus.renew()
                master = found
            await asyncio.sleep(WATCH_SECONDS)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.bus.close()
        await self.commands.close()


class RedisBackend:
    """A backend in Redis 7 or newer, or in Valkey, for workers on any number of machines.

    The URL names a server, Sentinels or a cluster:

    - `redis://USER:PASSWORD@host:6379/0`, with TLS `rediss://`, or `unix:///path/to/socket`
    - `redis+sentinel://USER:PASSWORD@host1:26379,host2:26379/mymaster/0`
    - `redis+cluster://USER:PASSWORD@host1:6379,host2:6379`

    `valkey` can be written instead of `redis`. Options for TLS follow after `?`, such as `ssl_ca_certs`,
    `ssl_certfile`, `ssl_keyfile` and `ssl_check_hostname`. All keys and channels in Redis begin with `prefix`. If Redis
    cannot be reached, an operation is repeated for `timeout` seconds before it raises BackendUnavailable. `connections`
    is the number of connections to each server for commands; there is one more for messages. After `close`, operations
    raise BackendUnavailable until `start` is called again.

    >>> RedisBackend("rediss://me:secret@redis.example:6380/2")
    RedisBackend('rediss://redis.example:6380/2', prefix='weft:')
    """

    is_local = False

    def __init__(self, url: str, *, prefix: str = "weft:", timeout: float = 10.0, connections: int = 4) -> None:
        if "{" in prefix:
            raise UsageError("The prefix of a Redis backend contains '{', which has a meaning in a cluster. Remove it.")
        if timeout <= 0 or connections < 1:
            raise UsageError("A Redis backend needs a timeout above 0 and at least 1 connection.")
        self._servers = parse_url(url)
        self._prefix = prefix
        self._timeout = timeout
        self._connections = connections
        self._users = 0  # how many users have called `start`, and not `close`
        self._opening: asyncio.Task[None] | None = None  # connects and checks
        self._running: _Running | None = None
        self._is_closed = False  # whether the last user has called `close`, and no user has called `start` since
        parts = _Parts(lambda: self._current().commands, lambda: self._current().bus, prefix, self._servers.db)
        self.store, self.log, self.sets, self.bus = parts.store, parts.log, parts.sets, parts.bus

    def __repr__(self) -> str:
        return f"RedisBackend({self._servers.shown!r}, prefix={self._prefix!r})"

    @property
    def shown(self) -> str:
        """The URL without user, password and options, and the prefix, to show to people."""
        return f"{self._servers.shown} (prefix {self._prefix!r})"

    async def start(self) -> None:
        """Connect, and check that the server can be used. Raises StartError with the remedy."""
        self._is_closed = False
        running = self._current()
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(running))
        self._users += 1
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            await self._leave()
            raise

    async def ping(self) -> None:
        """Return if Redis answers now. Raises BackendUnavailable."""
        await self._current().commands.ping()

    async def close(self) -> None:
        """Close all connections, if no other user has started this backend."""
        self._is_closed = self._users <= 1
        await self._leave()

    async def _leave(self) -> None:
        """Count one user less. Close all connections after the last one."""
        self._users = max(self._users - 1, 0)
        opening, running = self._opening, self._running
        if self._users or running is None:
            return
        self._opening = self._running = None
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        await running.close()

    async def diagnose(self) -> list[Finding]:
        """Check everything about the server that can be checked, and return what was found. This takes a second.

        The backend need not be started. All findings say what was found; those that are not "ok" say what to do.
        """
        running = _Running(self._make_commands())
        try:
            return await self._check(running)
        finally:
            await running.close()

    async def _open(self, running: _Running) -> None:
        found = await self._check(running)
        for finding in found:
            if finding.level == "error":
                error = RedisUnreachable if finding.is_away else StartError
                raise error(f"The backend cannot be used. {finding}")
        for finding in found:
            if finding.level == "warning":
                log.log(logging.INFO if finding.is_minor else logging.WARNING, "%s", finding)

    async def _check(self, running: _Running) -> list[Finding]:
        found = [await reach(running.commands, self._timeout, self._prefix)]
        if found[0].level != "error":
            found += await check_servers(running.commands, self._prefix)
        if all(finding.level != "error" for finding in found):
            parts = _Parts(lambda: running.commands, lambda: running.bus, self._prefix, self._servers.db)
            found += await try_out(self._servers, parts, self._prefix)
        return found

    def _make_commands(self) -> Commands:
        return Commands(self._servers, timeout=self._timeout, connections=self._connections)

    def _current(self) -> _Running:
        """Return the connections of this event loop. They are opened when they are first used.

        Raises BackendUnavailable if the backend was closed. What still runs then must not open connections again.
        """
        if self._is_closed:
            raise BackendUnavailable("The Redis backend was closed.")
        if self._running is not None and self._running.loop.is_closed():  # its users have ended without `close`
            self._users, self._opening, self._running = 0, None, None
        if self._running is None:
            self._running = _Running(self._make_commands())
        return self._running
