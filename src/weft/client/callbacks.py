"""Watch the deadlines of requests and streams, and call the program's functions.

This module decides when a request has timed out, when a silent stream counts as lost, and how long to wait before a
retry. It also decides in which order callbacks run and how many of them may wait. It sends no messages.

An async function is awaited. A sync function that answers a question runs in a thread, so that it does not block the
event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.client.argument_checks import check_function, other_loop
from weft.errors import UsageError, WeftError
from weft.net.logs import Seldom
from weft.types.base import RequestId

log = logging.getLogger("weft.client")

TURN_SECONDS = 0.005  # how many seconds a stream is read before other tasks may run

_FAILED = "The function that was given as %s= failed."
_END_SECONDS = 2.0  # how long to wait for a cancelled callback to end
_LONGEST_PAUSE = 30.0  # longest pause before a retry in seconds, if the server did not ask for a pause
_WAITING_BYTES = 4 * 1024 * 1024  # maximum total size of the messages that wait for a callback
_STEADY_SECONDS = 5.0  # a stream that stays open this long resets the count of brief streams
_MOST_BRIEF = 5  # highest count of brief streams in a row, which means a pause of four seconds
_SHORTEST_PAUSE = 0.1  # shortest pause in seconds, even if the server asks for less
_LONGEST_ASKED = 600.0  # longest pause in seconds, even if the server asks for more


def pause(attempt: int, asked: int | None = None) -> float:
    """Return how many seconds to wait before a retry.

    `asked` is the pause in milliseconds that the server asked for. The result is this pause, but at least 0.1 and at
    most 600 seconds. Without `asked`, the pause doubles with each `attempt` (the first is 0) up to about 30 seconds.

    >>> pause(0, asked=500), pause(0, asked=99_999_999_999)
    (0.5, 600.0)
    """
    if asked is not None:
        return min(max(asked / 1000, _SHORTEST_PAUSE), _LONGEST_ASKED)
    return min(0.25 * 2.0**attempt, _LONGEST_PAUSE) * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, guards nothing


class Attempts:
    """Counts the failed attempts to open a stream, and computes the pause before the next attempt.

    If a server opens a stream and closes it after a short time, the attempt does not count as failed. But if that
    happens several times in a row, the pauses grow as they do after failed attempts.
    """

    def __init__(self) -> None:
        self.failed = 0  # failed attempts in a row
        self._brief = 0  # streams in a row that were open for a short time only

    def took(self, stood: float) -> None:
        """Record that a stream was opened and stayed open for `stood` seconds. Set the count of failures to 0."""
        self.failed = 0
        self._brief = 0 if stood >= _STEADY_SECONDS else min(self._brief + 1, _MOST_BRIEF)

    def pause(self, asked: int | None = None) -> float:
        """Return the seconds to wait before the next attempt, and add 1 to the count of failures.

        If the next attempt succeeds, call `took`, which sets the count back to 0. `asked` is the pause in milliseconds
        that the server asked for, or None.
        """
        seconds = pause(max(self.failed, self._brief - 1), asked)
        self.failed += 1
        return seconds


@dataclass(slots=True)
class StreamWatchdog:
    """Computes by when the next chunk must arrive on a stream, to detect that the connection was lost.

    Many servers regularly send keep-alive comments on a stream. If such a stream is silent for a long time, it counts
    as lost. On a stream without keep-alive comments, a long silence is normal.
    """

    seconds: float  # a silence of up to this length never counts as lost
    now: float  # when the last chunk arrived
    _longest: float = 0.0  # longest time between two chunks so far
    _is_kept_alive: bool = False

    def received(self, chunk: bytes, now: float) -> float | None:
        """Record that a chunk arrived at the time `now`. Return the deadline for the next chunk, or None.

        Before the first keep-alive comment, there is no deadline (None). After this comment, the next chunk may take as
        long as the watchdog's `seconds`, or three times the longest pause so far, if that is longer.

        >>> watchdog = StreamWatchdog(60, now=0)
        >>> chunks = [(b"data: hello", 10), (b":", 25), (b": still here", 125)]
        >>> tuple(watchdog.received(chunk, now) for chunk, now in chunks)
        (None, 85, 425.0)
        """
        self._longest = max(self._longest, now - self.now)
        self.now = now
        self._is_kept_alive = self._is_kept_alive or chunk.startswith(b":")
        return now + max(self.seconds, 3.0 * self._longest) if self._is_kept_alive else None


@dataclass(slots=True, eq=False)
class Clock:
    """The deadline of one request. Each progress message moves the deadline, but never beyond a hard maximum.

    While the server waits for the client's answer to a question, only the hard maximum counts, so that a user has time
    to think. When the deadline passes, the clock cancels the task that waits for the response. That task can then call
    `has_run_out` to find out why it was cancelled.
    """

    clocks: Clocks
    task: asyncio.Task[Any]
    cancelling: int  # how often other code had cancelled the task before the clock started
    seconds: float  # how long the request may take without progress
    end: float  # the hard maximum: the latest possible deadline
    deadline: float
    queue: CallbackQueue | None  # calls the program's progress function, if there is one
    task_id: str | None = None  # id of the server's task that the request is about, if it is about one
    failure: WeftError | None = None  # the error to raise instead of RequestTimeout
    _holds: int = 0  # number of calls of `hold` that were not undone by `release`
    _is_over: bool = False  # True once the clock has cancelled the task

    def wind(self) -> None:
        """Set the deadline to `seconds` from now, because there was progress. Do nothing while `hold` is in effect."""
        if self._holds == 0:
            self.deadline = min(self.clocks.now() + self.seconds, self.end)
            self.clocks.expect(self.deadline)

    def hold(self) -> None:
        """Set the deadline to the hard maximum until `release`, because the client answers a question of the server."""
        self._holds += 1
        self.deadline = self.end

    def release(self) -> None:
        """Undo one call of `hold`. If no other `hold` is in effect, set the deadline to `seconds` from now."""
        self._holds -= 1
        self.wind()

    @property
    def is_at_its_end(self) -> bool:
        """Whether the deadline is the hard maximum."""
        return self.deadline >= self.end

    def fail(self, failure: WeftError | None = None) -> None:
        """Cancel the task that waits for the response.

        The task then raises `failure`, or RequestTimeout if `failure` is None.
        """
        if not self._is_over:
            self._is_over = True
            self.failure = failure
            self.task.cancel()

    def has_run_out(self) -> bool:
        """Return whether this clock cancelled the task. If other code has cancelled it, too, return False.

        Call this only once, when the task gets its CancelledError.
        """
        return self._is_over and self.task.uncancel() <= self.cancelling


class Clocks:
    """The clocks (deadlines) of all requests in flight. All clocks share one timer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: dict[RequestId, Clock] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf  # the time at which the timer runs

    def start(self, request_id: RequestId, seconds: float, most: float, queue: CallbackQueue | None) -> Clock:
        """Start the clock of a request that the current task sends, and return the clock.

        `seconds` is how long the request may take without progress. `most` is how long it may take in all. `queue`
        calls the program's progress function, if there is one.
        """
        task = asyncio.current_task(self._loop)
        if task is None:
            raise other_loop()
        now = self._loop.time()
        clock = Clock(self, task, task.cancelling(), seconds, now + most, now + min(seconds, most), queue)
        self._running[request_id] = clock
        if clock.deadline < self._next:
            self.expect(clock.deadline)
        return clock

    def stop(self, request_id: RequestId) -> None:
        """Remove the clock of a finished request."""
        self._running.pop(request_id, None)

    def get(self, request_id: RequestId | None) -> Clock | None:
        """Return the clock of the request with this id, or None if this request is not in flight."""
        return None if request_id is None else self._running.get(request_id)

    def all(self) -> list[Clock]:
        """Return the clocks of all requests in flight."""
        return list(self._running.values())

    def check_loop(self) -> None:
        """Raise UsageError if the running event loop is not the loop in which this object was created."""
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop()

    def now(self) -> float:
        """Return the current time of the event loop."""
        return self._loop.time()

    def expect(self, deadline: float) -> None:
        """Set the timer to `deadline`, unless the timer already runs at an earlier time."""
        if deadline < self._next:
            if self._timer is not None:
                self._timer.cancel()
            self._next = deadline
            self._timer = self._loop.call_at(deadline, self._look)

    def close(self) -> None:
        """Stop the timer that all clocks share."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self._timer, self._next = None, math.inf
        for clock in self.all():
            if clock.deadline <= now:
                clock.fail()
        if left := [clock.deadline for clock in self._running.values() if clock.deadline > now]:
            self.expect(min(left))


class CallbackQueue:
    """Calls one function of the program, such as a progress function, one call at a time.

    While a call runs, later calls wait in a queue. If more than `most` calls wait, or their messages are too large in
    total, the oldest waiting calls are dropped. A sync function is called directly in the event loop, so it should be
    quick. An async function runs in a task. Raises UsageError if `function` cannot be called with the arguments in
    `form`, such as "on_log(message)".
    """

    def __init__(self, function: Callable[..., Any], most: int, form: str) -> None:
        check_function(function, form)
        self._function = function
        self._option = form.partition("(")[0]  # name of the option by which the program passed the function
        self._most = most  # how many calls may wait
        self._waiting: deque[tuple[int, tuple[Any, ...]]] = deque()  # size and arguments of each waiting call
        self._bytes = 0  # total size of the waiting calls
        self._task: asyncio.Task[None] | None = None
        self._seldom = Seldom(log)  # rate-limited, because a server can send many messages to a function that fails

    def call(self, *arguments: Any, size: int = 0) -> None:
        """Call the function with `arguments`, or queue the call if an earlier call still runs.

        `size` is the size of the message in bytes. The total size of the queued messages is limited.
        """
        if self._task is not None and not self._task.done():
            self._waiting.append((size, arguments))
            self._bytes += size
            while len(self._waiting) > self._most or (self._bytes > _WAITING_BYTES and len(self._waiting) > 1):
                self._next()
        elif inspect.isawaitable(outcome := self._begin(arguments)):
            self._task = asyncio.ensure_future(self._run(outcome))

    def _begin(self, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._function(*arguments)
        except Exception:  # noqa: BLE001 - it is logged
            self._seldom.exception(_FAILED, self._option)
            return None

    async def _run(self, outcome: Any) -> None:
        while True:
            try:
                if inspect.isawaitable(outcome):
                    await settled(outcome)
            except Exception:  # noqa: BLE001 - it is logged
                self._seldom.exception(_FAILED, self._option)
            if not self._waiting:
                return
            outcome = self._begin(self._next())

    def _next(self) -> tuple[Any, ...]:
        size, arguments = self._waiting.popleft()
        self._bytes -= size
        return arguments

    async def drain(self, seconds: float) -> None:
        """Wait at most `seconds` for all calls to end. Then cancel the running call and drop the waiting calls."""
        task = self._task
        if task is None or task.done() or task is asyncio.current_task():
            return
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:  # also when the waiting task is cancelled
            await self.stop()

    async def stop(self) -> None:
        """Drop all waiting calls, and cancel the running call."""
        self._waiting.clear()
        self._bytes = 0
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task], timeout=_END_SECONDS)


def queue_for(function: Callable[..., Any] | None, most: int, form: str) -> CallbackQueue | None:
    """Return a `CallbackQueue` for `function`, or None if `function` is None."""
    return None if function is None else CallbackQueue(function, most, form)


_MAX_THREADS = 16  # maximum number of threads, including those whose question has timed out


async def settled(work: Awaitable[Any]) -> Any:
    """Await `work`, an awaitable of the program, and return its result.

    If `work` raises CancelledError although the current task was not cancelled, RuntimeError is raised instead.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(repr(error)) from error


class Functions:
    """Calls sync and async functions of the program. Sync functions run in a limited number of threads."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(_MAX_THREADS)  # not from asyncio, because a thread may outlive its event loop

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a sync or async function, and return its result."""
        if inspect.iscoroutinefunction(function):
            return await settled(function(*args))
        value = await self._in_thread(function, args)
        return await settled(value) if inspect.isawaitable(value) else value

    async def _in_thread(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a sync function in a daemon thread, and return its result. Raises UsageError if too many threads run."""
        if not self._room.acquire(blocking=False):
            raise UsageError(f"{_MAX_THREADS} functions that answer are still running; make them return sooner.")
        context, answer = contextvars.copy_context(), Future[Any]()
        answer.set_running_or_notify_cancel()  # so that a task that stops waiting does not cancel it

        def run() -> None:
            try:
                settle = partial(answer.set_result, context.run(function, *args))
            except BaseException as error:  # noqa: BLE001 - passed to the event loop, where it is logged
                can_pass = isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError)
                settle = partial(answer.set_exception, error if can_pass else RuntimeError(f"raised {error!r}"))
            self._room.release()
            settle()

        try:
            threading.Thread(target=run, name="weft-answer", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._room.release()
            raise
        return await asyncio.wrap_future(answer)
