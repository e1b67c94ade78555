"""The requirements: which there are, whose they are, and which cannot have a test here (tools/ledger_rows.py)."""

import json
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROWS: dict[str, tuple[str, str, int]] = json.loads((TESTS / "ledger_rows.json").read_text())
LEFT_OUT: dict[str, dict[str, str]] = json.loads((TESTS / "ledger_left_out.json").read_text())

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
