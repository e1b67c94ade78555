"""Everything the documentation says in code is run: the pages' examples, the docstrings' examples, the tables.

In a page, every `python` block is executed, in order, in one module; a `text` block right after it is what it prints.
One that is a program of its own (`Block.is_program`) runs alone, without what the blocks before it made. The URL in it
leads to the page's own `server`, listening on a real socket. Every `console` block is typed at a terminal, against the
same server. A `dialogue` block is played with it: see `Dialogue`. A `requests` block has lines of
METHOD PARAMS -> RESULT.
"""

import contextlib
import dataclasses
import doctest
import http.client
import importlib
import inspect
import io
import itertools
import json
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

import weft
import weft.client
import weft.client.auth as login
import weft.sync
from support import CLIENT_CAPABILITIES_KEY, Live, encode, headers_for, message, serve, start_request
from weft import Client, Connection, Context, Server, errors
from weft.client.stdio import default_environment
from weft.limits import DEFAULT_CLIENT_LIMITS, DEFAULT_LIMITS, ClientLimits, Limits
from weft.protocol.schema import DIALECTS
from weft.server.features.registry import FeatureOptions
from weft.server.features.resources import ResourceOptions
from weft.server.features.tools import ToolOptions
from weft.server.run.listening import HttpOptions

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROTECTING = ROOT / "docs/how-to/protect.md"  # has a test of its own, for its server must know where it is served
MODULES = [weft.__name__, *(found.name for found in pkgutil.walk_packages(weft.__path__, "weft."))]
MODULES = [name for name in MODULES if not name.endswith("__main__")]  # they are the command itself
URL = "http://127.0.0.1:8000/mcp"
ANSWERS_ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}  # capabilities of a client

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(#[^)]*)?\)")


@dataclasses.dataclass
class Block:
    kind: str
    text: str
    line: int  # in the page
    follows: bool  # nothing but blank lines lie between it and the block before

    @property
    def is_program(self) -> bool:
        """Whether a reader puts it into a file of its own: a client of the page's server, or a test of `server.py`."""
        connects = "Client(" in self.text and "http://127.0.0.1:" in self.text
        return connects or self.text.startswith("from server import")


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(page):
        follows = bool(found) and not page[end : match.start()].strip()
        found.append(Block(match[1], match[2], page[: match.start(2)].count("\n"), follows))
        end = match.end()
    return found


def agrees(expected: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS)


class Dialogue:
    """A client that does what a page says, line by line, and fails where the server does not do its part.

    call TOOL ARGUMENTS; asks MESSAGE (or METHOD); answer CONTENT (or decline, cancel; or a RESULT that is no form's);
    result TEXT; listen FILTER; gets METHOD URI. Questions that stand together come in one round, and so do answers.
    """

    def __init__(self, live: Live, stack: contextlib.ExitStack) -> None:
        self.live = live
        self.stack = stack
        self.params: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []  # key and question, of this round
        self.untold: list[str] = []  # questions that the page has not named yet
        self.answers: dict[str, Any] = {}
        self.last: Any = None
        self.stream: http.client.HTTPResponse | None = None

    def play(self, text: str) -> None:
        for line in text.splitlines():
            verb, _, rest = line.partition(" ")
            getattr(self, verb)(rest.strip())
        assert not self.asked, f"{self.asked} was asked, and the page does not say so"

    def call(self, rest: str) -> None:
        tool, _, arguments = rest.partition(" ")
        self.params = {"name": tool, "arguments": json.loads(arguments or "{}")}
        self._send(self.params)

    def asks(self, question: str) -> None:
        assert question in self.untold, f"{question!r} was not asked, but {self.last}"
        self.untold.remove(question)

    def answer(self, rest: str) -> None:
        assert not self.untold, f"{self.untold} was asked, and the page does not say so"
        key, question = self.asked.pop(0)
        given = {"action": rest} if rest in ("decline", "cancel") else json.loads(rest)
        is_form = "/" not in question and "action" not in given
        self.answers[key] = {"action": "accept", "content": given} if is_form else given
        if not self.asked:
            answers, self.answers = self.answers, {}
            self._send({**self.params, "inputResponses": answers, "requestState": self.last["requestState"]})

    def result(self, text: str) -> None:
        assert self.last["resultType"] == "complete", f"expected {text!r}, got {self.last}"
        assert agrees(text + "\n", "".join(f"{block['text']}\n" for block in self.last["content"]))

    def listen(self, rest: str) -> None:
        connection = self.live.connect()
        self.stack.callback(connection.close)
        request = message("subscriptions/listen", {"notifications": json.loads(rest)}, id="page")
        start_request(connection, encode(request), headers_for(request))
        self.stream = connection.getresponse()

    def gets(self, rest: str) -> None:
        assert self.stream is not None
        while not (line := self.stream.readline()).startswith(b"data:"):
            assert line, f"the stream ended before {rest!r}"
        heard = json.loads(line[5:])
        assert f"{heard['method']} {heard['params'].get('uri', '')}".strip() == rest

    def _send(self, params: dict[str, Any]) -> None:
        self.last = self.live.call("tools/call", params, meta={CLIENT_CAPABILITIES_KEY: ANSWERS_ALL}).result
        requests: dict[str, Any] = self.last.get("inputRequests") or {}
        self.asked = [(key, one.get("params", {}).get("message", one["method"])) for key, one in requests.items()]
        self.untold = [question for _, question in self.asked]


class Page:
    """A page that is being read, with everything its code made so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = ModuleType("weft_docs_page")
        self.live: Live | None = None
        self.stack = contextlib.ExitStack()

    def read(self) -> None:
        blocks = blocks_of(self.path.read_text())
        for block, following in itertools.zip_longest(blocks, blocks[1:]):
            if block.kind == "python":
                printed = self.execute(block)
                if following and following.kind == "text" and following.follows:
                    assert agrees(following.text, printed), f"{self.path.name}:{following.line} prints {printed!r}"
            elif block.kind == "console":
                self.type(block)
            elif block.kind == "requests":
                self.request(block)
            elif block.kind == "dialogue":
                Dialogue(self.served(), self.stack).play(block.text)

    def execute(self, block: Block) -> str:
        text = block.text
        if block.is_program and URL in text:
            text = text.replace(URL, f"http://127.0.0.1:{self.served().port}/mcp")
        code = compile("\n" * block.line + text, str(self.path), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if block.is_program:
                self.run_alone(code)
            else:
                exec(code, self.module.__dict__)
        return printed.getvalue()

    def run_alone(self, code: CodeType) -> None:
        with pytest.MonkeyPatch.context() as patch:
            alone = ModuleType("weft_docs_program")
            patch.setitem(sys.modules, alone.__name__, alone)  # annotations are looked up there
            patch.setitem(sys.modules, "server", self.module)
            exec(code, alone.__dict__)
            for test in [value for name, value in vars(alone).items() if name.startswith("test_")]:
                test()

    def served(self) -> Live:
        if self.live is None:
            self.live = self.stack.enter_context(serve(self.module.server))  # features that come later are served, too
        return self.live

    def request(self, block: Block) -> None:
        for line in block.text.splitlines():
            asked, _, expected = line.partition(" -> ")
            method, _, params = asked.partition(" ")
            result = self.served().call(method, json.loads(params)).result
            got = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
            assert got == json.loads(expected), f"{self.path.name}:{block.line}: {line}"

    def type(self, block: Block) -> None:
        live = self.served()
        for entry in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, expected = entry.partition("\n")
            words = shlex.split(command.replace(URL, f"http://127.0.0.1:{live.port}/mcp"))
            assert words[0] == "weft", f"{self.path.name}:{block.line}: a console block runs `weft`, not {words[0]!r}"
            done = subprocess.run(
                [sys.executable, "-m", "weft", *words[1:]],
                check=False,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert agrees(expected, done.stdout), f"{self.path.name}:{block.line}: {command}\n{done.stdout}"


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    page = Page(request.param)
    for name, value in re.findall(r"`export (\w+)=([\w-]+)`", page.path.read_text()):
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, page.module.__name__, page.module)
    with page.stack:
        yield page


@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if path != PROTECTING],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
    indirect=True,
)
def test_the_code_of_a_page_runs(page: Page):
    page.read()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path):
    targets = [match[1] for match in _LINK.finditer(path.read_text())]
    assert [target for target in targets if not (path.parent / target).exists()] == []


ASKING = """```python
from weft import Context, Server
server = Server("s")
@server.tool
async def asks(ctx: Context) -> str:
    await ctx.elicit("Sure?", {"type": "object", "properties": {}})
    return "yes"
```

"""


@pytest.mark.parametrize(
    "text",
    [
        "```python\n1 / 0\n```",
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "```python\nfrom weft import Server\nserver = Server('s')\n```\n\n```console\n$ weft version\n0.0.0\n```",
        ASKING + f"```python\nfrom weft.sync import Client\nwith Client('{URL}'):\n    server\n```",
        "```python\na = 1\n```\n\n```python\nfrom server import a\ndef test_it():\n    assert a == 2\n```",
        ASKING + '```requests\ntools/list {} -> {"tools": []}\n```',
        ASKING + "```dialogue\ncall asks\nasks Sure?\nanswer {}\nresult no\n```",
        ASKING + "```dialogue\ncall asks\nasks Really?\nanswer {}\nresult yes\n```",
        ASKING + "```dialogue\ncall asks\nanswer {}\nresult yes\n```",
        ASKING + "```dialogue\ncall asks\nasks Sure?\n```",
        ASKING + "```dialogue\nlisten {}\ngets notifications/tools/list_changed\n```",
    ],
    ids=["code", "output", "console", "alone", "test", "request", "result", "question", "untold", "open", "unheard"],
)
def test_a_wrong_page_is_found(text: str, tmp_path: Path):
    path = tmp_path / "wrong.md"
    path.write_text(text)
    page = Page(path)
    with page.stack, pytest.raises((ZeroDivisionError, AssertionError, NameError)):
        page.read()


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


# --- tables that repeat what the code says


def rows_of(page: str, columns: int, *, after: str = "", before: str = "\0") -> list[list[str]]:
    """The rows of all tables of a page, or of a part of it, without heads; code marks taken off."""
    text = (ROOT / "docs" / page).read_text()
    part = text[text.index(after) :].partition(before)[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns]


def number(text: str) -> float:
    value, _, unit = text.replace(",", "").partition(" ")
    return float(value) * {"KiB": 1024, "MiB": 1024 * 1024}.get(unit, 1)


@pytest.mark.security("R12")
def test_the_page_of_limits_names_every_limit_and_its_default():
    told = {row[0]: number(row[1]) for row in rows_of("limits.md", 3, before="## A client\n")}
    assert told == {name: getattr(DEFAULT_LIMITS, name) for name in Limits.__annotations__}
    told = {row[0]: number(row[1]) for row in rows_of("limits.md", 3, after="## A client\n")}
    assert told == {name: getattr(DEFAULT_CLIENT_LIMITS, name) for name in ClientLimits.__annotations__}


def test_the_page_of_errors_names_every_code():
    told = {row[1]: int(row[0]) for row in rows_of("errors.md", 5)}
    classes: list[type[Any]] = [getattr(errors, name) for name in errors.__all__]
    known = {cls.__name__: cls.code for cls in classes if issubclass(cls, errors.ProtocolError)}
    known.pop("ProtocolError")
    assert told == known


def test_the_page_of_errors_says_where_each_class_is_imported_from():
    told = {row[1]: row[2] for row in rows_of("errors.md", 5)} | {row[0]: row[1] for row in rows_of("errors.md", 3)}
    assert told == {name: "weft" if name in weft.__all__ else "weft.errors" for name in errors.__all__}


def test_every_public_name_is_told():
    told = set(re.findall(r"\w+", "".join(path.read_text() for path in PAGES)))
    assert set(weft.__all__) - told - {"__version__"} == set()


def written(name: str, member: Any) -> str:
    """A member as a page writes it: `log(level, data, *, logger=None)`."""
    if not inspect.isfunction(member):
        return name
    parameters = list(inspect.signature(member).parameters.values())[1:]
    return name + str(inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters]))


@pytest.mark.parametrize(
    ("page", "cls"),
    [
        ("reference/server.md", Server),
        ("reference/context.md", Context),
        ("reference/connection.md", Connection),
        ("reference/client.md", Client),
    ],
)
def test_a_reference_page_names_every_member(page: str, cls: type):
    told = [row[0] for row in rows_of(page, 2)]
    known = [written(name, member) for name, member in vars(cls).items() if not name.startswith("_")]
    assert sorted(told) == sorted(known)


def keywords(fn: Any) -> dict[str, str]:
    """The options of a function, with their defaults."""
    parameters = [one for one in inspect.signature(fn).parameters.values() if one.kind is not one.POSITIONAL_ONLY]
    return {one.name: "" if one.default is one.empty else repr(one.default) for one in parameters if one.name != "self"}


LOGINS = [
    login.BearerToken, login.OAuth, login.ClientCredentials, login.EnterpriseManaged, login.WorkloadIdentity,
]  # fmt: skip
LOGIN_PARTS = [*LOGINS, login.IdentityProvider, login.PrivateKey, login.FunctionRedirect, login.Fetcher]


def test_the_page_of_authorization_names_every_login_and_what_it_is_made_of():
    told = {row[0] for row in rows_of("reference/authorization.md", 2, after="## Logins of clients\n")}
    assert told == {cls.__name__ for cls in LOGINS}
    text = (ROOT / "docs" / "reference" / "authorization.md").read_text()
    public = set(login.__all__) - {"Authorizer", "as_auth"}  # what the logins share, and what the client calls
    assert {name for name in public if f"`{name}" not in text} == set()


@pytest.mark.parametrize(
    ("page", "title", "known"),
    [
        ("server.md", "## `Server`", keywords(Server) | {"limits": "DEFAULT_LIMITS"}),
        ("server.md", "### `tool`", keywords(ToolOptions)),
        ("server.md", "### `resource`", keywords(ResourceOptions)),
        ("server.md", "### `prompt`", keywords(FeatureOptions)),
        ("server.md", "### `run`", keywords(HttpOptions)),
        ("client.md", "## `Client`", keywords(Client) | {"limits": "DEFAULT_CLIENT_LIMITS"}),
        *(("authorization.md", f"### `{cls.__name__}`", keywords(cls)) for cls in LOGIN_PARTS),
        (
            "authorization.md",
            "### `LoopbackRedirect`",
            keywords(login.LoopbackRedirect) | {"open_browser": "webbrowser.open"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reference_page_names_every_option_and_its_default(page: str, title: str, known: dict[str, str]):
    text = (ROOT / "docs" / "reference" / page).read_text()
    section = re.split(r"^#", text.partition(f"{title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [
        [cell.strip().strip("`") for cell in line.split("|")[1:3]] for line in section.splitlines() if "| `" in line
    ]
    assert {name: default.replace('"', "'") for name, default in rows} == known


def test_the_page_of_the_client_names_all_that_a_client_gets():
    told = {row[0].partition("(")[0].partition(".")[0] for row in rows_of("reference/client.md", 3)}
    assert set(weft.client.__all__) - {"Change"} <= told
    for name in ("ToolResult", "FormQuestion", "UrlQuestion", "PendingQuestions"):
        assert name in told


def test_the_client_that_waits_has_all_that_the_other_has():
    known = {name for name in vars(Client) if not name.startswith("_")}
    assert known - set(vars(weft.sync.Client)) == set()


def preflight(live: Live, origin: str) -> http.client.HTTPResponse:
    connection = live.connect()
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Host": "api.example.com"}
    connection.request("OPTIONS", "/mcp", headers=asked | {"Access-Control-Request-Headers": "content-type,mcp-method"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.mark.parametrize("page", [ROOT / "docs/how-to/deploy.md"], indirect=True)
def test_the_app_for_browsers_answers_browsers(page: Page):
    page.read()
    with serve(page.module.for_browsers) as live:
        allowed = preflight(live, "https://app.example.com")
        assert allowed.status == 204
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
        assert "Mcp-Method" in allowed.headers["Access-Control-Allow-Headers"]
        assert preflight(live, "https://evil.example.com").headers["Access-Control-Allow-Origin"] is None
        request = message("tools/list", {})
        for origin, status in [("https://app.example.com", 200), ("https://evil.example.com", 403)]:
            headers = {
                name.decode() if isinstance(name, bytes) else name: value for name, value in headers_for(request)
            }
            connection = live.connect()
            connection.request("POST", "/mcp", encode(request), headers | {"Origin": origin, "Host": "api.example.com"})
            response = connection.getresponse()
            assert (response.status, response.read()[:1]) == (status, b"{")
            assert (response.headers["Access-Control-Allow-Origin"] == origin) is (status == 200)
            connection.close()


class Elsewhere:
    """The app of a page, which is made only when it is known where it is served."""

    module: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self.module.together(scope, receive, send)


def test_programs_log_in_to_the_server_of_the_page_about_protecting_one(tmp_path: Path):
    """The page as it stands, copied from top to bottom; only the port is another one."""
    copy, app = tmp_path / "page.md", Elsewhere()
    with serve(app) as live:
        copy.write_text(PROTECTING.read_text().replace(":8000", f":{live.port}"))
        page = Page(copy)
        app.module = page.module
        page.read()  # the program in it logs in with its secret
        by_key = login.ClientCredentials("archive", private_key=page.module.private_key)
        with weft.sync.Client(f"http://127.0.0.1:{live.port}/mcp", auth=by_key) as client:
            assert client.call_tool("count_notes").text == "archive has 3 notes."


def test_the_page_of_the_client_names_what_a_child_process_keeps(monkeypatch: pytest.MonkeyPatch):
    rows = [line for line in (ROOT / "docs/how-to/client.md").read_text().splitlines() if line.startswith("| Linux")]
    names = re.findall(r"`(\w+)`", rows[0])
    for name in names:
        monkeypatch.setenv(name, os.environ.get(name, "x"))
    assert sorted(default_environment()) == sorted(names)


@pytest.mark.parametrize("page", [ROOT / "docs/how-to/mount.md"], indirect=True)
def test_two_servers_in_one_app_have_two_paths(page: Page):
    page.read()
    request = message("server/discover", {})
    with serve(page.module.both) as live:
        for path, name in [("/admin/mcp", "admin"), ("/mcp", "teashop")]:
            result = live.send(encode(request), headers_for(request), path=path).result
            assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == name
        assert live.send(encode(request), headers_for(request), path="/admin").status == 404


COERCIONS = rows_of("coming-from.md", 3, after="## Arguments are checked strictly")


@pytest.mark.parametrize(("name", "fits", "refused"), COERCIONS, ids=[row[0] for row in COERCIONS])
def test_the_page_for_newcomers_says_what_is_made_to_fit(name: str, fits: str, refused: str):
    server = Server("s")

    def take(x: Any) -> str:
        return "taken"

    take.__annotations__["x"] = {"int": int, "float": float, "bool": bool, "str": str, "list[int]": list[int]}[name]
    server.add_tool(take)
    with weft.sync.Client(server) as client:
        for cell, is_error in [(fits, False), (refused, True)]:
            values = json.loads(f"[{cell.replace('`', '')}]")
            assert values
            assert [client.call_tool("take", {"x": value}).is_error for value in values] == [is_error] * len(values)


def test_the_design_names_every_room():
    told = set(re.findall(r"\w+", (ROOT / "docs" / "design.md").read_text()))
    rooms = {name.rpartition(".")[2] for name in MODULES}
    assert rooms - told == set()


@pytest.mark.spec("JSCH-04")
def test_the_page_of_schemas_names_every_dialect():
    text = (ROOT / "docs" / "how-to" / "raw-schemas.md").read_text()
    assert [uri for uri, name in DIALECTS.items() if uri not in text or name not in text] == []


def test_the_changelog_has_the_current_version():
    assert re.search(rf"^## \[{re.escape(weft.__version__)}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_figures_of_the_readme_are_those_that_were_measured():
    """Every row of the results, up to fastmcp's column, stands in the README as it is."""
    results = (ROOT / "bench" / "RESULTS.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in results.splitlines() if line.count("|") == 9]
    measured = [f"| {' | '.join(row)} |" for row in rows if row[0] and not row[0].startswith("-")]
    assert measured
    readme = (ROOT / "README.md").read_text()
    assert [row for row in measured if row not in readme] == [], "Run tools/readme_figures.py."


def test_the_figures_of_the_page_on_scaling_are_those_that_were_measured():
    with_size = runpy.run_path(str(ROOT / "tools" / "readme_figures.py"))["with_size"]
    page = (ROOT / "docs" / "how-to" / "scale.md").read_text()
    assert with_size(page, (ROOT / "bench" / "RESULTS.md").read_text()) == page, "Run tools/readme_figures.py."
