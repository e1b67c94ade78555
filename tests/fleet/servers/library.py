"""The library of the interop tests in several processes: what it has in memory there is in files here."""

import fcntl
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, MutableSequence
from pathlib import Path
from typing import Any, Literal

from support.remote import NOTES
from weft import Context

LIBRARY = Path(__file__).resolve().parents[2] / "interop" / "servers" / "library.py"
FOLDER = Path(os.environ[NOTES])

spec = importlib.util.spec_from_file_location("library", LIBRARY)
assert spec is not None
assert spec.loader is not None
library = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)
server, example = library.server, library.example


class SharedList(MutableSequence[Any]):
    """A list in a file. One process at a time changes it."""

    def __init__(self, name: str, items: Iterable[Any] = ()) -> None:
        self._file = FOLDER / f"{name}.json"
        self._first = list(items)

    def _read(self) -> list[Any]:
        return json.loads(self._file.read_text()) if self._file.exists() else list(self._first)

    def _change(self, how: Any) -> Any:
        with (FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            items = self._read()
            changed = how(items)
            new = self._file.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(items))
            new.replace(self._file)
            return changed

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._change(lambda items: items.__setitem__(index, value))

    def __delitem__(self, index: Any) -> None:
        self._change(lambda items: items.__delitem__(index))

    def insert(self, index: int, value: Any) -> None:
        self._change(lambda items: items.insert(index, value))

    def __next__(self) -> int:
        """Count: add an item, and return how many there are."""
        return self._change(lambda items: items.append(0) or len(items))


example.slips = SharedList("slips")
example.notices = SharedList("notices", example.notices)
example.waits_given_up = SharedList("waits")
sign = SharedList("sign", ["closed"])

# A tool that is registered while the server runs is registered in one process. So it is registered in all from the
# beginning, and shown while the café is open.
server.add_tool(example.order_coffee)
server.remove_tool("turn_cafe_sign")


@server.tool
def turn_cafe_sign(to: Literal["open", "closed"]) -> str:
    """Open or close the café."""
    sign[0] = to
    server.notify_tools_changed()
    return f"The café is {to}."


@server.middleware
async def hide_coffee(ctx: Context, next: Any) -> Any:
    result = await next()
    if ctx.method == "tools/list" and sign[0] == "closed":
        result.tools = [tool for tool in result.tools if tool.name != "order_coffee"]
    return result
