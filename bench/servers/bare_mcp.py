"""A server that answers at once, to measure clients: uvicorn, msgspec, and what a client asks for before a call."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
import uvicorn

REVISION = "2026-07-28"
TYPES = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ADD = {"name": "add", "description": "Add two numbers.", "inputSchema": TYPES, "outputSchema": {"type": "integer"}}
KEPT = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
RESULTS = {
    "server/discover": {**KEPT, "supportedVersions": [REVISION], "capabilities": {"tools": {}}},
    "tools/list": {**KEPT, "tools": [ADD]},
    "tools/call": {"resultType": "complete", "content": [{"type": "text", "text": "5"}], "structuredContent": 5},
}


class Request(msgspec.Struct):
    method: str
    id: msgspec.Raw = msgspec.Raw(b"")


decode = msgspec.json.Decoder(Request).decode
TAILS = {method: b',"result":' + msgspec.json.encode(result) + b"}" for method, result in RESULTS.items()}


async def app(_scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    request = decode(body)
    answer = b'{"jsonrpc":"2.0","id":%b%b' % (bytes(request.id), TAILS[request.method])
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    port = parser.parse_args().http
    uvicorn.run(app, host="127.0.0.1", port=port, lifespan="off", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
