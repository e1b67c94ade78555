"""Send commands to Redis in batches, and repeat commands that failed because Redis could not be reached.

Commands that wait at the same moment are sent together, as one pipeline, on one of a few connections. A command that
fails for a passing reason (the connection broke, a failover is under way) is repeated with growing pauses until its
deadline. In a cluster, each command is sent to the node that has its key.

A command whose reply was lost may have been executed. So a repeated command must have the same effect and the same
reply as if it had run once, and scripts that need it are told that they are repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis_errors
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from weft.backends.redis.servers import Address, Connection, Servers, ask, close
from weft.errors import BackendUnavailable
from weft.protocol.names import printable

ATTEMPT_SECONDS = 3.0  # Timeout of one batch, with connecting.
MOST_IN_BATCH = 128  # Commands of one batch.
MOST_WAITING = 10_000  # Commands that wait for a connection to one server; more are refused.
FIRST_PAUSE = 0.02  # Seconds before the first repetition; each following pause is twice as long.
LONGEST_PAUSE = 1.0  # Longest pause, in seconds.
REFRESH_SECONDS = 0.1  # Shortest time between two questions for the nodes of a cluster.
_MOST_REDIRECTS = 5  # Redirects of one command in a cluster without a pause.
_MOST_REASON = 200  # Characters of an error of Redis that are shown.

# Some versions of the package redis remove the first word of these errors, and have a class instead.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.ReadOnlyError, "READONLY"),
    (redis_errors.BusyLoadingError, "LOADING"),
    (redis_errors.MovedError, "MOVED"),  # is an AskError, too
    (redis_errors.AskError, "ASK"),
    (redis_errors.MasterDownError, "MASTERDOWN"),
    (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.TryAgainError, "TRYAGAIN"),
)
# First words of errors that are over after a while. The command was not executed.
_PASSING = frozenset({"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS"})

RedisFailure = (redis_errors.RedisError, OSError)  # what a failed exchange with Redis raises, timeouts included


def pause_seconds(failures: int) -> float:
    """Return how long to wait after so many failures: twice as long each time, and not the same for all clients."""
    longest = min(FIRST_PAUSE * 2 ** min(failures - 1, 20), LONGEST_PAUSE)
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret


def error_code(error: BaseException) -> str:
    """Return the first word of an error reply, such as "MOVED", or "" if the exception is not such a reply."""
    for cls, code in _CODES:
        if isinstance(error, cls):
            return code
    return str(error).partition(" ")[0] if isinstance(error, redis_errors.ResponseError) else ""


def moved_slot(error: BaseException) -> int:
    """Return the slot in the error MOVED or ASK, such as 3999 in "MOVED 3999 127.0.0.1:6381"."""
    return int(str(error).split(" ")[-2])


def is_passing(error: BaseException) -> bool:
    """Return whether a command that failed with this error may succeed if it is repeated."""
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return False
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return True
    return error_code(error) in _PASSING


def reason_of(error: BaseException) -> str:
    """Return the text of an error for people, without a full stop. It contains no password and no key."""
    if isinstance(error, TimeoutError | redis_errors.TimeoutError):
        return "no answer in time"
    text = str(error).partition(", with args")[0]  # after this, Redis shows arguments of the command
    return printable(text[:_MOST_REASON], "?").strip().rstrip(".") or type(error).__name__


def password_problem(servers: Servers, error: BaseException) -> tuple[str, str]:
    """Return what is wrong with the user and the password of the URL, and what to do. `error` refused them."""
    where = f"Redis at {servers.shown}"
    if "without any password" in str(error):
        return f"{where} needs no password.", "Remove the password from the URL."
    remedy = "Write user and password in the URL: redis://USER:PASSWORD@…, special characters percent-encoded."
    if servers.kind == "sentinel":
        remedy += " Sentinels with a password of their own need ?sentinel_password=… at the end of the URL."
    if not servers.has_password:
        return f"{where} requires a password, and the URL has none.", remedy
    return f"{where} refused the user or the password of the URL.", remedy


@dataclass(slots=True, eq=False)
class _Waiting:
    """A command that waits for its reply. Errors are replies, too: exceptions as results are not raised twice."""

    command: Sequence[Any]
    reply: asyncio.Future[Any]
    is_asking: bool = False  # whether a cluster has redirected the command by ASK

    def answer(self, reply: Any) -> None:
        if not self.reply.done():  # otherwise its caller was cancelled
            self.reply.set_result(reply)


class _Node:
    """One server: the commands that wait for it, and tasks with a connection each that send them."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], connections: int) -> None:
        self._connect = connect
        self._most_workers = connections
        self._waiting: deque[_Waiting] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []  # idle workers wait for these
        self._is_waking = False  # whether a worker is about to look for commands
        self._broken = 0  # how often a connection broke; then connections that are older are not used any more

    def send(self, command: Sequence[Any], *, is_asking: bool = False) -> asyncio.Future[Any]:
        """Queue a command. The result of the future is its reply or an exception."""
        if len(self._waiting) >= MOST_WAITING:
            raise BackendUnavailable(f"{MOST_WAITING:,} commands wait for Redis already. Redis is too slow or hangs.")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(command, reply, is_asking))
        self._wake_worker()
        return reply

    def renew(self) -> None:
        """Use new connections for all commands that are not sent yet."""
        self._broken += 1

    async def close(self) -> None:
        """End all connections. Commands that still wait fail."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)
        while self._waiting:
            self._waiting.popleft().answer(redis_errors.ConnectionError("The connection was closed"))

    def _wake_worker(self) -> None:
        """Let one more worker look for commands, unless one is about to."""
        if self._is_waking:
            return
        if self._idle:
            self._is_waking = True
            self._idle.pop().set_result(None)
        elif len(self._workers) < self._most_workers:
            self._is_waking = True
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        """Send waiting commands over one connection, batch by batch."""
        connection: Connection | None = None
        age = 0  # the value of `_broken` when the connection was opened
        batch: list[_Waiting] = []
        try:
            while True:
                self._is_waking = False
                batch = self._next_batch()
                if not batch:
                    idle = asyncio.get_running_loop().create_future()
                    self._idle.append(idle)
                    await idle
                    continue
                if self._waiting:
                    self._wake_worker()
                if connection is not None and age != self._broken:
                    await close(connection)
                    connection = None
                if connection is None:
                    age = self._broken
                connection = await self._exchange(connection, batch)
        finally:
            for waiting in batch:
                waiting.answer(redis_errors.ConnectionError("The connection was closed"))
            if connection is not None:
                await close(connection)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MOST_IN_BATCH:
            waiting = self._waiting.popleft()
            if not waiting.reply.done():
                batch.append(waiting)
        return batch

    async def _exchange(self, connection: Connection | None, batch: Sequence[_Waiting]) -> Connection | None:
        """Send a batch and answer each of its commands. Return the connection if it can be used again."""
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                if connection is None:
                    connection = await self._connect()
                commands = [part for waiting in batch for part in _parts(waiting)]
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                is_usable = True
                for waiting in batch:
                    if waiting.is_asking:
                        await _read(connection)
                    reply = await _read(connection)
                    # After a failover, a new connection leads to the new master.
                    is_usable = is_usable and not isinstance(reply, redis_errors.ReadOnlyError)
                    waiting.answer(reply)
        except RedisFailure as error:
            self.renew()
            for waiting in batch:
                waiting.answer(error)
            is_usable = False
        except BaseException:
            if connection is not None:
                await close(connection)
            raise
        if is_usable or connection is None:
            return connection
        await close(connection)
        return None


def _parts(waiting: _Waiting) -> list[Sequence[Any]]:
    return [("ASKING",), waiting.command] if waiting.is_asking else [waiting.command]


async def _read(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except redis_errors.ResponseError as error:
        return error


class Commands:
    """Sends commands to one server, to the master that Sentinels know, or to the nodes of a cluster.

    It belongs to one event loop, from the first command until `close`.
    """

    def __init__(self, servers: Servers, *, timeout: float, connections: int) -> None:
        self.servers = servers
        self.timeout = timeout  # seconds for which a command is repeated
        self.is_cluster = servers.kind == "cluster"
        self._connections = connections
        self._nodes: dict[Address, _Node] = {}
        self._slots: list[Address | None] = []  # the node of each slot of a cluster
        self._refreshing: asyncio.Task[None] | None = None  # asks for the nodes of the slots
        self._refreshed_at = -math.inf  # time at which the last question was answered, or not
        self._is_closed = False
        self._closing: set[asyncio.Task[None]] = set()  # tasks that close nodes that have left the cluster

    async def run(self, key: bytes, *command: Any, tells_repeats: bool = False) -> Any:
        """Send a command about one key, and return its reply. Raises BackendUnavailable.

        `tells_repeats` adds an argument to the command: b"" at first, b"1" if the command is repeated.
        """
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(self.timeout):
                reply = await self._send(self.address_of(key), (*command, b"") if tells_repeats else command)
                failures = 0
                while isinstance(reply, BaseException):
                    failure = reply
                    failures += 1
                    redirect = self.follow(failure)
                    if redirect is None and not is_passing(failure):
                        raise self.refused(failure) from failure
                    if redirect is None or failures > _MOST_REDIRECTS:
                        await asyncio.sleep(pause_seconds(failures))
                        await self.refresh()
                    reply = await self._send(
                        redirect or self.address_of(key),
                        (*command, b"1") if tells_repeats else command,
                        is_asking=error_code(failure) == "ASK",
                    )
                return reply
        except TimeoutError:
            raise self.unreachable(failure or TimeoutError()) from None

    async def ping(self) -> None:
        """Return if Redis answers now; of a cluster, one node suffices. Raises BackendUnavailable.

        If a node of a cluster is gone, only its keys cannot be used.
        """
        if self.is_cluster and not self._slots:
            try:
                await self.load_slots()
            except RedisFailure as error:
                raise self.unreachable(error, is_repeated=False) from None
        reply: Any = redis_errors.ConnectionError("No node of the cluster has keys")
        pings = [asyncio.ensure_future(self._ping(address)) for address in self.addresses]
        try:
            for ping in asyncio.as_completed(pings):
                reply = await ping
                if not isinstance(reply, BaseException):
                    return
        finally:
            for ping in pings:
                ping.cancel()
        raise self.unreachable(reply, is_repeated=False)

    async def _ping(self, address: Address) -> Any:
        """Return the reply of one server, or the exception."""
        try:
            reply = await self._send(address, ("PING",))
            # An idle connection may have broken long ago. After one failure, all connections are new.
            return await self._send(address, ("PING",)) if isinstance(reply, redis_errors.ConnectionError) else reply
        except BackendUnavailable as error:
            return error

    async def _send(self, address: Address | None, command: Sequence[Any], *, is_asking: bool = False) -> Any:
        if self._is_closed:
            raise BackendUnavailable("The Redis backend was closed.")
        if address is None:
            return redis_errors.ConnectionError("No node of the cluster has this key")
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(lambda: self.servers.connect(address), self._connections)
        return await node.send(command, is_asking=is_asking)

    def address_of(self, key: bytes) -> Address | None:
        """Return the server that has a key, or None if no node of the cluster has it."""
        if not self.is_cluster:
            return self.servers.seeds[0]
        return self._slots[key_slot(key)] if self._slots else None

    def follow(self, error: BaseException) -> Address | None:
        """Return the node to which the error MOVED or ASK leads, or None if it is another error."""
        code = error_code(error)
        if code not in ("MOVED", "ASK") or not self.is_cluster:
            return None
        slot, (host, _, port) = moved_slot(error), str(error).rpartition(" ")[2].rpartition(":")
        old = self._slots[slot]
        address = Address(host or (old.host if old else self.servers.seeds[0].host), int(port))
        if code == "MOVED":
            self._slots[slot] = address
            self._start_refresh()  # other slots may have moved, too
        return address

    async def refresh(self) -> None:
        """Ask which node of the cluster has which slots. If no node answers, nothing changes."""
        if self.is_cluster and not self._is_closed:
            await asyncio.wait([self._start_refresh()])

    def _start_refresh(self) -> asyncio.Task[None]:
        is_old = asyncio.get_running_loop().time() - self._refreshed_at >= REFRESH_SECONDS
        if self._refreshing is None or (self._refreshing.done() and is_old):
            self._refreshing = asyncio.create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        with contextlib.suppress(*RedisFailure):
            await self.load_slots()
        self._refreshed_at = asyncio.get_running_loop().time()

    async def load_slots(self) -> None:
        """Ask which node of the cluster has which slots. Raises the failure of the last node if no node answers."""
        known = [address for address in set(self._slots) if address is not None]
        random.shuffle(known)
        failure: Exception = redis_errors.ConnectionError("No node of the cluster answered")
        for address in dict.fromkeys([*known, *self.servers.seeds]):
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS), self.servers.connected(address) as connection:
                    ranges = await ask(connection, "CLUSTER", "SLOTS")
            except RedisFailure as error:
                failure = error
                continue
            if ranges:
                self._use_slots(ranges, address)
                return
            failure = redis_errors.ConnectionError(f"The node {address} is not in a cluster yet")
        raise failure

    def _use_slots(self, ranges: Sequence[Any], asked: Address) -> None:
        """Use the reply of CLUSTER SLOTS: first and last slot, the master, and its replicas, of each range."""
        slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, master, *_ in ranges:
            host = master[0].decode() if master[0] else asked.host
            slots[first : last + 1] = [Address(host, int(master[1]))] * (last + 1 - first)
        self._slots = slots
        for address in self._nodes.keys() - set(slots):
            closing = asyncio.create_task(self._nodes.pop(address).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def renew(self) -> None:
        """Use new connections for all commands that are not sent yet."""
        for node in self._nodes.values():
            node.renew()

    @property
    def addresses(self) -> list[Address]:
        """The server, or the masters of the cluster."""
        return sorted({address for address in self._slots if address}) if self.is_cluster else [self.servers.seeds[0]]

    async def close(self) -> None:
        """Close all connections. Commands that still wait fail."""
        self._is_closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._closing.add(self._refreshing)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))
        if self._closing:
            await asyncio.wait(self._closing)
        self._nodes.clear()

    def unreachable(self, error: BaseException, *, is_repeated: bool = True) -> BackendUnavailable:
        """Return the exception for a failure that did not pass in time, if the command was repeated."""
        if isinstance(error, redis_errors.AuthenticationError):
            return self.refused(error)
        tried = f", tried for {self.timeout:g} s" if is_repeated else ""
        return BackendUnavailable(
            f"Redis at {self.servers.shown} cannot be reached ({reason_of(error)}){tried}. "
            "Check that it runs, and that this machine can connect to it."
        )

    def refused(self, error: BaseException) -> BackendUnavailable:
        """Return the exception for a command or a connection that Redis has refused."""
        if isinstance(error, redis_errors.AuthenticationError):
            return BackendUnavailable(" ".join(password_problem(self.servers, error)))
        if "'maxmemory'" in str(error):
            return BackendUnavailable(f"Redis at {self.servers.shown} is full: {reason_of(error)}. Raise maxmemory.")
        return BackendUnavailable(
            f"Redis at {self.servers.shown} refused a command: {reason_of(error)}. Check its memory, and the rights of "
            "the user in the URL."
        )
