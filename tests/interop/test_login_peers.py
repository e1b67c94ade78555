"""The Weft client logs in to the other SDKs' servers, with the authorization servers that these come with."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from processes import listening, python_of

from support.ports import find_port
from weft import AuthorizationFailed, Client
from weft.auth import OAuth
from weft.client.auth import FunctionRedirect

SERVERS = Path(__file__).parent / "servers"
REDIRECT = "http://127.0.0.1:3999/callback"
PEERS = {"mcp": "guarded_mcp.py", "mcp1": "guarded_mcp.py", "fastmcp": "guarded_fastmcp.py"}


@pytest.fixture(params=PEERS, scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[str]:
    port = find_port()
    with listening([str(python_of(request.param)), str(SERVERS / PEERS[request.param]), str(port)], port):
        yield f"http://127.0.0.1:{port}/mcp"


class Person:
    """Follows the redirects of the authorization server, which asks nobody anything."""

    def __init__(self) -> None:
        self.logins = 0

    async def __call__(self, url: str) -> str:
        self.logins += 1
        async with aiohttp.ClientSession() as session:
            while not url.startswith(REDIRECT):
                async with session.get(url, allow_redirects=False) as reply:
                    url = reply.headers["Location"]
        return url


async def test_a_login_and_a_refresh(guarded: str):
    person = Person()
    auth = OAuth(redirect=FunctionRedirect(person, REDIRECT))
    async with Client(guarded, auth=auth) as client:
        assert (await client.call_tool("add", {"a": 2, "b": 3})).text == "5"
        token = auth._servers[guarded].token
        token.expires_at = 0  # as if an hour had passed
        assert (await client.call_tool("add", {"a": 2, "b": 4})).text == "6"
        assert auth._servers[guarded].token.access_token != token.access_token
    assert person.logins == 1


async def test_a_person_who_comes_back_with_another_state_is_not_logged_in(guarded: str):
    person = Person()

    async def confused(url: str) -> str:
        return (await person(url)).replace("state=", "state=x")

    with pytest.raises(AuthorizationFailed, match="another login"):
        async with Client(guarded, auth=OAuth(redirect=FunctionRedirect(confused, REDIRECT))):
            pass
