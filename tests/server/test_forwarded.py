"""Who sent a request that came through proxies, and whose word is taken for it."""

import pytest

from weft.errors import UsageError
from weft.server.transports.forwarded import TrustedProxies

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
