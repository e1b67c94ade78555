"""What Weft uses of other packages without a promise: it is all listed, still there, and not needed."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import logging
import re
from asyncio import tasks
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httptools
import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn import config as uvicorn_config
from uvicorn.logging import AccessFormatter
from uvicorn.protocols.http import h11_impl, httptools_impl

import weft
from support.wire import serve
from weft import Server
from weft.client.http import wire
from weft.server.calls import execution as eager
from weft.server.http import uvicorn_protocol
from weft.server.run import development, running
from weft.server.run.listening import HttpOptions, bind

SOURCE = Path(weft.__path__[0])
DESIGN = (Path(__file__).parent.parent / "docs" / "design.md").read_text()
TITLE = "## What Weft touches of others that is not public\n"

# Documented, though their names begin with an underscore.
DOCUMENTED = {"_replace", "_exit", "_current_frames"}


def names_of_others() -> dict[str, str]:
    """The private names that the source uses and does not define, with a place for each."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    own: set[str] = set()
    used: dict[str, str] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Attribute):
                used.setdefault(node.attr, f"{path.relative_to(SOURCE)}:{node.lineno}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
                name = node.args[1]
                if isinstance(name, ast.Constant):
                    used.setdefault(name.value, f"{path.relative_to(SOURCE)}:{node.lineno}")
    found = {name: place for name, place in used.items() if re.match(r"_[^_]", name)}
    read_by_name = {"_enter_task", "_leave_task"}  # the source has variables of the same names
    return {name: place for name, place in found.items() if name not in own or name in read_by_name}


def test_every_private_name_of_others_is_in_the_table() -> None:
    table = DESIGN.partition(TITLE)[2].partition("\n## ")[0]
    assert table, f"docs/design.md has no section {TITLE!r}"
    found = names_of_others()
    assert "_fmt" in found  # or nothing was looked at
    missing = {name: place for name, place in found.items() if name not in DOCUMENTED and f"`{name}`" not in table}
    assert missing == {}, "list them in docs/design.md, with a fallback and a test"


def test_the_table_names_tests_that_exist() -> None:
    table = DESIGN.partition(TITLE)[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    assert len(rows) >= 10
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.rpartition(" | ")[2])
        assert named, row
        for name in named:
            assert any(f"def {name}(" in path.read_text() for path in Path(__file__).parent.rglob("test_*.py")), name


# asyncio.


def test_asyncio_has_the_functions_for_implementers_of_tasks() -> None:
    assert hasattr(tasks, "_enter_task"), "asyncio has no _enter_task any more: coroutines on pipes start a task each"
    assert hasattr(tasks, "_leave_task"), "asyncio has no _leave_task any more: coroutines on pipes start a task each"


async def test_without_them_a_coroutine_is_started_as_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_enter_task", None)
    starter = eager.EagerTaskStarter(asyncio.get_running_loop())
    await starter.warm_up()
    task = starter.start(asyncio.sleep(0, "done"))
    assert task is not None
    assert await task == "done"
    await starter.close()


async def test_without_them_a_client_on_a_pipe_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_leave_task", None)
    server = Server("s")

    @server.tool
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async with weft.Client(server) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured == 3


async def sizes_of_reads(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Call a tool over HTTP; return `max_size` of the transports of the client, None where there is none."""
    transports: list[Any] = []
    made = aiohttp.client_proto.ResponseHandler.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        transports.append(transport)
        made(self, transport)

    monkeypatch.setattr(aiohttp.client_proto.ResponseHandler, "connection_made", connection_made)
    server = Server("s")

    @server.tool
    def double(n: int) -> int:
        return 2 * n

    with serve(server) as live:
        async with weft.Client(f"http://127.0.0.1:{live.port}/mcp") as client:
            assert (await client.call_tool("double", {"n": 2})).structured == 4
    return [getattr(transport, "max_size", None) for transport in transports]


async def test_asyncio_has_the_size_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "asyncio has no max_size any more: in some layouts of the heap the HTTP client is slower"
    assert await sizes_of_reads(monkeypatch) == [wire._READ_BYTES], told


def test_without_the_size_of_a_read_calls_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the transports of uvloop have no such size
        assert runner.run(sizes_of_reads(monkeypatch)) == [None]


# uvicorn: its protocol classes.


def test_uvicorn_has_the_attributes_that_the_guards_need() -> None:
    told = "uvicorn has renamed them: weft.server.http.uvicorn_protocol falls back to the next class"
    for module, name, needed in (
        (httptools_impl, "HttpToolsProtocol", uvicorn_protocol.HTTPTOOLS_NAMES),
        (h11_impl, "H11Protocol", uvicorn_protocol.GUARDED_NAMES),
    ):
        classes = getattr(module, name), module.RequestResponseCycle
        missing = needed - {found for kind in classes for found in uvicorn_protocol._names_of(kind)}
        assert missing == set(), told


class Renamed(asyncio.Protocol):
    """A protocol class of a uvicorn to come, with other attributes."""


def test_without_the_attributes_the_other_parser_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = weft.Limits()
    quickest = uvicorn_protocol.guarded_protocol(limits)
    assert quickest is not None
    assert issubclass(quickest, httptools_impl.HttpToolsProtocol)
    monkeypatch.setattr(httptools_impl, "HttpToolsProtocol", Renamed)
    other = uvicorn_protocol.guarded_protocol(limits)
    assert other is not None
    assert issubclass(other, h11_impl.H11Protocol)
    monkeypatch.delattr(h11_impl, "RequestResponseCycle")
    assert uvicorn_protocol.guarded_protocol(limits) is None


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    return answer


async def test_without_any_guard_uvicorn_serves_and_the_log_tells_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "guarded_protocol", lambda limits: None)
    listener = bind("127.0.0.1", 0)
    started = asyncio.Event()
    options = HttpOptions(port=listener.getsockname()[1])
    http = running._http_server(Server("s").engine, options, started.set)
    assert "is not known to Weft" in caplog.text
    task = asyncio.create_task(http.serve(sockets=[listener]))
    await started.wait()
    assert (await ask(options.port)).startswith(b"HTTP/1.1 404")
    http.should_exit = True
    await task
    listener.close()


def test_uvicorn_has_the_fields_of_a_cycle_that_is_answered_at_once() -> None:
    names = uvicorn_protocol._names_of(httptools_impl.RequestResponseCycle)
    names |= uvicorn_protocol._names_of(httptools_impl.HttpToolsProtocol)
    written = {"response_started", "response_complete", "waiting_for_100_continue", "message_event", "on_response"}
    read = {"disconnected", "flow", "write_paused", "keep_alive", "default_headers", "access_log", "access_logger"}
    missing = written | read | {"pipeline"}
    missing -= names
    assert missing == set(), "uvicorn has renamed them: answers take two writes in place of one"


@pytest.mark.parametrize("name", ["response_started", "response_complete", "waiting_for_100_continue", "flow"])
def test_a_cycle_without_such_a_field_gets_the_messages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class RequestResponseCycle:
        def __init__(self) -> None:
            self.response_started = self.response_complete = self.disconnected = False
            self.waiting_for_100_continue = self.access_log = False
            self.keep_alive = True
            self.flow = SimpleNamespace(write_paused=False)
            self.scope: Any = {"headers": []}
            self.default_headers: list[Any] = []
            self.transport = SimpleNamespace(write=written.append)
            self.message_event = asyncio.Event()
            self.access_logger = None
            self.pipeline: list[Any] = []

        def on_response(self) -> None:
            pass

        async def send(self, message: Any) -> None:
            raise AssertionError

    RequestResponseCycle.__module__ = httptools_impl.__name__
    cycle = RequestResponseCycle()
    assert uvicorn_protocol.respond_at_once(cycle.send, 200, b"{}")
    assert len(written) == 1
    cycle = RequestResponseCycle()
    delattr(cycle, name)
    assert not uvicorn_protocol.respond_at_once(cycle.send, 200, b"{}")
    assert len(written) == 1


def test_httptools_tells_where_an_upgrade_begins() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as raised:
        httptools.HttpRequestParser(object()).feed_data(head + b"rest")
    assert raised.value.args == (len(head),), "httptools tells the place of an upgrade otherwise: see _without_upgrade"


# uvicorn: its server and its log.


class PublicServer:
    """uvicorn's server, as far as its documentation goes."""

    def __init__(self, config: uvicorn.Config) -> None:
        self.config = config
        self.should_exit = False

    async def serve(self, sockets: Any = None) -> None:
        while not self.should_exit:  # noqa: ASYNC110 - as uvicorn does
            await asyncio.sleep(0.01)


def test_uvicorn_has_the_methods_that_the_runner_overrides() -> None:
    for name in ("startup", "shutdown", "capture_signals", "handle_exit"):
        assert hasattr(uvicorn.Server, name), f"uvicorn.Server has no {name} any more: see running._http_server"
    source = inspect.getsource(uvicorn.server)
    for name in ("self.startup(", "self.shutdown(", "self.capture_signals(", "self.handle_exit", "self.servers"):
        assert name in source, f"uvicorn does not use {name} any more: see running._http_server"
    state = uvicorn.Server(uvicorn.Config(lambda: None)).server_state
    assert (state.connections, state.tasks) == (set(), set()), "see running._abort_connections"
    assert state.default_headers == [], "see running._let_clients_leave: idle connections are closed at once"


async def test_without_them_a_server_runs_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn, "Server", PublicServer)
    started: list[int] = []
    made = running._http_server(Server("s").engine, HttpOptions(), lambda: started.append(1))
    with made.capture_signals():
        pass
    task = asyncio.create_task(made.serve())
    await asyncio.sleep(0.05)
    assert started == [1]
    made.should_exit = True
    await task
    await running._let_clients_leave(made, 60)
    await running._abort_connections(made)


def test_uvicorn_logs_the_sentences_that_are_left_out() -> None:
    told = "running._is_worth_logging leaves this line of uvicorn out; it has another text now, and is logged"
    assert "timeout graceful shutdown exceeded" in inspect.getsource(uvicorn.server), told
    assert "ASGI callable returned without completing response" in inspect.getsource(httptools_impl), told


def test_another_sentence_is_logged() -> None:
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "Ended %d tasks", (3,), None)
    assert running._is_worth_logging(record)


def access_log() -> tuple[logging.Logger, logging.StreamHandler[Any]]:
    logger = logging.Logger("uvicorn.access")  # noqa: LOG001 - not the one of the process
    logger.propagate = False
    handler = logging.StreamHandler()
    form = uvicorn_config.LOGGING_CONFIG["formatters"]["access"]["fmt"]
    handler.setFormatter(AccessFormatter(form, use_colors=False))
    logger.addHandler(handler)
    return logger, handler


def test_uvicorn_and_logging_have_what_shows_an_unchanged_log() -> None:
    logger, handler = access_log()
    assert uvicorn_protocol._stock_handler(logger) is handler, (
        "uvicorn or logging have changed: the access log is written by way of records, which takes longer"
    )


@pytest.mark.parametrize("name", ["_fmt", "use_colors"])
def test_without_it_the_access_log_is_written_by_records(name: str) -> None:
    logger, handler = access_log()
    delattr(handler.formatter, name)
    assert uvicorn_protocol._stock_handler(logger) is None


def test_without_the_formatter_of_uvicorn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, _ = access_log()
    uvicorn_protocol._stock_formatter.cache_clear()
    monkeypatch.delitem(uvicorn_config.LOGGING_CONFIG["formatters"], "access")
    try:
        assert uvicorn_protocol._stock_handler(logger) is None
    finally:
        uvicorn_protocol._stock_formatter.cache_clear()


# aiohttp.


def test_aiohttp_has_what_shows_that_a_kept_connection_has_ended() -> None:
    told = "aiohttp has changed: a request may be sent on a connection that the server has closed"
    assert hasattr(aiohttp.connector.Connection, "protocol"), told
    assert hasattr(aiohttp.client_proto.ResponseHandler, "should_close"), told


async def test_without_it_connections_are_handed_out_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bare, end = object(), object()

    async def connect(*_: Any, **__: Any) -> Any:
        return bare

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", connect)
    connector = wire._Connector()
    found: object = await connector.connect()
    assert found is bare
    assert not wire._is_over(end)
    await connector.close()


# OpenTelemetry: tests/server/test_telemetry.py. Starlette:


def scope_of(path: str, app: Any, **more: Any) -> Any:
    return {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "endpoint": app} | more


async def test_starlette_leaves_the_key_by_which_a_mount_is_known() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    await Starlette(routes=[Mount("/", app=app)])(scope_of("/x", None), None, None)  # type: ignore[arg-type] # not used
    assert "app_root_path" in seen[0], "a Mount cannot be told from a Route: each path below a Mount is the endpoint"


def test_without_the_key_a_path_below_a_mount_is_the_endpoint() -> None:
    app = Server("s").asgi()
    assert app._is_endpoint(scope_of("/other", app), "/other")
    assert not app._is_endpoint(scope_of("/other", app, app_root_path=""), "/other")


# Python.


def test_a_python_without_frames_of_threads_has_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    monkeypatch.delattr(development.sys, "_current_frames")
    development.watch_for_blocking(loop, debug=True)
    assert loop not in development._watched
    loop.close()
    del loop
    gc.collect()
