"""The words of ASGI, as types."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from typing import Any

__all__ = ["Message", "RawHeaders", "Receive", "Scope", "Send"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
RawHeaders = Sequence[tuple[bytes, bytes]]
