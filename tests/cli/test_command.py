"""The `weft` command as a person uses it: real processes, the text they print, their exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.auth
from support.redis_servers import redis_server
from weft.cli import serving as serving_module
from weft.server.run.listening import bind, try_line

SERVER = """
from typing import Annotated
from weft import Context, MirroredHeader, Server, ToolError
from weft.types import ToolAnnotations

server = Server("shop")

@server.tool
def price(item: str, count: int = 1) -> str:
    '''What something costs.

    In francs.'''
    return f"{item}: {count * 3}"

@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def broken() -> str:
    raise ToolError("The till is stuck.")

@server.tool
async def count(ctx: Context) -> dict[str, int]:
    return {"n": 3}

@server.tool
async def regional(region: Annotated[str, MirroredHeader("Region")]) -> str:
    return region

@server.resource("stock://apples")
def apples() -> str:
    return "7"

@server.resource("stock://{fruit}/photo", mime_type="image/png")
def photo(fruit: str) -> bytes:
    return fruit.encode() + bytes([0, 255])

@server.prompt
def haggle(item: str, mood: str = "calm") -> str:
    '''Start to haggle.'''
    return f"{item}, {mood}"

print("printed while loading")
if __name__ == "__main__":
    raise RuntimeError("the file is run, not loaded")
"""


def run_weft(*arguments: str, cwd: Path, timeout: float = 15, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


@contextlib.contextmanager
def serving(folder: Path, *arguments: str):
    """A server over HTTP: the process, its URL, and all it says on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "run", *arguments, "--http"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []

    def listen() -> None:
        for line in process.stderr:
            said.append(line)  # noqa: PERF402 - one by one, as they come

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        assert eventually(lambda: any("Weft serves" in line for line in said)), said
        line = next(line for line in said if "Weft serves" in line)
        yield process, line.split(" at ")[1].split()[0], said
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        thread.join(30)
        process.stderr.close()


def eventually(fact: Any) -> bool:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if fact():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "server.py").write_text(SERVER)
    with serving(folder, "server.py", "--port", "0") as (_, url, _):
        yield url


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version(tmp_path: Path, word: str) -> None:
    done = run_weft(word, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{weft.__version__}\n")


# weft run


def test_output_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "weft", "version"],
            cwd=tmp_path,
            stdout=nobody,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_signal_while_the_reloading_child_starts_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Child:
        def __init__(self, *_: Any, **__: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

        def poll(self) -> int:
            ended.append(self)
            return 0

    ended: list[Child] = []
    monkeypatch.setattr(subprocess, "Popen", Child)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody takes the signal yet"))
    try:
        serving_module._keep_running(["x"], [], Path(), iter([set()]))  # pyright: ignore[reportPrivateUsage]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(ended) == 1


def test_run_serves_on_stdio_and_keeps_stdout_clean(folder: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "price", "arguments": {"item": "tea"}, "_meta": meta}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    done = run_weft("run", "server.py", cwd=folder, input=line + "\n")
    assert json.loads(done.stdout)["result"]["content"][0]["text"] == "tea: 3"
    assert "printed while loading" in done.stderr
    assert done.returncode == 0


def test_run_over_http_says_what_to_try_and_that_works(folder: Path) -> None:
    with serving(folder, "server.py", "--port", "0", "--path", "/other") as (process, url, said):
        assert url.endswith("/other")
        assert eventually(lambda: any(line.startswith("Try: ") for line in said))
        line = next(line for line in said if line.startswith("Try: "))
        assert line.endswith(f" call {url} count\n")  # it needs no arguments, and does not fail
        pasted = subprocess.run(line[5:], shell=True, cwd=folder, capture_output=True, text=True, check=False)
        assert (pasted.returncode, json.loads(pasted.stdout)) == (0, {"n": 3}), pasted.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert not any("Traceback" in line for line in said)


def test_what_to_try_at_the_example_works_from_anywhere(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "tools/what_to_try.sh"
    done = subprocess.run(["sh", str(script), "8123"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "http://127.0.0.1:8123/mcp" in done.stdout
    assert "of any protocol version" in done.stdout
    command, run, file = done.stdout.splitlines()[-2].split()
    assert (Path(command), run) == (script.parents[1] / ".venv/bin/weft", "run")
    assert run_weft("run", file, cwd=tmp_path, input="").returncode == 0


GUARDED = """
from weft import Server
from weft.auth import ResourceServer, StaticTokens

server = Server("safe", auth=ResourceServer(
    "http://127.0.0.1/mcp",
    authorization_servers=["https://login.example.com"],
    verifier=StaticTokens({"token-of-ann": "ann"}),
))

@server.tool
def write() -> str:
    return "written"
"""


def test_what_to_try_at_a_protected_server_works_with_a_token(folder: Path) -> None:
    (folder / "server.py").write_text(GUARDED)
    with serving(folder, "server.py", "--port", "0") as (_, _, said):
        assert eventually(lambda: any(line.startswith("Try: ") for line in said))
        line = next(line for line in said if line.startswith("Try: "))[5:].replace("TOKEN", "token-of-ann")
        pasted = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    assert (pasted.returncode, pasted.stdout) == (0, "written\n"), line + pasted.stderr


@pytest.mark.parametrize("is_found", [True, False])
def test_what_to_try_can_be_typed(is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weft", "python"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if is_found else "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    server = weft.Server("s")
    server.add_tool(lambda: "x", name="go", description="Go.")
    expected = "weft" if is_found else f"{tmp_path}/python -m weft"
    assert try_line(server.engine, "http://x/mcp") == f"{expected} call http://x/mcp go"


OFFERED: dict[str, dict[str, Any]] = {
    "erase": {"annotations": weft.types.ToolAnnotations(destructive_hint=True)},
    "scoped": {"scopes": ["go"]},
    "named": {"input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    "plain": {},
}


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (["erase", "scoped", "named", "plain"], "call http://x/mcp plain --token TOKEN"),
        (["erase", "scoped", "named"], "list http://x/mcp --token TOKEN"),
    ],
    ids=["one that needs nothing", "none that needs nothing"],
)
def test_what_to_try_at_a_protected_server_is_what_most_callers_may(tools: list[str], expected: str) -> None:
    auth = weft.auth.ResourceServer(
        "http://127.0.0.1/mcp",
        authorization_servers=["https://login.example.com"],
        verifier=weft.auth.StaticTokens({"token-of-ann": "ann"}),
    )
    server = weft.Server("s", auth=auth)

    def do(_arguments: dict[str, Any]) -> str:
        """Do it."""
        return "done"

    for name in tools:
        server.add_tool(do, name=name, **{"input_schema": {"type": "object"}, **OFFERED[name]})
    line = try_line(server.engine, "http://x/mcp")
    assert line is not None
    assert line.endswith(f" {expected}")


def test_run_with_workers(folder: Path) -> None:
    with serving(folder, "server.py:server", "--port", "0", "--workers", "2") as (process, url, said):
        assert run_weft("call", url, "count", cwd=folder).returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert not any("sessions" in line for line in said)


OWN_BACKEND = "from weft import Server\nfrom weft.backends.memory import MemoryBackend\n"
OWN_BACKEND += "server = Server('s', backend=MemoryBackend())\n"
WHICH_BACKEND = """
from weft import Server
server = Server("s")
@server.tool
def backend() -> str:
    return type(server.engine.whole_backend).__name__
"""


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ([], "MemoryBackend"),
        (["--reload"], "MemoryBackend"),
        (["--workers", "2"], "SocketBackend"),  # a local backend cannot be shared otherwise
    ],
)
def test_run_with_a_backend(folder: Path, options: list[str], kind: str) -> None:
    (folder / "which.py").write_text(WHICH_BACKEND)
    with serving(folder, "which.py", "--port", "0", "--backend", "memory:", *options) as (_, url, _):
        assert run_weft("call", url, "backend", cwd=folder).stdout == f"{kind}\n"


BACKEND_IN_ENVIRONMENT = """
import subprocess, sys
from weft import Server
server = Server("s")
LOOK = "import os; print([value for value in os.environ.values() if value.startswith('redis://')])"
def look() -> str:
    return subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout.strip()
while_loading = look()
@server.tool
def backend() -> str:
    return f"{server.engine.whole_backend!r} {while_loading} {look()}"
"""


@pytest.mark.parametrize("variable", ["", "redis://me:hidden@db"])
@pytest.mark.parametrize("options", [[], ["--reload"], ["--workers", "2"]])
def test_programs_that_a_tool_starts_do_not_get_the_url_of_a_backend(
    folder: Path, tmp_path: Path, options: list[str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_STATE_KEY", "a secret that the workers share")
    monkeypatch.setenv("WEFT_BACKEND", variable)
    (folder / "telling.py").write_text(BACKEND_IN_ENVIRONMENT)
    with (
        redis_server(tmp_path) as redis,
        serving(folder, "telling.py", "--port", "0", "--backend", redis.url, *options) as (_, url, _),
    ):
        told = run_weft("call", url, "backend", cwd=folder).stdout
        left = [variable] if variable else []  # the user's own setting
        assert told == f"RedisBackend({redis.url!r}, prefix='weft:') {left} {left}\n"


@pytest.mark.mistake("two backends")
def test_run_with_a_backend_where_the_file_has_another(folder: Path) -> None:
    (folder / "own.py").write_text(OWN_BACKEND)
    done = run_weft("run", "own.py", "--http", "--backend", "memory:", cwd=folder)
    sentence = "weft: The server in the file has a backend= already. Remove it there, or leave --backend out.\n"
    assert (done.returncode, done.stderr) == (2, sentence)


@pytest.mark.security("R1")
@pytest.mark.mistake("a backend that does not exist")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--backend", "mongo://me:hidden@db"], "--backend cannot be used. There is no backend for URLs that begin"),
        (["--backend=mongo://me:hidden@db", "--reload"], "--backend cannot be used. There is no backend for URLs that"),
        (["--backend", "redis://me:hidden@db", "--wrong"], "weft run has no option --wrong; see weft run --help."),
        (["mongo://me:hidden@db"], "weft run has no argument mongo://***@db; see weft run --help."),
    ],
)
def test_the_password_of_a_backend_is_not_printed(folder: Path, options: list[str], sentence: str) -> None:
    done = run_weft("run", "server.py", "--http", *options, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"weft: {sentence}")
    assert "hidden" not in done.stderr


def test_a_backend_that_the_environment_names_and_does_not_exist(folder: Path) -> None:
    done = run_weft("run", "server.py", cwd=folder, env={**os.environ, "WEFT_BACKEND": "mongo://me:hidden@db"})
    assert done.returncode == 1
    assert done.stderr.startswith(
        "weft: The environment variable WEFT_BACKEND cannot be used. There is no backend for URLs that begin with"
    )
    assert "server.py" not in done.stderr
    assert "hidden" not in done.stderr


def test_run_reloads_when_the_code_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    with bind("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    with serving(folder, "server.py", "--port", port, "--reload") as (_, url, said):
        assert eventually(lambda: any("Watching" in line for line in said))
        time.sleep(0.5)  # the watcher looks from now on
        file = folder / "server.py"
        before = file.stat().st_mtime_ns
        file.write_text(SERVER.replace("count * 3", "count * 4"))
        os.utime(file, ns=(before, before))  # in the same second, and of the same size

        def changed() -> bool:
            return run_weft("call", url, "price", '{"item": "tea"}', cwd=folder).stdout == "tea: 4\n"

        assert eventually(changed), said


def test_run_keeps_listening_while_it_starts_again(folder: Path) -> None:
    with serving(folder, "server.py", "--port", "0", "--reload") as (_, url, said):
        assert eventually(lambda: any("Watching" in line for line in said))
        time.sleep(0.5)  # the watcher looks from now on
        (folder / "server.py").write_text("import time; time.sleep(1)\n" + SERVER.replace("count * 3", "count * 4"))
        assert eventually(lambda: any("starting again" in line for line in said))
        done = run_weft("call", url, "price", '{"item": "tea"}', cwd=folder)  # at the port that was free at first
        assert (done.returncode, done.stderr) == (0, "")
        assert eventually(lambda: run_weft("call", url, "price", '{"item": "tea"}', cwd=folder).stdout == "tea: 4\n")


@pytest.mark.security("D15")
def test_run_with_reload_opens_nothing_for_other_machines_without_names(folder: Path) -> None:
    done = run_weft("run", "server.py", "--http", "--reload", "--host", "0.0.0.0", cwd=folder)
    assert done.returncode == 2
    assert "(--allow-host api.example.com)" in done.stderr


def test_run_without_the_watcher_says_how_to_get_it(folder: Path) -> None:
    (folder / "watchfiles.py").write_text("raise ImportError('not installed')")
    done = run_weft("run", "server.py", "--http", "--reload", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("weft: --reload needs the package watchfiles. Install it: ")
    assert done.stderr.endswith(" -m pip install watchfiles\n")


@pytest.mark.mistake("port in use")
def test_run_on_a_port_in_use(folder: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = run_weft("run", "server.py", "--http", "--port", str(port), cwd=folder)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"weft: Port {port} on 127.0.0.1 is in use by another program.")
    assert "is free: port=" in said


@pytest.mark.security("D15")
def test_run_for_other_machines_needs_allowed_hosts(folder: Path) -> None:
    done = run_weft("run", "server.py", "--http", "--host", "0.0.0.0", cwd=folder)
    assert done.returncode == 2
    assert "(--allow-host api.example.com)" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "1"], "--port is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--allow-host", "x"], "--allow-host is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--sse"], "--sse is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--sse", "/old"], "--sse is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--workers", "2"], "--workers is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--no-sessions"], "--no-sessions is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--reload"], "--reload is for HTTP; add --http, or leave it out to serve on stdio."),
        (
            ["--http", "--reload", "--workers", "2"],
            "--reload is for development with one process; leave --workers out.",
        ),
    ],
)
def test_options_that_do_not_go_together(folder: Path, options: list[str], sentence: str) -> None:
    done = run_weft("run", "server.py", *options, cwd=folder)
    assert (done.returncode, done.stderr) == (2, f"weft: {sentence}\n")


@pytest.mark.parametrize("workers", ["0", "-1", "two"])
def test_a_number_of_workers_that_is_none(folder: Path, workers: str) -> None:
    done = run_weft("run", "server.py", "--http", f"--workers={workers}", cwd=folder)
    assert done.returncode == 2
    assert f"argument --workers: '{workers}' is not a number of processes; use 1 or more" in done.stderr


@pytest.mark.mistake("wrong file")
@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("servr.py", "There is no file 'servr.py' in {folder}. Did you mean server.py?"),
        ("servr", "There is no file or module 'servr' in {folder}. Did you mean server.py?"),
        (
            "shop.server",
            "There is no module 'shop.server'. Modules are searched for in {folder}, and in sys.path.",
        ),
        ("no/such.py", "There is no file 'no/such.py': the directory 'no' does not exist."),
        (
            "empty/server.py",
            "There is no file 'empty/server.py' in {folder}/empty. There is no Python file there at all",
        ),
        (".", "'.' is a directory; name a Python file in it, such as server.py."),
        ("empty", "'empty' is a directory; name a Python file in it, such as server.py."),
        ("data.txt", "data.txt is not a Python file: its name must end in '.py'."),
    ],
)
def test_a_wrong_file(folder: Path, target: str, sentence: str) -> None:
    (folder / "empty").mkdir()
    (folder / "data.txt").touch()
    done = run_weft("run", target, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("weft: " + sentence.format(folder=folder.resolve()))
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.mistake("wrong object name")
@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (
            "server.py:sever",
            "server.py has no object 'sever'. The servers there: server. Did you mean server.py:server?",
        ),
        ("server.py:price", "'price' in server.py is a function, not a Server. The servers there: server."),
        ("server.py:", "server.py has no object ''. The servers there: server."),
        ("none.py:app", "none.py has no object 'app'. There is no Server in the file at all. It has: thing."),
        (
            "none.py",
            "none.py has no Server in it at module level. Make one: server = weft.Server('my-server'). It has: thing.",
        ),
        ("two.py", "two.py has several servers: first, second. Say which one: two.py:first"),
    ],
)
def test_a_wrong_object(folder: Path, target: str, sentence: str) -> None:
    (folder / "none.py").write_text("thing = 1")
    (folder / "two.py").write_text("from weft import Server\nfirst, second = Server('a'), Server('b')")
    done = run_weft("run", target, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"weft: {sentence}"
    assert "Traceback" not in done.stderr


@pytest.mark.mistake("wrong file")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def f():\n    return 1 / 0\nf()",
            ["bad.py cannot be loaded: ZeroDivisionError: division by zero", "bad.py:2 in f: return 1 / 0"],
        ),
        (
            "import no_such_thing",
            ["ModuleNotFoundError: No module named 'no_such_thing'", "bad.py:1", "-m pip install no_such_thing"],
        ),
        ("x = (", ["bad.py cannot be loaded: bad.py:1 is not valid Python: '(' was never closed."]),
        ("import sys\nsys.exit(4)", ["it ended the process with exit(4); do that only under"]),
        ("from weft import Server\nServer('')", ["bad.py cannot be loaded. A server needs a name"]),
    ],
)
def test_a_file_that_fails_shows_only_the_users_lines(folder: Path, code: str, said: list[str]) -> None:
    (folder / "bad.py").write_text(code)
    done = run_weft("run", "bad.py", cwd=folder)
    assert done.returncode == 1
    assert all(text in done.stderr for text in said), done.stderr
    assert "Traceback" not in done.stderr
    assert "importlib" not in done.stderr
    assert len(done.stderr.splitlines()) <= 15


def test_a_file_may_import_its_neighbours_and_forget_the_guard(folder: Path) -> None:
    (folder / "neighbour.py").write_text("name = 'next door'")
    (folder / "main.py").write_text(
        "import neighbour, weft\nmcp = weft.Server(neighbour.name)\nmcp.run('http', port=1)"
    )
    assert run_weft("run", f"{folder.name}/main.py", cwd=folder.parent, input="").returncode == 0


# weft call, weft list


def test_call_prints_the_result(url: str, tmp_path: Path) -> None:
    done = run_weft("call", url, "price", '{"item": "tea", "count": 2}', cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tea: 6\n", "")
    assert json.loads(run_weft("call", url, "count", cwd=tmp_path).stdout) == {"n": 3}


def test_call_repeats_arguments_in_headers_where_the_tool_wants_that(url: str, tmp_path: Path) -> None:
    done = run_weft("call", url, "regional", '{"region": "zürich"}', cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "zürich\n")


def test_call_of_a_tool_that_fails(url: str, tmp_path: Path) -> None:
    done = run_weft("call", url, "broken", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "The till is stuck.\n")


@pytest.mark.mistake("unknown tool")
def test_call_of_an_unknown_tool(url: str, tmp_path: Path) -> None:
    done = run_weft("call", url, "prize", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"weft: {url} refused tools/call: ")
    assert "price" in done.stderr
    assert "(-32602)" in done.stderr


def test_list_prints_what_is_offered(url: str, tmp_path: Path) -> None:
    done = run_weft("list", url, cwd=tmp_path)
    assert done.returncode == 0
    assert (
        done.stdout
        == """\
tools:
  price  What something costs.
    item: string, count: integer = 1
  broken
  count
  regional
    region: string
resources:
  stock://apples
resource templates:
  stock://{fruit}/photo
prompts:
  haggle  Start to haggle.
    item, mood?
"""
    )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"type": ["string", "null"]}}}, "a?: string | null"),
        ({"properties": {"a": {"enum": ["x", 1]}}, "required": ["a"]}, 'a: "x" | 1'),
        (
            {"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/B"}}}, "$defs": {"B": {"const": 2}}},
            "a?: [2]",
        ),
        ({"properties": {"a": {"properties": {"b": {}, "c": {}}}}}, "a?: {b, c}"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, "a?: any"),
        ({"properties": {"a": True, "b": {"anyOf": [{"type": "integer"}, 3]}}}, "a?: any, b?: integer | any"),
        ({"properties": []}, None),
        (7, None),
    ],
)
def test_list_writes_arguments_in_a_line(tmp_path: Path, schema: Any, said: str | None) -> None:
    tools = {"tools": [{"name": "t", "inputSchema": schema}]}
    with other_server("application/json", lambda request: result_of(request, tools), 200) as url:
        done = run_weft("list", url, cwd=tmp_path)
    assert done.stdout == "tools:\n  t\n" + (f"    {said}\n" if said else ""), done.stderr


def test_read_prints_text_and_writes_bytes(url: str, tmp_path: Path) -> None:
    done = run_weft("read", url, "stock://apples", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "7\n")
    command = [sys.executable, "-m", "weft", "read", url, "stock://fig/photo"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"fig\x00\xff"
    done = run_weft("read", url, "stock://pears", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Resource not found" in done.stderr


def test_prompt_prints_the_messages(url: str, tmp_path: Path) -> None:
    done = run_weft("prompt", url, "haggle", '{"item": "tea"}', cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "user: tea, calm\n")
    assert run_weft("prompt", url, "haggle", "tea", cwd=tmp_path).returncode == 2
    assert run_weft("prompt", url, "haggle", cwd=tmp_path).returncode == 1


@pytest.mark.mistake("server not running")
@pytest.mark.parametrize("command", [["call", "{url}", "add"], ["list", "{url}"]])
def test_no_server_is_running(tmp_path: Path, command: list[str]) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    done = run_weft(*(part.format(url=url) for part in command), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"weft: No server is running at {url}: 127.0.0.1:{port} refused the connection. "
        f"Start it (weft run FILE --http --port {port}), or check the address.\n"
    )


@pytest.mark.mistake("server not running")
def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        done = run_weft("list", url, "--timeout", "0.3", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"weft: {url} did not answer within 0.3 s. If it needs longer, raise --timeout.\n",
    )


@contextlib.contextmanager
def other_server(content_type: str, body: bytes | Answer, status: int = 404, location: str | None = None):
    """A web server that is not one of MCP, unless its body is made so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            moved = location is not None and self.path != "/there"
            self.send_response(status if moved or location is None else 200)
            self.send_header("Content-Type", content_type)
            if moved:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else body(request))

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/wrong"
        server.shutdown()


Answer = Callable[[dict[str, Any]], bytes]
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "public"}


def result_of(request: dict[str, Any], result: dict[str, Any]) -> bytes:
    """The answer to a request: this result, or what the server is."""
    found = DISCOVERED if request["method"] == "server/discover" else result
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"resultType": "complete", **found}}).encode()


ASKS = {"resultType": "input_required", "requestState": "s"}


def ok(request: dict[str, Any]) -> bytes:
    return result_of(request, {"content": [{"type": "text", "text": "ok"}]})


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_on_the_same_host_is_followed(tmp_path: Path, status: int) -> None:
    with other_server("application/json", ok, status, "/there") as url:
        done = run_weft("call", url, "any", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    ("status", "location"), [(307, "http://127.0.0.2:1/there"), (308, "https://example.com/"), (302, "/there")]
)
def test_a_redirect_to_elsewhere_is_named(tmp_path: Path, status: int, location: str) -> None:
    with other_server("application/json", ok, status, location) as url:
        done = run_weft("call", url, "any", cwd=tmp_path)
    place = url.replace("/wrong", location) if location == "/there" else location
    assert done.returncode == 1
    assert f"it sends you to {place}. If you trust that place, use its URL.\n" in done.stderr


def test_a_redirect_in_a_circle_ends(tmp_path: Path) -> None:
    with other_server("application/json", ok, 307, "/wrong") as url:
        done = run_weft("call", url, "any", cwd=tmp_path)
    assert done.returncode == 1
    assert "redirects again and again" in done.stderr


TRIED = "server/discover and initialize: HTTP 500 (<p>no)"
LOOK = "ook into its log, and into that of a proxy before it."


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (500, f"does not answer as an MCP server does. Tried: {TRIED}. L{LOOK}"),
        (502, f"answered with the HTTP status 502 (<p>no): l{LOOK}"),
    ],
)
def test_a_server_that_fails_is_not_blamed_on_the_path(tmp_path: Path, status: int, said: str) -> None:
    with other_server("text/html", b"<p>no", status) as url:
        done = run_weft("list", url, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"weft: {url} {said}\n"


def test_a_server_that_cannot_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    said = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "The lifespan failed [error 1a]"}}'
    with other_server("application/json", said, 500) as url:
        done = run_weft("list", url, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"weft: {url} answered: The lifespan failed [error 1a] (-32603, HTTP 500). L{LOOK}\n"


@pytest.mark.mistake("a wrong URL path")
def test_a_wrong_path_of_a_server_is_told(url: str, tmp_path: Path) -> None:
    done = run_weft("list", url.removesuffix("/mcp"), cwd=tmp_path)
    assert done.returncode == 1
    said = "There is nothing at this path: the MCP endpoint is /mcp. (-32600); "
    assert f"Tried: server/discover and initialize: {said}" in done.stderr
    assert done.stderr.count("/mcp") == 1
    assert "Check the address, and look into the server's log." in done.stderr


@pytest.mark.mistake("server not running")
@pytest.mark.parametrize(
    ("content_type", "body"),
    [("text/html", b"<p>no"), ("application/json", b"[]"), ("application/json", b'{"error": "x"}')],
)
def test_something_else_is_running(tmp_path: Path, content_type: str, body: bytes) -> None:
    with other_server(content_type, body) as url:
        done = run_weft("list", url, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"weft: {url} does not answer as an MCP server does. Tried: server/discover")
    assert "Check the address (its path is usually /mcp)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("is_complete", [True, False])
def test_call_reads_a_stream_to_its_answer(tmp_path: Path, is_complete: bool) -> None:
    said = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"hm"}}\n\n'

    def events(request: dict[str, Any]) -> bytes:
        answer = b"event: message\ndata: " + ok(request) + b"\n\n"
        if request["method"] != "tools/call":
            return answer
        return said + answer if is_complete else said

    with other_server("text/event-stream", events, 200) as url:
        done = run_weft("call", url, "any", cwd=tmp_path)
    heard, _, rest = done.stderr.partition("\n")
    assert heard == 'notifications/message: {"data":"hm"}'
    if is_complete:
        assert (done.returncode, done.stdout, rest) == (0, "ok\n", "")
    else:
        assert done.returncode == 1
        assert "ended the stream before its answer was complete" in rest


# servers of the session era, and commands


def test_the_commands_reach_a_server_that_only_has_sessions(folder: Path) -> None:
    (folder / "server.py").write_text(SERVER.replace('Server("shop")', 'Server("shop", eras=("session",))'))
    with serving(folder, "server.py", "--port", "0") as (_, url, _):
        assert run_weft("call", url, "price", '{"item": "tea"}', cwd=folder).stdout == "tea: 3\n"
        assert run_weft("read", url, "stock://apples", cwd=folder).stdout == "7\n"
        assert run_weft("list", url, cwd=folder).stdout.startswith("tools:\n  price  What something costs.\n")


def test_sse_serves_clients_of_that_transport(folder: Path) -> None:
    with serving(folder, "server.py", "--port", "0", "--sse", "/old") as (_, url, _):
        done = run_weft("call", url.replace("/mcp", "/old"), "price", '{"item": "tea"}', cwd=folder)
        assert (done.returncode, done.stdout) == (0, "tea: 3\n"), done.stderr
        assert run_weft("call", url, "price", '{"item": "tea"}', cwd=folder).returncode == 0


def test_the_commands_start_a_server_by_a_command(folder: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m weft run server.py"
    done = run_weft("call", "--stdio", command, "price", '{"item": "tea"}', cwd=folder)
    assert (done.returncode, done.stdout) == (0, "tea: 3\n"), done.stderr
    assert "printed while loading" in done.stderr  # what the server says, the person at the terminal reads
    done = run_weft("prompt", "--stdio", command, "haggle", '{"item": "tea"}', cwd=folder)
    assert (done.returncode, done.stdout) == (0, "user: tea, calm\n")
    done = run_weft("call", "--stdio", command, "prize", cwd=folder)
    assert done.returncode == 1
    assert f"weft: {command} refused tools/call: " in done.stderr


@pytest.mark.mistake("server not running")
@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("no-such-program server.py", 1, "there is no such program on the PATH; install it, or give its full path."),
        (f"{sys.executable} no-such-file.py", 1, "ended with the exit code 2"),
        ("python server.py | tee log", 2, "The command has '|', which only a shell understands, but no shell is used"),
        ("", 2, "The command is empty"),
    ],
)
def test_a_command_that_starts_no_server(tmp_path: Path, command: str, code: int, sentence: str) -> None:
    done = run_weft("list", "--stdio", command, cwd=tmp_path)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tool_that_asks_back_is_named(folder: Path) -> None:
    with other_server("application/json", lambda request: result_of(request, ASKS), 200) as url:
        done = run_weft("call", url, "any", cwd=folder)
    said = (
        f"{url} asked a question in tools/call (input_required). `weft call` cannot answer questions; use "
        "Client(elicit=...)."
    )
    assert (done.returncode, done.stderr) == (1, f"weft: {said}\n")


ASKING = """
from weft import Context, Server
server = Server("asking")
FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
@server.tool
async def sure(ctx: Context) -> str:
    return str((await ctx.elicit("Sure?", FORM)).accepted)
@server.tool
async def think(ctx: Context) -> str:
    return (await ctx.sample("Well?", max_tokens=9)).content.text
@server.prompt
async def sure_prompt(ctx: Context) -> str:
    return str((await ctx.elicit("Sure?", FORM)).accepted)
@server.resource("sure://it")
async def sure_resource(ctx: Context) -> str:
    return str((await ctx.elicit("Sure?", FORM)).accepted)
"""


@pytest.mark.parametrize(
    ("command", "what", "option"),
    [
        ("call", "sure", "elicit"),
        ("call", "think", "sample"),
        ("prompt", "sure_prompt", "elicit"),
        ("read", "sure://it", "elicit"),
    ],
)
def test_who_cannot_be_asked_is_told_what_can_answer(tmp_path: Path, command: str, what: str, option: str) -> None:
    (tmp_path / "asking.py").write_text(ASKING + "server.run()\n")
    done = run_weft(command, "--stdio", f"{sys.executable} asking.py", what, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(f"(-32021) `weft {command}` cannot answer questions; use Client({option}=...).\n")


def test_the_package_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weft", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{weft.__version__}\n"
    helped = subprocess.run(
        [sys.executable, "-m", "weft", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert helped.stdout.startswith("usage: weft ")


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (
            "127.0.0.1:8000/mcp",
            "'127.0.0.1:8000/mcp' is not the URL of a server; write one like http://127.0.0.1:8000/mcp.",
        ),
        ("file:///etc/passwd", "is not the URL of a server"),
        ("http://localhost:99999/", "is not the URL of a server"),
        (
            "http://192.0.2.1/mcp",
            "http://192.0.2.1/mcp is not encrypted; use https:// for a server that is not on this machine.",
        ),
        ("http://127.0.0.1.example.com/mcp", "is not encrypted"),
    ],
)
def test_urls_that_are_not_called(tmp_path: Path, url: str, sentence: str) -> None:
    done = run_weft("call", url, "any", cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_arguments_that_are_not_json(tmp_path: Path) -> None:
    done = run_weft("call", "http://127.0.0.1:1/mcp", "any", "{item: tea}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("weft: The arguments are not a JSON object (")
    assert done.stderr.endswith("""write them like '{"a": 1}'.\n""")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["run", "x.py", "--http", "--port", "99999"],
        ["run", "x.py", "--http", "--port", "-1"],
        ["run", "x.py", "--log-level", "loud"],
    ],
)
def test_a_wrong_command_is_2(tmp_path: Path, arguments: list[str]) -> None:
    done = run_weft(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: weft")
