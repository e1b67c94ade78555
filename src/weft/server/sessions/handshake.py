"""What only sessions have: the handshake, ping, and what a client has the server remember."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from weft.eras.base import log_level_reached
from weft.eras.session import DEFAULT_LEVEL, HANDSHAKE, AlreadyInitialized
from weft.errors import InvalidParams, InvalidRequest
from weft.server.calls.call import Call
from weft.types.base import EmptyResult
from weft.types.lifecycle import (
    InitializeResult,
    ListChangedCapability,
    ResourcesCapability,
    ServerCapabilities,
    SetLevelParams,
)
from weft.types.resources import SubscribeParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.server.runtime.dispatch import Handler


async def _greet(call: Call) -> InitializeResult:
    """Answer the handshake. The version was settled by the era (L11-02)."""
    envelope, server = call.envelope, call.server
    if call.connection.handshake_done:  # by one that came before this one was answered
        raise AlreadyInitialized
    most = server.limits.introduction_bytes
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
        capabilities=server.capabilities if heard else _without_memory(server.capabilities),
        server_info=server.info,
        instructions=server.instructions,
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
    connection, limits = call.connection, call.server.limits
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
