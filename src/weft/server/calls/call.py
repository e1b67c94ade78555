"""Define `Call`, a request that is being served, and `Reply`, its output; check the client's capabilities.

A feature declares with `needs=["elicitation.form"]` which capabilities a client must have. They are checked before the
handler runs: once a handler has reported progress, the response is a stream and its HTTP status cannot change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias, cast

from weft.eras.base import Envelope, ServerEra
from weft.errors import MissingCapability, UsageError
from weft.net.logs import masked_name
from weft.net.rate import Pace
from weft.protocol.headers import Headers
from weft.server.calls.connection import Cancellation, Connection, TokenInfo, declared, peer_of
from weft.server.calls.pending import ClientChannel
from weft.server.calls.services import Services
from weft.types.base import RequestId, Result
from weft.types.tasks import SHOWN_OF_TASK_ID

Question: TypeAlias = tuple[Coroutine[Any, Any, Any], str, str]  # the coroutine, its description, its source location


class Reply(Protocol):
    """The output of one call: a JSON body that may become a stream, a stream, or a line."""

    @property
    def can_stream(self) -> bool:
        """Whether notifications can be sent before the answer."""
        ...

    @property
    def answered(self) -> bool:
        """Whether the call has ended, with or without an answer, so that nothing more can be sent for it."""
        ...

    async def notify(self, message: bytes) -> None:
        """Send an encoded notification that belongs to this call, before the answer."""
        ...

    async def close_stream(self, retry_seconds: float) -> None:
        """Close the stream before the answer, if the protocol version allows this.

        The client reconnects after `retry_seconds` to get the answer.
        """
        ...

    async def end(self) -> None:
        """End the stream of this call without an answer. Does nothing if the call has no separate stream."""
        ...

    def challenge(self, scheme: str, parameters: Mapping[str, str | None]) -> None:
        """Add a `WWW-Authenticate` header to the HTTP response of this call, if the call has a separate response."""
        ...

    def epilogue(self, message: bytes) -> None:
        """Send `message` after the answer on stdio. Does nothing on HTTP, where the stream ends with the answer."""
        ...


class Call:
    """One request that is being served: its content, its sender, and its reply.

    Attributes that few calls need are created on first use.
    """

    context_type: ClassVar[type[Any]]  # The class `Context`; set by its module, which imports this module.
    params_seen = False  # Whether user code had access to the params and may have changed them.
    session: ClientChannel | None = None  # Session of the client, if there is one.
    asker: Any = None  # The `Asker`; created when the call asks a question, or contains answers.
    blamed: str | None = None  # Description of the user's function that raised an exception, for the log.
    own_connection: Connection | None = None  # Connection that was created for this call and ends with the call.
    replay: Any = None  # The `Replay` in debug mode, which warns of side effects that would be repeated.
    undo: Callable[[], None] | None = None  # Undoes the effects of the call; called if the answer is an error.
    spends: str | None = None  # The single-use `requestState` of this call, if it has one.
    task: Any = None  # The `TaskRun`, or `PlainCall`, if the tool can be called as a task.
    questions: list[Question] | None = None  # Questions of this call, to find those that were not awaited.
    knew_client = False  # Whether the capabilities were known to the worker that stored this call as a task.
    _cancellation: Cancellation | None = None
    _context: Any = None

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
        self.headers = headers  # None on stdio.
        self.token_info = token_info  # The verified caller, or None.
        self._address = peer  # Address or pipe of the client; "" if there is only one client.
        self._connection = connection  # Connection of the session; None: created from the envelope on first use.
        self._in_flight = in_flight  # Unanswered requests on the same pipe, to find the request that a client cancels.

    @property
    def connection(self) -> Connection:
        """The connection to the client of this call."""
        if self._connection is None:
            envelope = self.envelope
            self._connection = self.own_connection = Connection.from_envelope(
                envelope.revision.version, envelope.client_info, envelope.client_capabilities, in_flight=self._in_flight
            )
        return self._connection

    @property
    def cancellation(self) -> Cancellation:
        """The cancellation state of this call: whether and why the call was cancelled."""
        if self._cancellation is None:
            self._cancellation = Cancellation()
        return self._cancellation

    @property
    def is_cancelled(self) -> bool:
        """Whether this call was cancelled. Unlike `cancellation`, this creates nothing, so any thread may read it."""
        return self._cancellation is not None and self._cancellation.cancelled

    @cached_property
    def progress_pace(self) -> Pace:
        """Rate limit of the progress notifications of this call."""
        return Pace(self.services.limits.progress_per_second)

    @cached_property
    def log_pace(self) -> Pace:
        """Rate limit of the log messages that this call sends to the client."""
        return Pace(self.services.limits.log_messages_per_second)

    @property
    def method(self) -> str:
        """The name of the called method, such as "tools/call"."""
        return self.envelope.method.name

    @property
    def context(self) -> Any:
        """The `Context` of this call. Middleware and handler get the same object."""
        if self._context is None:
            self._context = self.context_type(self)
        return self._context

    @property
    def knows_client(self) -> bool:
        """Whether the server knows the client's capabilities, from this call or from the session."""
        return self.knew_client or self.session is not None or not self.era.remembers

    @property
    def principal(self) -> str | None:
        """The verified identity of the caller as one string; None without a token."""
        return None if self.token_info is None else self.token_info.principal

    @property
    def address(self) -> str:
        """The address or pipe of the client; empty if there is only one client."""
        return self._address

    @property
    def runs_again(self) -> bool:
        """Whether the handler runs again from the top when a question is answered."""
        return self.era.asks_by_rounds or (self.task is not None and self.task.is_task)

    @property
    def peer(self) -> str:
        """The key of this client in counters for limits: its principal, address or network."""
        return peer_of(self._address, self.token_info)

    def client_supports(self, capability: str) -> bool:
        """Return whether the client declared a capability. `capability` is a path, such as "elicitation.url"."""
        head, _, rest = capability.partition(".")
        part: Any = declared(self.envelope.client_capabilities).get(head)
        if part is not None and rest:
            part = part.get(rest)
        return part is not None and part is not False

    def copy(self, reply: Reply) -> Call:
        """Return a call with the same request and another reply. It has no session and a cancellation of its own."""
        copy = Call(
            self.services,
            self.id,
            self.envelope,
            self.era,
            reply,
            self.headers,
            self._address,
            token_info=self.token_info,
        )
        copy.spends = self.spends
        return copy

    def end(self) -> None:
        """Break reference cycles, so that the memory of the request is freed without the garbage collector.

        `asker` is not removed: it has no strong reference to the call, and tasks of the handler may still use it.
        """
        self._context = self.questions = None

    def seal(self, result: Result) -> Result:
        """Return a copy of a result in the format of this call's protocol version."""
        return self.era.seal(result, self.services.offer, self.envelope.revision)

    @property
    def described(self) -> str:
        """The method, and the name of the tool, resource or prompt if there is one, for error messages and the log."""
        mirrored = self.envelope.method.mirrored
        if not mirrored:
            return self.method
        name = getattr(self.envelope.params, mirrored)
        if mirrored == "task_id" and isinstance(name, str):
            name = name[:SHOWN_OF_TASK_ID]  # the id may be all that is needed to read the result
        return f"{self.method} {masked_name(name)!r}"


Handler: TypeAlias = Callable[[Call], Awaitable[Any]]  # Serves one method; returns a `Result`, or an encoded result.

_PARTS = {"elicitation": ("form", "url"), "sampling": ("tools", "context"), "roots": ("listChanged",)}


def check_needs(needs: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the option `needs` as a tuple; raise UsageError if it names a capability that does not exist.

    `where` names the feature in error messages.

    >>> check_needs(["elicitation.form", "sampling"], "Tool 'book'")
    ('elicitation.form', 'sampling')
    """
    if isinstance(needs, str):
        raise UsageError(f"{where} has needs={needs!r}, which is a text. Give a list: needs=[{needs!r}].")
    for need in cast("Sequence[object]", needs):
        head, _, part = need.partition(".") if isinstance(need, str) else ("", "", "")
        if (head in ("extensions", "experimental") and part) or (head in _PARTS and part in ("", *_PARTS[head])):
            continue
        known = [name for head, parts in _PARTS.items() for name in (head, *(f"{head}.{part}" for part in parts))]
        raise UsageError(
            f"{where} has needs=[{need!r}], which is not a capability of clients. There are: {', '.join(known)}, and "
            "extensions.<id>."
        )
    return tuple(needs)


def check_hide(hide: bool, needs: Sequence[str], where: str) -> bool:  # noqa: FBT001 - an option of the user
    """Return the option `hide`; raise UsageError if `hide` is True and `needs` is empty."""
    if hide and not needs:
        raise UsageError(f"{where} has hide=True without needs=, so it is never hidden. Give needs=, or remove hide=.")
    return hide


def require_needs(call: Call, needs: Sequence[str]) -> None:
    """Raise `MissingCapability` if the client of a call did not declare all capabilities in `needs`."""
    for need in needs:
        if not call.client_supports(need):
            head, _, part = need.partition(".")
            raise not_declared(call, f"call {call.method} for this", need, {head: {part: {}} if part else {}})


def not_declared(call: Call, purpose: str, need: str, required: Mapping[str, Any]) -> MissingCapability:
    """Return the error for a client that did not declare the capability `need`, such as "elicitation.form".

    `purpose` says for what the capability is needed. `required` is the capability as JSON, for the data of the error.
    If the server runs without sessions and therefore does not know the capabilities, the error says this.
    """
    if not call.knows_client:
        return MissingCapability(
            f"To {purpose}, the server must know that the client has the capability `{need}`. It runs without "
            "sessions (`--no-sessions`), so it does not know the capabilities of clients of this protocol version. "
            "Run it with sessions, or use a client of the newest protocol version.",
            required={},
        )
    return MissingCapability(f"To {purpose}, the client must declare the capability `{need}`.", required=required)
