"""The journal of a replayed handler: what is recorded comes back, and only for the question that was asked."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from weft.protocol.request_state import Journal, Keys, RecordedAnswer, digest
from weft.types.interaction import ElicitParams

KEYS = st.text(max_size=12)
DIGESTS = st.text("abcdef-_", min_size=1, max_size=6)
RAWS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
).map(lambda value: Raw(json.dumps(value).encode()))
JOURNALS = st.builds(
    Journal,
    st.dictionaries(KEYS, st.builds(RecordedAnswer, DIGESTS, RAWS), max_size=4),
    st.dictionaries(KEYS, RAWS, max_size=4),
    st.dictionaries(KEYS, DIGESTS, max_size=4),
    st.none() | RAWS,
)


def same(first: Journal, second: Journal) -> bool:
    return all(getattr(first, name) == getattr(second, name) for name in ("answers", "once", "pending", "state"))


# --- as bytes


@given(JOURNALS)
def test_a_journal_comes_back_as_it_was(journal: Journal):
    again = Journal.decode(journal.encode())
    assert same(again, journal)
    assert again.encode() == journal.encode()


def test_null_is_a_state_and_none_is_no_state():
    journal = Journal.empty()
    assert Journal.decode(journal.encode()).state is None
    journal.state = Raw(b"null")
    assert Journal.decode(journal.encode()).state == Raw(b"null")


def test_two_empty_journals_share_nothing():
    Journal.empty().once["charge"] = Raw(b"1")
    assert Journal.empty().once == {}


def test_a_journal_is_compact():
    assert Journal.empty().encode() == b'[{},{},{},[],""]'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b"[{},{},{}]",
        b"[{},{},{},[1,2]]",
        b'[{"a":1},{},{},[]]',
        b'[{"a":["d"]},{},{},[]]',
        b'[{},{},{"a":1},[]]',
        b"[{},{},{},[]",
        b'[{},{"a":' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_garbage_is_a_value_error_with_a_sentence(data: bytes):
    with pytest.raises(ValueError, match=r"^These bytes are not a journal") as caught:
        Journal.decode(data)
    assert type(caught.value) is ValueError


@given(st.binary(max_size=60))
def test_bytes_are_a_journal_or_a_value_error(data: bytes):
    try:
        journal = Journal.decode(data)
    except ValueError:
        return
    assert same(Journal.decode(journal.encode()), journal)


# --- answers


@given(JOURNALS, st.dictionaries(KEYS, RAWS, max_size=6))
def test_only_answers_to_what_is_pending_are_recorded(journal: Journal, responses: dict[str, Raw]):
    before, asked = dict(journal.answers), dict(journal.pending)
    journal.accept(responses)
    assert journal.pending == {}
    accepted = {key: RecordedAnswer(asked[key], responses[key]) for key in asked if key in responses}
    assert journal.answers == {**before, **accepted}


@given(JOURNALS, KEYS, DIGESTS)
def test_an_answer_is_for_its_own_question_only(journal: Journal, key: str, question: str):
    for known, answer in journal.answers.items():
        assert journal.answer(known, answer.question) == answer.value
        assert journal.answer(known, answer.question + "x") is None
    if key not in journal.answers or journal.answers[key].question != question:
        assert journal.answer(key, question) is None


def test_a_changed_question_is_asked_again_and_its_new_answer_replaces_the_old():
    journal = Journal.empty()
    journal.pending = {"seat": "window?"}
    journal.accept({"seat": Raw(b"1")})
    assert journal.answer("seat", "aisle?") is None
    journal.pending = {"seat": "aisle?"}
    journal.accept({"seat": Raw(b"2")})
    assert journal.answer("seat", "aisle?") == Raw(b"2")
    assert journal.answer("seat", "window?") is None


def test_an_answer_to_what_is_not_asked_cannot_replace_one_that_was_given():
    journal = Journal.empty()
    journal.pending = {"seat": "q"}
    journal.accept({"seat": Raw(b'"12A"')})
    journal.accept({"seat": Raw(b'"1A"'), "other": Raw(b"1")})
    assert journal.answer("seat", "q") == Raw(b'"12A"')
    assert set(journal.answers) == {"seat"}


@pytest.mark.security("D13", "R12")
def test_more_responses_than_the_limit_are_refused():
    journal = Journal.empty()
    journal.pending = {"0": "q"}
    responses = {str(number): Raw(b"1") for number in range(65)}
    with pytest.raises(ValueError, match="`inputResponses` has 65 entries, but at most 64 are allowed"):
        journal.accept(responses)
    assert journal.pending == {"0": "q"}
    assert journal.answers == {}
    del responses["64"]
    journal.accept(responses)
    assert journal.answer("0", "q") == Raw(b"1")
    with pytest.raises(ValueError, match="at most 1 are allowed"):
        journal.accept({"a": Raw(b"1"), "b": Raw(b"2")}, limit=1)


def test_questions_that_a_run_did_not_ask_again():
    journal = Journal.empty()
    journal.pending = {"a": "1", "b": "2", "c": "3"}
    journal.accept({"c": Raw(b"1"), "a": Raw(b"1")})
    assert journal.unasked({"a": "1", "b": "2"}) == ["c"]
    assert journal.unasked({"a": "1", "c": "3"}) == ["b"]  # though it was not answered
    assert journal.unasked({}) == ["b", "a", "c"]
    assert journal.unasked({"a": "1", "b": "2", "c": "3"}) == []
    assert journal.unasked({"a": "another question", "b": "2", "c": "3"}) == ["a"]


# --- names


def test_a_digest_tells_questions_apart_and_not_the_order_of_keys():
    params = {"message": "Which seat?", "requestedSchema": {"type": "object", "properties": {}}}
    other = {"requestedSchema": {"properties": {}, "type": "object"}, "message": "Which seat?"}
    assert digest("elicitation/create", params) == digest("elicitation/create", other)
    assert len({digest("elicitation/create", params), digest("x", params), digest("x", None), digest("x", {})}) == 4
    assert len(digest("x", None)) == 22


def test_a_digest_is_the_same_for_a_struct_and_its_plain_form():
    params = ElicitParams(message="Which?", requested_schema={"type": "object", "properties": {}})
    assert digest("m", params) == digest("m", msgspec.to_builtins(params))


QUESTIONS = st.lists(st.tuples(st.none() | st.sampled_from(["a", "a#2", "ask-x", "b"]), st.sampled_from("xyz")))


@pytest.mark.spec("MRTR-05")
@given(QUESTIONS)
def test_no_key_is_given_twice_and_a_second_run_gives_the_same(questions):
    first, second = Keys(), Keys()
    names = [first.name(*question) for question in questions]
    assert len(set(names)) == len(names)
    assert [second.name(*question) for question in questions] == names


def test_the_names_of_different_questions_do_not_depend_on_their_order():
    questions = [digest("m", number) for number in range(4)]
    for order in itertools.permutations(questions):
        keys = Keys()
        assert {question: keys.name(None, question) for question in order} == {
            question: f"ask-{question[:10]}" for question in questions
        }


def test_repeated_names_are_numbered():
    keys = Keys()
    assert [keys.name("seat", question) for question in "xyz"] == ["seat", "seat#2", "seat#3"]
    assert [keys.name(None, "x") for _ in range(3)] == ["ask-x", "ask-x#2", "ask-x#3"]
    assert keys.name("", "x") == ""
