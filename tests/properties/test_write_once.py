"""A handler is written once: run in rounds by workers that know nothing of each other, it does what it does in one go.

Handlers are generated: small programs that ask, ask concurrently, loop, branch on an answer, wait, and do things once.
Each is run straight through, by a context that answers at once, and statelessly, each round by another server that
shares only the key. The results must be the same, and so must be what was done. So they must where a client sends its
rounds several times at once and gives some of them up, to workers that share a Backend as well.
"""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import CLIENT_CAPABILITIES_KEY, ask
from support.backends import YieldingBackend
from weft import AcceptedElicitation, Context, DeclinedElicitation, Elicitation, Server

KEYS = ["a secret that the workers share"]
META = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
LABELS = "abcd"

Program = tuple[Any, ...]
Answers = dict[str, str]  # by the first letter of the question; "" is declined


# --- programs


def programs(keys: st.SearchStrategy[str | None]) -> st.SearchStrategy[Program]:
    """Any program. `keys` are those of its questions."""
    asks = st.tuples(st.just("ask"), st.sampled_from(LABELS), keys)
    leaves = st.one_of(
        asks,
        st.tuples(st.just("once"), st.sampled_from("XYZ"), st.integers(0, 8)),
        st.tuples(st.just("wait"), st.integers(0, 6)),
    )

    def larger(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
        several = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(
            st.tuples(st.just("sequence"), several),
            st.tuples(st.just("gather"), several),
            st.tuples(st.just("group"), several),
            st.tuples(st.just("loop"), st.integers(1, 3), inner),
            st.tuples(st.just("branch"), st.sampled_from(LABELS), inner, inner),
            st.tuples(st.just("try"), inner),
        )

    return st.recursive(leaves, larger, max_leaves=12)


class Effects:
    """What programs did to the world."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    async def act(self, key: str, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.done[key] += 1
        return f"{key}{self.done[key]}"


async def run(program: Program, ctx: Any, effects: Effects, place: str = "") -> Any:
    """Interpret a program. What it gives shows all that it saw."""

    def inner(part: Program) -> Any:
        return run(part, ctx, effects, place)

    match program:
        case ("ask", label, key):
            answer = await ctx.elicit(label + place, WORD, key=key)
            return answer.value["word"] if answer.accepted else answer.action
        case ("once", key, turns):
            return await ctx.once(key, effects.act, key, turns)
        case ("wait", turns):
            for _ in range(turns):
                await asyncio.sleep(0)
            return None
        case ("sequence", parts):
            return [await inner(part) for part in parts]
        case ("gather", parts):
            return await asyncio.gather(*map(inner, parts))
        case ("group", parts):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(inner(part)) for part in parts]
            return [task.result() for task in tasks]
        case ("loop", times, part):
            return [await run(part, ctx, effects, f"{place}.{number}") for number in range(times)]
        case _:
            return await run_inside(program, ctx, effects, place)


async def run_inside(program: Program, ctx: Any, effects: Effects, place: str) -> Any:
    """Programs whose parts run under a condition, or guarded."""

    def inner(part: Program) -> Any:
        return run(part, ctx, effects, place)

    match program:
        case ("branch", label, then, otherwise):
            answer = await ctx.elicit(label + place, WORD)
            return ["then", await inner(then)] if answer.accepted else ["otherwise", await inner(otherwise)]
        case ("try", part):
            try:
                return await inner(part)
            except Exception:
                return "caught"
    raise AssertionError(program)


# --- in one go


class Straight:
    """A context that answers at once: what `Context` is to a client that is asked over a session."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked = 0
        self._once: dict[str, asyncio.Task[Any]] = {}

    async def elicit(self, message: str, schema: Any, *, key: str | None = None) -> Elicitation[Any]:
        self.asked += 1
        word = self.answers[message[0]]
        return AcceptedElicitation({"word": word}) if word else DeclinedElicitation()

    async def once(self, key: str, fn: Any, *args: Any) -> Any:
        if key not in self._once:
            self._once[key] = asyncio.create_task(fn(*args))
        return await asyncio.shield(self._once[key])


# --- in rounds


def worker(program: Program, effects: Effects, backend: YieldingBackend | None = None) -> Server:
    server = Server("worker", state_keys=KEYS, backend=backend)

    @server.tool(name="run")
    async def handler(ctx: Context) -> str:
        return json.dumps(await run(program, ctx, effects))

    return server


def answer(question: dict[str, Any], answers: Answers) -> dict[str, Any]:
    word = answers[question["params"]["message"][0]]
    return {"action": "accept", "content": {"word": word}} if word else {"action": "decline"}


async def in_rounds(program: Program, answers: Answers, effects: Effects, *, forgetful: bool) -> tuple[Any, int]:
    """The result, and how many rounds it took. A forgetful client answers only the first question of each round."""
    retry: dict[str, Any] = {}
    for number in range(1, 200):
        result = (await ask(worker(program, effects), "tools/call", {"name": "run", **retry}, meta=META)).result
        if result["resultType"] == "complete":
            return json.loads(result["content"][0]["text"]), number
        asked = list(result["inputRequests"].items())[: 1 if forgetful else None]
        given_now = {key: answer(question, answers) for key, question in asked}
        retry = {"inputResponses": given_now, "requestState": result["requestState"]}
    raise AssertionError("it asks without end")


async def compare(program: Program, answers: Answers, *, forgetful: bool) -> tuple[int, int]:
    """Both ways; the questions asked in one go, and the rounds it took."""
    straight, expected_effects, effects = Straight(answers), Effects(), Effects()
    expected = await run(program, straight, expected_effects)
    result, rounds = await in_rounds(program, answers, effects, forgetful=forgetful)
    assert result == expected
    assert effects.done == expected_effects.done
    assert set(effects.done.values()) <= {1}
    return straight.asked, rounds


ANSWERS = st.fixed_dictionaries({label: st.sampled_from(["", "yes", "so be it"]) for label in LABELS})


@pytest.mark.spec("MRTR-16", "MRTR-26")
@settings(max_examples=1000, deadline=None)
@given(programs(st.none()), ANSWERS, st.booleans())
def test_rounds_do_what_one_go_does(program: Program, answers: Answers, forgetful: bool) -> None:
    asked, rounds = asyncio.run(compare(program, answers, forgetful=forgetful))
    assert rounds <= asked + 1  # each round but the last brings an answer


@settings(max_examples=600, deadline=None)
@given(programs(st.sampled_from([None, "k", "k#2"])), ANSWERS, st.booleans())
def test_so_they_do_when_questions_share_their_keys(program: Program, answers: Answers, forgetful: bool) -> None:
    asked, rounds = asyncio.run(compare(program, answers, forgetful=forgetful))
    # Different questions under one key may change places from round to round, and are asked again then.
    assert rounds <= asked**2 + 1


# --- in rounds that come several times


class Impatient:
    """A client that sends every round but the first several times at once, each to another worker."""

    def __init__(self, program: Program, effects: Effects, patience: list[int]) -> None:
        self._program = program
        self._effects = effects
        self._patience = patience  # of each attempt: the turns after which it is given up; beyond 40 it never is
        self._backend = YieldingBackend()

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        server = worker(self._program, self._effects, self._backend)
        return (await ask(server, "tools/call", {"name": "run", **params}, meta=META)).result

    async def attempt(self, params: dict[str, Any], patience: int) -> dict[str, Any] | None:
        """What came of it; None if it was given up."""
        calling = asyncio.create_task(self.call(params))
        if patience > 40:
            return await calling
        for _ in range(patience):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling])
        return None

    async def race(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """What came of those that were not given up; of one more, if all were."""
        attempts = (self.attempt(params, patience) for patience in self._patience)
        outcomes = [outcome for outcome in await asyncio.gather(*attempts) if outcome is not None]
        return outcomes or [await self.call(params)]


async def compare_racing(program: Program, answers: Answers, patience: list[int]) -> None:
    straight, expected_effects, effects = Straight(answers), Effects(), Effects()
    expected = await run(program, straight, expected_effects)
    client = Impatient(program, effects, patience)
    outcomes = [await client.call({})]
    while outcomes[-1]["resultType"] == "input_required":
        given_now = {key: answer(question, answers) for key, question in outcomes[-1]["inputRequests"].items()}
        outcomes = await client.race({"inputResponses": given_now, "requestState": outcomes[-1]["requestState"]})
    for outcome in outcomes:
        if outcome["resultType"] == "complete":
            assert json.loads(outcome["content"][0]["text"]) == expected
    assert effects.done == expected_effects.done
    assert set(effects.done.values()) <= {1}


@settings(max_examples=600, deadline=None)
@given(programs(st.none()), ANSWERS, st.lists(st.integers(0, 80), min_size=2, max_size=4))
def test_rounds_that_race_do_what_one_go_does(program: Program, answers: Answers, patience: list[int]) -> None:
    asyncio.run(compare_racing(program, answers, patience))
