"""The studios on the SDKs of peers, driven by the peers' own task clients: what is there for Weft's client to meet.

    fastmcp     FastMCP 4.1 with fastmcp-tasks, in memory: the tasks extension of 2026-07-28
    mcp1        the official Python SDK 1.30, `server.experimental.enable_tasks()`: the tasks of 2025-11-25
    ts1         the official TypeScript SDK 1.32, with its task store in memory: the same

Where they differ from the specification, the docstrings say so.
"""

from typing import Any

import pytest
from studios import Facts, drive, run, studio

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
