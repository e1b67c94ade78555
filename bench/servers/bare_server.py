"""The limit: uvicorn and msgspec with no protocol in between. Reads the body, decodes it, answers a fixed shape."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
import uvicorn


class Arguments(msgspec.Struct):
    a: int
    b: int


class Params(msgspec.Struct):
    name: str
    arguments: Arguments


class Request(msgspec.Struct):
    id: int
    method: str
    params: Params


decoder = msgspec.json.Decoder(Request)
encoder = msgspec.json.Encoder()


async def app(_scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    request = decoder.decode(body)
    total = request.params.arguments.a + request.params.arguments.b
    content = [{"type": "text", "text": str(total)}]
    result = {"resultType": "complete", "content": content, "structuredContent": total}
    answer = encoder.encode({"jsonrpc": "2.0", "id": request.id, "result": result})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def make_app() -> Any:
    """The app that `uvicorn --factory` serves."""
    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    port = parser.parse_args().http
    uvicorn.run(app, host="127.0.0.1", port=port, lifespan="off", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
