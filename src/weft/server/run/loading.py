"""Load the user's file or module that the command line names, and find the server in it.

A file beside an `__init__.py` belongs to a package. It is imported under its full name, so that its relative imports
work. Any other file is imported under its file name, with its directory first on `sys.path`, as Python does for a
script. If another file imports the loaded file, it gets the same module, not a second copy with a second server.

This module also has the error messages for names that do not exist, and for files that raise an exception. While a file
is being loaded, `server.run()` in the file does nothing (see `is_loading`), because the program that loads the file
also serves it. So the file works without `if __name__ == "__main__"`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec

from weft.errors import StartError, UsageError
from weft.server.diagnostics import is_users, short_path, summary_of, user_frames, with_article
from weft.server.run.engine import Engine, Servable

log = logging.getLogger("weft.advice")

MODULE = "__weft_main__"  # module name of a file that cannot be imported under its file name
PREFERRED = ("server", "app", "mcp")  # the variable to use if a module has several servers, best first
MOST_FRAMES = 8  # most frames of the user's code in a message
MOST_NAMES = 12  # most names of a module in a message
_WRONG_ARGUMENTS = 2  # the exit code of a program that cannot read its command line

_loading = False


class Target(msgspec.Struct, frozen=True):
    """The server to load: `FILE[:OBJECT]` or `MODULE[:OBJECT]`, and the command-line arguments for the loaded code.

    OBJECT names a Server, or a function that returns a Server.
    """

    text: str
    is_module: bool = False  # True for `-m`: `text` names a module, never a file
    arguments: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The path of the file, or the name of the module: `text` without `:OBJECT`."""
        return _split(self.text)[0]

    @property
    def name(self) -> str | None:
        """The name of the object in the file or module, or None if `text` has no `:OBJECT`."""
        return _split(self.text)[1]


def _split(target: str) -> tuple[str, str | None]:
    r"""Split `PLACE[:OBJECT]` into the place and the object.

    >>> _split("server.py:app"), _split("C:\\tools\\server.py")
    (('server.py', 'app'), ('C:\\tools\\server.py', None))
    """
    found = re.fullmatch(r"(.+?):([^:/\\]*)", target, re.DOTALL)
    return (found[1], found[2]) if found else (target, None)


def is_loading() -> bool:
    """Return whether this process is loading the user's file or module at the moment."""
    return _loading


def load(target: Target) -> Servable:
    """Load the file or module of `target`, and return its server. Raise StartError if that fails."""
    module, shown = _import(target)
    return _find(module, shown, target)


def folder_of(target: Target) -> Path | None:
    """Return the directory with the code of `target`, or None if the code is not found.

    This is the directory of the top-level package, or the directory of the file if the file is in no package.
    """
    path = _file_of(target)
    if path is not None:
        root, name = _package_of(path)
        return root if name is None else root / name.partition(".")[0]
    top = PathFinder.find_spec(target.place.partition(".")[0], [str(Path.cwd()), *sys.path])
    if top is None:
        return None
    folders = top.submodule_search_locations  # None for a module that is not a package
    return Path(next(iter(folders))) if folders else Path(top.origin or "").parent


def movable(target: Target) -> tuple[Target, bool]:
    """Return a copy of `target` with the absolute path of its file, and whether it can be loaded from any directory.

    A target that names a module has no path. If the module is below the working directory, it can be loaded only from
    there, and the second value is False. `target` must have been loaded before.
    """
    path = _file_of(target)
    if path is not None:
        suffix = "" if target.name is None else f":{target.name}"
        return msgspec.structs.replace(target, text=f"{path}{suffix}"), True
    file = sys.modules[target.place].__file__ or ""
    is_here = is_users(file) and Path(file).is_relative_to(Path.cwd())
    return msgspec.structs.replace(target, is_module=True), not is_here


# Importing.


def _import(target: Target) -> tuple[ModuleType, str]:
    """Import the module that `target` names. Return the module, and the name of its file or module for messages."""
    place, path = target.place, _file_of(target)
    if path is None:
        is_name = not place.endswith(".py") and all(map(str.isidentifier, place.split(".")))
        if not is_name or (not target.is_module and Path(place).is_dir()):
            raise StartError(_no_module(place) if target.is_module else _no_file(place))
        return _import_module(place, target, Path.cwd()), place
    shown = short_path(str(path))
    root, name = _package_of(path)
    if name is None:
        return _execute(path, shown, target.arguments), shown
    module = _import_module(name, target, root)
    if Path(module.__file__ or "").resolve() != path:
        raise StartError(f"{shown} cannot be loaded: {module.__file__} has the same module name, {name}. Rename one.")
    return module, shown


def _file_of(target: Target) -> Path | None:
    """Return the path of the file that `target` names, or None if there is no such file.

    For the directory of a package, return the path of its `__init__.py`.
    """
    path = Path(target.place)
    if path.is_dir() and (path / "__init__.py").is_file():
        path /= "__init__.py"
    return path.resolve() if path.is_file() and not target.is_module else None


def _package_of(path: Path) -> tuple[Path, str | None]:
    """Return the directory that contains the top-level package of a file, and the dotted module name of the file.

    If the file is in no package, return the directory of the file, and None.
    """
    folder, parts = path.parent, [] if path.name == "__init__.py" else [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == path.parent or not all(map(str.isidentifier, parts)):
        return path.parent, None
    return folder, ".".join(parts)


def _import_module(name: str, target: Target, root: Path) -> ModuleType:
    """Import the module `name`, and search for it in `root` first."""
    sys.path.insert(0, str(root))
    spec = None
    with _at_load(name, name, target.arguments):
        try:
            spec = importlib.util.find_spec(name)  # this also imports the packages that contain it
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
        if spec is not None and target.is_module and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__") or spec  # as `python -m` does
    if spec is None:
        raise StartError(_no_module(name) if target.is_module or "." in name else _neither(name))
    with _at_load(name, spec.origin or name, target.arguments):
        return importlib.import_module(spec.name)


def _execute(path: Path, shown: str, arguments: Sequence[str]) -> ModuleType:
    """Run a Python file that is in no package, and return its module.

    `shown` is the name of the file in error messages. `arguments` are the command-line arguments for the file.
    """
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise StartError(f"{shown} is not a Python file: its name must end in '.py'.")
    sys.path.insert(0, str(path.parent))
    with _at_load(shown, str(path), arguments):
        name = path.stem
        is_taken = name in sys.modules or name in sys.builtin_module_names
        if name.isidentifier() and not is_taken and not (path.with_suffix("") / "__init__.py").is_file():
            return importlib.import_module(name)
        module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@contextmanager
def _at_load(shown: str, file: str, arguments: Sequence[str]) -> Generator[None]:
    """Return a context for running the user's code. It sets `sys.argv`, and turns exceptions into StartError."""
    global _loading  # noqa: PLW0603 - a process loads one file at a time
    sys.argv = [file, *arguments]  # not restored: a handler may read it later
    _loading = True
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a file may also call `sys.exit`
        raise StartError(_why(shown, error)) from None
    finally:
        _loading = False


# Messages about wrong names.


def _no_file(place: str) -> str:
    path = Path(place)
    if path.is_dir():
        return f"{place!r} is a directory; name a Python file in it, such as server.py."
    if not path.parent.is_dir():
        return f"There is no file {place!r}: the directory {str(path.parent)!r} does not exist."
    return f"There is no file {place!r} in {path.parent.resolve()}. {_similar_files(path)}"


def _neither(name: str) -> str:
    return f"There is no file or module {name!r} in {Path.cwd()}. {_similar_files(Path(f'{name}.py'))}"


def _no_module(name: str) -> str:
    if not all(map(str.isidentifier, name.split("."))):
        return f"{name!r} is not the name of a module; write it with dots, like -m package.server."
    parent, _, last = name.rpartition(".")
    others = pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", ()))
    similar = difflib.get_close_matches(last, [other.name for other in others], n=1)
    meant = f"Did you mean {parent}.{similar[0]}? " if similar else ""
    missing = f" in the package {parent}" if parent in sys.modules else ""
    return f"There is no module {name!r}{missing}. {meant}Modules are searched for in {Path.cwd()}, and in sys.path."


def _similar_files(path: Path) -> str:
    """Return a sentence that suggests up to three Python files beside `path`, if possible with similar names."""
    there = sorted(map(str, path.parent.glob("*.py")))
    similar = difflib.get_close_matches(str(path), there) or there[:3]
    return f"Did you mean {' or '.join(similar)}?" if similar else "There is no Python file there at all."


# Messages about code that fails.


def _why(file: str, error: BaseException) -> str:
    """Return the error message for a file that cannot be loaded: the error, the lines of user code, and a remedy."""
    if isinstance(error, StartError):  # the reason is not in the file, such as a wrong variable of the environment
        return str(error)
    if isinstance(error, UsageError):  # its message already has a remedy
        return f"{file} cannot be loaded. {error}"
    if isinstance(error, SyntaxError):
        place = f"{short_path(error.filename or file)}:{error.lineno}"
        return f"{file} cannot be loaded: {place} is not valid Python: {error.msg}.\n  {(error.text or '').strip()}"
    if isinstance(error, SystemExit) and error.code == _WRONG_ARGUMENTS and len(sys.argv) > 1:
        what = "it refused its arguments (see above): check the arguments after `--`."
    elif isinstance(error, SystemExit):
        what = f"it ended the process with exit({error.code!r}); do that only under `if __name__ == '__main__'`"
    else:
        what = summary_of(error)
    frames = user_frames(error)[-MOST_FRAMES:]
    lines = [f"{file} cannot be loaded: {what}"[:600], *(f"  {frame}" for frame in frames), _remedy(error, frames)]
    return "\n".join(filter(None, lines))


def _remedy(error: BaseException, frames: Sequence[str]) -> str:
    """Return advice on how to repair a failed import, or an empty string for other errors."""
    text = str(error)
    if frames and isinstance(error, ImportError | AttributeError) and "circular import" in text:
        files = list(dict.fromkeys(frame.partition(":")[0] for frame in frames))
        return (
            f"These files import each other in a circle: {' → '.join([*files, files[0]])}. One of them needs a name "
            "that the other has not defined yet. Put `server = Server(...)` into a module that imports neither of "
            "them, or move the import below the line that defines the name."
        )
    if frames and isinstance(error, ImportError) and "attempted relative import" in text:
        place = frames[-1].partition(" in ")[0]
        folder = Path(place.partition(":")[0]).resolve().parent.name
        why = f"{folder}/ has no __init__.py, so it is not a package"
        if "beyond top-level" in text:
            why = "it has more dots than there are packages above it"
        return (
            f"{place} has a relative import, but {why}. Write an absolute import (`import other` for other.py beside "
            f"it), or make {folder}/ a package: add an empty __init__.py to it."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"If {package} is a package, install it where Weft runs: {sys.executable} -m pip install {package}"
    return ""


# Finding the server in a module.


def _find(module: ModuleType, file: str, target: Target) -> Servable:
    names: Mapping[str, Any] = {key: value for key, value in vars(module).items() if not key.startswith("__")}
    servers = {key: value for key, value in names.items() if isinstance(value, Servable)}
    if target.name is not None:
        return _named(names, servers, file, target.name)
    if not servers:
        raise StartError(_no_server(module, names, file, is_module=target.is_module))
    if len(set(map(id, servers.values()))) == 1:
        return next(iter(servers.values()))
    for preferred in PREFERRED:
        if preferred in servers:
            return servers[preferred]
    listed = ", ".join(servers)
    raise StartError(f"{file} has several servers: {listed}. Say which one: {file}:{next(iter(servers))}")


def _named(names: Mapping[str, Any], servers: Mapping[str, Servable], file: str, name: str) -> Servable:
    if name in servers:
        return servers[name]
    found: Any = names.get(name)
    if inspect.isroutine(found) and not (servers and _needed(found)):
        return _made(found, file, name)
    if name in names:
        what = f"{name!r} in {file} is {with_article(type(names[name]).__name__)}, not a Server."
    else:
        what = f"{file} has no object {name!r}."
    if not servers:
        raise StartError(f"{what} There is no Server in the file at all. {_there(names)}")
    similar = difflib.get_close_matches(name, servers, n=1)
    meant = f" Did you mean {file}:{similar[0]}?" if similar else ""
    raise StartError(f"{what} The servers there: {', '.join(servers)}.{meant}")


def _made(make: Callable[..., Any], file: str, name: str) -> Servable:
    """Call the function `make`, and return the server that it returns. Raise StartError if that is not possible."""
    if inspect.iscoroutinefunction(make):
        wrong = "is an async function; a function that makes a server must be a plain `def`."
    elif needed := _needed(make):
        wrong = f"needs arguments: {', '.join(needed)}. A function that makes a server is called without any."
    else:
        with _at_load(f"{file}:{name}", sys.argv[0], sys.argv[1:]):
            made = make()
        if isinstance(made, Servable):
            return made
        wrong = f"is a function that returned {with_article(type(made).__name__)}, not a Server. Let it return a Server"
    raise StartError(f"{name!r} in {file} {wrong}")


def _needed(make: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that a caller of `make` must pass."""
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(make).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in loose]


def _no_server(module: ModuleType, names: Mapping[str, Any], file: str, *, is_module: bool) -> str:
    for name, value in names.items():
        returned = getattr(value, "__annotations__", {}).get("return")
        if isinstance(value, FunctionType) and getattr(returned, "__name__", returned) in ("Server", "weft.Server"):
            return f"{file} has no Server in it at module level, but a function that makes one: {file}:{name}"
    functions = _plain_functions(module)
    decorate = f", and write @server.tool above `def {functions[0]}`" if functions else ""
    is_package = is_module and hasattr(module, "__path__")
    main = f" (`-m` looks for {file}.__main__ first; there is none.)" if is_package else ""
    return (
        f"{file} has no Server in it at module level. Make one: server = weft.Server('my-server'){decorate}. "
        f"{_there(names)}{main}"
    )


def warn_of_empty_server(engine: Engine) -> None:
    """Log a warning if a server has no tools, resources or prompts, and suggest a remedy.

    Log nothing if the server has extensions, or if the lifespan, which may register features, has not started yet.
    """
    may_register = engine.lifespan.factory is not None and not engine.lifespan.started
    if _offers(engine) or engine.extensions or may_register:
        return
    modules = [one for one in list(sys.modules.values()) if is_users(getattr(one, "__file__", None) or "<none>")]
    own = next((one for one in modules if any(value is engine.owner for value in vars(one).values())), None)
    remedy = "Write @server.tool above each function that clients may call."
    if own is not None:
        file = short_path(own.__file__ or "")
        if other := _other_copy(own, modules):
            remedy = (
                f"{file} was loaded twice, as {own.__name__} and as {other.__name__}, since another file imports it: "
                f"the tools are registered on the server of the second copy. Start it with `weft run {file}`, or put "
                "the server into a file that imports none of the others."
            )
        elif functions := _plain_functions(own):
            remedy = f"Write @server.tool above `def {functions[0]}` in {file}, and others that clients may call."
    log.warning("The server %r has no tools, resources or prompts. %s", engine.name, remedy)


def _offers(engine: Engine) -> bool:
    return bool(len(engine.tools) or len(engine.resources) or len(engine.prompts))


def _servers_in(module: ModuleType) -> list[Servable]:
    return [value for value in vars(module).values() if isinstance(value, Servable)]


def _other_copy(module: ModuleType, modules: Sequence[ModuleType]) -> ModuleType | None:
    """Return another module that was loaded from the same file and whose server has features, or None."""
    copies = (one for one in modules if one is not module and one.__file__ == module.__file__)
    return next((copy for copy in copies if any(_offers(server.engine) for server in _servers_in(copy))), None)


def _plain_functions(module: ModuleType) -> list[str]:
    """Return the names of the public functions that a module defines, except middleware and other callbacks."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not any(server.engine.calls_for_itself(value) for server in _servers_in(module))
    ]


def _there(names: Mapping[str, Any]) -> str:
    """Return a sentence that lists the public names in `names`, except imported modules."""
    own = [key for key, value in names.items() if not isinstance(value, ModuleType) and not key.startswith("_")]
    more = f" and {len(own) - MOST_NAMES} more" if len(own) > MOST_NAMES else ""
    return f"It has: {', '.join(own[:MOST_NAMES]) or 'nothing'}{more}."
