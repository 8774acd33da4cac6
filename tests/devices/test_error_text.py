"""Exceptions in one line."""

from __future__ import annotations

from devices.error_text import MAX_DETAIL, after, brief, last_line, line_with


def test_the_line_that_says_most() -> None:
    error = ValueError(" one\n\nwhy: two \n three\n")
    assert brief(error) == "ValueError: one"
    assert last_line(error) == "ValueError: three"
    assert after(error, "why: ") == "ValueError: two"
    assert after(error, "nothing: ") == brief(error)
    assert line_with(error, ("three", "y: t")) == "ValueError: why: two"
    assert line_with(error, ("nothing",)) == ""


def test_nothing_to_say_and_too_much() -> None:
    assert brief(KeyError()) == last_line(KeyError()) == after(KeyError(), "x") == "KeyError"
    assert len(brief(ValueError("a" * 9999))) == MAX_DETAIL
