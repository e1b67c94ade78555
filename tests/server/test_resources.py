"""Resources through the dispatcher: registering, listing, reading, not finding."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import pytest

from weft import Context, Server
from weft.eras.client import StatelessClient
from weft.eras.stateless import NEWEST, STATELESS
from weft.errors import ProtocolError, RegistrationError, ResourceNotFound, UsageError
from weft.jsonrpc import decode, encode_request
from weft.limits import Limits
from weft.server.calls.call import Call
from weft.server.calls.changes import Change
from weft.server.calls.connection import Connection
from weft.server.features.content import File, Image
from weft.server.features.registry import CacheHint
from weft.server.runtime.dispatch import Next
from weft.types.base import Annotations, Implementation
from weft.types.features import ReadResourceResult, ResourceContents
from weft.types.interaction import InputRequiredResult
from weft.types.lifecycle import ClientCapabilities, RootsCapability


class Silent:
    async def notify(self, message: bytes) -> None: ...


async def send(
    server: Server, method: str, capabilities: ClientCapabilities | None = None, **params: Any
) -> dict[str, Any]:
    declared = capabilities or ClientCapabilities()
    stamped = StatelessClient().stamp(method, params, info=Implementation("t", "1"), capabilities=declared)
    frame = decode(encode_request(1, method, stamped))
    envelope = STATELESS.open(frame, None, server.engine.offer, None)
    connection = Connection.from_envelope(NEWEST.version, None, declared)
    _, body = await server.engine.dispatcher.run(Call(server.engine, 1, envelope, STATELESS, connection, Silent()))
    return json.loads(body)


async def read(server: Server, uri: str) -> dict[str, Any]:
    return (await send(server, "resources/read", uri=uri))["result"]


async def fail(server: Server, uri: str) -> dict[str, Any]:
    return (await send(server, "resources/read", uri=uri))["error"]


async def contents(value: Any, **options: Any) -> dict[str, Any]:
    server = Server("s")
    server.add_resource("a://b", lambda: value, **options)
    return (await read(server, "a://b"))["contents"][0]


# Reading


@pytest.mark.spec("RES-14")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", {"text": "text", "mimeType": "text/plain"}),
        (b"\0\1", {"blob": base64.b64encode(b"\0\1").decode(), "mimeType": "application/octet-stream"}),
        ({"a": 1}, {"text": '{"a":1}', "mimeType": "application/json"}),
        ([], {"text": "[]", "mimeType": "application/json"}),
        (File(b"<p>", uri="x://y.html"), {"text": "<p>", "mimeType": "text/html"}),
        (Image(b"GIF89a"), {"blob": base64.b64encode(b"GIF89a").decode(), "mimeType": "image/gif"}),
    ],
)
async def test_what_a_function_returns_becomes_contents_under_the_requested_uri(value: Any, expected: Any) -> None:
    assert await contents(value) == {"uri": "a://b", **expected}


async def test_the_registered_mime_type_is_used() -> None:
    assert (await contents("{}", mime_type="application/json"))["mimeType"] == "application/json"
    assert (await contents(b"", mime_type="image/png"))["mimeType"] == "image/png"
    with pytest.raises(UsageError, match="type/subtype"):
        await contents("", mime_type="nonsense")


@pytest.mark.spec("RES-17")
async def test_a_read_may_have_several_contents() -> None:
    server = Server("s")
    parts = [ResourceContents("a://b/1", text="1"), File(b"2", uri="a://b/2"), "3"]
    server.add_resource("a://b", lambda: parts)
    result = await read(server, "a://b")
    assert [(part["uri"], part["text"]) for part in result["contents"]] == [
        ("a://b/1", "1"), ("a://b/2", "2"), ("a://b", "3"),
    ]  # fmt: skip


@pytest.mark.spec("RES-17", "CACHE-04")
async def test_a_read_may_ask_first_and_then_carries_no_cache_hints() -> None:
    server = Server("s", cache_hint=CacheHint(1000))
    question = InputRequiredResult(result_type="input_required", request_state="s")
    server.add_resource("a://b", lambda: question)
    result = await read(server, "a://b")
    assert result["resultType"] == "input_required"
    assert "ttlMs" not in result
    assert "cacheScope" not in result
    assert question.meta is None  # it is the user's: a copy was sealed


async def test_a_result_that_a_resource_made_is_held_to_the_same_rules() -> None:
    server = Server("s", debug=True)
    server.add_resource("a://b", lambda: ReadResourceResult(contents=["x"]))  # type: ignore[list-item]
    server.add_resource("a://c", lambda: ReadResourceResult(contents=[ResourceContents("a://c")]))
    assert (await read(server, "a://b"))["contents"] == [{"uri": "a://b", "mimeType": "text/plain", "text": "x"}]
    assert "has either `text` or `blob`: give exactly one of them" in (await fail(server, "a://c"))["message"]


async def test_a_shared_full_result_is_not_written_into() -> None:
    server, shared = Server("s"), ReadResourceResult(contents=[ResourceContents("a://b", text="x")], ttl_ms=7)
    server.add_resource("a://b", lambda: shared)
    assert (await read(server, "a://b"))["ttlMs"] == 7
    assert shared.meta is None
    assert shared.cache_scope is None


async def test_a_static_resource_needs_no_function_and_tells_type_and_size() -> None:
    server = Server("s")
    server.add_resource("a://text", "grüezi")
    server.add_resource("a://bytes", b"\0\0\0")
    server.add_resource("a://json", {"a": 1}, name="config", size=99)
    listed = (await send(server, "resources/list"))["result"]["resources"]
    assert [(entry["name"], entry["mimeType"], entry["size"]) for entry in listed] == [
        ("text", "text/plain", 7), ("bytes", "application/octet-stream", 3), ("config", "application/json", 99),
    ]  # fmt: skip
    assert (await read(server, "a://text"))["contents"] == [
        {"uri": "a://text", "mimeType": "text/plain", "text": "grüezi"}
    ]


async def test_plain_and_async_functions_get_the_context_when_they_ask_for_it() -> None:
    server = Server("s")

    @server.resource("a://plain")
    def plain(ctx: Context) -> str:
        return ctx.method

    @server.resource("a://async/{id}")
    async def later(id: int, *, ctx: Context) -> str:
        return f"{ctx.method} {id + 1}"

    assert (await read(server, "a://plain"))["contents"][0]["text"] == "resources/read"
    assert (await read(server, "a://async/41"))["contents"][0]["text"] == "resources/read 42"


@pytest.mark.spec("RES-16")
async def test_an_exact_uri_comes_first_then_templates_in_their_order() -> None:
    server = Server("s")

    @server.resource("a://{id}")
    def first(id: int) -> str:
        return f"number {id}"

    @server.resource("a://{name}{?q}")
    def second(name: str, q: str = "none") -> str:
        return f"name {name} {q}"

    server.add_resource("a://7", "exact")
    texts = [(await read(server, uri))["contents"][0]["text"] for uri in ("a://7", "a://8", "a://x", "a://x?q=1")]
    assert texts == ["exact", "number 8", "name x none", "name x 1"]


# Not finding


@pytest.mark.spec("RES-05", "RES-06", "RES-09", "RES-12")
@pytest.mark.parametrize("uri", ["a://none", "not a uri", "", "a://typed/x", "a://typed/blue"])
async def test_what_is_not_there_is_minus_32602_with_its_uri(uri: str) -> None:
    server = Server("s")

    @server.resource("a://typed/{n}")
    def typed(n: Literal["red"]) -> str:
        return n

    error = await fail(server, uri)
    assert error == {"code": -32602, "message": "Resource not found", "data": {"uri": uri}}


@pytest.mark.spec("RES-06")
@pytest.mark.parametrize("value", [None, ReadResourceResult(contents=[])])
async def test_nothing_read_is_not_found(value: Any) -> None:
    server = Server("s")
    server.add_resource("a://b", lambda: value)
    assert (await fail(server, "a://b"))["code"] == -32602


async def test_a_handler_may_say_not_found_itself() -> None:
    server = Server("s")

    @server.resource("a://{id}")
    def missing(id: str) -> str:
        raise ResourceNotFound(f"a://{id}")

    assert (await fail(server, "a://9"))["data"] == {"uri": "a://9"}


@pytest.mark.spec("RES-07")
@pytest.mark.parametrize("fault", [RuntimeError("password"), SystemExit(3)])
async def test_a_fault_is_minus_32603_and_says_nothing(fault: BaseException) -> None:
    server = Server("s", debug=False)

    @server.resource("a://b")
    def broken() -> str:
        raise fault

    error = await fail(server, "a://b")
    assert error["code"] == -32603
    assert "password" not in json.dumps(error)


@pytest.mark.security("D4")
@pytest.mark.parametrize("value", [object(), ResourceContents("a://b"), "\ud800"])
async def test_contents_that_cannot_be_sent_are_a_fault_of_ours(value: Any) -> None:
    server = Server("s", debug=False)
    server.add_resource("a://b", lambda: value)
    assert (await fail(server, "a://b"))["code"] == -32603


@pytest.mark.security("D7", "R12")
async def test_a_uri_one_past_the_limit_is_refused_without_repeating_it() -> None:
    server = Server("s")

    @server.resource("a://{x}")
    def any_length(x: str) -> str:
        return "ok"

    longest = "a://" + "x" * (8 * 1024 - 4)
    assert (await read(server, longest))["contents"][0]["text"] == "ok"
    error = await fail(server, longest + "x")
    assert error["code"] == -32602
    assert len(json.dumps(error)) < 300
    small = Server("s", limits=Limits(uri_bytes=5))
    small.add_resource("a://b", "ok")
    assert (await fail(small, "a://bb"))["code"] == -32602


@pytest.mark.spec("RES-13")
@pytest.mark.security("R9")
@pytest.mark.parametrize(
    "path", ["../secret", "%2e%2e/secret", "..%2fsecret", "a/../../secret", "%00", "a/%2e%2e/%2e%2e/b", "%2fetc"]
)
async def test_a_template_never_hands_out_a_path_that_leaves_its_place(path: str) -> None:
    server, seen = Server("s"), []

    @server.resource("file:///data/{name}")
    def one(name: str) -> str:
        seen.append(name)
        return name

    @server.resource("file:///tree/{+path}")
    def tree(path: str) -> str:
        seen.append(path)
        return path

    for prefix in ("data", "tree"):
        assert (await fail(server, f"file:///{prefix}/{path}"))["code"] == -32602
    assert seen == []


# Lists and caching


@pytest.mark.spec("RES-01", "RES-02", "RES-16", "CACHE-01", "PAG-06")
async def test_resources_and_templates_are_listed_with_all_they_say() -> None:
    server = Server("s")
    assert server.capabilities.resources is None

    @server.resource("a://b", title="B", annotations=Annotations(priority=0.5), meta={"com.example/x": 1})
    def b() -> str:
        """What b is."""
        return ""

    @server.resource("a://{id}", mime_type="text/csv", name="family")
    def family(id: str) -> str:
        """A family."""
        return id

    assert server.capabilities.resources is not None
    resources = (await send(server, "resources/list"))["result"]
    assert resources["resources"] == [
        {"uri": "a://b", "name": "b", "title": "B", "description": "What b is.", "annotations": {"priority": 0.5},
         "_meta": {"com.example/x": 1}}
    ]  # fmt: skip
    assert (resources["ttlMs"], resources["cacheScope"]) == (0, "public")
    templates = (await send(server, "resources/templates/list"))["result"]
    assert templates["resourceTemplates"] == [
        {"uriTemplate": "a://{id}", "name": "family", "description": "A family.", "mimeType": "text/csv"}
    ]
    assert (templates["ttlMs"], templates["cacheScope"]) == (0, "public")


@pytest.mark.spec("CACHE-01")
async def test_cache_hints_are_per_server_per_list_and_per_resource() -> None:
    server = Server(
        "s",
        cache_hint=CacheHint(1, "private"),
        list_cache_hints={"resources": CacheHint(2), "templates": CacheHint(3)},
    )
    server.add_resource("a://plain", "x")
    server.add_resource("a://own", "x", cache_hint=CacheHint(4, "public"))

    @server.resource("b://{id}", cache_hint=CacheHint(5))
    def b(id: str) -> str:
        return id

    async def hints(method: str, **params: Any) -> tuple[int, str]:
        result = (await send(server, method, **params))["result"]
        return result["ttlMs"], result["cacheScope"]

    assert await hints("resources/read", uri="a://plain") == (1, "private")
    assert await hints("resources/list") == (2, "public")
    assert await hints("resources/templates/list") == (3, "public")
    assert await hints("resources/read", uri="a://own") == (4, "public")
    assert await hints("resources/read", uri="b://1") == (5, "private")


@pytest.mark.spec("CACHE-16")
async def test_what_is_read_is_private_unless_said_otherwise() -> None:
    server = Server("s", cache_hint=CacheHint(60_000))

    @server.resource("me://name")
    def me(ctx: Context) -> str:
        return ctx.connection_id

    read = (await send(server, "resources/read", uri="me://name"))["result"]
    assert (read["ttlMs"], read["cacheScope"]) == (60_000, "private")
    assert (await send(server, "resources/list"))["result"]["cacheScope"] == "public"


@pytest.mark.spec("PAG-05", "PAG-06", "CACHE-15")
async def test_pages_have_one_scope_and_a_cursor_of_one_list_is_none_of_the_other() -> None:
    server = Server("s", page_size=1, cache_hint=CacheHint(1, "private"))
    for number in range(3):
        server.add_resource(f"a://{number}", "x")
    cursor, seen = None, []
    while True:
        result = (await send(server, "resources/list", **({"cursor": cursor} if cursor else {})))["result"]
        seen += [entry["uri"] for entry in result["resources"]]
        assert result["cacheScope"] == "private"
        if "nextCursor" not in result:
            break
        cursor = result["nextCursor"]
    assert seen == ["a://0", "a://1", "a://2"]
    assert (await send(server, "resources/templates/list", cursor=cursor))["error"]["code"] == -32602
    assert (await send(server, "resources/list", cursor=""))["error"]["code"] == -32602


async def test_resources_come_and_go_while_serving_and_listeners_hear_it() -> None:
    server, heard = Server("s"), []
    server.add_resource("a://b", "x")
    server.engine.changes.subscribe(heard.append)
    await send(server, "resources/list")

    @server.resource("a://{id}/more")
    def more(id: str) -> str:
        return id

    server.add_resource("a://c", "y")
    assert len((await send(server, "resources/list"))["result"]["resources"]) == 2
    server.remove_resource("a://b")
    server.remove_resource("a://{id}/more")
    assert heard == [Change("resources")] * 4
    assert [entry["uri"] for entry in (await send(server, "resources/list"))["result"]["resources"]] == ["a://c"]
    assert (await fail(server, "a://b"))["code"] == -32602
    assert (await fail(server, "a://1/more"))["code"] == -32602
    with pytest.raises(UsageError, match=r"There is no resource 'a://b' to remove. Did you mean 'a://c'\?"):
        server.remove_resource("a://b")


@pytest.mark.spec("RES-03")
async def test_the_lists_are_the_same_whoever_asks_and_whatever_came_before() -> None:
    server = Server("s")
    server.add_resource("a://b", "x")
    before = await send(server, "resources/list", capabilities=ClientCapabilities())
    await read(server, "a://b")
    await fail(server, "a://c")
    after = await send(server, "resources/list", capabilities=ClientCapabilities(roots=RootsCapability()))
    assert before == after


@pytest.mark.spec("CACHE-17")
async def test_a_public_scope_and_kept_bytes_bypass_no_access_check() -> None:
    server, asked = Server("s", cache_hint=CacheHint(60_000, "public")), []

    @server.middleware
    async def guard(ctx: Context, following: Next) -> Any:
        asked.append(ctx.method)
        if len(asked) > 2:
            raise ProtocolError("Not yours.", code=1001)
        return await following()

    server.add_resource("a://b", "x")
    assert "result" in await send(server, "resources/list")
    assert "result" in await send(server, "resources/read", uri="a://b")
    assert (await send(server, "resources/list"))["error"]["code"] == 1001
    assert (await send(server, "resources/read", uri="a://b"))["error"]["code"] == 1001
    assert asked == ["resources/list", "resources/read"] * 2


# Mistakes


@pytest.mark.spec("RES-11", "RES-12")
@pytest.mark.parametrize("uri", ["no-scheme", "a b://c", "1a://b", "", "a://" + "x" * 9000])
def test_a_uri_that_is_none_is_refused_at_registration(uri: str) -> None:
    with pytest.raises(RegistrationError, match=r"cannot be registered \(.*test_resources\.py:\d+\)"):
        Server("s").add_resource(uri, "x")


@pytest.mark.mistake("duplicate names")
def test_a_uri_registered_twice_is_refused_with_both_places() -> None:
    server = Server("s")

    @server.resource("a://{id}")
    def first(id: str) -> str:
        return id

    with pytest.raises(RegistrationError, match=r"twice: at .*test_resources\.py:\d+ and at .*test_resources\.py:\d+"):
        server.resource("a://{id}")(first)
    server.add_resource("a://b", "x")
    with pytest.raises(RegistrationError, match=r"twice: at .*test_resources\.py:\d+ and at .*test_resources\.py:\d+"):
        server.add_resource("a://b", "y")


def test_variables_and_parameters_must_agree() -> None:
    def fn(user: str, extra: str = "ok") -> str:
        return user + extra

    with pytest.raises(RegistrationError) as caught:
        Server("s").add_resource("a://{usr}", fn)
    text = str(caught.value)
    assert "'a://{usr}'" in text
    assert "no parameter for 'usr'" in text
    assert "no value for 'user'" in text
    assert "test_resources.py:" in text
    Server("s").add_resource("a://{user}", fn)


def test_other_mistakes_are_told_at_registration() -> None:
    def needs(user: str) -> str:
        return user

    server = Server("s")
    with pytest.raises(RegistrationError, match=r"needs 'user'.*\{user\}"):
        server.add_resource("a://b", needs)
    with pytest.raises(RegistrationError, match="needs a function"):
        server.add_resource("a://{id}", "text")
    with pytest.raises(RegistrationError, match="size= is for one resource"):
        server.add_resource("a://{user}", needs, size=1)
    with pytest.raises(RegistrationError, match="cannot be registered"):
        server.add_resource("a://{user", needs)
    with pytest.raises(RegistrationError, match="is not JSON"):
        server.add_resource("a://b", {"a": object()})
    with pytest.raises(RegistrationError, match="definition is not JSON"):
        server.add_resource("a://b", "x", meta={"a": object()})
    with pytest.raises(RegistrationError, match="longer than"):
        server.add_resource("a://{user}" + "x" * 9000, needs)
    assert len(server.engine.resources) == 0
    assert server.capabilities.resources is None


@pytest.mark.parametrize(
    ("template", "annotation", "sentence"),
    [
        ("l://x{?c*}", dict[str, str], "its variable 'c' gives a list of texts, which the type of that parameter does"),
        ("l://{c*}", str, "Annotate it `c: list[str]`, or change the template: {c*} gives a list, {c} a text."),
        ("l://{c}", list[str], "its variable 'c' gives a text, which the type of that parameter does not accept."),
        ("l://{c}", dict[str, int] | None, "Annotate it `c: str`, or change the template"),
    ],
)
def test_a_parameter_that_could_never_be_filled_in_is_refused(template: str, annotation: Any, sentence: str) -> None:
    def read(c: Any) -> str:
        return ""

    read.__annotations__["c"] = annotation
    with pytest.raises(RegistrationError) as caught:
        Server("x").add_resource(template, read)
    assert str(caught.value).startswith(f"Resource template {template!r} cannot be registered (")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("template", "annotation"),
    [
        ("l://{c}", int | list[int]),
        ("l://{c}", Any),
        ("l://{c}", Literal["a", "b"]),
        ("l://x{?c*}", set[str]),
        ("l://x{?c*}", list[int] | None),
    ],
)
def test_a_parameter_that_may_be_filled_in_is_not(template: str, annotation: Any) -> None:
    def read(c: Any) -> str:
        return ""

    read.__annotations__["c"] = annotation
    Server("x").add_resource(template, read)


def test_what_is_said_of_a_resource_has_its_kind() -> None:
    with pytest.raises(RegistrationError, match=r"Expected `int \| null`, got `str` - at `\$.size`"):
        Server("x").add_resource("a://b", "text", size="4")
    with pytest.raises(RegistrationError, match=r"Expected `str \| null`, got `int` - at `\$.title`"):
        Server("x").add_resource("a://b", "text", title=4)


def test_a_thread_that_registers_a_resource_does_not_undo_the_needs_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("x")

    class NoNeeds(tuple[str, ...]):
        __slots__ = ()

        def __bool__(self) -> bool:  # another thread registers a resource just now
            server.engine.resources.has_needs = True
            return False

    monkeypatch.setattr("weft.server.features.registry.check_needs", lambda *_: NoNeeds())
    server.add_resource("a://b", "text")
    assert server.engine.resources.has_needs
