"""Tokens written down beforehand: for development and for machines that have nothing better."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from weft.errors import UsageError
from weft.server.context import TokenInfo
from weft.server.where import caller

__all__ = ["StaticTokens"]

_LEAST = 8
_SENDABLE = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, 2.1
_MAKE_ONE = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'


class StaticTokens:
    """Knows a few tokens by heart, and whose each is.

    >>> StaticTokens({"a-long-random-text": TokenInfo("ann"), "another-one": "bob"})
    <StaticTokens: 2>
    """

    cache_seconds = 0.0  # there is nothing to spare

    def __init__(self, tokens: Mapping[str, TokenInfo | str]) -> None:
        if not tokens:
            raise UsageError(
                f"StaticTokens without a token ({caller()}) refuse every caller: give a dictionary from tokens to "
                "TokenInfo."
            )
        if any(len(token) < _LEAST for token in tokens):
            raise UsageError(
                f"StaticTokens got a token of less than {_LEAST} characters ({caller()}), which is soon guessed. "
                f"{_MAKE_ONE}"
            )
        if not all(_SENDABLE.fullmatch(token) for token in tokens):
            raise UsageError(
                f"StaticTokens got a token that no client can send ({caller()}): one has letters, digits and -._~+/ "
                f"only, no spaces, and = at its end only. {_MAKE_ONE}"
            )
        self._known = [
            (_digest(token), TokenInfo(whose) if isinstance(whose, str) else whose) for token, whose in tokens.items()
        ]

    def __repr__(self) -> str:
        return f"<StaticTokens: {len(self._known)}>"  # never a token

    async def __call__(self, token: str) -> TokenInfo | None:
        """Whose a token is."""
        digest, found = _digest(token), None
        for known, info in self._known:  # all of them, each in constant time: how long it takes tells nothing
            if hmac.compare_digest(known, digest):
                found = info
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
