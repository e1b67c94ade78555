"""Requests, notifications and answers over HTTP: forms, statuses, ids."""

import json
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from support import (
    ACCEPT_BOTH,
    SERVER_INFO,
    VERSION,
    VERSIONS,
    Live,
    encode,
    headers_for,
    make_server,
    message,
    serve,
    start_request,
    until,
)

NOTIFICATIONS = ["notifications/cancelled", "notifications/initialized", "notifications/unheard/of"]
IDS = [0, 1, -1, 2**53, -(2**53), "", "0", "1", "a b", "\u00e9\U0001f600", "x" * 256]


@pytest.mark.spec("JRPC-02", "JRPC-06", "JRPC-07", "HTTP-13", "HTTP-01")
@pytest.mark.parametrize("id", IDS)
def test_an_answer_repeats_the_id_as_it_came(live: Live, id: int | str) -> None:
    response = live.tool("add", {"a": 1, "b": 2}, id=id)
    answer = response.json
    assert response.headers["content-type"] == "application/json"
    assert answer["jsonrpc"] == "2.0"
    assert (answer["id"], type(answer["id"])) == (id, type(id))
    assert answer["result"]["resultType"] == "complete"
    assert "error" not in answer


@pytest.mark.spec("JRPC-11", "JRPC-12", "JRPC-02")
@pytest.mark.parametrize("id", IDS)
def test_an_error_repeats_the_id_as_it_came(live: Live, id: int | str) -> None:
    answer = live.tool("nothing", id=id).json
    assert (answer["id"], type(answer["id"])) == (id, type(id))
    assert type(answer["error"]["code"]) is int
    assert type(answer["error"]["message"]) is str
    assert answer["jsonrpc"] == "2.0"
    assert "result" not in answer


@pytest.mark.spec("JRPC-11", "TRN-01")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"jsonrpc":"2.0","id":1,',
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"NaN",
        b'{"a":1}x',
    ],
)
def test_what_is_not_json_is_answered_without_an_id(live: Live, body: bytes) -> None:
    response = live.send(body, headers_for(message("tools/list")))
    assert response.refusal == (400, -32700)
    assert "id" not in response.json


@pytest.mark.spec("TRN-01")
def test_messages_are_utf_8(live: Live) -> None:
    text = "Grüezi \U0001f600 \u2028"
    response = live.tool("echo", {"value": text})
    assert response.result["structuredContent"] == text
    body = message("tools/call", {"name": "echo", "arguments": {"value": "é"}})
    latin = json.dumps(body, ensure_ascii=False).encode("latin-1")
    assert live.send(latin, headers_for(body)).refusal == (400, -32700)


@pytest.mark.spec("JRPC-02", "JRPC-11")
@pytest.mark.parametrize(
    "body",
    [
        b"[]", b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', b"3", b"null", b'"x"', b"{}",
        b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}', b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":[1],"method":"tools/list"}',
    ],
)  # fmt: skip
def test_json_that_is_no_message_is_refused_without_an_id(live: Live, body: bytes) -> None:
    response = live.send(body, headers_for(message("tools/list")))
    assert response.refusal == (400, -32600)
    assert "id" not in response.json


@pytest.mark.spec("JRPC-02", "JRPC-11")
@pytest.mark.parametrize(
    "change", [{"jsonrpc": "1.0"}, {"jsonrpc": 2.0}, {"jsonrpc": None}, {"method": 7}, {"method": None}]
)
def test_a_message_that_is_not_one_keeps_its_id_where_that_is_readable(live: Live, change: dict) -> None:
    response = live.post({**message("tools/list", id="mine"), **change}, {"Mcp-Method": "tools/list"})
    assert response.refusal == (400, -32600)
    assert response.json["id"] == "mine"


@pytest.mark.spec("JRPC-23", "HTTP-11")
@pytest.mark.parametrize("method", NOTIFICATIONS)
@pytest.mark.parametrize("header", [None, VERSION])
def test_a_notification_is_taken_and_not_answered(alone: Live, method: str, header: str | None) -> None:
    body = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}}
    response = alone.post(body, {"MCP-Protocol-Version": header})
    assert (response.status, response.body) == (202, b"")


@pytest.mark.spec("JRPC-23", "HTTP-11")
@pytest.mark.parametrize(
    ("method", "header"),
    [("notifications/cancelled", None), *((method, VERSION) for method in NOTIFICATIONS)],
)
def test_so_it_is_beside_sessions(live: Live, method: str, header: str | None) -> None:
    body = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}}
    response = live.post(body, {"MCP-Protocol-Version": header})
    assert (response.status, response.body) == (202, b"")


@pytest.mark.spec("HTTP-12", "L11-23")
@pytest.mark.parametrize(
    ("method", "header"),
    [(NOTIFICATIONS[1], None), (NOTIFICATIONS[2], None), *((method, VERSIONS[1]) for method in NOTIFICATIONS)],
)
def test_a_notification_of_a_session_needs_one(live: Live, method: str, header: str | None) -> None:
    body = {"jsonrpc": "2.0", "method": method, "params": {"requestId": 1}}
    response = live.post(body, {"MCP-Protocol-Version": header, "Mcp-Method": None})
    assert response.refusal == (400, -32600)
    assert "Mcp-Session-Id" in response.error["message"]


@pytest.mark.spec("CAN-10", "CAN-07")
@pytest.mark.parametrize("params", [None, {}, {"requestId": None}, {"requestId": 99}, {"requestId": {}}, []])
def test_a_malformed_cancellation_is_nothing_to_speak_of(live: Live, params: object) -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    assert live.post(body).status == 202


@pytest.mark.spec("HTTP-12")
@pytest.mark.parametrize(
    "body", [b'{"jsonrpc":"1.0","method":"notifications/cancelled"}', b'{"jsonrpc":"2.0","method":7}']
)
def test_a_notification_that_is_refused_has_an_error_status(live: Live, body: bytes) -> None:
    response = live.send(body, headers_for(message("x")))
    assert response.refusal == (400, -32600)
    assert "id" not in response.json


@pytest.mark.spec("JRPC-24", "TRN-02")
@pytest.mark.parametrize("member", [{"result": {}}, {"error": {"code": 1, "message": "no"}}])
def test_a_response_from_a_client_is_refused(live: Live, member: dict) -> None:
    assert live.post({"jsonrpc": "2.0", "id": 1, **member}).refusal == (400, -32600)


@pytest.mark.spec("HTTP-01")
@pytest.mark.parametrize("verb", ["GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD"])
def test_only_post_is_served(alone: Live, verb: str) -> None:
    response = alone.send(b"", headers_for(message("tools/list")), verb=verb)
    assert response.status == 405
    assert response.headers["allow"] == "POST"


@pytest.mark.spec("HTTP-01")
@pytest.mark.parametrize("verb", ["PUT", "PATCH", "OPTIONS", "HEAD"])
def test_sessions_have_two_verbs_more(live: Live, verb: str) -> None:
    response = live.send(b"", headers_for(message("tools/list")), verb=verb)
    assert response.status == 405
    assert response.headers["allow"] == "POST, GET, DELETE"


@pytest.mark.spec("L11-23", "L11-24")
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
@pytest.mark.parametrize(("session", "status"), [(None, 400), ("s1", 404), ("x" * 500, 404)])
def test_these_need_a_session(live: Live, verb: str, session: str | None, status: int) -> None:
    headers = [("Accept", ACCEPT_BOTH), *([] if session is None else [("Mcp-Session-Id", session)])]
    assert live.send(b"", headers, verb=verb).status == status


@pytest.mark.spec("COMPAT-17", "COMPAT-18", "COMPAT-19")
def test_there_are_no_sessions_here(alone: Live) -> None:
    response = alone.call("tools/list", headers={"Mcp-Session-Id": "s1", "Last-Event-ID": "7"})
    assert response.status == 200
    assert "mcp-session-id" not in response.headers
    assert alone.send(b"", [("Mcp-Session-Id", "s1")], verb="DELETE").status == 405


@pytest.mark.spec("COMPAT-02")
def test_a_request_that_says_everything_has_no_session(live: Live) -> None:
    """Whatever its headers say: also beside sessions, none is looked for, minted or repeated."""
    response = live.call("tools/list", headers={"Mcp-Session-Id": "s1", "Last-Event-ID": "7"})
    assert response.status == 200
    assert "mcp-session-id" not in response.headers


@pytest.mark.spec("HTTP-01")
@pytest.mark.parametrize("path", ["/", "/other", "/mcp/x", "/mcpx", "//mcp", "/mcp/mcp"])
def test_nothing_else_is_served(live: Live, path: str) -> None:
    assert live.send(encode(message("tools/list")), headers_for(message("tools/list")), path=path).status == 404


@pytest.mark.spec("HTTP-01")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp?x=1"])
def test_the_endpoint(live: Live, path: str) -> None:
    assert live.send(encode(message("tools/list")), headers_for(message("tools/list")), path=path).status == 200


@pytest.mark.spec("HTTP-13", "HTTP-15", "HTTP-16", "HTTP-17", "HTTP-19", "HTTP-22", "JRPC-24")
def test_an_answer_becomes_a_stream_at_the_first_notification(live: Live) -> None:
    response = live.tool("steps", {"values": [1, 2]}, meta={"progressToken": "p"})
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    assert "no-cache" in response.headers["cache-control"]
    *notes, answer = response.messages
    assert [note["method"] for note in notes] == ["notifications/progress"] * 2
    assert all("id" not in note for note in notes)
    assert answer["id"] == 1
    assert answer["result"]["resultType"] == "complete"
    assert not any(line.startswith(b"id:") for line in response.body.splitlines())


@pytest.mark.spec("HTTP-13")
@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (ACCEPT_BOTH, "application/json"), (None, "application/json"), ("*/*", "application/json"),
        ("application/json", "application/json"), ("text/event-stream", "text/event-stream"),
        ("application/json;q=0, text/event-stream", "text/event-stream"), ("APPLICATION/JSON", "application/json"),
    ],
)  # fmt: skip
def test_the_form_of_an_answer_is_one_that_is_accepted(live: Live, accept: str | None, form: str) -> None:
    response = live.tool("add", {"a": 1, "b": 2}, headers={"Accept": accept})
    assert response.headers["content-type"] == form
    assert response.result["structuredContent"] == 3


def test_a_client_that_takes_no_stream_goes_without_notifications(live: Live) -> None:
    response = live.tool("steps", {"values": [1]}, meta={"progressToken": 1}, headers={"Accept": "application/json"})
    assert not response.is_stream
    assert response.result["content"][0]["text"] == "done"


@pytest.mark.spec("HTTP-13")
def test_a_client_that_takes_neither_form_is_told(live: Live) -> None:
    response = live.call("tools/list", headers={"Accept": "text/html"})
    assert response.status == 406
    assert "application/json" in response.error["message"]


@pytest.mark.spec("HTTP-28", "STATE-02")
def test_requests_run_side_by_side(live: Live) -> None:
    connection = live.connect()
    try:
        body = message("tools/call", {"name": "wait", "arguments": {"token": "beside"}})
        start_request(connection, encode(body), headers_for(body))
        until(lambda: live.server.log.of("beside") == ["started"])
        assert live.tool("add", {"a": 1, "b": 2}).result["structuredContent"] == 3
    finally:
        connection.close()


def test_connections_are_kept_alive(live: Live) -> None:
    connection = live.connect()
    connection.connect()
    used = connection.sock
    for _ in range(3):
        assert live.call("server/discover", connection=connection).status == 200
        assert live.call("no/such", connection=connection).status == 404
    assert connection.sock is used
    connection.close()


METHODS: dict[str, dict] = {
    "server/discover": {},
    "tools/list": {},
    "tools/call": {"name": "add", "arguments": {"a": 1, "b": 2}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "note://plain"},
    "prompts/list": {},
    "prompts/get": {"name": "greet", "arguments": {"name": "Ada"}},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "tone", "value": "w"}},
}


@pytest.mark.spec("JRPC-01", "JRPC-07", "META-07", "DISC-03", "TRN-02")
@pytest.mark.parametrize("method", METHODS)
def test_every_result_says_what_it_is_and_who_made_it(live: Live, method: str) -> None:
    result = live.call(method, METHODS[method]).result
    assert result["resultType"] == "complete"
    assert result["_meta"][SERVER_INFO] == {"name": "everything", "version": "2.0", "title": "Everything"}


@pytest.mark.spec("META-07")
def test_a_result_made_by_hand_keeps_its_own_meta(live: Live) -> None:
    meta = live.tool("whole").result["_meta"]
    assert meta["com.example/k"] == 1
    assert meta[SERVER_INFO]["name"] == "everything"
    assert "com.example/k" not in live.tool("add", {"a": 1, "b": 1}).result["_meta"]


@pytest.mark.spec("JRPC-14", "JRPC-15", "JRPC-17", "JRPC-18", "JRPC-19", "RES-05")
def test_reserved_codes_are_never_made_up(live: Live) -> None:
    faults: list[Callable[[], object]] = [
        lambda: live.tool("fail", {"how": "reserved"}),
        lambda: live.call("resources/read", {"uri": "note://absent"}),
        lambda: live.tool("nothing"),
        lambda: live.call("no/such"),
    ]
    codes = [fault().error["code"] for fault in faults]  # type: ignore[attr-defined] - responses
    assert codes == [-32603, -32602, -32602, -32601]


@pytest.mark.spec("JRPC-13")
def test_error_messages_are_one_short_line(live: Live) -> None:
    for response in (
        live.tool("nothing"),
        live.call("no/such"),
        live.call("tools/list", {"cursor": "x"}),
        live.call("tools/list", headers={"Mcp-Method": "x"}),
    ):
        assert "\n" not in response.error["message"]
        assert len(response.error["message"]) < 200


@pytest.mark.spec("JRPC-21")
def test_an_application_may_use_codes_of_its_own() -> None:
    from weft import ProtocolError, Server

    server = Server("vault")

    @server.tool
    async def open_it() -> str:
        raise ProtocolError("Closed.", code=1001, data={"opens": "08:00"})

    with serve(server) as live:
        response = live.tool("open_it")
    assert response.status == 200
    assert response.error == {"code": 1001, "message": "Closed.", "data": {"opens": "08:00"}}


@pytest.mark.spec("HTTP-04")
@pytest.mark.security("D15")
def test_a_server_listens_on_loopback_unless_told_otherwise() -> None:
    from weft.server.run.listening import HttpOptions, bind

    with closing(bind(HttpOptions().host, 0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_the_thread_of_the_server_survives_stopping() -> None:
    before = threading.active_count()
    with serve(make_server()) as live:
        assert live.healthy()
    assert threading.active_count() <= before + 1
