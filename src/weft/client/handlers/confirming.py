"""What a person confirms before it happens: the call of a tool (TOOL-18), the start of a program (SBP-04).

Owns what there is to be shown, and that no call is made without a yes. It shows nothing itself, starts no program and
sends nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec

from weft.client.argument_checks import check_function, write_json
from weft.client.callbacks import Functions
from weft.client.config import Command
from weft.client.results import CallDeclined

log = logging.getLogger("weft.client.handlers.confirming")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that is about to be made. Show who gets which arguments: they leave this program with it."""

    name: str
    arguments: Mapping[str, Any] = field(repr=False)  # may be secrets, so they are in no log
    server: str


ConfirmFunction: TypeAlias = Callable[[ToolCall], Any]


class Confirming:
    """Asks about every call: which of them matter is for the function to say, not for the server's hints (TOOL-09)."""

    def __init__(self, function: ConfirmFunction) -> None:
        check_function(function, "confirm(call)")
        self._function = function
        self._functions = Functions()

    async def agreed(self, name: str, arguments: Mapping[str, Any], server: str) -> Mapping[str, Any]:
        """The arguments to send, which are those that were shown, whatever is done to them meanwhile.

        CallDeclined for every answer but True.
        """
        as_sent = write_json("tools/call", {"arguments": arguments}, msgspec.json.encode, arguments)
        shown = ToolCall(name, msgspec.json.decode(as_sent), server)
        if await self._functions.call(self._function, shown) is not True:
            log.info("The call of the tool %r of %s was declined.", name, server)
            raise CallDeclined(f"The call of the tool {name!r} was declined by confirm=; nothing was sent.")
        log.info("The call of the tool %r of %s was confirmed.", name, server)
        confirmed: Mapping[str, Any] = msgspec.json.decode(as_sent)
        return confirmed


@dataclass(frozen=True, slots=True)
class CommandQuestion:
    """A program to be started, if the user consents. Show the whole `command`, and all `warnings`."""

    command: str  # as one would type it, nothing left out, what cannot be seen written as an escape
    warnings: tuple[str, ...]


_RIGHTS = frozenset({"doas", "pkexec", "runas", "su", "sudo"})
_SHELLS = frozenset({"bash", "cmd", "dash", "fish", "powershell", "pwsh", "sh", "zsh"})
_REMOVERS = frozenset({"dd", "del", "mkfs", "rm", "rmdir", "shred"})
_FETCHERS = frozenset({"curl", "ftp", "nc", "ncat", "scp", "ssh", "wget"})
_PRIVATE = re.compile(r"(?i)\.(aws|docker|gnupg|kube|netrc|ssh)\b|/etc/|id_(rsa|ed25519)|\\System32\\")
_LOADERS = re.compile(
    r"(?i)(LD_|DYLD_|UV_|PIP_|NPM_CONFIG_|GIT_).*|PATH|NODE_OPTIONS|NODE_PATH|PYTHON(PATH|STARTUP|HOME|BREAKPOINT)|PERL5(OPT|LIB)"
    r"|RUBY(OPT|LIB)|BASH_ENV|ENV|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
)


def command_question(target: Command) -> CommandQuestion:
    """What to show before a command is started that somebody else wrote: a link, a file of configuration.

    >>> print(*command_question(Command(("sudo", "uvx", "mcp-server-time"))).warnings, sep="\\n")
    It runs on this machine with all your rights: start it only if you trust where it comes from.
    'sudo' asks for more rights than you have.
    """
    words = [word for part in target.command for word in part.split()]
    names = [PurePath(word.replace("\\", "/")).name.lower().removesuffix(".exe") for word in words]
    warnings = ["It runs on this machine with all your rights: start it only if you trust where it comes from."]
    for known, what in (
        (_RIGHTS, "asks for more rights than you have"),
        (_SHELLS, "is a shell, which does whatever its arguments say"),
        (_REMOVERS, "can remove files"),
        (_FETCHERS, "talks to other machines"),
    ):
        warnings += [f"{name!r} {what}." for name in dict.fromkeys(names) if name in known]
    warnings += [f"{word!r} is a place of secrets, or of the system." for word in words if _PRIVATE.search(word)]
    assigned = [word.partition("=")[0] for word in words if "=" in word]  # as for `env`
    names = list(dict.fromkeys(name for name in (*target.env, *assigned) if changes_code(name)))
    warnings += [f"The variable {name!r} changes which code is run." for name in names]
    return CommandQuestion(visible(target.line), tuple(warnings))


def changes_code(variable: str) -> bool:
    """Whether a variable of the environment makes programs run other code, or fetch it from elsewhere."""
    return _LOADERS.fullmatch(variable) is not None


def visible(text: str) -> str:
    """Text with nothing in it that a terminal would hide.

    >>> visible("a\\x1b[8mb")
    'a\\\\x1b[8mb'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
