"""What is known of a task belongs to the task: however many follow it, it is polled and asked about once."""

import asyncio
import itertools
from typing import Any

import pytest

from support.fakes import Exchange, http_server
from support.raw_sessions import eventually
from support.task_servers import ID, SILENCE, SUBSCRIPTION, TaskServer, done, event, form, handle, result, state
from weft import CannotAnswer, Client, ConnectionFailed, InvalidAnswer, RemoteError, TaskEnded
from weft.client import FormQuestion, PendingQuestions
from weft.client.requests import known_tasks

LONG = 30
SOON = 10  # seconds: less than the client waits for the changes that a server has promised
DECLINE = {"action": "decline"}


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


# --- the state


@pytest.mark.spec("new-7", "TASK-08")
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "input_required"])
async def test_a_handle_that_says_more_than_working_is_followed_by_a_request(status: str) -> None:
    """The task may have ended already, or ask. The handle has neither the outcome nor the questions."""
    ends = {
        "completed": done("at once"),
        "failed": state("failed", error={"code": 7, "message": "torn"}),
        "cancelled": state("cancelled"),
        "input_required": state("input_required", inputRequests={"a": form()}, pollIntervalMs=60_000),
    }
    server = TaskServer(ends[status])
    assert not handle(server.task).keys() & {"result", "error", "inputRequests"}
    async with asyncio.timeout(SOON), Client(server, manual_input=True) as client:
        calling = client.call_tool("t")
        if status == "completed":
            assert (await calling).text == "at once"
        else:
            errors: dict[str, Any] = {"failed": RemoteError, "cancelled": TaskEnded, "input_required": PendingQuestions}
            with pytest.raises(errors[status]):
                await calling
    assert len(server.calls("tasks/get")) == (0 if status == "cancelled" else 1)
    assert not server.calls("tasks/cancel")


@pytest.mark.parametrize("era", ["stateless", "session"])
async def test_iteration_ends_with_a_handle_that_is_final(era: Any) -> None:
    server = TaskServer(done(), is_session=era == "session")
    async with asyncio.timeout(SOON), Client(server, eras=(era,)) as client:
        assert [one.status async for one in await client.start_tool("t")] == ["completed"]


@pytest.mark.spec("TASK-16a")
async def test_all_who_follow_a_task_poll_it_together() -> None:
    """By one handle or by several. None of them may ask sooner after the other."""
    server = TaskServer(state(pollIntervalMs=400))
    async with asyncio.timeout(LONG), Client(server) as client:
        one = await client.start_tool("t")
        waiting = [asyncio.create_task(one.result())]
        for follow in (one.result, client.task(ID).result):
            await asyncio.sleep(0.15)
            waiting.append(asyncio.create_task(follow()))
        await server.asked("tasks/get", 3)
        server.task = done()
        assert {each.text for each in await asyncio.gather(*waiting)} == {"done"}
    assert min(gaps([*server.times["tools/call"], *server.times["tasks/get"]])) >= 0.4 * 0.98


@pytest.mark.spec("TASK-16a")
async def test_answers_of_the_program_do_not_make_it_poll_sooner() -> None:
    questions = {key: form() for key in "abc"}
    server = TaskServer(state("input_required", pollIntervalMs=300, inputRequests=questions))
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        with pytest.raises(PendingQuestions) as asked:
            await client.call_tool("t")
        task: Any = asked.value.task
        for key in "ab":
            await task.answer({key: DECLINE})
            with pytest.raises(PendingQuestions) as asked:
                await task.result()
            assert key not in asked.value.requests
        await task.answer({"c": DECLINE})
        server.task = done()
        assert (await task.result()).text == "done"
    assert min(gaps(server.times["tasks/get"])) >= 0.3 * 0.98


async def test_a_task_that_nobody_has_followed_for_long_is_read_before_it_is_shown() -> None:
    server = TaskServer(state(statusMessage="at first"))
    async with asyncio.timeout(LONG), Client(server) as client:
        task = await client.start_tool("t")
        server.task = state(statusMessage="later")
        await asyncio.sleep(0.1)  # it may be polled every 50 ms
        assert (await anext(aiter(task))).message == "later"


async def test_a_task_that_is_known_to_have_ended_is_not_asked_for_again() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        one = await client.start_tool("t")
        server.task = done()
        await one.result()
        polled = len(server.calls("tasks/get"))
        await asyncio.sleep(0.1)  # it could be polled every 50 ms
        assert (await client.task(ID).result()).text == "done"
        assert [each.status async for each in one] == ["completed"]
    assert len(server.calls("tasks/get")) == polled


async def test_an_error_of_a_poll_is_that_of_all_who_follow() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        one = await client.start_tool("t")
        waiting = [asyncio.create_task(follow()) for follow in (one.result, client.task(ID).result)]
        await server.asked("tasks/get", 2)
        server.on["tasks/get"] = lambda _: {**state(taskId="another"), "resultType": "complete"}
        failures = await asyncio.gather(*waiting, return_exceptions=True)
        assert all("about another task" in str(failure) for failure in failures)
        del server.on["tasks/get"]
        server.task = done("now")
        assert (await one.result()).text == "now"


# --- pushed states


async def pushing(server: TaskServer, client: Client) -> None:
    await eventually(lambda: any(known.promise for known in client._tasks._followed))
    assert server.streams


@pytest.mark.spec("TASK-15")
@pytest.mark.parametrize("clock", ["right", "fast"])
async def test_a_final_state_is_not_replaced_by_one_that_comes_after_it(clock: str) -> None:
    """It is older, but was sent by another worker, whose clock may be fast. Both come before the call goes on."""
    server = TaskServer(state(pollIntervalMs=60_000), pushes=True)
    older, end = state(pollIntervalMs=60_000), done("ended")
    if clock == "fast":
        older = state(pollIntervalMs=60_000)
    async with asyncio.timeout(SOON), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await pushing(server, client)
        server.push(end)
        server.push(older)
        assert (await calling).text == "ended"


async def test_a_final_state_counts_although_the_clock_of_its_worker_is_slow() -> None:
    slow = done("ended")
    server = TaskServer(state(pollIntervalMs=60_000), pushes=True)
    async with asyncio.timeout(SOON), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await pushing(server, client)
        assert slow["lastUpdatedAt"] < server.task["lastUpdatedAt"]
        server.push(slow)
        assert (await calling).text == "ended"


async def test_a_final_state_that_is_pushed_without_its_outcome_is_asked_for() -> None:
    server = TaskServer(state(pollIntervalMs=60_000), pushes=True)
    async with asyncio.timeout(SOON), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await pushing(server, client)
        end = done("whole")
        server.push(handle(end))
        server.task = end
        assert (await calling).text == "whole"


async def test_a_task_whose_changes_are_not_sent_says_nothing_about_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has expired, or belongs to another caller."""
    monkeypatch.setattr(known_tasks, "_LISTEN_AGAIN_SECONDS", 0.01)
    server = TaskServer(pushes=True)

    def get(message: dict[str, Any]) -> Any:
        return {**server.task, "taskId": message["params"]["taskId"], "resultType": "complete"}

    def listen(message: dict[str, Any]) -> Any:
        if message["params"]["notifications"]["taskIds"] == ["refused"]:
            meta = {SUBSCRIPTION: message["id"]}
            params = {"notifications": {"taskIds": []}, "_meta": meta}
            server.say({"method": "notifications/subscriptions/acknowledged", "params": params})
            server.pushes = False  # only for this message
            asyncio.get_running_loop().call_soon(setattr, server, "pushes", True)
        return SILENCE

    server.on.update({"tasks/get": get, "subscriptions/listen": listen})
    async with asyncio.timeout(LONG), Client(server) as client:
        refused = [asyncio.create_task(client.task("refused").result())]
        await server.asked("tasks/get", 4)
        assert len(server.calls("subscriptions/listen")) == 1
        accepted = asyncio.create_task(client.task(ID).result())
        await pushing(server, client)
        server.push(done("heard"))
        assert (await accepted).text == "heard"
        await asyncio.gather(*refused)


async def test_a_stream_that_is_lost_promises_nothing_while_it_is_opened_again() -> None:
    server = TaskServer()
    streams: list[Exchange] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == "subscriptions/listen":
            streams.append(exchange)
            if len(streams) == 1:
                meta = {SUBSCRIPTION: exchange.message["id"]}
                params = {"notifications": {"taskIds": [ID]}, "_meta": meta}
                await exchange.stream(event({"method": "notifications/subscriptions/acknowledged", "params": params}))
            await exchange.hang()
        await server.serve(exchange)

    async with asyncio.timeout(SOON), http_server(serve) as url, Client(url) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await eventually(lambda: all(known.is_complete for known in client._tasks._followed) and streams)
        polled = len(server.calls("tasks/get"))
        await asyncio.sleep(0.3)
        assert len(server.calls("tasks/get")) == polled
        streams[0].cut()
        await server.asked("tasks/get", polled + 3)
        server.task = done()
        await calling


# --- questions


@pytest.mark.spec("TASK-17c", "TASK-17b")
async def test_a_question_is_asked_once_however_many_follow_the_task() -> None:
    server, asked = TaskServer(state("input_required", inputRequests={"a": form()})), list[str]()

    async def elicit(question: FormQuestion) -> dict[str, str]:
        asked.append(question.message)
        await server.asked("tasks/get", len(server.calls("tasks/get")) + 3)
        return {"name": "Ann"}

    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        one = await client.start_tool("t")
        waiting = [asyncio.create_task(follow()) for follow in (one.result, one.result, client.task(ID).result)]
        await server.asked("tasks/update")
        await server.asked("tasks/get", len(server.calls("tasks/get")) + 3)  # the answered question lingers
        waiting.append(asyncio.create_task(client.task(ID).result()))
        await server.asked("tasks/get", len(server.calls("tasks/get")) + 3)
        server.task = done()
        assert {each.text for each in await asyncio.gather(*waiting)} == {"done"}
    assert asked == ["Who?"]
    assert len(server.calls("tasks/update")) == 1


@pytest.mark.spec("TASK-17c")
async def test_a_question_that_lingers_in_other_states_is_not_asked_again() -> None:
    server, asked = TaskServer(), list[str]()
    numbers = itertools.count()

    def get(_: Any) -> dict[str, Any]:
        number = next(numbers)
        asking = state("input_required", statusMessage=f"{number}", inputRequests={"a": form()})
        return {**(done() if number > 8 and server.answers else asking), "resultType": "complete"}

    def elicit(question: FormQuestion) -> dict[str, str]:
        asked.append(question.message)
        return {"name": "Ann"}

    server.on["tasks/get"] = get
    shown: list[str | None] = []
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        await client.call_tool("t", progress=lambda update: shown.append(update.message))
    assert len(shown) > 8
    assert asked == ["Who?"]
    assert len(server.calls("tasks/update")) == 1


async def test_what_one_handle_has_answered_another_does_not_show() -> None:
    server = TaskServer(state("input_required", inputRequests={"a": form(), "b": form()}))
    async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
        one, other = await client.start_tool("t"), client.task(ID)
        with pytest.raises(PendingQuestions):
            await one.result()
        await one.answer({"a": DECLINE})
        with pytest.raises(PendingQuestions) as asked:
            await other.result()
        assert list(asked.value.requests) == ["b"]


@pytest.mark.spec("new-15", "TASK-17c")
@pytest.mark.parametrize("way", ["working", "another"])
async def test_a_question_that_is_not_asked_any_more_is_taken_back(way: str) -> None:
    """It was answered by somebody else. The program's function is cancelled, and its time counts no longer."""
    server = TaskServer(state("input_required", inputRequests={"a": form("A?")}))
    asking, taken_back = asyncio.Event(), asyncio.Event()

    async def elicit(question: FormQuestion) -> dict[str, str]:
        if question.message == "A?":
            asking.set()
            try:
                await asyncio.Event().wait()
            finally:
                taken_back.set()
        return {"name": "Ann"}

    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await asking.wait()
        another = state("input_required", inputRequests={"b": form("B?")})
        server.task = another if way == "another" else state()
        await taken_back.wait()
        assert not client._tasks.all[ID].is_asking or way == "another"
        if way == "another":
            await server.asked("tasks/update")
        server.task = done()
        assert (await calling).text == "done"
    assert server.answers.keys() == ({"b"} if way == "another" else set())


@pytest.mark.parametrize("way", ["raises", "answers"])
async def test_a_function_that_does_not_let_itself_be_cancelled_does_no_harm(way: str) -> None:
    server = TaskServer(state("input_required", inputRequests={"a": form()}))
    asking, ended = asyncio.Event(), asyncio.Event()

    async def elicit(_: FormQuestion) -> dict[str, str]:
        asking.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if way == "raises":
                raise ValueError("no") from None
        finally:
            ended.set()
        return {"name": "Ann"}

    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await asking.wait()
        server.task = state()
        await ended.wait()
        await server.asked("tasks/get", len(server.calls("tasks/get")) + 3)
        server.task = done()
        assert (await calling).text == "done"
    assert not server.calls("tasks/update")


async def test_an_answer_on_its_way_is_not_taken_back() -> None:
    """The question has left the state because the server has the answer, of which it has not told the client yet."""
    server = TaskServer(state("input_required", inputRequests={"a": form()}), pushes=True)
    server.on["tasks/update"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), Client(server, elicit=lambda _: {"name": "Ann"}) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/update")
        await pushing(server, client)
        server.push(state())
        behind = state("input_required", inputRequests={"a": form()}, statusMessage="behind")
        server.push(behind)  # by a worker that does not know it yet
        await eventually(lambda: "behind" in repr(client._tasks.all[ID].newest))
        server.answer(server.calls("tasks/update")[0], {"resultType": "complete"})
        server.push(done())
        await calling
    assert len(server.calls("tasks/update")) == 1
    update = server.calls("tasks/update")[0]["id"]
    assert update not in [one["params"]["requestId"] for one in server.calls("notifications/cancelled")]


async def test_a_question_that_fails_ends_all_who_follow_and_is_asked_again_later() -> None:
    server = TaskServer(state("input_required", inputRequests={"a": form()}))
    answers = iter([7, {"name": "Ann"}])
    async with asyncio.timeout(LONG), Client(server, elicit=lambda _: next(answers)) as client:
        one = await client.start_tool("t")
        waiting = [asyncio.create_task(follow()) for follow in (one.result, client.task(ID).result)]
        for failure in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(failure, CannotAnswer)
        again = asyncio.create_task(client.task(ID).result())
        await server.asked("tasks/update")
        server.task = done()
        assert (await again).text == "done"


async def test_an_iteration_that_was_left_open_does_not_count_on_the_next_connection() -> None:
    """It cannot go on, and what it was asked on the old connection is asked again on the new one."""
    server, asked = TaskServer(state("input_required", inputRequests={"a": form()})), list[str]()

    async def elicit(question: FormQuestion) -> dict[str, str]:
        asked.append(question.message)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return {"name": "Ann"}

    client = Client(server, elicit=elicit)
    async with asyncio.timeout(SOON):
        async with client:
            task = await client.start_tool("t")
            left_open = aiter(task)
            assert (await anext(left_open)).status == "input_required"
            await eventually(lambda: asked)
        async with client:
            waiting = asyncio.create_task(task.result())
            await server.asked("tasks/update")
            server.task = done()
            assert (await waiting).text == "done"
            assert not client._tasks.all[ID].followers
            with pytest.raises(ConnectionFailed):
                await anext(left_open)
    assert asked == ["Who?"] * 2


# --- sessions


async def test_all_who_follow_a_task_of_a_session_wait_by_one_request_and_see_its_progress() -> None:
    server = TaskServer(is_session=True)
    server.on["tasks/result"] = lambda _: SILENCE
    shown: list[list[Any]] = [[], []]
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        one = await client.start_tool("t", progress=lambda _: None)
        waiting = [
            asyncio.create_task(follow(progress=lambda update, seen=seen: seen.append(update.progress)))
            for follow, seen in zip((one.result, client.task(ID).result), shown, strict=True)
        ]
        await server.asked("tasks/result")
        await eventually(lambda: len(client._tasks.all[ID].reports) == 2)
        asked = server.calls("tasks/result")[0]["params"]["_meta"]["progressToken"]
        created = server.calls("tools/call")[0]["params"]["_meta"]["progressToken"]
        for number, token in enumerate((asked, created), 1):
            server.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": number}})
        await eventually(lambda: shown == [[1, 2], [1, 2]])
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        server.say({"method": "notifications/progress", "params": {"progressToken": created, "progress": 3}})
        await eventually(lambda: shown == [[1, 2, 3], [1, 2]])
        server.answer(server.calls("tasks/result")[0], result("once"))
        assert (await waiting[0]).text == "once"
        assert not client._connected().task_progress
    assert len(server.calls("tasks/result")) == 1


@pytest.mark.parametrize("followers", [0, 1])
async def test_an_iteration_raises_the_error_of_the_request_that_brings_the_questions(followers: int) -> None:
    """Also if others await the result, which sends the same request."""
    server = TaskServer(state("input_required"), is_session=True)
    server.on["tasks/result"] = lambda _: 5
    async with asyncio.timeout(SOON), Client(server, eras=("session",), elicit=lambda _: DECLINE) as client:
        task = await client.start_tool("t")
        waiting = [asyncio.create_task(task.result()) for _ in range(followers)]
        with pytest.raises(InvalidAnswer):
            async for _ in task:
                pass
        for failure in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(failure, InvalidAnswer)


@pytest.mark.parametrize("end", ["failed", "cancelled", "completed"])
async def test_an_iteration_ends_with_the_state_although_the_result_is_an_error(end: str) -> None:
    server = TaskServer(state("input_required"), is_session=True)
    server.on["tasks/result"] = lambda _: SILENCE
    async with asyncio.timeout(SOON), Client(server, eras=("session",), elicit=lambda _: DECLINE) as client:
        states = aiter(await client.start_tool("t"))
        assert (await anext(states)).status == "input_required"
        await server.asked("tasks/result")
        server.task = state(end)
        server.answer(server.calls("tasks/result")[0], error={"code": 1001, "message": "torn"})
        fetching = client._tasks.all[ID].fetching
        await eventually(lambda: fetching is not None and fetching.done())
        await asyncio.sleep(0)  # all who follow the task have been told
        assert [one.status async for one in states] == [end]
