"""Walk lists page by page, and ask for completions.

Lists in pages: one of them, or all.

Owns how pages are walked, and where that ends. A list that changes half-way is fetched once more; one that the server
does not have by its own declaration is empty, and not asked for (PRM-10).

Suggestions for an argument that is being typed.

Owns what may be asked (CMP-06), how often, and how much is taken of the answer. Hosts ask at every key, and a server
may have to search for each; so requests keep a pace, and wait where they are more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from msgspec import convert
from msgspec.structs import fields

from weft.client.argument_checks import as_texts, check_texts, check_timeout
from weft.client.requests.exchange import Exchange, Options
from weft.eras.base import ServerHello
from weft.errors import InvalidAnswer, InvalidParams, MethodNotFound, RemoteError, RequestTimeout, UsageError
from weft.jsonrpc import values_in
from weft.limits import ClientLimits
from weft.net.rate import Allowance
from weft.types.features import (
    CompleteResult,
    Completion,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)

Page = TypeVar("Page", ListToolsResult, ListResourcesResult, ListResourceTemplatesResult, ListPromptsResult)


def says_none(error: RemoteError, cursor: str | None) -> bool:
    """Return whether the refusal of a page says that there is no such list: many servers declare `resources`, know no
    templates, and answer -32601. In the middle of a list it says nothing of the kind.
    """
    return cursor is None and error.code == MethodNotFound.code


class ListPages:
    """The lists of one server."""

    def __init__(
        self,
        exchange: Exchange,
        limits: ClientLimits,
        facts: Callable[[], ServerHello],
        look_again: Callable[[ServerHello], Awaitable[None]],
    ) -> None:
        self._exchange = exchange
        self._limits = limits
        self._facts = facts
        self._look_again = look_again
        self._changed: set[str] = set()  # lists that the server has told of, so it has them

    async def one(self, method: str, type: type[Page], cursor: str | None) -> Page:
        """Return one page; its `next_cursor` leads to the next. A list that the server does not have is empty."""
        page, _ = await self._one(method, type, cursor)
        return page

    async def _one(self, method: str, type: type[Page], cursor: str | None) -> tuple[Page, bytes]:
        """One page, and what it came in."""
        if await self._is_there(method.partition("/")[0]):
            params = {} if cursor is None else {"cursor": cursor}
            try:
                return await self._exchange.request_page(method, params, type, Options())
            except RemoteError as error:
                if not says_none(error, cursor):
                    raise
        empty: dict[str, list[Any]] = {one.encode_name: [] for one in fields(type) if one.required}
        return convert(empty, type), b""

    def heard(self, notification: str) -> None:
        """The server has said something."""
        kind, _, rest = notification.removeprefix("notifications/").partition("/")
        if rest == "list_changed":
            self._changed.add(kind)

    async def _is_there(self, capability: str) -> bool:
        """Whether the server has such lists. One that had none before may have got them since."""
        facts = self._facts()
        if capability not in self._changed and getattr(facts.capabilities, capability) is None:
            await self._look_again(facts)
        return capability in self._changed or getattr(facts.capabilities, capability) is not None

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
        size = values = 0
        for _ in range(self._limits.pages):
            try:
                page, raw = await self._one(method, type, cursor)
            except RemoteError as error:
                if cursor is not None and error.code == InvalidParams.code:
                    raise _CursorRefused(error) from None
                raise
            if cursor is not None or page.next_cursor is not None:  # one page alone was counted when it came
                size, values = size + len(raw), values + values_in(raw)
                self._check(method, size, values)
            found += items(page)
            cursor = page.next_cursor
            if cursor is None:  # any other is one more page, the empty one too (PAG-02)
                return found
        most = self._limits.pages
        raise InvalidAnswer(f"{method} has more than {most} pages; raise the limit `pages`, or go page by page.")

    def _check(self, method: str, size: int, values: int) -> None:
        """InvalidAnswer when pages are more than one message may be: all of them are kept until the last has come."""
        limits = self._limits
        if size > limits.message_bytes:
            most, limit = f"{limits.message_bytes} bytes", "message_bytes"
        elif values > limits.json_values:
            most, limit = f"{limits.json_values} values", "json_values"
        else:
            return
        raise InvalidAnswer(
            f"The pages of {method} have more than {most} together; raise the limit `{limit}`, or go page by page."
        )


class _CursorRefused(Exception):
    """Inside this module only."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__()
        self.error = error


MOST_VALUES = 100
"""So many values may be in one answer; whatever a server sends beyond them is left out."""


class Suggestions:
    """Asks one server for suggestions."""

    def __init__(self, exchange: Exchange, limits: ClientLimits) -> None:
        self._exchange = exchange
        self._allowance = Allowance(limits.completions_per_second, 1.0)
        self._line = asyncio.Lock()

    async def ask(self, params: Mapping[str, Any], timeout: float | None) -> Completion:
        """The values that the server suggests, in its order."""
        check_timeout(timeout)
        left = await self._turn(timeout)
        result = await self._exchange.request("completion/complete", params, CompleteResult, Options(left))
        found = result.completion
        if len(found.values) > MOST_VALUES:
            return Completion(found.values[:MOST_VALUES], found.total, has_more=True)
        return found

    async def _turn(self, timeout: float | None) -> float | None:
        """Wait for one's turn, first come, first served; what is left of the time for it."""
        try:
            async with asyncio.timeout(timeout) as limit, self._line:
                while seconds := self._allowance.wait():  # noqa: ASYNC110 - how long is known, and nobody sets an event
                    await asyncio.sleep(seconds)
        except TimeoutError:
            raise RequestTimeout(
                f"The turn of this completion/complete did not come within {timeout:g} s: more are asked for than "
                "`completions_per_second` has. Ask when the user pauses, or raise the limit."
            ) from None
        end = limit.when()
        return None if end is None else max(end - asyncio.get_running_loop().time(), 0.0)


def completion_params(
    argument: str, value: str, prompt: str | None, template: str | None, arguments: Mapping[str, str] | None
) -> dict[str, Any]:
    """The params of a request for suggestions; UsageError for what is no question.

    >>> completion_params("city", "Par", "plan", None, None)
    {'ref': {'type': 'ref/prompt', 'name': 'plan'}, 'argument': {'name': 'city', 'value': 'Par'}}
    """
    if (prompt is None) == (template is None):
        raise UsageError("Name what the argument belongs to: give either `prompt` or `template`.")
    owner = f"the prompt {prompt!r}" if prompt is not None else f"the template {template!r}"
    check_texts({argument: value}, owner)
    texts = as_texts(arguments, owner)
    ref = {"type": "ref/prompt", "name": prompt} if prompt is not None else {"type": "ref/resource", "uri": template}
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
    if texts:
        params["context"] = {"arguments": texts}
    return params
