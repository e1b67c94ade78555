"""Time requests and streams, and call the user's functions.

This module decides when a request has waited too long, when a silent stream counts as lost, how long to wait before
another attempt, and in which order callbacks run and how many may wait. It sends nothing.

An async function is awaited. A plain one that answers a question runs in a thread, so that it does not block the loop.
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
from contextlib import suppress
from typing import Any

from weft.client.argument_checks import check_function, other_loop
from weft.errors import UsageError, WeftError
from weft.net.logs import Seldom
from weft.types.base import RequestId

log = logging.getLogger("weft.client")

TURN_SECONDS = 0.005  # of reading what came at once: then others have their turn

_FAILED = "The function that was given as %s= failed."
_END_SECONDS = 2.0  # for a function of the user's that was cancelled; one that goes on is not waited for
_LONGEST_PAUSE = 30.0
_WAITING_BYTES = 4 * 1024 * 1024  # of messages that a function of the user's has not taken yet
_STEADY_SECONDS = 5.0  # a stream that stood so long is as good as one that never was lost
_MOST_BRIEF = 5  # streams in a row that did not, that count: four seconds between them
_SHORTEST_PAUSE = 0.1  # whatever a server asks for: it must not make a client run in circles
_LONGEST_ASKED = 600.0  # what a server asks for is respected, but a stream must not stay away for ever


def pause(attempt: int, asked: int | None = None) -> float:
    """Seconds to wait before another attempt: what the server asked for (in ms), else longer each time, with jitter.

    >>> pause(0, asked=500), pause(0, asked=99_999_999_999)
    (0.5, 600.0)
    """
    if asked is not None:
        return min(max(asked / 1000, _SHORTEST_PAUSE), _LONGEST_ASKED)
    return min(0.25 * 2.0**attempt, _LONGEST_PAUSE) * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, guards nothing


class Attempts:
    """How often a stream was asked for in vain since it was last taken, and how long to wait before the next time.

    A server may take a stream and lose it at once, again and again. That is no failure in a row, but it is asked for
    more and more seldom all the same.
    """

    def __init__(self) -> None:
        self.failed = 0
        self._brief = 0  # streams in a row that did not stand for long

    def took(self, stood: float) -> None:
        """Note that the stream was opened, and how many seconds it lasted."""
        self.failed = 0
        self._brief = 0 if stood >= _STEADY_SECONDS else min(self._brief + 1, _MOST_BRIEF)

    def pause(self, asked: int | None = None) -> float:
        """Seconds to wait before the next attempt."""
        seconds = pause(max(self.failed, self._brief - 1), asked)
        self.failed += 1
        return seconds


class StreamWatchdog:
    """Decides when a silent stream counts as lost, although it was not closed: the network may be cut.

    A server that keeps its streams alive says something now and then, if only a comment; after the first it is missed
    when it does not. Of a server that never does so, silence says nothing.
    """

    __slots__ = ("_is_kept_alive", "_last", "_longest", "_seconds")

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._last = now
        self._longest = 0.0  # between two signs of life
        self._is_kept_alive = False

    def felt(self, chunk: bytes, now: float) -> float | None:
        """Something came. Returns until when something else should; None when that is not known.

        >>> pulse = StreamWatchdog(60, now=0)
        >>> pulse.felt(b"data: hello", now=10), pulse.felt(b":", now=25), pulse.felt(b": still here", now=125)
        (None, 85, 425.0)
        """
        self._longest = max(self._longest, now - self._last)
        self._last = now
        self._is_kept_alive = self._is_kept_alive or chunk.startswith(b":")
        return now + max(self._seconds, 3.0 * self._longest) if self._is_kept_alive else None


class Clock:
    """The time limit of a request: so long without progress, and never longer than the hard maximum.

    While the server waits for an answer of ours, its time does not run: a user may think. When it has run out, the task
    that waits for the request is cancelled; `has_run_out` then tells it why.
    """

    __slots__ = (
        "_cancelling",
        "_clocks",
        "_end",
        "_holds",
        "_is_over",
        "_task",
        "deadline",
        "failure",
        "queue",
        "seconds",
    )

    def __init__(
        self,
        clocks: Clocks,
        task: asyncio.Task[Any],
        now: float,
        seconds: float,
        most: float,
        queue: CallbackQueue | None,
    ) -> None:
        self._task = task
        self._cancelling = task.cancelling()  # by others, before
        self._clocks = clocks
        self.seconds = seconds  # without progress
        self._end = now + most
        self._holds = 0
        self._is_over = False
        self.deadline = now + min(seconds, most)
        self.queue = queue  # of progress
        self.failure: WeftError | None = None  # why its request is given up before its time

    def wind(self) -> None:
        """Start the time without progress again."""
        if self._holds == 0:
            self.deadline = min(self._clocks.now() + self.seconds, self._end)
            self._clocks.expect(self.deadline)

    def hold(self) -> None:
        """Stop the clock while the server waits for an answer."""
        self._holds += 1
        self.deadline = self._end

    def release(self) -> None:
        """Let the clock run again."""
        self._holds -= 1
        self.wind()

    @property
    def is_at_its_end(self) -> bool:
        """Whether the hard maximum runs out next."""
        return self.deadline >= self._end

    def ring(self) -> None:
        """Cancel the task that waits for the request."""
        if not self._is_over:
            self._is_over = True
            self._task.cancel()

    def fail(self, failure: WeftError) -> None:
        """Give up the request: no answer can come any more."""
        if not self._is_over:
            self.failure = failure
            self.ring()

    def has_run_out(self) -> bool:
        """Return whether a cancellation that has just come is the clock's alone."""
        return self._is_over and self._task.uncancel() <= self._cancelling


class Clocks:
    """The clocks of all requests under way, watched by one timer: a request that is in time costs none."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running: dict[RequestId, Clock] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf  # when it is looked again

    def start(self, request_id: RequestId, seconds: float, most: float, queue: CallbackQueue | None) -> Clock:
        """Start the clock of a request that this task sends."""
        task = asyncio.current_task(self._loop)
        if task is None:
            raise other_loop()
        clock = self._running[request_id] = Clock(self, task, self._loop.time(), seconds, most, queue)
        if clock.deadline < self._next:
            self.expect(clock.deadline)
        return clock

    def stop(self, request_id: RequestId) -> None:
        """Remove the clock of a request that is over."""
        self._running.pop(request_id, None)

    def get(self, request_id: RequestId | None) -> Clock | None:
        """Return the clock of a request, or None."""
        return None if request_id is None else self._running.get(request_id)

    def all(self) -> list[Clock]:
        """Return all clocks."""
        return list(self._running.values())

    def check_loop(self) -> None:
        """Raise UsageError in any event loop but the clocks' own."""
        if asyncio.get_running_loop() is not self._loop:
            raise other_loop()

    def now(self) -> float:
        """Return the time of the event loop."""
        return self._loop.time()

    def expect(self, deadline: float) -> None:
        """Look at the clocks at this time, if not before."""
        if deadline < self._next:
            if self._timer is not None:
                self._timer.cancel()
            self._next = deadline
            self._timer = self._loop.call_at(deadline, self._look)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self._timer, self._next = None, math.inf
        for clock in self.all():
            if clock.deadline <= now:
                clock.ring()
        if left := [clock.deadline for clock in self._running.values() if clock.deadline > now]:
            self.expect(min(left))


class CallbackQueue:
    """Calls a function, one call after the other, with what arrives; what is too much for it is left out.

    A plain function is called at once, where the message arrives; it should be quick. An async one runs in a task.
    `form` is how it is called, for the error about a function that does not fit.
    """

    def __init__(self, function: Callable[..., Any], most: int, form: str) -> None:
        check_function(function, form)
        self._function = function
        self._option = form.partition("(")[0]  # by which the user gave it
        self._most = most
        self._waiting: deque[tuple[int, tuple[Any, ...]]] = deque()  # each with its size
        self._bytes = 0  # of these
        self._task: asyncio.Task[None] | None = None
        self._seldom = Seldom(log)  # a server may say much to a function that fails

    def call(self, *arguments: Any, size: int = 0) -> None:
        """Deliver, now or soon. `size` is how many bytes it came in."""
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
        """Wait until everything was delivered, but not for ever; then stop."""
        task = self._task
        if task is None or task.done() or task is asyncio.current_task():
            return
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:  # also when the waiting task is cancelled
            await self.stop()

    async def stop(self) -> None:
        """Deliver nothing more."""
        self._waiting.clear()
        self._bytes = 0
        task = self._task
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task], timeout=_END_SECONDS)


def queue_for(function: Callable[..., Any] | None, most: int, form: str) -> CallbackQueue | None:
    """Return a queue for a function, or None where there is no function."""
    return None if function is None else CallbackQueue(function, most, form)


_MAX_THREADS = 16  # functions that run at the same time, also those whose answer is not waited for any more


async def settled(work: Awaitable[Any]) -> Any:
    """Return the result of an awaitable of the user. A cancellation that was not meant for this task is a failure."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(repr(error)) from error


class Functions:
    """Calls functions of the user, and bounds the threads that plain ones run in."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(_MAX_THREADS)  # given back by a thread itself: it may outlive its loop

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns, awaited where it has to be."""
        if inspect.iscoroutinefunction(function):
            return await settled(function(*args))
        value = await self._in_thread(function, args)
        return await settled(value) if inspect.isawaitable(value) else value

    async def _in_thread(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a plain function in a daemon thread."""
        if not self._room.acquire(blocking=False):
            raise UsageError(f"{_MAX_THREADS} questions are being answered already; end the functions sooner.")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(value: Any, error: BaseException | None) -> None:
            if answer.done():  # not waited for any more
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        def run() -> None:
            value: Any = None
            failure: BaseException | None = None
            try:
                value = context.run(function, *args)
            except StopIteration as error:
                failure = RuntimeError(f"raised {error!r}")  # which no Future can carry
            except BaseException as error:  # noqa: BLE001 - carried over to the loop, where it is logged
                failure = error
            self._room.release()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, value, failure)

        try:
            threading.Thread(target=run, name="weft-answer", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._room.release()
            raise
        return await answer
