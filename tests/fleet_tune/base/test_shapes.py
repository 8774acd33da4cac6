"""Bounds and weights of dynamic dimensions, from text and back."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes import MOST_EXTENT, Dimension, Shapes, parse_shapes, parse_weights, shapes_of, weighted

NAMES = st.from_regex(r"[A-Za-z_]\w{0,10}", fullmatch=True).filter(str.isascii)
EXTENTS = st.integers(1, MOST_EXTENT)


@st.composite
def _shapes(draw: st.DrawFn) -> Shapes:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    least, most = sorted(draw(st.tuples(EXTENTS, EXTENTS)))
    fixed = [Dimension(name, n, n) for name, n in zip(names[1:], draw(st.lists(EXTENTS, min_size=3)), strict=False)]
    dimensions = draw(st.permutations([Dimension(names[0], least, most), *fixed]))
    if least == most:
        return shapes_of(dimensions)
    weights = draw(st.dictionaries(st.integers(least, most), st.floats(0, 1e9), max_size=8))
    return shapes_of(dimensions, weights.items() if sum(weights.values()) else ())


@given(_shapes())
def test_the_text_of_shapes_is_read_back(shapes: Shapes) -> None:
    assert parse_shapes(str(shapes)) == shapes


@given(_shapes())
def test_most_of_the_time_is_spent_at_the_typical_extent(shapes: Shapes) -> None:
    if shapes.dynamic is not None:
        assert dict(shapes.weights)[shapes.typical] * shapes.typical == max(n * weight for n, weight in shapes.weights)


@given(_shapes())
def test_other_extents_to_compare_are_in_range_and_not_typical(shapes: Shapes) -> None:
    if shapes.dynamic is None:
        assert shapes.others == ()
    else:
        assert shapes.typical not in shapes.others
        assert {shapes.dynamic.least, shapes.dynamic.most} <= {*shapes.others, shapes.typical}
        assert all(extent in shapes.dynamic for extent in shapes.others)


@given(_shapes())
def test_kernels_are_tuned_for_the_ends_and_close_enough_between_them(shapes: Shapes) -> None:
    samples = shapes.samples
    if shapes.dynamic is not None:
        assert (samples[0], samples[-1]) == (shapes.dynamic.least, shapes.dynamic.most)
        assert all(before < after <= 2 * before for before, after in itertools.pairwise(samples))
        assert all(n & (n - 1) == 0 for n in samples[1:-1])


def test_without_weights_all_samples_count_the_same() -> None:
    shapes = parse_shapes("n = 3 .. 20, tokens=128")
    assert shapes.dimensions == (Dimension("n", 3, 20), Dimension("tokens", 128, 128))
    assert shapes.samples == (3, 4, 8, 16, 20)
    assert shapes.weights == tuple((extent, 1.0) for extent in (3, 4, 8, 16, 20))
    assert shapes.typical == 20
    assert str(shapes) == "n=3..20, tokens=128"


def test_weights_say_what_is_typical() -> None:
    shapes = parse_shapes("n=1..32; n=32:1, 1:7,8:2")
    assert shapes.typical == 32, "most of the time: 32 against 7 and 16"
    assert shapes.weights == ((1, 7.0), (8, 2.0), (32, 1.0))
    assert str(shapes) == "n=1..32; n=1:7,8:2,32:1"
    assert parse_shapes("n=1..32; n=1:2,8:2").typical == 8


def test_fixed_dimensions_have_neither_samples_nor_weights() -> None:
    shapes = parse_shapes("n=4, tokens=128")
    assert shapes.dynamic is None
    assert shapes.samples == ()
    assert shapes.weights == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no name with its bounds"),
        ("n", '"n=1..32, tokens=128"'),
        ("n=1..32,", "'' is no name"),
        ("n=-1..3", "'n=-1..3' is no name with its bounds"),
        ("n=0..3", "cannot have the extent 0; give extents from 1 to 65536"),
        ("n=1..65537", "cannot have the extent 65537"),
        ("n=1..99999999999999999999", "cannot have the extent 1000000000"),
        ("n=8..2", '8 is more than 2; write "n=2..8"'),
        ("n=1..2, n=3", "'n' has two bounds"),
        ("n=1..32, tokens=1..128", 'n, tokens are dynamic.*: --shapes "n=1..32, tokens=128"'),
        ("n=4; n=4:1", "there is none"),
        ("n=1..32; m=1:1", "those of 'm', and the dynamic dimension is 'n'"),
        ("n=1..32; n=33:1", "the extent 33 has a weight, and the bounds are n=1..32"),
        ("n=1..32; n=1:-1", "weight of the extent 1 is -1"),
        ("n=1..32; n=1:1e999", "weight of the extent 1 is inf"),
        ("n=1..32; n=1:1e308,2:1e308", "no sum"),
        ("n=1..32; n=1:0", "no sum above 0"),
        ("n=1..32; n=1:1,1:2", "the extent 1 has two weights"),
        ("n=1..32; n=1", "'1' is no extent with its weight"),
        ("n=1..32; n=1:1.2.3", "no extent with its weight"),
        ("n=1..32; 1:1", "no list of weights"),
    ],
)
def test_a_wrong_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_shapes(text)


def test_weights_without_a_name_are_those_of_the_dynamic_dimension() -> None:
    dimensions = (Dimension("tokens", 8, 8), Dimension("n", 1, 4))
    assert weighted(dimensions, ((1, 0.5), (4, 1.5))).weights == ((1, 0.5), (4, 1.5))


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(RequestError, match="no extent with its weight"):
        parse_weights("n=1:e")
    with pytest.raises(RequestError, match="weight of the extent 1 is nan"):
        Shapes((Dimension("n", 1, 2),), ((1, math.nan),))


def test_a_name_with_other_characters_is_refused() -> None:
    with pytest.raises(RequestError, match="is no name of a dimension"):
        Dimension("a b", 1, 2)
