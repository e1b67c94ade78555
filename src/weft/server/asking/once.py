"""Call a function once per logical call, however often its handler runs: `ctx.once`.

Results are kept as JSON in the journal of the call. Where a client may send the same round twice, at the same time or
after an answer that was lost, the first one calls the function (`weft.server.calls.once_store`).
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


_KEEPABLE = "Return JSON, or a type that pydantic can write as JSON and read back; or name it: ctx.once(..., type=T)."

# Whose function this code is part of, and under which key; also through the functions that it calls.
_in_once: ContextVar[tuple[tuple[Once, str], ...]] = ContextVar("weft_in_once", default=())


class Once:
    """The results of functions that are called once, by key.

    `logical` names the call of which this run is a part, where others may run the same: then its functions are called
    by the one that comes first.
    """

    def __init__(self, services: Services, results: dict[str, msgspec.Raw], logical: str = "") -> None:
        self._services = services
        self._results = results
        self._logical = logical
        self._locks: dict[str, asyncio.Lock] = {}  # or two that come at the same time would both call
        self.began = False  # whether a function was called, however that ended

    async def result(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """What `fn` returned the first time; read from its JSON also then, so that a replay gets the same."""
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
        """What `fn` returns, or returned to another run of the same call, as JSON."""
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
        """Refuse a question out of such a function: where a question ends the run, one would wait for the other."""
        if any(once is self for once, _ in _in_once.get()):
            raise UsageError("A function given to ctx.once cannot ask. Ask first, and give it the answer as argument.")


class _StoredResult:
    """How the result under one key is written into the journal and read from it; a type that cannot be is refused."""

    def __init__(self, key: str, type: Any) -> None:
        self.key = key
        self._type = type
        try:
            self._adapter = _adapter(type)
        except Exception as error:  # whatever pydantic makes of the user's type
            raise UsageError(
                f"ctx.once({key!r}) cannot keep a result of the type {_named(type)}, so nothing was called. {_KEEPABLE}"
            ) from error

    def write(self, value: Any) -> bytes:
        """The result as JSON."""
        try:
            return self._adapter.dump_json(value, warnings=False)  # what does not fit is found by `read`
        except Exception as error:  # also what the user's own serialisers raise
            raise UsageError(
                f"ctx.once({self.key!r}) has called its function, but cannot keep the {_named(value.__class__)} that "
                f"it returned, so the next round would call it again. {_KEEPABLE}"
            ) from error

    def read(self, json: msgspec.Raw) -> Any:
        """The result, from JSON."""
        try:
            return self._adapter.validate_json(bytes(json))
        except Exception as error:  # also what the user's own validators raise
            raise UsageError(
                f"What ctx.once({self.key!r}) has kept cannot be read as {_named(self._type)}: the function returned "
                f"something else than its annotation (or type=) says. {_KEEPABLE}"
            ) from error


def to_json(value: Any) -> msgspec.Raw:
    """Any value that pydantic can write, as JSON."""
    return msgspec.Raw(_adapter(Any).dump_json(value))


def _adapter(type: Any) -> TypeAdapter[Any]:
    return _known_adapter(type) if is_hashable(type) else _known_adapter.__wrapped__(type)


@lru_cache(maxsize=512)  # making one takes far longer than using it
def _known_adapter(type: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # here, because most servers start sooner without it

    adapter = TypeAdapter(type)
    _ = adapter.serializer.to_json, adapter.validator.validate_json  # or a name that leads nowhere is found too late
    return adapter


def _named(type: Any) -> str:
    return type.__qualname__ if inspect.isclass(type) else repr(type)


def _result_type(fn: Callable[..., Any]) -> Any:
    """What `fn` says it returns; anything, if it does not say or it cannot be found out."""
    try:
        return get_type_hints(inspect.unwrap(fn)).get("return", Any)
    except Exception:  # noqa: BLE001 - hints are the user's code; without them the value is plain JSON
        return Any
