"""What all tests share: the live example of a server, and the report of which ledger rows they prove.

A test says which rows it proves with `@pytest.mark.spec("HDR-20")`. A row counts when a test so marked passed; an id
that is not in docs/requirements.md fails the collection. A row about both sides counts for the client when the test is
one of the client, or of what both sides share. `make requirements` writes the page.
"""

import logging
import signal
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from support import Live, make_server, serve
from support.ledger import IDS, TESTS, summary_of, tells_of_clients
from weft.client import client
from weft.client.connection.negotiate import Memory

settings.register_profile("unhurried", deadline=None)  # how long an example takes tells of the machine, not of Weft
settings.load_profile("unhurried")

_proven: set[str] = set()
_proven_by_clients: set[str] = set()
_tables: dict[str, str] = {}  # what tests have measured, by their names; `record_property("table", ...)`


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The feature-rich server behind a real socket, shared by all tests that leave it as it is."""
    with serve(make_server()) as running:
        yield running


@pytest.fixture(scope="session")
def alone() -> Iterator[Live]:
    """The same, for clients of the stateless era only."""
    with serve(make_server(eras=("stateless",))) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client found out about a server says nothing of the next one, which may get the same port."""
    monkeypatch.setattr(client, "_memory", Memory())


def pytest_configure() -> None:
    """Have the programs that tests start hear SIGINT, also where a shell started the tests with it ignored (`&`)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unknown = {f"{row} ({item.nodeid})" for item in items for row in _rows(item) if row not in IDS}
    if unknown:
        raise pytest.UsageError(f"Marked with rows that are not in docs/requirements.md: {', '.join(sorted(unknown))}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    report.rows = _rows(item)  # goes with the report to the process that tells of all workers' tests
    return report


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call":
        for name, table in report.user_properties:
            if name == "table":
                _tables[report.nodeid] = table
    if report.when == "call" and report.passed:
        _proven.update(report.rows)
        if tells_of_clients(TESTS.parent / report.fspath):
            _proven_by_clients.update(report.rows)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for title, table in _tables.items():
        terminalreporter.section(title)
        terminalreporter.write_line(table)
    if not _proven:
        return
    terminalreporter.section("requirements")
    for side, proven in (("server", _proven), ("client", _proven_by_clients)):
        for text in summary_of(side, proven):
            for wrapped in textwrap.wrap(text, 118, subsequent_indent="  "):
                terminalreporter.write_line(wrapped)


def _rows(item: pytest.Item) -> list[str]:
    return [row for marker in item.iter_markers("spec") for row in marker.args]


@pytest.fixture(autouse=True)
def log_levels_as_they_were() -> Iterator[None]:
    """Undo what a test, or a server that it ran in this process, did to the levels of loggers."""
    loggers = [logging.getLogger(name) for name in ("", "weft", "weft.server", "weft.client", "weft.client.wire")]
    before = [(logger, logger.level) for logger in loggers]
    yield
    for logger, level in before:
        logger.setLevel(level)
