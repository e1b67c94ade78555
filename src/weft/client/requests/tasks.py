"""Follow tasks: calls of tools that go on after the server has answered them.

A handle follows its task until the task has ended, shows its status messages, and answers its questions with the
functions that answer all questions of the server. `known_tasks` asks for the states.

In the session era, the request `tasks/result` waits for the end of a task. While it waits, the server sends the
questions of the task as requests, and the client asks for the state now and then, to notice if the server is lost.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw, UnsetType

from weft.client.argument_checks import check_timeout, trim_traceback
from weft.client.callbacks import Attempts, CallbackQueue
from weft.client.connection.connection import ProgressCallback
from weft.client.connection.transport import remote_error
from weft.client.requests.exchange import Options, check_number
from weft.client.requests.known_tasks import LEAST_POLL, LISTENING_POLL, Follower, KnownTask, Tasks, pause_after
from weft.client.results import PendingQuestions, ToolCallFailed, ToolResult, read_value
from weft.errors import (
    ConnectionFailed,
    InternalError,
    InvalidAnswer,
    RemoteError,
    RequestTimeout,
    TaskEnded,
    UsageError,
    WeftError,
)
from weft.limits import ClientLimits
from weft.types.interaction import InputRequest, InputRequiredResult
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import TaskState

T = TypeVar("T")

_MOST_QUESTIONS = 10_000  # questions of one task; if there are more, following it fails
_MOST_KEYS = 4 * 1024 * 1024  # characters of the keys of these questions, because each is remembered
# By method of a question: a field that each answer has, and what an answer looks like, for error messages.
_ANSWERS: Mapping[str, tuple[str, str]] = {
    "elicitation/create": ("action", '{"action": "accept", "content": {...}} or {"action": "decline"}'),
    "sampling/createMessage": ("role", '{"role": "assistant", "content": {...}, "model": "..."}'),
    "roots/list": ("roots", '{"roots": [{"uri": "file:///..."}]}'),
}


class WaitTimeout(RequestTimeout):
    """Raised if a task has not ended within the time for which the program waits. The server is not lost."""


class TaskHandle:
    """A call of a tool that the server may have answered with a task.

    Store `id` to take up the task later, also in another process: `client.task(id)`. `id` is None if the server has
    answered with the result instead. All methods work then, too.
    """

    def __init__(
        self,
        tasks: Callable[[], Tasks],
        tool: str,
        id: str | None,
        *,
        known: KnownTask | None = None,
        result: ToolResult | None = None,
        immediate_response: str | None = None,
    ) -> None:
        self.id = id
        self.tool = tool  # name of the tool; "" if it is not known
        self.immediate_response = immediate_response  # for the model, while it waits
        self._tasks = tasks  # returns the tasks of the present connection; raises an error if there is none
        self._known = known  # shared with the other handles of the task; None until it is used
        self._result = result  # None until it is known

    def __repr__(self) -> str:
        return f"<TaskHandle of {self.tool!r}>"  # without the id: it may be all that is needed to read the result

    async def status(self) -> TaskState:
        """Ask the server for the state of the task, once. Raises TaskEnded if the task does not exist any more."""
        if self.id is None:
            return _plain_state()
        tasks, known = self._open(self.id)
        return await tasks.read(known)

    async def cancel(self) -> None:
        """Cancel the task. Do nothing if it has ended."""
        if self.id is not None:
            tasks, known = self._open(self.id)
            await tasks.cancel(known.id)

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer questions of the task by their keys, if the client has `manual_input`.

        Each answer is the result of the question's request, such as `{"action": "accept", "content": {"name": "Ann"}}`.
        Raises UsageError if the task does not ask one of these questions now, or an answer has another form.
        """
        if self.id is None:
            raise UsageError("This call was answered without a task, so it asks nothing.")
        tasks, known = self._open(self.id)
        if tasks.link.era.tasks.result_waits:
            raise UsageError(
                f"A task of protocol version {tasks.link.era.version} asks while its result is awaited. Give the "
                "client functions that answer, such as `elicit=`."
            )
        state = known.newest
        if state is None or not answers.keys() <= state.questions.keys():  # the server may have asked meanwhile
            state = await tasks.read(known)
        _check_answers(answers, _unanswered(tasks, known, state))
        await tasks.update(known, answers)
        known.answered.update(answers)

    def _open(self, id: str) -> tuple[Tasks, KnownTask]:
        """Return the tasks of the present connection, and what is known of this task."""
        tasks = self._tasks()
        tasks.check_exist()
        if self._known is None:
            self._known = tasks.known(id)
        return tasks, self._known

    @overload
    async def result(
        self,
        *,
        result_type: None = None,
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> ToolResult: ...

    @overload
    async def result(
        self,
        *,
        result_type: type[T],
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> T: ...

    async def result(
        self,
        *,
        result_type: Any = None,
        raise_on_error: bool = False,
        timeout: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> Any:
        """Wait until the task has ended, answer its questions meanwhile, and return the result like `call_tool`.

        `progress` is called with each new status message. `timeout` is in seconds; with `progress`, each message
        restarts it. If you stop waiting, the task goes on.

        Raises TaskEnded if the task was cancelled or has expired, RemoteError if it has ended with a JSON-RPC error,
        CannotAnswer if a question could not be answered.
        """
        try:
            result = await self.follow(timeout, progress)
        except WeftError as error:
            trim_traceback(error)
            raise
        await self._tasks().check(self.tool, result)
        return read_result(self.tool, result, result_type, raise_on_error=raise_on_error)

    async def __aiter__(self) -> AsyncGenerator[TaskState]:
        """Yield each change of the state, and answer the questions of the task. The last state is final."""
        if self.id is None:
            yield _plain_state()
            return
        tasks, known = self._open(self.id)
        with tasks.following(known) as follower:
            async with aclosing(self._states(tasks, follower)) as states:
                async for state in states:
                    yield state

    # --- following

    async def follow(
        self, timeout: float | None, progress: ProgressCallback | None, *, left: float = math.inf, is_call: bool = False
    ) -> ToolResult:
        """Wait until the task has ended, answer its questions meanwhile, and return its result unchecked.

        With `is_call`, this is part of a call, of whose `timeout` so many seconds are `left`.
        """
        if self._result is not None or self.id is None:
            assert self._result is not None
            return self._result
        check_timeout(timeout)
        tasks, known = self._open(self.id)
        shown = _Progress(tasks.limits, progress)
        with tasks.following(known) as follower:
            work = asyncio.create_task(self._to_the_end(tasks, follower, shown))
            try:
                waiting = _Waiting(tasks.limits, timeout, left)
                while not work.done():
                    seconds = waiting.left(known, shown)
                    if seconds <= 0:
                        raise WaitTimeout(waiting.message(self.tool, is_call=is_call))
                    await asyncio.wait([work], timeout=seconds)
                self._result = work.result()
            finally:
                work.cancel()
                await asyncio.wait([work])
                await shown.close()
        return self._result

    def must_cancel(self, error: BaseException) -> bool:
        """Return whether a call that fails with this error has to cancel its task: nobody waits for it any more.

        That is not so if the task has ended, if the program will answer its questions, or if the server is lost.
        """
        known = self._known
        if known is None or (known.newest is not None and known.newest.is_final):
            return False
        if isinstance(error, ConnectionFailed | RemoteError):
            return not self._tasks().may_recover(error)
        if isinstance(error, PendingQuestions | TaskEnded):
            return False
        return isinstance(error, Exception | asyncio.CancelledError)

    async def _to_the_end(self, tasks: Tasks, follower: Follower, shown: _Progress) -> ToolResult:
        while True:
            if tasks.link.era.tasks.result_waits:
                result = await self._wait_for_result(tasks, follower, shown)
            else:
                result = await self._follow_states(tasks, follower, shown)
            if result is not None:
                return result
            follower.known.forget()  # the server was replaced by one of the other era
            follower.seen = None

    async def _follow_states(self, tasks: Tasks, follower: Follower, shown: _Progress) -> ToolResult | None:
        """Return the result that is in the final state. Return None if the server speaks the session era now."""
        follower.poll = LEAST_POLL
        async with aclosing(self._states(tasks, follower)) as states:
            async for state in states:
                if tasks.link.era.tasks.result_waits:
                    return None
                shown.show(state)
                if state.is_final:
                    return _outcome(state)
                if tasks.is_manual and (new := _unanswered(tasks, follower.known, state)):
                    raise PendingQuestions(InputRequiredResult(input_requests=new), self)
        raise AssertionError  # the last state is final

    async def _states(self, tasks: Tasks, follower: Follower) -> AsyncGenerator[TaskState]:
        """Yield each state of the task, and answer its questions, until it has ended."""
        while True:
            state = await tasks.next_state(follower)
            self._take_questions(tasks, follower.known, state)
            yield state
            if state.is_final:
                return

    # --- questions

    def _take_questions(self, tasks: Tasks, known: KnownTask, state: TaskState) -> None:
        """Begin to answer the questions of a state that are not being answered yet."""
        if state.status != "input_required":
            return
        if tasks.link.era.tasks.result_waits:
            _fetch(tasks, known)  # the server sends its questions while this request waits
            return
        if tasks.is_manual:
            return
        questions = _unanswered(tasks, known, state)
        for key in questions.keys() - known.asking.keys():
            question = questions[key]
            known.asking[key] = tasks.link.spawn(self._answer_one(tasks, known, key, question))

    async def _answer_one(self, tasks: Tasks, known: KnownTask, key: str, question: InputRequest) -> None:
        """Let the program's function answer a question, and send the answer. All who follow the task get an error.

        An answer that the server refuses is no error if the question is not asked any more: somebody else has answered
        it, or the task has ended.
        """
        params = None if question.params is UNSET else question.params
        is_answered = False
        try:
            answer = await tasks.exchange.answer(key, question.method, params)
            if is_answered := known.end_asking(key):
                known.answered.add(key)
                await tasks.update(known, {key: answer})
        except Exception as error:  # noqa: BLE001 - raised by those who follow the task
            if is_answered or known.end_asking(key):
                known.answered.discard(key)  # it is asked again when the task is followed again
                if not isinstance(error, RemoteError) or known.asks(key):
                    known.fail(error)

    # --- the result, where a request waits for it

    async def _wait_for_result(self, tasks: Tasks, follower: Follower, shown: _Progress) -> ToolResult | None:
        """Wait for `tasks/result`, and show progress meanwhile. Return None if the server is of the other era now.

        Raises ConnectionFailed or RequestTimeout if the state of the task cannot be read for some time, because then
        nobody may be left to answer. If the task has ended, but no answer comes, `tasks/result` is sent again, for
        `task_lost_seconds`.
        """
        known, given_up = follower.known, math.inf
        follower.poll = LEAST_POLL if shown.is_wanted else LISTENING_POLL
        if shown.is_wanted:
            known.reports.add(shown.report)
        try:
            while True:
                fetching, watching = _fetch(tasks, known), tasks.link.spawn(self._watch(tasks, follower, shown))
                try:
                    await asyncio.wait([fetching, watching], return_when=asyncio.FIRST_COMPLETED)
                    tasks.link.check_open()
                    if not fetching.done() and not watching.result():
                        await asyncio.wait([fetching])
                finally:
                    watching.cancel()
                if fetching.done() and not fetching.cancelled():
                    answer = fetching.result()
                    return None if answer is None else _read(answer, ToolResult)
                tasks.link.check_open()
                fetching.cancel()  # the answer is lost
                given_up = min(given_up, time.monotonic() + tasks.limits.task_lost_seconds)
                if time.monotonic() >= given_up:
                    raise RequestTimeout(
                        f"The task has ended, but {tasks.link.transport.where} does not send its result. The client "
                        f"has tried for {tasks.limits.task_lost_seconds:g} s, the limit `task_lost_seconds`."
                    )
        finally:
            known.reports.discard(shown.report)

    async def _watch(self, tasks: Tasks, follower: Follower, shown: _Progress) -> bool:
        """Show the states of a task while `tasks/result` waits. Return True some time after the task has ended.

        Returns False if the states cannot be read, although the server answers.
        """
        newest = follower.known.newest
        try:
            if newest is None or not newest.is_final:
                async for state in self._states(tasks, follower):
                    shown.show(state)
        except TaskEnded:
            pass
        except (ConnectionFailed, RequestTimeout):
            raise
        except WeftError:
            return False  # `tasks/result` tells what has happened
        await asyncio.sleep(tasks.limits.request_seconds)
        return True


def _fetch(tasks: Tasks, known: KnownTask) -> asyncio.Task[bytes | None]:
    """Return the asyncio task that waits for `tasks/result`; begin to wait if there is none."""
    fetching = known.fetching
    is_over = fetching is None or fetching.cancelling() or fetching.cancelled()
    if fetching is None or is_over or (fetching.done() and (fetching.exception() or fetching.result() is None)):
        fetching = known.fetching = tasks.link.spawn(_fetch_result(tasks, known))
        fetching.add_done_callback(partial(_tell_failure, known))
    return fetching


def _tell_failure(known: KnownTask, fetching: asyncio.Task[bytes | None]) -> None:
    """Raise the error of `tasks/result` from all who follow the task, also those who do not wait for this request.

    Without the request, no question of the task comes. If the task has ended, its state says all that they need.
    """
    has_ended = known.newest is not None and known.newest.is_final
    if not fetching.cancelled() and isinstance(error := fetching.exception(), Exception) and not has_ended:
        known.fail(error)


async def _fetch_result(tasks: Tasks, known: KnownTask) -> bytes | None:
    """Return the encoded result; None if the server speaks the other era now.

    If the request fails although the task goes on, it is sent again, as long as the server answers `tasks/get`. The
    answer to `tasks/result` alone does not say how the task has ended. An internal error can be that of the task, or of
    a server that cannot read the result now. For a task without a result, the official TypeScript SDK 1.x returns an
    internal error, and the Python SDK 1.x a result without content.
    """
    failures = _ResultFailures(tasks, known)
    seconds = tasks.limits.task_seconds
    while tasks.link.era.tasks.result_waits:
        began = time.monotonic()
        try:
            options = Options(seconds, known.report if known.reports else None, most_seconds=seconds)
            answer = await tasks.exchange.fetch("tasks/result", {"taskId": known.id}, options)
        except (ConnectionFailed, RequestTimeout, RemoteError) as error:
            tasks.note_loss(error)
            if tasks.link.era.tasks.result_waits:
                await tasks.sleep(await failures.pause(error, time.monotonic() - began))
        else:
            tasks.note_answer()
            if not _has_content(answer):
                _check_completed(await tasks.read(known))
            return answer
    return None


class _ResultFailures:
    """The failures of `tasks/result` for one task: decides whether it is sent again, and when."""

    def __init__(self, tasks: Tasks, known: KnownTask) -> None:
        self._tasks = tasks
        self._known = known
        self._attempts = Attempts()
        self._was_final = False  # whether the task had ended already when there was an internal error the last time
        self._given_up = math.inf  # monotonic time at which the client stops to ask for the result of an ended task

    async def pause(self, error: ConnectionFailed | RequestTimeout | RemoteError, stood: float) -> float:
        """Return the seconds after which the request is sent again. Raises an error if that is of no use.

        `error` is why the request has failed, after `stood` seconds.
        """
        tasks, known = self._tasks, self._known
        is_answer = isinstance(error, RemoteError) and (
            error.code == InternalError.code or not tasks.may_recover(error)
        )
        if not is_answer and not tasks.may_recover(error):
            raise error
        state = known.newest
        if state is None or is_answer or tasks.may_poll(known):
            state = await tasks.read(known)  # raises an error if the server is lost, or the task is gone
        if state.status == "cancelled":
            raise _cancelled() from error
        if isinstance(error, RemoteError) and is_answer:
            if state.is_final and (self._was_final or error.code != InternalError.code):
                raise _with_reason(error, state) from None
            self._was_final = state.is_final
        elif state.is_final:
            self._given_up = min(self._given_up, time.monotonic() + tasks.limits.task_lost_seconds)
            if time.monotonic() >= self._given_up:
                raise error
        self._attempts.took(stood)  # the server is there
        return pause_after(error, self._attempts.pause())


class _Waiting:
    """The time for which a program waits for a task. The time in which a question is answered does not count."""

    def __init__(self, limits: ClientLimits, timeout: float | None, left: float) -> None:
        self._most = limits.task_seconds
        self._seconds = self._most if timeout is None else min(timeout, self._most)
        self._began = time.monotonic() - (0.0 if timeout is None else max(timeout - left, 0.0))
        self._end = self._began + self._most
        self._is_at_its_end = False  # whether the limit `task_seconds` counts, and not the timeout

    def left(self, known: KnownTask, shown: _Progress) -> float:
        """Return the seconds that are left."""
        now = time.monotonic()
        since = now if known.is_asking else max(self._began, known.answered_at, shown.last)
        self._is_at_its_end = since + self._seconds >= self._end
        return min(since + self._seconds, self._end) - now

    def message(self, tool: str, *, is_call: bool) -> str:
        """Return the error message for a task that has taken too long. `is_call` says that it is cancelled now."""
        waited = self._most if self._is_at_its_end else self._seconds
        longer = "Client(..., limits=ClientLimits(task_seconds=...))" if self._is_at_its_end else "timeout="
        goes_on = "It goes on: await `result` again, or take it up later by the `id` of the handle, with `client.task`."
        if is_call:
            goes_on = "The client cancels it. A task goes on if you start it with `client.start_tool`."
        began = f"The task of {tool or 'the tool'!r} was not done within {waited:g} s."
        return f"{began} To wait longer, give `{longer}`. {goes_on}"


class _Progress:
    """Calls the program's function with the progress of a task."""

    def __init__(self, limits: ClientLimits, function: ProgressCallback | None) -> None:
        self.last = 0.0  # monotonic time of the last message
        self._limits = limits
        self._queue = None if function is None else CallbackQueue(function, limits.changes_kept, "progress(update)")
        self._message: str | None = None  # the last status message
        self._number = 0  # of the last status message
        self._reported: tuple[object, ...] | None = None  # the last progress with numbers, if there was any

    @property
    def is_wanted(self) -> bool:
        """Whether the program wants to be told of progress."""
        return self._queue is not None

    def show(self, state: TaskState) -> None:
        """Tell the program of a new status message, unless the server also sends it as progress with numbers."""
        if state.message is not None and state.message != self._message and self._reported is None:
            self._message = state.message
            self._number += 1
            self._call(ProgressParams(progress_token=state.id, progress=self._number, message=state.message))

    def report(self, update: ProgressParams) -> None:
        """Tell the program of progress with numbers. Leave out what the server repeats in a new `tasks/result`."""
        self.last = time.monotonic()
        reported = update.progress, update.total, update.message
        if reported != self._reported:
            self._reported = reported
            self._call(update)

    def _call(self, update: ProgressParams) -> None:
        if self._queue is not None:
            self.last = time.monotonic()
            self._queue.call(update, size=len(update.message or ""))

    async def close(self) -> None:
        """Wait until the calls of the program's function have ended."""
        if self._queue is not None:
            await self._queue.drain(self._limits.close_seconds)


def read_result(name: str, result: ToolResult, type: Any, *, raise_on_error: bool) -> Any:
    """Return the result of a tool, or its value if `type` is not None. Raises ToolCallFailed if the tool has failed."""
    if result.is_error and (raise_on_error or type is not None):
        raise ToolCallFailed(name, result)
    return result if type is None else read_value(name, result, type)


def _outcome(state: TaskState) -> ToolResult:
    """Return the result of a task that has ended. Raises its error, or TaskEnded if it was cancelled."""
    if state.status == "cancelled":
        raise _cancelled()
    if state.status == "failed":
        raise remote_error(state.error)
    result = _read(state.result, ToolResult)
    if result.result_type not in (None, "complete"):
        raise InvalidAnswer(f"The result of the server's task has the resultType {str(result.result_type)[:100]!r}.")
    return result


class _Content(msgspec.Struct):
    content: Raw | UnsetType = UNSET


def _has_content(answer: bytes) -> bool:
    """Return whether the result of `tasks/result` can be that of a tool, which always has content."""
    return _read(answer, _Content).content is not UNSET


def _check_completed(state: TaskState) -> None:
    """Raise an error if a task has ended without a result."""
    if state.status == "cancelled":
        raise _cancelled()
    if state.status == "failed":
        raise RemoteError(InternalError.code, state.message or "The task has failed.")


def _with_reason(error: RemoteError, state: TaskState) -> RemoteError:
    """Return the error with which a task has ended. The status message says more than an internal error."""
    if error.code != InternalError.code or not state.message:
        return error
    return RemoteError(error.code, state.message, error.data)


def _cancelled() -> TaskEnded:
    return TaskEnded("The task was cancelled.")


def _plain_state() -> TaskState:
    """Return the state of a call that was answered without a task."""
    now = time.time()
    return TaskState(id="", status="completed", created=now, updated=now, ttl=0.0, poll=0.0)


def _questions(tasks: Tasks, state: TaskState) -> dict[str, InputRequest]:
    """Return the questions of a task by their keys. Raises InvalidAnswer if there are too many."""
    check_number(len(state.questions), "asks", "questions", tasks.limits)
    return {key: _read(raw, InputRequest) for key, raw in state.questions.items()}


def _unanswered(tasks: Tasks, known: KnownTask, state: TaskState) -> dict[str, InputRequest]:
    """Return the questions of a state that the client has not answered.

    The client remembers the keys of those that it has answered. Raises InvalidAnswer if they become too many.
    """
    new = {key: question for key, question in _questions(tasks, state).items() if key not in known.answered}
    if len(known.answered) + len(new) > _MOST_QUESTIONS:
        raise InvalidAnswer(f"The task has asked more than {_MOST_QUESTIONS} questions.")
    if new and sum(map(len, known.answered)) + sum(map(len, new)) > _MOST_KEYS:
        raise InvalidAnswer(f"The keys of the task's questions have more than {_MOST_KEYS} characters in total.")
    return new


def _check_answers(answers: Mapping[str, Any], questions: Mapping[str, InputRequest]) -> None:
    """Raise UsageError if an answer belongs to none of these questions, or has not the form of a result."""
    for key, answer in answers.items():
        if key not in questions:
            asked = ", ".join(repr(one[:100]) for one in list(questions)[:10])
            raise UsageError(
                f"The task does not ask {key[:100]!r} now. It asks {asked or 'nothing'}. Each question has one answer."
            )
        method = questions[key].method
        member, form = _ANSWERS.get(method, ("", ""))
        if member and not (
            isinstance(answer, Raw | msgspec.Struct) or (isinstance(answer, Mapping) and member in answer)
        ):
            raise UsageError(f"The answer to {key[:100]!r} must be the result of {method}: {form}.")


def _read(raw: bytes | Raw, type: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's message about a task cannot be read: {error}.") from None
