"""docs/requirements.md agrees with the marks of the tests, so that it cannot grow old; and what reads both can fail.

The documents that the requirements come from are not needed here.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.ledger import IDS, LEFT_OUT, PAGE, TESTS, requirements

RUN = "docs/requirements.md is out of date: run `make requirements`."
COMPUTED = {"eras/test_session_fields.py: pytest.mark.spec(row)"}  # other tests name its rows, too

MODULE = """
import pytest

pytestmark = [pytest.mark.security("R1")]
CASES = [pytest.param(1, marks=pytest.mark.spec("A-02")), 2]
both = pytest.mark.spec("A-03", "A-04")

@pytest.mark.spec("B-01")
class TestAll:
    pytestmark = pytest.mark.spec("B-02")

    @both
    async def test_one(self): ...

@pytest.mark.spec("C-01")
@pytest.mark.parametrize("x", [pytest.param(1, marks=[pytest.mark.spec("C-02")]), 2])
def test_two(x): ...

@pytest.mark.parametrize("x", CASES)
def test_three(x): ...

@pytest.mark.spec("C-03")
def helper(): ...
"""

SAMPLE = """# Requirements

Rows: not counted yet.

## The protocol

### 3. Letters (A)

| id | requirement | level | who | tests |
|---|---|---|---|---|
| A-01 | Says `a\\|b`. | MUST | srv | no test |
| A-02 | Is left out. | SHOULD NOT | both | no test |
| A-03 | Is forgotten. | fact | cli | no test |

## Hostile input

### Rules

| id | requirement | tests |
|---|---|---|
| A-01a | Says a. | no test |
| A-01b | Says b. | no test |
| A-02b | Is left out. | no test |
| R1 | Ends nothing. | no test |
"""


def test_the_page_agrees_with_the_tests() -> None:
    text = PAGE.read_text()
    now = requirements.with_tests(text, requirements.all_marks(), LEFT_OUT)
    old = [before for before, after in zip(text.splitlines(), now.splitlines(), strict=True) if before != after]
    assert [line[:60] for line in old] == [], RUN
    assert text == now, RUN


def test_the_tests_that_the_page_names_are_there() -> None:
    named = {name for row in requirements.read_page(PAGE.read_text()) for name in re.findall("`(.+?)`", row.tests)}
    assert len(named) > 500
    assert sorted(named - {mark.test for mark in requirements.all_marks()}) == [], RUN


def test_every_row_that_a_test_names_is_on_the_page() -> None:
    unknown = {f"{row} ({mark.test})" for mark in requirements.all_marks() for row in mark.rows if row not in IDS}
    assert sorted(unknown) == [], f"Not a row of the page, or a new one. If new: {RUN}"


def marks_written(path: Path) -> list[ast.Call]:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) in ("pytest.mark.spec", "pytest.mark.security")]


def test_no_mark_is_overlooked() -> None:
    overlooked: set[str] = set()
    for path in sorted(TESTS.rglob("test_*.py")):
        file = path.relative_to(TESTS).as_posix()
        read = {(mark.kind, mark.rows) for mark in requirements.read_marks(path.read_text())}
        for call in marks_written(path):
            rows = tuple(getattr(argument, "value", None) for argument in call.args)
            if (ast.unparse(call.func).rpartition(".")[2], rows) not in read:
                overlooked.add(f"{file}: {ast.unparse(call)}")
    assert overlooked == COMPUTED


def test_marks_are_read_wherever_they_stand() -> None:
    found = {(mark.test, mark.kind, mark.rows) for mark in requirements.read_marks(MODULE, "test_m.py")}
    one, two, three = "test_m.py::TestAll::test_one", "test_m.py::test_two", "test_m.py::test_three"
    assert found == {
        *((test, "security", ("R1",)) for test in (one, two, three)),
        (one, "spec", ("B-01",)),
        (one, "spec", ("B-02",)),
        (one, "spec", ("A-03", "A-04")),
        (two, "spec", ("C-01",)),
        (two, "spec", ("C-02",)),
        (three, "spec", ("A-02",)),
    }


def mark(test: str, *rows: str) -> object:
    return requirements.Mark(f"test_m.py::{test}", "spec", rows)


def test_tests_and_reasons_are_written_into_a_page() -> None:
    marks = [mark("test_d", "A-01", "R1"), mark("test_c", "A-01b"), *(mark(f"test_{name}", "A-01") for name in "ba")]
    left_out = {"server": {"A-02": "not built"}, "client": {"A-02": "not built", "A-01": "not drawn"}}
    text = requirements.with_tests(SAMPLE, marks, left_out)
    first = "`test_m.py::test_a`, `test_m.py::test_b`, `test_m.py::test_c` and 1 more"
    assert [(row.id, row.level, row.who, row.section, row.tests) for row in requirements.read_page(text)] == [
        ("A-01", "MUST", "srv", 3, first),
        ("A-02", "SHOULD NOT", "both", 3, "no test: not built"),
        ("A-03", "fact", "cli", 3, "no test"),
        ("A-01a", "", "", None, "no test: not drawn"),  # a test of the whole row is none of this part
        ("A-01b", "", "", None, "`test_m.py::test_c`"),  # and of the whole row
        ("A-02b", "", "", None, "no test: not built"),
        ("R1", "", "", None, "`test_m.py::test_d`"),
    ]
    assert "Rows: 7. With a test: 3. Without one, for a reason that is given: 3. Without one: 1." in text
    assert r"| Says `a\|b`. |" in text
    assert requirements.with_tests(text, marks, left_out) == text


@pytest.mark.parametrize(
    "marks",
    [
        pytest.param([], id="a test is gone"),
        pytest.param([mark("test_b", "A-01")], id="a test has another name"),
        pytest.param([mark("test_a", "A-01", "A-03")], id="a row has a test now"),
    ],
)
def test_an_old_page_is_found(marks: list[object]) -> None:
    text = requirements.with_tests(SAMPLE, [mark("test_a", "A-01")], {})
    assert requirements.with_tests(text, marks, {}) != text


LEDGER = """# Ledger

## 0. Cheat sheet

| Item | Value |
|---|---|
| A-00 | no requirement |

## 3. Letters (A)

| ID | Lvl | Who | Requirement | Page | Cov |
|---|---|---|---|---|---|
| A-01 | M! | srv | Says `a\\|b`. | BASE | p |
"""
RULES = "## Rules\n\n| # | rule | learned from |\n|---|---|---|\n| R1 | Ends nothing. | CVE-1 |\n"
DEFAULTS = "\n## Defaults\n\n| # | what | value |\n|---|---|---|\n| 1 | body | 4 MiB |\n"
PARTS = "## 2. Parts\n\n### Reading\n\n| id | lvl | who | requirement | source |\n|---|---|---|---|---|\n"


def write_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(requirements, "PAGE", folder / "docs" / "requirements.md")
    monkeypatch.setattr(requirements, "ROOT", folder)
    monkeypatch.setattr(requirements, "all_marks", lambda: [mark("test_a", "D1")])
    monkeypatch.setattr(sys, "argv", ["requirements.py", str(folder)])
    requirements.main()
    return (folder / "docs" / "requirements.md").read_text()


def test_a_page_is_made_of_its_sources_and_its_tests_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    sources = {
        "ledger.md": LEDGER,
        "security.md": RULES + DEFAULTS,
        "tasks.md": PARTS + "| new-1 | Y | cli | Asks. | S |\n",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    made = write_page(tmp_path, monkeypatch)
    lines = [line for line in made.splitlines() if line.startswith(("| ", "#"))]
    assert lines == [
        "# Requirements",
        "## The protocol",
        "### 3. Letters (A)",
        "| id | requirement | level | who | tests |",
        r"| A-01 | Says `a\|b`. | MUST NOT | srv | no test |",
        "## Hostile input, load and faults",
        "### Rules",
        "| id | requirement | learned from | tests |",
        "| R1 | Ends nothing. | CVE-1 | no test |",
        "### Defaults",
        "| id | requirement | value | tests |",
        "| D1 | body | 4 MiB | `test_m.py::test_a` |",
        "## Tasks in detail",
        "### Reading",
        "| id | requirement | level | who | tests |",
        "| new-1 | Asks. | MAY | cli | no test |",
    ]
    assert "has no" not in capsys.readouterr().out

    (tmp_path / "tasks.md").unlink()
    page = tmp_path / "docs" / "requirements.md"
    page.write_text(made.replace("test_a", "test_old"))
    assert write_page(tmp_path, monkeypatch) == made
    assert "has no tasks.md: the requirements stay as docs/requirements.md words them" in capsys.readouterr().out


def test_the_tool_needs_nothing_but_python() -> None:
    tool = TESTS.parent / "tools" / "requirements.py"
    code = f"import runpy; runpy.run_path({str(tool)!r}, run_name='tool')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
