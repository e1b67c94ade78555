"""The matrix of `tests/e2e/test_matrix.py`, over HTTP: each request of a client reaches any of three processes."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from repeated import repeat

from support.deployments import Deployment
from support.peers import Peer
from support.sessions import OpenSession

import test_matrix  # isort: skip - found by `repeated`

LEFT_OUT = {
    "test_changes_of_the_list_of_tools": "A tool that is registered while the server runs is registered in one process."
}
globals().update(repeat(test_matrix, "cell", left_out=LEFT_OUT))
WAYS = ("http", "http-stream", "http-json", "http+sse")
CELLS = [cell for cell in test_matrix.CELLS if cell.values[0][1] in WAYS]


@pytest.fixture(scope="module")
def hotel(deploy: Callable[..., Deployment]) -> Iterator[Deployment]:
    deployment = deploy("hotel", "--sse")
    yield deployment
    assert deployment.faults == []


@pytest.fixture(scope="module", params=CELLS)
def the_cell(request: pytest.FixtureRequest, hotel: Deployment) -> Iterator[test_matrix.Cell]:
    version, way = request.param
    cell = test_matrix.Cell(Peer(test_matrix.WAYS[way](hotel), version), way)
    yield cell
    cell.peer.close()


cell = test_matrix.cell


def test_every_process_has_served_every_session(hotel: Deployment) -> None:
    """Those of the tests before, and one more, in case that only this test is run."""
    session = OpenSession(hotel)
    with ThreadPoolExecutor(8) as clients:  # one after another could all reach the worker that is the quickest to wake
        for _ in range(100):
            for answer in clients.map(lambda number: session.request("ping", id=number), range(8)):
                assert answer.result == {}
            if len(hotel.server.processes_of_sessions[session.id]) == hotel.processes:
                break
    assert len(hotel.server.processes_of_sessions[session.id]) == hotel.processes
    served = Counter(one.session for one in hotel.server.served)
    assert all(
        len(processes) == hotel.processes
        for id, processes in hotel.server.processes_of_sessions.items()
        if served[id] > 30
    )
    print(f"requests that each process has served: {hotel.server.per_process}")
