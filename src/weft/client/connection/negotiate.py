"""Find out which era (family of protocol versions) a server speaks, by sending the first request of each era.

That first request is called the greeting. Eras are tried newest first. If the server refuses a greeting, the refusal
decides what happens next:

- If the server named its versions, the newest version that both sides support is tried.
- If the server speaks the era but refused for another reason, or requires authorization, connecting fails.
- Otherwise the next era is tried. The HTTP+SSE transport of the first revision is tried last, if the client has it.

A busy server gets the greeting a second time.

The result is stored per URL in this process, and tried first the next time. It is not stored if the program chose the
era. Over HTTP, it is also not stored if an earlier greeting failed for a reason that may not be the era, such as a
failure of the server or invalid params.

Over a pipe, a missing answer counts as a refusal, because programs may ignore unknown messages. Over HTTP, the client
waits for the answer as for any other request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from weft.client.callbacks import pause
from weft.client.connection.connection import ClientConnection
from weft.client.connection.transport import Answer, Refused, Transport
from weft.eras.base import ClientEra, EraName, ServerHello
from weft.eras.client import SessionClient, StatelessClient
from weft.errors import (
    AuthorizationFailed,
    ConnectionFailed,
    InternalError,
    InvalidAnswer,
    InvalidParams,
    RemoteError,
    RequestTimeout,
    UsageError,
    VersionMismatch,
    WeftError,
)
from weft.protocol.names import printable

_ERAS: Mapping[str, ClientEra] = {era.name: era for era in (StatelessClient(), SessionClient())}
_MOST_GREETINGS = 5  # maximum number of greetings in one negotiation
_MOST_REMEMBERED = 4096  # maximum number of servers in a `Memory`
_OLD_TRANSPORT = (400, 404, 405)  # HTTP statuses with which an HTTP+SSE server refuses a POST to its stream URL
_OLD_KIND = "sse"  # `kind` of the HTTP+SSE transport
_BUSY = (408, 425, 429, 502, 503, 504)  # HTTP statuses that mean: try again later
_MAY_BE_OURS = (InvalidParams.code, InternalError.code)  # error codes whose reason may not be the era


def eras_for(names: Sequence[EraName], version: str | None) -> list[ClientEra]:
    """Return the eras with these names, newest first, limited to `version` if it is given.

    Raises UsageError if a name is unknown, or if no era has this version.
    """
    if isinstance(names, str) or not names or any(name not in _ERAS for name in names):
        raise UsageError(f"eras={names!r} is not possible: give one or both of {', '.join(map(repr, _ERAS))}.")
    eras = [era for name, era in _ERAS.items() if name in names]
    if version is None:
        return eras
    pinned = [one for era in eras if (one := era.pinned(version)) is not None]
    if not pinned:
        known = ", ".join(known for era in eras for known in era.versions)
        raise UsageError(f"version={version!r} is not spoken here (with eras={names!r}); use one of {known}.")
    return pinned


class Memory:
    """A cache of the era and the kind of transport of each server. The key is usually the server's URL."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def recall(self, key: str) -> tuple[str, str] | None:
        """Return the era and the kind of transport of a server, or None if the cache has no entry."""
        return self._known.get(key)

    def keep(self, key: str, era_name: str, transport_kind: str) -> None:
        """Store the era and the kind of transport of a server. If the cache is full, all other entries are deleted."""
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (era_name, transport_kind)

    def forget(self, key: str) -> None:
        """Delete the entry of a server."""
        self._known.pop(key, None)


class _Refusal(msgspec.Struct):
    """The failure of a greeting, and what the client learned from it."""

    error: WeftError
    status: int | None = None  # HTTP status, if there was one
    is_ours: bool = False  # True if the server speaks the era of the greeting
    supported: list[str] | None = None  # versions that the server named
    is_silence: bool = False  # True if the server did not answer
    is_doubtful: bool = False  # True if the server may speak the era nevertheless
    busy_seconds: float | None = None  # if the server is busy: seconds to wait before the next greeting


class Negotiator:
    """Finds out which era one server speaks.

    The client negotiates when it connects, and again when the session has ended or the server has dropped the version.
    """

    def __init__(
        self,
        link: ClientConnection,
        eras: Sequence[ClientEra],
        *,
        memory: Memory,
        key: str,
        old_transport: Callable[[], Transport] | None = None,
    ) -> None:
        self._link = link
        self._eras = list(eras)
        self._memory = memory
        self._key = key  # key of the server in `memory`
        is_old_era = any(era.keeps_stream for era in eras)
        self._old_transport = old_transport if is_old_era else None  # creates the HTTP+SSE transport
        self._tried: list[tuple[str, str]] = []  # method and outcome of each attempt, for the error message
        self._doubted: set[str] = set()  # names of eras that failed, although the server may speak them

    async def negotiate(self, *, is_reopening: bool = False) -> ServerHello:
        """Send greetings until the server accepts one, set the era of the connection, and return the server's hello.

        Other requests wait until the negotiation has ended. With `is_reopening`, the transport reconnects first. Raises
        WeftError if no era succeeds.
        """
        link = self._link
        before = link.era
        link.settling = asyncio.Event()
        try:
            if is_reopening:
                await link.reopen()
            return await self._negotiate()
        except BaseException:
            link.era = before
            raise
        finally:
            link.settling.set()
            link.settling = None

    async def look_again(self, welcome: ServerHello) -> None:
        """Ask for the server's capabilities again, and store them in `welcome`. Does nothing in the session era."""
        era = self._link.era
        if not era.greets_again:
            return
        method, params = era.greeting(self._link.info, self._link.capabilities)
        try:
            answer = await self._ask(method, params)
        except (Refused, RemoteError) as error:
            raise explained(error) from None
        welcome.capabilities = era.read_welcome(answer.result).capabilities

    async def _ask(self, method: str, params: Mapping[str, Any], **options: Any) -> Answer:
        """Send a greeting and return its answer. If the connection closes without one, send the greeting once more."""
        try:
            return await self._link.roundtrip(method, params, **options)
        except ConnectionFailed as error:
            if not error.is_unanswered:
                raise
            return await self._link.roundtrip(method, params, **options)

    async def _negotiate(self) -> ServerHello:
        self._tried, self._doubted = [], set()
        if (welcome := await self._greet_as_remembered()) is not None:
            return welcome
        named = {era.name: era for era in self._eras}
        known = self._memory.recall(self._key)
        remembered = None if known is None else named.pop(known[0], None)
        queue = [*named.values()] if remembered is None else [remembered, *named.values()]
        refused: set[str] = set()
        silent: list[ClientEra] = []
        last: _Refusal | None = None
        for _ in range(_MOST_GREETINGS):
            if not queue and silent and last is not None and not last.is_silence:
                queue = [silent.pop()]  # the server has answered since, so it may just have been slow
            if not queue:
                break
            era = queue.pop(0)
            greeted = await self._greet(era, may_be_silent=bool(queue))
            if isinstance(greeted, ServerHello):
                return greeted
            last = greeted
            if last.is_doubtful:
                self._doubted.add(era.name)
            if last.supported is not None:
                queue.insert(0, self._common(last.supported, refused))
            elif last.is_ours:
                raise last.error
            elif last.is_silence and queue:
                silent.append(era)
        self._memory.forget(self._key)
        if last is not None and last.status in _OLD_TRANSPORT and self._old_transport is not None:
            return await self._greet_old(self._old_transport)
        raise self._failure(last)

    def _common(self, supported: list[str], refused: set[str]) -> ClientEra:
        """Choose the newest version that client and server both support. Return its era, limited to that version.

        `supported` are the server's versions. Versions in `refused` are skipped, and the chosen version is added to
        `refused`. Raises VersionMismatch if there is no common version.
        """
        for era in self._eras:
            for version in era.versions:
                if version in supported and version not in refused and (one := era.pinned(version)) is not None:
                    refused.add(version)  # if the server names this version again, it has refused it
                    return one
        ours = [version for era in self._eras for version in era.versions]
        raise VersionMismatch(where=self._link.transport.where, ours=ours, theirs=supported)

    async def _greet(self, era: ClientEra, *, may_be_silent: bool) -> ServerHello | _Refusal:
        """Send the greeting of one era. If the server is busy, wait and send the greeting once more.

        Returns the server's hello or its refusal. Raises ConnectionFailed if the server is still busy, or asks for a
        wait that is too long. `may_be_silent` is explained in `_greet_once`.
        """
        greeted = await self._greet_once(era, may_be_silent=may_be_silent)
        if isinstance(greeted, _Refusal) and greeted.busy_seconds is not None:
            if greeted.busy_seconds <= self._link.limits.probe_seconds:
                await asyncio.sleep(greeted.busy_seconds)
                greeted = await self._greet_once(era, may_be_silent=may_be_silent)
            if isinstance(greeted, _Refusal) and greeted.busy_seconds is not None:
                raise greeted.error
        return greeted

    async def _greet_once(self, era: ClientEra, *, may_be_silent: bool) -> ServerHello | _Refusal:
        """Send the greeting of one era, and return the server's hello or its refusal.

        Over a pipe, a missing answer is returned as a refusal. `may_be_silent` makes the wait for the answer short,
        because another era can be tried next. Over HTTP, a missing answer raises RequestTimeout, and `may_be_silent`
        has no effect: HTTP servers answer unknown methods with an error, so a server that does not answer is only slow.
        """
        link, limits = self._link, self._link.limits
        link.era = era
        method, params = era.greeting(self._link.info, self._link.capabilities)
        generation = link.generation
        may_be_silent = may_be_silent and not link.transport.stream_per_request
        seconds = limits.probe_seconds if may_be_silent else limits.request_seconds
        try:
            answer = await self._ask(method, params, seconds=seconds, is_greeting=True)
            return await self._welcomed(era, answer)
        except Refused as refused:
            return self._refused(era, method, refused)
        except RemoteError as error:
            return self._judged(era, method, error, None)
        except RequestTimeout as error:
            if link.transport.stream_per_request:
                if len(self._eras) == 1 or link.generation != generation:
                    raise
                eras = " or ".join(f"eras=[{era.name!r}]" for era in self._eras)
                raise RequestTimeout(f"{error} If it answers in one era only, name that era: {eras}.") from None
            self._tried.append((method, f"no answer within {seconds:g} s"))
            return _Refusal(error, is_silence=True, is_doubtful=True)
        except InvalidAnswer as error:
            self._tried.append((method, str(error)))
            return _Refusal(error, is_doubtful=True)
        except ConnectionFailed as error:
            if not may_be_silent:
                raise
            self._tried.append((method, str(error)))
            await link.reopen()  # the server ended, perhaps because of the greeting
            return _Refusal(error)

    async def _welcomed(self, era: ClientEra, answer: Answer) -> ServerHello | _Refusal:
        welcome = era.read_welcome(answer.result)
        agreed = era.agreed(welcome, answer.headers)
        if agreed is None:
            error = InvalidAnswer("The server and this client have no protocol version in common.")
            return _Refusal(error, is_ours=True, supported=list(welcome.versions))
        link = self._link
        link.era = agreed
        link.generation += 1
        if agreed.confirmation is not None:
            await link.notify(agreed.confirmation)
        if link.transport.stream_per_request and self._doubted - {agreed.name}:  # over a pipe, such a refusal counts
            self._memory.forget(self._key)
        else:
            self._memory.keep(self._key, agreed.name, link.transport.kind)
        await link.open_stream()
        return welcome

    def _refused(self, era: ClientEra, method: str, refused: Refused) -> _Refusal:
        """Convert an HTTP refusal to a `_Refusal`, from the JSON-RPC error in its body or, without one, its status.

        Raises AuthorizationFailed if the server requires a login, and ConnectionFailed for the status 403.
        """
        if refused.status == 403:
            raise with_status(ConnectionFailed(refusal_sentence(refused)), refused)
        error = explained(refused)
        if isinstance(error, AuthorizationFailed):
            raise error
        if isinstance(error, RemoteError):
            refusal = self._judged(era, method, error, refused.status)
        else:
            self._tried.append((method, f"HTTP {refused.status} {_start(refused.body)}"))
            refusal = _Refusal(error, refused.status)
        if refused.status in _BUSY and not refusal.is_ours and refusal.supported is None:
            return _busy(refused)
        refusal.is_doubtful = refusal.is_doubtful or not 400 <= refused.status < 500
        return refusal

    def _judged(self, era: ClientEra, method: str, error: RemoteError, status: int | None) -> _Refusal:
        judgement = era.judge(error.code, error.data)
        self._tried.append((method, f"{error.message[:200]} ({error.code})"))
        return _Refusal(error, status, judgement.is_ours, judgement.supported, is_doubtful=error.code in _MAY_BE_OURS)

    async def _greet_as_remembered(self) -> ServerHello | None:
        """Negotiate over HTTP+SSE if the cache says that this server uses HTTP+SSE. Otherwise return None.

        Also returns None if the negotiation fails. Raises AuthorizationFailed if the server requires a login.
        """
        link, make, known = self._link, self._old_transport, self._memory.recall(self._key)
        if make is None or known is None or known[1] != _OLD_KIND or link.transport.kind == _OLD_KIND:
            return None
        newer = link.transport
        try:
            return await self._greet_old(make)
        except AuthorizationFailed:
            raise
        except WeftError:
            self._memory.forget(self._key)
            self._tried = []
            await link.change(newer)
            return None

    async def _greet_old(self, make: Callable[[], Transport]) -> ServerHello:
        """Negotiate over HTTP+SSE, the transport of the first protocol version. `make` creates the transport."""
        link = self._link
        try:
            await link.change(make())
        except (ConnectionFailed, InvalidAnswer) as error:
            self._tried.append(("GET, as the first revision has it", str(error)))
            raise self._failure(None) from None
        era = next(era for era in self._eras if era.keeps_stream)  # the session era
        greeted = await self._greet(era, may_be_silent=False)
        if isinstance(greeted, ServerHello):
            return greeted
        raise self._failure(greeted)

    def _failure(self, last: _Refusal | None) -> WeftError:
        if last is not None and last.is_silence and len(self._tried) == 1:
            return last.error
        by_outcome: dict[str, list[str]] = {}
        for method, outcome in self._tried:
            by_outcome.setdefault(outcome.rstrip(". "), []).append(method)
        tried = "; ".join(f"{' and '.join(methods)}: {outcome}" for outcome, methods in by_outcome.items())
        where, status = self._link.transport.where, None if last is None else last.status
        check = "Check the address (its path is usually /mcp)"
        if self._link.transport.kind == "stdio":
            check = "Check the command (it must write nothing but messages to stdout)"
        elif any("path" in outcome for outcome in by_outcome):  # the server's answer already says what is wrong
            check = "Check the address"
        remedy = f"{check}, and look into the server's log."
        if last is not None and status is not None and status >= 500:
            remedy = "Look into its log, and into that of a proxy before it."
            if isinstance(last.error, RemoteError):  # an MCP server that reports its own failure
                said = f"{last.error.message[:200].rstrip('. ')} ({last.error.code}, HTTP {status})"
                return ConnectionFailed(f"{where} answered: {said}. {remedy}")
        elif len(self._eras) == 1:
            only = f"Only the {self._eras[0].name} era was tried, because of `eras=` or `version=`."
            remedy = f"{only} Leave that out to try the other era, too. {remedy}"
        return ConnectionFailed(f"{where} does not answer as an MCP server does. Tried: {tried or 'nothing'}. {remedy}")


def _busy(refused: Refused) -> _Refusal:
    """Convert the response of a busy server to a `_Refusal` with the time to wait before the second attempt."""
    error = with_status(ConnectionFailed(_busy_sentence(refused)), refused)
    return _Refusal(error, refused.status, busy_seconds=error.retry_after or pause(1))


def _busy_sentence(refused: Refused) -> str:
    """Return a sentence that says that a server is busy, and what to do. The server's own words are enough."""
    asked = _retry_seconds(refused)
    if asked is None:
        return refusal_sentence(refused)
    if refused.reason:
        said = f"{refused.where} answered with the HTTP status {refused.status}: {refused.reason.rstrip('. ')}."
        return said if f"{asked} s" in said else f"{said} It asks to wait for {asked} s."
    return f"{refusal_sentence(refused)} It asks to wait for {asked} s."


def _retry_seconds(refused: Refused) -> int | None:
    """Return after how many seconds the server lets the client try again, or None if it does not say that."""
    after = refused.headers.get("Retry-After", "").strip()
    return int(after) if after.isdecimal() and len(after) < 10 else None


_E = TypeVar("_E", RemoteError, ConnectionFailed)


def with_status(error: _E, refused: Refused) -> _E:
    """Store the HTTP status and the Retry-After of a refusal in the exception that the program gets."""
    error.status, error.retry_after = refused.status, _retry_seconds(refused)
    return error


def _start(body: bytes) -> str:
    """Return the beginning of a response body, for error messages."""
    text = printable(body[:80].decode("utf-8", "replace")).strip()
    return f"({text}{'…' if len(body) > 80 else ''})" if text else "(empty)"


_REMEDIES: Mapping[int, str] = {
    401: "it wants authorization: give `auth=` or `headers={'Authorization': 'Bearer …'}`, or check the token",
    403: "it does not allow this: check the token and its scopes, and whether it accepts this host",
    404: "there is nothing at this path: check it, it is usually /mcp",
    405: "it does not accept POST there: check the path, it is usually /mcp",
    413: "the request is too large for it: send less",
    429: "it limits the number of requests: wait, then try again",
    503: "it is busy, or just starting: wait, then try again, or look into its log",
}


_MISWRITTEN = "it cannot read the Authorization that was sent: check the token, or `headers=`"


def _is_miswritten(refused: Refused) -> bool:
    """Return whether the server rejects the Authorization header as malformed (RFC 6750, 3.1)."""
    return refused.status == 400 and "www-authenticate" in refused.headers


def refusal_sentence(refused: Refused) -> str:
    """Return a sentence for the user that says what the HTTP status of a refusal means, and what to do."""
    remedy = _MISWRITTEN if _is_miswritten(refused) else _REMEDIES.get(refused.status)
    if remedy is None:
        failed = refused.status >= 500
        remedy = "look into its log, and into that of a proxy before it" if failed else "check the address"
    said = f"({refused.reason})" if refused.reason else _start(refused.body)
    did = f"refused {refused.what}" if refused.what else "answered"
    return f"{refused.where} {did} with the HTTP status {refused.status} {said}: {remedy}."


def session_gone(refused: Refused, method: str) -> ConnectionFailed:
    """Return the error for a request that cannot finish because the server has lost the session."""
    refusal = f"HTTP {refused.status} to {refused.what or 'the rest of its answer'}"
    error = ConnectionFailed(
        f"{refused.where} does not know the session any more ({refusal}): it was restarted, or another of its workers "
        f"was reached. Whether {method} was done is not known. There is a new session: call again if that does no harm."
    )
    return with_status(error, refused)


def explained(error: Refused | RemoteError) -> WeftError:
    """Convert a refusal to the exception that the program gets.

    The exception is AuthorizationFailed if the server requires a login. It is the server's JSON-RPC error if the server
    sent one as the answer to the request. In all other cases it is ConnectionFailed.
    """
    if isinstance(error, RemoteError):
        return error
    if error.status == 401 or _is_miswritten(error):
        return AuthorizationFailed(refusal_sentence(error))
    if error.what or error.error is None:
        return with_status(ConnectionFailed(refusal_sentence(error)), error)
    return with_status(error.error, error)
