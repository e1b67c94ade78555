"""Whatever bytes come in: a documented status and a JSON-RPC answer, never a fault; and the server is well after."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY, VERSION, Live, encode, headers_for, message

STATUSES = {200, 202, 400, 404}
CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
METHODS = [
    "server/discover",
    "tools/list",
    "tools/call",
    "resources/read",
    "prompts/get",
    "completion/complete",
    "initialize",
    "x",
]
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["name", "arguments", "uri", "cursor", "ref", "argument", "_meta", "inputResponses", "requestState", "x"]
)
META_KEYS = st.sampled_from([PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES_KEY, "progressToken", "traceparent", "x"])


def check(live: Live, body: bytes, headers: list[tuple[str, str]]) -> None:
    response = live.send(body, headers)
    assert response.status in STATUSES, response.status
    if response.status == 202:
        assert response.body == b""
        return
    answer = response.json
    assert answer["jsonrpc"] == "2.0"
    assert answer.get("id", 0) is not None
    if "error" in answer:
        assert answer["error"]["code"] in CODES
        assert len(response.body) < 4500
        assert b"Traceback" not in response.body
    else:
        assert answer["result"]["resultType"] == "complete"
    assert live.faults == []


@pytest.mark.security("R1", "D2", "D4")
@SETTINGS
@given(st.binary(max_size=200))
def test_any_bytes(live: Live, body: bytes) -> None:
    check(live, body, headers_for(message("tools/list")))


@pytest.mark.security("R1", "D2", "D4")
@SETTINGS
@given(JSON)
def test_any_json(live: Live, value: Any) -> None:
    check(live, json.dumps(value).encode(), headers_for(message("tools/list")))


@pytest.mark.security("R1", "D4")
@SETTINGS
@given(
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0") | JSON, "id": st.just(1) | JSON, "method": st.sampled_from(METHODS)},
        optional={"params": JSON, "result": JSON, "error": JSON},
    )
)
def test_anything_like_a_message(live: Live, body: dict[str, Any]) -> None:
    check(live, json.dumps(body).encode(), headers_for(body))


@pytest.mark.security("R1", "D4")
@SETTINGS
@given(
    st.sampled_from(METHODS),
    st.dictionaries(KEYS, JSON | st.sampled_from(["add", "echo", "seat", "greet", "note://plain"]), max_size=4),
    st.dictionaries(META_KEYS, JSON, max_size=2),
)
def test_any_params(live: Live, method: str, params: dict[str, Any], meta: dict[str, Any]) -> None:
    envelope = {PROTOCOL_VERSION_KEY: VERSION, CLIENT_CAPABILITIES_KEY: {}, **meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": envelope, **params}}
    check(live, json.dumps(body).encode(), headers_for(body))


@pytest.mark.security("R1", "D4")
@SETTINGS
@given(st.sampled_from(["add", "seat", "region", "bounded", "echo", "steps", "fail"]), JSON)
def test_any_arguments(live: Live, name: str, arguments: Any) -> None:
    body = message("tools/call", {"name": name, "arguments": arguments})
    check(live, json.dumps(body).encode(), headers_for(body))


@pytest.mark.security("R1", "R14")
@SETTINGS
@given(
    st.sampled_from(["Mcp-Method", "Mcp-Name", "MCP-Protocol-Version", "Mcp-Param-Region", "Mcp-X", "X"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40),
)
def test_any_header(live: Live, name: str, value: str) -> None:
    body = message("tools/call", {"name": "region", "arguments": {"region": "eu"}})
    kept = [pair for pair in headers_for(body, {"Mcp-Param-Region": "eu"}) if pair[0] != name]
    check(live, encode(body), [*kept, (name, value)])


def test_the_server_is_well_after_all_that(live: Live) -> None:
    assert live.healthy()
    assert live.server.engine.in_flight == 0
