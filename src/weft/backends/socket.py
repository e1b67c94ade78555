"""Let the worker processes of one machine share a backend: the memory of the process that started them.

The parent process has a MemoryBackend and a BackendServer. Each worker has a SocketBackend, which sends every operation
to the parent over a socket, and waits for the answer. Each worker has a separate pair of sockets, so that nothing else
can connect.

Each message on a socket has four bytes with its length, and then a MessagePack array:

    request    number, operation, arguments, options    such as 7, "store.put", ["key", b"value"], {"ttl": 60}
    answer     number of the request, result, error (a text, or None)
    news       0, topic, a message of the bus
    gap        0, None, None: messages of the bus were dropped, because the worker did not read them

The requests of a worker are executed and answered in their order. Nothing waits in between: an operation on memory is
complete when its coroutine has run once, and a message of the bus is delivered in the callback that reads the socket. A
published message is written to the sockets of its subscribers before the publisher gets an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, TypeAlias

import msgspec

from weft.backends import Bus, Hear, Log, Sets, Store, Unsubscribe
from weft.backends.memory import MemoryBackend
from weft.errors import BackendUnavailable, StartError

__all__ = ["BackendServer", "SocketBackend"]

log = logging.getLogger("weft.backends")

ANSWER_SECONDS = 5.0  # how long a worker waits for an answer
PING_SECONDS = 1.0  # the same for `ping`
MOST_BYTES = 64 * 1024 * 1024  # longest message
MOST_UNSENT = 2 * MOST_BYTES  # bytes that wait until the other process reads; then messages of the bus are dropped
PAUSE_BYTES = 1024 * 1024  # while more bytes wait, the requests of this worker wait too
STALLED_SECONDS = 30.0  # a worker that does not read, or sends nothing after a message of the bus, is cut off then
_READ_BYTES = 64 * 1024
_LENGTH_BYTES = 4
_NEWS = 0  # stands for the number of a request in a message of the bus

_OPERATIONS = {  # of a MemoryBackend; a worker subscribes to topics by other means
    "store": ("get", "put", "swap", "touch", "delete", "take"),
    "log": ("append", "read", "last", "delete"),
    "sets": ("add", "remove", "names"),
    "bus": ("publish",),
}
_Operation: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
_Request: TypeAlias = tuple[int, str, list[Any], dict[str, Any]]
_Answer: TypeAlias = tuple[int, Any, Any]

_encode = msgspec.msgpack.Encoder().encode
_read_request = msgspec.msgpack.Decoder(_Request).decode
_read_answer = msgspec.msgpack.Decoder(_Answer).decode


class _Channel:
    """Sends and receives messages over a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None  # reads and writes the socket
        self._unread = bytearray()  # received bytes that are not processed yet
        self._unsent = bytearray()  # bytes that the socket has not accepted yet
        self._is_reading = False
        self._is_writing = False  # whether the event loop waits until the socket accepts more bytes
        self._sent_bytes = 0  # how many bytes the socket has accepted so far

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read and write the socket in an event loop."""
        self._loop = loop
        self._is_reading = True
        loop.add_reader(self._connection, self._read)

    def detach(self) -> None:
        """Stop reading and writing. The socket stays open."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
        self._loop = None
        self._is_reading = self._is_writing = False

    def receive(self, message: bytearray) -> None:
        """Process one message from the other process."""
        raise NotImplementedError

    def lose(self, why: str) -> None:
        """Stop using the connection, because it has ended."""
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        """Stop using the connection, because the other process uses it wrongly."""
        self.lose(why)

    def _put(self, message: bytes) -> None:
        """Add a message to the bytes that wait to be sent. Call `_flush` afterwards."""
        self._unsent += len(message).to_bytes(_LENGTH_BYTES, "big")
        self._unsent += message

    def _flush(self) -> None:
        """Write the waiting bytes, as far as the socket accepts them, and the rest when it accepts more."""
        assert self._loop is not None
        try:
            sent = self._connection.send(self._unsent)
            del self._unsent[:sent]
            self._sent_bytes += sent
        except BlockingIOError:
            pass
        except OSError as error:
            self.lose(str(error))
            return
        if self._unsent and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._connection, self._flush)
        elif self._is_writing and not self._unsent:
            self._is_writing = False
            self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(str(error))
            return
        if data:
            self._unread += data
            self._process()
        else:
            self.lose("the other process has closed the connection")

    def _process(self) -> None:
        """Process the complete messages among the received bytes. A message that cannot be read ends the connection."""
        unread, at = self._unread, 0
        while self._is_reading and len(unread) - at >= _LENGTH_BYTES:
            begin = at + _LENGTH_BYTES
            end = begin + int.from_bytes(unread[at:begin], "big")
            if end - begin > MOST_BYTES:
                self.refuse(f"a message of {end - begin} bytes is too long")
                break
            if end > len(unread):
                break
            try:
                self.receive(unread[begin:end])
            except Exception as error:  # noqa: BLE001 - such as a RecursionError, if a value is nested too deeply
                self.refuse(f"a message cannot be read: {type(error).__name__}: {error}")
            at = end
        del unread[:at]


class SocketBackend:
    """A backend in the memory of the parent process, which serves it at the other end of a socket.

    The connection is used in the event loop that is running at the first use.
    """

    is_local = False

    def __init__(self, connection: socket.socket) -> None:
        self._client = _Client(connection)
        self._users = 0  # how often `start` was called without `close`
        self.store: Store = _SocketStore(self._client)
        self.log: Log = _SocketLog(self._client)
        self.sets: Sets = _SocketSets(self._client)
        self.bus: Bus = _SocketBus(self._client)

    async def start(self) -> None:
        """Check that the parent process answers. Raises StartError if it does not."""
        self._users += 1
        try:
            await self._client.request("ping")
        except BackendUnavailable as error:
            await self.close()
            raise StartError(f"{error} Start the server again.") from None

    async def ping(self) -> None:
        """Return if the parent process answers within a second. Raises BackendUnavailable if it does not."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._client.request("ping")
        except TimeoutError:
            raise _silent(PING_SECONDS) from None

    async def close(self) -> None:
        """Stop reading the socket after the last user has called this method. The socket ends with the process."""
        self._users = max(self._users - 1, 0)
        if not self._users:
            self._client.release()


class _Client(_Channel):
    """The worker's end of a socket: sends requests, and finds the request of each answer."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._numbers = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], float]] = {}  # each request, and when its time is over
        self._timer: asyncio.TimerHandle | None = None  # set to the time when the oldest request is too old
        self._gone: str | None = None  # why the connection has ended
        # Subscribers in this process: `hear`, and `missed` if there is one.
        self.topics: dict[str, dict[object, tuple[Hear, Callable[[], None] | None]]] = {}

    async def request(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Send an operation to the parent process, and return its result."""
        loop = asyncio.get_running_loop()
        if self._gone is not None:
            raise BackendUnavailable(self._gone)
        if loop is not self._loop:
            self.release()
            self.attach(loop)
        number, answer = next(self._numbers), loop.create_future()
        message = _encode((number, operation, arguments, options))
        if len(message) > MOST_BYTES or len(self._unsent) + len(message) > MOST_UNSENT:
            raise BackendUnavailable(f"{operation} has {len(message)} bytes, which are too many to send now.")
        self._waiting[number] = answer, loop.time() + ANSWER_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(ANSWER_SECONDS, self._check_answers)
        self._put(message)
        self._flush()
        return await answer

    def receive(self, message: bytearray) -> None:
        number, result, error = _read_answer(message)
        if number == _NEWS:
            if result is None:
                self._tell_missed()
            else:
                self._deliver(result, error)
            return
        answer, _ = self._waiting.pop(number, (None, 0.0))
        if answer is None or answer.done():  # the caller waits no more
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(BackendUnavailable(error))

    def _deliver(self, topic: str, message: bytes) -> None:
        for hear, _ in list(self.topics.get(topic, {}).values()):
            try:
                hear(message)
            except Exception:
                log.exception("a subscriber of a topic failed")

    def _tell_missed(self) -> None:
        log.warning("This worker was busy for too long, and has missed messages of others. It reads everything again.")
        for missed in [missed for topic in self.topics.values() for _, missed in topic.values() if missed is not None]:
            try:
                missed()
            except Exception:
                log.exception("a subscriber of a topic failed")

    def _check_answers(self) -> None:
        """Fail requests that have waited for too long. Requests are stored by age, the oldest first."""
        assert self._loop is not None
        now, self._timer = self._loop.time(), None
        for number, (answer, until) in list(self._waiting.items()):
            if until > now:
                self._timer = self._loop.call_at(until, self._check_answers)
                return
            del self._waiting[number]
            if not answer.done():
                answer.set_exception(_silent(ANSWER_SECONDS))

    def lose(self, why: str) -> None:
        self._gone = f"The process that started this worker is gone, so this worker stops ({why})."
        self.release()

    def release(self) -> None:
        """Stop using the event loop, and fail the requests that have no answer."""
        self.detach()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for answer, _ in waiting.values():
            if not answer.done() and not answer.get_loop().is_closed():
                answer.set_exception(BackendUnavailable(self._gone or "The connection to the backend was closed."))


def _silent(seconds: float) -> BackendUnavailable:
    return BackendUnavailable(f"The process that shares its memory with this worker did not answer for {seconds:g} s.")


class _SocketStore:
    def __init__(self, client: _Client) -> None:
        self._request = client.request

    async def get(self, key: str) -> bytes | None:
        value: bytes | None = await self._request("store.get", key)
        return value

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        await self._request("store.put", key, value, ttl=ttl)

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        is_stored: bool = await self._request("store.swap", key, expected, value, ttl=ttl)
        return is_stored

    async def touch(self, key: str, *, ttl: float) -> bool:
        existed: bool = await self._request("store.touch", key, ttl=ttl)
        return existed

    async def delete(self, key: str) -> bool:
        existed: bool = await self._request("store.delete", key)
        return existed

    async def take(self, key: str, *, count: int, seconds: float) -> float:
        wait: float = await self._request("store.take", key, count=count, seconds=seconds)
        return wait


class _SocketLog:
    def __init__(self, client: _Client) -> None:
        self._request = client.request

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        number: int = await self._request("log.append", key, entry, ttl=ttl, most=most)
        return number

    async def read(self, key: str, after: int, *, most: int | None = None) -> Sequence[tuple[int, bytes]] | None:
        entries: list[list[Any]] | None = await self._request("log.read", key, after, most=most)
        return None if entries is None else [(number, entry) for number, entry in entries]

    async def last(self, key: str) -> int:
        number: int = await self._request("log.last", key)
        return number

    async def delete(self, key: str) -> None:
        await self._request("log.delete", key)


class _SocketSets:
    def __init__(self, client: _Client) -> None:
        self._request = client.request

    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        is_added: bool = await self._request("sets.add", key, name, ttl=ttl, most=most)
        return is_added

    async def remove(self, key: str, name: str) -> bool:
        existed: bool = await self._request("sets.remove", key, name)
        return existed

    async def names(self, key: str) -> Sequence[str]:
        names: list[str] = await self._request("sets.names", key)
        return names


class _SocketBus:
    def __init__(self, client: _Client) -> None:
        self._client = client

    async def publish(self, topic: str, message: bytes) -> int:
        subscribers: int = await self._client.request("bus.publish", topic, message)
        return subscribers

    async def subscribe(self, topic: str, hear: Hear, missed: Callable[[], None] | None = None) -> Unsubscribe:
        mark = object()  # a unique key, because one function may subscribe twice
        # Before the request: the first message may arrive together with its answer.
        self._client.topics.setdefault(topic, {})[mark] = hear, missed

        async def unsubscribe() -> None:
            subscribers = self._client.topics.get(topic, {})
            if subscribers.pop(mark, None) is not None and not subscribers:
                del self._client.topics[topic]
                with contextlib.suppress(BackendUnavailable):  # then the parent has forgotten this worker
                    await self._client.request("unsubscribe", topic)

        try:
            await self._client.request("subscribe", topic)  # the parent ignores a repetition
        except BaseException:
            await unsubscribe()
            raise
        return unsubscribe


class BackendServer:
    """Serves a backend in memory to other processes, in the event loop of this process."""

    def __init__(self, memory: MemoryBackend) -> None:
        self._memory = memory
        self._connections: set[_Connection] = set()

    def serve(
        self,
        connection: socket.socket,
        cut: Callable[[], None] = lambda: None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """Serve a worker at the other end of a socket, until one side closes it. The socket now belongs to the server.

        `cut` is called if the server closes the connection, because the worker sends nonsense or has hung. A worker
        must send something in less than `STALLED_SECONDS`, as it does to renew its lease, as soon as `is_ready` returns
        True: while it starts, it may block.
        """
        served = _Connection(connection, self._memory, cut, is_ready, self._connections.discard)
        self._connections.add(served)
        served.attach(asyncio.get_running_loop())

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.lose("the server has closed it")


class _Connection(_Channel):
    """The parent's end of a socket: executes the requests of one worker."""

    def __init__(
        self,
        connection: socket.socket,
        memory: MemoryBackend,
        cut: Callable[[], None],
        is_ready: Callable[[], bool],
        ended: Callable[[_Connection], None],
    ) -> None:
        super().__init__(connection)
        self._operations: dict[str, _Operation] = {
            f"{part}.{name}": getattr(getattr(memory, part), name)
            for part, names in _OPERATIONS.items()
            for name in names
        }
        self._operations.update(ping=memory.ping, subscribe=self._subscribe, unsubscribe=self._unsubscribe)
        self._bus = memory.bus
        self._topics: dict[str, Unsubscribe] = {}  # subscriptions of this worker
        self._cut = cut
        self._is_ready = is_ready
        self._ended = ended
        self._is_processing = False  # whether the answers are sent together, after the last request
        self._has_gap = False  # whether messages of the bus are dropped, until the worker has read most of what waits
        self._watching: asyncio.TimerHandle | None = None  # checks that the worker reads, while bytes wait
        # Checks that the worker lives: set if it has sent nothing since a message of the bus. The system stores small
        # messages, so that `_watching` does not notice that they are not read.
        self._silence: asyncio.TimerHandle | None = None

    def receive(self, message: bytearray) -> None:
        number, name, arguments, options = _read_request(message)
        operation = self._operations[name](*arguments, **options)
        try:
            answer = _encode((number, _result_of(operation), None))
            if len(answer) > MOST_BYTES:
                answer = _encode((number, None, f"The result of {name} has {len(answer)} bytes, which are too many."))
        except Exception as error:
            log.exception("an operation of the backend failed")
            answer = _encode((number, None, f"{name} failed: {error}"))
        self._put(answer)
        if len(self._unsent) > PAUSE_BYTES and self._loop is not None:
            self._is_reading = False
            self._loop.remove_reader(self._connection)

    def _process(self) -> None:
        self._end_silence()
        self._is_processing = True
        try:
            super()._process()
        finally:
            self._is_processing = False
        if self._unsent and self._loop is not None:
            self._flush()

    def _flush(self) -> None:
        super()._flush()
        if self._loop is None:  # the connection has ended
            return
        if self._is_writing and self._watching is None:
            self._watching = self._loop.call_later(STALLED_SECONDS, self._check_reader, self._sent_bytes)
        if len(self._unsent) > PAUSE_BYTES:
            return
        if self._has_gap:
            self._has_gap = False
            self._put(_encode((_NEWS, None, None)))
            self._flush()
        if not self._is_reading:
            self._loop.call_soon(self._resume)

    def _check_reader(self, sent_bytes: int) -> None:
        """Cut off a worker that has read nothing since this check was planned, though bytes wait for it."""
        self._watching = None
        if self._loop is None or not self._unsent:
            return
        self._flush()
        if self._unsent and self._sent_bytes == sent_bytes:
            self.refuse(f"it has read nothing for {STALLED_SECONDS:g} s, and {len(self._unsent)} bytes wait for it")

    def _check_silence(self) -> None:
        """Cut off a worker that has sent nothing since a message of the bus: a living one renews its lease.

        What it has sent may not be read yet: this process may have been stopped, or does not read while answers wait.
        """
        if self._is_reading:
            self._read()  # calls `_end_silence` if there is something
        if self._loop is None or self._silence is None:
            return
        if self._is_reading and self._is_ready() and not self._unsent:  # if bytes wait, `_check_reader` decides
            self.refuse(f"it has sent nothing for {STALLED_SECONDS:g} s, though there are messages for it")
        else:
            self._silence = self._loop.call_later(STALLED_SECONDS, self._check_silence)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _resume(self) -> None:
        if not self._is_reading and self._loop is not None:
            self.attach(self._loop)
            self._process()

    async def _subscribe(self, topic: str) -> None:
        def hear(message: bytes) -> None:
            if self._loop is None:  # another subscriber of the same message has ended this connection
                return
            self._has_gap = self._has_gap or len(self._unsent) + len(message) > MOST_UNSENT
            if self._has_gap:  # it is told later that it has missed messages
                return
            self._put(_encode((_NEWS, topic, message)))
            if self._silence is None:
                self._silence = self._loop.call_later(STALLED_SECONDS, self._check_silence)
            if not self._is_processing and not self._is_writing:
                self._flush()

        if topic not in self._topics:
            self._topics[topic] = await self._bus.subscribe(topic, hear)

    async def _unsubscribe(self, topic: str) -> None:
        if (unsubscribe := self._topics.pop(topic, None)) is not None:
            await unsubscribe()

    def lose(self, why: str) -> None:
        """Close the connection, and end the subscriptions of the worker."""
        self.detach()
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        self._end_silence()
        self._connection.close()
        for topic in list(self._topics):
            _result_of(self._unsubscribe(topic))
        self._ended(self)

    def refuse(self, why: str) -> None:
        log.warning("the connection to a worker is closed: %s", why)
        self.lose(why)
        self._cut()


def _result_of(operation: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        operation.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("an operation on memory must not wait")
