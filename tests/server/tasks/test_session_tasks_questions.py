"""Questions of tasks in a session: when they come, to whom, and what becomes of the answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import Exchange, Reply, accept, answer_to, eventually
from support.session_tasks import CAPABILITIES, RELATED, STATUS, AppTaskPeer, Workshop
from weft import Context, Limits, QuestionFailed, TaskStore
from weft.backends.memory import MemoryBackend
from weft.server.tasks import waiting
from weft.server.tasks.records import TaskRecord

CREATE = "elicitation/create"
MODEL = {"role": "assistant", "content": {"type": "text", "text": "Morning"}, "model": "m"}


@pytest.fixture
async def shop() -> AsyncIterator[Workshop]:
    async with Workshop() as made:
        yield made


@pytest.fixture
async def client(shop: Workshop) -> AppTaskPeer:
    return await shop.client()


async def asked(client: AppTaskPeer, id: str, method: str = CREATE) -> tuple[Exchange, Any]:
    """Begin to wait for the result of a task. Return the stream, and the first question on it."""
    reading = await (await client.wait(id))
    return reading, await reading.question(method)


# When they come.


@pytest.mark.spec("L11-u3")
async def test_a_task_that_asks_waits_for_input(client: AppTaskPeer) -> None:
    """Nothing is sent before the client calls `tasks/result`."""
    task = await client.start("frame", photo="attic")
    state = await client.reach(task["taskId"], "input_required")
    assert "statusMessage" not in state
    reading, question = await asked(client, task["taskId"])
    assert question["params"]["message"] == "Which wood for attic?"
    assert reading.is_stream


@pytest.mark.spec("L11-u3")
async def test_a_client_may_wait_before_the_task_asks(shop: Workshop, client: AppTaskPeer) -> None:
    """The status is told on the same stream, before the question."""
    task = await client.start("late")
    waiting = await client.wait(task["taskId"])
    shop.released.set()
    reading = await waiting
    told = [await reading.message(), await reading.message()]
    assert [one["method"] for one in told] == [STATUS, CREATE]
    assert told[0]["params"]["status"] == "input_required"
    await client.post(accept(told[1], "yes"))
    assert await reading.text() == "yes"


@pytest.mark.spec("L11-47a", "L11-u3")
@pytest.mark.parametrize(
    ("tool", "method", "answer", "text"),
    [
        ("title", "sampling/createMessage", MODEL, "Morning"),
        ("visit", CREATE, {"action": "decline"}, "decline"),
        ("where", "roots/list", {"roots": [{"uri": "file:///desk"}]}, "file:///desk"),
    ],
)
async def test_each_kind_of_question_names_its_task(
    client: AppTaskPeer, tool: str, method: str, answer: Any, text: str
) -> None:
    task = await client.start(tool)
    reading, question = await asked(client, task["taskId"], method)
    assert question["params"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
    await client.post(answer_to(question, answer))
    assert await reading.text() == text


@pytest.mark.spec("L11-47a")
async def test_questions_of_plain_calls_name_no_task(client: AppTaskPeer) -> None:
    question = await (await client.call("frame", photo="hall")).question()
    assert "_meta" not in question["params"]
    await client.post(accept(question, "oak"))


@pytest.mark.spec("L11-42b")
@pytest.mark.parametrize("declared", [{}, {"tasks": {"requests": {"elicitation": {"create": {}}}}}])
async def test_the_server_asks_for_no_tasks_of_the_client(shop: Workshop, declared: Any) -> None:
    client = await shop.client(capabilities={**CAPABILITIES, **declared})
    task = await client.start("frame", photo="attic")
    _, question = await asked(client, task["taskId"])
    assert "task" not in question["params"]


async def test_what_the_client_cannot_answer_is_not_asked(shop: Workshop) -> None:
    """The error says what the client lacks, and not that the server runs without sessions."""
    client = await shop.client(capabilities={})
    task = await client.start("frame", photo="attic")
    text = await (await (await client.wait(task["taskId"]))).text()
    assert "the client must declare the capability `elicitation.form`" in text


# What becomes of the answers.


@pytest.mark.spec("L11-u3")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_the_user_may_decline(client: AppTaskPeer, action: str) -> None:
    task = await client.start("frame", photo="attic")
    reading, question = await asked(client, task["taskId"])
    await client.post(answer_to(question, {"action": action}))
    assert await reading.text() == "attic without a frame"


@pytest.mark.spec("L11-u3")
async def test_the_task_waits_until_all_answers_are_there(client: AppTaskPeer) -> None:
    task = await client.start("hang")
    reading, first = await asked(client, task["taskId"])
    second = await reading.question()
    assert {first["params"]["message"], second["params"]["message"]} == {"At which height?", "On which wall?"}
    answers = {"At which height?": "150", "On which wall?": "north"}
    await client.post(accept(first, answers[first["params"]["message"]]))
    assert (await client.state(task["taskId"]))["status"] == "input_required"
    await client.post(accept(second, answers[second["params"]["message"]]))
    assert await reading.text() == "150 on north"


@pytest.mark.spec("L11-u3")
async def test_the_status_is_working_again_after_the_answer(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("frame_slowly")
    reading, question = await asked(client, task["taskId"])
    await client.post(accept(question, "oak"))
    assert (await reading.message())["params"]["status"] == "working"
    assert (await client.state(task["taskId"]))["status"] == "working"
    shop.released.set()
    assert await reading.text() == "oak"


async def test_an_error_of_the_client_is_the_handlers_to_handle(client: AppTaskPeer) -> None:
    task = await client.start("frame", photo="attic")
    reading, question = await asked(client, task["taskId"])
    await client.post({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "nobody is here"}})
    assert "nobody is here" in await reading.text()
    assert (await client.state(task["taskId"]))["status"] == "failed"


@pytest.mark.parametrize("content", [{"value": 5}, {}, "oak"])
async def test_an_answer_that_does_not_fit_is_a_failed_question(client: AppTaskPeer, content: Any) -> None:
    task = await client.start("frame", photo="attic")
    reading, question = await asked(client, task["taskId"])
    await client.post(answer_to(question, {"action": "accept", "content": content}))
    assert "The client's answer cannot be used" in await reading.text()


async def test_an_answer_that_is_too_long_is_a_failed_question() -> None:
    async with Workshop(limits=Limits(task_bytes=1000)) as shop:
        client = await shop.client()
        task = await client.start("frame", photo="attic")
        reading, question = await asked(client, task["taskId"])
        await client.post(accept(question, "x" * 2000))
        assert "the answers are too long" in await reading.text()


async def test_an_answer_that_could_not_be_stored_is_stored_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is not asked again."""
    monkeypatch.setattr(waiting, "_AGAIN_SECONDS", 0.01)
    backend = YieldingBackend()
    async with Workshop(backend=backend) as shop:
        client = await shop.client()
        task = await client.start("chain")
        reading, question = await asked(client, task["taskId"])
        swap, tried = backend.store.swap, asyncio.Event()

        async def fail(*_: Any, **__: Any) -> bool:
            tried.set()
            raise ConnectionError("the backend is away")

        backend.store.swap = fail
        await client.post(accept(question, "a"))
        await tried.wait()
        await shop.server.engine.tasks._records.tell(task["taskId"])  # as with every change
        backend.store.swap = swap
        await client.post(accept(await reading.question(), "b"))
        assert await reading.text() == "a b"
    assert "The answer to a question of a task is not stored yet: the backend is away" in caplog.text


async def test_an_answer_that_is_being_stored_is_not_lost_when_the_waiting_ends() -> None:
    """Else the task would be assigned to this worker, which would never run it."""
    backend = YieldingBackend()
    async with Workshop(backend=backend) as shop:
        client = await shop.client()
        task = await client.start("frame", photo="attic")
        _, question = await asked(client, task["taskId"])
        publish, slow, go_on = backend.bus.publish, asyncio.Event(), asyncio.Event()

        async def held(topic: str, message: bytes) -> Any:
            heard = await publish(topic, message)
            if topic.endswith(task["taskId"]):
                slow.set()
                await go_on.wait()
            return heard

        backend.bus.publish = held
        await client.post(accept(question, "oak"))
        await slow.wait()
        await client.give_up()
        go_on.set()
        assert (await client.reach(task["taskId"], "completed"))["status"] == "completed"
        assert shop.said == ["frame attic"]


# To whom.


async def test_only_one_of_two_calls_that_wait_is_asked(shop: Workshop, client: AppTaskPeer) -> None:
    """The newest. The older one gets the result, too."""
    task = await client.start("late")
    first, second = await client.wait(task["taskId"]), await client.wait(task["taskId"])
    shop.released.set()
    newest = await second
    await client.post(accept(await newest.question(), "yes"))
    assert [await newest.text(), await (await first).text()] == ["yes", "yes"]
    methods = {event.data["method"] for event in (await first).events if event.data and "method" in event.data}
    assert methods == {STATUS}


@pytest.mark.spec("L11-u3", "L11-45b")
async def test_a_client_that_has_closed_its_stream_is_asked_on_the_next_one(client: AppTaskPeer) -> None:
    """As the specification draws it: the client closes the stream after its answer, polls, and waits again."""
    task = await client.start("chain")
    reading, question = await asked(client, task["taskId"])
    await reading.close()
    await client.post(accept(question, "a"))
    await client.reach(task["taskId"], "input_required")
    reading, question = await asked(client, task["taskId"])
    assert question["params"]["message"] == "Number 1?"
    await client.post(accept(question, "b"))
    assert await reading.text() == "a b"


async def test_a_question_that_another_call_asks_is_withdrawn(client: AppTaskPeer) -> None:
    task = await client.start("frame", photo="attic")
    old, question = await asked(client, task["taskId"])
    new, again = await asked(client, task["taskId"])
    assert question["id"] != again["id"]
    withdrawn = await old.question("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    await client.post(accept(question, "too late"))
    await client.post(accept(again, "oak"))
    assert await new.text() == "attic in oak"


async def test_a_call_that_is_cancelled_lets_the_older_one_ask(client: AppTaskPeer) -> None:
    task = await client.start("frame", photo="attic")
    old, _ = await asked(client, task["taskId"])
    await asked(client, task["taskId"])
    await client.give_up()
    await client.post(accept(await old.question(), "oak"))
    assert await old.text() == "attic in oak"


async def test_a_client_that_cannot_answer_is_not_asked(shop: Workshop) -> None:
    """Nor does it keep another one from being asked."""
    client, watcher = await shop.client(), await shop.client(capabilities={"roots": {}})
    task = await client.start("chain")
    await client.reach(task["taskId"], "input_required")
    watching = await (await watcher.wait(task["taskId"]))
    assert (await watching.message())["method"] == STATUS
    old, question = await asked(client, task["taskId"])
    more = await watcher.wait(task["taskId"])
    assert (await (await more).message())["method"] == STATUS
    await client.post(accept(question, "a"))
    await client.post(accept(await old.question(), "b"))
    assert [await old.text(), await watching.text()] == ["a b", "a b"]
    assert {event.data.get("method") for event in watching.events if event.data} == {STATUS, None}


@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}])
async def test_a_handler_learns_that_its_client_cannot_be_asked(shop: Workshop, capabilities: Any) -> None:
    client = await shop.client(capabilities=capabilities)
    task = await client.start("frame", photo="attic")
    state = await client.reach(task["taskId"], "failed")
    assert "elicitation" in state["statusMessage"]


async def test_a_client_without_streams_is_asked_on_its_other_stream(client: AppTaskPeer) -> None:
    other = await client.get()
    task = await client.start("frame", photo="attic")
    waiting = await client.wait(task["taskId"], Accept="application/json")
    await client.post(accept(await other.question(), "oak"))
    assert (await waiting).is_stream is False
    assert await (await waiting).text() == "attic in oak"


# The end of a session.


@pytest.mark.spec("L11-u3")
async def test_a_task_asks_again_when_its_session_has_ended(shop: Workshop, client: AppTaskPeer) -> None:
    """The question is not answered by the end of the session."""
    task = await client.start("frame", photo="attic")
    await asked(client, task["taskId"])
    assert (await client.delete()).status == 204
    later = await shop.client()
    assert (await later.state(task["taskId"]))["status"] == "input_required"
    reading, question = await asked(later, task["taskId"])
    await later.post(accept(question, "oak"))
    assert await reading.text() == "attic in oak"


async def test_a_reader_that_has_lost_its_stream_finds_the_question_there(client: AppTaskPeer) -> None:
    """A lost connection cancels nothing: the client may read on where it was."""
    task = await client.start("chain")
    reading, question = await asked(client, task["taskId"])
    last = reading.events[-1].id
    await reading.close()
    await client.post(accept(question, "a"))
    resumed = await client.get(last)
    await client.post(accept(await resumed.question(), "b"))
    assert await resumed.text() == "a b"


# Silence is no answer.


def let_time_run_out(shop: Workshop, client: AppTaskPeer, question: Any) -> None:
    """Let `ask_seconds` be over for a question that was sent to a client."""
    [session] = [one for one in shop.server.engine.sessions._all() if one.id == client.session]
    deadline = session.outstanding._waiting[question["id"]].deadline
    assert deadline is not None
    deadline.reschedule(asyncio.get_running_loop().time())


def questions_on(stream: Exchange) -> list[str]:
    """The texts of the questions that were read from a stream."""
    sent = [event.data for event in stream.events if event.data and event.data.get("method") == CREATE]
    return [question["params"]["message"] for question in sent]


async def test_a_question_that_a_client_does_not_answer_in_time_is_asked_by_the_next_call(
    shop: Workshop, client: AppTaskPeer
) -> None:
    """The client may be gone. The call that has asked waits on, and does not ask the same again."""
    later = await shop.client()
    task = await client.start("chain")
    silent, question = await asked(client, task["taskId"])
    let_time_run_out(shop, client, question)
    withdrawn = await silent.question("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == question["id"]
    for _ in range(3):
        await shop.server.engine.tasks._records.tell(task["taskId"])  # as with every change
        assert (await client.state(task["taskId"]))["status"] == "input_required"
    reading, question = await asked(later, task["taskId"])
    await later.post(accept(question, "a"))
    await later.post(accept(await reading.question(), "b"))
    assert [await reading.text(), await silent.text()] == ["a b", "a b"]
    assert questions_on(silent) == ["Number 0?"]


async def test_an_older_call_asks_if_the_newest_gets_no_answer(shop: Workshop, client: AppTaskPeer) -> None:
    task = await client.start("frame", photo="attic")
    old, _ = await asked(client, task["taskId"])
    other = await shop.client()
    new, question = await asked(other, task["taskId"])
    let_time_run_out(shop, other, question)
    await client.post(accept(await old.question(), "oak"))
    assert [await old.text(), await new.text()] == ["attic in oak", "attic in oak"]


async def test_only_the_question_without_an_answer_is_asked_again(shop: Workshop, client: AppTaskPeer) -> None:
    """The other one is answered on the same stream, after the time of the first has run out."""
    task = await client.start("hang")
    silent, first = await asked(client, task["taskId"])
    second = await silent.question()
    let_time_run_out(shop, client, first)
    withdrawn = await silent.question("notifications/cancelled")
    assert withdrawn["params"]["requestId"] == first["id"]
    await client.post(accept(second, "there"))
    async with asyncio.timeout(30):
        while len((await read(shop, task["taskId"])).questions) == 2:  # noqa: ASYNC110 - nobody tells a test
            await asyncio.sleep(0.005)
    reading, again = await asked(client, task["taskId"])
    assert again["params"] == first["params"]
    await client.post(accept(again, "here"))
    assert set((await reading.text()).split(" on ")) == {"here", "there"}
    assert (len(questions_on(reading)), len(questions_on(silent))) == (1, 2)


async def read(shop: Workshop, id: str) -> TaskRecord:
    record = await shop.server.engine.tasks._records.read(id)
    assert record is not None
    return record


async def test_a_client_that_takes_no_stream_does_not_fail_the_task(client: AppTaskPeer) -> None:
    """A later call with a stream asks."""
    task = await client.start("frame", photo="attic")
    await client.reach(task["taskId"], "input_required")
    without = await client.wait(task["taskId"], Accept="application/json")
    reading, question = await asked(client, task["taskId"])
    await client.post(accept(question, "oak"))
    assert [await reading.text(), await (await without).text()] == ["attic in oak", "attic in oak"]


async def test_a_worker_that_stops_does_not_answer_for_the_client() -> None:
    """After `drain_seconds`, no more answers are accepted there. Another worker asks again."""
    backend = MemoryBackend()
    async with (
        Workshop(backend=backend, limits=Limits(drain_seconds=0.05)) as here,
        Workshop(backend=backend) as there,
    ):
        client, other = await here.client(), await there.client()
        task = await client.start("frame", photo="attic")
        await asked(client, task["taskId"])
        here.server.engine.close_streams()
        [session] = here.server.engine.sessions._all()
        await eventually(lambda: session.outstanding._closed is not None and not len(session.outstanding))
        for _ in range(100):  # turns of the event loop, in which nothing is stored
            await asyncio.sleep(0)
        await here.server.stop()
        assert (await other.state(task["taskId"]))["status"] == "input_required"
        reading, question = await asked(other, task["taskId"])
        await other.post(accept(question, "oak"))
        assert await reading.text() == "attic in oak"


async def test_a_program_learns_that_a_client_without_a_task_does_not_answer(
    shop: Workshop, client: AppTaskPeer
) -> None:
    """Nobody else will ask: the client does not know that there is a task."""
    jobs: list[str] = []

    @shop.server.tool(task="optional")
    async def print_it(ctx: Context) -> str:
        return ctx.task.external(jobs.append)

    calling = asyncio.create_task(client.call("print_it"))
    await eventually(lambda: jobs)
    store = TaskStore(shop.server.backend)
    asking = asyncio.create_task(store.ask(jobs[0], "Which paper?", Reply))
    reading = await calling
    let_time_run_out(shop, client, await reading.question())
    with pytest.raises(QuestionFailed, match="did not answer"):
        await asking
    await store.complete(jobs[0], "printed")
    assert await reading.text() == "printed"
