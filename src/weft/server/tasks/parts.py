"""Keep large values of a task outside of its record, so that a request which needs only the status stays cheap.

A value of more than `MOST_INLINE` bytes has an entry of its own in the Backend, named by a digest of its content. The
record has the digest. In the memory of a process, `APART` stands for a value that was not loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    from weft.server.tasks.records import TaskRecord

MOST_INLINE = 4096  # bytes of a value that stays in the record
APART = Raw(b'"apart"')  # compared by identity: the content of a value does not matter
_PLAIN = ("result", "error", "state", "output_schema")


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A value that is stored outside of the record: the digest of its content, and its size."""

    digest: str
    size: int


def values_of(record: TaskRecord) -> Iterator[tuple[str, Raw]]:
    """Return all values of a record that can be large, by name."""
    for name in _PLAIN:
        yield name, getattr(record, name)
    for key, question in record.questions.items():
        yield f"question {key}", question
    for key, answer in record.answers.items():
        yield f"answer {key}", answer.value


def set_value(record: TaskRecord, name: str, value: Raw) -> None:
    """Set a value of a record that can be large. Does nothing if there is no such question or answer any more."""
    kind, _, key = name.partition(" ")
    if kind == "question":
        if key in record.questions:
            record.questions[key] = value
    elif kind == "answer":
        if key in record.answers:
            record.answers[key] = msgspec.structs.replace(record.answers[key], value=value)
    else:
        setattr(record, name, value)


def unpack(record: TaskRecord) -> TaskRecord:
    """Put `APART` into a record that was read, for each value that is stored elsewhere. Return the record."""
    for name in record.apart:
        set_value(record, name, APART)
    return record


def pack(record: TaskRecord) -> tuple[TaskRecord, dict[str, bytes]]:
    """Return the record as it is stored, and the values that must be stored elsewhere, by digest."""
    apart: dict[str, Part] = {}
    contents: dict[str, bytes] = {}
    for name, value in values_of(record):
        if value is APART:
            apart[name] = record.apart[name]
        elif len(bytes(value)) > MOST_INLINE:
            part = Part(hashlib.sha256(bytes(value)).hexdigest()[:32], len(bytes(value)))
            apart[name], contents[part.digest] = part, bytes(value)
    record.apart = apart
    if not apart:
        return record, contents
    stored = msgspec.structs.replace(record, questions=dict(record.questions), answers=dict(record.answers))
    for name in apart:
        set_value(stored, name, APART)
    return stored, contents
