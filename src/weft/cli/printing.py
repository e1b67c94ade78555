"""Print texts from a server. Escape all characters that could deceive the user.

Control characters can change what the terminal shows. A line break in a name starts a line that looks like a line of
`weft`. Characters that change the text direction make a text look like another text. All of these are printed as JSON
escapes, so that valid JSON stays valid, also if the output goes to a file.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

import msgspec

from weft.errors import UsageError

# Control characters, line separators, text direction marks, and invisible characters such as tags and byte order marks.
_ACTED_ON = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_LINE_ENDS = re.compile("(\r?\n|\t)")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class WrongCommand(UsageError):
    """The error for a wrong command line. The exit code is 2."""


def to_line(text: str) -> str:
    r"""Return a text as one line. Line breaks and all characters that affect a terminal are escaped.

    >>> print(to_line("tea\nmilk\x1b[2J"))
    tea\nmilk\u001b[2J
    """
    return _ACTED_ON.sub(_escape, text)


def to_text(text: str) -> str:
    r"""Return a text with unchanged line breaks and tabs. All other characters that affect a terminal are escaped.

    >>> print(to_text("tea\n\x1b[2Jmilk"))
    tea
    \u001b[2Jmilk
    """
    parts = _LINE_ENDS.split(text)
    parts[::2] = map(to_line, parts[::2])
    return "".join(parts)


def show_failure(text: str) -> None:
    """Print an error message on stderr.

    The second and later lines begin with `|`, because a server may have written them.
    """
    print("\n  | ".join(f"weft: {to_text(text)}".splitlines()), file=sys.stderr)


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def show(text: str, stream: TextIO | None = None) -> None:
    """Print a text from a server with its line breaks. Other characters that affect a terminal are escaped."""
    print(to_text(text), file=stream or sys.stdout)


def show_line(text: str, stream: TextIO | None = None) -> None:
    """Print a text from a server as one line. Line breaks are escaped."""
    print(to_line(text), file=stream or sys.stdout)


def show_json(value: Any, stream: TextIO | None = None) -> None:
    """Print a value from a server as indented JSON."""
    show(msgspec.json.format(msgspec.json.encode(value)).decode(), stream)
