"""Exchanges with a server that wants to know who sends them: the token goes along, and a refusal is looked at.

Owns the hook for authorization, and how often a request is tried again. How a token is come by is known to whoever
implements the hook (`weft.client.auth`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from weft.client.transports.base import Refused
from weft.client.transports.http_failures import place
from weft.client.transports.http_wire import HttpReply, Wire
from weft.errors import ConnectionFailed, InvalidAnswer

__all__ = ["Auth", "AuthorizedWire", "read_refusal"]

_MOST_AUTHORIZATIONS = 3
_REFUSAL_BYTES = 1024 * 1024  # of a refusal's body are read


class Auth(Protocol):
    """Authorization: what goes along with a request, and what is done when that does not suffice."""

    async def headers(self, url: str, method: str) -> Mapping[str, str]:
        """The headers of the next request."""
        ...

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Look at a 401 or a 403; True when it is worth while to try again.

        `given` is what `headers` returned for this request, `request` are its other headers.
        """
        ...


class AuthorizedWire:
    """Another wire, with authorization. `hold` stops the clocks while somebody logs in.

    Tokens are those of the URL that is asked for, unless they are those of another `server`.
    """

    def __init__(
        self,
        wire: Wire,
        auth: Auth,
        seconds: float,
        hold: Callable[[], AbstractContextManager[Any]],
        server: str | None = None,
    ) -> None:
        self._wire = wire
        self._auth = auth
        self._seconds = seconds  # for the body of a refusal
        self._hold = hold
        self._server = server

    async def open(self) -> None:
        """Make ready."""
        await self._wire.open()

    def renew(self) -> None:
        """Take other connections from now on."""
        self._wire.renew()

    async def close(self) -> None:
        """Free everything."""
        await self._wire.close()

    async def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpReply:
        """Send a request, again where a login was worth while; Refused where it was not."""
        auth, whose = self._auth, self._server or url
        attempt = 0
        while True:
            given = await auth.headers(whose, method)
            reply = await self._wire.exchange(method, url, {**headers, **given}, body)
            if reply.status not in (401, 403) or attempt == _MOST_AUTHORIZATIONS:
                return reply
            attempt += 1
            refusal = await read_refusal(reply, place(url), self._seconds)
            with self._hold():
                if not await auth.refused(refusal, given, headers):
                    raise refusal


async def read_refusal(reply: HttpReply, where: str, seconds: float) -> Refused:
    """A refusal with its body, as far as anybody will want to read it; it decides what the refusal means.

    Nothing more is read of the reply, also where somebody gives up meanwhile.
    """
    try:
        async with asyncio.timeout(seconds):
            body = await reply.body(_REFUSAL_BYTES)
    except (ConnectionFailed, InvalidAnswer, TimeoutError):
        body = b""
    finally:
        reply.done()
    return Refused(where, reply.status, reply.headers, body)
