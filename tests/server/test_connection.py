"""Connection and Outbound: the facts about one peer, and the channel to it."""

import asyncio
import logging
from typing import Any

import pytest

from support import ask
from weft import Context, Server
from weft.errors import NoBackChannelError, ProtocolError
from weft.server.calls.connection import NO_CHANNEL, Cancellation, Connection
from weft.types.base import Implementation
from weft.types.interaction import ListRootsResult, Root
from weft.types.lifecycle import (
    ClientCapabilities,
    ElicitationCapability,
    RootsCapability,
    SamplingCapability,
)


class Channel:
    """An Outbound that remembers."""

    def __init__(self, answer: Any = None, error: Exception | None = None) -> None:
        self.answer, self.error, self.sent = answer, error, []

    async def send_raw_request(
        self, method: str, params: Any, *, timeout: float | None = None, on_progress: Any = None
    ) -> Any:
        self.sent.append((method, params, timeout, on_progress))
        return self.answer

    async def notify(self, method: str, params: Any = None) -> None:
        self.sent.append((method, params))
        if self.error is not None:
            raise self.error


def stateless(capabilities: ClientCapabilities | None = None, **options: Any) -> Connection:
    return Connection.from_envelope("2031-01-01", None, capabilities, **options)


def test_from_an_envelope_it_is_born_ready() -> None:
    connection = stateless()
    assert connection.initialize_accepted
    assert connection.initialized.is_set()
    assert not connection.has_standalone_channel
    assert connection.outbound is NO_CHANNEL


def test_for_a_loop_it_becomes_ready_by_the_handshake() -> None:
    connection = Connection.for_loop(Channel(), connection_id="c1")
    assert (connection.initialize_accepted, connection.initialized.is_set()) == (False, False)
    assert connection.has_standalone_channel
    assert (connection.connection_id, connection.protocol_version) == ("c1", "")
    connection.handshake_done = True
    assert connection.initialize_accepted
    assert not connection.initialized.is_set()
    connection.set_initialized()
    assert connection.initialized.is_set()


def test_capabilities_are_kept_also_without_client_info() -> None:
    assert stateless(ClientCapabilities(roots=RootsCapability())).client_capabilities.roots is not None
    named = Connection.from_envelope("2031-01-01", Implementation("c", "1"), None)
    assert (named.client_info, named.client_capabilities) == (Implementation("c", "1"), ClientCapabilities())


@pytest.mark.parametrize(
    ("declared", "wanted", "covered"),
    [
        (ClientCapabilities(), ClientCapabilities(), True),
        (ClientCapabilities(), ClientCapabilities(roots=RootsCapability()), False),
        (
            ClientCapabilities(roots=RootsCapability(list_changed=True)),
            ClientCapabilities(roots=RootsCapability()),
            True,
        ),
        (
            ClientCapabilities(sampling=SamplingCapability()),
            ClientCapabilities(sampling=SamplingCapability(tools={})),
            False,
        ),
        (
            ClientCapabilities(sampling=SamplingCapability(tools={})),
            ClientCapabilities(sampling=SamplingCapability(tools={})),
            True,
        ),
        (
            ClientCapabilities(elicitation=ElicitationCapability(form={})),
            ClientCapabilities(elicitation=ElicitationCapability(url={})),
            False,
        ),
        (
            ClientCapabilities(elicitation=ElicitationCapability()),
            ClientCapabilities(elicitation=ElicitationCapability(form={})),
            True,
        ),
        (
            ClientCapabilities(roots=RootsCapability(list_changed=False)),
            ClientCapabilities(roots=RootsCapability(list_changed=True)),
            False,
        ),
        (
            ClientCapabilities(roots=RootsCapability()),
            ClientCapabilities(roots=RootsCapability(list_changed=False)),
            True,
        ),
        (ClientCapabilities(extensions={"a/b": {"x": 1}}), ClientCapabilities(extensions={"a/b": {"x": True}}), False),
        (
            ClientCapabilities(extensions={"a/b": {"x": ["p", "q"]}}),
            ClientCapabilities(extensions={"a/b": {"x": ["q"]}}),
            True,
        ),
        (ClientCapabilities(extensions={"a/b": {}}), ClientCapabilities(extensions={"a/b": {}}), True),
        (ClientCapabilities(extensions={"a/b": {}}), ClientCapabilities(extensions={"a/c": {}}), False),
    ],
)
def test_check_capability(declared: ClientCapabilities, wanted: ClientCapabilities, covered: bool) -> None:
    assert stateless(declared).check_capability(wanted) is covered


async def test_without_a_channel_requests_raise_and_notifications_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    connection = stateless()
    with pytest.raises(NoBackChannelError, match="roots/list"):
        await connection.send_raw_request("roots/list")
    with pytest.raises(NoBackChannelError):
        await connection.send_request("roots/list", None, ListRootsResult)
    with caplog.at_level(logging.DEBUG, "weft.connection"):
        await connection.notify("notifications/x")
    assert "notifications/x dropped" in caplog.text


@pytest.mark.spec("JRPC-22")
def test_what_fails_here_is_not_taken_for_an_answer_of_the_peers() -> None:
    assert not issubclass(NoBackChannelError, ProtocolError)
    assert not hasattr(NoBackChannelError("x"), "code")


async def test_with_a_channel() -> None:
    channel = Channel({"roots": [{"uri": "file:///a"}]})
    connection = stateless(outbound=channel)
    assert connection.has_standalone_channel
    answer = await connection.send_request("roots/list", {"a": 1}, ListRootsResult, timeout=3)
    assert answer.roots == [Root("file:///a")]
    await connection.send_raw_request("x", None, on_progress=print)
    await connection.notify("n", {"b": 2})
    assert channel.sent == [("roots/list", {"a": 1}, 3, None), ("x", None, None, print), ("n", {"b": 2})]


async def test_notify_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "weft.connection"):
        await stateless(outbound=Channel(error=OSError("gone"))).notify("n")
    assert "n dropped: OSError" in caplog.text


def test_ids_name_one_connection_only() -> None:
    first, second = stateless(), stateless()
    assert first.connection_id == first.connection_id != second.connection_id


@pytest.mark.security("R6")
def test_a_connection_that_nobody_asks_makes_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", None)  # most requests have a connection of their own: it takes the most time
    assert stateless().state == {}


def test_in_flight_tokens_are_the_connections_own() -> None:
    first, second = stateless(), stateless()
    first.in_flight[0], second.in_flight[0] = Cancellation(), Cancellation()
    first.in_flight[0].cancel("gone")
    assert (first.in_flight[0].cancelled, second.in_flight[0].cancelled) == (True, False)
    first.state["a"] = 1
    first.subscribed_uris.add("x://y")
    assert (second.state, second.subscribed_uris) == ({}, set())


def test_connections_on_one_pipe_share_what_is_in_flight() -> None:
    pipe: dict = {}
    stateless(in_flight=pipe).in_flight[7] = token = Cancellation()
    assert stateless(in_flight=pipe).in_flight[7] is token


async def test_a_cancellation_stops_its_task_once() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    cancellation = Cancellation(task)
    await asyncio.sleep(0)
    cancellation.cancel("first")
    cancellation.cancel("second")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (cancellation.reason, task.cancelling()) == ("first", 1)


async def test_the_exit_stack_is_unwound_last_first_and_once() -> None:
    connection, closed = stateless(), []
    for name in ("first", "second"):
        connection.exit_stack.callback(closed.append, name)
    await connection.close()
    await connection.close()
    assert closed == ["second", "first"]


async def test_unwinding_is_shielded() -> None:
    connection, closed = stateless(), []

    async def slowly() -> None:
        await asyncio.sleep(0.02)
        closed.append("done")

    connection.exit_stack.push_async_callback(slowly)
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0.005)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert closed == ["done"]


async def test_a_failure_while_unwinding_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    connection = stateless()
    connection.exit_stack.callback(lambda: 1 / 0)
    await connection.close()
    assert "cleaning up a connection failed" in caplog.text


@pytest.mark.security("R1")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), BaseException("x")])
async def test_nothing_that_clean_up_raises_ends_more_than_itself(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    server, cleaned = Server("s"), []

    @server.tool
    async def work(ctx: Context) -> str:
        def fail() -> None:
            raise error

        ctx.connection.exit_stack.callback(cleaned.append, "first")
        ctx.connection.exit_stack.callback(fail)
        return "done"

    answer = await ask(server, "tools/call", {"name": "work"})
    assert answer.result["content"][0]["text"] == "done"
    assert cleaned == ["first"]
    assert "cleaning up a connection failed" in caplog.text
