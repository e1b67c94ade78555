"""The steps of a login: what a flow wants done, as values.

A flow is a generator. It yields steps and is sent what came of them, so that every branch of it can be walked without
a network, a browser or a disk. `driver` does the steps; nothing here does anything.

    Request        do one HTTP exchange                         → Response; FetchFailed is thrown in when there is none
    Listen         make ready to receive the browser            → the redirect URI
    Visit          send the person there, and wait              → the URL that the browser came back with
    Load, Keep     read or write the storage                    → bytes or None; nothing
    Claim          be the only program at work on a key         → nothing, when it is our turn or was waited for
    Release        let the next one; the end of a flow does too → nothing
    Call           call a function of the user's                → what it returned

No value here shows a secret when it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec

from weft.errors import WeftError

T = TypeVar("T")


class FetchFailed(WeftError):
    """There was no response: the place cannot be reached, or may not be."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP exchange. GET follows redirects within the rules for URLs; POST follows none."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back. The names of the headers are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes = field(default=b"", repr=False)

    def json(self) -> dict[str, Any] | None:
        """The object in the body, or None when there is none."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None
        return found if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType] - JSON is Any


@dataclass(frozen=True, slots=True)
class Listen:
    """Make ready to receive the browser, at one of the known redirect URIs if that can be."""

    known: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Visit:
    """Send the person to a page of the authorization server. Only what comes back with this `state` counts."""

    url: str = field(repr=False)
    state: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """Read what is kept under a key."""

    key: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep something under a key; None forgets it."""

    key: str
    value: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """Be the only program that is at work on what is kept under a key, where the storage can see to that."""

    key: str


@dataclass(frozen=True, slots=True)
class Release:
    """Let others work on what was claimed."""


@dataclass(frozen=True, slots=True)
class CallFunction:
    """Call a function, plain or async, without arguments; `name` is the option that it was given as."""

    function: Callable[[], Any]
    name: str


Step: TypeAlias = HttpRequest | Listen | Visit | Load | Keep | Claim | Release | CallFunction
Steps: TypeAlias = Generator[Step, Any, T]
"""A flow that comes to a T."""


def get(url: str) -> Steps[HttpAnswer]:
    """Get a JSON document."""
    response: HttpAnswer = yield HttpRequest("GET", url, {"Accept": "application/json"})
    return response


def post_form(url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Steps[HttpAnswer]:
    """Post a form, and take JSON."""
    sent = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded", **headers}
    response: HttpAnswer = yield HttpRequest("POST", url, sent, urlencode(form).encode())
    return response


def post_json(url: str, document: Mapping[str, Any]) -> Steps[HttpAnswer]:
    """Post JSON, and take JSON."""
    sent = {"Accept": "application/json", "Content-Type": "application/json"}
    response: HttpAnswer = yield HttpRequest("POST", url, sent, msgspec.json.encode(document))
    return response


def listen(known: Sequence[str]) -> Steps[str]:
    """Make ready for the browser."""
    uri: str = yield Listen(known)
    return uri


def visit(url: str, state: str) -> Steps[str]:
    """Send the person somewhere."""
    came_back: str = yield Visit(url, state)
    return came_back


def load(key: str) -> Steps[bytes | None]:
    """Read the storage."""
    value: bytes | None = yield Load(key)
    return value


def keep(key: str, value: bytes | None) -> Steps[None]:
    """Write the storage."""
    yield Keep(key, value)


def claim(key: str) -> Steps[None]:
    """Wait for our turn."""
    yield Claim(key)


def release() -> Steps[None]:
    """Let the next one."""
    yield Release()


def call(function: Callable[[], Any], name: str) -> Steps[Any]:
    """Call a function of the user's."""
    result: Any = yield CallFunction(function, name)
    return result
