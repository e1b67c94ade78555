"""Real Redis servers for tests: single, with replica and Sentinel, as a cluster. Each listens on 127.0.0.1 only.

with redis_server(folder) as redis:
    RedisBackend(redis.url)
    redis.kill()
    redis.start()            # with the data as it was
    redis.start(empty=True)  # or without it
"""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import redis as redis_py

from support.certificates import Authority
from support.needed import skip_without
from support.ports import find_port
from weft.backends.redis import RedisBackend

__all__ = ["Cluster", "RedisServer", "Sentinel", "redis_cluster", "redis_sentinel", "redis_server", "started", "until"]

_PATIENCE = 30.0  # seconds


@asynccontextmanager
async def started(url: str, **options: Any) -> AsyncIterator[RedisBackend]:
    """A backend in Redis that is in use."""
    backend = RedisBackend(url, **options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def until(condition: Callable[[], Any], what: str, seconds: float = _PATIENCE) -> Any:
    """Wait until `condition` returns something true, and return that. Errors of Redis count as false."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis_py.RedisError, OSError):
            if found := condition():
                return found
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class RedisServer:
    """A Redis server, and its data in a folder. `options` are lines of its configuration."""

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        authority: Authority | None = None,
        is_unix: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        skip_without("redis", shutil.which("redis-server"))
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = 0 if is_unix else find_port()
        self.password = password
        self.socket = folder / "s" if is_unix else None
        self.authority = authority
        self.lines: dict[str, Any] = {
            "bind": "127.0.0.1",
            "port": 0 if authority else self.port,
            "dir": folder,
            "save": '""',
            "appendonly": "yes",  # what was written survives a kill,
            "appendfsync": "no",  # which needs no fsync; with one, writes to the file may wait for it
            "enable-debug-command": "yes",
            "loglevel": "warning",
            "logfile": folder / "log",
        }
        if self.socket is not None:
            self.lines["unixsocket"] = self.socket
        if authority is not None:
            certificate = authority.issue("127.0.0.1", "localhost")
            self.ca = folder / "ca.pem"
            self.ca.write_text(authority.pem)
            self.lines |= {
                "tls-port": self.port, "tls-cert-file": certificate, "tls-key-file": certificate,
                "tls-ca-cert-file": self.ca, "tls-auth-clients": "no",
            }  # fmt: skip
        if password is not None:
            self.lines["requirepass"] = password
        self.lines |= options or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL with the password, as users write it."""
        credentials = f":{self.password}@" if self.password else ""
        if self.socket is not None:
            return f"unix://{credentials}{self.socket}"
        if self.authority is not None:
            return f"rediss://{credentials}127.0.0.1:{self.port}?ssl_ca_certs={self.ca}"
        return f"redis://{credentials}127.0.0.1:{self.port}"

    def client(self, **options: Any) -> "redis_py.Redis":
        """A client of another library than Weft's, to look at the data."""
        if self.authority is not None:
            options |= {"ssl_check_hostname": False}
        return redis_py.Redis.from_url(self.url, **options)

    def run(self, *command: Any) -> Any:
        """The answer to one command."""
        with self.client() as client:
            return client.execute_command(*command)

    def start(self, *, empty: bool = False) -> None:
        """Start the server, with the data of before or without, and wait until it answers."""
        assert self._process is None, "it runs already"
        if empty:
            for part in ("appendonlydir", "dump.rdb"):
                path = self.folder / part
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        file = self.folder / "redis.conf"
        file.write_text("".join(f"{name} {value}\n" for name, value in self.lines.items()))
        self._process = subprocess.Popen(self._command(file), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(self._answers, "Redis answers")

    def stop(self) -> None:
        """End the server as an administrator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server as a power failure does."""
        self._end(signal.SIGKILL)

    def until_replicated(self) -> None:
        """Wait until a replica has everything that was written so far."""

        def is_replicated() -> bool:
            with self.client() as client:
                facts = client.info("replication")
            return bool(facts["slave0"]["offset"] >= offset)

        with self.client() as client:
            offset = client.info("replication")["master_repl_offset"]
        until(is_replicated, "the replica has everything")

    def pause(self) -> None:
        """Let the server hang: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _command(self, file: Path) -> list[str]:
        return ["redis-server", str(file)]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Redis ended: {(self.folder / 'log').read_text()}"
        try:
            return bool(self.run("PING"))
        except redis_py.AuthenticationError:
            return True

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(sign)
            self._process.wait(_PATIENCE)
            self._process = None


@contextmanager
def redis_server(folder: Path, **options: Any) -> Iterator[RedisServer]:
    """A Redis server that runs for as long as the block lasts. The arguments are those of RedisServer."""
    server = RedisServer(folder, **options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class _SentinelProcess(RedisServer):
    """One Sentinel. It writes its configuration anew, so that must not be written again."""

    def _command(self, file: Path) -> list[str]:
        return ["redis-server", str(file), "--sentinel"]


class Sentinel:
    """A master, a replica, and a Sentinel that promotes the replica if the master is gone for a second."""

    name = "mymaster"

    def __init__(self, folder: Path, password: str | None, sentinel_password: str | None) -> None:
        options: dict[str, Any] = {"repl-diskless-sync-delay": 0}
        if password:
            options["masterauth"] = password
        self.first = RedisServer(folder / "first", password=password, options=options)
        replicaof = {"replicaof": f"127.0.0.1 {self.first.port}"}
        self.second = RedisServer(folder / "second", password=password, options=options | replicaof)
        self.sentinel = _SentinelProcess(folder / "sentinel", password=sentinel_password)
        lines = {
            "monitor": f"{self.name} 127.0.0.1 {self.first.port} 1",
            "down-after-milliseconds": f"{self.name} 1000",
            "failover-timeout": f"{self.name} 5000",
        }
        if password:
            lines["auth-pass"] = f"{self.name} {password}"
        for line in ("save", "appendonly", "appendfsync", "enable-debug-command"):
            del self.sentinel.lines[line]
        self.sentinel.lines |= {f"sentinel {name}": value for name, value in lines.items()}
        self.password = password
        self.sentinel_password = sentinel_password

    @property
    def servers(self) -> list[RedisServer]:
        return [self.first, self.second, self.sentinel]

    @property
    def url(self) -> str:
        credentials = f":{self.password}@" if self.password else ""
        query = f"?sentinel_password={self.sentinel_password}" if self.sentinel_password else ""
        gone = find_port()  # a Sentinel that does not answer is skipped
        return f"redis+sentinel://{credentials}127.0.0.1:{gone},127.0.0.1:{self.sentinel.port}/{self.name}{query}"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        until(lambda: self.second.client().info("replication")["master_link_status"] == "up", "the replica follows")
        until(lambda: self.sentinel.run("SENTINEL", "REPLICAS", self.name), "Sentinel knows the replica")


@contextmanager
def redis_sentinel(
    folder: Path, *, password: str | None = None, sentinel_password: str | None = None
) -> Iterator[Sentinel]:
    """A master, a replica and a Sentinel, for as long as the block lasts."""
    sentinel = Sentinel(folder, password, sentinel_password)
    try:
        sentinel.start()
        yield sentinel
    finally:
        for server in reversed(sentinel.servers):
            server.kill()


class Cluster:
    """A Redis Cluster: three masters, each with a third of the slots, and replicas of the first, if wanted."""

    def __init__(self, folder: Path, replicas: int, password: str | None) -> None:
        def node(name: str) -> RedisServer:
            options = {
                "cluster-enabled": "yes", "cluster-node-timeout": 2000, "cluster-port": find_port(),
                "cluster-replica-validity-factor": 0, "repl-diskless-sync-delay": 0,
            }  # fmt: skip
            if password:
                options["masterauth"] = password
            return RedisServer(folder / name, password=password, options=options)

        self.masters = [node(f"master{number}") for number in range(3)]
        self.replicas = [node(f"replica{number}") for number in range(replicas)]
        self.password = password

    @property
    def nodes(self) -> list[RedisServer]:
        return self.masters + self.replicas

    @property
    def url(self) -> str:
        credentials = f":{self.password}@" if self.password else ""
        return f"redis+cluster://{credentials}{','.join(f'127.0.0.1:{node.port}' for node in self.masters)}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        first = self.masters[0]
        bounds = [0, 5461, 10923, 16384]
        for number, node in enumerate(self.masters):
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.run("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for node in self.nodes[1:]:
            first.run("CLUSTER", "MEET", "127.0.0.1", node.port, node.lines["cluster-port"])
        self.until_ok()
        own = self.id_of(first)
        for node in self.replicas:
            until(lambda node=node: node.run("CLUSTER", "REPLICATE", own), "the replica knows the master")
            until(lambda node=node: node.client().info("replication")["master_link_status"] == "up", "it follows")

    def until_ok(self, nodes: list[RedisServer] | None = None) -> None:
        """Wait until all nodes agree that every slot has a master."""
        count = len(self.nodes)

        def ok(node: RedisServer) -> bool:
            info = node.run("CLUSTER", "INFO")
            text = info.decode() if isinstance(info, bytes) else "".join(f"{k}:{v}\r\n" for k, v in info.items())
            return "cluster_state:ok" in text and f"cluster_known_nodes:{count}\r\n" in text

        for node in nodes or self.nodes:
            until(lambda node=node: ok(node), "the cluster is complete")

    def id_of(self, node: RedisServer) -> str:
        own = node.run("CLUSTER", "MYID")
        return own.decode() if isinstance(own, bytes) else own

    def owner(self, slot: int) -> RedisServer:
        """The master of a slot, as the first master says."""
        for begin, end, master, *_ in self._slots():
            if begin <= slot <= end:
                return next(node for node in self.nodes if node.port == master)
        raise AssertionError(f"nobody has slot {slot}")

    def move_slot(self, slot: int, target: RedisServer) -> None:
        """Move a slot, which has few keys, to another master, as a resharding does."""
        source = self.owner(slot)
        ids = {"source": self.id_of(source), "target": self.id_of(target)}
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", ids["source"])
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", ids["target"])
        self.move_keys(slot, source, target)
        for node in (target, source, *(node for node in self.masters if node not in (source, target))):
            node.run("CLUSTER", "SETSLOT", slot, "NODE", ids["target"])

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        while keys := source.run("CLUSTER", "GETKEYSINSLOT", slot, 100):
            auth = ("AUTH", self.password) if self.password else ()
            source.run("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, *auth, "KEYS", *keys)

    def _slots(self) -> Iterator[tuple[int, int, int]]:
        with self.masters[0].client() as client:
            client.set_response_callback("CLUSTER SLOTS", lambda answer, **_: answer)
            client.set_response_callback("CLUSTER", lambda answer, **_: answer)
            for begin, end, master, *_ in client.execute_command("CLUSTER", "SLOTS"):
                yield begin, end, master[1]


@contextmanager
def redis_cluster(folder: Path, *, replicas: int = 0, password: str | None = None) -> Iterator[Cluster]:
    """A cluster of three masters for as long as the block lasts; with replicas of the first, if wanted."""
    cluster = Cluster(folder, replicas, password)
    with ExitStack() as stack:
        for node in cluster.nodes:
            stack.callback(node.kill)
        cluster.start()
        yield cluster
