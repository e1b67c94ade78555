"""What a replay does not do again, what it must do again, and handlers that keep count of their rounds themselves."""

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
import pytest
from pydantic import BaseModel

from support.rounds import WORD, call, echo, play, retry_of, text, word, worker
from weft import Context, InputRequired, ToolError, ask_form, ask_roots
from weft.errors import UsageError
from weft.types.interaction import ElicitResult

# --- once


class Receipt(BaseModel):
    number: int
    items: tuple[str, ...]


async def test_once_returns_the_same_in_the_first_run_and_in_each_replay() -> None:
    seen: list[Any] = []
    calls: list[str] = []

    def charge(item: str) -> Receipt:
        calls.append(item)
        return Receipt(number=len(calls), items=(item,))

    async def run(ctx: Context) -> str:
        seen.append(await ctx.once("charge", charge, "book"))
        seen.append(await ctx.once("draw", lambda: (1, 2)))
        return await word(ctx, "a") + await word(ctx, "b")

    assert text((await play(worker(run)))[0]) == "AB"
    assert calls == ["book"]
    assert seen == [Receipt(number=1, items=("book",)), [1, 2]] * 3


async def test_once_reads_its_result_as_the_type_that_is_given() -> None:
    async def run(ctx: Context) -> str:
        return repr(await ctx.once("draw", lambda: (1, 2), type=tuple[int, int])) + await word(ctx, "a")

    assert text((await play(worker(run)))[0]) == "(1, 2)A"


async def test_what_once_did_is_not_lost_to_a_question_asked_meanwhile() -> None:
    charged: list[str] = []

    async def slow() -> int:
        await asyncio.sleep(0.02)
        charged.append("async")
        return 1

    def slow_in_thread() -> int:
        time.sleep(0.02)
        charged.append("thread")
        return 2

    async def run(ctx: Context) -> str:
        return str(
            await asyncio.gather(word(ctx, "a"), ctx.once("s", slow), ctx.once("t", slow_in_thread), word(ctx, "b"))
        )

    result, rounds = await play(worker(run))
    assert text(result) == "['A', 1, 2, 'B']"
    assert rounds == [["a", "b"]]
    assert sorted(charged) == ["async", "thread"]


async def test_one_key_is_one_call_also_when_it_comes_twice_at_the_same_time() -> None:
    charged: list[int] = []

    async def charge(amount: int) -> int:
        charged.append(amount)
        await asyncio.sleep(0.005)
        return amount

    async def run(ctx: Context) -> str:
        return f"{await asyncio.gather(ctx.once('k', charge, 1), ctx.once('k', charge, 2))} {await word(ctx, 'a')}"

    assert text((await play(worker(run)))[0]) == "[1, 1] A"
    assert charged == [1]


async def test_what_once_failed_at_is_tried_again() -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("not now")
        return "done"

    async def run(ctx: Context) -> str:
        await word(ctx, "a")
        try:
            return await ctx.once("k", flaky)
        except OSError:
            return await ctx.once("k", flaky)

    assert text((await play(worker(run)))[0]) == "done"
    assert len(tries) == 2


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_is_called_once_cannot_ask(in_thread: bool, caplog: Any) -> None:
    async def run(ctx: Context) -> str:
        async def asks() -> str:
            return await word(ctx, "which")

        return await ctx.once("k", (lambda: ctx.wait(word(ctx, "which"))) if in_thread else asks)

    async with asyncio.timeout(30):  # it would wait for itself
        result = (await call(worker(run)())).result
    assert result["isError"]
    assert "Ask first, and give it the answer as argument" in caplog.text


class Opaque:
    pass


@dataclass
class Unfinished:
    part: "Nowhere"  # noqa: F821 - a name that leads nowhere


@pytest.mark.mistake("a result that ctx.once cannot keep")
@pytest.mark.parametrize("options", [{}, {"type": Opaque}, {"type": Unfinished}, {"type": list[Unfinished]}])
async def test_a_type_that_cannot_be_kept_is_refused_before_anything_happens(options: Any, caplog: Any) -> None:
    called: list[int] = []

    def charge() -> Opaque:
        called.append(1)
        return Opaque()

    async def run(ctx: Context) -> str:
        with pytest.raises(UsageError, match=r"ctx\.once\('card'\) cannot keep .*(Opaque|Unfinished)\]?, so nothing"):
            await ctx.once("card", charge, **options)
        return "refused"

    assert text((await call(worker(run)())).result) == "refused"
    assert called == []


@pytest.mark.mistake("a result that ctx.once cannot keep")
@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (Opaque, r"has called its function, but cannot keep the Opaque that it returned"),
        (lambda: [Opaque()], r"cannot keep the list that it returned"),
        (lambda: b"\xff", r"cannot keep the bytes that it returned"),
        (lambda: "\ud800", r"cannot keep the str that it returned"),
    ],
)
async def test_a_result_that_cannot_be_kept_is_named_with_its_key(fn: Any, said: str, caplog: Any) -> None:
    async def run(ctx: Context) -> str:
        return await ctx.once("card", fn)

    result = (await call(worker(run)())).result
    assert result["isError"]
    assert re.search(r"ctx\.once\('card'\) .*" + said, caplog.text)
    assert "so the next round would call it again" in caplog.text


async def test_a_result_of_another_type_than_was_promised_is_kept_and_not_made_again(caplog: Any) -> None:
    called: list[int] = []

    def charge() -> int:
        called.append(1)
        return "R1"  # type: ignore[return-value] - the mistake

    async def run(ctx: Context) -> str:
        with pytest.raises(UsageError, match=r"The stored result of ctx\.once\('card'\) cannot be read as int"):
            await ctx.once("card", charge)
        return await word(ctx, "a")

    assert text((await play(worker(run)))[0]) == "A"
    assert called == [1]


# --- the same again


@pytest.mark.mistake("a replay that asks other questions")
@pytest.mark.parametrize("debug", [True, False])
async def test_a_replay_that_asks_other_questions_is_warned_of_in_development(debug: bool, caplog: Any) -> None:
    turns = iter(["at 9:00?", "at 9:01?", "at 9:01?"])

    async def run(ctx: Context) -> str:
        return await word(ctx, next(turns))

    with caplog.at_level(logging.WARNING, "weft.asks"):
        await play(worker(run, debug=debug))
    said = [record.getMessage() for record in caplog.records if record.name == "weft.asks"]
    assert bool(said) is debug
    if debug:
        assert "tools/call 'run' asked other questions than in the round before" in said[0]
        assert "get values that change (time, random numbers, data of other systems) with ctx.once" in said[0]
        assert re.search(r"; instead it asked 'at 9:01\?' at tests/support/rounds\.py:\d+\. A handler", said[0])


async def test_a_replay_that_asks_the_same_is_not_warned_of(caplog: Any) -> None:
    async def run(ctx: Context) -> str:
        moment = await ctx.once("now", time.time_ns)
        return await word(ctx, f"at {moment}?") + await word(ctx, "sure?")

    await play(worker(run, debug=True))
    assert caplog.records == []


@pytest.mark.mistake("a replay that asks other questions")
async def test_a_replay_that_asks_nothing_at_all_is_warned_of(caplog: Any) -> None:
    turns = iter([True, False])

    async def run(ctx: Context) -> str:
        return await word(ctx, "sure?", key="sure") if next(turns) else "done"

    assert text((await play(worker(run, debug=True)))[0]) == "done"
    said = [record.getMessage() for record in caplog.records if record.name == "weft.asks"]
    assert len(said) == 1
    assert "sure was not asked again" in said[0]


# --- one key for several steps


@pytest.mark.mistake("one key of ctx.once for two functions")
async def test_a_key_that_names_two_functions_is_a_mistake(caplog: pytest.LogCaptureFixture) -> None:
    """The second function would never be called."""
    called: list[str] = []

    async def run(ctx: Context) -> str:
        await ctx.once("pay", called.append, "ticket")
        await ctx.once("pay", lambda: called.append("dinner"))
        return "done"

    result = (await call(worker(run)())).result
    assert result["isError"]
    assert called == ["ticket"]
    assert "ctx.once('pay') is called with append (" in caplog.text
    assert "and with <lambda> (tests/server/test_once.py:" in caplog.text
    assert "Give each step a key of its own." in caplog.text


@pytest.mark.parametrize("debug", [True, False])
async def test_a_key_that_is_used_with_other_arguments_is_warned_of_in_development(
    debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []

    def pay(amount: int) -> int:
        called.append(amount)
        return amount

    async def run(ctx: Context) -> str:
        return str([await ctx.once("pay", pay, amount) for amount in (7, 7, 9)])

    with caplog.at_level(logging.WARNING, "weft.asks"):
        assert text((await call(worker(run, debug=debug)())).result) == "[7, 7, 7]"
    said = [record.getMessage() for record in caplog.records if record.name == "weft.asks"]
    assert len(said) == int(debug)
    if debug:
        assert "ctx.once('pay', ...) is called several times with pay (" in said[0]
        assert "such as f'pay {number}'" in said[0]


@pytest.mark.parametrize("mixed", [False, True])
async def test_questions_that_a_handler_returned_are_not_to_be_asked_again(mixed: bool, caplog: Any) -> None:
    async def run(ctx: Context) -> Any:
        before = await word(ctx, "before") if mixed else ""
        if not ctx.has_input_response("one"):
            return InputRequired({"one": ask_form("one", WORD)})
        if not ctx.has_input_response("two"):
            return InputRequired({"two": ask_form("two", WORD)})
        return "done" + before

    result, rounds = await play(worker(run, debug=True))
    assert rounds == [["before"]] * mixed + [["one"], ["two"]]
    assert text(result).startswith("done")
    assert caplog.records == []


async def test_a_replay_that_failed_before_it_could_ask_is_not_warned_of(caplog: Any) -> None:
    turns = iter([True, False])

    async def run(ctx: Context) -> str:
        if not next(turns):
            raise ToolError("The line is down.")
        return await word(ctx, "sure?")

    assert (await play(worker(run, debug=True)))[0]["isError"]
    assert [record for record in caplog.records if record.name == "weft.asks"] == []


# --- the explicit form


class Draft(BaseModel):
    step: int


@pytest.mark.spec("MRTR-04", "MRTR-16")
async def test_a_handler_returns_its_questions_itself() -> None:
    seen: list[Any] = []

    async def run(ctx: Context) -> Any:
        draft = ctx.request_state_as(Draft)
        seen.append((ctx.is_retry, ctx.request_state, sorted(ctx.input_responses), ctx.has_input_response("name")))
        if draft is None:
            return InputRequired({"name": ask_form("name", WORD)}, state={"step": 1})
        answer = ctx.input_response("name", ElicitResult)
        if draft.step == 1:
            return InputRequired({"more": ask_form("more", WORD)}, state=Draft(step=2))
        return f"{answer.content} {ctx.input_response('more', dict)['action']}"

    result, rounds = await play(worker(run))
    assert text(result) == "{'word': 'NAME'} accept"
    assert rounds == [["name"], ["more"]]
    assert seen == [
        (False, None, [], False),
        (True, {"step": 1}, ["name"], True),
        (True, {"step": 2}, ["more", "name"], True),
    ]


@pytest.mark.spec("MRTR-04")
async def test_a_state_without_questions() -> None:
    async def run(ctx: Context) -> Any:
        return "done" if ctx.request_state == [1] else InputRequired(state=[1])

    make = worker(run)
    first = (await call(make())).result
    assert "inputRequests" not in first
    assert text((await call(make(), {"requestState": first["requestState"]})).result) == "done"


async def test_an_answer_that_is_not_there_or_does_not_fit_is_the_clients_fault() -> None:
    async def run(ctx: Context) -> Any:
        if not ctx.is_retry:
            return InputRequired({"a": ask_roots(), "b": ask_roots()})
        return str(ctx.input_response("b", ElicitResult))

    make = worker(run)
    state = (await call(make())).result["requestState"]
    for responses, said in (({"a": {"roots": []}}, "has no 'b'"), ({"b": {"roots": []}}, "expected shape")):
        response = await call(make(), {"inputResponses": responses, "requestState": state})
        assert response.error["code"] == -32602
        assert said in response.error["message"]


async def test_how_a_result_is_read_is_found_out_once_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(BaseModel):
        n: int

    unhashable = Annotated[int, []]
    made: list[Any] = []

    class Recorded(pydantic.TypeAdapter[Any]):
        def __init__(self, type: Any) -> None:
            made.append(type)
            super().__init__(type)

    def count() -> Counted:
        return Counted(n=3)

    async def run(ctx: Context) -> str:
        first, second = await ctx.once("a", count), await ctx.once("b", count)
        return f"{first.n + second.n + await ctx.once('c', int, type=unhashable)}"

    monkeypatch.setattr(pydantic, "TypeAdapter", Recorded)
    for _ in range(2):
        assert text((await call(worker(run)())).result) == "6"
    assert made == [Counted, unhashable, unhashable]


def test_asking_for_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"InputRequired needs questions, a state, or both"):
        InputRequired()


async def test_a_function_that_waits_for_itself_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async def run(ctx: Context) -> str:
        async def inner() -> int:
            return await ctx.once("k", lambda: 1)

        async def outer() -> int:
            return await ctx.once("k", inner)

        return str(await ctx.once("other", outer))

    result = (await call(worker(run)())).result
    assert result["isError"]
    assert "ctx.once('k') cannot use that key: it would wait for itself" in caplog.text


async def test_an_answer_to_what_was_asked_before_is_no_answer_to_what_is_asked_now() -> None:
    deleted: list[str] = []

    async def run(ctx: Context) -> str | InputRequired:
        if ctx.request_state is None:
            return InputRequired({"confirm": ask_form("Delete A?", WORD)}, state="A")
        if "confirm" not in ctx.input_responses:
            return "not confirmed"
        deleted.append(ctx.request_state_as(str))
        if ctx.request_state == "A":
            return InputRequired({"confirm": ask_form("Delete B?", WORD)}, state="B")
        return "both"

    server = worker(run)()
    first = (await call(server)).result
    second = (await call(server, retry_of(first, echo))).result
    third = (await call(server, {"requestState": second["requestState"]})).result
    assert text(third) == "not confirmed"
    assert deleted == ["A"]


async def test_in_development_a_question_that_is_not_asked_again_is_told_also_without_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = 0

    async def run(ctx: Context) -> str:
        nonlocal rounds
        rounds += 1
        answers = await asyncio.gather(word(ctx, "A?", "a"), word(ctx, f"B{rounds}?", f"b{rounds}"))
        return " ".join(answers)

    server = worker(run, debug=True)()
    first = (await call(server)).result
    answered = {"a": {"action": "accept", "content": {"word": "yes"}}}
    await call(server, {"requestState": first["requestState"], "inputResponses": answered})
    assert "b1 was not asked again" in caplog.text


async def test_what_outlives_its_round_does_not_do_it_again() -> None:
    done: list[str] = []

    async def act() -> str:
        done.append("acted")
        return "ref"

    async def twice(ctx: Context) -> str:
        first = await ctx.once("act", act)
        for _ in range(20):  # the round is over meanwhile
            await asyncio.sleep(0)
        return first + await ctx.once("act", act)

    async def run(ctx: Context) -> str:
        asked, acted = await asyncio.gather(word(ctx, "sure?"), twice(ctx))
        return asked + acted

    result, _ = await play(worker(run))
    await asyncio.sleep(0.01)
    assert text(result) == "SURE?refref"
    assert done == ["acted"]
