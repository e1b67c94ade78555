"""Format log lines for calls, mask secrets in logged messages, and log repeated warnings less often.

These functions are slow, so callers check `isEnabledFor` first. They never raise an exception.

Secrets are recognised by their names. Only headers that are known to be harmless are shown; the values of all other
headers are masked. In a body, a value is masked if its name contains "password", "token" or the like. The text after
`Bearer` is masked too. A URI is shown without its query and its credentials, and the id of a task with its first
characters only, because it may be all that is needed to read the result.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

import msgspec

from weft.protocol.headers import decode_value, is_harmless
from weft.protocol.names import printable
from weft.types.tasks import SHOWN_OF_TASK_ID

MASK = "***"

_MOST_SHOWN = 4000  # characters of a body that are shown
_MOST_READ = 64 * 1024  # longest body, in bytes, that is parsed as JSON; a longer one is masked as text
_DEEPEST = 64  # levels of a body that are searched; deeper values are masked
_MOST_NAME = 128  # characters of a name that are shown

_SECRET_NAME = re.compile(
    r"(?i)(password|passwd|passphrase|secret|authorization|credential|cookie|assertion|verifier|api_?-?key|private_?-?key"
    r"|requeststate|session_?-?id|(?<!progress)(?<!progress_)token$|^dpop$|^jwt$)"
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*")
_ASKED = ("elicitation/create", "sampling/createMessage")  # methods whose params contain texts of users and models
_ANSWERED = "inputResponses"
_TASK_IDS = frozenset({"taskId", "task_id"})
_TASK_ID_LIST = "taskIds"
_BEARER = re.compile(r"(?i)\b(bearer|basic|dpop)(\s+)[A-Za-z0-9._~+/=-]{8,}")
# A member such as `"token": "…"` in a text that is not valid JSON, for example because it was cut off.
_SECRET_MEMBER = re.compile(r'"([^"\\]{1,64})"(\s*:\s*)("(?:[^"\\]|\\.)*(?:"|\Z)|[^\s,}\]"]+)')


def marked_lines(text: str) -> str:
    r"""Put `|` before the second and later lines of a text from a peer, so that they do not look like log lines.

    >>> marked_lines("no seat x\n10:00 INFO all is well")
    'no seat x\n  | 10:00 INFO all is well'
    """
    return "\n  | ".join(printable(line, "?") for line in text.splitlines())


def call_line(method: str, name: object, era: str, status: object, seconds: float, principal: str = "") -> str:
    """Return the log line of one call, without its arguments, which may be secrets.

    `status` is the HTTP status, or "ok" for a transport without HTTP. If the answer is a JSON-RPC error, `status` is
    the error code. If there is no answer, `status` is a word such as "timeout".

    >>> call_line("tools/call", "add", "stateless", 200, 0.0012)
    'tools/call add stateless 200 1.2 ms'
    >>> call_line("tools/list", None, "session", -32603, 2, "alice")
    'tools/list - session -32603 2000.0 ms alice'
    """
    line = f"{_word(method)} {_word(masked_name(name))} {era} {status} {seconds * 1000:.1f} ms"
    return f"{line} {_word(principal)}" if principal else line


def _word(text: str) -> str:
    """Return a name without spaces, so that a peer cannot add false fields to the log line; "-" for an empty name."""
    if not text:
        return "-"
    return printable(text[:_MOST_NAME], "?").replace(" ", "_")


def masked_headers(headers: Mapping[str, str] | Iterable[tuple[bytes | str, bytes | str]]) -> str:
    """Return headers as one line. Values that may be secrets are masked.

    >>> masked_headers({"Content-Type": "application/json", "Authorization": "Bearer abc", "X-Api-Key": "123"})
    'Content-Type: application/json, Authorization: ***, X-Api-Key: ***'
    """
    given: Iterable[Any] = cast("Any", headers.items()) if isinstance(headers, Mapping) else headers
    pairs = [(_text(name), _text(value)) for name, value in given]
    names_task = any(name.lower() == "mcp-method" and value.startswith("tasks/") for name, value in pairs)
    shown: list[str] = []
    for name, value in pairs:
        if name.lower() == "mcp-name":
            value = _masked_task_id(value) if names_task else _masked_name_header(value)
        shown.append(f"{printable(name, '?')}: {printable(value[:500], '?') if is_harmless(name) else MASK}")
    return ", ".join(shown)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def masked_url(url: str) -> str:
    """Return a URL in which `***` replaces the query and the credentials, because they may be secrets.

    >>> masked_url("https://me:pass@a.example/mcp?key=1")
    'https://***@a.example/mcp?***'
    """
    place, mark, _ = url.partition("?")
    place = re.sub(r"(?<=://)[^/@]*@", f"{MASK}@", place)
    return printable(f"{place}{mark}{MASK if mark else ''}"[:500], "?")


def masked_name(name: object) -> str:
    """Return the name of a tool or prompt, or a URI, as text for the log. Secrets in a URI are masked.

    `name` may be any JSON value, because an extension may send anything.

    >>> masked_name("add"), masked_name("db://users?token=1"), masked_name(7), masked_name(None)
    ('add', 'db://users?***', '7', '')
    """
    text = name if isinstance(name, str) else "" if name is None else str(name)
    return masked_url(text) if _URI.match(text) else text


def _masked_name_header(value: str) -> str:
    try:
        plain = decode_value(value)
    except ValueError:
        return MASK
    return value if plain == value and not _URI.match(plain) else masked_name(plain)


def _masked_task_id(value: object) -> str:
    """Return the first characters of the id of a task, as other lines of the log name the task."""
    return f"{value[:SHOWN_OF_TASK_ID]}{MASK}" if isinstance(value, str) else MASK


def masked_body(body: bytes | str, *, from_client: bool = False) -> str:
    """Return the body of a message as one line, shortened. Values whose names indicate a secret are masked.

    Questions to a user or a model, and their answers, are masked completely. `from_client` means that a client sent the
    body. Then every `result` in the body is an answer, so it is masked too.

    >>> masked_body(b'{"a": 1, "refresh_token": "r", "b": [{"password": 7}]}')
    '{"a":1,"refresh_token":"***","b":[{"password":"***"}]}'
    >>> masked_body("grant_type=refresh_token&refresh_token=r&code=c")
    'grant_type=refresh_token&refresh_token=***&code=***'
    """
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    answers = frozenset({_ANSWERED, "result"} if from_client else {_ANSWERED})
    text = _read(data, answers) if len(data) <= _MOST_READ else None
    if text is None:
        names = (*_ASKED, _ANSWERED, *_TASK_IDS, *(['"result"'] if from_client else []))
        cut = data[:_MOST_READ].decode("utf-8", "replace")
        text = MASK if any(name in cut for name in names) else _masked_text(cut)
    shown = printable(_BEARER.sub(rf"\1\2{MASK}", text), "?")
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}… ({len(data)} bytes)"


def _read(data: bytes, answers: frozenset[str]) -> str | None:
    """Return a JSON body or a form with its secrets masked, or None if the data is neither of them."""
    text = _masked_json(data, _DEEPEST, answers)
    if text is not None or b"=" not in data or b" " in data or data[:1] in (b"{", b"["):
        return text
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, strict_parsing=True)
    except ValueError:
        return None
    return urlencode([(name, MASK if _is_secret(name, value) else value) for name, value in pairs], safe="*")


def _masked_json(text: bytes | str, depth: int, answers: frozenset[str]) -> str | None:
    try:
        return msgspec.json.encode(_masked("", msgspec.json.decode(text), depth, answers)).decode()
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _masked(name: str, value: Any, depth: int, answers: frozenset[str]) -> Any:
    """Return the value of the JSON member `name` with its secrets masked.

    `answers` are the names of members with answers of users or models, which are masked too. At most `depth` nested
    levels are searched; deeper values are masked.
    """
    if name in answers or _is_secret(name, value):
        return MASK
    if name in _TASK_IDS:
        return _masked_task_id(value)
    if isinstance(value, dict | list) and not depth:
        return MASK
    if isinstance(value, list) and name == _TASK_ID_LIST:
        return [_masked_task_id(one) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if "params" in members and members.get("method") in _ASKED:
            members = {**members, "params": MASK}
        return {key: _masked(key, part, depth - 1, answers) for key, part in members.items()}
    if isinstance(value, list):
        return [_masked("", part, depth - 1, answers) for part in cast("list[Any]", value)]
    if isinstance(value, str) and name != "uriTemplate" and (name == "uri" or _URI.fullmatch(value)):
        return masked_url(value)
    if isinstance(value, str) and depth and value.lstrip()[:1] in ("{", "["):  # JSON in a text, as many tools return it
        return _masked_json(value, depth - 1, answers) or _masked_text(value)
    return value


def _is_secret(name: str, value: object) -> bool:
    """Return whether the value of `name` must be masked. A `code` is secret if it is a string (an OAuth code)."""
    if name == "code":
        return isinstance(value, str)
    return name == _ANSWERED or (value is not None and _SECRET_NAME.search(name) is not None)


def _masked_text(text: str) -> str:
    def member(found: re.Match[str]) -> str:
        if _is_secret(found[1], found[3]):
            return f'"{found[1]}"{found[2]}"{MASK}"'
        value = found[3].strip('"')
        return f'"{found[1]}"{found[2]}"{masked_url(value)}"' if "?" in value and _URI.match(value) else found[0]

    return _SECRET_MEMBER.sub(member, text)


class Seldom:
    """A logger for events that a peer can cause: it writes only the first event, the 10th, the 100th, and so on.

    Events are counted together if they have the same text and the same `about`, such as the name of a peer. The count
    starts again after a minute.

        seldom = Seldom(logging.getLogger("weft.client"))
        seldom.warning("%s sent a request, which is ignored.", where, about=where)
    """

    _SECONDS = 60.0  # how long events are counted together
    _MOST_KINDS = 1000  # how many counts are stored; if there are more, the oldest is dropped

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}  # by text and `about`: start time and count

    def warning(self, text: str, *args: object, about: str = "") -> None:
        """Log a warning, but only the first, the 10th, the 100th, etc. with the same text and `about`."""
        self._write(logging.WARNING, text, args, about, exc_info=False)

    def error(self, text: str, *args: object, about: str = "") -> None:
        """Log an error, but only the first, the 10th, the 100th, etc. with the same text and `about`."""
        self._write(logging.ERROR, text, args, about, exc_info=False)

    def exception(self, text: str, *args: object, about: str = "") -> None:
        """Log the current exception, but only the first, the 10th, the 100th, etc. with the same text and `about`."""
        self._write(logging.ERROR, text, args, about, exc_info=True)

    def _write(self, level: int, text: str, args: tuple[object, ...], about: str, *, exc_info: bool) -> None:
        if not self._log.isEnabledFor(level):
            return
        now, kind = self._now(), (text, about)
        since, count = self._counts.pop(kind, (now, 0))
        since, count = (now, 1) if now - since >= self._SECONDS else (since, count + 1)
        self._counts[kind] = (since, count)
        if len(self._counts) > self._MOST_KINDS:
            del self._counts[next(iter(self._counts))]
        if count == 1:
            self._log.log(level, text, *args, exc_info=exc_info, stacklevel=3)
        elif str(count).strip("0") == "1":
            self._log.log(level, f"{text} (%d times by now)", *args, count, exc_info=exc_info, stacklevel=3)
