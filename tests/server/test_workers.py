"""The watch over workers: who has ended is replaced, but not in a hurry."""

import socket
import time
from typing import Any

import pytest

from weft.errors import StartError
from weft.server.run import workers


class Ended:
    """A process that has ended."""

    pid = 7
    stdin = None

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(workers._WorkerSupervisor, "_start_worker", lambda self: ("new", 0.0))
    with socket.socket() as listener:
        yield workers._WorkerSupervisor(None, listener, 0)  # type: ignore[arg-type] - nobody is hired


def test_a_worker_that_runs_stays(supervisor: Any) -> None:
    worker = Ended(None)
    assert supervisor._check_worker(worker, 0.0) == (worker, 0.0)


def test_a_worker_that_ended_soon_after_its_start_is_not_replaced_at_once(supervisor: Any) -> None:
    worker, since = Ended(1), time.monotonic()
    assert supervisor._check_worker(worker, since) == (worker, since)


def test_a_worker_that_ended_is_replaced(supervisor: Any) -> None:
    assert supervisor._check_worker(Ended(1), time.monotonic() - workers.RESTART_SECONDS) == ("new", 0.0)


def test_a_worker_that_cannot_start_ends_all(supervisor: Any) -> None:
    with pytest.raises(StartError, match="the reason is printed above"):
        supervisor._check_worker(Ended(workers.CANNOT_START), time.monotonic())
