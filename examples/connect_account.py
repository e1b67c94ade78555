"""A tool that needs the user's account with a third party, and never lets the client near its token.

    pip install starlette
    DRIVE_URL=https://drive.example DRIVE_SECRET=... uvicorn --app-dir examples connect_account:app

The tool sends the user to a page of this very server. The link holds a handle that nobody can guess, good once and
for ten minutes, and says nothing of anybody. The page lets in only the user who set the tool off, by the login of the
browser it is opened in: a link that was passed on is good for nothing. From there the third party's own login (OAuth)
leads back to `/connected` with a code, which is exchanged for a token that stays in `vault`.
"""

import asyncio
import json
import os
import secrets
import time
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request as Upstream
from urllib.request import urlopen

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from weft import Context, Server, ToolError
from weft.auth import TokenInfo

PUBLIC_URL = os.environ.get("PUBLIC_URL", "http://127.0.0.1:8000")  # where browsers find this server
DRIVE_URL = os.environ.get("DRIVE_URL", "https://drive.example")  # the third party
DRIVE_SECRET = os.environ.get("DRIVE_SECRET", "")  # what this server is known by there
UNSEEN = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}  # a link is told to nobody


# --- stands for your login: who sends a request, an MCP client by its token, a browser by its cookie

TOKENS = {"token-of-ann": "ann", "token-of-bob": "bob"}
COOKIES = {"cookie-of-ann": "ann", "cookie-of-bob": "bob"}


class RequireToken:
    """Lets in the MCP clients that are known, and tells the server whose they are."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scheme, _, token = Request(scope).headers.get("authorization", "").partition(" ")
        user = TOKENS.get(token) if scheme.lower() == "bearer" else None
        if user is None:
            refusal = PlainTextResponse("Log in first.", 401, {"WWW-Authenticate": "Bearer"})
            return await refusal(scope, receive, send)
        return await self.app({**scope, "weft.token_info": TokenInfo(subject=user)}, receive, send)


def browser_user(request: Request) -> str | None:
    return COOKIES.get(request.cookies.get("login", ""))


# --- what is kept, on this side only; with several workers, in a store that they share


class Handles:
    """Names that nobody can guess, each for one user, for one use, for a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._open: dict[str, tuple[str, float]] = {}

    async def issue(self, user: str) -> str:
        now = time.monotonic()
        self._open = {handle: of for handle, of in self._open.items() if of[1] > now}
        handle = secrets.token_urlsafe(32)
        self._open[handle] = (user, now + self.seconds)
        return handle

    def redeem(self, handle: str, user: str | None) -> bool:
        """Whether it was this user's, and was not used. Somebody else's is like an unknown one, and stays good."""
        owner, expires = self._open.get(handle, (None, 0.0))
        if user is None or owner != user or expires <= time.monotonic():
            return False
        del self._open[handle]
        return True


links = Handles(seconds=600)
logins = Handles(seconds=600)  # under way at the third party: OAuth's `state`
vault: dict[str, str] = {}  # the third party's tokens, by user


# --- the tool

server = Server("drive", version="1.0")


@server.tool
async def list_files(ctx: Context) -> list[str]:
    """List the files in the user's drive."""
    if ctx.token_info is None:
        raise ToolError("This tool is for users who are logged in; serve it over HTTP, behind RequireToken.")
    user = ctx.token_info.subject
    if user not in vault:
        handle = await ctx.once("link", links.issue, user)  # the same link in every round
        visit = await ctx.elicit_url("Connect your drive.", f"{PUBLIC_URL}/connect/{handle}")
        if not visit.accepted:
            raise ToolError("Without a connected drive there is nothing to list.")
    if user not in vault:  # agreed to visit the page, which is not yet to be done with it
        raise ToolError("The drive is not connected yet. Finish on the page, then call this tool again.")
    return await asyncio.to_thread(drive, "/files", token=vault[user])


def drive(path: str, *, token: str | None = None, form: dict[str, str] | None = None) -> Any:
    """Ask the third party. It gets the token that it gave out itself, and never the one of the MCP client."""
    request = Upstream(DRIVE_URL + path, data=urlencode(form).encode() if form else None)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=10) as response:
        return json.load(response)


# --- the pages, for the user's browser


async def connect(request: Request) -> Response:
    user = browser_user(request)
    if user is None or not links.redeem(request.path_params["handle"], user):
        return PlainTextResponse("Log in as the user who was asked. A link works once.", 403, UNSEEN)
    query = {"state": await logins.issue(user), "redirect_uri": f"{PUBLIC_URL}/connected", "response_type": "code"}
    return RedirectResponse(f"{DRIVE_URL}/authorize?{urlencode(query)}", 303, UNSEEN)


async def connected(request: Request) -> Response:
    user, code = browser_user(request), request.query_params.get("code")
    if user is None or not logins.redeem(request.query_params.get("state", ""), user):
        return PlainTextResponse("This login is not yours, or was finished before. Call the tool again.", 403, UNSEEN)
    if not code:
        return PlainTextResponse("Nothing was connected.", 200, UNSEEN)
    form = {"code": code, "client_secret": DRIVE_SECRET}  # an OAuth library of yours does this, and PKCE besides
    vault[user] = (await asyncio.to_thread(drive, "/token", form=form))["access_token"]
    return PlainTextResponse("Connected. You can close this page.", 200, UNSEEN)


app = Starlette(
    routes=[
        Route("/mcp", RequireToken(server.asgi()), methods=["POST"]),
        Route("/connect/{handle}", connect),
        Route("/connected", connected),
    ]
)
