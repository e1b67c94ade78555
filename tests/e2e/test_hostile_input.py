"""Hostile input over a real socket: where a request comes from, what it is made of, how much of it there is."""

import asyncio
import json
import socket
import time

import aiohttp
import pytest

from support import PROTOCOL_VERSION_KEY, VERSION, Live, encode, headers_for, make_server, message, serve
from weft import Context, Server

BODY = encode(message("tools/list"))
HEADERS = headers_for(message("tools/list"))


def with_header(name: str, value: str | bytes) -> list[tuple[str, str | bytes]]:
    return [*[(key, kept) for key, kept in HEADERS if key.lower() != name.lower()], (name, value)]


# R1: nothing a handler raises ends the process.


@pytest.mark.security("R1")
@pytest.mark.parametrize("how", ["error", "exit", "interrupt", "base", "stop", "generator"])
def test_whatever_a_tool_raises_the_server_goes_on(live: Live, how: str) -> None:
    response = live.tool("fail", {"how": how})
    assert response.result["isError"] is True
    assert b"secret-password" not in response.body
    assert live.healthy()


@pytest.mark.security("R1")
@pytest.mark.parametrize("how", ["error", "exit", "interrupt", "base", "stop"])
def test_whatever_a_plain_tool_raises_the_server_goes_on(live: Live, how: str) -> None:
    response = live.tool("fail_in_thread", {"how": how})
    assert response.result["isError"] is True
    assert b"secret-password" not in response.body
    assert live.healthy()


@pytest.mark.security("R1")
def test_a_cancellation_that_nobody_asked_for_is_a_failure_like_others(live: Live) -> None:
    assert live.tool("fail", {"how": "cancelled"}).status == 200
    assert live.healthy()


@pytest.mark.security("R1")
@pytest.mark.parametrize(
    "raised", [SystemExit, KeyboardInterrupt, BaseException, GeneratorExit, RecursionError, MemoryError]
)
def test_whatever_resources_prompts_and_middleware_raise(raised: type[BaseException]) -> None:
    server = make_server()

    @server.resource("bad://resource")
    def resource() -> str:
        raise raised

    @server.prompt
    async def prompt() -> str:
        raise raised

    @server.middleware
    async def middleware(ctx: Context, next):
        if ctx.method == "server/discover":
            raise raised
        return await next()

    with serve(server) as live:
        assert live.call("resources/read", {"uri": "bad://resource"}).refusal == (200, -32603)
        assert live.call("prompts/get", {"name": "prompt"}).refusal == (200, -32603)
        assert live.call("server/discover").refusal == (200, -32603)
        assert live.healthy()


@pytest.mark.security("R1")
def test_a_result_that_cannot_be_encoded() -> None:
    server = make_server()

    @server.middleware
    async def middleware(ctx: Context, next):
        result = await next()
        if ctx.method == "prompts/list":
            result.meta = {"x": object()}
        return result

    with serve(server) as live:
        assert live.call("prompts/list").refusal == (200, -32603)
        assert live.healthy()


# R2: Host and Origin.

HOSTS = [
    ("127.0.0.1", 200),
    ("localhost:1", 200),
    ("LOCALHOST", 200),
    ("[::1]:8000", 200),
    ("127.9.9.9", 200),
    ("evil.example", 421),
    ("localhost.", 421),
    ("localhost.evil.example", 421),
    ("127.0.0.1.evil.example", 421),
    ("127.0.0.1@evil.example", 421),
    ("evil.example:80", 421),
    ("localhost, evil.example", 421),
    ("", 421),
    ("[::1", 421),
    ("0.0.0.0", 421),
    ("2130706433", 421),
    ("localhost/evil", 421),
]


@pytest.mark.security("R2", "D15")
@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_hosts(live: Live, host: str, status: int) -> None:
    response = live.send(BODY, with_header("Host", host))
    assert response.status == status
    if status != 200:
        assert "allowed_hosts" in response.error["message"]
        assert "id" not in response.json


ORIGINS = [
    ("http://localhost", 200),
    ("http://127.0.0.1:3000", 200),
    ("https://LOCALHOST", 200),
    ("http://[::1]:9", 200),
    ("http://evil.example", 403),
    ("http://localhost.", 403),
    ("http://localhost.evil.example", 403),
    ("null", 403),
    ("", 403),
    ("file://", 403),
    ("http://localhost@evil.example", 403),
    ("http://evil.example/localhost", 403),
    ("chrome-extension://localhost", 403),
    ("localhost", 403),
    ("http://localhost http://evil.example", 403),
]


@pytest.mark.spec("HTTP-02", "HTTP-03")
@pytest.mark.security("R2")
@pytest.mark.parametrize(("origin", "status"), ORIGINS)
def test_origins(live: Live, origin: str, status: int) -> None:
    response = live.send(BODY, with_header("Origin", origin))
    assert response.status == status
    if status != 200:
        assert "allowed_origins" in response.error["message"]
        assert "id" not in response.json


@pytest.mark.spec("HTTP-02", "HTTP-03")
@pytest.mark.security("R2")
@pytest.mark.parametrize("verb", ["GET", "DELETE", "OPTIONS", "POST"])
def test_the_origin_is_looked_at_before_everything_else(live: Live, verb: str) -> None:
    pairs = [("Origin", "http://evil.example"), ("Content-Type", "text/plain")]
    assert live.send(b"not json", pairs, verb=verb).status == 403


@pytest.mark.security("R2")
def test_a_public_host_is_served_when_it_is_named() -> None:
    with serve(make_server(), allowed_hosts=["api.example.com"], allowed_origins=["https://app.example.com"]) as live:
        good = with_header("Host", "api.example.com")
        assert live.send(BODY, good).status == 200
        assert live.send(BODY, HEADERS).status == 421
        assert live.send(BODY, [*good, ("Origin", "https://app.example.com")]).status == 200
        assert live.send(BODY, [*good, ("Origin", "http://app.example.com")]).status == 403


# R3: what a body is.


@pytest.mark.security("R3")
@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("application/json", 200),
        ("Application/JSON", 200),
        ("application/json; charset=utf-8", 200),
        ("application/json;charset=UTF-8", 200),
        ('application/json; charset="utf-8"', 200),
        ("application/json; x=y", 200),
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        ("text/plain; application/json", 415),
        ("application/json, text/plain", 415),
        ("application/json; charset=latin-1", 415),
        ("application/json; x=y; charset=utf-16", 415),
        ("multipart/form-data; boundary=application/json", 415),
    ],
)
def test_content_types(live: Live, value: str, status: int) -> None:
    assert live.send(BODY, with_header("Content-Type", value)).status == status


@pytest.mark.security("R3")
def test_a_body_needs_its_type(live: Live) -> None:
    assert live.send(BODY, [pair for pair in HEADERS if pair[0] != "Content-Type"]).status == 415


@pytest.mark.security("R3")
@pytest.mark.parametrize(
    ("value", "status"), [("identity", 200), ("gzip", 415), ("br", 415), ("identity, gzip", 415), ("x", 415)]
)
def test_content_encodings(live: Live, value: str, status: int) -> None:
    assert live.send(BODY, with_header("Content-Encoding", value)).status == status
    assert live.send(BODY, HEADERS).status == 200  # also when these headers have passed before
    assert live.send(BODY, with_header("Content-Encoding", value)).status == status


# R6: ids mean something only inside their own connection.


@pytest.mark.security("R6")
@pytest.mark.spec("STATE-02", "JRPC-06")
async def test_a_thousand_peers_may_all_use_id_0() -> None:
    server, here = make_server(), asyncio.Event()
    waiting = 0

    @server.tool
    async def meet(number: int) -> int:
        nonlocal waiting
        waiting += 1
        if waiting == 1000:
            here.set()
        await asyncio.wait_for(here.wait(), 30)
        return number

    async def one(session: aiohttp.ClientSession, number: int) -> int:
        body = message("tools/call", {"name": "meet", "arguments": {"number": number}}, id=0)
        async with session.post(url, data=encode(body), headers=dict(headers_for(body))) as response:
            answer = await response.json(content_type=None)
        assert answer["id"] == 0
        return answer["result"]["structuredContent"]

    with serve(server) as live:
        here = _LoopEvent(live)
        url = f"http://127.0.0.1:{live.port}/mcp"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            answers = await asyncio.gather(*(one(session, number) for number in range(1000)))
        assert answers == list(range(1000))
        assert await asyncio.to_thread(live.healthy)


class _LoopEvent:
    """An event of the server's loop, made when it is first needed there."""

    def __init__(self, live: Live) -> None:
        self._event: asyncio.Event | None = None

    def _made(self) -> asyncio.Event:
        self._event = self._event or asyncio.Event()
        return self._event

    def set(self) -> None:
        self._made().set()

    async def wait(self) -> None:
        await self._made().wait()


# R8: what the headers were checked against is what runs.


@pytest.mark.security("R8")
@pytest.mark.parametrize(("name", "status"), [("seat", 400), ("add", 200)])
def test_of_a_name_given_twice_the_one_that_was_checked_is_called(live: Live, name: str, status: int) -> None:
    body = message("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    raw = encode(body).replace(b'"name":"add"', b'"name":"seat","name":"add"')
    assert raw != encode(body)
    response = live.send(raw, headers_for(body, {"Mcp-Name": name}))
    assert response.status == status
    if status == 200:
        assert response.result["structuredContent"] == 3


@pytest.mark.security("R8")
@pytest.mark.parametrize(("region", "status"), [("us", 400), ("eu", 200)])
def test_of_an_argument_given_twice_the_one_that_was_checked_is_used(live: Live, region: str, status: int) -> None:
    body = message("tools/call", {"name": "region", "arguments": {"region": "eu"}})
    raw = encode(body).replace(b'"region":"eu"', b'"region":"us","region":"eu"')
    response = live.send(raw, headers_for(body, {"Mcp-Param-Region": region}))
    assert response.status == status
    if status == 200:
        assert response.result["content"][0]["text"] == "eu 0"


@pytest.mark.security("R8")
@pytest.mark.parametrize(("method", "status"), [("tools/list", 400), ("server/discover", 200)])
def test_of_a_method_given_twice_the_one_that_was_checked_runs(live: Live, method: str, status: int) -> None:
    body = message("server/discover")
    raw = encode(body).replace(b'"method":', b'"method":"tools/list","method":')
    response = live.send(raw, headers_for(body, {"Mcp-Method": method}))
    assert response.status == status
    assert status != 200 or "supportedVersions" in response.result


@pytest.mark.security("R8")
@pytest.mark.parametrize(("version", "status"), [("2031-01-01", 400), (VERSION, 200)])
def test_of_an_envelope_given_twice_the_one_that_was_checked_counts(live: Live, version: str, status: int) -> None:
    body = message("tools/list")
    raw = encode(body).replace(b'"_meta":', b'"_meta":{"' + PROTOCOL_VERSION_KEY.encode() + b'":"2031-01-01"},"_meta":')
    assert live.send(raw, headers_for(body, {"MCP-Protocol-Version": version})).status == status


@pytest.mark.security("R8")
@pytest.mark.parametrize("key", ["Method", "METHOD", "method\\u0000", "\uff4dethod"])
def test_keys_are_exact(live: Live, key: str) -> None:
    body = message("tools/list")
    raw = encode(body).replace(b'"method"', b'"%s"' % key.encode())
    assert live.send(raw, headers_for(body)).refusal == (400, -32600)


@pytest.mark.security("R8")
@pytest.mark.parametrize("key", ["Name", "NAME", "naMe"])
def test_keys_of_params_are_exact(live: Live, key: str) -> None:
    body = message("tools/call", {key: "add", "arguments": {"a": 1, "b": 2}})
    assert live.post(body, {"Mcp-Name": "add"}).refusal == (400, -32602)


# R14: headers that were sent twice.


@pytest.mark.security("R14")
@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "MCP-Protocol-Version",
        "Mcp-Method",
        "Mcp-Name",
        "Mcp-Session-Id",
        "Mcp-Param-Region",
        "Authorization",
        "Origin",
        "Content-Type",
        "mcp-unheard-of",
    ],
)
@pytest.mark.parametrize("same", [True, False])
def test_a_header_that_decides_comes_once(live: Live, name: str, same: bool) -> None:
    values = {
        "Host": "localhost",
        "Origin": "http://localhost",
        "Content-Type": "application/json",
        "Mcp-Method": "tools/list",
    }
    first = values.get(name, VERSION)
    pairs = [*with_header(name, first), (name.lower(), first if same else "evil.example")]
    assert live.send(BODY, pairs).status == 400


@pytest.mark.security("R14")
def test_a_path_is_taken_as_it_is_not_rebuilt(live: Live) -> None:
    for path in ("/other/../mcp", "/mcp/..", "/./mcp", "/mcp%00", "/mcp;x=1", "http://evil.example/mcp2"):
        assert live.send(BODY, HEADERS, path=path).status == 404, path


# What is cut short, and what is told of a failure.


@pytest.mark.security("R1")
def test_a_request_that_is_cut_short_is_not_run(live: Live) -> None:
    body = message("tools/call", {"name": "wait", "arguments": {"token": "cut"}})
    raw = encode(body)
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(body))
        connection.sendall(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(raw) + 9}\r\n\r\n".encode() + raw
        )
        time.sleep(0.05)
    time.sleep(0.05)
    assert live.server.log.of("cut") == []
    assert live.healthy()


@pytest.mark.security("D4")
def test_a_failure_in_debug_mode_tells_what_happened_and_otherwise_not() -> None:
    def failing(debug: bool) -> str:
        server = Server("failing", debug=debug)

        @server.tool
        async def fails() -> str:
            raise RuntimeError("the-reason")

        with serve(server) as live:
            return json.dumps(live.tool("fails").result)

    assert "the-reason" in failing(debug=True)
    assert "the-reason" not in failing(debug=False)
