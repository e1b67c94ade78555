"""Tasks whose changes the server sends: heard instead of polled, and polled again when the stream lies or ends."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from support import serve
from support.raw_sessions import eventually
from support.task_servers import ID, SILENCE, Refusal, TaskServer, done, form, state
from weft import Client, ClientLimits, Context, Server, Task
from weft.client import FormQuestion
from weft.client.requests import known_tasks

LONG = 30
SOON = 10  # seconds: less than the client waits for the changes that a server has promised


def slowly(*, pushes: bool = True) -> TaskServer:
    """A server that wants to be asked once a minute, and sends changes."""
    return TaskServer(state(pollIntervalMs=60_000), pushes=pushes)


async def listening(server: TaskServer, client: Client) -> None:
    await eventually(lambda: any(known.promise for known in client._tasks._followed))
    assert server.streams


@pytest.mark.spec("new-19", "TASK-26a", "TASK-26b")
async def test_a_pushed_state_is_used_at_once() -> None:
    server, shown = slowly(), list[str | None]()
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t", progress=lambda update: shown.append(update.message)))
        await listening(server, client)
        server.push(state(statusMessage="half", pollIntervalMs=60_000))
        await eventually(lambda: shown)
        server.push(done("pushed"))
        assert (await calling).text == "pushed"
        await server.asked("notifications/cancelled")  # the stream is ended when nobody follows the task
    assert shown == ["half"]
    assert not server.calls("tasks/get")  # it was not time to ask yet
    assert [one["params"]["notifications"] for one in server.calls("subscriptions/listen")] == [{"taskIds": [ID]}]
    ended = [one["params"]["requestId"] for one in server.calls("notifications/cancelled")]
    assert ended == server.streams


async def test_the_state_is_read_once_after_the_stream_has_begun_and_then_rarely() -> None:
    """A change could have come before the stream. After that, the server promised to send each change."""
    server = TaskServer(state(), pushes=True)
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await listening(server, client)
        await eventually(lambda: all(known.is_complete for known in client._tasks._followed))
        polled = len(server.calls("tasks/get"))
        for number in range(10):
            server.push(state(statusMessage=f"{number}"))
            await asyncio.sleep(0.06)  # longer than the interval at which it polls
        assert len(server.calls("tasks/get")) == polled
        server.push(done())
        await calling


async def test_a_stream_that_promises_and_says_nothing_delays_the_end_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_tasks, "LISTENING_POLL", 0.3)
    server = TaskServer(pushes=True)
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await listening(server, client)
        server.task = done("found")
        assert (await calling).text == "found"


@pytest.mark.parametrize("answer", ["other", "none", "error", "silence", "ended"])
async def test_a_server_that_does_not_send_this_task_is_polled(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_tasks, "_LISTEN_AGAIN_SECONDS", 0.01)
    server = TaskServer()

    def listen(message: dict[str, Any]) -> Any:
        told = {"other": {"taskIds": ["another"]}, "none": {}}.get(answer)
        if told is not None:
            meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
            params = {"notifications": told, "_meta": meta}
            server.say({"method": "notifications/subscriptions/acknowledged", "params": params})
        return {"error": Refusal(-32601, "no"), "ended": {"resultType": "complete"}}.get(answer, SILENCE)

    server.on["subscriptions/listen"] = listen
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/get", 8)
        server.task = done()
        await calling
        if answer == "none":  # it sends the changes of no task
            server.task = {**state(), "taskId": "another"}
            calling = asyncio.create_task(client.call_tool("t"))
            await server.asked("tasks/get", len(server.calls("tasks/get")) + 3)
            server.task = {**done(), "taskId": "another"}
            await calling
    most = {"other": 1, "none": 1, "error": 3, "silence": 1, "ended": 3}[answer]
    assert 1 <= len(server.calls("subscriptions/listen")) <= most


async def test_a_stream_is_opened_again_soon_and_failures_count_only_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """However rarely the server wants to be polled."""
    monkeypatch.setattr(known_tasks, "_LISTEN_AGAIN_SECONDS", 0.02)
    server = slowly()
    answers = iter([Refusal(-32603, "busy")] * 2 + [SILENCE] + [Refusal(-32603, "busy")] * 2)
    accepted = asyncio.Event()

    def listen(_: Any) -> Any:
        answer = next(answers, SILENCE)
        if answer is SILENCE:
            accepted.set()
        return answer

    server.on["subscriptions/listen"] = listen
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await accepted.wait()
        await listening(server, client)
        [stream] = server.streams
        server.streams.clear()
        accepted.clear()
        server.say({"id": stream, "result": {"resultType": "complete"}})
        await accepted.wait()
        await listening(server, client)
        server.push(done("heard"))
        assert (await calling).text == "heard"
    assert len(server.calls("subscriptions/listen")) == 6


async def test_a_stream_that_ends_is_opened_again_and_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_tasks, "_LISTEN_AGAIN_SECONDS", 0.1)
    server = TaskServer(pushes=True)
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await listening(server, client)
        [stream] = server.streams
        server.streams.clear()
        server.say({"id": stream, "result": {"resultType": "complete"}})
        await eventually(lambda: server.streams)  # another one
        await listening(server, client)
        server.push(done("heard"))
        assert (await calling).text == "heard"


async def test_what_is_sent_about_other_tasks_or_in_another_form_is_ignored() -> None:
    server = slowly()
    async with asyncio.timeout(LONG), Client(server) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await listening(server, client)
        for params in (
            {**done("wrong"), "taskId": "another"},
            {"taskId": ID, "status": "done"},
            {"taskId": 7},
            {},
            {**done(), "createdAt": 7},
        ):
            server.say({"method": "notifications/tasks", "params": params})
        server.say({"method": "notifications/tasks/status", "params": done("of another era")})
        server.push(done("right"))
        assert (await calling).text == "right"


async def test_a_pushed_state_that_is_older_is_ignored() -> None:
    """It was sent before the state that was read meanwhile."""
    server, shown = slowly(), list[str | None]()
    older, newer = state(statusMessage="older"), state(statusMessage="newer", pollIntervalMs=60_000)
    heard: list[str] = []

    def hear(_: str, params: Any) -> None:
        heard.append(params.get("statusMessage"))

    async with asyncio.timeout(LONG), Client(server, on_notification=hear) as client:
        calling = asyncio.create_task(client.call_tool("t", progress=lambda update: shown.append(update.message)))
        await listening(server, client)
        server.push(newer)
        await eventually(lambda: shown)
        server.push(older)
        await eventually(lambda: heard[-1:] == ["older"])
        server.push(state(statusMessage="newest", pollIntervalMs=60_000))
        await eventually(lambda: len(shown) == 2)
        server.push(done())
        await calling
    assert shown == ["newer", "newest"]


async def test_a_state_that_was_read_is_overtaken_by_one_that_was_pushed() -> None:
    """The question of the newer state is not taken back, and the client soon reads the state again to be sure."""
    server, asked = TaskServer(state(), pushes=True), list[str]()

    async def elicit(question: FormQuestion) -> dict[str, str]:
        asked.append(question.message)
        await server.asked("tasks/get", len(server.calls("tasks/get")) + 1)
        return {"name": "Ann"}

    def get(message: dict[str, Any]) -> Any:
        if server.streams:
            server.on["tasks/get"] = lambda _: {**server.task, "resultType": "complete"}
            older = {**server.task, "resultType": "complete"}
            asyncio.get_running_loop().call_soon(server.push, state("input_required", inputRequests={"a": form()}))
            asyncio.get_running_loop().call_soon(server.answer, message, older)
            return SILENCE
        return {**server.task, "resultType": "complete"}

    server.on["tasks/get"] = get
    async with asyncio.timeout(SOON), Client(server, elicit=elicit) as client:
        calling = asyncio.create_task(client.call_tool("t"))
        await server.asked("tasks/update")
        server.push(done())
        assert (await calling).text == "done"
    assert asked == ["Who?"]


async def test_all_who_follow_one_task_hear_each_change_on_one_stream() -> None:
    server, seen = slowly(), list[str]()
    async with asyncio.timeout(LONG), Client(server) as client:
        handle = await client.start_tool("t")

        async def iterate() -> None:
            async for one in client.task(ID):
                seen.append(one.status)

        waiting = [asyncio.create_task(iterate()), asyncio.create_task(handle.result())]
        await listening(server, client)
        await eventually(lambda: len(client._tasks.all[ID].followers) == 2)
        server.push(done())
        await asyncio.gather(*waiting)
    assert seen == ["working", "completed"]
    assert len(server.streams) == 1


async def test_many_tasks_listen_on_a_bounded_number_of_streams() -> None:
    server = slowly()
    async with asyncio.timeout(LONG), Client(server, limits=ClientLimits(task_streams=3)) as client:
        ids = [f"task-{number}" for number in range(10)]
        server.on["tasks/get"] = lambda message: {
            **(state() if server.task["status"] == "working" else done()),
            "taskId": message["params"]["taskId"],
            "resultType": "complete",
        }
        waiting = [asyncio.create_task(client.task(id).result()) for id in ids]
        await server.asked("tasks/get", 40)
        assert len(server.streams) == 3
        server.task = done()
        for stream in server.streams:
            server.say({"id": stream, "result": {"resultType": "complete"}})
        assert {one.text for one in await asyncio.gather(*waiting)} == {"done"}


# --- with a server of Weft


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = Server("drier")
    signals = asyncio.Semaphore(0)

    @server.tool(task=Task(poll=600))
    async def dry(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "drying")
        await signals.acquire()
        return "dry"

    @server.tool
    async def go_on() -> None:
        signals.release()

    with serve(server) as live:
        yield f"http://127.0.0.1:{live.port}/mcp"


@pytest.mark.spec("new-19")
async def test_weft_hears_from_weft(url: str) -> None:
    """A client that only polls would wait for ten minutes."""
    async with asyncio.timeout(LONG), Client(url) as client:

        async def show(update: Any) -> None:
            await client.call_tool("go_on")

        assert (await client.call_tool("dry", progress=show)).text == "dry"
