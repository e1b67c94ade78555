"""Check a Redis server: can it be reached, is it new enough, does it do what the backend needs?

`RedisBackend.start` refuses to start if a check finds an error, and logs the warnings. `RedisBackend.diagnose` returns
everything that was found.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import shlex
import ssl
import statistics
import time
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from redis import exceptions as redis_errors

from weft.backends import Bus, Log, Sets, Store
from weft.backends.redis.commands import (
    ATTEMPT_SECONDS,
    Commands,
    RedisFailure,
    is_passing,
    password_problem,
    pause_seconds,
    reason_of,
)
from weft.backends.redis.servers import Address, Connection, Servers, UnknownMaster, ask
from weft.backends.redis.store import commands_at
from weft.errors import BackendUnavailable

log = logging.getLogger("weft.redis")

LEAST_VERSION = 7  # Oldest supported version of Redis. Valkey reports such a version, too.
MOST_SKEW = 2.0  # Largest difference of the clocks, in seconds, without a warning.
MOST_LATENCY = 0.05  # Longest round trip, in seconds, without a warning.
MOST_MEMORY = 0.9  # Largest part of its memory that a server may use without a warning.
_PINGS = 11  # Round trips that are measured.
_TRIAL_TTL = 5.0  # Time to live of entries that are written to try.
_TRIAL_SECONDS = 2.0  # Longest wait for a message that is sent to try.

_RIGHTS = (
    "+get +set +del +pexpire +pexpireat +eval +time +xadd +xrange +xrevrange +zadd +zrem +zcard +zscore +zrevrange "
    "+zrangebyscore +zremrangebyscore +publish +spublish +subscribe +ssubscribe +unsubscribe +sunsubscribe +ping +info "
    "+select +client|setname +cluster|slots +asking"
)

_ASK_SENTINELS = "Check its name in the configuration of the Sentinels (sentinel monitor NAME ...)."


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found. If it is not "ok", the backend cannot be used (an error) or may fail (a warning)."""

    level: Literal["ok", "warning", "error"]
    sentence: str
    remedy: str = ""
    is_away: bool = False  # whether the server cannot be reached now, and may be later
    is_minor: bool = False  # whether a start need not warn of it, though `diagnose` does

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


class Parts(Protocol):
    """The parts of a backend that are tried out."""

    store: Store
    log: Log
    sets: Sets
    bus: Bus


async def reach(commands: Commands, seconds: float, prefix: str) -> Finding:
    """Connect to the servers, and try again for some seconds. The finding is an error if that fails.

    `prefix` is how all keys begin.
    """
    failures, end, attempt = 0, time.monotonic() + seconds, min(seconds, ATTEMPT_SECONDS)
    while True:
        try:
            if commands.is_cluster:
                await commands.load_slots()
            async with asyncio.timeout(attempt), commands.servers.connected(commands.addresses[0]) as redis:
                await ask(redis, "PING")
        except RedisFailure as error:
            failures += 1
            pause = pause_seconds(failures)
            if _is_final(error) or time.monotonic() + pause > end:
                return _failed(commands.servers, error, prefix)
            if failures == 1:
                where, why = commands.servers.shown, reason_of(error)
                log.warning("Redis at %s cannot be reached yet (%s). Trying for %g s.", where, why, seconds)
            await asyncio.sleep(pause)
        else:
            return Finding("ok", f"Redis at {commands.servers.shown} answers.")


def _is_final(error: BaseException) -> bool:
    """Return whether it is no use to try again."""
    return not is_passing(error) or _is_tls_error(error)


def _is_tls_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _failed(servers: Servers, error: BaseException, prefix: str) -> Finding:
    """Explain why a connection could not be opened or used."""
    where = f"Redis at {servers.shown}"
    reason = reason_of(error)
    if isinstance(error, redis_errors.AuthenticationError):
        return Finding("error", *password_problem(servers, error))
    if isinstance(error, redis_errors.ResponseError) and _is_forbidden(error):
        return _lacks_right(servers, where, error, prefix)
    if "DB index is out of range" in reason:
        remedy = "Write a smaller number in the URL (the default is 0), or raise `databases` in redis.conf."
        return Finding("error", f"{where} has no database {servers.db}.", remedy)
    if isinstance(error, UnknownMaster):
        known = ", ".join(error.known)
        remedy = f"Write the name of a master in the URL. The Sentinels know: {known}." if known else _ASK_SENTINELS
        return Finding("error", f"{where}: {reason}.", remedy, is_away=True)
    if _is_tls_error(error):
        return Finding(
            "error",
            f"A TLS connection to {where} failed: {reason}.",
            "If its certificate is signed by an authority of yours, add ?ssl_ca_certs=FILE to the URL. If it does not "
            "use TLS, begin the URL with redis instead of rediss.",
        )
    if "cluster support disabled" in reason:
        return Finding("error", f"{where} is not a cluster.", "Begin the URL with redis://, without +cluster.")
    if "unknown command" in reason and "SENTINEL" in reason.upper():
        return Finding(
            "error",
            f"{where} is not a Sentinel.",
            "Name the Sentinels in the URL (port 26379), or begin it with redis://.",
        )
    if not is_passing(error):
        remedy = "Check the URL, and the configuration of the server."
        return Finding("error", f"{where} refused the connection: {reason}.", remedy)
    return Finding("error", f"{where} cannot be reached: {reason}.", _how_to_reach(servers), is_away=True)


def _how_to_reach(servers: Servers) -> str:
    if servers.is_unix:
        return "Check that it runs, that the URL names its socket, and that this user may open the socket."
    tls = "If it does not use TLS, begin the URL with redis." if servers.is_tls else "With TLS, begin it with rediss."
    return f"Check that it runs, that the URL names its host and port, and that this machine can connect to it. {tls}"


def _lacks_right(servers: Servers, where: str, error: BaseException, prefix: str) -> Finding:
    """Explain which right of an ACL user is missing."""
    text = str(error)
    command = re.search(r"run the '([\w|]+)' command", text)
    names = [command[1].upper()] if command is not None else commands_at(text)
    if names:
        what = f"run the command {' or '.join(names)}"
    elif "channel" in text:
        what = "use channels (topics) that begin with the prefix"
    elif "key" in text:
        what = "use keys that begin with the prefix"
    else:
        what = "run a command that the backend needs"
    return Finding(
        "error",
        f"The user of the URL may not {what} in {where}.",
        f"Give it the rights: {_grant(servers.user, f'~{prefix}*', f'&{prefix}*', *_RIGHTS.split())}",
    )


def _grant(user: str, *rules: str) -> str:
    """Return a command for a shell that gives rights to a user."""
    return shlex.join(["redis-cli", "ACL", "SETUSER", user, *rules])


async def check_servers(commands: Commands, prefix: str) -> list[Finding]:
    """Check each server: version, role, memory, persistence, clock and latency. `prefix` is how all keys begin."""
    found: list[Finding] = []
    for address in commands.addresses:
        where = f"Redis at {address if commands.is_cluster else commands.servers.shown}"
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS), commands.servers.connected(address) as redis:
                info = await _read_info(redis)
                found.append(_check_version(where, info))
                wrong_kind = _check_kind(commands.servers, address, where, info)
                found += wrong_kind
                if wrong_kind:
                    continue
                found += await _check_memory(redis, where, info, commands.servers.user)
                found.append(await _check_clock(redis, where))
                found.append(await _check_latency(redis, where))
        except RedisFailure as error:
            found.append(_failed(commands.servers, error, prefix))
    return found


async def _read_info(redis: Connection) -> dict[str, str]:
    """Return what the server says about itself. If INFO is forbidden, it is little."""
    try:
        text: bytes = await ask(redis, "INFO")
        lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
        return {name: value for name, colon, value in lines if colon}
    except redis_errors.ResponseError:
        pass
    try:
        pairs: list[Any] = await ask(redis, "HELLO")
    except redis_errors.ResponseError:
        return {}
    known = {_text(name): _text(value) for name, value in zip(pairs[::2], pairs[1::2], strict=False)}
    return {
        "redis_version": known.get("version", ""),
        "role": known.get("role", ""),
        "redis_mode": known.get("mode", ""),
        "cluster_enabled": "1" if known.get("mode") == "cluster" else "0",
    }


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


async def _check_memory(redis: Connection, where: str, info: dict[str, str], user: str) -> list[Finding]:
    found: list[Finding] = []
    policy = info.get("maxmemory_policy") or await _read_setting(redis, "maxmemory-policy")
    if policy and policy != "noeviction":
        sentence = f"{where} may delete entries that are in use when its memory is full (maxmemory-policy {policy})."
        found.append(Finding("warning", sentence, "Set maxmemory-policy to noeviction."))
    if "used_memory_human" in info:
        found.append(_check_free_memory(where, info, deletes=policy not in (None, "", "noeviction")))
    else:
        sentence = f"The memory of {where}, and whether it saves its data, could not be checked: +info is missing."
        found.append(Finding("warning", sentence, f"Allow the command INFO: {_grant(user, '+info')}"))
    if info.get("aof_enabled") != "0":
        return found
    save = await _read_setting(redis, "save")
    if save is None:
        sentence = f"Whether {where} saves its data to disk could not be checked: +config|get is missing."
        remedy = f"To check it, allow the command CONFIG GET: {_grant(user, '+config|get')}"
        found.append(Finding("warning", sentence, remedy, is_minor=True))
    elif not save:
        sentence = f"{where} does not save its data to disk: sessions end when it restarts, if it has no replica."
        found.append(Finding("warning", sentence, "If sessions shall survive a restart of Redis, set appendonly yes."))
    return found


def _check_free_memory(where: str, info: dict[str, str], *, deletes: bool) -> Finding:
    """Find a server whose memory is full, or nearly. A server that `deletes` entries uses all its memory."""
    used, limit, rest = (_number(info, name) for name in ("used_memory", "maxmemory", "mem_not_counted_for_evict"))
    part = (used - rest) / limit if limit and not deletes else 0.0
    shown = info.get("maxmemory_human", "unknown") if limit else "none"
    sentence = f"{where} uses {info['used_memory_human']} of memory (limit: {shown})."
    if part >= 1:
        remedy = "It is full, and refuses to store anything: raise maxmemory, or delete what is not needed."
        return Finding("error", sentence, remedy, is_away=True)
    if part > MOST_MEMORY:
        return Finding("warning", sentence, "When it is full, it refuses to store anything: raise maxmemory.")
    return Finding("ok", sentence)


def _number(info: dict[str, str], name: str) -> int:
    text = info.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


async def _read_setting(redis: Connection, name: str) -> str | None:
    """Return a setting of the server, or None if that is forbidden, as by many hosters."""
    try:
        pair: list[Any] = await ask(redis, "CONFIG", "GET", name)
    except redis_errors.ResponseError:
        return None
    return _text(pair[1]) if len(pair) > 1 else None


def _check_version(where: str, info: dict[str, str]) -> Finding:
    version = info.get("redis_version", "")
    major = version.partition(".")[0]
    name = f"Valkey {info['valkey_version']}" if info.get("valkey_version") else f"Redis {version}"
    if not major.isdigit():
        return Finding("ok", f"{where} does not tell its version.")
    if int(major) < LEAST_VERSION:
        return Finding(
            "error", f"{where} is {name}, which is too old.", f"Install Redis {LEAST_VERSION} or newer, or Valkey."
        )
    return Finding("ok", f"{where} is {name}.")


def _check_kind(servers: Servers, address: Address, where: str, info: dict[str, str]) -> list[Finding]:
    """Find a server that is of another kind than the URL says."""
    tls = "s" if servers.is_tls else ""
    if info.get("redis_mode") == "sentinel":
        url = f"redis{tls}+sentinel://{address}/mymaster"
        return [Finding("error", f"{where} is a Sentinel.", f"Write {url} with the name of your master.")]
    if servers.kind == "cluster":
        return []
    if info.get("cluster_enabled") == "1":
        url = f"redis{tls}+cluster://{address}"
        return [Finding("error", f"{where} is a node of a cluster.", f"Begin the URL with {url}.")]
    if info.get("role") in ("slave", "replica"):
        remedy = f"Write the address of its master, or redis{tls}+sentinel:// with the addresses of your Sentinels."
        return [Finding("error", f"{where} is a replica, which accepts no writes.", remedy)]
    return []


async def _check_clock(redis: Connection, where: str) -> Finding:
    before = time.time()
    seconds, microseconds = await ask(redis, "TIME")
    skew = int(seconds) + int(microseconds) / 1e6 - (before + time.time()) / 2
    if abs(skew) > MOST_SKEW:
        order = "ahead of" if skew > 0 else "behind"
        return Finding(
            "warning",
            f"The clock of {where} is {abs(skew):.1f} s {order} the clock of this machine. So what a client is asked "
            "can expire too early or too late.",
            "Synchronise the clocks of all machines (NTP).",
        )
    return Finding("ok", f"The clocks of {where} and of this machine differ by {abs(skew) * 1000:.0f} ms.")


async def _check_latency(redis: Connection, where: str) -> Finding:
    taken: list[float] = []
    for _ in range(_PINGS):
        began = time.perf_counter()
        await ask(redis, "PING")
        taken.append(time.perf_counter() - began)
    median = statistics.median(taken)
    sentence = f"A round trip to {where} takes {median * 1000:.1f} ms."
    if median > MOST_LATENCY:
        return Finding("warning", sentence, "Each request needs several round trips: run Redis near the workers.")
    return Finding("ok", sentence)


async def try_out(servers: Servers, parts: Parts, prefix: str) -> list[Finding]:
    """Write and read something in each part of the backend. This shows which rights are missing.

    `prefix` is how all keys begin.
    """
    found: list[Finding] = []
    key = f"check/{secrets.token_hex(8)}"
    trials: list[tuple[str, Awaitable[bool]]] = [
        ("store", _try_store(parts.store, f"{key}/store")),
        ("log", _try_log(parts.log, f"{key}/log")),
        ("sets", _try_sets(parts.sets, f"{key}/sets")),
        ("bus", _try_bus(parts.bus, f"{key}/bus")),
    ]
    results = await asyncio.gather(*(trial for _, trial in trials), return_exceptions=True)
    for (name, _), result in zip(trials, results, strict=True):
        where = f"The {name} in Redis at {servers.shown}"
        if isinstance(result, BackendUnavailable):
            found.append(_refused(servers, name, result, prefix))
        elif isinstance(result, BaseException):
            raise result
        elif result:
            found.append(Finding("ok", f"{where} can be used."))
        else:
            remedy = "Use Redis or Valkey itself, without a proxy that changes commands."
            found.append(Finding("error", f"{where} does not return what was written.", remedy))
    return list(_each_remedy_once(found))


def _each_remedy_once(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings, without remedies that an earlier finding has."""
    told: set[str] = set()
    for finding in found:
        yield replace(finding, remedy="") if finding.remedy in told else finding
        told.add(finding.remedy)


def _refused(servers: Servers, name: str, error: BackendUnavailable, prefix: str) -> Finding:
    cause = error.__cause__
    if isinstance(cause, redis_errors.ResponseError) and _is_forbidden(cause):
        return _lacks_right(servers, f"Redis at {servers.shown} (for the {name})", cause, prefix)
    is_away = cause is None  # otherwise Redis has refused a command
    return Finding("error", f"The {name} in Redis at {servers.shown} cannot be used.", str(error), is_away)


def _is_forbidden(error: redis_errors.ResponseError) -> bool:
    """Return whether a user lacks a right. A command in a script has another error than a command alone."""
    in_script = ("user executing the script", "ACL failure in script")  # of Redis 7.0, of later versions
    return isinstance(error, redis_errors.NoPermissionError) or any(part in str(error) for part in in_script)


async def _try_store(store: Store, key: str) -> bool:
    await store.put(key, b"1", ttl=_TRIAL_TTL)
    is_stored = await store.get(key) == b"1" and await store.touch(key, ttl=_TRIAL_TTL)
    is_swapped = await store.swap(key, b"1", b"2", ttl=_TRIAL_TTL) and await store.delete(key)
    return is_stored and is_swapped and not await store.take(key, count=1, seconds=_TRIAL_TTL)


async def _try_log(log: Log, key: str) -> bool:
    number = await log.append(key, b"1", ttl=_TRIAL_TTL, most=1)
    is_read = await log.last(key) == number and await log.read(key, 0) == [(number, b"1")]
    await log.delete(key)
    return is_read


async def _try_sets(sets: Sets, key: str) -> bool:
    is_added = await sets.add(key, "1", ttl=_TRIAL_TTL, most=1)
    return is_added and await sets.names(key) == ["1"] and await sets.remove(key, "1")


async def _try_bus(bus: Bus, key: str) -> bool:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    unsubscribe = await bus.subscribe(key, heard.put_nowait)
    try:
        count = await bus.publish(key, b"1")
        async with asyncio.timeout(_TRIAL_SECONDS):
            return await heard.get() == b"1" and count >= 1
    except TimeoutError:
        return False
    finally:
        await unsubscribe()
