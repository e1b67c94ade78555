"""The order in which one POST is checked (ledger 0.2), over a socket: each fault alone, and each before the next."""

import pytest

from support import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    PROTOCOL_VERSION_KEY,
    VERSION,
    VERSIONS,
    Live,
    encode,
    headers_for,
    message,
)

UNKNOWN = "2031-01-01"


@pytest.mark.spec("META-02")
@pytest.mark.parametrize("key", [PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES_KEY])
def test_a_request_without_a_required_key_is_refused(live: Live, key: str) -> None:
    response = live.call("tools/list", meta={key: None})
    assert response.refusal == (400, -32602)
    assert key in response.error["message"]
    assert response.json["id"] == 1


@pytest.mark.spec("META-02")
@pytest.mark.parametrize("params", [{}, {"_meta": {}}, {"_meta": None}, {"_meta": 3}, {"_meta": []}])
def test_step_5_the_header_alone_is_not_an_envelope(live: Live, params: dict) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    assert live.post(body).refusal == (400, -32602)


@pytest.mark.spec("META-02")
def test_step_5_params_may_not_be_absent(live: Live) -> None:
    assert live.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).refusal == (400, -32602)


@pytest.mark.spec("META-02")
@pytest.mark.parametrize("value", [None, 3, [], "x"])
def test_capabilities_must_be_an_object(live: Live, value: object) -> None:
    body = message("tools/list")
    body["params"]["_meta"][CLIENT_CAPABILITIES_KEY] = value
    assert live.post(body).refusal == (400, -32602)


@pytest.mark.spec("META-04")
def test_client_info_is_not_demanded(live: Live) -> None:
    response = live.tool("who", meta={CLIENT_INFO_KEY: None})
    assert response.result["structuredContent"]["client"] is None


@pytest.mark.spec("HDR-09", "HDR-10")
def test_step_4_without_the_version_header(live: Live) -> None:
    assert live.call("tools/list", headers={"MCP-Protocol-Version": None}).refusal == (400, -32020)


@pytest.mark.spec("HDR-09", "HDR-10")
def test_step_4_comes_before_step_5(live: Live) -> None:
    response = live.call("tools/list", meta={CLIENT_CAPABILITIES_KEY: None}, headers={"MCP-Protocol-Version": None})
    assert response.refusal == (400, -32020)


@pytest.mark.spec("HDR-03")
def test_step_6_the_version_header_differs(live: Live) -> None:
    assert live.call("tools/list", headers={"MCP-Protocol-Version": UNKNOWN}).refusal == (400, -32020)


@pytest.mark.spec("HDR-03")
def test_step_6_comes_before_step_7(live: Live) -> None:
    assert live.call("tools/list", meta={PROTOCOL_VERSION_KEY: UNKNOWN}).refusal == (400, -32020)


@pytest.mark.spec("HDR-04", "VER-01", "VER-09")
@pytest.mark.parametrize("version", [UNKNOWN, "2025-11-25", "x", ""])
def test_step_7_a_version_that_is_not_served(live: Live, version: str) -> None:
    response = live.call("tools/list", meta={PROTOCOL_VERSION_KEY: version}, headers={"MCP-Protocol-Version": version})
    assert response.refusal == (400, -32022)
    assert response.error["data"] == {"supported": VERSIONS, "requested": version}
    discovered = live.call("server/discover").result["supportedVersions"]
    assert set(response.error["data"]["supported"]) <= set(discovered)


@pytest.mark.spec("HDR-04")
def test_step_7_comes_before_step_8(live: Live) -> None:
    response = live.call(
        "tools/list",
        meta={PROTOCOL_VERSION_KEY: UNKNOWN},
        headers={"MCP-Protocol-Version": UNKNOWN, "Mcp-Method": None},
    )
    assert response.refusal == (400, -32022)


@pytest.mark.spec("HDR-09", "HDR-10", "HDR-12", "JRPC-18")
@pytest.mark.parametrize("value", [None, "tools/call", "TOOLS/LIST", "", "tools/lis", "tools/list2"])
def test_step_8_the_method_header(live: Live, value: str | None) -> None:
    assert live.call("tools/list", headers={"Mcp-Method": value}).refusal == (400, -32020)


@pytest.mark.spec("HDR-09", "HDR-10")
def test_step_8_comes_before_step_9(live: Live) -> None:
    assert live.call("no/such", headers={"Mcp-Method": "tools/list"}).refusal == (400, -32020)


REMOVED = ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "roots/list"]


@pytest.mark.spec("HDR-05", "JRPC-25")
@pytest.mark.parametrize("method", [*REMOVED, "no/such", "", "tools/list/", "Tools/list", "tasks/list"])
def test_step_9_a_method_that_is_not_offered(live: Live, method: str) -> None:
    response = live.call(method)
    assert response.refusal == (404, -32601)
    assert response.json["id"] == 1


@pytest.mark.spec("HDR-05")
def test_step_9_comes_before_step_10(live: Live) -> None:
    body = message("no/such", {"name": "x"})
    assert live.post(body, {"Mcp-Name": "y"}).refusal == (404, -32601)


@pytest.mark.spec("HDR-09", "HDR-10")
@pytest.mark.parametrize(
    "value", [None, "", "ADD", "subtract", "add2", "=?base64?!!!?=", "=?base64?YWRk", "=?BASE64?YWRk?="]
)
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
        ("prompts/get", {"name": "add"}),
        ("resources/read", {"uri": "add"}),
    ],
)
def test_step_10_the_name_header(live: Live, method: str, params: dict, value: str | None) -> None:
    assert live.call(method, params, headers={"Mcp-Name": value}).refusal == (400, -32020)


@pytest.mark.spec("HDR-30")
@pytest.mark.parametrize("value", ["=?base64?YWRk?=", "  add  "])
def test_a_name_is_decoded_before_it_is_compared(live: Live, value: str) -> None:
    assert live.tool("add", {"a": 1, "b": 2}, headers={"Mcp-Name": value}).result["structuredContent"] == 3


@pytest.mark.spec("HDR-30", "HDR-29")
def test_a_name_that_is_not_ascii(live: Live) -> None:
    assert live.call("resources/read", {"uri": "note://grüezi"}).refusal == (200, -32602)


@pytest.mark.spec("HDR-10")
def test_step_10_comes_before_the_unknown_tool(live: Live) -> None:
    assert live.tool("nothing", headers={"Mcp-Name": None}).refusal == (400, -32020)


@pytest.mark.spec("META-06")
def test_step_11_a_missing_capability_keeps_its_status(live: Live) -> None:
    response = live.tool("ask_user")
    assert response.refusal == (400, -32021)
    assert response.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.spec("HDR-11", "HDR-12")
@pytest.mark.parametrize("names", [str.upper, str.lower, str.title])
def test_header_names_are_read_in_any_case(live: Live, names: object) -> None:
    body = message("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    pairs = [(names(name), f" {value}\t") for name, value in headers_for(body)]  # type: ignore[operator] - a str method
    assert live.send(encode(body), pairs).result["structuredContent"] == 3


# The headers of annotated arguments.


@pytest.mark.spec("HDR-13", "HDR-32", "HDR-36")
@pytest.mark.parametrize("count", ["7", "7.0", "70e-1", "=?base64?Nw==?="])
def test_mirrored_arguments_agree(live: Live, count: str) -> None:
    response = live.tool(
        "region", {"region": "eu", "count": 7}, headers={"Mcp-Param-Region": "eu", "Mcp-Param-Count": count}
    )
    assert response.result["content"][0]["text"] == "eu 7"


@pytest.mark.spec("HDR-32", "HDR-31", "HDR-33", "HDR-10")
@pytest.mark.parametrize(
    "headers",
    [
        {"Mcp-Param-Region": "us", "Mcp-Param-Count": "7"},
        {"Mcp-Param-Region": "EU", "Mcp-Param-Count": "7"},
        {"Mcp-Param-Region": "eu"},
        {"Mcp-Param-Count": "7"},
        {"Mcp-Param-Region": "eu", "Mcp-Param-Count": "8"},
        {"Mcp-Param-Region": "=?base64?ZXU?=", "Mcp-Param-Count": "7"},
        {"Mcp-Param-Region": "=?base64?Z*U=?=", "Mcp-Param-Count": "7"},
        {"Mcp-Param-Region": "", "Mcp-Param-Count": "7"},
    ],
)
def test_mirrored_arguments_disagree(live: Live, headers: dict[str, str]) -> None:
    response = live.tool("region", {"region": "eu", "count": 7}, headers=headers)
    assert response.refusal == (400, -32020)


@pytest.mark.spec("HDR-31")
def test_a_mirrored_header_with_a_character_that_no_header_has(live: Live) -> None:
    body = message("tools/call", {"name": "region", "arguments": {"region": "é"}})
    pairs = [*headers_for(body), ("Mcp-Param-Region", b"\xc3\xa9")]
    assert live.send(encode(body), pairs).refusal == (400, -32020)


@pytest.mark.spec("HDR-35")
@pytest.mark.parametrize("arguments", [{}, {"region": None}, None])
def test_no_header_is_expected_for_what_is_not_there(live: Live, arguments: dict | None) -> None:
    assert live.tool("region", arguments).result["content"][0]["text"] == "None 0"


@pytest.mark.spec("HDR-33")
def test_an_empty_header_is_not_a_missing_one(live: Live) -> None:
    assert live.tool("region", {"region": ""}, headers={"Mcp-Param-Region": ""}).result["content"][0]["text"] == " 0"
    assert live.tool("region", {"region": ""}).refusal == (400, -32020)


@pytest.mark.spec("HDR-32")
def test_a_header_for_an_argument_that_is_absent_is_a_mismatch(live: Live) -> None:
    assert live.tool("region", {}, headers={"Mcp-Param-Region": "eu"}).refusal == (400, -32020)


@pytest.mark.spec("HDR-20")
def test_an_integer_beyond_the_safe_ones_cannot_be_mirrored(live: Live) -> None:
    for number, status in ((2**53 - 1, 200), (2**53, 400), (-(2**53), 400)):
        assert live.tool("region", {"count": number}, headers={"Mcp-Param-Count": str(number)}).status == status


@pytest.mark.spec("COMPAT-03")
@pytest.mark.parametrize("headers", [{"MCP-Protocol-Version": None}, {"MCP-Protocol-Version": "2025-11-25"}])
def test_a_handshake_is_told_what_is_served(alone: Live, headers: dict) -> None:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}},
    }
    response = alone.post(body, {**headers, "Mcp-Method": None})
    assert response.refusal == (400, -32022)
    assert response.error["data"] == {"supported": [VERSION], "requested": "2025-11-25"}


@pytest.mark.spec("HDR-09", "HDR-10")
@pytest.mark.security("R14")
@pytest.mark.parametrize("name", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
def test_a_header_that_is_there_twice_is_malformed(live: Live, name: str) -> None:
    body = message("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    pairs = headers_for(body)
    again = [pair for pair in pairs if pair[0].lower() == name.lower()]
    assert live.send(encode(body), [*pairs, *again]).refusal == (400, -32020)


def test_step_2_an_array_is_no_message_of_this_era(live: Live) -> None:
    body = message("tools/list")
    response = live.send(b"[" + encode(body) + b"]", headers_for(body))
    assert response.refusal == (400, -32600)
    assert response.error["message"] == "Invalid request: one message at a time; arrays are not accepted."
