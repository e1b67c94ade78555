"""URLs of Redis backends: what they mean, and that no mistake shows the password."""

from pathlib import Path

import pytest

from weft.backends import open_backend
from weft.backends.redis import RedisBackend
from weft.backends.redis.servers import Address, parse_url
from weft.backends.redis.store import Keys
from weft.errors import UsageError

SECRET = "hunter2!"
CODED = "hunter2%21"


def test_one_server() -> None:
    servers = parse_url(f"redis://me:{CODED}@redis.example:6380/2?client_name=shop")
    assert (servers.kind, servers.seeds, servers.db) == ("single", (Address("redis.example", 6380),), 2)
    assert servers.options["username"] == "me"
    assert servers.options["password"] == SECRET
    assert servers.options["client_name"] == "shop"
    assert not servers.is_tls
    assert servers.shown == "redis://redis.example:6380/2"
    assert parse_url("redis://localhost").seeds == (Address("localhost", 6379),)
    assert parse_url("redis://[::1]:7000").shown == "redis://[::1]:7000"
    assert parse_url(f"redis://h?username=a&password={CODED}&db=3").options["password"] == SECRET
    assert parse_url("redis://h/1?db=3").db == 3
    assert parse_url("VALKEY://h").kind == "single"


def test_tls_checks_names_unless_it_is_told_not_to(tmp_path: Path) -> None:
    for scheme in ("rediss", "valkeys", "rediss+cluster", "valkeys+cluster"):
        assert parse_url(f"{scheme}://h").is_tls
    assert parse_url("rediss://h").options["ssl_check_hostname"] is True
    assert parse_url("rediss://h?ssl_check_hostname=false").options["ssl_check_hostname"] is False
    assert parse_url("rediss://h?ssl_cert_reqs=none").options["ssl_check_hostname"] is False
    file = tmp_path / "ca.pem"
    file.write_text("")
    assert parse_url(f"rediss://h?ssl_ca_certs={file}").options["ssl_ca_certs"] == str(file)


def test_a_unix_socket() -> None:
    servers = parse_url(f"unix://:{CODED}@/run/redis%20here.sock?db=1")
    assert (servers.seeds, servers.is_unix, servers.db) == ((Address("/run/redis here.sock", 0),), True, 1)
    assert servers.options["password"] == SECRET
    assert servers.shown == "unix:///run/redis here.sock"


def test_sentinels() -> None:
    url = f"redis+sentinel://me:{CODED}@one,two:5000/main/4?sentinel_username=s&sentinel_password={CODED}"
    servers = parse_url(url)
    assert (servers.kind, servers.master, servers.db) == ("sentinel", "main", 4)
    assert servers.seeds == (Address("one", 26379), Address("two", 5000))
    assert (servers.options["username"], servers.sentinel_options["username"]) == ("me", "s")
    assert "db" not in servers.sentinel_options
    assert "password" not in parse_url(f"redis+sentinel://:{CODED}@one/main").sentinel_options
    assert servers.shown == "redis+sentinel://one:26379,two:5000/main/4"


def test_a_cluster() -> None:
    servers = parse_url(f"redis+cluster://me:{CODED}@one:7000,two:7001,three")
    assert servers.kind == "cluster"
    assert servers.seeds == (Address("one", 7000), Address("two", 7001), Address("three", 6379))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"http://:{SECRET}@h", "begins with a scheme that is not for Redis"),
        (f"redis+ring://:{SECRET}@h", "begins with a scheme that is not for Redis"),
        (f"unix+cluster://:{SECRET}@/run/s", "names a Unix socket"),
        (f"unix://:{SECRET}@", "names no Unix socket"),
        (f"redis://:{SECRET}@", "names no host"),
        (f"redis://:{SECRET}@h:port", "has a port that is not a number"),
        (f"redis://:{SECRET}@h:66000", "has a port that is not a number"),
        (f"redis://:{SECRET}/x@h:1", "has a port that is not a number"),
        (f"redis://:{SECRET}#x@h:1", "Write %23"),
        (f"redis://:{SECRET}@h/zero", "has a database that is not a number"),
        (f"redis://:{SECRET}@h/0/1", "more than the number of a database"),
        (f"redis://:{SECRET}@[::1", "cannot be read"),
        (f"redis://:{SECRET}@one,two", "names several servers"),
        (f"redis+cluster://:{SECRET}@one/1", "a cluster has only database 0"),
        (f"redis+sentinel://:{SECRET}@one", "does not say the name of the master"),
        (f"redis://h?passwort={SECRET}", "unknown option 'passwort' after '?'"),
        (f"redis://h?{SECRET}", "unknown option after '?'"),
        (f"redis://h?sentinel_password={SECRET}", "unknown option 'sentinel_password' after '?'"),
        (f"redis://:my?{SECRET}=1@h", "unknown option after '?'"),
        (f"redis://h?password=my&{SECRET}=1", "unknown option after '?'"),
        (f"redis://:{SECRET}@h?ssl_ca_certs=x", "there is no such file"),
        (f"redis://:{SECRET}@h?ssl_check_hostname=no", "Begin it with rediss"),
        (f"rediss://:{SECRET}@h?ssl_cert_reqs={SECRET}", "Write none, optional or required"),
        (f"rediss://:{SECRET}@h?ssl_check_hostname={SECRET}", "Write true or false"),
    ],
)
def test_a_wrong_url_is_told_without_the_password(url: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        RedisBackend(url)
    assert told in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@h", "rediss+sentinel://:hunter2@h/m", "valkey+cluster://:hunter2@h", "unix://:hunter2@/s"]
)
def test_the_url_of_a_backend_opens_one_and_no_secret_is_shown(url: str) -> None:
    backend = open_backend(url)
    assert isinstance(backend, RedisBackend)
    assert not backend.is_local
    assert "hunter2" not in f"{backend!r} {backend} {vars(backend)} {parse_url(url)}"


@pytest.mark.parametrize(
    "url", ["hunter2@h:6379", ":hunter2@h:6379", "redis//:hunter2@h", "redis/hunter2:x", "hunter2"]
)
def test_a_url_without_a_scheme_is_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_backend(url)
    assert "hunter" not in str(caught.value)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="prefix"):
        RedisBackend("redis://h", prefix="{x}")
    for options in ({"timeout": 0}, {"connections": 0}):
        with pytest.raises(UsageError, match="timeout above 0 and at least 1 connection"):
            RedisBackend("redis://h", **options)


def test_keys_of_one_group_have_one_hash_tag() -> None:
    keys = Keys("weft:")
    assert keys("stream/abc/1") == b"weft:stream/{abc}/1"
    assert keys("session/abc") == b"weft:session/{abc}"
    assert keys("workers") == b"weft:workers"
    assert keys("a/b}c/d") == b"weft:a/{%b%7Dc}/d"
    assert keys("{a}/b/c") == b"weft:%%7Ba%7D/{b}/c"
