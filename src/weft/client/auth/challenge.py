"""Reads `WWW-Authenticate`: which schemes a server offers, and with which parameters (ASD-04).

The header is a list whose items are lists themselves, both with commas; there may be several such headers. What cannot
be read is left out: a server's mistake in one challenge does not hide another. Reading takes time linear in the header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Challenge", "challenges", "header_values", "parse"]

_MOST_BYTES = 16 * 1024
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - a token of the HTTP grammar, no secret
# A parameter, else the name of a scheme (with a token68, which nobody here needs).
_PARAM = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN})(?=[ \t]*(?:,|$)))')
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+(?=[^ \t,=])|[ \t]*(?=,|$))")
_SEPARATOR = re.compile(r"[ \t,]+")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One scheme with its parameters; their names are in lower case."""

    scheme: str = ""
    params: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """The scopes that are asked for; None when the challenge says nothing of them."""
        scope = self.params.get("scope")
        return tuple(dict.fromkeys(scope.split())) if scope and scope.strip() else None

    @property
    def error(self) -> str | None:
        """Why, in a word: `invalid_token`, `insufficient_scope`, `use_dpop_nonce` …"""
        return self.params.get("error")

    @property
    def resource_metadata(self) -> str | None:
        """Where the server says more about itself."""
        return self.params.get("resource_metadata")

    @property
    def is_dpop(self) -> bool:
        """Whether tokens have to be bound to a key."""
        return self.scheme == "dpop"


def parse(header: str) -> list[Challenge]:
    """All challenges in one header.

    >>> parse('Bearer error="invalid_token", scope="a b", DPoP algs="ES256"')[1]
    Challenge(scheme='dpop', params={'algs': 'ES256'})
    """
    header = header[:_MOST_BYTES]
    found: list[Challenge] = []
    params: dict[str, str] = {}
    at = 0
    while at < len(header):
        if gap := _SEPARATOR.match(header, at):
            at = gap.end()
        elif (part := _PARAM.match(header, at)) is not None:
            if found:
                params.setdefault(part[1].lower(), _unquoted(part))
            at = part.end()
        elif (part := _SCHEME.match(header, at)) is not None:
            params = {}
            found.append(Challenge(part[1].lower(), params))
            at = part.end()
        else:  # what is neither ends at a comma
            comma = header.find(",", at)
            at = comma if comma >= 0 else len(header)
    return found


def _unquoted(part: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", part[2]) if part[2] is not None else part[3]


def challenges(headers: Mapping[str, str]) -> Sequence[Challenge]:
    """The challenges of a response that concern tokens, in the order in which we would take them up.

    A server that offers both ways of presenting a token gets the one that a thief cannot use.
    """
    found = [one for value in header_values(headers, "WWW-Authenticate") for one in parse(value)]
    known = [one for one in found if one.scheme in ("bearer", "dpop")]
    return sorted(known, key=lambda one: not one.is_dpop)


def header_values(headers: Mapping[str, str], name: str) -> list[str]:
    """All headers of a name, where the mapping can hold several."""
    getall: Any = getattr(headers, "getall", None)
    if getall is not None:
        return list(getall(name, []))
    value = headers.get(name, headers.get(name.lower()))
    return [] if value is None else [value]
