"""A world for logins without I/O: a server, an authorization server, a browser and a disk, all of them dictionaries.

`World.run` runs a grant with these as its ports, and writes down what was asked. A test changes what it is
about (`documents`, `answers`, `came_back`) and reads the record. For authorizers there are a `Person`, and `go`: a
request that is refused.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from weft.client.auth import ClientCredentials, EnterpriseManaged, FunctionRedirect, OAuth, WorkloadIdentity
from weft.client.auth.ports import AuthPorts, LoginContext
from weft.net.fetch import HttpAnswer, HttpRequest

SERVER = "https://mcp.example/mcp"
ISSUER = "https://auth.example"
PRM = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
PRM_ROOT = "https://mcp.example/.well-known/oauth-protected-resource"
AS = "https://auth.example/.well-known/oauth-authorization-server"
REDIRECT = "http://127.0.0.1:5555/callback"
TOKEN = f"{ISSUER}/token"
NOW = 1_800_000_000.0


def json_response(document: Any, status: int = 200, **headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, named, json.dumps(document).encode())


def prm(**changes: Any) -> dict[str, Any]:
    return {"resource": SERVER, "authorization_servers": [ISSUER], **changes}


def metadata(issuer: str = ISSUER, **changes: Any) -> dict[str, Any]:
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        **changes,
    }


class World:
    def __init__(self) -> None:
        self.documents: dict[str, Any] = {PRM: prm(), AS: metadata()}  # by URL; an int is a status, an error is thrown
        self.answers: dict[str, Any] = {}  # of POSTs, by URL: a Response or a function of the request
        self.came_back: Callable[[dict[str, str]], dict[str, str]] = self.log_in
        self.requests: list[HttpRequest] = []
        self.visits: list[dict[str, str]] = []
        self.kept: dict[str, bytes] = {}
        self.known: list[Any] = []  # what was offered as redirect URIs
        self.redirect_uri = REDIRECT
        self.issuer = ISSUER
        self.granted = 0

    # --- the ports of a login

    def run(self, function: Any, *args: Any, server: str = SERVER) -> Any:
        """What comes of an async function that is given these and a context: nothing here ever waits."""

        async def go() -> Any:
            async with LoginContext(AuthPorts(self, self, self), server) as context:
                return await function(*args, context)

        try:
            go().send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")

    async def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    async def put(self, key: str, value: bytes | None) -> None:
        self.kept.pop(key, None)
        if value is not None:
            self.kept[key] = value

    @asynccontextmanager
    async def listening(self, known: Any) -> Any:
        self.known.append(list(known))
        yield self

    @property
    def uri(self) -> str:
        return self.redirect_uri

    async def visit(self, url: str, state: str) -> str:
        asked = dict(parse_qsl(urlsplit(url).query))
        self.visits.append(asked)
        assert asked["state"] == state
        return f"{self.redirect_uri}?{urlencode(self.came_back(asked))}"

    def respond(self, request: HttpRequest) -> HttpAnswer:
        self.requests.append(request)
        if request.method == "GET":
            found = self.documents.get(request.url, 404)
        else:
            found = self.answers.get(request.url) or self.default(request)
        if callable(found):
            found = found(request)
        if isinstance(found, Exception):
            raise found
        if isinstance(found, int):
            return HttpAnswer(found)
        return found if isinstance(found, HttpAnswer) else json_response(found)

    def default(self, request: HttpRequest) -> Any:
        if request.url.endswith("/register"):
            return json_response({"client_id": f"client-at-{urlsplit(request.url).hostname}"}, 201)
        if request.url.endswith("/token"):
            self.granted += 1
            return {"access_token": f"access-{self.granted}", "token_type": "Bearer", "expires_in": 3600}
        return 404

    def log_in(self, asked: dict[str, str]) -> dict[str, str]:
        """The person agrees."""
        return {"code": "the-code", "state": asked["state"], "iss": self.issuer}

    # --- reading the record

    @property
    def fetched(self) -> list[str]:
        return [request.url for request in self.requests if request.method == "GET"]

    @property
    def posted(self) -> list[str]:
        return [request.url for request in self.requests if request.method == "POST"]

    def forms(self, url: str = f"{ISSUER}/token") -> list[dict[str, str]]:
        bodies = [request.body.decode() for request in self.requests if request.method == "POST" and request.url == url]
        return [{name: values[0] for name, values in parse_qs(body).items()} for body in bodies]

    def registered(self, url: str = f"{ISSUER}/register") -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.requests if request.url == url]

    @asynccontextmanager
    async def open(self, server_url: str) -> Any:
        async def fetch(request: HttpRequest) -> HttpAnswer:
            return self.respond(request)

        yield fetch


def at(clock: Any, made: Any) -> Any:
    made._clock = clock
    return made


def CodeFlow(registration, *, clock=time.time, **options):
    made = at(clock, OAuth(**options))
    made._registration = registration
    return made


def ClientCredentialsFlow(client_id, client_secret=None, *, key=None, clock=time.time, **options):
    return at(clock, ClientCredentials(client_id, client_secret=client_secret, private_key=key, **options))


def WorkloadFlow(client_id, *, assertion, clock=time.time):
    return at(clock, WorkloadIdentity(client_id, assertion))


def EnterpriseFlow(client_id, client_secret, *, provider, clock=time.time):
    return at(clock, EnterpriseManaged(client_id, provider, client_secret=client_secret))


def refusal(status: int = 401, challenge: str = "Bearer", **headers: str):
    return SimpleNamespace(status=status, headers={"WWW-Authenticate": challenge, **headers})


class Person:
    """Logs in when told to; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.denies = False
        self.issuer = ISSUER

    async def __call__(self, url: str) -> str:
        asked = dict(parse_qsl(urlsplit(url).query))
        self.asked.append(asked)
        await self.may_go_on.wait()
        answer = {"error": "access_denied"} if self.denies else {"code": "c"}
        return f"{REDIRECT}?{urlencode({**answer, 'state': asked['state'], 'iss': self.issuer})}"


def oauth(world: World, person: Person, storage=None, now: list[float] | None = None) -> OAuth:
    made = OAuth(redirect=FunctionRedirect(person, REDIRECT), fetcher=world, storage=storage)
    if now is not None:
        made._clock = lambda: now[0]
    return made


async def go(auth, status: int = 401, challenge: str = "Bearer", url: str = SERVER, **request: str) -> bool:
    """One request that is refused."""
    given = await auth.headers(url, "POST")
    return await auth.refused(refusal(status, challenge), given, request)
