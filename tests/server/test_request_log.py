"""The request log: a line for each call and refusal at `info`, the wire at `debug`, secrets in neither."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import encode, headers_for, message, serve
from weft import Client, Context, Extension, Limits, Server, ToolError
from weft.auth import ResourceServer, StaticTokens, TokenInfo
from weft.protocol.revisions import Method
from weft.server.http.app import HttpApp
from weft.server.run.running import set_up_logging
from weft.server.runtime.dispatch import Dispatcher
from weft.server.runtime.request_log import LoggedDispatcher
from weft.server.stdio.pipe import _LoggedWriter
from weft.types.base import EmptyResult, Result
from weft.types.lifecycle import RequestParams

TOKEN = "t0ken-of-ann-that-is-secret"
MS = re.compile(r"\d+\.\d ms")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the request log says, times replaced."""

    class Lines(list[str]):
        def now(self) -> list[str]:
            said = [MS.sub("# ms", one.getMessage()) for one in caplog.records if one.name == "weft.server"]
            caplog.clear()
            return said

    with caplog.at_level(logging.INFO, "weft.server"):
        yield Lines()


def shop(**options: Any) -> Server:
    server = Server("shop", **options)

    @server.tool
    def price(item: str) -> int:
        return len(item)

    @server.tool
    def broken() -> str:
        raise ToolError("The till is stuck.")

    @server.tool
    def crash() -> str:
        raise KeyError("secret-of-the-till")

    @server.tool(scopes=["write"])
    def write() -> str:
        return "written"

    @server.resource("stock://{fruit}")
    def stock(fruit: str) -> str:
        return fruit

    return server


def test_a_line_for_each_call_and_none_of_its_arguments(lines: Any) -> None:
    with serve(shop()) as live:
        live.tool("price", {"item": "secret-tea"})
        live.tool("broken")
        live.call("tools/list")
        live.call("resources/read", {"uri": "stock://apple"})
        live.tool("no such\ntool \x1b[2J")
        live.call("nothing/there")
    assert lines.now() == [
        "tools/call price stateless 200 # ms",
        "tools/call broken stateless 200/isError # ms",
        "tools/list - stateless 200 # ms",
        "resources/read stock://apple stateless 200 # ms",
        "tools/call no_such?tool_?[2J stateless 200/-32602 # ms",
        "refused nothing/there stateless 404/-32601: Method not found",
    ]


async def test_the_line_of_a_session_and_of_a_pipe(lines: Any) -> None:
    server = shop()
    async with Client(server, eras=["session"]) as client:
        await client.call_tool("price", {"item": "secret-tea"})
    async with Client(server, eras=["stateless"]) as client:
        await client.call_tool("price", {"item": "secret-tea"})
    said = lines.now()
    assert "initialize - session ok # ms" in said
    assert "tools/call price session ok # ms" in said
    assert "tools/call price stateless ok # ms" in said
    assert "secret-tea" not in "".join(said)


async def test_a_call_that_asks_is_one_line_a_round(lines: Any) -> None:
    server = Server("asking")

    @server.tool
    async def order(ctx: Context) -> str:
        form = {"type": "object", "properties": {"tea": {"type": "string"}}}
        return str((await ctx.elicit("Which tea?", form)).accepted)

    async with Client(server, eras=["stateless"], elicit=lambda _: {"tea": "secret-tea"}) as client:
        await client.call_tool("order")
    assert lines.now()[-2:] == ["tools/call order stateless asks # ms", "tools/call order stateless ok # ms"]


async def test_a_call_that_is_given_up(lines: Any) -> None:
    server = Server("slow")

    @server.tool
    async def wait() -> None:
        await asyncio.sleep(60)

    async with Client(server) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.call_tool("wait")
    assert "tools/call wait stateless cancelled # ms" in lines.now()


def protected(**limits: Any) -> Server:
    auth = ResourceServer(
        "http://127.0.0.1:9/mcp",
        authorization_servers=["http://127.0.0.1:9"],
        verifier=StaticTokens({TOKEN: TokenInfo("ann o'hara", scopes=frozenset({"read"}))}),
    )
    return shop(auth=auth, limits=Limits(**limits))


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_uri_is_logged_without_its_query(lines: Any, caplog: pytest.LogCaptureFixture, level: int) -> None:
    server = shop()

    @server.resource("db://{table}{?token}")
    def rows(table: str, token: str) -> str:
        return table

    with caplog.at_level(level, "weft.server"), serve(server) as live:
        assert live.call("resources/read", {"uri": "db://users?token=s3cret"}).status == 200
        live.call("resources/read", {"uri": "base://me:s3cret@host/ü?token=s3cret"})  # in base64 in the header
        live.call("completion/complete", {"ref": {"type": "ref/prompt", "name": "a://b?s3cret"}, "argument": {}})
        said = "\n".join(lines.now())
    assert "resources/read db://users?*** stateless 200 # ms" in said
    assert "resources/read base://***@host/ü?*** stateless 200/-32602 # ms" in said
    assert "s3cret" not in said
    assert "czNjcmV0" not in said  # nor in base64
    if level == logging.DEBUG:
        assert "mcp-name: db://users?***" in said.lower()
        assert '"uri":"db://users?***"' in said


DECLARED = {"com.example/counting": {}}


class Numbered(RequestParams):
    number: int


class Counting(Extension):
    id = "com.example/counting"

    def methods(self) -> Any:
        async def count(_call: Any) -> Result:
            return EmptyResult()

        return [(Method("count/to", Numbered, mirrored="number"), count)]


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_name_that_is_no_text_does_not_keep_the_answer_back(lines: Any, mode: Any) -> None:
    async with (
        asyncio.timeout(10),
        Client(Server("s", extensions=[Counting()]), eras=[mode], extensions=DECLARED) as client,
    ):
        await client.request("count/to", {"number": 7})
    assert f"count/to 7 {mode} ok # ms" in lines.now()


@pytest.mark.parametrize("mode", ["stateless", "session"])
async def test_a_name_that_is_no_text_is_answered_over_http(lines: Any, mode: Any) -> None:
    with serve(Server("s", extensions=[Counting()])) as live:
        async with Client(f"http://127.0.0.1:{live.port}/mcp", eras=[mode], extensions=DECLARED) as client:
            await client.request("count/to", {"number": 7}, mirrored="number")
    assert f"count/to 7 {mode} 200 # ms" in lines.now()


def test_who_calls_and_who_may_not(lines: Any) -> None:
    with serve(protected()) as live:
        good = {"Authorization": f"Bearer {TOKEN}"}
        live.tool("price", {"item": "tea"}, headers=good)
        assert live.tool("write", headers=good).status == 403
        assert live.tool("price", {"item": "tea"}).status == 401
        assert live.tool("price", {"item": "tea"}, headers={"Authorization": "Bearer wr0ng-secret"}).status == 401
        said = lines.now()
    assert said[0] == "tools/call price stateless 200 # ms ann_o'hara"
    assert said[1].startswith("tools/call write stateless 403/")
    assert said[1].endswith(" ann_o'hara")
    assert said[2].startswith("refused POST /mcp 401 127.0.0.1: ")
    assert said[3].startswith("refused POST /mcp 401 127.0.0.1: ")
    assert len(said) == 4
    assert TOKEN not in "".join(said)
    assert "wr0ng" not in "".join(said)


def test_refusals_by_http(lines: Any) -> None:
    body = message("tools/list")
    with serve(shop(), allowed_origins=["https://a.example"]) as live:
        live.send(encode(body), headers_for(body), path="/other?key=s3cret")
        live.send(encode(body), headers_for(body, {"Host": "evil.example"}))
        live.send(encode(body), headers_for(body, {"Origin": "https://evil.example\t\x9b"}))
        live.send(encode(body), headers_for(body), verb="PUT")
        live.send(b"{", headers_for(body))
        live.send(encode(body), headers_for(body, {"Mcp-Method": "tools/call"}))
        said = lines.now()
    assert said[0] == "refused POST /other 404 127.0.0.1: There is nothing at this path: the MCP endpoint is /mcp."
    assert said[1].startswith("refused POST /mcp 421 127.0.0.1: ")
    assert said[1].endswith("add it to allowed_hosts=. On the command line, this is --allow-host NAME.")
    assert said[2].startswith("refused POST /mcp 403 127.0.0.1: ")
    assert "\t" not in said[2]
    assert said[3].startswith("refused PUT /mcp 405 127.0.0.1: ")
    assert said[4].startswith("refused POST /mcp 400 127.0.0.1: Parse error")
    assert said[5].startswith("refused tools/list stateless 400/-32020: ")
    assert len(said) == 6


async def test_lines_that_are_no_messages(lines: Any) -> None:
    pipe = shop().pipe(lambda _: None)
    for line in (b"{", b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"a":"secret"}}}'):
        pipe.send(line)
    await asyncio.sleep(0.05)
    await pipe.close()
    said = lines.now()
    assert said[0].startswith("refused a message - -32700: Parse error")
    assert said[1].startswith("refused tools/call ")
    assert "secret" not in "".join(said)


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO, logging.DEBUG])
async def test_it_is_decided_when_the_parts_are_put_together(caplog: pytest.LogCaptureFixture, level: int) -> None:
    with caplog.at_level(level, "weft.server"):
        server = shop()
        made: Any = type(server.engine.dispatcher)
        assert made is (Dispatcher if level == logging.WARNING else LoggedDispatcher)
        assert (type(server.asgi()) is HttpApp) is (level != logging.DEBUG)


# At debug, the wire.


def test_the_wire_of_http_with_its_secrets_masked(lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = protected()

    @server.tool
    async def count(ctx: Context) -> dict[str, str]:
        await ctx.report_progress(1, 2)
        return {"access_token": "made-s3cret", "tea": "sencha"}

    with caplog.at_level(logging.DEBUG, "weft.server"), serve(server) as live:
        headers = {"Authorization": f"Bearer {TOKEN}", "Cookie": "sid=s3cret", "X-Api-Key": "s3cret"}
        live.tool("price", {"item": "sencha", "password": "s3cret"}, headers=headers)
        live.tool("count", {}, headers=headers, meta={"progressToken": 7})
        params = {"name": "price", "arguments": {"item": "tea"}, "requestState": "s3cret", "inputResponses": {}}
        live.call("tools/call", params, headers=headers)
        live.send(b"", [("Authorization", "Bearer s3cret")], verb="GET", path="/mcp?access_token=s3cret")
        said = "\n".join(lines.now())
    assert "s3cret" not in said
    assert TOKEN not in said
    assert '"item":"sencha","password":"***"' in said
    assert "Authorization: ***" in said or "authorization: ***" in said
    assert "< POST /mcp [" in said
    assert "> 200 [content-type: application/json" in said
    assert "> 200 [content-type: text/event-stream" in said
    assert '"method":"notifications/progress"' in said
    assert '"access_token":"***","tea":"sencha"' in said
    assert "< GET /mcp?*** [" in said
    assert "> 400 [" in said


def test_a_body_in_pieces_is_masked_as_a_whole(lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    body = encode(message("tools/call", {"name": "price", "arguments": {"item": "sencha", "password": "s3cret-long"}}))
    cut = body.index(b"s3cret") + 3
    with caplog.at_level(logging.DEBUG, "weft.server"), serve(shop()) as live:
        connection = live.connect()
        pairs = [*headers_for(json.loads(body)), ("Content-Length", str(len(body)))]
        connection.putrequest("POST", "/mcp", skip_accept_encoding=True)
        for name, value in pairs:
            connection.putheader(name, value)
        connection.endheaders(body[:cut])
        time.sleep(0.2)
        connection.send(body[cut:])
        assert connection.getresponse().read()
        connection.close()
        said = "\n".join(lines.now())
    assert "ret-long" not in said
    assert '"password":"***"' in said


async def test_the_wire_of_a_pipe(lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "weft.server"):
        async with Client(shop()) as client:
            await client.call_tool("price", {"item": "tea"})
    said = lines.now()
    assert [line for line in said if line.startswith("< {") and '"method":"tools/call"' in line]
    assert [line for line in said if line.startswith("> {") and '"structuredContent":3' in line]


def test_lines_are_written_together_also_if_they_are_logged() -> None:
    sent: list[tuple[str, bytes]] = []

    class Writer:
        def send(self, line: bytes) -> None:
            sent.append(("soon", line))

        def send_now(self, line: bytes) -> None:
            sent.append(("now", line))

        async def drained(self) -> None: ...

    writer = _LoggedWriter(Writer())
    writer.send(b"1")
    writer.send_now(b"2")
    assert sent == [("soon", b"1"), ("now", b"2")]


# As a person sees it.

SCRIPT = """
import logging, sys
from weft import Server
server = Server("shop")
log = logging.getLogger("shop.till")

@server.tool
def price(item: str) -> int:
    log.info("looking up a price")
    logging.getLogger().debug("by the root")
    log.debug("by the till")
    for name in ("httpx", "httpcore.http11", "aiohttp.client", "urllib3.connectionpool", "asyncio", "uvicorn.error"):
        logging.getLogger(name).debug("Authorization: s3cret")
    return 3
"""


def run(folder: Path, *arguments: str, script: str = SCRIPT) -> str:
    """The stderr of a server on stdio that was called once."""
    (folder / "shop.py").write_text(script)
    line = json.dumps(message("tools/call", {"name": "price", "arguments": {"item": "secret-tea"}}))
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, input=line + "\n", capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["result"]["structuredContent"] == 3
    return done.stderr


def test_on_stdio_it_is_asked_for(tmp_path: Path) -> None:
    weft = ["-m", "weft", "run", "shop.py"]
    assert run(tmp_path, *weft) == ""
    said = MS.sub("# ms", run(tmp_path, *weft, "--log-level", "info")).splitlines()
    assert [line.split(" ", 1)[1] for line in said] == [
        "INFO shop.till: looking up a price",
        "INFO weft.server: tools/call price stateless ok # ms",
    ]
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in said)
    debug = run(tmp_path, *weft, "--log-level", "debug")
    assert "DEBUG root: by the root" in debug
    assert "DEBUG shop.till: by the till" in debug
    assert "s3cret" not in debug  # what other libraries write is not masked
    assert "DEBUG weft.server: < {" in debug
    assert '"item":"secret-tea"' in debug


def test_a_program_that_has_arranged_its_logging_is_left_alone(tmp_path: Path) -> None:
    script = "import logging\nlogging.basicConfig(format='mine %(message)s', level='INFO')\n" + SCRIPT
    said = MS.sub("# ms", run(tmp_path, "-m", "weft", "run", "shop.py", script=script))
    assert said == "mine looking up a price\nmine tools/call price stateless ok # ms\n"
    quiet = script.replace("INFO", "WARNING")
    assert run(tmp_path, "-m", "weft", "run", "shop.py", script=quiet) == ""
    asked = run(tmp_path, "-m", "weft", "run", "shop.py", "--log-level", "info", script=quiet)
    assert MS.sub("# ms", asked) == "mine tools/call price stateless ok # ms\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_over_http_there_is_a_line_for_each_call_by_default(tmp_path: Path, workers: str) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", "run", "shop.py", "--http", "--port", "0", "--workers", workers],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []

    def listen() -> None:
        for line in process.stderr or ():
            said.append(MS.sub("# ms", line))  # noqa: PERF401 - one by one, as they come

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not any(" at http" in line for line in said) and time.monotonic() < deadline:
            time.sleep(0.05)
        url = next(line for line in said if " at http" in line).split(" at ")[1].split()[0]
        command = [sys.executable, "-m", "weft", "call", url, "price", '{"item": "secret-tea"}']
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        thread.join(30)
        if process.stderr is not None:
            process.stderr.close()
    told = "".join(said)
    assert " INFO weft.server: server/discover - stateless 200 # ms\n" in told
    assert " INFO shop.till: looking up a price\n" in told
    assert " INFO weft.server: tools/call price stateless 200 # ms\n" in told
    assert "secret-tea" not in told


def test_a_level_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = {name: logging.getLogger(name).level for name in ("", "weft", "uvicorn", "asyncio", "httpx")}
    try:
        logging.getLogger("httpx").setLevel(logging.DEBUG)
        set_up_logging("debug")
        assert root.level == logging.DEBUG
        assert [logging.getLogger(name).level for name in ("uvicorn", "asyncio")] == [logging.WARNING, logging.INFO]
        assert logging.getLogger("httpx").level == logging.DEBUG  # which the program wants to see
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
