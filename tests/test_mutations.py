"""What tools/mutate.py changes, and what it leaves alone."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


mutations = load("mutations")


def mutants(source: str) -> set[str]:
    """The lines that come of a source by single mutations."""
    return {each.changed_lines(source)[1] for each in mutations.find_mutations("m.py", source)}


@pytest.mark.parametrize(
    ("source", "mutated"),
    [
        ("def f(x):\n    if x:\n        raise E('no')\n", "if False:"),
        ("def f(x):\n    check_host(x)\n", "pass"),
        ("async def f(x):\n    await self._check(x)\n", "pass"),
        ("def f(x):\n    y = x < 3\n", "y = x >= 3"),
        ("def f(x):\n    y = 'é' in x\n", "y = 'é' not in x"),
        ("def f(x):\n    y = x is not None\n", "y = x is None"),
        ("def f(x):\n    y = x and z\n", "y = ((x) or (z))"),
        ("def f(x):\n    y = not x\n", "y = (x)"),
        ("def f(x):\n    y = all(x)\n", "y = any(x)"),
        ("MOST = 64 * 1024\n", "MOST = (64 * 1000) * 1024"),
        ("def f(seconds: float = 0.5): ...\n", "def f(seconds: float = (0.5 * 1000)): ..."),
        ("def f(x):\n    y = x[0]\n", "y = x[1]"),
        ("def f(x):\n    y = g(exact=True)\n", "y = g(exact=False)"),
        ("def f(x) -> bool:\n    return x\n", "return not (x)"),
        ("def f(x) -> int:\n    return x\n", "return None"),
    ],
)
def test_what_is_changed(source: str, mutated: str):
    assert mutated in mutants(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring of 3 words, not more."""\n',
        "def f():\n    log.info('%d', 3 if x == 1 else 2)\n",
        "def f():\n    raise E(f'{1 + 1}', code=3)\n",
        "def f():\n    assert x == 1\n",
        "if TYPE_CHECKING:\n    x = 3\n",
        "class A:\n    def __repr__(self):\n        return 'x' * 3\n",
        "x: Literal[3]\n",
        "__all__ = ['a' * 3]\n",
    ],
)
def test_what_is_left_alone(source: str):
    assert mutants(source) == set()


def test_every_mutant_of_the_package_is_python():
    for path in sorted((ROOT / "src" / "weft" / "protocol").rglob("*.py")):
        source = path.read_text()
        for each in mutations.find_mutations(str(path), source):
            ast.parse(each.apply(source))


def test_a_value_made_at_import_names_its_users():
    (found,) = mutations.find_mutations("m.py", "MOST = 3\n")
    assert (found.names, found.kind) == (("MOST",), "bound x1000")
