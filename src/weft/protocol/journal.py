"""Record the answers and once-results of a call whose handler runs again in each round.

A handler asks; the call ends with the questions and this journal, sealed. The retry runs the handler again from the
top, on any worker, and finds the earlier answers here. A question is found by its key *and* its digest: a changed
question is asked again, never answered by an old answer.

A journal is not compressed: a client chooses part of its content and sees its length, which would then reveal the rest.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

_MAX_RESPONSES = 64
_DIGEST_BYTES = 16
_NOTHING = Raw(b"null")


def digest(method: str, params: Any) -> str:
    """Return a digest of a question: the same for the same method and params, in any order of keys.

    >>> digest("elicitation/create", {"a": 1, "b": 2}) == digest("elicitation/create", {"b": 2, "a": 1})
    True
    """
    whole = hashlib.sha256(msgspec.json.encode((method, params), order="sorted")).digest()
    return base64.urlsafe_b64encode(whole[:_DIGEST_BYTES]).rstrip(b"=").decode()


class RecordedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer of the client, and the digest of its question."""

    question: str
    value: Raw


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """The wire format of a journal. The state is a list of none or one, since JSON's null is a state too."""

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
        self.pending = pending  # questions of the last round: digest by key
        self.state = state  # state of the explicit form (`InputRequired`), or None
        self.by_hand: set[str] = set()  # keys of questions of the explicit form, which a run does not ask again
        self.id = ""  # id of the logical call, from its second round on
        self.before: dict[str, str] = {}  # questions of the last round without an answer

    @classmethod
    def empty(cls) -> Journal:
        """Return the journal of a new call."""
        return cls({}, {}, {}, None)

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """Return the journal that `encode` wrote. Raises ValueError for other bytes."""
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
        """Return the journal as bytes."""
        return self._encode(self.answers)

    def encode_own(self) -> bytes:
        """Return the journal as bytes, without the client's answers."""
        return self._encode({key: RecordedAnswer(answer.question, _NOTHING) for key, answer in self.answers.items()})

    def _encode(self, answers: dict[str, RecordedAnswer]) -> bytes:
        fields = (answers, self.once, self.pending, [] if self.state is None else [self.state], self.id)
        return _write(
            (*fields, sorted(self.by_hand)) if self.by_hand else fields
        )  # a `_Record`, without an empty last field

    def accept(self, responses: Mapping[str, Raw], *, limit: int = _MAX_RESPONSES) -> None:
        """Record the answers to the questions of the last round; nothing is pending afterwards.

        Answers without a question are ignored; a question without an answer is asked again by the run. Raises
        ValueError for more than `limit` responses.
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
        """Return the recorded answer to the question with this key and digest; None if it must be asked."""
        recorded = self.answers.get(key)
        return recorded.value if recorded is not None and recorded.question == question else None

    def unasked(self, asked: Mapping[str, str]) -> list[str]:
        """Return the keys of questions of earlier rounds that this run should have asked, and did not.

        `asked` are digests by key. Questions of the explicit form are asked once by design.
        """
        earlier = self.before | {key: answer.question for key, answer in self.answers.items()}
        return [key for key, question in earlier.items() if key not in self.by_hand and asked.get(key) != question]


class Keys:
    """Keys of the questions of one run; the next run gives the same questions the same keys.

    An explicit key is used as it is. Other keys are made from the question, not from its position, so that concurrent
    questions may come in any order. A repeated key gets a number.

    >>> keys = Keys()
    >>> keys.name("seat", "d1"), keys.name("seat", "d2"), keys.name(None, "0123456789abcdef"), keys.name(None, "d4")
    ('seat', 'seat#2', 'ask-0123456789', 'ask-d4')
    """

    __slots__ = ("_given", "_uses")

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._uses: Counter[str] = Counter()

    def name(self, explicit: str | None, question_digest: str) -> str:
        """Return the key of the next question; no key is used twice in a run."""
        base = explicit if explicit is not None else f"ask-{question_digest[:10]}"
        while True:
            self._uses[base] += 1
            name = base if self._uses[base] == 1 else f"{base}#{self._uses[base]}"
            if name not in self._given:  # an explicit key may look like a numbered one
                self._given.add(name)
                return name
