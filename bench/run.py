"""Measures Weft beside mcp, fastmcp, a bare server and itself, in one run, and writes RESULTS.md and results.svg.

    python bench/run.py

BENCH_SECONDS (2) is the length of one sample, BENCH_ROUNDS (5) how often each is taken. In every round all servers
are measured one after the other, and ratios are taken within a round: absolute numbers wander, ratios hold.
The exit code is 1 when a target was missed. On a machine that is busy nothing is measured; BENCH_ANYWAY=1 measures,
prints, and writes nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from client_load import AT_ONCE, calls_here, calls_over_http, first_call_seconds, import_seconds, instant_server
from fleet_measures import MANY_STREAMS, measure_beside_redis, measure_fleet, measure_scaling, measure_ways
from http_load import CONNECTIONS, WORK, bookings, check, measure_pair, throughput
from listen_load import STREAMS, measure_streams
from measures import ROUNDS, SECONDS, Ceiling, Comparison, Measure, Target, interleave
from processes import (
    Placement,
    free_port,
    http_server,
    pinned,
    processor_seconds,
    resident_mib,
    wall_seconds,
)
from redis_load import KEPT, redis_server, two_workers
from report import write_markdown, write_picture
from session_load import IDLE, SESSIONS, idle_kib, openings, sessions_of, throughput_of
from stdio_load import WINDOW, first_answer_seconds, one_by_one, pipelined
from subjects import (
    BARE,
    BARE_STDIO,
    FASTMCP,
    MCP,
    WEFT,
    WEFT_AWAKE_LESS,
    WEFT_BESIDE_FASTAPI,
    WEFT_WITH_MIDDLEWARE,
    Subject,
    asking,
    keeping_sessions,
    mounted,
    protected,
    tuned,
    with_redis,
)
from task_load import measure_tasks
from wire import HEADERS

__all__ = ["main"]

SDKS = [WEFT, MCP, FASTMCP]
MANY = 1000
MOST_LOAD = 0.5  # of the machine before a run: other work would be measured along
CHANGES = 5  # told to all listen streams, one after the other
WITH_REDIS = "Weft with Redis"
# Which servers stand in the columns of a row: the peers as pip installs them, or at their quickest.
AS_INSTALLED = {subject.name: subject.name for subject in (*SDKS, BARE)}
AT_BEST = {WEFT.name: WEFT.name, **{tuned(peer).name: peer.name for peer in (MCP, FASTMCP)}, BARE.name: BARE.name}


def say(text: str) -> None:
    print(text, flush=True)


def measure_http() -> list[Measure]:
    """Throughput of stateless calls, and the memory of a server that has answered its first one."""
    subjects = [*SDKS, tuned(MCP), tuned(FASTMCP), BARE]
    ports: dict[str, int] = {subject.name: free_port() for subject in subjects}
    pids: dict[str, int] = {}
    memory: dict[str, list[float]] = {}
    per_processor_second: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    failed: Counter[str] = Counter()

    def sample(subject: Subject) -> float:
        before = processor_seconds(pids[subject.name])
        facts = throughput(ports[subject.name], SECONDS)
        used = processor_seconds(pids[subject.name]) - before
        per_processor_second[subject.name].append(facts["completed"] / used)
        failed[subject.name] += int(facts["refused"] + facts["broken"])
        return facts["per_second"]

    with ExitStack() as stack:
        for subject in subjects:
            port = ports[subject.name]
            command = subject.command("--http", str(port))
            pids[subject.name] = stack.enter_context(http_server(command, port, subject.environment)).pid
            check(port, subject.name)
            memory[subject.name] = [resident_mib(pids[subject.name])]
            throughput(port, 1)  # warm
        samples = interleave(subjects, ROUNDS, sample)

    title = f"HTTP tools/call, {CONNECTIONS} connections"
    installed = f"{title}, as installed by their own run()"
    notes = [f"{name}: {count} requests failed" for name, count in failed.items() if count]
    everything = Measure(title, "calls/s", samples, notes=notes)
    effort = Measure(title, "calls per second of its processor", per_processor_second)
    return [
        everything.narrowed(f"{title}, peers tuned", AT_BEST),
        everything.narrowed(installed, AS_INSTALLED, [Target(MCP.name, 12), Target(BARE.name, 0.6)]),
        effort.narrowed(installed, AS_INSTALLED),
        Measure("resident memory after the first answer", "MiB", memory).narrowed(
            "resident memory after the first answer", AS_INSTALLED
        ),
    ]


def measure_mounted() -> Measure:
    """Throughput under `uvicorn module:app`, with nothing chosen: its access log is on."""
    subjects = [mounted(subject) for subject in (*SDKS, BARE)]
    ports: dict[str, int] = {subject.name: free_port() for subject in subjects}
    with ExitStack() as stack:
        for subject in subjects:
            port = ports[subject.name]
            stack.enter_context(http_server(subject.command("--port", str(port)), port))
            check(port, subject.name)
            throughput(port, 1)  # warm
        samples = interleave(subjects, ROUNDS, lambda subject: throughput(ports[subject.name], SECONDS)["per_second"])
    title = f"HTTP tools/call, {CONNECTIONS} connections, all under plain `uvicorn module:app`"
    return Measure(title, "calls/s", samples, [Target(MCP.name, 10), Target(BARE.name, 0.7)])


def measure_stdio() -> list[Measure]:
    """Calls over the pipes of a child, and how soon the first is answered."""
    subjects = [*SDKS, BARE_STDIO]
    single = {
        placement: interleave(
            subjects, ROUNDS, lambda subject, at=placement: one_by_one(subject.command(), SECONDS, at)
        )
        for placement in Placement
    }
    asleep = interleave(
        [WEFT_AWAKE_LESS, MCP, FASTMCP],
        ROUNDS,
        lambda subject: one_by_one(subject.command(), SECONDS, Placement.FREE),
    )
    many = interleave(subjects, ROUNDS, lambda subject: pipelined(subject.command(), SECONDS))
    first = interleave(SDKS, ROUNDS, lambda subject: first_answer_seconds(subject.command()))
    return [
        *(
            Measure(
                f"stdio tools/call, one by one, {placement.value}",
                "calls/s",
                samples,
                [Target(MCP.name, 10)] if placement is Placement.FREE else [],
            )
            for placement, samples in single.items()
        ),
        Measure("stdio tools/call, one by one, not pinned, Weft with stdio_linger_seconds=0", "calls/s", asleep),
        Measure(f"stdio tools/call, {WINDOW} in flight", "calls/s", many, [Target(MCP.name, 15)]),
        Measure("start to first answer over stdio", "s", first, digits=3),
    ]


def measure_asking() -> Measure:
    """Calls that ask one question: two requests each, that know of each other only by the sealed state."""
    subjects = [asking(WEFT), asking(MCP)]
    ports = {subject.name: free_port() for subject in subjects}
    with ExitStack() as stack:
        for subject in subjects:
            port = ports[subject.name]
            stack.enter_context(http_server(subject.command("--http", str(port)), port))
            bookings(port, 1)  # warm
        samples = interleave(subjects, ROUNDS, lambda subject: bookings(ports[subject.name], SECONDS)["per_second"])
    return Measure(f"HTTP bookings with one question, {CONNECTIONS} connections", "bookings/s", samples)


def measure_listening() -> list[Measure]:
    """What listen streams weigh that say nothing, and how soon all of them hear of one change."""
    subjects = [asking(WEFT), asking(MCP)]
    milliseconds: dict[str, list[float]] = {subject.name: [] for subject in subjects}

    def sample(subject: Subject) -> float:
        port = free_port()
        with http_server(subject.command("--http", str(port)), port) as process:
            found = measure_streams([port], [process.pid], STREAMS, CHANGES)
        milliseconds[subject.name].append(median(found.change_milliseconds))
        return found.kib_each

    memory = interleave(subjects, min(ROUNDS, 3), sample)
    ceiling = Ceiling(20, "KiB")
    return [
        Measure("memory of an idle listen stream", "KiB", memory, [ceiling], digits=1),
        Measure(f"one change told to {STREAMS:,} listen streams", "ms", milliseconds),
    ]


def measure_session_calls() -> list[Measure]:
    """Calls of clients that opened with a handshake, in sessions that are there already.

    With Redis, the sessions were opened at another worker than the one that serves the calls.
    """
    subjects = [keeping_sessions(subject) for subject in (*SDKS, tuned(MCP), tuned(FASTMCP))]
    shared = replace(WEFT, name=WITH_REDIS)
    ports = {subject.name: free_port() for subject in subjects}
    sessions: dict[str, list[str]] = {}
    with ExitStack() as stack:
        _, calls, opens = stack.enter_context(two_workers(keeping_sessions(WEFT)))
        ports[shared.name], sessions[shared.name] = calls.port, sessions_of(opens.port)
        throughput_of(calls.port, sessions[shared.name], 1)  # warm
        for subject in subjects:
            port = ports[subject.name]
            stack.enter_context(http_server(subject.command("--http", str(port)), port, subject.environment))
            sessions[subject.name] = sessions_of(port)
            throughput_of(port, sessions[subject.name], 1)  # warm
        samples = interleave(
            [*subjects, shared],
            ROUNDS,
            lambda subject: throughput_of(ports[subject.name], sessions[subject.name], SECONDS)["per_second"],
        )
    title = f"HTTP tools/call in {SESSIONS} sessions"
    everything = Measure(title, "calls/s", samples)
    installed = {subject.name: subject.name for subject in SDKS}
    peers = {peer.name: peer.name for peer in (MCP, FASTMCP)}
    best_peers = {tuned(peer).name: peer.name for peer in (MCP, FASTMCP)}
    redis = f"{title}, Weft with Redis, peers in memory and"
    return [
        everything.narrowed(f"{title}, peers tuned", {WEFT.name: WEFT.name, **best_peers}),
        everything.narrowed(f"{title}, as installed by their own run()", installed, [Target(MCP.name, 10)]),
        everything.narrowed(f"{redis} tuned", {WITH_REDIS: WEFT.name, **best_peers}),
        everything.narrowed(f"{redis} as installed", {WITH_REDIS: WEFT.name, **peers}, [Target(MCP.name, 5)]),
    ]


def measure_sessions() -> list[Measure]:
    """How fast sessions are opened, and what one weighs that is not used; each time on a server that has none."""
    subjects = [keeping_sessions(subject) for subject in SDKS]
    shared = replace(subjects[0], name=WITH_REDIS)

    def opened(subject: Subject) -> float:
        port = free_port()
        with ExitStack() as stack:
            environment = subject.environment
            if subject is shared:
                environment = with_redis(subject, stack.enter_context(redis_server()).url).environment
            stack.enter_context(http_server(subject.command("--http", str(port)), port, environment))
            sessions_of(port)  # warm
            return openings(port, SECONDS)

    def weighed(subject: Subject) -> float:
        port = free_port()
        with http_server(subject.command("--http", str(port)), port) as process:
            return idle_kib(port, process.pid)

    opening = Measure("", "sessions/s", interleave([*subjects, shared], ROUNDS, opened))
    idle = interleave(subjects, min(ROUNDS, 3), weighed)
    peers = {peer.name: peer.name for peer in (MCP, FASTMCP)}
    return [
        opening.narrowed("HTTP sessions opened", {WEFT.name: WEFT.name, **peers}, [Target(MCP.name, 8)]),
        opening.narrowed("HTTP sessions opened, Weft with Redis, peers in memory", {WITH_REDIS: WEFT.name, **peers}),
        Measure(f"memory of an idle session, of {IDLE:,}", "KiB", idle, [Ceiling(6, "KiB")], digits=1),
    ]


def measure_clients() -> list[Measure]:
    """The clients: over HTTP against a server that answers at once, in one process with a server, and their import."""
    with instant_server() as url:
        single = interleave(SDKS, ROUNDS, lambda subject: calls_over_http(subject, url, 1, SECONDS))
        many = interleave(SDKS, ROUNDS, lambda subject: calls_over_http(subject, url, AT_ONCE, SECONDS))
        first = interleave(SDKS, ROUNDS, lambda subject: first_call_seconds(subject, url))
    here = interleave(SDKS, ROUNDS, lambda subject: calls_here(subject, SECONDS))
    imported = interleave(SDKS, ROUNDS + 2, import_seconds)
    return [
        Measure("client: HTTP tools/call, one by one", "calls/s", single, [Target(MCP.name, 3)]),
        Measure(f"client: HTTP tools/call, {AT_ONCE} at once", "calls/s", many, [Target(MCP.name, 6)]),
        Measure("client: tools/call of a server in the same process", "calls/s", here, [Target(MCP.name, 10)]),
        Measure("client: start to first answer over HTTP", "s", first, digits=3),
        Measure("client: import", "s", imported, [Target(MCP.name, 0.25, at_least=False)], digits=3),
    ]


def measure_import() -> Measure:
    """A fresh interpreter that imports the package, defines one tool, and ends."""
    subjects = [*SDKS, Subject("bare interpreter", WEFT.python, "", "", "pass")]

    def sample(subject: Subject) -> float:
        return wall_seconds([subject.python, "-c", subject.define])

    for subject in subjects:
        sample(subject)  # writes the .pyc files
    samples = interleave(subjects, ROUNDS + 2, sample)
    return Measure("import and define one tool", "s", samples, [Target(MCP.name, 0.25, at_least=False)], digits=3)


def measure_tokens() -> Comparison:
    """The same calls on an open server, and on one that verifies the token of each."""
    free, guarded = Subject("open", "", "", ""), Subject("with a token", "", "", "")
    WORK.mkdir(parents=True, exist_ok=True)
    token = WORK / "token"
    with ExitStack() as stack:
        ports = {free.name: free_port(), guarded.name: free_port()}
        commands = {
            free.name: WEFT.command("--http", str(ports[free.name])),
            guarded.name: protected(WEFT).command("--http", str(ports[guarded.name]), "--token", str(token)),
        }
        headers = {free.name: HEADERS}
        for name, command in commands.items():
            stack.enter_context(http_server(command, ports[name]))
            if name == guarded.name:
                headers[name] = {**HEADERS, "Authorization": f"Bearer {token.read_text()}"}
            check(ports[name], name, headers[name])
            throughput(ports[name], 1, headers[name])  # warm
        samples = interleave(
            [free, guarded],
            ROUNDS * 2,
            lambda subject: throughput(ports[subject.name], SECONDS, headers[subject.name])["per_second"],
        )
    token.unlink()
    # A call with a token takes at most a quarter longer.
    return Comparison(
        Measure("Weft: HTTP tools/call by whether a JWT is verified", "calls/s", samples), guarded.name, free.name, 0.8
    )


def measure_surroundings() -> list[Comparison]:
    """The same calls where OpenTelemetry is installed and nothing listens; and with a middleware that does nothing."""
    return [measure_beside_plain(WEFT_BESIDE_FASTAPI, 0.98), measure_beside_plain(WEFT_WITH_MIDDLEWARE, 0.93)]


def measure_beside_plain(other: Subject, limit: float) -> Comparison:
    samples: dict[str, list[float]] = {WEFT.name: [], other.name: []}
    for _ in range(2 * ROUNDS):
        for name, best in measure_pair(WEFT, other)[0].items():
            samples[name].append(best)
    measure = Measure("Weft: HTTP tools/call by what is around it", "calls/s", samples)
    return Comparison(measure, other.name, WEFT.name, limit)


def measure_flatness() -> Comparison:
    """The same calls on a server with one tool and on one with a thousand."""
    one = replace(WEFT, name="1 tool")
    many = replace(WEFT, name=f"{MANY} tools", options=("--tools", str(MANY)))
    samples: dict[str, list[float]] = {one.name: [], many.name: []}
    listing: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        found, times = measure_pair(one, many, listed=many)
        listing.append(times)
        for name, best in found.items():
            samples[name].append(best)
    first, later = (median(column) for column in zip(*listing, strict=True))
    note = f"tools/list of {MANY} tools: the first {first:.1f} ms, later ones {later:.1f} ms"
    # 5 % less is still flat.
    measure = Measure("Weft: HTTP tools/call by number of tools", "calls/s", samples, notes=[note])
    return Comparison(measure, many.name, one.name, 0.95)


def main() -> int:
    for needed in (WEFT.python, MCP.python, FASTMCP.python):
        if not Path(needed).exists():
            sys.exit("The peers are not installed: run 'make bench', which fetches them.")
    for program in ("wrk", "redis-server"):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed: run 'make bench' as root, or 'apt-get install {program}'.")
    if subprocess.run([WEFT.python, "-c", "import redis, hiredis"], check=False).returncode:
        sys.exit("The package redis is not installed beside Weft: run 'make bench', which fetches it.")
    load = os.getloadavg()[0]  # before this run adds its own
    writes = load <= MOST_LOAD
    if not writes and os.environ.get("BENCH_ANYWAY") != "1":
        sys.exit(
            f"The load of this machine is {load:.2f}, above {MOST_LOAD}: other work would be measured along. Wait "
            "until it is idle, or set BENCH_ANYWAY=1 to measure without writing the results."
        )
    say(f"{ROUNDS} rounds of {SECONDS:g} s a sample; the servers run as {' '.join(pinned(['python']))}")
    say("HTTP ...")
    measures = measure_http()
    say("uvicorn ...")
    measures.insert(1, measure_mounted())
    say("stdio ...")
    measures += measure_stdio()
    say("questions ...")
    measures.append(measure_asking())
    say(f"{STREAMS} listen streams ...")
    measures += measure_listening()
    say(f"{SESSIONS} sessions ...")
    measures += measure_session_calls()
    say(f"opening sessions, {IDLE} idle ones ...")
    measures += measure_sessions()
    say(f"{MANY_STREAMS} listen streams at 2 workers, {KEPT} sessions in Redis ...")
    measures += measure_fleet()
    say("tasks ...")
    measures += measure_tasks()
    say("clients ...")
    measures += measure_clients()
    say("import ...")
    measures.append(measure_import())
    say(f"{MANY} tools, and tokens ...")
    comparisons = [measure_flatness(), measure_tokens(), *measure_surroundings()]
    say("Redis, and 2 workers ...")
    comparisons += [measure_beside_redis(), *measure_scaling(), *measure_ways()]
    here = Path(__file__).resolve().parent if writes else WORK
    verdicts = write_markdown(here / "RESULTS.md", measures, comparisons, load)
    write_picture(here / "results.svg", measures, comparisons)
    say((here / "RESULTS.md").read_text())
    return int(not all(verdicts))


if __name__ == "__main__":
    sys.exit(main())
