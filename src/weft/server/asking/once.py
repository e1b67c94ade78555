"""Call a function once per logical call, however often its handler runs: `ctx.once`.

A logical call is one call with all its rounds. Results are stored as JSON in the journal of the call. If a client sends
the same request twice, only the first request calls the function (`weft.server.calls.once_store`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

import msgspec

from weft.errors import UsageError
from weft.server.calls.execution import Threads
from weft.server.calls.services import Services
from weft.server.diagnostics import describe, location
from weft.server.signature.plain import is_hashable

if TYPE_CHECKING:
    from pydantic import TypeAdapter


log = logging.getLogger("weft.asks")

_KEEPABLE = "Return JSON, or a type that pydantic can write as JSON and read, or name the type: ctx.once(..., type=T)."

_Keep: TypeAlias = Callable[[msgspec.Raw], Awaitable[None]]  # stores a result, before the handler gets it

# The calls of `once` that the current code runs in: each a `Once` and a key.
_in_once: ContextVar[tuple[tuple[Once, str], ...]] = ContextVar("weft_in_once", default=())


class Once:
    """Calls functions at most once per logical call (a call with all its rounds), and stores their results by key.

    `results` has the results of earlier rounds. `logical` is the id of the logical call. If several requests with the
    same id run at the same time, the first request calls the function, and the other requests wait for its result. By
    default, there is no id, because there is only one request. `peer` is the client, for limits. `keep` stores each new
    result elsewhere too, before it is returned. `threads` runs plain functions (default: those of all calls). `holder`
    names the task that calls the functions, if there is one: another worker may go on with it.
    """

    def __init__(
        self,
        services: Services,
        results: dict[str, msgspec.Raw],
        logical: str = "",
        *,
        peer: str = "",
        keep: Callable[[str, msgspec.Raw], Awaitable[None]] | None = None,
        threads: Threads | None = None,
        holder: bytes | None = None,
    ) -> None:
        self._services = services
        self._results = results
        self._logical = logical
        self._peer = peer
        self._keep = keep
        self._threads = threads or services.threads
        self._holder = holder
        self._locks: dict[str, asyncio.Lock] = {}  # By key: of two concurrent calls, the second one waits.
        self._steps: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}  # Of this run: function and arguments.
        self.began = False  # Whether a function was called, with any outcome.

    async def result(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], type: Any) -> Any:
        """Return the stored result for `key`. If there is none, call `fn` and store its result.

        The result is always decoded from JSON, so every round gets an equal value. `type` is the type of the result. If
        `type` is None, the return annotation of `fn` is used.
        """
        kind = _result_type(fn) if type is None else type
        with _explained(f"ctx.once({key!r}) cannot keep a result of the type {_named(kind)}, so nothing was called."):
            adapter = adapter_of(kind)
        inside = _in_once.get()
        if (self, key) in inside:
            raise UsageError(f"The function given to ctx.once({key!r}) cannot use that key: it would wait for itself.")
        self._check_key(key, fn, args)
        mark = _in_once.set((*inside, (self, key)))

        async def make() -> bytes:
            self.began = True
            value = await self._threads.call(fn, args, to_end=bool(self._logical) or self._keep is not None)
            with _explained(
                f"ctx.once({key!r}) has called its function, but cannot keep the {_named(value.__class__)} that it "
                "returned, so the next round would call it again."
            ):
                return adapter.dump_json(value, warnings=False)  # Values that do not fit are found below.

        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key not in self._results:
                    can_stop = inspect.iscoroutinefunction(fn)
                    make_once: Callable[[], Awaitable[bytes]] = make
                    if self._logical:
                        claimed = partial(self._services.once_store.once, f"{self._logical} {key}", make)
                        make_once = partial(claimed, peer=self._peer, can_stop=can_stop, holder=self._holder)
                    if self._keep is None:
                        made = await make_once()
                    else:
                        made = await _to_end(make_once, partial(self._keep, key), can_stop=can_stop)
                    self._results[key] = msgspec.Raw(made)
        finally:
            _in_once.reset(mark)
        with _explained(
            f"The stored result of ctx.once({key!r}) cannot be read as {_named(kind)}: the function returned a value "
            "of another type than its annotation (or type=)."
        ):
            return adapter.validate_json(bytes(self._results[key]))

    def _check_key(self, key: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Raise UsageError if this run uses a key for two functions: the second one would never be called.

        In debug mode, log a warning if it uses a key for one function with different arguments.
        """
        first, first_args = self._steps.setdefault(key, (fn, args))
        if first is not fn and location(first) != location(fn):
            raise UsageError(
                f"ctx.once({key!r}) is called with {describe(first)}, and with {describe(fn)}. A key names one step: "
                "its stored result is returned, and no other function is called. Give each step a key of its own."
            )
        if self._services.debug and args is not first_args and not _are_equal(args, first_args):
            log.warning(
                "ctx.once(%r, ...) is called several times with %s, with different arguments. A key names one step: "
                "its stored result is returned for all arguments. Give each step a key of its own, such as f%r.",
                key,
                describe(fn),
                key + " {number}",
            )

    def check_asking(self) -> None:
        """Raise UsageError if the current code runs inside a function given to `ctx.once`, which must not ask.

        A question would end the round, but the round waits for the function.
        """
        if any(once is self for once, _ in _in_once.get()):
            raise UsageError("A function given to ctx.once cannot ask. Ask first, and give it the answer as argument.")


async def _to_end(make: Callable[[], Awaitable[bytes]], keep: _Keep, *, can_stop: bool) -> bytes:
    """Call `make` and `keep` its result, in a task of its own, so that no result is lost if the caller is cancelled.

    If the caller is cancelled, `make` is cancelled too, and the caller waits for its end. But if `can_stop` is False,
    `make` needs a thread. A function that runs in a thread cannot be cancelled: it goes on in the background. If it
    still waits for a thread, it never begins.
    """
    task = asyncio.create_task(_outcome(make, keep))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    try:
        outcome = await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        if can_stop:
            await asyncio.wait([task])
        raise
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


_under_way: set[asyncio.Task[bytes | BaseException]] = set()  # the event loop has only weak references to its tasks


async def _outcome(make: Callable[[], Awaitable[bytes]], keep: _Keep) -> bytes | BaseException:
    """Return the result, or the exception, which is not raised: a SystemExit would end the event loop."""
    try:
        made = await make()
        await keep(msgspec.Raw(made))
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        return error
    return made


@contextmanager
def _explained(problem: str) -> Generator[None]:
    """Turn any exception in the `with` block into a UsageError whose message begins with `problem`."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"{problem} {_KEEPABLE}") from error


def to_json(value: Any) -> msgspec.Raw:
    """Encode a value as JSON, with pydantic."""
    return msgspec.Raw(adapter_of(Any).dump_json(value))


def adapter_of(type: Any) -> TypeAdapter[Any]:
    """Return a pydantic TypeAdapter for a type. Adapters of hashable types are cached."""
    return _known_adapter(type) if is_hashable(type) else _known_adapter.__wrapped__(type)


@lru_cache(maxsize=512)  # Making an adapter is slow.
def _known_adapter(type: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # Imported here: most servers do not need it, and start faster.

    adapter = TypeAdapter(type)
    _ = adapter.serializer.to_json, adapter.validator.validate_json  # Resolves forward references now.
    return adapter


def _are_equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether two tuples of arguments are equal; True if they cannot be compared."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - the comparison is the user's code
        return True


def _named(type: Any) -> str:
    return type.__qualname__ if inspect.isclass(type) else repr(type)


def _result_type(fn: Callable[..., Any]) -> Any:
    """Return the type that `fn` returns according to its annotation; Any if the annotation is missing or wrong."""
    try:
        return get_type_hints(inspect.unwrap(fn)).get("return", Any)
    except Exception:  # noqa: BLE001 - hints are the user's code; without them the value is plain JSON
        return Any
