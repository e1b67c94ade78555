"""Every revision over every transport, with one server module: what each has works, what it does not have is absent.

Each cell of the matrix is one client, which stays for all the tests of the cell. All that it ever receives is searched
for what its revision does not have.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import ACCEPT_BOTH, VERSION, Live, serve, until
from support.hotel import LOBBY, PAGE, make_hotel
from support.peers import SESSION_VERSIONS, HttpWay, MemoryWay, Peer, SseWay, StdioWay

HOTEL = Path(__file__).parent.parent / "support" / "hotel.py"

WAYS: dict[str, Callable[[Live], Any]] = {
    "stdio": lambda _: StdioWay(HOTEL),
    "in-process": lambda _: MemoryWay(make_hotel),
    "http": lambda live: HttpWay(live, ACCEPT_BOTH),
    "http-stream": lambda live: HttpWay(live, "text/event-stream"),
    "http-json": lambda live: HttpWay(live, "application/json"),
    "http+sse": SseWay,
}
CELLS = [
    pytest.param((version, way), id=f"{version}-{way}")
    for version in (*SESSION_VERSIONS, VERSION)
    for way in WAYS
    if way != "http+sse" or version in SESSION_VERSIONS
]


class Cell:
    """One client, what it was told first, and which of the two names it goes by."""

    def __init__(self, peer: Peer, way: str) -> None:
        self.peer = peer
        self.way = way
        self.version = peer.version
        self.welcome = peer.open()["result"]
        self.is_session = not peer.is_stateless

    def has(self, since: str) -> bool:
        return self.version >= since


@pytest.fixture(scope="module")
def hotel() -> Iterator[Live]:
    with serve(make_hotel(), sse_path="/sse") as live:
        yield live
        assert live.faults == []


@pytest.fixture(scope="module", params=CELLS)
def the_cell(request: pytest.FixtureRequest, hotel: Live) -> Iterator[Cell]:
    version, way = request.param
    cell = Cell(Peer(WAYS[way](hotel), version), way)
    yield cell
    cell.peer.close()


@pytest.fixture
def cell(the_cell: Cell) -> Iterator[Cell]:
    yield the_cell
    assert the_cell.peer.faults == []  # COMPAT-23


@pytest.fixture
def peer(cell: Cell) -> Peer:
    return cell.peer


@pytest.mark.spec("L11-01", "L11-02", "L24-07", "COMPAT-01", "COMPAT-02", "DISC-01")
def test_opening(cell: Cell) -> None:
    welcome = cell.welcome
    assert welcome["instructions"] == "Be polite."
    wanted = {"tools", "resources", "prompts", "logging"} | ({"completions"} if cell.has("2025-03-26") else set())
    assert welcome["capabilities"].keys() == wanted
    assert welcome["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    if cell.is_session:
        assert welcome["protocolVersion"] == cell.version
        info = welcome["serverInfo"]
    else:
        assert welcome["supportedVersions"] == [VERSION, *reversed(SESSION_VERSIONS)]
        info = welcome["_meta"]["io.modelcontextprotocol/serverInfo"]
    assert (info["name"], info["version"]) == ("hotel", "1.0")
    assert ("title" in info) is cell.has("2025-06-18")
    assert ("icons" in info) is ("description" in info) is ("websiteUrl" in info) is cell.has("2025-11-25")


@pytest.mark.spec("COMPAT-02", "COMPAT-23", "L11-52")
def test_who_is_who(cell: Cell) -> None:
    structured = cell.peer.call("who")
    text = structured["content"][0]["text"]
    assert f'"version": "{cell.version}"' in text.replace('":"', '": "')
    assert '"stateless"' in text
    assert ("resultType" in structured) is not cell.is_session
    if cell.has("2025-06-18"):
        assert structured["structuredContent"] == {
            "version": cell.version,
            "name": "guest",
            "elicits": True,
            "stateless": not cell.is_session,
        }


@pytest.mark.spec("L03-06", "L03-08", "L06-06", "L06-08", "L24-06", "L11-50")
def test_tools(cell: Cell) -> None:
    tools = {tool["name"]: tool for tool in cell.peer.result("tools/list")["tools"]}
    assert {"add", "room", "book", "wait"} < tools.keys()
    room = tools["room"]
    assert room["inputSchema"]["required"] == ["number"]
    assert (room.get("title") == "A room") is cell.has("2025-06-18")
    assert ("outputSchema" in room) is cell.has("2025-06-18")
    assert ("annotations" in room) is cell.has("2025-03-26")
    assert ("icons" in room) is cell.has("2025-11-25")
    assert ("outputSchema" in tools["add"]) is cell.has(VERSION)  # an integer


@pytest.mark.spec("L06-06", "L06-08", "L03-06")
def test_resources_templates_and_prompts(cell: Cell) -> None:
    [lobby] = cell.peer.result("resources/list")["resources"]
    [rooms] = cell.peer.result("resources/templates/list")["resourceTemplates"]
    letter = cell.peer.result("prompts/list")["prompts"][0]
    assert (lobby["uri"], rooms["uriTemplate"], letter["name"]) == (LOBBY, "hotel://rooms/{number}", "letter")
    assert letter["arguments"] == [{"name": "name", "required": True}]
    for item in (lobby, rooms, letter):
        assert ("title" in item) is cell.has("2025-06-18")
        assert ("icons" in item) is cell.has("2025-11-25")


@pytest.mark.spec("L11-50", "L06-08", "L03-06")
def test_structured_and_plain_results(cell: Cell) -> None:
    room = cell.peer.call("room", number=7)
    assert '"the sea"' in room["content"][0]["text"]
    assert room.get("structuredContent") == ({"number": 7, "view": "the sea"} if cell.has("2025-06-18") else None)
    bill = cell.peer.call("add", a=2, b=3)
    assert bill["content"] == [{"type": "text", "text": "5"}]
    assert bill.get("structuredContent") == (5 if cell.has(VERSION) else None)


@pytest.mark.spec("L03-06", "L03-08", "L24-06")
def test_content_that_older_revisions_do_not_have(cell: Cell) -> None:
    kinds = [block["type"] for block in cell.peer.call("brochure")["content"]]
    sound = "audio" if cell.has("2025-03-26") else "resource"
    assert kinds == [sound, "resource_link" if cell.has("2025-06-18") else "text"]


@pytest.mark.spec("L11-51")
def test_failures_of_tools(cell: Cell) -> None:
    complaint = cell.peer.call("complain")
    assert complaint["isError"] is True
    assert complaint["content"][0]["text"].endswith("The sea is wet.")
    assert cell.peer.call("add", a="two", b=3)["isError"] is True


@pytest.mark.spec("L11-35", "COMPAT-23")
def test_what_is_not_there(cell: Cell) -> None:
    assert cell.peer.error("tools/call", {"name": "nothing"})["code"] == -32602
    assert cell.peer.error("prompts/get", {"name": "nothing"})["code"] == -32602
    missing = cell.peer.error("resources/read", {"uri": "hotel://cellar"})
    assert missing["code"] == (-32002 if cell.is_session else -32602)
    assert missing["data"] == {"uri": "hotel://cellar"}
    assert cell.peer.error("rooms/list")["code"] == -32601


@pytest.mark.spec("COMPAT-02")
def test_methods_of_the_other_era(cell: Cell) -> None:
    others: dict[str, Any] = {
        "ping": {},
        "logging/setLevel": {"level": "info"},
        "resources/subscribe": {"uri": LOBBY},
        "resources/unsubscribe": {"uri": LOBBY},
        "initialize": cell.peer.introduction,
    }
    if cell.is_session:
        others = {"server/discover": {}, "subscriptions/listen": {"notifications": {}}}
    for method, params in others.items():
        assert cell.peer.error(method, params)["code"] == -32601


def test_reading(cell: Cell) -> None:
    assert cell.peer.result("resources/read", {"uri": LOBBY})["contents"] == [
        {"uri": LOBBY, "mimeType": "text/plain", "text": "Welcome."}
    ]
    [room] = cell.peer.result("resources/read", {"uri": "hotel://rooms/7"})["contents"]
    assert room["text"] == "Room 7"


def test_prompts(cell: Cell) -> None:
    prompt = cell.peer.result("prompts/get", {"name": "letter", "arguments": {"name": "Ada"}})
    assert prompt["messages"] == [{"role": "user", "content": {"type": "text", "text": "Write to Ada."}}]


@pytest.mark.spec("L24-06", "L06-08")
def test_completion(cell: Cell) -> None:
    typed = {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "name", "value": "A"}}
    assert cell.peer.result("completion/complete", typed)["completion"]["values"] == ["Ada", "Alan"]
    if cell.has("2025-06-18"):
        before = {**typed, "context": {"arguments": {"ending": "!"}}}
        assert cell.peer.result("completion/complete", before)["completion"]["values"] == ["Ada!", "Alan!"]


@pytest.mark.spec("L03-08", "L24-07")
@pytest.mark.parametrize("token", [0, "cleaning"])
def test_progress(cell: Cell, token: Any) -> None:
    peer, since = cell.peer, len(cell.peer.messages)
    assert peer.text("clean", token=token, rooms=2) == "clean"
    heard = peer.of_method("notifications/progress", since=since)
    if cell.way == "http-json":  # it takes no stream, so there is nothing on which it could come
        assert heard == []
        return
    words = [{"message": f"room {number}"} if cell.has("2025-03-26") else {} for number in (1, 2)]
    assert heard == [{"progressToken": token, "progress": number, "total": 2, **words[number - 1]} for number in (1, 2)]
    since = len(peer.messages)
    assert peer.text("clean", rooms=2) == "clean"
    assert peer.of_method("notifications/progress", since=since) == []


@pytest.mark.spec("L11-33", "L24-07")
def test_logging(cell: Cell) -> None:
    peer = cell.peer
    for level, wanted in (("error", ["error"]), ("debug", ["debug", "info", "error"])):
        peer.set_level(level)
        since = len(peer.messages)
        assert peer.text("gossip") == "told"
        heard = peer.of_method("notifications/message", since=since)
        assert [one["level"] for one in heard] == ([] if cell.way == "http-json" else wanted)
        assert all(one["logger"] == "porter" for one in heard)
    if cell.is_session:
        assert peer.error("logging/setLevel", {"level": "loud"})["code"] == -32602


@pytest.mark.spec("L11-12", "L06-04", "L03-06")
@pytest.mark.parametrize(("tool", "text"), [("book", "Ada for 2"), ("book_by_hand", "Ada on floor 3")])
def test_asking_the_user(cell: Cell, tool: str, text: str) -> None:
    peer = cell.peer
    peer.asked.clear()
    if not cell.has("2025-06-18"):
        refused = peer.result("tools/call", {"name": tool})  # for the model to read: hosts end their run at an error
        assert (refused["isError"], "`elicitation.form`" in refused["content"][0]["text"]) == (True, True)
        return
    assert peer.text(tool) == text
    [question] = peer.asked
    assert question["params"]["message"] == "Who is coming?"
    assert question["params"]["requestedSchema"]["required"] == ["name"]
    assert ("mode" in question["params"]) is cell.has("2025-11-25")


@pytest.mark.spec("L11-39", "L11-40", "L06-04")
def test_sending_the_user_to_a_page(cell: Cell) -> None:
    peer, since = cell.peer, len(cell.peer.messages)
    peer.asked.clear()
    if not cell.has("2025-11-25"):
        assert peer.result("tools/call", {"name": "pay"})["isError"]
        return
    assert peer.text("pay") == "accept"
    [question] = peer.asked
    params = question["params"]
    assert (params["mode"], params["url"], params["message"]) == ("url", PAGE, "Pay here.")
    assert ("elicitationId" in params) is cell.is_session
    if cell.is_session:
        done = peer.await_message(lambda m: m.get("method") == "notifications/elicitation/complete", since=since)
        assert done["params"] == {"elicitationId": params["elicitationId"]}


@pytest.mark.spec("L11-41", "L06-04")
def test_demanding_a_visit_to_a_page(cell: Cell) -> None:
    peer = cell.peer
    if not cell.is_session:
        assert peer.text("pay_first") == "paid"
        return
    if not cell.has("2025-11-25"):
        assert peer.result("tools/call", {"name": "pay_first"})["isError"]
        return
    error = peer.error("tools/call", {"name": "pay_first"})
    assert error["code"] == -32042
    [page] = error["data"]["elicitations"]
    assert page.pop("elicitationId")
    assert page == {"mode": "url", "url": PAGE, "message": "Pay here."}


@pytest.mark.spec("L11-12", "L06-05", "L24-07")
def test_asking_the_model_and_for_roots(cell: Cell) -> None:
    peer = cell.peer
    peer.asked.clear()
    assert peer.text("welcome_text") == "m-1: Hello!"
    assert peer.text("luggage") == "file:///luggage"
    assert peer.text("survey_by_hand") == "Hello! file:///luggage"
    methods = [question["method"] for question in peer.asked]
    assert methods[:2] == ["sampling/createMessage", "roots/list"]
    assert sorted(methods[2:]) == ["roots/list", "sampling/createMessage"]
    said = peer.asked[0]["params"]["messages"]
    assert said == [{"role": "user", "content": {"type": "text", "text": "Say hello."}}]
    prompt = peer.result("prompts/get", {"name": "letter_to_all"})
    assert prompt["messages"][0]["content"]["text"] == "Write to all of file:///luggage."


@pytest.mark.spec("L11-13", "L24-07")
def test_cancelling(cell: Cell, request: pytest.FixtureRequest) -> None:
    peer, since = cell.peer, len(cell.peer.messages)
    label = request.node.name
    id = peer.begin("tools/call", {"name": "wait", "arguments": {"label": label}}, token=label)
    until(lambda: peer.text("wait_of", label=label) == "waiting")
    if cell.way != "http-json":  # it takes no stream
        peer.await_message(lambda m: m.get("params", {}).get("progressToken") == label, since=since)
    peer.cancel(id)
    until(lambda: peer.text("wait_of", label=label) == "given up")
    assert not any(message.get("id") == id and "method" not in message for message in peer.messages)
    assert len(peer.of_method("notifications/progress", since=since)) == (0 if cell.way == "http-json" else 1)


@pytest.mark.spec("L11-34", "L24-07")
def test_changes_of_a_resource(cell: Cell) -> None:
    peer, since = cell.peer, len(cell.peer.messages)
    if not cell.is_session and cell.way == "http-json":
        assert peer.error("subscriptions/listen", {"notifications": {"toolsListChanged": True}})["code"] == -32600
        return
    peer.hear_of(LOBBY)
    peer.text("repaint", uri="hotel://cellar")  # nobody wants to know
    peer.text("repaint", uri=LOBBY)
    updated = peer.await_message(lambda m: m.get("method") == "notifications/resources/updated", since=since)
    assert updated["params"]["uri"] == LOBBY
    assert ("_meta" in updated["params"]) is not cell.is_session
    peer.hear_no_more(LOBBY)
    peer.text("repaint", uri=LOBBY)
    if cell.is_session:  # this comes unasked: then the update that was not wanted would have come before
        peer.text("rename")
        peer.await_message(lambda m: m.get("method") == "notifications/prompts/list_changed", since=since)
    assert [params["uri"] for params in peer.of_method("notifications/resources/updated", since=since)] == [LOBBY]


@pytest.mark.spec("L11-36", "L24-07")
def test_changes_of_the_list_of_tools(cell: Cell) -> None:
    peer, since = cell.peer, len(cell.peer.messages)
    if not cell.is_session and cell.way == "http-json":
        return  # it takes no stream
    peer.hear_of(LOBBY)
    peer.text("renovate", what="open")
    peer.await_message(lambda m: m.get("method") == "notifications/tools/list_changed", since=since)
    assert "swim" in {tool["name"] for tool in peer.result("tools/list")["tools"]}
    since = len(peer.messages)
    peer.text("renovate", what="close")
    peer.await_message(lambda m: m.get("method") == "notifications/tools/list_changed", since=since)
    assert "swim" not in {tool["name"] for tool in peer.result("tools/list")["tools"]}
    peer.hear_no_more(LOBBY)


@pytest.mark.spec("L11-31")
def test_ping(cell: Cell) -> None:
    if cell.is_session:
        assert cell.peer.result("ping") == {}


@pytest.mark.spec("L11-53", "L11-08", "L11-11")
def test_the_forms_of_answers(cell: Cell) -> None:
    """What a client takes is what it gets, and no session is asked for the headers of the other era."""
    way = cell.peer.way
    if not isinstance(way, HttpWay):
        return
    id = cell.peer.begin("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})
    cell.peer.answer_to(id)
    assert way.kinds[id] == ("text/event-stream" if cell.way == "http-stream" else "application/json")
    id = cell.peer.begin("tools/call", {"name": "clean", "arguments": {"rooms": 1}}, token="t")
    cell.peer.answer_to(id)
    assert way.kinds[id] == ("application/json" if cell.way == "http-json" else "text/event-stream")
    assert (way.session_id is not None) is cell.is_session
