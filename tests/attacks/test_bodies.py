"""Bodies that do not end, and many large ones: they cost others neither their place, nor the memory, nor the time."""

import contextlib
import select
import socket

import pytest

from support.attacks import MB, SERVER, assert_harmless, attacked_server
from support.wire import encode, headers_for, message
from weft.limits import DEFAULT_LIMITS


def made(options: str) -> str:
    """The source of a server with these options."""
    imported = SERVER.replace("import Server", "import Limits, Server\nfrom weft.auth import StaticTokens")
    return imported.replace('"1.0")', f'"1.0", {options})')


SMALL = made("limits=Limits(in_flight=50)")
TOKENS = made('auth=StaticTokens({"token-of-ann": "ann", "token-of-bob": "bob"})')


def total(numbers: int, token: str) -> bytes:
    body = message("tools/call", {"name": "total", "arguments": {"numbers": [1] * numbers}})
    return request(body, Authorization=f"Bearer {token}")


def request(body: dict, *, length: int | None = None, **fields: str) -> bytes:
    data = encode(body)
    lines = [*headers_for(body), *fields.items(), ("Content-Length", str(length or len(data)))]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + data


def begin(port: int, length: int, sent: int) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), 30)
    head = request(message("tools/list"), length=length).partition(b"\r\n\r\n")[0]
    with contextlib.suppress(ConnectionError):  # refused, and closed
        peer.sendall(head + b"\r\n\r\n" + b" " * sent)
    return peer


@pytest.mark.security("D9", "R12")
def test_half_bodies_take_no_places() -> None:
    with attacked_server(SMALL) as target:
        report = target.attack(lambda: [begin(target.port, 900, 1) for _ in range(100)])
        assert_harmless(report)


@pytest.mark.security("D1", "R12")
def test_bodies_that_stall_have_a_bound_together() -> None:
    length = DEFAULT_LIMITS.body_bytes
    with attacked_server() as target:
        report = target.attack(
            lambda: [begin(target.port, length, length - 100_000) for _ in range(25)], settle=0, linger=0.2
        )
        print(report)
        assert report.after - report.before <= 64 * MB, report


@pytest.mark.security("D9")
def test_large_messages_of_one_caller_wait_for_each_other_not_those_of_another() -> None:
    large, other = total(400_000, "token-of-ann"), total(34_000, "token-of-bob")
    with attacked_server(TOKENS) as target, contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 30))

        peers = [connect() for _ in range(30)]
        for peer in peers:
            peer.sendall(large)
        before = len(select.select(peers, [], [], 0)[0])
        bob = connect()
        bob.sendall(other)
        assert b" 200 " in bob.recv(1000)
        answered = len(select.select(peers, [], [], 0)[0]) - before
        assert before < 20, "they were answered before anybody else came"
        assert answered <= 5
        assert all(b" 200 " in peer.recv(1000) for peer in peers)
