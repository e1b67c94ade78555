"""Docstrings in three styles, and in none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.server.signature.signature import Docstring, parse_docstring

GOOGLE = """Book a seat.

    More about it.

    Args:
        flight (str): The flight: its number,
            such as LX38.
        seat: The seat.

    Returns:
        The reference.
    """
NUMPY = """Book a seat.

    More about it.

    Parameters
    ----------
    flight : str
        The flight: its number,
        such as LX38.
    seat
        The seat.

    Returns
    -------
    str
        The reference.
    """
SPHINX = """Book a seat.

    More about it.

    :param str flight: The flight: its number,
        such as LX38.
    :type flight: str
    :param seat: The seat.
    :returns: The reference.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style(doc):
    parsed = parse_docstring(doc)
    assert parsed.params == {"flight": "The flight: its number, such as LX38.", "seat": "The seat."}
    assert parsed.summary.startswith("Book a seat.\n\nMore about it.\n\n")
    assert "The reference." in parsed.summary
    assert "seat." not in parsed.summary.removeprefix("Book a seat.")
    assert "\n\n\n" not in parsed.summary


def test_numpy_names_that_share_a_description():
    assert parse_docstring("Add.\n\nParameters\n----------\na, b : int\n    A number.").params == {
        "a": "A number.",
        "b": "A number.",
    }


def test_a_section_that_goes_on_after_an_empty_line():
    assert parse_docstring("Add.\n\nArgs:\n    a: One.\n\n    b: Two.\n\nThe end.") == Docstring(
        "Add.\n\nThe end.", {"a": "One.", "b": "Two."}
    )


@pytest.mark.parametrize("doc", [None, "", "   \n  "])
def test_nothing_is_nothing(doc):
    assert parse_docstring(doc) == Docstring("", {})


def test_prose_stays_as_it_is():
    text = "Say: hello.\n\nThe parameters are free:\n  - one: a\n  - two: b"
    assert parse_docstring(text) == Docstring(text, {})


@given(st.text(alphabet="Args:Parmet\n -_xy*():", max_size=300))
def test_any_text_is_read(text):
    parsed = parse_docstring("F.\n\nArgs:\n    " + text)
    assert all(name and value for name, value in parsed.params.items())


@pytest.mark.security("R7")
def test_a_long_docstring_is_read_in_one_pass():
    parsed = parse_docstring("F.\n\nArgs:\n" + "    x (" + "(" * 100_000 + "\n" + "    y: z\n" * 20_000)
    assert parsed.params["y"].startswith("z z")
