"""Implement a Backend in Redis or Valkey, for workers on several machines.

This room is the only one that imports the package `redis`, which is an extra: `pip install "weft-mcp[redis]"`. Of that
package, it uses connections (with TLS, passwords and the protocol) and exceptions. It does not use the package's pools,
pipelines and cluster client, because those repeat commands by themselves, and the backend has to know of a repetition.
"""

from __future__ import annotations

from weft.errors import UsageError

try:
    from weft.backends.redis.backend import RedisBackend
    from weft.backends.redis.checks import Finding
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "redis":
        raise
    remedy = 'Install it: pip install "weft-mcp[redis]"'
    raise UsageError(f"A backend in Redis needs the package redis. {remedy}") from None

__all__ = ["Finding", "RedisBackend"]
