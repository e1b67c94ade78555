"""Run the tasks of this worker, take over those of dead workers, and hand over its own when it stops.

A task that has to be run is assigned to one worker: first to the one that creates it, later to the one that gets the
answer to its question. Each worker has a set of such tasks in the Backend. When a worker has died, the others find its
set, and each takes some of its tasks, by compare-and-set. The handler runs again there, from its journal. A worker runs
only as many tasks at the same time as it has places (`weft.server.tasks.places`).

What happens at the end of a run depends on how the handler has ended: with a result or an error, which is stored; with
questions, which wait in the record; or by handing its work to a program outside.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, Raw, UnsetType

from weft.errors import BackendUnavailable, ToolError
from weft.jsonrpc import encode_result
from weft.net.logs import Seldom
from weft.server.asking.questions import params_of
from weft.server.calls.call import Call
from weft.server.calls.execution import Threads, take_back
from weft.server.calls.shares import SizedShares
from weft.server.diagnostics import record as record_failure
from weft.server.diagnostics import report
from weft.server.features.tools import Tools, failure
from weft.server.runtime.dispatch import Answer
from weft.server.runtime.runtime import Runtime
from weft.server.tasks.places import Places
from weft.server.tasks.records import TaskRecord, TaskRecords, TaskRequest, guarded
from weft.server.tasks.rounds import TaskJournal
from weft.server.tasks.runs import MOST_MESSAGE, ExternalWork, Reason, TaskReply, TaskRun, surely, to_call
from weft.server.tasks.store import publish_scope
from weft.server.tasks.takeover import TakeOver
from weft.types.features import CallToolResult
from weft.types.tasks import NOTHING, SHOWN_OF_TASK_ID

log = logging.getLogger("weft.tasks")
_seldom = Seldom(log)

_AGAIN_SECONDS = 2.0  # until a task is started again that could not be read
_HAND_OVER_SECONDS = 2.0  # to note in the Backend that tasks are handed over
_TURN_SECONDS = 0.02  # between two looks at what still runs
STOPPED = "The server was stopped before this task was done."
EXPIRED = "The task took longer than its time to live, and was stopped."
_SUBMITTED = "weft external work"  # key of `ctx.once` under which work is passed on to a program outside
_SUBJECT = "tasks"  # of messages to other workers: the id of a task that was cancelled
_ENDED = "tasks-ended"  # of messages to the worker that has created a task: what is left to count of it


class _Outcome(msgspec.Struct):
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _Text(msgspec.Struct):
    text: str = ""


class _Flags(msgspec.Struct, rename="camel"):
    """What the status message needs of a result or an error."""

    is_error: bool = False
    content: list[_Text] = []
    message: str = ""

    @property
    def text(self) -> str:
        """The first text of a result."""
        return next((part.text for part in self.content if part.text), "")


class _Rest(msgspec.Struct, array_like=True):
    """What is to be counted of a task that has ended: bytes, and seconds until it expires; nothing if both are 0."""

    id: str
    size: int = 0
    seconds: float = 0.0


_encode_rest = msgspec.json.Encoder().encode
_decode_rest = msgspec.json.Decoder(_Rest).decode
_read_outcome = msgspec.json.Decoder(_Outcome).decode
_read_flags = msgspec.json.Decoder(_Flags).decode


class TaskRunner:
    """Runs the handlers of the tasks that are assigned to this worker."""

    def __init__(self, runtime: Runtime, records: TaskRecords, tools: Tools, shares: SizedShares) -> None:
        self.runtime = self._runtime = runtime
        self.records = self._records = records.guarded()
        self.shares = shares
        self._tools = tools
        self._limits = runtime.limits
        self._kept = runtime.limits.task_kept_seconds
        self._fleet = runtime.fleet
        self.threads = Threads(runtime.limits.task_threads, name="weft-task")
        self._places = Places(runtime.limits.tasks_at_once)
        self._running: dict[str, asyncio.Task[Any]] = {}  # by id of the task
        self._runs: dict[str, TaskRun] = {}  # those whose handlers run
        self._begun: dict[str, tuple[TaskRun, asyncio.Future[None]]] = {}  # calls that may become tasks, and their turn
        self._again: dict[str, str] = {}  # tasks that must run again after their present run, and their owners
        self._delayed: dict[str, asyncio.TimerHandle] = {}  # start tasks some time later
        self._stopped_early: set[str] = set()  # ids of tasks that were cancelled while their run began
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # see `assigning`
        self._background: set[asyncio.Task[Any]] = set()
        self.listed_until = 0.0  # Unix time until which others know that this worker may have tasks
        self.is_stopping = False  # whether no more tasks are started here
        self._ends_runs = False  # whether handlers are being stopped, because the worker stops
        self._handing_over: asyncio.Task[None] | None = None
        if not self._fleet.is_alone:
            self._fleet.hear(_SUBJECT, self._hear, self._check_all)
            self._fleet.hear(_ENDED, self._hear_end, lambda: None)
        self.take_over = TakeOver(self, self._fleet, records, runtime.limits)

    @property
    def worker(self) -> str:
        """The id of this worker."""
        return self._fleet.worker

    def __len__(self) -> int:
        return len(self._places)

    def begin(self) -> None:
        """Begin to run tasks, and to look for those of dead workers. Called when this worker has joined the fleet."""
        self.is_stopping = False
        self.take_over.begin()

    # Starting.

    def assigning(self, id: str) -> asyncio.Lock:
        """Return the lock under which a task is assigned to this worker, or not assigned any more.

        Without it, a run that has ended with a question could undo the assignment that came with the answer.
        """
        return self._locks.setdefault(id, asyncio.Lock())

    async def assign(self, id: str, *, ttl: float) -> None:
        """Note in the Backend that this worker must run a task. Call this before its record says so."""
        if self._fleet.is_alone:  # no other worker will ever look
            return
        now = time.time()
        self.listed_until = max(self.listed_until, now + ttl)
        # Each time, because others remove a worker from the list that looks dead and has no tasks.
        listed = self._records.list_worker(self.worker, ttl=self.listed_until - now)
        await asyncio.gather(self._records.assign(id, self.worker, ttl=ttl), listed)

    async def unassign(self, id: str) -> None:
        """Note in the Backend that this worker need not run a task, unless it runs it now. Hold `assigning`."""
        if not self._fleet.is_alone and not self._is_busy_with(id):
            await self._records.unassign(id, self.worker)

    def withdraw(self, id: str) -> None:
        """Let a task not wait for a place any longer."""
        self._places.withdraw(id)

    def _is_busy_with(self, id: str) -> bool:
        return id in self._running or id in self._delayed or id in self._places

    def knows(self, id: str) -> bool:
        """Return whether a task runs here, waits for a place, or begins as a call that may become a task."""
        return self._is_busy_with(id) or id in self._begun

    def has_room_for(self, owner: str) -> bool:
        """Return whether more tasks of a caller may wait here."""
        return self._places.waits(owner) < self._limits.tasks_at_once

    def start(self, id: str, owner: str) -> None:
        """Run a task as soon as there is a place. Its record must be assigned to this worker."""
        if self.is_stopping:  # others take it over
            if self._fleet.is_alone:
                self.in_background(self._fail(id, STOPPED))
            return
        if (delayed := self._delayed.pop(id, None)) is not None:
            delayed.cancel()
        if id in self._running:  # its last run is about to end
            self._again[id] = owner
            return
        self._places.take(id, owner, partial(self._begin_run, id, owner))

    def _begin_run(self, id: str, owner: str) -> None:
        # In an empty context, because the request that happens to start it may have nothing to do with it.
        work = self._execute(id, owner)
        task = self._running[id] = asyncio.get_running_loop().create_task(work, name="weft-task", context=Context())
        task.add_done_callback(partial(self._ended, id))

    def _ended(self, id: str, task: asyncio.Task[Any]) -> None:
        if self._running.get(id) is task:
            del self._running[id]
            run = self._runs.pop(id, None)
            if run is not None:
                if run.ending is not None:
                    run.ending.cancel()
                run.threads.when_free(partial(self._places.leave, self._places.keep(id)))
        self._stopped_early.discard(id)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A task could not be run.", exc_info=error)
        self._places.leave(id)
        if (owner := self._again.pop(id, None)) is not None:
            self.start(id, owner)
        if self.take_over.has_left_some and not self._places.waiting:
            self.take_over.look()

    async def _execute(self, id: str, owner: str) -> None:
        """Run the handler of a task until it ends or asks. If the Backend fails, try again later."""
        run = None
        try:
            run = await self._load(id)
            if run is not None and self.is_stopping:
                await surely(partial(self._give_up, run))
            elif run is not None:
                self._runs[id] = run
                if id in self._stopped_early:
                    run.stop("cancelled")
                await self.perform(run)
        except Exception as error:  # noqa: BLE001 - trying again would not help, unless the Backend has failed
            if run is None and isinstance(error, BackendUnavailable):
                _seldom.warning("A task could not be started, and is tried again: %s", error)
                self._later(_AGAIN_SECONDS, id, owner)
            else:
                await surely(partial(self._fail, id, self._report_fault(f"Task {id[:SHOWN_OF_TASK_ID]}", error)))

    def _later(self, seconds: float, id: str, owner: str) -> None:
        if self.is_stopping:
            return
        if (earlier := self._delayed.pop(id, None)) is not None:
            earlier.cancel()
        self._delayed[id] = asyncio.get_running_loop().call_later(seconds, self.start, id, owner, context=Context())

    # Calls that become tasks after some time.

    async def wait_for_turn(self, run: TaskRun, work: asyncio.Task[Any], seconds: float) -> None:
        """Wait until a running call may become a task, or until it has ended.

        It may when `seconds` are over and there is a place for it, or if this worker hands over its tasks.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._begun[run.id] = run, turn
        timer = loop.call_later(seconds, self._places.take, run.id, run.owner, partial(_resolve, turn))
        try:
            await asyncio.wait([work, turn], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def end_turn(self, run: TaskRun) -> None:
        """Note that a call has become a task, or never will."""
        self._begun.pop(run.id, None)
        if run.id not in self._running:
            self._places.leave(run.id)

    def adopt(self, run: TaskRun, work: asyncio.Task[Any]) -> None:
        """Count a run that has begun as a plain call, and has become a task."""
        self._runs[run.id] = run
        self._running[run.id] = work
        work.add_done_callback(partial(self._ended, run.id))
        self._stop_when_expired(run)
        if self.is_stopping:
            run.stopped = run.stopped or "stopping"
        if self._ends_runs:
            run.call.cancellation.cancel("the server stops")

    @property
    def hands_over(self) -> bool:
        """Whether this worker stops, and others go on with its tasks."""
        return self.is_stopping and not self._fleet.is_alone

    @property
    def is_over(self) -> bool:
        """Whether this worker stops, and nobody goes on with its tasks, so that there must not be new ones."""
        return self.is_stopping and self._fleet.is_alone

    # Reading.

    async def _load(self, id: str) -> TaskRun | None:
        """Read a task and its journal, and note that it runs here. Return None if it must not run here."""
        record = await self._records.fill(await self._records.read(id), "answer", "state")
        if record is None or not record.must_run_at(self.worker):
            await self.settle(id, record)
            return None
        stored = await self._records.read_journal(id)
        if stored is None:
            await self._fail(id, "The request of this task is lost: the backend does not have it any more.")
            return None
        request, entries = stored
        given = record.answers
        for key, answer in given.items():
            entry = record.to_entry(key, answer)
            await self._records.append(id, entry, ttl=record.seconds_left)
            entries.append(entry)
        known = TaskJournal()
        for entry in entries:
            known.add(entry)
        known.journal.state = None if record.state == NOTHING else record.state
        record = await self._records.change(id, partial(self._begin, given=list(given)), is_told=False)
        if record is None or not record.must_run_at(self.worker):
            await self.settle(id, record)
            return None
        run = self._new_run(id, request, known)
        if run is None:
            await self._fail(id, f"This server does not serve protocol version {request.version} any more.")
            return None
        run.expires, run.session_id = record.expires, record.session_id
        size = len(bytes(request.params)) + known.size + record.size
        if self.shares.replace(id, run.owner, size, record.seconds_left):  # what was answered is not counted any more
            run.parked = record.size  # the answers are in the journal now: the rest are questions and the state
        return run

    def _begin(self, record: TaskRecord, *, given: list[str]) -> bool:
        if not record.must_run_at(self.worker):
            return False
        record.work = "running"
        for key in given:
            record.answers.pop(key, None)
        return True

    def _new_run(self, id: str, request: TaskRequest, known: TaskJournal) -> TaskRun | None:
        known.journal.id = request.logical
        reply = TaskReply()
        call = to_call(self._runtime, request, reply)
        return None if call is None else TaskRun(self, id, call, reply, known=known)

    # Running.

    async def perform(self, run: TaskRun) -> Answer | None:
        """Run the handler of a task, and store how it has ended. Return the answer of a call that is no task."""
        run.task = run.call.cancellation.task = asyncio.current_task()
        assert run.task is not None
        if run.is_task:
            self._stop_when_expired(run)
        answer = None
        try:
            if run.stopped is None or not run.is_task:  # else it was cancelled before it has begun
                answer = await self._runtime.dispatcher.run(run.call)
        except asyncio.CancelledError:
            if run.stopped is None:  # the event loop ends
                run.stopped = "stopping"
            await take_back(run.task)
        if run.external is None:
            run.call.cancellation.task = None  # how the run has ended is stored, even if it is stopped now
        if run.becoming is not None:
            await asyncio.wait([run.becoming])
        if not run.is_task:
            return self._plain(run, answer)
        if run.ending is not None:
            run.ending.cancel()
        await run.finish_writing()
        if run.stopped == "stopping":  # the Backend may be gone, too: then others find the task by the worker's death
            with suppress(Exception):
                async with asyncio.timeout(_HAND_OVER_SECONDS):
                    await self._conclude(run, answer)
        else:
            await run.surely(partial(self._conclude, run, answer))
        return None

    def _stop_when_expired(self, run: TaskRun) -> None:
        left = max(run.expires - time.time(), 0)
        run.ending = asyncio.get_running_loop().call_later(left, run.stop, "expired", context=Context())

    def _plain(self, run: TaskRun, answer: Answer | None) -> Answer | None:
        """Return the answer of a call that has not become a task."""
        if run.round.has_asked:  # its questions were not sealed, because it was about to become a task
            call = run.call
            return 200, encode_result(call.id, call.seal(run.round.sealed_result()))
        return answer

    async def _conclude(self, run: TaskRun, answer: Answer | None) -> None:
        """Store how a run has ended. If that cannot be stored, the task has failed: it must not run again for that."""
        try:
            await self._store_end(run, answer)
        except BackendUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - for example of JSON that the handler has made itself, and is none
            await self._fail(run.id, self._report_fault(run.call.described, error))

    async def _store_end(self, run: TaskRun, answer: Answer | None) -> None:
        is_cut_short = run.stopped is not None and (run.call.cancellation.cancelled or run.external is not None)
        if answer is None or is_cut_short:
            await self._conclude_stopped(run)
        elif run.external is not None:
            await self.pass_on(run, run.external)
        elif run.round.has_asked:
            await self._park(run)
        else:
            await self._finish(run, answer[1])

    async def pass_on(self, run: TaskRun, external: ExternalWork) -> None:
        """Give the work of a task to a program outside. If the run is stopped meanwhile, store that."""
        work = asyncio.current_task()
        assert work is not None
        try:
            if run.stopped is None:
                await self._hand_out(run, external)
        except asyncio.CancelledError:
            if run.stopped is None:  # the event loop ends
                run.stopped = "stopping"
            await take_back(work)
        if run.stopped is not None:
            await self._conclude_stopped(run)

    async def _conclude_stopped(self, run: TaskRun) -> None:
        if run.stopped == "expired":
            await self._expire(run)
        elif run.stopped == "stopping":
            await self._give_up(run)
        else:
            await self.settle(run.id, await self._records.read(run.id))

    async def _give_up(self, run: TaskRun) -> None:
        """Leave a task to another worker, because this one stops."""
        if self._fleet.is_alone:
            await self._fail(run.id, STOPPED)
            return

        def edit(record: TaskRecord) -> bool:
            if not record.must_run_at(self.worker):
                return False
            run.write_progress(record)
            record.work = "queued"
            if not record.restarts:
                record.fail(
                    "The server was stopped, and this task is not run again.",
                    kept_seconds=self._kept,
                )
            return True

        record = await self._records.change(run.id, edit)
        if record is None or record.work == "over":
            await self.settle(run.id, record)

    async def _finish(self, run: TaskRun, body: bytes) -> None:
        """Store the result or the error of a task."""
        outcome = _read_outcome(body)
        too_large = self._check_size(run, body) or self._check_room(run, len(body))

        def edit(record: TaskRecord) -> bool:
            if not record.must_run_at(self.worker):
                return False
            run.write_progress(record)
            if too_large:
                record.fail(too_large, kept_seconds=self._kept)
            elif isinstance(outcome.error, Raw):
                record.end("failed", kept_seconds=self._kept)
                record.error, record.message = outcome.error, _flags(outcome.error).message[:MOST_MESSAGE]
            elif isinstance(outcome.result, Raw):
                record.end("completed", kept_seconds=self._kept)
                record.result, record.sealed_for = outcome.result, record.version
                flags = _flags(outcome.result)
                record.is_error = flags.is_error
                if flags.is_error:
                    record.message = flags.text[:MOST_MESSAGE] or record.message
            log.info("task %s of %r has ended: %s", run.id[:SHOWN_OF_TASK_ID], record.tool, record.status)
            return True

        await self.settle(run.id, await self._records.change(run.id, edit))

    def _check_size(self, run: TaskRun, body: bytes) -> str:
        """Return the error for a result that is too large, or an empty text."""
        if len(body) <= self._limits.task_bytes:
            return ""
        return self._explain_size(f"{run.call.described} has a result of {len(body)} bytes")

    def _explain_size(self, what: str) -> str:
        """Log what is too large to be kept of a task, and return the error for the client."""
        most = self._limits.task_bytes
        text = f"{what}, more than the {most} that are kept of a task. Return a link, or raise Limits(task_bytes=...)."
        return record_failure(text, debug=self._runtime.debug)

    def _report_fault(self, what: str, error: Exception) -> str:
        """Log an exception of a task that cannot be run or stored, and return the error for the client."""
        return report(what, error, debug=self._runtime.debug)

    def _report_endless(self, run: TaskRun) -> str:
        """Return the error for a handler that has returned too many questions."""
        return record_failure(
            f"{run.call.described} has asked {self._limits.asks_per_call} questions and is still not done. Return a "
            "result when the answers are there, or raise Limits(asks_per_call=...). Does each run ask something else? "
            "Then get what changes (time, random numbers) with ctx.once.",
            debug=self._runtime.debug,
        )

    def _check_room(self, run: TaskRun, size: int) -> str:
        """Return the error for a result for which there is no room, or an empty text."""
        left = max(run.expires - time.time(), self._limits.task_kept_seconds)
        has_room = self.shares.replace(run.id, run.owner, size, left)  # the result replaces the journal
        return "" if has_room else "The task is done, but the server has no room for its result."

    async def _expire(self, run: TaskRun) -> None:
        what = run.call.described
        text = "%s, as a task, took longer than its time to live: Task(ttl=...). It was stopped."
        _seldom.warning(text, what, about=what)
        await self._fail(run.id, EXPIRED)

    async def _fail(self, id: str, why: str) -> None:
        def edit(record: TaskRecord) -> bool:
            if not record.must_run_at(self.worker):
                return False
            record.fail(why, kept_seconds=self._kept)
            return True

        await self.settle(id, await self._records.change(id, edit))

    async def settle(self, id: str, record: TaskRecord | None) -> None:
        """Forget what is not needed any more of a task whose run has ended here."""
        if record is not None and record.work == "over":
            if (run := self._runs.get(id)) is not None:
                run.has_ended = True
            self.note_end(record)
            await self._records.forget(record)
        if self._fleet.is_alone or self.is_stopping:  # a worker that stops leaves this to those that look for its tasks
            return
        async with self.assigning(id):
            if id not in self._again:
                await self._records.unassign(id, self.worker)

    async def drop(self, id: str) -> None:
        """Forget a task that is assigned to this worker, unless it must run it, or is about to."""
        async with self.assigning(id):
            record = await self._records.read(id)
            if self.knows(id) or (record is not None and record.must_run_at(self.worker)):
                return
            if record is not None and record.work == "over":
                await self._records.forget(record)
            await self._records.unassign(id, self.worker)

    async def _park(self, run: TaskRun) -> None:
        """Store the questions with which a run has ended. If they are answered already, run the handler again."""
        questions = run.round.open_questions
        encoded = {
            name: Raw(msgspec.json.encode(_request(request.method, params_of(request))))
            for name, (_, request) in questions.items()
        }
        state = run.round.journal.state or NOTHING
        size = len(bytes(state)) + sum(len(bytes(question)) for question in encoded.values())
        if size > self._limits.task_bytes:
            what = f"{run.call.described} has returned a state and questions of {size} bytes together"
            await self._fail(run.id, self._explain_size(what))
            return
        if not self.shares.take(run.id, run.owner, size - run.parked, max(run.expires - time.time(), 1)):
            await self._fail(run.id, "The task has asked, but the server has no room for its questions.")
            return
        run.parked = size

        def edit(record: TaskRecord) -> bool:
            if not record.must_run_at(self.worker):
                return False
            run.write_progress(record)
            answered = [record.asked[key] for key in record.answers]
            missing = {name: asked for name, (asked, _) in questions.items() if asked not in answered}
            record.withdraw([key for key in record.questions if record.asked[key] not in missing.values()])
            outstanding = [record.asked[key] for key in record.questions]
            for name, asked in missing.items():
                if asked not in outstanding:
                    record.ask(name, asked, encoded[name])
            record.state, record.deaths = state, 0
            if len(record.asked) > self._limits.asks_per_call:
                record.fail(self._report_endless(run), kept_seconds=self._kept)
                return True
            record.work = "asking" if len(missing) == len(questions) > 0 else "queued"
            return True

        record = await self._records.change(run.id, edit)
        if record is not None and record.must_run_at(self.worker):
            # Without questions, the handler has only returned a state: it wants to run again after some time.
            self._later(0 if questions else record.poll, run.id, run.owner)
        else:
            await self.settle(run.id, record)

    async def _hand_out(self, run: TaskRun, external: ExternalWork) -> None:
        """Give the work of a task to a program outside, once. Until the program ends the task, it is working."""

        def describe(record: TaskRecord) -> bool:
            if not record.must_run_at(self.worker):
                return False
            run.write_progress(record)
            self.describe_external(record, external)
            return True

        async def submit() -> None:
            await self.threads.call(external.submit, (run.id, *external.arguments))

        def edit(record: TaskRecord) -> bool:
            if not record.must_run_at(self.worker):
                return False
            record.work = "external"
            return True

        if _SUBMITTED not in run.round.journal.once:
            record = await self._records.change(run.id, describe)  # first, because the program can be very fast
            if record is None or not record.must_run_at(self.worker):
                await self.settle(run.id, record)
                return
            await self._publish(run.id, run.expires - time.time())
        try:
            async with asyncio.timeout(max(run.expires - time.time(), 0)):
                await run.round.once(_SUBMITTED, submit, (), None)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            if run.expires <= time.time():
                await self._expire(run)
            else:
                result = run.call.seal(self.not_passed_on(run.call, error))
                await self._finish(run, encode_result(run.call.id, result))
            return
        await self.settle(run.id, await self._records.change(run.id, edit, is_told=False))

    async def submit(self, id: str, external: ExternalWork, seconds: float) -> None:
        """Call the handler's function that passes on the work of a task."""
        await self._publish(id, seconds)
        await self.threads.call(external.submit, (id, *external.arguments))

    async def _publish(self, id: str, seconds: float) -> None:
        """Store to which server a task belongs. Raises BackendUnavailable if that fails."""
        runtime = self._runtime
        seconds = max(seconds, 1.0) + self._kept  # the program can ask how the task has ended
        await guarded(publish_scope, runtime.whole_backend, id, runtime.scope, ttl=seconds)

    def not_passed_on(self, call: Call, error: Exception) -> CallToolResult:
        """Return the result of a call whose work could not be passed on, because the handler's function has failed."""
        if isinstance(error, ToolError):
            return failure(str(error))
        what = f"The function that passes on the work of {call.described}"
        return failure(report(what, error, debug=self._runtime.debug))

    def describe_external(self, record: TaskRecord, external: ExternalWork) -> None:
        """Write into a record what a program outside needs that does the work. From now on, it may report."""
        record.is_handed_over = True
        record.message = external.message or record.message
        tool = self._tools.get(record.tool)
        schema = None if tool is None else tool.definition.output_schema
        record.output_schema = NOTHING if schema is None else Raw(msgspec.json.encode(schema))

    # Cancelling.

    async def stop(self, id: str, worker: str) -> None:
        """Stop the handler of a task that was cancelled, here or at another worker; empty if no worker runs it."""
        if not self._stop_run(id, "cancelled") and worker not in ("", self.worker) and not self._fleet.is_alone:
            await self._fleet.inform([worker], _SUBJECT, id.encode())

    def _stop_run(self, id: str, reason: Reason) -> bool:
        """Stop the handler of a task, if it runs here. Return whether it does."""
        run = self._runs.get(id)
        if run is not None:
            run.stop(reason)
        elif reason == "cancelled" and id in self._running:  # its run has begun, and is not ready to be stopped
            self._stopped_early.add(id)
        elif reason == "cancelled":
            self._places.withdraw(id)
        return run is not None

    def _hear(self, message: bytes) -> None:
        self._stop_run(message.decode(), "cancelled")

    def note_end(self, record: TaskRecord) -> None:
        """Let the worker that has created a task count what is left of it, and all others not count it any more."""
        for number, worker in enumerate(record.counted_at):
            rest = _Rest(record.id, record.size, record.seconds_left) if number == 0 else _Rest(record.id)
            if worker == self.worker:
                self._count_rest(rest)
            elif not self._fleet.is_alone:
                self.in_background(self._fleet.inform([worker], _ENDED, _encode_rest(rest)))

    def _hear_end(self, message: bytes) -> None:
        self._count_rest(_decode_rest(message))

    def _count_rest(self, rest: _Rest) -> None:
        if rest.seconds > 0:
            self.shares.shrink(rest.id, rest.size, rest.seconds)
        else:
            self.shares.release(rest.id)

    def _check_all(self) -> None:
        """Look whether the running tasks are still ours, because a message about them may have been missed."""
        for id in list(self._runs):
            self.in_background(self._check(id))

    async def _check(self, id: str) -> None:
        record = await self._records.read(id)
        if record is None or not record.must_run_at(self.worker):
            self._stop_run(id, "cancelled" if record is not None and record.status == "cancelled" else "lost")

    # Handing over.

    async def hand_over(self) -> None:
        """Stop running tasks, because this worker stops. Functions of `ctx.once` may end first, for some seconds.

        The tasks go on at other workers, or when a worker starts again. A second call waits for the first.
        """
        if self._handing_over is None:
            self._handing_over = asyncio.get_running_loop().create_task(self._hand_over(), name="weft-tasks")
        await asyncio.shield(self._handing_over)

    async def _hand_over(self) -> None:
        self.is_stopping = True
        ids = {*self._places.waiting, *self._delayed, *self._running, *self._again} - self._begun.keys()
        for delayed in self._delayed.values():
            delayed.cancel()
        self._places.clear()
        self._delayed, self._again = {}, {}
        self.take_over.end()
        for run in self._runs.values():
            run.stopped = run.stopped or "stopping"  # so that no further `once` begins
        if self.hands_over:  # calls that could have become tasks become tasks now
            for run, turn in self._begun.values():
                run.stopped = run.stopped or "stopping"
                _resolve(turn)
        until = time.monotonic() + self._limits.drain_seconds
        while time.monotonic() < until and self._must_wait():  # noqa: ASYNC110 - only when the server stops
            await asyncio.sleep(_TURN_SECONDS)
        self._ends_runs = True
        for run in self._runs.values():
            run.call.cancellation.cancel("the server stops")
        if running := list(self._running.values()):
            _, unended = await asyncio.wait(running, timeout=_HAND_OVER_SECONDS)
            for task in unended:
                task.cancel()
        if self._fleet.is_alone and ids:
            await self._lose(ids)
        self.threads.stop()

    async def _lose(self, ids: Collection[str]) -> None:
        """Let tasks fail that nobody can go on with."""
        log.warning(
            "%d tasks are lost, because they are in the memory of this process. With Server(backend=...) or "
            "WEFT_BACKEND, they go on when a worker starts.",
            len(ids),
        )
        for id in ids:
            await self._fail(id, STOPPED)

    def _must_wait(self) -> bool:
        """Return whether handlers must not be stopped yet: in `ctx.once`, or because a call becomes a task."""
        is_becoming = self.hands_over and bool(self._begun)
        return is_becoming or any(run.round.is_running_once for run in self._runs.values())

    async def close(self) -> None:
        """Wait for a moment until all that is written in the background is written."""
        if self._background:
            await asyncio.wait(self._background, timeout=_HAND_OVER_SECONDS)

    def reopen(self) -> None:
        """Run tasks again after `hand_over`, for a program that runs the same server a second time."""
        self._handing_over = None
        self.is_stopping = self._ends_runs = False

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in a task that is not awaited. If it fails, the log has the failure."""
        task = asyncio.get_running_loop().create_task(work, name="weft-tasks")
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _seldom.warning("The state of a task could not be read or written: %s", error)


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def _flags(outcome: Raw) -> _Flags:
    try:
        return _read_flags(outcome)
    except msgspec.DecodeError:  # the result of an extension, with other fields of these names
        return _Flags()


def _request(method: str, params: Any) -> dict[str, Any]:
    return {"method": method} if params is None else {"method": method, "params": params}
