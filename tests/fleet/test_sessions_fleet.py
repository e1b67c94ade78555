"""Sessions and their streams, as in `tests/e2e`, at three processes: each request reaches any of them."""

from collections.abc import Callable, Iterator

import pytest
from repeated import repeat

from support.deployments import Deployment

import test_sessions  # isort: skip - found by `repeated`
import test_sessions_streams  # isort: skip

LEFT_OUT = {
    "test_an_id_that_is_being_served_is_refused_and_one_that_was_is_not": (
        "Only the process that serves a request knows that its id is in use; it is up to clients not to use it twice."
    ),
}
globals().update(repeat(test_sessions, "hotel", "session", left_out=LEFT_OUT))
globals().update(repeat(test_sessions_streams, "hotel", "session", left_out={}))
session, label = test_sessions.session, test_sessions_streams.label


@pytest.fixture(scope="module")
def hotel(deploy: Callable[..., Deployment]) -> Iterator[Deployment]:
    deployment = deploy("hotel")
    yield deployment
    assert deployment.faults == []
