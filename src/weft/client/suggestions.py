"""Suggestions for an argument that is being typed.

Owns what may be asked (CMP-06), how often, and how much is taken of the answer. Hosts ask at every key, and a server
may have to search for each; so requests keep a pace, and wait where they are more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from weft.client.allowance import Allowance
from weft.client.exchange import Exchange, Options
from weft.client.mistakes import as_texts, check_texts, check_timeout
from weft.errors import RequestTimeout, UsageError
from weft.limits import ClientLimits
from weft.types.prompts import CompleteResult, Completion

__all__ = ["MOST_VALUES", "Suggestions", "completion_params"]

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
