"""Serve the methods that only sessions have (handshake, ping, log level, subscriptions), and read batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from weft.eras.base import log_level_reached
from weft.eras.session import DEFAULT_LEVEL, HANDSHAKE, AlreadyInitialized
from weft.errors import InvalidParams, InvalidRequest, ParseError, ProtocolError
from weft.jsonrpc import Frame, check_bounds, decode, encode_error
from weft.limits import Limits
from weft.server.calls.call import Call, Handler
from weft.types.base import EmptyResult
from weft.types.lifecycle import (
    InitializeResult,
    ListChangedCapability,
    ResourcesCapability,
    ServerCapabilities,
    SetLevelParams,
)
from weft.types.resources import SubscribeParams


async def _greet(call: Call) -> InitializeResult:
    """Answer the handshake. The version was settled by the era (L11-02)."""
    envelope, services = call.envelope, call.services
    if call.connection.handshake_done:  # by one that came before this one was answered
        raise AlreadyInitialized
    most = services.limits.introduction_bytes
    said = (envelope.client_info, envelope.client_capabilities)
    if sum(len(msgspec.json.encode(part)) for part in said if part is not None) > most:
        raise InvalidParams(
            f"Invalid params: `clientInfo` and `capabilities` have at most {most} bytes together, for they are kept "
            "with the session. Leave long texts out, and give icons as links."
        )
    call.connection.greet(envelope.revision.version, envelope.client_info, envelope.client_capabilities)
    call.undo = call.connection.ungreet
    heard = call.connection.has_standalone_channel
    return InitializeResult(
        protocol_version=envelope.revision.version,
        capabilities=services.capabilities if heard else _without_memory(services.capabilities),
        server_info=services.info,
        instructions=services.instructions,
    )


def _without_memory(capabilities: ServerCapabilities) -> ServerCapabilities:
    """What a server can do for a client of which it remembers nothing: nobody is to wait for what never comes."""
    silent = ListChangedCapability()
    return msgspec.structs.replace(
        capabilities,
        tools=capabilities.tools and silent,
        prompts=capabilities.prompts and silent,
        resources=capabilities.resources and ResourcesCapability(),
    )


async def _ping(_: Call) -> EmptyResult:
    return EmptyResult()


async def _set_level(call: Call) -> EmptyResult:
    """From which level on the session gets log messages (L11-33). Without one it is the default, for all there is."""
    connection, level = call.connection, cast("SetLevelParams", call.envelope.params).level
    if not connection.has_standalone_channel:
        if not log_level_reached(DEFAULT_LEVEL, level):  # it would get what it does not want
            raise InvalidRequest(
                "Invalid request: there is no session here that could remember a log level; messages are sent from "
                f"{DEFAULT_LEVEL!r} on."
            )
        return EmptyResult()
    if connection.log_level != level:
        connection.log_level = level
        connection.is_changed = True
    return EmptyResult()


async def _subscribe(call: Call) -> EmptyResult:
    """Have the session hear of what a resource holds (L11-34)."""
    connection, limits = call.connection, call.services.limits
    uri = cast("SubscribeParams", call.envelope.params).uri
    if not connection.has_standalone_channel:
        raise InvalidRequest("Invalid request: there is no session here that could hear of changes.")
    if uri in connection.subscribed_uris:
        return EmptyResult()
    if (size := len(uri.encode())) > limits.uri_bytes:
        raise InvalidParams(f"Invalid params: a URI has at most {limits.uri_bytes} bytes.")
    if len(connection.subscribed_uris) >= limits.listen_uris:
        raise InvalidParams(f"Invalid params: a session subscribes to at most {limits.listen_uris} resources.")
    if size + sum(len(one.encode()) for one in connection.subscribed_uris) > limits.listen_uris_bytes:
        raise InvalidParams(
            f"Invalid params: the URIs that a session subscribes to have at most {limits.listen_uris_bytes} bytes "
            "together. Unsubscribe from one first."
        )
    connection.subscribed_uris.add(uri)
    connection.is_changed = True
    return EmptyResult()


async def _unsubscribe(call: Call) -> EmptyResult:
    """Not to hear of it any more; what was not subscribed to is nothing to complain about."""
    connection, uri = call.connection, cast("SubscribeParams", call.envelope.params).uri
    if uri in connection.subscribed_uris:
        connection.subscribed_uris.remove(uri)
        connection.is_changed = True
    return EmptyResult()


HANDLERS: Mapping[str, Handler] = {
    HANDSHAKE: _greet,
    "ping": _ping,
    "logging/setLevel": _set_level,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
}


def read_batch(body: bytes, limits: Limits) -> list[Frame | bytes]:
    """Return the messages of an array; a part that is no message becomes its encoded refusal."""
    check_bounds(body, limits)
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise ParseError("Parse error: the message is not valid JSON in UTF-8.") from None
    if not parts or len(parts) > limits.batch:
        raise InvalidRequest(f"Invalid request: a batch has at least one message and at most {limits.batch}.")
    return [_read_part(bytes(part), limits) for part in parts]


def _read_part(part: bytes, limits: Limits) -> Frame | bytes:
    try:
        frame = decode(part, limits)
    except ProtocolError as error:
        return encode_error(error.request_id, error.code, error.message)
    if frame.method == HANDSHAKE and frame.is_request:  # L03-02
        return encode_error(
            frame.reply_id, InvalidRequest.code, "Invalid request: the handshake is not part of a batch."
        )
    return frame
