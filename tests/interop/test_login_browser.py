"""A person logs in with a real browser: Weft's client opens it, Weft's authorization server shows it a page."""

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from processes import listening, skip_without

from support.chromium import Page, browsing, find_chromium
from support.ports import find_port
from weft import AuthorizationFailed, Client
from weft.auth import OAuth
from weft.client.auth import LoopbackRedirect

PROTECTED = Path(__file__).parent / "servers" / "protected.py"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    skip_without("chromium", Path(find_chromium() or "chromium"))
    port = find_port()
    with listening([sys.executable, str(PROTECTED), str(port)], port):
        yield f"http://127.0.0.1:{port}/mcp"


class Person:
    """Sits before the browser: reads the page, does something there, and tells what it saw before and after."""

    def __init__(self, profile: Path, action: str) -> None:
        self._profile = profile
        self._action = action
        self._loop = asyncio.get_running_loop()
        self.saw: Future[tuple[str, str]] | None = None

    def open_browser(self, url: str) -> bool:
        self.saw = asyncio.run_coroutine_threadsafe(self._go(url), self._loop)
        return True

    async def _go(self, url: str) -> tuple[str, str]:
        async with browsing(url, self._profile) as page:
            asked = str(await page.wait("document.querySelector('form') && document.body.innerText"))
            await self._log_in(page)
            # The browser is sent back to the client's own listener.
            return asked, await page.wait("location.pathname == '/callback' && document.body?.innerText")

    async def _log_in(self, page: Page) -> None:
        if self._action == "allow":
            await page.type("input[name=username]", "ann")
            await page.type("input[name=password]", "correct horse")
        await page.click(f"button[value={self._action}]")


@pytest.mark.security("R10")
@pytest.mark.spec("ASEC-12", "AUTH-03")
async def test_a_browser_completes_the_login(url: str, tmp_path: Path) -> None:
    person = Person(tmp_path, "allow")
    auth = OAuth(client_name="The test", redirect=LoopbackRedirect(open_browser=person.open_browser, seconds=120))
    async with Client(url, auth=auth) as client:
        assert (await client.call_tool("who", {})).text == "ann"
    assert person.saw is not None
    asked, done = await asyncio.wrap_future(person.saw)
    assert "The test asks for access" in asked
    assert "your own machine" in asked
    assert "You may close this page" in done


async def test_a_person_who_declines_in_the_browser_is_told_that_the_page_may_be_closed(
    url: str, tmp_path: Path
) -> None:
    person = Person(tmp_path, "deny")
    auth = OAuth(redirect=LoopbackRedirect(open_browser=person.open_browser, seconds=120))
    with pytest.raises(AuthorizationFailed, match="did not allow"):
        async with Client(url, auth=auth) as client:
            await client.call_tool("who", {})
    assert person.saw is not None
    _, done = await asyncio.wrap_future(person.saw)
    assert "Not logged in" in done
    assert "You may close this page" in done
