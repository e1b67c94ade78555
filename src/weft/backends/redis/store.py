"""Implement the store, the log and the sets of a Redis backend.

All times are the clock of Redis, so that the clocks of the workers do not matter. What needs several steps is a script:
Redis executes it as a whole. Scripts are sent as text each time, because a server that was restarted has forgotten
scripts that were loaded.

A call that writes has a mark: random bytes, which are stored with the value or the log entry. A call that is repeated,
because its reply was lost, finds its own mark, and does nothing. A value keeps the marks of the last 16 swaps, so that
a call finds its mark even if others have written since.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from weft.backends.redis.commands import Commands
from weft.net.logs import Seldom

_seldom = Seldom(logging.getLogger("weft.redis"))

MARK_BYTES = 8  # Length of a mark.
LONGEST_TTL = 10_000_000_000.0  # Longest time to live, in seconds (317 years); Redis accepts no infinite one.

_Current = Callable[[], Commands]  # returns the commands of the started backend

# A value is the number of marks (one byte), the marks (newest first), and the value itself. What is too short for that
# was not written by Weft, and is ignored.
# KEYS: the key. ARGV: mark and new value, "" or "=" and the expected value, time to live in milliseconds.
_SWAP = b"""
local found, mark, marks, value = redis.call('GET', KEYS[1]), ARGV[1]:sub(1, 8), '', false
local length = found and (found:byte(1) or 0) * 8
if found and #found > length then
  marks, value = found:sub(2, 1 + length), found:sub(2 + length)
  for at = 1, length, 8 do
    if marks:sub(at, at + 7) == mark then return 1 end
  end
end
local expected = ARGV[2] ~= '' and ARGV[2]:sub(2)
if value ~= expected then return 0 end
marks = (mark .. marks):sub(1, 8 * 16)
redis.call('SET', KEYS[1], string.char(#marks / 8) .. marks .. ARGV[1]:sub(9), 'PX', ARGV[3])
return 1
"""

# Count permits by the time at which all taken permits would be back (GCRA), in microseconds.
# KEYS: the key. ARGV: mark, microseconds per permit, most microseconds in advance, all microseconds.
_TAKE = b"""
local time = redis.call('TIME')
local now, step, slack = time[1] * 1000000 + time[2], tonumber(ARGV[2]), tonumber(ARGV[3])
local found, ahead = redis.call('GET', KEYS[1]), 0
if found then
  if found:sub(1, 8) == ARGV[1] then return 0 end
  ahead = math.min(math.max((tonumber(found:sub(9)) or 0) - now, 0), ARGV[4] + step)
end
if ahead > slack then return math.ceil(ahead - slack + step / 2) end
local left = ahead + step
redis.call('SET', KEYS[1], ARGV[1] .. string.format('%.0f', now + left), 'PX', string.format('%.0f', left / 1000 + 1))
return 0
"""

# A log is a stream. The id of an entry is its number. Field p: number of the entry before; field e: mark and entry.
# KEYS: the key. ARGV: mark and entry, time to live in milliseconds, most entries, "1" if the call is repeated.
_APPEND = b"""
local function number(found) return tonumber(found[1]:match('^%d+')) end
local function is_same(found) return found[2][4]:sub(1, 8) == ARGV[1]:sub(1, 8) end
local newest, time = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1], redis.call('TIME')
if newest and is_same(newest) then return number(newest) end
if newest and ARGV[4] == '1' then
  for _, found in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-')) do
    if is_same(found) then return number(found) end
  end
end
local last = newest and number(newest) or 0
local next = math.max(last + 1, time[1] * 1000 + math.floor(time[2] / 1000), 2)
local id, before = string.format('%.0f-0', next), string.format('%.0f', last)
redis.call('XADD', KEYS[1], 'MAXLEN', '=', ARGV[3], id, 'p', before, 'e', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return next
"""

# KEYS: the key.
_LAST = b"""
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
return newest[1] and newest[1][1] or false
"""

# A set is a sorted set. The score of a name is the time at which it expires, in milliseconds.
_SET = b"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function expire_with_last_name()
  local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if last[2] then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last[2])) end
end
"""

# KEYS: the key. ARGV: name, time to live in milliseconds, most names or "".
_ADD = (
    _SET
    + b"""
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if ARGV[3] ~= '' then
  local others = redis.call('ZCARD', KEYS[1]) - (redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0)
  if others >= tonumber(ARGV[3]) then return 0 end
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
expire_with_last_name()
return 1
"""
)

# KEYS: the key. ARGV: name.
_REMOVE = (
    _SET
    + b"""
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local existed = redis.call('ZREM', KEYS[1], ARGV[1])
expire_with_last_name()
return existed
"""
)

# KEYS: the key.
_NAMES = _SET + b"return redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')"


# The scripts by their SHA-1, as errors of Redis name them.
_SCRIPTS = {
    hashlib.sha1(script, usedforsecurity=False).hexdigest(): script
    for script in (_SWAP, _TAKE, _APPEND, _LAST, _ADD, _REMOVE, _NAMES)
}


def commands_at(error: str) -> list[str]:
    """Return the commands in the line of a script that an error of Redis names, or nothing if it names none.

    >>> commands_at(f"ERR failed script: {hashlib.sha1(_NAMES).hexdigest()}, on @user_script:2.")
    ['TIME']
    """
    place = re.search(r"script: ([0-9a-f]{40}), on @user_script:(\d+)", error)
    lines = _SCRIPTS.get(place[1], b"").splitlines() if place is not None else []
    number = int(place[2]) if place is not None else 0
    line = lines[number - 1].decode() if 0 < number <= len(lines) else ""
    return sorted(set(re.findall(r"redis\.call\('(\w+)'", line)))


class Keys:
    """Turns keys into keys of Redis: with a prefix, and with the group in braces, which keeps it on one node.

    >>> Keys("weft:")("stream/abc/1")
    b'weft:stream/{abc}/1'
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, key: str) -> bytes:
        """Return the key of Redis for a key or a topic. Different keys have different keys of Redis."""
        kind, slash, rest = key.partition("/")
        if not slash:
            return _encode(self._prefix + _escaped(kind, "{"))
        group, slash, rest = rest.partition("/")
        return _encode(f"{self._prefix}{_escaped(kind, '{')}/{{{_escaped(group, '}')}}}{slash}{rest}")


def _escaped(text: str, brace: str) -> str:
    """Return `text` without a brace that would change the group. Such a text is rare."""
    return f"%{quote(text, safe='')}" if brace in text or text.startswith("%") else text


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _milliseconds(ttl: float) -> int:
    return max(1, math.ceil(min(ttl, LONGEST_TTL) * 1000))


class RedisStore:
    """The store. Values have marks, as `_SWAP` describes."""

    def __init__(self, commands: _Current, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys

    async def get(self, key: str) -> bytes | None:
        """Return the value of `key`, or None."""
        place = self._keys(key)
        found: bytes | None = await self._commands().run(place, "GET", place)
        if found is None:
            return None
        if not found or len(found) <= MARK_BYTES * found[0]:
            kind = key.partition("/")[0]  # the rest can be secret, such as the id of a session
            _seldom.warning("A value of %s/… in Redis was not written by Weft, and is ignored.", kind, about=kind)
            return None
        return found[1 + MARK_BYTES * found[0] :]

    async def put(self, key: str, value: bytes, *, ttl: float) -> None:
        """Store a value."""
        place, marked = self._keys(key), b"\x01" + os.urandom(MARK_BYTES) + value
        await self._commands().run(place, "SET", place, marked, "PX", _milliseconds(ttl))

    async def swap(self, key: str, expected: bytes | None, value: bytes, *, ttl: float) -> bool:
        """Store a value if the current value is `expected`."""
        wanted = b"" if expected is None else b"=" + expected
        marked = os.urandom(MARK_BYTES) + value
        return bool(await self._script(_SWAP, key, marked, wanted, _milliseconds(ttl)))

    async def touch(self, key: str, *, ttl: float) -> bool:
        """Let the value expire `ttl` seconds from now."""
        place = self._keys(key)
        return bool(await self._commands().run(place, "PEXPIRE", place, _milliseconds(ttl)))

    async def delete(self, key: str) -> bool:
        """Delete the value."""
        place = self._keys(key)
        return bool(await self._commands().run(place, "DEL", place))

    async def take(self, key: str, *, count: int, seconds: float) -> float:
        """Take one of `count` permits. Return 0, or the seconds to wait."""
        if count <= 0 or seconds <= 0:  # no limit, as in memory
            return 0.0
        step = min(seconds, LONGEST_TTL) * 1e6 / count
        slack = min(seconds, LONGEST_TTL) * 1e6 - step / 2  # half a step less, because of rounding
        arguments = (os.urandom(MARK_BYTES), repr(step), repr(slack), repr(step * count))
        wait: int = await self._script(_TAKE, key, *arguments)
        return wait / 1e6

    async def _script(self, script: bytes, key: str, *arguments: Any) -> Any:
        place = self._keys(key)
        return await self._commands().run(place, "EVAL", script, 1, place, *arguments)


class RedisLog:
    """The log. Each key is a stream."""

    def __init__(self, commands: _Current, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys

    async def append(self, key: str, entry: bytes, *, ttl: float, most: int) -> int:
        """Add an entry, and return its number."""
        place = self._keys(key)
        arguments = (os.urandom(MARK_BYTES) + entry, _milliseconds(ttl), most)
        number: int = await self._commands().run(place, "EVAL", _APPEND, 1, place, *arguments, tells_repeats=True)
        return number

    async def read(self, key: str, after: int, *, most: int | None = None) -> Sequence[tuple[int, bytes]] | None:
        """Return the first `most` entries with numbers above `after`, or None if some of them were dropped."""
        place = self._keys(key)
        limit = () if most is None else ("COUNT", most)
        found: list[Any] = await self._commands().run(place, "XRANGE", place, f"{after + 1}-0", "+", *limit)
        if found and 0 < after < int(found[0][1][1]):  # the number of the entry before the first
            return None
        return [(_number(id), fields[3][MARK_BYTES:]) for id, fields in found]

    async def last(self, key: str) -> int:
        """Return the number of the newest entry, or 0."""
        place = self._keys(key)
        id: bytes | None = await self._commands().run(place, "EVAL", _LAST, 1, place)
        return 0 if id is None else _number(id)

    async def delete(self, key: str) -> None:
        """Delete all entries."""
        place = self._keys(key)
        await self._commands().run(place, "DEL", place)


def _number(id: bytes) -> int:
    return int(id.partition(b"-")[0])


class RedisSets:
    """The sets. Each key is a sorted set."""

    def __init__(self, commands: _Current, keys: Keys) -> None:
        self._commands = commands
        self._keys = keys

    async def add(self, key: str, name: str, *, ttl: float, most: int | None = None) -> bool:
        """Add a name, unless the set has `most` others."""
        limit = b"" if most is None else most
        return bool(await self._script(_ADD, key, _encode(name), _milliseconds(ttl), limit))

    async def remove(self, key: str, name: str) -> bool:
        """Remove a name."""
        return bool(await self._script(_REMOVE, key, _encode(name)))

    async def names(self, key: str) -> Sequence[str]:
        """Return the names, sorted."""
        found: list[bytes] = await self._script(_NAMES, key)
        return sorted(name.decode("utf-8", "surrogatepass") for name in found)

    async def _script(self, script: bytes, key: str, *arguments: Any) -> Any:
        place = self._keys(key)
        return await self._commands().run(place, "EVAL", script, 1, place, *arguments)
