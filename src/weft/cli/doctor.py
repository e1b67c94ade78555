"""Run `weft doctor`: say what is wrong with the backend that workers share, and what to do about it."""

from __future__ import annotations

import asyncio
import os

from weft.backends import Backend, open_backend
from weft.backends.scoped import ScopedBackend
from weft.cli.printing import WrongCommand, to_text
from weft.errors import BackendUnavailable, StartError, UsageError
from weft.server.asking.rounds import key_ring
from weft.server.runtime.fleet import WorkerFacts, find_workers

_SIGNS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


def run(url: str | None, server: str | None, prefix: str = "weft:") -> int:
    """Check a backend, and list the workers of a server that use it. Return 0 if nothing is wrong, else 1.

    `url` is the URL of the backend (default: the one in the environment variable WEFT_BACKEND). `server` is the name of
    the server, or None. `prefix` is how all keys in Redis begin.
    """
    where = "--backend" if url else "The environment variable WEFT_BACKEND"
    given = url or os.environ.get("WEFT_BACKEND")
    if not given:
        raise WrongCommand(
            "Name a backend to check: weft doctor --backend redis://localhost:6379 (or set WEFT_BACKEND)."
        )
    try:
        backend = open_backend(given, prefix=prefix)
    except UsageError as error:
        raise WrongCommand(f"{where} cannot be used. {error}") from None
    return asyncio.run(_check(backend, server))


async def _check(backend: Backend, server: str | None) -> int:
    if backend.is_local:
        print(f"{_SIGNS['ok']}  Memory is not shared between processes, so there is nothing to check.")
        return 0
    is_well = await _diagnose(backend)
    if is_well and server is not None:
        is_well = await _list_workers(backend, server)
    return 0 if is_well else 1


async def _diagnose(backend: Backend) -> bool:
    """Print what the backend finds out about itself, and return whether it can be used."""
    diagnose = getattr(backend, "diagnose", None)
    if diagnose is None:  # not in Redis: it has nothing to be checked but its start
        await backend.start()
        await backend.close()
        print(f"{_SIGNS['ok']}  {type(backend).__name__} can be used.")
        return True
    findings = await diagnose()
    for found in findings:
        print(f"{_SIGNS[found.level]}  {to_text(found.sentence)}")
        if found.remedy:
            print(f"         {to_text(found.remedy)}")
    return all(found.level != "error" for found in findings)


async def _list_workers(backend: Backend, server: str) -> bool:
    """Print the workers of a server, and return whether they have keys that fit."""
    try:  # without `start`, which would log what `_diagnose` has found
        workers = await find_workers(ScopedBackend(backend, server))
    except (BackendUnavailable, StartError) as error:
        print(f"{_SIGNS['error']}  {to_text(str(error))}")
        return False
    finally:
        await backend.close()
    if not workers:
        print(f"{_SIGNS['warning']}  No worker of {to_text(repr(server))} uses this backend now.")
        print("         Check the name of the server, and that its workers have the same --backend and prefix.")
    for worker in workers:
        print(f"{_SIGNS['ok']}  Process {worker.process} on {to_text(worker.host)} serves ({_keys_of(worker)}).")
    if not _keys_fit(workers):
        print(f"{_SIGNS['error']}  These workers have different keys, so they cannot continue each other's calls.")
        print("         Set the same WEFT_STATE_KEY everywhere.")
        return False
    _compare_own_key(workers)
    return True


def _keys_of(worker: WorkerFacts) -> str:
    """Return the ids of a worker's keys, the one that encrypts first."""
    if not worker.seals:
        return "no key needed"
    others = [key for key in worker.opens if key != worker.seals]
    return f"key {worker.seals}, also reads {', '.join(others)}" if others else f"key {worker.seals}"


def _compare_own_key(workers: list[WorkerFacts]) -> None:
    """Print a warning if a worker with the WEFT_STATE_KEY of this environment could not join the others."""
    if not os.environ.get("WEFT_STATE_KEY"):
        return
    try:
        ids = key_ring(None).ids
    except UsageError as error:
        print(f"{_SIGNS['warning']}  {to_text(str(error))}")
        return
    if not _keys_fit([*workers, WorkerFacts("", 0, ids[0], list(ids))]):
        print(f"{_SIGNS['warning']}  WEFT_STATE_KEY has another key here ({ids[0]}) than the workers have.")
        print("         A worker that starts with it is refused. Set the same WEFT_STATE_KEY everywhere.")


def _keys_fit(workers: list[WorkerFacts]) -> bool:
    sealing = {worker.seals for worker in workers if worker.seals}
    return all(sealing <= set(worker.opens) for worker in workers if worker.seals)
