"""Warn developers about side effects of a handler before a question, which are repeated when the handler runs again.

Without a session, a handler runs again from the top after every answer. Side effects before the question then happen
again, unless they are done by `ctx.once`. Not all side effects can be detected. These can: a log message through the
context, an argument that was changed, and an `await` of anything other than a question or a `once`. To await a function
that only reads is no side effect. Such a function is recognised by its name, such as `get_price`, `fetch` or `sleep`.

The coroutine of the handler is run step by step, with a profile function (`sys.setprofile`) that is called for each
coroutine that the user's code awaits. This is done only if the server's `debug` is on.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
import sys
from collections.abc import Container, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, cast, get_args

from weft.server.diagnostics import is_users, short_path
from weft.types.base import LogLevel

if TYPE_CHECKING:
    from weft.server.calls.call import Call, Handler


log = logging.getLogger("weft.asks")

# Names of coroutine functions that only read or wait: they begin with one of these words.
_READING = re.compile(
    r"_*(a?get|read|fetch|list|find|load|select|search|query|look|lookup|count|check|exists|is|has|can|head|show|"
    r"describe|resolve|validate|parse|verify|wait|sleep|acquire|connect|open|enter|exit|next|iter|anext|aenter|aexit)"
    r"(_|$|[A-Z\d])"
)
_SERVER = str(Path(__file__).resolve().parents[1])  # The directory of weft.server.
_LOGS = frozenset({"log", *get_args(LogLevel)})
_PLAIN = (str, bytes, int, float, bool, type(None))
_MOST_WARNINGS = 512
_WARNING = (
    "%s %s at %s, before it asks%s. The handler runs again from the top when the answer comes, and does this again. If "
    "it must happen once, put it into ctx.once(key, fn, ...), or do it after the last question."
)

_warned: set[tuple[str, str]] = set()  # Warnings that were logged: handler, and side effect with its place.

_is_users = lru_cache(maxsize=1024)(is_users)


def watched(handler: Handler) -> Handler:
    """Return a handler that also warns about side effects, in calls whose handler may run more than once."""

    async def serve(call: Call) -> Any:
        if not call.runs_again or sys.getprofile() is not None:
            return await handler(call)
        call.replay = Replay(call.described, cast("Coroutine[Any, Any, Any]", handler(call)))
        try:
            return await call.replay
        finally:
            call.replay = None  # Releases the frames, so that the objects in them can be freed.

    return serve


class _Step:
    """A possible side effect: one `await` or log message of the user's code."""

    def __init__(self, what: str, place: str, frame: FrameType | None = None, back: FrameType | None = None) -> None:
        self.what = what
        self.place = place
        self.frame = frame  # Frame of the awaited coroutine; None for a future, or for `ctx.wait`.
        self.back = back  # Frame of the code that awaits it.
        self.asks = not what  # Whether to ignore the step: it only reads, or led to a question or a `once`.
        self.is_over = False  # Whether the step has ended; used only for a step without a frame.

    def is_under_way(self, frames: Container[FrameType | None]) -> bool:
        """Return whether the step is still running. `frames` has the frames of all code that is still running."""
        return not self.is_over if self.frame is None else self.frame in frames


class Replay:
    """Runs a handler step by step, and records its side effects. Await the object to run the handler."""

    def __init__(self, described: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._described = described
        self._coroutine = coroutine
        self._steps: dict[FrameType | _Step, _Step] = {}  # By frame; a step without a frame is its own key.
        self._awaited: _Step | None = None  # The step for the future that the suspended handler awaits.
        self._handler: FrameType | None = None  # Frame of the user's handler.
        self._arguments: dict[
            str, tuple[Any, Any]
        ] = {}  # The handler's arguments, each with a copy of its first value.

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Any = self._coroutine.send
        value: Any = None
        try:
            while True:
                awaited = self._run(step, value)
                try:
                    value = yield awaited
                    step = self._coroutine.send
                except GeneratorExit:
                    self._coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - passed to the coroutine, as `await` does
                    step, value = self._coroutine.throw, error
        except StopIteration as done:
            return done.value

    def _run(self, step: Any, value: Any) -> Any:
        """Run the handler until it is suspended again, and record what it awaits. Return the awaited object.

        `step` is the `send` or `throw` of the coroutine, and `value` is its argument.
        """
        if self._awaited is not None:
            self._awaited.is_over = True
        sys.setprofile(self._see)
        try:
            awaited = step(value)
        finally:
            sys.setprofile(None)
        # The profile function is not called for a future or a task that the user's code awaits.
        leaf = self._chain()[-1:]
        if leaf and _is_users(leaf[0].f_code.co_filename):
            self._awaited = _Step("awaits something", _place(leaf[0]), back=leaf[0])
            self._steps[self._awaited] = self._awaited
        return awaited

    @contextmanager
    def waiting(self, awaitable: Any, place: str) -> Generator[None]:
        """Record that a sync handler runs `ctx.wait(awaitable)`, from the start to the end of the `with` block.

        `place` is the file and line where the handler calls `ctx.wait`.
        """
        what = _judge(awaitable.cr_code) if isinstance(awaitable, CoroutineType) else "awaits something"
        step = _Step(what, place)
        self._steps[step] = step
        try:
            yield
        finally:
            step.is_over = True

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code, back = frame.f_code, frame.f_back
        if event != "call" or not code.co_flags & inspect.CO_COROUTINE or back is None or frame in self._steps:
            return
        if _is_users(back.f_code.co_filename):
            self._steps[frame] = _Step(_judge(code), _place(back), frame, back)
        elif self._handler is None and _is_users(code.co_filename):
            self._handler, self._arguments = frame, _copies(frame)

    def asked(self) -> None:
        """Mark every `await` that is still running as harmless, because it has led to a question or a `once`."""
        under_way = self._under_way()
        for step in self._steps.values():
            step.asks = step.asks or step.is_under_way(under_way)

    def warn(self) -> None:
        """Log a warning for each side effect that happened before the current question."""
        under_way = self._under_way()
        done = [step for step in self._steps.values() if not step.asks and not step.is_under_way(under_way)]
        inner = {step.frame for step in done if step.frame is not None}
        found = [(step.what, step.place) for step in done if step.back not in inner]
        if self._handler is not None:
            place, now = _place(self._handler), self._handler.f_locals
            for name, (value, before) in self._arguments.items():
                with suppress(Exception):  # The user's own comparison may raise anything.
                    if now.get(name) is value and value != before:
                        found.append((f"has changed its argument {name!r}", place))
        question = self._question_place(under_way)
        for what, place in found:
            key = (self._described, f"{what} {place}")
            if key not in _warned and len(_warned) < _MOST_WARNINGS:
                _warned.add(key)
                where = f" at {question}" if place != question else ""
                log.warning(_WARNING, self._described, what, place, where)

    def question_place(self) -> str:
        """Return the file and line of the user's code that is asking now."""
        return self._question_place(self._under_way())

    def _question_place(self, under_way: Iterable[FrameType | None]) -> str:
        users = (frame for frame in under_way if frame is not None and _is_users(frame.f_code.co_filename))
        waited = (step.place for step in self._steps.values() if step.frame is None and not step.is_over)
        return next(chain(map(_place, users), waited), "an unknown place")

    def _chain(self) -> list[FrameType]:
        """Return the frames of the suspended handler and of the coroutines that it awaits, the outermost first."""
        frames: list[FrameType] = []
        coroutine: Any = self._coroutine
        while isinstance(coroutine, CoroutineType):
            if coroutine.cr_frame is not None:
                frames.append(coroutine.cr_frame)
            coroutine = cast("Any", coroutine).cr_await
        return frames

    def _under_way(self) -> dict[FrameType | None, None]:
        """Return the frames of all code that has not ended yet, the innermost first.

        These are the frames of the handler's coroutines and of the current thread.
        """
        frames: dict[FrameType | None, None] = dict.fromkeys(reversed(self._chain()))
        frame = inspect.currentframe()
        while frame is not None:
            frames[frame] = None
            frame = frame.f_back
        return frames


def _judge(code: Any) -> str:
    """Describe the side effect of a coroutine from its code object; return "" if there seems to be none."""
    name: str = code.co_name
    if code.co_filename.startswith(_SERVER):
        is_log = code.co_qualname.startswith("Context.") and name in _LOGS
        return f"logs with ctx.{name}(...)" if is_log else ""
    return "" if _READING.match(name) else f"awaits {name}(...)"


def _place(frame: FrameType) -> str:
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _copies(frame: FrameType) -> dict[str, tuple[Any, Any]]:
    """Return the mutable arguments of a running function, each with a copy, to find out later if they have changed."""
    code = frame.f_code
    found: dict[str, tuple[Any, Any]] = {}
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if isinstance(value, _PLAIN) or cast("Any", type(value)).__eq__ is object.__eq__:
            continue
        with suppress(Exception):  # Values that cannot be copied or compared are not checked.
            copied = copy.deepcopy(value)
            if value == copied:
                found[name] = value, copied
    return found
