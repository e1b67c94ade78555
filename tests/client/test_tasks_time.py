"""How long a program waits for a task: what counts, what does not, and what becomes of the task."""

import asyncio
import time
from typing import Any

import pytest

from support.fakes import Exchange, http_server
from support.raw_sessions import eventually
from support.task_servers import NAME, RELATED, SILENCE, TaskServer, done, event, form, handle, result, state
from weft import Client, ClientLimits, RequestTimeout
from weft.client import FormQuestion, TaskHandle
from weft.client.requests.known_tasks import KnownTask
from weft.client.requests.tasks import _Progress, _Waiting
from weft.client.results import ToolResult

LONG = 30
QUESTION = {"mode": "form", "message": "Who?", "requestedSchema": NAME}


def waiting_session() -> TaskServer:
    """A server whose task does not end, and whose client waits for its result."""
    server = TaskServer(is_session=True)
    server.on["tasks/result"] = lambda _: SILENCE
    return server


# --- before the call is a task


async def test_the_time_of_the_user_before_the_call_is_a_task_does_not_count() -> None:
    """In a round of questions, as for a call without a task."""
    server = TaskServer()

    def call(message: dict[str, Any]) -> Any:
        if "inputResponses" not in message["params"]:
            return {"resultType": "input_required", "inputRequests": {"a": form()}}
        return {**handle(server.task), "resultType": "task"}

    async def elicit(_: FormQuestion) -> dict[str, str]:
        await asyncio.sleep(1.2)
        server.task = done("late")
        return {"name": "Ann"}

    server.on["tools/call"] = call
    async with asyncio.timeout(LONG), Client(server, elicit=elicit) as client:
        assert (await client.call_tool("t", timeout=1)).text == "late"
    assert not server.calls("tasks/cancel")


async def test_the_time_to_confirm_a_call_does_not_count() -> None:
    server = TaskServer()

    async def confirm(_: Any) -> bool:
        await asyncio.sleep(1.2)
        return True

    async with asyncio.timeout(LONG), Client(server, confirm=confirm) as client:
        calling = asyncio.create_task(client.call_tool("t", timeout=1))
        await server.asked("tools/call")
        server.task = done("late")
        assert (await calling).text == "late"


async def test_a_question_in_the_session_before_the_call_is_a_task_does_not_count() -> None:
    server = TaskServer(is_session=True)
    server.on["tools/call"] = lambda _: SILENCE

    async def elicit(_: FormQuestion) -> dict[str, str]:
        await asyncio.sleep(1.2)
        return {"name": "Ann"}

    async with asyncio.timeout(LONG), Client(server, eras=("session",), elicit=elicit) as client:
        calling = asyncio.create_task(client.call_tool("t", timeout=1))
        await server.asked("tools/call")
        server.say({"id": "q", "method": "elicitation/create", "params": QUESTION})
        await eventually(lambda: any(one.get("id") == "q" for one in server.heard))
        server.answer(server.calls("tools/call")[0], {"task": server._shown()})
        assert (await calling).text == "done"


async def test_the_time_until_the_server_answers_with_the_task_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a part of the time that the program gives."""
    left: list[float] = []

    async def follow(*_: Any, **options: Any) -> ToolResult:
        left.append(options["left"])
        return ToolResult()

    monkeypatch.setattr(TaskHandle, "follow", follow)
    server = TaskServer()
    server.on["tools/call"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t", timeout=20))
        await server.asked("tools/call")
        await asyncio.sleep(0.5)
        server.answer(server.calls("tools/call")[0], {**handle(server.task), "resultType": "task"})
        await calling
    assert 0 < left[0] <= 19.51


# --- a call that asks for a task, in a session


@pytest.mark.spec("TASK-22")
@pytest.mark.parametrize("verb", ["call", "start"])
async def test_a_call_that_takes_too_long_to_become_a_task_cancels_it_when_it_is_one(verb: str) -> None:
    """The protocol forbids to cancel a request with `task` by a notification."""
    server = TaskServer(is_session=True)
    server.on["tools/call"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        use: Any = client.call_tool if verb == "call" else client.start_tool
        with pytest.raises(RequestTimeout, match=r"did not answer tools/call .* the client cancels it\."):
            await use("t", timeout=0.2)
        assert not server.calls("tasks/cancel")
        server.answer(server.calls("tools/call")[0], {"task": server._shown()})
        await server.asked("tasks/cancel")
        assert (await client.request("tools/list"))["tools"]  # all that was sent before has arrived
    assert not server.calls("notifications/cancelled")
    assert len(server.calls("tasks/cancel")) == 1


@pytest.mark.parametrize("answer", ["never", "error", "result"])
async def test_a_call_that_never_becomes_a_task_is_forgotten(answer: str) -> None:
    server = TaskServer(is_session=True)
    server.on["tools/call"] = lambda _: SILENCE
    limits = ClientLimits(total_seconds=0.5)
    async with asyncio.timeout(LONG), Client(server, eras=("session",), limits=limits) as client:
        await client.list_tools()
        before = len(client._connected()._tasks)
        with pytest.raises(RequestTimeout):
            await client.call_tool("t", timeout=0.1)
        assert len(client._connected()._tasks) > before
        call = server.calls("tools/call")[0]
        if answer == "error":
            server.answer(call, error={"code": 7, "message": "no"})
        elif answer == "result":
            server.answer(call, result("plain"))
        await eventually(lambda: len(client._connected()._tasks) == before)
    assert not server.calls("tasks/cancel")


@pytest.mark.spec("TASK-22", "new-17")
@pytest.mark.parametrize("ended_by", ["cancel", "timeout"])
async def test_nothing_is_asked_of_a_task_after_it_was_cancelled(ended_by: str) -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t", timeout=0.3 if ended_by == "timeout" else None))
        await server.asked("tasks/get", 2)
        if ended_by == "cancel":
            calling.cancel()
        await asyncio.wait([calling])
        await asyncio.sleep(0.2)  # it was polled every 50 ms
    methods = [one["method"] for one in server.heard if one["method"].startswith("tasks/")]
    assert methods[-1] == "tasks/cancel"
    assert methods.count("tasks/cancel") == 1


# --- questions


async def test_pings_do_not_restart_the_time() -> None:
    server = waiting_session()
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        calling = asyncio.create_task(client.call_tool("t", timeout=0.4))
        pings = 0
        while not calling.done():
            pings += 1
            server.say({"id": f"p{pings}", "method": "ping"})
            await asyncio.wait([calling], timeout=0.05)
        with pytest.raises(RequestTimeout, match=r"within 0\.4 s"):
            await calling


@pytest.mark.parametrize("of", ["another task", "another call"])
async def test_the_questions_of_others_do_not_stop_the_time(of: str) -> None:
    server = waiting_session()
    streams: dict[str, Exchange] = {}
    go_on = asyncio.Event()

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc in ("tasks/result", "prompts/get"):
            server.heard.append(exchange.message)
            streams[exchange.rpc] = exchange
            await exchange.stream()
            await exchange.hang()
        await server.serve(exchange)

    async def elicit(_: FormQuestion) -> dict[str, str]:
        await go_on.wait()
        return {"name": "Ann"}

    async with (
        asyncio.timeout(LONG),
        http_server(serve) as url,
        Client(url, eras=("session",), elicit=elicit) as client,
    ):
        calling = asyncio.create_task(client.call_tool("t", timeout=1))
        other = asyncio.create_task(client.get_prompt("p"))
        await eventually(lambda: len(streams) == 2)
        related = {"_meta": {RELATED: {"taskId": "another"}}} if of == "another task" else {}
        stream = streams["tasks/result" if of == "another task" else "prompts/get"]
        await stream.raw(event({"id": "q", "method": "elicitation/create", "params": {**QUESTION, **related}}))
        with pytest.raises(RequestTimeout, match=r"within 1 s"):
            await calling
        go_on.set()
        other.cancel()
        await asyncio.wait([other])


@pytest.mark.parametrize("of", ["the task", "the request", "nothing"])
async def test_the_time_of_a_question_in_a_session_does_not_count(of: str) -> None:
    """The question names the task, or comes on the stream of `tasks/result`, or says nothing about its reason."""
    server = waiting_session()
    streams: list[Exchange] = []
    go_on = asyncio.Event()

    async def serve(exchange: Exchange) -> None:
        if exchange.rpc == "tasks/result" or exchange.method == "GET":
            streams.append(exchange)
            await exchange.stream()
            await exchange.hang()
        await server.serve(exchange)

    async def elicit(_: FormQuestion) -> dict[str, str]:
        await go_on.wait()
        return {"name": "Ann"}

    async with (
        asyncio.timeout(LONG),
        http_server(serve) as url,
        Client(url, eras=("session",), elicit=elicit) as client,
    ):
        calling = asyncio.create_task(client.call_tool("t", timeout=1))
        await eventually(lambda: len(streams) == 2)
        related = {"_meta": {RELATED: {"taskId": server.task["taskId"]}}} if of == "the task" else {}
        stream = next(one for one in streams if (one.rpc == "tasks/result") is (of != "nothing"))
        await stream.raw(event({"id": "q", "method": "elicitation/create", "params": {**QUESTION, **related}}))
        await asyncio.sleep(1.5)
        assert not calling.done()
        known, asked = client._tasks.all[server.task["taskId"]], time.monotonic()
        assert known.answered_at == 0
        go_on.set()
        waiting = next(one for one in streams if one.rpc == "tasks/result")
        await eventually(lambda: any(one.get("id") == "q" for one in server.heard))
        await waiting.raw(event({"id": waiting.message["id"], "result": result("in time")}))
        assert (await calling).text == "in time"
        assert known.answered_at > asked  # so the time counts from then


def test_an_answer_restarts_the_time() -> None:
    known, limits = KnownTask("t"), ClientLimits()
    shown = _Progress(limits, None)
    waiting = _Waiting(limits, 5.0, left=3.0)  # the server took 2 s to answer with the task
    assert 2.5 < waiting.left(known, shown) <= 3
    known.held = 1
    assert waiting.left(known, shown) == pytest.approx(5)
    known.held, known.answered_at = 0, time.monotonic() + 100
    assert 104 < waiting.left(known, shown) <= 105
    shown.last = time.monotonic() + 200
    assert 204 < waiting.left(known, shown) <= 205


def test_nothing_lengthens_the_longest_time() -> None:
    known, limits = KnownTask("t"), ClientLimits(task_seconds=10)
    shown = _Progress(limits, None)
    waiting = _Waiting(limits, 100, left=100)
    known.answered_at = time.monotonic() + 100
    assert waiting.left(known, shown) <= 10
    assert "within 10 s" in waiting.message("t", is_call=True)
    assert "ClientLimits(task_seconds=...)" in waiting.message("t", is_call=True)


# --- what the error says


async def test_the_error_names_the_time_that_the_program_gave_and_what_becomes_of_the_task() -> None:
    server = TaskServer()
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(RequestTimeout) as called:
            await client.call_tool("t", timeout=0.25)
        server.task = state()
        started = await client.start_tool("t")
        with pytest.raises(RequestTimeout) as waited:
            await started.result(timeout=0.25)
    began = "The task of 't' was not done within 0.25 s. To wait longer, give `timeout=`."
    goes_on = "It goes on: await `result` again, or take it up later by the `id` of the handle, with `client.task`."
    assert (
        str(called.value) == f"{began} The client cancels it. A task goes on if you start it with `client.start_tool`."
    )
    assert str(waited.value) == f"{began} {goes_on}"
    assert len(server.calls("tasks/cancel")) == 1
