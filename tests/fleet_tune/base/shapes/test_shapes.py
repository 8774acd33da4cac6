"""Bounds and weights of dynamic dimensions, from text and back."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.errors import RequestError
from fleet_tune.base.shapes.dimensions import MOST_EXTENT, Dimension, in_words, parse_weights
from fleet_tune.base.shapes.shapes import Shapes, parse_shapes

NAMES = st.from_regex(r"[A-Za-z_]\w{0,10}", fullmatch=True).filter(str.isascii)
EXTENTS = st.integers(0, MOST_EXTENT)


@st.composite
def _dimensions(draw: st.DrawFn, name: str) -> Dimension:
    least, most = sorted(draw(st.tuples(EXTENTS, EXTENTS).filter(any)))
    if least == most:
        return Dimension(name, least, most)
    weights = draw(st.dictionaries(st.integers(least, most), st.floats(0, 1e9), max_size=8))
    return Dimension(
        name, least, most, tuple(sorted(weights.items())) if any(n * of for n, of in weights.items()) else ()
    )


@st.composite
def _shapes(draw: st.DrawFn) -> Shapes:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    return Shapes(tuple(draw(_dimensions(name)) for name in names))


@given(_shapes())
def test_the_text_of_shapes_is_read_back(shapes: Shapes) -> None:
    assert parse_shapes(str(shapes)) == shapes


@given(_dimensions("n"))
def test_most_of_the_time_is_spent_at_the_typical_extent(dimension: Dimension) -> None:
    if dimension.is_fixed:
        assert dimension.typical == dimension.least
    else:
        weights, typical = dict(dimension.weights), dimension.typical
        assert typical > 0
        assert weights[typical] * typical == max(n * weight for n, weight in weights.items())


@given(_shapes())
def test_other_extents_to_compare_are_in_range_and_not_typical(shapes: Shapes) -> None:
    assert bool(shapes.others) == bool(shapes.dynamic)
    assert shapes.typical not in shapes.others
    assert all(extents in shapes for extents in shapes.others)
    if shapes.dynamic:
        assert (
            shapes.others[0] == {each.name: each.least for each in shapes.dynamic}
            or shapes.typical[shapes.dynamic[0].name] == shapes.dynamic[0].least
        )
    for each in shapes.dynamic:
        assert {each.least, each.most} <= {extents[each.name] for extents in (*shapes.others, shapes.typical)}


@given(_dimensions("n"))
def test_kernels_are_tuned_for_the_ends_and_close_enough_between_them(dimension: Dimension) -> None:
    samples = dimension.samples
    assert (samples[0], samples[-1]) == (dimension.least, dimension.most)
    assert all(before < after <= max(2 * before, 1) for before, after in itertools.pairwise(samples))
    assert all(n & (n - 1) == 0 for n in samples[1:-1])


def test_without_weights_all_samples_count_the_same() -> None:
    shapes = parse_shapes("n = 3 .. 20, tokens=128")
    assert shapes.dimensions == (Dimension("n", 3, 20), Dimension("tokens", 128, 128))
    assert shapes.samples == ({"n": 3}, {"n": 4}, {"n": 8}, {"n": 16}, {"n": 20})
    assert shapes.dynamic[0].weights == tuple((extent, 1.0) for extent in (3, 4, 8, 16, 20))
    assert shapes.typical == {"n": 20}
    assert str(shapes) == "n=3..20, tokens=128"


def test_weights_say_what_is_typical() -> None:
    shapes = parse_shapes("n=1..32; n=32:1, 1:7,8:2")
    assert shapes.typical == {"n": 32}, "most of the time: 32 against 7 and 16"
    assert shapes.dynamic[0].weights == ((1, 7.0), (8, 2.0), (32, 1.0))
    assert str(shapes) == "n=1..32; n=1:7,8:2,32:1"
    assert parse_shapes("n=1..32; n=1:2,8:2").typical == {"n": 8}


@given(_dimensions("n"))
def test_tiles_compute_every_number_of_rows(dimension: Dimension) -> None:
    sizes = dimension.tile_sizes
    assert all(after == 2 * before for before, after in itertools.pairwise(sizes))
    assert all(size & (size - 1) == 0 for size in sizes)
    least = max(dimension.least, 1)
    assert sizes[0] <= least < 2 * sizes[0], "the last tile, which overlaps, fits the smallest extent"
    assert sizes[-1] <= dimension.typical < 2 * sizes[-1]


def test_extents_that_come_often_have_tiles_of_their_own() -> None:
    def exact(text: str) -> tuple[int, ...]:
        """Of the largest tile there is."""
        shapes = parse_shapes(text)
        (dimension,) = shapes.dynamic
        found = dimension.exact_sizes(dimension.tile_sizes[-1])
        assert {each["n"] for each in shapes.others} >= set(found), "each is compared"
        return found

    assert exact("n=1..512") == ()
    # A tile of 111 rows has 37 of 3, which do not fit into registers.
    assert exact("n=1..512; n=6:0.1,14:0.2,28:0.3,111:0.2,223:0.1") == (6, 14, 28)
    assert exact("n=1..28; n=28:9,24:8,20:7,12:5,6:4,3:1") == (3, 6, 12), "the largest tile has 16 rows"
    assert exact("n=1..64; n=3:1,5:1,6:1,7:1,9:9,10:1,64:2") == (5, 6, 7, 10), "most time is spent in these"
    assert exact("n=1..64; n=6:0,64:1") == ()
    assert exact("n=5..64; n=5:1,6:1,64:1") == (5, 6), "beside tiles of 4 rows, of which the last two overlap"
    assert exact("n=6..7; n=6:9,7:1") == ()
    assert exact("n=0..4; n=0:1,3:1,4:1") == (3,)


def test_an_extent_may_be_zero_and_is_never_typical() -> None:
    shapes = parse_shapes("past=0..5; past=0:9,1:1,4:0")
    assert str(parse_shapes("past=0..1")) == "past=0..1"
    assert [each["past"] for each in shapes.samples] == [0, 1, 2, 4, 5]
    assert shapes.typical == {"past": 1}
    assert shapes.dynamic[0].tile_sizes == (1,)
    assert [each["past"] for each in shapes.others] == [0, 2, 3, 4, 5]
    assert {"past": 0} in shapes


def test_each_dimension_has_weights_of_its_own() -> None:
    shapes = parse_shapes("batch=1..4, k=3, tokens=2..9; tokens=4:2,9:0.5; batch=1:1")
    assert [each.name for each in shapes.dynamic] == ["batch", "tokens"]
    assert shapes.typical == {"batch": 1, "tokens": 4}
    assert shapes.samples == (
        {"batch": 1, "tokens": 2}, {"batch": 1, "tokens": 4}, {"batch": 1, "tokens": 8}, {"batch": 1, "tokens": 9},
        {"batch": 2, "tokens": 4}, {"batch": 4, "tokens": 4},
    )  # fmt: skip
    alike = [{"batch": 3, "tokens": 5}, {"batch": 4, "tokens": 9}]
    assert all(each in shapes.others for each in alike), "all dimensions small, in the middle, and large"
    assert shapes.others[0] == {"batch": 1, "tokens": 2}
    assert len(shapes.others) == len(shapes.samples) - 1 + len(alike)
    assert in_words(shapes.others[0]) == "batch = 1, tokens = 2"
    assert str(shapes) == "batch=1..4, k=3, tokens=2..9; batch=1:1; tokens=4:2,9:0.5"


def test_fixed_dimensions_have_neither_samples_nor_weights() -> None:
    shapes = parse_shapes("n=4, tokens=128")
    assert shapes.dynamic == ()
    assert shapes.samples == ()
    assert shapes.others == ()
    assert shapes.typical == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no name with its bounds"),
        ("n", '"n=1..32, tokens=128"'),
        ("n=1..32,", "'' is no name"),
        ("n=-1..3", "'n=-1..3' is no name with its bounds"),
        ("n=0", "'n' cannot have the extent 0 alone"),
        ("n=0..0", "'n' cannot have the extent 0 alone"),
        ("n=0..3; n=0:1", "those of the extent 0 alone"),
        ("n=1..65537", "cannot have the extent 65537; give extents from 0 to 65536"),
        ("n=1..99999999999999999999", "cannot have the extent 1000000000"),
        ("n=8..2", '8 is more than 2; write "n=2..8"'),
        ("n=1..2, n=3", "'n' has two bounds"),
        ("n=4; n=4:1", "there is none"),
        ("n=1..32; m=1:1", "those of 'm', and the dynamic dimension is 'n'"),
        ("n=1..32; n=33:1", "the extent 33 of n has a weight, and the bounds are n=1..32"),
        ("n=1..32; n=1:-1", "weight of the extent 1 of n is -1"),
        ("n=1..32; n=1:1e999", "weight of the extent 1 of n is inf"),
        ("n=1..32; n=1:1e308,2:1e308", "weights of n have no sum"),
        ("n=1..32; n=1:0", "no sum above 0"),
        ("n=1..32; n=1:1,1:2", "the extent 1 of n has two weights"),
        ("n=1..32; n=1", "'1' is no extent with its weight"),
        ("n=1..32; n=1:1.2.3", "no extent with its weight"),
        ("n=1..32; 1:1", "no list of weights"),
        ("n=1..32; n=1:1; n=2:1", "'n' has two lists of weights"),
        ("n=1..32, m=1..2; k=1:1", "those of 'k', and the dynamic dimensions are 'n', 'm'"),
    ],
)
def test_a_wrong_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_shapes(text)


def test_weights_without_a_name_are_those_of_the_dynamic_dimension() -> None:
    shapes = Shapes((Dimension("tokens", 8, 8), Dimension("n", 1, 4)))
    assert shapes.with_weights({None: ((1, 0.5), (4, 1.5))}).dynamic[0].weights == ((1, 0.5), (4, 1.5))
    with pytest.raises(RequestError, match=r'do not say of which dimension they are, and n, m are .*"n=1:0.7,8:0.2"'):
        parse_shapes("n=1..2, m=1..2").with_weights({None: ((1, 0.5),)})


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(RequestError, match="no extent with its weight"):
        parse_weights("n=1:e")
    with pytest.raises(RequestError, match="weight of the extent 1 of n is nan"):
        Dimension("n", 1, 2, ((1, math.nan),))


def test_a_name_with_other_characters_is_refused() -> None:
    with pytest.raises(RequestError, match="is no name of a dimension"):
        Dimension("a b", 1, 2)


def test_frequent_extents_are_those_of_most_time() -> None:
    one = parse_shapes("n=1..512; n=1:4,8:2,16:2,32:1,64:1,512:0")
    # Shares of the time: 64, 32 (of 16: twice 16), 32, 16.
    assert one.frequent == (({"n": 64}, 0.1), ({"n": 16}, 0.2), ({"n": 32}, 0.1), ({"n": 8}, 0.2))
    two = parse_shapes("n=1..4, m=0..9; n=1:3,4:1; m=0:1,9:1")
    typical = {"n": 4, "m": 9}
    assert two.typical == typical
    assert two.frequent == ((typical, 0.75), ({"n": 1, "m": 9}, 0.75))
    assert parse_shapes("n=3").frequent == ()
