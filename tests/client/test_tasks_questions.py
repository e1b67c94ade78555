"""Questions of a task: answered once, by the functions that answer all questions, or by the program itself."""

import asyncio
from typing import Any

import pytest

from support.raw_sessions import eventually
from support.task_servers import NAME, Refusal, TaskServer, done, form, result, state
from weft import (
    CannotAnswer,
    Client,
    ClientLimits,
    Context,
    InvalidAnswer,
    RemoteError,
    Server,
    Task,
    TaskEnded,
    UsageError,
)
from weft.client import FormQuestion, PendingQuestions
from weft.eras import client_tasks
from weft.types import CreateMessageResult, TextContent
from weft.types.tasks import RELATED_TASK_KEY

LONG = 30
ANN = {"action": "accept", "content": {"name": "Ann"}}


def asking(**questions: Any) -> dict[str, Any]:
    return state("input_required", inputRequests=questions)


def known_questions(client: Client) -> list[str]:
    """The keys of the questions that the program is being asked."""
    return [key for known in client._tasks.all.values() for key in known.asking]


class Answering(TaskServer):
    """A server that is done when it has all answers. An answered question may stay in the state for a while."""

    def __init__(self, *rounds: dict[str, Any], lingers: int = 0) -> None:
        super().__init__(asking(**rounds[0]))
        self._rounds, self._lingers = list(rounds), lingers
        self.on["tasks/get"] = self._get

    def _get(self, _: Any) -> dict[str, Any]:
        open_questions = {key: one for key, one in self._rounds[0].items() if key not in self.answers}
        if not open_questions and self._lingers:
            self._lingers -= 1
        elif not open_questions:
            self._rounds = self._rounds[1:] or [{}]
            self.task = asking(**self._rounds[0]) if self._rounds[0] else done()
        elif len(open_questions) < len(self._rounds[0]):
            self.task = asking(**open_questions)
        return {**self.task, "resultType": "complete"}


@pytest.mark.spec("TASK-17a", "TASK-17b", "TASK-17c", "TASK-35", "new-15")
@pytest.mark.parametrize("lingers", [0, 5])
async def test_each_question_is_asked_and_answered_once(lingers: int) -> None:
    """With the function, the checks and the name of the server that a direct question has."""
    asked: list[FormQuestion] = []

    def elicit(question: FormQuestion) -> dict[str, Any]:
        asked.append(question)
        return {"name": question.message}

    server = Answering({"a": form("A?"), "b": form("B?")}, {"c": form("C?")}, lingers=lingers)
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        assert (await client.call_tool("t")).text == "done"
    assert sorted(question.message for question in asked) == ["A?", "B?", "C?"]
    assert all(question.server.startswith("fake (") for question in asked)
    updates = server.calls("tasks/update")
    keys = [key for update in updates for key in update["params"]["inputResponses"]]
    assert sorted(keys) == ["a", "b", "c"]
    assert server.answers["c"] == {"action": "accept", "content": {"name": "C?"}}
    assert all(update["params"].keys() == {"taskId", "inputResponses", "_meta"} for update in updates)
    assert all(RELATED_TASK_KEY not in update["params"]["_meta"] for update in updates)


async def test_a_quick_answer_does_not_wait_for_a_slow_one() -> None:
    slow = asyncio.Event()

    async def elicit(question: FormQuestion) -> dict[str, Any]:
        if question.message == "slow?":
            await slow.wait()
        return {"name": question.message}

    server = Answering({"a": form("slow?"), "b": form("quick?")})
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await eventually(lambda: "b" in server.answers)
        assert "a" not in server.answers
        slow.set()
        assert (await calling).text == "done"


@pytest.mark.spec("TASK-17a")
async def test_all_kinds_of_questions_are_answered() -> None:
    page = {"mode": "url", "message": "Log in", "url": "https://example.com/in", "elicitationId": "e"}
    sampling = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5}
    server = Answering(
        {
            "form": form(),
            "page": {"method": "elicitation/create", "params": page},
            "model": {"method": "sampling/createMessage", "params": sampling},
            "roots": {"method": "roots/list"},
        }
    )
    async with (
        asyncio.timeout(LONG),
        Client(
            server,
            elicit=lambda _: "decline",
            elicit_url=lambda _: True,
            sample=lambda _: "Hello",
            roots=["file:///tmp"],
        ) as client,
    ):
        assert (await client.call_tool("t")).text == "done"
    assert server.answers["form"] == {"action": "decline"}
    assert server.answers["page"] == {"action": "accept"}
    assert server.answers["model"]["content"] == {"type": "text", "text": "Hello"}
    assert [root["uri"] for root in server.answers["roots"]["roots"]] == ["file:///tmp"]


@pytest.mark.parametrize(
    ("question", "error", "text"),
    [
        ({"method": "sampling/createMessage", "params": {}}, CannotAnswer, "this client does not offer"),
        ({"method": "tools/call", "params": {}}, InvalidAnswer, "which the protocol forbids"),
        (form("raise"), CannotAnswer, "raised ValueError"),
        (form("wrong"), CannotAnswer, "name"),
        ({"method": "elicitation/create", "params": {"message": "?"}}, CannotAnswer, "requestedSchema"),
    ],
)
async def test_a_question_without_an_answer_ends_the_call_and_cancels_the_task(
    question: Any, error: type[Exception], text: str
) -> None:
    def elicit(one: FormQuestion) -> dict[str, Any]:
        if one.message == "raise":
            raise ValueError("no")
        return {"name": 7}

    server = TaskServer(asking(a=question))
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        with pytest.raises(error, match=text):
            await client.call_tool("t")
    assert len(server.calls("tasks/cancel")) == 1
    assert not server.answers


async def test_a_handle_raises_and_leaves_the_task_to_another_attempt() -> None:
    """The question was not answered, so it is asked again when the task is followed again."""
    asked = 0

    def elicit(_: FormQuestion) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ValueError("no")
        return {"name": "Ann"}

    server = Answering({"a": form()})
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        handle = await client.start_tool("t")
        waiting = [asyncio.create_task(handle.result()) for _ in range(2)]
        for failure in await asyncio.gather(*waiting, return_exceptions=True):  # all who wait are told
            assert isinstance(failure, CannotAnswer)
        assert not server.calls("tasks/cancel")
        assert (await handle.result()).text == "done"
    assert (asked, server.answers["a"]) == (2, ANN)


async def test_an_answer_that_the_server_refuses_is_an_error() -> None:
    server = Answering({"a": form()})
    server.on["tasks/update"] = lambda _: Refusal(-32602, "not this name")
    async with asyncio.timeout(LONG), Client(server, elicit=lambda _: {"name": "Ann"}) as client:
        handle = await client.start_tool("t")
        with pytest.raises(RemoteError, match="not this name"):
            await handle.result()
        del server.on["tasks/update"]
        assert (await handle.result()).text == "done"  # the question was asked again
    assert server.answers == {"a": ANN}


@pytest.mark.parametrize("end", ["completed", "cancelled", "another", "goes on"])
async def test_an_answer_that_comes_too_late_is_no_error(end: str) -> None:
    """The task has ended meanwhile, or somebody else has answered. How it ends counts, and it is not cancelled."""
    ends = {
        "completed": done("the end"),
        "cancelled": state("cancelled"),
        "another": asking(b=form("B?")),
        "goes on": state(),
    }
    server = TaskServer(asking(a=form("A?")) | {"pollIntervalMs": 1000})

    def elicit(question: FormQuestion) -> dict[str, str]:
        if question.message == "A?":
            server.task = ends[end]
        return {"name": question.message}

    def update(message: dict[str, Any]) -> Any:
        if end != "another" or "a" in message["params"]["inputResponses"]:
            if end == "goes on":
                asyncio.get_running_loop().call_later(0.2, setattr, server, "task", done("the end"))
            return Refusal(-32602, "it is not asked")
        server.task = done("the end")
        return {"resultType": "complete"}

    server.on["tasks/update"] = update
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        if end == "cancelled":
            with pytest.raises(TaskEnded, match="was cancelled"):
                await client.call_tool("t")
        else:
            assert (await client.call_tool("t")).text == "the end"
    assert not server.calls("tasks/cancel")


async def test_who_stops_to_wait_stops_answering() -> None:
    stopped = asyncio.Event()

    async def elicit(_: FormQuestion) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    server = Answering({"a": form()})
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        handle = await client.start_tool("t")
        waiting = asyncio.create_task(handle.result())
        await eventually(lambda: known_questions(client))
        waiting.cancel()
        await asyncio.wait([waiting])
        await stopped.wait()
        assert not known_questions(client)
        client._handlers.elicit = lambda _: {"name": "Ann"}
        assert (await handle.result()).text == "done"


async def test_the_time_of_the_user_is_not_that_of_the_call() -> None:
    go_on = asyncio.Event()

    async def elicit(_: FormQuestion) -> dict[str, Any]:
        await go_on.wait()
        return {"name": "Ann"}

    server = Answering({"a": form()})
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        calling = asyncio.create_task(client.call_tool("t", timeout=0.5))
        await server.asked("tasks/get", 14)  # each after 50 ms
        go_on.set()
        assert (await calling).text == "done"
    times = server.times
    assert times["tasks/update"][0] - times["tools/call"][0] > 0.5


async def test_questions_without_end_are_ended() -> None:
    """At once, and in the course of a task."""
    many = TaskServer(asking(**{f"q{number}": form() for number in range(101)}))
    limits = ClientLimits(input_requests=100)
    async with asyncio.timeout(LONG), Client(many, elicit=lambda _: {"name": "Ann"}, limits=limits) as client:
        with pytest.raises(InvalidAnswer, match="asks 101 questions at once"):
            await client.call_tool("t")
    assert len(many.calls("tasks/cancel")) == 1


@pytest.mark.security("D12")
@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("_MOST_QUESTIONS", 3, "has asked more than 3 questions"),
        ("_MOST_KEYS", 8, "have more than 8 characters in total"),
    ],
)
@pytest.mark.parametrize("is_manual", [False, True])
async def test_a_task_has_a_limit_of_questions(
    is_manual: bool, limit: str, most: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client remembers the keys of those that were answered, also by the program itself."""
    monkeypatch.setattr(f"weft.client.requests.tasks.{limit}", most)
    server = Answering(*({f"q{number}": form()} for number in range(9)))
    options: dict[str, Any] = {"manual_input": True} if is_manual else {"elicit": lambda _: {"name": "Ann"}}
    async with asyncio.timeout(LONG), Client(server, **options) as client:
        handle = await client.start_tool("t")

        async def answer_all() -> None:
            for _ in range(10):
                try:
                    await handle.result()
                except PendingQuestions as asked:
                    await handle.answer(dict.fromkeys(asked.requests, ANN))

        with pytest.raises(InvalidAnswer, match=said):
            await answer_all()
        assert len(server.answers) == (3 if limit == "_MOST_QUESTIONS" else 4)
        assert client._tasks.known(handle.id or "").answered == server.answers.keys()


@pytest.mark.security("D12")
async def test_a_key_has_a_limit_of_length() -> None:
    longest = client_tasks._LONGEST_ID
    server = Answering({"k" * longest: form()}, {"k" * (longest + 1): form()})
    async with asyncio.timeout(LONG), Client(server, elicit=lambda _: {"name": "Ann"}) as client:
        with pytest.raises(InvalidAnswer, match=f"The key of a question .* longer than {longest} characters"):
            await client.call_tool("t")
    assert [len(key) for key in server.answers] == [longest]
    assert len(server.calls("tasks/cancel")) == 1


# --- answered by the program


@pytest.mark.spec("TASK-17b", "TASK-17c")
async def test_the_program_answers_itself_in_parts() -> None:
    """The answered question stays in the state for a while, and is not shown again."""
    server = Answering({"a": form("A?"), "b": form("B?")}, {"c": form("C?")}, lingers=3)
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        with pytest.raises(PendingQuestions) as asked:
            await client.call_tool("t")
        assert asked.value.requests.keys() == {"a", "b"}
        handle: Any = asked.value.task
        await handle.answer({"a": ANN})
        with pytest.raises(PendingQuestions) as asked:
            await handle.result()
        assert asked.value.requests.keys() == {"b"}
        await handle.answer({"b": ANN})
        with pytest.raises(PendingQuestions) as asked:
            await handle.result()
        assert asked.value.requests.keys() == {"c"}
        await handle.answer({"c": {"action": "decline"}})
        assert (await handle.result()).text == "done"
    assert not server.calls("tasks/cancel")
    assert [list(one["params"]["inputResponses"]) for one in server.calls("tasks/update")] == [["a"], ["b"], ["c"]]


async def test_the_questions_of_a_state_are_shown_to_a_program_that_iterates() -> None:
    server = Answering({"a": form("A?")})
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        handle = await client.start_tool("t")
        seen: list[str] = []
        async for one in handle:
            seen.append(one.status)
            if one.questions:
                await handle.answer(dict.fromkeys(one.questions, ANN))
    assert seen == ["input_required", "completed"]


FORM = r"must be the result of elicitation/create: \{\"action\": \"accept\", \"content\": \{\.\.\.\}\} or"
PAGE = {"method": "elicitation/create", "params": {"mode": "url", "message": "?", "url": "https://a.example/"}}
MODEL = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}}


@pytest.mark.parametrize(
    ("question", "answer", "text"),
    [
        (form(), {"name": "Ann"}, FORM),  # what `elicit=` returns
        (form(), "accept", FORM),
        (form(), None, FORM),
        (PAGE, True, FORM),
        (MODEL, "Hi", r"must be the result of sampling/createMessage: \{\"role\": \"assistant\""),
        ({"method": "roots/list"}, ["file:///tmp"], r"must be the result of roots/list: \{\"roots\": \["),
    ],
    ids=["form", "action", "nothing", "page", "model", "roots"],
)
async def test_an_answer_in_another_form_is_a_mistake_of_the_program(question: Any, answer: Any, text: str) -> None:
    server = TaskServer(asking(a=question))
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        with pytest.raises(PendingQuestions) as asked:
            await client.call_tool("t")
        task: Any = asked.value.task
        with pytest.raises(UsageError, match=text):
            await task.answer({"a": answer})
        assert not server.calls("tasks/update")
        said = CreateMessageResult("assistant", TextContent("Hi"), model="m")
        right: Any = {"sampling/createMessage": said, "roots/list": {"roots": []}}
        await task.answer({"a": right.get(question["method"], {"action": "accept"})})
    assert server.answers.keys() == {"a"}


@pytest.mark.spec("new-15")
async def test_only_what_the_task_asks_can_be_answered() -> None:
    server = TaskServer(asking(a=form(), b=form()))
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        with pytest.raises(PendingQuestions) as asked:
            await client.call_tool("t")
        task: Any = asked.value.task
        with pytest.raises(UsageError, match=r"The task does not ask 'c' now\. It asks 'a', 'b'\."):
            await task.answer({"c": ANN})
        with pytest.raises(UsageError, match=r"does not ask 'c' now"):
            await task.answer({"a": ANN, "c": ANN})  # none of them is sent
        await task.answer({"a": ANN})
        with pytest.raises(UsageError, match=r"does not ask 'a' now\. It asks 'b'\. Each question has one answer\."):
            await task.answer({"a": {"action": "decline"}})
        server.task = state()
        await task.answer({"b": ANN})  # it was asked, as far as the client knows
        with pytest.raises(UsageError, match="It asks nothing"):
            await task.answer({"b": ANN})
    assert [list(one["params"]["inputResponses"]) for one in server.calls("tasks/update")] == [["a"], ["b"]]


async def test_a_question_that_the_client_has_not_seen_can_be_answered() -> None:
    """The program has its key from elsewhere. The server knows whether it is asked."""
    server = TaskServer(state(pollIntervalMs=60_000))
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        task = await client.start_tool("t")
        server.task = asking(a=form())
        await task.answer({"a": ANN})
        assert server.answers == {"a": ANN}
        await client.task(task.id or "").status()


async def test_the_questions_of_a_state_can_be_read() -> None:
    server = TaskServer(asking(a=form("A?"), b={"method": "roots/list"}))
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        task = await client.start_tool("t")
        questions = (await task.status()).requests
        assert (questions["a"].method, questions["a"].params["message"]) == ("elicitation/create", "A?")
        assert questions["b"].method == "roots/list"
        server.task = asking(a=7)
        with pytest.raises(InvalidAnswer, match="questions of the task cannot be read"):
            _ = (await task.status()).requests


async def test_a_session_asks_by_requests() -> None:
    async with Client(TaskServer(is_session=True), eras=("session",)) as client:
        handle = await client.start_tool("t")
        with pytest.raises(UsageError, match="2025-11-25 asks while its result is awaited"):
            await handle.answer({"a": ANN})


# --- with servers of Weft


def asker() -> Server:
    server = Server("asker")

    @server.tool(task=Task(poll=0.05))
    async def two(ctx: Context) -> list[str]:
        answers = await asyncio.gather(ctx.elicit("First?", NAME), ctx.elicit("Second?", NAME))
        return [answer.value["name"] if answer.action == "accept" else answer.action for answer in answers]

    @server.tool(task=Task(poll=0.05))
    async def think(ctx: Context) -> str:
        content = (await ctx.sample("Think.", max_tokens=5)).content
        return content.text if isinstance(content, TextContent) else ""

    return server


@pytest.mark.spec("TASK-17a", "L11-u3")
@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_the_same_functions_answer_in_both_eras(era: Any) -> None:
    asked: list[str] = []

    def elicit(question: FormQuestion) -> Any:
        asked.append(question.message)
        return "decline" if question.message == "First?" else {"name": "Ann"}

    async with (
        asyncio.timeout(LONG),
        Client(asker(), eras=(era,), elicit=elicit, sample=lambda _: "Hmm.") as client,
    ):
        assert await client.call_tool("two", result_type=list[str]) == ["decline", "Ann"]
        assert (await client.call_tool("think")).text == "Hmm."
        handle = await client.start_tool("two")
        states = [one.status async for one in handle]
        assert states[-1] == "completed"
        assert await handle.result(result_type=list[str]) == ["decline", "Ann"]
    assert sorted(asked) == ["First?", "First?", "Second?", "Second?"]


async def test_manual_answers_to_a_server_of_weft() -> None:
    async with asyncio.timeout(LONG), Client(asker(), elicit=lambda _: None, manual_input=True) as client:
        with pytest.raises(PendingQuestions) as asked:
            await client.call_tool("two")
        handle: Any = asked.value.task
        first, second = asked.value.requests
        with pytest.raises(RemoteError) as refused:
            await handle.answer({first: {"action": "accept", "content": {"name": 7}}})
        assert refused.value.code == -32602
        await handle.answer({first: ANN})
        with pytest.raises(PendingQuestions) as asked:
            await handle.result()
        assert list(asked.value.requests) == [second]
        await handle.answer({second: ANN})
        assert (await handle.result(result_type=list[str])) == ["Ann", "Ann"]


async def test_a_result_with_questions_is_no_result_of_a_task() -> None:
    server = TaskServer(state("completed", result={**result(), "resultType": "input_required"}))
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer, match="resultType"):
            await client.call_tool("t")
