"""Does the steps of a flow, one after the other: the only part of a login that touches the world.

Owns the loop and nothing else. Which steps there are, the flows decide; how each is done is known to the fetcher, the
redirect and the storage.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weft.client.auth.fetching import Fetch, Fetcher, Fetching
from weft.client.auth.redirect import Listener, Redirect
from weft.client.auth.steps import (
    Call,
    Claim,
    FetchFailed,
    Keep,
    Listen,
    Load,
    Release,
    Request,
    Step,
    Steps,
    Visit,
)
from weft.client.auth.storage import Storage
from weft.errors import AuthorizationFailed, UsageError, WeftError

__all__ = ["World", "run"]

log = logging.getLogger("weft.client.auth")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """What the steps are done with."""

    fetcher: Fetching | None  # None: whichever suits the server
    storage: Storage
    redirect: Redirect | None = None
    # What the storage could not write: a login that somebody has done, or a refresh token that is good for once, is
    # not thrown away for that.
    unkept: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None], repr=False)


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
            result: T = end.value
            return result
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
        self._claims = AsyncExitStack()
        self._is_warned = False  # of a storage that cannot be written
        stack.push_async_callback(self._release)

    async def do(self, step: Step) -> Any:
        """Do one."""
        match step:
            case Request():
                return await self._request(step)
            case Listen():
                return await self._listen(step)
            case Visit():
                return await self._visit(step)
            case Load():
                return await self._load(step.key)
            case Keep():
                return await self._keep(step.key, step.value)
            case Claim():
                return await self._claim(step.key)
            case Release():
                return await self._release()
            case Call():
                with _told(f"The function given as `{step.name}` failed"):
                    result = step.function()
                    return await result if inspect.isawaitable(result) else result

    async def _request(self, request: Request) -> Any:
        if self._fetch is None:
            fetcher = self._world.fetcher or Fetcher()
            self._fetch = await self._stack.enter_async_context(fetcher.open(self._server_url))
        return await self._fetch(request)

    async def _listen(self, step: Listen) -> str:
        redirect = self._world.redirect
        if redirect is None:
            raise AuthorizationFailed("A person has to log in, and there is no way to one; give `redirect=`.")
        self._listener = await self._stack.enter_async_context(redirect.listening(step.known))
        return self._listener.uri

    async def _visit(self, step: Visit) -> str:
        assert self._listener is not None, "a flow listens before it sends somebody away"
        with _told("The login was broken off: the redirect failed"):
            return await self._listener.visit(step.url, step.state)

    async def _load(self, key: str) -> bytes | None:
        storage, unkept = self._world.storage, self._world.unkept
        if key in unkept:
            return unkept[key]
        with _told(f"What is kept of logins cannot be read: {type(storage).__name__} failed"):
            return await storage.get(key)

    async def _keep(self, key: str, value: bytes | None) -> None:
        storage, unkept = self._world.storage, self._world.unkept
        try:
            await storage.put(key, value)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - each storage has its own
            unkept[key] = value
            if not self._is_warned:
                self._is_warned = True
                log.warning(
                    "The login cannot be kept, and is over when this program is: %s failed (%s). Repair it, or give "
                    "another `storage=`.",
                    type(storage).__name__,
                    _named(error),
                )
        else:
            unkept.pop(key, None)

    async def _claim(self, key: str) -> None:
        claimed: Any = getattr(self._world.storage, "claimed", None)  # a storage need not be able to
        if claimed is not None:
            with self._told_of_claims():
                await self._claims.enter_async_context(claimed(key))

    async def _release(self) -> None:
        with self._told_of_claims():
            await self._claims.aclose()

    def _told_of_claims(self) -> AbstractContextManager[None]:
        return _told(f"What is kept of logins cannot be claimed: {type(self._world.storage).__name__} failed")


@contextmanager
def _told(what: str) -> Generator[None]:
    """Make one clear error of whatever the user's own part of a login raises; that stays its cause."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:
        raise AuthorizationFailed(f"{what} ({_named(error)}). Repair it, and try again.") from error


def _named(error: Exception) -> str:
    """What failed, without texts of others: there may be a code or a token in them."""
    if isinstance(error, AuthorizationFailed):
        return error.message.rstrip(".")
    if isinstance(error, OSError) and error.strerror is not None:
        where = "" if error.filename is None else f": {error.filename}"
        return f"{type(error).__name__}: {error.strerror}{where}"
    return type(error).__name__
