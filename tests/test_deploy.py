"""The files in deploy/, and what docs/how-to/scale.md says: both are compared with the code, and run.

There is no Docker here. So the steps of the Dockerfile run in a virtual environment, and nginx runs in front of worker
processes on this machine, with the settings and flags that stand in the files.
"""

import contextlib
import inspect
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from support import until
from support.needed import skip_without
from support.ports import find_port, until_listening
from support.redis_servers import RedisServer, redis_server
from weft.backends.redis import RedisBackend, checks
from weft.cli.command import _parser
from weft.client import FormQuestion
from weft.server.http.health import PATHS
from weft.server.run.running import GRACE_SECONDS, KEEP_ALIVE_SECONDS
from weft.server.run.workers import KILL_SECONDS
from weft.sync import Client
from weft.testing import BackendContract

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PAGE = ROOT / "docs" / "how-to" / "scale.md"
OBJECTS = [(path.name, found) for path in KUBERNETES for found in yaml.safe_load_all(path.read_text())]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
WORKERS = [name for name in COMPOSE["services"] if name.startswith("weft")]
WEFT = Path(sys.executable).with_name("weft")


def steps(kind: str) -> list[str]:
    """The arguments of the steps of one kind in the Dockerfile, without comments and with joined lines."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [line.partition(" ")[2].strip() for line in joined.splitlines() if line.startswith(f"{kind} ")]


def words(kind: str) -> list[str]:
    """The words of a step that has a JSON array."""
    return json.loads(steps(kind)[-1])


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [one for _, one in OBJECTS if one["kind"] == kind and one["metadata"]["name"] == "weft"]
    return found


def container() -> dict[str, Any]:
    return of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]


# Kubernetes.

NEEDED = {  # fields that the API requires, or without which an object does nothing
    "Deployment": ["spec.selector.matchLabels", "spec.template.metadata.labels", "spec.template.spec.containers"],
    "StatefulSet": ["spec.serviceName", "spec.selector.matchLabels", "spec.template.spec.containers"],
    "Service": ["spec.selector", "spec.ports"],
    "Ingress": ["spec.ingressClassName", "spec.rules", "spec.tls"],
    "PodDisruptionBudget": ["spec.minAvailable", "spec.selector.matchLabels"],
    "HorizontalPodAutoscaler": ["spec.scaleTargetRef", "spec.maxReplicas", "spec.metrics"],
}
VERSIONS = {
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "Service": "v1", "Ingress": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1", "HorizontalPodAutoscaler": "autoscaling/v2",
}  # fmt: skip


@pytest.mark.parametrize(("file", "found"), OBJECTS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_object_has_what_its_kind_needs(file: str, found: dict[str, Any]) -> None:
    assert found["apiVersion"] == VERSIONS[found["kind"]]
    assert found["metadata"]["name"]
    for field in NEEDED[found["kind"]]:
        value: Any = found
        for part in field.split("."):
            assert part in value, f"{file}: {field} is missing"
            value = value[part]
        assert value, f"{file}: {field} is empty"


def test_every_kind_is_there() -> None:
    assert {found["kind"] for _, found in OBJECTS} == set(NEEDED)


def test_objects_name_each_other() -> None:
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        of_kind("Deployment")["spec"]["selector"]["matchLabels"],
        of_kind("Service")["spec"]["selector"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]
    for path in of_kind("Ingress")["spec"]["rules"][0]["http"]["paths"]:
        service = path["backend"]["service"]
        assert service["name"] == of_kind("Service")["metadata"]["name"]
        assert service["port"]["name"] == of_kind("Service")["spec"]["ports"][0]["name"]
    scaled = of_kind("HorizontalPodAutoscaler")["spec"]
    assert scaled["scaleTargetRef"]["name"] == of_kind("Deployment")["metadata"]["name"]
    assert of_kind("PodDisruptionBudget")["spec"]["minAvailable"] < scaled["minReplicas"]
    assert container()["resources"]["requests"]["cpu"], "without it, the autoscaler cannot compute a share"


def test_no_affinity_and_the_host_of_the_ingress_is_allowed() -> None:
    assert of_kind("Service")["spec"]["sessionAffinity"] == "None"
    ingress = of_kind("Ingress")
    assert not any("affinity" in name for name in ingress["metadata"]["annotations"])
    host = ingress["spec"]["rules"][0]["host"]
    assert ingress["spec"]["tls"][0]["hosts"] == [host]
    args = container()["args"]
    assert args[args.index("--allow-host") + 1] == host


def test_the_ingress_passes_streams_on_and_no_health() -> None:
    ingress = of_kind("Ingress")
    notes = {name.rpartition("/")[2]: text for name, text in ingress["metadata"]["annotations"].items()}
    assert notes["proxy-buffering"] == "off"
    assert notes["proxy-http-version"] == "1.1"
    assert int(notes["proxy-read-timeout"]) >= 600  # a question may be open for ask_seconds
    paths = [path["path"] for path in ingress["spec"]["rules"][0]["http"]["paths"]]
    assert paths == ["/mcp", "/.well-known/oauth-protected-resource"]


@pytest.mark.parametrize("found", [found for _, found in OBJECTS if found["kind"] in ("Deployment", "StatefulSet")])
def test_pods_have_few_rights(found: dict[str, Any]) -> None:
    pod = found["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in pod["containers"]:
        rights = one["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert one["resources"]["limits"]["memory"]


def test_no_secret_is_in_the_files() -> None:
    for found in (container(), COMPOSE["services"]["weft-1"]):
        given = found.get("env") or found["environment"]
        keys = [given["WEFT_STATE_KEY"]] if isinstance(given, dict) else [
            one for one in given if one["name"] in ("WEFT_STATE_KEY", "REDIS_PASSWORD")
        ]  # fmt: skip
        assert keys
        for one in keys:
            assert one.startswith("${WEFT_STATE_KEY:?") if isinstance(one, str) else "secretKeyRef" in one["valueFrom"]


def redis_settings(command: list[str]) -> dict[str, str]:
    return {name.removeprefix("--"): value for name, value in zip(command[1::2], command[2::2], strict=True)}


def test_redis_keeps_what_is_in_use() -> None:
    (stateful,) = [found for _, found in OBJECTS if found["kind"] == "StatefulSet"]
    in_kubernetes = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
    for command in (in_kubernetes, COMPOSE["services"]["redis"]["command"]):
        settings = redis_settings(command)
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["appendonly"] == "yes"


# What stands in several files, and in the code.


def test_probes_ask_what_the_server_answers() -> None:
    probes = {kind: container()[f"{kind}Probe"] for kind in ("readiness", "liveness", "startup")}
    assert {probe["httpGet"]["path"] for probe in probes.values()} == set(PATHS)
    assert probes["readiness"]["httpGet"]["path"] == "/readyz"
    assert probes["liveness"]["httpGet"]["path"] == "/healthz"  # if Redis fails, no worker is to be replaced
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {container()["ports"][0]["name"]}
    assert "/healthz" in steps("HEALTHCHECK")[0]


def test_all_name_the_same_port() -> None:
    entry = words("ENTRYPOINT")
    port = entry[entry.index("--port") + 1]
    assert steps("EXPOSE") == [port]
    assert container()["ports"][0]["containerPort"] == int(port)
    assert f"127.0.0.1:{port}/" in steps("HEALTHCHECK")[0]
    assert re.findall(r"server (weft-\d+):(\d+) ", (DEPLOY / "nginx.conf").read_text()) == [
        (name, port) for name in WORKERS
    ]


ARGUMENTS = {
    "Dockerfile": words("CMD"),
    "compose.yaml": COMPOSE["services"]["weft-1"]["command"],
    "deployment.yaml": container()["args"],
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_the_flags_exist(arguments: list[str]) -> None:
    entry = words("ENTRYPOINT")
    assert entry[:3] == ["weft", "run", "app.py"]
    parsed, unknown = _parser().parse_known_args([*entry[1:], *arguments])
    assert unknown == []
    assert parsed.host == "0.0.0.0"
    assert parsed.allowed_hosts
    shown = subprocess.run([str(WEFT), "run", "--help"], capture_output=True, text=True, check=True).stdout
    flags = {word for word in [*entry, *arguments] if word.startswith("--")}
    assert {flag for flag in flags if flag not in shown} == set()


def test_variables_are_ones_that_weft_reads() -> None:
    named = {
        name
        for path in [*KUBERNETES, DEPLOY / "compose.yaml", DEPLOY / "Dockerfile", DEPLOY / "README.md", PAGE]
        for name in re.findall(r"\bWEFT_[A-Z_]+", path.read_text())
    }
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\"(WEFT_\w+)\"", sources))
    assert {"WEFT_BACKEND", "WEFT_STATE_KEY"} <= named <= read


def test_nothing_is_killed_before_its_calls_have_ended() -> None:
    namespace: dict[str, Any] = {"__name__": "app"}
    exec(compile((DEPLOY / "app.py").read_text(), "app.py", "exec"), namespace)  # the server as it is deployed
    limits = namespace["server"].limits
    assert limits.drain_notice_seconds > 0
    needed = limits.drain_notice_seconds + limits.drain_seconds + GRACE_SECONDS + KILL_SECONDS
    assert of_kind("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed
    assert int(COMPOSE["services"]["weft-1"]["stop_grace_period"].rstrip("s")) > needed


def test_compose_starts_three_workers_and_trusts_its_own_network() -> None:
    assert len(WORKERS) == 3
    assert all(COMPOSE["services"][name] == COMPOSE["services"]["weft-1"] for name in WORKERS)
    subnet = COMPOSE["networks"]["default"]["ipam"]["config"][0]["subnet"]
    command = COMPOSE["services"]["weft-1"]["command"]
    assert command[command.index("--trust-proxy") + 1] == subnet
    assert set(COMPOSE["services"]["nginx"]["depends_on"]) == set(WORKERS)


# nginx, with the settings of the file, in front of three workers.


@dataclass
class Front:
    """nginx and the workers behind it."""

    port: int
    workers: list["subprocess.Popen[bytes]"]
    ports: list[int]  # of the workers
    start_worker: Callable[[int], "subprocess.Popen[bytes]"]  # starts the worker with this number once more
    logs: list[Path]  # of the workers
    redis: RedisServer
    start_nginx: Callable[[int], Any]  # starts one more nginx at a port
    environment: dict[str, str]  # of the workers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


def nginx_command(folder: Path, front: int, ports: list[int]) -> list[str]:
    """The command for nginx with the file as it is; only addresses and the places of its own files are others."""
    folder.mkdir(exist_ok=True)
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    skip_without("nginx", Path(nginx or "nginx"))
    text = (DEPLOY / "nginx.conf").read_text()
    for name, port in zip(WORKERS, ports, strict=True):
        text = text.replace(f"{name}:8000", f"127.0.0.1:{port}")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{front};")
    text = text.replace("http {", f"http {{ client_body_temp_path {folder}/body; {places}", 1)
    text = text.replace("access_log /dev/stdout;", f"access_log {folder}/access.log;")
    file = folder / "nginx.conf"
    file.write_text(text)
    return [str(nginx), "-p", str(folder), "-c", str(file), "-e", "stderr", "-g", f"pid {folder}/pid; daemon off;"]


@contextlib.contextmanager
def running(
    command: list[str], port: int, log: Path, *, ending: int = signal.SIGKILL, **options: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that listens at a port, for as long as the block lasts."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options)
    try:
        until_listening(process, port)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.send_signal(ending)
        process.wait(60)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("deploy")
    ports, port = [find_port() for _ in WORKERS], find_port()
    flags = ["127.0.0.1" if "/" in word else word for word in ARGUMENTS["compose.yaml"]]  # the proxy's address
    logs = [folder / f"{name}.log" for name in WORKERS]
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder / "redis"))
        environment = os.environ | {"WEFT_BACKEND": redis.url, "WEFT_STATE_KEY": secrets.token_urlsafe(32)}

        def start_worker(number: int) -> "subprocess.Popen[bytes]":
            command = [str(WEFT), "run", "app.py", "--http", "--port", str(ports[number]), *flags]
            process = running(command, ports[number], logs[number], cwd=DEPLOY, env=environment)
            return stack.enter_context(process)

        workers = [start_worker(number) for number in range(len(WORKERS))]

        def start_nginx(port: int) -> Any:
            command = nginx_command(folder / f"nginx-{port}", port, ports)
            return running(command, port, folder / f"nginx-{port}.log", ending=signal.SIGTERM)

        stack.enter_context(start_nginx(port))
        yield Front(port, workers, ports, start_worker, logs, redis, start_nginx, environment)


def fetch(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_nginx_accepts_the_file(tmp_path: Path) -> None:
    command = nginx_command(tmp_path, find_port(), [find_port() for _ in WORKERS])
    done = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr
    assert "[warn]" not in done.stderr


def test_nginx_has_no_affinity_and_gives_idle_connections_back_first() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert not re.search(r"ip_hash|sticky|\bhash\b", text)
    assert int(re.search(r"keepalive_timeout (\d+)s;", text)[1]) < KEEP_ALIVE_SECONDS


@pytest.mark.parametrize("era", ["stateless", "session"])
def test_every_worker_serves_a_client(front: Front, era: Any) -> None:
    with Client(front.url, eras=[era]) as client:
        said = {client.call_tool("worker").text for _ in range(12)}
    assert {int(text.split()[1]) for text in said} == {worker.pid for worker in front.workers}


@pytest.mark.parametrize("era", ["stateless", "session"])
def test_a_question_is_answered_wherever_the_answer_arrives(front: Front, era: Any) -> None:
    def answer(question: FormQuestion) -> dict[str, int]:
        assert question.message == "How much sencha?"
        return {"grams": 50}

    with Client(front.url, eras=[era], elicit=answer) as client:
        assert {client.call_tool("order", {"tea": "sencha"}).text for _ in range(4)} == {"50 g of sencha"}


@pytest.mark.parametrize("era", ["stateless", "session"])
def test_streams_are_not_buffered(front: Front, era: Any) -> None:
    began, heard = time.monotonic(), list[float]()
    with Client(front.url, eras=[era]) as client:
        done = client.call_tool("count", {"seconds": 3}, progress=lambda *_: heard.append(time.monotonic() - began))
    assert done.text == "3 seconds are over."
    assert len(heard) == 3
    assert heard[-1] - heard[0] > 1.5  # one after another, not all at the end


def test_a_change_at_one_worker_reaches_the_streams_of_all(front: Front) -> None:
    streams = 6  # more than workers
    heard: list[str] = []
    listening = threading.Barrier(streams + 1, timeout=30)

    def listen() -> None:
        with Client(front.url) as client, client.listen(uris=["shop://clock"]) as changes:
            listening.wait()
            heard.append(next(iter(changes)).uri or "")

    threads = [threading.Thread(target=listen) for _ in range(streams)]
    for thread in threads:
        thread.start()
    listening.wait()
    with Client(front.url) as client:
        client.call_tool("announce")
    for thread in threads:
        thread.join(30)
    assert heard == ["shop://clock"] * streams


def test_health_is_for_the_machine_and_not_for_clients(front: Front) -> None:
    for path in PATHS:
        assert fetch(f"http://127.0.0.1:{front.port}{path}") == 404
        assert fetch(f"http://127.0.0.1:{front.ports[0]}{path}") == 200
        assert fetch(f"http://127.0.0.1:{front.ports[0]}{path}", **{"X-Forwarded-For": "203.0.113.7"}) == 404


def test_the_proxy_is_trusted(front: Front) -> None:
    with Client(front.url) as client:
        client.call_tool("worker")
    assert not any("forwarded headers" in log.read_text() for log in front.logs)


def test_a_session_outlives_the_proxy(front: Front) -> None:
    port = find_port()
    with contextlib.ExitStack() as stack:
        with front.start_nginx(port):
            client = stack.enter_context(Client(f"http://127.0.0.1:{port}/mcp", eras=["session"]))
            assert client.call_tool("worker").text
            before = len(front.redis.run("KEYS", "weft:teashop:session/*"))
        with front.start_nginx(port):
            assert client.call_tool("worker").text
            assert len(front.redis.run("KEYS", "weft:teashop:session/*")) == before  # it is the same session


HELLO = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip


def test_while_redis_hangs_calls_without_a_session_go_on(front: Front) -> None:
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    hello = urllib.request.Request(front.url, json.dumps(HELLO).encode(), fields)
    with Client(front.url, eras=["stateless"]) as client, Client(front.url, eras=["session"]) as session:
        session.call_tool("worker")
        front.redis.pause()
        try:
            assert client.call_tool("worker").text
            assert fetch(f"http://127.0.0.1:{front.ports[0]}/healthz") == 200
            assert fetch(f"http://127.0.0.1:{front.ports[0]}/readyz") == 503
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(hello, timeout=30)
            with refused.value as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert "backend is not available" in answer.read().decode()
            assert client.call_tool("worker").text
        finally:
            front.redis.resume()
        until(lambda: fetch(f"http://127.0.0.1:{front.ports[0]}/readyz") == 200)
        assert session.call_tool("worker").text
        with urllib.request.urlopen(hello, timeout=30) as answer:
            assert answer.status == 200


def status_in(session: str, url: str) -> int:
    """The status of a request of a session."""
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    request = urllib.request.Request(url, ping, fields | {"Mcp-Session-Id": session})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def open_session(url: str) -> str:
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(HELLO).encode(), fields)) as response:
        return response.headers["Mcp-Session-Id"]


def test_a_session_that_redis_has_lost_is_over(front: Front) -> None:
    session = open_session(front.url)
    assert {status_in(session, front.url) for _ in range(6)} == {200}
    front.redis.kill()
    front.redis.start(empty=True)
    until(lambda: {status_in(session, front.url) for _ in range(6)} == {404})
    assert status_in(open_session(front.url), front.url) == 200


def test_a_session_in_redis_outlives_all_workers(front: Front, tmp_path: Path) -> None:
    port = find_port()
    command = [str(WEFT), "run", "app.py", "--http", "--port", str(port), "--workers", "2"]
    options: dict[str, Any] = {"cwd": DEPLOY, "env": front.environment}
    url = f"http://127.0.0.1:{port}/mcp"
    with running(command, port, tmp_path / "first", **options) as parent:
        until(lambda: fetch(f"http://127.0.0.1:{port}/readyz") == 200)
        session = open_session(url)
        assert status_in(session, url) == 200
        parent.kill()
        parent.wait()
    until(lambda: not is_open(port))  # its workers have ended, too
    with running(command, port, tmp_path / "second", **options):
        until(lambda: fetch(f"http://127.0.0.1:{port}/readyz") == 200)
        assert {status_in(session, url) for _ in range(6)} == {200}


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def normal(text: str) -> set[str]:
    """The lines of a text without what differs from run to run."""
    text = re.sub(r"on [\w.-]+ serves \(key \w+\)", "on HOST serves (key KEY)", text)
    return {re.sub(r"[\d.]+[MK]?\b", "N", line) for line in text.splitlines()}


def test_the_page_shows_what_doctor_says(front: Front) -> None:
    sample = PAGE.read_text().partition("weft doctor --backend")[2].partition("```text\n")[2].partition("```")[0]
    settings = {"maxmemory": "256mb", "maxmemory-policy": "allkeys-lru"}
    for name, value in settings.items():
        front.redis.run("CONFIG", "SET", name, value)
    command = [str(WEFT), "doctor", "--backend", front.redis.url, "teashop"]
    printed = ""

    def are_all_there() -> bool:  # after the test above, a worker may need a moment to connect again
        nonlocal printed
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return printed.count("serves (key ") == len(WORKERS)

    try:
        until(are_all_there)
    finally:
        front.redis.run("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    assert normal(sample) - {"..."} <= normal(printed)


def test_workers_that_are_restarted_one_after_another_lose_no_call(front: Front) -> None:
    calls, failures, is_over = [0, 0], list[BaseException](), threading.Event()

    def call(number: int, client: Any) -> None:
        try:
            while not is_over.is_set():
                assert client.call_tool("worker").text
                calls[number] += 1
        except BaseException as error:
            failures.append(error)

    with Client(front.url) as stateless, Client(front.url, eras=["session"]) as session:
        threads = [threading.Thread(target=call, args=pair) for pair in enumerate((stateless, session))]
        for thread in threads:
            thread.start()
        for number, leaving in enumerate(front.workers):
            leaving.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert fetch(f"http://127.0.0.1:{front.ports[number]}/readyz") == 503  # the notice to load balancers
            assert fetch(f"http://127.0.0.1:{front.ports[number]}/healthz") == 200
            assert leaving.wait(30) == 0
            time.sleep(0.3)  # in which nginx finds that it is gone
            front.workers[number] = front.start_worker(number)
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert not failures
    assert min(calls) > 100


def test_a_worker_without_redis_ends_with_an_error() -> None:
    command = [str(WEFT), "run", "app.py", "--http", "--port", "0"]
    nowhere = f"redis://127.0.0.1:{find_port()}"
    environment = os.environ | {"WEFT_BACKEND": nowhere, "WEFT_STATE_KEY": secrets.token_urlsafe(32)}
    ended = subprocess.run(
        command, cwd=DEPLOY, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f"Redis at {nowhere} cannot be reached" in ended.stderr
    assert "Traceback" not in ended.stderr


# The Dockerfile.


def test_the_image_runs_without_rights_and_has_few_files() -> None:
    assert steps("USER") == ["10001"]
    assert "--uid 10001" in " ".join(steps("RUN"))
    assert of_kind("Deployment")["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 10001
    kept = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {name for step in steps("COPY") if "--from" not in step for name in step.split()[:-1]}
    assert copied == set(kept)
    assert all((ROOT / name).exists() for name in kept)


def test_the_steps_of_the_image_work(tmp_path: Path) -> None:
    """Build the wheel, install it with the extra, start the server as the image does, and ask its health."""
    build, install, _ = steps("RUN")
    venv, source, dist = tmp_path / "venv", tmp_path / "src", tmp_path / "dist"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)

    def run(step: str) -> None:
        command = step.replace("/dist", str(dist))
        done = subprocess.run(
            command, shell=True, cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode and re.search("No matching distribution|connection|resolution", done.stderr):
            skip_without("the package index", None)
        assert done.returncode == 0, done.stderr

    run(build)
    run(install)
    app, port = tmp_path / "app", find_port()
    app.mkdir()
    shutil.copy(DEPLOY / "app.py", app)
    command = [word.replace("8000", str(port)).replace("0.0.0.0", "127.0.0.1") for word in words("ENTRYPOINT")]
    command[0] = str(venv / "bin" / "weft")
    with (
        redis_server(tmp_path / "redis") as redis,
        running(
            [*command, *words("CMD")], port, tmp_path / "log", cwd=app,
            env=environment | {"WEFT_BACKEND": redis.url, "WEFT_STATE_KEY": secrets.token_urlsafe(32)},
        ) as server,
    ):  # fmt: skip
        check = json.loads(steps("HEALTHCHECK")[0].partition("CMD ")[2])
        check = [word.replace("8000", str(port)) for word in check]
        subprocess.run([str(venv / "bin" / "python"), *check[1:]], check=True)
        with Client(f"http://127.0.0.1:{port}/mcp") as client:
            assert client.call_tool("worker").text.split()[1] == str(server.pid)
        assert redis.run("KEYS", "weft:teashop:worker/*")


def test_the_health_check_fails_where_nothing_answers() -> None:
    check = json.loads(steps("HEALTHCHECK")[0].partition("CMD ")[2])
    command = [sys.executable, *[word.replace("8000", str(find_port())) for word in check[1:]]]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


# The page docs/how-to/scale.md.


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text())
    assert len(named) > 15
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (path := ROOT / "tests" / file).exists() or f"def {name}(" not in path.read_text()
    ]
    assert missing == []


def test_every_failure_on_the_page_has_a_test() -> None:
    section = PAGE.read_text().partition("## When something fails")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert [row for row in rows if "::test_" not in row.split("|")[3]] == []


def test_the_page_names_the_rights_that_are_needed() -> None:
    rule = PAGE.read_text().partition("ACL SETUSER weft")[2].partition("```")[0]
    assert [word for word in shlex.split(rule) if word.startswith("+")] == checks._RIGHTS.split()


def test_the_page_names_the_options_of_a_backend_in_redis() -> None:
    section = PAGE.read_text().partition("| option of `RedisBackend`")[2].partition("\n\n")[0]
    told = {row[1].strip(" `"): row[2].strip(" `") for line in section.splitlines() if (row := line.split("|"))[3:]}
    known = inspect.signature(RedisBackend).parameters.values()
    assert {one.name: "" if one.default is one.empty else repr(one.default) for one in known}.items() <= told.items()


def test_the_settings_of_nginx_on_the_page_are_those_of_the_file() -> None:
    block = PAGE.read_text().partition("```nginx\n")[2].partition("```")[0]
    file = re.sub(r"\s*#.*", "", (DEPLOY / "nginx.conf").read_text())
    lines = [line.strip() for line in block.splitlines() if line.strip(" {}")]
    others = ("server 10.", "listen ", "server_name ")  # addresses and names
    assert [line for line in lines if line not in file and not line.startswith(others)] == []


def contract_of_the_page() -> type[BackendContract]:
    section = PAGE.read_text().partition("## A backend of your own")[2]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    server, test = ModuleType("server"), ModuleType("test_page")  # the files that a reader writes
    exec(compile(blocks[0], str(PAGE), "exec"), vars(server))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "server", server)
        exec(compile(blocks[1], str(PAGE), "exec"), vars(test))
    return vars(test)["TestWatchedBackend"]


class TestBackendOfThePage(contract_of_the_page()):  # type: ignore[misc]
    """The contract, kept by the backend on the page."""
