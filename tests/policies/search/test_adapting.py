"""What was found for one shape, as a beginning for another one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.sketch import Choice, Location, Sketch, Tile
from policies.search.adapting import adapted, nearest_tile, outline, seeds
from policies.search.task_records import as_matrix
from policies.space.sampling import is_valid
from tests.helpers.properties import examples


def steps(block: str, innermost: int, split: int = 64, extra: tuple[Any, ...] = ()) -> list[Any]:
    return [
        ["GetSBlock", [], [block, "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [3, innermost], ["v3", "v4", "v5"]],
        ["Split", ["l1", "v3", split], [True, False], ["l6", "l7"]],
        ["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v8"]],
        ["Annotate", ["b0", "v8"], ["meta_schedule.unroll_explicit"], []],
        *extra,
    ]


def sketch(extent: int, *, innermost: int = 64, block: str = "conv", extra: tuple[Any, ...] = ()) -> Sketch:
    decisions = (Tile(extent, 3, innermost), Choice("unroll", (0, 16, 64)), Location("b", (-1, 0, 1)))
    return Sketch(0, "tiling", json.dumps(steps(block, innermost, extra=extra)), decisions, ())


def whole(block: str = "conv") -> str:
    """A record's trace: with decisions, and what is done in the end."""
    ending = [["EnterPostproc", [], [], []], ["Unroll", ["l7"], [], []]]
    return json.dumps([[*steps(block, 32, split=8), *ending], [[2, [4, 7, 2]], [4, 1]]])


def test_the_same_sketch_of_other_shapes_has_one_outline() -> None:
    assert outline(whole()) == outline(sketch(56).trace_text) == outline(sketch(28, innermost=16, block="c").trace_text)
    other = sketch(56, extra=(["Parallel", ["l6"], [], []],))
    assert outline(other.trace_text) != outline(whole())
    for text in ("", "{}", "[1]", "[[1, 2]]", "null", '"a"'):
        with pytest.raises(ValueError, match="no trace"):
            outline(text)


@pytest.mark.parametrize(
    ("factors", "tile", "nearest"),
    [
        ((4, 7, 2), Tile(56, 3, 64), (4, 7, 2)),  # it fits as it is
        ((4, 7, 2), Tile(112, 3, 64), (8, 7, 2)),  # the outermost takes the rest
        ((4, 7, 2), Tile(14, 3, 64), (1, 7, 2)),
        ((4, 7, 4), Tile(14, 3, 64), (1, 7, 2)),  # 4 is no divisor
        ((1, 8, 16), Tile(64, 3, 8), (1, 8, 8)),  # the innermost has a limit
        ((2, 3, 5), Tile(1, 3, 64), (1, 1, 1)),
        ((8,), Tile(12, 1, 64), (12,)),
        ((3, 3), Tile(8, 2, 64), (4, 2)),  # 4 is nearer to 3, and larger
        ((1, 1, 32), Tile(48, 3, 64), (3, 1, 16)),  # 24 is nearer, and no whole vectors of 16
        ((1, 2, 32), Tile(96, 3, 64), (3, 2, 16)),
        ((1, 1, 24), Tile(36, 3, 64), (2, 1, 18)),  # there were none before
        ((1, 1, 32), Tile(10, 3, 64), (1, 1, 10)),  # there are none
    ],
)
def test_the_nearest_tile(factors: tuple[int, ...], tile: Tile, nearest: tuple[int, ...]) -> None:
    assert nearest_tile(factors, tile, 16) == nearest


def test_a_tile_that_nobody_looks_through_has_no_nearest() -> None:
    assert nearest_tile((2, 2, 2, 2, 2, 2), Tile(2**24, 6, 2**24), 16) is None
    assert nearest_tile((7, 1), Tile(7, 2, 64), 16) == (7, 1)
    assert nearest_tile((0, 7), Tile(7, 2, 64), 16) is None
    assert nearest_tile((1, 7), Tile(97, 2, 0), 16) is None


@given(
    st.lists(st.integers(1, 64), min_size=3, max_size=3),
    st.integers(1, 4096),
    st.integers(1, 64),
    st.integers(0, 2),
    st.integers(0, 2),
)
@examples(60)
def test_what_is_adapted_is_a_candidate(factors: list[int], extent: int, limit: int, choice: int, place: int) -> None:
    target = sketch(extent, innermost=limit)
    found = adapted((*factors, choice, place), target, 16)
    assert found is not None
    assert is_valid(target, as_matrix([found], target.width))[0]
    assert found[3:] == (choice, place)
    assert math.prod(found[:3]) == extent
    assert adapted(found, target, 16) == found


def test_seeds_are_what_fits_a_sketch_each_once() -> None:
    here = (sketch(112, extra=(["Parallel", ["l6"], [], []],)), sketch(112))
    found = [
        ("", whole(), (4, 7, 2, 1, 0)),
        ("", whole("other"), (2, 7, 2, 1, 0)),  # as above, once it is adapted
        ("", whole(), (4, 7, 4, 2, 1)),
        ("", whole(), (4, 7, 4, 9, 1)),  # there is no such choice
        ("", whole(), (4, 7, 4)),
        ("", "no trace", (4, 7, 2, 1, 0)),
    ]
    assert seeds(found, here, 16) == [(1, (8, 7, 2, 1, 0)), (1, (4, 7, 4, 2, 1))]
    assert seeds([(here[0].id, "no trace", (8, 7, 2, 1, 0))], here, 16) == [(0, (8, 7, 2, 1, 0))]
    assert seeds([], here, 16) == []
