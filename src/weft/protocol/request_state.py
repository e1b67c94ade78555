"""Write and read `requestState`: the journal of a call whose handler runs again in each round, sealed.

A handler asks; the call ends with the questions and its journal. The retry runs the handler again from the top, on any
worker, and finds the earlier answers and once-results in the journal. A question is found by its key *and* its digest:
a changed question is asked again, never answered by an old answer. A journal is not compressed: a client chooses part
of its content and sees its length, which would then reveal the rest.

The state travels through the client, which can neither read nor change it, nor use it for another request. It is
encrypted and authenticated with AES-256-GCM; the seal also covers the expiry, and the principal and request it was made
for. Every state that is refused is refused with the same sentence. A token is base64url without padding of

    version (1 byte) | key id (4) | expiry in Unix seconds (8) | nonce (12) | ciphertext and tag

`cryptography` is imported at the first seal, not before."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Raw

from weft.errors import InvalidParams, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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


_MAX_BYTES = 16_384

_LEAST_SECRET = 16

_VERSION = 1

_HEAD = struct.Struct(">B4sQ12s")  # its bytes are authenticated together with the binding

_TAG_BYTES = 16

_REMEDY = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'


class StateRefused(InvalidParams):
    """A `requestState` is refused. The text is the same for every reason: a client learns nothing by trying."""

    def __init__(self) -> None:
        super().__init__(
            "`requestState` is not one that this server gave out for this request, or is too old. "
            "Call again without it."
        )


class KeyRing:
    """The secrets that seal state: the first one seals, all of them open. Servers that share one share their calls.

    To rotate, put the new secret first everywhere, and remove the old one when all states that it sealed have expired.
    Nonces are random, so a secret is good for some 2**32 states.

    >>> ring = KeyRing(["a secret of at least 16 bytes"])
    >>> token = ring.seal(b"journal", binding=b"request", expires=1000)
    >>> ring.open(token, binding=b"request", now=999)
    b'journal'
    """

    def __init__(self, secrets: Sequence[str | bytes]) -> None:
        if isinstance(secrets, str | bytes):
            raise UsageError("The secrets of a KeyRing come as a list, also when there is one: KeyRing([secret]).")
        if not all(isinstance(secret, str | bytes) for secret in cast("Sequence[object]", secrets)):
            raise UsageError(f"The secrets of a KeyRing are text or bytes. {_REMEDY}")
        self._secrets = [secret.encode() if isinstance(secret, str) else secret for secret in secrets]
        if not self._secrets:
            raise UsageError(f"A KeyRing needs at least one secret, and there is none. {_REMEDY}")
        for number, secret in enumerate(self._secrets, 1):
            if len(secret) < _LEAST_SECRET:
                raise UsageError(
                    f"Secret {number} of {len(self._secrets)} has {len(secret)} bytes, and {_LEAST_SECRET} are the "
                    f"least that is safe. {_REMEDY}"
                )

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._secrets)}>"  # never a secret

    @classmethod
    def ephemeral(cls) -> KeyRing:
        """Return a ring of one random secret: only this process can open what it seals."""
        return cls([os.urandom(32)])

    @classmethod
    def from_environment(cls, value: str) -> KeyRing:
        """Return a ring from the text of an environment variable: secrets separated by commas, the sealing one first.

        >>> KeyRing.from_environment("the newer secret of two, the older secret of two")
        <KeyRing of 2>
        """
        return cls([part.strip() for part in value.split(",") if part.strip()])

    @cached_property
    def _keys(self) -> list[tuple[bytes, AESGCM]]:
        return [_derive(secret) for secret in self._secrets]

    def seal(self, payload: bytes, *, binding: bytes, expires: int, max_bytes: int = _MAX_BYTES) -> str:
        """Return a token for the payload that opens only with the same binding, and before `expires` (Unix seconds).

        Raises UsageError if the token would be longer than `max_bytes`, since it would be refused when it comes back.
        """
        key_id, cipher = self._keys[0]
        nonce = os.urandom(12)
        head = _HEAD.pack(_VERSION, key_id, expires, nonce)
        token = _encode(head + cipher.encrypt(nonce, payload, head + binding))
        if len(token) > max_bytes:
            raise UsageError(
                f"The sealed state of this call has {len(token)} bytes, more than the {max_bytes} allowed: it has "
                "every answer, every result of `once` and the explicit state so far. Keep large values in your own "
                "store and only their keys here, ask for less at a time, or raise `Limits(state_bytes=...)`."
            )
        return token

    def open(self, token: str, *, binding: bytes, now: int, max_bytes: int = _MAX_BYTES) -> bytes:
        """Return the payload of a token. Raises StateRefused unless a secret of the ring sealed it for this binding."""
        if len(token) > max_bytes:
            raise StateRefused
        data = _decode(token)
        if len(data) < _HEAD.size + _TAG_BYTES:
            raise StateRefused
        head, sealed = data[: _HEAD.size], data[_HEAD.size :]
        version, key_id, expires, nonce = _HEAD.unpack(head)
        payload = self._decrypt(key_id, nonce, sealed, head + binding)
        # Checked last: version and expiry cannot be trusted before the token is authenticated.
        if payload is None or version != _VERSION or now >= expires:
            raise StateRefused
        return payload

    def is_foreign(self, token: str) -> bool:
        """Return True if a token looks as if it was sealed with a key that is not in this ring.

        Any client can make up such a token, so this is only for the log.
        """
        try:
            data = _decode(token)
        except StateRefused:
            return False
        if len(data) < _HEAD.size + _TAG_BYTES:
            return False
        version, key_id, _, _ = _HEAD.unpack(data[: _HEAD.size])
        return version == _VERSION and all(known != key_id for known, _ in self._keys)

    def _decrypt(self, key_id: bytes, nonce: bytes, sealed: bytes, associated: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        for known, cipher in self._keys:
            if known == key_id:
                try:
                    return cipher.decrypt(nonce, sealed, associated)
                except InvalidTag:
                    continue  # two secrets can have the same id
        return None


def binding(principal: str | None, method: str, name: str, arguments: bytes | None, *, server: str = "") -> bytes:
    """Return a digest of the caller (None: unknown), the request and the server. Arguments are compared as JSON.

    >>> first = binding("ann", "tools/call", "book", b'{"seat":1,"row":2}')
    >>> first == binding("ann", "tools/call", "book", b'{"row": 2, "seat": 1}')
    True
    """
    whole = hashlib.sha256()
    for piece in (server, principal, method, name, None if arguments is None else _canonical(arguments)):
        data = piece.encode(errors="surrogatepass") if isinstance(piece, str) else piece
        # None differs from empty, and lengths come first: no two lists of pieces give the same bytes.
        whole.update(b"\0" if data is None else b"\1" + len(data).to_bytes(8, "big") + data)
    return whole.digest()


def _canonical(arguments: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.DecodeError, RecursionError):
        return arguments  # such as a number out of range: only the same bytes are equal


def _derive(secret: bytes) -> tuple[bytes, AESGCM]:
    """Return the id and the cipher of a secret; both are derived from it, so the id reveals nothing of the key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(algorithm=SHA256(), length=36, salt=None, info=b"weft request state").derive(secret)
    return derived[32:], AESGCM(derived[:32])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(token: str) -> bytes:
    """Return the bytes of a token. Raises StateRefused for other spellings of the same bytes (spare bits, padding)."""
    try:
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (UnicodeEncodeError, binascii.Error):
        raise StateRefused from None
    if _encode(data) != token:
        raise StateRefused
    return data
