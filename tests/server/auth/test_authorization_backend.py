"""An authorization server whose backend is away, or is shared with other processes."""

import logging
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from support.backends import YieldingBackend
from support.raw_sessions import AppPeer
from support.tokens import ec_key
from weft import MemoryBackend
from weft.authorization import AuthorizationServer
from weft.backends import set_default
from weft.errors import BackendUnavailable, StartError


class SharedBackend(MemoryBackend):
    """A backend that looks as if other processes could use it."""

    is_local = False


@pytest.mark.mistake("an authorization server of several processes without a key")
@pytest.mark.parametrize("is_default", [False, True])
def test_processes_that_share_a_backend_need_a_key(*, is_default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"resources": ["https://mcp.example/mcp"], "users": {"ann": "correct horse"}}
    if is_default:
        monkeypatch.setattr("weft.backends._default", None)
        set_default(SharedBackend())
    else:
        options["backend"] = SharedBackend()
    with pytest.raises(StartError) as raised:
        AuthorizationServer("https://auth.example", **options)
    assert str(raised.value) == (
        "This authorization server shares a backend with other processes, so all of them need the same key to sign "
        "tokens: AuthorizationServer(key=...), a private key in PEM. Make a key with: openssl ecparam -name prime256v1 "
        "-genkey -noout"
    )
    key = ec_key("server").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    AuthorizationServer("https://auth.example", key=key, **options)
    AuthorizationServer("https://auth.example", **options | {"backend": MemoryBackend()})  # only this process uses it


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
