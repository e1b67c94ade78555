"""Report on tasks from programs outside of the server, which do the work that a handler has handed to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar, overload

import msgspec
from msgspec import Raw

from weft.backends import Backend, check_backend, open_backend
from weft.backends.scoped import ScopedBackend
from weft.errors import ProtocolError, QuestionFailed, TaskEnded, ToolError, UsageError
from weft.jsonrpc import to_unicode
from weft.limits import DEFAULT_LIMITS, Limits
from weft.protocol.request_state import digest
from weft.protocol.schema import compile_schema
from weft.server.asking.asks import Elicitation, read_form
from weft.server.asking.questions import ask_form, check_key, missing_for, params_of
from weft.server.asking.rounds import without_page_id
from weft.server.diagnostics import read_message, read_progress
from weft.server.features.content import to_blocks
from weft.server.features.tools import failure
from weft.server.signature.output import to_json_text
from weft.server.tasks.records import AskedQuestion, TaskRecord, TaskRecords, is_task_id
from weft.server.tasks.runs import MOST_MESSAGE, progress_text
from weft.types.features import CallToolResult, TextContent
from weft.types.interaction import CreateMessageResult, InputRequest
from weft.types.tasks import SHOWN_OF_TASK_ID, TaskState

__all__ = ["TaskStore"]

log = logging.getLogger("weft.tasks")

T = TypeVar("T")

LOOK_SECONDS = 10.0  # longest time between two looks for an answer, if a message about it was lost


class TaskStore:
    """Reports on tasks whose work is done outside of the server, from any process with the same backend.

    A handler hands its work over with `return ctx.task.external(submit, ...)`. The program that gets it reports:

        store = TaskStore("redis://localhost:6379")
        if not await store.progress(task_id, 3, 10, "rendering"):
            return                                    # cancelled, or expired: nothing more to do
        await store.complete(task_id, {"frames": 10})

    `backend` is what the server has: a URL, or an object. A task waits for the program as soon as its work is handed
    over, and until it has ended, was cancelled, or has expired. At other times, `progress`, `tell`, `complete` and
    `fail` return False, and `ask` raises TaskEnded.
    """

    def __init__(self, backend: str | Backend, *, prefix: str = "weft:", limits: Limits = DEFAULT_LIMITS) -> None:
        if isinstance(backend, str):
            self._backend = open_backend(backend, prefix=prefix)
            if self._backend.is_local:
                raise UsageError(
                    f"TaskStore({backend!r}) is a memory of its own, in which there are no tasks. In the process of "
                    "the server, write TaskStore(server.backend). In another one, give both a backend that processes "
                    "share, such as redis://localhost:6379."
                )
        else:
            check_backend(backend)
            self._backend = backend
        self._limits = limits

    async def __aenter__(self) -> Self:
        await self._backend.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the backend. Do not call this for the backend object of a running server."""
        await self._backend.close()

    async def status(self, id: str) -> TaskState | None:
        """Return the state of a task whose work was handed over; None if there is no such task, or it has expired."""
        records = await self._records(id)
        record = await records.fill(await records.read(id), "result", "error", "question")
        if record is None or not record.is_handed_over:
            return None
        return TaskState(**{name: getattr(record, name) for name in TaskState.__struct_fields__})

    async def progress(self, id: str, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Show progress to the client. Return False if the task is not waiting any more, so that the work can stop.

        Progress never goes back: of progress that is not greater than before, only the message is shown, if there is
        one. So a program that was restarted may report from the beginning.
        """
        progress, total, message = read_progress(progress, total, message, "progress")

        def edit(record: TaskRecord) -> bool:
            if record.progress is None or progress > record.progress:
                record.progress, record.total = progress, total
            elif message is None:
                return False
            record.message = progress_text(record.progress, record.total, message)
            return True

        return await _change(await self._records(id), id, edit) is not None

    async def tell(self, id: str, message: str) -> bool:
        """Show a text to the client as the status of the task. Return False if the task is not waiting any more."""
        text = read_message(message, "tell")[:MOST_MESSAGE]

        def edit(record: TaskRecord) -> bool:
            record.message = text
            return True

        return await _change(await self._records(id), id, edit) is not None

    async def complete(self, id: str, result: Any = None) -> bool:
        """End a task with a result: a value as the tool's function returns it, or a `CallToolResult`.

        If the tool has an output schema, the value must fit it: else UsageError is raised, and the task is not ended.
        Return False if the task is not waiting any more.
        """
        records = await self._records(id)
        record = await records.fill(await records.read(id), "output_schema")
        if record is None or not _is_waiting(record):
            return False
        return await self._end(id, _to_result(record, result))

    async def fail(self, id: str, error: str | Exception) -> bool:
        """End a task that has failed. Return False if the task is not waiting any more.

        A text, or a `ToolError`, is the failure of a tool, for the model. A `ProtocolError` is a JSON-RPC error. Of all
        other exceptions, the client learns only the class.
        """
        if isinstance(error, ProtocolError):
            return await self._end(id, error)
        if not isinstance(error, str | Exception):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UsageError(f"fail(id, {error!r}) is not possible: give a text or an exception.")
        if isinstance(error, Exception) and not isinstance(error, ToolError):
            error = f"The work failed: {type(error).__name__}."
        return await self._end(id, failure(str(error)), message=to_unicode(str(error))[:MOST_MESSAGE])

    async def _end(self, id: str, outcome: CallToolResult | ProtocolError, *, message: str | None = None) -> bool:
        encoded = Raw(_encode_error(outcome) if isinstance(outcome, ProtocolError) else msgspec.json.encode(outcome))
        most = self._limits.task_bytes
        if len(bytes(encoded)) > most:
            raise UsageError(
                f"The result of a task has {len(bytes(encoded))} bytes, more than {most}. Complete it with a link to "
                "the result, or raise TaskStore(..., limits=Limits(task_bytes=...))."
            )

        def edit(record: TaskRecord) -> bool:
            kept = self._limits.task_kept_seconds
            if isinstance(outcome, ProtocolError):
                record.end("failed", kept_seconds=kept)
                record.error, record.message = encoded, to_unicode(str(outcome))[:MOST_MESSAGE]
            else:
                record.end("completed", kept_seconds=kept)
                record.result, record.is_error, record.message = encoded, outcome.is_error, message or record.message
            log.info("task %s of %r has ended: %s", id[:SHOWN_OF_TASK_ID], record.tool, record.status)
            return True

        records = await self._records(id)
        record = await _change(records, id, edit)
        if record is not None:
            await records.forget(record)
        return record is not None

    @overload
    async def ask(
        self, id: str, question: str, schema: type[T], *, key: str | None = None, timeout: float | None = None
    ) -> Elicitation[T]: ...
    @overload
    async def ask(
        self, id: str, question: str, schema: Mapping[str, Any], *, key: str | None = None, timeout: float | None = None
    ) -> Elicitation[dict[str, Any]]: ...
    @overload
    async def ask(
        self, id: str, question: InputRequest, *, key: str | None = None, timeout: float | None = None
    ) -> Any: ...
    async def ask(
        self,
        id: str,
        question: str | InputRequest,
        schema: Any = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Ask the user to fill in a form, or ask something else (`ask_url`, `ask_model`), and wait for the answer.

        The same question is asked once: if the program runs again, it gets the same answer. `timeout` is in seconds.
        After it, TimeoutError is raised, and the question stays. Raises TaskEnded if the task is not waiting any more,
        and QuestionFailed if the client cannot be asked, or refuses.
        """
        request = question if isinstance(question, InputRequest) else ask_form(question, schema)
        if key is not None:
            check_key(key, f"ask(key={key!r})")
        records = await self._records(id)
        params = params_of(request)
        asked = AskedQuestion("", digest(request.method, without_page_id(params)))
        asked.name = key or f"ask-{asked.digest[:10]}"
        _require_waiting(await records.read(id))
        await self._check_client(records, id, request)
        changed = asyncio.Event()
        async with records.watched(id, changed.set), asyncio.timeout(timeout):
            await records.change(id, lambda record: _add_question(record, asked, request.method, params))
            while True:
                changed.clear()
                record = _require_waiting(await records.fill(await records.read(id), "answer"))
                answer = next((record.answers[one] for one in record.answers if record.asked[one] == asked), None)
                if answer is not None and answer.failure is not None:
                    raise QuestionFailed(answer.failure, answer.code, answer.data)
                if answer is not None:
                    return _read_answer(request, schema, answer.value)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await changed.wait()

    async def _check_client(self, records: TaskRecords, id: str, request: InputRequest) -> None:
        stored = await records.read_journal(id)
        if stored is not None and (missing := missing_for(stored[0].client_capabilities, request)):
            raise QuestionFailed(missing)

    async def _records(self, id: str) -> TaskRecords:
        """Return the records of the server to which a task belongs."""
        if not isinstance(id, str) or not is_task_id(id):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UsageError(
                "This is not the id of a task: it is the first argument of the function given to external."
            )
        scope = await self._backend.store.get(_scope(id))
        return TaskRecords(ScopedBackend(self._backend, scope.decode()) if scope else self._backend)


async def publish_scope(whole: Backend, id: str, scope: str, *, ttl: float) -> None:
    """Store to which server a task belongs, so that a `TaskStore` finds it. `scope` is empty if there is only one."""
    await whole.store.put(_scope(id), scope.encode(), ttl=ttl)


def _scope(id: str) -> str:
    return f"task-server/{id}"


async def _change(records: TaskRecords, id: str, edit: Callable[[TaskRecord], bool]) -> TaskRecord | None:
    """Change the record of a task, and return it. Return None if the task is not waiting for the program.

    `edit` returns False if nothing is to be stored.
    """
    was_waiting = False

    def noted(record: TaskRecord) -> bool:
        nonlocal was_waiting
        was_waiting = _is_waiting(record)
        return was_waiting and edit(record)

    record = await records.change(id, noted)
    return record if was_waiting else None


def _is_waiting(record: TaskRecord) -> bool:
    """Return whether a task waits for a program outside, or soon will: the program may be faster than the server."""
    return record.is_handed_over and not record.is_final and record.expires > time.time()


def _require_waiting(record: TaskRecord | None) -> TaskRecord:
    if record is None or not _is_waiting(record):
        raise TaskEnded(
            "The task is not waiting for this program: it has ended, was cancelled, has expired, or its work was not "
            "handed over."
        )
    return record


def _add_question(record: TaskRecord, asked: AskedQuestion, method: str, params: Any) -> bool:
    if not _is_waiting(record) or any(record.asked[key] == asked for key in (*record.questions, *record.answers)):
        return False
    request = {"method": method} if params is None else {"method": method, "params": params}
    record.ask(asked.name, asked, Raw(msgspec.json.encode(request)))
    return True


def _read_answer(request: InputRequest, schema: Any, value: Raw) -> Any:
    if request.method == "elicitation/create":
        return read_form(value, schema)
    if request.method == "sampling/createMessage":
        return msgspec.json.decode(value, type=CreateMessageResult)
    return msgspec.json.decode(value)


def _to_result(record: TaskRecord, value: Any) -> CallToolResult:
    """Turn the value of a program into the result of the tool. Raises UsageError if it does not fit the tool."""
    if isinstance(value, CallToolResult):
        return value
    schema: Any = msgspec.json.decode(record.output_schema)
    if schema is None:
        return CallToolResult(content=to_blocks(value))
    structured = msgspec.json.decode(to_json_text(value))
    if problems := compile_schema(schema).problems(structured):
        raise UsageError(f"The result does not fit the output schema of the tool {record.tool!r}: {problems[0]}")
    return CallToolResult(content=[TextContent(to_json_text(structured))], structured_content=structured)


def _encode_error(error: ProtocolError) -> bytes:
    data = {} if error.data is None else {"data": error.data}
    return msgspec.json.encode({"code": error.code, "message": to_unicode(error.message), **data})
