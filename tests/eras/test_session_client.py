"""The session era from the client's side: no socket, no event loop."""

from typing import Any

import msgspec
import pytest

from weft.eras.base import ClientEra
from weft.eras.client import SessionClient
from weft.errors import InvalidAnswer
from weft.types.base import Implementation
from weft.types.interaction import SubscriptionFilter
from weft.types.lifecycle import ClientCapabilities, RootsCapability

ERA = SessionClient()
INFO = Implementation("t", "1")


def welcome(version: str = "2025-11-25", **more: Any) -> bytes:
    return msgspec.json.encode({"protocolVersion": version, "capabilities": {"tools": {}}, **more})


def agreed(version: str = "2025-11-25", **headers: str) -> SessionClient:
    found = ERA.agreed(ERA.read_welcome(welcome(version)), headers)
    assert found is not None
    return found


@pytest.mark.spec("L11-01")
def test_the_handshake() -> None:
    era: ClientEra = ERA
    method, params = era.greeting(INFO, ClientCapabilities(roots=RootsCapability(list_changed=True)))
    assert method == "initialize"
    assert msgspec.to_builtins(params) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {"listChanged": True}},
        "clientInfo": {"name": "t", "version": "1"},
    }
    assert era.confirmation == "notifications/initialized"
    assert era.headers() == {}


def test_the_welcome() -> None:
    found = ERA.read_welcome(welcome(serverInfo={"name": "s", "version": "2"}, instructions="Hi"))
    assert found.server_info == Implementation("s", "2")
    assert found.instructions == "Hi"
    assert ERA.read_welcome(welcome(serverInfo=[])).server_info is None
    with pytest.raises(InvalidAnswer, match="initialize"):
        ERA.read_welcome(b'{"protocolVersion": 7}')


@pytest.mark.spec("L11-03", "L06-01", "L24-07")
@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_the_server_chooses_the_version_among_ours(version: str) -> None:
    era = agreed(version)
    assert era.version == version
    has_header = version >= "2025-06-18"  # L03-04
    assert era.headers() == ({"MCP-Protocol-Version": version} if has_header else {})
    assert ERA.agreed(ERA.read_welcome(welcome("2099-01-01")), {}) is None
    pinned = ERA.pinned("2025-06-18")
    assert pinned is not None
    assert pinned.agreed(pinned.read_welcome(welcome("2025-11-25")), {}) is None


@pytest.mark.spec("L11-22", "L11-27", "L11-53")
def test_the_session_goes_along() -> None:
    era = agreed(**{"Mcp-Session-Id": "abc"})
    expected = {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": "abc"}
    call = {"name": "t"}
    assert era.stamp("tools/call", call, info=INFO, capabilities=ClientCapabilities()) == call
    assert era.headers("tools/call", call) == expected
    assert era.headers("notifications/x") == expected
    assert era.farewell() == expected
    assert agreed().farewell() is None


@pytest.mark.parametrize("session", ["a b", "\x7f", "\u00e9"])
def test_a_session_id_that_cannot_be_one(session: str) -> None:
    with pytest.raises(InvalidAnswer, match="session id"):
        agreed(**{"Mcp-Session-Id": session})


@pytest.mark.spec("COMPAT-22")
def test_a_handshake_never_asks_for_the_stateless_era() -> None:
    assert ERA.pinned("2026-07-28") is None
    assert ERA.agreed(ERA.read_welcome(welcome("2026-07-28")), {}) is None


@pytest.mark.spec("L11-25")
def test_a_session_is_gone_when_it_is_not_found() -> None:
    era = agreed(**{"Mcp-Session-Id": "abc"})
    assert era.is_over(404, None, None)
    assert era.is_over(404, -32001, None)
    assert not era.is_over(400, -32000, None)
    assert not agreed().is_over(404, None, None)


def test_a_refused_handshake_may_name_versions() -> None:
    assert ERA.judge(-32022, {"supported": ["2026-07-28"]}).supported == ["2026-07-28"]
    assert ERA.judge(-32601, None).supported is None


def test_what_is_asked_for_by_requests() -> None:
    assert ERA.log_request("error") == ("logging/setLevel", {"level": "error"})
    plan = ERA.listen(SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["x://a", "x://b"]))
    assert plan.stream is None
    assert plan.begin == [("resources/subscribe", {"uri": "x://a"}), ("resources/subscribe", {"uri": "x://b"})]
    assert plan.end[0] == ("resources/unsubscribe", {"uri": "x://a"})
