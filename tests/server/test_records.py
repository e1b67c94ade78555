"""Records of sessions: several workers change one, and each change goes on top of the others."""

import asyncio
from typing import Any

import msgspec
import pytest

from weft.backends.memory import MemoryBackend
from weft.errors import BackendUnavailable
from weft.limits import Limits
from weft.server.sessions import session as session_module
from weft.server.sessions.session import Record, Records, Session
from weft.server.sessions.streams import Streams
from weft.types.lifecycle import ClientCapabilities

BEFORE = Record("v", None, ClientCapabilities(), None, "peer", subscribed_uris=["a://1", "a://2"])


def changed(**changes: Any) -> Record:
    return msgspec.structs.replace(BEFORE, **changes)


@pytest.fixture
def records() -> Records:
    return Records(MemoryBackend().store, Limits())


async def test_a_record_is_read_as_it_was_added(records: Records) -> None:
    await records.add("s", BEFORE)
    assert await records.read("s") == BEFORE
    await records.delete("s")
    assert await records.read("s") is None


async def test_changes_of_two_workers_both_hold(records: Records) -> None:
    await records.add("s", BEFORE)
    await records.change("s", BEFORE, changed(log_level="debug", subscribed_uris=["a://2", "a://3"]))
    merged = await records.change("s", BEFORE, changed(is_ready=True, subscribed_uris=["a://1", "a://2", "a://4"]))
    assert merged == changed(is_ready=True, log_level="debug", subscribed_uris=["a://2", "a://3", "a://4"], version=2)
    assert await records.read("s") == merged


async def test_a_change_that_was_overtaken_is_made_again() -> None:
    backend = MemoryBackend()
    store: Any = backend.store
    get, waiting = store.get, asyncio.Event()

    async def slow_get(key: str) -> bytes | None:
        data = await get(key)
        if not waiting.is_set():
            waiting.set()
            await asyncio.sleep(0.01)  # and what was read is out of date
        return data

    records = Records(store, Limits())
    await records.add("s", BEFORE)
    store.get = slow_get
    one = asyncio.create_task(records.change("s", BEFORE, changed(is_ready=True)))
    await waiting.wait()
    await records.change("s", BEFORE, changed(log_level="error"))
    assert await one == changed(is_ready=True, log_level="error", version=2)


async def test_a_change_that_is_always_overtaken_fails(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_SWAP_PAUSE", 0.0001)
    attempts = 0

    async def lose(*_: Any, **__: Any) -> bool:
        nonlocal attempts
        attempts += 1
        return False

    await records.add("s", BEFORE)
    monkeypatch.setattr(records._store, "swap", lose)
    with pytest.raises(BackendUnavailable, match="others have changed it 20 times"):
        await records.change("s", BEFORE, changed(is_ready=True))
    assert attempts == session_module.MOST_SWAPS


async def test_uris_of_two_workers_do_not_exceed_the_limit_together() -> None:
    records = Records(MemoryBackend().store, Limits(listen_uris=3))
    await records.add("s", BEFORE)
    await records.change("s", BEFORE, changed(subscribed_uris=["a://1", "a://2", "a://3"]))
    merged = await records.change("s", BEFORE, changed(log_level="debug", subscribed_uris=["a://1", "a://2", "a://4"]))
    assert merged == changed(log_level="debug", subscribed_uris=["a://1", "a://2", "a://3"], version=2)
    merged = await records.change("s", BEFORE, changed(subscribed_uris=["a://2", "a://4"]))  # a://1 is given up
    assert merged is not None
    assert merged.subscribed_uris == ["a://2", "a://3", "a://4"]


async def test_a_session_that_has_ended_is_not_brought_back(records: Records) -> None:
    assert await records.change("s", BEFORE, changed(is_ready=True)) is None
    assert not await records.renew("s")
    assert await records.read("s") is None


@pytest.mark.parametrize("is_changed", [False, True])
async def test_what_a_worker_learns_it_need_not_save(is_changed: bool) -> None:
    limits = Limits()
    session = Session("s", None, "peer", "w", Streams(MemoryBackend(), limits), limits)
    session.connection.is_changed = is_changed
    now = changed(handshake_done=True, is_ready=True, log_level="error")
    session.apply_record(session.record, now)
    assert (session.to_record(), session.connection.is_changed) == (now, is_changed)


async def test_a_record_that_arrives_late_does_not_undo_a_newer_one() -> None:
    limits = Limits()
    session = Session("s", None, "peer", "w", Streams(MemoryBackend(), limits), limits)
    session.apply_news(changed(log_level="error", version=3))
    session.apply_news(changed(log_level="debug", version=2))
    assert session.connection.log_level == "error"
    session.connection.subscribed_uris.add("mine://1")  # not saved yet
    session.apply_news(changed(log_level="error", subscribed_uris=["a://9"], version=4))
    assert session.connection.subscribed_uris == {"a://9", "mine://1"}
