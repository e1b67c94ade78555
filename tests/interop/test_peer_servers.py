"""The peers' servers are there, and serve the eras that `peer_servers` says they do."""

import json
import subprocess
import urllib.error
import urllib.request
from typing import Any

import pytest
from peer_servers import SERVERS, STATELESS, start

from support import headers_for, message

VERSION = "2025-11-25"
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": VERSION,
        "capabilities": {},
        "clientInfo": {"name": "interop", "version": "1"},
    },
}


def answer_over_http(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} | headers
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            data = response.read()
    except urllib.error.HTTPError as error:
        with error:
            data = error.read()
    # A body, or the event of a stream that is not the empty one in front.
    lines = [line.removeprefix(b"data:").strip() for line in data.splitlines()]
    return next((json.loads(line) for line in lines if line.startswith(b"{")), {})


def answer_over_stdio(command: list[str], body: dict[str, Any]) -> Any:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(body) + "\n")
        process.stdin.flush()
        try:
            return next(found for line in process.stdout if (found := json.loads(line)).get("id") == body["id"])
        finally:
            process.stdin.close()
            process.terminate()


def answer(target: str | list[str], body: dict[str, Any], headers: dict[str, str]) -> Any:
    return answer_over_http(target, body, headers) if isinstance(target, str) else answer_over_stdio(target, body)


@pytest.mark.parametrize(("name", "transport"), SERVERS)
def test_a_peer_opens_in_the_eras_it_serves(name: str, transport: Any) -> None:
    with start(name, transport) as target:
        opened = answer(target, OPENING, {})
        assert opened["result"]["protocolVersion"] == VERSION
        discover = message("server/discover", {})
        found = answer(target, discover, dict(headers_for(discover)))
    if name in STATELESS:
        assert "2026-07-28" in found["result"]["supportedVersions"]
    else:
        assert "result" not in found
