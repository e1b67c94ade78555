"""Tasks of servers on other SDKs: the peers' own clients show what these servers do, and Weft's client uses them.

    fastmcp     FastMCP 4.1 with fastmcp-tasks, in memory: the tasks extension of 2026-07-28
    mcp1        the official Python SDK 1.30, `server.experimental.enable_tasks()`: the tasks of 2025-11-25
    ts1         the official TypeScript SDK 1.32, with its task store in memory: the same

Where they differ from the specification, the docstrings say so.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from studios import Facts, Target, drive, run, studio

from weft import Client, RemoteError, RequestTimeout, TaskEnded
from weft.client import PendingQuestions

RELATED = "io.modelcontextprotocol/related-task"
PRINT = {"photo": "attic", "size": "10x15"}
ASKED = [["Which wood for attic?", {"ttl": 60_000}, True], ["Name attic.", {"ttl": 60_000}, True]]


@pytest.fixture(scope="module")
def fastmcp() -> Facts:
    return run("fastmcp", "fastmcp", "http", "quick,slow,ask,cancel,fail,required,unknown")["steps"]


@pytest.fixture(scope="module", params=["mcp1", "ts1"])
def session(request: pytest.FixtureRequest) -> Facts:
    steps = "quick,slow,ask,cancel,fail,required,refused,push"
    return {"of": request.param, **run(request.param, request.param, "http", steps)["steps"]}


def test_fastmcps_studio(fastmcp: Facts) -> None:
    """It tells of each state when it was asked: `lastUpdatedAt` is the time of the answer."""
    assert fastmcp["quick"]["handle"]["status"] == "working"
    assert fastmcp["quick"]["final"]["result"]["structuredContent"] == PRINT
    assert [state["statusMessage"] for state in fastmcp["slow"]["states"]] == ["painting (1/2)", "painting (2/2)"]
    assert fastmcp["ask"]["accept"] == "attic in oak"
    assert fastmcp["ask"]["two"] == "attic at 150 cm on the north wall"
    assert fastmcp["cancel"]["final"]["status"] == "cancelled"
    assert fastmcp["fail"]["spill"]["final"]["result"]["isError"] is True
    assert fastmcp["fail"]["tear"]["final"]["error"]["code"] == 1001
    assert fastmcp["required"] == "Ada, in copper"
    assert fastmcp["unknown"]["code"] == -32602


def test_fastmcps_studio_and_the_client_in_typescript() -> None:
    """FastMCP and ext-tasks agree on the extension, over stdio as well."""
    steps = run("ext-v2", "fastmcp", "stdio", "quick,slow,cancel,resume")["steps"]
    assert (steps["quick"]["handle"]["kind"], steps["quick"]["status"]) == ("task", "completed")
    assert steps["slow"]["messages"] == [None, "painting (1/2)", "painting (2/2)"]
    assert (steps["cancel"]["status"], steps["resume"]["text"]) == ("cancelled", "stairs in oak")


def test_studios_of_sessions(session: Facts) -> None:
    quick, ask = session["quick"], session["ask"]
    task = quick["created"]["task"]
    assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", 90_000, 50)
    assert quick["result"]["structuredContent"] == PRINT
    assert quick["result"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}
    messages = [state.get("statusMessage") for state in session["slow"]["states"]]
    assert [message for message in dict.fromkeys(messages) if message] == ["painting (1/2)", "painting (2/2)"]
    assert ask["waiting"]["status"] == "input_required"
    assert (ask["accept"], ask["decline"]) == ("attic in oak", "cellar without a frame")
    assert ask["two"] == "attic at 150 cm on the north wall"
    assert ask["sample"] == "Morning Light"
    assert ask["related"][0] == ask["waiting"]["taskId"]
    assert session["required"] == "Ada, in copper"
    assert session["refused"]["unknown"]["code"] == -32602


def test_how_studios_of_sessions_end_tasks(session: Facts) -> None:
    """None of them stops the handler of a cancelled task, and none has the JSON-RPC error of a task that has failed.

    With the Python SDK, a tool that fails completes its task, and a task without a result has one without content.
    """
    cancel, spill, tear = session["cancel"], session["fail"]["spill"], session["fail"]["tear"]
    assert cancel["cancelled"]["status"] == "cancelled"
    assert cancel["again"]["code"] == -32602
    assert tear["final"]["status"] == "failed"
    assert tear["final"]["statusMessage"] == "The sheet is torn."
    if session["of"] == "mcp1":
        assert spill["final"]["status"] == "completed"
        assert spill["result"]["isError"] is True
        assert cancel["result"] == tear["result"] == {"unreadable": True}
    else:
        assert spill["final"]["status"] == "failed"
        assert spill["result"]["result"]["isError"] is True
        assert cancel["result"]["code"] == tear["result"]["code"] == -32603


def test_studios_of_sessions_notify(session: Facts) -> None:
    """They send each status on the stream that a session has open beside its requests; and no progress."""
    push = session["push"]
    statuses = [(params["status"], params["statusMessage"]) for params in push["heard"]]
    assert statuses == [("working", "drying (1/2)"), ("working", "cooling (2/2)"), ("completed", "cooling (2/2)")]
    assert push["progress"] == []


@pytest.mark.parametrize(("server", "way"), [("mcp1", "http"), ("ts1", "http"), ("mcp1", "stdio"), ("ts1", "stdio")])
def test_studios_of_sessions_ask_the_client_by_tasks(server: str, way: Any) -> None:
    """The client answers sampling and elicitation with a task of its own, here that of ext-tasks."""
    with studio(server, way) as target:
        assert drive("receiver", way, target, "ask_as_task") == {"text": "Morning Light in oak", "asked": ASKED}
        if server == "mcp1":
            inside = drive("receiver", way, target, "ask_as_task_in_a_task")
            assert inside == {"text": "Morning Light in oak", "asked": ASKED}


# --- Weft's client

ANSWERS = {"wood": "oak", "height": 150, "wall": "north"}
NAMES = ["fastmcp", "mcp1", "ts1"]


class Person:
    """Answers the questions of a server, and stores what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.declines = False

    def elicit(self, question: Any) -> dict[str, Any] | None:
        self.asked.append(question.message)
        return None if self.declines else {name: ANSWERS[name] for name in question.schema["properties"]}

    def sample(self, params: Any) -> str:
        self.asked.append(params.messages[0].content.text)
        return "Morning Light"

    def client(self, target: Target, **options: Any) -> Client:
        return Client(target, elicit=self.elicit, sample=self.sample, **options)


@pytest.fixture(scope="module", params=NAMES)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """The SDK of a studio, and its URL."""
    with studio(request.param, "http") as url:
        yield request.param, url


@pytest.fixture(scope="module")
def fastmcp_url() -> Iterator[Any]:
    with studio("fastmcp", "http") as url:
        yield url


@pytest.fixture(scope="module", params=["mcp1", "ts1"])
def session_url(request: pytest.FixtureRequest) -> Iterator[Any]:
    with studio(request.param, "http") as url:
        yield url


async def paint(client: Client) -> list[tuple[str, str | None]]:
    """Let both layers of a picture be painted, and return the states of that task."""
    handle, states = await client.start_tool("render", {"picture": "attic"}), []
    async for state in handle:
        states.append((state.status, state.message))
        if state.message is not None and state.status == "working":
            await client.call_tool("go_on", {"picture": "attic"})
    assert (await handle.result()).text in ('["attic 1","attic 2"]', "attic 1, attic 2")
    return states


async def test_wefts_client_gets_results(place: tuple[str, Any]) -> None:
    name, url = place
    async with Person().client(url) as client:
        assert client.era == ("stateless" if name == "fastmcp" else "session")
        assert (await client.call_tool("add", {"a": 2, "b": 3})).text == "5"
        assert (await client.call_tool("develop", {"photo": "attic"})).structured == PRINT
        handle = await client.start_tool("develop", {"photo": "attic"})
        assert handle.id
        assert handle.immediate_response == ("The photo is still wet." if name == "mcp1" else None)
        assert (await handle.result()).structured == PRINT
        state = await handle.status()
        assert (state.id, state.status, state.poll) == (handle.id, "completed", 0.05)
        assert 0 <= state.updated - state.created < 60
        assert (await client.call_tool("engrave", {"text": "Ada"})).text == "Ada, in copper"


async def test_wefts_client_sees_status_messages(place: tuple[str, Any]) -> None:
    _, url = place
    async with Person().client(url) as client:
        states = await paint(client)
        assert states[-1][0] == "completed"
        assert [state for state in states if state[1] is not None and state[0] == "working"] == [
            ("working", "painting (1/2)"),
            ("working", "painting (2/2)"),
        ]


async def test_wefts_client_shows_status_messages_as_progress(place: tuple[str, Any]) -> None:
    _, url = place
    shown: list[str] = []

    async def show(update: Any) -> None:
        shown.append(update.message)
        await client.call_tool("go_on", {"picture": "attic"})

    async with Person().client(url) as client:
        assert "attic 2" in (await client.call_tool("render", {"picture": "attic"}, progress=show)).text
    assert shown == ["painting (1/2)", "painting (2/2)"]


async def test_wefts_client_answers_questions(place: tuple[str, Any]) -> None:
    """FastMCP's studio asks two questions at once; the others cannot."""
    name, url = place
    person = Person()
    async with person.client(url) as client:
        assert (await client.call_tool("frame", {"picture": "attic"})).text == "attic in oak"
        assert (await client.call_tool("hang", {"picture": "attic"})).text == "attic at 150 cm on the north wall"
        person.declines = True
        assert (await client.call_tool("frame", {"picture": "cellar"})).text == "cellar without a frame"
        if name != "fastmcp":
            assert (await client.call_tool("name_it", {"picture": "attic"})).text == "Morning Light"
    assert person.asked[0] == "Which wood for attic?"
    assert sorted(person.asked[1:3]) == ["At which height?", "On which wall?"]
    assert person.asked[3:] == ["Which wood for cellar?", *(["Name attic."] if name != "fastmcp" else [])]


async def test_wefts_client_answers_questions_while_it_reads_states(place: tuple[str, Any]) -> None:
    _, url = place
    async with Person().client(url) as client:
        handle = await client.start_tool("frame", {"picture": "attic"})
        async with asyncio.timeout(30):
            statuses = [state.status async for state in handle]
        assert "input_required" in statuses
        assert statuses[-1] == "completed"
        assert (await handle.result()).text == "attic in oak"


async def test_wefts_client_sees_tools_fail(place: tuple[str, Any]) -> None:
    _, url = place
    async with Person().client(url) as client:
        failed = await client.call_tool("spill", {"colour": "red"})
        assert (failed.is_error, failed.text) == (True, "There is no red any more.")
        with pytest.raises(TaskEnded):
            await client.task("no-such-task-in-this-studio").result()


async def test_wefts_client_sees_why_a_task_has_no_result(session_url: str) -> None:
    """The answers of these servers to `tasks/result` do not say it: the state of the task does."""
    async with Person().client(session_url) as client, asyncio.timeout(30):
        with pytest.raises(RemoteError, match="The sheet is torn"):
            await client.call_tool("tear", {"paper": "sheet"})
        handle = await client.start_tool("render", {"picture": "cellar"})
        await handle.cancel()
        with pytest.raises(TaskEnded, match="cancelled"):
            await handle.result()
        waiting = await client.start_tool("render", {"picture": "cellar"})
        result = asyncio.create_task(waiting.result())
        await client.call_tool("add", {"a": 2, "b": 3})  # `tasks/result` was sent before
        await waiting.cancel()
        with pytest.raises(TaskEnded, match="cancelled"):
            await result


async def test_wefts_client_stops_waiting(place: tuple[str, Any]) -> None:
    """A call that takes too long cancels its task."""
    _, url = place
    async with Person().client(url) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("render", {"picture": "hall"}, timeout=0.3)
        handle = await client.start_tool("render", {"picture": "hall"})
        await handle.cancel()
        assert (await handle.status()).status == "cancelled"
        await handle.cancel()  # of a task that has ended


async def test_wefts_client_without_tasks(place: tuple[str, Any]) -> None:
    """Both official SDKs answer with a tool that has failed, instead of the error -32601."""
    name, url = place
    async with Person().client(url, tasks=False) as client:
        assert (await client.call_tool("develop", {"photo": "attic"})).structured == PRINT
        if name == "fastmcp":
            with pytest.raises(RemoteError) as refused:
                await client.call_tool("engrave", {"text": "Ada"})
            assert refused.value.code == -32021
        else:
            assert (await client.call_tool("engrave", {"text": "Ada"})).is_error


async def test_wefts_client_and_fastmcp(fastmcp_url: str) -> None:
    """The end of tasks with an error, a call that is given up, and a task that another client takes up."""
    async with Person().client(fastmcp_url) as client:
        with pytest.raises(RemoteError) as torn:
            await client.call_tool("tear", {"paper": "sheet"})
        assert (torn.value.code, torn.value.data) == (1001, {"paper": "sheet"})
        begun = asyncio.Event()
        call = asyncio.create_task(client.call_tool("render", {"picture": "tower"}, progress=lambda _: begun.set()))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])
        async with asyncio.timeout(30):
            while (await client.call_tool("count_stopped")).text == "0":  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        stored = (await client.start_tool("frame", {"picture": "stairs"})).id
        cancelled = await client.start_tool("frame", {"picture": "stairs"})
        await cancelled.cancel()
        with pytest.raises(TaskEnded, match="cancelled"):
            await cancelled.result()
    assert stored is not None
    async with Person().client(fastmcp_url) as client:
        assert (await client.task(stored, tool="frame").result()).text == "stairs in oak"


async def test_wefts_client_answers_by_hand(fastmcp_url: str) -> None:
    async with Person().client(fastmcp_url, manual_input=True) as client:
        handle = await client.start_tool("hang", {"picture": "attic"})
        with pytest.raises(PendingQuestions) as pending:
            await handle.result()
        assert pending.value.task is handle
        answers = {}
        for key, request in pending.value.requests.items():
            [name] = request.params["requestedSchema"]["properties"]
            answers[key] = {"action": "accept", "content": {name: ANSWERS[name]}}
        await handle.answer(answers)
        assert (await handle.result()).text == "attic at 150 cm on the north wall"


async def test_wefts_client_hears_notifications_of_a_session() -> None:
    """They alone show it the states: the task says that clients should poll every ten minutes.

    The first one may come before the client follows the task, so the picture goes on whatever was heard.
    """
    with studio("mcp1", "http") as url:
        async with Person().client(url) as client:
            handle, heard = await client.start_tool("dry", {"picture": "attic"}), []
            states = aiter(handle)
            state = await anext(states)
            assert state.poll == 600
            await client.call_tool("go_on", {"picture": "attic"})
            async with asyncio.timeout(30):
                async for state in states:
                    heard.append((state.status, state.message))
                    if heard[-1] == ("working", "cooling (2/2)"):
                        await client.call_tool("go_on", {"picture": "attic"})
            assert heard[-2:] == [("working", "cooling (2/2)"), ("completed", "cooling (2/2)")]


async def test_wefts_client_answers_as_tasks(session_url: str) -> None:
    """The server has added `task` to its questions, and polls the client for the answers."""
    person = Person()
    async with person.client(session_url) as client:
        assert (await client.call_tool("ask_as_task", {"picture": "attic"})).text == "Morning Light in oak"
        if "ask_as_task_in_a_task" in {tool.name for tool in await client.list_tools()}:
            inside = await client.call_tool("ask_as_task_in_a_task", {"picture": "hall"})
            assert inside.text == "Morning Light in oak"
            assert person.asked[2:] == ["Which wood for hall?", "Name hall."]
    assert person.asked[:2] == ["Which wood for attic?", "Name attic."]


@pytest.mark.parametrize("name", NAMES)
async def test_wefts_client_over_stdio(name: str) -> None:
    person = Person()
    with studio(name, "stdio") as command:
        async with person.client(command) as client:
            assert (await client.call_tool("develop", {"photo": "attic"})).structured == PRINT
            assert (await paint(client))[-1][0] == "completed"
            assert (await client.call_tool("frame", {"picture": "attic"})).text == "attic in oak"
            assert (await client.call_tool("spill", {"colour": "red"})).is_error
            if name != "fastmcp":
                assert (await client.call_tool("ask_as_task", {"picture": "hall"})).text == "Morning Light in oak"
    assert person.asked[0] == "Which wood for attic?"
