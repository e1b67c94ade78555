"""Translations: what `server.on_error` registers. An exception becomes what the model or the client reads.

They run at the error boundary, outside of all middleware, which sees the exceptions themselves. An exception that is an
answer already (`ToolError`, `ProtocolError`) is left alone, unless its own class is registered, or one between: a
function for `Exception` is not asked about it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from weft.errors import InternalError, ProtocolError, ToolError, UsageError, WeftError
from weft.server.where import caller, location
from weft.types.base import Result
from weft.types.tools import CallToolParams, CallToolResult

if TYPE_CHECKING:
    from weft.server.call import Call

__all__ = ["Translation", "Translations", "check_exceptions"]

E = TypeVar("E", bound=Exception)
Translation: TypeAlias = Callable[[E], Any] | Callable[[E, Any], Any]  # the exception; the exception and the Context

_ANSWERS = (ToolError, ProtocolError)
_RETURNS = (
    "Return a text, a ToolError, a ProtocolError or a result; or raise the exception again, to leave it as it is."
)


class Translations:
    """Functions by the class of the exceptions that they translate. A value: one more makes a new one."""

    def __init__(self, functions: Mapping[type[Exception], tuple[Callable[..., Any], bool]] | None = None) -> None:
        self._functions = dict(functions or {})  # and whether each takes the Context as well

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """All that translate."""
        return [fn for fn, _ in self._functions.values()]

    def with_one(self, kind: type[Exception], fn: Callable[..., Any]) -> Translations:
        """Return these and one more; UsageError where it cannot be one."""
        if kind in self._functions:
            raise UsageError(f"server.on_error({kind.__name__}) is registered twice; one function is enough.")
        return Translations({**self._functions, kind: (fn, _takes_context(kind, fn))})

    async def translate(self, call: Call, error: BaseException) -> Result | BaseException:
        """Return what the client gets in place of an exception; the exception itself where nothing translates it."""
        error, kind = self._find(call, error)
        if kind is None:
            return error
        fn, takes_context = self._functions[kind]
        described = f"The function for on_error({kind.__name__}) ({location(fn)})"
        trace = error.__traceback__
        try:
            given = (error, call.context) if takes_context else (error,)
            return _as_answer(call, await call.server.invoke_plain(fn, given), described)
        except _ANSWERS as answer:
            return _as_answer(call, answer, described)
        except BaseException as fault:
            if isinstance(fault, asyncio.CancelledError) and _is_cancelled():
                raise
            if fault is error:  # raised again: as it was, or it would hold on to the frames of its translation
                return error.with_traceback(trace)
            call.blamed = described
            return fault

    def _find(self, call: Call, error: BaseException) -> tuple[BaseException, type[Exception] | None]:
        """Find the class by which an exception is translated: its own, else the nearest above it."""
        kind = self._class_for(call, error)
        lone = error
        while kind is None and isinstance(lone, BaseExceptionGroup):
            members = cast("BaseExceptionGroup[BaseException]", lone).exceptions
            if len(members) != 1:
                return error, None
            lone = members[0]  # a task group has wrapped it
            kind = self._class_for(call, lone)
        return (error, None) if kind is None else (lone, kind)

    def _class_for(self, call: Call, error: BaseException) -> type[Exception] | None:
        is_answer = isinstance(error, _ANSWERS)
        if isinstance(error, ProtocolError) and call.blamed is None:
            return None  # the request was refused: it never reached a feature
        for kind in type(error).__mro__:
            if is_answer and kind is WeftError:
                return None
            if kind in self._functions:
                return kind
        return None


def check_exceptions(kind: object) -> None:
    """UsageError unless this is a class of exceptions; a function is what stands below a decorator without one."""
    if isinstance(kind, type) and issubclass(kind, Exception):
        return
    given = cast("Any", kind)
    if given is None or inspect.isroutine(given):
        where = caller() if given is None else location(given)
        raise UsageError(
            f"@server.on_error needs the class of the exceptions ({where}). Write @server.on_error(KeyError)."
        )
    raise UsageError(
        f"server.on_error({kind!r}) is not possible ({caller()}): give a class of exceptions, such as "
        "server.on_error(LookupError)."
    )


def _as_answer(call: Call, answer: Any, described: str) -> Result | BaseException:
    """What a translation returned, as a result or as an exception whose answer is known."""
    is_tool = isinstance(call.envelope.params, CallToolParams)
    if isinstance(answer, str):
        answer = ToolError(answer)
    if isinstance(answer, ToolError):
        return answer if is_tool else InternalError(str(answer))
    if isinstance(answer, ProtocolError):
        return answer
    if isinstance(answer, Result) and (is_tool or not isinstance(answer, CallToolResult)):
        return answer
    call.blamed = described
    if isinstance(answer, Result):
        return UsageError(f"It returned a CallToolResult to {call.method}, which is no call of a tool. {_RETURNS}")
    return UsageError(f"It returned something of the type {type(answer).__name__!r}. {_RETURNS}")


def _takes_context(kind: type[Exception], fn: Callable[..., Any]) -> bool:
    """Whether a function is called as `fn(error, ctx)`; False for `fn(error)`, UsageError for neither."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return False
    for arguments in (("error",), ("error", "ctx")):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise UsageError(
        f"server.on_error({kind.__name__}) was given a function that cannot be called ({location(fn)}). Write "
        "`def fn(error)` or `def fn(error, ctx)`."
    )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())
