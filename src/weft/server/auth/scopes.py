"""Refuse a call whose token lacks a scope.

A tool, resource or prompt names its scopes with `scopes=`. The caller who lacks one receives all scopes that the
operation takes, in one challenge. Where no request carries a token, on stdio and in memory, every scope is granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from weft.errors import InvalidRequest
from weft.server.auth.challenge import challenge
from weft.server.http.reply import HttpReply

if TYPE_CHECKING:
    from weft.server.calls.call import Call


class InsufficientScope(InvalidRequest):
    """The caller's token is valid, but lacks a scope."""

    status = 403


def require_scopes(call: Call, scopes: Iterable[str]) -> None:
    """Refuse a call whose token lacks one of these scopes, with a challenge that names all that the call takes."""
    needed = tuple(scopes)
    if call.headers is None:  # On stdio and in memory every scope is granted.
        return
    if not needed or (call.token_info is not None and call.token_info.scopes.issuperset(needed)):
        return
    auth = call.server.auth
    whole = dict.fromkeys((*(() if auth is None else auth.scopes), *needed))
    text = "The token does not have the scopes that this takes."
    if call.token_info is None:
        text = "This takes a token that has scopes, and there is none with the request."
    reply = call.reply
    if isinstance(reply, HttpReply):  # an answer within a batch, or on a shared stream, has no headers of its own
        metadata_url = None if auth is None else reply.metadata_url or auth.metadata_url
        bound = call.token_info is not None and "cnf" in call.token_info.claims
        value = challenge(
            "DPoP" if bound else "Bearer",
            error="insufficient_scope",
            error_description=text,
            scope=" ".join(whole),
            resource_metadata=metadata_url,
        )
        reply.extra = [*reply.extra, (b"www-authenticate", value)]
    raise InsufficientScope(f"{text} Needed: {', '.join(whole)}.")
