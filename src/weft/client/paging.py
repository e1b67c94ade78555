"""Lists in pages: one of them, or all.

Owns how pages are walked, and where that ends. A list that changes half-way is fetched once more; one that the server
does not declare to have is empty, and not asked for (PRM-10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import convert
from msgspec.structs import fields

from weft.client.exchange import Exchange, Options
from weft.errors import InvalidAnswer, InvalidParams, RemoteError
from weft.limits import ClientLimits
from weft.types.capabilities import ServerCapabilities
from weft.types.prompts import ListPromptsResult
from weft.types.resources import ListResourcesResult, ListResourceTemplatesResult
from weft.types.tools import ListToolsResult

__all__ = ["Page", "Pages"]

Page = TypeVar("Page", ListToolsResult, ListResourcesResult, ListResourceTemplatesResult, ListPromptsResult)


class Pages:
    """The lists of one server."""

    def __init__(self, exchange: Exchange, limits: ClientLimits, offered: Callable[[], ServerCapabilities]) -> None:
        self._exchange = exchange
        self._offered = offered
        self._most = limits.pages

    async def one(self, method: str, type: type[Page], cursor: str | None) -> Page:
        """One page; its `next_cursor` leads to the next."""
        capability = method.partition("/")[0]
        if getattr(self._offered(), capability) is None:
            empty: dict[str, list[Any]] = {one.encode_name: [] for one in fields(type) if one.required}
            return convert(empty, type)
        return await self._exchange.request(method, {} if cursor is None else {"cursor": cursor}, type, Options())

    async def all(self, method: str, type: type[Page], items: Callable[[Page], list[Any]]) -> list[Any]:
        """All items. A cursor that is refused half-way means that the list is another one now (CACHE-14)."""
        try:
            return await self._walk(method, type, items)
        except _CursorRefused:
            if self._exchange.cache is not None:
                await self._exchange.cache.drop(method)
        try:
            return await self._walk(method, type, items)
        except _CursorRefused as refused:
            raise refused.error from None

    async def _walk(self, method: str, type: type[Page], items: Callable[[Page], list[Any]]) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(self._most):
            try:
                page = await self.one(method, type, cursor)
            except RemoteError as error:
                if cursor is not None and error.code == InvalidParams.code:
                    raise _CursorRefused(error) from None
                raise
            found += items(page)
            cursor = page.next_cursor
            if cursor is None:  # any other is one more page, the empty one too (PAG-02)
                return found
        raise InvalidAnswer(f"{method} has more than {self._most} pages; raise the limit `pages`, or go page by page.")


class _CursorRefused(Exception):
    """Inside this module only."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__()
        self.error = error
