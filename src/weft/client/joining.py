"""Combine the tools of several clients, by unique names.

The name of a joined tool begins with the name that the program gave to the server, not with the name that the server
gives itself. So no server can give a tool the name of another server's tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.client.client import Client
    from weft.client.results import ToolResult
    from weft.types.features import Tool

_BETWEEN = "__"
_KEY = re.compile(r"[A-Za-z0-9]+(?:[_.-][A-Za-z0-9]+)*")  # must not contain the separator "__"


@dataclass(frozen=True, slots=True)
class JoinedTool:
    """A tool with a name that is unique among the tools of several servers."""

    name: str  # such as `flights__book`
    tool: Tool  # the server's description; `tool.name` is the name that the server uses
    client: Client  # the client of the server that has the tool

    async def call(self, arguments: Mapping[str, Any] | None = None, **options: Any) -> ToolResult:
        """Call the tool on its server. `options` are the keyword arguments of `Client.call_tool`."""
        return await self.client.call_tool(self.tool.name, arguments, **options)


async def join_tools(clients: Mapping[str, Client]) -> dict[str, JoinedTool]:
    """Return the tools of several connected clients, by unique names such as `flights__book`.

    A unique name is the client's key in `clients`, then `__`, then the tool's name. Raises UsageError for an invalid
    key.

    tools = await join_tools({"flights": flights, "hotels": hotels})
    await tools["flights__book"].call({"flight": "LX38"})
    """
    found = [
        JoinedTool(joined_name(key, tool), tool, client)
        for key, client in clients.items()
        for tool in await client.list_tools()
    ]
    return {joined.name: joined for joined in found}


def joined_name(key: str, tool: Tool) -> str:
    """Return the unique name of a tool: `key`, then `__`, then the tool's name. Raises UsageError for an invalid key.

    A key must consist of letters and digits, with single "_", "-" or "." between them.
    """
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"The server name {key[:100]!r} cannot begin the names of tools; use letters and digits, with single '_', "
            "'-' or '.' between them."
        )
    return f"{key}{_BETWEEN}{tool.name}"
