"""What a client may do with `requestState`: send it back for the same call, in time. Anything else is refused alike."""

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from support import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, Live, Response, ask, serve
from weft import Context, Limits, Server
from weft.auth import TokenInfo

WORD = {"type": "object", "properties": {"word": {"type": "string"}}}
META = {CLIENT_CAPABILITIES_KEY: {"elicitation": {}}}
REFUSAL = "`requestState` was not issued by this server for this request, or is too old. Call again without it."
SECRET = "the first secret of these tests"


def make(*keys: str, limits: Limits | None = None) -> Server:
    """A server with two tools, a prompt and a resource that all ask the same."""
    server = Server("stateful", state_keys=keys or [SECRET], limits=limits or Limits())
    server.ran = []  # type: ignore[attr-defined] - for the tests alone

    async def book(ctx: Context, flight: str = "", seats: int = 1) -> str:
        server.ran.append(flight)  # type: ignore[attr-defined] - as above
        answer = await ctx.elicit("Which seat?", WORD, key="seat")
        return f"{flight} {answer.value}"

    async def greet(ctx: Context, flight: str = "") -> str:
        return await book(ctx, flight)

    async def note(ctx: Context) -> str:
        return await book(ctx)

    server.add_tool(book)
    server.add_tool(book, name="cancel")
    server.add_prompt(greet, name="book")
    server.add_resource("note://a", note)
    server.add_resource("note://b", note)
    return server


BOOK = {"name": "book", "arguments": {"flight": "LX38", "seats": 2}}


async def begin(server: Server, method: str = "tools/call", params: dict[str, Any] = BOOK, **options: Any) -> str:
    response = await ask(server, method, params, meta={**META, **options})
    assert response.result["resultType"] == "input_required"
    return response.result["requestState"]


async def go_on(
    server: Server, state: Any, method: str = "tools/call", params: dict[str, Any] = BOOK, **options: Any
) -> Response:
    retry = {"inputResponses": {"seat": {"action": "accept", "content": {"word": "12A"}}}, "requestState": state}
    return await ask(server, method, {**params, **retry}, id=2, meta={**META, **options})


def is_refused(response: Response) -> bool:
    """In the same words whatever is wrong, and not by asking again (R5)."""
    return response.error == {"code": -32602, "message": REFUSAL}


def completed(response: Response) -> bool:
    return response.result["resultType"] == "complete"


@pytest.mark.spec("MRTR-10", "MRTR-13")
@pytest.mark.security("R5")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {**BOOK, "name": "cancel"}),
        ("tools/call", {**BOOK, "arguments": {"flight": "LX39", "seats": 2}}),
        ("tools/call", {**BOOK, "arguments": {"flight": "LX38"}}),
        ("tools/call", {"name": "book"}),
        ("prompts/get", {"name": "book", "arguments": {"flight": "LX38", "seats": "2"}}),
        ("prompts/get", {"name": "book"}),
        ("resources/read", {"uri": "note://a"}),
    ],
)
async def test_state_is_good_for_its_own_request_only(method: str, params: dict[str, Any]) -> None:
    server = make()
    state = await begin(server)
    ran = len(server.ran)  # type: ignore[attr-defined] - see make
    assert is_refused(await go_on(server, state, method, params))
    assert len(server.ran) == ran  # type: ignore[attr-defined] - refused before anything ran
    assert completed(await go_on(server, state))


@pytest.mark.spec("MRTR-13")
async def test_state_of_a_tool_is_not_good_for_a_prompt_that_is_called_the_same() -> None:
    server, same = make(), {"name": "book", "arguments": {"flight": "LX38"}}
    state = await begin(server, params=same)
    assert is_refused(await go_on(server, state, "prompts/get", same))
    assert completed(await go_on(server, state, params=same))
    state = await begin(server, "prompts/get", same)
    assert is_refused(await go_on(server, state, params=same))
    assert completed(await go_on(server, state, "prompts/get", same))


@pytest.mark.spec("MRTR-13")
async def test_state_of_one_server_is_not_good_for_another_with_the_same_key() -> None:
    one, other = make(), make()
    other.info.name = "another"
    state = await begin(one)
    assert is_refused(await go_on(other, state))
    assert completed(await go_on(make(), state))


@pytest.mark.spec("MRTR-13")
async def test_state_of_one_resource_is_not_good_for_another() -> None:
    server = make()
    state = await begin(server, "resources/read", {"uri": "note://a"})
    assert is_refused(await go_on(server, state, "resources/read", {"uri": "note://b"}))
    assert completed(await go_on(server, state, "resources/read", {"uri": "note://a"}))


@pytest.mark.spec("MRTR-13")
async def test_the_same_arguments_in_another_order_are_the_same() -> None:
    server = make()
    state = await begin(server)
    assert completed(await go_on(server, state, params={"name": "book", "arguments": {"seats": 2, "flight": "LX38"}}))


@pytest.mark.spec("MRTR-08", "MRTR-09", "MRTR-10")
async def test_state_changed_in_any_character_is_refused() -> None:
    server = make()
    state = await begin(server)
    for place, character in enumerate(state):
        other = random.Random(place).choice([one for one in "AZaz09-_" if one != character])
        assert is_refused(await go_on(server, state[:place] + other + state[place + 1 :])), place
    assert completed(await go_on(server, state))


@pytest.mark.spec("MRTR-08", "MRTR-10")
@pytest.mark.security("R5")
@pytest.mark.parametrize(
    "change",
    [
        lambda state: "",
        lambda state: state[:-1],
        lambda state: state[1:],
        lambda state: state + "A",
        lambda state: state + "=",
        lambda state: state * 2,
        lambda state: " " + state,
        lambda state: "null",
        lambda state: "é\0",
        lambda state: "A" * 16_385,
    ],
)
async def test_state_that_is_cut_longer_or_made_up_is_refused(change: Callable[[str], str]) -> None:
    server = make()
    assert is_refused(await go_on(server, change(await begin(server))))


@pytest.mark.spec("MRTR-08", "MRTR-24")
@pytest.mark.parametrize("state", [3, {}, ["x"], True])
async def test_state_that_is_no_text_is_refused(state: Any) -> None:
    assert (await go_on(make(), state)).error["code"] == -32602


@pytest.mark.spec("MRTR-12")
@pytest.mark.security("D13")
async def test_state_past_its_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limits().ask_seconds == 600
    server = make(limits=Limits(ask_seconds=100))
    now = time.time()
    state = await begin(server)
    monkeypatch.setattr("weft.server.asking.rounds.time", SimpleNamespace(time=lambda: now + 98))
    assert completed(await go_on(server, state))
    monkeypatch.setattr("weft.server.asking.rounds.time", SimpleNamespace(time=lambda: now + 101))
    assert is_refused(await go_on(server, state))


@pytest.mark.security("R5")
async def test_state_of_another_server_is_refused_and_of_an_older_key_is_not() -> None:
    old, new = "the older secret of the two", "the newer secret of the two"
    state = await begin(make(old))
    assert is_refused(await go_on(make(new), state))
    assert completed(await go_on(make(new, old), state))
    assert is_refused(await go_on(make(old), await begin(make(new, old))))


async def test_the_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(ctx: Context) -> str:
        return (await ctx.elicit("Which seat?", WORD, key="seat")).action

    servers = []
    for value in ("the older secret of the two", "the newer secret of the two,the older secret of the two", ""):
        monkeypatch.setenv("WEFT_STATE_KEY", value)
        servers.append(Server("worker"))
        servers[-1].add_tool(run)
    old, rotated, alone = servers
    params = {"name": "run"}
    state = await begin(old, params=params)
    assert completed(await go_on(rotated, state, params=params))
    assert is_refused(await go_on(alone, state, params=params))


class Login:
    """An app that knows its callers: here by a header, which stands for a verified token."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        said = dict(scope.get("headers", [])).get(b"x-caller")
        if said is not None:
            issuer, client, subject = (part or None for part in said.decode().split("|"))
            scope["weft.token_info"] = TokenInfo(subject, client, issuer=issuer)
        await self.app(scope, receive, send)


def behind_login(server: Server) -> Any:
    return Login(server.asgi())


def mounted_behind_login(server: Server) -> Any:
    return Starlette(routes=[Mount("/", server.asgi("/mcp"))], middleware=[Middleware(Login)])


def as_caller(live: Live, caller: str | None, state: str | None = None) -> Response:
    answers = {"seat": {"action": "accept", "content": {"word": "12A"}}}
    retry = {} if state is None else {"inputResponses": answers, "requestState": state}
    said = {CLIENT_INFO_KEY: {"name": "ann", "version": "1"}}  # what a client says of itself proves nothing
    return live.call("tools/call", {**BOOK, **retry}, meta={**META, **said}, headers={"x-caller": caller})


@pytest.mark.spec("MRTR-11", "ELI-15", "ELI-16", "ELI-25")
@pytest.mark.security("R5")
@pytest.mark.parametrize("around", [behind_login, mounted_behind_login])
def test_state_of_another_principal_is_refused_exactly_as_a_tampered_one(around: Any) -> None:
    server = make()
    with serve(around(server)) as live:
        state = as_caller(live, "https://id|app|ann").result["requestState"]
        ran = len(server.ran)  # type: ignore[attr-defined] - see make
        tampered = as_caller(live, "https://id|app|ann", state[:-2] + ("AA" if state[-2:] != "AA" else "BB"))
        assert is_refused(tampered)
        others = [
            "https://id|app|bob", "https://id|app|Ann", "https://other|app|ann", "https://id|another|ann", None,
            "|app|ann", "https://id||ann", "||ann", "https://idapp||ann", "https://id||appann",
        ]  # fmt: skip
        for other in others:
            refused = as_caller(live, other, state)
            assert (refused.status, refused.body) == (tampered.status, tampered.body), other
        assert len(server.ran) == ran  # type: ignore[attr-defined] - refused before anything ran
        assert completed(as_caller(live, "https://id|app|ann", state))


@pytest.mark.spec("MRTR-11")
@pytest.mark.security("R5")
def test_state_of_nobody_known_is_not_good_for_somebody() -> None:
    with serve(behind_login(make())) as live:
        state = as_caller(live, None).result["requestState"]
        assert is_refused(as_caller(live, "||ann", state))
        assert completed(as_caller(live, None, state))


def test_a_principal_names_all_that_is_known_and_nothing_twice() -> None:
    people = [
        TokenInfo("ann"), TokenInfo("bob"), TokenInfo("ann", issuer="x"), TokenInfo("ann", "x"), TokenInfo("ann", ""),
        TokenInfo("nn", "xa"), TokenInfo("ann", "x", issuer="y"), TokenInfo("-ann"), TokenInfo("3:ann"),
    ]  # fmt: skip
    assert len({one.principal for one in people}) == len(people)
    assert TokenInfo("ann", issuer="x").principal == TokenInfo("ann", claims={"iss": "x"}).principal
    assert TokenInfo("ann", scopes=frozenset({"a"})).principal == TokenInfo("ann").principal


@pytest.mark.spec("ELI-25")
def test_who_is_calling_is_not_what_the_client_says() -> None:
    server = Server("asked")
    seen: list[TokenInfo | None] = []

    @server.middleware
    async def look(ctx: Context, next: Any) -> Any:
        seen.append(ctx.token_info)
        return await next()

    @server.tool
    async def who(ctx: Context) -> str:
        seen.append(ctx.token_info)
        return "done"

    meta = {CLIENT_INFO_KEY: {"name": "ann", "version": "1"}, "com.example/user": "ann", "weft.token_info": "ann"}
    with serve(behind_login(server)) as live:
        live.tool("who", meta=meta, headers={"weft.token_info": "ann"})
        live.tool("who", headers={"x-caller": "|app|ann"})
    assert seen == [None, None, TokenInfo("ann", "app"), TokenInfo("ann", "app")]


@pytest.mark.spec("MRTR-09")
async def test_the_answers_in_the_state_cannot_be_read_from_it() -> None:
    async def run(ctx: Context) -> str:
        await ctx.once("secret", lambda: "swordfish" * 20)
        return (await ctx.elicit("Which seat?", WORD, key="seat")).action

    server = Server("worker", state_keys=[SECRET])
    server.add_tool(run)
    first, second = [await begin(server, params={"name": "run"}) for _ in range(2)]
    assert first != second
    assert len({first[start : start + 12] for start in range(60, len(first) - 12, 12)}) > 10  # nothing repeats in it


@pytest.mark.security("D13", "R12")
async def test_the_size_of_the_state_that_is_read() -> None:
    small = make(limits=Limits(state_bytes=1000))
    state = await begin(make())
    assert completed(await go_on(small, state))
    assert is_refused(await go_on(make(limits=Limits(state_bytes=len(state) - 1)), state))
    assert completed(await go_on(make(limits=Limits(state_bytes=len(state))), state))
    assert Limits().state_bytes == 16 * 1024
