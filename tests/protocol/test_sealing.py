"""Sealed state: opens for whom and what it was made, for as long as it was made, and never otherwise."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InvalidParams, UsageError
from weft.protocol import request_state as sealing
from weft.protocol.request_state import KeyRing, StateRefused, binding

NEW, OLD, OTHER = "the newer secret, long enough", "the older secret, long enough", b"a secret of somebody else"
RING = KeyRing([NEW])
REQUEST = binding("ann", "tools/call", "book", b'{"flight":"LX38"}')
REFUSAL = "`requestState` was not issued by this server for this request, or is too old. Call again without it."
TOKEN = RING.seal(b"journal", binding=REQUEST, expires=1000)


def refused(token: str, *, ring: KeyRing = RING, to: bytes = REQUEST, now: int = 0, **bounds: int) -> None:
    with pytest.raises(StateRefused) as caught:
        ring.open(token, binding=to, now=now, **bounds)
    assert isinstance(caught.value, InvalidParams)
    assert caught.value.message == REFUSAL
    assert caught.value.data is None
    assert caught.value.__cause__ is None


@given(st.binary(max_size=300), st.binary(max_size=40), st.integers(0, 2**40))
def test_what_was_sealed_opens(payload: bytes, to: bytes, expires: int):
    token = RING.seal(payload, binding=to, expires=expires + 1)
    assert RING.open(token, binding=to, now=expires) == payload


def test_the_payload_cannot_be_read_and_two_seals_differ():
    data = base64.urlsafe_b64decode(TOKEN + "=" * (-len(TOKEN) % 4))
    assert b"journal" not in data
    assert RING.seal(b"journal", binding=REQUEST, expires=1000) != TOKEN


# --- tampered


@pytest.mark.spec("MRTR-09")
@pytest.mark.parametrize("payload", [b"", b"1", b"12", b"123"])  # each number of spare bits at the end
def test_a_state_changed_in_any_byte_or_bit_is_refused(payload: bytes):
    token = RING.seal(payload, binding=REQUEST, expires=1000)
    data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for place, bit in itertools.product(range(len(data)), range(8)):
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        refused(base64.urlsafe_b64encode(changed).rstrip(b"=").decode())


@pytest.mark.spec("MRTR-09")
@pytest.mark.parametrize("payload", [b"", b"1", b"12"])
def test_a_state_with_any_other_character_in_any_place_is_refused(payload: bytes):
    token = RING.seal(payload, binding=REQUEST, expires=1000)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=\n é"
    for place, character in itertools.product(range(len(token)), alphabet):
        if token[place] != character:
            refused(token[:place] + character + token[place + 1 :])


@pytest.mark.parametrize("token", ["", "A", "AQ", "=", "\0", "é", "\ud800", "A" * 54, "A" * 55, "A" * 200])
def test_garbage_is_refused(token: str):
    refused(token)


def test_cut_and_respelled_state_is_refused():
    for end in range(len(TOKEN)):
        refused(TOKEN[:end])
    for token in (TOKEN + "=", TOKEN + "\n", " " + TOKEN, TOKEN + "A", TOKEN + TOKEN, TOKEN.lower()):
        refused(token)


@given(st.text(max_size=200))
def test_no_text_raises_anything_else(token: str):
    refused(token)


# --- whose, for what, until when


@pytest.mark.spec("MRTR-11", "MRTR-13")
@pytest.mark.security("R5")
@pytest.mark.parametrize(
    "other",
    [
        binding("bob", "tools/call", "book", b'{"flight":"LX38"}'),
        binding(None, "tools/call", "book", b'{"flight":"LX38"}'),
        binding("", "tools/call", "book", b'{"flight":"LX38"}'),
        binding("ann", "prompts/get", "book", b'{"flight":"LX38"}'),
        binding("ann", "tools/call", "cancel", b'{"flight":"LX38"}'),
        binding("ann", "tools/call", "book", b'{"flight":"LX39"}'),
        binding("ann", "tools/call", "book", None),
        b"",
    ],
)
def test_state_of_another_principal_tool_or_arguments_is_refused_as_an_unknown_one(other: bytes):
    refused(TOKEN, to=other)
    assert RING.open(TOKEN, binding=REQUEST, now=0) == b"journal"


@pytest.mark.spec("MRTR-12")
def test_state_ends_at_its_expiry():
    assert RING.open(TOKEN, binding=REQUEST, now=999) == b"journal"
    refused(TOKEN, now=1000)
    refused(TOKEN, now=10**9)


@pytest.mark.security("D13", "R12")
def test_state_is_bounded_both_ways():
    room = 16_384 * 3 // 4 - 41
    token = RING.seal(b"x" * room, binding=REQUEST, expires=1000)
    assert len(token) == 16_384
    assert RING.open(token, binding=REQUEST, now=0) == b"x" * room
    with pytest.raises(UsageError, match=r"more than the 16384 allowed. .*Limits\(state_bytes=") as caught:
        RING.seal(b"x" * (room + 1), binding=REQUEST, expires=1000)
    assert "once" in str(caught.value)
    larger = RING.seal(b"x" * (room + 1), binding=REQUEST, expires=1000, max_bytes=20_000)
    refused(larger)
    assert RING.open(larger, binding=REQUEST, now=0, max_bytes=20_000)


# --- the ring


def test_the_first_secret_seals_and_all_open():
    old, rotating, done = KeyRing([OLD]), KeyRing([NEW, OLD]), KeyRing([NEW])
    before = old.seal(b"1", binding=REQUEST, expires=9)
    assert rotating.open(before, binding=REQUEST, now=0) == b"1"
    refused(before, ring=done)
    after = rotating.seal(b"2", binding=REQUEST, expires=9)
    assert done.open(after, binding=REQUEST, now=0) == b"2"
    refused(after, ring=old)
    refused(after, ring=KeyRing([OTHER]))


def test_two_secrets_with_the_same_id_are_both_tried(monkeypatch: pytest.MonkeyPatch):
    derive = sealing._derive
    monkeypatch.setattr(sealing, "_derive", lambda secret: (b"same", derive(secret)[1]))
    token = KeyRing([OLD]).seal(b"1", binding=REQUEST, expires=9)
    assert KeyRing([NEW, OLD]).open(token, binding=REQUEST, now=0) == b"1"
    refused(token, ring=KeyRing([NEW]))


def test_text_and_its_bytes_are_the_same_secret():
    token = KeyRing(["Ein Schlüssel, lang genug"]).seal(b"1", binding=b"", expires=9)
    assert KeyRing(["Ein Schlüssel, lang genug".encode()]).open(token, binding=b"", now=0) == b"1"


def test_an_ephemeral_ring_opens_its_own_only():
    ring = KeyRing.ephemeral()
    token = ring.seal(b"1", binding=REQUEST, expires=9)
    assert ring.open(token, binding=REQUEST, now=0) == b"1"
    refused(token, ring=KeyRing.ephemeral())


def test_a_ring_from_the_environment():
    ring = KeyRing.from_environment(f" {NEW.replace(',', ';')} ,{OLD.replace(',', ';')},")
    token = KeyRing([OLD.replace(",", ";")]).seal(b"1", binding=REQUEST, expires=9)
    assert ring.open(token, binding=REQUEST, now=0) == b"1"


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        ([], "needs at least one secret"),
        (["swordfish"], "Key 1 of 1 has 9 bytes, but a safe one has at least 16"),
        ([NEW, b"123456789012345"], "Key 2 of 2 has 15 bytes"),
        ([32], "text or bytes"),  # which Python would make 32 zeros of
    ],
)
def test_a_secret_that_will_not_do_is_refused_with_the_command_that_makes_one(secrets: list[str], said: str):
    with pytest.raises(UsageError) as caught:
        KeyRing(secrets)
    assert said in str(caught.value)
    assert 'python -c "import secrets; print(secrets.token_urlsafe(32))"' in str(caught.value)
    assert "swordfish" not in str(caught.value)
    assert KeyRing([b"1234567890123456"])


@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_an_empty_environment_variable_is_refused(value: str):
    with pytest.raises(UsageError, match="needs at least one secret"):
        KeyRing.from_environment(value)


@pytest.mark.parametrize("secret", [NEW, NEW.encode()])
def test_one_secret_without_a_list_is_refused(secret: str | bytes):
    with pytest.raises(UsageError, match=r"KeyRing\(\[secret\]\)"):
        KeyRing(secret)


def test_a_ring_does_not_show_its_secrets():
    assert repr(KeyRing([NEW, OLD])) == "<KeyRing of 2>"
    assert repr(KeyRing.ephemeral()) == "<KeyRing of 1>"


# --- what it is bound to

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=5)


def backwards(value):
    if isinstance(value, dict):
        return {key: backwards(inner) for key, inner in reversed(value.items())}
    return [backwards(inner) for inner in value] if isinstance(value, list) else value


def bound(arguments: bytes) -> bytes:
    return binding("ann", "tools/call", "book", arguments)


@pytest.mark.spec("MRTR-13")
@given(OBJECTS)
def test_arguments_that_are_equal_as_json_are_equal(arguments):
    compact = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode()
    assert bound(compact) == bound(json.dumps(backwards(arguments), indent=3, ensure_ascii=True).encode())


@pytest.mark.spec("MRTR-13")
@given(OBJECTS, OBJECTS)
def test_arguments_that_differ_differ(first, second):
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (bound(json.dumps(first).encode()) == bound(json.dumps(second).encode())) is same


def test_arguments_out_of_range_are_equal_to_themselves_only():
    assert bound(b'{"a":1e999}') == bound(b'{"a":1e999}')
    assert len({bound(b'{"a":1e999}'), bound(b'{"a":1e998}'), bound(b"[" * 100_000), bound(b"{}")}) == 4


@given(st.lists(st.tuples(st.none() | st.text(), st.text(), st.text()), min_size=2, max_size=2, unique=True))
def test_pieces_do_not_run_into_each_other(pieces):
    assert binding(*pieces[0], b"{}") != binding(*pieces[1], b"{}")


def test_neighbouring_pieces_do_not_run_into_each_other():
    assert binding("a", "b", "", None) != binding("", "ab", "", None)
    assert len({binding(None, "m", "n", None), binding("", "m", "n", None), binding(None, "m", "n", b"")}) == 3


def test_cryptography_is_loaded_by_sealing_only():
    program = (
        "import sys, weft, weft.server.api.server\n"
        "from weft.protocol.request_state import KeyRing\n"
        "ring = KeyRing.ephemeral()\n"
        "assert 'cryptography' not in sys.modules\n"
        "ring.seal(b'', binding=b'', expires=1)\n"
        "assert 'cryptography' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_state_of_another_key_can_be_told_from_one_that_was_changed():
    foreign = KeyRing([OTHER]).seal(b"journal", binding=REQUEST, expires=1000)
    assert RING.is_foreign(foreign)
    assert not RING.is_foreign(TOKEN)
    assert not KeyRing([NEW, OTHER]).is_foreign(foreign)
    last = "A" if TOKEN[-1] != "A" else "E"
    for token in (TOKEN[:-1] + last, TOKEN[:20], "", "garbage", "é", "A" * 60):
        assert not RING.is_foreign(token)
