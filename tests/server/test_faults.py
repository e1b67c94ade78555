"""What whoever runs the server is told of the clients that were turned away."""

import logging
from typing import Any

import pytest

from support import PROTOCOL_VERSION_KEY, VERSION, VERSIONS, ask
from weft import Server
from weft.errors import InvalidParams, UnsupportedVersion
from weft.server import faults


@pytest.fixture(autouse=True)
def nothing_refused_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_refused_versions", set())


@pytest.mark.parametrize(
    ("eras", "served"), [(("stateless",), VERSION), (("stateless", "session"), ", ".join(VERSIONS))]
)
async def test_a_version_that_is_not_spoken_is_logged_once(
    eras: tuple[Any, ...], served: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s", eras=eras)
    for version in ("1999-01-01", "1999-01-01", "1999-01-02"):
        headers, meta = {"MCP-Protocol-Version": version}, {PROTOCOL_VERSION_KEY: version}
        response = await ask(server, "tools/list", headers=headers, meta=meta)
        assert response.refusal == (400, -32022)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"A client asked for protocol version {version}; this server speaks {served} only.")
        for version in ("1999-01-01", "1999-01-02")
    ]


@pytest.mark.security("D4")
def test_versions_that_are_made_up_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(faults.MOST_VERSIONS + 5):
        faults.note_refusal(UnsupportedVersion(requested=str(number), supported=[VERSION]))
    assert len(caplog.records) == faults.MOST_VERSIONS


def test_other_refusals_are_the_clients_own_affair(caplog: pytest.LogCaptureFixture) -> None:
    faults.note_refusal(InvalidParams("Invalid params"))
    assert caplog.records == []
