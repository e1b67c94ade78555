"""Writes docs/interop.md of what tests/interop/test_foreign.py saw; `--check` compares its versions with the pins.

python tools/interop_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from setup_peers import NPM_PINS, PYTHON_PINS

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
SEEN = ROOT / ".cache" / "interop"
PAGE = ROOT / "docs" / "interop.md"

TOP = """# Clients and servers that others wrote

`make interop` tries these beside Weft, each in an environment of its own, and writes this page of what it saw. No model
takes part: a framework lists the tools of a Weft server and calls four, as it would for a model. One answers with text,
one with structured content for a nested argument, one fails, one names the revision. The Weft client lists the tools of
a server, calls one, and sends arguments that do not fit.
"""


def pins() -> dict[str, str]:
    """The version of every package that is pinned, by its name."""
    found: dict[str, str] = {}
    for pinned in PYTHON_PINS.values():
        for pin in pinned:
            name, _, version = pin.partition("==")
            found[re.sub(r"\[.*\]", "", name)] = version
    for folder in NPM_PINS.values():
        found |= json.loads((folder / "package.json").read_text())["dependencies"]
    return found


# What a row is called where its package has another name.
PACKAGES = {"pydantic-ai": "pydantic-ai-slim"}


def rows(kind: str) -> list[dict[str, Any]]:
    """What was seen of the clients, or of the servers, by name."""
    seen = [json.loads(path.read_text()) for path in sorted(SEEN.glob("*.json"))]
    return [row for row in seen if row["kind"] == kind]


def table(kind: str, versions: dict[str, str]) -> list[str]:
    """The table of one kind."""
    names = list(dict.fromkeys(row["name"] for row in rows(kind)))
    if kind == "client":
        lines = ["| client | version | over HTTP | over stdio |", "|---|---|---|---|"]
    else:
        lines = ["| server | version | tools | over stdio |", "|---|---|---|---|"]
    for name in sorted(names, key=lambda name: name.lstrip("@")):
        ways = {row["way"]: row for row in rows(kind) if row["name"] == name}
        version = versions[PACKAGES.get(name, name)]
        said = {way: f"works, {row['revision']}" for way, row in ways.items()}
        middle = said.get("http", "-") if kind == "client" else str(ways["stdio"]["tools"])
        lines.append(f"| {name} | {version} | {middle} | {said.get('stdio', '-')} |")
    return lines


def page() -> str:
    """The whole page."""
    versions = pins()
    bridge = "`mcp-remote` is a bridge: a client that speaks stdio reaches an HTTP server through it."
    theirs = ["## Their clients, a Weft server", "", *table("client", versions), "", bridge, ""]
    return "\n".join([TOP, *theirs, "## Their servers, the Weft client", "", *table("server", versions), ""])


def outdated() -> list[str]:
    """The rows whose version is not the pinned one."""
    versions = pins()
    found = re.findall(r"^\| (\S+) \| (\d\S*) \|", PAGE.read_text(), re.MULTILINE)
    wrong = [f"{name} {version}" for name, version in found if versions.get(PACKAGES.get(name, name)) != version]
    return wrong if found else ["(no rows at all)"]


def main() -> int:
    """Write the page, or check it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
        print(f"Written: {PAGE.relative_to(ROOT)}")
        return 0
    wrong = outdated()
    if wrong:
        print(f"docs/interop.md is out of date for {', '.join(wrong)}: run 'make interop'.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
