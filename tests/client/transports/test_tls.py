"""TLS as a client speaks it, over real sockets: whom it trusts, how it shows who it is, and what it says if not."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.certificates import Authority, blind, serving
from support.fakes import DISCOVERED, Exchange, http_server, initialized, reply, sse
from weft import Client, ClientLimits, ConnectionFailed, Http
from weft.client import ToolsChanged
from weft.client.auth import ClientCredentials, Fetcher
from weft.client.http import wire
from weft.errors import UsageError
from weft.net.fetch import FetchFailed, HttpRequest

TEXT = {"content": [{"type": "text", "text": "done"}]}
V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
CLOSED = (
    "closed the connection without an answer. It is not known whether the request was executed. Look into its log, or "
    "that of a proxy before it."
)
LOAD = "load one with load_cert_chain() into an ssl.SSLContext, and give that as `tls`."


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("known"), "known to the test")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"), "known to nobody")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Path:
    return authority.issue("localhost", "127.0.0.1")


class Server:
    """Answers everything, and remembers who asked: their certificates."""

    def __init__(self) -> None:
        self.peers: list[Any] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.peers.append(exchange.writer.get_extra_info("peercert"))
        await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else TEXT)


async def call(url: str, **options: Any) -> str:
    async with Client(Http(url, **options)) as client:
        return (await client.call_tool("t")).text


async def refused(url: str, **options: Any) -> str:
    """What is said of a server that cannot be reached, behind its URL."""
    with pytest.raises(ConnectionFailed) as caught:
        await call(url, **options)
    said = str(caught.value)
    assert said.startswith(f"{url} ")
    return said.removeprefix(f"{url} ")


# --- whom it trusts


@pytest.mark.security("R11")
async def test_a_certificate_of_an_unknown_issuer_is_refused(certificate: Path, stranger: Authority) -> None:
    server = Server()
    async with http_server(server, tls=serving(certificate)) as url:
        for options in ({}, {"tls": stranger.trusted()}):
            assert await refused(url, **options) == (
                "cannot be reached: its certificate is not trusted (unable to get local issuer certificate); if its "
                "issuer is a private one, give tls=ssl.create_default_context(cafile='…')."
            )
    assert server.peers == []


async def test_a_private_authority_is_trusted_where_it_is_given(certificate: Path, authority: Authority) -> None:
    async with http_server(Server(), tls=serving(certificate)) as url:
        assert await call(url, tls=authority.trusted()) == "done"
        assert await call(url.replace("localhost", "127.0.0.1"), tls=authority.trusted()) == "done"


@pytest.mark.security("R11")
async def test_a_certificate_for_another_host_is_refused(authority: Authority) -> None:
    server = Server()
    async with http_server(server, tls=serving(authority.issue("other.example"))) as url:
        assert await refused(url, tls=authority.trusted()) == (
            "cannot be reached: its certificate is not for this host (Hostname mismatch, certificate is not valid for "
            "'localhost'); use a name that it is for."
        )
        by_address = await refused(url.replace("localhost", "127.0.0.1"), tls=authority.trusted())
        assert "not for this host (IP address mismatch" in by_address
    assert server.peers == []


async def test_a_certificate_that_has_expired_is_refused(authority: Authority) -> None:
    async with http_server(Server(), tls=serving(authority.issue("localhost", days=-1))) as url:
        assert await refused(url, tls=authority.trusted()) == (
            "cannot be reached: its certificate is not trusted (certificate has expired); have it renewed, or correct "
            "the clock of this machine."
        )


async def test_trust_can_be_switched_off_by_a_context(stranger: Authority) -> None:
    for host in ("localhost", "other.example"):
        async with http_server(Server(), tls=serving(stranger.issue(host))) as url:
            assert await call(url, tls=blind()) == "done"


async def test_a_server_that_speaks_no_tls() -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await refused(f"https://localhost:{port}/mcp") == (
            "cannot be reached: it does not speak TLS there; use http:// if that is meant, or check the port."
        )


@pytest.mark.parametrize("tls", ["ca.pem", Path("ca.pem"), False, True])
def test_what_is_no_context_is_not_guessed_at(tls: Any) -> None:
    for make in (lambda: Client(Http("https://flights.example/mcp", tls=tls)), lambda: Fetcher(tls=tls)):
        with pytest.raises(UsageError) as caught:
            make()
        assert str(caught.value) == (
            f"tls= was given something of the type {type(tls).__name__!r}; give an ssl.SSLContext, for a private CA "
            "ssl.create_default_context(cafile=...)."
        )


# --- who it is


@pytest.mark.parametrize("version", [V12, V13])
async def test_a_client_shows_its_certificate_where_it_is_wanted(
    certificate: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    server = Server()
    async with http_server(server, tls=serving(certificate, clients_of=authority, version=version)) as url:
        assert await call(url, tls=authority.trusted(authority.issue("client.example"))) == "done"
    assert {peer["subjectAltName"] for peer in server.peers} == {(("DNS", "client.example"),)}


@contextmanager
def strict(context: ssl.SSLContext) -> Iterator[str]:
    """A server that says why it refuses; one of asyncio drops the connection before it has said so."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                refuse(context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False))

    def refuse(connection: ssl.SSLSocket) -> None:
        with suppress(OSError):
            connection.do_handshake()
        with socket.socket(fileno=connection.detach()) as bare, suppress(OSError):
            bare.shutdown(socket.SHUT_WR)
            while bare.recv(4096):  # what is left unread would cut off what was said
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}/mcp"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            V12,
            (
                "it refused the TLS handshake; the two have no version or cipher in common, or it wants a client "
                f"certificate: {LOAD}"
            ),
        ),
        (V13, f"it wants a client certificate: {LOAD}"),
    ],
)
async def test_a_client_without_a_certificate_is_told_that_one_is_wanted(
    certificate: Path, authority: Authority, version: ssl.TLSVersion, said: str
) -> None:
    with strict(serving(certificate, clients_of=authority, version=version)) as url:
        assert await refused(url, tls=authority.trusted()) == f"cannot be reached: {said}"


def test_an_alert_that_is_not_about_certificates_blames_none() -> None:
    error = ssl.SSLError()
    error.reason = "TLSV1_ALERT_INTERNAL_ERROR"
    assert wire._refused(error) == "TLS failed (tlsv1 alert internal error)"


@pytest.mark.parametrize("version", [V12, V13])
async def test_a_certificate_that_the_server_does_not_know(
    certificate: Path, authority: Authority, stranger: Authority, version: ssl.TLSVersion
) -> None:
    with strict(serving(certificate, clients_of=authority, version=version)) as url:
        assert await refused(url, tls=authority.trusted(stranger.issue("client.example"))) == (
            "cannot be reached: it does not accept the client certificate in `tls` (tlsv1 alert unknown ca); give "
            "one that it accepts."
        )


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (V12, "cannot be reached: it broke off the TLS handshake without a reason."),
        (V13, CLOSED),
    ],
)
async def test_a_server_that_wants_a_certificate_and_does_not_say_so(
    certificate: Path, authority: Authority, version: ssl.TLSVersion, said: str
) -> None:
    async with http_server(Server(), tls=serving(certificate, clients_of=authority, version=version)) as url:
        expected = f"{said} If it wants a client certificate, {LOAD}"
        assert await refused(url, tls=authority.trusted()) == expected


async def test_a_server_that_answered_before_wants_no_certificate(certificate: Path, authority: Authority) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.result(DISCOVERED)
        else:
            exchange.cut()

    async with http_server(handle, tls=serving(certificate)) as url:
        said = await refused(url, tls=authority.trusted())
    assert said == CLOSED


# --- what travels


async def test_streams_travel_over_tls(certificate: Path, authority: Authority) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.rpc == "server/discover":
            await exchange.respond(400)
        elif exchange.rpc == "initialize":
            await exchange.result(initialized(), mcp_session_id="s1")
        elif exchange.method == "GET":
            await exchange.stream()
            while True:  # until somebody listens
                await exchange.raw(sse(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'))
                await asyncio.sleep(0.05)
        elif exchange.rpc == "tools/call":
            await exchange.stream(b":\n\n", sse(reply(exchange.message, TEXT)))
        else:
            await exchange.respond(202)

    limits = ClientLimits(close_seconds=0.5)
    async with (
        http_server(handle, tls=serving(certificate)) as url,
        Client(Http(url, tls=authority.trusted()), limits=limits) as client,
    ):
        assert (await client.call_tool("t")).text == "done"
        async with client.listen(tools=True) as changes:
            assert await asyncio.wait_for(anext(changes), 30) == ToolsChanged()


async def test_the_oldest_transport_travels_over_tls(certificate: Path, authority: Authority) -> None:
    streams: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        if exchange.path == "/mcp" and exchange.method == "POST":
            await exchange.respond(405)
        elif exchange.method == "GET":
            streams.append(exchange)
            await exchange.stream(sse("/post", event="endpoint"))
            await exchange.hang()
        else:
            await exchange.respond(202)
            if "id" in exchange.message:
                result = initialized("2024-11-05") if exchange.rpc == "initialize" else TEXT
                await streams[-1].raw(sse(reply(exchange.message, result), event="message"))

    async with http_server(handle, tls=serving(certificate)) as url:
        assert await call(url, tls=authority.trusted()) == "done"


async def test_a_login_trusts_whom_its_client_trusts(certificate: Path, authority: Authority) -> None:
    tokens: list[str] = []

    async def handle(exchange: Exchange) -> None:
        base = f"https://{exchange.headers['host']}"
        documents = {
            "/.well-known/oauth-protected-resource/mcp": {"resource": url, "authorization_servers": [base]},
            "/.well-known/oauth-authorization-server": {"issuer": base, "token_endpoint": f"{base}/token"},
            "/token": {"access_token": "good", "token_type": "Bearer"},
        }
        if exchange.path != "/mcp":
            tokens.append(exchange.path)
            await exchange.respond(200, msgspec.json.encode(documents[exchange.path]))
        elif exchange.headers.get("authorization") != "Bearer good":
            await exchange.respond(401, www_authenticate="Bearer")
        else:
            await exchange.result(DISCOVERED if exchange.rpc == "server/discover" else TEXT)

    async with http_server(handle, tls=serving(certificate)) as url:
        assert await call(url, tls=authority.trusted(), auth=ClientCredentials("robot", client_secret="s")) == "done"
    assert tokens[-1] == "/token"


async def test_a_login_checks_certificates_and_says_what_is_wrong_with_them(
    certificate: Path, authority: Authority
) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.respond(200, b"{}")

    async def fetched(fetcher: Fetcher, url: str) -> bytes:
        async with fetcher.open(url) as fetch:
            return (await fetch(HttpRequest("GET", url))).body

    async with http_server(handle, tls=serving(certificate)) as url:
        assert await fetched(Fetcher(tls=authority.trusted()), url) == b"{}"
        with pytest.raises(FetchFailed, match=r"^its certificate is not trusted \(unable to get local issuer"):
            await fetched(Fetcher(), url)
