"""Server files as people deploy them: processes behind nginx that share a Redis, or the workers of `--workers`.

with behind_nginx(file, folder) as deployment:   # three processes, nginx in round robin, Redis
    deployment.tool("add", {"a": 2, "b": 3})
    deployment.workers[0].kill()
    deployment.workers[0].start()                # at the same port
with with_workers(file, folder) as deployment:   # weft run FILE --http --workers 3
    ...
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from support.needed import skip_without
from support.ports import find_port, until_listening
from support.redis_servers import RedisServer, redis_server, until
from support.remote import NOTES, RemoteServer
from support.wire import RawClient

__all__ = [
    "Deployment",
    "NginxDeployment",
    "ServerProcess",
    "WorkersDeployment",
    "behind_nginx",
    "find_nginx",
    "with_workers",
]

TESTS = Path(__file__).resolve().parents[1]
WEFT = Path(sys.executable).parent / "weft"
COUNT = 3  # processes of a deployment
# What must not be in the log of a process: an exception that reached uvicorn or the event loop.
_FAULTS = ("Exception in ASGI application", "exception was never retrieved", "Exception in callback")


class ServerProcess:
    """A program that listens at a port. It can be killed and started again; its output is in a file."""

    def __init__(self, command: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.port = port
        self.log = log
        self._command = command
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def launch(self) -> None:
        """Start the program without waiting for it."""
        assert self._process is None, "it runs already"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=self._env
            )

    def wait(self) -> None:
        """Wait until the program listens."""
        assert self._process is not None
        until_listening(self._process, self.port)
        assert self._process.poll() is None, f"{self._command[0]} ended:\n{self.log.read_text()}"

    def start(self) -> None:
        self.launch()
        self.wait()

    def kill(self) -> None:
        """End the program as a power failure does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the program as an administrator does who is in a hurry: calls that still run are not awaited."""
        self._end(signal.SIGTERM, signal.SIGINT)

    def stop_gently(self) -> None:
        """End the program as a rolling restart does: calls that still run may end."""
        self._end(signal.SIGTERM)

    def _end(self, *signals: signal.Signals) -> None:
        if self._process is None:
            return
        for sign in signals:
            self._process.send_signal(sign)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
                break
        self._process.wait(60)
        self._process = None


class Deployment(RawClient):
    """A server in several processes at one address, and a client of it."""

    def __init__(self, port: int, folder: Path, logs: Sequence[Path], processes: int = COUNT) -> None:
        self.port = port
        self.folder = folder
        self.processes = processes
        self.server = RemoteServer(self, folder, processes)
        self.logs = logs

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def said(self) -> str:
        """All that the processes have written."""
        return "".join(log.read_text() for log in self.logs)

    @property
    def faults(self) -> list[str]:
        """What the processes had to say of exceptions that nothing has caught."""
        return [line for line in self.said.splitlines() if any(fault in line for fault in _FAULTS)]

    def healthy(self) -> bool:
        """Whether the server still answers, and nothing ever left the app."""
        return self.tool("add", {"a": 2, "b": 3}).result["structuredContent"] == 5 and self.faults == []


class Passed(NamedTuple):
    """A request that nginx has passed on. What it does not have is "-"."""

    port: int  # of the process that has answered
    verb: str
    status: str
    session: str
    last_event: str


class NginxDeployment(Deployment):
    """Processes behind nginx that share a Redis. nginx takes the processes in turn."""

    def __init__(self, nginx: ServerProcess, workers: list[ServerProcess], redis: RedisServer, folder: Path) -> None:
        super().__init__(nginx.port, folder, [worker.log for worker in workers], len(workers))
        self.nginx = nginx
        self.workers = workers
        self.redis = redis

    @property
    def passed(self) -> list[Passed]:
        """All requests that are over, in the order in which they ended."""
        lines = [line.split("|") for line in (self.folder / "access.log").read_text().splitlines()]
        # If a process could not be reached, nginx names it, too, before the one that answered.
        return [Passed(int(ports.rpartition(":")[2]), *request) for ports, *request in lines if ports != "-"]

    def port_of(self, worker: str) -> int:
        """The port of a worker, by its id in the fleet."""
        with self.redis.client() as client:
            [key] = client.keys(f"*:worker/{{{worker}}}")
            value: bytes = client.get(key)
        facts = json.loads(value[value.index(b'{"host":') :])  # a mark comes before
        return next(process.port for process in self.workers if process.pid == facts["process"])


class WorkersDeployment(Deployment):
    """The workers of one `weft run --workers`, and their parent."""

    def __init__(self, parent: ServerProcess, folder: Path, processes: int) -> None:
        super().__init__(parent.port, folder, [parent.log], processes)
        self.parent = parent

    @property
    def worker_ids(self) -> list[int]:
        """The process ids of the workers that live, oldest first."""
        children = Path(f"/proc/{self.parent.pid}/task/{self.parent.pid}/children").read_text().split()
        return [int(child) for child in children]


def find_nginx() -> str:
    """The program nginx; skips the test without it."""
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    skip_without("nginx", nginx)
    return str(nginx)


def nginx_settings(folder: Path, front: int, ports: Sequence[int]) -> str:
    """Round robin without affinity.

    A process that refuses the connection is skipped, and the next one gets the request (that is nginx's default for
    `proxy_next_upstream`); with `max_fails=0` it is tried again with the next request, so it gets requests as soon as
    it listens. A request that a process has received is never sent to another one if it is a POST: its client gets 502.
    nginx obeys `X-Accel-Buffering` and keeps it to itself; here clients see it, too.
    """
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    servers = "".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
    return f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx-errors.log;
        worker_rlimit_nofile 4096;
        events {{ worker_connections 2000; }}
        http {{
            log_format requests '$upstream_addr|$request_method|$status|$http_mcp_session_id|$http_last_event_id';
            access_log {folder}/access.log requests; client_body_temp_path {folder}/body; {places}
            upstream servers {{ {servers} }}
            server {{
                listen 127.0.0.1:{front};
                location / {{
                    proxy_pass http://servers; proxy_http_version 1.1; proxy_set_header Host $http_host;
                    proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 1h;
                    proxy_pass_header X-Accel-Buffering;
                }}
            }}
        }}
    """


@contextmanager
def behind_nginx(
    file: Path, folder: Path, *options: str, count: int = COUNT, env: Mapping[str, str] | None = None
) -> Iterator[NginxDeployment]:
    """Processes of a server file behind nginx, and a Redis. `options` are those of `weft run`."""
    nginx, front = find_nginx(), find_port()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder / "redis"))
        shared = _environment(folder, env) | {"WEFT_STATE_KEY": secrets.token_urlsafe(32)}
        workers: list[ServerProcess] = []
        for number in range(count):
            port = find_port()
            command = [*_weft(file, *options), "--port", str(port), "--backend", redis.url]
            workers.append(ServerProcess(command, port, folder / f"worker{number}.log", shared))
            stack.callback(workers[-1].stop)
            workers[-1].launch()
        (folder / "nginx.conf").write_text(nginx_settings(folder, front, [worker.port for worker in workers]))
        proxy = ServerProcess([nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")], front, folder / "nginx.log")
        stack.callback(proxy.kill)
        proxy.start()
        for worker in workers:
            worker.wait()
        yield NginxDeployment(proxy, workers, redis, folder)


@contextmanager
def with_workers(
    file: Path, folder: Path, *options: str, count: int = COUNT, env: Mapping[str, str] | None = None
) -> Iterator[WorkersDeployment]:
    """A server file with several workers, which share the memory of their parent."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log = find_port(), folder / "workers.log"
    command = [*_weft(file, *options), "--port", str(port), "--workers", str(count)]
    process = ServerProcess(command, port, log, _environment(folder, env))
    with ExitStack() as stack:
        stack.callback(process.stop)
        process.start()
        # The parent listens before its workers serve.
        until(lambda: "Weft serves" in log.read_text(), "the workers serve", 120)
        yield WorkersDeployment(process, folder, count)


def _weft(file: Path, *options: str) -> list[str]:
    return [str(WEFT), "run", str(file), "--http", "--log-level", "warning", *options]


def _environment(folder: Path, env: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a server, which may import the servers of `support` and of the suites in `e2e`."""
    return {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS / 'e2e'}", NOTES: str(folder), **(env or {})}
