"""Answer questions of a server as tasks, if the server wants that: only in revision 2025-11-25.

A server that adds `task` to a question gets a task at once, and the program's function answers the question meanwhile.
The server asks for the state of the task and for the answer by requests of its own: `tasks/get`, `tasks/result`,
`tasks/list` and `tasks/cancel`. A task ends with its time to live, or with the connection.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from weft.client.connection.connection import ClientConnection, RequestHandlers
from weft.eras.tasks import TaskMessages, read_ttl
from weft.errors import InternalError, InvalidParams, ProtocolError
from weft.limits import ClientLimits
from weft.types.lifecycle import (
    ClientCapabilities,
    ClientTaskRequests,
    ClientTasksCapability,
    ElicitationTaskRequests,
    SamplingTaskRequests,
)
from weft.types.tasks import RELATED_TASK_KEY, TaskState, TaskStatus, related_task

_ID_BYTES = 18  # of a task id: 144 random bits
_LEAST_TTL = 1.0  # seconds: shortest time to live of a task
_POLL_SECONDS = 1.0  # seconds that a server should wait between two requests for the state


def task_capability(capabilities: ClientCapabilities) -> ClientTasksCapability | None:
    """Return which questions a client with these capabilities can answer as tasks; None if there are none."""
    elicitation = None if capabilities.elicitation is None else ElicitationTaskRequests(create={})
    sampling = None if capabilities.sampling is None else SamplingTaskRequests(create_message={})
    if elicitation is None and sampling is None:
        return None
    return ClientTasksCapability(list={}, cancel={}, requests=ClientTaskRequests(sampling, elicitation))


class _Meta(msgspec.Struct):
    related_task: Raw | UnsetType = msgspec.field(name=RELATED_TASK_KEY, default=UNSET)


class _Params(msgspec.Struct, rename="camel"):
    """The params of a request of the server, as far as they are about tasks."""

    task: Raw | UnsetType = UNSET
    task_id: str = ""
    cursor: str | None = None
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


_read = msgspec.json.Decoder(_Params).decode
_Serve = Callable[[TaskMessages, _Params], Awaitable[Any]]


class _QuestionTask:
    """A question that is answered as a task."""

    def __init__(self, ttl: float) -> None:
        id, now = secrets.token_urlsafe(_ID_BYTES), time.time()
        self.state = TaskState(id=id, status="working", created=now, updated=now, ttl=ttl, poll=_POLL_SECONDS)
        self.ended = asyncio.Event()
        self.answer: dict[str, Any] = {}
        self.error: ProtocolError | None = None  # why there is no answer
        self.was_fetched = False  # whether the server has asked for the answer
        self.work: asyncio.Task[None] | None = None  # answers the question
        self.expiry: asyncio.TimerHandle | None = None  # ends the task when its time to live is over

    def end(self, status: TaskStatus, error: ProtocolError | None = None) -> None:
        """Note how the task has ended. Do nothing if it has ended already."""
        if not self.state.is_final:
            self.state.status, self.state.updated, self.error = status, time.time(), error
            self.state.message = None if error is None else error.message
            self.ended.set()


class QuestionTasks:
    """Answers the requests of a server: as tasks, if the server wants that, or as `handlers` answers them.

    `link` returns the connection.
    """

    def __init__(self, handlers: RequestHandlers, limits: ClientLimits, link: Callable[[], ClientConnection]) -> None:
        self._handlers = handlers
        self._limits = limits
        self._link = link
        self._gate = asyncio.Semaphore(limits.asks_at_once)
        self._tasks: dict[str, _QuestionTask] = {}  # by id
        self._methods: dict[str, _Serve] = {
            "tasks/get": self._get,
            "tasks/result": self._result,
            "tasks/list": self._list,
            "tasks/cancel": self._cancel,
        }

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declares."""
        return self._handlers.capabilities

    async def answer(self, method: str, params: Any = None) -> Any:
        """Answer one request of the server, whose params are raw JSON. Raises ProtocolError if there is no answer."""
        link = self._link()
        messages = link.era.tasks.served
        if messages is None:
            return await self._answer_now(method, params)
        about = _read_params(params)
        if self.capabilities.tasks is not None:
            if (serve := self._methods.get(method)) is not None:
                return await serve(messages, about)
            if self._can_be_task(method) and about.task is not UNSET:
                return messages.created(self._start(method, params, read_ttl(about.task)))
        answer = await self._answer_now(method, params)
        if about.meta is None or about.meta.related_task is UNSET:
            return answer
        # The server asks for a task of its own. All messages that belong to a task name it, also the answer.
        return {**answer, "_meta": {**answer.get("_meta", {}), RELATED_TASK_KEY: about.meta.related_task}}

    async def close(self) -> None:
        """Cancel all tasks."""
        working = [task.work for task in self._tasks.values() if task.work is not None]
        for task in self._tasks.values():
            if task.expiry is not None:
                task.expiry.cancel()
        self._tasks.clear()
        for work in working:
            work.cancel()
        if working:
            await asyncio.wait(working, timeout=self._limits.close_seconds)

    def _can_be_task(self, method: str) -> bool:
        declared = self.capabilities
        return (method == "elicitation/create" and declared.elicitation is not None) or (
            method == "sampling/createMessage" and declared.sampling is not None
        )

    async def _answer_now(self, method: str, params: Any) -> Any:
        """Let the program's function answer, when it is the question's turn."""
        async with self._gate:
            try:
                async with asyncio.timeout(self._limits.ask_seconds):
                    return await self._handlers.answer(method, params)
            except TimeoutError:
                raise InternalError("The question was not answered in time.") from None

    # --- tasks

    def _start(self, method: str, params: Any, wanted: float | None) -> TaskState:
        """Begin to answer a question as a task, and return the task. Raises InternalError if there are too many."""
        if len(self._tasks) >= self._limits.tasks_served and not self._make_room():
            raise InternalError(f"Internal error: this client answers {self._limits.tasks_served} questions as tasks.")
        most = self._limits.ask_seconds
        task = _QuestionTask(most if wanted is None else min(max(wanted, _LEAST_TTL), most))
        self._tasks[task.state.id] = task
        task.work = asyncio.create_task(self._work(task, method, params), name="weft-question")
        self._link().goes_on(task.work)
        task.expiry = asyncio.get_running_loop().call_later(task.state.ttl, self._expire, task.state.id)
        return msgspec.structs.replace(task.state)

    async def _work(self, task: _QuestionTask, method: str, params: Any) -> None:
        try:
            task.answer = await self._answer_now(method, params)
        except ProtocolError as error:  # whose traceback has the whole question
            task.end("failed", ProtocolError(error.message, code=error.code, data=error.data))
        except asyncio.CancelledError:
            task.end("cancelled")
            raise
        else:
            task.end("completed")

    def _make_room(self) -> bool:
        """Forget the oldest task that has ended, if possible one whose answer was fetched. Return False if none has."""
        ended = [id for id, task in self._tasks.items() if task.state.is_final]
        id = next((id for id in ended if self._tasks[id].was_fetched), ended[0] if ended else None)
        if id is None:
            return False
        task = self._tasks.pop(id)
        if task.expiry is not None:
            task.expiry.cancel()
        return True

    def _expire(self, id: str) -> None:
        task = self._tasks.pop(id, None)
        if task is not None and task.work is not None:
            task.work.cancel()
            task.ended.set()

    def _find(self, params: _Params) -> _QuestionTask:
        task = self._tasks.get(params.task_id)
        if task is None:
            raise InvalidParams("Invalid params: there is no task with this id. It may have expired.")
        return task

    async def _get(self, messages: TaskMessages, params: _Params) -> Any:
        return messages.described(self._find(params).state)

    async def _result(self, messages: TaskMessages, params: _Params) -> Any:
        task = self._find(params)
        await task.ended.wait()
        task.was_fetched = True
        if task.error is not None:
            raise ProtocolError(task.error.message, code=task.error.code, data=task.error.data)
        if task.state.status != "completed":
            raise InvalidParams("Invalid params: the task was cancelled or has expired, so it has no result.")
        return {**task.answer, "_meta": {**task.answer.get("_meta", {}), **related_task(task.state.id)}}

    async def _list(self, messages: TaskMessages, params: _Params) -> Any:
        if params.cursor is not None:  # there is only one page
            raise InvalidParams("Invalid params: `cursor` is not from the list of tasks. Leave it out.")
        return messages.listed([task.state for task in self._tasks.values()], None)

    async def _cancel(self, messages: TaskMessages, params: _Params) -> Any:
        task = self._find(params)
        messages.check_cancel(task.state)
        task.end("cancelled")
        if task.work is not None:
            task.work.cancel()
        return messages.cancelled(task.state)


def _read_params(params: Any) -> _Params:
    try:
        return _read(params)
    except msgspec.DecodeError:
        raise InvalidParams("Invalid params: the fields about tasks cannot be read.") from None
