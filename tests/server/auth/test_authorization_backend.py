"""An authorization server whose backend is away."""

import logging
from typing import Any

import pytest

from support.backends import YieldingBackend
from support.raw_sessions import AppPeer
from weft.authorization import AuthorizationServer
from weft.errors import BackendUnavailable


async def test_a_backend_that_is_away_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    backend: Any = YieldingBackend()
    backend.store.failure = BackendUnavailable("redis at secret-host is gone")
    server = AuthorizationServer(
        "https://auth.example",
        resources=["https://mcp.example/mcp"],
        users={"ann": "correct horse"},
        registration=True,
        backend=backend,
    )
    peer = AppPeer(server.asgi())
    peer.scope["path"] = "/register"
    client = {"redirect_uris": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": "none"}

    async def register() -> Any:
        return await peer.request("POST", client, {"Host": "auth.example"})

    assert (await register()).status == 201
    backend.store.is_gone = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            refused = await register()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            told = await refused.json()
            assert told["error"] == "temporarily_unavailable"
            assert "secret-host" not in told["error_description"]
    assert caplog.text.count("the backend is not available: redis at secret-host") == 1
    backend.store.is_gone = False
    assert (await register()).status == 201
