"""The task clients of other SDKs drive a Weft server's tasks, over HTTP and stdio.

    fastmcp     FastMCP 4.1 with fastmcp-tasks: the tasks extension of 2026-07-28
    ext-v2      @modelcontextprotocol/ext-tasks on the TypeScript client 2.x: the same
    ext-v1      @modelcontextprotocol/ext-tasks in a session: the tasks of 2025-11-25
    mcp1        the official Python SDK 1.30, `session.experimental`: the same
    ts1         the official TypeScript SDK 1.32, `client.experimental.tasks`: the same

The server is servers/studio.py, in which nothing takes time by itself. Each driver runs once for a transport, and the
tests read its facts. What a peer cannot do, or does differently from the specification, is in the docstrings.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from studios import Facts, drive, studio

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
WAYS = ("http", "stdio")
PRINT = {"photo": "attic", "size": "10x15"}
NO_TASK = "Invalid params: there is no task with this id. It may have expired."
QUESTIONS = [
    ["Which wood for attic?", ["wood"]],
    ["Which wood for cellar?", ["wood"]],
    ["At which height?", ["height"]],
    ["On which wall?", ["wall"]],
]


def steps_of(client: str, way: str, url: str) -> Facts:
    if way == "http":
        return drive(client, "http", url)
    with studio("weft", "stdio") as command:
        return drive(client, "stdio", command)


@pytest.fixture(scope="module")
def url() -> Iterator[Any]:
    with studio("weft", "http") as target:
        yield target


@pytest.fixture(scope="module", params=WAYS)
def fastmcp(request: pytest.FixtureRequest, url: str) -> Facts:
    return steps_of("fastmcp", request.param, url)


@pytest.fixture(scope="module", params=WAYS)
def ext_v2(request: pytest.FixtureRequest, url: str) -> Facts:
    return steps_of("ext-v2", request.param, url)


@pytest.fixture(scope="module", params=WAYS)
def ext_v1(request: pytest.FixtureRequest, url: str) -> Facts:
    return steps_of("ext-v1", request.param, url)


@pytest.fixture(scope="module", params=[f"{client}-{way}" for client in ("mcp1", "ts1") for way in WAYS])
def session(request: pytest.FixtureRequest, url: str) -> Facts:
    """What the experimental clients of the official SDKs 1.x learnt."""
    client, _, way = request.param.partition("-")
    return {"client": client, **steps_of(client, way, url)}


def states(heard: list[Facts]) -> list[tuple[str, str | None]]:
    return [(params["status"], params.get("statusMessage")) for params in heard]


# --- FastMCP


def test_fastmcp_gets_a_handle_and_the_result(fastmcp: Facts) -> None:
    assert fastmcp["version"] == "2026-07-28"
    assert fastmcp["capabilities"]["extensions"] == {TASKS: {}}
    assert "tasks" not in fastmcp["capabilities"]
    quick = fastmcp["steps"]["quick"]
    handle, final = quick["handle"], quick["final"]
    assert (handle["resultType"], handle["status"]) == ("task", "working")
    assert (handle["ttlMs"], handle["pollIntervalMs"]) == (600_000, 50)
    assert not {"result", "error", "inputRequests", "requestState", "task"} & handle.keys()
    assert (final["resultType"], final["status"], final["taskId"]) == ("complete", "completed", handle["taskId"])
    assert final["createdAt"] == handle["createdAt"] <= final["lastUpdatedAt"]
    assert final["result"]["structuredContent"] == quick["result"] == PRINT
    assert quick["transparent"] == {"photo": "cellar", "size": "10x15"}  # by `call_tool`, which polls by itself


def test_fastmcp_sees_status_messages(fastmcp: Facts) -> None:
    slow = fastmcp["steps"]["slow"]
    assert states(slow["states"]) == [("working", "painting (1/2)"), ("working", "painting (2/2)")]
    assert slow["states"][0]["lastUpdatedAt"] < slow["states"][1]["lastUpdatedAt"]
    assert slow["result"] == ["attic 1", "attic 2"]


def test_fastmcp_answers_questions(fastmcp: Facts) -> None:
    """FastMCP's task client answers elicitations only."""
    ask = fastmcp["steps"]["ask"]
    assert ask["waiting"]["status"] == "input_required"
    [request] = ask["waiting"]["inputRequests"].values()
    assert (request["method"], request["params"]["message"]) == ("elicitation/create", "Which wood for attic?")
    assert ask["accept"] == "attic in oak"
    assert ask["decline"] == "cellar without a frame"
    assert ask["two"] == "attic at 150 cm on the north wall"
    assert ask["asked"] == QUESTIONS


def test_fastmcp_cancels(fastmcp: Facts) -> None:
    """The handler is stopped, too: the driver has waited for that. A second cancel is answered as well."""
    cancel = fastmcp["steps"]["cancel"]
    assert (cancel["final"]["status"], cancel["final"]["statusMessage"]) == ("cancelled", "The task was cancelled.")
    assert not {"result", "error"} & cancel["final"].keys()
    assert cancel["raised"] == f"Task {cancel['final']['taskId']} was cancelled"


def test_fastmcp_sees_failures(fastmcp: Facts) -> None:
    fail = fastmcp["steps"]["fail"]
    spilt, torn = fail["spill"]["final"], fail["tear"]["final"]
    assert (spilt["status"], spilt["result"]["isError"]) == ("completed", True)
    assert "error" not in spilt
    assert spilt["statusMessage"] == fail["spill"]["raised"] == "There is no red any more."
    assert (torn["status"], torn["statusMessage"]) == ("failed", "The sheet is torn.")
    assert torn["error"] == {"code": 1001, "message": "The sheet is torn.", "data": {"paper": "sheet"}}
    assert "result" not in torn
    assert fail["tear"]["raised"] == "The sheet is torn."


def test_the_server_decides_for_fastmcp_what_becomes_a_task(fastmcp: Facts) -> None:
    """`restore` asks in a round of the call, and becomes a task afterwards. FastMCP's client does both in one call."""
    steps = fastmcp["steps"]
    assert steps["required"] == "Ada, in copper"
    assert steps["immediate"]["text"] == "cat, in pencil"
    assert "returned a CallToolResult instead of a task" in steps["immediate"]["no_handle"]
    assert steps["late"] == {"text": "tower in oak", "asked": 1}


def test_the_client_beneath_fastmcp_knows_no_tasks(fastmcp: Facts) -> None:
    plainly = fastmcp["steps"]["plainly"]
    assert plainly["sum"] == "5"
    assert (plainly["optional"]["resultType"], plainly["optional"]["structuredContent"]) == ("complete", PRINT)
    assert plainly["required"]["code"] == -32021
    assert plainly["required"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def test_fastmcp_asks_for_a_task_that_is_not_there(fastmcp: Facts) -> None:
    """Over HTTP, FastMCP does not repeat the id of a task in `Mcp-Name`, as clients must. Weft accepts that."""
    assert fastmcp["steps"]["unknown"] == {"code": -32602, "message": NO_TASK}


def test_fastmcp_hears_notifications(fastmcp: Facts) -> None:
    """FastMCP's task client polls, and nothing else: an extension of the user's hears, and the user opens the stream.

    The task was never polled.
    """
    push = fastmcp["steps"]["push"]
    assert_pushed(push["task"], push["heard"])


def assert_pushed(task: str, heard: list[Facts]) -> None:
    """Each notification has the full state, as `tasks/get` would return it.

    The first one can be older than the first progress.
    """
    if states(heard[:1]) == [("working", None)]:
        heard = heard[1:]
    expected = [("working", "drying (1/2)"), ("working", "cooling (2/2)"), ("completed", "cooling (2/2)")]
    assert states(heard) == expected
    for params in heard:
        assert params["taskId"] == task
        assert {"createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"} <= params.keys()
        assert "io.modelcontextprotocol/subscriptionId" in params["_meta"]
    assert ["result" in params for params in heard] == [False, False, True]
    assert heard[-1]["result"]["content"][0]["text"] == "attic is dry."


# --- ext-tasks, 2026-07-28


def test_ext_v2_understands_the_server(ext_v2: Facts) -> None:
    assert ext_v2["version"] == "2026-07-28"
    assert ext_v2["understood"]["execution"] is True
    assert ext_v2["understood"]["inputResponses"] is True
    assert set(ext_v2["support"].values()) == {None}  # `taskSupport` is a word of 2025-11-25
    assert ext_v2["faults"] == []  # errors that the package reports beside its results


def test_ext_v2_gets_a_handle_and_the_result(ext_v2: Facts) -> None:
    quick = ext_v2["steps"]["quick"]
    assert (quick["handle"]["kind"], quick["status"]) == ("task", "completed")
    assert (quick["first"]["resultType"], quick["first"]["status"]) == ("task", "working")
    assert (quick["first"]["ttlMs"], quick["first"]["pollIntervalMs"]) == (600_000, 50)
    assert (quick["final"]["resultType"], quick["final"]["status"]) == ("complete", "completed")
    assert quick["final"]["result"]["structuredContent"] == quick["result"]["structuredContent"] == PRINT


def test_ext_v2_sees_status_messages(ext_v2: Facts) -> None:
    """Without a listen stream it polls, from the handle on, which has no message yet."""
    slow = ext_v2["steps"]["slow"]
    assert slow["messages"] == [None, "painting (1/2)", "painting (2/2)"]
    assert slow["result"]["structuredContent"] == ["attic 1", "attic 2"]


def test_ext_v2_answers_questions(ext_v2: Facts) -> None:
    ask = ext_v2["steps"]["ask"]
    assert ask["statuses"] == ["working", "input_required", "completed"]
    assert (ask["accept"], ask["decline"]) == ("attic in oak", "cellar without a frame")
    assert ask["two"] == "attic at 150 cm on the north wall"
    assert ask["sample"] == "Morning Light"
    assert ask["asked"] == [*QUESTIONS, ["Name attic."]]
    assert ask["contexts"] == [["task", "task-update"]] * 5


def test_ext_v2_answers_one_of_two_questions(ext_v2: Facts) -> None:
    """The answered one is gone at once, and the other one is still there."""
    by_hand = ext_v2["steps"]["by_hand"]
    assert by_hand["open"] == [2, 1]
    assert by_hand["answered"] == {"height": True, "wall": True}
    assert by_hand["text"] == "hall at 150 cm on the north wall"


def test_ext_v2_cancels(ext_v2: Facts) -> None:
    cancel = ext_v2["steps"]["cancel"]
    assert (cancel["status"], cancel["final"]["status"]) == ("cancelled", "cancelled")
    assert cancel["again"] == {}  # acknowledged, without a result


def test_ext_v2_sees_failures(ext_v2: Facts) -> None:
    fail = ext_v2["steps"]["fail"]
    assert (fail["spill"]["status"], fail["spill"]["result"]["isError"]) == ("completed", True)
    assert fail["tear"]["status"] == "failed"
    assert fail["tear"]["error"] == {"code": 1001, "message": "The sheet is torn.", "data": {"paper": "sheet"}}
    assert fail["tear"]["final"]["statusMessage"] == "The sheet is torn."
    assert not {"result", "inputRequests"} & fail["tear"]["final"].keys()
    assert not {"error", "inputRequests"} & fail["spill"]["final"].keys()


def test_the_server_decides_for_ext_v2_what_becomes_a_task(ext_v2: Facts) -> None:
    steps = ext_v2["steps"]
    assert steps["required"] == "Ada, in copper"
    assert steps["immediate"] == "immediate"
    assert steps["late"] == {"kind": "task", "text": "tower in oak", "asked": 1}
    assert steps["plainly"] == {"sum": "5"}


def test_ext_v2_takes_up_a_stored_task(ext_v2: Facts) -> None:
    """Over HTTP on another connection."""
    resume = ext_v2["steps"]["resume"]
    assert (resume["stored"]["generation"], resume["text"]) == ("v2", "stairs in oak")


def test_ext_v2_asks_for_a_task_that_is_not_there(ext_v2: Facts) -> None:
    assert ext_v2["steps"]["refused"] == {"unknown": {"code": -32602, "message": NO_TASK}}


def test_ext_v2_hears_notifications(ext_v2: Facts) -> None:
    """They alone lead it to the result: it has not polled, and would have waited ten minutes before its first poll."""
    push = ext_v2["steps"]["push"]
    assert (push["polls"], push["text"]) == (0, "attic is dry.")
    assert {notification["method"] for notification in push["heard"]} == {"notifications/tasks"}
    assert_pushed(push["task"], [notification["params"] for notification in push["heard"]])


# --- ext-tasks, 2025-11-25


def test_ext_v1_understands_the_server(ext_v1: Facts) -> None:
    assert ext_v1["version"] == "2025-11-25"
    assert ext_v1["capabilities"]["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    assert "extensions" not in ext_v1["capabilities"]
    assert (ext_v1["support"]["add"], ext_v1["support"]["engrave"]) == (None, "required")
    assert ext_v1["understood"]["requestedRetention"] is True
    assert ext_v1["faults"] == []


def test_ext_v1_gets_a_handle_and_the_result(ext_v1: Facts) -> None:
    quick = ext_v1["steps"]["quick"]
    assert (quick["handle"]["kind"], quick["status"]) == ("task", "completed")
    assert (quick["first"]["status"], quick["first"]["ttl"], quick["first"]["pollInterval"]) == ("working", 90_000, 50)
    assert quick["result"]["structuredContent"] == PRINT
    assert quick["result"]["_meta"] == {RELATED: {"taskId": quick["handle"]["taskId"]}}


def test_ext_v1_sees_status_messages(ext_v1: Facts) -> None:
    assert ext_v1["steps"]["slow"]["messages"] == [None, "painting (1/2)", "painting (2/2)"]


def test_ext_v1_answers_questions_of_tasks_result(ext_v1: Facts) -> None:
    """In a session, the package only polls: nothing comes of `input_required`, with servers of other SDKs neither.

    The specification wants a client to call `tasks/result` then. The driver does so beside the package, and from then
    on the package answers what comes on that stream.
    """
    ask = ext_v1["steps"]["ask"]
    assert ask["unheard"] == []  # it has polled five times in this status
    assert ask["statuses"] == ["working", "input_required", "completed"]
    assert (ask["accept"], ask["decline"]) == ("attic in oak", "cellar without a frame")
    assert ask["two"] == "attic at 150 cm on the north wall"
    assert ask["sample"] == "Morning Light"
    assert ask["asked"] == [*QUESTIONS, ["Name attic."]]
    assert ask["contexts"] == [["task", "peer-request"]] * 5  # found by the related task in `_meta`


def test_ext_v1_cancels(ext_v1: Facts) -> None:
    cancel = ext_v1["steps"]["cancel"]
    assert (cancel["status"], cancel["final"]["status"]) == ("cancelled", "cancelled")
    assert cancel["again"]["code"] == -32602


def test_ext_v1_sees_failures(ext_v1: Facts) -> None:
    """Of a task that has failed, it shows only the status message: so that has the text of the result, or the error."""
    fail = ext_v1["steps"]["fail"]
    assert (fail["spill"]["status"], fail["spill"]["error"]) == ("failed", {"message": "There is no red any more."})
    assert fail["spill"]["read"]["result"]["isError"] is True
    assert (fail["tear"]["status"], fail["tear"]["error"]) == ("failed", {"message": "The sheet is torn."})
    assert fail["tear"]["read"] == {"code": 1001, "message": "The sheet is torn.", "data": {"paper": "sheet"}}


def test_ext_v1_asks_for_every_task_itself(ext_v1: Facts) -> None:
    steps = ext_v1["steps"]
    assert (steps["required"], steps["immediate"], steps["plainly"]) == ("Ada, in copper", "task", {"sum": "5"})


def test_ext_v1_takes_up_a_stored_task(ext_v1: Facts) -> None:
    """Over HTTP in another session."""
    resume = ext_v1["steps"]["resume"]
    assert (resume["stored"]["generation"], resume["text"]) == ("v1", "stairs in oak")


def test_ext_v1_is_refused(ext_v1: Facts) -> None:
    refused = ext_v1["steps"]["refused"]
    assert refused["unknown"] == {"code": -32602, "message": NO_TASK}
    assert refused["list"]["code"] == -32601  # nobody knows who it is


def test_ext_v1_hears_notifications_of_tasks_result(ext_v1: Facts) -> None:
    """The driver has opened `tasks/result` beside the package, which has not polled, and would not for ten minutes."""
    push = ext_v1["steps"]["push"]
    assert (push["polls"], push["text"]) == (0, "attic is dry.")
    assert {notification["method"] for notification in push["heard"]} == {"notifications/tasks/status"}
    assert_told(push["task"], [notification["params"] for notification in push["heard"]])


def assert_told(task: str, heard: list[Facts]) -> None:
    assert states(heard) == [("working", "drying (1/2)"), ("working", "cooling (2/2)")]
    for params in heard:
        assert params["taskId"] == task
        assert {"createdAt", "lastUpdatedAt", "ttl", "pollInterval"} <= params.keys()
        assert RELATED not in params.get("_meta", {})


# --- the official SDKs 1.x


def test_session_clients_understand_the_server(session: Facts) -> None:
    assert session["version"] == "2025-11-25"
    assert session["capabilities"]["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    support = session["support"]
    assert (support["add"], support["develop"], support["engrave"]) == (None, "optional", "required")


def test_session_clients_get_a_handle_and_the_result(session: Facts) -> None:
    """They ask for a time to live of 90 seconds, and get it."""
    quick = session["steps"]["quick"]
    task = quick["created"]["task"]
    assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", 90_000, 50)
    assert quick["created"]["_meta"] == {"io.modelcontextprotocol/model-immediate-response": "The photo is still wet."}
    assert (quick["final"]["status"], quick["final"]["taskId"]) == ("completed", task["taskId"])
    assert not {"result", "error", "_meta"} & quick["final"].keys()
    assert quick["result"]["structuredContent"] == PRINT
    assert quick["result"]["_meta"] == {RELATED: {"taskId": task["taskId"]}}


@pytest.mark.parametrize("session", ["ts1-http", "ts1-stdio"], indirect=True)
def test_typescripts_generator_follows_a_task(session: Facts) -> None:
    followed = session["steps"]["quick"]["followed"]
    assert followed["created"]["status"] == "working"
    assert followed["states"][-1]["status"] == "completed"
    assert followed["result"]["structuredContent"] == {"photo": "cellar", "size": "10x15"}


def test_session_clients_see_status_messages(session: Facts) -> None:
    slow = session["steps"]["slow"]
    messages = [state.get("statusMessage") for state in slow["states"]]
    assert [message for message in dict.fromkeys(messages) if message] == ["painting (1/2)", "painting (2/2)"]
    assert slow["result"]["content"][0]["text"] == '["attic 1","attic 2"]'


def test_session_clients_answer_questions(session: Facts) -> None:
    """Each question has the id of its task in `_meta`; the one of a plain call has none."""
    ask, plainly = session["steps"]["ask"], session["steps"]["plainly"]
    assert ask["waiting"]["status"] == "input_required"
    assert (ask["accept"], ask["decline"]) == ("attic in oak", "cellar without a frame")
    assert ask["two"] == "attic at 150 cm on the north wall"
    assert ask["sample"] == "Morning Light"
    assert ask["asked"] == [*QUESTIONS, ["Name attic."]]
    assert ask["related"][0] == ask["waiting"]["taskId"]
    assert ask["related"][2] == ask["related"][3]
    assert len(set(ask["related"])) == 4
    assert plainly == {"sum": "5", "frame": "hall in oak", "related": None}


def test_session_clients_cancel(session: Facts) -> None:
    """The handler is stopped, too: the driver has waited for that."""
    cancel = session["steps"]["cancel"]
    assert cancel["cancelled"]["status"] == cancel["final"]["status"] == "cancelled"
    assert cancel["final"]["statusMessage"] == "The task was cancelled."
    assert cancel["again"]["code"] == cancel["result"]["code"] == -32602


def test_session_clients_see_failures(session: Facts) -> None:
    """The generator of the TypeScript SDK says only that the task has failed; `tasks/result` has the reason."""
    spill, tear = session["steps"]["fail"]["spill"], session["steps"]["fail"]["tear"]
    assert (spill["final"]["status"], spill["final"]["statusMessage"]) == ("failed", "There is no red any more.")
    result = spill["result"]["result"] if session["client"] == "ts1" else spill["result"]
    assert (result["isError"], result["content"][0]["text"]) == (True, "There is no red any more.")
    assert (tear["final"]["status"], tear["final"]["statusMessage"]) == ("failed", "The sheet is torn.")
    assert (tear["result"]["code"], tear["result"]["data"]) == (1001, {"paper": "sheet"})


def test_session_clients_are_refused(session: Facts) -> None:
    """The TypeScript SDK does not send a plain call of a tool that needs a task. The driver does, without the SDK."""
    refused = session["steps"]["refused"]
    if session["client"] == "ts1":
        assert "requires task-based execution" in refused["required"]["message"]
        refused["required"] = refused["raw_required"]
    assert refused["required"]["code"] == refused["forbidden"]["code"] == refused["list"]["code"] == -32601
    assert refused["unknown"]["code"] == -32602
    assert session["steps"]["required"] == "Ada, in copper"


def test_session_clients_hear_notifications(session: Facts) -> None:
    """While `tasks/result` waits, they hear each change of the status, and the progress: nothing polls.

    The TypeScript SDK hears the progress by the token of the call; the Python SDK by that of `tasks/result`.
    """
    push = session["steps"]["push"]
    assert_told(push["task"], push["heard"])
    assert [[done, total] for done, total, _ in push["progress"]] == [[1, 2], [2, 2]]
    assert push["result"]["content"][0]["text"] == "attic is dry."
