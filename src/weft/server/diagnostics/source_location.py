"""Places in the user's code: where a function is written, which frames of a traceback are the user's.

Owns what "file:line" means in every message of Weft. It must not import or run anything of the user's: it only
looks at code objects and frames that exist already.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, cast


def target(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that holds the code behind a partial, a bound method, a wrapper or a callable object."""
    found: Any = fn
    while True:
        if isinstance(found, functools.partial):
            found = cast("Any", found).func
        elif inspect.ismethod(found):
            found = found.__func__
        elif hasattr(found, "__wrapped__"):
            found = found.__wrapped__
        elif not inspect.isroutine(found) and not inspect.isclass(found) and hasattr(type(found).__call__, "__code__"):
            found = type(found).__call__
        else:
            return cast("Callable[..., Any]", found)


def location(fn: Callable[..., Any]) -> str:
    """Where a function is written.

    >>> location(location).rpartition(":")[0].endswith("source_location.py")
    True
    """
    code: CodeType | None = getattr(target(fn), "__code__", None)
    if code is not None:
        return f"{short_path(code.co_filename)}:{code.co_firstlineno}"
    module = getattr(fn, "__module__", None) or type(fn).__module__
    return f"module {module}"


def caller() -> str:
    """Where the user's code called into Weft, for what has no function to point at."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "weft":
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def describe(fn: Callable[..., Any]) -> str:
    """The name of a function with its place: `book (server.py:12)`."""
    name = getattr(target(fn), "__name__", None) or type(fn).__name__
    if name == "__call__" and not inspect.isroutine(fn):
        name = type(fn).__name__
    return f"{name} ({location(fn)})"


def short_path(filename: str) -> str:
    """A file name as a user recognises it: relative to the working directory, else its last two parts."""
    if filename.startswith("<"):
        return filename
    path = Path(filename)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(Path(*path.parts[-2:]))


def user_frames(error: BaseException) -> list[str]:
    """The frames of a traceback that are the user's own, outermost first, each as `file:line in name: source`.

    Weft's own frames, the standard library's and those of installed packages are left out: the mistake is not there.
    """
    return [
        f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}" + (f": {frame.line}" if frame.line else "")
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename)
    ]


def enclosing_locals(fn: Callable[..., Any]) -> dict[str, Any]:
    """The local names of the running function in which `fn` is written; empty when it is written at top level.

    Annotations written as text may name a class that is local to the function which registers the tool.
    """
    code: CodeType | None = getattr(target(fn), "__code__", None)
    outer = code.co_qualname.rpartition(".<locals>.")[0] if code else ""
    if code is None or not outer:
        return {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_qualname == outer and frame.f_code.co_filename == code.co_filename:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def is_users(filename: str) -> bool:
    """Whether a file is the user's own: not Weft's, nor the standard library's, nor an installed package's."""
    if filename.startswith("<") or filename.endswith(".pyx"):  # made up, or compiled
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(room) for room in _not_users())


@functools.cache
def _not_users() -> tuple[Path, ...]:
    """The directories of Weft, the standard library and installed packages: only looked for once something failed."""
    import sysconfig  # slow to load, and few programs fail

    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (Path(__file__).resolve().parent.parent, *(Path(room).resolve() for room in libraries))
