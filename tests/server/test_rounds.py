"""Rounds: a handler asks in the middle of its body, and is run again from the top with the answers."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from support import CLIENT_CAPABILITIES_KEY, Response, ask
from weft import Context, InputRequired, Limits, Server, ask_form, ask_roots
from weft.errors import UsageError
from weft.types.interaction import ElicitResult

KEYS = ["a secret that the workers share"]
EVERYTHING = {CLIENT_CAPABILITIES_KEY: {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}}
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


def accept(word: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"word": word}}


async def word(ctx: Context, question: str, key: str | None = None) -> str:
    answer = await ctx.elicit(question, WORD, key=key)
    return answer.value["word"] if answer.accepted else answer.action


async def call(
    server: Server, retry: dict[str, Any] | None = None, method: str = "tools/call", **params: Any
) -> Response:
    return await ask(server, method, {**(params or {"name": "run"}), **(retry or {})}, meta=EVERYTHING)


def retry_of(result: dict[str, Any], answer: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """What a client adds to its next call: an answer to each question, and the state."""
    answers = {key: answer(question) for key, question in (result.get("inputRequests") or {}).items()}
    return {"inputResponses": answers, "requestState": result["requestState"]}


def echo(question: dict[str, Any]) -> dict[str, Any]:
    """Answer a question with its own text in capitals."""
    return accept(question["params"]["message"].upper())


async def play(
    make: Callable[[], Server], answer: Callable[[dict[str, Any]], Any] = echo, **params: Any
) -> tuple[Any, list[list[str]]]:
    """Call until it is complete, each round on another worker; the result, and what was asked in each round."""
    method = params.pop("method", "tools/call")
    rounds: list[list[str]] = []
    retry: dict[str, Any] = {}
    for _ in range(20):
        result = (await call(make(), retry, method, **params)).result
        if result["resultType"] == "complete":
            return result, rounds
        assert result["resultType"] == "input_required"
        rounds.append([question["params"]["message"] for question in result["inputRequests"].values()])
        retry = retry_of(result, answer)
    raise AssertionError("it asks without end")


def worker(handler: Callable[..., Any], **options: Any) -> Callable[[], Server]:
    """A maker of servers that share nothing but the key and the handler, a tool named `run`."""

    def make() -> Server:
        server = Server("worker", state_keys=KEYS, **options)
        server.add_tool(handler, name="run")
        return server

    return make


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


# --- asking


@pytest.mark.spec("MRTR-01", "MRTR-03", "MRTR-04", "MRTR-16")
async def test_one_question_after_the_other_each_on_another_worker() -> None:
    async def run(ctx: Context) -> str:
        first = await word(ctx, "one")
        return f"{first} {await word(ctx, f'after {first}')}"

    result, rounds = await play(worker(run))
    assert text(result) == "ONE AFTER ONE"
    assert rounds == [["one"], ["after ONE"]]


async def gathered(ctx: Context) -> str:
    return " ".join(await asyncio.gather(word(ctx, "a"), word(ctx, "b"), word(ctx, "c")))


async def grouped(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(word(ctx, name)) for name in "abc"]
    return " ".join([task.result() for task in tasks])


@pytest.mark.spec("MRTR-05")
@pytest.mark.parametrize("handler", [gathered, grouped])
async def test_what_is_asked_at_the_same_time_goes_out_in_one_round(handler: Any) -> None:
    result, rounds = await play(worker(handler))
    assert text(result) == "A B C"
    assert rounds == [["a", "b", "c"]]


async def test_the_same_question_twice_has_two_answers() -> None:
    async def run(ctx: Context) -> str:
        return " ".join(await asyncio.gather(word(ctx, "again"), word(ctx, "again")))

    answers = iter(["first", "second"])
    result, rounds = await play(worker(run), lambda _: accept(next(answers)))
    assert text(result) == "first second"
    assert rounds == [["again", "again"]]


async def test_a_question_under_a_key_is_sent_and_answered_under_it() -> None:
    async def run(ctx: Context) -> str:
        return await word(ctx, "which", key="seat")

    first = (await call(worker(run)())).result
    assert list(first["inputRequests"]) == ["seat"]


async def test_a_changed_question_is_asked_again_and_not_answered_by_the_old_answer() -> None:
    turns = iter(["old?", "new?", "new?"])

    async def run(ctx: Context) -> str:
        return await word(ctx, next(turns), key="same")

    result, rounds = await play(worker(run))
    assert rounds == [["old?"], ["new?"]]
    assert text(result) == "NEW?"


@pytest.mark.spec("MRTR-26")
async def test_a_missing_answer_is_asked_for_again_and_the_others_are_kept() -> None:
    make = worker(gathered)
    first = (await call(make())).result
    retry = retry_of(first, echo)
    lost = list(first["inputRequests"])[1]
    del retry["inputResponses"][lost]
    second = (await call(make(), retry)).result
    assert list(second["inputRequests"]) == [lost]
    assert text((await call(make(), retry_of(second, echo))).result) == "A B C"


@pytest.mark.spec("MRTR-26")
@pytest.mark.parametrize("retry", [{"inputResponses": None}, {"inputResponses": {}}, {}])
async def test_no_answers_at_all_is_asked_again(retry: dict[str, Any]) -> None:
    make = worker(gathered)
    first = (await call(make())).result
    second = (await call(make(), {**retry, "requestState": first["requestState"]})).result
    assert second["inputRequests"] == first["inputRequests"]


@pytest.mark.spec("MRTR-25")
async def test_answers_to_what_was_not_asked_are_ignored() -> None:
    make = worker(gathered)
    retry = retry_of((await call(make())).result, echo)
    retry["inputResponses"] |= {"unheard-of": accept("x"), "odd": 3}
    assert text((await call(make(), retry)).result) == "A B C"


@pytest.mark.spec("MRTR-23", "MRTR-24")
@pytest.mark.parametrize("responses", [[], "x", 3, {"k": 1}, {"k": {"action": "perhaps"}}, {"k": {"content": {}}}])
async def test_answers_without_their_shape_are_refused(responses: Any) -> None:
    async def run(ctx: Context) -> str:
        return await word(ctx, "which", key="k")

    make = worker(run)
    state = (await call(make())).result["requestState"]
    response = await call(make(), {"inputResponses": responses, "requestState": state})
    assert response.error["code"] == -32602
    right = await call(make(), {"inputResponses": {"k": accept("x")}, "requestState": state})
    assert text(right.result) == "x"  # the state is as good as before


@pytest.mark.security("D13", "R12")
async def test_the_limit_of_answers_in_one_call() -> None:
    make = worker(gathered)
    retry = retry_of((await call(make())).result, echo)
    retry["inputResponses"] |= {f"more-{number}": 1 for number in range(61)}
    assert len(retry["inputResponses"]) == Limits().input_responses == 64
    assert text((await call(make(), retry)).result) == "A B C"
    retry["inputResponses"]["one-more"] = 1
    refused = await call(make(), retry)
    assert refused.error["code"] == -32602
    assert "at most 64" in refused.error["message"]


@pytest.mark.security("D13", "R12")
async def test_a_journal_that_outgrows_its_bound_is_an_error_that_names_the_remedy(caplog: Any) -> None:
    async def run(ctx: Context, size: int) -> str:
        await ctx.once("much", lambda: "x" * size)
        return await word(ctx, "which")

    make = worker(run, limits=Limits(state_bytes=1000))
    assert (await call(make(), name="run", arguments={"size": 300})).result["resultType"] == "input_required"
    refused = await call(make(), name="run", arguments={"size": 1000})
    assert refused.error["code"] == -32603
    assert "x" * 50 not in refused.body.decode()
    assert "more than the 1000 allowed" in caplog.text
    assert "Keep what is large in a store of yours" in caplog.text


# --- handlers that do odd things


async def test_except_exception_does_not_swallow_the_end_of_a_round() -> None:
    async def run(ctx: Context) -> str:
        try:
            return await word(ctx, "which")
        except Exception:
            return "swallowed"

    result, rounds = await play(worker(run))
    assert (text(result), rounds) == ("WHICH", [["which"]])


async def test_a_handler_that_swallows_everything_is_asked_for_nevertheless() -> None:
    charged: list[str] = []

    async def run(ctx: Context) -> str:
        try:
            return await word(ctx, "which")
        except BaseException:
            await ctx.once("charge", charged.append, "x")
            return "swallowed"

    result, rounds = await play(worker(run))
    assert (text(result), rounds) == ("WHICH", [["which"]])
    assert charged == []  # what happened after the end of the round would be forgotten


async def test_a_question_that_the_handler_gave_up_is_not_asked() -> None:
    async def run(ctx: Context) -> str:
        asking = asyncio.create_task(word(ctx, "which"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(0.01)
        return "went on"

    result, rounds = await play(worker(run))
    assert (text(result), rounds) == ("went on", [])


def test_plain_functions_ask_through_wait() -> None:
    def run(ctx: Context) -> str:
        return " ".join(ctx.wait(word(ctx, question)) for question in ("a", "b"))

    result, rounds = asyncio.run(play(worker(run)))
    assert (text(result), rounds) == ("A B", [["a"], ["b"]])


async def test_a_tool_with_a_time_limit_asks() -> None:
    server = Server("timed")

    @server.tool(name="run", timeout=5.0)
    async def run(ctx: Context) -> str:
        return await word(ctx, "which")

    result, rounds = await play(lambda: server)
    assert (text(result), rounds) == ("WHICH", [["which"]])


@pytest.mark.spec("META-06", "MRTR-07")
async def test_a_lacking_capability_is_told_also_from_a_task_group() -> None:
    async def run(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(word(ctx, "which"))
            group.create_task(ctx.list_roots())
        return "never"

    declared = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
    refused = await ask(worker(run)(), "tools/call", {"name": "run"}, meta=declared)
    assert refused.refusal == (400, -32021)
    assert refused.error["data"] == {"requiredCapabilities": {"roots": {}}}


# --- in prompts and resources, and nowhere else


@pytest.mark.spec("MRTR-02")
async def test_prompts_and_reads_ask() -> None:
    server = Server("asking", state_keys=KEYS)

    @server.prompt
    async def greet(ctx: Context) -> str:
        return f"Greet {await word(ctx, 'whom')}."

    @server.resource("note://fixed")
    async def fixed(ctx: Context) -> str:
        return await word(ctx, "what")

    @server.resource("note://{name}/templated")
    async def templated(ctx: Context, name: str) -> str:
        return name + await word(ctx, "what")

    got, rounds = await play(lambda: server, method="prompts/get", name="greet")
    assert (got["messages"][0]["content"]["text"], rounds) == ("Greet WHOM.", [["whom"]])
    for uri, read in (("note://fixed", "WHAT"), ("note://x/templated", "xWHAT")):
        got, rounds = await play(lambda: server, method="resources/read", uri=uri)
        assert (got["contents"][0]["text"], rounds) == (read, [["what"]])


@pytest.mark.spec("MRTR-02")
@pytest.mark.parametrize("how", ["ask", "return"])
async def test_completions_cannot_ask(how: str, caplog: Any) -> None:
    server = Server("asking")

    @server.prompt
    async def greet(name: str) -> str:
        return name

    @server.completion(prompt="greet", argument="name")
    async def names(ctx: Context, value: str) -> Any:
        return [await word(ctx, value)] if how == "ask" else InputRequired({"k": ask_roots()})

    params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": "x"}}
    response = await call(server, method="completion/complete", **params)
    assert response.error["code"] == -32603
    assert "Only tools, prompts and reads of resources can ask" in caplog.text


@pytest.mark.spec("MRTR-02")
@pytest.mark.parametrize(
    "method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"]
)
async def test_lists_are_never_answered_with_questions(method: str) -> None:
    server = Server("asking", middleware=[_asking_middleware])
    server.add_tool(gathered)
    server.add_prompt(gathered)
    server.add_resource("note://a", "x")
    assert (await ask(server, method, meta=EVERYTHING)).error["code"] == -32603


async def _asking_middleware(ctx: Context, next: Any) -> Any:
    await word(ctx, "may I?")
    return await next()


async def test_middleware_may_ask_around_a_tool() -> None:
    async def run() -> str:
        return "done"

    result, rounds = await play(worker(run, middleware=[_asking_middleware]))
    assert (text(result), rounds) == ("done", [["may I?"]])


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

    async with asyncio.timeout(5):  # it would wait for itself
        result = (await call(worker(run)())).result
    assert result["isError"]
    assert "Ask first, and give it the answer as argument" in caplog.text


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
        assert "put what changes (time, random values, what was read elsewhere) into ctx.once" in said[0]


async def test_a_replay_that_asks_the_same_is_not_warned_of(caplog: Any) -> None:
    async def run(ctx: Context) -> str:
        moment = await ctx.once("now", time.time_ns)
        return await word(ctx, f"at {moment}?") + await word(ctx, "sure?")

    await play(worker(run, debug=True))
    assert caplog.records == []


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


def test_asking_for_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"InputRequired needs questions, a state, or both"):
        InputRequired()


# --- nothing stays behind


@pytest.mark.spec("MRTR-15", "STATE-01")
async def test_a_question_that_is_never_answered_leaves_nothing_behind() -> None:
    server = worker(gathered)()
    for _ in range(5):
        assert (await call(server)).result["resultType"] == "input_required"
    assert server.in_flight == 0
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
