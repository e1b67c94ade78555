"""Docstrings: the description of a function, and of each of its parameters.

Reads the Google, NumPy and Sphinx styles line by line, in one pass; what it does not recognise stays in the
description. It knows nothing of the function itself, and never fails.
"""

from __future__ import annotations

import inspect
import re

import msgspec

_HEADER = re.compile(
    r"(?:args|arguments|params|parameters|keyword args|keyword arguments|other parameters)(:?)", re.IGNORECASE
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+) ?(?:\([^)]*\))? ?:(?: |$)")
_SPHINX_ENTRY = re.compile(r":(param|parameter|arg|argument|key|keyword|type) ([^:]*):")
_UNDERLINE = re.compile(r"-{3,}")


class Docstring(msgspec.Struct, frozen=True):
    """`summary` is the whole description without its parameter section; `params` describes each parameter."""

    summary: str = ""
    params: dict[str, str] = msgspec.field(default_factory=dict[str, str])


def parse(doc: str | None) -> Docstring:
    """Split a docstring.

    >>> parse('''Add two numbers.
    ...
    ... Args:
    ...     a: The first.
    ...     b: The second,
    ...         on two lines.
    ... ''')
    Docstring(summary='Add two numbers.', params={'a': 'The first.', 'b': 'The second, on two lines.'})
    """
    if not doc:
        return Docstring()
    lines = inspect.cleandoc(doc).splitlines()
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        after = _sphinx(lines, at, found) or _numpy(lines, at, found) or _google(lines, at, found)
        if after:
            at = after
            continue
        kept.append(lines[at])
        at += 1
    params = {name: " ".join(text).strip() for name, text in found.items()}
    return Docstring(_tidy(kept), {name: text for name, text in params.items() if text})


def _sphinx(lines: list[str], at: int, found: dict[str, list[str]]) -> int | None:
    """Read `:param name: text`; the number of the line after it, or None when there is none here."""
    entry = _SPHINX_ENTRY.match(lines[at].strip())
    if not entry:
        return None
    words = entry[2].split()
    text = [lines[at].strip()[entry.end() :].strip()]
    margin = _indent(lines[at])
    at += 1
    while at < len(lines) and lines[at].strip() and _indent(lines[at]) > margin:
        text.append(lines[at].strip())
        at += 1
    if entry[1] != "type" and words:
        found[words[-1].lstrip("*")] = text
    return at


def _numpy(lines: list[str], at: int, found: dict[str, list[str]]) -> int | None:
    """Read a `Parameters` section under dashes; entries stand at its margin, their text is indented."""
    if at + 1 >= len(lines) or not _is_header(lines[at], colon=False) or not _is_underline(lines, at + 1):
        return None
    margin = _indent(lines[at])
    names: list[str] = []
    at += 2
    while at < len(lines) and not _is_underline(lines, at + 1):
        line = lines[at]
        if line.strip() and _indent(line) < margin:
            break
        if line.strip() and _indent(line) == margin:
            names = [name.strip().lstrip("*") for name in line.partition(":")[0].split(",")]
            found.update({name: [] for name in names})
        elif line.strip():
            for name in names:
                found[name].append(line.strip())
        at += 1
    return at


def _google(lines: list[str], at: int, found: dict[str, list[str]]) -> int | None:
    """Read an `Args:` section; entries are indented, their further lines more so."""
    if not _is_header(lines[at], colon=True):
        return None
    margin = _indent(lines[at])
    entry_margin: int | None = None
    text: list[str] | None = None
    at += 1
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > margin):
        line = lines[at].strip()
        at += 1
        if not line:
            continue
        if entry_margin is None:
            entry_margin = _indent(lines[at - 1])
        entry = _GOOGLE_ENTRY.match(line) if _indent(lines[at - 1]) <= entry_margin else None
        if entry:
            text = found.setdefault(entry[1], [])
            line = line[entry.end() :].strip()
        if text is not None:
            text.append(line)
    return at


def _is_header(line: str, *, colon: bool) -> bool:
    match = _HEADER.fullmatch(line.strip())
    return match is not None and bool(match[1]) == colon


def _is_underline(lines: list[str], at: int) -> bool:
    return at < len(lines) and _UNDERLINE.fullmatch(lines[at].strip()) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _tidy(lines: list[str]) -> str:
    """The lines as one text, where what was cut out leaves no more than one empty line."""
    text: list[str] = []
    for line in lines:
        if line.strip() or (text and text[-1]):
            text.append(line.rstrip())
    return "\n".join(text).strip()
