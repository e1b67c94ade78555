"""Tasks of revision 2025-11-25: a client that asks for them, and one that answers questions as tasks."""

import asyncio
import gc
from typing import Any

import pytest

from support.fakes import LEGACY, FakePipe, initialized
from support.raw_sessions import eventually
from support.task_servers import ID, NAME, RELATED, SILENCE, TASKS, Refusal, TaskServer, result, state
from weft import Client, ClientLimits, Context, RemoteError, RequestTimeout, Server, Task, TaskEnded
from weft.client import FormQuestion
from weft.client.question_tasks import _POLL_SECONDS

LONG = 30
QUESTION = {"mode": "form", "message": "Who?", "requestedSchema": NAME}
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5}
ANN = {"action": "accept", "content": {"name": "Ann"}}


def session(**options: Any) -> TaskServer:
    server = TaskServer(is_session=True)
    for name, value in options.items():
        setattr(server, name, value)
    return server


def client_of(server: FakePipe, **options: Any) -> Client:
    return Client(server, eras=("session",), **options)


# --- asking for tasks


@pytest.mark.spec("L11-42b", "L11-43a")
@pytest.mark.parametrize(
    ("capability", "support", "is_asked"),
    [
        ({"requests": {"tools": {"call": {}}}}, "optional", True),
        ({"requests": {"tools": {"call": {}}}}, "required", True),
        ({"requests": {"tools": {"call": {}}}}, "forbidden", False),
        ({"requests": {"tools": {"call": {}}}}, None, False),
        ({"requests": {"tools": {"call": {}}}}, "sometimes", False),
        ({"requests": {"tools": {}}}, "optional", False),
        ({"requests": {}}, "required", False),
        ({"list": {}, "cancel": {}}, "optional", False),
        (None, "optional", False),
        (None, "required", False),
    ],
)
async def test_a_task_is_asked_for_only_where_both_the_server_and_the_tool_have_tasks(
    capability: Any, support: Any, is_asked: bool
) -> None:
    server = session(capability=capability, support=support)
    async with asyncio.timeout(LONG), client_of(server) as client:
        assert (await client.call_tool("t")).text == ("done" if is_asked else "plain")
        await client.call_tool("t")
    assert [("task" in call["params"]) for call in server.calls("tools/call")] == [is_asked] * 2


@pytest.mark.spec("L11-43c", "L11-44a")
async def test_the_time_to_live_that_is_asked_for() -> None:
    server = session(support="required")
    async with asyncio.timeout(LONG), client_of(server) as client:
        await client.start_tool("t", ttl=1.5)
        await client.start_tool("t")
    assert [call["params"]["task"] for call in server.calls("tools/call")] == [{"ttl": 1500}, {}]


async def test_a_client_without_tasks_asks_for_none() -> None:
    server = session()
    async with asyncio.timeout(LONG), client_of(server, tasks=False, elicit=lambda _: None) as client:
        assert (await client.call_tool("t")).text == "plain"
    assert "task" not in server.calls("tools/call")[0]["params"]
    assert "tasks" not in server.calls("initialize")[0]["params"]["capabilities"]


async def test_a_server_that_cannot_list_its_tools_is_called_without_a_task() -> None:
    server = session()
    server.on["tools/list"] = lambda _: Refusal(-32603, "no list today")
    async with asyncio.timeout(LONG), client_of(server) as client:
        assert (await client.call_tool("t")).text == "plain"


async def test_a_server_that_ignores_the_wish_gives_its_result() -> None:
    server = session()
    server.on["tools/call"] = lambda _: result("plain")
    async with asyncio.timeout(LONG), client_of(server) as client:
        assert (await client.call_tool("t")).text == "plain"
        assert (await client.start_tool("t")).id is None


@pytest.mark.spec("L11-47b", "L11-u3")
async def test_requests_about_a_task_name_it_by_the_param_alone() -> None:
    server = session()
    async with asyncio.timeout(LONG), client_of(server) as client:
        handle = await client.start_tool("t")
        assert (await handle.status()).status == "working"
        assert (await handle.result()).text == "done"
        await handle.cancel()
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        for message in server.calls(method):
            assert message["params"]["taskId"] == ID
            assert RELATED not in message["params"].get("_meta", {})


async def test_what_the_model_may_be_told_meanwhile() -> None:
    server = session()
    key = "io.modelcontextprotocol/model-immediate-response"
    answer = {"task": server._shown(), "_meta": {key: "It is being painted."}}
    server.on["tools/call"] = lambda _: answer
    async with asyncio.timeout(LONG), client_of(server) as client:
        assert (await client.start_tool("t")).immediate_response == "It is being painted."
        answer["_meta"] = {key: 7}
        assert (await client.start_tool("t")).immediate_response is None


@pytest.mark.spec("L11-u5", "L11-u6")
async def test_notifications_are_shown_and_not_relied_on() -> None:
    """Progress with numbers comes with the token of the call. A status notification that says the end is no result."""
    server, shown = session(), list[Any]()
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), client_of(server) as client:
        calling = asyncio.create_task(
            client.call_tool("t", progress=lambda update: shown.append((update.progress, update.message)))
        )
        await server.asked("tasks/result")
        token = server.calls("tools/call")[0]["params"]["_meta"]["progressToken"]
        server.task = state(statusMessage="painting")
        server.say({"method": "notifications/tasks/status", "params": server._shown()})
        await eventually(lambda: shown == [(1, "painting")])
        server.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 5}})
        await eventually(lambda: shown[-1] == (5, None))
        server.task = state(statusMessage="drying")  # which the server sends as progress, too
        server.say({"method": "notifications/tasks/status", "params": server._shown()})
        server.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 6}})
        await eventually(lambda: shown[-1] == (6, None))
        assert shown == [(1, "painting"), (5, None), (6, None)]
        server.task = state("completed")
        server.say({"method": "notifications/tasks/status", "params": server._shown()})
        server.say({"method": "notifications/tasks/status", "params": {"taskId": ID, "status": "cancelled"}})
        await server.asked("tasks/result")
        assert not calling.done()
        server.answer(server.calls("tasks/result")[0], result("the result"))
        assert (await calling).text == "the result"


async def test_progress_is_shown_once_although_the_server_repeats_it() -> None:
    """It does so when the client asks for the result again."""
    server, shown = session(), list[Any]()
    server.task = state(statusMessage="painting")
    server.on["tasks/result"] = lambda _: SILENCE

    def say(progress: int, message: str) -> None:
        token = server.calls("tasks/result")[-1]["params"]["_meta"]["progressToken"]
        told = {"progressToken": token, "progress": progress, "total": 3, "message": message}
        server.say({"method": "notifications/progress", "params": told})

    async with asyncio.timeout(LONG), client_of(server) as client:
        handle = client.task(ID)
        waiting = asyncio.create_task(
            handle.result(progress=lambda update: shown.append((update.progress, update.total, update.message)))
        )
        await eventually(lambda: shown == [(1, None, "painting")])
        say(1, "painting")
        say(2, "painting")
        await eventually(lambda: shown[-1] == (2, 3, "painting"))
        server.answer(server.calls("tasks/result")[0], error={"code": -32603, "message": "try again"})
        await server.asked("tasks/result", 2)
        say(2, "painting")
        say(3, "drying")
        await eventually(lambda: shown[-1] == (3, 3, "drying"))
        assert shown == [(1, None, "painting"), (1, 3, "painting"), (2, 3, "painting"), (3, 3, "drying")]
        server.answer(server.calls("tasks/result")[1], result())
        await waiting


@pytest.mark.spec("L11-u7")
async def test_states_are_asked_for_no_faster_than_the_server_wants() -> None:
    server = session()
    server.task = state(pollIntervalMs=200, ttlMs=None)
    async with asyncio.timeout(LONG), client_of(server) as client:
        handle = await client.start_tool("t", ttl=5)
        assert (await handle.status()).ttl == float("inf")  # not what was asked for
        seen = aiter(handle)
        await anext(seen)
        server.task = state(pollIntervalMs=200)
        await anext(seen)
        server.task = state("completed")
        assert (await anext(seen)).is_final
    first, second = server.times["tasks/get"][-2:]
    assert second - first >= 0.2 * 0.98


async def test_a_cancelled_call_cancels_its_task_and_no_request_of_it() -> None:
    """`tasks/result` is a request of its own, which may be cancelled."""
    server = session()
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), client_of(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/result")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert len(server.calls("tasks/cancel")) == 1
    call = server.calls("tools/call")[0]["id"]
    assert call not in [one["params"]["requestId"] for one in server.calls("notifications/cancelled")]


async def test_a_call_that_is_cancelled_before_its_task_is_known_cancels_it_then() -> None:
    """The protocol forbids to cancel a request with `task` by a notification."""
    server = session()
    server.on["tools/call"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), client_of(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tools/call")
        calling.cancel()
        server.answer(server.calls("tools/call")[0], {"task": server._shown()})
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert [one["params"] for one in server.calls("tasks/cancel")] == [{"taskId": ID}]
    assert not server.calls("notifications/cancelled")


async def test_a_call_that_takes_too_long_cancels_its_task() -> None:
    server = session()
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), client_of(server) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("t", timeout=0.2)
        assert len(server.calls("tasks/cancel")) == 1


async def test_a_handle_given_up_leaves_the_task_alone() -> None:
    server = session()
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), client_of(server) as client:
        handle = await client.start_tool("t")
        with pytest.raises(RequestTimeout):
            await handle.result(timeout=0.2)
        server.on["tasks/result"] = lambda _: result("later")
        assert (await handle.result()).text == "later"
    assert not server.calls("tasks/cancel")


async def test_an_error_of_a_task_is_the_error_of_the_call() -> None:
    server = session()
    server.task = state("failed", statusMessage="torn")
    server.on["tasks/result"] = lambda _: Refusal(1001, "torn", {"paper": 1})
    async with asyncio.timeout(LONG), client_of(server) as client:
        with pytest.raises(RemoteError) as failure:
            await client.call_tool("t")
    assert (failure.value.code, failure.value.message, failure.value.data) == (1001, "torn", {"paper": 1})


@pytest.mark.spec("L11-49")
async def test_tasks_that_are_cancelled_or_unknown() -> None:
    server = session()
    server.on["tasks/result"] = lambda _: Refusal(-32602, "no result")
    async with asyncio.timeout(LONG), client_of(server) as client:
        handle = await client.start_tool("t")
        server.task = state("cancelled")
        with pytest.raises(TaskEnded, match="cancelled"):
            await handle.result()
        server.on["tasks/get"] = server.on["tasks/cancel"] = lambda _: Refusal(-32602, "unknown")
        for use in (handle.result, handle.status, handle.cancel):
            with pytest.raises(TaskEnded, match="does not exist"):
                await use()


async def test_a_task_that_has_ended_needs_no_cancelling() -> None:
    server = session()
    server.task = state("completed")
    server.on["tasks/cancel"] = lambda _: Refusal(-32602, "it has ended")
    async with asyncio.timeout(LONG), client_of(server) as client:
        await (await client.start_tool("t")).cancel()
        server.task = state()
        with pytest.raises(RemoteError, match="it has ended"):  # it has not
            await (await client.start_tool("t")).cancel()


async def test_a_question_that_belongs_to_a_task_is_answered_while_iterating() -> None:
    """The status says that the server wants something, so the client asks for the result, where questions come."""
    server = session()
    server.task = state("input_required")
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), client_of(server, elicit=lambda _: {"name": "Ann"}) as client:

        async def iterate() -> list[str]:
            return [one.status async for one in await client.start_tool("t")]

        iterating = asyncio.create_task(iterate())
        await server.asked("tasks/result")
        server.say({"id": "q", "method": "elicitation/create", "params": QUESTION})
        await eventually(lambda: any(one.get("id") == "q" for one in server.heard))
        server.task = state("completed")
        assert await iterating == ["input_required", "completed"]


# --- answering questions as tasks


class Asker(FakePipe):
    """A server that asks the client, and gets its answers."""

    def __init__(self, version: str = LEGACY) -> None:
        super().__init__(self._take)
        self._version = version
        self._replies: dict[Any, asyncio.Future[Any]] = {}
        self._number = 0

    def _take(self, _: FakePipe, message: dict[str, Any]) -> None:
        if message.get("method") == "initialize":
            self.answer(message, initialized(self._version))
        elif "method" not in message:
            self._replies.pop(message["id"]).set_result(message)
        elif "id" in message:
            self.answer(message, error={"code": -32601, "message": "no"})

    async def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        reply = self._replies[f"q{self._number}"] = asyncio.get_running_loop().create_future()
        self.say({"id": f"q{self._number}", "method": method, "params": params})
        return await reply

    async def create(self, **task: Any) -> Any:
        return (await self.ask("elicitation/create", **QUESTION, task=task))["result"]["task"]


def code(message: Any) -> int:
    return message["error"]["code"]


@pytest.mark.spec("L11-42a")
@pytest.mark.parametrize(
    ("options", "requests"),
    [
        ({"elicit": lambda _: None}, {"elicitation": {"create": {}}}),
        ({"sample": lambda _: None}, {"sampling": {"createMessage": {}}}),
        (
            {"elicit_url": lambda _: None, "sample": lambda _: None},
            {"elicitation": {"create": {}}, "sampling": {"createMessage": {}}},
        ),
        ({"roots": []}, None),
        ({}, None),
    ],
)
async def test_a_client_declares_what_it_answers_as_tasks(options: Any, requests: Any) -> None:
    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, **options):
        declared = server.calls("initialize")[0]["params"]["capabilities"]
    assert declared.get("tasks") == (None if requests is None else {"list": {}, "cancel": {}, "requests": requests})
    assert TASKS not in declared.get("extensions", {})  # which means nothing in this era


@pytest.mark.spec("L11-42b")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_older_revisions_have_no_tasks(version: str) -> None:
    server = Asker(version)
    async with asyncio.timeout(LONG), Client(server, version=version, elicit=lambda _: {"name": "Ann"}):
        assert "tasks" not in server.calls("initialize")[0]["params"]["capabilities"]
        if version == "2025-06-18":
            assert (await server.ask("elicitation/create", **QUESTION, task={}))["result"] == ANN
        assert code(await server.ask("tasks/get", taskId="x")) == -32601


@pytest.mark.spec("L11-u2", "L11-45a", "L11-45b", "L11-47a", "L11-47b")
async def test_a_question_is_answered_as_a_task() -> None:
    go_on = asyncio.Event()

    async def elicit(_: FormQuestion) -> dict[str, Any]:
        await go_on.wait()
        return {"name": "Ann"}

    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=elicit):
        reply = await server.ask("elicitation/create", **QUESTION, task={"ttl": 20_000})
        created = reply["result"]["task"]
        assert (created["status"], created["ttl"], created["pollInterval"]) == ("working", 20_000, 1000 * _POLL_SECONDS)
        assert created["createdAt"] == created["lastUpdatedAt"]
        assert len(created["taskId"]) >= 24
        # The param counts, not the metadata.
        misled = {RELATED: {"taskId": "another"}}
        got = (await server.ask("tasks/get", taskId=created["taskId"], _meta=misled))["result"]
        assert (got["taskId"], got["status"]) == (created["taskId"], "working")
        assert RELATED not in got.get("_meta", {})
        waiting = asyncio.create_task(server.ask("tasks/result", taskId=created["taskId"]))
        await server.ask("ping")
        assert not waiting.done()  # it blocks
        go_on.set()
        answer = (await waiting)["result"]
        assert answer == {**ANN, "_meta": {RELATED: {"taskId": created["taskId"]}}}
        assert (await server.ask("tasks/get", taskId=created["taskId"]))["result"]["status"] == "completed"
        assert (await server.ask("tasks/result", taskId=created["taskId"]))["result"] == answer  # again


@pytest.mark.spec("L11-u2", "L11-49")
async def test_ids_are_unique_and_cannot_be_guessed() -> None:
    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=lambda _: None):
        ids = [(await server.create())["taskId"] for _ in range(20)]
        assert len(set(ids)) == 20
        assert all(len(id) == 24 for id in ids)  # 18 bytes in base64
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert code(await server.ask(method, taskId="guessed")) == -32602
            assert code(await server.ask(method)) == -32602
            assert code(await server.ask(method, taskId=7)) == -32602


@pytest.mark.spec("L11-45c", "L11-49")
async def test_the_list_of_tasks() -> None:
    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=lambda _: None):
        assert (await server.ask("tasks/list"))["result"] == {"tasks": []}
        ids = [(await server.create())["taskId"] for _ in range(3)]
        listed = (await server.ask("tasks/list"))["result"]
        assert [task["taskId"] for task in listed["tasks"]] == ids
        assert listed["tasks"][0] == (await server.ask("tasks/get", taskId=ids[0]))["result"]
        assert "nextCursor" not in listed
        assert code(await server.ask("tasks/list", cursor="x")) == -32602


@pytest.mark.spec("L11-46a", "L11-46b", "L11-u2")
async def test_cancelling_a_question() -> None:
    stopped = asyncio.Event()

    async def elicit(_: FormQuestion) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=elicit):
        id = (await server.create())["taskId"]
        waiting = asyncio.create_task(server.ask("tasks/result", taskId=id))
        await server.ask("ping")
        cancelled = (await server.ask("tasks/cancel", taskId=id))["result"]
        assert (cancelled["taskId"], cancelled["status"]) == (id, "cancelled")
        assert code(await waiting) == -32602
        await stopped.wait()
        assert (await server.ask("tasks/get", taskId=id))["result"]["status"] == "cancelled"
        assert code(await server.ask("tasks/cancel", taskId=id)) == -32602
        done = (await server.create())["taskId"]
        assert (await server.ask("tasks/get", taskId=done))["result"]["status"] == "working"


@pytest.mark.spec("L11-45b", "L11-48")
@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [("elicitation/create", QUESTION, -32603), ("sampling/createMessage", SAMPLING, -1)],
)
async def test_a_question_without_an_answer_fails(method: str, params: Any, expected: int) -> None:
    """A function that raises; and a user who does not want the model to be asked."""

    def elicit(_: FormQuestion) -> None:
        raise ValueError("secret")

    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=elicit, sample=lambda _: None):
        id = (await server.ask(method, **params, task={}))["result"]["task"]["taskId"]
        failed = await server.ask("tasks/result", taskId=id)
        assert code(failed) == expected
        assert "secret" not in str(failed)
        got = (await server.ask("tasks/get", taskId=id))["result"]
        assert (got["status"], got["statusMessage"]) == ("failed", failed["error"]["message"])


@pytest.mark.spec("L11-u1")
async def test_what_was_not_declared_is_answered_as_ever() -> None:
    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=lambda _: {"name": "Ann"}, roots=[]):
        assert (await server.ask("roots/list", task={}))["result"] == {"roots": []}
        assert code(await server.ask("sampling/createMessage", **SAMPLING, task={})) == -32601
        assert (await server.ask("elicitation/create", **QUESTION))["result"] == ANN  # without `task`
        assert code(await server.ask("elicitation/create", **QUESTION, task="soon")) == -32602
        assert code(await server.ask("elicitation/create", **QUESTION, task={"ttl": -1})) == -32602
    other = Asker()
    async with asyncio.timeout(LONG), client_of(other, elicit=lambda _: {"name": "Ann"}, tasks=False):
        assert (await other.ask("elicitation/create", **QUESTION, task={}))["result"] == ANN
        assert code(await other.ask("tasks/list")) == -32601


@pytest.mark.spec("L11-47a")
async def test_the_answer_to_a_question_of_a_task_names_the_task() -> None:
    server, related = Asker(), {RELATED: {"taskId": "of-the-server"}}
    async with asyncio.timeout(LONG), client_of(server, elicit=lambda _: {"name": "Ann"}, roots=[]):
        answer = (await server.ask("elicitation/create", **QUESTION, _meta=related))["result"]
        assert answer == {**ANN, "_meta": related}
        assert (await server.ask("roots/list", _meta=related))["result"] == {"roots": [], "_meta": related}
        assert (await server.ask("elicitation/create", **QUESTION, _meta={"x": 1}))["result"] == ANN


@pytest.mark.spec("L11-u7", "L11-u8")
async def test_questions_have_limits_of_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.client.question_tasks._LEAST_TTL", 0.1)
    server = Asker()
    limits = ClientLimits(tasks_served=3, ask_seconds=20)

    async def elicit(_: FormQuestion) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(LONG), client_of(server, elicit=elicit, limits=limits) as client:
        assert (await server.create(ttl=10**9))["ttl"] == 20_000
        assert (await server.create())["ttl"] == 20_000
        short = await server.create(ttl=1)
        assert short["ttl"] == 100
        assert code(await server.ask("elicitation/create", **QUESTION, task={})) == -32603  # the fourth
        await eventually(lambda: len(client._questions._tasks) == 2)
        assert code(await server.ask("tasks/get", taskId=short["taskId"])) == -32602
        await server.create()  # there is room again
        kept = [one.expiry for one in client._questions._tasks.values()]
        working = [one.work for one in client._questions._tasks.values()]
    assert not client._questions._tasks
    assert all(timer is not None and timer.cancelled() for timer in kept)
    assert all(work is not None and work.cancelled() for work in working)


@pytest.mark.spec("L11-u8")
async def test_answered_questions_make_room_for_others() -> None:
    """First one whose answer the server has, then the oldest. A question that is not answered stays."""
    server, go_on = Asker(), asyncio.Event()

    async def elicit(question: FormQuestion) -> dict[str, Any]:
        if question.message == "Wait":
            await go_on.wait()
        return {"name": "Ann"}

    async def create(message: str) -> str:
        asked = await server.ask("elicitation/create", **{**QUESTION, "message": message}, task={})
        id: str = asked["result"]["task"]["taskId"]
        if message != "Wait":
            await eventually(lambda: client._questions._tasks[id].state.is_final)
        return id

    async with asyncio.timeout(LONG), client_of(server, elicit=elicit, limits=ClientLimits(tasks_served=3)) as client:
        waiting = await create("Wait")
        first, second = await create("1"), await create("2")
        await server.ask("tasks/result", taskId=second)
        third = await create("3")
        assert list(client._questions._tasks) == [waiting, first, third]
        fourth = await create("Wait")
        assert list(client._questions._tasks) == [waiting, third, fourth]
        assert code(await server.ask("tasks/get", taskId=first)) == -32602
        fifth = await create("Wait")
        assert code(await server.ask("elicitation/create", **QUESTION, task={})) == -32603  # none has ended
        assert list(client._questions._tasks) == [waiting, fourth, fifth]
        go_on.set()
        assert (await server.ask("tasks/result", taskId=waiting))["result"]["content"] == {"name": "Ann"}


@pytest.mark.security("D12")
@pytest.mark.parametrize("end", ["answered", "cancelled", "expired", "failed"])
async def test_questions_that_are_being_answered_as_tasks_have_a_limit_of_size(
    end: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although their requests are answered at once. When they have ended, there is room for others."""
    monkeypatch.setattr("weft.client.question_tasks._LEAST_TTL", 0.1)
    server, go_on = Asker(), asyncio.Event()
    big = {**QUESTION, "message": "x" * 10_000}

    async def elicit(_: FormQuestion) -> dict[str, Any]:
        await go_on.wait()
        if end == "failed":
            raise ValueError
        return {"name": "Ann"}

    async def create() -> str:
        id: str = (await server.ask("elicitation/create", **big, task={}))["result"]["task"]["taskId"]
        return id

    limits = ClientLimits(asks_bytes=32_000, asks_at_once=2)  # so the third one waits
    async with asyncio.timeout(LONG), client_of(server, elicit=elicit, limits=limits) as client:
        link = client._connected()
        ids = [await create() for _ in range(3)]
        assert 30_000 < link._asks_bytes <= 32_000
        refused = [asyncio.create_task(server.ask("elicitation/create", **big, **more)) for more in ({"task": {}}, {})]
        await eventually(lambda: "asks too much at once" in caplog.text)
        assert len((await server.ask("tasks/list"))["result"]["tasks"]) == 3  # small requests are still answered
        match end:
            case "cancelled":
                for id in ids:
                    await server.ask("tasks/cancel", taskId=id)
            case "expired":
                for id in ids:
                    client._questions._expire(id)
            case _:
                go_on.set()
        await eventually(lambda: link._asks_bytes == 0)
        await create()  # there is room again
        go_on.set()
        await eventually(lambda: link._asks_bytes == 0)
        assert not link._going_on
        for one in refused:
            assert not one.done()
            one.cancel()


@pytest.mark.security("D12")
@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_of_a_question_is_kept_when_its_task_has_ended(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The task is known until it expires. An exception would keep all that its functions had."""
    caplog.set_level("CRITICAL", logger="weft.client.handlers")  # because records keep it, too

    def elicit(_: FormQuestion) -> dict[str, Any]:
        if fails:
            raise ValueError
        return {"name": "Ann"}

    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=elicit) as client:
        mine = {**QUESTION, "message": "to be forgotten"}
        id = (await server.ask("elicitation/create", **mine, task={}))["result"]["task"]["taskId"]
        assert ("error" in await server.ask("tasks/result", taskId=id)) is fails
        await eventually(lambda: client._connected()._asks_bytes == 0)
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, FormQuestion) and one.message == mine["message"]]
        assert not left
        assert id in client._questions._tasks


async def test_many_questions_that_are_answered_are_no_problem() -> None:
    server = Asker()
    async with asyncio.timeout(LONG), client_of(server, elicit=lambda _: {"name": "Ann"}) as client:
        for _ in range(ClientLimits().tasks_served + 6):
            task = await server.create()
            assert "result" in await server.ask("tasks/result", taskId=task["taskId"])
        assert len(client._questions._tasks) == ClientLimits().tasks_served


@pytest.mark.parametrize("as_task", [False, True])
async def test_so_many_questions_are_answered_at_once_and_no_more(as_task: bool) -> None:
    server, answering, most = Asker(), 0, 0

    async def elicit(_: FormQuestion) -> dict[str, Any]:
        nonlocal answering, most
        answering += 1
        most = max(most, answering)
        await asyncio.sleep(0.02)
        answering -= 1
        return {"name": "Ann"}

    async def ask() -> Any:
        asked = await server.ask("elicitation/create", **QUESTION, **({"task": {}} if as_task else {}))
        if as_task:
            asked = await server.ask("tasks/result", taskId=asked["result"]["task"]["taskId"])
        return asked["result"]["content"]

    async with asyncio.timeout(LONG), client_of(server, elicit=elicit, limits=ClientLimits(asks_at_once=2)):
        assert await asyncio.gather(*(ask() for _ in range(8))) == [{"name": "Ann"}] * 8
    assert most == 2


async def test_a_task_in_a_task_with_a_server_of_weft() -> None:
    """The tool runs as a task, and its question is answered by the client."""
    server = Server("asker")

    @server.tool(task=Task("required", poll=0.05))
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Who?", NAME)
        return answer.value["name"] if answer.action == "accept" else answer.action

    async with asyncio.timeout(LONG), Client(server, eras=("session",), elicit=lambda _: {"name": "Ann"}) as client:
        assert (await client.call_tool("ask")).text == "Ann"
