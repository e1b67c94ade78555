"""Reads what a process holds, for tools/soak.py and its server."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

__all__ = ["held", "memory_of"]


def memory_of(pid: int | str) -> int:
    """Return the resident memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def held() -> dict[str, int]:
    """Return what this process holds once garbage is collected, from within its loop."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return {"tasks": len(asyncio.all_tasks()), "descriptors": descriptors, "kib": memory_of("self")}
