"""A real browser without a window: headless Chromium, told what to do over the DevTools protocol."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

__all__ = ["Page", "browsing", "find_chromium"]

_SECONDS = 120.0  # for anything to come true: its first start from a cold disk takes half a minute
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # tests may be run by root, as whom there is no sandbox; it sees nothing but the tests' own pages
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """Where it is installed."""
    return shutil.which("chromium")


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0

    async def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page; None while it has none, for it is being replaced."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, userGesture=True)
        return answer.get("result", {}).get("result", {}).get("value")

    async def wait(self, script: str) -> Any:
        """The value of an expression, as soon as it has one that is true."""
        async with asyncio.timeout(_SECONDS):
            while True:
                if value := await self.evaluate(script):
                    return value
                await asyncio.sleep(0.05)

    async def type(self, selector: str, text: str) -> None:
        """Enter text into a field, as a keyboard does."""
        await self.wait(f"(it => it && (it.focus(), document.activeElement === it))({_found(selector)})")
        await self.call("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        """Click on something."""
        await self.wait(f"(it => it && (it.click(), true))({_found(selector)})")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and wait for its answer."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while True:
            told = await self._socket.receive_json(timeout=_SECONDS)
            if told.get("id") == self._calls:
                return told


def _found(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})"


@asynccontextmanager
async def browsing(url: str, profile: Path) -> AsyncIterator[Page]:
    """A browser that has just been started with a URL, with a profile of its own; gone when the block ends."""
    program = find_chromium()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        *_OPTIONS,
        f"--user-data-dir={profile}",
        url,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"HOME": str(profile)},
    )
    try:
        async with aiohttp.ClientSession() as session, session.ws_connect(await _tab(session, profile, url)) as socket:
            yield Page(socket)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _tab(session: aiohttp.ClientSession, profile: Path, url: str) -> str:
    """The address at which the tab takes commands, as soon as there is one."""
    told = profile / "DevToolsActivePort"
    async with asyncio.timeout(_SECONDS):
        while True:
            await asyncio.sleep(0.05)
            lines = told.read_text().splitlines() if told.exists() else []
            if len(lines) < 2:
                continue
            async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                tabs = json.loads(await answer.text())
            for tab in tabs:
                if tab["type"] == "page" and tab["url"].partition("?")[0] == url.partition("?")[0]:
                    return str(tab["webSocketDebuggerUrl"])
