"""Listen streams over a real socket: acknowledged first, filtered, tagged, kept alive, ended well, and bounded."""

import contextlib
import http.client
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import LOG_LEVEL_KEY, Live, Response, encode, headers_for, message, serve, start_request, until
from support.ports import find_port
from weft import Context, Limits, Server

TAG = "io.modelcontextprotocol/subscriptionId"
ACK = "notifications/subscriptions/acknowledged"
ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
LISTS = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}


def make(**options: Any) -> Server:
    server = Server("changing", **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def chatter(ctx: Context) -> str:
        await ctx.report_progress(1)
        await ctx.error("loud")
        return "done"

    server.add_prompt(lambda: "Hello", name="greet")
    server.add_resource("note://a", "A")
    return server


@pytest.fixture
def changing() -> Iterator[Live]:
    with serve(make()) as live:
        yield live


class Stream:
    """One open listen stream, read event by event."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.response = connection.getresponse()
        self.comments = 0

    def next(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        data = b""
        while line := self.response.readline():
            if line.startswith(b":"):
                self.comments += 1
            elif line.startswith(b"data:"):
                data += line[5:].strip()
            elif not line.strip() and data:
                return json.loads(data)
        return None

    def comment(self) -> None:
        """Wait for a sign of life."""
        while not self.response.readline().startswith(b":"):
            pass

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextlib.contextmanager
def listen(live: Live, notifications: Any, *, id: Any = 1, meta: Any = None) -> Iterator[Stream]:
    """An acknowledged stream. Its acknowledgement is `stream.ack`."""
    body = message("subscriptions/listen", {"notifications": notifications}, id=id, meta=meta)
    connection = live.connect()
    start_request(connection, encode(body), headers_for(body))
    stream = Stream(connection)
    try:
        assert stream.response.status == 200, stream.response.read()
        stream.ack = stream.next()  # type: ignore[attr-defined] - see above
        yield stream
    finally:
        stream.close()


def change(server: Server, kind: str) -> None:
    """Change one of the three lists, by registering something."""
    if kind == "tools":
        server.add_tool(lambda: "x", name="new")
        server.remove_tool("new")
    elif kind == "prompts":
        server.add_prompt(lambda: "x", name="new")
    else:
        server.add_resource("note://new", "x")


def tagged(method: str, id: Any, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": {TAG: id}}}


def same(got: Any, expected: Any) -> bool:
    """Equal as JSON: `1` is not `true` and `0` is not `""`."""
    return json.dumps(got, sort_keys=True) == json.dumps(expected, sort_keys=True)


# --- what is told


@pytest.mark.spec("SUB-03", "SUB-04", "SUB-05", "SUB-07", "SUB-08", "SUB-20", "META-09", "HTTP-19")
@pytest.mark.parametrize("id", [0, "", 7, "7", -3, "ü", "0"])
def test_the_id_comes_back_in_its_own_json_type(changing: Live, id: Any) -> None:
    with listen(changing, {"resourceSubscriptions": ["note://a"], **ALL}, id=id) as stream:
        assert stream.response.getheader("content-type").startswith("text/event-stream")
        assert stream.response.getheader("x-accel-buffering") == "no"
        assert same(stream.ack, tagged(ACK, id, notifications={**ALL, "resourceSubscriptions": ["note://a"]}))
        changing.server.notify_resource_updated("note://a")
        changing.server.notify_tools_changed()
        assert same(stream.next(), tagged("notifications/resources/updated", id, uri="note://a"))
        assert same(stream.next(), tagged("notifications/tools/list_changed", id))


@pytest.mark.spec("SUB-02", "SUB-17", "TOOL-05", "PRM-04", "RES-04")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
@pytest.mark.parametrize("other", [None, False])
def test_only_what_was_asked_for_is_told(changing: Live, kind: str, other: Any) -> None:
    wish = {name: name == LISTS[kind] or other for name in LISTS.values()}
    with listen(changing, {name: value for name, value in wish.items() if value is not None}) as stream:
        assert stream.ack["params"]["notifications"] == {LISTS[kind]: True}
        for changed in [name for name in LISTS if name != kind] + [kind]:
            change(changing.server, changed)
        changing.server.notify_resource_updated("note://a")
        assert stream.next() == tagged(f"notifications/{kind}/list_changed", 1)
        changing.server.engine.subscriptions._loop.call_soon_threadsafe(changing.server.engine.subscriptions.close)
        rest = [stream.next(), stream.next()]
        while rest[-1] is not None:  # tools were added and removed, which may be told once or twice
            assert rest.pop(0) == tagged(f"notifications/{kind}/list_changed", 1)
            rest.append(stream.next())
        assert "result" in rest[0]


@pytest.mark.spec("SUB-02", "SUB-18")
def test_resources_are_told_by_their_uri_only(changing: Live) -> None:
    found = changing.call("server/discover").result["capabilities"]["resources"]
    assert found == {"subscribe": True, "listChanged": True}
    with listen(changing, {"resourceSubscriptions": ["note://a", "note://unknown"]}) as stream:
        for uri in ("note://b", "note://", "note://a/b", "NOTE://a", "note://unknown", "note://a"):
            changing.server.notify_resource_updated(uri)
        changing.server.notify_resources_changed()
        assert [stream.next()["params"]["uri"] for _ in range(2)] == ["note://unknown", "note://a"]


@pytest.mark.spec("SUB-05")
@pytest.mark.parametrize(
    ("wish", "honoured"),
    [
        ({}, {}),
        ({**ALL, "resourceSubscriptions": ["note://a"]}, {"toolsListChanged": True}),
        ({"promptsListChanged": True}, {}),
        ({"toolsListChanged": False}, {}),
        ({"toolsListChanged": True, "taskIds": ["t"], "unheardOf": 1}, {"toolsListChanged": True}),
    ],
)
def test_what_the_server_does_not_have_is_left_out_of_the_acknowledgement(wish: Any, honoured: Any) -> None:
    server = Server("tools only")
    server.add_tool(lambda: "x", name="x")
    with serve(server) as live, listen(live, wish) as stream:
        assert stream.ack["params"]["notifications"] == honoured


@pytest.mark.spec("SUB-04", "SUB-07", "SUB-10")
def test_several_streams_each_hear_their_own(changing: Live) -> None:
    with (
        listen(changing, {"toolsListChanged": True}, id=1) as tools,
        listen(changing, {"toolsListChanged": True}, id="1") as again,
        listen(changing, {"promptsListChanged": True}, id=1) as prompts,
    ):
        assert len(changing.server.engine.subscriptions) == 3
        changing.server.notify_tools_changed()
        changing.server.notify_prompts_changed()
        assert same(tools.next(), tagged("notifications/tools/list_changed", 1))
        assert same(again.next(), tagged("notifications/tools/list_changed", "1"))
        assert same(prompts.next(), tagged("notifications/prompts/list_changed", 1))


@pytest.mark.spec("SUB-17")
def test_changes_made_in_any_thread_and_outside_of_a_call_are_told(changing: Live) -> None:
    with listen(changing, {"resourceSubscriptions": [f"note://{number}" for number in range(20)]}) as stream:
        threads = [
            threading.Thread(target=changing.server.notify_resource_updated, args=[f"note://{number}"])
            for number in range(20)
        ]
        for thread in threads:
            thread.start()
        assert {stream.next()["params"]["uri"] for _ in threads} == {f"note://{number}" for number in range(20)}


async def _talkative(ctx: Context, next: Any) -> Any:
    await ctx.report_progress(1)
    await ctx.error("before")
    try:
        return await next()
    finally:
        await ctx.report_progress(2)
        await ctx.error("after")


@pytest.mark.spec("HTTP-18", "SUB-04")
def test_neither_progress_nor_logs_get_onto_a_listen_stream() -> None:
    server = make(middleware=[_talkative])
    meta = {LOG_LEVEL_KEY: "debug", "progressToken": "p"}
    with serve(server) as live, listen(live, ALL, meta=meta) as stream:
        assert stream.ack["method"] == ACK
        heard = [one.get("method") for one in live.tool("chatter", meta=meta).messages]
        assert {"notifications/progress", "notifications/message"} < set(heard)
        server.notify_tools_changed()
        assert stream.next() == tagged("notifications/tools/list_changed", 1)
        server.engine.subscriptions._loop.call_soon_threadsafe(server.engine.subscriptions.close)
        assert "result" in stream.next()


@pytest.mark.parametrize(
    "notifications", [None, [], "x", {"toolsListChanged": 1}, {"resourceSubscriptions": "note://a"}]
)
def test_a_wish_without_its_shape_is_refused(changing: Live, notifications: Any) -> None:
    params = {} if notifications is None else {"notifications": notifications}
    response = changing.call("subscriptions/listen", params)
    assert response.refusal == (400, -32602)
    assert len(changing.server.engine.subscriptions) == 0


@pytest.mark.spec("SUB-20")
def test_a_client_that_takes_no_stream_is_told_so(changing: Live) -> None:
    body = message("subscriptions/listen", {"notifications": ALL})
    response = changing.post(body, {"Accept": "application/json"})
    assert response.refusal == (400, -32600)
    assert "text/event-stream" in response.error["message"]
    assert len(changing.server.engine.subscriptions) == 0


# --- how it lives and ends


@pytest.mark.spec("HTTP-20")
def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    server = make(limits=Limits(keep_alive_seconds=0.05))
    with serve(server) as live, listen(live, ALL) as stream:
        for _ in range(3):
            stream.comment()
        server.notify_tools_changed()
        assert stream.next() == tagged("notifications/tools/list_changed", 1)
        stream.comment()
    assert Limits().keep_alive_seconds == 15


@pytest.mark.spec("SUB-12")
@pytest.mark.parametrize("id", [0, "", "x"])
def test_the_server_ends_a_stream_with_its_result(changing: Live, id: Any) -> None:
    with listen(changing, ALL, id=id) as stream:
        changing.server.engine.subscriptions._loop.call_soon_threadsafe(changing.server.engine.subscriptions.close)
        ended = stream.next()
        assert same(ended["id"], id)
        assert ended["result"]["resultType"] == "complete"
        assert same(ended["result"]["_meta"][TAG], id)
        assert stream.next() is None
        until(lambda: len(changing.server.engine.subscriptions) == 0)


@pytest.mark.spec("SUB-12", "SUB-14")
def test_what_is_still_to_be_told_comes_before_the_end(changing: Live) -> None:
    def at_once() -> None:
        changing.server.notify_tools_changed()
        loop.call_soon(changing.server.engine.subscriptions.close)

    with listen(changing, ALL) as stream:
        loop = changing.server.engine.subscriptions._loop
        loop.call_soon_threadsafe(at_once)
        assert stream.next() == tagged("notifications/tools/list_changed", 1)
        assert "result" in stream.next()
        assert stream.next() is None  # and no notifications/cancelled: the stream has ended by itself


@pytest.mark.spec("SUB-11")
def test_a_client_that_goes_away_has_ended_its_stream(changing: Live) -> None:
    with listen(changing, ALL) as stays:
        with listen(changing, ALL):
            assert len(changing.server.engine.subscriptions) == 2
        until(lambda: len(changing.server.engine.subscriptions) == 1)
        changing.server.notify_tools_changed()
        assert stays.next() == tagged("notifications/tools/list_changed", 1)
    until(lambda: len(changing.server.engine.subscriptions) == 0)
    until(lambda: changing.server.engine.in_flight == 0)
    assert changing.healthy()


PROGRAM = """
from weft import Limits, Server
server = Server("program", limits=Limits(drain_seconds=60))
server.add_tool(lambda: "x", name="x")
server.run("http", port={port})
"""


@contextlib.contextmanager
def running(program: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program with a server in a process of its own, and the port it serves."""
    port = find_port()
    (tmp_path / "program.py").write_text(program.format(port=port))
    child = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], stderr=subprocess.PIPE)
    try:
        while b"http" not in (line := child.stderr.readline()):
            assert line, "it did not start"
        yield child, port
    finally:
        child.kill()
        child.communicate()


def opened(port: int) -> Stream:
    body = message("subscriptions/listen", {"notifications": ALL})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    start_request(connection, encode(body), headers_for(body))
    stream = Stream(connection)
    assert stream.next()["method"] == ACK
    return stream


@pytest.mark.spec("SUB-12")
@pytest.mark.security("D15")
def test_a_server_that_is_stopped_ends_its_streams_first(tmp_path: Path) -> None:
    with running(PROGRAM, tmp_path) as (child, port):
        stream = opened(port)
        child.send_signal(signal.SIGTERM)
        assert stream.next()["result"]["_meta"][TAG] == 1
        assert stream.next() is None
        stream.close()
        assert child.wait(30) == 0


@pytest.mark.spec("SUB-12")
@pytest.mark.security("D15")
def test_a_stream_that_is_asked_for_while_the_server_stops_is_ended_at_once(tmp_path: Path) -> None:
    with running(PROGRAM, tmp_path) as (child, port):
        early = opened(port)
        body = message("subscriptions/listen", {"notifications": ALL}, id=2)
        data = encode(body)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        head = [*headers_for(body), ("Content-Length", str(len(data)))]
        start_request(connection, data[:-1], head)  # begun before the end
        opened(port).close()  # by now it has been read
        child.send_signal(signal.SIGTERM)
        assert "result" in early.next()
        connection.send(data[-1:])
        late = Stream(connection)
        assert late.next()["method"] == ACK
        assert late.next()["result"]["_meta"][TAG] == 2
        assert late.next() is None
        late.close()
        early.close()
        assert child.wait(30) == 0  # and not only after `drain_seconds`


MOUNTED = """
import contextlib, signal
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from weft import Server

server = Server("program")
server.add_tool(lambda: "x", name="x")
mcp = server.asgi("/mcp")

@contextlib.asynccontextmanager
async def lifespan(app):
    before = {{number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}}

    def stop(number, frame):
        mcp.close_streams()
        before[number](number, frame)

    for number in before:
        signal.signal(number, stop)
    yield

app = Starlette(routes=[Mount("/", mcp)], lifespan=lifespan)
uvicorn.run(app, port={port}, loop="{loop}", log_level="info")
"""


@pytest.mark.spec("SUB-12")
@pytest.mark.parametrize(("loop", "number"), [("asyncio", signal.SIGTERM), ("uvloop", signal.SIGINT)])
def test_under_another_server_the_app_ends_its_streams_when_it_is_told_to(
    tmp_path: Path, loop: str, number: signal.Signals
) -> None:
    with running(MOUNTED.replace("{loop}", loop), tmp_path) as (child, port):
        streams = [opened(port) for _ in range(3)]
        child.send_signal(number)
        for stream in streams:
            assert stream.next()["result"]["_meta"][TAG] == 1
            assert stream.next() is None
            stream.close()
        child.wait(30)  # with whatever code uvicorn has for that


# --- bounds


@pytest.mark.security("D10", "R12")
def test_the_streams_of_one_address() -> None:
    assert Limits().listen_streams_per_peer == 16
    with serve(make(limits=Limits(listen_streams_per_peer=2))) as live, listen(live, ALL), listen(live, ALL) as second:
        refused = _listen_once(live)
        assert refused.refusal == (503, -32603)
        assert int(refused.headers["retry-after"]) >= 1
        assert "You have 2 streams open already" in refused.error["message"]
        second.close()
        until(lambda: len(live.server.engine.subscriptions) == 1)
        with listen(live, ALL):
            assert live.healthy()


@pytest.mark.security("D10", "R12")
def test_all_streams() -> None:
    assert Limits().listen_streams == 1024
    with serve(make(limits=Limits(listen_streams=2))) as live, listen(live, ALL), listen(live, ALL) as second:
        refused = _listen_once(live)
        assert refused.refusal == (503, -32603)
        assert int(refused.headers["retry-after"]) >= 1
        assert "2 streams are open already" in refused.error["message"]
        second.close()
        until(lambda: len(live.server.engine.subscriptions) == 1)
        with listen(live, ALL):
            assert live.healthy()


@pytest.mark.security("D10", "D7", "R12")
def test_the_uris_of_one_stream() -> None:
    assert Limits().listen_uris == 1024
    with serve(make(limits=Limits(listen_uris=3, uri_bytes=10))) as live:
        with listen(live, {"resourceSubscriptions": ["note://a", "note://b", "note://ccc"]}) as stream:
            assert stream.ack["method"] == ACK
        for wish in (["note://a"] * 4, ["note://cccc"], ["note://éé"]):
            assert _listen_once(live, {"resourceSubscriptions": wish}).error["code"] == -32602


@pytest.mark.security("D10", "D7", "R12")
def test_the_bytes_of_the_uris_of_one_stream() -> None:
    with serve(make(limits=Limits(listen_uris_bytes=20))) as live:
        with listen(live, {"resourceSubscriptions": ["note://a", "note://é456"]}) as stream:
            assert stream.ack["method"] == ACK
        refused = _listen_once(live, {"resourceSubscriptions": ["note://a", "note://é4567"]})
        assert refused.error["code"] == -32602
        assert "20 bytes" in refused.error["message"]


@pytest.mark.security("D9")
def test_open_streams_are_not_counted_as_requests_in_flight() -> None:
    with serve(make(limits=Limits(in_flight=2))) as live, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(listen(live, ALL))
        assert live.healthy()


def _listen_once(live: Live, wish: Any = ALL) -> Response:
    return live.call("subscriptions/listen", {"notifications": wish})


@pytest.fixture
def unfinished() -> Iterator[None]:
    """An answer that is cut is none that uvicorn calls complete; that it says so is no fault of the app."""
    log = logging.getLogger("uvicorn.error")

    def is_news(record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()

    log.addFilter(is_news)
    yield
    log.removeFilter(is_news)


@pytest.mark.security("D10", "R12")
@pytest.mark.usefixtures("unfinished")
def test_a_listener_that_does_not_read_is_bounded_and_cut_and_hurts_no_other() -> None:
    uris = ["note://" + f"{number:03}" * 1000 for number in range(300)]
    server = make(limits=Limits(write_seconds=0.3, listen_uris_bytes=1024 * 1024))
    body = message("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(body))
    with serve(server) as live, listen(live, ALL) as other, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", live.port))
        data = encode(body)
        deaf.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode())
        deaf.sendall(data)
        until(lambda: len(server.engine.subscriptions) == 2)
        slow = list(server.engine.subscriptions._streams)[1]
        most = 0

        def cut() -> bool:
            nonlocal most
            for uri in uris:
                server.notify_resource_updated(uri)
            most = max(most, len(slow.inbox))
            return len(server.engine.subscriptions) == 1

        until(cut, 20)
        assert 0 < most <= len(uris)
        server.notify_tools_changed()
        assert other.next() == tagged("notifications/tools/list_changed", 1)
        assert live.healthy()
        while deaf.recv(1 << 20):  # what was sent before it was cut, and then the end
            pass
