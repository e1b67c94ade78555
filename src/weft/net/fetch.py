"""Fetching JSON documents of authorization servers and clients: bounded in time and size, no redirects, no proxies.

And for how long one may be used again, by the headers that it came with (RFC 9111).
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from weft.errors import WeftError

_MOST = 512 * 1024
_CHUNK = 64 * 1024
_SECONDS = 5.0
_NO_REUSE = ("no-store", "no-cache", "private")


class FetchFailed(WeftError):
    """A document cannot be had, or is not what it should be. The message names the URL, never what was sent."""


async def fetch_json(
    url: str, *, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object at a URL; with `form`, the answer to that form."""
    document, _ = await fetch_document(url, form=form, headers=headers)
    return document


async def fetch_document(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    public_only: bool = False,
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The same, with the headers that it came with (looked up in any case).

    `public_only` is for URLs that somebody else chose: no address of this machine or of a private network is asked.
    """
    import aiohttp  # here, because only who fetches needs it

    sent = {"Accept": "application/json", **(headers or {})}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    connector = None
    try:
        if public_only:
            from weft.net.resolver import public_connector  # which needs aiohttp at once

            connector = public_connector(url)
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
    return cast("dict[str, Any]", document), response.headers


def fresh_seconds(headers: Mapping[str, str], *, default: float, most: float) -> float:
    """How long an answer may be used without asking again; `default` where it does not say.

    >>> fresh_seconds({"Cache-Control": "public, max-age=60", "Age": "20"}, default=300, most=3600)
    40.0
    """
    parts = (part.partition("=") for part in headers.get("Cache-Control", "").lower().split(","))
    said = {name.strip(): value.strip(' "') for name, _, value in parts}
    if any(word in said for word in _NO_REUSE):
        return 0.0
    try:
        if "max-age" in said or "s-maxage" in said:
            fresh: float = int(said.get("s-maxage", said.get("max-age", ""))) - int(headers.get("Age", "0"))
        elif "Expires" in headers:
            expires, date = (parsedate_to_datetime(headers[name]) for name in ("Expires", "Date"))
            fresh = (expires - date).total_seconds()
        else:
            fresh = default
    except (KeyError, TypeError, ValueError):  # what cannot be read is stale (RFC 9111, 4.2.1)
        return 0.0
    return float(max(0, min(fresh, most)))
