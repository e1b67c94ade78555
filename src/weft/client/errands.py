"""Pages that a user has to visit before a request can be served, where the server says so by an error (L11-41).

Owns what follows from such an error: the user is asked about each page once, and the request is made again until the
server does not refuse it for that reason any more. Between two attempts one waits for word that the user is done there
(L11-40), and in any case no longer than a pause, for that word may never come. How an error says it, the era knows; how
a question is put to the user, and how the request is made, the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from weft.client.calls import pause
from weft.client.link import Link
from weft.errors import InvalidAnswer, RemoteError
from weft.limits import ClientLimits

__all__ = ["Errands"]

_COMPLETE = "notifications/elicitation/complete"

_Ask = Callable[[str, str, Any], Awaitable[Any]]
"""Puts a question to the user: its key, its method, its params. Returns the answer."""

_Again = Callable[[], Awaitable[bytes]]
"""Makes the request again."""


class _Complete(msgspec.Struct, rename="camel"):
    elicitation_id: str


class _Errand:
    """What one request waits for."""

    def __init__(self) -> None:
        self.end = 0.0  # when one gives up, unless there is a new page
        self.visited: set[str] = set()  # the pages that the user was asked about, by URL
        self.rounds = 0
        self.news = asyncio.Event()  # the user is done with a page


class Errands:
    """The errands of all requests of one client."""

    def __init__(self, link: Link, limits: ClientLimits, ask: _Ask) -> None:
        self._link = link
        self._limits = limits
        self._ask = ask
        self._waiting: dict[str, _Errand] = {}  # by the ids of pages; those of nobody are ignored (L11-40)

    def heard(self, method: str, params: bytes) -> None:
        """A notification came."""
        if method == _COMPLETE:
            errand = self._waiting.pop(msgspec.json.decode(params, type=_Complete).elicitation_id, None)
            if errand is not None:
                errand.news.set()

    async def run(self, error: RemoteError, again: _Again) -> bytes:
        """Do what the error asks for, and make the request again. Any other error is raised as it is."""
        errand = _Errand()
        attempt = 0
        while True:
            pages = self._pages(error)
            ids = [page["elicitationId"] for page in pages if isinstance(page.get("elicitationId"), str)]
            self._waiting.update(dict.fromkeys(ids, errand))
            try:
                if await self._ask_about(pages, errand, error):
                    attempt = 0
                await self._wait(errand, attempt, error)
            finally:
                for one in ids:
                    self._waiting.pop(one, None)
            try:
                return await again()
            except RemoteError as refused:
                error = refused
                attempt += 1

    def _pages(self, error: RemoteError) -> list[Mapping[str, Any]]:
        """The pages that an error names; where it names none, or nobody can be asked, the error is raised."""
        pages = self._link.era.pages(error.code, error.data)
        elicitation = self._link.capabilities.elicitation
        if not pages or elicitation is None or elicitation.url is None:
            raise error
        if len(pages) > self._limits.input_requests:
            raise InvalidAnswer(f"The server names {len(pages)} pages at once; `input_requests` bounds them.")
        if not all(isinstance(page, dict) for page in pages):
            raise error
        return cast("list[Mapping[str, Any]]", pages)

    async def _ask_about(self, pages: list[Mapping[str, Any]], errand: _Errand, error: RemoteError) -> bool:
        """Ask about the pages that are new, one after the other; whether there were any. A refusal raises the error."""
        new = [page for page in pages if str(page.get("url")) not in errand.visited]
        if new or errand.news.is_set():
            errand.rounds += 1
            if errand.rounds > self._limits.rounds:
                raise InvalidAnswer(
                    f"{self._link.transport.where} named pages to visit {self._limits.rounds} times in a row; raise "
                    "the limit `rounds` if that is as it should be."
                )
        errand.news.clear()
        for page in new:
            errand.visited.add(str(page.get("url")))
            answer = await self._ask("page", "elicitation/create", {"message": error.message, **page, "mode": "url"})
            if answer["action"] != "accept":
                raise error
        if new:
            errand.end = asyncio.get_running_loop().time() + self._limits.ask_seconds
        return bool(new)

    async def _wait(self, errand: _Errand, attempt: int, error: RemoteError) -> None:
        """Wait until the user is done, or it is time to look whether they are; in all, as long as for any question."""
        if asyncio.get_running_loop().time() >= errand.end:
            raise error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause(attempt)):
                await errand.news.wait()
