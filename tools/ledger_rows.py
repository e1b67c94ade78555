"""Make tests/ledger_rows.json from the requirements ledger, so that the tests work where the ledger is not.

python tools/ledger_rows.py [LEDGER]      the default is ../shared/ledger.md beside the project
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT.parent / "shared" / "ledger.md"
TARGET = ROOT / "tests" / "ledger_rows.json"

_SECTION = re.compile(r"## (\d+)\. ")
_ROW = re.compile(r"\| ([A-Z][A-Z0-9]*-\d\d) \| ([A-Z]!?) \| (\w+) \|")


def read_rows(text: str) -> dict[str, list[str | int]]:
    """Row id → level, who, section."""
    rows: dict[str, list[str | int]] = {}
    section = 0
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            section = int(heading[1])
        elif row := _ROW.match(line):
            rows[row[1]] = [row[2], row[3], section]
    return rows


def main() -> None:
    """Write the table, one row per line so that a change shows as one."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else LEDGER
    rows = read_rows(source.read_text())
    lines = ",\n".join(f"{json.dumps(row)}: {json.dumps(facts)}" for row, facts in rows.items())
    TARGET.write_text(f"{{\n{lines}\n}}\n")
    print(f"{len(rows)} rows")


if __name__ == "__main__":
    main()
