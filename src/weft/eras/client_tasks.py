"""Say how each era speaks of tasks, for a client: how a call asks for a task, and how messages about tasks are read.

In the stateless era, the server decides whether a call becomes a task. The client reads the state of a task until it
has ended: the state has the questions, the result and the error. In the session era, only revision 2025-11-25 has
tasks. The client asks for a task, and `tasks/result` waits for the end. See also `weft.eras.tasks`, for servers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec import Raw, field

from weft.eras.tasks import SESSION_TASKS, TaskMessages
from weft.errors import InvalidAnswer
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ServerCapabilities
from weft.types.tasks import IMMEDIATE_RESPONSE_KEY, NOTHING, RELATED_TASK_KEY, TaskState, TaskStatus, TaskSupport

DEFAULT_POLL = 1.0  # seconds between two requests for the state, if the server does not say
_LONGEST_POLL = 86_400.0  # seconds, even if the server asks for more
_LONGEST_ID = 4096  # characters of the id of a task, or of the key of a question


class ClientTasks(Protocol):
    """How an era speaks of tasks, for a client."""

    exist: bool  # True if the protocol version has tasks
    result_waits: bool  # True if the request `tasks/result` waits for the end of a task, and brings its questions
    notification: str  # method of the notification that a task has changed
    served: TaskMessages | None  # how the client shows tasks that it serves; None if a server cannot ask for any

    def must_ask(self, server: ServerCapabilities) -> bool:
        """Return True if a call becomes a task only if the client asks for it, and this server accepts that."""
        ...

    def ask(self, params: Mapping[str, Any], support: TaskSupport | None, ttl: float | None) -> Mapping[str, Any]:
        """Return the params of `tools/call` with the wish for a task, if the tool supports tasks.

        `support` is what the tool's description says. `ttl` is how long the task should be kept, in seconds.
        """
        ...

    def read_handle(self, answer: bytes, params: Mapping[str, Any]) -> TaskState | None:
        """Return the task that a call has become; None if this is the result of the call.

        `answer` is the result of `tools/call`, and `params` are the params of the request. Raises InvalidAnswer if the
        handle is malformed.
        """
        ...

    def read_state(self, message: bytes) -> TaskState:
        """Decode a task: a result of `tasks/get`, or the params of a notification. Raises InvalidAnswer."""
        ...

    def changes_of(self, id: str) -> SubscriptionFilter | None:
        """Return the filter that subscribes to the changes of a task; None if there is no subscription."""
        ...

    def task_of(self, question: bytes) -> str | None:
        """Return the id of the server's task for which it sends a question; None if the params name no task."""
        ...


class _Handle(msgspec.Struct, rename="camel"):
    result_type: str | None = None


class _Outcome(msgspec.Struct, rename="camel"):
    is_error: bool = False


class _ExtensionTask(msgspec.Struct, rename="camel"):
    task_id: str
    status: TaskStatus
    created_at: str = ""
    last_updated_at: str = ""
    ttl_ms: float | None = None
    poll_interval_ms: float | None = None
    status_message: str | None = None
    input_requests: dict[str, Raw] = field(default_factory=dict[str, Raw])
    result: Raw = NOTHING
    error: Raw = NOTHING


class StatelessClientTasks:
    """The tasks extension, `io.modelcontextprotocol/tasks`."""

    exist = True
    result_waits = False
    notification = "notifications/tasks"
    served: TaskMessages | None = None

    def must_ask(self, server: ServerCapabilities) -> bool:
        """Return False: the server decides."""
        return False

    def ask(self, params: Mapping[str, Any], support: TaskSupport | None, ttl: float | None) -> Mapping[str, Any]:
        """Return the params unchanged: the capabilities of the client say that it knows tasks."""
        return params

    def read_handle(self, answer: bytes, params: Mapping[str, Any]) -> TaskState | None:
        """Return the task of a result whose type is "task"."""
        return self.read_state(answer) if _decode(answer, _Handle).result_type == "task" else None

    def read_state(self, message: bytes) -> TaskState:
        """Decode a task with its questions, its result or its error."""
        task = _decode(message, _ExtensionTask)
        state = _state(task, task.ttl_ms, task.poll_interval_ms)
        if task.status == "input_required":
            if any(len(key) > _LONGEST_ID for key in task.input_requests):
                raise InvalidAnswer(f"The key of a question of a task is longer than {_LONGEST_ID} characters.")
            state.questions = task.input_requests
        elif task.status == "completed":
            state.result = task.result
            with suppress(InvalidAnswer):  # who reads the result learns that it is invalid
                state.is_error = state.has_result and _decode(task.result, _Outcome).is_error
        elif task.status == "failed":
            state.error = task.error
        return state

    def changes_of(self, id: str) -> SubscriptionFilter | None:
        """Return a filter with the id of the task."""
        return SubscriptionFilter(task_ids=[id])

    def task_of(self, question: bytes) -> str | None:
        """Return None: the questions of a task are in its state, and no server sends requests."""
        return None


class _SessionTask(msgspec.Struct, rename="camel"):
    task_id: str
    status: TaskStatus
    created_at: str = ""
    last_updated_at: str = ""
    ttl: float | None = None
    poll_interval: float | None = None
    status_message: str | None = None


class _HandleMeta(msgspec.Struct):
    immediate_response: Any = field(name=IMMEDIATE_RESPONSE_KEY, default=None)


class _SessionHandle(msgspec.Struct):
    task: _SessionTask | None = None
    meta: _HandleMeta | None = field(name="_meta", default=None)


class _RelatedTask(msgspec.Struct, rename="camel"):
    task_id: str


class _QuestionMeta(msgspec.Struct):
    task: _RelatedTask | None = field(name=RELATED_TASK_KEY, default=None)


class _Question(msgspec.Struct):
    meta: _QuestionMeta | None = field(name="_meta", default=None)


class SessionClientTasks:
    """The experimental tasks of revision 2025-11-25. Older revisions have none."""

    result_waits = True
    notification = "notifications/tasks/status"

    def __init__(self, *, exist: bool) -> None:
        self.exist = exist
        self.served: TaskMessages | None = SESSION_TASKS if exist else None

    def must_ask(self, server: ServerCapabilities) -> bool:
        """Return True if the server has declared that calls of tools can be tasks."""
        tasks = server.tasks if self.exist else None
        requests = None if tasks is None else tasks.requests
        return requests is not None and requests.tools is not None and requests.tools.call is not None

    def ask(self, params: Mapping[str, Any], support: TaskSupport | None, ttl: float | None) -> Mapping[str, Any]:
        """Return the params with `task`, if the tool can or must be called as a task."""
        if support not in ("optional", "required"):
            return params
        return {**params, "task": {} if ttl is None else {"ttl": round(ttl * 1000)}}

    def read_handle(self, answer: bytes, params: Mapping[str, Any]) -> TaskState | None:
        """Return the task of an answer to a call with `task`; None if the server has ignored that wish."""
        if "task" not in params:
            return None
        handle: _SessionHandle = _decode(answer, _SessionHandle)
        if handle.task is None:
            return None
        state = self._state(handle.task)
        said = None if handle.meta is None else handle.meta.immediate_response
        state.immediate_response = said if isinstance(said, str) else None
        return state

    def read_state(self, message: bytes) -> TaskState:
        """Decode a task. Its questions and its result are not in the message."""
        return self._state(_decode(message, _SessionTask))

    def changes_of(self, id: str) -> SubscriptionFilter | None:
        """Return None: a server that notifies of changes does so without a subscription."""
        return None

    def task_of(self, question: bytes) -> str | None:
        """Return the id in the metadata of the question."""
        try:
            found = msgspec.json.decode(question, type=_Question).meta
        except msgspec.DecodeError:  # the question is refused elsewhere
            return None
        return None if found is None or found.task is None else found.task.task_id

    def _state(self, task: _SessionTask) -> TaskState:
        return _state(task, task.ttl, task.poll_interval)


def _decode(message: bytes, type: Any) -> Any:
    try:
        return msgspec.json.decode(message, type=type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's message about a task cannot be read: {error}.") from None


def _state(task: _ExtensionTask | _SessionTask, ttl: float | None, poll: float | None) -> TaskState:
    """Return the facts that both generations have. `ttl` and `poll` are in milliseconds.

    Raises InvalidAnswer if the id cannot be one, because each further request repeats it.
    """
    if not 0 < len(task.task_id) <= _LONGEST_ID:
        raise InvalidAnswer(f"The id of the server's task is empty, or longer than {_LONGEST_ID} characters.")
    created = _seconds(task.created_at)
    return TaskState(
        id=task.task_id,
        status=task.status,
        created=created,
        updated=max(_seconds(task.last_updated_at), created) if task.last_updated_at else created,
        ttl=math.inf if ttl is None else ttl / 1000,
        poll=DEFAULT_POLL if poll is None else min(max(poll / 1000, 0.0), _LONGEST_POLL),
        message=task.status_message,
    )


def _seconds(text: str) -> float:
    """Return the Unix time of a text in the format of RFC 3339; the present time if the text has another format.

    >>> _seconds("2026-07-16T00:00:00.250Z")
    1784160000.25
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return time.time()


STATELESS_CLIENT_TASKS = StatelessClientTasks()
