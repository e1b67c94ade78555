"""The journal of a call that is run again from the top: the answers it got, and the results it must not make twice.

A handler asks; the call ends with the questions and this journal, sealed; the retry runs the handler again, on any
worker, and finds here what was answered before. A question is found by its key *and* its digest: a changed question is
asked again, never answered by an old answer.

Owns the record and the names in it. It asks nobody, runs nothing, and does not know how it is sealed. It is not
compressed, for a client chooses part of what is in it and sees the length, which would then tell it about the rest.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

_MAX_RESPONSES = 64  # D13
_DIGEST_BYTES = 16
_NOTHING = Raw(b"null")


def digest(method: str, params: Any) -> str:
    """What tells one question from another: the same for the same method and params, in whatever order of keys.

    >>> digest("elicitation/create", {"a": 1, "b": 2}) == digest("elicitation/create", {"b": 2, "a": 1})
    True
    """
    whole = hashlib.sha256(msgspec.json.encode((method, params), order="sorted")).digest()
    return base64.urlsafe_b64encode(whole[:_DIGEST_BYTES]).rstrip(b"=").decode()


class RecordedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What the client answered, and the digest of the question that it was asked."""

    question: str
    value: Raw


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A journal as bytes. The state is a list of none or one, for JSON's null is a state as well."""

    answers: dict[str, RecordedAnswer]
    once: dict[str, Raw]
    pending: dict[str, str]
    state: list[Raw]
    id: str = ""
    by_hand: list[str] = []


_read = msgspec.json.Decoder(_Record).decode
_write = msgspec.json.Encoder().encode


class Journal:
    """The answers and once-results of one logical call so far.

    >>> question = digest("roots/list", None)
    >>> journal = Journal.empty()
    >>> journal.pending["where"] = question
    >>> journal = Journal.decode(journal.encode())  # there, and back with the answer
    >>> journal.accept({"where": Raw(b'{"roots":[]}')})
    >>> bytes(journal.answer("where", question))
    b'{"roots":[]}'
    """

    __slots__ = ("answers", "before", "by_hand", "id", "once", "pending", "state")

    def __init__(
        self, answers: dict[str, RecordedAnswer], once: dict[str, Raw], pending: dict[str, str], state: Raw | None
    ) -> None:
        self.answers = answers
        self.once = once  # results of `ctx.once`, by key
        self.pending = pending  # what the last round asked: key to digest of the question
        self.state = state  # the user's own, of the explicit form; None when there is none
        self.by_hand: set[str] = set()  # keys of questions of the explicit form, which a run does not ask again
        self.id = ""  # tells one logical call from all others, once it has a second round
        self.before: dict[str, str] = {}  # what the last round asked and was not answered

    @classmethod
    def empty(cls) -> Journal:
        """The journal of a call that comes for the first time."""
        return cls({}, {}, {}, None)

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """The journal that `encode` wrote; ValueError when these bytes are none."""
        try:
            record = _read(data)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("These bytes are not a journal; decode only what `Journal.encode` wrote.") from None
        if len(record.state) > 1:
            raise ValueError("These bytes are not a journal: it has one state at most.")
        journal = cls(record.answers, record.once, record.pending, record.state[0] if record.state else None)
        journal.by_hand.update(record.by_hand)
        journal.id = record.id
        return journal

    def encode(self) -> bytes:
        """The journal as bytes."""
        return self._encode(self.answers)

    def encode_own(self) -> bytes:
        """The same without what the client answered: what this side has put into it."""
        return self._encode({key: RecordedAnswer(answer.question, _NOTHING) for key, answer in self.answers.items()})

    def _encode(self, answers: dict[str, RecordedAnswer]) -> bytes:
        fields = (answers, self.once, self.pending, [] if self.state is None else [self.state], self.id)
        return _write((*fields, sorted(self.by_hand)) if self.by_hand else fields)  # a `_Record`, none of it in vain

    def accept(self, responses: Mapping[str, Raw], *, limit: int = _MAX_RESPONSES) -> None:
        """Record the answers to what the last round asked; nothing is pending afterwards.

        Answers to what was not asked are ignored (MRTR-25); what was not answered is for the run to ask again
        (MRTR-26). ValueError when there are more than `limit` responses.
        """
        if len(responses) > limit:
            raise ValueError(
                f"`inputResponses` has {len(responses)} entries, and at most {limit} are read; "
                "send those that were asked for."
            )
        for key, question in self.pending.items():
            if key in responses:
                self.answers[key] = RecordedAnswer(question, responses[key])
        self.before = {key: question for key, question in self.pending.items() if key not in responses}
        self.pending = {}

    def answer(self, key: str, question: str) -> Raw | None:
        """The recorded answer to this very question, by its digest; None when it has to be asked."""
        recorded = self.answers.get(key)
        return recorded.value if recorded is not None and recorded.question == question else None

    def unasked(self, asked: Mapping[str, str]) -> list[str]:
        """The keys of questions of earlier rounds that were not asked in this run, and should have been.

        `asked` are digests by key. Questions of the explicit form are asked once by design.
        """
        earlier = self.before | {key: answer.question for key, answer in self.answers.items()}
        return [key for key, question in earlier.items() if key not in self.by_hand and asked.get(key) != question]


class Keys:
    """Names the questions of one run, so that the next run gives the same ones the same names.

    An explicit key is used as it is; without one the name is made of the question, not of its place, so that questions
    asked concurrently may come in any order. What comes again gets a number.

    >>> keys = Keys()
    >>> keys.name("seat", "d1"), keys.name("seat", "d2"), keys.name(None, "0123456789abcdef"), keys.name(None, "d4")
    ('seat', 'seat#2', 'ask-0123456789', 'ask-d4')
    """

    __slots__ = ("_given", "_uses")

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._uses: Counter[str] = Counter()

    def name(self, explicit: str | None, question_digest: str) -> str:
        """The key of the next question; no key is given twice in a run (MRTR-05)."""
        base = explicit if explicit is not None else f"ask-{question_digest[:10]}"
        while True:
            self._uses[base] += 1
            name = base if self._uses[base] == 1 else f"{base}#{self._uses[base]}"
            if name not in self._given:  # an explicit key may look like a numbered one
                self._given.add(name)
                return name
