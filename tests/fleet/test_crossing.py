"""What was begun at one process goes on at another: nginx says which request reached which process."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from support import CLIENT_CAPABILITIES_KEY, until
from support.deployments import NginxDeployment
from support.sessions import OpenSession, rpc
from weft.server.sessions.streams import writer_of

ROOTS = {"roots": [{"uri": "file:///here"}]}


@pytest.fixture(scope="module")
def hotel(started: Callable[..., NginxDeployment]) -> Iterator[NginxDeployment]:
    deployment = started("redis", "hotel")
    yield deployment
    assert deployment.faults == []


@pytest.fixture
def session(hotel: NginxDeployment) -> OpenSession:
    return OpenSession(hotel)


def ports_of(hotel: NginxDeployment, session: OpenSession, count: int, verb: str = "POST") -> list[int]:
    """The processes of the last requests of a session, when there are so many."""

    def found() -> list[int]:
        return [one.port for one in hotel.passed if (one.session, one.verb) == (session.id, verb)]

    until(lambda: len(found()) >= count)
    return found()


def test_nginx_takes_the_processes_in_turn(hotel: NginxDeployment, session: OpenSession) -> None:
    for _ in range(9):
        assert session.request("ping").result == {}
    ports = ports_of(hotel, session, 10)
    assert Counter(ports[-9:]) == dict.fromkeys([worker.port for worker in hotel.workers], 3)


def test_a_question_asked_at_one_process_is_answered_at_another(hotel: NginxDeployment, session: OpenSession) -> None:
    with session.stream("luggage") as stream:
        question = stream.next()["data"]
        assert session.post({"jsonrpc": "2.0", "id": question["id"], "result": ROOTS}).status == 202
        [answer] = stream.messages()
    assert answer["result"]["content"][0]["text"] == "file:///here"
    asked_at = hotel.port_of(question["id"].partition("-")[0])
    # The call and the answer to its question end at about the same time: nginx may log either of them first.
    last_two = ports_of(hotel, session, 3)[-2:]
    assert last_two.count(asked_at) == 1


def test_a_stream_of_one_process_is_resumed_at_another(hotel: NginxDeployment, session: OpenSession) -> None:
    with session.stream("hold", token="t", label="crossing") as stream:
        event = stream.next()
        last = event["id"]
        stream.cut()
    with session.listen(last) as rest:
        session.text("release", label="crossing")
        assert [one.get("method") or one["result"]["content"][0]["text"] for one in rest.messages()] == [
            "notifications/progress", "held crossing",
        ]  # fmt: skip
    [resumed_at] = ports_of(hotel, session, 1, "GET")
    assert resumed_at != hotel.port_of(writer_of(last.rpartition(".")[0]))


def test_a_call_at_one_process_is_cancelled_at_another(hotel: NginxDeployment, session: OpenSession) -> None:
    with session.stream("hold", id=9, token="t", label="cancelled") as stream:
        stream.next()
        assert session.post(rpc("notifications/cancelled", {"requestId": 9}, id=None)).status == 202
        assert stream.messages() == []
    *_, cancelled_at, called_at = ports_of(hotel, session, 3)
    assert cancelled_at != called_at


def test_rounds_of_one_call_are_served_by_different_processes(hotel: NginxDeployment) -> None:
    before, meta = len(hotel.server.served), {CLIENT_CAPABILITIES_KEY: {"roots": {}}}
    call = {"name": "luggage", "arguments": {}}
    asked = hotel.call("tools/call", call, meta=meta).result
    answers = dict.fromkeys(asked["inputRequests"], ROOTS)
    again = {**call, "inputResponses": answers, "requestState": asked["requestState"]}
    assert hotel.call("tools/call", again, meta=meta).result["content"][0]["text"] == "file:///here"
    first, second = [one.process for one in hotel.server.served[before:]]
    assert first != second
