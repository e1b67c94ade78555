"""Does the steps of a flow, one after the other: the only part of a login that touches the world.

Owns the loop and nothing else. Which steps there are, the flows decide; how each is done is known to the fetcher, the
redirect and the storage.
"""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.client.auth.fetching import Fetch, Fetcher, Fetching
from weft.client.auth.redirect import Listener, Redirect
from weft.client.auth.steps import Call, FetchFailed, Keep, Listen, Load, Request, Step, Steps, Visit
from weft.client.auth.storage import Storage
from weft.errors import AuthorizationFailed

__all__ = ["World", "run"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """What the steps are done with."""

    fetcher: Fetching | None  # None: whichever suits the server
    storage: Storage
    redirect: Redirect | None = None


async def run(steps: Steps[T], world: World, server_url: str) -> T:
    """Run a flow to its end, on behalf of one server. Whatever it opened is closed, however it ends."""
    async with AsyncExitStack() as stack:
        hands = _Hands(world, server_url, stack)
        outcome: Any = None
        failure: FetchFailed | None = None
        try:
            while True:
                step = steps.send(outcome) if failure is None else steps.throw(failure)
                outcome, failure = None, None
                try:
                    outcome = await hands.do(step)
                except FetchFailed as failed:
                    failure = failed
        except StopIteration as end:
            return end.value
        finally:
            steps.close()


class _Hands:
    """Does single steps; opens what they need when they first need it."""

    def __init__(self, world: World, server_url: str, stack: AsyncExitStack) -> None:
        self._world = world
        self._server_url = server_url
        self._stack = stack
        self._fetch: Fetch | None = None
        self._listener: Listener | None = None

    async def do(self, step: Step) -> Any:
        """Do one."""
        match step:
            case Request():
                return await self._request(step)
            case Listen():
                return await self._listen(step)
            case Visit():
                assert self._listener is not None, "a flow listens before it sends somebody away"
                return await self._listener.visit(step.url, step.state)
            case Load():
                return await self._world.storage.get(step.key)
            case Keep():
                return await self._world.storage.put(step.key, step.value)
            case Call():
                result = step.function()
                return await result if inspect.isawaitable(result) else result

    async def _request(self, request: Request) -> Any:
        if self._fetch is None:
            fetcher = self._world.fetcher or Fetcher()
            self._fetch = await self._stack.enter_async_context(fetcher.open(self._server_url))
        assert self._fetch is not None
        return await self._fetch(request)

    async def _listen(self, step: Listen) -> str:
        redirect = self._world.redirect
        if redirect is None:
            raise AuthorizationFailed("A person has to log in, and there is no way to one; give `redirect=`.")
        self._listener = await self._stack.enter_async_context(redirect.listening(step.known))
        return self._listener.uri
