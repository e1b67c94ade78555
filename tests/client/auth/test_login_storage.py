"""Where tokens are kept: what survives, who can read it, and what is made of damage."""

import asyncio
import json
import os
import stat
import sys
import threading
import types

import pytest

from weft.client.auth import FileStorage, KeyringStorage, MemoryStorage
from weft.client.auth import storage as module
from weft.errors import UsageError


@pytest.fixture
def keyring(monkeypatch):
    """The package as its documentation has it, with a dictionary behind it."""
    entries: dict[tuple[str, str], str] = {}

    def put(service, name, value):
        entries[service, name] = value

    def delete(service, name):
        if (service, name) not in entries:
            raise RuntimeError("not there")
        del entries[service, name]

    module = types.ModuleType("keyring")
    module.get_password = lambda service, name: entries.get((service, name))
    module.set_password = put
    module.delete_password = delete
    monkeypatch.setitem(sys.modules, "keyring", module)
    return entries


@pytest.fixture(params=["memory", "file", "keyring"])
def storage(request, tmp_path):
    if request.param == "memory":
        return MemoryStorage()
    if request.param == "file":
        return FileStorage(tmp_path / "very" / "deep" / "tokens.json")
    request.getfixturevalue("keyring")
    return KeyringStorage()


async def test_what_is_kept_is_found_and_what_is_forgotten_is_not(storage):
    assert await storage.get("a") is None
    await storage.put("a", b'{"x": "\xc3\xa9"}')
    await storage.put("b", b"y" * 5000)
    assert await storage.get("a") == b'{"x": "\xc3\xa9"}'
    assert await storage.get("b") == b"y" * 5000
    await storage.put("b", b"short")
    assert await storage.get("b") == b"short"
    await storage.put("a", None)
    await storage.put("never", None)
    assert await storage.get("a") is None


@pytest.mark.spec("ASEC-01", "AUTH-35")
async def test_a_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "deep" / "tokens.json"
    old = os.umask(0)
    try:
        await FileStorage(path).put("a", b"secret")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()} == {
        "tokens.json": 0o600,
        ".tokens.json.lock": 0o600,
    }


@pytest.mark.spec("ASEC-01")
async def test_a_file_that_others_can_read_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text("{}")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        await FileStorage(path).get("a")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b'{"a": 1}', b"\xff", b"[" * 100_000])
async def test_a_damaged_file_is_as_good_as_none(tmp_path, content):
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    path.chmod(0o600)
    storage = FileStorage(path)
    assert await storage.get("a") is None
    await storage.put("a", b"new")
    assert await storage.get("a") == b"new"


async def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tokens.json"
    storage = FileStorage(path)
    await storage.put("a", b"old")

    def crash(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        await storage.put("a", b"new")
    assert json.loads(path.read_text()) == {"a": "old"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"tokens.json", ".tokens.json.lock"}


async def test_many_writers_lose_nothing(tmp_path):
    storage = FileStorage(tmp_path / "tokens.json")
    await asyncio.gather(*(storage.put(str(number), b"x") for number in range(50)))
    assert [await storage.get(str(number)) for number in range(50)] == [b"x"] * 50


async def test_many_programs_lose_nothing(tmp_path):
    path = tmp_path / "tokens.json"
    storages = [FileStorage(path) for _ in range(8)]  # each has a lock of its own, as programs have
    await asyncio.gather(*(storage.put(f"{n} {m}", b"x") for m in range(6) for n, storage in enumerate(storages)))
    assert len(json.loads(path.read_text())) == 48


async def test_a_cancelled_writer_keeps_other_programs_out_until_it_has_written(tmp_path, monkeypatch):
    path = tmp_path / "tokens.json"
    first, second = FileStorage(path), FileStorage(path)
    is_writing, may_write = threading.Event(), threading.Event()
    fsync = os.fsync

    def wait(descriptor):
        if not is_writing.is_set():  # only the first writer
            is_writing.set()
            may_write.wait(30)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", wait)
    cancelled = asyncio.create_task(first.put("a", b"x"))
    await asyncio.to_thread(is_writing.wait, 30)
    cancelled.cancel()
    await asyncio.wait([cancelled], timeout=0.1)
    other = asyncio.create_task(second.put("b", b"y"))
    await asyncio.wait([other], timeout=0.2)
    may_write.set()
    await asyncio.wait_for(other, 30)
    assert json.loads(path.read_text()) == {"a": "x", "b": "y"}


async def test_where_there_are_no_locks_it_works_all_the_same(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError("no locks on this file system")

    monkeypatch.setattr(module, "_lock", refuse)
    storage = FileStorage(tmp_path / "tokens.json")
    await storage.put("a", b"x")
    assert await storage.get("a") == b"x"


async def test_programs_take_turns_at_one_key_and_not_at_two(tmp_path):
    first, second = (FileStorage(tmp_path / "tokens.json") for _ in range(2))
    done = []

    async def work(key):
        async with second.claimed(key):
            done.append(key)

    async with first.claimed("a"):
        waiting = asyncio.create_task(work("a"))
        await asyncio.wait_for(work("b"), 30)
        await first.put("a", b"x")  # who has the turn can write
        await asyncio.sleep(0.05)
        assert done == ["b"]
    await asyncio.wait_for(waiting, 30)
    assert done == ["b", "a"]
    if os.name == "posix":
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()} == {0o600}


async def test_a_turn_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.1)
    first, second = (FileStorage(tmp_path / "tokens.json") for _ in range(2))
    async with first.claimed("a"), asyncio.timeout(30), second.claimed("a"):
        pass


async def test_who_is_cancelled_while_it_waits_for_its_turn_leaves_it_to_others(tmp_path):
    first, second, third = (FileStorage(tmp_path / "tokens.json") for _ in range(3))
    async with first.claimed("a"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), second.claimed("a"):
                pass
    async with asyncio.timeout(30), third.claimed("a"):
        pass


async def test_where_nothing_can_be_locked_everybody_goes_on(tmp_path):
    async with FileStorage(tmp_path / "no" / "tokens.json").claimed("a"):
        pass
    assert list(tmp_path.iterdir()) == []


async def test_a_keyring_shows_no_urls(keyring):
    storage = KeyringStorage()
    await storage.put("token https://auth.example https://mcp.example/mcp", b"secret")
    assert "example" not in repr(keyring)
    await storage.put("token https://auth.example https://mcp.example/mcp", None)
    assert keyring == {}


def test_without_the_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UsageError, match="pip install keyring"):
        KeyringStorage()
