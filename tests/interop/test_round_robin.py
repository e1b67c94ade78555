"""Two server processes behind nginx, which takes them in turn. They share a sealing key, and nothing else."""

import http.client
import secrets
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, Response, encode, headers_for, message, parse_sse, start_request
from support.wire import finish

SHOP = Path(__file__).parent / "servers" / "shop.py"
ANSWERS = {"Which size?": {"size": "large"}, "Where to?": {"street": "Rue de la Paix"}}
CALLS = 5


@contextmanager
def sending(port: int, method: str, params: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    """A request through nginx, on a connection of its own."""
    body = message(method, params, meta={CLIENT_CAPABILITIES_KEY: {"elicitation": {}}})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        start_request(connection, encode(body), headers_for(body))
        yield connection.getresponse()


def call(port: int, tool: str, **params: Any) -> Response:
    with sending(port, "tools/call", {"name": tool, **params}) as response:
        return finish(response)


def answers_to(round: dict[str, Any]) -> dict[str, Any]:
    """What a user says, and the state as it came."""
    answers = {
        key: {"action": "accept", "content": ANSWERS[question["params"]["message"]]}
        for key, question in round["inputRequests"].items()
    }
    return {"inputResponses": answers, "requestState": round["requestState"]}


def buy(port: int, order: str) -> dict[str, Any]:
    """One logical call, in as many rounds as it takes."""
    result = call(port, "buy", arguments={"order": order}).result
    while result["resultType"] == "input_required":
        result = call(port, "buy", arguments={"order": order}, **answers_to(result)).result
    return result


def events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """The messages of a stream, each as soon as it is there."""
    event = b""
    while line := response.readline():
        event += line
        if line == b"\n":
            yield from parse_sse(event)
            event = b""


def read_book(book: Path) -> dict[str, dict[str, list[int]]]:
    """Which processes did what, by order."""
    entries: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for line in book.read_text().splitlines():
        what, order, process = line.split()
        entries[what][order].append(int(process))
    return entries


@pytest.mark.spec("MRTR-16")
def test_a_tool_that_asks_twice_charges_once(start_fleet: Callable[..., Any], tmp_path: Path) -> None:
    book = tmp_path / "book"
    env = {"SHOP_BOOK": str(book), "WEFT_STATE_KEY": secrets.token_urlsafe(32)}
    fleet = start_fleet(SHOP, env, env)
    orders = [f"order{number}" for number in range(CALLS)]
    texts = {order: buy(fleet.port, order)["content"][0]["text"] for order in orders}

    entries = read_book(book)
    processes = {process.pid for process in fleet.processes}
    for order in orders:
        rounds, charges = entries["served"][order], entries["charged"][order]
        assert len(rounds) == 3
        assert set(rounds) == processes  # each call was served by both
        assert rounds[0] == rounds[2] != rounds[1]
        assert charges == [rounds[1]]  # and yet charged once, by the one that the third round did not reach
        assert texts[order] == f"large, to Rue de la Paix, receipt of {order} from {charges[0]}"
    assert {entries["served"][order][0] for order in orders} == processes  # either may be the first


@pytest.mark.spec("MRTR-09", "MRTR-10")
def test_processes_that_do_not_share_a_key_do_not_believe_each_other(
    start_fleet: Callable[..., Any], tmp_path: Path
) -> None:
    book = tmp_path / "book"
    keys = [secrets.token_urlsafe(32), secrets.token_urlsafe(32)]
    fleet = start_fleet(SHOP, *({"SHOP_BOOK": str(book), "WEFT_STATE_KEY": key} for key in keys))
    asked = call(fleet.port, "buy", arguments={"order": "one"}).result
    assert asked["resultType"] == "input_required"
    assert call(fleet.port, "buy", arguments={"order": "one"}, **answers_to(asked)).error["code"] == -32602
    assert "charged" not in read_book(book)


@pytest.mark.spec("SUB-12")
def test_a_stream_passes_event_by_event_to_its_graceful_end(start_fleet: Callable[..., Any], tmp_path: Path) -> None:
    fleet = start_fleet(SHOP, {"SHOP_BOOK": str(tmp_path / "book")})
    wanted = {"notifications": {"resourceSubscriptions": ["shop://stock"]}}
    with sending(fleet.port, "subscriptions/listen", wanted) as response:
        heard = events(response)
        assert response.headers["Content-Type"] == "text/event-stream"
        assert next(heard)["method"] == "notifications/subscriptions/acknowledged"
        for _ in range(2):
            call(fleet.port, "restock", arguments={})
            assert next(heard)["params"]["uri"] == "shop://stock"
        fleet.processes[0].send_signal(signal.SIGTERM)
        farewell = next(heard)
        assert farewell["result"]["resultType"] == "complete"
        assert farewell["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == farewell["id"]
        assert next(heard, None) is None
