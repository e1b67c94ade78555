"""Fetching a JSON document from an authorization server: bounded in time and size, no redirects, no proxies' say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from weft.errors import WeftError

if TYPE_CHECKING:
    from aiohttp import BaseConnector

__all__ = ["FetchFailed", "fetch_json"]

_MOST = 512 * 1024
_CHUNK = 64 * 1024


class FetchFailed(WeftError):
    """A document cannot be had, or is not what it should be. The message names the URL, never what was sent."""


async def fetch_json(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = 5.0,
    public_only: bool = False,
) -> dict[str, Any]:
    """The JSON object at a URL; with `form`, the answer to that form.

    `public_only` is for URLs that somebody else chose: no address of this machine or of a private network is asked.
    """
    import aiohttp  # here, because only who fetches needs it

    sent = {"Accept": "application/json", **(headers or {})}
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        connector = _public_connector(url) if public_only else None
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), connector=connector) as session,
            session.request(
                "GET" if form is None else "POST", url, data=form, headers=sent, allow_redirects=False
            ) as response,
        ):
            if response.status != 200:
                raise FetchFailed(f"{url} answered with status {response.status}.")
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > _MOST:
                    raise FetchFailed(f"{url} answered with more than {_MOST} bytes.")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise FetchFailed(f"{url} cannot be reached ({type(error).__name__}).") from None
    try:
        document = msgspec.json.decode(bytes(body))
    except (msgspec.DecodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchFailed(f"{url} answered with something that is no JSON object.")
    return cast("dict[str, Any]", document)


def _public_connector(url: str) -> BaseConnector:
    from weft.server.auth.public_addresses import public_connector  # which needs aiohttp at once

    return public_connector(url)
