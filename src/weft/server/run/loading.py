"""Load the user's file or module that the command line names, and find the server in it.

A file beside an `__init__.py` belongs to a package. It is imported under its full name, so that its relative imports
work. Any other file is imported under its file name, with its directory first on `sys.path`, as Python does for a
script. Another file that imports this file gets the same module, not a second copy with a second server.

The error messages for a wrong file, module or object, and for a file that fails, are in this module. While a file is
being loaded, `server.run()` in it does nothing (`is_loading`), because the program that loads the file serves it. So
the file works without `if __name__ == "__main__"`.
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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
PREFERRED = ("server", "app", "mcp")
MOST_FRAMES = 8
MOST_NAMES = 12
_WRONG_ARGUMENTS = 2  # the exit code of a program that cannot read its command line

_loading = False


class Target(msgspec.Struct, frozen=True):
    """What to load: `FILE[:OBJECT]` or `MODULE[:OBJECT]`, and the arguments for its `sys.argv`.

    The object is a Server, or a function that returns one.
    """

    text: str
    is_module: bool = False  # True for `-m`: `text` names a module, never a file
    arguments: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The file or module."""
        return _split(self.text)[0]

    @property
    def name(self) -> str | None:
        """The name of the object in the file or module; None if the target names none."""
        return _split(self.text)[1]


def _split(target: str) -> tuple[str, str | None]:
    r"""Split `PLACE[:OBJECT]` into the place and the object.

    >>> _split("server.py:app"), _split("C:\\tools\\server.py")
    (('server.py', 'app'), ('C:\\tools\\server.py', None))
    """
    found = re.fullmatch(r"(.+?):([^:/\\]*)", target, re.DOTALL)
    return (found[1], found[2]) if found else (target, None)


def is_loading() -> bool:
    """Return whether a file is being loaded now."""
    return _loading


def load(target: Target) -> Servable:
    """Load a target and return its server. Raise `StartError`, with the reason and a remedy, if that fails."""
    module, shown = _import(target)
    try:
        return _find(module, shown, target.name)
    except StartError as error:
        if error.__context__ is not None or not (target.is_module and hasattr(module, "__path__")):
            raise
        message = f"{error} (`-m` looks for {shown}.__main__ first; there is none.)"
    raise StartError(message)


def folder_of(target: Target) -> Path | None:
    """Return the directory of a target's code: its top package, or the directory of its file; None if not found."""
    found = None if target.is_module else _file_of(target.place)
    if found is None and _is_module_name(target.place):
        top = PathFinder.find_spec(target.place.partition(".")[0], [str(Path.cwd()), *sys.path])
        if top is None:
            return None
        if top.submodule_search_locations:
            return Path(next(iter(top.submodule_search_locations)))
        return Path(top.origin).parent if top.origin else None
    if found is None:
        return None
    package = _package_of(found)
    return found.parent if package is None else package[0] / package[1].partition(".")[0]


def movable(target: Target) -> tuple[Target, bool]:
    """Return another target for the same server, and whether it can be loaded from any directory.

    The new target names the file by its full path or, if that is not possible, the module. A module below the working
    directory can be loaded only from there, so the second value is then False. `target` must have been loaded before.
    """
    suffix = "" if target.name is None else f":{target.name}"
    path = None if target.is_module else _file_of(target.place)
    if path is None:
        module = sys.modules[target.place]
        path = Path(module.__file__ or "").resolve()
        has_path = hasattr(module, "__path__")
        if has_path or not is_users(str(path)) or (_package_of(path) or (None, path.stem))[1] != target.place:
            is_here = path.is_relative_to(Path.cwd()) and is_users(str(path))
            return msgspec.structs.replace(target, is_module=True), not is_here
    return Target(f"{path}{suffix}", arguments=target.arguments), True


# Importing.


def _import(target: Target) -> tuple[ModuleType, str]:
    """Import the module of a target. Return the module, and the name of its file to show in messages."""
    place = target.place
    path = None if target.is_module else _file_of(place)
    if path is None and (not _is_module_name(place) or (not target.is_module and Path(place).is_dir())):
        raise StartError(_no_module(place) if target.is_module else _no_file(place))
    if path is None:
        return _import_module(place, target, Path.cwd()), place
    shown = short_path(str(path))
    package = _package_of(path)
    if package is None:
        return _execute(path, shown, target.arguments), shown
    root, name = package
    module = _import_module(name, target, root)
    if Path(module.__file__ or "").resolve() != path:
        raise StartError(
            f"{shown} is the module {name}, but Python finds another one under this name: {module.__file__}. Rename "
            "the package, or uninstall the other one."
        )
    return module, shown


def _file_of(place: str) -> Path | None:
    """Return the file at a path (for a package, its `__init__.py`); None if there is no file."""
    path = Path(place)
    if path.is_dir() and (path / "__init__.py").is_file():
        path /= "__init__.py"
    return path.resolve() if path.is_file() else None


def _is_module_name(place: str) -> bool:
    """Return whether `place` can be the dotted name of a module. `server.py` cannot: it is a file name."""
    return not place.endswith(".py") and all(map(str.isidentifier, place.split(".")))


def _package_of(path: Path) -> tuple[Path, str] | None:
    """Return the directory above a file's package, and the full name of its module; None if there is no package."""
    folder, parts = path.parent, [] if path.name == "__init__.py" else [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if folder == path.parent or not all(map(str.isidentifier, parts)):
        return None
    return folder, ".".join(parts)


def _import_module(name: str, target: Target, root: Path) -> ModuleType:
    """Import a module by name. Look in `root` first."""
    _put_first(root)
    spec = None
    with _at_load(name, name, target.arguments):
        try:
            spec = importlib.util.find_spec(name)  # imports the packages above it
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
        if spec is not None and target.is_module and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__") or spec  # as `python -m` does
    if spec is None:
        raise StartError(_no_module(name) if target.is_module else _neither(name))
    with _at_load(name, spec.origin or name, target.arguments):
        return importlib.import_module(spec.name)


def _execute(path: Path, shown: str, arguments: Sequence[str]) -> ModuleType:
    """Run a file that belongs to no package; return its module."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise StartError(f"{shown} is not a Python file: its name must end in '.py'.")
    _put_first(path.parent)
    with _at_load(shown, str(path), arguments):
        if _can_be_imported(path):
            return importlib.import_module(path.stem)
        module = importlib.util.module_from_spec(spec)
        sys.modules[MODULE] = module  # pickle, dataclasses and annotations look it up there
        spec.loader.exec_module(module)
        return module


def _can_be_imported(path: Path) -> bool:
    """Return whether `import NAME`, with the file's directory first on `sys.path`, imports this file."""
    if not path.stem.isidentifier() or path.stem in sys.modules or path.stem in sys.builtin_module_names:
        return False
    found = PathFinder.find_spec(path.stem, [str(path.parent)])
    return found is not None and found.origin is not None and Path(found.origin) == path


def _put_first(folder: Path) -> None:
    sys.path.insert(0, str(folder))


@contextmanager
def _at_load(shown: str, file: str, arguments: Sequence[str]) -> Generator[None]:
    """Set `sys.argv` for the user's code that runs in this context, and turn its exceptions into a `StartError`."""
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
        there = _suggest(path, "server.py") or "server.py"
        return f"{place!r} is a directory; name a Python file in it, such as {there}."
    folder = path.parent
    if not folder.is_dir():
        return f"There is no file {place!r}: the directory {str(folder)!r} does not exist."
    meant = _suggest(folder, path.name)
    remedy = f"Did you mean {meant}?" if meant else "There is no Python file there at all; check the path."
    return f"There is no file {place!r} in {folder.resolve()}. {remedy}"


def _neither(name: str) -> str:
    """Return the message for a name that is neither a file nor a module."""
    if "." in name:
        return _no_module(name)
    meant = _suggest(Path(), f"{name}.py")
    remedy = f"Did you mean {meant}?" if meant else "There is no Python file there at all; check the name."
    return f"There is no file or module {name!r} in {Path.cwd()}. {remedy}"


def _no_module(name: str) -> str:
    if not all(map(str.isidentifier, name.split("."))):
        return f"{name!r} is not the name of a module; write it with dots, like -m package.server."
    parent, _, last = name.rpartition(".")
    similar = difflib.get_close_matches(last, _modules_in(parent), n=1)
    meant = f"Did you mean {f'{parent}.' if parent else ''}{similar[0]}? " if similar else ""
    missing = f" in the package {parent}" if parent in sys.modules else ""
    looked = f"Modules are searched for in {Path.cwd()}, and in sys.path."
    return f"There is no module {name!r}{missing}. {meant}{looked}"


def _modules_in(package: str) -> Iterator[str]:
    if package and package not in sys.modules:
        return
    places = [str(Path.cwd())] if not package else list(getattr(sys.modules[package], "__path__", ()))
    for found in pkgutil.iter_modules(places):
        yield found.name


def _suggest(folder: Path, name: str) -> str:
    """Suggest up to three Python files of a folder, if possible with names like `name`; empty if there are no files."""
    there = sorted(map(str, folder.glob("*.py")))
    similar = difflib.get_close_matches(str(folder / name), there, n=3, cutoff=0.6) or there[:3]
    return " or ".join(similar)


# Messages about code that fails.


def _why(file: str, error: BaseException) -> str:
    """Return the message for a file that fails: the error, the places in the user's code, and a remedy."""
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
    lines = [f"{file} cannot be loaded: {what}"[:600], *(f"  {frame}" for frame in frames)]
    if remedy := _remedy(error, frames):
        lines.append(remedy)
    return "\n".join(lines)


def _remedy(error: BaseException, frames: Sequence[str]) -> str:
    text = str(error)
    if isinstance(error, ImportError | AttributeError) and "circular import" in text:
        files = list(dict.fromkeys(frame.partition(":")[0] for frame in frames))
        circle = f"These files import each other in a circle: {' → '.join([*files, files[0]])}. " if files else ""
        return (
            f"{circle}One of them needs a name that the other has not defined yet. Put `server = Server(...)` into a "
            "module that imports neither of them, or move the import below the line that defines the name."
        )
    if isinstance(error, ImportError) and "attempted relative import" in text:
        place = frames[-1].partition(" in ")[0] if frames else "A file"
        folder = Path(place.partition(":")[0]).resolve().parent
        if "beyond top-level" in text:
            above = "it has more dots than there are packages above it"
        else:
            above = f"{folder.name}/ has no __init__.py, so it is not a package"
        return (
            f"{place} has a relative import, but {above}. Write an absolute import (`import other` for other.py beside "
            f"it), or make {folder.name}/ a package: add an empty __init__.py to it."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"If {package} is a package, install it where Weft runs: {sys.executable} -m pip install {package}"
    return ""


# Finding the server in a module.


def _find(module: ModuleType, file: str, name: str | None) -> Servable:
    names: Mapping[str, Any] = {key: value for key, value in vars(module).items() if not key.startswith("__")}
    servers = {key: value for key, value in names.items() if isinstance(value, Servable)}
    if name is not None:
        return _named(names, servers, file, name)
    if not servers:
        raise StartError(_no_server(module, names, file))
    if len({id(server) for server in servers.values()}) == 1:
        return next(iter(servers.values()))
    for preferred in PREFERRED:
        if preferred in servers:
            return servers[preferred]
    listed = ", ".join(servers)
    raise StartError(f"{file} has several servers: {listed}. Say which one: {file}:{next(iter(servers))}")


def _named(names: Mapping[str, Any], servers: Mapping[str, Servable], file: str, name: str) -> Servable:
    if name in servers:
        return servers[name]
    if name in names and inspect.isroutine(names[name]) and not (servers and _needed(names[name])):
        return _made(names[name], file, name)
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
    """Call a function that makes a server; return the server."""
    if inspect.iscoroutinefunction(make):
        raise StartError(
            f"{name!r} in {file} is an async function; a function that makes a server must be a plain `def`. Move the "
            "code that awaits into the server's lifespan."
        )
    if needed := _needed(make):
        raise StartError(
            f"{name!r} in {file} needs arguments: {', '.join(needed)}. A function that makes a server is called "
            "without any: give its parameters defaults."
        )
    with _at_load(f"{file}:{name}", sys.argv[0], sys.argv[1:]):
        made = make()
    if isinstance(made, Servable):
        return made
    raise StartError(
        f"{name!r} in {file} is a function that returned {with_article(type(made).__name__)}, not a Server. Let it "
        "return a Server, or name another object."
    )


def _needed(make: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return []
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in loose]


def _no_server(module: ModuleType, names: Mapping[str, Any], file: str) -> str:
    makers = [name for name, value in names.items() if _makes_server(value)]
    if makers:
        return f"{file} has no Server in it at module level, but a function that makes one: {file}:{makers[0]}"
    what = f"{file} has no Server in it at module level. Make one: server = weft.Server('my-server')"
    functions = _plain_functions(module)
    more = f", and write @server.tool above `def {functions[0]}`" if functions else ""
    return f"{what}{more}. {_there(names)}"


def _makes_server(value: Any) -> bool:
    """Return whether a value is a function whose return annotation is Server."""
    returned = getattr(value, "__annotations__", {}).get("return")
    return isinstance(value, FunctionType) and (
        returned in ("Server", "weft.Server") or (isinstance(returned, type) and issubclass(returned, Servable))
    )


def warn_of_empty_server(engine: Engine) -> None:
    """Warn if a server has no features: a decorator may be missing, or the file may have been loaded twice."""
    if _offers(engine) or engine.extensions:
        return
    if not engine.lifespan.started:  # the lifespan may register features
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


def _other_copy(module: ModuleType, modules: Sequence[ModuleType]) -> ModuleType | None:
    """Return another module that was loaded from the same file and whose server has features, or None."""
    for other in modules:
        if other is not module and getattr(other, "__file__", None) == module.__file__:
            servers = (value for value in vars(other).values() if isinstance(value, Servable))
            if any(_offers(server.engine) for server in servers):
                return other
    return None


def _plain_functions(module: ModuleType) -> list[str]:
    """Return the names of the public functions that a module defines, without middleware and other callbacks."""
    servers = [value for value in vars(module).values() if isinstance(value, Servable)]
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, FunctionType)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not any(server.engine.calls_for_itself(value) for server in servers)
    ]


def _there(names: Mapping[str, Any]) -> str:
    """Return a sentence that lists the public names of a module, without imported modules."""
    own = [key for key, value in names.items() if not isinstance(value, ModuleType) and not key.startswith("_")]
    if not own:
        return "The file defines nothing."
    more = f" and {len(own) - MOST_NAMES} more" if len(own) > MOST_NAMES else ""
    return f"It has: {', '.join(own[:MOST_NAMES])}{more}."
