"""Hold one run of a task's handler: its call, its journal, its progress, and what it must not do any more.

A run belongs to one worker. Before each function of `ctx.once`, it checks that the worker still has the task: after a
long break, another worker may have taken it over. The result of the function is stored before the handler gets it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw

from weft.eras.base import Envelope, find_revision
from weft.errors import BackendUnavailable, UsageError
from weft.net.logs import Seldom
from weft.protocol.headers import read as read_headers
from weft.protocol.revisions import METHODS
from weft.server.calls.call import Call, Reply
from weft.server.calls.execution import Threads
from weft.server.calls.shares import SizedShares
from weft.server.diagnostics import caller, read_message
from weft.server.runtime.admission import Busy
from weft.server.runtime.runtime import Runtime
from weft.server.tasks.records import JournalEntry, TaskRecord, TaskRecords, TaskRequest, owner_of
from weft.server.tasks.rounds import TaskJournal, TaskRound
from weft.types.base import Result
from weft.types.features import CallToolParams

T = TypeVar("T")

log = logging.getLogger("weft.tasks")
_seldom = Seldom(log)

REPORT_SECONDS = 0.25  # shortest time between two progress messages that are stored
MOST_MESSAGE = 1000  # characters of a status message; the rest is cut
_AGAIN_SECONDS = 1.0  # longest pause between two attempts to write to a Backend that fails

# Why a run is stopped before its handler has ended: the client has cancelled the task, its time to live is over, the
# worker stops, or another worker has the task.
Reason: TypeAlias = Literal["cancelled", "expired", "stopping", "lost"]


class ExternalWork(Result, kw_only=True):
    """What a handler returns if a program outside of the server does the work: see `CallTask.external`."""

    submit: Callable[..., Any]
    arguments: tuple[Any, ...]
    message: str | None = None
    place: str = ""  # where the handler has made it

    def __await__(self) -> Any:
        """Raise UsageError: this is no coroutine."""
        raise UsageError("ctx.task.external(...) cannot be awaited. Write `return ctx.task.external(...)`.")


class CallTask:
    """The task of a call, for the handler of a tool with `task=`: `ctx.task`."""

    __slots__ = ("_run", "described")

    def __init__(self, run: TaskRun | None = None) -> None:
        self._run = run
        self.described: list[ExternalWork] = []  # work that the handler wants to hand over, if it returns it

    @property
    def id(self) -> str | None:
        """The id of the task; None while the call is no task, because the client gets a plain answer."""
        return self._run.id if self._run is not None and self._run.is_task else None

    def external(self, submit: Callable[..., Any], *args: Any, message: str | None = None) -> Any:
        """Hand the work over to a program outside of the server. Return the value that this method returns.

        Weft calls `submit(task_id, *args)` once, when the task is stored: it may be sync or async, and should only pass
        on the work, such as `celery_task.delay`. The program then reports with `TaskStore(url).progress(task_id, ...)`,
        and ends the task with `complete` or `fail`. `message` is shown to the client until then.
        """
        if message is not None:
            message = read_message(message, "ctx.task.external")
        if not callable(submit):
            raise UsageError(
                "ctx.task.external(...) takes the function that passes on the work, and its arguments: "
                "ctx.task.external(render.delay, scene). It is called with the task's id first."
            )
        work = ExternalWork(submit=submit, arguments=args, message=message, place=caller())
        self.described.append(work)
        return work


class NoTask(CallTask):
    """Stands for the task of a call that cannot become one: of a tool without `task=`, a resource or a prompt."""

    __slots__ = ()

    def external(self, submit: Callable[..., Any], *args: Any, message: str | None = None) -> Any:
        """Raise UsageError: there is no task whose work could be handed over."""
        raise UsageError(
            "ctx.task.external(...) hands over the work of a task. Register the tool with task='optional' or "
            "task='required'."
        )


class PlainCall:
    """Stands for the task of a call that gets a plain answer, because its client does not know of tasks."""

    is_task = False
    session_id: str | None = None
    threads: Threads | None = None  # those of all calls

    def __init__(self) -> None:
        self.public = CallTask()
        self.returned: ExternalWork | None = None  # what the handler has returned, if a program outside does the work


class TaskReply:
    """The reply of a call that is a task, or may become one. A task has none: it sends nothing by itself."""

    def __init__(self, origin: Reply | None = None) -> None:
        self.origin = origin  # the reply of the request, until it is answered with the task

    @property
    def can_stream(self) -> bool:
        """Whether the client gets notifications before the answer."""
        return self.origin is not None and self.origin.can_stream

    @property
    def answered(self) -> bool:
        """Whether nothing more can be sent."""
        return self.origin is not None and self.origin.answered

    async def notify(self, message: bytes) -> None:
        """Send a notification, if the request is not answered yet."""
        if self.origin is not None:
            await self.origin.notify(message)

    async def close_stream(self, retry_seconds: float) -> None:
        """Close the stream of the request, if it is not answered yet."""
        if self.origin is not None:
            await self.origin.close_stream(retry_seconds)

    async def end(self) -> None:
        """Do nothing: only listen streams end without an answer."""

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Add a challenge to the response, if the request is not answered yet."""
        if self.origin is not None:
            self.origin.challenge(scheme, parameters)

    def epilogue(self, message: bytes) -> None:
        """Do nothing: no message follows the answer."""


class RunThreads(Threads):
    """The threads of all tasks, as one run uses them: it knows whether one of its functions still runs.

    A function in a thread cannot be stopped. So the task keeps its place until the function ends, also if the task was
    cancelled: else a caller could take all threads, by cancelling its tasks.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._running = 0
        self._free: Callable[[], object] | None = None  # called when no function runs any more

    async def run(self, fn: Callable[..., Any], kwargs: Mapping[str, Any], *, to_end: bool = False) -> Any:
        """Call `fn(**kwargs)` in a thread: see `Threads.run`."""
        counted: Callable[..., Any] = partial(self._counted, asyncio.get_running_loop(), fn)
        return await self._threads.run(counted, kwargs, to_end=to_end)

    def when_free(self, call: Callable[[], object]) -> None:
        """Call a function as soon as no function of the run is in a thread."""
        with self._lock:
            if self._running:
                self._free = call
                return
        call()

    def _counted(self, loop: asyncio.AbstractEventLoop, fn: Callable[..., Any], **kwargs: Any) -> Any:
        with self._lock:
            self._running += 1
        try:
            return fn(**kwargs)
        finally:
            with self._lock:
                self._running -= 1
                free = None if self._running else self._free
            if free is not None:
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(free)


class TaskRoom(Protocol):
    """What runs of tasks share: the runner of this worker."""

    runtime: Runtime
    records: TaskRecords
    threads: Threads  # run plain functions of tasks
    shares: SizedShares  # count the bytes of all tasks


class TaskRun:
    """One run of a tool's handler, as a task or as a call that may become one."""

    def __init__(self, runner: TaskRoom, id: str, call: Call, reply: TaskReply, *, known: TaskJournal | None) -> None:
        self.id = id
        self.call = call
        self.owner = owner_of(call.peer)  # whose tasks and bytes are counted
        self.reply = reply
        self.threads = RunThreads(runner.threads)
        self.is_task = known is not None  # whether the task is stored; else the call may become one
        self.becoming: asyncio.Future[None] | None = None  # done when the call has become a task, or could not
        self.returned: ExternalWork | None = None  # what the handler has returned, if a program outside does the work
        self.external: ExternalWork | None = None  # the same, if no middleware has turned the call into a failure
        self.has_answered = False  # whether the handler and all middleware have ended
        self.stopped: Reason | None = None  # why this run was stopped; None if it was not
        self.task: asyncio.Task[Any] | None = None  # runs the handler
        self.ending: asyncio.TimerHandle | None = None  # stops the handler when the task expires
        self.parked = 0  # bytes of the state and the questions of the last run, which are counted
        self.has_ended = False  # whether the task has ended, so that nothing more is stored of this run
        self.expires = math.inf  # Unix time at which the task's time to live is over
        self.session_id: str | None = None  # session in which the task was created, if there was one
        self._room = runner
        self._runtime = runner.runtime
        self._records = runner.records
        self._lease = self._runtime.fleet.lease_number  # of this worker when the task was surely ours; None: unknown
        self._size = 0 if known is None else known.size  # bytes in the journal
        self._entries = 0 if known is None else len(known.journal.once) + len(known.journal.answers)
        self._report: tuple[float, float | None, str | None] | None = None  # progress that is not stored yet
        self._text: str | None = None  # a later text, which is not stored yet
        self._greatest: float | None = None  # greatest progress that was reported
        self._reported = -math.inf  # monotonic time of the last stored progress
        self._storing: asyncio.TimerHandle | asyncio.Task[None] | None = None  # stores progress soon
        self._is_closed = False  # whether progress is only stored with the end of the run
        self._unfinished: set[asyncio.Task[Any]] = set()  # write to the journal; must not be cancelled
        call.task = self
        self.round = TaskRound(call, self, known)
        call.asker = self.round
        self.public = CallTask(self)

    # Stopping.

    def stop(self, reason: Reason) -> None:
        """Stop the handler, because of `reason`. A second reason is ignored."""
        if self.stopped is None:
            self.stopped = reason
            self.call.cancellation.cancel(reason)

    async def check(self) -> None:
        """Return if a function of `ctx.once` may run now. If the run is stopped, raise `asyncio.CancelledError`.

        A run that is stopped because the worker stops is cancelled only when its other functions have ended, so this
        waits until then. Raises UsageError if the journal has no room for the result.
        """
        if self.becoming is not None:
            await asyncio.wait([self.becoming])
        if not self.is_task:
            return
        limits = self._runtime.limits
        if self._entries >= limits.task_steps:
            raise UsageError(
                f"{self.call.described} has called ctx.once {self._entries} times. Put several steps into one "
                "function, or raise Limits(task_steps=...)."
            )
        if not await self._is_still_ours():
            self.stop("lost")
        if self.stopped is not None:
            ends: list[asyncio.Future[Any]] = [self.call.cancellation.happened]
            if self.task is not None:  # its handler may have ended, and this code outlives it
                ends.append(self.task)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            raise asyncio.CancelledError

    async def _is_still_ours(self) -> bool:
        """Return whether no other worker has taken over the task. The record is read only if that is possible."""
        fleet = self._runtime.fleet
        while (number := fleet.lease_number) is None or number != self._lease:  # again: it may be paused meanwhile
            if not await self.surely(self._is_ours):
                return False
            self._lease = number
            if number is None:
                break
        return True

    async def _is_ours(self) -> bool:
        record = await self._records.read(self.id)
        return record is not None and record.work == "running" and record.runner == self._runtime.fleet.worker

    # The journal.

    async def keep(self, key: str, value: Raw) -> None:
        """Store a result of `ctx.once` in the journal. If the Backend fails, try again until the task expires.

        Drop it if another worker has the task: that one calls the function again, and goes on with its own result. A
        later run must not find another one.
        """
        self.round.journal.once[key] = value  # at once: the call may become a task in this moment
        await self._to_end(self._keep(key, value))

    async def _keep(self, key: str, value: Raw) -> None:
        if self.becoming is not None:
            await asyncio.wait([self.becoming])
        if self.has_ended or self.stopped in ("cancelled", "expired", "lost"):  # the function was in a thread
            return
        if self.is_task and not await self._is_still_ours():
            self.stop("lost")
        elif self.is_task:
            self._size += len(bytes(value))
            self._entries += 1
            if self._size > self._runtime.limits.task_bytes:
                raise UsageError(
                    f"The results of ctx.once in {self.call.described} have {self._size} bytes together, more than "
                    f"{self._runtime.limits.task_bytes}. Store large values elsewhere and keep their keys, or raise "
                    "Limits(task_bytes=...)."
                )
            size, left = len(bytes(value)), max(self.expires - time.time(), 1.0)
            if not self._room.shares.take(self.id, self.owner, size, left):
                raise Busy("The server has no room for more results of your tasks. Try again when some have expired.")
            await self.append(JournalEntry("once", key, value))

    async def append(self, entry: JournalEntry) -> None:
        """Add an entry to the stored journal. If the Backend fails, try again until the task expires."""
        await self.surely(lambda: self._records.append(self.id, entry, ttl=max(self.expires - time.time(), 1.0)))

    async def surely(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what `work` returns. If the Backend fails, try again until the task expires."""
        return await surely(work, self.expires)

    async def _to_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`, which goes on if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        await asyncio.shield(task)

    async def finish_writing(self) -> None:
        """Wait until all results of `ctx.once` are stored, and progress is not stored any more."""
        self._is_closed = True
        if isinstance(self._storing, asyncio.TimerHandle):
            self._storing.cancel()
            self._storing = None
        writing = [*self._unfinished, *([self._storing] if isinstance(self._storing, asyncio.Task) else [])]
        if writing:
            await asyncio.wait(writing)

    # Progress.

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Show progress to the client as the task's status message: soon, and not more often than it is useful.

        Progress that is not greater than before is ignored, also if an earlier run of the handler has reported it.
        """
        if self._greatest is not None and progress <= self._greatest:
            return
        self._greatest = progress
        self._report, self._text = (progress, total, message), None
        self._store_later()

    def tell(self, text: str) -> None:
        """Show a text to the client as the task's status message."""
        self._text = text[:MOST_MESSAGE]
        self._store_later()

    def _store_later(self) -> None:
        if self._storing is None and not self._is_closed:
            wait = max(self._reported + REPORT_SECONDS - time.monotonic(), 0.0)
            self._storing = asyncio.get_running_loop().call_later(wait, self._store_soon)

    def _store_soon(self) -> None:
        self._storing = asyncio.get_running_loop().create_task(self._store_progress(), name="weft-task-progress")

    async def _store_progress(self) -> None:
        if self.becoming is not None:
            await asyncio.wait([self.becoming])
        self._reported = time.monotonic()
        stored: tuple[object, object] | None = self._report, self._text
        try:
            if self.is_task and await self._records.change(self.id, self._write_if_ours) is None:
                self.stop("lost")  # it has expired, or the Backend has lost it
        except BackendUnavailable as error:
            _seldom.warning("The progress of a task was not stored: %s", error)
            stored = None  # it is tried again
        except Exception:
            log.exception("The progress of a task cannot be stored, and is dropped.")
        finally:
            self._storing = None
            if (self._report, self._text) == stored:
                self._report = self._text = None
            if self._report is not None or self._text is not None:
                self._store_later()

    def _write_if_ours(self, record: TaskRecord) -> bool:
        if record.work != "running" or record.runner != self._runtime.fleet.worker:
            self.stop("cancelled" if record.status == "cancelled" else "lost")
            return False
        return self.write_progress(record)

    def write_progress(self, record: TaskRecord) -> bool:
        """Write progress that is not stored yet into a record. Return False if there is none."""
        is_new = self._text is not None
        if self._report is not None:
            progress, total, message = self._report
            if record.progress is None or progress > record.progress:
                record.progress, record.total = progress, total
                record.message = progress_text(progress, total, message)
                is_new = True
            else:  # an earlier run of the handler came further
                self._greatest = record.progress
        if self._text is not None:
            record.message = self._text
        return is_new


async def surely(work: Callable[[], Coroutine[Any, Any, T]], until: float = math.inf) -> T:
    """Return what `work` returns. If the Backend fails, try again until the Unix time `until`.

    `work` uses guarded records: what it raises except BackendUnavailable, it would raise again each time.
    """
    pause = 0.05
    while True:
        try:
            return await work()
        except BackendUnavailable as error:
            if time.time() > until:
                raise
            _seldom.warning("A task cannot be read or stored in the backend yet: %s", error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _AGAIN_SECONDS)


def progress_text(progress: float, total: float | None, message: str | None) -> str:
    """Return progress as a text for a person.

    >>> progress_text(3, 20, "painting"), progress_text(2.5, None, None)
    ('painting (3/20)', '2.5')
    """
    numbers = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
    return numbers if not message else f"{message[: MOST_MESSAGE - len(numbers) - 3]} ({numbers})"


def to_request(call: Call, logical: str) -> TaskRequest:
    """Return what must be stored of a call, so that its handler can run again on any worker.

    `logical` is the id of the logical call, if it had rounds before.
    """
    envelope, params = call.envelope, call.envelope.params
    assert isinstance(params, CallToolParams)
    plain = msgspec.structs.replace(params, input_responses=None, request_state=None, task=UNSET)
    return TaskRequest(
        call.id,
        Raw(msgspec.json.encode(plain)),
        str(envelope.revision),
        envelope.client_info,
        envelope.client_capabilities,
        envelope.log_level,
        None if call.headers is None else call.headers.harmless(),
        call.token_info,
        call.address,
        logical,
        call.knows_client,
    )


def to_call(runtime: Runtime, request: TaskRequest, reply: Reply) -> Call | None:
    """Return the call that was stored; None if the server does not serve its protocol version any more."""
    found = find_revision(runtime.eras, request.version)
    if found is None:
        return None
    era, revision = found
    method = METHODS["tools/call"]
    params = method.decode(request.params)
    token = None if params.meta is None else params.meta.progress_token
    envelope = Envelope(
        revision, method, params, request.client_capabilities, request.client_info, request.log_level, token
    )
    headers = None if request.headers is None else read_headers(request.headers)
    call = Call(runtime, request.id, envelope, era, reply, headers, request.address, token_info=request.token_info)
    call.knew_client = request.knows_client
    return call
