"""The requirements of docs/requirements.md: which there are, whose they are, and which cannot have a test here."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "requirements.md"
LEFT_OUT: dict[str, dict[str, str]] = json.loads((TESTS / "ledger_left_out.json").read_text())
MUSTS = ("MUST", "MUST NOT")


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
# Those of the protocol, by level, who and section.
ROWS: dict[str, tuple[str, str, int]] = {row.id: (row.level, row.who, row.section) for row in _rows if row.section}

_SHARED = ("backends", "properties", "protocol", "types")  # folders of what both sides are made of
# What an authorization server owes is told with the servers: Weft has one.
_WHOSE = {"server": ("srv", "AS", "both"), "client": ("cli", "both")}


def rows_of(side: str) -> dict[str, str]:
    """The rows that concern a side, with their levels."""
    return {row: level for row, (level, who, _) in ROWS.items() if who in _WHOSE[side]}


def tells_of_clients(path: Path) -> bool:
    """Whether a test is one of the client, or of what both sides share."""
    place = path.relative_to(TESTS)
    return len(place.parts) == 1 or place.parts[0] in ("client", *_SHARED) or place.name.endswith("_client.py")
