"""Every bound of Weft, with its default and its reason, in one place.

A limit that exists is enforced, and a test goes one past it. Give `Server(limits=Limits(...))` or
`Client(limits=ClientLimits(...))` to change one.
"""

from __future__ import annotations

import msgspec

__all__ = ["DEFAULT_CLIENT_LIMITS", "DEFAULT_LIMITS", "ClientLimits", "Limits"]

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
    json_values: int = 500_000  # values in a message; an array, an object and a value with a name count ten times
    number_digits: int = 1000  # digits of one number; CPython refuses to print more than 4,300
    id_bytes: int = 256  # a string id, or a progress token; integers stay within ±2**53
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
    stdio_linger_seconds: float = 50e-6  # how long stdio looks for the next line before it falls asleep; 0: not at all

    # How much at once.
    in_flight: int = 1000  # requests in the process
    bodies_bytes: int = 64 * MIB  # large bodies being read or waiting for their turn; a peer has what it leaves free
    large_messages_per_peer: int = 64  # those of one principal or address that wait for their turn
    in_flight_per_connection: int = 100  # requests on one stdio pipe, or of one session
    pipelined_requests: int = 32  # requests of one HTTP connection ahead of their turn; more are read when it comes
    threads: int = 40  # plain (not async) handlers running at the same time
    listen_streams: int = 1024  # open `subscriptions/listen` streams
    listen_streams_per_peer: int = 16  # of one principal or address
    listen_uris: int = 1024  # resources one stream listens to, or one session subscribes to
    listen_uris_bytes: int = 64 * 1024  # of them together: all are stored again with each that a session adds
    batch: int = 100  # messages in one array, where the revision has them
    input_rounds: int = 32  # times that a handler is run again for a client that is asked on the way
    asks_per_call: int = 100  # questions of one call in all: a loop with a model ends

    # How often a call may speak up before its answer, in a second; 0 is no limit.
    progress_per_second: int = 100
    log_messages_per_second: int = 1000

    # Sessions, of clients that open with a handshake.
    sessions: int = 10_000  # then the one that was idle longest ends
    sessions_per_peer: int = 100  # of one principal or address
    introduction_bytes: int = 64 * 1024  # what a client says of itself, kept as long as its session
    session_unused_seconds: float = 60.0  # opened, and nothing followed
    session_idle_seconds: float = 1800.0  # nothing under way, no stream open
    replay_seconds: float = 300.0  # how long what was sent on a stream can be asked for again
    replay_events: int = 256  # of one stream
    replay_bytes: int = 64 * MIB  # of all streams together

    # What a handler's questions may carry from round to round.
    state_bytes: int = 16 * 1024  # the sealed journal
    input_responses: int = 64  # answers in one call

    # What a peer is told of its mistakes.
    error_issues: int = 10
    error_bytes: int = 4 * 1024


DEFAULT_LIMITS = Limits()


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds a client lives in, whatever a server does.

    >>> ClientLimits(request_seconds=5).request_seconds
    5
    """

    # How long things may take, in seconds.
    connect_seconds: float = 10.0  # a connection, TLS included
    probe_seconds: float = 5.0  # the first question to a program that may know nothing of it; not over HTTP
    request_seconds: float = 60.0  # one request; progress starts it anew
    total_seconds: float = 600.0  # one request, whatever progress there is
    ask_seconds: float = 600.0  # a question of the server, answered by your function
    silence_seconds: float = 60.0  # a stream that gave signs of life, and gives none any more: it is taken for lost
    idle_seconds: float = 4.0  # a kept HTTP connection that is not used; Node's servers close theirs after 5
    close_seconds: float = 2.0  # a farewell at the end; also each step of ending a child process

    # What one message may be.
    message_bytes: int = 64 * MIB  # an answer, unpacked; a line of a child process
    event_bytes: int = 16 * MIB  # one server-sent event
    json_values: int = 5_000_000  # values in a message; an array, an object and a value with a name count ten times

    # How many.
    pages: int = 250  # of one list
    rounds: int = 10  # of questions before a call is answered
    input_requests: int = 64  # questions in one round
    asks_at_once: int = 16  # questions of the server that are being answered at the same time
    asks_waiting: int = 256  # and those in line behind them; more are not taken
    asks_bytes: int = 32 * MIB  # all of these together; more are not taken
    asks_per_minute: int = 600  # questions that a server may ask, one after the other; more are refused
    completions_per_second: int = 20  # suggestions that a server is asked for; those beyond wait
    redirects: int = 3  # all on the same origin
    resumptions: int = 5  # reconnections in a row without a new event, of a stream that broke
    changes_kept: int = 1024  # changes heard and not read yet; then the oldest are lost
    cache_entries: int = 1024
    cache_bytes: int = 16 * MIB


DEFAULT_CLIENT_LIMITS = ClientLimits()
