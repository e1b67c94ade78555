"""What whoever runs the server is told of what failed, and of the clients that were turned away."""

import asyncio
import logging
from typing import Any

import pytest

from support import PROTOCOL_VERSION_KEY, VERSION, VERSIONS, ask
from weft import Server
from weft.errors import InvalidParams, UnsupportedVersion
from weft.server import diagnostics as faults


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


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.security("R1")
@pytest.mark.parametrize(
    ("method", "params", "what"),
    [
        ("tools/call", {"name": "act"}, "Tool 'act'"),
        ("prompts/get", {"name": "fill"}, "Prompt 'fill'"),
        ("resources/read", {"uri": "a://b"}, "Resource 'a://b'"),
    ],
)
async def test_an_exception_that_cannot_be_shown_is_answered_and_logged_all_the_same(
    method: str, params: dict[str, str], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s")

    @server.tool
    async def act() -> str:
        raise Mute

    @server.prompt
    def fill() -> str:
        raise Mute

    @server.resource("a://b")
    async def read() -> str:
        raise Mute

    async with asyncio.timeout(30):
        response = await ask(server, method, params)
    assert "Internal error. The server's log has it under error" in response.body.decode()
    assert f"{what} (tests/server/test_faults.py:" in caplog.text
    assert ") raised Mute [error" in caplog.text


FORGED = "x\n10:00:00 INFO weft.server: tools/call pay stateless 200 1.0 ms admin\r\x1b[2J\u2028gone"


@pytest.mark.security("D4")
async def test_a_peer_cannot_write_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("s")

    @server.tool
    async def seat(seat: str) -> str:
        raise ValueError(f"no seat {seat}")

    await ask(server, "tools/call", {"name": "seat", "arguments": {"seat": FORGED}})
    (record,) = caplog.records
    first, *further = record.getMessage().splitlines()
    assert ") raised ValueError: no seat x" in first
    assert further[:3] == [
        "  | 10:00:00 INFO weft.server: tools/call pay stateless 200 1.0 ms admin",
        "  | ?[2J",
        f"  | gone [error {record.getMessage().split('[error ')[1][:8]}]",
    ]
    assert all(line.startswith("  tests/server/test_faults.py:") for line in further[3:])
    assert len(further) > 3


async def test_the_client_in_development_reads_the_text_as_it_was_raised() -> None:
    server = Server("s", debug=True)

    @server.tool
    async def act() -> str:
        raise ValueError("one\n  two")

    response = await ask(server, "tools/call", {"name": "act"})
    assert "raised ValueError: one\n  two (tests/" in response.json["result"]["content"][0]["text"]
