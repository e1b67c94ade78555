"""uvicorn's access log, as we write it: byte for byte uvicorn's, and by its logger where something was changed.

One thing differs: a client's address is what a forwarded header says, where uvicorn believes it, and is made printable.
"""

from __future__ import annotations

import io
import logging
import logging.config
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NoReturn

import pytest
from uvicorn.config import LOGGING_CONFIG
from uvicorn.logging import AccessFormatter
from uvicorn.protocols.utils import get_client_addr, get_path_with_query_string

from weft.server.http.uvicorn_protocol import log_access

SCOPES: list[dict[str, Any]] = [
    {"path": "/mcp", "query_string": b"", "client": ("127.0.0.1", 5000)},
    {"path": "/a b/é%\n", "query_string": b"x=1&y=%20", "client": ("::1", 1), "http_version": "1.0"},
    {"path": "/", "query_string": b"", "client": None, "method": "DELETE"},
]


class Log:
    """uvicorn's access logger as its default configuration makes it, writing into memory."""

    def __init__(self) -> None:
        config = deepcopy(LOGGING_CONFIG)
        config["formatters"]["access"]["use_colors"] = False  # as where the output is no terminal
        logging.config.dictConfig(config)
        self.logger = logging.getLogger("uvicorn.access")
        self.handler: Any = self.logger.handlers[0]
        self.stream = io.StringIO()
        self.handler.setStream(self.stream)

    def written(self) -> str:
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def scope_of(fields: dict[str, Any]) -> Any:
    return {"method": "POST", "http_version": "1.1", **fields}


def as_uvicorn(log: Log, scope: Any, status: int) -> str:
    """What uvicorn's own call writes."""
    line = (get_client_addr(scope), scope["method"], get_path_with_query_string(scope), scope["http_version"], status)
    log.logger.info('%s - "%s %s HTTP/%s" %d', *line)
    return log.written()


def no_record(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a record was made")


@pytest.mark.parametrize("status", [200, 202, 404, 503])
@pytest.mark.parametrize("fields", SCOPES)
def test_the_line_is_uvicorns(fields: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()  # pytest has put its own handlers there by now
    scope = scope_of(fields)
    expected = as_uvicorn(log, scope, status)
    monkeypatch.setattr(log.logger, "makeRecord", no_record)  # it is written without one
    log_access(log.logger, scope, status)
    assert expected.startswith("INFO:     ")
    assert log.written() == expected


@pytest.mark.parametrize("is_stock", [True, False])
def test_an_address_that_is_none_does_not_forge_lines(is_stock: bool) -> None:
    log = Log()  # pytest has put its own handlers there by now
    if not is_stock:
        log.handler.addFilter(lambda _: True)
    peer = ("1.2.3.4\x85INFO:     \x9b31mforged", 0)
    log_access(log.logger, scope_of({**SCOPES[0], "client": peer}), 200)
    assert log.written() == 'INFO:     1.2.3.4?INFO:     ?31mforged:0 - "POST /mcp HTTP/1.1" 200 OK\n'


class Upper(AccessFormatter):
    """Somebody's own formatter."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).upper()


class Marked(logging.LogRecord):
    """Somebody's own record."""


def refuse(_: logging.LogRecord) -> bool:
    return False


def add_handler(log: Log) -> None:
    log.logger.addHandler(logging.NullHandler())


def mark_records(_: Log) -> None:
    logging.setLogRecordFactory(Marked)


def replace_handler(log: Log) -> None:
    log.logger.handlers = [logging.NullHandler()]


CHANGES: dict[str, Callable[[Log], object]] = {
    "a filter of the logger": lambda log: log.logger.addFilter(refuse),
    "a filter of the handler": lambda log: log.handler.addFilter(refuse),
    "another handler besides": add_handler,
    "another handler instead": replace_handler,
    "another formatter": lambda log: log.handler.setFormatter(Upper(use_colors=False)),
    "another format": lambda log: log.handler.setFormatter(AccessFormatter("%(asctime)s x", use_colors=False)),
    "colours": lambda log: setattr(log.handler.formatter, "use_colors", True),
    "another end of lines": lambda log: setattr(log.handler, "terminator", "\0"),
    "a higher level of the handler": lambda log: log.handler.setLevel(logging.WARNING),
    "the root's handlers too": lambda log: setattr(log.logger, "propagate", True),
    "another kind of record": mark_records,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_was_changed_counts(change: Callable[[Log], object], monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()  # pytest has put its own handlers there by now
    factory = logging.getLogRecordFactory()
    made: list[logging.LogRecord] = []
    make = log.logger.makeRecord

    def watched(*arguments: Any, **options: Any) -> logging.LogRecord:
        made.append(make(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(log.logger, "makeRecord", watched)
    monkeypatch.setattr(log.logger, "filters", [])
    try:
        change(log)
        scope = scope_of(SCOPES[0])
        log_access(log.logger, scope, 200)
        written = log.written()
        assert len(made) == 1
        if "asctime" not in str(log.handler.formatter._fmt):
            assert written == as_uvicorn(log, scope, 200)
    finally:
        logging.setLogRecordFactory(factory)


@pytest.mark.parametrize("name", ["handle", "callHandlers"])
def test_who_watches_the_log_sees_the_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()  # pytest has put its own handlers there by now
    seen: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, name, lambda _, record: seen.append(record))
    log_access(log.logger, scope_of(SCOPES[0]), 200)
    assert [record.getMessage() for record in seen] == ['127.0.0.1:5000 - "POST /mcp HTTP/1.1" 200']


def test_a_level_above_info_writes_nothing() -> None:
    log = Log()  # pytest has put its own handlers there by now
    log.logger.setLevel(logging.WARNING)
    log_access(log.logger, scope_of(SCOPES[0]), 200)
    assert log.written() == ""


def test_a_stream_that_is_closed_is_told_as_logging_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()  # pytest has put its own handlers there by now
    log.stream.close()
    log_access(log.logger, scope_of(SCOPES[0]), 200)
    assert "--- Logging error ---" in capsys.readouterr().err
