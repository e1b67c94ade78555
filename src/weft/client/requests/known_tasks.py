"""Know the states of tasks: ask for them, listen for their changes, and send the other requests about tasks.

A `KnownTask` has what the client knows of one task. All handles of the task share it, so that the server is not asked
more often than it wants, and each question of the task is asked and answered once. If the server sends the changes of
tasks, the client listens, and asks more rarely.

A connection that is lost is no error at first, because another worker of the server may have the task: requests about
tasks are sent again for some time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft.client.callbacks import Clock, pause
from weft.client.connection.connection import ClientConnection
from weft.client.requests.exchange import Exchange, Options
from weft.client.requests.subscriptions import Listening, Subscriptions
from weft.client.results import ToolResult
from weft.errors import (
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
from weft.net.logs import Seldom
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ProgressParams
from weft.types.tasks import TaskState

log = logging.getLogger("weft.client")

LEAST_POLL = 0.05  # seconds: shortest time between two requests for the state, even if the server allows less
LISTENING_POLL = 15.0  # seconds between two requests for the state while the server sends its changes, or the result
_LISTEN_AGAIN_SECONDS = 2.0  # until the client listens again after a stream has ended
_MOST_LISTENING_FAILURES = 3  # in a row, until the client does not listen any more
_BUSY = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses after which a request about a task is sent again
_LOST = (None, 502, 504)  # those with which a proxy says that the server is gone; None if there was no answer at all
_CUT = "The connection to %s was lost while a task is awaited; trying again for %g s."
_SILENT = "No answer of %s while a task is awaited; trying again for %g s."


class KnownTask:
    """What the client knows of one task. All handles of the task share it, also over several connections."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.token: str | None = None  # progress token of the call, if it stays valid as long as the task
        self.followers: set[Follower] = set()  # all who follow the task
        self.reports: set[Callable[[ProgressParams], None]] = set()  # called with progress that has numbers

        self.newest: TaskState | None = None  # the newest state, if one is known
        self.asked = -math.inf  # monotonic time at which the server has answered a request for the state
        self.promise: object | None = None  # the server's promise to send each change, while its stream is open
        self.is_complete = False  # whether the state was told since the server has made that promise
        self.listen_after = 0.0  # monotonic time before which the client does not listen

        self.polling: asyncio.Task[None] | None = None  # asks for the state
        self.listening: asyncio.Task[None] | None = None  # keeps the stream open on which the server sends changes
        self.fetching: asyncio.Task[bytes | None] | None = None  # waits for the answer to `tasks/result`

        self.asking: dict[str, asyncio.Task[None]] = {}  # by key: the program's functions, which are being asked
        self.answered: set[str] = set()  # keys of the questions that were answered
        self.answered_at = 0.0  # monotonic time at which a question was answered last
        self.held = 0  # requests of the server that belong to the task, and are being answered

    @property
    def poll(self) -> float:
        """Seconds that the server wants between two requests for the state."""
        return 0.0 if self.newest is None else self.newest.poll

    @property
    def is_asking(self) -> bool:
        """Whether the program is being asked a question of the task."""
        return bool(self.held or self.asking)

    def asks(self, key: str) -> bool:
        """Return whether the newest state has this question."""
        return self.newest is not None and key in self.newest.questions

    def take(self, state: TaskState, *, may_be_old: bool = False) -> None:
        """Note a state that the server has told, unless a newer one is known. Wake all who follow the task.

        States that the server sends by itself, and those that it returns, can overtake each other: `may_be_old` says
        that this may have happened. Otherwise the times in states do not count, because the clocks of a server's
        workers differ. They also do not count for a final state: nothing comes after it.
        """
        known = self.newest
        if known is not None and known.is_final and (has_outcome(known) or not state.is_final):
            return
        if known is not None and may_be_old and not state.is_final and state.updated < known.updated:
            return
        self.newest = state
        for key in self.asking.keys() - state.questions.keys():  # answered by somebody else, or not needed any more
            self.asking.pop(key).cancel()
        self.wake()

    def end_asking(self, key: str) -> bool:
        """Note that the current asyncio task asks a question no longer. Return False if it was taken back before."""
        if self.asking.get(key) is not asyncio.current_task():
            return False
        del self.asking[key]
        self.answered_at = time.monotonic()
        return True

    def forget(self) -> None:
        """Forget the state, because it was told in the messages of another era, which say less or more."""
        self.newest, self.asked = None, -math.inf

    def wake(self) -> None:
        """Wake all who follow the task."""
        for follower in self.followers:
            follower.news.set()

    def fail(self, error: Exception) -> None:
        """Raise an error from all who follow the task now."""
        for follower in self.followers:
            follower.failure = error
        self.wake()

    def report(self, update: ProgressParams) -> None:
        """Pass progress with numbers to all who want it."""
        for report in tuple(self.reports):
            report(update)

    def set_promised(self, *, is_promised: bool) -> None:
        """Note that the server has promised to send each change, or that its stream is lost."""
        self.promise = object() if is_promised else None
        self.is_complete = False
        self.wake()

    def rest(self) -> None:
        """End all work for the task, because nobody follows it any more."""
        for work in (self.polling, self.listening, self.fetching, *self.asking.values()):
            if work is not None:
                work.cancel()
        self.polling = self.fetching = None
        self.asking.clear()  # these questions are asked again when the task is followed again


class Follower:
    """One who follows a task."""

    def __init__(self, known: KnownTask) -> None:
        self.known = known
        self.poll = LEAST_POLL  # seconds: how often this follower wants to know the state at most
        self.seen: TaskState | None = None  # the state that it was given last
        self.news = asyncio.Event()  # set when there may be something new
        self.failure: Exception | None = None  # why the task cannot be followed


@dataclass(eq=False)
class Tasks:
    """The tasks of one connection."""

    link: ClientConnection
    exchange: Exchange
    subscriptions: Subscriptions
    limits: ClientLimits
    check: Callable[[str, ToolResult], Awaitable[None]]  # checks a result against the output schema of its tool
    is_manual: bool  # whether the program answers questions itself
    all: MutableMapping[str, KnownTask]  # all tasks that have a handle, by id
    _followed: set[KnownTask] = field(default_factory=set[KnownTask])  # those that are followed on this connection
    _streams: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])  # that listen, or begin to
    _failures: int = 0  # failed attempts to listen in a row
    _is_lost: bool = False  # whether the newest attempt to send a request did not reach the server
    _lost_at: float = -math.inf  # monotonic time at which the connection was found lost the last time
    _seldom: Seldom = field(default_factory=lambda: Seldom(log))  # the server can cause these log lines at will
    _closed: asyncio.Event = field(default_factory=asyncio.Event)  # set when the client is closed

    def check_exist(self) -> None:
        """Raise UsageError if the protocol version has no tasks."""
        if not self.link.era.tasks.exist:
            raise UsageError(
                f"There are no tasks in protocol version {self.link.era.version}, which {self.link.transport.where} "
                "speaks. Use call_tool."
            )

    def close(self) -> None:
        """Let all who follow tasks, or wait to send a request again, notice that the client is closed."""
        self._closed.set()
        for known in self._followed:
            known.wake()
            known.followers.clear()  # an iteration that is suspended now must not count on the next connection
            known.rest()

    # --- what is known

    def known(self, id: str) -> KnownTask:
        """Return what is known of a task."""
        if (known := self.all.get(id)) is None:
            known = self.all[id] = KnownTask(id)
        return known

    def created(self, handle: TaskState, token: str | None) -> KnownTask:
        """Note the handle of a task that a call has become, and return what is known of the task.

        The task may have ended already, or ask questions. The handle does not have the result or the questions then, so
        it says nothing that can be used. `token` is the progress token of the call, if it stays valid.
        """
        known = self.known(handle.id)
        if known.newest is not None and known.newest.is_final:  # another task: no id is used twice
            known = self.all[handle.id] = KnownTask(handle.id)
        known.token = token
        if self._is_usable(handle) and (handle.status != "input_required" or self._result_waits or handle.questions):
            known.take(handle)
            known.asked = time.monotonic()
        return known

    @property
    def _result_waits(self) -> bool:
        return self.link.era.tasks.result_waits

    def _is_usable(self, state: TaskState) -> bool:
        """Return whether a state has all that the client needs: if it is final, also the result or the error."""
        return not state.is_final or self._result_waits or has_outcome(state)

    def receive(self, method: str, params: bytes) -> None:
        """Take the state of a task from a notification, if the client knows the task. Ignore other notifications."""
        if not self.all or method != self.link.era.tasks.notification:
            return
        with suppress(InvalidAnswer):
            state = self.link.era.tasks.read_state(params)
            if (known := self.all.get(state.id)) is None:
                return
            if self._is_usable(state):
                known.is_complete = known.promise is not None
                known.take(state, may_be_old=True)
            else:  # ask for the rest at once
                known.asked = -math.inf
                known.wake()

    # --- following

    @contextmanager
    def following(self, known: KnownTask) -> Generator[Follower]:
        """Count those who follow a task. When the last one stops, stop asking, listening, and answering questions."""
        follower = Follower(known)
        known.followers.add(follower)
        self._followed.add(known)
        if known.token is not None:
            self.link.task_progress[known.token] = known.report
        try:
            yield follower
        finally:
            known.followers.discard(follower)
            if not known.followers:
                self._followed.discard(known)
                if known.token is not None:
                    self.link.task_progress.pop(known.token, None)
                known.rest()

    async def next_state(self, follower: Follower) -> TaskState:
        """Return the next state that is new for `follower`. Ask for it when the server may be asked again.

        The first state is the one that is known already, if the server may not be asked again yet, or need not.
        """
        known = follower.known
        while True:
            follower.news.clear()
            self.link.check_open()
            if follower.failure is not None:
                raise follower.failure
            state = known.newest
            if state is not None and state is not follower.seen:
                is_new = self._is_fresh(known) if follower.seen is None else _facts(state) != _facts(follower.seen)
                if is_new:
                    follower.seen = state
                    return state
            until = self.listen(known)
            poll_time = self._poll_time(known, follower.poll)
            if time.monotonic() < poll_time:
                until = min(until, poll_time)
            elif not _runs(known.polling):
                known.polling = self.link.spawn(self._poll(known))
            with suppress(TimeoutError):
                async with asyncio.timeout(None if until == math.inf else until - time.monotonic()):
                    await follower.news.wait()

    def _is_fresh(self, known: KnownTask) -> bool:
        """Return whether the newest state can be used without asking the server first."""
        is_final = known.newest is not None and known.newest.is_final and self._is_usable(known.newest)
        return is_final or time.monotonic() < self._poll_time(known, LEAST_POLL)

    def _poll_time(self, known: KnownTask, least: float) -> float:
        """Return the monotonic time at which the server is asked for the state again."""
        return known.asked + max(known.poll, LISTENING_POLL if known.is_complete else least)

    def may_poll(self, known: KnownTask) -> bool:
        """Return whether the server may be asked for the state again."""
        return time.monotonic() >= self._poll_time(known, LEAST_POLL)

    async def _poll(self, known: KnownTask) -> None:
        try:
            await self.read(known)
        except Exception as error:  # noqa: BLE001 - raised by those who follow the task
            known.fail(error)
        finally:
            known.wake()

    # --- listening

    def listen(self, known: KnownTask) -> float:
        """Listen for changes of a task, if the server sends them. Do nothing if the client listens already.

        Returns the monotonic time at which this should be called again, if that is known; otherwise infinity.
        """
        if (
            _runs(known.listening)
            or self._failures >= _MOST_LISTENING_FAILURES
            or len(self._streams) >= self.limits.task_streams
        ):
            return math.inf
        if time.monotonic() < known.listen_after:
            return known.listen_after
        changes = self.link.era.tasks.changes_of(known.id)
        if changes is not None:
            stream = known.listening = self.link.spawn(self._listen(known, changes))
            self._streams.add(stream)
            stream.add_done_callback(self._streams.discard)
        return math.inf

    async def _listen(self, known: KnownTask, changes: SubscriptionFilter) -> None:
        listening = Listening(self.subscriptions, changes)
        listening.on_lost = partial(self._lose_stream, known)
        try:
            await listening.start()
            while listening.honoured is None or self._accept(known, listening.honoured):
                if await anext(listening, None) is None:  # the server has ended the stream; else it is open again
                    self._failures += known.promise is None
                    break
        except WeftError:
            self._failures += 1
        finally:
            known.listen_after = max(known.listen_after, time.monotonic() + _LISTEN_AGAIN_SECONDS)
            known.set_promised(is_promised=False)
            await listening.close()

    def _lose_stream(self, known: KnownTask) -> None:
        self._lost_at = time.monotonic()
        known.set_promised(is_promised=False)

    def _accept(self, known: KnownTask, honoured: SubscriptionFilter) -> bool:
        """Note what the server has promised to send. Return False if it does not send the changes of this task."""
        if known.id in (honoured.task_ids or ()):
            self._failures = 0
            known.set_promised(is_promised=True)
            return True
        if honoured.task_ids is None:
            self._failures = _MOST_LISTENING_FAILURES  # this server sends changes of no task
        known.listen_after = math.inf
        return False

    # --- requests

    async def read(self, known: KnownTask) -> TaskState:
        """Ask for the state of a task, and note it. Raises TaskEnded if the server does not have the task any more."""
        promise, before = known.promise, known.newest
        state = await self.get(known.id, known.poll)
        known.asked = time.monotonic()
        was_told = known.newest is not before  # another state has come meanwhile, which may be newer than this one
        known.is_complete = promise is not None and promise is known.promise and not was_told
        known.take(state, may_be_old=was_told)
        return state

    async def get(self, id: str, poll: float = 0.0) -> TaskState:
        """Ask for the state of a task. Raises TaskEnded if the server does not have the task any more."""
        try:
            message = await self.send("tasks/get", {"taskId": id}, poll=poll)
        except RemoteError as error:
            if error.code != InvalidParams.code:
                raise
            raise TaskEnded(self._gone(id, error.message)) from error
        state = self.link.era.tasks.read_state(message)
        if state.id != id:
            raise InvalidAnswer("The server's answer to tasks/get is about another task.")
        return state

    def _gone(self, id: str, why: str) -> str:
        """Return the error message for a task that the server does not have."""
        gone = f"The task does not exist at {self.link.transport.where}: {why}"
        known = self.all.get(id)
        if known is None or self._lost_at <= known.asked:
            return gone
        hint = "Was the server restarted? If it keeps its tasks in memory, they ended with it."
        return f"{gone.rstrip('. ')}. The connection was lost meanwhile. {hint}"

    async def update(self, known: KnownTask, answers: Mapping[str, Any]) -> None:
        """Send answers to questions of a task. If the server refuses them, ask for the state, which may say why."""
        try:
            await self.send("tasks/update", {"taskId": known.id, "inputResponses": dict(answers)})
        except RemoteError as error:
            if error.code == InvalidParams.code:
                await self.read(known)  # raises TaskEnded if the task does not exist any more
            raise

    async def cancel(self, id: str) -> None:
        """Cancel a task. Do nothing if it has ended."""
        try:
            await self.send("tasks/cancel", {"taskId": id})
        except RemoteError as error:
            if error.code != InvalidParams.code or not (await self.get(id)).is_final:
                raise

    async def send(self, method: str, params: Mapping[str, Any], *, poll: float = 0.0) -> bytes:
        """Send a request about a task, and return its encoded result.

        If the server cannot be reached, or is busy, the request is sent again for `task_lost_seconds`. That is possible
        because these requests have the same effect if they are sent twice. A server that has answered is asked again
        after `poll` seconds, unless it has asked for another pause.
        """
        given_up = math.inf  # monotonic time at which the client stops trying
        for attempt in itertools.count():
            try:
                answer = await self.exchange.fetch(method, params, Options())
            except (ConnectionFailed, RequestTimeout, RemoteError) as error:
                if not self.may_recover(error):
                    self.note_answer()
                    raise
                self._warn_if_lost(error)
                now = time.monotonic()
                given_up = min(given_up, now + self.limits.task_lost_seconds)
                if now >= given_up:
                    raise self._given_up(error) from None
                seconds = pause_after(error, pause(attempt), poll)
            else:
                self.note_answer()
                return answer
            await self.sleep(min(seconds, given_up - now))
        raise AssertionError  # the loop has no end

    def _warn_if_lost(self, error: WeftError) -> None:
        """Log a warning if the server was not reached, once until a request was answered again."""
        was_lost, self._is_lost = self._is_lost, self.note_loss(error)
        if self._is_lost and not was_lost:
            text = _SILENT if isinstance(error, RequestTimeout) else _CUT
            self._seldom.warning(text, self.link.transport.where, self.limits.task_lost_seconds)

    def note_answer(self) -> None:
        """Note that the server has answered a request about a task, so that the next loss is logged again."""
        self._is_lost = False

    def note_loss(self, error: WeftError) -> bool:
        """Return whether a request has failed because the server was not reached. Note the time, if so."""
        is_lost = isinstance(error, RequestTimeout) or (isinstance(error, ConnectionFailed) and error.status in _LOST)
        if is_lost:
            self._lost_at = time.monotonic()
        return is_lost

    def may_recover(self, error: WeftError) -> bool:
        """Return whether a request that has failed with this error may succeed later."""
        if self.link.is_closed:
            return False
        if isinstance(error, RemoteError):
            return error.status in _BUSY or (error.status in (None, 200) and error.code == InternalError.code)
        if isinstance(error, ConnectionFailed):  # in a pipe, the process at the other end is gone, with its tasks
            return self.link.transport.stream_per_request and error.status in (None, *_BUSY)
        return isinstance(error, RequestTimeout)

    def _given_up(self, error: WeftError) -> WeftError:
        """Return the error for a request that could not be sent, although the client has tried for some time."""
        if isinstance(error, RemoteError):
            return error  # the server has said itself what is wrong
        failure = type(error)(
            f"{error} The client has tried for {self.limits.task_lost_seconds:g} s, the limit `task_lost_seconds`. The "
            "task may go on. It is gone if the server was restarted and keeps its tasks in memory."
        )
        if isinstance(error, ConnectionFailed) and isinstance(failure, ConnectionFailed):
            failure.status, failure.retry_after = error.status, error.retry_after
        return failure

    async def sleep(self, seconds: float) -> None:
        """Wait. Raises ConnectionFailed as soon as the client is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        self.link.check_open()

    # --- questions that the server sends by requests

    @contextmanager
    def questioned(self, params: bytes, origin: Clock | None) -> Generator[None]:
        """Note with all tasks that may wait for it that a request of the server is being answered, in the `with` block.

        `params` are those of the request. `origin` is the clock of the client's request on whose stream it came.
        """
        waiting = self._concerned(params, origin)
        for known in waiting:
            known.held += 1
        try:
            yield
        finally:
            for known in waiting:
                known.held -= 1
                known.answered_at = time.monotonic()

    def _concerned(self, params: bytes, origin: Clock | None) -> list[KnownTask]:
        """Return the followed tasks for which the server may ask: all, if it does not say for which one it asks."""
        if not self._followed:
            return []
        id = self.link.era.tasks.task_of(params)
        if id is None and origin is not None:
            id = origin.task_id or ""  # "": the question of another call
        return [known for known in self._followed if id is None or known.id == id]


def pause_after(error: WeftError, seconds: float, poll: float = 0.0) -> float:
    """Return the seconds after which a request is sent again that has failed with this error.

    That is the pause that the server has asked for; otherwise `seconds`, or `poll` if that is longer and the server has
    answered: then it does not want to be asked sooner.
    """
    asked: float | None = getattr(error, "retry_after", None)
    if asked is not None:
        return pause(0, round(asked * 1000))
    has_answered = isinstance(error, RemoteError) or getattr(error, "status", None) is not None
    return max(seconds, poll) if has_answered else seconds


def has_outcome(state: TaskState) -> bool:
    """Return whether a final state says how the task has ended, with the result or the error."""
    return state.status == "cancelled" or state.has_result or state.has_error


def _facts(state: TaskState) -> tuple[object, ...]:
    """Return what is different in a state that those who follow the task must see."""
    return state.status, state.message, state.updated, state.questions.keys()


def _runs(work: asyncio.Task[Any] | None) -> bool:
    return work is not None and not work.done()
