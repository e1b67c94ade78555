"""Rounds: a handler asks in the middle of its body, and is run again from the top with the answers."""

import asyncio
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, ask
from support.rounds import EVERYTHING, KEYS, accept, call, echo, play, retry_of, text, word, worker
from weft import Context, InputRequired, Limits, Server, ask_roots
from weft.server.asking import rounds

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
    assert "Store large values elsewhere" in caplog.text


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
    assert "only tools, prompts and resources can ask" in caplog.text


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


# --- nothing stays behind


@pytest.mark.spec("MRTR-15", "STATE-01")
async def test_a_question_that_is_never_answered_leaves_nothing_behind() -> None:
    server = worker(gathered)()
    for _ in range(5):
        assert (await call(server)).result["resultType"] == "input_required"
    assert server.engine.in_flight == 0
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_prompt_that_makes_something_else_of_the_signal_still_asks() -> None:
    server = Server("s")

    @server.prompt
    async def greet(ctx: Context) -> str:
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        (answer,) = await asyncio.gather(ctx.elicit("Who?", form, key="who"), return_exceptions=True)
        return answer.value["name"]

    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    result = (await ask(server, "prompts/get", {"name": "greet"}, meta=meta)).result
    assert result["resultType"] == "input_required"
    assert list(result["inputRequests"]) == ["who"]


async def test_more_questions_than_answers_are_read_is_the_developers_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s", limits=Limits(input_responses=2))

    @server.tool
    async def nosy(ctx: Context) -> str:
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        await asyncio.gather(*(ctx.elicit(f"Who {n}?", form) for n in range(3)))
        return "done"

    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    assert (await ask(server, "tools/call", {"name": "nosy"}, meta=meta)).error["code"] == -32603
    assert "raise Limits(input_responses=...)" in caplog.text


async def test_a_changed_question_under_the_same_key_is_warned_of_in_development(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s", debug=True, state_keys=["a secret of enough bytes"])
    runs: list[int] = []

    @server.tool
    async def fickle(ctx: Context) -> str:
        runs.append(1)
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        await ctx.elicit(f"Question {len(runs)}?", form, key="k")
        return "done"

    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    first = (await ask(server, "tools/call", {"name": "fickle"}, meta=meta)).result
    answer = {"k": {"action": "accept", "content": {"name": "x"}}}
    params = {"name": "fickle", "requestState": first["requestState"], "inputResponses": answer}
    again = (await ask(server, "tools/call", params, meta=meta)).result
    assert again["resultType"] == "input_required"
    assert "asked other questions than in the round before" in caplog.text


@pytest.mark.security("D13", "R12")
async def test_answers_that_outgrow_the_journal_are_the_clients_to_shorten(caplog: Any) -> None:
    async def run(ctx: Context, stored: int = 0) -> str:
        first = await word(ctx, "first", key="first")
        await ctx.once("much", lambda: "x" * stored)
        return f"{len(first)} {await word(ctx, 'second', key='second')}"

    make = worker(run, limits=Limits(state_bytes=1000))
    first = (await call(make())).result
    long = {"inputResponses": {"first": accept("y" * 1000)}, "requestState": first["requestState"]}
    refused = await call(make(), long)
    assert refused.error["code"] == -32602
    assert "the 1000 bytes allowed" in refused.error["message"]
    assert "yyy" not in refused.body.decode()
    assert caplog.records == []
    second = await call(make(), {**long, "inputResponses": {"first": accept("y" * 300)}})
    last = retry_of(second.result, lambda _: accept("z" * 1000))  # no state has to carry the last answer
    assert text((await call(make(), last)).result) == f"300 {'z' * 1000}"


async def test_what_the_handler_stored_is_its_own_fault_also_beside_a_long_answer(caplog: Any) -> None:
    async def run(ctx: Context) -> str:
        await word(ctx, "first", key="first")
        await ctx.once("much", lambda: "x" * 1000)
        return await word(ctx, "second")

    make = worker(run, limits=Limits(state_bytes=1000))
    first = (await call(make())).result
    refused = await call(make(), retry_of(first, lambda _: accept("y" * 1000)))
    assert refused.error["code"] == -32603
    assert "more than the 1000 allowed" in caplog.text


async def test_a_state_of_another_key_is_warned_of_once_and_the_peer_is_not_told(caplog: Any) -> None:
    rounds._warn_of_key.cache_clear()

    async def run(ctx: Context) -> str:
        return await word(ctx, "one")

    asked = (await call(worker(run, state_keys=["the key of one worker alone"])())).result
    retry = retry_of(asked, echo)
    other = worker(run, state_keys=["the key of the other worker"])()
    for _ in range(3):
        answer = await call(other, retry)
        assert answer.error["code"] == -32602
        assert "WEFT_STATE_KEY" not in answer.error["message"]
        assert "key" not in answer.error["message"]
    assert [message for message in caplog.messages if "WEFT_STATE_KEY" in message] == [caplog.messages[0]]


async def test_a_state_that_was_changed_is_not_warned_of(caplog: Any) -> None:
    rounds._warn_of_key.cache_clear()

    async def run(ctx: Context) -> str:
        return await word(ctx, "one")

    server = worker(run)()
    asked = (await call(server)).result
    changed = {**retry_of(asked, echo), "requestState": asked["requestState"][:-4] + "AAAA"}
    assert (await call(server, changed)).error["code"] == -32602
    assert caplog.messages == []
