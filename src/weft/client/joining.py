"""The tools of several servers as one list, for a model that is to choose among them all.

Owns their names there. Each begins with the name that the program itself gave to the server: what a server calls itself
is no name to rely on, for any other may call itself the same (TOOL-08). So no server can give a tool the name of
another one's, and a name stays what it is whatever tools the others have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from weft.client.client import Client
from weft.client.mistakes import kind_of
from weft.client.results import ToolResult
from weft.errors import UsageError
from weft.types.tools import Tool

__all__ = ["JoinedTool", "check_clients", "join_tools", "joined_name"]

_BETWEEN = "__"
_KEY = re.compile(r"[A-Za-z0-9]+(?:[_.-][A-Za-z0-9]+)*")  # nothing that could be read as the end of it


@dataclass(frozen=True, slots=True)
class JoinedTool:
    """A tool, by a name that no other tool of any of the servers has."""

    name: str
    tool: Tool  # as its server describes it, with the name that it has there
    client: Client

    async def call(self, arguments: Mapping[str, Any] | None = None, **options: Any) -> ToolResult:
        """Call it where it is; the options are those of `Client.call_tool`."""
        return await self.client.call_tool(self.tool.name, arguments, **options)


async def join_tools(clients: Mapping[str, Client]) -> dict[str, JoinedTool]:
    """All tools of some connected clients, by names such as `flights__book`: the name given here, and the tool's own.

    tools = await join_tools({"flights": flights, "hotels": hotels})
    await tools["flights__book"].call({"flight": "LX38"})
    """
    check_clients(clients, Client)
    found = [
        JoinedTool(joined_name(key, tool), tool, client)
        for key, client in clients.items()
        for tool in await client.list_tools()
    ]
    return {joined.name: joined for joined in found}


def joined_name(key: str, tool: Tool) -> str:
    """What a tool is called among those of all servers."""
    return f"{key}{_BETWEEN}{tool.name}"


def check_clients(clients: Any, kind: type) -> None:
    """UsageError unless these are clients of a kind, by names that can begin those of tools."""
    if not isinstance(clients, Mapping):
        raise UsageError(
            f"join_tools was given {kind_of(clients)}; give a dictionary of names to clients: "
            "{'flights': flights, 'hotels': hotels}."
        )
    for key, client in cast("Mapping[Any, Any]", clients).items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise UsageError(
                f"The server name {str(key)[:100]!r} cannot begin the names of tools; use letters and digits, with "
                "single '_', '-' or '.' between them."
            )
        if not isinstance(client, kind):
            raise UsageError(
                f"join_tools was given {kind_of(client)} as {key!r}; give clients: `weft.client.joining.join_tools` "
                "takes those of `weft.Client`, `weft.sync.join_tools` those of `weft.sync.Client`."
            )
