"""Subscriptions without a socket: what waits to be told, who is counted, and what a stream leaves behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support import encode, headers_for, message, parse_sse
from support.raw_sessions import eventually
from weft import Limits, Server
from weft.auth import TokenInfo
from weft.server.calls.changes import Change
from weft.server.runtime.subscriptions import ListenStream
from weft.types.interaction import SubscriptionFilter

TAG = "io.modelcontextprotocol/subscriptionId"


def make(**options: Any) -> Server:
    server = Server("changing", **options)
    server.add_tool(lambda: "x", name="x")
    server.add_resource("note://a", "A")
    return server


class Stream:
    """One listen request given to the ASGI app; `sent` is what came of it."""

    def __init__(
        self, server: Server, wish: dict[str, Any], id: Any = 1, client: Any = ("10.0.0.1", 1), scope: Any = None
    ) -> None:
        body = message("subscriptions/listen", {"notifications": wish}, id=id)
        pairs = [("host", "127.0.0.1"), *headers_for(body)]
        headers = [(name.lower().encode(), value.encode()) for name, value in pairs]
        scope = {
            **(scope or {}),
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "root_path": "",
            "headers": headers,
            "client": client,
        }
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": encode(body), "more_body": False})
        self.sent: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.task = asyncio.create_task(server.asgi()(scope, self._incoming.get, self._send))

    async def _send(self, part: Any) -> None:
        await self.reads.wait()
        self.sent.append(part)

    @property
    def messages(self) -> list[Any]:
        return parse_sse(b"".join(part.get("body", b"") for part in self.sent))

    @property
    def methods(self) -> list[str]:
        return [one.get("method", "") for one in self.messages]

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def streams(*opened: Stream) -> AsyncIterator[None]:
    await settle()
    try:
        yield
    finally:
        for stream in opened:
            stream.leave()
        await asyncio.wait_for(asyncio.gather(*(stream.task for stream in opened)), 30)


# --- the filter of a stream


@pytest.mark.spec("SUB-02")
@pytest.mark.parametrize(
    ("wish", "wanted"),
    [
        (SubscriptionFilter(), []),
        (SubscriptionFilter(tools_list_changed=True), ["tools"]),
        (SubscriptionFilter(prompts_list_changed=True, tools_list_changed=False), ["prompts"]),
        (SubscriptionFilter(resources_list_changed=True), ["resources"]),
        (SubscriptionFilter(resource_subscriptions=["note://a"]), ["resource"]),
        (SubscriptionFilter(resource_subscriptions=["note://"]), []),
    ],
)
def test_a_change_is_in_the_filter_or_is_not(wish: SubscriptionFilter, wanted: list[str]) -> None:
    stream = ListenStream(1, wish, "")
    changes = [Change("tools"), Change("prompts"), Change("resources"), Change("resource", "note://a")]
    assert [change.kind for change in changes if stream.accepts(change)] == wanted


@pytest.mark.security("D10")
def test_what_was_not_yet_told_is_not_told_twice() -> None:
    stream = ListenStream(1, SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["a:b", "a:c"]), "")
    for _ in range(1000):
        for change in (Change("resource", "a:b"), Change("tools"), Change("resource", "a:c")):
            stream.inbox.put(change)
    pending = [stream.inbox.take() for _ in range(len(stream.inbox))]
    assert pending == [Change("resource", "a:b"), Change("tools"), Change("resource", "a:c")]


# --- streams


@pytest.mark.security("D10")
async def test_a_stream_that_does_not_read_is_told_each_change_once_when_it_reads_again() -> None:
    server = make()
    stream, other = Stream(server, {"toolsListChanged": True}), Stream(server, {"toolsListChanged": True}, id=2)
    async with streams(stream, other):
        stream.reads.clear()
        for _ in range(50):
            server.notify_tools_changed()
            await settle()
        assert len(other.messages) == 51
        assert len(stream.messages) == 1
        stream.reads.set()
        await settle()
        assert stream.methods[1:] == ["notifications/tools/list_changed"] * 2  # the one under way, and all later ones


@pytest.mark.security("D10", "R12")
async def test_a_stream_that_does_not_read_in_time_is_cut_and_no_other() -> None:
    server = make(limits=Limits(write_seconds=0.05))
    stream, other = Stream(server, {"toolsListChanged": True}), Stream(server, {"toolsListChanged": True}, id=2)
    async with streams(stream, other):
        stream.reads.clear()
        server.notify_tools_changed()
        await asyncio.wait_for(stream.task, 30)
        assert len(server.engine.subscriptions) == 1
        server.notify_tools_changed()
        await settle()
        assert len(other.messages) == 3
    assert Limits().write_seconds == 10


@pytest.mark.spec("SUB-03", "SUB-04")
async def test_nothing_comes_before_the_acknowledgement_however_slow_it_is() -> None:
    server = make()
    stream = Stream(server, {"toolsListChanged": True})
    stream.reads.clear()
    async with streams(stream):
        server.notify_tools_changed()
        await settle()
        assert stream.sent == []
        stream.reads.set()
        await settle()
        assert stream.methods == ["notifications/subscriptions/acknowledged", "notifications/tools/list_changed"]


@pytest.mark.security("D10", "R12")
async def test_streams_are_counted_for_each_address_by_itself() -> None:
    server = make(limits=Limits(listen_streams_per_peer=1, listen_streams=3))
    first, other = Stream(server, {}), Stream(server, {}, client=("10.0.0.2", 1))
    async with streams(first, other):
        second, unknown = Stream(server, {}), Stream(server, {}, client=None)
        await settle()
        assert second.task.done()
        assert b"You have 1 streams open already" in second.sent[-1]["body"]
        fifth = Stream(server, {}, client=("10.0.0.5", 1))
        await settle()
        assert b"3 streams are open already" in fifth.sent[-1]["body"]
        unknown.leave()
        await unknown.task
    assert (len(server.engine.subscriptions), server.engine.subscriptions._per_peer) == (0, {})


@pytest.mark.spec("SUB-12")
async def test_closing_ends_all_streams_with_their_results() -> None:
    server = make()
    ids = [0, "", "0", 5]
    opened = [Stream(server, {"toolsListChanged": True}, id=id) for id in ids]
    await settle()
    server.engine.subscriptions.close()
    await asyncio.wait_for(asyncio.gather(*(stream.task for stream in opened)), 30)
    for stream, id in zip(opened, ids, strict=True):
        answer = stream.messages[-1]
        assert answer["result"]["resultType"] == "complete"
        assert [(type(found), found) for found in (answer["id"], answer["result"]["_meta"][TAG])] == [
            (type(id), id)
        ] * 2
        assert stream.sent[-1]["more_body"] is False
        assert "notifications/cancelled" not in stream.methods


async def test_nothing_stays_behind() -> None:
    server = make(limits=Limits(keep_alive_seconds=0.01))
    for how in ("leave", "cancel", "close"):
        stream = Stream(server, {"toolsListChanged": True})
        await eventually(lambda: any(part.get("body", b"").startswith(b":") for part in stream.sent))  # noqa: B023
        if how == "close":
            server.engine.subscriptions.close()
        elif how == "leave":
            stream.leave()
        else:
            stream.task.cancel()
        await asyncio.wait([stream.task])
        assert (len(server.engine.subscriptions), server.engine.in_flight) == (0, 0)
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    server.notify_tools_changed()  # nobody hears it, and nothing breaks


def test_changes_without_a_loop_or_after_its_end_are_no_matter() -> None:
    server = make()
    server.notify_resource_updated("note://a")

    async def listen() -> None:
        stream = Stream(server, {"toolsListChanged": True})
        async with streams(stream):
            assert len(server.engine.subscriptions) == 1

    for _ in range(2):  # one loop after the other
        asyncio.run(listen())
        server.add_prompt(lambda: "x", name="new")
        server.remove_prompt("new")


@pytest.mark.spec("SUB-12")
async def test_a_stream_that_comes_after_the_end_is_acknowledged_and_ended_at_once() -> None:
    server = make()
    server.engine.subscriptions.close()
    stream = Stream(server, {"toolsListChanged": True})
    await asyncio.wait_for(stream.task, 30)
    assert stream.methods == ["notifications/subscriptions/acknowledged", ""]
    assert stream.messages[-1]["result"]["resultType"] == "complete"
    assert len(server.engine.subscriptions) == 0


async def test_the_end_of_one_peers_streams_is_not_the_end_of_all() -> None:
    server = make()
    server.engine.subscriptions.close("pipe 1")
    stream = Stream(server, {"toolsListChanged": True})
    async with streams(stream):
        assert len(server.engine.subscriptions) == 1


def test_a_server_that_serves_again_in_another_loop_has_streams_again() -> None:
    server = make()

    async def closed() -> None:
        server.asgi().close_streams()
        await settle()
        late = Stream(server, {"toolsListChanged": True})
        await asyncio.wait_for(late.task, 30)

    async def anew() -> None:
        stream = Stream(server, {"toolsListChanged": True})
        async with streams(stream):
            assert len(server.engine.subscriptions) == 1

    asyncio.run(closed())
    asyncio.run(anew())
    server.asgi().close_streams()  # nobody listens, and no loop runs


@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_app_ends_the_streams_from_any_thread(in_thread: bool) -> None:
    server = make()
    app, stream = server.asgi(), Stream(server, {"toolsListChanged": True})
    await settle()
    if in_thread:
        await asyncio.to_thread(app.close_streams)
    else:
        app.close_streams()
    await asyncio.wait_for(stream.task, 30)
    assert stream.messages[-1]["result"]["resultType"] == "complete"


async def test_the_end_of_the_lifespan_ends_the_streams() -> None:
    server, told = make(), asyncio.Queue[Any]()
    sent: list[str] = []

    async def send(part: Any) -> None:
        sent.append(part["type"])

    life = asyncio.create_task(server.asgi()({"type": "lifespan"}, told.get, send))
    told.put_nowait({"type": "lifespan.startup"})
    stream = Stream(server, {"toolsListChanged": True})
    await settle()
    told.put_nowait({"type": "lifespan.shutdown"})
    await asyncio.wait_for(asyncio.gather(stream.task, life), 30)
    assert "result" in stream.messages[-1]
    assert sent[-1] == "lifespan.shutdown.complete"


@pytest.mark.security("D10")
async def test_streams_are_counted_by_the_network_of_an_ipv6_address() -> None:
    server = make(limits=Limits(listen_streams_per_peer=1))
    wish = {"toolsListChanged": True}
    opened = [Stream(server, wish, client=(one, 1)) for one in ("2001:db8::1", "2001:db8:0:1::1", "10.0.0.1")]
    async with streams(*opened):
        assert len(server.engine.subscriptions) == 3
        again = Stream(server, wish, client=("2001:db8::2", 1))  # one machine has all of such a network
        await asyncio.wait_for(again.task, 30)
        assert "You have 1 streams open already" in b"".join(part.get("body", b"") for part in again.sent).decode()


@pytest.mark.security("D10")
async def test_streams_are_counted_by_principal_where_there_is_one() -> None:
    server = make(limits=Limits(listen_streams_per_peer=1))
    ann, bob = {"weft.token_info": TokenInfo("ann")}, {"weft.token_info": TokenInfo("bob")}
    wish = {"toolsListChanged": True}
    opened = [Stream(server, wish, scope=ann), Stream(server, wish, scope=bob), Stream(server, wish)]
    async with streams(*opened):
        assert len(server.engine.subscriptions) == 3  # all of one address
        again = Stream(server, wish, client=("10.0.0.2", 1), scope=ann)  # the same person from elsewhere
        await asyncio.wait_for(again.task, 30)
        assert "You have 1 streams open already" in b"".join(part.get("body", b"") for part in again.sent).decode()
    assert server.engine.subscriptions._per_peer == {}
