"""The backend in memory does everything that the interface says."""

from weft.backends import Backend
from weft.backends.memory import MemoryBackend
from weft.testing import BackendContract


class TestMemory(BackendContract):
    """Both backends of a test are the same object, because memory is not shared otherwise."""

    _backend: Backend | None = None

    async def make_backend(self) -> Backend:
        self._backend = self._backend or MemoryBackend()
        return self._backend
