"""The `weft` command as a person uses it: real processes, the text they print, their exit codes."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.server.listening import bind

SERVER = """
from typing import Annotated
from weft import Context, MirroredHeader, Server, ToolError

server = Server("shop")

@server.tool
def price(item: str, count: int = 1) -> str:
    '''What something costs.

    In francs.'''
    return f"{item}: {count * 3}"

@server.tool
async def broken() -> str:
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

print("printed while loading")
if __name__ == "__main__":
    raise RuntimeError("the file is run, not loaded")
"""


def run_weft(*arguments: str, cwd: Path, timeout: float = 15, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.cli", *arguments],
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
        [sys.executable, "-m", "weft.cli", "run", *arguments, "--http"], cwd=folder, stderr=subprocess.PIPE, text=True
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
            process.wait(10)
        thread.join(5)
        process.stderr.close()


def eventually(fact: Any) -> bool:
    until = time.monotonic() + 10
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


def test_version(tmp_path: Path) -> None:
    assert run_weft("version", cwd=tmp_path).stdout == f"{weft.__version__}\n"


# weft run


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
        assert eventually(lambda: any(line.startswith("Try: weft call ") for line in said))
        line = next(line for line in said if line.startswith("Try: "))
        assert line == f"""Try: weft call {url} price '{{"item":"text","count":1}}'\n"""
        done = run_weft("call", url, "price", '{"item":"text","count":1}', cwd=folder)
        assert (done.returncode, done.stdout) == (0, "text: 3\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert not any("Traceback" in line for line in said)


def test_run_with_workers(folder: Path) -> None:
    with serving(folder, "server.py:server", "--port", "0", "--workers", "2") as (process, url, _):
        assert eventually(lambda: run_weft("call", url, "count", cwd=folder).returncode == 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_run_reloads_when_the_code_changes(folder: Path) -> None:
    with bind("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    with serving(folder, "server.py", "--port", port, "--reload") as (_, url, said):
        assert eventually(lambda: any("Watching" in line for line in said))
        time.sleep(0.5)  # the watcher looks from now on
        (folder / "server.py").write_text(SERVER.replace("count * 3", "count * 4"))

        def changed() -> bool:
            return run_weft("call", url, "price", '{"item": "tea"}', cwd=folder).stdout == "tea: 4\n"

        assert eventually(changed), said


def test_run_without_the_watcher_says_how_to_get_it(folder: Path) -> None:
    (folder / "watchfiles.py").write_text("raise ImportError('not installed')")
    done = run_weft("run", "server.py", "--http", "--reload", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("weft: --reload needs the package watchfiles. Install it: ")


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
    assert done.returncode == 1
    assert "(--allow-host api.example.com)" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "1"], "--port is for HTTP; add --http, or leave it out to serve on stdio."),
        (["--allow-host", "x"], "--allow-host is for HTTP; add --http, or leave it out to serve on stdio."),
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


@pytest.mark.mistake("wrong file")
@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("servr.py", "There is no file 'servr.py' in {folder}. Did you mean server.py?"),
        ("server", "There is no file 'server' in {folder}. Did you mean server.py?"),
        ("no/such.py", "There is no file 'no/such.py': the directory 'no' does not exist."),
        (
            "empty/server.py",
            "There is no file 'empty/server.py' in {folder}/empty. There is no Python file there at all",
        ),
        (".", "'.' is a directory; name the Python file in it: server.py."),
        ("data.txt", "data.txt is not a Python file: its name must end in '.py'."),
    ],
)
def test_a_wrong_file(folder: Path, target: str, sentence: str) -> None:
    (folder / "empty").mkdir()
    (folder / "data.txt").touch()
    done = run_weft("run", target, cwd=folder)
    assert done.returncode == 1
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
    assert done.returncode == 1
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
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "The till is stuck.\n")


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
    assert done.stdout.splitlines()[:2] == ["tools:", "  price  What something costs."]
    assert "resources:\n  stock://apples" in done.stdout
    assert "prompts:" not in done.stdout


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
        f"weft: {url} did not answer within 0.3 s. Is it busy? --timeout waits longer.\n",
    )


@contextlib.contextmanager
def other_server(content_type: str, body: bytes):
    """A web server that is not one of MCP."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(404)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/wrong"
        server.shutdown()


@pytest.mark.mistake("server not running")
@pytest.mark.parametrize(
    ("content_type", "body"),
    [("text/html", b"<p>no"), ("application/json", b"[]"), ("application/json", b'{"error": "x"}')],
)
def test_something_else_is_running(tmp_path: Path, content_type: str, body: bytes) -> None:
    with other_server(content_type, body) as url:
        done = run_weft("list", url, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"weft: {url} answered 404 Not Found, but not as an MCP server does; check the path, which is usually /mcp.\n",
    )


def test_call_reads_a_stream_to_its_answer(tmp_path: Path) -> None:
    events = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"hm"}}\n\n'
    answer = b'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"ok"}]}}\n\n'
    with other_server("text/event-stream", events + answer) as url:
        done = run_weft("call", url, "any", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", 'notifications/message: {"data":"hm"}\n')
    with other_server("text/event-stream", events) as url:
        done = run_weft("call", url, "any", cwd=tmp_path)
    assert done.returncode == 1
    assert "ended its answer before it was complete" in done.stderr


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
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_arguments_that_are_not_json(tmp_path: Path) -> None:
    done = run_weft("call", "http://127.0.0.1:1/mcp", "any", "{item: tea}", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("weft: The arguments are not a JSON object (")
    assert done.stderr.endswith("""write them like '{"a": 1}'.\n""")


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run"], ["run", "x.py", "--porte", "1"]])
def test_a_wrong_command_is_2(tmp_path: Path, arguments: list[str]) -> None:
    done = run_weft(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: weft")
