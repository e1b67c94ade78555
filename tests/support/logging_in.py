"""A browser in the hands of a test: it keeps cookies, reads forms and follows nothing by itself."""

import base64
import hashlib
import http.client
import re
import secrets
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from support.wire import Response, finish

REDIRECT = "http://127.0.0.1:3000/callback"


def pkce() -> tuple[str, str]:
    """A verifier and its challenge."""
    verifier = secrets.token_urlsafe(32)
    digest = hashlib.sha256(verifier.encode()).digest()
    return verifier, base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Browser:
    """Talks to one host."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.cookies: dict[str, str] = {}

    def send(self, verb: str, path: str, body: str = "", headers: dict[str, str] | None = None) -> Response:
        connection = http.client.HTTPConnection(urlsplit(self.base).netloc, timeout=30)
        cookies = (
            {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())} if self.cookies else {}
        )
        try:
            connection.request(verb, path, body or None, {**cookies, **(headers or {})})
            response = finish(connection.getresponse())
        finally:
            connection.close()
        if "set-cookie" in response.headers:
            name, _, value = response.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return response

    def get(self, path: str, **query: str) -> Response:
        return self.send("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Response:
        return self.send("POST", path, urlencode(fields), {"Content-Type": FORM, **headers})


FORM = "application/x-www-form-urlencoded"


def hidden_fields(page: Response) -> dict[str, str]:
    """The hidden fields of the form on a page."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.body.decode())
    return {name: unescape(value) for name, value in found}


def sent_to(response: Response) -> tuple[str, dict[str, str]]:
    """Where a redirect leads, and what it says."""
    assert response.status == 303, (response.status, response.body)
    place, _, query = response.headers["location"].partition("?")
    return place, dict(parse_qsl(query))


def log_in(browser: Browser, name: str = "ann", password: str = "correct horse", **query: Any) -> dict[str, str]:
    """Go through the page of an authorization request; what the client is told in the end."""
    page = browser.get("/authorize", **query)
    assert page.status == 200, page.body
    fields = {**hidden_fields(page), "username": name, "password": password, "action": "allow"}
    return sent_to(browser.post("/authorize", fields))[1]
