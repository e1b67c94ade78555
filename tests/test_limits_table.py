"""One table for every limit and lifetime: what the documentation says is what the code has, and none is left out.

A bound that somebody makes a thousand times larger passes every test that goes one past it, for such a test reads the
bound from the code. Here the number is written down a second time, in the documentation.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.authorization import AuthorizationServer, users
from weft.authorization import clients as registering
from weft.limits import DEFAULT_LIMITS
from weft.server.auth import Dpop, JwtVerifier, keys
from weft.server.auth import bearer_auth as admission
from weft.server.auth import verifiers as static_tokens
from weft.server.stdio import stdio as lines

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "weft"
PAGE = ROOT / "docs" / "reference" / "bounds.md"
UNITS = {"": 1, "s": 1, "KiB": 1024, "MiB": 1024 * 1024}

# Numbers in the code that bound nothing a peer or a user could notice.
NO_BOUNDS = {
    "net.hosts._SITE_BITS": "what a network is",
    "server.run.loading._WRONG_ARGUMENTS": "an exit code",
    "cli.calling.NESTING": "how a type is shown",
    "types.tasks.SHOWN_OF_TASK_ID": "how a task is named in the log",
    "cli.command.MOST_PORT": "what a port is",
    "client.auth.discovery._LATEST": "what a time is",
    "client.callbacks.TURN_SECONDS": "how often others have their turn",
    "client.handlers.USER_REJECTED": "an error code",
    "client.connection.connection._STREAM_ATTEMPT": "which pause of the list",
    "client.argument_checks._DEEPEST": "how far a frame is looked for",
    "client.http.wire.PROXY_REFUSES": "a status",
    "client.http.transport._NO_STREAMS": "a status",
    "client.http.transport._TAKEN": "a status",
    "client.http.wire._UNASKED": "a flag",
    "client.stdio._KILL": "a signal",
    "client.stdio._TERM": "a signal",
    "client.connection.transport._TURN": "how often others have their turn",
    "client.connection.transport._PIECE": "how often others have their turn",
    "client.stdio._STEP": "how often is looked",
    "eras.session._NO_RESOURCE": "an error code",
    "eras.client._PAGES_REQUIRED": "an error code",
    "jsonrpc.SAFE_INTEGER": "what an integer is",
    "jsonrpc._CHUNK": "how often others have their turn",
    "jsonrpc._DEAR": "a weight",
    "limits.MIB": "a unit",
    "protocol.headers._SAFE_INTEGER": "what an integer is",
    "protocol.request_state._DIGEST_BYTES": "a format",
    "protocol.schema._CHARACTERS_PER_VALUE": "a weight",
    "protocol.schema._NUMBER_WORK": "a weight",
    "protocol.schema._UNEVALUATED_TIMES": "a weight",
    "protocol.schema._SHOWN": "how a value is shown",
    "protocol.schema._SMALL": "when to count at all",
    "protocol.request_state._TAG_BYTES": "a format",
    "protocol.request_state._VERSION": "a format",
    "server.asking.rounds.PAGES_REQUIRED": "an error code",
    "server.asking.rounds.QUIET_TURNS": "when a round is over",
    "authorization.clients._HOUR": "a unit",
    "server.diagnostics.MOST_FRAMES": "how a traceback is shown",
    "server.signature.output._WORD": "what an integer is",
    "server.asking.replay._MOST_WARNINGS": "of how many calls a warning was given",
    "server.sessions.streams._EVENT_COST": "a weight",
    "server.sessions.streams._STREAM_COST": "a weight",
    "server.runtime.fleet._ID_BYTES": "a format",
    "server.runtime.peer_limits._PERIOD": "a unit",
    "server.runtime.admission._MOST_NAMED": "how a list is shown",
    "server.features.registry._MOST_NAMED": "how a list is shown",
    "server.run.listening.MOST_NAMED": "how a list is shown",
    "server.run.loading.MOST_FRAMES": "how a traceback is shown",
    "server.run.loading.MOST_NAMES": "how a list is shown",
    "server.run.running.INTERRUPTED": "an exit code",
    "server.run.running.MOST_FRAMES": "how a traceback is shown",
    "server.run.workers.CANNOT_START": "an exit code",
    "server.run.running._LOOK_SECONDS": "how often is looked",
    "backends.redis.store.MARK_BYTES": "a format",
    "backends.redis.checks._PINGS": "how a median is measured",
    "backends.socket._READ_BYTES": "how much is read at once",
    "backends.socket._LENGTH_BYTES": "a format",
    "backends.socket._NEWS": "a format",
    "server.signature.signature._EXACT": "what an integer is",
    "server.signature.signature._LARGE": "from when on messages take turns",
    "server.signature.signature._MANY": "from when on messages take turns",
    "server.http.reply._BUSY": "a status",
    "server.http.app._LARGE": "from when on messages take turns",
    "server.stdio.stdio.CHUNK": "what a pipe holds",
    "server.stdio.stdio.AT_ONCE": "how much is read at once",
    "server.runtime.admission._PACE": "how messages take turns",
    "server.runtime.admission._STEPS": "how messages take turns",
    "server.stdio.pipe._BRACE": "a character",
    "testing.backend_contract._TEST_SECONDS": "of a test",
    "testing.backend_contract._WAIT_SECONDS": "of a test",
    "testing.backend_contract._LATE": "of a test",
    "testing.backend_contract._LONG": "of a test",
    "testing.backend_contract._WRITERS": "of a test",
    "testing.backend_contract._WRITES": "of a test",
    "testing.backend_model._TTL": "of a test",
    "testing.backend_model._EXAMPLES": "of a test",
    "testing.backend_model._STEPS": "of a test",
    "testing.backend_model._MOST_AT_ONCE": "of a test",
    "testing.backend_model._STEP_SECONDS": "of a test",
}


def value_of(text: str) -> float:
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * UNITS[unit]


def told() -> dict[str, float]:
    """The bounds that the page names."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    assert len({row[0] for row in rows}) == len(rows), "a bound is there twice"
    return {row[0]: value_of(row[1]) for row in rows}


def numbers(path: Path) -> Iterator[str]:
    """The names of the numbers that a module has at its top: those in capitals, whatever they are computed from."""
    for node in ast.parse(path.read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and target.id == target.id.upper() and target.id.strip("_"):
                yield target.id


def found() -> dict[str, float]:
    """The numbers in capitals of all modules."""
    known: dict[str, float] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for name in numbers(path):
            value = getattr(importlib.import_module(f"weft.{module}"), name)
            if type(value) in (int, float):  # not the flags and signals that are integers too
                known[f"{module}.{name}"] = value
    return known


@pytest.mark.security("R12")
def test_every_bound_is_the_one_that_is_written_down() -> None:
    known, page = found(), told()
    wrong = {name: (known[name], value) for name, value in page.items() if name in known and known[name] != value}
    assert not wrong, f"the code and {PAGE.name} differ: (code, page) {wrong}"


@pytest.mark.security("R12")
def test_no_bound_is_left_out() -> None:
    known, page = set(found()), set(told())
    assert not (left := known - page - set(NO_BOUNDS)), (
        f"{sorted(left)}: write them into docs/reference/{PAGE.name}, or into NO_BOUNDS here if they bound nothing"
    )
    assert not (gone := (page | set(NO_BOUNDS)) - known), f"{sorted(gone)} are not in the code any more"
    assert not page & set(NO_BOUNDS)


def default(of: Any, option: str) -> Any:
    import inspect

    return inspect.signature(of).parameters[option].default


# What pages say in words: the sentence, the number in the code that it is about, and what it says.
SAID: list[tuple[str, str, Any, Any]] = [
    ("how-to/protect.md", "keeps them for an hour", keys.KEEP_SECONDS, 3600),
    ("how-to/protect.md", "at most every 30 s", keys.RETRY_SECONDS, 30),
    ("how-to/protect.md", "RSA keys must have at least 2048 bits", keys.LEAST_RSA_BITS, 2048),
    ("how-to/protect.md", "each with at least 8 characters", static_tokens._LEAST, 8),
    ("how-to/protect.md", "for at most 10,000 tokens", admission._MOST_KNOWN, 10_000),
    ("how-to/protect.md", "valid once, for five minutes", users.CLIENT_ASSERTION.most_seconds, 300),
    ("how-to/protect.md", "expire within an hour", users.ID_JAG.most_seconds, 3600),
    ("how-to/protect.md", "for a day at most", users.WORKLOAD_TOKEN.most_seconds, 86_400),
    ("how-to/protect.md", "valid for ten minutes", default(AuthorizationServer, "access_seconds"), 600),
    ("how-to/protect.md", "gets the same answer again for 30 s", default(AuthorizationServer, "grace_seconds"), 30),
    ("how-to/protect.md", "removed after a day if it got no token", registering.UNUSED_SECONDS, 86_400),
    ("how-to/protect.md", "after 90 days without a new one", registering.KEEP_SECONDS, 90 * 86_400),
    ("how-to/protect.md", "An address may register 100 unused clients per hour", registering.MOST_PER_ADDRESS, 100),
    ("how-to/protect.md", "more than 10,000 unused clients in total", registering.MOST_UNUSED, 10_000),
    ("how-to/protect.md", "Ten wrong passwords", users.MOST_TRIES, 10),
    ("how-to/protect.md", "within a minute lock", users._TRIES_SECONDS, 60),
    ("how-to/protect.md", "try every 2 s", users._SLOW_SECONDS, 2),
    ("reference/authorization.md", "| `window` | `60.0` |", Dpop().window, 60),
    ("reference/authorization.md", "| `leeway` | `30.0` |", default(JwtVerifier, "leeway"), 30),
    ("reference/authorization.md", "gives the same answer again, 0 to 60", 60, 60),
    ("design.md", "next for 50 µs", DEFAULT_LIMITS.stdio_linger_seconds, 50e-6),
    ("design.md", "at most 1 ms in a row", lines.IN_A_ROW, 1e-3),
]  # fmt: skip


@pytest.mark.parametrize(("page", "sentence", "code", "number"), SAID, ids=[said[1] for said in SAID])
def test_a_sentence_says_the_number(page: str, sentence: str, code: float, number: float) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert " ".join(sentence.split()) in text
    assert code == number


def test_what_a_password_costs_to_check() -> None:
    """Work on purpose: what OWASP recommends of scrypt at least, for 16 MiB of memory."""
    assert users._COST == {"n": 2**14, "r": 8, "p": 1, "dklen": 32, "maxmem": 64 * 1024 * 1024}
