"""Connections to public addresses only: for URLs that somebody else chose, who may mean a machine that only we reach.

The addresses that a name leads to are checked where the connection is made, so that a name cannot lead elsewhere in
between (SSRF by DNS rebinding).
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from aiohttp import TCPConnector, ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from weft.net.hosts import is_public_address


def is_public(address: str) -> bool:
    """Whether an address is one of the internet at large.

    >>> is_public("93.184.216.34"), is_public("10.0.0.1"), is_public("169.254.169.254"), is_public("::ffff:127.0.0.1")
    (True, False, False, False)
    """
    try:
        return is_public_address(address)
    except ValueError:
        return False


class _PublicResolver(AbstractResolver):
    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if not all(is_public(entry["host"]) for entry in found):
            raise OSError(f"{host} leads to an address that is not public")
        return found

    async def close(self) -> None:
        await self._inner.close()


def public_connector(url: str) -> TCPConnector:
    """A connector for one URL. OSError where its host is an address that is not public: those are not resolved."""
    host = urlsplit(url).hostname or ""
    literal = host.replace(".", "").isdigit() or ":" in host
    if literal and not is_public(host):
        raise OSError(f"{host} is not public")
    return TCPConnector(resolver=_PublicResolver(), force_close=True)
