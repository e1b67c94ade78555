"""Who can log in: names and passwords, or a function that knows."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias, cast

import msgspec

from weft.authorization.web import OAuthError, digest
from weft.backends.base import Store
from weft.errors import UsageError, WeftError
from weft.net.logs import Seldom
from weft.server.auth.tokens import is_async
from weft.server.diagnostics.error_reporting import MOST_FRAMES, record, user_frames

_seldom = Seldom(logging.getLogger("weft.auth"))  # for what anybody can cause who tries to log in

Login: TypeAlias = Callable[[str, str], Awaitable[str | None]]  # name and password, to the subject of tokens

_PREFIX = "scrypt$"
_COST = {"n": 2**14, "r": 8, "p": 1, "dklen": 32, "maxmem": 64 * 1024 * 1024}
_NOBODY = bytes(16), bytes(32)  # of which no password is the one
_MOST = 1024  # characters of a name or a password
MOST_TRIES = 10  # wrong passwords for one name from one address within a minute; then that address must wait
_TRIES_SECONDS = 60.0
_FREE_TRIES = 10  # of one name from all addresses within a minute; then one at a time, this far apart …
_SLOW_SECONDS = 2.0
_MOST_SLOW_SECONDS = 10.0  # … and no longer wait than this
_FAMILIAR_SECONDS = 30 * 86_400.0  # how long an address is known from which a name has logged in
_AT_ONCE = 4  # passwords checked at the same time: each is work on purpose
_MOST_WAITING = 64
_MOST_WAITING_PER_ADDRESS = 16
_TOO_MANY = "Too many tries. Wait a minute."
_TOO_MANY_OF_NAME = "Somebody tries many passwords for this name. Wait a few seconds, and try again."


class TooManyTries(WeftError):
    """Somebody guesses; or too many log in at once."""


def hash_password(password: str) -> str:
    """A password in the form in which it may be written down.

    >>> hash_password("correct horse")[:7]
    'scrypt$'
    """
    salt = os.urandom(16)
    return _PREFIX + "$".join(base64.b64encode(part).decode() for part in (salt, _derive(password, salt)))


def _read_password(name: str, word: str) -> tuple[bytes, bytes]:
    """Salt and hash of a password, however it was written down."""
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
    """The subject that somebody else's function says; None for nobody, and for whatever else is no subject.

    What it raises may have what it was given in it, a password or the claims of a token: only the type is told, to the
    log.
    """
    try:
        said: object = await function(*given)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - R1: it may raise anything
        frames = user_frames(error)[-MOST_FRAMES:]
        text = record(f"The function that {what} raised {type(error).__name__}", frames, debug=False)
        raise OAuthError("server_error", text, status=500) from None
    if isinstance(said, str):
        return said or None
    if said:  # as of a function that says only whether
        _seldom.warning(
            "The function that %s returned something of type %s, which lets nobody in: return the subject of the "
            "tokens as a text, or None.",
            what,
            type(said).__name__,
            about=f"{what} {type(said).__name__}",
        )
    return None


class Users:
    """Checks who logs in; nobody does where there are none."""

    def __init__(self, users: Mapping[str, str] | Login | None, store: Store) -> None:
        self._store = store
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._waiting: Counter[str] = Counter()  # by address
        self._login: Login | None = None
        self._hashes: dict[str, tuple[bytes, bytes]] = {}  # salt and what was derived; no password
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
        """Return the subject of the tokens of who logs in so, from this address; None if that is nobody.

        An address that guesses is locked out for the name that it guesses at, and nobody else is. Where many addresses
        guess at one name, their tries are slowed down; an address from which that name has logged in before is not.
        """
        if not name or len(name) > _MOST or len(password) > _MOST:
            return None
        pair = digest(f"{name}\0{address}")
        await self._count_try(f"tries:{pair}")  # before it is known whether it is a wrong one: many come at once
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
        """Count who waits to be checked: in all, and of one address, which must not take the place of others."""
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
        """Count one more, each on its own however many come at once, at all workers."""
        while True:
            found = await self._store.get(key)
            tries = int(found or 0)
            if tries >= MOST_TRIES:
                raise TooManyTries(_TOO_MANY)
            if await self._store.swap(key, found, b"%d" % (tries + 1), ttl=_TRIES_SECONDS):
                return

    async def _slow_down(self, name: str) -> None:
        """Wait for the turn of a try, where there were many for the same name, from anywhere, at all workers."""
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
        salt, known = self._hashes.get(name, _NOBODY)  # as much work for a name that there is not
        derived = await asyncio.to_thread(_derive, password, salt)
        return name if hmac.compare_digest(derived, known) and name in self._hashes else None
