"""The limits over a real socket: at each, and one past it."""

import socket
import time
from contextlib import ExitStack, closing

import pytest

from support import (
    LOG_LEVEL_KEY,
    PROTOCOL_VERSION_KEY,
    Live,
    encode,
    headers_for,
    make_server,
    message,
    serve,
    start_request,
    until,
)
from weft import Limits
from weft.server.runtime.admission import busy

BODY = encode(message("tools/list"))
HEADERS = headers_for(message("tools/list"))


def with_header(name: str, value: str | bytes) -> list[tuple[str, str | bytes]]:
    return [*[(key, kept) for key, kept in HEADERS if key.lower() != name.lower()], (name, value)]


@pytest.mark.security("D1", "R12")
def test_the_size_of_a_body() -> None:
    limit = 2000
    with serve(make_server(limits=Limits(body_bytes=limit))) as live:
        for size, status in ((limit, 200), (limit + 1, 413)):
            assert live.send(BODY.ljust(size), HEADERS).status == status
            assert (
                live.send(_chunk(BODY.ljust(size)), [*HEADERS, ("Transfer-Encoding", "chunked")], length=False).status
                == status
            )
        assert live.healthy()


def _chunk(body: bytes) -> bytes:
    parts = [body[start : start + 700] for start in range(0, len(body), 700)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.security("D1")
def test_a_body_that_is_too_large_is_refused_before_it_is_sent(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as raw:
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS)
        raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: 4194305\r\n\r\n".encode())
        assert b" 413 " in raw.recv(100)


@pytest.mark.security("D1")
@pytest.mark.parametrize("length", ["99999999999999999999", "4194305"])
def test_a_length_beyond_all_measure(live: Live, length: str) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as raw:
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS)
        raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n".encode())
        assert raw.recv(100).split(b" ")[1] in (b"413", b"400")
    assert live.healthy()


def _nested(depth: int) -> tuple[bytes, list]:
    body = message("tools/call", {"name": "echo", "arguments": {"value": "@"}})
    return encode(body).replace(b'"@"', b"[" * (depth - 3) + b"]" * (depth - 3)), headers_for(
        body
    )  # 3: message, params, arguments


@pytest.mark.security("D2", "R12")
def test_nesting(live: Live) -> None:
    assert live.send(*_nested(128)).status == 200
    assert live.send(*_nested(129)).refusal == (400, -32700)
    assert live.send(*_nested(100_000)).refusal == (400, -32700)
    assert live.healthy()


@pytest.mark.security("D2")
def test_brackets_inside_strings_do_not_nest(live: Live) -> None:
    text = "[{" * 500 + '\\"'
    assert live.tool("echo", {"value": text}).result["structuredContent"] == text


@pytest.mark.security("D2")
@pytest.mark.parametrize(
    "value",
    [
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b"01",
        b"+1",
        b"'x'",
        b"1.",
        b"\x00",
        b'"\t"',
    ],
)
def test_what_json_does_not_have(live: Live, value: bytes) -> None:
    body = message("tools/call", {"name": "echo", "arguments": {"value": "@"}})
    assert live.send(encode(body).replace(b'"@"', value), headers_for(body)).refusal == (400, -32700)


@pytest.mark.security("D3", "R12")
def test_ids(live: Live) -> None:
    for id, status in (
        (2**53, 200),
        (2**53 + 1, 400),
        (-(2**53), 200),
        (-(2**53) - 1, 400),
        ("x" * 256, 200),
        ("x" * 257, 400),
        ("é" * 128, 200),
        ("é" * 129, 400),
    ):
        response = live.call("tools/list", id=id)
        assert response.status == status, id
        assert status == 200 or response.error["code"] == -32600


@pytest.mark.security("D3", "R12")
def test_the_digits_of_numbers(live: Live) -> None:
    body = message("tools/call", {"name": "add", "arguments": {"a": "@", "b": 0}})
    for digits, status in ((1000, 200), (1001, 400), (100_000, 400)):
        response = live.send(encode(body).replace(b'"@"', b"9" * digits), headers_for(body))
        assert response.status == status, digits
    long_text = "9" * 2000
    assert live.tool("echo", {"value": long_text}).result["structuredContent"] == long_text


@pytest.mark.security("D4", "R12")
def test_error_texts_are_short_and_do_not_echo(live: Live) -> None:
    junk = "JUNK" * 5000
    responses = [
        live.tool("chatter", meta={LOG_LEVEL_KEY: junk}),
        live.tool(junk, headers={"Mcp-Name": "x"}),
        live.tool(junk[:5000]),
        live.call(junk[:5000]),
        live.tool("add", {f"x{number}": junk for number in range(50)}),
        live.tool("add", {"K" * 20_000: 1, "a": junk, "b": []}),
        live.tool("bounded", {"n": junk}),
        live.call("prompts/get", {"name": "greet", "arguments": {"name": "A", "tone": junk}}),
        live.call("prompts/get", {"name": "greet", "arguments": {"K" * 20_000: junk}}),
        live.call("completion/complete", {"ref": {"type": junk}, "argument": {"name": "a", "value": ""}}),
        live.call("tools/list", {"cursor": junk}),
        live.call(
            "tools/list", meta={PROTOCOL_VERSION_KEY: junk[:5000]}, headers={"MCP-Protocol-Version": junk[:5000]}
        ),
        live.send(BODY, with_header("Host", junk[:5000])),
    ]
    for number, response in enumerate(responses):
        assert len(response.body) < 4096 + 300, number
        assert b"JUNKJUNKJUNKJUNKJUNK" not in response.body or number in (11, 12), (number, response.body[:300])


@pytest.mark.security("D4")
def test_at_most_ten_issues(live: Live) -> None:
    text = live.tool("add", {f"extra{number}": 1 for number in range(50)}).result["content"][0]["text"]
    assert text.count("extra") <= 12


@pytest.mark.security("D5", "R12")
def test_header_fields_and_bytes(live: Live) -> None:
    base = len(HEADERS) + 2  # Host and Content-Length
    for more, status in ((128 - base, 200), (129 - base, 431)):
        assert live.send(BODY, [*HEADERS, *((f"X-{number}", "y") for number in range(more))]).status == status


@pytest.mark.security("D5", "R12")
def test_the_bytes_of_headers() -> None:
    limits = Limits(header_bytes=2000)
    with serve(make_server(limits=limits)) as live:
        used = sum(len(name) + len(value) for name, value in HEADERS)
        used += len("host") + len(f"127.0.0.1:{live.port}") + len("content-length") + len(str(len(BODY)))
        for size, status in ((2000 - used - 1, 200), (2000 - used, 431)):
            assert live.send(BODY, [*HEADERS, ("X", "y" * size)]).status == status


@pytest.mark.security("D6", "R12")
def test_a_body_that_dribbles_in() -> None:
    with serve(make_server(limits=Limits(body_seconds=0.3))) as live:
        with socket.create_connection(("127.0.0.1", live.port), timeout=30) as raw:
            head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS)
            raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(BODY)}\r\n\r\n".encode())
            begun = time.monotonic()
            for byte in BODY[:40]:
                raw.send(bytes([byte]))
                time.sleep(0.02)
                if time.monotonic() - begun > 0.6:
                    break
            assert b" 408 " in raw.recv(100)
        assert live.healthy()


@pytest.mark.security("D7", "R12")
def test_the_length_of_a_uri(live: Live) -> None:
    for size, data in ((8192, True), (8193, False)):
        uri = "note://" + "x" * (size - 7)
        response = live.call("resources/read", {"uri": uri})
        assert response.refusal == (200, -32602)
        assert ("data" in response.error) is data


@pytest.mark.security("D9", "R12")
def test_requests_in_flight() -> None:
    server = make_server(limits=Limits(in_flight=2))
    with serve(server) as live, ExitStack() as held:
        for number in range(2):
            body = message("tools/call", {"name": "wait", "arguments": {"token": f"held{number}"}})
            connection = held.enter_context(closing(live.connect()))
            start_request(connection, encode(body), headers_for(body))
            until(lambda token=f"held{number}": server.log.of(token))  # type: ignore[attr-defined] - the tests' own
        refused = live.call("tools/list")
        assert refused.refusal == (503, -32603)
        assert int(refused.headers["retry-after"]) >= 1
        assert "id" not in refused.json  # it was not read
        assert refused.error["message"] == busy(2).message
        held.close()
        until(lambda: server.engine.in_flight == 0)
        assert live.healthy()


def begin(held: ExitStack, live: Live, length: int, body: bytes, address: str = "10.0.0.1") -> socket.socket:
    """Send the head of a request, and as much of its body."""
    head = "".join(f"{name}: {value}\r\n" for name, value in [*HEADERS, ("X-Forwarded-For", address)])
    raw = held.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=30))
    raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return raw


@pytest.mark.security("D9", "R12")
def test_bodies_that_are_being_sent_take_no_place() -> None:
    server = make_server(limits=Limits(in_flight=2))
    with serve(server) as live, ExitStack() as held:
        begun = [begin(held, live, len(BODY), BODY[:10]) for _ in range(5)]
        assert live.healthy()
        for raw in begun:
            raw.sendall(BODY[10:])
            assert b" 200 " in raw.recv(100)


@pytest.mark.security("D9", "R12")
def test_a_body_that_is_whole_when_the_server_is_full_is_refused() -> None:
    server = make_server(limits=Limits(in_flight=1))
    with serve(server) as live, ExitStack() as held:
        late = begin(held, live, len(BODY), BODY[:10])
        body = message("tools/call", {"name": "wait", "arguments": {"token": "held"}})
        connection = held.enter_context(closing(live.connect()))
        start_request(connection, encode(body), headers_for(body))
        until(lambda: server.log.of("held"))  # type: ignore[attr-defined] - the tests' own
        late.sendall(BODY[10:])
        answer = late.recv(1000)
        assert b" 503 " in answer
        assert b"retry-after: " in answer
        assert server.engine.in_flight == 1


@pytest.mark.security("D1", "D9", "R12")
def test_the_bytes_of_bodies_that_are_being_read() -> None:
    assert Limits().bodies_bytes == 64 * 1024 * 1024
    server = make_server(limits=Limits(body_bytes=200_000, bodies_bytes=400_000))
    app = server.asgi(trusted_proxies=["127.0.0.1"])

    def read() -> int:
        return 400_000 - app._bodies._free

    with serve(app) as live, ExitStack() as held:
        first = begin(held, live, 200_000, b" " * 150_000)
        until(lambda: read() == 150_000)
        refused = begin(held, live, 200_000, b" " * 150_000).recv(1000)  # it has 300,000 then, and leaves 100,000
        assert b" 503 " in refused
        assert b"retry-after: " in refused
        assert read() == 150_000
        begin(held, live, 200_000, b" " * 100_000, "10.0.0.2")
        until(lambda: read() == 250_000)
        small = begin(held, live, len(BODY), BODY[:10])  # those are not counted
        small.sendall(BODY[10:])
        assert b" 200 " in small.recv(100)
        first.sendall(b" " * (50_000 - len(BODY)) + BODY)
        assert b" 503 " in first.recv(100)  # the other leaves it no more
        until(lambda: read() == 100_000)
        begin(held, live, 200_000, b" " * (200_000 - len(BODY)) + BODY, "10.0.0.3").recv(100)
        held.close()
        until(lambda: read() == 0)
        assert live.healthy()
