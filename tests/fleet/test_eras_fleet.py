"""Clients of both eras at once, questions and listen streams, as in `tests/e2e`, at three processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from repeated import repeat

from support.deployments import Deployment

import test_asks_everywhere  # isort: skip - found by `repeated`
import test_both_eras  # isort: skip
import test_listen_streams  # isort: skip
import test_questions  # isort: skip

INSIDE = "It ends the streams from inside the server, which must be in the process of the test for that."
LEFT_OUT = {
    "test_only_what_was_asked_for_is_told": INSIDE,
    "test_the_server_ends_a_stream_with_its_result": INSIDE,
    "test_what_is_still_to_be_told_comes_before_the_end": INSIDE,
}
globals().update(repeat(test_both_eras, "live", left_out={}))
globals().update(repeat(test_questions, "asking", left_out={}))
globals().update(repeat(test_listen_streams, "changing", left_out=LEFT_OUT))
globals().update(repeat(test_asks_everywhere, "peer", left_out={}))


@pytest.fixture
def live(deploy: Callable[..., Deployment]) -> Iterator[Deployment]:
    deployment = deploy("both")
    deployment.server.log.clear("begun", "over", "cancelled", "released")
    deployment.server.gate = test_both_eras.Gate(deployment.server.log)
    yield deployment
    assert deployment.faults == []


@pytest.fixture(scope="module")
def asking(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy("asking")


@pytest.fixture
def changing(deploy: Callable[..., Deployment]) -> Deployment:
    return deploy("changing")


@pytest.fixture
def peer(deploy: Callable[..., Deployment], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client that sends each round to any process."""
    file = tmp_path_factory.getbasetemp() / "flights.py"
    file.write_text(test_asks_everywhere.PROGRAM)
    file.with_suffix(".charges").unlink(missing_ok=True)
    deployment = deploy(file)
    meta = test_asks_everywhere._meta

    def send(method: str, params: Any, declared: Any = test_asks_everywhere.EVERYTHING) -> list[dict[str, Any]]:
        return deployment.call(method, params, meta=meta(declared)).messages

    return send
