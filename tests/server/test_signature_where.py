"""Places in the user's code."""

from __future__ import annotations

import functools
import json
from pathlib import PureWindowsPath

import pytest

from weft.errors import RegistrationError
from weft.server import diagnostics as where
from weft.server.diagnostics import describe, location, short_path, user_frames
from weft.server.signature.signature import read_signature

HERE = "tests/server/test_signature_where.py"


def plain() -> None: ...


class Thing:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


def test_the_location_of_what_can_be_registered():
    line = plain.__code__.co_firstlineno
    assert location(plain) == f"{HERE}:{line}"
    assert location(functools.partial(plain)) == f"{HERE}:{line}"
    assert location(functools.wraps(plain)(lambda: None)) == f"{HERE}:{line}"
    assert location(Thing()) == f"{HERE}:{Thing.__call__.__code__.co_firstlineno}"
    assert location(Thing().method) == f"{HERE}:{Thing.method.__code__.co_firstlineno}"
    assert location(len) == "module builtins"
    assert describe(Thing()) == f"Thing ({location(Thing())})"


def test_a_path_outside_the_working_directory_is_short(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert location(plain).startswith("server/test_signature_where.py:")
    assert short_path(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert short_path("<stdin>") == "<stdin>"


def fails():
    return json.loads("{")


def test_only_the_users_frames_are_shown():
    try:
        fails()
    except ValueError as error:
        frames = user_frames(error)
    assert [frame.partition(" in ")[2].partition(":")[0] for frame in frames] == [
        "test_only_the_users_frames_are_shown",
        "fails",
    ]
    assert frames[-1].startswith(f"{HERE}:")
    assert frames[-1].endswith('return json.loads("{")')


def test_frames_of_weft_are_left_out():
    with pytest.raises(RegistrationError) as caught:
        read_signature(lambda x: x)
    frames = user_frames(caught.value)
    assert len(frames) == 1
    assert frames[0].startswith(HERE)


def test_whose_a_file_is_does_not_hang_on_the_separator(monkeypatch):
    class WindowsPath(PureWindowsPath):
        def resolve(self):
            return self

    rooms = where._foreign_folders.__wrapped__
    monkeypatch.setattr(where, "Path", WindowsPath)
    monkeypatch.setattr(where, "_foreign_folders", rooms)
    assert not where.is_users(where.__file__)
    assert not where.is_users(json.__file__)
    assert where.is_users(__file__)
