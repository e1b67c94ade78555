"""An authorization server that runs, with clients and a browser at it, and a server that it protects."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.logging_in import REDIRECT, Browser, log_in, pkce
from support.protected import make_protected
from support.tokens import RESOURCE
from support.wire import Live, serve
from weft.authorization import AuthorizationServer, RegisteredClient, hash_password
from weft.server.auth import ResourceServer

SECRET = "a secret of the client"
CLIENTS = [
    RegisteredClient(client_id="public", redirect_uris=(REDIRECT,), client_name="The <client>"),
    RegisteredClient(client_id="private", redirect_uris=(REDIRECT, "https://a.example/cb?x=1")).with_secret(SECRET),
]


class Authorization:
    """A server that runs, and a browser at it."""

    def __init__(self, live: Live, server: AuthorizationServer) -> None:
        self.live = live
        self.server = server
        self.base = server.issuer
        self.browser = Browser(self.base)

    def request(self, challenge: str, **changes: str | None) -> dict[str, str]:
        good = {"response_type": "code", "client_id": "public", "redirect_uri": REDIRECT, "state": "s t&a"}
        whole = {**good, "code_challenge": challenge, "code_challenge_method": "S256", "resource": RESOURCE, **changes}
        return {name: value for name, value in whole.items() if value is not None}

    def token(self, headers: dict[str, str] | None = None, **fields: str | None) -> Any:
        given = {"client_id": "public", **fields}
        return Browser(self.base).post(
            "/token", {name: value for name, value in given.items() if value is not None}, **(headers or {})
        )

    def refresh(self, token: str, headers: dict[str, str] | None = None, **fields: str | None) -> Any:
        return self.token(headers, grant_type="refresh_token", refresh_token=token, **fields)

    def code(self, **changes: str | None) -> tuple[str, str]:
        """A code and its verifier, of a login."""
        verifier, challenge = pkce()
        return log_in(Browser(self.base), **self.request(challenge, **changes))["code"], verifier

    def tokens(self, **changes: str | None) -> dict[str, Any]:
        code, verifier = self.code(**changes)
        answer = self.token(grant_type="authorization_code", code=code, code_verifier=verifier)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def protect(self, **options: Any) -> Any:
        """A server that takes its tokens."""
        auth = ResourceServer(
            RESOURCE,
            authorization_servers=[self.server.issuer],
            **{"verifier": self.server.verifier(), "scopes": ["read"], **options},
        )
        return make_protected(auth)


def error_of(response: Any) -> tuple[int, str]:
    return response.status, json.loads(response.body)["error"]


@contextmanager
def authorize(asgi: Any = None, **options: Any) -> Iterator[Authorization]:
    """Run an authorization server; `asgi` are the options of its app."""
    apps: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # the issuer has the port in it, which comes first
        if scope["type"] == "http":
            scope["client"] = ("127.0.0.1", 1)  # uvicorn believes proxies on this machine: who does is tested here
            await apps[0](scope, receive, send)

    with serve(app) as live:
        good: dict[str, Any] = {
            "resources": [RESOURCE],
            "users": {"ann": "correct horse", "bob": hash_password("battery staple")},
            "scopes": ["read", "write"],
            "clients": CLIENTS,
            "registration": True,
        }
        server = AuthorizationServer(f"http://127.0.0.1:{live.port}", **{**good, **options})
        apps.append(server.asgi(**(asgi or {})))
        yield Authorization(live, server)
