"""Open, find and end sessions, and handle their notifications.

A session has two parts. Its *record* (principal, version, capabilities, subscriptions) is in the Backend's store, where
any worker finds it. Its *live part* is in one process: the connection that handlers see, running requests, and requests
that the client has not answered yet. If a worker gets a request of a session that has no live part there, the worker
reads the record, and creates a live part.

A session belongs to the principal that opened it: for other principals it does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Coroutine, Iterable
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET

from weft.backends import Unsubscribe
from weft.eras.session import READY
from weft.jsonrpc import Frame
from weft.server.calls.changes import encode_change
from weft.server.calls.pending import ClientChannel
from weft.server.diagnostics import report
from weft.server.runtime.runtime import Runtime
from weft.server.sessions.session import OFTEN, Records, Session
from weft.server.sessions.streams import STANDALONE, Streams
from weft.types.lifecycle import CancelledParams, ProgressParams


class SessionsFull(Exception):
    """Raised if the limit of sessions is reached, and all sessions are in use."""


class Sessions:
    """The sessions of one server: those with a live part in this process, and access to those of other workers."""

    def __init__(self, runtime: Runtime) -> None:
        self.limits = runtime.limits
        self.streams = Streams(runtime.backend, runtime.limits)
        self.closing = False  # the server is stopping: streams end as soon as they are opened
        self._runtime = runtime
        self.records = Records(runtime.backend.store, runtime.limits)
        self._bus = runtime.backend.bus
        self._worker = secrets.token_hex(4)  # id of this process
        self._unused: OrderedDict[str, Session] = OrderedDict()  # without a request since the handshake; oldest first
        self._used: OrderedDict[str, Session] = OrderedDict()  # with a later request; least recently used first
        self._per_peer: dict[str, OrderedDict[str, Session]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Task[object]] = set()  # tasks that are not awaited
        self._joining = asyncio.Lock()
        self._leave_bus: Unsubscribe | None = None  # ends the subscription to the messages of other workers

    def __len__(self) -> int:
        return len(self._unused) + len(self._used)

    def new(self, principal: str | None, peer: str, *, prefix: str = "") -> Session:
        """Return a new session for a handshake. The session is not stored: call `keep` after the handshake.

        The id of the session begins with `prefix`. Raises `SessionsFull` if the limit of sessions is reached and all
        sessions are in use.
        """
        self._find_superfluous(peer)
        return self._new(prefix + secrets.token_urlsafe(24), principal, peer)

    def _new(self, id: str, principal: str | None, peer: str) -> Session:
        return Session(id, principal, peer, self._worker, self.streams, self.limits)

    async def keep(self, session: Session) -> None:
        """Store a new session, so that `find` finds it for the next request."""
        with contextlib.suppress(SessionsFull):  # `new` has checked the limits
            for other in self._find_superfluous(session.peer):
                self.end_soon(other)
        self._add(session, self._unused)
        try:
            await self._join_bus()
            session.record = session.to_record()
            session.connection.is_changed = False
            await self.records.add(session.id, session.record)
        except BaseException:
            self._remove(session)
            raise

    async def find(self, id: str, principal: str | None) -> Session | None:
        """Return the session with this id and principal, and mark it as used; None if there is no such session."""
        session = self._local(id)
        if session is None or session.stale:
            session = await self._fetch(id, session)
        if session is None or session.principal != principal or session.ended:
            return None
        now = session.last_used = time.monotonic()
        is_first = self._unused.pop(id, None) is not None
        self._used[id] = session
        self._used.move_to_end(id)
        self._per_peer[session.peer].move_to_end(id)
        if is_first or now - session.renewed > self.limits.session_idle_seconds / OFTEN:
            session.renewed = now
            if not await self.records.renew(id):  # the record has expired
                self.end_soon(session)
        return None if session.ended else session  # another task may have ended it

    async def save(self, session: Session) -> None:
        """Store the changes of a session for the other workers. Do nothing if the session has ended."""
        session.connection.is_changed = False
        mine = session.to_record()
        try:
            merged = None if session.ended else await self.records.change(session.id, session.record, mine)
            if merged is not None:
                session.apply_record(mine, merged)
                await self._publish(session)
        except BaseException:
            session.connection.is_changed = True  # the next request tries again
            raise

    async def open_stream(self, session: Session, *, takes_over: bool) -> bool:
        """Open the standalone stream of a session at this worker, and return True. Any worker may write to the stream.

        If the stream is open at another worker, return False. But if `takes_over` is True, because the client resumes
        the stream, open it here, and the other worker ends it.
        """
        if not await self.records.hold_stream(session, takes_over=takes_over):
            return False
        if session.inbox is None and not session.ended:
            self._runtime.changes.open_inbox(session.open_inbox())
        if not session.record.has_listened:
            await self.save(session)
        return True

    async def end(self, session: Session) -> None:
        """End a session at all workers, and delete its record and streams."""
        session.ended = True
        try:
            await self.records.delete(session.id)
            await self._publish(session, has_ended=True)
        finally:
            await self._forget(session)

    def end_soon(self, session: Session) -> None:
        """Mark a session as ended now, and end it at all workers in the background."""
        session.ended = True
        self._remove(session)
        self._in_background(self.end(session))

    def close_soon(self) -> None:
        """Call `end_streams` soon, in the event loop. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.end_streams)

    def end_streams(self) -> None:
        """End all standalone and resumed streams, because the server stops. Streams that are opened later end at once.

        Requests that the server has sent to clients fail after `drain_seconds`, like running calls. The responses of
        the clients would come in new HTTP requests, which a server that stops does not accept.
        """
        if not self.closing and self._loop is not None and math.isfinite(self.limits.drain_seconds):
            self._loop.call_later(self.limits.drain_seconds, self._end_questions)
        self.closing = True
        for session in self._all():
            session.wake_streams()

    def _end_questions(self) -> None:
        if self.closing:
            for session in self._all():
                session.outstanding.close("The server stops and accepts no more answers.")

    async def close(self) -> None:
        """End the live part of every session, because the server stops. The records stay, for other workers."""
        # `Engine.stop` has cancelled the calls, and waited for them.
        await asyncio.gather(*[self._release(session, seconds=0) for session in self._all()])
        if self._background:
            await asyncio.wait(self._background, timeout=self.limits.drain_seconds)
        leave_bus, self._leave_bus = self._leave_bus, None
        if leave_bus is not None:
            try:
                await leave_bus()
            except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                report("Leaving the Backend's bus", error, debug=False)
        self.closing = False

    # A message of a client about a request may arrive at a worker that does not have this request.

    async def answered(self, session: Session, frame: Frame) -> None:
        """Handle a response of the client. If another worker has sent the request, pass the response to all workers."""
        worker = frame.id.partition("-")[0] if isinstance(frame.id, str) else ""
        if worker == self._worker:
            session.outstanding.answered(frame)
        elif worker:
            await self._publish(session, frame)

    async def notified(self, session: Session, frame: Frame) -> None:
        """Handle a notification of the client. If it is about a request at another worker, pass it to all workers."""
        if not take_notification(self._runtime, session, frame):
            await self._publish(session, frame)
        if session.connection.is_changed:
            await self.save(session)

    async def _publish(self, session: Session, frame: Frame | None = None, *, has_ended: bool = False) -> None:
        """Send a message about a session to the other workers: a frame, the end of the session, or a changed record."""
        await self._bus.publish(_TOPIC, msgspec.json.encode(_WorkerMessage(self._worker, session.id, frame, has_ended)))

    def _receive(self, message: bytes) -> None:
        """Handle a message from another worker about a session."""
        sent = _read_message(message)
        session = self._local(sent.session)
        if session is None or sent.worker == self._worker:
            return
        if sent.has_ended:
            if not session.ended:
                session.ended = True
                self._in_background(self._forget(session))
        elif sent.frame is None:
            self._record_changed(session)
        elif sent.frame.is_notification:
            take_notification(self._runtime, session, sent.frame)
        else:
            session.outstanding.answered(sent.frame)

    def _record_changed(self, session: Session) -> None:
        session.stale = True
        if self._unused.pop(session.id, None) is not None:
            self._used[session.id] = session
        if session.in_use or session.has_listened:  # open requests and streams need the new state now
            self._in_background(self._fetch(session.id, session))

    async def _join_bus(self) -> None:
        """Subscribe to the messages of other workers, if this is not done yet."""
        async with self._joining:
            if self._leave_bus is None:
                self._leave_bus = await self._bus.subscribe(_TOPIC, self._receive)

    async def send_changes(self, session: Session) -> None:
        """Write pending changes to the standalone stream of a session, but not more than `streams.most_unread`."""
        for _ in range(self.streams.most_unread):
            change = None if session.inbox is None else session.inbox.take()
            if change is None:
                return
            await self.streams.append(session.id, STANDALONE, encode_change(change))

    def _find_superfluous(self, peer: str) -> list[Session]:
        """Return the sessions that must end before `peer` can open a new session, because a limit is reached.

        There is a limit for the sessions of one peer, and a limit for all sessions. Raises `SessionsFull` if a limit is
        reached and no session can end, because all are in use.
        """
        found: list[Session] = []
        mine = self._per_peer.get(peer)
        if mine is not None and len(mine) >= self.limits.sessions_per_peer:
            # Several clients may share one address. Sessions that were never used end first.
            unused = (session for session in mine.values() if session.id in self._unused)
            found.append(_idle(chain(unused, mine.values())))
        if len(self) - len(found) >= self.limits.sessions:
            found.append(_idle(self._all()))
        return found

    def _add(self, session: Session, group: OrderedDict[str, Session]) -> None:
        group[session.id] = session
        self._per_peer.setdefault(session.peer, OrderedDict())[session.id] = session
        if self._sweeping is None:
            self._loop = asyncio.get_running_loop()
            self._sweep_later()

    def _remove(self, session: Session) -> None:
        if session.inbox is not None:
            self._runtime.changes.close_inbox(session.inbox)
        self._unused.pop(session.id, None)
        self._used.pop(session.id, None)
        mine = self._per_peer.get(session.peer)
        if mine is not None:
            mine.pop(session.id, None)
            if not mine:
                del self._per_peer[session.peer]
        if not len(self) and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    async def _release(self, session: Session, seconds: float | None = None) -> None:
        """End the live part of a session in this process. The record stays.

        Wait up to `seconds` for its calls (default: `drain_seconds`).
        """
        self._remove(session)
        tasks = {cancellation.task for cancellation in session.connection.in_flight.values()}
        session.close()
        if waiting := [task for task in tasks if task is not None and not task.done()]:
            await asyncio.wait(waiting, timeout=self.limits.drain_seconds if seconds is None else seconds)
        await session.connection.close()

    def _sweep_later(self) -> None:
        assert self._loop is not None
        shortest = min(self.limits.session_unused_seconds, self.limits.session_idle_seconds)
        self._sweeping = self._loop.call_later(max(shortest / 4, 0.05), self._sweep)

    def _sweep(self) -> None:
        """End the sessions that were idle for too long. Renew the records of sessions that are in use."""
        now = time.monotonic()
        self._sweep_later()
        for group, seconds in (
            (self._unused, self.limits.session_unused_seconds),
            (self._used, self.limits.session_idle_seconds),
        ):
            for session in group.values():
                if session.in_use:  # a long call, an open stream: not idle
                    session.last_used = now
                    if now - session.renewed > seconds / OFTEN:
                        session.renewed = now
                        self._in_background(self.records.renew(session.id))
                elif now - session.last_used >= seconds:
                    self._in_background(self._end_if_over(session))

    async def _end_if_over(self, session: Session) -> None:
        """End a session that was idle in this process for too long, unless another worker has used it."""
        if await self.records.read(session.id) is None and not session.in_use and not session.ended:
            self.end_soon(session)

    def _all(self) -> Iterable[Session]:
        """Return the sessions of this process: first those that were never used, then the others, oldest use first."""
        return chain(self._unused.values(), self._used.values())

    def _local(self, id: str) -> Session | None:
        return self._used.get(id) or self._unused.get(id)

    async def _fetch(self, id: str, known: Session | None) -> Session | None:
        """Read the record of a session that another worker has opened or changed, and return the session.

        `known` is the live part of the session in this process, or None. Return None if the session does not exist.
        """
        if known is not None:
            known.stale = False
        try:
            await self._join_bus()  # before the record is read, so that no later change is missed
            record = await self.records.read(id)
        except BaseException:
            if known is not None:
                known.stale = True
            raise
        if record is None:
            return None
        session = known or self._local(id)  # another task may have fetched it meanwhile
        if session is None:
            session = self._new(id, record.principal, record.peer)
            session.renewed = 0.0  # this worker has not renewed the record yet
            if len(self) >= self.limits.sessions:
                with contextlib.suppress(SessionsFull):  # only the live part ends: other workers may use the session
                    self._in_background(self._release(_idle(self._used.values())))
            self._add(session, self._used)
        session.apply_record(session.record, record)
        return session

    async def _forget(self, session: Session) -> None:
        await self._release(session)
        await self.streams.forget(session.id)

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="weft-sessions")
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[object]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            report("Keeping sessions in the Backend", error, debug=False)


_TOPIC = "sessions"  # of the Backend's bus


class _WorkerMessage(msgspec.Struct, array_like=True):
    """A message to the other workers about a session.

    If it has no `frame` and `has_ended` is False, it means that the record of the session was changed.
    """

    worker: str  # id of the sender
    session: str
    frame: Frame | None = None  # a message of the client about a request that another worker may have
    has_ended: bool = False


_read_message = msgspec.json.Decoder(_WorkerMessage).decode


def _idle(candidates: Iterable[Session]) -> Session:
    """Return the first of the candidates that is not in use. Raise `SessionsFull` if all are in use."""
    idle = next((session for session in candidates if not session.in_use), None)
    if idle is None:
        raise SessionsFull
    return idle


log = logging.getLogger("weft.sessions")

_read_cancelled = msgspec.json.Decoder(CancelledParams).decode
_read_progress = msgspec.json.Decoder(ProgressParams).decode


def take_notification(runtime: Runtime, session: ClientChannel, frame: Frame) -> bool:
    """Handle a notification of the client. Unknown and malformed notifications are ignored.

    Return False if the notification is about a request that this worker does not have.
    """
    connection = session.connection
    params = b"{}" if frame.params is UNSET else bytes(frame.params)
    try:
        if frame.method == READY:
            connection.set_initialized()
        elif frame.method == "notifications/cancelled":
            cancelled = _read_cancelled(params)
            cancellation = connection.in_flight.get(cancelled.request_id)
            if cancellation is None:
                return False
            cancellation.cancel(cancelled.reason)
        elif frame.method == "notifications/progress":
            return session.outstanding.progressed(_read_progress(params))
        elif frame.method == "notifications/roots/list_changed":
            runtime.roots_changed(connection)
    except msgspec.DecodeError:
        log.debug("a malformed notification was dropped")
    return True
