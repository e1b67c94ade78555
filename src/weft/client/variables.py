"""Variables of the environment in an entry of an `mcpServers` configuration, written as editors have them.

    ${NAME}  ${env:NAME}      the value of a variable
    ${NAME:-other}            or something else, where it is not set or empty

So a file that names a token need not hold it. Owns how they are written, and which of them were taken: whoever got the
file from somebody else wants to know that before anything is sent. Values are in no message of this module; errors show
the command as it is written in the file, and a URL as it was filled in, without its query.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from weft.errors import UsageError

__all__ = ["Variables"]

_VARIABLE = re.compile(r"\$\{(?:(?P<kind>[A-Za-z]+):)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<other>[^}]*))?\}")


class Variables:
    """Fills in the variables of one entry.

    >>> Variables("The entry", {"DAY": "today"}).fill("${DAY}, ${env:NO_SUCH_HOUR:-noon}")
    'today, noon'
    """

    def __init__(self, what: str, own: Mapping[str, str] | None = None) -> None:
        self._what = what  # the entry, for messages
        self._own = own or {}  # variables that it sets itself
        self._taken: dict[str, None] = {}

    @property
    def taken(self) -> tuple[str, ...]:
        """Those whose values came from the environment."""
        return tuple(self._taken)

    def fill(self, text: str) -> str:
        """The text with their values; UsageError that names one that is not set."""
        return _VARIABLE.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        name, other = found["name"], found["other"]
        if found["kind"] not in (None, "env"):
            raise UsageError(
                f"{self._what} has {found[0][:60]!r}, which only some editors can fill in; write ${{NAME}} for a "
                "variable of the environment."
            )
        value = self._own.get(name)
        if value is None and (value := os.environ.get(name)):
            self._taken[name] = None
        if value:
            return value
        if other is None and value is None:
            raise UsageError(f"{self._what} needs the variable {name[:60]!r} of the environment, which is not set.")
        return other or ""
