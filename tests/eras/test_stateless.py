"""The stateless era by itself: no socket, no event loop."""

import msgspec
import pytest

from support import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    PROTOCOL_VERSION_KEY,
    VERSION,
    encode,
    headers_for,
    message,
)
from weft.eras.base import Offer, choose, log_level_reached
from weft.eras.client import StatelessClient
from weft.eras.stateless import NEWEST, STATELESS
from weft.errors import InternalError, InvalidParams, MethodNotFound, MissingCapability, ProtocolError, ResourceNotFound
from weft.jsonrpc import decode
from weft.protocol.headers import Headers, read
from weft.protocol.revisions import METHODS
from weft.types.base import EmptyResult, Implementation
from weft.types.lifecycle import ClientCapabilities, RootsCapability

OFFER = Offer({"stateless": METHODS}, {"who": "me"}, (VERSION,))
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def http(body: dict, overrides: dict | None = None) -> Headers:
    return read([(name.lower().encode(), value.encode()) for name, value in headers_for(body, overrides)])


def opened(body: dict, headers: Headers | None = None):
    return STATELESS.open(decode(encode(body)), headers, OFFER)


@pytest.mark.spec("STATE-01", "VER-08")
def test_an_envelope_holds_what_the_request_says() -> None:
    meta = {
        CLIENT_CAPABILITIES_KEY: {"roots": {}, "extensions": {"com.example/x": {}}},
        LOG_LEVEL_KEY: "error",
        "progressToken": 0,
    }
    envelope = opened(message("tools/list", {"cursor": ""}, meta=meta))
    assert envelope.revision.version == VERSION
    assert envelope.method is METHODS["tools/list"]
    assert envelope.params.cursor == ""
    assert envelope.client_capabilities == ClientCapabilities(roots=RootsCapability(), extensions={"com.example/x": {}})
    assert envelope.client_info == Implementation("t", "1")
    assert (envelope.log_level, envelope.progress_token) == ("error", 0)


@pytest.mark.spec("META-04", "META-10")
def test_the_least_a_request_says() -> None:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/list",
        "params": {"_meta": {PROTOCOL_VERSION_KEY: VERSION, CLIENT_CAPABILITIES_KEY: {"unheardOf": 1}, "x/y": 2}},
    }
    envelope = opened(body)
    assert (envelope.client_info, envelope.log_level, envelope.progress_token) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "headers", "code"),
    [
        ({PROTOCOL_VERSION_KEY: None}, {"MCP-Protocol-Version": None}, -32020),  # 4 before 5
        ({PROTOCOL_VERSION_KEY: None}, {}, -32602),  # 5
        ({CLIENT_CAPABILITIES_KEY: None}, {"MCP-Protocol-Version": "2031-01-01"}, -32602),  # 5 before 6
        ({PROTOCOL_VERSION_KEY: "2031-01-01"}, {}, -32020),  # 6 before 7
        (
            {PROTOCOL_VERSION_KEY: "2031-01-01"},
            {"MCP-Protocol-Version": "2031-01-01", "Mcp-Method": "x"},
            -32022,
        ),  # 7 before 8
        ({PROTOCOL_VERSION_KEY: None}, {"MCP-Protocol-Version": "2031-01-01"}, -32602),  # 3: a later one is modern
        ({PROTOCOL_VERSION_KEY: None}, {"MCP-Protocol-Version": "2025-11-25"}, -32022),  # 3: the session era's
        ({PROTOCOL_VERSION_KEY: 5, LOG_LEVEL_KEY: "loud"}, {"MCP-Protocol-Version": "2025-11-25"}, -32602),  # 5
        ({LOG_LEVEL_KEY: "loud"}, {"MCP-Protocol-Version": None}, -32020),  # 4 before the rest of `_meta`
        ({LOG_LEVEL_KEY: "loud"}, {"MCP-Protocol-Version": "2031-01-01"}, -32020),  # 6 before the rest of `_meta`
        ({LOG_LEVEL_KEY: "loud"}, {"Mcp-Method": "x"}, -32020),  # 8 before the rest of `_meta`
        ({LOG_LEVEL_KEY: "loud"}, {}, -32602),
        (
            {PROTOCOL_VERSION_KEY: "2031-01-01", CLIENT_CAPABILITIES_KEY: {"roots": ["newer"]}},
            {"MCP-Protocol-Version": "2031-01-01"},
            -32022,
        ),  # 7 before the rest of `_meta`
        ({}, {"Mcp-Method": "x", "Mcp-Name": None}, -32020),  # 8
        ({}, {"Mcp-Name": None}, -32020),  # 10
        ({}, {}, None),
    ],
)
@pytest.mark.spec("META-02", "HDR-03", "HDR-04", "HDR-09", "HDR-10")
def test_the_order_of_faults(change: dict, headers: dict, code: int | None) -> None:
    body = message("tools/call", {"name": "x"}, meta=change)
    if code is None:
        assert opened(body, http(body, headers)).params.name == "x"
        return
    with pytest.raises(ProtocolError) as refused:
        opened(body, http(body, headers))
    assert refused.value.code == code


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_the_id_of_a_task_may_be_missing_in_the_headers_and_must_not_differ(method: str) -> None:
    """FastMCP's client does not repeat it. A client must, but nothing but routing needs it."""
    offer = Offer({"stateless": {one.name: one for one in STATELESS.tasks.methods}}, {}, (VERSION,))
    frame, body = decode(encode(message(method, {"taskId": "t-1"}))), message(method)
    for given in ("t-1", None):
        assert STATELESS.open(frame, http(body, {"Mcp-Name": given}), offer).params.task_id == "t-1"
    for given in ("t-2", ""):
        with pytest.raises(ProtocolError) as refused:
            STATELESS.open(frame, http(body, {"Mcp-Name": given}), offer)
        assert refused.value.code == -32020


def test_without_headers_only_the_body_counts() -> None:
    assert opened(message("tools/call", {"name": "x"})).params.name == "x"
    with pytest.raises(MethodNotFound):
        opened(message("no/such"))


@pytest.mark.spec("COMPAT-03")
def test_a_handshake_is_told_what_is_served() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    with pytest.raises(ProtocolError) as refused:
        opened(body)
    assert (refused.value.code, refused.value.data) == (-32022, {"supported": [VERSION], "requested": "2025-06-18"})


@pytest.mark.spec("COMPAT-03")
@pytest.mark.parametrize(
    ("method", "version", "code"),
    [
        ("initialize", None, -32022),
        ("initialize", "2025-11-25", -32022),
        ("tools/list", "2025-11-25", -32022),
        ("tools/list", None, -32020),
        ("tools/list", VERSION, -32602),
        ("tools/list", "2031-01-01", -32602),
    ],
)
@pytest.mark.parametrize("params", [{}, {"params": {}}, {"params": {"_meta": {"progressToken": 1}}}])
def test_whose_a_request_without_a_version_in_its_body_is(
    method: str, version: str | None, code: int, params: dict
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, **params}
    with pytest.raises(ProtocolError) as refused:
        opened(body, http(body, {"MCP-Protocol-Version": version}))
    assert refused.value.code == code
    if code == -32022:
        assert refused.value.data["supported"] == [VERSION]


@pytest.mark.security("D4")
def test_what_was_wrong_is_named_but_not_repeated() -> None:
    body = message("tools/list", meta={LOG_LEVEL_KEY: "secret"})
    with pytest.raises(InvalidParams) as refused:
        opened(body)
    assert "logLevel" in refused.value.message
    assert "secret" not in refused.value.message


@pytest.mark.spec("JRPC-14", "JRPC-15", "JRPC-17", "JRPC-18", "JRPC-19", "JRPC-21")
@pytest.mark.parametrize("code", range(-32110, -31990))
def test_codes_of_the_protocol_are_used_with_their_meaning_or_not_at_all(code: int) -> None:
    sent = STATELESS.refuse(ProtocolError("x", code=code), opened=True).code
    if code in (-32020, -32021, -32022) or not -32768 <= code <= -32000:
        assert sent == code
    else:
        assert sent == -32603


@pytest.mark.spec("JRPC-19", "META-06", "HDR-05")
@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (ResourceNotFound("x://y"), -32602, 200), (MethodNotFound("x"), -32601, 404), (InternalError("x"), -32603, 200),
        (MissingCapability("x", required={"roots": {}}), -32021, 400), (ProtocolError("x", code=42), 42, 200),
    ],
)  # fmt: skip
def test_statuses(error: ProtocolError, code: int, status: int) -> None:
    wire = STATELESS.refuse(error, opened=True)
    assert (wire.code, wire.status) == (code, status)
    assert STATELESS.refuse(InvalidParams("x"), opened=False).status == 400


@pytest.mark.spec("JRPC-07", "META-07")
def test_sealing() -> None:
    sealed = msgspec.to_builtins(STATELESS.seal(EmptyResult(), OFFER, NEWEST))
    assert sealed == {"resultType": "complete", "_meta": {"who": "me"}}
    own = STATELESS.seal(EmptyResult(meta={"a": 1}, result_type="task"), OFFER, NEWEST)
    assert (own.meta, own.result_type) == ({"who": "me", "a": 1}, "task")
    assert OFFER.result_meta == {"who": "me"}


@pytest.mark.spec("LOG-02", "LOG-03")
def test_levels() -> None:
    for rank, level in enumerate(LEVELS):
        assert STATELESS.may_log(level, None) is False
        assert [STATELESS.may_log(other, level) for other in LEVELS] == [place >= rank for place in range(8)]
        assert log_level_reached(level, level)


def test_which_messages_are_of_this_era() -> None:
    body = message("tools/list")
    frame, old = decode(encode(body)), decode(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
    assert STATELESS.speaks(frame, None)
    assert STATELESS.speaks(old, http(body))
    assert not STATELESS.speaks(old, None)
    assert not STATELESS.speaks(old, http(body, {"MCP-Protocol-Version": "2025-11-25"}))
    assert choose([STATELESS], old, None) == (STATELESS, None)


def test_either_of_its_keys_marks_a_request() -> None:
    """What lacks the other is told so, rather than taken for a session's; a version header of that era decides."""
    old = {"MCP-Protocol-Version": "2025-11-25"}
    both = (PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES_KEY)
    for missing in both:
        body = message("tools/list", meta={missing: None})
        frame = decode(encode(body))
        assert STATELESS.speaks(frame, None)
        assert STATELESS.speaks(frame, http(body, {"MCP-Protocol-Version": None}))
        assert STATELESS.speaks(frame, http(body, old)) is (missing != PROTOCOL_VERSION_KEY)
    foreign = message(
        "tools/list", meta={**dict.fromkeys(both), CLIENT_INFO_KEY: None, "io.modelcontextprotocol/related-task": {}}
    )
    assert not STATELESS.speaks(decode(encode(foreign)), None)


@pytest.mark.spec("META-01", "HDR-01", "HDR-02", "HDR-06", "HDR-07", "HDR-08")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "add"}, "add"),
        ("resources/read", {"uri": "x://é"}, "=?base64?eDovL8Op?="),
        ("tools/list", {}, None),
    ],
)
def test_a_clients_stamp_is_what_a_server_opens(method: str, params: dict, name: str | None) -> None:
    era = StatelessClient()
    headers = era.headers(method, params)
    params = era.stamp(method, params, info=Implementation("c", "1"), capabilities=ClientCapabilities())
    assert headers.get("Mcp-Name") == name
    raw = read([(key.lower().encode(), value.encode()) for key, value in headers.items()])
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    assert opened(body, raw).client_info == Implementation("c", "1")
