"""What measures the attacks: it must notice memory that stays, and a loop that is held."""

import pytest

from support.attacks import MB, SERVER, assert_harmless, attacked_server

VICTIM = (
    SERVER
    + """
import time

kept = []


@server.tool
async def hoard(megabytes: int) -> int:
    kept.append(b"x" * (megabytes * 1024 * 1024))
    return len(kept)


@server.tool
async def hog(seconds: float) -> str:
    time.sleep(seconds)
    return "done"
"""
)


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_calls_are_harmless(transport):
    with attacked_server(transport=transport) as target:
        report = target.attack(lambda: [target.tool("add", {"a": 1, "b": 2}) for _ in range(50)])
        assert_harmless(report)
        assert 10 * MB < report.before < 200 * MB


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_memory_that_stays_is_noticed(transport):
    with attacked_server(VICTIM, transport=transport) as target:
        report = target.attack(lambda: target.tool("hoard", {"megabytes": 80}), settle=0.5)
        with pytest.raises(AssertionError, match="memory was not given back"):
            assert_harmless(report)


def test_a_held_loop_is_noticed():
    with attacked_server(VICTIM) as target:
        report = target.attack(lambda: target.tool("hog", {"seconds": 1.5}))
        with pytest.raises(AssertionError, match="another caller waited"):
            assert_harmless(report)
