"""The `WWW-Authenticate` header: how a client is told what it takes to be let in (RFC 6750, RFC 9728). Pure."""

from __future__ import annotations


def challenge(scheme: str, **parameters: str | None) -> bytes:
    """A challenge of one scheme; what is None is left out.

    >>> challenge("Bearer", error="invalid_token", scope=None)
    b'Bearer error="invalid_token"'
    """
    parts = ", ".join(f'{name}="{_quotable(value)}"' for name, value in parameters.items() if value is not None)
    return f"{scheme} {parts}".rstrip().encode("ascii")


def _quotable(value: str) -> str:
    """Text for a quoted string of RFC 6750: printable ASCII without quotes and backslashes."""
    return "".join(char if " " <= char <= "~" and char not in '"\\' else "'" for char in value)
