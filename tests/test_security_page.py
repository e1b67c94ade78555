"""The security page of the authorization chapter, as a whole: each of its rows (section 25) has tests of its own.

AUTH-45 says no more than that the page is followed. So it holds as far as a test of every row passes, on the side or
sides that the row is about; that those pass is seen where they are, that they are there is seen here.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from support.ledger import ROWS

HERE = Path(__file__).parent
PAGE = 25


def marked_rows(source: str) -> set[str]:
    """The rows that the tests of a module are marked with."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {
        arg.value
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.spec"
        for arg in call.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    }


def side_of(path: Path) -> str | None:
    """Whom the tests of a module are about, where it is one side."""
    if path.parts[0] == "client" or path.name.endswith("_client.py"):
        return "client"
    # Those of a whole way are of servers: there the requests are made by hand, so that they can be wrong.
    return "server" if path.parts[0] in ("server", "e2e") else None


def unproven(rows: Mapping[str, tuple[str, str, int]], modules: Iterable[tuple[Path, set[str]]]) -> set[str]:
    """The rows of the page without a test, each with the side that lacks it."""
    found = {(side_of(path), row) for path, marked in modules for row in marked}
    sides = {"both": ("client", "server"), "cli": ("client",), "srv": ("server",), "AS": ("server",)}
    page = {row: sides[who] for row, (_, who, section) in rows.items() if section == PAGE}
    return {f"{row} ({side})" for row, whose in page.items() for side in whose if (side, row) not in found}


@pytest.mark.spec("AUTH-45")
def test_every_row_of_the_security_page_has_a_test_of_its_own() -> None:
    modules = [(path.relative_to(HERE), marked_rows(path.read_text())) for path in HERE.rglob("test_*.py")]
    assert len([row for row, facts in ROWS.items() if facts[2] == PAGE]) == 20
    assert unproven(ROWS, modules) == set()


def test_a_row_without_a_test_is_found() -> None:
    rows = {
        "ASEC-01": ("M", "both", 25),
        "SBP-04": ("M", "cli", 25),
        "SBP-03": ("M!", "srv", 25),
        "X-01": ("M", "srv", 1),
    }
    source = "@pytest.mark.security('SBP-03')\n@pytest.mark.spec('ASEC-01', 'X-02')\ndef test(): ..."
    assert marked_rows(source) == {"ASEC-01", "X-02"}
    server, client = (Path("e2e/test_auth.py"), marked_rows(source)), (Path("client/test_config.py"), {"SBP-04"})
    assert unproven(rows, [server]) == {"ASEC-01 (client)", "SBP-04 (client)", "SBP-03 (server)"}
    assert unproven(rows, [server, client]) == {"ASEC-01 (client)", "SBP-03 (server)"}
    elsewhere = [(Path(name), {"SBP-03", "ASEC-01"}) for name in ("test_docs.py", "interop/test_a.py", "cli/test_a.py")]
    assert unproven(rows, [server, client, *elsewhere]) == unproven(rows, [server, client])
