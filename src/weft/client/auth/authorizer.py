"""Add tokens to requests, replace them, and run the steps of a login.

What a transport asks for with every request, and what is done when that does not suffice.

Owns the tokens at hand, one for each server; that one login serves all who wait for it, and that it ends when nobody
waits any more; and how often more is asked for before it is given up (AUTH-44). How a token is come by is the grant's
business, the steps are the driver's.

Does the steps of a flow, one after the other: the only part of a login that touches the world.

Owns the loop and nothing else. Which steps there are, the flows decide; how each is done is known to the fetcher, the
redirect and the storage.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from weft.client.auth import urls
from weft.client.auth.credentials import DpopKey, Nonces, Token
from weft.client.auth.fetching import Fetch, Fetcher, Fetching
from weft.client.auth.grants import Found, Grant, TokenRequest, recall_token
from weft.client.auth.metadata import Challenge, challenges
from weft.client.auth.redirect import Redirect, RedirectListener
from weft.client.auth.steps import (
    CallFunction,
    Claim,
    FetchFailed,
    HttpRequest,
    Keep,
    Listen,
    Load,
    Release,
    Step,
    Steps,
    Visit,
)
from weft.client.auth.storage import Storage
from weft.client.auth.tokens import readable
from weft.errors import AuthorizationFailed, UsageError, WeftError

if TYPE_CHECKING:
    from weft.client.connection.transport import Refused


log = logging.getLogger("weft.client.auth")

_PAUSE_SECONDS = 10.0  # before a replacement that failed is tried again
_MOST_STEP_UPS = 2  # for one operation …
_STEP_UP_SECONDS = 600.0  # … in this time
_FAREWELL = "DELETE"  # nobody is asked to log in to say goodbye


@dataclass(slots=True)
class _Place:
    """One server, and where we stand with it."""

    url: str
    token: Token | None = None
    key: DpopKey | None = None  # of the token, if it is bound to one
    challenge: Challenge = field(default_factory=Challenge)  # the last: it says where the server's metadata is
    nonces: Nonces = field(default_factory=Nonces)
    found: Found = field(default_factory=Found)  # who guards it
    is_recalled: bool = False  # the storage was looked into
    login: asyncio.Task[Token] | None = None  # under way, for all who wait
    is_refresh: bool = False  # it is a refresh
    waiting: int = 0
    failures: int = 0
    failure: AuthorizationFailed | None = None  # the last
    renew_after: float = 0
    step_ups: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    done: deque[list[str]] = field(default_factory=lambda: deque[list[str]](maxlen=1 + _MOST_STEP_UPS))  # last logins

    @property
    def nonce_key(self) -> str:
        return f"resource {self.url}"

    def take(self, token: Token) -> None:
        self.token = token
        self.key = None if token.dpop_key is None else DpopKey.from_pem(token.dpop_key)


class Stamp(dict[str, str]):
    """The headers of one request, and what they were made of. They are shown by name alone."""

    def __init__(self, place: _Place, url: str, method: str) -> None:
        super().__init__()
        self.place = place
        self.method = method
        self.token = token = place.token
        self.failures = place.failures
        if token is None:
            return
        self["Authorization"] = f"{token.kind} {token.access_token}"
        if token.kind == "DPoP" and place.key is not None:
            nonce = place.nonces.get(place.nonce_key)
            self["DPoP"] = place.key.proof(method, url, nonce=nonce, access_token=token.access_token)

    def __repr__(self) -> str:
        return f"Stamp({sorted(self)})"


class Authorizer:
    """Authorization for the requests of any number of clients, to any number of servers.

    A token goes only to the server that it was obtained for (AUTH-32).
    """

    extension: str | None = None  # that a client which uses it declares

    def __init__(self, grant: Grant, world: AuthPorts, clock: Callable[[], float] = time.time) -> None:
        self._grant = grant
        self._world = world
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._ways: dict[tuple[str, str, int | None], Fetcher] = {}  # by the origin of a server

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(urls.shown(url) for url in self._places)})"

    def go_as(self, url: str, *, proxy: str | None, tls: ssl.SSLContext | None, trust_env: bool) -> None:
        """Do the logins for the server at a URL the way that its client goes there, unless a fetcher was given."""
        self._ways[urls.origin(url)] = Fetcher(proxy=proxy, tls=tls, trust_env=trust_env)

    # --- what a transport calls

    async def headers(self, url: str, method: str) -> Mapping[str, str]:
        """The headers of the next request: the token at hand, replaced if it is about to expire."""
        place = self._place(url)
        if not place.is_recalled:
            await self._recall(place)
        token = place.token
        if token is not None and method != _FAREWELL and token.is_due(self._clock()):
            await self._renew(place)
        return Stamp(place, url, method)

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Look at a 401 or a 403; True when it is worth while to try again, because there is another token now.

        `given` is what `headers` returned for it, `request` the message's own headers, which tell one operation from
        another.
        """
        if not isinstance(given, Stamp) or given.method == _FAREWELL:
            return False
        place = given.place
        offered = challenges(refusal.headers)
        is_new = place.nonces.put(place.nonce_key, refusal.headers.get("DPoP-Nonce"))
        if refusal.status == 401 and any(one.error == "use_dpop_nonce" for one in offered):
            return is_new
        challenge = _relevant(offered)
        if refusal.status == 403 and challenge.error != "insufficient_scope":
            return False
        is_lacking = challenge.error == "insufficient_scope"
        if await self._is_enough(place, given, set(challenge.scopes or ()) if is_lacking else set()):
            return True
        place.challenge = challenge
        is_step_up = is_lacking and place.token is not None
        if is_step_up:
            self._count_step_up(place, challenge, request)
        situation = self._situation(place, is_step_up=is_step_up)
        place.done.append(situation.tried)
        await self._wait(place, self._begin(place, self._grant.login(situation)))
        return True

    # --- inside

    def _place(self, url: str) -> _Place:
        place = self._places.get(url)
        if place is None:
            place = self._places[url] = _Place(url)
        return place

    def _world_of(self, place: _Place) -> AuthPorts:
        way = self._ways.get(urls.origin(place.url))
        return self._world if way is None or self._world.fetcher is not None else replace(self._world, fetcher=way)

    def _situation(self, place: _Place, *, is_step_up: bool = False) -> TokenRequest:
        return TokenRequest(place.url, place.challenge, place.token, is_step_up, place.nonces, found=place.found)

    async def _recall(self, place: _Place) -> None:
        token = await run(recall_token(place.url), self._world_of(place), place.url)
        if not place.is_recalled:
            place.is_recalled = True
            if token is not None and place.token is None:
                place.take(token)
                place.done.append([f"the token that was kept, for {readable(token.granted) or 'no scope'}"])

    async def _is_enough(self, place: _Place, given: Stamp, lacking: set[str]) -> bool:
        """Whether somebody else has logged in since, or does now, and asked for what is lacking here as well.

        What was asked for counts, not what the authorization server says that it granted: it may name that otherwise,
        and whether it is enough is for the server to say. A login that fails does so for all who asked at that time; a
        replacement that fails leaves the login to do.
        """
        while True:
            current = place.token
            if current is not None and current is not given.token and lacking <= set(current.scopes):
                return True
            if place.failures != given.failures and place.failure is not None:
                raise _again(place.failure)
            if place.login is None:
                return False
            with suppress(AuthorizationFailed):
                await self._wait(place, place.login)

    async def _renew(self, place: _Place) -> None:
        """Replace the token, once for all. If that fails, the old one is shown: the server decides what then."""
        now = self._clock()
        login = place.login
        if login is None:
            steps = None if now < place.renew_after else self._grant.renewal(self._situation(place))
            if steps is None:
                return
            login = self._begin(place, steps, is_renewal=True)
        try:
            await self._wait(place, login)
        except AuthorizationFailed as failure:
            place.renew_after = now + _PAUSE_SECONDS
            log.debug("The token for %s was not replaced: %s", urls.shown(place.url), failure)

    def _begin(self, place: _Place, steps: Steps[Token], *, is_renewal: bool = False) -> asyncio.Task[Token]:
        """Begin a login, for all who want one until it ends."""
        place.is_refresh = is_renewal and place.token is not None and place.token.refresh_token is not None
        place.login = asyncio.create_task(self._log_in(place, steps, is_renewal=is_renewal))
        place.login.add_done_callback(_heard)
        return place.login

    async def _wait(self, place: _Place, task: asyncio.Task[Token]) -> None:
        """Wait for a login. It ends with the last who waits for it.

        Not so a refresh: its token may be good for once, and whoever does not hear the answer has lost the login.
        """
        place.waiting += 1
        try:
            await asyncio.wait([task])
        finally:
            place.waiting -= 1
            if place.waiting == 0 and not task.done() and not place.is_refresh:
                place.login = None
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise AuthorizationFailed("The login was broken off; try again.", place.done[-1] if place.done else ())
        failure = task.exception()
        if isinstance(failure, AuthorizationFailed):
            raise _again(failure)
        if failure is not None:
            raise failure

    async def _log_in(self, place: _Place, steps: Steps[Token], *, is_renewal: bool) -> Token:
        this = asyncio.current_task()
        try:
            token = await run(steps, self._world_of(place), place.url)
            place.take(token)
        except AuthorizationFailed as failure:
            if not is_renewal:
                place.failures += 1
                place.failure = failure
            raise
        finally:
            if place.login is this:
                place.login = None
        return token

    def _count_step_up(self, place: _Place, challenge: Challenge, request: Mapping[str, str]) -> None:
        """More is asked for a few times only, for one operation (AUTH-44)."""
        demanded = challenge.scopes or ()
        given = {name.lower(): value for name, value in request.items()}
        operation = f"{given.get('mcp-method', '')} {given.get('mcp-name', '')} {' '.join(demanded)}"
        now = self._clock()
        tried = place.step_ups.setdefault(operation, deque(maxlen=_MOST_STEP_UPS))
        token = place.token
        has_all = token is not None and bool(demanded) and not token.lacks(demanded)
        if has_all or (len(tried) == _MOST_STEP_UPS and now - tried[0] < _STEP_UP_SECONDS):
            raise _not_enough(place, demanded)
        tried.append(now)


def _relevant(offered: Sequence[Challenge]) -> Challenge:
    """The challenge to act on: the scheme that we would take up, with what any of them says; a lack of scopes first.

    A server that offers two schemes may say in one of them only where its metadata is, and which scopes it wants.
    """
    params: dict[str, str] = {}
    for one in sorted(offered, key=lambda one: one.error != "insufficient_scope"):
        params = {**one.params, **params}
    return Challenge(offered[0].scheme if offered else "bearer", params)


def _not_enough(place: _Place, demanded: Sequence[str]) -> AuthorizationFailed:
    """More was asked for, and it did not help: the authorization server does not grant it, or the server wants more."""
    token, wanted = place.token, f"the scopes {readable(demanded)}" if demanded else "other scopes"
    if token is not None and token.lacks(demanded):
        why = (
            f"but the authorization server granted only {readable(token.granted) or 'none'}; have this client, or "
            f"whoever logs in, allowed the rest at {urls.shown(token.issuer)}"
        )
    elif demanded:
        why = "and still does after they were granted; ask its operator who may do this"
    else:
        why = "does not say which, and still does after another login; ask its operator who may do this"
    done = [entry for login in place.done for entry in login]
    return AuthorizationFailed(f"{urls.shown(place.url)} wants {wanted} for this, {why}.", done)


def _heard(task: asyncio.Task[Token]) -> None:
    """Nobody may wait any more for a refresh that fails: then there is nobody to be told."""
    if not task.cancelled():
        task.exception()


def _again(failure: AuthorizationFailed) -> AuthorizationFailed:
    """The same failure for another who waited: an exception is raised by one task only."""
    same = AuthorizationFailed(failure.message, failure.tried)
    same.__cause__ = failure.__cause__
    return same


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AuthPorts:
    """What the steps are done with."""

    fetcher: Fetching | None  # None: whichever suits the server
    storage: Storage
    redirect: Redirect | None = None
    # What the storage could not write: a login that somebody has done, or a refresh token that is good for once, is
    # not thrown away for that.
    unkept: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None], repr=False)


async def run(steps: Steps[T], world: AuthPorts, server_url: str) -> T:
    """Run a flow to its end, on behalf of one server. Whatever it opened is closed, however it ends."""
    async with AsyncExitStack() as stack:
        hands = _StepRunner(world, server_url, stack)
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


class _StepRunner:
    """Does single steps; opens what they need when they first need it."""

    def __init__(self, world: AuthPorts, server_url: str, stack: AsyncExitStack) -> None:
        self._world = world
        self._server_url = server_url
        self._stack = stack
        self._fetch: Fetch | None = None
        self._listener: RedirectListener | None = None
        self._claims = AsyncExitStack()
        self._is_warned = False  # of a storage that cannot be written
        stack.push_async_callback(self._release)

    async def do(self, step: Step) -> Any:
        """Do one."""
        match step:
            case HttpRequest():
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
            case CallFunction():
                with _told(f"The function given as `{step.name}` failed"):
                    result = step.function()
                    return await result if inspect.isawaitable(result) else result

    async def _request(self, request: HttpRequest) -> Any:
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
