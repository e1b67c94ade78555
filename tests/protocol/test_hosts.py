"""Which Host and Origin headers are served."""

from __future__ import annotations

import pytest

from weft.errors import UsageError
from weft.net.hosts import HostPolicy, refusal

LOOPBACK = [
    b"localhost",
    b"localhost:8000",
    b"LOCALHOST:1",
    b"127.0.0.1",
    b"127.0.0.1:65535",
    b"127.8.9.1:80",
    b"[::1]",
    b"[::1]:8000",
    b"[0:0:0:0:0:0:0:1]",
    b"[0000::0001]:80",
]
NOT_LOOPBACK = [
    None,
    b"",
    b"evil.example",
    b"localhost.evil.example",
    b"localhostevil",
    b"evil.localhost",
    b"127.0.0.1.evil.example",
    b"127.evil.example",
    b"127.1",
    b"0177.0.0.1",
    b"2130706433",
    b"0.0.0.0",
    b"10.0.0.1",
    b"::1",
    b"[::1",
    b"[::1].evil.example",
    b"[::1]evil",
    b"[::2]",
    b"[::ffff:127.0.0.1]",
    b"[::1%25lo]",
    b"[]",
    b"localhost:",
    b"localhost:x",
    b"localhost:65536",
    b"localhost:80:80",
    b"localhost.",
    b"localhost.:80",
    b"127.0.0.1.",
    b"localhost..",
    b"user@localhost",
    b"evil.example@localhost",
    b"localhost@evil.example",
    b"localhost/",
    b"localhost/path",
    b"localhost?x",
    b"localhost#x",
    b" localhost",
    b"localhost ",
    b"local\thost",
    b"localhost\n",
    b"localhost\x00",
    b"localhost,evil.example",
    b"http://localhost",
    b"localh\xc3\xb6st",
    b"localhost:\xb2",
    b"localhost" + b"." * 100_000,
]


@pytest.mark.security("R2")
def test_by_default_only_this_machine_is_served() -> None:
    policy = HostPolicy(None, None)
    for value in LOOPBACK * 2:
        assert policy.host_ok(value), value
    for value in NOT_LOOPBACK * 2:
        assert not policy.host_ok(value), value


@pytest.mark.security("R2")
@pytest.mark.parametrize(
    ("entry", "served", "refused"),
    [
        (
            "api.example.com",
            [b"api.example.com", b"API.Example.COM:8443"],
            [
                b"api.example.com.:1",
                b"example.com",
                b"x.api.example.com",
                b"api.example.com.evil",
                b"apiXexample.com",
                b"localhost",
            ],
        ),
        (
            "API.example.com.:8443",
            [b"api.example.com.:8443"],
            [b"api.example.com:8443", b"api.example.com:443", b"api.example.com:84430"],
        ),
        (
            "api.example.com:443",
            [b"api.example.com", b"api.example.com:443"],
            [b"api.example.com:80", b"api.example.com:8443"],
        ),
        ("[::1]:80", [b"[::1]:80", b"[0::1]"], [b"[::1]:81", b"localhost"]),
        ("2001:DB8::0:1", [b"[2001:db8::1]", b"[2001:db8:0::1]:9"], [b"2001:db8::1", b"[2001:db8::2]"]),
        (
            "*.example.com",
            [b"a.example.com", b"a.b.example.com:80", b"A.EXAMPLE.com"],
            [b"a.example.com.", b"example.com", b"evilexample.com", b"a.example.com.evil", b".example.com"],
        ),
        ("*.example.com:81", [b"a.example.com:81"], [b"a.example.com", b"a.example.com:82"]),
        ("10.0.0.7", [b"10.0.0.7", b"10.0.0.7:1"], [b"10.0.0.70", b"010.0.0.7", b"110.0.0.7"]),
        ("*", [b"anything.example:5", b"[::5]", None], [b"a b", b"user@host", b"host/path", b""]),
    ],
)
def test_host_entries(entry: str, served: list[bytes | None], refused: list[bytes]) -> None:
    policy = HostPolicy([entry], None)
    assert [value for value in served * 2 if not policy.host_ok(value)] == []
    assert [value for value in refused * 2 if policy.host_ok(value)] == []


@pytest.mark.security("R2")
def test_by_default_an_origin_is_served_when_its_host_is() -> None:
    policy = HostPolicy(None, None)
    for value in (None, b"http://localhost", b"https://LOCALHOST:3000", b"http://[::1]:9", b"http://127.0.0.1"):
        assert policy.origin_ok(value), value
        assert policy.origin_ok(value), value
    refused = [
        b"",
        b"null",
        b"http://evil.example",
        b"http://localhost.evil.example",
        b"http://localhost@evil.example",
        b"http://evil.example#localhost",
        b"http://evil.example/localhost",
        b"http://localhost/",
        b"http://localhost:99999",
        b"file://localhost",
        b"chrome-extension://localhost",
        b"localhost",
        b"http:localhost",
        b"http://",
        b"http://localhost http://evil.example",
        b"http://localhost, http://evil.example",
        b"http://localhost" + b"x" * 100_000,
    ]
    assert [value for value in refused * 2 if policy.origin_ok(value)] == []


@pytest.mark.security("R2")
def test_the_default_origins_follow_the_ports_of_the_hosts() -> None:
    policy = HostPolicy(["api.example.com:443"], None)
    assert policy.origin_ok(b"https://api.example.com")
    assert policy.origin_ok(b"https://api.example.com:443")
    assert not policy.origin_ok(b"http://api.example.com")
    assert not policy.origin_ok(b"https://api.example.com:8443")
    assert not policy.origin_ok(b"http://localhost")
    assert HostPolicy(["*"], None).origin_ok(b"https://any.example")
    assert not HostPolicy(["*"], None).origin_ok(b"null")


@pytest.mark.security("R2")
@pytest.mark.parametrize(
    ("entry", "served", "refused"),
    [
        (
            "https://app.example.com",
            [b"https://app.example.com", b"HTTPS://APP.example.com:443"],
            [
                b"https://app.example.com.",
                b"http://app.example.com",
                b"https://app.example.com:444",
                b"https://x.app.example.com",
                b"null",
            ],
        ),
        ("http://localhost:3000", [b"http://localhost:3000"], [b"http://localhost", b"http://localhost:30000"]),
        ("http://[::0001]", [b"http://[::1]:80"], [b"http://[::2]"]),
        (
            "https://*.example.com",
            [b"https://a.example.com"],
            [b"https://example.com", b"https://evilexample.com", b"http://a.example.com"],
        ),
        ("vscode-webview://abc", [b"vscode-webview://abc"], [b"vscode-webview://abd", b"vscode-webview://abc:1"]),
        ("null", [b"null"], [b"https://null", b"nullx"]),
        ("*", [b"null", b"https://any.example", b"x://y"], [b"", b"not an origin", b"https://a/b"]),
    ],
)
def test_origin_entries(entry: str, served: list[bytes], refused: list[bytes]) -> None:
    policy = HostPolicy(None, [entry])
    assert policy.origin_ok(None)
    assert [value for value in served * 2 if not policy.origin_ok(value)] == []
    assert [value for value in refused * 2 if policy.origin_ok(value)] == []


def test_an_empty_list_serves_nothing() -> None:
    assert not HostPolicy([], None).host_ok(b"localhost")
    assert not HostPolicy(None, []).origin_ok(b"http://localhost")


@pytest.mark.security("R2")
def test_the_memory_of_verdicts_is_bounded_and_verdicts_stay_right() -> None:
    policy = HostPolicy(["*.example.com"], None)
    for index in range(3000):
        assert policy.host_ok(b"h%d.example.com" % index)
        assert policy.origin_ok(b"https://h%d.example.com" % index)
        assert not policy.host_ok(b"h%d.evil.com" % index)
    assert len(policy._served_hosts) == 1024
    assert len(policy._served_origins) == 1024
    assert policy.host_ok(b"h2999.example.com")
    assert not policy.host_ok(b"h0.evil.com")


@pytest.mark.parametrize("entry", ["https://a.example", "a.example/x", "a b", "", "*.", "a:*", "*:80", "[::g]", "u@h"])
def test_a_wrong_host_entry_names_the_setting(entry: str) -> None:
    with pytest.raises(UsageError, match=r"allowed_hosts= has the entry .* such as 'api.example.com'"):
        HostPolicy([entry], None)


@pytest.mark.parametrize("entry", ["a.example", "https://a.example/", "https://", "https://a.example:*", "https://u@h"])
def test_a_wrong_origin_entry_names_the_setting(entry: str) -> None:
    with pytest.raises(UsageError, match=r"allowed_origins= has the entry .* such as 'https://app.example.com'"):
        HostPolicy(None, [entry])


def test_a_plain_string_instead_of_a_list_is_explained() -> None:
    with pytest.raises(UsageError, match=r"write allowed_hosts=\['a.example'\]"):
        HostPolicy("a.example", None)
    with pytest.raises(UsageError, match=r"write allowed_origins=\['https://a.example'\]"):
        HostPolicy(None, "https://a.example")


@pytest.mark.security("R2")
def test_a_refusal_names_the_setting_and_echoes_little() -> None:
    assert "allowed_hosts=" in refusal("host", b"evil.example")
    assert "allowed_origins=" in refusal("origin", b"https://evil.example")
    assert refusal("host", None) == "The request has no Host header; send one that is listed in allowed_hosts=."
    wild = refusal("origin", b"\x1b[31m\r\n\xff" + b"x" * 5000)
    assert wild.isprintable()
    assert wild.isascii()
    assert "x" * 92 in wild
    assert "x" * 93 not in wild
