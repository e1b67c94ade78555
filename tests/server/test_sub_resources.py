"""A change of a part is told to those who subscribed to the whole, under the part's own URI, and to nobody twice."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from support import encode, headers_for, message, serve, start_request
from support.peers import read_events
from support.raw_sessions import eventually
from support.sessions import OpenSession, introduction, rpc
from support.wire import Live
from weft import Server
from weft.server.calls.changes import MOST_UNTOLD, Change, ChangeInbox

WHOLE, PART, OTHER, END = "repo://x", "repo://x/readme", "repo://y", "repo://end"


def make() -> Server:
    server = Server("repos")
    server.add_resource(WHOLE, "all of it")
    return server


class Subscriber(Protocol):
    def next(self) -> dict[str, Any]: ...


class Listening:
    """A listen stream; what it is told."""

    def __init__(self, events: Iterator[dict[str, str]]) -> None:
        self._events = events

    def next(self) -> dict[str, Any]:
        return json.loads(next(self._events)["data"])


class Session:
    """A session that has subscribed; what its stream is told."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def next(self) -> dict[str, Any]:
        return self._stream.next()["data"]


@contextlib.contextmanager
def listening(live: Live, uris: list[str]) -> Iterator[Subscriber]:
    request = message("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
    with contextlib.closing(live.connect()) as connection:
        start_request(connection, encode(request), headers_for(request))
        stream = Listening(read_events(connection.getresponse()))
        assert stream.next()["method"] == "notifications/subscriptions/acknowledged"
        yield stream


@contextlib.contextmanager
def subscribed(live: Live, uris: list[str]) -> Iterator[Subscriber]:
    session = OpenSession(live)
    with session.listen() as stream:
        for uri in uris:
            assert session.request("resources/subscribe", {"uri": uri}).result == {}
        yield Session(stream)


WAYS = pytest.mark.parametrize("way", [listening, subscribed], ids=["stateless", "session"])


@pytest.fixture
def live() -> Iterator[Live]:
    with serve(make()) as running:
        yield running


def heard(subscriber: Subscriber) -> list[str]:
    """The URIs it is told of, up to the last one."""
    found: list[str] = []
    while not found or found[-1] != END:
        told = subscriber.next()
        assert told["method"] == "notifications/resources/updated"
        found.append(told["params"]["uri"])
    return found[:-1]


@pytest.mark.spec("SUB-19")
@WAYS
@pytest.mark.parametrize(
    ("uris", "told"),
    [
        ([WHOLE], [PART]),
        ([PART], [PART]),
        ([WHOLE, PART], [PART]),  # once
        ([OTHER], []),
    ],
    ids=["whole", "part", "both", "other"],
)
def test_the_part_is_told_to_those_who_wait_for_the_whole(
    way: Any, uris: list[str], told: list[str], live: Live
) -> None:
    with way(live, [*uris, END]) as subscriber:
        live.server.notify_resource_updated(PART, part_of=WHOLE)
        live.server.notify_resource_updated(END)
        assert heard(subscriber) == told


@pytest.mark.spec("SUB-19", "SUB-02")
@WAYS
def test_without_saying_so_a_part_is_a_resource_of_its_own(way: Any, live: Live) -> None:
    with way(live, [WHOLE, END]) as subscriber:
        live.server.notify_resource_updated(PART)
        live.server.notify_resource_updated(WHOLE)
        live.server.notify_resource_updated(END)
        assert heard(subscriber) == [WHOLE]


def inbox_of(*uris: str) -> ChangeInbox:
    return ChangeInbox(lambda change: change.concerns(uris), uris, lambda: None)


def taken(inbox: ChangeInbox) -> list[Change | None]:
    return [inbox.take() for _ in range(len(inbox))]


def test_a_part_that_waits_to_be_told_is_told_once_however_it_was_said() -> None:
    inbox = inbox_of(WHOLE, PART)
    for part_of in (WHOLE, None, OTHER):
        inbox.put(Change("resource", PART, part_of))
    assert taken(inbox) == [Change("resource", PART)]
    assert inbox.take() is None


@pytest.mark.security("D10")
def test_a_slow_reader_is_told_of_the_whole_where_too_many_parts_change() -> None:
    inbox = inbox_of(WHOLE, PART)
    for number in range(10 * MOST_UNTOLD):
        inbox.put(Change("resource", f"{WHOLE}/{number}", WHOLE))
    assert len(inbox) == MOST_UNTOLD + 1
    inbox.put(Change("resource", PART, WHOLE))  # subscribed to by itself
    assert taken(inbox)[-2:] == [Change("resource", WHOLE), Change("resource", PART)]


@pytest.mark.spec("SUB-19")
async def test_it_is_the_same_on_a_pipe() -> None:
    server, got = make(), list[dict[str, Any]]()
    await server.engine.lifespan.start()
    pipe = server.pipe(lambda line: got.append(json.loads(line)))
    pipe.send(encode(rpc("initialize", introduction(), id=0)))
    await eventually(lambda: len(got) == 1)
    pipe.send(encode(rpc("notifications/initialized", id=None)))
    for number, uri in enumerate((WHOLE, PART, END), 1):
        pipe.send(encode(rpc("resources/subscribe", {"uri": uri}, id=number)))
    await eventually(lambda: len(got) == 4)
    server.notify_resource_updated(f"{WHOLE}/other", part_of=WHOLE)
    server.notify_resource_updated(PART, part_of=WHOLE)
    server.notify_resource_updated(PART, part_of=OTHER)
    server.notify_resource_updated(f"{OTHER}/a", part_of=OTHER)
    server.notify_resource_updated(END)
    await eventually(lambda: got[-1].get("params") == {"uri": END})
    await pipe.close()
    await server.stop()
    assert [one["params"]["uri"] for one in got[4:]] == [f"{WHOLE}/other", PART, END]
