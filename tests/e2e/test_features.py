"""What a server offers, over a real socket: discovery, lists, caching, tools, resources, prompts, completions."""

import base64
import json
from typing import Any

import pytest

from support import CLIENT_CAPABILITIES_KEY, PNG, VERSIONS, Live, make_server, serve
from weft import CacheHint, ProtocolError, Server, UserMessage
from weft.server.features.content import Audio, File, Image
from weft.types import EmbeddedResource, ResourceContents, ResourceLink

LISTS = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"]


# Discovery.


@pytest.mark.spec(
    "DISC-01", "DISC-02", "DISC-05", "VER-03", "TOOL-01", "RES-01", "PRM-01", "CMP-01", "LOG-01", "PRM-10"
)
def test_discover(live: Live) -> None:
    result = live.call("server/discover").result
    assert result.keys() == {
        "resultType",
        "_meta",
        "supportedVersions",
        "capabilities",
        "instructions",
        "ttlMs",
        "cacheScope",
    }
    assert result["supportedVersions"] == VERSIONS
    assert result["capabilities"].keys() == {"logging", "completions", "prompts", "resources", "tools"}
    assert result["instructions"] == "Try it."


GATED = {
    "tools": [("tools/list", {}), ("tools/call", {"name": "x"})],
    "resources": [("resources/list", {}), ("resources/templates/list", {}), ("resources/read", {"uri": "x://y"})],
    "prompts": [("prompts/list", {}), ("prompts/get", {"name": "x"})],
    "completions": [
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}})
    ],
}


@pytest.mark.spec("DISC-06", "JRPC-25", "CMP-03", "DISC-01")
def test_what_is_not_declared_is_not_offered() -> None:
    with serve(Server("bare")) as bare:
        assert bare.call("server/discover").result["capabilities"] == {"logging": {}}
        for method, params in (pair for pairs in GATED.values() for pair in pairs):
            assert bare.call(method, params).refusal == (404, -32601), method


@pytest.mark.spec("DISC-06", "DISC-05")
def test_what_is_declared_is_offered(live: Live) -> None:
    declared = live.call("server/discover").result["capabilities"]
    for capability, pairs in GATED.items():
        assert capability in declared
        for method, params in pairs:
            assert live.call(method, params).status != 404, method


@pytest.mark.spec("TOOL-02", "DISC-06")
def test_a_list_may_be_empty_and_features_come_and_go_while_serving() -> None:
    server = Server("changing")
    with serve(server) as live:
        assert live.call("tools/list").refusal == (404, -32601)
        server.add_tool(_hello)
        assert [tool["name"] for tool in live.call("tools/list").result["tools"]] == ["_hello"]
        server.remove_tool("_hello")
        assert live.call("tools/list").result["tools"] == []
        assert live.tool("_hello").refusal == (200, -32602)


async def _echo(name: str) -> str:
    return name


async def _hello() -> str:
    """Say hello."""
    return "Hello"


# Caching and pages.

CACHED = [*((method, {}) for method in LISTS), ("server/discover", {}), ("resources/read", {"uri": "note://plain"})]


@pytest.mark.spec("CACHE-01", "CACHE-02", "CACHE-03")
@pytest.mark.parametrize(("method", "params"), CACHED)
def test_cacheable_results_say_how_long(live: Live, method: str, params: dict) -> None:
    result = live.call(method, params).result
    assert type(result["ttlMs"]) is int
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] in ("public", "private")


@pytest.mark.spec("PRM-12", "CACHE-01")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "seat", "arguments": {"number": "1"}}),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
    ],
)
def test_other_results_do_not(live: Live, method: str, params: dict) -> None:
    assert live.call(method, params).result.keys().isdisjoint({"ttlMs", "cacheScope"})


@pytest.mark.spec("CACHE-01", "CACHE-16", "CACHE-03")
def test_the_hints_are_those_that_were_set() -> None:
    private = CacheHint(ttl_ms=5000, scope="private")
    server = make_server(cache_hint=CacheHint(ttl_ms=100), list_cache_hints={"tools": private, "discover": private})
    server.add_resource("note://mine", "mine", cache_hint=private)
    with serve(server) as live:
        hints = {method: _hints(live.call(method, params).result) for method, params in CACHED}
        mine = _hints(live.call("resources/read", {"uri": "note://mine"}).result)
    assert hints.pop("tools/list") == hints.pop("server/discover") == mine == (5000, "private")
    assert hints.pop("resources/read") == (100, "private")
    assert set(hints.values()) == {(100, "public")}


def _hints(result: dict) -> tuple[int, str]:
    return result["ttlMs"], result["cacheScope"]


KEYS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


@pytest.mark.spec("PAG-06", "PAG-04", "CACHE-15", "TOOL-04")
@pytest.mark.parametrize("method", LISTS)
def test_pages(live: Live, method: str) -> None:
    whole = live.call(method).result[KEYS[method]]
    server = make_server(page_size=2, cache_hint=CacheHint(ttl_ms=1, scope="private"))
    for scheme in ("x", "y"):
        server.add_resource(scheme + "://{name}", _echo, name=scheme)
    found, scopes, cursor = [], set(), {}
    with serve(server) as paged:
        while True:
            page = paged.call(method, cursor).result
            assert 1 <= len(page[KEYS[method]]) <= 2
            found += page[KEYS[method]]
            scopes.add(page["cacheScope"])
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
    assert found[: len(whole)] == whole
    assert scopes == {"private"}


@pytest.mark.spec("PAG-05", "PAG-04", "JRPC-26")
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("cursor", ["", "x", "WyJvdGhlciIsImEiLDBd", "W10", "\u00e9", "A" * 20_000])
def test_a_cursor_that_was_not_given_out(live: Live, method: str, cursor: str) -> None:
    assert live.call(method, {"cursor": cursor}).refusal == (200, -32602)


@pytest.mark.spec("PAG-05")
@pytest.mark.parametrize("cursor", [3, [], {}, True])
def test_a_cursor_is_a_string(live: Live, cursor: object) -> None:
    assert live.call("tools/list", {"cursor": cursor}).refusal == (400, -32602)


# Tools.


@pytest.mark.spec("TOOL-06", "TOOL-07")
def test_every_tool_has_a_schema_of_an_object(live: Live) -> None:
    tools = live.call("tools/list").result["tools"]
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools)
    assert len({tool["name"] for tool in tools}) == len(tools)


@pytest.mark.spec("TOOL-14", "JRPC-26")
def test_an_unknown_tool(live: Live) -> None:
    response = live.tool("ad")
    assert response.refusal == (200, -32602)
    assert response.error["message"] == "Unknown tool. Did you mean 'add'?"
    assert live.tool("ADD").refusal == (200, -32602)


@pytest.mark.spec("TOOL-14")
@pytest.mark.parametrize("params", [{}, {"name": 3}, {"name": None}, {"arguments": {}}])
def test_a_malformed_call(live: Live, params: dict) -> None:
    response = live.call("tools/call", params, headers={"Mcp-Name": "add"})
    assert response.refusal == (400, -32602)


@pytest.mark.spec("TOOL-15", "TOOL-17")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "a"),
        ({"a": 1}, "b"),
        ({"a": "one", "b": 2}, "a"),
        ({"a": 1, "b": 2, "c": 3}, "c"),
        ({"a": 1.5, "b": 2}, "a"),
        ({"a": True, "b": 2}, "a"),
        ({"a": None, "b": 2}, "a"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(live: Live, arguments: object, named: str) -> None:
    result = live.tool("add", arguments).result
    assert result["isError"] is True
    text = result["content"][0]["text"]
    assert named in text
    assert "pydantic" not in text.lower()
    assert "http" not in text


@pytest.mark.spec("TOOL-14", "JRPC-26")
@pytest.mark.parametrize("arguments", [[1, 2], "x", 3, None])
def test_arguments_that_are_no_object_make_a_malformed_call(live: Live, arguments: object) -> None:
    error = live.call("tools/call", {"name": "add", "arguments": arguments}).error
    assert error["code"] == -32602
    assert "object" in error["message"]


@pytest.mark.spec("TOOL-15", "TOOL-17", "JSCH-02")
@pytest.mark.parametrize("arguments", [{}, {"n": 4}, {"n": "x"}])
def test_a_schema_in_place_of_a_signature_is_checked_too(live: Live, arguments: dict) -> None:
    assert live.tool("bounded", arguments).result["isError"] is True
    assert live.tool("bounded", {"n": 3}).result["content"][0]["text"] == "3"


@pytest.mark.spec("TOOL-15")
def test_a_tool_that_fails(live: Live) -> None:
    result = live.tool("fail", {"how": "tool"}).result
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "There is no seat 12A."}]


@pytest.mark.spec("TOOL-12", "TOOL-11")
@pytest.mark.parametrize("value", [None, False, 0, [], {}, "", "x", 1.5, True, [None], {"a": [1]}])
def test_structured_content_may_be_any_json(live: Live, value: object) -> None:
    result = live.tool("echo", {"value": value}).result
    assert "structuredContent" in result
    assert result["structuredContent"] == value
    assert type(result["structuredContent"]) is type(value)
    (block,) = result["content"]
    assert block["type"] == "text"
    assert json.loads(block["text"]) == value
    assert not result.get("isError")


@pytest.mark.spec("TOOL-12", "TOOL-11")
def test_structured_content_comes_with_its_schema(live: Live) -> None:
    schema = next(tool["outputSchema"] for tool in live.call("tools/list").result["tools"] if tool["name"] == "seat")
    assert schema["type"] == "object"
    result = live.tool("seat", {"number": "12A"}).result
    assert result["structuredContent"] == {"number": "12A", "window": False}
    assert schema["properties"].keys() == result["structuredContent"].keys()


@pytest.mark.spec("TOOL-12")
def test_what_does_not_conform_is_not_sent(live: Live) -> None:
    result = live.tool("liar").result
    assert result["isError"] is True
    assert "structuredContent" not in result


@pytest.mark.spec("TOOL-20", "TOOL-10")
def test_content_blocks() -> None:
    server = Server("blocks")
    server.add_resource("note://a", "a")

    @server.tool
    async def blocks():
        return [
            "text",
            Image(PNG),
            Audio(b"RIFF0000WAVE"),
            File(b"a", uri="note://a", mime_type="text/plain"),
            ResourceLink(uri="note://a", name="a"),
            EmbeddedResource(ResourceContents("note://b", "text/plain", text="b")),
        ]

    @server.tool
    async def nothing() -> None:
        """Return nothing."""

    with serve(server) as live:
        content = live.tool("blocks").result["content"]
        assert live.tool("nothing").result["content"] is not None
        assert "resources" in live.call("server/discover").result["capabilities"]
    kinds = [block["type"] for block in content]
    assert kinds == ["text", "image", "audio", "resource", "resource_link", "resource"]
    assert base64.b64decode(content[1]["data"]) == PNG
    assert (content[1]["mimeType"], content[2]["mimeType"]) == ("image/png", "audio/wav")
    assert content[3]["resource"] == {"uri": "note://a", "mimeType": "text/plain", "text": "a"}


@pytest.mark.spec("JSCH-10", "JSCH-01")
def test_a_schema_is_listed_as_it_was_given() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"n": {"$anchor": "n", "type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"anyOf": [{"type": "null"}, {"const": 1}]}},
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
        "additionalProperties": False,
    }
    server = Server("schemas")

    @server.tool(input_schema=schema)
    async def given(arguments: dict) -> str:
        return "ok"

    with serve(server) as live:
        assert live.call("tools/list").result["tools"][0]["inputSchema"] == schema
        assert live.tool("given", {"a": 1, "b": 1}).result["content"][0]["text"] == "ok"
        for wrong in ({"a": 1}, {"a": "x", "b": 1}, {"c": 1}):
            assert live.tool("given", wrong).result["isError"] is True


# Resources.


@pytest.mark.spec("RES-14", "RES-17", "RES-16")
def test_reading(live: Live) -> None:
    assert _read(live, "note://plain") == [{"uri": "note://plain", "mimeType": "text/plain", "text": "Hello"}]
    (binary,) = _read(live, "note://binary")
    assert base64.b64decode(binary["blob"], validate=True) == bytes([0, 255])
    assert "text" not in binary
    assert _read(live, "user://ada/profile")[0]["text"] == '{"name":"ada"}'
    assert [("text" in part, "blob" in part) for part in _read(live, "both://of/them")] == [
        (True, False),
        (False, True),
    ]
    templates = live.call("resources/templates/list").result["resourceTemplates"]
    assert [template["uriTemplate"] for template in templates] == ["user://{name}/profile"]


def _read(live: Live, uri: str) -> list[dict]:
    return live.call("resources/read", {"uri": uri}).result["contents"]


@pytest.mark.spec("RES-05", "RES-06", "RES-09", "RES-12", "JRPC-19")
@pytest.mark.parametrize(
    "uri",
    ["note://absent", "user://nobody/profile", "user://a/b/profile", "not a uri", "", "note:", "user://%ZZ/profile"],
)
def test_a_resource_that_is_not_there(live: Live, uri: str) -> None:
    response = live.call("resources/read", {"uri": uri})
    assert response.refusal == (200, -32602)
    assert response.error["data"] == {"uri": uri}


@pytest.mark.spec("RES-13", "RES-12")
@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fetc", "a%2f..%2fb", "%00"])
def test_a_template_does_not_let_a_path_escape(live: Live, name: str) -> None:
    assert live.call("resources/read", {"uri": f"user://{name}/profile"}).refusal == (200, -32602)


@pytest.mark.spec("RES-07")
def test_a_resource_that_fails(live: Live) -> None:
    response = live.call("resources/read", {"uri": "note://moody"})
    assert response.refusal == (200, -32603)
    assert b"secret-password" not in response.body


# Prompts and completions.


@pytest.mark.spec("PRM-12")
def test_a_prompt(live: Live) -> None:
    result = live.call("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}).result
    assert result["messages"] == [{"role": "user", "content": {"type": "text", "text": "Greet Ada in a warm tone."}}]


@pytest.mark.spec("PRM-07", "PRM-08", "PRM-11", "JRPC-26")
@pytest.mark.parametrize(
    "params",
    [
        {"name": "gret"},
        {"name": "greet"},
        {"name": "greet", "arguments": {}},
        {"name": "greet", "arguments": {"name": "A", "tone": "loud"}},
        {"name": "greet", "arguments": {"name": "A", "extra": "x"}},
    ],
)
def test_an_unknown_prompt_or_arguments_that_do_not_fit(live: Live, params: dict) -> None:
    assert live.call("prompts/get", params).refusal == (200, -32602)


@pytest.mark.spec("PRM-12", "PRM-08")
def test_prompt_arguments_are_strings(live: Live) -> None:
    assert live.call("prompts/get", {"name": "greet", "arguments": {"name": 3}}).refusal == (400, -32602)


@pytest.mark.spec("PRM-07")
def test_a_prompt_that_fails(live: Live) -> None:
    response = live.call("prompts/get", {"name": "broken"})
    assert response.refusal == (200, -32603)
    assert b"secret-password" not in response.body


@pytest.mark.spec("PRM-05", "PRM-06")
def test_media_in_prompts() -> None:
    server = Server("media")

    @server.prompt
    async def media() -> list[Any]:
        return [UserMessage(Image(PNG)), UserMessage(File(b"\x00\xff", uri="note://f", mime_type="application/x-f"))]

    with serve(server) as live:
        picture, file = [item["content"] for item in live.call("prompts/get", {"name": "media"}).result["messages"]]
    assert (base64.b64decode(picture["data"], validate=True), picture["mimeType"]) == (PNG, "image/png")
    assert file["resource"] == {"uri": "note://f", "mimeType": "application/x-f", "blob": "AP8="}


def _complete(live: Live, ref: dict, name: str, value: str) -> Any:
    return live.call("completion/complete", {"ref": ref, "argument": {"name": name, "value": value}})


GREET = {"type": "ref/prompt", "name": "greet"}


@pytest.mark.spec("CMP-02", "CMP-04")
def test_completions(live: Live) -> None:
    completion = _complete(live, GREET, "name", "A").result["completion"]
    assert completion["values"] == [f"A{number}" for number in range(100)]
    assert (completion["total"], completion["hasMore"]) == (150, True)
    assert _complete(live, GREET, "tone", "co").result["completion"]["values"] == ["cold"]


@pytest.mark.spec("CMP-03", "CMP-06", "CMP-04")
@pytest.mark.parametrize(
    ("ref", "argument"),
    [
        ({"type": "ref/prompt", "name": "nothing"}, "name"),
        (GREET, "nothing"),
        ({"type": "ref/resource", "uri": "x://{y}"}, "y"),
    ],
)
def test_a_completion_of_what_is_not_there(live: Live, ref: dict, argument: str) -> None:
    assert _complete(live, ref, argument, "").refusal == (200, -32602)


@pytest.mark.spec("CMP-03", "CMP-06")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": GREET},
        {"ref": {"type": "other"}, "argument": {"name": "a", "value": ""}},
        {"ref": GREET, "argument": {"name": "name"}},
    ],
)
def test_a_malformed_completion(live: Live, params: dict) -> None:
    assert live.call("completion/complete", params).refusal == (400, -32602)


# Access, per primitive.


@pytest.mark.spec("CACHE-17", "RES-15")
def test_a_middleware_guards_primitives_one_by_one() -> None:
    server = make_server()

    @server.middleware
    async def guard(ctx: Any, next: Any) -> Any:
        if getattr(ctx.params, "uri", None) == "note://binary" and not ctx.client_supports("roots"):
            raise ProtocolError("Not for you.", code=1403)
        return await next()

    with serve(server) as live:
        assert live.call("resources/read", {"uri": "note://plain"}).status == 200
        assert live.call("resources/read", {"uri": "note://binary"}).error["code"] == 1403
        allowed = live.call("resources/read", {"uri": "note://binary"}, meta={CLIENT_CAPABILITIES_KEY: {"roots": {}}})
    assert allowed.result["contents"][0]["blob"]
