"""Store tokens and registrations: in memory, in a file that only its owner can read, or in the system's keyring.

A storage maps text keys to bytes. The keys of tokens and registrations contain the issuer, so that two issuers never
share an entry. An entry that cannot be read is treated as missing. In the worst case, the user has to log in again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast

from weft.errors import AuthorizationFailed, UsageError

log = logging.getLogger("weft.client.auth")

_MOST_FILE_BYTES = 4 * 1024 * 1024
_LOCK_SECONDS = 10.0  # timeout for the lock of the file; writing takes milliseconds
_LOOK_SECONDS = 0.01  # pause between two attempts to get a lock
_TURN_SECONDS = 30.0  # timeout for the lock of a key; the same as the timeout of a refresh


class Storage(Protocol):
    """The interface of a storage for tokens and registrations.

    A storage that several programs share can also have a method `claimed(key)`, which returns an async context manager
    as in `FileStorage`. The context manager locks the key, so that only one program at a time renews a token.
    """

    async def get(self, key: str) -> bytes | None:
        """Return the value stored under a key, or None if there is no value."""
        ...

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value under a key, or delete the key if the value is None."""
        ...


class MemoryStorage:
    """A storage in memory. Its content is lost when the program ends."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        """Return the value stored under a key, or None if there is no value."""
        return self._kept.get(key)

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value under a key, or delete the key if the value is None."""
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value


class FileStorage:
    """A storage in a file that only its owner can read.

    Each change writes a new file, which then replaces the old file. So a crash cannot damage the stored data.

    >>> FileStorage("~/.config/weft/tokens.json")
    FileStorage('~/.config/weft/tokens.json')
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._shown = os.fspath(path)
        self._path = Path(path).expanduser()
        # This lock is between the threads of this program. Between programs, a writer first locks a separate file.
        # Readers do not lock that file, so that they never wait for another program.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"FileStorage({self._shown!r})"

    async def get(self, key: str) -> bytes | None:
        """Return the value stored under a key, or None if there is no value."""
        value = (await asyncio.to_thread(self._read)).get(key)
        return None if value is None else value.encode()

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value under a key, or delete the key if the value is None.

        Raises AuthorizationFailed if another program holds the lock of the file for more than ten seconds.
        """
        await asyncio.to_thread(self._change, key, None if value is None else value.decode())

    @asynccontextmanager
    async def claimed(self, key: str) -> AsyncGenerator[None]:
        """Lock a key until the `async with` block ends. If the lock is not free within 30 s, continue without it."""
        with ExitStack() as stack:
            for is_free in _attempts(self._beside(f"{_digest(key)[:12]}.lock"), _TURN_SECONDS, stack):
                if not is_free:
                    await asyncio.sleep(_LOOK_SECONDS)
            yield

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(f".{self._path.name}.{suffix}")

    def _read(self) -> dict[str, str]:
        try:
            with self._lock, self._path.open("rb") as file:
                self._check_mode(os.fstat(file.fileno()))
                found: Any = json.loads(file.read(_MOST_FILE_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s cannot be read (%s): a new login is needed.", self._shown, type(error).__name__)
            return {}
        entries = cast("dict[Any, Any]", found if isinstance(found, dict) else {})
        return {key: value for key, value in entries.items() if isinstance(key, str) and isinstance(value, str)}

    def _check_mode(self, status: os.stat_result) -> None:
        if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
            raise UsageError(f"{self._shown} holds tokens and can be read by others; run `chmod 600 {self._shown}`.")

    def _change(self, key: str, value: str | None) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The lock is taken in this thread, because the thread goes on writing if the waiting task is cancelled.
        with ExitStack() as stack:
            self._wait_for_lock(stack)
            stack.enter_context(self._lock)
            entries = self._read()  # another program may have changed the file
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
            beside = self._beside(secrets.token_hex(8))
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(json.dumps(entries).encode())
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(self._path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise

    def _wait_for_lock(self, stack: ExitStack) -> None:
        lock, is_free = self._beside("lock"), True
        for is_free in _attempts(lock, _LOCK_SECONDS, stack):
            if not is_free:
                time.sleep(_LOOK_SECONDS)
        if not is_free:
            what = f"The login cannot be stored: another program has locked {lock} for {_LOCK_SECONDS:g} s"
            raise AuthorizationFailed(f"{what}. End that program, and try again.")


def _attempts(path: Path, seconds: float, stack: ExitStack) -> Generator[bool]:
    """Try to lock a file, and keep the lock until `stack` is closed. Yield after each attempt whether it succeeded.

    The attempts end when one succeeds, or after `seconds`. On file systems without locks, there are no attempts.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        stack.callback(os.close, descriptor)  # this releases the lock
        end = time.monotonic() + seconds
        is_free = False
        while not is_free and time.monotonic() < end:
            is_free = _lock(descriptor)
            yield is_free


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class KeyringStorage:
    """A storage in the keyring of the operating system. The package `keyring` has to be installed.

    The names of entries are digests, because keyrings show names to the user. Each login is one entry. Some keyrings
    accept only short values (Windows: 1,280 characters). If a login is longer, use `FileStorage`.
    """

    def __init__(self, service: str = "weft") -> None:
        try:
            import keyring  # type: ignore[import-not-found, unused-ignore] # pyright: ignore[reportMissingImports] - an optional package
        except ImportError:
            raise UsageError("KeyringStorage needs the package `keyring`: run `pip install keyring`.") from None
        self._keyring: Any = keyring
        self._service = service

    async def get(self, key: str) -> bytes | None:
        """Return the value stored under a key, or None if there is no value."""
        value: str | None = await asyncio.to_thread(self._keyring.get_password, self._service, _digest(key))
        return None if value is None else value.encode()

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value under a key, or delete the key if the value is None."""
        await asyncio.to_thread(self._put, _digest(key), value)

    def _put(self, name: str, value: bytes | None) -> None:
        if value is not None:
            self._keyring.set_password(self._service, name, value.decode())
            return
        try:
            self._keyring.delete_password(self._service, name)
        except Exception as error:  # noqa: BLE001 - each keyring has its own error for a missing entry
            log.debug("A keyring entry was not deleted: %s", type(error).__name__)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]
