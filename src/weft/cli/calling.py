"""Run `weft call`, `weft list`, `weft read` and `weft prompt`: send a request to a server and print the answer."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from weft.cli.peer import CallFailed, RemoteServer
from weft.cli.printing import WrongCommand, show, show_failure, show_json, show_line, to_line, to_text
from weft.protocol.schema import is_array, is_object

NESTING = 4  # levels of a type that are written out


def call(peer: RemoteServer, tool: str, arguments: str) -> int:
    """Call a tool and print its result; return 1 if that is an error."""
    result = peer.call_tool(tool, _read_arguments(arguments))
    failed = bool(result.get("isError"))
    stream = sys.stderr if failed else sys.stdout
    blocks = _objects(result.get("content"))
    for block in blocks:
        show(_show(block), stream)
    if not blocks and "structuredContent" in result:
        show_json(result["structuredContent"], stream)
    return 1 if failed else 0


def read(peer: RemoteServer, uri: str) -> int:
    """Read a resource and print it: text as text, anything else as bytes."""
    result = peer.request("resources/read", {"uri": uri})
    for part in _objects(result.get("contents")):
        if "blob" not in part:
            show(str(part.get("text", "")))
        elif sys.stdout.isatty():  # a terminal cannot show bytes
            show_line(f"[{part.get('mimeType', 'bytes')}, {len(_bytes(peer, part['blob']))} bytes; > FILE keeps them]")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(_bytes(peer, part["blob"]))
    return 0


def prompt(peer: RemoteServer, name: str, arguments: str) -> int:
    """Get a prompt and print its messages, each with its role; further lines of a message are indented."""
    result = peer.get_prompt(name, _as_text(_read_arguments(arguments)))
    for message in _objects(result.get("messages")):
        content = to_text(_show(_object(message.get("content")))).splitlines() or [""]
        print(f"{to_line(str(message.get('role')))}: {content[0]}")
        for line in content[1:]:
            print(f"  {line}")
    return 0


def list_all(peer: RemoteServer) -> int:
    """Print what a server offers; return 1 if it refused one of the lists. The others are printed nevertheless."""
    found = peer.lists([(capability, method, key) for _, capability, method, key, _ in _LISTS])
    for (title, _, _, _, describe), items in zip(_LISTS, found, strict=False):
        if isinstance(items, CallFailed):
            show_failure(str(items))
            continue
        if items:
            print(f"{title}:")
        for item in filter(None, _objects(items)):
            name = item.get("uriTemplate") or item.get("uri") or item.get("name")
            about = str(item.get("description") or item.get("title") or "").strip().partition("\n")[0]
            show_line(f"  {name}" + (f"  {about}" if about else ""))
            if describe is not None and (arguments := describe(item)):
                show_line(f"    {arguments}")
    if not any(found):
        show_line(f"{peer.where} has no tools, resources or prompts.", sys.stderr)
    return 1 if any(isinstance(items, CallFailed) for items in found) else 0


def _bytes(peer: RemoteServer, blob: Any) -> bytes:
    try:
        return base64.b64decode(blob)
    except (ValueError, TypeError):
        raise CallFailed(f"{peer.where} sent bytes that cannot be read: they are not in base64.") from None


def _tool_arguments(tool: Mapping[str, Any]) -> str:
    """Return the arguments of a tool as one line: `tea: string, grams: integer = 100`."""
    schema = _object(tool.get("inputSchema"))
    required = schema.get("required")
    required = required if is_array(required) else ()
    words: list[str] = []
    for name, about in _object(schema.get("properties")).items():
        default = f" = {_json(about['default'])}" if is_object(about) and "default" in about else ""
        words.append(f"{name}{'' if default or name in required else '?'}: {_type(about, schema)}{default}")
    return ", ".join(words)


def _prompt_arguments(item: Mapping[str, Any]) -> str:
    """Return the arguments of a prompt as one line: `mood, tea?`."""
    return ", ".join(
        f"{one.get('name')}{'' if one.get('required') else '?'}" for one in _objects(item.get("arguments"))
    )


# Title, capability, method, key of the items, and what describes the arguments of an item.
_LISTS: tuple[tuple[str, str, str, str, Callable[[Mapping[str, Any]], str] | None], ...] = (
    ("tools", "tools", "tools/list", "tools", _tool_arguments),
    ("resources", "resources", "resources/list", "resources", None),
    ("resource templates", "resources", "resources/templates/list", "resourceTemplates", None),
    ("prompts", "prompts", "prompts/list", "prompts", _prompt_arguments),
)


def _type(about: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return the type that a schema describes in a few words, down to a depth: a schema may refer to itself."""
    facts = _object(about) if depth < NESTING else {}
    if "$ref" in facts:
        return _type(_object(root.get("$defs")).get(str(facts["$ref"]).rpartition("/")[2]), root, depth + 1)
    if is_array(facts.get("enum")) or "const" in facts:
        return " | ".join(_json(one) for one in facts.get("enum") or [facts.get("const")])
    if is_array(facts.get("anyOf")):
        return " | ".join(_type(one, root, depth + 1) for one in facts["anyOf"])
    if facts.get("type") == "array" and "items" in facts:
        return f"[{_type(facts['items'], root, depth + 1)}]"
    if names := _object(facts.get("properties")):
        return f"{{{', '.join(names)}}}"
    kind = facts.get("type", "any")
    return " | ".join(map(str, kind)) if is_array(kind) else str(kind)


def _object(value: Any) -> dict[str, Any]:
    """Return what a server sent if it is an object, else an empty one."""
    return value if is_object(value) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [_object(one) for one in value] if is_array(value) else []


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read_arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise WrongCommand(f"The arguments are not a JSON object ({error}); write them like '{{\"a\": 1}}'.") from None


def _as_text(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a prompt as text: other values as JSON, and none for null."""
    return {
        name: value if isinstance(value, str) else _json(value)
        for name, value in arguments.items()
        if value is not None
    }


def _show(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        return f"[{kind}, {block.get('mimeType')}, {len(block.get('data', '')) * 3 // 4} bytes]"
    if kind == "resource_link":
        return f"[resource {block.get('uri')}]"
    return _json(block)
