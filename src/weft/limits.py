"""Define all limits that a program can change, with their defaults.

To change a limit, write `Server(limits=Limits(...))` or `Client(limits=ClientLimits(...))`.
"""

from __future__ import annotations

import msgspec

__all__ = ["DEFAULT_CLIENT_LIMITS", "DEFAULT_LIMITS", "ClientLimits", "Limits"]

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a server.

    >>> Limits(body_bytes=64_000).body_bytes
    64000
    """

    # Size of one message.
    body_bytes: int = 4 * MIB  # an HTTP request body; a larger body is answered with 413 before it is buffered
    line_bytes: int = 4 * MIB  # a line on stdin
    json_depth: int = 128  # nesting of arrays and objects
    json_values: int = 500_000  # values in a message; an array, an object and an object member count ten times
    number_digits: int = 1000  # digits of one number; CPython refuses to print more than 4,300
    id_bytes: int = 256  # a string id, or a progress token; integers stay within ±2**53
    uri_bytes: int = 8 * 1024
    header_bytes: int = 64 * 1024
    header_fields: int = 128

    # Time, in seconds.
    head_seconds: float = 10.0  # to receive the head of a request (with Weft's own runner)
    body_seconds: float = 30.0  # to receive the whole body of a request
    write_seconds: float = 10.0  # to write to a peer that does not read
    drain_seconds: float = 5.0  # for running requests to finish when the server stops
    drain_notice_seconds: float = 0.0  # between SIGTERM and the end of accepting connections, for load balancers
    ask_seconds: float = 600.0  # for a client to answer a question of the server
    keep_alive_seconds: float = 15.0  # between two keep-alive messages on an open stream
    stdio_linger_seconds: float = 50e-6  # how long stdio polls for the next line before it waits; 0: no polling

    # Maximum numbers at the same time.
    in_flight: int = 1000  # requests in the process
    bodies_bytes: int = 64 * MIB  # large bodies being read or queued; a peer may use half of what others leave free
    large_messages_per_peer: int = 64  # queued large bodies of one principal or address
    in_flight_per_connection: int = 100  # requests on one stdio pipe, or of one session
    pipelined_requests: int = 32  # requests of one HTTP connection that are read before the first is answered
    threads: int = 40  # sync handlers running at the same time
    listen_streams: int = 1024  # open `subscriptions/listen` streams
    listen_streams_per_peer: int = 16  # open listen streams of one principal or address
    listen_uris: int = 1024  # resources that one stream or one session subscribes to
    listen_uris_bytes: int = 64 * 1024  # total length of these URIs
    listen_tasks: int = 256  # tasks that one listen stream subscribes to
    batch: int = 100  # messages in one batch (array), in protocol versions that have batches
    input_rounds: int = 32  # rounds of questions in one call
    asks_per_call: int = 100  # questions of one call, in all rounds

    # HTTP requests of one principal or address, at all workers that share a backend; 0: no limit.
    requests_per_minute: int = 0  # beyond it a request is answered with 429
    requests_at_once: int = 0  # at the same time, without listen streams and `tasks/result`; beyond it: 429

    # Messages of one call before its answer, per second; 0: no limit.
    progress_per_second: int = 100
    log_messages_per_second: int = 1000

    # Sessions of clients that begin with a handshake.
    sessions: int = 10_000  # that a process has opened; if there are more, the one that was idle longest ends
    sessions_per_peer: int = 100  # sessions of one principal or address
    introduction_bytes: int = 64 * 1024  # name and capabilities of a client, stored with its session
    session_unused_seconds: float = 60.0  # until a session ends if no request has followed its handshake
    session_idle_seconds: float = 1800.0  # until a session ends if it has no running request and no open stream
    replay_seconds: float = 300.0  # how long events are stored after the last one, for clients that reconnect
    replay_events: int = 256  # stored events of one stream
    replay_bytes: int = 64 * MIB  # stored events of all streams together

    # State of a call between its rounds.
    state_bytes: int = 16 * 1024  # the encrypted journal (`requestState`)
    input_responses: int = 64  # answers in one request

    # Tasks: calls that go on after their answer.
    tasks: int = 20_000  # that a process has created and that have not expired; a caller may have half of the rest
    tasks_per_peer: int = 2_000  # of one principal or address that have not expired, at all workers
    tasks_at_once: int = 100  # whose handlers run in the process; further ones wait
    task_threads: int = 100  # sync handlers of tasks running at the same time
    task_seconds: float = 86_400.0  # the longest time to live
    task_kept_seconds: float = 60.0  # how long a task that has ended can be read at least
    task_steps: int = 10_000  # calls of `ctx.once` in one task
    task_bytes: int = 4 * MIB  # all answers and results of `ctx.once` of one task; also its result
    tasks_bytes: int = 256 * MIB  # what the process has stored of tasks; a caller may have half of the rest
    task_waits: int = 1024  # requests `tasks/result` that wait; a caller may have half of the rest
    task_restarts: int = 5  # workers in a row that die while they run a task, without a new result of `ctx.once`

    # Errors that are sent to a peer.
    error_issues: int = 10  # invalid values that one error lists
    error_bytes: int = 4 * 1024


DEFAULT_LIMITS = Limits()


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a client.

    >>> ClientLimits(request_seconds=5).request_seconds
    5
    """

    # Time, in seconds.
    connect_seconds: float = 10.0  # to connect, with TLS
    probe_seconds: float = 5.0  # for a child process to answer the first request, which it may not understand
    request_seconds: float = 60.0  # for one request; each progress message restarts this time
    total_seconds: float = 600.0  # for one request in total, with all progress messages
    ask_seconds: float = 600.0  # for the program's function to answer a question of the server
    task_seconds: float = 86_400.0  # for a task in total, from the call to its result
    task_lost_seconds: float = 120.0  # without any answer of the server that has a task, until waiting for it fails
    silence_seconds: float = 60.0  # without a message, until a stream that sends keep-alives counts as lost
    idle_seconds: float = 4.0  # how long an unused HTTP connection stays open; Node.js servers close it after 5 s
    close_seconds: float = 2.0  # to end a session; also for each step of ending a child process

    # Size of one message.
    message_bytes: int = 64 * MIB  # a decompressed answer; a line of a child process
    event_bytes: int = 16 * MIB  # one server-sent event
    json_values: int = 5_000_000  # values in a message; an array, an object and an object member count ten times

    # Numbers.
    pages: int = 250  # pages of one list
    rounds: int = 10  # rounds of questions before a call is answered
    input_requests: int = 64  # questions in one round
    asks_at_once: int = 16  # questions of the server that are answered at the same time
    asks_waiting: int = 256  # further questions that wait; more are refused
    asks_bytes: int = 32 * MIB  # total size of these questions; more are refused
    asks_per_minute: int = 600  # questions of the server; more are refused
    completions_per_second: int = 20  # completion requests to a server; further requests wait
    redirects: int = 3  # redirects, all on the same origin
    task_streams: int = 16  # tasks whose changes the server sends on a stream at the same time; others are polled
    tasks_served: int = 64  # questions of the server that it wants answered as tasks, until they expire
    resumptions: int = 5  # consecutive reconnections of a broken stream without a new event
    changes_kept: int = 1024  # changes that the program has not read yet; if there are more, the oldest are dropped
    cache_entries: int = 1024
    cache_bytes: int = 16 * MIB


DEFAULT_CLIENT_LIMITS = ClientLimits()
