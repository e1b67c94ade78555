"""Well-formed names, and the sentences about the others."""

from __future__ import annotations

import difflib
import sys
import time
import timeit
from types import FrameType
from typing import Any

import pytest

from weft.protocol.names import (
    check_extension_id,
    check_meta_key,
    check_tool_name,
    check_uri,
    closest,
    is_reserved_meta_key,
)


@pytest.mark.spec("TOOL-07")
@pytest.mark.parametrize("name", ["a", "get_weather", "Admin.tools-v2", "9", "x" * 128])
def test_tool_names(name: str) -> None:
    check_tool_name(name)


@pytest.mark.spec("TOOL-07")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty; give it 1 to 128"),
        ("x" * 129, "129 characters; shorten it to at most 128"),
        ("get weather", "has ' '"),
        ("a,b", "has ','"),
        ("a/b", "has '/'"),
        ("é", "has 'é'"),
        ("a\n", r"has '\n'"),
        ("٣", "has '٣'"),
    ],
)
def test_wrong_tool_names(name: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_tool_name(name)
    assert reason in str(caught.value)


GOOD_KEYS = ["name", "a.b_c-d", "com.example/name", "com.ex-ample.a1/x", "a/x", "com.example/", "", "9x", "X"]
BAD_KEYS = [
    *("1com/x", "com.-a/x", "com.a-/x", "com..a/x", ".com/x", "com./x", "/x", "a_b/x", "com.1a/x", "a/b/c", "é/x"),
    *("_x", "x_", "-x", "x.", "a b", "com.example/-x", "com.example/é", "x\n", "a/x\n"),
]


@pytest.mark.spec("META-11", "META-13")
@pytest.mark.parametrize("key", GOOD_KEYS)
def test_meta_keys(key: str) -> None:
    check_meta_key(key)


@pytest.mark.spec("META-11", "META-13")
@pytest.mark.parametrize("key", BAD_KEYS)
def test_wrong_meta_keys(key: str) -> None:
    with pytest.raises(ValueError, match="is malformed; "):
        check_meta_key(key)


@pytest.mark.spec("META-14")
@pytest.mark.parametrize(
    ("key", "reserved"),
    [
        ("io.modelcontextprotocol/x", True),
        ("dev.mcp/", True),
        ("org.modelcontextprotocol.api/x", True),
        ("com.mcp.tools/x", True),
        ("com.example.mcp/x", False),
        ("mcp/x", False),
        ("modelcontextprotocol/x", False),
        ("com.mcpx/x", False),
        ("io.mcp", False),
        ("x", False),
        ("", False),
    ],
)
def test_reserved_prefixes(key: str, reserved: bool) -> None:
    assert is_reserved_meta_key(key) is reserved


@pytest.mark.spec("VER-05")
def test_extension_identifiers() -> None:
    check_extension_id("io.modelcontextprotocol/tasks")
    check_extension_id("com.example/my-ext.v2")
    for wrong in ("tasks", "/tasks", "com.example/", "com.example", ""):
        with pytest.raises(ValueError, match="needs a prefix and a name"):
            check_extension_id(wrong)
    with pytest.raises(ValueError, match="prefix of the key"):
        check_extension_id("1com/x")


@pytest.mark.spec("RES-11")
@pytest.mark.parametrize(
    "uri",
    [
        "file:///a/b%20c",
        "https://user:pw@example.com:80/p;x=1?q=[1]#f".replace("[1]", "1"),
        "http://[2001:db8::1]:80/",
        "http://me@[v7.x:y]/",
        "urn:isbn:0451450523",
        "a+b.c-d:x",
        "mailto:a@b.example",
        "x:",
        "x://{}".format("%7B"),
    ],
)
def test_uris(uri: str) -> None:
    check_uri(uri)


@pytest.mark.spec("RES-11")
@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "has no scheme"),
        ("notes/1", "has no scheme"),
        ("/a:b", "has no scheme"),
        ("?a:b", "has no scheme"),
        ("1a:b", "scheme of the URI"),
        ("a_b:c", "scheme of the URI"),
        (":x", "scheme of the URI"),
        ("x://a b", "' ' at 5"),
        ("x://a\n", "'\\n' at 5"),
        ("x://é", "'é' at 4"),
        ("x://a%2", "'%' at 5"),
        ("x://a\\b", "at 5; percent-encode it"),
        ("x://{a}", "'{' at 4"),
        ("x://a#b#c", "more than one '#'"),
        ("x://a/[b]", "outside an IP address"),
        ("x:[::1]", "outside an IP address"),
        ("x://[::1]/[", "outside an IP address"),
        ("x://a[::1]", "outside an IP address"),
    ],
)
def test_wrong_uris(uri: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_uri(uri)
    assert reason in str(caught.value)


@pytest.mark.security("D7", "R12")
def test_a_uri_one_byte_too_long() -> None:
    check_uri("x:" + "a" * 8190)
    with pytest.raises(ValueError, match="8193 characters; shorten it to at most 8192"):
        check_uri("x:" + "a" * 8191)


@pytest.mark.mistake("unknown tool")
def test_the_closest_name() -> None:
    assert closest("serach", ["fetch", "search"]) == "search"
    assert closest("zebra", ["fetch", "search"]) is None
    assert closest("search", []) is None


@pytest.mark.security("R7")
def test_the_search_for_the_closest_name_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def spy(word: str, possibilities: list[str], n: int) -> list[str]:
        looked_at.extend(possibilities)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", spy)
    assert closest("x" * 129, ["x"]) is None
    assert looked_at == []
    assert closest("", ["x"]) is None
    assert looked_at == []
    assert closest("name", ["y" * 129, *(f"name{index}" for index in range(2000))]) is None
    assert len(looked_at) == 30
    assert all(len(name) <= 7 for name in looked_at)
    looked_at.clear()
    assert closest("x" * 128, [f"{'x' * 120}{index}" for index in range(2000)]) is None
    assert sum(len(name) * 128 for name in looked_at) <= 20_000


@pytest.mark.security("R7")
@pytest.mark.parametrize("length", [6, 14, 26, 50, 94, 128])
@pytest.mark.parametrize("unit", ["a", "ab", "tool_", "abcdefghijklm"])
def test_the_search_for_the_closest_name_is_quick(length: int, unit: str) -> None:
    names = [(unit * 128)[: length - 4] + f"{number:04}" for number in range(1000)]
    closest("serach", ["search"])  # imports
    for name in (names[500][::-1], (unit * 128)[:length], names[0][1:] + "z"):
        assert (
            min(timeit.repeat(lambda name=name: closest(name, names), timer=time.process_time, number=1, repeat=5))
            < 0.06
        )


@pytest.mark.security("R7")
def test_long_names_are_not_compared_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_, **__: [])
    names = [f"{'x' * 62}{number:04}{'y' * 62}" for number in range(100)]
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        closest(f"{'x' * 62}zzzz{'y' * 62}", names)
    finally:
        sys.settrace(before)
    assert lines < 128 * len(names)


def test_the_closest_of_very_many_names_is_still_found() -> None:
    names = [f"{'long_' * 20}{index:04}" for index in range(900)]
    assert closest(f"{'long_' * 19}logn_0777", names) == names[777]
    assert closest("serach", [f"seam{index}" for index in range(400)] + ["search"]) == "search"
