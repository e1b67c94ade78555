"""Open, find and end sessions, and handle their notifications.

A session has two parts. Its *record* (principal, version, capabilities, subscriptions) is in the Backend's store, where
any worker finds it. Its *live part* is in one process: the connection that handlers see, running requests, and requests
that the client has not answered yet. If a worker gets a request of a session that has no live part there, the worker
reads the record, and creates a live part. The workers of the fleet tell each other of changed records, of ended
sessions, and of messages of a client that are for another worker.

The worker that has opened a session keeps its live part until the session ends. So the number of these live parts is
the number of records for which the worker is responsible, and one limit holds for both. Live parts of sessions that
other workers have opened have the same limit again, and are released to make room: their records stay.

A session belongs to the principal that opened it: for other principals it does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from weft.jsonrpc import Frame
from weft.net.logs import Seldom
from weft.server.calls.changes import ChangeInbox, encode_change
from weft.server.diagnostics import summary_of
from weft.server.runtime.admission import Busy
from weft.server.runtime.runtime import Runtime
from weft.server.runtime.subscriptions import check_uris
from weft.server.sessions.messages import WorkerMessage, encode_message, read_message, relayed, take_notification
from weft.server.sessions.session import OFTEN, SWEEPS, LiveParts, Record, Records, Session
from weft.server.sessions.streams import STANDALONE, Streams

log = logging.getLogger("weft.sessions")

_SUBJECT = "sessions"  # of messages to all workers
_KEEPING = "Sessions could not be renewed in the backend"
_AGAIN_SECONDS = 1.0  # between two attempts to write changes to a stream that another worker sends now
MOST_LOOKS = 16  # sessions that a handshake looks at, to find one that no other worker uses
MOST_PASSED_ON = 200  # responses of clients that wait to be passed to one other worker
MOST_PASSED_ON_PER_SESSION = 16  # the same, of one session
_MOST_PUBLISHED = 8192  # bytes of a record that is sent to all workers; of a larger one, they get the version


class SessionsFull(Exception):
    """Raised if a limit of sessions is reached, and no session can make room because all are in use."""


class SessionGone(Exception):
    """Raised if a session that this process knows does not exist any more."""


class Sessions:
    """The sessions of one server: those with a live part in this process, and access to those of other workers."""

    def __init__(self, runtime: Runtime) -> None:
        self.limits = runtime.limits
        self.streams = Streams(runtime.backend, runtime.limits, runtime.fleet)
        self.closing = False  # the server is stopping: streams end as soon as they are opened
        self._runtime = runtime
        self._fleet = runtime.fleet
        sets = None if self._fleet.is_alone else runtime.backend.sets
        self.records = Records(runtime.backend.store, runtime.limits, sets)
        self._fleet.hear(_SUBJECT, self._receive, self._mark_stale)
        self._fleet.hear_direct(self._receive)
        self._opened = LiveParts()  # of sessions that this worker has opened; each stays until its session ends
        self._fetched = LiveParts()  # of sessions that other workers have opened
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Task[object]] = set()  # tasks that are not awaited
        self._passed_on: Counter[str] = Counter()  # responses of clients that wait to be passed to each other worker
        self._seldom = Seldom(log)

    def __len__(self) -> int:
        return len(self._opened) + len(self._fetched)

    def new(self, principal: str | None, peer: str, *, prefix: str = "") -> Session:
        """Return a new session for a handshake. The session is not stored: call `keep` after the handshake.

        The id of the session begins with `prefix`. Call `check_room` before.
        """
        ask_key = "" if self._fleet.is_alone else secrets.token_hex(8)
        return self._new(prefix + secrets.token_urlsafe(24), principal, peer, ask_key)

    def check_room(self, peer: str) -> None:
        """Raise `SessionsFull` if `peer` can open no session, because a limit is reached and all sessions are in use.

        Sessions that only other workers use are found by `keep`: that needs the Backend.
        """
        if (candidates := self._opened.superfluous(peer, self.limits)) is not None:
            _idle(candidates)

    def _new(self, id: str, principal: str | None, peer: str, ask_key: str) -> Session:
        return Session(id, principal, peer, self._fleet.worker, self.streams, self.limits, ask_key)

    async def keep(self, session: Session) -> None:
        """Store a new session, so that `find` finds it for the next request.

        If a limit is reached, another session ends: see `_make_room`. Raises `SessionsFull` if none can, and
        `SessionGone` if the session has ended before it was stored.
        """
        await self._make_room(session.peer)
        self._opened.add(session, is_used=False)  # at once: other handshakes must not take the same room
        self._begin_sweeps()
        has_stream = session.in_use > 0  # HTTP+SSE
        session.in_use += 1  # so that it does not make room for another one before it is stored
        try:
            session.record = session.to_record(version=1)
            session.connection.is_changed = False
            await self.records.add(session.id, session.record)
            session.last_used = time.monotonic()  # now its time to live begins
            if has_stream:
                await self.records.mark(session.id, session.worker)
        except BaseException:
            self._remove(session)
            self.in_background(self.records.delete(session.id))  # it may be stored, and no worker would count it
            raise
        finally:
            session.in_use -= 1
        if session.ended:  # its record may have been deleted before it was stored
            await self.records.delete(session.id)
            raise SessionGone

    async def _make_room(self, peer: str) -> None:
        """End sessions that this worker has opened, until `peer` can open a new one.

        A session ends that no worker has used lately: the first one in the order of `LiveParts`. Other workers leave
        marks in the Backend for those that they have used (`Records.renew`).

        If there is no such session among the first `MOST_LOOKS`, a session of the same peer ends that has no standalone
        stream at any worker: otherwise a client could lock out others with the same address, by using many sessions now
        and then. But sessions of other peers do not end for that. Raises `SessionsFull`, and the next handshake looks
        at others: those that other workers use are the last in the order now.
        """
        used_elsewhere: list[Session] = []
        while (candidates := self._opened.superfluous(peer, self.limits)) is not None:
            session = _idle(candidates)
            if len(used_elsewhere) == MOST_LOOKS or session in used_elsewhere:
                await self._end_without_stream([one for one in used_elsewhere if one.peer == peer])
                used_elsewhere.clear()
            elif await self._end_idle(session):
                used_elsewhere.append(session)

    async def _end_without_stream(self, sessions: list[Session]) -> None:
        """End the first of the sessions that has no standalone stream. Raise `SessionsFull` if each has one."""
        for session in sessions:
            if await self.records.stream_owner(session) is None and _is_idle(session):
                self.end_soon(session)
                return
        raise SessionsFull

    async def _end_idle(self, session: Session) -> bool:
        """End a session that is idle here. If another worker has used it lately, only return True."""
        last_used = session.last_used
        session.in_use += 1  # so that no other handshake looks at it meanwhile
        try:
            is_used = bool(await self.records.other_users(session.id, session.worker))
        finally:
            session.in_use -= 1
        if is_used:
            self._note_other_use(session)
        elif _is_idle(session) and session.last_used == last_used:  # else it was used or has ended meanwhile
            self.end_soon(session)
        return is_used

    def _note_other_use(self, session: Session) -> None:
        """Note that another worker uses a session that this worker has opened."""
        session.last_used = time.monotonic()
        self._opened.mark_used(session)

    async def find(self, id: str, principal: str | None) -> Session | None:
        """Return the session with this id and principal, and mark it as used; None if there is no such session.

        Raises `SessionsFull` if another worker has opened it, and this worker has no room for its live part.
        """
        session = self._local(id) or await self._fetch(id, None)
        if session is None or session.principal != principal or session.ended:
            return None
        session.in_use += 1  # so that it is not released while this method waits
        try:
            await self._mark_used(session)
            if session.stale and not session.ended:
                await self._fetch(id, session)
        finally:
            session.in_use -= 1
        return None if session.ended else session  # another task may have ended it

    async def _mark_used(self, session: Session) -> None:
        now = session.last_used = time.monotonic()
        is_first = session.id in self._opened.unused
        (self._opened if session in self._opened else self._fetched).mark_used(session)
        is_due = now - session.renewed > self.limits.session_idle_seconds / OFTEN
        if is_first or is_due or not self._is_informed(session):
            await self._renew(session)

    async def _renew(self, session: Session) -> None:
        """Extend the lifetime of a record, and mark the session as used by this worker.

        Without a mark, the other workers have not told this worker of changes. Then the session is stale afterwards. If
        the record does not exist any more, end the session.
        """
        began = session.renewed = time.monotonic()
        try:
            exists = await self.records.renew(session.id, session.worker)
        except BaseException:
            session.renewed = -math.inf  # try again with the next use
            raise
        if not self._is_informed(session):
            session.news += 1
        session.informed_until = began + self.records.mark_seconds
        if not exists and not session.ended:
            self.end_soon(session)

    def _is_informed(self, session: Session) -> bool:
        """Return whether other workers tell this worker of a change of the session before they answer the client."""
        return time.monotonic() < session.informed_until or session in self._opened

    async def exists(self, session: Session) -> bool:
        """Return whether the record of a session still exists. If it does not, end the session in this process."""
        return await self._fetch(session.id, session) is not None

    async def save(self, session: Session) -> None:
        """Store the changes of a session for the other workers. Do nothing if the session has ended.

        There is one save of a session at a time. The changes that are made meanwhile are saved together by the next.

        Raises InvalidParams if the client has subscribed to too many resources, at several workers at the same time.
        """
        if session.next_save is None:
            before = session.current_save
            save = session.next_save = asyncio.get_running_loop().create_task(self._save_next(session, before))
            save.add_done_callback(_forget_failure)
        await asyncio.shield(session.next_save)

    async def _save_next(self, session: Session, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        session.current_save, session.next_save = session.next_save, None
        try:
            await self._save(session)
        finally:
            session.current_save = None

    async def _save(self, session: Session) -> None:
        session.connection.is_changed = False
        known, mine = session.record, session.to_record()
        try:
            merged = None if session.ended else await self.records.change(session.id, known, mine)
            if merged is not None:
                self._apply(session, merged, mine)
                await self._publish_record(session, merged)
        except BaseException:
            session.connection.is_changed = True  # the next request tries again
            raise
        if merged is not None:
            left_out = set(mine.subscribed_uris).difference(known.subscribed_uris, merged.subscribed_uris)
            check_uris([*merged.subscribed_uris, *left_out], self.limits)

    async def _publish_record(self, session: Session, record: Record) -> None:
        """Tell the other workers of a change of a session's record.

        They get the record itself, so that they know it before the changes that are published later (see
        `Fleet.publish`). Otherwise they would not collect a change of a resource to which the client has just
        subscribed. But a large record is not sent: a client could have it sent very often.

        Those that use the session have the change when this method returns: the next request may come to any of them.
        """
        if len(msgspec.json.encode(record)) <= _MOST_PUBLISHED:
            message = WorkerMessage(session.id, record=record)
        else:
            message = WorkerMessage(session.id, version=record.version)
        await self._publish(message)
        await self._inform(session, await self.records.other_users(session.id, session.worker), message)

    async def _inform(self, session: Session, users: Iterable[str], message: WorkerMessage) -> None:
        """Wait until the worker that has opened a session, and `users`, have a message about the session."""
        others = {session.record.opener, *users} - {session.worker, ""}
        await self._fleet.inform(others, _SUBJECT, encode_message(message))

    async def open_stream(self, session: Session, *, takes_over: bool) -> bool:
        """Open the standalone stream of a session at this worker, and return True. Any worker may write to the stream.

        If the stream is open at another worker, return False. But if `takes_over` is True, because the client resumes
        the stream, open it here, and the other worker ends it. Also open it here if the other worker was killed. Raises
        `SessionGone` if the session does not exist any more.
        """
        if not await self.records.hold_stream(session, takes_over=takes_over):
            owner = await self.records.stream_owner(session)
            if owner is not None and await self._fleet.is_listening(owner):
                return False
            if not await self.records.hold_stream(session, takes_over=True):
                self.end_soon(session)
                raise SessionGone
        return True

    async def hold_stream(self, session: Session) -> bool:
        """Keep the standalone stream of a session open at this worker. Return False if the stream must end here.

        It must end if another worker has taken it over, or if the session does not exist any more.
        """
        if not await self.records.hold_stream(session):
            await self.exists(session)
            return False
        if session.inbox is None:
            # The client has opened the stream at another worker, and here again. The record of that worker has arrived
            # only now, and `_apply` has closed the inbox.
            await self.collect_changes(session)
            if session.inbox is not None:
                session.inbox.put_all()
        return True

    async def collect_changes(self, session: Session) -> None:
        """Collect changes for the standalone stream of a session at this worker, which has just opened the stream.

        The worker that has collected them until now writes those that it has to the stream, and stops. If there is no
        such worker any more, or if it has released the session, changes were missed, and the client is told that
        everything may have changed.
        """
        before, has_collected = session.record.listener, session.inbox is not None
        if not has_collected and not session.ended:
            session.handed_over = False
            self._runtime.changes.open_inbox(session.open_inbox())
        if before != session.worker:
            await self.save(session)
            if before is not None:
                self.in_background(self._replace_collector(session, before))
        elif not has_collected and session.inbox is not None:  # an earlier live part in this process was released
            session.inbox.put_all()

    async def _replace_collector(self, session: Session, worker: str) -> None:
        """Tell the worker that has collected the changes of a session until now that this worker does so.

        If that worker has missed changes, it reports that. If it cannot be told, it may have missed some.
        """
        message = WorkerMessage(session.id, record=session.record, is_replaced=True)
        try:
            is_told = await self._fleet.is_listening(worker) and await self._fleet.send(worker, encode_message(message))
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything
            self.log_failure("A worker could not be told that its stream is open elsewhere", error)
            is_told = False
        if not is_told and session.inbox is not None:
            session.inbox.put_all()

    def _report_missed(self, session: str, collector: str | None) -> None:
        """Tell the worker that collects the changes of a session now that this worker has missed some."""
        if collector is not None:
            message = WorkerMessage(session, has_missed=True)
            self.in_background(self._fleet.send(collector, encode_message(message)))

    def _apply(self, session: Session, record: Record, before: Record | None = None) -> None:
        """Apply a stored record (see `Session.apply_news`). If another worker collects changes now, stop doing so."""
        has_collected = session.record.listener == session.worker
        session.apply_news(record, before)
        if not has_collected or session.record.listener == session.worker:
            return
        session.handed_over = True
        if session.inbox is None:  # an earlier live part has collected changes, and was released
            self._report_missed(session.id, session.record.listener)
            return
        inbox, session.inbox = session.inbox, None
        self._runtime.changes.close_inbox(inbox)
        self.in_background(self._hand_over(session, inbox))
        if session.wake is not None:
            session.wake.set()  # the stream ends here, because it is open at the other worker

    async def _hand_over(self, session: Session, inbox: ChangeInbox) -> None:
        """Write the changes that this worker has collected to the standalone stream, which another worker has now.

        If the Backend fails, try again until the session ends.
        """
        session.in_use += 1  # so that it is not released before
        try:
            change = session.take_change(inbox)
            while change is not None and not session.ended:
                try:
                    await session.send(encode_change(change))
                except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                    self.log_failure("Changes could not be written to a stream that another worker sends", error)
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    change = session.take_change(inbox)
        finally:
            session.in_use -= 1

    async def end(self, session: Session) -> None:
        """End a session at all workers, and delete its record and streams."""
        session.ended = True
        message = WorkerMessage(session.id, has_ended=True)
        try:
            users = await self.records.delete(session.id)
            await self._publish(message)
        except BaseException:
            await self._forget(session)
            raise
        await asyncio.gather(self._inform(session, users, message), self._forget(session))

    def end_soon(self, session: Session) -> None:
        """Mark a session as ended now, and end it at all workers in the background."""
        session.ended = True
        self._remove(session)
        self.in_background(self.end(session))

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
        self.closing = False

    # A message of a client about a request may arrive at a worker that does not have this request.

    async def answered(self, session: Session, frame: Frame) -> None:
        """Handle a response of the client. If another worker has sent the request, pass the response to that worker."""
        worker = session.asker_of(frame.id)
        if worker == self._fleet.worker:
            session.outstanding.answered(frame)
        elif worker is not None:
            await self._pass_on(session, worker, frame)

    async def _pass_on(self, session: Session, worker: str, frame: Frame) -> None:
        """Pass a response to another worker, and wait until that worker has it or is dead.

        Raises `Busy` if too many responses wait already: of this session, or for that worker. One that hangs does not
        delay responses for others.
        """
        if session.passed_on >= MOST_PASSED_ON_PER_SESSION or self._passed_on[worker] >= MOST_PASSED_ON:
            raise Busy("Too many responses wait to be passed to another worker. Send this one again later.")
        session.passed_on += 1
        self._passed_on[worker] += 1
        try:
            await self._fleet.send(worker, encode_message(WorkerMessage(session.id, frame)))
        finally:
            session.passed_on -= 1
            self._passed_on[worker] -= 1
            if not self._passed_on[worker]:
                del self._passed_on[worker]

    async def notified(self, session: Session, frame: Frame) -> None:
        """Handle a notification of the client. If it is about a request at another worker, pass it to all workers."""
        if not take_notification(self._runtime, session, frame):
            passed_on = relayed(session, frame, self.limits.id_bytes)
            if passed_on is not None:
                await self._publish(WorkerMessage(session.id, passed_on))
        if session.connection.is_changed:
            await self.save(session)

    async def end_readers(self, session: Session, stream: str, *, retry: int | None = None) -> None:
        """End the responses in which a client reads the stream of a request, at all workers.

        The client reads the rest in a new response. `retry` is the number of milliseconds after which it should come
        for the rest; None: it is here already.
        """
        self._end_readers(session, stream, retry)
        await self._publish(WorkerMessage(session.id, stream=stream, retry=retry))

    def _end_readers(self, session: Session, stream: str, retry: int | None) -> None:
        if (reader := session.resumed.pop(stream, None)) is not None:
            reader.end(retry)
        if retry is None and (held := session.open_streams.get(stream)) is not None:
            held.release(is_resumed=True)

    async def _publish(self, message: WorkerMessage) -> None:
        """Send a message about a session to the other workers."""
        if not self._fleet.is_alone:
            await self._fleet.publish(_SUBJECT, encode_message(message))

    def _receive(self, message: bytes) -> None:
        """Handle a message from another worker about a session."""
        sent = read_message(message)
        session = self._local(sent.session)
        if session is None:
            if sent.is_replaced and sent.record is not None:
                self._report_missed(sent.session, sent.record.listener)
        elif sent.has_ended:
            if not session.ended:
                session.ended = True
                self.in_background(self._forget(session))
        elif sent.version or sent.record is not None:
            self._receive_change(session, sent)
        elif sent.has_missed:
            if session.inbox is not None:
                session.inbox.put_all()
        elif sent.stream is not None:
            self._end_readers(session, sent.stream, sent.retry)
        elif sent.frame is not None and sent.frame.is_notification:
            take_notification(self._runtime, session, sent.frame)
        elif sent.frame is not None:
            session.outstanding.answered(sent.frame)

    def _receive_change(self, session: Session, sent: WorkerMessage) -> None:
        """Handle the message that another worker has changed the record of a session."""
        if session in self._opened:
            self._note_other_use(session)
        if sent.record is not None:
            self._apply(session, sent.record)
            if sent.is_replaced and not session.handed_over:  # the live part is newer than the collected changes
                session.handed_over = True
                self._report_missed(session.id, sent.record.listener)
        elif sent.version > session.record.version:
            was_stale = session.stale  # it is read already, or with its next request
            session.news += 1
            if not was_stale and (session.in_use or session.has_listened):  # it needs the new state now
                self.in_background(self._read_again([session]))

    def _mark_stale(self) -> None:
        """Let all records be read again, because messages of other workers may have been missed."""
        for session in self._all():
            session.news += 1
        self.in_background(self._read_again([one for one in self._all() if one.in_use or one.has_listened]))

    async def _read_again(self, sessions: Sequence[Session]) -> None:
        """Read the records of sessions whose requests and streams are open: they need the new state now.

        Until then, changes may have been left out by the old state. So clients are told that everything may have
        changed. A session whose record cannot be read stays stale, and `_sweep` tries again.
        """
        for session in sessions:
            while session.stale and not session.ended:
                try:
                    await self._fetch(session.id, session)
                except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                    self.log_failure(_KEEPING, error)
                    break
                if session.inbox is not None:
                    session.inbox.put_all()

    async def send_changes(self, session: Session) -> None:
        """Write pending changes to the standalone stream of a session, but not more than `streams.most_unread`."""
        for _ in range(self.streams.most_unread):
            change = None if session.inbox is None else session.take_change(session.inbox)
            if change is None:
                return
            try:
                await self.streams.append(session.id, STANDALONE, encode_change(change))
            except BaseException:
                session.untold = (*session.untold, change)  # the client is told when it has opened its stream again
                raise

    def _make_room_for_fetched(self, peer: str) -> None:
        """Release live parts until there is room for one of a session of `peer` that another worker has opened.

        No session ends: the records stay. Raises `SessionsFull` if all these live parts are in use.
        """
        while (candidates := self._fetched.superfluous(peer, self.limits)) is not None:
            self._release_soon(_idle(candidates))

    def _release_soon(self, session: Session) -> None:
        """Forget the live part of a session now, and end it in the background. The record stays."""
        self._remove(session)
        self.in_background(self._release(session))

    def _remove(self, session: Session) -> None:
        """Forget a live part. There may be a newer live part of the same session, which stays."""
        if session.inbox is not None:
            self._runtime.changes.close_inbox(session.inbox)
        self._opened.remove(session)
        self._fetched.remove(session)
        if not len(self) and self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    async def _release(self, session: Session, seconds: float | None = None) -> None:
        """End the live part of a session in this process. The record stays, and its lifetime is not extended.

        Wait up to `seconds` for its calls (default: `drain_seconds`).
        """
        self._remove(session)
        tasks = {cancellation.task for cancellation in session.connection.in_flight.values()}
        session.close()
        if waiting := [task for task in tasks if task is not None and not task.done()]:
            await asyncio.wait(waiting, timeout=self.limits.drain_seconds if seconds is None else seconds)
        await session.connection.close()

    def _begin_sweeps(self) -> None:
        if self._sweeping is None:
            self._loop = asyncio.get_running_loop()
            self._sweep_later()

    def _sweep_later(self) -> None:
        assert self._loop is not None
        shortest = min(self.limits.session_unused_seconds, self.limits.session_idle_seconds)
        self._sweeping = self._loop.call_later(max(shortest / SWEEPS, 0.05), self._sweep)

    def _sweep(self) -> None:
        """End the sessions that were idle for too long. Renew the records of sessions that are in use."""
        now = time.monotonic()
        self._sweep_later()
        for group, seconds in (
            (self._opened.unused, self.limits.session_unused_seconds),
            (self._opened.used, self.records.idle_seconds),
            (self._fetched.used, self.limits.session_idle_seconds),
        ):
            for session in list(group.values()):
                if session.in_use:  # a long call, an open stream: not idle
                    session.last_used = now
                    if now - session.renewed > seconds / OFTEN:
                        self.in_background(self._renew(session))
                    if session.stale:
                        self.in_background(self._read_again([session]))
                elif now - session.last_used >= seconds:
                    self.in_background(self._end_if_over(session))

    async def _end_if_over(self, session: Session) -> None:
        """End a session that was idle in this process for too long, unless its record exists: others have renewed it.

        Then release its live part, or keep it if this worker has opened the session.
        """
        last_used = session.last_used
        record = await self.records.read(session.id)
        if session.in_use or session.ended or session.last_used != last_used:
            return
        if record is None:
            self.end_soon(session)
        elif session in self._fetched:
            await self._release(session)
        elif not self._fleet.is_alone:
            self._note_other_use(session)

    def _all(self) -> Iterable[Session]:
        """Return the sessions with a live part in this process."""
        return chain(self._opened, self._fetched)

    def _local(self, id: str) -> Session | None:
        return self._opened.get(id) or self._fetched.get(id)

    async def _fetch(self, id: str, known: Session | None) -> Session | None:
        """Read the record of a session that another worker has opened or changed, and return the session.

        `known` is the live part of the session in this process, or None. Return None if the session does not exist.
        Raises `SessionsFull` if there is no room for a new live part.
        """
        news = 0 if known is None else known.news
        record = await self.records.read(id)
        if record is None:
            if known is not None:  # the record has expired, or the backend has lost it
                self.end_soon(known)
            return None
        session = known or self._local(id)  # another task may have fetched it meanwhile
        if session is None:
            self._make_room_for_fetched(record.peer)
            session = self._new(id, record.principal, record.peer, record.ask_key)
            session.renewed = -math.inf  # this worker has not renewed the record yet
            self._fetched.add(session, is_used=True)
            self._begin_sweeps()
        self._apply(session, record)
        session.read_news = max(session.read_news, news)
        return session

    async def _forget(self, session: Session) -> None:
        await self._release(session)
        await self.streams.forget(session.id)

    def in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a task that is not awaited. If it fails, the log has the failure."""
        task = asyncio.get_running_loop().create_task(work, name="weft-sessions")
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[object]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log_failure(_KEEPING, error)

    def log_failure(self, what: str, error: BaseException) -> None:
        """Log that the Backend has failed. While it fails, this happens again and again, so not all of it is logged."""
        self._seldom.error("%s: %s", what, summary_of(error), about=f"{what} {type(error).__name__}")


def _forget_failure(save: asyncio.Task[None]) -> None:
    """Mark the failure of a save as seen: those that have waited for it may have been cancelled."""
    if not save.cancelled():
        save.exception()


def _is_idle(session: Session) -> bool:
    return not session.in_use and not session.ended


def _idle(candidates: Iterable[Session]) -> Session:
    """Return the first of the candidates that is not in use. Raise `SessionsFull` if all are in use."""
    idle = next(filter(_is_idle, candidates), None)
    if idle is None:
        raise SessionsFull
    return idle
