"""Every extension that Weft declares has its fallback in the documentation (VER-07)."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import weft
from weft.protocol.names import check_extension_id
from weft.server.runtime.dispatch import Extension
from weft.types.tasks import IMMEDIATE_RESPONSE_KEY, RELATED_TASK_KEY

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "extensions.md"
MODULES = [one.name for one in pkgutil.walk_packages(weft.__path__, "weft.") if not one.name.endswith("__main__")]


def declared() -> set[str]:
    """The identifiers that classes of Weft's have: of what a client declares, and of what a server does."""
    found: set[str] = set()
    for name in MODULES:
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and value.__module__.startswith("weft."):
                id = value.id if issubclass(value, Extension) else vars(value).get("extension")
                found |= {id} if isinstance(id, str) and id else set()
    return found


@pytest.mark.spec("VER-07")
def test_every_extension_has_its_fallback_in_the_documentation() -> None:
    table = PAGE.read_text().partition("## Without an extension\n")[2]
    told = dict(re.findall(r"^\| `(.+?)` \| .+? \| (.+?) \|$", table, re.MULTILINE))
    ids = declared()
    for id in ids:
        check_extension_id(id)
    assert "io.modelcontextprotocol/oauth-client-credentials" in ids  # or nothing was looked at
    assert told.keys() == ids
    assert [id for id, fallback in told.items() if len(fallback.split()) < 10] == []


@pytest.mark.spec("VER-07")
def test_no_identifier_in_the_source_is_missing() -> None:
    """Also one that no class has: whatever in the source is written like an identifier of MCP's, `_meta` keys aside."""
    sources = "".join(path.read_text() for path in Path(weft.__path__[0]).rglob("*.py"))
    written = set(re.findall(r'"(io\.modelcontextprotocol/[a-z][a-z-]*)"', sources)) - {
        RELATED_TASK_KEY,
        IMMEDIATE_RESPONSE_KEY,
    }
    assert written == declared()
