"""The requirements of docs/requirements.md: which there are, whose they are, and which cannot have a test here."""

import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "requirements.md"
LEFT_OUT: dict[str, dict[str, str]] = json.loads((TESTS / "ledger_left_out.json").read_text())
MUSTS = ("MUST", "MUST NOT")
MOST_NAMED = 20  # rows without a test: more are missing only when a few tests are run


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


requirements = _load(TESTS.parent / "tools" / "requirements.py")  # what writes the page reads it, too
_rows = requirements.read_page(PAGE.read_text())
IDS: set[str] = {row.id for row in _rows}
# Those of the protocol and of tasks in detail, by level, who and section. Tasks in detail have no section, and a row
# that stands in both has what the protocol says of it. The rules for hostile input have no level.
ROWS: dict[str, tuple[str, str, int | None]] = {
    row.id: (row.level, row.who, row.section) for row in reversed(_rows) if row.level
}

_SHARED = ("backends", "properties", "protocol", "types")  # folders of what both sides are made of
# What an authorization server owes is told with the servers: Weft has one. Both sides receive requests that can be
# tasks of 2025-11-25 (`rcv`): a server calls of tools, a client questions.
_WHOSE = {"server": ("srv", "AS", "both", "rcv"), "client": ("cli", "both", "rcv")}


def rows_of(side: str) -> dict[str, str]:
    """The rows that concern a side, with their levels."""
    return {row: level for row, (level, who, _) in ROWS.items() if who in _WHOSE[side]}


def with_wholes(named: Iterable[str]) -> frozenset[str]:
    """Add the rows of which all parts are named, such as `TASK-12` for `TASK-12a` to `TASK-12d`."""
    parts: dict[str, set[str]] = {}
    for row in IDS:
        if (whole := requirements.whole_of(row)) != row:
            parts.setdefault(whole, set()).add(row)
    found = frozenset(named)
    return found | {whole for whole in parts if parts[whole] <= found}


def tells_of_clients(path: Path) -> bool:
    """Whether a test is one of the client, or of what both sides share."""
    place = path.relative_to(TESTS)
    return len(place.parts) == 1 or place.parts[0] in ("client", *_SHARED) or place.name.endswith("_client.py")


def summary_of(side: str, proven: Iterable[str]) -> tuple[str, str]:
    """What is proven of the rows of one side: of those that it must keep, and of all. `proven` are rows of tests."""
    found, rows = with_wholes(proven), rows_of(side)
    musts = {row for row, level in rows.items() if level in MUSTS}
    line = (
        f"spec rows: {len(musts & found)} of {len(musts)} {side} MUST rows covered; "
        f"missing: {_names(musts - found, LEFT_OUT[side])}"
    )
    more = (
        f"all {side} rows: {len(rows.keys() & found)} of {len(rows)} covered; "
        f"missing: {_names(rows.keys() - musts - found, LEFT_OUT[side])}"
    )
    return line, more


def _names(missing: set[str], reasons: dict[str, str]) -> str:
    """Rows without a test, those that cannot have one here last."""
    wanted = sorted(missing - reasons.keys())
    if len(wanted) > MOST_NAMED:
        return f"{len(missing)} (of some tests only; run all to see which)"
    left_out = sorted(missing & reasons.keys())
    parts = [", ".join(wanted)] if wanted else []
    if left_out:
        parts.append(
            f"{', '.join(left_out)} (not of a library's making, or of a later issue: tests/ledger_left_out.json)"
        )
    return "; ".join(parts) or "none"
