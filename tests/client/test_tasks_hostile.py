"""Servers that lie about tasks: the call fails with an error that says why, and the client works on."""

import asyncio
import json
from typing import Any

import pytest

from support.fakes import http_server, reply
from support.raw_sessions import eventually
from support.task_servers import ID, SILENCE, Refusal, TaskServer, done, form, result, state
from weft import Client, ClientLimits, InvalidAnswer, RemoteError, RequestTimeout, WeftError
from weft.eras import client_tasks

LONG = 30
KIB = 1024


async def still_works(server: TaskServer, client: Client) -> None:
    """Call another tool, which answers plainly."""
    server.on["tools/call"] = lambda _: result("fine")
    assert (await client.call_tool("other")).text == "fine"


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in state().items() if name != key}


HANDLES: dict[str, Any] = {
    "no id": without("taskId"),
    "an id that is a number": state(taskId=7),
    "an empty id": state(taskId=""),
    "an endless id": state(taskId="x" * (client_tasks._LONGEST_ID + 1)),
    "no status": without("status"),
    "an unknown status": state("sleeping"),
    "a status in another case": state("Working"),
    "a time to live that is a text": state(ttlMs="long"),
    "a poll interval that is a text": state(pollIntervalMs="often"),
    "a time that is a number": state(createdAt=1784160000),
    "a message that is an object": state(statusMessage={}),
    "questions that are a list": state("input_required", inputRequests=[form()]),
    "nested": {"task": state()},
}


@pytest.mark.security("D12")
@pytest.mark.parametrize("handle", HANDLES.values(), ids=HANDLES)
async def test_a_handle_that_is_none(handle: dict[str, Any]) -> None:
    server = TaskServer()
    server.on["tools/call"] = lambda _: {**handle, "resultType": "task"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer):
            await client.call_tool("t")
        await still_works(server, client)
    assert not server.calls("tasks/get")


@pytest.mark.parametrize("handle", HANDLES.values(), ids=HANDLES)
async def test_a_state_that_is_none(handle: dict[str, Any]) -> None:
    """The same in the answer to `tasks/get`. Nobody waits for the task then, so it is cancelled."""
    server = TaskServer()
    server.on["tasks/get"] = lambda _: {**handle, "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer):
            await client.call_tool("t")
        await still_works(server, client)
    assert len(server.calls("tasks/cancel")) == 1


@pytest.mark.spec("TASK-04")
@pytest.mark.parametrize("verb", ["read", "prompt", "complete", "list", "request", "ping"])
async def test_a_task_as_answer_to_anything_but_a_call(verb: str) -> None:
    server = TaskServer()
    methods = ("resources/read", "prompts/get", "completion/complete", "tools/list", "x/y")
    server.on.update(dict.fromkeys(methods, lambda _: {**state(), "resultType": "task"}))
    uses: dict[str, Any] = {
        "read": lambda client: client.read_resource("a://b"),
        "prompt": lambda client: client.get_prompt("p"),
        "complete": lambda client: client.complete("a", "b", prompt="p"),
        "list": lambda client: client.list_tools(),
        "request": lambda client: client.request("x/y"),
        "ping": lambda client: client.request("resources/read", {"uri": "a://b"}),
    }
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer):
            await uses[verb](client)
        await still_works(server, client)
    assert not server.calls("tasks/get")


@pytest.mark.spec("TASK-04")
async def test_a_handle_of_the_extension_in_a_session_is_no_answer() -> None:
    server = TaskServer(is_session=True)
    server.capability = None
    server.on["tools/call"] = lambda _: {**state(), "resultType": "task"}
    async with asyncio.timeout(LONG), Client(server, eras=("session",)) as client:
        with pytest.raises(InvalidAnswer, match="resultType 'task'"):
            await client.call_tool("t")
        await still_works(server, client)


async def test_a_state_of_another_task_is_no_answer() -> None:
    server = TaskServer()
    server.on["tasks/get"] = lambda _: {**done("of someone else"), "taskId": "another", "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer, match="about another task"):
            await client.call_tool("t")
        with pytest.raises(InvalidAnswer, match="about another task"):
            await client.task(ID).status()


@pytest.mark.parametrize("ttl", [0, -1, 1e300, 0.5, None])
@pytest.mark.parametrize("times", ["", "yesterday", "2026-07-28", "99999-01-01T00:00:00Z", "0001-01-01T00:00:00+23:00"])
async def test_senseless_times_do_not_matter(ttl: Any, times: str) -> None:
    server = TaskServer(state(ttlMs=ttl, createdAt=times, lastUpdatedAt=times))
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get")
        server.task = {**done(), "createdAt": times, "lastUpdatedAt": times, "ttlMs": ttl}
        assert (await calling).text == "done"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
async def test_numbers_that_are_none(number: str) -> None:
    """None of them makes the client wait without end, or not at all."""
    server = TaskServer()
    server.on["tools/call"] = lambda _: SILENCE
    async with asyncio.timeout(LONG), Client(server) as client:
        starting = asyncio.create_task(client.start_tool("t"))
        await server.asked("tools/call")
        handle = {**state(pollIntervalMs=-77), "resultType": "task"}
        server.say(reply(server.calls("tools/call")[0], handle).replace(b"-77", number.encode()))
        try:
            one = await anext(aiter(await starting))
        except WeftError:
            pass
        else:
            assert 0 <= one.poll <= client_tasks._LONGEST_POLL
        await still_works(server, client)


async def test_a_poll_interval_without_end_is_shortened() -> None:
    server = TaskServer(state(pollIntervalMs=1e300))
    async with asyncio.timeout(LONG), Client(server) as client:
        assert (await (await client.start_tool("t")).status()).poll == client_tasks._LONGEST_POLL
        with pytest.raises(RequestTimeout):
            await client.call_tool("t", timeout=0.2)


async def test_a_status_that_goes_back_is_shown_as_it_is_and_the_end_is_final() -> None:
    server = TaskServer()
    states = iter([state("input_required", inputRequests={}), state(), state("input_required"), done("end"), state()])
    server.on["tasks/get"] = lambda _: {**next(states), "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        seen = [one.status async for one in await client.start_tool("t")]
    assert seen == ["working", "input_required", "working", "input_required", "completed"]


RESULTS: dict[str, Any] = {
    "no result": {},
    "null": {"result": None},
    "a text": {"result": "done"},
    "a list": {"result": []},
    "content of no kind": {"result": {"content": [{"type": "smell"}]}},
    "another task": {"result": {**state(), "resultType": "task"}},
    "questions": {"result": {"resultType": "input_required", "inputRequests": {"a": form()}}},
}


@pytest.mark.parametrize("end", RESULTS.values(), ids=RESULTS)
async def test_a_task_that_completes_without_a_result(end: dict[str, Any]) -> None:
    server = TaskServer()
    server.on["tasks/get"] = lambda _: {**state("completed", **end), "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer):
            await client.call_tool("t")
        with pytest.raises(InvalidAnswer):
            await client.task("task-1").result()  # the first state that it reads is the final one
        assert len(server.calls("tasks/get")) <= 2
        await still_works(server, client)


@pytest.mark.parametrize("error", [None, "broken", [], {"code": "x", "message": 1}, {"message": "no code"}, SILENCE])
async def test_a_task_that_fails_without_an_error(error: Any) -> None:
    server = TaskServer()
    more = {} if error is SILENCE else {"error": error}
    server.on["tasks/get"] = lambda _: {**state("failed", **more), "resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        with pytest.raises(InvalidAnswer, match="an error that cannot be read"):
            await client.call_tool("t")
        await still_works(server, client)


async def test_what_does_not_belong_to_the_status_is_ignored() -> None:
    """Questions of a task that works, and the result of one that is cancelled."""
    server = TaskServer(state("working", inputRequests={"a": form()}, result=result("early")))
    async with asyncio.timeout(LONG), Client(server, elicit=lambda _: {"name": "Ann"}) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get", 2)
        server.task = state("cancelled", result=result("late"), error={"code": 1, "message": "x"})
        with pytest.raises(WeftError, match="The task was cancelled"):
            await calling
    assert not server.answers


@pytest.mark.security("D12")
@pytest.mark.parametrize("way", ["result", "message", "question", "handle"])
async def test_messages_that_are_too_large(way: str) -> None:
    server, big = TaskServer(), "x" * 300 * KIB
    match way:
        case "result":
            server.on["tasks/get"] = lambda _: {**done(big), "resultType": "complete"}
        case "message":
            server.on["tasks/get"] = lambda _: {**state(statusMessage=big), "resultType": "complete"}
        case "question":
            asked = state("input_required", inputRequests={"a": form(big)})
            server.on["tasks/get"] = lambda _: {**asked, "resultType": "complete"}
        case _:
            server.on["tools/call"] = lambda _: {**state(statusMessage=big), "resultType": "task"}
    limits = ClientLimits(message_bytes=100 * KIB)
    async with (
        asyncio.timeout(LONG),
        http_server(server.serve) as url,
        Client(url, limits=limits, elicit=lambda _: {"name": "A"}) as client,
    ):
        with pytest.raises(InvalidAnswer, match="message_bytes"):
            await client.call_tool("t")
        await still_works(server, client)


async def test_a_result_that_does_not_fit_the_output_schema() -> None:
    server = TaskServer()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    server.on["tools/list"] = lambda _: {"resultType": "complete", "tools": [tool]}
    server.task = state("completed", result={**result(), "structuredContent": {"n": "many"}})
    async with asyncio.timeout(LONG), Client(server) as client:
        for call in (
            lambda: client.call_tool("t"),
            lambda: client.task(ID, tool="t").result(),
        ):
            with pytest.raises(InvalidAnswer):
                await call()
        assert (await client.task(ID).result()).structured == {"n": "many"}  # of which tool, is not known


async def test_acks_that_are_none() -> None:
    """What `tasks/update` and `tasks/cancel` answer is not read."""
    server = TaskServer()
    for nonsense in ({"task": 7}, {"resultType": "task"}, state("working"), {}):
        server.on["tasks/update"] = server.on["tasks/cancel"] = lambda _, answer=nonsense: answer  # type: ignore[misc]
        async with asyncio.timeout(LONG), Client(server, manual_input=True) as client:
            server.task = state("input_required", inputRequests={"a": form()})
            handle = await client.start_tool("t")
            await handle.answer({"a": {"action": "decline"}})
            await handle.cancel()


async def test_a_cancel_that_is_refused_or_never_answered_does_not_hold_the_caller() -> None:
    for cancel in (Refusal(-32603, "no"), Refusal(-32601, "no"), SILENCE):
        server = TaskServer()
        server.on["tasks/cancel"] = lambda _, answer=cancel: answer  # type: ignore[misc]
        limits = ClientLimits(close_seconds=0.1)
        async with asyncio.timeout(LONG), Client(server, limits=limits) as client:
            with pytest.raises(RequestTimeout, match="was not done"):
                await client.call_tool("t", timeout=0.1)
            await still_works(server, client)


async def test_a_handle_that_ends_differently_than_the_server_said() -> None:
    """`tasks/cancel` was acknowledged, and the task completes: its result is the result."""
    server = TaskServer()
    server.on["tasks/cancel"] = lambda _: {"resultType": "complete"}
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")
        await handle.cancel()
        server.task = done("anyway")
        assert (await handle.result()).text == "anyway"


async def test_ids_with_any_characters() -> None:
    """Over HTTP they are encoded in the header."""
    server = TaskServer(state(taskId="naïve\r\nX-Evil: 1\x00 ☃"))
    async with asyncio.timeout(LONG), http_server(server.serve) as url, Client(url) as client:
        handle = await client.start_tool("t")
        await handle.status()
    sent = next(one for one in server.headers if one["mcp-method"] == "tasks/get")
    assert sent["mcp-name"].startswith("=?base64?")
    assert "x-evil" not in sent
    assert server.calls("tasks/get")[0]["params"]["taskId"] == server.task["taskId"]


async def test_an_id_is_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Without authorization it is all that one needs to read the result."""
    caplog.set_level("DEBUG", logger="weft")
    caplog.set_level("WARNING", logger="weft.client.wire")  # which shows all messages
    secret = "s3cret-" * 4
    server = TaskServer(state(taskId=secret, statusMessage="begun"))
    async with asyncio.timeout(LONG), Client(server, tasks=True) as client:
        failures: list[WeftError] = []
        for answer in (Refusal(-32602), Refusal(5), {**state(taskId=7)}, {**done(), "taskId": "x"}):
            server.on["tasks/get"] = lambda _, answer=answer: answer  # type: ignore[misc]
            handle = await client.start_tool("t")
            with pytest.raises(WeftError) as failure:
                await handle.result()
            failures.append(failure.value)
        server.on["tasks/get"] = lambda _: SILENCE
        with pytest.raises(RequestTimeout) as late:
            await (await client.start_tool("t")).result(timeout=0.1)
    text = caplog.text + json.dumps([str(one) for one in [*failures, late.value]])
    assert secret not in text


async def test_a_server_that_floods_with_states_holds_no_memory() -> None:
    server = TaskServer(pushes=True)
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await eventually(lambda: server.streams)
        for number in range(2000):
            server.push({**state(statusMessage=f"{number}"), "taskId": f"other-{number}"})
        assert list(client._tasks.all) == [ID]
        server.push(done())
        await calling
        assert not client._tasks._followed


async def test_internal_errors_are_tried_again_and_no_others() -> None:
    server = TaskServer()
    answers = iter([Refusal(-32603, "busy"), Refusal(-32603, "busy")])
    server.on["tasks/get"] = lambda _: next(answers, {**done(), "resultType": "complete"})
    async with asyncio.timeout(LONG), Client(server) as client:
        assert (await client.call_tool("t")).text == "done"
        server.on["tasks/get"] = lambda _: Refusal(-32603, "for ever")
    limits = ClientLimits(task_lost_seconds=0.1)
    async with asyncio.timeout(LONG), Client(server, limits=limits) as client:
        with pytest.raises(RemoteError, match="for ever"):
            await client.call_tool("t")
