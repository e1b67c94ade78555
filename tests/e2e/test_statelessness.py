"""Nothing is taken from earlier traffic: not the capabilities, not the name, not the lists."""

import pytest

from support import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    PROTOCOL_VERSION_KEY,
    Live,
    encode,
    headers_for,
    make_server,
    message,
    serve,
)

ROOTS = {
    CLIENT_CAPABILITIES_KEY: {"roots": {}, "sampling": {"tools": {}}},
    CLIENT_INFO_KEY: {"name": "A", "version": "1"},
}


@pytest.mark.spec("STATE-01", "META-05", "STATE-05", "META-08")
def test_capabilities_and_names_never_bleed_along_a_connection(live: Live) -> None:
    connection = live.connect()
    for _ in range(3):
        first = live.tool("who", meta=ROOTS, connection=connection).result["structuredContent"]
        second = live.tool("who", meta={CLIENT_INFO_KEY: None}, connection=connection).result["structuredContent"]
        assert (first["client"], first["capabilities"]) == ("A", {"roots": {}, "sampling": {"tools": {}}})
        assert (second["client"], second["capabilities"]) == (None, {})
    connection.close()


@pytest.mark.spec("META-05", "META-06", "JRPC-18")
@pytest.mark.parametrize(
    ("tool", "declared", "missing"),
    [
        ("ask_user", {}, {"elicitation": {"form": {}}}),
        ("ask_user", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("ask_page", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("ask_page", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ("ask_model", {"roots": {}}, {"sampling": {}}),
        ("ask_roots", {"sampling": {}}, {"roots": {}}),
    ],
)
def test_a_capability_that_this_request_did_not_declare_is_not_used(
    live: Live, tool: str, declared: dict, missing: dict
) -> None:
    connection = live.connect()
    everything = {"roots": {}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}
    live.tool(tool, meta={CLIENT_CAPABILITIES_KEY: everything}, connection=connection)
    response = live.tool(tool, meta={CLIENT_CAPABILITIES_KEY: declared}, connection=connection)
    connection.close()
    assert response.refusal == (400, -32021)
    assert response.error["data"] == {"requiredCapabilities": missing}


@pytest.mark.spec("STATE-01")
def test_the_version_is_not_remembered(live: Live) -> None:
    connection = live.connect()
    assert live.call("tools/list", connection=connection).status == 200
    assert live.call("tools/list", meta={PROTOCOL_VERSION_KEY: None}, connection=connection).refusal == (400, -32602)
    assert live.call("tools/list", headers={"MCP-Protocol-Version": None}, connection=connection).refusal == (
        400,
        -32020,
    )
    connection.close()


@pytest.mark.spec("STATE-06", "TOOL-03", "RES-03", "PRM-03", "STATE-03", "TOOL-04", "TOOL-02", "RES-02", "PRM-02")
@pytest.mark.parametrize(
    "method", ["tools/list", "resources/list", "resources/templates/list", "prompts/list", "server/discover"]
)
def test_lists_are_the_same_on_every_connection_whatever_came_before(live: Live, method: str) -> None:
    fresh = live.call(method).result
    used = live.connect()
    for tool, arguments in (("add", {"a": 1, "b": 2}), ("fail", {"how": "error"}), ("nothing", {})):
        live.tool(tool, arguments, meta=ROOTS, connection=used)
    live.call("resources/read", {"uri": "note://absent"}, connection=used)
    assert live.call(method, meta=ROOTS, connection=used).result == fresh
    used.close()


@pytest.mark.spec("STATE-02", "JRPC-06")
def test_pipelined_requests_of_two_conversations_on_one_connection(live: Live) -> None:
    connection = live.connect()
    for number in range(20):
        name = f"client{number % 2}"
        answer = live.tool(
            "who", id=number // 2, meta={CLIENT_INFO_KEY: {"name": name, "version": "1"}}, connection=connection
        )
        assert answer.result["structuredContent"]["client"] == name
        assert answer.json["id"] == number // 2
    connection.close()


@pytest.mark.spec("STATE-03", "PAG-04")
def test_a_cursor_of_one_process_is_good_in_another() -> None:
    with serve(make_server(page_size=3)) as first, serve(make_server(page_size=3)) as second:
        page = first.call("tools/list").result
        there = first.call("tools/list", {"cursor": page["nextCursor"]}).result
        elsewhere = second.call("tools/list", {"cursor": page["nextCursor"]}).result
    assert there == elsewhere
    assert page["tools"][0] not in there["tools"]


def test_the_same_body_gives_the_same_bytes(live: Live) -> None:
    body = message("tools/list")
    answers = {live.send(encode(body), headers_for(body)).body for _ in range(3)}
    assert len(answers) == 1
