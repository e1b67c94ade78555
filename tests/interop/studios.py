"""The studio: a server whose tools run as tasks, with Weft and with the SDKs of peers; and the clients that drive it.

    with studio("mcp1", "http") as target:
        facts = drive("ext-v1", "http", target, "quick,slow")

A studio is a real process. `target` is the URL of one that is listening, or the command that starts one. A driver
takes the steps that are named, and prints what came of them. The tools are described in servers/studio.py.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from processes import CACHE, NODE, WEFT, listening, node_package, python_of

from support.ports import find_port

__all__ = ["DRIVERS", "Facts", "Target", "Way", "drive", "run", "studio"]

Facts: TypeAlias = dict[str, Any]
Target: TypeAlias = str | list[str]
Way: TypeAlias = Literal["http", "stdio"]

HERE = Path(__file__).parent
MODULES = CACHE / "node" / "node_modules"
SERVERS = HERE / "servers"


def python(peer: str, file: Path) -> list[str]:
    return [str(python_of(peer)), str(file)]


def node(package: str, file: Path, *first: str) -> list[str]:
    node_package(package)
    return [str(NODE), str(file), *first]


STUDIOS: Mapping[str, Callable[[], list[str]]] = {
    "weft": lambda: [*WEFT, str(SERVERS / "studio.py")],
    "fastmcp": lambda: python("fastmcp", SERVERS / "studio_fastmcp.py"),
    "mcp1": lambda: python("mcp1", SERVERS / "studio_mcp1.py"),
    "ts1": lambda: node("sdk", SERVERS / "studio_ts1.mjs", str(MODULES)),
}
DRIVERS: Mapping[str, Callable[[], list[str]]] = {
    "fastmcp": lambda: python("fastmcp", HERE / "drivers" / "tasks_fastmcp.py"),
    "mcp1": lambda: python("mcp1", HERE / "drivers" / "tasks_mcp1.py"),
    "ts1": lambda: node("sdk", HERE / "drivers" / "tasks_ts1.mjs", str(node_package("sdk"))),
    "ext-v1": lambda: node("ext-tasks", HERE / "drivers" / "tasks_ext.mjs", str(MODULES), "v1"),
    "ext-v2": lambda: node("ext-tasks", HERE / "drivers" / "tasks_ext.mjs", str(MODULES), "v2"),
    "receiver": lambda: node("ext-tasks", HERE / "drivers" / "tasks_receiver.mjs", str(MODULES)),
}


@contextmanager
def studio(name: str, way: Way) -> Iterator[Target]:
    """Start a studio over HTTP, and yield its URL; or yield the command of one over stdio."""
    command = STUDIOS[name]()
    if way == "stdio":
        yield command if name == "weft" else [*command, "stdio"]
        return
    port = find_port()
    options = ["--http", "--port", str(port)] if name == "weft" else ["http", str(port)]
    with listening([*command, *options], port):
        yield f"http://127.0.0.1:{port}/mcp"


def drive(driver: str, way: Way, target: Target, steps: str = "all") -> Facts:
    """Return what a peer's client learnt from a studio."""
    where = [target] if isinstance(target, str) else target
    done = subprocess.run(
        [*DRIVERS[driver](), steps, way, *where], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{driver} over {way} failed:\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def run(driver: str, server: str, way: Way, steps: str = "all") -> Facts:
    """Start a studio, and return what a peer's client learnt from it."""
    with studio(server, way) as target:
        return drive(driver, way, target, steps)
