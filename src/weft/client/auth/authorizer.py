"""Add tokens to requests, renew tokens before they expire, and log in when a server refuses a request.

This module holds the tokens in use, one for each server. Requests that need a login at the same time share one login.
The login is cancelled when no request waits for it any more. The subclasses in `logins` decide how a token is obtained.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from weft.client.auth.discovery import Challenge, Discovery, read_challenges
from weft.client.auth.ports import AuthPorts, Fetcher, LoginContext
from weft.client.auth.tokens import DpopKey, Nonces, Token, TokenClient, readable, recall_token
from weft.errors import AuthorizationFailed, UsageError
from weft.net.urls import origin_of, shown_url

if TYPE_CHECKING:
    from weft.client.connection.transport import Refused


log = logging.getLogger("weft.client.auth")

_PAUSE_SECONDS = 10.0  # the wait after a failed renewal, before the next attempt
_MOST_STEP_UPS = 2  # maximum number of logins for more scopes, for one operation within _STEP_UP_SECONDS
_STEP_UP_SECONDS = 600.0
_FOUND_SECONDS = 600.0  # how long discovered metadata is cached for renewing tokens
_CLOSING = "DELETE"  # the HTTP method that ends a session; a refused DELETE request starts no login


@dataclass(slots=True)
class ServerState:
    """The token and the login state for one server."""

    challenge: Challenge = field(default_factory=Challenge)  # the last `WWW-Authenticate` challenge
    token: Token | None = None  # the token in use, which may have expired or been refused
    is_step_up: bool = False  # whether the running login is for more scopes than the token has
    url: str = ""
    key: DpopKey | None = None  # the DPoP key that the token is bound to; None if it is not bound
    nonces: Nonces = field(default_factory=Nonces)
    # The cached result of the last discovery. It is used for renewing tokens, so that renewing a short-lived token does
    # not fetch the metadata again. A login always fetches the metadata, because the metadata may have changed.
    found: Discovery | None = None
    found_at: float = 0  # when `found` was set, in Unix seconds
    is_recalled: bool = False  # whether the stored token has been looked up
    login: asyncio.Task[None] | None = None  # the running login, shared by all requests
    is_refresh: bool = False  # whether the running login uses a refresh token
    waiting: int = 0  # number of requests that wait for the running login
    failures: int = 0  # number of failed logins
    failure: AuthorizationFailed | None = None  # the error of the last failed login
    renew_after: float = 0  # the token is not renewed before this time
    # The times of the last logins for more scopes (step-ups), by operation.
    step_ups: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    # The steps of each of the last logins, for error messages.
    done: deque[list[str]] = field(default_factory=lambda: deque[list[str]](maxlen=1 + _MOST_STEP_UPS))

    @property
    def nonce_key(self) -> str:
        """The key in `nonces` for the DPoP nonce of this MCP server."""
        return f"resource {self.url}"

    def take(self, token: Token) -> None:
        """Replace the current token by `token`, and read the DPoP key that `token` is bound to."""
        self.token = token
        self.key = None if token.dpop_key is None else DpopKey.from_pem(token.dpop_key)

    def keep(self, discovery: Discovery | None, now: float = 0) -> None:
        """Cache the result of a discovery; if `discovery` is None, clear the cache."""
        self.found, self.found_at = discovery, now

    def recall(self, now: float) -> Discovery | None:
        """Return the cached result of the last discovery, or None if there is no result or it is too old."""
        return self.found if now - self.found_at < _FOUND_SECONDS else None

    def previous(self, discovery: Discovery) -> Token | None:
        """Return the current token if it has the issuer and the resource of `discovery`; otherwise None."""
        token = self.token
        if token is None or (token.issuer, token.resource) != (discovery.issuer.issuer, discovery.resource):
            return None
        return token


class AuthHeaders(dict[str, str]):
    """The authorization headers of one request, and the token and the server state that they were made from.

    The repr shows only the names of the headers, because their values are secrets.
    """

    def __init__(self, state: ServerState, url: str, method: str) -> None:
        super().__init__()
        self.state = state
        self.method = method
        self.token = token = state.token
        self.failures = state.failures
        if token is None:
            return
        self["Authorization"] = f"{token.kind} {token.access_token}"
        if token.kind == "DPoP" and state.key is not None:
            nonce = state.nonces.get(state.nonce_key)
            self["DPoP"] = state.key.proof(method, url, nonce=nonce, access_token=token.access_token)

    def __repr__(self) -> str:
        return f"AuthHeaders({sorted(self)})"


class Authorizer:
    """Adds tokens to the requests of any number of clients to any number of servers, and logs in when needed.

    A token is sent only to the server that it was obtained for. Subclasses implement how a token is obtained.
    """

    extension: str | None = None  # the MCP extension that a client with this login declares

    def __init__(self, ports: AuthPorts, scopes: Sequence[str], dpop: bool | None) -> None:  # noqa: FBT001 - has three states
        if isinstance(scopes, str):
            raise UsageError(f"scopes= is a list; write scopes={scopes.split()!r}.")
        self._ports = ports
        self.scopes: Sequence[str] = tuple(scopes)  # scopes to request in addition to those that the server demands
        self.dpop = dpop  # whether tokens must be bound to a key; None: only if the server demands it
        self._clock = time.time
        self._servers: dict[str, ServerState] = {}
        self._fetchers: dict[str, Fetcher] = {}  # by origin of the server

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(shown_url, self._servers))})"

    def go_as(self, url: str, *, proxy: str | None, tls: ssl.SSLContext | None, trust_env: bool) -> None:
        """Use the connection settings of a client for logins to the server at `url`.

        The settings are ignored if the program passed its own `fetcher` to this login.
        """
        self._fetchers[origin_of(url)] = Fetcher(proxy=proxy, tls=tls, trust_env=trust_env)

    # --- what a transport calls

    async def headers(self, url: str, method: str) -> Mapping[str, str]:
        """Return the authorization headers for a request to `url`; renew the token first if it is about to expire."""
        state = self._servers.get(url)
        if state is None:
            state = self._servers[url] = ServerState(url=url)
        if not state.is_recalled:
            await self._recall(state)
        token = state.token
        if token is not None and method != _CLOSING and token.is_due(self._clock()):
            await self._renew(state)
        return AuthHeaders(state, url, method)

    async def refused(self, refusal: Refused, given: Mapping[str, str], request: Mapping[str, str]) -> bool:
        """Log in after a 401 or 403 response, if needed; return True if the caller should send the request again.

        Before the caller sends the request again, it has to call `headers`, to get the new token. No login is needed
        if another request has just logged in, or if the server demands only a new DPoP nonce. Raises
        AuthorizationFailed if the login fails.

        `given` are the headers that `headers` returned for the refused request. `request` are the other headers of
        that request, which name its method and its tool: for each of these, the number of logins for more scopes is
        limited.
        """
        if not isinstance(given, AuthHeaders) or given.method == _CLOSING:
            return False
        state = given.state
        offered = read_challenges(refusal.headers)
        is_new = state.nonces.put(state.nonce_key, refusal.headers.get("DPoP-Nonce"))
        if refusal.status == 401 and any(one.error == "use_dpop_nonce" for one in offered):
            return is_new
        challenge = _merge(offered)
        is_lacking = challenge.error == "insufficient_scope"
        if refusal.status == 403 and not is_lacking:
            return False
        if await self._has_logged_in(state, given, set(challenge.scopes or ()) if is_lacking else set()):
            return True
        state.challenge = challenge
        state.is_step_up = is_lacking and state.token is not None
        if state.is_step_up:
            self._count_step_up(state, request)
        state.done.append([])
        await self._wait(state, self._begin(state, state.done[-1]))
        return True

    # --- methods that subclasses implement

    async def login(self, server: ServerState, context: LoginContext) -> Token:
        """Log in, and return the new token; raise AuthorizationFailed if the login fails."""
        raise NotImplementedError

    def can_renew(self, server: ServerState) -> bool:
        """Return whether the token of `server` can be renewed without a login by a person."""
        raise NotImplementedError

    async def renew(self, server: ServerState, context: LoginContext) -> Token:
        """Get and return a new token before the current token expires; raise AuthorizationFailed if that fails."""
        raise NotImplementedError

    # --- methods that subclasses use

    def _select_scopes(self, server: ServerState, discovery: Discovery) -> list[str]:
        """Return the scopes to request: the scopes in the challenge, in the option `scopes`, and of the current token.

        If the challenge and the option name no scopes, the scopes in the server's metadata are requested. The scopes of
        the current token are requested again, so that the new token permits everything that the current token permits.
        """
        demanded = server.challenge.scopes
        if demanded is None:
            listed = discovery.published.scopes_supported if discovery.published is not None else None
            demanded = tuple(self.scopes or listed or ())
        previous = server.previous(discovery)
        before = previous.scopes if previous is not None else []
        return list(dict.fromkeys([*demanded, *self.scopes, *before]))

    def _new_key(self, server: ServerState, discovery: Discovery) -> DpopKey | None:
        """Return a new DPoP key to bind the next token to, or None if the token should not be bound to a key.

        The option `dpop` decides. If it is None, the token is bound if the server demands a bound token and the issuer
        may support DPoP.
        """
        is_bound = self.dpop
        if is_bound is None:
            published = discovery.published
            is_demanded = published is not None and bool(published.dpop_bound_access_tokens_required)
            is_bound = (server.challenge.is_dpop or is_demanded) and discovery.issuer.can_bind_tokens()
        return DpopKey.new() if is_bound else None

    async def _ask(self, client: TokenClient, form: dict[str, str], asked: list[str]) -> Token:
        """Request and return a token. With `dpop=True`, raise AuthorizationFailed if it is not bound to a key."""
        token = await client.ask(form, asked)
        if self.dpop and token.kind != "DPoP":
            raise AuthorizationFailed(
                "The token is not bound to a key, as `dpop=True` requires; leave `dpop` out to accept such tokens."
            )
        return token

    # --- private methods

    def _context(self, state: ServerState, tried: list[str]) -> LoginContext:
        fetcher = self._ports.fetcher or self._fetchers.get(origin_of(state.url))
        return LoginContext(replace(self._ports, fetcher=fetcher), state.url, tried)

    async def _recall(self, state: ServerState) -> None:
        async with self._context(state, []) as context:
            token = await recall_token(context)
        if not state.is_recalled:
            state.is_recalled = True
            if token is not None and state.token is None:
                state.take(token)
                state.done.append([f"the token that was kept, for {readable(token.granted) or 'no scope'}"])

    async def _has_logged_in(self, state: ServerState, given: AuthHeaders, lacking: set[str]) -> bool:
        """Return whether another request has already obtained a new token with all scopes in `lacking`.

        If a login is running, wait for its end first. A requested scope counts even if it was not granted, because the
        authorization server may use other names for the scopes that it grants. If a login has failed since this request
        was sent, raise the error of that login. If only a renewal has failed, return False.
        """
        while True:
            current = state.token
            if current is not None and current is not given.token and lacking <= set(current.scopes):
                return True
            if state.failures != given.failures and state.failure is not None:
                raise _copy(state.failure)
            if state.login is None:
                return False
            with suppress(AuthorizationFailed):
                await self._wait(state, state.login)

    async def _renew(self, state: ServerState) -> None:
        """Renew the token of a server, or wait for the login or renewal that is already running.

        Do nothing if the token cannot be renewed, or if a renewal failed a few seconds ago. If the renewal fails, keep
        the old token, because it may still be valid.
        """
        now = self._clock()
        if state.login is None and (now < state.renew_after or not self.can_renew(state)):
            return
        try:
            await self._wait(state, state.login or self._begin(state, [], is_renewal=True))
        except AuthorizationFailed as failure:
            state.renew_after = now + _PAUSE_SECONDS
            log.debug("The token for %s was not replaced: %s", shown_url(state.url), failure)

    def _begin(self, state: ServerState, tried: list[str], *, is_renewal: bool = False) -> asyncio.Task[None]:
        """Start a login or a renewal in a task, and return the task. All waiting requests share this task.

        The steps of the login are added to `tried`, for error messages.
        """
        state.is_refresh = is_renewal and state.token is not None and state.token.refresh_token is not None
        state.login = asyncio.create_task(self._log_in(state, tried, is_renewal=is_renewal))
        # Read the exception of the task, so that asyncio does not log it when no request waits for the task.
        state.login.add_done_callback(lambda task: task.cancelled() or task.exception())
        return state.login

    async def _wait(self, state: ServerState, task: asyncio.Task[None]) -> None:
        """Wait until the login `task` is done. If all requests that wait for it are cancelled, cancel the login too.

        A refresh is not cancelled: a refresh token may be valid only once, and if the response were lost, the person
        would have to log in again. Raises AuthorizationFailed if the login failed or was cancelled.
        """
        state.waiting += 1
        try:
            await asyncio.wait([task])
        finally:
            state.waiting -= 1
            if state.waiting == 0 and not task.done() and not state.is_refresh:
                state.login = None
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise AuthorizationFailed("The login was cancelled; try again.", state.done[-1] if state.done else ())
        failure = task.exception()
        if isinstance(failure, AuthorizationFailed):
            raise _copy(failure)
        if failure is not None:
            raise failure

    async def _log_in(self, state: ServerState, tried: list[str], *, is_renewal: bool) -> None:
        obtain = self.renew if is_renewal else self.login
        try:
            async with self._context(state, tried) as context:
                state.take(await obtain(state, context))
        except AuthorizationFailed as failure:
            if not is_renewal:
                state.failures += 1
                state.failure = failure
            raise
        finally:
            if state.login is asyncio.current_task():
                state.login = None

    def _count_step_up(self, state: ServerState, request: Mapping[str, str]) -> None:
        """Record a step-up (a login for more scopes) for the operation of a request.

        An operation is a method, a name (for example, of a tool) and the demanded scopes. Raises AuthorizationFailed if
        the token already has the demanded scopes, or if there were too many step-ups for the operation.
        """
        demanded = state.challenge.scopes or ()
        given = {name.lower(): value for name, value in request.items()}
        operation = f"{given.get('mcp-method', '')} {given.get('mcp-name', '')} {' '.join(demanded)}"
        now = self._clock()
        tried = state.step_ups.setdefault(operation, deque(maxlen=_MOST_STEP_UPS))
        token = state.token
        has_all = token is not None and bool(demanded) and not token.lacks(demanded)
        if has_all or (len(tried) == _MOST_STEP_UPS and now - tried[0] < _STEP_UP_SECONDS):
            raise _not_enough(state, demanded)
        tried.append(now)


def _merge(offered: Sequence[Challenge]) -> Challenge:
    """Merge challenges into one challenge, with the scheme of the first and the parameters of all.

    A server that offers two schemes may name its metadata or the scopes in only one challenge. If two challenges have
    the same parameter, the value in the challenge with `insufficient_scope` is used.
    """
    params: dict[str, str] = {}
    for one in sorted(offered, key=lambda one: one.error != "insufficient_scope"):
        params = {**one.params, **params}
    return Challenge(offered[0].scheme if offered else "bearer", params)


def _not_enough(state: ServerState, demanded: Sequence[str]) -> AuthorizationFailed:
    """Return the error to raise if a server still demands more scopes after a login for more scopes."""
    token, wanted = state.token, f"the scopes {readable(demanded)}" if demanded else "other scopes"
    if token is not None and token.lacks(demanded):
        why = (
            f"but the authorization server granted only {readable(token.granted) or 'none'}; allow the other scopes "
            f"for this client or this user at {shown_url(token.issuer)}"
        )
    elif demanded:
        why = "and still does after they were granted; ask its operator who may do this"
    else:
        why = "does not say which, and still does after another login; ask its operator who may do this"
    done = [entry for login in state.done for entry in login]
    return AuthorizationFailed(f"{shown_url(state.url)} wants {wanted} for this, {why}.", done)


def _copy(failure: AuthorizationFailed) -> AuthorizationFailed:
    """Return a copy of an error, so that each waiting request raises its own exception object."""
    same = AuthorizationFailed(failure.message, failure.tried)
    same.__cause__ = failure.__cause__
    return same
