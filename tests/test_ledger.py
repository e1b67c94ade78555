"""Every requirement of the ledger that concerns what is built has a test that says so, or a reason why not.

Which tests passed is told at the end of a run (conftest); this one fails when a mark is missing, whatever else is run.
"""

from functools import cache

import pytest

from support.ledger import (
    LEFT_OUT,
    MUSTS,
    ROWS,
    TESTS,
    requirements,
    rows_of,
    summary_of,
    tells_of_clients,
    with_wholes,
)

SIDES = ["server", "client"]
MOST_ROWS = 5  # of a test that can prove a MUST: one that names more shows that things work together, not each of them


@cache
def marks_of(side: str) -> list[tuple[str, ...]]:
    """The rows of each mark: those that one test, or one case of it, names at once."""
    marks = [mark for mark in requirements.all_marks() if mark.kind == "spec"]
    return [mark.rows for mark in marks if side == "server" or tells_of_clients(TESTS / mark.file)]


@cache
def proven(side: str) -> frozenset[str]:
    return with_wholes(row for rows in marks_of(side) for row in rows)


@pytest.mark.parametrize("side", SIDES)
def test_every_row_has_a_test_or_a_reason(side: str) -> None:
    rows = rows_of(side)
    assert len(rows) > 200
    assert sorted(rows.keys() - proven(side) - LEFT_OUT[side].keys()) == []


@pytest.mark.parametrize("side", SIDES)
def test_what_is_left_out_has_no_test(side: str) -> None:
    assert sorted(LEFT_OUT[side].keys() & proven(side)) == []


@pytest.mark.parametrize("side", SIDES)
def test_every_must_has_a_test_that_is_about_it(side: str) -> None:
    close = with_wholes(row for rows in marks_of(side) if len(rows) <= MOST_ROWS for row in rows)
    musts = {row for row, level in rows_of(side).items() if level in MUSTS}
    brushed = musts - close - LEFT_OUT[side].keys()
    assert sorted(brushed & proven(side)) == []


def test_every_section_counts() -> None:
    """Those of the protocol have numbers. Tasks in detail have none."""
    sections = {section for _, _, section in ROWS.values()}
    assert sections == {None, *range(1, 33)}
    counted = rows_of("server").keys() | rows_of("client").keys()
    assert {who for row, (_, who, _) in ROWS.items() if row not in counted} == {
        "host",
        "mid",
    }  # programs around a client, proxies


@pytest.mark.parametrize("row", ["new-3", "new-24", "L11-u1", "L11-u8", "TASK-12a", "TASK-34b", "L11-47b"])
def test_rows_that_stand_only_in_the_tasks_count(row: str) -> None:
    level, who, section = ROWS[row]
    assert (level in requirements.LEVELS.values(), who in ("srv", "both", "rcv"), section) == (True, True, None)
    assert row in rows_of("server")
    assert (row in rows_of("client")) is (who != "srv")


def test_a_row_of_the_protocol_is_that_of_the_protocol_also_where_the_tasks_have_it_too() -> None:
    assert ROWS["TASK-35"] == ("fact", "both", 26)  # of the server, in the tasks
    assert ROWS["L11-49"] == ("MUST", "srv", 29)


def test_a_row_is_proven_by_all_of_its_parts() -> None:
    parts = {f"TASK-12{letter}" for letter in "abcd"}
    assert with_wholes(parts) == {*parts, "TASK-12"}
    assert "TASK-12" not in with_wholes(parts - {"TASK-12c"})
    assert not parts & with_wholes({"TASK-12"})  # a test of the whole row says nothing about one part


@pytest.mark.parametrize(
    ("without", "missing"),
    [(set[str](), "none"), ({"TASK-12"}, "none"), ({"TASK-12", "TASK-12c"}, "TASK-12, TASK-12c"), ({"new-3"}, "new-3")],
)
def test_the_summary_names_the_rows_that_no_test_has_proven(without: set[str], missing: str) -> None:
    """Those that it must keep. A row is not missing whose parts are all proven."""
    rows = rows_of("server")
    musts = [row for row, level in rows.items() if level in MUSTS]
    line, more = summary_of("server", rows.keys() - without)
    covered = len(musts) if missing == "none" else len(musts) - len(without)
    assert line == f"spec rows: {covered} of {len(musts)} server MUST rows covered; missing: {missing}"
    assert more.endswith("missing: none")


def test_the_summary_of_a_few_tests_names_no_rows() -> None:
    assert "of some tests only" in summary_of("client", ["TASK-03"])[0]
