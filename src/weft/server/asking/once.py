"""Call a function once per logical call, however often its handler runs: `ctx.once`.

Results are stored as JSON in the journal of the call. If a client sends the same round twice, only the first one calls
the function (`weft.server.calls.once_store`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
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
        kind = _result_type(fn) if type is None else type
        with _explained(f"ctx.once({key!r}) cannot keep a result of the type {_named(kind)}, so nothing was called."):
            adapter = adapter_of(kind)
        inside = _in_once.get()
        if (self, key) in inside:
            raise UsageError(f"The function given to ctx.once({key!r}) cannot use that key: it would wait for itself.")
        mark = _in_once.set((*inside, (self, key)))

        async def make() -> bytes:
            self.began = True
            value = await self._services.threads.call(fn, args, to_end=bool(self._logical))
            with _explained(
                f"ctx.once({key!r}) has called its function, but cannot keep the {_named(value.__class__)} that it "
                "returned, so the next round would call it again."
            ):
                return adapter.dump_json(value, warnings=False)  # Values that do not fit are found below.

        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key not in self._results:
                    if self._logical:
                        name, can_stop = f"{self._logical} {key}", inspect.iscoroutinefunction(fn)
                        made = await self._services.once_store.once(name, make, can_stop=can_stop)
                    else:
                        made = await make()
                    self._results[key] = msgspec.Raw(made)
        finally:
            _in_once.reset(mark)
        with _explained(
            f"The stored result of ctx.once({key!r}) cannot be read as {_named(kind)}: the function returned a value "
            "of another type than its annotation (or type=)."
        ):
            return adapter.validate_json(bytes(self._results[key]))

    def check_asking(self) -> None:
        """Raise UsageError if the current code runs inside a `once` function, because such a function must not ask.

        A question would end the round, but the round waits for the function.
        """
        if any(once is self for once, _ in _in_once.get()):
            raise UsageError("A function given to ctx.once cannot ask. Ask first, and give it the answer as argument.")


@contextmanager
def _explained(problem: str) -> Generator[None]:
    """Turn any exception of pydantic, or of the user's validators and serialisers, into a UsageError."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"{problem} {_KEEPABLE}") from error


def to_json(value: Any) -> msgspec.Raw:
    """Encode a value as JSON, with pydantic."""
    return msgspec.Raw(adapter_of(Any).dump_json(value))


def adapter_of(type: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type, from a cache if possible."""
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
