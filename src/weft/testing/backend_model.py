"""Make random calls of a backend, some of them concurrently, and compare the results with a model.

Concurrent calls may be executed in any order. So the results are right if there is an order in which the model returns
the same results. This module needs the package hypothesis. `weft.testing.backend_contract` uses it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from weft.backends import Backend

_TTL = 600.0  # seconds; nothing expires during a test
_EXAMPLES = 100  # random sequences of steps
_STEPS = 20  # steps of a sequence; each step is one call, or several concurrent calls
_MOST_AT_ONCE = 4  # concurrent calls; the model tries all their orders
_STEP_SECONDS = 30.0  # timeout of a step


@dataclass(frozen=True)
class _Call:
    """A call of a method, such as `_Call("store", "swap", "a", b"1", b"2")`.

    The arguments do not contain `ttl`. The third argument of `log.read` is a place in the list of all numbers so far.
    """

    part: str
    method: str
    key: str
    first: Any = None
    second: Any = None

    def __str__(self) -> str:
        arguments = [self.key, *(argument for argument in (self.first, self.second) if argument is not None)]
        return f"{self.part}.{self.method}({', '.join(map(repr, arguments))})"


# Few keys and values, so that calls meet. The first key is used more often than the second.
_KEYS = ("a", "a", "a", "b")
_VALUES = (b"", b"1")
_NAMES = ("x", "y", "z")
_STORE_CALLS = [
    call
    for key in _KEYS
    for call in (
        *(_Call("store", method, key) for method in ("get", "get", "touch", "delete")),
        *(_Call("store", "put", key, value) for value in _VALUES),
        *(_Call("store", "swap", key, expected, value) for expected in (None, *_VALUES) for value in _VALUES),
    )
]
_LOG_CALLS = [
    call
    for key in _KEYS
    for call in (
        *(_Call("log", method, key) for method in ("last", "delete")),
        *(_Call("log", "append", key, value, most) for value in _VALUES for most in (1, 2, 3)),
        *(_Call("log", "read", key, place) for place in (0, 0, 1, 2, 3, 4, 5, 6)),
        *(_Call("log", "read", key, place, most) for place in (0, 1, 2, 4) for most in (1, 2)),
    )
]
_SETS_CALLS = [
    call
    for key in _KEYS
    for call in (
        *(_Call("sets", "names", key) for _ in range(4)),
        *(_Call("sets", "add", key, name, most) for name in _NAMES for most in (None, 1, 2, 3)),
        *(_Call("sets", "remove", key, name) for name in _NAMES),
    )
]


def _at_once(calls: list[_Call]) -> st.SearchStrategy[list[_Call]]:
    return st.lists(st.sampled_from(calls), min_size=1, max_size=_MOST_AT_ONCE)


@dataclass
class _Entries:
    """The model of one log."""

    kept: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    dropped: int = 0  # number of the newest entry that was dropped


@dataclass
class _Model:
    """What a backend contains, as simple as possible."""

    values: dict[str, bytes] = field(default_factory=dict[str, bytes])
    logs: dict[str, _Entries] = field(default_factory=dict[str, _Entries])
    sets: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def allows(self, call: _Call, result: Any) -> bool:
        """Execute a call, and return whether `result` is right for it."""
        method: Callable[[_Call, Any], bool] = getattr(self, f"_{call.part}_{call.method}")
        return method(call, result)

    def _store_get(self, call: _Call, result: Any) -> bool:
        return bool(result == self.values.get(call.key))

    def _store_put(self, call: _Call, result: Any) -> bool:
        self.values[call.key] = call.first
        return result is None

    def _store_swap(self, call: _Call, result: Any) -> bool:
        is_stored = self.values.get(call.key) == call.first
        if is_stored:
            self.values[call.key] = call.second
        return result is is_stored

    def _store_touch(self, call: _Call, result: Any) -> bool:
        return result is (call.key in self.values)

    def _store_delete(self, call: _Call, result: Any) -> bool:
        return result is (self.values.pop(call.key, None) is not None)

    def _log_append(self, call: _Call, result: Any) -> bool:
        entries = self.logs.setdefault(call.key, _Entries())
        if result <= (entries.kept[-1][0] if entries.kept else 1):
            return False
        entries.kept.append((result, call.first))
        while len(entries.kept) > call.second:
            entries.dropped = entries.kept.pop(0)[0]
        return True

    def _log_read(self, call: _Call, result: Any) -> bool:
        entries, after = self.logs.get(call.key, _Entries()), call.first
        if 0 < after < entries.dropped:
            return result is None
        return result is not None and list(result) == [one for one in entries.kept if one[0] > after][: call.second]

    def _log_last(self, call: _Call, result: Any) -> bool:
        entries = self.logs.get(call.key)
        return bool(result == (entries.kept[-1][0] if entries else 0))

    def _log_delete(self, call: _Call, result: Any) -> bool:
        self.logs.pop(call.key, None)
        return result is None

    def _sets_add(self, call: _Call, result: Any) -> bool:
        names = self.sets.setdefault(call.key, set())
        is_added = call.second is None or len(names - {call.first}) < call.second
        if is_added:
            names.add(call.first)
        return result is is_added

    def _sets_remove(self, call: _Call, result: Any) -> bool:
        names = self.sets.setdefault(call.key, set())
        existed = call.first in names
        names.discard(call.first)
        return result is existed

    def _sets_names(self, call: _Call, result: Any) -> bool:
        return list(result) == sorted(self.sets.get(call.key, set()))


def _explained(models: Sequence[_Model], calls: Sequence[_Call], results: Sequence[Any]) -> list[_Model]:
    """Return the possible contents after concurrent calls with these results, none if the results are wrong."""
    possible: list[_Model] = []
    for model in models:
        for order in itertools.permutations(range(len(calls))):
            after = copy.deepcopy(model)
            if all(after.allows(calls[place], results[place]) for place in order) and after not in possible:
                possible.append(after)
    return possible


async def _execute(backend: Backend, group: str, call: _Call) -> Any:
    key = f"{call.part}/{group}/{call.key}"
    method = getattr(getattr(backend, call.part), call.method)
    match call.method:
        case "put":
            return await method(key, call.first, ttl=_TTL)
        case "swap":
            return await method(key, call.first, call.second, ttl=_TTL)
        case "touch":
            return await method(key, ttl=_TTL)
        case "read":
            return await method(key, call.first, most=call.second)
        case "append" | "add":
            return await method(key, call.first, ttl=_TTL, most=call.second)
        case _:
            return await (method(key) if call.first is None else method(key, call.first))


class _RandomCalls(RuleBasedStateMachine):
    """Makes random calls, over two connections. Subclasses have the backends."""

    runner: asyncio.Runner
    backends: tuple[Backend, Backend]
    failures: list[str]  # the sentences about wrong results

    def __init__(self) -> None:
        super().__init__()
        self.group = secrets.token_hex(8)  # each sequence has keys of its own
        self.models = [_Model()]  # the possible contents of the backend
        self.numbers = [0, 1]  # numbers of log entries, for `log.read`
        self.steps: list[tuple[str, list[str]]] = []  # the part of the backend, and its calls with their results

    @rule(calls=_at_once(_STORE_CALLS))
    def store(self, calls: list[_Call]) -> None:
        """Make calls of the store at the same time."""
        self._check(calls)

    @rule(calls=_at_once(_LOG_CALLS))
    def log(self, calls: list[_Call]) -> None:
        """Make calls of the log at the same time."""
        self._check(calls)

    @rule(calls=_at_once(_SETS_CALLS))
    def sets(self, calls: list[_Call]) -> None:
        """Make calls of the sets at the same time."""
        self._check(calls)

    def _check(self, calls: list[_Call]) -> None:
        calls = [self._with_number(call) if call.method == "read" else call for call in calls]
        results = self.runner.run(self._execute_all(calls))
        self.steps.append((
            calls[0].part, [f"{call} -> {result!r}" for call, result in zip(calls, results, strict=True)]
        ))  # fmt: skip
        self.models = _explained(self.models, calls, results)
        if not self.models:
            self.failures.append(self._failure(calls[0].part))
            raise AssertionError(self.failures[-1])
        for call, result in zip(calls, results, strict=True):
            if call.method == "append":
                self.numbers += [result, result - 1]

    def _failure(self, part: str) -> str:
        rule = "concurrent calls have the same results as if they were executed one after another, in some order"
        steps = [f"{number}. {' | '.join(step)}" for number, (of, step) in enumerate(self.steps, 1) if of == part]
        wrong = "There is no such order for the last of these steps (`|` is between concurrent calls):"
        return "\n".join([f"Broken rule: {rule}.", wrong, *steps])

    def _with_number(self, call: _Call) -> _Call:
        """Replace the place in the list of numbers by the number, counted from the newest."""
        newest = [*self.numbers[:2], *reversed(self.numbers[2:])]
        return _Call("log", "read", call.key, newest[min(call.first, len(newest) - 1)], call.second)

    async def _execute_all(self, calls: Sequence[_Call]) -> list[Any]:
        async with asyncio.timeout(_STEP_SECONDS):
            return await asyncio.gather(*(
                _execute(self.backends[(len(self.steps) + place) % 2], self.group, call)
                for place, call in enumerate(calls)
            ))  # fmt: skip


def run_random_calls(make_backend: Callable[[], Awaitable[Backend]]) -> None:
    """Make random calls over two backends. Raises AssertionError if a result is wrong."""

    async def make() -> Backend:
        backend = await make_backend()
        await backend.start()
        return backend

    with asyncio.Runner() as runner:
        first = runner.run(make())
        try:
            second = runner.run(make())
            try:
                _run(runner, (first, second))
            finally:
                runner.run(second.close())
        finally:
            runner.run(first.close())


def _run(runner: asyncio.Runner, backends: tuple[Backend, Backend]) -> None:
    failures: list[str] = []
    machine = type("RandomCalls", (_RandomCalls,), {"runner": runner, "backends": backends, "failures": failures})
    options = settings(
        max_examples=_EXAMPLES,
        stateful_step_count=_STEPS,
        phases=[Phase.generate],  # concurrent calls cannot be repeated exactly, so a failure cannot be made smaller
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    try:
        run_state_machine_as_test(machine, settings=options)
    except BaseException:
        if failures:  # what hypothesis raises may not contain the sentence, if the failure does not occur again
            raise AssertionError(failures[0]) from None
        raise
