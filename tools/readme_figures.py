"""Copies the measured rows of bench/RESULTS.md into the table of README.md. Run it after `make bench`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = "| | Weft | mcp | fastmcp |\n|---|---:|---:|---:|\n"
FIRST_OTHER = "| lines on the terminal"  # the rows from here on were measured by hand


def measured_rows(results: str) -> list[str]:
    """The rows of the results, up to fastmcp's column."""
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in results.splitlines() if line.count("|") == 9]
    return [f"| {' | '.join(row)} |" for row in rows if row[0] and not row[0].startswith("-")]


def main() -> None:
    rows = "".join(f"{row}\n" for row in measured_rows((ROOT / "bench" / "RESULTS.md").read_text()))
    readme = ROOT / "README.md"
    pattern = re.compile(f"{re.escape(HEAD)}.*?(?={re.escape(FIRST_OTHER)})", re.DOTALL)
    readme.write_text(pattern.sub(lambda _: HEAD + rows, readme.read_text(), count=1))


if __name__ == "__main__":
    main()
