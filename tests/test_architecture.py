"""The shape of the code, checked: where eras are told apart, how large things grow, what is public, what imports cost.

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
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "weft"
SOURCES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES = 800
MOST_FUNCTION_LINES = 60
HEAVY = ("aiohttp", "uvicorn", "cryptography", "redis", "rich", "jsonschema_rs", "pydantic", "opentelemetry")


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


def era_classes() -> set[str]:
    """The classes that are eras, on either side."""
    trees = [ast.parse(path.read_text()) for path in KNOWS_ERAS if path.parent.name == "eras"]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {cls.name for cls in classes if {"speaks", "stamp"} & {getattr(part, "name", "") for part in cls.body}}


def era_checks(source: str) -> list[str]:
    """Everything in a module that belongs into `eras`: versions, the handshake's name, conditions on an era."""
    tree = ast.parse(source)
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


# --- things that fit a screen


def long_functions(source: str) -> list[str]:
    """The functions whose body, without its docstring, does not fit."""
    found = []
    for node in ast.walk(ast.parse(source)):
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
    tree = ast.parse(source)
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
    """That it is also enforced is shown where it is; a limit that nobody reads cannot be."""
    limits = importlib.import_module("weft.limits")
    others = "".join(path.read_text() for path in SOURCES if path.name != "limits.py")
    assert [name for name in limits.Limits.__annotations__ if not re.search(rf"imits\.{name}\b", others)] == []
