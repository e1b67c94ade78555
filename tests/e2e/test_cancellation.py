"""A client that goes away has given its request up: the handler is stopped, and nothing more is sent."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection

import pytest

from support import Live, Response, ask, encode, headers_for, make_server, message, start_request, until
from weft import Context, Server


@contextmanager
def begun(live: Live, tool: str, token: str, *, progress: int = 0) -> Iterator[HTTPConnection]:
    """A call that was sent and has reached its handler."""
    arguments = {"token": token, "progress": progress} if progress else {"token": token}
    meta = {"progressToken": "p"} if progress else {}
    body = message("tools/call", {"name": tool, "arguments": arguments}, meta=meta)
    with closing(live.connect()) as connection:
        start_request(connection, encode(body), headers_for(body))
        until(lambda: live.server.log.of(token) == ["started"])
        yield connection


@pytest.mark.spec("HTTP-24", "HTTP-25", "HTTP-26", "CAN-03", "CAN-06", "PROG-06")
def test_a_disconnect_while_the_json_answer_is_pending(live: Live) -> None:
    token = uuid.uuid4().hex
    with begun(live, "wait", token):
        pass
    until(lambda: live.server.log.of(token) == ["started", "cancelled"])
    assert live.healthy()


@pytest.mark.spec("HTTP-24", "HTTP-25", "HTTP-26", "CAN-03", "CAN-06")
def test_closing_the_stream(live: Live) -> None:
    token = uuid.uuid4().hex
    with begun(live, "wait", token, progress=2) as connection:
        response = connection.getresponse()
        assert b"notifications/progress" in response.readline()
        response.close()
    until(lambda: live.server.log.of(token) == ["started", "cancelled"])
    assert live.healthy()


@pytest.mark.spec("HTTP-24", "HTTP-25")
def test_a_plain_function_sees_it_in_its_context(live: Live) -> None:
    token = uuid.uuid4().hex
    with begun(live, "wait_in_thread", token):
        pass
    until(lambda: live.server.log.of(token) == ["started", "saw cancelled"])
    assert live.healthy()


@pytest.mark.spec("CAN-06")
def test_a_given_up_call_no_longer_counts(live: Live) -> None:
    token = uuid.uuid4().hex
    with begun(live, "wait", token):
        assert live.server.engine.in_flight == 1
    until(lambda: live.server.engine.in_flight == 0)


class Client:
    """An ASGI client that goes away when told to."""

    def __init__(self, tool: str, arguments: dict, meta: dict | None = None) -> None:
        self.sent: list[dict] = []
        self.gone = asyncio.Event()
        body = message("tools/call", {"name": tool, "arguments": arguments}, meta=meta)
        self._incoming = [{"type": "http.request", "body": encode(body), "more_body": False}]
        pairs = [("host", "localhost"), *headers_for(body)]
        self.scope = {
            "type": "http", "method": "POST", "path": "/mcp", "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
        }  # fmt: skip

    async def receive(self) -> dict:
        if self._incoming:
            return self._incoming.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, part: dict) -> None:
        self.sent.append(part)


@pytest.mark.spec("HTTP-26", "PROG-06")
async def test_nothing_at_all_is_sent_after_the_disconnect() -> None:
    server = make_server()
    client = Client("wait", {"token": "t", "progress": 1}, {"progressToken": 1})
    serving = asyncio.create_task(server.asgi()(client.scope, client.receive, client.send))
    await asyncio.to_thread(until, lambda: client.sent)
    before = len(client.sent)
    client.gone.set()
    await serving  # ends quietly: the exchange is over, not failed
    assert server.log.of("t") == ["started", "cancelled"]  # type: ignore[attr-defined] - the tests' own
    assert len(client.sent) == before


@pytest.mark.spec("HTTP-26", "CAN-09")
async def test_a_handler_that_ignores_its_cancellation_is_not_answered() -> None:
    server, client = Server("stubborn"), Client("stubborn", {})

    @server.tool
    async def stubborn() -> str:
        client.gone.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "done all the same"

    await server.asgi()(client.scope, client.receive, client.send)
    assert client.sent == []


@pytest.mark.spec("CAN-09")
async def test_a_cancellation_that_comes_with_the_end_is_harmless() -> None:
    server, client = Server("racing"), Client("quick", {})

    @server.tool
    async def quick() -> str:
        await asyncio.sleep(0)
        client.gone.set()
        return "done"

    await server.asgi()(client.scope, client.receive, client.send)
    assert len(client.sent) in (0, 2)  # never half an answer
    assert (await ask(server, "tools/call", {"name": "quick"})).status == 200
    assert server.engine.in_flight == 0


async def test_the_servers_own_shutdown_is_not_taken_for_a_disconnect() -> None:
    server, client = make_server(), Client("wait", {"token": "t"})
    serving = asyncio.create_task(server.asgi()(client.scope, client.receive, client.send))
    await asyncio.to_thread(until, lambda: server.log.of("t"))  # type: ignore[attr-defined] - the tests' own
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert server.engine.in_flight == 0


@pytest.mark.spec("CAN-06")
async def test_what_the_call_opened_is_closed_also_when_it_is_cancelled() -> None:
    server, client, closed = Server("tidy"), Client("tidy", {}), []

    @server.tool
    async def tidy(ctx: Context) -> str:
        ctx.connection.exit_stack.callback(closed.append, "first")
        ctx.connection.exit_stack.callback(closed.append, "second")
        client.gone.set()
        await asyncio.sleep(60)
        return "never"

    await server.asgi()(client.scope, client.receive, client.send)
    assert closed == ["second", "first"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0  # the ASGI server's task goes on as if nothing had been


def test_many_clients_that_go_away_leave_nothing_behind(live: Live) -> None:
    until(lambda: live.server.engine.in_flight == 0)
    tokens = [uuid.uuid4().hex for _ in range(30)]

    def give_up(token: str) -> None:
        with begun(live, "wait", token):
            pass

    threads = [threading.Thread(target=give_up, args=(token,)) for token in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: all(live.server.log.of(token)[-1:] == ["cancelled"] for token in tokens))
    until(lambda: live.server.engine.in_flight == 0)
    assert live.healthy()


@pytest.mark.spec("CAN-05", "JRPC-24")
def test_the_server_sends_no_cancellation_for_other_requests(live: Live) -> None:
    response: Response = live.tool("chatter", meta={"io.modelcontextprotocol/logLevel": "debug", "progressToken": 1})
    assert {note.get("method") for note in response.messages[:-1]} == {"notifications/message"}
