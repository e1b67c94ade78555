"""What is measured: each server, the interpreter it runs under, and the program that defines one tool with it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = [
    "BARE",
    "BARE_STDIO",
    "FASTMCP",
    "MCP",
    "WEFT",
    "WEFT_AWAKE_LESS",
    "WEFT_BESIDE_FASTAPI",
    "WEFT_WITH_MIDDLEWARE",
    "Subject",
    "asking",
    "keeping_sessions",
    "mounted",
    "napping",
    "protected",
    "tuned",
    "with_redis",
    "working",
]

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".cache" / "peers"


@dataclass(frozen=True)
class Subject:
    """One server under measurement."""

    name: str
    python: str
    script: str
    package: str
    define: str = ""
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def command(self, *arguments: str) -> list[str]:
        script = [str(HERE / "servers" / self.script)] if self.script else []
        return [self.python, *script, *self.options, *arguments]

    def version(self) -> str:
        code = f"from importlib.metadata import version; print(version({self.package!r}))"
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


WEFT = Subject(
    "Weft",
    str(PEERS / "weft" / "bin" / "python"),
    "weft_server.py",
    "weft-mcp",
    "from weft import Server\n"
    "server = Server('bench', version='1.0')\n"
    "@server.tool\n"
    "async def add(a: int, b: int) -> int: return a + b",
)
MCP = Subject(
    "mcp",
    str(PEERS / "mcp" / "bin" / "python"),
    "mcp_server.py",
    "mcp",
    "from mcp.server.mcpserver import MCPServer\n"
    "server = MCPServer('bench')\n"
    "@server.tool()\n"
    "async def add(a: int, b: int) -> int: return a + b",
)
FASTMCP = Subject(
    "fastmcp",
    str(PEERS / "fastmcp" / "bin" / "python"),
    "fastmcp_server.py",
    "fastmcp",
    "from fastmcp import FastMCP\n"
    "server = FastMCP('bench')\n"
    "@server.tool\n"
    "async def add(a: int, b: int) -> int: return a + b",
)
# The same, where FastAPI is installed too, and with it OpenTelemetry's API.
WEFT_BESIDE_FASTAPI = replace(
    WEFT, name="Weft beside FastAPI and OpenTelemetry", python=str(PEERS / "weft_fastapi" / "bin" / "python")
)
WEFT_WITH_MIDDLEWARE = replace(WEFT, name="Weft with one middleware", options=("--middleware",))
WEFT_AWAKE_LESS = replace(WEFT, options=("--no-linger",))
BARE = Subject("bare uvicorn + msgspec", WEFT.python, "bare_server.py", "uvicorn", "pass")
BARE_STDIO = Subject("bare os.read + msgspec", WEFT.python, "bare_stdio.py", "msgspec")


def tuned(peer: Subject) -> Subject:
    """The peer at its quickest: JSON answers, no access log, and the engine that Weft's uvicorn has."""
    engine = {"PYTHONPATH": str(PEERS / "engine")}
    return replace(peer, name=f"{peer.name}, tuned", options=("--tuned",), environment=engine)


def mounted(subject: Subject) -> Subject:
    """The app of a server under `uvicorn module:app`, which is how most people deploy."""
    module = subject.script.removesuffix(".py")
    uvicorn = ("-m", "uvicorn", "--factory", f"{module}:make_app", "--app-dir", str(HERE / "servers"))
    return replace(subject, script="", options=uvicorn)


def asking(subject: Subject) -> Subject:
    """The same SDK with the server that asks, and tells of changes."""
    return replace(subject, script=subject.script.replace("_server", "_asking"))


def protected(subject: Subject) -> Subject:
    """The same SDK with the server that wants a token."""
    return replace(subject, script=subject.script.replace("_server", "_protected"))


def keeping_sessions(subject: Subject) -> Subject:
    """The same SDK with the server that remembers its clients."""
    return replace(subject, script=subject.script.replace("_server", "_sessions"))


def working(subject: Subject) -> Subject:
    """The same with a tool that takes about a millisecond of a processor."""
    return replace(subject, script=subject.script.replace("_server", "_working"))


def napping(subject: Subject) -> Subject:
    """The same SDK with the server whose calls become tasks."""
    return replace(subject, script=subject.script.replace("_server", "_napping"))


def with_redis(subject: Subject, url: str) -> Subject:
    """The same server of Weft with a backend in Redis, and the key that its processes have to share."""
    environment = {**subject.environment, "WEFT_BACKEND": url, "WEFT_STATE_KEY": "only-for-the-benchmark-" * 2}
    return replace(subject, name=f"{subject.name} with Redis", environment=environment)
