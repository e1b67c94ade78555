"""Print what a server sent, with everything escaped that a terminal would act on.

A terminal acts on control characters, a line break in a name starts a line that looks like one of ours, and marks of
text direction make a text look like another. So all of them are written as escapes, also to a file. They are the
escapes of JSON: what was valid JSON stays valid.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

import msgspec

from weft.errors import UsageError

# Control characters, line separators, marks of direction, and invisible characters: tags, the byte order mark.
_ACTED_ON = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_LINE_ENDS = re.compile("(\r?\n|\t)")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class WrongCommand(UsageError):
    """The command line asks for something that cannot be done."""


def to_line(text: str) -> str:
    r"""Return a text as one line, with nothing in it that a terminal would act on.

    >>> print(to_line("tea\nmilk\x1b[2J"))
    tea\nmilk\u001b[2J
    """
    return _ACTED_ON.sub(_escape, text)


def to_text(text: str) -> str:
    r"""Return a text with its lines and tabs, and with nothing else in it that a terminal would act on.

    >>> print(to_text("tea\n\x1b[2Jmilk"))
    tea
    \u001b[2Jmilk
    """
    parts = _LINE_ENDS.split(text)
    parts[::2] = map(to_line, parts[::2])
    return "".join(parts)


def show_failure(text: str) -> None:
    """Print an error on stderr. Further lines, which may be the server's, are marked, so that none looks like ours."""
    print("\n  | ".join(f"weft: {to_text(text)}".splitlines()), file=sys.stderr)


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def show(text: str, stream: TextIO | None = None) -> None:
    """Print a text from the server that may have several lines."""
    print(to_text(text), file=stream or sys.stdout)


def show_line(text: str, stream: TextIO | None = None) -> None:
    """Print one line that contains text from the server."""
    print(to_line(text), file=stream or sys.stdout)


def show_json(value: Any, stream: TextIO | None = None) -> None:
    """Print a value from the server as JSON."""
    show(msgspec.json.format(msgspec.json.encode(value)).decode(), stream)
