"""Follow tasks: calls of tools that go on after the server has answered them.

A server may answer a call with a task. The client then asks for the state of the task now and then, until the task has
ended. If the server sends the changes of tasks, the client listens, and asks more rarely. It answers the questions of
the task with the functions that answer all questions of the server. A connection that is lost meanwhile is no error,
because another worker of the server may have the task.

In the session era, the request `tasks/result` waits for the end of a task. While it waits, the server sends the
questions of the task as requests.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw, UnsetType

from weft.client.argument_checks import check_timeout, trim_traceback
from weft.client.callbacks import CallbackQueue, pause
from weft.client.connection.connection import ClientConnection, ProgressCallback
from weft.client.connection.transport import remote_error
from weft.client.requests.exchange import Exchange, Options, check_number
from weft.client.requests.subscriptions import Listening, Subscriptions
from weft.client.results import PendingQuestions, ToolCallFailed, ToolResult, read_value
from weft.errors import (
    CannotAnswer,
    ConnectionFailed,
    InternalError,
    InvalidAnswer,
    InvalidParams,
    RemoteError,
    RequestTimeout,
    TaskEnded,
    UsageError,
    WeftError,
)
from weft.limits import ClientLimits
from weft.types.interaction import InputRequest, InputRequiredResult, SubscriptionFilter
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import TaskState

T = TypeVar("T")

_LEAST_POLL = 0.05  # seconds: shortest time between two requests for the state, even if the server allows less
_LISTENING_POLL = 15.0  # seconds between two requests for the state while the server sends its changes
_LISTEN_AGAIN_SECONDS = 2.0  # until the client listens again after a stream has ended
_MOST_LISTENING_FAILURES = 3  # in a row, until the client does not listen any more
_MOST_QUESTIONS = 10_000  # questions of one task; if there are more, following it fails
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses after which a request about a task is sent again


class _Watch:
    """What the server tells of one task without being asked."""

    def __init__(self) -> None:
        self.followers: set[_Follower] = set()  # all who follow the task
        self.listening: asyncio.Task[None] | None = None  # keeps the stream open on which the server sends changes
        self.listen_after = 0.0  # monotonic time before which the client does not listen
        self.is_acknowledged = False  # whether the server has promised to send each change

    def tell(self, state: TaskState) -> None:
        """Give a state that the server has sent to all who follow the task."""
        for follower in self.followers:
            follower.latest = state
        self.wake()

    def wake(self) -> None:
        """Wake all who follow the task."""
        for follower in self.followers:
            follower.news.set()

    def set_acknowledged(self, *, is_acknowledged: bool) -> None:
        """Note that the server has promised to send each change, or that its stream is lost."""
        self.is_acknowledged = is_acknowledged
        for follower in self.followers:
            follower.is_complete = False
        self.wake()


class _Follower:
    """One who follows a task: what it has not read yet."""

    def __init__(self, watch: _Watch) -> None:
        self.watch = watch
        self.news = asyncio.Event()  # set when the server has sent a state, or begins or stops to send changes
        self.is_complete = False  # whether the state was read since the server has promised to send each change
        self.latest: TaskState | None = None  # the newest state that the server has sent

    def take(self) -> TaskState | None:
        """Return the newest state that the server has sent since the last time, or None."""
        latest, self.latest = self.latest, None
        self.news.clear()
        return latest


@dataclass(eq=False)
class Tasks:
    """The tasks of one connection."""

    link: ClientConnection
    exchange: Exchange
    subscriptions: Subscriptions
    limits: ClientLimits
    check: Callable[[str, ToolResult], Awaitable[None]]  # checks a result against the output schema of its tool
    is_manual: bool  # whether the program answers questions itself
    _watches: dict[str, _Watch] = field(default_factory=dict[str, _Watch])  # of the tasks that are followed, by id
    _failures: int = 0  # failed attempts to listen in a row

    def check_exist(self) -> None:
        """Raise UsageError if the protocol version has no tasks."""
        if not self.link.era.tasks.exist:
            raise UsageError(
                f"There are no tasks in protocol version {self.link.era.version}, which {self.link.transport.where} "
                "speaks. Use call_tool."
            )

    def close(self) -> None:
        """Let all who follow tasks notice that the client is closed."""
        for watch in self._watches.values():
            watch.wake()

    def receive(self, method: str, params: bytes) -> None:
        """Take the state of a task from a notification, if the task is followed. Ignore all other notifications."""
        tasks = self.link.era.tasks
        if self._watches and method == tasks.notification:
            with suppress(InvalidAnswer):
                state = tasks.read_state(params)
                if (watch := self._watches.get(state.id)) is not None:
                    watch.tell(state)

    @asynccontextmanager
    async def watched(self, id: str) -> AsyncGenerator[_Follower]:
        """Take what the server tells of a task, within the `async with` block."""
        watch = self._watches.setdefault(id, _Watch())
        follower = _Follower(watch)
        watch.followers.add(follower)
        try:
            yield follower
        finally:
            watch.followers.discard(follower)
            if not watch.followers:
                del self._watches[id]
                if watch.listening is not None:
                    watch.listening.cancel()

    def listen(self, id: str, watch: _Watch) -> None:
        """Listen for changes of a task, if the server sends them. Do nothing if the client listens already."""
        changes = self.link.era.tasks.changes_of(id)
        if (
            changes is not None
            and watch.listening is None
            and time.monotonic() >= watch.listen_after
            and self._failures < _MOST_LISTENING_FAILURES
            and sum(one.listening is not None for one in self._watches.values()) < self.limits.task_streams
        ):
            watch.listening = self.link.spawn(self._listen(id, watch, changes))

    async def _listen(self, id: str, watch: _Watch, changes: SubscriptionFilter) -> None:
        listening = Listening(self.subscriptions, changes)
        try:
            await listening.start()
            if listening.honoured is None or id not in (listening.honoured.task_ids or ()):
                self._failures = _MOST_LISTENING_FAILURES  # this server does not send changes of tasks
                return
            self._failures = 0
            watch.set_acknowledged(is_acknowledged=True)
            async for _ in listening:  # the stream was lost, and is open again
                watch.set_acknowledged(is_acknowledged=True)
        except WeftError:
            self._failures += 1
        finally:
            watch.listening, watch.listen_after = None, time.monotonic() + _LISTEN_AGAIN_SECONDS
            watch.set_acknowledged(is_acknowledged=False)
            await listening.close()

    async def get(self, id: str) -> TaskState:
        """Return the present state of a task. Raises TaskEnded if the server does not have the task any more."""
        try:
            message = await self.send("tasks/get", {"taskId": id})
        except RemoteError as error:
            if error.code != InvalidParams.code:
                raise
            raise TaskEnded(f"The task does not exist at {self.link.transport.where}: {error.message}") from error
        state = self.link.era.tasks.read_state(message)
        if state.id != id:
            raise InvalidAnswer("The server's answer to tasks/get is about another task.")
        return state

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        options: Options | None = None,
        *,
        again_on_internal_error: bool = True,
    ) -> bytes:
        """Send a request about a task, and return its encoded result.

        If the server cannot be reached, or is busy, the request is sent again for `task_lost_seconds`. That is possible
        because these requests have the same effect if they are sent twice.
        """
        given_up = 0.0  # monotonic time at which the client stops trying
        for attempt in itertools.count():
            try:
                return await self.exchange.fetch(method, params, options or Options())
            except (ConnectionFailed, RequestTimeout, RemoteError) as error:
                given_up = given_up or time.monotonic() + self.limits.task_lost_seconds
                may_recover = self._may_recover(error, again_on_internal_error=again_on_internal_error)
                if not may_recover or time.monotonic() > given_up:
                    raise
                asked: float | None = getattr(error, "retry_after", None)
            await asyncio.sleep(pause(attempt, None if asked is None else round(asked * 1000)))
        raise AssertionError  # the loop has no end

    def _may_recover(self, error: WeftError, *, again_on_internal_error: bool) -> bool:
        """Return whether a request that has failed with this error may succeed later."""
        if self.link.is_closed:
            return False
        if isinstance(error, RemoteError):
            is_internal = error.status in (None, 200) and error.code == InternalError.code
            return error.status in _BUSY or (is_internal and again_on_internal_error)
        return self.link.transport.stream_per_request  # else the process at the other end is gone, with its tasks


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
        state: TaskState | None = None,
        result: ToolResult | None = None,
        token: str | None = None,
    ) -> None:
        self.id = id
        self.tool = tool  # name of the tool; "" if it is not known
        self.immediate_response = None if state is None else state.immediate_response  # for the model, while it waits
        self._tasks = tasks  # returns the tasks of the present connection; raises an error if there is none
        self._first = state  # the state in the answer to the call, until the task is followed
        self._result = result  # None until it is known
        self._token = token  # progress token of the call, if it stays valid as long as the task
        self._asked: dict[str, asyncio.Task[None]] = {}  # by key: questions that are being answered, or were
        self._sent: set[str] = set()  # keys of the questions whose answers the server has taken
        self._failure: Exception | None = None  # why a question could not be answered, until nobody follows the task
        self._answered = 0.0  # monotonic time at which a question was answered last
        self._fetching: asyncio.Task[bytes] | None = None  # waits for `tasks/result`
        self._followers = 0

    def __repr__(self) -> str:
        return f"<TaskHandle of {self.tool!r}>"  # without the id: it may be all that is needed to read the result

    async def status(self) -> TaskState:
        """Ask the server for the state of the task, once. Raises TaskEnded if the task does not exist any more."""
        return await self._tasks().get(self.id) if self.id is not None else _plain_state()

    async def cancel(self) -> None:
        """Cancel the task. Do nothing if it has ended."""
        if self.id is None:
            return
        try:
            await self._tasks().send("tasks/cancel", {"taskId": self.id})
        except RemoteError as error:
            if error.code != InvalidParams.code or not (await self.status()).is_final:
                raise
        self._first = None

    async def answer(self, answers: Mapping[str, Any]) -> None:
        """Answer questions of the task by their keys, if the client has `manual_input`.

        Each answer is the result of the question's request, such as `{"action": "accept", "content": {"name": "Ann"}}`.
        """
        if self.id is None:
            raise UsageError("This call was answered without a task, so it asks nothing.")
        tasks = self._tasks()
        if tasks.link.era.tasks.result_waits:
            raise UsageError(
                f"A task of protocol version {tasks.link.era.version} asks while its result is awaited. Give the "
                "client functions that answer, such as `elicit=`."
            )
        try:
            await tasks.send("tasks/update", {"taskId": self.id, "inputResponses": dict(answers)})
        except RemoteError as error:
            if error.code == InvalidParams.code:
                await tasks.get(self.id)  # raises TaskEnded if the task does not exist any more
            raise
        self._sent.update(answers)
        self._first = None

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
        with self._following():
            async with aclosing(self._states(self._tasks(), self.id)) as states:
                async for state in states:
                    yield state

    # --- following

    async def follow(self, timeout: float | None, progress: ProgressCallback | None) -> ToolResult:
        """Wait until the task has ended, answer its questions meanwhile, and return its result unchecked."""
        if self._result is not None or self.id is None:
            assert self._result is not None
            return self._result
        if timeout is not None:
            check_timeout(timeout)
        tasks = self._tasks()
        shown = _Progress(tasks.limits, progress)
        with self._following():
            work = asyncio.create_task(self._to_the_end(tasks, self.id, shown))
            try:
                self._result = await self._within(timeout, work, tasks, shown)
            finally:
                work.cancel()
                await asyncio.wait([work])
                await shown.close()
        return self._result

    @contextmanager
    def _following(self) -> Generator[None]:
        """Count those who follow the task. When the last one stops, stop answering questions and waiting."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers:
                self._failure = None
                for key in self._asked.keys() - self._sent:
                    self._asked.pop(key).cancel()  # this question is answered when the task is followed again
                if self._fetching is not None:
                    self._fetching.cancel()
                    self._fetching = None

    async def _within(
        self, timeout: float | None, work: asyncio.Task[ToolResult], tasks: Tasks, shown: _Progress
    ) -> ToolResult:
        """Await `work`. Raises RequestTimeout if it takes too long. The time for answering questions does not count."""
        most = tasks.limits.task_seconds
        seconds = most if timeout is None else min(timeout, most)
        began = time.monotonic()
        while not work.done():
            since = max(began, self._answered, tasks.link.answered, shown.last)
            if self._is_answering(tasks):
                since = time.monotonic()
            left = min(since + seconds, began + most) - time.monotonic()
            if left <= 0:
                is_most = since + seconds >= began + most
                longer = "Client(..., limits=ClientLimits(task_seconds=...))" if is_most else "timeout="
                waited = most if is_most else seconds
                raise RequestTimeout(
                    f"The task of {self.tool or 'the tool'!r} was not done within {waited:.4g} s. To wait longer, give "
                    f"`{longer}`; to take it up later, store the id of a handle (`client.start_tool`)."
                )
            await asyncio.wait([work], timeout=left)
        return work.result()

    def _is_answering(self, tasks: Tasks) -> bool:
        return tasks.link.is_asked or any(not asking.done() for asking in self._asked.values())

    async def _to_the_end(self, tasks: Tasks, id: str, shown: _Progress) -> ToolResult:
        if tasks.link.era.tasks.result_waits:
            return await self._wait_for_result(tasks, id, shown)
        async with aclosing(self._states(tasks, id)) as states:
            async for state in states:
                shown.show(state)
                if state.is_final:
                    return _outcome(state)
                if tasks.is_manual and state.status == "input_required":
                    questions = _questions(tasks, state)
                    if new := {key: questions[key] for key in questions if key not in self._sent}:
                        raise PendingQuestions(InputRequiredResult(input_requests=new), self)
        raise AssertionError  # the last state is final

    async def _states(self, tasks: Tasks, id: str) -> AsyncGenerator[TaskState]:
        """Yield each state of the task, and answer its questions, until it has ended."""
        state, self._first = self._first or await tasks.get(id), None
        asked = time.monotonic()  # when the client has asked for the state the last time
        async with tasks.watched(id) as follower:
            while True:
                self._take_questions(tasks, id, follower.watch, state)
                yield state
                if state.is_final:
                    return
                known = state
                while _facts(state) == _facts(known):
                    state, asked = await self._next_state(tasks, id, follower, state, asked)

    async def _next_state(
        self, tasks: Tasks, id: str, follower: _Follower, known: TaskState, asked: float
    ) -> tuple[TaskState, float]:
        """Return the next state that the server sends, or that it returns when it may be asked again.

        A state that the server sends can be older than `known`. But the times in states alone do not tell that a task
        goes on: the clocks of a server's workers differ.
        """
        watch = follower.watch
        while True:
            tasks.listen(id, watch)
            pause_seconds = max(known.poll, _LISTENING_POLL if follower.is_complete else _LEAST_POLL)
            with suppress(TimeoutError):
                until = asked + pause_seconds if self._failure is None else 0.0
                async with asyncio.timeout(until - time.monotonic()):
                    await follower.news.wait()
            tasks.link.check_open()
            if self._failure is not None:
                raise self._failure
            is_acknowledged, state = watch.is_acknowledged, follower.take()
            if state is not None and not state.is_final and state.updated < known.updated:
                state = known
            if state is None and time.monotonic() >= asked + max(known.poll, _LEAST_POLL):
                state, asked = await tasks.get(id), time.monotonic()
            if state is not None:
                follower.is_complete = is_acknowledged and watch.is_acknowledged
                return state, asked

    # --- questions

    def _take_questions(self, tasks: Tasks, id: str, watch: _Watch, state: TaskState) -> None:
        """Begin to answer the questions of a state that are not being answered yet."""
        if state.status != "input_required":
            return
        if tasks.link.era.tasks.result_waits:
            self._fetch(tasks, id, None)  # the server sends its questions while this request waits
            return
        if tasks.is_manual:
            return
        new = {key: question for key, question in _questions(tasks, state).items() if key not in self._asked}
        if len(self._asked) + len(new) > _MOST_QUESTIONS:
            raise InvalidAnswer(f"The task of {self.tool!r} has asked more than {_MOST_QUESTIONS} questions.")
        for key, question in new.items():
            self._asked[key] = tasks.link.spawn(self._answer_one(tasks, watch, key, question))

    async def _answer_one(self, tasks: Tasks, watch: _Watch, key: str, question: InputRequest) -> None:
        params = None if question.params is UNSET else question.params
        try:
            await self.answer({key: await tasks.exchange.answer(key, question.method, params)})
        except Exception as error:  # noqa: BLE001 - raised by those who follow the task
            self._failure = error
        self._answered = time.monotonic()
        watch.wake()

    # --- the result, where a request waits for it

    async def _wait_for_result(self, tasks: Tasks, id: str, shown: _Progress) -> ToolResult:
        """Wait for `tasks/result`, and show the status messages of the task meanwhile."""
        showing = tasks.link.spawn(self._show_states(tasks, id, shown)) if shown.is_wanted else None
        fetching = self._fetch(tasks, id, shown)
        if self._token is not None and shown.is_wanted:
            tasks.link.task_progress[self._token] = shown.report
        try:
            return _read(await asyncio.shield(fetching), ToolResult)
        except asyncio.CancelledError:
            if fetching.cancelled():
                tasks.link.check_open()  # raises ConnectionFailed if the client was closed
            raise
        finally:
            if self._token is not None:
                tasks.link.task_progress.pop(self._token, None)
            if showing is not None:
                showing.cancel()

    async def _show_states(self, tasks: Tasks, id: str, shown: _Progress) -> None:
        with suppress(WeftError):  # `tasks/result` tells what has happened
            async for state in self._states(tasks, id):
                shown.show(state)

    def _fetch(self, tasks: Tasks, id: str, shown: _Progress | None) -> asyncio.Task[bytes]:
        """Return the asyncio task that waits for the result; begin to wait if there is none."""
        fetching = self._fetching
        if fetching is None or (fetching.done() and (fetching.cancelled() or fetching.exception() is not None)):
            fetching = self._fetching = tasks.link.spawn(self._fetch_result(tasks, id, shown))
        return fetching

    async def _fetch_result(self, tasks: Tasks, id: str, shown: _Progress | None) -> bytes:
        """Return the encoded result. If the request fails although the task goes on, send it again.

        The answer to `tasks/result` alone does not say how the task has ended. An internal error can be that of the
        task, or of a server that cannot read the result now. For a task without a result, the official TypeScript SDK
        1.x returns an internal error, and the Python SDK 1.x a result without content.
        """
        seconds = tasks.limits.task_seconds
        progress = shown.report if shown is not None and shown.is_wanted else None
        options = Options(seconds, progress, most_seconds=seconds)
        was_final = False  # whether the task had ended already when the request failed the last time
        for attempt in itertools.count():
            try:
                answer = await tasks.send("tasks/result", {"taskId": id}, options, again_on_internal_error=False)
            except RemoteError as error:
                state = await tasks.get(id)
                if state.status == "cancelled":
                    raise _cancelled() from error
                if state.is_final and (was_final or error.code != InternalError.code):
                    raise _with_reason(error, state) from None
                was_final = state.is_final
            else:
                if not _has_content(answer):
                    _check_completed(await tasks.get(id))
                return answer
            await asyncio.sleep(pause(attempt))  # the worker that served the request may have died
        raise AssertionError  # the loop has no end


class _Progress:
    """Calls the program's function with the progress of a task."""

    def __init__(self, limits: ClientLimits, function: ProgressCallback | None) -> None:
        self.last = 0.0  # monotonic time of the last message
        self._limits = limits
        self._queue = None if function is None else CallbackQueue(function, limits.changes_kept, "progress(update)")
        self._message: str | None = None  # the last status message
        self._number = 0  # of the last status message
        self._has_numbers = False  # whether the server also sends progress with numbers

    @property
    def is_wanted(self) -> bool:
        """Whether the program wants to be told of progress."""
        return self._queue is not None

    def show(self, state: TaskState) -> None:
        """Tell the program of a new status message, unless the server also sends it as progress with numbers."""
        if state.message is not None and state.message != self._message and not self._has_numbers:
            self._message = state.message
            self._number += 1
            self._call(ProgressParams(progress_token=state.id, progress=self._number, message=state.message))

    def report(self, update: ProgressParams) -> None:
        """Tell the program of progress with numbers."""
        self._has_numbers = True
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


def _facts(state: TaskState) -> tuple[object, ...]:
    """Return what is different in a state that those who follow the task must see."""
    return state.status, state.message, state.updated, state.questions.keys()


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


def _read(raw: bytes | Raw, type: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAnswer(f"The server's message about a task cannot be read: {error}.") from None


def must_cancel(error: BaseException) -> bool:
    """Return whether a call that fails with this error has to cancel its task: nobody waits for it any more."""
    return isinstance(error, asyncio.CancelledError | RequestTimeout | CannotAnswer | InvalidAnswer)
