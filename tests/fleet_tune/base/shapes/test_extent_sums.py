"""Sums of dynamic dimensions, from text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.shapes.extent_sums import ExtentSum, sums_of

NAMES = st.from_regex(r"[a-z_]\w{0,6}", fullmatch=True).filter(str.isascii)
SUMS = st.builds(
    ExtentSum.of, st.lists(st.tuples(NAMES, st.integers(1, 9)), min_size=1, max_size=4), st.integers(0, 99)
)


@given(SUMS)
def test_the_text_of_a_sum_is_read_back(total: ExtentSum) -> None:
    assert ExtentSum.parse(str(total)) == total


@given(SUMS, SUMS, st.integers(0, 5))
def test_sums_have_the_values_of_their_parts(first: ExtentSum, second: ExtentSum, factor: int) -> None:
    extents = {name: at + 2 for at, name in enumerate((*first.names, *second.names))}
    assert (first + second).at(extents) == first.at(extents) + second.at(extents)
    assert (first * factor).at(extents) == factor * first.at(extents)


@pytest.mark.parametrize(
    ("text", "said", "value"),
    [
        ("past + tokens", "past + tokens", 9),
        ("tokens+1", "tokens + 1", 3),
        ("2*past + tokens + past", "3*past + tokens", 23),
        ("0_1", "0_1", 100),
        ("12", "12", 1000),  # a dimension may have any word as its name
    ],
)
def test_texts(text: str, said: str, value: int) -> None:
    total = ExtentSum.parse(text)
    assert str(total) == said
    assert total.at({"past": 7, "tokens": 2, "0_1": 100, "12": 1000}) == value
    assert total.is_name == (text == said and "+" not in text)


@pytest.mark.parametrize("text", ["", "+", "a +", "a - 1", "1 + 2", "a b", "a*2", "a + b.c", "0*a", "a + 1234567890"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no sum of dimensions"):
        ExtentSum.parse(text)


def test_the_sums_among_shapes_are_found_with_their_places() -> None:
    found = sums_of([(2, "n"), ("n", 3, "n + m"), ()])
    assert [(at, axis, str(total)) for at, axis, total in found] == [(1, 2, "n + m")]
