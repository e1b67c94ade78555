"""Define what the server knows about one client: its `Connection`, and its identity from a token (`TokenInfo`).

Every Context has a Connection. In the stateless era, a Connection is created from the envelope of a request, is ready
at once and ends with the request. In the session era, it is created before the handshake and lives as long as the
session. The two factories, `from_envelope` and `for_loop`, differ only in the values that they fill in.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from weft.errors import NoBackChannelError, ProtocolError, QuestionFailed, UsageError
from weft.net.hosts import network_of
from weft.protocol.schema import is_array, is_object
from weft.types.base import Implementation, LogLevel, RequestId
from weft.types.interaction import ListRootsResult, Root
from weft.types.lifecycle import ClientCapabilities, ElicitationCapability, ProgressParams

log = logging.getLogger("weft.connection")

T = TypeVar("T")

Params: TypeAlias = Mapping[str, Any] | None  # params of a message to the client
OnProgress: TypeAlias = Callable[[ProgressParams], None]

COMPLETE = "notifications/elicitation/complete"

_NO_CAPABILITIES = ClientCapabilities()


class TokenInfo(msgspec.Struct, frozen=True):
    """The verified identity of a caller, from its token: the subject and, if known, the issuer and the client."""

    subject: str
    client_id: str | None = None
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    issuer: str | None = None  # default: the claim `iss`

    def __post_init__(self) -> None:
        if type(self.scopes) is not frozenset:
            msgspec.structs.force_setattr(self, "scopes", _as_set(self.scopes))

    @property
    def principal(self) -> str:
        """Identity of the caller as one string, which is made of the issuer, the client and the subject."""
        pieces = (self.issuer or self.claims.get("iss"), self.client_id, self.subject)
        return "".join("-" if piece is None else f"{len(str(piece))}:{piece}" for piece in pieces)

    @property
    def expires(self) -> float | None:
        """Expiry of the token in Unix seconds; None if it is unknown."""
        return as_time(self.claims.get("exp"))


def as_time(value: object) -> float | None:
    """Return a value from JSON as a time in Unix seconds; None if it is not a number, not finite, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def peer_of(address: str, token_info: TokenInfo | None) -> str:
    """Return the key of a client in counters for limits: its principal (with a token), else its address or network."""
    return network_of(address) if token_info is None else f"principal {token_info.principal}"


def _as_set(scopes: object) -> frozenset[str]:
    """Convert scopes to a frozenset. Raises UsageError unless `scopes` is a list, tuple or set of strings."""
    if isinstance(scopes, list | tuple | set | frozenset):
        listed = cast("Collection[object]", scopes)
        if all(isinstance(scope, str) for scope in listed):
            return cast("frozenset[str]", frozenset(listed))
    raise UsageError(f"TokenInfo(scopes={scopes!r}) is not possible: give a set of strings, such as {{'read'}}.")


class Outbound:
    """The channel for messages that the server sends outside of a call. This base class cannot send anything."""

    __slots__ = ()

    @property
    def is_readable(self) -> bool:
        """Whether the client reads this channel, or has read it before and may reconnect."""
        return False

    async def send_raw_request(
        self, method: str, params: Params, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Any:
        """Send a request and return its result. Raises `NoBackChannelError` if the channel cannot send requests."""
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Params = None) -> None:
        """Send a notification. Drops the notification if the channel cannot send it."""
        log.debug("%s dropped: no channel to this peer", method)


NO_CHANNEL = Outbound()


@dataclass(slots=True, eq=False)
class Cancellation:
    """The cancellation state of one request, and the task to cancel."""

    task: asyncio.Task[Any] | None = None
    cancelled: bool = False
    reason: str | None = None
    told: ProtocolError | None = None  # Error response for the client; None: no response is sent.
    _happened: asyncio.Future[None] | None = None  # Created at the first use.

    @property
    def happened(self) -> asyncio.Future[None]:
        """A future that is done when the request has been cancelled."""
        if self._happened is None:
            self._happened = asyncio.get_running_loop().create_future()
            if self.cancelled:
                self._happened.set_result(None)
        return self._happened

    def also_cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel `task`, too, when the request is cancelled.

        If the request is cancelled already, `task` is cancelled where it next waits. A task that ends without waiting
        is not cancelled.
        """
        happened = self.happened

        def cancel(_: object) -> None:
            task.cancel()

        happened.add_done_callback(cancel)
        task.add_done_callback(lambda _: happened.remove_done_callback(cancel))

    def cancel(self, reason: str | None = None, *, told: ProtocolError | None = None) -> None:
        """Cancel the request. A second call does nothing.

        `reason` is only stored as an attribute. `told` is the error response for the client. If `told` is None, no
        response is sent.
        """
        if not self.cancelled:
            self.cancelled = True
            self.reason = reason
            self.told = told
            if self.task is not None:
                self.task.cancel()
            if self._happened is not None:
                self._happened.set_result(None)


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """The facts about one client, and the channel to this client.

    Create a connection with `from_envelope` or `for_loop`.

    >>> from weft.types.lifecycle import RootsCapability
    >>> connection = Connection.from_envelope("2031-01-01", None, ClientCapabilities(roots=RootsCapability()))
    >>> connection.initialize_accepted, connection.has_standalone_channel
    (True, False)
    """

    protocol_version: str  # From the handshake, or from the request.
    client_info: Implementation | None  # Name and version of the client; for information only.
    client_capabilities: ClientCapabilities  # Capabilities that the client declared.
    outbound: Outbound
    in_flight: dict[RequestId, Cancellation]  # Requests of this client that are being served, by id.
    is_ready: bool  # Whether the client has confirmed the handshake, or no handshake is needed.
    handshake_done: bool = False  # Whether `initialize` was answered; a second one is refused.
    is_changed: bool = False  # Whether the connection has changed since the session's record was stored.
    log_level: LogLevel | None = None
    # These are created at the first use: most connections live for one request, or are idle.
    _connection_id: str | None = None
    _state: dict[str, Any] | None = None
    _subscribed_uris: set[str] | None = None
    _exit_stack: AsyncExitStack | None = None
    _initialized: asyncio.Event | None = None

    @classmethod
    def from_envelope(
        cls,
        protocol_version: str,
        client_info: Implementation | None,
        client_capabilities: ClientCapabilities | None,
        *,
        outbound: Outbound = NO_CHANNEL,
        in_flight: dict[RequestId, Cancellation] | None = None,
    ) -> Connection:
        """Return a connection with the facts that one request contains about its client. No handshake is needed.

        Connections on the same pipe share `in_flight`, so that a cancellation can find the request that it names.
        """
        capabilities = client_capabilities or _NO_CAPABILITIES
        shared = {} if in_flight is None else in_flight
        return cls(protocol_version, client_info, capabilities, outbound, shared, is_ready=True)

    @classmethod
    def for_loop(
        cls,
        outbound: Outbound,
        *,
        connection_id: str | None = None,
        in_flight: dict[RequestId, Cancellation] | None = None,
    ) -> Connection:
        """Return a connection to a client that has not done the handshake yet."""
        shared = {} if in_flight is None else in_flight
        return cls("", None, _NO_CAPABILITIES, outbound, shared, is_ready=False, _connection_id=connection_id)

    @property
    def connection_id(self) -> str:
        """Unique id of the connection. Without a session, each call has a separate connection."""
        if self._connection_id is None:
            self._connection_id = os.urandom(16).hex()
        return self._connection_id

    @property
    def state(self) -> dict[str, Any]:
        """Values that handlers store for the lifetime of the connection, in this process only."""
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def subscribed_uris(self) -> set[str]:
        """Resources that the client of a session subscribed to."""
        if self._subscribed_uris is None:
            self._subscribed_uris = set()
        return self._subscribed_uris

    @property
    def has_standalone_channel(self) -> bool:
        """Whether messages can be sent to the client outside of a call."""
        return self.outbound is not NO_CHANNEL

    @property
    def initialize_accepted(self) -> bool:
        """Whether the client may send requests: the handshake was answered, or is not needed."""
        return self.is_ready or self.handshake_done

    @property
    def initialized(self) -> asyncio.Event:
        """Event that is set once the server may send requests to the client."""
        if self._initialized is None:
            self._initialized = asyncio.Event()
            if self.is_ready:
                self._initialized.set()
        return self._initialized

    def complete_handshake(
        self, protocol_version: str, client_info: Implementation | None, client_capabilities: ClientCapabilities
    ) -> None:
        """Store what the client sent in the handshake, and the protocol version that was agreed on."""
        self.protocol_version = protocol_version
        self.client_info = client_info
        self.client_capabilities = client_capabilities
        self.handshake_done = True
        self.is_changed = True

    def reset_handshake(self) -> None:
        """Delete the values of a handshake that failed, so that the client can repeat the handshake."""
        self.protocol_version, self.client_info, self.client_capabilities = "", None, _NO_CAPABILITIES
        self.handshake_done = self.is_changed = False

    def set_initialized(self) -> None:
        """Record that the client sent `notifications/initialized`."""
        self.is_changed = self.is_changed or not self.is_ready
        self.is_ready = True
        if self._initialized is not None:
            self._initialized.set()

    @property
    def exit_stack(self) -> AsyncExitStack:
        """Exit stack that is closed when the connection ends."""
        if self._exit_stack is None:
            self._exit_stack = AsyncExitStack()
        return self._exit_stack

    def check_capability(self, capability: ClientCapabilities) -> bool:
        """Return whether the client declared every capability that is set in `capability`.

        >>> from weft.types.lifecycle import RootsCapability
        >>> connection = Connection.from_envelope("2031-01-01", None, ClientCapabilities(roots=RootsCapability()))
        >>> connection.check_capability(ClientCapabilities(roots=RootsCapability()))
        True
        """
        return covers(self.client_capabilities, capability)

    async def send_raw_request(
        self, method: str, params: Params = None, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Any:
        """Send a request outside of a call, and return its result. Raises `NoBackChannelError` if there is no channel.

        `on_progress` is called with each progress notification of the client. Each notification also extends the
        timeout.
        """
        return await self.outbound.send_raw_request(method, params, timeout=timeout, on_progress=on_progress)

    async def send_request(
        self, method: str, params: Params, result_type: type[T], *, timeout: float | None = None
    ) -> T:
        """Send a request and return its result, converted to `result_type`."""
        return msgspec.convert(await self.send_raw_request(method, params, timeout=timeout), result_type)

    async def list_roots(self, *, timeout: float | None = None) -> list[Root]:
        """Ask the client for its roots, outside of a call. Within a call, use `ctx.list_roots` instead.

        Raises the same errors as `send_raw_request`, and `QuestionFailed` for a malformed answer.
        """
        try:
            return (await self.send_request("roots/list", None, ListRootsResult, timeout=timeout)).roots
        except msgspec.ValidationError:
            raise QuestionFailed("The client's answer cannot be used: it is no list of roots.") from None

    async def ping(self, *, timeout: float | None = None) -> None:
        """Send a ping and wait for the answer. Raises the same errors as `send_raw_request`."""
        await self.send_raw_request("ping", timeout=timeout)

    async def notify(self, method: str, params: Params = None) -> None:
        """Send a notification to the client outside of a call. Never raises: an error is only logged."""
        try:
            await self.outbound.notify(method, params)
        except Exception as error:  # noqa: BLE001 - a broken stream is not the caller's fault
            log.debug("%s dropped: %s", method, type(error).__name__)

    @property
    def supports_pages(self) -> bool:
        """Whether the client can ask its user to open a web page (the capability `elicitation.url`)."""
        return self.check_capability(ClientCapabilities(elicitation=ElicitationCapability(url={})))

    async def notify_complete(self, page: str) -> None:
        """Notify the client that the user has finished on a web page. Never raises.

        `page` is the `elicitationId` of the page. Does nothing if the client does not support web pages.
        """
        if self.supports_pages:
            await self.notify(COMPLETE, {"elicitationId": page})

    async def close(self) -> None:
        """Close the exit stack. This is completed even if the calling task is cancelled meanwhile."""
        if self._exit_stack is None:
            return
        stack, self._exit_stack = self._exit_stack, None
        closing = asyncio.ensure_future(_unwind(stack))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])
            raise


async def _unwind(stack: AsyncExitStack) -> None:
    try:
        await stack.aclose()
    except BaseException:  # Clean-up is the user's code: even its SystemExit must not end the process.
        log.exception("cleaning up a connection failed")


def declared(capabilities: ClientCapabilities) -> dict[str, Any]:
    """Return the capabilities of a client as JSON. An empty `elicitation` is returned as support for forms.

    >>> from weft.types.lifecycle import ElicitationCapability
    >>> declared(ClientCapabilities(elicitation=ElicitationCapability()))
    {'elicitation': {'form': {}}}
    """
    found: dict[str, Any] = msgspec.to_builtins(capabilities)
    if found.get("elicitation") == {}:
        found["elicitation"] = {"form": {}}
    return found


def covers(capabilities: ClientCapabilities, wanted: ClientCapabilities) -> bool:
    """Return whether a client with these capabilities has declared every capability that is set in `wanted`."""
    return _covers(declared(capabilities), msgspec.to_builtins(wanted))


def _covers(declared: Any, wanted: Any) -> bool:
    """Return whether the JSON value `declared` contains `wanted`, recursively. False in `wanted` matches any value."""
    if is_object(wanted):
        return is_object(declared) and all(_covers(declared.get(key), value) for key, value in wanted.items())
    if is_array(wanted):
        return is_array(declared) and all(item in declared for item in wanted)
    return wanted is False or (declared == wanted and type(declared) is type(wanted))
