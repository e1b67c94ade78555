"""Check who logs in: users by their passwords, users and programs by the assertions of issuers that are trusted.

An assertion is a JWT made for this authorization server:

    client assertion   a program proves who it is (`private_key_jwt`, RFC 7523)
    ID-JAG             a company's identity provider says who the user of a client is
    workload token     the platform that a program runs on says which program it is
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, cast

import msgspec

from weft.authorization.web import OAuthError, digest
from weft.backends import Store
from weft.errors import UsageError, WeftError
from weft.net.logs import Seldom
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeySet, KeysGiven, check_algorithms, make_key_set, read_signed
from weft.server.auth.tokens import LEEWAY, TokenRefused, VerifierFailed, is_async
from weft.server.diagnostics import MOST_FRAMES, record, user_frames

_seldom = Seldom(logging.getLogger("weft.auth"))  # anybody who tries to log in can cause these

Login: TypeAlias = Callable[[str, str], Awaitable[str | None]]  # from name and password to the subject of tokens

_PREFIX = "scrypt$"
_COST = {"n": 2**14, "r": 8, "p": 1, "dklen": 32, "maxmem": 64 * 1024 * 1024}
_NO_PASSWORD = bytes(16), bytes(32)  # salt and hash that no password has
_MOST = 1024  # characters of a name or a password
MOST_TRIES = 10  # wrong passwords for one name from one address within a minute
_TRIES_SECONDS = 60.0
_FREE_TRIES = 10  # for one name from all addresses within a minute; then one at a time, this far apart …
_SLOW_SECONDS = 2.0
_MOST_SLOW_SECONDS = 10.0  # … and no longer than this
_FAMILIAR_SECONDS = 30 * 86_400.0  # for which an address is known where a name has logged in
_AT_ONCE = 4  # passwords checked at the same time: each takes work on purpose
_MOST_WAITING = 64
_MOST_WAITING_PER_ADDRESS = 16
_TOO_MANY = "Too many tries. Wait a minute."
_TOO_MANY_OF_NAME = "Somebody tries many passwords for this name. Wait a few seconds, and try again."


class TooManyTries(WeftError):
    """There were too many wrong passwords, or too many log in at once."""


def hash_password(password: str) -> str:
    """Return a password in a form that may be written down.

    >>> hash_password("correct horse")[:7]
    'scrypt$'
    """
    salt = os.urandom(16)
    return _PREFIX + "$".join(base64.b64encode(part).decode() for part in (salt, _derive(password, salt)))


def _read_password(name: str, word: str) -> tuple[bytes, bytes]:
    """Return the salt and the hash of a password, written as itself or by `hash_password`."""
    if not word.startswith(_PREFIX):
        salt = os.urandom(16)
        return salt, _derive(word, salt)
    try:
        salt, known = (base64.b64decode(part, validate=True) for part in word.removeprefix(_PREFIX).split("$"))
    except ValueError:
        salt, known = b"", b""
    if not salt or len(known) != _COST["dklen"]:
        raise UsageError(
            f"users= has for {name!r} a text that begins with {_PREFIX} and is nothing that hash_password made; "
            "was it cut off?"
        )
    return salt, known


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="surrogatepass"), salt=salt, **_COST)


async def ask_function(what: str, function: Callable[..., Awaitable[str | None]], *given: object) -> str | None:
    """Return the subject that a function of the user returns; None for None, and for anything that is no text.

    What it raises may contain a password or the claims of a token: only the type is logged.
    """
    try:
        said: object = await function(*given)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it may raise anything
        frames = user_frames(error)[-MOST_FRAMES:]
        text = record(f"The function that {what} raised {type(error).__name__}", frames, debug=False)
        raise OAuthError("server_error", text, status=500) from None
    if isinstance(said, str):
        return said or None
    if said:  # such as True
        _seldom.warning(
            "The function that %s returned something of type %s, which lets nobody in: return the subject of the "
            "tokens as a text, or None.",
            what,
            type(said).__name__,
            about=f"{what} {type(said).__name__}",
        )
    return None


class Users:
    """The users who can log in, and the checks of their passwords."""

    def __init__(self, users: Mapping[str, str] | Login | None, store: Store) -> None:
        self._store = store
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._waiting: Counter[str] = Counter()  # by address
        self._login: Login | None = None
        self._hashes: dict[str, tuple[bytes, bytes]] = {}  # salt and hash of each name
        if users is None:
            return
        if isinstance(users, Mapping):
            passwords = cast("Mapping[str, str]", users)
            if not passwords or not all(passwords.values()):
                raise UsageError(
                    "users= is a dictionary from names to passwords (or hash_password(...) of them). Leave it out "
                    "where nobody logs in."
                )
            self._hashes = {name: _read_password(name, word) for name, word in passwords.items()}
        elif is_async(users):
            self._login = users
        else:
            raise UsageError("users= is a dictionary of passwords, or an async function of a name and a password.")

    async def check(self, name: str, password: str, address: str = "") -> str | None:
        """Return the subject of a user who logs in from this address; None if name or password is wrong.

        An address that guesses is locked out for that name only. Where many addresses guess at one name, their tries
        are slowed down, except from an address where that name has logged in before.
        """
        if not name or len(name) > _MOST or len(password) > _MOST:
            return None
        pair = digest(f"{name}\0{address}")
        await self._count_try(f"tries:{pair}")  # before the check: many may come at once
        if await self._store.get(f"familiar:{pair}") is None:
            await self._slow_down(digest(name))
        async with self._waiting_at(address), self._at_once:
            if self._login is not None:
                subject = await ask_function("checks passwords", self._login, name, password)
            else:
                subject = await self._compare(name, password)
        if subject is not None:
            await self._store.delete(f"tries:{pair}")
            await self._store.put(f"familiar:{pair}", b"1", ttl=_FAMILIAR_SECONDS)
        return subject

    @asynccontextmanager
    async def _waiting_at(self, address: str) -> AsyncGenerator[None]:
        """Count the checks that wait, in all and of one address, which must not crowd out others."""
        if self._waiting.total() >= _MOST_WAITING or self._waiting[address] >= _MOST_WAITING_PER_ADDRESS:
            raise TooManyTries(_TOO_MANY)
        self._waiting[address] += 1
        try:
            yield
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]

    async def _count_try(self, key: str) -> None:
        """Count one more try, on all workers together."""
        while True:
            found = await self._store.get(key)
            tries = int(found or 0)
            if tries >= MOST_TRIES:
                raise TooManyTries(_TOO_MANY)
            if await self._store.swap(key, found, b"%d" % (tries + 1), ttl=_TRIES_SECONDS):
                return

    async def _slow_down(self, name: str) -> None:
        """Wait if there were many tries for one name, from all addresses and on all workers."""
        while True:
            found = await self._store.get(f"turns:{name}")
            tries, turn = msgspec.json.decode(found, type=tuple[int, float]) if found else (0, 0.0)
            now = time.time()
            mine = max(turn, now) if tries >= _FREE_TRIES else now
            if mine - now > _MOST_SLOW_SECONDS:
                raise TooManyTries(_TOO_MANY_OF_NAME)
            turns = msgspec.json.encode((tries + 1, mine + _SLOW_SECONDS))
            if await self._store.swap(f"turns:{name}", found, turns, ttl=_TRIES_SECONDS):
                break
        await asyncio.sleep(mine - now)

    async def _compare(self, name: str, password: str) -> str | None:
        salt, known = self._hashes.get(name, _NO_PASSWORD)  # as much work for an unknown name
        derived = await asyncio.to_thread(_derive, password, salt)
        return name if hmac.compare_digest(derived, known) and name in self._hashes else None


# --- assertions


_MOST_TEXT = 512  # characters of a `jti` or a `sub`


class AssertionKind(msgspec.Struct, frozen=True):
    """A kind of assertion, and what makes one valid."""

    name: str
    types: frozenset[str]  # the accepted `typ`: no other kind of JWT is taken for it
    most_seconds: float  # it may be used at most this long before its end
    required: tuple[str, ...] = ()  # claims besides those of every assertion
    is_for_endpoint: bool = False  # its `aud` may be the URL that it is sent to


CLIENT_ASSERTION = AssertionKind(
    "client assertion", frozenset({"jwt", "client-authentication+jwt"}), 300.0, required=("jti",), is_for_endpoint=True
)
ID_JAG = AssertionKind("ID-JAG", frozenset({"oauth-id-jag+jwt"}), 3600.0, required=("iat", "jti"))
# A platform writes it into a file, and the program sends it again and again until there is a newer one: it needs no
# `jti`, and is never used up.
WORKLOAD_TOKEN = AssertionKind("workload token", frozenset({"jwt"}), 86_400.0, is_for_endpoint=True)


class TrustedIssuer:
    """An issuer whose assertions about users or programs are accepted.

    Args:
        issuer: What its assertions have as `iss`, exactly.
        jwks_uri: Where its keys are fetched from; or `keys`, the keys themselves, as a `JwtVerifier` takes them.
        algorithms: What it may sign with.
        workloads: Makes it a platform, which vouches for programs: from the `sub` of each to its client id. Without
            it, it is a company's identity provider, which vouches for users by ID-JAGs.
        subject: An async function from the claims of an ID-JAG to the subject of the tokens, or None. By default that
            is `issuer#sub`, which is never a user of another issuer, or of this server.

    >>> TrustedIssuer("https://idp.example.com", "https://idp.example.com/jwks")
    <TrustedIssuer 'https://idp.example.com'>
    """

    def __init__(
        self,
        issuer: str,
        jwks_uri: str | None = None,
        *,
        keys: KeysGiven | None = None,
        algorithms: Sequence[str] = DEFAULT_ALGORITHMS,
        workloads: Mapping[str, str] | None = None,
        subject: Callable[[Mapping[str, Any]], Awaitable[str | None]] | None = None,
    ) -> None:
        if workloads is not None and (not workloads or subject is not None):
            raise UsageError("workloads= is a dictionary from the `sub` of each program to its client id; no subject=.")
        if subject is not None and not is_async(subject):
            raise UsageError("subject= is an async function from the claims of an ID-JAG to a subject, or None.")
        self.issuer = issuer
        self.algorithms = check_algorithms(algorithms)
        self.keys = make_key_set("A TrustedIssuer needs either the URL of its keys", jwks_uri, keys, self.algorithms)
        self.workloads = None if workloads is None else dict(workloads)
        self._subject = subject

    def __repr__(self) -> str:
        return f"<TrustedIssuer {self.issuer!r}>"

    async def subject_of(self, claims: Mapping[str, Any]) -> str | None:
        """Return the subject of a user that the issuer vouches for, or None."""
        if self._subject is None:
            return f"{self.issuer}#{claims['sub']}"
        return await ask_function("says who a vouched user is", self._subject, claims)


class Assertions:
    """Verifies the assertions for one authorization server, and records which were used."""

    def __init__(self, store: Store, audience: str) -> None:
        self._store = store
        self._audience = audience  # the server's own issuer

    async def read(
        self, text: str, kind: AssertionKind, *, issuer: str, keys: KeySet, algorithms: Sequence[str]
    ) -> dict[str, Any]:
        """Return the claims of an assertion of this issuer; `TokenRefused` if it is not valid. Does not use it up."""
        try:
            claims = await read_signed(
                text,
                keys,
                kind=(kind.name, kind.types),
                algorithms=algorithms,
                issuer=issuer,
                audiences=[self._audience, *([f"{self._audience}/token"] if kind.is_for_endpoint else [])],
                required=["iss", "sub", "aud", "exp", *kind.required],
                leeway=LEEWAY,
            )
        except VerifierFailed as error:
            raise OAuthError("temporarily_unavailable", str(error), status=503) from None
        if isinstance(claims["aud"], list) and len(cast("list[Any]", claims["aud"])) != 1:
            raise TokenRefused(f"The {kind.name} is for others as well, who could show it here.")
        if int(claims["exp"]) - time.time() > kind.most_seconds + LEEWAY:
            raise TokenRefused(f"The {kind.name} does not expire within {kind.most_seconds:g} s, as it should.")
        if not all(map(_is_text, (claims["sub"], claims.get("jti", "x")))):
            raise TokenRefused(f"The `sub` and `jti` of a {kind.name} are texts of 1 to {_MOST_TEXT} whole characters.")
        return claims

    async def use(self, claims: Mapping[str, Any], kind: AssertionKind) -> None:
        """Use an assertion up, on all workers together; `TokenRefused` if it was used before."""
        # Longer than its life: by the clock of another worker it may end later.
        seconds = max(int(claims["exp"]) - time.time(), 0.0) + 2 * LEEWAY
        mark = digest(msgspec.json.encode([kind.name, claims["iss"], claims["jti"]]).decode())
        if not await self._store.swap(f"assertion:{mark}", None, b"1", ttl=seconds):
            raise TokenRefused(f"The {kind.name} was used before: each is good once.")


def _is_text(value: object) -> bool:
    """Return whether a claim is a text that can be stored: a lone surrogate is valid JSON, but not UTF-8."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_TEXT:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
