"""Scopes: what a caller may use, decided before anything runs.

A tool, resource or prompt says with `scopes=` what it takes. Who lacks a scope is told all that the operation takes, in
one challenge (AUTH-40, AUTH-41), and does not find it in lists. Where no request carries a token, on stdio and in
memory, the process's own user is served, who may everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from weft.errors import InvalidRequest, UsageError
from weft.server.features.pages import Encoded, Pages
from weft.types.base import CacheScope, Result
from weft.types.lifecycle import PaginatedParams

if TYPE_CHECKING:
    from weft.server.calls.call import Call


class _Listed(Protocol):
    scopes: tuple[str, ...]
    needs: tuple[str, ...]
    hide: bool


T = TypeVar("T", bound=_Listed)

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, 3.3
_NONE: frozenset[str] = frozenset()


class InsufficientScope(InvalidRequest):
    """The caller's token is good, but not for this."""

    status = 403


def check_scopes(scopes: Sequence[str], where: str) -> tuple[str, ...]:
    """The scopes of an option, each once; UsageError where one is none."""
    if isinstance(scopes, str):
        raise UsageError(f"{where} has scopes={scopes!r}; scopes come as a list: scopes={scopes.split()!r}.")
    for scope in cast("Sequence[object]", scopes):  # callers may be untyped
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise UsageError(f"{where} has scopes=[{scope!r}], which is no scope: it has no blanks or quotes in it.")
        if scope == "offline_access":  # AUTH-39
            raise UsageError(
                f"{where} has the scope 'offline_access', which no operation takes: it is between a client and its "
                "authorization server. Leave it out."
            )
    return tuple(dict.fromkeys(scopes))


def granted_to(call: Call) -> frozenset[str] | None:
    """The scopes of a call's token; None where calls have no tokens at all, and everything is allowed."""
    if call.headers is None:
        return None
    return _NONE if call.token_info is None else call.token_info.scopes


def usable(call: Call, items: Iterable[T]) -> list[T]:
    """What of these the caller may use, and may be told of."""
    granted = granted_to(call)
    return [
        item
        for item in items
        if (granted is None or granted.issuperset(item.scopes))
        and not (item.hide and any(not call.client_supports(need) for need in item.needs))
    ]


class Audience:
    """What the lists of one registry differ by: the scopes that anything in it takes, and the needs that hide it."""

    __slots__ = ("hiding", "scopes")

    def __init__(self) -> None:
        self.scopes: frozenset[str] = _NONE
        self.hiding: frozenset[str] = _NONE

    def add(self, item: _Listed) -> None:
        """Heed what this takes from now on."""
        self.scopes |= frozenset(item.scopes)
        if item.hide:
            self.hiding |= frozenset(item.needs)

    def scope(self, otherwise: CacheScope) -> CacheScope:
        """Who may share a list that a client keeps: nobody, where callers get different ones (CACHE-16)."""
        return "private" if self.scopes or self.hiding else otherwise

    def page(self, call: Call, pages: Pages[T], build: Callable[[list[T], str | None], Result]) -> Encoded:
        """One page of a list, with what the caller may use and its client can."""
        cursor = cast("PaginatedParams", call.envelope.params).cursor
        version = call.envelope.revision.version
        granted = granted_to(call) if self.scopes else None
        if granted is None and not self.hiding:
            return pages.page(cursor, build, call.seal, version)
        # What else a token is good for, or a client declares, makes no difference to the list.
        useful = None if granted is None else granted & self.scopes
        lacking = frozenset(need for need in self.hiding if not call.client_supports(need))

        def sees(item: T) -> bool:
            return (useful is None or useful.issuperset(item.scopes)) and not (
                item.hide and not lacking.isdisjoint(item.needs)
            )

        return pages.page(cursor, build, call.seal, version, view=(useful, lacking), sees=sees)


def require_scopes(call: Call, scopes: Iterable[str]) -> None:
    """Refuse a call whose token has not all of these scopes, with a challenge that names all that the call takes."""
    needed = tuple(scopes)
    granted = granted_to(call)
    if granted is None or granted.issuperset(needed):
        return
    auth = call.services.auth
    whole = dict.fromkeys((*(() if auth is None else auth.scopes), *needed))
    text = "The token does not have the scopes that this takes."
    if call.token_info is None:
        text = "This takes a token that has scopes, and there is none with the request."
    bound = call.token_info is not None and "cnf" in call.token_info.claims
    call.reply.challenge(
        "DPoP" if bound else "Bearer",
        {
            "error": "insufficient_scope",
            "error_description": text,
            "scope": " ".join(whole),
            "resource_metadata": None if auth is None else auth.metadata_url,
        },
    )
    raise InsufficientScope(f"{text} Needed: {', '.join(whole)}.")
