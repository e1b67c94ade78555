"""Say how each era speaks of tasks: for a server, which calls become tasks, and the messages about a task.

In the stateless era, tasks are an extension. A client declares it with each request, and the server decides for each
call whether it becomes a task. Questions of a task are in the result of `tasks/get`, and a tool that fails has
completed. In the session era, only revision 2025-11-25 has tasks. There the client asks for a task, and gets what it
asked for. `tasks/result` waits for the end, and brings the questions as requests; a tool that fails makes the task
fail. No message of one generation can be read as a message of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from weft.eras.base import Envelope
from weft.errors import InvalidParams, MethodNotFound, MissingCapability, UndeclaredExtension
from weft.protocol.revisions import Method
from weft.types.base import EmptyResult, Meta, NotificationParams, Result
from weft.types.features import CallToolParams
from weft.types.lifecycle import (
    PaginatedParams,
    ServerCapabilities,
    ServerTaskRequests,
    ServerTasksCapability,
    ToolTaskRequests,
)
from weft.types.tasks import (
    IMMEDIATE_RESPONSE_KEY,
    TASK_RESULT,
    TASKS_EXTENSION,
    CreateSessionTaskResult,
    CreateTaskResult,
    GetSessionTaskResult,
    GetTaskResult,
    ListTasksResult,
    SessionTask,
    SessionTaskParams,
    TaskParams,
    TaskResultParams,
    TaskState,
    TaskStatusParams,
    TaskSupport,
    UpdateTaskParams,
)

# Whether a call becomes a task: never, if the server wants it, or always.
TaskPlan: TypeAlias = Literal["plain", "may", "must"]


class TaskMessages(Protocol):
    """How an era speaks of tasks, for a server."""

    methods: Sequence[Method]  # the methods about tasks that a client may call
    shows_outcome: bool  # whether `described` and `notification` have the questions and the result of a task

    def declare(self, capabilities: ServerCapabilities, *, lists: bool) -> ServerCapabilities:
        """Return the capabilities of a server with tools that can be tasks, as this era declares them.

        `lists` says whether this client may list its tasks.
        """
        ...

    def plan(self, envelope: Envelope, support: TaskSupport) -> TaskPlan:
        """Return whether a call of a tool becomes a task. `support` is what the tool supports.

        Raises MissingCapability or MethodNotFound if the tool cannot be called in this way.
        """
        ...

    def wanted_ttl(self, envelope: Envelope) -> float | None:
        """Return for how many seconds the client wants the task to be kept; None if it did not say."""
        ...

    def require(self, envelope: Envelope) -> None:
        """Raise an error if the client may not use the methods about tasks."""
        ...

    def created(self, state: TaskState) -> Result:
        """Return the answer to a call that has become a task."""
        ...

    def described(self, state: TaskState) -> Result:
        """Return the result of `tasks/get`."""
        ...

    def check_cancel(self, state: TaskState) -> None:
        """Raise InvalidParams if a task in this state cannot be cancelled."""
        ...

    def cancelled(self, state: TaskState) -> Result:
        """Return the result of `tasks/cancel`."""
        ...

    def listed(self, states: Sequence[TaskState], next_cursor: str | None) -> Result:
        """Return the result of `tasks/list`, which only the session era has."""
        ...

    def notification(self, state: TaskState, meta: Meta | None = None) -> tuple[str, NotificationParams]:
        """Return the method and the params of the notification that a task has changed."""
        ...


class _ExtensionFields(TypedDict):
    task_id: str
    status: Any
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int
    status_message: str | None


class _OutcomeFields(TypedDict):
    input_requests: dict[str, msgspec.Raw] | None
    result: Any
    error: Any


class StatelessTasks:
    """The tasks extension, `io.modelcontextprotocol/tasks`."""

    extension = TASKS_EXTENSION
    # A client must repeat the id in `Mcp-Name`, and FastMCP's client (4.1) does not. It is only needed for routing: a
    # server that can read the body need not refuse such requests. An id that differs is refused.
    methods: Sequence[Method] = (
        Method("tasks/get", TaskParams, mirrored="task_id", may_lack_name=True),
        Method("tasks/update", UpdateTaskParams, mirrored="task_id", may_lack_name=True),
        Method("tasks/cancel", TaskParams, mirrored="task_id", may_lack_name=True),
    )
    shows_outcome = True

    def declare(self, capabilities: ServerCapabilities, *, lists: bool) -> ServerCapabilities:
        """Return the capabilities with the extension. Tasks cannot be listed in this era."""
        return replace(capabilities, extensions={**(capabilities.extensions or {}), TASKS_EXTENSION: {}})

    def plan(self, envelope: Envelope, support: TaskSupport) -> TaskPlan:
        """Return "may" if the client declared the extension with this request. The param `task` means nothing."""
        if support == "forbidden":
            return "plain"
        if _declares(envelope):
            return "may"
        if support == "required":
            raise _needs_tasks(envelope)
        return "plain"

    def wanted_ttl(self, envelope: Envelope) -> float | None:
        """Return None: a client cannot ask for a time to live."""
        return None

    def require(self, envelope: Envelope) -> None:
        """Raise UndeclaredExtension if the client did not declare the extension with this request."""
        if not _declares(envelope):
            raise UndeclaredExtension(envelope.method.name, TASKS_EXTENSION)

    def created(self, state: TaskState) -> Result:
        """Return the handle of the task."""
        return CreateTaskResult(result_type=TASK_RESULT, **_fields(state))

    def described(self, state: TaskState) -> Result:
        """Return the task with its questions, its result or its error."""
        return GetTaskResult(**_fields(state), **_outcome(state))

    def check_cancel(self, state: TaskState) -> None:
        """Do nothing: cancelling a task that has ended is answered like any other request."""

    def cancelled(self, state: TaskState) -> Result:
        """Return an empty result: the client learns what became of the task by `tasks/get`."""
        return EmptyResult()

    def listed(self, states: Sequence[TaskState], next_cursor: str | None) -> Result:
        """Raise MethodNotFound: in this era, tasks cannot be listed."""
        raise MethodNotFound("Method not found")

    def notification(self, state: TaskState, meta: Meta | None = None) -> tuple[str, NotificationParams]:
        """Return `notifications/tasks`, with all that `tasks/get` would return."""
        return "notifications/tasks", TaskStatusParams(meta=meta, **_fields(state), **_outcome(state))


class _SessionFields(TypedDict):
    task_id: str
    status: Any
    created_at: str
    last_updated_at: str
    ttl: int
    poll_interval: int
    status_message: str | None


class _Wanted(msgspec.Struct):
    ttl: float | None = None  # in milliseconds


class SessionTasks:
    """The experimental tasks of revision 2025-11-25. Older revisions have none."""

    methods: Sequence[Method] = (
        Method("tasks/get", TaskParams),
        Method("tasks/result", TaskResultParams),
        Method("tasks/cancel", TaskParams),
        Method("tasks/list", PaginatedParams),
    )
    shows_outcome = False

    def declare(self, capabilities: ServerCapabilities, *, lists: bool) -> ServerCapabilities:
        """Return the capabilities with `tasks`."""
        calls = ServerTaskRequests(tools=ToolTaskRequests(call={}))
        tasks = ServerTasksCapability(list={} if lists else None, cancel={}, requests=calls)
        return replace(capabilities, tasks=tasks)

    def plan(self, envelope: Envelope, support: TaskSupport) -> TaskPlan:
        """Return "must" if the client asks for a task by the param `task`."""
        if not envelope.revision.tasks:
            if support == "required":
                raise _needs_tasks(envelope)
            return "plain"
        if cast("CallToolParams", envelope.params).task is UNSET:
            if support == "required":
                raise MethodNotFound("Method not found: this tool can only be called as a task. Send `task`.")
            return "plain"
        if support == "forbidden":
            raise MethodNotFound("Method not found: this tool cannot be called as a task. Leave out `task`.")
        return "must"

    def wanted_ttl(self, envelope: Envelope) -> float | None:
        """Return `ttl` of the param `task`. Raises InvalidParams if the param is malformed."""
        wanted = cast("CallToolParams", envelope.params).task
        return None if wanted is UNSET else read_ttl(wanted)

    def require(self, envelope: Envelope) -> None:
        """Raise MethodNotFound if the revision has no tasks. The extension means nothing in this era."""
        if not envelope.revision.tasks:
            raise MethodNotFound("Method not found")

    def created(self, state: TaskState) -> Result:
        """Return the task, and what the model may be told meanwhile."""
        said = state.immediate_response
        meta: Meta | None = None if said is None else {IMMEDIATE_RESPONSE_KEY: said}
        return CreateSessionTaskResult(task=SessionTask(**_session_fields(state)), meta=meta)

    def described(self, state: TaskState) -> Result:
        """Return the task, without questions and result."""
        return GetSessionTaskResult(**_session_fields(state))

    def check_cancel(self, state: TaskState) -> None:
        """Raise InvalidParams if the task has ended."""
        if state.is_final:
            status = _session_fields(state)["status"]
            raise InvalidParams(f"Invalid params: the task has ended already; its status is {status!r}.")

    def cancelled(self, state: TaskState) -> Result:
        """Return the cancelled task."""
        return self.described(state)

    def listed(self, states: Sequence[TaskState], next_cursor: str | None) -> Result:
        """Return one page of the caller's tasks."""
        tasks = [SessionTask(**_session_fields(state)) for state in states]
        return ListTasksResult(tasks=tasks, next_cursor=next_cursor)

    def notification(self, state: TaskState, meta: Meta | None = None) -> tuple[str, NotificationParams]:
        """Return `notifications/tasks/status`."""
        return "notifications/tasks/status", SessionTaskParams(meta=meta, **_session_fields(state))


def read_ttl(task: msgspec.Raw) -> float | None:
    """Return the time to live in seconds that the param `task` asks for; None if it does not say.

    Raises InvalidParams if the param is malformed.
    """
    try:
        ttl = msgspec.json.decode(task, type=_Wanted).ttl
    except msgspec.DecodeError:
        ttl = -1.0
    if ttl is not None and not ttl > 0:
        raise InvalidParams("Invalid params: `task` is an object, and its `ttl` a number of milliseconds above 0.")
    return None if ttl is None else ttl / 1000


def _declares(envelope: Envelope) -> bool:
    return TASKS_EXTENSION in (envelope.client_capabilities.extensions or {})


def _needs_tasks(envelope: Envelope) -> MissingCapability:
    """Return the error for a tool that can only be called as a task, if the client knows no tasks."""
    name = cast("CallToolParams", envelope.params).name
    return MissingCapability(
        f"The tool {name[:100]!r} can only be called as a task: the client must declare the extension "
        f"{TASKS_EXTENSION!r} in its capabilities.",
        required={"extensions": {TASKS_EXTENSION: {}}},
    )


def _fields(state: TaskState) -> _ExtensionFields:
    return {
        "task_id": state.id,
        "status": state.status,
        "created_at": _time(state.created),
        "last_updated_at": _time(state.updated),
        "ttl_ms": _milliseconds(state.ttl),
        "poll_interval_ms": _milliseconds(state.poll),
        "status_message": state.message,
    }


def _outcome(state: TaskState) -> _OutcomeFields:
    """Return what the status adds to a task of the extension."""
    return {
        "input_requests": state.questions if state.status == "input_required" else None,
        "result": UNSET if state.status != "completed" else state.result,
        "error": UNSET if state.status != "failed" else state.error,
    }


def _session_fields(state: TaskState) -> _SessionFields:
    return {
        "task_id": state.id,
        "status": "failed" if state.is_error and state.status == "completed" else state.status,
        "created_at": _time(state.created),
        "last_updated_at": _time(state.updated),
        "ttl": _milliseconds(state.ttl),
        "poll_interval": _milliseconds(state.poll),
        "status_message": state.message,
    }


def _time(seconds: float) -> str:
    """Return a Unix time in the format of RFC 3339.

    >>> _time(1784160000.25)
    '2026-07-16T00:00:00.250Z'
    """
    return f"{_whole_second(int(seconds))}.{int(seconds % 1 * 1000):03}Z"


@lru_cache(maxsize=1024)  # Formatting takes longer than all else that `tasks/get` does with a time.
def _whole_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


STATELESS_TASKS = StatelessTasks()
SESSION_TASKS = SessionTasks()
