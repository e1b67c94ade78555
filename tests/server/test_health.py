"""What a load balancer asks: `/healthz` and `/readyz`, and who gets an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.raw_sessions import AppPeer
from weft import MemoryBackend, Server
from weft.errors import BackendUnavailable, UsageError
from weft.server.http import health


async def ask(app: Any, path: str, address: Any = "127.0.0.1", *, verb: str = "GET", **headers: str) -> tuple[int, str]:
    peer = AppPeer(app)
    peer.scope = {"path": path, "client": address and (address, 1)}
    fields = {"Host": "10.1.2.3:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    exchange = await peer.request(verb, headers=fields)
    return exchange.status, (await exchange.body()).decode().strip()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.7", "192.168.1.1", "100.64.0.9", "fd00::1", None])
async def test_private_callers_are_answered(address: Any) -> None:
    app = Server("s").asgi()
    assert await ask(app, "/healthz", address) == (200, "ok")
    assert await ask(app, "/readyz", address) == (200, "ok")
    assert (await ask(app, "/readyz", address, verb="HEAD"))[0] == 200


@pytest.mark.security("R13")
async def test_to_everybody_else_there_is_nothing() -> None:
    app = Server("s").asgi()
    elsewhere = await ask(app, "/elsewhere", Host="localhost")
    assert elsewhere[0] == 404
    for path in ("/healthz", "/readyz"):
        for caller in ({"address": "8.8.8.8"}, {"address": "testclient"}):
            assert await ask(app, path, **caller, Host="localhost") == elsewhere
        for proxied in (
            *("X_Forwarded_For", "X_Forwarded_Host", "X_Forwarded_Proto", "Forwarded", "X_Real_IP", "Via"),
            *("CF_Connecting_IP", "True_Client_IP", "X_Envoy_External_Address", "X_Client_IP"),
        ):
            assert await ask(app, path, **{proxied: "8.8.8.8"}, Host="localhost") == elsewhere
        assert await ask(app, path, Origin="http://localhost", Host="localhost") == elsewhere
        assert (await ask(app, path, verb="DELETE", Host="localhost"))[0] == 404


async def test_who_is_answered_is_an_option() -> None:
    assert await ask(Server("s").asgi(health="public"), "/healthz", "8.8.8.8", Forwarded="for=8.8.8.8") == (200, "ok")
    assert (await ask(Server("s").asgi(health="off"), "/healthz", Host="localhost"))[0] == 404
    with pytest.raises(UsageError, match="'private', 'public' or 'off'"):
        Server("s").asgi(health="yes")  # type: ignore[arg-type] - a mistake


async def test_a_server_that_needs_a_token_answers_probes_without_one() -> None:
    from weft.auth import StaticTokens

    assert await ask(Server("s", auth=StaticTokens({"t" * 20: "ann"})).asgi(), "/healthz") == (200, "ok")


async def test_readiness_needs_the_backend_and_liveness_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "weft.health")

    class Gone(MemoryBackend):
        is_gone = False

        async def ping(self) -> None:
            if self.is_gone:
                raise BackendUnavailable("redis at secret-host is gone")

    backend = Gone()
    server = Server("s", backend=backend)
    app = server.asgi()
    assert await ask(app, "/readyz") == (200, "ok")
    assert caplog.text == ""
    for _ in range(2):  # a second outage soon after the first one is logged, too
        caplog.clear()
        backend.is_gone = True
        for _ in range(3):
            assert await ask(app, "/readyz") == (503, "the backend is not available")
        assert await ask(app, "/healthz") == (200, "ok")
        backend.is_gone = False
        for _ in range(3):
            assert await ask(app, "/readyz") == (200, "ok")
        assert caplog.messages == [
            "Not ready: the backend is not available (redis at secret-host is gone).",
            "The backend answers again.",
        ]
    server.engine.draining = True
    assert await ask(app, "/readyz") == (503, "draining")
    await server.stop()


async def test_a_backend_that_is_away_at_the_start_is_the_reason() -> None:
    class Gone(MemoryBackend):
        is_gone = True

        async def start(self) -> None:
            if self.is_gone:
                raise BackendUnavailable("redis at secret-host is gone")

    backend = Gone()
    server = Server("s", backend=backend)
    app = server.asgi()
    assert await ask(app, "/readyz") == (503, "the backend is not available")
    backend.is_gone = False
    assert await ask(app, "/readyz") == (200, "ok")
    await server.stop()


async def test_a_backend_that_does_not_answer_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(MemoryBackend):
        async def ping(self) -> None:
            await asyncio.sleep(60)

    monkeypatch.setattr(health, "BACKEND_SECONDS", 0.01)
    server = Server("s", backend=Silent())
    assert await ask(server.asgi(), "/readyz") == (503, "the backend is not available")
    assert "Not ready: the backend is not available (no answer in time)." in caplog.text
    await server.stop()


@pytest.mark.parametrize(
    ("address", "headers", "why"),
    [
        ("127.0.0.1", {"X_Forwarded_For": "8.8.8.8"}, "through a proxy (it has the header x-forwarded-for)"),
        ("8.8.8.8", {}, "from an address that is not in a private network"),
    ],
)
async def test_the_log_says_how_a_probe_is_answered(
    address: str, headers: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("s").asgi()
    for _ in range(2):
        assert (await ask(app, "/readyz", address, **headers, Host="localhost"))[0] == 404
    (told,) = [record.getMessage() for record in caplog.records if record.name == "weft.health"]
    assert told == (
        f"A request for /readyz was answered with 404, because it came {why}. If it was a probe of yours, start with "
        "--health public (health='public'). This is logged only once."
    )


async def test_readiness_starts_the_server() -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        events.append("start")
        if len(events) == 1:
            raise RuntimeError("not yet")
        yield

    server = Server("s", lifespan=lifespan)
    app = server.asgi()
    assert await ask(app, "/healthz") == (200, "ok")
    assert events == []
    assert await ask(app, "/readyz") == (503, "not started")
    assert await ask(app, "/readyz") == (200, "ok")
    await server.stop()
