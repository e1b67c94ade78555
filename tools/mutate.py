"""Mutates Weft's code, one change at a time, and counts how many changes the tests notice.

    python tools/mutate.py --security --count 150     # security checks and limits
    python tools/mutate.py --count 150                # the whole package

It never touches the work tree: it makes copies of it with an environment each, so that servers that tests start as
processes run the mutated code too. One traced run of the tests says which test runs which line (kept in
.cache/mutate, by what the sources and tests are); a mutant meets only the tests that run its lines, the quickest first.
A mutant is noticed when a test fails twice with it, or hangs. The same seed tries the same mutants.

Survivors are listed in .cache/mutate/*.md, as diffs. tools/mutants_equivalent.toml names those that no test could
notice, with the reason; they count neither way.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fnmatch
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutations import Mutation, find_mutations

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".cache" / "mutate"
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.toml"
PACKAGE = "src/weft"

# Where security checks and limits are.
SECURITY = (
    "authorization/*",
    "server/auth/*",
    "server/http/*",
    "server/stdio/*",
    "server/sessions/*",
    "server/http/uvicorn_protocol.py",
    "server/asking/once.py",
    "server/asking/rounds.py",
    "server/runtime/dispatch.py",
    "server/runtime/admission.py",
    "server/runtime/subscriptions.py",
    "client/auth/*",
    "client/http/*",
    "client/stdio.py",
    "client/connection/transport.py",
    "client/config.py",
    "client/handlers.py",
    "client/questions.py",
    "net/*",
    "protocol/headers.py",
    "protocol/request_state.py",
    "protocol/schema.py",
    "protocol/uritemplate.py",
    "protocol/names.py",
    "protocol/sse.py",
    "backends/memory.py",
    "jsonrpc.py",
    "limits.py",
)
SECURITY_KINDS = ("check removed", "comparison flipped", "bound x1000", "boolean operator swapped", "not removed")
BOUNDS = (
    "tests/test_limits_table.py",
    "tests/test_docs.py::test_the_page_of_limits",
)  # compare every bound and every default with the docs
SLOWEST = 45.0  # a test that takes longer is left out: a mutant would cost minutes
FIRST_TESTS, FIRST_FILES = 40, 4  # of the first, quick attempt
TESTS = ["tests", "--ignore=tests/interop", "--ignore=tests/test_architecture.py", "--ignore=tests/test_docs.py"]


# --- copies of the tree


def make_copy(place: Path, *, traced: bool = False) -> Path:
    """Copy the files that git knows, with an environment of their own; returns its Python."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, place / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    if (ROOT / ".cache").exists():
        (place / ".cache").symlink_to((ROOT / ".cache").resolve())
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}") or "uv"
    python = place / ".venv" / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(place / ".venv")], check=True)
    # In a release build of the package the versions may differ by a day: those of this environment are taken.
    pins = subprocess.run(
        [uv, "pip", "freeze", "--quiet", "--exclude-editable", "--python", sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    (place / "pins.txt").write_text(pins.stdout)
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(place / "pins.txt")]
    subprocess.run([*install, "--no-deps"], check=True)
    subprocess.run([*install[:-2], "--no-deps", "--editable", str(place)], check=True)
    (place / "pins.txt").unlink()
    if traced:
        trace(place)
    return python


def environment(place: Path) -> dict[str, str]:
    """What tests run with: as they do here, with the programs of the copy first."""
    return os.environ | {
        "PATH": f"{place / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": str(place / ".venv"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


# --- which test runs which line

TRACER = '''
"""Starts coverage in every process of this environment, under the name of the test that started it."""
import os, sys
from pathlib import Path

FOLDER = Path({folder!r})

def _test():
    pid = os.getpid()
    while pid > 1:
        note = FOLDER / "tests" / str(pid)
        if note.exists():
            return note.read_text()
        try:
            pid = int(Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return ""

if not any("uv" == Path(word).name for word in sys.argv[:1]):
    import coverage
    cov = coverage.Coverage(
        data_file=str(FOLDER / "data" / "c"), data_suffix=True, source=[{source!r}], context=_test() or None,
        config_file=str(FOLDER / "coveragerc"),
    )
    cov.start()
    cov._warn_no_data = cov._warn_unimported_source = cov._warn_preimported_source = False
    import atexit, signal
    leave = os._exit

    def save():
        cov.stop()
        cov.save()

    def end(number, frame):  # uvicorn ends itself by the signal that it got
        save()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def leave_at_once(code):
        save()
        leave(code)

    atexit.register(save)
    signal.signal(signal.SIGTERM, end)
    os._exit = leave_at_once
'''

PLUGIN = '''
"""Tells coverage, and the processes that a test starts, which test runs; notes how long each takes."""
import json, os, time
from pathlib import Path
import pytest
import _mutate_trace

NOTE = _mutate_trace.FOLDER / "tests" / str(os.getpid())
RESULTS = _mutate_trace.FOLDER / "results"

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    NOTE.write_text(item.nodeid)
    _mutate_trace.cov.switch_context(item.nodeid)
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        item.config._took = time.perf_counter() - began
        with (RESULTS / str(os.getpid())).open("a") as file:
            file.write(json.dumps(["took", item.nodeid, time.perf_counter() - began]) + "\\n")

def pytest_runtest_logreport(report):
    if report.failed or report.skipped:
        with (RESULTS / str(os.getpid())).open("a") as file:
            file.write(json.dumps(["failed", report.nodeid, 0]) + "\\n")
'''


def trace(place: Path) -> None:
    """Have every Python process of a copy report the lines it ran."""
    folder = place / ".trace"
    for name in ("tests", "data", "results"):
        (folder / name).mkdir(parents=True)
    (folder / "coveragerc").write_text("[run]\nconcurrency = thread\nsigterm = false\n")
    packages = next((place / ".venv" / "lib").glob("python*/site-packages"))
    source = str(place / PACKAGE)
    (packages / "_mutate_trace.py").write_text(TRACER.format(folder=str(folder), source=source))
    (packages / "_mutate_plugin.py").write_text(PLUGIN)
    (packages / "_mutate.pth").write_text("import _mutate_trace\n")


class Map:
    """Which tests run which lines, and how long they take."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.seconds: dict[str, float] = json.loads((place / "seconds.json").read_text())
        self._files: dict[str, list[tuple[str, bytes]]] = {}
        self._uses: dict[str, list[tuple[str, int]]] | None = None

    def tests_at(self, path: str, lines: Iterable[int]) -> set[str]:
        """Return the tests that run one of the lines of a module."""
        if path not in self._files:
            with sqlite3.connect(self._place / "lines.sqlite") as database:
                rows = database.execute("SELECT test, bits FROM lines WHERE path = ?", (path,))
                self._files[path] = [(test, bytes(bits)) for test, bits in rows]
        wanted = [(line // 8, 1 << line % 8) for line in lines]
        return {
            test
            for test, bits in self._files[path]
            if test in self.seconds and any(at < len(bits) and bits[at] & bit for at, bit in wanted)
        }

    def tests_for(self, mutation: Mutation) -> set[str]:
        """Return the tests that may notice a mutation."""
        path = mutation.path
        if not mutation.names:
            exact = self.tests_at(path, range(mutation.line, mutation.last_line + 1))
            # A process that was killed could not tell what it ran: those that run something of the module, then.
            return exact or self.tests_at(path, range(1, 10_000))
        # A value made at import time: by where it is used, and by the tests that compare it with the docs.
        found = {test for test in self.seconds if test.startswith(BOUNDS)}
        for name in mutation.names:
            for where, line in self._used(name):
                if where == path or not name.startswith("_"):
                    found |= self.tests_at(where, [line])
        return found

    def _used(self, name: str) -> list[tuple[str, int]]:
        if self._uses is None:
            self._uses = defaultdict(list)
            for path in sorted((ROOT / PACKAGE).rglob("*.py")):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Name | ast.Attribute):
                        word = node.attr if isinstance(node, ast.Attribute) else node.id
                        self._uses[word].append((path.relative_to(ROOT).as_posix(), node.lineno))
        return self._uses.get(name, [])


def fingerprint() -> str:
    """What the map depends on."""
    digest = hashlib.sha256()
    for room in (PACKAGE, "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def read_map(workers: int, *, reuse: bool) -> Map:
    """Return the map of this tree: the kept one, or one from a traced run of all tests."""
    place = KEPT / f"map-{fingerprint()}"
    if reuse and not place.exists():
        kept = sorted(KEPT.glob("map-*"), key=lambda each: each.stat().st_mtime)
        place = kept[-1] if kept else place
    if not place.exists():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="weft-mutate-") as folder:
            copy = Path(folder) / "weft"
            python = make_copy(copy, traced=True)
            say(f"Tracing all tests once in {copy} ...")
            command = [str(python), "-m", "pytest", "-p", "_mutate_plugin", "-p", "no:cacheprovider", *TESTS]
            command += ["-n", str(2 * workers), "--dist", "loadfile", "--timeout", "600"]
            with (Path(folder) / "log").open("wb") as log:
                done = subprocess.run(command, cwd=copy, env=environment(copy), stdout=log, stderr=log, check=False)
            if done.returncode not in (0, 1):  # some tests may fail; a run that was ended would leave half a map
                raise SystemExit(
                    f"The traced run ended with {done.returncode}:\n{(Path(folder) / 'log').read_text()[-2000:]}"
                )
            untraced = Path(folder) / "untraced"
            failed = keep_map(copy, place.with_suffix(".new"), untraced)
            say(f"Traced in {time.monotonic() - began:.0f} s; {len(failed)} tests fail or skip, also untraced.")
        place.with_suffix(".new").rename(place)
    return Map(place)


def keep_map(copy: Path, place: Path, untraced: Path) -> set[str]:
    """Make the map of what a traced copy left; returns the tests that it cannot use."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    seconds: dict[str, float] = {}
    failed: set[str] = set()
    for path in (copy / ".trace" / "results").iterdir():
        for kind, test, took in map(json.loads, path.read_text().splitlines()):
            if kind == "took":
                seconds[test] = took
            else:
                failed.add(test)
    failed &= failing(make_copy(untraced), untraced, sorted(failed))  # tracing alone makes some of them fail
    lines: dict[tuple[str, str], bytearray] = defaultdict(bytearray)
    for path in (copy / ".trace" / "data").iterdir():
        read_lines(path, copy, lines)
    with sqlite3.connect(place / "lines.sqlite") as database:
        database.execute("CREATE TABLE lines (path TEXT, test TEXT, bits BLOB)")
        database.executemany(
            "INSERT INTO lines VALUES (?, ?, ?)", [(path, test, bytes(bits)) for (path, test), bits in lines.items()]
        )
        database.execute("CREATE INDEX by_path ON lines (path)")
    usable = {test: took for test, took in seconds.items() if test not in failed and took < SLOWEST}
    (place / "seconds.json").write_text(json.dumps(usable))
    return failed


def read_lines(path: Path, copy: Path, lines: dict[tuple[str, str], bytearray]) -> None:
    """Add what one process ran."""
    with sqlite3.connect(path) as database:
        try:
            rows = database.execute(
                "SELECT file.path, context.context, numbits FROM line_bits "
                "JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
            ).fetchall()
        except sqlite3.DatabaseError:  # killed while it wrote
            return
    for file, context, bits in rows:
        test = context.rpartition("|")[2]  # the process's test, and that which runs in it
        if test:
            kept = lines[Path(file).relative_to(copy).as_posix(), test]
            kept.extend(bytes(max(0, len(bits) - len(kept))))
            for at, byte in enumerate(bits):
                kept[at] |= byte


# --- one mutant


@dataclass
class Outcome:
    """What became of a mutant."""

    mutation: Mutation
    verdict: str = "survived"  # or noticed, hung, uncovered
    by: str = ""
    tests: int = 0
    seconds: float = 0.0
    reason: str = ""  # why no test could notice it

    @property
    def is_noticed(self) -> bool:
        return self.verdict in ("noticed", "hung")


@dataclass
class Worker:
    """A copy of the tree in which one mutant after the other lives."""

    place: Path
    budget: float
    ticks: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 30)))

    def __post_init__(self) -> None:
        self.python = make_copy(self.place)

    def meet(self, mutation: Mutation, tests: Sequence[str], seconds: dict[str, float]) -> Outcome:
        """Run the tests that may notice a mutation until one does."""
        outcome = Outcome(mutation, "survived" if tests else "uncovered")
        began = time.monotonic()
        original = (self.place / mutation.path).read_text()
        self._write(mutation.path, mutation.apply(original))
        try:
            for part in stages(tests, seconds, self.budget):
                outcome.tests += len(part)
                if self._notice(part, sum(seconds[test] for test in part), outcome):
                    break
        finally:
            self._write(mutation.path, original)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _notice(self, tests: list[str], expected: float, outcome: Outcome) -> bool:
        """Whether a test fails, and fails again alone: what fails once only is a flake."""
        tests = list(tests)
        seconds = 60 + 4 * expected
        while tests:
            failed, hung = run_tests(self.python, self.place, tests, seconds, first=True)
            if not failed and not hung:
                return False
            test = next(iter(failed), "")  # without a name: the run itself did not come to its end
            again, hung = run_tests(self.python, self.place, [test] if test else tests, seconds, first=True)
            if again or hung:
                outcome.verdict, outcome.by = "hung" if hung else "noticed", test or "(the run itself)"
                return True
            tests = tests[tests.index(test) + 1 :] if test else []
        return False

    def _write(self, path: str, source: str) -> None:
        """Write a module so that no process takes its compiled form of before."""
        file = self.place / path
        file.write_text(source)
        stamp = time.time() + next(self.ticks)
        os.utime(file, (stamp, stamp))
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink(missing_ok=True)


def stages(tests: Sequence[str], seconds: dict[str, float], budget: float) -> Iterator[list[str]]:
    """Cut the tests, the quickest first, in a few of few files, and the rest that the budget has room for."""
    ranked = sorted(tests, key=lambda test: (seconds[test], test))
    files: list[str] = []
    first: list[str] = []
    for test in ranked:
        file = test.partition("::")[0]
        if file not in files and len(files) < FIRST_FILES:
            files.append(file)
        if file in files and len(first) < FIRST_TESTS:
            first.append(test)
    if first:
        yield first
    chosen, rest, used = set(first), [], 0.0
    for test in ranked:
        if test not in chosen and used + seconds[test] <= budget:
            rest.append(test)
            used += seconds[test]
    if rest:
        yield sorted(rest, key=lambda test: test.partition("::")[0])


def run_tests(python: Path, place: Path, tests: Sequence[str], seconds: float, *, first: bool) -> tuple[set[str], bool]:
    """Run tests; returns those that failed (an empty name: the run itself), and whether it had to be killed."""
    if not tests:
        return set(), False
    listed = place / ".mutate-tests"
    listed.write_text("\n".join(tests))
    results = place / ".mutate-failed"
    results.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-rN", "--tb=no", "--no-header", "--timeout=60"]
    command += [*(["-x"] if first else []), f"--junitxml={results}", f"@{listed}"]
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return set(), True
    finally:
        kill_group(process)
    if code == 0 or code == 5:  # 5: nothing to run
        return set(), False
    return failures(results, tests) or {""}, False


def failures(results: Path, tests: Sequence[str]) -> set[str]:
    """The tests of a JUnit report that failed, under the names they were asked for with."""
    from xml.etree import ElementTree as ET

    if not results.exists():
        return set()
    by_report = {(test.partition("::")[2].rpartition("::")[2], _class_name(test)): test for test in tests}
    found: set[str] = set()
    for case in ET.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            key = (case.get("name", ""), case.get("classname", ""))
            found.add(by_report.get(key, ""))
    return found


def _class_name(test: str) -> str:
    file, *names = test.split("[", maxsplit=1)[0].split("::")
    return ".".join([file.removesuffix(".py").replace("/", "."), *names[:-1]])


def failing(python: Path, place: Path, tests: Sequence[str]) -> set[str]:
    """The tests that fail (or skip) where nothing is traced or mutated."""
    if not tests:
        return set()
    failed, hung = run_tests(python, place, tests, 1200, first=False)
    return set(tests) if hung or "" in failed else failed


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a run and the servers that its tests left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- all of them


def choose(arguments: argparse.Namespace) -> list[Mutation]:
    """Pick mutations at random, always the same for a seed; no two of the same line and kind."""
    candidates: list[Mutation] = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        short = path.relative_to(ROOT / PACKAGE).as_posix()
        if arguments.security and not any(fnmatch.fnmatch(short, pattern) for pattern in SECURITY):
            continue
        if arguments.only and not any(fnmatch.fnmatch(short, pattern) for pattern in arguments.only):
            continue
        found = find_mutations(path.relative_to(ROOT).as_posix(), path.read_text())
        candidates += [each for each in found if not arguments.security or each.kind in SECURITY_KINDS]
    random.Random(arguments.seed).shuffle(candidates)
    chosen: dict[tuple[str, str, int], Mutation] = {}
    for each in candidates:
        if len(chosen) == arguments.count:
            break
        chosen.setdefault((each.path, each.kind, each.line), each)
    return list(chosen.values())


def equivalents() -> dict[tuple[str, str, str], str]:
    """The mutants that are known to change nothing, by file and changed lines; with the reason."""
    if not EQUIVALENT.exists():
        return {}
    known = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(each["path"], each["was"], each["now"]): each["reason"] for each in known}


def run_all(mutations: Sequence[Mutation], tests: Map, arguments: argparse.Namespace) -> list[Outcome]:
    """Try every mutant, as many at once as there are workers."""
    known = equivalents()
    waiting: queue.SimpleQueue[Mutation] = queue.SimpleQueue()
    outcomes: list[Outcome] = []
    for each in mutations:
        reason = known.get((each.path, *each.changed_lines((ROOT / each.path).read_text())))
        if reason is None:
            waiting.put(each)
        else:
            outcomes.append(Outcome(each, "equivalent", reason=reason))
    with tempfile.TemporaryDirectory(prefix="weft-mutate-") as folder:

        def work(number: int) -> None:
            worker = Worker(Path(folder) / str(number) / "weft", arguments.budget)
            while True:
                try:
                    mutation = waiting.get_nowait()
                except queue.Empty:
                    return
                outcome = worker.meet(mutation, sorted(tests.tests_for(mutation)), tests.seconds)
                outcomes.append(outcome)
                where = f"{mutation.path.removeprefix(PACKAGE + '/')}:{mutation.line}"
                say(f"{len(outcomes):4} {outcome.verdict:9} {outcome.seconds:5.1f} s  {mutation.kind:25} {where}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(arguments.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


def report(outcomes: Sequence[Outcome], name: str, arguments: argparse.Namespace, seconds: float) -> float:
    """Write what became of the mutants; returns the share that was noticed."""
    counted = [each for each in outcomes if each.verdict != "equivalent"]
    noticed = [each for each in counted if each.is_noticed]
    share = len(noticed) / max(1, len(counted))
    kinds = Counter(each.mutation.kind for each in counted)
    lines = [
        f"# Mutants: {name}, seed {arguments.seed}",
        "",
        (
            f"{len(noticed)} of {len(counted)} noticed ({share:.1%}); {len(outcomes) - len(counted)} known to be "
            f"equivalent. {seconds:.0f} s."
        ),
        "",
        "| kind | noticed | of |",
        "|---|---|---|",
        *(f"| {kind} | {sum(e.mutation.kind == kind for e in noticed)} | {kinds[kind]} |" for kind in sorted(kinds)),
        "",
        "## Survivors",
    ]
    for each in counted:
        if not each.is_noticed:
            diff = each.mutation.diff((ROOT / each.mutation.path).read_text())
            lines += [
                "",
                f"{each.verdict}; {each.tests} tests; in `{each.mutation.function}`",
                "",
                "```diff",
                diff,
                "```",
            ]
    lines += ["", "## Equivalent", ""]
    for each in outcomes:
        if each.verdict == "equivalent":
            lines.append(f"- `{each.mutation.path}:{each.mutation.line}` {each.mutation.kind}: {each.reason}")
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.md").write_text("\n".join(lines) + "\n")
    rows = [
        {
            "path": each.mutation.path,
            "line": each.mutation.line,
            "kind": each.mutation.kind,
            "verdict": each.verdict,
            "by": each.by,
            "seconds": round(each.seconds, 1),
            "tests": each.tests,
            "diff": each.mutation.diff((ROOT / each.mutation.path).read_text()),
        }
        for each in outcomes
    ]
    (KEPT / f"{name}.json").write_text(json.dumps(rows, indent=1))
    say(lines[2])
    say(f"Written to .cache/mutate/{name}.md and .json.")
    return share


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Mutate, test and report; the exit code is 1 when fewer were noticed than asked for."""
    parser = argparse.ArgumentParser(description="Count how many single changes of the code the tests notice.")
    parser.add_argument("--security", action="store_true", help="only security checks and limits")
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="only these files of src/weft, such as 'server/auth/*'"
    )
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--workers", type=int, default=2, help="mutants at once")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of tests that a mutant meets at most")
    parser.add_argument("--reuse-map", action="store_true", help="take the newest map, though the code has changed")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("--map-only", action="store_true")
    arguments = parser.parse_args()
    tests = read_map(arguments.workers, reuse=arguments.reuse_map)
    if arguments.map_only:
        return 0
    began = time.monotonic()
    mutations = choose(arguments)
    outcomes = run_all(mutations, tests, arguments)
    share = report(outcomes, "security" if arguments.security else "random", arguments, time.monotonic() - began)
    return int(100 * share < arguments.at_least)


if __name__ == "__main__":
    sys.exit(main())
