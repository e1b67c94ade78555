"""Every requirement of the ledger that concerns what is built has a test that says so, or a reason why not.

Which tests passed is told at the end of a run (conftest); this one fails when a mark is missing, whatever else is run.
"""

from functools import cache

import pytest

from support.ledger import IDS, LEFT_OUT, MUSTS, ROWS, TESTS, requirements, rows_of, tells_of_clients

SIDES = ["server", "client"]
MOST_ROWS = 5  # of a test that can prove a MUST: one that names more shows that things work together, not each of them


@cache
def marks_of(side: str) -> list[tuple[str, ...]]:
    """The rows of each mark: those that one test, or one case of it, names at once."""
    marks = [mark for mark in requirements.all_marks() if mark.kind == "spec"]
    return [mark.rows for mark in marks if side == "server" or tells_of_clients(TESTS / mark.file)]


def with_wholes(named: set[str]) -> frozenset[str]:
    """Add the rows of which all parts are named, such as `TASK-12` for `TASK-12a` to `TASK-12d`."""
    parts: dict[str, set[str]] = {}
    for row in IDS:
        if (whole := requirements.whole_of(row)) != row:
            parts.setdefault(whole, set()).add(row)
    return frozenset(named | {whole for whole in parts if parts[whole] <= named})


@cache
def proven(side: str) -> frozenset[str]:
    return with_wholes({row for rows in marks_of(side) for row in rows})


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
    close = with_wholes({row for rows in marks_of(side) if len(rows) <= MOST_ROWS for row in rows})
    musts = {row for row, level in rows_of(side).items() if level in MUSTS}
    brushed = musts - close - LEFT_OUT[side].keys()
    assert sorted(brushed & proven(side)) == []


def test_every_section_counts() -> None:
    sections = {section for _, _, section in ROWS.values()}
    assert sections == set(range(1, 33))
    counted = rows_of("server").keys() | rows_of("client").keys()
    assert {who for row, (_, who, _) in ROWS.items() if row not in counted} == {
        "host",
        "mid",
    }  # programs around a client, proxies
