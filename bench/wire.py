"""The one request that everything is measured with, as bytes and as a script for wrk."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["EXPECTED_TEXT", "HEADERS", "LIST_HEADERS", "call", "is_right", "listing", "lua"]

REVISION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
EXPECTED_TEXT = "5"

HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": REVISION,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "add",
}
LIST_HEADERS = {name: value for name, value in HEADERS.items() if name != "Mcp-Name"} | {"Mcp-Method": "tools/list"}


def call(id: int) -> bytes:
    """A tools/call of `add(2, 3)`, without a line end."""
    params = {"name": "add", "arguments": {"a": 2, "b": 3}, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()


def listing(id: int) -> bytes:
    """A tools/list."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {"_meta": META}}).encode()


def is_right(answer: Any) -> bool:
    """Whether a decoded answer is the result of the call, and says 5."""
    content = answer.get("result", {}).get("content") or [{}]
    return content[0].get("text") == EXPECTED_TEXT


def lua() -> str:
    """The script that makes wrk send the call, and print one JSON line when it is done."""
    headers = "\n".join(f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in HEADERS.items())
    return f"""wrk.method = "POST"
wrk.body = [[{call(1).decode()}]]
{headers}
function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '{{"requests": %d, "seconds": %.6f, "refused": %d, "broken": %d, "p50_ms": %.3f, "p99_ms": %.3f}}\\n',
        summary.requests, summary.duration / 1e6, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout,
        latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""
