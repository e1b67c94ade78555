"""Tests of `tests/e2e` and `tests/interop` that are repeated here against a server in several processes."""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["repeat"]

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(folder) for name in ("e2e", "interop") if str(folder := TESTS / name) not in sys.path]


def repeat(module: ModuleType, *fixtures: str, left_out: Mapping[str, str]) -> dict[str, Any]:
    """The tests of a module that use one of the fixtures, to be added to another module, which has these fixtures.

    Tests that use none of them start a server of their own in the process of the test, so nothing would be repeated.
    `left_out` has tests that cannot be repeated, and why.
    """
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    assert left_out.keys() <= tests.keys(), f"these are no tests of {module.__name__}: {left_out.keys() - tests.keys()}"
    found = {name: test for name, test in tests.items() if set(inspect.signature(test).parameters) & set(fixtures)}
    assert left_out.keys() <= found.keys(), f"these need not be left out: {left_out.keys() - found.keys()}"
    assert found.keys() > left_out.keys()
    return {name: test for name, test in found.items() if name not in left_out}
