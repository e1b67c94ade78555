"""Messages, features, progress, cancellation and HTTP+SSE, as in `tests/e2e`, at three processes."""

from collections.abc import Callable, Iterator

import pytest
from repeated import repeat

from support.deployments import Deployment

import test_cancellation  # isort: skip - found by `repeated`
import test_features  # isort: skip
import test_http_messages  # isort: skip
import test_http_sse  # isort: skip
import test_progress_and_logging  # isort: skip
import test_statelessness  # isort: skip
import test_validation_order  # isort: skip

INSIDE = "It reaches into the server, which must be in the process of the test for that: "
LEFT_OUT = {
    "test_stopping_ends_the_streams": f"{INSIDE}it ends the streams.",
    "test_who_waits_for_an_answer_gets_it_before_the_stream_ends": f"{INSIDE}it ends the streams.",
    "test_a_stream_of_the_other_transport_can_be_opened_again_at_once": f"{INSIDE}it waits for a field of the session.",
    "test_a_stream_that_cannot_have_an_answer_ends": f"{INSIDE}it replaces a method of the backend.",
}
globals().update(repeat(test_features, "live", left_out={}))
globals().update(repeat(test_http_messages, "live", left_out={}))
globals().update(repeat(test_validation_order, "live", left_out={}))
globals().update(repeat(test_statelessness, "live", left_out={}))
globals().update(repeat(test_progress_and_logging, "live", left_out={}))
globals().update(repeat(test_cancellation, "live", left_out={}))
globals().update(repeat(test_http_sse, "live", "client", left_out=LEFT_OUT))
client = test_http_sse.client


@pytest.fixture(scope="module")
def live(deploy: Callable[..., Deployment]) -> Iterator[Deployment]:
    deployment = deploy("everything", "--sse")
    yield deployment
    assert deployment.faults == []
