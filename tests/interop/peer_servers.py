"""The peers' servers, for a client to be driven against: real processes, on loopback, at free ports.

    with start("mcp2", "http") as url: ...
    with start("ts1", "stdio") as command: ...

LIBRARIES are one library on five SDKs, with the names and words of examples/server.py where it has the feature:
tools add, greet, lend, take_stock (progress), reserve (elicits a form), pay_fine (elicits a URL), sample, roots,
announce (logs), pin_notice (updates library://notices), turn_cafe_sign (the list of tools changes), wait_at_desk and
count_given_up_waits (cancelling), ring_back (slow, to be cut off), hang_up (closes its own stream); resources
library://catalogue and library://notices, template library://books/{book_id}, prompt recommend; both complete.
The others are servers that people use, as they come.
"""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from processes import CACHE, NODE, listening, node_package, python_of

from support.ports import find_port

__all__ = ["LACKING", "LIBRARIES", "SERVERS", "STATELESS", "start"]

HERE = Path(__file__).parent / "servers"
MODULES = CACHE / "node" / "node_modules"
Transport = Literal["http", "stdio"]

LIBRARIES = ("mcp1", "mcp2", "fastmcp", "ts1", "ts2")
SERVERS = [
    *((name, transport) for name in (*LIBRARIES, "everything") for transport in ("http", "stdio")),
    ("time", "stdio"),
    ("git", "stdio"),
]
STATELESS = frozenset({"mcp2", "fastmcp", "ts2", "time", "git"})  # they serve both eras; the others the session era

# What a library cannot do for its SDK; a test suite over all of them leaves it out there.
LACKING: Mapping[str, frozenset[str]] = {
    "mcp1": frozenset(),
    "mcp2": frozenset(),
    "fastmcp": frozenset({"listen"}),  # in the stateless era: -32601
    "ts1": frozenset(),
    "ts2": frozenset({"elicitation complete"}),  # its questions have no id of the server's making
}


def library_command(name: str) -> list[str]:
    """The command of a library, without its transport."""
    if name.startswith("ts"):
        node_package("sdk" if name == "ts1" else "server")
        return [str(NODE), str(HERE / f"reference_{name}.mjs"), str(MODULES)]
    return [str(python_of("mcp" if name == "mcp2" else name)), str(HERE / f"reference_{name}.py")]


def everything_command(transport: str) -> list[str]:
    node_package("server-everything")
    return [str(NODE), str(HERE / "everything.mjs"), str(MODULES), transport]


def installed(program: str) -> str:
    """A program of the virtual environment `servers`."""
    return str(python_of("servers").parent / program)


@contextmanager
def repository() -> Iterator[str]:
    """A git repository with one commit, README by Ada."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "README").write_text("A library.\n")
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@library.example", "-c", "init.defaultBranch=main"]
        for words in (["init", "-q"], ["add", "README"], ["commit", "-q", "-m", "Open the library"]):
            subprocess.run(["git", *who, *words], cwd=folder, check=True)
        yield folder


@contextmanager
def at_url(command: Sequence[str], port: int, env: Mapping[str, str]) -> Iterator[str]:
    with listening(command, port, env):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def start(name: str, transport: Transport) -> Iterator[str | list[str]]:
    """The URL of a server that is listening, or the command that starts one. Skips the test if it is not installed."""
    if (name, transport) not in SERVERS:
        raise ValueError(f"There is no {name!r} over {transport}: SERVERS lists what there is.")
    port = find_port()
    if name == "git":
        with repository() as folder:
            yield [installed("mcp-server-git"), "--repository", folder]
    elif name == "time":
        yield [installed("mcp-server-time"), "--local-timezone", "Europe/Zurich"]
    elif transport == "stdio":
        yield everything_command("stdio") if name == "everything" else [*library_command(name), "stdio"]
    elif name == "everything":
        with at_url(everything_command("streamableHttp"), port, {"PORT": str(port)}) as url:
            yield url
    else:
        with at_url([*library_command(name), "http", str(port)], port, {}) as url:
            yield url
