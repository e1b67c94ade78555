"""From `FILE[:OBJECT]` to a Server: loads a user's file and finds the server in it.

Owns the sentences for a wrong file, a wrong object and a file that fails. While a file is being loaded, `server.run()`
in it does nothing (`is_loading`): whoever loads it serves it, also where it forgot `if __name__ == "__main__"`.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.errors import StartError, UsageError
from weft.server.app import Server
from weft.server.faults import summary_of
from weft.server.where import short_path, user_frames

__all__ = ["is_loading", "load", "split_target"]

MODULE = "__weft_main__"  # not `__main__`: the file is loaded, not run
PREFERRED = ("server", "app", "mcp")
MOST_FRAMES = 8
MOST_NAMES = 12

_loading = False


def is_loading() -> bool:
    """Whether a file is being loaded right now."""
    return _loading


def split_target(target: str) -> tuple[str, str | None]:
    r"""The file and the object of `FILE[:OBJECT]`.

    >>> split_target("server.py:app"), split_target("C:\\tools\\server.py")
    (('server.py', 'app'), ('C:\\tools\\server.py', None))
    """
    found = re.fullmatch(r"(.+?):([^:/\\]*)", target, re.DOTALL)
    return (found[1], found[2]) if found else (target, None)


def load(target: str) -> Server:
    """The server that `FILE[:OBJECT]` names. Raises `StartError` with a sentence for every way this can go wrong."""
    file, name = split_target(target)
    path = _existing(file)
    return _find(_execute(path), short_path(str(path)), name)


def _existing(file: str) -> Path:
    path = Path(file)
    if path.is_file():
        return path.resolve()
    if path.is_dir():
        there = _suggest(path, "server.py") or "server.py"
        raise StartError(f"{file!r} is a directory; name a Python file in it, such as {there}.")
    folder = path.parent
    if not folder.is_dir():
        raise StartError(f"There is no file {file!r}: the directory {str(folder)!r} does not exist.")
    meant = _suggest(folder, path.name)
    remedy = f"Did you mean {meant}?" if meant else "There is no Python file there at all; check the path."
    raise StartError(f"There is no file {file!r} in {folder.resolve()}. {remedy}")


def _suggest(folder: Path, name: str) -> str:
    """Python files in a folder, the most similar to `name` first; empty when there is none."""
    there = sorted(map(str, folder.glob("*.py")))
    similar = difflib.get_close_matches(str(folder / name), there, n=3, cutoff=0.6) or there[:3]
    return " or ".join(similar)


def _execute(path: Path) -> ModuleType:
    """Run the file as a module, with its directory first on `sys.path` as Python does for a script."""
    global _loading  # noqa: PLW0603 - there is one interpreter, and it loads one file at a time
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise StartError(f"{short_path(str(path))} is not a Python file: its name must end in '.py'.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # where pickle, dataclasses and annotations look for it
    sys.path.insert(0, str(path.parent))
    _loading = True
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a file may also call `sys.exit`
        raise StartError(_why(short_path(str(path)), error)) from None
    finally:
        _loading = False
    return module


def _why(file: str, error: BaseException) -> str:
    """What went wrong in the user's file: the error, the user's own lines, and what to do."""
    if isinstance(error, UsageError):  # it is such a sentence already
        return f"{file} cannot be loaded. {error}"
    if isinstance(error, SyntaxError):
        place = f"{short_path(error.filename or file)}:{error.lineno}"
        return f"{file} cannot be loaded: {place} is not valid Python: {error.msg}.\n  {(error.text or '').strip()}"
    if isinstance(error, SystemExit):
        what = f"it ended the process with exit({error.code!r}); do that only under `if __name__ == '__main__'`"
    else:
        what = summary_of(error)
    lines = [f"{file} cannot be loaded: {what}"[:600], *(f"  {frame}" for frame in user_frames(error)[-MOST_FRAMES:])]
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        lines.append(
            f"If {package} is a package, install it where Weft runs: {sys.executable} -m pip install {package}"
        )
    return "\n".join(lines)


def _find(module: ModuleType, file: str, name: str | None) -> Server:
    names: Mapping[str, Any] = {key: value for key, value in vars(module).items() if not key.startswith("__")}
    servers = {key: value for key, value in names.items() if isinstance(value, Server)}
    if name is not None:
        return _named(names, servers, file, name)
    if not servers:
        raise StartError(
            f"{file} has no Server in it at module level. Make one: server = weft.Server('my-server'). {_there(names)}"
        )
    if len({id(server) for server in servers.values()}) == 1:
        return next(iter(servers.values()))
    for preferred in PREFERRED:
        if preferred in servers:
            return servers[preferred]
    listed = ", ".join(servers)
    raise StartError(f"{file} has several servers: {listed}. Say which one: {file}:{next(iter(servers))}")


def _named(names: Mapping[str, Any], servers: Mapping[str, Server], file: str, name: str) -> Server:
    if name in servers:
        return servers[name]
    if name in names:
        what = f"{name!r} in {file} is a {type(names[name]).__name__}, not a Server."
    else:
        what = f"{file} has no object {name!r}."
    if not servers:
        raise StartError(f"{what} There is no Server in the file at all. {_there(names)}")
    similar = difflib.get_close_matches(name, servers, n=1)
    meant = f" Did you mean {file}:{similar[0]}?" if similar else ""
    raise StartError(f"{what} The servers there: {', '.join(servers)}.{meant}")


def _there(names: Mapping[str, Any]) -> str:
    """What a module has besides what it imported as modules."""
    own = [key for key, value in names.items() if not isinstance(value, ModuleType) and not key.startswith("_")]
    if not own:
        return "The file defines nothing."
    more = f" and {len(own) - MOST_NAMES} more" if len(own) > MOST_NAMES else ""
    return f"It has: {', '.join(own[:MOST_NAMES])}{more}."
