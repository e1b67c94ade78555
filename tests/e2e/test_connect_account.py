"""The example that sends the user to a page: who gets in, how often, and where the third party's token never is."""

import importlib.util
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from support import CLIENT_CAPABILITIES_KEY, Live, Response, encode, headers_for, message, serve

EXAMPLE = Path(__file__).parents[2] / "examples" / "connect_account.py"
UPSTREAM_TOKEN = "UPSTREAM-d41d8cd98f"
SECRET = "SECRET-OF-THE-SERVER"
CAN = {CLIENT_CAPABILITIES_KEY: {"elicitation": {"url": {}}}}
WRONG_USER = 403


class Drive:
    """The third party: gives a token for a code, and files for the token. Remembers all that it was sent."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.app = Starlette(routes=[Route("/token", self.token, methods=["POST"]), Route("/files", self.files)])

    async def token(self, request: Request) -> JSONResponse:
        await self._note(request)
        sent = parse_qs((await request.body()).decode())
        right = sent == {"code": ["the-code"], "client_secret": [SECRET]}
        return JSONResponse({"access_token": UPSTREAM_TOKEN}, 200 if right else 400)

    async def files(self, request: Request) -> JSONResponse:
        await self._note(request)
        right = request.headers.get("authorization") == f"Bearer {UPSTREAM_TOKEN}"
        return JSONResponse(["notes.txt"], 200 if right else 401)

    async def _note(self, request: Request) -> None:
        self.seen.append(f"{request.url} {request.headers.raw!r} {await request.body()!r}")


class World:
    """The example, served, beside its third party; and everything that left it, for a test to search."""

    def __init__(self, example: ModuleType, live: Live, drive: Drive) -> None:
        self.example = example
        self.live = live
        self.drive = drive
        self.told: list[str] = []  # every answer, to clients and browsers

    def call(self, user: str | None = "ann", retry: dict[str, Any] | None = None) -> Response:
        """The tool, called by the MCP client of a user."""
        request = message("tools/call", {"name": "list_files", **(retry or {})}, meta=CAN)
        login = [] if user is None else [("Authorization", f"Bearer token-of-{user}")]
        return self._keep(self.live.send(encode(request), [*headers_for(request), *login]))

    def open(self, url: str, user: str | None = "ann") -> Response:
        """A page, opened in the browser of a user."""
        assert url.startswith(self.example.PUBLIC_URL)
        login = [] if user is None else [("Cookie", f"login=cookie-of-{user}")]
        return self._keep(self.live.send(b"", login, verb="GET", path=url.removeprefix(self.example.PUBLIC_URL)))

    def asked(self, user: str = "ann") -> tuple[str, dict[str, Any]]:
        """The link that a user is asked to visit, and what goes with the answer."""
        result = self.call(user).result
        assert result["resultType"] == "input_required"
        ((key, question),) = result["inputRequests"].items()
        return question["params"]["url"], {
            "inputResponses": {key: {"action": "accept"}},
            "requestState": result["requestState"],
        }

    def back(self, response: Response, **changes: str) -> str:
        """Where the third party sends the browser after its login."""
        assert response.status == 303
        target = urlsplit(response.headers["location"])
        assert f"{target.scheme}://{target.netloc}{target.path}" == f"{self.example.DRIVE_URL}/authorize"
        query = {name: value for name, (value,) in parse_qs(target.query).items()}
        sent = {"code": "the-code", "state": query["state"], **changes}
        return f"{query['redirect_uri']}?code={sent['code']}&state={sent['state']}"

    def _keep(self, response: Response) -> Response:
        self.told.append(f"{response.status} {response.headers} {response.body.decode()}")
        return response


@pytest.fixture
def world() -> Iterator[World]:
    spec = importlib.util.spec_from_file_location("connect_account", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    drive = Drive()
    with serve(drive.app) as third_party, serve(example.app) as live:
        example.DRIVE_URL, example.DRIVE_SECRET = f"http://127.0.0.1:{third_party.port}", SECRET
        example.PUBLIC_URL = f"http://127.0.0.1:{live.port}"
        yield World(example, live, drive)
        assert live.faults == third_party.faults == []


def test_the_whole_way(world: World) -> None:
    url, retry = world.asked()
    too_early = world.call("ann", retry).result
    assert too_early["isError"]
    assert "Finish on the page" in too_early["content"][0]["text"]
    assert world.open(world.back(world.open(url))).status == 200
    assert world.call("ann", retry).result["structuredContent"] == ["notes.txt"]
    assert world.call("ann").result["structuredContent"] == ["notes.txt"]
    assert world.call("bob").result["resultType"] == "input_required"  # connected is who connected


def test_a_user_who_will_not_go_there(world: World) -> None:
    _, retry = world.asked()
    retry["inputResponses"] = {key: {"action": "decline"} for key in retry["inputResponses"]}
    assert world.call("ann", retry).result["isError"]
    assert world.drive.seen == []


@pytest.mark.spec("ELI-27")
@pytest.mark.parametrize("visitor", ["bob", None])
def test_a_link_opened_by_somebody_else_is_refused_and_still_good_for_its_user(
    world: World, visitor: str | None
) -> None:
    url, _ = world.asked("ann")
    assert world.open(url, visitor).status == WRONG_USER
    assert world.open(url, "ann").status == 303


@pytest.mark.spec("ELI-27")
@pytest.mark.parametrize("visitor", ["bob", None])
def test_a_login_finished_by_somebody_else_connects_nobody(world: World, visitor: str | None) -> None:
    back = world.back(world.open(world.asked("ann")[0]))
    assert world.open(back, visitor).status == WRONG_USER
    assert world.example.vault == {}
    assert world.drive.seen == []  # nor was the code used


@pytest.mark.spec("ELI-27")
def test_a_link_is_good_once(world: World) -> None:
    url, _ = world.asked()
    back = world.back(world.open(url))
    assert world.open(url).status == WRONG_USER
    assert world.open(back).status == 200
    assert world.open(back).status == WRONG_USER


def _last_changed(url: str) -> str:
    return url[:-2] + ("A" if url[-2] != "A" else "B") + url[-1]


@pytest.mark.spec("ELI-27")
@pytest.mark.parametrize(
    "tamper",
    [
        _last_changed,
        lambda url: url[:-1],
        lambda url: url + "A",
        lambda url: url.rpartition("/")[0] + "/ann",
        lambda url: url.rpartition("/")[0] + "/%2e%2e",
    ],
    ids=["changed", "shorter", "longer", "a name", "a way out"],
)
def test_a_tampered_link_is_refused(world: World, tamper: Callable[[str], str]) -> None:
    url, _ = world.asked()
    assert world.open(tamper(url)).status == WRONG_USER
    assert world.open(url).status == 303  # the right one was not harmed


@pytest.mark.spec("ELI-27")
def test_a_link_of_one_user_is_no_link_of_another(world: World) -> None:
    """Bob has a link of his own, and tries to have Ann's login put into his account with it."""
    anns, bobs = world.asked("ann")[0], world.asked("bob")[0]
    assert world.open(bobs, "ann").status == WRONG_USER
    state = parse_qs(urlsplit(world.open(bobs, "bob").headers["location"]).query)["state"][0]
    assert world.open(world.back(world.open(anns, "ann"), state=state), "ann").status == WRONG_USER
    assert world.example.vault == {}


@pytest.mark.spec("ELI-27")
def test_an_old_link_is_refused(world: World) -> None:
    world.example.links.seconds = 0
    assert world.open(world.asked()[0]).status == WRONG_USER
    world.example.links.seconds = 600
    world.example.logins.seconds = 0
    assert world.open(world.back(world.open(world.asked()[0]))).status == WRONG_USER
    assert world.example.vault == {}


@pytest.mark.spec("ELI-19")
def test_a_link_says_nothing_and_lets_nobody_in(world: World) -> None:
    url, retry = world.asked("ann")
    parts = urlsplit(url)
    assert (parts.query, parts.fragment, parts.username) == ("", "", None)
    handle = parts.path.removeprefix("/connect/")
    assert handle.replace("-", "").replace("_", "").isalnum()
    assert len(handle) >= 43  # 256 bits
    assert "ann" not in url.lower().replace(handle.lower(), "")
    assert world.asked("ann")[0] != url  # made for the call, not from the user
    stranger = world.open(url, None)
    assert stranger.status == WRONG_USER
    assert "set-cookie" not in stranger.headers
    assert "ann" not in stranger.body.decode()
    assert world.call("ann", retry).result["isError"]  # agreeing to go there connects nothing


@pytest.mark.spec("ELI-17")
def test_the_page_is_not_the_login_of_this_server(world: World) -> None:
    refused = world.call(None)
    assert refused.status == 401
    assert b"/connect/" not in refused.body  # a caller who is not logged in is not sent there to become so
    url, _ = world.asked("ann")
    done = [world.open(url), world.open(world.back(world.open(world.asked("ann")[0])))]
    assert all("set-cookie" not in response.headers for response in done)
    assert world.call(None).status == 401


@pytest.mark.spec("ELI-18")
def test_the_third_partys_token_is_nowhere_and_the_clients_own_is_not_sent_there(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, retry = world.asked("ann")
    world.open(world.back(world.open(url)))
    assert world.call("ann", retry).result["structuredContent"] == ["notes.txt"]
    assert world.example.vault == {"ann": UPSTREAM_TOKEN}
    wire = "\n".join(world.told)
    logged = "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records)
    for secret in (UPSTREAM_TOKEN, SECRET):
        assert secret not in wire
        assert secret not in logged
    upstream = "\n".join(world.drive.seen)
    assert UPSTREAM_TOKEN in upstream  # so it is there that the search would find one
    assert "token-of-ann" not in upstream
    assert "cookie-of-ann" not in upstream
