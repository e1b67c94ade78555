"""`ctx.wait` of plain functions: what is awaited finds a thread, and ends when the call is cancelled."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.raw_sessions import FORM, AppPeer, Reply, called, message
from support.rounds import call, text
from weft import Client, Context, Limits, Server

# --- Threads.


def crowded() -> Server:
    """A server with two threads, whose functions wait for each other, and then need a thread more."""
    server, both = Server("crowded", limits=Limits(threads=2)), threading.Barrier(2)

    def wait(ctx: Context) -> str:
        both.wait(30)
        return ctx.wait(ctx.once("a", str, "done")) + ctx.wait(ctx.once("b", str, " twice"))

    server.tool(wait, name="tool")
    server.prompt(wait, name="prompt")

    @server.resource("x://fixed")
    def fixed(ctx: Context) -> str:
        return wait(ctx)

    @server.resource("x://{name}")
    def template(name: str, ctx: Context) -> str:
        return wait(ctx)

    @server.tool
    async def fails() -> None:
        raise LookupError

    @server.on_error(LookupError)
    def explain(_: LookupError, ctx: Context) -> str:
        return wait(ctx)

    return server


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "tool"}),
        ("tools/call", {"name": "fails"}),
        ("prompts/get", {"name": "prompt"}),
        ("resources/read", {"uri": "x://fixed"}),
        ("resources/read", {"uri": "x://any"}),
    ],
)
async def test_functions_that_take_all_threads_and_need_one_more_are_answered(
    method: str, params: dict[str, Any]
) -> None:
    server = crowded()
    async with asyncio.timeout(20):
        responses = await asyncio.gather(*(call(server, method=method, **params) for _ in range(2)))
    assert all("done twice" in str(response.result) for response in responses)
    await server.stop()


async def test_a_function_of_once_may_wait_for_another_one() -> None:
    server = Server("nested", limits=Limits(threads=1))

    @server.tool
    def run(ctx: Context) -> str:
        def outer() -> str:
            return "outer " + ctx.wait(ctx.once("inner", str, "inner"))

        async def both() -> list[str]:
            return await asyncio.gather(ctx.once("outer", outer), ctx.once("next", str, "next"))

        return " ".join(ctx.wait(both()))

    async with asyncio.timeout(20):
        assert text((await call(server)).result) == "outer inner next"
    await server.stop()


async def test_an_exit_in_what_is_awaited_ends_the_call_and_not_the_loop() -> None:
    server = Server("exits", limits=Limits(threads=1))

    @server.tool
    def run(ctx: Context) -> None:
        ctx.wait(ctx.once("exit", exit))

    assert (await call(server)).result["isError"]
    await server.stop()


# --- Cancellation.


class Waiting:
    """A server with a tool that calls `handler` with itself and the context, and what happened there."""

    def __init__(self, handler: Callable[["Waiting", Context], Any]) -> None:
        self.seen: list[str] = []
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self.go_on = threading.Event()
        self.server = Server("waiting")
        loop = asyncio.get_running_loop()

        @self.server.tool
        def run(ctx: Context) -> None:
            try:
                handler(self, ctx)
            except BaseException as error:
                self.seen.append(type(error).__name__)
                raise
            finally:
                loop.call_soon_threadsafe(self.ended.set)

    async def long(self) -> None:
        self.began.set()
        await asyncio.sleep(3600)

    def work(self, ctx: Context) -> None:
        """Do something without waiting for the event loop, until the call was cancelled."""
        ctx.wait(self.begin())
        assert self.go_on.wait(30)

    async def begin(self) -> None:
        self.began.set()

    async def cancelled(self, cancel: "Cancel") -> list[str]:
        """Call the tool, cancel the call when it is under way, and return what was seen when the handler has ended."""
        async with asyncio.timeout(20):
            await cancel(self)
            await self.ended.wait()
        await self.server.stop()
        return self.seen

    async def end(self) -> None:
        """Go on, after the call was cancelled, and wait for the handler."""
        self.go_on.set()
        await self.ended.wait()


Cancel = Callable[[Waiting], Awaitable[None]]


async def in_session(waiting: Waiting) -> None:
    peer = AppPeer(waiting.server.asgi())
    await peer.open(capabilities=FORM)
    running = asyncio.create_task(peer.post(called("run", 5)))
    await waiting.began.wait()
    assert (await peer.post(message("notifications/cancelled", {"requestId": 5}))).status == 202
    await running
    await waiting.end()
    await peer.leave()


async def by_disconnecting(waiting: Waiting) -> None:
    peer = AppPeer(waiting.server.asgi())
    running = asyncio.create_task(peer.stateless("tools/call", {"name": "run"}))
    await waiting.began.wait()
    await peer.exchanges[0].close()
    await running
    await waiting.end()
    await peer.leave()


async def over_a_pipe(waiting: Waiting) -> None:
    async with Client(waiting.server) as client:
        running = asyncio.create_task(client.call_tool("run"))
        await waiting.began.wait()
        running.cancel()
        await asyncio.wait([running])
        await waiting.end()


@pytest.mark.parametrize("cancel", [in_session, by_disconnecting, over_a_pipe])
async def test_the_wait_of_a_cancelled_call_ends_with_an_error_that_is_not_caught_by_mistake(cancel: Cancel) -> None:
    def handler(waiting: Waiting, ctx: Context) -> None:
        try:
            ctx.wait(waiting.long())
        except Exception as error:
            waiting.seen.append(f"caught {error!r}")

    assert await Waiting(handler).cancelled(cancel) == ["CancelledError"]


@pytest.mark.parametrize("cancel", [in_session, by_disconnecting, over_a_pipe])
async def test_a_call_that_was_cancelled_between_two_waits_is_told_by_the_next_one_that_blocks(cancel: Cancel) -> None:
    def handler(waiting: Waiting, ctx: Context) -> None:
        waiting.work(ctx)
        ctx.wait(ctx.report_progress(1))
        waiting.seen.append("reported")
        ctx.wait(waiting.long())

    assert await Waiting(handler).cancelled(cancel) == ["reported", "CancelledError"]


async def test_a_question_of_a_cancelled_call_is_withdrawn() -> None:
    def handler(waiting: Waiting, ctx: Context) -> None:
        ctx.wait(ctx.elicit("Name?", Reply))

    waiting = Waiting(handler)
    peer = AppPeer(waiting.server.asgi())
    await peer.open(capabilities=FORM)
    stream = await peer.get()
    exchange = await peer.post(called("run", 5))
    question = await exchange.question()
    await peer.post(message("notifications/cancelled", {"requestId": 5}))
    async with asyncio.timeout(20):
        await waiting.ended.wait()
        told = await stream.question("notifications/cancelled")
    assert told["params"]["requestId"] == question["id"]
    assert waiting.seen == ["CancelledError"]
    await waiting.server.stop()
    await peer.leave()


@pytest.mark.parametrize("told_by", ["the error", "ctx.cancelled"])
async def test_a_handler_that_knows_of_the_cancellation_can_clean_up(told_by: str) -> None:
    def handler(waiting: Waiting, ctx: Context) -> None:
        if told_by == "the error":
            with pytest.raises(asyncio.CancelledError):
                ctx.wait(waiting.long())
        else:
            waiting.work(ctx)
            assert ctx.cancelled
        for _ in range(2):
            ctx.wait(asyncio.sleep(0.001))
        ctx.wait(ctx.once("clean up", waiting.seen.append, "cleaned up"))

    assert await Waiting(handler).cancelled(in_session) == ["cleaned up"]


async def test_each_thread_of_a_cancelled_call_is_told() -> None:
    def handler(waiting: Waiting, ctx: Context) -> None:
        def part() -> None:
            waiting.work(ctx)
            try:
                ctx.wait(asyncio.sleep(3600))
            except asyncio.CancelledError:
                waiting.seen.append("part")

        thread = threading.Thread(target=part)
        thread.start()
        try:
            ctx.wait(asyncio.sleep(3600))
        finally:
            thread.join(30)

    assert await Waiting(handler).cancelled(in_session) == ["part", "CancelledError"]


async def test_what_is_awaited_may_be_cancelled_without_the_call() -> None:
    server = Server("cancels")

    @server.tool
    def run(ctx: Context) -> str:
        async def cancels() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(3600)

        with pytest.raises(asyncio.CancelledError):
            ctx.wait(cancels())
        return f"{ctx.cancelled} {ctx.wait(asyncio.sleep(0.001, 'goes on'))}"

    assert text((await call(server)).result) == "False goes on"
    await server.stop()


async def test_a_call_that_waits_often_keeps_nothing_of_it() -> None:
    server = Server("often")

    @server.tool
    def run(ctx: Context) -> str:
        for _ in range(100):
            ctx.wait(asyncio.sleep(0))
        return f"{len(ctx._call.cancellation.happened._callbacks or ())}"

    assert text((await call(server)).result) in "01"  # the event loop may be about to remove the last one
    await server.stop()
