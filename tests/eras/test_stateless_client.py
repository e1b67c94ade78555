"""The stateless era from the client's side: no socket, no event loop."""

from typing import Any

import msgspec
import pytest

from weft.eras.base import ClientEra
from weft.eras.client import StatelessClient, named_versions
from weft.errors import InvalidAnswer
from weft.protocol.headers import decode_value
from weft.types.base import Implementation
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ClientCapabilities, RootsCapability, ServerCapabilities

ERA = StatelessClient()
INFO = Implementation("t", "1")
KEY = "io.modelcontextprotocol/"


def stamp(method: str, params: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    stamped = ERA.stamp(method, params, info=INFO, **{"capabilities": ClientCapabilities(), **more})
    return msgspec.to_builtins(stamped), ERA.headers(method, params)


def test_it_answers_what_a_client_asks() -> None:
    era: ClientEra = ERA
    assert (era.name, era.version) == ("stateless", "2026-07-28")
    assert "ping" not in era.methods
    assert era.log_request("info") is None
    assert era.farewell() is None


@pytest.mark.spec("META-01", "META-03", "HDR-01", "HDR-02", "HDR-06")
def test_a_request_says_everything_about_itself() -> None:
    params, headers = stamp("tools/list", {"_meta": {"progressToken": 3}}, log_level="info")
    assert params["_meta"] == {
        "progressToken": 3,
        f"{KEY}protocolVersion": "2026-07-28",
        f"{KEY}clientInfo": {"name": "t", "version": "1"},
        f"{KEY}clientCapabilities": {},
        f"{KEY}logLevel": "info",
    }
    assert headers == {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}


@pytest.mark.spec("HDR-07", "HDR-08", "HDR-28")
@pytest.mark.parametrize(
    ("method", "field"),
    [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri"), ("tasks/get", "taskId")],
)
@pytest.mark.parametrize("value", ["plain", "h\u00e9", " x", "=?base64?eA==?="])
def test_the_name_is_repeated(method: str, field: str, value: str) -> None:
    _, headers = stamp(method, {field: value, "other": 1})
    assert decode_value(headers["Mcp-Name"]) == value
    assert "Mcp-Name" not in stamp("completion/complete", {"name": value})[1]


@pytest.mark.spec("ROOT-01")
def test_this_era_has_no_notice_of_changed_roots() -> None:
    declared = ClientCapabilities(roots=RootsCapability(list_changed=True))
    params, _ = stamp("tools/list", {}, capabilities=declared)
    assert params["_meta"][f"{KEY}clientCapabilities"] == {"roots": {}}
    assert declared.roots == RootsCapability(list_changed=True)


def test_the_params_given_are_left_as_they_are() -> None:
    given = {"name": "t", "_meta": {"a": 1}}
    stamp("tools/call", given)
    assert given == {"name": "t", "_meta": {"a": 1}}


def discovered(**more: Any) -> bytes:
    return msgspec.json.encode({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **more})


@pytest.mark.spec("DISC-04")
@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"_meta": {f"{KEY}serverInfo": {"name": "s", "version": "1"}}}, "s"),
        ({"serverInfo": {"name": "draft", "version": "1"}}, "draft"),
        ({"_meta": {f"{KEY}serverInfo": "nonsense"}}, None),
        ({}, None),
    ],
)
def test_a_welcome_is_read_whoever_it_says_to_be_from(more: dict[str, Any], name: str | None) -> None:
    welcome = ERA.read_welcome(discovered(**more, instructions="Hi"))
    assert (welcome.server_info.name if welcome.server_info else None) == name
    assert welcome.capabilities.tools is not None
    assert welcome.instructions == "Hi"


@pytest.mark.parametrize("result", [b"{}", b"[]", b"null", b'{"supportedVersions": 1, "capabilities": {}}'])
def test_what_is_no_welcome(result: bytes) -> None:
    with pytest.raises(InvalidAnswer, match="server/discover"):
        ERA.read_welcome(result)


@pytest.mark.spec("COMPAT-06", "VER-02")
def test_the_version_is_one_that_both_have() -> None:
    welcome = ERA.read_welcome(discovered())
    agreed = ERA.agreed(welcome, {})
    assert agreed is not None
    assert agreed.version == "2026-07-28"
    welcome.versions = ["2031-01-01"]
    assert ERA.agreed(welcome, {}) is None
    assert ERA.pinned("2031-01-01") is None
    assert isinstance(welcome.capabilities, ServerCapabilities)


@pytest.mark.spec("COMPAT-07", "COMPAT-09", "COMPAT-12", "COMPAT-13")
@pytest.mark.parametrize(
    ("code", "data", "is_ours", "supported"),
    [
        (-32020, None, True, None),
        (-32021, {"requiredCapabilities": {}}, True, None),
        (-32022, {"supported": ["a"], "requested": "b"}, True, ["a"]),
        (-32004, {"supported": ["a", 3]}, False, ["a"]),
        (-32602, {"supportedVersions": ["a"]}, False, ["a"]),
        (-32601, None, False, None),
        (-32000, "text", False, None),
        (None, None, False, None),
        (-32603, {"supported": "all"}, False, None),
    ],
)
def test_how_a_refused_greeting_is_read(code: int | None, data: Any, is_ours: bool, supported: Any) -> None:
    judgement = ERA.judge(code, data)
    assert (judgement.is_ours, judgement.supported) == (is_ours, supported)


def test_a_list_of_versions_is_bounded() -> None:
    assert named_versions({"supported": ["v"] * 1000}) == ["v"] * 64


@pytest.mark.parametrize(
    ("status", "code", "data", "is_over"),
    [
        (400, -32022, {"supported": ["2031-01-01"]}, True),
        (400, -32022, {"supported": ["2026-07-28"]}, False),
        (404, None, None, True),
        (405, None, None, True),
        (404, -32601, None, False),
        (500, None, None, False),
        (400, -32602, None, False),
    ],
)
def test_when_what_was_agreed_on_is_not_so_any_more(status: int, code: Any, data: Any, is_over: bool) -> None:
    assert ERA.is_over(status, code, data) is is_over


@pytest.mark.spec("SUB-01")
def test_changes_are_heard_by_one_request_that_stays_open() -> None:
    plan = ERA.listen(SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["x://a"]))
    assert plan.stream is not None
    method, params = plan.stream
    assert method == "subscriptions/listen"
    assert msgspec.to_builtins(params) == {
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["x://a"]}
    }
    assert (plan.begin, plan.end) == ([], [])


def test_notifications_have_the_same_headers_as_requests() -> None:
    assert ERA.headers("notifications/cancelled") == {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "notifications/cancelled",
    }
    assert ERA.headers() == {"MCP-Protocol-Version": "2026-07-28"}
