"""What a tool does that takes time: about a millisecond of a processor, in Python, as in most tools."""

from __future__ import annotations

__all__ = ["work"]


def work() -> int:
    """Adds up some numbers."""
    total = 0
    for number in range(20_000):
        total += number * number
    return total
