"""Write docs/requirements.md: every requirement that Weft is built to, and the tests that prove it.

python tools/requirements.py [FOLDER]     the folder of ledger.md, security.md and tasks.md; the default is ../shared

Without the folder the requirements stay as the page words them, and only their tests are written anew.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mark", "Row", "all_marks", "main", "read_marks", "read_page", "with_tests"]

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "requirements.md"
LEFT_OUT = TESTS / "ledger_left_out.json"

SOURCES = {  # file → the title of its part
    "ledger.md": "The protocol",
    "security.md": "Hostile input, load and faults",
    "tasks.md": "Tasks in detail",
}
KINDS = ("spec", "security")  # the marks that name rows
LEVELS = {"M": "MUST", "M!": "MUST NOT", "S": "SHOULD", "S!": "SHOULD NOT", "Y": "MAY", "F": "fact"}
HEADERS = {"#": "id", "lvl": "level", "what": "requirement", "rule": "requirement"}  # what the page calls a column
COLUMNS = ("id", "requirement", "value", "level", "who", "learned from", "tests")
MOST_NAMED = 3  # tests of one row

TOP = """# Requirements

Every requirement that Weft is built to, and the tests that prove it. `make requirements` writes this page. The
requirements come from three documents that lie beside the project: `ledger.md`, `security.md` and `tasks.md` in
`../shared`. The tests come from the marks in `tests/`. Where the documents are missing, only the tests are renewed. A
test fails when the page no longer agrees with the marks.

Rows: not counted yet.

- An id such as `HDR-20` names a row of the protocol, and `@pytest.mark.spec("HDR-20")` a test that proves it. `R12` is
  a rule and `D6` a default for hostile input; their tests have `@pytest.mark.security("R12")`.
- Tasks stand here twice: in brief with the protocol, and in detail at the end. There a letter names a part: `TASK-12a`
  is of `TASK-12`, which has the tests of all its parts. `new-1` and `L11-u1` stand only there.
- The level is the word of the specification; "fact" is something that only its schema or an example says.
- Who must do it: `srv` a server, `cli` a client, `both`, `AS` an authorization server, `rcv` the side that receives the
  request, `host` the program around a client, `mid` a proxy. The last two are not the work of a library.
- Tests are files under `tests/`, with the name of the test. Those that name the fewest other rows come first.
"""

_COUNT = re.compile(r"^Rows: .*$", re.MULTILINE)
_HEADING = re.compile(r"(#+) (?:(\d+)\. )?(.*)")
_PART = re.compile(r"(.*\d)[a-z]")


@dataclass(frozen=True)
class Mark:
    """A mark of a test, or of one of its cases, with the rows it names."""

    test: str  # file::name
    kind: str
    rows: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


@dataclass(frozen=True)
class Row:
    """A row of the page. Only rows of the protocol have the number of a section."""

    id: str
    level: str
    who: str
    section: int | None
    tests: str


def cells_of(line: str) -> list[str]:
    """Split a line of a table; an escaped bar belongs to the text."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def tables_of(text: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield each row of each table, with the headings above it and its cells by column."""
    headings: list[str] = []
    columns: list[str] = []
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            headings = [*headings[: len(heading[1]) - 1], line.lstrip("# ")]
        elif not line.startswith("|"):
            columns = []
        elif not columns:
            columns = [HEADERS.get(name.lower(), name.lower()) for name in cells_of(line)]
        elif not line.startswith("|---"):
            yield headings, dict(zip(columns, cells_of(line), strict=True))


# --- the tests


def read_marks(source: str, file: str = "") -> list[Mark]:
    """Read the marks of all tests of a module, without running it; rows that are computed cannot be read."""
    tree = ast.parse(source)
    return [*_marks(tree.body, f"{file}::", [], _names(tree.body))]


def all_marks() -> list[Mark]:
    """Read the marks of all tests."""
    paths = sorted(TESTS.rglob("test_*.py"))
    return [mark for path in paths for mark in read_marks(path.read_text(), path.relative_to(TESTS).as_posix())]


def _names(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """The values of a module's names: cases and marks may stand apart from their test."""
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    return {target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}


def _marks(body: list[ast.stmt], place: str, above: list[ast.expr], names: dict[str, ast.expr]) -> Iterator[Mark]:
    own = _names(body).get("pytestmark")
    above = [*above, own] if own else above
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _marks(node.body, f"{place}{node.name}::", [*above, *node.decorator_list], names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            for expression in [*above, *node.decorator_list]:
                yield from (Mark(place + node.name, kind, rows) for kind, rows in _named(expression, names))


def _named(expression: ast.expr, names: dict[str, ast.expr]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The rows that an expression names: a mark, a list of marks, or cases that have marks."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id in names:
            yield from _named(names[node.id], {})
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS:
            rows = tuple(argument.value for argument in node.args if isinstance(argument, ast.Constant))
            yield node.func.attr, rows


# --- the page


def read_page(text: str) -> list[Row]:
    """Read the rows of the page."""
    rows: list[Row] = []
    for headings, cells in tables_of(text):
        number = _HEADING.fullmatch(f"# {headings[-1]}")
        section = int(number[2]) if number and number[2] else None
        rows.append(Row(cells["id"], cells.get("level", ""), cells.get("who", ""), section, cells["tests"]))
    return rows


def with_tests(text: str, marks: Iterable[Mark], left_out: Mapping[str, Mapping[str, str]]) -> str:
    """Write the tests of all rows into the page, and how many rows have some."""
    tests: dict[str, dict[str, int]] = {}
    for mark in marks:
        for row in mark.rows:
            known = tests.setdefault(row, {})
            known[mark.test] = min(len(mark.rows), known.get(mark.test, len(mark.rows)))
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("|") and not line.startswith(("|---", "| id |")):
            cells = cells_of(line)
            lines[at] = line_of([*cells[:-1], _tests_of(cells[0], tests, left_out)])
    text = "\n".join(lines) + "\n"
    return _COUNT.sub(_count(read_page(text)), text, count=1)


def line_of(cells: list[str]) -> str:
    """Write a line of a table."""
    return f"| {' | '.join(cells)} |"


def whole_of(row: str) -> str:
    """Return the row of which a row is a part: `TASK-12` for `TASK-12a`; for others, the row itself."""
    part = _PART.fullmatch(row)
    return part[1] if part else row


def _tests_of(row: str, tests: dict[str, dict[str, int]], left_out: Mapping[str, Mapping[str, str]]) -> str:
    whole, found = whole_of(row), tests.get(row, {})
    if row == whole:
        found = {test: named for part in tests if whole_of(part) == whole for test, named in tests[part].items()}
    reasons = dict.fromkeys(left_out[side][whole] for side in left_out if whole in left_out[side])
    if not found:
        return ": ".join(["no test", *(["; ".join(reasons)] if reasons else [])])
    ordered = sorted(found, key=lambda test: (found[test], test))
    more = f" and {len(ordered) - MOST_NAMED} more" if len(ordered) > MOST_NAMED else ""
    return ", ".join(f"`{test}`" for test in ordered[:MOST_NAMED]) + more


def _count(rows: list[Row]) -> str:
    """Count the rows; one that stands in two tables counts once."""
    rows = [*{row.id: row for row in rows}.values()]
    without = [row for row in rows if row.tests.startswith("no test")]
    told = [row for row in without if row.tests != "no test"]
    return (
        f"Rows: {len(rows)}. With a test: {len(rows) - len(without)}. "
        f"Without one, for a reason that is given: {len(told)}. Without one: {len(without) - len(told)}."
    )


def make_page(sources: Mapping[str, str]) -> str:
    """Write the page without its tests, from the text of the sources by their file names."""
    lines = [TOP]
    for name, title in SOURCES.items():
        lines += [f"## {title}", ""]
        section: list[str] = []
        for headings, cells in tables_of(sources[name]):
            if "requirement" not in cells or "id" not in cells:
                continue  # a table of something else
            cells["tests"] = "no test"
            cells["id"] = f"D{cells['id']}" if cells["id"].isdigit() else cells["id"]
            if "level" in cells:
                cells["level"] = LEVELS[cells["level"]]
            columns = [column for column in COLUMNS if column in cells]
            if headings != section:
                # Only sections of the ledger have a number here: it is how tests tell its rows from the others.
                heading = headings[-1] if name == "ledger.md" else re.sub(r"^\d+\. ", "", headings[-1])
                lines += [
                    *([""] if section else []),
                    f"### {heading}",
                    "",
                    line_of(columns),
                    "|---" * len(columns) + "|",
                ]
                section = headings
            lines.append(line_of([cells[column] for column in columns]))
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> None:
    """Write the page, or only its tests where the sources are missing."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    missing = [name for name in SOURCES if not (folder / name).is_file()]
    if missing:
        print(
            f"{folder} has no {', '.join(missing)}: the requirements stay as {PAGE.relative_to(ROOT)} words them, "
            "and only their tests are written anew. Name the folder that has them: make requirements SHARED=FOLDER"
        )
        text = PAGE.read_text()
    else:
        text = make_page({name: (folder / name).read_text() for name in SOURCES})
    text = with_tests(text, all_marks(), json.loads(LEFT_OUT.read_text()))
    PAGE.write_text(text)
    print(f"Written: {PAGE.relative_to(ROOT)}. {_count(read_page(text))}")


if __name__ == "__main__":
    main()
