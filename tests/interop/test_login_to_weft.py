"""The other SDKs' clients, and Weft's own, log in to a Weft server with Weft's authorization server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import NODE, listening, node_package, python_of

from support.logging_in import Browser, hidden_fields
from support.ports import find_port
from weft import Client
from weft.auth import OAuth
from weft.client.auth import FunctionRedirect

HERE = Path(__file__).parent
REDIRECT = "http://127.0.0.1:3996/callback"


@pytest.fixture(scope="module", params=["/mcp", "/"], ids=["at a path", "at the root"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server at the root has a URL that clients spell in two ways, with a slash and without."""
    port = find_port()
    with listening([sys.executable, str(HERE / "servers" / "protected.py"), str(port), request.param], port):
        yield f"http://127.0.0.1:{port}{request.param}".rstrip("/")


def python(peer: str) -> list[str]:
    return [str(python_of(peer)), str(HERE / "drivers" / "mcp_login.py")]


DRIVERS = {
    "mcp": lambda: python("mcp"),
    "mcp1": lambda: python("mcp1"),
    "typescript": lambda: [str(NODE), str(HERE / "drivers" / "ts_login.mjs"), str(node_package("client"))],
}


@pytest.mark.parametrize("peer", DRIVERS)
def test_a_peers_client_logs_in_and_comes_back_for_more(peer: str, url: str) -> None:
    done = subprocess.run([*DRIVERS[peer](), url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told == {"tools": ["who"], "who": "ann", "erase": "read write", "logins": 2}


async def test_the_weft_client_logs_in_and_comes_back_for_more(url: str) -> None:
    logins = 0

    async def log_in(place: str) -> str:
        nonlocal logins
        logins += 1
        browser = Browser(place)
        path = place.removeprefix(url.removesuffix("/mcp"))
        fields = {"username": "ann", "password": "correct horse", "action": "allow"}
        return browser.post("/authorize", {**hidden_fields(browser.send("GET", path)), **fields}).headers["location"]

    async with Client(url, auth=OAuth(redirect=FunctionRedirect(log_in, REDIRECT))) as client:
        assert (await client.call_tool("who", {})).text == "ann"
        assert (await client.call_tool("erase", {})).text == "read write"
    assert logins == 2
