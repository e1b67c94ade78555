"""What a test needs of others, and what happens without it."""

import json
import os
from pathlib import Path

import pytest

__all__ = ["CACHE", "skip_without"]

CACHE = Path(__file__).resolve().parents[2] / ".cache"


def skip_without(peer: str, needed: Path | str | None) -> None:
    """Skip the test if a file is missing, and say why; in continuous integration, fail."""
    if needed is not None and Path(needed).exists():
        return
    missing = CACHE / "missing.json"
    reasons: dict[str, str] = json.loads(missing.read_text()) if missing.exists() else {}
    reason = reasons.get(peer, "run 'make test' (or 'make interop'), which fetches it")
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{peer} is not here, and continuous integration tests with every peer: {reason}", pytrace=False)
    pytest.skip(f"{peer} is not here: {reason}")
