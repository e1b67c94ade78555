"""The results as a page and as a picture."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fleet_measures import MANY_STREAMS, TIMES
from measures import Comparison, Measure
from redis_load import KEPT, redis_version
from session_load import IDLE, SESSIONS, WARM_UP
from subjects import BARE, FASTMCP, MCP, WEFT
from wire import SESSION_REVISION

__all__ = ["write_markdown", "write_picture"]

COLUMNS = (WEFT.name, MCP.name, FASTMCP.name, "bare")
COLOURS = {WEFT.name: "#0f766e", MCP.name: "#94a3b8", FASTMCP.name: "#cbd5e1", "bare": "#e2c08d"}
WIDTH, LABEL, BAR, PANEL_GAP, ROW = 760, 170, 470, 26, 24

HOW_NOTE = (
    'The rows that say "peers tuned" stand first: there the peers are mounted in uvicorn with JSON answers, no',
    "access log, and the uvloop and httptools that Weft brings by itself, which is what people deploy. One row has",
    "all of them under plain `uvicorn module:app`, with its access log. Every other row is for the SDKs as",
    "installed by pip and started by their own `run()`. Elsewhere than in that row, all servers run with logs at",
    "`warning`: no line is written for a call. By default Weft writes one for each over HTTP, as at `info`.",
    "An HTTP call counts if its answer has its id and says the right thing.",
    "If not said otherwise, each has one worker, pinned to one core, and the load to another. In stdio one by one,",
    "server and client wait for each other, so where they run decides a good part of it. All three ways are shown:",
    "not pinned, where the system decides, which is what a user has and what the target is checked on; both on one",
    "core; each on its own. Where other work keeps a core busy, the system puts both on the other one, and the",
    "first row comes near the second: the target only means something on a machine that was idle. Weft's figure",
    "rests on looking for the next line for 50 µs before it falls asleep, which keeps a core busy while calls come",
    "back to back; the row with `stdio_linger_seconds=0` is without that.",
    "Every figure is the median of interleaved rounds (Weft, mcp, fastmcp; the next round backwards); every ratio",
    "is Weft's figure over the other's, the median of the ratios within a round. Where Weft stands beside itself by",
    "number of tools, by what is around it or by backend, several pairs of processes are compared, and of each process",
    "the best of six seconds counts: other work on the machine only ever makes one slower.",
)

SESSIONS_NOTE = (
    f"Sessions are those of revision {SESSION_REVISION}. Calls are made by {SESSIONS} connections in {SESSIONS}",
    "sessions that were opened before, in turn, and only those answered rightly count; the peers answer with an event",
    "stream as installed, with JSON when tuned, Weft with JSON. Opening is `initialize` and",
    f"`notifications/initialized`, two requests, over {SESSIONS} connections, on a server started for it; nothing is",
    "ended meanwhile, so the quicker server holds more sessions in the end. An idle session was opened and is not",
    "used; it has no stream and no connection of its own. Its memory is what the server's resident memory grew by for",
    f"{IDLE:,} of them, after {WARM_UP} others to warm up; afterwards a call in each shows that all are still there.",
    "Weft's limits of sessions (100 per address, 10,000 in all) are raised for this, because all come from one",
    "address; the peers' (10,000 in all) are not reached.",
)

CLIENTS_NOTE = (
    "A client calls a server that answers at once: uvicorn + msgspec, the same for all, on the other core. All three",
    "find out by `server/discover` that it is stateless, and hold results to the tool's `outputSchema`. In the same",
    "process the server is that of the client's own SDK: between Weft's two every message crosses as bytes; mcp's hand",
    "each other Python objects, without JSON. The first answer is of a program that starts, connects, calls once and",
    "ends: Weft imports its HTTP library there, and not when it is imported itself.",
)


FLEET_NOTE = (
    "Redis runs on the core of the load, writes nothing to disk, and is reached over TCP. Where a row says 2",
    "workers with Redis, these are two processes on ports of their own, as behind a load balancer, both on the",
    "servers' core. A session with Redis is called at another worker than the one that opened it: that worker reads",
    f"the record of the session once, and renews it now and then. The {MANY_STREAMS:,} listen streams are spread",
    "evenly over two workers; the change happens at one of them, and is told when the last stream at either has",
    f"heard of it; their memory is what both workers grew by. Of {KEPT:,} idle sessions, all opened at one of two",
    "workers, Redis's part is what its `used_memory` grew by, and a worker's is what its resident memory grew by;",
    "the other worker had served sessions before, but none of these. Afterwards it serves some of them, to show",
    "that it can find them.",
)

TASKS_NOTE = (
    "The state of a task is that of one whose handler sleeps: each request reads its record from the backend. Every",
    "answer counts that has the task's id and says that it works. fastmcp has fastmcp-tasks, in memory; the bare",
    "server answers `tools/call`, as in the rows for HTTP.",
)

SCALING_NOTE = (
    "In the rows by workers, one worker has a core for itself, and wrk the other. Two workers (`workers=2`, on one",
    "socket) have a core each, and wrk runs on both: what it takes is missing to the two, and not to the one. Where",
    "a call has nothing to do, such a row shows how two cores are shared with a load that has to wait for its turn,",
    "for Weft as for the bare server (which has the workers of uvicorn), and not how workers scale. So the target",
    "is held to calls that have about 1 ms of Python to do, where wrk takes little. Both servers have the same",
    "work, and the system decides which worker gets which connection, seldom half of them each. How long a change",
    f"or a question takes is the median of {TIMES}, one after the other, as the client sees it: from sending the",
    "call that makes the change until the listen stream, which is at the other process if there are two, has heard",
    "of it; and from sending the call that asks until its result is there, where the answer to the question is sent",
    "to the other process. Both processes are on the servers' core.",
)


def processor() -> str:
    """The processor's name, as Linux gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def column_of(name: str) -> str:
    """Bare server and bare interpreter share the last column: both are the limit."""
    return "bare" if name.startswith("bare") else name


def table_row(measure: Measure) -> str:
    shown = {column_of(name): measure.shown(name) for name in measure.samples}
    ratios = {column_of(name): measure.ratio(name) for name in measure.samples if name != WEFT.name}
    cells = [shown.get(column, "-") for column in COLUMNS]
    cells += [f"{ratios[column]:.2f} x" if column in ratios else "-" for column in COLUMNS[1:]]
    return f"| {measure.title} ({measure.unit}) | " + " | ".join(cells) + " |"


def target_rows(measure: Measure, verdicts: list[bool]) -> list[str]:
    rows: list[str] = []
    for target in measure.targets:
        reached, met = target.judge(measure)
        verdicts.append(met)
        rows.append(f"| {measure.title} | {target} | {reached} | {'met' if met else '**missed**'} |")
    return rows


def comparison_row(comparison: Comparison) -> str:
    title = f"{comparison.measure.title}, {comparison.of} against {comparison.against}"
    word = "met" if comparison.is_met else "**missed**"
    assert comparison.limit is not None
    return f"| {title} | ≥ {comparison.limit:g} x | {comparison.ratio:.2f} x | {word} |"


def comparison_line(comparison: Comparison) -> str:
    measure = comparison.measure
    shown = ", ".join(f"{name} {measure.shown(name)} {measure.unit}" for name in measure.samples)
    return f"{measure.title}: {shown}."


def write_markdown(
    path: Path, measures: Sequence[Measure], comparisons: Sequence[Comparison], load: float
) -> list[bool]:
    """Writes the page; returns for each target whether it was met."""
    verdicts: list[bool] = []
    targets = [row for measure in measures for row in target_rows(measure, verdicts)]
    verdicts += [comparison.is_met for comparison in comparisons]
    targets += [comparison_row(comparison) for comparison in comparisons if comparison.limit is not None]
    versions = ", ".join(f"{subject.name} {subject.version()}" for subject in (WEFT, MCP, FASTMCP))
    now = dt.datetime.now(dt.UTC)
    notes = dict.fromkeys(
        note for measure in (*measures, *(one.measure for one in comparisons)) for note in measure.notes
    )
    lines = [
        "# Weft beside its peers",
        "",
        f"Measured {now:%Y-%m-%d %H:%M} UTC by `make bench`: {versions}, uvicorn {BARE.version()},",
        f"Redis {redis_version()};",
        f"Python {platform.python_version()}; {processor()}, {os.cpu_count()} cores;",
        f"load average {load:.2f} when it began.",
        *HOW_NOTE,
        "",
        "![The results as bars](results.svg)",
        "",
        "| | Weft | mcp | fastmcp | bare | Weft / mcp | Weft / fastmcp | Weft / bare |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *map(table_row, measures),
        "",
        '"Bare" is uvicorn + msgspec without a protocol (HTTP, memory), a loop of os.read, msgspec, os.write without',
        "a protocol or an event loop (stdio), or the interpreter alone (import).",
        "A booking is a call that asks the user one question: a request that is answered with the question, and one",
        "that brings the answer (`ctx.elicit` in Weft, `Resolve` and `Elicit` in mcp). A change is told when the last",
        "stream has heard of it.",
        "",
        *SESSIONS_NOTE,
        "",
        *FLEET_NOTE,
        "",
        *TASKS_NOTE,
        "",
        *CLIENTS_NOTE,
        "",
        "| target | asked | reached | |",
        "|---|---:|---:|---|",
        *targets,
        "",
        *map(comparison_line, comparisons),
        "The token is a JWT (RS256), the same for every call: what was found of it is remembered until it expires.",
        *(f"{note[0].upper()}{note[1:]}." for note in notes),
        "",
        *SCALING_NOTE,
        "",
    ]
    path.write_text("\n".join(lines))
    return verdicts


def panel(measure: Measure, top: int) -> tuple[list[str], int]:
    """The bars of one measure; returns their SVG and where the next panel begins."""
    most = max(map(measure.median, measure.samples))
    title = f"{measure.title} ({measure.unit})"
    parts = [f'<text x="16" y="{top}" class="title">{escape(title)}</text>']
    y = top + 10
    for name in measure.samples:
        label = name if "worker" in name or "process" in name else column_of(name)
        colour = COLOURS.get(column_of(name), COLOURS[WEFT.name])
        width = max(2.0, BAR * measure.median(name) / most)
        parts += [
            f'<text x="{LABEL}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL + 10}" y="{y}" width="{width:.1f}" height="18" rx="3" fill="{colour}"/>',
            f'<text x="{LABEL + 18 + width:.1f}" y="{y + 14}">{measure.shown(name)}</text>',
        ]
        y += ROW
    return parts, y + PANEL_GAP


def write_picture(path: Path, measures: Sequence[Measure], comparisons: Sequence[Comparison]) -> None:
    """Writes one panel of bars for each measure that compares, and for some comparisons, each to its own scale."""
    parts: list[str] = []
    y = 34
    drawable = [measure for measure in measures if len(measure.samples) > 1]
    drawable += [comparison.measure for comparison in comparisons if comparison.is_drawn]
    for measure in drawable:
        drawn, y = panel(measure, y)
        parts += drawn
    style = "text{font:13px system-ui,sans-serif;fill:#1e293b}.title{font-weight:600}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">'
    label = "<title>Weft beside mcp, fastmcp and the bare limit</title>"
    ground = f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>'
    path.write_text("\n".join([head, label, f"<style>{style}</style>", ground, *parts, "</svg>", ""]))
