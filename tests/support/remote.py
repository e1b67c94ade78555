"""A server in other processes, in the hands of a test: what a test does with a `Server` of this process, from outside.

A server file calls `remote_controlled`; the test has a `RemoteServer`. An order is a call of a tool that no list shows.
It reaches any of the processes, so a change that a test makes is usually made in another process than the one that has
the stream on which it is told. Each process also notes which requests it has served.
"""

import asyncio
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from support.notes import FileNotes
from support.wire import RawClient
from weft import Context, Server
from weft.types import CallToolResult

__all__ = ["NOTES", "RemoteServer", "Served", "remote_controlled", "shared_notes"]

NOTES = "WEFT_TEST_NOTES"  # environment variable: the folder of the notes
_ORDER = "remote-control"  # name of the tool
_SERVED = "served"  # key of the notes about requests


def shared_notes() -> FileNotes:
    """The notes that the processes of a deployment share with the test."""
    return FileNotes(Path(os.environ[NOTES]))


def remote_controlled(server: Server) -> Server:
    """Let a server obey the orders of a `RemoteServer`, and note what it serves."""
    notes, engine = shared_notes(), server.engine

    @server.middleware
    async def control(ctx: Context, next: Any) -> Any:
        if ctx.method != "tools/call" or ctx.params.name != _ORDER:
            notes.add(_SERVED, f"{os.getpid()} {ctx.session_id or '-'} {ctx.method}")
            return await next()
        order = dict(ctx.params.arguments or {})
        if order["what"] != "state":
            getattr(server, order["what"])(*order["arguments"])
            await _until_sent(engine.fleet)
        state = {
            "process": os.getpid(),
            "in_flight": engine.in_flight - 1,  # without this one
            "sessions": len(engine.sessions),
            "subscriptions": len(engine.subscriptions),
        }
        return CallToolResult(content=[], structured_content=state)

    return server


async def _until_sent(fleet: Any) -> None:
    """Wait until the other workers were told of all changes, so that what the test does next comes later."""
    await asyncio.sleep(0)
    while fleet._unsent or not (fleet._sending is None or fleet._sending.done()):  # noqa: ASYNC110 - of the server
        await asyncio.sleep(0.002)


class Served(NamedTuple):
    """A request that a process has served."""

    process: int
    session: str | None
    method: str


class RemoteServer:
    """Gives orders to the processes of a deployment, and asks them for their state."""

    def __init__(self, client: RawClient, folder: Path, processes: int) -> None:
        self._client = client
        self._processes = processes
        self.log = FileNotes(folder)
        self.engine = _RemoteEngine(self)

    # What a `Server` has.

    def notify_resource_updated(self, uri: str) -> None:
        self.order("notify_resource_updated", uri)

    def notify_tools_changed(self) -> None:
        self.order("notify_tools_changed")

    def notify_prompts_changed(self) -> None:
        self.order("notify_prompts_changed")

    def notify_resources_changed(self) -> None:
        self.order("notify_resources_changed")

    # What only this has.

    def order(self, what: str, *arguments: Any) -> dict[str, Any]:
        """Let any process do something. Its state afterwards."""
        order = {"what": what, "arguments": arguments}
        return self._client.tool(_ORDER, order).result["structuredContent"]

    def states(self) -> list[dict[str, Any]]:
        """The state of each process."""
        found: dict[int, dict[str, Any]] = {}
        for _ in range(1000):
            state = self.order("state")
            found[state["process"]] = state
            if len(found) == self._processes:
                return list(found.values())
        raise AssertionError(f"of {self._processes} processes, only {sorted(found)} answer")

    @property
    def served(self) -> list[Served]:
        """All requests that were served so far."""
        words = [word.split(" ") for word in self.log.of(_SERVED)]
        return [Served(int(process), None if id == "-" else id, method) for process, id, method in words]

    @property
    def per_process(self) -> Counter[int]:
        """How many requests each process has served."""
        return Counter(one.process for one in self.served)

    @property
    def processes_of_sessions(self) -> dict[str | None, set[int]]:
        """The processes that have served each session."""
        found: dict[str | None, set[int]] = defaultdict(set)
        for one in self.served:
            if one.session is not None:
                found[one.session].add(one.process)
        return found


class _RemoteEngine:
    """The state of all processes together, under the names that it has in an engine."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server
        self.sessions = _Counted(server, "sessions")
        self.subscriptions = _Counted(server, "subscriptions")

    @property
    def in_flight(self) -> int:
        return len(_Counted(self._server, "in_flight"))


class _Counted:
    def __init__(self, server: RemoteServer, name: str) -> None:
        self._server = server
        self._name = name

    def __len__(self) -> int:
        return sum(state[self._name] for state in self._server.states())
