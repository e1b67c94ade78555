"""Answer the two questions of a load balancer: is this process alive (`/healthz`), and may it get requests (`/readyz`).

By default only callers in private networks get an answer. To all others, and to requests that a proxy has passed on,
the paths do not exist. The Host header is not checked, because probes send the address of the machine in it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from weft.errors import BackendUnavailable, UsageError
from weft.net.asgi import Scope
from weft.net.hosts import is_public_address
from weft.protocol.headers import Headers
from weft.server.http.reply import HttpReply
from weft.server.runtime.runtime import Runtime

HealthAudience = Literal["private", "public", "off"]

PATHS = ("/healthz", "/readyz")
BACKEND_SECONDS = 2.0  # how long the backend may take to answer

log = logging.getLogger("weft.health")
_PASSED_ON = frozenset({  # headers that proxies add; others begin with `x-forwarded-`
    b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-envoy-external-address",
    b"cf-connecting-ip", b"true-client-ip", b"fastly-client-ip", b"fly-client-ip",
})  # fmt: skip
_TEXT = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]


class Health:
    """Answers requests for `/healthz` and `/readyz` from the callers that may have an answer."""

    def __init__(self, runtime: Runtime, audience: HealthAudience) -> None:
        if audience not in ("private", "public", "off"):
            raise UsageError(f"health={audience!r} is not possible: choose 'private', 'public' or 'off'.")
        self._runtime = runtime
        self._audience = audience
        self._is_backend_away = False  # whether it was, at the last probe
        self._has_logged_refusal = False

    async def answer(self, scope: Scope, headers: Headers, path: str, reply: HttpReply) -> bool:
        """Answer a GET request and return True. Return False if it is not for this object. `path` is below the mount.

        The status is 200, or 503 with the reason why this process should not get requests.
        """
        if path not in PATHS or self._audience == "off" or b"origin" in headers.known:
            return False
        if self._audience == "private" and (stranger := _find_stranger(scope, headers)) is not None:
            if not self._has_logged_refusal:
                self._has_logged_refusal = True
                log.warning(
                    "A request for %s was answered with 404, because it came %s. If it was a probe of yours, start "
                    "with --health public (health='public'). This is logged only once.",
                    path,
                    stranger,
                )
            return False
        reason = await self._obstacle() if path == "/readyz" else None
        status, text = (200, "ok") if reason is None else (503, reason)
        body = f"{text}\n".encode()
        fields = [*_TEXT, (b"content-length", b"%d" % len(body)), *([(b"retry-after", b"1")] if reason else [])]
        reply.close()
        await reply.send({"type": "http.response.start", "status": status, "headers": fields})
        await reply.send({"type": "http.response.body", "body": body})
        return True

    async def _obstacle(self) -> str | None:
        """Return why this process cannot serve requests, or None if it can. Start the server, if it is not started."""
        runtime = self._runtime
        if runtime.draining:
            return "draining"
        try:
            if not runtime.lifespan.started:
                await runtime.lifespan.start()
        except BackendUnavailable as error:
            return self._backend_is_away(error)
        except Exception as error:  # noqa: BLE001 - the user's lifespan may raise anything
            runtime.lifespan.report(error)
            return "not started"
        try:
            async with asyncio.timeout(BACKEND_SECONDS):
                await runtime.backend.ping()
        except Exception as error:  # noqa: BLE001 - a Backend may raise anything
            return self._backend_is_away(error)
        if self._is_backend_away:
            self._is_backend_away = False
            log.info("The backend answers again.")
        return None

    def _backend_is_away(self, error: Exception) -> str:
        if not self._is_backend_away:  # every outage is logged once
            self._is_backend_away = True
            why = "no answer in time" if isinstance(error, TimeoutError) else str(error).rstrip(".")
            log.warning("Not ready: the backend is not available%s.", f" ({why})" if why else "")
        return "the backend is not available"


def _find_stranger(scope: Scope, headers: Headers) -> str | None:
    """Return None if a request comes directly from this machine or a private network, else where it comes from."""
    client = scope.get("client")
    passed_on = [name for name in headers.known if name in _PASSED_ON or name.startswith(b"x-forwarded-")]
    if passed_on:
        return f"through a proxy (it has the header {passed_on[0].decode('latin-1')})"
    try:
        is_private = client is None or not is_public_address(client[0])  # None: a Unix socket
    except ValueError:  # the ASGI server gives no IP address
        is_private = False
    return None if is_private else "from an address that is not in a private network"
