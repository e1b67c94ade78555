"""Copies figures of bench/RESULTS.md into the tables of README.md and scale.md. Run it after `make bench`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = "| | Weft | mcp | fastmcp |\n|---|---:|---:|---:|\n"
FIRST_OTHER = "| lines on the terminal"  # the rows from here on were measured by hand

WAY = r"(\S+) ms, two processes, Redis (\S+) ms"
# Rows of the section "Size" of scale.md: how each begins, where its figures are in the results, how they are written.
SIZE = [
    ("stateless calls per second with Redis", r"Weft with Redis against Weft \| [^|]*\| (\S+) x", "{} x"),
    ("calls per second of two workers", r"2 workers against 1 worker \| [^|]*\| (\S+) x", "{} x"),
    ("calls per second in sessions", r"16 sessions, Weft with Redis, peers in memory and tuned [^|]*\| (\S+)", "{}"),
    ("sessions opened per second", r"sessions opened, Weft with Redis[^|]*\| (\S+)", "{}"),
    ("memory in Redis of an idle session", r"idle session with Redis, in Redis[^|]*\| (\S+)", "{} KiB"),
    ("memory of an idle session at the worker that", r"Redis, at the worker that opened it[^|]*\| (\S+)", "{} KiB"),
    ("memory of an idle session at a worker that", r"Redis, at a worker that does not[^|]*\| (\S+)", "{} KiB"),
    ("memory of an idle listen stream", r"idle listen stream, of 5,000[^|]*\| (\S+)", "{} KiB"),
    ("one change at one worker", r"told to 5,000 listen streams[^|]*\| (\S+)", "{} ms"),
    (
        "a change, until a stream has it",
        f"from asking for a change [^:]*: one process, memory {WAY}",
        "{1} ms | {0} ms",
    ),
    ("a call with a question", f"asks one question, [^:]*: one process, memory {WAY}", "{1} ms | {0} ms"),
]


def measured_rows(results: str) -> list[str]:
    """The rows of the results, up to fastmcp's column."""
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in results.splitlines() if line.count("|") == 9]
    return [f"| {' | '.join(row)} |" for row in rows if row[0] and not row[0].startswith("-")]


def with_size(page: str, results: str) -> str:
    """The page with the figures of the results in its section "Size"."""
    for begin, place, written in SIZE:
        found = re.search(place, results)
        if found is None:
            raise SystemExit(f"bench/RESULTS.md has no figure for the row {begin!r} of scale.md.")
        row = re.compile(rf"^(\| {re.escape(begin)}[^|]*\| )[^\n]*", re.MULTILINE)
        page, count = row.subn(rf"\g<1>{written.format(*found.groups())} |", page)
        if count != 1:
            raise SystemExit(f"scale.md has {count} rows that begin with {begin!r}.")
    return page


def main() -> None:
    rows = "".join(f"{row}\n" for row in measured_rows((ROOT / "bench" / "RESULTS.md").read_text()))
    readme = ROOT / "README.md"
    pattern = re.compile(f"{re.escape(HEAD)}.*?(?={re.escape(FIRST_OTHER)})", re.DOTALL)
    readme.write_text(pattern.sub(lambda _: HEAD + rows, readme.read_text(), count=1))
    scale = ROOT / "docs" / "how-to" / "scale.md"
    scale.write_text(with_size(scale.read_text(), (ROOT / "bench" / "RESULTS.md").read_text()))


if __name__ == "__main__":
    main()
