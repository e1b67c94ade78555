"""Requests to a client that it never answers, because it is gone."""

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from weft import Server
from weft.errors import RemoteError, RequestTimeout
from weft.server.calls import pending as module
from weft.server.calls.pending import PendingRequests
from weft.types.lifecycle import ProgressParams


async def nowhere(message: bytes) -> None:
    """A way that leads to nobody."""


async def test_who_asks_after_the_end_does_not_wait() -> None:
    outstanding = PendingRequests("s", nowhere)
    outstanding.close()
    async with asyncio.timeout(15):
        with pytest.raises(RemoteError, match="gone"):
            await outstanding.request(nowhere, "ping", None, timeout=60)


@pytest.mark.security("R1")
async def test_a_request_that_is_cancelled_at_the_end_leaves_no_error_behind() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))

    async def blocked(message: bytes) -> None:
        await asyncio.Event().wait()

    outstanding = PendingRequests("s", nowhere)
    asking = asyncio.create_task(outstanding.request(blocked, "ping", None, timeout=60))
    await asyncio.sleep(0)
    asking.cancel()
    outstanding.close()
    await asyncio.wait([asking])
    del asking
    gc.collect()
    assert (errors, len(outstanding)) == ([], 0)


@pytest.mark.spec("CAN-12")
@pytest.mark.parametrize("cancelled", [False, True])
async def test_who_waits_is_let_go_although_the_peer_does_not_read(
    cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.01)

    async def blocked(message: bytes) -> None:
        await asyncio.Event().wait()

    outstanding = PendingRequests("s", blocked)
    asking = asyncio.create_task(outstanding.request(blocked, "ping", None, timeout=60 if cancelled else 0.01))
    await asyncio.sleep(0)
    if cancelled:
        asking.cancel()
    assert await asyncio.wait([asking], timeout=30) == ({asking}, set())
    with pytest.raises(asyncio.CancelledError if cancelled else RequestTimeout):
        await asking
    assert len(outstanding) == 0


@pytest.mark.security("R1")
@pytest.mark.parametrize("raised", [ValueError, SystemExit])
async def test_what_hearing_of_progress_raises_is_nobody_elses_fault(raised: type[BaseException]) -> None:
    def fail(params: ProgressParams) -> None:
        raise raised

    outstanding = PendingRequests("s", nowhere)
    asking = asyncio.create_task(outstanding.request(nowhere, "ping", None, timeout=60, on_progress=fail))
    await asyncio.sleep(0)
    assert outstanding.progressed(ProgressParams(progress_token="s-1", progress=1))
    assert not asking.done()
    outstanding.close()
    with pytest.raises(RemoteError):
        await asking


@pytest.mark.spec("CAN-12", "CAN-14")
async def test_progress_gives_more_time_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setattr(module, "TOTAL_SECONDS", 0.3)
    outstanding, heard = PendingRequests("s", nowhere), 0

    def hear(params: ProgressParams) -> None:
        nonlocal heard
        heard += 1

    asking = asyncio.create_task(outstanding.request(nowhere, "ping", None, timeout=0.05, on_progress=hear))
    async with asyncio.timeout(15):
        while not asking.done():
            outstanding.progressed(ProgressParams(progress_token="s-1", progress=heard))
            await asyncio.sleep(0.02)
    assert heard > 4  # longer than it was given at first
    with pytest.raises(RequestTimeout):
        await asking


async def test_an_idle_session_has_no_list_of_requests() -> None:
    server = Server("x")
    session = server.engine.sessions.new(None, "peer")
    assert session._outstanding is None
    assert session.outstanding is session.outstanding
    ended = server.engine.sessions.new(None, "peer")
    ended.close()
    with pytest.raises(RemoteError, match="The client is gone"):
        await ended.outstanding.request(ended.send, "ping", None, timeout=60)


async def test_an_idle_session_takes_little_memory() -> None:
    sessions = Server("x").engine.sessions
    sessions.new(None, "peer")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = [sessions.new(None, "peer") for _ in range(500)]
        assert (tracemalloc.get_traced_memory()[0] - before) / len(made) < 1000
    finally:
        tracemalloc.stop()
