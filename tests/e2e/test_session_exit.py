"""The end of a process that has sessions: streams, questions and calls without a client do not hold it up."""

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.raw_sessions import FORM, SocketPeer, called

PROGRAM = """
import asyncio, sys
from contextlib import asynccontextmanager
from weft import Context, Limits, Server
from support.raw_sessions import Reply

def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

@asynccontextmanager
async def lifespan(server):
    yield
    say("lifespan ended")

server = Server("ending", limits=Limits(drain_seconds=1), lifespan=lifespan)

@server.tool
async def hold(ctx: Context) -> None:
    ctx.connection.exit_stack.callback(say, "stack unwound")

@server.tool
async def ask(ctx: Context) -> str:
    try:
        return (await ctx.elicit("Tea?", Reply)).action
    finally:
        say("question ended")

@server.tool
async def wait(ctx: Context) -> None:
    try:
        await ctx.report_progress(1)
        await asyncio.sleep(60)
    finally:
        say("call ended")

{run}
"""
OURS = 'server.run("http", port=0)'
PLAIN = """
import uvicorn

class Announced(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        say(f"serves at :{self.servers[0].sockets[0].getsockname()[1]}/mcp")

config = uvicorn.Config(server.asgi(), port=0, lifespan="on", log_level="warning", timeout_graceful_shutdown=1)
Announced(config).run()
"""
STUBBORN = """
@server.tool
async def stay() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            say("not yet")

"""


class Ending:
    """A process that serves, and is told to end."""

    def __init__(self, file: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self.process = subprocess.Popen([sys.executable, str(file)], stderr=subprocess.PIPE, bufsize=0, env=environment)
        self.said = ""
        self.port = int(self.until(r":(\d+)/mcp")[1])

    def until(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """Wait for what it says."""
        assert self.process.stderr is not None
        while not (found := re.search(pattern, self.said)):
            assert select.select([self.process.stderr], [], [], seconds)[0], self.said
            self.said += os.read(self.process.stderr.fileno(), 1 << 16).decode()
        return found

    def end(self) -> float:
        """The seconds that it took to end."""
        assert self.process.stderr is not None
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.said += self.process.stderr.read().decode()
        return time.monotonic() - begun


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Ending]]:
    started: list[Ending] = []

    def run(program: str) -> Ending:
        file = tmp_path / "program.py"
        file.write_text(PROGRAM.replace("{run}", program))
        started.append(Ending(file))
        return started[-1]

    yield run
    for ending in started:
        ending.process.kill()
        ending.process.communicate()


@pytest.mark.security("D15")
@pytest.mark.parametrize("run", [OURS, PLAIN], ids=["weft", "uvicorn"])
async def test_nothing_that_sessions_have_open_holds_up_the_end(start: Callable[[str], Ending], run: str) -> None:
    ending = start(run)
    peers = [SocketPeer(ending.port) for _ in range(5)]
    for peer in peers:
        await peer.open(capabilities=FORM)
        await (await peer.post(called("hold", 1))).body()
    streams = [await peer.get() for peer in peers]
    await (await peers[0].post(called("ask", 2))).question()
    detached = await peers[1].post(called("wait", 3, progress="p"))
    await detached.message()
    await detached.close()  # the call goes on
    resumed = await peers[2].post(called("wait", 4, progress="p"))
    await resumed.message()
    again = await peers[2].get(resumed.events[0].id)
    await again.message()
    await asyncio.sleep(0.1)
    seconds = await asyncio.to_thread(ending.end)
    assert seconds < 1 + 8  # the drain, and what a process takes to end on a busy machine
    assert ending.said.count("stack unwound") == 5
    assert ending.said.count("question ended") == 1
    assert ending.said.count("call ended") == 2
    assert ending.said.count("lifespan ended") == 1
    assert ending.said.index("lifespan ended") > ending.said.rindex("stack unwound")
    for stream in [*streams, again]:
        await stream.body()
    assert ending.process.returncode in (0, -signal.SIGTERM)


@pytest.mark.security("D15")
@pytest.mark.parametrize("run", [OURS, PLAIN], ids=["weft", "uvicorn"])
async def test_streams_alone_do_not_wait_for_the_drain(start: Callable[[str], Ending], run: str) -> None:
    if run is PLAIN:  # it does not know of them: docs/how-to/mount.md says how to tell it
        run = run.replace("Announced(config).run()", "running = Announced(config)\n") + (
            "before = running.handle_exit\n"
            "def handle_exit(number, frame):\n    config.app.close_streams()\n    before(number, frame)\n"
            "running.handle_exit = handle_exit\nrunning.run()\n"
        )
    ending = start(run.replace("graceful_shutdown=1", "graceful_shutdown=8"))
    peers = [SocketPeer(ending.port) for _ in range(5)]
    for peer in peers:
        await peer.open()
        await peer.get()
    assert await asyncio.to_thread(ending.end) < 2
    assert "lifespan ended" in ending.said


@pytest.mark.security("D15", "R1")
async def test_a_call_that_will_not_end_does_not_keep_the_process(start: Callable[[str], Ending]) -> None:
    ending = start(STUBBORN + OURS)  # a plain uvicorn ends with asyncio.run, which waits for every task
    peers = [SocketPeer(ending.port) for _ in range(3)]
    for peer in peers:
        await peer.open()
        await peer.begin(called("stay", 1))
    await asyncio.sleep(0.1)
    assert await asyncio.to_thread(ending.end) < 1 + 1 + 1 + 2  # the drain, the sessions, the loop, and a busy machine
    assert "lifespan ended" in ending.said
