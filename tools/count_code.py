"""Count the modules of src/weft and their lines of code: without blank lines, comments and docstrings.

`make check` prints the sum; `python tools/count_code.py --rooms` each folder too.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "weft"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_lines(source: str) -> int:
    """Return the number of lines of code in a module."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for one in tokens if one.type not in NO_CODE for line in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def main() -> None:
    modules, lines = Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        room = path.parent.relative_to(PACKAGE.parent).as_posix()
        modules[room] += 1
        lines[room] += count_lines(path.read_text())
    if "--rooms" in sys.argv:
        for room in sorted(modules):
            print(f"{room}: {modules[room]} modules, {lines[room]:,} lines of code")
    print(f"src/weft: {modules.total()} modules, {lines.total():,} lines of code")


if __name__ == "__main__":
    main()
