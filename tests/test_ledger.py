"""Every requirement of the ledger that concerns what is built has a test that says so, or a reason why not.

Which tests passed is told at the end of a run (conftest); this one fails when a mark is missing, whatever else is run.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.ledger import LEFT_OUT, TESTS, rows_of, tells_of_clients

SIDES = ["server", "client"]


def marked(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spec":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


@cache
def proven(side: str) -> frozenset[str]:
    paths = [path for path in TESTS.rglob("test_*.py") if side == "server" or tells_of_clients(path)]
    return frozenset(row for path in paths for row in marked(path))


@pytest.mark.parametrize("side", SIDES)
def test_every_row_has_a_test_or_a_reason(side: str) -> None:
    rows = rows_of(side)
    assert len(rows) > 200
    assert sorted(rows.keys() - proven(side) - LEFT_OUT[side].keys()) == []


@pytest.mark.parametrize("side", SIDES)
def test_what_is_left_out_has_no_test(side: str) -> None:
    assert sorted(LEFT_OUT[side].keys() & proven(side)) == []
