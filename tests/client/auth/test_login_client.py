"""A client logs in over real sockets, with a listener of its own and a browser that is a function, in both eras."""

import asyncio
import json
import urllib.request
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from support.fakes import DISCOVERED, http_server, initialized
from weft import Client, ClientLimits
from weft.client.auth import ClientCredentials, FileStorage, FunctionRedirect, LoopbackRedirect, OAuth
from weft.client.requests.cache import ResponseCache
from weft.errors import AuthorizationFailed

LIST = {"resultType": "complete", "tools": [], "ttlMs": 60_000, "cacheScope": "private"}


class Guarded:
    """A server and its authorization server, at one origin; it takes the tokens in `good`."""

    def __init__(self, era: str) -> None:
        self.era = era
        self.base = ""
        self.good: set[str] = set()
        self.seen: list[tuple[str, str | None]] = []  # the method and token of each request to the server
        self.forms: list[dict[str, str]] = []
        self.capabilities: list[dict] = []
        self.denies = False
        self.subject = 0
        self.scope: str | None = None  # what it says that it granted

    @asynccontextmanager
    async def running(self):
        async with http_server(self.handle) as url:
            self.base = url.removesuffix("/mcp")
            yield url

    async def handle(self, exchange) -> None:
        path = urlsplit(exchange.path).path
        if path == "/mcp":
            await self.serve(exchange)
        elif path == "/.well-known/oauth-protected-resource/mcp":
            await self.document(exchange, {"resource": f"{self.base}/mcp", "authorization_servers": [self.base]})
        elif path == "/.well-known/oauth-authorization-server":
            ends = {f"{name}_endpoint": f"{self.base}/{name}" for name in ("authorization", "token", "registration")}
            await self.document(
                exchange,
                {
                    "issuer": self.base,
                    **ends,
                    "code_challenge_methods_supported": ["S256"],
                    "authorization_response_iss_parameter_supported": True,
                },
            )
        elif path == "/registration":
            await self.document(exchange, {"client_id": "c"}, 201)
        elif path == "/authorization":
            asked = dict(parse_qsl(urlsplit(exchange.path).query))
            answer = {"error": "access_denied"} if self.denies else {"code": "x"}
            query = urlencode({**answer, "state": asked["state"], "iss": self.base})
            await exchange.respond(302, location=f"{asked['redirect_uri']}?{query}")
        elif path == "/token":
            self.forms.append(dict(parse_qsl(exchange.body.decode())))
            token = f"token-{len(self.forms)}"
            self.good.add(token)
            said = {} if self.scope is None else {"scope": self.scope}
            await self.document(exchange, {"access_token": token, "token_type": "Bearer", "refresh_token": "r", **said})
        else:
            await exchange.respond(404)

    async def document(self, exchange, document, status: int = 200) -> None:
        await exchange.respond(status, json.dumps(document).encode())

    async def serve(self, exchange) -> None:
        token = exchange.headers.get("authorization", "").removeprefix("Bearer ") or None
        self.seen.append((exchange.rpc or exchange.method, token))
        if token not in self.good:
            await exchange.respond(401, **{"WWW-Authenticate": 'Bearer scope="use"'})
        elif exchange.method != "POST":
            await exchange.respond(405)
        elif "id" not in exchange.message:
            await exchange.respond(202)
        elif exchange.rpc == "server/discover" and self.era == "session":
            await exchange.error(400, -32601)
        elif exchange.rpc in ("server/discover", "initialize"):
            params = exchange.message["params"]
            meta = params.get("_meta", {})
            self.capabilities.append(
                params.get("capabilities") or meta.get("io.modelcontextprotocol/clientCapabilities", {})
            )
            await exchange.result(DISCOVERED if self.era == "stateless" else initialized(), **self.session())
        else:
            await exchange.result({**LIST, "tools": [{"name": f"of-{token}", "inputSchema": {"type": "object"}}]})

    def session(self) -> dict[str, str]:
        return {} if self.era == "stateless" else {"Mcp-Session-Id": "s1"}


@pytest.fixture(params=["stateless", "session"])
def guarded(request) -> Guarded:
    return Guarded(request.param)


class Browser:
    """Opens pages as a browser does: follows the redirect to the listener, and shows what it says."""

    def __init__(self, pause: float = 0) -> None:
        self.pages: list[str] = []
        self.pause = pause
        self.loop = asyncio.get_running_loop()
        self.visits: list[asyncio.Task[None]] = []

    def __call__(self, url: str) -> bool:
        """Called in a thread, as the real one is."""
        self.loop.call_soon_threadsafe(lambda: self.visits.append(asyncio.create_task(self.visit(url))))
        return True

    async def visit(self, url: str) -> None:
        await asyncio.sleep(self.pause)
        self.pages.append(await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read().decode()))

    async def shown(self) -> list[str]:
        """The pages, once all of them are loaded."""
        await asyncio.gather(*self.visits)
        return self.pages


def oauth(browser: Browser, **options) -> OAuth:
    return OAuth(redirect=LoopbackRedirect(open_browser=browser), **options)


@pytest.mark.spec("AUTH-01", "AUTH-27", "AUTH-28", "ASD-04")
async def test_a_client_logs_in_and_shows_its_token_with_every_request(guarded):
    async with guarded.running() as url:
        browser = Browser()
        async with Client(url, auth=oauth(browser)) as client:
            assert client.era == guarded.era
            assert [tool.name for tool in await client.list_tools()] == ["of-token-1"]
        (page,) = await browser.shown()
        assert "close this page" in page
    first, *rest = guarded.seen
    assert first == ("server/discover", None)
    assert {token for _, token in rest} == {"token-1"}
    if guarded.era == "session":
        assert {"GET", "DELETE"} <= {method for method, _ in rest}
    assert guarded.forms[0]["resource"] == url


async def test_a_person_may_take_longer_than_any_request(guarded):
    limits = ClientLimits(probe_seconds=0.2, request_seconds=0.3)
    async with guarded.running() as url:
        browser = Browser(pause=0.8)
        async with Client(url, auth=oauth(browser), limits=limits) as client:
            assert await client.list_tools()
            assert client.era == guarded.era
        assert len(await browser.shown()) == 1


async def test_a_refused_login_is_one_clear_error(guarded):
    guarded.denies = True
    async with guarded.running() as url:
        browser = Browser()
        with pytest.raises(AuthorizationFailed, match=r"access_denied.*Tried: .*login at"):
            async with Client(url, auth=oauth(browser)):
                pass
        assert len(await browser.shown()) == 1
        assert guarded.forms == []


@pytest.mark.parametrize("scope", [None, "use", "admin"])
async def test_many_requests_share_one_refresh(guarded, scope):
    guarded.scope = scope  # which may be called otherwise than the server calls it
    async with guarded.running() as url:
        browser = Browser()
        auth = oauth(browser)
        async with Client(url, auth=auth, cache=False) as client:
            place = auth._servers[url]
            place.token.obtained_at -= 60
            guarded.good.clear()  # the token was revoked
            await asyncio.gather(*(client.list_tools() for _ in range(16)))
        assert [form["grant_type"] for form in guarded.forms] == ["authorization_code", "refresh_token"]
        assert len(await browser.shown()) == 1


async def test_a_login_outlives_the_program(guarded, tmp_path):
    async with guarded.running() as url:
        browser = Browser()
        for _ in range(2):
            async with Client(url, auth=oauth(browser, storage=FileStorage(tmp_path / "tokens.json"))) as client:
                await client.list_tools()
        assert len(await browser.shown()) == 1
        assert len(guarded.forms) == 1


async def test_a_login_that_cannot_be_kept_serves_this_program(guarded, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    async with guarded.running() as url:
        browser = Browser()
        auth = oauth(browser, storage=FileStorage(tmp_path / "file" / "tokens.json"))
        async with Client(url, auth=auth) as client:
            auth._servers[url].token.obtained_at -= 60
            guarded.good.clear()  # the token was revoked
            assert await client.list_tools()
        assert [form["grant_type"] for form in guarded.forms] == ["authorization_code", "refresh_token"]
        assert len(await browser.shown()) == 1
    assert "The login cannot be stored, and will be lost when this program ends: FileStorage failed" in caplog.text


async def test_a_redirect_function_that_fails_is_one_clear_error(guarded):
    def fail(url):
        raise ZeroDivisionError

    async with guarded.running() as url:
        auth = OAuth(redirect=FunctionRedirect(fail, "http://127.0.0.1:3000/callback"))
        with pytest.raises(AuthorizationFailed, match=r"the redirect failed \(ZeroDivisionError\)") as failure:
            async with Client(url, auth=auth):
                pass
        assert isinstance(failure.value.__cause__, ZeroDivisionError)


async def test_a_token_as_text(guarded):
    guarded.good.add("mine")
    async with guarded.running() as url:
        async with Client(url, auth="mine") as client:
            await client.list_tools()
        assert {token for _, token in guarded.seen} == {"mine"}
        with pytest.raises(AuthorizationFailed, match="refused the token that was given") as failure:
            async with Client(url, auth="other-secret"):
                pass
        assert "other-secret" not in str(failure.value)


@pytest.mark.spec("XAUTH-01", "XAUTH-02")
async def test_a_machine_declares_the_extension_it_uses(guarded):
    async with guarded.running() as url:
        async with Client(url, auth=ClientCredentials("robot", client_secret="s")) as client:
            await client.list_tools()
        assert guarded.forms[0]["grant_type"] == "client_credentials"
        assert "io.modelcontextprotocol/oauth-client-credentials" in guarded.capabilities[-1]["extensions"]


async def test_private_answers_are_kept_apart_by_who_asked():
    guarded = Guarded("stateless")
    guarded.good |= {"ann", "bob"}
    cache = ResponseCache()
    async with guarded.running() as url:
        for name in ("ann", "bob", "ann"):
            async with Client(url, auth=name, cache=cache) as client:
                assert [tool.name for tool in await client.list_tools()] == [f"of-{name}"]
    assert [token for method, token in guarded.seen if method == "tools/list"] == ["ann", "bob"]
