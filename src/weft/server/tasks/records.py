"""Store tasks in the Backend: their state, their journal, and which worker runs them.

Of each task there are two things. The *record* is small and changes often: status, questions, answers, and the result
when there is one. It is changed by compare-and-set, so that workers that change it at the same time lose nothing. What
is large of it is stored beside it (`weft.server.tasks.parts`), and read by those who need it (`fill`).

The *journal* is a log, to which only is added: first the request, then each result of `ctx.once` and each answer. The
handler can run again from it, on any worker. All expire when the task's time to live is over.

Two kinds of sets find tasks: those that a worker must run (`tasks-at`), and those of one caller (`tasks-of`).

If the Backend fails, a run tries again, but not if a value cannot be encoded: that would be so each time. By
`TaskRecords.guarded`, it knows which of the two has happened. A record that cannot be decoded is treated as if it was
not there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Raw, field

from weft.backends import Backend, Unsubscribe
from weft.errors import BackendUnavailable, InternalError
from weft.jsonrpc import to_unicode
from weft.net.logs import Seldom
from weft.server.calls.connection import TokenInfo
from weft.server.diagnostics import summary_of
from weft.server.tasks.parts import APART, Part, pack, set_value, unpack, values_of
from weft.types.base import Implementation, LogLevel, ProgressToken, RequestId
from weft.types.lifecycle import ClientCapabilities
from weft.types.tasks import NOTHING, SHOWN_OF_TASK_ID, TaskState

T = TypeVar("T")

_seldom = Seldom(logging.getLogger("weft.tasks"))

MOST_SWAPS = 20  # attempts to change a record that others change at the same time
_SWAP_PAUSE = 0.01  # seconds: longest pause after the second attempt; it grows with each attempt
_ID_BYTES = 18  # of a task id: 144 random bits
_LEAST_SECONDS = 0.05  # shortest time to live of an entry
_LATE_SECONDS = 5.0  # how long an expired task is stored whose handler must be stopped, so that it can fail
_WORKERS = "task-workers"  # set of the workers that may have tasks to run, also of dead ones

# What is to be done for a task: a worker must run its handler, runs it, waits for answers, waits for a program outside,
# or nothing, because the task has ended.
Work: TypeAlias = Literal["queued", "running", "asking", "external", "over"]


class AskedQuestion(msgspec.Struct, array_like=True, gc=False):
    """A question that a task has asked: the handler's key for it, and the digest of its content."""

    name: str
    digest: str
    by_hand: bool = False  # whether the handler returned it, instead of calling `ctx.elicit` or the like


class GivenAnswer(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """An answer to a question: its JSON, or why there is none."""

    value: Raw = NOTHING
    failure: str | None = None  # why the client did not answer; None if it has answered
    code: int | None = None  # code of the client's error
    data: Any = None


class JournalEntry(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One entry of a journal after the request: a result of `ctx.once`, or an answer."""

    kind: Literal["once", "answer"]
    name: str = ""
    value: Raw = NOTHING  # of a result
    asked: AskedQuestion | None = None  # of an answer: the question
    answer: GivenAnswer | None = None


class TaskRequest(msgspec.Struct, array_like=True, gc=False):
    """The request that has become a task, with all that is needed to run its handler again on another worker."""

    id: RequestId
    params: Raw
    version: str
    client_info: Implementation | None
    client_capabilities: ClientCapabilities
    log_level: LogLevel | None
    headers: list[tuple[bytes, bytes]] | None  # of HTTP, those without secrets; None on stdio
    token_info: TokenInfo | None
    address: str  # address or pipe of the client
    logical: str  # id of the logical call, if it had rounds before it became a task
    knows_client: bool  # whether the capabilities are known


class TaskRecord(TaskState, array_like=True, kw_only=True):
    """The state of a task as it is stored, with what workers need to know."""

    tool: str
    version: str  # protocol version of the call
    owner: str  # name under which the caller's tasks are listed: see `owner_of`
    principal: str | None  # caller to whom the task belongs; None without authorization
    scopes: tuple[str, ...]  # that the tool needed when it was called: it may not exist any more
    work: Work = "queued"
    runner: str = ""  # worker that must run the handler, or runs it
    counted_at: list[str] = field(default_factory=list[str])  # workers that count the task; first that of its creation
    restarts: bool = True  # whether the handler runs again if its worker dies or stops
    asked: dict[str, AskedQuestion] = field(default_factory=dict[str, AskedQuestion])  # every question so far, by key
    answers: dict[str, GivenAnswer] = field(default_factory=dict[str, GivenAnswer])  # not in the journal yet
    deaths: int = 0  # workers in a row that died while running this task, without a new entry in the journal
    last_entry: int = 0  # number of the newest entry of the journal when the task was taken over the last time
    progress_token: ProgressToken | None = None  # of the request; it stays valid as long as the task lives
    progress: float | None = None  # greatest progress that the handler has reported
    total: float | None = None
    session_id: str | None = None
    sealed_for: str = ""  # protocol version for which `result` is sealed; empty: for none
    output_schema: Raw = NOTHING  # of the tool, for a program outside that gives the result
    state: Raw = NOTHING  # that the handler has returned with `InputRequired` the last time
    apart: dict[str, Part] = field(default_factory=dict[str, Part])  # large values that are stored elsewhere, by name
    is_handed_over: bool = False  # whether the work was given to a program outside, or is about to be given

    @property
    def expires(self) -> float:
        """The time (Unix, in seconds) until which the task is kept."""
        return self.created + self.ttl

    @property
    def seconds_left(self) -> float:
        """Seconds until the task expires."""
        return max(self.expires - time.time(), _LEAST_SECONDS)

    @property
    def seconds_stored(self) -> float:
        """Seconds for which the record is stored. While a handler runs, there is time to note that it was stopped."""
        return self.seconds_left + (_LATE_SECONDS if self.work in ("queued", "running") else 0.0)

    @property
    def size(self) -> int:
        """The bytes of what can be large: the result or the error, the questions, the answers, the state."""
        return sum(self.apart[name].size if value is APART else len(bytes(value)) for name, value in values_of(self))

    @property
    def answers_size(self) -> int:
        """The bytes of all answers that are not in the journal yet."""
        return sum(
            self.apart[f"answer {key}"].size if answer.value is APART else len(bytes(answer.value))
            for key, answer in self.answers.items()
        )

    def end(self, status: Literal["completed", "failed"], *, kept_seconds: float) -> None:
        """Note that the task has ended with this status. It is kept for at least `kept_seconds` from now."""
        self._end(status)
        self.ttl = max(self.ttl, time.time() - self.created + kept_seconds)

    def fail(self, why: str, *, kept_seconds: float) -> None:
        """Note that the task has failed for a reason of the server. It is kept for at least `kept_seconds` from now."""
        self.end("failed", kept_seconds=kept_seconds)
        self.message = to_unicode(why)
        self.error = Raw(_encode({"code": InternalError.code, "message": self.message}))

    def cancel(self, *, kept_seconds: float) -> None:
        """Note that the task was cancelled. It is kept for `kept_seconds` from now, unless it expires before."""
        self._end("cancelled")
        self.message = "The task was cancelled."
        self.ttl = min(self.ttl, time.time() - self.created + kept_seconds)

    def _end(self, status: Literal["completed", "failed", "cancelled"]) -> None:
        self.status = status
        self.work = "over"
        self.updated = max(time.time(), self.updated)
        self.questions, self.answers, self.state = {}, {}, NOTHING

    def must_run_at(self, worker: str) -> bool:
        """Return whether a worker must run the handler, or runs it."""
        return self.work in ("queued", "running") and self.runner == worker

    def run_at(self, worker: str) -> None:
        """Let another worker run the handler."""
        self.runner = worker
        self.count_at(worker)

    def count_at(self, worker: str) -> None:
        """Note that a worker counts what is stored of the task."""
        if worker not in self.counted_at:
            self.counted_at.append(worker)

    def accept(self, key: str, answer: GivenAnswer) -> bool:
        """Note the answer to an unanswered question. Return False if there is no such question."""
        if self.questions.pop(key, None) is None:
            return False
        self.answers[key] = answer
        if not self.questions and self.status == "input_required":
            self.status = "working"
        return True

    def ask(self, name: str, question: AskedQuestion, request: Raw) -> str:
        """Note a question, and return its key on the wire: the handler's key, or a longer one if that was used before.

        A key never stands for two questions, and is not used again after its answer.
        """
        number, key = 1, name
        while (known := self.asked.get(key)) is not None and (key not in self.questions or known != question):
            number += 1
            key = f"{name}~{number}"
        self.asked[key] = question
        self.questions[key] = request
        self.status = "input_required"
        return key

    def to_entry(self, key: str, answer: GivenAnswer) -> JournalEntry:
        """Return the entry of the journal for the answer to the question `key`."""
        return JournalEntry("answer", asked=self.asked[key], answer=answer)

    def withdraw(self, keys: Iterable[str]) -> None:
        """Remove unanswered questions that are not asked any more."""
        for key in keys:
            self.questions.pop(key, None)
        if not self.questions and self.status == "input_required":
            self.status = "working"


_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(TaskRecord).decode
_decode_request = msgspec.json.Decoder(TaskRequest).decode
_decode_entry = msgspec.json.Decoder(JournalEntry).decode
encode_request = _encode


def new_task_id() -> str:
    """Return a new id that cannot be guessed. It does not begin with "-", which command lines take for an option."""
    while (id := secrets.token_urlsafe(_ID_BYTES)).startswith("-"):
        pass
    return id


def is_task_id(text: str) -> bool:
    """Return whether a text can be the id of a task. Others must not be part of a key of the backend.

    >>> is_task_id(new_task_id()), is_task_id("../else")
    (True, False)
    """
    return 16 <= len(text) <= 64 and text.replace("-", "").replace("_", "").isalnum() and text.isascii()


def owner_of(peer: str) -> str:
    """Return the name under which the tasks of a principal or address are listed."""
    return hashlib.sha256(peer.encode()).hexdigest()[:32]


class TaskRecords:
    """Reads and writes the records, journals and sets of all tasks of one server.

    >>> from weft.backends.memory import MemoryBackend
    >>> asyncio.run(TaskRecords(MemoryBackend()).read(new_task_id())) is None
    True
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = backend.store

    def guarded(self) -> TaskRecords:
        """Return the same records, with methods that turn every exception of the Backend into BackendUnavailable.

        All other exceptions of these methods are of values that cannot be encoded, or of `edit` (see `change`).
        """
        return TaskRecords(cast("Backend", _Guarded(self._backend)))

    # The record.

    async def add(self, record: TaskRecord) -> None:
        """Store the record of a new task. From now on, the task exists for its caller."""
        stored, contents = pack(record)
        await self._put_parts(record, contents)
        await self._store.put(_record(record.id), _encode(stored), ttl=record.seconds_stored)

    async def remove(self, record: TaskRecord) -> None:
        """Remove everything of a task that was not created completely."""
        id = record.id
        await self._store.delete(_record(id))
        await asyncio.gather(self.forget_journal(id), self.unassign(id, record.runner), self.delist(id, record.owner))

    async def forget(self, record: TaskRecord) -> None:
        """Forget what is not needed any more of a task that has ended, and list it as long as it can be read."""
        await asyncio.gather(
            self.forget_journal(record.id), self.enlist(record.id, record.owner, ttl=record.seconds_left)
        )

    async def read(self, id: str) -> TaskRecord | None:
        """Return the record of a task; None if there is no such task, or if it has expired.

        Large values are not loaded: see `fill`.
        """
        data = await self._store.get(f"task/{id}") if is_task_id(id) else None
        return None if data is None else _read_record(data, id)

    async def fill(self, record: TaskRecord | None, *kinds: str) -> TaskRecord | None:
        """Load large values of a record that are stored elsewhere, and return it; None if the task has expired.

        If the record was changed meanwhile, return the new one. `kinds` are the values that are needed: "result",
        "error", "state", "output_schema", "question", "answer".
        """
        lost: Part | None = None  # a value that is not there
        while record is not None:
            missing = None
            for name, value in list(values_of(record)):
                if value is APART and name.partition(" ")[0] in kinds:
                    part = record.apart[name]
                    content = await self._store.get(_part(record.id, part.digest))
                    if content is None:
                        missing = part
                        break
                    set_value(record, name, Raw(content))
            if missing is None:
                return record
            if missing == lost:  # it has expired
                return None
            lost, record = missing, await self.read(record.id)
        return None

    async def _put_parts(self, record: TaskRecord, contents: dict[str, bytes]) -> None:
        for digest, content in contents.items():
            await self._store.put(_part(record.id, digest), content, ttl=record.seconds_stored)

    async def change(self, id: str, edit: Callable[[TaskRecord], bool], *, is_told: bool = True) -> TaskRecord | None:
        """Change the record of a task, and return the new record; None if there is no such task.

        `edit` changes the record that it gets, and returns False if nothing is to be stored. It is called again if
        others have changed the record meanwhile. Those who watch the task are told, unless `is_told` is False. Raises
        BackendUnavailable if others change the record all the time.
        """
        for attempt in range(MOST_SWAPS):
            data = await self._store.get(_record(id))
            if data is None:
                return None
            record = _read_record(data, id)
            if record is None:
                return None
            before = {part.digest for part in record.apart.values()}
            if not edit(record):
                return record
            if is_told:
                record.updated = max(time.time(), record.updated)
            stored, contents = pack(record)
            await self._put_parts(record, contents)
            if await self._store.swap(_record(id), data, _encode(stored), ttl=record.seconds_stored):
                for digest in before - {part.digest for part in record.apart.values()}:
                    await self._store.delete(_part(id, digest))
                if is_told:
                    await self.tell(id)
                return record
            await asyncio.sleep(random.uniform(0, _SWAP_PAUSE * attempt))  # noqa: S311 - no secret
        raise BackendUnavailable(f"A task was not saved: others have changed it {MOST_SWAPS} times meanwhile.")

    # Watching.

    async def tell(self, id: str) -> None:
        """Tell all who watch a task that its record has changed."""
        await self._backend.bus.publish(f"task/{id}", b"")

    async def watch(self, id: str, wake: Callable[[], object]) -> Unsubscribe:
        """Call `wake` whenever the record of a task changes, or may have changed. Return a function that ends this."""
        return await self._backend.bus.subscribe(f"task/{id}", lambda _: _call(wake), lambda: _call(wake))

    @asynccontextmanager
    async def watched(self, id: str, wake: Callable[[], object]) -> AsyncGenerator[None]:
        """Call `wake` whenever the record of a task changes, or may have changed, within the `async with` block."""
        unwatch = await self.watch(id, wake)
        try:
            yield
        finally:
            await unwatch()

    # The journal.

    async def begin_journal(self, id: str, request: bytes, entries: Sequence[JournalEntry], *, ttl: float) -> None:
        """Write the request of a new task, encoded by `encode_request`, and what was recorded before it was a task.

        The request is no entry of the log: even a short log has 4 KiB in Redis, which most waiting tasks do not need.
        """
        await self._store.put(_request(id), request, ttl=ttl)
        for entry in entries:
            await self.append(id, entry, ttl=ttl)

    async def append(self, id: str, entry: JournalEntry, *, ttl: float) -> None:
        """Add an entry to the journal of a task."""
        await self._backend.log.append(_journal(id), _encode(entry), ttl=ttl, most=_ENDLESS)

    async def last_entry(self, id: str) -> int:
        """Return the number of the newest entry of a task's journal."""
        return await self._backend.log.last(_journal(id))

    async def forget_journal(self, id: str) -> None:
        """Delete the journal of a task that has ended."""
        await asyncio.gather(self._store.delete(_request(id)), self._backend.log.delete(_journal(id)))

    async def read_journal(self, id: str) -> tuple[TaskRequest, list[JournalEntry]] | None:
        """Return the request of a task and the entries of its journal; None if they are not there, or unreadable."""
        data, rows = await asyncio.gather(self._store.get(_request(id)), self._backend.log.read(_journal(id), 0))
        request = None if data is None else _read(_decode_request, data, id)
        entries = _read(_decode_entries, [entry for _, entry in rows or ()], id)
        return None if request is None or entries is None else (request, entries)

    # The tasks of a worker.

    async def assign(self, id: str, worker: str, *, ttl: float) -> None:
        """Note that a worker must run a task. Call this before the record says so: then no task is ever forgotten."""
        await self._backend.sets.add(f"tasks-at/{worker}", id, ttl=ttl)

    async def unassign(self, id: str, worker: str) -> None:
        """Note that a worker need not run a task any more."""
        await self._backend.sets.remove(f"tasks-at/{worker}", id)

    async def assigned(self, worker: str) -> Sequence[str]:
        """Return the ids of the tasks that a worker must run."""
        return await self._backend.sets.names(f"tasks-at/{worker}")

    async def list_worker(self, worker: str, *, ttl: float) -> None:
        """Note that a worker may have tasks to run, for others to see after its death."""
        await self._backend.sets.add(_WORKERS, worker, ttl=ttl)

    async def unlist_worker(self, worker: str) -> None:
        """Note that a worker has no tasks to run any more."""
        await self._backend.sets.remove(_WORKERS, worker)

    async def workers(self) -> Sequence[str]:
        """Return the workers that may have tasks to run, also dead ones."""
        return await self._backend.sets.names(_WORKERS)

    # The tasks of a caller.

    async def enlist(self, id: str, owner: str, *, ttl: float, most: int | None = None) -> bool:
        """Count a task as one of `owner` for `ttl` seconds. Return False if the owner has `most` tasks already."""
        return await self._backend.sets.add(f"tasks-of/{owner}", id, ttl=ttl, most=most)

    async def delist(self, id: str, owner: str) -> None:
        """Do not count a task any more, because it was not created."""
        await self._backend.sets.remove(f"tasks-of/{owner}", id)

    async def listed(self, owner: str) -> Sequence[str]:
        """Return the ids of the tasks of `owner`, sorted."""
        return await self._backend.sets.names(f"tasks-of/{owner}")


_ENDLESS = 2**31  # entries of a log: no entry of a journal is ever dropped. `Limits.task_steps` bounds them


class _Guarded:
    """The store, log, sets and bus of a Backend, with methods that turn its exceptions into BackendUnavailable."""

    def __init__(self, backend: Backend) -> None:
        self.store, self.log = _GuardedPart(backend.store), _GuardedPart(backend.log)
        self.sets, self.bus = _GuardedPart(backend.sets), _GuardedPart(backend.bus)


class _GuardedPart:
    def __init__(self, part: object) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return partial(guarded, getattr(self._part, name))


async def guarded(method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any) -> Any:
    """Call a method that uses a Backend, and turn every exception of it into BackendUnavailable."""
    try:
        return await method(*args, **options)
    except BackendUnavailable:
        raise
    except Exception as error:
        raise BackendUnavailable(f"The backend raised {summary_of(error)}") from error


def _decode_entries(rows: Sequence[bytes]) -> list[JournalEntry]:
    return [_decode_entry(row) for row in rows]


def _read(decode: Callable[[Any], T], data: object, id: str) -> T | None:
    """Return what is stored of a task; None if it cannot be decoded, so that the task cannot go on."""
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        text = "What is stored of task %s cannot be read, so that the task does not exist any more: %s"
        _seldom.error(text, id[:SHOWN_OF_TASK_ID], error, about=id)
        return None


def _read_record(data: bytes, id: str) -> TaskRecord | None:
    record = _read(_decode_record, data, id)
    return None if record is None else unpack(record)


def _call(wake: Callable[[], object]) -> None:
    wake()


def _record(id: str) -> str:
    return f"task/{id}"


def _part(id: str, digest: str) -> str:
    return f"task-part/{id}/{digest}"


def _request(id: str) -> str:
    return f"task-request/{id}"


def _journal(id: str) -> str:
    return f"journal/{id}"
