"""Encode and decode `requestState`: the encrypted journal of a call whose handler runs again in each round.

When a handler asks a question, the request ends, and its result contains the question and the journal. The client
sends the request again with the answer and the journal. The handler then runs again from the top, on any worker, and
finds the earlier answers and once-results in the journal. An answer is found by the key *and* the digest of its
question, so a changed question is asked again. A journal is not compressed: a client that chooses a part of the content
could learn about other parts from the compressed length.

The client stores the state between rounds, but can neither read nor change it, nor use it for another request. The
state is encrypted with AES-256-GCM. Its expiry, its principal and its request are authenticated with it. The error for
a refused state is always the same. The encrypted state is a token: base64url without padding of

    version (1 byte) | key id (4) | expiry in Unix seconds (8) | nonce (12) | ciphertext and tag

The package `cryptography` is imported when it is first needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
from msgspec import Raw

from weft.errors import InvalidParams, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MAX_RESPONSES = 64

_DIGEST_BYTES = 16

_NOTHING = Raw(b"null")


def digest(method: str, params: Any) -> str:
    """Return a digest of the method and params of a question to the client. The order of keys does not matter.

    >>> digest("elicitation/create", {"a": 1, "b": 2}) == digest("elicitation/create", {"b": 2, "a": 1})
    True
    """
    whole = hashlib.sha256(msgspec.json.encode((method, params), order="sorted")).digest()
    return _encode(whole[:_DIGEST_BYTES])


class RecordedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer of the client, and the digest of the question that it answers."""

    question: str  # digest of the question
    value: Raw


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """The format of an encoded journal. `state` is a list with zero or one element, because null is a valid state."""

    answers: dict[str, RecordedAnswer]
    once: dict[str, Raw]
    pending: dict[str, str]
    state: Annotated[list[Raw], msgspec.Meta(max_length=1)]
    id: str = ""
    by_hand: list[str] = []


_read = msgspec.json.Decoder(_Record).decode

_write = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class Journal:
    """The client's answers and the results of `ctx.once` so far, for one logical call.

    A logical call is one request together with its repetitions, in which the client sends its answers.

    >>> question = digest("roots/list", None)
    >>> journal = Journal.empty()
    >>> journal.pending["where"] = question
    >>> journal = Journal.decode(journal.encode())  # to the client and back
    >>> journal.accept({"where": Raw(b'{"roots":[]}')})
    >>> bytes(journal.answer("where", question))
    b'{"roots":[]}'
    """

    answers: dict[str, RecordedAnswer]
    once: dict[str, Raw]  # results of `ctx.once`, by key
    pending: dict[str, str]  # digests of the questions that the last round sent to the client, by key
    state: Raw | None  # the state that the handler gave with `InputRequired`, or None
    by_hand: set[str] = field(default_factory=set[str])  # keys of questions from `InputRequired`
    id: str = ""  # id of the logical call; empty in the first round
    before: dict[str, str] = field(default_factory=dict[str, str])  # unanswered questions of the last round

    @classmethod
    def empty(cls) -> Journal:
        """Return an empty journal, for a new logical call."""
        return cls({}, {}, {}, None)

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """Decode a journal from the bytes that `encode` returned; raise ValueError if `data` is something else."""
        try:
            record = _read(data)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("These bytes are not a journal; decode only bytes of `Journal.encode`.") from None
        state = record.state[0] if record.state else None
        return cls(record.answers, record.once, record.pending, state, set(record.by_hand), record.id)

    def encode(self) -> bytes:
        """Return the journal as bytes."""
        return self._encode(self.answers)

    def encode_own(self) -> bytes:
        """Return the journal as bytes, without the content of the client's answers.

        If a journal is too large, the length of these bytes shows whether the client's answers are the reason.
        """
        return self._encode({key: RecordedAnswer(answer.question, _NOTHING) for key, answer in self.answers.items()})

    def _encode(self, answers: dict[str, RecordedAnswer]) -> bytes:
        fields = (answers, self.once, self.pending, [] if self.state is None else [self.state], self.id)
        return _write((*fields, sorted(self.by_hand)) if self.by_hand else fields)  # an empty last field is left out

    def accept(self, responses: Mapping[str, Raw], *, limit: int = _MAX_RESPONSES) -> None:
        """Record the answers to the pending questions; afterwards no question is pending.

        `responses` are the answers, by key. Answers without a pending question are ignored. A question without an
        answer is asked again when the handler runs again. Raises ValueError if there are more than `limit` answers.
        """
        if len(responses) > limit:
            raise ValueError(f"`inputResponses` has {len(responses)} entries, but at most {limit} are allowed.")
        for key, question in self.pending.items():
            if key in responses:
                self.answers[key] = RecordedAnswer(question, responses[key])
        self.before = {key: question for key, question in self.pending.items() if key not in responses}
        self.pending = {}

    def answer(self, key: str, question: str) -> Raw | None:
        """Return the recorded answer to the question that has this key and this digest, or None."""
        recorded = self.answers.get(key)
        return recorded.value if recorded is not None and recorded.question == question else None

    def unasked(self, asked: Mapping[str, str]) -> list[str]:
        """Return the keys of earlier questions that the handler should have asked again in this round, but did not.

        `asked` has the digests of the questions of this round, by key. Questions from `InputRequired` are not in the
        result, because a handler does not ask them again.
        """
        earlier = self.before | {key: answer.question for key, answer in self.answers.items()}
        return [key for key, question in earlier.items() if key not in self.by_hand and asked.get(key) != question]


class Keys:
    """A generator of keys for the questions of one handler run. In the next run, the same questions get the same keys.

    If the handler gave a key, this key is used. Otherwise the key is made from the first ten characters of the
    question's digest. The key does not depend on the order of the questions, because questions that are asked at the
    same time can come in any order. If a key is used again, a number is added to it.

    >>> keys = Keys()
    >>> keys.name("seat", "d1"), keys.name("seat", "d2"), keys.name(None, "0123456789abcdef"), keys.name(None, "d4")
    ('seat', 'seat#2', 'ask-0123456789', 'ask-d4')
    """

    __slots__ = ("_given", "_uses")

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._uses: Counter[str] = Counter()

    def name(self, explicit: str | None, question_digest: str) -> str:
        """Return a unique key for the next question. `explicit` is the key that the handler gave, or None."""
        base = explicit if explicit is not None else f"ask-{question_digest[:10]}"
        while True:
            self._uses[base] += 1
            name = base if self._uses[base] == 1 else f"{base}#{self._uses[base]}"
            if name not in self._given:  # a key that the handler gave may look like a numbered one
                self._given.add(name)
                return name


_MAX_BYTES = 16_384

_LEAST_SECRET = 16

_VERSION = 1

_HEAD = struct.Struct(">B4sQ12s")  # version, key id, expiry, nonce; authenticated together with the binding

_TAG_BYTES = 16

_REMEDY = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'


class StateRefused(InvalidParams):
    """The error for a `requestState` that is refused. The message is always the same, and does not tell the reason."""

    def __init__(self) -> None:
        super().__init__(
            "`requestState` was not issued by this server for this request, or is too old. Call again without it."
        )


class KeyRing:
    """The secrets that encrypt and decrypt `requestState`. Only the first one encrypts; all of them can decrypt.

    Workers with the same secrets can continue each other's calls. To rotate secrets, put the new secret first on all
    workers, and remove the old one when all states that it encrypted have expired. Nonces are random, so one secret is
    safe for about 2**32 states.

    >>> ring = KeyRing(["a secret of at least 16 bytes"])
    >>> token = ring.seal(b"journal", binding=b"request", expires=1000)
    >>> ring.open(token, binding=b"request", now=999)
    b'journal'
    """

    is_ephemeral = False  # whether the secret is random, and lost when the process ends

    def __init__(self, secrets: Sequence[str | bytes]) -> None:
        if isinstance(secrets, str | bytes):
            raise UsageError("The secrets of a KeyRing must be a list, even if there is only one: KeyRing([secret]).")
        if not all(isinstance(secret, str | bytes) for secret in cast("Sequence[object]", secrets)):
            raise UsageError(f"The secrets of a KeyRing must be text or bytes. {_REMEDY}")
        self._secrets = [secret.encode() if isinstance(secret, str) else secret for secret in secrets]
        if not self._secrets:
            raise UsageError(f"A KeyRing needs at least one secret. {_REMEDY}")
        for number, secret in enumerate(self._secrets, 1):
            if len(secret) < _LEAST_SECRET:
                which = f"Key {number} of {len(self._secrets)} has {len(secret)} bytes"
                raise UsageError(f"{which}, but a safe one has at least {_LEAST_SECRET}. {_REMEDY}")

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._secrets)}>"  # never a secret

    @classmethod
    def ephemeral(cls) -> KeyRing:
        """Return a key ring with one random secret, which only this process has."""
        ring = cls([os.urandom(32)])
        ring.is_ephemeral = True
        return ring

    @classmethod
    def from_environment(cls, value: str) -> KeyRing:
        """Return a key ring from the value of an environment variable: secrets separated by commas.

        The first secret encrypts.

        >>> KeyRing.from_environment("the newer secret of two, the older secret of two")
        <KeyRing of 2>
        """
        return cls([part.strip() for part in value.split(",") if part.strip()])

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, in the order of their secrets. They do not reveal the secrets.

        >>> KeyRing(["a secret of at least 16 bytes"]).ids
        ('d4a6a08b',)
        """
        return tuple(key_id.hex() for key_id, _ in self._keys)

    @cached_property
    def _keys(self) -> list[tuple[bytes, AESGCM]]:
        return [_derive(secret) for secret in self._secrets]

    def seal(self, payload: bytes, *, binding: bytes, expires: int, max_bytes: int = _MAX_BYTES) -> str:
        """Encrypt `payload` and return the token.

        `open` accepts the token only with the same binding, and before `expires` (in Unix seconds). Raises UsageError
        if the token would be longer than `max_bytes`, because `open` would refuse such a token.
        """
        key_id, cipher = self._keys[0]
        nonce = os.urandom(12)
        head = _HEAD.pack(_VERSION, key_id, expires, nonce)
        token = _encode(head + cipher.encrypt(nonce, payload, head + binding))
        if len(token) > max_bytes:
            raise UsageError(
                f"The encrypted state of this call has {len(token)} bytes, more than the {max_bytes} allowed. It "
                "contains all answers, all results of `once` and the explicit state so far. Store large values "
                "elsewhere and keep only their keys here, ask for less at a time, or raise `Limits(state_bytes=...)`."
            )
        return token

    def open(self, token: str, *, binding: bytes, now: int, max_bytes: int = _MAX_BYTES) -> bytes:
        """Decrypt a token and return its payload. `now` is in Unix seconds.

        Raises StateRefused if the token was changed, is too long, or has expired. Also raises StateRefused if the token
        was made with another binding, or with a secret that is not in this ring.
        """
        if len(token) > max_bytes:
            raise StateRefused
        data = _decode(token)
        head, sealed = data[: _HEAD.size], data[_HEAD.size :]
        version, key_id, expires, nonce = _HEAD.unpack(head)
        payload = self._decrypt(key_id, nonce, sealed, head + binding)
        # Version and expiry are checked last, because they cannot be trusted before the token is authenticated.
        if payload is None or version != _VERSION or now >= expires:
            raise StateRefused
        return payload

    def is_foreign(self, token: str) -> bool:
        """Return True if a token seems to be encrypted with a secret that is not in this ring.

        Any client can invent such a token, so use the result only for a log message.
        """
        try:
            data = _decode(token)
        except StateRefused:
            return False
        version, key_id, _, _ = _HEAD.unpack_from(data)
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
    """Return a digest of principal, request and server. Pass it as `binding` to `KeyRing.seal` and `KeyRing.open`.

    `principal` is None if the caller is not authenticated. If the arguments of two requests are the same JSON value,
    the digest is the same, even if their bytes differ.

    >>> first = binding("ann", "tools/call", "book", b'{"seat":1,"row":2}')
    >>> first == binding("ann", "tools/call", "book", b'{"row": 2, "seat": 1}')
    True
    """
    whole = hashlib.sha256()
    for piece in (server, principal, method, name, None if arguments is None else _canonical(arguments)):
        data = piece.encode(errors="surrogatepass") if isinstance(piece, str) else piece
        # Each piece has its length before it, and None differs from empty, so different pieces give different bytes.
        whole.update(b"\0" if data is None else b"\1" + len(data).to_bytes(8, "big") + data)
    return whole.digest()


def _canonical(arguments: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted")
    except (msgspec.DecodeError, RecursionError):
        return arguments  # they cannot be decoded, for example because a number is out of range; compare the bytes


def _derive(secret: bytes) -> tuple[bytes, AESGCM]:
    """Return the key id and the cipher for a secret.

    A one-way function derives both, so the key id does not reveal the secret.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(algorithm=SHA256(), length=36, salt=None, info=b"weft request state").derive(secret)
    return derived[32:], AESGCM(derived[:32])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(token: str) -> bytes:
    """Return the bytes of a token. Raises StateRefused if the token is too short, or `_encode` cannot have made it."""
    try:
        data = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (UnicodeEncodeError, binascii.Error):
        raise StateRefused from None
    if _encode(data) != token or len(data) < _HEAD.size + _TAG_BYTES:
        raise StateRefused
    return data
