"""Agent frameworks and servers that others wrote, beside Weft; `make interop` writes docs/interop.md of what is seen.

No model takes part. A framework lists the tools of a Weft server and calls four, as it would for a model: one that
answers with text, one with structured content for a nested argument, one that fails, and one that names the revision.
The Weft client lists the tools of a server of others, calls one, and makes a mistake.
"""

import http.server
import json
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import CACHE, NODE, WEFT, foreign_module, listening, python_of

from support.ports import find_port
from weft import Client, RemoteError

HERE = Path(__file__).parent
KITCHEN = str(HERE / "servers" / "kitchen.py")
RESULTS = CACHE / "interop"
TOOLS = {"greet", "brew", "spill", "which"}


def note(kind: str, name: str, way: str, **facts: Any) -> None:
    """Keep what was seen, for tools/interop_page.py."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    row = {"kind": kind, "name": name, "way": way, **facts}
    (RESULTS / f"{kind}-{name.replace('/', '_')}-{way}.json").write_text(json.dumps(row))


# --- their clients, our server


@pytest.fixture(scope="module")
def kitchen() -> Iterator[str]:
    port = find_port()
    with listening([*WEFT, KITCHEN, "--http", "--port", str(port)], port):
        yield f"http://127.0.0.1:{port}/mcp"


def framework(name: str) -> Callable[[], list[str]]:
    return lambda: [str(python_of(name)), str(HERE / "drivers" / "foreign_clients.py"), name]


def ai_sdk() -> list[str]:
    modules = foreign_module("@ai-sdk", "mcp").parents[1]
    return [str(NODE), str(HERE / "drivers" / "foreign_clients.mjs"), str(modules)]


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "pydantic-ai": framework("pydantic-ai"),
    "openai-agents": framework("openai-agents"),
    "langchain-mcp-adapters": framework("langchain"),
    "google-adk": framework("google-adk"),
    "llama-index-tools-mcp": framework("llama-index"),
    "@ai-sdk/mcp": ai_sdk,
}


@pytest.mark.parametrize("way", ["http", "stdio"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_framework_uses_a_weft_server(name: str, way: str, kitchen: str) -> None:
    target = [kitchen] if way == "http" else [*WEFT, KITCHEN]
    done = subprocess.run(
        [*CLIENTS[name](), way, *target],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{name} over {way} failed:\n{done.stdout}\n{done.stderr}"
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    plain = {call: said.replace("\\", "") for call, said in facts.items() if isinstance(said, str)}
    assert set(facts["tools"]) == TOOLS
    assert "Hello, Ada! Hello, Ada!" in plain["greet"]
    assert re.search(
        r"""["']tea["']: ?["']oolong["'], ?["']grams["']: ?7, ?["']ready["']: ?true""", plain["brew"], re.IGNORECASE
    )
    assert "The kettle is empty; fill it first." in plain["spill"]
    revision = re.search(r"revision (\d{4}-\d\d-\d\d)", plain["which"])
    assert revision is not None, plain["which"]
    note("client", name, way, revision=revision[1], versions=facts["versions"])


async def test_a_weft_server_is_reached_through_mcp_remote(kitchen: str, tmp_path: Path) -> None:
    proxy = foreign_module("mcp-remote", "dist", "proxy.js")
    command = [str(NODE), str(proxy), kitchen, "--transport", "http-only"]
    target = {"command": command[0], "args": command[1:], "env": {"MCP_REMOTE_CONFIG_DIR": str(tmp_path)}}
    async with Client(target) as client:
        assert {tool.name for tool in await client.list_tools()} == TOOLS
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "Hello, Ada!"
        assert (await client.call_tool("brew", {"leaf": {"name": "oolong"}})).structured_content == {
            "tea": "oolong",
            "grams": 5,
            "ready": True,
        }
        failed = await client.call_tool("spill")
        assert failed.is_error
        assert failed.text == "The kettle is empty; fill it first."
        revision = (await client.call_tool("which")).text.removeprefix("revision ")
    note("client", "mcp-remote", "http", revision=revision, versions=npm_version("mcp-remote"))


# --- our client, their servers


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """A web page on loopback, for the server that fetches."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/tea"
            body = b"<html><body><p>Oolong is half oxidised.</p></body></html>"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body if found else b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/tea"
        server.shutdown()


def repository(folder: Path) -> Path:
    place = folder / "repo"
    for words in (["init", "-q", str(place)], ["-C", str(place), "commit", "-q", "--allow-empty", "-m", "First leaf"]):
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        subprocess.run(["git", *who, *words], check=True)
    return place


def database(folder: Path) -> Path:
    with sqlite3.connect(folder / "tea.db") as connection:
        connection.execute("CREATE TABLE teas (name TEXT)")
        connection.execute("INSERT INTO teas VALUES ('oolong')")
    return folder / "tea.db"


def python_server(peer: str, name: str, *words: str) -> list[str]:
    return [str(python_of(peer).parent / name), *words]


def node_server(*names: str) -> list[str]:
    return [str(NODE), str(foreign_module(*names))]


def time_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    return python_server("servers", "mcp-server-time"), "get_current_time", {"timezone": "Europe/Paris"}, "Europe/Paris"


def git_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    place = repository(folder)
    command = python_server("servers", "mcp-server-git", "--repository", str(place))
    return command, "git_log", {"repo_path": str(place)}, "First leaf"


def fetch_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    command = python_server("fetch", "mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips")
    return command, "fetch", {"url": page}, "Oolong is half oxidised."


def sqlite_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    command = python_server("sqlite", "mcp-server-sqlite", "--db-path", str(database(folder)))
    return command, "read_query", {"query": "SELECT name FROM teas"}, "oolong"


def everything_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    from peer_servers import everything_command

    return everything_command("stdio"), "echo", {"message": "oolong"}, "oolong"


def filesystem_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    (folder / "tea.txt").write_text("oolong")
    command = [*node_server("@modelcontextprotocol", "server-filesystem", "dist", "index.js"), str(folder)]
    return command, "read_text_file", {"path": str(folder / "tea.txt")}, "oolong"


def memory_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    command = node_server("@modelcontextprotocol", "server-memory", "dist", "index.js")
    entity = {"name": "oolong", "entityType": "tea", "observations": ["half oxidised"]}
    return command, "create_entities", {"entities": [entity]}, "half oxidised"


def playwright_server(folder: Path, page: str) -> tuple[list[str], str, dict[str, Any], str]:
    # Its tools need a browser, which is not fetched: that a call says so is what is tried.
    return [*node_server("@playwright", "mcp", "cli.js"), "--headless"], "", {}, ""


SERVERS: dict[str, tuple[Callable[[Path, str], tuple[list[str], str, dict[str, Any], str]], int]] = {
    "mcp-server-time": (time_server, 2),
    "mcp-server-git": (git_server, 10),
    "mcp-server-fetch": (fetch_server, 1),
    "mcp-server-sqlite": (sqlite_server, 6),
    "@modelcontextprotocol/server-everything": (everything_server, 8),
    "@modelcontextprotocol/server-filesystem": (filesystem_server, 10),
    "@modelcontextprotocol/server-memory": (memory_server, 9),
    "@playwright/mcp": (playwright_server, 15),
}


async def fails(client: Client, tool: str) -> bool:
    """Whether a call with arguments that do not fit is refused: by a result, or by an error of the protocol."""
    try:
        return bool((await client.call_tool(tool, {"nonsense": 1})).is_error)
    except RemoteError as error:
        return error.code in (-32602, -32603)


@pytest.mark.parametrize("name", SERVERS)
async def test_the_weft_client_uses_a_server_of_others(name: str, tmp_path: Path, page: str) -> None:
    prepare, at_least = SERVERS[name]
    command, tool, arguments, expected = prepare(tmp_path, page)
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    target = {"command": command[0], "args": command[1:], "env": env, "cwd": str(tmp_path)}
    async with Client(target) as client:
        tools = await client.list_tools()
        assert len(tools) >= at_least
        if tool:
            assert expected in (await client.call_tool(tool, arguments)).text
            assert await fails(client, tool)
        info, revision = client.server_info, client.protocol_version
    note("server", name, "stdio", revision=revision, tools=len(tools), says=getattr(info, "version", None))


def npm_version(name: str) -> dict[str, str]:
    return {name: json.loads(foreign_module(name, "package.json").read_text())["version"]}


def test_the_page_is_made_of_what_was_seen() -> None:
    """The names and versions of docs/interop.md are those that are pinned."""
    tool = HERE.parents[1] / "tools" / "interop_page.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (HERE.parents[1] / "docs" / "interop.md").read_text()
    assert [name for name in (*CLIENTS, "mcp-remote", *SERVERS) if f"| {name} | " not in page] == []
