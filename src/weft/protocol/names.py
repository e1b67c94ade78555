"""Check the syntax of tool names, `_meta` keys, extension ids and URIs; find similar names; make text printable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LABEL = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
_KEY_NAME = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_RESERVED_LABELS = frozenset({"modelcontextprotocol", "mcp"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
# Characters that a URI cannot have (RFC 3986). `_check_delimiters` checks the places of `#` and `[]`.
_NOT_URI = re.compile(r"[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]|%(?![0-9A-Fa-f]{2})")
_IP_LITERAL = re.compile(r"\[[0-9A-Za-z:.\-_~!$&'()*+,;=]+\]")
_MAX_CANDIDATES = 1000
_MAX_COMPARED = 30
_MAX_WORK = 20_000  # limit of: length of the name, times the total length of the names to which it is compared
_MAX_NAME = 128


def printable(text: str, instead: str = " ") -> str:
    r"""Return a text in which `instead` replaces each control character and line break, so that it is safe to log.

    >>> printable("a\nb\x1b[2J", "?")
    'a?b?[2J'
    """
    return "".join(char if char.isprintable() else instead for char in text)


def check_tool_name(name: str) -> None:
    """Raise ValueError if `name` is not a valid tool name.

    >>> check_tool_name("get weather")
    Traceback (most recent call last):
    ...
    ValueError: The tool name 'get weather' has ' ', which is not allowed; use A-Z a-z 0-9 _ . - only.
    """
    if _TOOL_NAME.fullmatch(name):
        return
    if not name:
        raise ValueError("The tool name is empty; give it 1 to 128 characters of A-Z a-z 0-9 _ . -.")
    if wrong := re.search(r"[^A-Za-z0-9_.-]", name):
        shown = repr(name[:_MAX_NAME])
        raise ValueError(f"The tool name {shown} has {wrong[0]!r}, which is not allowed; use A-Z a-z 0-9 _ . - only.")
    raise ValueError(f"The tool name {name[:40] + '…'!r} has {len(name)} characters; shorten it to at most 128.")


def check_meta_key(key: str) -> None:
    """Raise ValueError if `key` is not a valid `_meta` key.

    A valid key is a name, which may have a prefix such as `com.example/`.

    >>> check_meta_key("com.example/trace-id")
    """
    prefix, slash, name = key.rpartition("/")
    if slash and not all(_LABEL.fullmatch(label) for label in prefix.split(".")):
        raise ValueError(f"The prefix of the key {key[:_MAX_NAME]!r} is malformed; write it as 'com.example/'.")
    if not _KEY_NAME.fullmatch(name):
        allowed = "write A-Z a-z 0-9 _ . - only, and a letter or digit at both ends"
        raise ValueError(f"The name in the key {key[:_MAX_NAME]!r} is malformed; {allowed}.")


def is_reserved_meta_key(key: str) -> bool:
    """Return whether a `_meta` key is reserved for MCP.

    A key is reserved if the second label of its prefix is `mcp` or `modelcontextprotocol`.

    >>> is_reserved_meta_key("dev.mcp/x"), is_reserved_meta_key("com.example.mcp/x")
    (True, False)
    """
    labels = key.rpartition("/")[0].split(".")
    return len(labels) > 1 and labels[1] in _RESERVED_LABELS


def check_extension_id(id: str) -> None:
    """Raise ValueError if `id` is not a valid extension identifier.

    A valid identifier is a `_meta` key that has a prefix.

    >>> check_extension_id("com.example/search")
    """
    prefix, slash, name = id.rpartition("/")
    if not (slash and prefix and name):
        raise ValueError(f"The extension {id[:_MAX_NAME]!r} needs a prefix and a name; write it as 'com.example/name'.")
    check_meta_key(id)


def check_uri(uri: str, max_bytes: int = 8192) -> None:
    """Raise ValueError if `uri` is not a URI with a scheme (RFC 3986), or is longer than `max_bytes`.

    >>> check_uri("notes/1")
    Traceback (most recent call last):
    ...
    ValueError: The URI 'notes/1' has no scheme; begin it with one, such as 'file:///' or 'notes://'.
    """
    if len(uri) > max_bytes:
        raise ValueError(f"The URI has {len(uri)} characters; shorten it to at most {max_bytes}.")
    shown = repr(uri[:100])
    if wrong := _NOT_URI.search(uri):
        raise ValueError(f"The URI {shown} has {wrong[0]!r} at {wrong.start()}; percent-encode it.")
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme or "?" in scheme or "#" in scheme:
        raise ValueError(f"The URI {shown} has no scheme; begin it with one, such as 'file:///' or 'notes://'.")
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(f"The scheme of the URI {shown} is malformed; use A-Z a-z 0-9 + . - only, first a letter.")
    _check_delimiters(shown, rest)


def _check_delimiters(shown: str, rest: str) -> None:
    """Raise ValueError if a URI has a second `#`, or brackets `[]` that do not enclose an IP address.

    `rest` is the URI after its scheme; `shown` is the URI in the error message.
    """
    if rest.count("#") > 1:
        raise ValueError(f"The URI {shown} has more than one '#'; percent-encode those inside the fragment as %23.")
    path = rest
    if rest.startswith("//"):
        authority = re.split(r"[/?#]", rest[2:], maxsplit=1)[0]
        host = authority.rpartition("@")[2]
        literal = _IP_LITERAL.match(host)
        path = rest.replace(literal[0], "", 1) if literal else rest
    if "[" in path or "]" in path:
        raise ValueError(f"The URI {shown} has '[' or ']' outside an IP address; percent-encode them as %5B and %5D.")


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is most similar to a misspelled name, or None if none is similar.

    The name may come from a peer, so the work is limited. At most 1,000 candidates of at most 128 characters are
    considered. At most 30 of these are compared in full, and fewer if the name is long.

    >>> closest("serach", ["search", "fetch"])
    'search'
    """
    if not 0 < len(name) <= _MAX_NAME:
        return None
    pool = [candidate for candidate in islice(candidates, _MAX_CANDIDATES) if _is_as_long(name, candidate)]
    if len(pool) * len(name) ** 2 > _MAX_WORK or len(pool) > _MAX_COMPARED:
        kept = max(1, min(_MAX_COMPARED, _MAX_WORK // len(name) ** 2))
        pool = sorted(pool, key=lambda candidate: _shared_ends(name, candidate), reverse=True)[:kept]
    import difflib  # imported here, because it is needed only after a mistake

    found = difflib.get_close_matches(name, pool, n=1)
    return found[0] if found else None


def _is_as_long(name: str, candidate: str) -> bool:
    """Return whether the lengths of two names are close enough for a similarity of 60 %, which `difflib` requires."""
    both = len(name) + len(candidate)
    return len(candidate) <= _MAX_NAME and 2 * min(len(name), len(candidate)) >= 0.6 * both


def _shared_ends(name: str, candidate: str) -> int:
    """Return how many characters two names have in common at the beginning, plus those at the end."""
    return _shared_beginning(name, candidate) + _shared_beginning(name[::-1], candidate[::-1])


def _shared_beginning(one: str, other: str) -> int:
    least, most = 0, min(len(one), len(other))
    while least < most:  # a binary search, because up to 1,000 names of 128 characters are compared
        middle = (least + most + 1) // 2
        if one.startswith(other[least:middle], least):
            least = middle
        else:
            most = middle - 1
    return least
