"""What a client knows of the server's tools: which arguments go into headers, and what their results look like.

Owns that knowledge, and the checks that follow from it. It fetches nothing: it learns from the lists that pass by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from weft.client.results import ToolResult
from weft.errors import InvalidAnswer, UsageError
from weft.protocol.headers import Mirror, find_mirrors, mirror_values
from weft.protocol.logs import Seldom
from weft.protocol.schema import SchemaError, Validator, compile_schema
from weft.types.tools import Tool

__all__ = ["Toolbox"]

log = logging.getLogger("weft.client")

_MOST_TOLD = 20  # tools that are left out, of which each has a line in the log


class _Known:
    """One tool."""

    __slots__ = ("mirrors", "output_schema", "validator")

    def __init__(self, mirrors: tuple[Mirror, ...], output_schema: Mapping[str, Any] | None) -> None:
        self.mirrors = mirrors
        self.output_schema = output_schema
        self.validator: Validator | None = None  # made when it is first needed


class Toolbox:
    """The tools that are known."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.is_complete = False  # all pages were seen since the last change
        self._told: set[str] = set()  # tools that the log says are left out
        self._seldom = Seldom(log)

    def learn_all(self, tools: Iterable[Tool], *, mirrors: bool) -> list[Tool]:
        """Take in the whole list: a tool that is not in it any more is not known any more."""
        usable = self.learn(tools, mirrors=mirrors)
        listed = {tool.name for tool in usable}
        self._known = {name: known for name, known in self._known.items() if name in listed}
        self.is_complete = True
        return usable

    def learn(self, tools: Iterable[Tool], *, mirrors: bool) -> list[Tool]:
        """Take in a page; returns the tools that can be used.

        Where arguments are mirrored in headers, a tool whose annotations are wrong is left out (HDR-23, HDR-24).
        """
        usable: list[Tool] = []
        for tool in tools:
            found: tuple[Mirror, ...] = ()
            try:
                if mirrors:
                    found = find_mirrors(tool.input_schema)
            except ValueError as error:
                self._leave_out(tool.name[:200], error)
                self._known.pop(tool.name, None)
                continue
            known = self._known.get(tool.name)
            if known is None or known.mirrors != found or known.output_schema != tool.output_schema:
                self._known[tool.name] = _Known(found, tool.output_schema)
            usable.append(tool)
        return usable

    def _leave_out(self, name: str, error: ValueError) -> None:
        """Tell of each tool once, as long as they are few."""
        if name in self._told:
            return
        if len(self._told) < _MOST_TOLD:
            self._told.add(name)
            log.warning("The tool %r is left out: %s", name, error)
        else:
            self._seldom.warning("More tools are left out, such as %r: %s", name, error)

    def forget(self) -> None:
        """The list has changed: what is known of tools may be wrong, but is the best there is until it is fetched."""
        self.is_complete = False

    def knows(self, name: str) -> bool:
        """Whether a tool has been seen."""
        return name in self._known

    def headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The headers that repeat arguments; none for a tool that has no such, or is not known."""
        known = self._known.get(name)
        if known is None or not known.mirrors:
            return {}
        try:
            return mirror_values(known.mirrors, arguments)
        except ValueError as error:
            raise UsageError(f"The arguments of {name!r} cannot be sent: {error}") from None

    def check(self, name: str, result: ToolResult) -> None:
        """Compare a result with the schema that its tool was published with; InvalidAnswer when it does not fit."""
        known = self._known.get(name)
        if known is None or known.output_schema is None or result.is_error:
            return
        if result.structured_content is UNSET:
            raise InvalidAnswer(
                f"The tool {name!r} promises structured content by its outputSchema, and sent none. That is the "
                "server's fault; `check_output=False` takes the result as it is."
            )
        if known.validator is None:
            try:
                known.validator = compile_schema(known.output_schema)
            except SchemaError as error:
                raise InvalidAnswer(
                    f"The result of {name!r} cannot be checked: {error} `check_output=False` takes it as it is."
                ) from None
        problems = known.validator.problems(result.structured_content, 3)
        if problems:
            raise InvalidAnswer(
                f"The result of {name!r} does not fit its outputSchema: {' '.join(map(str, problems))} That is the "
                "server's fault; `check_output=False` takes the result as it is."
            )
