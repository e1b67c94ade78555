"""A file of tokens that several programs share, of which one hangs while it has the lock."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft import AuthorizationFailed
from weft.client.auth import FileStorage
from weft.client.auth import storage as module

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the other program locks as POSIX does")

HOLD = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another program, which has the lock until its input ends."""
    asyncio.run(FileStorage(path).put("a", b"1"))
    lock = path.with_name(".tokens.json.lock")
    with subprocess.Popen([sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"held\n"
        yield program
        program.kill()


async def test_who_reads_waits_for_no_other_program(path: Path, holder: subprocess.Popen[bytes]) -> None:
    storage = FileStorage(path)
    writing = asyncio.create_task(storage.put("b", b"2"))
    await asyncio.sleep(0.1)  # it waits in its thread
    assert await asyncio.wait_for(storage.get("a"), 30) == b"1"
    assert not writing.done()
    holder.communicate(b"")
    await writing
    assert (await storage.get("a"), await storage.get("b")) == (b"1", b"2")


async def test_who_writes_waits_for_another_program_but_not_for_ever(
    path: Path, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module._LOCK_SECONDS <= 30
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.2)
    storage = FileStorage(path)
    with pytest.raises(AuthorizationFailed, match=r"another program has locked .*tokens\.json\.lock for 0\.2 s"):
        await asyncio.wait_for(storage.put("b", b"2"), 30)
    assert await storage.get("a") == b"1"
