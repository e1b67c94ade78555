"""Expand URI templates (RFC 6570, all four levels), and match URIs against them.

The RFC does not define matching. These are the rules of Weft:

- A variable matches at least one character. From left to right, each variable matches as much as possible, as long as
  the rest of the template still matches.
- `{var}` matches only unreserved and percent-encoded characters, so never `/`. `{+var}` also matches reserved
  characters, except `?`, `&`, `;` or `#` if a later expression of the template begins with this character.
- `{.var}` and `{/var}` are required, with all their variables. `{.var*}`, `{/var*}` and `{var*}` match a list.
- `{?a,b}`, `{&a,b}` and `{;a,b}` match by name, in any order. Each name is optional. A URI with another name does not
  match. A name may be repeated only with `*`, as in `{?a*}`; its value is a list. `{#var}` is optional, too. Variables
  without a value are not in the result.
- `{var:3}` matches at most three characters. A variable that is used twice must have the same value.
- Values are percent-decoded exactly once, as UTF-8, and then checked (see `UriTemplate.match`).

Matching takes time linear in the length of the URI: one backward pass for each expression finds where it can end, then
one forward pass chooses an end for each. There is no backtracking. A regular expression without backtracking is tried
first, because it rejects most other URIs much faster.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import quote, unquote_to_bytes

import msgspec

_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_RESERVED = ":/?#[]@!$&'()*+,;="
_NAME = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARIABLE = re.compile(rf"({_NAME}+(?:\.{_NAME}+)*)(?:(\*)|:([1-9][0-9]{{0,3}}))?")
_TRIPLET = re.compile(r"(%[0-9A-Fa-f]{2})")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TOKEN = re.compile(r"\{([^}]*)\}|\{|[^{]+")  # an expression, a brace that is never closed, or a literal
_NOT_LITERAL = re.compile(r"[\x00-\x20\x7f\"<>\\^`{|}]|%(?![0-9A-Fa-f]{2})")
_ELSEWHERE = re.compile(r"/|(?:[A-Za-z][A-Za-z0-9+.\-]*:)+(?:/|\Z)")  # the start of an absolute path, a drive or a URL
_MOST_DECODED = 8
_STEERING = frozenset({"Cc", "Cf", "Zl", "Zp"})  # control characters: they end a line or change the text direction
_JOINERS = "\u200c\u200d"  # invisible characters inside words of Persian and Indian languages, and in emoji


class _Operator(NamedTuple):
    """The rules for one operator: how it expands (RFC 6570, appendix A), and which characters it matches."""

    symbol: str
    first: str  # text before the first value
    separator: str  # text between two values
    named: bool  # whether the names of variables are written before their values
    if_empty: str  # text after the name of a variable whose value is empty
    reserved: bool  # whether reserved characters are not percent-encoded
    takes: str  # characters that a value can have in a match


# People write queries by hand, so all characters that a query can have are matched, not only those of an expansion.
_QUERY = _UNRESERVED + _RESERVED.replace("#", "") + "%"
_OPERATORS = {
    operator.symbol: operator
    for operator in (
        _Operator("", "", ",", False, "", False, _UNRESERVED + "%"),
        _Operator("+", "", ",", False, "", True, _UNRESERVED + _RESERVED + "%"),
        _Operator("#", "#", ",", False, "", True, _UNRESERVED + _RESERVED + "%"),
        _Operator(".", ".", ".", False, "", False, _UNRESERVED + "%"),
        _Operator("/", "/", "/", False, "", False, _UNRESERVED + "%"),
        _Operator(";", ";", ";", True, "", False, _UNRESERVED + "%;="),
        _Operator("?", "?", "&", True, "=", False, _QUERY),
        _Operator("&", "&", "&", True, "=", False, _QUERY),
    )
}
_OPTIONAL = frozenset("#;?&")


class _Variable(msgspec.Struct, frozen=True):
    name: str
    explode: bool
    prefix: int | None


class _Expression(msgspec.Struct, frozen=True):
    operator: _Operator
    variables: tuple[_Variable, ...]

    @property
    def is_optional(self) -> bool:
        return self.operator.symbol in _OPTIONAL


class _Taker(_Expression, frozen=True):
    """One expression, prepared for matching.

    The expression matches its first character (`/` for `{/var}`, none for `{var}` and `{+var}`), and then one or more
    characters from `chars`.
    """

    chars: frozenset[str]
    runs: Callable[[str], Iterable[re.Match[str]]]  # finds all longest sequences of `chars` in a text


class UriTemplate:
    """A URI template.

    Raises ValueError if `text` is not a template. Also raises ValueError if `{var}` or `{+var}` directly follows
    another expression, because `match` could not find out where the other expression ends. Pass `matching=False` to
    allow this in a template that is only expanded.

    >>> template = UriTemplate("repo://{owner}/{+path}{?rev}")
    >>> template.expand({"owner": "ann", "path": "src/a b.py"})
    'repo://ann/src/a%20b.py'
    >>> template.match("repo://ann/src/a%20b.py?rev=7")
    {'owner': 'ann', 'path': 'src/a b.py', 'rev': '7'}
    """

    __slots__ = ("_expressions", "_head", "_matching", "_may_match", "_parts", "_takers", "text", "variables")

    def __init__(self, text: str, *, matching: bool = True) -> None:
        self.text = text
        self._parts = tuple(_parse(text))
        self._expressions = [part for part in self._parts if isinstance(part, _Expression)]
        names = (var.name for part in self._expressions for var in part.variables)
        self.variables: tuple[str, ...] = tuple(dict.fromkeys(names))
        self._matching = matching
        self._head, self._takers = _takers(text, self._parts) if matching else ("", [])
        self._may_match = re.compile(re.escape(self._head) + _outline(self._takers), re.DOTALL).match

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"

    @property
    def shape(self) -> str:
        """The template with numbers instead of variable names. Templates with the same shape match the same URIs.

        Names that appear in URIs, as in `{?q}`, are not replaced.

        >>> UriTemplate("a://{x}/{y}{?q}").shape == UriTemplate("a://{k}/{v}{?q}").shape
        True
        """
        shown = {var.name for part in self._expressions if part.operator.named for var in part.variables}
        names = {name: name if name in shown else f"({place})" for place, name in enumerate(self.variables)}
        return "".join(part if isinstance(part, str) else _shape(part, names) for part in self._parts)

    @property
    def lists(self) -> frozenset[str]:
        """The names of the variables with `*`, as in `{name*}`. `match` returns their values as lists."""
        return frozenset(var.name for part in self._expressions for var in part.variables if var.explode)

    def expand(self, values: Mapping[str, object]) -> str:
        """Return the URI for these values. A value is text, a number, a list or a mapping; None means no value.

        >>> UriTemplate("search{?q,tags*}").expand({"q": "a&b", "tags": ["x", "y"]})
        'search?q=a%26b&tags=x&tags=y'
        """
        return "".join(part if isinstance(part, str) else _expand_expression(part, values) for part in self._parts)

    def match(self, uri: str, *, safe: bool = True) -> dict[str, str | list[str]] | None:
        """Return the values of the variables in a URI, or None if the URI does not match.

        If `safe` is True, a URI with a value that is not safe (see `is_safe`) does not match. Raises ValueError if the
        template was created with `matching=False`.
        """
        if not self._matching:
            raise ValueError(f"{self!r} was made with matching=False; leave that out to match URIs.")
        if not self._may_match(uri) or _STRAY_PERCENT.search(uri):
            return None
        spans = _spans(self._takers, uri[len(self._head) :])
        if spans is None:
            return None
        found: list[tuple[_Variable, str | list[str]]] = []
        for taker, text in spans:
            pairs = _by_name(taker, text) if taker.operator.named else _by_place(taker, text)
            if pairs is None:
                return None
            try:
                decoded = [(var, [_decode(item) for item in items]) for var, items in pairs]
            except UnicodeDecodeError:
                return None
            if safe and not all(self._keeps(taker, item) for _, items in decoded for item in items):
                return None
            found += [(var, items if var.explode else items[0]) for var, items in decoded]
        return _reconcile(found)

    def is_safe(self, name: str, value: str) -> bool:
        """Return whether a decoded value is safe for the variable `name`. For example, a path traversal is not safe.

        A program may decode the value again, so the value is percent-decoded repeatedly before the check. Look-alikes
        such as full-width dots are replaced. A value is not safe if it contains:

        - a NUL character, or a path segment `..` (also with a `;` after it, or with invisible characters in it)
        - outside of query and fragment: a backslash, or a character that ends a line, changes the text direction or is
          invisible (except joiners, which are part of words)
        - for `{+var}`: an absolute path or a URL at its beginning, unless the template begins with an expression
        - for other variables outside of query and fragment: a `/`, or only a `.`

        If the template has no variable `name`, the result is True.

        >>> template = UriTemplate("docs://{+path}")
        >>> template.is_safe("path", "100%.txt"), template.is_safe("path", "a/%2e%2e")
        (True, False)
        """
        uses = (part for part in self._expressions for var in part.variables if var.name == name)
        return all(self._keeps(part, value) for part in uses)

    def _keeps(self, part: _Expression, value: str) -> bool:
        return _is_safe(part.operator.symbol, value, is_whole=not self._head)


# --- grammar


def _parse(text: str) -> Iterable[str | _Expression]:
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            raise ValueError(f"The URI template {text!r} opens '{{' at {token.start()} and never closes it; add '}}'.")
        yield _parse_literal(text, token) if token[1] is None else _parse_expression(text, token)


def _parse_literal(text: str, token: re.Match[str]) -> str:
    if wrong := _NOT_LITERAL.search(text, token.start(), token.end()):
        raise ValueError(f"The URI template {text!r} has {wrong[0]!r} at {wrong.start()}; percent-encode it.")
    return _encode(token[0], reserved=True)


def _parse_expression(text: str, token: re.Match[str]) -> _Expression:
    body = token[1]
    place = f"The URI template {text!r} has the expression '{token[0]}' at {token.start()}"
    if body[:1] in tuple("=,!@|"):
        raise ValueError(f"{place}, whose operator {body[0]!r} is reserved; use one of + # . / ; ? &.")
    operator = _OPERATORS.get(body[:1], _OPERATORS[""])
    variables: list[_Variable] = []
    for spec in body[len(operator.symbol) :].split(","):
        found = _VARIABLE.fullmatch(spec)
        if found is None:
            raise ValueError(f"{place}, where {spec!r} is not a variable; write it as name, name* or name:9.")
        variables.append(_Variable(found[1], found[2] is not None, int(found[3]) if found[3] else None))
    return _Expression(operator, tuple(variables))


def _shape(expression: _Expression, names: Mapping[str, str]) -> str:
    variables = ((names[var.name], var.explode, var.prefix) for var in expression.variables)
    return f"{{{expression.operator.symbol}{','.join(map(str, variables))}}}"


# --- expansion


def _encode(text: str, *, reserved: bool) -> str:
    if not reserved:
        return quote(text, safe="~")
    # Percent-encoded characters are not encoded again.
    return "".join(
        piece if index % 2 else quote(piece, safe="~" + _RESERVED) for index, piece in enumerate(_TRIPLET.split(text))
    )


def _expand_expression(expression: _Expression, values: Mapping[str, object]) -> str:
    operator = expression.operator
    pieces = [piece for var in expression.variables for piece in _expand_variable(operator, var, values.get(var.name))]
    return operator.first + operator.separator.join(pieces) if pieces else ""


def _expand_variable(operator: _Operator, var: _Variable, value: object) -> list[str]:
    """Return the expansion of a variable as a list of pieces, which is empty if the variable has no value."""

    def text(item: object) -> str:
        return _encode(_scalar(var.name, item)[: var.prefix], reserved=operator.reserved)

    def named(name: str, text: str) -> str:
        if not operator.named:
            return text
        return f"{name}={text}" if text else name + operator.if_empty

    if value is None:
        return []
    if not (_is_mapping(value) or _is_list(value)):
        return [named(var.name, text(value))]
    if var.prefix is not None:
        raise ValueError(f"The variable {var.name!r} has a length, so its value must be text, not a collection.")
    if _is_mapping(value):
        pairs = [(text(key), text(item)) for key, item in value.items() if item is not None]
        if var.explode:
            return [named(key, item) if operator.named else f"{key}={item}" for key, item in pairs]
        items = [item for pair in pairs for item in pair]
    else:
        items = [text(item) for item in value if item is not None]
        if var.explode:
            return [named(var.name, item) for item in items]
    return [named(var.name, ",".join(items))] if items else []


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _scalar(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    kind = type(value).__name__
    raise ValueError(f"The variable {name!r} has a value of type {kind}; give text, a number, or a flat list of these.")


# --- matching


def _takers(text: str, parts: tuple[str | _Expression, ...]) -> tuple[str, list[str | _Taker]]:
    """Return the literal text at the beginning of a template, and the later parts, prepared for matching.

    Raises ValueError if `{var}` or `{+var}` directly follows another expression.
    """
    takers: list[str | _Taker] = []
    for index, part in enumerate(parts):
        previous = takers[-1] if takers else None
        if isinstance(part, str):
            takers.append(part)
            continue
        symbol = part.operator.symbol
        if isinstance(previous, _Taker) and previous.operator.symbol + symbol in ("?&", "&&", ";;"):
            # Both together are one list of parameters, which may come in any order.
            takers[-1] = msgspec.structs.replace(previous, variables=previous.variables + part.variables)
        elif isinstance(previous, _Taker) and symbol in ("", "+"):
            remedy = f"put a literal before {part.variables[0].name!r}, or one of . / ; ? & #"
            raise ValueError(f"The URI template {text!r} has two expressions side by side; {remedy}.")
        else:
            chars = _chars(part, parts[index + 1 :])
            takers.append(_Taker(part.operator, part.variables, chars, re.compile(f"{_class(chars)}+").finditer))
    head = takers[0] if takers else ""
    return (head, takers[1:]) if isinstance(head, str) else ("", takers)


def _chars(expression: _Expression, later: tuple[str | _Expression, ...]) -> frozenset[str]:
    chars = set(expression.operator.takes)
    if len(expression.variables) > 1 or any(var.explode for var in expression.variables):
        chars.add(expression.operator.separator)
    if expression.operator.symbol == "+":
        chars -= _OPTIONAL & {part.operator.symbol for part in later if isinstance(part, _Expression)}
    return frozenset(chars)


def _outline(takers: list[str | _Taker]) -> str:
    """Return a regular expression, without backtracking, that quickly rejects most URIs that do not match a template.

    `takers` are the parts after the literal at the beginning. The regular expression matches every URI that matches the
    template, but it may match other URIs too. It is exact up to the first part that is optional, or whose end is not
    certain. From this part on, it only checks that the literals occur in the right order.
    """
    pattern, exact = "", True
    for index, part in enumerate(takers):
        if isinstance(part, str):
            pattern += re.escape(part) if exact else f"(?>.*?{re.escape(part)})"
            continue
        follows = _followers(takers[index + 1 :])
        exact = exact and not part.is_optional and not part.chars & follows
        if exact:
            pattern += f"{re.escape(part.operator.first)}{_class(part.chars)}++"
            pattern += f"(?:(?={_class(follows)})|\\Z)" if follows else r"\Z"
    return pattern


def _followers(takers: list[str | _Taker]) -> frozenset[str]:
    """Return the characters with which a match of these parts may begin."""
    firsts: set[str] = set()
    for part in takers:
        if isinstance(part, str):
            return frozenset({*firsts, part[0]})
        firsts |= {part.operator.first} if part.operator.first else part.chars
        if not part.is_optional:
            break
    return frozenset(firsts)


def _class(chars: Iterable[str]) -> str:
    return f"[{re.escape(''.join(sorted(chars)))}]"


class _Ends(NamedTuple):
    """The positions where a part of a template can begin and end in a URI."""

    ends: list[int]  # for each position: where the part ends if it begins here; -1 if it cannot begin here
    begins: bytearray  # for each position: 1 if the part can begin here


def _spans(takers: list[str | _Taker], uri: str) -> list[tuple[_Taker, str]] | None:
    """Return each expression with the text that it matches in `uri`, or None if the URI does not match.

    Optional expressions that match nothing are left out.
    """
    can_end = bytearray(len(uri) + 1)  # for each position: 1 if the parts to the right can begin here
    can_end[-1] = 1
    ends_by_part: list[list[int]] = []
    for part in reversed(takers):
        ends, can_end = _literal_ends(part, uri, can_end) if isinstance(part, str) else _taker_ends(part, uri, can_end)
        ends_by_part.append(ends)
    if not can_end[0]:
        return None
    start, spans = 0, list[tuple[_Taker, str]]()
    for part, ends in zip(takers, reversed(ends_by_part), strict=True):
        end = ends[start]
        if isinstance(part, _Taker) and end > start:
            spans.append((part, uri[start + len(part.operator.first) : end]))
        start = end
    return spans


def _literal_ends(literal: str, uri: str, can_end: bytearray) -> _Ends:
    """Return where a literal can begin and end in a URI, so that the parts to the right of the literal still match.

    `can_end` has a 1 at each position of the URI where the parts to the right of the literal can begin.
    """
    ends, begins = [-1] * len(can_end), bytearray(len(can_end))
    position = uri.find(literal)
    while position >= 0:
        if can_end[position + len(literal)]:
            ends[position] = position + len(literal)
            begins[position] = 1
        position = uri.find(literal, position + 1)
    return _Ends(ends, begins)


def _taker_ends(taker: _Taker, uri: str, can_end: bytearray) -> _Ends:
    """Return where an expression can begin in a URI, and for each beginning the last position where it can end.

    `can_end` has a 1 at each position of the URI where the parts to the right of the expression can begin.
    """
    first = taker.operator.first
    ends, begins = [-1] * len(can_end), bytearray(len(can_end))
    if taker.is_optional:
        ends, begins = [place if can else -1 for place, can in enumerate(can_end)], can_end[:]
    for run in taker.runs(uri):
        start = run.start()
        end = _last_end(uri, can_end, start, run.end())
        if end >= 0 and not first:
            ends[start:end] = [end] * (end - start)
            begins[start:end] = b"\1" * (end - start)
        elif end >= 0:
            position = uri.find(first, max(0, start - 1), end - 1)
            while position >= 0:
                ends[position] = end
                begins[position] = 1
                position = uri.find(first, position + 1, end - 1)
    return _Ends(ends, begins)


def _last_end(uri: str, can_end: bytearray, start: int, stop: int) -> int:
    """Return the last position between `start` and `stop` where an expression can end, or -1 if there is none.

    An expression cannot end inside a percent-encoded character.
    """
    end = can_end.rfind(1, start + 1, stop + 1)
    while end >= 0 and "%" in uri[max(0, end - 2) : end]:
        end = can_end.rfind(1, start + 1, end)
    return end


_Pairs = list[tuple[_Variable, list[str]]]


def _by_place(taker: _Taker, text: str) -> _Pairs | None:
    """Assign the values in a matched text to variables by their order; None if there are too few or too many values."""
    variables = taker.variables
    if len(variables) == 1 and not variables[0].explode:
        return [(variables[0], [text])]
    items = text.split(taker.operator.separator)
    groups = [[item] for item in items]
    exploded = next((index for index, var in enumerate(variables) if var.explode), None)
    if exploded is not None and len(items) >= len(
        variables
    ):  # the first exploded variable gets all items that the others do not need
        after = exploded + 1 + len(items) - len(variables)
        groups[exploded:after] = [items[exploded:after]]
    if len(groups) != len(variables) or not all(items):
        return None
    return list(zip(variables, groups, strict=True))


def _by_name(taker: _Taker, text: str) -> _Pairs | None:
    """Assign the values in a matched text to variables by their names: `a=1&b=2` gives 1 to `a` and 2 to `b`.

    Returns None if the text has an unknown name, or repeats the name of a variable that has no `*`.
    """
    variables = {var.name: var for var in taker.variables}
    found: dict[str, list[str]] = {}
    for piece in text.split(taker.operator.separator):
        name, _, value = piece.partition("=")
        if name not in variables or (name in found and not variables[name].explode):
            return None
        found.setdefault(name, []).append(value)
    return [(variables[name], items) for name, items in found.items()]


def _decode(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8") if "%" in text else text


def _is_safe(operator: str, value: str, *, is_whole: bool) -> bool:
    plain = _plain(value)
    # Some programs ignore invisible characters, so two dots with one between them could become `..`.
    shown = plain if plain.isascii() else "".join(char for char in plain if unicodedata.category(char) != "Cf")
    segments = re.split(r"[/\\]", shown)
    if "\0" in plain or any(segment.partition(";")[0].strip() == ".." for segment in segments):
        return False
    if operator in ("?", "&", "#"):
        return True
    if "\\" in plain or any(unicodedata.category(char) in _STEERING and char not in _JOINERS for char in plain):
        return False
    if operator == "+":
        return is_whole or not _ELSEWHERE.match(shown)
    return len(segments) == 1 and shown != "."


def _plain(value: str) -> str:
    """Percent-decode a value until nothing is encoded, and replace look-alike characters.

    If the value is encoded too many times, return `..`, so that the value counts as unsafe.
    """
    for _ in range(_MOST_DECODED):
        if not _TRIPLET.search(value):
            return value if value.isascii() else unicodedata.normalize("NFKC", value)
        value = unquote_to_bytes(value).decode("utf-8", "replace")
    return ".."  # a value that is encoded so many times is an attack, so make it unsafe


def _reconcile(found: list[tuple[_Variable, str | list[str]]]) -> dict[str, str | list[str]] | None:
    """Return the value of each variable, by name; None if a variable has two different values.

    Also returns None if a value is too long: for `{var:3}`, longer than three characters.
    """
    values: dict[str, str | list[str]] = {}
    for var, value in sorted(found, key=lambda pair: pair[0].prefix is not None):  # whole values first
        whole = values.setdefault(var.name, value)
        if whole[: var.prefix] != value or (var.prefix is not None and len(value) > var.prefix):
            return None
    return values
