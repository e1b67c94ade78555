"""Define the types of ASGI, and the exception for HTTP requests that are refused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import Any

from weft.errors import InvalidRequest, WeftError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
RawHeaders = Sequence[tuple[bytes, bytes]]

TOKEN_INFO = "weft.token_info"  # noqa: S105 - key of the ASGI scope in which an outer app can put the caller's TokenInfo


class Refusal(WeftError):
    """The error for an HTTP request that is refused before its body is decoded.

    `status` is the HTTP status of the response, and `headers` are additional response headers. `code` is the JSON-RPC
    error code.
    """

    def __init__(self, status: int, message: str, *, code: int = InvalidRequest.code, headers: RawHeaders = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers
