"""Find out which era a server speaks: greet it in each that may be, and read how it refuses.

Eras are tried newest first. The era judges a refusal: whether a server that speaks it would refuse so, and which
versions the server named. The next era is tried only after a refusal that is none of this era's; a server that
understood and said no, or wants authorization, is an error. Last comes the transport of the first revision, where the
client has one to offer.

The outcome is remembered per URL in this process, and tried first the next time. Not remembered are eras that the
program has pinned, and, over HTTP, what followed upon an answer that need not be about the era: a failure of the
server, params that it does not like. A busy server is asked once more. Silence is a refusal over pipes, where programs
may ignore what they do not know; over HTTP it is waited for, as for any request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from weft.client.callbacks import pause
from weft.client.connection.connection import ClientConnection, remote_error
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
from weft.limits import ClientLimits
from weft.protocol.names import printable
from weft.types.base import Implementation
from weft.types.lifecycle import ClientCapabilities

_ERAS: Mapping[str, ClientEra] = {era.name: era for era in (StatelessClient(), SessionClient())}
_MOST_GREETINGS = 5
_MOST_REMEMBERED = 4096
_OLD_TRANSPORT = (400, 404, 405)  # how a server of the first revision answers a POST to its stream
_OLD_KIND = "sse"  # of transport
_BUSY = (408, 425, 429, 502, 503, 504)  # the server has not looked at the request
_MAY_BE_OURS = (InvalidParams.code, InternalError.code)  # what else than its era may keep a server from answering


def eras_for(names: Sequence[EraName], version: str | None) -> list[ClientEra]:
    """Return the eras that a client may speak, in the order in which they are tried; UsageError when there is none."""
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
    """The era and the kind of transport of each server, by its URL."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def recall(self, key: str) -> tuple[str, str] | None:
        """Return the era and the kind of transport of a server, or None."""
        return self._known.get(key)

    def keep(self, key: str, era_name: str, transport_kind: str) -> None:
        """Remember the era and the kind of transport of a server."""
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (era_name, transport_kind)

    def forget(self, key: str) -> None:
        """Forget a server whose entry was wrong."""
        self._known.pop(key, None)


class _Refusal(msgspec.Struct):
    """How a greeting failed, and what follows from it."""

    error: WeftError
    status: int | None = None
    is_ours: bool = False
    supported: list[str] | None = None
    is_silence: bool = False
    is_doubtful: bool = False  # it need not be about the era
    busy_seconds: float | None = None  # it says nothing; ask again after that


class Negotiator:
    """Finds out about one server, once and whenever it has to be done again."""

    def __init__(
        self,
        link: ClientConnection,
        eras: Sequence[ClientEra],
        *,
        info: Implementation,
        capabilities: Callable[[], ClientCapabilities],
        limits: ClientLimits,
        memory: Memory,
        key: str,
        old_transport: Callable[[], Transport] | None = None,
    ) -> None:
        self._link = link
        self._eras = list(eras)
        self._info = info
        self._capabilities = capabilities
        self._limits = limits
        self._memory = memory
        self._key = key  # under which the outcome is remembered
        self._old_transport = old_transport
        self._tried: list[tuple[str, str]] = []  # what was sent, and what came of it
        self._doubted: set[str] = set()  # eras that the server may speak, although it was not heard to

    async def negotiate(self, *, is_reopening: bool = False) -> ServerHello:
        """Greet until the server agrees. The connection then speaks the agreed era; other requests wait meanwhile."""
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
        """Bring up to date what the server offers, where one may ask that again."""
        era = self._link.era
        if not era.greets_again:
            return
        method, params = era.greeting(self._info, self._capabilities())
        try:
            answer = await self._ask(method, params)
        except (Refused, RemoteError) as error:
            raise explained(error) from None
        welcome.capabilities = era.read_welcome(answer.result).capabilities

    async def _ask(self, method: str, params: Mapping[str, Any], **options: Any) -> Answer:
        """Send a greeting; again where the connection was closed without an answer, for it does no harm twice."""
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
        queue = self._in_order()
        refused: set[str] = set()
        silent: list[ClientEra] = []
        last: _Refusal | None = None
        for _ in range(_MOST_GREETINGS):
            if not queue and silent and last is not None and not last.is_silence:
                queue = [silent.pop()]  # it was slow, not deaf, for it has answered since
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
        if last is not None and last.status in _OLD_TRANSPORT and (make := self._allowed_old()) is not None:
            return await self._greet_old(make)
        raise self._failure(last)

    def _in_order(self) -> list[ClientEra]:
        """Return the eras to try: first the one that was found the last time."""
        named = {era.name: era for era in self._eras}
        known = self._memory.recall(self._key)
        first = None if known is None else named.pop(known[0], None)
        return [*named.values()] if first is None else [first, *named.values()]

    def _common(self, supported: list[str], refused: set[str]) -> ClientEra:
        """Return the era and version that both sides have, except versions that were refused before."""
        for era in self._eras:
            for version in era.versions:
                if version in supported and version not in refused and (one := era.pinned(version)) is not None:
                    refused.add(version)  # the next time it is
                    return one
        ours = [version for era in self._eras for version in era.versions]
        raise VersionMismatch(where=self._link.transport.where, ours=ours, theirs=supported)

    async def _greet(self, era: ClientEra, *, may_be_silent: bool, is_again: bool = False) -> ServerHello | _Refusal:
        """Greet in one era; once more, where the server was busy."""
        greeted = await self._greet_once(era, may_be_silent=may_be_silent)
        if isinstance(greeted, ServerHello) or greeted.busy_seconds is None:
            return greeted
        if is_again or greeted.busy_seconds > self._limits.probe_seconds:
            raise greeted.error
        await asyncio.sleep(greeted.busy_seconds)
        return await self._greet(era, may_be_silent=may_be_silent, is_again=True)

    async def _greet_once(self, era: ClientEra, *, may_be_silent: bool) -> ServerHello | _Refusal:
        """Silence counts as a refusal where another era is still to be tried, but over a pipe alone.

        Over HTTP a server that knows nothing of a method says so; one that says nothing yet is slow.
        """
        link, limits = self._link, self._limits
        link.era = era
        method, params = era.greeting(self._info, self._capabilities())
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
                raise self._unanswered(error) if link.generation == generation else error from None
            self._tried.append((method, f"no answer within {seconds:g} s"))
            return _Refusal(error, is_silence=True, is_doubtful=True)
        except InvalidAnswer as error:
            self._tried.append((method, str(error)))
            return _Refusal(error, is_doubtful=True)
        except ConnectionFailed as error:
            if not may_be_silent or not getattr(link.transport, "has_read", True):
                raise  # one that ended before it read the greeting would end again
            self._tried.append((method, str(error)))
            await link.reopen()  # the greeting was too much for it
            return _Refusal(error)

    def _unanswered(self, error: RequestTimeout) -> RequestTimeout:
        """Return a timeout of a greeting, with what to do if the server answers in one era alone."""
        if len(self._eras) == 1:
            return error
        eras = " or ".join(f"eras=[{era.name!r}]" for era in self._eras)
        return RequestTimeout(f"{error} If it answers in one era alone, name that: {eras}.")

    async def _welcomed(self, era: ClientEra, answer: Answer) -> ServerHello | _Refusal:
        welcome = era.read_welcome(answer.result)
        agreed = era.agreed(welcome, answer.headers)
        if agreed is None:
            error = InvalidAnswer("The server speaks no version that this client does.")
            return _Refusal(error, is_ours=True, supported=list(welcome.versions))
        link = self._link
        link.era = agreed
        link.generation += 1
        if agreed.confirmation is not None:
            await link.notify(agreed.confirmation)
        if link.transport.stream_per_request and self._doubted - {agreed.name}:  # over a pipe they count
            self._memory.forget(self._key)
        else:
            self._memory.keep(self._key, agreed.name, link.transport.kind)
        await link.open_stream()
        return welcome

    def _refused(self, era: ClientEra, method: str, refused: Refused) -> _Refusal:
        """Judge a refusal by HTTP: the body decides, not the status."""
        if refused.status == 403:
            raise ConnectionFailed(refusal_sentence(refused))
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

    def _allowed_old(self) -> Callable[[], Transport] | None:
        """Return a maker of the transport of the first revision, if the client may speak an era that it carries."""
        return self._old_transport if any(era.keeps_stream for era in self._eras) else None

    async def _greet_as_remembered(self) -> ServerHello | None:
        """Begin with the transport of the first revision where that was found; None where it is not so any more."""
        link, make, known = self._link, self._allowed_old(), self._memory.recall(self._key)
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
        """Greet over the transport of the first revision: a stream that names where to send."""
        link = self._link
        try:
            await link.change(make())
        except (ConnectionFailed, InvalidAnswer) as error:
            self._tried.append(("GET, as the first revision has it", str(error)))
            raise self._failure(None) from None
        last: _Refusal | None = None
        for era in self._eras:
            if era.keeps_stream:
                greeted = await self._greet(era, may_be_silent=False)
                if isinstance(greeted, ServerHello):
                    return greeted
                last = greeted
        raise self._failure(last)

    def _failure(self, last: _Refusal | None) -> WeftError:
        if last is not None and last.is_silence and len(self._tried) == 1:
            return last.error
        by_outcome: dict[str, list[str]] = {}
        for method, outcome in self._tried:
            by_outcome.setdefault(outcome.rstrip(". "), []).append(method)
        tried = "; ".join(f"{' and '.join(methods)}: {outcome}" for outcome, methods in by_outcome.items())
        if self._link.transport.kind == "stdio":
            check = "Check the command (its stdout is for messages alone)"
        elif any("path" in outcome for outcome in by_outcome):  # the server says itself what is wrong with the address
            check = "Check the address"
        else:
            check = "Check the address (its path is usually /mcp)"
        remedy = f"{check}, and look into the server's log."
        if last is not None and last.status is not None and last.status >= 500:
            remedy = "Look into its log, and into that of a proxy before it."
            if isinstance(last.error, RemoteError):  # it is an MCP server, which says what is wrong with it
                said = f"{last.error.message[:200].rstrip('. ')} ({last.error.code}, HTTP {last.status})"
                return ConnectionFailed(f"{self._link.transport.where} answered: {said}. {remedy}")
        elif len(self._eras) == 1:
            remedy = (
                f"Nothing but the {self._eras[0].name} era was tried, as `eras=` or `version=` says: leave that out, "
                f"and the other is tried too. {remedy}"
            )
        return ConnectionFailed(
            f"{self._link.transport.where} does not answer as an MCP server does. Tried: {tried or 'nothing'}. {remedy}"
        )


def _busy(refused: Refused) -> _Refusal:
    """Return a refusal of a busy server: when to try again, and the error if that fails too."""
    after = refused.headers.get("Retry-After", "").strip()
    asked = int(after) if after.isdecimal() and len(after) < 10 else None
    wish = "" if asked is None else f" It asks to wait for {asked} s."
    return _Refusal(
        ConnectionFailed(f"{refusal_sentence(refused)}{wish}"), refused.status, busy_seconds=asked or pause(1)
    )


def _start(body: bytes) -> str:
    """Return the beginning of a body that is no message, for people to recognise."""
    text = printable(body[:80].decode("utf-8", "replace")).strip()
    return f"({text}{'…' if len(body) > 80 else ''})" if text else "(empty)"


_REMEDIES: Mapping[int, str] = {
    401: "it wants authorization: give `auth=`, or `headers={'Authorization': 'Bearer …'}`",
    403: "it does not allow this: check the token and its scopes, and whether it takes this host",
    404: "there is nothing at this path: check it, it is usually /mcp",
    405: "it does not take POST there: check the path, it is usually /mcp",
    413: "the request is too large for it: send less",
    429: "it wants fewer requests: wait, then try again",
    503: "it is busy, or just starting: wait, then try again, or look into its log",
}


_MISWRITTEN = "it cannot read the Authorization that was sent: check the token, or `headers=`"


def _is_miswritten(refused: Refused) -> bool:
    """Return whether the server cannot read the Authorization: that says nothing about its era (RFC 6750, 3.1)."""
    return refused.status == 400 and "www-authenticate" in refused.headers


def refusal_sentence(refused: Refused) -> str:
    """Return a sentence that says what an HTTP status means, and what to do."""
    remedy = _MISWRITTEN if _is_miswritten(refused) else _REMEDIES.get(refused.status)
    if remedy is None:
        failed = refused.status >= 500
        remedy = "look into its log, and into that of a proxy before it" if failed else "check the address"
    said = f"({refused.reason})" if refused.reason else _start(refused.body)
    did = f"refused {refused.what}" if refused.what else "answered"
    return f"{refused.where} {did} with the HTTP status {refused.status} {said}: {remedy}."


def session_gone(refused: Refused, method: str) -> ConnectionFailed:
    """Return the error for a session that ended in the middle of a request."""
    refusal = f"HTTP {refused.status} to {refused.what or 'the rest of its answer'}"
    return ConnectionFailed(
        f"{refused.where} does not know the session any more ({refusal}): it was restarted, or another of its workers "
        f"was reached. Whether {method} was done is not known. There is a new session: call again if that does no harm."
    )


def explained(error: Refused | RemoteError) -> WeftError:
    """Return a refusal as the caller gets it: the server's own error if it gave one, unless it wants a login."""
    if isinstance(error, RemoteError):
        return error
    if error.status == 401 or _is_miswritten(error):
        return AuthorizationFailed(refusal_sentence(error))
    if error.what or error.frame is None:
        return ConnectionFailed(refusal_sentence(error))
    try:
        return remote_error(error.frame)
    except InvalidAnswer as invalid:
        return invalid
