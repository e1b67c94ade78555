"""Proxies as a client uses them, over real sockets: named or found in the environment, with credentials or without."""

import base64
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Authority, serving
from support.fakes import DISCOVERED, Exchange, http_server
from support.proxying import FakeProxy
from weft import Client, ConnectionFailed, Http
from weft.client.auth import Fetcher
from weft.client.http.wire import read_proxy, why_unreached
from weft.errors import UsageError
from weft.net.fetch import FetchFailed, HttpRequest

TEXT = {"content": [{"type": "text", "text": "done"}]}
DEAD = "127.0.0.1:1"
SECRET = "s3cr3t"
SCHEMES = ["http", "https"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "known to the test")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One without proxies."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


class Target:
    """The server beyond the proxy: it remembers the headers of what reaches it."""

    def __init__(self, authority: Authority, scheme: str) -> None:
        self.authority = authority
        self.is_tls = scheme == "https"
        self.seen: list[dict[str, str]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        context = serving(self.authority.issue("localhost")) if self.is_tls else None
        async with http_server(self._answer, tls=context) as url:
            yield url

    async def _answer(self, exchange: Exchange) -> None:
        self.seen.append(exchange.headers)
        await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else TEXT)

    async def call(self, url: str, **options: Any) -> str:
        async with Client(Http(url, tls=self.authority.trusted(), **options)) as client:
            return (await client.call_tool("t")).text

    async def refused(self, url: str, **options: Any) -> str:
        """What is said of a proxy that leads nowhere; nothing has reached the server then."""
        with pytest.raises(ConnectionFailed) as caught:
            await self.call(url, **options)
        assert self.seen == []
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        return str(caught.value).removeprefix(f"{url} cannot be reached: ")


@pytest.fixture(params=SCHEMES)
def target(request: pytest.FixtureRequest, authority: Authority) -> Target:
    return Target(authority, request.param)


def is_through(proxy: FakeProxy, url: str) -> bool:
    """Whether all that was sent went through a proxy, in a tunnel where that has to be."""
    place = url.split("/")[2]
    if url.startswith("https"):
        return set(proxy.seen) == {f"CONNECT {place} HTTP/1.1"}
    return set(proxy.seen) == {f"POST {url} HTTP/1.1"}


# --- named


async def test_a_proxy_that_is_named(target: Target) -> None:
    proxy = FakeProxy()
    async with target.running() as url, proxy.running() as place:
        assert await target.call(url, proxy=f"http://{place}") == "done"
    assert is_through(proxy, url)
    assert set(proxy.told) == {None}


@pytest.mark.parametrize(
    ("written", "meant"), [("ann:s3cr3t", "ann:s3cr3t"), ("a%3An:%40%2F%25", "a:n:@/%"), ("ann", "ann:")]
)
async def test_credentials_go_to_the_proxy_alone(target: Target, written: str, meant: str) -> None:
    proxy = FakeProxy(meant)
    async with target.running() as url, proxy.running() as place:
        assert await target.call(url, proxy=f"http://{written}@{place}") == "done"
    assert is_through(proxy, url)
    assert set(proxy.told) == {f"Basic {base64.b64encode(meant.encode()).decode()}"}
    assert target.seen
    for headers in target.seen:
        assert "proxy-authorization" not in headers
        assert "authorization" not in headers


async def test_a_proxy_that_is_reached_over_tls(target: Target) -> None:
    proxy = FakeProxy(f"ann:{SECRET}")
    context = serving(target.authority.issue("localhost"))
    async with target.running() as url, proxy.running(context) as place:
        assert await target.call(url, proxy=f"https://ann:{SECRET}@{place}") == "done"
    assert is_through(proxy, url)


async def test_a_proxy_whose_certificate_is_not_trusted(tmp_path: Path, target: Target) -> None:
    proxy = FakeProxy()
    stranger = Authority(tmp_path, "known to nobody")
    async with target.running() as url, proxy.running(serving(stranger.issue("localhost"))) as place:
        said = await target.refused(url, proxy=f"https://{place}")
    assert said.startswith(f"the proxy https://{place} cannot be used: its certificate is not trusted (")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "wants credentials; write them into `proxy`, as http://name:password@host:port."),
        (f"ann:{SECRET}@", "does not accept the name and password in `proxy`; check them."),
    ],
)
async def test_a_proxy_that_wants_other_credentials(target: Target, given: str, said: str) -> None:
    proxy = FakeProxy("ann:another")
    async with target.running() as url, proxy.running() as place:
        assert await target.refused(url, proxy=f"http://{given}{place}") == f"the proxy http://{place} {said}"
    assert len(proxy.seen) == 1  # it is not the server's answer, which another era might get another of


async def test_a_proxy_that_wants_credentials_in_another_form(target: Target) -> None:
    proxy = FakeProxy("x", form="Negotiate")
    async with target.running() as url, proxy.running() as place:
        said = await target.refused(url, proxy=f"http://ann:{SECRET}@{place}")
    assert said == (
        f"the proxy http://{place} requires another authentication scheme than Basic, which is not supported."
    )


async def test_a_proxy_that_does_not_get_there(authority: Authority) -> None:
    target, proxy = Target(authority, "https"), FakeProxy(refuses="502 Bad Gateway")
    async with target.running() as url, proxy.running() as place:
        said = await target.refused(url, proxy=f"http://ann:{SECRET}@{place}")
    assert said == (
        f"the proxy http://{place} answered with the HTTP status 502: it does not get there, or does not allow it."
    )


async def test_a_dead_proxy(target: Target) -> None:
    async with target.running() as url:
        said = await target.refused(url, proxy=f"http://ann:{SECRET}@{DEAD}")
        assert said == f"the proxy http://{DEAD} cannot be connected to; check `proxy`."
        said = await target.refused(url, proxy="http://nowhere.invalid:3128")
        assert said == "the proxy http://nowhere.invalid:3128 cannot be connected to; check `proxy`."


def test_a_proxy_is_named_where_it_takes_too_long() -> None:
    proxy = read_proxy(f"http://ann:{SECRET}@proxy.example:3128")
    assert why_unreached("https://x.example/mcp?key=1", TimeoutError(), proxy=proxy, connect_seconds=10) == (
        "https://x.example/mcp did not accept a connection through the proxy http://proxy.example:3128 within 10 s. "
        "Is it running, or does a firewall block it?"
    )


async def test_certificates_are_checked_through_a_proxy(authority: Authority) -> None:
    target, proxy = Target(authority, "https"), FakeProxy()
    async with target.running() as url, proxy.running() as place:
        with pytest.raises(ConnectionFailed, match="its certificate is not trusted"):
            async with Client(Http(url, proxy=f"http://{place}")):
                pass
    assert target.seen == []


# --- found in the environment


@pytest.mark.parametrize("is_upper", [False, True])
@pytest.mark.parametrize("form", ["http://{}", "{}"])
async def test_a_proxy_in_the_environment(
    target: Target, environment: pytest.MonkeyPatch, form: str, is_upper: bool
) -> None:
    proxy = FakeProxy(f"ann:{SECRET}")
    async with target.running() as url, proxy.running() as place:
        name = f"{url.split(':')[0]}_proxy"
        environment.setenv(name.upper() if is_upper else name, form.format(f"ann:{SECRET}@{place}"))
        assert await target.call(url) == "done"
        assert proxy.seen == []  # unless it is said to be trusted
        assert await target.call(url, trust_env=True) == "done"
    assert is_through(proxy, url)
    assert not any("proxy-authorization" in headers for headers in target.seen)


async def test_a_proxy_that_is_named_comes_before_the_environment(
    target: Target, environment: pytest.MonkeyPatch
) -> None:
    proxy = FakeProxy()
    async with target.running() as url, proxy.running() as place:
        for scheme in SCHEMES:
            environment.setenv(f"{scheme}_proxy", f"http://{DEAD}")
        assert await target.call(url, trust_env=True, proxy=f"http://{place}") == "done"
    assert is_through(proxy, url)


@pytest.mark.parametrize("given", ["localhost,127.0.0.1", "{}", "x.example, *", "*"])
async def test_hosts_that_need_no_proxy(target: Target, environment: pytest.MonkeyPatch, given: str) -> None:
    async with target.running() as url:
        for scheme in SCHEMES:
            environment.setenv(f"{scheme}_proxy", f"http://{DEAD}")
        environment.setenv("NO_PROXY", given.format(url.split("/")[2]))
        if given == "x.example, *":  # a star among others means nothing
            assert "cannot be connected to" in await target.refused(url, trust_env=True)
        else:
            assert await target.call(url, trust_env=True) == "done"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "http://{}",
            "wants credentials; write them into `{}_proxy` in the environment, as http://name:password@host:port.",
        ),
        (
            f"http://ann:{SECRET}@{{}}",
            "does not accept the name and password in `{}_proxy` in the environment; check them.",
        ),
    ],
)
async def test_a_proxy_in_the_environment_that_wants_other_credentials(
    target: Target, environment: pytest.MonkeyPatch, given: str, said: str
) -> None:
    proxy = FakeProxy("ann:another")
    async with target.running() as url, proxy.running() as place:
        scheme = url.split(":")[0]
        environment.setenv(f"{scheme}_proxy", given.format(place))
        expected = f"the proxy http://{place} {said.format(scheme)}"
        assert await target.refused(url, trust_env=True) == expected


async def test_a_dead_proxy_in_the_environment_is_named(target: Target, environment: pytest.MonkeyPatch) -> None:
    async with target.running() as url:
        scheme = url.split(":")[0]
        environment.setenv(f"{scheme}_proxy", f"http://ann:{SECRET}@{DEAD}")
        said = await target.refused(url, trust_env=True)
    assert said == f"the proxy http://{DEAD} cannot be connected to; check `{scheme}_proxy` in the environment."


async def test_a_proxy_in_the_environment_that_cannot_be_used(target: Target, environment: pytest.MonkeyPatch) -> None:
    async with target.running() as url:
        name = f"{url.split(':')[0]}_proxy"
        environment.setenv(name, f"socks5://ann:{SECRET}@{DEAD}")
        assert await target.refused(url, trust_env=True) == (
            f"A proxy was found by trust_env=True, and cannot be used: `{name}` in the environment has the scheme "
            "'socks5'; only HTTP proxies can be used: write it as http://host:port, or http://name:password@host:port."
        )


@pytest.mark.security("R11")
async def test_no_other_credentials_are_taken_from_the_environment(
    target: Target, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "netrc"
    file.write_text(f"machine localhost login ann password {SECRET}\nmachine 127.0.0.1 login ann password {SECRET}\n")
    environment.setenv("NETRC", str(file))
    async with target.running() as url:
        assert await target.call(url, trust_env=True) == "done"
    assert not any("authorization" in headers for headers in target.seen)


# --- how it is written


FORM = "http://host:port, or http://name:password@host:port"
NO_URL = (
    f"`proxy` is not the URL of a proxy; write it as {FORM}, with %40 for an @ in a password, and so on for : / # ? %."
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, f"proxy= was given something of the type 'int'; write it as text: {FORM}."),
        (b"http://x", f"proxy= was given something of the type 'bytes'; write it as text: {FORM}."),
        ("", NO_URL),
        ("127.0.0.1:3128", NO_URL),
        ("proxy.example:3128", NO_URL),
        ("http://", NO_URL),
        ("http://proxy.example:port", NO_URL),
        ("http://proxy.example/path", NO_URL),
        ("http://[::1", NO_URL),
        (f"http://ann:{SECRET}#x@proxy.example:3128", NO_URL),
        (f"http://ann:12/{SECRET}@proxy.example:3128", NO_URL),
        (f"http://ann:{SECRET}?@proxy.example:3128", NO_URL),
        (f"http://ann:{SECRET}@proxy.example:3128\r\n", NO_URL),
        (
            f"socks5://ann:{SECRET}@proxy.example:1080",
            f"`proxy` has the scheme 'socks5'; only HTTP proxies can be used: write it as {FORM}.",
        ),
    ],
)
def test_what_is_no_proxy(given: Any, said: str) -> None:
    for make in (lambda: Client(Http("https://flights.example/mcp", proxy=given)), lambda: Fetcher(proxy=given)):
        with pytest.raises(UsageError) as caught:
            make()
        assert str(caught.value) == said
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("given", "url", "address"),
    [
        ("http://proxy.example", "http://proxy.example", ("proxy.example", 80)),
        ("https://proxy.example/", "https://proxy.example", ("proxy.example", 443)),
        ("http://ann:b@c@[::1]:3128", "http://[::1]:3128", ("::1", 3128)),
    ],
)
def test_what_is_one(given: str, url: str, address: tuple[str, int]) -> None:
    proxy = read_proxy(given)
    assert (proxy.url, proxy.address) == (url, address)


@pytest.mark.parametrize("target", ["https://x.example/mcp", {"url": "https://x.example/mcp"}])
def test_credentials_for_a_proxy_are_no_header_of_the_server(target: Any) -> None:
    headers = {"proxy-authorization": f"Basic {SECRET}"}
    expected = "'Proxy-Authorization' would go to the server; write proxy='http://name:password@host:port'."
    with pytest.raises(UsageError) as caught:
        Client({**target, "headers": headers} if isinstance(target, dict) else Http(target, headers=headers))
    assert str(caught.value) == expected


async def test_credentials_are_shown_nowhere(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = f"http://ann:{SECRET}@{DEAD}"
    http = Http("http://127.0.0.1:1/mcp", proxy=given, headers={"X-Key": SECRET}, auth=f"token-{SECRET}")
    client = Client(http)
    shown = [repr(part) for part in (client, http, client._dialled, read_proxy(given), Fetcher(proxy=given))]
    async with target.running() as url:
        await target.refused(url, proxy=given)
    assert SECRET not in "".join([*shown, caplog.text])
    assert base64.b64encode(f"ann:{SECRET}".encode()).decode() not in "".join([*shown, caplog.text])


# --- logins


async def fetched(fetcher: Fetcher, url: str) -> bytes:
    async with fetcher.open(url) as fetch:
        return (await fetch(HttpRequest("POST", url, body=b'{"id":1,"method":"server/discover"}'))).body


async def test_a_login_gives_a_proxy_its_credentials(target: Target, environment: pytest.MonkeyPatch) -> None:
    proxy, trusted = FakeProxy(f"ann:{SECRET}"), target.authority.trusted()
    async with target.running() as url, proxy.running() as place:
        for scheme in SCHEMES:
            environment.setenv(f"{scheme}_proxy", f"http://ann:{SECRET}@{place}")
        assert await fetched(Fetcher(proxy=f"http://ann:{SECRET}@{place}", tls=trusted), url)
        assert await fetched(Fetcher(trust_env=True, tls=trusted), url)
    assert is_through(proxy, url)
    assert len(proxy.seen) == 2
    assert not any("proxy-authorization" in headers for headers in target.seen)


async def test_a_login_says_what_is_wrong_with_a_proxy(target: Target, environment: pytest.MonkeyPatch) -> None:
    proxy, trusted = FakeProxy("ann:another"), target.authority.trusted()

    async def failure(**options: Any) -> str:
        with pytest.raises(FetchFailed) as caught:
            await fetched(Fetcher(tls=trusted, **options), url)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        return str(caught.value)

    async with target.running() as url, proxy.running() as place:
        assert await failure(proxy=f"http://ann:{SECRET}@{place}") == (
            f"the proxy http://{place} does not accept the name and password in `proxy`; check them"
        )
        assert await failure(proxy=f"http://{DEAD}") == f"the proxy http://{DEAD} cannot be connected to; check `proxy`"
        for scheme in SCHEMES:
            environment.setenv(f"{scheme}_proxy", f"socks5://ann:{SECRET}@{place}")
        assert (await failure(trust_env=True)).startswith(
            "A proxy was found by trust_env=True, and cannot be used: `http"
        )
    assert target.seen == []


def test_a_proxy_without_a_port_is_at_the_usual_one() -> None:
    assert read_proxy("https://proxy.example").address == ("proxy.example", 443)
    assert read_proxy("http://proxy.example").address == ("proxy.example", 80)
