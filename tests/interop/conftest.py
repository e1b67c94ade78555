"""The example server and the peers' clients that drive it: real processes, a real socket, real pipes.

`make test` fetches the peers; where it could not, .cache/missing.json says why, and the tests skip with that reason.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import NODE, ROOT, WEFT, Process, listening, node_package, python_of, skip_without

from support.ports import find_port

DRIVERS = Path(__file__).parent / "drivers"
EXAMPLE = str(ROOT / "examples" / "server.py")


def python_client() -> list[str]:
    return [str(python_of("mcp")), str(DRIVERS / "mcp_client.py")]


def typescript_client() -> list[str]:
    return [str(NODE), str(DRIVERS / "ts_client.mjs"), str(node_package("client"))]


CLIENTS: dict[str, Callable[[], list[str]]] = {"python": python_client, "typescript": typescript_client}


@pytest.fixture(scope="session")
def example_url() -> Iterator[str]:
    """The example server over HTTP, as `make run` starts it."""
    port = find_port()
    with listening([*WEFT, EXAMPLE, "--http", "--port", str(port)], port):
        yield f"http://127.0.0.1:{port}/mcp"


@dataclass
class Fleet:
    """Server processes behind nginx, which takes them in turn."""

    port: int
    processes: list[Process]


@pytest.fixture
def start_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Starts a process of a server for each environment, and nginx before them."""
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    skip_without("nginx", Path(nginx or "nginx"))
    with ExitStack() as stack:

        def start(file: Path, *environments: Mapping[str, str]) -> Fleet:
            ports = [find_port() for _ in environments]
            processes = [
                stack.enter_context(listening([*WEFT, str(file), "--http", "--port", str(port)], port, env))
                for port, env in zip(ports, environments, strict=True)
            ]
            front = find_port()
            settings = tmp_path / "nginx.conf"
            settings.write_text(nginx_settings(tmp_path, front, ports))
            stack.enter_context(listening([str(nginx), "-p", str(tmp_path), "-c", str(settings)], front))
            return Fleet(front, processes)

        yield start


def nginx_settings(folder: Path, front: int, ports: Sequence[int]) -> str:
    """As plain as can be: all that is not nginx's default is that it runs here, and speaks HTTP/1.1 to the servers."""
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    servers = "".join(f"server 127.0.0.1:{port};" for port in ports)
    return f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
        events {{ worker_connections 256; }}
        http {{
            access_log off; client_body_temp_path {folder}/body; {places}
            upstream servers {{ {servers} }}
            server {{
                listen 127.0.0.1:{front};
                location / {{ proxy_pass http://servers; proxy_http_version 1.1; proxy_set_header Host $http_host; }}
            }}
        }}
    """


@pytest.fixture(scope="session", params=[f"{client}-{way}" for client in CLIENTS for way in ("http", "stdio")])
def facts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a peer's client learnt from the example server, over one of the transports."""
    client, _, way = request.param.partition("-")
    driver = CLIENTS[client]()
    target = [request.getfixturevalue("example_url")] if way == "http" else [*WEFT, EXAMPLE]
    done = subprocess.run([*driver, way, *target], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"{client} over {way} failed:\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])
