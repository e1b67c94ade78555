"""The bounds of sessions and their streams, each one past its limit; and whose a session is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.raw_sessions import FORM, AppPeer, Reply, accept, answer_to, called, eventually, message
from support.wire import encode
from weft import Context, InputRequired, Limits, Server, ask_form
from weft.protocol.revisions import SESSION_REVISIONS as REVISIONS
from weft.protocol.revisions import Revision


def make_server(**limits: Any) -> Server:
    server = Server("bounded", limits=Limits(**{"drain_seconds": 0.2, **limits}))
    server.add_resource("a://1", "one")
    server.cleaned = []

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def wait(ctx: Context) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            server.cleaned.append(ctx.request_id)

    @server.tool
    async def ask(ctx: Context, question: str) -> str:
        answer = await ctx.elicit(question, Reply)
        return f"{question} {answer.value.value if answer.accepted else answer.action}"

    @server.tool
    async def again(ctx: Context) -> str:
        return InputRequired({"more": ask_form("More?", Reply)})

    @server.tool
    async def chatter(ctx: Context, times: int, size: int = 10) -> str:
        for number in range(times):
            await ctx.report_progress(number, message="x" * size)
            await asyncio.sleep(0)
        return "done"

    @server.tool
    async def shout(ctx: Context, times: int) -> None:
        for number in range(times):
            await ctx.connection.notify("notifications/message", {"level": "info", "data": number})

    return server


@pytest.fixture
async def at() -> AsyncIterator[Callable[..., AppPeer]]:
    """Makes clients of a server, and drops them at the end."""
    peers: list[AppPeer] = []

    def make(server: Server, *args: Any, **options: Any) -> AppPeer:
        peers.append(AppPeer(server.asgi(), *args, **options))
        return peers[-1]

    yield make
    for server in {peer.app.runtime for peer in peers}:
        await server.stop()
    for peer in peers:
        await peer.leave()


At = Callable[..., AppPeer]


async def healthy(peer: AppPeer, id: Any = 99) -> bool:
    return await (await peer.post(called("add", id, a=2, b=3))).text() == "5"


# How many sessions.


@pytest.mark.security("D8", "R12")
async def test_one_session_too_many_ends_the_one_that_was_idle_longest(at: At) -> None:
    server = make_server(sessions=3)
    peers = [at(server, address=f"10.0.0.{n}") for n in range(4)]
    for peer in peers[:3]:
        await peer.open()
    await peers[0].post(called("add", a=1, b=1))  # so 1 is the oldest now
    await peers[3].open()
    assert len(server.engine.sessions) == 3
    assert (await peers[1].post(called("add", a=1, b=1))).status == 404
    assert [await healthy(peer) for peer in (peers[0], peers[2], peers[3])] == [True] * 3


@pytest.mark.security("D8", "R12")
async def test_sessions_in_use_are_not_ended_for_new_ones(at: At) -> None:
    server = make_server(sessions=2)
    busy, streaming, late = (at(server, address=f"10.0.0.{n}") for n in range(3))
    await busy.open()
    await streaming.open()
    waiting = await busy.begin(called("wait"))
    await streaming.get()
    with pytest.raises(AssertionError, match="as many sessions as it allows"):
        await late.open()
    await streaming.leave()
    await late.open()  # in the place of the one whose stream is closed
    assert not waiting.done()
    await busy.delete()
    await waiting


@pytest.mark.security("D8", "R12")
async def test_one_peer_too_many_ends_a_session_of_its_own(at: At) -> None:
    server = make_server(sessions_per_peer=2)
    other = at(server, address="10.0.0.2")
    await other.open()
    ann, bob = [at(server, "ann") for _ in range(3)], at(server, "bob")
    await bob.open()
    for peer in ann:
        await peer.open()
    assert [(await peer.post(called("add", a=1, b=1))).status for peer in ann] == [404, 200, 200]
    assert await healthy(other)
    assert await healthy(bob)


@pytest.mark.security("D8", "R12")
async def test_handshakes_alone_end_no_session_that_is_used(at: At) -> None:
    """Behind a proxy that is not named, all clients have one address: whoever only shakes hands ends its own."""
    server = make_server(sessions_per_peer=20)
    user = at(server, address="10.0.0.1")
    await user.open()
    assert await healthy(user)
    flood = [at(server, address="10.0.0.1") for _ in range(40)]
    for peer in flood:
        await peer.open(ready=False)
    assert await healthy(user)
    assert len(server.engine.sessions) == 20


@pytest.mark.security("D8", "R12")
async def test_of_one_peer_the_session_ends_that_was_used_longest_ago(at: At) -> None:
    server = make_server(sessions_per_peer=2)
    first, second, third = (at(server, "ann") for _ in range(3))
    await first.open()
    await second.open()
    assert await healthy(first)  # so the second is the one to go
    await third.open()
    assert [(await peer.post(called("add", a=1, b=1))).status for peer in (first, second, third)] == [200, 404, 200]


@pytest.mark.security("D8", "R12")
async def test_a_handshake_that_is_refused_ends_no_session_of_others(at: At) -> None:
    server = make_server(sessions=2)
    peers = [at(server, address=f"10.0.0.{n}") for n in range(3)]
    await peers[0].open()
    await peers[1].open()
    for _ in range(5):
        refused = await peers[2].post(message("initialize", {"protocolVersion": 1}, 0))
        assert await refused.refusal() == (200, -32602)
        assert "mcp-session-id" not in refused.headers
    assert [await healthy(peer) for peer in peers[:2]] == [True, True]


@pytest.mark.security("D8", "R12")
async def test_handshakes_at_the_same_time_do_not_exceed_the_limit(at: At) -> None:
    server = make_server(sessions=3)

    @server.middleware
    async def slow(_: Any, next: Any) -> Any:
        await asyncio.sleep(0.05)
        return await next()

    peers = [at(server, address=f"10.0.0.{n}") for n in range(10)]
    await asyncio.gather(*(peer.open(ready=False) for peer in peers))
    assert len(server.engine.sessions) == 3


@pytest.mark.security("D8", "R12")
async def test_a_session_that_was_never_used_ends_soon(at: At) -> None:
    server = make_server(session_unused_seconds=0.3, session_idle_seconds=60)
    unused, used = at(server), at(server)
    await unused.open(ready=False)
    await used.open()
    await eventually(lambda: len(server.engine.sessions) == 1)
    assert (await unused.post(called("add", a=1, b=1))).status == 404
    assert await healthy(used)


@pytest.mark.security("D8", "R12")
async def test_an_idle_session_ends_and_one_in_use_does_not(at: At) -> None:
    server = make_server(session_unused_seconds=0.4, session_idle_seconds=0.4)
    idle, busy, listening = at(server), at(server), at(server)
    for peer in (idle, busy, listening):
        await peer.open()
    waiting = await busy.begin(called("wait", 7))
    stream = await listening.get()
    await eventually(lambda: len(server.engine.sessions) == 2)
    await asyncio.sleep(1)
    assert not waiting.done()
    assert not stream.ended
    assert (await idle.post(called("add", a=1, b=1))).status == 404
    assert (await busy.post(message("notifications/cancelled", {"requestId": 7}))).status == 202
    await listening.leave()
    await eventually(lambda: len(server.engine.sessions) == 0 and server.backend.store._values == {})
    assert server.cleaned == [7]
    await waiting


# How much in one session.


@pytest.mark.security("D9", "R12")
async def test_one_request_too_many_in_flight_is_refused(at: At) -> None:
    server = make_server(in_flight_per_connection=3)
    peer, other = at(server), at(server)
    await peer.open()
    await other.open()
    waiting = [await peer.begin(called("wait", n)) for n in range(3)]
    refused = await peer.post(called("add", 3, a=1, b=1))
    assert (await refused.json())["error"]["code"] == -32603
    assert await healthy(other)
    assert (await peer.post(message("notifications/cancelled", {"requestId": 1}))).status == 202
    assert await healthy(peer)
    await peer.delete()
    await asyncio.gather(*waiting)


@pytest.mark.security("D9", "R6")
async def test_an_id_that_is_in_flight_is_refused_within_its_session_only(at: At) -> None:
    server = make_server()
    peer, other = at(server), at(server)
    await peer.open()
    await other.open()
    waiting = await peer.begin(called("wait", 0))
    assert await (await peer.post(called("add", 0, a=1, b=1))).refusal() == (400, -32600)
    assert await healthy(other, 0)
    assert (
        await (await peer.stateless("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}}, id=0)).text() == "2"
    )
    assert (await peer.post(message("notifications/cancelled", {"requestId": 0}))).status == 202
    await waiting
    assert await healthy(peer, 0)  # the id is free again


@pytest.mark.security("R6")
async def test_a_thousand_peers_all_use_the_same_id(at: At) -> None:
    server = make_server(in_flight=3000, sessions_per_peer=1000)
    peers = [at(server) for _ in range(1000)]
    await asyncio.gather(*(peer.open(capabilities=FORM) for peer in peers))
    asking = await asyncio.gather(*(peer.post(called("ask", 0, question=f"{n}?")) for n, peer in enumerate(peers)))
    questions = await asyncio.gather(*(exchange.question() for exchange in asking))
    assert len({question["id"] for question in questions}) < 1000  # and so do the questions
    order = sorted(range(1000), key=lambda n: (n * 7919) % 1000)
    for n in order:
        assert (await peers[n].post(accept(questions[n], f"answer {n}"))).status == 202
    assert [await exchange.text() for exchange in asking] == [f"{n}? answer {n}" for n in range(1000)]


@pytest.mark.security("D10", "R12")
async def test_one_subscription_too_many_is_refused(at: At) -> None:
    server = make_server()
    peer = at(server)
    await peer.open()
    for number in range(Limits().listen_uris):
        assert (await peer.post(message("resources/subscribe", {"uri": f"a://{number}"}, 1))).status == 200
    refused = await peer.post(message("resources/subscribe", {"uri": "a://more"}, 1))
    assert (await refused.json())["error"]["code"] == -32602
    assert await (await peer.post(message("resources/subscribe", {"uri": "a://0"}, 1))).result() == {}  # has it
    assert await (await peer.post(message("resources/unsubscribe", {"uri": "a://0"}, 1))).result() == {}
    assert await (await peer.post(message("resources/subscribe", {"uri": "a://more"}, 1))).result() == {}
    too_long = await peer.post(message("resources/subscribe", {"uri": "a://" + "x" * 8 * 1024}, 1))
    assert (await too_long.json())["error"]["code"] == -32602


@pytest.mark.security("D10", "R12")
async def test_subscriptions_of_one_byte_too_many_are_refused(at: At) -> None:
    assert Limits().listen_uris_bytes == 64 * 1024
    peer = at(make_server(listen_uris_bytes=20))
    await peer.open()

    async def tell(method: str, uri: str) -> Any:
        return await (await peer.post(message(f"resources/{method}", {"uri": uri}, 1))).json()

    for uri in ("a://1", "a://1", "a://éé2345678"):  # 5 bytes, no more, 15
        assert (await tell("subscribe", uri))["result"] == {}
    refused = await tell("subscribe", "a")
    assert refused["error"]["code"] == -32602
    assert "20 bytes" in refused["error"]["message"]
    assert (await tell("unsubscribe", "a://1"))["result"] == {}
    assert (await tell("subscribe", "a://2"))["result"] == {}


@pytest.mark.security("D10")
async def test_what_changes_nothing_is_not_stored_again(at: At) -> None:
    server = make_server()
    peer = at(server)
    await peer.open()
    steps = [
        ("resources/subscribe", {"uri": "a://1"}),
        ("logging/setLevel", {"level": "error"}),
        ("resources/unsubscribe", {"uri": "a://2"}),
    ]
    key = f"session/{peer.session}"
    stored: list[bytes | None] = []
    for _ in range(2):
        for method, params in steps:
            assert await (await peer.post(message(method, params, 1))).result() == {}
            stored.append(await server.backend.store.get(key))
    assert stored[1] is not stored[0]
    assert all(later is stored[1] for later in stored[2:])


@pytest.mark.security("D8", "R12")
@pytest.mark.parametrize("part", ["name", "icons", "experimental", "extensions"])
async def test_an_introduction_one_byte_too_long_is_refused(at: At, part: str) -> None:
    assert Limits().introduction_bytes == 64 * 1024
    server = make_server(introduction_bytes=1000)

    def introduce(size: int) -> dict[str, Any]:
        info: dict[str, Any] = {"name": "t", "version": "1"}
        capabilities: dict[str, Any] = {}
        if part == "name":
            info["name"] = "x" * size
        elif part == "icons":
            info["icons"] = [{"src": "x" * size}]
        else:
            capabilities[part] = {"a": {"b": "x" * size}}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}

    first = introduce(0)
    most = 1000 - len(encode(first["clientInfo"])) - len(encode(first["capabilities"]))
    peer = at(server)
    refused = await (await peer.post(message("initialize", introduce(most + 1), 1))).json()
    assert refused["error"]["code"] == -32602
    assert "1000 bytes" in refused["error"]["message"]
    assert len(server.engine.sessions) == 0
    assert "result" in await (await peer.post(message("initialize", introduce(most), 1))).json()
    assert len(server.engine.sessions) == 1


@pytest.mark.security("R12")
async def test_an_array_one_too_long_is_refused(at: At) -> None:
    server = make_server(batch=3)
    peer = at(server)
    await peer.open(version=_batching().version)
    answers = await peer.post([called("add", n, a=n, b=0) for n in range(3)])
    assert len(await answers.json()) == 3
    assert await (await peer.post([called("add", n, a=n, b=0) for n in range(4)])).refusal() == (400, -32600)
    assert await (await peer.post([])).refusal() == (400, -32600)
    assert await healthy(peer)


def _batching() -> Revision:
    return next(revision for revision in REVISIONS.values() if revision.batches)


@pytest.mark.security("R12", "D13")
async def test_a_handler_that_asks_one_round_too_many_fails(at: At) -> None:
    server = make_server(input_rounds=3)
    peer = at(server)
    await peer.open(capabilities=FORM)
    asking = await peer.post(called("again"))
    for _ in range(3):
        assert (await peer.post(accept(await asking.question(), "yes"))).status == 202
    assert (await asking.json())["error"]["code"] == -32603
    assert await healthy(peer)


@pytest.mark.security("D13", "R12")
async def test_a_question_that_is_not_answered_in_time_is_taken_back(at: At) -> None:
    server = make_server(ask_seconds=0.1)
    peer = at(server)
    await peer.open(capabilities=FORM)
    asking = await peer.post(called("ask", question="Tea?"))
    question = await asking.question()
    cancelled = await asking.message()
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == question["id"]
    assert (await asking.message())["result"]["isError"]
    assert (await peer.post(accept(question, "late"))).status == 202  # and nothing comes of it
    assert await healthy(peer)


# What is kept of streams.


@pytest.mark.security("R12")
async def test_the_newest_events_of_a_stream_are_kept_and_whoever_is_behind_is_told(at: At) -> None:
    server = make_server(replay_events=5)
    peer = at(server)
    await peer.open()
    exchange = await peer.post(called("chatter", times=10, progress="p"))
    await exchange.json()
    ids = [event.id for event in exchange.events]
    assert len(ids) == 1 + 10 + 1
    again = await peer.get(ids[-6])
    assert (await again.json())["result"]["content"][0]["text"] == "done"
    assert [event.id for event in again.events] == ids[-5:]
    assert (await peer.get(ids[-7])).status == 400
    assert len(next(iter(server.backend.log._logs.values())).kept) == 5


@pytest.mark.security("R12")
async def test_all_streams_together_keep_a_number_of_bytes(at: At) -> None:
    server = make_server(replay_bytes=15_000)
    peers = [at(server) for _ in range(4)]
    exchanges = []
    for peer in peers:
        await peer.open()
        exchanges.append(await peer.post(called("chatter", times=3, size=1000, progress="p")))
        await exchanges[-1].json()
    kept = [(await peer.get(exchange.events[0].id)).status for peer, exchange in zip(peers, exchanges, strict=True)]
    assert kept == [400, 400, 200, 200]
    assert kept_bytes(server) <= 15_000


@pytest.mark.security("R12")
async def test_one_stream_by_itself_keeps_no_more_bytes_either(at: At) -> None:
    server = make_server(replay_bytes=10_000)
    peer = at(server)
    await peer.open()
    exchange = await peer.post(called("chatter", times=50, size=1000, progress="p"))
    await exchange.json()
    assert 5_000 < kept_bytes(server) <= 10_000
    assert (await peer.get(exchange.events[0].id)).status == 400
    assert (await (await peer.get(exchange.events[-3].id)).json())["result"]


@pytest.mark.security("R12")
async def test_what_a_long_stream_has_given_up_takes_nothing_from_the_others(at: At) -> None:
    server = make_server(replay_bytes=10_000, replay_events=4)
    long, short = at(server), at(server)
    await long.open()
    await short.open()
    exchange = await short.post(called("chatter", times=1, progress="p"))
    await exchange.json()
    await (await long.post(called("chatter", times=50, size=1000, progress="p"))).json()
    assert (await short.get(exchange.events[0].id)).status == 200


def kept_bytes(server: Any) -> int:
    return sum(len(entry) for entries in server.backend.log._logs.values() for _, entry in entries.kept)


@pytest.mark.security("R12")
async def test_what_was_sent_long_ago_is_not_kept(at: At) -> None:
    server = make_server(replay_seconds=0.1)
    peer = at(server)
    await peer.open()
    exchange = await peer.post(called("chatter", times=3, progress="p"))
    await exchange.json()
    first, last = exchange.events[0].id, exchange.events[-1].id
    assert len((await at_end(await peer.get(first))).events) == 4
    with pytest.raises(EOFError):
        await (await peer.get(last)).next()
    await asyncio.sleep(0.15)
    assert (await peer.get(first)).status == 400
    await (await peer.post(called("chatter", times=1, progress="p"))).json()
    assert len(server.backend.log._logs) == 1
    assert len(server.engine.sessions.streams._kept) == 1


async def at_end(exchange: Any) -> Any:
    await exchange.json()
    return exchange


@pytest.mark.security("R12")
async def test_a_stream_is_taken_up_by_one_at_a_time_and_not_without_end(at: At) -> None:
    server = make_server(in_flight_per_connection=2)
    peer = at(server)
    await peer.open(capabilities=FORM)
    asking = []
    for id in range(2):
        asking.append(await peer.post(called("ask", id, question="Tea?")))
        await asking[-1].question()
    first, second = [exchange.events[0].id for exchange in asking]
    assert first is not None
    one = await peer.get(first)
    await one.question()
    two = await peer.get(first)
    question = await two.question()
    await one.body()  # it was let go
    other = await peer.get(second)
    await other.question()
    await peer.post(accept(question, "yes"))
    assert (await two.message())["result"]["content"][0]["text"] == "Tea? yes"
    await other.close()


@pytest.mark.security("R12", "D9")
async def test_one_stream_too_many_is_not_taken_up_again(at: At) -> None:
    server = make_server(in_flight_per_connection=1, progress_per_second=0)
    peer = at(server)
    await peer.open(capabilities=FORM)
    first = await peer.post(called("ask", 1, question="Tea?"))
    question = await first.question()
    taken: Any = await peer.get(first.events[0].id)
    await taken.question()
    taken.stall()  # it is answered, and does not read that
    await peer.post(accept(question, "yes"))
    await eventually(lambda: not server.engine.sessions._local(peer.session).connection.in_flight)
    second = await peer.post(called("ask", 2, question="Milk?"))
    question = await second.question()
    refused = await peer.get(second.events[0].id)
    assert await refused.refusal() == (503, -32600)
    assert "This session has resumed 1 streams: wait until one ends." in (await refused.json())["error"]["message"]
    await peer.post(accept(question, "no"))
    assert await second.text() == "Milk? no"  # who was refused has lost nothing by it
    await taken.close()


# Readers that are too slow.


@pytest.mark.security("D10", "R12")
async def test_a_reader_of_the_sessions_stream_that_does_not_read_is_cut_and_hurts_nobody(at: At) -> None:
    server = make_server(write_seconds=0.2, replay_events=8)
    slow, quick = at(server), at(server)
    await slow.open()
    await quick.open()
    stalled, stream = await slow.get(), await quick.get()
    stalled.stall()
    shouting = await slow.begin(called("shout", times=100))
    assert await healthy(quick)
    assert (await quick.post(called("shout", times=3))).status == 200
    assert [(await stream.message())["params"]["data"] for _ in range(3)] == [0, 1, 2]
    await stalled.task
    await shouting
    assert len(max(server.backend.log._logs.values(), key=lambda entries: len(entries.kept)).kept) <= 8
    assert (await slow.get()).status == 200  # and it may come back
    assert not stream.ended


@pytest.mark.security("D10", "R12")
async def test_a_reader_that_was_cut_goes_on_with_what_is_kept(at: At) -> None:
    server = make_server(replay_events=4)
    peer = at(server)
    await peer.open()
    stream = await peer.get()
    await peer.post(called("shout", times=1))
    seen = await stream.next()
    await stream.close()
    await stream.task
    await peer.post(called("shout", times=10))
    again = await peer.get(seen.id)
    assert [(await again.message())["params"]["data"] for _ in range(4)] == [6, 7, 8, 9]
    await peer.post(called("shout", times=1))
    assert (await again.message())["params"]["data"] == 0


@pytest.mark.security("D10", "R12")
async def test_a_burst_on_a_fresh_stream_is_not_shown_in_half(at: At) -> None:
    server = make_server(replay_events=4)
    peer = at(server)
    await peer.open()
    stream = await peer.get()
    session = server.engine.sessions._local(peer.session)
    for number in range(5):  # without a moment for the reader in between
        await server.engine.sessions.streams.append(session.id, "0", b'{"n":%d}' % number)
    with pytest.raises(EOFError):
        await stream.next()


@pytest.mark.security("D10", "R12")
async def test_a_reader_of_an_answer_that_does_not_read_is_let_go_and_the_call_goes_on(at: At) -> None:
    server = make_server(write_seconds=0.1, progress_per_second=0)
    peer, other = at(server), at(server)
    await peer.open()
    await other.open()
    stalling = await peer.post(called("chatter", 6, times=200, size=100, progress="p"))
    stalling.stall()
    assert await healthy(other)
    await stalling.task
    await eventually(lambda: server.engine.in_flight == 0)
    last = [event async for event in stalling.rest()][-1]
    assert last.data["params"]["progress"] < 199
    rest = await at_end(await peer.get(last.id))
    assert len(rest.events) == 199 - last.data["params"]["progress"] + 1
    assert rest.events[-1].data["result"]["content"][0]["text"] == "done"


async def test_a_client_that_comes_back_at_once_finds_its_stream_free(at: At) -> None:
    server = make_server()
    peer = at(server)
    await peer.open()
    for _ in range(3):
        stream = await peer.get()
        assert stream.status == 200
        await stream.close()
        await asyncio.wait_for(stream.task, 10)  # not only with the next sign of life


# Whose a session is.


@pytest.mark.security("R4", "R5")
async def test_somebody_elses_session_is_answered_exactly_as_an_unknown_one(at: At) -> None:
    server = make_server()
    ann, bob, nobody = at(server, "ann"), at(server, "bob"), at(server)
    await ann.open(capabilities=FORM)
    stream = await ann.get()
    asking = await ann.post(called("ask", 1, question="Tea?"))
    question = await asking.question()
    event = asking.events[0].id
    assert event is not None
    attempts: list[tuple[str, Any, dict[str, str]]] = [
        ("POST", called("add", a=1, b=1), {}),
        ("POST", accept(question, "forged"), {}),
        ("POST", message("notifications/cancelled", {"requestId": 1}), {}),
        ("POST", message("initialize", {}, 1), {}),
        ("POST", [called("add", a=1, b=1)], {}),
        ("GET", None, {}),
        ("GET", None, {"Last-Event-ID": event}),
        ("DELETE", None, {}),
    ]
    for peer in (bob, nobody):
        for verb, body, headers in attempts:
            theirs = await peer.request(verb, body, headers, session=ann.session)
            unknown = await peer.request(verb, body, headers, session="x" * len(ann.session or ""))
            assert (theirs.status, theirs.headers, await theirs.body()) == (404, unknown.headers, await unknown.body())
    assert not stream.ended
    assert (await ann.post(accept(question, "mine"))).status == 202
    assert await asking.text() == "Tea? mine"


@pytest.mark.security("R4")
async def test_a_session_of_nobody_is_not_anybodys_who_is_known(at: At) -> None:
    server = make_server()
    nobody, ann = at(server), at(server, "ann")
    await nobody.open()
    assert (await ann.request("POST", called("add", a=1, b=1), session=nobody.session)).status == 404
    assert await healthy(nobody)


@pytest.mark.security("R4")
async def test_an_answer_posted_in_another_session_is_not_delivered(at: At) -> None:
    server = make_server()
    one, two = at(server), at(server)
    await one.open(capabilities=FORM)
    await two.open(capabilities=FORM)
    asking = await one.post(called("ask", question="Tea?"))
    question = await asking.question()
    assert (await two.post(accept(question, "forged"))).status == 202
    assert (await one.post(accept(question, "mine"))).status == 202
    assert await asking.text() == "Tea? mine"


# What makes no sense.


@pytest.mark.security("R1")
@pytest.mark.spec("L11-24")
@pytest.mark.parametrize(
    "id",
    [
        "x",
        "x" * 128,
        "x" * 129,
        "x" * 60_000,
        "\u00e4\u00f6\u00fc",
        "../../etc/passwd",
        "0",
        "stream/x",
        "\x7f",
        '"',
        "a b",
    ],
)
async def test_a_session_id_that_is_none_is_unknown(at: At, id: str) -> None:
    server = make_server()
    peer = at(server)
    await peer.open()
    for verb, body in (("POST", called("add", a=1, b=1)), ("GET", None), ("DELETE", None)):
        assert (await peer.request(verb, body, session=id)).status == 404
    assert await healthy(peer)


@pytest.mark.security("R1", "R4")
async def test_nonsense_in_a_session_is_refused_and_the_session_goes_on(at: At) -> None:
    server = make_server()
    peer = at(server)
    await peer.open()
    stream = await peer.get()
    assert (await peer.get()).status == 409
    again = await peer.post(message("initialize", {"protocolVersion": peer.version, "capabilities": {}}, 1))
    assert await again.refusal() == (400, -32600)
    for unasked in (
        "nobody-1",
        7,
        "",
        "x" * 200,
        server.engine.fleet.worker,
        f"{server.engine.fleet.worker}-1",
    ):
        assert (await peer.post(answer_to({"id": unasked}, {}))).status == 202
    for event in ("nonsense", "0", "0.", "0.x", f"0.{'9' * 30}", "\u00e4.1", "9-9.5", ".5"):
        assert (await peer.get(event)).status == 400
    for odd in ({"requestId": "nothing"}, {"requestId": None}, {}, {"requestId": [1]}):
        assert (await peer.post(message("notifications/cancelled", odd))).status == 202
    assert (await peer.post(message("notifications/unknown", {"a": 1}))).status == 202
    assert (await peer.request("POST", called("add", a=1, b=1), session=None)).status == 400
    assert not stream.ended
    assert await healthy(peer)
