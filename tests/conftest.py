"""What all tests share: the live example of a server, and the report of which ledger rows they prove.

A test says which rows it proves with `@pytest.mark.spec("HDR-20")`. A row counts when a test so marked passed; an id
that is in no row fails the collection. The table of rows is made by tools/ledger_rows.py.
"""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import Live, make_server, serve

HERE = Path(__file__).parent
ROWS: dict[str, tuple[str, str, int]] = json.loads((HERE / "ledger_rows.json").read_text())
LEFT_OUT: dict[str, str] = json.loads((HERE / "ledger_left_out.json").read_text())
SECTIONS = frozenset({1, 2, 3, 4, 6, *range(8, 22)})

_proven: set[str] = set()


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The feature-rich server behind a real socket, shared by all tests that leave it as it is."""
    with serve(make_server()) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unknown = {f"{row} ({item.nodeid})" for item in items for row in _rows(item) if row not in ROWS}
    if unknown:
        raise pytest.UsageError(f"Marked with rows that are not in the ledger: {', '.join(sorted(unknown))}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.when == "call" and report.passed:
        _proven.update(_rows(item))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _proven:
        return
    server_rows = {
        row: level for row, (level, who, section) in ROWS.items() if who in ("srv", "both") and section in SECTIONS
    }
    musts = {row for row, level in server_rows.items() if level in ("M", "M!")}
    terminalreporter.section("requirements")
    line = (
        f"spec rows: {len(musts & _proven)} of {len(musts)} server MUST rows of sections 1-4, 6, 8-21 covered; "
        f"missing: {_names(musts - _proven)}"
    )
    more = f"all server rows of these sections: {len(server_rows.keys() & _proven)} of {len(server_rows)} covered"
    for text in (line, more):
        for wrapped in textwrap.wrap(text, 118, subsequent_indent="  "):
            terminalreporter.write_line(wrapped)


def _rows(item: pytest.Item) -> list[str]:
    return [row for marker in item.iter_markers("spec") for row in marker.args]


def _names(missing: set[str]) -> str:
    """Rows without a test, those that cannot have one here last, each with the reason's first word."""
    wanted = sorted(missing - LEFT_OUT.keys())
    left_out = sorted(missing & LEFT_OUT.keys())
    parts = [", ".join(wanted)] if wanted else []
    if left_out:
        parts.append(
            f"{', '.join(left_out)} (not of a library's making, or of a later issue: tests/ledger_left_out.json)"
        )
    return "; ".join(parts) or "none"
