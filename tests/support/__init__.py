"""What the tests share: a server behind a real socket, a raw client, and the server that most tests talk to."""

from support.everything import PNG, make_server
from support.wire import (
    ACCEPT_BOTH,
    SERVER_INFO,
    VERSION,
    VERSIONS,
    Live,
    Response,
    ask,
    encode,
    headers_for,
    message,
    parse_sse,
    serve,
    start_request,
    until,
)
from weft.types.lifecycle import CLIENT_CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, PROTOCOL_VERSION_KEY

__all__ = [
    "ACCEPT_BOTH",
    "CLIENT_CAPABILITIES_KEY",
    "CLIENT_INFO_KEY",
    "LOG_LEVEL_KEY",
    "PNG",
    "PROTOCOL_VERSION_KEY",
    "SERVER_INFO",
    "VERSION",
    "VERSIONS",
    "Live",
    "Response",
    "ask",
    "encode",
    "headers_for",
    "make_server",
    "message",
    "parse_sse",
    "serve",
    "start_request",
    "until",
]
