"""Unmodified clients of the session era (mcp 1.30, @modelcontextprotocol/sdk 1.32, and others) at three processes.

They are driven as in `tests/interop/test_old_clients.py`: calls, elicitation, sampling, roots, the stream of changes,
cancellation, and the rest of a stream after its connection was cut. Each request reaches the next process.
"""

from collections.abc import Callable

import pytest
from repeated import repeat

from support.deployments import NginxDeployment
from weft.server.sessions.streams import read_event_id, writer_of

import test_old_clients  # isort: skip - found by `repeated`
from cutting import cutting  # isort: skip
from test_old_clients import CLIENTS, Facts, drive  # isort: skip

globals().update(repeat(test_old_clients, "facts", left_out={}))
RUNS = [f"{client}-http" for client in CLIENTS] + ["mcp1-sse", "typescript1-sse"]


@pytest.fixture(scope="module")
def library(started: Callable[..., NginxDeployment]) -> NginxDeployment:
    return started("redis", "library", "--sse")


@pytest.fixture(scope="module", params=RUNS)
def facts(request: pytest.FixtureRequest, library: NginxDeployment) -> Facts:
    """What an old client learnt from the library, and which processes have answered it."""
    client, way = request.param.split("-")
    about, before = {"of": "weft", "client": client, "way": way}, len(library.passed)
    if way == "sse":
        return about | drive(client, way, f"http://127.0.0.1:{library.port}/sse")
    with cutting(library.port, b"Ringing back") as cut:
        found = drive(client, way, cut.url)
    passed = library.passed[before:]
    # Who has asked for the rest of a stream where, and which process has written this stream.
    resumed = [(one.port, read_event_id(one.last_event)) for one in passed if one.last_event != "-"]
    written = [(port, writer_of(event[0])) for port, event in resumed if event is not None]
    return found | about | {
        "cut": cut.happened,
        "last_event_ids": cut.last_event_ids,
        "ports": {one.port for one in passed if one.session != "-"},
        "resumed": [(port, library.port_of(writer)) for port, writer in written if writer is not None],
    }  # fmt: skip


def test_the_client_was_answered_by_every_process(facts: Facts, library: NginxDeployment) -> None:
    if facts["way"] == "http":
        assert facts["ports"] == {worker.port for worker in library.workers}


def test_the_rest_of_a_stream_was_read_at_another_process(facts: Facts) -> None:
    if facts["way"] == "http":
        assert any(port != writer for port, writer in facts["resumed"]), facts["resumed"]
