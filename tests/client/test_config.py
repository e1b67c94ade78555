"""What a client can be pointed at, and what it says of the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.client.config import Command, Http, check_url, is_config, parse_target, read_config
from weft.errors import UsageError


def refused(target: object, **options) -> str:
    with pytest.raises(UsageError) as caught:
        parse_target(target, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example/mcp",
        "https://a.example:8443/mcp?k=v",
        "http://localhost:8000/mcp",
        "http://127.0.0.1/",
        "http://[::1]:1/x",
    ],
)
def test_urls(url):
    assert parse_target(url) == Http(url)
    assert parse_target(f"  {url}\n") == Http(url)
    assert parse_target({"url": url}) == Http(url)


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/mcp",
        "http://localhost.evil.example/",
        "http://127.0.0.1.evil.example/",
        "http://192.168.1.2/mcp",
        "http://[::2]/",
        "HTTP://a.example/",
    ],
)
def test_http_stays_on_this_machine(url):
    assert "allow_insecure=True" in refused(url)
    assert "allow_insecure=True" in refused({"url": url})
    with pytest.raises(UsageError, match="allow_insecure=True"):
        Http(url)
    assert parse_target(Http(url, allow_insecure=True)).url == url


@pytest.mark.security("R11")
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://a.example/x", "scheme 'ftp'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("javascript://a/%0Aalert(1)", "scheme 'javascript'"),
        ("https://ann:secret@a.example/", "headers="),
        ("https://a.example@evil.example/", "headers="),
        ("https://", "names no host"),
        ("https:///mcp", "names no host"),
        ("https://a.example/#x", "fragment"),
        ("https://a.example:99999/", "not a URL"),
        ("https://a.example:x/", "not a URL"),
        ("https://a.ex\nample/", "percent-encode"),
        ("https://a.example/$(reboot)`x`", "percent-encode"),
        ("https://a\\evil.example/", "percent-encode"),
    ],
)
def test_urls_that_are_refused(url, said):
    message = refused(url)
    assert said in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "url", ["a.example/mcp", "127.0.0.1:8000/mcp", "localhost:8000/mcp", "ann:secret@a.example", ""]
)
def test_urls_of_an_entry_that_lack_their_beginning(url):
    message = refused({"url": url})
    assert "not a URL: write https://host/path, or http://localhost:8000/mcp on this machine." in message
    assert "secret" not in message


def test_a_key_in_the_query_is_not_told():
    assert "s3cret" not in refused("http://a.example/mcp?key=s3cret")
    assert parse_target("https://a.example/mcp?key=s3cret").where == "https://a.example/mcp"


@pytest.mark.parametrize(
    ("target", "command"),
    [
        (["python", "server.py"], ("python", "server.py")),
        (("uvx", "mcp-server-time"), ("uvx", "mcp-server-time")),
        ([Path("/bin/cat")], ("/bin/cat",)),
        ("python -m flights", ("python", "-m", "flights")),
        ("python 'my server.py' --name \"a b\"", ("python", "my server.py", "--name", "a b")),
        (["sh", "-c", "a | b"], ("sh", "-c", "a | b")),
        (["echo", "|"], ("echo", "|")),
    ],
)
def test_commands(target, command):
    assert parse_target(target) == Command(command)


@pytest.mark.security("R11")
def test_nothing_of_a_command_is_for_a_shell():
    text = "prog $HOME *.py `id` $(id) a;b ~"
    assert parse_target(text).command == ("prog", "$HOME", "*.py", "`id`", "$(id)", "a;b", "~")


@pytest.mark.security("R11")
@pytest.mark.parametrize("word", ["|", "&&", "||", ";", ">", "2>&1", "&"])
def test_a_command_for_a_shell_is_refused(word):
    assert "only a shell understands" in refused(f"prog a {word} b")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ([], "is empty"),
        ([""], "is empty"),
        ("prog 'x", "close the quote"),
        (["prog", 5], "every part of a command is text"),
        (["prog", "a\0b"], "NUL"),
        (5, "cannot connect to something of the type 'int'"),
        (None, "cannot connect to something of the type 'NoneType'"),
        (b"prog", "of the type 'bytes'"),
        ("127.0.0.1:8021/mcp", "if it is a server's address, write http://127.0.0.1:8021/mcp"),
        ("localhost:8021", "write http://localhost:8021"),
        ("[::1]:8021/mcp", "write http://[::1]:8021/mcp"),
        ("flights.example:443/mcp?key=1", "write https://flights.example:443/mcp"),
    ],
)
def test_what_is_no_target(target, said):
    assert said in refused(target)


def test_the_file_of_a_configuration(tmp_path):
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"time": {"command": "uvx"}, "web": {"url": "https://a.example/mcp"}}}))
    assert parse_target(file, server="web") == Http("https://a.example/mcp")
    assert "has several servers; choose one of 'time', 'web'" in refused(file)
    assert "cannot be read" in refused(tmp_path / "none.json")


def test_a_command_as_a_value():
    assert Command("uvx 'a b'") == Command(["uvx", "a b"]) == Command((Path("uvx"), "a b"))
    assert Command(["x"], cwd=Path("/tmp")).cwd == "/tmp"
    with pytest.raises(UsageError, match="only a shell understands"):
        Command("a | b")


def test_an_entry_with_a_command():
    entry = {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "v"}, "cwd": "/tmp", "disabled": False}
    assert parse_target(entry) == Command(("npx", "-y", "x"), env={"KEY": "v"}, cwd="/tmp")
    assert parse_target({"command": "npx -y x"}) == Command(["npx -y x"])  # one program: its path may have spaces
    assert parse_target({"type": "stdio", "command": ["npx", "-y"], "args": ["x"]}).command == ("npx", "-y", "x")


@pytest.mark.parametrize("kind", ["http", "sse", "streamable-http", "streamableHttp"])
def test_an_entry_with_a_url(kind):
    entry = {"type": kind, "url": "https://a.example/mcp", "headers": {"Authorization": "Bearer s3cret"}}
    target = parse_target(entry)
    assert target == Http("https://a.example/mcp", headers={"Authorization": "Bearer s3cret"})
    assert "s3cret" not in repr(target)


def test_secrets_of_the_environment_are_not_shown():
    assert "s3cret" not in repr(Command(("x",), env={"TOKEN": "s3cret"}))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "either a 'command' to start, or a 'url'"),
        ({"args": ["x"]}, "either a 'command' to start, or a 'url'"),
        ({"command": "x", "url": "https://a.example"}, "either a 'command' to start, or a 'url'"),
        ({"command": "x", "args": "y"}, "Expected `array | null`, got `str` - at `$.args`"),
        ({"command": 5}, "got `int` - at `$.command`"),
        ({"command": "x", "env": {"PORT": 80}}, "got `int` - at `$.env[...]`. Write values as text, in quotes."),
        ({"command": "x", "env": {"A=B": "c"}}, "no environment can hold"),
        ({"command": "x", "env": ["A"]}, "Expected `object | null`, got `array` - at `$.env`"),
        ({"command": "x", "cwd": 5}, "got `int` - at `$.cwd`"),
        ({"command": "x", "type": "http"}, "write 'stdio'"),
        ({"url": "https://a.example", "type": "stdio"}, "write 'http'"),
        ({"url": 5}, "got `int` - at `$.url`"),
        ({"url": "https://a.example", "headers": {"A": "b\r\nC: d"}}, "cannot be sent"),
        ({"url": "https://a.example", "headers": {"A b": "c"}}, "cannot be sent"),
    ],
)
def test_entries_that_are_refused(entry, said):
    assert said in refused(entry)
    assert said in refused({"mcpServers": {"one": entry}})


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("TOK", "s3cret")
    monkeypatch.setenv("NONE", "")
    found = parse_target(
        {
            "url": "https://${HOST:-a.example}/mcp?key=${env:TOK}",
            "headers": {"Authorization": "Bearer ${TOK}", "X": "$TOK {TOK} ${NONE} ${NONE:-b}${x%y}"},
        }
    )
    assert found.url == "https://a.example/mcp?key=s3cret"
    assert found.headers == {"Authorization": "Bearer s3cret", "X": "$TOK {TOK}  b${x%y}"}
    assert found.taken == ("TOK",)
    found = parse_target(
        {"command": "${TOOL:-uvx}", "args": ["--key=${TOK}", "${MODE}"], "env": {"MODE": "a${TOK}"}, "cwd": "/${NONE}"}
    )
    assert found.command == ("uvx", "--key=s3cret", "as3cret")
    assert (found.env, found.cwd, found.taken) == ({"MODE": "as3cret"}, "/", ("TOK",))
    assert found.where == "'${TOOL:-uvx}' '--key=${TOK}' '${MODE}'"  # what is in a message is no secret


def test_only_entries_have_variables(monkeypatch):
    monkeypatch.setenv("TOK", "s3cret")
    assert parse_target(["x", "${TOK}"]).command == ("x", "${TOK}")
    assert parse_target("x ${TOK}").command == ("x", "${TOK}")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"url": "https://a.example", "headers": {"A": "Bearer ${NO_TOK}"}}, "needs the variable 'NO_TOK' of the envi"),
        ({"url": "https://a.example/${env:NO_TOK}"}, "needs the variable 'NO_TOK' of the environment, which is not se"),
        ({"command": "x", "args": ["${NO_TOK}"]}, "needs the variable 'NO_TOK' of the environment, which is not set."),
        ({"command": "x", "env": {"A": "${NO_TOK}"}}, "needs the variable 'NO_TOK' of the environment, which is not s"),
        ({"command": "x", "env": {"A": "${input:key}"}}, "has '${input:key}', which only some editors can replace; wr"),
    ],
)
def test_variables_that_are_not_there(monkeypatch, entry, said):
    monkeypatch.delenv("NO_TOK", raising=False)
    assert f"The entry cannot be used. It {said}" in refused(entry)
    assert f"The entry 'one' cannot be used. It {said}" in refused({"mcpServers": {"one": entry}})


def test_a_variable_cannot_smuggle_in_a_header(monkeypatch):
    monkeypatch.setenv("TOK", "s3cret\r\nX: y")
    said = refused({"url": "https://a.example", "headers": {"A": "${TOK}"}})
    assert "has the header 'A', which cannot be sent" in said
    assert "s3cret" not in said


CONFIG = {
    "mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}, "web": {"url": "https://a.example/mcp"}}
}


def test_a_whole_configuration():
    assert is_config(CONFIG)
    assert not is_config({"command": "x"})
    assert parse_target(CONFIG, server="web") == Http("https://a.example/mcp")
    assert parse_target({"servers": {"web": {"url": "https://a.example"}}}) == Http("https://a.example")
    assert refused(CONFIG) == (
        "The configuration has several servers; choose one of 'time', 'web', for example with server='time'."
    )
    assert "has no server 'tine'; did you mean 'time'?" in refused(CONFIG, server="tine")
    assert "choose one of" in refused(CONFIG, server="zzzzzzz")


def test_a_configuration_file(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text("\ufeff" + json.dumps(CONFIG))
    assert (
        read_config(path)
        == read_config(CONFIG)
        == {
            "time": Command(("uvx", "mcp-server-time")),
            "web": Http("https://a.example/mcp"),
        }
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "needs to be an object"),
        ("{}", "names no server"),
        ('{"mcpServers": {}}', "names no server"),
        ('{"mcpServers": {"a": []}}', "'a' cannot be used: Expected `object`, got `array`"),
        ("[" * 100_000, "is not JSON"),
        (" " * 1_100_000, "is larger than"),
    ],
)
def test_configuration_files_that_are_refused(tmp_path, text, said):
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_config(path)


def test_a_configuration_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.json")


def test_check_url_alone():
    check_url("https://a.example/")
    with pytest.raises(UsageError):
        check_url("http://a.example/")


def test_a_variable_of_the_entry_itself_that_is_empty_counts_as_not_set(monkeypatch):
    monkeypatch.setenv("MODE", "theirs")
    found = parse_target({"command": "x", "args": ["${MODE:-slow}", "a${MODE}"], "env": {"MODE": ""}})
    assert found.command == ("x", "slow", "a")
    assert found.taken == ()
