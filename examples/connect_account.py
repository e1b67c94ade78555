"""A tool that needs the user's account at a third party. The MCP client never sees the third party's token.

    pip install starlette
    DRIVE_URL=https://drive.example DRIVE_SECRET=... uvicorn --app-dir examples connect_account:app

The tool sends the user to a page of this server. The link contains a random handle, valid once and for ten minutes,
and no information about the user. The page accepts only the user who called the tool, identified by the login in the
browser: another user cannot use the link. The page then redirects to the third party's own login (OAuth), which
redirects back to `/connected` with a code. This server exchanges the code for a token, which stays in `vault`.
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
DRIVE_SECRET = os.environ.get("DRIVE_SECRET", "")  # the secret of this server there
UNSEEN = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}  # keep links out of caches and Referer headers


# --- replace this with your login: it identifies an MCP client by its token, a browser by its cookie

TOKENS = {"token-of-ann": "ann", "token-of-bob": "bob"}
COOKIES = {"cookie-of-ann": "ann", "cookie-of-bob": "bob"}


class RequireToken:
    """Accepts requests with a known token, and puts the user of the token into the ASGI scope."""

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


# --- data that stays on this server; with several workers, use a shared store


class Handles:
    """Random handles. Each is for one user and one use, and expires."""

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
        """Use up a handle of this user. Return False if it is unknown, expired or another user's."""
        owner, expires = self._open.get(handle, (None, 0.0))
        if user is None or owner != user or expires <= time.monotonic():
            return False
        del self._open[handle]
        return True


links = Handles(seconds=600)
logins = Handles(seconds=600)  # running logins at the third party: OAuth's `state`
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
    if user not in vault:  # the user agreed to visit the page, but has not finished there
        raise ToolError("The drive is not connected yet. Finish on the page, then call this tool again.")
    return await asyncio.to_thread(drive, "/files", token=vault[user])


def drive(path: str, *, token: str | None = None, form: dict[str, str] | None = None) -> Any:
    """Call the third party with the token that it issued itself, never with the token of the MCP client."""
    request = Upstream(DRIVE_URL + path, data=urlencode(form).encode() if form else None)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=10) as response:
        return json.load(response)


# --- the pages for the user's browser


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
    form = {"code": code, "client_secret": DRIVE_SECRET}  # use an OAuth library for this; it also does PKCE
    vault[user] = (await asyncio.to_thread(drive, "/token", form=form))["access_token"]
    return PlainTextResponse("Connected. You can close this page.", 200, UNSEEN)


app = Starlette(
    routes=[
        Route("/mcp", RequireToken(server.asgi()), methods=["POST"]),
        Route("/connect/{handle}", connect),
        Route("/connected", connected),
    ]
)
