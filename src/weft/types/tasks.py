"""Define the messages about tasks: those of the tasks extension, and those of revision 2025-11-25.

A task is a request that is answered at once with a handle, and served later. The two generations differ in every
message. `TaskState` has the facts that both show; an era turns it into its messages (`weft.eras.tasks`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.errors import InvalidAnswer
from weft.types.base import Meta, NotificationParams, PageResult, Result, Struct
from weft.types.lifecycle import RequestParams

__all__ = [
    "CreateSessionTaskResult", "CreateTaskResult", "GetSessionTaskResult", "GetTaskResult", "ListTasksResult",
    "SessionTask", "SessionTaskParams", "TaskInput", "TaskParams", "TaskResultParams",
    "TaskStatusParams", "ToolExecution", "UpdateTaskParams",
]  # fmt: skip

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
TASK_METHODS = ("tasks/", "notifications/tasks/")  # methods whose names begin so belong to tasks
TASK_RESULT = "task"  # the value of `resultType` of a handle
RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"
IMMEDIATE_RESPONSE_KEY = "io.modelcontextprotocol/model-immediate-response"

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TaskSupport = Literal["required", "optional", "forbidden"]
NOTHING = msgspec.Raw(b"null")
SHOWN_OF_TASK_ID = 6  # first characters of a task id that logs may contain
FINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})  # statuses that never change


class TaskState(msgspec.Struct):
    """What is known about a task now, in no generation's form. Times are Unix times in seconds.

    `result` is the encoded result of the call, with `is_error` if it is the result of a tool that failed. `error` is
    an encoded JSON-RPC error. Both are `NOTHING` if there is none. `questions` are the unanswered questions to the
    client: encoded requests, by key. `requests` decodes them.
    """

    id: str
    status: TaskStatus
    created: float
    updated: float
    ttl: float  # seconds after `created` for which the task is kept
    poll: float  # seconds that a client should wait between two requests for the state
    message: str | None = None
    questions: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict[str, msgspec.Raw])
    result: msgspec.Raw = NOTHING
    is_error: bool = False
    error: msgspec.Raw = NOTHING
    immediate_response: str | None = None  # what the model may be told while the task runs

    @property
    def is_final(self) -> bool:
        """Whether the task has ended, so that nothing changes any more."""
        return self.status in FINAL

    @property
    def requests(self) -> dict[str, TaskInput]:
        """The unanswered questions by key, decoded. Raises InvalidAnswer if one of them is no request."""
        try:
            return {key: msgspec.json.decode(raw, type=TaskInput) for key, raw in self.questions.items()}
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidAnswer(f"The questions of the task cannot be read: {error}.") from None

    @property
    def has_result(self) -> bool:
        """Whether the call has a result."""
        return bytes(self.result) != b"null"

    @property
    def has_error(self) -> bool:
        """Whether the call has failed with a JSON-RPC error."""
        return bytes(self.error) != b"null"


# --- the tasks extension, for the stateless era


class TaskParams(RequestParams, kw_only=True):
    """The params of `tasks/get` and `tasks/cancel`: the id of the task. Both generations have them."""

    task_id: str


class UpdateTaskParams(RequestParams, kw_only=True):
    """The params of `tasks/update`: answers to questions of a task, by key. Only outstanding questions are decoded."""

    task_id: str
    input_responses: dict[str, msgspec.Raw] | None = None


class TaskInput(Struct):
    """One question of a task to the client: the method and the params of the request."""

    method: str
    params: Any = UNSET


class CreateTaskResult(Result, kw_only=True):
    """The answer to a call that has become a task: its handle. `result_type` is "task"."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None
    status_message: str | None = None


class GetTaskResult(Result, kw_only=True):
    """The result of `tasks/get`: the task as it is now."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None
    status_message: str | None = None
    input_requests: dict[str, msgspec.Raw] | None = None
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


class TaskStatusParams(NotificationParams, kw_only=True):
    """The params of `notifications/tasks`: the same as the result of `tasks/get`."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None
    status_message: str | None = None
    input_requests: dict[str, msgspec.Raw] | None = None
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


# --- the experimental tasks of revision 2025-11-25


class ToolExecution(Struct):
    """How a tool can be called: `task_support` says whether as a task."""

    task_support: TaskSupport | None = None


class SessionTask(Struct, kw_only=True):
    """A task of revision 2025-11-25."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


class CreateSessionTaskResult(Result, kw_only=True):
    """The answer to a request that has become a task, in revision 2025-11-25."""

    task: SessionTask


class GetSessionTaskResult(Result, kw_only=True):
    """The result of `tasks/get` and `tasks/cancel` in revision 2025-11-25: the task as it is now."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


class TaskResultParams(TaskParams, kw_only=True):
    """The params of `tasks/result` of revision 2025-11-25: the id of the task."""


class ListTasksResult(PageResult, kw_only=True):
    """The result of `tasks/list` of revision 2025-11-25: one page of the caller's tasks."""

    tasks: list[SessionTask]


class SessionTaskParams(NotificationParams, kw_only=True):
    """The params of `notifications/tasks/status` of revision 2025-11-25."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    poll_interval: int | None = None
    status_message: str | None = None


def related_task(id: str) -> Meta:
    """Return the `_meta` of a message that belongs to a task of revision 2025-11-25.

    >>> related_task("t1")
    {'io.modelcontextprotocol/related-task': {'taskId': 't1'}}
    """
    return {RELATED_TASK_KEY: {"taskId": id}}
