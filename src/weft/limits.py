"""Every bound of Weft, with its default and its reason, in one place.

A limit that exists is enforced, and a test goes one past it. Give `Server(limits=Limits(...))` to change one.
"""

from __future__ import annotations

import msgspec

__all__ = ["DEFAULT_LIMITS", "Limits"]

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds a server lives in.

    >>> Limits(body_bytes=64_000).body_bytes
    64000
    """

    # What one message may be.
    body_bytes: int = 4 * MIB  # a request body: 413 before it is buffered
    line_bytes: int = 4 * MIB  # a line on stdin
    json_depth: int = 128  # nesting of arrays and objects
    number_digits: int = 1000  # digits of one number; CPython refuses to print more than 4,300
    id_bytes: int = 256  # a string id; integer ids stay within ±2**53
    uri_bytes: int = 8 * 1024
    header_bytes: int = 64 * 1024
    header_fields: int = 128

    # How long things may take, in seconds.
    head_seconds: float = 10.0  # the head of a request (our runner)
    body_seconds: float = 30.0  # the body of a request, all of it
    write_seconds: float = 10.0  # one write to a peer that does not read
    drain_seconds: float = 5.0  # in-flight requests at shutdown
    ask_seconds: float = 600.0  # a question to the user
    keep_alive_seconds: float = 15.0  # between two signs of life on an open stream

    # How much at once.
    in_flight: int = 1000  # requests in the process
    in_flight_per_connection: int = 100  # requests on one stdio pipe
    threads: int = 40  # plain (not async) handlers running at the same time
    listen_streams: int = 1024  # open `subscriptions/listen` streams
    listen_streams_per_peer: int = 16  # of one principal or address
    listen_uris: int = 1024  # resources one stream listens to

    # What a handler's questions may carry from round to round.
    state_bytes: int = 16 * 1024  # the sealed journal
    input_responses: int = 64  # answers in one call

    # What a peer is told of its mistakes.
    error_issues: int = 10
    error_bytes: int = 4 * 1024


DEFAULT_LIMITS = Limits()
