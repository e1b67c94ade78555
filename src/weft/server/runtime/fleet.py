"""Connect the workers of one server: which workers are alive, their messages to each other, and changes.

All processes that serve the same server (by its name) with the same backend are a fleet. Each worker has a lease in the
backend, which it renews. When the lease of a worker has expired, the worker is dead, and others take care of its work.
A worker that was only paused finds that out when it goes on: its lease has another number then (`Fleet.lease_number`).

Messages to all workers, changes among them, have one topic: a worker gets those of another in the order in which they
were sent. They may be lost while the connection to the backend is broken. Their receivers are told then that they may
have missed some. A message to one worker is confirmed by that worker. Without a confirmation, the sender asks whether
the message has arrived, and sends it again only if the receiver says no: it can be large. A message that all workers
get can also be sent to some of them, which confirm it (`Fleet.inform`). This one is not repeated.

A worker whose server has no shared backend is alone: it neither has a lease nor sends messages.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import count
from typing import Any, Literal, Self, TypeAlias

import msgspec

from weft.backends import Backend, Unsubscribe
from weft.errors import BackendUnavailable, StartError
from weft.net.logs import Seldom
from weft.server.calls.changes import Change
from weft.server.calls.services import Services

log = logging.getLogger("weft.fleet")
_seldom = Seldom(log)

LEASE_SECONDS = 15.0  # A lease expires after this time; it is renewed three times within it.
CONFIRM_SECONDS = 0.5  # wait for the confirmation of a message; then the receiver is asked whether it has the message
SEND_SECONDS = 10.0  # give up sending a message to one worker
INFORM_SECONDS = 1.0  # wait for the confirmations of `inform`
LEFT_SECONDS = 600.0  # others, also those that start later, can read that a worker has left, and do not wait for it
LEAVE_SECONDS = 2.0  # for a worker that stops: to send its last changes, and to end its lease
MOST_CHANGES = 1000  # changes that wait to be sent to the others; with more, they are told that everything changed
MOST_CHANGE_CHARACTERS = 1024 * 1024  # the same for the length of their URIs
_SIGNED_OFF = b""  # the lease of a worker that has left
_ID_BYTES = 6
_MOST_SEEN = 1000  # received messages that are remembered, to recognise repetitions

_ALL = "all"  # topic for messages to all workers
_CHANGES = "changes"  # subject of messages about changes
_WORKERS = "workers"  # set of the ids of all workers
LEFT = "left"  # subject of an empty message from a worker that has left: others can take over its work

Receive: TypeAlias = Callable[[bytes], None]  # is called with a message of another worker; must not block


class WorkerFacts(msgspec.Struct, frozen=True):
    """What a worker stores about itself, for the others and for `weft doctor`."""

    host: str
    process: int
    seals: str | None  # id of the key that encrypts `requestState`; None if others need not have it
    opens: list[str]  # ids of the keys that decrypt it
    renewed: int = 0  # how often the lease was renewed


class _Message(msgspec.Struct, array_like=True):
    """A message on the bus: to one worker (with a number, which is confirmed), to all workers, or about a message."""

    sender: str
    number: int  # 0: not confirmed
    body: bytes | None  # None: about the message with this number
    # Without a body: the receiver has the message, is asked whether it has it, or does not have it.
    about: Literal["received", "question", "missing"] = "received"
    subject: str = ""  # of a message that all workers get: see `Fleet.hear`


class _SentChanges(msgspec.Struct, array_like=True):
    """The body of a message about changes."""

    changes: list[Change]
    is_all: bool = False  # whether all lists and resources may have changed; then `changes` is empty


_read_message = msgspec.msgpack.Decoder(_Message).decode
_read_changes = msgspec.msgpack.Decoder(_SentChanges).decode
_read_facts = msgspec.json.Decoder(WorkerFacts).decode
_encode = msgspec.msgpack.Encoder().encode


class Fleet:
    """The workers that share a backend, as one of them sees the others. Enter it to join, leave it to leave.

    >>> from weft import Server
    >>> Server("alone").engine.fleet.is_alone
    True
    """

    def __init__(self, services: Services, *, is_alone: bool) -> None:
        self.worker = secrets.token_hex(_ID_BYTES)  # id of this process
        self.is_alone = is_alone
        self.serves_http = False  # whether all workers need the same keys for `requestState`
        self._services = services
        self._backend: Backend = services.backend
        self._subjects: dict[str, Receive] = {_CHANGES: self._receive_changes}  # receivers of messages to all workers
        self._on_missed: list[Callable[[], None]] = []  # see `hear`
        self._on_direct: Receive | None = None
        self._leave_bus: list[Unsubscribe] = []
        self._facts = WorkerFacts("", 0, None, [])  # of this worker, set when it joins
        self._unsure_until = -math.inf  # until then, living workers may lack a lease, because the backend has lost it
        self._known_leases: dict[str, tuple[bytes, float]] = {}  # of other workers, and when each was first seen so
        self._missing_since: dict[str, float] = {}  # when a worker that listens was first seen without a lease
        self._renewing: asyncio.Task[None] | None = None
        self._renewed = -math.inf  # when this worker has renewed its lease; -inf: the lease may be missing
        self._lease_number = 0  # grows when the lease is stored after it may have been missing; 0: never stored
        self._doubted_until = -math.inf  # until then, others that have found the lease missing may act on that
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop while this worker is in the fleet
        self._entered_in: asyncio.AbstractEventLoop | None = None  # the event loop in which this worker was started
        self._entered = 0  # how often this worker was started and not stopped
        self._entering = asyncio.Lock()
        self._numbers = count(1)
        self._unconfirmed: dict[int, asyncio.Future[None]] = {}  # messages to one worker, by number
        self._missing: set[int] = set()  # those of them that have not arrived, as the receiver has said
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._unsent: dict[Change, None] = {}  # changes for the other workers; an ordered set
        self._unsent_characters = 0  # length of their URIs
        self._is_all_unsent = False  # whether there were too many: the others are told that everything may have changed
        self._sending: asyncio.Task[object] | None = None  # sends them
        self._background: set[asyncio.Task[object]] = set()  # this task, and others
        services.changes.subscribe(self._forward_change)

    # Joining and leaving.

    async def __aenter__(self) -> Self:
        """Join the fleet. Raises StartError if this worker cannot work with the others or with the backend.

        A server that starts again while it still stops stays in the fleet.
        """
        if self.is_alone:
            return self
        loop = asyncio.get_running_loop()
        if self._entered_in is not loop:  # for the first time, or an earlier event loop has ended
            self._entered_in, self._entered, self._entering = loop, 0, asyncio.Lock()
        async with self._entering:
            if self._entered == 0:
                await self._join()
            self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the fleet: send the last changes, end the lease, and close the backend."""
        if self.is_alone:
            return
        async with self._entering:
            self._entered -= 1
            if self._entered == 0:
                await self._leave()

    async def _join(self) -> None:
        await self._backend.start()
        try:
            # Before `_register`: a worker is found only if it listens. So of two that start at the same time, the later
            # one finds the other.
            own = _topic_of(self.worker)
            self._leave_bus.append(await self._backend.bus.subscribe(own, self._receive_direct))
            self._be_unsure()
            await self._register()
            self._leave_bus.append(await self._backend.bus.subscribe(_ALL, self._receive, self._on_gap))
        except BaseException:
            await self._leave()
            raise
        self._loop = asyncio.get_running_loop()
        self._renewing = self._loop.create_task(self._renew(), name="weft-lease")

    async def _leave(self) -> None:
        self._loop = None
        self._renewed = -math.inf  # others take over the work as soon as they know
        try:
            await asyncio.sleep(0)  # for the last changes to get into the queue
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.wait([self._renewing])
                self._renewing = None
            async with asyncio.timeout(LEAVE_SECONDS):
                if self._background:  # it sends the last changes
                    await asyncio.wait(self._background, timeout=LEAVE_SECONDS / 2)
                while self._leave_bus:
                    await self._leave_bus.pop()()
                await self._cancel_background()  # before the lease ends, which one of the tasks may renew
                await self._backend.sets.remove(_WORKERS, self.worker)
                await self._backend.store.put(_lease(self.worker), _SIGNED_OFF, ttl=LEFT_SECONDS)
                await self.publish(LEFT, b"")
        except (BackendUnavailable, TimeoutError, OSError) as error:
            why = str(error).strip().rstrip(".") or "no answer in time"
            log.warning(
                "This worker could not sign off from the backend (%s). The others notice within %g s.",
                why,
                LEASE_SECONDS,
            )
        except Exception:
            log.exception("the backend failed when this worker left the fleet")
        finally:
            self._leave_bus.clear()
            await self._cancel_background()
            if self._unsent or self._is_all_unsent:
                log.warning("The last changes of this worker were not sent to the others.")
                self._unsent, self._unsent_characters, self._is_all_unsent = {}, 0, False
            await self._backend.close()

    async def _register(self) -> None:
        """Store the facts about this worker. Raises StartError if another worker has other keys."""
        keys = self._services.state_keys
        must_agree = self.serves_http and not self._backend.is_local
        seals, opens = (keys.ids[0], list(keys.ids)) if must_agree else (None, [])
        self._facts = WorkerFacts(socket.gethostname(), os.getpid(), seals, opens)
        await self._take_lease()
        for other in await self.workers():
            if seals is None or other.seals is None:
                continue
            reads, is_read = other.seals in opens, seals in other.opens
            if not (reads and is_read):
                raise StartError(_other_keys(other, reads=reads, is_read=is_read))

    async def workers(self) -> list[WorkerFacts]:
        """Return the facts about all workers that are alive, except this one."""
        return await find_workers(self._backend, without=self.worker)

    async def _renew(self) -> None:
        """Renew the lease of this worker until the task is cancelled."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            try:
                await self._renew_once()
            except Exception as error:  # noqa: BLE001 - a Backend may raise anything
                _seldom.warning("The lease of this worker was not renewed: %s", error)

    async def _renew_once(self) -> None:
        if not await self._backend.store.touch(_lease(self.worker), ttl=LEASE_SECONDS):
            self._be_unsure()
            self._renewed = -math.inf  # others may have seen that it was missing
        await self._take_lease()

    async def _take_lease(self) -> None:
        self._facts = msgspec.structs.replace(self._facts, renewed=self._facts.renewed + 1)
        began = _own_clock()
        await self._backend.store.put(_lease(self.worker), msgspec.json.encode(self._facts), ttl=LEASE_SECONDS)
        await self._backend.sets.add(_WORKERS, self.worker, ttl=LEASE_SECONDS)
        was_missing = _own_clock() > self._renewed + LEASE_SECONDS
        self._renewed = began
        if was_missing:
            self._note_new_lease()

    def _note_new_lease(self) -> None:
        """Give the lease a new number, because it may have been missing. Others may have taken over work meanwhile."""
        self._lease_number += 1
        if self._lease_number > 1:  # else this worker has just joined
            self._doubted_until = _own_clock() + LEASE_SECONDS
            self._call_missed()

    @property
    def lease_number(self) -> int | None:
        """The number of this worker's lease; None if another worker may take over work of this worker now.

        As long as the number is the same, and not None, no other worker has taken over anything. For some time after
        the lease was missing, the number is None: a worker that has found it missing may not have acted on that yet.
        """
        if self.is_alone:
            return 0
        now = _own_clock()
        is_sure = self._doubted_until <= now < self._renewed + LEASE_SECONDS * 2 / 3
        return self._lease_number if is_sure else None

    def _be_unsure(self) -> None:
        """Note that leases may be missing: until all workers have renewed theirs, no worker counts as dead."""
        self._unsure_until = time.monotonic() + _renewed_seconds()

    def _on_gap(self) -> None:
        """Go on after the connection to the backend was broken: messages were missed, and leases may have expired."""
        self._services.changes.receive_all()
        self._be_unsure()
        self._in_background(self._renew_once())
        self._call_missed()

    def _call_missed(self) -> None:
        for missed in self._on_missed:
            missed()

    async def is_alive(self, worker: str) -> bool:
        """Return whether a worker renews its lease, or may lack it because the backend has lost data or was away."""
        if worker == self.worker:
            return True
        if self.is_alone:
            return False
        asked = time.monotonic()  # if this worker is paused now, the answer says nothing of the time after this
        lease = await self._backend.store.get(_lease(worker))
        if lease is not None:
            self._missing_since.pop(worker, None)
        if lease == _SIGNED_OFF:
            self._known_leases.pop(worker, None)
            return False
        if lease is not None:
            return self._is_renewed(worker, lease, asked) or time.monotonic() < self._unsure_until
        self._known_leases.pop(worker, None)
        if await self._backend.store.get(_lease(self.worker)) is None:  # this worker is alive, and others may be
            await self._renew_once()
        return time.monotonic() < self._unsure_until or await self._may_renew(worker, asked)

    def _is_renewed(self, worker: str, lease: bytes, asked: float) -> bool:
        """Return False if this lease should have been renewed or expired long ago: the backend's clock was set back.

        The lease was asked for at the time `asked`.
        """
        known, since = self._known_leases.get(worker, (None, asked))
        if lease != known:
            self._known_leases[worker] = lease, time.monotonic()
            return True
        return asked < since + 2 * LEASE_SECONDS

    async def _may_renew(self, worker: str, asked: float) -> bool:
        """Return whether a worker without a lease listens, and has not had the time to renew its lease yet.

        A worker that hangs listens, too: its connection to the backend is open.
        """
        if not await self.is_listening(worker):
            self._missing_since.pop(worker, None)
            return False
        return asked < self._missing_since.setdefault(worker, time.monotonic()) + _renewed_seconds()

    async def is_listening(self, worker: str) -> bool:
        """Return whether a worker is connected to the backend's bus now.

        A worker that was killed is disconnected at once, long before its lease expires. But a living worker, too, is
        disconnected for some moments after a failure of the backend.
        """
        return await _is_listening(self._backend, worker)

    # Messages to all workers.

    def hear(self, subject: str, receive: Receive, missed: Callable[[], None]) -> None:
        """Call `receive` with each message that another worker publishes under a subject. Call this before joining.

        `missed` is called when messages may have been lost, or when others may have taken this worker for dead.
        """
        self._subjects[subject] = receive
        self._on_missed.append(missed)

    async def publish(self, subject: str, body: bytes) -> None:
        """Send a message to all other workers. Does nothing if this worker is alone.

        They get all messages of this worker in the order in which it publishes them, also under different subjects.
        """
        if not self.is_alone:
            await self._backend.bus.publish(_ALL, _encode(_Message(self.worker, 0, body, subject=subject)))

    def _receive(self, encoded: bytes) -> None:
        self._receive_subject(_read_message(encoded))

    def _receive_subject(self, message: _Message) -> None:
        receive = self._subjects.get(message.subject)
        if message.sender != self.worker and message.body is not None and receive is not None:
            receive(message.body)

    # Messages to one worker.

    def hear_direct(self, receive: Receive) -> None:
        """Call `receive` with each message that another worker sends to this worker. Call this before joining."""
        self._on_direct = receive

    async def send(self, worker: str, body: bytes) -> bool:
        """Send a message to one worker, and wait until it has confirmed the message. Return False if it is dead.

        Raises BackendUnavailable if it is not dead, and has not confirmed the message in time. The body is sent once,
        and again only if the receiver says that it is missing. Until then, small questions are sent.
        """
        if self.is_alone:
            return False
        number = next(self._numbers)
        confirmed = self._unconfirmed[number] = asyncio.get_running_loop().create_future()
        message = _encode(_Message(self.worker, number, body))
        del body  # it may be large, and wait for long
        question = _encode(_Message(self.worker, number, None, "question"))
        next_sent = message
        try:
            async with asyncio.timeout(SEND_SECONDS):
                while True:
                    self._missing.discard(number)
                    heard = await self._backend.bus.publish(_topic_of(worker), next_sent)
                    if not heard and not await self.is_alive(worker):
                        return False
                    await asyncio.wait([confirmed], timeout=CONFIRM_SECONDS)
                    if confirmed.done():
                        return True
                    next_sent = message if number in self._missing else question
        except TimeoutError:
            raise BackendUnavailable(f"Worker {worker} did not confirm a message within {SEND_SECONDS:g} s.") from None
        finally:
            del self._unconfirmed[number]
            self._missing.discard(number)

    async def inform(self, workers: Iterable[str], subject: str, body: bytes) -> None:
        """Make sure that some workers have a message that is also published to all, before this method returns.

        Send it to each of them, and wait until those that are connected to the backend have confirmed it, but not
        longer than `INFORM_SECONDS`. It is not sent again: a worker that misses it has only the published one.
        """
        if informed := [self._inform(worker, subject, body) for worker in workers]:
            with suppress(TimeoutError):
                async with asyncio.timeout(INFORM_SECONDS):
                    await asyncio.gather(*informed, return_exceptions=True)

    async def _inform(self, worker: str, subject: str, body: bytes) -> None:
        number = next(self._numbers)
        message = _encode(_Message(self.worker, number, body, subject=subject))
        confirmed = self._unconfirmed[number] = asyncio.get_running_loop().create_future()
        try:
            if await self._backend.bus.publish(_topic_of(worker), message):
                await confirmed
        finally:
            del self._unconfirmed[number]

    def _receive_direct(self, encoded: bytes) -> None:
        """Receive a message to this worker, a question about one, or the answer about a message of this worker."""
        message = _read_message(encoded)
        key = message.sender, message.number
        if message.body is None:
            if message.about == "question":
                self._answer(message, "received" if key in self._seen else "missing")
            elif (confirmed := self._unconfirmed.get(message.number)) is None:
                pass  # its sender waits no more
            elif message.about == "missing":
                self._missing.add(message.number)
            elif not confirmed.done():
                confirmed.set_result(None)
            return
        if message.subject:  # of `inform`
            self._receive_subject(message)
        elif key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
            if self._on_direct is not None:
                self._on_direct(message.body)
        self._answer(message, "received")

    def _answer(self, message: _Message, about: Literal["received", "missing"]) -> None:
        """Tell the sender of a message whether this worker has it."""
        answer = _encode(_Message(self.worker, message.number, None, about))
        self._in_background(self._backend.bus.publish(_topic_of(message.sender), answer))

    # Changes.

    def _forward_change(self, change: Change) -> None:
        """Send a change of this worker to the others, soon. Called from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._queue_change, change)

    def _queue_change(self, change: Change) -> None:
        self._add_unsent([change])
        if self._sending is None or self._sending.done():
            self._sending = self._in_background(self._send_changes())

    def _add_unsent(self, changes: list[Change]) -> None:
        """Add changes to those that wait. If there are too many, the others are told that everything changed."""
        for change in changes:
            if change not in self._unsent:
                self._unsent[change] = None
                self._unsent_characters += len(change.uri or "") + len(change.part_of or "")
        if len(self._unsent) > MOST_CHANGES or self._unsent_characters > MOST_CHANGE_CHARACTERS:
            self._is_all_unsent = True
        if self._is_all_unsent:
            self._unsent, self._unsent_characters = {}, 0

    async def _send_changes(self) -> None:
        """Send the changes that wait. If the backend fails, try again until this worker leaves the fleet."""
        while self._unsent or self._is_all_unsent:
            sent = _SentChanges(list(self._unsent), self._is_all_unsent)
            self._unsent, self._unsent_characters, self._is_all_unsent = {}, 0, False
            try:
                await self.publish(_CHANGES, _encode(sent))
            except BaseException as error:  # a Backend may raise anything
                self._is_all_unsent = self._is_all_unsent or sent.is_all
                newer, self._unsent, self._unsent_characters = list(self._unsent), {}, 0
                self._add_unsent([*sent.changes, *newer])
                if not isinstance(error, Exception):
                    raise
                if self._loop is None:
                    return  # `_leave` warns
                _seldom.warning("Changes cannot be sent to the other workers yet: %s", error)
                await asyncio.sleep(1)

    def _receive_changes(self, body: bytes) -> None:
        received = _read_changes(body)
        if received.is_all:
            self._services.changes.receive_all()
        for change in received.changes:
            self._services.changes.receive(change)

    # Background tasks.

    def _in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        task = asyncio.get_running_loop().create_task(work, name="weft-fleet")
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    async def _cancel_background(self) -> None:
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)

    def _background_done(self, task: asyncio.Task[object]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _seldom.warning("A message to another worker was not sent: %s", error)


async def find_workers(backend: Backend, without: str = "") -> list[WorkerFacts]:
    """Return the facts about all workers of a server that are alive, except `without`.

    `backend` is the part of the backend that belongs to the server.
    """
    found: list[WorkerFacts] = []
    for worker in await backend.sets.names(_WORKERS):
        facts = await backend.store.get(_lease(worker)) if worker != without else None
        if facts and await _is_listening(backend, worker):
            try:
                found.append(_read_facts(facts))
            except msgspec.DecodeError as error:
                log.warning("The lease of worker %s cannot be read, and is ignored: %s", worker, error)
    return found


async def _is_listening(backend: Backend, worker: str) -> bool:
    return await backend.bus.publish(_topic_of(worker), _encode(_Message("", 0, None))) > 0


def is_worker_id(text: str) -> bool:
    """Return whether a text can be the id of a worker. Others must not be part of a key of the backend.

    >>> is_worker_id("0123456789ab"), is_worker_id("../else")
    (True, False)
    """
    return len(text) == 2 * _ID_BYTES and not text.strip("0123456789abcdef")


def _lease(worker: str) -> str:
    return f"worker/{worker}"


def _topic_of(worker: str) -> str:
    """Return the topic for messages to one worker."""
    return f"worker/{worker}"


def _own_clock() -> float:
    """Return the seconds of a clock by which a worker judges its own lease: it goes on while the machine sleeps.

    `time.monotonic` does not on many systems. Leases of others are judged by that one, because the backend may have
    slept, too. So each clock errs on the safe side.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))  # of Linux; of others
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _renewed_seconds() -> float:
    """Return the time within which every living worker has renewed its lease."""
    return LEASE_SECONDS / 2


def _other_keys(other: WorkerFacts, *, reads: bool, is_read: bool) -> str:
    """Return why a worker is refused: whether it `reads` the states of the other worker, and its own are read there."""
    which = f"process {other.process} on {other.host}"
    if reads:
        return (
            f"P{which[1:]} does not know the first key of WEFT_STATE_KEY yet, so it could not continue calls of this "
            "worker. Start all workers with WEFT_STATE_KEY=old,new first."
        )
    if is_read:
        return (
            f"This worker does not know the key with which {which} encrypts, so it could not continue calls of that "
            "worker. Keep the old key after the new one until all workers encrypt with the new one: "
            "WEFT_STATE_KEY=new,old."
        )
    return (
        f"Another worker of this server ({which}) uses another key for `requestState`, "
        "so neither could continue the other's calls. Set the same WEFT_STATE_KEY everywhere. To change the key, list "
        "both: first WEFT_STATE_KEY=old,new on all workers, then new,old, and then new."
    )
