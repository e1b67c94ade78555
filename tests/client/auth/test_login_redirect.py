"""The way to the authorization server and back: a real listener, and whoever knocks at it."""

import asyncio
import contextlib
import socket
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from weft.client.auth import FunctionRedirect, LoopbackRedirect
from weft.errors import AuthorizationFailed, UsageError

PAGE = "https://auth.example/authorize?state=s1"


async def knock(url: str) -> tuple[int, str, dict[str, str]]:
    def fetch():
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return reply.status, reply.read().decode(), dict(reply.headers)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.status, refusal.read().decode(), dict(refusal.headers)

    return await asyncio.to_thread(fetch)


async def test_the_browser_is_opened_and_comes_back():
    opened = []
    async with LoopbackRedirect(open_browser=opened.append).listening([]) as listener:
        visiting = asyncio.create_task(listener.visit(PAGE, "s1"))
        await asyncio.sleep(0.05)
        status, page, headers = await knock(f"{listener.uri}?code=c&state=s1&iss=https%3A%2F%2Fauth.example")
        assert await visiting == f"{listener.uri}?code=c&state=s1&iss=https%3A%2F%2Fauth.example"
    assert opened == [PAGE]
    assert status == 200
    assert "close this page" in page
    assert headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    with pytest.raises(urllib.error.URLError):
        await knock(listener.uri)


@pytest.mark.spec("ASEC-11")
async def test_only_the_answer_to_this_login_ends_the_wait():
    async with LoopbackRedirect(open_browser=lambda _: True).listening([]) as listener:
        assert (await knock(f"{listener.uri}?code=early&state="))[0] == 400
        visiting = asyncio.create_task(listener.visit(PAGE, "s1"))
        await asyncio.sleep(0.05)
        other = listener.uri.replace("/callback", "/favicon.ico")
        assert (await knock(other))[0] == 404
        for query in ("", "?code=evil", "?code=evil&state=s2", "?code=evil&state=s1&state=s1"):
            assert (await knock(f"{listener.uri}{query}"))[0] == 400
        await garbage(listener.uri)
        assert not visiting.done()
        assert (await knock(f"{listener.uri}?error=access_denied&state=s1"))[0] == 200
        assert (await visiting).endswith("?error=access_denied&state=s1")
        assert (await knock(f"{listener.uri}?code=second&state=s1"))[0] == 400


async def garbage(uri: str) -> None:
    for data in (b"\x00\xff\r\n\r\n", b"POST /callback?state=s1 HTTP/1.1\r\n\r\n", b"x" * 40_000, b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(uri).port)
        writer.write(data)
        if not data:
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 30)
        writer.close()


class Foreground:
    """A browser that runs until it is closed, as one in a terminal does."""

    def __init__(self):
        self.is_open, self.has_ended, self._closed = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, url: str) -> bool:
        self.is_open.set()
        self._closed.wait(60)
        self.has_ended.set()
        return True

    async def close(self) -> None:
        self._closed.set()
        await asyncio.to_thread(self.has_ended.wait, 30)


async def test_a_browser_that_runs_until_it_is_closed_holds_up_nobody():
    browser = Foreground()
    async with LoopbackRedirect(open_browser=browser).listening([]) as listener:
        visiting = asyncio.create_task(listener.visit(PAGE, "s1"))
        assert await asyncio.to_thread(browser.is_open.wait, 30)
        await knock(f"{listener.uri}?code=c&state=s1")
        assert await visiting == f"{listener.uri}?code=c&state=s1"
    assert not browser.has_ended.is_set()
    await browser.close()


async def test_a_browser_that_runs_is_not_waited_for_when_nobody_comes():
    browser = Foreground()
    async with LoopbackRedirect(open_browser=browser, seconds=0.05).listening([]) as listener:
        with pytest.raises(AuthorizationFailed, match="The login was not finished"):
            await listener.visit(PAGE, "s1")
    assert not browser.has_ended.is_set()
    await browser.close()


async def test_what_a_browser_raises_ends_the_login():
    async with LoopbackRedirect(open_browser=lambda _: 1 / 0).listening([]) as listener:
        with pytest.raises(ZeroDivisionError):
            await listener.visit(PAGE, "s1")


async def test_nobody_comes():
    async with LoopbackRedirect(open_browser=lambda _: True, seconds=0.05).listening([]) as listener:
        with pytest.raises(AuthorizationFailed, match="The login was not finished"):
            await listener.visit(PAGE, "s1")


async def test_a_silent_connection_is_closed_without_a_traceback():
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with LoopbackRedirect().listening([]) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(listener.uri).port)
        await asyncio.sleep(0.05)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    assert failures == []


@pytest.mark.parametrize("browser", [lambda _: False, lambda _: (_ for _ in ()).throw(OSError("none"))])
async def test_without_a_browser_the_person_is_told_where_to_go(browser):
    told = []
    redirect = LoopbackRedirect(open_browser=browser, tell=told.append, seconds=0.05)
    async with redirect.listening([]) as listener:
        with pytest.raises(AuthorizationFailed):
            await listener.visit(PAGE, "s1")
    assert told == [PAGE]


async def test_a_person_is_told_on_stderr(capsys):
    redirect = LoopbackRedirect(open_browser=lambda _: False, seconds=0.05)
    async with redirect.listening([]) as listener:
        with pytest.raises(AuthorizationFailed):
            await listener.visit(PAGE, "s1")
    captured = capsys.readouterr()
    assert PAGE in captured.err
    assert captured.out == ""


async def test_the_port_that_is_registered_is_taken_again():
    redirect = LoopbackRedirect(open_browser=lambda _: True)
    async with redirect.listening([]) as listener:
        first = listener.uri
    async with redirect.listening(["https://app.example/callback", first]) as listener:
        assert listener.uri == first
        async with redirect.listening([first]) as second:
            assert second.uri != first  # it is taken: any other will do


async def test_a_port_that_has_to_be_and_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AuthorizationFailed, match=f"port {port}"):
            async with LoopbackRedirect(port=port).listening([]):
                pass


async def test_a_function_takes_the_persons_part():
    async def visit(url: str) -> str:
        return f"{url}&came=back"

    for function in (visit, lambda url: f"{url}&came=back"):
        async with FunctionRedirect(function, "http://localhost:3000/callback").listening([]) as listener:
            assert listener.uri == "http://localhost:3000/callback"
            assert await listener.visit(PAGE, "s1") == f"{PAGE}&came=back"
    async with FunctionRedirect(lambda _: None, "https://app.example/cb").listening([]) as listener:
        with pytest.raises(UsageError, match="must return"):
            await listener.visit(PAGE, "s1")


@pytest.mark.spec("ASEC-05")
def test_a_redirect_uri_that_is_not_safe():
    for uri in ("http://app.example/cb", "myapp:/cb", "localhost:3000"):
        with pytest.raises(UsageError, match="redirect_uri"):
            FunctionRedirect(lambda url: url, uri)
    with pytest.raises(UsageError, match="slash"):
        LoopbackRedirect(path="callback")
