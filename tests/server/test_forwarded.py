"""Who sent a request that came through proxies, and whose word is taken for it."""

import pytest

from support import ACCEPT_BOTH, ask, make_server
from weft.auth import TokenInfo
from weft.errors import UsageError
from weft.net.asgi import TOKEN_INFO
from weft.server.http.request import TrustedProxies
from weft.server.run.listening import HttpOptions, warn_of_proxy

PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8::1"])
CLIENT = "203.0.113.9"


@pytest.mark.security("R14")
@pytest.mark.parametrize(
    ("peer", "x_forwarded_for", "forwarded", "sender"),
    [
        ("10.0.0.1", [CLIENT], [], CLIENT),
        ("10.0.0.1", [f"1.1.1.1, {CLIENT}"], [], CLIENT),  # what a client writes itself comes before
        ("10.0.0.1", ["1.1.1.1", f"{CLIENT}, 10.0.0.2"], [], CLIENT),
        ("10.0.0.1", [f"{CLIENT}:4711"], [], CLIENT),
        ("10.0.0.1", ["2001:db8::9"], [], "2001:db8::9"),
        ("10.0.0.1", ["[2001:db8::9]:80"], [], "2001:db8::9"),
        ("10.0.0.1", [f"::ffff:{CLIENT}"], [], CLIENT),
        ("2001:db8::1", [CLIENT], [], CLIENT),
        ("::ffff:10.0.0.1", [CLIENT], [], CLIENT),
        ("10.0.0.1", [], [f"for={CLIENT};proto=https"], CLIENT),
        ("10.0.0.1", [], [f'for=1.1.1.1, proto=https; For="{CLIENT}:80"'], CLIENT),
        ("10.0.0.1", [], ['for="[2001:db8::9]:80"'], "2001:db8::9"),
        ("10.0.0.1", [CLIENT], [f"for={CLIENT}"], CLIENT),
        ("10.0.0.1", [CLIENT], ["for=1.1.1.1"], "10.0.0.1"),  # one of the two is made up
        ("10.0.0.1", ["unknown"], [], "10.0.0.1"),
        ("10.0.0.1", [f"{CLIENT}, x"], [], "10.0.0.1"),
        ("10.0.0.1", [], ["for=_hidden"], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], [], "10.0.0.1"),
        ("203.0.113.1", [CLIENT], [f"for={CLIENT}"], "203.0.113.1"),  # not one that is trusted
        ("unix", [CLIENT], [], "unix"),
    ],
)
def test_the_sender(peer: str, x_forwarded_for: list[str], forwarded: list[str], sender: str) -> None:
    assert PROXIES.client(peer, x_forwarded_for, forwarded) == sender


@pytest.mark.parametrize("proxies", ["10.0.0.1", ["proxy.example.com"], ["*"], ["10.0.0.0/33"]])
def test_what_is_no_proxy(proxies: list[str]) -> None:
    with pytest.raises(UsageError, match="trusted_proxies"):
        TrustedProxies(proxies)


# Proxies that nobody has named.


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "weft.advice"]


@pytest.mark.mistake("behind a proxy that is not named")
@pytest.mark.parametrize("trusted", [(), ("10.9.9.9",)])
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
async def test_the_first_forwarded_header_that_is_not_believed_is_told(
    trusted: tuple[str, ...], header: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_server().asgi(trusted_proxies=trusted)
    await ask(app, "tools/list", scope={"client": ("10.0.0.1", 4711)})
    assert warnings_of(caplog) == []
    for accept in ("application/json", "*/*", ACCEPT_BOTH):
        await ask(
            app, "tools/list", scope={"client": ("10.0.0.1", 4711)}, headers={header: f"for={CLIENT}", "Accept": accept}
        )
    (line,) = warnings_of(caplog)
    assert "from 10.0.0.1" in line
    assert "trusted_proxies=['10.0.0.1'] (--trust-proxy 10.0.0.1)" in line
    assert "sessions_per_peer=100" in line


async def test_nothing_is_told_of_a_proxy_that_is_believed_or_where_callers_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    headers = {"X-Forwarded-For": CLIENT}
    proxied = {"client": ("10.0.0.1", 4711)}
    await ask(make_server().asgi(trusted_proxies=["10.0.0.1"]), "tools/list", scope=proxied, headers=headers)
    known = {**proxied, TOKEN_INFO: TokenInfo(subject="ann")}
    await ask(make_server().asgi(), "tools/list", scope=known, headers=headers)
    assert warnings_of(caplog) == []


@pytest.mark.mistake("starting behind a proxy that is not named")
def test_a_server_that_must_be_behind_a_proxy_is_warned_of_when_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    for harmless in (
        HttpOptions(),
        HttpOptions(allowed_hosts=["localhost:8000", "127.0.0.1"]),
        HttpOptions(allowed_hosts=["api.example.com"], trusted_proxies=["127.0.0.1"]),
        HttpOptions(host="0.0.0.0", allowed_hosts=["api.example.com"]),
    ):
        warn_of_proxy(server.engine, harmless)
    assert warnings_of(caplog) == []
    warn_of_proxy(server.engine, HttpOptions(allowed_hosts=["api.example.com"]))
    (line,) = warnings_of(caplog)
    assert "listens on 127.0.0.1 only, but allows the host api.example.com" in line
    assert "trusted_proxies=['127.0.0.1'] (--trust-proxy 127.0.0.1)" in line
