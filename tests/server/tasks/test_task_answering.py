"""`tasks/update`: which answers to the questions of a task count, and what becomes of all others."""

import asyncio
from typing import Any

import pytest

from support.task_clients import ACK, TaskClient, accept, serving
from weft import Context, InputRequired, Limits, Server
from weft.backends.memory import MemoryBackend
from weft.errors import QuestionFailed
from weft.server.asking.questions import ask_form

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ADA, BOB = accept(name="Ada"), accept(name="Bob")


def make(**options: Any) -> Server:
    server = Server("studio", **options)

    @server.tool(task="optional")
    async def pair(ctx: Context) -> str:
        one, two = await asyncio.gather(ctx.elicit("First?", FORM, key="one"), ctx.elicit("Second?", FORM, key="two"))
        return f"{one.value['name']} {two.value['name']}"

    @server.tool(task="optional")
    async def again(ctx: Context) -> str:
        """Ask under the same key until the name is right: another question each time."""
        said = "nothing"
        for _ in range(4):
            said = (await ctx.elicit(f"Not {said}. Who?", FORM, key="who")).value["name"]
            if said == "Eve":
                break
        return said

    @server.tool(task="optional")
    async def stubborn(ctx: Context) -> str:
        """Return questions instead of awaiting them."""
        tries = (ctx.request_state or 0) + 1
        if not ctx.has_input_response("name"):
            raise InputRequired({"name": ask_form("Who?", FORM)}, state=tries)
        return f"{ctx.input_responses['name']['content']['name']} after {tries}"

    @server.tool(task="optional")
    async def maybe(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", FORM, key="who")
        return answer.action

    @server.tool(task="optional")
    async def chat(ctx: Context) -> str:
        try:
            said = await ctx.sample("A word?", max_tokens=5, key="word")
        except QuestionFailed:
            return "unsaid"
        roots = await ctx.list_roots()
        return f"{said.content.text} {roots[0].uri}"

    return server


@pytest.fixture
async def client() -> Any:
    async with serving(make()) as one:
        yield one


def text(state: Any) -> str:
    return state["result"]["content"][0]["text"]


@pytest.mark.spec("TASK-19")
async def test_an_update_is_answered_with_nothing(client: TaskClient) -> None:
    id = await client.start("maybe")
    await client.asked(id)
    assert await client.update(id, {"who": ADA}) == ACK
    assert text(await client.until(id)) == "accept"
    assert await client.update(id, {"who": ADA}) == ACK  # also when it has ended


@pytest.mark.spec("TASK-20b", "TASK-12a")
async def test_some_answers_are_taken_at_once_and_the_rest_is_still_asked(client: TaskClient) -> None:
    """The very next request sees it, although the handler has not run yet."""
    id = await client.start("pair")
    questions = await client.asked(id, 2)
    assert await client.update(id, {"one": ADA}) == ACK
    state = await client.get(id)
    assert (state["status"], state["inputRequests"]) == ("input_required", {"two": questions["two"]})
    for _ in range(50):  # the handler runs meanwhile, and asks the same
        assert (await client.get(id))["inputRequests"] == {"two": questions["two"]}
    assert await client.update(id, {"two": BOB}) == ACK
    state = await client.get(id)
    assert (state["status"] in ("working", "completed"), "inputRequests" in state) == (True, False)
    assert text(await client.until(id)) == "Ada Bob"


@pytest.mark.spec("TASK-20b")
async def test_answers_to_all_questions_may_come_in_any_order_and_at_once(client: TaskClient) -> None:
    ids = [await client.start("pair") for _ in range(3)]
    for id in ids:
        await client.asked(id, 2)
    await client.update(ids[0], {"two": BOB, "one": ADA})
    await asyncio.gather(client.update(ids[1], {"one": ADA}), client.update(ids[1], {"two": BOB}))
    await client.update(ids[2], {"two": BOB})
    await client.update(ids[2], {"one": ADA})
    assert [text(await client.until(id)) for id in ids] == ["Ada Bob"] * 3


@pytest.mark.spec("TASK-20a", "TASK-19")
@pytest.mark.parametrize(
    "value", [{"ignored": True}, None, 7, "text", [], {}, {"action": "accept", "content": 7}, {"a": {"b": [None] * 9}}]
)
async def test_unknown_keys_are_ignored_whatever_their_values(client: TaskClient, value: Any) -> None:
    id = await client.start("maybe")
    before = await client.asked(id)
    for key in ("unknown-key", "", "who~2", "x" * 300, "Grüße", "__proto__"):
        assert await client.update(id, {key: value}) == ACK
    assert await client.asked(id) == before
    assert await client.update(id, {"unknown-key": value, "who": ADA}) == ACK  # the known one counts
    assert text(await client.until(id)) == "accept"
    assert await client.update(id, {"unknown-key": value}) == ACK


@pytest.mark.spec("TASK-20a")
async def test_a_second_answer_is_ignored(client: TaskClient) -> None:
    id = await client.start("pair")
    await client.asked(id, 2)
    await client.update(id, {"one": ADA})
    for late in (BOB, {"action": "decline"}, 7, None):
        assert await client.update(id, {"one": late}) == ACK
    await client.update(id, {"two": BOB})
    assert text(await client.until(id)) == "Ada Bob"


@pytest.mark.spec("TASK-20a")
async def test_of_two_answers_at_the_same_time_one_counts(client: TaskClient) -> None:
    id = await client.start("again")
    await client.asked(id)
    answers = [accept(name="Eve"), accept(name="Eve")]
    assert await asyncio.gather(*(client.update(id, {"who": answer}) for answer in answers)) == [ACK, ACK]
    assert text(await client.until(id)) == "Eve"


@pytest.mark.spec("TASK-18", "TASK-20a")
async def test_a_key_is_never_used_for_a_second_question(client: TaskClient) -> None:
    """The handler asks something else under the same key. For the client, it has another one."""
    id, keys, told = await client.start("again"), list[str](), "nothing"
    for name in ("Ada", "Bob", "Eve"):
        [(key, question)] = (await client.asked(id, after=keys[-1:])).items()
        assert question["params"]["message"] == f"Not {told}. Who?"
        assert key not in keys
        for old in keys:  # superseded: ignored, and not taken for an answer to the new question
            assert await client.update(id, {old: accept(name="Mallory")}) == ACK
        assert (await client.asked(id)).keys() == {key}
        keys.append(key)
        told = name
        await client.update(id, {key: accept(name=name)})
    assert len(set(keys)) == 3
    assert text(await client.until(id)) == "Eve"


@pytest.mark.spec("TASK-20b", "TASK-19")
@pytest.mark.parametrize("params", [{}, {"inputResponses": {}}, {"inputResponses": None}])
async def test_an_update_without_answers_changes_nothing(client: TaskClient, params: Any) -> None:
    id = await client.start("maybe")
    await client.asked(id)
    before = await client.get(id)
    assert (await client.result("tasks/update", {"taskId": id, **params}))["resultType"] == "complete"
    assert await client.get(id) == before


@pytest.mark.spec("TASK-19", "new-23")
@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        {},
        {"action": "maybe"},
        {"action": "accept"},
        {"action": "accept", "content": {"name": 7}},
        {"action": "accept", "content": {}},
        {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"},
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(client: TaskClient, answer: Any) -> None:
    id = await client.start("pair")
    before = await client.asked(id, 2)
    error = await client.error("tasks/update", {"taskId": id, "inputResponses": {"one": answer, "two": BOB}})
    assert error["code"] == -32602
    assert "'one'" in error["message"]
    assert await client.asked(id, 2) == before  # nothing of a refused update counts
    await client.update(id, {"one": ADA, "two": BOB})
    assert text(await client.until(id)) == "Ada Bob"


@pytest.mark.spec("TASK-19")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_refuse(client: TaskClient, action: str) -> None:
    id = await client.start("maybe")
    await client.asked(id)
    assert await client.update(id, {"who": {"action": action}}) == ACK
    assert text(await client.until(id)) == action


@pytest.mark.spec("TASK-12a", "TASK-19")
async def test_questions_of_all_kinds_are_asked_and_answered_alike(client: TaskClient) -> None:
    id = await client.start("chat")
    [(key, question)] = (await client.asked(id)).items()
    assert (key, question["method"], question["params"]["maxTokens"]) == ("word", "sampling/createMessage", 5)
    said = {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"}
    await client.update(id, {key: said})
    [(key, question)] = (await client.asked(id, after=["word"])).items()
    assert question["method"] == "roots/list"
    await client.update(id, {key: {"roots": [{"uri": "file:///home"}]}})
    assert text(await client.until(id)) == "yes file:///home"


@pytest.mark.spec("TASK-12a", "TASK-35")
async def test_a_handler_that_returns_questions_keeps_its_state_on_the_server(client: TaskClient) -> None:
    id = await client.start("stubborn")
    await client.asked(id)
    assert "requestState" not in await client.get(id)
    await client.update(id, {"name": ADA})
    assert text(await client.until(id)) == "Ada after 2"


@pytest.mark.spec("TASK-12c", "TASK-14")
async def test_what_the_client_cannot_answer_is_not_asked(client: TaskClient) -> None:
    """The task then ends as the plain call would: with the error about the missing capability."""
    meta = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
    handle = await client.result("tools/call", {"name": "maybe", "arguments": {}}, meta=meta)
    failed = await client.until(handle["taskId"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", -32021)
    assert failed["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_too_many_answers_in_one_update_are_refused() -> None:
    async with serving(make(limits=Limits(input_responses=3))) as client:
        id = await client.start("maybe")
        before = await client.asked(id)
        three = {f"key {number}": None for number in range(3)}
        assert await client.update(id, three) == ACK
        error = await client.error("tasks/update", {"taskId": id, "inputResponses": {**three, "who": ADA}})
        assert (error["code"], "at most 3" in error["message"]) == (-32602, True)
        assert await client.asked(id) == before


@pytest.mark.spec("TASK-19", "TASK-09")
async def test_any_worker_takes_an_answer() -> None:
    backend = MemoryBackend()
    here, there = make(backend=backend), make(backend=backend)
    async with serving(here, there) as client:
        other = client.on(there.asgi())
        id = await client.start("pair")
        await other.asked(id, 2)
        assert await other.update(id, {"one": ADA}) == ACK
        assert (await client.get(id))["inputRequests"].keys() == {"two"}
        assert await client.update(id, {"two": BOB}) == ACK
        assert text(await other.until(id)) == "Ada Bob"
