"""What is said of middleware that is not written as it has to be: when it is registered, and when it has run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from traceback import walk_tb
from typing import Any, cast

from weft.errors import UsageError
from weft.server.decorating import with_article
from weft.server.where import is_users, location, target

__all__ = ["check_middleware", "explain_next", "no_result"]


def check_middleware(layer: Any) -> None:
    """Refuse a plain `def`: its `try` around `next()` would never catch anything.

    A function is taken that returns what another `async def` does, where that can be seen: it wraps one, is a lambda,
    or its annotation says so.
    """
    code = target(layer)
    returned = str(getattr(code, "__annotations__", {}).get("return", ""))
    if (
        not inspect.isfunction(code)  # written in C, or a class: nothing is known of it
        or inspect.iscoroutinefunction(code)
        or inspect.iscoroutinefunction(layer)  # marked as one
        or code.__name__ == "<lambda>"
        or any(word in returned for word in ("Awaitable", "Coroutine", "Future", "Task"))
    ):
        return
    raise UsageError(f"{_named(layer)} is a plain `def`; write `async def` and `return await next()`.")


def explain_next(
    error: BaseException, middleware: Sequence[Callable[..., Any]], chain: Callable[..., Any]
) -> BaseException:
    """Say of a TypeError that it comes of an argument to `next`, where it does: it tells of Weft's insides."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or not is_users(frames[-1].f_code.co_filename):
        return error
    if not str(error).startswith(tuple(f"{name}()" for name in _names_in(chain))):
        return error
    codes = [frame.f_code for frame in frames]
    layers = [layer for layer in middleware if getattr(target(layer), "__code__", None) in codes]
    if not layers:
        return error
    return UsageError(
        f"{_named(layers[-1])} gave next() an argument; it takes none. Write `await next()`; change `ctx.params` to "
        "change the call."
    ).with_traceback(error.__traceback__)


def _names_in(chain: Any) -> set[str]:
    """The names of all functions that a chain consists of, as Python has them in a TypeError."""
    if isinstance(chain, partial):
        parts = cast("partial[Any]", chain)
        return {name for part in (parts.func, *parts.args) for name in _names_in(part)}
    return {getattr(chain, "__qualname__", type(chain).__qualname__)}


def no_result(layer: Any, returned: object) -> UsageError:
    """Make the error of middleware that returned something else than a result."""
    if returned is None:
        return UsageError(f"{_named(layer)} returned nothing. Write `return await next()`.")
    if inspect.isawaitable(returned):
        if isinstance(returned, Coroutine):
            cast("Coroutine[Any, Any, Any]", returned).close()  # or Python would complain of it as well
        return UsageError(f"{_named(layer)} returned a coroutine, which was not awaited. Write `return await next()`.")
    return UsageError(
        f"{_named(layer)} returned {with_article(type(returned).__name__)}, which is no result. Return what "
        "`await next()` gave, or a CallToolResult."
    )


def _named(layer: Any) -> str:
    name = getattr(layer, "__name__", None) or getattr(getattr(layer, "func", None), "__name__", None)
    return f"The middleware {(name or type(layer).__name__)!r} ({location(layer)})"
