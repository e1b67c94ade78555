"""What `weft run` can be pointed at: files, packages, modules, functions that make a server; and mistakes there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import sys
from weft import Server
from . import stock
from .stock import prices

server = Server("shop")

@server.tool
def arguments() -> list[str]:
    return sys.argv[1:]

@server.tool
def price(item: str) -> int:
    return prices[item]

def make_server() -> Server:
    made = Server("made")
    made.add_tool(arguments)
    made.run()  # while it is loaded, that does nothing
    return made
"""
PACKAGE = {"shop/__init__.py": "", "shop/stock.py": "prices = {'tea': 3}", "shop/server.py": SERVER}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, PACKAGE)
    return tmp_path


def run_weft(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, **{"input": "", **options}
    )


def ask(folder: Path, tool: str, json: str = "{}", *target: str, cwd: Path | None = None) -> str:
    """What a tool of a target answers, served on stdio."""
    command = f"{sys.executable} -m weft run {' '.join(target)}"
    done = run_weft("call", "--stdio", command, tool, json, cwd=cwd or folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "target",
    [
        ["shop/server.py"],
        ["shop/server.py:server"],
        ["./shop/server.py"],
        ["shop.server"],
        ["shop.server:server"],
        ["-m", "shop.server"],
        ["-m", "shop.server:server"],
    ],
    ids=" ".join,
)
def test_a_server_in_a_package_is_found_in_every_way(folder: Path, target: list[str]) -> None:
    assert ask(folder, "price", '{"item":"tea"}', *target) == "3\n"


def test_a_file_of_a_package_is_found_from_elsewhere(folder: Path) -> None:
    write(folder, {"elsewhere/x": ""})
    target = str(folder / "shop/server.py")
    assert ask(folder, "price", '{"item":"tea"}', target, cwd=folder / "elsewhere") == "3\n"


def test_packages_within_packages(tmp_path: Path) -> None:
    write(tmp_path, {"a/__init__.py": "", **{f"a/{name}": text for name, text in PACKAGE.items()}})
    (tmp_path / "a/shop/server.py").write_text(SERVER.replace("from . import stock", "from ..shop import stock"))
    assert ask(tmp_path, "price", '{"item":"tea"}', "a/shop/server.py") == "3\n"


def test_a_package_is_the_server_that_is_in_it(tmp_path: Path) -> None:
    write(tmp_path, {"shop/__init__.py": SERVER, "shop/stock.py": PACKAGE["shop/stock.py"]})
    for target in (["shop"], ["shop:server"], ["shop/__init__.py"], ["-m", "shop"]):
        assert ask(tmp_path, "price", '{"item":"tea"}', *target) == "3\n"


def test_a_module_without_a_package_is_named_like_one(tmp_path: Path) -> None:
    write(
        tmp_path, {"server.py": "from weft import Server\nserver = Server('s')\n@server.tool\ndef f() -> int: return 7"}
    )
    for target in ("server", "server:server", "server.py"):
        assert ask(tmp_path, "f", "{}", target) == "7\n"


def test_python_m_means_the_main_module_of_a_package(folder: Path) -> None:
    write(folder, {"shop/__main__.py": "from shop.server import server\nserver.run()"})
    assert ask(folder, "price", '{"item":"tea"}', "-m", "shop") == "3\n"


@pytest.mark.parametrize("target", ["shop.server:make_server", "shop/server.py:make_server"])
def test_a_function_makes_the_server(folder: Path, target: str) -> None:
    assert ask(folder, "arguments", "{}", target, "--", "a", "--http", "'b c'") == '["a","--http","b c"]\n'


@pytest.mark.parametrize("target", [["shop/server.py"], ["shop.server"], ["-m", "shop.server"]], ids=" ".join)
def test_arguments_reach_the_file(folder: Path, target: list[str]) -> None:
    assert ask(folder, "arguments", "{}", *target, "--", "--port", "1") == '["--port","1"]\n'
    assert ask(folder, "arguments", "{}", *target) == "[]\n"


def test_a_file_that_its_neighbour_imports_is_one_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "server.py": "from weft import Server\nserver = Server('s')\nimport tools",
            "tools.py": "from server import server\n@server.tool\ndef f() -> int: return 7",
        },
    )
    assert ask(tmp_path, "f", "{}", "server.py") == "7\n"


def test_a_file_with_the_name_of_a_module_that_is_there_already(tmp_path: Path) -> None:
    write(tmp_path, {"sub/json.py": "import json\nfrom weft import Server\nserver = Server(json.dumps('s'))"})
    assert run_weft("run", "sub/json.py", cwd=tmp_path).returncode == 0


def test_a_file_with_the_name_of_a_module_that_is_part_of_python(tmp_path: Path) -> None:
    write(
        tmp_path, {"faulthandler.py": "import weft\nserver = weft.Server('s')\n@server.tool\ndef f() -> int: return 7"}
    )
    assert ask(tmp_path, "f", "{}", "faulthandler.py") == "7\n"


def test_a_file_beside_a_package_of_its_name(folder: Path) -> None:
    write(folder, {"shop.py": "import weft\nserver = weft.Server('s')\n@server.tool\ndef f() -> int: return 7"})
    assert ask(folder, "f", "{}", "shop.py") == "7\n"


# The same over HTTP, in the children that --reload and --workers start.


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[str, list[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "run", "--http", "--port", "0", *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    said: list[str] = []

    def listen() -> None:
        for line in process.stderr or ():
            said.append(line)  # noqa: PERF402 - one by one, as they come

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        until = time.monotonic() + 30
        while not any(" at http" in line for line in said) and time.monotonic() < until and process.poll() is None:
            time.sleep(0.05)
        url = next(line for line in said if " at http" in line).split(" at ")[1].split()[0]
        yield url, said
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        listening.join(30)
        process.stderr.close()


@pytest.mark.parametrize("how", [["--workers", "2"], ["--reload"]], ids=" ".join)
@pytest.mark.parametrize(
    "target",
    [["shop/server.py"], ["shop.server:make_server"], ["-m", "shop.server:server"]],
    ids=" ".join,
)
def test_children_find_the_same_server_and_arguments(folder: Path, how: list[str], target: list[str]) -> None:
    with serving(folder, *how, *target, "--", "one", "--reload") as (url, _):
        for _ in range(4):
            done = run_weft("call", url, "arguments", cwd=folder)
            assert (done.returncode, done.stdout) == (0, '["one","--reload"]\n'), done.stderr


@pytest.mark.parametrize("target", [["shop/server.py"], ["-m", "shop.server"]], ids=" ".join)
def test_a_change_anywhere_in_the_package_is_seen(folder: Path, target: list[str]) -> None:
    with serving(folder, "--reload", *target) as (url, said):
        until = time.monotonic() + 30
        while not any("Watching" in line for line in said) and time.monotonic() < until:
            time.sleep(0.05)
        assert f"Watching {folder.resolve() / 'shop'} for changes.\n" in said
        time.sleep(0.5)  # the watcher looks from now on
        (folder / "shop/stock.py").write_text("prices = {'tea': 44}")
        while time.monotonic() < until:
            if run_weft("call", url, "price", '{"item":"tea"}', cwd=folder).stdout == "44\n":
                return
        pytest.fail("".join(said))


def test_workers_of_a_script_have_its_arguments(folder: Path) -> None:
    (folder / "main.py").write_text(
        "import sys\nfrom weft import Server\nserver = Server('s')\n"
        "@server.tool\ndef arguments() -> list[str]: return sys.argv[1:]\n"
        "if __name__ == '__main__': server.run('http', port=int(sys.argv[1]), workers=2)\n"
    )
    from weft.server.run.listening import bind

    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "main.py", str(port)], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        done = run_weft("call", f"http://127.0.0.1:{port}/mcp", "arguments", cwd=folder)
        while done.returncode and time.monotonic() < until:
            done = run_weft("call", f"http://127.0.0.1:{port}/mcp", "arguments", cwd=folder)
        assert done.stdout == f'["{port}"]\n'
    finally:
        process.terminate()
        process.wait(30)


# Mistakes.


def refused(folder: Path, *target: str, code: int) -> str:
    done = run_weft("run", *target, cwd=folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "importlib" not in done.stderr
    assert len(done.stderr.splitlines()) <= 12
    return done.stderr


@pytest.mark.mistake("a typo in module:name")
@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (["shop.sever"], "There is no module 'shop.sever' in the package shop. Did you mean shop.server? Modules are"),
        (["-m", "shop.sever"], "There is no module 'shop.sever' in the package shop. Did you mean shop.server? "),
        (["-m", "shp.server"], "There is no module 'shp.server'. Modules are searched for in "),
        (["-m", "shop/server.py"], "'shop/server.py' is not the name of a module; write it with dots, like -m "),
        (["shop.server:sever"], "shop.server has no object 'sever'. The servers there: server. Did you mean "),
        (["shop.server:price"], "'price' in shop.server is a function, not a Server. The servers there: server."),
        (["shop.makers:ready"], "'ready' in shop.makers is an async function; a function that makes a server must "),
        (["shop.makers:sized"], "'sized' in shop.makers needs arguments: size. A function that makes a server is "),
        (
            ["shop.makers:wrong"],
            "'wrong' in shop.makers is a function that returned an int, not a Server. Let it return a Server",
        ),
        (
            ["shop.makers"],
            "shop.makers has no Server in it at module level, but a function that makes one: shop.makers:good",
        ),
        ([], "Name one file or module to serve, such as server.py, shop.server or -m shop.server."),
        (["shop.server", "-m", "shop.server"], "Name one file or module to serve, such as "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_name_that_is_wrong(folder: Path, target: list[str], sentence: str) -> None:
    makers = """
import weft
async def ready(): ...
def sized(size): ...
def wrong(): return 3
def good() -> weft.Server: ...
"""
    write(folder, {"shop/makers.py": makers})
    assert refused(folder, *target, code=2).startswith(f"weft: {sentence}")


def test_a_function_that_fails_is_told_with_its_line(folder: Path) -> None:
    write(folder, {"maker.py": "def make():\n    return 1 / 0\n"})
    said = refused(folder, "maker:make", code=1)
    assert said.startswith("weft: maker:make cannot be loaded: ZeroDivisionError: division by zero\n")
    assert "maker.py:2 in make: return 1 / 0" in said


def test_a_module_that_is_missing_within_is_not_taken_for_the_one_that_was_named(folder: Path) -> None:
    write(folder, {"shop/other.py": "import nowhere"})
    said = refused(folder, "shop.other", code=1)
    assert "shop.other cannot be loaded: ModuleNotFoundError: No module named 'nowhere'" in said
    assert "pip install nowhere" in said


@pytest.mark.mistake("a relative import")
def test_a_relative_import_without_a_package(tmp_path: Path) -> None:
    write(tmp_path, {"tools/server.py": "from . import stock\n", "tools/stock.py": ""})
    said = refused(tmp_path, "tools/server.py", code=1)
    assert said.startswith("weft: tools/server.py cannot be loaded: ImportError: attempted relative import")
    assert (
        "tools/server.py:1 has a relative import, but tools/ has no __init__.py, so it is not a package. Write an "
        "absolute import (`import other` for other.py beside it), or make tools/ a package: add an empty __init__.py "
        "to it." in said
    )


@pytest.mark.mistake("a relative import")
def test_a_relative_import_beyond_the_package(folder: Path) -> None:
    write(folder, {"shop/far.py": "from ..elsewhere import x\n"})
    said = refused(folder, "shop/far.py", code=1)
    assert "shop/far.py:1 has a relative import, but it has more dots than there are packages above it." in said


@pytest.mark.mistake("a circular import")
@pytest.mark.parametrize("target", ["server.py", "server"])
@pytest.mark.parametrize("line", ["from server import server", "import server\n@server.server.tool\ndef f(): ..."])
def test_a_circular_import(tmp_path: Path, target: str, line: str) -> None:
    write(tmp_path, {"server.py": "import weft\nimport tools\nserver = weft.Server('s')\n", "tools.py": f"{line}\n"})
    said = refused(tmp_path, target, code=1)
    assert "These files import each other in a circle: server.py → tools.py → server.py." in said
    assert "Put `server = Server(...)` into a module that imports neither of them, or move the import below" in said


FORGOTTEN = "from weft import Server\nserver = Server('shop')\ndef price(item: str) -> int:\n    return 3\n"


@pytest.mark.mistake("a function without its decorator")
@pytest.mark.parametrize("how", ["weft run", "python"])
def test_a_server_with_nothing_is_warned_of(tmp_path: Path, how: str) -> None:
    write(tmp_path, {"server.py": f"{FORGOTTEN}\nserver.run()\n"})
    command = ["-m", "weft", "run"] if how == "weft run" else []
    done = subprocess.run(
        [sys.executable, *command, "server.py"], cwd=tmp_path, input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr.endswith(
        "WARNING weft.advice: The server 'shop' has no tools, resources or prompts. Write @server.tool above `def "
        "price` in server.py, and others that clients may call.\n"
    )


@pytest.mark.mistake("a function without its decorator")
def test_a_file_with_a_function_and_no_server(tmp_path: Path) -> None:
    write(tmp_path, {"server.py": "def price(item: str) -> int:\n    return 3\n"})
    assert refused(tmp_path, "server.py", code=2) == (
        "weft: server.py has no Server in it at module level. Make one: server = weft.Server('my-server'), and write "
        "@server.tool above `def price`. It has: price.\n"
    )


@pytest.mark.mistake("a circular import")
def test_a_script_that_is_loaded_twice_is_told_so(tmp_path: Path) -> None:
    tools = "from server import server\n@server.tool\ndef f() -> int: return 7"
    main = "from weft import Server\nserver = Server('s')\nimport tools\nif __name__ == '__main__':\n    server.run()"
    write(tmp_path, {"server.py": main, "tools.py": tools})
    done = subprocess.run(
        [sys.executable, "server.py"], cwd=tmp_path, input="", capture_output=True, text=True, check=False
    )
    assert (
        "server.py was loaded twice, as __main__ and as server, since another file imports it: the tools are "
        "registered on the server of the second copy. Start it with `weft run server.py`, or put the server into a "
        "file that imports none of the others." in done.stderr
    )


def test_what_a_lifespan_registers_is_not_missed(tmp_path: Path) -> None:
    lifespan = """
import contextlib
from weft import Server
@contextlib.asynccontextmanager
async def lifespan(server):
    server.add_tool(lambda: 1, name="one", description="One.")
    yield
server = Server("late", lifespan=lifespan)
"""
    write(tmp_path, {"server.py": lifespan})
    assert run_weft("run", "server.py", cwd=tmp_path).stderr == ""


def test_weft_alone_lists_its_commands(tmp_path: Path) -> None:
    done = run_weft(cwd=tmp_path, env={**os.environ, "COLUMNS": "100"})
    assert (done.returncode, done.stderr) == (0, "")
    assert [name in done.stdout for name in ("run ", "entry ", "call ", "list ", "read ", "prompt ", "version ")] == [
        True
    ] * 7
