"""Hold the live parts of sessions and their shared records, and serve the methods that only sessions have.

The live part is what cannot be in a record: the connection that handlers see, running requests, requests that the
client has not answered, and the events that wake open streams. The record, in the Backend's store, decides whether a
session exists. Every worker that uses the session renews its record, and changes of several workers are merged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from itertools import chain
from typing import Protocol, cast

import msgspec

from weft.backends import Sets, Store
from weft.eras.base import log_level_reached
from weft.eras.session import DEFAULT_LEVEL, HANDSHAKE, AlreadyInitialized
from weft.errors import BackendUnavailable, InvalidParams, InvalidRequest, ParseError, ProtocolError
from weft.jsonrpc import Frame, check_bounds, decode, encode_error
from weft.limits import Limits
from weft.net.logs import Seldom
from weft.server.calls.call import Call, Handler
from weft.server.calls.changes import Change, ChangeInbox
from weft.server.calls.connection import Connection
from weft.server.calls.pending import ClientChannel
from weft.server.runtime.fleet import is_worker_id
from weft.server.runtime.subscriptions import check_uris
from weft.server.sessions.streams import STANDALONE, Streams
from weft.types.base import EmptyResult, Implementation, LogLevel, RequestId
from weft.types.features import SubscribeParams
from weft.types.lifecycle import (
    ClientCapabilities,
    InitializeResult,
    ListChangedCapability,
    ResourcesCapability,
    ServerCapabilities,
    SetLevelParams,
)

_seldom = Seldom(logging.getLogger("weft.sessions"))


class OpenStream(Protocol):
    """The stream of a request that is not answered yet. Its client may have disconnected."""

    def release(self, *, is_resumed: bool = False) -> None:
        """End the HTTP response that sends the stream. `is_resumed`: whether another response sends the rest."""
        ...


class ResumedReader(asyncio.Event):
    """An event that wakes the HTTP response which sends the rest of a resumed stream."""

    retry: int | None = None  # milliseconds after which the client should reconnect; None: not set

    def end(self, retry: int | None = None) -> None:
        """End the HTTP response. If `retry` is given, ask the client to reconnect after that many milliseconds."""
        self.retry = retry
        self.set()


@dataclass(slots=True, eq=False)
class StreamTurn:
    """Lets only one response of this process send a stream. The newest request is next, and others do not wait.

    Otherwise a client could have the events of one stream read for many responses at the same time.
    """

    is_taken: bool = False
    _next: asyncio.Future[bool] | None = None  # of the request that waits

    @property
    def is_wanted(self) -> bool:
        """Whether a newer request waits, so that the response which has the turn must end."""
        return self._next is not None

    async def take(self) -> bool:
        """Wait for the turn. Return False if a newer request waits instead."""
        if not self.is_taken:
            self.is_taken = True
            return True
        if self._next is not None and not self._next.done():
            self._next.set_result(False)
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._next = mine
        try:
            return await mine
        except asyncio.CancelledError:
            if self._next is mine:
                self._next = None
            elif mine.done() and not mine.cancelled() and mine.result():  # it got the turn at the same moment
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """Pass the turn to the request that waits, if there is one."""
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(True)
        else:
            self.is_taken = False


@dataclass(slots=True, eq=False, repr=False)
class Session(ClientChannel):
    """The live part of one session in this process: its connection, running requests and open streams.

    Messages to the client that belong to no request are sent on the standalone stream.
    """

    id: str
    principal: str | None
    peer: str  # principal or address of the client, for limits per peer
    worker: str  # id of this process
    streams: Streams
    limits: InitVar[Limits]
    ask_key: str = ""  # secret of the fleet that makes the ids of requests to the client: see `asker_of`
    record: Record = field(init=False)  # the record as it was last read or stored
    last_used: float = field(default_factory=time.monotonic)
    renewed: float = field(default_factory=time.monotonic)  # when the lifetime of the record was last extended
    passed_on: int = 0  # responses of the client that wait to be passed to other workers
    in_use: int = 0  # open requests and streams: while there are any, the session is not idle
    ended: bool = False
    informed_until: float = -math.inf  # until then, other workers tell this worker of changes before they answer
    news: int = 0  # how often a change of the record by another worker may have been missed
    read_news: int = 0  # the value of `news` when the last successful read of the record began
    inbox: ChangeInbox | None = None  # changes for the standalone stream; None if another worker collects them, or none
    wake: asyncio.Event | None = None  # set to wake the standalone stream; None while it is not open here
    open_streams: dict[str, OpenStream] = field(default_factory=dict[str, OpenStream])  # by stream name
    resumed: dict[str, ResumedReader] = field(default_factory=dict[str, ResumedReader])  # by stream name
    turns: dict[str, StreamTurn] = field(default_factory=dict[str, StreamTurn])  # by stream name; of GET requests
    streams_begun: int = 0  # number of streams that requests have begun here; used in stream names
    untold: tuple[Change, ...] = ()  # taken from the inbox, but could not be stored
    current_save: asyncio.Task[None] | None = None  # stores the changes of the session
    next_save: asyncio.Task[None] | None = None  # does so after it
    handed_over: bool = False  # whether changes that were collected here were passed on, or reported as missed

    def __post_init__(self, limits: Limits) -> None:
        connection = Connection.for_loop(self, connection_id=self.id)
        ClientChannel.__init__(self, _asker(self.worker, self.ask_key), limits.ask_seconds, connection)
        self.record = Record("", None, connection.client_capabilities, self.principal, self.peer, opener=self.worker)

    def name_stream(self) -> str:
        """Return a new name for a stream of this session, unique among all workers."""
        self.streams_begun += 1
        return f"{self.worker}-{self.streams_begun}"

    def asker_of(self, request: object) -> str | None:
        """Return the worker that has sent the client a request with this id; None if no worker of the fleet has.

        The id begins with the id of the worker and a checksum of it with `ask_key`. So a client cannot invent ids of
        workers that have never sent it a request: what it sends for these is not passed on.
        """
        name = request.rpartition("-")[0] if isinstance(request, str) else ""
        worker = name.partition("-")[0]
        is_asker = is_worker_id(worker) and compare_digest(name.encode(), _asker(worker, self.ask_key).encode())
        return worker if is_asker else None

    @property
    def stale(self) -> bool:
        """Whether the record must be read before the next request is served."""
        return self.read_news < self.news

    @property
    def has_listened(self) -> bool:
        """Whether the client has ever opened the standalone stream, at any worker."""
        return self.inbox is not None or self.record.listener is not None

    @property
    def is_readable(self) -> bool:
        """Whether the client reads the standalone stream, or may reconnect and read it."""
        return self.has_listened and not self.ended

    def open_inbox(self) -> ChangeInbox:
        """Create and return the inbox that collects changes, to be sent on the standalone stream."""
        self.inbox = ChangeInbox(self.accepts, self.connection.subscribed_uris, self._wake_standalone)
        return self.inbox

    def take_change(self, inbox: ChangeInbox) -> Change | None:
        """Remove and return a change that the client has to be told; None if there is none."""
        if not self.untold:
            return inbox.take()
        *rest, change = self.untold
        self.untold = tuple(rest)
        return change

    def _wake_standalone(self) -> None:
        if self.wake is not None:
            self.wake.set()

    async def send(self, message: bytes) -> None:
        """Write a message to the standalone stream. Wait while the client has too many unread messages."""
        if not self.ended:  # the events of an ended session would stay in the log
            await self.streams.append(self.id, STANDALONE, message)
            await self.streams.room(self.id, STANDALONE)

    async def begin(self, requests: Sequence[RequestId | None]) -> None:
        """Note in the standalone stream that this worker begins to serve requests, which are answered there.

        If this worker dies, the worker that has the stream sends errors instead.
        """
        waiting = [id for id in requests if id is not None]
        if waiting and not self.ended:
            await self.streams.append(self.id, STANDALONE, b"", waiting=waiting, worker=self.worker)

    async def send_answer(self, answer: bytes | None, request: RequestId | None) -> None:
        """Write the answer to a request of `begin` to the standalone stream. None: the request was cancelled."""
        if not self.ended:
            waiting = [] if request is None else [request]
            is_cancelled = answer is None
            await self.streams.append(
                self.id, STANDALONE, answer or b"", waiting=waiting, worker=self.worker, is_cancelled=is_cancelled
            )
            await self.streams.room(self.id, STANDALONE)

    def to_record(self, version: int | None = None) -> Record:
        """Return a record with the current state of the session in this process."""
        connection = self.connection
        return Record(
            connection.protocol_version,
            connection.client_info,
            connection.client_capabilities,
            self.principal,
            self.peer,
            connection.is_ready,
            connection.log_level,
            sorted(connection.subscribed_uris),
            connection.handshake_done,
            self.record.listener if self.inbox is None else self.worker,
            self.record.version if version is None else version,
            self.ask_key,
            self.record.opener,
        )

    def apply_record(self, before: Record, now: Record) -> None:
        """Apply the changes of other workers: the differences between the records `before` and `now`.

        Changes that this process has made and not saved yet are not lost.
        """
        connection = self.connection
        is_changed = connection.is_changed
        if now.handshake_done and not before.handshake_done:
            connection.complete_handshake(now.protocol_version, now.client_info, now.client_capabilities)
        if now.log_level != before.log_level:
            connection.log_level = now.log_level
        if now.subscribed_uris != before.subscribed_uris:
            connection.subscribed_uris.update(set(now.subscribed_uris).difference(before.subscribed_uris))
            connection.subscribed_uris.difference_update(set(before.subscribed_uris).difference(now.subscribed_uris))
        if now.is_ready:
            connection.set_initialized()
        connection.is_changed = is_changed
        self.record = now

    def apply_news(self, record: Record, before: Record | None = None) -> None:
        """Apply a stored record, unless this process knows a newer one.

        `before` is the record to compare it with (default: the one that this process knows).
        """
        if record.version > self.record.version:
            self.apply_record(before or self.record, record)

    def close(self) -> None:
        """Cancel the running requests of the session, fail unanswered requests to the client, and end the streams."""
        self.ended = True
        for cancellation in list(self.connection.in_flight.values()):
            cancellation.cancel("the session has ended")
        self.outstanding.close()
        self.wake_streams()

    def wake_streams(self) -> None:
        """Wake the HTTP responses that send streams of this session. Each response then checks whether to continue."""
        for wake in (self.wake, *self.resumed.values()):
            if wake is not None:
                wake.set()


class LiveParts:
    """Live parts of sessions, in the order in which they make room for others.

    First those without a request since the handshake, oldest first. Then the others, least recently used first.
    """

    def __init__(self) -> None:
        self.unused: OrderedDict[str, Session] = OrderedDict()  # without a request since the handshake
        self.used: OrderedDict[str, Session] = OrderedDict()
        self.per_peer: dict[str, OrderedDict[str, Session]] = {}

    def __len__(self) -> int:
        return len(self.unused) + len(self.used)

    def __iter__(self) -> Iterator[Session]:
        return chain(self.unused.values(), self.used.values())

    def __contains__(self, session: Session) -> bool:
        return self.get(session.id) is session

    def get(self, id: str) -> Session | None:
        """Return the live part of the session with this id, or None."""
        return self.used.get(id) or self.unused.get(id)

    def add(self, session: Session, *, is_used: bool) -> None:
        """Add a live part. `is_used` is False if the client has sent no request since the handshake."""
        (self.used if is_used else self.unused)[session.id] = session
        self.per_peer.setdefault(session.peer, OrderedDict())[session.id] = session

    def mark_used(self, session: Session) -> None:
        """Make a live part the last one in the order, because the session is used. Do nothing if it was removed."""
        if session in self:
            self.unused.pop(session.id, None)
            self.used[session.id] = session
            self.used.move_to_end(session.id)
            self.per_peer[session.peer].move_to_end(session.id)

    def remove(self, session: Session) -> None:
        """Remove a live part. If there is a newer live part of the same session, it stays."""
        if session in self:
            for group in (self.unused, self.used, self.per_peer[session.peer]):
                group.pop(session.id, None)
            if not self.per_peer[session.peer]:
                del self.per_peer[session.peer]

    def superfluous(self, peer: str, limits: Limits) -> Iterable[Session] | None:
        """Return the live parts of which one must make room for another one of `peer`; None if no limit is reached."""
        mine = self.per_peer.get(peer, OrderedDict[str, Session]())
        if len(mine) >= limits.sessions_per_peer:  # several clients may share one address
            return sorted(mine.values(), key=lambda session: session.id not in self.unused)
        return self if len(self) >= limits.sessions else None


def _asker(worker: str, ask_key: str) -> str:
    """Return the beginning of the ids of all requests of a worker to one client."""
    if not ask_key:
        return worker
    return f"{worker}-{blake2b(worker.encode(), key=ask_key.encode(), digest_size=8).hexdigest()}"


OFTEN = 10  # a record is renewed at most this many times within its lifetime
MOST_SWAPS = 20  # attempts to change a record that other workers change at the same time
_SWAP_PAUSE = 0.01  # seconds: longest pause after the second attempt; it grows with each attempt
SWEEPS = 4  # idle sessions are looked for this many times within the shortest lifetime of a session


class Record(msgspec.Struct, array_like=True, gc=False):
    """The part of a session that is stored in the Backend, where all workers can read it."""

    protocol_version: str
    client_info: Implementation | None
    client_capabilities: ClientCapabilities
    principal: str | None
    peer: str
    is_ready: bool = False
    log_level: LogLevel | None = None
    subscribed_uris: list[str] = []
    handshake_done: bool = False
    # The worker that collects changes for the standalone stream: the last one at which the client has opened it. If it
    # has released its live part since, it has missed changes, and reports this to the worker that follows it.
    listener: str | None = None  # None if the client has never opened the stream
    version: int = 0  # grows with each change; 0: not stored yet
    ask_key: str = ""  # see `Session.ask_key`
    opener: str = ""  # the worker that has opened the session


_encode = msgspec.json.Encoder().encode

_decode = msgspec.json.Decoder(Record).decode


_NOBODY = b""  # instead of the owner of a standalone stream, after it has closed the stream


class Records:
    """Reads and writes the records of all sessions in the store.

    `sets` has the workers that have used a session lately. It is None if there is only one worker.
    """

    def __init__(self, store: Store, limits: Limits, sets: Sets | None = None) -> None:
        self._store = store
        self._sets = sets
        self._limits = limits
        self._unused_seconds = limits.session_unused_seconds
        # A worker marks a session which is in use here again and again: when a sweep finds that the renewal is due.
        shortest = min(limits.session_unused_seconds, limits.session_idle_seconds)
        self.mark_seconds = 2 * limits.session_idle_seconds / OFTEN + shortest / SWEEPS
        # A record is not renewed with every use, so it has to last a little longer.
        self.idle_seconds = limits.session_idle_seconds * (1 + 1 / OFTEN)
        self._stream_seconds = 3 * limits.keep_alive_seconds  # renewed with each keep-alive comment

    async def add(self, id: str, record: Record) -> None:
        """Store the record of a new session. It expires soon if the session is not used."""
        await self._store.put(_key(id), _encode(record), ttl=self._unused_seconds)

    async def read(self, id: str) -> Record | None:
        """Return the record of a session; None if the session does not exist."""
        data = await self._store.get(_key(id))
        return None if data is None else _read_record(data)

    async def renew(self, id: str, worker: str = "") -> bool:
        """Extend the lifetime of a record. Return False if the session does not exist any more.

        Also mark the session as used by `worker`, for `other_users`. This comes first: a worker that sees no mark ends
        the session, and then this method finds no record.
        """
        await self.mark(id, worker)
        return await self._store.touch(_key(id), ttl=self.idle_seconds)

    async def mark(self, id: str, worker: str) -> None:
        """Mark a session as used by a worker. Do nothing if there is only one worker."""
        if self._sets is not None:
            await self._sets.add(_users(id), worker, ttl=self.mark_seconds)

    async def other_users(self, id: str, worker: str) -> list[str]:
        """Return the workers that have used a session lately, except `worker`."""
        names = () if self._sets is None else await self._sets.names(_users(id))
        return [name for name in names if name != worker]

    async def change(self, id: str, before: Record, after: Record) -> Record | None:
        """Apply the differences between `before` and `after` to the stored record, and return the merged record.

        Return None if the session has ended. Raises BackendUnavailable if other workers change it all the time.
        """
        for attempt in range(MOST_SWAPS):
            data = await self._store.get(_key(id))
            stored = None if data is None else _read_record(data)
            if stored is None:
                return None
            merged = _merge(before, after, stored, self._limits)
            if await self._store.swap(_key(id), data, _encode(merged), ttl=self.idle_seconds):
                return merged
            await asyncio.sleep(random.uniform(0, _SWAP_PAUSE * attempt))  # noqa: S311 - no secret
        raise BackendUnavailable(f"A session was not saved: others have changed it {MOST_SWAPS} times meanwhile.")

    async def delete(self, id: str) -> Sequence[str]:
        """Delete the record of a session, the entry that names the owner of its standalone stream, and the marks.

        Return the workers that have used the session lately.
        """
        await self._store.delete(_key(id))
        await self._store.delete(_stream(id))
        if self._sets is None:
            return ()
        users = await self._sets.names(_users(id))
        for worker in users:
            await self._sets.remove(_users(id), worker)
        return users

    # Only one worker at a time, the owner, may have the standalone stream open. The ownership of a dead worker expires.

    async def hold_stream(self, session: Session, *, takes_over: bool = False) -> bool:
        """Make this worker the owner of a session's standalone stream, or extend its ownership. Return True.

        If another worker owns the stream, return False. But if `takes_over` is True, take the ownership from it. Also
        return False if the session does not exist any more.
        """
        key, owner, ttl = _stream(session.id), session.worker.encode(), self._stream_seconds
        if await self._store.swap(key, owner, owner, ttl=ttl):
            return True
        if await self._store.get(_key(session.id)) is None:
            return False
        if takes_over:
            await self._store.put(key, owner, ttl=ttl)
            return True
        return await self._store.swap(key, None, owner, ttl=ttl) or await self._store.swap(key, _NOBODY, owner, ttl=ttl)

    async def stream_owner(self, session: Session) -> str | None:
        """Return the worker that owns the standalone stream of a session, or None."""
        owner = await self._store.get(_stream(session.id))
        return owner.decode() if owner else None  # empty: `_NOBODY`

    async def drop_stream(self, session: Session) -> None:
        """End the ownership of a session's standalone stream, if this worker is the owner."""
        # Not deleted: another worker may become the owner between a look and the deletion.
        await self._store.swap(_stream(session.id), session.worker.encode(), _NOBODY, ttl=self._stream_seconds)


def _read_record(data: bytes) -> Record | None:
    """Decode a record. Return None if it is not valid, for example because another program has written it."""
    try:
        return _decode(data)
    except ValueError as error:
        _seldom.error("A session does not exist, because its record in the Backend is not valid: %s", error)
        return None


def _merge(before: Record, after: Record, stored: Record, limits: Limits) -> Record:
    """Return a copy of `stored` to which the differences between `before` and `after` are applied.

    New URIs are left out if there would be too many together with those of other workers.
    """
    changed = {
        name: value
        for name in Record.__struct_fields__
        if (value := getattr(after, name)) != getattr(before, name) and name not in ("subscribed_uris", "version")
    }
    old, new = set(before.subscribed_uris), set(after.subscribed_uris)
    uris = kept = set(stored.subscribed_uris) - (old - new)
    if not new <= kept:
        with suppress(InvalidParams):
            check_uris(kept | (new - old), limits)
            uris = kept | (new - old)
    return msgspec.structs.replace(stored, **changed, subscribed_uris=sorted(uris), version=stored.version + 1)


def _key(id: str) -> str:
    return f"session/{id}"


def _stream(id: str) -> str:
    return f"listener/{id}"


def _users(id: str) -> str:
    return f"users/{id}"


async def _initialize(call: Call) -> InitializeResult:
    """Complete the handshake, and return the server's protocol version, capabilities and name.

    Raises AlreadyInitialized if the handshake was completed before.
    """
    envelope, services = call.envelope, call.services
    if call.connection.handshake_done:  # an earlier `initialize` was answered while this one waited
        raise AlreadyInitialized
    most = services.limits.introduction_bytes
    parts = (envelope.client_info, envelope.client_capabilities)
    if sum(len(msgspec.json.encode(part)) for part in parts if part is not None) > most:
        raise InvalidParams(f"Invalid params: `clientInfo` and `capabilities` have at most {most} bytes together.")
    call.connection.complete_handshake(envelope.revision.version, envelope.client_info, envelope.client_capabilities)
    call.undo = call.connection.reset_handshake
    remembers = call.connection.has_standalone_channel
    capabilities = services.capabilities_for(call)
    return InitializeResult(
        protocol_version=envelope.revision.version,
        capabilities=capabilities if remembers else _without_changes(capabilities),
        server_info=services.info,
        instructions=services.instructions,
    )


def _without_changes(capabilities: ServerCapabilities) -> ServerCapabilities:
    """Return the capabilities without notifications of changes, which a server without sessions cannot send."""
    silent = ListChangedCapability()
    return msgspec.structs.replace(
        capabilities,
        tools=capabilities.tools and silent,
        prompts=capabilities.prompts and silent,
        resources=capabilities.resources and ResourcesCapability(),
    )


async def _ping(_: Call) -> EmptyResult:
    return EmptyResult()


async def _set_level(call: Call) -> EmptyResult:
    """Set the lowest level of log messages that the client gets in this session.

    Without a session, the level cannot be stored, and messages are sent from the default level on. In that case, raise
    InvalidRequest if the client requests a higher level, because it would get messages that it does not want.
    """
    connection, level = call.connection, cast("SetLevelParams", call.envelope.params).level
    if not connection.has_standalone_channel:
        if not log_level_reached(DEFAULT_LEVEL, level):  # the client would get messages that it does not want
            raise InvalidRequest(
                "Invalid request: there is no session here, so the server cannot remember a log level. Messages are "
                f"sent from {DEFAULT_LEVEL!r} on."
            )
        return EmptyResult()
    if connection.log_level != level:
        connection.log_level = level
        connection.is_changed = True
    return EmptyResult()


async def _subscribe(call: Call) -> EmptyResult:
    """Subscribe the client to changes of one resource. Raise InvalidRequest if there is no session."""
    connection, uri = call.connection, cast("SubscribeParams", call.envelope.params).uri
    if not connection.has_standalone_channel:
        raise InvalidRequest("Invalid request: there is no session here, so changes cannot be sent.")
    if uri not in connection.subscribed_uris:
        check_uris([*connection.subscribed_uris, uri], call.services.limits)
        connection.subscribed_uris.add(uri)
        connection.is_changed = True
    return EmptyResult()


async def _unsubscribe(call: Call) -> EmptyResult:
    """Unsubscribe the client from changes of one resource. Do nothing if it is not subscribed."""
    connection, uri = call.connection, cast("SubscribeParams", call.envelope.params).uri
    if uri in connection.subscribed_uris:
        connection.subscribed_uris.remove(uri)
        connection.is_changed = True
    return EmptyResult()


HANDLERS: Mapping[str, Handler] = {
    HANDSHAKE: _initialize,
    "ping": _ping,
    "logging/setLevel": _set_level,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
}


def read_batch(body: bytes, limits: Limits) -> list[Frame | bytes]:
    """Return the messages of a batch. In place of an invalid message, return the encoded error to send for it."""
    check_bounds(body, limits)
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise ParseError("Parse error: the message is not valid JSON in UTF-8.") from None
    if not parts or len(parts) > limits.batch:
        raise InvalidRequest(f"Invalid request: a batch has at least one message and at most {limits.batch}.")
    return [_read_part(bytes(part), limits) for part in parts]


def _read_part(part: bytes, limits: Limits) -> Frame | bytes:
    try:
        frame = decode(part, limits)
    except ProtocolError as error:
        return encode_error(error.request_id, error.code, error.message)
    if frame.method == HANDSHAKE and frame.is_request:
        return encode_error(
            frame.reply_id, InvalidRequest.code, "Invalid request: the handshake is not part of a batch."
        )
    return frame
