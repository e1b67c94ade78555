"""Logs in to a protected server with an official Python client (1.x or 2.x), and prints what came of it as JSON.

    python mcp_login.py URL

Runs in the virtual environment of `mcp`. The person at the browser is played here: open the page, fill the form in.
"""

import asyncio
import json
import re
import sys
from html import unescape
from http.cookiejar import CookieJar
from importlib.metadata import version
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, build_opener

from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

REDIRECT = "http://127.0.0.1:3998/callback"


class Kept:
    """Remembers what the client has."""

    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


class Stay(HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Person:
    def __init__(self):
        self.logins = 0
        self.answer = {}

    async def open(self, url):
        self.logins += 1
        self.answer = await asyncio.to_thread(self.log_in, url)

    def log_in(self, url):
        browser = build_opener(HTTPCookieProcessor(CookieJar()), Stay())
        page = browser.open(url).read().decode()
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
        fields = {name: unescape(value) for name, value in hidden}
        fields |= {"username": "ann", "password": "correct horse", "action": "allow"}
        try:
            browser.open(url.partition("?")[0], urlencode(fields).encode())
        except HTTPError as redirect:
            return {key: values[0] for key, values in parse_qs(urlsplit(redirect.headers["Location"]).query).items()}
        raise SystemExit("the login was not redirected")

    async def come_back(self):
        if version("mcp").startswith("1."):
            return self.answer["code"], self.answer["state"]
        from mcp.shared.auth import AuthorizationCodeResult

        return AuthorizationCodeResult(**{key: self.answer.get(key) for key in ("code", "state", "iss")})


async def main():
    person = Person()
    metadata = OAuthClientMetadata(
        client_name="interop",
        redirect_uris=[REDIRECT],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(sys.argv[1], metadata, Kept(), person.open, person.come_back)
    async with (
        create_mcp_http_client(auth=auth) as http,
        streamable_http_client(sys.argv[1], http_client=http) as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        who = (await session.call_tool("who", {})).content[0].text
        erase = (await session.call_tool("erase", {})).content[0].text
    print(json.dumps({"tools": tools, "who": who, "erase": erase, "logins": person.logins}))


asyncio.run(main())
