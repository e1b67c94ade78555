"""What all ways to a token have in common: where it begins, who is asked, for which scopes, and what is kept.

Owns the interface of a grant and the parts that every grant uses; the grants themselves are in `flow` (a person logs
in) and `grants` (nobody does). Sans-IO: everything that touches the world is a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weft.client.auth import urls
from weft.client.auth.challenge import Challenge
from weft.client.auth.credentials import Token, keep_record, load_record, server_key, token_key
from weft.client.auth.dpop import ALGORITHM, Nonces
from weft.client.auth.metadata import Issuer, Resource, discover_issuer, discover_resource, legacy_issuer
from weft.client.auth.steps import Steps
from weft.errors import AuthorizationFailed

__all__ = [
    "Choose",
    "Found",
    "Grant",
    "Guarded",
    "Situation",
    "find_guard",
    "forget_token",
    "keep_token",
    "newer_token",
    "recall_token",
    "select_scopes",
    "wants_dpop",
]

_MOST_ISSUERS = 5
_FOUND_SECONDS = 600.0  # for which metadata is good, when a token is replaced

Choose = Callable[[list[str], list[str]], list[str]]


@dataclass(slots=True)
class Found:
    """What was found out about who guards a server; for a while it need not be found out again.

    A login always looks: it is begun because something is not as it was. A token that lives for seconds is replaced
    without fetching the same documents each time.
    """

    guarded: Guarded | None = None
    since: float = 0

    def keep(self, guarded: Guarded, now: float) -> None:
        """Remember."""
        self.guarded, self.since = guarded, now

    def recall(self, now: float) -> Guarded | None:
        """Return what was found out not long ago."""
        return self.guarded if now - self.since < _FOUND_SECONDS else None

    def forget(self) -> None:
        """Find out again the next time: something failed that was built on it."""
        self.guarded = None


@dataclass(slots=True)
class Situation:
    """What is known when a token is needed."""

    server_url: str
    challenge: Challenge = field(default_factory=Challenge)
    token: Token | None = None  # the one that does not suffice any more
    is_step_up: bool = False  # it is good, but not for this
    nonces: Nonces = field(default_factory=Nonces)
    tried: list[str] = field(default_factory=list[str])
    found: Found = field(default_factory=Found)

    def previous(self, guarded: Guarded) -> Token | None:
        """The token that we had from the same issuer for the same resource; of others, nothing is taken over."""
        token = self.token
        if token is None or (token.issuer, token.resource) != (guarded.issuer.issuer, guarded.resource):
            return None
        return token


@dataclass(slots=True)
class Guarded:
    """A server, and the authorization server that guards it."""

    resource: str  # exactly as published (AUTH-24)
    issuer: Issuer
    published: Resource | None


class Grant(Protocol):
    """A way to a token."""

    def login(self, situation: Situation) -> Steps[Token]:
        """A token that does what the situation needs; AuthorizationFailed when there is none."""
        ...

    def renewal(self, situation: Situation) -> Steps[Token] | None:
        """How the token is replaced before it expires, where that needs nobody."""
        ...


def find_guard(situation: Situation, choose: Choose) -> Steps[Guarded]:
    """The first usable authorization server of those that guard a server (AUTH-05)."""
    url, tried = situation.server_url, situation.tried
    published = yield from discover_resource(url, situation.challenge, tried)
    if published is None:
        root = urls.base(url)
        choose([root], tried)
        issuer = yield from discover_issuer(root, tried, also=f"{root}/")
        return Guarded(urls.canonical(url), issuer or legacy_issuer(url), None)
    failure: AuthorizationFailed | None = None
    for name in choose(published.authorization_servers, tried)[:_MOST_ISSUERS]:
        try:
            issuer = yield from discover_issuer(name, tried)
        except AuthorizationFailed as error:
            failure = error
            continue
        if issuer is not None:
            return Guarded(published.resource, issuer, published)
    raise failure or AuthorizationFailed(
        f"No authorization server of {urls.shown(url)} publishes its metadata; try again later, or tell its operator.",
        tried,
    )


def select_scopes(situation: Situation, guarded: Guarded, wished: Sequence[str]) -> list[str]:
    """The scopes to ask for: what the challenge demands, else what the server lists, else none (AUTH-13).

    What was asked for before is asked for again, so that nothing is lost (AUTH-12); what the user wishes goes along,
    and replaces the server's list, which is only a guess at what will be needed (AUTH-14).
    """
    demanded = situation.challenge.scopes
    if demanded is None:
        listed = guarded.published.scopes_supported if guarded.published is not None else None
        demanded = tuple(wished or listed or ())
    previous = situation.previous(guarded)
    before = previous.scopes if previous is not None else []
    return list(dict.fromkeys([*demanded, *wished, *before]))


def wants_dpop(setting: bool | None, situation: Situation, guarded: Guarded) -> bool:  # noqa: FBT001 - a tristate
    """Whether the token is to be bound to a key: as the user says, else where the server wants it and it can be."""
    if setting is not None:
        return setting
    listed = guarded.issuer.dpop_signing_alg_values_supported
    demanded = guarded.published is not None and bool(guarded.published.dpop_bound_access_tokens_required)
    return (situation.challenge.is_dpop or demanded) and (listed is None or ALGORITHM in listed)


def keep_token(server_url: str, token: Token) -> Steps[None]:
    """Keep a token, by its issuer and resource, and which one this server takes."""
    yield from keep_record(token_key(token.issuer, token.resource), token)
    yield from keep_record(server_key(server_url), [token.issuer, token.resource])


def forget_token(token: Token) -> Steps[None]:
    """It is worth nothing any more. What another program has kept in its place stays."""
    key = token_key(token.issuer, token.resource)
    kept = yield from load_record(key, Token)
    if kept is not None and kept.refresh_token == token.refresh_token:
        yield from keep_record(key, None)


def newer_token(token: Token) -> Steps[Token | None]:
    """What another program has kept in place of a token since, if it is for the same client and does as much."""
    kept = yield from load_record(token_key(token.issuer, token.resource), Token)
    if kept is None or kept.access_token == token.access_token or kept.obtained_at < token.obtained_at:
        return None
    is_alike = _whose(kept) == _whose(token) and set(token.granted) <= set(kept.scopes)
    return kept if is_alike else None


def _whose(token: Token) -> tuple[str, str, str, str]:
    return token.issuer, token.resource, token.client_id, token.kind


def recall_token(server_url: str) -> Steps[Token | None]:
    """The token that was kept for a server."""
    pair = yield from load_record(server_key(server_url), tuple[str, str])
    if pair is None:
        return None
    token = yield from load_record(token_key(*pair), Token)
    return token if token is not None and (token.issuer, token.resource) == pair else None
