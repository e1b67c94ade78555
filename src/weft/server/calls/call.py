"""Hold one request that is being served, its reply, and what it needs of the client.

A feature says with `needs=["elicitation.form"]` what its client must be able to do. That is checked before anything
runs: once a handler has reported progress, the response is a stream and its HTTP status can no longer be chosen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast

from weft.eras.base import Envelope, ServerEra
from weft.errors import MissingCapability, UsageError
from weft.net.logs import masked_name
from weft.net.rate import Pace
from weft.protocol.headers import Headers
from weft.server.calls.connection import Cancellation, Connection, TokenInfo, declared, peer_of
from weft.server.calls.services import Services
from weft.types.base import RequestId, Result

if TYPE_CHECKING:
    from weft.server.calls.pending import PendingRequests


Question: TypeAlias = tuple[Coroutine[Any, Any, Any], str, str]  # with what it is, and where it stands


class Reply(Protocol):
    """Where the output of one call goes: a JSON body that becomes a stream, a stream, a line."""

    @property
    def can_stream(self) -> bool:
        """Whether notifications get there at all."""
        ...

    @property
    def answered(self) -> bool:
        """Whether the answer is out, or there will be none: nothing that belongs to the call gets there any more."""
        ...

    async def notify(self, message: bytes) -> None:
        """Send one encoded notification that belongs to this call, before its answer."""
        ...

    async def close_stream(self, retry_seconds: float) -> None:
        """Let the client go before the answer, to come back for it, where clients do that."""
        ...

    async def end(self) -> None:
        """End the stream without an answer, where a call has a stream of its own."""
        ...

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Add a `WWW-Authenticate` challenge to the response, where a call has a response of its own."""
        ...

    def epilogue(self, message: bytes) -> None:
        """Have this sent after the answer, where the end of the answer is not the end of the stream."""
        ...


class Asking(Protocol):
    """Something that remembers which questions to a client are not answered yet: its session."""

    @property
    def outstanding(self) -> PendingRequests:
        """Requests to the client that it has not answered."""
        ...


class Call:
    """One request, opened: what it says, who sent it, where the answer goes.

    What not every call needs is made when it is asked for.
    """

    context_type: ClassVar[type[Any]]  # `Context`; set by its module, which imports this one
    params_seen = False  # whether the user's code has had the params, and may have changed them
    session: Asking | None = None  # where the client is remembered from call to call
    asker: Any = None  # the `Asker`, once the call has asked or has brought answers back
    blamed: str | None = None  # what of the user's an exception came out of, where that is known
    own_connection: Connection | None = None  # made for this call, and ends with it
    replay: Any = None  # the `Replay`, in development: finds side effects that would happen again
    undo: Callable[[], None] | None = None  # takes back what the call has done, should its answer be an error
    spends: str | None = None  # the `requestState` that this call uses up (MRTR-14)
    questions: list[Question] | None = (
        None  # what the handler has made to ask or do once: without `await` it is neither
    )
    _cancellation: Cancellation | None = None
    _context: Any = None
    _progress_pace: Pace | None = None
    _log_pace: Pace | None = None

    def __init__(
        self,
        services: Services,
        id: RequestId,
        envelope: Envelope,
        era: ServerEra,
        reply: Reply,
        headers: Headers | None = None,
        peer: str = "",
        *,
        connection: Connection | None = None,
        in_flight: dict[RequestId, Cancellation] | None = None,
        token_info: TokenInfo | None = None,
    ) -> None:
        self.services = services
        self.id = id
        self.envelope = envelope
        self.era = era
        self.reply = reply
        self.headers = headers  # None where there are none: stdio
        self.token_info = token_info  # who is calling, where somebody has verified that before the call was made
        self._address = peer  # where it comes from: a host, a pipe, or "" where there is only one
        self._connection = connection  # the session's, or made of the envelope
        self._in_flight = in_flight  # what is served with it, where such connections share a pipe

    @property
    def connection(self) -> Connection:
        """The facts about the peer, and the channel to it."""
        if self._connection is None:
            envelope = self.envelope
            self._connection = self.own_connection = Connection.from_envelope(
                envelope.revision.version,
                envelope.client_info,
                envelope.client_capabilities,
                in_flight=self._in_flight,
            )
        return self._connection

    @property
    def cancellation(self) -> Cancellation:
        """Whether the call was given up."""
        if self._cancellation is None:
            self._cancellation = Cancellation()
        return self._cancellation

    @property
    def progress_pace(self) -> Pace:
        """How often it may tell of its progress (PROG-07)."""
        if self._progress_pace is None:
            self._progress_pace = Pace(self.services.limits.progress_per_second)
        return self._progress_pace

    @property
    def log_pace(self) -> Pace:
        """How often it may log to the client (LOG-07)."""
        if self._log_pace is None:
            self._log_pace = Pace(self.services.limits.log_messages_per_second)
        return self._log_pace

    @property
    def method(self) -> str:
        """The method's name."""
        return self.envelope.method.name

    @property
    def context(self) -> Any:
        """The context of this call: one, shared by middleware and handler."""
        if self._context is None:
            self._context = self.context_type(self)
        return self._context

    def forgotten_question(self) -> tuple[str, str] | None:
        """The first question that was never awaited: what it is, and where it stands."""
        for coroutine, what, where in self.questions or ():
            if getcoroutinestate(coroutine) == CORO_CREATED:
                coroutine.close()  # or Python complains of it, too
                return what, where
        return None

    @property
    def knows_client(self) -> bool:
        """Whether it is known what the client declared: with the call, or in a session. Without one, nothing is."""
        return self.session is not None or not self.era.remembers

    @property
    def principal(self) -> str | None:
        """Who is calling, where that is verified: a name to compare, not to read."""
        return None if self.token_info is None else self.token_info.principal

    @property
    def peer(self) -> str:
        """Whom limits are counted for."""
        return peer_of(self._address, self.token_info)

    def client_supports(self, capability: str) -> bool:
        """Return whether the client declared a capability, named by its path: `"elicitation.url"`."""
        head, _, rest = capability.partition(".")
        part: Any = declared(self.envelope.client_capabilities).get(head)
        if part is not None and rest:
            part = part.get(rest)
        return part is not None and part is not False

    def end(self) -> None:
        """Let go of what knows the call in turn: such a cycle keeps the whole request until a collection finds it.

        Not of `asker`, which does not hold the call. Tasks of the handler may outlive it, and what they have done by
        `once` must not be done again.
        """
        self._context = self.questions = None

    def seal(self, result: Result) -> Result:
        """A fresh result as it goes on the wire of this call."""
        return self.era.seal(result, self.services.offer, self.envelope.revision)

    @property
    def described(self) -> str:
        """What is called, for messages to the developer."""
        mirrored = self.envelope.method.mirrored
        return f"{self.method} {masked_name(getattr(self.envelope.params, mirrored))!r}" if mirrored else self.method


Handler: TypeAlias = Callable[[Call], Awaitable[Any]]  # serves one method: returns a `Result`, or an encoded one

_PARTS = {"elicitation": ("form", "url"), "sampling": ("tools", "context"), "roots": ("listChanged",)}


def check_needs(needs: Sequence[str], where: str) -> tuple[str, ...]:
    """The capabilities of an option; UsageError where one is none that a client could declare.

    >>> check_needs(["elicitation.form", "sampling"], "Tool 'book'")
    ('elicitation.form', 'sampling')
    """
    if isinstance(needs, str):
        raise UsageError(f"{where} has needs={needs!r}; what it needs comes as a list: needs=[{needs!r}].")
    for need in cast("Sequence[object]", needs):
        head, _, part = need.partition(".") if isinstance(need, str) else ("", "", "")
        if (head in ("extensions", "experimental") and part) or (head in _PARTS and part in ("", *_PARTS[head])):
            continue
        known = [name for head, parts in _PARTS.items() for name in (head, *(f"{head}.{part}" for part in parts))]
        raise UsageError(
            f"{where} has needs=[{need!r}], which no client declares. There are: {', '.join(known)}, and "
            "extensions.<id>."
        )
    return tuple(needs)


def check_hide(hide: object, needs: Sequence[str], where: str) -> bool:
    """The option that leaves a feature out of the lists of clients that lack what it needs."""
    if type(hide) is not bool:
        raise UsageError(f"{where} has hide={hide!r}; it is True or False.")
    if hide and not needs:
        raise UsageError(
            f"{where} has hide=True and needs nothing. Say what its clients must have, such as "
            "needs=['elicitation.form'], or leave hide= out."
        )
    return hide


def require_needs(call: Call, needs: Sequence[str]) -> None:
    """Refuse a call by a client that did not declare all of them (META-06)."""
    for need in needs:
        if not call.client_supports(need):
            head, _, part = need.partition(".")
            raise not_declared(call, f"call {call.method} for this", need, {head: {part: {}} if part else {}})


def not_declared(call: Call, purpose: str, need: str, required: Mapping[str, Any]) -> MissingCapability:
    """Make the refusal of what takes a capability that the client did not declare, or not where it is remembered."""
    if not call.knows_client:
        return MissingCapability(
            f"To {purpose}, the server has to know that the client can do `{need}`. It runs without sessions "
            "(`--no-sessions`), so it does not know what clients of this protocol version declare, and cannot ask "
            "them. Run it with sessions, or use a client of the newest protocol version.",
            required={},
        )
    return MissingCapability(f"To {purpose}, the client must declare the capability `{need}`.", required=required)
