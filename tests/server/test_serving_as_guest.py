"""Serving within a loop that runs already: `await server.serve(...)`, and what `run` says there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from weft import Client, Limits, Server
from weft.client.results import ToolsChanged
from weft.errors import StartError, UsageError
from weft.server.run import loading

QUICK = Limits(drain_seconds=2)


@contextlib.asynccontextmanager
async def served(
    server: Server, capsys: pytest.CaptureFixture[str], **options: Any
) -> AsyncGenerator[tuple[str, asyncio.Task[None]]]:
    """The server on a free port; its URL, and the task that serves."""
    task = asyncio.create_task(server.serve("http", port=0, **options))
    said = ""
    try:
        async with asyncio.timeout(30):
            while not (found := re.search(r" at (http://\S+)", said)):
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err
                assert not task.done()
        yield found[1], task
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.mistake("run() within a running loop")
@pytest.mark.parametrize(("transport", "call"), [("stdio", "serve()"), ("http", "serve('http')")])
async def test_run_within_a_loop_says_what_to_await(transport: str, call: str) -> None:
    with pytest.raises(StartError) as caught:
        Server("s").run(transport)  # type: ignore[arg-type] - a str
    assert str(caught.value) == (
        "server.run() starts an event loop, and one is running here already. Write "
        f"`await server.{call}` instead, or call run() outside of async functions."
    )
    assert not isinstance(caught.value, SystemExit)  # the program is not ours to end


@pytest.mark.mistake("run() within a running loop")
def test_a_program_that_runs_within_a_loop_reads_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(
        "import asyncio, weft\nserver = weft.Server('s')\n"
        "async def main():\n    server.run('http')\nasyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    for word in ("uvloop", "never awaited", "destroyed", "weft/server"):
        assert word not in done.stderr
    assert done.stderr.count("Write `await server.serve('http')` instead") == 1


async def test_it_serves_over_http_beside_the_rest_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[str]:
        yield "up"
        ended.append("lifespan")

    server = Server("s", lifespan=lifespan, limits=QUICK)

    @server.tool
    async def where() -> str:
        return str(asyncio.get_running_loop() is loop)

    loop = asyncio.get_running_loop()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with served(server, capsys) as (url, task):
        async with Client(url) as client:
            assert (await client.call_tool("where")).text == "True"
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert task.cancelled()
    assert ended == ["lifespan"]


async def test_a_request_that_is_being_served_gets_the_time_to_finish(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("s", limits=QUICK)
    begun = asyncio.Event()

    @server.tool
    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.3)
        return "done"

    async with served(server, capsys) as (url, task), Client(url) as client:
        asked = asyncio.create_task(client.call_tool("slow"))
        await begun.wait()
        task.cancel()
        assert (await asked).text == "done"


@pytest.mark.parametrize("mode", ["stateless", "session"])
@pytest.mark.parametrize("sessions", [True, False])
@pytest.mark.parametrize("pause", [None, 0, 0.3], ids=["waits", "at once", "in the drain"])
async def test_nothing_is_left_in_the_loop(
    capsys: pytest.CaptureFixture[str], mode: Any, sessions: bool, pause: float | None
) -> None:
    """Neither when the drain is over nor for who cancels twice, and does not wait for it."""
    told: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[str]:
        yield "up"
        told.append("lifespan")

    server = Server("s", lifespan=lifespan, limits=Limits(drain_seconds=0.2 if pause is None else 60))
    begun = asyncio.Event()

    @server.tool
    async def hang() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.append("call")
        return ""

    before = asyncio.all_tasks()
    async with served(server, capsys, sessions=sessions) as (url, task), Client(url, eras=[mode]) as client:
        asked = asyncio.create_task(client.call_tool("hang"))
        await begun.wait()
        task.cancel()
        if pause is not None:
            await asyncio.sleep(pause)
            task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()
        assert (told, server.engine.in_flight) == (["call", "lifespan"], 0)
        assert not server.engine.open_calls._since
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        asked.cancel()
        await asyncio.wait([asked])
    await asyncio.sleep(0.1)  # for what the client had under way
    assert asyncio.all_tasks() == before


async def test_it_can_be_served_again_in_the_same_loop(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("s", limits=QUICK)
    server.add_tool(lambda: "x", name="x")
    for mode in ("stateless", "session", "stateless"):
        async with (
            served(server, capsys) as (url, _),
            Client(url, eras=[mode]) as client,  # type: ignore[arg-type] - a str
            client.listen(tools=True) as changes,
        ):
            server.notify_tools_changed()
            assert await asyncio.wait_for(anext(aiter(changes)), 30) == ToolsChanged()


async def test_the_last_of_several_ends_what_they_share(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[str]:
        told.append("up")
        yield ""
        told.append("down")

    server = Server("s", lifespan=lifespan, limits=QUICK)
    server.add_tool(lambda: "x", name="x")
    async with served(server, capsys) as (url, _), Client(url, eras=["session"]) as client:
        session = next(iter(server.engine.sessions._opened.used))
        async with client.listen(tools=True) as changes:
            async with served(server, capsys) as (other, _), Client(other) as somebody:
                await somebody.list_tools()
            server.notify_tools_changed()
            assert await asyncio.wait_for(anext(aiter(changes)), 30) == ToolsChanged()
        assert list(server.engine.sessions._opened.used) == [session]
        assert told == ["up"]
    assert told == ["up", "down"]
    assert server.engine.serving == 0


async def test_it_may_drain_without_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("s", limits=Limits(drain_seconds=float("inf")))
    async with served(server, capsys) as (_, task):
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()


async def test_a_lifespan_that_is_still_being_entered_does_not_keep_it() -> None:
    entering = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        entering.set()
        await asyncio.Event().wait()
        yield

    task = asyncio.create_task(Server("s", lifespan=lifespan).serve("http", port=0))
    await asyncio.wait_for(entering.wait(), 30)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()


async def test_a_lifespan_that_fails_is_the_callers_to_know() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[str]:
        raise ValueError("no database")
        yield ""

    with pytest.raises(ValueError, match="no database"):
        await Server("s", lifespan=lifespan).serve("http", port=0)


def test_it_serves_on_stdio_within_a_loop(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(
        "import asyncio, weft\nserver = weft.Server('s')\n@server.tool\ndef tea() -> str:\n    return 'green'\n"
        "async def main():\n    await server.serve()\nasyncio.run(main())\n"
    )

    async def call() -> str:
        async with Client([sys.executable, str(script)]) as client:
            return (await client.call_tool("tea")).text

    assert asyncio.run(call()) == "green"


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_ends_it_as_it_ends_the_loop(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(
        "import asyncio, weft\nserver = weft.Server('s')\n@server.tool\ndef tea() -> str:\n    return 'green'\n"
        "async def main():\n    try:\n"
        "        await server.serve('http', port=0)\n    finally:\n        print('tidied up')\n"
        "try:\n    asyncio.run(main())\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert "Weft serves 's' at http" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            said, logged = process.communicate(timeout=30)
            assert said == "tidied up\ninterrupted\n"
            assert "Traceback" not in logged
        finally:
            process.kill()  # else a process that did not hear it would be waited for without end


async def test_what_it_cannot_do_is_said() -> None:
    server = Server("s")
    with pytest.raises(StartError, match=r"server\.serve has one worker: the process of the loop. Leave workers= out"):
        await server.serve("http", workers=2)
    with pytest.raises(UsageError, match=r"server\.serve has no option 'prt' .*Did you mean 'port'\?"):
        await server.serve("http", prt=3)
    with pytest.raises(StartError, match="There is no transport 'tcp'"):
        await server.serve("tcp")  # type: ignore[arg-type] - the mistake


async def test_in_a_file_that_is_being_loaded_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_loading", True)
    await Server("s").serve("http", port=0)
