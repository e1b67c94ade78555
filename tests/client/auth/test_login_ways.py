"""Logging in by other ways than straight to the server: through a proxy, over the transport of the first revision."""

import asyncio
import json
from typing import Any

import pytest
from test_login_client import Guarded

from support import serve
from support.fakes import Exchange, http_server, initialized, reply, sse
from support.logging_in import Browser, hidden_fields
from weft import AuthorizationFailed, Client, ClientLimits, ConnectionFailed, Context, Http, Server
from weft.auth import OAuth, TokenInfo
from weft.authorization import AuthorizationServer
from weft.client.auth import ClientCredentials, Fetcher, FunctionRedirect
from weft.client.auth.discovery import read_challenges
from weft.client.connection.transport import Refused
from weft.errors import UsageError
from weft.server.auth import ResourceServer, StaticTokens

REDIRECT = "http://127.0.0.1:3995/callback"


# --- the way of the client is the way of its logins


async def test_a_login_goes_through_the_proxy_of_its_client() -> None:
    guarded = Guarded("stateless")
    guarded.base = "http://127.0.0.1:1"  # where nobody is: all of it has to go through the proxy
    auth = ClientCredentials("robot", client_secret="s")
    async with http_server(guarded.handle) as proxy:
        options = {"auth": auth, "proxy": proxy.removesuffix("/mcp")}
        async with Client(Http(f"{guarded.base}/mcp", **options)) as client:
            assert [tool.name for tool in await client.list_tools()] == ["of-token-1"]
    assert len(guarded.forms) == 1


async def test_a_proxy_in_the_environment_is_used_where_the_client_trusts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded("stateless")
    guarded.base = "http://127.0.0.1:1"
    async with http_server(guarded.handle) as proxy:
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/mcp"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        auth = ClientCredentials("robot", client_secret="s")
        async with Client(Http(f"{guarded.base}/mcp", auth=auth, trust_env=True)) as client:
            assert await client.list_tools()
    assert len(guarded.forms) == 1


async def test_a_fetcher_of_ones_own_goes_its_own_way() -> None:
    guarded = Guarded("stateless")
    guarded.base = "http://127.0.0.1:1"
    auth = ClientCredentials("robot", client_secret="s", fetcher=Fetcher())
    async with http_server(guarded.handle) as proxy:
        with pytest.raises(AuthorizationFailed, match="cannot be reached"):
            async with Client(Http(f"{guarded.base}/mcp", auth=auth, proxy=proxy.removesuffix("/mcp"))):
                pass
    assert guarded.forms == []


async def test_clients_that_share_a_login_go_each_their_own_way() -> None:
    near, far = Guarded("stateless"), Guarded("stateless")
    far.base = "http://127.0.0.1:1"
    auth = ClientCredentials("robot", client_secret="s")
    async with near.running() as url, http_server(far.handle) as proxy:
        options = {"auth": auth, "proxy": proxy.removesuffix("/mcp")}
        async with Client(url, auth=auth) as here, Client(Http(f"{far.base}/mcp", **options)) as there:
            assert await here.list_tools()
            assert await there.list_tools()
    assert (len(near.forms), len(far.forms)) == (1, 1)


@pytest.mark.spec("AUTH-02")
@pytest.mark.parametrize("auth", ["a-token", OAuth()])
def test_a_command_is_given_no_token(auth: Any) -> None:
    with pytest.raises(UsageError, match="from its environment") as failure:
        Client(["python", "server.py"], auth=auth)
    assert "a-token" not in str(failure.value)


# --- the transport of the first revision


def make_old(auth: ResourceServer) -> Server:
    server = Server("old", auth=auth)

    @server.tool
    def who(ctx: Context) -> str:
        assert ctx.token_info is not None
        return ctx.token_info.subject

    return server


def kind_of(client: Client) -> str:
    assert client._link is not None
    return client._link.transport.kind


@pytest.mark.spec("AUTH-27")
async def test_a_token_goes_along_on_the_oldest_transport() -> None:
    tokens = StaticTokens({"token-of-ann": TokenInfo("ann")})
    auth = ResourceServer("http://127.0.0.1:9/sse", authorization_servers=["http://127.0.0.1:9"], verifier=tokens)
    with serve(make_old(auth), sse_path="/sse") as live:
        url = f"http://127.0.0.1:{live.port}/sse"
        async with Client(url, auth="token-of-ann") as client:
            assert kind_of(client) == "sse"
            assert (await client.call_tool("who", {})).text == "ann"
        with pytest.raises(AuthorizationFailed, match=r"refused the token that was given .* The token is not valid"):
            async with Client(url, auth="token-of-bob"):
                pass


@pytest.mark.parametrize("guarded", ["the server", "a tool"])
async def test_a_token_that_lacks_a_scope_is_told_which(guarded: str) -> None:
    auth = ResourceServer(
        "http://127.0.0.1:9/mcp",
        authorization_servers=["http://127.0.0.1:9"],
        verifier=StaticTokens({"token-of-ann": TokenInfo("ann")}),
        scopes=["read", "write"] if guarded == "the server" else [],
    )
    server = Server("s", auth=auth)
    server.add_tool(lambda: "", name="burn", scopes=["read", "write"])
    told = (
        r"refused the token that was given \(HTTP 403\): The token does not have the scopes that "
        r"(this server|tools/call 'burn') needs\. Give a token with the scopes: read write\.$"
    )
    with serve(server) as live, pytest.raises(AuthorizationFailed, match=told):
        async with Client(f"http://127.0.0.1:{live.port}/mcp", auth="token-of-ann") as client:
            await client.call_tool("burn", {})


async def test_a_person_logs_in_to_a_server_of_the_oldest_transport() -> None:
    apps: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:  # the address is known once it runs
        if scope["type"] == "http":
            is_ours = scope["path"].startswith(("/sse", "/messages", "/.well-known/oauth-protected-resource"))
            await apps["server" if is_ours else "authorization"](scope, receive, send)

    def log_in(place: str) -> str:
        browser = Browser(place)
        page = browser.send("GET", place.removeprefix(issuer))
        fields = {**hidden_fields(page), "username": "ann", "password": "correct horse", "action": "allow"}
        return browser.post("/authorize", fields).headers["location"]

    with serve(app) as live:
        issuer = f"http://127.0.0.1:{live.port}"
        authorization = AuthorizationServer(
            issuer, resources=[f"{issuer}/sse"], users={"ann": "correct horse"}, registration=True
        )
        auth = ResourceServer(f"{issuer}/sse", authorization_servers=[issuer], verifier=authorization.verifier())
        apps |= {"server": make_old(auth).asgi(sse_path="/sse"), "authorization": authorization.asgi()}
        login = OAuth(redirect=FunctionRedirect(log_in, REDIRECT))
        async with Client(f"{issuer}/sse", auth=login) as client:
            assert kind_of(client) == "sse"
            assert (await client.call_tool("who", {})).text == "ann"


class Slow:
    """Somebody who takes longer to log in than a stream is given to open."""

    def __init__(self, *, gives_up: bool = False) -> None:
        self.token = "none"
        self.gives_up = gives_up

    async def headers(self, url: str, method: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def refused(self, refusal: Any, given: Any, request: Any) -> bool:
        await asyncio.sleep(0.6)
        self.token = "good"
        return not self.gives_up


class OldServer:
    """Takes nothing newer than a GET, and that with a token."""

    def __init__(self) -> None:
        self.posted: list[str] = []
        self.streams: list[Exchange] = []

    async def handle(self, exchange: Exchange) -> None:
        is_good = exchange.headers.get("authorization") == "Bearer good"
        if exchange.path == "/mcp" and exchange.method == "POST":
            await exchange.respond(405)
        elif not is_good:
            await exchange.respond(401)
        elif exchange.method == "GET":
            self.streams.append(exchange)
            await exchange.stream(sse("/post", event="endpoint"))
            await exchange.hang()
        else:
            self.posted.append(exchange.rpc)
            await exchange.respond(202)
            if exchange.rpc == "initialize":
                answer = reply(exchange.message, initialized("2024-11-05"))
                await self.streams[-1].raw(sse(answer, event="message"))


async def test_a_login_may_take_longer_than_the_stream_to_open() -> None:
    server = OldServer()
    limits = ClientLimits(connect_seconds=0.4)
    async with http_server(server.handle) as url, Client(url, auth=Slow(), limits=limits) as client:
        assert client.protocol_version == "2024-11-05"
    assert server.posted == ["initialize", "notifications/initialized"]


async def test_a_stream_that_is_refused_all_the_same() -> None:
    async with http_server(OldServer().handle) as url:
        with pytest.raises(
            AuthorizationFailed, match=r"HTTP status 401 \(empty\): it wants authorization: .* check the token"
        ):
            async with Client(url, auth=Slow(gives_up=True)):
                pass


async def test_a_stream_that_is_refused_with_an_error_of_the_protocol() -> None:
    async def handle(exchange: Exchange) -> None:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no"}}
        await (exchange.respond(403, json.dumps(error).encode()) if exchange.method == "GET" else exchange.respond(405))

    async with http_server(handle) as url:
        with pytest.raises(ConnectionFailed, match=r"HTTP 403; check the token and its scopes"):
            async with Client(url, auth=Slow(gives_up=True)):
                pass


# --- a server in this process


async def test_all_challenges_of_an_app_in_this_process_are_seen() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            offered = [(b"WWW-Authenticate", b'DPoP algs="ES256"'), (b"www-authenticate", b'Bearer scope="read"')]
            await send({"type": "http.response.start", "status": 401, "headers": offered})
            await send({"type": "http.response.body", "body": b""})

    class Hook:
        async def headers(self, url: str, method: str) -> dict[str, str]:
            return {}

        async def refused(self, refusal: Refused, given: Any, request: Any) -> bool:
            seen.extend((one.scheme, one.scopes) for one in read_challenges(refusal.headers))
            return False

    seen: list[Any] = []
    with pytest.raises(AuthorizationFailed):
        await Client(app, auth=Hook()).connect()
    assert seen == [("dpop", None), ("bearer", ("read",))]
