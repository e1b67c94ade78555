"""Clients of the session era drive the example server: each test runs for every client over both transports.

Two of them also come over HTTP+SSE, the transport of the oldest revision. Each also runs for every client against the
same library on the official SDK 1.x: that a driver can pass there shows that what fails here is not the driver's. Over
HTTP the connection is cut in the middle of a call.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cutting import cutting
from processes import NODE, WEFT, listening, node_package, python_of

from support.ports import find_port

Facts = dict[str, Any]
HERE = Path(__file__).parent
DRIVERS = HERE / "drivers"
LIBRARY = str(HERE / "servers" / "library.py")
REFERENCE = str(HERE / "servers" / "reference_mcp1.py")

CLIENTS: dict[str, Callable[[], list[str]]] = {
    "mcp1": lambda: [str(python_of("mcp1")), str(DRIVERS / "mcp1_client.py")],
    "mcp2": lambda: [str(python_of("mcp")), str(DRIVERS / "mcp_session_client.py")],
    "fastmcp": lambda: [str(python_of("fastmcp")), str(DRIVERS / "fastmcp_client.py")],
    "typescript1": lambda: [str(NODE), str(DRIVERS / "ts_session_client.mjs"), str(node_package("sdk"))],
}
RUNS = [f"weft-{client}-{way}" for client in CLIENTS for way in ("http", "stdio")]
RUNS += ["weft-mcp1-sse", "weft-typescript1-sse"]
RUNS += [f"reference-{client}-http" for client in CLIENTS]


def drive(client: str, *target: str) -> Facts:
    command = [*CLIENTS[client](), *target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"{client} failed:\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])


@contextmanager
def serving(command: list[str], *options: str) -> Iterator[int]:
    port = find_port()
    with listening([*command, *options, str(port)], port):
        yield port


@pytest.fixture(scope="module")
def reference_port() -> Iterator[int]:
    with serving([str(python_of("mcp1")), REFERENCE], "http") as port:
        yield port


@pytest.fixture(scope="module")
def weft_port() -> Iterator[int]:
    with serving([*WEFT, LIBRARY], "--http", "--sse", "--port") as port:
        yield port


@pytest.fixture(scope="module", params=RUNS)
def facts(request: pytest.FixtureRequest) -> Facts:
    """What an old client learnt from a server, over one of the transports."""
    server, client, way = request.param.split("-")
    about = {"of": server, "client": client, "way": way}
    if way == "stdio":
        return about | drive(client, way, *WEFT, LIBRARY)
    if way == "sse":
        return about | drive(client, way, f"http://127.0.0.1:{request.getfixturevalue('weft_port')}/sse")
    with cutting(request.getfixturevalue(f"{server}_port"), b"Ringing back") as cut:
        return about | drive(client, way, cut.url) | {"cut": cut.happened, "last_event_ids": cut.last_event_ids}


def names(facts: Facts, what: str, key: str, field: str = "name") -> set[str]:
    return {item[field] for item in facts[what][key]}


def test_handshake(facts: Facts) -> None:
    assert facts["version"] == "2025-11-25"
    assert facts["server"]["name"] == "library"
    assert facts["instructions"].startswith("Search before you lend")
    assert {"tools", "resources", "prompts", "completions", "logging"} <= facts["capabilities"].keys()
    assert facts["capabilities"]["resources"]["subscribe"] is True
    assert facts["capabilities"]["tools"]["listChanged"] is True


def test_ping(facts: Facts) -> None:
    assert facts["ping"] is True


def test_lists(facts: Facts) -> None:
    assert {"add", "greet", "reserve", "take_stock", "ring_back"} < names(facts, "tools", "tools")
    assert "order_coffee" not in names(facts, "tools", "tools")
    assert names(facts, "resources", "resources", "uri") == {"library://catalogue", "library://notices"}
    assert names(facts, "templates", "resourceTemplates", "uriTemplate") == {"library://books/{book_id}"}
    [prompt] = facts["prompts"]["prompts"]
    assert {argument["name"]: argument.get("required", False) for argument in prompt["arguments"]} == {
        "genre": True,
        "mood": False,
    }


def test_call(facts: Facts) -> None:
    assert facts["sum"]["content"][0]["text"] == "5"
    assert not facts["sum"].get("isError")
    assert facts["greeting"]["content"][0]["text"] == "Hello, Ada!"


def test_a_tool_that_fails_answers_with_a_sentence(facts: Facts) -> None:
    assert facts["tool_error"]["isError"] is True
    assert facts["tool_error"]["content"][0]["text"].endswith("There is no book 'none': search for it first.")


def test_unknown_names(facts: Facts) -> None:
    if facts["of"] == "weft":
        assert facts["unknown_tool"]["code"] == -32602
        assert facts["unknown_resource"]["code"] == -32002
    else:  # the SDK 1.x answers an unknown tool as a failed call, and an unknown resource with 0
        assert facts["unknown_tool"]["result"]["isError"] is True
        assert facts["unknown_resource"]["code"] == 0


def test_read(facts: Facts) -> None:
    [catalogue] = facts["catalogue"]["contents"]
    assert catalogue["mimeType"] == "text/plain"
    assert catalogue["text"].splitlines()[4] == "b5  Middlemarch, George Eliot"
    [book] = facts["book"]["contents"]
    assert book["uri"] == "library://books/b3"
    assert '"The Hound of the Baskervilles"' in book["text"]


def test_prompt_and_complete(facts: Facts) -> None:
    [message] = facts["prompt"]["messages"]
    assert message["content"]["text"].startswith("I am in a curious mood. Recommend one mystery book")
    assert facts["genres"]["completion"]["values"] == ["mystery"]
    assert facts["ids"]["completion"]["values"] == ["b1", "b2", "b3", "b4", "b5"]


def test_progress(facts: Facts) -> None:
    heard = facts["progress"]["heard"]
    expected = [[number, 5] for number in range(1, 6)]
    if facts["client"] == "typescript1" and len(heard) == 4:
        del expected[4:]  # it calls `onprogress` a moment later, and forgets it if it reads the answer before
    assert [[progress, total] for progress, total, _ in heard] == expected
    assert heard[2][2] == "Found The Hound of the Baskervilles"
    assert facts["progress"]["text"] == "5 books, 0 of them lent."


def test_cancel_reaches_the_tool(facts: Facts) -> None:
    assert facts["cancel"]["after"] == facts["cancel"]["before"] + 1


def test_a_tool_asks_the_user(facts: Facts) -> None:
    asks = facts["asks"]
    slips = [re.search(r"[Ss]lip (\d+)", asks[action]) for action in ("accept", "decline", "cancel")]
    first, second, third = [int(slip[1]) for slip in slips if slip]
    assert [second, third] == [first + 1, first + 2]
    assert asks["accept"] == f"Slip {first}: The Left Hand of Darkness for Ada on Saturday, for 2 weeks."
    assert asks["decline"] == f"Nothing was reserved; slip {second} is void."
    assert asks["cancel"] == f"Nothing was reserved; slip {third} is void."
    asked = ["form", "Who fetches The Left Hand of Darkness, and when?", ["day", "reader", "weeks"]]
    assert [question for question in asks["asked"] if question[0] == "form"] == [asked] * 3


def test_a_tool_sends_the_user_to_a_page(facts: Facts) -> None:
    assert facts["asks"]["url"] == "The page was opened."
    [asked] = [question for question in facts["asks"]["asked"] if question[0] == "url"]
    assert asked == ["url", "Pay your fine of 2 francs.", "https://library.example/fines/7", True]


def test_a_tool_asks_the_model_and_for_the_roots(facts: Facts) -> None:
    assert facts["asks"]["sample"] == "Come, all!"
    assert facts["asks"]["roots"] == "file:///home/ada"
    assert facts["asks"]["asked"][-2:] == [["sample", "Invite the town.", 100], ["roots"]]


def test_what_is_below_the_level_is_not_logged(facts: Facts) -> None:
    assert facts["logged"] == [["warning", "We close soon."]]


def test_changes_are_heard_and_then_seen(facts: Facts) -> None:
    changes = facts["changes"]
    assert changes["heard"] == ["library://notices", "tools", "tools", "tools", "tools"]  # none after unsubscribing
    assert changes["board"].splitlines()[-1] == "Lost: one glove."
    assert changes["menus"] == [True, False]


def test_whoever_was_cut_off_hears_the_rest(facts: Facts) -> None:
    assert facts["ring_back"] == {"heard": [[1, 2, "Ringing back"], [2, 2, "Rang back"]], "text": "Here you are."}
    if facts["way"] == "http":
        assert facts["cut"] is True
        assert len(facts["last_event_ids"]) >= 1


def test_whoever_was_hung_up_on_hears_the_rest(facts: Facts) -> None:
    assert facts["hang_up"] == {"heard": [[1, 2, "Hanging up"], [2, 2, "Hung up"]], "text": "Here you are again."}
    if facts["way"] == "http":
        assert len(set(facts["last_event_ids"])) >= 2  # of this call and of the one that was cut off
