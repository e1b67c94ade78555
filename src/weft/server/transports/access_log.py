"""Write uvicorn's access log, quicker where it is as uvicorn sets it up.

A log record and its formatting take half as long as a short call. uvicorn's own handler makes a line of the request
alone, so where nothing was changed, that line is written without a record. With a filter, another handler or formatter,
colours, or a changed `logging`, the logger is called as uvicorn calls it. In both cases control characters in the
client's address, which may come from a forwarded header, are replaced.
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from weft.protocol.logs import printable

__all__ = ["log_access"]

_PATHS = 16  # remembered, with what cannot stand in a URL quoted: a peer can make them long
_quote = lru_cache(_PATHS)(quote)
_handle, _call_handlers = logging.Logger.handle, logging.Logger.callHandlers  # error trackers put theirs in their place


def log_access(logger: logging.Logger, scope: Any, status: int) -> None:
    """Log one response to a request of uvicorn's."""
    if not logger.isEnabledFor(logging.INFO):
        return
    method, version, path, query = scope["method"], scope["http_version"], _quote(scope["path"]), scope["query_string"]
    if query:
        path = f"{path}?{query.decode('ascii')}"
    peer = scope.get("client")
    client = f"{peer[0]}:{peer[1]}" if peer else ""
    if not client.isprintable():  # uvicorn takes it as it stands in a forwarded header
        client = printable(client, "?")
    handler = _stock_handler(logger)
    if handler is not None:
        line = f'INFO:     {client} - "{method} {path} HTTP/{version}" {_status_text(status)}\n'
        try:
            with handler.lock:
                handler.stream.write(line)
                handler.flush()
        except Exception:  # noqa: BLE001 - told as logging tells of it, below
            handler = None
    if handler is None:
        logger.info('%s - "%s %s HTTP/%s" %d', client, method, path, version, status)


def _stock_handler(logger: logging.Logger) -> Any:
    """The handler of uvicorn's default configuration, if it is the only one and nothing around it was changed."""
    handlers = logger.handlers
    if len(handlers) != 1 or logger.propagate or logger.filters:
        return None
    handler: Any = handlers[0]
    if handler.__class__ is not logging.StreamHandler or handler.filters or handler.level > logging.INFO:
        return None
    formatter: Any = handler.formatter
    kind, format = _stock_formatter()
    if type(formatter) is not kind or formatter.use_colors or formatter._fmt != format:
        return None
    changed = (
        type(logger) is not logging.Logger
        or logging.getLogRecordFactory() is not logging.LogRecord
        or logging.Logger.handle is not _handle
        or logging.Logger.callHandlers is not _call_handlers
        or handler.terminator != "\n"
    )
    return None if changed else handler


@cache
def _stock_formatter() -> tuple[Any, str]:
    """Import late, for another ASGI server may be in use."""
    from uvicorn.config import LOGGING_CONFIG
    from uvicorn.logging import AccessFormatter

    return AccessFormatter, LOGGING_CONFIG["formatters"]["access"]["fmt"]


@cache
def _status_text(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}"
