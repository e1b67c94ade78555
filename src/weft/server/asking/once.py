"""Call a function once per logical call, however often its handler runs: `ctx.once`.

Results are stored as JSON in the journal of the call. If a client sends the same round twice, only the first one calls
the function (`weft.server.calls.once_store`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from weft.errors import UsageError
from weft.server.calls.services import Services
from weft.server.signature.plain import is_hashable

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_KEEPABLE = "Return JSON, or a type that pydantic can write as JSON and read, or name the type: ctx.once(..., type=T)."

# The `once` calls that the running code is part of, with their keys.
_in_once: ContextVar[tuple[tuple[Once, str], ...]] = ContextVar("weft_in_once", default=())


class Once:
    """The results of functions that are called once, by key.

    `logical` is the id of the logical call. If it is given, other runs of the same logical call are possible: the first
    run calls a function, and the others wait for its result. By default, there are no other runs.
    """

    def __init__(self, services: Services, results: dict[str, msgspec.Raw], logical: str = "") -> None:
        self._services = services
        self._results = results
        self._logical = logical
        self._locks: dict[str, asyncio.Lock] = {}  # By key: of two concurrent calls, the second one waits.
        self.began = False  # Whether a function was called, with any outcome.

    async def result(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """Return the result of the first call for `key`. It is read from JSON, so every run gets an equal value.

        `type` is the type of the result. If it is None, the return annotation of `fn` is used.
        """
        kept = _StoredResult(key, _result_type(fn) if type is None else type)
        inside = _in_once.get()
        if (self, key) in inside:
            raise UsageError(f"The function given to ctx.once({key!r}) cannot use that key: it would wait for itself.")
        mark = _in_once.set((*inside, (self, key)))
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key not in self._results:
                    self._results[key] = msgspec.Raw(await self._first(kept, fn, args))
        finally:
            _in_once.reset(mark)
        return kept.read(self._results[key])

    async def _first(self, kept: _StoredResult, fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
        """Return the result of `fn`, called in this run or another one, as JSON."""
        make = partial(self._make, kept, fn, args)
        if not self._logical:
            return await make()
        name = f"{self._logical} {kept.key}"
        return await self._services.once_store.once(name, make, can_stop=inspect.iscoroutinefunction(fn))

    async def _make(self, kept: _StoredResult, fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
        self.began = True
        value = await self._services.threads.call(fn, args, to_end=bool(self._logical))
        return kept.write(value)

    def check_asking(self) -> None:
        """Raise UsageError if the current code runs inside a `once` function, because such a function must not ask.

        A question would end the round, but the round waits for the function.
        """
        if any(once is self for once, _ in _in_once.get()):
            raise UsageError("A function given to ctx.once cannot ask. Ask first, and give it the answer as argument.")


class _StoredResult:
    """Writes the result of one key as JSON, and reads it. Raises UsageError for a type that has no JSON form."""

    def __init__(self, key: str, type: Any) -> None:
        self.key = key
        self._type = type
        try:
            self._adapter = _adapter(type)
        except Exception as error:  # Pydantic may raise anything for a user's type.
            raise UsageError(
                f"ctx.once({key!r}) cannot keep a result of the type {_named(type)}, so nothing was called. {_KEEPABLE}"
            ) from error

    def write(self, value: Any) -> bytes:
        """Encode a result as JSON."""
        try:
            return self._adapter.dump_json(value, warnings=False)  # `read` finds values that do not fit.
        except Exception as error:  # Also from the user's serialisers.
            raise UsageError(
                f"ctx.once({self.key!r}) has called its function, but cannot keep the {_named(value.__class__)} that "
                f"it returned, so the next round would call it again. {_KEEPABLE}"
            ) from error

    def read(self, json: msgspec.Raw) -> Any:
        """Decode a result from JSON."""
        try:
            return self._adapter.validate_json(bytes(json))
        except Exception as error:  # Also from the user's validators.
            raise UsageError(
                f"The stored result of ctx.once({self.key!r}) cannot be read as {_named(self._type)}: the function "
                f"returned a value of another type than its annotation (or type=). {_KEEPABLE}"
            ) from error


def to_json(value: Any) -> msgspec.Raw:
    """Encode a value as JSON, with pydantic."""
    return msgspec.Raw(_adapter(Any).dump_json(value))


def _adapter(type: Any) -> TypeAdapter[Any]:
    return _known_adapter(type) if is_hashable(type) else _known_adapter.__wrapped__(type)


@lru_cache(maxsize=512)  # Making an adapter is slow.
def _known_adapter(type: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # Imported here: most servers do not need it, and start faster.

    adapter = TypeAdapter(type)
    _ = adapter.serializer.to_json, adapter.validator.validate_json  # Resolves forward references now.
    return adapter


def _named(type: Any) -> str:
    return type.__qualname__ if inspect.isclass(type) else repr(type)


def _result_type(fn: Callable[..., Any]) -> Any:
    """Return the return annotation of `fn`; Any if there is none or it cannot be evaluated."""
    try:
        return get_type_hints(inspect.unwrap(fn)).get("return", Any)
    except Exception:  # noqa: BLE001 - hints are the user's code; without them the value is plain JSON
        return Any
