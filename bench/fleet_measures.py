"""Measures of Weft with several workers, and with a backend in Redis."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from http_load import CONNECTIONS, check, measure_pair, throughput
from listen_load import change_milliseconds, measure_streams
from measures import ROUNDS, SECONDS, Ceiling, Comparison, Measure, interleave
from processes import free_port, http_server, spread_workers
from redis_load import KEPT, asking_milliseconds, measure_kept, redis_server, two_workers
from subjects import BARE, WEFT, Subject, asking, keeping_sessions, mounted, with_redis, working

__all__ = ["MANY_STREAMS", "measure_beside_redis", "measure_fleet", "measure_scaling", "measure_ways"]

MANY_STREAMS = 5000  # at two workers
CHANGES = 5  # told to all listen streams, one after the other
TIMES = 200  # a change or a question, for the median of one sample
IN_MEMORY, IN_REDIS = Subject("one process, memory", "", "", ""), Subject("two processes, Redis", "", "", "")


def measure_beside_redis() -> Comparison:
    """The same stateless calls, which touch no shared state, with the backend in memory and in Redis."""
    with redis_server() as redis:
        other = with_redis(WEFT, redis.url)
        samples: dict[str, list[float]] = {WEFT.name: [], other.name: []}
        for _ in range(2 * ROUNDS):
            for name, best in measure_pair(WEFT, other)[0].items():
                samples[name].append(best)
    measure = Measure("Weft: HTTP tools/call by backend", "calls/s", samples)
    return Comparison(measure, other.name, WEFT.name, 0.97)


def measure_fleet() -> list[Measure]:
    """What listen streams and sessions weigh at two workers that share a Redis, and how soon all hear of a change."""
    rounds = min(ROUNDS, 3)
    milliseconds: list[float] = []
    streams: list[float] = []
    for _ in range(rounds):
        with two_workers(asking(WEFT)) as (_, one, other):
            found = measure_streams([one.port, other.port], [one.pid, other.pid], MANY_STREAMS, CHANGES)
        milliseconds.append(median(found.change_milliseconds))
        streams.append(found.kib_each)
    kept = [measure_kept(keeping_sessions(WEFT)) for _ in range(rounds)]
    at_two = "at 2 workers with Redis"
    session, of_many = "memory of an idle session with Redis", f"of {KEPT:,}"
    in_redis, at_its_worker, elsewhere = (
        {WEFT.name: column}
        for column in zip(*((one.in_redis, one.at_its_worker, one.elsewhere) for one in kept), strict=True)
    )
    return [
        Measure(f"one change told to {MANY_STREAMS:,} listen streams {at_two}", "ms", {WEFT.name: milliseconds}),
        Measure(
            f"memory of an idle listen stream, of {MANY_STREAMS:,} {at_two}", "KiB", {WEFT.name: streams}, digits=1
        ),
        Measure(f"{session}, in Redis, {of_many}", "KiB", in_redis, digits=2),
        Measure(f"{session}, at the worker that opened it, {of_many}", "KiB", at_its_worker, digits=2),
        Measure(
            f"{session}, at a worker that does not serve it, {of_many}", "KiB", elsewhere, [Ceiling(1, "KiB")], digits=2
        ),
    ]


def measure_ways() -> list[Comparison]:
    """How long it takes until a change is heard and a question answered: in one process, and between two."""
    heard: dict[str, list[float]] = {IN_MEMORY.name: [], IN_REDIS.name: []}

    def sample(subject: Subject) -> float:
        with ExitStack() as stack:
            if subject is IN_REDIS:
                _, one, other = stack.enter_context(two_workers(asking(WEFT)))
                first, second = one.port, other.port
            else:
                first = second = free_port()
                stack.enter_context(http_server(asking(WEFT).command("--http", str(first)), first))
            for times in (TIMES // 10, TIMES):  # first to warm up
                heard_now = change_milliseconds(first, second, times)
                asked_now = asking_milliseconds(first, second, times)
        heard[subject.name].append(heard_now)
        return asked_now

    asked = interleave([IN_MEMORY, IN_REDIS], ROUNDS, sample)
    titles = {
        "Weft: from asking for a change to hearing of it on a listen stream": heard,
        "Weft: a call in a session that asks one question, which is answered in a request of its own": asked,
    }
    return [
        Comparison(Measure(title, "ms", samples, digits=2), IN_REDIS.name, IN_MEMORY.name, is_drawn=True)
        for title, samples in titles.items()
    ]


def measure_scaling() -> list[Comparison]:
    """Calls per second of two workers on two cores, and of one; with work in each call, and without."""
    with redis_server() as redis:
        return [measure_workers(redis.url, has_work=True), measure_workers(redis.url, has_work=False)]


def measure_workers(url: str, *, has_work: bool) -> Comparison:
    """Weft and the bare server, each with one worker and with two.

    One worker has a core for itself, and wrk the other. Two workers have a core each, and wrk takes its time from both.
    """
    weft, bare = (working(WEFT), working(BARE)) if has_work else (WEFT, BARE)
    weft = with_redis(weft, url)
    bare = mounted(bare)
    bare = replace(bare, options=(*bare.options, "--lifespan", "off", "--log-level", "warning", "--no-access-log"))
    subjects = {
        f"{name}{count} worker{'s' * (count > 1)}": (subject, count, option)
        for name, subject, option in (("", weft, "--http"), ("bare with ", bare, "--port"))
        for count in (1, 2)
    }
    ports = {name: free_port() for name in subjects}
    load_share: dict[str, list[float]] = {name: [] for name in subjects}

    def sample(one: Subject) -> float:
        is_free = subjects[one.name][1] > 1
        facts = throughput(ports[one.name], SECONDS, is_free=is_free)
        load_share[one.name].append(facts["load_seconds"] / facts["seconds"])
        return facts["per_second"]

    with ExitStack() as stack:
        for name, (subject, count, option) in subjects.items():
            command = subject.command(option, str(ports[name]), *(("--workers", str(count)) if count > 1 else ()))
            process = stack.enter_context(http_server(command, ports[name], subject.environment))
            if count > 1:
                spread_workers(process.pid, count)
            check(ports[name], name)
            throughput(ports[name], 1, is_free=count > 1)  # warm
        samples = interleave([Subject(name, "", "", "") for name in subjects], ROUNDS * 2, sample)

    one, two, _, bare_two = subjects
    what = f"HTTP tools/call, {CONNECTIONS} connections, {'about 1 ms' if has_work else 'nothing'} to do in each"
    measure = Measure(f"Weft: {what}, by workers", "calls/s", samples)
    measure.notes.append(
        f"{what}: {scaling_note(measure)}; beside two workers, wrk takes {median(load_share[two]):.0%} of a core with "
        f"Weft, {median(load_share[bare_two]):.0%} with the bare server"
    )
    return Comparison(measure, two, one, 1.6 if has_work else None, is_drawn=True)


def scaling_note(measure: Measure) -> str:
    """What a second worker brings Weft and the bare server, and the one over the other."""
    one, two, bare_one, bare_two = measure.samples
    rounds = zip(*measure.samples.values(), strict=True)
    relative = median(weft_two / weft_one / (of_two / of_one) for weft_one, weft_two, of_one, of_two in rounds)
    return (
        f"two workers of Weft do {measure.ratio(one, of=two):.2f} x what one does, two of the bare server "
        f"{measure.ratio(bare_one, of=bare_two):.2f} x, and Weft's factor is {relative:.2f} of that"
    )
