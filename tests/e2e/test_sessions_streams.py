"""The streams of sessions: what goes on which, how they are lost and taken up again, and what is asked on them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support import Live, message, serve, until
from support.hotel import make_hotel
from support.peers import SESSION_VERSIONS
from support.sessions import NEWEST, OpenSession, Stream, rpc

OLDER = SESSION_VERSIONS[:-1]


@pytest.fixture(scope="module")
def hotel() -> Iterator[Live]:
    with serve(make_hotel()) as live:
        yield live
        assert live.faults == []


@pytest.fixture
def session(hotel: Live) -> OpenSession:
    return OpenSession(hotel)


@pytest.fixture
def label(request: pytest.FixtureRequest) -> str:
    return request.node.name


def answer(session: OpenSession, question: dict[str, Any], **said: Any) -> int:
    return session.post({"jsonrpc": "2.0", "id": question["id"], **said}).status


def progress(stream: Stream) -> tuple[int, str]:
    """The next progress, and the id of its event."""
    event = stream.next()
    assert event["data"]["method"] == "notifications/progress"
    return event["data"]["params"]["progress"], event["id"]


def texts(messages: list[Any]) -> list[str]:
    return [message["result"]["content"][0]["text"] for message in messages if "result" in message]


# What goes where.


@pytest.mark.spec("L11-10", "L11-14", "L11-36")
def test_each_message_is_on_one_stream(session: OpenSession, hotel: Live, label: str) -> None:
    with session.listen() as listening, session.stream("hold", id=7, token="t", label=label) as holding:
        assert progress(holding)[0] == 1
        hotel.server.notify_tools_changed()
        assert listening.next()["data"] == rpc("notifications/tools/list_changed", id=None)
        session.text("release", label=label)
        assert [message.get("method") or message["id"] for message in holding.messages()] == [
            "notifications/progress",
            7,
        ]
        hotel.server.notify_prompts_changed()  # what else might have come on the other stream came before
        assert listening.next()["data"] == rpc("notifications/prompts/list_changed", id=None)


@pytest.mark.security("R4")
@pytest.mark.spec("L11-14")
def test_a_second_standalone_stream_is_refused(session: OpenSession) -> None:
    with session.listen():
        assert session.verb("GET", {"Accept": "text/event-stream"}).refusal == (409, -32600)
    until(lambda: _can_listen(session))  # the first is gone: soon that is known


def _can_listen(session: OpenSession) -> bool:
    stream = Stream(session.live, "GET", b"", session.headers({"Accept": "text/event-stream"}))
    stream.cut()
    return stream.status == 200


def test_a_stream_that_is_taken_up_again_is_taken_over(session: OpenSession, hotel: Live) -> None:
    with session.listen() as first:
        hotel.server.notify_tools_changed()
        last = first.next()["id"]
        with session.listen(last) as second:
            assert first.rest() == []
            hotel.server.notify_prompts_changed()
            assert second.next()["data"]["method"] == "notifications/prompts/list_changed"


@pytest.mark.spec("L11-17", "L11-19", "L03-05")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_what_happened_while_nobody_listened_is_told_afterwards(hotel: Live, version: str) -> None:
    session = OpenSession(hotel, version)
    with session.listen() as stream:
        hotel.server.notify_tools_changed()
        last = stream.next()["id"]
    hotel.server.notify_prompts_changed()
    with session.listen(last) as stream:
        assert stream.next()["data"]["method"] == "notifications/prompts/list_changed"


# Losing a stream, and taking it up again.


@pytest.mark.spec("L11-13", "L11-17", "L11-19", "L03-05")
@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_call_goes_on_without_its_client(hotel: Live, version: str, label: str) -> None:
    session = OpenSession(hotel, version)
    with session.stream("hold", token="t", label=label) as stream:
        number, last = progress(stream)
        assert number == 1
    session.text("release", label=label)
    until(lambda: session.text("wait_of", label=label) == "done")
    with session.listen(last) as rest:
        assert progress(rest)[0] == 2
        assert texts(rest.messages()) == [f"held {label}"]


@pytest.mark.spec("L11-14", "L11-17")
def test_a_call_that_is_taken_up_elsewhere_is_not_told_here_any_more(session: OpenSession, label: str) -> None:
    with session.stream("hold", token="t", label=label) as first:
        _, last = progress(first)
        with session.listen(last) as second:
            assert first.rest() == []
            session.text("release", label=label)
            assert progress(second)[0] == 2
            assert texts(second.messages()) == [f"held {label}"]


@pytest.mark.spec("L11-13")
def test_a_call_that_has_no_stream_goes_on_without_its_client(session: OpenSession, label: str) -> None:
    waiting = session.live.connect()
    waiting.request(
        "POST",
        "/mcp",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{"label":"%s"}}}'
        % label.encode(),
        dict(session.headers()),
    )
    until(lambda: session.text("wait_of", label=label) == "waiting")
    waiting.close()
    session.text("release", label=label)
    until(lambda: session.text("wait_of", label=label) == "done")


@pytest.mark.spec("L11-13", "L11-32")
@pytest.mark.parametrize("here", [True, False], ids=["here", "gone"])
def test_only_a_message_cancels_and_nothing_follows(session: OpenSession, label: str, here: bool) -> None:
    with session.stream("hold", id=9, token="t", label=label) as stream:
        _, last = progress(stream)
        if not here:
            stream.cut()
        assert session.post(rpc("notifications/cancelled", {"requestId": 9, "reason": "r"}, id=None)).status == 202
        until(lambda: session.text("wait_of", label=label) == "given up")
        if here:
            assert stream.messages() == []
    with session.listen(last) as rest:
        assert rest.messages() == []


@pytest.mark.spec("L11-32")
def test_a_cancellation_is_of_its_own_session(hotel: Live, session: OpenSession, label: str) -> None:
    other = OpenSession(hotel)
    with session.stream("hold", id=9, token="t", label=label) as stream:
        progress(stream)
        assert other.post(rpc("notifications/cancelled", {"requestId": 9}, id=None)).status == 202
        session.text("release", label=label)
        assert texts(stream.messages()) == [f"held {label}"]


@pytest.mark.spec("L11-18", "L11-19")
def test_only_the_stream_that_was_lost_is_replayed(session: OpenSession, label: str) -> None:
    lost = {}
    ids = set()
    for name in ("a", "b"):
        with session.stream("hold", id=name, token=name, label=label + name) as stream:
            _, lost[name] = progress(stream)
    session.text("release", label=label + "a")
    session.text("release", label=label + "b")
    for name, last in lost.items():
        with session.listen(last) as rest:
            events = rest.rest()
        ids.update(event["id"] for event in events)
        messages = [event["data"] for event in events]
        assert len(messages) == 2
        assert f"held {label}{name}" in messages[-1]
    assert len({*ids, *lost.values()}) == 6  # unique in the session
    assert lost["a"].rpartition(".")[0] != lost["b"].rpartition(".")[0]


@pytest.mark.spec("L11-19")
def test_what_was_taken_up_to_its_end_has_no_rest(session: OpenSession) -> None:
    with session.stream("clean", token="t", rooms=1) as stream:
        last = stream.rest()[-1]["id"]
    with session.listen(last) as rest:
        assert rest.rest() == []


@pytest.mark.security("R5")
@pytest.mark.spec("L11-19")
def test_the_stream_of_another_session_is_not_replayed(hotel: Live, session: OpenSession) -> None:
    with session.stream("clean", token="t", rooms=2) as stream:
        first = stream.rest()[0]["id"]
    other = OpenSession(hotel)
    for unknown in (first, "x-1.1", "x", "..", "1.-1"):
        assert other.verb("GET", {"Accept": "text/event-stream", "Last-Event-ID": unknown}).status == 400


# Being sent away.


@pytest.mark.spec("L11-15")
def test_a_stream_begins_with_an_event_that_holds_nothing_but_an_id(session: OpenSession) -> None:
    with session.stream("clean", token="t", rooms=1) as stream:
        first, *others = stream.rest()
    assert first["id"]
    assert first["data"] == ""
    assert all(event["data"] and event["id"].startswith(first["id"].rpartition(".")[0]) for event in others)


@pytest.mark.spec("L11-15", "L06-02", "L03-05")
@pytest.mark.parametrize("version", OLDER)
def test_clients_that_do_not_know_it_get_no_such_event(hotel: Live, version: str) -> None:
    with OpenSession(hotel, version).stream("clean", token="t", rooms=1) as stream:
        events = stream.rest()
    assert all(event["data"] and event["id"] and "retry" not in event for event in events)


@pytest.mark.spec("L11-16", "L11-17", "L11-15")
def test_a_client_is_sent_away_and_comes_back_for_the_rest(session: OpenSession, label: str) -> None:
    with session.stream("hold", token="t", label=label, leave=True) as stream:
        events = stream.rest()
    assert events[-1]["retry"] == "50"
    assert [bool(event["data"]) for event in events] == [False, True, False]
    session.text("release", label=label)
    with session.listen(events[0]["id"]) as rest:
        assert [progress(rest)[0], progress(rest)[0]] == [1, 2]
        assert texts(rest.messages()) == [f"held {label}"]


@pytest.mark.spec("L11-16")
def test_a_client_is_sent_away_before_anything_was_said(session: OpenSession, label: str) -> None:
    with session.stream("hold", label=label, leave=True) as stream:
        [only] = stream.rest()
    assert (only["data"], only["retry"]) == ("", "50")
    session.text("release", label=label)
    with session.listen(only["id"]) as rest:
        assert texts(rest.messages()) == [f"held {label}"]


@pytest.mark.spec("L06-02")
@pytest.mark.parametrize("version", OLDER)
def test_clients_that_would_not_come_back_are_not_sent_away(hotel: Live, version: str, label: str) -> None:
    session = OpenSession(hotel, version)
    with session.stream("hold", token="t", label=label, leave=True) as stream:
        progress(stream)
        session.text("release", label=label)
        assert texts(stream.messages()) == [f"held {label}"]


# Questions.


@pytest.mark.spec("L11-12", "L11-11", "L11-14")
def test_a_question_comes_on_the_stream_of_its_call(session: OpenSession) -> None:
    with session.listen() as listening, session.stream("luggage") as stream:
        question = stream.next()["data"]
        assert question["method"] == "roots/list"
        assert answer(session, question, result={"roots": [{"uri": "file:///a"}]}) == 202
        assert texts(stream.messages()) == ["file:///a"]
        assert session.verb("DELETE").status == 204
        assert listening.messages() == []


@pytest.mark.spec("L11-07")
def test_questions_have_ids_of_their_own(session: OpenSession) -> None:
    ids = []
    for _ in range(3):
        with session.stream("luggage") as stream:
            question = stream.next()["data"]
            ids.append(question["id"])
            answer(session, question, result={"roots": []})
            stream.rest()
    assert len(set(ids)) == 3


@pytest.mark.spec("L11-31")
def test_the_client_is_pinged_and_pings(session: OpenSession) -> None:
    with session.listen() as listening, ThreadPoolExecutor() as elsewhere:
        knocking = elsewhere.submit(session.text, "knock")
        question = listening.next()["data"]
        assert question == {"jsonrpc": "2.0", "id": question["id"], "method": "ping"}
        assert session.request("ping", id="p").result == {}
        assert answer(session, question, result={}) == 202
        assert knocking.result() == "There is."


@pytest.mark.spec("L11-10", "L11-12")
def test_who_takes_no_stream_is_asked_on_the_one_that_is_open(session: OpenSession) -> None:
    def ask(tool: str) -> Any:
        return session.post(rpc("tools/call", {"name": tool}), {"Accept": "application/json"}).json

    nobody = ask("luggage")["result"]
    assert nobody["isError"] is True
    assert "it accepts no stream" in nobody["content"][0]["text"]
    assert "it accepts no stream" in ask("survey_by_hand")["error"]["message"]
    with session.listen() as listening, ThreadPoolExecutor() as elsewhere:
        asking = elsewhere.submit(ask, "luggage")
        answer(session, listening.next()["data"], result={"roots": [{"uri": "file:///a"}]})
        assert texts([asking.result()]) == ["file:///a"]


@pytest.mark.spec("L11-12", "L06-05")
@pytest.mark.parametrize("version", ["2025-06-18", NEWEST])
def test_a_model_is_given_tools_by_the_revision_that_has_them(hotel: Live, version: str) -> None:
    session = OpenSession(hotel, version, capabilities={"sampling": {"tools": {}}})
    if version != NEWEST:
        assert session.call("advise").result["isError"] is True
        return
    with session.stream("advise") as stream:
        question = stream.next()["data"]
        assert question["params"]["tools"][0]["name"] == "look_out"
        uses = [{"type": "tool_use", "id": "u1", "name": "look_out", "input": {}}]
        said = {"role": "assistant", "content": uses, "model": "m", "stopReason": "toolUse"}
        answer(session, question, result=said)
        question = stream.next()["data"]
        assert question["params"]["messages"][-1]["content"][0]["toolUseId"] == "u1"
        answer(session, question, result={**said, "content": {"type": "text", "text": "Swim."}})
        assert texts(stream.messages()) == ["Swim."]


@pytest.mark.spec("L11-12")
@pytest.mark.parametrize("twice", [{"result": {"roots": []}}, {"error": {"code": -1, "message": "no"}}])
def test_a_second_answer_is_dropped(session: OpenSession, twice: dict[str, Any]) -> None:
    with session.stream("luggage") as stream:
        question = stream.next()["data"]
        assert answer(session, question, result={"roots": [{"uri": "file:///a"}]}) == 202
        assert answer(session, question, **twice) == 202
        assert texts(stream.messages()) == ["file:///a"]


@pytest.mark.security("R5", "R6")
@pytest.mark.spec("L11-12")
def test_another_sessions_answer_is_not_taken(hotel: Live, session: OpenSession) -> None:
    other = OpenSession(hotel)
    with session.stream("luggage") as mine, other.stream("luggage") as theirs:
        questions = [mine.next()["data"], theirs.next()["data"]]
        assert answer(other, questions[0], result={"roots": [{"uri": "file:///theirs"}]}) == 202
        assert answer(session, questions[0], result={"roots": [{"uri": "file:///mine"}]}) == 202
        assert texts(mine.messages()) == ["file:///mine"]
        if questions[1]["id"] != questions[0]["id"]:
            answer(other, questions[1], result={"roots": [{"uri": "file:///theirs"}]})
        assert texts(theirs.messages()) == ["file:///theirs"]


@pytest.mark.spec("L11-38", "L11-37")
@pytest.mark.parametrize("tool", ["welcome_text", "luggage", "book"])
def test_a_question_that_is_refused_fails_the_tool(session: OpenSession, tool: str) -> None:
    with session.stream(tool) as stream:
        question = stream.next()["data"]
        answer(session, question, error={"code": -1, "message": "User rejected"})
        [message] = stream.messages()
    assert message["result"]["isError"] is True
    assert message["result"]["content"][0]["text"].endswith("The client refused: User rejected")


@pytest.mark.parametrize(
    "said", [{"result": {"nonsense": 1}}, {"result": {"action": "accept", "content": {"nights": "x"}}}]
)
def test_an_answer_that_does_not_fit(session: OpenSession, said: dict[str, Any]) -> None:
    with session.stream("book") as stream:
        answer(session, stream.next()["data"], **said)
        [message] = stream.messages()
    assert message["result"]["isError"]


@pytest.mark.spec("L11-32", "L11-13")
def test_a_call_that_is_given_up_gives_its_question_up(session: OpenSession) -> None:
    with session.listen() as listening, session.stream("luggage", id=3) as stream:
        question = stream.next()["data"]
        session.post(rpc("notifications/cancelled", {"requestId": 3}, id=None))
        assert stream.messages() == []
        told = listening.next()["data"]
        assert (told["method"], told["params"]["requestId"]) == ("notifications/cancelled", question["id"])
        assert answer(session, question, result={"roots": []}) == 202


@pytest.mark.spec("L11-39", "L11-40")
def test_who_was_sent_to_a_page_and_nobody_else_hears_that_it_is_done(hotel: Live, session: OpenSession) -> None:
    other = OpenSession(hotel)
    with session.listen() as mine, other.listen() as theirs:
        with session.stream("pay") as stream:
            question = stream.next()["data"]
            answer(session, question, result={"action": "accept"})
            done, last = stream.messages()
        page = {"elicitationId": question["params"]["elicitationId"]}
        assert done == rpc("notifications/elicitation/complete", page, id=None)  # on the stream of the call
        assert texts([last]) == ["accept"]
        hotel.server.notify_tools_changed()
        for stream in (mine, theirs):
            assert stream.next()["data"]["method"] == "notifications/tools/list_changed"


@pytest.mark.spec("L11-41")
def test_pages_have_ids_of_their_own(session: OpenSession) -> None:
    errors = [session.call("pay_first").error for _ in range(2)]
    assert {error["code"] for error in errors} == {-32042}
    assert len({error["data"]["elicitations"][0]["elicitationId"] for error in errors}) == 2


# Batches.


def post_batch(session: OpenSession, *messages: Any, **changed: str) -> Any:
    return session.post(list(messages), changed)


@pytest.mark.spec("L03-01", "L03-03")
def test_a_batch_is_answered_by_a_batch(hotel: Live) -> None:
    session = OpenSession(hotel, "2025-03-26")
    added = {"name": "add", "arguments": {"a": 1, "b": 2}}
    response = post_batch(
        session, rpc("ping", id=1), rpc("tools/call", added, id="two"), rpc("notifications/x", id=None), rpc("no", id=3)
    )
    assert response.status == 200
    answers = {message["id"]: message for message in response.json}
    assert answers[1]["result"] == {}
    assert answers["two"]["result"]["content"][0]["text"] == "3"
    assert answers[3]["error"]["code"] == -32601
    assert len(response.json) == 3


@pytest.mark.spec("L03-01", "L03-03")
def test_a_batch_without_requests_is_accepted(hotel: Live) -> None:
    session = OpenSession(hotel, "2025-03-26")
    response = post_batch(session, rpc("notifications/x", id=None), rpc("notifications/y", id=None))
    assert (response.status, response.body) == (202, b"")
    with session.stream("survey_by_hand") as stream:
        questions = {(question := stream.next()["data"])["method"]: question["id"] for _ in range(2)}
        said = {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m"}
        answers = [
            {"jsonrpc": "2.0", "id": questions["roots/list"], "result": {"roots": [{"uri": "file:///b"}]}},
            {"jsonrpc": "2.0", "id": questions["sampling/createMessage"], "result": said},
        ]
        response = post_batch(session, *answers)
        assert (response.status, response.body) == (202, b"")
        assert texts(stream.messages()) == ["Hi file:///b"]


@pytest.mark.spec("L03-03")
def test_a_batch_that_has_something_to_tell_is_a_stream(hotel: Live) -> None:
    session = OpenSession(hotel, "2025-03-26")
    params = {"name": "clean", "arguments": {"rooms": 2}, "_meta": {"progressToken": "t"}}
    response = post_batch(session, rpc("tools/call", params, id=1), rpc("ping", id=2))
    assert response.is_stream
    assert sum("method" in message for message in response.messages) == 2
    assert {message["id"] for message in response.messages if "id" in message} == {1, 2}
    only = post_batch(session, rpc("ping", id=2), Accept="text/event-stream")
    assert only.is_stream


@pytest.mark.spec("L03-03")
def test_what_is_cancelled_in_a_batch_is_not_answered(hotel: Live, label: str) -> None:
    session = OpenSession(hotel, "2025-03-26")
    for others, answers in (([rpc("ping", id=2)], [2]), ([], None)):
        held = rpc("tools/call", {"name": "hold", "arguments": {"label": f"{label} {len(others)}"}}, id=1)
        with ThreadPoolExecutor() as elsewhere:
            posting = elsewhere.submit(post_batch, session, held, *others)
            until(lambda held=held: session.text("wait_of", **held["params"]["arguments"]) == "waiting")
            session.post(rpc("notifications/cancelled", {"requestId": 1}, id=None))
            response = posting.result(5)
        if answers is None:
            assert (response.status, response.body) == (202, b"")
        else:
            assert [one["id"] for one in response.json] == answers


@pytest.mark.spec("COMPAT-02", "HDR-09")
def test_what_says_everything_about_itself_is_not_of_the_session_in_a_batch_either(hotel: Live) -> None:
    """And as a batch has no headers that repeat it, it is refused, as it is when it comes alone."""
    session = OpenSession(hotel, "2025-03-26")
    alone = message("tools/call", {"name": "who", "arguments": {}}, id="m")
    answers = {one["id"]: one for one in post_batch(session, alone, rpc("ping", id=2)).json}
    assert (answers["m"]["error"]["code"], answers[2]["result"]) == (-32020, {})
    assert session.post(alone).refusal == (400, -32020)
    with serve(make_hotel(eras=("session",))) as live:  # where there is no other era it means nothing
        assert post_batch(OpenSession(live, "2025-03-26"), alone).json[0]["result"]


@pytest.mark.spec("L11-29")
def test_a_batch_whose_header_names_no_revision_is_refused(hotel: Live) -> None:
    session = OpenSession(hotel, "2025-03-26")
    for version in ("2024-01-01", "nonsense"):
        response = post_batch(session, rpc("ping"), **{"MCP-Protocol-Version": version})
        assert response.refusal == (400, -32600)
        assert "names none of" in response.error["message"]


@pytest.mark.spec("L03-02", "L03-01")
def test_what_is_wrong_in_a_batch_is_refused_by_itself(hotel: Live) -> None:
    session = OpenSession(hotel, "2025-03-26")
    second = rpc(
        "initialize", {"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    )
    second["id"] = "second"
    response = post_batch(session, 5, [rpc("ping", id=4)], second, rpc("ping", id=2), rpc("ping", id=2))
    codes = [message["error"]["code"] for message in response.json if "error" in message]
    assert codes[:3] == [-32600] * 3
    assert "second" in [message.get("id") for message in response.json if "error" in message]
    del second["id"]
    assert [message["id"] for message in post_batch(session, second, rpc("ping", id=3)).json] == [3]
    assert [message["id"] for message in response.json if "result" in message] == [2]
    assert post_batch(session).refusal == (400, -32600)
    assert session.live.send(b"[1,", session.headers()).refusal == (400, -32700)


@pytest.mark.spec("L06-01")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_other_revisions_have_no_batches(hotel: Live, version: str) -> None:
    session = OpenSession(hotel, version)
    for messages in ([rpc("ping")], [rpc("notifications/x", id=None)], []):
        assert post_batch(session, *messages).refusal == (400, -32600)
