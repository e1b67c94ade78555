"""What a login fetches: over real sockets, within its bounds, and from nowhere that it should not."""

import asyncio
import socket
import ssl

import pytest
from auth_world import PRM

from support.certificates import Authority
from support.fakes import http_server
from support.proxying import FakeProxy
from weft.client.auth import Fetcher
from weft.client.auth import ports as fetching_module
from weft.net.fetch import FetchFailed, HttpRequest, is_private
from weft.net.urls import UrlRefused, read_url, shown_url

PUBLIC = "https://mcp.example/mcp"


async def fetch(fetcher: Fetcher, request: HttpRequest, server: str):
    async with fetcher.open(server) as do:
        return await do(request)


# --- which URLs


def test_a_url_in_a_message_is_short_and_has_no_query() -> None:
    assert shown_url("https://a.example/x?token=secret#part") == "https://a.example/x"
    assert len(shown_url("https://a.example/" + "x" * 1000)) == 200


@pytest.mark.spec("SBP-05", "SBP-02", "ASEC-05")
@pytest.mark.security("R11")
@pytest.mark.parametrize(
    "url",
    [
        "http://auth.example/x",
        "ftp://auth.example/x",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "https://",
        "https://user:pw@auth.example/",
        "https://auth.example:0/",
        "https://auth.example:99999/",
        "https://auth.example/a b",
        "https://auth.example\\@evil.example/",
        "https://auth.example/\r\nX: y",
        "https://[::1",
        "https://" + "a" * 9000,
        "",
    ],
)
def test_urls_that_are_not_followed(url):
    with pytest.raises(UrlRefused):
        read_url(url)


@pytest.mark.parametrize(
    "url", ["https://auth.example/x", "http://127.0.0.1:8/x", "http://localhost/x", "http://[::1]:1/"]
)
def test_urls_that_are(url):
    assert read_url(url).geturl() == url


def test_what_is_shown_of_a_url():
    assert shown_url("https://a.example/b?key=secret#x") == "https://a.example/b"
    assert shown_url("https://a.example/\x1b[31m") == "https://a.example/?[31m"


@pytest.mark.spec("SBP-02")
@pytest.mark.security("D15")
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", True),
        ("172.16.0.1", True),
        ("192.168.0.1", True),
        ("127.0.0.1", True),
        ("169.254.169.254", True),
        ("100.64.0.1", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
        ("::1", True),
        ("fe80::1%eth0", True),
        ("fd00::1", True),
        ("::ffff:10.0.0.1", True),
        ("2002:0a00:0001::1", True),
        ("64:ff9b::10.0.0.1", True),
        ("::ffff:0:10.0.0.1", True),
        ("::10.0.0.1", True),
        ("64:ff9b:1::10.0.0.1", True),
        ("fec0::1", True),
        ("64:ff9b::8.8.8.8", False),
        ("8.8.8.8", False),
        ("2606:4700::1111", False),
    ],
)
def test_which_addresses_are_private(address, expected):
    assert is_private(address) is expected


# --- on whose behalf


@pytest.mark.spec("SBP-02")
@pytest.mark.security("D15")
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "10.0.0.8",
        "169.254.169.254",
        "x.localhost",
        # What is connected to has plain digits and dots, whichever it is written with.
        "\uff11\uff12\uff17.0.0.1",
        "127\u30020\u30020\u30021",
        "\u2460\u2461\u2466.0.0.1",
    ],
)
async def test_a_public_server_cannot_send_us_to_a_private_place(host, monkeypatch):
    monkeypatch.setattr(fetching_module, "_barred_for", public)
    with pytest.raises(FetchFailed, match="private address"):
        await fetch(Fetcher(), HttpRequest("GET", f"https://{host}/metadata"), PUBLIC)


async def public(_: str):
    return is_private


@pytest.mark.spec("SBP-02")
@pytest.mark.security("D15")
async def test_a_name_that_leads_to_a_private_place_is_found_out_when_it_is_resolved(monkeypatch):
    monkeypatch.setattr(fetching_module, "_barred_for", public)
    asked: list[str] = []

    async def handler(exchange):
        asked.append(exchange.path)
        await exchange.respond(200, b"{}")

    def everything_is_here(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port or 0))]

    async with http_server(handler) as url:
        port = url.split(":")[2].split("/")[0]
        monkeypatch.setattr(socket, "getaddrinfo", everything_is_here)
        request = HttpRequest("GET", f"http://rebound.example:{port}/metadata")
        with pytest.raises(FetchFailed, match="private address"):
            await fetch(Fetcher(allow_insecure=True), request, PUBLIC)
        assert asked == []
        reply = await fetch(Fetcher(allow_insecure=True, allow_private=True), request, PUBLIC)
        assert reply.status == 200


@pytest.mark.spec("SBP-02")
@pytest.mark.security("D15")
@pytest.mark.parametrize("addresses", ["8.8.8.8 127.0.0.1", "127.0.0.1 8.8.8.8"])
async def test_a_name_with_one_private_address_among_public_ones_leads_nowhere(addresses, monkeypatch):
    """Which of them is connected to is chance, or the choice of whoever answers for the name."""
    monkeypatch.setattr(fetching_module, "_barred_for", public)
    asked: list[str] = []

    async def handler(exchange):
        asked.append(exchange.path)
        await exchange.respond(200, b"{}")

    async with http_server(handler) as url:
        port = url.split(":")[2].split("/")[0]
        resolve(monkeypatch, both=addresses)
        with pytest.raises(FetchFailed, match="private address"):
            await fetch(
                Fetcher(allow_insecure=True), HttpRequest("GET", f"http://both.example:{port}/metadata"), PUBLIC
            )
    assert asked == []


@pytest.mark.security("D15")
async def test_a_proxy_that_was_chosen_here_may_be_private(monkeypatch):
    """It is this program's own way out; what is barred is what a server names."""
    monkeypatch.setattr(fetching_module, "_barred_for", public)
    proxy = FakeProxy(refuses="502 Bad Gateway")
    async with proxy.running() as place:
        way = place.replace("127.0.0.1", "localhost")
        fetcher = Fetcher(allow_insecure=True, proxy=f"http://{way}")
        assert (await fetch(fetcher, HttpRequest("GET", "http://public.example/metadata"), PUBLIC)).status == 502
    assert proxy.seen == ["GET http://public.example/metadata HTTP/1.1"]


def resolve(monkeypatch, **names: str) -> None:
    """Have names lead to addresses: those of others to one that is public, and `gone` nowhere."""

    def resolved(host, port, *args, **kwargs):
        name = host.partition(".")[0]
        if name == "gone":
            raise socket.gaierror
        addresses = names.get(name, "8.8.8.8").split()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.security("D15")
async def test_what_is_barred_on_behalf_of_which_server(monkeypatch):
    resolve(monkeypatch, inside="10.0.0.1", both="10.0.0.1 8.8.8.8", here="127.0.0.1")
    addresses = ("8.8.8.8", "10.0.0.2", "127.0.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.1")

    async def barred(host: str) -> list[bool]:
        refuses = await fetching_module._barred_for(f"https://{host}/mcp")
        return [refuses is not None and refuses(address) for address in addresses]

    for public_one in ("public.example", "both.example", "gone.example", "8.8.8.8"):
        assert await barred(public_one) == [False, True, True, True, True, True]
    for named in ("inside.example", "here.example"):
        assert await barred(named) == [False, False, True, True, True, True]
    for written in ("localhost", "10.0.0.1", "127.0.0.1", "[::1]", "x.localhost"):
        assert await barred(written) == [False] * 6


@pytest.mark.security("D15")
async def test_a_name_that_leads_inside_for_a_moment_does_not_lead_to_services_of_this_machine(monkeypatch):
    asked: list[str] = []

    async def handler(exchange):
        asked.append(exchange.path)
        await exchange.respond(200, b"{}")

    async with http_server(handler) as url:
        resolve(monkeypatch, flipping="10.0.0.1")
        for target in (url, url.replace("127.0.0.1", "localhost")):
            with pytest.raises(FetchFailed, match="a server on another machine should not name"):
                await fetch(Fetcher(), HttpRequest("POST", target, {}, b"{}"), "https://flipping.example/mcp")
        assert asked == []


# --- how much


async def test_a_document_arrives_with_its_headers_and_nothing_went_along_that_was_not_asked():
    seen = []

    async def handler(exchange):
        seen.append(exchange.headers)
        await exchange.respond(401, b'{"a": 1}', **{"DPoP-Nonce": "n", "Set-Cookie": "track=me"})

    async with http_server(handler) as here, Fetcher().open(here) as do:
        url = here.replace("127.0.0.1", "localhost")  # addresses have no cookies anyway
        first = await do(HttpRequest("GET", url, {"Accept": "application/json"}))
        await do(HttpRequest("GET", url))
    assert (first.status, first.json(), first.headers["dpop-nonce"]) == (401, {"a": 1}, "n")
    assert seen[0]["accept"] == "application/json"
    assert not any("cookie" in headers or "authorization" in headers for headers in seen)


@pytest.mark.security("R12")
async def test_size_is_bounded():
    async def handler(exchange):
        await exchange.respond(200, b"x" * (10_000 + (exchange.path == "/over")))

    async with http_server(handler) as url:
        fetcher = Fetcher(most_bytes=10_000)
        assert len((await fetch(fetcher, HttpRequest("GET", url), url)).body) == 10_000
        with pytest.raises(FetchFailed, match="more than 10000 bytes"):
            await fetch(fetcher, HttpRequest("GET", url.replace("/mcp", "/over")), url)


@pytest.mark.security("R12")
async def test_time_is_bounded():
    async def handler(exchange):
        await exchange.hang()

    async with http_server(handler) as url:
        with pytest.raises(FetchFailed, match="no answer within"):
            await fetch(Fetcher(seconds=0.1), HttpRequest("GET", url), url)


@pytest.mark.spec("SBP-02")
@pytest.mark.security("R12")
async def test_redirects_of_a_document_are_followed_a_few_times():
    async def handler(exchange):
        hops = int(exchange.path.rpartition("/")[2])
        if hops:
            await exchange.respond(302, location=f"/{hops - 1}")
        else:
            await exchange.respond(200, b"{}")

    async with http_server(handler) as url:
        base = url.removesuffix("/mcp")
        assert (await fetch(Fetcher(redirects=3), HttpRequest("GET", f"{base}/3"), url)).status == 200
        with pytest.raises(FetchFailed, match="again and again"):
            await fetch(Fetcher(redirects=3), HttpRequest("GET", f"{base}/4"), url)


@pytest.mark.spec("SBP-02")
@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://auth.example/", "ftp://127.0.0.1/"])
async def test_redirects_lead_to_no_other_kind_of_place(target):
    async def handler(exchange):
        await exchange.respond(302, location=target)

    async with http_server(handler) as url:
        with pytest.raises(FetchFailed, match=r"neither https|not encrypted"):
            await fetch(Fetcher(), HttpRequest("GET", url), url)


@pytest.mark.spec("SBP-02")
@pytest.mark.security("R11")
async def test_a_redirect_does_not_lead_from_encryption_to_none(tmp_path):
    """Not even on this machine, where http is fetched otherwise."""
    authority, asked = Authority(tmp_path, "tests"), []
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(authority.issue("localhost"))

    async def plain(exchange):
        asked.append(exchange.path)
        await exchange.respond(200, b"{}")

    async with http_server(plain) as target:

        async def send_away(exchange):
            await exchange.respond(302, location=target)

        async with http_server(send_away, tls=serving) as url:
            assert (await fetch(Fetcher(), HttpRequest("GET", target), url)).status == 200
            with pytest.raises(FetchFailed, match="redirects to a URL without TLS"):
                await fetch(Fetcher(tls=authority.trusted()), HttpRequest("GET", url), url)
    assert asked == ["/mcp"], "asked for by ourselves, not by the redirect"


async def test_secrets_follow_no_redirect():
    asked = []

    async def handler(exchange):
        asked.append((exchange.method, exchange.path))
        await exchange.respond(307, location="/elsewhere")

    async with http_server(handler) as url:
        reply = await fetch(Fetcher(), HttpRequest("POST", url, {}, b"code=secret"), url)
    assert reply.status == 307
    assert asked == [("POST", "/mcp")]


async def test_what_cannot_be_reached_says_so():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    with pytest.raises(FetchFailed, match="cannot be reached"):
        await fetch(Fetcher(), HttpRequest("GET", url), url)
    with pytest.raises(FetchFailed, match="not encrypted"):
        await fetch(Fetcher(), HttpRequest("GET", PRM.replace("https", "http")), url)


async def test_nothing_is_left_open():
    async def handler(exchange):
        await exchange.respond(200, b"{}")

    async with http_server(handler) as url:
        before = len(asyncio.all_tasks())
        await fetch(Fetcher(), HttpRequest("GET", url), url)
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) <= before + 1  # the server's own, of the connection
