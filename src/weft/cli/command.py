"""Read the command line of `weft`, run the subcommand, and return the exit code.

The exit code is 0 for success, also when a server was stopped by Ctrl-C. It is 1 if the server failed, could not be
reached, or answered the call with an error. It is 2 if the command line is wrong, and 130 if Ctrl-C stopped a call.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from weft import __version__
from weft.cli.printing import WrongCommand, show_failure, to_text
from weft.errors import StartError, UsageError, WeftError

if TYPE_CHECKING:
    from weft.cli.calling import RemoteServer
    from weft.client.config import Target
    from weft.server.run.loading import Target as LoadTarget


LEVELS = ("debug", "info", "warning", "error", "critical")
CLIENTS = ("claude-code", "claude-desktop", "cursor", "vscode")
AUDIENCES = ("private", "public", "off")
MOST_PORT = 65535
_ID = re.compile(r"-[^-\s]\S+|--[^\s=]{8,}")  # the id of a task that begins with `-`; no option of `weft task` fits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `weft` command with `arguments` (default: those of this process), and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    if not given:
        parser.print_help()
        return 0
    own, its = _split(_with_id(given))
    parsed, rest = parser.parse_known_args(own)
    if rest:
        print(f"weft: {_unknown(own, rest)}", file=sys.stderr)
        return 2
    parsed.given, parsed.its = own, its
    try:
        code: int = parsed.command(parsed)
        print(end="", flush=True)  # flush here, so that a closed stdout raises BrokenPipeError here
    except WeftError as error:
        if isinstance(error, StartError):  # its text comes from the user's own code, not from a peer
            print(f"weft: {to_text(str(error))}", file=sys.stderr)
        else:
            show_failure(str(error))
        return 2 if isinstance(error, WrongCommand) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # such as `weft list URL | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # because Python flushes stdout again at exit
        return 1
    return code


def _split(given: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line at `--` into the arguments for `weft`, and the arguments for the file that `weft` loads.

    Only `run` and `entry` load a file. For other commands, all arguments are for `weft`.
    """
    if given[0] not in ("run", "entry") or "--" not in given:
        return given, []
    end = given.index("--")
    return given[:end], given[end + 1 :]


def _with_id(given: list[str]) -> list[str]:
    """Put an id that begins with `-` after `--` on the command line of `weft task`, so that it is not an option."""
    ids = [word for word in given if _ID.fullmatch(word)]
    if given[0] != "task" or "--" in given or not ids:
        return given
    return [*(word for word in given if word != ids[0]), "--", ids[0]]


def _unknown(own: list[str], rest: list[str]) -> str:
    """Return the error message for the first unknown argument, `rest[0]`, of the command line `own`.

    A URL is shown without its password.
    """
    command, word = f"weft {own[0]}", _shown(rest[0].partition("=")[0])
    kind = "option" if word.startswith("-") else "argument"
    text = f"{command} has no {kind} {word}; see {command} --help."
    if own[0] not in ("run", "entry"):
        return text
    at = own.index(rest[0])
    return f"{text} Arguments for the file come after `--`: weft {' '.join(map(_shown, [*own[:at], '--', *own[at:]]))}"


def _shown(word: str) -> str:
    from weft.net.logs import masked_url

    return masked_url(word) if "://" in word else word


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weft", description="Serve and call MCP servers.")
    parser.add_argument("--version", action="version", version=__version__, help="print the version")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    for name, help, add_arguments, command in (
        ("run", "serve a server on stdio, or over HTTP", _add_run, _run),
        ("entry", "print the configuration of a server for Claude, VS Code or Cursor", _add_entry, _entry),
        ("call", "call a tool of a running server", _add_call, _request),
        ("task", "wait for a task that a call has started, and print its result", _add_task, _request),
        ("list", "list what a running server offers", _add_server, _request),
        ("read", "read a resource of a running server", _add_read, _request),
        ("prompt", "get a prompt of a running server", _add_prompt, _request),
        ("doctor", "check the backend that the workers of a server share", _add_doctor, _doctor),
    ):
        subparser = commands.add_parser(name, allow_abbrev=False, help=help)
        add_arguments(subparser)
        subparser.set_defaults(command=command)
    commands.add_parser("version", help="print the version").set_defaults(command=_version)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("--http", action="store_true", help="serve over HTTP instead of stdio")
    add = partial(parser.add_argument, default=None)
    add_list = partial(add, action="append")
    http_options = [  # each is an option of `HttpOptions`
        add("--host", help="the address to listen on (127.0.0.1)"),
        add("--port", type=_port, help="the port to listen on (8000; 0 takes a free one)"),
        add("--path", help="the path of the endpoint (/mcp)"),
        add("--sse", dest="sse_path", nargs="?", const="/sse", metavar="PATH", help="serve HTTP+SSE too (/sse)"),
        add("--workers", type=_workers, metavar="N", help="the number of processes (1)"),
        add("--no-sessions", dest="sessions", action="store_const", const=False, help="keep no sessions"),
        add_list("--allow-host", dest="allowed_hosts", metavar="NAME", help="a Host header to accept; repeatable"),
        add_list("--allow-origin", dest="allowed_origins", metavar="ORIGIN", help="an Origin to accept; repeatable"),
        add_list("--trust-proxy", dest="trusted_proxies", metavar="ADDRESS", help="a proxy to trust; repeatable"),
        add_list("--cors", metavar="ORIGIN", help="an origin whose web pages may call the server; repeatable"),
        add(
            "--health",
            choices=AUDIENCES,
            metavar="WHO",
            help="who may ask /healthz, /readyz: private (default), public, off",
        ),
    ]
    parser.set_defaults(http_options=http_options)
    backend = "where processes share sessions and other state, such as redis://localhost:6379; safer in WEFT_BACKEND"
    parser.add_argument("--backend", metavar="URL", help=backend)
    parser.add_argument("--reload", action="store_true", help="restart when a Python file changes")
    parser.add_argument("--listener", type=int, help=argparse.SUPPRESS)  # file descriptor of a socket
    parser.add_argument("--debug", action="store_true", help="send error details to clients, warn of blocking calls")
    levels = f"{', '.join(LEVELS)} (info over HTTP: a line for each call; warning on stdio)"
    parser.add_argument("--log-level", choices=LEVELS, metavar="LEVEL", help=levels)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [options] (FILE | MODULE)[:OBJECT] [-- ARGUMENTS]"
    about = "a file or a module, such as server.py or shop.server; OBJECT is the Server in it, or a function that "
    about += "returns one; arguments after -- are in its sys.argv"
    parser.add_argument("target", metavar="(FILE | MODULE)[:OBJECT]", nargs="?", help=about)
    parser.add_argument("-m", dest="module", metavar="MODULE[:OBJECT]", help="a module, as with `python -m`")


def _add_entry(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("--client", required=True, choices=CLIENTS, metavar="CLIENT", help=", ".join(CLIENTS))
    parser.add_argument("--name", help="the name of the server in the client's configuration (the server's own name)")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    about = "its URL, such as redis://localhost:6379 (the variable WEFT_BACKEND)"
    parser.add_argument("--backend", metavar="URL", help=about)
    parser.add_argument("--prefix", default="weft:", help="how all keys in Redis begin (weft:)")
    parser.add_argument("server", metavar="NAME", nargs="?", help="the name of a server, to list its workers")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= MOST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 1 to {MOST_PORT}, or 0 for a free one")


def _workers(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; use 1 or more")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0 < seconds < math.inf:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; use a number such as 5")


def _add_call(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument("tool", metavar="TOOL")
    parser.add_argument("arguments", metavar="JSON", nargs="?", default="{}", help="""such as '{"a": 1}'""")
    parser.add_argument("--background", action="store_true", help="print the id of the task, for `weft task`")


def _add_task(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument("id", metavar="ID", help="of the task, as `weft call --background` prints it")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--status", action="store_true", help="print the present state, and do not wait")
    group.add_argument("--cancel", action="store_true", help="cancel the task")


def _add_read(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument("uri", metavar="URI", help="of the resource, as `weft list` shows it, with templates filled in")


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    _add_server(parser)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("arguments", metavar="JSON", nargs="?", default="{}", help="""such as '{"mood": "glad"}'""")


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="its URL, such as http://127.0.0.1:8000/mcp")
    parser.add_argument("--stdio", action="store_true", help="SERVER is a command to start, such as 'python server.py'")
    parser.add_argument("--config", metavar="FILE", help="SERVER is the name of a server in this mcpServers file")
    parser.add_argument("--yes", action="store_true", help="start the command, or send variables, without asking")
    parser.add_argument("--token", help="a bearer token for the server; safer in the variable WEFT_TOKEN")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header; repeatable")
    timeout = "how long to wait for an answer (60), or for the next message of a task (no limit)"
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help=timeout)


def _run(parsed: argparse.Namespace) -> int:
    given = {action.dest: getattr(parsed, action.dest) for action in parsed.http_options}
    options = {name: value for name, value in given.items() if value is not None}
    if not parsed.http and (options or parsed.reload):
        typed = (action.option_strings[0] for action in parsed.http_options if action.dest in options)
        wrong = "--reload" if parsed.reload else next(typed)
        raise WrongCommand(f"{wrong} is for HTTP; add --http, or leave it out to serve on stdio.")
    if parsed.reload and parsed.workers not in (None, 1):
        raise WrongCommand("--reload is for development with one process; leave --workers out.")
    from weft.cli import serving

    target = _named(parsed)
    if parsed.backend is not None:
        serving.use_backend(parsed.backend)
    if parsed.reload:
        return serving.run_with_reload(target, parsed.given, options)
    return serving.run(target, parsed, options)


def _entry(parsed: argparse.Namespace) -> int:
    from weft.cli import serving

    return serving.print_entry(_named(parsed), parsed.client, parsed.name)


def _doctor(parsed: argparse.Namespace) -> int:
    from weft.cli import doctor

    return doctor.run(parsed.backend, parsed.server, parsed.prefix)


def _named(parsed: argparse.Namespace) -> LoadTarget:
    """Return the file or module on the command line. Raises WrongCommand if there is none, or more than one."""
    from weft.server.run.loading import Target

    if (parsed.target is None) == (parsed.module is None):
        raise WrongCommand("Name one file or module to serve, such as server.py, shop.server or -m shop.server.")
    return Target(parsed.target or parsed.module, is_module=parsed.target is None, arguments=tuple(parsed.its))


def _request(parsed: argparse.Namespace) -> int:
    """Run `weft call`, `task`, `list`, `read` or `prompt`."""
    from weft.cli import calling

    try:
        return calling.COMMANDS[parsed.subcommand](_peer(parsed), parsed)
    except UsageError as error:  # the client does not accept a value from the command line
        raise WrongCommand(str(error)) from None


def _peer(parsed: argparse.Namespace) -> RemoteServer:
    from weft.cli.calling import RemoteServer, check_command, check_url, has_authorization
    from weft.client.config import Command, Http

    target = _target(parsed)
    if target is None:
        (check_command if parsed.stdio else check_url)(parsed.server)
    is_command = parsed.stdio or isinstance(target, Command)
    headers = dict(_header(text) for text in parsed.header)
    is_authorized = has_authorization({**headers, **(target.headers if isinstance(target, Http) else {})})
    if is_command and (headers or parsed.token is not None):
        raise WrongCommand("--token and --header are for servers at a URL; leave them out for a command.")
    if is_authorized and parsed.token is not None:
        raise WrongCommand("--token and --header 'Authorization: …' are two ways to give a token; use one of them.")
    # WEFT_TOKEN is sent only to a URL that the user typed, so that a configuration file cannot steal the token.
    stored = os.environ.get("WEFT_TOKEN") if target is None else None
    token = None if is_command or is_authorized else parsed.token or stored or None
    words = [*(("--stdio",) if parsed.stdio else ()), *(("--config", parsed.config) if target else ()), parsed.server]
    return RemoteServer(target or parsed.server, parsed.timeout, token=token, headers=headers, words=words)


def _target(parsed: argparse.Namespace) -> Target | None:
    """Return the server from the file of --config, or None without --config.

    Asks the user for permission first, unless --yes is given. Raises WrongCommand if options contradict each other.
    """
    if parsed.config is None and not parsed.yes:
        return None
    if parsed.config is None or parsed.stdio:
        raise WrongCommand("Use --yes only with --config FILE, and --stdio only without it.")
    from weft.cli.calling import approve
    from weft.client.config import read_server

    target = read_server(parsed.config, parsed.server)
    if not parsed.yes:
        approve(target, parsed.config)
    return target


def _header(text: str) -> tuple[str, str]:
    """Return the name and value of a --header option. Raises WrongCommand if it is not a valid header.

    The error message does not contain the header, because the header may be a secret.
    """
    from weft.client.config import check_headers

    name, colon, value = (part.strip() for part in text.partition(":"))
    try:
        check_headers({name: value} if colon else {"": ""})
    except UsageError:
        raise WrongCommand("A --header cannot be sent; write it like --header 'X-Key: value', in quotes.") from None
    return name, value


def _version(_parsed: argparse.Namespace) -> int:
    print(__version__)
    return 0
