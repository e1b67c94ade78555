"""What handlers write down for a test to read: in memory, or in files that all processes of a server share."""

import asyncio
import hashlib
import os
from pathlib import Path

__all__ = ["FileNotes", "Notes"]


class Notes:
    """Words by key, in the order in which they were written. This kind is in the memory of one process."""

    def __init__(self) -> None:
        self._words: dict[str, list[str]] = {}

    def add(self, key: str, word: str) -> None:
        self._words.setdefault(key, []).append(word)

    def of(self, key: str) -> list[str]:
        return list(self._words.get(key, ()))

    async def until(self, key: str) -> None:
        """Wait until there is a word for the key."""
        while not self.of(key):  # noqa: ASYNC110 - another process may write it
            await asyncio.sleep(0.005)


class FileNotes(Notes):
    """The same in a folder: a file for each key, to which any process appends whole lines."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def add(self, key: str, word: str) -> None:
        file = os.open(self._file(key), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{word}\n".encode())
        finally:
            os.close(file)

    def of(self, key: str) -> list[str]:
        try:
            return self._file(key).read_text().splitlines()
        except FileNotFoundError:
            return []

    def clear(self, *keys: str) -> None:
        """Remove all words of some keys."""
        for key in keys:
            self._file(key).unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()
