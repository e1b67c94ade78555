"""Name the types of ASGI, and the refusal of a request by HTTP itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import Any

from weft.errors import InvalidRequest, WeftError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
RawHeaders = Sequence[tuple[bytes, bytes]]

TOKEN_INFO = "weft.token_info"  # noqa: S105 - a key of the ASGI scope, where an app around ours says who is calling


class Refusal(WeftError):
    """A request refused by HTTP itself, before it is a message."""

    def __init__(self, status: int, message: str, *, code: int = InvalidRequest.code, headers: RawHeaders = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers
