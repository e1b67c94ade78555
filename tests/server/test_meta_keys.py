"""Every `_meta` key that Weft defines or sends begins with its owner's domain, in reverse order (META-12)."""

import ast
import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import weft
from support import LOG_LEVEL_KEY, encode, make_server, message
from support.raw_sessions import eventually
from support.sessions import introduction, rpc
from weft.protocol.names import check_meta_key
from weft.types.base import SERVER_INFO_KEY, SUBSCRIPTION_ID_KEY
from weft.types.lifecycle import RequestMeta

BARE = {"progressToken", "traceparent", "tracestate", "baggage"}  # those that the specification names without a prefix
TOP_LEVEL = {"io", "com", "org", "net", "dev"}  # domains that names of owners begin with here
MODULES = [one.name for one in pkgutil.walk_packages(weft.__path__, "weft.") if not one.name.endswith("__main__")]


def is_owned(key: str) -> bool:
    """Whether a key begins with a domain in reverse order: the top-level domain first, then at least one label."""
    check_meta_key(key)
    labels = key.rpartition("/")[0].split(".")
    return len(labels) > 1 and labels[0] in TOP_LEVEL


def keys_written(module: ModuleType) -> Iterator[str]:
    """The keys of every `_meta` that a module writes: what is said as `meta`, or under "_meta"."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for node in ast.walk(tree):
        for name, value in _said(node):
            if name in ("meta", "_meta") and isinstance(value, ast.Dict):
                yield from (_resolved(key, module) for key in value.keys if key is not None)  # None: `**others`


def _said(node: ast.AST) -> Iterator[tuple[str | None, ast.AST]]:
    """Names, and what they are given: an argument, a variable, an entry of a dictionary."""
    if isinstance(node, ast.keyword):
        yield node.arg, node.value
    elif isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        for target in node.targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                yield target.value.id, ast.Dict([target.slice], [node.value])
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _resolved(key: ast.expr, module: ModuleType) -> str:
    if isinstance(key, ast.Constant):
        return str(key.value)
    assert isinstance(key, ast.Name), f"{module.__name__}:{key.lineno} has a key that cannot be read: name it"
    return str(getattr(module, key.id, key.id))


def keys_in(value: Any) -> set[str]:
    """The keys of every `_meta` in a message, however deep."""
    if isinstance(value, dict):
        own = set(value.get("_meta") or ())
        return own.union(*(keys_in(inner) for inner in value.values()))
    return set().union(*(keys_in(inner) for inner in value)) if isinstance(value, list) else set()


@pytest.mark.spec("META-12")
def test_the_keys_that_the_source_writes() -> None:
    found = {key for name in MODULES for key in keys_written(importlib.import_module(name))}
    assert {SERVER_INFO_KEY, SUBSCRIPTION_ID_KEY} <= found  # or nothing was looked at
    assert [key for key in sorted(found - BARE) if not is_owned(key)] == []


@pytest.mark.spec("META-12")
def test_the_keys_that_requests_have() -> None:
    known = {one.encode_name for one in msgspec.structs.fields(RequestMeta)}
    assert known > BARE
    assert [key for key in sorted(known - BARE) if not is_owned(key)] == []


@pytest.mark.spec("META-12")
def test_what_looks_like_a_key_in_the_source_is_one() -> None:
    """Also a constant that nobody writes in one of the ways looked for above."""
    found: dict[str, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        constants = {key: value for key, value in vars(module).items() if key.endswith("_KEY")}
        found |= {f"{name}.{key}": value for key, value in constants.items() if isinstance(value, str)}
    assert SERVER_INFO_KEY in found.values()
    assert {name: key for name, key in found.items() if not is_owned(key)} == {}


@pytest.mark.spec("META-12")
async def test_the_keys_that_are_sent() -> None:
    """In both eras, with everything that a server has to say."""
    server, got = make_server(), list[Any]()
    await server.engine.lifespan.start()
    pipe = server.pipe(lambda line: got.append(json.loads(line)))
    meta = {"progressToken": "p", LOG_LEVEL_KEY: "debug"}
    tools = [one.name for one in server.engine.tools]  # those that need arguments say so
    alone = ["server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list"]
    pipe.send(encode(message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="listen")))
    for number, method in enumerate(alone):
        pipe.send(encode(message(method, id=number, meta=meta)))
    for name in tools:
        pipe.send(encode(message("tools/call", {"name": name, "arguments": {}}, id=name, meta=meta)))
    pipe.send(json.dumps(rpc("initialize", introduction(), id="hello")).encode())
    server.notify_tools_changed()
    await eventually(lambda: {"hello", *range(len(alone)), *tools} <= {one.get("id") for one in got})
    await pipe.close()
    await server.stop()
    sent = set().union(*map(keys_in, got))
    assert {SERVER_INFO_KEY, SUBSCRIPTION_ID_KEY} <= sent
    assert [key for key in sorted(sent - BARE) if not is_owned(key)] == []


@pytest.mark.spec("META-12")
@pytest.mark.parametrize("key", ["serverInfo", "weft/thing", "modelcontextprotocol.io/serverInfo", "example/x"])
def test_a_key_without_its_owner_would_be_found(key: str) -> None:
    assert not is_owned(key)
