"""Who sends an HTTP request: the address it comes from, and the principal where somebody has verified that."""

from __future__ import annotations

from weft.errors import UsageError
from weft.server.call import peer_of
from weft.server.context import TokenInfo
from weft.server.transports.asgi import Scope

__all__ = ["TOKEN_INFO", "Caller", "read_caller"]

TOKEN_INFO = "weft.token_info"  # noqa: S105 - a key of the ASGI scope, where an app around ours says who is calling


class Caller:
    """Who is calling."""

    __slots__ = ("address", "token_info")

    def __init__(self, address: str, token_info: TokenInfo | None) -> None:
        self.address = address
        self.token_info = token_info

    @property
    def principal(self) -> str | None:
        """A name to compare, where it is verified."""
        return None if self.token_info is None else self.token_info.principal

    @property
    def peer(self) -> str:
        """Whom limits are counted for."""
        return peer_of(self.address, self.token_info)


def read_caller(scope: Scope) -> Caller:
    """What the ASGI scope says of the caller. `UsageError` where that makes no sense: to go on is to trust all."""
    client = scope.get("client")
    token_info = scope.get(TOKEN_INFO)
    if token_info is not None:
        _check(token_info)
    return Caller(client[0] if client else "", token_info)


def _check(token_info: object) -> None:
    if not isinstance(token_info, TokenInfo):
        found = f"a {type(token_info).__name__}"
    elif not isinstance(token_info.subject, str) or not token_info.subject:  # pyright: ignore[reportUnnecessaryIsInstance] - a struct does not check what it is made of
        found = "a TokenInfo whose subject is no text, or empty"
    else:
        return
    raise UsageError(
        f"scope[{TOKEN_INFO!r}] holds {found}. Put weft.TokenInfo(subject=...) there for a caller that was verified, "
        "and nothing for one that was not."
    )
