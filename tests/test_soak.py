"""tools/soak.py: how many calls are a soak."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import soak


@pytest.mark.parametrize(
    ("first", "rest", "wrong"),
    [(5000, 15_000, 0), (5000, 7500, 0), (4999, 15_000, 1), (5000, 7499, 1), (0, 0, 2)],
)
def test_calls_that_were_not_made_are_wrong(first: int, rest: int, wrong: int) -> None:
    asked = soak.CALLS - soak.FIRST
    found = soak.too_few("first", first, soak.FIRST) + soak.too_few("other", rest, asked // 2)
    assert len(found) == wrong
