"""Check the shape of the code: eras, the pages about the design, sizes, public names, the cost of imports.

Each check is a function from source text to complaints, so that each can be shown to complain.
"""

import ast
import fnmatch
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "weft"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES = 800
MOST_FUNCTION_LINES = 60
HEAVY = ("aiohttp", "uvicorn", "cryptography", "redis", "rich", "jsonschema_rs", "pydantic", "opentelemetry")


@cache
def parse(source: str) -> ast.Module:
    """The tree of a source. Many tests read the same."""
    return ast.parse(source)


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=short)


# --- only `eras` tells eras apart

KNOWS_ERAS = [path for path in SOURCES if path.parent.name == "eras" or short(path).endswith("protocol/revisions.py")]
_DATE = re.compile(r"(?<!\d)20\d\d[-_]\d\d[-_]\d\d(?!\d)")
_HANDSHAKE = re.compile(r"(?<!\w)(notifications/)?initialized?(?!\w)")
_IDENTITY = {
    "era",
    "is_stateless",
    "protocol_version",
    "revision",
}  # what says which era it is, as opposed to what it does


@cache
def era_classes() -> set[str]:
    """The classes that are eras, on either side."""
    trees = [parse(path.read_text()) for path in KNOWS_ERAS if path.parent.name == "eras"]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {cls.name for cls in classes if {"speaks", "stamp"} & {getattr(part, "name", "") for part in cls.body}}


def era_checks(source: str) -> list[str]:
    """Everything in a module that belongs into `eras`: versions, the handshake's name, conditions on an era."""
    tree = parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    found: list[str] = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for text in _texts(node) if id(node) not in prose else ():
            if _DATE.search(text):
                found.append(f"line {line}: the version {text!r}")
            if _HANDSHAKE.search(text):
                found.append(f"line {line}: the handshake's name in {text!r}")
        if (decides := _decides_on(node)) is not None and (name := _identity_in(decides)):
            found.append(f"line {line}: a condition on {name!r}")
        if type_check := _type_check(node):
            found.append(f"line {line}: {type_check}")
    return found


def _texts(node: ast.AST) -> Iterator[str]:
    """The text of a constant (f-strings consist of them), and names that spell a version."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        yield from _DATE.findall(node.id)
    elif isinstance(node, ast.Attribute):
        yield from _DATE.findall(node.attr)
    elif isinstance(node, ast.alias):
        yield from _DATE.findall(node.name)


def _decides_on(node: ast.AST) -> list[ast.expr] | None:
    """What a node lets the way of the program depend on."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            return [test]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.BoolOp(values=values):
            return values
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [operand]
        case ast.comprehension(ifs=tests):
            return tests
        case ast.Match(subject=subject):
            return [subject]
        case ast.Subscript(slice=key):
            return [key]
        case ast.Call(func=ast.Attribute(value=value, attr="startswith" | "endswith")):
            return [value]
    return None


def _identity_in(expressions: list[ast.expr]) -> str | None:
    """Whether one of the expressions *is* an era's identity, or the name or version of it."""
    for expression in expressions:
        if isinstance(expression, ast.Attribute) and expression.attr in {"name", "version"}:
            expression = expression.value
        name = expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", None)
        if name in _IDENTITY:
            return name
    return None


def _type_check(node: ast.AST) -> str | None:
    if isinstance(node, ast.MatchClass):
        names = {part.id for part in ast.walk(node.cls) if isinstance(part, ast.Name)}
        return "a match on an era's class" if names & era_classes() else None
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        return None
    if node.func.id not in {"isinstance", "issubclass", "type"}:
        return None
    names = {getattr(part, "id", getattr(part, "attr", "")) for arg in node.args[1:] for part in ast.walk(arg)}
    if names & era_classes() or _identity_in(node.args[:1]) == "era":
        return f"{node.func.id}() of an era"
    return None


@each([path for path in SOURCES if path not in KNOWS_ERAS])
def test_eras_are_told_apart_in_one_room(path: Path):
    assert era_checks(path.read_text()) == []


def test_there_are_eras_to_be_told_apart():
    assert {"ServerEra", "ClientEra", "StatelessServer", "StatelessClient"} <= era_classes()


@pytest.mark.parametrize(
    "offence",
    [
        "SUPPORTED = ['2026-07-28']",
        "header = f'version={x} 2025-11-25'",
        "from weft.protocol.revisions import STATELESS_2026_07_28",
        "table = {'initialize': start}",
        "if method == 'notifications/initialized': pass",
        "if isinstance(call.era, object): pass",
        "isinstance(x, (int, StatelessServer))",
        "isinstance(x, stateless.StatelessServer)",
        "type(era) is object",
        "match x:\n case StatelessServer(): pass",
        "if era.name == 'stateless': pass",
        "if call.era is STATELESS: pass",
        "x = 1 if ctx.is_stateless else 2",
        "x = not call.era.is_stateless",
        "x = [y for y in z if y.is_stateless]",
        "while connection.protocol_version < newest: pass",
        "match connection.protocol_version:\n case 'x': pass",
        "x = TABLE[envelope.revision.version]",
        "x = ctx.protocol_version.startswith('2')",
        "x = call.era.is_stateless and y",
    ],
)
def test_era_checks_find(offence: str):
    assert era_checks(offence)


@pytest.mark.parametrize(
    "harmless",
    [
        "'''Since 2026-07-28 there is no initialize.'''",
        "class A:\n  x: int = 0\n  '''In 2026-07-28.'''",
        "# 2026-07-28: initialize",
        "def f(ctx): return ctx.is_stateless",
        "x = {'mcp.protocol.version': ctx.protocol_version}",
        "if era.disconnect_cancels: pass",
        "if era.may_log(level, minimum): pass",
        "x = 'https://json-schema.org/draft/2020-12/schema'",
        "self.initialize_accepted = False",
        "__slots__ = ('_initialized', 'initialize_accepted')",
        "x = envelope.revision.version",
    ],
)
def test_era_checks_leave_alone(harmless: str):
    assert era_checks(harmless) == []


# --- the questions of an era, and who asks them: docs/design.md says it, the code must agree

DESIGN = ROOT / "docs" / "design.md"
SESSION_ONLY = "SessionServer"
_SIDES = {"ServerEra": "server", "ClientEra": "client", SESSION_ONLY: "server"}
_MAKES_ERAS = {"agreed", "pinned"}  # questions whose answer is an era
_CONSTANT_ERAS = {"SESSION", "STATELESS"}
_TICKED = re.compile(r"`([^`]+)`")


def rows_under(heading: str, page: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its two head lines."""
    part = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def askers_told(heading: str, page: str) -> dict[str, set[str]]:
    """Return the questions of a table, the first cell of each row, with the modules in its last cell."""
    return {
        re.split(r"\W", question)[0]: set(_TICKED.findall(row[-1]))
        for row in rows_under(heading, page)
        for question in _TICKED.findall(row[0])
    }


def questions_of(name: str) -> set[str]:
    """Return the public attributes and methods of an era's class."""
    trees = [parse(path.read_text()) for path in KNOWS_ERAS]
    (cls,) = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {part for node in cls.body for part in _defined(node) if not part.startswith("_")}


def _defined(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            targets = [target]
        case ast.Assign(targets=targets):
            pass
        case _:
            return []
    names = [getattr(target, "id", getattr(target, "attr", None)) for target in targets]
    return [name for name in names if name is not None]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def asked(source: str, questions: set[str], plain: frozenset[str] = frozenset()) -> tuple[set[str], list[str]]:
    """Return the questions that a module asks eras, and the complaints about eras that do not look like one.

    An era is what is called `era`, `…_era`, SESSION or STATELESS, whatever it is an attribute of, and what `agreed` and
    `pinned` return. A question whose name nothing else has (all but `plain`) is asked of an era wherever it stands: on
    anything with another name it is a complaint, because a reader would not see that it depends on the era.
    """
    tree = parse(source)
    made = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.NamedExpr)
        and isinstance(node.value, ast.Call)
        and _last_name(node.value.func) in _MAKES_ERAS
        for name in _defined(node)
    }
    found: set[str] = set()
    hidden: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in questions:
            continue
        name = _last_name(node.value)
        if name == "era" or name.endswith("_era") or name in _CONSTANT_ERAS or name in made:
            found.add(node.attr)
        elif node.attr not in plain:
            hidden.append(f"line {node.lineno}: {node.attr!r} is asked of {name or 'something'!r}; call it `era`")
    return found, hidden


def names_elsewhere() -> frozenset[str]:
    """Return all names that something outside `eras` has, too."""
    others = [path for path in SOURCES if path.parent.name != "eras"]
    return frozenset(name for path in others for node in ast.walk(parse(path.read_text())) for name in _defined(node))


def askers_of(name: str) -> dict[str, set[str]]:
    """Return the questions of an era's class, each with the modules that ask it: those outside `eras`, and its base."""
    questions = questions_of(name)
    if name == SESSION_ONLY:
        questions -= questions_of("ServerEra")
    askers: dict[str, set[str]] = {question: set() for question in questions}
    side = PACKAGE / _SIDES[name]
    for path in SOURCES:
        if path.is_relative_to(side) or path == PACKAGE / "eras" / "base.py":
            module = path.relative_to(side if path.is_relative_to(side) else PACKAGE).with_suffix("").as_posix()
            for question in asked(path.read_text(), questions)[0]:
                askers[question].add(module)
    return askers


QUESTION_TABLES = {
    "ServerEra": "### What a server asks",
    SESSION_ONLY: "### What only the session era is asked",
    "ClientEra": "### What a client asks",
}


@pytest.mark.parametrize("name", QUESTION_TABLES)
def test_the_design_names_every_question_of_an_era_and_who_asks_it(name: str):
    assert askers_told(QUESTION_TABLES[name], DESIGN.read_text()) == askers_of(name)


def test_every_question_of_an_era_is_asked():
    assert [question for name in QUESTION_TABLES for question, askers in askers_of(name).items() if not askers] == []


def test_eras_are_called_eras():
    plain = names_elsewhere()
    questions = {question for name in QUESTION_TABLES for question in questions_of(name)}
    sources = [path for path in SOURCES if path.parent.name != "eras"]
    hidden = {
        short(path): complaints for path in sources if (complaints := asked(path.read_text(), questions, plain)[1])
    }
    assert hidden == {}


def test_questions_to_eras_are_found():
    questions = {"remembers", "name", "agreed", "confirmation"}
    plain = frozenset({"name"})
    assert asked("x = call.era.remembers", questions, plain) == ({"remembers"}, [])
    assert asked("x = [one.name for one in old_era.name]", questions, plain) == ({"name"}, [])
    assert asked("x = SESSION.remembers", questions, plain) == ({"remembers"}, [])
    assert asked("new = era.agreed(h)\nx = new.confirmation", questions, plain) == ({"agreed", "confirmation"}, [])
    assert asked("x = protocol.remembers", questions, plain) == (
        set(),
        ["line 1: 'remembers' is asked of 'protocol'; call it `era`"],
    )
    assert asked("x = tool.name", questions, plain) == (set(), [])


def test_a_table_of_questions_is_read():
    page = (
        "\n### What a server asks\n\n| question | asked by |\n|---|---|\n"
        "| `open(frame)` → Envelope | `http/app`, `stdio/pipe` |\n| `a`, `b` | none |\n\n## Next\n| `c` | `d` |\n"
    )
    told = askers_told("### What a server asks", page)
    assert told == {"open": {"http/app", "stdio/pipe"}, "a": set(), "b": set()}


# --- who imports an era by its name


def imported_eras(source: str) -> set[str]:
    """Return what a module imports from `weft.eras`, the interface in its `base` excepted."""
    found: set[str] = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if "eras" in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            if "eras" in parts and parts[-1] != "base":
                found.update(alias.name for alias in node.names)
            elif any(alias.name == "eras" for alias in node.names):
                found.add("eras")
    return found


def test_the_design_names_every_module_that_imports_an_era():
    told = {
        module: set(_TICKED.findall(row[1]))
        for row in rows_under("### Who knows an era by its name", DESIGN.read_text())
        for module in _TICKED.findall(row[0])
    }
    others = [path for path in SOURCES if path.parent.name != "eras"]
    imported = {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): imported_eras(path.read_text()) for path in others
    }
    assert told == {module: names for module, names in imported.items() if names}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from weft.eras.session import HANDSHAKE, SESSION", {"HANDSHAKE", "SESSION"}),
        ("from weft.eras.stateless import STATELESS as S", {"STATELESS"}),
        ("from weft.eras import session", {"session"}),
        ("from weft import eras", {"eras"}),
        ("from ...eras.session import READY", {"READY"}),
        ("import weft.eras.session", {"weft.eras.session"}),
        ("if TYPE_CHECKING:\n  from weft.eras.session import HeaderPeer", {"HeaderPeer"}),
        ("from weft.eras.base import ServerEra, choose", set[str]()),
        ("from weft.errors import UsageError", set[str]()),
    ],
)
def test_imports_of_eras_are_found(source: str, names: set[str]):
    assert imported_eras(source) == names


# --- the pages about flows name code that exists

FLOWS = sorted((ROOT / "docs" / "design").glob("*.md"))
_HOP = re.compile(r"^\d+\. `([\w/]+)` `([\w.]+)`: ", re.MULTILINE)
_PATH = re.compile(r"`(src/weft/[\w/]+(?:\.py)?)`")
FLOW_PARTS = ("## The hops", "## Errors", "## Bounds", "## Files to open")


def missing_code(page: str) -> list[str]:
    """Return what a page names that the code does not have: modules, classes, methods, functions, files."""
    missing = [f"`{path}`" for path in _PATH.findall(page) if not (ROOT / path).exists()]
    for module, name in _HOP.findall(page):
        path = PACKAGE / f"{module}.py"
        body: list[ast.stmt] = parse(path.read_text()).body if path.exists() else []
        for part in name.split("."):
            found = [
                node
                for node in body
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
            ]
            if not found:
                missing.append(f"`{module}` `{name}`")
                break
            body = found[-1].body
    return missing


@each(FLOWS)
def test_a_flow_names_code_that_exists(path: Path):
    page = path.read_text()
    assert missing_code(page) == []
    hops = page.partition("## The hops")[2].partition("\n## ")[0]
    numbered = re.findall(r"^\d+\. ", hops, re.MULTILINE)
    assert len(numbered) == len(_HOP.findall(hops)) >= 5, "every hop is: `module` `Class.method`: what it does"
    assert [part for part in FLOW_PARTS if part not in page] == []
    assert f"design/{path.name}" in DESIGN.read_text()


def test_missing_code_is_found():
    assert (
        missing_code("1. `jsonrpc` `decode`: reads\n2. `server/api/server` `Server.run`: runs\n`src/weft/eras`") == []
    )
    assert missing_code("1. `jsonrpc` `decoded`: reads") == ["`jsonrpc` `decoded`"]
    assert missing_code("1. `jsonrpcs` `decode`: reads") == ["`jsonrpcs` `decode`"]
    assert missing_code("1. `server/api/server` `Server.fly`: flies") == ["`server/api/server` `Server.fly`"]
    assert missing_code("see `src/weft/nowhere.py`") == ["`src/weft/nowhere.py`"]


# --- what knows that a task is a call of a tool

TASK_CODE = [path for path in SOURCES if "tasks" in path.relative_to(PACKAGE).as_posix() and path.stem != "__init__"]
_CALLS_OF_TOOLS = {"CallToolParams", "CallToolResult", "tools/call"}


def knows_calls_of_tools(source: str) -> bool:
    """Whether code names the messages of a call of a tool. Texts that only mention them do not count."""
    names = {_last_name(node) for node in ast.walk(parse(source)) if isinstance(node, (ast.Name, ast.Attribute))}
    texts = {node.value for node in ast.walk(parse(source)) if isinstance(node, ast.Constant)}
    return bool((names | texts) & _CALLS_OF_TOOLS)


@pytest.mark.spec("new-4")
def test_the_design_names_all_code_of_tasks_that_knows_calls_of_tools():
    """So that other requests can become tasks later, without a search."""
    page = (ROOT / "docs" / "design" / "task.md").read_text()
    section = page.split("## Another kind of request as a task\n")[1].split("\n## ")[0]
    told = set(re.findall(r"^- `(.+?)`: ", section, re.MULTILINE))
    assert told == {short(path) for path in TASK_CODE if knows_calls_of_tools(path.read_text())}
    assert any(path.parts[-2] == "requests" for path in TASK_CODE)  # also of the client


def test_code_that_knows_calls_of_tools_is_found():
    assert knows_calls_of_tools('method = METHODS["tools/call"]')
    assert knows_calls_of_tools("isinstance(result, features.CallToolResult)")
    assert not knows_calls_of_tools('"""Return the params of `tools/call`."""\nresult: Result = read()')


# --- things that fit a screen


def long_functions(source: str) -> list[str]:
    """The functions whose body, without its docstring, does not fit."""
    found = []
    for node in ast.walk(parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if body and (length := node.body[-1].end_lineno - body[0].lineno + 1) > MOST_FUNCTION_LINES:
            found.append(f"{node.name} has {length} lines")
    return found


def too_long(source: str) -> bool:
    return len(source.splitlines()) > MOST_LINES


OURS = sorted(
    path for room in ("src", "bench", "conformance", "examples", "tools") for path in (ROOT / room).rglob("*.py")
)


@each(OURS)
def test_files_and_functions_are_short(path: Path):
    assert not too_long(path.read_text()), f"{short(path)} has more than {MOST_LINES} lines: give part of it a room"
    assert long_functions(path.read_text()) == []


def test_long_files_and_functions_are_found():
    body = "".join(f"    x = {number}\n" for number in range(MOST_FUNCTION_LINES))
    assert long_functions(f"def f():\n    '''Docs.'''\n{body}") == []
    assert long_functions(f"async def f():\n{body}    return x\n") == [f"f has {MOST_FUNCTION_LINES + 1} lines"]
    assert not too_long("x\n" * MOST_LINES)
    assert too_long("x\n" * (MOST_LINES + 1))


# --- what is public is said


def unlisted_names(source: str) -> list[str]:
    """Public classes, functions and types of a module that its `__all__` does not have; or that it has no `__all__`."""
    tree = parse(source)
    if all(isinstance(node, ast.Expr) for node in tree.body):
        return []  # only a docstring: nothing is there to be listed
    listed = _listed(tree)
    if listed is None:
        return ["__all__"]
    return [name for node in tree.body for name in _public_names(node) if name not in listed]


def _listed(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def _public_names(node: ast.stmt) -> Iterator[str]:
    """Constants in capitals, type variables and loggers are the module's own affair."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield from [] if node.name.startswith("_") else [node.name]
        return
    if isinstance(node, ast.Assign) and not _is_type_variable(node.value):
        names = [target.id for target in node.targets if isinstance(target, ast.Name) and target.id[0].isupper()]
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0].isupper():
        names = [node.target.id]
    else:
        names = []
    yield from (name for name in names if not name.startswith("_") and not name.isupper())


def _is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") in {"TypeVar", "ParamSpec", "TypeVarTuple"}


# A program may import from these. Inside the other modules a leading underscore says what is a module's own.
FACES = [path for path in SOURCES if path.name == "__init__.py" or path.parent == PACKAGE]


@each([path for path in FACES if path.name not in {"__main__.py", "jsonrpc.py", "foreign.py"}])
def test_public_names_are_listed_and_exist(path: Path):
    assert unlisted_names(path.read_text()) == []
    module = importlib.import_module(module_name(path))
    assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("'''Only a docstring.'''", []),
        ("def f(): ...", ["__all__"]),
        ("__all__ = ['f']\ndef f(): ...", []),
        ("__all__ = []\ndef f(): ...\nasync def g(): ...\nclass C: ...", ["f", "g", "C"]),
        ("__all__ = []\nAlias = int | str\nOther: TypeAlias = int", ["Alias", "Other"]),
        ("__all__ = []\nMOST = 3\nT = TypeVar('T')\nlog = getLogger()\n_C = int\ndef _f(): ...", []),
    ],
)
def test_unlisted_names_are_found(source: str, missing: list[str]):
    assert unlisted_names(source) == missing


# --- what an import costs


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that a statement loads in a fresh interpreter."""
    program = f"import json, sys\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_weft_is_light():
    assert loaded_by("import weft") == set()


LOOKED_FOR = {"opentelemetry"}  # whether it is installed is asked, and where it is, it appears


def test_making_a_server_loads_nothing_heavy():
    assert loaded_by("from weft import Server\nServer('s')") <= LOOKED_FOR


@pytest.mark.parametrize(
    ("annotation", "loaded"),
    [("int", set[str]()), ("dict[str, list[int]] | None", set[str]()), ("tuple[int, str]", {"pydantic"})],
)
def test_defining_a_tool_loads_pydantic_only_for_types_that_need_it(annotation: str, loaded: set[str]):
    program = f"from weft import Server\nserver = Server('s')\n@server.tool\ndef f(x: {annotation}) -> int: return 1"
    assert loaded_by(program) - LOOKED_FOR == loaded


def test_heavy_imports_are_found():
    assert loaded_by("import jsonschema_rs") == {"jsonschema_rs"}


# --- nothing of the machine it was written on

_MACHINE_PATH = re.compile(r"(?<![\w.:/~}-])/(?:work|root|farm)(?![\w-])")


def machine_paths(text: str) -> list[str]:
    return [f"line {number}" for number, line in enumerate(text.splitlines(), 1) if _MACHINE_PATH.search(line)]


def own_files() -> Iterator[Path]:
    """Every file that belongs to the project, whether or not git is at hand: what .gitignore does not name."""
    ignored = [line.strip().rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()]
    rooms = [ROOT]
    while rooms:
        for path in rooms.pop().iterdir():
            if path.name == ".git" or any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
                continue
            if path.is_dir():
                rooms.append(path)
            else:
                yield path


def test_no_machine_paths():
    found = {}
    for path in own_files():
        try:
            lines = machine_paths(path.read_text())
        except UnicodeDecodeError:
            continue  # a picture
        if lines:
            found[short(path)] = lines
    assert found == {}


def test_machine_paths_are_found():
    home = "/ro" + "ot"
    assert machine_paths(f"x\ncd {home}/project") == ["line 2"]
    assert machine_paths(f"path = '{home}'") == ["line 1"]
    assert machine_paths(f"https://host{home}/x and {home}_path and a{home}") == []


# --- no option without a use


@pytest.mark.security("R12")
def test_every_limit_is_looked_at_somewhere():
    """Only the tests of each limit show that it is enforced; a limit that no code reads cannot be."""
    limits = importlib.import_module("weft.limits")
    others = "".join(path.read_text() for path in SOURCES if path.name != "limits.py")
    assert [name for name in limits.Limits.__annotations__ if not re.search(rf"imits\.{name}\b", others)] == []
