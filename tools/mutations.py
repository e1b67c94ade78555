"""Finds the single mutations of a module: what tools/mutate.py tries one by one.

A mutation replaces one stretch of the source by another, so that its diff is one line or two. What says nothing of
behaviour is left alone: docstrings, log calls, the arguments of exceptions, assertions, annotations, `__repr__`,
and what only type checkers read.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutation", "find_mutations"]

FLIPPED = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.LtE: "<=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
CHECKERS = ("check", "_check", "require", "_require", "refuse", "_refuse", "verify", "_verify", "guard", "_guard")
LOGGERS = {"log", "logger", "logging", "warnings"}
UNREAD_FUNCTIONS = {"__repr__", "__str__", "__rich_repr__"}


@dataclass(frozen=True)
class Mutation:
    """One change of one module."""

    path: str
    kind: str
    start: int  # offsets in the source, as characters
    end: int
    new: str
    line: int
    last_line: int
    names: tuple[str, ...]  # the names that an import-time value gets: its users' tests are those that may notice
    function: str

    def apply(self, source: str) -> str:
        """Return the mutated source."""
        return source[: self.start] + self.new + source[self.end :]

    def diff(self, source: str) -> str:
        """Return the change as a unified diff."""
        mutated = self.apply(source)
        lines = difflib.unified_diff(
            source.splitlines(), mutated.splitlines(), f"a/{self.path}", f"b/{self.path}", lineterm="", n=2
        )
        return "\n".join(lines)

    def changed_lines(self, source: str) -> tuple[str, str]:
        """Return the lines that differ, before and after, without their indentation: what names it for ever."""
        before, after = [], []
        for line in list(difflib.ndiff(source.splitlines(), self.apply(source).splitlines())):
            if line.startswith("- "):
                before.append(line[2:].strip())
            elif line.startswith("+ "):
                after.append(line[2:].strip())
        return "\n".join(before), "\n".join(after)


def find_mutations(path: str, source: str) -> list[Mutation]:
    """Return every mutation of a module, in the order of its lines."""
    return sorted(set(_Finder(path, source).found()), key=lambda each: (each.start, each.end, each.new))


class _Finder:
    """Walks one module."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._source = source
        self._tree = ast.parse(source)
        self._starts = [0]  # where each line begins
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = source.splitlines(keepends=True)

    def found(self) -> Iterator[Mutation]:
        yield from self._body(self._tree.body, "", None)

    # --- where to look

    def _body(self, body: list[ast.stmt], where: str, function: ast.AST | None) -> Iterator[Mutation]:
        for statement in body:
            yield from self._statement(statement, where, function)

    def _statement(self, node: ast.stmt, where: str, function: ast.AST | None) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function(node, where)
        elif isinstance(node, ast.ClassDef):
            yield from self._body(node.body, f"{where}{node.name}.", None)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        elif isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.Raise | ast.Pass) or _is_unread(node):
            return
        else:
            names = () if function is not None else tuple(_targets(node))
            for kind, place, new in self._changes(node, function):
                yield self._mutation(kind, place, new, names, where)
            for field in ("body", "orelse", "finalbody"):
                yield from self._body(getattr(node, field, []), where, function)
            for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from self._body(part.body, where, function)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, where: str) -> Iterator[Mutation]:
        if node.name in UNREAD_FUNCTIONS or any("overload" in ast.dump(each) for each in node.decorator_list):
            return
        name = f"{where}{node.name}"
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
            for kind, place, new in self._constants(default):
                # Its value is made at import time; the tests of the function's body are those that may notice.
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                yield self._mutation(kind, place, new, (), name, (first.lineno, node.end_lineno or first.lineno))
        yield from self._body(node.body, f"{name}.", node)

    def _mutation(
        self,
        kind: str,
        place: tuple[int, int, int, int],
        new: str,
        names: tuple[str, ...],
        where: str,
        lines: tuple[int, int] | None = None,
    ) -> Mutation:
        start, end = self._offset(*place[:2]), self._offset(*place[2:])
        first, last = lines or (place[0], place[2])
        return Mutation(self._path, kind, start, end, new, first, last, names, where.rstrip("."))

    def _offset(self, line: int, column: int) -> int:
        """The place of a column, which ast counts in UTF-8 bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _text(self, node: ast.AST) -> str:
        return self._source[
            self._offset(node.lineno, node.col_offset) : self._offset(
                node.end_lineno, node.end_col_offset
            )  # type: ignore[attr-defined]
        ]

    # --- what to change

    def _changes(
        self, node: ast.stmt, function: ast.AST | None
    ) -> Iterator[tuple[str, tuple[int, int, int, int], str]]:
        if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise | ast.Return):
            yield "check removed", _place(node.test), "False"
        if isinstance(node, ast.Expr) and _is_check(node.value):
            yield "check removed", _place(node), "pass"
        if isinstance(node, ast.Return) and node.value is not None:
            yield from self._returned(node.value, function)
        for expression in _expressions(node):
            yield from self._expression(expression)

    def _returned(
        self, value: ast.expr, function: ast.AST | None
    ) -> Iterator[tuple[str, tuple[int, int, int, int], str]]:
        returns = getattr(function, "returns", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            return  # a constant changed does the same
        if isinstance(returns, ast.Name) and returns.id == "bool":
            yield "return value changed", _place(value), f"not ({self._text(value)})"
        elif not (isinstance(value, ast.Constant) and value.value is None):
            yield "return value changed", _place(value), "None"

    def _expression(self, node: ast.expr) -> Iterator[tuple[str, tuple[int, int, int, int], str]]:
        if isinstance(node, ast.Call) and _is_log(node.func):
            return
        if isinstance(node, ast.Lambda):
            yield from self._expression(node.body)
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield "comparison flipped", _place(node), self._flipped(node)
        elif isinstance(node, ast.BoolOp):
            yield "boolean operator swapped", _place(node), self._swapped(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not removed", _place(node), f"({self._text(node.operand)})"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("any", "all"):
            yield "boolean operator swapped", _place(node.func), "all" if node.func.id == "any" else "any"
        yield from self._constants(node)
        for child in ast.iter_child_nodes(node):
            for inner in _inner_expressions(child):
                yield from self._expression(inner)

    def _constants(self, node: ast.expr) -> Iterator[tuple[str, tuple[int, int, int, int], str]]:
        if not isinstance(node, ast.Constant):
            return
        value = node.value
        if isinstance(value, bool):
            yield "constant changed", _place(node), str(not value)
        elif isinstance(value, int | float) and (value > 1 or isinstance(value, float)):
            yield "bound x1000", _place(node), f"({self._text(node)} * 1000)"
        elif isinstance(value, int):
            yield "constant changed", _place(node), str(value + 1)

    def _flipped(self, node: ast.Compare) -> str:
        left, right = self._text(node.left), self._text(node.comparators[0])
        return f"({left}) {FLIPPED[type(node.ops[0])]} ({right})" if "\n" in left + right else self._in_place(node)

    def _in_place(self, node: ast.Compare) -> str:
        """The comparison with another operator, all else as it stands."""
        text = self._text(node)
        before = len(self._text(node.left))
        old, new = OPERATORS[type(node.ops[0])], FLIPPED[type(node.ops[0])]
        at = text.index(old, before)
        return text[:at] + new + text[at + len(old) :]

    def _swapped(self, node: ast.BoolOp) -> str:
        word = " or " if isinstance(node.op, ast.And) else " and "
        return "(" + word.join(f"({self._text(value)})" for value in node.values) + ")"


def _place(node: ast.AST) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, not those of the statements inside it, nor its annotation."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "target", "targets", "body", "orelse", "finalbody", "handlers", "type_params"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield each
            elif isinstance(each, ast.withitem):
                yield each.context_expr
            elif isinstance(each, ast.match_case) and each.guard is not None:
                yield each.guard


def _inner_expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.expr):
        yield node
    elif isinstance(node, ast.keyword | ast.comprehension):
        for child in ast.iter_child_nodes(node):
            yield from _inner_expressions(child)


def _targets(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        for part in ast.walk(target) if target is not None else ():
            if isinstance(part, ast.Name):
                yield part.id


def _is_unread(node: ast.stmt) -> bool:
    """Whether only people or type checkers read it: `if TYPE_CHECKING`, `__all__`, a call of a logger."""
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Call) and _is_log(value.func)
    return any(name in ("__all__", "__slots__") for name in _targets(node)) if isinstance(node, ast.Assign) else False


def _is_log(function: ast.expr) -> bool:
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in LOGGERS and isinstance(function, ast.Attribute)


def _is_check(value: ast.expr) -> bool:
    """Whether a call, for whose value the statement does not care, is one of a check."""
    call = value.value if isinstance(value, ast.Await) else value
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name.startswith(CHECKERS)
