"""Scopes over a socket, in both eras: what is listed, what is refused before it runs, and what it would take."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from support import Live, serve
from support.protected import ERAS, Peer, challenge_of, make_protected, protect
from support.sessions import introduction, rpc
from support.tokens import METADATA, token_for
from support.wire import encode
from weft import CacheHint, Client, Context, Server
from weft.errors import UsageError
from weft.middleware import Next
from weft.server.features.registry import Pages

WRITER = "read write"


@pytest.fixture
def live() -> Iterator[Live]:
    with serve(make_protected(cache_hint=CacheHint(ttl_ms=1000, scope="public"))) as running:
        yield running


GUARDED: dict[str, tuple[str, dict[str, Any], str]] = {
    "tool": ("tools/call", {"name": "burn", "arguments": {}}, "read write admin"),
    "resource": ("resources/read", {"uri": "note://secret"}, "read write"),
    "template": ("resources/read", {"uri": "file://a"}, "read write"),
    "prompt": ("prompts/get", {"name": "secret", "arguments": {"word": "x"}}, "read write"),
    "completion of a prompt": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "secret"}, "argument": {"name": "word", "value": ""}},
        "read write",
    ),
    "completion of a template": (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "file://{name}"}, "argument": {"name": "name", "value": ""}},
        "read write",
    ),
}
LISTENS = {
    "stateless": ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["note://open", "file://a"]}}),
    "session": ("resources/subscribe", {"uri": "file://a"}),
}


@pytest.mark.spec("AUTH-34", "AUTH-40", "AUTH-41", "AUTH-15", "CACHE-17")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("what", [*GUARDED, "listening"])
def test_what_takes_more_is_challenged_before_anything_runs(live: Live, era: str, what: str) -> None:
    method, params, needed = GUARDED[what] if what in GUARDED else (*LISTENS[era], "read write")
    response = Peer(live, era, token_for()).send(method, params)
    assert response.refusal == (403, -32600)
    assert response.json["id"] == 1
    scheme, told = challenge_of(response)
    assert (scheme, told["error"], told["scope"]) == ("Bearer", "insufficient_scope", needed)
    assert told["resource_metadata"] == METADATA
    assert live.server.ran == []
    assert "write" in response.error["message"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("what", [*GUARDED])
def test_who_has_the_scopes_is_served(live: Live, era: str, what: str) -> None:
    method, params, _ = GUARDED[what]
    assert Peer(live, era, token_for(scope="read write admin")).send(method, params).result


@pytest.mark.spec("CACHE-15", "CACHE-16", "CACHE-17")
@pytest.mark.parametrize("era", ERAS)
def test_lists_have_what_the_caller_may_use(live: Live, era: str) -> None:
    reader, writer = (Peer(live, era, token_for(scope=scope)) for scope in ("read", "read write admin other"))
    for _ in range(2):  # also when the pages are kept
        assert reader.names("tools/list", "tools") == ["who", "book"]
        assert writer.names("tools/list", "tools") == ["who", "burn", "book"]
        assert reader.names("resources/list", "resources") == ["note://open"]
        assert writer.names("resources/list", "resources") == ["note://open", "note://secret"]
        assert reader.names("resources/templates/list", "resourceTemplates") == []
        assert writer.names("resources/templates/list", "resourceTemplates") == ["file://{name}"]
        assert reader.names("prompts/list", "prompts") == ["plain"]
        assert writer.names("prompts/list", "prompts") == ["plain", "secret"]
    assert Peer(live, era, token_for(scope=WRITER)).names("tools/list", "tools") == ["who", "book"]  # not all of it


@pytest.mark.parametrize("era", ERAS)
def test_nobody_is_told_the_names_of_what_is_not_listed_for_them(live: Live, era: str) -> None:
    completed = {"ref": {"type": "ref/prompt", "name": "secrets"}, "argument": {"name": "word", "value": ""}}
    hints = {
        "tools/call": ({"name": "burns", "arguments": {}}, "Unknown tool. {}", "'burn'"),
        "prompts/get": ({"name": "secrets"}, "Unknown prompt. {}", "'secret'"),
        "completion/complete": (completed, "Unknown prompt. {}", "'secret'"),
    }
    reader, writer = (Peer(live, era, token_for(scope=scope)) for scope in ("read", "read write admin"))
    for method, (params, text, meant) in hints.items():
        seen = "The tools are: who, book." if method == "tools/call" else "The prompts are: plain."
        assert reader.send(method, params).error["message"] == text.format(seen)
        assert writer.send(method, params).error["message"] == text.format(f"Did you mean {meant}?")


@pytest.mark.spec("CACHE-16")
def test_lists_that_depend_on_the_caller_are_private(live: Live) -> None:
    writer = Peer(live, "stateless", token_for(scope=WRITER))
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
        assert writer.send(method).result["cacheScope"] == "private"
    assert writer.send("resources/read", {"uri": "note://secret"}).result["cacheScope"] == "private"
    assert writer.send("resources/read", {"uri": "note://open"}).result["cacheScope"] == "public"


@pytest.mark.spec("CACHE-15")
def test_pages_of_a_filtered_list(live: Live) -> None:
    server = make_protected(page_size=2)
    for number in range(6):
        server.add_tool(lambda: "", name=f"t{number}", scopes=["write"] if number % 2 else [])
    with serve(server) as paged:
        reader = Peer(paged, "stateless", token_for())
        names: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            result = reader.send("tools/list", cursor).result
            assert (len(result["tools"]) <= 2, result["cacheScope"]) == (True, "private")
            names += [tool["name"] for tool in result["tools"]]
            if "nextCursor" not in result:
                break
            cursor = {"cursor": result["nextCursor"]}
        assert names == ["who", "book", "t0", "t2", "t4"]
        assert reader.send("tools/list", {"cursor": "!"}).error["code"] == -32602


@pytest.mark.parametrize("before", [[], ["write"]])
def test_nobody_is_shown_what_a_thread_registers_during_a_list(
    monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    server = Server("vault", auth=protect())
    server.add_tool(lambda: "", name="first", scopes=before)
    page = Pages.page

    def slow(pages: Pages[Any], *given: Any, **options: Any) -> Any:  # a thread is quicker than this list
        server.add_tool(lambda: "", name="late", scopes=["admin"], replace=True)
        return page(pages, *given, **options)

    with serve(server) as live:
        with monkeypatch.context() as patched:
            patched.setattr(Pages, "page", slow)
            assert "late" not in Peer(live, "stateless", token_for(scope=WRITER)).names("tools/list", "tools")
            server.remove_tool("late")
            server.engine.tools.scopes = frozenset(before)  # as if nothing had been registered
            Peer(live, "stateless", token_for(scope="read write admin")).names("tools/list", "tools")
        assert Peer(live, "stateless", token_for(scope=WRITER)).names("tools/list", "tools") == ["first"]
        admin = Peer(live, "stateless", token_for(scope="read write admin"))
        assert admin.names("tools/list", "tools") == ["first", "late"]


@pytest.mark.spec("AUTH-42")
@pytest.mark.parametrize("era", ERAS)
def test_scopes_that_imply_others(era: str) -> None:
    implied = {"root": ["admin", "write"], "write": ["read"], "admin": ["root"]}
    with serve(make_protected(protect(implied_scopes=implied))) as live:
        assert Peer(live, era, token_for(scope="root")).tool("burn").result
        assert Peer(live, era, token_for(scope="write")).tool("burn").status == 403
        assert Peer(live, era, token_for(scope="write")).tool("who").status == 200


def test_a_challenge_within_a_batch_has_a_place_for_its_error_only(live: Live) -> None:
    headers = [("Authorization", f"Bearer {token_for()}"), ("Content-Type", "application/json")]
    opened = live.send(encode(rpc("initialize", introduction("2025-03-26"))), headers)
    headers.append(("Mcp-Session-Id", opened.headers["mcp-session-id"]))
    batch = [rpc("tools/call", {"name": name, "arguments": {}}, id=name) for name in ("burn", "who")]
    answers = {answer["id"]: answer for answer in live.send(encode(batch), headers).json}
    assert answers["burn"]["error"]["code"] == -32600
    assert '"subject":"ann"' in answers["who"]["result"]["content"][0]["text"]


def test_without_protection_nobody_has_a_scope() -> None:
    server = Server("s")
    server.add_tool(lambda: "", name="burn", scopes=["write"])
    server.add_tool(lambda: "", name="look")
    with serve(server) as live:
        assert [tool["name"] for tool in live.call("tools/list").result["tools"]] == ["look"]
        response = live.tool("burn", {})
        assert response.status == 403
        assert challenge_of(response)[1].keys() == {"error", "error_description", "scope"}
        told = "tools/call 'burn' needs a token with scopes, and the request has no token. Needed: write."
        assert response.error["message"] == told


@pytest.mark.spec("STDIO-15", "AUTH-02")
async def test_in_the_same_process_everything_is_allowed() -> None:
    """Where there are no requests to carry tokens, as on stdio, there is no OAuth either."""
    server = make_protected()
    async with Client(server) as client:
        assert "burn" in [tool.name for tool in await client.list_tools()]
        assert server.ran == []  # type: ignore[attr-defined] - for the tests alone
        await client.call_tool("burn", {})
        assert server.ran == ["burn"]  # type: ignore[attr-defined] - as above


@pytest.mark.spec("AUTH-39")
@pytest.mark.parametrize("scopes", [["offline_access"], ["a b"], ['"'], [""], "write", [3]])
def test_scopes_that_are_none(scopes: Any) -> None:
    server = Server("s")
    for register in (
        lambda: server.tool(scopes=scopes)(lambda: ""),
        lambda: server.resource("a://b", scopes=scopes)(lambda: ""),
        lambda: server.resource("a://{b}", scopes=scopes)(lambda b: ""),
        lambda: server.prompt(name="p", scopes=scopes)(lambda: ""),
        lambda: protect(scopes=scopes),
    ):
        with pytest.raises(UsageError, match="scope"):
            register()


@pytest.mark.spec("AUTH-34", "AUTH-40")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("what", [*GUARDED, "listening"])
def test_what_middleware_makes_of_a_call_passes_the_same_checks(era: str, what: str) -> None:
    method, params, needed = GUARDED[what] if what in GUARDED else (*LISTENS[era], "read write")
    server = make_protected()

    @server.middleware
    async def rename(ctx: Context, next: Next) -> Any:
        if ctx.method == method:
            for name, value in params.items():
                setattr(ctx.params, name, msgspec.convert(value, type(getattr(ctx.params, name))))
        return await next()

    harmless: dict[str, dict[str, Any]] = {
        "tools/call": {"name": "who", "arguments": {}},
        "resources/read": {"uri": "note://open"},
        "resources/subscribe": {"uri": "note://open"},
        "prompts/get": {"name": "plain", "arguments": {"word": "x"}},
        "completion/complete": {**params, "ref": {"type": "ref/prompt", "name": "plain"}},
        "subscriptions/listen": {"notifications": {"resourceSubscriptions": ["note://open"]}},
    }
    if what == "completion of a template":
        harmless["completion/complete"]["ref"] = {"type": "ref/resource", "uri": "open://{name}"}
    with serve(server) as live:
        response = Peer(live, era, token_for()).send(method, harmless[method])
        assert response.refusal == (403, -32600)
        assert challenge_of(response)[1]["scope"] == needed
        assert server.ran == []
