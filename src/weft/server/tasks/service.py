"""Make tasks of calls, and serve the requests about them: `tasks/get`, `update`, `cancel`, `result` and `list`.

The dispatcher asks `TaskService.handler` for each tool call. A call that becomes a task is answered here; middleware
wraps each run of its handler, not the answer. With `Task(after=...)`, the handler begins as in a plain call. When the
time is over, what it has done so far goes into the task's journal.

A task belongs to the principal that has created it. For others, and without its id, it does not exist.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import UNSET

from weft.errors import InvalidParams, MethodNotFound, ProtocolError, UsageError
from weft.jsonrpc import encode_notification, encode_result
from weft.net.logs import Seldom
from weft.server.asking.asks import fault_of
from weft.server.calls.call import Call, Handler
from weft.server.calls.shares import SizedShares
from weft.server.features.registry import has_scopes, require_scopes
from weft.server.features.tools import RegisteredTool, Task, Tools
from weft.server.runtime.admission import Busy
from weft.server.runtime.dispatch import Answer, CompleteAnswer
from weft.server.runtime.runtime import Runtime
from weft.server.tasks.records import (
    GivenAnswer,
    TaskRecord,
    TaskRecords,
    encode_request,
    is_task_id,
    new_task_id,
    owner_of,
)
from weft.server.tasks.rounds import TaskJournal
from weft.server.tasks.runner import TaskRunner
from weft.server.tasks.runs import ExternalWork, PlainCall, TaskReply, TaskRun, to_request
from weft.server.tasks.waiting import TaskWaiter
from weft.types.base import EmptyResult, Result
from weft.types.features import CallToolParams, CallToolResult
from weft.types.interaction import InputRequest
from weft.types.lifecycle import PaginatedParams
from weft.types.tasks import NOTHING, TaskParams, UpdateTaskParams, related_task

log = logging.getLogger("weft.tasks")
_seldom = Seldom(log)

PAGE_SIZE = 100  # tasks on one page of `tasks/list`
_MOST_CURSOR = 200  # characters of a cursor


class TaskService:
    """The tasks of one server, as clients see them."""

    def __init__(self, runtime: Runtime, tools: Tools) -> None:
        self._runtime = runtime
        self._tools = tools
        self._limits = runtime.limits
        self._records = TaskRecords(runtime.backend)
        self.shares = SizedShares(runtime.limits.tasks, runtime.limits.tasks_bytes, self._forget)
        self.runner = TaskRunner(runtime, self._records, tools, self.shares)
        self._waiter = TaskWaiter(runtime, self._records, self.answer)
        self._storing: set[asyncio.Task[None]] = set()  # store answers (the event loop has only weak references)
        self.handlers: dict[str, Handler] = {
            "tasks/get": self._get,
            "tasks/update": self._update,
            "tasks/cancel": self._cancel,
            "tasks/result": self._result,
            "tasks/list": self._list,
        }

    @property
    def is_offered(self) -> bool:
        """Whether calls of a tool can become tasks, so that the server declares tasks."""
        return self._tools.has_tasks

    def _forget(self, id: str) -> None:
        """Let a task that has expired not wait for a place any longer."""
        self.runner.withdraw(id)

    @staticmethod
    def require(call: Call) -> None:
        """Raise an error if the client may not use the methods about tasks. Called before any code of the user."""
        call.era.tasks.require(call.envelope)

    # Calls of tools.

    def handler(self, call: Call, chain: Handler) -> Handler:
        """Return the handler for a call of a tool. `chain` runs the tool, with middleware."""
        params = cast("CallToolParams", call.envelope.params)
        tool = self._tools.get(params.name)
        if tool is None or tool.task is None:
            if tool is not None and params.task is not UNSET:
                call.era.tasks.plan(call.envelope, "forbidden")  # refuses it, or ignores the field
            return chain
        if isinstance(call.task, TaskRun):
            return partial(_in_run, chain)
        plan = call.era.tasks.plan(call.envelope, tool.task.support)
        if plan == "plain":
            return partial(self._serve_plainly, chain, tool)
        if plan == "may" and tool.task.after and not self.runner.hands_over:
            return partial(self._serve_first, tool.task)
        if plan == "may" and tool.task.support == "optional":
            return partial(self._serve_if_possible, chain, tool)
        return partial(self._serve_as_task, tool)

    def call(self, call: Call) -> Awaitable[Result]:
        """Serve `tools/call` inside of all middleware. Work that is done outside becomes an empty result here."""
        called = self._tools.call(call)
        return called if call.task is None else _note_external(call, called)

    async def _serve_if_possible(self, chain: Handler, tool: RegisteredTool, call: Call) -> Any:
        """Make a call a task. If there is no room for one, answer the call when it is done."""
        try:
            return await self._serve_as_task(tool, call)
        except Busy as error:
            _seldom.warning("A call has not become a task, and its client waits for the result: %s", error)
            return await self._serve_plainly(chain, tool, call)

    async def _serve_as_task(self, tool: RegisteredTool, call: Call) -> CompleteAnswer:
        """Store a call as a task, have it run, and return the task."""
        assert tool.task is not None
        if self.runner.is_over:
            raise Busy("The server stops. Try again when it runs again.")
        record = self._new_record(call, tool.name, tool.task)
        known = TaskJournal() if call.asker is None else TaskJournal(call.asker.journal)
        await self._create(call, record, known)
        call.asker = None  # its journal is that of the task now
        self.runner.start(record.id, record.owner)
        return _created(call, record)

    async def _serve_first(self, options: Task, call: Call) -> CompleteAnswer:
        """Run the handler. If it is not done within `options.after` seconds, make the call a task, and return it.

        If there is no place for another running task, the call goes on, and becomes a task when there is one.
        """
        reply = TaskReply(call.reply)
        run = TaskRun(self.runner, new_task_id(), call.copy(reply), reply, known=None)
        call.asker = None  # the copy has opened the state itself
        work = asyncio.get_running_loop().create_task(self.runner.perform(run), name="weft-task")
        try:
            await self.runner.wait_for_turn(run, work, options.after)
            if run.has_answered or self.runner.is_over:
                await asyncio.wait([work])
            if work.done() and run.external is None:
                return _answer(work)
            record = await self._become_task(call, run, options, work)
            if record is None:
                await asyncio.wait([work])
                if run.external is not None:  # only a task can wait for a program outside
                    raise Busy("The server has no room for this task now. Try again later.")
                return _answer(work)
        except asyncio.CancelledError:
            if not run.is_task:
                run.call.cancellation.cancel(call.cancellation.reason)
                await asyncio.wait([work])
            raise
        finally:
            self.runner.end_turn(run)
        return _created(call, record)

    async def _become_task(
        self, call: Call, run: TaskRun, options: Task, work: asyncio.Task[Answer | None]
    ) -> TaskRecord | None:
        """Store a running call as a task. Return None if that is not possible: then it stays a plain call."""
        record = self._new_record(call, cast("CallToolParams", call.envelope.params).name, options, id=run.id)
        record.work = "running"
        becoming = run.becoming = asyncio.get_running_loop().create_future()
        run.is_task, run.expires, run.session_id = True, record.expires, record.session_id
        storing = asyncio.ensure_future(self._create(run.call, record, TaskJournal(run.round.journal)))
        try:
            await asyncio.shield(storing)
        except asyncio.CancelledError:  # the client is gone, and would never know the task
            run.is_task = False
            storing.cancel()
            self.runner.in_background(self._discard(record))
            raise
        except Exception as error:  # noqa: BLE001 - a limit is reached, or the Backend fails
            _seldom.warning("A call that takes long has not become a task: %s", error)
            run.is_task = False
            return None
        finally:
            becoming.set_result(None)
        run.reply.origin = None
        if work.done() and run.external is not None:
            handing_out = run.surely(partial(self.runner.pass_on, run, run.external))
            work = asyncio.get_running_loop().create_task(handing_out, name="weft-task")
            run.call.cancellation.task = work
        self.runner.adopt(run, work)
        return record

    async def _serve_plainly(self, chain: Handler, tool: RegisteredTool, call: Call) -> Any:
        """Run the tool for a client that does not know of tasks. If its work is done outside, wait for the result."""
        task = call.task = PlainCall()
        result = await chain(call)
        if task.returned is None or _has_failed(result):
            return result
        assert tool.task is not None
        record = self._new_record(call, tool.name, tool.task)
        record.work = "external"
        self.runner.describe_external(record, task.returned)
        await self._create(call, record, TaskJournal())
        try:
            try:
                await self.runner.submit(record.id, task.returned, record.seconds_left)
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                self.runner.in_background(self._end_cancelled(record.id))
                return self.runner.not_passed_on(call, error)
            ended = await self._waiter.wait(call, record.id, is_plain=True)
        except BaseException:
            self.runner.in_background(self._end_cancelled(record.id))
            raise
        return await self._outcome(ended)

    def _new_record(self, call: Call, tool: str, options: Task, *, id: str | None = None) -> TaskRecord:
        """Return the record of a new task. It is not stored."""
        wanted, now = call.era.tasks.wanted_ttl(call.envelope), time.time()
        return TaskRecord(
            id=id or new_task_id(),
            status="working",
            created=now,
            updated=now,
            ttl=min(options.ttl if wanted is None else max(wanted, 1.0), self._limits.task_seconds),
            poll=options.poll,
            immediate_response=options.immediate_response,
            tool=tool,
            version=str(call.envelope.revision),
            owner=owner_of(call.peer),
            principal=call.principal,
            scopes=self._scopes_now(tool),
            runner=self.runner.worker,
            counted_at=[self.runner.worker],
            restarts=options.restart == "resume",
            progress_token=call.envelope.progress_token,
            session_id=None if call.session is None else call.connection.connection_id,
        )

    async def _create(self, call: Call, record: TaskRecord, known: TaskJournal) -> None:
        """Store a new task. Raises Busy if the caller, or the server, has too many."""
        request, ttl = encode_request(to_request(call, known.journal.id)), record.seconds_left
        record.state = known.journal.state or NOTHING
        if not self.shares.take(record.id, record.owner, len(request), ttl):
            raise Busy("The server has no room for another task of yours. Try again when some have expired.")
        try:
            if not await self._records.enlist(record.id, record.owner, ttl=ttl, most=self._limits.tasks_per_peer):
                raise Busy(f"You have {self._limits.tasks_per_peer} tasks. Try again when some have expired.")
            journal = self._records.begin_journal(record.id, request, known.entries(), ttl=ttl)
            async with self.runner.assigning(record.id):
                if record.work == "external":
                    await journal
                else:
                    await asyncio.gather(journal, self.runner.assign(record.id, ttl=ttl))
                await self._records.add(record)
        except BaseException:
            self.runner.in_background(self._discard(record))
            raise
        log.info("task %s of %r was created for %s", record.id[:6], record.tool, call.peer or "the client")

    async def _discard(self, record: TaskRecord) -> None:
        """Remove what is stored of a task that was not created."""
        self.shares.release(record.id)
        await self._records.remove(record)

    # Requests about tasks.

    async def _owned(self, call: Call) -> TaskRecord:
        """Return the record of the task that a request names.

        Raises InvalidParams if the caller has no such task, and InsufficientScope if its token lacks a scope for it.
        """
        record = await self._records.read(cast("TaskParams", call.envelope.params).task_id)
        if record is None or record.principal != call.principal:
            raise _no_task()
        require_scopes(call, self._scopes_of(record))
        return record

    def _scopes_of(self, record: TaskRecord) -> Iterable[str]:
        """Return the scopes that a token needs for a task: what its tool needed when it was called, and needs now.

        At a worker with older or newer code, the tool may not exist, or need less. That must not open its results.
        """
        return dict.fromkeys((*record.scopes, *self._scopes_now(record.tool)))

    def _scopes_now(self, tool: str) -> tuple[str, ...]:
        found = self._tools.get(tool)
        return () if found is None else found.scopes

    async def _get(self, call: Call) -> Result:
        record = await self._whole(call, await self._owned(call))
        return call.era.tasks.described(self._sealed(call, record))

    async def _whole(self, call: Call, record: TaskRecord) -> TaskRecord:
        """Load what the messages of the call's era say of a task. Raises InvalidParams if it has expired."""
        if not call.era.tasks.shows_outcome:
            return record
        filled = await self._records.fill(record, "result", "error", "question")
        if filled is None:
            raise _no_task()
        return filled

    def _sealed(self, call: Call, record: TaskRecord) -> TaskRecord:
        """Return the record with its result as the protocol version of the reader defines it."""
        if record.has_result and call.era.tasks.shows_outcome and record.sealed_for != str(call.envelope.revision):
            sealed = call.seal(msgspec.json.decode(record.result, type=CallToolResult))
            record.result = msgspec.Raw(msgspec.json.encode(sealed))
        return record

    async def _update(self, call: Call) -> Result:
        """Serve `tasks/update`: store the answers to questions that wait. All others are ignored."""
        params = cast("UpdateTaskParams", call.envelope.params)
        given, owned = params.input_responses or {}, await self._owned(call)
        if len(given) > self._limits.input_responses:
            raise InvalidParams(f"Invalid params: send at most {self._limits.input_responses} answers at a time.")
        record = await self._records.fill(owned, "question")
        if record is None:
            raise _no_task()
        answers = {key: GivenAnswer(value) for key, value in given.items() if key in record.questions}
        for key, answer in answers.items():
            if fault := fault_of(msgspec.json.decode(record.questions[key], type=InputRequest), answer.value):
                raise InvalidParams(f"Invalid params: the answer {key[:100]!r} cannot be used: {fault}")
        if answers:
            await self.answer(record, answers)
        return EmptyResult()

    async def answer(self, record: TaskRecord, answers: dict[str, GivenAnswer]) -> None:
        """Store answers to questions of a task. If its handler waits for them, it runs again at this worker.

        Raises InvalidParams if the answers are too long.
        """
        if fault := self._fault_of(answers, record):
            raise fault
        if not self.shares.take(record.id, record.owner, _size_of(answers), record.seconds_left):
            raise Busy("The server has no room for more answers to your tasks. Try again when some have ended.")
        # If the request that has brought the answers is cancelled, they are stored and the handler runs all the same.
        storing = asyncio.get_running_loop().create_task(self._store_answers(record, answers), name="weft-task-answers")
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        await asyncio.shield(storing)

    def _fault_of(self, answers: dict[str, GivenAnswer], record: TaskRecord) -> InvalidParams | None:
        """Return an error if answers are too long, together with those that the handler has not got yet."""
        new = _size_of(answers)
        size = new + record.answers_size
        if new and size > self._limits.task_bytes:
            return InvalidParams(f"Invalid params: the answers are too long: {size} bytes together.")
        return None

    async def _store_answers(self, record: TaskRecord, answers: dict[str, GivenAnswer]) -> None:
        worker, accepted = self.runner.worker, dict[str, GivenAnswer]()
        fault: InvalidParams | None = None

        def edit(now: TaskRecord) -> bool:
            nonlocal accepted, fault
            accepted = {key: answer for key, answer in answers.items() if key in now.questions}
            if fault := self._fault_of(accepted, now):  # others have answered meanwhile
                accepted = {}
            for key, answer in accepted.items():
                now.accept(key, answer)
            if accepted:
                now.count_at(worker)
            if accepted and now.work == "asking":
                now.work = "queued"
                now.run_at(worker)
            return bool(accepted)

        async with self.runner.assigning(record.id):
            await self.runner.assign(record.id, ttl=record.seconds_left)
            changed = await self._records.change(record.id, edit)
            if changed is None or changed.runner != worker:
                await self.runner.unassign(record.id)
            elif changed.work == "queued":
                self.runner.start(record.id, record.owner)
        if changed is None or worker not in changed.counted_at:
            self.shares.release(record.id)
        else:
            self.shares.give_back(record.id, _size_of(answers) - _size_of(accepted))
        if fault is not None:
            raise fault

    async def _cancel(self, call: Call) -> Result:
        """Serve `tasks/cancel`: the task is cancelled at once, and its handler is stopped, wherever it runs."""
        before = await self._owned(call)
        call.era.tasks.check_cancel(before)
        after = await self._end_cancelled(before.id)
        if after is None:
            raise _no_task()
        if after.status != "cancelled":  # it has ended meanwhile
            call.era.tasks.check_cancel(after)
        return call.era.tasks.cancelled(after)

    async def _end_cancelled(self, id: str) -> TaskRecord | None:
        """Cancel a task, unless it has ended, and stop its handler. Return its record; None if there is none."""
        runner = ""  # worker that ran the handler when the task was cancelled

        def edit(record: TaskRecord) -> bool:
            nonlocal runner
            if record.is_final:
                runner = record.runner  # an earlier message to it may have been lost
                return False
            runner = record.runner if record.work in ("queued", "running") else ""
            record.cancel(kept_seconds=self._limits.task_kept_seconds)
            return True

        record = await self._records.change(id, edit)
        if record is not None and record.status == "cancelled":
            await self._records.forget(record)
            self.runner.note_end(record)
            await self.runner.stop(id, runner)
        return record

    async def _result(self, call: Call) -> Result:
        """Serve `tasks/result`: wait until the task has ended, ask its questions meanwhile, and return its result."""
        record = await self._owned(call)
        ended = record if record.is_final else await self._waiter.wait(call, record.id)
        result = await self._outcome(ended)
        result.meta = {**(result.meta or {}), **related_task(record.id)}
        return result

    async def _outcome(self, ended: TaskRecord | None) -> CallToolResult:
        """Return the result of a task that has ended. Raises its error, or InvalidParams if there is neither."""
        record = await self._records.fill(ended, "result", "error")
        if record is None:
            raise _no_task()
        if record.status == "cancelled":
            raise InvalidParams("Invalid params: the task was cancelled, so it has no result.")
        if not record.has_result:
            error = msgspec.json.decode(record.error, type=_StoredError)
            raise ProtocolError(error.message, code=error.code, data=error.data)
        return msgspec.json.decode(record.result, type=CallToolResult)

    async def _list(self, call: Call) -> Result:
        """Serve `tasks/list`: one page of the tasks of the caller's principal, for which its token has the scopes."""
        if call.principal is None:  # a caller that is not known has no list
            raise MethodNotFound("Method not found")
        cursor = cast("PaginatedParams", call.envelope.params).cursor
        after = "" if cursor is None else _read_cursor(cursor)
        ids = [id for id in await self._records.listed(owner_of(call.peer)) if id > after]
        page = ids[:PAGE_SIZE]
        found = await asyncio.gather(*(self._records.read(id) for id in page))
        own = [record for record in found if record is not None and record.principal == call.principal]
        states = [record for record in own if has_scopes(call, self._scopes_of(record))]
        following = _cursor(page[-1]) if len(ids) > PAGE_SIZE else None
        return call.era.tasks.listed(states, following)

    # Listen streams.

    async def readable(self, call: Call, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that are tasks of the caller.

        Raises an error if the client does not know tasks, and InsufficientScope if the token lacks a scope for one of
        its tasks, as for a resource.
        """
        self.require(call)
        found = await asyncio.gather(*(self._records.read(id) for id in dict.fromkeys(ids)))
        own = [record for record in found if record is not None and record.principal == call.principal]
        require_scopes(call, dict.fromkeys(scope for record in own for scope in self._scopes_of(record)))
        return [record.id for record in own]

    async def watch(self, id: str, wake: Callable[[], object]) -> Callable[[], Awaitable[None]]:
        """Call `wake` whenever a task changes. Return a function that ends this."""
        return await self._records.watch(id, wake)

    async def notification(self, call: Call, id: str, meta: dict[str, Any]) -> bytes | None:
        """Return the encoded notification with the present state of a task, or None if it has expired."""
        record = await self._records.fill(await self._records.read(id), "result", "error", "question")
        if record is None:
            return None
        method, params = call.era.tasks.notification(self._sealed(call, record), meta)
        return encode_notification(method, params)


async def _in_run(chain: Handler, call: Call) -> Any:
    """Run a tool, with middleware, as a task or as a call that may become one."""
    run: TaskRun = call.task
    try:
        result = await chain(call)
        if run.returned is not None and not _has_failed(result):
            run.external = run.returned
    finally:
        run.has_answered = True
    return result


async def _note_external(call: Call, called: Awaitable[Result]) -> Result:
    """Return the result of a tool's function. For work that is done outside, note the work, and return no content.

    Raises UsageError if the function has described such work, but has returned something else.
    """
    result = await called
    task: TaskRun | PlainCall = call.task
    if isinstance(result, ExternalWork):
        task.returned = result
        return CallToolResult(content=[])
    if described := task.public.described:
        call.blamed = call.described
        raise UsageError(
            f"ctx.task.external(...) at {described[0].place} was not returned, so its work was not handed over. Write "
            "`return ctx.task.external(...)`."
        )
    return result


def _size_of(answers: Mapping[str, GivenAnswer]) -> int:
    """Return the bytes of answers. That a question has failed has none, so that it can always be stored."""
    return sum(len(bytes(answer.value)) for answer in answers.values() if answer.failure is None)


def _has_failed(result: Any) -> bool:
    return isinstance(result, CallToolResult) and result.is_error


def _created(call: Call, record: TaskRecord) -> CompleteAnswer:
    """Return the answer to a call that has become a task."""
    return CompleteAnswer(200, encode_result(call.id, call.seal(call.era.tasks.created(record))))


def _answer(work: asyncio.Task[Answer | None]) -> CompleteAnswer:
    answer = work.result()
    assert answer is not None  # only tasks have none
    return CompleteAnswer(*answer)


class _StoredError(msgspec.Struct):
    code: int = -32603
    message: str = "The task failed."
    data: Any = None


def _no_task() -> InvalidParams:
    return InvalidParams("Invalid params: there is no task with this id. It may have expired.")


def _cursor(id: str) -> str:
    return base64.urlsafe_b64encode(f"tasks:{id}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> str:
    """Return the id in a cursor. Raises InvalidParams if the cursor is not from `tasks/list`."""
    try:
        if len(cursor) > _MOST_CURSOR:
            raise ValueError("too long")
        kind, _, id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(":")
        if kind != "tasks" or not is_task_id(id) or _cursor(id) != cursor:
            raise ValueError("not from here")
    except ValueError:
        raise InvalidParams("Invalid params: `cursor` is not from the list of tasks. Leave it out to begin.") from None
    return id
