"""Check the passwords of users, and the assertions of trusted issuers about users and programs.

An assertion is a JWT made for this authorization server:

    client assertion   a client authenticates with its key (`private_key_jwt`, RFC 7523)
    ID-JAG             a company's identity provider states which user a client acts for
    workload token     the platform that a program runs on states which program it is
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import msgspec

from weft.authorization.web import OAuthError, digest
from weft.backends import Store
from weft.errors import UsageError, WeftError
from weft.net.logs import Seldom
from weft.server.auth.keys import DEFAULT_ALGORITHMS, KeySet, KeysGiven, check_algorithms, make_key_set, read_signed
from weft.server.auth.tokens import LEEWAY, TokenRefused, VerifierFailed, is_async
from weft.server.diagnostics import MOST_FRAMES, record, user_frames

_seldom = Seldom(logging.getLogger("weft.auth"))  # limits the log lines that anyone can cause by a login

Login: TypeAlias = Callable[[str, str], Awaitable[str | None]]  # takes name and password, returns the subject or None

_PREFIX = "scrypt$"
_COST = {"n": 2**14, "r": 8, "p": 1, "dklen": 32, "maxmem": 64 * 1024 * 1024}
_NO_PASSWORD = bytes(16), bytes(32)  # salt and hash for an unknown name; no password has this hash
_MOST = 1024  # longest name or password, in characters
MOST_TRIES = 10  # maximum number of wrong passwords for one name from one address within a minute
_TRIES_SECONDS = 60.0
_FREE_TRIES = 10  # tries for one name from all addresses within a minute, before further tries have to wait
_SLOW_SECONDS = 2.0  # time between two tries that have to wait
_MOST_SLOW_SECONDS = 10.0  # a try that would have to wait longer is refused
_FAMILIAR_SECONDS = 30 * 86_400.0  # for this time after a login, the same name and address need not wait
_AT_ONCE = 4  # passwords checked at the same time, because each check needs much CPU time and memory
_MOST_WAITING = 64
_MOST_WAITING_PER_ADDRESS = 16
_TOO_MANY = "Too many attempts. Wait a minute."
_TOO_MANY_OF_NAME = "There are too many login attempts for this name. Wait a few seconds, and try again."


class TooManyTries(WeftError):
    """The error that is raised after too many wrong passwords, or for too many logins at the same time."""


def hash_password(password: str) -> str:
    """Return the salted hash of a password, as text for a configuration file.

    >>> hash_password("correct horse")[:7]
    'scrypt$'
    """
    salt = os.urandom(16)
    return _PREFIX + "$".join(base64.b64encode(part).decode() for part in (salt, _derive(password, salt)))


def _read_password(name: str, word: str) -> tuple[bytes, bytes]:
    """Return the salt and the hash of a user's password. `word` is the password, or the result of `hash_password`."""
    if not word.startswith(_PREFIX):
        salt = os.urandom(16)
        return salt, _derive(word, salt)
    try:
        salt, known = (base64.b64decode(part, validate=True) for part in word.removeprefix(_PREFIX).split("$"))
    except ValueError:
        salt, known = b"", b""
    if not salt or len(known) != _COST["dklen"]:
        what = f"users= has a text for {name!r} that begins with {_PREFIX}"
        raise UsageError(f"{what}, but was not made by hash_password. Was it cut off?")
    return salt, known


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="surrogatepass"), salt=salt, **_COST)


async def ask_function(what: str, function: Callable[..., Awaitable[str | None]], *given: object) -> str | None:
    """Call a function of the program, and return the subject that it returns; None if the result is not text.

    `what` describes in error messages what the function does. If the function raises an exception, OAuthError is
    raised. Only the type of the exception is logged, because its text may contain a password or a token.
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
        told = f"The function that {what} returned something of type {type(said).__name__}, so the login was refused."
        _seldom.warning("%s Return the subject of the tokens as text, or None.", told, about=told)
    return None


class Users:
    """Checks the passwords of users, and limits how often passwords can be tried."""

    def __init__(self, users: Mapping[str, str] | Login | None, store: Store) -> None:
        self._store = store
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._waiting: Counter[str] = Counter()  # number of waiting checks, by address
        passwords = cast("Mapping[str, str]", users if isinstance(users, Mapping) else {})
        self._login = None if users is None or isinstance(users, Mapping) else users
        is_right = is_async(self._login) if self._login is not None else passwords and all(passwords.values())
        if users is not None and not is_right:
            raise UsageError(
                "users= must be a dictionary from names to passwords that are not empty, or an async function of "
                "a name and a password. Leave it out if no users log in."
            )
        # Salt and hash of the password, by name.
        self._hashes = {name: _read_password(name, word) for name, word in passwords.items()}

    async def check(self, name: str, password: str, address: str = "") -> str | None:
        """Check a password; return the subject of the user, or None if the name or the password is wrong.

        Raises TooManyTries after too many wrong passwords for `name` from `address`, or if too many checks wait. After
        many tries for `name` from all addresses together, further checks have to wait. A check does not have to wait if
        `name` has logged in from `address` before.
        """
        if not name or len(name) > _MOST or len(password) > _MOST:
            return None
        pair = digest(f"{name}\0{address}")
        await self._count_try(f"tries:{pair}")  # counted before the check, because many tries may arrive at once
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
        """Count a password check from `address` as waiting until the `async with` block ends.

        Raises TooManyTries if too many checks are waiting, in total or from `address`.
        """
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
        """Count one more try under `key`, for all workers together; raise TooManyTries if there were too many tries."""
        while True:
            found = await self._store.get(key)
            tries = int(found or 0)
            if tries >= MOST_TRIES:
                raise TooManyTries(_TOO_MANY)
            if await self._store.swap(key, found, b"%d" % (tries + 1), ttl=_TRIES_SECONDS):
                return

    async def _slow_down(self, name: str) -> None:
        """Wait if there were many tries for `name`, counted for all addresses and workers together.

        Raises TooManyTries if the wait would be too long.
        """
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
        salt, known = self._hashes.get(name, _NO_PASSWORD)  # checking an unknown name takes the same time
        derived = await asyncio.to_thread(_derive, password, salt)
        return name if hmac.compare_digest(derived, known) and name in self._hashes else None


# --- assertions


_MOST_TEXT = 512  # longest `jti` or `sub`, in characters
_STORABLE = re.compile(rf"[^\ud800-\udfff]{{1,{_MOST_TEXT}}}")  # text without lone surrogates


class AssertionKind(msgspec.Struct, frozen=True):
    """The rules for one kind of assertion, such as an ID-JAG."""

    name: str
    types: frozenset[str]  # the accepted values of `typ`, so that no other kind of JWT is accepted
    most_seconds: float  # its `exp` may be at most this many seconds in the future
    required: tuple[str, ...] = ()  # required claims, in addition to those of every assertion
    is_for_endpoint: bool = False  # whether its `aud` may be the URL of the token endpoint


CLIENT_ASSERTION = AssertionKind(
    "client assertion", frozenset({"jwt", "client-authentication+jwt"}), 300.0, required=("jti",), is_for_endpoint=True
)
ID_JAG = AssertionKind("ID-JAG", frozenset({"oauth-id-jag+jwt"}), 3600.0, required=("iat", "jti"))
# A platform writes the token into a file, and the program sends it many times until there is a newer one. So it needs
# no `jti`, and can be used more than once.
WORKLOAD_TOKEN = AssertionKind("workload token", frozenset({"jwt"}), 86_400.0, is_for_endpoint=True)


class TrustedIssuer:
    """An issuer whose assertions about users or programs are accepted.

    Args:
        issuer: The exact `iss` of its assertions.
        jwks_uri: The URL of its public keys.
        keys: The public keys themselves, instead of `jwks_uri`, as for a `JwtVerifier`.
        algorithms: The algorithms that it may sign with.
        workloads: For a platform: a dictionary from the `sub` of each program to its client id. Without it, the issuer
            is a company's identity provider, which sends ID-JAGs for users.
        subject: An async function that takes the claims of an ID-JAG and returns the subject of the tokens, or None to
            refuse the user. Default: `issuer#sub`, which differs from the users of other issuers and of this server.

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
            raise UsageError("workloads= must map from the `sub` of each program to its client id, without subject=.")
        if subject is not None and not is_async(subject):
            raise UsageError("subject= must be an async function that takes claims and returns a subject, or None.")
        self.issuer = issuer
        self.algorithms = check_algorithms(algorithms)
        self.keys = make_key_set("A TrustedIssuer needs either the URL of its keys", jwks_uri, keys, self.algorithms)
        self.workloads = None if workloads is None else dict(workloads)
        self._subject = subject

    def __repr__(self) -> str:
        return f"<TrustedIssuer {self.issuer!r}>"

    async def subject_of(self, claims: Mapping[str, Any]) -> str | None:
        """Return the subject for the user in the claims of an ID-JAG, or None if the user is not accepted."""
        if self._subject is None:
            return f"{self.issuer}#{claims['sub']}"
        return await ask_function("returns the subject of an ID-JAG", self._subject, claims)


@dataclass(frozen=True, slots=True)
class Assertions:
    """Verifies assertions that are made for this authorization server, and records which assertions were used."""

    store: Store
    audience: str  # the issuer URL of this server

    async def read(
        self, text: str, kind: AssertionKind, *, issuer: str, keys: KeySet, algorithms: Sequence[str]
    ) -> dict[str, Any]:
        """Verify the assertion `text`, and return its claims. Raises TokenRefused if the assertion is not valid.

        Raises OAuthError if the keys of the issuer are not available. Call `use` afterwards if the assertion may be
        used only once.
        """
        try:
            claims = await read_signed(
                text,
                keys,
                kind=(kind.name, kind.types),
                algorithms=algorithms,
                issuer=issuer,
                audiences=[self.audience, *([f"{self.audience}/token"] if kind.is_for_endpoint else [])],
                required=["iss", "sub", "aud", "exp", *kind.required],
                leeway=LEEWAY,
            )
        except VerifierFailed as error:
            raise OAuthError("temporarily_unavailable", str(error), status=503) from None
        if isinstance(claims["aud"], list) and len(cast("list[Any]", claims["aud"])) != 1:
            raise TokenRefused(f"The {kind.name} has more than one audience, and another one could have sent it.")
        if int(claims["exp"]) - time.time() > kind.most_seconds + LEEWAY:
            raise TokenRefused(f"The {kind.name} does not expire within {kind.most_seconds:g} s, as it should.")
        names: list[Any] = [claims["sub"], claims.get("jti", "x")]
        if not all(isinstance(name, str) and _STORABLE.fullmatch(name) for name in names):
            raise TokenRefused(f"The `sub` and `jti` of a {kind.name} must be text of 1 to {_MOST_TEXT} characters.")
        return claims

    async def use(self, claims: Mapping[str, Any], kind: AssertionKind) -> None:
        """Mark an assertion as used, for all workers; raise TokenRefused if it was used before."""
        # Stored longer than the assertion is valid, because the clock of another worker may be slow.
        seconds = max(int(claims["exp"]) - time.time(), 0.0) + 2 * LEEWAY
        mark = digest(msgspec.json.encode([kind.name, claims["iss"], claims["jti"]]).decode())
        if not await self.store.swap(f"assertion:{mark}", None, b"1", ttl=seconds):
            raise TokenRefused(f"The {kind.name} was used before; each can be used only once.")
