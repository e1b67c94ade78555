"""Sessions over HTTP: how they begin and end, who may use them, what each verb and header does."""

from collections.abc import Iterator
from typing import Any

import pytest

from support import VERSION, Live, encode, make_server, message, serve, until
from support.hotel import LOBBY, make_hotel
from support.peers import SESSION_VERSIONS
from support.sessions import NEWEST, OpenSession, introduction, rpc
from weft import Server

OLDER = SESSION_VERSIONS[:-1]
NOBODY = "no-such-session"
ANSWER = {"jsonrpc": "2.0", "id": "x-1", "result": {}}
ADDED = {"name": "add", "arguments": {"a": 2, "b": 3}}


@pytest.fixture(scope="module")
def hotel() -> Iterator[Live]:
    with serve(make_hotel()) as live:
        yield live
        assert live.faults == []


@pytest.fixture
def session(hotel: Live) -> OpenSession:
    return OpenSession(hotel)


def is_served(session: OpenSession) -> bool:
    return session.text("add", a=2, b=3) == "5"


# The beginning.


@pytest.mark.spec("L11-20", "L11-21", "L11-01")
def test_session_ids_are_visible_and_cannot_be_guessed(hotel: Live) -> None:
    sessions = [OpenSession(hotel) for _ in range(20)]
    assert len({session.id for session in sessions}) == 20
    for session in sessions:
        assert session.opened.status == 200
        assert session.opened.result["protocolVersion"] == NEWEST
        assert session.id
        assert len(session.id) >= 32
        assert all(0x21 <= ord(letter) <= 0x7E for letter in session.id)
    assert len({session.id[:8] for session in sessions if session.id}) == 20


@pytest.mark.spec("L11-01", "L11-02", "COMPAT-22")
@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        *zip(SESSION_VERSIONS, SESSION_VERSIONS, strict=True),
        *((odd, NEWEST) for odd in (VERSION, "2031-01-01", "x", "")),
    ],
)
def test_the_version_that_is_agreed_on(hotel: Live, asked: str, agreed: str) -> None:
    assert OpenSession(hotel, asked, ready=False).opened.result["protocolVersion"] == agreed


@pytest.mark.spec("L11-01")
@pytest.mark.parametrize("missing", ["protocolVersion", "capabilities", "clientInfo"])
def test_a_handshake_that_lacks_something_opens_no_session(hotel: Live, missing: str) -> None:
    params = introduction()
    del params[missing]
    before = len(hotel.server.engine.sessions)
    response = hotel.send(encode(rpc("initialize", params)), [("Content-Type", "application/json")])
    assert response.error["code"] == -32602
    assert "mcp-session-id" not in response.headers
    assert len(hotel.server.engine.sessions) == before


@pytest.mark.spec("L11-01")
def test_a_second_handshake_is_refused_and_changes_nothing(session: OpenSession) -> None:
    second = session.request("initialize", introduction("2024-11-05"), id=2)
    assert second.refusal == (400, -32600)
    assert session.call("who").result["structuredContent"]["version"] == NEWEST


def test_a_handshake_without_an_id_is_refused(hotel: Live) -> None:
    response = hotel.send(encode(rpc("initialize", introduction(), id=None)), [("Content-Type", "application/json")])
    assert response.refusal == (400, -32600)


@pytest.mark.spec("COMPAT-02")
def test_a_handshake_in_the_words_of_the_other_era_is_no_method(hotel: Live) -> None:
    response = hotel.call("initialize", introduction())
    assert response.refusal == (404, -32601)
    assert "mcp-session-id" not in response.headers


@pytest.mark.spec("L11-04", "L11-11", "L24-07")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_notifications_and_answers_are_accepted_without_a_word(hotel: Live, version: str) -> None:
    session = OpenSession(hotel, version, ready=False)
    for body in (rpc("notifications/initialized", id=None), rpc("notifications/nonsense", id=None), ANSWER):
        response = session.post(body)
        assert (response.status, response.body) == (202, b"")
    assert is_served(session)


@pytest.mark.spec("L11-05")
def test_who_must_confirm_the_handshake_is_not_served_before() -> None:
    with serve(make_hotel(require_initialized=True)) as live:
        session = OpenSession(live, ready=False)
        assert session.request("ping").result == {}
        assert session.request("tools/list").refusal == (400, -32600)
        session.post(rpc("notifications/initialized", id=None))
        assert is_served(session)


@pytest.mark.spec("L11-05")
def test_nothing_is_told_before_the_handshake_is_confirmed(hotel: Live) -> None:
    session = OpenSession(hotel, ready=False)
    with session.listen() as stream:
        hotel.server.notify_prompts_changed()
        assert is_served(session)  # what was going to be told has been told by now
        session.post(rpc("notifications/initialized", id=None))
        hotel.server.notify_tools_changed()
        assert stream.next()["data"]["method"] == "notifications/tools/list_changed"


# Which session.


@pytest.mark.spec("L11-23")
def test_without_its_id_nothing_is_served(session: OpenSession) -> None:
    nobody = {"Mcp-Session-Id": None}
    for body in (rpc("tools/list"), rpc("notifications/initialized", id=None), ANSWER, [rpc("ping")]):
        assert session.post(body, nobody).refusal == (400, -32600)
    for verb in ("GET", "DELETE"):
        assert session.verb(verb, nobody).refusal == (400, -32600)


@pytest.mark.spec("L11-24")
@pytest.mark.parametrize("why", ["ended", "unknown"])
def test_a_session_that_is_not_there(session: OpenSession, why: str) -> None:
    if why == "ended":
        ended = session.verb("DELETE")
        assert (ended.status, ended.body) == (204, b"")
    else:
        session.id = NOBODY
    for body in (
        rpc("tools/list"),
        rpc("initialize", introduction()),
        rpc("notifications/initialized", id=None),
        ANSWER,
    ):
        assert session.post(body).status == 404
    for verb in ("GET", "DELETE"):
        assert session.verb(verb).status == 404


@pytest.mark.spec("L11-26")
def test_the_end_of_a_session_ends_what_it_holds(hotel: Live, session: OpenSession) -> None:
    other = OpenSession(hotel)
    with session.listen() as listening, session.stream("hold", token=1, label="end") as holding:
        holding.next()
        assert session.verb("DELETE").status == 204
        assert listening.messages() == []
        assert holding.messages() == []
    until(lambda: other.text("wait_of", label="end") == "given up")


@pytest.mark.spec("L11-07")
def test_an_id_that_is_being_served_is_refused_and_one_that_was_is_not(session: OpenSession) -> None:
    with session.stream("hold", id=5, token=1, label="twice") as holding:
        holding.next()
        second = session.call("add", id=5, a=1, b=1)
        assert (second.refusal, second.json["id"]) == ((400, -32600), 5)
        session.text("release", label="twice")
        assert holding.messages()[-1]["result"]["content"][0]["text"] == "held twice"
    assert session.call("add", id=5, a=1, b=1).result["content"][0]["text"] == "2"


# Headers and verbs.


@pytest.mark.spec("L11-29")
@pytest.mark.parametrize("stated", ["2020-01-01", "x", "", "2025-11-25, 2025-11-25"])
def test_a_version_header_that_names_no_revision_is_refused(session: OpenSession, stated: str) -> None:
    wrong = {"MCP-Protocol-Version": stated}
    bodies: list[Any] = [rpc("tools/list"), rpc("notifications/initialized", id=None), ANSWER, [rpc("ping")]]
    for body in bodies:
        assert session.post(body, wrong).refusal == (400, -32600)
    for verb in ("GET", "DELETE"):
        assert session.verb(verb, wrong).status == 400
    assert session.post(rpc("initialize", introduction()), {**wrong, "Mcp-Session-Id": None}).status == 400
    assert is_served(session)


@pytest.mark.spec("L11-28", "L03-04", "COMPAT-15")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_without_a_version_header_the_session_says_which(hotel: Live, version: str) -> None:
    session = OpenSession(hotel, version)
    response = session.post(rpc("tools/call", {"name": "who"}), {"MCP-Protocol-Version": None})
    assert f'"version":"{version}"' in response.result["content"][0]["text"].replace(" ", "")


@pytest.mark.spec("L11-28", "COMPAT-15")
def test_without_a_header_and_without_a_session_it_is_2025_03_26() -> None:
    with serve(make_hotel(), sessions=False) as live:
        session = OpenSession(live)
        for header, version in ((None, "2025-03-26"), ("2024-11-05", "2024-11-05"), (NEWEST, NEWEST)):
            response = session.post(rpc("tools/call", {"name": "who"}), {"MCP-Protocol-Version": header})
            assert f'"version":"{version}"' in response.result["content"][0]["text"].replace(" ", "")
            assert ("structuredContent" in response.result) is (version == NEWEST)


@pytest.mark.spec("COMPAT-15", "COMPAT-16")
def test_a_modern_request_without_the_header_is_refused(hotel: Live) -> None:
    assert hotel.call("tools/list", headers={"MCP-Protocol-Version": None}).refusal == (400, -32020)
    with serve(make_hotel(eras=("stateless",))) as live:
        assert live.call("tools/list", headers={"MCP-Protocol-Version": None}).refusal == (400, -32020)
        assert live.post(rpc("tools/list"), {"MCP-Protocol-Version": None}).refusal == (400, -32020)


@pytest.mark.spec("L11-30", "L06-03", "L11-08")
def test_a_foreign_origin_is_refused_on_every_verb(session: OpenSession) -> None:
    foreign = {"Origin": "https://evil.example"}
    assert session.post(rpc("tools/list"), foreign).status == 403
    assert session.verb("GET", {**foreign, "Accept": "text/event-stream"}).status == 403
    assert session.verb("DELETE", foreign).status == 403
    assert is_served(session)


@pytest.mark.spec("L11-08", "L11-09")
def test_get_is_a_stream_or_nothing(session: OpenSession) -> None:
    with session.listen() as stream:
        assert stream.is_stream
    assert session.verb("GET", {"Accept": "application/json"}).status == 406
    refused = session.verb("PUT")
    assert (refused.status, refused.headers["allow"]) == (405, "POST, GET, DELETE")


@pytest.mark.spec("L11-53")
def test_headers_of_the_other_era_mean_nothing_here(session: OpenSession) -> None:
    wrong = {"Mcp-Method": "prompts/list", "Mcp-Name": "nobody"}
    assert session.post(rpc("tools/call", ADDED), wrong).result["content"][0]["text"] == "5"


@pytest.mark.spec("L11-53")
def test_arguments_are_not_demanded_in_headers() -> None:
    with serve(make_server()) as live:
        session = OpenSession(live)
        assert session.text("region", region="eu", count=2) == "eu 2"
        params = {"name": "region", "arguments": {"region": "eu"}}
        response = session.post(rpc("tools/call", params), {"Mcp-Param-Region": "us"})
        assert response.result["content"][0]["text"] == "eu 0"


# What is agreed on is used, and nothing else.


@pytest.mark.spec("L11-06")
@pytest.mark.parametrize("tool", ["book", "welcome_text", "luggage", "pay", "pay_first", "book_by_hand"])
def test_who_declares_nothing_is_asked_nothing(hotel: Live, tool: str) -> None:
    session = OpenSession(hotel, capabilities={})
    result = session.call(tool).result  # for the model to read: hosts end their run at an error
    assert result["isError"] is True
    assert "the client must declare the capability `" in result["content"][0]["text"]


@pytest.mark.spec("L11-06")
def test_methods_without_a_declared_capability_do_not_exist() -> None:
    bare = Server("bare")
    bare.add_tool(lambda: "x", name="x", description="x")
    with serve(bare) as live:
        session = OpenSession(live)
        assert session.opened.result["capabilities"].keys() == {"tools", "logging"}
        for method in ("prompts/list", "resources/list", "resources/subscribe", "completion/complete"):
            assert session.request(method, {"uri": LOBBY}).refusal == (200, -32601)


@pytest.mark.spec("L11-33")
def test_the_log_level_is_the_sessions_own(hotel: Live) -> None:
    loud, quiet = OpenSession(hotel), OpenSession(hotel)
    assert loud.request("logging/setLevel", {"level": "debug"}).result == {}
    assert quiet.request("logging/setLevel", {"level": "emergency"}).result == {}
    assert quiet.request("logging/setLevel", {"level": "loud"}).error["code"] == -32602
    heard = [one["params"]["level"] for one in loud.call("gossip").messages[:-1]]
    assert heard == ["debug", "info", "error"]
    assert len(quiet.call("gossip").messages) == 1


@pytest.mark.spec("L11-34", "L11-36", "L11-14")
def test_changes_reach_the_sessions_that_want_them(hotel: Live) -> None:
    reader, other = OpenSession(hotel), OpenSession(hotel)
    assert reader.request("resources/subscribe", {"uri": LOBBY}).result == {}
    with reader.listen() as heard, other.listen() as others:
        reader.text("repaint", uri=LOBBY)
        assert heard.next()["data"] == rpc("notifications/resources/updated", {"uri": LOBBY}, id=None)
        assert reader.request("resources/unsubscribe", {"uri": LOBBY}).result == {}
        reader.text("repaint", uri=LOBBY)
        hotel.server.notify_tools_changed()
        for stream in (heard, others):
            assert stream.next()["data"] == rpc("notifications/tools/list_changed", id=None)


@pytest.mark.spec("L11-43")
def test_a_task_that_nobody_offers_is_ignored(session: OpenSession) -> None:
    assert "tasks" not in session.opened.result["capabilities"]
    assert not any("execution" in tool for tool in session.request("tools/list").result["tools"])
    answer = session.request("tools/call", {**ADDED, "task": {"ttl": 60_000}}).result
    assert answer["content"][0]["text"] == "5"
    assert "task" not in answer


# Who is served at all.


@pytest.mark.spec("COMPAT-20")
def test_the_oldest_transport_is_not_there_unless_asked_for(hotel: Live) -> None:
    for verb, path in (("GET", "/sse"), ("POST", "/messages")):
        assert hotel.send(b"", [("Accept", "text/event-stream")], verb=verb, path=path).status == 404


def test_a_server_of_sessions_only() -> None:
    with serve(make_hotel(eras=("session",))) as live:
        assert live.call("server/discover").status == 400
        assert live.call("tools/list").status == 400
        assert is_served(OpenSession(live))


@pytest.mark.spec("COMPAT-03", "COMPAT-17", "COMPAT-18")
def test_a_server_without_sessions() -> None:
    with serve(make_hotel(eras=("stateless",))) as live:
        refused = OpenSession(live, ready=False).opened
        assert refused.refusal == (400, -32022)
        assert refused.error["data"] == {"supported": [VERSION], "requested": NEWEST}
        for verb in ("GET", "DELETE"):
            assert live.send(b"", [("Mcp-Session-Id", NOBODY)], verb=verb).status == 405
        assert live.send(encode([message("tools/list")]), [("Content-Type", "application/json")]).status == 400
        assert live.call("tools/list", headers={"Mcp-Session-Id": NOBODY}).status == 200


@pytest.mark.spec("L11-33", "LOG-01")
def test_who_is_not_remembered_gets_log_messages_of_the_default_level() -> None:
    """A higher one cannot be kept, and is refused; of a lower one nothing is broken by what is sent."""
    with serve(make_hotel(), sessions=False) as live:
        session = OpenSession(live)
        for level in ("debug", "info"):
            assert session.request("logging/setLevel", {"level": level}).result == {}
        refused = session.request("logging/setLevel", {"level": "notice"}).error
        assert refused["code"] == -32600
        assert refused["message"] == (
            "Invalid request: there is no session here, so the server cannot remember a log level. Messages are sent "
            "from 'info' on."
        )
        assert session.request("logging/setLevel", {"level": "loud"}).error["code"] == -32602
        *told, _ = session.call("gossip").messages
        assert {message["method"] for message in told} == {"notifications/message"}
        assert "debug" not in {message["params"]["level"] for message in told}


def test_clients_with_a_handshake_are_served_without_being_remembered() -> None:
    with serve(make_hotel(), sessions=False) as live:
        session = OpenSession(live)
        assert session.id is None
        assert is_served(session)
        assert len(live.server.engine.sessions) == 0
        assert session.opened.result["capabilities"] == {
            "completions": {},
            "logging": {},
            "prompts": {},
            "resources": {},
            "tools": {},
        }
        assert session.request("ping").result == {}
        assert session.request("resources/subscribe", {"uri": LOBBY}).error["code"] in (-32600, -32601)
        assert "It runs without sessions" in session.call("book").result["content"][0]["text"]
        assert len(session.post(rpc("tools/call", {**ADDED, "name": "clean", "arguments": {"rooms": 2}, "_meta":
                                    {"progressToken": 1}})).messages) == 3  # fmt: skip
        assert session.request("initialize", introduction()).status == 200  # nobody knows that it is the second
        assert session.post(ANSWER).status == 202
        for verb in ("GET", "DELETE"):
            assert session.verb(verb).status == 405
        stale = {"Mcp-Session-Id": NOBODY, "MCP-Protocol-Version": NEWEST}
        assert session.post(rpc("tools/list"), stale).status == 200
